//! Reading a mapped file into the memory of the system before its pages are needed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::parallel::new_thread;

/// Threads that read: several requests keep a disk busy.
const THREADS: usize = 4;

/// Bytes of a request.
const PIECE: u64 = 2 << 20;

/// Threads that read a file from its begin to its end. They stop when this is dropped.
///
/// Advice on a map ([`prefetch`](crate::vectors::advice::prefetch)) reads no more at a time than
/// the system likes, often 128 KiB, and the advice of one thread replaces that of another. Reads of
/// the file do neither.
#[derive(Debug)]
pub(in crate::vectors) struct ReadAhead {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts to read the file at `path`. Results do not depend on it, so errors end it in silence.
    pub(in crate::vectors) fn begin(path: &Path) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = |_| {
            let (path, stop, next) = (PathBuf::from(path), Arc::clone(&stop), Arc::clone(&next));
            new_thread().name("read ahead".to_owned()).spawn(move || read(&path, &next, &stop)).ok()
        };
        let threads = (0..THREADS).map_while(thread).collect();
        Self { stop, threads }
    }

    /// Waits for the end of the file.
    #[cfg(test)]
    fn wait(&mut self) {
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of a thread has been printed.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Reads piece after piece of the file, and forgets them: the system keeps the pages.
fn read(path: &Path, next: &AtomicU64, stop: &AtomicBool) {
    let Ok(mut file) = File::open(path) else { return };
    let mut content = Vec::with_capacity(PIECE as usize);
    while !stop.load(Ordering::Relaxed) {
        let begin = next.fetch_add(PIECE, Ordering::Relaxed);
        content.clear();
        let read = file.seek(SeekFrom::Start(begin));
        if !read.and_then(|_| (&mut file).take(PIECE).read_to_end(&mut content)).is_ok_and(|bytes| bytes > 0)
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ends_with_the_file_or_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, vec![1; 3 * PIECE as usize + 1]).unwrap();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        read(&path, &next, &stop);
        assert_eq!(next.into_inner(), 5 * PIECE, "four pieces, and one past the end");
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(true));
        read(&path, &next, &stop);
        assert_eq!(next.into_inner(), 0);
        ReadAhead::begin(&path).wait();
        drop(ReadAhead::begin(&folder.path().join("absent")));
    }
}
