//! The launches that make cells.

use tagore_device::block::tile;
use tagore_device::cluster::{
    Assign, ID_BITS, Keys, MEAN_THREADS, Means, MemberKeys, Members, RANK_BITS, VALUE_THREADS, cluster_ids,
    cluster_keys, cluster_member_keys, cluster_members, cluster_sample,
};

use tagore_device::descent::renumber::{RENUMBER_THREADS, Renumber, renumber_vectors};

use super::Sizes;
use crate::gpu::sort::{SortRoom, sort};
use crate::gpu::{Buffer, Gpu, Reservation};
use crate::vectors::gpu::{OnDevice, Side};
use crate::{Metric, Result};

/// Rounds of Lloyd's algorithm; more move the centres, but hardly the neighbours found.
const ROUNDS: u32 = 5;

/// Of so many of a vector's nearest centres is its place in the order.
const ORDER_RANKS: usize = 3;

/// What is worked with.
pub(super) struct Work<'a, T: OnDevice> {
    gpu: &'a Gpu,
    side: &'a Side<T>,
    sizes: Sizes,
    dim: usize,
    seed: u64,
    /// Tile vectors, and their squared norms.
    centres: Buffer<u8>,
    norms: Buffer<T::Sum>,
    spare_centres: Buffer<u8>,
    spare_norms: Buffer<T::Sum>,
    sample: Buffer<u32>,
    nearest: Buffer<u32>,
    pub(super) starts: Buffer<u32>,
    keys: Buffer<u64>,
    spare: Buffer<u64>,
    room: SortRoom,
}

/// A grid of a thread per value.
fn threads(count: usize) -> [u32; 3] {
    [count.div_ceil(VALUE_THREADS as usize) as u32, 1, 1]
}

impl<'a, T: OnDevice> Work<'a, T> {
    pub(super) fn new(
        gpu: &'a Gpu,
        side: &'a Side<T>,
        (sizes, dim): (Sizes, usize),
        seed: u64,
        memory: &Reservation,
    ) -> Result<Self> {
        Ok(Self {
            gpu,
            side,
            sizes,
            dim,
            seed,
            centres: memory.buffer("centres")?,
            norms: memory.buffer("centre norms")?,
            spare_centres: memory.buffer("spare centres")?,
            spare_norms: memory.buffer("spare centre norms")?,
            sample: memory.buffer("sample")?,
            nearest: memory.buffer("nearest centres")?,
            starts: memory.buffer("starts")?,
            keys: memory.buffer("keys")?,
            spare: memory.buffer("spare keys")?,
            room: SortRoom::new(memory)?,
        })
    }

    /// Finds the centres.
    pub(super) fn cluster(&mut self) -> Result<()> {
        let Sizes { n, sample, .. } = self.sizes;
        let arguments = (self.sample.view_mut(), sample as u32, n as u32, self.seed);
        // SAFETY: the buffer holds the sample, and outlives the work.
        unsafe { self.gpu.launch::<cluster_sample>(threads(sample), VALUE_THREADS, arguments)? };
        self.means(0, 0)?;
        for round in 1..=ROUNDS {
            self.assign(Some(sample))?;
            self.keys(sample, 1, 0, true)?;
            self.sort(sample, ID_BITS)?;
            self.means(sample, round)?;
        }
        self.arrange()
    }

    /// Numbers the centres so that those that are near each other follow one another: by the nearest of the first
    /// few, the second and the third nearest.
    fn arrange(&mut self) -> Result<()> {
        let Sizes { cells, .. } = self.sizes;
        let (stride, units) = self.side.tile_stride();
        let guides = (cells as f64).sqrt() as u32;
        let memberships = guides.min(ORDER_RANKS as u32);
        let assign = Assign::<T::Sum> {
            vectors: self.centres.view(),
            ids: self.sample.view(),
            centres: self.centres.view(),
            biases: self.norms.view(),
            nearest: self.nearest.view_mut(),
            listed: 0,
            count: cells as u32,
            centre_count: guides,
            memberships,
            vector_stride: stride,
            centre_stride: stride,
            units,
            weight: T::weight(Metric::L2),
        };
        let blocks = [(cells as u32).div_ceil(tile::SIDE), 1, 1];
        // SAFETY: the guides are centres; the buffers hold what the sizes say, and outlive the work.
        unsafe { self.gpu.launch::<T::Assign>(blocks, tile::THREADS, (assign,))? };
        self.sort_by_nearest(cells, memberships as usize)?;
        let arguments = (self.keys.view(), self.sample.view_mut(), cells as u32);
        let renumber = Renumber {
            from: self.centres.view().cast(),
            to: self.spare_centres.view_mut().cast(),
            biases: self.norms.view().cast(),
            biases_to: self.spare_norms.view_mut().cast(),
            order: self.sample.view(),
            // Nobody asks where they went.
            places: self.nearest.view_mut(),
            count: cells as u32,
            units,
        };
        let grid = [(cells as u32).div_ceil(RENUMBER_THREADS / 32), 1, 1];
        // SAFETY: as above; the order, in the memory of the sample, holds every centre once.
        unsafe {
            self.gpu.launch::<cluster_ids>(threads(cells), VALUE_THREADS, arguments)?;
            self.gpu.launch::<renumber_vectors>(grid, RENUMBER_THREADS, (renumber,))?;
        }
        std::mem::swap(&mut self.centres, &mut self.spare_centres);
        std::mem::swap(&mut self.norms, &mut self.spare_norms);
        Ok(())
    }

    /// Sorts keys of `count` vectors by their nearest centres, `memberships` each.
    fn sort_by_nearest(&mut self, count: usize, memberships: usize) -> Result<()> {
        // By the least important first, as the sort is stable.
        let ranks = memberships.min(ORDER_RANKS);
        for rank in (0..ranks).rev() {
            self.keys(count, memberships, rank, rank + 1 == ranks)?;
            self.sort(count, ID_BITS)?;
        }
        Ok(())
    }

    /// Finds the nearest centre of each of the `sample` vectors of the sample, or without it the nearest
    /// centres of all vectors.
    pub(super) fn assign(&mut self, sample: Option<usize>) -> Result<()> {
        let (stride, units) = self.side.tile_stride();
        let count = sample.unwrap_or(self.sizes.n) as u32;
        let assign = Assign::<T::Sum> {
            vectors: self.side.tile_vectors(),
            ids: self.sample.view(),
            centres: self.centres.view(),
            biases: self.norms.view(),
            nearest: self.nearest.view_mut(),
            listed: u32::from(sample.is_some()),
            count,
            centre_count: self.sizes.cells as u32,
            memberships: if sample.is_some() { 1 } else { self.sizes.memberships as u32 },
            vector_stride: stride,
            centre_stride: stride,
            units,
            weight: T::weight(Metric::L2),
        };
        let blocks = [count.div_ceil(tile::SIDE), 1, 1];
        // SAFETY: the sample holds rows; the buffers hold what the sizes say, and outlive the work.
        unsafe { self.gpu.launch::<T::Assign>(blocks, tile::THREADS, (assign,))? };
        let (vectors, centres) = (u64::from(count), self.sizes.cells as u64);
        let bytes = (vectors + centres) * (u64::from(stride) + 4);
        self.gpu.count_work::<T::Assign>(bytes, vectors * centres * 2 * self.dim as u64);
        Ok(())
    }

    /// Makes centres of the means of the `keys` sorted keys, in round `round`.
    fn means(&mut self, keys: usize, round: u32) -> Result<()> {
        let means = Means::<T::Sum> {
            vectors: self.side.tile_vectors(),
            sample: self.sample.view(),
            keys: self.keys.view(),
            centres: self.centres.view_mut(),
            biases: self.norms.view_mut(),
            seed: self.seed,
            sample_count: self.sizes.sample as u32,
            key_count: keys as u32,
            centre_count: self.sizes.cells as u32,
            stride: self.side.tile_stride().0,
            round,
            padding: 0,
        };
        // SAFETY: as for `assign`; keys are of places in the sample.
        unsafe { self.gpu.launch::<T::Mean>([self.sizes.cells as u32, 1, 1], MEAN_THREADS, (means,)) }
    }

    /// Makes keys of the centre of rank `rank` of `count` vectors that have `memberships` each.
    fn keys(&mut self, count: usize, memberships: usize, rank: usize, fresh: bool) -> Result<()> {
        let keys = Keys {
            nearest: self.nearest.view(),
            keys: self.keys.view_mut(),
            count: count as u32,
            memberships: memberships as u32,
            rank: rank as u32,
            fresh: u32::from(fresh),
        };
        // SAFETY: as for `assign`; unless fresh, the keys are of `count` vectors.
        unsafe { self.gpu.launch::<cluster_keys>(threads(count), VALUE_THREADS, (keys,)) }
    }

    /// Sorts keys by the cell, which is above `shift`.
    fn sort(&mut self, count: usize, shift: u32) -> Result<()> {
        let bits = shift..shift + self.sizes.cell_bits();
        sort(self.gpu, &mut self.keys, &mut self.spare, &mut self.room, count, bits)
    }

    /// Orders the vectors.
    pub(super) fn order(&mut self, order: &mut Buffer<u32>) -> Result<()> {
        let Sizes { n, memberships, .. } = self.sizes;
        self.sort_by_nearest(n, memberships)?;
        let arguments = (self.keys.view(), order.view_mut(), n as u32);
        // SAFETY: as for `assign`.
        unsafe { self.gpu.launch::<cluster_ids>(threads(n), VALUE_THREADS, arguments) }
    }

    /// Puts the members in order, and finds where each rank of each cell begins.
    pub(super) fn members(&mut self, members: &mut Buffer<u32>) -> Result<()> {
        let Sizes { n, cells, memberships, .. } = self.sizes;
        let keys = MemberKeys {
            nearest: self.nearest.view(),
            keys: self.keys.view_mut(),
            count: n as u32,
            memberships: memberships as u32,
        };
        let grid = [threads(n)[0], memberships as u32, 1];
        // SAFETY: as for `assign`.
        unsafe { self.gpu.launch::<cluster_member_keys>(grid, VALUE_THREADS, (keys,))? };
        let count = n * memberships;
        self.sort(count, ID_BITS + RANK_BITS)?;
        let members = Members {
            keys: self.keys.view(),
            members: members.view_mut(),
            starts: self.starts.view_mut(),
            count: count as u32,
            cells: cells as u32,
            memberships: memberships as u32,
            padding: 0,
        };
        // SAFETY: as for `assign`.
        unsafe { self.gpu.launch::<cluster_members>(threads(count), VALUE_THREADS, (members,)) }
    }
}
