//! The PTX of the kernels that this program carries.

/// The PTX that the build found or made, of all stages.
#[cfg(feature = "cuda")]
pub(crate) const PTX: &str = include_str!(env!("TAGORE_PTX_FILE"));

/// The stage that a kernel belongs to: its name up to the first underscore.
pub(crate) fn stage(kernel: &str) -> &str {
    kernel.split('_').next().unwrap_or(kernel)
}

/// The module of one stage: all of `ptx` but the entries of other stages. What is not used is then not
/// compiled.
pub(crate) fn module(ptx: &str, wanted: &str) -> String {
    let mut module = String::with_capacity(ptx.len());
    let mut skipping = false;
    for line in ptx.lines() {
        if let Some(rest) = line.split(".entry ").nth(1) {
            skipping = stage(rest.trim_end_matches(['(', ')'])) != wanted;
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
#[cfg(feature = "cuda")]
pub(crate) fn description(ptx: &str) -> String {
    let field =
        |name: &str| ptx.lines().find_map(|line| line.strip_prefix(name)).map_or("unknown", str::trim);
    format!("PTX {} for {} by {}", field(".version"), field(".target"), field("// compiler:"))
}

/// The least compute capability that the PTX runs on, as (major, minor).
#[cfg(feature = "cuda")]
pub(crate) const LEAST_CAPABILITY: (i32, i32) = (8, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_holds_one_stage() {
        let ptx = ".version 7.0\n.extern .shared x[];\n.visible .entry exact_a(\n\t.param .u32 p\n)\n{\n\tret;\n}\n\
                   .visible .entry other_b()\n.maxntid 256, 1, 1\n{\n\tret;\n}\n.visible .entry exact_c()\n{\n}\n";
        let module = module(ptx, "exact");
        assert!(module.contains("exact_a") && module.contains("exact_c") && !module.contains("other_b"));
        assert!(module.starts_with(".version 7.0\n.extern .shared x[];\n"));
        assert_eq!(module.matches('}').count(), 2);
        assert_eq!(stage("exact_filter_f16"), "exact");
    }
}
