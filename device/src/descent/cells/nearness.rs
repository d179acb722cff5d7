//! Nearness: minus half of a squared distance.
//!
//! Sums of products begin at minus half of both norms, which costs no more than zeros do, and end as the same number
//! for both of a pair: whoever of them asks, one comparison with a threshold of nearness tells.

use cuda_std::prelude::*;

use crate::block::element::TileSum;
use crate::block::tile::Sums;
use crate::block::tile_walk::{LanePart, column_of};

/// What a lane's sums begin at: of the lines `line + 8 r`, whose [terms](TileSum::term) are these, and its columns.
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

/// The nearness of line `line + 8 row` and column `column_of(c)`. Constant indices: the sums stay in registers.
#[inline(always)]
pub(super) fn of<S: TileSum>(sums: &Sums<S>, row: usize, c: usize) -> S {
    sums[4 * (row / 2) + c / 2][2 * (row % 2) + c % 2]
}
