//! Radix sort of keys on a device.

use std::ops::Range;

use cuda_std::launch::Kernel;
use tagore_device::sort::{
    DIGIT_BITS, DIGITS, Pass, SORT_KEYS, SORT_THREADS, scan_threads, sort_count, sort_scan, sort_scatter,
};

use super::{Buffer, Gpu, MemoryPlan, Reservation};
use crate::Result;

/// The kernels of a sort.
pub(crate) const KERNELS: [&str; 3] =
    [<sort_count as Kernel>::NAME, <sort_scan as Kernel>::NAME, <sort_scatter as Kernel>::NAME];

/// Buffers of a sort beside the keys.
pub(crate) struct SortRoom {
    counts: Buffer<u32>,
    totals: Buffer<u32>,
}

impl SortRoom {
    /// Adds the room for sorting up to `count` keys to a plan.
    pub(crate) fn plan(plan: MemoryPlan, count: usize) -> MemoryPlan {
        plan.with::<u32>("sort counts", DIGITS as usize * blocks(count))
            .with::<u32>("sort totals", DIGITS as usize)
    }

    /// Takes the planned buffers.
    pub(crate) fn new(memory: &Reservation) -> Result<Self> {
        Ok(Self { counts: memory.buffer("sort counts")?, totals: memory.buffer("sort totals")? })
    }

    /// Sorts the first `count` keys, fewer than 2^32, by the range `bits` of their bits. Keys equal
    /// in that range keep their order. `spare` has room for as many keys; its values are undefined
    /// afterwards.
    pub(crate) fn sort(
        &mut self,
        gpu: &Gpu,
        keys: &mut Buffer<u64>,
        spare: &mut Buffer<u64>,
        count: usize,
        bits: Range<u32>,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let blocks = blocks(count) as u32;
        for shift in bits.clone().step_by(DIGIT_BITS as usize) {
            let pass = Pass {
                keys: keys.view(),
                sorted: spare.view_mut(),
                counts: self.counts.view_mut(),
                totals: self.totals.view_mut(),
                count: count as u32,
                blocks,
                shift,
                mask: (1 << DIGIT_BITS.min(bits.end - shift)) - 1,
            };
            // SAFETY: the buffers hold `count` keys, and the room their counts; both outlive the
            // work.
            unsafe {
                gpu.launch::<sort_count>([blocks, 1, 1], SORT_THREADS, (pass,))?;
                let counts = (pass.counts, pass.totals, blocks);
                gpu.launch::<sort_scan>([DIGITS, 1, 1], scan_threads(blocks), counts)?;
                gpu.launch::<sort_scatter>([blocks, 1, 1], SORT_THREADS, (pass,))?;
            }
            let bytes = count as u64 * size_of::<u64>() as u64;
            gpu.count_work(sort_count::NAME, bytes, 0);
            gpu.count_work(sort_scatter::NAME, 2 * bytes, 0);
            std::mem::swap(keys, spare);
        }
        Ok(())
    }
}

/// Blocks of the kernels for `count` keys.
fn blocks(count: usize) -> usize {
    count.div_ceil(SORT_KEYS as usize)
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;

    #[test]
    fn keys_are_sorted_by_a_range_of_bits() {
        let gpu = Gpu::emulated(3);
        for (count, bits) in [(0usize, 0..8), (1, 3..20), (5000, 7..18), (4097, 0..64), (700, 9..9)] {
            let draws = Draws::new(count as u64, Stage::Test, 0, 0);
            let values: Vec<u64> = (0..count as u64).map(|i| draws.bits(i)).collect();
            let plan = MemoryPlan::new().with::<u64>("keys", count).with::<u64>("spare", count);
            let memory = SortRoom::plan(plan, count).reserve(&gpu).unwrap();
            let (mut keys, mut spare) = (memory.buffer("keys").unwrap(), memory.buffer("spare").unwrap());
            let mut room = SortRoom::new(&memory).unwrap();
            keys.upload(&values).unwrap();
            room.sort(&gpu, &mut keys, &mut spare, count, bits.clone()).unwrap();
            let mut found = vec![0; count];
            keys.download(&mut found).unwrap();
            let mask = u64::MAX.checked_shr(64 - (bits.end - bits.start)).unwrap_or(0);
            let mut expected = values;
            expected.sort_by_key(|key| key >> bits.start & mask);
            assert!(found == expected, "{count} keys, {bits:?}");
        }
    }
}
