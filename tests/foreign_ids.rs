//! Ids that files of other systems have for rows.

use std::fs;

use tagore::{Index, IndexFormat, Metric, Progress, Vectors};

use super::foreign::{assert_same_rows, base, golden, tiny};

#[test]
fn labels_of_hnswlib_that_are_no_rows_are_ids() {
    let mut bytes = fs::read(golden("chain.hnswlib")).unwrap();
    let labels = [7, 1, 2, 3, 1u64 << 40];
    for (element, label) in labels.into_iter().enumerate() {
        bytes[96 + 32 * element + 24..][..8].copy_from_slice(&label.to_le_bytes());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, &bytes).unwrap();
    let read = |base: &Vectors| {
        Index::import(&path, IndexFormat::Hnswlib, base, Metric::L2, &Progress::silent()).unwrap()
    };
    let index = read(&base());
    assert_same_rows(&index, &tiny(IndexFormat::Hnswlib), "own labels");
    assert_eq!(index.imported_ids().unwrap().as_slice(), labels);
    assert_eq!(index.description().parameters["ids-left-out"], "5");
    // Rows of the base in another order than that of the file.
    let order = [3, 0, 4, 1, 2];
    let rows = order.map(|row| base().row_to_f32(row).unwrap().into_owned());
    let index = read(&Vectors::from_rows(rows).unwrap());
    assert_eq!(index.imported_ids().unwrap().as_slice(), order.map(|row| labels[row]));
    for (row, element) in order.into_iter().enumerate() {
        let found = index.neighbors(row).iter().map(|&id| order[id as usize] as u32).collect::<Vec<_>>();
        assert_eq!(found, tiny(IndexFormat::Hnswlib).neighbors(element), "row {row}");
    }
}

/// A FAISS index of the golden files in an `IndexIDMap`.
fn mapped(name: &str, magic: &[u8; 4], ids: &[i64]) -> Vec<u8> {
    let inner = fs::read(golden(name)).unwrap();
    let ids = ids.iter().flat_map(|id| id.to_le_bytes());
    [magic, &inner[4..37], &inner, &5u64.to_le_bytes()].concat().into_iter().chain(ids).collect()
}

#[test]
fn ids_of_faiss_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let read = |bytes: &[u8], format, base: &Vectors| {
        fs::write(&path, bytes).unwrap();
        Index::import(&path, format, base, Metric::L2, &Progress::silent()).map_err(|error| error.to_string())
    };
    let ids = [3, 0, 4, 1, 2i64];
    let values: Vec<u8> = {
        let mut rows = [[0u8; 2]; 5];
        ids.iter().enumerate().for_each(|(place, &id)| {
            let row = base().row_to_f32(place).unwrap().into_owned();
            rows[id as usize] = [row[0] as u8, row[1] as u8];
        });
        rows.concat()
    };
    let ordered = Vectors::from_u8(values, 2).unwrap();
    for (name, format) in
        [("chain.faiss-hnsw", IndexFormat::FaissHnsw), ("chain.faiss-nsg", IndexFormat::FaissNsg)]
    {
        let plain = tiny(format);
        for magic in [b"IxMp", b"IxM2"] {
            let index = read(&mapped(name, magic, &ids), format, &ordered).unwrap();
            for place in 0..5 {
                let expected: Vec<u32> =
                    plain.neighbors(place).iter().map(|&id| ids[id as usize] as u32).collect();
                assert_eq!(index.neighbors(ids[place] as usize), expected, "{name}, node {place}");
            }
            assert_eq!(index.entries(), [4], "{name}");
            assert!(!index.description().parameters.contains_key("ids-left-out"));
        }
        // Ids that are no rows are left out, and counted.
        let index = read(&mapped(name, b"IxMp", &[7, 1, 2, 3, -4]), format, &base()).unwrap();
        assert_same_rows(&index, &plain, name);
        assert_eq!(index.description().parameters["ids-left-out"], "5");
        assert!(index.imported_ids().is_none(), "an id below 0");
        let index = read(&mapped(name, b"IxMp", &[7, 1, 2, 3, 1 << 40]), format, &base()).unwrap();
        assert_eq!(index.imported_ids().unwrap().as_slice(), [7, 1, 2, 3, 1 << 40]);
        let error = read(&mapped(name, b"IxMp", &[0, 1, 2, 3, 3]), format, &base()).unwrap_err();
        assert!(error.contains("another vector of node 3") || error.contains("label 3 twice"), "{error}");
        let error = read(&mapped(name, b"IxMp", &[0, 1, 2, 3]), format, &base()).unwrap_err();
        assert!(error.contains("ids (5 x 8 bytes)"), "{error}");
        let mut twice = mapped(name, b"IxMp", &[0, 1, 2, 3, 4]);
        twice[37..41].copy_from_slice(b"IxMp");
        assert!(read(&twice, format, &base()).unwrap_err().contains("kind of index IxMp"));
    }
}
