//! Walks with filters, on GPUs and on the CPU. A GPU walks only where a great many rows pass, too
//! many for a test. So these tests lower the number below which it takes exact search.

use super::Searcher;
use super::engine::Engine;
use super::options::{ROWS_PER_NODE, Search};
use crate::{
    Builder, Compression, Device, ElementType, IdSet, Index, Metric, Neighbor, Progress, Strategy, Synth,
    SynthKind, Vectors, ground_truth,
};

fn devices() -> Vec<Device> {
    let cuda = Device::Cuda(0).gpu().is_ok().then_some(Device::Cuda(0));
    if cuda.is_none() {
        eprintln!("skipped: no CUDA device");
    }
    [Some(Device::Emulated), cuda].into_iter().flatten().collect()
}

fn built(base: &Vectors, metric: Metric) -> Index {
    let builder = Builder::new(Strategy::cagra().degree(16)).knn(32).metric(metric).device(Device::Cpu);
    builder.build(base).unwrap()
}

/// A search on `device`, that walks as often as one on the CPU.
fn walking(searcher: &Searcher, device: Device) -> Engine<'static> {
    let mut engine = searcher.clone().device(device).unwrap().engine().clone();
    engine.rows_per_node = Some(ROWS_PER_NODE);
    engine
}

fn found(engine: &Engine<'_>, queries: &Vectors, search: Search<'_>) -> Vec<Vec<Neighbor>> {
    let silent = Progress::silent();
    let found = engine.run(&engine.space().queries(queries, &silent).unwrap(), search, &silent).unwrap();
    (0..queries.len()).map(|query| found.neighbors(query).collect()).collect()
}

fn set(rows: u32, passes: impl Fn(u32) -> bool) -> IdSet {
    IdSet::from_ids(rows as usize, (0..rows).filter(|&id| passes(id))).unwrap()
}

#[test]
fn every_device_gives_the_same_filtered_bytes() {
    let synth = Synth::of_kind(SynthKind::Uniform, 6000, 5, 1).unwrap();
    let (base, queries) = (synth.base(), synth.queries(6));
    let sets = [
        set(6000, |id| id % 50 == 0),
        set(6000, |id| id % 4 > 0),
        set(6000, |id| id % 20 == 3),
        set(6000, |id| id > 2000),
    ];
    let is_odd = |id: u32| id % 2 == 1;
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        let on_cpu = Searcher::new(built(&base, metric), base.clone(), &Progress::silent()).unwrap();
        let searches = sets.iter().map(|ids| Search::new(1).beam(1).among(ids)).chain([
            Search::new(4).beam(40).among(&sets[1]),
            Search::new(4).beam(60).among(&sets[3]),
            Search::new(4).beam(8).accept(&is_odd),
        ]);
        let searches: Vec<_> = searches.collect();
        for device in devices() {
            let engine = walking(&on_cpu, device);
            for &search in &searches {
                let expected = found(on_cpu.engine(), &queries, search);
                assert_eq!(found(&engine, &queries, search), expected, "{metric}, {device}, {search:?}");
                let one = engine.run_one(&queries.row_to_f32(0).unwrap(), search).unwrap();
                assert_eq!(one, expected[0], "{metric}, {device}, {search:?}");
            }
            // The widest beams, of either kernel.
            let mut engine = engine;
            engine.rows_per_node = Some(0.0);
            let mut cpu = on_cpu.engine().clone();
            cpu.rows_per_node = Some(0.0);
            for beam in [128, 129, 512] {
                let search = Search::new(10).beam(beam).among(&sets[1]);
                assert_eq!(found(&engine, &queries, search), found(&cpu, &queries, search), "{device}");
            }
        }
    }
}

#[test]
fn filters_hold_in_layers_on_codes_and_in_any_type() {
    let synth = Synth::of_kind(SynthKind::Clusters { clusters: 300 }, 6000, 24, 3).unwrap();
    let sets = [set(6000, |id| id % 300 < 150), set(6000, |id| id % 4 == 0)];
    for element in [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8] {
        let synth = synth.clone().element_type(element);
        let (base, queries) = (synth.base(), synth.queries(30));
        let index = built(&base, Metric::L2);
        assert!(!index.layers().is_empty());
        let on_cpu = Searcher::new(index, base.clone(), &Progress::silent()).unwrap();
        let truth = ground_truth(&base, &queries, Metric::L2, base.len(), &Progress::silent()).unwrap();
        for ids in &sets {
            let nearest = |query: usize| {
                let passing = (0..base.len()).filter(|&rank| ids.contains(truth.ids(query)[rank]));
                truth.distances(query).unwrap()[passing.take(5).last().unwrap()]
            };
            let recall = |found: &[Vec<Neighbor>]| {
                let hits = found.iter().enumerate().map(|(query, rows)| {
                    assert!(rows.iter().all(|row| ids.contains(row.id)));
                    rows.iter().filter(|row| row.distance <= nearest(query)).count()
                });
                hits.sum::<usize>() as f64 / (5 * found.len()) as f64
            };
            let search = Search::new(5).beam(16).among(ids);
            let expected = found(on_cpu.engine(), &queries, search);
            assert!(recall(&expected) > 0.9, "{element}: {}", recall(&expected));
            for device in devices() {
                let mut engine = walking(&on_cpu, device);
                assert_eq!(found(&engine, &queries, search), expected, "{element}, {device}");
                // Wider steps find about the same.
                engine.width = 4;
                let recall = recall(&found(&engine, &queries, search));
                assert!(recall > 0.9, "{element}, {device}: {recall}");
                if element == ElementType::F32 {
                    let on_codes = on_cpu.clone().compressed(Compression::Int8).unwrap();
                    let expected = found(on_codes.engine(), &queries, search);
                    let engine = walking(&on_codes, device);
                    assert_eq!(found(&engine, &queries, search), expected, "codes, {device}");
                }
            }
        }
    }
}
