//! Hashes of rows, by which equal rows are found.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::{Progress, Result};

/// Bytes of a row that the first hash covers; shorter rows are hashed whole.
pub(super) const SAMPLED: usize = 64;

/// Number of places that a longer row is sampled at, including start and end.
const PLACES: usize = 4;

/// Rows hashed between two checks for cancellation.
const AT_A_TIME: usize = 1024;

/// Fewest rows of a run worth a thread.
const COMPARED: usize = 1024;

/// A hash and its row.
pub(super) type Hashed = (u64, u32);

/// The bytes of a row that the first hash covers.
pub(super) fn sample(bytes: &[u8]) -> [u8; SAMPLED] {
    let mut sampled = [0; SAMPLED];
    if bytes.len() <= SAMPLED {
        sampled[..bytes.len()].copy_from_slice(bytes);
        return sampled;
    }
    const PIECE: usize = SAMPLED / PLACES;
    for (place, piece) in sampled.chunks_exact_mut(PIECE).enumerate() {
        piece.copy_from_slice(&bytes[place * (bytes.len() - PIECE) / (PLACES - 1)..][..PIECE]);
    }
    sampled
}

/// A 64-bit hash.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, &word| mix(hash, u64::from_le_bytes(word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // A second round spreads the last words over all bits.
    mix(mix(hash, u64::from_le_bytes(last)), 0)
}

/// Hashes every row.
pub(super) fn hash_rows(
    hashed: &mut [Hashed],
    hash: impl Fn(u32) -> u64 + Sync,
    progress: &Progress,
) -> Result<()> {
    hashed.par_chunks_mut(AT_A_TIME).try_for_each(|chunk| {
        progress.check()?;
        chunk.iter_mut().for_each(|(own, row)| *own = hash(*row));
        Ok(())
    })
}

/// Keeps the rows that share a hash with another row; hashes must ascend.
pub(super) fn shared(hashed: Vec<Hashed>) -> Vec<Hashed> {
    let is_shared = |&at: &usize| {
        let (own, _) = hashed[at];
        (at > 0 && hashed[at - 1].0 == own) || hashed.get(at + 1).is_some_and(|next| next.0 == own)
    };
    (0..hashed.len()).into_par_iter().filter(is_shared).map(|at| hashed[at]).collect()
}

/// Pairs of repeated row and first row of its group, within a run of equal hashes.
pub(super) fn pairs_of<'a>(
    run: &[Hashed],
    bytes: impl Fn(u32) -> Cow<'a, [u8]> + Sync,
    progress: &Progress,
) -> Result<Vec<[u32; 2]>> {
    let pairs = |rows: &[u32]| rows[1..].iter().map(|&row| [row, rows[0]]).collect::<Vec<_>>();
    let mut rows: Vec<u32> = run.iter().map(|&(_, row)| row).collect();
    let first = bytes(rows[0]);
    let is_first = |&row: &u32| !progress.is_cancelled() && bytes(row) == first;
    if rows.par_iter().with_min_len(COMPARED).all(is_first) {
        return Ok(pairs(&rows));
    }
    progress.check()?;
    // Different rows with the same hash.
    rows.par_sort_unstable_by(|&a, &b| bytes(a).cmp(&bytes(b)).then(a.cmp(&b)));
    Ok(rows.chunk_by(|&a, &b| bytes(a) == bytes(b)).flat_map(pairs).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Error;

    #[test]
    fn a_cancelled_comparison_reads_no_more_rows() {
        let run: Vec<Hashed> = (0..10_000).map(|row| (7, row)).collect();
        let (read, progress) = (AtomicUsize::new(0), Progress::silent());
        let bytes = |_| {
            read.fetch_add(1, Ordering::Relaxed);
            Cow::Borrowed(&[1u8][..])
        };
        assert_eq!(pairs_of(&run, bytes, &progress).unwrap().len(), run.len() - 1);
        progress.cancel();
        read.store(0, Ordering::Relaxed);
        assert!(matches!(pairs_of(&run, bytes, &progress), Err(Error::Cancelled)));
        assert_eq!(read.into_inner(), 1);
    }
}
