//! Opens the device of a search, and compiles its kernels, while index and base are checked.

use super::SearchVectors;
use super::engine::RERANK;
use super::gpu::kernels;
use crate::vectors::shape::{device_type, with_type};
use crate::{DataShape, Device, Index, Preparation, Vectors};

/// Opens `device` for searches of `index` over `base` with these beams and vectors, on a thread of its
/// own, and compiles the kernels that they will launch. Returns at once; [`Searcher::device`] then waits
/// less, but is otherwise the same.
///
/// [`Searcher::device`]: crate::Searcher::device
pub fn prepare_search(
    device: Device,
    index: &Index,
    base: &Vectors,
    beams: &[usize],
    vectors: SearchVectors,
) -> Preparation {
    let nodes = index.len();
    if nodes == 0 || device == Device::Cpu {
        return Preparation::none();
    }
    let has_layers = !index.layers().is_empty();
    let element = device_type(&DataShape::guess(base), index.metric());
    let mut names = Vec::new();
    let walked = vectors.copy_of(element).inspect(|_| {
        // The kernel that settles, of a usual `Searcher::rerank`.
        with_type!(element, T => names.extend(kernels::<T>(&[RERANK], false)));
    });
    with_type!(walked.unwrap_or(element), T => names.extend(kernels::<T>(beams, has_layers)));
    Preparation::begin(names, move || device.gpu_for_graph(nodes))
}
