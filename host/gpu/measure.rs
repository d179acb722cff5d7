//! Measurements of work on a device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::machine::Span;
use super::{Gpu, KernelTime};
use crate::Result;
use crate::parallel::locked;

/// Counters shared by the clones of a device.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Bytes of buffers, now and at most.
    now: AtomicU64,
    peak: AtomicU64,
    /// Work of the launches, by kernel.
    work: Mutex<Vec<Work>>,
    /// The planned buffers that were taken, each with its bytes at most.
    #[cfg(test)]
    pub(super) taken: Mutex<std::collections::BTreeMap<&'static str, u64>>,
}

/// Minimum work of the launches of a kernel.
#[derive(Clone, Debug)]
struct Work {
    kernel: &'static str,
    bytes: u64,
    operations: u64,
}

impl Counts {
    pub(super) fn add_buffer(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn subtract_buffer(&self, bytes: usize) {
        self.now.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_work(&self, kernel: &'static str, bytes: u64, operations: u64) {
        let mut work = locked(&self.work);
        match work.iter_mut().find(|work| work.kernel == kernel) {
            Some(work) => {
                work.bytes += bytes;
                work.operations += operations;
            }
            None => work.push(Work { kernel, bytes, operations }),
        }
    }

    /// Adds the counted work to `times`.
    pub(super) fn describe(&self, times: &mut [KernelTime]) {
        let work = locked(&self.work);
        for time in times {
            if let Some(work) = work.iter().find(|work| work.kernel == time.kernel) {
                (time.bytes, time.operations) = (work.bytes, work.operations);
            }
        }
    }
}

/// A running measurement. It includes all concurrent work on the device.
pub(crate) struct Measurement {
    gpu: Gpu,
    jit_seconds: f64,
    times: Vec<KernelTime>,
    watching: bool,
}

/// The kernels, times and memory of a piece of work.
#[derive(Debug, Default)]
pub(crate) struct KernelMeasurement {
    /// Seconds of compiling kernels.
    pub jit_seconds: f64,
    /// The launched kernels.
    pub kernels: Vec<KernelTime>,
    /// Peak bytes of buffers, including those allocated before.
    pub peak_bytes: u64,
    /// Seconds with at least one kernel running; 0 unless watched, and on the emulator.
    pub busy_seconds: f64,
}

impl Measurement {
    pub(super) fn start(gpu: &Gpu, watching: bool) -> Result<Self> {
        let counts = &gpu.counts;
        counts.peak.store(counts.now.load(Ordering::Relaxed), Ordering::Relaxed);
        gpu.machine.time_launches(true);
        let times = gpu.times().inspect_err(|_| gpu.machine.time_launches(false))?;
        if watching {
            gpu.machine.watch(true);
        }
        Ok(Self { gpu: gpu.clone(), jit_seconds: gpu.machine.jit_seconds(), times, watching })
    }

    /// Waits for all work and ends the measurement.
    pub(crate) fn end(self) -> Result<KernelMeasurement> {
        let mut kernels = self.gpu.times()?;
        for before in &self.times {
            if let Some(now) = kernels.iter_mut().find(|now| now.kernel == before.kernel) {
                now.launches -= before.launches;
                now.seconds -= before.seconds;
                now.bytes -= before.bytes;
                now.operations -= before.operations;
            }
        }
        kernels.retain(|kernel| kernel.launches > 0);
        let mut busy_seconds = 0.0;
        if self.watching {
            busy_seconds = covered(self.gpu.machine.spans());
            self.gpu.machine.watch(false);
        }
        Ok(KernelMeasurement {
            busy_seconds,
            jit_seconds: self.gpu.machine.jit_seconds() - self.jit_seconds,
            kernels,
            peak_bytes: self.gpu.counts.peak.load(Ordering::Relaxed),
        })
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        self.gpu.machine.time_launches(false);
    }
}

/// The total length of the union of `spans`.
fn covered(mut spans: Vec<Span>) -> f64 {
    spans.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut covered, mut end) = (0.0, f64::NEG_INFINITY);
    for (from, to) in spans {
        covered += (to - from.max(end)).max(0.0);
        end = end.max(to);
    }
    covered
}

#[cfg(test)]
mod tests {
    use cuda_std::launch::Kernel;
    use tagore_device::cluster::{VALUE_THREADS, cluster_sample};

    use super::super::Buffer;
    use super::*;

    #[test]
    fn work_is_measured_from_its_start_to_its_end() {
        let gpu = Gpu::emulated(0);
        let draw = |count: usize| {
            let mut ids: Buffer<u32> = gpu.buffer("ids", count).unwrap();
            let arguments = (ids.view_mut(), count as u32, count as u32, 1);
            // SAFETY: the buffer has room for `count` ids.
            unsafe { gpu.launch::<cluster_sample>([1, 1, 1], VALUE_THREADS, arguments) }.unwrap();
            gpu.count_work(cluster_sample::NAME, 4 * count as u64, 7);
        };
        draw(200);
        let measurement = gpu.measure().unwrap();
        draw(50);
        draw(30);
        let measured = measurement.end().unwrap();
        assert_eq!(measured.peak_bytes, 200);
        let [KernelTime { kernel: "cluster_sample", launches: 2, seconds, bytes: 320, operations: 14 }] =
            measured.kernels[..]
        else {
            panic!("{measured:?}");
        };
        assert!(seconds > 0.0 && seconds.is_finite());
        assert!(gpu.measure().unwrap().end().unwrap().kernels.is_empty());
    }

    #[test]
    fn overlapping_spans_count_once() {
        assert_eq!(covered(vec![]), 0.0);
        assert_eq!(covered(vec![(4.0, 5.0), (1.0, 3.0), (1.5, 2.0), (2.0, 3.5)]), 3.5);
    }
}
