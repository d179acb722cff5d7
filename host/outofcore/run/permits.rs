//! A counting semaphore.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::parallel::locked;

/// A counting semaphore.
#[derive(Debug)]
pub(super) struct Permits {
    left: Mutex<usize>,
    returned: Condvar,
}

/// A permit, returned when dropped.
pub(super) struct Permit<'a>(&'a Permits);

impl Permits {
    /// A semaphore with `count` permits.
    pub(super) fn new(count: usize) -> Self {
        Self { left: Mutex::new(count), returned: Condvar::new() }
    }

    /// Waits for a permit.
    pub(super) fn take(&self) -> Permit<'_> {
        let left = locked(&self.left);
        let mut left =
            self.returned.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *locked(&self.0.left) += 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn permits_limit_concurrent_threads() {
        let (permits, running, most) = (Permits::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _permit = permits.take();
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
    }
}
