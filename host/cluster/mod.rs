//! Cells: groups of near vectors that overlap, so that most neighbours of a vector are in a cell with it.
//!
//! All of it runs on the device, from vectors that are there already: k-means (Lloyd) on a sample, the
//! nearest centres of every vector, and the orders of the vectors by them. The host asks for what is next and
//! waits once, in the end. The same seed gives the same bytes: sums and places depend on the data alone.

mod gpu;

use tagore_device::cluster::MAX_MEMBERSHIPS;

use self::gpu::Work;
use crate::Result;
use crate::gpu::sort::SortRoom;
use crate::gpu::{Buffer, Gpu, Plan};
use crate::vectors::gpu::{OnDevice, Side};

/// Vectors of the sample per centre.
const SAMPLE_PER_CELL: usize = 48;

/// Which vectors are in which cell: each in the cells of its nearest centres.
pub(crate) struct Cells {
    /// The members of all cells, cell by cell; within a cell those whose nearest centre is the cell's, then
    /// those whose second nearest it is, and so on; of each rank in an order of which every beginning is a
    /// fair sample.
    pub members: Buffer<u32>,
    /// Where the members of rank `r` of cell `c` begin, at `c * memberships + r`, and the end of the last.
    pub starts: Vec<usize>,
    /// All vectors, by their nearest centre, then the second and the third, then by number: those that
    /// follow one another are near each other.
    pub order: Buffer<u32>,
    /// Cells that each vector is in.
    pub memberships: usize,
}

/// How much there is of everything.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    cells: usize,
    memberships: usize,
    sample: usize,
}

impl Sizes {
    fn new(n: usize, cells: usize, memberships: usize) -> Self {
        let cells = cells.clamp(1, n.max(1));
        // No vector is in a cell twice.
        let memberships = memberships.clamp(1, cells.min(MAX_MEMBERSHIPS as usize));
        Self { n, cells, memberships, sample: (cells * SAMPLE_PER_CELL).min(n) }
    }

    /// Bits of the number of a cell.
    fn cell_bits(&self) -> u32 {
        usize::BITS - (self.cells - 1).leading_zeros()
    }
}

/// Adds the device memory that [`cells`] takes to a plan; of it the members and the order stay.
pub(crate) fn plan<T: OnDevice>(plan: Plan, n: usize, dim: usize, count: usize, memberships: usize) -> Plan {
    let sizes = Sizes::new(n, count, memberships);
    let keys = n * sizes.memberships;
    let plan = plan
        .with::<u32>("members", keys)
        .with::<u32>("order", n)
        .with::<u8>("centres", sizes.cells * Side::<T>::tile_bytes(dim))
        .with::<T::Sum>("centre norms", sizes.cells)
        .with::<u8>("spare centres", sizes.cells * Side::<T>::tile_bytes(dim))
        .with::<T::Sum>("spare centre norms", sizes.cells)
        .with::<u32>("sample", sizes.sample)
        // Of vectors, and of centres in their own order.
        .with::<u32>("nearest centres", keys.max(3 * sizes.cells))
        .with::<u32>("starts", sizes.cells * sizes.memberships + 1)
        .with::<u64>("keys", keys)
        .with::<u64>("spare keys", keys);
    SortRoom::plan(plan, keys)
}

/// Puts each of the `n` vectors of `side`, prepared and of `dim` components, into the cells of its
/// `memberships` nearest of `count` centres, which k-means (Lloyd) finds on a sample: one vector drawn from
/// each stretch. There are at most as many centres as vectors, and memberships as centres.
pub(crate) fn cells<T: OnDevice>(
    gpu: &Gpu,
    side: &Side<T>,
    n: usize,
    dim: usize,
    count: usize,
    memberships: usize,
    seed: u64,
) -> Result<Cells> {
    let sizes = Sizes::new(n, count, memberships);
    if n * sizes.memberships > u32::MAX as usize {
        return Err(gpu.error(format_args!("{n} vectors in {memberships} cells each are too many")));
    }
    let memory = plan::<T>(Plan::new(), n, dim, count, memberships).reserve(gpu)?;
    let mut work = Work::new(gpu, side, (sizes, dim), seed, &memory)?;
    let mut order = memory.buffer("order")?;
    let mut members = memory.buffer("members")?;
    let mut starts = vec![0u32; sizes.cells * sizes.memberships + 1];
    if n > 0 {
        work.cluster()?;
        work.assign(None)?;
        work.order(&mut order)?;
        work.members(&mut members)?;
        // Waits, so that what was worked with can go.
        work.starts.download(&mut starts)?;
    }
    let starts = starts.into_iter().map(|start| start as usize).collect();
    Ok(Cells { members, starts, order, memberships: sizes.memberships })
}

#[cfg(test)]
mod tests {
    use tagore_device::cluster::shuffled;

    use super::*;
    use crate::vectors::gpu::{Preparation, ROWS};
    use crate::vectors::{Element, Synth, Vectors};

    /// What cells are, on the host.
    #[derive(PartialEq, Debug)]
    struct Found {
        members: Vec<u32>,
        starts: Vec<usize>,
        order: Vec<u32>,
        memberships: usize,
    }

    fn found<T: OnDevice>(lanes: u64, values: &[T], dim: usize, (count, m): (usize, usize)) -> Found {
        let gpu = Gpu::emulated(lanes);
        let n = values.len() / dim;
        let memory = Side::<T>::plan(Plan::new(), ROWS, n, dim)
            .with::<f32>("mean", dim)
            .with::<u32>("largest", 1)
            .reserve(&gpu)
            .unwrap();
        let mut side = Side::<T>::new(&memory, ROWS, dim).unwrap();
        let (mut mean, mut largest) =
            (memory.buffer::<f32>("mean").unwrap(), memory.buffer::<u32>("largest").unwrap());
        let stride = side.stride;
        side.values.upload_rows(n, stride, |row| &values[row * dim..][..dim]).unwrap();
        mean.upload(&vec![0.0; dim]).unwrap();
        largest.fill(0).unwrap();
        let task = Preparation {
            count: n,
            dim,
            mean: &mean,
            largest: largest.view_mut(),
            scale: 1.0,
            error_limit: f32::INFINITY,
            norm_weight: 1,
            skip_zero: false,
        };
        T::prepare(&gpu, &mut side, &task).unwrap();
        let cells = cells(&gpu, &side, n, dim, count, m, 7).unwrap();
        let memberships = cells.memberships;
        let (mut members, mut order) = (vec![0; n * memberships], vec![0; n]);
        cells.members.download(&mut members).unwrap();
        cells.order.download(&mut order).unwrap();
        Found { members, starts: cells.starts, order, memberships }
    }

    /// Checks what must hold of cells, whatever the centres.
    fn check(found: &Found, n: usize, count: usize) {
        let m = found.memberships;
        assert_eq!(found.starts.len(), count * m + 1);
        assert!(found.starts.is_sorted() && found.starts[0] == 0 && found.starts[count * m] == n * m);
        // Every vector is in one cell of each rank, and in none twice.
        let mut of = vec![usize::MAX; n * m];
        let mut places = vec![0; n];
        (0..n as u32).for_each(|index| places[shuffled(index, n as u32) as usize] = index);
        for (group, pair) in found.starts.windows(2).enumerate() {
            let members = &found.members[pair[0]..pair[1]];
            assert!(members.is_sorted_by_key(|&member| places[member as usize]));
            for &member in members {
                let slot = &mut of[member as usize * m + group % m];
                assert_eq!(*slot, usize::MAX, "vector {member} is in two cells of rank {}", group % m);
                *slot = group / m;
            }
        }
        for cells in of.chunks_exact(m) {
            let mut distinct = cells.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() == m && distinct[m - 1] < count);
        }
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&node| of[node as usize * m..][..m.min(3)].to_vec());
        assert_eq!(found.order, order);
    }

    fn run<T: OnDevice + Element>(values: &[T], dim: usize, cells: (usize, usize)) -> Found {
        let one = found(0, values, dim, cells);
        assert!(one == found(5, values, dim, cells), "the order of lanes shows");
        let n = values.len() / dim;
        check(&one, n, cells.0.min(n));
        one
    }

    fn bytes(vectors: &Vectors) -> Vec<u8> {
        let row = |row: usize| vectors.row(row).iter().map(|x| (x * 20.0 + 128.0) as u8).collect::<Vec<_>>();
        (0..vectors.len()).flat_map(row).collect()
    }

    #[test]
    fn every_vector_is_in_its_cells() {
        let vectors = Synth::new(700, 20, 3).unwrap().base();
        let values: Vec<f32> = (0..vectors.len()).flat_map(|row| vectors.row(row).into_owned()).collect();
        run(&values, 20, (9, 4));
        run(&bytes(&vectors), 20, (140, 2));
    }

    #[test]
    fn few_vectors_and_equal_ones_have_cells() {
        assert_eq!(run(&[1.5f32, 2.0], 2, (4, 6)).memberships, 1);
        assert_eq!(run(&[3u8; 3 * 5], 3, (4, 6)).memberships, 4);
        assert_eq!(run(&[-3i8; 130], 1, (2, 8)).memberships, 2);
    }

    #[test]
    fn clusters_that_are_far_apart_are_found() {
        // Eight clumps at the corners of a cube, each a cell of its own after a few rounds, or of two.
        let corner = |i: usize, axis: usize| if i >> axis & 1 == 1 { 100 } else { 0 };
        let values: Vec<u8> =
            (0..400).flat_map(|i| (0..3).map(move |axis| corner(i, axis) + (i / 8 % 5) as u8)).collect();
        let found = run(&values, 3, (32, 1));
        for pair in found.starts.windows(2) {
            let corners: Vec<u32> = found.members[pair[0]..pair[1]].iter().map(|&i| i % 8).collect();
            assert!(
                corners.windows(2).all(|pair| pair[0] == pair[1]),
                "a cell of several clumps: {corners:?}"
            );
        }
        let corners: Vec<u32> = found.order.iter().map(|&i| i % 8).collect();
        assert!(corners.windows(2).filter(|pair| pair[0] != pair[1]).count() < 32);
    }
}
