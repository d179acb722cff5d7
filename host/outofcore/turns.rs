//! Threads that hand on their work in order.

use std::sync::{Condvar, Mutex, PoisonError};

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// None once nobody's turn will come any more.
    next: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Turns {
    /// Begins with turn 0.
    pub(super) fn new() -> Self {
        Self { next: Mutex::new(Some(0)), changed: Condvar::new() }
    }

    /// Waits for `turn`, and then passes it on once `work` is done. False if the turn will not come, or the work
    /// says so: then no other turn comes.
    pub(super) fn take(&self, turn: usize, work: impl FnOnce() -> bool) -> bool {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |next: &mut Option<usize>| next.is_some_and(|next| next != turn);
        let mut next = self.changed.wait_while(next, waits).unwrap_or_else(PoisonError::into_inner);
        let done = next.is_some() && work();
        *next = if done { Some(turn + 1) } else { None };
        self.changed.notify_all();
        done
    }

    /// Says that no other turn comes.
    pub(super) fn stop(&self) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_all();
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
                    assert!(turns.take(turn, || {
                        found.lock().unwrap().push(turn);
                        true
                    }));
                });
            }
        });
        assert_eq!(*found.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn nobody_waits_once_there_are_no_turns() {
        let turns = Turns::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(2, || true));
            assert!(!turns.take(0, || false));
            assert!(!waiting.join().unwrap());
        });
        let turns = Turns::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(1, || true));
            turns.stop();
            assert!(!waiting.join().unwrap());
        });
    }
}
