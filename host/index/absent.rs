//! Rows of the base that are no nodes of the graph.

use std::borrow::Cow;

use tagore_device::key::NO_ID;

use crate::IdSet;
use crate::vectors::Repeated;
/// Rows of the base that are no nodes of the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absent {
    /// Rows that repeat an earlier row.
    pub repeated: Repeated,
    /// Rows that were left out of the build; none if it took all.
    pub left_out: Option<IdSet>,
}

impl Absent {
    /// Whether all rows are nodes.
    pub(super) fn is_empty(&self) -> bool {
        self.repeated.is_empty() && self.left_out.is_none()
    }

    /// The rows that were left out, ascending.
    pub(super) fn left_out(&self) -> impl Iterator<Item = u32> + '_ {
        self.left_out.iter().flat_map(IdSet::iter)
    }

    /// Whether `row` was left out.
    pub(super) fn is_left_out(&self, row: u32) -> bool {
        self.left_out.as_ref().is_some_and(|rows| rows.contains(row))
    }

    /// Words for a file (`docs/formats.md`).
    pub(super) fn words(&self) -> Cow<'_, [u32]> {
        let Some(left_out) = &self.left_out else { return Cow::Borrowed(self.repeated.words()) };
        let mut pairs = self.repeated.words().as_chunks::<2>().0.to_vec();
        pairs.extend(left_out.iter().map(|row| [row, NO_ID]));
        pairs.sort_unstable();
        Cow::Owned(pairs.into_flattened())
    }

    /// Parses the words of [`words`](Self::words) for a data set of `rows` rows; an error says what
    /// is wrong.
    pub(super) fn read(words: &[u32], rows: usize) -> Result<Self, &'static str> {
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("half a pair of repeated rows");
        }
        if pairs.windows(2).any(|two| two[0][0] >= two[1][0]) {
            return Err("unsorted repeated rows");
        }
        let (left_out, repeated): (Vec<[u32; 2]>, _) = pairs.iter().partition(|pair| pair[1] == NO_ID);
        let repeated = Repeated::read(repeated.as_flattened(), rows)?;
        if left_out.is_empty() {
            return Ok(Self { repeated, left_out: None });
        }
        let set = IdSet::from_ids(rows, left_out.iter().map(|pair| pair[0]));
        let set = set.map_err(|_| "an unknown row that was left out")?;
        if repeated.pairs().any(|(_, first)| set.contains(first)) {
            return Err("a first row that was left out");
        }
        Ok(Self { repeated, left_out: Some(set) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_wrong_ones_named() {
        let repeated = Repeated::read(&[4, 1, 9, 1], 10).unwrap();
        let left_out = Some(IdSet::from_ids(10, [0, 5, 8]).unwrap());
        let absent = Absent { repeated, left_out };
        assert_eq!(&*absent.words(), [0, NO_ID, 4, 1, 5, NO_ID, 8, NO_ID, 9, 1]);
        let read = Absent::read(&absent.words(), 10).unwrap();
        assert_eq!((read.repeated, read.left_out), (absent.repeated, absent.left_out));
        assert!(Absent::read(&[], 10).unwrap().is_empty());
        let wrong = |words: &[u32]| Absent::read(words, 10).unwrap_err();
        assert_eq!(wrong(&[0, NO_ID, 4]), "half a pair of repeated rows");
        assert_eq!(wrong(&[4, 1, 4, NO_ID]), "unsorted repeated rows");
        assert_eq!(wrong(&[10, NO_ID]), "an unknown row that was left out");
        assert_eq!(wrong(&[1, NO_ID, 4, 1]), "a first row that was left out");
    }
}
