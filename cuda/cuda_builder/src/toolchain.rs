//! Compilers for PTX: a rustc with unstable flags, and its library source.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The nightly for users of rustup, with the LLVM of the shipped PTX's compiler.
pub const NIGHTLY: &str = "nightly-2026-04-10";

/// A compiler for nvptx64-nvidia-cuda.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    version: String,
}

impl Toolchain {
    /// Finds the first of these that is installed with its library source: the rustc named by the
    /// environment variable `CUDA_BUILDER_RUSTC`; the nightly [`NIGHTLY`] of rustup; the system's
    /// `/usr/bin/rustc`. Installs and downloads nothing.
    pub fn find() -> Option<Self> {
        let named = env::var_os("CUDA_BUILDER_RUSTC").filter(|path| !path.is_empty());
        if let Some(rustc) = named {
            return Self::at(Path::new(&rustc));
        }
        let nightly = output(Command::new("rustup").args(["which", "--toolchain", NIGHTLY, "rustc"]));
        nightly
            .and_then(|rustc| Self::at(Path::new(rustc.trim())))
            .or_else(|| Self::at(Path::new("/usr/bin/rustc")))
    }

    /// The toolchain of this rustc, if it has its library source and a cargo beside it.
    pub fn at(rustc: &Path) -> Option<Self> {
        let ask = |argument: &str| {
            output(Command::new(rustc).arg(argument).arg("sysroot").env_remove("RUSTUP_TOOLCHAIN"))
        };
        let sysroot = ask("--print")?;
        let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        let cargo = rustc.with_file_name("cargo");
        if !library.is_file() || !cargo.is_file() {
            return None;
        }
        let verbose = output(Command::new(rustc).arg("-vV"))?;
        let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let version = format!("rustc {}, LLVM {}", field("release:")?, field("LLVM version:")?);
        Some(Self { rustc: rustc.to_owned(), cargo, version })
    }

    /// The compiler.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// Its cargo.
    pub fn cargo(&self) -> &Path {
        &self.cargo
    }

    /// Its version and that of its LLVM, such as `rustc 1.96.0, LLVM 22.1.8`.
    pub fn version(&self) -> &str {
        &self.version
    }
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
