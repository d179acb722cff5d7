//! Opens the devices of a search, and compiles their kernels, while index and base are checked.

use super::gpu::kernels;
use crate::vectors::shape::{device_type, with_device_type};
use crate::{DataShape, Device, Index, Preparation, Vectors};

/// Opens `devices` for searches of `index` over `base` with these beams, on a thread of its own,
/// and compiles the kernels that they will launch. Returns at once; [`Searcher::devices`] then
/// waits less, but is otherwise the same.
///
/// [`Searcher::devices`]: crate::Searcher::devices
pub fn prepare_search(devices: &[Device], index: &Index, base: &Vectors, beams: &[usize]) -> Preparation {
    let nodes = index.len();
    let fits = |device: &Device| device.for_dim(base.dim()).is_ok_and(|device| device != Device::Cpu);
    if nodes == 0 || !devices.iter().any(fits) {
        return Preparation::none();
    }
    let has_layers = !index.layers().is_empty();
    let element = device_type(&DataShape::guess(base), index.metric());
    let kernels = with_device_type!(element, T => kernels::<T>(beams, has_layers));
    Preparation::begin(devices, kernels, move |device| device.gpu_for_graph(nodes))
}
