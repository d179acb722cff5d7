//! Shared body of the targets: import bytes as an index over the base of the golden files, and
//! check the result.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tagore::{Index, IndexFormat, Metric, Progress, Vectors};
use tempfile::TempDir;

/// In shared memory if available: a target writes its file thousands of times per second.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a folder for the file under test")
});

static BASE: LazyLock<Vectors> =
    LazyLock::new(|| Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 7], 2).expect("five rows"));

/// Imports a format of one file.
pub fn read_one(format: IndexFormat, data: &[u8]) {
    let path = path(&format!("x.{format}"));
    write(&path, data);
    read(format, &path);
}

/// Imports a format of several files. Two bytes before each file but the last give its length; a
/// length of zero means no file.
pub fn read_several(format: IndexFormat, mut data: &[u8]) {
    let names: &[&str] = match format {
        IndexFormat::Csr => &["x.indptr.npy", "x.indices.npy"],
        IndexFormat::Diskann => &["x", "x.data", "x_metadata.bin"],
        IndexFormat::DiskannDisk => &["x_disk.index", "x_disk.index_medoids.bin", "x_metadata.bin"],
        _ => &["x", "x.entries.ibin"],
    };
    for (index, name) in names.iter().enumerate() {
        let file = if index + 1 < names.len() {
            let Some((length, rest)) = data.split_first_chunk() else { return };
            let (file, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
            data = rest;
            file
        } else {
            data
        };
        if file.is_empty() {
            // The file may be missing already.
            let _ = std::fs::remove_file(path(name));
        } else {
            write(&path(name), file);
        }
    }
    read(format, &path("x"));
}

fn path(name: &str) -> PathBuf {
    FOLDER.path().join(name)
}

fn write(path: &Path, data: &[u8]) {
    std::fs::write(path, data).expect("the file under test is written");
}

/// Checks that an import is sound, or its error one line.
fn read(format: IndexFormat, path: &Path) {
    let silent = Progress::silent();
    match Index::import(path, format, &BASE, Metric::L2, &silent) {
        Ok(index) => {
            index.verify(&silent).expect("a sound index");
            index.statistics(&silent).expect("no cancellation");
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
