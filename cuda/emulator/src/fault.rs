//! Faults of kernels and their reports.

use std::fmt;
use std::panic::Location;

use cuda_std::launch::LaunchError;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A barrier that some of its threads did not reach, or reached in another way.
    Barrier,
    /// A shuffle, vote or other exchange that some lanes of its mask did not reach, or reached in
    /// another way.
    Exchange,
    /// Two threads accessed the same byte of shared memory with no barrier between them, at least
    /// one of them a write, and not both atomic.
    Race,
    /// An access outside allocated memory.
    OutOfBounds,
    /// An access at an address that is not a multiple of its size.
    Misaligned,
    /// A read of unwritten memory.
    Uninitialised,
    /// A thread panicked.
    Panic,
    /// A launch outside the kernel's contract or the device's limits.
    Launch,
    /// The system had no memory for the stacks of the threads.
    Stacks,
}

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The path that the compiler was given.
    pub file: String,
    /// The line, from 1 on.
    pub line: u32,
    /// The column, from 1 on.
    pub column: u32,
}

impl From<&Location<'_>> for Site {
    fn from(at: &Location<'_>) -> Self {
        Self { file: at.file().to_owned(), line: at.line(), column: at.column() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A fault of a kernel, of its launch, or of a copy from the device. Displayed as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// The kernel, if one ran.
    pub kernel: Option<&'static str>,
    /// The block's index in the grid.
    pub block: Option<[u32; 3]>,
    /// Indices of the threads involved.
    pub threads: Vec<u32>,
    /// The line of the kernel.
    pub site: Option<Site>,
    /// A description.
    pub what: String,
}

impl Fault {
    /// A fault outside any block.
    pub(crate) fn outside(kind: FaultKind, what: String) -> Self {
        Self { kind, kernel: None, block: None, threads: Vec::new(), site: None, what }
    }
}

impl From<LaunchError> for Fault {
    fn from(error: LaunchError) -> Self {
        let LaunchError { kernel, what, requested, allowed } = error;
        let what = format!("launch: {what}: requested {requested}, allowed {allowed}");
        Self { kernel: Some(kernel), ..Self::outside(FaultKind::Launch, what) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kernel) = self.kernel {
            write!(f, "kernel {kernel}")?;
            if let Some([x, y, z]) = self.block {
                write!(f, ", block ({x}, {y}, {z})")?;
            }
            if !self.threads.is_empty() {
                write!(f, ", {}", threads(&self.threads))?;
            }
            write!(f, ": ")?;
        }
        if let Some(site) = &self.site {
            write!(f, "{site}: ")?;
        }
        write!(f, "{}", self.what)
    }
}

impl std::error::Error for Fault {}

/// A fault before its kernel, block and line are known.
#[derive(Debug)]
pub(crate) struct Finding {
    pub kind: FaultKind,
    /// Other threads involved.
    pub others: Vec<u32>,
    pub what: String,
}

impl Finding {
    pub fn new(kind: FaultKind, what: String) -> Self {
        Self { kind, others: Vec::new(), what }
    }

    pub fn with(kind: FaultKind, other: u32, what: String) -> Self {
        Self { kind, others: vec![other], what }
    }
}

/// `thread 5` or `threads 0-31, 40`, of ascending indices.
pub(crate) fn threads(indices: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let run = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    format!("thread{} {}", if indices.len() == 1 { "" } else { "s" }, runs.join(", "))
}
