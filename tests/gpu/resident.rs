//! Indexes that stay on the device of their build.

use half::f16;
use tagore::{
    Builder, Compression, Descent, Device, ElementType, IdSet, Index, Iterations, Measure, Metric, Progress,
    Report, Search, Searcher, Start, Strategy, Vectors,
};

use super::devices;
use crate::reference::{separated, uniform};

/// Nodes of reports.
const NODES: usize = 3;

/// Builds an index of `base` that stays on each device; checks searches and a report there against
/// those of the CPU. Returns the number of nodes that the build attached. A report searches for
/// every row about three times: with few rows it takes seconds on the emulator, with many minutes.
fn check(case: &str, base: &Vectors, builder: &Builder) -> u64 {
    let silent = Progress::silent();
    let mut attached = 0;
    for device in devices() {
        let case = format!("{case}, {device}");
        let builder = builder.clone().device(device).sample(NODES).keep_on_device(true);
        let (index, mut stats) = builder.build_with_stats(base, None).unwrap();
        let there = stats.resident.take().unwrap();
        assert_eq!(there.device(), device.to_string(), "{case}");
        attached += stats.prune.attached;

        let measure = Measure {
            nodes: NODES,
            resident: Some(there.clone()),
            exact_on: device,
            search_on: device,
            ..Measure::default()
        };
        let found = Report::measure(&index, Some(base), &stats.sample, &measure).unwrap();
        let expected = Report::measure(
            &index,
            Some(base),
            &stats.sample,
            &Measure { nodes: NODES, ..Measure::default() }.on(Device::Cpu),
        );
        let expected = expected.unwrap();
        assert_eq!(found.knn, expected.knn, "{case}");
        let (found, expected) = (found.search.unwrap(), expected.search.unwrap());
        assert_eq!(found.device, device.to_string(), "{case}");
        for (found, expected) in found.beams.iter().zip(&expected.beams) {
            assert_eq!((found.beam, found.recall), (expected.beam, expected.recall), "{case}");
        }

        let on_cpu = Searcher::new(index, base.clone(), &silent).unwrap();
        let resident = on_cpu.clone().resident(&there).unwrap();
        assert_eq!(resident.runs_on(), device.to_string(), "{case}");
        // Rows of the base, and of f32 also one between two of them, which is no row of bytes.
        let mut values: Vec<f32> =
            (0..4).flat_map(|row| base.row_to_f32(7 * row).unwrap().into_owned()).collect();
        if base.element_type() == ElementType::F32 {
            values.extend(
                base.row_to_f32(1)
                    .unwrap()
                    .iter()
                    .zip(&*base.row_to_f32(2).unwrap())
                    .map(|(a, b)| (a + b) / 2.0 + 0.25),
            );
        }
        let queries = Vectors::from_f32(values, base.dim()).unwrap();
        for beam in [10, 40] {
            let search = || Search::new(5).beam(beam);
            let found = resident.search(&queries, search(), &silent).unwrap();
            let expected = on_cpu.search(&queries, search(), &silent).unwrap();
            for query in 0..queries.len() {
                assert_eq!(found.ids(query), expected.ids(query), "{case}, beam {beam}, query {query}");
                assert_eq!(found.distances(query), expected.distances(query), "{case}, {beam}, {query}");
            }
        }
    }
    attached
}

#[test]
fn an_index_is_searched_where_its_build_left_it() {
    let floats: Vec<f32> =
        (0..50).flat_map(|row| uniform(50, 11, 4).row_to_f32(row).unwrap().into_owned()).collect();
    let whole = |scale: f32| floats.iter().map(move |x| (x * scale).round());
    let vectors = [
        ("f32", Vectors::from_f32(floats.clone(), 11)),
        ("whole f32", Vectors::from_f32(whole(4.0).map(|x| x + 100.0).collect(), 11)),
        ("f16", Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 11)),
        ("i8", Vectors::from_i8(whole(4.0).map(|x| x as i8).collect(), 11)),
    ];
    let metrics = [Metric::InnerProduct, Metric::L2, Metric::Cosine, Metric::L2];
    let strategies = [Strategy::vamana(), Strategy::cagra(), Strategy::dpg(), Strategy::nsg()];
    let mut attached = 0;
    for (((name, base), metric), strategy) in vectors.into_iter().zip(metrics).zip(strategies) {
        let builder = Builder::new(strategy.degree(3)).knn(16).metric(metric);
        attached += check(&format!("{name}, {metric}"), &base.unwrap(), &builder);
    }
    // Rows that the host has changed are copied to the device.
    assert!(attached > 0, "no build attached a node");
}

#[test]
fn repeated_rows_stay_too() {
    // Every row but a third twice, the second time far from the first; and one row often.
    let rows = uniform(36, 11, 4);
    let order = (0..36).chain((12..36).rev()).chain([7; 8]);
    let floats: Vec<f32> = order.flat_map(|row| rows.row_to_f32(row).unwrap().into_owned()).collect();
    let whole = |scale: f32| floats.iter().map(move |x| (x * scale).round());
    // Under cosine all zero vectors are equal, whatever their signs.
    let zeros = (0..30).map(|i| if i % 7 == 0 { -0.0 } else { 0.0 });
    let vectors = [
        ("f32", Metric::InnerProduct, Vectors::from_f32(floats.clone(), 11)),
        (
            "zeros",
            Metric::Cosine,
            Vectors::from_f32(floats.iter().copied().chain(zeros.take(22)).collect(), 11),
        ),
        ("whole f32", Metric::L2, Vectors::from_f32(whole(4.0).map(|x| x + 100.0).collect(), 11)),
        ("f16", Metric::L2, Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 11)),
        ("i8", Metric::InnerProduct, Vectors::from_i8(whole(4.0).map(|x| x as i8).collect(), 11)),
    ];
    let strategies =
        [Strategy::cagra(), Strategy::vamana(), Strategy::dpg(), Strategy::nsg(), Strategy::nssg()];
    for ((name, metric, base), strategy) in vectors.into_iter().zip(strategies) {
        let (base, builder) = (base.unwrap(), Builder::new(strategy.degree(6)).knn(16).metric(metric));
        let repeated = builder.clone().device(Device::Cpu).build(&base).unwrap().repeated().len();
        assert!(repeated >= 32, "{name}: {repeated} repeated rows");
        check(&format!("repeated {name}, {metric}"), &base, &builder);
    }
}

#[test]
fn layers_stay_too() {
    let base = separated(96, 15, 9, 0);
    let builder = Builder::new(Strategy::cagra().degree(5)).knn(5);
    assert!(!builder.clone().device(Device::Cpu).build(&base).unwrap().layers().is_empty());
    check("layers", &base, &builder);
    let rows = (0..120).flat_map(|row| base.row_to_f32(row % 96).unwrap().into_owned()).collect();
    let base = Vectors::from_f32(rows, 9).unwrap();
    assert!(!builder.clone().device(Device::Cpu).build(&base).unwrap().layers().is_empty());
    check("layers of repeated rows", &base, &builder);
}

#[test]
fn a_report_reads_the_rows_that_it_has_copied() {
    let base = uniform(40, 5, 3);
    let builder = Builder::new(Strategy::cagra().degree(6)).knn(12).device(Device::Cpu).sample(NODES);
    let (index, stats) = builder.build_with_stats(&base, None).unwrap();
    let report = |device| {
        let measure = Measure { nodes: NODES, exact_on: device, search_on: device, ..Measure::default() };
        Report::measure(&index, Some(&base), &stats.sample, &measure).unwrap()
    };
    let expected = report(Device::Cpu);
    for device in devices() {
        // Exact search reads the copy that index searches have made.
        let found = report(device);
        assert_eq!(found.knn, expected.knn, "{device}");
        assert_eq!(found.search.unwrap().recall, expected.search.as_ref().unwrap().recall, "{device}");
    }
}

#[test]
fn another_index_is_refused() {
    let base = uniform(50, 5, 1);
    let build = |seed| {
        let builder = Builder::new(Strategy::cagra().degree(6)).knn(12).seed(seed).device(Device::Emulated);
        builder.keep_on_device(true).build_with_stats(&base, None).unwrap()
    };
    let ((_, stats), (other, _)) = (build(0), build(1));
    let there = stats.resident.unwrap();
    let refused = "resident index: found a build of another index on emulated, expected ";
    let searcher = Searcher::new(other.clone(), base.clone(), &Progress::silent()).unwrap();
    let error = searcher.resident(&there).unwrap_err().to_string();
    assert!(error.starts_with(refused), "{error}");
    let measure = Measure { resident: Some(there), search_on: Device::Emulated, ..Measure::default() };
    let error = Report::measure(&other, Some(&base), &stats.sample, &measure).unwrap_err().to_string();
    assert!(error.starts_with(refused), "{error}");
}

#[test]
fn another_index_of_the_same_description_is_refused() {
    let base = uniform(50, 5, 1);
    let builder = Builder::new(Strategy::cagra().degree(6)).knn(12).device(Device::Emulated);
    let build = |start: Start| {
        let descent = Descent::new().knn(12).start(start).iterations(Iterations::Fixed(0, 0));
        let graph = descent.device(Device::Cpu).build(&base).unwrap();
        builder.clone().keep_on_device(true).build_with_stats(&base, Some(&graph)).unwrap()
    };
    let ((index, stats), (other, _)) = (build(Start::AllPairs), build(Start::Random));
    assert_eq!(index.description(), other.description());
    assert_ne!(index.padded_rows().unwrap(), other.padded_rows().unwrap());
    let there = stats.resident.unwrap();
    let searcher = |index: Index| Searcher::new(index, base.clone(), &Progress::silent()).unwrap();
    let error = searcher(other).resident(&there).unwrap_err().to_string();
    assert!(error.starts_with("resident index: found a build of another index"), "{error}");
    searcher(index.clone()).resident(&there).unwrap();
}

#[test]
fn nothing_stays_of_other_builds() {
    let base = uniform(50, 5, 1);
    let builder = Builder::new(Strategy::cagra().degree(6)).knn(12).device(Device::Emulated);
    let stays = |builder: &Builder, base: &Vectors| {
        builder.build_with_stats(base, None).unwrap().1.resident.is_some()
    };
    assert!(!stays(&builder, &base), "not asked to");
    let builder = builder.keep_on_device(true);
    assert!(stays(&builder, &base));
    assert!(!stays(&builder.clone().device(Device::Cpu), &base), "on the CPU");
    assert!(!stays(&builder.clone().compressed(Compression::F16), &base), "on codes");
    let among = IdSet::from_ids(50, 0..40).unwrap();
    assert!(!stays(&builder.among(among), &base), "over some rows");
}
