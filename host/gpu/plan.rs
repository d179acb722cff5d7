//! Plans of memory: the names and sizes of all buffers, fixed before any allocation.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use bytemuck::Pod;
use serde::{Serialize, Serializer};

use super::{Buffer, Gpu};
use crate::{Error, Result};

/// Plans of at most this many bytes are not compared with the free memory.
const SMALL: u64 = 1 << 20;

/// Named buffers and their sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    buffers: Vec<Slot>,
}

/// A planned buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    name: &'static str,
    bytes: u64,
    /// Bytes of a value.
    unit: usize,
}

impl MemoryPlan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the buffer `name` of `len` values of `T`.
    #[must_use]
    pub fn with<T>(mut self, name: &'static str, len: usize) -> Self {
        let unit = size_of::<T>();
        self.buffers.push(Slot { name, bytes: (len as u64).saturating_mul(unit as u64), unit });
        self
    }

    /// The buffers and their bytes, in the order in which they were added.
    pub fn buffers(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.buffers.iter().map(|slot| (slot.name, slot.bytes))
    }

    /// Bytes of all buffers together.
    pub fn bytes(&self) -> u64 {
        self.buffers().map(|buffer| buffer.1).fold(0, u64::saturating_add)
    }

    /// The buffers of both plans.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.buffers.extend_from_slice(&other.buffers);
        self
    }

    /// The buffers with these names alone.
    #[must_use]
    pub fn only(&self, names: &[&str]) -> Self {
        Self { buffers: self.buffers.iter().filter(|slot| names.contains(&slot.name)).copied().collect() }
    }

    /// The buffers with other names.
    #[must_use]
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        Self { buffers: self.buffers.iter().filter(|slot| !names.contains(&slot.name)).copied().collect() }
    }

    /// The largest buffer, and its bytes.
    pub fn largest(&self) -> (&'static str, u64) {
        self.buffers().max_by_key(|buffer| buffer.1).unwrap_or_default()
    }

    /// Checks that the plan fits the device. Each buffer is then taken once, by its name.
    ///
    /// # Errors
    /// If the plan does not fit; the error gives required and free bytes.
    pub(crate) fn reserve(self, gpu: &Gpu) -> Result<Reservation> {
        // Asking the device takes longer than a search for one query. The driver refuses what does
        // not fit.
        let fits = self.bytes() <= SMALL || self.bytes() <= gpu.unused_memory()?;
        let free = if fits { u64::MAX } else { gpu.free_memory()? };
        if self.bytes() > free {
            let (largest, bytes) = self.largest();
            return Err(gpu.error(format_args!(
                "needs {} bytes of device memory ({largest} {bytes} of them), free {free}",
                self.bytes()
            )));
        }
        Ok(Reservation { gpu: gpu.clone(), left: RefCell::new(self.buffers) })
    }
}

impl Gpu {
    /// Allocates the buffer `name` of `len` values, which are undefined, if it fits the device.
    ///
    /// # Errors
    /// As [`MemoryPlan::reserve`] and [`Reservation::buffer`].
    pub(crate) fn buffer<T: Pod>(&self, name: &'static str, len: usize) -> Result<Buffer<T>> {
        MemoryPlan::new().with::<T>(name, len).reserve(self)?.buffer(name)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.buffers() {
            writeln!(f, "{name:<24} {bytes:>16}")?;
        }
        write!(f, "{:<24} {:>16}", "total", self.bytes())
    }
}

/// A map of the bytes of each name.
impl Serialize for MemoryPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = BTreeMap::<&str, u64>::new();
        for (name, more) in self.buffers() {
            let sum = bytes.entry(name).or_default();
            *sum = sum.saturating_add(more);
        }
        bytes.serialize(serializer)
    }
}

/// A plan that fits the device, less the buffers that were taken.
pub(crate) struct Reservation {
    gpu: Gpu,
    left: RefCell<Vec<Slot>>,
}

impl Reservation {
    /// Allocates the buffer `name`; its values are undefined.
    ///
    /// # Errors
    /// If the device lacks memory after all, or the plan has no such buffer of values of this size
    /// left.
    pub(crate) fn buffer<T: Pod>(&self, name: &'static str) -> Result<Buffer<T>> {
        let mut left = self.left.borrow_mut();
        let place = left.iter().position(|slot| slot.name == name && slot.unit == size_of::<T>());
        let Some(Slot { bytes, unit, .. }) = place.map(|place| left.swap_remove(place)) else {
            return Err(Error::argument("device memory", name, "a buffer of the plan, taken once"));
        };
        #[cfg(test)]
        if bytes > 0 {
            self.gpu.note_buffer(name, bytes);
        }
        Buffer::new(&self.gpu, bytes as usize / unit)
            .map_err(|error| self.gpu.error(format_args!("{name}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_adds_up() {
        let plan =
            MemoryPlan::new().with::<f32>("rows", 100).with::<u64>("lists", 7).with::<u8>("huge", usize::MAX);
        assert!(plan.buffers().take(2).eq([("rows", 400), ("lists", 56)]));
        assert_eq!(plan.bytes(), u64::MAX);
        assert!(plan.to_string().lines().count() == 4);
        assert_eq!(plan.largest().0, "huge");
        let both = plan.only(&["rows", "lists"]).and(&MemoryPlan::new().with::<u8>("more", 3));
        assert_eq!((both.bytes(), both.largest()), (459, ("rows", 400)));
    }

    #[test]
    fn a_buffer_is_taken_once_with_values_of_its_size() {
        let memory = MemoryPlan::new().with::<u32>("ids", 3).reserve(&Gpu::emulated(0)).unwrap();
        let expected = "device memory: found ids, expected a buffer of the plan, taken once";
        assert_eq!(memory.buffer::<u64>("ids").unwrap_err().to_string(), expected);
        assert_eq!(memory.buffer::<u32>("ids").unwrap().len(), 3);
        assert_eq!(memory.buffer::<u32>("ids").unwrap_err().to_string(), expected);
    }
}
