//! Opens the device of a build, and compiles its kernels, while the data is read.

use cuda_std::launch::Kernel;
use tagore_device::vectors::copy::vectors_copy_words;

use super::{Builder, Target};
use crate::device::Preparation;
use crate::search::breadth::Breadth;
use crate::search::exact::gpu::kernels as exact_kernels;
use crate::search::gpu::kernel as beam_kernel;
use crate::vectors::Repeated;
use crate::vectors::shape::{device_type, exact_type, with_device_type};
use crate::{DataShape, Device, Metric, Progress, Result, Vectors};

/// Beams that reports search with.
const BEAMS: [usize; 2] = [50, 100];

impl Builder {
    /// Opens the devices of a build of `base` on threads of their own, and compiles the kernels
    /// that the build will launch, and those of a report if a [`sample`](Self::sample) is kept.
    /// Returns at once. The build then waits less, but is otherwise the same: it meets the
    /// errors of a device that cannot be opened. Values of a few rows are read.
    pub fn prepare(&self, base: &Vectors) -> Preparation {
        let (descent, nodes, dim) = (self.descent.clone(), base.len(), base.dim());
        if nodes == 0 || descent.device == Device::Cpu {
            return Preparation::none();
        }
        let data = DataShape::guess(base);
        let kernels = self.kernels(&data);
        let devices: Vec<Device> = self.all_devices().collect();
        Preparation::begin(&devices, kernels, move |device| descent.clone().device(device).gpu(nodes, dim))
    }

    /// Finds the rows of `base`, in host memory, that repeat others, if a build asks for them. The
    /// base remembers them, so the build does not read it for them again. For the time in which a
    /// device [is opened](Self::prepare); takes the memory on the host that the build would take
    /// later.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn find_repeated(&self, base: &Vectors, progress: &Progress) -> Result<()> {
        // Else the build looks at rows of its own: unit vectors, or some of all.
        let reads_base = self.descent.metric != Metric::Cosine && self.among.is_none();
        if self.dedupe && reads_base && base.lent().is_none() {
            Repeated::remember(base, progress)?;
        }
        Ok(())
    }

    /// The kernels of a build of this data, and of its report, each once.
    pub(crate) fn kernels(&self, data: &DataShape) -> Vec<&'static str> {
        // Wrong parameters are an error of the build.
        let Ok(k) = self.descent.k_of(data.rows, "") else { return Vec::new() };
        // No device is open that could tell its limits.
        let takes_ptx = !self.descent.device.is_emulated();
        let target = Target { shared: u32::MAX, takes_ptx, ..Target::cuda() };
        let mut kernels = self.resolve(data, k, target).kernels();
        let metric = self.descent.metric;
        if self.sample > 0 {
            kernels.push(vectors_copy_words::NAME);
            let (exact, on_device) = (exact_type(data, metric), device_type(data, metric));
            with_device_type!(exact, T => kernels.extend(exact_kernels::<T>(data.dim)));
            with_device_type!(on_device, T => kernels.extend(BEAMS.map(|beam| beam_kernel::<T>(Breadth::kept(beam), 1, false))));
        }
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::descent::CellSettings;
    use crate::gpu::{Gpu, KernelTime, PlannedStage};
    use crate::vectors::ElementType;
    use crate::vectors::gpu::bits_plan;
    use crate::{Descent, Iterations, Start, Strategy, Synth};

    const TYPES: usize = 6;

    /// Rows of 12 components, or of 128 bits, of one of the types; no two are equal.
    fn base(number: usize, rows: u32) -> Vectors {
        let byte = |i: u32| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8;
        let bytes = |width: u32| (0..rows * width).map(byte).collect::<Vec<u8>>();
        let floats = Synth::new(rows as usize, 12, 3).unwrap().base();
        match number {
            0 => floats,
            1 => floats.cast(ElementType::F16, &Progress::silent()).unwrap().into_owned(),
            2 => Vectors::from_bits(bytes(16), 128).unwrap(),
            3 => Vectors::from_u8(bytes(12), 12).unwrap(),
            4 => Vectors::from_i8(bytes(12).into_iter().map(|x| x as i8 / 2).collect(), 12).unwrap(),
            // Whole numbers, which a device takes as bytes.
            _ => Vectors::from_f32(bytes(12).into_iter().map(f32::from).collect(), 12).unwrap(),
        }
    }

    const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::InnerProduct];

    /// Floats under each metric, and each other type under one of them; another one for each
    /// `turn`.
    fn all_data(rows: u32, turn: usize) -> impl Iterator<Item = (Vectors, Metric)> {
        let floats = METRICS.map(|metric| (base(0, rows), metric)).into_iter();
        floats.chain((1..TYPES).map(move |number| {
            let (base, metric) = (base(number, rows), METRICS[(number + turn) % 3]);
            let has_metric = metric.check(base.element_type()).is_ok();
            (base, if has_metric { metric } else { Metric::L2 })
        }))
    }

    /// The largest planned bytes of each buffer of these stages.
    fn planned(stages: &[PlannedStage]) -> BTreeMap<&'static str, u64> {
        let mut planned = BTreeMap::new();
        for (name, bytes) in stages.iter().flat_map(|stage| stage.buffers.buffers()) {
            let most = planned.entry(name).or_default();
            *most = bytes.max(*most);
        }
        planned
    }

    /// Buffers whose sizes depend on the values: on the edges that a rule accepts, on zero vectors,
    /// and on lists that an exact search completes.
    const OF_VALUES: [&str; 5] = ["edges", "spare edges", "sort counts", "lifts", "exact search"];

    /// How the kernels and buffers of a piece of work on `gpu` differ from those of its `stages`;
    /// empty if they do not.
    fn differences(gpu: &Gpu, launched: &[KernelTime], stages: &[PlannedStage]) -> String {
        let launched: BTreeSet<_> = launched.iter().map(|time| time.kernel).collect();
        let named: BTreeSet<_> = stages.iter().flat_map(|stage| stage.kernels.iter().copied()).collect();
        let planned = planned(stages);
        let taken = gpu.taken();
        let differs = |name: &&&str| match (taken.get(**name), planned.get(**name)) {
            (taken, Some(planned)) if OF_VALUES.contains(name) => taken > Some(planned),
            (taken, planned) => taken != planned,
        };
        let names: BTreeSet<_> = taken.keys().chain(planned.keys()).filter(differs).collect();
        let buffers =
            names.iter().map(|name| format!("{name}: {:?} of {:?}", taken.get(**name), planned.get(**name)));
        let kernels = launched.symmetric_difference(&named).map(|name| (*name).to_owned());
        kernels.chain(buffers).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn descents_launch_and_take_what_they_plan() {
        let mut all = BTreeMap::new();
        let starts = [(Start::Cells, 768), (Start::Random, 130), (Start::AllPairs, 40)];
        for (turn, (start, rows)) in starts.into_iter().enumerate() {
            for (base, metric) in all_data(rows, turn) {
                let case = format!("{start} {metric} {}", base.element_type());
                let gpu = Gpu::emulated(1);
                let descent = Descent::new().knn(9).metric(metric).start(start).on(&gpu);
                let cells = CellSettings { probes: Some(3), clusterings: Some(2), ..CellSettings::default() };
                let descent = descent.iterations(Iterations::Fixed(1, 1)).cells(cells);
                let data = DataShape::inspect(&base, &Progress::silent()).unwrap();
                let graph = descent.build(&base).unwrap();
                let stages = descent.plan_for(&data).unwrap().stages;
                all.insert(case, differences(&gpu, &graph.stats().kernels, &stages));
            }
        }
        all.retain(|_, differences| !differences.is_empty());
        assert!(all.is_empty(), "{all:#?}");
    }

    #[test]
    fn prunings_launch_and_take_what_they_plan() {
        let mut all = BTreeMap::new();
        for (turn, strategy) in Strategy::all().into_iter().enumerate() {
            for (base, metric) in all_data(50, turn) {
                let graph = Descent::new().knn(12).metric(metric).device(Device::Cpu).build(&base).unwrap();
                let data = DataShape::inspect(&base, &Progress::silent()).unwrap();
                let strategy = strategy.clone();
                let case = format!("{} {metric} {}", strategy.kind(), base.element_type());
                let gpu = Gpu::emulated(1);
                let descent = Descent::new().metric(metric).on(&gpu);
                let builder = Builder::new(strategy.degree(8).candidates(24)).descent(descent).layers(false);
                let shape = builder.pruning(data.rows, data.dim, 12);
                let mut stages = with_device_type!(device_type(&data, metric), T => shape.stages::<T>());
                let (_, stats) = builder.build_with_stats(&base, Some(&graph)).unwrap();
                if base.element_type() == ElementType::B1 {
                    // The bits of the base come to the device before.
                    stages.push(PlannedStage::on_host("bits", bits_plan(data.rows, data.dim)));
                }
                all.insert(case, differences(&gpu, &stats.prune.kernels, &stages));
            }
        }
        all.retain(|_, differences| !differences.is_empty());
        assert!(all.is_empty(), "{all:#?}");
    }

    #[test]
    fn wrong_parameters_name_no_kernels() {
        let base = Synth::new(50, 3, 0).unwrap().base();
        let builder = Builder::new(Strategy::cagra()).knn(50).device(Device::Emulated);
        assert!(builder.kernels(&DataShape::guess(&base)).is_empty());
        drop(builder.prepare(&base));
    }
}
