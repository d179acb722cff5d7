//! Flags of a kind of index.

use tagore::{Collect, Filter, Strategy};

use crate::error::{Error, Result};

/// Overrides of a kind's own parameters.
#[derive(clap::Args)]
#[group(requires = "strategy")]
#[command(next_help_heading = "Pruning")]
pub(crate) struct PruneOptions {
    /// Largest degree [default: 50; 32 for cagra, vamana and dpg]
    #[arg(long, value_name = "R")]
    degree: Option<usize>,
    /// Largest number of candidates per node
    #[arg(long, value_name = "M")]
    candidates: Option<usize>,
    /// Slack of the distance filter, on squared distances, or of alpha-cng, on distances [default:
    /// 1.1 for vamana, 1 for nsg, 1.1 for alpha-cng]
    #[arg(long, conflicts_with = "angle")]
    alpha: Option<f32>,
    /// Least angle between neighbours of the angle filter, in degrees [default: 60]
    #[arg(long, conflicts_with = "threshold")]
    angle: Option<f32>,
    /// Collection of candidates: 1-hop, 2-hop or path [default: the kind's]
    #[arg(long)]
    collect: Option<Collect>,
    /// Filter of candidates: dist, angle, rank, tau-mng or alpha-cng [default: the kind's]
    #[arg(long)]
    filter: Option<Filter>,
    /// Threshold of the filter: alpha, degrees, the most detours, or tau in the unit of the data
    /// [default of tau: 0]
    #[arg(long, value_name = "X")]
    threshold: Option<f32>,
    /// Count a detour of the rank filter only if both its edges have a better rank [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    strict_detours: Option<bool>,
}

impl PruneOptions {
    /// `strategy` with the given overrides, checked.
    pub(crate) fn apply(&self, mut strategy: Strategy) -> Result<Strategy> {
        if let Some(degree) = self.degree {
            strategy = strategy.degree(degree);
        }
        if let Some(candidates) = self.candidates {
            strategy = strategy.candidates(candidates);
        }
        if let Some(collect) = self.collect {
            strategy = strategy.collect(collect);
        }
        if let Some(filter) = self.filter.clone() {
            strategy = strategy.filter(filter);
        }
        strategy = self.apply_threshold(strategy)?;
        if let Some(strict) = self.strict_detours {
            strategy = strategy.strict_detours(strict);
        }
        // The threshold of a filter has a flag of its own.
        let flag = match (self.angle, self.alpha) {
            (Some(_), _) => "angle",
            (None, Some(_)) if self.threshold.is_none() => "alpha",
            _ => "threshold",
        };
        strategy.check().map_err(|error| Error::from(error).renamed("threshold", flag))?;
        Ok(strategy)
    }

    /// `strategy` with the given alpha, angle or threshold, if its filter has one.
    fn apply_threshold(&self, strategy: Strategy) -> Result<Strategy> {
        let filter = strategy.filter_name();
        let unfit = |flag: &str, value: f32, filters: &str| {
            Err(Error::usage(format!("{flag} {value} needs the {filters} filter, not {filter}")))
        };
        Ok(match (self.alpha, self.angle, self.threshold) {
            (Some(alpha), ..) if !["dist", "alpha-cng"].contains(&filter) => {
                return unfit("--alpha", alpha, "dist or alpha-cng");
            }
            // The threshold of the distance filter is alpha.
            (Some(alpha), _, Some(_)) if filter == "dist" => {
                return unfit("--threshold with --alpha", alpha, "alpha-cng");
            }
            (Some(alpha), _, Some(tau)) => strategy.alpha(alpha).threshold(tau),
            (Some(alpha), _, None) => strategy.alpha(alpha),
            (None, Some(angle), _) if filter != "angle" => return unfit("--angle", angle, "angle"),
            (None, Some(threshold), _) | (None, None, Some(threshold)) => strategy.threshold(threshold),
            (None, None, None) => strategy,
        })
    }
}
