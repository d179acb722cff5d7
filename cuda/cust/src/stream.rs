//! Streams: queues of work on a device.

use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::driver::RawStream;
use crate::error::{CudaResult, check};
use crate::event::Event;

/// The relation of a stream to the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags(());

impl StreamFlags {
    /// Independent of the default stream. There is no other kind.
    pub const NON_BLOCKING: Self = Self(());
}

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;

/// A queue of work that runs in order. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Stream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: RawStream,
    context: Context,
}

// SAFETY: a stream handle may be used by any thread; the driver synchronises.
unsafe impl Send for Inner {}
// SAFETY: `&Inner` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for Inner {}

impl Stream {
    /// A stream in `context`. `priority` is the driver's: lower values come first, 0 by default.
    ///
    /// # Errors
    /// If the driver cannot create one.
    pub fn new(context: &Context, _flags: StreamFlags, priority: Option<i32>) -> CudaResult<Self> {
        let table = context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { (table.stream_create)(&mut raw, NON_BLOCKING, priority.unwrap_or(0)) };
        check(code, "making a stream")?;
        Ok(Self { inner: Arc::new(Inner { raw, context: context.clone() }) })
    }

    /// The context of the stream.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Waits until all work on the stream is done.
    ///
    /// # Errors
    /// If some of that work failed.
    pub fn synchronize(&self) -> CudaResult<()> {
        let table = self.context().bind()?;
        // SAFETY: the stream is alive.
        check(unsafe { (table.stream_synchronize)(self.as_raw()) }, "waiting for a stream")
    }

    /// Makes later work on this stream wait for the last recording of `event`, which may be
    /// recorded again afterwards.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn wait_event(&self, event: &Event) -> CudaResult<()> {
        let table = self.context().bind()?;
        // SAFETY: stream and event are alive.
        check(unsafe { (table.stream_wait_event)(self.as_raw(), event.as_raw(), 0) }, "waiting for an event")
    }

    /// The driver's handle.
    pub(crate) fn as_raw(&self) -> RawStream {
        self.inner.raw
    }
}

/// Waits until all work on a stream of another library is done. `handle` is the driver's: also 0 or
/// 1 for the default stream, and 2 for that of the calling thread.
///
/// # Safety
/// - `handle` is one of these numbers, or an existing stream of the device of `context`.
///
/// # Errors
/// If some of that work failed.
pub unsafe fn synchronize_handle(context: &Context, handle: u64) -> CudaResult<()> {
    let table = context.bind()?;
    let raw = ptr::with_exposed_provenance_mut(handle as usize);
    // SAFETY: the caller's guarantee.
    check(unsafe { (table.stream_synchronize)(raw) }, "waiting for a stream of another library")
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(table) = self.context.bind() {
            // SAFETY: the handle is destroyed once, and work on the stream still ends. Errors, of a
            // lost context, are ignored: nothing can be done.
            unsafe { (table.stream_destroy)(self.raw) };
        }
    }
}
