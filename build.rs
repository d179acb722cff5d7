//! Finds the PTX of the kernels in `device/`, and that of the test kernels in `cuda/check/`:
//! checked in, or compiled if their sources have changed. `TAGORE_PTX` = `checked-in`, `build` or
//! `write` chooses; `write` remakes both files.
//!
//! A package holds no sources of kernels; there the crates of kernels ship their PTX.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cuda_builder::{NvvmArch, Shipped, Source};

/// A crate of kernels.
struct Kernels {
    package: &'static str,
    folder: &'static str,
    ptx: &'static str,
    /// The environment variable through which the crate gets the path of the PTX.
    variable: &'static str,
}

const ALL: [Kernels; 2] = [
    Kernels {
        package: "tagore-device",
        folder: "device",
        ptx: "device/ptx/tagore.sm_80.ptx",
        variable: "TAGORE_PTX_FILE",
    },
    // For the check of every device: see host/gpu/self_check.rs.
    Kernels {
        package: "tagore-cuda-check",
        folder: "cuda/check",
        ptx: "cuda/check/ptx/check.sm_80.ptx",
        variable: "TAGORE_CHECK_PTX_FILE",
    },
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(ptx_from_sources)");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match find_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("cargo::error={}", problem.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn find_all() -> Result<(), String> {
    let folder =
        |name: &str| env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set by cargo"));
    let (root, out) = (folder("CARGO_MANIFEST_DIR")?, folder("OUT_DIR")?);
    let source = Source::from_env("TAGORE_PTX")?;
    if !ALL.iter().all(|kernels| root.join(kernels.folder).join("Cargo.toml").is_file()) {
        return match source {
            Source::Auto | Source::CheckedIn => Ok(()),
            Source::Build | Source::Write => {
                Err("TAGORE_PTX: found build or write in a package, expected the repository".to_owned())
            }
        };
    }
    println!("cargo:rustc-cfg=ptx_from_sources");
    for kernels in ALL {
        let ptx = find(&kernels, source, (&root, &out))?;
        println!("cargo:rustc-env={}={}", kernels.variable, ptx.display());
    }
    Ok(())
}

fn find(kernels: &Kernels, source: Source, (root, out): (&Path, &Path)) -> Result<PathBuf, String> {
    let shipped = Shipped {
        root: root.to_owned(),
        crate_path: kernels.folder.into(),
        package: kernels.package.to_owned(),
        sources: [kernels.folder, "cuda/cuda_std", "cuda/cuda_std_macros"].map(PathBuf::from).to_vec(),
        ptx: kernels.ptx.into(),
        arch: NvvmArch::Compute80,
    };
    shipped.resolve(source, out).map_err(|error| error.to_string())
}
