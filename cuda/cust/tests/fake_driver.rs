//! The crate against a fake driver. A process opens the driver once, so each test runs itself again
//! in a process of its own with the fake driver.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::path::Path;
use std::process::Command;

use cust::memory::{KnownMemory, known_memory, memcpy_peer_async};
use cust::prelude::*;

/// Runs `body` in a child process with the fake driver, compiled with `cfg`. Without `cfg` the
/// child is given a path where no driver is.
fn with_driver(test: &str, cfg: Option<&str>, body: fn()) {
    const CHILD: &str = "CUST_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(format!("fake_libcuda{}", std::env::consts::DLL_SUFFIX));
    if let Some(cfg) = cfg {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/libcuda.rs");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let compiled = Command::new(rustc)
            .args(["--edition=2024", "--crate-type=cdylib", "--cap-lints=allow", "-O", "--cfg", cfg, "-o"])
            .args([&library, &source])
            .status()
            .unwrap();
        assert!(compiled.success());
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .env("CUST_LIBCUDA", &library)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn without_a_driver_every_call_fails_alike() {
    with_driver("without_a_driver_every_call_fails_alike", None, || {
        let failure = init(CudaFlags::empty()).unwrap_err();
        assert!(matches!(failure, Failure::NoDriver(_)));
        assert!(failure.to_string().starts_with("no CUDA driver: "), "{failure}");
        assert_eq!(failure.to_string().lines().count(), 1);
        assert_eq!(Device::num_devices().unwrap_err(), failure);
    });
}

#[test]
fn a_driver_without_a_function_is_too_old() {
    with_driver("a_driver_without_a_function_is_too_old", Some("without_launch"), || {
        let failure = init(CudaFlags::empty()).unwrap_err();
        assert_eq!(failure.to_string(), "CUDA driver too old: cuLaunchKernel missing");
    });
}

#[test]
fn an_unlisted_code_is_unknown_and_keeps_its_number() {
    with_driver("an_unlisted_code_is_unknown_and_keeps_its_number", Some("strange"), || {
        let context = Context::new(Device::get_device(0).unwrap()).unwrap();
        let failure = context.synchronize().unwrap_err();
        assert_eq!(failure.error(), CudaError::Unknown);
        assert_eq!(failure.to_string(), "waiting for a device: CUDA_ERROR_UNKNOWN (code 9999)");
    });
}

#[test]
fn devices_memory_and_launches_work() {
    with_driver("devices_memory_and_launches_work", Some("whole"), || {
        init(CudaFlags::empty()).unwrap();
        assert_eq!(cust::driver_version().unwrap(), (13, 1));
        let devices = Device::devices().unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[1].name().unwrap(), "Fake 1");
        assert_eq!(devices[0].compute_capability().unwrap(), (9, 0));
        assert!(devices[0].can_access_peer(devices[1]).unwrap());
        assert_eq!(Device::get_device(7).unwrap_err().error(), CudaError::InvalidDevice);

        let context = Context::new(devices[0]).unwrap();
        context.enable_peer_access(&Context::new(devices[1]).unwrap()).unwrap();
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING, None).unwrap();
        let (_, total) = context.mem_get_info().unwrap();
        let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
        let buffer = DeviceBuffer::from_slice(&values, &stream).unwrap();
        assert_eq!(context.mem_get_info().unwrap(), (total - 4000, total));
        let address = buffer.as_device_ptr().as_raw();
        let known = KnownMemory { is_device: true, ordinal: 0, end: address + 4000 };
        assert_eq!(known_memory(address + 3999).unwrap(), Some(known));
        assert_eq!(known_memory(64).unwrap(), None);

        let module = Module::from_ptx(&context, ".version 8.0", &[ModuleJitOption::OptLevel(4)]).unwrap();
        let double = module.get_function("double").unwrap();
        drop(module); // The function keeps the module loaded.
        let mut linker = Linker::new(&context).unwrap();
        linker.add_ptx(".version 8.0").unwrap();
        let cubin = linker.complete().unwrap();
        // SAFETY: the linker made the cubin.
        unsafe { Module::from_cubin(&context, &cubin) }.unwrap().get_function("double").unwrap();
        // SAFETY: the fake kernel doubles `count` values of the buffer.
        unsafe { launch!(double<<<4, 256, 0, stream>>>(buffer.as_device_ptr(), 999u32)) }.unwrap();
        let found = buffer.as_host_vec(&stream).unwrap();
        assert!(found[..999].iter().zip(&values).all(|(x, y)| *x == 2.0 * y) && found[999] == 999.0);

        let mut part = LockedBuffer::new(&context, &0.0f32, 10).unwrap();
        // SAFETY: `part` is read after the stream is done.
        unsafe { buffer.async_copy_to(5..15, &mut part, &stream) }.unwrap();
        stream.synchronize().unwrap();
        assert_eq!(&part[..], &found[5..15]);
        let mut copy = DeviceBuffer::<f32>::zeroed(1000, &stream).unwrap();
        assert!(copy.as_host_vec(&stream).unwrap().iter().all(|&x| x == 0.0));
        // SAFETY: the source lives on.
        unsafe { copy.async_copy_from_device(&buffer, &stream) }.unwrap();
        assert_eq!(copy.as_host_vec(&stream).unwrap(), found);
        copy.copy_from(&values, &stream).unwrap();
        let to = copy.as_device_ptr().as_raw();
        // SAFETY: both buffers hold 4000 bytes, and nothing else uses them.
        unsafe { memcpy_peer_async(to, address, 4000, &stream) }.unwrap();
        assert_eq!(copy.as_host_vec(&stream).unwrap(), found);

        let pool = MemoryPool::default_of(&context).unwrap();
        pool.keep(u64::MAX).unwrap();
        pool.allow(devices[1]).unwrap();
        // SAFETY: the values are written before they are read.
        let mut in_order = unsafe { DeviceBuffer::<f32>::uninitialized_async(1000, &stream) }.unwrap();
        in_order.copy_from(&found, &stream).unwrap();
        assert_eq!(in_order.as_host_vec(&stream).unwrap(), found);
        assert_eq!(pool.unused().unwrap(), 0);
        drop(in_order);
        assert_eq!(pool.unused().unwrap(), 4000);
        pool.trim(1000).unwrap();
        assert_eq!(pool.unused().unwrap(), 1000);

        let (start, end) = (
            Event::new(&context, EventFlags::Default).unwrap(),
            Event::new(&context, EventFlags::Default).unwrap(),
        );
        for _ in 0..2 {
            start.record(&stream).unwrap();
            stream.wait_event(&start).unwrap();
            end.record(&stream).unwrap();
            end.synchronize().unwrap();
        }
        assert_eq!(end.query().unwrap(), EventStatus::NotReady);
        assert_eq!(end.elapsed(&start).unwrap().as_micros(), 1500);

        // A buffer outlives its stream and context handles, and any thread may drop it.
        drop((stream, double, start, end, copy, part, context, pool));
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        let context = Context::new(devices[0]).unwrap();
        assert_eq!(context.mem_get_info().unwrap(), (total, total), "memory leaked, or stays pinned");
    });
}

#[test]
fn errors_give_the_operation_and_the_values() {
    with_driver("errors_give_the_operation_and_the_values", Some("whole"), || {
        let context = Context::new(Device::get_device(0).unwrap()).unwrap();
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING, None).unwrap();
        let says = |failure: Failure, text: &str| assert_eq!(failure.to_string(), text);

        says(
            DeviceBuffer::<u8>::zeroed(2 << 20, &stream).unwrap_err(),
            "allocating device memory: CUDA_ERROR_OUT_OF_MEMORY (code 2): needs 2097152 bytes, free 1048576",
        );
        says(
            Module::from_ptx(&context, "garbage", &[]).unwrap_err(),
            "loading PTX: CUDA_ERROR_INVALID_PTX (code 218): ptxas error: no .version; fatal: giving up",
        );
        says(
            Module::from_ptx(&context, "a\0b", &[]).unwrap_err(),
            "loading PTX: found a zero byte at 1, expected text without one",
        );
        says(
            Linker::new(&context).unwrap().add_ptx("garbage").unwrap_err(),
            "compiling PTX: CUDA_ERROR_INVALID_PTX (code 218): ptxas error: no .version; fatal: giving up",
        );
        let module = Module::from_ptx(&context, ".version 8.0", &[]).unwrap();
        says(
            module.get_function("treble").unwrap_err(),
            "finding a kernel: CUDA_ERROR_NOT_FOUND (code 500): treble",
        );
        let double = module.get_function("double").unwrap();
        says(
            double.set_max_dynamic_shared_memory(200 << 10).unwrap_err(),
            "allowing dynamic shared memory: CUDA_ERROR_INVALID_VALUE (code 1): double asks for 204800 bytes",
        );
        let mut buffer = DeviceBuffer::<f32>::zeroed(4, &stream).unwrap();
        // SAFETY: the fake kernel refuses a block of that size before it does anything.
        says(
            unsafe { launch!(double<<<1, (32, 33), 0, stream>>>(buffer.as_device_ptr(), 4u32)) }.unwrap_err(),
            "launching a kernel: CUDA_ERROR_INVALID_VALUE (code 1): double, grid 1 x 1 x 1, \
             block 32 x 33 x 1, 0 B shared",
        );
        says(
            buffer.copy_from(&[1.0; 5], &stream).unwrap_err(),
            "copying to a device: found 5 values, expected 4",
        );
        // SAFETY: nothing is copied.
        says(
            unsafe { buffer.async_copy_to(3..5, &mut [0.0; 2], &stream) }.unwrap_err(),
            "copying from a device: found values 3..5, expected 0..4",
        );

        // Empty buffers are valid.
        let mut empty = DeviceBuffer::<f32>::zeroed(0, &stream).unwrap();
        empty.copy_from(&[], &stream).unwrap();
        assert!(empty.as_host_vec(&stream).unwrap().is_empty());
        assert!(LockedBuffer::<u64>::from_slice(&context, &[]).unwrap().is_empty());
    });
}
