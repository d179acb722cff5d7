//! Indexes that follow their base: rows are inserted, removed and replaced.

use std::collections::BTreeSet;

use half::{bf16, f16};
use tagore::{
    Builder, Compression, GroundTruth, IdSet, Index, IndexUpdate, Metric, Progress, Search, Searcher,
    Strategy, Synth, TestQueries, UpdateStats, Vectors, evaluate, ground_truth,
};

use tagore_device::random::{Draws, Stage};

use crate::reference::uniform;

const DIM: usize = 12;
const BEAM: usize = 64;

pub(crate) fn rows(base: &Vectors, ids: impl IntoIterator<Item = u32>) -> Vectors {
    let values = ids.into_iter().flat_map(|id| base.row_to_f32(id as usize).unwrap().into_owned());
    Vectors::from_f32(values.collect(), base.dim()).unwrap()
}

pub(crate) fn set(rows: usize, ids: impl IntoIterator<Item = u32>) -> IdSet {
    IdSet::from_ids(rows, ids).unwrap()
}

pub(crate) fn ids_found(index: &Index, base: &Vectors, query: &[f32], k: usize) -> Vec<u32> {
    let searcher = Searcher::new(index.clone(), base.clone(), &Progress::silent()).unwrap();
    let found = searcher.search_one(query, Search::new(k).beam(BEAM.max(k))).unwrap();
    found.into_iter().map(|row| row.id).collect()
}

/// The share of the ten nearest live rows that searches for some rows find, by distances. No row
/// that is left out may be found.
pub(crate) fn recall(index: &Index, base: &Vectors) -> f64 {
    let gone = |id: u32| index.left_out().is_some_and(|gone| gone.contains(id));
    let live: Vec<u32> = (0..base.len() as u32).filter(|&id| !gone(id)).collect();
    let queries = rows(base, live.iter().copied().step_by(7));
    let truth =
        ground_truth(&rows(base, live.iter().copied()), &queries, index.metric(), 10, &Progress::silent());
    let truth = truth.unwrap();
    let searcher = Searcher::new(index.clone(), base.clone(), &Progress::silent()).unwrap();
    let found = searcher.search(&queries, Search::new(10).beam(BEAM), &Progress::silent()).unwrap();
    let mut hits = 0;
    for query in 0..queries.len() {
        let last = truth.distances(query).unwrap()[9];
        for row in found.neighbors(query) {
            assert!(!gone(row.id), "row {} was removed", row.id);
            hits += usize::from(row.distance <= last + last.abs() * 1e-5);
        }
    }
    hits as f64 / (10 * queries.len()) as f64
}

/// Each round some rows go, some change and some come.
fn churn(strategy: Strategy, metric: Metric, all: &Vectors) -> Index {
    let start = all.len() / 2;
    let builder = Builder::new(strategy.degree(16)).metric(metric).knn(32);
    let mut held: Vec<u32> = (0..start as u32).collect();
    let mut index = builder.build(&rows(all, held.iter().copied())).unwrap();
    let (mut next, mut gone) = (start as u32, BTreeSet::new());
    for round in 0..6u32 {
        let known = held.len();
        let live = |id: u32, gone: &BTreeSet<u32>| !gone.contains(&id);
        let removed: Vec<u32> =
            (0..known as u32).filter(|&id| live(id, &gone) && id % 29 == round * 3).collect();
        // Removed rows get other vectors too.
        let replaced: Vec<u32> = (0..known as u32).filter(|id| id % 31 == round).collect();
        let removed: Vec<u32> = removed.into_iter().filter(|id| !replaced.contains(id)).collect();
        for &place in &replaced {
            held[place as usize] = next;
            next += 1;
        }
        held.extend(next..next + 9);
        next += 9;
        gone.extend(&removed);
        gone.retain(|id| !replaced.contains(id));
        let base = rows(all, held.iter().copied());
        let update = IndexUpdate::with(&index, builder.clone());
        let update = update.remove(set(known, removed.clone())).replace(set(known, replaced.clone()));
        let (updated, stats) = update.run(&base).unwrap();
        assert_eq!(stats.inserted as usize, replaced.len() + 9);
        assert_eq!(stats.removed as usize, removed.len());
        updated.verify(&Progress::silent()).unwrap();
        let left_out: Vec<u32> = updated.left_out().map_or_else(Vec::new, |gone| gone.iter().collect());
        assert_eq!(left_out, gone.iter().copied().collect::<Vec<_>>());
        if builder.strategy().kind() != "cagra" && metric != Metric::InnerProduct {
            let unreachable = updated.statistics(&Progress::silent()).unwrap().unreachable;
            assert_eq!(unreachable, 0, "{}, round {round}", updated.kind());
        }
        index = updated;
    }
    let base = rows(all, held.iter().copied());
    let live = set(held.len(), (0..held.len() as u32).filter(|id| !gone.contains(id)));
    let anew = builder.among(live).build(&base).unwrap();
    let (updated, of_new) = (recall(&index, &base), recall(&anew, &base));
    assert!(updated > of_new - 0.01, "{} under {metric}: {updated}, anew {of_new}", index.kind());
    index
}

#[test]
fn an_index_that_changes_finds_what_a_new_one_finds() {
    let all = Synth::new(2400, DIM, 7).unwrap().base();
    // Each kind under two of the metrics in turn.
    let metrics = [Metric::L2, Metric::Cosine, Metric::InnerProduct];
    for (number, strategy) in Strategy::all().into_iter().enumerate() {
        for metric in metrics.into_iter().cycle().skip(number).take(2) {
            churn(strategy.clone(), metric, &all);
        }
    }
}

#[test]
fn an_update_is_the_same_on_any_number_of_threads() {
    let all = Synth::new(2400, DIM, 8).unwrap().base();
    for strategy in [Strategy::cagra(), Strategy::nssg()] {
        let on = |threads| {
            let pool = tagore::thread_pool(Some(threads)).unwrap();
            pool.install(|| churn(strategy.clone(), Metric::L2, &all))
        };
        let (one, seven) = (on(1), on(7));
        assert_eq!(one.padded_rows().unwrap(), seven.padded_rows().unwrap());
        assert_eq!((one.entries(), one.layers()), (seven.entries(), seven.layers()));
    }
}

#[test]
fn rows_of_every_type_come_and_go() {
    // Whole numbers from 0 to 120, which every type holds.
    let values = uniform(700, DIM, 3).to_f32().unwrap();
    let whole: Vec<u8> = values.into_iter().map(|x| (6.0 * (x + 10.0)).round() as u8).collect();
    let types: [fn(&[u8]) -> Vectors; 4] = [
        |x| Vectors::from_u8(x.to_vec(), DIM).unwrap(),
        |x| Vectors::from_i8(x.iter().map(|&x| x as i8).collect(), DIM).unwrap(),
        |x| Vectors::from_f16(x.iter().map(|&x| f16::from_f32(x.into())).collect(), DIM).unwrap(),
        |x| Vectors::from_bf16(x.iter().map(|&x| bf16::from_f32(x.into())).collect(), DIM).unwrap(),
    ];
    for of_type in types {
        let all = of_type(&whole);
        let index = Builder::new(Strategy::nsg()).build(&of_type(&whole[..600 * DIM])).unwrap();
        let (index, _) = IndexUpdate::new(&index).unwrap().remove(set(600, [5])).run(&all).unwrap();
        assert!(recall(&index, &all) > 0.98, "{}", all.element_type());
    }
    let bits: Vec<u8> = (0..700u32 * 8).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 21) as u8).collect();
    let part = |count: usize| Vectors::from_bits(bits[..count * 8].to_vec(), 64).unwrap();
    let index = Builder::new(Strategy::nsg()).build(&part(600)).unwrap();
    let (index, _) = IndexUpdate::new(&index).unwrap().run(&part(700)).unwrap();
    let searcher = Searcher::new(index, part(700), &Progress::silent()).unwrap();
    let found = searcher.search(&part(700), Search::new(1).beam(BEAM), &Progress::silent()).unwrap();
    assert!((0..700).all(|row| found.distances(row)[0] == 0.0));
}

#[test]
fn rows_that_come_one_by_one_are_found() {
    let all = Synth::new(900, DIM, 2).unwrap().base();
    for strategy in [Strategy::cagra(), Strategy::vamana()] {
        let mut index = Builder::new(strategy).build(&rows(&all, 0..1)).unwrap();
        for count in (2..120).chain((120..900).step_by(97)) {
            let base = rows(&all, 0..count);
            index = IndexUpdate::new(&index).unwrap().run(&base).unwrap().0;
            let last = all.row_to_f32(count as usize - 1).unwrap();
            assert_eq!(ids_found(&index, &base, &last, 1), [count - 1], "{}", index.kind());
        }
        assert!(recall(&index, &rows(&all, 0..index.len() as u32)) > 0.97);
    }
}

#[test]
fn rows_far_from_all_others_join() {
    let near = Synth::new(3000, DIM, 4).unwrap().base();
    for strategy in Strategy::all() {
        let index = Builder::new(strategy).build(&near).unwrap();
        let far = |row: u32| near.row_to_f32(row as usize).unwrap().iter().map(|x| x + 500.0).collect();
        let values: Vec<f32> = (0..300).flat_map::<Vec<f32>, _>(far).collect();
        let mut both = near.to_f32().unwrap();
        both.extend(&values);
        let base = Vectors::from_f32(both, DIM).unwrap();
        let (index, stats) = IndexUpdate::new(&index).unwrap().run(&base).unwrap();
        assert_eq!(stats.mended, Some(0));
        assert!(recall(&index, &base) > 0.98, "{}", index.kind());
        for row in (3000..3300).step_by(11) {
            let query = base.row_to_f32(row).unwrap();
            assert_eq!(ids_found(&index, &base, &query, 1), [row as u32], "{}", index.kind());
        }
    }
}

#[test]
fn a_row_lives_on_in_the_rows_that_repeat_it() {
    // Rows 0, 20, 40, ... are equal.
    let all = uniform(1000, DIM, 5);
    let base = rows(&all, (0..1000).map(|row| if row % 20 == 0 { 0 } else { row }));
    let index = Builder::new(Strategy::nsg()).build(&base).unwrap();
    assert_eq!(index.repeated().len(), 49);
    let query = base.row_to_f32(0).unwrap();
    let update = |index: &Index, gone: &[u32]| -> (Index, UpdateStats) {
        let update = IndexUpdate::new(index).unwrap();
        update.remove(set(1000, gone.iter().copied())).run(&base).unwrap()
    };
    let (index, _) = update(&index, &[0, 40]);
    index.verify(&Progress::silent()).unwrap();
    let copies: Vec<u32> = (20..1000).step_by(20).filter(|&row| row != 40).collect();
    assert_eq!(ids_found(&index, &base, &query, 48), copies);
    assert!(recall(&index, &base) > 0.98);
    let (index, _) = update(&index, &copies);
    assert_eq!(index.repeated().len(), 0);
    assert!(recall(&index, &base) > 0.98);
    // They come back.
    let all: Vec<u32> = (0..1000).step_by(20).collect();
    let back = IndexUpdate::new(&index).unwrap().replace(set(1000, all.iter().copied()));
    let (index, _) = back.run(&base).unwrap();
    assert_eq!((ids_found(&index, &base, &query, 50), index.left_out()), (all, None));
}

#[test]
fn an_update_without_changes_keeps_every_row() {
    let base = Synth::new(1500, DIM, 6).unwrap().base();
    for strategy in Strategy::all() {
        let index = Builder::new(strategy).build(&base).unwrap();
        let (same, stats) = IndexUpdate::new(&index).unwrap().run(&base).unwrap();
        assert_eq!((stats.inserted, stats.removed, stats.mended), (0, 0, Some(0)));
        assert_eq!(same.padded_rows().unwrap(), index.padded_rows().unwrap());
        assert_eq!(same.description(), index.description());
        same.check_base(&base).unwrap();
    }
}

#[test]
fn an_index_is_built_anew_where_that_serves_better() {
    let base = Synth::new(1500, DIM, 9).unwrap().base();
    let few = Builder::new(Strategy::nsg()).build(&rows(&base, 0..500)).unwrap();
    let (index, stats) = IndexUpdate::new(&few).unwrap().run(&base).unwrap();
    assert_eq!((stats.mended, stats.inserted), (None, 1000));
    // The count of inserted rows begins again with each build.
    let mut index = index;
    for (count, is_anew) in [(700, false), (700, true), (600, false), (700, true)] {
        let replaced = IndexUpdate::new(&index).unwrap().replace(set(1500, 0..count));
        let (updated, stats) = replaced.run(&base).unwrap();
        assert_eq!(stats.mended.is_none(), is_anew);
        index = updated;
    }
    let anew = Builder::new(Strategy::nsg()).build(&base).unwrap();
    assert_eq!(index.padded_rows().unwrap(), anew.padded_rows().unwrap());
    // A dense spot among the new rows.
    let many = Builder::new(Strategy::nsg()).build(&base).unwrap();
    let mut values = base.to_f32().unwrap();
    let spot = base.row_to_f32(3).unwrap().into_owned();
    values.extend((0..600 * DIM).map(|i| spot[i % DIM] + 1e-5 * (i % 97) as f32));
    values.extend(Synth::new(150, DIM, 10).unwrap().base().to_f32().unwrap());
    let base = Vectors::from_f32(values, DIM).unwrap();
    let (index, stats) = IndexUpdate::new(&many).unwrap().run(&base).unwrap();
    assert_eq!(stats.mended, None);
    assert!(recall(&index, &base) > 0.97);
}

#[test]
fn an_index_of_codes_is_updated_by_its_vectors() {
    let base = Synth::new(1200, 64, 9).unwrap().base();
    let builder = Builder::new(Strategy::cagra()).compressed(Compression::Int8);
    let index = builder.build(&rows(&base, 0..1000)).unwrap();
    let (index, _) = IndexUpdate::new(&index).unwrap().remove(set(1000, [1, 2])).run(&base).unwrap();
    assert_eq!(index.description().parameters["vectors"], "int8");
    assert!(recall(&index, &base) > 0.97);
}

#[test]
fn wrong_updates_say_what_is_wrong() {
    let base = uniform(300, DIM, 1);
    let index = Builder::new(Strategy::nsg()).build(&base).unwrap();
    let update = || IndexUpdate::new(&index).unwrap();
    let error = |update: IndexUpdate<'_>, base: &Vectors| update.run(base).unwrap_err().to_string();
    let all = || 0..300u32;
    assert_eq!(
        error(update(), &rows(&base, 0..299)),
        "vectors: found 299 rows, expected at least the 300 of index"
    );
    assert_eq!(
        error(update(), &uniform(300, DIM, 2)),
        "vectors: found other values, expected the data set of index"
    );
    assert_eq!(
        error(update().remove(set(301, [300])), &base),
        "remove: found 300, expected a row below the 300 of the index"
    );
    assert_eq!(
        error(update().replace(set(400, [399])), &base),
        "replace: found 399, expected a row below the 300 of the index"
    );
    let both = update().remove(set(300, [7])).replace(set(300, [7, 8]));
    assert_eq!(error(both, &base), "remove: found 7, expected a row that is not replaced too");
    assert_eq!(
        error(update().remove(set(300, all())), &base),
        "remove: found every row, expected at least one row that stays"
    );
    let narrow = uniform(300, DIM - 1, 1);
    let expected = "vectors: found rows of 11 f32, expected 12 f32 as in the data set of index";
    assert_eq!(error(update(), &narrow), expected);
    let cosine = IndexUpdate::with(&index, Builder::new(Strategy::nsg()).metric(Metric::Cosine));
    assert_eq!(error(cosine, &base), "metric: found cosine, expected l2 as index has");
    let cancelled = Progress::silent();
    cancelled.cancel();
    assert!(update().progress(cancelled).remove(set(300, [1])).run(&base).is_err());
}

#[test]
fn rows_that_were_removed_do_not_count_in_an_evaluation() {
    let base = Synth::new(1500, DIM, 12).unwrap().base();
    let queries = Synth::new(1500, DIM, 12).unwrap().queries(50);
    for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
        let index = Builder::new(Strategy::nsg()).metric(metric).build(&base).unwrap();
        let gone = set(1500, (0..1500).filter(|row| row % 10 == 3));
        let (index, _) = IndexUpdate::new(&index).unwrap().remove(gone).run(&base).unwrap();
        let truth = |k| ground_truth(&base, &queries, metric, k, &Progress::silent()).unwrap();
        let evaluated = |truth: &GroundTruth| {
            evaluate(&index, &base, TestQueries::new(&queries, truth, 10), &[BEAM], &Progress::silent())
        };
        let of_all = evaluated(&truth(30)).unwrap()[0];
        assert!(of_all.recall > 0.98 && of_all.recall_ids > 0.98, "{metric}: {of_all:?}");
        let error = evaluated(&truth(10)).unwrap_err().to_string();
        assert!(error.starts_with("ground truth: found "), "{error}");
        assert!(error.ends_with("expected 10: make it with more neighbours per query, or take a smaller k"));
        // One of the rows that stay alone is right too, and one with a wrong row is refused.
        let live = |id: &u32| !index.left_out().unwrap().contains(*id);
        let mut ids = Vec::new();
        (0..50).for_each(|query| ids.extend(truth(30).ids(query).iter().copied().filter(live).take(10)));
        assert_eq!(
            evaluated(&GroundTruth::new(10, ids.clone(), None).unwrap()).unwrap()[0].recall,
            of_all.recall
        );
        ids.chunks_exact_mut(10)
            .for_each(|row| row[0] = (0..).find(|id| live(id) && !row.contains(id)).unwrap());
        assert!(evaluated(&GroundTruth::new(10, ids, None).unwrap()).is_err());
    }
}

#[test]
fn any_sequence_of_changes_keeps_an_index_sound() {
    for seed in 0..60 {
        let draws = Draws::new(seed, Stage::Test, 9, 0);
        let draw = |count: &mut u64, below: usize| {
            *count += 1;
            draws.below(*count, below as u64) as u32
        };
        let mut count = 0;
        // Few values, so that many rows are equal.
        let value = |count: &mut u64| draw(count, 3) as f32 + 1.0;
        let kinds = Strategy::all();
        let strategy = kinds[seed as usize % kinds.len()].clone().degree(4);
        let metric = [Metric::L2, Metric::Cosine, Metric::InnerProduct][seed as usize / 7 % 3];
        let mut values: Vec<f32> = (0..3 * (1 + draw(&mut count, 40))).map(|_| value(&mut count)).collect();
        let mut index = Builder::new(strategy)
            .metric(metric)
            .build(&Vectors::from_f32(values.clone(), 3).unwrap())
            .unwrap();
        for _ in 0..8 {
            let known = index.len();
            let mut pick = |share: usize| -> BTreeSet<u32> {
                (0..known as u32).filter(|_| draw(&mut count, share) == 0).collect()
            };
            let (mut removed, replaced) = (pick(4), pick(6));
            removed.retain(|row| !replaced.contains(row));
            for &row in &replaced {
                (0..3).for_each(|i| values[3 * row as usize + i] = value(&mut count));
            }
            values.extend((0..3 * draw(&mut count, 20)).map(|_| value(&mut count)));
            let base = Vectors::from_f32(values.clone(), 3).unwrap();
            let update = IndexUpdate::new(&index).unwrap();
            let update = update.remove(set(known, removed.clone())).replace(set(known, replaced.clone()));
            match update.run(&base) {
                Ok((updated, _)) => index = updated,
                Err(error) => {
                    let expected = "remove: found every row, expected at least one row that stays";
                    assert_eq!(error.to_string(), expected, "seed {seed}");
                    break;
                }
            }
            index.verify(&Progress::silent()).unwrap();
            let live = |row: u32| !index.left_out().is_some_and(|gone| gone.contains(row));
            let rows: Vec<u32> = (0..base.len() as u32).filter(|&row| live(row)).collect();
            assert!(removed.iter().all(|&row| !live(row)) && replaced.iter().all(|&row| live(row)));
            let found = ids_found(&index, &base, &base.row_to_f32(0).unwrap(), rows.len());
            let found: BTreeSet<u32> = found.into_iter().collect();
            assert_eq!(found, rows.into_iter().collect(), "seed {seed}, {} {metric}", index.kind());
        }
    }
}
