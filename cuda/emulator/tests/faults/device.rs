//! Faults of device memory and of launches.

use cuda_std::atomic::Scope;
use cuda_std::launch::Limits;
use cuda_std::prelude::*;
use emulator::{Allocation, Emulator, Fault, FaultKind};

use crate::line_of;

#[kernel(unsafe, block = 64)]
unsafe fn add(values: Global<u32>, out: GlobalMut<u32>, n: u32) {
    let i = thread::index_1d();
    if i < n {
        let value = values.get(i as usize); // line: unwritten
        out.fetch_add(0, value, Scope::Device);
    }
}

fn sum(emulator: &Emulator, values: &Allocation, n: u32) -> Result<u32, Fault> {
    let out = emulator.upload(&[0u32]);
    let blocks = n.div_ceil(64);
    emulator.launch::<add>([blocks, 1, 1], 64, (values.view().read_only(), out.view(), n))?;
    Ok(out.values::<u32>()?[0])
}

#[test]
fn a_read_of_unwritten_device_memory() {
    let emulator = Emulator::new();
    let values = emulator.allocate(4 * 1000);
    values.fill(0);
    assert_eq!(sum(&emulator, &values, 1000), Ok(0));

    let values = emulator.allocate(4 * 1000);
    values.upload(0, &[0; 4 * 900]).unwrap();
    values.upload(4 * 901 - 1, &[0; 4 * 99 + 1]).unwrap();
    let fault = sum(&emulator, &values, 1000).unwrap_err();
    assert_eq!((fault.kind, fault.block), (FaultKind::Uninitialised, Some([14, 0, 0])));
    assert_eq!(fault.threads, [4]);
    assert!(
        fault.to_string().contains(&line_of("device.rs", include_str!("device.rs"), "unwritten")),
        "{fault}"
    );
    assert!(fault.what.contains("byte 3600 was never written"), "{fault}");

    // The host is told as well, and can ask.
    assert_eq!(values.values::<u32>().unwrap_err().kind, FaultKind::Uninitialised);
    assert_eq!(values.is_written(0..3600), Ok(true));
    assert_eq!(values.is_written(3599..3601), Ok(false));
    assert_eq!(values.is_written(3599..4001).unwrap_err().kind, FaultKind::OutOfBounds);
    let mut last = [0; 4];
    assert_eq!(values.download(3996, &mut last), Ok(()));
    assert_eq!(values.upload(3997, &last).unwrap_err().kind, FaultKind::OutOfBounds);
}

#[test]
fn freed_memory_is_out_of_bounds() {
    let emulator = Emulator::new();
    let values = emulator.upload(&[3u32; 10]);
    assert_eq!(sum(&emulator, &values, 10), Ok(30));
    let view = values.view().read_only();
    drop(values);
    let out = emulator.upload(&[0u32]);
    let fault = emulator.launch::<add>([1, 1, 1], 64, (view, out.view(), 10)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
}

#[kernel(unsafe, block = 32..=256, shared = n * 4)]
unsafe fn bounded(n: u32, out: GlobalMut<u32>) {
    if thread::thread_idx_x() == 0 {
        out.fetch_add(0, n, Scope::Device);
    }
}

#[test]
fn a_launch_outside_contract_or_limits() {
    let emulator = Emulator::new().with_limits(Limits { block: 128, grid: [100, 1, 1], shared: 400 });
    let out = emulator.upload(&[0u32]);
    let launch = |grid, block, n| emulator.launch::<bounded>(grid, block, (n, out.view()));
    let refused = |grid, block, n| launch(grid, block, n).unwrap_err();
    for fault in [
        refused([1, 1, 1], 16, 1),
        refused([1, 1, 1], 256, 1),
        refused([1, 1, 1], 33, 1),
        refused([0, 1, 1], 32, 1),
    ] {
        assert_eq!(fault.kind, FaultKind::Launch);
    }
    let fault = refused([1, 2, 1], 32, 1);
    let said = "kernel bounded: launch: grid: requested 1 x 2 x 1 blocks, allowed 1 to 100 x 1 x 1 blocks";
    assert_eq!(fault.to_string(), said);
    assert_eq!(refused([1, 1, 1], 32, 101).kind, FaultKind::Launch);
    assert_eq!(launch([100, 1, 1], 128, 100), Ok(()));
    assert_eq!(out.values::<u32>(), Ok(vec![10_000]));
}

#[kernel(unsafe, block = 32)]
unsafe fn some_blocks_fail(out: GlobalMut<u32>) {
    let block = thread::block_idx_x();
    if thread::thread_idx_x() == 0 {
        assert!(block % 7 != 3, "block {block}");
        out.fetch_add(0, 1, Scope::Device);
    }
}

#[test]
fn the_same_seed_gives_the_same_fault() {
    let run = |seed| {
        let emulator = Emulator::with_seed(seed);
        let out = emulator.upload(&[0u32]);
        emulator.launch::<some_blocks_fail>([200, 1, 1], 32, (out.view(),)).unwrap_err()
    };
    let faults: Vec<Fault> = (0..10).map(run).collect();
    assert!((0..10).map(run).eq(faults.iter().cloned()));
    assert!(faults.iter().any(|fault| fault.block != faults[0].block));
}

#[kernel(unsafe, block = 32, shared = 4)]
unsafe fn far_index(index: u64, of_shared: u32, out: GlobalMut<u32>) {
    if thread::thread_idx_x() == 0 {
        let values = cuda_std::shared::dynamic::<u32>(0);
        values.set(0, 7);
        let index = index as usize;
        out.set(0, if of_shared == 1 { values.get(index) } else { out.get(index) });
    }
}

#[test]
fn an_index_beyond_all_addresses_does_not_wrap() {
    let emulator = Emulator::new();
    let out = emulator.upload(&[7u32]);
    let launch =
        |index, of_shared| emulator.launch::<far_index>([1, 1, 1], 32, (index, of_shared, out.view()));
    for of_shared in [0, 1] {
        assert_eq!(launch(0, of_shared), Ok(()));
        for index in [1 << 30, 1 << 62, u64::MAX] {
            // The largest address stands for all beyond it, and is no multiple of 4.
            let kind = launch(index, of_shared).unwrap_err().kind;
            assert!(matches!(kind, FaultKind::OutOfBounds | FaultKind::Misaligned), "{index}: {kind:?}");
        }
    }
}
