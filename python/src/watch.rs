//! Long work: on another thread, while this one looks for signals and hands on progress and events.
//!
//! The calling thread alone takes Python's lock: it looks for signals every 50 ms, cancels the
//! `Progress`, and hands on updates and events. So threads of the library never wait for the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tagore::{Progress, THREAD_STACK, Update, check_room};

use crate::errors::{self, Names};
use crate::events;
use crate::process::process;

/// Time between two looks for signals.
const EVERY: Duration = Duration::from_millis(50);

/// How a call runs.
#[derive(Default)]
pub(crate) struct Call {
    /// Threads of the work; all cores unless given.
    pub threads: Option<usize>,
    /// Takes each update as stage, units done, units in total, and the share of the whole work.
    pub callback: Option<Py<PyAny>>,
    /// Names of the parameters in errors.
    pub names: Names,
}

/// Updates that wait, at most one per stage.
#[derive(Clone, Default)]
struct Updates(Arc<Mutex<Vec<Update>>>);

impl Updates {
    fn add(&self, update: Update) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.last_mut() {
            // Threads report in any order.
            Some(last) if last.stage == update.stage && last.total == update.total => {
                if update.fraction >= last.fraction {
                    *last = update;
                }
            }
            _ => waiting.push(update),
        }
    }

    fn take(&self) -> Vec<Update> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Call {
    /// Runs `work` without Python's lock. A signal whose handler raises cancels it, and so does a
    /// callback that raises.
    ///
    /// # Errors
    /// That of the handler or of the callback, else that of the work.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Progress) -> tagore::Result<T> + Send,
    ) -> PyResult<T> {
        events::collect(py)?;
        check_room(THREAD_STACK as u64).map_err(|error| errors::exception(py, error, &self.names))?;
        let updates = Updates::default();
        let progress = match &self.callback {
            Some(_) => {
                let updates = updates.clone();
                Progress::new(move |update| updates.add(update))
            }
            None => Progress::silent(),
        };
        let look = |py: Python<'_>| -> PyResult<()> {
            py.check_signals()?;
            self.hand_on(py, &updates)
        };
        let mut stopped: PyResult<()> = Ok(());
        let (threads, handle) = (self.threads, &progress);
        let done = py.detach(|| {
            thread::scope(|scope| {
                let (send, receive) = channel();
                let on_thread = move || {
                    let done = catch_unwind(AssertUnwindSafe(|| process().install(threads, || work(handle))));
                    // Its receiver waits below.
                    let _ = send.send(done);
                };
                let new = thread::Builder::new().name("tagore".to_owned()).stack_size(THREAD_STACK);
                new.spawn_scoped(scope, on_thread).ok()?;
                loop {
                    match receive.recv_timeout(EVERY) {
                        Ok(done) => return Some(done),
                        Err(RecvTimeoutError::Disconnected) => return None,
                        Err(RecvTimeoutError::Timeout) if stopped.is_ok() => {
                            stopped = Python::attach(look);
                            if stopped.is_err() {
                                handle.cancel();
                            }
                        }
                        Err(RecvTimeoutError::Timeout) => (),
                    }
                }
            })
        });
        stopped?;
        let result = match done {
            Some(Ok(result)) => result,
            Some(Err(panic)) => match tagore::changed_while_read() {
                Some(error) => Err(error),
                None => return Err(errors::of_panic(py, panic.as_ref())),
            },
            None => {
                let (found, expected) = ("no thread left", "a higher limit of processes (ulimit -u, pids)");
                return Err(errors::argument(py, "threads", found, expected));
            }
        };
        self.hand_on(py, &updates)?;
        result.map_err(|error| errors::exception(py, error, &self.names))
    }

    /// Hands on updates and events.
    fn hand_on(&self, py: Python<'_>, updates: &Updates) -> PyResult<()> {
        if let Some(callback) = &self.callback {
            for Update { stage, done, total, fraction } in updates.take() {
                callback.call1(py, (stage, done, total, fraction))?;
            }
        }
        events::hand_on(py)
    }
}
