//! The plan of a build: device and host memory, disk bytes, and time.

use std::fmt;

use super::{Builder, Target};
use crate::descent::most_knn;
use crate::gpu::{MemoryPlan, PlannedStage};
use crate::{DataShape, ElementType, Remedy, Result, Start};

/// The memory, disk space and time of a build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildPlan {
    /// Neighbours per node of the k-NN graph.
    pub k: usize,
    /// The start of descent; never `Auto`.
    pub start: Start,
    /// Element type of the vectors on a GPU.
    pub element: ElementType,
    /// Device bytes of the CUDA context, once per process.
    pub context: u64,
    /// Device bytes of the driver's pool beyond the buffers.
    pub pool: u64,
    /// Stages on the device, in order; empty on the CPU.
    pub device: Vec<PlannedStage>,
    /// Host memory that the process holds throughout, shared by all its builds.
    pub process: MemoryPlan,
    /// Stages on the host, in order, with their buffers beyond `process`; without the data set.
    pub host: Vec<PlannedStage>,
    /// Files on the disk.
    pub disk: MemoryPlan,
    /// Estimated seconds of each stage, from rates measured on other machines and data.
    pub seconds: Vec<(&'static str, f64)>,
}

impl BuildPlan {
    /// The stage with the most device memory; none on the CPU.
    pub fn largest_on_device(&self) -> Option<&PlannedStage> {
        PlannedStage::largest(&self.device)
    }

    /// The stage with the most host memory.
    pub fn largest_on_host(&self) -> Option<&PlannedStage> {
        PlannedStage::largest(&self.host)
    }

    /// Peak bytes of buffers on the device, without context and pool.
    pub fn peak_device_bytes(&self) -> u64 {
        PlannedStage::peak(&self.device)
    }

    /// Peak host bytes of the stages, without `process`.
    pub fn peak_of_stages(&self) -> u64 {
        PlannedStage::peak(&self.host)
    }

    /// Peak host bytes, without the data set: the system can drop the pages of a mapped file.
    pub fn peak_host_bytes(&self) -> u64 {
        self.process.bytes().saturating_add(self.peak_of_stages())
    }

    /// Estimated seconds of all stages.
    pub fn total_seconds(&self) -> f64 {
        self.seconds.iter().map(|stage| stage.1).sum()
    }

    /// Peak device bytes of the process: buffers, the CUDA context and the driver's pool.
    pub fn device_bytes(&self) -> u64 {
        self.context.saturating_add(self.pool).saturating_add(self.peak_device_bytes())
    }

    /// Whether the build fits `device` bytes of device memory, CUDA context included, and `host`
    /// bytes of host memory.
    pub fn fits(&self, device: u64, host: u64) -> bool {
        self.device_bytes() <= device && self.peak_host_bytes() <= host
    }
}

impl fmt::Display for BuildPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let section = |f: &mut fmt::Formatter<'_>, name: &str, buffers: &MemoryPlan| {
            writeln!(f, "{name}")?;
            buffers.to_string().lines().try_for_each(|line| writeln!(f, "  {line}"))
        };
        for stage in &self.device {
            section(f, &format!("device: {}", stage.name), &stage.buffers)?;
        }
        for stage in &self.host {
            section(f, &format!("host: {}", stage.name), &stage.buffers)?;
        }
        section(f, "host: throughout", &self.process)?;
        section(f, "disk", &self.disk)?;
        write!(
            f,
            "peak {} bytes of device memory, {} of the context and {} of the driver's pool, {} of host memory",
            self.peak_device_bytes(),
            self.context,
            self.pool,
            self.peak_host_bytes()
        )
    }
}

impl Builder {
    /// The machine of this builder's device, for a plan of a build of `nodes` nodes: opens the
    /// device.
    ///
    /// # Errors
    /// If the device is missing.
    pub fn target(&self, nodes: usize) -> Result<Target> {
        Target::open(self.descent.device, nodes)
    }

    /// Plans a build of `data` on `target`. Opens no device and reads no data.
    ///
    /// # Errors
    /// As [`build`](Self::build), for parameters out of range.
    pub fn plan(&self, data: &DataShape, target: Target) -> Result<BuildPlan> {
        let k = self.with_knn(target.gpu.is_some(), data).check_for(data)?;
        target.check()?;
        Ok(self.plan_of(data, k, target))
    }

    /// Checks all parameters against `data`; returns the neighbours per node of the k-NN graph.
    pub(crate) fn check_for(&self, data: &DataShape) -> Result<usize> {
        self.strategy.check()?;
        let k = self.descent.check_for(data)?;
        self.strategy.check_list(k, data.rows)?;
        Ok(k)
    }

    /// As [`plan`](Self::plan), with checked parameters and `k` neighbours per node.
    pub(crate) fn plan_of(&self, data: &DataShape, k: usize, target: Target) -> BuildPlan {
        self.resolve(data, k, target).plan()
    }

    /// Changes that make a build of `data` fit `free` bytes of a GPU; `free` excludes the CUDA
    /// context. Empty if the build already fits.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn remedies(&self, data: &DataShape, target: Target, free: u64) -> Result<Vec<Remedy>> {
        let plan = self.plan(data, target)?;
        let fits = |plan: &BuildPlan| plan.pool.saturating_add(plan.peak_device_bytes()) <= free;
        let mut remedies = Vec::new();
        if !fits(&plan) {
            let memory = plan.context.saturating_add(free);
            remedies.push(Remedy::GpuMemory(memory));
            let most = most_knn(plan.k, |k| fits(&self.plan_of(data, k, target)));
            remedies.extend(most.map(Remedy::Knn));
            remedies.push(Remedy::Cpu);
        }
        Ok(remedies)
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage as Draw};

    use super::*;
    use crate::build::target::MAX_PLAN_THREADS;
    use crate::gpu::Overhead;
    use crate::{CellSettings, Descent, Error, Iterations, Metric, Strategy};

    const LARGEST: usize = u32::MAX as usize;
    const ROWS: [usize; 12] =
        [0, 1, 2, 33, 768, 4096, 4097, 1 << 20, 1 << 31, (1 << 31) + 1, LARGEST, usize::MAX];
    const ITERATIONS: [(u32, u32); 6] =
        [(0, 0), (1, 1), (1000, 1000), (0, 1001), (u32::MAX, 1), (u32::MAX, u32::MAX)];

    /// Draws the parameters of one case.
    struct Picks {
        draws: Draws,
        drawn: u64,
    }

    impl Picks {
        /// The value at `good` in seven of eight draws, else any value: otherwise few cases would
        /// be valid.
        fn pick<T: Clone>(&mut self, values: &[T], good: usize) -> T {
            self.drawn += 2;
            let any = self.draws.below(self.drawn, values.len() as u64) as usize;
            let is_good = self.draws.below(self.drawn + 1, 8) > 0;
            values[if is_good { good } else { any }].clone()
        }

        fn data(&mut self, case: usize) -> DataShape {
            use ElementType::{Bf16, F16, F32, I8, U8};
            let element = self.pick(&[F32, F16, Bf16, U8, I8], 0);
            DataShape {
                rows: self.pick(&ROWS, case % 11),
                dim: self.pick(&[0, 1, 24, 4096, 4097, LARGEST, usize::MAX], 2),
                element,
                bytes: case.is_multiple_of(3) && matches!(element, F32 | Bf16),
            }
        }

        fn strategy(&mut self, case: usize) -> Strategy {
            self.pick(&Strategy::all(), case % 7)
                .degree(self.pick(&[0, 1, 32, 512, 513, LARGEST, usize::MAX], 2))
                .candidates(self.pick(&[0, 1, 100, 8192, 8193, usize::MAX], 2))
        }

        fn descent(&mut self, case: usize) -> Descent {
            let settings = [None, Some(0), Some(1), Some(16), Some(32), Some(usize::MAX)];
            let starts = [Start::Auto, Start::Random, Start::Cells, Start::AllPairs];
            let cells = CellSettings {
                nodes_per_cell: self.pick(&settings, 4),
                probes: self.pick(&settings, 3),
                clusterings: self.pick(&settings, 2),
            };
            let (join, refine) = self.pick(&ITERATIONS, 1);
            let descent = Descent::new()
                .metric(self.pick(&[Metric::L2, Metric::Cosine, Metric::InnerProduct], 0))
                .start(self.pick(&starts, case % 3))
                .iterations(Iterations::Fixed(join, refine))
                .expand(self.pick(&[4, 0, 64, 65, usize::MAX], 0))
                .cells(cells);
            let knns = [None, Some(0), Some(1), Some(96), Some(1024), Some(1025), Some(usize::MAX)];
            match self.pick(&knns, 0) {
                Some(knn) => descent.knn(knn),
                None => descent,
            }
        }

        fn bytes(&mut self) -> u64 {
            self.pick(&[0, 1, 1 << 30, u64::MAX / 2, u64::MAX], 2)
        }

        fn target(&mut self, case: usize) -> Target {
            let overhead = Overhead { context: self.bytes(), driver: self.bytes(), staging: self.bytes() };
            Target {
                threads: self.pick(&[0, 1, 2, MAX_PLAN_THREADS, MAX_PLAN_THREADS + 1, usize::MAX], 2),
                gpu: case.is_multiple_of(2).then_some(overhead),
                free: None,
                shared: [0, 101_376, u32::MAX][case % 3],
                takes_ptx: case.is_multiple_of(5),
            }
        }
    }

    /// Parameters at and beyond the ends of their ranges give a plan or an error, never a panic.
    #[test]
    fn parameters_at_the_ends_of_their_ranges_give_a_plan_or_an_error() {
        let (mut plans, mut errors) = (0, 0);
        for case in 0..20_000 {
            let mut picks = Picks { draws: Draws::new(18, Draw::Test, 0, case as u64), drawn: 0 };
            let data = picks.data(case);
            let (strategy, descent) = (picks.strategy(case), picks.descent(case));
            let (target, free) = (picks.target(case), picks.bytes());

            let graph = descent.plan_for(&data);
            let builder = Builder::new(strategy).descent(descent);
            match builder.plan(&data, target) {
                Ok(plan) => {
                    plans += 1;
                    assert!((1..=1 << 31).contains(&data.rows) && (1..=4096).contains(&data.dim));
                    assert!(plan.peak_host_bytes() > 0 && plan.total_seconds().is_finite());
                    assert!(plan.fits(u64::MAX, u64::MAX) && plan.to_string().contains("peak"));
                    assert!(graph.unwrap().to_string().contains("peak"));
                    // Large parameters give more bytes, not fewer: none of the sums has wrapped.
                    let rows = 4 * (data.rows * builder.strategy.max_degree()) as u64;
                    assert!(plan.peak_host_bytes() >= rows && plan.disk.bytes() >= rows);
                    builder.remedies(&data, target, free).unwrap();
                }
                Err(error) => {
                    errors += 1;
                    assert!(matches!(error, Error::Argument { .. } | Error::Mismatch { .. }), "{error}");
                }
            }
        }
        assert!(plans > 2_000 && errors > 2_000, "{plans} {errors}");
    }
}
