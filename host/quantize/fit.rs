//! The mean and the scale of codes, and what searches on the codes find.
//!
//! ```text
//! sample = random rows; under inner product also those of the largest norms
//! center = the median of each component
//! for shares of the rows, all of them first:
//!     fit mean and scale to that share of the sample, the rows nearest to the center
//!     recall = the nearest rows of sampled rows that are among the nearest by codes
//!     stop at a good recall
//! keep the fit of the best recall
//! ```
//!
//! Without outliers the first fit is good. A sentinel (-9999) in one component is in all
//! components after the rotation, and a scale that holds it leaves the other rows a few levels.
//! Rows of large norms are the answers under inner product, so one fit there cuts none of them.

use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};
use tagore_device::vectors::code::Code;

use super::scalar::{Compression, ScalarQuantizer, Use};
use crate::loops::{for_each, map, numbered};
use crate::vectors::norms::squares;
use crate::vectors::queries::Queries;
use crate::vectors::rotation::Rotation;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Element, Vectors, with_matrix};
use crate::{Metric, Progress, Result};

/// Rows of the sample.
const SAMPLED: usize = 4096;

/// Rows of the sample that means and scales are fitted to.
const FITTED: usize = 1024;

/// Rows of the sample that are searched for.
const SEARCHED: usize = 256;

/// Neighbours that the recall is for, and the nearest by codes among which they count as found:
/// fewer than a search reranks unless set.
const K: (usize, usize) = (10, 32);

/// Neighbours that rests of codes order.
const SETTLED: usize = 128;

/// Rows of the largest norms in a sample.
const LARGEST: usize = 1024;

/// Rows of the largest norms that one fit holds.
const HELD_WHOLE: usize = 64;

/// Shares of the rows that are tried.
const SHARES: [f64; 6] = [1.0, 0.995, 0.98, 0.9, 0.75, 0.5];

/// No other share is tried at this recall.
const GOOD_RECALL: f64 = 0.99;

/// A smaller share of the rows has to gain so much recall.
const GAIN: f64 = 0.005;

/// Worth of a search that has to walk on the vectors, as recall of one on codes.
const ON_VECTORS: f64 = 0.95;

/// Below this recall, codes may lose more than 0.01 of the rows that searches on the vectors find.
pub(super) const MIN_RECALL: f64 = 0.98;

/// The share of the components, in order of magnitude, that codes hold without being cut.
const HELD: f64 = 0.9999;

/// As [`HELD`], for codes in bytes that have rests: [`least_noise`] chooses one. Where some rows
/// have neighbours far nearer than others have, smaller levels keep the order of near neighbours,
/// and rests tell how far cut components reach (benches/results/codes.md).
const HELD_IF_SETTLED: [f64; 6] = [HELD, 0.999, 0.998, 0.995, 0.99, 0.98];

/// One fitted row in this many is compared with all others for [`least_noise`].
const COMPARED: usize = 4;

/// Times the rows' spread beyond which f32 rotates the center of the rows too roughly.
const FAR: f64 = 1024.0;

/// One component in this many may be cut in the code of a row that codes hold.
const CUT: usize = 16;

/// A quantizer and what its codes find.
pub(super) struct Fitted {
    pub quantizer: ScalarQuantizer,
    /// The recall, with a cost of rows that codes do not hold.
    score: f64,
}

/// The quantizer of the best recall for codes of `base`, compared by `metric`.
///
/// # Errors
/// If the vectors lie on a device that fails.
pub(super) fn best(of: Use, base: &Vectors, metric: Metric, compression: Compression) -> Result<Fitted> {
    let sample = Sample::draw(base, metric)?;
    let centered = sample.centered(of, compression)?;
    let whole = (metric == Metric::InnerProduct).then_some((1.0, 1.0));
    let others = whole.into_iter().chain(SHARES[1..].iter().map(|&share| (share, HELD)));
    let mut best = sample.measured(of, centered.fitted(&sample, SHARES[0], HELD))?;
    for (share, held) in others {
        if best.score >= GOOD_RECALL {
            break;
        }
        let fitted = sample.measured(of, centered.fitted(&sample, share, held))?;
        if fitted.score > best.score + GAIN {
            best = fitted;
        }
    }
    Ok(best)
}

/// Some rows of a base.
struct Sample {
    space: Space<'static>,
    /// The first rows, which are random.
    random: usize,
    metric: Metric,
    /// Rows of the base that each row stands for.
    weights: Vec<f64>,
    searched: Vec<Searched>,
}

/// A row that is searched for.
struct Searched {
    row: u32,
    /// Neighbours wanted.
    wanted: usize,
    /// The distance of the last of these.
    last: f32,
}

impl Sample {
    fn rows(&self) -> &Vectors {
        self.space.vectors()
    }

    fn draw(base: &Vectors, metric: Metric) -> Result<Self> {
        let (n, count) = (base.len(), base.len().min(SAMPLED));
        let id = |i| drawn(Draws::new(0, Stage::Verify, 1, i as u64), i as u32, count as u32, n as u32);
        let (mut ids, mut largest): (Vec<u32>, Vec<u32>) = ((0..count).map(id).collect(), Vec::new());
        if metric == Metric::InnerProduct && count < n {
            let mut norms: Vec<(f64, u32)> = squares(base)?.into_iter().zip(0..).collect();
            let last = LARGEST.min(n - 1);
            norms.select_nth_unstable_by(last, |a, b| b.0.total_cmp(&a.0));
            largest = norms[..last].iter().map(|&(_, id)| id).collect();
            largest.sort_unstable();
            // Random ids ascend.
            let others = largest.iter().copied().filter(|id| ids.binary_search(id).is_err());
            ids.extend(others.collect::<Vec<_>>());
        }
        let weight = |id| if largest.binary_search(id).is_ok() { 1.0 } else { n as f64 / count as f64 };
        let weights = ids.iter().map(weight).collect::<Vec<_>>();
        let space = Space::owned(base.select(&ids)?, metric, &Progress::silent())?;
        let search = |row: usize| {
            let row = row as u32;
            let nearest = nearest(&distances(&space, space.query(row)), row, &weights, K.0, 1);
            let last = nearest.last().map_or(f32::NEG_INFINITY, |last| last.1);
            Searched { row, wanted: nearest.len(), last }
        };
        let searched: Vec<usize> = spread(count, SEARCHED).collect();
        let searched = map(&searched[..], |&row| search(row));
        Ok(Self { space, random: count, metric, weights, searched })
    }

    /// The rows that codes are fitted to, in order of their distance from the center and rotated.
    fn centered(&self, of: Use, compression: Compression) -> Result<Centered> {
        let dim = self.rows().dim();
        let row = |row: usize| self.rows().host_row(row).into_owned();
        let mut rows: Vec<Vec<f32>> = spread(self.random, FITTED).map(row).collect();
        let mut norms: Vec<(f64, usize)> = squares(self.rows())?.into_iter().zip(0..).collect();
        norms.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut largest: Vec<Vec<f32>> = norms.iter().take(HELD_WHOLE).map(|&(_, at)| row(at)).collect();
        let median = |component: usize| {
            let mut values: Vec<f32> = rows.iter().map(|row| row[component]).collect();
            let half = values.len() / 2;
            values.get(half).is_some().then(|| *values.select_nth_unstable_by(half, f32::total_cmp).1)
        };
        let center = map(0..dim, |i| median(i).unwrap_or(0.0));
        let square = |row: &[f32], center: &[f32]| {
            row.iter().zip(center).map(|(x, c)| (f64::from(*x) - f64::from(*c)).powi(2)).sum::<f64>()
        };
        let mut order: Vec<(f64, usize)> = rows.iter().map(|row| square(row, &center)).zip(0..).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let spread = order.get(order.len() / 2).map_or(0.0, |middle| middle.0);
        let is_rotated = compression == Compression::Int8;
        let is_far = square(&center, &vec![0.0; dim]) > FAR * FAR * spread;
        // A build compares rows with rows: without the offset, their products have another order.
        let is_moved = of == Use::Search || self.metric != Metric::InnerProduct;
        let offset = if is_rotated && is_moved && is_far { center } else { Vec::new() };
        let rotation = is_rotated.then(|| Rotation::new(dim));
        let prepare = |row: &mut Vec<f32>| {
            row.iter_mut().zip(&offset).for_each(|(x, offset)| *x -= offset);
            let mut single: Vec<[f32; 1]> = row.iter().map(|&x| [x]).collect();
            rotation.iter().for_each(|rotation| rotation.apply(&mut single));
            row.iter_mut().zip(single).for_each(|(x, [rotated])| *x = rotated);
        };
        for_each(&mut rows[..], prepare);
        for_each(&mut largest[..], prepare);
        let rows = order.into_iter().map(|(_, number)| std::mem::take(&mut rows[number])).collect();
        Ok(Centered { of, compression, offset, is_moved, rows, largest })
    }

    /// A quantizer with the recall of its codes, and the largest code of a row that it holds.
    fn measured(&self, of: Use, mut quantizer: ScalarQuantizer) -> Result<Fitted> {
        let silent = Progress::silent();
        let codes = quantizer.base(self.rows(), None, &silent)?;
        let compression = quantizer.compression();
        let is_cut =
            |row| with_matrix!(codes.rows(), rows => is_cut(rows.components(row), rows.dim, compression));
        let is_cut = map(0..codes.len(), is_cut);
        let squares = squares(&codes)?;
        let held = squares.iter().zip(&is_cut).filter(|pair| !pair.1).map(|pair| *pair.0);
        let least = match quantizer.compression() {
            Compression::F16 => F16_END * F16_END - 1.0,
            // Half of the range, where a twentieth of normal components is cut.
            Compression::Int8 => codes.dim() as f64 * f64::from(i8::LARGEST).powi(2) / 4.0,
        };
        let of_queries = of == Use::Search && self.metric == Metric::InnerProduct;
        quantizer.largest = if of_queries { f64::INFINITY } else { held.fold(least, f64::max) };

        let ids: Vec<u32> = self.searched.iter().map(|searched| searched.row).collect();
        let queries = of_queries.then(|| quantizer.queries(&self.rows().select(&ids)?, None, &silent));
        let queries = queries.transpose()?.map(Queries::owned);
        let space = Space::owned(codes, self.metric, &silent)?;
        let reranked = if of == Use::Settled { SETTLED } else { K.1 };
        let hits = |(number, searched): (usize, &Searched)| {
            let &Searched { row, wanted, last } = searched;
            let query = queries.as_ref().map_or_else(|| space.query(row), |queries| queries.query(number));
            let found = nearest(&distances(&space, query), row, &self.weights, reranked, wanted + 2);
            let (ids, mut exact): (Vec<u32>, _) =
                (found.iter().map(|found| found.0 as u32).collect(), Vec::new());
            self.space.list_distances(self.space.query(row), &ids, &mut exact);
            let hits = exact.iter().filter(|&&exact| exact <= last).count().min(wanted);
            (quantizer.holds(squares[row as usize]), hits)
        };
        let hits = map(numbered(&self.searched[..]), hits);
        let (mut all, mut found, mut held, mut not_held) = (0, 0, 0, 0);
        for (&(is_held, hits), searched) in hits.iter().zip(&self.searched) {
            (all, found) = (all + searched.wanted, found + hits);
            if is_held { held += hits } else { not_held += searched.wanted }
        }
        let share = |part: usize| part as f64 / all.max(1) as f64;
        let (recall, score) = match of {
            // Less than two rows.
            _ if all == 0 => (1.0, 1.0),
            Use::Search => (share(held + not_held), share(held) + ON_VECTORS * share(not_held)),
            Use::Build | Use::Settled => (share(found), share(found)),
        };
        quantizer.recall = recall;
        Ok(Fitted { quantizer, score })
    }
}

/// Rows of a sample that codes are fitted to.
struct Centered {
    of: Use,
    compression: Compression,
    offset: Vec<f32>,
    /// Whether codes are of rows less their mean.
    is_moved: bool,
    rows: Vec<Vec<f32>>,
    /// Rows of the largest norms.
    largest: Vec<Vec<f32>>,
}

impl Centered {
    /// The quantizer for a share of the rows, those nearest to the center, that holds a share of
    /// their components.
    fn fitted(&self, sample: &Sample, share: f64, held: f64) -> ScalarQuantizer {
        let &Self { of, compression, is_moved, .. } = self;
        let (dim, metric) = (sample.rows().dim(), sample.metric);
        let rows = &self.rows[..(self.rows.len() as f64 * share).ceil() as usize];
        let mut sums = vec![0f64; dim];
        for row in rows {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let count = if is_moved { rows.len().max(1) as f64 } else { f64::INFINITY };
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        let largest = if held < 1.0 { &[] } else { &self.largest[..] };
        let pairs = rows.iter().chain(largest).flat_map(|row| row.iter().zip(&mean));
        let mut deviations: Vec<f32> = pairs.map(|(x, mean)| (x - mean).abs()).collect();
        let mut holding = |share: f64| match (deviations.len() as f64 * share) as usize {
            _ if deviations.is_empty() => 0.0,
            held => {
                let held = held.min(deviations.len() - 1);
                *deviations.select_nth_unstable_by(held, f32::total_cmp).1
            }
        };
        // Cut components would hide the largest products.
        let has_residuals = of == Use::Settled && compression == Compression::Int8;
        let range = if has_residuals && metric != Metric::InnerProduct {
            least_noise(rows, &mean, &HELD_IF_SETTLED.map(holding))
        } else {
            holding(held)
        };
        ScalarQuantizer {
            compression,
            metric,
            rotation: (compression == Compression::Int8).then(|| Rotation::new(dim)),
            offset: self.offset.clone(),
            mean,
            none: vec![0.0; dim],
            // Equal rows have equal codes at any scale.
            range: if range > 0.0 { range } else { 1.0 },
            largest: f64::INFINITY,
            recall: 1.0,
            share,
        }
    }
}

/// The largest code in f16.
const F16_END: f64 = 65504.0;

/// Whether codes do not hold a row with this code: a component in f16 is cut, or several in bytes,
/// where the rotation has spread what a row holds over all of them.
fn is_cut(mut code: impl Iterator<Item = f32>, dim: usize, compression: Compression) -> bool {
    match compression {
        Compression::F16 => code.any(|x| f64::from(x.abs()) >= F16_END),
        Compression::Int8 => code.filter(|x| x.abs() >= i8::LARGEST).count() * CUT > dim,
    }
}

/// At most `count` of `rows` rows, evenly spread.
fn spread(rows: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(rows);
    (0..count).map(move |i| i * rows / count)
}

/// The distances of a query to all rows of a space.
fn distances(space: &Space<'_>, query: Query<'_>) -> Vec<f32> {
    let (all, mut distances) = ((0..space.len() as u32).collect::<Vec<_>>(), Vec::new());
    space.list_distances(query, &all, &mut distances);
    distances
}

/// The nearest rows by `distances`, nearest first, without `row`. Their weights add up to `rank`
/// rows of the base, and there are at least `least`.
fn nearest(distances: &[f32], row: u32, weights: &[f64], rank: usize, least: usize) -> Vec<(usize, f32)> {
    let others = distances.iter().copied().enumerate().filter(|pair| pair.0 != row as usize);
    let mut others: Vec<(usize, f32)> = others.collect();
    let order = |a: &(usize, f32), b: &(usize, f32)| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0));
    let most = rank.max(least);
    if others.len() > most {
        others.select_nth_unstable_by(most, order);
        others.truncate(most);
    }
    others.sort_unstable_by(order);
    let ends = others.iter().scan(0.0, |sum, &(row, _)| {
        let before = *sum;
        *sum += weights[row];
        Some(before)
    });
    let count = ends.take_while(|&before| before < rank as f64).count();
    others.truncate(count.max(least));
    others
}

/// The one of `ranges` with the least noise of codes in bytes of `rows`: over a part of the rows,
/// the mean share of rounding and cutting in the squared distance of the nearest other row.
fn least_noise(rows: &[Vec<f32>], mean: &[f32], ranges: &[f32]) -> f32 {
    let compared: Vec<usize> = (0..rows.len()).step_by(COMPARED).collect();
    let noises = map(&compared[..], |&number| {
        let others = rows.iter().enumerate().filter(|&(other, _)| other != number);
        let nearest = others.map(|(_, other)| f32::squared_l2(&rows[number], other)).fold(f32::MAX, f32::min);
        let noise = |&range: &f32| {
            let level = range / i8::LARGEST;
            let cut = |(x, mean): (&f32, &f32)| f64::from(((x - mean).abs() - range).max(0.0)).powi(2);
            let cut: f64 = rows[number].iter().zip(mean).map(cut).sum();
            let noise = cut + mean.len() as f64 * f64::from(level * level) / 12.0;
            noise / (noise + f64::from(nearest)).max(f64::MIN_POSITIVE)
        };
        ranges.iter().map(noise).collect::<Vec<f64>>()
    });
    let sum = |place: usize| noises.iter().map(|noises| noises[place]).sum::<f64>();
    let sums: Vec<f64> = (0..ranges.len()).map(sum).collect();
    let least = (0..ranges.len()).min_by(|&a, &b| sums[a].total_cmp(&sums[b]));
    least.map_or(0.0, |place| ranges[place])
}
