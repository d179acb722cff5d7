//! The lengths of the two phases.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Iterations of the two phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Iterations {
    /// Until few lists change.
    #[default]
    Auto,
    /// Numbers of iterations of phase 1 and of phase 2, each at most [`MAX_ITERATIONS`].
    Fixed(u32, u32),
}

/// Maximum number of iterations of each phase. Lists stop changing within 50.
pub const MAX_ITERATIONS: u32 = 1000;

impl Iterations {
    /// Maximum number of iterations of each phase.
    pub(super) fn limits(self) -> (u32, u32) {
        match self {
            Self::Auto => (20, 30),
            Self::Fixed(join, refine) => (join, refine),
        }
    }

    /// Iterations of each phase in most builds, for progress.
    pub(super) fn expected(self) -> (u32, u32) {
        match self {
            Self::Auto => (5, 1),
            Self::Fixed(join, refine) => (join, refine),
        }
    }

    /// Refuses more than [`MAX_ITERATIONS`] of a phase.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Fixed(join, refine) if join.max(refine) > MAX_ITERATIONS => {
                Err(Error::argument("iterations", self, EXPECTED_ITERATIONS))
            }
            _ => Ok(()),
        }
    }
}

/// Values of [`Iterations`], for errors.
const EXPECTED_ITERATIONS: &str = "auto, or A,B such as 6,6, each at most 1000";

impl fmt::Display for Iterations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Fixed(join, refine) => f.pad(&format!("{join},{refine}")),
        }
    }
}

impl FromStr for Iterations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::argument("iterations", text, EXPECTED_ITERATIONS);
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (join, refine) = text.split_once(',').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().map_err(|_| wrong());
        let iterations = Self::Fixed(number(join)?, number(refine)?);
        iterations.check().map(|()| iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataShape, Descent, Device, ElementType, Synth};

    #[test]
    fn iterations_have_a_limit() {
        let base = Synth::new(40, 3, 1).unwrap().base();
        let data = DataShape::new(40, 3, ElementType::F32).unwrap();
        for (join, refine) in [(1001, 0), (0, 1001), (u32::MAX, u32::MAX)] {
            let fixed = Iterations::Fixed(join, refine);
            let descent = Descent::new().knn(3).device(Device::Cpu).iterations(fixed);
            let parsed = format!("{join},{refine}").parse::<Iterations>().unwrap_err();
            for error in [parsed, descent.build(&base).unwrap_err(), descent.plan_for(&data).unwrap_err()] {
                let expected = format!("iterations: found {join},{refine}, expected {EXPECTED_ITERATIONS}");
                assert_eq!(error.to_string(), expected);
            }
        }
        assert_eq!("1000, 0".parse::<Iterations>().unwrap(), Iterations::Fixed(MAX_ITERATIONS, 0));
        assert!(EXPECTED_ITERATIONS.ends_with(&MAX_ITERATIONS.to_string()));
    }
}
