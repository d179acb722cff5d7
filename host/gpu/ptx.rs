//! The PTX of the program's kernels.

use std::collections::BTreeMap;

/// PTX of the kernels of all stages. In the repository `build.rs` finds or compiles it.
#[cfg(ptx_from_sources)]
pub(crate) const PTX: &str = include_str!(env!("TAGORE_PTX_FILE"));

/// PTX of the kernels of all stages. In a package their crate ships it.
#[cfg(not(ptx_from_sources))]
pub(crate) const PTX: &str = tagore_device::PTX;

/// A PTX text, taken apart.
#[derive(Debug)]
pub(crate) struct Program {
    /// The text of each kernel.
    kernels: BTreeMap<&'static str, &'static str>,
    /// The text beside the kernels: header and declarations.
    shared: String,
}

impl Program {
    /// Finds the kernels of `ptx`.
    pub(crate) fn parse(ptx: &'static str) -> Self {
        let (mut kernels, mut shared, mut rest) = (BTreeMap::new(), String::new(), ptx);
        while let Some(entry) = rest.find(ENTRY) {
            let begin = rest[..entry].rfind('\n').map_or(0, |end| end + 1);
            let end = rest[entry..].find(END).map_or(rest.len(), |end| entry + end + END.len());
            let after = &rest[entry + ENTRY.len()..];
            let name = after.find(['(', '\n', ' ']).map_or(after, |end| &after[..end]);
            kernels.insert(name, &rest[begin..end]);
            shared.push_str(&rest[..begin]);
            rest = &rest[end..];
        }
        shared.push_str(rest);
        Self { kernels, shared }
    }

    /// The module of one kernel: the PTX without the others, so the driver compiles only this
    /// kernel. None if there is no such kernel.
    pub(crate) fn module(&self, kernel: &str) -> Option<String> {
        Some([self.shared.as_str(), self.kernels.get(kernel)?].concat())
    }

    /// Bytes of the text of a kernel, or 0.
    pub(crate) fn bytes(&self, kernel: &str) -> usize {
        self.kernels.get(kernel).map_or(0, |text| text.len())
    }

    /// The names of all kernels.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.kernels.keys().copied().collect()
    }
}

/// Precedes the name of a kernel.
const ENTRY: &str = ".entry ";

/// Ends a kernel.
const END: &str = "\n}\n";

/// Version, target and compiler of `ptx`, from its header.
pub(crate) fn description(ptx: &str) -> String {
    let field =
        |name: &str| ptx.lines().find_map(|line| line.strip_prefix(name)).map_or("unknown", str::trim);
    format!("PTX {} for {} by {}", field(".version"), field(".target"), field("// compiler:"))
}

/// Minimum compute capability of the PTX, as (major, minor).
pub(crate) const MIN_CAPABILITY: (i32, i32) = (8, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_holds_one_kernel() {
        let ptx = ".version 7.0\n.extern .shared x[];\n.visible .entry a(\n\t.param .u32 p\n)\n{\n\tret;\n}\n\
                   .func f()\n{\n\tret;\n}\n.visible .entry ab()\n.maxntid 256, 1, 1\n{\n\tret;\n}\n";
        let program = Program::parse(ptx);
        let shared = ".version 7.0\n.extern .shared x[];\n.func f()\n{\n\tret;\n}\n";
        let expected = format!("{shared}.visible .entry ab()\n.maxntid 256, 1, 1\n{{\n\tret;\n}}\n");
        assert_eq!(program.module("ab"), Some(expected));
        assert!(program.module("a").unwrap().contains("entry a("));
        assert!(!program.module("a").unwrap().contains("entry ab"));
        assert_eq!((program.module("b"), program.names()), (None, vec!["a", "ab"]));
    }

    #[test]
    fn every_kernel_of_the_program_is_found() {
        let program = Program::parse(PTX);
        assert_eq!(program.names().len(), PTX.matches(ENTRY).count());
        for name in program.names() {
            let module = program.module(name).unwrap();
            assert!(module.starts_with("//") && module.matches(ENTRY).count() == 1, "{name}");
            assert!(program.bytes(name) > 100 && module.len() < program.bytes(name) + 10_000, "{name}");
        }
    }
}
