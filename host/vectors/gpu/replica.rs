//! Copies of a base in the memory of devices: parts of the base are copied from there.
//!
//! The copies belong to the [`Vectors`], and rows picked of these know where their copies are. So a
//! build asks for an [`Origin`] as it does without a copy, and no other code knows of them.

use std::fmt;

use super::{Lent, OnDevice, Origin, Pick, stride};
use crate::gpu::{Buffer, Gpu};
use crate::vectors::shape::with_device_type;
use crate::vectors::{ElementType, Layout, Vectors};
use crate::{Metric, Result};

/// Bytes to which rows on a device are aligned.
const ALIGN: usize = 16;

/// The rows of a base in the memory of some devices.
pub(crate) struct Replicas(Vec<Lent>);

impl Replicas {
    /// The rows on the device of `gpu`, if they are there.
    pub(crate) fn on(&self, gpu: &Gpu) -> Option<&Lent> {
        self.0.iter().find(|replica| replica.is_on(gpu))
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(Lent::device)).finish()
    }
}

impl FromIterator<Lent> for Replicas {
    fn from_iter<I: IntoIterator<Item = Lent>>(replicas: I) -> Self {
        Self(replicas.into_iter().collect())
    }
}

impl Vectors {
    /// Bytes of device memory of a [`replica`](Self::replica) of use under `metric`. None for types
    /// that a device does not hold as they are, under cosine, where it holds unit vectors, for rows
    /// that are not in host memory, and for rows picked of others.
    pub(crate) fn replica_bytes(&self, metric: Metric) -> Option<u64> {
        let element = self.element_type();
        let is_held = !matches!(element, ElementType::Bf16 | ElementType::B1) && metric != Metric::Cosine;
        let is_whole = self.lent().is_none() && self.picked.is_none();
        let row = element.row_bytes(self.dim()).next_multiple_of(ALIGN);
        (is_held && is_whole).then(|| (self.len() * row) as u64)
    }

    /// A copy of all rows in the memory of the device of `gpu`, for
    /// [`with_replicas`](Self::with_replicas), if there are [`replica_bytes`](Self::replica_bytes).
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn replica(&self, gpu: &Gpu) -> Result<Lent> {
        with_device_type!(self.element_type(), T => Origin::<T>::new(gpu, self)?.replica(gpu, self))
    }
}

impl<T: OnDevice> Origin<'_, T> {
    /// A copy of these rows, all of `base`, on the device.
    fn replica(&self, gpu: &Gpu, base: &Vectors) -> Result<Lent> {
        let (n, dim) = (base.len(), base.dim());
        let stride = stride::<T>(dim);
        let mut values: Buffer<T> = gpu.buffer("replica", n * stride)?;
        self.copy(gpu, Pick::Range(0..n), &mut values, stride)?;
        let layout = Layout::dense(base.element_type(), n, dim);
        Lent::of_buffer(gpu, values, layout, stride * size_of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::vectors::gpu::{AnyOrigin, with_typed};
    use crate::vectors::space::Space;
    use crate::{Progress, Synth};

    /// The rows of `vectors` as a build on `gpu` takes them, in bytes; and whether the host's are
    /// read.
    fn taken(gpu: &Gpu, vectors: &Vectors) -> (Vec<u8>, bool) {
        let space = Space::new(vectors, Metric::L2, &Progress::silent()).unwrap();
        with_typed!(AnyOrigin::of_space(gpu, &space).unwrap(), rows => {
            fn copied<T: OnDevice>(gpu: &Gpu, rows: &Origin<'_, T>, n: usize, dim: usize) -> (Vec<u8>, bool) {
                let mut to: Buffer<T> = gpu.buffer("rows", n * dim).unwrap();
                rows.copy(gpu, Pick::Range(0..n), &mut to, dim).unwrap();
                let mut values = vec![T::zeroed(); n * dim];
                to.download(&mut values).unwrap();
                (bytemuck::cast_slice(&values).to_vec(), !matches!(rows, Origin::Device { .. }))
            }
            copied(gpu, &rows, vectors.len(), vectors.dim())
        })
    }

    #[test]
    fn parts_of_a_replica_are_the_rows_of_the_host() {
        let floats = Synth::new(40, 7, 1).unwrap().base().to_f32().unwrap();
        let bytes = |scale: f32| floats.iter().map(move |&x| (x * scale).round() as i8);
        let whole = bytes(9.0).map(|x| f32::from(x as u8));
        for base in [
            Vectors::from_f32(floats.clone(), 7),
            Vectors::from_f32(whole.collect(), 7),
            Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 7),
            Vectors::from_i8(bytes(9.0).collect(), 7),
            Vectors::from_u8(bytes(9.0).map(|x| x as u8).collect(), 7),
        ] {
            let base = base.unwrap();
            let ids = [0, 3, 4, 17, 38, 39];
            for gpu in std::iter::once(Gpu::emulated(1)).chain(Gpu::cuda_for_tests()) {
                let replicated =
                    base.clone().with_replicas([base.replica(&gpu).unwrap()].into_iter().collect());
                assert!(
                    base.replica_bytes(Metric::L2).unwrap() >= (40 * base.element_type().row_bytes(7)) as u64
                );
                for (found, expected) in [
                    (replicated.clone(), base.clone()),
                    (replicated.only(&ids).unwrap(), base.only(&ids).unwrap()),
                    (
                        replicated.only(&ids).unwrap().only(&[1, 2, 5]).unwrap(),
                        base.only(&[3, 4, 39]).unwrap(),
                    ),
                    (replicated.only(&ids).unwrap().part(1..4).unwrap(), base.only(&[3, 4, 17]).unwrap()),
                ] {
                    let what = format!("{}, {} rows on {}", base.element_type(), found.len(), gpu.name());
                    assert_eq!(taken(&gpu, &found), (taken(&gpu, &expected).0, false), "{what}");
                    assert!(taken(&gpu, &expected).1, "{what}: the host's rows");
                }
                // Rows of another number are read on the host.
                let part = replicated.part(5..9).unwrap();
                assert_eq!(taken(&gpu, &part), (taken(&gpu, &base.part(5..9).unwrap()).0, true));
            }
        }
    }

    #[test]
    fn no_replica_where_a_device_would_not_read_it() {
        let base = Synth::new(40, 7, 1).unwrap().base();
        assert_eq!(base.replica_bytes(Metric::InnerProduct), Some(40 * 32));
        assert_eq!(base.replica_bytes(Metric::Cosine), None);
        assert_eq!(base.only(&[1, 2]).unwrap().replica_bytes(Metric::L2), None);
        assert_eq!(Vectors::from_bits(vec![1, 2, 3, 4], 16).unwrap().replica_bytes(Metric::L2), None);
    }
}
