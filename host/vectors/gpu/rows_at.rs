//! Copies of rows on a device.

use std::ops::Range;

use cuda_std::launch::Kernel;
use cuda_std::memory::{Global, GlobalMut};
use tagore_device::vectors::copy::{
    CopyRows, vectors_copy_bits, vectors_copy_bytes, vectors_copy_narrowed, vectors_copy_packed,
    vectors_copy_words,
};
use tagore_device::vectors::{Strided, VECTOR_ROWS, VECTOR_THREADS};

use crate::Result;
use crate::gpu::{Buffer, Gpu};

/// The rows that a copy takes.
#[derive(Clone)]
pub(crate) enum Pick<'a> {
    Range(Range<usize>),
    Ids(&'a [u32]),
}

impl<'a> Pick<'a> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::Ids(ids) => ids.len(),
        }
    }

    /// The row at a place.
    pub(crate) fn row(&self, place: usize) -> usize {
        match self {
            Self::Range(range) => range.start + place,
            Self::Ids(ids) => ids[place] as usize,
        }
    }
}

/// Rows in memory of a device.
#[derive(Clone, Copy)]
pub(crate) struct RowsAt {
    pub values: Global<u8>,
    /// Bytes from one row to the next.
    pub stride: usize,
    pub count: usize,
    pub dim: usize,
    /// Bytes per component.
    pub size: usize,
}

impl RowsAt {
    /// The rows as values of type `T`, which has their size.
    pub(super) fn typed<T>(self) -> Strided<T> {
        self.divided(size_of::<T>(), self.dim)
    }

    pub(super) fn in_bytes(self) -> Strided<u8> {
        self.divided(1, self.dim * self.size)
    }

    /// The rows as words, if all begin and end at multiples of a word.
    pub(super) fn words(self) -> Option<Strided<u32>> {
        let row = self.dim * self.size;
        let aligned = (self.values.address() | self.stride as u64 | row as u64).is_multiple_of(4);
        aligned.then(|| self.divided(4, row / 4))
    }

    fn divided<T>(self, size: usize, dim: usize) -> Strided<T> {
        let (stride, count) = ((self.stride / size) as u64, self.count as u32);
        Strided { values: self.values.cast(), stride, count, dim: dim as u32 }
    }

    /// Blocks with a warp for each of `count` rows.
    pub(super) fn blocks(self, count: usize) -> u32 {
        count.div_ceil(VECTOR_ROWS as usize) as u32
    }

    /// Copies all rows, which are bits, as bytes to `to`, `to_stride` bytes apart; zeros fill the
    /// gaps.
    pub(super) fn widen(self, gpu: &Gpu, to: GlobalMut<u8>, to_stride: usize) -> Result<()> {
        self.copy_all::<vectors_copy_bits, u8>(gpu, self.typed(), to, to_stride)
    }

    /// Packs all rows, which are zeros and ones in bytes, as bits to `to`, `words` words apart.
    /// Rows begin at multiples of 16 bytes, with zeros between them.
    pub(crate) fn pack(self, gpu: &Gpu, to: GlobalMut<u32>, words: usize) -> Result<()> {
        self.copy_all::<vectors_copy_packed, u32>(gpu, self.divided(1, words), to, words)
    }

    fn copy_all<K: Kernel<Arguments = (CopyRows<u8, U>,)>, U>(
        self,
        gpu: &Gpu,
        rows: Strided<u8>,
        to: GlobalMut<U>,
        to_stride: usize,
    ) -> Result<()> {
        // SAFETY: an address that no launch reads.
        let ids = unsafe { Global::new(to.address()) };
        let (count, to_stride) = (self.count as u32, to_stride as u64);
        let p = CopyRows { rows, ids, to, to_stride, count, first: 0, by_ids: 0, padding: 0 };
        let grid = [self.blocks(self.count), 1, 1];
        // SAFETY: the caller's rows exist, and `to` has room for all.
        unsafe { gpu.launch::<K>(grid, VECTOR_THREADS, (p,)) }
    }

    /// Copies rows to `to`, `to_stride` bytes apart; zeros fill the gaps. With `narrowed`, they are
    /// f32 values that become bytes.
    pub(crate) fn copy(
        self,
        gpu: &Gpu,
        pick: Pick<'_>,
        to: GlobalMut<u8>,
        to_stride: usize,
        narrowed: bool,
    ) -> Result<()> {
        let count = pick.len();
        if count == 0 {
            return Ok(());
        }
        let of_ids = match &pick {
            Pick::Ids(ids) => {
                let mut on_device: Buffer<u32> = gpu.buffer("picked rows", ids.len())?;
                on_device.upload(ids)?;
                Some(on_device)
            }
            Pick::Range(_) => None,
        };
        // SAFETY: an address that no launch reads unless there are ids.
        let ids = of_ids.as_ref().map_or(unsafe { Global::new(to.address()) }, Buffer::view);
        let (by_ids, first) = (u32::from(of_ids.is_some()), pick.row(0) as u32);
        let first = if of_ids.is_some() { 0 } else { first };
        let (grid, count) = ([self.blocks(count), 1, 1], count as u32);
        let aligned = (to.address() | to_stride as u64).is_multiple_of(4);
        macro_rules! launch {
            ($kernel:ty, $rows:expr, $to:expr, $to_stride:expr) => {{
                let (rows, to, to_stride) = ($rows, $to, $to_stride as u64);
                let p = CopyRows { rows, ids, to, to_stride, count, first, by_ids, padding: 0 };
                // SAFETY: the caller's rows and ids exist, and `to` has room for `count` rows.
                unsafe { gpu.launch::<$kernel>(grid, VECTOR_THREADS, (p,)) }
            }};
        }
        match self.words().filter(|_| aligned) {
            _ if narrowed => launch!(vectors_copy_narrowed, self.typed::<f32>(), to, to_stride),
            Some(words) => launch!(vectors_copy_words, words, to.cast(), to_stride / 4),
            None => launch!(vectors_copy_bytes, self.in_bytes(), to, to_stride),
        }
    }
}
