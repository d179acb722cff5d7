//! Periodic syncing of a file while it is written.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::parallel::{locked, new_thread};

/// Bytes written between two syncs.
const EVERY: u64 = 64 << 20;

/// Syncs a file now and then on its own thread. Otherwise dirty pages pile up, until the kernel
/// blocks the next writer for all of them.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    written: u64,
    running: Option<JoinHandle<io::Result<()>>>,
}

impl Flush {
    /// Reports `bytes` more bytes written to `file`.
    ///
    /// # Errors
    /// If an earlier sync failed.
    pub(crate) fn wrote(&mut self, bytes: usize, file: &File) -> io::Result<()> {
        self.written += bytes as u64;
        if self.written < EVERY || self.running.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.wait()?;
        self.begin(file)
    }

    /// Starts to sync all that was written to `file`. A thread waits for the running sync first,
    /// and takes over its error.
    ///
    /// # Errors
    /// If the file has no room for another handle, or no thread is available and the sync fails.
    pub(crate) fn begin(&mut self, file: &File) -> io::Result<()> {
        self.written = 0;
        let clone = file.try_clone()?;
        let before = Self { running: self.running.take(), ..Self::default() };
        let before = Arc::new(Mutex::new(before));
        let wait = |before: &Mutex<Self>| locked(before).wait();
        let of_thread = Arc::clone(&before);
        match new_thread().spawn(move || wait(&of_thread).and_then(|()| clone.sync_data())) {
            Ok(thread) => self.running = Some(thread),
            // No thread available, so the caller syncs.
            Err(_) => wait(&before).and_then(|()| file.sync_data())?,
        }
        Ok(())
    }

    /// Waits for the running sync. Reports its error once.
    ///
    /// # Errors
    /// As [`wrote`](Self::wrote).
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.running.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_error_is_reported_once_by_the_next_write() {
        let mut file = tempfile::tempfile().unwrap();
        let mut flush = Flush::default();
        file.write_all(b"some").unwrap();
        flush.wrote(4, &file).unwrap();
        assert!(flush.running.is_none());
        flush.wrote(EVERY as usize, &file).unwrap();
        assert!(flush.running.is_some());
        flush.wait().unwrap();
        flush.running = Some(std::thread::spawn(|| Err(io::ErrorKind::StorageFull.into())));
        while !flush.running.as_ref().unwrap().is_finished() {}
        assert_eq!(flush.wrote(EVERY as usize, &file).unwrap_err().kind(), io::ErrorKind::StorageFull);
        flush.wait().unwrap();
        // A sync that begins after a failed one has its error.
        flush.running = Some(std::thread::spawn(|| Err(io::ErrorKind::StorageFull.into())));
        flush.begin(&file).unwrap();
        assert_eq!(flush.wait().unwrap_err().kind(), io::ErrorKind::StorageFull);
        flush.wait().unwrap();
    }
}
