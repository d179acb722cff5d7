//! Memory of this process and of this machine.

use bytemuck::Zeroable;
use rayon::prelude::*;

/// Peak resident memory of this process so far, in bytes, mapped pages included; none if the system
/// does not report it.
pub fn peak_host_bytes() -> Option<u64> {
    bytes_in("/proc/self/status", "VmHWM:")
}

/// Physical memory of this machine, in bytes; none if the system does not report it.
pub fn host_memory_bytes() -> Option<u64> {
    bytes_in("/proc/meminfo", "MemTotal:")
}

/// Tells glibc's allocator to return large buffers to the system when they are freed, as the plan
/// of the host's memory assumes. The setting holds for the whole process, so programs should call
/// it at their start, as the command does.
///
/// By default glibc keeps freed buffers of up to 32 MiB among those in use; a build then took up to
/// a sixth more than its buffers. Other allocators are not changed.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MMAP_THRESHOLD: c_int = -3;
        // SAFETY: std links glibc, so `mallopt` exists with this signature, and it may be called at
        // any time.
        let _ = unsafe { mallopt(M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Bytes from which a buffer counts as large. Smaller ones are cheaper to keep than to map anew.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: std::ffi::c_int = 2 << 20;

/// A zeroed vector of `len` values on huge pages where the system has them. Faulting in small pages
/// would take longer than filling them, and hold the lock that other threads need to map memory.
pub(crate) fn zeros<T: Zeroable>(len: usize) -> Vec<T> {
    // Nothing is touched before `madvise`: the system supplies zero pages on first access.
    let mut values: Vec<T> = bytemuck::allocation::zeroed_vec(len);
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        let pages = values.as_mut_ptr_range();
        let (begin, end) = ((pages.start as usize).next_multiple_of(PAGE), pages.end as usize / PAGE * PAGE);
        if begin < end {
            // SAFETY: the pages belong to `values` alone, and the advice does not change their
            // contents. If it fails, pages stay small.
            let _ = unsafe { madvise(begin as *mut _, end - begin, Advice::LinuxHugepage) };
        }
    }
    values
}

/// [`zeros`] whose pages the threads of the pool have touched: filling them then takes no faults.
pub(crate) fn touched_zeros<T: Zeroable + Send>(len: usize) -> Vec<T> {
    const LEAST_PAGE: usize = 4096;
    const HUGE_PAGE: usize = 2 << 20;
    let mut values: Vec<T> = zeros(len);
    // Else the compiler may know that they are zero, and write nothing.
    std::hint::black_box(&mut values);
    let of = |bytes: usize| (bytes / size_of::<T>()).max(1);
    let touch =
        |part: &mut [T]| part.iter_mut().step_by(of(LEAST_PAGE)).for_each(|value| *value = T::zeroed());
    values.par_chunks_mut(of(HUGE_PAGE)).for_each(touch);
    values
}

/// Upper bound of the small page size: `madvise` takes whole pages.
#[cfg(target_os = "linux")]
const PAGE: usize = 64 << 10;

/// The value in kB behind `name` in `file`, in bytes.
fn bytes_in(file: &str, name: &str) -> Option<u64> {
    kibibytes(&std::fs::read_to_string(file).ok()?, name)
}

/// The value in kB behind `name` at the start of a line of `text`, in bytes.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.checked_mul(1024)
}

/// The number behind `name` at the start of a line of `text`.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| words.next().filter(|&word| word == name).and(words.next()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_zeros_are_zeros() {
        for len in [0, 1, 1000, 3 << 20] {
            assert!(touched_zeros::<u32>(len) == vec![0; len], "{len}");
        }
    }
}
