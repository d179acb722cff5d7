//! Files of vectors, ids and ground truth: bytes written, bytes read, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use half::f16;
use tagore::{ElementType, Error, Format, GroundTruth, Progress, QueryKind, Synth, SynthKind, Vectors};
use tagore_device::random::{Draws, Stage};
use tempfile::TempDir;

const VECTOR_FORMATS: [Format; 7] =
    [Format::Fvecs, Format::Bvecs, Format::Fbin, Format::F16bin, Format::U8bin, Format::I8bin, Format::Npy];

/// A folder for one test's files.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, parts: &[&[u8]]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, parts.concat()).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn halves(halves: &[f32]) -> Vec<u8> {
    halves.iter().flat_map(|&half| f16::from_f32(half).to_le_bytes()).collect()
}

/// An npy file of version 1 whose data starts right after `text`.
fn npy(text: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), data].concat()
}

fn all(vectors: &Vectors) -> Vec<f32> {
    (0..vectors.len()).flat_map(|row| vectors.row(row).into_owned()).collect()
}

/// The error without the file's name, which it must begin with; one line.
fn told(path: &Path, error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    let rest = text.strip_prefix(&path.display().to_string());
    rest.unwrap_or_else(|| panic!("{text} does not name {}", path.display()))
        .trim_start_matches(": ")
        .to_owned()
}

fn refused(path: &Path) -> String {
    told(path, &Vectors::open(path).unwrap_err())
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
        // Whatever it is called.
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
fn sizes_that_are_not_the_headers_are_refused() {
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
    assert_eq!(
        refused(&path),
        "found 13 bytes, expected a multiple of 12, the bytes of a row of 2 as the first is"
    );
    let path = folder.file("x.bvecs", &[&[1, 0]]);
    assert_eq!(refused(&path), "found 2 bytes, expected rows after their length in 4 bytes");
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
    assert_eq!(refused(&path), "found 0 values to a row, expected 1 to 4096");
    let path = folder.file("many.u8bin", &[&words(&[1, 4097]), &[0; 4097]]);
    assert_eq!(refused(&path), "found 4097 values to a row, expected 1 to 4096");
    let path = folder.file("none.fvecs", &[&words(&[0])]);
    assert_eq!(refused(&path), "found 0 values to a row, expected 1 to 4096");
    let path = folder.file("negative.bvecs", &[&words(&[u32::MAX])]);
    assert_eq!(refused(&path), "found -1 values to a row, expected 1 to 4096");
    let path = folder.file("rows.u8bin", &[&longs(&[1 << 40, 0])]);
    assert_eq!(refused(&path), "found 0 values to a row, expected 1 to 4096");
    let path = folder.file("most.u8bin", &[&words(&[1, 4096]), &[0; 4096]]);
    assert_eq!(Vectors::open(&path).unwrap().dim(), 4096);
}

#[test]
fn what_is_not_a_file_of_vectors_is_refused() {
    let folder = Folder::new();
    let missing = folder.path("missing.fbin");
    assert!(matches!(Vectors::open(&missing), Err(Error::Io { .. })));
    assert!(refused(&missing).starts_with("No such file"));
    assert_eq!(refused(folder.0.path()), "found a folder, expected a regular file");
    for format in Format::ALL {
        let path = folder.file(&format!("empty.{format}"), &[]);
        assert_eq!(refused(&path), "found an empty file, expected a header or rows");
    }
    let path = folder.file("x.csv", &[b"1,2"]);
    let formats = "fvecs, bvecs, ivecs, fbin, f16bin, u8bin, i8bin, ibin or npy";
    assert_eq!(refused(&path), format!("found the extension .csv, expected {formats}"));
    let path = folder.file("x", &[b"1,2"]);
    assert_eq!(refused(&path), format!("found no extension, expected {formats}"));
    let path = folder.file("x.ivecs", &[&words(&[1, 0])]);
    assert_eq!(
        refused(&path),
        "found ids (ivecs), expected vectors: fvecs, bvecs, fbin, f16bin, u8bin, i8bin or npy"
    );
    let path = folder.file("x.ibin", &[&words(&[1, 1, 0])]);
    assert!(refused(&path).starts_with("found ids (ibin), expected vectors"));
}

#[test]
fn arrays_of_other_kinds_are_refused() {
    let folder = Folder::new();
    let refused = |text: &str| refused(&folder.file("x.npy", &[&npy(text, &[0; 64])]));
    let expected = "expected a 2-D array in C order of <f4, <f2, |u1, |i1";
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
fn values_that_are_not_finite_are_named() {
    let folder = Folder::new();
    let invalid =
        |path: &Path| told(path, &Vectors::open(path).unwrap().validate(&Progress::silent()).unwrap_err());
    for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = vec![1.0; 12];
        values[8] = value;
        let expected = format!("row 2, dimension 2: found {name}, expected a finite number");
        let single = folder.file("x.fbin", &[&words(&[4, 3]), &floats(&values)]);
        assert_eq!(invalid(&single), expected);
        let half = folder.file("x.f16bin", &[&words(&[4, 3]), &halves(&values)]);
        assert_eq!(invalid(&half), expected);
        // Nothing that cannot be read again is written.
        for path in [single, half] {
            let error = Vectors::open(&path).unwrap().save(folder.path("y.fbin")).unwrap_err();
            assert_eq!(told(&path, &error), expected);
        }
        let error = Vectors::from_f32(values, 3).unwrap().save(folder.path("y.f16bin")).unwrap_err();
        assert_eq!(error.to_string(), format!("vectors: {expected}"));
    }
    assert_eq!(folder.names(), ["x.f16bin", "x.fbin"]);
}

#[test]
fn a_row_of_another_dimension_is_named() {
    let folder = Folder::new();
    let path =
        folder.file("x.fvecs", &[&words(&[2]), &floats(&[1.0, 2.0]), &words(&[3]), &floats(&[3.0, 4.0])]);
    let vectors = Vectors::open(&path).unwrap();
    let expected = "found dimension 3 in row 1, expected 2 as in row 0";
    assert_eq!(told(&path, &vectors.validate(&Progress::silent()).unwrap_err()), expected);
    assert_eq!(told(&path, &vectors.save(folder.path("y.fbin")).unwrap_err()), expected);
}

#[test]
fn values_that_do_not_convert_are_named() {
    let folder = Folder::new();
    let (u8s, i8s) = ("an integer from 0 to 255, as u8 holds", "an integer from -128 to 127, as i8 holds");
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
        assert_eq!(told(&source, &Vectors::open(&source).unwrap().save(&path).unwrap_err()), found);
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

/// Integers that every type holds, so that any format can keep them.
fn random(rows: usize, dim: usize, seed: u64, element: ElementType) -> Vectors {
    let draws = Draws::new(seed, Stage::Test, rows as u32, dim as u64);
    let values = (0..(rows * dim) as u64).map(|i| draws.below(i, 128) as u8);
    match element {
        ElementType::F32 => Vectors::from_f32(values.map(f32::from).collect(), dim),
        ElementType::F16 => Vectors::from_f16(values.map(f16::from).collect(), dim),
        ElementType::U8 => Vectors::from_u8(values.collect(), dim),
        ElementType::I8 => Vectors::from_i8(values.map(|value| value as i8).collect(), dim),
    }
    .unwrap()
}

#[test]
fn odd_shapes_survive_every_format() {
    let folder = Folder::new();
    for element in [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8] {
        for (rows, dim) in [0, 1, 2, 97].into_iter().flat_map(|rows| [1, 3, 97].map(|dim| (rows, dim))) {
            for format in VECTOR_FORMATS {
                let seed = 7;
                let case = format!("{rows} x {dim} of {element} as {format}, seed {seed}");
                let vectors = random(rows, dim, seed, element);
                let path = folder.path(&format!("x.{format}"));
                if rows == 0 && matches!(format, Format::Fvecs | Format::Bvecs) {
                    let error = told(&path, &vectors.save(&path).unwrap_err());
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
                // What is read from a file is written as what is in memory.
                let again = folder.path(&format!("again.{format}"));
                read.save(&again).unwrap();
                assert_eq!(fs::read(&again).unwrap(), fs::read(&path).unwrap(), "{case}");
            }
        }
    }
}

#[test]
fn a_file_may_be_written_over_while_it_is_open() {
    let folder = Folder::new();
    let path = folder.path("x.fbin");
    random(97, 3, 1, ElementType::F32).save(&path).unwrap();
    let before = Vectors::open(&path).unwrap();
    let values = all(&before);
    random(5, 2, 2, ElementType::F32).save(&path).unwrap();
    assert_eq!(all(&before), values);
    assert_eq!(Vectors::open(&path).unwrap().len(), 5);
}

#[test]
fn ground_truth_is_told_by_its_size() {
    let folder = Folder::new();
    let (ids, distances) = ([5, 6, 7, 8, 9, u32::MAX], [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    let with = GroundTruth::new(3, ids.to_vec(), Some(distances.to_vec())).unwrap();
    let without = GroundTruth::new(3, ids.to_vec(), None).unwrap();
    for name in ["gt", "gt.bin", "gt.ibin", "gt.fbin", "gt.neighbors"] {
        for header in [words(&[2, 3]), longs(&[2, 3])] {
            let path = folder.file(name, &[&header, &words(&ids), &floats(&distances)]);
            assert_eq!(GroundTruth::open(&path, &Progress::silent()).unwrap(), with, "{name}");
            let path = folder.file(name, &[&header, &words(&ids)]);
            assert_eq!(GroundTruth::open(&path, &Progress::silent()).unwrap(), without, "{name}");
        }
    }
    assert_eq!((with.len(), with.k(), with.is_empty()), (2, 3, false));
    assert_eq!((with.ids(1), with.distances(1)), (&[8, 9, u32::MAX][..], Some(&[2.0, 2.5, 3.0][..])));
    assert_eq!(without.distances(0), None);
    let path = folder.file("gt.ivecs", &[&words(&[3, 5, 6, 7, 3, 8, 9, u32::MAX])]);
    assert_eq!(GroundTruth::open(&path, &Progress::silent()).unwrap(), without);
    for descr in ["<u4", "<i4"] {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}\n");
        let path = folder.file("gt.npy", &[&npy(&text, &words(&ids))]);
        assert_eq!(GroundTruth::open(&path, &Progress::silent()).unwrap(), without);
    }
}

#[test]
fn ground_truth_is_written_as_it_is_read() {
    let folder = Folder::new();
    let with = GroundTruth::new(2, vec![1, 2, 3, 4], Some(vec![0.5, 1.0, 1.5, 2.0])).unwrap();
    let without = GroundTruth::new(2, vec![1, 2, 3, 4], None).unwrap();
    let path = folder.path("gt.bin");
    with.save(&path).unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        [words(&[2, 2, 1, 2, 3, 4]), floats(&[0.5, 1.0, 1.5, 2.0])].concat()
    );
    assert_eq!(GroundTruth::open(&path, &Progress::silent()).unwrap(), with);
    without.save(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), words(&[2, 2, 1, 2, 3, 4]));
    for name in ["gt.ivecs", "gt.npy"] {
        with.save(folder.path(name)).unwrap();
        assert_eq!(GroundTruth::open(folder.path(name), &Progress::silent()).unwrap(), without, "{name}");
    }
    assert_eq!(fs::read(folder.path("gt.ivecs")).unwrap(), words(&[2, 1, 2, 2, 3, 4]));
}

#[test]
fn ground_truth_of_another_shape_is_refused() {
    let folder = Folder::new();
    let refused = |path: &Path| told(path, &GroundTruth::open(path, &Progress::silent()).unwrap_err());
    let path = folder.file("short.bin", &[&words(&[2, 3, 0, 0, 0, 0, 0])]);
    assert_eq!(
        refused(&path),
        "found 28 bytes, expected 32, or 56 with distances, for 2 queries of 3 by its header"
    );
    let path = folder.file("range.bin", &[&words(&[2, 3, 1, 2, 7, 8, 9]), &floats(&[1.0, 2.0, 3.0])]);
    assert_eq!(
        refused(&path),
        "found the ground truth of a range search, expected that of k-nearest-neighbour search"
    );
    let path = folder.file("none.bin", &[&words(&[3, 0])]);
    assert!(refused(&path).starts_with("found 3 queries of 0 neighbours, expected at most"));
    let path = folder.file("x.ivecs", &[&words(&[2, 0, 0, 1, 0, 0])]);
    assert_eq!(refused(&path), "found 1 ids in row 1, expected 2 as in row 0");
    let text = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1), }\n";
    let path = folder.file("x.npy", &[&npy(text, &[0; 8])]);
    assert_eq!(
        refused(&path),
        "found a 2-D array in C order of <i8, expected a 2-D array in C order of <u4, <i4"
    );
    assert!(refused(&folder.file("empty.bin", &[])).starts_with("found an empty file"));
    assert!(refused(&folder.path("missing.bin")).starts_with("No such file"));
    for (k, ids, distances) in [(0, 2, None), (3, 2, None), (2, 2, Some(3))] {
        let distances = distances.map(|count| vec![0.0; count]);
        assert!(matches!(GroundTruth::new(k, vec![0; ids], distances), Err(Error::Argument { .. })));
    }
}

/// A data set of every kind, with queries of every kind.
fn synths(n: usize, dim: usize, seed: u64) -> Vec<(String, Synth)> {
    let kinds = [
        SynthKind::Mixture,
        SynthKind::Clusters { clusters: n.min(4) },
        SynthKind::Uniform,
        SynthKind::Repeated { copies: n.min(3) },
        SynthKind::Lognormal,
    ];
    let mut synths = Vec::new();
    for kind in kinds {
        for queries in [QueryKind::Rows, QueryKind::Sums] {
            let synth = Synth::of_kind(kind, n, dim, seed).unwrap().query_kind(queries);
            synths.push((format!("{kind}, {n} x {dim}, seed {seed}, queries {queries}"), synth));
        }
    }
    synths
}

#[test]
fn a_part_of_synthetic_data_is_that_part_of_the_whole() {
    for (n, dim, seed) in [(1000, 16, 1), (700, 97, 2), (3, 1, 3), (1, 5, 4)] {
        for (case, synth) in synths(n, dim, seed) {
            let whole = all(&synth.rows(0..n as u64 + 10).unwrap());
            assert_eq!(all(&synth.base()), whole[..n * dim], "{case}");
            assert_eq!(all(&synth.queries(10)), whole[n * dim..], "{case}");
            let (first, last) = (n / 3, n / 3 + n / 2);
            let part = synth.rows(first as u64..last as u64).unwrap();
            assert_eq!(all(&part), whole[first * dim..last * dim], "{case}");
            synth.rows(0..n as u64 + 10).unwrap().validate(&Progress::silent()).unwrap();
        }
    }
}

#[test]
fn synthetic_data_does_not_depend_on_the_threads() {
    let make = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let rows = |(_, synth): (_, Synth)| all(&synth.rows(0..3500).unwrap());
        pool.install(|| synths(3000, 33, 5).into_iter().map(rows).collect::<Vec<_>>())
    };
    assert_eq!(make(1), make(3));
}

#[test]
fn synthetic_data_depends_on_the_seed() {
    for ((case, a), (_, b)) in synths(50, 8, 1).into_iter().zip(synths(50, 8, 2)) {
        let [a, b] = [a, b].map(|synth| all(&synth.rows(0..60).unwrap()));
        assert!(a.iter().zip(&b).all(|(a, b)| a != b), "{case}");
    }
}

#[test]
fn synthetic_data_is_written_as_it_is_made() {
    let folder = Folder::new();
    // More than one chunk of rows.
    let synth = Synth::new(3000, 4096, 6).unwrap();
    let base = synth.base();
    for format in [Format::Fvecs, Format::Fbin, Format::F16bin, Format::Npy] {
        let (written, saved) = (folder.path("written"), folder.path("saved"));
        synth.write(0..3000, &written, format, &Progress::silent()).unwrap();
        base.save_as(&saved, format, &Progress::silent()).unwrap();
        assert!(fs::read(&written).unwrap() == fs::read(&saved).unwrap(), "{format}");
    }
    let path = folder.path("queries.fbin");
    synth.write(3000..3007, &path, Format::Fbin, &Progress::silent()).unwrap();
    assert_eq!(all(&Vectors::open(&path).unwrap()), all(&synth.queries(7)));
}

#[test]
fn synthetic_data_that_cannot_be_written_is_refused() {
    let folder = Folder::new();
    let (synth, path) = (Synth::new(10, 4, 0).unwrap(), folder.path("x"));
    let write = |range, format, progress: &Progress| synth.write(range, &path, format, progress);
    for format in [Format::Bvecs, Format::U8bin, Format::I8bin, Format::Ivecs, Format::Ibin] {
        let error = write(0..10, format, &Progress::silent()).unwrap_err();
        assert!(matches!(error, Error::Argument { parameter: "format", .. }), "{error}");
    }
    let backwards = std::ops::Range { start: 5, end: 4 };
    for range in [backwards, 0..u64::MAX] {
        assert!(matches!(synth.rows(range.clone()), Err(Error::Argument { parameter: "rows", .. })));
        assert!(write(range, Format::Fbin, &Progress::silent()).is_err());
    }
    let progress = Progress::silent();
    progress.cancel();
    assert!(matches!(write(0..10, Format::Fbin, &progress), Err(Error::Cancelled)));
    assert!(folder.names().is_empty());
    assert!(Synth::new(10, 0, 0).is_err() && Synth::new(10, 4097, 0).is_err());
}
