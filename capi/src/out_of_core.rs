//! Builds to a file, cluster by cluster where memory is short.

use std::ffi::c_char;

use tagore::Vectors;
use tagore::outofcore::{Limits, OutOfCore, default_work_folder, unfinished};

use crate::builder::tagore_builder;
use crate::pointers::{Input, path, read_if, required, structs};
use crate::progress::tagore_progress;
use crate::status::{call, tagore_status};
use crate::vectors::tagore_vectors;

/// Limits of a build. Zero is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_limits {
    /// sizeof(tagore_limits)
    pub size: usize,
    /// Bytes of host memory, without the mapped vectors; 0 for free memory less an eighth.
    pub host_memory: u64,
    /// Bytes of device memory; 0 for free memory less a sixteenth.
    pub gpu_memory: u64,
    /// The largest number of vectors in a cluster; 0 for no limit.
    pub cluster_size: usize,
    /// A folder for work files, empty or new; null for the file's name and ".work".
    pub work_folder: *const c_char,
    /// Not 0: continues a build that was stopped, if its work files exist.
    pub resume: i32,
    /// 0
    pub reserved: i32,
}

structs!(tagore_limits);

/// Builds the index of `vectors` into a file, which appears when it is complete: in memory if that
/// fits the limits, else cluster by cluster with work files. `limits` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_build_file(
    builder: Option<&tagore_builder>,
    vectors: Option<&tagore_vectors>,
    file: Input<'_, c_char>,
    limits: Input<'_, tagore_limits>,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| {
        let builder = required(builder, "builder")?.with(progress)?;
        let base: &Vectors = &required(vectors, "vectors")?.0;
        let (file, options) = (path(file, "file")?, read_if(limits)?);
        let given = options.map_or_else(Limits::default, |options| Limits {
            host_memory: Some(options.host_memory).filter(|&bytes| bytes > 0),
            gpu_memory: Some(options.gpu_memory).filter(|&bytes| bytes > 0),
            cluster_size: Some(options.cluster_size).filter(|&size| size > 0),
        });
        let resume = options.is_some_and(|options| options.resume != 0);
        let work = match options {
            Some(options) if !options.work_folder.is_null() => {
                // SAFETY: by the header, a text that does not change during the call.
                path(unsafe { Input::new(options.work_folder) }, "work_folder")?
            }
            _ => default_work_folder(&file),
        };
        let build = match OutOfCore::within(&builder, base, &given)? {
            Some(build) => Some(build),
            None => {
                unfinished(&work, base, &given, resume)?.map(|plan| OutOfCore::new(builder.clone(), plan))
            }
        };
        match build {
            Some(build) => build.resume(resume).work_dir(work).build(base, &file).map(drop)?,
            None => builder.build(base)?.save(file)?,
        }
        Ok(())
    })
}
