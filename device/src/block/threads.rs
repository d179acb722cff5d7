//! Threads that share a piece of work.

/// One of several threads that share a piece of work: the calling one.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// The place of the calling thread, below `count`.
    pub index: u32,
    /// Number of threads.
    pub count: u32,
}

impl Threads {
    /// Thread `index` of `count`.
    #[inline(always)]
    pub const fn new(index: u32, count: u32) -> Self {
        Self { index, count }
    }
}
