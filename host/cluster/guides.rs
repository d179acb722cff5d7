//! Vectors that are compared with a list of centres each, where there are too many for all.
//!
//! A vector's guide is the nearest of a few, and its list names the centres near the guide: the
//! nearest of them is the vector's own for most, and near it for the others. In the end that centre
//! is the guide, and its list names the centres near it.

use tagore_device::block::tile;
use tagore_device::cluster::{self as device, LIST_THREADS, Pairs, cluster_lists};
use tagore_device::descent::renumber::{RENUMBER_THREADS, renumber_ids};

use super::gpu::{Centres, ClusterKernels, KMeans, Wanted};
use super::{ClusteringSizes, Known};
use crate::gpu::{Buffer, MemoryPlan, Reservation};
use crate::{Metric, Result};

/// Of each guide as many centres, by their numbers, and their squared norms.
pub(super) struct CentreLists<T: ClusterKernels> {
    pub centres: Buffer<u32>,
    pub norms: Buffer<T::Sum>,
}

impl<T: ClusterKernels> CentreLists<T> {
    /// Adds the lists of guides, and of centres as guides, to a plan.
    pub(super) fn plan(plan: MemoryPlan, sizes: &ClusteringSizes) -> MemoryPlan {
        let all = if sizes.guides > 0 { sizes.cells } else { 0 };
        let count = (sizes.guides * sizes.guide_list).max(all.max(sizes.known) * sizes.centre_list);
        plan.with::<u32>("lists of centres", count).with::<T::Sum>("norms of lists", count)
    }

    /// Takes what was planned.
    pub(super) fn new(memory: &Reservation) -> Result<Self> {
        Ok(Self { centres: memory.buffer("lists of centres")?, norms: memory.buffer("norms of lists")? })
    }
}

impl<T: ClusterKernels> KMeans<'_, T> {
    /// Puts the sample in the order of guides.
    pub(super) fn group_sample(&mut self, sample: usize, guides: &Centres<T>) -> Result<()> {
        let (vectors, ids) = (self.tiles.vectors, Some(self.sample.view()));
        let wanted = Wanted { vectors, ids, count: sample, probes: 1, by_number: false };
        self.assign(&wanted, guides)?;
        self.group(sample, guides.count)?;
        let grid = [sample.div_ceil(RENUMBER_THREADS as usize) as u32, 1, 1];
        let arguments = (self.order.view_mut(), self.sample.view(), sample as u32);
        // SAFETY: the order holds places in the sample; both outlive the work.
        unsafe { self.gpu.launch::<renumber_ids>(grid, RENUMBER_THREADS, arguments) }
    }

    /// Puts the first `count` vectors, whose nearest of `guides` guides was found, in the order of
    /// those.
    fn group(&mut self, count: usize, guides: usize) -> Result<()> {
        let order = self.order.view_mut();
        self.find_members(order, count, guides, 1)
    }

    /// Finds the nearest centres of vectors that are in the order of guides, among `length` centres
    /// near each.
    pub(super) fn assign_near(
        &mut self,
        wanted: &Wanted,
        centres: &Centres<T>,
        guides: &Centres<T>,
        length: usize,
    ) -> Result<()> {
        self.list(centres, guides, length)?;
        self.launch_assign(wanted, centres, length, Some(guides.count))
    }

    /// Finds the nearest centres of all vectors: first one by the lists of the guides, then those
    /// in its list.
    pub(super) fn assign_all(&mut self, centres: &Centres<T>, guides: Option<&Centres<T>>) -> Result<()> {
        let ClusteringSizes { n, probes, guide_list, centre_list, .. } = self.sizes;
        let vectors = self.tiles.vectors;
        let all = Wanted { vectors, ids: None, count: n, probes, by_number: false };
        let Some(guides) = guides else { return self.assign(&all, centres) };
        self.assign(&Wanted { probes: 1, ..all }, guides)?;
        let grouped = Wanted { ids: Some(self.order.view()), by_number: true, ..all };
        self.group(n, guides.count)?;
        self.assign_near(&Wanted { probes: 1, ..grouped }, centres, guides, guide_list)?;
        self.group(n, centres.count)?;
        self.assign_near(&grouped, centres, centres, centre_list)
    }

    /// Finds the nearest centres of all vectors among those that are near the centre of their known
    /// cell.
    pub(super) fn assign_known(&mut self, centres: &Centres<T>, known: &Known<'_, T>) -> Result<()> {
        let ClusteringSizes { n, probes, centre_list, .. } = self.sizes;
        let all = Wanted { vectors: self.tiles.vectors, ids: None, count: n, probes, by_number: false };
        self.starts.upload(known.starts)?;
        self.assign_near(&all, centres, known.centres, centre_list)
    }

    /// Lists the `length` nearest centres of each guide.
    fn list(&mut self, centres: &Centres<T>, guides: &Centres<T>, length: usize) -> Result<()> {
        let Some(lists) = &mut self.lists else { return Ok(()) };
        let (stride, units) = (self.tiles.stride, self.tiles.units());
        let tiles = |count: usize| (count as u32).div_ceil(tile::SIDE);
        // All distances of as many guides as there is room for: two in the place of a key.
        let room = 2 * self.sizes.keys() / centres.count;
        for first in (0..guides.count).step_by(room) {
            let here = room.min(guides.count - first);
            let pairs = Pairs::<T::Sum> {
                guides: guides.vectors.view().offset(first * stride as usize),
                centres: centres.vectors.view(),
                biases: centres.norms.view(),
                values: self.keys.view_mut().cast(),
                guide_count: here as u32,
                centre_count: centres.count as u32,
                units,
                weight: T::weight(Metric::L2),
            };
            let listing = device::CentreLists {
                values: self.keys.view().cast(),
                biases: centres.norms.view().cast(),
                lists: lists.centres.view_mut().offset(first * length),
                list_biases: lists.norms.view_mut().offset(first * length).cast(),
                centre_count: centres.count as u32,
                length: length as u32,
            };
            let grid = [tiles(centres.count), tiles(here), 1];
            // SAFETY: there is room for the distances of `here` guides, and for the lists of all;
            // everything outlives the work.
            unsafe {
                self.gpu.launch::<T::Pairs>(grid, tile::THREADS, (pairs,))?;
                self.gpu.launch::<cluster_lists>([here as u32, 1, 1], LIST_THREADS, (listing,))?;
            }
        }
        Ok(())
    }
}
