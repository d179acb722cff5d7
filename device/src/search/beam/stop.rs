//! When a search stops before all nodes of its beam are expanded.
//!
//! A beam alone treats all queries alike. A bound on the distance adapts: a query in a dense part
//! of the data has many nodes within the bound, and its search expands more of them (Al-Jazzazi et
//! al., *Distance Adaptive Beam Search for Provably Accurate Graph-Based Nearest Neighbor Search*,
//! 2025).

use crate::key::{self, Key, NONE};

/// A search stops once its nearest unexpanded node is farther than `factor` times the distance at
/// rank `rank` of the beam, plus `slack` times the query's norm.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Stop {
    /// The rank, from 0 on, in the beam.
    pub rank: u32,
    /// Multiple of the distance.
    pub factor: f32,
    /// Distance to add, for a query of norm 1: under inner product alone.
    pub slack: f32,
}

impl Stop {
    /// The search expands all nodes of its beam.
    pub const NEVER: Self = Self { rank: 0, factor: 0.0, slack: f32::INFINITY };

    /// Whether the bound depends on the query's norm.
    #[inline(always)]
    pub fn takes_norm(self) -> bool {
        self.slack > 0.0 && self.slack < f32::INFINITY
    }

    /// This stop for a query of norm `norm`, as [`last`](Self::last) takes it.
    #[inline(always)]
    pub fn of_query(self, norm: f32) -> Self {
        Self { slack: self.slack * norm, ..self }
    }

    /// The largest key of a node that is still expanded. `ordered` is the high word of the key at
    /// the rank, that of [`NONE`] if the beam is shorter.
    #[inline(always)]
    pub fn last(self, ordered: u32) -> Key {
        let bound = self.factor * key::from_ordered(ordered) + self.slack;
        // The distance of an empty slot is not a number, so there is no bound.
        if bound.is_nan() { NONE } else { key::pack(bound, u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(stop: Stop, distance: f32) -> Key {
        stop.last(key::ordered(distance))
    }

    #[test]
    fn nodes_beyond_the_bound_are_not_expanded() {
        let stop = Stop { rank: 9, factor: 1.5, slack: 0.0 };
        assert!(key::pack(3.0, 7) <= last(stop, 2.0));
        assert!(key::pack(3.000_001, 0) > last(stop, 2.0));
        // Equal nodes at distance 0 are all expanded, others are not.
        assert!(key::pack(0.0, u32::MAX - 1) <= last(stop, 0.0));
        assert!(key::pack(f32::MIN_POSITIVE, 0) > last(stop, 0.0));
        let product = Stop { rank: 9, factor: 1.0, slack: 0.25 }.of_query(2.0);
        assert!(key::pack(-1.5, 7) <= last(product, -2.0));
        assert!(key::pack(-1.499_999, 0) > last(product, -2.0));
    }

    #[test]
    fn short_beams_and_searches_that_never_stop_have_no_bound() {
        let empty = (NONE >> 32) as u32;
        assert_eq!(Stop { rank: 9, factor: 1.5, slack: 0.0 }.last(empty), NONE);
        for distance in [-1e30, -1.0, 0.0, 1.0, f32::MAX] {
            assert!(key::pack(f32::MAX, u32::MAX - 1) <= last(Stop::NEVER, distance), "{distance}");
        }
    }
}
