//! Hashes of rows, by which equal rows are found.

use std::borrow::Cow;

use rayon::prelude::*;
use tagore_device::vectors::hash::Least;

use crate::loops::{all, at_least, for_each, gather, numbered, rows_mut, try_for_each};
use crate::{ElementType, Progress, Result};

/// Bytes of a row that the first hash covers; shorter rows are hashed whole.
pub(in crate::vectors) const SAMPLED: usize = 64;

/// Number of places that a longer row is sampled at, including start and end.
const PLACES: usize = 4;

/// Rows hashed between two checks for cancellation.
const AT_A_TIME: usize = 1024;

/// Buckets per hash: one hash in this many shares a bucket with an unlike one.
const PER_HASH: usize = 8;

/// Hashes that all threads mark at a time.
const MARKED: usize = 1 << 20;

/// Minimum number of rows of a run worth a thread.
const COMPARED: usize = 1024;

/// A hash and its row.
pub(in crate::vectors) type Hashed = (u64, u32);

/// The bytes of a row that the first hash covers.
pub(in crate::vectors) fn sample(bytes: &[u8]) -> [u8; SAMPLED] {
    let mut sampled = [0; SAMPLED];
    if bytes.len() <= SAMPLED {
        sampled[..bytes.len()].copy_from_slice(bytes);
        return sampled;
    }
    const PIECE: usize = SAMPLED / PLACES;
    for (place, piece) in sampled.chunks_exact_mut(PIECE).enumerate() {
        // Pieces begin where values of any type do.
        let begin = place * (bytes.len() - PIECE) / (PLACES - 1) / size_of::<u32>() * size_of::<u32>();
        piece.copy_from_slice(&bytes[begin..][..PIECE]);
    }
    sampled
}

/// The magnitudes below which values of `element` count as zero: -0.0 does, and so do values of f32
/// and bf16 whose squares f32 does not hold.
pub(crate) const fn least(element: ElementType) -> Least {
    /// The bits of 2^-75.
    const SQUARE_VANISHES: u32 = (127 - 75) << 23;
    match element {
        ElementType::F32 => Least { word: SQUARE_VANISHES, half: 0 },
        ElementType::Bf16 => Least { word: 0, half: SQUARE_VANISHES >> 16 },
        ElementType::F16 => Least { word: 0, half: 1 },
        ElementType::U8 | ElementType::I8 | ElementType::B1 => Least { word: 0, half: 0 },
    }
}

/// The bytes of a row with zeros for values that count as zero: equal for rows of equal values.
pub(in crate::vectors) fn by_value(bytes: &[u8], element: ElementType) -> Cow<'_, [u8]> {
    let least = least(element);
    if least == (Least { word: 0, half: 0 }) {
        return Cow::Borrowed(bytes);
    }
    let (words, rest) = bytes.as_chunks::<4>();
    let (halves, _) = rest.as_chunks::<2>();
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let half = |bytes: &[u8; 2]| u32::from(u16::from_le_bytes(*bytes));
    let is_whole = |bits: u32| least.apply(bits) == bits;
    if words.iter().map(word).all(is_whole) && halves.iter().map(half).all(is_whole) {
        return Cow::Borrowed(bytes);
    }
    let words = words.iter().flat_map(|bytes| least.apply(word(bytes)).to_le_bytes());
    let halves = halves.iter().flat_map(|bytes| (least.apply(half(bytes)) as u16).to_le_bytes());
    Cow::Owned(words.chain(halves).collect())
}

/// A 64-bit hash.
pub(in crate::vectors) fn hash(bytes: &[u8]) -> u64 {
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

/// Sets each hash to `hash` of its place.
pub(in crate::vectors) fn hash_all(
    hashes: &mut [u64],
    hash: impl Fn(usize) -> u64 + Sync,
    progress: &Progress,
) -> Result<()> {
    try_for_each(numbered(rows_mut(hashes, AT_A_TIME)), |(chunk, hashes)| {
        progress.check()?;
        for (own, place) in hashes.iter_mut().zip(chunk * AT_A_TIME..) {
            *own = hash(place);
        }
        Ok(())
    })
}

/// Marks the buckets of two hashes or more, a bit each. Each thread goes through all hashes for
/// buckets of its own: threads that set bits of one word wait for each other.
fn buckets_of_several(hashes: &[u64]) -> Vec<u64> {
    let mut several = vec![0u64; (hashes.len() * PER_HASH).div_ceil(64)];
    let mut filled = several.clone();
    let buckets = several.len() * 64;
    let words = several.len().div_ceil(rayon::current_num_threads()).max(1);
    // In pieces, which stay in the cache that threads share.
    for hashes in hashes.chunks(MARKED) {
        let parts = numbered((rows_mut(&mut several, words), rows_mut(&mut filled, words)));
        for_each(parts, |(part, (several, filled))| {
            for &hash in hashes {
                let bucket = bucket(hash, buckets);
                let word = (bucket / 64).wrapping_sub(part * words);
                if let (Some(several), Some(filled)) = (several.get_mut(word), filled.get_mut(word)) {
                    *several |= *filled & 1 << (bucket % 64);
                    *filled |= 1 << (bucket % 64);
                }
            }
        });
    }
    several
}

/// The bucket of a hash.
fn bucket(hash: u64, buckets: usize) -> usize {
    ((u128::from(hash) * buckets as u128) >> 64) as usize
}

/// The hashes that occur more than once, with the rows at their places, in ascending order.
///
/// Nearly all hashes are alone in their bucket, so few are sorted.
pub(in crate::vectors) fn shared(hashes: &[u64], row: impl Fn(usize) -> u32 + Sync) -> Vec<Hashed> {
    let several = buckets_of_several(hashes);
    let is_in_company = |hash: u64| {
        let bucket = bucket(hash, several.len() * 64);
        several[bucket / 64] >> (bucket % 64) & 1 != 0
    };
    let mut hashed = gather(numbered(hashes), |(place, &hash), found| {
        found.extend(is_in_company(hash).then(|| (hash, row(place))));
    });
    drop(several);
    hashed.par_sort_unstable();
    let mut kept = 0;
    for first in 0..hashed.len() {
        let own = hashed[first].0;
        if (kept > 0 && hashed[kept - 1].0 == own) || hashed.get(first + 1).is_some_and(|next| next.0 == own)
        {
            hashed[kept] = hashed[first];
            kept += 1;
        }
    }
    hashed.truncate(kept);
    hashed
}

/// Pairs of repeated row and first row of its group, within a run of equal hashes.
pub(in crate::vectors) fn pairs_of<'a>(
    run: &[Hashed],
    bytes: impl Fn(u32) -> Cow<'a, [u8]> + Sync,
    progress: &Progress,
) -> Result<Vec<[u32; 2]>> {
    let pairs = |rows: &[u32]| rows[1..].iter().map(|&row| [row, rows[0]]).collect::<Vec<_>>();
    let mut rows: Vec<u32> = run.iter().map(|&(_, row)| row).collect();
    let first = bytes(rows[0]);
    let is_first = |&row: &u32| !progress.is_cancelled() && bytes(row) == first;
    if all(at_least(COMPARED, &rows[..]), is_first) {
        return Ok(pairs(&rows));
    }
    progress.check()?;
    // Different rows with the same hash.
    rows.par_sort_unstable_by(|&a, &b| bytes(a).cmp(&bytes(b)).then(a.cmp(&b)));
    Ok(rows.chunk_by(|&a, &b| bytes(a) == bytes(b)).flat_map(pairs).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::Error;

    #[test]
    fn hashes_of_several_rows_are_kept_in_order() {
        for (n, kinds) in [(0, 1), (1, 1), (2, 1), (1000, 1), (1000, 3), (5000, 2500), (5000, u64::MAX)] {
            let draws = Draws::new(n, Stage::Test, 1, kinds);
            // Small numbers share their buckets.
            let hashes: Vec<u64> = (0..n).map(|i| draws.below(i, kinds)).collect();
            let mut counts = HashMap::new();
            hashes.iter().for_each(|&hash| *counts.entry(hash).or_insert(0) += 1);
            let rows = hashes.iter().zip((0..n as u32).map(|place| 3 * place));
            let mut expected: Vec<Hashed> = rows.map(|(&hash, row)| (hash, row)).collect();
            expected.retain(|(hash, _)| counts[hash] > 1);
            expected.sort_unstable();
            assert_eq!(shared(&hashes, |place| 3 * place as u32), expected, "{n} of {kinds}");
        }
    }

    #[test]
    fn a_cancelled_comparison_reads_no_more_rows() {
        let run: Vec<Hashed> = (0..10_000).map(|row| (7, row)).collect();
        let (read, progress) = (AtomicUsize::new(0), Progress::silent());
        let bytes = |_| {
            read.fetch_add(1, Relaxed);
            Cow::Borrowed(&[1u8][..])
        };
        assert_eq!(pairs_of(&run, bytes, &progress).unwrap().len(), run.len() - 1);
        progress.cancel();
        read.store(0, Relaxed);
        assert!(matches!(pairs_of(&run, bytes, &progress), Err(Error::Cancelled)));
        assert_eq!(read.into_inner(), 1);
    }
}
