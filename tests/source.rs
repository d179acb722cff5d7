//! The shape of the source: import order, file lengths, widths of comments.
//!
//! ARCHITECTURE.md lists the folders of `host/` with their allowed imports. These tests compare
//! that list with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest comment line, in columns.
const COMMENT_COLUMNS: usize = 100;

/// Longest source file, in lines.
const FILE_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below the given folders of the repository.
fn sources(folders: &[&str]) -> Vec<PathBuf> {
    let mut waiting: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().unwrap() != "target" {
                    waiting.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Folders whose Rust files follow the rules of length and width.
const ALL: [&str; 11] =
    ["host", "text", "device", "cli", "capi", "python", "xtask", "cuda", "tests", "benches", "examples"];

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// The import rules of ARCHITECTURE.md for `host/`: all rules, then exceptions by file.
fn declared() -> (Rules, Rules) {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = page.split("### Imports\n").nth(1).expect("a section of imports");
    let mut blocks =
        section.split("```text\n").skip(1).map(|block| rules(block.split("```").next().unwrap()));
    (blocks.next().unwrap(), blocks.next().unwrap())
}

/// Folders or files, each with its allowed imports.
type Rules = BTreeMap<String, BTreeSet<String>>;

/// Parses lines such as `index: may import quantize, vectors`.
fn rules(block: &str) -> Rules {
    block
        .lines()
        .map(|line| {
            let parts = line.split_once(": may import ");
            let (name, imports) = parts.unwrap_or_else(|| panic!("no rule of imports: {line:?}"));
            let imports = imports.split(", ").filter(|import| *import != "nothing");
            (name.to_owned(), imports.map(str::to_owned).collect())
        })
        .collect()
}

/// Whether a file is declared as a module of tests alone.
fn is_test_module(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_string_lossy();
    let declares = |file: &str| {
        let source = fs::read_to_string(path.with_file_name(file)).unwrap_or_default();
        source.contains(&format!("#[cfg(test)]\nmod {name};"))
    };
    declares("mod.rs") || declares("lib.rs")
}

/// The folder or file of `host/` that a source file belongs to.
fn module_of(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("host")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The first segments of all paths that begin with `crate::`, lists in braces included.
fn crate_paths(source: &str) -> Vec<String> {
    let identifier = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut paths = Vec::new();
    for after in source.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            paths.push(identifier(after));
            continue;
        };
        let (mut depth, mut item) = (1, String::new());
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 || depth == 1 && c == ',' {
                paths.push(identifier(&item));
                item.clear();
            } else {
                item.push(c);
            }
            if depth == 0 {
                break;
            }
        }
    }
    paths.retain(|path| !path.is_empty());
    paths
}

/// The modules that the crate's root re-exports names from.
fn exported() -> BTreeMap<String, String> {
    let source = fs::read_to_string(root().join("host/lib.rs")).unwrap();
    let mut names = BTreeMap::new();
    for export in source.split("pub use ").skip(1) {
        let export = export.split(';').next().unwrap();
        let (module, items) = export.split_once("::").unwrap();
        for item in items.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            names.insert(item.to_owned(), module.to_owned());
        }
    }
    names
}

/// Source without comments and without its unit tests, which may import anything.
fn code(path: &Path) -> String {
    let source = fs::read_to_string(path).unwrap();
    let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap();
    let lines = source.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_follow_the_order_in_architecture_md() {
    let ((declared, exceptions), exported) = (declared(), exported());
    let mut wrong = BTreeSet::new();
    for path in sources(&["host"]).into_iter().filter(|path| !is_test_module(path)) {
        let module = module_of(&path);
        let Some(allowed) = declared.get(&module) else { continue };
        let file = path.strip_prefix(root().join("host")).unwrap().display().to_string();
        let excepted = exceptions.get(&file);
        for import in crate_paths(&code(&path)) {
            let import = exported.get(&import).unwrap_or(&import);
            let is_allowed = allowed.contains(import) || excepted.is_some_and(|more| more.contains(import));
            if *import != module && declared.contains_key(import) && !is_allowed {
                wrong.insert(format!("{} imports {import}", name(&path)));
            }
        }
    }
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md: {wrong:#?}");
}

/// The folders of `host/outofcore/`, lowest first.
const OUT_OF_CORE: [&str; 5] = ["plan", "store", "partition", "run", "tasks"];

#[test]
fn folders_out_of_core_import_those_below() {
    for (place, folder) in OUT_OF_CORE.iter().enumerate() {
        for path in sources(&[&format!("host/outofcore/{folder}")]) {
            let code = code(&path);
            for above in &OUT_OF_CORE[place + 1..] {
                let import = format!("crate::outofcore::{above}");
                assert!(!code.contains(&import), "{} imports {import}", name(&path));
            }
        }
    }
}

#[test]
fn every_folder_is_in_the_order_and_the_order_has_no_cycle() {
    let (declared, _) = declared();
    for entry in fs::read_dir(root().join("host")).unwrap() {
        let path = entry.unwrap().path();
        assert!(!path.is_dir() || declared.contains_key(&module_of(&path)), "{} is missing", name(&path));
    }
    let mut sorted = BTreeSet::new();
    while sorted.len() < declared.len() {
        let is_next = |(folder, imports): &(&String, &BTreeSet<String>)| {
            !sorted.contains(*folder) && imports.is_subset(&sorted)
        };
        let next = declared.iter().find(is_next).map(|(folder, _)| folder.clone());
        sorted.insert(next.unwrap_or_else(|| panic!("a cycle beyond {sorted:?}")));
    }
}

#[test]
fn comments_and_files_are_short() {
    let mut wrong = Vec::new();
    for path in sources(&ALL) {
        let source = fs::read_to_string(&path).unwrap();
        let lines = source.lines().count();
        if lines > FILE_LINES {
            wrong.push(format!("{}: {lines} lines", name(&path)));
        }
        for (number, line) in (1..).zip(source.lines()) {
            if line.chars().count() > COMMENT_COLUMNS && line.trim_start().starts_with("//") {
                wrong.push(format!(
                    "{}:{number}: a comment of {} columns",
                    name(&path),
                    line.chars().count()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn docs_say_maximum_and_minimum() {
    let mut wrong = Vec::new();
    for path in sources(&ALL) {
        let source = fs::read_to_string(&path).unwrap();
        let mut is_first = true;
        for (number, line) in (1..).zip(source.lines()) {
            let doc = line.trim_start().strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let word = doc.and_then(|doc| doc.split_whitespace().next());
            if is_first && word.is_some_and(|word| ["Most", "Fewest", "Least"].contains(&word)) {
                wrong.push(format!("{}:{number}: {line}", name(&path)));
            }
            is_first = doc.is_none();
        }
    }
    assert!(wrong.is_empty(), "expected `Maximum number of` or `Minimum`: {wrong:#?}");
}

/// Folders that may take tuples as parameters and call functions `of`: the kernels', whose tuples
/// are arguments of launches, and whose `of` converts a value.
const UNNAMED: [&str; 3] = ["cuda/cuda_std/", "cuda/cust/src/function.rs", "device/"];

#[test]
fn signatures_name_values_and_results() {
    let mut wrong = Vec::new();
    let is_tuple = |kind: &str| {
        let kind = kind.trim_start_matches('&').trim_start_matches("mut ");
        kind.starts_with('(') && !kind.starts_with("()") && !kind.starts_with("(dyn ")
    };
    for path in sources(&ALL) {
        let (name, source) = (name(&path), fs::read_to_string(&path).unwrap());
        if UNNAMED.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        for function in source.split("fn ").skip(1) {
            let ends = [" {\n", " {}\n", ";\n"].into_iter().filter_map(|end| function.find(end));
            let signature = &function[..ends.min().unwrap_or(0)];
            if signature.starts_with("of(")
                || signature.starts_with("of<")
                || signature.split(": ").skip(1).any(is_tuple)
            {
                wrong.push(format!("{name}: fn {signature}"));
            }
        }
    }
    assert!(wrong.is_empty(), "expected a name instead of `of`, and no tuple as a parameter: {wrong:#?}");
}
