//! Rates of a disk: sequential writing and reading of files, to compare builds with.

use std::fs::File;
use std::io::{Read, Result, Seek, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::output::{Output, sized};

/// Bytes of a read or write.
const BLOCK: usize = 4 << 20;

/// Rates in bytes per second.
pub(super) struct Disk {
    /// Bytes of a file.
    bytes: u64,
    write: f64,
    read: f64,
    /// Writing a file beside reading another, both together.
    both: f64,
}

impl Disk {
    /// Writes a nameless file of `bytes` bytes to `folder` and waits until it is on the disk; reads
    /// it from the disk; and reads it again while another is written.
    pub(super) fn measure(folder: &Path, bytes: u64) -> Result<Self> {
        let mut first = tempfile::tempfile_in(folder)?;
        let mut second = tempfile::tempfile_in(folder)?;
        let write = seconds(|| fill(&mut first, bytes))?;
        forget(&first)?;
        let read = seconds(|| drain(&mut first))?;
        forget(&first)?;
        let both = seconds(|| {
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| fill(&mut second, bytes));
                drain(&mut first)?;
                writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let rate = |seconds: f64| bytes as f64 / seconds;
        Ok(Self { bytes, write: rate(write), read: rate(read), both: 2.0 * rate(both) })
    }

    pub(super) fn say(&self, output: &Output) {
        let Self { bytes, write, read, both } = self;
        let [write, read, both] = [write, read, both].map(|rate| format!("{:.2} GB/s", rate / 1e9));
        output.result(format_args!(
            "    the disk, {} one after another: writing {write}, reading {read}, both at once {both}",
            sized(*bytes)
        ));
    }

    pub(super) fn event(&self) -> Value {
        json!({ "bytes": self.bytes, "write": self.write, "read": self.read, "both": self.both })
    }
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

/// Writes `bytes` bytes and waits for the disk.
fn fill(file: &mut File, bytes: u64) -> Result<()> {
    // Other bytes in each block: no file system stores them as one.
    let mut block: Vec<u8> = (0..BLOCK as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        block[..8].copy_from_slice(&left.to_le_bytes());
        let size = left.min(BLOCK as u64);
        file.write_all(&block[..size as usize])?;
        left -= size;
    }
    file.sync_all()
}

/// Reads a file from its beginning.
fn drain(file: &mut File) -> Result<()> {
    file.rewind()?;
    let mut block = vec![0; BLOCK];
    while file.read(&mut block)? > 0 {}
    Ok(())
}

/// Drops the pages of a file from memory, so that the next reading is from the disk. Elsewhere than
/// on Linux they may stay.
fn forget(file: &File) -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [1, BLOCK as u64, 3 * BLOCK as u64 + 5] {
            let mut file = tempfile::tempfile_in(&folder).unwrap();
            fill(&mut file, bytes).unwrap();
            assert_eq!(file.metadata().unwrap().len(), bytes);
            drain(&mut file).unwrap();
            assert_eq!(file.stream_position().unwrap(), bytes);
            let disk = Disk::measure(folder.path(), bytes).unwrap();
            assert!([disk.write, disk.read, disk.both].iter().all(|rate| rate.is_finite() && *rate > 0.0));
        }
        assert!(std::fs::read_dir(&folder).unwrap().next().is_none(), "files left behind");
        assert!(Disk::measure(&folder.path().join("missing"), 1).is_err());
    }
}
