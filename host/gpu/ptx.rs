//! The PTX of the program's kernels.

/// PTX of the kernels of all stages. In the repository `build.rs` finds or compiles it.
#[cfg(ptx_from_sources)]
pub(crate) const PTX: &str = include_str!(env!("TAGORE_PTX_FILE"));

/// PTX of the kernels of all stages. In a package their crate ships it.
#[cfg(not(ptx_from_sources))]
pub(crate) const PTX: &str = tagore_device::PTX;

/// The module of one kernel: `ptx` without the other entries, so the driver compiles only this
/// kernel.
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

/// Version, target and compiler of `ptx`, from its header.
pub(crate) fn description(ptx: &str) -> String {
    let field =
        |name: &str| ptx.lines().find_map(|line| line.strip_prefix(name)).map_or("unknown", str::trim);
    format!("PTX {} for {} by {}", field(".version"), field(".target"), field("// compiler:"))
}

/// Least compute capability of the PTX, as (major, minor).
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
