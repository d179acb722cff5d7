//! Claims: hints of running tasks to other processes.
//!
//! A process writes a file for the task that it runs, and changes it every second. Others prefer
//! other tasks. A claim that has not changed for some seconds is that of a stopped process, and
//! counts no more: so a claim can be left behind. A task that runs twice does no harm.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::id::TaskId;
use super::store::{ObjectStore, unique};
use crate::Result;
use crate::regular_file::{is_at, open_planted, read_at_most};

/// Time between two changes of a claim.
const BEAT: Duration = Duration::from_secs(1);

/// A claim that has not changed for this time is that of a stopped process.
const STALE: Duration = Duration::from_secs(5);

/// The end of a claim's name.
pub(super) const CLAIM: &str = ".claim";

/// Maximum bytes of a claim.
const MAX_BYTES: u64 = 256;

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
        // Whatever cannot be a claim, such as a pipe, claims nothing.
        let Ok(found) = read(&store.folder().join(Self::name(store, task))) else { return false };
        let (seen, since) = self.0.entry(task).or_insert_with(|| (found.clone(), Instant::now()));
        if *seen != found {
            (*seen, *since) = (found, Instant::now());
        }
        since.elapsed() < STALE
    }
}

/// Reads a claim.
fn read(path: &Path) -> Result<Vec<u8>> {
    read_at_most(&open_planted(path, false)?, path, MAX_BYTES)
}

/// A claim of this process, given up on drop.
pub(super) struct Claim {
    path: PathBuf,
    /// A new file, which nothing else names: it is written, whatever takes its name later.
    file: Option<Arc<File>>,
    /// Dropped at the end.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Claim {
    /// Claims `task`. Failures do no harm.
    pub(super) fn take(store: &ObjectStore, task: TaskId) -> Self {
        let path = store.folder().join(Claims::name(store, task));
        let (running, ended) = channel::<()>();
        let mut claim =
            Self { file: create(&path).ok().map(Arc::new), path, running: Some(running), thread: None };
        let Some(file) = claim.file.clone() else { return claim };
        let owner = unique();
        let write = move |beat: u32| {
            let mut file = &*file;
            // Always as long as before.
            let _ = file.rewind().and_then(|()| file.write_all(format!("{owner} {beat:10}").as_bytes()));
        };
        write(0);
        let beat = move || {
            let mut beats = 1..;
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                write(beats.next().unwrap_or(0));
            }
        };
        claim.thread = crate::parallel::new_thread().name("claim".to_owned()).spawn(beat).ok();
        claim
    }
}

/// A new file at `path`. A claim that was left behind, or a link, is removed.
fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    File::options().write(true).create_new(true).open(path)
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.running = None;
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
        // Another process may have claimed the task since.
        if self.file.as_ref().is_some_and(|file| is_at(file, &self.path).unwrap_or(false)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::TaskStage;
    use super::super::object::ObjectLimits;
    use super::*;

    #[test]
    fn claims_of_stopped_processes_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let store = ObjectStore::new(folder.path(), 1, ObjectLimits { pieces: 1, bytes: 1 });
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

    #[cfg(unix)]
    #[test]
    fn a_claim_is_written_to_a_file_of_its_own() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let store = ObjectStore::new(folder.path(), 1, ObjectLimits { pieces: 1, bytes: 1 });
        let task = TaskId::new(TaskStage::Build, 3);
        let name = Claims::name(&store, task);
        let mut claims = Claims::default();
        fs::write(path("victim"), "of someone else").unwrap();
        for planted in ["link", "hard link", "dangling link", "pipe", "large file"] {
            match planted {
                "link" => symlink("victim", path(&name)).unwrap(),
                "hard link" => fs::hard_link(path("victim"), path(&name)).unwrap(),
                "dangling link" => symlink("elsewhere", path(&name)).unwrap(),
                "pipe" => {
                    rustix::fs::mkfifoat(rustix::fs::CWD, path(&name), rustix::fs::Mode::RWXU).unwrap();
                }
                _ => File::create(path(&name)).unwrap().set_len(1 << 40).unwrap(),
            }
            assert_eq!(claims.is_taken(&store, task), planted == "hard link", "{planted}");
            let claim = Claim::take(&store, task);
            assert!(claims.is_taken(&store, task), "{planted}");
            drop(claim);
            assert_eq!(fs::read(path("victim")).unwrap(), b"of someone else", "{planted}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{planted}");
            claims = Claims::default();
        }
        // A claim that another process has taken over stays.
        let claim = Claim::take(&store, task);
        let other = Claim::take(&store, task);
        drop(claim);
        assert!(claims.is_taken(&store, task));
        drop(other);
    }
}
