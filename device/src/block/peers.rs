//! Lanes of a warp that hold the same number, by votes on its bits.

use cuda_std::prelude::*;

/// The lanes with this lane's `value`, of `bits` bits, among the lanes with `there`. The whole warp
/// calls this.
#[inline(always)]
#[track_caller]
pub fn peers(value: u32, bits: u32, there: bool) -> u32 {
    let mut peers = warp::ballot(there);
    let mut bit = 0;
    while bit < bits {
        let set = value >> bit & 1 == 1;
        let lanes = warp::ballot(set);
        peers &= if set { lanes } else { !lanes };
        bit += 1;
    }
    peers
}
