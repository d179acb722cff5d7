//! The PTX of the kernels that this program carries.

/// PTX of the kernels of all stages. In the repository `build.rs` finds or compiles it.
#[cfg(ptx_from_sources)]
pub(crate) const PTX: &str = include_str!(env!("TAGORE_PTX_FILE"));

/// PTX of the kernels of all stages. In a package their crate ships it.
#[cfg(not(ptx_from_sources))]
pub(crate) const PTX: &str = tagore_device::PTX;

/// The module of one kernel: all of `ptx` but the other entries. What is not used is then not
/// compiled.
pub(crate) fn module(ptx: &str, kernel: &str) -> String {
    let mut module = String::with_capacity(ptx.len());
    let mut skipping = false;
    for line in ptx.lines() {
        if let Some(rest) = line.split(".entry ").nth(1) {
            skipping = rest.trim_end_matches(['(', ')']) != kernel;
        }
        if !skipping {
            module.push_str(line);
            module.push('\n');
        }
        skipping &= line != "}";
    }
    module
}

/// What the header of the PTX says of its compiler, and its target.
pub(crate) fn description(ptx: &str) -> String {
    let field =
        |name: &str| ptx.lines().find_map(|line| line.strip_prefix(name)).map_or("unknown", str::trim);
    format!("PTX {} for {} by {}", field(".version"), field(".target"), field("// compiler:"))
}

/// The least compute capability that the PTX runs on, as (major, minor).
pub(crate) const LEAST_CAPABILITY: (i32, i32) = (8, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_holds_one_kernel() {
        let ptx = ".version 7.0\n.extern .shared x[];\n.visible .entry a(\n\t.param .u32 p\n)\n{\n\tret;\n}\n\
                   .visible .entry ab()\n.maxntid 256, 1, 1\n{\n\tret;\n}\n";
        let expected =
            ".version 7.0\n.extern .shared x[];\n.visible .entry ab()\n.maxntid 256, 1, 1\n{\n\tret;\n}\n";
        assert_eq!(module(ptx, "ab"), expected);
        assert!(module(ptx, "a").contains("entry a(") && !module(ptx, "a").contains("entry ab"));
    }
}
