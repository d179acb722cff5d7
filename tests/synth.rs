//! Synthetic data: parts, seeds, threads and files.

use std::fs;

use tagore::{ElementType, Error, Fault, Format, Progress, QueryKind, Synth, SynthKind, Vectors};

use crate::formats::{Folder, all};

/// Data sets of all kinds, each with all kinds of queries.
fn synths(n: usize, dim: usize, seed: u64) -> Vec<(String, Synth)> {
    let kinds = [
        SynthKind::Mixture,
        SynthKind::Clusters { clusters: n.min(4) },
        SynthKind::Uniform,
        SynthKind::Repeated { copies: n.min(3) },
        SynthKind::Lognormal,
        SynthKind::Dirty { fault: Fault::Tails { degrees: 0.5 }, share: 0.3 },
        SynthKind::Dirty { fault: Fault::Ball { scale: 0.001 }, share: 0.3 },
    ];
    let mut synths = Vec::new();
    for kind in kinds {
        for queries in
            [QueryKind::Rows, QueryKind::Sums, QueryKind::Dirty, QueryKind::Tower, QueryKind::Shifted]
        {
            let synth = Synth::of_kind(kind, n, dim, seed).unwrap().query_kind(queries);
            synths.push((format!("{kind}, {n} x {dim}, seed {seed}, queries {queries}"), synth));
        }
    }
    synths
}

#[test]
fn a_part_of_synthetic_data_equals_that_part_of_the_whole() {
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
fn synthetic_data_does_not_depend_on_threads() {
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
fn written_synthetic_data_equals_generated() {
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
fn rows_of_every_type_come_from_the_same_values() {
    let folder = Folder::new();
    for (case, synth) in synths(700, 9, 3) {
        let values = all(&synth.rows(0..710).unwrap());
        for (element, format) in [
            (ElementType::F16, Format::F16bin),
            (ElementType::Bf16, Format::Bf16bin),
            (ElementType::U8, Format::U8bin),
            (ElementType::U8, Format::Bvecs),
            (ElementType::I8, Format::I8bin),
            (ElementType::B1, Format::B1bin),
        ] {
            let typed = synth.clone().element_type(element);
            let rows = typed.rows(0..710).unwrap();
            assert_eq!((rows.element_type(), rows.len()), (element, 710));
            let found = all(&rows);
            // Parts, and files, are those of the whole.
            assert_eq!(all(&typed.base()), found[..700 * 9], "{case}, {element}");
            assert_eq!(all(&typed.queries(10)), found[700 * 9..], "{case}, {element}");
            let path = folder.path("rows");
            typed.write(0..710, &path, format, &Progress::silent()).unwrap();
            let written = Vectors::open_as(&path, format).unwrap();
            assert_eq!((written.element_type(), all(&written)), (element, found.clone()), "{case}, {format}");
            // Order is kept: the types round the same values.
            let mut pairs: Vec<(f32, f32)> = values.iter().copied().zip(found).collect();
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(pairs.is_sorted_by(|a, b| a.1 <= b.1), "{case}, {element}");
        }
    }
}

#[test]
fn invalid_writes_of_synthetic_data_are_refused() {
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
