//! Numbers of lines and pairs of a [cross-cell join](super::cross_cell), packed in bits.
//!
//! ```text
//! Line        w h rr lll          line of the query tile, by the lane that holds it
//!             | | |  |
//!             | | |  lane / 4
//!             | | row of the half
//!             | half of the lane's lines
//!             warp % 2
//!
//! Mark        R ccc r             pair of a half: 4 rows x 8 columns of a lane
//!             | |   |
//!             | |   row % 2
//!             | column
//!             row / 2
//!
//! QueuedPair  column * 128 + line
//! ```

use cuda_std::prelude::*;

use crate::block::sums::TileSum;
use crate::block::tile;
use crate::block::tile_walk::{LanePart, column_of};

/// A line of the query tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line(pub u32);

impl Line {
    /// Lines from one row of a lane to the next.
    const ROW: u32 = 8;

    /// The line of a rank: eight consecutive ranks are the lines of one lane, four of a half.
    #[inline(always)]
    pub(super) fn at_rank(rank: u32) -> Self {
        let (warp, lane, row) = (rank / 64, rank / 8 % 8, rank % 8);
        Self(64 * warp + lane + Self::ROW * row)
    }

    /// Row `row` of the half that the line is in.
    #[inline(always)]
    pub(super) fn row_of_half(self, row: u32) -> Self {
        Self((self.0 & !(3 * Self::ROW)) + Self::ROW * row)
    }
}

/// Marks of the pairs of a half, a bit each: [`Mark`] `m` is bit `m` from the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u32);

impl Marks {
    /// Collects the marks of all pairs: `push(bits, row, column)` shifts a pair's into `bits`.
    #[inline(always)]
    pub(super) fn collect(push: impl Fn(u32, usize, usize) -> u32) -> Self {
        // Two words halve the chain of dependent shifts.
        let mut words = [0u32; 2];
        unroll!(8, C => {
            unroll!(2, H => {
                unroll!(2, R => words[H] = push(words[H], 2 * H + R, C));
            });
        });
        Self(words[0] << 16 | words[1])
    }

    /// Marks of the pairs that have none here.
    #[inline(always)]
    pub(super) fn inverted(self) -> Self {
        Self(!self.0)
    }

    /// Whether no pair is marked.
    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Takes the first mark. There is one.
    #[inline(always)]
    pub(super) fn take_first(&mut self) -> Mark {
        let mark = self.0.leading_zeros();
        self.0 &= !(0x8000_0000 >> mark);
        Mark(mark)
    }
}

/// A pair of half a lane's lines and its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u32);

impl Mark {
    /// The lowest bit of each field.
    const HIGH_ROW: u32 = 16;
    const COLUMN: u32 = 2;
    const LOW_ROW: u32 = 1;

    #[inline(always)]
    fn high_row(self) -> u32 {
        self.0 / Self::HIGH_ROW
    }

    #[inline(always)]
    fn column(self) -> u32 {
        self.0 / Self::COLUMN % 8
    }

    #[inline(always)]
    fn low_row(self) -> u32 {
        self.0 % 2
    }

    /// The line of the query tile, where `part` is the lane's and the half is number `HALF`.
    #[inline(always)]
    pub(super) fn line<const HALF: usize, S>(self, part: LanePart<S>) -> u32 {
        part.line + Line::ROW * (4 * HALF as u32 + 2 * self.high_row() + self.low_row())
    }

    /// The column of the row tile, where `part` is the lane's.
    #[inline(always)]
    pub(super) fn tile_column<S>(self, part: LanePart<S>) -> u32 {
        part.column + column_of(self.column() as usize)
    }

    /// The value of the pair, of `value(row, column)` for all pairs. Selected by halves, since
    /// registers have no addresses.
    #[inline(always)]
    pub(super) fn select<S: TileSum>(self, value: impl Fn(usize, usize) -> S) -> S {
        let either = |field: u32, zero: S, one: S| if self.0 & field != 0 { one } else { zero };
        let mut of = [S::default(); 8];
        unroll!(8, C => {
            let of_rows = |row: usize| either(Self::LOW_ROW, value(row, C), value(row + 1, C));
            of[C] = either(Self::HIGH_ROW, of_rows(0), of_rows(2));
        });
        unroll!(4, C => of[C] = either(4 * Self::COLUMN, of[C], of[C + 4]));
        unroll!(2, C => of[C] = either(2 * Self::COLUMN, of[C], of[C + 2]));
        either(Self::COLUMN, of[0], of[1])
    }
}

/// A pair of a line and a column of the tile, as queues hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedPair(pub u32);

impl QueuedPair {
    /// The pair of a line of the query tile and a column of the row tile.
    #[inline(always)]
    pub(super) fn new(line: u32, column: u32) -> Self {
        Self(column * tile::SIDE + line)
    }

    /// The line of the query tile.
    #[inline(always)]
    pub(super) fn line(self) -> usize {
        (self.0 % tile::SIDE) as usize
    }

    /// The column of the row tile.
    #[inline(always)]
    pub(super) fn column(self) -> usize {
        (self.0 / tile::SIDE) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_half_are_rows_of_one_lane() {
        let mut lines: Vec<u32> = (0..tile::SIDE).map(|rank| Line::at_rank(rank).0).collect();
        for half in lines.chunks(4) {
            for (row, &line) in (0..).zip(half) {
                assert_eq!(line, half[0] + 8 * row);
                assert_eq!(Line(line).row_of_half(row), Line(line));
                assert_eq!(Line(line).row_of_half(0), Line(half[0]));
            }
        }
        lines.sort_unstable();
        assert!(lines.into_iter().eq(0..tile::SIDE));
    }

    #[test]
    fn a_mark_is_the_pair_that_was_pushed() {
        for (row, column) in (0..4).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let mut marks = Marks::collect(|bits, r, c| bits << 1 | u32::from((r, c) == (row, column)));
            let mark = marks.take_first();
            assert!(marks.is_empty());
            let (r, c) = (2 * mark.high_row() + mark.low_row(), mark.column());
            assert_eq!((r as usize, c as usize), (row, column));
            assert_eq!(mark.select(|r, c| (8 * r + c) as i32), (8 * row + column) as i32);
        }
        let pair = QueuedPair::new(77, 127);
        assert_eq!((pair.line(), pair.column()), (77, 127));
    }
}
