//! Opens the device of a build, and compiles its kernels, while the data is read.

use cuda_std::launch::Kernel;
use tagore_device::vectors::copy::vectors_copy_words;

use super::{Builder, layers};
use crate::device::Preparation;
use crate::prune::gpu::kernels as prune_kernels;
use crate::search::breadth::Breadth;
use crate::search::exact::gpu::kernels as exact_kernels;
use crate::search::gpu::kernel as beam_kernel;
use crate::vectors::Repeated;
use crate::vectors::shape::{device_type, exact_type, own_type, with_device_type};
use crate::{DataShape, Device, Metric, Progress, Result, Vectors, quantize};

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

    /// The kernels of a build of this data, and of its report.
    pub(crate) fn kernels(&self, data: &DataShape) -> Vec<&'static str> {
        // Wrong parameters are an error of the build.
        let Ok(k) = self.descent.k_of(data.rows, "") else { return Vec::new() };
        if let Some(compression) = self.compression {
            let mut kernels = self.on_codes(k).sample(0).kernels(&Self::codes_of(compression, data));
            kernels.push(quantize::gpu::kernel(own_type(data, self.descent.metric), compression));
            return self.with_report_kernels(kernels, data);
        }
        let metric = self.descent.metric;
        let mut kernels = self.descent.kernels(data, k);
        let on_device = device_type(data, metric);
        with_device_type!(on_device, T => {
            kernels.extend(prune_kernels::<T>(&self.strategy, (metric, data.dim, k), self.baseline_kernels));
            if self.is_layered() && data.rows >= layers::MIN_NODES {
                kernels.push(beam_kernel::<T>(layers::BEAM));
            }
        });
        self.with_report_kernels(kernels, data)
    }

    /// These kernels of a build of this data, and those of its report, each once.
    fn with_report_kernels(&self, mut kernels: Vec<&'static str>, data: &DataShape) -> Vec<&'static str> {
        let metric = self.descent.metric;
        if self.sample > 0 {
            kernels.push(vectors_copy_words::NAME);
            let (exact, on_device) = (exact_type(data, metric), device_type(data, metric));
            with_device_type!(exact, T => kernels.extend(exact_kernels::<T>(data.dim)));
            with_device_type!(on_device, T => kernels.extend(BEAMS.map(|beam| beam_kernel::<T>(Breadth::kept(beam)))));
        }
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::vectors::ElementType;
    use crate::{Iterations, Start, Strategy, Synth};

    /// The names of the kernels that a build launches, and those that it names in advance.
    fn launched_and_named(builder: &Builder, base: &Vectors) -> [BTreeSet<&'static str>; 2] {
        let (_, stats) = builder.build_with_stats(base, None).unwrap();
        let launched = stats.descent.kernels.iter().chain(&stats.prune.kernels);
        let data = DataShape::guess(base);
        assert_eq!(data, DataShape::inspect(base, &Progress::silent()).unwrap());
        [launched.map(|time| time.kernel).collect(), builder.kernels(&data).into_iter().collect()]
    }

    #[test]
    fn builds_launch_the_kernels_that_they_name() {
        // No two rows are equal.
        let byte = |i: u32| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8;
        let base = |kind: usize, rows: u32| match kind {
            0 => Synth::new(rows as usize, 12, 3).unwrap().base(),
            1 => {
                let floats = Synth::new(rows as usize, 12, 3).unwrap().base();
                floats.cast(ElementType::F16, &Progress::silent()).unwrap().into_owned()
            }
            2 => Vectors::from_bits((0..rows * 8).map(byte).collect(), 64).unwrap(),
            3 => Vectors::from_u8((0..rows * 12).map(byte).collect(), 12).unwrap(),
            _ => Vectors::from_f32((0..rows * 12).map(|i| f32::from(byte(i))).collect(), 12).unwrap(),
        };
        // Fewer rows have no cells.
        let starts = [
            (Start::Cells, Iterations::Auto, 800),
            (Start::Random, Iterations::Fixed(1, 1), 300),
            (Start::AllPairs, Iterations::Auto, 300),
        ];
        let strategies = Strategy::all().into_iter().enumerate();
        for (number, strategy) in strategies {
            let (start, iterations, rows) = starts[number % starts.len()];
            let base = &base(number % 5, rows);
            let metric = if number == 4 { Metric::Cosine } else { Metric::L2 };
            let builder = Builder::new(strategy.degree(8)).knn(12).start(start).iterations(iterations);
            let builder = builder.metric(metric).layers(false).device(Device::Emulated);
            let [launched, named] = launched_and_named(&builder, base);
            let kind = builder.strategy().kind();
            // An exact search at the end of a descent depends on the values.
            let missing: Vec<_> =
                launched.difference(&named).filter(|name| !name.starts_with("exact_")).collect();
            assert!(missing.is_empty(), "{kind}, {start}: not named: {missing:?}");
            // Phase 2 is left out where cells leave it few neighbours.
            let may_idle = |name: &str| iterations == Iterations::Auto && name.starts_with("descent_");
            let idle: Vec<_> = named.difference(&launched).filter(|name| !may_idle(name)).collect();
            assert!(idle.is_empty(), "{kind}, {start}: named in vain: {idle:?}");
        }
    }

    #[test]
    fn wrong_parameters_name_no_kernels() {
        let base = Synth::new(50, 3, 0).unwrap().base();
        let builder = Builder::new(Strategy::cagra()).knn(50).device(Device::Emulated);
        assert!(builder.kernels(&DataShape::guess(&base)).is_empty());
        drop(builder.prepare(&base));
    }
}
