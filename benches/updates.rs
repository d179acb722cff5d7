//! Updates of an index beside builds of the same rows: `cargo bench --bench updates -- MODE ROWS
//! QUERIES [KIND] [METRIC] [ROUNDS] [DEVICE] [UPDATES ON]` takes files of vectors. Prints recall@10
//! by distances and distances per query at three beams, and the seconds of both.
//!
//! - `churn`: an index of half of the rows; each round 1 % of them, at random, give way to others.
//! - `window`: the rows ordered by the nearest of 20 rows; each round the oldest 2 % of a window of
//!   half of them give way to the next, so places and whole clusters go and come.
//! - `grow`: half of the rows, then the others in batches, one per round.
//! - `start`: one row, then the others in batches, one per round.
//! - `merge`: as many parts as ROUNDS, each a random share of the rows, are merged.
//! - `merge-places`: likewise, of the rows ordered by the nearest of 20 rows.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark stops at the first error")]

use std::time::Instant;

use tagore::{
    Builder, Device, IdSet, Index, IndexMerge, IndexUpdate, Metric, Progress, Search, Searcher, Strategy,
    Vectors, ground_truth,
};

const K: usize = 10;
const BEAMS: [usize; 3] = [50, 100, 200];
const PLACES: usize = 20;
/// Rounds between two comparisons with a new build.
const COMPARED: usize = 10;

fn hash(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The rows `ids` of a data set as f32.
fn select(rows: &Vectors, ids: &[u32]) -> Vectors {
    let values = ids.iter().flat_map(|&id| rows.row_to_f32(id as usize).unwrap().into_owned());
    Vectors::from_f32(values.collect(), rows.dim()).unwrap()
}

/// Recall and distances per query at each beam.
fn measure(index: &Index, base: &Vectors, queries: &Vectors) -> [(f64, f64); 3] {
    let truth = ground_truth(base, queries, index.metric(), K, &Progress::silent()).unwrap();
    let searcher = Searcher::new(index.clone(), base.clone(), &Progress::silent()).unwrap();
    BEAMS.map(|beam| {
        let found = searcher.search(queries, Search::new(K).beam(beam), &Progress::silent()).unwrap();
        let mut hits = 0;
        for query in 0..queries.len() {
            let last = truth.distances(query).unwrap()[K - 1];
            let within = last + last.abs() * 1e-6;
            hits += found.neighbors(query).filter(|row| row.distance <= within).count();
        }
        let per_query = found.computed() as f64 / queries.len() as f64;
        (hits as f64 / (queries.len() * K) as f64, per_query)
    })
}

/// Prints what `index` finds beside one built anew, and returns the seconds of the build.
fn compare(builder: &Builder, index: &Index, base: &Vectors, queries: &Vectors) -> f64 {
    let begun = Instant::now();
    let anew = builder.build(base).unwrap();
    let build_seconds = begun.elapsed().as_secs_f64();
    let layers = (index.layers().len(), anew.layers().len());
    let anew_degree = anew.mean_degree();
    let (updated, anew) = (measure(index, base, queries), measure(&anew, base, queries));
    print!("{} rows, {} ({}) layers: ", base.len(), layers.0, layers.1);
    for (beam, (updated, anew)) in BEAMS.iter().zip(updated.iter().zip(&anew)) {
        let ((recall, distances), (of_new, distances_of_new)) = (updated, anew);
        print!("{beam}: {recall:.4} {distances:.0} (new {of_new:.4} {distances_of_new:.0})  ");
    }
    print!("degree {:.1} ({:.1}) ", index.mean_degree(), anew_degree);
    build_seconds
}

/// Merges `count` indexes of as many parts of `base`.
fn merge(builder: &Builder, base: &Vectors, queries: &Vectors, count: usize) {
    let rows: Vec<u32> = (0..base.len() as u32).collect();
    let begun = Instant::now();
    let parts = rows.chunks(base.len().div_ceil(count));
    let parts: Vec<Index> = parts.map(|rows| builder.build(&select(base, rows)).unwrap()).collect();
    let parts_seconds = begun.elapsed().as_secs_f64();
    let parts: Vec<&Index> = parts.iter().collect();
    // A new data set, since one remembers what a build finds in it.
    let anew = select(base, &rows);
    let begun = Instant::now();
    let merge = IndexMerge::with(&parts, builder.clone());
    let (index, stats) = merge.run(base).unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    print!("{} {} of {count} parts, ", builder.strategy().kind(), index.metric());
    let build_seconds = compare(builder, &index, &anew, queries);
    let share = seconds / build_seconds;
    println!(
        "merge {seconds:.3} s, build {build_seconds:.3} s: {share:.2}, parts {parts_seconds:.2} s, {:?} joined, {} attached",
        stats.joined, stats.build.prune.attached
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let [mode, rows, queries, rest @ ..] = &arguments[..] else {
        println!(
            "usage: cargo bench --bench updates -- MODE ROWS QUERIES [KIND] [METRIC] [ROUNDS] [DEVICE] [UPDATES ON]"
        );
        return;
    };
    let (rows, queries) = (Vectors::open(rows).unwrap(), Vectors::open(queries).unwrap());
    let strategy: Strategy = rest.first().map_or_else(Strategy::cagra, |kind| kind.parse().unwrap());
    let metric: Metric = rest.get(1).map_or(Metric::L2, |metric| metric.parse().unwrap());
    let rounds: usize = rest.get(2).map_or(100, |rounds| rounds.parse().unwrap());
    let device: Device = rest.get(3).map_or(Device::Cpu, |device| device.parse().unwrap());
    let n = rows.len() as u32;

    // The order in which rows come.
    let mut order: Vec<u32> = (0..n).collect();
    order.sort_by_key(|&row| hash(u64::from(row) + 1));
    if mode == "window" || mode == "merge-places" {
        let nearest = ground_truth(&select(&rows, &order[..PLACES]), &rows, metric, 1, &Progress::silent());
        let nearest = nearest.unwrap();
        order.sort_by_key(|&row| nearest.ids(row as usize)[0]);
    }
    if mode.starts_with("merge") {
        let builder = Builder::new(strategy).metric(metric).device(device);
        merge(&builder, &select(&rows, &order), &queries, rounds);
        return;
    }
    // The row at each place of the base.
    let first = if mode == "start" { 1 } else { n as usize / 2 };
    let (mut held, mut next) = (order[..first].to_vec(), first);
    let updates_on: Device = rest.get(4).map_or(Device::Cpu, |device| device.parse().unwrap());
    let builder = Builder::new(strategy).metric(metric).device(device);
    let mut index = builder.build(&select(&rows, &held)).unwrap();
    let (mut update_seconds, mut changed) = (0.0, 0);
    for round in 1..=rounds {
        let batch = match mode.as_str() {
            "churn" => (first / 100).max(1),
            "window" => (first / 50).max(1),
            _ => (n as usize - first).div_ceil(rounds),
        };
        let end = (next + batch).min(n as usize);
        let known = held.len();
        let mut replaced = IdSet::new(known);
        match mode.as_str() {
            "churn" | "window" => {
                let mut draws = (1..).map(|draw| hash(round as u64 * 1_000_003 + draw) as usize % first);
                for (count, &row) in order[next..end].iter().enumerate() {
                    let place = match mode.as_str() {
                        "window" => ((round - 1) * batch + count) % first,
                        _ => draws.find(|&place| !replaced.contains(place as u32)).unwrap(),
                    };
                    replaced.insert(place as u32).unwrap();
                    held[place] = row;
                }
            }
            _ => held.extend_from_slice(&order[next..end]),
        }
        next = end;
        let base = select(&rows, &held);
        let begun = Instant::now();
        let update = IndexUpdate::with(&index, builder.clone().device(updates_on)).replace(replaced);
        let (updated, stats) = update.run(&base).unwrap();
        update_seconds += begun.elapsed().as_secs_f64();
        changed += stats.inserted;
        index = updated;
        if round % COMPARED == 0 || round == rounds {
            print!("{mode} round {round:>3}, ");
            let build_seconds = compare(&builder, &index, &base, &queries);
            let (each, mended) = (1e6 * update_seconds / changed as f64, stats.mended.unwrap_or(0));
            println!(
                "{each:.0} us a change, build {build_seconds:.2} s, {mended} mended, {} attached",
                stats.build.prune.attached
            );
        }
        if end == n as usize && mode != "churn" && mode != "window" {
            break;
        }
    }
}
