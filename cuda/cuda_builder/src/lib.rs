//! Compiles a crate of GPU kernels to PTX with rustc's NVPTX backend, under the names of
//! rust-cuda's `cuda_builder`.
//!
//! ```no_run
//! use cuda_builder::{CudaBuilder, NvvmArch};
//! let ptx = CudaBuilder::new("device").arch(NvvmArch::Compute80).build()?;
//! # Ok::<(), cuda_builder::CudaBuilderError>(())
//! ```
//!
//! The compiler is not the one that builds the host: see [`Toolchain::find`]. A project whose users
//! need no such compiler ships its PTX, with [`Shipped`].
//!
//! Some of rust-cuda's setters have no counterpart in this backend: `nvvm_opts`, `ftz`,
//! `fast_sqrt`, `fast_div`, `fma_contraction`, `override_libm` and `use_constant_memory_space`
//! (arithmetic is IEEE 754, never fused or flushed, and there is no libm), `optix`, `emit_llvm_ir`,
//! `emit_llvm_bitcode`, `final_module_path` and `debug`.

// Compiles and runs the code in the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod counts;
mod ptx;
mod shipped;
mod toolchain;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

pub use counts::{Counts, counts};
pub use shipped::{Shipped, Source};
pub use toolchain::{NIGHTLY, Toolchain};

/// An error of compiling or checking PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaBuilderError {
    /// The path holds no crate.
    #[error("{}: found no Cargo.toml, expected a crate of kernels", .0.display())]
    CratePathDoesntExist(PathBuf),
    /// No compiler for PTX was found.
    #[error(
        "no compiler for nvptx64-nvidia-cuda: expected `rustup toolchain install {NIGHTLY} --component \
         rust-src`, or a system rustc with its library source, or the environment variable \
         CUDA_BUILDER_RUSTC with the path of one"
    )]
    NoToolchain,
    /// The compiler failed.
    #[error("cargo of {compiler} failed to build {}:\n{messages}", path.display())]
    BuildFailed {
        /// The compiler's version.
        compiler: String,
        /// The crate.
        path: PathBuf,
        /// Its output.
        messages: String,
    },
    /// The PTX is incomplete or differs from the expected one.
    #[error("PTX of {}: {problem}", path.display())]
    BadPtx {
        /// The crate, or the file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CudaBuilderError + '_ {
    move |source| CudaBuilderError::Io { path: path.to_owned(), source }
}

/// A compute capability, the target of PTX. Newer devices run it too, except for variants with an
/// `a`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvvmArch {
    /// 8.0: Ampere data centre, the oldest supported.
    #[default]
    Compute80,
    /// 8.6: Ampere.
    Compute86,
    /// 8.9: Ada.
    Compute89,
    /// 9.0: Hopper.
    Compute90,
    /// 9.0 with the features of Hopper alone.
    Compute90a,
    /// 10.0: Blackwell data centre.
    Compute100,
    /// 12.0: Blackwell.
    Compute120,
}

impl NvvmArch {
    /// The compiler's name of the capability, such as `sm_80`.
    pub const fn sm(self) -> &'static str {
        match self {
            Self::Compute80 => "sm_80",
            Self::Compute86 => "sm_86",
            Self::Compute89 => "sm_89",
            Self::Compute90 => "sm_90",
            Self::Compute90a => "sm_90a",
            Self::Compute100 => "sm_100",
            Self::Compute120 => "sm_120",
        }
    }

    /// The capability times ten.
    pub const fn capability_value(self) -> u32 {
        match self {
            Self::Compute80 => 80,
            Self::Compute86 => 86,
            Self::Compute89 => 89,
            Self::Compute90 | Self::Compute90a => 90,
            Self::Compute100 => 100,
            Self::Compute120 => 120,
        }
    }
}

/// Environment variables of the outer build that would change the inner one.
const NOT_INHERITED: [&str; 10] = [
    // Incremental builds divide a crate, and so place registers differently.
    "CARGO_INCREMENTAL",
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET",
];

/// Compiler flags beside the architecture. rustc's jump threading copies barriers into branches,
/// which deadlocks, so it is off.
const FLAGS: [&str; 1] = ["-Zmir-enable-passes=-JumpThreading"];

/// Cargo settings: one module with everything in it, so that no linker is needed. All settings of a
/// profile, since names of symbols depend on each, and the workspace may set any.
const PROFILE: [&str; 11] = [
    "profile.release.lto=\"fat\"",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.opt-level=3",
    "profile.release.debug=false",
    "profile.release.overflow-checks=false",
    "profile.release.debug-assertions=false",
    "profile.release.incremental=false",
    "profile.release.rpath=false",
    "profile.release.split-debuginfo=\"off\"",
    "profile.release.strip=\"none\"",
];

/// Compiles a crate of kernels to PTX.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    path: PathBuf,
    arch: NvvmArch,
    copy_to: Option<PathBuf>,
    build_args: Vec<OsString>,
    toolchain: Option<Toolchain>,
}

impl CudaBuilder {
    /// A builder for the crate in a folder, for compute capability 8.0.
    pub fn new(path_to_crate_root: impl AsRef<Path>) -> Self {
        Self {
            path: path_to_crate_root.as_ref().to_owned(),
            arch: NvvmArch::default(),
            copy_to: None,
            build_args: Vec::new(),
            toolchain: None,
        }
    }

    /// Sets the compute capability.
    #[must_use]
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// Sets a path to which the PTX is copied.
    #[must_use]
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_owned());
        self
    }

    /// Adds arguments for cargo, such as `--features`.
    #[must_use]
    pub fn build_args(mut self, arguments: &[impl AsRef<str>]) -> Self {
        self.build_args.extend(arguments.iter().map(|argument| argument.as_ref().into()));
        self
    }

    /// Sets the compiler; by default that of [`Toolchain::find`].
    #[must_use]
    pub fn toolchain(mut self, toolchain: Toolchain) -> Self {
        self.toolchain = Some(toolchain);
        self
    }

    /// Compiles the crate; returns the path of the PTX.
    ///
    /// In a build script, tells cargo to watch the crate's folder.
    ///
    /// # Errors
    /// If there is no compiler, it fails, or the PTX calls functions that it does not hold.
    pub fn build(self) -> Result<PathBuf, CudaBuilderError> {
        if !self.path.join("Cargo.toml").is_file() {
            return Err(CudaBuilderError::CratePathDoesntExist(self.path));
        }
        let toolchain =
            self.toolchain.clone().or_else(Toolchain::find).ok_or(CudaBuilderError::NoToolchain)?;
        let out = env::var_os("OUT_DIR").map_or_else(env::temp_dir, PathBuf::from);
        // One folder per crate: its `.s` file is found by being the only one.
        let build_folder = out.join("ptx-build").join(self.path.file_name().unwrap_or_default());
        let products = build_folder.join("nvptx64-nvidia-cuda/release/deps");
        let messages = self.compile(&toolchain, &build_folder)?;
        // Cargo keeps the file if nothing has changed.
        let [assembly] = &assembly(&products)?[..] else {
            let problem = format!("found not one .s file in {}\n{messages}", products.display());
            return Err(CudaBuilderError::BadPtx { path: self.path, problem });
        };
        let text = fs::read_to_string(assembly).map_err(io_error(assembly))?;
        let text = ptx::finish(&text)
            .map_err(|problem| CudaBuilderError::BadPtx { path: self.path.clone(), problem })?;
        let target = self.copy_to.clone().unwrap_or_else(|| assembly.with_extension("ptx"));
        fs::write(&target, text).map_err(io_error(&target))?;
        if env::var_os("OUT_DIR").is_some() {
            say(&format!("cargo:rerun-if-changed={}", self.path.display()));
        }
        Ok(target)
    }

    fn compile(&self, toolchain: &Toolchain, build_folder: &Path) -> Result<String, CudaBuilderError> {
        let mut command = Command::new(toolchain.cargo());
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command
            .env("RUSTC", toolchain.rustc())
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", flags(self.arch))
            .current_dir(&self.path)
            .args(["rustc", "--release", "--lib", "--crate-type", "cdylib"])
            .args(["--target", "nvptx64-nvidia-cuda", "-Zbuild-std=core", "--locked", "--target-dir"])
            .arg(build_folder);
        for setting in PROFILE {
            command.args(["--config", setting]);
        }
        command.args(&self.build_args).args(["--", "--emit=asm", "-Clinker=/bin/true"]);
        let output = command.output().map_err(io_error(toolchain.cargo()))?;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            let compiler = toolchain.version().to_owned();
            return Err(CudaBuilderError::BuildFailed { compiler, path: self.path.clone(), messages });
        }
        Ok(messages)
    }
}

/// The compiler's flags as the value of the environment variable.
fn flags(arch: NvvmArch) -> String {
    format!("-Ctarget-cpu={} {}", arch.sm(), FLAGS.join(" "))
}

fn assembly(folder: &Path) -> Result<Vec<PathBuf>, CudaBuilderError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_error(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "s") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Prints a directive to cargo, in a build script.
#[expect(clippy::print_stdout, reason = "that is how build scripts speak to cargo")]
fn say(line: &str) {
    println!("{line}");
}
