//! Values whose element type is chosen at run time.

use cuda_std::f16;

use super::OnDevice;

/// A generic type of values on a device, such as [`Base`](super::Base).
pub(crate) trait Family {
    type Of<T: OnDevice>;
}

/// A value of a family, in one of the element types that a device knows.
pub(crate) enum Typed<F: Family> {
    F32(F::Of<f32>),
    F16(F::Of<f16>),
    U8(F::Of<u8>),
    I8(F::Of<i8>),
}

/// Evaluates `$body` with `$value` bound to the value of a [`Typed`].
macro_rules! with_typed {
    ($typed:expr, $value:pat => $body:expr) => {
        match $typed {
            $crate::vectors::gpu::Typed::F32($value) => $body,
            $crate::vectors::gpu::Typed::F16($value) => $body,
            $crate::vectors::gpu::Typed::U8($value) => $body,
            $crate::vectors::gpu::Typed::I8($value) => $body,
        }
    };
}
pub(crate) use with_typed;
