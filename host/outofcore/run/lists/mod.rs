//! The neighbour lists of a cluster's members, on the host or on the device of the build.
//!
//! Lists keep distances for merging. Both lists of a node are pruned, but each on its own, so the
//! merge prunes again: a neighbour nearer to an accepted neighbour than to the node is set aside,
//! if both are members of the second cluster, whose vectors are present. Neighbours set aside fill
//! the remaining room.

mod on_device;
mod on_host;

use std::ops::Range;

use tagore_device::key::Key;

pub(crate) use self::on_device::DeviceLists;
#[cfg(test)]
pub(crate) use self::on_device::ListKernels;
pub(crate) use self::on_host::HostLists;
use crate::Result;

/// The members of a cluster.
pub(crate) struct Members {
    /// Ids in ascending order.
    pub ids: Vec<u32>,
    /// The member at each place: an index into `ids`. Members that share another cluster are
    /// adjacent.
    pub order: Vec<u32>,
}

/// Waiting lists for some members of a cluster.
pub(crate) struct WaitingLists<'a> {
    pub places: Range<usize>,
    /// The lists of these members, as from [`ClusterLists::get`].
    pub lists: &'a [Key],
}

/// The neighbour lists of a cluster's members.
pub(crate) trait ClusterLists {
    /// Returns the lists of the members at `places`: ascending keys of order distances and ids.
    /// Each list is padded to the degree with [`NONE`](tagore_device::key::NONE).
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>>;

    /// Merges the lists of members with waiting lists.
    ///
    /// Returns a record per member: its id, then `degree` ids of neighbours, padded with
    /// `u32::MAX`.
    fn merge(&mut self, waiting: &[WaitingLists<'_>]) -> Result<Vec<u32>>;
}

#[cfg(test)]
mod tests {
    use half::f16;
    use tagore_device::key::{NONE, pack};
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::gpu::{Buffer, Gpu};
    use crate::prune::GraphRows;
    use crate::vectors::embedding::Embedding;
    use crate::vectors::gpu::{AnyOrigin, Base, with_typed};
    use crate::vectors::space::Space;
    use crate::{Builder, Device, Index, Metric, Progress, Strategy, Synth, Vectors};

    fn members(count: usize) -> Members {
        // Every third node is no member.
        let ids = (0..count as u32).map(|member| member + member / 2).collect();
        Members { ids, order: (0..count as u32).rev().collect() }
    }

    fn on_host(base: &Vectors, embedding: &Embedding, index: &Index) -> HostLists {
        let (progress, space) =
            (Progress::silent(), embedding.space(base.clone(), &Progress::silent()).unwrap());
        let rows = GraphRows::from_padded(index.padded_rows().unwrap().to_vec(), index.max_degree()).unwrap();
        HostLists::new(space, &rows, members(base.len()), &progress.stage("build", 0)).unwrap()
    }

    fn on_device(gpu: &Gpu, base: &Vectors, embedding: &Embedding, index: &Index) -> Box<dyn ClusterLists> {
        let space = Space::new(base, index.metric(), &Progress::silent()).unwrap();
        let lifts = embedding.lifts(base, &Progress::silent()).unwrap();
        with_typed!(AnyOrigin::of_space(gpu, &space).unwrap(), rows => {
            let there = Base::upload(gpu, &space, &rows).unwrap();
            let rows = index.padded_rows().unwrap();
            let mut edges: Buffer<u32> = gpu.buffer("rows", rows.len()).unwrap();
            edges.upload(rows).unwrap();
            let (degree, members) = (index.max_degree(), members(base.len()));
            Box::new(DeviceLists::new(gpu, there, lifts, edges, degree, members).unwrap())
        })
    }

    /// Waiting lists for `lists`, with some neighbours replaced.
    fn others(lists: &[Key], degree: usize, embedding: &Embedding, base: &Vectors) -> Vec<Key> {
        let (members, space) =
            (members(base.len()), embedding.space(base.clone(), &Progress::silent()).unwrap());
        let of_place = |(place, list): (usize, &[Key])| {
            let draws = Draws::new(7, Stage::Test, 0, place as u64);
            let node = members.order[place];
            let mut others = Vec::new();
            for (slot, &key) in list.iter().enumerate().filter(|(_, key)| **key != NONE) {
                let draw = |what: u64, below: u64| draws.below(4 * slot as u64 + what, below);
                match draw(0, 4) {
                    0 => {}
                    1 => others.push(key),
                    2 => {
                        let member = draw(1, base.len() as u64) as u32;
                        let mut distance = Vec::new();
                        space.order_distances(node, &[member], &mut distance);
                        others.push(pack(distance[0], members.ids[member as usize]));
                    }
                    // No member.
                    _ => others.push(pack(draw(2, 3000) as f32 / 100.0, 3 * draw(3, 50) as u32 + 2)),
                }
            }
            others.sort_unstable();
            others.dedup_by_key(|key| *key as u32);
            others.resize(degree, NONE);
            others
        };
        lists.chunks_exact(degree).enumerate().flat_map(of_place).collect()
    }

    #[test]
    fn lists_on_a_device_equal_lists_on_the_host() {
        let floats: Vec<f32> = {
            let base = Synth::new(61, 9, 3).unwrap().base();
            (0..61).flat_map(|row| base.host_row(row).to_vec()).map(|x| (x * 4.0).round()).collect()
        };
        let bytes = || floats.iter().map(|&x| x as i8);
        let mut zero = floats.clone();
        zero[9..18].fill(0.0);
        for (base, metric, degree) in [
            (Vectors::from_f32(floats.clone(), 9), Metric::L2, 40),
            (Vectors::from_f32(floats.clone(), 9), Metric::InnerProduct, 7),
            (Vectors::from_f32(zero, 9), Metric::Cosine, 33),
            (Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 9), Metric::L2, 64),
            (Vectors::from_i8(bytes().collect(), 9), Metric::L2, 1),
            (Vectors::from_u8(bytes().map(|x| x as u8).collect(), 9), Metric::InnerProduct, 40),
        ] {
            let base = base.unwrap();
            let strategy = Strategy::nsg().degree(degree);
            let builder = Builder::new(strategy).knn(45).metric(metric).device(Device::Cpu);
            let index = builder.build(&base).unwrap();
            // The whole base also has longer vectors.
            let mut all: Vec<f32> = (0..base.len()).flat_map(|row| base.host_row(row).to_vec()).collect();
            all.iter_mut().take(9).for_each(|x| *x = 50.0);
            let embedding =
                Embedding::new(&Vectors::from_f32(all, 9).unwrap(), metric, &Progress::silent()).unwrap();
            let mut expected = on_host(&base, &embedding, &index);
            let n = base.len();
            let lists = expected.get(0..n).unwrap();
            for list in lists.chunks_exact(degree) {
                assert!(list.is_sorted() && list[0] != NONE);
            }
            let first = others(&lists, degree, &embedding, &base);
            let all = |lists| [WaitingLists { places: 0..n, lists }];
            let merged = expected.merge(&all(&first)).unwrap();
            let none = vec![NONE; n * degree];
            assert_ne!(merged, expected.merge(&all(&none)).unwrap());
            for gpu in std::iter::once(Gpu::emulated(1)).chain(Gpu::cuda_for_tests()) {
                let mut found = on_device(&gpu, &base, &embedding, &index);
                let what = format!("{metric}, {}, degree {degree}", base.element_type());
                assert!(found.get(0..n).unwrap() == lists, "{what}");
                assert!(found.get(5..9).unwrap() == lists[5 * degree..9 * degree], "{what}");
                assert!(found.merge(&all(&first)).unwrap() == merged, "{what}");
                let part = |places: Range<usize>| {
                    let list = places.start * degree..places.end * degree;
                    WaitingLists { places, lists: &first[list] }
                };
                let some = found.merge(&[part(20..31), part(0..1), part(31..n)]).unwrap();
                let record = degree + 1;
                let parts = [&merged[20 * record..31 * record], &merged[..record], &merged[31 * record..]];
                assert!(some == parts.concat(), "{what}");
            }
        }
    }
}
