//! A set of row ids as a bitmap.

use crate::{Error, Result, Vectors};

/// A set of rows of a base, one bit per row: the rows that a search may return, or that a build
/// takes.
///
/// ```
/// use tagore::IdSet;
/// let mut set = IdSet::from_ids(100, [3, 5, 99])?;
/// set.remove(5)?;
/// assert!(set.contains(3) && !set.contains(5));
/// assert_eq!(set.iter().collect::<Vec<_>>(), [3, 99]);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdSet {
    /// Row i is bit i % 64 of word i / 64; bits after the last row are 0.
    words: Vec<u64>,
    rows: usize,
    count: usize,
}

impl IdSet {
    /// An empty set of the rows of a base of `rows` rows.
    pub fn new(rows: usize) -> Self {
        Self { words: vec![0; rows.div_ceil(64)], rows, count: 0 }
    }

    /// The set of all rows of a base of `rows` rows.
    pub fn all(rows: usize) -> Self {
        let mut set = Self { words: vec![u64::MAX; rows.div_ceil(64)], rows, count: rows };
        set.clear_behind();
        set
    }

    /// The set of `ids`, rows of a base of `rows` rows.
    ///
    /// # Errors
    /// If an id is not below `rows`.
    pub fn from_ids(rows: usize, ids: impl IntoIterator<Item = u32>) -> Result<Self> {
        let mut set = Self::new(rows);
        ids.into_iter().try_for_each(|id| set.insert(id).map(drop))?;
        Ok(set)
    }

    /// The set with the bits of `words`, of a base of `rows` rows: row i is bit i % 64 of word
    /// i / 64, counted from the lowest.
    ///
    /// # Errors
    /// If there are not `rows` / 64 words, rounded up, or a bit after the last row is set.
    pub fn from_words(rows: usize, words: Vec<u64>) -> Result<Self> {
        if words.len() != rows.div_ceil(64) {
            let expected = format!("{} for {rows} rows", rows.div_ceil(64));
            return Err(Error::argument("words", words.len(), expected));
        }
        let count = |words: &[u64]| words.iter().map(|word| word.count_ones() as usize).sum();
        let before = count(&words);
        let mut set = Self { words, rows, count: before };
        set.clear_behind();
        if count(&set.words) != before {
            let expected = format!("zeros after row {}", rows - 1);
            return Err(Error::argument("words", "a set bit after the last row", expected));
        }
        Ok(set)
    }

    /// The set of all rows that are not in this one: of the rows that remain when these are
    /// deleted.
    #[must_use]
    pub fn complement(&self) -> Self {
        let words = self.words.iter().map(|word| !word).collect();
        let mut set = Self { words, rows: self.rows, count: self.rows - self.count };
        set.clear_behind();
        set
    }

    /// Makes this a set of the rows of a base of `rows` rows, at least as many as before: the same
    /// ids.
    pub(crate) fn grow(&mut self, rows: usize) {
        self.words.resize(rows.div_ceil(64), 0);
        self.rows = rows;
    }

    /// The ids that are in `other` too, a set of the first rows of the base, as a set of these.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words).map(|(word, other)| word & other);
        let words: Vec<u64> = words.collect();
        let count = words.iter().map(|word| word.count_ones() as usize).sum();
        Self { words, rows: other.rows, count }
    }

    fn clear_behind(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.rows % 64) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Rows of the base.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of ids in the set.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the set holds no ids.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `id` is in the set; false for ids that are no rows.
    #[inline]
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }

    /// Adds `id`; returns whether it was new.
    ///
    /// # Errors
    /// If `id` is no row.
    pub fn insert(&mut self, id: u32) -> Result<bool> {
        let (word, bit) = self.place(id)?;
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(is_new);
        Ok(is_new)
    }

    /// Adds `id`, which is a row.
    pub(crate) fn add(&mut self, id: u32) {
        let added = self.insert(id);
        debug_assert!(added.is_ok(), "{id} is no row");
    }

    /// Removes `id`; returns whether it was in the set.
    ///
    /// # Errors
    /// If `id` is no row.
    pub fn remove(&mut self, id: u32) -> Result<bool> {
        let (word, bit) = self.place(id)?;
        let was_in = *word & bit != 0;
        *word &= !bit;
        self.count -= usize::from(was_in);
        Ok(was_in)
    }

    fn place(&mut self, id: u32) -> Result<(&mut u64, u64)> {
        if id as usize >= self.rows {
            return Err(Error::argument("id", id, format_args!("below the {} rows of the set", self.rows)));
        }
        Ok((&mut self.words[id as usize / 64], 1 << (id % 64)))
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut words = self.words.iter().zip((0u32..).step_by(64));
        let (mut word, mut first) = (0u64, 0);
        std::iter::from_fn(move || {
            while word == 0 {
                let (&next, number) = words.next()?;
                (word, first) = (next, number);
            }
            let id = first + word.trailing_zeros();
            word &= word - 1;
            Some(id)
        })
    }

    /// Row i is bit i % 64 of word i / 64; bits after the last row are 0.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Checks that this set, `name` in an error, is one of rows of `base`.
    pub(crate) fn check(&self, name: &str, base: &Vectors) -> Result<()> {
        if self.rows == base.len() {
            return Ok(());
        }
        let expected = format!("{} as in {}", base.len(), base.describe());
        Err(Error::mismatch(name, format_args!("a set of {} rows", self.rows), expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_added() {
        for rows in [0, 1, 63, 64, 65, 200] {
            let ids: Vec<u32> = (0..rows as u32).filter(|id| id % 7 == 0 || id + 1 == rows as u32).collect();
            let mut set = IdSet::from_ids(rows, ids.iter().copied().rev().chain(ids.clone())).unwrap();
            assert_eq!((set.iter().collect::<Vec<_>>(), set.len()), (ids.clone(), ids.len()), "{rows}");
            assert_eq!(IdSet::from_words(rows, set.words.clone()).unwrap(), set);
            assert!(!set.contains(rows as u32) && !set.contains(u32::MAX));
            let others: Vec<u32> = (0..rows as u32).filter(|id| !ids.contains(id)).collect();
            assert_eq!(set.complement(), IdSet::from_ids(rows, others).unwrap());
            assert!(set.insert(rows as u32).is_err() && set.remove(rows as u32).is_err());
            for id in ids {
                assert!(set.remove(id).unwrap() && !set.remove(id).unwrap());
            }
            assert_eq!(set, IdSet::new(rows));
            assert_eq!(IdSet::all(rows).iter().count(), rows);
            assert_eq!(IdSet::all(rows).len(), rows);
            let mut grown = set.clone();
            grown.grow(rows + 70);
            assert!(grown.is_empty() && grown.insert(rows as u32 + 69).unwrap());
            assert_eq!(IdSet::all(rows + 70).intersection(&IdSet::all(rows)), IdSet::all(rows));
            assert_eq!(grown.intersection(&set), set);
        }
        let text = |words: Vec<u64>| IdSet::from_words(65, words).unwrap_err().to_string();
        assert_eq!(text(vec![0]), "words: found 1, expected 2 for 65 rows");
        assert_eq!(
            text(vec![0, 2]),
            "words: found a set bit after the last row, expected zeros after row 64"
        );
    }
}
