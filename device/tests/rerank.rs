//! Reranking of found nodes.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::exact::Metric;
use tagore_device::key::{self, Key, NONE};
use tagore_device::search::rerank::*;

use crate::beam::{Data, METRICS};
use crate::device::TestDevice;
use crate::exact::Value;
use crate::{SEEDS, integers};

/// Reranks `counts[query]` of `walked` nodes with kernel `K`.
fn check<T: Value, K: Kernel<Arguments = (Rerank<T>,)>>(
    metric: Metric,
    n: usize,
    dim: usize,
    walked: usize,
    k: usize,
    seed: u64,
) {
    let counts = [walked, 0, 1, walked.saturating_sub(3)];
    let base = Data::<T>::new(n, dim, &[5, 9], seed);
    let points = Data::<T>::new(counts.len(), dim, &[3], seed + 9);
    let mut found = Vec::new();
    for (query, count) in counts.into_iter().enumerate() {
        // Any distinct nodes, at any distances.
        let shift = integers(1, 0, n as i64 - 1, seed + query as u64)[0] as usize;
        let mut keys: Vec<Key> =
            (0..count).map(|i| key::pack(i as f32 - 3.5, ((7 * i + shift) % n) as u32)).collect();
        keys.resize(walked, NONE);
        found.extend(keys);
    }
    let device = TestDevice::new(seed);
    let reranked = device.room::<Key>(counts.len() * k);
    let arguments = Rerank {
        base: base.rows(&device),
        queries: points.rows(&device),
        found: device.input(&found),
        reranked: reranked.view(),
        walked: walked as u32,
        k: k as u32,
        metric: metric as u32,
        padding: 0,
    };
    device.launch::<K>(counts.len() as u32, RERANK_THREADS, (arguments,));
    let reranked = reranked.values::<Key>().unwrap();
    for (query, row) in reranked.chunks_exact(k).enumerate() {
        let (point, is_zero) = (points.row(query), points.lifts[query] < 0.0);
        let ids = found[query * walked..][..counts[query]].iter().map(|&key| key::id(key));
        let exact = |id: u32| key::pack(base.distance(metric, point, is_zero, id as usize), id);
        let mut expected: Vec<Key> = ids.map(exact).collect();
        expected.sort_unstable();
        expected.resize(k.max(expected.len()), NONE);
        assert_eq!(row, &expected[..k], "{metric:?}, query {query}, {n} x {dim}, {walked}, {k}");
    }
}

#[test]
fn the_nearest_by_exact_distances_come_first() {
    for (seed, metric) in SEEDS.into_iter().zip(METRICS) {
        // 7 divides no number of nodes, so ids are distinct.
        check::<f32, search_rerank_f32>(metric, 300, 97, 50, 10, seed);
        check::<f16, search_rerank_f16>(metric, 600, 130, 512, 512, seed);
        check::<f32, search_rerank_f32>(metric, 31, 1, 1, 1, seed);
        check::<f16, search_rerank_f16>(metric, 95, 16, 33, 40, seed);
        check::<f32, search_rerank_f32>(metric, 200, 33, 129, 7, seed);
    }
}
