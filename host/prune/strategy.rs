//! Strategies: how each kind of index collects candidates, filters them and stores rows.

use std::fmt::Display;
use std::ops::RangeBounds;
use std::str::FromStr;

use tagore_device::prune::kernels::RuleKernels;
use tagore_device::prune::rule::AlphaConvergent;

use super::rule::CustomRule;
use crate::{Error, MAX_DEGREE, Result};

/// The source of candidates in the k-NN graph (paper section 5.1, Collect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collect {
    /// A node's own list.
    OneHop,
    /// A node's own list and the lists of its nearest neighbours.
    TwoHop,
    /// A node's own list, and the nodes visited by a short beam search for it from the entry
    /// points.
    Path,
}

/// The filter of candidates (paper section 5.1, Filter), with its parameters. Constructors check
/// them; a filter parsed from its name has the defaults.
#[derive(Clone, Debug)]
pub enum Filter {
    /// By distance: NSG's rule, Vamana's with an alpha above 1.
    #[non_exhaustive]
    Distance {
        /// Slack on squared distances.
        alpha: f32,
    },
    /// By the angle between neighbours: NSSG's rule.
    #[non_exhaustive]
    Angle {
        /// Minimum angle, in degrees.
        degrees: f32,
    },
    /// By the spread of directions: DPG's greedy selection.
    Spread,
    /// By detours: CAGRA's count.
    #[non_exhaustive]
    Rank {
        /// Maximum number of detours of an edge, if any.
        max_detours: Option<f32>,
    },
    /// By distance with a shift: tau-MNG's rule; at a tau of 0 it is NSG's.
    #[non_exhaustive]
    TauMonotonic {
        /// A third of the shift, in the unit of the data.
        tau: f32,
    },
    /// By distance, scaled and shifted: alpha-CNG's rule; at a tau of 0 it is Vamana's, with alpha
    /// on unsquared distances.
    #[non_exhaustive]
    AlphaConvergent {
        /// The rule, with alpha.
        rule: AlphaConvergent,
        /// The shift over `alpha + 1`, in the unit of the data.
        tau: f32,
    },
    /// A user's rule; see [`Strategy::custom`].
    Custom(CustomRule),
}

impl Filter {
    /// The filter by distance, with a slack `alpha` on squared distances.
    ///
    /// # Errors
    /// If alpha is not from 0.01 to 100.
    pub fn distance(alpha: f32) -> Result<Self> {
        Ok(Self::Distance { alpha: checked_alpha(alpha)? })
    }

    /// The filter by the angle between neighbours: at least `degrees`.
    ///
    /// # Errors
    /// If the angle is not from 0 to 180 degrees.
    pub fn angle(degrees: f32) -> Result<Self> {
        Ok(Self::Angle { degrees: checked("angle", degrees, 0.0..=180.0, "degrees from 0 to 180")? })
    }

    /// The filter by detours: an edge has at most `max_detours`.
    ///
    /// # Errors
    /// If the number of detours is below 0.
    pub fn rank(max_detours: f32) -> Result<Self> {
        let max_detours = checked("max_detours", max_detours, 0.0.., "a number of detours from 0")?;
        Ok(Self::Rank { max_detours: Some(max_detours) })
    }

    /// The filter of tau-MNG, with `tau` in the unit of the data.
    ///
    /// # Errors
    /// If tau is negative or not finite.
    pub fn tau_monotonic(tau: f32) -> Result<Self> {
        Ok(Self::TauMonotonic { tau: checked_tau(tau)? })
    }

    /// The filter of alpha-CNG: `alpha` is a slack on distances, `tau` in the unit of the data.
    ///
    /// # Errors
    /// If alpha is not from 0.01 to 100, or tau is negative or not finite.
    pub fn alpha_convergent(alpha: f32, tau: f32) -> Result<Self> {
        let rule = AlphaConvergent { alpha: checked_alpha(alpha)? };
        Ok(Self::AlphaConvergent { rule, tau: checked_tau(tau)? })
    }

    /// The `threshold` of descriptions: alpha of the distance filter, degrees, detours, tau, or the
    /// threshold of a user's rule.
    pub(crate) const fn threshold(&self) -> Option<f32> {
        match *self {
            Self::Distance { alpha } => Some(alpha),
            Self::Angle { degrees } => Some(degrees),
            Self::Spread => None,
            Self::Rank { max_detours } => max_detours,
            Self::TauMonotonic { tau } | Self::AlphaConvergent { tau, .. } => Some(tau),
            Self::Custom(CustomRule { threshold, .. }) => Some(threshold),
        }
    }

    /// The name: `dist`, `angle`, `spread`, `rank`, `tau-mng`, `alpha-cng` or `custom`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Distance { .. } => "dist",
            Self::Angle { .. } => "angle",
            Self::Spread => "spread",
            Self::Rank { .. } => "rank",
            Self::TauMonotonic { .. } => "tau-mng",
            Self::AlphaConvergent { .. } => "alpha-cng",
            Self::Custom(_) => "custom",
        }
    }
}

impl Collect {
    /// The name: `1-hop`, `2-hop` or `path`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneHop => "1-hop",
            Self::TwoHop => "2-hop",
            Self::Path => "path",
        }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "dist" => Ok(Self::Distance { alpha: 1.0 }),
            "angle" => Ok(Self::Angle { degrees: 60.0 }),
            "spread" => Ok(Self::Spread),
            "rank" => Ok(Self::Rank { max_detours: None }),
            "tau-mng" => Ok(Self::TauMonotonic { tau: 0.0 }),
            "alpha-cng" => Ok(Self::AlphaConvergent { rule: AlphaConvergent::default(), tau: 0.0 }),
            _ => Err(Error::argument("filter", name, "dist, angle, spread, rank, tau-mng or alpha-cng")),
        }
    }
}

impl FromStr for Collect {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "1-hop" => Ok(Self::OneHop),
            "2-hop" => Ok(Self::TwoHop),
            "path" => Ok(Self::Path),
            _ => Err(Error::argument("collect", name, "1-hop, 2-hop or path")),
        }
    }
}

/// The way to make a row from forward and reverse edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// CAGRA and DPG: the better half forward, then reverse edges, then the rest of the forward
    /// edges. If detours were counted, reverse edges are sorted by their rank in the source's row,
    /// else nearest first.
    Interleave,
    /// NSG, NSSG, Vamana: forward and reverse edges together, filtered again if they exceed the
    /// row.
    Refilter,
}

/// Entry points of searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The node nearest to the mean.
    Medoid,
    /// [`RANDOM_ENTRIES`](crate::index::RANDOM_ENTRIES) seeded random nodes.
    Random,
}

/// Maximum number of candidates per node.
pub const MAX_CANDIDATES: usize = 8192;

fn checked_alpha(alpha: f32) -> Result<f32> {
    checked("alpha", alpha, 0.01..=100.0, "an alpha from 0.01 to 100")
}

fn checked_tau(tau: f32) -> Result<f32> {
    checked("tau", tau, 0.0..=f32::MAX, "a tau from 0")
}

/// `value`, if it is in its range. A NaN is in none.
pub(super) fn checked<T: PartialOrd + Display>(
    name: &'static str,
    value: T,
    range: impl RangeBounds<T>,
    expected: impl ToString,
) -> Result<T> {
    if range.contains(&value) { Ok(value) } else { Err(Error::argument(name, value, expected)) }
}

/// A kind of index and its parameters.
///
/// ```
/// use tagore::{Collect, Filter, Strategy};
/// let vamana = Strategy::vamana().degree(48).filter(Filter::distance(1.3)?);
/// let mixed = Strategy::nsg().collect(Collect::TwoHop);
/// # let _ = (vamana, mixed);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Strategy {
    pub(crate) kind: String,
    collect: Collect,
    /// Whether long lists are the candidates.
    takes_long_lists: bool,
    pub(crate) filter: Filter,
    pub(crate) strict_detours: bool,
    pub(crate) degree: usize,
    pub(crate) candidates: usize,
    pub(crate) store: Store,
    pub(crate) connect: bool,
    pub(crate) entry: Entry,
}

impl Strategy {
    /// CAGRA (Ootomo et al. 2024): the edges with the fewest detours, then reverse edges; rows of
    /// exactly the degree.
    pub fn cagra() -> Self {
        Self {
            kind: "cagra".into(),
            collect: Collect::OneHop,
            takes_long_lists: true,
            filter: Filter::Rank { max_detours: None },
            strict_detours: true,
            degree: 32,
            candidates: 1024,
            store: Store::Interleave,
            connect: false,
            entry: Entry::Random,
        }
    }

    /// NSG (Fu et al. 2019): no neighbour is nearer to another neighbour than to the node.
    pub fn nsg() -> Self {
        Self {
            kind: "nsg".into(),
            collect: Collect::Path,
            filter: Filter::Distance { alpha: 1.0 },
            degree: 50,
            candidates: 72,
            store: Store::Refilter,
            connect: true,
            entry: Entry::Medoid,
            ..Self::cagra()
        }
    }

    /// NSSG (Fu et al. 2022): neighbours are at least 60 degrees apart.
    pub fn nssg() -> Self {
        Self {
            kind: "nssg".into(),
            collect: Collect::TwoHop,
            filter: Filter::Angle { degrees: 60.0 },
            candidates: 60,
            entry: Entry::Random,
            ..Self::nsg()
        }
    }

    /// Vamana (Subramanya et al. 2019): as NSG with a slack alpha on squared distances, 1.1 unless
    /// set.
    pub fn vamana() -> Self {
        let filter = Filter::Distance { alpha: 1.1 };
        Self { kind: "vamana".into(), filter, degree: 32, candidates: 96, ..Self::nsg() }
    }

    /// DPG (Li et al. 2019): neighbours spread over all directions, then reverse edges.
    pub fn dpg() -> Self {
        Self { kind: "dpg".into(), filter: Filter::Spread, candidates: 48, ..Self::cagra() }
    }

    /// tau-MNG (Peng et al. 2023): as NSG, but a neighbour occludes only candidates nearer to it by
    /// another 3 tau. A good tau is about the distance from a query to its nearest neighbour. It is
    /// 0 unless set, which is NSG's rule.
    pub fn tau_mng() -> Self {
        Self { kind: "tau-mng".into(), filter: Filter::TauMonotonic { tau: 0.0 }, ..Self::nsg() }
    }

    /// alpha-CNG (Li, Yan and Lu 2025): as Vamana with alpha on unsquared distances, 1.1 unless
    /// set, but a neighbour occludes only candidates nearer to it by another `(alpha + 1) tau`,
    /// with a tau of 0 unless set.
    pub fn alpha_cng() -> Self {
        let filter = Filter::AlphaConvergent { rule: AlphaConvergent::default(), tau: 0.0 };
        Self { kind: "alpha-cng".into(), filter, ..Self::nsg() }
    }

    /// A user's rule, with NSG's other steps. The rule gets `threshold`.
    ///
    /// `tagore_device::rule_kernels!` makes the rule's kernels in the user's crate. `cuda_builder`
    /// compiles them to `ptx`, which filters on CUDA devices. Without `ptx` the CPU prunes, with
    /// the same result. The emulator needs no PTX. `examples/custom_rule` is a complete example.
    ///
    /// # Errors
    /// If the threshold is not finite.
    pub fn custom(
        name: &str,
        rule: impl RuleKernels,
        ptx: Option<&'static str>,
        threshold: f32,
    ) -> Result<Self> {
        let filter = Filter::Custom(CustomRule::new(rule, ptx, threshold)?);
        Ok(Self { kind: name.into(), filter, ..Self::nsg() })
    }

    /// The built-in kinds.
    pub fn all() -> [Self; 7] {
        [
            Self::cagra(),
            Self::nsg(),
            Self::nssg(),
            Self::vamana(),
            Self::dpg(),
            Self::tau_mng(),
            Self::alpha_cng(),
        ]
    }

    /// The name of the kind, such as `nsg`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The largest degree R.
    pub fn max_degree(&self) -> usize {
        self.degree
    }

    /// Sets the largest degree R, 1..=512.
    pub fn degree(mut self, degree: usize) -> Self {
        self.degree = degree;
        self
    }

    /// Sets the most candidates per node (CandSize of the paper's Algorithm 2), 1..=8192.
    pub fn candidates(mut self, candidates: usize) -> Self {
        self.candidates = candidates;
        self
    }

    /// Sets the source of candidates. Unless set, it is the kind's own, but a node's list alone if
    /// lists hold at least two thirds of as many neighbours as there are
    /// [`candidates`](Self::candidates). Paths hardly find nearer nodes than those of a good list.
    pub fn collect(mut self, collect: Collect) -> Self {
        self.collect = collect;
        self.takes_long_lists = false;
        self
    }

    /// Sets the filter.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Counts a detour A → D → B only if both A → D and D → B rank better than A → B, as in the
    /// paper. CAGRA's own code tests only A → D.
    pub fn strict_detours(mut self, strict: bool) -> Self {
        self.strict_detours = strict;
        self
    }

    /// The source of candidates of a graph with lists of `k` neighbours.
    pub(crate) const fn collect_from(&self, k: usize) -> Collect {
        let is_long = 3 * k >= self.candidates.saturating_mul(2);
        if self.takes_long_lists && is_long { Collect::OneHop } else { self.collect }
    }

    /// Whether a GPU runs the filter; `takes_ptx` says whether its kernels come from PTX, which a
    /// user's rule may lack.
    pub(crate) const fn filters_on_gpu(&self, takes_ptx: bool) -> bool {
        !takes_ptx || !matches!(self.filter, Filter::Custom(CustomRule { ptx: None, .. }))
    }

    /// Whether the filter counts detours. Its edges then have ranks, not distances.
    pub(crate) const fn counts_detours(&self) -> bool {
        matches!(self.filter, Filter::Rank { .. })
    }

    /// The name of the filter, such as `dist`.
    pub const fn filter_name(&self) -> &'static str {
        self.filter.name()
    }

    /// Checks degree and candidates against their ranges, as building does.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first parameter out of its range.
    pub fn check(&self) -> Result<()> {
        checked("degree", self.degree, 1..=MAX_DEGREE, format_args!("1 to {MAX_DEGREE}"))?;
        let expected = format_args!("1 to {MAX_CANDIDATES}");
        checked("candidates", self.candidates, 1..=MAX_CANDIDATES, expected).map(drop)
    }

    /// Checks that lists of `knn` neighbours are long enough for `nodes` nodes.
    pub(crate) fn check_list(&self, knn: usize, nodes: usize) -> Result<()> {
        if self.store == Store::Interleave && self.counts_detours() && knn < self.degree.min(nodes - 1) {
            let expected = format!("at least the degree {} of every row of {}", self.degree, self.kind);
            return Err(Error::argument("knn", knn, expected));
        }
        Ok(())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::all().into_iter().find(|strategy| strategy.kind == name).ok_or_else(|| {
            Error::argument("index", name, "cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_candidates_unless_another_source_is_set() {
        for (strategy, long) in
            [(Strategy::nsg(), 48), (Strategy::nssg(), 40), (Strategy::vamana(), 64), (Strategy::dpg(), 1)]
        {
            let kind = strategy.kind().to_owned();
            assert_eq!(strategy.collect_from(long), Collect::OneHop, "{kind}");
            assert_eq!(strategy.collect_from(long - 1), strategy.collect, "{kind}");
            for collect in [Collect::OneHop, Collect::TwoHop, Collect::Path] {
                assert_eq!(strategy.clone().collect(collect).collect_from(1000), collect, "{kind}");
            }
        }
        assert_eq!(Strategy::vamana().candidates(200).collect_from(96), Collect::Path);
    }
}
