//! Vectors of a device in another order.

use cuda_std::memory::{Global, GlobalMut};
use tagore_device::descent::renumber::{
    RENUMBER_THREADS, Renumber, RenumberValues, renumber_values, renumber_vectors,
};

use super::TileVectors;
use crate::Result;
use crate::gpu::{Buffer, Gpu};

/// Parts of the columns that move one after another where vectors stay in their memory.
const PARTS: u32 = 4;

/// Bytes of a unit.
const UNIT: usize = 16;

/// The order of `count` vectors: the vector of each place.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub gpu: &'a Gpu,
    pub vectors: Global<u32>,
    pub count: usize,
}

/// Bytes that [`Order::apply`] needs beside `count` vectors, `stride` bytes apart.
pub(crate) fn spare_bytes(count: usize, stride: usize) -> usize {
    count * part(stride) as usize * UNIT
}

/// Units of a part.
fn part(stride: usize) -> u32 {
    ((stride / UNIT) as u32).div_ceil(PARTS)
}

impl Order<'_> {
    /// Copies vectors, a multiple of 16 bytes apart, to their places.
    pub(crate) fn copy(&self, from: TileVectors, to: GlobalMut<u8>) -> Result<()> {
        let units = from.units();
        self.launch(from, to, units, units, true)
    }

    /// Moves vectors, `stride` bytes apart, to their places in the same memory, beside
    /// [`spare_bytes`].
    pub(crate) fn apply(&self, vectors: GlobalMut<u8>, stride: usize, spare: &mut Buffer<u8>) -> Result<()> {
        let (units, part) = ((stride / UNIT) as u32, part(stride));
        for first in (0..units).step_by(part as usize) {
            let width = part.min(units - first);
            let columns = vectors.offset(first as usize * UNIT);
            let from = TileVectors { vectors: columns.read_only(), stride: stride as u32 };
            self.launch(from, spare.view_mut(), width, width, true)?;
            let from = TileVectors { vectors: spare.view(), stride: width * UNIT as u32 };
            self.launch(from, columns, units, width, false)?;
        }
        Ok(())
    }

    /// Copies values to their places, and finds the place of each vector.
    pub(crate) fn copy_values(
        &self,
        from: Global<u32>,
        to: GlobalMut<u32>,
        places: GlobalMut<u32>,
    ) -> Result<()> {
        let p =
            RenumberValues { from, to, order: self.vectors, places, count: self.count as u32, padding: 0 };
        let grid = [p.count.div_ceil(RENUMBER_THREADS), 1, 1];
        // SAFETY: the order holds every vector once, and the caller's memory a value each.
        unsafe { self.gpu.launch::<renumber_values>(grid, RENUMBER_THREADS, (p,)) }
    }

    /// Copies `units` units of each vector, `to_stride` units apart.
    fn launch(
        &self,
        from: TileVectors,
        to: GlobalMut<u8>,
        to_stride: u32,
        units: u32,
        ordered: bool,
    ) -> Result<()> {
        let p = Renumber {
            from: from.vectors.cast(),
            to: to.cast(),
            order: self.vectors,
            count: self.count as u32,
            from_stride: from.units(),
            to_stride,
            units,
            shift: Renumber::shift_of(units),
            ordered: u32::from(ordered),
        };
        // SAFETY: the order holds every vector once, the caller's memory has room for all of them,
        // and both are different memory.
        unsafe { self.gpu.launch::<renumber_vectors>([p.blocks(), 1, 1], RENUMBER_THREADS, (p,)) }
    }
}
