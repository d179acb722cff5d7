//! GPUs that share work.

use super::{Gpu, KernelTime, Measurement};
use crate::parallel::Team;
use crate::progress::StageProgress;
use crate::{Error, Result};

/// One or more GPUs that share work.
#[derive(Debug)]
pub(crate) struct Gpus {
    gpus: Vec<Gpu>,
    /// The names, separated by commas.
    name: String,
    /// Threads for several GPUs.
    team: Option<Team>,
}

/// Times of work that GPUs shared.
#[derive(Debug, Default)]
pub(crate) struct SharedTimes {
    /// Seconds of compiling kernels, on the GPU that took longest.
    pub jit_seconds: f64,
    /// Peak bytes of buffers, on the GPU that has most.
    pub(crate) peak_bytes: u64,
    /// Time and work per kernel, summed over the GPUs.
    pub kernels: Vec<KernelTime>,
    /// Seconds of all kernels, on the GPU that took longest.
    pub kernel_seconds: f64,
}

impl Gpus {
    /// At least one GPU, each once.
    ///
    /// # Errors
    /// If the system refuses threads for several.
    pub(crate) fn new(gpus: Vec<Gpu>) -> Result<Self> {
        let (name, several) = (Gpu::names(&gpus).0, gpus.len() > 1);
        let team = several.then(|| Team::new(gpus.len())).transpose()?;
        Ok(Self { gpus, name, team })
    }

    /// One GPU.
    pub(crate) fn one(gpu: Gpu) -> Self {
        Self { name: gpu.name().to_owned(), gpus: vec![gpu], team: None }
    }

    /// The names, such as `cuda:0,cuda:1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The GPUs.
    pub(crate) fn all(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The first GPU.
    pub(crate) fn first(&self) -> &Gpu {
        &self.gpus[0]
    }

    /// Calls `work` for all `parts`, at most one per GPU, at the same time; for a single part on
    /// the calling thread.
    ///
    /// # Errors
    /// The first error that is not the end of cancelled work, or else that one.
    pub(crate) fn run<T: Send, R: Send>(
        &self,
        parts: Vec<T>,
        work: impl Fn(T) -> Result<R> + Send + Sync,
    ) -> Result<Vec<R>> {
        let found = match &self.team {
            Some(team) if parts.len() > 1 => team.run(parts, work)?,
            _ => parts.into_iter().map(work).collect(),
        };
        first_error(found)
    }

    /// [`run`](Self::run) for parts of a stage: an error of one stops the others.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn run_stage<T: Send, R: Send>(
        &self,
        stage: &StageProgress<'_>,
        parts: Vec<T>,
        work: impl Fn(T) -> Result<R> + Send + Sync,
    ) -> Result<Vec<R>> {
        self.run(parts, |part| work(part).inspect_err(|_| stage.stop()))
    }
}

/// All results, or the first error that is not the end of cancelled work, or else that one.
pub(super) fn first_error<R>(found: Vec<Result<R>>) -> Result<Vec<R>> {
    let (mut all, mut failed) = (Vec::with_capacity(found.len()), None);
    for result in found {
        match result {
            Ok(result) => all.push(result),
            Err(error) if matches!(failed, None | Some(Error::Cancelled)) => failed = Some(error),
            Err(_) => {}
        }
    }
    failed.map_or(Ok(all), Err)
}

impl SharedTimes {
    /// Starts measurements of all `gpus`, as [`Gpu::measure`].
    ///
    /// # Errors
    /// If a GPU fails.
    pub(crate) fn begin(gpus: &[Gpu]) -> Result<Vec<Measurement>> {
        gpus.iter().map(Gpu::measure).collect()
    }

    /// Ends the measurements of all GPUs.
    ///
    /// # Errors
    /// If a GPU fails.
    pub(crate) fn end(measurements: Vec<Measurement>) -> Result<Self> {
        let mut times = Self::default();
        for measurement in measurements {
            let measured = measurement.end()?;
            times.jit_seconds = times.jit_seconds.max(measured.jit_seconds);
            times.peak_bytes = times.peak_bytes.max(measured.peak_bytes);
            times.add(measured.kernels);
        }
        Ok(times)
    }

    /// Adds the kernel times of a GPU.
    pub(crate) fn add(&mut self, kernels: Vec<KernelTime>) {
        let seconds = kernels.iter().map(|time| time.seconds).sum();
        self.kernel_seconds = self.kernel_seconds.max(seconds);
        KernelTime::add_all(&mut self.kernels, kernels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    fn gpus(count: u64) -> Gpus {
        Gpus::new((0..count).map(Gpu::emulated).collect()).unwrap()
    }

    #[test]
    fn an_error_is_reported_once_and_stops_the_others() {
        let gpus = gpus(3);
        let progress = Progress::silent();
        for failing in 0..3 {
            let stage = progress.stage("work", 3);
            let work = |part: usize| {
                if part == failing {
                    return Err(gpus.all()[part].error("failed"));
                }
                // Ends by the error alone.
                loop {
                    stage.advance(0)?;
                    std::thread::yield_now();
                }
            };
            let error: Result<Vec<()>> = gpus.run_stage(&stage, vec![0, 1, 2], work);
            let error = error.unwrap_err();
            assert!(matches!(&error, Error::Device { problem, .. } if problem == "failed"), "{error}");
            assert!(!progress.is_cancelled());
        }
    }

    #[test]
    fn cancelled_work_stops_on_all() {
        let gpus = gpus(2);
        let progress = Progress::silent();
        let stage = progress.stage("work", 2);
        let work = |part: usize| {
            if part == 1 {
                progress.cancel();
            }
            loop {
                stage.advance(0)?;
                std::thread::yield_now();
            }
        };
        let ended: Result<Vec<()>> = gpus.run_stage(&stage, vec![0, 1], work);
        assert!(matches!(ended, Err(Error::Cancelled)));
    }

    #[test]
    fn times_are_summed_per_kernel() {
        let time =
            |kernel, seconds| KernelTime { kernel, launches: 1, seconds, bytes: 10, ..KernelTime::default() };
        let mut times = SharedTimes::default();
        times.add(vec![time("a", 1.0), time("b", 2.0)]);
        times.add(vec![time("b", 4.0)]);
        assert_eq!(times.kernel_seconds, 4.0);
        let twice = KernelTime { launches: 2, bytes: 20, ..time("b", 6.0) };
        assert_eq!(times.kernels, [time("a", 1.0), twice]);
    }
}
