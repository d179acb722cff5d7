//! Codes made on a GPU (`device/src/vectors/code.rs`).

use bytemuck::Pod;
use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::vectors::Strided;
use tagore_device::vectors::code::{
    CODE_THREADS, Code, Coding, Rotation as Rotating, vectors_code_f16_i8, vectors_code_f32_f16,
    vectors_code_f32_i8,
};

use super::scalar::{Codes, Role};
use super::{Compression, ScalarQuantizer};
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::{OnDevice, Origin, Pick, stride};
use crate::vectors::rotation::Rotation;
use crate::{ElementType, Progress, Result, Vectors};

/// Maximum bytes of vectors that are on the device at a time.
const PIECE: usize = 256 << 20;

/// A type of vectors with a kernel that makes codes of type `C`.
trait Coded<C>: OnDevice {
    type Kernel: Kernel<Arguments = (Coding<Self, C>,)>;
}

impl Coded<f16> for f32 {
    type Kernel = vectors_code_f32_f16;
}

impl Coded<i8> for f32 {
    type Kernel = vectors_code_f32_i8;
}

impl Coded<i8> for f16 {
    type Kernel = vectors_code_f16_i8;
}

/// The kernel that makes codes of vectors of this type, which are larger.
pub(crate) fn kernel(from: ElementType, compression: Compression) -> &'static str {
    match (from, compression) {
        (_, Compression::F16) => vectors_code_f32_f16::NAME,
        (ElementType::F16, Compression::Int8) => vectors_code_f16_i8::NAME,
        (_, Compression::Int8) => vectors_code_f32_i8::NAME,
    }
}

/// Rows of a piece of `count` rows of `dim` components.
fn at_once<T>(count: usize, dim: usize) -> usize {
    (PIECE / (dim * size_of::<T>())).clamp(1, count.max(1))
}

fn memory<T: OnDevice, C: OnDevice>(has_rests: bool, count: usize, dim: usize) -> MemoryPlan {
    let codes = count * stride::<C>(dim);
    MemoryPlan::new()
        .with::<C>("codes", codes)
        .with::<C>("rests", if has_rests { codes } else { 1 })
        .with::<T>("vectors", at_once::<T>(count, dim) * dim)
        .with::<f32>("factors", Rotation::factors(dim))
        .with::<f32>("mean", dim)
}

/// Device memory that makes the codes, with rests if so, of `n` nodes of `dim` components.
pub(crate) fn plan(
    from: ElementType,
    compression: Compression,
    has_rests: bool,
    n: usize,
    dim: usize,
) -> MemoryPlan {
    match (from, compression) {
        (_, Compression::F16) => memory::<f32, f16>(has_rests, n, dim),
        (ElementType::F16, Compression::Int8) => memory::<f16, i8>(has_rests, n, dim),
        (_, Compression::Int8) => memory::<f32, i8>(has_rests, n, dim),
    }
}

impl ScalarQuantizer {
    /// Makes the codes of at least one vector on the device, where they stay. They equal those that
    /// the host makes.
    pub(super) fn all_on(
        &self,
        gpu: &Gpu,
        vectors: &Vectors,
        role: Role,
        progress: &Progress,
    ) -> Result<Codes> {
        let task = Task { quantizer: self, gpu, vectors, role, progress };
        match (self.compression(), vectors.element_type()) {
            (Compression::F16, _) => task.run::<f32, f16>(),
            (Compression::Int8, ElementType::F16) => task.run::<f16, i8>(),
            (Compression::Int8, _) => task.run::<f32, i8>(),
        }
    }
}

/// The coding of vectors.
struct Task<'a> {
    quantizer: &'a ScalarQuantizer,
    gpu: &'a Gpu,
    vectors: &'a Vectors,
    role: Role,
    progress: &'a Progress,
}

impl Task<'_> {
    fn run<T: Coded<C>, C: Code + OnDevice + Pod>(&self) -> Result<Codes> {
        let &Self { quantizer, gpu, vectors, role, progress } = self;
        let rows = Origin::<T>::new(gpu, vectors)?;
        let (count, dim) = (vectors.len(), quantizer.mean(role).len());
        let (at_once, to_stride) = (at_once::<T>(count, dim), stride::<C>(dim));
        let (factors, width) = quantizer.transforms();
        let has_rests = quantizer.compression().has_rests(role);
        let codes_of_each = if has_rests { 2 } else { 1 };
        let memory = memory::<T, C>(has_rests, count, dim).reserve(gpu)?;
        let mut codes: Buffer<C> = memory.buffer("codes")?;
        let mut rests: Buffer<C> = memory.buffer("rests")?;
        let mut piece: Buffer<T> = memory.buffer("vectors")?;
        let mut of_transforms: Buffer<f32> = memory.buffer("factors")?;
        of_transforms.upload(&factors)?;
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(quantizer.mean(role))?;
        let stage = progress.stage("compress", count as u64);
        for first in (0..count).step_by(at_once) {
            let here = first..count.min(first + at_once);
            rows.copy(gpu, Pick::Range(here.clone()), &mut piece, dim)?;
            let (stride, count) = (dim as u64, here.len() as u32);
            let coding = Coding {
                rows: Strided { values: piece.view(), stride, count, dim: dim as u32 },
                rotation: Rotating {
                    factors: of_transforms.view(),
                    transforms: (factors.len() / width) as u32,
                    width: width as u32,
                },
                mean: mean.view(),
                codes: codes.view_mut().offset(first * to_stride),
                rests: rests.view_mut().offset(if has_rests { first * to_stride } else { 0 }),
                stride: to_stride as u64,
                scale: quantizer.scale::<C>(role),
                has_rests: u32::from(has_rests),
            };
            // SAFETY: the buffers have room for these rows, a factor per component of each
            // transform and a mean per component, and outlive the work.
            unsafe { gpu.launch::<T::Kernel>([here.len() as u32, 1, 1], CODE_THREADS, (coding,))? };
            gpu.count_work(
                T::Kernel::NAME,
                (here.len() * (dim * size_of::<T>() + codes_of_each * to_stride * size_of::<C>())) as u64,
                0,
            );
            stage.advance(here.len() as u64)?;
        }
        let rests = has_rests.then(|| Vectors::in_buffer(gpu, rests, count, dim)).transpose()?;
        Ok(Codes { codes: Vectors::in_buffer(gpu, codes, count, dim)?, rests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, Synth};

    /// Codes of `vectors` on the host and on each GPU, as bytes.
    fn check(vectors: &Vectors, metric: Metric, compression: Compression) {
        let quantizer = ScalarQuantizer::for_settling(vectors, metric, compression).unwrap();
        check_with(&quantizer, vectors, metric);
        check_with(&ScalarQuantizer::for_search(vectors, metric, compression).unwrap(), vectors, metric);
    }

    fn check_with(quantizer: &ScalarQuantizer, vectors: &Vectors, metric: Metric) {
        let (silent, compression) = (Progress::silent(), quantizer.compression());
        for gpu in [Some(Gpu::emulated(4)), Gpu::cuda_for_tests()].into_iter().flatten() {
            for role in [Role::Base, Role::Queries, Role::Settled] {
                let on_host = quantizer.all(vectors, role, None, &silent).unwrap();
                let there = quantizer.all(vectors, role, Some(&gpu), &silent).unwrap();
                let not_held = quantizer.not_held(&there.codes).unwrap();
                assert_eq!(not_held, quantizer.not_held(&on_host.codes).unwrap());
                let device = there.codes.device().map(|device| device.to_string());
                assert_eq!(device.as_deref(), Some(gpu.name()));
                let has_rests = role == Role::Settled && compression == Compression::Int8;
                assert_eq!((there.rests.is_some(), on_host.rests.is_some()), (has_rests, has_rests));
                let pairs = there.rests.zip(on_host.rests);
                for (there, on_host) in pairs.into_iter().chain([(there.codes, on_host.codes)]) {
                    let there = there.into_host().unwrap();
                    assert_eq!(there.element_type(), compression.element());
                    for row in 0..vectors.len() {
                        assert_eq!(
                            there.host_row(row),
                            on_host.host_row(row),
                            "{metric} {compression}, row {row}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_gpu_tells_the_rows_that_codes_do_not_hold() {
        let plain = Synth::new(300, 32, 5).unwrap().base();
        let component =
            |i: usize| if i.is_multiple_of(1601) { -9999.0 } else { plain.host_row(i / 32)[i % 32] };
        let dirty = Vectors::from_f32((0..300 * 32).map(component).collect(), 32).unwrap();
        check(&dirty, Metric::L2, Compression::F16);
        check(&dirty, Metric::L2, Compression::Int8);
        let quantizer = ScalarQuantizer::for_search(&dirty, Metric::L2, Compression::Int8).unwrap();
        let codes = quantizer.queries(&dirty, None, &Progress::silent()).unwrap();
        assert_eq!(quantizer.not_held(&codes).unwrap(), [0, 50, 100, 150, 200, 250]);
    }

    #[test]
    fn a_gpu_makes_the_codes_of_the_host() {
        for (dim, metric) in [(1, Metric::L2), (24, Metric::InnerProduct), (64, Metric::L2)] {
            let base = Synth::new(260, dim, 5).unwrap().base();
            check(&base, metric, Compression::F16);
            check(&base, metric, Compression::Int8);
            let halves = base.cast(ElementType::F16, &Progress::silent()).unwrap();
            check(&halves, metric, Compression::Int8);
        }
    }
}
