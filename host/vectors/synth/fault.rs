//! Faults of rows in dirty data.

use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

use super::kind::SynthKind;
use super::lanes::gaussians;
use super::rows::{Generator, Mixture, Scratch, add, deviation, scale, shift, stride, uses};
use crate::{Error, Result};

/// Rows of one group of [`Fault::Near`]: more than the lists of a graph hold.
const GROUP: u64 = 100;

/// Largest factor of heavy tails: f32 holds the distances of such rows.
const MAX_FACTOR: f64 = 1e12;

/// What is wrong with the dirty rows of [`SynthKind::Dirty`]. Lengths are in standard deviations of
/// a component of the clean data.
///
/// As text: a name, and for most of them a value, such as `near:1e-6`; without it, its default.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// `zero`: zero rows.
    Zero,
    /// `equal`: rows equal to one random row.
    Equal,
    /// `signed-zero`: zero rows with random signs of their zeros.
    SignedZero,
    /// `multiples`: one random row times 1/16 to 16, so that rows are equal under cosine.
    Multiples,
    /// `near:NOISE`, 1e-3: groups of 100 copies of random rows, plus normal noise.
    Near {
        /// Deviation of the noise.
        noise: f64,
    },
    /// `ball:SCALE`, 1e-3: rows moved towards one random row.
    Ball {
        /// Distance to that row, in parts of the distance before.
        scale: f64,
    },
    /// `lone:DISTANCE`, 100: normal rows far from all others.
    Lone {
        /// Deviation of a component.
        distance: f64,
    },
    /// `sentinel:VALUE`, -9999: rows with this value in a random component.
    Sentinel {
        /// The value.
        value: f64,
    },
    /// `tails:DEGREES`, 1.5: rows times the magnitude of a draw of Student's t, so that norms have
    /// heavy tails.
    Tails {
        /// Degrees of freedom, 0.5 to 100.
        degrees: f64,
    },
    /// `offset:LENGTH`, 100: rows plus one random row.
    Offset {
        /// Deviation of that row's components.
        length: f64,
    },
    /// `grid:STEP`, 1: components rounded to multiples of a step.
    Grid {
        /// The step.
        step: f64,
    },
}

impl Fault {
    /// One of each fault, with its default.
    const ALL: [Self; 11] = [
        Self::Zero,
        Self::Equal,
        Self::SignedZero,
        Self::Multiples,
        Self::Near { noise: 1e-3 },
        Self::Ball { scale: 1e-3 },
        Self::Lone { distance: 100.0 },
        Self::Sentinel { value: -9999.0 },
        Self::Tails { degrees: 1.5 },
        Self::Offset { length: 100.0 },
        Self::Grid { step: 1.0 },
    ];

    /// The name, without the value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Equal => "equal",
            Self::SignedZero => "signed-zero",
            Self::Multiples => "multiples",
            Self::Near { .. } => "near",
            Self::Ball { .. } => "ball",
            Self::Lone { .. } => "lone",
            Self::Sentinel { .. } => "sentinel",
            Self::Tails { .. } => "tails",
            Self::Offset { .. } => "offset",
            Self::Grid { .. } => "grid",
        }
    }

    /// The value, of a fault that has one.
    fn value(&mut self) -> Option<&mut f64> {
        match self {
            Self::Zero | Self::Equal | Self::SignedZero | Self::Multiples => None,
            Self::Near { noise: value }
            | Self::Ball { scale: value }
            | Self::Lone { distance: value }
            | Self::Sentinel { value }
            | Self::Tails { degrees: value }
            | Self::Offset { length: value }
            | Self::Grid { step: value } => Some(value),
        }
    }

    /// Checks the value.
    pub(super) fn check(mut self) -> Result<()> {
        let range = match self {
            Self::Sentinel { .. } => -1e9..=1e9,
            Self::Tails { .. } => 0.5..=100.0,
            _ => 1e-9..=1e6,
        };
        match self.value() {
            Some(&mut value) if !range.contains(&value) => {
                let expected = format_args!("a value of {:e} to {:e}", range.start(), range.end());
                Err(Error::argument("fault", self, expected))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match { *self }.value() {
            None => f.pad(name),
            Some(value) => f.pad(&format!("{name}:{value:?}")),
        }
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::argument("fault", text, format_args!("one of {names}, from near on also with a :VALUE"))
        };
        let (name, given) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        let mut fault = Self::ALL.into_iter().find(|fault| fault.name() == name).ok_or_else(refused)?;
        if let Some(given) = given {
            *fault.value().ok_or_else(refused)? = given.parse().map_err(|_| refused())?;
        }
        Ok(fault)
    }
}

/// Which rows of a data set have a fault: row i if `(i * stride + shift) % n` is below `count`.
/// `stride` and n are coprime.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    fault: Fault,
    n: u64,
    count: u64,
    stride: u64,
    shift: u64,
}

/// A row with a fault.
pub(super) struct FaultyRow {
    index: u64,
    fault: Fault,
    /// Its place among the rows with the fault.
    place: u64,
}

impl Faults {
    /// The faults of a kind for `n` rows; none of clean kinds.
    pub(super) fn new(kind: SynthKind, n: usize, seed: u64) -> Option<Self> {
        let SynthKind::Dirty { fault, share } = kind else {
            return None;
        };
        let count = ((share * n as f64).round() as u64).max(1);
        let n = n as u64;
        Some(Self { fault, n, count, stride: stride(n), shift: shift(n, seed) })
    }

    /// Row `index`, if it has the fault.
    pub(super) fn row(&self, index: u64) -> Option<FaultyRow> {
        Some(FaultyRow { index, fault: self.fault, place: self.place(index)? })
    }

    /// The place of a row among the rows with the fault.
    fn place(&self, index: u64) -> Option<u64> {
        if index >= self.n {
            return None;
        }
        // Factors are below 2^32.
        let place = (index * self.stride + self.shift) % self.n;
        (place < self.count).then_some(place)
    }

    /// The next row with the fault, from row `first` on.
    pub(super) fn next(&self, first: u64) -> u64 {
        (first..self.n).chain(0..first).find(|&row| self.place(row).is_some()).unwrap_or(first)
    }
}

impl Generator {
    /// Generates a row of a mixture with its fault.
    pub(super) fn faulty(
        &self,
        FaultyRow { index, fault, place }: FaultyRow,
        table: &Mixture,
        row: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let draws = self.draws(uses::FAULT, index);
        let deviation = deviation(self.dim);
        // Models have the last row numbers, far from those of queries.
        let model = match fault {
            Fault::Near { .. } => u64::MAX - place / GROUP,
            Fault::Equal | Fault::Multiples => u64::MAX,
            _ => index,
        };
        self.mixture(model, table, row, scratch);
        let noise = &mut scratch.noise;
        match fault {
            Fault::Zero => row.fill(0.0),
            Fault::Equal => {}
            Fault::SignedZero => {
                (0..).zip(row).for_each(|(draw, x)| *x = if draws.bits(draw) & 1 == 0 { 0.0 } else { -0.0 });
            }
            Fault::Multiples => scale(row, libm::exp2(8.0 * draws.unit(0) - 4.0)),
            Fault::Near { noise: sigma } => {
                gaussians(&draws, noise);
                add(row, noise, sigma * deviation);
            }
            Fault::Ball { scale: factor } => {
                scale(row, factor);
                let mut centre = std::mem::take(&mut scratch.centre);
                self.mixture(u64::MAX, table, &mut centre, scratch);
                add(row, &centre, 1.0);
                scratch.centre = centre;
            }
            Fault::Lone { distance } => {
                gaussians(&draws, row);
                scale(row, distance * deviation);
            }
            Fault::Sentinel { value } => row[draws.below(0, self.dim as u64) as usize] = value as f32,
            Fault::Tails { degrees } => {
                // Bailey 1994, Polar generation of random variates with the t-distribution.
                let [u, v] = [0, 1].map(|draw| draws.unit(draw));
                let radius = libm::sqrt(degrees * (libm::pow(u, -2.0 / degrees) - 1.0));
                scale(row, (radius * libm::cos(TAU * v)).abs().min(MAX_FACTOR));
            }
            Fault::Offset { length } => {
                gaussians(&self.draws(uses::FAULT_OFFSET, 0), noise);
                add(row, noise, length * deviation);
            }
            Fault::Grid { step } => {
                let step = step * deviation;
                row.iter_mut().for_each(|x| *x = ((f64::from(*x) / step).round() * step) as f32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Synth;
    use super::super::rows::deviation;
    use super::*;

    fn rows(fault: &str, share: f64, n: usize, dim: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let kind = SynthKind::Dirty { fault: fault.parse().unwrap(), share };
        let make = |kind: SynthKind| {
            let values = Synth::of_kind(kind, n, dim, 3).unwrap().values::<f32>(0, n + 20);
            values.chunks(dim).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        (make(SynthKind::Mixture), make(kind))
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn faults_are_parsed_and_checked() {
        for fault in Fault::ALL {
            assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
            assert_eq!(fault.name().parse::<Fault>().unwrap(), fault);
            fault.check().unwrap();
        }
        assert_eq!("near:1e-6".parse::<Fault>().unwrap(), Fault::Near { noise: 1e-6 });
        for text in ["", "zeros", "zero:1", "near:", "near:x", "near:1:2"] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            let expected = format!("fault: found {text}, expected one of zero, equal, signed-zero,");
            assert!(error.starts_with(&expected), "{error}");
        }
        for text in ["near:0", "near:-1", "near:nan", "near:inf", "tails:0.1", "sentinel:1e10", "grid:1e7"] {
            let error = text.parse::<Fault>().unwrap().check().unwrap_err().to_string();
            assert!(error.starts_with("fault: found ") && error.contains("expected a value of"), "{error}");
        }
    }

    #[test]
    fn a_share_of_scattered_rows_has_the_fault_and_queries_have_none() {
        for fault in Fault::ALL {
            for (share, n, expected) in [(0.01, 2000, 20), (0.1, 999, 100), (1e-9, 50, 1), (1.0, 70, 70)] {
                let (clean, dirty) = rows(&fault.to_string(), share, n, 9);
                let places: Vec<usize> = (0..n + 20).filter(|&row| clean[row] != dirty[row]).collect();
                assert_eq!(places.len(), expected, "{fault}, {share}");
                assert!(places.iter().all(|&row| row < n), "{fault}, {share}");
                assert!(dirty.iter().flatten().all(|x| x.is_finite()), "{fault}");
                // No half of the rows holds all of the faults.
                let first = places.iter().filter(|&&row| row < n / 2).count();
                assert!(expected == 1 || first.abs_diff(expected - first) <= 8, "{fault}: {first}");
            }
        }
    }

    #[test]
    fn each_fault_is_what_its_name_says() {
        let (n, dim) = (2000, 16);
        let deviation = deviation(dim);
        for (fault, spread) in
            [("near:1e-6", 1e-6), ("near:1e-3", 1e-3), ("ball:1e-3", 1.4e-3), ("ball:1e-2", 1.4e-2)]
        {
            let (clean, dirty) = rows(fault, 0.05, n, dim);
            let odd: Vec<&Vec<f32>> = (0..n).filter(|&i| clean[i] != dirty[i]).map(|i| &dirty[i]).collect();
            let near = odd.iter().filter(|row| distance(row, odd[0]) < 20.0 * spread * deviation).count();
            assert_eq!(near, 100, "{fault}");
            let mean = odd.iter().map(|row| distance(row, odd[0])).sum::<f64>() / 100.0;
            let expected = spread * deviation * (2.0 * dim as f64).sqrt();
            assert!(mean > 0.4 * expected && mean < 1.6 * expected, "{fault}: {mean}, {expected}");
        }
        let odd = |fault: &str| -> Vec<(Vec<f32>, Vec<f32>)> {
            let (clean, dirty) = rows(fault, 0.05, n, dim);
            clean.into_iter().zip(dirty).filter(|(clean, dirty)| clean != dirty).collect()
        };
        assert!(odd("zero").iter().flat_map(|(_, row)| row).all(|x| x.to_bits() == 0));
        let rows = odd("equal");
        assert!(rows.iter().all(|(_, row)| *row == rows[0].1));
        let rows = odd("signed-zero");
        let signs = rows.iter().flat_map(|(_, row)| row).filter(|x| x.is_sign_negative()).count();
        assert!(rows.iter().flat_map(|(_, row)| row).all(|&x| x == 0.0) && (700..900).contains(&signs));
        let rows = odd("multiples");
        let factor = |row: &[f32]| f64::from(row[0]) / f64::from(rows[0].1[0]);
        for (_, row) in &rows {
            let multiple: Vec<f32> = rows[0].1.iter().map(|&x| (f64::from(x) * factor(row)) as f32).collect();
            assert!(distance(row, &multiple) < 1e-5 * distance(row, &[0.0; 16]), "{row:?}");
        }
        let factors: Vec<f64> = rows.iter().map(|(_, row)| factor(row)).collect();
        let (least, most) = factors.iter().fold((f64::MAX, 0.0), |(a, b), &x| (x.min(a), x.max(b)));
        assert!(most > 100.0 * least && least > 0.0, "{least} to {most}");
        let rows = odd("lone:100");
        for (place, (_, row)) in rows.iter().enumerate() {
            let others =
                rows.iter().enumerate().filter(|&(other, _)| other != place).map(|(_, (_, row))| row);
            let nearest = others.map(|other| distance(row, other)).fold(f64::MAX, f64::min);
            assert!(
                nearest > 100.0 * deviation && distance(row, &[0.0; 16]) > 100.0 * deviation,
                "{nearest}"
            );
        }
        for (clean, row) in odd("sentinel:-9999") {
            let changed: Vec<f32> =
                clean.iter().zip(&row).filter(|(clean, x)| clean != x).map(|(_, &x)| x).collect();
            assert_eq!(changed, [-9999.0]);
        }
        let norms: Vec<f64> = odd("tails")
            .iter()
            .map(|(clean, row)| distance(row, &[0.0; 16]) / distance(clean, &[0.0; 16]))
            .collect();
        // Quartiles of |t| of 1.5 degrees of freedom: 0.35 and 1.9; one in a hundred is above 16.
        let below = |most: f64| norms.iter().filter(|&&norm| norm < most).count();
        assert!(
            (15..35).contains(&below(0.35)) && (65..85).contains(&below(1.9)) && below(8.0) < 100,
            "{norms:?}"
        );
        let rows = odd("offset:50");
        let offset = |(clean, row): &(Vec<f32>, Vec<f32>)| -> Vec<f32> {
            row.iter().zip(clean).map(|(x, clean)| x - clean).collect()
        };
        let first = offset(&rows[0]);
        assert!((30.0..70.0).contains(&(distance(&first, &[0.0; 16]) / 4.0 / deviation)));
        assert!(rows.iter().all(|pair| distance(&offset(pair), &first) < 2e-3));
        let step = 0.5 * deviation;
        for x in odd("grid:0.5").iter().flat_map(|(_, row)| row) {
            let steps = f64::from(*x) / step;
            assert!((steps - steps.round()).abs() < 1e-4, "{steps}");
        }
    }
}
