//! Searches with filters: recall, distances and rate. `cargo bench --bench filters -- BASE QUERIES
//! [INDEX] [DEVICE]` takes files of vectors, and makes the index unless its file is there.
//!
//! Filters pass rows by chance, or half of the cells of 256 random rows (`cells`), or the rows on
//! one side of the median along the direction of the largest variance, for all queries (`half`) and
//! for those on the other end (`far`).
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark stops at the first error")]

use std::path::Path;
use std::time::Instant;

use tagore::{
    Builder, Device, IdSet, Index, Metric, Progress, Search, Searcher, Strategy, Vectors, ground_truth,
};

const K: usize = 10;
const BEAMS: [usize; 6] = [10, 16, 32, 64, 128, 256];
const SHARES: [f64; 8] = [1.0, 0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01];
const CENTRES: usize = 256;
/// Runs of each search; the fastest is printed.
const RUNS: usize = 3;

fn hash(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The rows `ids`.
fn select(base: &Vectors, ids: &[u32]) -> Vectors {
    let rows = ids.iter().flat_map(|&id| base.row_to_f32(id as usize).unwrap().into_owned());
    Vectors::from_f32(rows.collect(), base.dim()).unwrap()
}

/// The direction of the largest variance of some rows.
fn direction(base: &Vectors) -> Vec<f64> {
    let (dim, step) = (base.dim(), base.len().div_ceil(2000));
    let mut rows: Vec<Vec<f64>> = (0..base.len())
        .step_by(step)
        .map(|row| base.row_to_f32(row).unwrap().iter().map(|&x| f64::from(x)).collect())
        .collect();
    let mean: Vec<f64> =
        (0..dim).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect();
    rows.iter_mut().for_each(|row| row.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean));
    let mut along: Vec<f64> = (0..dim).map(|i| 1.0 + i as f64 / 7.0).collect();
    for _ in 0..30 {
        let mut next = vec![0.0; dim];
        for row in &rows {
            let product: f64 = row.iter().zip(&along).map(|(x, y)| x * y).sum();
            next.iter_mut().zip(row).for_each(|(next, x)| *next += product * x);
        }
        let norm = next.iter().map(|x| x * x).sum::<f64>().sqrt();
        along = next.into_iter().map(|x| x / norm).collect();
    }
    along
}

fn along(direction: &[f64], rows: &Vectors) -> Vec<f64> {
    let product = |row: usize| {
        let row = rows.row_to_f32(row).unwrap();
        row.iter().zip(direction).map(|(&x, y)| f64::from(x) * y).sum()
    };
    (0..rows.len()).map(product).collect()
}

/// A filter: its name, the ids that pass, and the queries.
struct Case {
    name: String,
    ids: IdSet,
    queries: Vectors,
}

fn cases(base: &Vectors, queries: &Vectors) -> Vec<Case> {
    let n = base.len();
    let from = |passes: &dyn Fn(usize) -> bool| {
        IdSet::from_ids(n, (0..n as u32).filter(|&id| passes(id as usize))).unwrap()
    };
    let mut cases: Vec<Case> = SHARES
        .iter()
        .map(|share| {
            let most = (share * f64::from(u32::MAX)) as u64;
            let ids = from(&|id| hash(id as u64 + 1) >> 32 <= most);
            Case { name: format!("random {share}"), ids, queries: queries.clone() }
        })
        .collect();
    let centres: Vec<u32> = (0..CENTRES as u64).map(|i| (hash(i + 99) % n as u64) as u32).collect();
    let centres = select(base, &centres);
    let nearest = ground_truth(&centres, base, Metric::L2, 1, &Progress::silent()).unwrap();
    let ids = from(&|id| hash(u64::from(nearest.ids(id)[0]) + 7) & 1 == 0);
    cases.push(Case { name: "cells".into(), ids, queries: queries.clone() });
    let direction = direction(base);
    let (of_rows, of_queries) = (along(&direction, base), along(&direction, queries));
    let mut sorted = of_rows.clone();
    sorted.sort_by(f64::total_cmp);
    let ids = from(&|id| of_rows[id] >= sorted[n / 2]);
    cases.push(Case { name: "half".into(), ids: ids.clone(), queries: queries.clone() });
    let mut sorted = of_queries.clone();
    sorted.sort_by(f64::total_cmp);
    let far: Vec<u32> =
        (0..queries.len() as u32).filter(|&i| of_queries[i as usize] < sorted[queries.len() / 4]).collect();
    cases.push(Case { name: "far".into(), ids, queries: select(queries, &far) });
    cases
}

fn run(searcher: &Searcher, Case { name, ids, queries }: &Case) {
    let (base, metric) = (searcher.base(), searcher.index().metric());
    let passing: Vec<u32> = ids.iter().collect();
    let truth = ground_truth(&select(base, &passing), queries, metric, K, &Progress::silent()).unwrap();
    for beam in BEAMS {
        let search = Search::new(K).beam(beam).among(ids);
        let search = if ids.len() == base.len() { Search::new(K).beam(beam) } else { search };
        let find = || searcher.search(queries, search, &Progress::silent()).unwrap();
        find();
        let found = find();
        let time = || {
            let begun = Instant::now();
            find();
            begun.elapsed().as_secs_f64()
        };
        let seconds = (0..RUNS).map(|_| time()).fold(f64::INFINITY, f64::min);
        let mut hits = 0;
        for query in 0..queries.len() {
            let last = truth.distances(query).unwrap()[K - 1];
            let within = last + last.abs() * 1e-6;
            let rows: Vec<_> = found.neighbors(query).collect();
            assert!(rows.iter().all(|row| ids.contains(row.id)), "a row that does not pass");
            hits += rows.iter().filter(|row| row.distance <= within).count();
        }
        let on_device = found.device_seconds().map_or(0.0, |seconds| queries.len() as f64 / seconds);
        println!(
            "{name:<12} {:>8} rows pass, beam {beam:>3}: recall {:.4}, {:>7.0} distances, {:>9.0} queries/s, \
             {on_device:>9.0} on the device",
            ids.len(),
            hits as f64 / (queries.len() * K) as f64,
            found.computed() as f64 / queries.len() as f64,
            queries.len() as f64 / seconds
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let [base, queries, rest @ ..] = &arguments[..] else {
        println!("usage: cargo bench --bench filters -- BASE QUERIES [INDEX] [DEVICE] [CASES...]");
        return;
    };
    let (base, queries) = (Vectors::open(base).unwrap(), Vectors::open(queries).unwrap());
    let device: Device = rest.get(1).map_or(Device::Auto, |name| name.parse().unwrap());
    let index = match rest.first().filter(|path| Path::new(path).exists()) {
        Some(path) => Index::open(path).unwrap(),
        None => {
            let index = Builder::new(Strategy::cagra()).device(device).build(&base).unwrap();
            rest.first().iter().for_each(|path| index.save(path).unwrap());
            index
        }
    };
    let searcher = Searcher::new(index, base, &Progress::silent()).unwrap().device(device).unwrap();
    println!("{searcher:?}, k = {K}, {} queries", queries.len());
    let wanted = rest.get(2..).unwrap_or_default();
    for case in cases(searcher.base(), &queries) {
        if wanted.is_empty() || wanted.iter().any(|name| case.name.contains(name.as_str())) {
            run(&searcher, &case);
        }
    }
}
