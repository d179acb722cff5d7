//! The driver's linker: PTX to a cubin, the binary that a module of one kind of device loads.

use std::ffi::c_void;
use std::ptr;

use crate::context::Context;
use crate::driver::RawLink;
use crate::error::{CudaResult, Failure, check};
use crate::module::{ERROR_LOG, ERROR_LOG_BYTES, LOG_BYTES, first_lines, zero_terminated};

/// `CU_JIT_INPUT_PTX`
const PTX: i32 = 1;

/// Compiles PTX for the device of a context. Several may run at a time, on several threads.
#[derive(Debug)]
pub struct Linker {
    raw: RawLink,
    context: Context,
    /// The compiler's log, and the values of the options that name it: the driver keeps both
    /// addresses until the linker is destroyed.
    log: Box<[u8]>,
    _values: Box<[*mut c_void]>,
}

impl Linker {
    /// A linker for the device of `context`.
    ///
    /// # Errors
    /// If the driver cannot create one.
    pub fn new(context: &Context) -> CudaResult<Self> {
        let table = context.bind()?;
        let mut log = vec![0u8; LOG_BYTES].into_boxed_slice();
        let mut names = [ERROR_LOG, ERROR_LOG_BYTES];
        let values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void];
        let mut values: Box<[*mut c_void]> = Box::new(values);
        let mut raw = ptr::null_mut();
        // SAFETY: there are as many names as values; the log has the given size; log and values
        // live on the heap as long as the linker.
        let code = unsafe {
            (table.link_create)(names.len() as u32, names.as_mut_ptr(), values.as_mut_ptr(), &mut raw)
        };
        check(code, "making a linker")?;
        Ok(Self { raw, context: context.clone(), log, _values: values })
    }

    /// Compiles `ptx`.
    ///
    /// # Errors
    /// If the driver cannot compile it; the error holds the first lines of the compiler's log.
    pub fn add_ptx(&mut self, ptx: impl AsRef<str>) -> CudaResult<()> {
        let ptx = zero_terminated("compiling PTX", ptx.as_ref())?;
        let table = self.context.bind()?;
        let bytes = ptx.as_bytes_with_nul();
        // SAFETY: the linker is alive; the PTX has the given size, ends with a zero, and is only
        // read; it has neither name nor options.
        let code = unsafe {
            (table.link_add_data)(
                self.raw,
                PTX,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                ptr::null(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        self.check(code, "compiling PTX")
    }

    /// Links what was added, and returns the cubin.
    ///
    /// # Errors
    /// If the driver cannot link it; the error holds the first lines of the linker's log.
    pub fn complete(self) -> CudaResult<Vec<u8>> {
        let table = self.context.bind()?;
        let (mut cubin, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the linker is alive, and the pointers are to local variables.
        let code = unsafe { (table.link_complete)(self.raw, &mut cubin, &mut bytes) };
        self.check(code, "linking kernels")?;
        if cubin.is_null() {
            return Err(Failure::argument("linking kernels", "no cubin", "one"));
        }
        // SAFETY: the driver gave address and size; the cubin lives as long as the linker.
        Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec())
    }

    fn check(&self, code: u32, doing: &'static str) -> CudaResult<()> {
        check(code, doing).map_err(|failure| failure.with_detail(|| first_lines(&self.log)))
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        if let Ok(table) = self.context.bind() {
            // SAFETY: the linker is destroyed once. Errors are ignored: nothing can be done.
            unsafe { (table.link_destroy)(self.raw) };
        }
    }
}
