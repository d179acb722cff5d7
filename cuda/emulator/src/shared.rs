//! The shared memory of a block: the dynamic part and the static arrays, with bounds of their own.

use crate::fault::{FaultKind, Finding};
use crate::race::{Access, Caller, Touch};

/// The address of dynamic shared memory.
pub(crate) const DYNAMIC: u32 = 0x400;
/// Unallocated addresses between two arrays, so that overruns are found.
const GAP: u32 = 0x1_0000;

/// The state of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unwritten,
    /// The target of an unfinished asynchronous copy.
    Pending,
    Written,
}

#[derive(Debug)]
struct Segment {
    name: &'static str,
    base: u32,
    bytes: Vec<u8>,
    states: Vec<State>,
    /// Per word of four bytes.
    accesses: Vec<Vec<Access>>,
}

impl Segment {
    fn new(name: &'static str) -> Self {
        Self { name, base: 0, bytes: Vec::new(), states: Vec::new(), accesses: Vec::new() }
    }

    fn reset(&mut self, base: u32, length: usize) {
        self.base = base;
        self.bytes.clear();
        self.bytes.resize(length, 0);
        self.states.clear();
        self.states.resize(length, State::Unwritten);
        self.accesses.iter_mut().for_each(Vec::clear);
        self.accesses.resize(length.div_ceil(4), Vec::new());
    }

    fn touch(
        &mut self,
        offset: usize,
        bytes: usize,
        touch: Touch,
        caller: Caller<'_>,
    ) -> Result<(), Finding> {
        for word in offset / 4..(offset + bytes).div_ceil(4) {
            let first = offset.max(4 * word) - 4 * word;
            let last = (offset + bytes).min(4 * word + 4) - 4 * word;
            let part = ((1u8 << last) - 1) & !((1u8 << first) - 1);
            caller.touch(&mut self.accesses[word], touch, part).map_err(|other| {
                let what = format!(
                    "{} of byte {} of {} races with thread {}'s {} at {}: no barrier is between them",
                    touch.name(),
                    4 * word + first,
                    self.name,
                    other.thread,
                    other.touch.name(),
                    other.at,
                );
                Finding::with(FaultKind::Race, other.thread, what)
            })?;
        }
        Ok(())
    }

    fn check_written(&self, offset: usize, bytes: usize) -> Result<(), Finding> {
        let states = &self.states[offset..offset + bytes];
        let Some(missing) = states.iter().position(|&state| state != State::Written) else {
            return Ok(());
        };
        let why = match states[missing] {
            State::Pending => "an asynchronous copy to it was not waited for",
            _ => "it was never written",
        };
        let what = format!(
            "read of {bytes} bytes at byte {offset} of {}: byte {}: {why}",
            self.name,
            offset + missing
        );
        Err(Finding::new(FaultKind::Uninitialised, what))
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.states[offset..offset + bytes.len()].fill(State::Written);
    }
}

/// The shared memory of a block.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The dynamic part, then the static arrays in order of first use.
    segments: Vec<Segment>,
    /// Static arrays of earlier blocks, whose memory is reused.
    spare: Vec<Segment>,
    /// Maximum bytes of shared memory per block.
    limit: usize,
}

impl Shared {
    pub fn new(limit: u32) -> Self {
        let segments = vec![Segment::new("dynamic shared memory")];
        Self { segments, spare: Vec::new(), limit: limit as usize }
    }

    /// Starts a block.
    pub fn reset(&mut self, dynamic: u32) {
        self.spare.extend(self.segments.drain(1..));
        self.segments[0].reset(DYNAMIC, dynamic as usize);
    }

    /// The address of a static array.
    pub fn array(&mut self, name: &'static str, bytes: u32) -> Result<u32, Finding> {
        let bytes = bytes as usize;
        if let Some(segment) = self.segments[1..].iter().find(|segment| segment.name == name) {
            if segment.bytes.len() != bytes {
                let first = segment.bytes.len();
                let what = format!("static array {name} of {bytes} bytes has {first} bytes elsewhere");
                return Err(Finding::new(FaultKind::OutOfBounds, what));
            }
            return Ok(segment.base);
        }
        let total: usize = bytes + self.segments.iter().map(|segment| segment.bytes.len()).sum::<usize>();
        if total > self.limit {
            let what = format!(
                "static array {name} brings the block's shared memory to {total} bytes, allowed {}",
                self.limit
            );
            return Err(Finding::new(FaultKind::Launch, what));
        }
        let end = self.segments.last().map_or(DYNAMIC, |last| last.base + last.bytes.len() as u32);
        let base = end.next_multiple_of(16) + GAP;
        let spare = self.spare.iter().position(|segment| segment.name == name);
        let mut segment = spare.map_or_else(|| Segment::new(name), |index| self.spare.swap_remove(index));
        segment.reset(base, bytes);
        self.segments.push(segment);
        Ok(base)
    }

    /// The segment that holds a range, and the offset of the range in it.
    fn find(&mut self, address: u64, bytes: usize, doing: &str) -> Result<(&mut Segment, usize), Finding> {
        if !address.is_multiple_of(bytes as u64) {
            let what =
                format!("{doing} of {bytes} bytes at shared address {address:#x}, not a multiple of {bytes}");
            return Err(Finding::new(FaultKind::Misaligned, what));
        }
        // Bases ascend: the last segment that begins at or below the address.
        let number = self.segments.partition_point(|segment| u64::from(segment.base) <= address);
        let Some(number) = number.checked_sub(1) else {
            let what = format!("{doing} of {bytes} bytes at shared address {address:#x}: nothing is there");
            return Err(Finding::new(FaultKind::OutOfBounds, what));
        };
        let segment = &mut self.segments[number];
        let (offset, length) = ((address - u64::from(segment.base)) as usize, segment.bytes.len());
        if offset.saturating_add(bytes) > length {
            let what = format!(
                "{doing} of {bytes} bytes at byte {offset} of {} is out of bounds: it has {length} bytes",
                segment.name
            );
            return Err(Finding::new(FaultKind::OutOfBounds, what));
        }
        Ok((segment, offset))
    }

    pub fn load(&mut self, address: u64, bytes: &mut [u8], caller: Caller<'_>) -> Result<(), Finding> {
        let (segment, offset) = self.find(address, bytes.len(), "read")?;
        segment.touch(offset, bytes.len(), Touch::Read, caller)?;
        segment.check_written(offset, bytes.len())?;
        bytes.copy_from_slice(&segment.bytes[offset..offset + bytes.len()]);
        Ok(())
    }

    pub fn store(&mut self, address: u64, bytes: &[u8], caller: Caller<'_>) -> Result<(), Finding> {
        let (segment, offset) = self.find(address, bytes.len(), "write")?;
        segment.touch(offset, bytes.len(), Touch::Write, caller)?;
        segment.write(offset, bytes);
        Ok(())
    }

    pub fn update(
        &mut self,
        address: u64,
        bytes: usize,
        change: &mut dyn FnMut(u64) -> u64,
        caller: Caller<'_>,
    ) -> Result<u64, Finding> {
        let (segment, offset) = self.find(address, bytes, "atomic update")?;
        segment.touch(offset, bytes, Touch::Atomic, caller)?;
        segment.check_written(offset, bytes)?;
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&segment.bytes[offset..offset + bytes]);
        let old = u64::from_le_bytes(word);
        segment.write(offset, &change(old).to_le_bytes()[..bytes]);
        Ok(old)
    }

    /// Starts an asynchronous copy: until it ends, the bytes are unreadable.
    pub fn begin_copy(&mut self, address: u32, bytes: usize, caller: Caller<'_>) -> Result<(), Finding> {
        let (segment, offset) = self.find(u64::from(address), bytes, "asynchronous copy")?;
        segment.touch(offset, bytes, Touch::Write, caller)?;
        segment.states[offset..offset + bytes].fill(State::Pending);
        Ok(())
    }

    /// Ends an asynchronous copy.
    pub fn end_copy(&mut self, address: u32, bytes: &[u8], caller: Caller<'_>) -> Result<(), Finding> {
        let (segment, offset) = self.find(u64::from(address), bytes.len(), "asynchronous copy")?;
        segment.touch(offset, bytes.len(), Touch::Write, caller)?;
        let states = &segment.states[offset..offset + bytes.len()];
        if states.iter().any(|&state| state != State::Pending) {
            let what = format!(
                "bytes from {offset} on of {} were written while an asynchronous copy to them was under way",
                segment.name
            );
            return Err(Finding::new(FaultKind::Race, what));
        }
        segment.write(offset, bytes);
        Ok(())
    }
}
