//! Reports compared with plain counting.

use std::sync::Arc;

use tagore::{
    Builder, Descent, Description, Device, Index, Iterations, KnnGraph, Measure, Metric, Report, Start,
    Strategy, Vectors,
};

use crate::reference::{self, nearest_distances, reachable, uniform};

/// Whole numbers: exact in f32 and f64, with many ties.
fn whole(rows: usize, dim: usize, from: impl Fn(usize) -> usize) -> Vectors {
    let noise = uniform(rows, dim, rows as u64);
    let values = (0..rows)
        .flat_map(|row| noise.row_to_f32(from(row)).unwrap().iter().map(|x| x.round()).collect::<Vec<_>>());
    Vectors::from_f32(values.collect(), dim).unwrap()
}

fn data(rows: usize) -> [(&'static str, Vectors); 3] {
    [
        ("noise", whole(rows, 6, |row| row)),
        ("a quarter duplicated", whole(rows, 6, |row| if row % 4 == 0 { 0 } else { row })),
        ("all equal", whole(rows, 6, |_| 0)),
    ]
}

/// Recall at `at` over all rows, where ties count; `found` gives the distances of a row's results.
fn recall(base: &Vectors, at: usize, found: impl Fn(usize) -> Vec<f32>) -> f64 {
    if at == 0 {
        return 1.0;
    }
    let hits = (0..base.len()).map(|row| {
        let farthest =
            nearest_distances(base, &base.row_to_f32(row).unwrap(), Some(row), Metric::L2, at)[at - 1];
        found(row).into_iter().take(at).filter(|&distance| f64::from(distance) <= farthest).count()
    });
    hits.sum::<usize>() as f64 / (base.len() * at) as f64
}

/// Distances from `row` to all others that paths from the entry points lead to, ascending. The
/// paths may cross the row's node, or not; a row with equals is always crossed.
fn reached_without(index: &Index, base: &Vectors, row: usize, crosses: bool) -> Vec<f32> {
    let (repeated, row_id) = (index.repeated(), row as u32);
    let is_alone = !repeated.contains(row_id) && repeated.copies_of(row_id).len() == 0;
    let mut seen = vec![false; base.len()];
    seen[row] = is_alone && !crosses;
    let mut queue: Vec<u32> = index.entries().to_vec();
    if is_alone && queue == [row_id] {
        queue = index.neighbors(row).to_vec();
    }
    let mut found = Vec::new();
    while let Some(node) = queue.pop() {
        if !std::mem::replace(&mut seen[node as usize], true) {
            queue.extend(index.neighbors(node as usize));
            found.extend([node].into_iter().chain(repeated.copies_of(node)));
        }
    }
    let others = found.into_iter().filter(|&other| other != row_id);
    let distance = |other: u32| {
        reference::distance(
            Metric::L2,
            &base.row_to_f32(row).unwrap(),
            &base.row_to_f32(other as usize).unwrap(),
        ) as f32
    };
    let mut distances: Vec<f32> = others.map(distance).collect();
    distances.sort_by(f32::total_cmp);
    distances
}

fn check(what: &str, base: &Vectors, strategy: Strategy, graph: &KnnGraph) {
    let builder = Builder::new(strategy).device(Device::Cpu).sample(1000);
    let (index, stats) = builder.build_with_stats(base, Some(graph)).unwrap();
    let (index, measure) = (Arc::new(index), Measure::default().on(Device::Cpu));
    let report = Report::measure(&index, Some(base), &stats.sample, &measure).unwrap();
    let (n, what) = (base.len(), format!("{} of {} rows, {what}", index.kind(), base.len()));

    let degrees: Vec<usize> = (0..n).map(|node| index.neighbors(node).len()).collect();
    for (degree, &nodes) in report.degrees.iter().enumerate() {
        let counted = degrees.iter().filter(|&&found| found == degree).count();
        assert_eq!(nodes, counted as u64, "{what}: nodes of degree {degree}");
    }
    let edges: usize = degrees.iter().sum();
    assert_eq!((report.n, report.edges, report.mean_degree), (n, edges as u64, edges as f64 / n as f64));
    assert_eq!((report.self_edges, report.duplicate_edges), (0, 0), "{what}");
    assert_eq!(report.unreachable, (n - reachable(&index)) as u64, "{what}");
    assert_eq!(report.reachable, reachable(&index) as f64 / n as f64, "{what}");

    let mut edges_to = vec![0; n];
    let is_node = |row: u32| !index.repeated().contains(row);
    let nodes = (0..n as u32).filter(|&node| is_node(node));
    nodes.clone().for_each(|node| {
        index.neighbors(node as usize).iter().for_each(|&id| edges_to[id as usize] += 1);
    });
    let without = nodes.filter(|&node| edges_to[node as usize] == 0 && !index.entries().contains(&node));
    assert_eq!(report.without_edges, without.count() as u64, "{what}");

    let Some(knn) = report.knn else {
        assert!(n == 1 || !index.repeated().is_empty(), "{what}: no lists");
        return;
    };
    assert_eq!((knn.nodes, knn.k), (n, graph.k()));
    for (&at, &found) in &knn.recall {
        let expected = recall(base, at, |row| graph.distances(row).to_vec());
        assert_eq!(found, expected, "{what}: recall@{at} of the k-NN graph");
    }

    let search = report.search.unwrap();
    let k = 10.min(n - 1);
    assert_eq!((search.queries, search.k, search.beam), (n, k, 100));
    for at in &search.beams {
        // A beam of all rows finds all that the entry points lead to, and no more than if the row
        // were there.
        if at.beam >= n {
            let reached = |crosses| recall(base, k, |row| reached_without(&index, base, row, crosses));
            let bounds = reached(false)..=reached(true);
            assert!(bounds.contains(&at.recall), "{what}: {} of {bounds:?} at {}", at.recall, at.beam);
        }
        assert!(at.qps > 0.0 && at.qps.is_finite(), "{what}: {} queries per second", at.qps);
    }
    assert_eq!(search.beams.last().map(|last| (last.beam, last.recall)), Some((100, search.recall)));
}

#[test]
fn reports_of_all_small_sizes_are_right() {
    for n in [1, 2, 31, 32, 33, 95, 96, 97] {
        for (what, base) in data(n) {
            let graph = Descent::new().device(Device::Cpu).build(&base).unwrap();
            for strategy in [Strategy::nsg(), Strategy::cagra()] {
                check(what, &base, strategy, &graph);
            }
        }
    }
}

#[test]
fn reports_of_a_poor_graph_are_right() {
    for (what, base) in data(600) {
        let iterations = Iterations::Fixed(1, 0);
        let poor = Descent::new().device(Device::Cpu).knn(12).start(Start::Random).iterations(iterations);
        let graph = poor.build(&base).unwrap();
        check(what, &base, Strategy::cagra().degree(4), &graph);
        if what == "noise" {
            let nearest = |row: usize| graph.distances(row).to_vec();
            assert!(recall(&base, 10, nearest) < 0.9, "the graph misses no neighbours to count");
        }
    }
}

#[test]
fn an_index_without_nodes_has_no_report() {
    let base = Vectors::from_f32(Vec::new(), 3).unwrap();
    let description =
        Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 0, parameters: [].into() };
    let index = Index::from_rows(description, &base, &[], Vec::new()).unwrap();
    let error = Report::measure(&index, Some(&base), &Default::default(), &Measure::default()).unwrap_err();
    assert_eq!(error.to_string(), "index: found 0 nodes, expected at least 1");
}
