//! Device memory: allocations in an address space of their own, with a flag per byte for "written".
//!
//! Blocks run in parallel and may access the same memory at once. Bytes lie in atomic words of
//! eight. A smaller access changes its part of a word atomically, so accesses never tear each
//! other.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cuda_std::memory::{GlobalMut, Plain};

use crate::fault::{Fault, FaultKind, Finding};

const BASE: u64 = 0x7_0000_0000_0000;
const ALIGNMENT: u64 = 256;
/// Unallocated addresses between two allocations, so that overruns are found.
const GAP: u64 = 1 << 20;

/// The bytes of one allocation.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    length: usize,
    words: Box<[AtomicU64]>,
    /// Bit `b` of entry `w` is set once byte `b` of word `w` was written.
    written: Box<[AtomicU8]>,
}

/// Splits a range at words: each part is a word, its first byte there, and the part of the range.
fn parts(offset: usize, length: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let (word, start) = (at / 8, at % 8);
        let count = (8 - start).min(offset + length - at);
        let part = (word, start, at - offset..at - offset + count);
        at += count;
        (count > 0).then_some(part)
    })
}

/// A mask of the low `count` bytes, at most 8.
fn low_bytes(count: usize) -> u64 {
    if count == 8 { u64::MAX } else { (1 << (8 * count)) - 1 }
}

/// The written flags of `count` bytes from byte `start` of a word on.
fn flags(start: usize, count: usize) -> u8 {
    (((1u32 << count) - 1) << start) as u8
}

impl Region {
    fn new(base: u64, length: usize) -> Self {
        let count = length.div_ceil(8);
        Self {
            base,
            length,
            words: (0..count).map(|_| AtomicU64::new(0)).collect(),
            written: (0..count).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// The first unwritten byte of a range.
    fn unwritten(&self, offset: usize, length: usize) -> Option<usize> {
        parts(offset, length).find_map(|(word, start, part)| {
            let asked = flags(start, part.len());
            let missing = asked & !self.written[word].load(Ordering::Acquire);
            (missing != 0).then(|| 8 * word + missing.trailing_zeros() as usize)
        })
    }

    /// Reads a range; fails with the first unwritten byte.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), usize> {
        if let Some(byte) = self.unwritten(offset, bytes.len()) {
            return Err(byte);
        }
        for (word, start, part) in parts(offset, bytes.len()) {
            let value = self.words[word].load(Ordering::Relaxed).to_le_bytes();
            let count = part.len();
            bytes[part].copy_from_slice(&value[start..start + count]);
        }
        Ok(())
    }

    /// Writes a range.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (word, start, part) in parts(offset, bytes.len()) {
            let count = part.len();
            let mut value = [0; 8];
            value[start..start + count].copy_from_slice(&bytes[part]);
            let (value, mask) = (u64::from_le_bytes(value), low_bytes(count) << (8 * start));
            self.change(word, |old| old & !mask | value);
            let flags = flags(start, count);
            if self.written[word].load(Ordering::Relaxed) & flags != flags {
                self.written[word].fetch_or(flags, Ordering::Release);
            }
        }
    }

    /// Changes 4 or 8 bytes atomically; fails with the first unwritten byte.
    pub fn update(
        &self,
        offset: usize,
        bytes: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, usize> {
        if let Some(byte) = self.unwritten(offset, bytes) {
            return Err(byte);
        }
        let (shift, low) = (8 * (offset % 8), low_bytes(bytes));
        let old = self.change(offset / 8, |word| {
            let new = change(word >> shift & low) & low;
            word & !(low << shift) | new << shift
        });
        Ok(old >> shift & low)
    }

    /// Changes a word atomically; returns its old value.
    fn change(&self, word: usize, mut change: impl FnMut(u64) -> u64) -> u64 {
        let cell = &self.words[word];
        let mut old = cell.load(Ordering::Relaxed);
        while let Err(now) =
            cell.compare_exchange_weak(old, change(old), Ordering::Relaxed, Ordering::Relaxed)
        {
            old = now;
        }
        old
    }

    /// The report of a read of `bytes` bytes at `offset` whose byte `byte` is unwritten.
    pub fn never_written(&self, offset: usize, bytes: usize, byte: usize) -> Finding {
        let length = self.length;
        let what = format!(
            "read of {bytes} bytes at byte {offset} of an allocation of {length}: \
             byte {byte} was never written"
        );
        Finding::new(FaultKind::Uninitialised, what)
    }
}

/// All allocations at one time, in order of address.
pub(crate) type Regions = Vec<Arc<Region>>;

/// Finds the number of the allocation that holds `bytes` bytes at an address, and their offset in
/// it. Tries allocation `guess` first.
pub(crate) fn find(
    regions: &Regions,
    guess: usize,
    address: u64,
    bytes: usize,
    doing: &str,
) -> Result<(usize, usize), Finding> {
    if bytes.is_power_of_two() && !address.is_multiple_of(bytes as u64) {
        let what =
            format!("{doing} of {bytes} bytes at device address {address:#x}, not a multiple of {bytes}");
        return Err(Finding::new(FaultKind::Misaligned, what));
    }
    let holds = |number: usize| {
        let region = regions.get(number)?;
        let offset = usize::try_from(address.checked_sub(region.base)?).ok()?;
        (offset.checked_add(bytes)? <= region.length).then_some((number, offset))
    };
    let above = || regions.partition_point(|region| region.base <= address);
    holds(guess).or_else(|| holds(above().checked_sub(1)?)).ok_or_else(|| {
        let nearest = above().checked_sub(1).map(|number| &regions[number]);
        let place = match nearest {
            Some(region) if address - region.base < region.length as u64 + GAP => {
                format!("byte {} of an allocation of {}", address - region.base, region.length)
            }
            _ => "in no allocation".to_owned(),
        };
        let what =
            format!("{doing} of {bytes} bytes at device address {address:#x} is out of bounds: {place}");
        Finding::new(FaultKind::OutOfBounds, what)
    })
}

/// All of device memory.
#[derive(Debug)]
pub(crate) struct Memory {
    allocated: RwLock<(u64, Regions)>,
}

impl Memory {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { allocated: RwLock::new((BASE, Vec::new())) })
    }

    /// The present allocations.
    pub fn regions(&self) -> Regions {
        self.allocated.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Allocation {
        let mut allocated = self.allocated.write().unwrap_or_else(PoisonError::into_inner);
        let (next, regions) = &mut *allocated;
        // Addresses are never reused, so freed memory stays out of bounds.
        let region = Arc::new(Region::new(*next, bytes));
        *next += (bytes as u64).next_multiple_of(ALIGNMENT) + GAP;
        regions.push(Arc::clone(&region));
        Allocation { region, memory: Arc::clone(self) }
    }

    fn free(&self, region: &Region) {
        let mut allocated = self.allocated.write().unwrap_or_else(PoisonError::into_inner);
        allocated.1.retain(|other| other.base != region.base);
    }
}

/// Device memory that is freed with this value.
#[derive(Debug)]
pub struct Allocation {
    region: Arc<Region>,
    memory: Arc<Memory>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.memory.free(&self.region);
    }
}

impl Allocation {
    /// The device address, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.region.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    /// A view of the memory, for the arguments of a kernel.
    pub fn view<T>(&self) -> GlobalMut<T> {
        // SAFETY: the emulator checks every access through the view.
        unsafe { GlobalMut::new(self.region.base) }
    }

    fn check(&self, offset: usize, length: usize, doing: &str) -> Result<(), Fault> {
        if offset.checked_add(length).is_some_and(|end| end <= self.len()) {
            return Ok(());
        }
        let what = format!("{doing} of {length} bytes at byte {offset} of an allocation of {}", self.len());
        Err(Fault::outside(FaultKind::OutOfBounds, what))
    }

    /// Writes bytes from byte `offset` on.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn upload(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.check(offset, bytes.len(), "upload")?;
        self.region.write(offset, bytes);
        Ok(())
    }

    /// Reads bytes from byte `offset` on.
    ///
    /// # Errors
    /// If they are out of bounds, or one is unwritten.
    pub fn download(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(offset, bytes.len(), "download")?;
        self.region.read(offset, bytes).map_err(|byte| {
            let found = self.region.never_written(offset, bytes.len(), byte);
            Fault::outside(found.kind, format!("download: {}", found.what))
        })
    }

    /// Sets every byte to `byte`.
    pub fn fill(&self, byte: u8) {
        let block = [byte; 4096];
        for offset in (0..self.len()).step_by(block.len()) {
            self.region.write(offset, &block[..block.len().min(self.len() - offset)]);
        }
    }

    /// Whether all bytes of a range are written.
    ///
    /// # Errors
    /// If they are out of bounds.
    pub fn is_written(&self, bytes: Range<usize>) -> Result<bool, Fault> {
        self.check(bytes.start, bytes.len(), "question")?;
        Ok(self.region.unwritten(bytes.start, bytes.len()).is_none())
    }

    /// Reads all values.
    ///
    /// # Errors
    /// If a byte is unwritten.
    pub fn values<T: Plain>(&self) -> Result<Vec<T>, Fault> {
        let mut bytes = vec![0; self.len() / size_of::<T>() * size_of::<T>()];
        self.download(0, &mut bytes)?;
        // SAFETY: each piece has the size of a `T`, and any bits are a `T`.
        let value = |piece: &[u8]| unsafe { piece.as_ptr().cast::<T>().read_unaligned() };
        Ok(bytes.chunks_exact(size_of::<T>()).map(value).collect())
    }

    /// Writes values from byte 0 on. They fit: only [`Emulator::upload`](crate::Emulator::upload)
    /// calls this.
    pub(crate) fn set_values<T: Plain>(&self, values: &[T]) {
        // SAFETY: a `Plain` has no padding, so all bytes of the slice are initialised.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.region.write(0, bytes);
    }
}
