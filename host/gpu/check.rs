//! Tests of the emulator against the hardware, on random inputs. The emulator is compared with
//! plain definitions, and a CUDA device, if any, with the emulator.

use bytemuck::Pod;
use cuda_check::{
    HALF_RESULTS, WARP_RESULTS, check_half, check_product_f16, check_product_i8, check_product_u8, check_warp,
};
use cuda_std::f16;
use cuda_std::memory::Quad;
use tagore_device::random::{Draws, Stage};

use super::{Buffer, Gpu, MemoryPlan};

/// Blocks of each launch.
const BLOCKS: usize = 200;

/// PTX of the test kernels.
#[cfg(all(feature = "cuda", ptx_from_sources))]
const PTX: &str = include_str!(env!("TAGORE_CHECK_PTX_FILE"));
#[cfg(all(feature = "cuda", not(ptx_from_sources)))]
const PTX: &str = cuda_check::PTX;

impl Gpu {
    /// The first CUDA device. Without one, prints that the test skips it.
    pub(crate) fn cuda_for_tests() -> Option<Self> {
        Self::cuda(0).map_err(|error| super::skip::no_cuda_device(&error.to_string())).ok()
    }
}

/// The emulator with two orders of lanes, and the CUDA device, if any.
fn devices() -> Vec<Gpu> {
    let mut devices = vec![Gpu::emulated(0), Gpu::emulated(1)];
    #[cfg(feature = "cuda")]
    devices.extend(Gpu::cuda_for_tests().map(|gpu| gpu.with_ptx(PTX)));
    devices
}

fn bits(count: usize, seed: u64) -> Vec<u32> {
    // `TAGORE_TEST_SEED` gives other inputs. The output of a failed test has the seed.
    (0..count as u64).map(|i| Draws::new(run_seed(), Stage::Test, 3, seed).bits(i) as u32).collect()
}

fn run_seed() -> u64 {
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = match std::env::var("TAGORE_TEST_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => 1,
        };
        eprintln!("inputs of TAGORE_TEST_SEED={seed}");
        seed
    })
}

fn upload<T: Pod>(gpu: &Gpu, values: &[T]) -> Buffer<T> {
    let plan = MemoryPlan::new().with::<T>("values", values.len());
    let mut buffer = plan.reserve(gpu).unwrap().buffer("values").unwrap();
    buffer.upload(values).unwrap();
    buffer
}

fn download<T: Pod>(buffer: &Buffer<T>, count: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); count];
    buffer.download(&mut values).unwrap();
    values
}

#[test]
fn warp_exchanges_match_the_hardware() {
    let values = bits(BLOCKS * 32, 1);
    // All lanes in every third block, random lanes in the others.
    let mut masks = bits(BLOCKS, 2);
    masks.iter_mut().step_by(3).for_each(|mask| *mask = u32::MAX);
    masks.iter_mut().for_each(|mask| *mask = (*mask).max(1));
    let results = devices().into_iter().map(|gpu| {
        let (from, mask_there) = (upload(&gpu, &values), upload(&gpu, &masks));
        let mut out = upload(&gpu, &vec![0xdead_beef_u32; BLOCKS * 32 * WARP_RESULTS]);
        // SAFETY: the buffers have the lengths that the kernel requires, and outlive the download.
        unsafe {
            gpu.launch::<check_warp>(
                [BLOCKS as u32, 1, 1],
                32,
                (from.view(), mask_there.view(), out.view_mut()),
            )
        }
        .unwrap();
        (gpu.name().to_owned(), download(&out, BLOCKS * 32 * WARP_RESULTS))
    });
    let results: Vec<_> = results.collect();
    for (name, result) in &results[1..] {
        for (at, (found, expected)) in result.iter().zip(&results[0].1).enumerate() {
            let (lane, field) = (at / WARP_RESULTS, at % WARP_RESULTS);
            assert_eq!(
                found,
                expected,
                "{name}: result {field} of lane {lane}, mask {:#x}",
                masks[lane / 32]
            );
        }
    }
    // Some results by their definitions.
    for (block, &mask) in masks.iter().enumerate() {
        let lanes = || (0..32).filter(|lane| mask >> lane & 1 == 1);
        let value = |lane: u32| values[block * 32 + lane as usize];
        for lane in lanes() {
            let result = &results[0].1[(block * 32 + lane as usize) * WARP_RESULTS..][..WARP_RESULTS];
            let odd = lanes().filter(|&l| value(l) & 1 == 1).fold(0, |votes, l| votes | 1 << l);
            assert_eq!(result[9], odd);
            assert_eq!(result[13], lanes().map(value).fold(0, u32::wrapping_add));
            assert_eq!(result[15] as i32, lanes().map(|l| value(l) as i32).min().unwrap());
            if mask == u32::MAX {
                assert_eq!(result[5], value(if lane % 16 >= 3 { lane - 3 } else { lane }));
                assert_eq!(result[6], value(if lane % 8 + 5 < 8 { lane + 5 } else { lane }));
            }
        }
    }
}

#[test]
fn arithmetic_of_halves_matches_the_hardware() {
    let threads = BLOCKS * 64;
    let halves = |seed| -> Vec<u32> {
        // No NaN: its bits are not specified.
        let number = |half: u32| if half & 0x7c00 == 0x7c00 { half & !0x0400 } else { half };
        bits(threads, seed).iter().map(|w| number(w & 0xffff) | number(w >> 16) << 16).collect()
    };
    let (a, b, c) = (halves(4), halves(5), halves(6));
    // Floats around the range of halves, subnormal ones included.
    let x: Vec<f32> = bits(threads, 7)
        .iter()
        .map(|&w| f32::from_bits((w & 0x807f_ffff) | ((100 + (w >> 9) % 45) << 23)))
        .collect();
    let results: Vec<(String, Vec<u32>)> = devices()
        .into_iter()
        .map(|gpu| {
            let buffers = (upload(&gpu, &a), upload(&gpu, &b), upload(&gpu, &c), upload(&gpu, &x));
            let mut out = upload(&gpu, &vec![0xdead_beef_u32; threads * HALF_RESULTS]);
            let arguments =
                (buffers.0.view(), buffers.1.view(), buffers.2.view(), buffers.3.view(), out.view_mut());
            // SAFETY: the buffers have the lengths that the kernel requires, and outlive the
            // download.
            unsafe { gpu.launch::<check_half>([BLOCKS as u32, 1, 1], 64, arguments) }.unwrap();
            (gpu.name().to_owned(), download(&out, threads * HALF_RESULTS))
        })
        .collect();
    for (name, result) in &results[1..] {
        for (at, (&found, &expected)) in result.iter().zip(&results[0].1).enumerate() {
            let (thread, field) = (at / HALF_RESULTS, at % HALF_RESULTS);
            // Infinity minus infinity, or times zero, is NaN on both, with any bits.
            let same = |shift: u32| {
                let half = |word: u32| f16::from_bits((word >> shift) as u16);
                let (found, expected) = (half(found), half(expected));
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
            };
            assert!(
                found == expected || field < 6 && same(0) && same(16),
                "{name}: result {field} of {:#x}, {:#x}, {:#x}, {}: {found:#x}, not {expected:#x}",
                a[thread],
                b[thread],
                c[thread],
                x[thread]
            );
        }
    }
}

/// Checks that products of bytes are exact; `wide` gives the value of a byte.
fn check_bytes<K>(wide: impl Fn(u8) -> i64)
where
    K: cuda_std::launch::Kernel<
            Arguments = (
                cuda_std::memory::Global<Quad>,
                cuda_std::memory::Global<Quad>,
                cuda_std::memory::Global<i32>,
                cuda_std::memory::GlobalMut<i32>,
            ),
        >,
{
    let (a, b) = (bits(BLOCKS * 128, 8), bits(BLOCKS * 64, 9));
    let c: Vec<i32> = bits(BLOCKS * 128, 10).iter().map(|&w| w as i32 >> 8).collect();
    for gpu in devices() {
        let result = launch_product::<i32, K>(&gpu, &a, &b, &c);
        let (a, b): (&[u8], &[u8]) = (bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        for (at, (&found, &c)) in result.iter().zip(&c).enumerate() {
            let (block, row, column) = (at / 128, at % 128 / 8, at % 8);
            let (row, column) = (&a[(block * 16 + row) * 32..][..32], &b[(block * 8 + column) * 32..][..32]);
            let dot: i64 = row.iter().zip(column).map(|(&x, &y)| wide(x) * wide(y)).sum();
            assert_eq!(i64::from(found), i64::from(c) + dot, "{}: {at}", gpu.name());
        }
    }
}

fn launch_product<S: Pod, K>(gpu: &Gpu, a: &[u32], b: &[u32], c: &[S]) -> Vec<S>
where
    K: cuda_std::launch::Kernel<
            Arguments = (
                cuda_std::memory::Global<Quad>,
                cuda_std::memory::Global<Quad>,
                cuda_std::memory::Global<S>,
                cuda_std::memory::GlobalMut<S>,
            ),
        >,
{
    let (a, b, c) = (upload(gpu, a), upload(gpu, b), upload(gpu, c));
    let mut out = upload(gpu, &vec![0xa5u8; BLOCKS * 128 * size_of::<S>()]);
    let arguments = (a.view().cast(), b.view().cast(), c.view(), out.view_mut().cast());
    // SAFETY: the buffers have the lengths that the kernel requires, and outlive the download.
    unsafe { gpu.launch::<K>([BLOCKS as u32, 1, 1], 32, arguments) }.unwrap();
    bytemuck::pod_collect_to_vec(&download(&out, BLOCKS * 128 * size_of::<S>()))
}

#[test]
fn products_of_bytes_are_exact() {
    check_bytes::<check_product_u8>(i64::from);
    check_bytes::<check_product_i8>(|byte| i64::from(byte as i8));
}

#[test]
fn products_of_halves_match_the_hardware() {
    // One sum mixes exponents of all sizes, down to where the hardware truncates.
    let halves = |count: usize, seed: u64| -> Vec<u32> {
        let half = |w: u32| (w & 0x83ff) | (10 + (w >> 10 & 7)) << 10;
        bits(count, seed).iter().map(|&w| half(w & 0xffff) | half(w >> 16) << 16).collect()
    };
    let (a, b) = (halves(BLOCKS * 128, 11), halves(BLOCKS * 64, 12));
    let c: Vec<f32> = bits(BLOCKS * 128, 13)
        .iter()
        .map(|&w| f32::from_bits((w & 0x807f_ffff) | ((121 + (w >> 23 & 7)) << 23)))
        .collect();
    let value = |words: &[u32], at: usize| {
        f64::from(f16::from_bits((words[at / 2] >> (16 * (at % 2))) as u16).to_f32())
    };
    let mut worst = 0f64;
    for gpu in devices() {
        let result = launch_product::<f32, check_product_f16>(&gpu, &a, &b, &c);
        for (at, (&found, &c)) in result.iter().zip(&c).enumerate() {
            let (block, row, column) = (at / 128, at % 128 / 8, at % 8);
            let terms: Vec<f64> = (0..16)
                .map(|i| value(&a, (block * 16 + row) * 16 + i) * value(&b, (block * 8 + column) * 16 + i))
                .collect();
            let exact = f64::from(c) + terms.iter().sum::<f64>();
            let largest = terms.iter().fold(f64::from(c).abs(), |most, term| most.max(term.abs()));
            // The hardware aligns to the largest addend and truncates.
            let units = (f64::from(found) - exact).abs() / (largest * 2f64.powi(-23));
            worst = worst.max(units);
            assert!(units <= 8.0, "{}: {at}: {found} for {exact}, {units} units", gpu.name());
        }
    }
    eprintln!("f16 products: at most {worst:.2} units of 2^-23 of the largest addend off");
}
