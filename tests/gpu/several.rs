//! Searches that several devices share: the bytes of one device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tagore::{
    Builder, Description, Device, Error, ExactSearch, IdSet, Index, Metric, Progress, Search, SearchResult,
    Searcher, Strategy, TestQueries, Vectors,
};

use super::METRICS;
use crate::reference::{hard_cases, uniform};

/// Up to three emulated devices.
fn emulated(count: usize) -> Vec<Device> {
    Device::list("emulated,emulated:9.0,emulated:8.9").unwrap()[..count].to_vec()
}

fn names(devices: &[Device]) -> String {
    devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",")
}

/// Ids and bits of distances.
fn bits(result: SearchResult) -> (Vec<u32>, Vec<u32>) {
    let (ids, distances) = result.into_parts();
    (ids, distances.into_iter().map(f32::to_bits).collect())
}

fn searcher(base: &Arc<Vectors>, metric: Metric) -> Searcher {
    let builder = Builder::new(Strategy::cagra().degree(8)).knn(16).metric(metric).device(Device::Cpu);
    let index = builder.build(base).unwrap();
    Searcher::new(index, Arc::clone(base), &Progress::silent()).unwrap()
}

#[test]
fn beam_search_on_several_devices() {
    let silent = Progress::silent();
    // Fewer queries than devices, odd numbers, and none.
    let cases = [
        (Metric::L2, 2, [0, 1, 7]),
        (Metric::InnerProduct, 3, [0, 2, 7]),
        (Metric::Cosine, 2, [1, 2, 5]),
        (Metric::L2, 3, [1, 2, 11]),
    ];
    for (metric, count, query_counts) in cases {
        let (base, devices) = (Arc::new(uniform(250, 7, 1)), emulated(count));
        let on_cpu = searcher(&base, metric);
        let some = IdSet::from_ids(250, (0..250).step_by(2)).unwrap();
        let few = IdSet::from_ids(250, 30..41).unwrap();
        let searches = [
            Search::new(5).beam(20),
            Search::new(3).beam(10).radius(1.0),
            Search::new(4).beam(8).among(&some),
            Search::new(4).beam(8).among(&few),
        ];
        let one = on_cpu.clone().device(Device::Emulated).unwrap().batch(3);
        let several = on_cpu.clone().devices(&devices).unwrap().batch(3);
        assert_eq!(several.runs_on(), names(&devices));
        for count in query_counts {
            let queries = uniform(count, 7, 2);
            for search in searches {
                let shape = format!("{metric}, {} devices, {count} queries, {search:?}", devices.len());
                let expected = one.search(&queries, search, &silent).unwrap();
                let found = several.search(&queries, search, &silent).unwrap();
                assert_eq!(found.computed(), expected.computed(), "{shape}");
                let seconds = found.device_seconds();
                let sum: f64 = found.kernels().iter().map(|time| time.seconds).sum();
                assert!(seconds.is_none() == (count == 0) && seconds.unwrap_or(0.0) <= sum, "{shape}");
                if count == 2 {
                    let alone = several.search_one(&queries.row_to_f32(0).unwrap(), search).unwrap();
                    assert!(alone.into_iter().eq(expected.neighbors(0)), "{shape}");
                }
                assert_eq!(bits(found), bits(expected), "{shape}");
            }
        }
    }
}

#[test]
fn whole_numbers_and_other_queries_on_several_devices() {
    // The base is held as bytes. The queries of one device are bytes, those of the other are not.
    let base = Arc::new(Vectors::from_f32((0..1500).map(|i| (i * 37 % 251) as f32).collect(), 5).unwrap());
    let values = (0..40).map(|i| if i < 25 { (i * 7) as f32 } else { i as f32 * 1.3 });
    let queries = Vectors::from_f32(values.collect(), 5).unwrap();
    let (on_cpu, silent) = (searcher(&base, Metric::L2), Progress::silent());
    let find = |searcher: &Searcher| bits(searcher.search(&queries, Search::new(6), &silent).unwrap());
    assert_eq!(find(&on_cpu.clone().devices(&emulated(2)).unwrap()), find(&on_cpu));
}

#[test]
fn evaluations_on_several_devices() {
    let (base, queries) = (Arc::new(uniform(300, 6, 3)), uniform(10, 6, 4));
    let (truth, _) = ExactSearch::new(10).device(Device::Cpu).run(&base, &queries).unwrap();
    let on_cpu = searcher(&base, Metric::L2);
    let evaluate = |searcher: &Searcher| {
        let test = TestQueries::new(&queries, &truth, 10);
        searcher.evaluate(test, &[10, 30], &Progress::silent()).unwrap()
    };
    let (one, two) = (evaluate(&on_cpu), evaluate(&on_cpu.clone().devices(&emulated(2)).unwrap()));
    for (one, two) in one.iter().zip(&two) {
        assert_eq!((one.recall, one.recall_ids), (two.recall, two.recall_ids));
        assert!(two.device_qps.unwrap() >= two.qps && two.device_bytes.unwrap() > 0.0);
    }
}

/// Checks exact search on several devices: ids and bits of distances of the CPU.
fn check_exact(case: &str, base: &Vectors, queries: &Vectors, search: &ExactSearch, count: usize) {
    let run = |devices: &[Device]| {
        let (truth, stats) = search.clone().devices(devices).run(base, queries).unwrap();
        let (_, ids, distances) = truth.into_parts();
        let bits: Vec<u32> = distances.unwrap().into_iter().map(f32::to_bits).collect();
        ((ids, bits), stats)
    };
    let (expected, _) = run(&[Device::Cpu]);
    let (found, stats) = run(&emulated(count));
    assert!(found == expected, "{case}, {} x {}, {count} devices, {search:?}", base.len(), base.dim());
    assert_eq!(stats.device, names(&emulated(count)));
}

#[test]
fn exact_search_on_several_devices() {
    // Parts of the base: fewer rows than devices, and lists longer than a part.
    let shapes = [(1, 1, 1, 2), (2, 5, 2, 3), (703, 130, 7, 3), (400, 3, 333, 3), (300, 0, 4, 2)];
    for ((rows, queries, k, count), metric) in shapes.into_iter().zip(METRICS.into_iter().cycle()) {
        let search = ExactSearch::new(k).metric(metric);
        check_exact("few queries", &uniform(rows, 5, 1), &uniform(queries, 5, 2), &search, count);
    }
    // Parts of the queries; then of a base that does not fit.
    let (base, queries) = (uniform(300, 6, 3), uniform(257, 6, 4));
    for (bytes, metric) in [(1 << 20, Metric::InnerProduct), (555_000, Metric::L2)] {
        let search = ExactSearch::new(9).metric(metric).device_memory(bytes);
        check_exact("many queries", &base, &queries, &search, 2);
    }
}

#[test]
fn exact_search_of_ties_and_zeros_on_several_devices() {
    for ((name, base), metric) in hard_cases(200, 4, 5).into_iter().zip(METRICS.into_iter().cycle()) {
        let search = ExactSearch::new(90).metric(metric);
        check_exact(name, &base, &uniform(6, 4, 6), &search, 3);
    }
    let zeros = |rows: usize| Vectors::from_f32(vec![0.0; 4 * rows], 4).unwrap();
    for metric in METRICS {
        let search = ExactSearch::new(3).metric(metric);
        check_exact("zeros", &zeros(100), &zeros(3), &search, 2);
        check_exact("zero queries", &uniform(100, 4, 7), &zeros(257), &search, 2);
    }
}

#[test]
fn wrong_devices_and_errors_are_one_line() {
    let (base, queries) = (Arc::new(uniform(100, 3, 1)), uniform(5, 3, 2));
    let on_cpu = searcher(&base, Metric::L2);
    let text = |devices: &[Device]| {
        let of_searcher = on_cpu.clone().devices(devices).unwrap_err().to_string();
        let exact = ExactSearch::new(3).devices(devices).run(&base, &queries);
        assert_eq!(exact.unwrap_err().to_string(), of_searcher);
        of_searcher
    };
    assert_eq!(text(&[Device::Emulated; 2]), "device: found emulated twice, expected each device once");
    assert_eq!(
        text(&[Device::Emulated, Device::Cpu]),
        "device: found cpu among several devices, expected GPUs by name, such as cuda:0,1"
    );
    assert!(text(&[Device::Emulated, Device::Auto]).starts_with("device: found auto among several"));
    // No device is the default.
    assert_eq!(on_cpu.clone().devices(&[]).unwrap().runs_on(), "cpu");
    // Both devices lack memory.
    let error = ExactSearch::new(3).devices(&emulated(2)).device_memory(1000).run(&base, &queries);
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("emulated: ") && error.matches("free 1000").count() == 1, "{error}");
}

#[test]
fn an_error_of_one_device_ends_the_search() {
    // Rows too long for a block of the smaller device.
    let (n, degree) = (1000u32, 700u32);
    let base = uniform(n as usize, 3, 1);
    let rows: Vec<Vec<u32>> =
        (0..n).map(|node| (1..=degree).map(|step| (node + step) % n).collect()).collect();
    let parameters = Default::default();
    let description = Description { kind: "ring".into(), metric: Metric::L2, seed: 0, parameters };
    let index = Index::from_rows(description, &base, &rows, vec![0]).unwrap();
    let searcher = Searcher::new(index, base, &Progress::silent()).unwrap().width(8).unwrap();
    let [small, large] = ["emulated:8.9", "emulated:9.0"].map(|name| name.parse::<Device>().unwrap());
    let (queries, silent) = (uniform(4, 3, 2), Progress::silent());
    let search = |devices: &[Device]| {
        let on = searcher.clone().devices(devices).unwrap();
        on.search(&queries, Search::new(2).beam(4), &silent)
    };
    assert!(search(&[large]).is_ok());
    for devices in [[large, small], [small, large]] {
        let error = search(&devices).unwrap_err().to_string();
        assert!(error.starts_with("emulated:8.9: search: requested"), "{error}");
        assert_eq!(error, search(&[small]).unwrap_err().to_string());
    }
    assert!(!silent.is_cancelled());
}

#[test]
fn cancelling_stops_all_devices() {
    let (base, queries) = (Arc::new(uniform(300, 3, 1)), uniform(40, 3, 2));
    let searcher = searcher(&base, Metric::L2).devices(&emulated(2)).unwrap().batch(1);
    let updates = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&updates);
    // Cancels after a few batches.
    let stop = move |_| {
        if seen.fetch_add(1, Ordering::Relaxed) < 3 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let ended = searcher.search(&queries, Search::new(2), &Progress::controlled(stop));
    assert!(matches!(ended, Err(Error::Cancelled)));
    assert!(updates.load(Ordering::Relaxed) < 20);
    for count in [10, 257] {
        let queries = uniform(count, 3, 3);
        let progress = Progress::controlled(|update| {
            if update.stage == "exact search" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let exact = ExactSearch::new(3).devices(&emulated(2)).progress(progress);
        assert!(matches!(exact.run(&base, &queries), Err(Error::Cancelled)), "{count}");
    }
}

#[test]
fn progress_counts_the_queries_of_all_devices() {
    let base = Arc::new(uniform(300, 3, 1));
    let searcher = searcher(&base, Metric::L2).devices(&emulated(3)).unwrap().batch(2);
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let progress = Progress::new(move |update| {
        if update.stage == "search" {
            assert_eq!(update.total, 11);
            seen.fetch_max(update.done, Ordering::Relaxed);
        }
    });
    searcher.search(&uniform(11, 3, 2), Search::new(2), &progress).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), 11);
}
