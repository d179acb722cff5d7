//! Claims: hints of running tasks to other processes.
//!
//! A process writes a file for the task that it runs, and changes it every second. Others prefer
//! other tasks. A claim that has not changed for some seconds is that of a stopped process, and
//! counts no more: so a claim can be left behind. A task that runs twice does no harm.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::id::TaskId;
use super::store::{ObjectStore, unique};

/// Time between two changes of a claim.
const BEAT: Duration = Duration::from_secs(1);

/// A claim that has not changed for this time is that of a stopped process.
const STALE: Duration = Duration::from_secs(5);

/// The end of a claim's name.
pub(super) const CLAIM: &str = ".claim";

/// The claims of other processes that a process has seen.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<TaskId, (Vec<u8>, Instant)>);

impl Claims {
    /// Time after which a claim has lapsed unless its process has changed it.
    pub(super) const LAPSE: Duration = STALE.saturating_add(BEAT);

    /// The name of the file that claims a task.
    pub(super) fn name(store: &ObjectStore, task: TaskId) -> String {
        format!(".{}{CLAIM}", store.name(task))
    }

    /// Whether another process seems to run `task`.
    pub(super) fn is_taken(&mut self, store: &ObjectStore, task: TaskId) -> bool {
        let Ok(found) = fs::read(store.folder().join(Self::name(store, task))) else { return false };
        let (seen, since) = self.0.entry(task).or_insert_with(|| (found.clone(), Instant::now()));
        if *seen != found {
            (*seen, *since) = (found, Instant::now());
        }
        since.elapsed() < STALE
    }
}

/// A claim of this process, given up on drop.
pub(super) struct Claim {
    path: PathBuf,
    /// Dropped at the end.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Claim {
    /// Claims `task`. Failures do no harm.
    pub(super) fn take(store: &ObjectStore, task: TaskId) -> Self {
        let path = store.folder().join(Claims::name(store, task));
        let (owner, file) = (unique(), path.clone());
        let (running, ended) = channel::<()>();
        let write = move |beat: u32| {
            let _ = fs::write(&file, format!("{owner} {beat}"));
        };
        write(0);
        let beat = move || {
            let mut beats = 1..;
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                write(beats.next().unwrap_or(0));
            }
        };
        let thread = crate::parallel::new_thread().name("claim".to_owned()).spawn(beat).ok();
        Self { path, running: Some(running), thread }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.running = None;
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::TaskStage;
    use super::*;

    #[test]
    fn claims_of_stopped_processes_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let store = ObjectStore::new(folder.path(), 1);
        let task = TaskId::new(TaskStage::Build, 3);
        let mut claims = Claims::default();
        assert!(!claims.is_taken(&store, task));
        let claim = Claim::take(&store, task);
        assert!(claims.is_taken(&store, task));
        drop(claim);
        assert!(!claims.is_taken(&store, task));
        // A claim left behind: unchanged for longer than a claim lasts.
        fs::write(folder.path().join(Claims::name(&store, task)), "a b").unwrap();
        assert!(claims.is_taken(&store, task));
        claims.0.get_mut(&task).unwrap().1 -= STALE;
        assert!(!claims.is_taken(&store, task));
        fs::write(folder.path().join(Claims::name(&store, task)), "a c").unwrap();
        assert!(claims.is_taken(&store, task), "a changed claim counts again");
    }
}
