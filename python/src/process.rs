//! Threads and other state of this process, which a forked child makes anew: a fork copies the
//! memory of threads and locks, not the threads.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use pyo3::prelude::*;
use rayon::ThreadPool;
use tagore::{Device, Error, thread_pool};

use crate::events::Event;

/// State of one process.
#[derive(Default)]
pub(crate) struct Process {
    pool: OnceLock<ThreadPool>,
    /// Events that wait for a thread with Python's lock.
    pub events: Mutex<Vec<Event>>,
    /// Whether a GPU has been used, here or in the process that this one was forked from.
    used_gpu: AtomicBool,
    lost_gpu: bool,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The state of this process.
pub(crate) fn process() -> &'static Process {
    let known = PROCESS.load(Ordering::Acquire);
    let known = if known.is_null() {
        let new = Box::into_raw(Box::<Process>::default());
        match PROCESS.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: `new` came from a box above, and no one else has seen it.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        }
    } else {
        known
    };
    // SAFETY: the pointer came from a box that is never freed.
    unsafe { &*known }
}

/// Begins the state of a forked child. The parent's is leaked: threads that the child lacks may
/// hold its locks.
#[pyfunction]
pub(crate) fn forked() {
    let lost_gpu = process().used_gpu.load(Ordering::Relaxed) || process().lost_gpu;
    let new = Process { lost_gpu, ..Process::default() };
    PROCESS.store(Box::into_raw(Box::new(new)), Ordering::Release);
}

impl Process {
    /// Runs `work` on a pool of `threads` threads, or on that of all cores. If the system refuses
    /// the threads, the next call tries again.
    pub(crate) fn install<T: Send>(
        &self,
        threads: Option<usize>,
        work: impl FnOnce() -> tagore::Result<T> + Send,
    ) -> tagore::Result<T> {
        if threads.is_some() {
            return thread_pool(threads)?.install(work);
        }
        let pool = match self.pool.get() {
            Some(pool) => pool,
            None => {
                let pool = thread_pool(None)?;
                self.pool.get_or_init(|| pool)
            }
        };
        pool.install(work)
    }

    /// `device`, unless it is a GPU that a fork has lost.
    ///
    /// # Errors
    /// If a GPU was asked for by name.
    pub(crate) fn device(&self, device: Device) -> tagore::Result<Device> {
        match device {
            Device::Auto if self.lost_gpu => Ok(Device::Cpu),
            Device::Cuda(_) if self.lost_gpu => Err(Error::Argument {
                parameter: "device",
                found: format!("{device} in a forked process, whose parent has used a GPU"),
                expected: "cpu, or a process of multiprocessing.get_context(\"spawn\")".to_owned(),
            }),
            device => Ok(device),
        }
    }

    /// Notes the device that work ran on.
    pub(crate) fn ran_on(&self, device: &str) {
        if device.starts_with("cuda") {
            self.used_gpu.store(true, Ordering::Relaxed);
        }
    }
}
