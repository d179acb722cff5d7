//! The kernels that a descent will launch.

use cuda_std::launch::Kernel;
use tagore_device::descent::cells::{
    cells_finish_exact, cells_known_sets, cells_merge_candidates, cells_merge_proposals,
};
use tagore_device::descent::merge::descent_merge;
use tagore_device::descent::renumber::{renumber_ids, renumber_values, renumber_vectors};
use tagore_device::descent::sample::{descent_gather, descent_sample, descent_start};
use tagore_device::vectors::copy::vectors_copy_packed;

use super::{CellSettings, DescentKernels, DescentShape};
use crate::cluster;
use crate::descent::Start;
use crate::vectors::gpu::{ByChunks, Side};

impl DescentShape {
    /// The kernels of a descent over vectors of type `T` on the device; none if all pairs are
    /// compared. The data decides whether a few rows need an exact search at the end.
    pub(in crate::descent) fn kernels<T: DescentKernels>(&self) -> Vec<&'static str> {
        let (n, dim, start) = (self.n, self.dim, self.choose_start());
        if start == Start::AllPairs {
            return Vec::new();
        }
        let (joins, expands) = CellSettings::iterations(self.iterations, start, self.merged);
        let mut kernels = cluster::kernels::<T>(n, self.settings.cells(n, dim, start, None));
        kernels.extend([
            T::PREPARATION,
            renumber_vectors::NAME,
            renumber_values::NAME,
            renumber_ids::NAME,
            if self.has_exact_keys::<T>() { cells_finish_exact::NAME } else { T::Finish::NAME },
        ]);
        if start == Start::Cells {
            let units = Side::<T>::tile_units(dim);
            kernels.extend([
                T::IntraCellJoin::name(units),
                cells_merge_candidates::NAME,
                T::CrossCellJoin::name(units),
                cells_merge_proposals::NAME,
            ]);
            if self.settings.clusterings(n, dim) > 1 {
                kernels.push(cells_known_sets::NAME);
                // Any number of known cells has the same kernels.
                kernels.extend(cluster::kernels::<T>(n, self.settings.cells(n, dim, start, Some(1))));
            }
        }
        if joins > 0 {
            kernels.extend([T::Join::NAME, descent_merge::NAME]);
            if start == Start::Random {
                kernels.push(descent_start::NAME);
            } else {
                kernels.push(descent_gather::NAME);
            }
            if start != Start::Random || joins > 1 {
                kernels.push(descent_sample::NAME);
            }
        }
        if expands > 0 {
            kernels.push(descent_gather::NAME);
            if self.is_packed() {
                kernels.extend([vectors_copy_packed::NAME, T::ExpandPacked::NAME]);
            } else {
                kernels.push(T::Expand::NAME);
            }
        }
        kernels
    }
}
