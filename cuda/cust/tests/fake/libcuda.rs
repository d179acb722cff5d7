// A fake driver library whose device memory is host memory. The tests compile it: `--cfg
// without_launch` leaves a function out, `--cfg strange` returns an unlisted code.
#![allow(non_snake_case, missing_docs, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

static SIZES: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);
// Where pinned memory begins.
static PINNED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static RETAINED: AtomicI32 = AtomicI32::new(0);
// The memory pool: unused bytes, and its release threshold.
static UNUSED: AtomicU64 = AtomicU64::new(0);
static KEPT: AtomicU64 = AtomicU64::new(0);
const CAPACITY: usize = 1 << 20;

unsafe fn allocate(bytes: usize) -> usize {
    let address = unsafe { alloc(Layout::from_size_align(bytes, 4096).unwrap()) } as usize;
    SIZES.lock().unwrap().get_or_insert_default().insert(address, bytes);
    address
}

unsafe fn free(address: usize) -> u32 {
    match SIZES.lock().unwrap().get_or_insert_default().remove(&address) {
        Some(bytes) => {
            unsafe { dealloc(address as *mut u8, Layout::from_size_align(bytes, 4096).unwrap()) };
            0
        }
        None => 1,
    }
}

fn used() -> usize {
    SIZES.lock().unwrap().get_or_insert_default().values().sum()
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {
        $(#[unsafe(no_mangle)] pub unsafe extern "system" fn $name($($arg: $ty),*) -> u32 { unsafe { $body } })*
    };
}

functions! {
    fn cuInit(_flags: c_uint) { 0 }
    fn cuDriverGetVersion(version: *mut c_int) { *version = 13_010; 0 }
    fn cuDeviceGetCount(count: *mut c_int) { *count = 2; 0 }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        *device = ordinal;
        if (0..2).contains(&ordinal) { 0 } else { 101 }
    }
    fn cuDeviceGetName(name: *mut c_char, _length: c_int, device: c_int) {
        for (at, byte) in format!("Fake {device}\0").bytes().enumerate() { *name.add(at) = byte as c_char; }
        0
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        *value = match attribute { 75 => 9, 76 => 0, 16 => 132, 115 => 1, _ => return 1 };
        0
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { *bytes = CAPACITY; 0 }
    fn cuDeviceCanAccessPeer(can: *mut c_int, a: c_int, b: c_int) { *can = (a != b) as c_int; 0 }
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) {
        RETAINED.fetch_add(1, Ordering::SeqCst);
        *context = 64 as *mut c_void;
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { RETAINED.fetch_sub(1, Ordering::SeqCst); 0 }
    fn cuCtxSetCurrent(_context: *mut c_void) { if RETAINED.load(Ordering::SeqCst) > 0 { 0 } else { 201 } }
    fn cuCtxSynchronize() { if cfg!(strange) { 9999 } else { 0 } }
    fn cuCtxEnablePeerAccess(_context: *mut c_void, _flags: c_uint) { 704 }
    fn cuModuleLoadDataEx(
        module: *mut *mut c_void, image: *const c_void, count: c_uint, names: *mut c_uint, values: *mut *mut c_void
    ) {
        if std::ffi::CStr::from_ptr(image as *const c_char).to_bytes().starts_with(b".version") {
            *module = 8 as *mut c_void;
            return 0;
        }
        let option = |name| (0..count as usize).find(|&at| *names.add(at) == name).map(|at| *values.add(at));
        let (log, size) = (option(5).unwrap() as *mut u8, option(6).unwrap() as usize);
        let text = b"ptxas error: no .version\nfatal: giving up\0";
        assert!(text.len() <= size);
        std::ptr::copy_nonoverlapping(text.as_ptr(), log, text.len());
        218
    }
    fn cuLinkCreate_v2(count: c_uint, names: *mut c_uint, values: *mut *mut c_void, link: *mut *mut c_void) {
        let option = |name| (0..count as usize).find(|&at| *names.add(at) == name).map(|at| *values.add(at));
        assert!(option(6).unwrap() as usize >= 100);
        // The linker is the address of its log, as the driver keeps it.
        *link = option(5).unwrap();
        0
    }
    fn cuLinkAddData_v2(
        link: *mut c_void, kind: c_int, data: *mut c_void, size: usize, _name: *const c_char, _count: c_uint,
        _names: *mut c_uint, _values: *mut *mut c_void
    ) {
        let text = std::slice::from_raw_parts(data as *const u8, size);
        assert!(kind == 1 && text.last() == Some(&0));
        if text.starts_with(b".version") { return 0 }
        let log = b"ptxas error: no .version\nfatal: giving up\0";
        std::ptr::copy_nonoverlapping(log.as_ptr(), link as *mut u8, log.len());
        218
    }
    fn cuLinkComplete(_link: *mut c_void, cubin: *mut *mut c_void, size: *mut usize) {
        // The fake loads an image that begins like PTX.
        (*cubin, *size) = (b".version cubin\0".as_ptr() as *mut c_void, 15);
        0
    }
    fn cuLinkDestroy(_link: *mut c_void) { 0 }
    fn cuModuleUnload(_module: *mut c_void) { 0 }
    fn cuModuleGetFunction(function: *mut *mut c_void, _module: *mut c_void, name: *const c_char) {
        *function = 16 as *mut c_void;
        if std::ffi::CStr::from_ptr(name).to_bytes() == b"double" { 0 } else { 500 }
    }
    fn cuFuncGetAttribute(value: *mut c_int, _attribute: c_int, _function: *mut c_void) { *value = 32; 0 }
    fn cuFuncSetAttribute(_function: *mut c_void, attribute: c_int, value: c_int) {
        if attribute == 8 && value <= 100 << 10 { 0 } else { 1 }
    }
    fn cuStreamCreateWithPriority(stream: *mut *mut c_void, flags: c_uint, _priority: c_int) {
        *stream = 24 as *mut c_void;
        if flags == 1 { 0 } else { 1 }
    }
    fn cuStreamDestroy_v2(_stream: *mut c_void) { 0 }
    fn cuStreamSynchronize(_stream: *mut c_void) { 0 }
    fn cuStreamWaitEvent(_stream: *mut c_void, _event: *mut c_void, _flags: c_uint) { 0 }
    fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) { *event = 32 as *mut c_void; 0 }
    fn cuEventDestroy_v2(_event: *mut c_void) { 0 }
    fn cuEventRecord(_event: *mut c_void, _stream: *mut c_void) { 0 }
    fn cuEventQuery(_event: *mut c_void) { 600 }
    fn cuEventSynchronize(_event: *mut c_void) { 0 }
    fn cuEventElapsedTime(milliseconds: *mut f32, _start: *mut c_void, _end: *mut c_void) { *milliseconds = 1.5; 0 }
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        if bytes == 0 || used() + bytes > CAPACITY { return 2 - (bytes == 0) as u32 }
        *address = allocate(bytes) as u64;
        0
    }
    fn cuMemFree_v2(address: u64) { free(address as usize) }
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, _stream: *mut c_void) { cuMemAlloc_v2(address, bytes) }
    fn cuMemFreeAsync(address: u64, _stream: *mut c_void) {
        let before = used();
        let code = free(address as usize);
        let unused = UNUSED.load(Ordering::SeqCst) + (before - used()) as u64;
        UNUSED.store(unused.min(KEPT.load(Ordering::SeqCst)), Ordering::SeqCst);
        code
    }
    fn cuDeviceGetDefaultMemPool(pool: *mut *mut c_void, _device: c_int) { *pool = 40 as *mut c_void; 0 }
    fn cuMemPoolSetAttribute(_pool: *mut c_void, attribute: c_int, value: *mut c_void) {
        KEPT.store(*(value as *const u64), Ordering::SeqCst);
        if attribute == 4 { 0 } else { 1 }
    }
    fn cuMemPoolGetAttribute(_pool: *mut c_void, attribute: c_int, value: *mut c_void) {
        let unused = UNUSED.load(Ordering::SeqCst);
        *(value as *mut u64) = match attribute { 5 => used() as u64 + unused, 7 => used() as u64, _ => return 1 };
        0
    }
    fn cuMemPoolTrimTo(_pool: *mut c_void, bytes: usize) {
        UNUSED.fetch_min(bytes as u64, Ordering::SeqCst);
        0
    }
    fn cuMemPoolSetAccess(_pool: *mut c_void, access: *const c_void, count: usize) {
        let [kind, ordinal, flags] = *(access as *const [c_int; 3]);
        if (kind, flags, count) == (1, 3, 1) && (0..2).contains(&ordinal) { 0 } else { 1 }
    }
    fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: c_uint) {
        let is_new = PINNED.lock().unwrap().insert(start as usize);
        if is_new && bytes > 0 && flags == 1 { 0 } else { 712 }
    }
    fn cuMemHostUnregister(start: *mut c_void) {
        if PINNED.lock().unwrap().remove(&(start as usize)) { 0 } else { 713 }
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { *free = CAPACITY - used() - PINNED.lock().unwrap().len(); *total = CAPACITY; 0 }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        0
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        0
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        0
    }
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        0
    }
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, address: u64) {
        let mut sizes = SIZES.lock().unwrap();
        let holds = |&(&begin, &bytes): &(&usize, &usize)| (begin..begin + bytes).contains(&(address as usize));
        // Of an address that it does not know, the driver says nothing but zeros.
        let known = sizes.get_or_insert_default().iter().find(holds).map(|(&begin, &bytes)| (2, begin, bytes));
        let (kind, begin, bytes) = known.unwrap_or_default();
        for at in 0..count as usize {
            let to = *to.add(at);
            match *attributes.add(at) {
                2 => *(to as *mut u32) = kind,
                9 => *(to as *mut i32) = 0,
                11 => *(to as *mut u64) = begin as u64,
                12 => *(to as *mut usize) = bytes,
                _ => return 1,
            }
        }
        0
    }
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, _stream: *mut c_void) {
        std::ptr::write_bytes(to as *mut u8, value, bytes);
        0
    }
}

// The only kernel: doubles `count` numbers, one per thread.
#[cfg(not(without_launch))]
functions! {
    fn cuLaunchKernel(
        _function: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        _shared: c_uint, _stream: *mut c_void, arguments: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        if bx * by * bz > 1024 { return 1 }
        let values = *(*arguments as *const u64) as *mut f32;
        let count = *(*arguments.add(1) as *const u32);
        for at in 0..(gx * gy * gz * bx * by * bz).min(count) as usize { *values.add(at) *= 2.0; }
        0
    }
}
