//! The end of a descent: exact distances of all lists, and exact search for short or unreliable
//! lists.

use tagore_device::descent::cells::{
    Finish, cells_finish_f16, cells_finish_f32, cells_finish_i8, cells_finish_u8,
};
use tagore_device::search::exact::SETTLE_THREADS;

use super::{Build, DescentKernels, DescentShape, GpuLists, Nodes, Original};
use crate::Result;
use crate::descent::DescentStats;
use crate::gpu::Buffer;
use crate::search::exact::gpu::{QuerySet, add_zero_vectors};
use crate::vectors::gpu::{Base, Order, metric_number, stage_kernels};

stage_kernels! {
    /// Kernels of exact distances of lists.
    pub(crate) trait FinishKernels {
        Finish (Finish<Self>,): cells_finish_f32 cells_finish_f16 cells_finish_u8 cells_finish_i8;
    }
}

/// A list is reliable if its last distance is at least this multiple of the rounding error of its
/// node.
const MOST_ROUNDING: f32 = 16.0;

impl Build<'_> {
    /// Computes the exact distances of all lists, turns nodes into rows, and sorts the lists.
    pub(super) fn finish<T: DescentKernels>(
        &self,
        mut original: Original<T>,
        nodes: Nodes<T>,
        scale: f32,
        stats: &mut DescentStats,
    ) -> Result<(Base<T>, GpuLists)> {
        let (n, k, metric) = (self.space.len(), self.k, self.space.metric());
        if let Some(places) = original.places.take() {
            let memory = self.shape().reorder::<T>().reserve(self.gpu)?;
            let to_rows = Order { gpu: self.gpu, vectors: places.view(), count: n };
            let (values, stride) = (original.values.view_mut().cast(), nodes.tiles.stride);
            to_rows.apply(values, stride as usize, &mut memory.buffer("vectors")?)?;
            self.count_renumbering(stride, 2);
        }
        drop(nodes.rounded);
        // The memory of the rounded copy and of columns serves larger buffers.
        self.gpu.synchronize()?;
        let memory = self.shape().finish().reserve(self.gpu)?;
        let mut keys = memory.buffer("nearest")?;
        let mut lacking: Buffer<u32> = memory.buffer("lacking")?;
        let mut count: Buffer<u32> = memory.buffer("lacking count")?;
        count.fill(0)?;
        let finish = Finish::<T> {
            rows: original.values.view(),
            order: nodes.order.view(),
            lists: nodes.lists.view(),
            errors: original.errors.view(),
            nearest: keys.view_mut(),
            lacking: lacking.view_mut(),
            lacking_count: count.view_mut(),
            stride: original.stride as u32,
            dim: self.space.dim() as u32,
            k: k as u32,
            metric: metric_number(metric),
            least_per_error: MOST_ROUNDING / scale,
            padding: 0,
        };
        // SAFETY: lists hold nodes, the order rows; the memory outlives the work.
        unsafe { self.gpu.launch::<T::Finish>([n as u32, 1, 1], SETTLE_THREADS, (finish,))? };
        self.count_finish::<T>(original.stride);
        let mut length = [0];
        count.download(&mut length)?;
        let mut found = vec![0; length[0] as usize];
        lacking.download(&mut found)?;
        found.sort_unstable();
        let mut lists = GpuLists { keys, k, metric, order: nodes.order };
        let dim = self.space.dim();
        let narrowed = self.space.device_row_bytes() != dim * size_of::<T>();
        let room = DescentShape { narrowed, ..self.shape() }.room_to_complete::<T>();
        self.complete(&found, &mut lists, room)?;
        stats.completed = found.len() as u64;
        stats.distances += stats.completed * (n as u64 - 1);
        Ok((Base::new(self.gpu, self.space, original.values, original.stride)?, lists))
    }

    /// Searches exactly for the neighbours of the `lacking` rows, in `room` bytes of the device,
    /// and adds the zero vectors under cosine.
    fn complete(&self, lacking: &[u32], lists: &mut GpuLists, room: u64) -> Result<()> {
        let (space, k) = (self.space, self.k);
        let found = self.search(&QuerySet::of_nodes(space, lacking), Some(room))?;
        let exact = || lacking.iter().zip(found.chunks_exact(k));
        if space.zero().is_empty() {
            return exact().try_for_each(|(&row, list)| lists.keys.upload_at(row as usize * k, list));
        }
        let mut keys = lists.download()?;
        let all_rows: Vec<u32> = (0..space.len() as u32).collect();
        add_zero_vectors(space, &QuerySet::of_nodes(space, &all_rows), k, &mut keys);
        for (&row, list) in exact() {
            keys[row as usize * k..][..k].copy_from_slice(list);
        }
        lists.keys.upload(&keys)
    }
}
