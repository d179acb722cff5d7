//! Nearness: minus half of a squared distance, the same number for both vectors of a pair.
//!
//! Sums of products start at minus half of both norms, at the cost of starting at zero. One
//! comparison with a threshold of nearness then tells whether a pair is below the bound of either
//! vector.

use cuda_std::prelude::*;

use crate::block::element::TileSum;
use crate::block::tile::Sums;
use crate::block::tile_walk::{LanePart, column_of};

/// The initial sums of a lane. `terms` holds the [term](TileSum::term) of each line.
#[inline(always)]
pub(super) fn begin<S: TileSum>(terms: Shared<S>, part: LanePart<S>) -> Sums<S> {
    let (mut of_lines, mut of_columns) = ([S::default(); 8], [S::default(); 8]);
    unroll!(8, I => {
        of_lines[I] = terms.get(part.line as usize + 8 * I);
        of_columns[I] = part.columns.biases.get((part.column + column_of(I)) as usize);
    });
    let mut sums = [[S::default(); 4]; 16];
    unroll!(8, R => {
        unroll!(8, C => {
            sums[4 * (R / 2) + C / 2][2 * (R % 2) + C % 2] = S::begin_nearness(of_lines[R], of_columns[C]);
        });
    });
    sums
}

/// The nearness of line `line + 8 row` and column `column + column_of(c)`. Constant indices keep
/// the sums in registers.
#[inline(always)]
pub(super) fn of<S: TileSum>(sums: &Sums<S>, row: usize, c: usize) -> S {
    sums[4 * (row / 2) + c / 2][2 * (row % 2) + c % 2]
}
