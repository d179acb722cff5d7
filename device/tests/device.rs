//! An emulated device that keeps its inputs alive, so that a test states only the arguments of a
//! kernel.

use std::cell::RefCell;

use cuda_std::launch::Kernel;
use cuda_std::memory::{Global, Plain};
use emulator::{Allocation, Emulator};

/// An emulated device with the inputs uploaded so far.
pub struct TestDevice {
    emulator: Emulator,
    inputs: RefCell<Vec<Allocation>>,
}

impl TestDevice {
    /// A device whose order of lanes and blocks is drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::on(Emulator::with_seed(seed))
    }

    /// A device on `emulator`.
    pub fn on(emulator: Emulator) -> Self {
        Self { emulator, inputs: RefCell::default() }
    }

    /// Uploads values that kernels only read; they live as long as the device.
    pub fn input<T: Plain>(&self, values: &[T]) -> Global<T> {
        let allocation = self.emulator.upload(values);
        let view = allocation.view().read_only();
        self.inputs.borrow_mut().push(allocation);
        view
    }

    /// Uploads values that a kernel changes.
    pub fn upload<T: Plain>(&self, values: &[T]) -> Allocation {
        self.emulator.upload(values)
    }

    /// Allocates `count` unwritten values.
    pub fn room<T: Plain>(&self, count: usize) -> Allocation {
        crate::room::<T>(&self.emulator, count)
    }

    /// Launches a kernel on a one-dimensional grid; panics with the fault.
    #[track_caller]
    pub fn launch<K: Kernel>(&self, blocks: u32, threads: u32, arguments: K::Arguments) {
        self.launch_2d::<K>([blocks, 1], threads, arguments);
    }

    /// Launches a kernel on a two-dimensional grid; panics with the fault.
    #[track_caller]
    pub fn launch_2d<K: Kernel>(&self, [x, y]: [u32; 2], threads: u32, arguments: K::Arguments) {
        if let Err(fault) = self.emulator.launch::<K>([x, y, 1], threads, arguments) {
            panic!("{fault}");
        }
    }
}

/// The `count` values of an allocation from value `first` on.
pub fn part<T: Plain>(allocation: &Allocation, first: usize, count: usize) -> Vec<T> {
    let mut bytes = vec![0; count * size_of::<T>()];
    allocation.download(first * size_of::<T>(), &mut bytes).unwrap();
    // SAFETY: each piece has the size of a `T`, and any bits are a `T`.
    let value = |piece: &[u8]| unsafe { piece.as_ptr().cast::<T>().read_unaligned() };
    bytes.chunks_exact(size_of::<T>()).map(value).collect()
}
