//! Rows of a data set that repeat earlier rows.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use tagore_device::key::NO_ID;

use crate::loops::{numbered, rows_mut, try_fold, try_for_each};
use crate::memory::zeros;
use crate::vectors::Access;
use crate::vectors::gpu::Lent;
use crate::vectors::hashes::{Hashed, SAMPLED, by_value, hash, hash_all, pairs_of, sample, shared};
use crate::vectors::norms::normalise;
use crate::vectors::space::Space;
use crate::{ElementType, Metric, Progress, Result, Vectors};

/// Maximum number of rows that are compared with each other where their sampled hashes are equal;
/// more rows are hashed whole first.
const COMPARED_AT_ONCE: usize = 4;

/// Bytes of rows that a thread hashes at a time; it reads as many ahead.
const PART_BYTES: usize = 4 << 20;

/// Parts that each thread hashes before the rows read ahead follow.
const PARTS_PER_THREAD: usize = 8;

/// Bytes of rows that a device passes to the host at a time, except for long runs of equal rows.
const FETCHED: usize = 64 << 20;

/// Peak memory in bytes per row of the base while repeated rows are found. Rows that all repeat
/// another take most: hashes with rows while they are collected, beside the hashes, then their runs
/// and pairs.
pub(crate) const PEAK_BYTES: usize = 3 * size_of::<Hashed>();

/// Memory in bytes per repeated row.
pub(crate) const KEPT_BYTES: usize = 2 * size_of::<[u32; 2]>();

/// A graph leaves out repeated rows if at least one row in this many repeats another, ...
const ONE_IN: usize = 100;

/// ... or if a group has more rows than this: its rows would fill the lists and beams of others.
const LARGEST: usize = 8;

/// The rows of a data set that repeat an earlier row.
///
/// Rows are equal if all their values are equal, whatever the signs of zeros: under cosine the
/// values of the normalised rows, where all zero vectors are equal. The first row of a group of
/// equal rows represents the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Pairs of repeated row and first row of its group, ascending.
    pairs: Vec<[u32; 2]>,
    /// Pairs of first row and repeated row, ascending.
    groups: Vec<[u32; 2]>,
}

impl Repeated {
    /// Finds the repeated rows of `base`, whose space this is. A base in host memory remembers them
    /// for the next build, except under cosine.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn find(base: &Vectors, space: &Space<'_>, progress: &Progress) -> Result<Self> {
        if let Some(lent) = space.vectors().lent() {
            return Self::on_device(lent, progress);
        }
        if space.metric() == Metric::Cosine {
            return Self::by(hash, space.vectors(), progress);
        }
        Self::remember(base, progress)?;
        Ok(base.repeated.get().map(|known| Self::clone(known)).unwrap_or_default())
    }

    /// Finds the repeated rows of a base in host memory, which keeps them: [`find`](Self::find) and
    /// [`of_base`](Self::of_base) then find them at once, unless the metric is cosine.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn remember(base: &Vectors, progress: &Progress) -> Result<()> {
        if base.repeated.get().is_none() {
            let found = Self::by(hash, base, progress)?;
            // Whoever else looked for them found the same.
            let _ = base.repeated.set(Arc::new(found));
        }
        Ok(())
    }

    /// [`find`](Self::find) for rows on a device, which hashes them. Rows of equal hashes alone are
    /// copied to the host.
    fn on_device(lent: &Lent, progress: &Progress) -> Result<Self> {
        let hashes = lent.hashes()?;
        let hashed = shared(&hashes, |row| row as u32);
        let (row_bytes, element) = (lent.layout().stride, lent.layout().element);
        let (mut pairs, mut first) = (Vec::new(), 0);
        while first < hashed.len() {
            progress.check()?;
            // Whole runs, at least one.
            let least = (first + (FETCHED / row_bytes).max(1)).min(hashed.len());
            let more = hashed[least..].iter().take_while(|pair| pair.0 == hashed[least - 1].0).count();
            let part = &hashed[first..least + more];
            let ids: Vec<u32> = part.iter().map(|pair| pair.1).collect();
            let words = lent.fetch(&ids)?;
            let rows: &[u8] = bytemuck::cast_slice(&words);
            let places: HashMap<u32, usize> = ids.iter().copied().zip(0..).collect();
            let bytes = |row: u32| {
                let place = places.get(&row);
                by_value(place.map_or(&[][..], |place| &rows[place * row_bytes..][..row_bytes]), element)
            };
            for run in runs(part) {
                pairs.extend(pairs_of(run, bytes, progress)?);
            }
            first = least + more;
        }
        Ok(Self::from_pairs(pairs))
    }

    /// [`find`](Self::find) for a base that may be larger than memory. Takes [`PEAK_BYTES`] of
    /// memory per row, and [`KEPT_BYTES`] per repeated row at the end.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn of_base(base: &Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        if let Some(known) = base.repeated.get().filter(|_| metric != Metric::Cosine) {
            return Ok(Self::clone(known));
        }
        base.advise(Access::InOrder);
        let is_unit = metric == Metric::Cosine;
        let bytes = |row: u32| {
            if !is_unit {
                return Cow::Borrowed(base.bytes_of_row(row as usize));
            }
            let mut values = base.host_row(row as usize).into_owned();
            normalise(&mut values);
            Cow::Owned(bytemuck::cast_slice(&values).to_vec())
        };
        let element = if is_unit { ElementType::F32 } else { base.element_type() };
        Self::by_bytes(hash, base, element, bytes, true, progress)
    }

    /// [`find`](Self::find) with another hash.
    fn by(hash: impl Fn(&[u8]) -> u64 + Sync, base: &Vectors, progress: &Progress) -> Result<Self> {
        let bytes = |row: u32| Cow::Borrowed(base.bytes_of_row(row as usize));
        Self::by_bytes(hash, base, base.element_type(), bytes, false, progress)
    }

    /// Finds the repeated rows of `base`; `bytes` returns the bytes of a row of values of
    /// `element`. To `read_ahead` takes as long as hashing if the rows are in memory.
    fn by_bytes<'a>(
        hash: impl Fn(&[u8]) -> u64 + Sync,
        base: &Vectors,
        element: ElementType,
        bytes: impl Fn(u32) -> Cow<'a, [u8]> + Sync,
        read_ahead: bool,
        progress: &Progress,
    ) -> Result<Self> {
        let row_bytes = element.row_bytes(base.dim());
        let mut hashes: Vec<u64> = zeros(base.len())?;
        // In order, so that a disk reads the next parts meanwhile.
        let part = (PART_BYTES / row_bytes).max(1);
        let at_once = PARTS_PER_THREAD * rayon::current_num_threads() * part;
        for (number, hashes) in hashes.chunks_mut(at_once).enumerate() {
            try_for_each(numbered(rows_mut(hashes, part)), |(place, hashes)| {
                progress.check()?;
                let rows = number * at_once + place * part..;
                if read_ahead {
                    base.prefetch(rows.start + at_once..rows.start + at_once + hashes.len());
                    base.populate(rows.start..rows.start + hashes.len());
                }
                for (own, row) in hashes.iter_mut().zip(rows) {
                    *own = hash(&by_value(&sample(&bytes(row as u32)), element));
                }
                Ok(())
            })?;
        }
        let hashed = shared(&hashes, |row| row as u32);
        drop(hashes);
        progress.check()?;
        // Only rows that may repeat others are read whole.
        let bytes = |row: u32| match bytes(row) {
            Cow::Borrowed(bytes) => by_value(bytes, element),
            Cow::Owned(bytes) => Cow::Owned(by_value(&bytes, element).into_owned()),
        };

        // Long runs are divided by the hash of whole rows.
        let (mut short, mut long): (Vec<Hashed>, Vec<u32>) = (Vec::new(), Vec::new());
        for run in runs(&hashed) {
            if row_bytes <= SAMPLED || run.len() <= COMPARED_AT_ONCE {
                short.extend(run);
            } else {
                long.extend(run.iter().map(|&(_, row)| row));
            }
        }
        drop(hashed);
        // In row order, since rows may be read from a file.
        long.par_sort_unstable();
        let mut hashes: Vec<u64> = zeros(long.len())?;
        hash_all(&mut hashes, |place| hash(&bytes(long[place])), progress)?;
        let long = shared(&hashes, |place| long[place]);
        drop(hashes);
        let runs_of_rows: Vec<&[Hashed]> = runs(&short).chain(runs(&long)).collect();
        let joined = |mut pairs: Vec<[u32; 2]>, more: Vec<[u32; 2]>| {
            pairs.extend(more);
            pairs
        };
        let add = |pairs, run: &&[Hashed]| Ok(joined(pairs, pairs_of(run, bytes, progress)?));
        Ok(Self::from_pairs(try_fold(&runs_of_rows[..], Vec::new, add, joined)?))
    }

    fn from_pairs(mut pairs: Vec<[u32; 2]>) -> Self {
        pairs.par_sort_unstable();
        let mut groups: Vec<[u32; 2]> = pairs.iter().map(|&[row, first]| [first, row]).collect();
        groups.par_sort_unstable();
        Self { pairs, groups }
    }

    /// Whether a graph of the data set, of `rows` rows, should leave out the repeated ones.
    pub(crate) fn is_worth_grouping(&self, rows: usize) -> bool {
        let is_share = || self.len().saturating_mul(ONE_IN) >= rows;
        let has_large = || self.groups.windows(LARGEST).any(|copies| copies[0][0] == copies[LARGEST - 1][0]);
        !self.is_empty() && (is_share() || has_large())
    }

    /// The number of repeated rows.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether no row repeats another.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Pairs of repeated row and first row of its group, ascending.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.pairs.iter().map(|&[row, first]| (row, first))
    }

    /// Whether `row` repeats an earlier row.
    pub fn contains(&self, row: u32) -> bool {
        self.place(row).is_some()
    }

    /// The first row of the group of `row`: `row` itself if it repeats none.
    pub fn first_of(&self, row: u32) -> u32 {
        self.place(row).map_or(row, |place| self.pairs[place][1])
    }

    /// The rows that repeat `first`, ascending; none if it is not the first of a group.
    pub fn copies_of(&self, first: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.group(first).iter().map(|pair| pair[1])
    }

    /// The position of `row` in its group, 0 for the first, and the copies of the first row.
    pub(crate) fn place_in_group(&self, row: u32) -> (usize, impl ExactSizeIterator<Item = u32> + '_) {
        let group = self.group(self.first_of(row));
        (group.partition_point(|pair| pair[1] <= row), group.iter().map(|pair| pair[1]))
    }

    /// Up to `count` rows of the largest groups, up to `of_each` of a group.
    pub(crate) fn of_largest_groups(&self, count: usize, of_each: usize) -> Vec<u32> {
        let mut groups: Vec<&[[u32; 2]]> = self.groups.chunk_by(|a, b| a[0] == b[0]).collect();
        groups.sort_by_key(|group| Reverse(group.len()));
        let rows = groups.into_iter().flat_map(|group| {
            let rows = group.iter().map(|pair| pair[1]).rev();
            rows.take(of_each.saturating_sub(1)).chain([group[0][0]])
        });
        rows.take(count).collect()
    }

    fn group(&self, first: u32) -> &[[u32; 2]] {
        let begin = self.groups.partition_point(|pair| pair[0] < first);
        let length = self.groups[begin..].partition_point(|pair| pair[0] == first);
        &self.groups[begin..begin + length]
    }

    fn place(&self, row: u32) -> Option<usize> {
        self.pairs.binary_search_by_key(&row, |pair| pair[0]).ok()
    }

    /// The rows of a range that repeat no other, ascending.
    pub(crate) fn others(&self, rows: Range<usize>) -> Vec<u32> {
        let (first, end) = (rows.start as u32, rows.end as u32);
        let place = self.pairs.partition_point(|pair| pair[0] < first);
        let mut repeated = self.pairs[place..].iter().map(|pair| pair[0]).peekable();
        (first..end).filter(|row| repeated.next_if_eq(row).is_none()).collect()
    }

    /// The place of each of `count` rows of a base among `rows` of them, ascending. A repeated row
    /// has that of the first row of its group, other rows none: `u32::MAX`.
    pub(crate) fn places(&self, rows: &[u32], count: usize) -> Vec<u32> {
        let mut places = vec![NO_ID; count];
        rows.iter().zip(0..).for_each(|(&row, place)| places[row as usize] = place);
        self.pairs().for_each(|(row, first)| places[row as usize] = places[first as usize]);
        places
    }

    /// Row number `place` among the rows that repeat no other.
    pub(crate) fn nth_unique(&self, place: u32) -> u32 {
        let (mut least, mut most) = (0, self.pairs.len() as u32);
        // Before the repeated row r, at place p of the repeated rows, there are r - p others.
        while least < most {
            let middle = least.midpoint(most);
            if self.pairs[middle as usize][0] - middle <= place { least = middle + 1 } else { most = middle }
        }
        place + least
    }

    /// The repeated rows among `rows`, ascending, of a larger base: row i is now `rows[i]`.
    pub(crate) fn renamed(&self, rows: &[u32]) -> Self {
        Self::from_pairs(self.pairs.iter().map(|pair| pair.map(|row| rows[row as usize])).collect())
    }

    /// Words for a file (`docs/formats.md`).
    pub(crate) fn words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.pairs)
    }

    /// Parses the words of [`words`](Self::words) for a data set of `rows` rows; an error says what
    /// is wrong.
    pub(crate) fn read(words: &[u32], rows: usize) -> Result<Self, &'static str> {
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("half a pair of repeated rows");
        }
        if pairs.windows(2).any(|two| two[0][0] >= two[1][0]) {
            return Err("unsorted repeated rows");
        }
        if pairs.last().is_some_and(|pair| pair[0] as usize >= rows) {
            return Err("an unknown repeated row");
        }
        if pairs.iter().any(|[row, first]| first >= row) {
            return Err("a repeated row before its first row");
        }
        let repeated = Self::from_pairs(pairs.to_vec());
        if repeated.pairs.iter().any(|&[_, first]| repeated.contains(first)) {
            return Err("a first row that is repeated itself");
        }
        Ok(repeated)
    }
}

/// Runs of equal hashes.
fn runs(hashed: &[Hashed]) -> impl Iterator<Item = &[Hashed]> {
    hashed.chunk_by(|a, b| a.0 == b.0)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use half::f16;
    use tagore_device::random::{Draws, Stage};

    use super::*;

    /// Compares all pairs of rows.
    fn plain(base: &Vectors, metric: Metric) -> Vec<[u32; 2]> {
        let row = |row: usize| {
            let mut values = base.host_row(row).into_owned();
            if metric == Metric::Cosine && !normalise(&mut values) {
                values.fill(0.0);
            }
            // Adding zero takes the signs of zeros.
            values.into_iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>()
        };
        let first = |at: usize| (0..at).find(|&earlier| row(earlier) == row(at));
        (0..base.len()).filter_map(|at| Some([at as u32, first(at)? as u32])).collect()
    }

    /// This base, without the repeated rows that it may remember.
    fn unread(base: &Vectors) -> Vectors {
        Vectors { repeated: OnceLock::new(), ..base.clone() }
    }

    fn check(base: &Vectors, metric: Metric, what: &str) -> Repeated {
        let silent = Progress::silent();
        let base = &unread(base);
        let space = Space::new(base, metric, &silent).unwrap();
        let expected = plain(base, metric);
        let raw = Repeated::of_base(base, metric, &silent).unwrap();
        let found = Repeated::find(base, &space, &silent).unwrap();
        assert_eq!(base.repeated.get().is_some(), metric != Metric::Cosine, "{what}, {metric}, remembered");
        let rows = space.vectors();
        assert_eq!(raw, found, "{what}, {metric}, raw");
        assert_eq!(found.pairs, expected, "{what}, {metric}");
        // Hashes with many collisions.
        let few = |bytes: &[u8]| hash(bytes) % 3;
        assert_eq!(Repeated::by(few, rows, &silent).unwrap(), found, "{what}, {metric}, three hashes");
        assert_eq!(Repeated::by(|_| 7, rows, &silent).unwrap(), found, "{what}, {metric}, one hash");
        // A base that has been read for them.
        let read = base.clone();
        Repeated::remember(&read, &silent).unwrap();
        let space = Space::new(&read, metric, &silent).unwrap();
        assert_eq!(Repeated::find(&read, &space, &silent).unwrap(), found, "{what}, {metric}, known");
        assert_eq!(Repeated::of_base(&read, metric, &silent).unwrap(), found, "{what}, {metric}, known raw");
        let others = found.others(0..base.len());
        assert!(
            others.iter().zip(0..).all(|(&row, place)| found.nth_unique(place) == row),
            "{what}, {metric}"
        );
        let parts = [found.others(0..base.len() / 3), found.others(base.len() / 3..base.len())];
        assert_eq!(parts.concat(), others, "{what}, {metric}");
        assert_eq!(others.len() + found.len(), base.len());
        for &first in &others {
            assert!(!found.contains(first) && found.first_of(first) == first);
            let copies: Vec<u32> = found.copies_of(first).collect();
            assert!(copies.iter().all(|&row| found.first_of(row) == first && found.contains(row)));
            assert_eq!(copies.len(), expected.iter().filter(|pair| pair[1] == first).count());
        }
        assert!(found.pairs().all(|(row, _)| found.copies_of(row).len() == 0));
        assert_eq!(Repeated::read(found.words(), base.len()).unwrap(), found);
        found
    }

    #[test]
    fn groups_equal_those_of_comparing_all_pairs() {
        for dim in [1, 3, 16, 17, 100] {
            let draws = Draws::new(dim as u64, Stage::Test, 1, 0);
            for kinds in [1, 2, 20, 1000] {
                // Rows that differ in one place, and rows that differ everywhere.
                let value = |row: usize, at: usize, narrow: bool| {
                    let kind = draws.below(row as u64, kinds);
                    let differs = !narrow || at as u64 == kind % dim as u64;
                    if differs { (kind * 31 + at as u64 * 7) % 251 } else { 3 }
                };
                for narrow in [false, true] {
                    let values = |rows: usize| (0..rows * dim).map(|i| value(i / dim, i % dim, narrow));
                    let what = format!("{kinds} kinds of dimension {dim}, {narrow}");
                    let floats = Vectors::from_f32(values(150).map(|x| x as f32).collect(), dim).unwrap();
                    for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
                        check(&floats, metric, &what);
                    }
                    let halves = values(90).map(|x| f16::from_f32(x as f32)).collect();
                    check(&Vectors::from_f16(halves, dim).unwrap(), Metric::L2, &what);
                    let bytes = values(90).map(|x| x as u8).collect();
                    check(&Vectors::from_u8(bytes, dim).unwrap(), Metric::Cosine, &what);
                }
            }
        }
    }

    #[test]
    fn equality_of_rows_depends_on_the_metric() {
        let rows = vec![1.0, 0.0, 2.0, 0.0, 0.0, 0.0, -0.0, 0.0, 1.0, 0.0, 0.0, -0.0];
        let base = Vectors::from_f32(rows, 2).unwrap();
        assert_eq!(check(&base, Metric::L2, "signs").pairs, [[3, 2], [4, 0], [5, 2]]);
        assert_eq!(check(&base, Metric::Cosine, "signs").pairs, [[1, 0], [3, 2], [4, 0], [5, 2]]);
        let one = Vectors::from_f32(vec![1.0], 1).unwrap();
        assert!(check(&one, Metric::L2, "one row").is_empty());
    }

    #[test]
    fn long_runs_are_fast_and_independent_of_threads() {
        let (n, dim) = (200_000, 20);
        let equal = Vectors::from_f32(vec![1.5; n * dim], dim).unwrap();
        // Rows differ only in places that the first hash skips.
        let values = (0..n * dim).map(|i| if i % dim == 5 { (i / dim % 1000) as f32 } else { 1.5 });
        let alike = Vectors::from_f32(values.collect(), dim).unwrap();
        for (base, expected) in [(&equal, n - 1), (&alike, n - 1000)] {
            let on = |threads| {
                let base = unread(base);
                let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| Repeated::find(&base, &space, &Progress::silent())).unwrap()
            };
            let alone = on(1);
            assert_eq!(alone.len(), expected);
            assert!(on(4) == alone);
        }
        let cancelled = Progress::silent();
        let space = Space::new(&equal, Metric::L2, &cancelled).unwrap();
        cancelled.cancel();
        assert!(Repeated::find(&equal, &space, &cancelled).is_err());
    }

    #[test]
    fn inconsistent_pairs_are_refused() {
        let read = |words: &[u32]| Repeated::read(words, 10);
        assert_eq!(read(&[2, 0, 5, 0, 9, 1]).unwrap().copies_of(0).collect::<Vec<_>>(), [2, 5]);
        assert!(read(&[]).unwrap().is_empty());
        for (words, expected) in [
            (&[2, 0, 5][..], "half a pair"),
            (&[5, 0, 2, 0], "unsorted repeated rows"),
            (&[2, 0, 2, 1], "unsorted repeated rows"),
            (&[2, 0, 10, 1], "unknown"),
            (&[2, 2], "before its first row"),
            (&[2, 3], "before its first row"),
            (&[2, 0, 5, 2], "repeated itself"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
