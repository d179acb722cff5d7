//! The check that a ground truth belongs to these queries, this base and this metric.
//!
//! Only its ids are checked. Distances in correct files may be square roots, inner products of
//! either sign, rounded otherwise, or missing. So the ids are scored anew, and an exact search for
//! a sample of the queries must find no row that is nearer, place by place, beyond rounding.

use tagore_device::key::{self, Key};

use crate::descent::{ExactLists, hits, sampled};
use crate::loops::{for_each, map_with, rows_mut};
use crate::search::Engine;
use crate::search::exact::{ExactSearch, gpu::MAX_K};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::vectors::{TypedRows, spread_rows, with_matrix};
use crate::{Device, ElementType, Error, GroundTruth, IdSet, Metric, Progress, Result, Vectors};

/// Queries in the sample, and the seed of their draw.
const SAMPLE: usize = 64;
const SEED: u64 = 0;

/// Multiply-adds of the exact search on the CPU: a few seconds on one core. A larger search runs on
/// a GPU; without one the sample shrinks, to one query at least.
const CPU_WORK: u64 = 1 << 32;

/// A ground truth that passed the check.
pub(super) struct CheckedTruth {
    k: usize,
    /// List distance of each query's k-th neighbour.
    farthest: Vec<f32>,
    /// The k ids of each query, ascending.
    ids: Vec<u32>,
}

impl CheckedTruth {
    /// Runs `check`.
    ///
    /// # Errors
    /// If the ground truth does not belong to the queries and the base, or the work is cancelled.
    pub(super) fn new(check: &TruthCheck<'_>, progress: &Progress) -> Result<Self> {
        let TruthCheck { engine, prepared, truth, k, .. } = *check;
        let space = engine.space();
        check_shape(space, prepared.len(), truth, k)?;
        let scored = map_with(0..truth.len(), Vec::new, |distances, query| {
            space.list_distances(prepared.query(query), &truth.ids(query)[..k], distances);
            (distances.iter().copied().fold(f32::NEG_INFINITY, f32::max), disorder(distances))
        });
        let mut ids: Vec<u32> = (0..truth.len()).flat_map(|query| &truth.ids(query)[..k]).copied().collect();
        for_each(rows_mut(&mut ids, k), <[u32]>::sort_unstable);
        for (query, ids) in ids.chunks_exact(k).enumerate() {
            if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
                let found = format!("id {} twice for query {query}", pair[0]);
                return Err(Error::mismatch(truth.describe(), found, format_args!("{k} distinct ids")));
            }
        }
        // A list out of order cannot be exact, so the worst one joins the sample.
        let worst = scored.iter().enumerate().max_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let suspect = worst.filter(|(_, scored)| scored.1 > RELATIVE).map(|(query, _)| query as u32);
        check.compare_with_exact_search(suspect, progress)?;
        Ok(Self { k, farthest: scored.into_iter().map(|scored| scored.0).collect(), ids })
    }

    /// Counts the results of `query`, nearest first, that are no farther than its k-th true
    /// neighbour, and the results with an id of the truth.
    pub(super) fn hits(&self, query: usize, ids: &[u32], distances: &[f32]) -> (usize, usize) {
        let truth = &self.ids[query * self.k..][..self.k];
        let by_id = ids.iter().filter(|id| truth.binary_search(id).is_ok()).count();
        (hits(distances, self.farthest[query]), by_id)
    }
}

/// Checks that `truth` has one row for each of `queries`, whose first `k` ids are rows of the base.
pub(super) fn check_shape(space: &Space<'_>, queries: usize, truth: &GroundTruth, k: usize) -> Result<()> {
    if truth.len() != queries {
        let expected = format!("{queries}, one per query");
        return Err(Error::mismatch(truth.describe(), format_args!("{} rows", truth.len()), expected));
    }
    if k == 0 || k > truth.k() {
        return Err(Error::argument("k", k, format_args!("1 to the {} of the ground truth", truth.k())));
    }
    for query in 0..queries {
        if let Some(unknown) = truth.ids(query)[..k].iter().find(|&&id| id as usize >= space.len()) {
            let found = format!("id {unknown} for query {query}");
            let expected = format!("an id below the {} rows of the base", space.len());
            return Err(Error::mismatch(truth.describe(), found, expected));
        }
    }
    Ok(())
}

/// The sampled queries, at most `count`.
pub(super) fn sample(queries: usize, count: usize) -> Vec<u32> {
    sampled(queries, count.min(SAMPLE), SEED)
}

/// Disorder of a list: its largest decrease, relative to the distances.
fn disorder(distances: &[f32]) -> f64 {
    let step = |pair: &[f32]| {
        let (before, after) = (f64::from(pair[0]), f64::from(pair[1]));
        (before - after) / before.abs().max(after.abs())
    };
    // `f64::max` ignores the NaN of 0 / 0, from equal zeros.
    distances.windows(2).map(step).fold(0.0, f64::max)
}

/// Per query: its number, the ids of its nearest rows, and their distances.
fn lists(exact: &ExactLists) -> impl Iterator<Item = (usize, Vec<u32>, Vec<f32>)> {
    exact.sample.iter().zip(exact.keys.chunks_exact(exact.k)).map(|(&query, keys)| {
        let ids = keys.iter().map(|&key| key as u32).collect();
        (query as usize, ids, keys.iter().map(|&key| key::distance(key)).collect())
    })
}

/// The keys that `exact` finds for `queries` among `rows`, of the base of `engine`.
pub(super) fn exact_keys(
    engine: &Engine<'_>,
    queries: &Vectors,
    exact: ExactSearch,
    rows: Option<&IdSet>,
) -> Result<Vec<Key>> {
    let space = engine.space();
    match rows {
        None => exact.nearest_to(space, &space.queries(queries, &Progress::silent())?),
        Some(rows) => {
            let among = exact.metric(space.metric()).among(rows.clone());
            Ok(among.keys(engine.base(), queries)?.0)
        }
    }
}

/// A check of the first `k` neighbours of `truth`.
pub(super) struct TruthCheck<'a> {
    pub engine: &'a Engine<'a>,
    pub queries: &'a Vectors,
    /// `queries`, prepared for the space.
    pub prepared: &'a Queries<'a>,
    pub truth: &'a GroundTruth,
    pub k: usize,
    /// The rows that searches may find; all if none.
    pub rows: Option<&'a IdSet>,
}

impl<'a> TruthCheck<'a> {
    fn list(&self, query: usize) -> &'a [u32] {
        &self.truth.ids(query)[..self.k]
    }

    /// Compares the lists of the sample, and of `suspect`, with exact search.
    fn compare_with_exact_search(&self, suspect: Option<u32>, progress: &Progress) -> Result<()> {
        let space = self.engine.space();
        let work_of_one = (space.len() * space.dim()) as u64;
        let devices = Device::list(self.engine.runs_on())?;
        let has_gpu = matches!(devices[..], [Device::Cuda(_), ..]);
        let (devices, count) = if has_gpu && work_of_one * SAMPLE as u64 > CPU_WORK && self.k <= MAX_K {
            (devices, SAMPLE)
        } else {
            (vec![Device::Cpu], (CPU_WORK / work_of_one).max(1) as usize)
        };
        let mut sample = sample(self.truth.len(), count);
        sample.extend(suspect);
        sample.sort_unstable();
        sample.dedup();
        let queries = self.queries.select(&sample)?;
        let exact = ExactSearch::new(self.k).devices(&devices).progress(progress.clone());
        let keys = exact_keys(self.engine, &queries, exact, self.rows)?;
        let exact = ExactLists { sample, k: self.k, keys };
        let mut distances = Vec::new();
        for (query, ids, nearest) in lists(&exact) {
            let list = self.list(query);
            space.list_distances(self.prepared.query(query), list, &mut distances);
            let Some(place) = self.tolerance(query, &nearest).first_miss(&distances, &nearest) else {
                continue;
            };
            let found = format!(
                "row {} at distance {} as neighbour {place} of query {query}",
                list[place], distances[place]
            );
            let (metric, cause) = (space.metric(), self.cause(query, &ids, &exact));
            let expected = format!("distance {} or less by {metric}; {cause}", nearest[place]);
            return Err(Error::mismatch(self.truth.describe(), found, expected));
        }
        Ok(())
    }

    fn tolerance(&self, query: usize, nearest: &[f32]) -> Tolerance {
        Tolerance::new(self.engine, self.prepared, query, self.list(query), nearest[0])
    }

    /// The likely reason why the list of `query` differs from the exact ids, and the remedy, as far
    /// as cheap tests tell.
    fn cause(&self, query: usize, ids: &[u32], exact: &ExactLists) -> String {
        // One list may match another row by chance; most of a few do not.
        let rows: Vec<_> =
            lists(exact).take(9).map(|(query, _, nearest)| self.row_of(query, &nearest)).collect();
        if 2 * rows.iter().flatten().count() > rows.len() {
            return "the rows are in another order than the queries: reorder them".to_owned();
        }
        let own = self.engine.space().metric();
        let others =
            [Metric::L2, Metric::InnerProduct, Metric::Cosine].into_iter().filter(|&metric| metric != own);
        match others.into_iter().find(|&metric| self.is_nearest_by(metric, query, ids)) {
            Some(metric) => format!("the list is ordered by {metric}: make the ground truth by {own}"),
            None => "these are not the nearest rows of this base: make the ground truth of this base and these queries"
                .to_owned(),
        }
    }

    /// The row of the truth that holds the neighbours of `query`.
    fn row_of(&self, query: usize, nearest: &[f32]) -> Option<usize> {
        let (space, point) = (self.engine.space(), self.prepared.query(query));
        let tolerance = self.tolerance(query, nearest);
        let mut distances = Vec::new();
        (0..self.truth.len()).find(|&row| {
            // Most rows are ruled out by their first id.
            [1, self.k].into_iter().all(|places| {
                space.list_distances(point, &self.list(row)[..places], &mut distances);
                tolerance.first_miss(&distances, nearest).is_none()
            })
        })
    }

    /// Whether the list of `query` is the nearest by `metric` among itself, the `exact` ids and
    /// some rows of the base.
    fn is_nearest_by(&self, metric: Metric, query: usize, exact: &[u32]) -> bool {
        let base = self.engine.base();
        let list = self.list(query);
        let may_be_found = |row: &u32| self.rows.is_none_or(|rows| rows.contains(*row));
        let spread = spread_rows(base.len()).map(|row| row as u32).filter(may_be_found);
        let rest = exact.iter().copied().chain(spread).filter(|id| !list.contains(id));
        let mut rest: Vec<u32> = rest.collect();
        rest.sort_unstable();
        rest.dedup();
        let ids = [list, &rest].concat();
        let silent = Progress::silent();
        let Ok(space) = base.select(&ids).and_then(|rows| Space::owned(rows, metric, &silent)) else {
            return false;
        };
        let Ok(queries) = self.queries.select(&[query as u32]) else { return false };
        let Ok(queries) = space.queries(&queries, &silent) else { return false };
        let mut distances = Vec::new();
        let all: Vec<u32> = (0..ids.len() as u32).collect();
        space.list_distances(queries.query(0), &all, &mut distances);
        let mut nearest = distances.clone();
        nearest.sort_unstable_by(f32::total_cmp);
        let noise = noise(&space, &queries, 0, &all[..self.k], nearest[0]);
        let tolerance = Tolerance { relative: relative(base.element_type()), noise };
        tolerance.first_miss(&distances[..self.k], &nearest).is_none()
    }
}

/// Tolerance of a distance, relative: files of other programs are rounded.
const RELATIVE: f64 = 1e-4;

/// Tolerance for a base in f16, whose truth may come from the f32 vectors before rounding.
const RELATIVE_OF_F16: f64 = 1e-3;

/// As [`RELATIVE_OF_F16`], for a base in bf16.
const RELATIVE_OF_BF16: f64 = 1e-2;

/// The tolerance for distances of one query.
pub(super) struct Tolerance {
    relative: f64,
    noise: f64,
}

impl Tolerance {
    /// The tolerance of a query whose nearest row is at distance `nearest`, for the rows `ids`.
    pub(super) fn new(
        engine: &Engine<'_>,
        queries: &Queries<'_>,
        query: usize,
        ids: &[u32],
        nearest: f32,
    ) -> Self {
        let relative = relative(engine.base().element_type());
        Self { relative, noise: noise(engine.space(), queries, query, ids, nearest) }
    }

    /// Whether `found` and `expected` are equal within the tolerance.
    pub(super) fn equal(&self, found: f64, expected: f64) -> bool {
        (found - expected).abs() <= self.allowance(expected)
    }

    /// The first place where `found` is farther than `exact`.
    fn first_miss(&self, found: &[f32], exact: &[f32]) -> Option<usize> {
        let farther = |(&found, &exact): (&f32, &f32)| {
            f64::from(found) > f64::from(exact) + self.allowance(f64::from(exact))
        };
        found.iter().zip(exact).position(farther)
    }

    fn allowance(&self, distance: f64) -> f64 {
        self.relative * distance.abs() + self.noise
    }
}

fn relative(element: ElementType) -> f64 {
    match element {
        ElementType::F16 => RELATIVE_OF_F16,
        ElementType::Bf16 => RELATIVE_OF_BF16,
        ElementType::F32 | ElementType::U8 | ElementType::I8 | ElementType::B1 => RELATIVE,
    }
}

/// Error of |q|² + |x|² − 2⟨q, x⟩ in f32, where large terms cancel: a few roundings of the norms,
/// however near x is.
fn noise(space: &Space<'_>, queries: &Queries<'_>, query: usize, ids: &[u32], nearest: f32) -> f64 {
    let own = square(queries.vectors().rows(), query);
    let largest = ids.iter().map(|&id| square(space.rows(), id as usize)).fold(0.0, f64::max);
    let scale = match space.metric() {
        Metric::L2 => own + largest,
        Metric::InnerProduct => (own * largest).sqrt(),
        Metric::Cosine => 1.0,
    };
    // For vectors near each other and far from the origin the norms give too large a bound: random
    // rows must still count as too far.
    let rows: Vec<u32> = spread_rows(space.len()).map(|row| row as u32).collect();
    let mut distances = Vec::new();
    space.list_distances(queries.query(query), &rows, &mut distances);
    let mean = distances.iter().copied().map(f64::from).sum::<f64>() / rows.len() as f64;
    (8.0 * f64::from(f32::EPSILON) * scale).min((mean - f64::from(nearest)).max(0.0) / 100.0)
}

/// The square of the norm of a row.
fn square(rows: TypedRows<'_>, index: usize) -> f64 {
    with_matrix!(rows, m => m.components(index).map(|x| f64::from(x).powi(2)).sum())
}
