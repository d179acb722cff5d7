//! Overrides of the parameters of a kind of index.

use super::{Collect, Filter, Strategy};
use crate::{Error, Result};

/// Overrides of a kind's own parameters, each as the method of [`Strategy`] of its name. A field
/// that is none leaves the kind's parameter.
///
/// ```
/// use tagore::{Overrides, Strategy};
/// let overrides = Overrides { degree: Some(24), alpha: Some(1.2), ..Overrides::default() };
/// assert_eq!(Strategy::vamana().with(&overrides)?.max_degree(), 24);
/// assert!(Strategy::cagra().with(&overrides).is_err()); // its filter has no alpha
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Largest degree.
    pub degree: Option<usize>,
    /// Largest number of candidates per node.
    pub candidates: Option<usize>,
    /// Collection of candidates.
    pub collect: Option<Collect>,
    /// Filter of candidates.
    pub filter: Option<Filter>,
    /// Slack of the distance filter or of alpha-cng.
    pub alpha: Option<f32>,
    /// Minimum angle of the angle filter, in degrees.
    pub angle: Option<f32>,
    /// Threshold of the filter.
    pub threshold: Option<f32>,
    /// How the rank filter counts detours.
    pub strict_detours: Option<bool>,
}

impl Strategy {
    /// The strategy with the given overrides, checked.
    ///
    /// # Errors
    /// If an override does not fit the filter or another override, or is out of its range.
    pub fn with(mut self, overrides: &Overrides) -> Result<Self> {
        if let Some(degree) = overrides.degree {
            self = self.degree(degree);
        }
        if let Some(candidates) = overrides.candidates {
            self = self.candidates(candidates);
        }
        if let Some(collect) = overrides.collect {
            self = self.collect(collect);
        }
        if let Some(filter) = overrides.filter.clone() {
            self = self.filter(filter);
        }
        self = overrides.apply_threshold(self)?;
        if let Some(strict) = overrides.strict_detours {
            self = self.strict_detours(strict);
        }
        self.check().map_err(|error| overrides.renamed(error))?;
        Ok(self)
    }
}

impl Overrides {
    /// `strategy` with the given alpha, angle or threshold, if its filter has one.
    fn apply_threshold(&self, strategy: Strategy) -> Result<Strategy> {
        let filter = strategy.filter_name();
        let unfit = |parameter, value: f32, filters: &str| {
            let expected = format!("the {filters} filter");
            Err(Error::argument(parameter, format_args!("{value} with the {filter} filter"), expected))
        };
        Ok(match (self.alpha, self.angle, self.threshold) {
            (Some(alpha), ..) if !["dist", "alpha-cng"].contains(&filter) => {
                return unfit("alpha", alpha, "dist or alpha-cng");
            }
            // The threshold of the distance filter is alpha.
            (Some(_), _, Some(threshold)) if filter == "dist" => {
                let found = format!("{threshold} beside an alpha, with the dist filter");
                return Err(Error::argument("threshold", found, "one of them, or the alpha-cng filter"));
            }
            (_, Some(angle), _) if filter != "angle" => return unfit("angle", angle, "angle"),
            (_, Some(_), Some(threshold)) => {
                let found = format!("{threshold} beside an angle");
                return Err(Error::argument("threshold", found, "one of them"));
            }
            (Some(alpha), _, Some(tau)) => strategy.alpha(alpha).threshold(tau),
            (Some(alpha), _, None) => strategy.alpha(alpha),
            (None, Some(threshold), _) | (None, None, Some(threshold)) => strategy.threshold(threshold),
            (None, None, None) => strategy,
        })
    }

    /// An error about the threshold of a filter, under the name that the threshold was given by.
    fn renamed(&self, error: Error) -> Error {
        let given = match (self.angle, self.alpha) {
            (Some(_), _) => "angle",
            (None, Some(_)) if self.threshold.is_none() => "alpha",
            _ => "threshold",
        };
        match error {
            Error::Argument { parameter: "threshold", found, expected } => {
                Error::Argument { parameter: given, found, expected }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_must_fit_the_filter_and_each_other() {
        let text = |strategy: Strategy, overrides: Overrides| {
            strategy
                .with(&overrides)
                .map_or_else(|error| error.to_string(), |strategy| format!("{strategy:?}"))
        };
        let none = Overrides::default();
        let alpha = |alpha| Overrides { alpha: Some(alpha), ..none.clone() };
        assert_eq!(
            text(Strategy::nssg(), alpha(1.5)),
            "alpha: found 1.5 with the angle filter, expected the dist or alpha-cng filter"
        );
        assert_eq!(
            text(Strategy::nsg(), Overrides { angle: Some(60.0), ..none.clone() }),
            "angle: found 60 with the dist filter, expected the angle filter"
        );
        assert_eq!(
            text(Strategy::nsg(), Overrides { threshold: Some(1.0), ..alpha(1.5) }),
            "threshold: found 1 beside an alpha, with the dist filter, expected one of them, or the alpha-cng filter"
        );
        assert_eq!(
            text(Strategy::nssg(), Overrides { angle: Some(50.0), threshold: Some(1.0), ..none.clone() }),
            "threshold: found 1 beside an angle, expected one of them"
        );
        assert!(text(Strategy::vamana(), alpha(0.0)).starts_with("alpha: found 0"));
        assert_eq!(text(Strategy::vamana(), none.clone()), format!("{:?}", Strategy::vamana()));
        assert_eq!(text(Strategy::nsg(), alpha(1.5)), format!("{:?}", Strategy::nsg().alpha(1.5)));
    }
}
