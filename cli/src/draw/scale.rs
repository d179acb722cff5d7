//! Scales of axes: linear, logarithmic and logit, with their ticks.

use crate::output::grouped;

/// A mark on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// The place on the axis: 0 at its start, 1 at its end.
    pub place: f64,
    /// The label.
    pub label: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Linear,
    /// Linear, with ticks at whole numbers.
    Counts,
    Log,
    /// ln(x / (1 - x)). A share of 0 or 1 is infinitely far away: it has a place at the end of the
    /// axis, beyond a gap.
    Logit,
}

/// A map of values to places on an axis.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    kind: Kind,
    /// Ends of the axis, in the coordinates of `kind`.
    low: f64,
    high: f64,
    /// Whether 0 and 1 have places on a logit axis, and the length of the gap before each.
    ends: [bool; 2],
    gap: f64,
}

/// Longest stretch of an axis without a tick, as a share of the axis.
const STRETCH: f64 = 0.4;

impl Scale {
    /// From `low` to `high`, which is larger.
    pub(crate) fn linear(low: f64, high: f64) -> Self {
        Self { kind: Kind::Linear, low, high, ends: [false; 2], gap: 0.0 }
    }

    /// From `low` to `high`, which is at least 1 larger, with ticks at whole numbers.
    pub(crate) fn counts(low: f64, high: f64) -> Self {
        Self { kind: Kind::Counts, ..Self::linear(low, high) }
    }

    /// Spans `values`, at least a factor of two. Values without a place on a logarithmic axis, or
    /// too far out, stand at its ends.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = span(values.map(|value| value.clamp(1e-3, 1e15).log10())).unwrap_or((0.0, 1.0));
        Self { kind: Kind::Log, low: low - 0.1, high: high + 0.2, ends: [false; 2], gap: 0.0 }
    }

    /// Spans `shares`, each 0 to 1.
    pub(crate) fn logit(shares: impl Iterator<Item = f64> + Clone) -> Self {
        /// Minimum length of the axis, and the gap before an end, as a share of its length.
        const LENGTH: f64 = 0.4;
        const GAP: f64 = 0.1;
        let ends = [shares.clone().any(|share| share <= 0.0), shares.clone().any(|share| share >= 1.0)];
        let inner = shares.filter(|&share| 0.0 < share && share < 1.0);
        let (low, high) = span(inner.map(logit)).unwrap_or((logit(0.5), logit(0.9)));
        let (middle, half) = ((low + high) / 2.0, (high - low).max(LENGTH) / 2.0 * 1.08);
        let gap = 2.0 * half * GAP;
        let [before, after] = ends.map(|has| if has { gap } else { 0.0 });
        Self { kind: Kind::Logit, low: middle - half - before, high: middle + half + after, ends, gap }
    }

    /// The place of `value`, 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let at = match self.kind {
            Kind::Linear | Kind::Counts => value,
            Kind::Log => value.clamp(1e-3, 1e15).log10(),
            Kind::Logit if value <= 0.0 => self.low,
            Kind::Logit if value >= 1.0 => self.high,
            Kind::Logit => logit(value),
        };
        ((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The middles of the gaps before 0 and 1.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = f64> {
        let middle = self.gap / (self.high - self.low) / 2.0;
        [middle, 1.0 - middle].into_iter().zip(self.ends).filter_map(|(middle, has)| has.then_some(middle))
    }

    /// Ticks at least `room` apart, a share of the axis: round values first, then finer ones until
    /// no stretch is empty.
    pub(crate) fn ticks(&self, room: f64) -> Vec<Tick> {
        let ends = [0.0, 1.0].into_iter().zip(self.ends).filter_map(|(end, has)| has.then_some(end));
        let mut ticks: Vec<Tick> = ends.map(|end| self.tick(end)).collect();
        for level in self.levels() {
            for value in level {
                let tick = self.tick(value);
                let is_inside =
                    0.0 < tick.place && tick.place < 1.0 || matches!(self.kind, Kind::Linear | Kind::Counts);
                if is_inside && ticks.iter().all(|other| (other.place - tick.place).abs() >= room) {
                    ticks.push(tick);
                }
            }
            ticks.sort_by(|a, b| a.place.total_cmp(&b.place));
            let starts = [0.0].into_iter().chain(ticks.iter().map(|tick| tick.place));
            let ends = ticks.iter().map(|tick| tick.place).chain([1.0]);
            if starts.zip(ends).all(|(start, end)| end - start <= STRETCH) {
                break;
            }
        }
        ticks
    }

    fn tick(&self, value: f64) -> Tick {
        Tick { place: self.place(value), label: label(value) }
    }

    /// Values for ticks, roundest first.
    fn levels(&self) -> Vec<Vec<f64>> {
        const STEPS: [&[u32]; 3] = [&[1], &[2, 5], &[3, 4, 6, 7, 8, 9]];
        let ends = match self.kind {
            Kind::Linear => return vec![steps(self.low, self.high, 0.0)],
            Kind::Counts => return vec![steps(self.low, self.high, 1.0)],
            Kind::Log => [self.low, self.high].map(|end| 10f64.powf(end)),
            Kind::Logit => [self.low, self.high].map(|end| 1.0 / (1.0 + (-end).exp())),
        };
        let levels = STEPS.iter().enumerate().map(|(level, digits)| {
            let digits = || digits.iter().map(|&digit| f64::from(digit));
            match self.kind {
                Kind::Logit => {
                    let units = (1..=15).map(|exponent| 10f64.powi(exponent));
                    let near =
                        units.flat_map(|unit| digits().flat_map(move |d| [d / unit, (unit - d) / unit]));
                    near.chain((level == 0).then_some(0.5)).collect()
                }
                _ => (-4..=16)
                    .flat_map(|exponent| digits().map(move |digit| scaled(digit, exponent)))
                    .collect(),
            }
        });
        levels.chain([steps(ends[0], ends[1], 0.0)]).collect()
    }
}

/// The smallest and the largest value.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, value| match span {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

fn logit(share: f64) -> f64 {
    let share = share.clamp(1e-12, 1.0 - 1e-12);
    (share / (1.0 - share)).ln()
}

/// `number` times a power of ten, as the nearest number to its decimal digits.
fn scaled(number: f64, exponent: i32) -> f64 {
    if exponent < 0 { number / 10f64.powi(-exponent) } else { number * 10f64.powi(exponent) }
}

/// Multiples of 1, 2 or 5 times a power of ten, about five from `low` to `high`, at least `apart`
/// from each other.
fn steps(low: f64, high: f64, apart: f64) -> Vec<f64> {
    let least = ((high - low) / 6.0).max(apart);
    let exponent = least.log10().floor() as i32;
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|&digit| scaled(digit, exponent) >= least);
    let digit = digit.unwrap_or(10.0);
    let step = scaled(digit, exponent);
    let (first, last) = ((low / step).ceil(), (high / step).floor());
    (0..=(last - first) as usize).map(|index| scaled((first + index as f64) * digit, exponent)).collect()
}

/// A number with all its digits.
fn label(value: f64) -> String {
    match value.abs() {
        whole if whole.fract() == 0.0 && (0.0..1e15).contains(&value) => grouped(whole),
        1e-6..1e15 => value.to_string(),
        _ => format!("{value:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale) -> Vec<String> {
        scale.ticks(0.1).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn labels_differ_and_have_all_their_digits() {
        for (shares, expected) in [
            (vec![0.4, 0.9995], vec!["0.5", "0.9", "0.99", "0.999"]),
            (vec![0.9812, 0.9931], vec!["0.985", "0.99", "0.992", "0.993"]),
            (vec![0.9887, 0.9893], vec!["0.987", "0.988", "0.989", "0.99", "0.991"]),
            (vec![0.5, 0.99, 1.0], vec!["0.5", "0.8", "0.9", "0.95", "0.98", "0.99", "1"]),
        ] {
            assert_eq!(labels(Scale::logit(shares.into_iter())), expected);
        }
        assert_eq!(
            labels(Scale::log([900.0, 20_000.0].into_iter())),
            ["1,000", "2,000", "5,000", "10,000", "20,000"]
        );
        assert_eq!(labels(Scale::linear(0.0, 0.13)), ["0", "0.05", "0.1"]);
        // One node of degree 0: no half nodes, and no degree below 0.
        assert_eq!(labels(Scale::counts(0.0, 1.05)), ["0", "1"]);
        assert_eq!(labels(Scale::counts(-0.5, 2.5)), ["0", "1", "2"]);
    }

    // Recall 1 is at infinity on a logit axis; a place beside 0.9999 would show a difference of
    // nothing.
    #[test]
    fn shares_of_0_and_1_stand_at_the_ends_beyond_a_gap() {
        let scale = Scale::logit([0.0, 0.5, 0.9999, 1.0].into_iter());
        assert_eq!((scale.place(0.0), scale.place(1.0)), (0.0, 1.0));
        assert!(scale.place(0.9999) < 0.95 && scale.place(0.5) > 0.05);
        assert!(Scale::logit([0.5, 0.9].into_iter()).place(0.9) > 0.9, "a gap for no point");
    }

    #[test]
    fn scales_of_any_values_have_ticks() {
        let all = [-1e300, 0.0, f64::MIN_POSITIVE, 1e-9, 0.5, 1.0 - 1e-15, 1.0, 7.0, 1e300, f64::MAX];
        for low in all {
            for high in all.into_iter().filter(|&high| high >= low) {
                for scale in [Scale::log([low, high].into_iter()), Scale::logit([low, high].into_iter())] {
                    let ticks = scale.ticks(0.1);
                    assert!((2..12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
                    let places = [low, high].map(|value| scale.place(value));
                    assert!(
                        places.iter().all(|place| (0.0..=1.0).contains(place)),
                        "{low} to {high}: {places:?}"
                    );
                }
            }
        }
        for high in [1e-300, 1e-3, 1.0, 96.0, 1e9, 1e300] {
            assert!((2..8).contains(&labels(Scale::linear(0.0, high)).len()), "0 to {high}");
        }
    }
}
