//! Smoke test on the driver of this machine: `cargo run --release -p tagore-cust --example smoke`.
//! Runs a kernel on every device, each from a thread of its own, and checks the results.
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use std::time::Instant;

use cust::prelude::*;

/// x[i] = a * x[i] + 1 for i < n, as PTX.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry axpb(.param .u64 x, .param .f32 a, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.f32 %f2, [%rd3];
    fma.rn.f32 %f2, %f2, %f1, 0f3F800000;
    st.global.f32 [%rd3], %f2;
DONE:
    ret;
}
";

const COUNT: usize = 10_000_019;

fn main() -> CudaResult<()> {
    init(CudaFlags::empty())?;
    let (major, minor) = cust::driver_version()?;
    println!("CUDA {major}.{minor}, {} device(s)", Device::num_devices()?);
    for device in Device::devices()? {
        let done = std::thread::spawn(move || run(device)).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    let context = Context::new(Device::get_device(0)?)?;
    if let Err(failure) = Module::from_ptx(&context, PTX.replace("fma.rn.f32", "fma.f33"), &[]) {
        println!("broken PTX gives: {failure}");
    }
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING, None)?;
    if let Err(failure) = DeviceBuffer::<u64>::zeroed(1 << 40, &stream) {
        println!("8 TiB give: {failure}");
    }
    Ok(())
}

fn run(device: Device) -> CudaResult<()> {
    let (major, minor) = device.compute_capability()?;
    println!("{}: sm_{major}{minor}, {} MiB", device.name()?, device.total_memory()? >> 20);
    let context = Context::new(device)?;
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING, None)?;
    let began = Instant::now();
    let module = Module::from_ptx(&context, PTX, &[ModuleJitOption::GenerateLineInfo(true)])?;
    println!("loaded in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    let kernel = module.get_function("axpb")?;
    let values: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
    let values = LockedBuffer::from_slice(&context, &values)?;
    let mut found = LockedBuffer::new(&context, &f32::NAN, COUNT)?;
    let start = Event::new(&context, EventFlags::Default)?;
    let end = Event::new(&context, EventFlags::Default)?;
    // SAFETY: the buffer is written before it is read, the host buffers outlive the stream's work,
    // and the kernel changes `COUNT` values of the buffer, one per thread.
    unsafe {
        let mut buffer = DeviceBuffer::uninitialized(&context, COUNT)?;
        buffer.async_copy_from(&values, &stream)?;
        start.record(&stream)?;
        let (grid, n) = (COUNT.div_ceil(256) as u32, COUNT as u32);
        launch!(kernel<<<grid, 256, 0, stream>>>(buffer.as_device_ptr(), 2.0f32, n))?;
        end.record(&stream)?;
        buffer.async_copy_to(0..COUNT, &mut found, &stream)?;
        stream.synchronize()?;
    }
    let wrong = values.iter().zip(found.iter()).filter(|(x, y)| x.mul_add(2.0, 1.0) != **y).count();
    println!("{wrong} of {COUNT} values wrong, kernel {:.3} ms", end.elapsed(&start)?.as_secs_f64() * 1e3);
    assert_eq!(wrong, 0, "the kernel's values are wrong");
    Ok(())
}
