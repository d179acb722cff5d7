//! Files of other programs, made by `formats/make.py`. Each becomes the rows of `rows.fbin`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Session, names};

/// Files that hold the rows, and the names of those in files of several.
const ROWS: &[&str] = &[
    "f64.npy",
    "columns.npy",
    "big-endian.npy",
    "one.npz",
    "two.npz:train",
    "rows.safetensors",
    "rows.safetensors:rows",
    "glove.txt",
    "glove.txt.gz",
    "word2vec.vec",
    "numbers.txt",
    "rows.arrow",
    "rows.arrow:vector",
    "lz4.feather",
    "rows.arrows",
    "rows.fbin.gz",
    "rows.fbin.zst",
    "ann.hdf5:train",
    "ann.hdf5:test",
    "ann.hdf5:group/inner",
    "new.hdf5:train",
    "new.hdf5:/group/inner",
    "snappy.parquet",
    "zstd.parquet:vector",
    "two.parquet:a",
    "two.parquet:b",
    "lz4.parquet",
];

/// A folder with the files.
fn session() -> Session {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    for name in names(&files) {
        fs::copy(files.join(&name), s.path(&name)).unwrap();
    }
    fs::create_dir(s.path("copies")).unwrap();
    s
}

impl Session {
    /// Runs the command with a folder of its own for copies, in which nothing is left.
    fn copying(&self, arguments: &str, input: impl Into<Stdio>) -> Output {
        let mut command = self.command(arguments);
        let output = command.env("TMPDIR", self.path("copies")).stdin(input).output().unwrap();
        assert_eq!(names(&self.path("copies")), [""; 0], "{arguments}");
        output
    }

    /// Converts a file to fbin, and returns what was said.
    fn converts(&self, file: &str, input: impl Into<Stdio>) -> String {
        let output = self.copying(&format!("convert {file} out.fbin"), input);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{file}: {said}");
        let bytes = |name: &str| fs::read(self.path(name)).unwrap();
        assert!(bytes("out.fbin") == bytes("rows.fbin"), "{file}: other rows");
        fs::remove_file(self.path("out.fbin")).unwrap();
        said
    }

    /// Runs a command that must fail, and returns its error.
    fn refused(&self, arguments: &str) -> String {
        let output = self.copying(arguments, Stdio::null());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors, said.lines().collect::<Vec<_>>(), "{arguments}");
        assert_eq!(errors.len(), 1, "{arguments}: {said}");
        errors[0]["error: ".len()..].to_owned()
    }
}

/// The file of `file.npz:name`.
fn file_of(path: &str) -> PathBuf {
    path.split(':').next().unwrap().into()
}

fn write_gzip(path: &Path, parts: &[&[u8]]) {
    let mut gzip = GzEncoder::new(File::create(path).unwrap(), Compression::default());
    parts.iter().for_each(|part| gzip.write_all(part).unwrap());
    gzip.finish().unwrap();
}

#[test]
fn every_file_becomes_the_same_rows() {
    let s = session();
    for file in ROWS.iter() {
        s.converts(file, Stdio::null());
    }
    // By their first bytes, under no name and under a name with a colon.
    for file in ["f64.npy", "one.npz", "rows.safetensors", "rows.arrow", "glove.txt", "rows.fbin.gz"] {
        let input = || File::open(s.path(file)).unwrap();
        let format = if file.starts_with("rows.fbin") { " --from fbin" } else { "" };
        s.converts(&format!("-{format}"), input());
        fs::copy(s.path(file), s.path("a:b")).unwrap();
        if file != "glove.txt" {
            s.converts(&format!("a:b{format}"), Stdio::null());
        }
    }
}

#[test]
fn every_command_takes_them() {
    let s = session();
    s.succeeds("build -i one.npz -o x.tagore --kind nsg --knn 5");
    s.succeeds("build -i rows.fbin -o y.tagore --kind nsg --knn 5");
    let bytes = |name: &str| fs::read(s.path(name)).unwrap();
    assert!(bytes("x.tagore") == bytes("y.tagore"), "another index");
    s.succeeds("build two.npz:train --kind nsg --knn 5");
    assert!(bytes("two.tagore") == bytes("x.tagore"), "another index by default");
    s.succeeds("knn -i columns.npy -o knn.bin --knn 5");
    s.succeeds("groundtruth --base glove.txt.gz --queries two.npz:test -k 4 -o gt.npy");
    write_gzip(&s.path("gt.npy.gz"), &[&bytes("gt.npy")]);
    let judged = &s.succeeds(
        "eval --index x.tagore --base rows.arrow --queries two.npz:test --groundtruth gt.npy.gz -k 4 --beams 12",
    )[0];
    assert_eq!(judged["recall"], 1.0);
    s.succeeds("search --index x.tagore --base rows.safetensors --queries two.npz:test -k 4 -o found.csv");
    let inspected = &s.succeeds("inspect rows.arrow")[0];
    assert_eq!((inspected["n"].as_u64(), inspected["file"].as_str()), (Some(12), Some("rows.arrow")));
}

#[test]
fn changes_are_said() {
    let s = session();
    let say = |file: &str| s.converts(file, Stdio::null());
    let narrowed = "f64.npy: f64 narrowed to f32, the largest relative change is 4.5e-8";
    assert!(say("f64.npy").starts_with(narrowed), "{}", say("f64.npy"));
    assert!(say("two.npz:train").starts_with("two.npz: f64 narrowed"), "{}", say("two.npz:train"));
    assert!(say("glove.txt").starts_with("glove.txt: 12 words left out"), "{}", say("glove.txt"));
    for file in ["big-endian.npy", "numbers.txt", "one.npz", "rows.fbin.zst"] {
        let said = say(file);
        assert!(!said.contains("narrowed") && !said.contains("left out"), "{file}: {said}");
    }
}

#[test]
fn errors_name_the_arrays_and_what_makes_rows() {
    let s = session();
    let cases = [
        ("two.npz", "two.npz: found 2 arrays: train, test, expected the name of one, such as two.npz:test"),
        ("two.npz:base", "two.npz: found no array base, expected one of train, test"),
        ("one.npz:ids", "one.npz: found no rows of numbers in ids, expected one of rows"),
        ("rows.arrow:word", "rows.arrow: found no rows of numbers in word, expected one of vector"),
        ("rows.fbin:x", "rows.fbin: found the name x after it, expected no name: the file holds one array"),
        ("numbers.npz:x", "numbers.npz:x: No such file or directory (os error 2)"),
    ];
    for (file, expected) in cases {
        assert_eq!(s.refused(&format!("convert {file} out.fbin")), expected);
    }
    // No output is written over a file with a name after it.
    let before = fs::read(s.path("two.npz")).unwrap();
    assert!(!s.run("convert two.npz:train two.npz --to npy").status.success());
    assert!(fs::read(s.path("two.npz")).unwrap() == before);
    let tasks = "task plan -i glove.txt -o t.tagore --kind nsg --knn 5 --cluster-size 6 --dir tasks";
    assert_eq!(
        s.refused(tasks),
        "glove.txt: found a file that each task would copy, expected one that is mapped: tagore convert glove.txt \
         glove.fbin"
    );
}

#[test]
fn text_that_is_no_table_is_refused_by_line() {
    let s = session();
    let refused = |text: &str| {
        fs::write(s.path("x.txt"), text).unwrap();
        s.refused("convert x.txt out.fbin")
    };
    let cases = [
        ("a 1 2\nb 3\n", "1 of 2 values in line 2, expected a word and 2 numbers in each line"),
        ("a 1 2\nb 3 x\n", "'x' in line 2, expected a word and 2 numbers in each line"),
        ("1 2\n3 4 5\n", "3 values in line 2, expected 2 numbers in each line"),
        ("3 2\na 1 2\nb 3 4\n", "2 rows, expected 3, by its first line"),
        ("", "an empty file, expected a word and its vector in each line"),
        ("word\n", "0 values per row, expected 1 to 4096"),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), format!("x.txt: found {expected}"));
    }
}

#[test]
fn damaged_files_are_refused() {
    let s = session();
    for path in ROWS.iter().filter(|path| !path.contains(".txt") && !path.contains(":rows")) {
        let file = file_of(path);
        let (whole, changed) =
            (fs::read(s.path(file.to_str().unwrap())).unwrap(), path.replacen(':', ".", 1));
        let name = path.split_once(':').map_or(String::new(), |(_, name)| format!(":{name}"));
        let extensions = file.file_name().unwrap().to_str().unwrap().split_once('.').unwrap().1;
        let changed = format!("{}.{extensions}", changed.replace(['.', '/'], "-"));
        for length in [whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            // The last byte of text is the end of a line. A stream may end after any message.
            if path.ends_with("vec") && length == whole.len() - 1 || path.ends_with("arrows") {
                continue;
            }
            fs::write(s.path(&changed), &whole[..length]).unwrap();
            s.refused(&format!("convert {changed}{name} out.fbin"));
        }
        // Other bytes may be other rows. They are no panic, and no allocation fails.
        for place in (0..24).map(|i| i * whole.len() / 24) {
            let mut bytes = whole.clone();
            bytes[place..].iter_mut().take(1 + place % 5).for_each(|byte| *byte ^= 0xff);
            fs::write(s.path(&changed), bytes).unwrap();
            let output = s.copying(&format!("inspect {changed}{name}"), Stdio::null());
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(matches!(output.status.code(), Some(0 | 1)), "{path}, byte {place}: {said}");
            assert!(!said.contains("panicked"), "{path}, byte {place}: {said}");
        }
    }
}

#[test]
fn sizes_are_checked_before_memory_is_taken() {
    let s = session();
    let npy = |shape: &str| {
        let mut text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
        text += &" ".repeat(117 - text.len());
        [&b"\x93NUMPY\x01\0\x76\0"[..], text.as_bytes(), b"\n", &[0; 80]].concat()
    };
    fs::write(s.path("x.npy"), npy("(1000000000000, 5)")).unwrap();
    let error = s.refused("convert x.npy out.fbin");
    assert!(
        error.starts_with("x.npy: found 208 bytes, expected 40000000000128 (128 + 1000000000000 x 5 x 8"),
        "{error}"
    );
    let header = br#"{"x":{"dtype":"F32","shape":[1000000000,4],"data_offsets":[0,16000000000]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    fs::write(s.path("x.safetensors"), tensors).unwrap();
    let error = s.refused("convert x.safetensors out.fbin");
    assert_eq!(error, "x.safetensors: found other offsets of x, expected 16000000000 bytes within the file");
    fs::write(s.path("y.safetensors"), [&u64::MAX.to_le_bytes()[..], b"{\"}"].concat()).unwrap();
    assert!(s.refused("convert y.safetensors out.fbin").contains("a header of 18446744073709551615 bytes"));
    // More bytes than the header says end the decompression.
    for (name, header) in
        [("x.fbin.gz", [1u32, 5].map(u32::to_le_bytes).concat()), ("x.npy.gz", npy("(2, 5)"))]
    {
        write_gzip(&s.path(name), &[&header, &vec![0; 8 << 20]]);
        let most = if name == "x.fbin.gz" { 28 } else { 208 };
        let expected = format!("{name}: found more than {most} bytes, expected {most}, by its header");
        assert_eq!(s.refused(&format!("convert {name} out.fbin")), expected);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_folder_of_copies_is_named() {
    let s = session();
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (2000, 10), }";
    let header = format!("{text:<117}\n");
    let npy = [&b"\x93NUMPY\x01\0\x76\0"[..], header.as_bytes(), &[0; 160_000]].concat();
    fs::write(s.path("x.npy"), npy).unwrap();
    let (command, copies) = (env!("CARGO_BIN_EXE_tagore"), s.path("copies"));
    let script = format!("ulimit -f 16; TMPDIR={} exec {command} inspect x.npy", copies.display());
    let output = Command::new("bash").args(["-c", &script]).current_dir(s.folder.path()).output().unwrap();
    let expected = format!(
        "error: x.npy: found no room for a copy in {}: File too large (os error 27), expected another folder by \
         TMPDIR\n",
        copies.display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    assert_eq!(names(&copies), [""; 0]);
}

#[test]
fn integers_are_ids_or_vectors() {
    let s = session();
    let npy = |numbers: &[i64]| {
        let text =
            format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}, 2), }}", numbers.len() / 2);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        [&b"\x93NUMPY\x01\0\x76\0"[..], format!("{text:<117}\n").as_bytes(), &bytes].concat()
    };
    fs::write(s.path("ids.npy"), npy(&[0, 1, 2, 3])).unwrap();
    fs::write(s.path("x.npy"), npy(&[0, -5, 1 << 40, 16_777_217])).unwrap();
    assert_eq!(s.succeeds("inspect ids.npy")[0]["content"], "ids");
    assert_eq!(s.succeeds("inspect ann.hdf5:neighbors")[0]["content"], "ids");
    assert_eq!(s.succeeds("inspect x.npy")[0]["content"], "vectors");
    for file in ["ids.npy", "x.npy"] {
        s.succeeds(&format!("convert {file} {file}.fbin"));
    }
    let values = tagore::Vectors::open(s.path("x.npy.fbin")).unwrap().to_f32().unwrap();
    assert_eq!(values, [0.0, -5.0, (1u64 << 40) as f32, 16_777_216.0]);
    s.succeeds("convert ids.npy ids.ibin");
    s.succeeds("convert ann.hdf5:neighbors neighbors.ibin");
}

#[test]
fn a_command_in_an_error_is_whole() {
    let s = session();
    fs::write(s.path("it's.csv"), "a,b\n1.5,2.5\n3.5,4.5\n").unwrap();
    let output = s.command("convert").args(["it's.csv", "out.fbin"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let command = "python3 -c \"import sys,numpy as n;f=sys.argv[1];n.save(f+'.npy',n.loadtxt(f,'f4',delimiter=',',\
                   skiprows=1,ndmin=2))\" 'it'\\''s.csv'";
    assert!(said.contains(command), "{said}");
    for (name, words) in [("x.pt", "torch as t"), ("x.pkl", "pickle.load"), ("x.npy.xz", "xz -dk x.npy.xz")] {
        fs::write(s.path(name), [128, 2, 0, 0, 9]).unwrap();
        let error = s.refused(&format!("convert {name} out.fbin"));
        assert!(error.contains(words), "{error}");
        assert_eq!(s.refused(&format!("build -i {name} -o out.tagore --kind nsg")), error);
    }
}
