//! Items of parallel loops, which threads take in parts: values of slices, rows and numbers.

use std::ops::Range;
use std::slice::{Chunks, ChunksMut, Iter, IterMut};

/// Items that threads divide among one another.
///
/// # Safety
/// A part has as many items as were taken, up to [`len`](Self::len): loops write as many results.
pub(crate) unsafe trait Items: Send {
    type Item;
    type Part: Iterator<Item = Self::Item>;

    fn len(&self) -> usize;

    /// Takes the first `count` of the items, at most all.
    fn take_first(&mut self, count: usize) -> Self::Part;

    /// The minimum number of items per part.
    fn least(&self) -> usize {
        1
    }
}

// SAFETY: an iterator of a slice gives each of its values.
unsafe impl<'a, T: Sync> Items for &'a [T] {
    type Item = &'a T;
    type Part = Iter<'a, T>;

    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    fn take_first(&mut self, count: usize) -> Iter<'a, T> {
        let (first, others) = self.split_at(count);
        *self = others;
        first.iter()
    }
}

// SAFETY: an iterator of a slice gives each of its values.
unsafe impl<'a, T: Send> Items for &'a mut [T] {
    type Item = &'a mut T;
    type Part = IterMut<'a, T>;

    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    fn take_first(&mut self, count: usize) -> IterMut<'a, T> {
        let (first, others) = std::mem::take(self).split_at_mut(count);
        *self = others;
        first.iter_mut()
    }
}

macro_rules! ranges {
    ($($number:ty),*) => {$(
        // SAFETY: a range gives each of its numbers.
        unsafe impl Items for Range<$number> {
            type Item = $number;
            type Part = Self;

            fn len(&self) -> usize {
                ExactSizeIterator::len(self)
            }

            fn take_first(&mut self, count: usize) -> Self {
                let first = self.start;
                self.start += count as $number;
                first..self.start
            }
        }
    )*};
}

ranges!(u32, usize);

/// The rows of a slice; the last may be shorter.
pub(crate) struct Rows<V> {
    values: V,
    width: usize,
}

/// The rows of `width` values.
pub(crate) fn rows<T>(values: &[T], width: usize) -> Rows<&[T]> {
    Rows { values, width }
}

/// The rows of `width` values, to write.
pub(crate) fn rows_mut<T>(values: &mut [T], width: usize) -> Rows<&mut [T]> {
    Rows { values, width }
}

// SAFETY: as many chunks as the length rounded up.
unsafe impl<'a, T: Sync> Items for Rows<&'a [T]> {
    type Item = &'a [T];
    type Part = Chunks<'a, T>;

    fn len(&self) -> usize {
        self.values.len().div_ceil(self.width)
    }

    fn take_first(&mut self, count: usize) -> Chunks<'a, T> {
        let (first, others) = self.values.split_at(self.values.len().min(count * self.width));
        self.values = others;
        first.chunks(self.width)
    }
}

// SAFETY: as many chunks as the length rounded up.
unsafe impl<'a, T: Send> Items for Rows<&'a mut [T]> {
    type Item = &'a mut [T];
    type Part = ChunksMut<'a, T>;

    fn len(&self) -> usize {
        self.values.len().div_ceil(self.width)
    }

    fn take_first(&mut self, count: usize) -> ChunksMut<'a, T> {
        let end = self.values.len().min(count * self.width);
        let (first, others) = std::mem::take(&mut self.values).split_at_mut(end);
        self.values = others;
        first.chunks_mut(self.width)
    }
}

// SAFETY: pairs as long as both have items.
unsafe impl<A: Items, B: Items> Items for (A, B) {
    type Item = (A::Item, B::Item);
    type Part = std::iter::Zip<A::Part, B::Part>;

    fn len(&self) -> usize {
        self.0.len().min(self.1.len())
    }

    fn take_first(&mut self, count: usize) -> Self::Part {
        self.0.take_first(count).zip(self.1.take_first(count))
    }

    fn least(&self) -> usize {
        self.0.least().max(self.1.least())
    }
}

/// Items with their numbers.
pub(crate) fn numbered<I: Items>(items: I) -> (Range<usize>, I) {
    (0..items.len(), items)
}

/// Items with a minimum number per part.
pub(crate) struct AtLeast<I> {
    least: usize,
    items: I,
}

/// Parts have at least `least` items: fewer take less time than a thread takes to wake up.
pub(crate) fn at_least<I: Items>(least: usize, items: I) -> AtLeast<I> {
    AtLeast { least, items }
}

// SAFETY: the same items.
unsafe impl<I: Items> Items for AtLeast<I> {
    type Item = I::Item;
    type Part = I::Part;

    fn len(&self) -> usize {
        self.items.len()
    }

    fn take_first(&mut self, count: usize) -> I::Part {
        self.items.take_first(count)
    }

    fn least(&self) -> usize {
        self.least
    }
}
