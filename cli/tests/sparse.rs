//! Sparse files of a billion rows: `inspect` and `plan` read a sample of them, in bounded memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use tagore::{Index, Synth};

const ROWS: u64 = 1_000_000_000;
const DIM: u64 = 96;

/// Makes a `bin` file of a billion rows of zeros, `size` bytes per value.
fn vectors(path: &Path, size: u64) -> File {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all_at(bytemuck::cast_slice(&[ROWS as u32, DIM as u32]), 0).unwrap();
    file.set_len(8 + ROWS * DIM * size).unwrap();
    file
}

/// Makes an index of a billion nodes without edges, with rows of 32 (`docs/formats.md`). It has the
/// rows that the sample reads, and checksums of the header, the description and the entry point.
fn index(path: &Path) -> File {
    const PAGE: u64 = 4096;
    const DEGREE: u64 = 32;
    let base = Synth::new(5, DIM as usize, 0).unwrap().base();
    tagore::Builder::new(tagore::Strategy::nsg()).build(&base).unwrap().save(path).unwrap();
    let written = std::fs::read(path).unwrap();
    let mut header = written[..PAGE as usize].to_vec();
    let description = u64::from_le_bytes(header[72..80].try_into().unwrap());
    let degrees = 3 * PAGE;
    let adjacency = degrees + (4 * ROWS).next_multiple_of(PAGE);
    let checksums = adjacency + 4 * ROWS * DEGREE;
    let blocks: u64 =
        [description, 4, 4 * ROWS, 4 * ROWS * DEGREE].iter().map(|bytes| bytes.div_ceil(1 << 20)).sum();
    let end = (checksums + 4 * blocks).next_multiple_of(PAGE);
    let mut put = |at: usize, value: u64, bytes: usize| {
        header[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    };
    put(16, ROWS, 8);
    put(24, DEGREE, 4);
    put(32, ROWS, 8);
    put(56, end, 8);
    // No layers and no repeated rows.
    let empty = (checksums, 0);
    let sections =
        [(degrees, 4 * ROWS), (adjacency, 4 * ROWS * DEGREE), empty, empty, (checksums, 4 * blocks)];
    for (section, (begin, length)) in sections.into_iter().enumerate() {
        put(96 + 16 * section, begin, 8);
        put(104 + 16 * section, length, 8);
    }
    let crc = crc32fast::hash(&header[..4092]);
    header[4092..].copy_from_slice(&crc.to_le_bytes());
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all_at(&header, 0).unwrap();
    file.set_len(degrees).unwrap();
    file.set_len(end).unwrap();
    let section =
        |page: u64, bytes: u64| crc32fast::hash(&written[(page * PAGE) as usize..][..bytes as usize]);
    let first = [section(1, description), section(2, 4)];
    file.write_all_at(bytemuck::cast_slice(&first), checksums).unwrap();
    for place in 0..1024 {
        let row = place * (ROWS - 1) / 1023;
        file.write_all_at(&[0xff; 4 * DEGREE as usize], adjacency + 4 * DEGREE * row).unwrap();
    }
    file
}

/// Runs the command with at most 256 MiB of anonymous memory.
fn run(folder: &Path, arguments: &str) -> Output {
    let shell = format!("ulimit -d 262144; exec {} {arguments} --threads 2", env!("CARGO_BIN_EXE_tagore"));
    Command::new("sh").args(["-c", &shell]).current_dir(folder).output().unwrap()
}

/// Runs the command, which must succeed, and parses its JSON line.
fn succeeds(folder: &Path, arguments: &str) -> serde_json::Value {
    let output = run(folder, &format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn large_vectors_are_inspected_and_planned_for() {
    let folder = tempfile::tempdir().unwrap();
    vectors(&folder.path().join("base.u8bin"), 1);
    let floats = vectors(&folder.path().join("base.fbin"), 4);
    for name in ["base.u8bin", "base.fbin"] {
        let found = succeeds(folder.path(), &format!("inspect {name}"));
        assert_eq!((found["n"].as_u64(), found["dim"].as_u64()), (Some(ROWS), Some(DIM)));
        assert_eq!(found["checked"], "sample");
    }
    for name in ["base.u8bin", "base.fbin"] {
        let planned = succeeds(folder.path(), &format!("plan -i {name} --kind vamana --host-memory 64GiB"));
        assert_eq!(planned["n"], ROWS);
        assert!(planned["out_of_core"]["clusters"].as_u64() > Some(1));
    }

    // The sample includes the last row.
    floats.write_all_at(&f32::NAN.to_le_bytes(), 8 + 4 * (ROWS * DIM - 1)).unwrap();
    let output = run(folder.path(), "inspect base.fbin");
    let expected = "error: base.fbin: row 999999999, dimension 95: found NaN, expected a finite number\n";
    assert_eq!(
        (output.status.code(), String::from_utf8(output.stderr).unwrap()),
        (Some(1), expected.to_owned())
    );
}

#[test]
fn a_large_index_is_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    let file = index(&path);
    // SAFETY: nothing writes the file until the index is dropped, at the end of the line.
    assert_eq!(unsafe { Index::map(&path) }.unwrap().len() as u64, ROWS);
    let found = succeeds(folder.path(), "inspect x.tagore");
    assert_eq!((found["n"].as_u64(), found["max_degree"].as_u64()), (Some(ROWS), Some(32)));
    assert_eq!(found["checked"], "sample");

    // A degree without edges.
    file.write_all_at(&1u32.to_le_bytes(), 3 * 4096).unwrap();
    let output = run(folder.path(), "inspect x.tagore");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: x.tagore: found a wrong row 0, expected"), "{error}");
    assert_eq!(output.status.code(), Some(1));
}
