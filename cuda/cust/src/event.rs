//! Events: marks in streams, for waiting and timing.

use std::ptr;
use std::time::Duration;

use crate::context::Context;
use crate::driver::RawEvent;
use crate::error::{CudaError, CudaResult, check};
use crate::stream::Stream;

/// The uses of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventFlags {
    /// Waiting and timing.
    Default = 0,
    /// Waiting alone, which is cheaper.
    DisableTiming = 2,
}

/// The state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// The work before it is done.
    Ready,
    /// The work before it is not done.
    NotReady,
}

/// A mark in a stream. An event can be recorded and waited for any number of times.
#[derive(Debug)]
pub struct Event {
    raw: RawEvent,
    context: Context,
}

// SAFETY: an event handle may be used by any thread; the driver synchronises.
unsafe impl Send for Event {}
// SAFETY: `&Event` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for Event {}

impl Event {
    /// An event in `context`.
    ///
    /// # Errors
    /// If the driver cannot create one.
    pub fn new(context: &Context, flags: EventFlags) -> CudaResult<Self> {
        let table = context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        check(unsafe { (table.event_create)(&mut raw, flags as u32) }, "making an event")?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Records the present end of `stream`.
    ///
    /// # Errors
    /// If the stream is of another context.
    pub fn record(&self, stream: &Stream) -> CudaResult<()> {
        let table = self.context.bind()?;
        // SAFETY: event and stream are alive.
        check(unsafe { (table.event_record)(self.raw, stream.as_raw()) }, "recording an event")
    }

    /// Whether the work before the event is done.
    ///
    /// # Errors
    /// If some of that work failed.
    pub fn query(&self) -> CudaResult<EventStatus> {
        let table = self.context.bind()?;
        // SAFETY: the event is alive.
        let code = unsafe { (table.event_query)(self.raw) };
        if code == CudaError::NotReady as u32 {
            return Ok(EventStatus::NotReady);
        }
        check(code, "asking for an event").map(|()| EventStatus::Ready)
    }

    /// Waits until the work before the event is done.
    ///
    /// # Errors
    /// If some of that work failed.
    pub fn synchronize(&self) -> CudaResult<()> {
        let table = self.context.bind()?;
        // SAFETY: the event is alive.
        check(unsafe { (table.event_synchronize)(self.raw) }, "waiting for an event")
    }

    /// The time from `start` to this event, both done.
    ///
    /// # Errors
    /// If either is not done, was never recorded, or does not measure time.
    pub fn elapsed(&self, start: &Self) -> CudaResult<Duration> {
        let table = self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: the pointer is to a local variable, and both events are alive.
        let code = unsafe { (table.event_elapsed_time)(&mut milliseconds, start.raw, self.raw) };
        check(code, "measuring time between events")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    pub(crate) fn as_raw(&self) -> RawEvent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(table) = self.context.bind() {
            // SAFETY: the handle is destroyed once. Errors are ignored: nothing can be done.
            unsafe { (table.event_destroy)(self.raw) };
        }
    }
}
