//! Synthetic values as whole numbers.

use super::kind::SynthKind;
use super::rows::deviation;
use crate::ElementType;

/// Whole numbers per deviation of a component: four deviations to each side fill 8 bits.
const PER_DEVIATION: f64 = 32.0;

/// Root mean square of a log-normal norm.
const LOGNORMAL: f64 = 1.173_510_870_991_810_2;

/// Maps values to the whole numbers of an element type, and cuts those outside its range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    factor: f32,
    offset: f32,
    least: f32,
    most: f32,
}

impl Scale {
    /// The scale of a kind in `dim` components; none for floating-point types.
    pub(super) fn new(kind: SynthKind, dim: usize, element: ElementType) -> Option<Self> {
        let is_unit = matches!(kind, SynthKind::Uniform | SynthKind::Repeated { .. });
        let (least, most, middle) = match element {
            ElementType::U8 => (0.0, 255.0, 128.0),
            ElementType::I8 => (-128.0, 127.0, 0.0),
            // The sign, by a factor that leaves no other value in range.
            ElementType::B1 => {
                let (factor, offset) = if is_unit { (2.0, -0.5) } else { (f32::MAX, 0.5) };
                return Some(Self { factor, offset, least: 0.0, most: 1.0 });
            }
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => return None,
        };
        // Deviations of a component, from the definitions of the kinds.
        let deviation = match kind {
            // The first of 256 intervals of equal length becomes the least number.
            SynthKind::Uniform | SynthKind::Repeated { .. } => {
                return Some(Self { factor: 256.0, offset: least - 0.5, least, most });
            }
            SynthKind::Mixture | SynthKind::Dirty { .. } => deviation(dim),
            SynthKind::Clusters { .. } => 1.0,
            SynthKind::Lognormal => LOGNORMAL / (dim as f64).sqrt(),
        };
        Some(Self { factor: (PER_DEVIATION / deviation) as f32, offset: middle, least, most })
    }

    /// The whole number of a value.
    #[inline(always)]
    pub(super) fn apply(self, value: f32) -> f32 {
        (value * self.factor + self.offset).round().clamp(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Synth;
    use super::*;

    /// Mean, deviation and share of cut values.
    fn moments(kind: SynthKind, dim: usize, element: ElementType) -> (f64, f64, f64) {
        let values = Synth::of_kind(kind, 4000, dim, 3).unwrap().element_type(element).values::<f32>(0, 4000);
        let scale = Scale::new(kind, dim, element).unwrap();
        assert!(values.iter().all(|x| x.fract() == 0.0 && (scale.least..=scale.most).contains(x)), "{kind}");
        let count = values.len() as f64;
        let mean = values.iter().copied().map(f64::from).sum::<f64>() / count;
        let square = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let cut = values.iter().filter(|&&x| x == scale.least || x == scale.most).count() as f64 / count;
        (mean, square.sqrt(), cut)
    }

    #[test]
    fn whole_numbers_fill_eight_bits() {
        for (element, middle) in [(ElementType::U8, 128.0), (ElementType::I8, 0.0)] {
            let gaussians =
                [SynthKind::Mixture, SynthKind::Clusters { clusters: 4000 }, SynthKind::Lognormal];
            for (kind, dim) in gaussians.into_iter().flat_map(|kind| [(kind, 24), (kind, 96)]) {
                let (mean, deviation, cut) = moments(kind, dim, element);
                let found = format!("{kind} x {dim}: {mean}, {deviation}, {cut}");
                assert!((mean - middle).abs() < 8.0 && (26.0..38.0).contains(&deviation), "{found}");
                assert!(cut < 0.01, "{found}");
            }
            for kind in [SynthKind::Uniform, SynthKind::Repeated { copies: 2 }] {
                let (mean, deviation, cut) = moments(kind, 16, element);
                let found = format!("{kind}: {mean}, {deviation}, {cut}");
                assert!((mean - middle + 0.5).abs() < 2.0 && (deviation - 73.9).abs() < 1.0, "{found}");
                // As frequent as all others.
                assert!((cut - 2.0 / 256.0).abs() < 0.002, "{found}");
            }
        }
        assert!(Scale::new(SynthKind::Mixture, 8, ElementType::F16).is_none());
    }
}
