//! The manifest of a work folder: which build its files belong to.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::sealed::{self, Parameters, check_parameters};
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
    pub parameters: Parameters,
    /// The clusters. A resumed build keeps them, whatever memory is free then.
    pub plan: ClusterPlan,
}

impl Manifest {
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        sealed::save(path, "manifest", self)
    }

    /// Reads the manifest at `path` from its content.
    ///
    /// # Errors
    /// If it is damaged or of another version.
    pub(super) fn read(path: &Path, content: &[u8]) -> Result<Self> {
        let remedy = "delete the folder to build anew";
        sealed::read_all("manifest", content)
            .map_err(|flaw| flaw.error(path, "the manifest of a build", remedy))
    }
}

/// The plan of the build that left work files in `folder` before it ended, within the `given`
/// limits; `None` if no build did. For a build that needs no work files: such a build would leave
/// those of the other one.
///
/// # Errors
/// [`Error::Unfinished`] unless `resume` is set; or if the build was of another data set than
/// `base`, or its manifest is damaged or of another version.
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
    let Manifest { mut parameters, plan } = Manifest::read(&path, &content)?;
    parameters.retain(|name, _| name == INPUT);
    check_parameters(&path, &parameters, &[(INPUT.to_owned(), input(base)?)].into())?;
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
