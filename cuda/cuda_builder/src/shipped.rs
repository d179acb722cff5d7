//! PTX that is checked in beside its sources, for users without its compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::{CudaBuilder, CudaBuilderError, NvvmArch, PROFILE, Toolchain, counts, flags, io_error, say};

/// Checked-in PTX and its sources.
///
/// The header of the PTX holds the version of the compiler, a hash of the sources and the
/// compiler's flags, a hash of the locked versions of the crates that it depends on, and a hash of
/// the PTX itself.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// The root folder, with the `Cargo.lock`. The other paths are relative to it.
    pub root: PathBuf,
    /// The crate of kernels.
    pub crate_path: PathBuf,
    /// The name of that crate's package.
    pub package: String,
    /// The folders of all crates whose sources are hashed.
    pub sources: Vec<PathBuf>,
    /// The PTX file. A file beside it with the extension `counts` holds the numbers of
    /// synchronising instructions per kernel.
    pub ptx: PathBuf,
    /// The compute capability.
    pub arch: NvvmArch,
}

/// The source of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The checked-in file if it and its sources are unchanged; or else a compiler, if there is
    /// one.
    Auto,
    /// The checked-in file.
    CheckedIn,
    /// A compiler.
    Build,
    /// A compiler; the checked-in file is overwritten.
    Write,
}

impl Source {
    /// Reads the environment variable `name`: `build`, `checked-in`, `write`, or unset.
    ///
    /// # Errors
    /// If it has another value.
    pub fn from_env(name: &str) -> Result<Self, String> {
        say(&format!("cargo:rerun-if-env-changed={name}"));
        match env::var(name).as_deref() {
            Err(_) | Ok("") => Ok(Self::Auto),
            Ok("checked-in") => Ok(Self::CheckedIn),
            Ok("build") => Ok(Self::Build),
            Ok("write") => Ok(Self::Write),
            Ok(other) => Err(format!("{name}: found {other}, expected build, checked-in or write")),
        }
    }
}

impl Shipped {
    /// The path of the PTX to embed: the checked-in file, or one compiled in `out`.
    ///
    /// # Errors
    /// If the file is out of date and no compiler is found, or the compiler fails.
    pub fn resolve(&self, source: Source, out: &Path) -> Result<PathBuf, CudaBuilderError> {
        for folder in &self.sources {
            say(&format!("cargo:rerun-if-changed={}", self.root.join(folder).display()));
        }
        let file = self.root.join(&self.ptx);
        say(&format!("cargo:rerun-if-changed={}", file.display()));
        let current = self.is_current(&file)?;
        let compiled = out.join(file.file_name().unwrap_or("kernels.ptx".as_ref()));
        match source {
            Source::Auto | Source::CheckedIn if current => Ok(file),
            Source::CheckedIn => Err(self.out_of_date("the PTX that is checked in was asked for")),
            Source::Auto => match Toolchain::find() {
                Some(toolchain) => self.compile(toolchain, &compiled),
                None => Err(self.out_of_date("no compiler for nvptx64-nvidia-cuda was found")),
            },
            Source::Build => self.compile(self.toolchain()?, &compiled),
            Source::Write => {
                let written = self.compile(self.toolchain()?, &file)?;
                let text = fs::read_to_string(&written).map_err(io_error(&written))?;
                let lines: String = counts(&text).iter().map(|count| format!("{count}\n")).collect();
                let beside = file.with_extension("counts");
                fs::write(&beside, lines).map_err(io_error(&beside))?;
                Ok(written)
            }
        }
    }

    fn toolchain(&self) -> Result<Toolchain, CudaBuilderError> {
        Toolchain::find().ok_or(CudaBuilderError::NoToolchain)
    }

    fn out_of_date(&self, why: &str) -> CudaBuilderError {
        let problem = format!(
            "found one that was edited, or made from other sources than {}, expected the same: {why}; make it anew with \
             TAGORE_PTX=write cargo check, which needs a compiler",
            self.crate_path.display()
        );
        CudaBuilderError::BadPtx { path: self.ptx.clone(), problem }
    }

    fn compile(&self, toolchain: Toolchain, target: &Path) -> Result<PathBuf, CudaBuilderError> {
        let header = format!(
            "// Generated from {}; do not edit.\n// compiler: {}\n{}",
            self.crate_path.display(),
            toolchain.version(),
            self.hashes()?
        );
        let built = CudaBuilder::new(self.root.join(&self.crate_path))
            .arch(self.arch)
            .toolchain(toolchain)
            .build()?;
        let text = fs::read_to_string(&built).map_err(io_error(&built))?;
        fs::write(target, with_code_hash(&header, &text)).map_err(io_error(target))?;
        Ok(target.to_owned())
    }

    /// Whether the file is as it was compiled, from the present sources.
    fn is_current(&self, file: &Path) -> Result<bool, CudaBuilderError> {
        let Ok(text) = fs::read_to_string(file) else { return Ok(false) };
        let hashes = self.hashes()? + &code_line(&text);
        Ok(hashes.lines().all(|line| text.lines().take(8).any(|other| other == line)))
    }

    /// The lines of the header with hashes. Without a lock file, as in a package, dependencies are
    /// not compared.
    fn hashes(&self) -> Result<String, CudaBuilderError> {
        let mut hash = Hash::new();
        hash.add(flags(self.arch).as_bytes());
        hash.add(PROFILE.join(" ").as_bytes());
        for folder in &self.sources {
            let mut files = Vec::new();
            sources(&self.root.join(folder), &mut files)?;
            files.sort();
            for file in files {
                let name = file.strip_prefix(&self.root).unwrap_or(&file);
                hash.add(name.to_string_lossy().replace('\\', "/").as_bytes());
                // Ignore line endings of a checkout.
                let text = fs::read_to_string(&file).map_err(io_error(&file))?;
                hash.add(text.replace("\r\n", "\n").as_bytes());
            }
        }
        let mut lines = format!("// sources: {:016x}\n", hash.0);
        if let Ok(lock) = fs::read_to_string(self.root.join("Cargo.lock")) {
            let mut hash = Hash::new();
            for package in locked(&lock, &self.package) {
                hash.add(package.as_bytes());
            }
            lines += &format!("// dependencies: {:016x}\n", hash.0);
        }
        Ok(lines)
    }
}

/// Begins the line of the header with the hash of all other lines.
const CODE: &str = "// code: ";

/// That line for the PTX `text`, with or without it.
fn code_line(text: &str) -> String {
    let mut hash = Hash::new();
    text.lines().filter(|line| !line.starts_with(CODE)).for_each(|line| hash.add(line.as_bytes()));
    format!("{CODE}{:016x}\n", hash.0)
}

/// The PTX `text` after its header, with the hash of both.
fn with_code_hash(header: &str, text: &str) -> String {
    [header, &code_line(&format!("{header}{text}")), text].concat()
}

/// The manifest and the Rust files below a crate's folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), CudaBuilderError> {
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let path = entry.map_err(io_error(folder))?.path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("tests") {
            sources(&path, files)?;
        } else if path.ends_with("Cargo.toml") || path.extension().is_some_and(|extension| extension == "rs")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Name, version and checksum of `package` and of all its dependencies in the lock file.
fn locked(lock: &str, package: &str) -> BTreeSet<String> {
    struct Locked<'a> {
        line: String,
        dependencies: Vec<&'a str>,
    }
    let mut packages: BTreeMap<&str, Locked<'_>> = BTreeMap::new();
    for block in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let value = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            value.map_or("", |value| value.trim_matches('"'))
        };
        let dependencies =
            block.lines().filter_map(|line| line.strip_prefix(" \"")?.split(['"', ' ']).next());
        let line = format!("{} {} {}", field("name"), field("version"), field("checksum"));
        packages.insert(field("name"), Locked { line, dependencies: dependencies.collect() });
    }
    let (mut wanted, mut lines) = (vec![package], BTreeSet::new());
    while let Some(name) = wanted.pop() {
        if let Some(found) = packages.get(name)
            && lines.insert(found.line.clone())
        {
            wanted.extend(&found.dependencies);
        }
    }
    lines
}

/// FNV-1a, 64 bits, over separated pieces.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, piece: &[u8]) {
        for &byte in piece.iter().chain(&(piece.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(folder: &Path) -> Shipped {
        fs::create_dir_all(folder.join("kernels/src")).unwrap();
        fs::write(folder.join("kernels/Cargo.toml"), "[package]\n").unwrap();
        fs::write(folder.join("kernels/src/lib.rs"), "// one\n").unwrap();
        fs::write(folder.join("Cargo.lock"), LOCK).unwrap();
        Shipped {
            root: folder.to_owned(),
            crate_path: "kernels".into(),
            package: "kernels".to_owned(),
            sources: vec!["kernels".into()],
            ptx: "kernels.ptx".into(),
            arch: NvvmArch::Compute80,
        }
    }

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"kernels\"\nversion = \"0.1.0\"\ndependencies = [\n \"half\",\n]\n\n\
        [[package]]\nname = \"half\"\nversion = \"2.7.1\"\nchecksum = \"abc\"\ndependencies = [\n \"cfg-if 1.0.0\",\n]\n\n\
        [[package]]\nname = \"cfg-if\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"other\"\nversion = \"3.0.0\"\n";

    #[test]
    fn a_change_of_sources_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let shipped = project(folder.path());
        let ptx = folder.path().join("kernels.ptx");
        let text = with_code_hash(&format!("// x\n{}", shipped.hashes().unwrap()), "add.s32 %r1;\nret;\n");
        fs::write(&ptx, &text).unwrap();
        let resolved = shipped.resolve(Source::CheckedIn, folder.path()).unwrap();
        assert_eq!(resolved, folder.path().join("kernels.ptx"));
        // Not a source of the PTX.
        fs::write(folder.path().join("kernels/notes.md"), "x").unwrap();
        fs::write(folder.path().join("kernels/src/lib.rs"), "// one\r\n").unwrap();
        fs::write(folder.path().join("Cargo.lock"), LOCK.replace("3.0.0", "3.0.1")).unwrap();
        assert!(shipped.resolve(Source::Auto, folder.path()).is_ok());

        // An edited instruction, line of the header, or hash; line endings of a checkout are none.
        fs::write(&ptx, text.replace('\n', "\r\n")).unwrap();
        assert!(shipped.resolve(Source::CheckedIn, folder.path()).is_ok());
        for edited in [
            text.replace("add", "sub"),
            text.replace("ret;\n", ""),
            text.replace("// x", "// y"),
            text.replace(CODE, "// code: 0"),
            text.replace(CODE, "// cody: "),
        ] {
            fs::write(&ptx, edited).unwrap();
            let error = shipped.resolve(Source::CheckedIn, folder.path()).unwrap_err().to_string();
            assert!(error.contains("found one that was edited"), "{error}");
        }
        fs::write(&ptx, &text).unwrap();

        fs::write(folder.path().join("kernels/src/lib.rs"), "// two\n").unwrap();
        let error = shipped.resolve(Source::CheckedIn, folder.path()).unwrap_err().to_string();
        assert!(error.contains("TAGORE_PTX=write") && !error.contains('\n'), "{error}");
        fs::write(folder.path().join("kernels/src/lib.rs"), "// one\n").unwrap();
        fs::write(folder.path().join("Cargo.lock"), LOCK.replace("2.7.1", "2.7.2")).unwrap();
        assert!(shipped.resolve(Source::CheckedIn, folder.path()).is_err());
    }

    #[test]
    fn dependencies_are_those_that_are_reached() {
        let lines = locked(LOCK, "kernels");
        assert_eq!(
            lines.into_iter().collect::<Vec<_>>(),
            ["cfg-if 1.0.0 ", "half 2.7.1 abc", "kernels 0.1.0 "]
        );
    }
}
