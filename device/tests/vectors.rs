//! Passes over vectors of another library, on the emulator.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use cuda_std::memory::Plain;
use tagore_device::key;
use tagore_device::vectors::check::*;
use tagore_device::vectors::code::*;
use tagore_device::vectors::copy::*;
use tagore_device::vectors::hash::*;
use tagore_device::vectors::norms::*;
use tagore_device::vectors::split::*;
use tagore_device::vectors::{Strided, VECTOR_ROWS, VECTOR_THREADS};

use crate::device::TestDevice;
use crate::exact::{Value, rows};
use crate::{SEEDS, integers};

const SHAPES: [(usize, usize); 3] = [(1, 1), (13, 97), (20, 33)];

fn strided<T: Plain>(device: &TestDevice, values: &[T], stride: usize, dim: usize) -> Strided<T> {
    let count = (values.len() / stride) as u32;
    Strided { values: device.input(values), stride: stride as u64, count, dim: dim as u32 }
}

fn blocks(count: usize) -> u32 {
    (count as u32).div_ceil(VECTOR_ROWS)
}

/// The results for these values: first faulty row, bits of the largest magnitude, other values.
fn checked<T: Plain, K: Kernel<Arguments = (Check<T>,)>>(
    values: &[T],
    stride: usize,
    dim: usize,
) -> Vec<u32> {
    let device = TestDevice::new(3);
    let found = device.upload(&[u32::MAX, 0, 0]);
    let rows = strided(&device, values, stride, dim);
    let p = Check { rows, found: found.view(), most: 1000f32.to_bits(), padding: 0 };
    device.launch::<K>(2, VECTOR_THREADS, (p,));
    found.values().unwrap()
}

#[test]
fn checks_find_the_first_faulty_row_and_values_that_are_no_bytes() {
    let (count, stride, dim) = (40, 37, 35);
    // Values between rows do not count.
    let value = |i: usize| if i % stride < dim { (i % 256) as f32 } else { f32::NAN };
    let whole: Vec<f32> = (0..count * stride).map(value).collect();
    let check = |values: &[f32]| checked::<f32, vectors_check_f32>(values, stride, dim);
    assert_eq!(check(&whole), [u32::MAX, 255f32.to_bits(), 0]);
    for (wrong, magnitude) in [(-0.0, 255.0), (0.5, 255.0), (256.0, 256.0), (-700.0f32, 700f32)] {
        let mut values = whole.clone();
        values[21 * stride + 34] = wrong;
        assert_eq!(check(&values), [u32::MAX, magnitude.to_bits(), 1], "{wrong}");
    }
    for wrong in [f32::NAN, f32::INFINITY, -1001.0] {
        let mut values = whole.clone();
        values[39 * stride] = wrong;
        values[17 * stride + 20] = wrong;
        assert_eq!(check(&values), [17, 255f32.to_bits(), 1], "{wrong}");
    }
    let halves: Vec<f16> = whole.iter().map(|&x| f16::from_f32(x)).collect();
    assert_eq!(checked::<f16, vectors_check_f16>(&halves, stride, dim), [u32::MAX, 255f32.to_bits(), 0]);
}

#[test]
fn rows_are_copied_by_number_and_by_id() {
    for (seed, (count, dim)) in SEEDS.into_iter().zip(SHAPES) {
        let (stride, to_stride) = (dim + 3, dim + 5);
        let values: Vec<u8> = integers(count * stride, 0, 255, seed).into_iter().map(|x| x as u8).collect();
        let ids: Vec<u32> = integers(9, 0, count as i64 - 1, seed).into_iter().map(|x| x as u32).collect();
        for by_ids in [false, true] {
            let device = TestDevice::new(seed);
            let first = count / 3;
            let chosen: Vec<usize> =
                if by_ids { ids.iter().map(|&id| id as usize).collect() } else { (first..count).collect() };
            let to = device.room::<u8>(chosen.len() * to_stride);
            let narrowed = device.room::<u8>(chosen.len() * to_stride);
            let floats: Vec<f32> = values.iter().map(|&x| f32::from(x)).collect();
            let p = CopyRows {
                rows: strided(&device, &values, stride, dim),
                ids: device.input(&ids),
                to: to.view(),
                to_stride: to_stride as u64,
                count: chosen.len() as u32,
                first: first as u32,
                by_ids: u32::from(by_ids),
                padding: 0,
            };
            device.launch::<vectors_copy_bytes>(blocks(chosen.len()), VECTOR_THREADS, (p,));
            let of_floats = CopyRows {
                rows: strided(&device, &floats, stride, dim),
                ids: p.ids,
                to: narrowed.view(),
                to_stride: p.to_stride,
                count: p.count,
                first: p.first,
                by_ids: p.by_ids,
                padding: 0,
            };
            device.launch::<vectors_copy_narrowed>(blocks(chosen.len()), VECTOR_THREADS, (of_floats,));
            let row = |&row: &usize| {
                let mut row = values[row * stride..][..dim].to_vec();
                row.resize(to_stride, 0);
                row
            };
            let expected: Vec<u8> = chosen.iter().flat_map(row).collect();
            assert_eq!(to.values::<u8>().unwrap(), expected, "{count} x {dim}, by ids: {by_ids}");
            assert_eq!(narrowed.values::<u8>().unwrap(), expected, "{count} x {dim}, by ids: {by_ids}");
        }
    }
}

#[test]
fn bits_become_bytes() {
    for (seed, (count, dim)) in SEEDS.into_iter().zip([(1usize, 1usize), (13, 97), (9, 64)]) {
        let (row, to_stride) = (dim.div_ceil(8) + 1, dim + 3);
        let bytes: Vec<u8> = integers(count * row, 0, 256, seed).into_iter().map(|x| x as u8).collect();
        let device = TestDevice::new(seed);
        let to = device.room::<u8>(count * to_stride);
        let (ids, to_view) = (device.input(&[0]), to.view());
        let rows = strided(&device, &bytes, row, dim);
        let to_stride = to_stride as u64;
        let count = count as u32;
        let p = CopyRows { rows, ids, to: to_view, to_stride, count, first: 0, by_ids: 0, padding: 0 };
        device.launch::<vectors_copy_bits>(blocks(count as usize), VECTOR_THREADS, (p,));
        let bit = |from: &[u8], i: usize| if i < dim { from[i / 8] >> (i % 8) & 1 } else { 0 };
        let wide = |from: &[u8]| (0..to_stride as usize).map(|i| bit(from, i)).collect::<Vec<_>>();
        let expected: Vec<u8> = bytes.chunks_exact(row).flat_map(wide).collect();
        assert_eq!(to.values::<u8>().unwrap(), expected, "{count} x {dim}");
    }
}

#[test]
fn words_are_copied_and_hashed_as_bytes_are_by_content() {
    let device = TestDevice::new(1);
    let words: Vec<u32> = (0..60).map(|i| (i % 20) * 0x0102_0304).collect();
    let to = device.room::<u32>(3 * 8);
    // Rows of 6 of every 20 words: all equal.
    let rows = strided(&device, &words, 20, 6);
    let (ids, to_view) = (device.input(&[0]), to.view());
    let p = CopyRows { rows, ids, to: to_view, to_stride: 8, count: 3, first: 0, by_ids: 0, padding: 0 };
    device.launch::<vectors_copy_words>(1, VECTOR_THREADS, (p,));
    let row: Vec<u32> = words[..6].iter().copied().chain([0, 0]).collect();
    assert_eq!(to.values::<u32>().unwrap(), row.repeat(3));
    let hashes = device.room::<u64>(3);
    device.launch::<vectors_hash_words>(1, VECTOR_THREADS, (rows, hashes.view(), INTEGERS));
    let expected = (0..6).fold(0u64, |sum, i| sum.wrapping_add(term(i, words[i as usize])));
    assert_eq!(hashes.values::<u64>().unwrap(), [expected; 3]);

    // A value in another place has another hash.
    let bytes = [7u8, 0, 0, 7, 7, 0];
    let hashes = device.room::<u64>(3);
    device.launch::<vectors_hash_bytes>(
        1,
        VECTOR_THREADS,
        (strided(&device, &bytes, 2, 2), hashes.view(), INTEGERS),
    );
    let hashes = hashes.values::<u64>().unwrap();
    assert!(hashes[0] == hashes[2] && hashes[0] != hashes[1], "{hashes:?}");
}

/// No value counts as zero but zero.
const INTEGERS: Least = Least { word: 0, half: 0 };

#[test]
fn floats_are_hashed_without_the_signs_of_zeros() {
    let device = TestDevice::new(1);
    let rows = [[0.0f32, 1.0], [-0.0, 1.0], [1e-25, 1.0], [0.0, -1.0]];
    let words: Vec<u32> = rows.as_flattened().iter().map(|x| x.to_bits()).collect();
    let hashes_by = |least: Least| {
        let hashes = device.room::<u64>(4);
        let arguments = (strided(&device, &words, 2, 2), hashes.view(), least);
        device.launch::<vectors_hash_words>(1, VECTOR_THREADS, arguments);
        hashes.values::<u64>().unwrap()
    };
    let by_bits = hashes_by(INTEGERS);
    assert!((1..4).all(|row| by_bits[row] != by_bits[0]), "{by_bits:?}");
    let by_value = hashes_by(Least { word: 1e-24f32.to_bits(), half: 0 });
    assert!(by_value[0] == by_value[1] && by_value[0] == by_value[2] && by_value[0] != by_value[3]);

    let halves = Least { word: 0, half: 1 };
    assert_eq!(
        [0x8000_3c00, 0x3c00_8000, 0x8001_8000].map(|x| halves.apply(x)),
        [0x3c00, 0x3c00_0000, 0x8001_0000]
    );
    // Rows of three values of 16 bits.
    let bytes = [0u8, 0, 0, 0x3c, 0, 0, 0, 0x80, 0, 0x3c, 0, 0];
    let hashes = device.room::<u64>(2);
    let arguments = (strided(&device, &bytes, 6, 6), hashes.view(), halves);
    device.launch::<vectors_hash_bytes>(1, VECTOR_THREADS, arguments);
    let hashes = hashes.values::<u64>().unwrap();
    assert_eq!(hashes[0], hashes[1]);
}

fn norms<T, S, U>()
where
    T: Value,
    S: Kernel<Arguments = (Strided<T>, cuda_std::memory::GlobalMut<f64>)>,
    U: Kernel<Arguments = (Unit<T>,)>,
{
    for (seed, (count, dim)) in SEEDS.into_iter().zip(SHAPES) {
        let (stride, to_stride) = (dim + 2, dim + 1);
        let mut values = rows::<T>(count, stride, seed);
        values[(count - 1) * stride..][..dim].fill(T::of(0));
        let device = TestDevice::new(seed);
        let rows = strided(&device, &values, stride, dim);
        let squares = device.room::<f64>(count);
        device.launch::<S>(1, VECTOR_THREADS, (rows, squares.view()));
        let row = |row: usize| values[row * stride..][..dim].iter().map(|x| x.exactly());
        // The same additions in the same order: the same bits.
        let expected: Vec<f64> = (0..count).map(|i| row(i).fold(0.0, |sum, x| sum + x * x)).collect();
        assert_eq!(squares.values::<f64>().unwrap(), expected);

        let norms: Vec<f64> = expected.iter().map(|x| x.sqrt()).collect();
        let to = device.room::<f32>(count * to_stride);
        let p = Unit { rows, norms: device.input(&norms), to: to.view(), to_stride: to_stride as u64 };
        device.launch::<U>(blocks(count), VECTOR_THREADS, (p,));
        let unit = |i: usize| {
            let norm = if norms[i] > 0.0 { norms[i] } else { 1.0 };
            row(i).map(move |x| (x / norm) as f32).chain([0.0]).collect::<Vec<_>>()
        };
        assert_eq!(to.values::<f32>().unwrap(), (0..count).flat_map(unit).collect::<Vec<_>>());
    }
}

#[test]
fn norms_and_unit_vectors_have_the_bits_of_f64() {
    norms::<f32, vectors_squares_f32, vectors_unit_f32>();
    norms::<f16, vectors_squares_f16, vectors_unit_f16>();
    norms::<u8, vectors_squares_u8, vectors_unit_u8>();
    norms::<i8, vectors_squares_i8, vectors_unit_i8>();
}

#[test]
fn keys_are_split_with_their_empty_slots() {
    let neighbours = (0..600u32).map(|i| (i as f32 - 300.5, i * 7));
    let keys: Vec<u64> =
        neighbours.clone().map(|(distance, id)| key::pack(distance, id)).chain([key::NONE]).collect();
    let device = TestDevice::new(2);
    let (ids, distances) = (device.room::<u32>(keys.len()), device.room::<f32>(keys.len()));
    let p = Split {
        keys: device.input(&keys),
        ids: ids.view(),
        distances: distances.view(),
        count: keys.len() as u64,
    };
    device.launch::<vectors_split>(2, VECTOR_THREADS, (p,));
    let expected: (Vec<f32>, Vec<u32>) = neighbours.chain([(f32::INFINITY, u32::MAX)]).unzip();
    assert_eq!((distances.values().unwrap(), ids.values().unwrap()), expected);
}

/// The Hadamard transform, times the square root of the length, by the definition of the matrix.
fn hadamard(values: &[f64]) -> Vec<f64> {
    let sign =
        |row: usize, column: usize| if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let rows = 0..values.len();
    rows.map(|row| values.iter().zip(0..).map(|(x, column)| sign(row, column) * x).sum()).collect()
}

/// Codes rows with kernel `K`, and compares them with the definition; `each` if rows have scales of
/// their own.
fn codes<T, C, K>(nearest: impl Fn(f64) -> f64, value: impl Fn(C) -> f64, most: f64)
where
    T: Value,
    C: Code + Default,
    K: Kernel<Arguments = (Coding<T, C>,)>,
{
    for (seed, (count, dim, width, transforms)) in
        SEEDS.into_iter().cycle().zip([(1, 1, 1, 1), (3, 97, 64, 4), (2, 256, 256, 1), (2, 33, 1, 0)])
    {
        for each in [false, true] {
            let (stride, to_stride) = (dim + 2, dim + 3);
            let mut values = rows::<T>(count, stride, seed);
            values[(count - 1) * stride..][..dim].fill(T::of(0));
            let whole = |length: usize, seed: u64| {
                integers(length, -3, 4, seed).into_iter().map(|x| x as f32).collect::<Vec<_>>()
            };
            let factors: Vec<f32> = whole(transforms * width, seed + 1).iter().map(|x| x * 0.125).collect();
            let mean = if each { vec![0.0; dim] } else { whole(dim, seed + 2) };
            let device = TestDevice::new(seed);
            let codes = device.room::<C>(count * to_stride);
            // Rows with a scale of their own are queries, which have no rests.
            let rests = device.room::<C>(count * to_stride);
            let scale = if each { 0.0 } else { 0.25 };
            let p = Coding::<T, C> {
                rows: strided(&device, &values, stride, dim),
                rotation: Rotation {
                    factors: device.input(&[&factors[..], &[0.0]].concat()),
                    transforms: transforms as u32,
                    width: width as u32,
                },
                mean: device.input(&mean),
                codes: codes.view(),
                rests: rests.view(),
                stride: to_stride as u64,
                scale,
                has_rests: u32::from(!each),
            };
            device.launch::<K>(count as u32, CODE_THREADS, (p,));
            let codes = codes.values::<C>().unwrap();
            let rests = (!each).then(|| rests.values::<C>().unwrap());
            let found: Vec<f64> = codes.iter().copied().map(&value).collect();
            for (row, found) in found.chunks_exact(to_stride).enumerate() {
                let mut expected: Vec<f64> =
                    values[row * stride..][..dim].iter().map(|x| x.exactly()).collect();
                for number in 0..transforms {
                    let first = first_of_transform(number as u32, dim as u32, width as u32) as usize;
                    let part = &mut expected[first..first + width];
                    let factors = &factors[number * width..];
                    part.iter_mut().zip(factors).for_each(|(x, factor)| *x *= f64::from(*factor));
                    let transformed = hadamard(part);
                    part.copy_from_slice(&transformed);
                }
                let magnitude = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let of_row = if magnitude > 0.0 { f64::from(C::LARGEST) / magnitude } else { 0.0 };
                let scale = if each { of_row } else { f64::from(scale) };
                for (i, x) in expected.iter().enumerate() {
                    let (scaled, at) = ((x - f64::from(mean[i])) * scale, row * to_stride + i);
                    if let Some(rests) = &rests {
                        let expected = value(codes[at].rest(scaled as f32));
                        // Sums in f32 may be at the next step.
                        assert!((value(rests[at]) - expected).abs() <= 1.0, "{dim}: {scaled}");
                    }
                }
                let padding = rests.iter().flat_map(|rests| &rests[row * to_stride + dim..][..3]);
                assert!(padding.copied().all(|rest| value(rest) == 0.0));
                for (i, x) in expected.iter_mut().enumerate() {
                    *x = nearest(((*x - f64::from(mean[i])) * scale).clamp(-most, most));
                }
                let near = |(x, y): (&f64, &f64)| (x - y).abs() <= y.abs() * 1e-3 + f64::from(each);
                assert!(found.iter().zip(&expected).all(near), "{found:?}\n{expected:?}");
                assert!(each || found[..dim] == expected, "{dim}: {found:?}\n{expected:?}");
                assert_eq!(found[dim..], [0.0; 3]);
            }
        }
    }
}

#[test]
fn codes_are_rotated_centred_scaled_and_rounded() {
    let of_halves = |x: f64| f16::from_f64(x).to_f64();
    codes::<f32, f16, vectors_code_f32_f16>(of_halves, f16::to_f64, 65504.0);
    codes::<f32, i8, vectors_code_f32_i8>(f64::round_ties_even, f64::from, 127.0);
    codes::<f16, i8, vectors_code_f16_i8>(f64::round_ties_even, f64::from, 127.0);
}
