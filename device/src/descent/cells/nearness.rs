//! Nearness: minus half of a squared distance, the same number for both vectors of a pair.
//!
//! Sums of products start at minus half of both norms, at the cost of starting at zero. One
//! comparison with a threshold of nearness then tells whether a pair is below the bound of either
//! vector.

use cuda_std::prelude::*;

use crate::block::sums::TileSum;
use crate::block::tile::Sums;
use crate::block::tile_walk::{LanePart, column_of};

/// The initial sums of a lane. `terms` holds the [term](TileSum::term) of each line.
#[inline(always)]
pub(super) fn begin<S: TileSum>(terms: Shared<S>, part: LanePart<S>) -> Sums<S> {
    begin_with(terms, part, |_, _, half| half)
}

/// As [`begin`]; `change(h, c, half)` replaces the part of column `c` in the sums of the lane's
/// lines `4 h` to `4 h + 3`.
#[inline(always)]
pub(super) fn begin_with<S: TileSum>(
    terms: Shared<S>,
    part: LanePart<S>,
    change: impl Fn(usize, usize, S) -> S,
) -> Sums<S> {
    let mut of_lines = [S::default(); 8];
    unroll!(8, I => of_lines[I] = S::half(terms.get(part.line as usize + 8 * I)));
    let mut sums = [[S::default(); 4]; 16];
    unroll!(8, C => {
        let of_column = S::half(part.columns.biases.get((part.column + column_of(C)) as usize));
        unroll!(2, H => {
            let changed = change(H, C, of_column);
            unroll!(4, I => {
                let sum = S::plus(of_lines[4 * H + I], changed);
                sums[4 * (2 * H + I / 2) + C / 2][2 * (I % 2) + C % 2] = sum;
            });
        });
    });
    sums
}
