//! The mean of rows with a common direction, under inner product.
//!
//! Products with x − m, m the mean of the rows, rank the rows x for every query q as products with
//! x do: ⟨q, x⟩ − ⟨q, m⟩. The rows themselves are the queries of a build, though, and with a mean
//! far from 0 all of them have the same few nearest rows, those farthest along it: lists lead to no
//! others. So the graph is one of the rows less most of their mean where the lists of a sample then
//! name far more rows. They do not where norms are about equal: the nearest by product are near
//! rows then. The rest of the mean makes edges lead a little along it, for queries that lie there.

use half::f16;
use tagore_device::cluster::drawn;
use tagore_device::key;
use tagore_device::random::{Draws, Stage};

use crate::loops::{for_each, numbered, reduce, rows_mut};
use crate::memory::{collected_in_parallel, zeros};
use crate::vectors::space::Space;
use crate::vectors::{ElementType, Metric, Vectors};
use crate::{Progress, Result};

/// Rows of the sample.
const SAMPLE: usize = 1024;

/// Rows of the sample whose lists are made.
const LISTS: usize = 256;

/// Fewer rows are not moved: their lists name most of them.
const MIN_ROWS: usize = 128;

/// Nearest rows per list of the sample.
const NEAREST: usize = 10;

/// Rows are moved if their lists then name more rows by this factor.
const GAIN: (usize, usize) = (4, 3);

/// The norm of the mean of moved rows, as a share of the root mean square of the rows' distances to
/// it. Chosen on 1,000,000 x 96 (docs/pruning.md): with less, queries along the mean find less,
/// with more, all others.
const LEFT: f64 = 0.35;

/// Rows moved at a time.
const AT_A_TIME: usize = 1 << 16;

/// `count` different random rows of `n`, or all; each `use_number` draws others.
pub(crate) fn drawn_rows(use_number: u32, count: usize, n: usize) -> Vec<u32> {
    let count = count.min(n) as u32;
    let draws = |i: u32| Draws::new(0, Stage::Verify, use_number, i.into());
    (0..count).map(|i| drawn(draws(i), i, count, n as u32)).collect()
}

/// What a graph for `metric` needs subtracted from the rows of `base`: most of their mean, which is
/// that of a sample; else none.
///
/// # Errors
/// If the rows lie on a device that fails, or memory is short.
pub(crate) fn common_mean(base: &Vectors, metric: Metric) -> Result<Option<Vec<f32>>> {
    let (n, dim) = (base.len(), base.dim());
    if metric != Metric::InnerProduct || n < MIN_ROWS {
        return Ok(None);
    }
    let ids = drawn_rows(2, SAMPLE, n);
    let count = ids.len();
    let sample = base.select(&ids)?.to_f32()?;
    let mut mean = vec![0f64; dim];
    for row in sample.chunks_exact(dim) {
        mean.iter_mut().zip(row).for_each(|(mean, &x)| *mean += f64::from(x));
    }
    mean.iter_mut().for_each(|sum| *sum /= count as f64);
    let square = |x: f64| x * x;
    let spread = sample.chunks_exact(dim).flat_map(|row| row.iter().zip(&mean));
    let spread = spread.map(|(&x, mean)| square(f64::from(x) - mean)).sum::<f64>() / count as f64;
    let norm = mean.iter().map(|&x| square(x)).sum::<f64>().sqrt();
    let part = 1.0 - LEFT * spread.sqrt() / norm;
    // Not of a mean of 0 either.
    if part.is_nan() || part <= 0.0 {
        return Ok(None);
    }
    let mean: Vec<f32> = mean.into_iter().map(|mean| (part * mean) as f32).collect();
    let moved: Vec<f32> = sample.chunks_exact(dim).flat_map(|row| less(row, &mean)).collect();
    let (own, moved) = (Vectors::from_f32(sample, dim)?, Vectors::from_f32(moved, dim)?);
    // Differences may overflow or vanish.
    let (Some(own), Some(moved)) = (named(&own)?, named(&moved)?) else { return Ok(None) };
    let is_needed = moved * GAIN.1 > own * GAIN.0;
    if is_needed {
        tracing::info!(own, moved, "rows have a common direction: the graph is that of rows less their mean");
    }
    Ok(is_needed.then_some(mean))
}

/// The rows of `base` less `mean`. Values of 8 bits and f16 become f16, which rounds and cuts them,
/// others f32.
///
/// # Errors
/// If the rows lie on a device that fails, or memory is short.
pub(crate) fn less_mean(base: &Vectors, mean: &[f32]) -> Result<Vectors> {
    let dim = base.dim();
    match base.element_type() {
        ElementType::F16 | ElementType::U8 | ElementType::I8 => {
            let largest = f16::MAX.to_f32();
            let to = |x: f32| f16::from_f32(x.clamp(-largest, largest));
            Vectors::from_f16(all_less(base, mean, to)?, dim)
        }
        ElementType::F32 | ElementType::Bf16 | ElementType::B1 => {
            Vectors::from_f32(all_less(base, mean, |x| x)?, dim)
        }
    }
}

/// The square of the largest norm of the rows of `base` less `mean`.
///
/// # Errors
/// If the rows lie on a device that fails, or the work is cancelled.
pub(in crate::vectors) fn largest_square_less(
    base: &Vectors,
    mean: &[f32],
    progress: &Progress,
) -> Result<f64> {
    let mut largest = 0.0;
    for first in (0..base.len()).step_by(AT_A_TIME) {
        progress.check()?;
        let part = base.part(first..(first + AT_A_TIME).min(base.len()))?;
        let square = |row| less(&part.host_row(row), mean).map(|x| f64::from(x).powi(2)).sum::<f64>();
        largest = reduce(0..part.len(), largest, square, f64::max);
    }
    Ok(largest)
}

/// A row less the mean.
fn less<'a>(row: &'a [f32], mean: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    row.iter().zip(mean).map(|(x, mean)| x - mean)
}

/// All rows of `base` less the mean.
fn all_less<T: Copy + Default + Send + bytemuck::Zeroable>(
    base: &Vectors,
    mean: &[f32],
    to: impl Fn(f32) -> T + Sync,
) -> Result<Vec<T>> {
    let (n, dim) = (base.len(), base.dim());
    let mut all: Vec<T> = zeros(n * dim)?;
    for (first, moved) in (0..n).step_by(AT_A_TIME).zip(all.chunks_mut(AT_A_TIME * dim)) {
        // Copied from a device, or read where they are.
        let part = base.part(first..(first + AT_A_TIME).min(n))?;
        for_each(numbered(rows_mut(moved, dim)), |(row, moved)| {
            moved.iter_mut().zip(less(&part.host_row(row), mean)).for_each(|(moved, x)| *moved = to(x));
        });
    }
    Ok(all)
}

/// The number of rows that the lists of the first rows name; none if f32 does not hold their
/// products.
fn named(rows: &Vectors) -> Result<Option<usize>> {
    let Ok(space) = Space::new(rows, Metric::InnerProduct, &Progress::silent()) else { return Ok(None) };
    let ids: Vec<u32> = (0..rows.len() as u32).collect();
    let lists: Vec<Vec<u32>> = collected_in_parallel(&ids[..LISTS.min(ids.len())], |&row| {
        let mut distances = Vec::new();
        space.list_distances(space.query(row), &ids, &mut distances);
        let others = ids.iter().zip(distances).filter(|&(&id, _)| id != row);
        let mut keys: Vec<u64> = others.map(|(&id, distance)| key::pack(distance, id)).collect();
        keys.select_nth_unstable(NEAREST);
        keys[..NEAREST].iter().map(|&key| key::id(key)).collect()
    })?;
    let mut is_named = vec![false; rows.len()];
    lists.into_iter().flatten().for_each(|id| is_named[id as usize] = true);
    Ok(Some(is_named.into_iter().filter(|&named| named).count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::norms::normalise;

    const DIM: usize = 16;

    /// Rows around `center` in each component, each then changed by `change`.
    fn rows(center: f32, change: impl Fn(usize, &mut [f32])) -> Vec<f32> {
        let draws = Draws::new(1, Stage::Test, 0, 0);
        let value = |i: usize| center + (draws.unit(i as u64) as f32 - 0.5) * 3.0;
        let mut values: Vec<f32> = (0..2000 * DIM).map(value).collect();
        values.chunks_exact_mut(DIM).enumerate().for_each(|(row, values)| change(row, values));
        values
    }

    fn mean_of(values: &[f32], metric: Metric) -> Option<Vec<f32>> {
        common_mean(&Vectors::from_f32(values.to_vec(), DIM).unwrap(), metric).unwrap()
    }

    #[test]
    fn rows_are_moved_only_where_products_name_few_of_them() {
        let far = rows(3.0, |_, _| ());
        // The mean is 3 in each component, the deviation 0.87.
        let mean = mean_of(&far, Metric::InnerProduct).unwrap();
        assert!(mean.iter().all(|x| (x - (3.0 - 0.35 * 0.87)).abs() < 0.2), "{mean:?}");
        assert_eq!(mean_of(&far, Metric::L2), None);
        assert_eq!(mean_of(&far[..100 * DIM], Metric::InnerProduct), None);
        assert_eq!(mean_of(&rows(0.0, |_, _| ()), Metric::InnerProduct), None);
        // Few rows of large norm are on all lists, wherever the rows lie.
        let grow = |row: usize, values: &mut [f32]| {
            values.iter_mut().for_each(|x| *x *= 1.01f32.powi(row as i32 % 400))
        };
        assert_eq!(mean_of(&rows(0.0, grow), Metric::InnerProduct), None);
        // Rows of one norm: the largest products are those of near rows.
        let unit = |_: usize, values: &mut [f32]| assert!(normalise(values));
        assert_eq!(mean_of(&rows(3.0, unit), Metric::InnerProduct), None);
        // Differences that f32 does not hold.
        let huge = |_: usize, values: &mut [f32]| values.iter_mut().for_each(|x| *x *= 5e17);
        assert_eq!(mean_of(&rows(3.0, huge), Metric::InnerProduct), None);
    }

    #[test]
    fn rows_less_the_mean_have_a_type_that_holds_them() {
        let mean = [1.5, -2.0];
        let check = |base: Vectors, element: ElementType, expected: &[f32]| {
            let moved = less_mean(&base, &mean).unwrap();
            assert_eq!((moved.element_type(), moved.len()), (element, 2));
            assert_eq!(moved.to_f32().unwrap(), expected);
            let largest = largest_square_less(&base, &mean, &Progress::silent()).unwrap();
            let square = |row: &[f32]| f64::from(row[0]).powi(2) + f64::from(row[1]).powi(2);
            assert_eq!(largest, square(&expected[..2]).max(square(&expected[2..])));
        };
        let bytes = Vectors::from_u8(vec![0, 255, 3, 4], 2).unwrap();
        check(bytes, ElementType::F16, &[-1.5, 257.0, 1.5, 6.0]);
        let floats = Vectors::from_f32(vec![0.25, 1e9, 0.0, 0.0], 2).unwrap();
        check(floats, ElementType::F32, &[-1.25, 1e9, -1.5, 2.0]);
        let cut = less_mean(&Vectors::from_f16(vec![f16::MIN, f16::MAX], 2).unwrap(), &mean).unwrap();
        assert_eq!(cut.to_f32().unwrap(), [f16::MIN.to_f32(), f16::MAX.to_f32()]);
    }
}
