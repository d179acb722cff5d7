//! Element types on devices.

use bytemuck::Pod;
use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::element;
use tagore_device::block::sums::TileSum;
use tagore_device::block::tile_walk::Chunks;
use tagore_device::search::exact::{
    Norms, PREPARE_THREADS, PREPARE_VECTORS, PREPARED_AT_ONCE, Prepare, exact_norms_i8, exact_norms_u8,
    exact_prepare_f16, exact_prepare_f32,
};

use super::{Family, Preparation, Side, Typed};
use crate::gpu::Gpu;
use crate::vectors::Element;
use crate::{Metric, Result};

/// An element type of vectors on a device.
pub(crate) trait OnDevice: Element + element::Element {
    /// The type in which tiles sum products.
    type Sum: TileSum + Pod;

    /// Whether tiles read a rounded copy of the vectors, in f16.
    const ROUNDED: bool;

    /// Wraps a value of this type.
    fn wrap<F: Family>(value: F::Of<Self>) -> Typed<F>;

    /// The factor of products in distances.
    fn weight(metric: Metric) -> Self::Sum;

    /// The kernel of [`prepare`](Self::prepare).
    const PREPARATION: &'static str;

    /// Computes the rounded copy, the biases and the errors of `side`'s vectors.
    fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()>;
}

/// Declares a trait of [`OnDevice`] types with an associated type for each kernel: its bound, and
/// what it is for f32, f16, u8 and i8.
macro_rules! kernels_of_types {
    (
        $(#[$doc:meta])*
        $vis:vis trait $stage:ident {
            $($kernel:ident ($bound:path): $f32:ty, $f16:ty, $u8:ty, $i8:ty;)*
        }
    ) => {
        $(#[$doc])*
        $vis trait $stage: $crate::vectors::gpu::OnDevice {
            $(type $kernel: $bound;)*
        }
        impl $stage for f32 {
            $(type $kernel = $f32;)*
        }
        impl $stage for ::cuda_std::f16 {
            $(type $kernel = $f16;)*
        }
        impl $stage for u8 {
            $(type $kernel = $u8;)*
        }
        impl $stage for i8 {
            $(type $kernel = $i8;)*
        }
    };
}
pub(crate) use kernels_of_types;

/// Declares the kernels of a stage. For each: the types of its arguments, and its functions for
/// f32, f16, u8 and i8, in this order. Tiles read f32 as f16, so kernels of tiles name the f16
/// function twice.
macro_rules! stage_kernels {
    (
        $(#[$doc:meta])*
        $vis:vis trait $stage:ident {
            $($kernel:ident $arguments:ty: $f32:ident $f16:ident $u8:ident $i8:ident;)*
        }
    ) => {
        $crate::vectors::gpu::kernels_of_types! {
            $(#[$doc])*
            $vis trait $stage {
                $($kernel (::cuda_std::launch::Kernel<Arguments = $arguments>): $f32, $f16, $u8, $i8;)*
            }
        }
    };
}
pub(crate) use stage_kernels;

/// A kernel of a tile walk in its versions for vectors of one chunk, of two, and of more.
pub(crate) trait ByChunks {
    type Arguments;
    type One: Kernel<Arguments = Self::Arguments>;
    type Two: Kernel<Arguments = Self::Arguments>;
    type Many: Kernel<Arguments = Self::Arguments>;

    /// The name of the version for vectors of `units` units of 16 bytes.
    fn name(units: u32) -> &'static str {
        match Chunks::for_units(units) {
            Chunks::One => Self::One::NAME,
            Chunks::Two => Self::Two::NAME,
            Chunks::Many => Self::Many::NAME,
        }
    }

    /// Launches the version for vectors of `units` units of 16 bytes.
    ///
    /// # Errors
    /// As [`Gpu::launch`].
    ///
    /// # Safety
    /// As for [`Gpu::launch`]; the vectors have `units` units.
    unsafe fn launch(
        gpu: &Gpu,
        units: u32,
        grid: [u32; 3],
        block: u32,
        arguments: Self::Arguments,
    ) -> Result<()> {
        // SAFETY: the caller guarantees it.
        unsafe {
            match Chunks::for_units(units) {
                Chunks::One => gpu.launch::<Self::One>(grid, block, arguments),
                Chunks::Two => gpu.launch::<Self::Two>(grid, block, arguments),
                Chunks::Many => gpu.launch::<Self::Many>(grid, block, arguments),
            }
        }
    }
}

impl<One, Two, Many> ByChunks for (One, Two, Many)
where
    One: Kernel,
    Two: Kernel<Arguments = One::Arguments>,
    Many: Kernel<Arguments = One::Arguments>,
{
    type Arguments = One::Arguments;
    type One = One;
    type Two = Two;
    type Many = Many;
}

/// Declares the tile walks of a stage. For each: the types of its arguments, and its kernels for
/// f16 (and f32, which tiles read as f16), u8 and i8, in this order.
macro_rules! tile_kernels {
    (
        $(#[$doc:meta])*
        $vis:vis trait $stage:ident {
            $($kernel:ident $arguments:ty: $f16:ty, $u8:ty, $i8:ty;)*
        }
    ) => {
        $crate::vectors::gpu::kernels_of_types! {
            $(#[$doc])*
            $vis trait $stage {
                $($kernel ($crate::vectors::gpu::ByChunks<Arguments = $arguments>): $f16, $f16, $u8, $i8;)*
            }
        }
    };
}
pub(crate) use tile_kernels;

macro_rules! rounded_types {
    ($($type:ty: $variant:ident, $prepare:ty;)*) => {$(
        impl OnDevice for $type {
            type Sum = f32;

            const ROUNDED: bool = true;

            const PREPARATION: &'static str = <$prepare as Kernel>::NAME;

            fn wrap<F: Family>(value: F::Of<Self>) -> Typed<F> {
                Typed::$variant(value)
            }

            fn weight(metric: Metric) -> f32 {
                if metric == Metric::InnerProduct { -1.0 } else { -2.0 }
            }

            fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()> {
                // Without a copy the values are rounded already, and are written as they are.
                let (rounded, rounded_stride) = if side.is_rounded {
                    (side.rounded.view_mut(), side.rounded_stride)
                } else {
                    (side.values.view_mut().cast(), side.stride)
                };
                // As many blocks as a device runs at a time, several times over.
                let blocks = 32 * gpu.multiprocessors();
                let rounds = (task.count as u32).div_ceil(PREPARED_AT_ONCE * blocks).max(1);
                let prepare = Prepare {
                    values: side.values.view(),
                    mean: task.mean.view(),
                    rounded,
                    biases: side.biases.view_mut(),
                    errors: side.errors.view_mut(),
                    count: task.count as u32,
                    dim: task.dim as u32,
                    stride: side.stride as u32,
                    rounded_stride: rounded_stride as u32,
                    scale: task.scale,
                    norm_weight: task.norm_weight() as f32,
                    error_limit: task.error_limit(),
                    skip_zero: u32::from(task.skips_zero()),
                    rounds,
                    unit: u32::from(task.is_unit()),
                };
                let grid = [task.count.div_ceil((PREPARED_AT_ONCE * rounds) as usize) as u32, 1, 1];
                // SAFETY: the buffers hold `count` vectors of these strides, and outlive the work.
                unsafe { gpu.launch::<$prepare>(grid, PREPARE_THREADS, (prepare,))? };
                let bytes = side.stride * size_of::<Self>() + rounded_stride * 2 + 8;
                gpu.count_work(<$prepare as Kernel>::NAME, (task.count * bytes) as u64, 0);
                Ok(())
            }
        }
    )*};
}

rounded_types! {
    f32: F32, exact_prepare_f32;
    f16: F16, exact_prepare_f16;
}

macro_rules! byte_types {
    ($($type:ty: $variant:ident, $norms:ty;)*) => {$(
        impl OnDevice for $type {
            type Sum = i32;

            const ROUNDED: bool = false;

            const PREPARATION: &'static str = <$norms as Kernel>::NAME;

            fn wrap<F: Family>(value: F::Of<Self>) -> Typed<F> {
                Typed::$variant(value)
            }

            fn weight(metric: Metric) -> i32 {
                if metric == Metric::InnerProduct { -1 } else { -2 }
            }

            fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()> {
                let norms = Norms {
                    values: side.values.view(),
                    norms: side.biases.view_mut(),
                    count: task.count as u32,
                    dim: task.dim as u32,
                    stride: side.stride as u32,
                    weight: task.norm_weight(),
                };
                let grid = [task.count.div_ceil(PREPARE_VECTORS as usize) as u32, 1, 1];
                // SAFETY: the buffers hold `count` vectors of this stride, and outlive the work.
                unsafe { gpu.launch::<$norms>(grid, PREPARE_THREADS, (norms,))? };
                gpu.count_work(<$norms as Kernel>::NAME, (task.count * (side.stride + 4)) as u64, 0);
                Ok(())
            }
        }
    )*};
}

byte_types! {
    u8: U8, exact_norms_u8;
    i8: I8, exact_norms_i8;
}
