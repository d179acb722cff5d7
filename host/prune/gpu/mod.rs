//! Collect-Filter-Store on a GPU (paper section 5).

mod ids;
mod rank;
mod reverse;
mod store;
#[cfg(test)]
mod testing;

use tagore_device::prune::rows;

use crate::Result;
use crate::gpu::{Buffer, Gpu, Plan};
use crate::vectors::Matrix;
use crate::vectors::gpu::{OnDevice, stride};
use crate::vectors::space::Space;

/// The base on a device, as pruning and searching read it: vectors by their rows, in full precision.
pub(crate) struct Base<T: OnDevice> {
    values: Buffer<T>,
    /// Components from one vector to the next: rows begin at multiples of 16 bytes.
    stride: usize,
    dim: usize,
    /// A number per row (see [`rows::Rows::lifts`]), or one that nobody reads.
    lifts: Buffer<f32>,
    lifted: bool,
}

impl<T: OnDevice> Base<T> {
    /// The device memory of `n` rows of `dim` components, with their lifts if they are `lifted`.
    pub(crate) fn plan(plan: Plan, n: usize, dim: usize, lifted: bool) -> Plan {
        plan.with::<T>("rows", n * stride::<T>(dim)).with::<f32>("lifts", if lifted { n } else { 1 })
    }

    /// Copies the rows of `space` to the device; `rows` are those of the space, or the same as bytes.
    pub(crate) fn upload(gpu: &Gpu, space: &Space<'_>, rows: Matrix<'_, T>) -> Result<Self> {
        let (n, dim, lifts) = (space.len(), space.dim(), space.lifts());
        let memory = Self::plan(Plan::new(), n, dim, !lifts.is_empty()).reserve(gpu)?;
        let mut values: Buffer<T> = memory.buffer("rows")?;
        values.upload_rows(n, stride::<T>(dim), |row| rows.row(row))?;
        let mut on_device: Buffer<f32> = memory.buffer("lifts")?;
        on_device.upload(&lifts)?;
        Ok(Self { values, stride: stride::<T>(dim), dim, lifts: on_device, lifted: !lifts.is_empty() })
    }

    /// As the kernels take it.
    pub(crate) fn rows(&self) -> rows::Rows<T> {
        rows::Rows {
            values: self.values.view(),
            lifts: self.lifts.view(),
            stride: self.stride as u32,
            dim: self.dim as u32,
            lifted: u32::from(self.lifted),
            padding: 0,
        }
    }
}
