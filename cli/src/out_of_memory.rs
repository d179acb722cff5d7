//! An allocator that ends the command with an error of one line if the system has no memory left.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, for the program alone. If it fails, the command ends with an error and
/// exit code 1. Temporary files stay, and the next run of the same command removes them.
pub struct OrError;

// SAFETY: the system's allocator does the work. A failed allocation never returns.
unsafe impl GlobalAlloc for OrError {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        or_error(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        or_error(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        or_error(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline(always)]
fn or_error(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        refused(bytes);
    }
    memory
}

/// Prints the size of the failed allocation, without allocating.
#[cfg(unix)]
#[cold]
fn refused(bytes: usize) {
    let mut digits = [b'0'; 20];
    let (mut rest, mut first) = (bytes, digits.len());
    while rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    crate::signals::last_words(&[
        b"error: memory: the system refused ",
        &digits[first..],
        b" bytes more: free some, or lower --threads or --host-memory (see `tagore plan`)\n",
    ])
}

/// The standard library aborts.
#[cfg(not(unix))]
fn refused(_: usize) {}
