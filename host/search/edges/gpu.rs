//! Codes of edges on a GPU, and searches on them.

use cuda_std::launch::Kernel;
use tagore_device::block::rows::Rows;
use tagore_device::search::beam::on_edges::{
    EDGE_THREADS, EdgeSearch, edge_search_64_f16, edge_search_64_f32, edge_search_64_i8, edge_search_64_u8,
    edge_search_128_f16, edge_search_128_f32, edge_search_128_i8, edge_search_128_u8, edge_search_256_f16,
    edge_search_256_f32, edge_search_256_i8, edge_search_256_u8, edge_search_512_f16, edge_search_512_f32,
    edge_search_512_i8, edge_search_512_u8, edge_table_slots,
};
use tagore_device::search::beam::search::BeamSearch;
use tagore_device::search::edges::code::{
    EdgeCoding, edge_code_f16, edge_code_f32, edge_code_i8, edge_code_u8,
};
use tagore_device::search::edges::query::{
    EdgeQueries, edge_query_f16, edge_query_f32, edge_query_i8, edge_query_u8,
};
use tagore_device::search::edges::{query_words, row_words};
use tagore_device::vectors::code::{CODE_THREADS, Rotation};

use super::EdgeCodes;
use crate::gpu::{Buffer, Gpu};
use crate::search::breadth::BeamCapacity;
use crate::search::gpu::EdgeRows;
use crate::vectors::gpu::{Base, metric_number, stage_kernels, stride};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels of codes of edges: of beams of up to 64 to 512 nodes, of graphs, and of queries.
    pub(crate) trait EdgeKernels {
        Search64 (EdgeSearch<Self>,):
            edge_search_64_f32 edge_search_64_f16 edge_search_64_u8 edge_search_64_i8;
        Search128 (EdgeSearch<Self>,):
            edge_search_128_f32 edge_search_128_f16 edge_search_128_u8 edge_search_128_i8;
        Search256 (EdgeSearch<Self>,):
            edge_search_256_f32 edge_search_256_f16 edge_search_256_u8 edge_search_256_i8;
        Search512 (EdgeSearch<Self>,):
            edge_search_512_f32 edge_search_512_f16 edge_search_512_u8 edge_search_512_i8;
        CodeGraph (EdgeCoding<Self>,): edge_code_f32 edge_code_f16 edge_code_u8 edge_code_i8;
        CodeQueries (EdgeQueries<Self>,): edge_query_f32 edge_query_f16 edge_query_u8 edge_query_i8;
    }
}

/// The kernel of searches that keep `kept` nodes.
fn kernel<T: EdgeKernels>(kept: usize) -> &'static str {
    match BeamCapacity::for_nodes(kept) {
        BeamCapacity::Nodes64 => T::Search64::NAME,
        BeamCapacity::Nodes128 => T::Search128::NAME,
        BeamCapacity::Nodes256 => T::Search256::NAME,
        BeamCapacity::Nodes512 => T::Search512::NAME,
    }
}

/// The kernels that code a graph and search it with beams that keep these numbers of nodes.
pub(in crate::search) fn kernels<T: EdgeKernels>(kept: &[usize]) -> Vec<&'static str> {
    let of_codes = [T::CodeGraph::NAME, T::CodeQueries::NAME];
    kept.iter().map(|&kept| kernel::<T>(kept)).chain(of_codes).collect()
}

/// The codes of a graph's edges on a device.
pub(in crate::search) struct EdgeCodesOnGpu {
    factors: Buffer<f32>,
    /// Components of a transform of the rotation.
    width: usize,
    center: Buffer<f32>,
    codes: Buffer<u32>,
    dim: usize,
    degree: usize,
}

impl EdgeCodesOnGpu {
    /// Codes the edges of `graph` between the rows of `base`.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(in crate::search) fn new<T: EdgeKernels>(
        gpu: &Gpu,
        codes: &EdgeCodes,
        base: &Base<T>,
        graph: EdgeRows<'_>,
        metric: Metric,
    ) -> Result<Self> {
        let (factors, width) = codes.rotation.transforms();
        let (dim, EdgeRows { ids, nodes, degree }) = (codes.center.len(), graph);
        let words = nodes * row_words(dim as u32, degree as u32) as usize;
        let mut there = Self {
            factors: gpu.buffer("factors", factors.len())?,
            width,
            center: gpu.buffer("center", dim)?,
            codes: gpu.buffer("codes of edges", words)?,
            dim,
            degree,
        };
        there.factors.upload(&factors)?;
        there.center.upload(&codes.center)?;
        there.codes.fill(0)?;
        let coding = EdgeCoding {
            base: base.rows(),
            ids: ids.view(),
            center: there.center.view(),
            rotation: there.rotation(),
            codes: there.codes.view_mut(),
            degree: degree as u32,
            metric: metric_number(metric),
        };
        // SAFETY: ids were checked to be rows of the base. The buffers have room for the codes of
        // these edges and outlive the work, which the first download waits for.
        unsafe { gpu.launch::<T::CodeGraph>([nodes as u32, 1, 1], CODE_THREADS, (coding,))? };
        Ok(there)
    }

    fn rotation(&self) -> Rotation {
        Rotation {
            factors: self.factors.view(),
            transforms: (self.factors.len() / self.width) as u32,
            width: self.width as u32,
        }
    }

    /// Words of a query's code.
    pub(in crate::search) fn query_words(&self) -> usize {
        query_words(self.dim as u32) as usize
    }

    /// Codes `count` queries, into `codes`.
    fn code_queries<T: EdgeKernels>(
        &self,
        gpu: &Gpu,
        queries: Rows<T>,
        count: u32,
        codes: &mut Buffer<u32>,
    ) -> Result<()> {
        let coding = EdgeQueries {
            queries,
            center: self.center.view(),
            rotation: self.rotation(),
            codes: codes.view_mut(),
        };
        // SAFETY: the buffers hold as many queries and codes, and outlive the work.
        unsafe { gpu.launch::<T::CodeQueries>([count, 1, 1], CODE_THREADS, (coding,)) }
    }

    /// Runs `search` for `count` queries on the codes of edges; `codes` has room for theirs.
    pub(in crate::search) fn search<T: EdgeKernels>(
        &self,
        gpu: &Gpu,
        mut search: BeamSearch<T>,
        count: u32,
        codes: &mut Buffer<u32>,
    ) -> Result<()> {
        self.code_queries(gpu, search.queries, count, codes)?;
        let kept = search.k.max(search.walk.stop.rank + 1);
        search.walk.slots = edge_table_slots(search.walk.beam);
        let capacity = BeamCapacity::for_nodes(search.walk.beam as usize);
        let search = EdgeSearch { search, codes: self.codes.view(), queries: codes.view(), kept, padding: 0 };
        let grid = [count, 1, 1];
        // SAFETY: ids and entries were checked to be rows of the base, and the codes are those of
        // the graph and of the queries. The batch has room for `count` queries. The download of the
        // results waits for the work, so all buffers outlive it.
        unsafe {
            match capacity {
                BeamCapacity::Nodes64 => gpu.launch::<T::Search64>(grid, EDGE_THREADS, (search,)),
                BeamCapacity::Nodes128 => gpu.launch::<T::Search128>(grid, EDGE_THREADS, (search,)),
                BeamCapacity::Nodes256 => gpu.launch::<T::Search256>(grid, EDGE_THREADS, (search,)),
                BeamCapacity::Nodes512 => gpu.launch::<T::Search512>(grid, EDGE_THREADS, (search,)),
            }
        }
    }

    /// Counts what searches that keep `kept` nodes have read, if they expanded `nodes`.
    pub(in crate::search) fn count_rows<T: EdgeKernels>(&self, gpu: &Gpu, kept: usize, nodes: u64) {
        let row = row_words(self.dim as u32, self.degree as u32) as usize + self.degree;
        let bytes = row * size_of::<u32>() + stride::<T>(self.dim) * size_of::<T>();
        gpu.count_work(kernel::<T>(kept), nodes * bytes as u64, 0);
    }
}
