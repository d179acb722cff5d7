//! The table of driver functions, resolved once in the library of this machine.

use std::env;
use std::ffi::{OsString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{CudaResult, Failure, check};

/// Environment variable with the path of the driver library, for unusual installations and for
/// tests.
const LIBRARY_VARIABLE: &str = "CUST_LIBCUDA";

const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

// Handles of the driver.
pub(crate) type RawContext = *mut c_void;
pub(crate) type RawModule = *mut c_void;
pub(crate) type RawLink = *mut c_void;
pub(crate) type RawFunction = *mut c_void;
pub(crate) type RawStream = *mut c_void;
pub(crate) type RawEvent = *mut c_void;
pub(crate) type RawPool = *mut c_void;
pub(crate) type DevicePtr = u64;

macro_rules! table {
    ($($name:ident = $symbol:literal($($arg:ty),*);)*) => {
        /// The driver functions that this crate uses; each returns the driver's code.
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "system" fn($($arg),*) -> u32,)*
            /// Keeps the functions valid.
            _library: Library,
        }

        impl Table {
            fn load(library: Library) -> CudaResult<Self> {
                $(
                    // SAFETY: the symbol is the driver's function of that name, and this line of
                    // the table has its documented signature.
                    let $name = *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| Failure::MissingFunction($symbol))?;
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }
    };
}

table! {
    init = "cuInit"(c_uint);
    driver_get_version = "cuDriverGetVersion"(*mut c_int);
    device_get_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    device_get_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_get_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_total_mem = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_can_access_peer = "cuDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain"(*mut RawContext, c_int);
    primary_ctx_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    ctx_set_current = "cuCtxSetCurrent"(RawContext);
    ctx_synchronize = "cuCtxSynchronize"();
    ctx_enable_peer_access = "cuCtxEnablePeerAccess"(RawContext, c_uint);
    module_load_data_ex =
        "cuModuleLoadDataEx"(*mut RawModule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = "cuModuleUnload"(RawModule);
    link_create = "cuLinkCreate_v2"(c_uint, *mut c_uint, *mut *mut c_void, *mut RawLink);
    link_add_data =
        "cuLinkAddData_v2"(
            RawLink, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void
        );
    link_complete = "cuLinkComplete"(RawLink, *mut *mut c_void, *mut usize);
    link_destroy = "cuLinkDestroy"(RawLink);
    module_get_function = "cuModuleGetFunction"(*mut RawFunction, RawModule, *const c_char);
    func_get_attribute = "cuFuncGetAttribute"(*mut c_int, c_int, RawFunction);
    func_set_attribute = "cuFuncSetAttribute"(RawFunction, c_int, c_int);
    launch_kernel =
        "cuLaunchKernel"(
            RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, RawStream,
            *mut *mut c_void, *mut *mut c_void
        );
    stream_create = "cuStreamCreateWithPriority"(*mut RawStream, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2"(RawStream);
    stream_synchronize = "cuStreamSynchronize"(RawStream);
    stream_wait_event = "cuStreamWaitEvent"(RawStream, RawEvent, c_uint);
    event_create = "cuEventCreate"(*mut RawEvent, c_uint);
    event_destroy = "cuEventDestroy_v2"(RawEvent);
    event_record = "cuEventRecord"(RawEvent, RawStream);
    event_query = "cuEventQuery"(RawEvent);
    event_synchronize = "cuEventSynchronize"(RawEvent);
    event_elapsed_time = "cuEventElapsedTime"(*mut f32, RawEvent, RawEvent);
    mem_alloc = "cuMemAlloc_v2"(*mut DevicePtr, usize);
    mem_free = "cuMemFree_v2"(DevicePtr);
    mem_alloc_async = "cuMemAllocAsync"(*mut DevicePtr, usize, RawStream);
    mem_free_async = "cuMemFreeAsync"(DevicePtr, RawStream);
    device_get_default_mem_pool = "cuDeviceGetDefaultMemPool"(*mut RawPool, c_int);
    mem_pool_set_attribute = "cuMemPoolSetAttribute"(RawPool, c_int, *mut c_void);
    mem_pool_get_attribute = "cuMemPoolGetAttribute"(RawPool, c_int, *mut c_void);
    mem_pool_trim_to = "cuMemPoolTrimTo"(RawPool, usize);
    mem_pool_set_access = "cuMemPoolSetAccess"(RawPool, *const c_void, usize);
    mem_host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    mem_host_unregister = "cuMemHostUnregister"(*mut c_void);
    mem_get_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memcpy_htod_async = "cuMemcpyHtoDAsync_v2"(DevicePtr, *const c_void, usize, RawStream);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePtr, usize, RawStream);
    memcpy_dtod_async = "cuMemcpyDtoDAsync_v2"(DevicePtr, DevicePtr, usize, RawStream);
    memcpy_async = "cuMemcpyAsync"(DevicePtr, DevicePtr, usize, RawStream);
    pointer_get_attributes = "cuPointerGetAttributes"(c_uint, *mut c_int, *mut *mut c_void, DevicePtr);
    memset_d8_async = "cuMemsetD8Async"(DevicePtr, u8, usize, RawStream);
}

/// The function table of the initialised driver.
pub(crate) fn table() -> CudaResult<&'static Table> {
    static TABLE: OnceLock<CudaResult<Table>> = OnceLock::new();
    TABLE.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> CudaResult<Table> {
    let name = env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| OsString::from(LIBRARY));
    // SAFETY: the initialisers of NVIDIA's driver library have no preconditions.
    let library = unsafe { Library::new(&name) }.map_err(|error| Failure::NoDriver(one_line(&error)))?;
    let table = Table::load(library)?;
    // SAFETY: `cuInit` takes flags and has none.
    check(unsafe { (table.init)(0) }, "initialising the CUDA driver")?;
    Ok(table)
}

fn one_line(error: &libloading::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or("it cannot be opened").to_owned()
}

/// The CUDA version of the driver, as (major, minor).
///
/// # Errors
/// If there is no usable driver.
pub fn driver_version() -> CudaResult<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the pointer is to a local variable.
    check(unsafe { (table()?.driver_get_version)(&mut version) }, "asking for the driver's version")?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}
