//! What kernels must not do, and the report of it.

use std::fmt;
use std::panic::Location;

use cuda_std::launch::LaunchError;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A barrier that not all of its threads came to, or came to as it asks.
    Barrier,
    /// A shuffle, vote or other exchange of a warp that not all lanes of its mask took part in alike.
    Exchange,
    /// Two threads touched the same byte of shared memory with no barrier between them, at least one of
    /// them to write, and not both by atomics.
    Race,
    /// An access outside of what is allocated.
    OutOfBounds,
    /// An access at an address that is not a multiple of its size.
    Misaligned,
    /// A read of memory that was never written.
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
    /// The file, as the compiler was given it.
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

/// Something that a kernel, its launch or a copy from the device must not do. Displayed as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of fault it is.
    pub kind: FaultKind,
    /// The kernel, if one ran.
    pub kernel: Option<&'static str>,
    /// The block's index in the grid.
    pub block: Option<[u32; 3]>,
    /// The threads of the block that it concerns, by their index.
    pub threads: Vec<u32>,
    /// The line of the kernel.
    pub site: Option<Site>,
    /// What happened.
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

/// What is wrong, before it is known which kernel, block and line it concerns.
#[derive(Debug)]
pub(crate) struct Finding {
    pub kind: FaultKind,
    /// Other threads than the one that found it.
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
