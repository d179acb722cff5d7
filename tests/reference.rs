//! Plain reference implementations, and data that is hard for graph builders.

use std::sync::Arc;

use tagore::{Index, Layer, Metric, Progress, Result, Search, SearchResult, Searcher, Vectors};
use tagore_device::random::{Draws, Stage};

/// The list distance of `metric`, in f64.
pub fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    let dot: f64 = pairs().map(|(x, y)| x * y).sum();
    match metric {
        Metric::L2 => pairs().map(|(x, y)| (x - y) * (x - y)).sum(),
        Metric::InnerProduct => -dot,
        Metric::Cosine => {
            let norm = |v: &[f32]| v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let product = norm(a) * norm(b);
            if product == 0.0 { 1.0 } else { 1.0 - dot / product }
        }
    }
}

/// The `k` smallest distances from `point` to rows of `base`, row `itself` excluded.
pub fn nearest_distances(
    base: &Vectors,
    point: &[f32],
    itself: Option<usize>,
    metric: Metric,
    k: usize,
) -> Vec<f64> {
    let others = (0..base.len()).filter(|&row| Some(row) != itself);
    let mut distances: Vec<f64> =
        others.map(|row| distance(metric, point, &base.row_to_f32(row).unwrap())).collect();
    distances.sort_by(f64::total_cmp);
    distances.truncate(k);
    distances
}

/// Searches on the CPU for the `k` nearest rows of each query.
pub fn search(
    index: impl Into<Arc<Index>>,
    base: &Vectors,
    queries: &Vectors,
    k: usize,
    beam: usize,
) -> Result<SearchResult> {
    let silent = Progress::silent();
    Searcher::new(index, base.clone(), &silent)?.search(queries, Search::new(k).beam(beam), &silent)
}

/// Uniform f32 values from -10 to 10.
pub fn uniform(rows: usize, dim: usize, seed: u64) -> Vectors {
    let draws = Draws::new(seed, Stage::Test, 2, 0);
    let values = (0..rows * dim).map(|i| (draws.unit(i as u64) * 20.0 - 10.0) as f32).collect();
    Vectors::from_f32(values, dim).unwrap()
}

/// Rows in separate clusters: sums of a centre from `uniform` and noise of a hundredth of its size.
/// Row i is in cluster `i % clusters`; another `part` gives other rows of the same clusters.
pub fn separated(rows: usize, clusters: usize, dim: usize, part: u64) -> Vectors {
    let (centres, noise) = (uniform(clusters, dim, 77), uniform(rows, dim, 78 + part));
    let row = |i: usize| -> Vec<f32> {
        let centre = centres.row_to_f32(i % clusters).unwrap();
        centre.iter().zip(noise.row_to_f32(i).unwrap().iter()).map(|(c, x)| c + 0.01 * x).collect()
    };
    Vectors::from_f32((0..rows).flat_map(row).collect(), dim).unwrap()
}

/// Data sets that graph builders often fail on, of `rows` rows each, with names for messages.
pub fn hard_cases(rows: usize, dim: usize, seed: u64) -> Vec<(&'static str, Vectors)> {
    let noise = uniform(rows, dim, seed);
    let from = |value: &dyn Fn(usize, usize) -> f32| {
        let values = (0..rows * dim).map(|i| value(i / dim, i % dim)).collect();
        Vectors::from_f32(values, dim).unwrap()
    };
    let noise_at = |row: usize, d: usize| noise.row_to_f32(row).unwrap()[d];
    vec![
        ("noise", from(&noise_at)),
        ("all equal", from(&|_, _| 3.5)),
        ("all zero", from(&|_, _| 0.0)),
        ("a quarter duplicated", from(&|row, d| noise_at(if row % 4 == 0 { 0 } else { row }, d))),
        ("pairs", from(&|row, d| noise_at(row / 2, d))),
        (
            "two clusters far apart",
            from(&|row, d| noise_at(row, d) * 1e-3 + if row % 2 == 0 { 0.0 } else { 1e4 }),
        ),
        ("one far row", from(&|row, d| if row == 0 { 1e6 } else { noise_at(row, d) })),
        (
            "a zero row",
            from(&|row, d| {
                if row == rows / 2 { 0.0 } else { noise_at(row, d) }
            }),
        ),
        ("tiny values", from(&|row, d| noise_at(row, d) * 1e-6)),
        ("large values", from(&|row, d| noise_at(row, d) * 6.5e3)),
    ]
}

/// Checks the invariants of an index: rows of distinct ids below n without the node's own, within
/// the degree, and valid entry points.
pub fn check_graph(index: &Index, what: &str) {
    let n = index.len();
    for node in 0..n {
        let mut row = index.neighbors(node).to_vec();
        assert!(row.len() <= index.max_degree(), "{what}: degree {} at {node}", row.len());
        assert!(row.iter().all(|&id| (id as usize) < n), "{what}: an unknown id at {node}");
        assert!(!row.contains(&(node as u32)), "{what}: a self edge at {node}");
        let edges = row.len();
        row.sort_unstable();
        row.dedup();
        assert_eq!(row.len(), edges, "{what}: a duplicate edge at {node}");
    }
    assert!(!index.entries().is_empty(), "{what}: no entry points");
    assert!(index.entries().iter().all(|&id| (id as usize) < n), "{what}: an unknown entry point");
}

/// The number of nodes reachable from the entry points, or from the lowest layer if there are
/// layers. A repeated row is reached with the first row of its group.
pub fn reachable(index: &Index) -> usize {
    let mut seen = vec![false; index.len()];
    let mut queue = index.layers().first().map_or(index.entries(), Layer::nodes).to_vec();
    let mut count = 0;
    while let Some(node) = queue.pop() {
        if !std::mem::replace(&mut seen[node as usize], true) {
            count += 1 + index.repeated().copies_of(node).len();
            queue.extend(index.neighbors(node as usize));
        }
    }
    count
}
