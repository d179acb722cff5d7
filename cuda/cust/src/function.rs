//! Kernels and their launches.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use crate::driver::RawFunction;
use crate::error::{CudaResult, Failure, check};
use crate::module::Inner;
use crate::stream::Stream;

/// Blocks of a grid, in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSize {
    /// Blocks in x.
    pub x: u32,
    /// Blocks in y.
    pub y: u32,
    /// Blocks in z.
    pub z: u32,
}

/// Threads of a block, in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Threads in x.
    pub x: u32,
    /// Threads in y.
    pub y: u32,
    /// Threads in z.
    pub z: u32,
}

macro_rules! sizes {
    ($($size:ident)*) => {$(
        impl From<u32> for $size {
            fn from(x: u32) -> Self {
                Self { x, y: 1, z: 1 }
            }
        }

        impl From<(u32, u32)> for $size {
            fn from((x, y): (u32, u32)) -> Self {
                Self { x, y, z: 1 }
            }
        }

        impl From<(u32, u32, u32)> for $size {
            fn from((x, y, z): (u32, u32, u32)) -> Self {
                Self { x, y, z }
            }
        }
    )*};
}

sizes!(GridSize BlockSize);

/// Attributes of [`Function::get_attribute`], with the driver's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(i32)]
pub enum FunctionAttribute {
    /// Maximum number of threads per block.
    MaxThreadsPerBlock = 0,
    /// Bytes of static shared memory per block.
    SharedMemorySizeBytes = 1,
    /// Bytes of local memory per thread: spills and stack.
    LocalSizeBytes = 3,
    /// Registers per thread.
    NumRegisters = 4,
    /// Compute capability of the compiled kernel, times ten.
    BinaryVersion = 6,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED: c_int = 8;

/// A kernel. It keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    raw: RawFunction,
    module: Arc<Inner>,
    name: CString,
}

// SAFETY: a function handle may be used by any thread; the driver synchronises.
unsafe impl Send for Function {}
// SAFETY: `&Function` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn new(raw: RawFunction, module: Arc<Inner>, name: CString) -> Self {
        Self { raw, module, name }
    }

    /// The name of the kernel.
    pub fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// An attribute of the compiled kernel.
    ///
    /// # Errors
    /// If the driver does not know the attribute.
    pub fn get_attribute(&self, attribute: FunctionAttribute) -> CudaResult<i32> {
        let table = self.module.context().bind()?;
        let mut value = 0;
        // SAFETY: the pointer is to a local variable, and the function's module is loaded.
        let code = unsafe { (table.func_get_attribute)(&mut value, attribute as c_int, self.raw) };
        check(code, "asking for a kernel's attribute").map_err(|failure| self.named(failure))?;
        Ok(value)
    }

    /// Allows launches with up to `bytes` bytes of dynamic shared memory. Required above 48 KiB.
    ///
    /// # Errors
    /// If the device has less.
    pub fn set_max_dynamic_shared_memory(&self, bytes: u32) -> CudaResult<()> {
        let table = self.module.context().bind()?;
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function's module is loaded.
        let code = unsafe { (table.func_set_attribute)(self.raw, MAX_DYNAMIC_SHARED, value) };
        check(code, "allowing dynamic shared memory")
            .map_err(|failure| failure.with_detail(|| format!("{} asks for {bytes} bytes", self.name())))
    }

    /// Enqueues a launch on `stream`. `arguments` holds the address of each argument; [`launch!`]
    /// builds it.
    ///
    /// [`launch!`]: crate::launch
    ///
    /// # Safety
    /// - The arguments have the number, order and types of the kernel's parameters.
    /// - The kernel's accesses lie in device memory that lives until the stream has run the kernel.
    /// - Grid, block and shared memory are as the kernel requires.
    ///
    /// # Errors
    /// If the driver refuses; the error names the kernel. Errors of the running kernel appear in a
    /// later call.
    pub unsafe fn launch(
        &self,
        grid: impl Into<GridSize>,
        block: impl Into<BlockSize>,
        shared_bytes: u32,
        stream: &Stream,
        arguments: &mut [*mut c_void],
    ) -> CudaResult<()> {
        let (grid, block) = (grid.into(), block.into());
        let table = self.module.context().bind()?;
        // SAFETY: function and stream are alive; the caller guarantees the rest.
        let code = unsafe {
            (table.launch_kernel)(
                self.raw,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                stream.as_raw(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(code, "launching a kernel").map_err(|failure| {
            failure.with_detail(|| {
                let GridSize { x, y, z } = grid;
                let (bx, by, bz) = (block.x, block.y, block.z);
                let name = self.name();
                format!("{name}, grid {x} x {y} x {z}, block {bx} x {by} x {bz}, {shared_bytes} B shared")
            })
        })
    }

    fn named(&self, failure: Failure) -> Failure {
        failure.with_detail(|| self.name())
    }
}

/// Enqueues a launch on a stream: `launch!(function<<<grid, block, shared_bytes, stream>>>(a, b,
/// c))`.
///
/// Returns a `CudaResult<()>`. Arguments are passed by value: numbers and [`DevicePointer`]s.
///
/// # Safety
/// As [`Function::launch`].
///
/// [`DevicePointer`]: crate::memory::DevicePointer
/// [`Function::launch`]: crate::function::Function::launch
#[macro_export]
macro_rules! launch {
    ($function:ident<<<$grid:expr, $block:expr, $shared:expr, $stream:ident>>>($($argument:expr),* $(,)?)) => {
        $function.launch(
            $grid,
            $block,
            $shared,
            &$stream,
            &mut [$((&mut { $argument } as *mut _) as *mut ::std::ffi::c_void),*],
        )
    };
}
