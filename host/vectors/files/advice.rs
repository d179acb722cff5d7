//! Read-ahead advice on mapped files. It changes speed only, never results.

use std::ops::Range;

use crate::vectors::mapped::MappedFile;

/// The access pattern of a mapped file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// Sequential.
    InOrder,
    /// Random: read-ahead would evict pages in use if memory is short.
    AtRandom,
    /// Unknown: default read-ahead.
    Somehow,
}

/// Advises the kernel of the access pattern of `map`.
pub(crate) fn advise(map: &MappedFile, access: Access) {
    #[cfg(unix)]
    let _ = map.map().advise(match access {
        Access::InOrder => memmap2::Advice::Sequential,
        Access::AtRandom => memmap2::Advice::Random,
        Access::Somehow => memmap2::Advice::Normal,
    });
    #[cfg(not(unix))]
    let _ = (map.map(), access);
}

/// Runs `read`, which reads distant pages of `map`, without read-ahead: the default can read
/// mebibytes per page.
pub(crate) fn far_apart<R>(map: &MappedFile, read: impl FnOnce() -> R) -> R {
    advise(map, Access::AtRandom);
    let result = read();
    advise(map, Access::Somehow);
    result
}

/// Reads these bytes of `map` and waits for them, where the system can; the threads that need them
/// then do not wait for the disk.
pub(in crate::vectors) fn populate(map: &MappedFile, bytes: Range<usize>) {
    #[cfg(target_os = "linux")]
    let _ = map.map().advise_range(memmap2::Advice::PopulateRead, bytes.start, bytes.len());
    #[cfg(not(target_os = "linux"))]
    let _ = (map, bytes);
}

/// Starts reading these bytes of `map` in the background.
pub(in crate::vectors) fn prefetch(map: &MappedFile, bytes: Range<usize>) {
    #[cfg(unix)]
    let _ = map.map().advise_range(memmap2::Advice::WillNeed, bytes.start, bytes.len());
    #[cfg(not(unix))]
    let _ = (map, bytes);
}
