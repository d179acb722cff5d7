//! Scores on bounds of distances.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use super::{Bounds, GRAM_THREADS, Lines};
use crate::key::{self, Key, NONE};
use crate::prune::rule::Rule;

/// Bytes of the terms of all pairs of `lines` candidates, their scores, and the accepted ones.
pub(super) const fn bytes(lines: u32) -> u32 {
    8 * lines * lines + 12 * lines
}

/// Accepts candidates into `out`, [`NONE`] after the last. The whole block calls this after a
/// barrier.
#[inline(always)]
pub(super) fn select<R: Rule>(lines: &Lines, rule: &R, out: GlobalMut<Key>) {
    let all = (lines.count * lines.count) as usize;
    let low: Shared<f32> = lines.extra();
    let sums = low.offset(2 * all);
    let accepted: Shared<u32> = sums.offset(2 * lines.count as usize).cast();
    let scores = Scores { lines, rule, low, high: low.offset(all), sums, accepted };
    scores.write();
    thread::sync_threads();
    if thread::thread_idx_x() < 32 {
        let mut i = scores.accept(out) + warp::lane_id();
        while i < lines.p.most {
            out.set(i as usize, NONE);
            i += 32;
        }
    }
}

/// Bounds of terms and scores.
struct Scores<'a, R> {
    lines: &'a Lines<'a>,
    rule: &'a R,
    /// Bounds of the term of each accepted candidate, for each other.
    low: Shared<f32>,
    high: Shared<f32>,
    /// Bounds of each candidate's score, lower ones first. An accepted candidate has NaN.
    sums: Shared<f32>,
    /// The accepted candidates, in order.
    accepted: Shared<u32>,
}

impl<R: Rule> Scores<'_, R> {
    /// The term of the accepted candidate `a` for `c`, at this distance of both.
    #[inline(always)]
    fn term(&self, a: u32, c: u32, d_ac: f32) -> f32 {
        let (d_pc, d_pa) = (self.lines.distance(c), self.lines.distance(a));
        self.rule.score(d_pc, d_pa, d_ac, self.lines.p.threshold)
    }

    /// Writes the bounds of all terms, and scores of zero. The whole block calls this.
    #[inline(always)]
    fn write(&self) {
        let count = self.lines.count;
        let mut i = thread::thread_idx_x();
        while i < 2 * count {
            self.sums.set(i as usize, 0.0);
            i += GRAM_THREADS;
        }
        let mut a = thread::warp_idx();
        while a < count {
            keep_rolled();
            let mut c = warp::lane_id();
            while c < count {
                keep_rolled();
                let Bounds { low, high } = self.lines.bounds(a.min(c), a.max(c));
                let (x, y) = (self.term(a, c, low), self.term(a, c, high));
                self.low.set((a * count + c) as usize, x.min(y));
                self.high.set((a * count + c) as usize, x.max(y));
                c += 32;
            }
            a += GRAM_THREADS / 32;
        }
    }

    /// Bounds of the score of candidate `c`; NaN if it is accepted.
    #[inline(always)]
    fn score(&self, c: u32) -> Bounds {
        let high = self.sums.get((self.lines.count + c) as usize);
        Bounds { low: self.sums.get(c as usize), high }
    }

    #[inline(always)]
    fn set_score(&self, c: u32, Bounds { low, high }: Bounds) {
        self.sums.set(c as usize, low);
        self.sums.set((self.lines.count + c) as usize, high);
    }

    /// Accepts candidates by their scores; returns their number. One warp calls this.
    #[inline(always)]
    fn accept(&self, out: GlobalMut<Key>) -> u32 {
        let (lane, most) = (warp::lane_id(), self.lines.p.most.min(self.lines.count));
        // All scores are 0, and the nearest candidate is first.
        let (mut next, mut accepted) = (0, 0);
        while accepted < most {
            keep_rolled();
            if accepted > 0 {
                next = self.next(self.add(next), accepted);
            }
            // All lanes have read the scores.
            warp::sync();
            if lane == 0 {
                out.set(accepted as usize, self.lines.keys.get(next as usize));
                self.accepted.set(accepted as usize, next);
                self.set_score(next, Bounds { low: f32::NAN, high: f32::NAN });
            }
            warp::sync();
            accepted += 1;
        }
        accepted
    }

    /// Adds the terms of `a` to all scores. Returns the least upper bound of a score, with its
    /// candidate. The whole warp calls this.
    #[inline(always)]
    fn add(&self, a: u32) -> Key {
        let (mut least, mut c) = (NONE, warp::lane_id());
        while c < self.lines.count {
            keep_rolled();
            let (Bounds { low, high }, at) = (self.score(c), (a * self.lines.count + c) as usize);
            let score = Bounds { low: low + self.low.get(at), high: high + self.high.get(at) };
            self.set_score(c, score);
            if score.high >= score.low {
                least = least.min(key::pack(score.high, c));
            }
            c += 32;
        }
        warp::sync();
        let mut lanes = 1;
        while lanes < 32 {
            least = least.min(warp::shuffle_xor(least, lanes));
            lanes *= 2;
        }
        least
    }

    /// The candidate of the least score, where `least` is the least upper bound: computes the exact
    /// scores of all whose lower bound is not above it, if there are several. The whole warp calls
    /// this.
    #[inline(always)]
    fn next(&self, least: Key, accepted: u32) -> u32 {
        let lane = warp::lane_id();
        let may_be = |c: u32| {
            c < self.lines.count && {
                let Bounds { low, high } = self.score(c);
                high >= low && key::pack(low, c) <= least
            }
        };
        let (near, far) = (warp::ballot(may_be(lane)), warp::ballot(may_be(lane + 32)));
        let mut asked = u64::from(far) << 32 | u64::from(near);
        if asked & asked.wrapping_sub(1) == 0 {
            return key::id(least);
        }
        let mut nearest = NONE;
        while asked != 0 {
            keep_rolled();
            let c = asked.trailing_zeros();
            nearest = nearest.min(key::pack(self.exact_score(c, accepted), c));
            asked &= asked - 1;
        }
        key::id(nearest)
    }

    /// Replaces the bounds of candidate `c` by its exact score. The whole warp calls this.
    #[inline(always)]
    fn exact_score(&self, c: u32, accepted: u32) -> f32 {
        let (lane, lines) = (warp::lane_id(), self.lines);
        let point = lines.point(c);
        let (mut sum, mut first) = (0.0, 0);
        while first < accepted {
            keep_rolled();
            let count = (accepted - first).min(32);
            let a = self.accepted.get((first + lane.min(count - 1)) as usize);
            let d_ac = lines.p.rows.distances(&point, lines.id(a), count);
            let term = self.term(a, c, d_ac);
            // In the order of acceptance.
            let mut i = 0;
            while i < count {
                keep_rolled();
                sum += warp::broadcast(term, i);
                i += 1;
            }
            first += 32;
        }
        if lane == 0 {
            self.set_score(c, Bounds { low: sum, high: sum });
        }
        warp::sync();
        sum
    }
}
