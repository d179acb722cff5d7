//! Memory of this process and of this machine.

use bytemuck::Zeroable;

use crate::loops::{Items, extend, for_each, rows_mut};
use crate::{Error, Result, platform};

/// Peak resident memory of this process so far, in bytes, mapped pages included; none if the system
/// does not report it.
pub fn peak_host_bytes() -> Option<u64> {
    platform::peak_memory()
}

/// Physical memory of this machine, in bytes; none if the system does not report it.
pub fn host_memory_bytes() -> Option<u64> {
    platform::total_memory()
}

/// Bytes from which an allocation is large: it must leave [`ROOM`].
const LARGE_ALLOCATION: usize = 1 << 20;

/// Bytes that a large allocation leaves to be had: small allocations between two large ones, which
/// abort the process where they fail, find memory there.
const ROOM: usize = 16 << 20;

/// The error for `bytes` that the system refused.
pub(crate) fn refused(bytes: u64) -> Error {
    Error::HostMemory { required: bytes }
}

/// Checks that `bytes` more, and 16 MiB for small allocations, could be allocated now. The library
/// calls it where work begins, with the peak of its plan. Where the address space is limited
/// (`ulimit -v`), the threads of the process share one heap of glibc from then on.
///
/// # Errors
/// If the system refuses so much.
pub fn check_room(bytes: u64) -> Result<()> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(ROOM);
    if platform::has_room(bytes) { Ok(()) } else { Err(refused(bytes as u64)) }
}

/// `made`, an allocation of `bytes`, if it succeeded and leaves room for small ones.
fn checked<T, E>(made: Result<T, E>, bytes: usize) -> Result<T> {
    let refused = || refused(bytes as u64);
    let made = made.map_err(|_| refused())?;
    if bytes >= LARGE_ALLOCATION {
        check_room(0).map_err(|_| refused())?;
    }
    Ok(made)
}

/// An empty vector with room for `len` values.
///
/// # Errors
/// If the system refuses the memory, as of all functions here.
pub(crate) fn with_capacity<T>(len: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let made = values.try_reserve_exact(len);
    checked(made, len.saturating_mul(size_of::<T>()))?;
    Ok(values)
}

/// A vector of `len` copies of `value`.
pub(crate) fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>> {
    let mut values = with_capacity(len)?;
    values.resize(len, value);
    Ok(values)
}

/// The values of an iterator of known length.
pub(crate) fn collected<T>(
    iterator: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
) -> Result<Vec<T>> {
    let iterator = iterator.into_iter();
    let mut values = with_capacity(iterator.len())?;
    values.extend(iterator);
    Ok(values)
}

/// The results of all items, in order, made by all threads.
pub(crate) fn collected_in_parallel<I: Items, T: Send>(
    items: I,
    result: impl Fn(I::Item) -> T + Sync,
) -> Result<Vec<T>> {
    let mut values = with_capacity(items.len())?;
    extend(&mut values, items, || (), |(), item| result(item));
    Ok(values)
}

/// A zeroed vector of `len` values on huge pages where the system has them. Faulting in small pages
/// would take longer than filling them, and hold the lock that other threads need to map memory.
pub(crate) fn zeros<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    // Nothing is touched before the advice: the system supplies zero pages on first access.
    let made = bytemuck::allocation::try_zeroed_vec(len);
    let mut values: Vec<T> = checked(made, len.saturating_mul(size_of::<T>()))?;
    let pages = values.as_mut_ptr_range();
    // SAFETY: the pages belong to `values` alone.
    unsafe { platform::prefer_huge_pages(pages.start.cast()..pages.end.cast()) };
    Ok(values)
}

/// [`zeros`] whose pages the threads of the pool have touched: filling them then takes no faults.
pub(crate) fn touched_zeros<T: Zeroable + Send>(len: usize) -> Result<Vec<T>> {
    const MIN_PAGE: usize = 4096;
    const HUGE_PAGE: usize = 2 << 20;
    let mut values: Vec<T> = zeros(len)?;
    // Else the compiler may know that they are zero, and write nothing.
    std::hint::black_box(&mut values);
    let of = |bytes: usize| (bytes / size_of::<T>()).max(1);
    let touch = |part: &mut [T]| part.iter_mut().step_by(of(MIN_PAGE)).for_each(|value| *value = T::zeroed());
    for_each(rows_mut(&mut values, of(HUGE_PAGE)), touch);
    Ok(values)
}

/// Has the processor load the first lines of `values` while it does other work. On x86-64 alone:
/// stable Rust has no such hint for others.
#[inline(always)]
pub(crate) fn fetch<T>(values: &[T]) {
    /// The processor itself loads the lines that follow these.
    const LINES: usize = 8;
    const LINE: usize = 64;
    for byte in (0..size_of_val(values).min(LINES * LINE)).step_by(LINE) {
        let line = values.as_ptr().cast::<i8>().wrapping_add(byte);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has SSE. The hint reads nothing.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// The value in kB after `name` at the start of a line of `text`, in bytes.
#[cfg(unix)]
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.checked_mul(1024)
}

/// The number after `name` at the start of a line of `text`.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| words.next().filter(|&word| word == name).and(words.next()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_system_has_is_an_error() {
        const FAR_TOO_MANY: usize = 1 << 60;
        let is_refused = |made: Result<Vec<u64>>| matches!(made, Err(Error::HostMemory { .. }));
        assert!(is_refused(zeros(FAR_TOO_MANY)) && is_refused(filled(1, FAR_TOO_MANY)));
        assert!(is_refused(with_capacity(usize::MAX)) && is_refused(touched_zeros(FAR_TOO_MANY)));
        assert!(check_room(1 << 60).is_err() && check_room(u64::MAX).is_err());
        check_room(0).unwrap();
        assert_eq!(collected([1, 2, 3].map(|i| 2 * i)).unwrap(), [2, 4, 6]);
        assert_eq!(collected_in_parallel(0..2000u32, |i| i).unwrap(), (0..2000).collect::<Vec<_>>());
        assert_eq!(filled(7, 3).unwrap(), [7; 3]);
    }

    #[test]
    fn touched_zeros_are_zeros() {
        for len in [0, 1, 1000, 3 << 20] {
            assert!(touched_zeros::<u32>(len).unwrap() == vec![0; len], "{len}");
        }
    }
}
