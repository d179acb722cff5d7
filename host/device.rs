//! The choice of device: CPU, GPU or emulator.

use std::fmt;
use std::str::FromStr;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::gpu::{Capability, Gpu, Gpus};
use crate::parallel::new_thread;
use crate::{Error, MAX_DIM, Result};

/// The device that builds or searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// A GPU if one exists and the graph is large enough, else the CPU.
    #[default]
    Auto,
    /// The CPU, on the threads of the calling rayon pool.
    Cpu,
    /// The CUDA device with this ordinal.
    Cuda(u32),
    /// The kernel emulator: runs kernels on the CPU lane by lane and checks every access. For tests
    /// on tiny data. Its limits are those of compute capability 8.9, the smallest.
    Emulated,
    /// The kernel emulator with the limits of another compute capability.
    EmulatedAs(Capability),
}

impl Device {
    /// [`Auto`](Self::Auto).
    pub fn auto() -> Self {
        Self::Auto
    }

    /// Parses names of devices, separated by commas. A number after a CUDA device is another:
    /// `cuda:0,1` are two.
    ///
    /// # Errors
    /// If a name is none of a device, or a device is named twice.
    pub fn list(names: &str) -> Result<Vec<Self>> {
        let mut devices: Vec<Self> = Vec::new();
        for name in names.split(',') {
            let number = name.parse().ok().filter(|_| matches!(devices.last(), Some(Self::Cuda(_))));
            devices.push(number.map_or_else(|| name.parse(), |number| Ok(Self::Cuda(number)))?);
        }
        Self::check_once(&devices)?;
        Ok(devices)
    }

    /// Refuses a device that is there twice.
    fn check_once(devices: &[Self]) -> Result<()> {
        let twice = (1..devices.len()).find(|&index| devices[..index].contains(&devices[index]));
        twice.map_or(Ok(()), |index| {
            let found = format_args!("{} twice", devices[index]);
            Err(Error::argument("device", found, "each device once"))
        })
    }

    /// The CUDA device whose memory holds an address, which is not read.
    ///
    /// # Errors
    /// If there is no driver, or the address is not one of a device's memory.
    pub fn holding(address: u64) -> Result<Self> {
        Gpu::holding(address)?.map(Self::Cuda).ok_or_else(|| {
            Error::argument("address", format_args!("{address:#x}"), "one in the memory of a CUDA device")
        })
    }

    /// Whether this may be the device of that name.
    pub(crate) fn may_be(self, name: &str) -> bool {
        self == Self::Auto || self.to_string() == name
    }

    /// Whether this is the kernel emulator.
    pub(crate) fn is_emulated(self) -> bool {
        matches!(self, Self::Emulated | Self::EmulatedAs(_))
    }

    /// The GPU for a graph of `nodes` nodes, or none for the CPU. `Auto` takes a GPU only for
    /// larger graphs, where it pays.
    pub(crate) fn gpu_for_graph(self, nodes: usize) -> Result<Option<Gpu>> {
        const WORTH_A_GPU: usize = 20_000;
        if self == Self::Auto && nodes < WORTH_A_GPU { Ok(None) } else { self.gpu() }
    }

    /// This device for vectors of `dim` components: kernels take up to [`MAX_DIM`], fewer than
    /// there may be bits.
    ///
    /// # Errors
    /// If it is a GPU, for more components.
    pub(crate) fn for_dim(self, dim: usize) -> Result<Self> {
        match self {
            _ if dim <= MAX_DIM => Ok(self),
            Self::Cpu | Self::Auto => Ok(Self::Cpu),
            device => {
                let found = format_args!("{device} for {dim} bits");
                Err(Error::argument("device", found, format_args!("cpu, or at most {MAX_DIM} bits")))
            }
        }
    }

    /// Resolves `Auto` for a graph of `nodes` nodes.
    pub(crate) fn for_graph(self, nodes: usize) -> Result<Self> {
        Ok(match (self, self.gpu_for_graph(nodes)?) {
            (_, None) => Self::Cpu,
            (Self::Auto, Some(_)) => Self::Cuda(0),
            (device, Some(_)) => device,
        })
    }

    /// Opens the GPUs that share the work of a search; none for the CPU. `one` opens a single
    /// device, `Auto` if none is named. Several are GPUs by name.
    pub(crate) fn gpus(
        devices: &[Self],
        one: impl FnOnce(Self) -> Result<Option<Gpu>>,
    ) -> Result<Option<Gpus>> {
        let gpus = match devices {
            [] => one(Self::Auto)?.into_iter().collect(),
            [device] => one(*device)?.into_iter().collect(),
            several => {
                Self::check_once(several)?;
                several.iter().map(|device| device.one_of_several()).collect::<Result<Vec<Gpu>>>()?
            }
        };
        if gpus.is_empty() { Ok(None) } else { Gpus::new(gpus).map(Some) }
    }

    /// Opens one of several GPUs.
    fn one_of_several(self) -> Result<Gpu> {
        let gpu = if self == Self::Auto { None } else { self.gpu()? };
        gpu.ok_or_else(|| {
            let found = format_args!("{self} among several devices");
            Error::argument("device", found, "GPUs by name, such as cuda:0,1")
        })
    }

    /// Opens the GPU. None for `Cpu`, and for `Auto` without a GPU.
    pub(crate) fn gpu(self) -> Result<Option<Gpu>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Auto => Ok(Gpu::cuda(0).inspect_err(|error| tracing::debug!(%error, "no usable GPU")).ok()),
            Self::Cuda(ordinal) => Gpu::cuda(ordinal).map(Some),
            Self::Emulated => Gpu::emulated_as(None, 0).map(Some),
            Self::EmulatedAs(capability) => Gpu::emulated_as(Some(capability), 0).map(Some),
        }
    }
}

/// Closes the CUDA devices that this process has opened, each as soon as no searcher, memory or
/// work on it is left; the next use opens it again. It takes up to 0.1 s, which a program that ends
/// takes anyway: one that has something else to finish can close them meanwhile.
///
/// The driver opens and closes a device sooner with fewer queues of work to it: 2 instead of its 8
/// save 70 ms, if the environment has `CUDA_DEVICE_MAX_CONNECTIONS=2` before the first use.
pub fn close_devices() {
    Gpu::close_cuda();
}

/// Devices that a thread opens and compiles kernels for. Dropping it waits until the devices are
/// open, not for the kernels.
#[derive(Debug)]
#[must_use = "dropping it waits until the devices are open"]
pub struct Preparation(Option<JoinHandle<()>>);

impl Preparation {
    /// Opens nothing.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Opens each of `devices` by `open`, where it gives a GPU, and compiles `kernels`, all devices
    /// at the same time. Whoever uses the devices meets the errors.
    pub(crate) fn begin(
        devices: &[Device],
        kernels: Vec<&'static str>,
        open: impl Fn(Device) -> Result<Option<Gpu>> + Send + Sync + 'static,
    ) -> Self {
        let devices = devices.to_vec();
        let prepare = move |device| {
            let began = Instant::now();
            if let Ok(Some(gpu)) = open(device) {
                let seconds = began.elapsed().as_secs_f64();
                tracing::debug!(stage = "open", done = 1, total = 1, seconds, "a stage ends");
                gpu.prepare(&kernels);
            }
        };
        let named = || new_thread().name("device".to_owned());
        let work = move || {
            thread::scope(|scope| {
                let Some((&first, others)) = devices.split_first() else { return };
                for &device in others {
                    let prepare = &prepare;
                    // Without a thread, whoever uses the device opens it.
                    let _ = named().spawn_scoped(scope, move || prepare(device));
                }
                prepare(first);
            });
        };
        Self(named().spawn(work).ok())
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        // A panic of the thread has been printed, and whoever uses the devices meets its cause.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Cpu => f.pad("cpu"),
            Self::Emulated => f.pad("emulated"),
            Self::EmulatedAs(capability) => f.pad(&format!("emulated:{capability}")),
            Self::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let ordinal = |name: &str| name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
        if let Some(version) = name.strip_prefix("emulated:") {
            return version.parse().map(Self::EmulatedAs);
        }
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "emulated" => Ok(Self::Emulated),
            "cuda" => Ok(Self::Cuda(0)),
            _ => ordinal(name).map(Self::Cuda).ok_or_else(|| {
                Error::argument("device", name, "auto, cpu, cuda, cuda:N, emulated or emulated:8.9")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for device in [Device::Auto, Device::Cpu, Device::Cuda(0), Device::Cuda(3), Device::Emulated] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        for capability in Capability::ALL {
            let device = Device::EmulatedAs(capability);
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
            let gpu = device.gpu().unwrap().unwrap();
            assert_eq!((gpu.name(), gpu.shared_memory()), (&*device.to_string(), capability.shared_memory()));
        }
        assert_eq!("emulated:8.9".parse::<Device>().unwrap().to_string(), "emulated:8.9");
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "emulated:", "emulated:7.5", "emulated:9"] {
            assert!(name.parse::<Device>().is_err(), "{name}");
        }
    }

    #[test]
    fn several_devices_have_one_name() {
        let devices = |names: &str| Device::list(names).ok();
        assert_eq!(devices("auto"), Some(vec![Device::Auto]));
        assert_eq!(devices("cuda:0,1"), Some(vec![Device::Cuda(0), Device::Cuda(1)]));
        assert_eq!(devices("cuda,cuda:3,2"), Some(vec![Device::Cuda(0), Device::Cuda(3), Device::Cuda(2)]));
        for wrong in ["", "0,1", "cpu,1", "cuda:0,0", "cuda:0,", "gpu"] {
            assert_eq!(devices(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn several_devices_are_gpus_each_once() {
        let open = |names: &str| Device::gpus(&Device::list(names).unwrap(), Device::gpu);
        let gpus = open("emulated,emulated:9.0").unwrap().unwrap();
        assert_eq!((gpus.name(), gpus.all().len()), ("emulated,emulated:9.0", 2));
        assert!(open("cpu").unwrap().is_none());
        for names in ["cpu,emulated", "emulated,auto"] {
            let error = open(names).unwrap_err().to_string();
            assert!(error.contains("among several devices, expected GPUs by name"), "{error}");
        }
        let twice = Device::gpus(&[Device::Emulated; 2], Device::gpu).unwrap_err().to_string();
        assert_eq!(twice, "device: found emulated twice, expected each device once");
    }
}
