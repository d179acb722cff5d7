//! Rows of the base, and the distances between them that rules compare.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{Metric, Point};

/// Rows of the base.
#[repr(C)]
pub struct Rows<T> {
    /// In: vectors of `dim` components, `stride` components apart, which begin at multiples of 16 bytes and have
    /// zeros behind them up to the next.
    pub values: Global<T>,
    /// In: with `lifted`, a number per row. Inner products: the coordinate, not negative, that makes all norms
    /// equal. Cosine: -1 for a zero vector, else 0.
    pub lifts: Global<f32>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Whether there are `lifts`.
    pub lifted: u32,
    /// Nothing.
    pub padding: u32,
}

copied! {
    Rows<T>;
}

/// What rules compare: squared L2 distances, of rows with their lifts; a row whose lift is negative is at distance
/// 2 from all.
#[derive(Clone, Copy)]
pub struct RulePoint<T: Element> {
    point: Point<T>,
    lift: f32,
}

/// What lists and results compare: distances by a metric. A zero vector, whose lift is negative, is at cosine distance
/// 1 from all.
#[derive(Clone, Copy)]
pub struct ListPoint<T: Element> {
    point: Point<T>,
    metric: Metric,
    zero: bool,
}

impl<T: Element> Rows<T> {
    /// Row `id`.
    #[inline(always)]
    pub fn row(&self, id: u32) -> Global<T> {
        self.values.offset(id as usize * self.stride as usize)
    }

    /// Puts row `id` in shared memory, as [`Point::load`] does.
    #[inline(always)]
    pub fn load(&self, values: Shared<T::Point>, id: u32, threads: (u32, u32)) {
        Point::load(values, self.row(id), self.dim, threads);
    }

    /// Row `id`, which was loaded to `values`, as a point.
    #[inline(always)]
    pub fn point(&self, values: Shared<T::Point>, id: u32) -> RulePoint<T> {
        RulePoint { point: Point::new(values, self.dim), lift: self.lift(id) }
    }

    /// The distance from `point` to row `id` for each group of lanes, as [`Point::distance`] gives it: the bits
    /// of the CPU backend. A group that has no row passes None; the whole warp calls this.
    #[inline(always)]
    pub fn distance(&self, point: &RulePoint<T>, id: Option<u32>) -> f32 {
        let sum = self.sum(point, id);
        id.map_or(sum, |id| self.lifted(point, id, sum))
    }

    /// The distances from `point` to the rows `id` of the first `count` lanes, at least 1, each in its lane: eight at
    /// a time, by groups as above. The whole warp calls this, with the same count.
    #[inline(always)]
    pub fn distances(&self, point: &RulePoint<T>, id: u32, count: u32) -> f32 {
        const GROUPS: u32 = 32 / GROUP;
        let lane = warp::lane_id();
        let (mut own, mut first) = (0.0, 0);
        while first < count {
            keep_rolled();
            let of = first + lane / GROUP;
            // A group for which no row is left takes the first again.
            let row = warp::broadcast(id, if of < count { of } else { 0 });
            let sum = self.sum(point, Some(row));
            let sum = warp::broadcast(sum, lane % GROUPS * GROUP);
            own = if lane / GROUPS == first / GROUPS { sum } else { own };
            first += GROUPS;
        }
        if lane < count { self.lifted(point, id, own) } else { own }
    }

    /// The distance without lifts.
    #[inline(always)]
    fn sum(&self, point: &RulePoint<T>, id: Option<u32>) -> f32 {
        point.point.distance(Metric::L2, id.map(|id| self.row(id)))
    }

    /// The distance to row `id`, which is `sum` without lifts.
    #[inline(always)]
    fn lifted(&self, point: &RulePoint<T>, id: u32, sum: f32) -> f32 {
        if self.lifted == 0 {
            return sum;
        }
        let lift = self.lift(id);
        let difference = lift - point.lift;
        if lift < 0.0 || point.lift < 0.0 { 2.0 } else { sum + difference * difference }
    }

    /// As [`point`](Self::point), for list distances by `metric`.
    #[inline(always)]
    pub fn list_point(&self, values: Shared<T::Point>, id: u32, metric: Metric) -> ListPoint<T> {
        let zero = metric == Metric::Cosine && self.lift(id) < 0.0;
        ListPoint { point: Point::new(values, self.dim), metric, zero }
    }

    /// The list distances from `point` to `N` rows that each group of lanes has, as [`Point::distances`] gives them:
    /// the bits of the CPU backend. The whole warp calls this.
    #[inline(always)]
    pub fn list_distances<const N: usize>(&self, point: &ListPoint<T>, ids: [u32; N]) -> [f32; N] {
        let mut distances = point.point.distances(point.metric, ids.map(|id| self.row(id)));
        if point.metric == Metric::Cosine {
            for n in 0..N {
                if point.zero || self.lift(ids[n]) < 0.0 {
                    distances[n] = 1.0;
                }
            }
        }
        distances
    }

    #[inline(always)]
    fn lift(&self, id: u32) -> f32 {
        if self.lifted != 0 { self.lifts.get(id as usize) } else { 0.0 }
    }
}
