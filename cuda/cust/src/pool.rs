//! Memory pools, the source of stream-ordered allocations.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::context::Context;
use crate::device::Device;
use crate::driver::RawPool;
use crate::error::{CudaResult, check};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
const RELEASE_THRESHOLD: c_int = 4;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED: c_int = 5;

/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
const USED: c_int = 7;

/// The default memory pool of a device, from which
/// [`DeviceBuffer::uninitialized_async`](crate::memory::DeviceBuffer::uninitialized_async)
/// allocates.
#[derive(Debug)]
pub struct MemoryPool {
    raw: RawPool,
    context: Context,
}

// SAFETY: a pool handle may be used by any thread; the driver synchronises.
unsafe impl Send for MemoryPool {}
// SAFETY: `&MemoryPool` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for MemoryPool {}

impl MemoryPool {
    /// The default pool of the device of `context`.
    ///
    /// # Errors
    /// If the device has none.
    pub fn default_of(context: &Context) -> CudaResult<Self> {
        let table = context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { (table.device_get_default_mem_pool)(&mut raw, context.device().as_raw()) };
        check(code, "asking for a memory pool")?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Sets the release threshold: on synchronisation the pool keeps up to `bytes` unused bytes for
    /// later allocations. The default is 0.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn keep(&self, bytes: u64) -> CudaResult<()> {
        let (table, mut bytes) = (self.context.bind()?, bytes);
        let value: *mut c_void = (&raw mut bytes).cast();
        // SAFETY: the value is a `u64`, as this attribute has it.
        let code = unsafe { (table.mem_pool_set_attribute)(self.raw, RELEASE_THRESHOLD, value) };
        check(code, "setting up a memory pool")
    }

    /// Lets `peer` read and write allocations of the pool, past and future, without the host.
    ///
    /// # Errors
    /// If the devices have no link ([`Device::can_access_peer`]).
    pub fn allow(&self, peer: Device) -> CudaResult<()> {
        /// `CUmemAccessDesc`
        #[repr(C)]
        struct Access {
            /// `CU_MEM_LOCATION_TYPE_DEVICE`
            kind: c_int,
            ordinal: c_int,
            /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
            flags: c_int,
        }
        let table = self.context.bind()?;
        let access = Access { kind: 1, ordinal: peer.as_raw(), flags: 3 };
        // SAFETY: the pool lives as long as its context, and the pointer is to one description.
        let code = unsafe { (table.mem_pool_set_access)(self.raw, (&raw const access).cast(), 1) };
        check(code, "sharing a memory pool")
    }

    /// Unused bytes that the pool keeps.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn unused(&self) -> CudaResult<u64> {
        let table = self.context.bind()?;
        let ask = |attribute| {
            let mut bytes = 0u64;
            let value: *mut c_void = (&raw mut bytes).cast();
            // SAFETY: the value is a `u64`, as these attributes have it.
            let code = unsafe { (table.mem_pool_get_attribute)(self.raw, attribute, value) };
            check(code, "asking a memory pool").map(|()| bytes)
        };
        // Another thread may allocate between the two queries.
        Ok(ask(RESERVED)?.saturating_sub(ask(USED)?))
    }

    /// Releases unused memory down to `bytes` bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn trim(&self, bytes: usize) -> CudaResult<()> {
        let table = self.context.bind()?;
        // SAFETY: the pool lives as long as its context.
        check(unsafe { (table.mem_pool_trim_to)(self.raw, bytes) }, "trimming a memory pool")
    }
}
