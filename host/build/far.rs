//! Groups of rows that lie far apart, under inner product.
//!
//! A query's products with the rows of a group are those with the rows less the mean of the group,
//! all moved by the same number. So what a search needs inside a group is a graph of the rows less
//! its mean, as for all rows with a common direction (`vectors/metric/mean.rs`). But one mean moves
//! one group: of groups whose means lie much farther apart than their rows, all lists name the few
//! rows that lie farthest along one of the means. So each group is an index of its own.

use tagore_device::random::{Draws, Stage};

use super::octaves::Octaves;
use crate::loops::try_map;
use crate::memory::{collected_in_parallel, filled};
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::mean::drawn_rows;
use crate::vectors::{Metric, TypedRows, Vectors};
use crate::{Progress, Result};

/// Rows of the sample.
const SAMPLE: usize = 2048;

/// Rows of the sample that a group has at least. Fewer are lone rows.
const MIN_SAMPLED: usize = 4;

/// Minimum number of rows of a group.
const MIN_ROWS: usize = 64;

/// Maximum number of groups.
const MAX_GROUPS: usize = 8;

/// Rounds of k-means.
const ROUNDS: usize = 2;

/// Times that lone rows are taken from the sample.
const ATTEMPTS: usize = 8;

/// Rows lie in groups if their squared distances to the means of the groups are together at most
/// this part of those to the mean of all.
const LEFT: f64 = 0.6;

/// At most one row in this many lies between groups.
const ROWS_PER_BETWEEN: usize = 20;

/// A row lies between groups if the mean of another one is less than twice as far as its own: the
/// ratio of squared distances.
const BETWEEN: f32 = 4.0;

/// Rows assigned at a time.
const AT_A_TIME: usize = 1 << 16;

/// Groups of the rows of a base that lie far apart.
pub(crate) struct FarGroups {
    /// The rows of each group, ascending.
    pub rows: Vec<Vec<u32>>,
    /// A row per group.
    pub means: Vectors,
}

/// The groups far apart of the rows of `base`; none if they do not lie so, or for another metric
/// than inner product.
///
/// # Errors
/// If the rows lie on a device that fails, memory is short, or the work is cancelled.
pub(crate) fn far_groups(base: &Vectors, metric: Metric, progress: &Progress) -> Result<Option<FarGroups>> {
    let n = base.len();
    let Some(mut means) = means_of_groups(base, metric)? else { return Ok(None) };
    loop {
        let mut rows = vec![Vec::new(); means.len()];
        for first in (0..n).step_by(AT_A_TIME) {
            progress.check()?;
            let nearest = nearest(&base.part(first..(first + AT_A_TIME).min(n))?, &means)?;
            (first as u32..).zip(nearest).for_each(|(row, near)| rows[near.group as usize].push(row));
        }
        // The rows of a group that is too small go to others.
        let large = |&group: &u32| rows[group as usize].len() >= MIN_ROWS;
        let large: Vec<u32> = (0..means.len() as u32).filter(large).collect();
        if large.len() == rows.len() || large.len() < 2 {
            return Ok((large.len() > 1).then_some(FarGroups { rows, means }));
        }
        means = means.select(&large)?;
    }
}

/// The means of the groups far apart that a sample of the rows of `base` shows; none if it shows
/// none, or for another metric than inner product.
pub(super) fn means_of_groups(base: &Vectors, metric: Metric) -> Result<Option<Vectors>> {
    let n = base.len();
    if metric != Metric::InnerProduct || n < 2 * MIN_ROWS {
        return Ok(None);
    }
    let sample = base.select(&drawn_rows(3, SAMPLE, n))?.to_f32()?;
    group_means(&Vectors::dense_f32(sample, base.dim()))
}

/// The means of the groups that the rows of a `sample` lie in; none if they do not.
fn group_means(sample: &Vectors) -> Result<Option<Vectors>> {
    let mut rows: Vec<u32> = (0..sample.len() as u32).collect();
    for _ in 0..ATTEMPTS {
        let part = sample.select(&rows)?;
        let (one, most) = (Groups::find(&part, 1)?, Groups::find(&part, MAX_GROUPS)?);
        let sizes = most.sizes();
        if sizes.iter().all(|&size| size >= MIN_SAMPLED) {
            // Not for rows that are all equal, whose distances are 0.
            let bound = LEFT * one.left;
            if most.left > bound || one.left <= 0.0 {
                return Ok(None);
            }
            let apart = apart(&part)?;
            if apart.len() < part.len() {
                rows = apart.into_iter().map(|place| rows[place as usize]).collect();
                continue;
            }
            let mut found: Option<Groups> = None;
            for count in 2..=MAX_GROUPS {
                let groups = Groups::find(&part, count)?;
                // As many as halve what is left.
                let bound = found.as_ref().map_or(bound, |fewer| fewer.left / 2.0);
                let is_better = groups.left <= bound && groups.are_apart();
                if !is_better && found.is_some() {
                    break;
                }
                found = if is_better { Some(groups) } else { None };
            }
            return Ok(found.map(|groups| groups.means));
        }
        let in_groups = rows.into_iter().zip(most.of_rows);
        let in_groups = in_groups.filter(|&(_, group)| sizes[group as usize] >= MIN_SAMPLED);
        rows = in_groups.map(|(row, _)| row).collect();
        if 2 * rows.len() < sample.len() {
            return Ok(None);
        }
    }
    Ok(None)
}

/// The rows of a `sample`, with one row for each dense spot: a spot is not a group.
fn apart(sample: &Vectors) -> Result<Vec<u32>> {
    let ids: Vec<u32> = (0..sample.len() as u32).collect();
    let all = |row: u32| {
        let mut distances = filled(0.0, ids.len())?;
        if let TypedRows::F32(rows) = sample.rows() {
            one_to_many::<SquaredL2, f32>(&sample.host_row(row as usize), rows, &ids, &mut distances);
        }
        Ok(distances)
    };
    let nearest = |&row: &u32| {
        let others = all(row)?.into_iter().zip(&ids).filter(|&(_, &other)| other != row);
        Ok(others.map(|(distance, _)| distance).reduce(f32::min).unwrap_or(f32::INFINITY))
    };
    let nearest = try_map(&ids[..], nearest)?;
    let Some(bound) = Octaves::count(&nearest).bound() else { return Ok(ids) };
    let mut is_left = vec![true; ids.len()];
    for &row in &ids {
        if is_left[row as usize] && nearest[row as usize] < bound {
            let near = all(row)?.into_iter().map(|distance| distance < bound);
            is_left.iter_mut().zip(near).skip(row as usize + 1).for_each(|(is, near)| *is &= !near);
        }
    }
    Ok(ids.into_iter().filter(|&row| is_left[row as usize]).collect())
}

/// Groups of rows by k-means.
struct Groups {
    means: Vectors,
    /// The group of each row.
    of_rows: Vec<u32>,
    /// The sum of the squared distances of the rows to the means of their groups.
    left: f64,
    /// Rows between groups.
    between: usize,
}

/// The group of a row.
#[derive(Clone, Copy)]
struct Nearest {
    group: u32,
    /// The squared distance to its mean.
    distance: f32,
    /// The smallest squared distance to another mean.
    second: f32,
}

impl Groups {
    /// `count` groups of `rows` of f32. The first means are rows drawn by their squared distances
    /// to those drawn before (k-means++, Arthur and Vassilvitskii, 2007).
    fn find(rows: &Vectors, count: usize) -> Result<Self> {
        let (dim, draws) = (rows.dim(), Draws::new(0, Stage::Verify, 4, count as u64));
        let mut means = rows.host_row(0).into_owned();
        let mut least = filled(f32::INFINITY, rows.len())?;
        for number in 1..count {
            let last = Vectors::dense_f32(means[(number - 1) * dim..].to_vec(), dim);
            let distances = nearest(rows, &last)?;
            least.iter_mut().zip(distances).for_each(|(least, near)| *least = least.min(near.distance));
            let mut left = draws.unit(number as u64) * sum(&least);
            let is_drawn = |&distance: &f32| {
                left -= f64::from(distance);
                left < 0.0
            };
            let row = least.iter().position(is_drawn).unwrap_or(0);
            means.extend_from_slice(&rows.host_row(row));
        }
        let mut means = Vectors::dense_f32(means, dim);
        for _ in 0..ROUNDS {
            let of_rows = nearest(rows, &means)?;
            let mut sums = vec![0f64; count * dim];
            let mut sizes = vec![0f64; count];
            for (row, near) in of_rows.iter().enumerate() {
                let group = near.group as usize;
                let sums = &mut sums[group * dim..][..dim];
                sums.iter_mut().zip(&*rows.host_row(row)).for_each(|(sum, &x)| *sum += f64::from(x));
                sizes[group] += 1.0;
            }
            // A group without rows keeps its mean.
            let mean = |place: usize| match sizes[place / dim] {
                0.0 => means.host_row(place / dim)[place % dim],
                size => (sums[place] / size) as f32,
            };
            means = Vectors::dense_f32((0..count * dim).map(mean).collect(), dim);
        }
        let near = nearest(rows, &means)?;
        let of_rows = near.iter().map(|near| near.group).collect();
        let left = near.iter().map(|near| f64::from(near.distance)).sum();
        let between = near.iter().filter(|near| BETWEEN * near.distance > near.second).count();
        Ok(Self { means, of_rows, left, between })
    }

    /// Whether no group is small and few rows lie between groups.
    fn are_apart(&self) -> bool {
        let is_small = |&size: &usize| size < MIN_SAMPLED;
        !self.sizes().iter().any(is_small) && ROWS_PER_BETWEEN * self.between <= self.of_rows.len()
    }

    /// The rows of each group.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.means.len()];
        self.of_rows.iter().for_each(|&group| sizes[group as usize] += 1);
        sizes
    }
}

/// The nearest of `means` to each row.
fn nearest(rows: &Vectors, means: &Vectors) -> Result<Vec<Nearest>> {
    let ids: Vec<u32> = (0..means.len() as u32).collect();
    collected_in_parallel(0..rows.len(), |row| {
        let mut distances = [f32::INFINITY; MAX_GROUPS];
        let distances = &mut distances[..ids.len()];
        if let TypedRows::F32(means) = means.rows() {
            one_to_many::<SquaredL2, f32>(&rows.host_row(row), means, &ids, distances);
        }
        let mut near = Nearest { group: 0, distance: f32::INFINITY, second: f32::INFINITY };
        for (group, &distance) in distances.iter().enumerate() {
            if distance < near.distance {
                near = Nearest { group: group as u32, distance, second: near.distance };
            } else {
                near.second = near.second.min(distance);
            }
        }
        near
    })
}

/// The sum of squared distances.
fn sum(distances: &[f32]) -> f64 {
    distances.iter().map(|&distance| f64::from(distance)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIM: usize = 8;

    /// `n` rows around the centres that `center` gives them, one deviation apart in each component.
    fn rows(n: usize, center: impl Fn(usize) -> f32) -> Vectors {
        let draws = Draws::new(1, Stage::Test, 0, 0);
        let value = |i: usize| center(i / DIM) + (draws.unit(i as u64) as f32 - 0.5) * 3.5;
        Vectors::from_f32((0..n * DIM).map(value).collect(), DIM).unwrap()
    }

    fn sizes(base: &Vectors, metric: Metric) -> Option<Vec<usize>> {
        let groups = far_groups(base, metric, &Progress::silent()).unwrap();
        groups.map(|groups| {
            let mut sizes: Vec<usize> = groups.rows.iter().map(Vec::len).collect();
            sizes.sort_unstable();
            sizes
        })
    }

    #[test]
    fn rows_far_apart_are_groups() {
        let two = rows(4000, |row| if row % 50 == 0 { 30.0 } else { 0.0 });
        assert_eq!(sizes(&two, Metric::InnerProduct), Some(vec![80, 3920]));
        assert_eq!(sizes(&two, Metric::L2), None);
        let three = rows(3000, |row| [0.0, 10.0, -20.0][row % 3]);
        assert_eq!(sizes(&three, Metric::InnerProduct), Some(vec![1000; 3]));
        // Lone rows do not hide groups, and are none.
        let lone = rows(4000, |row| if row % 1000 == 7 { row as f32 } else { (row % 2) as f32 * 9.0 });
        assert_eq!(sizes(&lone, Metric::InnerProduct).map(|sizes| sizes.len()), Some(2));
    }

    #[test]
    fn small_groups_are_none() {
        assert_eq!(sizes(&rows(150, |row| (row % 3) as f32 * 30.0), Metric::InnerProduct), None);
        let two = rows(300, |row| [0.0, 30.0, 60.0, 0.0, 30.0, 0.0, 30.0][row % 7]);
        assert_eq!(sizes(&two, Metric::InnerProduct).map(|sizes| sizes.len()), Some(2));
    }

    #[test]
    fn rows_of_one_cloud_are_not() {
        for n in [100, 1000, 5000] {
            assert_eq!(sizes(&rows(n, |_| 5.0), Metric::InnerProduct), None);
        }
        // Of few dimensions, where k-means leaves little.
        for dim in [1, 2, 3, 6] {
            let values = rows(1000, |_| 0.0).to_f32().unwrap();
            let values = values[..values.len() / dim * dim].to_vec();
            let base = Vectors::from_f32(values, dim).unwrap();
            assert_eq!(sizes(&base, Metric::InnerProduct), None, "{dim} dimensions");
        }
        assert_eq!(sizes(&rows(4000, |row| if row < 8 { 1e3 } else { 0.0 }), Metric::InnerProduct), None);
        let equal = Vectors::from_f32(vec![1.0; 1000 * DIM], DIM).unwrap();
        assert_eq!(sizes(&equal, Metric::InnerProduct), None);
    }
}
