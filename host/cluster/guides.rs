//! Lists of near centres, for clusterings with too many centres to compare each vector with all.
//!
//! First a vector's guide is the nearest of a few guides, and the guide's list names the centres
//! near it. The nearest of these is the vector's own centre for most vectors, and near it for the
//! others. Then that centre is the guide, and its list names the centres near it.

use std::ops::Range;

use tagore_device::block::tile;
use tagore_device::cluster::{self as device, LIST_THREADS, Pairs, cluster_lists};
use tagore_device::descent::renumber::{RENUMBER_THREADS, renumber_ids};

use super::gpu::{AssignQueries, Centres, ClusterKernels, KMeans};
use super::{ClusteringSizes, Known};
use crate::gpu::{Buffer, MemoryPlan, Reservation};
use crate::{Metric, Result};

/// The lists of all guides, of one length: numbers and squared norms of centres.
pub(super) struct CentreLists<T: ClusterKernels> {
    pub centres: Buffer<u32>,
    pub norms: Buffer<T::Sum>,
}

impl<T: ClusterKernels> CentreLists<T> {
    /// Adds the lists of guides, and of centres as guides, to a plan.
    pub(super) fn plan(plan: MemoryPlan, sizes: &ClusteringSizes) -> MemoryPlan {
        let count = sizes.list_entries();
        plan.with::<u32>("lists of centres", count).with::<T::Sum>("norms of lists", count)
    }

    /// Takes the planned buffers.
    pub(super) fn new(memory: &Reservation) -> Result<Self> {
        Ok(Self { centres: memory.buffer("lists of centres")?, norms: memory.buffer("norms of lists")? })
    }
}

impl<T: ClusterKernels> KMeans<'_, T> {
    /// Sorts the sample by guide.
    pub(super) fn group_sample(&mut self, sample: usize, guides: &Centres<T>) -> Result<()> {
        let (vectors, ids) = (self.tiles.vectors, Some(self.sample.view()));
        let queries = AssignQueries { vectors, ids, first: 0, count: sample, probes: 1, by_number: false };
        self.assign(&queries, guides)?;
        self.group(sample, guides.count)?;
        let grid = [sample.div_ceil(RENUMBER_THREADS as usize) as u32, 1, 1];
        let arguments = (self.order.view_mut(), self.sample.view(), sample as u32);
        // SAFETY: the order holds positions in the sample; both buffers outlive the work.
        unsafe { self.gpu.launch::<renumber_ids>(grid, RENUMBER_THREADS, arguments) }
    }

    /// Sorts the first `count` vectors by their nearest of `guides` guides, found before.
    fn group(&mut self, count: usize, guides: usize) -> Result<()> {
        let order = self.order.view_mut();
        self.find_members(order, count, guides, 1)
    }

    /// Finds the nearest centres of queries sorted by guide, among the `length` centres nearest to
    /// the guide.
    pub(super) fn assign_near(
        &mut self,
        queries: &AssignQueries,
        centres: &Centres<T>,
        guides: &Centres<T>,
        length: usize,
    ) -> Result<()> {
        self.list(centres, guides, 0..guides.count, length)?;
        self.launch_assign(queries, centres, length, Some(guides.count))
    }

    /// Finds the nearest centres of all vectors: first one in the list of the guide or among all,
    /// then `probes` in the list of that centre. Few centres are all compared at once.
    pub(super) fn assign_all(&mut self, centres: &Centres<T>, guides: Option<&Centres<T>>) -> Result<()> {
        let ClusteringSizes { n, probes, guide_list, centre_list, .. } = self.sizes;
        let vectors = self.tiles.vectors;
        let all = AssignQueries { vectors, ids: None, first: 0, count: n, probes, by_number: false };
        if !self.sizes.has_lists() {
            return self.assign(&all, centres);
        }
        let grouped = AssignQueries { ids: Some(self.order.view()), by_number: true, ..all };
        self.assign(&AssignQueries { probes: 1, ..all }, guides.unwrap_or(centres))?;
        if let Some(guides) = guides {
            self.group(n, guides.count)?;
            self.assign_near(&AssignQueries { probes: 1, ..grouped }, centres, guides, guide_list)?;
        }
        self.group(n, centres.count)?;
        self.assign_near(&grouped, centres, centres, centre_list)
    }

    /// Finds the nearest centres of all vectors, among the centres near the centre of their known
    /// cell.
    pub(super) fn assign_known(&mut self, centres: &Centres<T>, known: &Known<'_, T>) -> Result<()> {
        let ClusteringSizes { probes, centre_list, .. } = self.sizes;
        let &Known { centres: guides, starts, devices, parts } = known;
        let nodes = |cells: &Range<usize>| starts[cells.start] as usize..starts[cells.end] as usize;
        let nodes: Vec<Range<usize>> = parts.iter().map(nodes).collect();
        let (cells, Range { start: first, end }) = (devices.own(parts), devices.own(&nodes));
        if first < end {
            let starts: Vec<u32> =
                starts[cells.start..=cells.end].iter().map(|start| start - first as u32).collect();
            self.starts.upload(&starts)?;
            self.list(centres, guides, cells.clone(), centre_list)?;
            let (vectors, count) = (self.tiles.vectors, end - first);
            let own = AssignQueries { vectors, ids: None, first, count, probes, by_number: false };
            self.launch_assign(&own, centres, centre_list, Some(cells.len()))?;
        }
        devices.all_gather(&mut self.nearest, &nodes, probes)
    }

    /// Lists the `length` nearest centres of each guide of a `part`.
    fn list(
        &mut self,
        centres: &Centres<T>,
        guides: &Centres<T>,
        part: Range<usize>,
        length: usize,
    ) -> Result<()> {
        let Some(lists) = &mut self.lists else { return Ok(()) };
        let (stride, units) = (self.tiles.stride, self.tiles.units());
        let tiles = |count: usize| (count as u32).div_ceil(tile::SIDE);
        // The key buffer holds the distances of a group of guides at a time: two per key.
        let room = 2 * self.sizes.keys() / centres.count;
        for first in part.clone().step_by(room) {
            let count = room.min(part.end - first);
            let pairs = Pairs::<T::Sum> {
                guides: guides.vectors.view().offset(first * stride as usize),
                centres: centres.vectors.view(),
                biases: centres.norms.view(),
                values: self.keys.view_mut().cast(),
                guide_count: count as u32,
                centre_count: centres.count as u32,
                units,
                weight: T::weight(Metric::L2),
            };
            let listing = device::CentreLists {
                values: self.keys.view().cast(),
                biases: centres.norms.view().cast(),
                lists: lists.centres.view_mut().offset((first - part.start) * length),
                list_biases: lists.norms.view_mut().offset((first - part.start) * length).cast(),
                centre_count: centres.count as u32,
                length: length as u32,
            };
            let grid = [tiles(centres.count), tiles(count), 1];
            // SAFETY: the buffers have room for the distances of `count` guides and the lists of
            // all guides, and outlive the work.
            unsafe {
                self.gpu.launch::<T::Pairs>(grid, tile::THREADS, (pairs,))?;
                self.gpu.launch::<cluster_lists>([count as u32, 1, 1], LIST_THREADS, (listing,))?;
            }
        }
        Ok(())
    }
}
