//! The manifest of a work folder: which build its files belong to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic_file::AtomicFile;
use crate::outofcore::plan::{ClusterPlan, Limits};
use crate::regular_file::{open_planted, read_at_most};
use crate::{Error, Fingerprint, Result, Vectors};

pub(super) const MANIFEST: &str = "manifest.json";

/// Maximum size of a manifest in bytes.
const MAX_MANIFEST: u64 = 1 << 20;

/// Identity of the build of a work folder.
#[derive(Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The data set and all parameters that decide the index, by their names on the command line.
    pub parameters: BTreeMap<String, String>,
    /// The clusters. A resumed build keeps them, whatever memory is free then.
    pub plan: ClusterPlan,
}

/// The manifest in its file.
#[derive(Serialize, Deserialize)]
struct Sealed<M> {
    manifest: M,
    /// CRC-32 of the manifest as compact JSON.
    crc: u32,
}

impl Manifest {
    fn crc(&self) -> serde_json::Result<u32> {
        Ok(crc32fast::hash(&serde_json::to_vec(self)?))
    }

    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let json = self.crc().and_then(|crc| serde_json::to_vec_pretty(&Sealed { manifest: self, crc }));
        let mut file = AtomicFile::create(path)?;
        file.write_all(&json.map_err(|error| Error::io(path)(error.into()))?)?;
        file.commit()
    }

    /// Parses a manifest; `None` if it is damaged.
    pub(super) fn read(content: &[u8]) -> Option<Self> {
        let Sealed { manifest, crc }: Sealed<Self> = serde_json::from_slice(content).ok()?;
        manifest.crc().is_ok_and(|found| found == crc).then_some(manifest)
    }
}

/// The plan of the build that left work files in `folder` before it ended, within the `given`
/// limits; `None` if no build did. For a build that needs no work files: such a build would leave
/// those of the other one.
///
/// # Errors
/// [`Error::Unfinished`] unless `resume` is set; or if the build was of another data set than
/// `base`, or its manifest is damaged.
pub fn unfinished(
    folder: &Path,
    base: &Vectors,
    given: &Limits,
    resume: bool,
) -> Result<Option<ClusterPlan>> {
    let path = folder.join(MANIFEST);
    // Nothing of a build that has not begun, or of one whose index is complete, is missed.
    if fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    if !resume {
        return Err(Error::Unfinished { folder: folder.to_owned() });
    }
    let content = read_at_most(&open_planted(&path, false)?, &path, MAX_MANIFEST)?;
    let Manifest { parameters, plan } = Manifest::read(&content).ok_or_else(|| damaged(&path))?;
    let (before, now) = (parameters.get(INPUT), input(base)?);
    if before != Some(&now) {
        return Err(other_parameter(&path, INPUT, before, Some(&now)));
    }
    plan.check(base.len())?;
    Ok(Some(ClusterPlan { limits: *given, ..plan }))
}

/// The name of the parameter that tells data sets apart.
pub(crate) const INPUT: &str = "input";

/// The value of that parameter for `base`.
pub(crate) fn input(base: &Vectors) -> Result<String> {
    let Fingerprint { rows, dim, element, hash } = Fingerprint::compute(base)?;
    Ok(format!("{rows} x {dim} {element}, hash {hash:016x}"))
}

pub(super) fn damaged(manifest: &Path) -> Error {
    Error::file(manifest, "damage", "the manifest of a build; delete the folder to build anew")
}

/// The error for work files whose parameter `key` was another one `before`.
pub(super) fn other_parameter(
    manifest: &Path,
    key: &str,
    before: Option<&String>,
    now: Option<&String>,
) -> Error {
    let describe = |value: Option<&String>| match value {
        Some(value) => format!("{key} {value}"),
        None => format!("no {key}"),
    };
    let now = describe(now);
    let expected = format!("{now}; resume with the parameters of the work files, or choose another folder");
    Error::file(manifest, describe(before), expected)
}
