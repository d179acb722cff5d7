//! K-means and cells on a device: the kernel launches.

use cuda_std::launch::Kernel;
use cuda_std::memory::{Global, GlobalMut};
use tagore_device::block::tile;
use tagore_device::cluster::{
    Assign, ID_BITS, Keys, MEAN_THREADS, Means, MemberKeys, Members, Pairs, RANK_BITS, VALUE_THREADS,
    assign_blocks, cluster_assign_f16, cluster_assign_i8, cluster_assign_u8, cluster_ids, cluster_keys,
    cluster_lists, cluster_mean_f16, cluster_mean_i8, cluster_mean_u8, cluster_member_keys, cluster_members,
    cluster_nearest_f16, cluster_nearest_i8, cluster_nearest_u8, cluster_pairs_f16, cluster_pairs_i8,
    cluster_pairs_u8, cluster_sample,
};
use tagore_device::descent::renumber::{renumber_ids, renumber_values, renumber_vectors};

use super::ClusteringSizes;
use super::guides::CentreLists;
use super::sizes::Clustering;
use crate::gpu::sort::{self, SortRoom};
use crate::gpu::{Buffer, Gpu, MemoryPlan, Reservation};
use crate::vectors::gpu::{Order, Side, TileRows, TileVectors, stage_kernels};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels of clustering.
    pub(crate) trait ClusterKernels {
        Assign (Assign<Self::Sum>,):
            cluster_assign_f16 cluster_assign_f16 cluster_assign_u8 cluster_assign_i8;
        Nearest (Assign<Self::Sum>,):
            cluster_nearest_f16 cluster_nearest_f16 cluster_nearest_u8 cluster_nearest_i8;
        Pairs (Pairs<Self::Sum>,): cluster_pairs_f16 cluster_pairs_f16 cluster_pairs_u8 cluster_pairs_i8;
        Mean (Means<Self::Sum>,): cluster_mean_f16 cluster_mean_f16 cluster_mean_u8 cluster_mean_i8;
    }
}

/// The kernels of a clustering of `n` vectors.
pub(crate) fn kernels<T: ClusterKernels>(n: usize, request: Clustering) -> Vec<&'static str> {
    let mut kernels = vec![
        cluster_sample::NAME,
        T::Assign::NAME,
        T::Nearest::NAME,
        T::Mean::NAME,
        cluster_keys::NAME,
        cluster_ids::NAME,
        cluster_member_keys::NAME,
        cluster_members::NAME,
        renumber_vectors::NAME,
        renumber_values::NAME,
    ];
    kernels.extend(sort::KERNELS);
    if ClusteringSizes::new(n, request).has_lists() {
        kernels.extend([T::Pairs::NAME, cluster_lists::NAME, renumber_ids::NAME]);
    }
    kernels
}

/// Vectors are ordered by their three nearest centres.
const ORDER_RANKS: usize = 3;

/// Buffer names of centres: tile vectors, and their squared norms.
#[derive(Clone, Copy)]
pub(super) struct CentreNames {
    pub vectors: &'static str,
    pub norms: &'static str,
}

/// Centres, or guides: tile vectors, and their squared norms.
pub(crate) struct Centres<T: ClusterKernels> {
    pub vectors: Buffer<u8>,
    pub norms: Buffer<T::Sum>,
    pub count: usize,
}

impl<T: ClusterKernels> Centres<T> {
    /// Adds `count` centres, and their norms, to a plan.
    pub(super) fn plan(plan: MemoryPlan, names: CentreNames, count: usize, dim: usize) -> MemoryPlan {
        plan.with::<u8>(names.vectors, count * Side::<T>::tile_bytes(dim)).with::<T::Sum>(names.norms, count)
    }

    /// Takes the planned buffers.
    pub(super) fn new(memory: &Reservation, names: CentreNames, count: usize) -> Result<Self> {
        Ok(Self { vectors: memory.buffer(names.vectors)?, norms: memory.buffer(names.norms)?, count })
    }
}

/// Vectors of a sample, and its keys: none in round 0.
#[derive(Clone, Copy)]
struct SampleCounts {
    vectors: usize,
    keys: usize,
}

/// The vectors and buffers of a running clustering.
pub(super) struct KMeans<'a, T: ClusterKernels> {
    pub gpu: &'a Gpu,
    pub tiles: TileVectors,
    pub sizes: ClusteringSizes,
    dim: usize,
    seed: u64,
    pub sample: Buffer<u32>,
    pub nearest: Buffer<u32>,
    /// Offsets of each cell's members; before, of each guide's vectors.
    pub starts: Buffer<u32>,
    /// The order of all vectors; before, the vectors sorted by guide.
    pub order: Buffer<u32>,
    pub keys: Buffer<u64>,
    spare: Buffer<u64>,
    room: SortRoom,
    pub lists: Option<CentreLists<T>>,
}

/// Vectors to be assigned to their nearest centres.
pub(super) struct AssignQueries {
    pub vectors: Global<u8>,
    /// Ids of the queries among `vectors`; `count` vectors from number `first` on if none.
    pub ids: Option<Global<u32>>,
    pub first: usize,
    pub count: usize,
    /// Nearest centres to find per query.
    pub probes: usize,
    /// Whether results are stored by a query's id; else by its position in `ids`.
    pub by_number: bool,
}

/// A grid with one thread per value.
pub(super) fn threads(count: usize) -> [u32; 3] {
    [count.div_ceil(VALUE_THREADS as usize) as u32, 1, 1]
}

impl<'a, T: ClusterKernels> KMeans<'a, T> {
    pub(super) fn new(
        gpu: &'a Gpu,
        rows: TileRows,
        sizes: ClusteringSizes,
        seed: u64,
        memory: &Reservation,
    ) -> Result<Self> {
        let lists = if sizes.has_lists() { Some(CentreLists::new(memory)?) } else { None };
        Ok(Self {
            gpu,
            tiles: rows.tiles,
            sizes,
            dim: rows.dim,
            seed,
            sample: memory.buffer("sample")?,
            nearest: memory.buffer("nearest centres")?,
            starts: memory.buffer("starts")?,
            order: memory.buffer("order")?,
            keys: memory.buffer("keys")?,
            spare: memory.buffer("spare keys")?,
            room: SortRoom::new(memory)?,
            lists,
        })
    }

    /// Finds centres by k-means (Lloyd) on a sample. Compares each vector with all centres or,
    /// given guides, with the centres listed for its guide.
    pub(super) fn k_means(
        &mut self,
        centres: &mut Centres<T>,
        sample: usize,
        guides: Option<&Centres<T>>,
    ) -> Result<()> {
        let arguments = (self.sample.view_mut(), sample as u32, self.sizes.n as u32, self.seed);
        // SAFETY: the buffer holds the sample, and outlives the work.
        unsafe { self.gpu.launch::<cluster_sample>(threads(sample), VALUE_THREADS, arguments)? };
        if let Some(guides) = guides {
            self.group_sample(sample, guides)?;
        }
        let ids = if guides.is_some() { self.order.view() } else { self.sample.view() };
        self.means(centres, ids, SampleCounts { vectors: sample, keys: 0 }, 0)?;
        for round in 1..=self.sizes.rounds {
            let vectors = self.tiles.vectors;
            let queries = AssignQueries {
                vectors,
                ids: Some(ids),
                first: 0,
                count: sample,
                probes: 1,
                by_number: false,
            };
            match guides {
                Some(guides) => self.assign_near(&queries, centres, guides, self.sizes.guide_list)?,
                None => self.assign(&queries, centres)?,
            }
            self.keys(sample, 1, 0, true)?;
            self.sort(sample, ID_BITS, centres.count)?;
            self.means(centres, ids, SampleCounts { vectors: sample, keys: sample }, round)?;
        }
        Ok(())
    }

    /// Copies the centres to `to`, renumbered so that near centres have adjacent numbers. Sorts
    /// them by their three nearest among the first √`count` centres.
    pub(super) fn arrange(&mut self, centres: &Centres<T>, to: &mut Centres<T>) -> Result<()> {
        let count = centres.count;
        let first = (count as f64).sqrt() as usize;
        let probes = first.min(ORDER_RANKS);
        let vectors = centres.vectors.view();
        let queries = AssignQueries { vectors, ids: None, first: 0, count, probes, by_number: false };
        self.launch_assign(&queries, centres, first, None)?;
        self.sort_by_nearest(count, probes, first)?;
        let arguments = (self.keys.view(), self.sample.view_mut(), count as u32);
        // SAFETY: the keys hold every centre once, and the sample has room for them.
        unsafe { self.gpu.launch::<cluster_ids>(threads(count), VALUE_THREADS, arguments)? };
        let order = Order { gpu: self.gpu, vectors: self.sample.view(), count };
        let vectors = TileVectors { vectors: centres.vectors.view(), ..self.tiles };
        order.copy(vectors, to.vectors.view_mut())?;
        // Scratch: the inverse order is unused.
        let places = self.nearest.view_mut();
        order.copy_values(centres.norms.view().cast(), to.norms.view_mut().cast(), places)
    }

    /// Sorts the keys of `count` vectors by their nearest centres, `probes` of `centres` each.
    fn sort_by_nearest(&mut self, count: usize, probes: usize, centres: usize) -> Result<()> {
        // Least significant rank first: the sort is stable.
        let ranks = probes.min(ORDER_RANKS);
        for rank in (0..ranks).rev() {
            self.keys(count, probes, rank, rank + 1 == ranks)?;
            self.sort(count, ID_BITS, centres)?;
        }
        Ok(())
    }

    /// Finds the nearest of all centres for each query.
    pub(super) fn assign(&mut self, queries: &AssignQueries, centres: &Centres<T>) -> Result<()> {
        self.launch_assign(queries, centres, centres.count, None)
    }

    /// Finds the nearest of the first `compared` centres for each query. With `guides`, queries are
    /// sorted by guide and compared with the `compared` centres listed for their guide; `starts`
    /// holds the offsets of each guide's queries.
    pub(super) fn launch_assign(
        &mut self,
        queries: &AssignQueries,
        centres: &Centres<T>,
        compared: usize,
        guides: Option<usize>,
    ) -> Result<()> {
        let (stride, units) = (self.tiles.stride, self.tiles.units());
        let (count, guide_count) = (queries.count as u32, guides.unwrap_or(0) as u32);
        let lists = self.lists.as_ref().filter(|_| guides.is_some());
        let assign = Assign::<T::Sum> {
            vectors: queries.vectors.offset(queries.first * stride as usize),
            ids: queries.ids.unwrap_or(self.sample.view()),
            centres: centres.vectors.view(),
            lists: lists.map_or(self.sample.view(), |lists| lists.centres.view()),
            biases: lists.map_or(centres.norms.view(), |lists| lists.norms.view()),
            guide_starts: self.starts.view(),
            nearest: self.nearest.view_mut().offset(queries.first * queries.probes),
            listed: u32::from(queries.ids.is_some()),
            by_number: u32::from(queries.by_number),
            count,
            guide_count,
            centre_count: compared as u32,
            probes: queries.probes as u32,
            vector_stride: stride,
            centre_stride: stride,
            units,
            weight: T::weight(Metric::L2),
        };
        let blocks = [assign_blocks(count, guide_count), 1, 1];
        let (vectors, centres) = (queries.count as u64, centres.count as u64);
        let bytes = (vectors + centres) * (u64::from(stride) + 4);
        let operations = vectors * compared as u64 * 2 * self.dim as u64;
        // SAFETY: ids are vectors and lists hold centres; the buffers have the lengths of `sizes`
        // and outlive the work.
        unsafe {
            if queries.probes == 1 {
                self.gpu.launch::<T::Nearest>(blocks, tile::THREADS, (assign,))?;
                self.gpu.count_work(T::Nearest::NAME, bytes, operations);
            } else {
                self.gpu.launch::<T::Assign>(blocks, tile::THREADS, (assign,))?;
                self.gpu.count_work(T::Assign::NAME, bytes, operations);
            }
        }
        Ok(())
    }

    /// Moves the centres to the means of the sample, whose vectors are `ids` and whose keys are
    /// sorted. In round 0 there are no keys, and each centre is a vector of the sample.
    fn means(
        &mut self,
        centres: &mut Centres<T>,
        ids: Global<u32>,
        counts: SampleCounts,
        round: u32,
    ) -> Result<()> {
        let count = centres.count as u32;
        let means = Means::<T::Sum> {
            vectors: self.tiles.vectors,
            sample: ids,
            keys: self.keys.view(),
            centres: centres.vectors.view_mut(),
            biases: centres.norms.view_mut(),
            seed: self.seed,
            sample_count: counts.vectors as u32,
            key_count: counts.keys as u32,
            centre_count: count,
            stride: self.tiles.stride,
            round,
            padding: 0,
        };
        // SAFETY: as for `launch_assign`; keys hold positions in the sample.
        unsafe { self.gpu.launch::<T::Mean>([count, 1, 1], MEAN_THREADS, (means,)) }
    }

    /// Makes sort keys from the centre of rank `rank` of each of `count` vectors with `probes`
    /// centres each. Fresh keys are in the order of the vectors; others keep the order of the last
    /// sort.
    fn keys(&mut self, count: usize, probes: usize, rank: usize, fresh: bool) -> Result<()> {
        let keys = Keys {
            nearest: self.nearest.view(),
            keys: self.keys.view_mut(),
            count: count as u32,
            probes: probes as u32,
            rank: rank as u32,
            fresh: u32::from(fresh),
        };
        // SAFETY: as for `launch_assign`; unless fresh, the keys are of `count` vectors.
        unsafe { self.gpu.launch::<cluster_keys>(threads(count), VALUE_THREADS, (keys,)) }
    }

    /// Sorts keys by cell number, below `cells`, at the bits from `shift` up.
    pub(super) fn sort(&mut self, count: usize, shift: u32, cells: usize) -> Result<()> {
        let bits = shift..shift + usize::BITS - (cells - 1).leading_zeros();
        self.room.sort(self.gpu, &mut self.keys, &mut self.spare, count, bits)
    }

    /// Orders all vectors by their nearest centres.
    pub(super) fn order(&mut self) -> Result<()> {
        let ClusteringSizes { n, cells, probes, .. } = self.sizes;
        self.sort_by_nearest(n, probes, cells)?;
        let arguments = (self.keys.view(), self.order.view_mut(), n as u32);
        // SAFETY: as for `launch_assign`.
        unsafe { self.gpu.launch::<cluster_ids>(threads(n), VALUE_THREADS, arguments) }
    }

    /// Sorts all vectors into `members` by cell and rank, and finds the offset of each rank of each
    /// cell.
    pub(super) fn members(&mut self, members: &mut Buffer<u32>) -> Result<()> {
        let ClusteringSizes { n, cells, probes, .. } = self.sizes;
        self.find_members(members.view_mut(), n, cells, probes)
    }

    /// Sorts `count` vectors with `probes` of `cells` cells each into `members` by cell and rank,
    /// and finds the offset of each rank of each cell.
    pub(super) fn find_members(
        &mut self,
        members: GlobalMut<u32>,
        count: usize,
        cells: usize,
        probes: usize,
    ) -> Result<()> {
        let keys = MemberKeys {
            nearest: self.nearest.view(),
            keys: self.keys.view_mut(),
            count: count as u32,
            probes: probes as u32,
        };
        // SAFETY: as for `launch_assign`.
        unsafe { self.gpu.launch::<cluster_member_keys>(threads(count), VALUE_THREADS, (keys,))? };
        let count = count * probes;
        self.sort(count, ID_BITS + RANK_BITS, cells)?;
        let members = Members {
            keys: self.keys.view(),
            members,
            starts: self.starts.view_mut(),
            count: count as u32,
            cells: cells as u32,
            probes: probes as u32,
            padding: 0,
        };
        // SAFETY: as for `launch_assign`.
        unsafe { self.gpu.launch::<cluster_members>(threads(count), VALUE_THREADS, (members,)) }
    }
}
