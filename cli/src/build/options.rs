//! Flags of a kind of index.

use tagore::{Builder, Collect, Filter, Strategy};

use crate::error::Result;

/// Parameters of a kind, in place of its own.
#[derive(clap::Args)]
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
    /// Minimum angle between neighbours of the angle filter, in degrees [default: 60]
    #[arg(long, conflicts_with = "threshold")]
    angle: Option<f32>,
    /// Collection of candidates: 1-hop, 2-hop or path [default: 1-hop if K is at least two thirds
    /// of the candidates, else the kind's]
    #[arg(long)]
    collect: Option<Collect>,
    /// Filter of candidates: dist, angle, spread, rank, tau-mng or alpha-cng [default: the kind's]
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
    /// A builder of the strategy's index with the given parameters.
    pub(crate) fn builder(&self, strategy: &Strategy) -> Result<Builder> {
        Ok(Builder::new(strategy.clone()).set_all(self.given())?)
    }

    /// The names and values of the given parameters.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        fn given(name: &'static str, value: Option<impl ToString>) -> Option<(&'static str, String)> {
            Some((name, value?.to_string()))
        }
        let parameters = [
            given("degree", self.degree),
            given("candidates", self.candidates),
            given("collect", self.collect.map(Collect::name)),
            given("filter", self.filter.as_ref().map(Filter::name)),
            given("alpha", self.alpha),
            given("angle", self.angle),
            given("threshold", self.threshold),
            given("strict-detours", self.strict_detours),
        ];
        parameters.into_iter().flatten()
    }
}
