//! The vectors on the device, in an order in which near ones are adjacent: that of their nearest
//! centres. Nodes are numbered in this order.

use cuda_std::launch::Kernel;
use tagore_device::descent::renumber::{RENUMBER_THREADS, renumber_ids, renumber_values, renumber_vectors};
use tagore_device::key::Key;

use super::{Build, DescentKernels, DescentShape, Nodes, Original};
use crate::Result;
use crate::cluster::{self, Cells};
use crate::gpu::{Buffer, MemoryPlan, Stages};
use crate::vectors::gpu::{
    OnDevice, Order, Origin, Pick, Preparation, ROWS, Role, Rounding, Side, TileVectors, spare_bytes,
};

impl DescentShape {
    /// Plans the copy of the vectors, the first clustering, and the order by it.
    pub(super) fn plan_order<T: DescentKernels>(&self, stages: &mut Stages) {
        let request = self.clustering(None);
        stages.hold(&self.upload::<T>());
        stages.add("prepare", &self.bits(), std::iter::once(T::PREPARATION).chain(self.bits_kernel()));
        let clusters = cluster::plan::<T>(MemoryPlan::new(), self.n, self.dim, request);
        let kept = [&cluster::KEPT[..], &["order"]].concat();
        stages.add_and_keep("cluster", &clusters, &kept, cluster::kernels::<T>(self.n, request));
        stages.hold(&self.renumber::<T>());
        let kernels = [renumber_vectors::NAME, renumber_values::NAME, renumber_ids::NAME];
        stages.add("order", &MemoryPlan::new(), kernels);
        // The values and their errors stay. Tile vectors are in the order of nodes by now.
        stages.free(&["rounded rows", "row biases"]);
        stages.free(&[if self.is_rounded::<T>() { "places" } else { "vectors" }]);
    }

    /// Buffers of the vectors.
    fn upload<T: OnDevice>(&self) -> MemoryPlan {
        let plan = Side::<T>::plan(MemoryPlan::new(), ROWS, self.n, self.dim, self.is_rounded::<T>());
        plan.with::<f32>("mean", self.dim)
    }

    /// Buffers of the renumbered nodes.
    fn renumber<T: OnDevice>(&self) -> MemoryPlan {
        let copy = self.n * Side::<T>::tile_bytes(self.dim);
        let moved = if self.is_rounded::<T>() {
            MemoryPlan::new().with::<u8>("vectors", copy)
        } else {
            self.reorder::<T>()
        };
        moved.with::<T::Sum>("biases", self.n).with::<u32>("places", self.n)
    }

    /// Buffer of vectors that change their order where they are.
    pub(super) fn reorder<T: OnDevice>(&self) -> MemoryPlan {
        MemoryPlan::new().with::<u8>("vectors", spare_bytes(self.n, Side::<T>::tile_bytes(self.dim)))
    }
}

impl Build<'_> {
    /// Copies the vectors to the device, and chooses their rounding.
    pub(super) fn upload<T: OnDevice>(
        &self,
        rows: &Origin<'_, T>,
    ) -> Result<(Side<T>, Rounding, Buffer<f32>)> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let memory = self.shape.upload::<T>().reserve(self.gpu)?;
        let is_rounded = self.shape.is_rounded::<T>();
        let mut side = Side::<T>::new(&memory, ROWS, dim, is_rounded)?;
        let rounding = if is_rounded {
            let sample = rows.sample(self.gpu, Rounding::places::<T>(n).map(|row| row as u32).collect())?;
            let sample = sample.rows();
            Rounding::choose(self.space.metric(), dim, &sample, &sample)
        } else {
            Rounding::none(dim)
        };
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(&rounding.mean)?;
        // Each device copies its part from the host, and the rest from the others.
        let (stride, parts) = (side.stride, self.devices.shares(n));
        let own = self.devices.own(&parts);
        rows.copy_at(self.gpu, Pick::Range(own.clone()), &mut side.values, own.start, stride)?;
        self.devices.all_gather(&mut side.values, &parts, stride)?;
        Ok((side, rounding, mean))
    }

    /// Computes biases, errors and what tiles read.
    pub(super) fn prepare<T: OnDevice>(
        &self,
        side: &mut Side<T>,
        rounding: &Rounding,
        mean: &Buffer<f32>,
    ) -> Result<()> {
        let task = Preparation {
            count: self.space.len(),
            dim: self.space.dim(),
            mean,
            scale: rounding.scale,
            metric: self.space.metric(),
            role: Role::Points,
        };
        T::prepare(self.gpu, side, &task)
    }

    /// Clusters the vectors and renumbers them in the order of their nearest centres.
    pub(super) fn renumber<T: DescentKernels>(
        &self,
        side: Side<T>,
    ) -> Result<(Original<T>, Nodes<T>, Cells<T>)> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let request = self.shape.clustering(None);
        let tiles = side.tiles();
        let mut cells = cluster::cells::<T>(self.gpu, tiles.rows(n, dim), request, self.seed, None)?;
        let order = cells.order.take().ok_or_else(|| self.gpu.error("cells have no order"))?;
        let memory = self.shape.renumber::<T>().reserve(self.gpu)?;
        let mut biases: Buffer<T::Sum> = memory.buffer("biases")?;
        let mut places: Buffer<u32> = memory.buffer("places")?;
        let to_nodes = Order { gpu: self.gpu, vectors: order.view(), count: n };
        to_nodes.copy_values(side.biases.view().cast(), biases.view_mut().cast(), places.view_mut())?;
        let members = n * cells.probes;
        let ids = (cells.members.view_mut(), places.view(), members as u32);
        let grid = [members.div_ceil(RENUMBER_THREADS as usize) as u32, 1, 1];
        // SAFETY: members are vectors; the memory outlives the work.
        unsafe { self.gpu.launch::<renumber_ids>(grid, RENUMBER_THREADS, ids)? };
        let mut vectors: Buffer<u8> = memory.buffer("vectors")?;
        let (original, rounded) = if self.shape.is_rounded::<T>() {
            to_nodes.copy(tiles, vectors.view_mut())?;
            // After this wait the memory of the rounded copy and of `places` serves larger buffers.
            self.gpu.synchronize()?;
            let (values, stride, errors) = side.into_original();
            (Original { values, stride, errors, places: None }, Some(vectors))
        } else {
            let (mut values, stride, errors) = side.into_original();
            to_nodes.apply(values.view_mut().cast(), tiles.stride as usize, &mut vectors)?;
            self.gpu.synchronize()?;
            (Original { values, stride, errors, places: Some(places) }, None)
        };
        self.count_renumbering(tiles.stride, if rounded.is_some() { 1 } else { 2 });
        let read = rounded.as_ref().map_or(original.values.view().cast(), Buffer::view);
        let tiles = TileVectors { vectors: read, ..tiles };
        let memory = self.shape.lists().reserve(self.gpu)?;
        let mut lists: Buffer<Key> = memory.buffer("lists")?;
        // Empty slots are all ones.
        lists.fill(0xff)?;
        Ok((original, Nodes { rounded, tiles, biases, order, lists }, cells))
    }

    /// Counts the work of copying vectors of `stride` bytes to their places, `copies` times.
    pub(super) fn count_renumbering(&self, stride: u32, copies: u64) {
        let bytes = self.nodes() * copies * 2 * u64::from(stride);
        self.gpu.count_work(renumber_vectors::NAME, bytes, 0);
    }
}
