//! Assignment of vectors, piece by piece, to their two nearest centres, on a device or on the CPU.

use tagore_device::block::tile;
use tagore_device::cluster::{Assign, assign_blocks, cluster_assign_f16};

use super::cpu::Centres;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::memory::filled;
use crate::progress::StageProgress;
use crate::vectors::gpu::{OnDevice, Preparation, QUERIES, ROWS, Role, Rounding, Side};
use crate::vectors::{Matrix, TypedRows, Vectors};
use crate::{Error, Metric, Result};

/// Clusters of each vector.
const CLUSTERS_PER_VECTOR: usize = 2;

/// Finds the two nearest centres (L2) of vectors. A device rounds vectors and centres to f16, so it
/// may choose another centre than the CPU if two are about equally near.
pub(crate) enum Assigner {
    Cpu,
    Device(Box<DeviceAssigner>),
}

/// Largest inputs of an [`Assigner`].
#[derive(Clone, Copy)]
pub(crate) struct AssignerRoom {
    /// Vectors per piece.
    pub piece: usize,
    /// Number of centres.
    pub centres: usize,
}

/// Rounding of vectors to f16 on a device: `(x - mean) * scale`.
#[derive(Clone)]
pub(crate) struct RowRounding {
    /// One value per component.
    pub mean: Vec<f32>,
    pub scale: f32,
}

impl RowRounding {
    /// Fits the rounding to vectors like those of `sample`.
    ///
    /// # Errors
    /// If `sample` is not f32.
    pub(crate) fn fit(sample: &Vectors) -> Result<Self> {
        let rows = floats(sample)?;
        let all: Vec<&[f32]> = Rounding::places::<f32>(sample.len()).map(|row| rows.row(row)).collect();
        let Rounding { mean, scale, .. } = Rounding::choose(Metric::L2, sample.dim(), &all, &all);
        Ok(Self { mean, scale })
    }
}

/// An assigner with its present centres.
pub(crate) struct Nearest<'a> {
    assigner: &'a mut Assigner,
    centres: &'a Centres,
}

impl Assigner {
    /// An assigner on `gpu`, or on the CPU if none, of vectors rounded by `rounding`.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(crate) fn new(gpu: Option<Gpu>, rounding: &RowRounding, room: AssignerRoom) -> Result<Self> {
        Ok(match gpu {
            None => Self::Cpu,
            Some(gpu) => Self::Device(Box::new(DeviceAssigner::new(gpu, rounding, room)?)),
        })
    }

    /// Sets the centres.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn with<'a>(&'a mut self, centres: &'a Centres) -> Result<Nearest<'a>> {
        if let Self::Device(device) = self {
            let DeviceAssigner { gpu, rounded, centres: side, .. } = &mut **device;
            rounded
                .upload(gpu, side, centres.count(), |number, out| out.copy_from_slice(centres.row(number)))?;
        }
        Ok(Nearest { assigner: self, centres })
    }
}

impl Nearest<'_> {
    /// The two nearest centres of each of `count` vectors, nearest first; ties by number. `write`
    /// writes the components of a vector.
    ///
    /// # Errors
    /// If the device fails, or the work is cancelled.
    pub(crate) fn two(
        &mut self,
        count: usize,
        write: impl Fn(usize, &mut [f32]) + Sync,
        stage: &StageProgress<'_>,
    ) -> Result<Vec<[u32; 2]>> {
        let Assigner::Device(device) = self.assigner else {
            return self.centres.nearest_two(count, write, stage);
        };
        let mut nearest = filled([0; CLUSTERS_PER_VECTOR], count)?;
        for (piece, nearest) in nearest.chunks_mut(device.piece).enumerate() {
            stage.advance(nearest.len() as u64)?;
            let first = piece * device.piece;
            device.assign(|row, out| write(first + row, out), self.centres.count(), nearest)?;
        }
        Ok(nearest)
    }
}

/// The rows of f32 vectors; fails for other types.
fn floats(vectors: &Vectors) -> Result<Matrix<'_, f32>> {
    match vectors.rows() {
        TypedRows::F32(rows) => Ok(rows),
        _ => Err(Error::mismatch("vectors to be clustered", vectors.element_type(), "f32")),
    }
}

/// Device buffers: centres, a piece of the vectors, and their nearest centres.
pub(crate) struct DeviceAssigner {
    gpu: Gpu,
    /// Maximum number of vectors per piece.
    piece: usize,
    vectors: Side<f32>,
    centres: Side<f32>,
    rounded: Rounded,
    nearest: Buffer<u32>,
}

impl DeviceAssigner {
    fn new(gpu: Gpu, rounding: &RowRounding, room: AssignerRoom) -> Result<Self> {
        let AssignerRoom { piece, centres } = room;
        let dim = rounding.mean.len();
        let plan = Side::<f32>::plan(MemoryPlan::new(), QUERIES, piece, dim, f32::ROUNDED);
        let memory = Side::<f32>::plan(plan, ROWS, centres, dim, f32::ROUNDED)
            .with::<f32>("mean", dim)
            .with::<u32>("nearest centres", CLUSTERS_PER_VECTOR * piece)
            .reserve(&gpu)?;
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(&rounding.mean)?;
        Ok(Self {
            piece,
            vectors: Side::new(&memory, QUERIES, dim, f32::ROUNDED)?,
            centres: Side::new(&memory, ROWS, dim, f32::ROUNDED)?,
            rounded: Rounded { mean, scale: rounding.scale, dim },
            nearest: memory.buffer("nearest centres")?,
            gpu,
        })
    }

    /// Finds the nearest of the first `centres` centres of `nearest.len()` vectors.
    fn assign(
        &mut self,
        write: impl Fn(usize, &mut [f32]) + Sync,
        centres: usize,
        nearest: &mut [[u32; CLUSTERS_PER_VECTOR]],
    ) -> Result<()> {
        let count = nearest.len();
        self.rounded.upload(&self.gpu, &mut self.vectors, count, write)?;
        let vectors = self.vectors.tiles();
        // Ids and lists, unused here.
        let none = self.nearest.view();
        let assign = Assign::<f32> {
            vectors: vectors.vectors,
            ids: none,
            centres: self.centres.tiles().vectors,
            lists: none,
            biases: self.centres.biases.view(),
            guide_starts: none,
            nearest: self.nearest.view_mut(),
            listed: 0,
            by_number: 0,
            count: count as u32,
            guide_count: 0,
            centre_count: centres as u32,
            probes: CLUSTERS_PER_VECTOR as u32,
            vector_stride: vectors.stride,
            centre_stride: vectors.stride,
            units: vectors.units(),
            weight: f32::weight(Metric::L2),
        };
        let blocks = [assign_blocks(count as u32, 0), 1, 1];
        // SAFETY: the sides hold `count` prepared vectors and `centres` prepared centres, and
        // `nearest` has room for all results. The download waits for the work, so all buffers
        // outlive it.
        unsafe { self.gpu.launch::<cluster_assign_f16>(blocks, tile::THREADS, (assign,))? };
        self.nearest.download(bytemuck::cast_slice_mut(nearest))
    }
}

/// Rounding of vectors to f16.
struct Rounded {
    mean: Buffer<f32>,
    scale: f32,
    dim: usize,
}

impl Rounded {
    /// Writes `count` vectors to a side with room for them, and rounds them.
    fn upload(
        &mut self,
        gpu: &Gpu,
        side: &mut Side<f32>,
        count: usize,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<()> {
        let stride = side.stride;
        side.values.write_rows(0, count, stride, |place, room| {
            let (vector, gap) = bytemuck::cast_slice_mut(room).split_at_mut(self.dim);
            write(place, vector);
            gap.fill(0.0);
        })?;
        let task = Preparation {
            count,
            dim: self.dim,
            mean: &self.mean,
            scale: self.scale,
            metric: Metric::L2,
            role: Role::Points,
        };
        f32::prepare(gpu, side, &task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Progress, Synth};

    /// The two nearest centres on the CPU and on the device; every `every`-th vector is a centre.
    fn both(vectors: &Vectors, every: usize, piece: usize) -> [Vec<[u32; 2]>; 2] {
        let progress = Progress::silent();
        let stage = progress.stage("test", 0);
        let mut centres = Centres::none(vectors.dim());
        (0..vectors.len()).step_by(every).for_each(|row| centres.push(&vectors.host_row(row)));
        [None, Some(Gpu::emulated(2))].map(|gpu| {
            let rounding = RowRounding::fit(vectors).unwrap();
            let room = AssignerRoom { piece, centres: centres.count() };
            let mut assigner = Assigner::new(gpu, &rounding, room).unwrap();
            let write = |row: usize, out: &mut [f32]| out.copy_from_slice(&vectors.host_row(row));
            assigner.with(&centres).unwrap().two(vectors.len(), write, &stage).unwrap()
        })
    }

    #[test]
    fn the_device_finds_the_centres_of_the_cpu() {
        // The gaps between clumps grow outwards, so no two centres are equally near.
        let clump = |i: usize| [0.0, 20.0, 42.0, 66.0, 92.0, 120.0][i % 6] + (i / 6 % 3) as f32 * 0.1;
        let values: Vec<f32> = (0..300).flat_map(|i| [clump(i), 1000.0, -clump(i)]).collect();
        let vectors = Vectors::from_f32(values, 3).unwrap();
        for piece in [300, 128, 41] {
            let [cpu, device] = both(&vectors, 61, piece);
            assert!(cpu.iter().all(|pair| pair[0] != pair[1]));
            assert_eq!(device, cpu, "pieces of {piece}");
        }
    }

    #[test]
    fn rounding_rarely_changes_the_centres() {
        let vectors = Synth::new(400, 17, 3).unwrap().base();
        let [cpu, device] = both(&vectors, 20, 150);
        let same = cpu.iter().zip(&device).filter(|(cpu, device)| cpu == device).count();
        assert!(same > 390, "{same} of 400 have the same centres");
    }
}
