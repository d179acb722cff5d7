//! Threads that compile kernels beside the work that will launch them.
//!
//! The driver must not be unloaded under a running compilation. So the process, when it exits,
//! first waits for these threads; they stop after the kernel at hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};

use crate::parallel::{locked, new_thread};
use crate::platform;

/// Running threads, and a signal of each end.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Whether the process exits.
static STOP: AtomicBool = AtomicBool::new(false);

/// Counts a thread while it runs.
struct Counted;

impl Counted {
    fn new() -> Self {
        *locked(&RUNNING) += 1;
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *locked(&RUNNING) -= 1;
        ENDED.notify_all();
    }
}

/// Runs `work` on a thread of its own with this name; false if the system has no thread left.
pub(in crate::gpu) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    static AT_EXIT: Once = Once::new();
    // Handlers run in reverse: this one before those of the driver, which is open.
    AT_EXIT.call_once(|| platform::at_exit(wait));
    let counted = Counted::new();
    let work = move || {
        let _counted = counted;
        work();
    };
    new_thread().name(name.to_owned()).spawn(work).is_ok()
}

/// Whether the process exits, so that nothing new should begin.
pub(super) fn is_stopping() -> bool {
    STOP.load(Ordering::Relaxed)
}

extern "C" fn wait() {
    STOP.store(true, Ordering::Relaxed);
    let mut running = locked(&RUNNING);
    while *running > 0 {
        running = ENDED.wait(running).unwrap_or_else(PoisonError::into_inner);
    }
}
