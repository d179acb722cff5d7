//! Conversion of the compiler's assembly to PTX: launch bounds become directives, and missing
//! functions are errors.

use std::collections::HashMap;
use std::fmt::Write;

/// The mark of bounds that `#[kernel]` writes: `//@launch_bounds NAME THREADS BLOCKS`.
const BOUNDS: &str = "//@launch_bounds ";

/// Converts the compiler's assembly to PTX.
pub(crate) fn finish(assembly: &str) -> Result<String, String> {
    if let Some(line) = assembly.lines().find(|line| line.trim_start().starts_with(".extern .func")) {
        return Err(format!("calls a function that it does not hold: {}", line.trim()));
    }
    let mut bounds = HashMap::new();
    for line in assembly.lines() {
        if let Some(rest) = line.trim().strip_prefix(BOUNDS) {
            let [name, threads, blocks] = rest.split(' ').collect::<Vec<_>>()[..] else {
                return Err(format!("launch bounds that cannot be read: {line}"));
            };
            bounds.insert(name, (threads, blocks));
        }
    }
    let mut out = String::with_capacity(assembly.len());
    let mut entry: Option<&str> = None;
    let mut blank = false;
    for line in assembly.lines().map(str::trim_end) {
        if line.trim_start().starts_with(BOUNDS) || (line.is_empty() && blank) {
            continue;
        }
        blank = line.is_empty();
        if let Some(rest) = line.split(".entry ").nth(1) {
            entry = Some(rest.trim_end_matches(['(', ')']));
        }
        if line == "{"
            && let Some(name) = entry.take()
            && let Some((threads, blocks)) = bounds.remove(name)
        {
            let _ = writeln!(out, ".maxntid {threads}, 1, 1");
            if blocks != "0" {
                let _ = writeln!(out, ".minnctapersm {blocks}");
            }
        }
        out.push_str(line);
        out.push('\n');
    }
    match bounds.keys().next() {
        Some(name) => Err(format!("holds no entry {name}, which states launch bounds")),
        None => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_become_directives_of_their_entry() {
        let assembly = "//@launch_bounds f 256 2\n\n\n//@launch_bounds g 128 0\n.visible .entry f(\n\t.param .u32 p\n)\n{\n\tret;\n}\n\
             .visible .entry g()\n{\n\tret;\n}\n";
        let ptx = finish(assembly).unwrap();
        assert_eq!(
            ptx,
            "\n.visible .entry f(\n\t.param .u32 p\n)\n.maxntid 256, 1, 1\n.minnctapersm 2\n{\n\tret;\n}\n\
             .visible .entry g()\n.maxntid 128, 1, 1\n{\n\tret;\n}\n"
        );
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        assert!(finish(".extern .func foo\n").unwrap_err().contains("foo"));
        assert!(finish("//@launch_bounds f 256 0\n").unwrap_err().contains("no entry f"));
    }
}
