//! Each kind of fault, planted in a small kernel. With `right` = 0 the kernel has the fault, with 1
//! it has none. A comment `// line: NAME` marks the line that a report must name.

use cuda_std::launch::Kernel;
use cuda_std::prelude::*;
use cuda_std::{copy, shared, static_shared};
use emulator::{Emulator, Fault, FaultKind};

mod device;

/// `FILE:LINE:` of a marked line of a file of this folder, with its source.
fn line_of(file: &str, source: &str, name: &str) -> String {
    let marked = source.lines().position(|line| line.ends_with(&format!("// line: {name}")));
    format!("{file}:{}:", marked.expect("a marked line") + 1)
}

/// The place of a marked line of this file.
fn line(name: &str) -> String {
    line_of("main.rs", include_str!("main.rs"), name)
}

/// Runs one block of a kernel that writes 64 values, with the fault and without, under eight seeds;
/// returns the faults.
fn check<K>(block: u32, kind: FaultKind, lines: &[&str]) -> Vec<Fault>
where
    K: Kernel<Arguments = (GlobalMut<u32>, u32)>,
{
    let run = |seed| {
        let emulator = Emulator::with_seed(seed);
        let out = emulator.upload(&[0u32; 64]);
        let fault = emulator.launch::<K>([1, 1, 1], block, (out.view(), 0)).expect_err("the wrong kernel");
        assert_eq!(fault.kind, kind, "{fault}");
        let text = fault.to_string();
        assert!(text.starts_with(&format!("kernel {}, block (0, 0, 0), thread", K::NAME)), "{text}");
        assert!(!text.contains('\n'), "{text}");
        for name in lines {
            assert!(text.contains(&line(name)), "{name} at {}: {text}", line(name));
        }
        // The device still works, and the right kernel passes.
        if let Err(fault) = emulator.launch::<K>([1, 1, 1], block, (out.view(), 1)) {
            panic!("the right kernel: {fault}");
        }
        fault
    };
    (0..8).map(run).collect()
}

#[kernel(unsafe, block = 64)]
unsafe fn missing_barrier(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = static_shared!(MISSING_BARRIER: [u32; 64]);
    values.set(i, 0);
    thread::sync_threads();
    values.set(i, i as u32); // line: missing barrier, write
    if right == 1 {
        thread::sync_threads();
    }
    out.set(i, values.get(63 - i)); // line: missing barrier, read
}

#[test]
fn a_missing_barrier_is_a_race() {
    let lines = ["missing barrier, write", "missing barrier, read"];
    for fault in check::<missing_barrier>(64, FaultKind::Race, &lines) {
        assert_eq!(fault.threads.len(), 2);
        assert_eq!(fault.threads[0] + fault.threads[1], 63);
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn missing_sync_warp(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id() as usize;
    let values = static_shared!(MISSING_SYNC_WARP: [u32; 32]);
    values.set(i, 0);
    warp::sync();
    values.set(i, i as u32);
    // The wrong kernel orders the lanes within each half, not between the halves.
    let half = if i < 16 { 0xFFFF } else { 0xFFFF_0000 };
    // SAFETY: the lanes of both masks are here.
    unsafe { warp::sync_warp(if right == 1 { warp::FULL } else { half }) };
    out.set(i, values.get(31 - i)); // line: missing sync_warp
}

#[test]
fn a_missing_sync_warp_is_a_race() {
    check::<missing_sync_warp>(32, FaultKind::Race, &["missing sync_warp"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn shuffle_orders_nothing(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id() as usize;
    let values = shared_pair();
    if i == 0 {
        values.set(0, 5); // line: shuffle, write
    }
    let _ = warp::broadcast(0u32, 0);
    if right == 1 {
        warp::sync();
    }
    out.set(i, values.get(0)); // line: shuffle, read
}

fn shared_pair() -> Shared<u32> {
    static_shared!(PAIR: [u32; 2])
}

#[test]
fn a_shuffle_orders_no_memory() {
    check::<shuffle_orders_nothing>(32, FaultKind::Race, &["shuffle, write", "shuffle, read"]);
}

#[kernel(unsafe, block = 64)]
unsafe fn two_writers(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let counts = static_shared!(TWO_WRITERS: [u32; 2]);
    if i < 2 {
        counts.set(i, 0);
    }
    thread::sync_threads();
    if right == 1 {
        counts.fetch_add(0, 1);
    } else {
        counts.set(0, i as u32); // line: two writers
    }
    thread::sync_threads();
    out.set(i, counts.get(0));
}

#[test]
fn two_writers_race_and_atomics_do_not() {
    check::<two_writers>(64, FaultKind::Race, &["two writers"]);
}

#[kernel(unsafe, block = 64)]
unsafe fn atomic_and_plain(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let counts = static_shared!(ATOMIC_AND_PLAIN: [u32; 1]);
    if i == 0 {
        counts.set(0, 0);
    }
    thread::sync_threads();
    counts.fetch_add(0, 1); // line: atomic
    if right == 1 {
        thread::sync_threads();
    }
    out.set(i, counts.get(0)); // line: plain
}

#[test]
fn an_atomic_and_a_plain_access_race() {
    check::<atomic_and_plain>(64, FaultKind::Race, &["atomic", "plain"]);
}

#[kernel(unsafe, block = 64)]
unsafe fn divergent_barrier(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x();
    if i < 40 || right == 1 {
        thread::sync_threads(); // line: divergent barrier
    }
    out.set(i as usize, i);
}

#[test]
fn a_barrier_that_some_threads_skip() {
    for fault in check::<divergent_barrier>(64, FaultKind::Barrier, &["divergent barrier"]) {
        assert!(fault.threads.iter().copied().eq(0..40));
        assert!(fault.what.contains("threads 40-63 finished"), "{fault}");
    }
}

#[kernel(unsafe, block = 64)]
unsafe fn two_barriers(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x();
    if i < 32 && right == 0 {
        thread::sync_threads(); // line: two barriers, one
    } else {
        thread::sync_threads(); // line: two barriers, other
    }
    if right == 1 {
        thread::sync_threads();
    }
    out.set(i as usize, i);
}

#[test]
fn barriers_of_two_lines_are_two() {
    check::<two_barriers>(64, FaultKind::Barrier, &["two barriers, one", "two barriers, other"]);
}

#[kernel(unsafe, block = 64)]
unsafe fn half_a_warp_at_a_named_barrier(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x();
    if right == 1 || i % 32 < 16 {
        thread::sync_named(3, 32 + 32 * right); // line: named
    }
    out.set(i as usize, i);
}

#[test]
fn named_barriers_are_for_whole_warps() {
    check::<half_a_warp_at_a_named_barrier>(64, FaultKind::Barrier, &["named"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn wrong_mask(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id();
    let mask = if right == 1 { warp::FULL } else { 0xFFFF };
    // SAFETY: the wrong mask is reported.
    let (value, _) = unsafe { warp::warp_shuffle_xor(mask, i, 1, 32) }; // line: wrong mask
    out.set(i as usize, value);
}

#[test]
fn a_mask_without_the_lane_itself() {
    for fault in check::<wrong_mask>(32, FaultKind::Exchange, &["wrong mask"]) {
        assert!(fault.threads[0] >= 16);
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn finished_lanes(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id();
    if i >= 20 && right == 0 {
        return;
    }
    out.set(i as usize, warp::ballot(i < 5)); // line: finished lanes
}

#[test]
fn an_exchange_with_finished_lanes() {
    for fault in check::<finished_lanes>(32, FaultKind::Exchange, &["finished lanes"]) {
        assert!(fault.what.contains("threads 20-31 finished"), "{fault}");
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn two_operations(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id();
    let value = if i < 16 && right == 0 {
        u32::from(warp::any(i == 3)) // line: vote
    } else {
        warp::shuffle_xor(i, 0) // line: shuffle
    };
    out.set(i as usize, value);
}

#[test]
fn lanes_at_two_operations() {
    check::<two_operations>(32, FaultKind::Exchange, &["vote", "shuffle"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn shuffle_and_barrier(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id();
    if i < 8 || right == 1 {
        out.set(i as usize, warp::shuffle_xor(i, 1)); // line: lanes at a shuffle
    }
    thread::sync_threads(); // line: lanes at a barrier
}

#[test]
fn a_shuffle_whose_lanes_wait_at_a_barrier() {
    let lines = ["lanes at a shuffle", "lanes at a barrier"];
    check::<shuffle_and_barrier>(32, FaultKind::Exchange, &lines);
}

#[kernel(unsafe, block = 32)]
unsafe fn source_outside_mask(out: GlobalMut<u32>, right: u32) {
    let i = warp::lane_id();
    if i < 16 {
        // SAFETY: the lanes of the mask are here.
        let (value, _) = unsafe { warp::warp_shuffle_down(0xFFFF, i, 1, 32 - 16 * right) }; // line: source
        out.set(i as usize, value);
    }
}

#[test]
fn a_shuffle_from_a_lane_outside_the_mask() {
    for fault in check::<source_outside_mask>(32, FaultKind::Panic, &["source"]) {
        assert_eq!(fault.threads, [15]);
    }
}

#[kernel(unsafe, block = 64)]
unsafe fn store_beyond(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    out.set(i + 1 - right as usize, 7); // line: store beyond
}

#[test]
fn a_store_beyond_device_memory() {
    for fault in check::<store_beyond>(64, FaultKind::OutOfBounds, &["store beyond"]) {
        assert_eq!(fault.threads, [63]);
        assert!(fault.what.contains("byte 256 of an allocation of 256"), "{fault}");
    }
}

#[kernel(unsafe, block = 32, shared = 64)]
unsafe fn store_beyond_dynamic(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = shared::dynamic::<u32>(0);
    let bytes = static_shared!(NEXT_TO_DYNAMIC: [u8; 32]);
    bytes.set(i, 0);
    if i <= 16 - right as usize {
        values.set(i, i as u32); // line: store beyond dynamic
        out.set(i, values.get(i));
    }
}

#[test]
fn a_store_beyond_dynamic_shared_memory() {
    for fault in check::<store_beyond_dynamic>(32, FaultKind::OutOfBounds, &["store beyond dynamic"]) {
        assert!(fault.what.contains("byte 64 of dynamic shared memory"), "{fault}");
    }
}

#[kernel(unsafe, block = 32, shared = 64)]
unsafe fn store_beyond_static(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = static_shared!(SIXTEEN: [u32; 16]);
    let _next = static_shared!(SIXTEEN_MORE: [u32; 16]);
    if i <= 16 - right as usize {
        values.set(i, i as u32); // line: store beyond static
        out.set(i, values.get(i));
    }
}

#[test]
fn a_store_beyond_a_static_array() {
    check::<store_beyond_static>(32, FaultKind::OutOfBounds, &["store beyond static"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn unwritten_shared(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = static_shared!(UNWRITTEN: [u32; 32]);
    if i != 9 || right == 1 {
        values.set(i, 1);
    }
    warp::sync();
    out.set(i, values.get(i)); // line: unwritten shared
}

#[test]
fn a_read_of_unwritten_shared_memory() {
    for fault in check::<unwritten_shared>(32, FaultKind::Uninitialised, &["unwritten shared"]) {
        assert_eq!(fault.threads, [9]);
        assert!(fault.what.contains("byte 36"), "{fault}");
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn misaligned(out: GlobalMut<u32>, right: u32) {
    let first = 4 - 3 * (1 - right as usize);
    let i = thread::thread_idx_x() as usize;
    if i == 0 {
        let quad = out.get_quad(first); // line: misaligned
        out.set(0, quad.0[0]);
    }
}

#[test]
fn a_misaligned_quad() {
    check::<misaligned>(32, FaultKind::Misaligned, &["misaligned"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn misaligned_shared(out: GlobalMut<u32>, right: u32) {
    let values = static_shared!(MISALIGNED: [u32; 16]);
    let i = thread::thread_idx_x() as usize;
    if i == 0 {
        values.set_quad(4 - 3 * (1 - right as usize), Quad([1; 4])); // line: misaligned shared
    }
    out.set(i, 0);
}

#[test]
fn a_misaligned_quad_of_shared_memory() {
    check::<misaligned_shared>(32, FaultKind::Misaligned, &["misaligned shared"]);
}

#[kernel(unsafe, block = 32)]
unsafe fn panicking(out: GlobalMut<u32>, right: u32) {
    let table = [1u32, 2, 3, 4];
    let i = thread::thread_idx_x() as usize;
    warp::sync();
    out.set(i, table[i % (5 - right as usize)]); // line: panicking
    warp::sync();
}

#[test]
fn a_panicking_lane() {
    for fault in check::<panicking>(32, FaultKind::Panic, &["panicking"]) {
        assert!(fault.what.contains("the len is 4 but the index is 4"), "{fault}");
        assert_eq!(fault.threads.len(), 1);
        assert_eq!(fault.threads[0] % 5, 4);
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn copy_not_waited_for(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = static_shared!(COPIED: [u32; 64]);
    if i < 16 {
        copy::quad(values.offset(4 * i), out.read_only().offset(4 * i), 16);
    }
    copy::commit();
    if right == 1 {
        copy::wait::<0>();
    } else {
        copy::wait::<1>();
    }
    thread::sync_threads();
    out.set(i, values.get(63 - i)); // line: not waited for
}

#[test]
fn a_copy_that_is_read_before_its_wait() {
    for fault in check::<copy_not_waited_for>(32, FaultKind::Uninitialised, &["not waited for"]) {
        assert!(fault.what.contains("an asynchronous copy to it was not waited for"), "{fault}");
    }
}

#[kernel(unsafe, block = 32)]
unsafe fn copy_without_barrier(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let values = static_shared!(COPIED_AGAIN: [u32; 64]);
    values.set(i, 0);
    values.set(i + 32, 0);
    warp::sync();
    let old = values.get(i);
    if right == 1 {
        // No lane overwrites bytes that another still reads.
        warp::sync();
    }
    if i < 16 {
        copy::quad(values.offset(4 * i), out.read_only().offset(4 * i), 16); // line: early copy
    }
    copy::commit();
    copy::wait::<0>();
    warp::sync();
    out.set(i, old + values.get(63 - i));
}

#[test]
fn a_copy_over_bytes_that_others_still_read() {
    let faults = check::<copy_without_barrier>(32, FaultKind::Race, &[]);
    assert!(faults.iter().any(|fault| fault.to_string().contains(&line("early copy"))));
}

#[kernel(unsafe, block = 32)]
unsafe fn too_much_static(out: GlobalMut<u32>, right: u32) {
    let i = thread::thread_idx_x() as usize;
    let _first = static_shared!(MUCH: [u32; 20_000]);
    if right == 0 {
        let _second = static_shared!(TOO_MUCH: [u32; 20_000]); // line: too much
    }
    out.set(i, 0);
}

#[test]
fn static_arrays_beyond_the_limit() {
    check::<too_much_static>(32, FaultKind::Launch, &["too much"]);
}

#[test]
fn panics_outside_lanes_are_as_ever() {
    let emulator = Emulator::new();
    let out = emulator.upload(&[0u32; 64]);
    emulator.launch::<panicking>([1, 1, 1], 32, (out.view(), 0)).unwrap_err();
    let caught = std::panic::catch_unwind(thread::thread_idx_x);
    assert!(caught.is_err(), "kernel code outside a kernel");
}
