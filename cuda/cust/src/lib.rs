//! The CUDA driver API for Rust, on a driver library that is opened at run time.
//!
//! It has the part of rust-cuda's `cust` that this project uses, under the same names. A program
//! that uses this crate builds without a CUDA toolkit and starts without a driver; [`init`] then
//! fails with the reason. The driver is `libcuda.so.1` (`nvcuda.dll` on Windows), or the file named
//! by the environment variable `CUST_LIBCUDA`. Differences from `cust` are on purpose:
//!
//! - Every object keeps its [`Context`](context::Context) alive and makes it current before it
//!   calls the driver, so any thread may use or drop it.
//! - Streams never synchronise with the default stream, and every copy runs on a stream.
//! - An error code of a newer driver becomes [`CudaError::Unknown`](error::CudaError::Unknown) and
//!   keeps its number. Errors name the operation; those of a module include the compiler's log.
//!
//! ```
//! match cust::init(cust::CudaFlags::empty()) {
//!     Ok(()) => println!("{} devices", cust::device::Device::num_devices()?),
//!     Err(error) => println!("no CUDA here: {error}"),
//! }
//! # Ok::<(), cust::error::Failure>(())
//! ```

// Compiles and runs the code in the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod context;
pub mod device;
mod driver;
pub mod error;
pub mod event;
pub mod function;
pub mod link;
pub mod memory;
pub mod module;
pub mod pool;
pub mod stream;

pub use driver::driver_version;
use error::CudaResult;

/// The names that most programs need.
pub mod prelude {
    pub use crate::context::Context;
    pub use crate::device::{Device, DeviceAttribute};
    pub use crate::error::{CudaError, CudaResult, Failure};
    pub use crate::event::{Event, EventFlags, EventStatus};
    pub use crate::function::Function;
    pub use crate::launch;
    pub use crate::link::Linker;
    pub use crate::memory::{DeviceBuffer, DeviceCopy, DevicePointer, LockedBuffer};
    pub use crate::module::{Module, ModuleJitOption};
    pub use crate::pool::MemoryPool;
    pub use crate::stream::{Stream, StreamFlags};
    pub use crate::{CudaFlags, init};
}

/// Flags of [`init`]; CUDA defines none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaFlags(());

impl CudaFlags {
    /// No flags.
    pub const fn empty() -> Self {
        Self(())
    }
}

/// Opens and initialises the driver; later calls do nothing.
///
/// # Errors
/// If there is no driver, it lacks a function that this crate uses, or it finds no usable device.
pub fn init(_flags: CudaFlags) -> CudaResult<()> {
    driver::table().map(|_| ())
}
