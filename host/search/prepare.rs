//! Opens the devices of a search, and compiles their kernels, while index and base are checked.

use cuda_std::launch::Kernel;

use super::SearchCodes;
use super::breadth::Breadth;
use super::edges::gpu::kernels as edge_kernels;
use super::gpu::{kernels, rerank_kernel};
use crate::index::Start;
use crate::vectors::gpu::NormKernels;
use crate::vectors::shape::{device_type, own_type, with_device_type};
use crate::{Compression, DataShape, Device, Index, Preparation, Vectors, quantize};

/// Opens `devices` for searches of `index` over `base`, or over its codes, with these beams, on a
/// thread of its own, and compiles the kernels that they will launch. Returns at once;
/// [`Searcher::devices`] then waits less, but is otherwise the same.
///
/// [`Searcher::devices`]: crate::Searcher::devices
pub fn prepare_search(
    devices: &[Device],
    index: &Index,
    base: &Vectors,
    beams: &[usize],
    codes: Option<SearchCodes>,
) -> Preparation {
    let nodes = index.len();
    let fits = |device: &Device| device.for_dim(base.dim()).is_ok_and(|device| device != Device::Cpu);
    if nodes == 0 || !devices.iter().any(fits) {
        return Preparation::none();
    }
    let Start { layers, .. } = index.start();
    let compression = codes.and_then(SearchCodes::compression);
    let growth = Breadth::growth(index, compression.is_some());
    let keeps = |&beam: &usize| if growth.is_some() { Breadth::kept(beam) } else { beam };
    let (kept, has_layers) = (beams.iter().map(keeps).collect::<Vec<_>>(), !layers.is_empty());
    let (data, metric) = (DataShape::guess(base), index.metric());
    let own = own_type(&data, metric);
    let element = compression.map_or_else(|| device_type(&data, metric), Compression::element);
    let mut kernels = with_device_type!(element, T => kernels::<T>(&kept, has_layers));
    if codes == Some(SearchCodes::Edges) {
        kernels.extend(with_device_type!(element, T => edge_kernels::<T>(&kept)));
    }
    kernels.extend(compression.map(|compression| quantize::gpu::kernel(own, compression)));
    kernels.extend(compression.map(|_| rerank_kernel(own)));
    if compression.is_some() {
        kernels.push(with_device_type!(element, T => <T as NormKernels>::Squares::NAME));
    }
    Preparation::begin(devices, kernels, move |device| device.gpu_for_graph(nodes))
}
