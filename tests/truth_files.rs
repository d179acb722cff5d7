//! Files of ground truth: round trips, exact bytes, and errors.

use std::fs;
use std::path::Path;

use tagore::{Error, GroundTruth, Progress};

use crate::formats::{Folder, floats, longs, message, npy, words};

#[test]
fn the_file_size_tells_whether_ground_truth_has_distances() {
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
    // Of any integers; -1 is no neighbour.
    let wide = [5i64, 6, 7, 8, 9, -1];
    let array = |descr: &str, bytes: Vec<u8>| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}\n");
        let path = folder.file("gt.npy", &[&npy(&text, &bytes)]);
        GroundTruth::open(&path, &Progress::silent()).map_err(|error| message(&path, &error))
    };
    for (descr, size) in [("<i8", 8), ("<i2", 2), ("|i1", 1)] {
        let bytes = wide.iter().flat_map(|id| id.to_le_bytes()[..size].to_vec()).collect();
        assert_eq!(array(descr, bytes).unwrap(), without, "{descr}");
    }
    let bytes = |ids: &[i64]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(array("<u8", bytes(&[5, 6, 7, 8, 9, 1])).unwrap().ids(1), [8, 9, 1]);
    for (descr, id, found) in
        [("<i8", -2, "-2"), ("<i8", 1 << 32, "4294967296"), ("<u8", -1, "18446744073709551615")]
    {
        let expected = format!("found the id {found} in row 1, expected ids of 0 to 4294967295");
        assert_eq!(array(descr, bytes(&[5, 6, 7, 8, id, 1])).unwrap_err(), expected);
    }
}

#[test]
fn ground_truth_round_trips() {
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
    for name in ["gt.ivecs", "gt.ibin", "gt.npy"] {
        with.save(folder.path(name)).unwrap();
        assert_eq!(GroundTruth::open(folder.path(name), &Progress::silent()).unwrap(), without, "{name}");
    }
    assert_eq!(fs::read(folder.path("gt.ivecs")).unwrap(), words(&[2, 1, 2, 2, 3, 4]));
}

#[test]
fn ground_truth_of_another_shape_is_refused() {
    let folder = Folder::new();
    let refused = |path: &Path| message(path, &GroundTruth::open(path, &Progress::silent()).unwrap_err());
    let path = folder.file("short.bin", &[&words(&[2, 3, 0, 0, 0, 0, 0])]);
    assert_eq!(
        refused(&path),
        "found 28 bytes, expected 32, or 56 with distances, for 2 queries of 3 by its header"
    );
    let path = folder.file("range.bin", &[&words(&[2, 3, 1, 2, 7, 8, 9]), &floats(&[1.0, 2.0, 3.0])]);
    assert_eq!(
        refused(&path),
        "found the ground truth of a range search, expected a ground truth of k-nearest-neighbour search"
    );
    let path = folder.file("none.bin", &[&words(&[3, 0])]);
    assert!(refused(&path).starts_with("found 3 queries of 0 neighbours, expected at most"));
    let path = folder.file("x.ivecs", &[&words(&[2, 0, 0, 1, 0, 0])]);
    assert_eq!(refused(&path), "found 1 ids in row 1, expected 2 as in row 0");
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }\n";
    let path = folder.file("x.npy", &[&npy(text, &[0; 8])]);
    assert_eq!(
        refused(&path),
        "found a 2-D array in C order of <f8, expected a 2-D array in C order of <u4, <i4, <u8, <i8, <u2, \
         <i2, |u1, |i1"
    );
    assert!(refused(&folder.file("empty.bin", &[])).starts_with("found an empty file"));
    assert!(!cfg!(unix) || refused(&folder.path("missing.bin")).starts_with("No such file"));
    for (k, ids, distances) in [(0, 2, None), (3, 2, None), (2, 2, Some(3))] {
        let distances = distances.map(|count| vec![0.0; count]);
        assert!(matches!(GroundTruth::new(k, vec![0; ids], distances), Err(Error::Argument { .. })));
    }
}
