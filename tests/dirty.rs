//! Data with faults: searches answer as if the odd rows were not there, and find those rows too.

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Compression, Device, Fault, Index, IndexFormat, Metric, Progress, QueryKind, Search, Searcher,
    Strategy, Synth, SynthKind, TestQueries, Vectors, ground_truth,
};

use crate::gpu::devices;
use crate::reference::uniform;

const ROWS: usize = 2000;
const DIM: usize = 16;

fn synth(fault: Fault, share: f64) -> Synth {
    Synth::of_kind(SynthKind::Dirty { fault, share }, ROWS, DIM, 3).unwrap()
}

fn builder(strategy: Strategy) -> Builder {
    Builder::new(strategy).device(Device::Cpu)
}

/// A kind that counts detours, and two of rules that drop long edges.
fn some_kinds() -> Vec<Strategy> {
    vec![Strategy::cagra(), Strategy::nsg(), Strategy::nssg()]
}

/// Recall@k at beam 100; ties count.
fn recall(searcher: &Searcher, queries: &Vectors, k: usize) -> f64 {
    recall_at(100, searcher, queries, k)
}

fn recall_at(beam: usize, searcher: &Searcher, queries: &Vectors, k: usize) -> f64 {
    let (index, silent) = (searcher.index(), Progress::silent());
    let truth = ground_truth(searcher.base(), queries, index.metric(), k, &silent).unwrap();
    searcher.evaluate(TestQueries::new(queries, &truth, k), &[beam], &silent).unwrap()[0].recall
}

fn searcher(index: Index, base: &Vectors) -> Searcher {
    Searcher::new(index, base.clone(), &Progress::silent()).unwrap()
}

/// Indexes of these kinds find the neighbours of clean queries and of dirty rows, and dirty rows
/// themselves.
fn check(fault: Fault, share: f64, metric: Metric, kinds: Vec<Strategy>) {
    check_data(synth(fault, share), &format!("{fault} {share}"), metric, kinds);
}

fn check_data(data: Synth, name: &str, metric: Metric, kinds: Vec<Strategy>) {
    let base = data.base();
    let (clean, dirty) = (data.queries(100), data.query_kind(QueryKind::Dirty).queries(40));
    for strategy in kinds {
        let index = builder(strategy).metric(metric).build(&base).unwrap();
        let what = format!("{} of {name}, {metric}", index.kind());
        index.verify(&Progress::silent()).unwrap();
        // Under inner product, rows that are hardly ever an answer stay out of the graph.
        if metric != Metric::InnerProduct {
            assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, 0, "{what}");
        }
        let searcher = searcher(index, &base);
        for (name, queries, k, least) in [
            ("clean queries", &clean, 10, 0.985),
            ("dirty rows", &dirty, 10, 0.97),
            ("themselves", &dirty, 1, 0.97),
        ] {
            let found = recall(&searcher, queries, k);
            assert!(found >= least, "{what}, {name}: {found}");
        }
    }
}

#[test]
fn few_equal_rows_are_grouped() {
    for (fault, share) in [(Fault::Zero, 0.006), (Fault::Equal, 0.009), (Fault::SignedZero, 0.05)] {
        check(fault, share, Metric::L2, some_kinds());
        let base = synth(fault, share).base();
        let index = builder(Strategy::nsg()).build(&base).unwrap();
        assert_eq!(index.repeated().len() as f64, (share * ROWS as f64).round() - 1.0, "{fault}");
    }
}

#[test]
fn values_whose_squares_vanish_are_zero() {
    let mut values = uniform(ROWS, DIM, 5).to_f32().unwrap();
    values[..400 * DIM].iter_mut().for_each(|x| *x *= 1e-25);
    let base = Vectors::from_f32(values, DIM).unwrap();
    let index = builder(Strategy::vamana()).build(&base).unwrap();
    assert_eq!(index.repeated().len(), 399);
    assert!(recall(&searcher(index, &base), &uniform(50, DIM, 6), 10) >= 0.99);
}

#[test]
fn near_copies_and_balls_are_parts_of_their_own() {
    check(Fault::Ball { scale: 1e-3 }, 0.1, Metric::L2, Strategy::all().into());
    check(Fault::Ball { scale: 1e-2 }, 0.9, Metric::L2, some_kinds());
    check(Fault::Near { noise: 1e-6 }, 0.1, Metric::L2, some_kinds());
    check(Fault::Multiples, 0.06, Metric::Cosine, some_kinds());
}

#[test]
fn rows_of_large_norm_are_found() {
    for (degrees, kinds) in [(0.6, Strategy::all().to_vec()), (1.5, some_kinds())] {
        check(Fault::Tails { degrees }, 1.0, Metric::L2, kinds);
        check(Fault::Tails { degrees }, 1.0, Metric::InnerProduct, some_kinds());
    }
}

#[test]
fn narrow_searches_of_a_spot_of_nearly_all_rows_find_as_much_as_without_outliers() {
    // To the outliers all other rows are one dense spot. Few of them are near each other, then
    // nearly as many as a list holds, which makes them hard to leave.
    let fault = Fault::Sentinel { value: -9999.0 };
    for (rows, dim, share, k) in [(ROWS, DIM, 0.05, 48), (5000, 12, 0.2, 96)] {
        let data = Synth::of_kind(SynthKind::Dirty { fault, share }, rows, dim, 3).unwrap();
        let queries = data.queries(200);
        let found = |base: &Vectors| {
            let index = builder(Strategy::nsg()).knn(k).build(base).unwrap();
            recall_at(10, &searcher(index, base), &queries, 10)
        };
        let clean = found(&Synth::new(rows, dim, 3).unwrap().base());
        let dirty = found(&data.base());
        assert!(dirty >= clean - 0.03, "{rows} rows: {dirty} beside {clean}");
    }
}

#[test]
fn far_groups_are_found_whether_or_not_lists_lead_out_of_them() {
    // 16 groups of about 40 rows: far from all others, but as sparse as they are.
    let fault = Fault::Sentinel { value: -9999.0 };
    let data = Synth::of_kind(SynthKind::Dirty { fault, share: 0.2 }, 3200, DIM, 3).unwrap();
    let (base, dirty) = (data.base(), data.query_kind(QueryKind::Dirty).queries(200));
    for (knn, kinds) in [(24, Strategy::all().to_vec()), (64, some_kinds())] {
        for strategy in kinds {
            let index = builder(strategy.degree(16)).knn(knn).build(&base).unwrap();
            let what = format!("{} of lists of {knn}", index.kind());
            assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, 0, "{what}");
            let found = recall(&searcher(index, &base), &dirty, 10);
            assert!(found >= 0.99, "{what}: {found}");
        }
    }
}

#[test]
fn layers_lead_to_a_far_group_that_a_random_sample_misses() {
    // The sample of 1,024 nodes holds three or four of the group: too few to ask for layers.
    let mut values = uniform(10_000, 8, 5).to_f32().unwrap();
    values[5000 * 8..5035 * 8].iter_mut().step_by(8).for_each(|x| *x += 1e5);
    let base = Vectors::from_f32(values, 8).unwrap();
    for strategy in [Strategy::cagra(), Strategy::dpg()] {
        // No list leads out of the group.
        let index = builder(strategy.degree(16)).knn(24).build(&base).unwrap();
        assert!(!index.layers().is_empty(), "{}", index.kind());
    }
}

#[test]
fn layers_lead_past_rows_that_are_near_to_all_others() {
    // Failed embeddings: a row in 40 is nearly zero, and the others have unit length.
    let unit = |vectors: Vectors, scale: &dyn Fn(usize) -> f32| {
        let row = |row: usize| {
            let values = vectors.row_to_f32(row).unwrap();
            let norm = values.iter().map(|x| x * x).sum::<f32>().sqrt();
            values.iter().map(|x| x / norm * scale(row)).collect::<Vec<_>>()
        };
        Vectors::from_rows((0..vectors.len()).map(row)).unwrap()
    };
    let data = Synth::new(4000, 48, 3).unwrap();
    let base = unit(data.base(), &|row| if row % 40 == 0 { 1e-3 } else { 1.0 });
    let queries = unit(data.queries(200), &|_| 1.0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.tagore");
    // Of rows in clusters no parts are made.
    let builder = builder(Strategy::dpg());
    let limits = Limits { cluster_size: Some(800), ..Limits::default() };
    let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
    OutOfCore::new(builder, plan).build(&base, &path).unwrap();
    let found = recall_at(50, &searcher(Index::open(&path).unwrap(), &base), &queries, 10);
    assert!(found >= 0.985, "{found}");
}

#[test]
fn lone_rows_are_found_by_a_search_for_them() {
    check(Fault::Lone { distance: 100.0 }, 0.002, Metric::L2, Strategy::all().into());
    check(Fault::Lone { distance: 100.0 }, 0.05, Metric::L2, some_kinds());
    check(Fault::Sentinel { value: -9999.0 }, 0.01, Metric::L2, some_kinds());
}

#[test]
fn a_lone_row_leads_to_the_rows_nearest_to_it() {
    // They all lie in one direction from it, so a filter keeps the first of them, and a search
    // among many rows misses the others.
    let base = synth(Fault::Lone { distance: 100.0 }, 0.02).base();
    let is_lone = |&row: &u32| base.row_to_f32(row as usize).unwrap().iter().any(|x| x.abs() > 100.0);
    let lone: Vec<u32> = (0..ROWS as u32).filter(is_lone).collect();
    assert!(lone.len() > 30, "{}", lone.len());
    let values = lone.iter().flat_map(|&row| base.row_to_f32(row as usize).unwrap().to_vec()).collect();
    let queries = Vectors::from_f32(values, DIM).unwrap();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    for strategy in some_kinds() {
        let index = builder(strategy).build(&base).unwrap();
        for (place, &row) in lone.iter().enumerate() {
            let is_missed = |id: &&u32| **id != row && !index.neighbors(row as usize).contains(id);
            let missed: Vec<&u32> = truth.ids(place).iter().filter(is_missed).collect();
            assert!(missed.is_empty(), "{}: {row} misses {missed:?}", index.kind());
        }
    }
}

#[test]
fn lone_rows_do_not_hide_a_dense_spot() {
    // To the lone rows all others, with the spot, are one: the spot is found below a second gap.
    let mut values = uniform(4000, DIM, 5).to_f32().unwrap();
    let lone = values[..80 * DIM].iter_mut();
    lone.for_each(|x| *x = (*x - 0.5) * 1e5);
    values[80 * DIM..240 * DIM].iter_mut().for_each(|x| *x = 0.5 + *x * 1e-3);
    let rows = |rows: std::ops::Range<usize>| {
        Vectors::from_f32(values[rows.start * DIM..rows.end * DIM].to_vec(), DIM).unwrap()
    };
    let base = rows(0..4000);
    for strategy in some_kinds() {
        let searcher = searcher(builder(strategy).build(&base).unwrap(), &base);
        for (what, queries) in
            [("lone rows", rows(0..80)), ("the spot", rows(80..240)), ("others", uniform(100, DIM, 6))]
        {
            let found = recall(&searcher, &queries, 10);
            assert!(found >= 0.97, "{}, {what}: {found}", searcher.index().kind());
        }
    }
}

#[test]
fn an_index_with_dense_spots_is_the_same_from_its_file_and_on_a_device() {
    for metric in [Metric::L2, Metric::InnerProduct] {
        check_spots_on_devices(metric);
    }
}

fn check_spots_on_devices(metric: Metric) {
    let data = synth(Fault::Ball { scale: 1e-3 }, 0.08);
    let (base, silent) = (data.base(), Progress::silent());
    let index = builder(Strategy::cagra().degree(16)).metric(metric).build(&base).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    index.save(&path).unwrap();
    let opened = Index::open(&path).unwrap();
    opened.verify(&silent).unwrap();
    let queries = data.query_kind(QueryKind::Dirty).queries(6);
    let search = Search::new(10).beam(32);
    let expected = searcher(index, &base).search(&queries, search, &silent).unwrap();
    let again = searcher(opened.clone(), &base);
    assert_eq!(again.search(&queries, search, &silent).unwrap().ids(0), expected.ids(0));
    for device in devices() {
        let on_device = searcher(opened.clone(), &base).devices(&[device]).unwrap();
        let found = on_device.search(&queries, search, &silent).unwrap();
        let one = on_device.search_one(&queries.row_to_f32(2).unwrap(), search).unwrap();
        for query in 0..queries.len() {
            assert_eq!(found.ids(query), expected.ids(query), "{device}, query {query}");
            assert_eq!(found.distances(query), expected.distances(query), "{device}, query {query}");
        }
        assert_eq!(one.iter().map(|row| row.id).collect::<Vec<_>>(), expected.ids(2), "{device}");
    }
}

#[test]
fn a_given_graph_full_of_equal_rows_is_built_anew() {
    let data = synth(Fault::Zero, 0.5);
    let base = data.base();
    let builder = builder(Strategy::nsg()).knn(40);
    let graph = builder.knn_graph(&base).unwrap();
    let index = builder.build_from(&base, &graph).unwrap();
    assert_eq!(index.repeated().len(), ROWS / 2 - 1);
    assert!(recall(&searcher(index, &base), &data.queries(50), 10) >= 0.99);
}

#[test]
fn a_common_direction_does_not_rank_rows_of_inner_products() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    let mut on_codes = [true, false].into_iter().cycle();
    for length in [3.0, 100.0] {
        let data = synth(Fault::Offset { length }, 1.0);
        let base = data.base();
        // Queries with the direction of the rows and without it.
        let (without, with) = (data.queries(50), data.query_kind(QueryKind::Dirty).queries(50));
        let check = |index: Index, how: &str| {
            let what = format!("{}, {length}, {how}", index.kind());
            let searcher = searcher(index, &base);
            for (name, queries) in [("with", &with), ("without", &without)] {
                let found = recall(&searcher, queries, 10);
                assert!(found >= 0.985, "{what}, {name}: {found}");
            }
        };
        for strategy in some_kinds() {
            let builder = builder(strategy).metric(Metric::InnerProduct);
            check(builder.build(&base).unwrap(), "memory");
            // In turn: each kind has one of these at each length.
            if on_codes.next().unwrap() {
                check(builder.compressed(Compression::Int8).build(&base).unwrap(), "codes");
                continue;
            }
            let limits = Limits { cluster_size: Some(720), ..Limits::default() };
            let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
            OutOfCore::new(builder, plan).build(&base, &path).unwrap();
            check(Index::open(&path).unwrap(), "clusters");
        }
    }
    let bytes = |seed: u64, offset: f32| {
        let values = uniform(ROWS, DIM, seed).to_f32().unwrap();
        Vectors::from_i8(values.iter().map(|x| (x * 5.0 + offset) as i8).collect(), DIM).unwrap()
    };
    let (base, queries) = (bytes(1, 70.0), bytes(2, 0.0));
    let index = builder(Strategy::nsg()).metric(Metric::InnerProduct).build(&base).unwrap();
    let found = recall(&searcher(index, &base), &queries, 10);
    assert!(found >= 0.985, "bytes: {found}");
}

#[test]
fn groups_far_apart_are_parts_of_their_own_under_inner_product() {
    for (length, share) in [(3.0, 0.1), (10.0, 0.5), (100.0, 0.05)] {
        check(Fault::Offset { length }, share, Metric::InnerProduct, some_kinds());
    }
    // Bytes in three groups, one of them small.
    let values = uniform(ROWS, DIM, 7).to_f32().unwrap();
    let group = |row: usize| if row.is_multiple_of(25) { -90.0 } else { (row % 2) as f32 * 60.0 };
    let value = |(i, x): (usize, &f32)| (x * 20.0 + group(i / DIM)) as i8;
    let base = Vectors::from_i8(values.iter().enumerate().map(value).collect(), DIM).unwrap();
    let values = uniform(100, DIM, 8).to_f32().unwrap();
    let queries = values.iter().map(|x| (x * 20.0 - 10.0) as i8).collect();
    let queries = Vectors::from_i8(queries, DIM).unwrap();
    for strategy in some_kinds() {
        let index = builder(strategy.degree(24)).metric(Metric::InnerProduct).build(&base).unwrap();
        index.verify(&Progress::silent()).unwrap();
        assert_eq!(index.description().parameters["degree"], "24");
        let kind = index.kind().to_owned();
        let found = recall(&searcher(index, &base), &queries, 10);
        assert!(found >= 0.985, "{kind}: {found}");
    }
    let data = synth(Fault::Offset { length: 10.0 }, 0.3);
    let base = data.base();
    let builder = builder(Strategy::nsg()).metric(Metric::InnerProduct).compressed(Compression::Int8);
    let found = recall(&searcher(builder.build(&base).unwrap(), &base), &data.queries(100), 10);
    assert!(found >= 0.985, "codes: {found}");
}

#[test]
fn near_copies_do_not_fill_the_lists_of_inner_products() {
    check(Fault::Near { noise: 1e-3 }, 0.5, Metric::InnerProduct, some_kinds());
    for (scale, share) in [(1e-3, 0.1), (1e-2, 0.5), (1e-3, 0.9)] {
        check(Fault::Ball { scale }, share, Metric::InnerProduct, some_kinds());
    }
}

#[test]
fn long_rows_of_one_direction_do_not_fill_the_lists_of_inner_products() {
    for share in [0.02, 0.1, 0.5] {
        check(Fault::Multiples, share, Metric::InnerProduct, some_kinds());
    }
    let data = synth(Fault::Multiples, 0.2);
    let base = data.base();
    let builder = builder(Strategy::nsg()).metric(Metric::InnerProduct).compressed(Compression::Int8);
    let found = recall(&searcher(builder.build(&base).unwrap(), &base), &data.queries(100), 10);
    assert!(found >= 0.985, "codes: {found}");
}

#[test]
fn long_rows_do_not_hide_the_many_from_inner_products() {
    // Half of a long row's largest products are with long rows, the others with rows of the many.
    for share in [0.04, 0.1] {
        check(Fault::Sentinel { value: -9999.0 }, share, Metric::InnerProduct, some_kinds());
    }
}

#[test]
fn spots_in_all_directions_are_found_by_inner_products() {
    // Those who represent them have products of chance with each other.
    let fault = Fault::Sentinel { value: -9999.0 };
    let data = Synth::of_kind(SynthKind::Dirty { fault, share: 0.4 }, 3000, 32, 3).unwrap();
    check_data(data, "many sentinels", Metric::InnerProduct, some_kinds());
}

#[test]
fn searches_on_codes_tell_copies_apart_that_are_too_few_for_a_spot() {
    for noise in [1e-6, 1e-3] {
        let data = synth(Fault::Near { noise }, 0.02);
        let (base, dirty) = (data.base(), data.query_kind(QueryKind::Dirty).queries(40));
        let index = builder(Strategy::nsg()).build(&base).unwrap();
        let searcher = searcher(index, &base).compressed(Compression::Int8).unwrap();
        let found = recall(&searcher, &dirty, 10);
        assert!(found >= 0.99, "{noise}: {found}");
    }
}

#[test]
fn searches_on_codes_find_the_rows_of_dense_spots() {
    // The rows of a spot have about the same codes.
    for (fault, share) in [
        (Fault::Near { noise: 1e-6 }, 0.05),
        (Fault::Near { noise: 1e-3 }, 0.3),
        (Fault::Ball { scale: 1e-3 }, 0.1),
        (Fault::Ball { scale: 1e-3 }, 0.9),
    ] {
        let data = synth(fault, share);
        let (base, clean) = (data.base(), data.queries(50));
        let dirty = data.query_kind(QueryKind::Dirty).queries(40);
        let builder = builder(Strategy::nsg());
        for builder in [builder.clone(), builder.compressed(Compression::Int8)] {
            let index = builder.build(&base).unwrap();
            let searcher = searcher(index, &base).compressed(Compression::Int8).unwrap();
            for (queries, k) in [(&clean, 10), (&dirty, 10), (&dirty, 1)] {
                let found = recall(&searcher, queries, k);
                assert!(found >= 0.97, "{fault}, {k}: {found}");
            }
        }
    }
}

#[test]
fn a_search_returns_k_rows_if_there_are_as_many() {
    // A common direction: the same rows have the largest products with all others.
    let data = synth(Fault::Offset { length: 10.0 }, 1.0);
    let (base, silent) = (data.base(), Progress::silent());
    let queries = data.query_kind(QueryKind::Dirty).queries(5);
    let truth = ground_truth(&base, &queries, Metric::InnerProduct, 900, &silent).unwrap();
    for strategy in [Strategy::cagra(), Strategy::nsg(), Strategy::vamana()] {
        let index = builder(strategy).metric(Metric::InnerProduct).build(&base).unwrap();
        let searcher = searcher(index, &base);
        let found = searcher.search(&queries, Search::new(900).beam(900), &silent).unwrap();
        let one = searcher.search_one(&queries.row_to_f32(0).unwrap(), Search::new(900).beam(900)).unwrap();
        assert_eq!(one.len(), 900);
        for query in 0..queries.len() {
            assert_eq!(found.neighbors(query).count(), 900, "{}", searcher.index().kind());
            let near = found.ids(query).iter().filter(|id| truth.ids(query).contains(id)).count();
            assert!(near >= 855, "{}: {near} of 900", searcher.index().kind());
        }
    }
}

#[test]
fn readers_without_dense_spots_find_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let data = synth(Fault::Ball { scale: 1e-3 }, 0.1);
    let (base, silent) = (data.base(), Progress::silent());
    let (clean, dirty) = (data.queries(50), data.query_kind(QueryKind::Dirty).queries(50));
    for strategy in [Strategy::nsg(), Strategy::vamana(), Strategy::cagra()] {
        let index = builder(strategy).build(&base).unwrap();
        index.export(IndexFormat::Hnswlib).base(&base).save(&path).unwrap();
        // Layers and spots stay behind.
        let read = Index::import(&path, IndexFormat::Hnswlib, &base, Metric::L2, &silent).unwrap();
        assert_eq!(read.statistics(&silent).unwrap().unreachable, 0, "{}", index.kind());
        let read = searcher(read, &base);
        for (name, queries) in [("clean", &clean), ("dirty", &dirty)] {
            let found = recall(&read, queries, 10);
            assert!(found >= 0.97, "{}, {name}: {found}", index.kind());
        }
    }
}
