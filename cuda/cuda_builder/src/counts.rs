//! Numbers of synchronising instructions per kernel. A compiler that copies such instructions into
//! branches, or drops them, changes these numbers.

use std::fmt;

/// Numbers of collective instructions of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The kernel.
    pub kernel: String,
    /// Barriers of the block.
    pub bar: usize,
    /// Barriers of a warp.
    pub warp: usize,
    /// Shuffles.
    pub shfl: usize,
    /// Votes, matches and reductions.
    pub vote: usize,
    /// Tensor-core products.
    pub mma: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, bar, warp, shfl, vote, mma } = self;
        write!(f, "{kernel}: bar.sync {bar}, bar.warp {warp}, shfl.sync {shfl}, vote {vote}, mma.sync {mma}")
    }
}

/// The counts of every kernel of a PTX module, by name.
pub fn counts(ptx: &str) -> Vec<Counts> {
    let mut all: Vec<Counts> = Vec::new();
    for line in ptx.lines() {
        if let Some(rest) = line.split(".entry ").nth(1) {
            let kernel = rest.trim_end_matches(['(', ')']).to_owned();
            all.push(Counts { kernel, ..Counts::default() });
        }
        let Some(current) = all.last_mut() else { continue };
        // A predicate may come before the instruction.
        let instruction = line.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or("");
        let starts = |names: &[&str]| names.iter().any(|name| instruction.starts_with(name));
        if starts(&["bar.warp"]) {
            current.warp += 1;
        } else if starts(&["bar.", "barrier."]) {
            current.bar += 1;
        } else if starts(&["shfl.sync"]) {
            current.shfl += 1;
        } else if starts(&["vote.", "match.", "redux."]) {
            current.vote += 1;
        } else if starts(&["mma.sync"]) {
            current.mma += 1;
        }
    }
    all.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_kernel() {
        let ptx = ".visible .entry b(\n)\n{\n\tbar.sync \t0;\n\t@%p1 bar.warp.sync -1;\n\tshfl.sync.bfly.b32 a;\n}\n\
                   .visible .entry a()\n{\n\tmma.sync.aligned.m16n8k16;\n\tmma.sync.x;\n\tvote.sync.any.pred p;\n}\n";
        let counts = counts(ptx);
        assert_eq!(counts.len(), 2);
        assert_eq!((counts[0].kernel.as_str(), counts[0].mma, counts[0].vote), ("a", 2, 1));
        assert_eq!(counts[1].to_string(), "b: bar.sync 1, bar.warp 1, shfl.sync 1, vote 0, mma.sync 0");
    }
}
