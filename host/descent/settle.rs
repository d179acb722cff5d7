//! Settled lists of a build on int8 codes: descent finds longer lists, codes with their rests order
//! them, and the nearest stay.

use tagore_device::block::exact;
use tagore_device::key::{self, Key};
use tagore_device::vectors::code::whole;
use tagore_device::vectors::settle::{PARTS, sum_of, term};

use super::MAX_KNN;
use super::gpu::MAX_K;
use crate::parallel::for_each_row;
use crate::progress::Progress;
use crate::vectors::gpu::metric_number;
use crate::vectors::{Matrix, TypedRows, Vectors};
use crate::{Error, Metric, Result};

/// Neighbours by which lists are longer before they are settled: by codes, nearly all of the K
/// nearest are among the K + 32 nearest (benches/results/codes.md).
const OVERSAMPLE: usize = 32;

/// Whether lists are settled, and by which rests of the codes.
#[derive(Clone, Debug, Default)]
pub(super) enum Settling {
    #[default]
    None,
    /// By rests that do not exist yet: for a plan.
    Planned,
    By(Vectors),
}

/// Neighbours per node before lists of `k` of `nodes` nodes are settled. No longer than lists of
/// descent, if these are not.
pub(super) fn unsettled(k: usize, nodes: usize) -> usize {
    let most = if k <= MAX_K { MAX_K } else { MAX_KNN };
    if k == 0 { 0 } else { (k + OVERSAMPLE).min(most).min(nodes - 1) }
}

/// Codes in bytes and their rests, which together are rows of f32.
struct Rows<'a> {
    codes: Matrix<'a, i8>,
    rests: Matrix<'a, i8>,
}

impl Rows<'_> {
    fn fill(&self, row: usize, values: &mut [f32]) {
        let parts = self.codes.row(row).iter().zip(self.rests.row(row));
        values.iter_mut().zip(parts).for_each(|(value, (&code, &rest))| *value = whole(code, rest));
    }

    /// The list distance of two rows, one given as f32, in the device's order of sums.
    fn distance(&self, metric: exact::Metric, query: &[f32], row: usize) -> f32 {
        let mut sums = [[0f32; PARTS / 4]; 4];
        let parts = self.codes.row(row).chunks(PARTS).zip(self.rests.row(row).chunks(PARTS));
        for (query, (codes, rests)) in query.chunks(PARTS).zip(parts) {
            let values = query.iter().zip(codes.iter().zip(rests));
            for (sum, (&x, (&code, &rest))) in sums.as_flattened_mut().iter_mut().zip(values) {
                *sum += term(metric, x, whole(code, rest));
            }
        }
        let [a, b, c, d] = sums.map(sum_of);
        let sum = (a + c) + (b + d);
        if metric == exact::Metric::InnerProduct { -sum } else { sum }
    }
}

/// Settles lists of the rows of `codes`, all of one length: returns the `k` nearest of each, by
/// codes and rests together.
///
/// # Errors
/// If codes and rests are not bytes, or the work is cancelled.
pub(super) fn settle(
    mut keys: Vec<Key>,
    k: usize,
    metric: Metric,
    codes: &Vectors,
    rests: &Vectors,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let (nodes, longer) = (codes.len(), keys.len() / codes.len().max(1));
    let (TypedRows::I8(codes), TypedRows::I8(rests)) = (codes.rows(), rests.rows()) else {
        return Err(Error::mismatch("codes", codes.element_type(), "i8, if they have rests"));
    };
    let (rows, metric) = (Rows { codes, rests }, exact::Metric::from_u32(metric_number(metric)));
    let stage = progress.stage("settle", nodes as u64);
    let scratch = || vec![0f32; rows.codes.dim];
    for_each_row(&mut keys, longer.max(1), &stage, scratch, |query, node, list| {
        rows.fill(node as usize, query);
        for slot in list.iter_mut().filter(|slot| **slot != key::NONE) {
            let id = key::id(*slot);
            *slot = key::pack(rows.distance(metric, query, id as usize), id);
        }
        list.sort_unstable();
    })?;
    for node in 0..nodes {
        keys.copy_within(node * longer..node * longer + k, node * k);
    }
    keys.truncate(nodes * k);
    keys.shrink_to_fit();
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};
    use tagore_device::vectors::code::Code;

    use super::*;
    use crate::vectors::space::Space;
    use crate::{Descent, Device, Start};

    // The nearest of all nodes by codes and rests, by plain sums in f64 where they differ enough.
    #[test]
    fn lists_are_settled_alike_on_all_backends() {
        let silent = Progress::silent();
        let sizes = [(2, 5, 1), (40, 1, 39), (150, 17, 60), (90, 301, 40), (60, 960, 20)];
        for (n, dim, k) in sizes {
            let draws = Draws::new(n as u64, Stage::Test, 3, dim as u64);
            // Heavy tails, so that some codes are cut.
            let value = |i: usize| (draws.unit(i as u64) as f32 - 0.5).powi(3) * 3000.0;
            let codes: Vec<i8> = (0..n * dim).map(|i| i8::of(value(i))).collect();
            let rests: Vec<i8> = codes.iter().enumerate().map(|(i, code)| code.rest(value(i))).collect();
            let [codes, rests] = [codes, rests].map(|values| Vectors::from_i8(values, dim).unwrap());
            for metric in [Metric::L2, Metric::InnerProduct] {
                let space = Space::new(&codes, metric, &silent).unwrap();
                let build = |device: Device| {
                    let descent = Descent::new().metric(metric).start(Start::AllPairs).device(device);
                    let descent = descent.of_codes(true).settled_by(Some(rests.clone()));
                    descent.build_in(&space, k).unwrap()
                };
                let (on_cpu, on_gpu) = (build(Device::Cpu), build(Device::Emulated));
                assert_eq!(on_cpu.keys(), on_gpu.keys(), "{n} x {dim}, {metric}");
                for node in 0..n {
                    let (ids, distances) = (on_cpu.neighbors(node), on_cpu.distances(node));
                    assert_eq!((ids.len(), on_cpu.has_nearest(1)), (k, false));
                    assert!(distances.is_sorted() && !ids.contains(&(node as u32)));
                    let whole = |row: usize| {
                        let parts = codes
                            .host_row(row)
                            .into_owned()
                            .into_iter()
                            .zip(rests.host_row(row).into_owned());
                        parts.map(|(code, rest)| f64::from(whole(code as i8, rest as i8))).collect::<Vec<_>>()
                    };
                    let own = whole(node);
                    for (&id, &distance) in ids.iter().zip(distances) {
                        let terms = own.iter().zip(whole(id as usize)).map(|(x, y)| match metric {
                            Metric::InnerProduct => -x * y,
                            _ => (x - y) * (x - y),
                        });
                        let (sum, most) = terms.fold((0.0, 0.0), |(sum, most), x| (sum + x, most + x.abs()));
                        assert!((sum - f64::from(distance)).abs() <= 1e-5 * most, "{sum} {distance}");
                    }
                }
            }
        }
    }

    #[test]
    fn longer_lists_are_no_longer_than_descents() {
        let lengths = [(0, 1), (96, 1000), (96, 100), (240, 1000), (256, 1000), (257, 1000), (1024, 5000)];
        let found = lengths.map(|(k, nodes)| unsettled(k, nodes));
        assert_eq!(found, [0, 128, 99, 256, 256, 289, 1024]);
    }
}
