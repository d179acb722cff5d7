//! Merges of indexes over different rows.

use tagore::{
    Builder, Index, IndexMerge, IndexUpdate, MergeStats, Metric, Progress, Search, Searcher, Strategy, Synth,
    Vectors,
};

use crate::reference::uniform;
use crate::updated::{ids_found, recall, rows, set};

const DIM: usize = 12;
const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::InnerProduct];

/// Indexes of rows of `base`; `ends` has the end of each part.
fn parts(builder: &Builder, base: &Vectors, ends: &[u32]) -> Vec<Index> {
    let starts = std::iter::once(&0).chain(ends);
    starts.zip(ends).map(|(&start, &end)| builder.build(&rows(base, start..end)).unwrap()).collect()
}

fn merge(parts: &[Index], base: &Vectors) -> (Index, MergeStats) {
    let (index, stats) = IndexMerge::new(&parts.iter().collect::<Vec<_>>()).unwrap().run(base).unwrap();
    index.verify(&Progress::silent()).unwrap();
    index.check_base(base).unwrap();
    (index, stats)
}

#[test]
fn a_merged_index_finds_what_a_new_one_finds() {
    let base = Synth::new(1800, DIM, 7).unwrap().base();
    // Each kind under two of the metrics in turn.
    for (number, strategy) in Strategy::all().into_iter().enumerate() {
        for metric in METRICS.into_iter().cycle().skip(number).take(2) {
            let builder = Builder::new(strategy.clone().degree(16)).metric(metric);
            // The largest is not the first; one row alone is a part.
            let parts = parts(&builder, &base, &[375, 376, 1276, 1800]);
            let (index, stats) = merge(&parts, &base);
            assert_eq!((stats.joined, index.len()), (Some(900), 1800));
            assert_eq!(index.description().seed, parts[0].description().seed);
            let anew = builder.build(&base).unwrap();
            let (merged, of_new) = (recall(&index, &base), recall(&anew, &base));
            assert!(merged > of_new - 0.01, "{} under {metric}: {merged}, anew {of_new}", index.kind());
            if index.kind() != "cagra" && metric != Metric::InnerProduct {
                let unreachable = index.statistics(&Progress::silent()).unwrap().unreachable;
                assert_eq!(unreachable, 0, "{}", index.kind());
            }
        }
    }
}

#[test]
fn a_merge_is_the_same_on_any_number_of_threads() {
    let base = Synth::new(2400, DIM, 8).unwrap().base();
    for strategy in [Strategy::cagra(), Strategy::nssg(), Strategy::dpg()] {
        let on = |threads| {
            let pool = tagore::thread_pool(Some(threads)).unwrap();
            let parts = parts(&Builder::new(strategy.clone()), &base, &[900, 1500, 2400]);
            pool.install(|| merge(&parts, &base).0)
        };
        let (one, seven) = (on(1), on(7));
        assert_eq!(one.padded_rows().unwrap(), seven.padded_rows().unwrap());
        assert_eq!((one.entries(), one.layers()), (seven.entries(), seven.layers()));
        assert!(recall(&one, &base) > 0.99);
    }
}

#[test]
fn clusters_of_one_part_are_found_among_those_of_others() {
    for strategy in Strategy::all() {
        // Far from each other, each in one part.
        let of_place = |place: usize| {
            let rows = Synth::new(400, DIM, place as u64).unwrap().base().to_f32().unwrap();
            rows.into_iter().map(move |x| x + 100.0 * (place % 3) as f32 - 70.0 * place as f32)
        };
        let base = Vectors::from_f32((0..6).flat_map(of_place).collect(), DIM).unwrap();
        let parts = parts(&Builder::new(strategy), &base, &[800, 1200, 2400]);
        let (index, _) = merge(&parts, &base);
        assert!(recall(&index, &base) > 0.98, "{}", index.kind());
    }
}

#[test]
fn equal_rows_of_all_parts_are_one_node() {
    let all = uniform(1200, DIM, 5);
    // Rows 0, 20, 40, ... are equal, and row 700 + i is row i for some.
    let base =
        rows(&all, (0..1200).map(|row| if row % 20 == 0 { 0 } else { row - row / 700 * 700 * (row % 2) }));
    for strategy in [Strategy::nsg(), Strategy::cagra(), Strategy::dpg()] {
        let builder = Builder::new(strategy);
        let (index, _) = merge(&parts(&builder, &base, &[500, 800, 1200]), &base);
        let anew = builder.build(&base).unwrap();
        assert_eq!(index.repeated(), anew.repeated());
        let copies: Vec<u32> = (0..1200).step_by(20).collect();
        assert_eq!(ids_found(&index, &base, &base.row_to_f32(0).unwrap(), 60), copies);
        assert!(recall(&index, &base) > 0.99, "{}", index.kind());
    }
    // The parts are the same rows.
    let half = rows(&all, 0..600);
    let one = Builder::new(Strategy::nsg()).build(&half).unwrap();
    let twice = rows(&all, (0..600).chain(0..600));
    let (index, stats) = merge(&[one.clone(), one], &twice);
    assert_eq!((index.repeated().len(), stats.joined), (600, Some(600)));
    assert!(recall(&index, &twice) > 0.99);
}

#[test]
fn rows_that_parts_leave_out_stay_out() {
    let base = Synth::new(1500, DIM, 9).unwrap().base();
    let builder = Builder::new(Strategy::nssg());
    let mut parts = parts(&builder, &base, &[600, 1500]);
    let gone = |rows: usize| set(rows, (0..rows as u32).filter(|row| row % 10 == 3));
    for (part, range) in parts.iter_mut().zip([0..600, 600..1500]) {
        let update = IndexUpdate::new(part).unwrap().remove(gone(range.len()));
        *part = update.run(&rows(&base, range)).unwrap().0;
    }
    let (index, stats) = merge(&parts, &base);
    assert_eq!(index.left_out(), Some(&gone(1500)));
    assert_eq!(stats.joined, Some(540));
    assert!(recall(&index, &base) > 0.99);
    // They come back.
    let (index, _) = IndexUpdate::new(&index).unwrap().replace(gone(1500)).run(&base).unwrap();
    assert_eq!(index.left_out(), None);
    assert!(recall(&index, &base) > 0.99);
}

#[test]
fn few_rows_and_many_parts_are_merged() {
    let base = Synth::new(300, DIM, 3).unwrap().base();
    for strategy in Strategy::all() {
        for ends in [&[1, 2][..], &[1, 2, 3, 7, 9], &(1..=30).map(|part| part * 10).collect::<Vec<_>>()] {
            let count = *ends.last().unwrap();
            let base = rows(&base, 0..count);
            let (index, _) = merge(&parts(&Builder::new(strategy.clone()), &base, ends), &base);
            for row in 0..count {
                let query = base.row_to_f32(row as usize).unwrap();
                assert_eq!(ids_found(&index, &base, &query, 1), [row], "{} of {ends:?}", index.kind());
            }
        }
    }
    // One part stays as it is.
    let one = Builder::new(Strategy::nsg()).build(&base).unwrap();
    let (same, stats) = merge(std::slice::from_ref(&one), &base);
    assert_eq!((same.padded_rows().unwrap(), stats.joined), (one.padded_rows().unwrap(), Some(0)));
}

#[test]
fn parts_of_bits_and_parts_of_files_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let bits: Vec<u8> = (0..900u32 * 8).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 21) as u8).collect();
    let part = |range: std::ops::Range<usize>| {
        Vectors::from_bits(bits[range.start * 8..range.end * 8].to_vec(), 64).unwrap()
    };
    let saved = |name: &str, range| {
        let path = folder.path().join(name);
        Builder::new(Strategy::nsg()).build(&part(range)).unwrap().save(&path).unwrap();
        Index::open(&path).unwrap()
    };
    let parts = [saved("a.tagore", 0..400), saved("b.tagore", 400..900)];
    let (index, _) = merge(&parts, &part(0..900));
    let searcher = Searcher::new(index, part(0..900), &Progress::silent()).unwrap();
    let found = searcher.search(&part(0..900), Search::new(1).beam(64), &Progress::silent()).unwrap();
    assert!((0..900).all(|row| found.distances(row)[0] == 0.0));
}

#[test]
fn dense_spots_are_built_anew() {
    let mut values = Synth::new(1500, DIM, 9).unwrap().base().to_f32().unwrap();
    let spot = values[3 * DIM..4 * DIM].to_vec();
    values.extend((0..600 * DIM).map(|i| spot[i % DIM] + 1e-5 * (i % 97) as f32));
    values.extend(Synth::new(900, DIM, 10).unwrap().base().to_f32().unwrap());
    let base = Vectors::from_f32(values, DIM).unwrap();
    let (index, stats) = merge(&parts(&Builder::new(Strategy::nsg()), &base, &[2100, 3000]), &base);
    assert_eq!(stats.joined, None);
    assert!(recall(&index, &base) > 0.97);
}

#[test]
fn wrong_merges_say_what_is_wrong() {
    let base = uniform(500, DIM, 1);
    let build = |strategy, base: &Vectors| Builder::new(strategy).build(base).unwrap();
    let one = build(Strategy::nsg(), &rows(&base, 0..300));
    let error = |parts: &[&Index], base: &Vectors| {
        IndexMerge::new(parts).and_then(|merge| merge.run(base)).unwrap_err().to_string()
    };
    assert_eq!(error(&[], &base), "parts: found 0, expected at least one index");
    let other = rows(&base, 300..500);
    let vamana = build(Strategy::vamana(), &other);
    let expected = "index 1: found kind vamana, expected kind nsg as index 0 has";
    assert_eq!(error(&[&one, &vamana], &base), expected);
    let cosine = Builder::new(Strategy::nsg()).metric(Metric::Cosine).build(&other).unwrap();
    let expected = "index 1: found metric cosine, expected metric l2 as index 0 has";
    assert_eq!(error(&[&one, &cosine], &base), expected);
    let narrow = build(Strategy::nsg(), &uniform(200, DIM - 1, 1));
    let expected = "index 2: found rows of 11 f32, expected rows of 12 f32 as index 0 has";
    assert_eq!(error(&[&one, &one, &narrow], &base), expected);
    let two = build(Strategy::nsg(), &other);
    let expected = "vectors: found 499 rows, expected the 500 of 2 indexes";
    assert_eq!(error(&[&one, &two], &rows(&base, 0..499)), expected);
    let expected = "vectors: found rows of 11 f32, expected 12 f32 as in the data set of index 0";
    assert_eq!(error(&[&one, &two], &uniform(500, DIM - 1, 1)), expected);
    let expected = "vectors: found other values, expected the data set of index 1";
    let changed = rows(&base, (0..499).chain([0]));
    assert_eq!(error(&[&one, &two], &changed), expected);
    // The order of the parts is that of the rows.
    assert!(error(&[&two, &one], &base).starts_with("vectors: found other values, expected"));
    let cosine = IndexMerge::with(&[&one, &two], Builder::new(Strategy::nsg()).metric(Metric::Cosine));
    let expected = "metric: found cosine, expected l2 as index 0 has";
    assert_eq!(cosine.run(&base).unwrap_err().to_string(), expected);
    let cancelled = Progress::silent();
    cancelled.cancel();
    assert!(IndexMerge::new(&[&one, &two]).unwrap().progress(cancelled).run(&base).is_err());
}
