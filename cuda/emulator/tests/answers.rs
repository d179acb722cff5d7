//! Results of kernels on the emulator, against plain definitions.

use cuda_std::atomic::Scope;
use cuda_std::float16::f16x2;
use cuda_std::prelude::*;
use cuda_std::tensor::{self, Element};
use cuda_std::warp::WarpReductionOp;
use cuda_std::{copy, shared, static_shared};
use emulator::{Emulator, Fault};

/// A linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % count
    }
}

#[kernel(unsafe, block = 32..=1024, shared = 128)]
unsafe fn block_sums(values: Global<u32>, out: GlobalMut<u32>, n: u32) {
    let sums = shared::dynamic::<u32>(0);
    let (i, thread) = (thread::index_1d(), thread::thread_idx_x());
    let mut sum = if i < n { values.get(i as usize) } else { 0 };
    for step in [16, 8, 4, 2, 1] {
        sum += warp::shuffle_xor(sum, step);
    }
    if warp::lane_id() == 0 {
        sums.set(thread::warp_idx() as usize, sum);
    }
    thread::sync_threads();
    if thread < 32 {
        let sum = if thread < thread::block_dim_x() / 32 { sums.get(thread as usize) } else { 0 };
        // SAFETY: the whole first warp is here.
        let sum = unsafe { warp::warp_reduce(warp::FULL, sum, WarpReductionOp::Add) };
        if thread == 0 {
            out.set(thread::block_idx_x() as usize, sum);
        }
    }
}

#[test]
fn sums_of_blocks() -> Result<(), Fault> {
    for (seed, n) in [1u32, 31, 33, 100, 257, 1000, 4097].into_iter().enumerate() {
        for block in [32, 96, 256, 1024] {
            let emulator = Emulator::with_seed(seed as u64);
            let values: Vec<u32> = (0..n).map(|i| i * i % 1009).collect();
            let blocks = n.div_ceil(block);
            let (input, out) = (emulator.upload(&values), emulator.allocate(4 * blocks as usize));
            let arguments = (input.view().read_only(), out.view(), n);
            emulator.launch::<block_sums>([blocks, 1, 1], block, arguments)?;
            let expected: Vec<u32> = values.chunks(block as usize).map(|part| part.iter().sum()).collect();
            assert_eq!(out.values::<u32>()?, expected);
        }
    }
    Ok(())
}

/// Result words per lane of `warp_operations`.
const ROWS: usize = 17;

/// All warp operations; with `halves` 1, even and odd lanes use a mask each.
#[kernel(unsafe, block = 32)]
unsafe fn warp_operations(values: Global<u32>, out: GlobalMut<u32>, width: u32, by: u32, halves: u32) {
    let lane = warp::lane_id();
    let value = values.get(lane as usize);
    let mask = match (halves, lane % 2) {
        (0, _) => warp::FULL,
        (_, 0) => 0x5555_5555,
        _ => 0xAAAA_AAAA,
    };
    let wide = u64::from(value) << 32 | u64::from(lane);
    let shuffled =
        |(value, in_range): (u64, bool)| value as u32 ^ (value >> 32) as u32 ^ u32::from(in_range) << 31;
    // SAFETY: the lanes of the mask are here; `by` is even where the mask has every other lane.
    let rows: [u32; ROWS] = unsafe {
        [
            shuffled(warp::warp_shuffle_up(mask, wide, by, width)),
            shuffled(warp::warp_shuffle_down(mask, wide, by, width)),
            shuffled(warp::warp_shuffle_xor(mask, wide, by, width)),
            shuffled(warp::warp_shuffle_idx(mask, wide, by + lane % 2, width)),
            u32::from(warp::warp_vote_all(mask, value < 30)),
            u32::from(warp::warp_vote_any(mask, value > 30)),
            warp::warp_vote_ballot(mask, value.is_multiple_of(3)),
            warp::warp_match_any(mask, value),
            warp::warp_match_any(mask, u64::from(value) << 40),
            warp::warp_match_all(mask, value / 32).unwrap_or(0),
            warp::warp_reduce(mask, value, WarpReductionOp::Add),
            warp::warp_reduce(mask, value, WarpReductionOp::Min),
            warp::warp_reduce(mask, value, WarpReductionOp::Max),
            warp::warp_reduce(mask, value as i32 - 16, WarpReductionOp::Min) as u32,
            warp::warp_reduce(mask, value | 1 << lane, WarpReductionOp::And),
            warp::warp_reduce(mask, 1 << (value % 32), WarpReductionOp::Or),
            warp::warp_reduce(mask, value, WarpReductionOp::Xor),
        ]
    };
    for (row, value) in rows.into_iter().enumerate() {
        out.set(32 * row + lane as usize, value);
    }
}

/// The results of `warp_operations` by definition, for one lane.
fn warp_definitions(values: &[u32], lane: usize, width: u32, by: u32, halves: u32) -> [u32; ROWS] {
    let group: Vec<usize> = (0..32).filter(|l| halves == 0 || l % 2 == lane % 2).collect();
    let l = lane as u32;
    let of = |in_range: bool, source: u32| {
        let source = if in_range { source } else { l };
        values[source as usize] ^ source ^ u32::from(in_range) << 31
    };
    let piece = l / width * width;
    let lanes = |holds: &dyn Fn(u32) -> bool| {
        group.iter().filter(|&&l| holds(values[l])).fold(0u32, |mask, l| mask | 1 << l)
    };
    let all = group.iter().fold(0u32, |mask, l| mask | 1 << l);
    let fold = |combine: fn(u32, u32) -> u32| group.iter().map(|&l| values[l]).reduce(combine).unwrap_or(0);
    let (least, most) = (fold(u32::min), fold(u32::max));
    [
        of(l >= piece + by, l.wrapping_sub(by)),
        of(l + by < piece + width, l + by),
        of(l ^ by < piece + width, l ^ by),
        of(true, piece + (by + l % 2) % width),
        u32::from(most < 30),
        u32::from(most > 30),
        lanes(&|value| value % 3 == 0),
        lanes(&|value| value == values[lane]),
        lanes(&|value| value == values[lane]),
        if most / 32 == least / 32 { all } else { 0 },
        fold(|a, b| a + b),
        least,
        most,
        (least as i32 - 16) as u32,
        group.iter().fold(u32::MAX, |and, &l| and & (values[l] | 1 << l)),
        group.iter().fold(0, |or, &l| or | 1 << (values[l] % 32)),
        fold(|a, b| a ^ b),
    ]
}

#[test]
fn warps_do_as_defined() -> Result<(), Fault> {
    let mut numbers = Numbers(1);
    for round in 0..200u32 {
        let (halves, limit) = (round % 2, 1 + numbers.below(64));
        let width = if halves == 1 { 2 << numbers.below(5) } else { 1 << numbers.below(6) };
        let by = numbers.below(32) & !halves;
        let values: Vec<u32> = (0..32).map(|_| numbers.below(limit)).collect();
        let emulator = Emulator::with_seed(u64::from(round));
        let (input, out) = (emulator.upload(&values), emulator.allocate(4 * 32 * ROWS));
        let arguments = (input.view().read_only(), out.view(), width, by, halves);
        emulator.launch::<warp_operations>([1, 1, 1], 32, arguments)?;
        let got = out.values::<u32>()?;
        for lane in 0..32 {
            let expected = warp_definitions(&values, lane, width, by, halves);
            for (row, &expected) in expected.iter().enumerate() {
                let got = got[32 * row + lane];
                assert_eq!(got, expected, "row {row}, lane {lane}, width {width}, by {by}, halves {halves}");
            }
        }
    }
    Ok(())
}

#[kernel(unsafe, block = 128)]
unsafe fn histogram(values: Global<u8>, counts: GlobalMut<u32>, largest: GlobalMut<u64>, n: u32) {
    let own = static_shared!(HISTOGRAM: [u32; 256]);
    let (i, thread) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    for bin in [thread, thread + 128] {
        own.set(bin, 0);
    }
    thread::sync_threads();
    if i < n as usize {
        own.fetch_add(usize::from(values.get(i)), 1);
        // The largest, by a loop of compare-and-exchange.
        let new = u64::from(values.get(i)) << 32 | i as u64;
        let mut old = largest.get(0);
        while old < new {
            let there = largest.compare_exchange(0, old, new, Scope::Device);
            if there == old {
                break;
            }
            old = there;
        }
    }
    thread::sync_threads();
    for bin in [thread, thread + 128] {
        let count = own.get(bin);
        if count > 0 {
            counts.fetch_add(bin, count, Scope::Device);
        }
    }
}

#[test]
fn a_histogram_of_many_blocks() -> Result<(), Fault> {
    let mut numbers = Numbers(2);
    let values: Vec<u8> = (0..50_000).map(|_| numbers.below(256) as u8).collect();
    let emulator = Emulator::with_seed(7);
    let (input, counts) = (emulator.upload(&values), emulator.upload(&[0u32; 256]));
    let largest = emulator.upload(&[0u64]);
    let n = values.len() as u32;
    let arguments = (input.view().read_only(), counts.view(), largest.view(), n);
    emulator.launch::<histogram>([n.div_ceil(128), 1, 1], 128, arguments)?;
    let mut expected = vec![0u32; 256];
    values.iter().for_each(|&value| expected[usize::from(value)] += 1);
    assert_eq!(counts.values::<u32>()?, expected);
    let of = |(i, &value): (usize, &u8)| u64::from(value) << 32 | i as u64;
    assert_eq!(largest.values::<u64>()?.first().copied(), values.iter().enumerate().map(of).max());
    Ok(())
}

/// `c = a * b` for 16 rows and 8 columns of 32 bytes.
fn multiply<T: Element>(a: Global<T>, b: Global<T>, c: GlobalMut<T::Sum>) {
    let lane = warp::lane_id() as usize;
    let rows = shared::dynamic::<u32>(0);
    rows.set_quad(4 * lane, a.cast::<u32>().get_quad(4 * lane));
    warp::sync();
    let fragment = tensor::load_matrices(rows.offset(8 * (lane % 16) + 4 * (lane / 16)));
    let column = b.cast::<u32>().offset(8 * (lane / 4));
    let columns = [column.get(lane % 4), column.get(lane % 4 + 4)];
    let mut sums = [T::Sum::default(); 4];
    T::multiply_add(&mut sums, fragment, columns);
    for (index, sum) in sums.into_iter().enumerate() {
        c.set(8 * (lane / 4 + 8 * (index / 2)) + 2 * (lane % 4) + index % 2, sum);
    }
}

macro_rules! products {
    ($($kernel:ident, $test:ident, $type:ty, $sum:ty, $value:expr, $wide:expr;)*) => {$(
        #[kernel(unsafe, block = 32, shared = 512)]
        unsafe fn $kernel(a: Global<$type>, b: Global<$type>, c: GlobalMut<$sum>) {
            multiply::<$type>(a, b, c);
        }

        #[test]
        fn $test() -> Result<(), Fault> {
            const DEPTH: usize = 32 / size_of::<$type>();
            let mut numbers = Numbers(3);
            for seed in 0..5 {
                let mut values =
                    |count: usize| -> Vec<$type> { (0..count).map(|_| ($value)(&mut numbers)).collect() };
                let (a, b) = (values(16 * DEPTH), values(8 * DEPTH));
                let emulator = Emulator::with_seed(seed);
                let (left, right) = (emulator.upload(&a), emulator.upload(&b));
                let out = emulator.allocate(16 * 8 * 4);
                let arguments = (left.view().read_only(), right.view().read_only(), out.view());
                emulator.launch::<$kernel>([1, 1, 1], 32, arguments)?;
                let dot = |row: &[$type], column: &[$type]| -> $sum {
                    row.iter().zip(column).map(|(&x, &y)| ($wide)(x) * ($wide)(y)).sum()
                };
                let expected: Vec<$sum> =
                    a.chunks(DEPTH).flat_map(|x| b.chunks(DEPTH).map(move |y| dot(x, y))).collect();
                assert_eq!(out.values::<$sum>()?, expected);
            }
            Ok(())
        }
    )*};
}

products! {
    multiply_f16, product_of_f16, f16, f32,
        |numbers: &mut Numbers| f16::from_f32(numbers.below(21) as f32 - 10.0), f16::to_f32;
    multiply_u8, product_of_u8, u8, i32, |numbers: &mut Numbers| numbers.below(256) as u8, i32::from;
    multiply_i8, product_of_i8, i8, i32, |numbers: &mut Numbers| numbers.below(256) as u8 as i8, i32::from;
}

/// Sums rows of 16 bytes per lane through two buffers in turn. The last copy of the last row is cut
/// to `last_bytes`.
#[kernel(unsafe, block = 64, shared = 2 * 64 * 16)]
unsafe fn pipeline(values: Global<u32>, out: GlobalMut<u32>, rows: u32, last_bytes: u32) {
    let thread = thread::thread_idx_x() as usize;
    let buffers = shared::dynamic::<u32>(0);
    let start = |row: u32| {
        if row < rows {
            let last = row == rows - 1 && thread == 63;
            let from = values.offset(4 * (64 * row as usize + thread));
            copy::quad(
                buffers.offset(4 * (64 * (row as usize % 2) + thread)),
                from,
                if last { last_bytes } else { 16 },
            );
        }
        copy::commit();
    };
    start(0);
    let mut sum = 0;
    for row in 0..rows {
        start(row + 1);
        copy::wait::<1>();
        thread::sync_threads();
        // Bytes that another thread copied.
        let quad = buffers.get_quad(4 * (64 * (row as usize % 2) + 63 - thread)).0;
        sum += quad.iter().sum::<u32>() * (row + 1);
        thread::sync_threads();
    }
    out.set(63 - thread, sum);
}

#[test]
fn copies_in_groups_and_with_zeros() -> Result<(), Fault> {
    for (seed, (rows, last)) in [(1, 16), (2, 12), (5, 4), (6, 0)].into_iter().enumerate() {
        let mut values: Vec<u32> = (0..rows * 256).map(|i| i * 7 % 1000).collect();
        values.truncate(values.len() - 4 + last as usize / 4);
        let emulator = Emulator::with_seed(seed as u64);
        let (input, out) = (emulator.upload(&values), emulator.allocate(256));
        let arguments = (input.view().read_only(), out.view(), rows, last);
        emulator.launch::<pipeline>([1, 1, 1], 64, arguments)?;
        let mut expected = vec![0; 64];
        for (i, value) in values.iter().enumerate() {
            expected[i / 4 % 64] += value * (i as u32 / 256 + 1);
        }
        assert_eq!(out.values::<u32>()?, expected);
    }
    Ok(())
}

#[kernel(unsafe, block = 32)]
unsafe fn pairs(a: Global<f16x2>, b: Global<f16x2>, out: GlobalMut<f16x2>) {
    let i = thread::thread_idx_x() as usize;
    let (x, y) = (a.get(i), b.get(i));
    for (row, pair) in
        [x.plus(y), x.minus(y), x.times(y), x.mul_add(y, x), x.min(y), x.max(y)].into_iter().enumerate()
    {
        out.set(32 * row + i, pair);
    }
}

#[test]
fn pairs_of_halves() -> Result<(), Fault> {
    let mut numbers = Numbers(4);
    // Quarters small enough that all results are exact.
    let mut values = || -> Vec<f32> { (0..64).map(|_| numbers.below(65) as f32 / 4.0 - 8.0).collect() };
    let (a, b) = (values(), values());
    let pairs_of = |values: &[f32]| -> Vec<f16x2> {
        values.chunks(2).map(|pair| f16x2::new(f16::from_f32(pair[0]), f16::from_f32(pair[1]))).collect()
    };
    let emulator = Emulator::new();
    let (left, right) = (emulator.upload(&pairs_of(&a)), emulator.upload(&pairs_of(&b)));
    let out = emulator.allocate(6 * 32 * 4);
    let arguments = (left.view().read_only(), right.view().read_only(), out.view());
    emulator.launch::<pairs>([1, 1, 1], 32, arguments)?;
    let got: Vec<f32> = out.values::<f16>()?.into_iter().map(f16::to_f32).collect();
    let definitions: [fn(f32, f32) -> f32; 6] =
        [|x, y| x + y, |x, y| x - y, |x, y| x * y, |x, y| x * y + x, f32::min, f32::max];
    for (got, definition) in got.chunks(64).zip(definitions) {
        assert!(a.iter().zip(&b).map(|(&x, &y)| definition(x, y)).eq(got.iter().copied()));
    }
    Ok(())
}

#[kernel(unsafe, block = 64)]
unsafe fn in_order_of_arrival(next: GlobalMut<u32>, out: GlobalMut<u32>) {
    let position = next.fetch_add(thread::block_idx_x() as usize, 1, Scope::Device);
    out.set((64 * thread::block_idx_x() + position) as usize, thread::thread_idx_x());
}

#[test]
fn the_seed_decides_the_order() -> Result<(), Fault> {
    let run = |seed| {
        let emulator = Emulator::with_seed(seed);
        let (next, out) = (emulator.upload(&[0u32; 20]), emulator.allocate(20 * 256));
        emulator.launch::<in_order_of_arrival>([20, 1, 1], 64, (next.view(), out.view()))?;
        out.values::<u32>()
    };
    let first = run(1)?;
    assert_eq!(first, run(1)?);
    assert_ne!(first, run(2)?);
    assert_ne!(first[..64], first[64..128]);
    let mut sorted = first[..64].to_vec();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..64));
    Ok(())
}

/// Warps 0 and 1 exchange values at barrier 1, warps 2 and 3 at barrier 2, then all meet at barrier
/// 0.
#[kernel(unsafe, block = 128)]
unsafe fn named(out: GlobalMut<u32>) {
    let thread = thread::thread_idx_x() as usize;
    let values = static_shared!(NAMED: [u32; 128]);
    values.set(thread, thread as u32);
    let mut value = 0;
    for round in 0..3 {
        thread::sync_named(1 + thread as u32 / 64, 64);
        value = values.get(thread ^ 63) + round;
        thread::sync_named(1 + thread as u32 / 64, 64);
        values.set(thread, value);
    }
    thread::sync_threads();
    let other = values.get(thread ^ 127);
    let large = thread::sync_threads_count(u32::from(value > 100));
    out.set(thread, 1000 * other + large);
}

#[test]
fn named_barriers() -> Result<(), Fault> {
    let mut expected: Vec<u32> = (0..128).collect();
    for round in 0..3 {
        expected = (0..128).map(|i: usize| expected[i ^ 63] + round).collect();
    }
    let large = expected.iter().filter(|&&value| value > 100).count() as u32;
    let expected: Vec<u32> = (0..128).map(|i: usize| 1000 * expected[i ^ 127] + large).collect();
    for seed in 0..10 {
        let emulator = Emulator::with_seed(seed);
        let out = emulator.allocate(512);
        emulator.launch::<named>([1, 1, 1], 128, (out.view(),))?;
        assert_eq!(out.values::<u32>()?, expected);
    }
    Ok(())
}

/// Neighbours write bytes of one word, then read each other's. All other threads spin until thread
/// 5 sets a flag.
#[kernel(unsafe, block = 64)]
unsafe fn neighbours(out: GlobalMut<u32>) {
    let thread = thread::thread_idx_x() as usize;
    let (bytes, flag) = (static_shared!(BYTES: [u8; 64]), static_shared!(FLAG: [u32; 1]));
    bytes.set(thread, thread as u8);
    if thread == 0 {
        flag.set(0, 0);
    }
    thread::sync_threads();
    if thread == 5 {
        flag.fetch_add(0, 1);
    } else {
        while flag.fetch_add(0, 0) == 0 {}
    }
    out.set(thread, u32::from(bytes.get(thread ^ 1)));
}

#[test]
fn bytes_of_one_word_are_apart() -> Result<(), Fault> {
    for seed in 0..5 {
        let emulator = Emulator::with_seed(seed);
        let out = emulator.allocate(256);
        emulator.launch::<neighbours>([1, 1, 1], 64, (out.view(),))?;
        assert!(out.values::<u32>()?.into_iter().eq((0..64).map(|i| i ^ 1)));
    }
    Ok(())
}

#[kernel(unsafe, block = 32)]
unsafe fn indices(out: GlobalMut<u32>) {
    let (x, y, z) = (thread::block_idx_x(), thread::block_idx_y(), thread::block_idx_z());
    let number = x + thread::grid_dim_x() * (y + thread::grid_dim_y() * z);
    if thread::thread_idx_x() == 0 {
        out.set(number as usize, 100 * x + 10 * y + z);
    }
}

#[test]
fn grids_of_three_axes() -> Result<(), Fault> {
    let emulator = Emulator::with_seed(3);
    let out = emulator.allocate(4 * 30);
    emulator.launch::<indices>([5, 3, 2], 32, (out.view(),))?;
    let expected = (0..30).map(|i| 100 * (i % 5) + 10 * (i / 5 % 3) + i / 15);
    assert!(out.values::<u32>()?.into_iter().eq(expected));
    Ok(())
}
