//! Modules: compiled kernels on a device.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::driver::RawModule;
use crate::error::{CudaResult, Failure, check};
use crate::function::Function;

/// Options of the driver's PTX compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModuleJitOption {
    /// Maximum number of registers per thread.
    MaxRegisters(u32),
    /// Optimisation level, 0 to 4; the driver's default is 4.
    OptLevel(u32),
    /// Whether to keep line numbers, for profilers.
    GenerateLineInfo(bool),
    /// Whether to keep debug information.
    GenerateDebugInfo(bool),
}

impl ModuleJitOption {
    /// The driver's number of the option and its value.
    fn raw(self) -> (u32, usize) {
        match self {
            Self::MaxRegisters(registers) => (0, registers as usize),
            Self::OptLevel(level) => (7, level as usize),
            Self::GenerateDebugInfo(on) => (11, usize::from(on)),
            Self::GenerateLineInfo(on) => (13, usize::from(on)),
        }
    }
}

// CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
pub(crate) const ERROR_LOG: u32 = 5;
pub(crate) const ERROR_LOG_BYTES: u32 = 6;

/// Maximum bytes of the compiler's error log.
pub(crate) const LOG_BYTES: usize = 8192;

/// Kernels loaded into a context.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    raw: RawModule,
    context: Context,
}

// SAFETY: a module handle may be used by any thread; the driver synchronises.
unsafe impl Send for Inner {}
// SAFETY: `&Inner` only hands the handle to the driver, which synchronises its calls.
unsafe impl Sync for Inner {}

impl Module {
    /// Compiles PTX for the context's device and loads it.
    ///
    /// # Errors
    /// If the driver cannot compile it; the error holds the first lines of the compiler's log.
    pub fn from_ptx(
        context: &Context,
        ptx: impl AsRef<str>,
        options: &[ModuleJitOption],
    ) -> CudaResult<Self> {
        let ptx = zero_terminated("loading PTX", ptx.as_ref())?;
        // SAFETY: the PTX ends with a zero.
        unsafe { Self::load(context, ptx.as_bytes_with_nul(), options, "loading PTX") }
    }

    /// Loads a cubin of [`Linker::complete`](crate::link::Linker::complete).
    ///
    /// # Safety
    /// - `cubin` is a whole cubin: the driver trusts the sizes in it.
    ///
    /// # Errors
    /// If the cubin is for another kind of device, or the driver refuses it.
    pub unsafe fn from_cubin(context: &Context, cubin: &[u8]) -> CudaResult<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::load(context, cubin, &[], "loading a cubin") }
    }

    /// # Safety
    /// - `image` is zero-terminated PTX, or a whole cubin.
    unsafe fn load(
        context: &Context,
        image: &[u8],
        options: &[ModuleJitOption],
        doing: &'static str,
    ) -> CudaResult<Self> {
        let table = context.bind()?;
        let mut log = vec![0u8; LOG_BYTES];
        let (mut names, mut values): (Vec<u32>, Vec<*mut c_void>) = options
            .iter()
            .map(|option| option.raw())
            .map(|(name, value)| (name, value as *mut c_void))
            .unzip();
        names.extend([ERROR_LOG, ERROR_LOG_BYTES]);
        values.extend([log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void]);
        let mut raw = ptr::null_mut();
        // SAFETY: there are as many names as values, and the log has the given size; all of them
        // outlive the call. The caller guarantees the image.
        let code = unsafe {
            (table.module_load_data_ex)(
                &mut raw,
                image.as_ptr().cast(),
                names.len() as u32,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check(code, doing).map_err(|failure| failure.with_detail(|| first_lines(&log)))?;
        Ok(Self { inner: Arc::new(Inner { raw, context: context.clone() }) })
    }

    /// The kernel `name`, which keeps the module loaded.
    ///
    /// # Errors
    /// If the module has no such kernel.
    pub fn get_function(&self, name: impl AsRef<str>) -> CudaResult<Function> {
        let name = zero_terminated("finding a kernel", name.as_ref())?;
        let table = self.inner.context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the name ends with a zero and outlives the call.
        let code = unsafe { (table.module_get_function)(&mut raw, self.inner.raw, name.as_ptr()) };
        check(code, "finding a kernel")
            .map_err(|failure| failure.with_detail(|| name.to_string_lossy().into_owned()))?;
        Ok(Function::new(raw, Arc::clone(&self.inner), name))
    }
}

impl Inner {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(table) = self.context.bind() {
            // SAFETY: the module is unloaded once. Errors are ignored: nothing can be done.
            unsafe { (table.module_unload)(self.raw) };
        }
    }
}

pub(crate) fn zero_terminated(doing: &'static str, text: &str) -> CudaResult<CString> {
    CString::new(text).map_err(|error| {
        let found = format!("a zero byte at {}", error.nul_position());
        Failure::argument(doing, found, "text without one")
    })
}

/// The first four lines of a zero-terminated log, joined.
pub(crate) fn first_lines(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect::<Vec<_>>().join("; ")
}
