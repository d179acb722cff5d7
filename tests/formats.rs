//! Files of vectors: round trips, exact bytes, and errors.

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tagore::{ElementType, Error, Format, Progress, Vectors};
use tagore_device::random::{Draws, Stage};
use tempfile::TempDir;

const VECTOR_FORMATS: [Format; 8] = [
    Format::Fvecs,
    Format::Bvecs,
    Format::Fbin,
    Format::F16bin,
    Format::Bf16bin,
    Format::U8bin,
    Format::I8bin,
    Format::Npy,
];

/// A temporary folder.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn file(&self, name: &str, parts: &[&[u8]]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, parts.concat()).unwrap();
        path
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

pub fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn halves(halves: &[f32]) -> Vec<u8> {
    halves.iter().flat_map(|&half| f16::from_f32(half).to_le_bytes()).collect()
}

fn brains(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
}

/// An npy file of version 1 with `data` right after `text`.
pub fn npy(text: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), data].concat()
}

/// All values, row after row.
pub fn all(vectors: &Vectors) -> Vec<f32> {
    (0..vectors.len()).flat_map(|row| vectors.row_to_f32(row).unwrap().into_owned()).collect()
}

/// The text of an error without the path at its start; must be one line.
pub fn message(path: &Path, error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    let rest = text.strip_prefix(&path.display().to_string());
    rest.unwrap_or_else(|| panic!("{text} does not name {}", path.display()))
        .trim_start_matches(": ")
        .to_owned()
}

fn refused(path: &Path) -> String {
    message(path, &Vectors::open(path).unwrap_err())
}

#[test]
fn every_format_has_its_bytes() {
    let values = [0.0, 1.0, 2.0, 3.0, 4.0, 127.0];
    let bytes = [0, 1, 2, 3, 4, 127];
    let header = words(&[2, 3]);
    let row = words(&[3]);
    let npy_text = |descr: &str| {
        let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}");
        format!("{dict:<117}\n")
    };
    let cases = [
        (Format::Fvecs, [&row, &floats(&values[..3])[..], &row, &floats(&values[3..])].concat()),
        (Format::Bvecs, [&row, &bytes[..3], &row, &bytes[3..]].concat()),
        (Format::Fbin, [&header, &floats(&values)[..]].concat()),
        (Format::F16bin, [&header, &halves(&values)[..]].concat()),
        (Format::Bf16bin, [&header, &brains(&values)[..]].concat()),
        (Format::U8bin, [&header, &bytes[..]].concat()),
        (Format::I8bin, [&header, &bytes[..]].concat()),
        (Format::Npy, npy(&npy_text("<f4"), &floats(&values))),
    ];
    let folder = Folder::new();
    let vectors = Vectors::from_f32(values.to_vec(), 3).unwrap();
    for (format, expected) in cases {
        let path = folder.path(&format!("x.{format}"));
        vectors.save(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected, "{format}");
        let read = Vectors::open(&path).unwrap();
        assert_eq!((read.len(), read.dim(), read.path()), (2, 3, Some(path.as_path())), "{format}");
        read.validate(&Progress::silent()).unwrap();
        assert_eq!(all(&read), values, "{format}");
        // `open_as` ignores the extension.
        let other = folder.file("other", &[&expected]);
        assert_eq!(all(&Vectors::open_as(&other, format).unwrap()), values, "{format}");
    }
    let small: Vec<i8> = vec![0, 1, 2, 3, 4, 127];
    let path = folder.path("i8.npy");
    Vectors::from_i8(small, 3).unwrap().save(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), npy(&npy_text("|i1"), &bytes));
    assert_eq!(Vectors::open(&path).unwrap().element_type(), ElementType::I8);
}

#[test]
fn long_headers_are_read() {
    let folder = Folder::new();
    let path = folder.file("x.fbin", &[&longs(&[2, 2]), &floats(&[1.0, 2.0, 3.0, 4.0])]);
    let vectors = Vectors::open(&path).unwrap();
    assert_eq!((vectors.len(), vectors.dim(), all(&vectors)), (2, 2, vec![1.0, 2.0, 3.0, 4.0]));
    let path = folder.file("x.f16bin", &[&longs(&[1, 3]), &halves(&[1.0, -2.0, 0.5])]);
    assert_eq!(all(&Vectors::open(&path).unwrap()), [1.0, -2.0, 0.5]);
    let path = folder.file("none.u8bin", &[&longs(&[0, 7])]);
    let vectors = Vectors::open(&path).unwrap();
    assert_eq!((vectors.len(), vectors.dim()), (0, 7));
    let path = folder.file("part.fbin", &[&longs(&[2, 2]), &floats(&[1.0, 2.0, 3.0])]);
    assert_eq!(refused(&path), "found 28 bytes, expected 32 (16 + 2 x 2 x 4, by its header)");
}

#[test]
fn sizes_that_contradict_the_header_are_refused() {
    let folder = Folder::new();
    let whole = [words(&[2, 3]), floats(&[0.0; 6])].concat();
    let expected = "32 (8 + 2 x 3 x 4, by its header)";
    let path = folder.file("short.fbin", &[&whole[..31]]);
    assert_eq!(refused(&path), format!("found 31 bytes, expected {expected}"));
    let path = folder.file("long.fbin", &[&whole, &[0]]);
    assert_eq!(refused(&path), format!("found 33 bytes, expected {expected}"));
    let path = folder.file("header.fbin", &[&whole[..7]]);
    assert_eq!(refused(&path), "found 7 bytes, expected a header of 8 or 16 bytes");
    let path = folder.file("huge.fbin", &[&words(&[u32::MAX, u32::MAX]), &[1; 8]]);
    let bytes = 8 + u128::from(u32::MAX).pow(2) * 4;
    assert_eq!(
        refused(&path),
        format!("found 16 bytes, expected {bytes} (8 + 4294967295 x 4294967295 x 4, by its header)")
    );
    let path = folder.file("endless.fbin", &[&longs(&[u64::MAX, u64::MAX])]);
    assert!(refused(&path).starts_with("found 16 bytes, expected "));
    let path = folder.file("x.fvecs", &[&words(&[2]), &floats(&[1.0, 2.0]), &[0]]);
    assert_eq!(refused(&path), "found 13 bytes, expected a multiple of 12, the bytes of a row of 2 values");
    let path = folder.file("x.bvecs", &[&[1, 0]]);
    assert_eq!(refused(&path), "found 2 bytes, expected rows with a 4-byte length");
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }    \n";
    let path = folder.file("x.npy", &[&npy(text, &[0; 9])]);
    assert_eq!(
        refused(&path),
        format!("found 83 bytes, expected 82 ({} + 2 x 1 x 4, by its header)", 10 + text.len())
    );
}

#[test]
fn dimensions_out_of_range_are_refused() {
    let folder = Folder::new();
    let path = folder.file("none.fbin", &[&words(&[5, 0])]);
    assert_eq!(refused(&path), "found 0 values per row, expected 1 to 4096");
    let path = folder.file("many.u8bin", &[&words(&[1, 4097]), &[0; 4097]]);
    assert_eq!(refused(&path), "found 4097 values per row, expected 1 to 4096");
    let path = folder.file("none.fvecs", &[&words(&[0])]);
    assert_eq!(refused(&path), "found 0 values per row, expected 1 to 4096");
    let path = folder.file("negative.bvecs", &[&words(&[u32::MAX])]);
    assert_eq!(refused(&path), "found -1 values per row, expected 1 to 4096");
    let path = folder.file("rows.u8bin", &[&longs(&[1 << 40, 0])]);
    assert_eq!(refused(&path), "found 0 values per row, expected 1 to 4096");
    let path = folder.file("most.u8bin", &[&words(&[1, 4096]), &[0; 4096]]);
    assert_eq!(Vectors::open(&path).unwrap().dim(), 4096);
}

#[test]
fn other_files_are_refused() {
    let folder = Folder::new();
    let missing = folder.path("missing.fbin");
    assert!(matches!(Vectors::open(&missing), Err(Error::Io { .. })));
    assert!(!cfg!(unix) || refused(&missing).starts_with("No such file"));
    assert_eq!(refused(folder.0.path()), "found a folder, expected a regular file");
    for format in Format::ALL {
        let path = folder.file(&format!("empty.{format}"), &[]);
        assert_eq!(refused(&path), "found an empty file, expected a header or rows");
    }
    let path = folder.file("x.csv", &[b"1,2"]);
    let formats = "fvecs, bvecs, ivecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin, ibin or npy";
    assert_eq!(refused(&path), format!("found the extension .csv, expected {formats}"));
    let path = folder.file("x", &[b"1,2"]);
    assert_eq!(refused(&path), format!("found no extension, expected {formats}"));
    let path = folder.file("x.ivecs", &[&words(&[1, 0])]);
    assert_eq!(
        refused(&path),
        "found ids (ivecs), expected vectors: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy"
    );
    let path = folder.file("x.ibin", &[&words(&[1, 1, 0])]);
    assert!(refused(&path).starts_with("found ids (ibin), expected vectors"));
}

#[test]
fn other_arrays_are_refused() {
    let folder = Folder::new();
    let refused = |text: &str| refused(&folder.file("x.npy", &[&npy(text, &[0; 64])]));
    let expected = "expected a 2-D array in C order of <f4, <f2, <V2, |u1, |i1, |V2";
    assert_eq!(
        refused("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 4)}"),
        format!("found a 2-D array in C order of <f8, {expected}")
    );
    assert_eq!(
        refused("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 4)}"),
        format!("found a 2-D array in C order of >f4, {expected}")
    );
    assert_eq!(
        refused("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 4)}"),
        format!("found a 2-D array in Fortran order of <f4, {expected}")
    );
    assert_eq!(
        refused("{'descr': '<f4', 'fortran_order': False, 'shape': (16,)}"),
        format!("found a 1-D array in C order of <f4, {expected}")
    );
    assert_eq!(refused("not a dictionary"), format!("found no npy header of a plain array, {expected}"));
}

#[test]
fn npy_data_may_start_anywhere() {
    let folder = Folder::new();
    for pad in 0..8 {
        let text = |descr: &str| {
            let pad = " ".repeat(pad);
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 2), }}{pad}\n")
        };
        let values = [1.0, -2.0, 0.5, 4.0];
        for (descr, data) in [("<f4", floats(&values)), ("<f2", halves(&values))] {
            let path = folder.file("x.npy", &[&npy(&text(descr), &data)]);
            assert_eq!(all(&Vectors::open(&path).unwrap()), values, "{descr} after {pad} spaces");
        }
        let none = text("<f4").replace("(2, 2)", "(0, 2)");
        let path = folder.file("none.npy", &[&npy(&none, &[])]);
        let vectors = Vectors::open(&path).unwrap();
        vectors.validate(&Progress::silent()).unwrap();
        assert_eq!((vectors.len(), vectors.dim()), (0, 2));
    }
}

#[test]
fn errors_name_values_that_are_not_finite() {
    let folder = Folder::new();
    let invalid =
        |path: &Path| message(path, &Vectors::open(path).unwrap().validate(&Progress::silent()).unwrap_err());
    for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = vec![1.0; 12];
        values[8] = value;
        let expected = format!("row 2, dimension 2: found {name}, expected a finite number");
        let single = folder.file("x.fbin", &[&words(&[4, 3]), &floats(&values)]);
        assert_eq!(invalid(&single), expected);
        let half = folder.file("x.f16bin", &[&words(&[4, 3]), &halves(&values)]);
        assert_eq!(invalid(&half), expected);
        // A failed save leaves no file.
        for path in [single, half] {
            let error = Vectors::open(&path).unwrap().save(folder.path("y.fbin")).unwrap_err();
            assert_eq!(message(&path, &error), expected);
        }
        let error = Vectors::from_f32(values, 3).unwrap().save(folder.path("y.f16bin")).unwrap_err();
        assert_eq!(error.to_string(), format!("vectors: {expected}"));
    }
    assert_eq!(folder.names(), ["x.f16bin", "x.fbin"]);
}

#[test]
fn errors_name_rows_of_another_dimension() {
    let folder = Folder::new();
    let path =
        folder.file("x.fvecs", &[&words(&[2]), &floats(&[1.0, 2.0]), &words(&[3]), &floats(&[3.0, 4.0])]);
    let vectors = Vectors::open(&path).unwrap();
    let expected = "found dimension 3 in row 1, expected 2 as in row 0";
    assert_eq!(message(&path, &vectors.validate(&Progress::silent()).unwrap_err()), expected);
    assert_eq!(message(&path, &vectors.save(folder.path("y.fbin")).unwrap_err()), expected);
}

#[test]
fn errors_name_values_that_do_not_convert() {
    let folder = Folder::new();
    let (u8s, i8s) = ("an integer from 0 to 255 for u8", "an integer from -128 to 127 for i8");
    let halves = "-65504 to 65504, the range of f16";
    let source = folder.path("source.fbin");
    for (value, format, expected) in [
        (0.5, Format::U8bin, u8s),
        (300.0, Format::U8bin, u8s),
        (-1.0, Format::Bvecs, u8s),
        (0.25, Format::I8bin, i8s),
        (128.0, Format::I8bin, i8s),
        (-129.0, Format::I8bin, i8s),
        (1e5, Format::F16bin, halves),
        (-65_520.0, Format::F16bin, halves),
    ] {
        let vectors = Vectors::from_f32(vec![0.0, 1.0, 2.0, 3.0, 4.0, value], 2).unwrap();
        let found = format!("row 2, dimension 1: found {value}, expected {expected}");
        let path = folder.path(&format!("x.{format}"));
        assert_eq!(vectors.save(&path).unwrap_err().to_string(), format!("vectors: {found}"));
        vectors.save(&source).unwrap();
        assert_eq!(message(&source, &Vectors::open(&source).unwrap().save(&path).unwrap_err()), found);
        assert_eq!(folder.names(), ["source.fbin"], "{value} left a file");
    }
    let negative = Vectors::from_i8(vec![-3], 1).unwrap();
    assert!(
        negative
            .save(folder.path("x.u8bin"))
            .unwrap_err()
            .to_string()
            .contains("row 0, dimension 0: found -3")
    );
    let large = Vectors::from_u8(vec![200], 1).unwrap();
    assert!(
        large.save(folder.path("x.i8bin")).unwrap_err().to_string().contains("row 0, dimension 0: found 200")
    );
    for format in [Format::Ivecs, Format::Ibin] {
        let error = large.save_as(folder.path("x"), format, &Progress::silent()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("format: found {format}, expected one of vectors")), "{error}");
    }
    let error = large.save(folder.path("x.csv")).unwrap_err().to_string();
    assert!(error.contains("found the extension .csv"), "{error}");
    assert_eq!(folder.names(), ["source.fbin"]);
}

#[test]
fn f32_is_rounded_to_the_nearest_f16() {
    let folder = Folder::new();
    let path = folder.path("x.f16bin");
    let ulp = 1.0 / 1024.0;
    Vectors::from_f32(vec![1.0 + 0.4 * ulp, 1.0 + 0.5 * ulp, 1.0 + 1.5 * ulp, 65_519.0], 4)
        .unwrap()
        .save(&path)
        .unwrap();
    assert_eq!(all(&Vectors::open(&path).unwrap()), [1.0, 1.0, 1.0 + 2.0 * ulp, 65_504.0]);
}

/// Random integers from 0 to 127, which every type holds.
fn random(rows: usize, dim: usize, seed: u64, element: ElementType) -> Vectors {
    let draws = Draws::new(seed, Stage::Test, rows as u32, dim as u64);
    let values = (0..(rows * dim) as u64).map(|i| draws.below(i, 128) as u8);
    match element {
        ElementType::F32 => Vectors::from_f32(values.map(f32::from).collect(), dim),
        ElementType::F16 => Vectors::from_f16(values.map(f16::from).collect(), dim),
        ElementType::Bf16 => Vectors::from_bf16(values.map(|x| bf16::from_f32(x.into())).collect(), dim),
        ElementType::U8 => Vectors::from_u8(values.collect(), dim),
        ElementType::I8 => Vectors::from_i8(values.map(|value| value as i8).collect(), dim),
        ElementType::B1 => unreachable!("bits hold no other numbers: b1.rs"),
    }
    .unwrap()
}

#[test]
fn odd_shapes_round_trip_in_every_format() {
    let folder = Folder::new();
    for element in ElementType::ALL.into_iter().filter(|&element| element != ElementType::B1) {
        for (rows, dim) in [0, 1, 2, 97].into_iter().flat_map(|rows| [1, 3, 97].map(|dim| (rows, dim))) {
            for format in VECTOR_FORMATS {
                let seed = 7;
                let case = format!("{rows} x {dim} of {element} as {format}, seed {seed}");
                let vectors = random(rows, dim, seed, element);
                let path = folder.path(&format!("x.{format}"));
                if rows == 0 && matches!(format, Format::Fvecs | Format::Bvecs) {
                    let error = message(&path, &vectors.save(&path).unwrap_err());
                    assert!(
                        error.starts_with("found no rows to write, expected at least one"),
                        "{case}: {error}"
                    );
                    continue;
                }
                vectors.save(&path).unwrap();
                let read = Vectors::open(&path).unwrap();
                read.validate(&Progress::silent()).unwrap();
                assert_eq!((read.len(), read.dim()), (rows, dim), "{case}");
                assert_eq!(all(&read), all(&vectors), "{case}");
                if format == Format::Npy {
                    assert_eq!(read.element_type(), element, "{case}");
                }
                // Mapped vectors are saved like owned ones.
                let again = folder.path(&format!("again.{format}"));
                read.save(&again).unwrap();
                assert_eq!(fs::read(&again).unwrap(), fs::read(&path).unwrap(), "{case}");
            }
        }
    }
}

#[test]
fn an_open_file_may_be_replaced() {
    let folder = Folder::new();
    let path = folder.path("x.fbin");
    random(97, 3, 1, ElementType::F32).save(&path).unwrap();
    let before = Vectors::open(&path).unwrap();
    let values = all(&before);
    random(5, 2, 2, ElementType::F32).save(&path).unwrap();
    assert_eq!(all(&before), values);
    assert_eq!(Vectors::open(&path).unwrap().len(), 5);
}
