//! Rows of the base, and their distances in pruning and search.
//!
//! | distance | used by | definition |
//! | --- | --- | --- |
//! | rule | pruning rules | squared L2, of rows with their lifts |
//! | order | keys of candidates and edges | rule distance; under inner product, list distance |
//! | list | lists and results | the metric's |

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{ExactQuery, Metric};
use crate::block::threads::Threads;
use crate::key::{self, Key};

/// Rows of the base.
#[repr(C)]
pub struct Rows<T> {
    /// In: vectors of `dim` components, `stride` components apart. Each begins at a multiple of 16
    /// bytes, with zeros after it up to the next multiple.
    pub values: Global<T>,
    /// In: with `lifted`, one number per row. Inner product: the coordinate, at least 0, that makes
    /// all norms equal. Cosine: -1 for a zero vector, else 0.
    pub lifts: Global<f32>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Whether there are `lifts`.
    pub lifted: u32,
    /// Inner product: the squared norm of all lifted rows. Other metrics: -1.
    pub square: f32,
}

copied! {
    Rows<T>;
}

/// Squared distances of lifted rows below this part of their squared norm are rounding errors, and
/// count as 0.
const ROUNDING: f32 = 4e-6;

/// The squared L2 distance of two rows with lifts `a` and `b`. `order` is minus their inner product
/// without lifts, `square` the squared norm of all lifted rows.
#[inline(always)]
pub fn lifted_distance(square: f32, a: f32, b: f32, order: f32) -> f32 {
    let squared = 2.0 * (square + order - a * b);
    if squared < ROUNDING * square { 0.0 } else { squared }
}

/// A row in shared memory for rule distances. A row with a negative lift is at distance 2 from all
/// rows.
#[derive(Clone, Copy)]
pub struct RulePoint<T: Element> {
    point: ExactQuery<T>,
    lift: f32,
}

/// A row in shared memory for list distances. A zero vector, which has a negative lift, is at
/// cosine distance 1 from all rows.
#[derive(Clone, Copy)]
pub struct ListPoint<T: Element> {
    point: ExactQuery<T>,
    metric: Metric,
    zero: bool,
}

impl<T: Element> Rows<T> {
    /// Row `id`.
    #[inline(always)]
    pub fn row(&self, id: u32) -> Global<T> {
        self.values.offset(id as usize * self.stride as usize)
    }

    /// Copies row `id` to shared memory, as [`ExactQuery::load`] does.
    #[inline(always)]
    pub fn load(&self, values: Shared<T::Query>, id: u32, threads: Threads) {
        ExactQuery::load(values, self.row(id), self.dim, threads);
    }

    /// Row `id`, loaded to `values`, for rule distances.
    #[inline(always)]
    pub fn point(&self, values: Shared<T::Query>, id: u32) -> RulePoint<T> {
        RulePoint { point: ExactQuery::new(values, self.dim), lift: self.lift(id) }
    }

    /// The rule distance from `point` to row `id`, one row per group of lanes: the bits of the CPU
    /// backend. A group without a row passes None. The whole warp calls this.
    #[inline(always)]
    pub fn distance(&self, point: &RulePoint<T>, id: Option<u32>) -> f32 {
        let sum = self.sum(point, id, Metric::L2);
        id.map_or(sum, |id| self.lifted(point, id, sum))
    }

    /// The order distance from `point` to row `id`, called as [`distance`](Self::distance).
    #[inline(always)]
    pub fn order_distance(&self, point: &RulePoint<T>, id: Option<u32>) -> f32 {
        let metric = self.order();
        let sum = self.sum(point, id, metric);
        match (metric, id) {
            (Metric::L2, Some(id)) => self.lifted(point, id, sum),
            _ => sum,
        }
    }

    /// The rule distance from a row of this lift to the row of `key`, which holds their order
    /// distance.
    #[inline(always)]
    pub fn rule_distance(&self, lift: f32, key: Key) -> f32 {
        let order = key::distance(key);
        match self.order() {
            Metric::InnerProduct => lifted_distance(self.square, lift, self.lift(key::id(key)), order),
            _ => order,
        }
    }

    /// The metric of order distances without lifts.
    #[inline(always)]
    fn order(&self) -> Metric {
        if self.square < 0.0 { Metric::L2 } else { Metric::InnerProduct }
    }

    /// The rule distances from `point` to the rows `id` of the first `count` lanes, at least 1,
    /// each in its lane. Groups compute eight at a time. The whole warp calls this, with the same
    /// count.
    #[inline(always)]
    pub fn distances(&self, point: &RulePoint<T>, id: u32, count: u32) -> f32 {
        let sum = self.sums(point, id, count, Metric::L2);
        if warp::lane_id() < count { self.lifted(point, id, sum) } else { sum }
    }

    /// As [`distances`](Self::distances), the order distances.
    #[inline(always)]
    pub fn order_distances(&self, point: &RulePoint<T>, id: u32, count: u32) -> f32 {
        let metric = self.order();
        let sum = self.sums(point, id, count, metric);
        if metric == Metric::L2 && warp::lane_id() < count { self.lifted(point, id, sum) } else { sum }
    }

    /// The distances by `metric`, without lifts, called as [`distances`](Self::distances).
    #[inline(always)]
    fn sums(&self, point: &RulePoint<T>, id: u32, count: u32, metric: Metric) -> f32 {
        const GROUPS: u32 = 32 / GROUP;
        let lane = warp::lane_id();
        let (mut own, mut first) = (0.0, 0);
        while first < count {
            keep_rolled();
            let of = first + lane / GROUP;
            // A group beyond the last row repeats the first one.
            let row = warp::broadcast(id, if of < count { of } else { 0 });
            let sum = self.sum(point, Some(row), metric);
            let sum = warp::broadcast(sum, lane % GROUPS * GROUP);
            own = if lane / GROUPS == first / GROUPS { sum } else { own };
            first += GROUPS;
        }
        own
    }

    /// The distance by `metric`, without lifts.
    #[inline(always)]
    fn sum(&self, point: &RulePoint<T>, id: Option<u32>, metric: Metric) -> f32 {
        point.point.distance(metric, id.map(|id| self.row(id)))
    }

    /// Adds the lifts to the distance `sum` of row `id`.
    #[inline(always)]
    fn lifted(&self, point: &RulePoint<T>, id: u32, sum: f32) -> f32 {
        if self.lifted == 0 {
            return sum;
        }
        let lift = self.lift(id);
        let difference = lift - point.lift;
        if lift < 0.0 || point.lift < 0.0 { 2.0 } else { sum + difference * difference }
    }

    /// Row `id`, loaded to `values`, for list distances by `metric`.
    #[inline(always)]
    pub fn list_point(&self, values: Shared<T::Query>, id: u32, metric: Metric) -> ListPoint<T> {
        let zero = metric == Metric::Cosine && self.lift(id) < 0.0;
        ListPoint { point: ExactQuery::new(values, self.dim), metric, zero }
    }

    /// The list distances from `point` to `N` rows per group of lanes: the bits of the CPU backend.
    /// `LOADS` loads of each row are under way at once. The whole warp calls this.
    #[inline(always)]
    pub fn list_distances<const N: usize, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        ids: [u32; N],
    ) -> [f32; N] {
        let mut distances = point.point.distances::<N, LOADS>(point.metric, ids.map(|id| self.row(id)));
        if point.metric == Metric::Cosine {
            for n in 0..N {
                if point.zero || self.lift(ids[n]) < 0.0 {
                    distances[n] = 1.0;
                }
            }
        }
        distances
    }

    /// The lift of row `id`; 0 without lifts.
    #[inline(always)]
    pub fn lift(&self, id: u32) -> f32 {
        if self.lifted != 0 { self.lifts.get(id as usize) } else { 0.0 }
    }
}
