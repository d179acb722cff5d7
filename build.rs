//! Locates the PTX of the kernels in `device/`: the checked-in file, or a new compilation if their
//! sources changed. `TAGORE_PTX` = `checked-in` or `build` forces one of them; `write` compiles and
//! replaces the checked-in file.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use cuda_builder::{NvvmArch, Shipped, Source};

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match find() {
        Ok(ptx) => {
            println!("cargo:rustc-env=TAGORE_PTX_FILE={}", ptx.display());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("cargo::error={}", problem.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn find() -> Result<PathBuf, String> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(format!("cargo did not set {name}"));
    let (root, out) = (folder("CARGO_MANIFEST_DIR")?, folder("OUT_DIR")?);
    let shipped = Shipped {
        root,
        crate_path: "device".into(),
        package: "tagore-device".to_owned(),
        sources: ["device", "cuda/cuda_std", "cuda/cuda_std_macros"].map(PathBuf::from).to_vec(),
        ptx: "device/ptx/tagore.sm_80.ptx".into(),
        arch: NvvmArch::Compute80,
    };
    shipped.resolve(Source::from_env("TAGORE_PTX")?, &out).map_err(|error| error.to_string())
}
