//! Loops of synthetic data in vector instructions, with the same bits on every machine.
//!
//! The last bits of the system's functions differ between machines, and those of the `libm` package
//! take one value at a time. [`log`] and [`sincos`] here are its operations in its order (FreeBSD's
//! msun: `e_log.c`, `e_rem_pio2.c`, `k_sin.c`, `k_cos.c`) on a few values at a time, without
//! branches, for the arguments that draws give. Few arguments take another way there; these go to
//! the package.

use std::f64::consts::TAU;

use tagore_device::random::Draws;

use super::scale::Scale;
use crate::vectors::Element;
use crate::vectors::distance::InstructionSet;

/// Values at a time: one or two vectors.
const LANES: usize = 8;

type Lanes = [f64; LANES];

/// The upper half of a value, which tells its size.
fn high(x: f64) -> u64 {
    x.to_bits() >> 32
}

/// A function that is compiled for AVX-512 and AVX2 too, and runs as the processor can: the same
/// operations on each value, so the same bits.
macro_rules! vectorized {
    ($(#[$doc:meta])* fn $name:ident$(<$t:ident: $bound:ident>)?($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        pub(super) fn $name$(<$t: $bound>)?($($argument: $type),*) {
            #[inline(always)]
            fn portable$(<$t: $bound>)?($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            fn avx512$(<$t: $bound>)?($($argument: $type),*) {
                portable($($argument),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2$(<$t: $bound>)?($($argument: $type),*) {
                portable($($argument),*);
            }
            match InstructionSet::here() {
                // SAFETY: `here` found all four parts of AVX-512 that the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: `here` found AVX2, the one feature that the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => unsafe { avx2($($argument),*) },
                InstructionSet::Portable => portable($($argument),*),
            }
        }
    };
}

vectorized! {
    /// Fills `values` with standard normal draws (Box and Muller 1958).
    fn gaussians(draws: &Draws, values: &mut [f32]) {
        let mut first = 0;
        for values in values.chunks_mut(2 * LANES) {
            let lanes: [u64; LANES] = std::array::from_fn(|lane| first + 2 * lane as u64);
            first += 2 * LANES as u64;
            let logs = log(&lanes.map(|place| draws.unit(place)));
            let [sin, cos] = sincos(&lanes.map(|place| TAU * draws.unit(place + 1)));
            let mut pairs = [0.0; 2 * LANES];
            for lane in 0..LANES {
                let radius = (-2.0 * logs[lane]).sqrt();
                pairs[2 * lane] = (radius * cos[lane]) as f32;
                pairs[2 * lane + 1] = (radius * sin[lane]) as f32;
            }
            values.copy_from_slice(&pairs[..values.len()]);
        }
    }
}

vectorized! {
    /// Adds to `row` the rows of `map`, of its length, each times one of `factors`: one at a time,
    /// so each sum has a fixed order.
    fn add_multiples(row: &mut [f32], factors: &[f32], map: &[f32]) {
        for (&factor, values) in factors.iter().zip(map.chunks_exact(row.len())) {
            row.iter_mut().zip(values).for_each(|(x, a)| *x += a * factor);
        }
    }
}

vectorized! {
    /// Makes whole numbers of `values`.
    fn round(scale: Scale, values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = scale.apply(*value));
    }
}

vectorized! {
    /// Makes `rows` of `wide` values, whose rows have `dim` components. The type holds all of them.
    fn narrow<T: Element>(rows: &mut [T], wide: &[f32], dim: usize) {
        for (row, wide) in rows.chunks_exact_mut(T::TYPE.values(dim)).zip(wide.chunks_exact(dim)) {
            T::fill(row, wide.iter().copied()).expect("the type holds synthetic values");
        }
    }
}

/// The natural logarithms of numbers above 0 and below 1 that are no subnormal ones.
#[inline(always)]
fn log(x: &Lanes) -> Lanes {
    const LN2_HI: f64 = 6.931_471_803_691_238e-1;
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    const LG: [f64; 7] = [
        6.666_666_666_666_735e-1,
        3.999_999_999_940_942e-1,
        2.857_142_874_366_239e-1,
        2.222_219_843_214_978_4e-1,
        1.818_357_216_161_805e-1,
        1.531_383_769_920_937_3e-1,
        1.479_819_860_511_658_6e-1,
    ];
    /// The upper half of the square root of 1/2.
    const HALF_ROOT: u64 = 0x3fe6_a09e;
    let mut logs = [0.0; LANES];
    for (log, &x) in logs.iter_mut().zip(x) {
        // x is 2^k times a number between the roots of 1/2 and of 2.
        let upper = high(x) + 0x3ff0_0000 - HALF_ROOT;
        let k = exact(upper >> 20) - 1023.0;
        let f = f64::from_bits(((upper & 0xf_ffff) + HALF_ROOT) << 32 | x.to_bits() & 0xffff_ffff) - 1.0;
        let half_square = 0.5 * f * f;
        let s = f / (2.0 + f);
        let z = s * s;
        let w = z * z;
        let even = w * (LG[1] + w * (LG[3] + w * LG[5]));
        let odd = z * (LG[0] + w * (LG[2] + w * (LG[4] + w * LG[6])));
        let r = odd + even;
        *log = s * (half_square + r) + k * LN2_LO - half_square + f + k * LN2_HI;
    }
    logs
}

/// A number below 2^52 as a float, without an instruction that few processors have.
#[inline(always)]
fn exact(x: u64) -> f64 {
    const TWO_52: u64 = 0x4330_0000_0000_0000;
    f64::from_bits(TWO_52 | x) - f64::from_bits(TWO_52)
}

/// The sines and the cosines of angles of 0 to a full turn.
#[inline(always)]
fn sincos(x: &Lanes) -> [Lanes; 2] {
    /// The first 33 bits of a right angle, and the rest.
    const RIGHT: f64 = 1.570_796_326_734_125_6;
    const RIGHT_REST: f64 = 6.077_100_506_506_192e-11;
    const S: [f64; 6] = [
        -1.666_666_666_666_663_2e-1,
        8.333_333_333_322_49e-3,
        -1.984_126_982_985_795e-4,
        2.755_731_370_707_006_8e-6,
        -2.505_076_025_340_686_3e-8,
        1.589_690_995_211_55e-10,
    ];
    const C: [f64; 6] = [
        4.166_666_666_666_66e-2,
        -1.388_888_888_887_411e-3,
        2.480_158_728_947_673e-5,
        -2.755_731_435_139_066_3e-7,
        2.087_572_321_298_175e-9,
        -1.135_964_755_778_819_5e-11,
    ];
    /// The upper halves of 1/4, 3/4, 5/4 and 7/4 of two right angles.
    const ODD_EIGHTHS: [u64; 4] = [0x3fe9_21fb, 0x4002_d97c, 0x400f_6a7a, 0x4015_fdbc];
    let (mut sines, mut cosines, mut others) = ([0.0; LANES], [0.0; LANES], 0);
    for lane in 0..LANES {
        let x = x[lane];
        let upper = high(x);
        let turns: u64 = ODD_EIGHTHS.iter().map(|&eighth| u64::from(upper > eighth)).sum();
        // The angle less right angles is y + rest.
        let rights = exact(turns);
        let less = x - rights * RIGHT;
        let y = less - rights * RIGHT_REST;
        let rest = (less - y) - rights * RIGHT_REST;
        let z = y * y;
        let w = z * z;
        let r = S[1] + z * (S[2] + z * S[3]) + z * w * (S[4] + z * S[5]);
        let v = z * y;
        let of_small = y + v * (S[0] + z * r);
        let of_rest = y - ((z * (0.5 * rest - v * r) - rest) - v * S[0]);
        let sin = if turns == 0 { of_small } else { of_rest };
        let r = z * (C[0] + z * (C[1] + z * C[2])) + w * w * (C[3] + z * (C[4] + z * C[5]));
        let half = 0.5 * z;
        let w = 1.0 - half;
        let cos = w + (((1.0 - w) - half) + (z * r - y * rest));
        let (a, b) = if turns & 1 == 0 { (sin, cos) } else { (cos, sin) };
        sines[lane] = f64::from_bits(a.to_bits() ^ (turns >> 1 & 1) << 63);
        cosines[lane] = f64::from_bits(b.to_bits() ^ ((turns + 1) >> 1 & 1) << 63);
        // Near multiples of a right angle digits cancel.
        let cancels = upper & 0xf_ffff == 0x9_21fb || upper == 0x4012_d97c;
        others |= u64::from(cancels || upper < 0x3e46_a09e) << lane;
    }
    for lane in 0..LANES {
        if others >> lane & 1 != 0 {
            (sines[lane], cosines[lane]) = libm::sincos(x[lane]);
        }
    }
    [sines, cosines]
}

#[cfg(test)]
mod tests {
    use tagore_device::random::Stage;

    use super::*;

    #[test]
    fn functions_are_those_of_the_package_to_the_bit() {
        let draws = Draws::new(1, Stage::Test, 0, 0);
        let mut units: Vec<f64> = (0..200_000).map(|place| draws.unit(place)).collect();
        // The ends, and neighbours of eighths of a turn.
        units.extend([f64::EPSILON / 2.0, 1.0 - f64::EPSILON / 2.0, 1e-9, 1e-7]);
        for eighth in 1..8 {
            let near = f64::from(eighth) / 8.0;
            let steps = [0u64, 1, 2, 100, 1 << 20, 1 << 33, 1 << 36];
            units.extend(steps.map(|step| f64::from_bits(near.to_bits() + step)));
            units.extend(steps.map(|step| f64::from_bits(near.to_bits() - step)));
        }
        for units in units.chunks(LANES) {
            let mut x = [0.5; LANES];
            x[..units.len()].copy_from_slice(units);
            let (logs, angles) = (log(&x), x.map(|x| TAU * x));
            let [sin, cos] = sincos(&angles);
            for lane in 0..LANES {
                let expected = libm::sincos(angles[lane]);
                let same =
                    [(logs[lane], libm::log(x[lane])), (sin[lane], expected.0), (cos[lane], expected.1)];
                for (found, expected) in same {
                    assert_eq!(found.to_bits(), expected.to_bits(), "{}", x[lane]);
                }
            }
        }
    }
}
