//! Data with equal rows: the graph holds one row of each group, and searches return all of them.

use std::collections::BTreeSet;

use tagore::{
    Builder, Device, GroundTruth, Index, IndexFormat, Metric, Progress, Search, Searcher, Strategy, Vectors,
    ground_truth,
};
use tagore_device::random::{Draws, Stage};

use crate::reference::{check_graph, reachable, search, uniform};

/// Rows `from(row)` of a data set of distinct rows.
fn rows_of(rows: usize, dim: usize, from: impl Fn(usize) -> usize) -> Vectors {
    let all = uniform(rows, dim, 7);
    let values = (0..rows).flat_map(|row| all.row_to_f32(from(row)).unwrap().into_owned()).collect();
    Vectors::from_f32(values, dim).unwrap()
}

/// 200 vectors in ten shuffled copies each.
fn ten_times() -> Vectors {
    let mut rows: Vec<usize> = (0..2000).map(|row| row % 200).collect();
    let draws = Draws::new(3, Stage::Test, 5, 0);
    for end in (1..rows.len()).rev() {
        rows.swap(end, draws.below(end as u64, end as u64 + 1) as usize);
    }
    rows_of(2000, 12, |row| rows[row])
}

/// A quarter of the rows repeat an earlier row: half of them the same row, the others one row each.
fn a_quarter() -> Vectors {
    rows_of(2000, 12, |row| match row % 8 {
        0 => 0,
        4 => row - 1,
        _ => row,
    })
}

/// The share of the true ids found.
fn recall(ids: impl Fn(usize) -> BTreeSet<u32>, truth: &GroundTruth) -> f64 {
    let hits =
        (0..truth.len()).map(|query| truth.ids(query).iter().filter(|id| ids(query).contains(id)).count());
    hits.sum::<usize>() as f64 / (truth.len() * truth.k()) as f64
}

#[test]
fn every_kind_finds_all_rows_of_a_group() {
    for (what, base) in [("ten times", ten_times()), ("a quarter", a_quarter())] {
        for metric in [Metric::L2, Metric::Cosine] {
            let queries = uniform(50, 12, 8);
            let truth = ground_truth(&base, &queries, metric, 10, &Progress::silent()).unwrap();
            for strategy in Strategy::all() {
                let builder = Builder::new(strategy).metric(metric).device(Device::Cpu);
                let (index, stats) = builder.build_with_stats(&base, None).unwrap();
                let what = format!("{}, {what}, {metric}", index.kind());
                check_graph(&index, &what);
                index.verify(&Progress::silent()).unwrap();
                assert_eq!(stats.repeated, index.repeated().len() as u64);
                assert_eq!(index.repeated().len(), if what.contains("ten") { 1800 } else { 499 }, "{what}");
                let statistics = index.statistics(&Progress::silent()).unwrap();
                assert_eq!(statistics.unreachable, (index.len() - reachable(&index)) as u64, "{what}");
                let result = search(index, &base, &queries, 10, 100).unwrap();
                let found = recall(|query| result.ids(query).iter().copied().collect(), &truth);
                assert!(found >= 0.99, "{what}: recall {found}");
                for query in 0..50 {
                    let keys: Vec<_> = result.distances(query).iter().zip(result.ids(query)).collect();
                    assert!(keys.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)), "{what}, query {query}");
                }
            }
        }
    }
}

#[test]
fn the_emulator_finds_what_the_cpu_finds() {
    for base in [ten_times(), a_quarter()] {
        let index =
            Builder::new(Strategy::cagra().degree(8)).knn(20).device(Device::Cpu).build(&base).unwrap();
        let searcher = Searcher::new(index, base, &Progress::silent()).unwrap();
        let queries = uniform(4, 12, 8);
        let on = |device| {
            let searcher = searcher.clone().device(device).unwrap();
            searcher.search(&queries, Search::new(10).beam(30), &Progress::silent()).unwrap()
        };
        let (cpu, emulated) = (on(Device::Cpu), on(Device::Emulated));
        for query in 0..4 {
            assert_eq!(cpu.ids(query), emulated.ids(query));
            assert_eq!(cpu.distances(query), emulated.distances(query));
        }
    }
}

#[test]
fn repeated_rows_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    let (base, queries) = (a_quarter(), uniform(20, 12, 8));
    let built = Builder::new(Strategy::vamana()).device(Device::Cpu).build(&base).unwrap();
    built.save(&path).unwrap();
    let read = Index::open(&path).unwrap();
    read.verify(&Progress::silent()).unwrap();
    read.spot_check().unwrap();
    assert_eq!(read.repeated(), built.repeated());
    let copy = folder.path().join("copy.tagore");
    read.save(&copy).unwrap();
    let found = |index| search(index, &base, &queries, 10, 50).unwrap();
    let (of_built, of_read) = (found(built), found(read));
    assert!((0..20).all(|query| of_built.ids(query) == of_read.ids(query)));
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&path).unwrap());
}

#[test]
fn few_distinct_rows_are_enough() {
    for (rows, different) in [(2, 1), (3, 1), (40, 1), (3, 2), (50, 2), (50, 3), (200, 40)] {
        let base = rows_of(rows, 5, |row| row % different);
        for strategy in Strategy::all() {
            let index = Builder::new(strategy).device(Device::Cpu).build(&base).unwrap();
            let what = format!("{}, {different} of {rows}", index.kind());
            check_graph(&index, &what);
            assert_eq!(index.repeated().len(), rows - different, "{what}");
            let k = rows.min(30);
            let result = search(index, &base, &base, k, 100).unwrap();
            for query in 0..rows {
                let ids: BTreeSet<u32> = result.ids(query).iter().copied().collect();
                assert!(ids.len() == k && ids.iter().all(|&id| (id as usize) < rows), "{what}");
                // Copies of the query come first, in the order of their ids.
                let equal = (query % different..rows).step_by(different).take(k);
                assert!(equal.zip(result.ids(query)).all(|(row, &id)| row == id as usize), "{what}");
            }
        }
        // More neighbours than distinct rows.
        if rows > 30 {
            Builder::new(Strategy::nsg()).knn(rows - 1).device(Device::Cpu).build(&base).unwrap();
        }
    }
}

#[test]
fn few_repeated_rows_stay_in_the_graph() {
    let base = rows_of(1000, 6, |row| if row % 140 == 139 { 0 } else { row });
    let (index, stats) =
        Builder::new(Strategy::nsg()).knn(20).sample(10).build_with_stats(&base, None).unwrap();
    assert!(index.repeated().is_empty() && stats.repeated == 0);
    assert_eq!(stats.sample.nodes().len(), 10);
    let base = rows_of(1000, 6, |row| if row % 100 == 99 { 0 } else { row });
    let (index, stats) =
        Builder::new(Strategy::nsg()).knn(20).sample(10).build_with_stats(&base, None).unwrap();
    assert_eq!((index.repeated().len(), stats.repeated), (10, 10));
    assert!(stats.sample.nodes().is_empty());
}

#[test]
fn exported_rows_are_all_reachable() {
    let folder = tempfile::tempdir().unwrap();
    for (place, (what, base)) in
        [("ten times", ten_times()), ("a quarter", a_quarter())].into_iter().enumerate()
    {
        // Each kind has two of the degrees with each base.
        let kinds = [Strategy::nsg(), Strategy::cagra()].into_iter().cycle().skip(place);
        for (degree, strategy) in [1, 2, 3, 16].into_iter().zip(kinds) {
            let builder = Builder::new(strategy.degree(degree)).knn(24).device(Device::Cpu);
            let index = builder.build(&base).unwrap();
            for format in IndexFormat::ALL {
                if format == IndexFormat::Npy && index.kind() != "cagra" {
                    continue;
                }
                let what = format!("{} of degree {degree} as {format}, {what}", index.kind());
                let path = folder.path().join(format!("x.{format}"));
                index.export(format).base(&base).save(&path).unwrap();
                let read = Index::import(&path, format, &base, Metric::L2, &Progress::silent()).unwrap();
                check_graph(&read, &what);
                assert_eq!(read.repeated().is_empty(), format != IndexFormat::Tagore, "{what}");
                if index.kind() == "cagra" {
                    assert!((0..2000).all(|node| read.neighbors(node).len() == degree), "{what}");
                }
                // Every row reaches all of its group over equal rows.
                for (row, first) in index.repeated().pairs().filter(|_| format != IndexFormat::Tagore) {
                    assert!(leads_to(&read, &base, first, row), "{what}: {first} to {row}");
                }
                if index.kind() == "nsg" && format.max_entries() != Some(0) {
                    assert_eq!(reachable(&read), 2000, "{what}");
                }
            }
        }
    }
}

/// Whether a walk over rows equal to `from` reaches `to`.
fn leads_to(index: &Index, base: &Vectors, from: u32, to: u32) -> bool {
    let mut met = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(node) = next.pop() {
        if node == to {
            return true;
        }
        for &id in index.neighbors(node as usize) {
            if base.row_to_f32(id as usize).unwrap() == base.row_to_f32(from as usize).unwrap()
                && met.insert(id)
            {
                next.push(id);
            }
        }
    }
    false
}

#[test]
fn exported_layers_hold_no_repeated_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hnswlib");
    let base = ten_times();
    let index = Builder::new(Strategy::nsg().degree(8)).knn(24).device(Device::Cpu).build(&base).unwrap();
    index.export(IndexFormat::Hnswlib).base(&base).layers(true).save(&path).unwrap();
    let read = Index::import(&path, IndexFormat::Hnswlib, &base, Metric::L2, &Progress::silent()).unwrap();
    assert_eq!(reachable(&read), 2000);
    assert!(!index.repeated().contains(read.entries()[0]));
}
