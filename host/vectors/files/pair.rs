//! Ground truth as a pair of files, ids and distances, as cuVS's benchmarks read it.

use std::path::{Path, PathBuf};

use tagore_text::grouped;

use crate::file_set::{PairFile, check_pair};
use crate::vectors::{Format, GroundTruth, Vectors, open_ids_as};
use crate::{Error, Progress, Result};

impl GroundTruth {
    /// The files of a pair: `stem.neighbors.ibin`, `stem.distances.fbin`, and their checksums
    /// `stem.crc32`.
    pub fn pair_files(stem: impl AsRef<Path>) -> [PathBuf; 3] {
        let with = |extension: &str| {
            let mut name = stem.as_ref().as_os_str().to_owned();
            name.push(extension);
            name.into()
        };
        [with(".neighbors.ibin"), with(".distances.fbin"), with(".crc32")]
    }

    /// Writes ids and distances to the files of [`pair_files`](Self::pair_files). The file of
    /// distances appears last: if it exists, all three belong together.
    ///
    /// # Errors
    /// If there are no distances, or a file cannot be written.
    pub fn save_pair(&self, stem: impl AsRef<Path>) -> Result<()> {
        let stem = stem.as_ref();
        let [ids_path, distances_path, sums] = Self::pair_files(stem);
        if !self.has_distances() {
            return Err(Error::file(stem, "ids alone", "ids and distances for a pair of files"));
        }
        let mut ids = PairFile::create(&ids_path, self.len(), self.k())?;
        let mut distances = PairFile::create(&distances_path, self.len(), self.k())?;
        for query in 0..self.len() {
            ids.write_all(bytemuck::cast_slice(self.ids(query)))?;
            distances.write_all(bytemuck::cast_slice(self.distances(query).unwrap_or_default()))?;
        }
        PairFile::commit(ids, distances, &sums)
    }

    /// Reads the files of [`save_pair`](Self::save_pair), or those of another program, without
    /// checksums.
    ///
    /// # Errors
    /// If a file cannot be read, the shapes differ, a checksum does not match, or the work is
    /// cancelled.
    pub fn open_pair(stem: impl AsRef<Path>, progress: &Progress) -> Result<Self> {
        let [ids_path, distances_path, sums] = Self::pair_files(stem);
        // SAFETY: the distances are copied below, and nothing of the map is used later.
        let values = unsafe { Vectors::map_as(&distances_path, Format::Fbin) }?;
        let table = open_ids_as(&ids_path, Format::Ibin, progress)?;
        check_pair(&sums, [&ids_path, &distances_path], progress)?;
        if (values.len(), values.dim()) != (table.rows, table.cols) {
            let found = format!("{} x {}", grouped(values.len()), values.dim());
            let expected = format!("{} x {} as {} has", grouped(table.rows), table.cols, ids_path.display());
            return Err(Error::file(&distances_path, found, expected));
        }
        let distances = values.floats(|_| progress.check())?;
        Self::new(table.cols, table.ids, Some(distances))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_pair_round_trips_and_mixed_pairs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let truth =
            |first: u32| GroundTruth::new(2, vec![first, 1, 2, 3], Some(vec![0.0, 1.0, 0.5, 0.5])).unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other.v2"));
        truth(0).save_pair(&one).unwrap();
        truth(9).save_pair(&other).unwrap();
        assert_eq!(GroundTruth::open_pair(&one, &Progress::silent()).unwrap(), truth(0));
        assert_eq!(GroundTruth::open_pair(&other, &Progress::silent()).unwrap(), truth(9));
        let [ids, distances, sums] = GroundTruth::pair_files(&one);
        fs::copy(&GroundTruth::pair_files(&other)[0], &ids).unwrap();
        let error = GroundTruth::open_pair(&one, &Progress::silent()).unwrap_err().to_string();
        assert!(
            error.contains("one.neighbors.ibin: found ") && error.contains("one.crc32 records"),
            "{error}"
        );
        // Without checksums a mixed pair goes unnoticed.
        fs::remove_file(sums).unwrap();
        assert_eq!(GroundTruth::open_pair(&one, &Progress::silent()).unwrap(), truth(9));
        fs::remove_file(distances).unwrap();
        assert!(GroundTruth::open_pair(&one, &Progress::silent()).is_err());
        let ids_alone = GroundTruth::new(1, vec![0], None).unwrap();
        assert!(ids_alone.save_pair(&one).unwrap_err().to_string().contains("found ids alone"));
    }
}
