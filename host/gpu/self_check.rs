//! A check of a device before it is used: one launch of each kind of instruction, against known
//! answers. A device that fails it would build wrong indexes without an error.

use cuda_check::{DEVICE_RESULTS, check_device};
use cuda_std::f16;
use cuda_std::memory::Quad;

use super::{Gpu, MemoryPlan};
use crate::Result;

/// PTX of the kernel.
#[cfg(all(feature = "cuda", ptx_from_sources))]
const PTX: &str = include_str!(env!("TAGORE_CHECK_PTX_FILE"));
#[cfg(not(all(feature = "cuda", ptx_from_sources)))]
const PTX: &str = cuda_check::PTX;

/// Lanes of the warp, bytes of a row, and rows and columns of a product.
const LANES: usize = 32;
const ROW: usize = 32;
const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// The kinds of instructions, with the results of a lane.
const KINDS: [(&str, std::ops::Range<usize>); 6] = [
    ("mma.sync of u8, ldmatrix or cp.async", 0..4),
    ("mma.sync of i8", 4..8),
    ("mma.sync of f16", 8..12),
    ("shfl.sync", 12..13),
    ("vote.sync", 13..14),
    ("redux.sync", 14..15),
];

/// The results of the launch: words per lane, the sum and maximum, and the minimum.
#[derive(Clone, Debug, PartialEq)]
struct Results {
    lanes: Vec<u32>,
    totals: [u32; 2],
    least: u64,
}

/// Inputs of the launch: a matrix of bytes, one of halves, and a word per lane.
struct Inputs {
    bytes: Vec<u8>,
    halves: Vec<f16>,
    words: Vec<u32>,
}

impl Inputs {
    fn new() -> Self {
        let mix = |i: usize| (i as u32 + 1).wrapping_mul(0x9e37_79b1);
        let count = (ROWS + COLUMNS) * ROW;
        Self {
            bytes: (0..count).map(|i| (mix(i) >> 24) as u8).collect(),
            // Whole numbers: their sums are exact.
            halves: (0..count / 2).map(|i| f16::from_f32((mix(i) >> 26) as f32 - 31.0)).collect(),
            words: (0..LANES).map(|i| mix(i) >> 4).collect(),
        }
    }

    /// The answers, by the definition of each instruction.
    fn expected(&self) -> Results {
        let Self { bytes, halves, words } = self;
        let mut lanes = vec![0; LANES * DEVICE_RESULTS];
        let sum = words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
        let odd = words.iter().enumerate().fold(0, |votes, (lane, word)| votes | (word & 1) << lane);
        for (lane, out) in lanes.chunks_exact_mut(DEVICE_RESULTS).enumerate() {
            for i in 0..4 {
                let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                let pairs = || {
                    let (row, column) = (&bytes[row * ROW..][..ROW], &bytes[(ROWS + column) * ROW..][..ROW]);
                    row.iter().zip(column)
                };
                out[i] = pairs().map(|(&x, &y)| u32::from(x) * u32::from(y)).sum();
                let signed = |byte: u8| i32::from(byte as i8);
                out[4 + i] = pairs().map(|(&x, &y)| signed(x) * signed(y)).sum::<i32>() as u32;
                let half = ROW / 2;
                let (row, column) =
                    (&halves[row * half..][..half], &halves[(ROWS + column) * half..][..half]);
                let product: f32 = row.iter().zip(column).map(|(x, y)| x.to_f32() * y.to_f32()).sum();
                out[8 + i] = product.to_bits();
            }
            out[12] = words[lane ^ 9];
            out[13] = odd;
            out[14] = sum;
        }
        let (most, least) = (words.iter().max(), words.iter().min());
        Results {
            lanes,
            totals: [sum, most.copied().unwrap_or(0)],
            least: u64::from(least.copied().unwrap_or(0)),
        }
    }
}

impl Results {
    /// The first kind of instruction whose results differ from `expected`.
    fn fault(&self, expected: &Self) -> Option<&'static str> {
        let lanes =
            || self.lanes.chunks_exact(DEVICE_RESULTS).zip(expected.lanes.chunks_exact(DEVICE_RESULTS));
        let differs = |kind: &std::ops::Range<usize>| {
            lanes().any(|(found, expected)| found[kind.clone()] != expected[kind.clone()])
        };
        let wrong = KINDS.iter().find(|(_, range)| differs(range)).map(|(name, _)| *name);
        let atomics = (self.totals, self.least) != (expected.totals, expected.least);
        wrong.or(atomics.then_some("atomics"))
    }
}

impl Gpu {
    /// The device, if it passes the check.
    ///
    /// # Errors
    /// If a result of the check is wrong: the kind of instruction.
    pub(super) fn checked(self) -> Result<Self> {
        let inputs = Inputs::new();
        let found = self.with_ptx(PTX).results(&inputs)?;
        match found.fault(&inputs.expected()) {
            None => Ok(self),
            Some(kind) => Err(self.error(format_args!(
                "failed its check: found wrong results of {kind}, expected known ones: \
                 use another device, or update the driver"
            ))),
        }
    }

    /// Launches the check.
    fn results(&self, inputs: &Inputs) -> Result<Results> {
        let Inputs { bytes, halves, words } = inputs;
        let memory = MemoryPlan::new()
            .with::<u8>("bytes", bytes.len())
            .with::<f16>("halves", halves.len())
            .with::<u32>("words", words.len())
            .with::<u32>("results", LANES * DEVICE_RESULTS)
            .with::<u32>("totals", 2)
            .with::<u64>("least", 1)
            .reserve(self)?;
        let mut from_bytes = memory.buffer::<u8>("bytes")?;
        let mut from_halves = memory.buffer::<f16>("halves")?;
        let mut from_words = memory.buffer::<u32>("words")?;
        let mut out = memory.buffer::<u32>("results")?;
        let mut totals = memory.buffer::<u32>("totals")?;
        let mut least = memory.buffer::<u64>("least")?;
        from_bytes.upload(bytes)?;
        from_halves.upload(halves)?;
        from_words.upload(words)?;
        out.fill(0xa5)?;
        totals.fill(0)?;
        least.fill(0xff)?;
        let arguments = (
            from_bytes.view().cast::<Quad>(),
            from_halves.view().cast::<Quad>(),
            from_words.view(),
            out.view_mut(),
            totals.view_mut(),
            least.view_mut(),
        );
        // SAFETY: the buffers have the lengths that the kernel requires, and outlive the downloads.
        unsafe { self.launch::<check_device>([1, 1, 1], LANES as u32, arguments)? };
        let mut found = Results { lanes: vec![0; LANES * DEVICE_RESULTS], totals: [0; 2], least: 0 };
        out.download(&mut found.lanes)?;
        totals.download(&mut found.totals)?;
        least.download(std::slice::from_mut(&mut found.least))?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_passes_in_any_order_of_lanes() {
        for seed in 0..3 {
            Gpu::emulated(seed).checked().unwrap();
        }
    }

    #[test]
    fn a_wrong_result_names_its_instruction() {
        let inputs = Inputs::new();
        let expected = inputs.expected();
        assert_eq!(expected.fault(&expected), None);
        for (name, range) in &KINDS {
            for result in range.clone() {
                let mut found = expected.clone();
                found.lanes[7 * DEVICE_RESULTS + result] ^= 1;
                assert_eq!(found.fault(&expected), Some(*name));
            }
        }
        for found in [
            Results { totals: [0, expected.totals[1]], ..expected.clone() },
            Results { totals: [expected.totals[0], 0], ..expected.clone() },
            Results { least: 0, ..expected.clone() },
        ] {
            assert_eq!(found.fault(&expected), Some("atomics"));
        }
    }
}
