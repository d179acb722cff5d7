//! Memory of this process and of this machine.

use bytemuck::Zeroable;

/// The most memory that this process has had so far, in bytes, pages of mapped files included; none where the system
/// does not say.
pub fn peak_host_bytes() -> Option<u64> {
    bytes_in("/proc/self/status", "VmHWM:")
}

/// The memory of this machine, in bytes; none where the system does not say.
pub fn host_memory_bytes() -> Option<u64> {
    bytes_in("/proc/meminfo", "MemTotal:")
}

/// Tells the system's allocator to return large buffers to the system as soon as they are freed, as plans of the host's
/// memory expect. It holds for the whole process, so programs call it, at their start; the command does.
///
/// glibc keeps freed buffers of up to 32 MiB otherwise, between others that are in use: a build took up to a sixth more than
/// its buffers. Other allocators are left as they are.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MMAP_THRESHOLD: c_int = -3;
        // SAFETY: std is linked with glibc, whose function this is; it may be called at any time.
        let _ = unsafe { mallopt(M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Bytes of a large buffer: fewer are worth more in the heap than the time that new pages take.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: std::ffi::c_int = 2 << 20;

/// As many zeros, in pages that are as large as the system allows: of small ones, so many that getting them takes
/// longer than filling them, and keeps all threads from getting others.
pub(crate) fn zeros<T: Zeroable>(len: usize) -> Vec<T> {
    // Nothing is touched yet: the system gives such memory as zeros.
    let mut values: Vec<T> = bytemuck::allocation::zeroed_vec(len);
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        let pages = values.as_mut_ptr_range();
        let (begin, end) = ((pages.start as usize).next_multiple_of(PAGE), pages.end as usize / PAGE * PAGE);
        if begin < end {
            // SAFETY: the pages are those of the values alone, whose content the advice does not change. It is advice:
            // without it, they are small.
            let _ = unsafe { madvise(begin as *mut _, end - begin, Advice::LinuxHugepage) };
        }
    }
    values
}

/// The size of small pages, at most: advice is given for whole ones.
#[cfg(target_os = "linux")]
const PAGE: usize = 64 << 10;

/// What the line of `file` that begins with `name` says, in kB.
fn bytes_in(file: &str, name: &str) -> Option<u64> {
    kibibytes(&std::fs::read_to_string(file).ok()?, name)
}

/// The bytes that `text` says in kB behind `name`, at the beginning of a line.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.checked_mul(1024)
}

/// The number behind `name`, at the beginning of a line.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| words.next().filter(|&word| word == name).and(words.next()))?.parse().ok()
}
