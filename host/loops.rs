//! Loops over rows, numbers and slices on all threads.
//!
//! Rayon would compile its whole machinery anew for each loop and each type of item, a third of the
//! code of this library. Here rayon sees one loop alone, that of [`on_threads`]. Each thread takes
//! the next part of the items from behind a lock, smaller ones toward the end, and goes through it
//! in a plain loop.

use std::convert::Infallible;
use std::sync::Mutex;

use rayon::prelude::*;

use crate::Result;
pub(crate) use crate::items::{Items, Rows, at_least, numbered, rows, rows_mut};
use crate::parallel::{locked, unlocked};

/// Parts per thread of the remaining items: the last parts are small, so that threads end together.
const PARTS_PER_THREAD: usize = 4;

/// Maximum number of parts per thread of all items: a thread seldom waits for the lock.
const MAX_PARTS_PER_THREAD: usize = 32;

/// Calls `work` on several threads, `times` times in all. The only loop of rayon.
pub(crate) fn on_threads(times: usize, work: &(dyn Fn() + Sync)) {
    match times {
        0 => {}
        1 => work(),
        _ => (0..times).into_par_iter().with_max_len(1).for_each(|_| work()),
    }
}

/// The items that no thread has taken yet.
struct Remaining<I> {
    items: I,
    /// The number of the first item.
    first: usize,
    left: usize,
    least: usize,
    threads: usize,
}

impl<I: Items> Remaining<I> {
    fn new(items: I) -> Self {
        let (left, least) = (items.len(), items.least().max(1));
        // Two also in a pool of one thread: the stack of the calling thread may be small.
        let threads = (left / least).clamp(1, rayon::current_num_threads().max(2));
        Self { items, first: 0, left, least: least.max(left / (MAX_PARTS_PER_THREAD * threads)), threads }
    }
}

/// Takes the next part: the number of its first item, and its items.
fn take<I: Items>(remaining: &Mutex<Remaining<I>>) -> Option<(usize, I::Part)> {
    let mut remaining = locked(remaining);
    let Remaining { items, first, left, least, threads } = &mut *remaining;
    let count = (*left / (PARTS_PER_THREAD * *threads)).max(*least).min(*left);
    let begin = *first;
    (*first, *left) = (begin + count, *left - count);
    (count > 0).then(|| (begin, items.take_first(count)))
}

/// The error of the first part that failed, and the first item of that part by number.
type Failed<E> = Mutex<Option<(usize, E)>>;

/// Keeps the error of the part from `first` on unless an earlier part has failed.
fn keep<E>(failed: &Failed<E>, first: usize, error: E) {
    let mut failed = locked(failed);
    match &*failed {
        Some((before, _)) if *before < first => {}
        _ => *failed = Some((first, error)),
    }
}

/// Calls `body(scratch, first, part)` for parts of the items, where `first` is the number of the
/// first item of the part. Each thread has a `scratch`. After an error, no more parts begin. Parts
/// begin in order, so the first error in order is known: it is returned.
fn for_each_part<I: Items, S, E: Send>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    body: impl Fn(&mut S, usize, I::Part) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (remaining, failed) = (Remaining::new(items), Failed::new(None));
    let (threads, remaining) = (remaining.threads, Mutex::new(remaining));
    on_threads(threads, &|| {
        let mut next = take(&remaining);
        if next.is_none() {
            return;
        }
        let mut own = scratch();
        while let Some((first, part)) = next {
            if let Err(error) = body(&mut own, first, part) {
                locked(&remaining).left = 0;
                keep(&failed, first, error);
            }
            next = take(&remaining);
        }
    });
    match unlocked(failed) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

fn no_error<T>(result: Result<T, Infallible>) -> T {
    result.unwrap_or_else(|never| match never {})
}

/// Calls `body` for each item.
pub(crate) fn for_each<I: Items>(items: I, body: impl Fn(I::Item) + Sync) {
    for_each_with(items, || (), |(), item| body(item));
}

/// [`for_each`] with a `scratch` per thread.
pub(crate) fn for_each_with<I: Items, S>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    body: impl Fn(&mut S, I::Item) + Sync,
) {
    no_error(for_each_part(items, scratch, |scratch, _, part| {
        part.for_each(|item| body(scratch, item));
        Ok(())
    }));
}

/// Calls `body` for each item. Ends soon after an error; returns the first in the order of the
/// items.
pub(crate) fn try_for_each<I: Items>(items: I, body: impl Fn(I::Item) -> Result<()> + Sync) -> Result<()> {
    try_for_each_with(items, || (), |(), item| body(item))
}

/// [`try_for_each`] with a `scratch` per thread.
pub(crate) fn try_for_each_with<I: Items, S>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    body: impl Fn(&mut S, I::Item) -> Result<()> + Sync,
) -> Result<()> {
    for_each_part(items, scratch, |scratch, _, mut part| part.try_for_each(|item| body(scratch, item)))
}

/// The first result of `find` in the order of the items.
pub(crate) fn find_first<I: Items, T: Send>(
    items: I,
    find: impl Fn(I::Item) -> Option<T> + Sync,
) -> Option<T> {
    let found = |(): &mut (), _, mut part: I::Part| part.find_map(&find).map_or(Ok(()), Err);
    for_each_part(items, || (), found).err()
}

/// Whether all items pass.
pub(crate) fn all<I: Items>(items: I, passes: impl Fn(I::Item) -> bool + Sync) -> bool {
    find_first(items, |item| (!passes(item)).then_some(())).is_none()
}

/// Appends the results of all items to `values`, in order.
pub(crate) fn extend<I: Items, S, T: Send>(
    values: &mut Vec<T>,
    items: I,
    scratch: impl Fn() -> S + Sync,
    result: impl Fn(&mut S, I::Item) -> T + Sync,
) {
    let (before, count) = (values.len(), items.len());
    values.reserve(count);
    let slots = &mut values.spare_capacity_mut()[..count];
    for_each_with((slots, items), scratch, |scratch, (slot, item)| {
        slot.write(result(scratch, item));
    });
    // SAFETY: there are as many items as slots, and the loop above has written one for each.
    unsafe { values.set_len(before + count) };
}

/// The results of all items, in order.
pub(crate) fn map<I: Items, T: Send>(items: I, result: impl Fn(I::Item) -> T + Sync) -> Vec<T> {
    map_with(items, || (), |(), item| result(item))
}

/// [`map`] with a `scratch` per thread.
pub(crate) fn map_with<I: Items, S, T: Send>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    result: impl Fn(&mut S, I::Item) -> T + Sync,
) -> Vec<T> {
    let mut values = Vec::new();
    extend(&mut values, items, scratch, result);
    values
}

/// The results of all items, in order, or the first error, as of [`try_for_each`].
pub(crate) fn try_map<I: Items, T: Send>(
    items: I,
    result: impl Fn(I::Item) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    try_map_with(items, || (), |(), item| result(item))
}

/// [`try_map`] with a `scratch` per thread.
pub(crate) fn try_map_with<I: Items, S, T: Send>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    result: impl Fn(&mut S, I::Item) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let mut values: Vec<Option<T>> = (0..items.len()).map(|_| None).collect();
    try_for_each_with((&mut values[..], items), scratch, |scratch, (slot, item)| {
        *slot = Some(result(scratch, item)?);
        Ok(())
    })?;
    // In place.
    Ok(values.into_iter().flatten().collect())
}

/// The values that `find(item, found)` appends to `found`, in the order of the items.
pub(crate) fn gather<I: Items, T: Send>(items: I, find: impl Fn(I::Item, &mut Vec<T>) + Sync) -> Vec<T> {
    let parts = Mutex::new(Vec::new());
    let find_in = |(): &mut (), first, part: I::Part| {
        let mut found = Vec::new();
        part.for_each(|item| find(item, &mut found));
        locked(&parts).push((first, found));
        Ok(())
    };
    no_error(for_each_part(items, || (), find_in));
    let mut parts = unlocked(parts);
    parts.sort_unstable_by_key(|part| part.0);
    let mut all = Vec::with_capacity(parts.iter().map(|part| part.1.len()).sum());
    parts.into_iter().for_each(|(_, found)| all.extend(found));
    all
}

/// The items that pass, in order.
pub(crate) fn filter<I: Items<Item: Send>>(
    items: I,
    passes: impl Fn(&I::Item) -> bool + Sync,
) -> Vec<I::Item> {
    gather(items, |item, found| found.extend(Some(item).filter(&passes)))
}

/// Merges the results of all items, in any order. Merging with `start` changes nothing.
pub(crate) fn reduce<I: Items, T: Copy + Send + Sync>(
    items: I,
    start: T,
    result: impl Fn(I::Item) -> T + Sync,
    merge: impl Fn(T, T) -> T + Sync,
) -> T {
    fold(items, || start, |merged, item| merge(merged, result(item)), &merge)
}

/// Adds the items of each part to a `start`, in order, then merges the sums of parts in any order.
pub(crate) fn fold<I: Items, T: Send>(
    items: I,
    start: impl Fn() -> T + Sync,
    add: impl Fn(T, I::Item) -> T + Sync,
    merge: impl Fn(T, T) -> T + Sync,
) -> T {
    no_error(merged_parts(items, start, |sum, part| Ok(part.fold(sum, &add)), merge))
}

/// [`fold`], or the first error, as of [`try_for_each`].
pub(crate) fn try_fold<I: Items, T: Send>(
    items: I,
    start: impl Fn() -> T + Sync,
    add: impl Fn(T, I::Item) -> Result<T> + Sync,
    merge: impl Fn(T, T) -> T + Sync,
) -> Result<T> {
    merged_parts(items, start, |sum, mut part| part.try_fold(sum, &add), merge)
}

fn merged_parts<I: Items, T: Send, E: Send>(
    items: I,
    start: impl Fn() -> T + Sync,
    add: impl Fn(T, I::Part) -> Result<T, E> + Sync,
    merge: impl Fn(T, T) -> T + Sync,
) -> Result<T, E> {
    let all = Mutex::new(None);
    let add_part = |(): &mut (), _, part: I::Part| {
        let sum = add(start(), part)?;
        let mut all = locked(&all);
        *all = Some(match all.take() {
            Some(before) => merge(before, sum),
            None => sum,
        });
        Ok(())
    };
    for_each_part(items, || (), add_part)?;
    Ok(unlocked(all).unwrap_or_else(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// Runs `body` in pools of several sizes.
    fn in_pools(body: impl Fn() + Sync) {
        for threads in [1, 2, 5] {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&body);
        }
    }

    #[test]
    fn results_are_in_order() {
        in_pools(|| {
            for count in [0, 1, 2, 63, 1000] {
                let numbers: Vec<usize> = (0..count).collect();
                assert_eq!(map(0..count, |i| i), numbers);
                assert_eq!(map(at_least(100, &numbers[..]), |&i| i), numbers);
                assert_eq!(try_map(0..count as u32, |i| Ok(i as usize)).unwrap(), numbers);
                let odd: Vec<usize> = numbers.iter().copied().filter(|i| i % 2 == 1).collect();
                assert_eq!(filter(0..count, |i| i % 2 == 1), odd);
                assert_eq!(reduce(0..count, 0, |i| i, |a, b| a + b), numbers.iter().sum::<usize>());
                assert!(all(0..count, |i| i < count));
                let mut values = vec![0; count];
                for_each((numbered(rows_mut(&mut values, 3)), rows(&numbers, 3)), |((row, to), from)| {
                    assert_eq!(from[0], 3 * row);
                    to.copy_from_slice(from);
                });
                assert_eq!(values, numbers);
            }
        });
    }

    #[test]
    fn the_first_error_in_order_is_returned() {
        in_pools(|| {
            let fail = |i: usize| if i % 100 < 77 { Ok(()) } else { Err(Error::argument("i", i, "less")) };
            let first = fail(77).unwrap_err().to_string();
            for _ in 0..100 {
                assert_eq!(try_for_each(0..1000usize, fail).unwrap_err().to_string(), first);
                assert_eq!(find_first(0..1000usize, |i| fail(i).err().map(|_| i)), Some(77));
            }
        });
    }
}
