//! Turns: threads hand over their work in order.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::parallel::locked;

/// A counter of turns that threads wait for.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The present turn; `None` after the last.
    next: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Turns {
    /// Starts with turn 0.
    pub(super) fn new() -> Self {
        Self { next: Mutex::new(Some(0)), changed: Condvar::new() }
    }

    /// Waits for `turn`, does `work`, and starts the next turn.
    ///
    /// Returns `None` if the turn will not come. If the work fails, no other turn comes.
    pub(super) fn take<R, E>(
        &self,
        turn: usize,
        work: impl FnOnce() -> Result<R, E>,
    ) -> Result<Option<R>, E> {
        let next = locked(&self.next);
        let waits = |next: &mut Option<usize>| next.is_some_and(|next| next != turn);
        let mut next = self.changed.wait_while(next, waits).unwrap_or_else(PoisonError::into_inner);
        if next.is_none() {
            return Ok(None);
        }
        let done = work();
        *next = done.is_ok().then_some(turn + 1);
        self.changed.notify_all();
        done.map(Some)
    }

    /// A guard that ends all turns when it is dropped. Other threads then do not wait for a thread
    /// that ended early, by an error or a panic.
    pub(super) fn stop(&self) -> Stop<'_> {
        Stop(self)
    }
}

/// Ends all turns when dropped.
pub(super) struct Stop<'a>(&'a Turns);

impl Stop<'_> {
    /// Drops the guard without ending the turns.
    pub(super) fn cancel(self) {
        std::mem::forget(self);
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        *locked(&self.0.next) = None;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order() {
        let (turns, found) = (Turns::new(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for turn in (0..8).rev() {
                let (turns, found) = (&turns, &found);
                scope.spawn(move || {
                    let push = || {
                        found.lock().unwrap().push(turn);
                        Ok::<_, ()>(turn)
                    };
                    assert_eq!(turns.take(turn, push), Ok(Some(turn)));
                });
            }
        });
        assert_eq!(*found.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn waiting_ends_with_the_turns() {
        let turns = Turns::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(2, || Ok::<_, ()>(())));
            assert_eq!(turns.take(0, || Err::<(), _>(7)), Err(7));
            assert_eq!(waiting.join().unwrap(), Ok(None));
        });
        let turns = Turns::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(1, || Ok::<_, ()>(())));
            turns.stop().cancel();
            drop(turns.stop());
            assert_eq!(waiting.join().unwrap(), Ok(None));
        });
    }
}
