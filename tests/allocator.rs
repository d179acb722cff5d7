//! `return_large_buffers`: freed large buffers go back to the system. It changes the whole process,
//! so this test has a program of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::hint::black_box;

/// Bytes of a buffer: glibc keeps freed buffers of this size once it has freed a larger one.
const BUFFER: usize = 8 << 20;

/// Bytes of this process in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
}

#[test]
fn freed_buffers_between_used_ones_are_returned() {
    tagore::return_large_buffers();
    // Without the call, glibc keeps freed buffers that are smaller than this one from here on.
    drop(black_box(vec![1u8; 2 * BUFFER]));
    let before = resident();
    let both = || (black_box(vec![1u8; BUFFER]), black_box(vec![1u8; 1000]));
    let (large, small): (Vec<_>, Vec<_>) = (0..5).map(|_| both()).unzip();
    assert!(resident() >= before + 5 * BUFFER);
    drop(large);
    let kept = resident().saturating_sub(before);
    assert!(kept < BUFFER, "{kept} bytes kept of {} freed", 5 * BUFFER);
    drop(small);
}
