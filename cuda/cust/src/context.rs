//! Contexts: the state of a process on a device.

use std::ptr;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{RawContext, Table, table};
use crate::error::{CudaError, CudaResult, check};

/// The primary context of a device. Clones share it. Every object in it holds a clone, so it
/// outlives them. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: RawContext,
    device: Device,
}

// SAFETY: a context handle may be used by any thread; the driver synchronises.
unsafe impl Send for Inner {}
// SAFETY: `&Inner` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(table) = table() {
            // SAFETY: `new` retained the context once. Errors, of a lost context, are ignored:
            // nothing can be done.
            unsafe { (table.primary_ctx_release)(self.device.as_raw()) };
        }
    }
}

impl Context {
    /// The primary context of `device`.
    ///
    /// # Errors
    /// If the driver cannot create one.
    pub fn new(device: Device) -> CudaResult<Self> {
        crate::init(crate::CudaFlags::empty())?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        check(unsafe { (table()?.primary_ctx_retain)(&mut raw, device.as_raw()) }, "making a context")?;
        Ok(Self { inner: Arc::new(Inner { raw, device }) })
    }

    /// The device of the context.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Makes the context current on this thread; returns the driver's functions.
    pub(crate) fn bind(&self) -> CudaResult<&'static Table> {
        let table = table()?;
        // SAFETY: the context is alive as long as `self`.
        check(unsafe { (table.ctx_set_current)(self.inner.raw) }, "making a context current")?;
        Ok(table)
    }

    /// Waits for all work in the context.
    ///
    /// # Errors
    /// If some of that work failed.
    pub fn synchronize(&self) -> CudaResult<()> {
        let table = self.bind()?;
        // SAFETY: the context is current.
        check(unsafe { (table.ctx_synchronize)() }, "waiting for a device")
    }

    /// Free and total device memory, in bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn mem_get_info(&self) -> CudaResult<(usize, usize)> {
        let table = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to local variables.
        check(unsafe { (table.mem_get_info)(&mut free, &mut total) }, "asking for free memory")?;
        Ok((free, total))
    }

    /// Gives work in this context access to memory of `peer`'s device. Repeated calls do nothing.
    ///
    /// # Errors
    /// If the devices cannot reach each other.
    pub fn enable_peer_access(&self, peer: &Self) -> CudaResult<()> {
        let table = self.bind()?;
        // SAFETY: both contexts are alive.
        let code = unsafe { (table.ctx_enable_peer_access)(peer.inner.raw, 0) };
        if code == CudaError::PeerAccessAlreadyEnabled as u32 {
            return Ok(());
        }
        check(code, "enabling peer access")
    }
}
