//! The machines that this process has opened: a device has one context, whose kernels are compiled
//! once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Gpu;
use crate::Result;

/// Devices by their number, each opened when it is first asked for.
#[derive(Default)]
pub(super) struct Opened {
    devices: Mutex<BTreeMap<u32, Gpu>>,
}

impl Opened {
    /// No device yet.
    pub(super) const fn new() -> Self {
        Self { devices: Mutex::new(BTreeMap::new()) }
    }

    /// Device number `ordinal`, by `open` if it has not been opened, or has failed since: who has a
    /// failed one keeps it, and learns of the failure from every call.
    pub(super) fn get(&self, ordinal: u32, open: impl FnOnce() -> Result<Gpu>) -> Result<Gpu> {
        // Held while a device is opened, so that it is opened once.
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = devices.get(&ordinal) {
            if !gpu.has_failed() {
                return Ok(gpu.clone());
            }
            devices.remove(&ordinal);
        }
        let gpu = open()?;
        devices.insert(ordinal, gpu.clone());
        Ok(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, MemoryPlan};
    use super::*;

    #[test]
    fn a_device_is_opened_once_unless_it_fails() {
        let opened = Opened::new();
        let mut count = 0;
        let mut get = |ordinal| {
            opened
                .get(ordinal, || {
                    count += 1;
                    Ok(Gpu::emulated(0))
                })
                .map(|gpu| (gpu, count))
        };
        let (first, one) = get(3).unwrap();
        assert_eq!((one, get(3).unwrap().1, get(4).unwrap().1, get(3).unwrap().1), (1, 1, 2, 2));
        // Nothing has written what is read.
        let memory = MemoryPlan::new().with::<u32>("values", 4).reserve(&first).unwrap();
        let buffer: Buffer<u32> = memory.buffer("values").unwrap();
        assert!(buffer.download(&mut [0; 4]).is_err() && first.has_failed());
        assert_eq!((get(3).unwrap().1, get(3).unwrap().1), (3, 3));
        assert!(opened.get(9, || Err(first.error("no such device"))).is_err());
    }
}
