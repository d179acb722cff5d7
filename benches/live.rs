//! A live index under changes:
//! `cargo bench --bench live -- ROWS QUERIES [KIND] [METRIC] [DEVICE] [stream]`
//! takes files of vectors. Prints what changes and searches cost, and recall@10 at three beams
//! beside that of a new build of the same rows; with `stream` after the device, what changes and
//! searches take beside each other, while a thread makes graphs.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark stops at the first error")]

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tagore::{
    Builder, Device, LiveIndex, Metric, Progress, Search, Searcher, Strategy, Vectors, ground_truth,
};

const K: usize = 10;
const BEAMS: [usize; 3] = [50, 100, 200];

fn hash(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The rows `ids` of a data set as f32.
fn select(rows: &Vectors, ids: &[u64]) -> Vectors {
    let values = ids.iter().flat_map(|&id| rows.row_to_f32(id as usize).unwrap().into_owned());
    Vectors::from_f32(values.collect(), rows.dim()).unwrap()
}

/// A live index, the rows that it takes, and which of them it has.
struct Bench<'a> {
    rows: &'a Vectors,
    queries: &'a Vectors,
    builder: &'a Builder,
    metric: Metric,
    held: Vec<u64>,
}

impl Bench<'_> {
    fn create(&self, folder: &Path) -> LiveIndex {
        let element = tagore::ElementType::F32;
        let index = LiveIndex::create(folder, self.builder.clone(), self.rows.dim(), element).unwrap();
        index.set_synced(false);
        index
    }

    /// Recall beside that of a new build, and microseconds per search on one thread.
    fn measure(&self, index: &LiveIndex, name: &str) {
        let silent = Progress::silent();
        let base = select(self.rows, &self.held);
        let truth = ground_truth(&base, self.queries, self.metric, K, &silent).unwrap();
        let begun = Instant::now();
        let anew = self.builder.build(&base).unwrap();
        let build = begun.elapsed().as_secs_f64();
        let searcher = Searcher::new(anew, base, &silent).unwrap();
        let snapshot = index.snapshot();
        print!("{name}: {} rows, {} places, build {build:.2} s;", snapshot.len(), snapshot.rows());
        for beam in BEAMS {
            let search = Search::new(K).beam(beam);
            let hits = |query: usize, distances: &[f32]| {
                let last = truth.distances(query).unwrap()[K - 1];
                distances.iter().filter(|&&distance| distance <= last + last.abs() * 1e-6).count()
            };
            let (mut own, mut of_new, mut seconds) = (0, 0, [0.0; 2]);
            for query in 0..self.queries.len() {
                let row = self.queries.row_to_f32(query).unwrap();
                let begun = Instant::now();
                let found = snapshot.search_one(&row, search).unwrap();
                seconds[0] += begun.elapsed().as_secs_f64();
                own += hits(query, &found.iter().map(|near| near.distance).collect::<Vec<_>>());
                let begun = Instant::now();
                let found = searcher.search_one(&row, search).unwrap();
                seconds[1] += begun.elapsed().as_secs_f64();
                of_new += hits(query, &found.iter().map(|near| near.distance).collect::<Vec<_>>());
            }
            let count = self.queries.len() as f64;
            let [own, of_new] = [own, of_new].map(|hits| hits as f64 / (count * K as f64));
            let [live, new] = seconds.map(|seconds| 1e6 * seconds / count);
            print!(" {beam}: {own:.4} {live:.0} us (new {of_new:.4} {new:.0} us)");
        }
        println!();
    }

    fn insert(&mut self, index: &LiveIndex, ids: std::ops::Range<usize>, batch: usize, name: &str) {
        let (begun, count) = (Instant::now(), ids.len());
        let mut longest: f64 = 0.0;
        for first in ids.clone().step_by(batch) {
            let batch: Vec<u64> = (first as u64..ids.end.min(first + batch) as u64).collect();
            let rows = select(self.rows, &batch);
            let begun = Instant::now();
            index.insert(&batch, &rows, &Progress::silent()).unwrap();
            longest = longest.max(begun.elapsed().as_secs_f64());
            self.held.extend(batch);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let each = 1e6 * seconds / count as f64;
        println!("{name}: {seconds:.2} s, {each:.0} us a row, at most {longest:.3} s a call");
    }
}

/// Rows come and go in batches of `batch` changes, `most` a second, while a thread makes graphs,
/// each once one row in 16 is recent, and another thread searches.
fn stream(bench: &Bench<'_>, index: &LiveIndex, batch: usize, most: f64) {
    let (silent, n) = (Progress::silent(), bench.rows.len() as u64);
    let search = Search::new(K).beam(64);
    let find = || index.snapshot().search(bench.queries, search, &silent).unwrap().len();
    let rate = |is_done: &dyn Fn() -> bool| {
        let (begun, mut found) = (Instant::now(), 0);
        while !is_done() {
            found += find();
        }
        found as f64 / begun.elapsed().as_secs_f64()
    };
    find();
    let begun = Instant::now();
    let alone = rate(&|| begun.elapsed().as_secs_f64() > 1.0);
    let (is_done, half) = (AtomicBool::new(false), (batch / 2) as u64);
    let held: HashSet<u64> = bench.held.iter().copied().collect();
    let mut free: VecDeque<u64> = (0..n).filter(|id| !held.contains(id)).collect();
    let mut there: VecDeque<u64> = bench.held.iter().copied().collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                match index.snapshot().recent() > index.len() / 16 {
                    true => drop(index.consolidate(&silent).unwrap()),
                    false => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let searches = scope.spawn(|| rate(&|| is_done.load(Ordering::Relaxed)));
        let (begun_all, mut seconds, mut changes, mut longest) = (Instant::now(), 0.0, 0, 0.0f64);
        while begun_all.elapsed().as_secs_f64() < 5.0 {
            let come: Vec<u64> = free.drain(..half as usize).collect();
            let gone: Vec<u64> = there.drain(..half as usize).collect();
            let rows = select(bench.rows, &come);
            let begun = Instant::now();
            index.remove(&gone, &silent).unwrap();
            index.insert(&come, &rows, &silent).unwrap();
            let took = begun.elapsed().as_secs_f64();
            (seconds, longest, changes) = (seconds + took, longest.max(took), changes + 2 * half);
            free.extend(gone);
            there.extend(come);
            let ahead = changes as f64 / most - begun_all.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_secs_f64(ahead.max(0.0)));
        }
        is_done.store(true, Ordering::Relaxed);
        let beside = searches.join().unwrap();
        let rows = index.snapshot().recent();
        println!(
            "changes by {batch}, up to {most} a second: {:.0}, {:.0} if they do nothing else, at most {longest:.4} s a batch, {rows} recent rows at the end; \
             {beside:.0} queries a second for {alone:.0} alone",
            changes as f64 / begun_all.elapsed().as_secs_f64(),
            changes as f64 / seconds
        );
    });
    let live: Vec<u64> = there.into_iter().collect();
    let base = select(bench.rows, &live);
    let truth = ground_truth(&base, bench.queries, bench.metric, K, &silent).unwrap();
    let found = index.snapshot().search(bench.queries, search, &silent).unwrap();
    let hits = |query: usize| {
        found
            .ids(query)
            .iter()
            .filter(|&&id| truth.ids(query).iter().any(|&row| live[row as usize] == id))
            .count()
    };
    let hits: usize = (0..bench.queries.len()).map(hits).sum();
    println!(
        "recall@10 at beam 64: {:.4} of {} rows",
        hits as f64 / (bench.queries.len() * K) as f64,
        live.len()
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let [rows, queries, rest @ ..] = &arguments[..] else {
        println!("usage: cargo bench --bench live -- ROWS QUERIES [KIND] [METRIC] [DEVICE] [stream]");
        return;
    };
    let (rows, queries) = (Vectors::open(rows).unwrap(), Vectors::open(queries).unwrap());
    let strategy: Strategy = rest.first().map_or_else(Strategy::cagra, |kind| kind.parse().unwrap());
    let metric: Metric = rest.get(1).map_or(Metric::L2, |metric| metric.parse().unwrap());
    let device: Device = rest.get(2).map_or(Device::Cpu, |device| device.parse().unwrap());
    let builder = Builder::new(strategy).metric(metric).device(device);
    let n = rows.len();
    let folder = std::env::temp_dir().join(format!("tagore-live-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut bench = Bench { rows: &rows, queries: &queries, builder: &builder, metric, held: Vec::new() };

    if rest.get(3).is_some_and(|what| what == "stream") {
        bench.held = (0..n as u64 / 2).collect();
        let index = bench.create(&folder.join("stream"));
        index.set_automatic(false);
        index.insert(&bench.held, &select(&rows, &bench.held), &Progress::silent()).unwrap();
        index.consolidate(&Progress::silent()).unwrap();
        index.set_search_device(device).unwrap();
        for (batch, most) in [(10_000, f64::INFINITY), (10_000, 1e5), (100, f64::INFINITY), (100, 1e5)] {
            while index.consolidate(&Progress::silent()).unwrap() {}
            stream(&bench, &index, batch, most);
            bench.held.clear();
            bench.held.extend((0..n as u64).filter(|&id| index.contains(id)));
        }
        std::fs::remove_dir_all(folder).unwrap();
        return;
    }
    for (name, batch, count) in [("batches of 1000", 1000, n), ("single rows", 1, n.min(10_000))] {
        bench.held.clear();
        let index = bench.create(&folder.join(name));
        bench.insert(&index, 0..count, batch, name);
        bench.measure(&index, name);
    }

    // Half of the rows; then each round 1 % of them give way to others, one by one and in batches.
    let half = n / 2;
    bench.held.clear();
    let index = bench.create(&folder.join("churn"));
    bench.insert(&index, 0..half, half, "all at once");
    index.consolidate(&Progress::silent()).unwrap();
    bench.measure(&index, "at first");
    let batch = (half / 100).max(1);
    let (mut next, mut seconds) = (half, [0.0; 2]);
    for round in 1..=50 {
        let gone: Vec<u64> = (0..batch)
            .map(|count| {
                let place = hash(round as u64 * 1_000_003 + count as u64) as usize % bench.held.len();
                bench.held.swap_remove(place)
            })
            .collect();
        let come: Vec<u64> = (next as u64..(next + batch) as u64).collect();
        next += batch;
        let rows = select(bench.rows, &come);
        let begun = Instant::now();
        index.remove(&gone, &Progress::silent()).unwrap();
        seconds[0] += begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        index.insert(&come, &rows, &Progress::silent()).unwrap();
        seconds[1] += begun.elapsed().as_secs_f64();
        bench.held.extend(come);
        if round % 10 == 0 {
            bench.measure(&index, &format!("round {round}"));
        }
    }
    let each = seconds.map(|seconds| 1e6 * seconds / (50 * batch) as f64);
    println!("{:.1} us a removal, {:.1} us an insertion, with the graphs", each[0], each[1]);
    drop(index);
    let begun = Instant::now();
    let index = LiveIndex::open(folder.join("churn")).unwrap();
    println!("opened in {:.3} s, {} rows", begun.elapsed().as_secs_f64(), index.len());
    std::fs::remove_dir_all(folder).unwrap();
}
