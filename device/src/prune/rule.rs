//! Pruning rules: which candidates of a node become its neighbours.
//!
//! Rules take squared L2 distances: `d_pc` from the node p to the candidate c, `d_pa` from p to an
//! accepted neighbour a, `d_ac` from a to c. `t` is the threshold as [`Rule::prepare`] returns it.

use cuda_std::float::sqrt;

/// How a rule selects neighbours from the candidates, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A candidate is accepted if [`Rule::keep`] holds against every neighbour accepted before it.
    Keep,
    /// First the nearest candidate, then the one with the smallest sum of [`Rule::score`]s against
    /// the accepted neighbours. Ties go to the nearer candidate.
    Score,
}

/// A pruning rule of the Filter step (paper section 5.1), in one of two forms.
///
/// A rule is a `#[repr(C)]` value that kernels take as an argument
/// ([`RuleKernels`](super::kernels::RuleKernels)). It may hold parameters beside the threshold. All
/// methods that kernels call are `#[inline(always)]` and do not panic.
pub trait Rule {
    /// The form of the rule.
    #[inline(always)]
    fn form(&self) -> Form {
        Form::Keep
    }

    /// Converts the user's threshold for `keep` and `score`, such as an angle to its cosine.
    fn prepare(&self, threshold: f32) -> f32 {
        threshold
    }

    /// Whether candidate c stays beside the accepted neighbour a.
    fn keep(&self, d_pc: f32, d_pa: f32, d_ac: f32, t: f32) -> bool;

    /// The term of the accepted neighbour a in the score of candidate c.
    #[inline(always)]
    fn score(&self, _d_pc: f32, _d_pa: f32, _d_ac: f32, _t: f32) -> f32 {
        0.0
    }
}

/// NSG (Fu et al. 2019): c stays iff it is nearer to p than to every accepted neighbour.
///
/// Vamana (Subramanya et al. 2019) is the same rule with a threshold alpha above 1. As in DiskANN,
/// alpha applies to squared distances: `d_pc < alpha * d_ac`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Distance;

impl Rule for Distance {
    #[inline(always)]
    fn keep(&self, d_pc: f32, _d_pa: f32, d_ac: f32, alpha: f32) -> bool {
        d_pc < alpha * d_ac
    }
}

/// NSSG (Fu et al. 2022): c stays iff its angle at p to every accepted neighbour is at least the
/// threshold. Thresholds are degrees; the rule compares cosines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Angle;

impl Rule for Angle {
    // Only the host prepares thresholds.
    #[cfg(not(target_os = "cuda"))]
    fn prepare(&self, degrees: f32) -> f32 {
        // By f64, so that 60 degrees is 0.5 on every machine.
        f64::from(degrees).to_radians().cos() as f32
    }

    #[inline(always)]
    fn keep(&self, d_pc: f32, d_pa: f32, d_ac: f32, threshold: f32) -> bool {
        cosine(d_pc, d_pa, d_ac) <= threshold
    }
}

/// DPG (Li et al. 2019): the next neighbour is the candidate with the smallest sum of cosines to
/// the accepted neighbours, which spreads the directions.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Spread;

impl Rule for Spread {
    #[inline(always)]
    fn form(&self) -> Form {
        Form::Score
    }

    #[inline(always)]
    fn keep(&self, _d_pc: f32, _d_pa: f32, _d_ac: f32, _t: f32) -> bool {
        true
    }

    #[inline(always)]
    fn score(&self, d_pc: f32, d_pa: f32, d_ac: f32, _t: f32) -> f32 {
        cosine(d_pc, d_pa, d_ac)
    }
}

/// tau-MNG (Peng et al. 2023): c is dropped iff some accepted a has `|ac| < |pc| - 3 tau`, on
/// distances that are not squared.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TauMonotonic;

impl Rule for TauMonotonic {
    #[inline(always)]
    fn keep(&self, d_pc: f32, _d_pa: f32, d_ac: f32, tau: f32) -> bool {
        sqrt(d_ac) >= sqrt(d_pc) - 3.0 * tau
    }
}

/// alpha-CNG (Li, Yan and Lu 2025, arXiv:2510.05975), by its shifted and scaled triangle
/// inequality.
///
/// c is dropped iff some accepted a has `|pc| > alpha |ac| + (alpha + 1) tau`, on distances that
/// are not squared. The threshold is tau. Here alpha is the same for every node; the authors' code
/// raises it where few neighbours are left.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AlphaConvergent {
    /// At tau 0, the largest `|pc| / |ac|` of a candidate that stays.
    pub alpha: f32,
}

impl Default for AlphaConvergent {
    /// An alpha of 1.1, about that of Vamana, whose 1.2 applies to squared distances.
    fn default() -> Self {
        Self { alpha: 1.1 }
    }
}

impl Rule for AlphaConvergent {
    #[inline(always)]
    fn keep(&self, d_pc: f32, _d_pa: f32, d_ac: f32, tau: f32) -> bool {
        sqrt(d_pc) <= self.alpha * sqrt(d_ac) + (self.alpha + 1.0) * tau
    }
}

/// The cosine of the angle at p between c and a, from squared distances. 1 if p coincides with
/// either: then there is no direction, and the candidate adds nothing.
#[inline(always)]
pub fn cosine(d_pc: f32, d_pa: f32, d_ac: f32) -> f32 {
    let length = 2.0 * sqrt(d_pc) * sqrt(d_pa);
    if length == 0.0 { 1.0 } else { (d_pc + d_pa - d_ac) / length }
}

/// Whether `rule` keeps candidate c beside the accepted neighbour a.
///
/// A neighbour that coincides with p has no direction and is as far from c as p is. By NSG's and
/// NSSG's rules it would occlude every other candidate, and duplicates would be linked to each
/// other alone. Here such a neighbour occludes only its own duplicates.
#[inline(always)]
pub fn survives<R: Rule + ?Sized>(rule: &R, d_pc: f32, d_pa: f32, d_ac: f32, t: f32) -> bool {
    if d_pa == 0.0 { d_ac > 0.0 } else { rule.keep(d_pc, d_pa, d_ac, t) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Squared distances (p, c), (p, a), (a, c) with p at the origin of a plane.
    fn squares(c: [f32; 2], a: [f32; 2]) -> (f32, f32, f32) {
        let square = |x: f32, y: f32| x * x + y * y;
        (square(c[0], c[1]), square(a[0], a[1]), square(c[0] - a[0], c[1] - a[1]))
    }

    fn keeps(rule: &dyn Rule, c: [f32; 2], a: [f32; 2], threshold: f32) -> bool {
        let (d_pc, d_pa, d_ac) = squares(c, a);
        survives(rule, d_pc, d_pa, d_ac, rule.prepare(threshold))
    }

    #[test]
    fn distance_rule_cuts_the_longest_edge_of_a_triangle() {
        assert!(!keeps(&Distance, [2.0, 0.0], [1.0, 0.0], 1.0));
        assert!(keeps(&Distance, [-2.0, 0.0], [1.0, 0.0], 1.0));
        // |pc|^2 = 4 and |ac|^2 = 3.69: between alpha = 1 and alpha = 1.2.
        let (c, a) = ([2.0, 0.0], [0.5, 1.2]);
        assert!(!keeps(&Distance, c, a, 1.0));
        assert!(keeps(&Distance, c, a, 1.2));
    }

    #[test]
    fn angle_rule_compares_with_the_threshold() {
        let at = |degrees: f32| [degrees.to_radians().cos() * 3.0, degrees.to_radians().sin() * 3.0];
        for (angle, kept) in [(0.0, false), (59.0, false), (61.0, true), (90.0, true), (180.0, true)] {
            assert_eq!(keeps(&Angle, at(angle), [1.0, 0.0], 60.0), kept, "{angle}");
        }
        assert!(!keeps(&Angle, at(100.0), [1.0, 0.0], 120.0));
        assert!(keeps(&Angle, at(121.0), [1.0, 0.0], 120.0));
    }

    #[test]
    fn a_duplicate_of_the_node_occludes_only_its_own_duplicates() {
        for rule in [&Distance as &dyn Rule, &Angle] {
            assert!(keeps(rule, [1.0, 0.0], [0.0, 0.0], 1.0));
            assert!(!keeps(rule, [0.0, 0.0], [0.0, 0.0], 1.0));
        }
    }

    #[test]
    fn spread_adds_cosines() {
        let (d_pc, d_pa, d_ac) = squares([0.0, 2.0], [3.0, 0.0]);
        assert!(Spread.score(d_pc, d_pa, d_ac, 0.0).abs() < 1e-6);
        let (d_pc, d_pa, d_ac) = squares([-2.0, 0.0], [3.0, 0.0]);
        assert!((Spread.score(d_pc, d_pa, d_ac, 0.0) + 1.0).abs() < 1e-6);
    }

    #[test]
    fn tau_rule_needs_a_clear_shortcut() {
        assert!(!keeps(&TauMonotonic, [2.0, 0.0], [1.0, 0.0], 0.1));
        assert!(keeps(&TauMonotonic, [2.0, 0.0], [1.0, 0.0], 0.4));
    }

    #[test]
    fn convergent_rule_scales_and_shifts() {
        // |pc| = 2 and |ac| = 1: dropped iff 2 > alpha + (alpha + 1) tau.
        for (alpha, tau, kept) in [(1.5, 0.0, false), (2.1, 0.0, true), (1.5, 0.19, false), (1.5, 0.21, true)]
        {
            assert_eq!(keeps(&AlphaConvergent { alpha }, [2.0, 0.0], [1.0, 0.0], tau), kept, "{alpha} {tau}");
        }
    }
}
