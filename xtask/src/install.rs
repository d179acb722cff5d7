//! Puts libtagore, its headers and the files of build systems in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The number in the name of the shared library: that of capi/build.rs.
const SOVERSION: &str = "0";

type Result<T> = std::result::Result<T, String>;

/// The folders to install to.
struct Places {
    prefix: PathBuf,
    lib: PathBuf,
    include: PathBuf,
    /// Goes before all of them where files are written.
    root: Option<PathBuf>,
    /// The folder of libraries that are built already.
    built: Option<PathBuf>,
}

/// What a build made.
struct Made {
    shared: PathBuf,
    fixed: PathBuf,
    /// The linker's flags of a program that links the static library.
    native: String,
}

/// Runs `cargo xtask install`.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<()> {
    let places = Places::parse(arguments)?;
    let made = places.built.as_deref().map_or_else(build, built)?;
    places.put_libraries(&made)?;
    let root = root();
    for header in ["tagore.h", "tagore.hpp"] {
        let bytes = read(&root.join("capi").join(header))?;
        places.write(&places.include.join(header), &bytes)?;
    }
    places.write(&places.lib.join("pkgconfig/tagore.pc"), places.pkg_config(&made.native).as_bytes())?;
    let folder = places.lib.join("cmake/tagore");
    places.write(&folder.join("tagore-config.cmake"), places.cmake(&made.native)?.as_bytes())?;
    places.write(&folder.join("tagore-config-version.cmake"), CMAKE_VERSION.as_bytes())
}

/// The folder of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Builds both libraries in release.
fn build() -> Result<Made> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(["rustc", "--release", "--locked", "--package", "tagore-capi", "--lib"]);
    command.args(["--color", "never", "--message-format", "json-render-diagnostics"]);
    // A compiler that finds nothing to do repeats its notes.
    command.args(["--", "--print", "native-static-libs", "-C", "strip=debuginfo"]);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let (messages, notes) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("cargo rustc failed:\n{notes}"));
    }
    let native = notes.lines().find_map(|line| line.split_once("native-static-libs: "));
    let native = native.ok_or("cargo rustc printed no native-static-libs")?.1.trim().to_owned();
    let file = |ends: &[&str]| {
        let names = messages.split('"').filter(|text| text.contains("tagore_c."));
        names
            .map(PathBuf::from)
            .find(|path| ends.iter().any(|end| path.extension().is_some_and(|e| e == *end)))
    };
    let shared = file(&["so", "dylib", "dll"]).ok_or("cargo rustc made no shared library")?;
    let fixed = file(&["a", "lib"]).ok_or("cargo rustc made no static library")?;
    Ok(Made { shared, fixed, native })
}

/// Libraries of a release build in `folder`.
fn built(folder: &Path) -> Result<Made> {
    let file = |names: [&str; 3]| {
        let mut paths = names.iter().map(|name| folder.join(name));
        paths.find(|path| path.exists()).ok_or_else(|| format!("{}: no {}", folder.display(), names[0]))
    };
    // Nothing in the tree links a library of its own, so any static library needs the same.
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--crate-name", "empty", "--crate-type", "staticlib", "--print", "native-static-libs"]);
    // A file of its own: the compiler would replace a device by its output.
    let library = folder.join("libempty.a");
    let output = command.arg("-o").arg(&library).arg("-").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    // A failure leaves a file in a folder of builds.
    let _ = fs::remove_file(&library);
    let notes = String::from_utf8_lossy(&output.stderr);
    let native = notes.lines().find_map(|line| line.split_once("native-static-libs: "));
    let native = native.ok_or_else(|| format!("rustc printed no native-static-libs:\n{notes}"))?.1;
    Ok(Made {
        shared: file(["libtagore_c.so", "libtagore_c.dylib", "tagore_c.dll"])?,
        fixed: file(["libtagore_c.a", "libtagore_c.a", "tagore_c.lib"])?,
        native: native.trim().to_owned(),
    })
}

impl Places {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut prefix, mut lib, mut include) =
            (PathBuf::from("/usr/local"), PathBuf::from("lib"), PathBuf::from("include"));
        let mut built = None;
        let mut root = std::env::var_os("DESTDIR").filter(|root| !root.is_empty()).map(PathBuf::from);
        while let Some(flag) = arguments.next() {
            let (flag, value) = match flag.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (flag, arguments.next()),
            };
            let value = value.filter(|value| !value.is_empty()).map(PathBuf::from);
            let value = value.ok_or_else(|| format!("{flag}: found nothing, expected a folder"))?;
            match &*flag {
                "--prefix" => prefix = value,
                "--libdir" => lib = value,
                "--includedir" => include = value,
                "--destdir" => root = Some(value),
                "--built" => built = Some(value),
                _ => return Err(format!("{flag}: no such flag of install")),
            }
        }
        let prefix = std::path::absolute(&prefix).map_err(|error| format!("--prefix: {error}"))?;
        Ok(Self { lib: prefix.join(lib), include: prefix.join(include), prefix, root, built })
    }

    /// Where a file of these places is written.
    fn target(&self, file: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(file.strip_prefix("/").unwrap_or(file)),
            None => file.to_owned(),
        }
    }

    /// Writes a file under another name, then renames it: programs may run from the old one.
    fn write(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        let target = self.target(file);
        let named = |error| format!("{}: {error}", target.display());
        fs::create_dir_all(target.parent().unwrap_or(Path::new("."))).map_err(named)?;
        let temporary = target.with_added_extension("new");
        fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target)).map_err(named)?;
        println!("{}", target.display());
        Ok(())
    }

    /// Puts both libraries in place, with the links of the shared one.
    fn put_libraries(&self, made: &Made) -> Result<()> {
        let extension = made.shared.extension().unwrap_or_default().to_string_lossy().into_owned();
        let shared = read(&made.shared)?;
        let names = match &*extension {
            "so" => [
                format!("libtagore.so.{VERSION}"),
                format!("libtagore.so.{SOVERSION}"),
                "libtagore.so".into(),
            ],
            "dylib" => [
                format!("libtagore.{VERSION}.dylib"),
                format!("libtagore.{SOVERSION}.dylib"),
                "libtagore.dylib".into(),
            ],
            _ => ["tagore.dll", "", ""].map(str::to_owned),
        };
        self.write(&self.lib.join(&names[0]), &shared)?;
        for pair in names.windows(2).filter(|pair| !pair[1].is_empty()) {
            self.link(&pair[0], &self.lib.join(&pair[1]))?;
        }
        let fixed =
            if made.fixed.extension().is_some_and(|e| e == "lib") { "tagore.lib" } else { "libtagore.a" };
        self.write(&self.lib.join(fixed), &read(&made.fixed)?)
    }

    /// Makes `link`, in the same folder as the file `name`, name that file.
    fn link(&self, name: &str, link: &Path) -> Result<()> {
        let target = self.target(link);
        let _ = fs::remove_file(&target);
        #[cfg(unix)]
        let made = std::os::unix::fs::symlink(name, &target);
        #[cfg(not(unix))]
        let made = fs::copy(target.with_file_name(name), &target).map(drop);
        made.map_err(|error| format!("{}: {error}", target.display()))?;
        println!("{} -> {name}", target.display());
        Ok(())
    }

    /// A folder as pkg-config has it: below the prefix by its name.
    fn relative(&self, folder: &Path) -> String {
        match folder.strip_prefix(&self.prefix) {
            Ok(below) => format!("${{prefix}}/{}", below.display()),
            Err(_) => folder.display().to_string(),
        }
    }

    fn pkg_config(&self, native: &str) -> String {
        format!(
            "prefix={}\nlibdir={}\nincludedir={}\n\nName: tagore\n\
             Description: Graph indexes for approximate nearest-neighbour search\nVersion: {VERSION}\n\
             Libs: -L${{libdir}} -ltagore\nLibs.private: {native}\nCflags: -I${{includedir}}\n",
            self.prefix.display(),
            self.relative(&self.lib),
            self.relative(&self.include),
        )
    }

    /// Targets `tagore::tagore` and `tagore::tagore-static`. The prefix is found from the file, so
    /// an installed tree can be moved.
    fn cmake(&self, native: &str) -> Result<String> {
        let folder = self.lib.join("cmake/tagore");
        let up = |to: &Path| match (folder.strip_prefix(&self.prefix), to.strip_prefix(&self.prefix)) {
            (Ok(own), Ok(below)) => {
                let ups = "../".repeat(own.components().count());
                format!("${{CMAKE_CURRENT_LIST_DIR}}/{ups}{}", below.display())
            }
            _ => to.display().to_string(),
        };
        let libraries = native.replace(' ', ";");
        let shared = if cfg!(target_os = "macos") { "libtagore.dylib" } else { "libtagore.so" };
        Ok(CMAKE
            .replace("@include@", &up(&self.include))
            .replace("@shared@", &format!("{}/{shared}", up(&self.lib)))
            .replace("@static@", &format!("{}/libtagore.a", up(&self.lib)))
            .replace("@libraries@", &libraries))
    }
}

const CMAKE: &str = r#"# find_package(tagore): the targets tagore::tagore and tagore::tagore-static.
get_filename_component(tagore_include "@include@" ABSOLUTE)
get_filename_component(tagore_shared "@shared@" ABSOLUTE)
get_filename_component(tagore_static "@static@" ABSOLUTE)

if(NOT TARGET tagore::tagore)
  add_library(tagore::tagore SHARED IMPORTED)
  set_target_properties(tagore::tagore PROPERTIES
    IMPORTED_LOCATION "${tagore_shared}" INTERFACE_INCLUDE_DIRECTORIES "${tagore_include}")
  add_library(tagore::tagore-static STATIC IMPORTED)
  set_target_properties(tagore::tagore-static PROPERTIES
    IMPORTED_LOCATION "${tagore_static}" INTERFACE_INCLUDE_DIRECTORIES "${tagore_include}"
    INTERFACE_LINK_LIBRARIES "@libraries@")
endif()

unset(tagore_include)
unset(tagore_shared)
unset(tagore_static)
"#;

/// Before 1.0 a minor version may break programs.
const CMAKE_VERSION: &str = concat!(
    "set(PACKAGE_VERSION \"",
    env!("CARGO_PKG_VERSION"),
    "\")\n",
    r#"string(REGEX MATCH "^[0-9]+\\.[0-9]+" tagore_own "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" tagore_wanted "${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT tagore_own STREQUAL tagore_wanted)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"#
);
