//! What the system is told of how mapped files are read. All of it is advice: without it reading is
//! slower.

use std::ops::Range;

use super::mapped::MappedFile;

/// How a mapped file is read from here on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// From one end to the other.
    InOrder,
    /// Here and there: what would be read around each place would push out what is needed, if not
    /// all fits memory.
    AtRandom,
    /// In ways of which nothing is known: the system guesses.
    Somehow,
}

/// Says how `map` is read.
pub(crate) fn advise(map: &MappedFile, access: Access) {
    #[cfg(unix)]
    let _ = map.map().advise(match access {
        Access::InOrder => memmap2::Advice::Sequential,
        Access::AtRandom => memmap2::Advice::Random,
        Access::Somehow => memmap2::Advice::Normal,
    });
    #[cfg(not(unix))]
    let _ = (map, access);
}

/// Runs `read`, which reads pages of `map` that are far apart: with each of them mebibytes might be
/// read ahead.
pub(crate) fn far_apart<R>(map: &MappedFile, read: impl FnOnce() -> R) -> R {
    advise(map, Access::AtRandom);
    let result = read();
    advise(map, Access::Somehow);
    result
}

/// Has the system begin to read these bytes of `map`.
pub(super) fn prefetch(map: &MappedFile, bytes: Range<usize>) {
    #[cfg(unix)]
    let _ = map.map().advise_range(memmap2::Advice::WillNeed, bytes.start, bytes.len());
    #[cfg(not(unix))]
    let _ = (map, bytes);
}
