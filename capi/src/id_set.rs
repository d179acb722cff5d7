//! Sets of rows, for filters.

use std::mem::MaybeUninit;

use tagore::{IdSet, MAX_ROWS};

use crate::pointers::{required, values};
use crate::status::{Failure, free, make, tagore_status};

/// A set of rows, read only: any number of threads use it at the same time.
pub struct tagore_id_set(pub(crate) IdSet);

/// A set of the rows of a base of `rows` rows, from a bitmap, which is copied: row i is bit i % 64,
/// from the lowest, of word i / 64. `count` is the number of words, `rows` / 64 rounded up. Bits
/// after the last row are 0.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_id_set_create(
    rows: usize,
    words: *const u64,
    count: usize,
    out: Option<&mut MaybeUninit<*mut tagore_id_set>>,
) -> tagore_status {
    make(out, || {
        if rows > MAX_ROWS {
            return Err(Failure::argument("rows", rows, format_args!("at most {MAX_ROWS}")));
        }
        if count != rows.div_ceil(64) {
            let expected = format!("{} for {rows} rows", rows.div_ceil(64));
            return Err(Failure::argument("count", count, expected));
        }
        // SAFETY: by the header, `count` words.
        let words = unsafe { values(words, count, "words") }?.to_vec();
        Ok(tagore_id_set(IdSet::from_words(rows, words)?))
    })
}

/// The complement of `set`: a search among it leaves out the rows of `set`.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_id_set_complement(
    set: Option<&tagore_id_set>,
    out: Option<&mut MaybeUninit<*mut tagore_id_set>>,
) -> tagore_status {
    make(out, || Ok(tagore_id_set(required(set, "set")?.0.complement())))
}

/// Frees a handle, as tagore_vectors_free does.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_id_set_free(set: Option<Box<tagore_id_set>>) {
    free(set);
}
