//! The driver as the compiler of kernels.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use cust::prelude::*;

use super::{CacheFile, Compiler, Kernels};
use crate::gpu::ptx::Program;
use crate::parallel::locked;
use crate::{Error, Result};

/// Dynamic shared memory of every kernel without opt-in.
const SHARED_BYTES: u32 = 48 << 10;

/// A kernel loaded into a context, with its allowed dynamic shared memory.
#[derive(Debug)]
pub(in crate::gpu) struct Loaded {
    function: Function,
    allowed: Mutex<u32>,
}

impl Loaded {
    /// The kernel, with at least `shared` bytes of dynamic shared memory allowed.
    pub(in crate::gpu) fn with_shared(&self, shared: u32) -> CudaResult<&Function> {
        let mut allowed = locked(&self.allowed);
        if shared > *allowed {
            self.function.set_max_dynamic_shared_memory(shared)?;
            *allowed = shared;
        }
        Ok(&self.function)
    }
}

/// Compiles the kernels of one PTX text.
#[derive(Debug)]
pub(in crate::gpu) struct Driver {
    context: Context,
    /// The device, for errors.
    name: String,
    program: Program,
}

impl Driver {
    /// The names of all kernels.
    pub(in crate::gpu) fn names(&self) -> Vec<&'static str> {
        self.program.names()
    }

    fn check<T>(&self, result: CudaResult<T>) -> Result<T> {
        result.map_err(|failure| Error::Device { device: self.name.clone(), problem: failure.to_string() })
    }

    fn module(&self, kernel: &str) -> Result<String> {
        self.program.module(kernel).ok_or_else(|| Error::Device {
            device: self.name.clone(),
            problem: format!("finding a kernel: {kernel} is not in the PTX"),
        })
    }

    fn loaded(&self, module: CudaResult<Module>, kernel: &str) -> Result<Arc<Loaded>> {
        let function = self.check(module.and_then(|module| module.get_function(kernel)))?;
        Ok(Arc::new(Loaded { function, allowed: Mutex::new(SHARED_BYTES) }))
    }
}

impl Compiler for Driver {
    type Function = Arc<Loaded>;

    fn compile(&self, kernel: &str) -> Result<Vec<u8>> {
        let ptx = self.module(kernel)?;
        let compile = || {
            let mut linker = Linker::new(&self.context)?;
            linker.add_ptx(ptx)?;
            linker.complete()
        };
        self.check(compile())
    }

    fn load(&self, kernel: &str, image: &[u8]) -> Result<Arc<Loaded>> {
        // SAFETY: a linker of this user made the image: it comes from there, or from a file with a
        // correct checksum that only this user can write.
        self.loaded(unsafe { Module::from_cubin(&self.context, image) }, kernel)
    }

    fn compile_and_load(&self, kernel: &str) -> Result<Arc<Loaded>> {
        // The driver has a cache of its own.
        self.loaded(Module::from_ptx(&self.context, self.module(kernel)?, &[]), kernel)
    }

    fn work(&self, kernel: &str) -> usize {
        self.program.bytes(kernel)
    }
}

/// The kernels of a device, by the address of their PTX, which is never freed. So users' kernels
/// may have any names.
#[derive(Debug)]
pub(in crate::gpu) struct Programs {
    context: Context,
    name: String,
    programs: Mutex<HashMap<usize, Arc<Kernels<Driver>>>>,
}

impl Programs {
    /// No kernels yet, for the device `name` of `context`.
    pub(in crate::gpu) fn new(context: Context, name: String) -> Self {
        Self { context, name, programs: Mutex::default() }
    }

    /// The kernels of `ptx`.
    pub(in crate::gpu) fn kernels(&self, ptx: &'static str) -> Arc<Kernels<Driver>> {
        let mut programs = locked(&self.programs);
        let kernels = programs.entry(ptx.as_ptr() as usize).or_insert_with(|| {
            let driver = Driver {
                context: self.context.clone(),
                name: self.name.clone(),
                program: Program::parse(ptx),
            };
            let file = self.key(ptx).ok().and_then(CacheFile::in_user_folder);
            Arc::new(Kernels::new(driver, file))
        });
        Arc::clone(kernels)
    }

    /// All that compiled kernels depend on.
    fn key(&self, ptx: &str) -> Result<String, Failure> {
        let (major, minor) = self.context.device().compute_capability()?;
        let (cuda, release) = cust::driver_version()?;
        // The release of the driver, where the system tells it.
        let driver = fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
        // The hash may differ between compilers of this program: then kernels are compiled again.
        let mut hasher = DefaultHasher::new();
        ptx.hash(&mut hasher);
        let hash = hasher.finish();
        Ok(format!("sm_{major}{minor}, CUDA {cuda}.{release} {}, PTX {hash:016x}", driver.trim()))
    }

    /// Seconds that launches waited for kernels so far.
    pub(in crate::gpu) fn waited(&self) -> f64 {
        let programs = locked(&self.programs);
        programs.values().map(|kernels| kernels.waited()).sum()
    }
}
