//! Strategies: how each kind of index collects candidates, filters them and stores rows.

use std::ops::RangeInclusive;
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

/// The filter of candidates (paper section 5.1, Filter).
#[derive(Clone, Debug)]
pub enum Filter {
    /// By distance: NSG's rule, Vamana's with a threshold alpha above 1.
    Distance,
    /// By the angle between neighbours, in degrees: NSSG's rule.
    Angle,
    /// By the spread of directions: DPG's greedy selection. It has no threshold.
    Spread,
    /// By detours: CAGRA's count. The threshold, if any, is the most detours an edge may have.
    Rank,
    /// By distance with a shift: tau-MNG's rule. The threshold is tau, in the unit of the data; at
    /// 0 it is NSG's rule.
    TauMonotonic,
    /// By distance, scaled and shifted: alpha-CNG's rule. The threshold is tau, in the unit of the
    /// data; at 0 it is Vamana's rule, with alpha on unsquared distances.
    AlphaConvergent(AlphaConvergent),
    /// A user's rule; see [`Strategy::custom`].
    Custom(CustomRule),
}

impl Filter {
    /// The name: `dist`, `angle`, `spread`, `rank`, `tau-mng`, `alpha-cng` or `custom`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Distance => "dist",
            Self::Angle => "angle",
            Self::Spread => "spread",
            Self::Rank => "rank",
            Self::TauMonotonic => "tau-mng",
            Self::AlphaConvergent(_) => "alpha-cng",
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
            "dist" => Ok(Self::Distance),
            "angle" => Ok(Self::Angle),
            "rank" => Ok(Self::Rank),
            "tau-mng" => Ok(Self::TauMonotonic),
            "alpha-cng" => Ok(Self::AlphaConvergent(AlphaConvergent::default())),
            _ => Err(Error::argument("filter", name, "dist, angle, rank, tau-mng or alpha-cng")),
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

/// The range of alpha.
const ALPHAS: RangeInclusive<f32> = 0.01..=100.0;

/// A kind of index and its parameters.
///
/// ```
/// use tagore::{Collect, Strategy};
/// let vamana = Strategy::vamana().degree(48).alpha(1.3);
/// let mixed = Strategy::nsg().collect(Collect::TwoHop);
/// # let _ = (vamana, mixed);
/// ```
#[derive(Clone, Debug)]
pub struct Strategy {
    pub(crate) kind: String,
    collect: Collect,
    /// Whether long lists are the candidates.
    takes_long_lists: bool,
    pub(crate) filter: Filter,
    pub(crate) threshold: Option<f32>,
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
            filter: Filter::Rank,
            threshold: None,
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
            filter: Filter::Distance,
            threshold: Some(1.0),
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
            filter: Filter::Angle,
            threshold: Some(60.0),
            candidates: 60,
            entry: Entry::Random,
            ..Self::nsg()
        }
    }

    /// Vamana (Subramanya et al. 2019): as NSG with a slack alpha on squared distances, 1.1 unless
    /// set.
    pub fn vamana() -> Self {
        Self { kind: "vamana".into(), threshold: Some(1.1), degree: 32, candidates: 96, ..Self::nsg() }
    }

    /// DPG (Li et al. 2019): neighbours spread over all directions, then reverse edges.
    pub fn dpg() -> Self {
        Self { kind: "dpg".into(), filter: Filter::Spread, candidates: 48, ..Self::cagra() }
    }

    /// tau-MNG (Peng et al. 2023): as NSG, but a neighbour occludes only candidates nearer to it by
    /// another 3 tau. A good tau is about the distance from a query to its nearest neighbour. The
    /// [`threshold`](Self::threshold) is tau, 0 unless set, which is NSG's rule.
    pub fn tau_mng() -> Self {
        Self { kind: "tau-mng".into(), ..Self::nsg().filter(Filter::TauMonotonic) }
    }

    /// alpha-CNG (Li, Yan and Lu 2025): as Vamana with alpha on unsquared distances, 1.1 unless
    /// set, but a neighbour occludes only candidates nearer to it by another `(alpha + 1) tau`. The
    /// [`threshold`](Self::threshold) is tau, 0 unless set.
    pub fn alpha_cng() -> Self {
        Self {
            kind: "alpha-cng".into(),
            ..Self::nsg().filter(Filter::AlphaConvergent(AlphaConvergent::default()))
        }
    }

    /// A user's rule, with NSG's other steps. The rule gets `threshold`.
    ///
    /// `tagore_device::rule_kernels!` makes the rule's kernels in the user's crate. `cuda_builder`
    /// compiles them to `ptx`, which filters on CUDA devices. Without `ptx` the CPU prunes, with
    /// the same result. The emulator needs no PTX. `examples/custom_rule` is a complete example.
    pub fn custom(name: &str, rule: impl RuleKernels, ptx: Option<&'static str>, threshold: f32) -> Self {
        Self {
            kind: name.into(),
            filter: Filter::Custom(CustomRule::new(rule, ptx)),
            threshold: Some(threshold),
            ..Self::nsg()
        }
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

    /// Sets alpha of alpha-CNG's filter, or the threshold of the distance filter.
    pub fn alpha(mut self, alpha: f32) -> Self {
        if let Filter::AlphaConvergent(rule) = &mut self.filter {
            rule.alpha = alpha;
            return self;
        }
        self.threshold(alpha)
    }

    /// Sets the least angle between neighbours, in degrees, of the angle filter.
    pub fn angle(self, degrees: f32) -> Self {
        self.threshold(degrees)
    }

    /// Sets the threshold of the filter.
    pub fn threshold(mut self, threshold: f32) -> Self {
        self.threshold = Some(threshold);
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

    /// Sets the filter, with its default threshold: 1 (distance), 60 (angle), 0 (tau-MNG's and
    /// alpha-CNG's), none (spread, rank).
    pub fn filter(mut self, filter: Filter) -> Self {
        self.threshold = match filter {
            Filter::Distance => Some(1.0),
            Filter::Angle => Some(60.0),
            Filter::TauMonotonic | Filter::AlphaConvergent(_) => Some(0.0),
            Filter::Spread | Filter::Rank => None,
            Filter::Custom(_) => self.threshold,
        };
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
        matches!(self.filter, Filter::Rank)
    }

    /// The name of the filter, such as `dist`.
    pub const fn filter_name(&self) -> &'static str {
        self.filter.name()
    }

    /// Checks the parameters against their ranges, as building does.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first parameter out of its range.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_DEGREE).contains(&self.degree) {
            return Err(Error::argument("degree", self.degree, format_args!("1 to {MAX_DEGREE}")));
        }
        if !(1..=MAX_CANDIDATES).contains(&self.candidates) {
            return Err(Error::argument(
                "candidates",
                self.candidates,
                format_args!("1 to {MAX_CANDIDATES}"),
            ));
        }
        if let Filter::AlphaConvergent(AlphaConvergent { alpha }) = self.filter
            && !ALPHAS.contains(&alpha)
        {
            return Err(Error::argument("alpha", alpha, "an alpha from 0.01 to 100"));
        }
        let Some(threshold) = self.threshold else {
            return Ok(());
        };
        let (fits, expected) = match self.filter {
            Filter::Distance => (ALPHAS.contains(&threshold), "an alpha from 0.01 to 100"),
            Filter::Angle => ((0.0..=180.0).contains(&threshold), "degrees from 0 to 180"),
            Filter::Rank => (threshold >= 0.0, "a number of detours from 0"),
            Filter::TauMonotonic | Filter::AlphaConvergent(_) => {
                ((0.0..=f32::MAX).contains(&threshold), "a tau from 0")
            }
            Filter::Spread => (false, "no threshold with this filter"),
            Filter::Custom(_) => (threshold.is_finite(), "a finite number"),
        };
        if fits { Ok(()) } else { Err(Error::argument("threshold", threshold, expected)) }
    }
}

impl Strategy {
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
