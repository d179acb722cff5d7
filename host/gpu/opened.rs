//! The devices opened by this process. A device has one context, so its kernels are compiled once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::Gpu;
use crate::Result;
use crate::parallel::locked;

/// Devices by number, opened on first use.
#[derive(Default)]
pub(super) struct Opened {
    devices: Mutex<BTreeMap<u32, Slot>>,
}

/// A device once it is open. Locked while it is opened, so it is opened once, and others meanwhile.
type Slot = Arc<Mutex<Option<Gpu>>>;

impl Opened {
    /// No device yet.
    pub(super) const fn new() -> Self {
        Self { devices: Mutex::new(BTreeMap::new()) }
    }

    /// Device number `ordinal`. Calls `open` if the device is not open or has failed. Holders of a
    /// failed device keep it, and every call on it fails.
    pub(super) fn get(&self, ordinal: u32, open: impl FnOnce() -> Result<Gpu>) -> Result<Gpu> {
        let slot = Arc::clone(locked(&self.devices).entry(ordinal).or_default());
        let mut device = locked(&slot);
        if let Some(gpu) = device.as_ref().filter(|gpu| !gpu.has_failed()) {
            return Ok(gpu.clone());
        }
        *device = None;
        let gpu = open()?;
        *device = Some(gpu.clone());
        Ok(gpu)
    }

    /// Forgets all devices. Holders keep theirs.
    pub(super) fn close(&self) {
        let devices = std::mem::take(&mut *locked(&self.devices));
        drop(devices);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::Buffer;
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
        // A read of unwritten memory fails the device.
        let buffer: Buffer<u32> = first.buffer("values", 4).unwrap();
        assert!(buffer.download(&mut [0; 4]).is_err() && first.has_failed());
        assert_eq!((get(3).unwrap().1, get(3).unwrap().1), (3, 3));
        opened.close();
        assert_eq!(get(3).unwrap().1, 4);
        assert!(opened.get(9, || Err(first.error("no such device"))).is_err());
    }

    #[test]
    fn devices_are_opened_side_by_side() {
        let (opened, both) = (Opened::new(), Barrier::new(2));
        // Each waits for the other while it is opened.
        let get = |ordinal| opened.get(ordinal, || Ok((both.wait(), Gpu::emulated(0)).1)).is_ok();
        let found = std::thread::scope(|scope| {
            let other = scope.spawn(|| get(1));
            (get(0), other.join().unwrap())
        });
        assert_eq!(found, (true, true));
    }
}
