//! Cells: groups of near vectors that overlap, so that most neighbours of a vector are in a cell
//! with it.
//!
//! On a device, clustering reads uploaded vectors: k-means (Lloyd) on a sample, the nearest centres
//! of every vector, and the orders of the vectors by centre. The host queues all launches and waits
//! once, at the end. The same seed gives the same bytes: sums and places depend on the data alone.
//! The CPU finds the two nearest clusters of every vector.

pub(crate) mod assigner;
pub(crate) mod cpu;
mod gpu;
mod guides;
mod sizes;

use std::ops::Range;

use self::gpu::{CentreNames, Centres, KMeans};
pub(crate) use self::gpu::{ClusterKernels, kernels};
use self::guides::CentreLists;
use self::sizes::ClusteringSizes;
pub(crate) use self::sizes::{Clustering, ListLengths, ROUNDS};
use crate::Result;
use crate::gpu::sort::SortRoom;
use crate::gpu::{Buffer, Communicator, Gpu, MemoryPlan};
use crate::vectors::gpu::TileRows;

const CENTRES: CentreNames = CentreNames { vectors: "centres", norms: "centre norms" };
const SPARE_CENTRES: CentreNames = CentreNames { vectors: "spare centres", norms: "spare centre norms" };
const GUIDE_CENTRES: CentreNames = CentreNames { vectors: "guides", norms: "guide norms" };

/// Buffer names of [`Cells`], beside the order.
pub(crate) const KEPT: [&str; 3] = ["members", SPARE_CENTRES.vectors, SPARE_CENTRES.norms];

/// The vectors of each cell: those assigned to it, then those that probe it.
pub(crate) struct Cells<T: ClusterKernels> {
    /// Vectors, cell by cell and rank by rank: rank 0 holds the vectors with the cell's centre as
    /// their nearest, rank 1 those with it as their second nearest, and so on. Within a rank, every
    /// prefix is a fair sample.
    pub members: Buffer<u32>,
    /// Offsets in `members`: rank `r` of cell `c` begins at `starts[c * probes + r]`. One more
    /// entry ends the last rank.
    pub starts: Vec<usize>,
    /// All vectors sorted by nearest, second and third nearest centre, then by id; only if
    /// requested. Adjacent vectors are near each other.
    pub order: Option<Buffer<u32>>,
    /// Cells that each vector probes.
    pub probes: usize,
    /// The centre of each cell.
    pub centres: Centres<T>,
}

/// Cells of an earlier clustering: they tell which centres are near a vector. The vectors are
/// sorted by these cells.
pub(crate) struct Known<'a, T: ClusterKernels> {
    pub centres: &'a Centres<T>,
    /// Offsets of the vectors assigned to each cell, and the end of the last.
    pub starts: &'a [u32],
    /// Devices that have the same vectors, and the cells whose vectors each assigns.
    pub devices: Communicator<'a>,
    pub parts: &'a [Range<usize>],
}

/// Adds the device memory of [`cells`] to a plan. Members, order and centres outlive the call.
pub(crate) fn plan<T: ClusterKernels>(
    plan: MemoryPlan,
    n: usize,
    dim: usize,
    request: Clustering,
) -> MemoryPlan {
    let sizes = ClusteringSizes::new(n, request);
    let keys = sizes.keys();
    let mut plan = plan
        .with::<u32>("members", keys)
        .with::<u32>("order", n)
        .with::<u32>("sample", sizes.sample)
        // For vectors, and for centres while they are renumbered.
        .with::<u32>("nearest centres", keys.max(3 * sizes.cells))
        .with::<u32>("starts", (sizes.cells * sizes.probes).max(sizes.known) + 1)
        .with::<u64>("keys", keys)
        .with::<u64>("spare keys", keys);
    plan = Centres::<T>::plan(plan, CENTRES, sizes.cells, dim);
    plan = Centres::<T>::plan(plan, SPARE_CENTRES, sizes.cells, dim);
    if sizes.guides > 0 {
        plan = Centres::<T>::plan(plan, GUIDE_CENTRES, sizes.guides, dim);
    }
    if sizes.has_lists() {
        plan = CentreLists::<T>::plan(plan, &sizes);
    }
    SortRoom::plan(plan, keys)
}

/// Puts each vector into the cells of its nearest centres. K-means (Lloyd) finds the centres on a
/// sample: one vector from each of equal stretches of rows. Clamps the centres to the number of
/// vectors, and the probes to the number of centres.
pub(crate) fn cells<T: ClusterKernels>(
    gpu: &Gpu,
    rows: TileRows,
    request: Clustering,
    seed: u64,
    known: Option<Known<'_, T>>,
) -> Result<Cells<T>> {
    let TileRows { count: n, dim, .. } = rows;
    let sizes = ClusteringSizes::new(n, request);
    let ClusteringSizes { cells, probes, .. } = sizes;
    if sizes.keys() > u32::MAX as usize {
        return Err(gpu.error(format_args!(
            "found {n} vectors with {probes} probes each, expected at most {} probes in all",
            u32::MAX
        )));
    }
    // Kernels number the entries by 32 bits.
    if sizes.has_lists() && sizes.list_entries() > u32::MAX as usize {
        return Err(gpu.error(format_args!(
            "found {} entries in lists of centres, expected at most {}: set more nodes per cell",
            sizes.list_entries(),
            u32::MAX
        )));
    }
    let memory = plan::<T>(MemoryPlan::new(), n, dim, request).reserve(gpu)?;
    let mut work = KMeans::<T>::new(gpu, rows, sizes, seed, &memory)?;
    let mut members = memory.buffer("members")?;
    let mut starts = vec![0u32; cells * probes + 1];
    let mut centres = Centres::<T>::new(&memory, SPARE_CENTRES, cells)?;
    if n > 0 {
        let mut found = Centres::<T>::new(&memory, CENTRES, cells)?;
        let mut guides = None;
        if sizes.guides > 0 {
            let guides = guides.insert(Centres::<T>::new(&memory, GUIDE_CENTRES, sizes.guides)?);
            work.k_means(guides, sizes.guide_sample, None)?;
        }
        work.k_means(&mut found, sizes.sample, guides.as_ref())?;
        work.arrange(&found, &mut centres)?;
        match known {
            Some(known) => work.assign_known(&centres, &known)?,
            None => work.assign_all(&centres, guides.as_ref())?,
        }
        if request.ordered {
            work.order()?;
        }
        work.members(&mut members)?;
        // The download waits for the device, so the buffers can be dropped.
        work.starts.download(&mut starts)?;
    }
    let starts = starts.into_iter().map(|start| start as usize).collect();
    Ok(Cells { members, starts, order: request.ordered.then_some(work.order), probes, centres })
}

#[cfg(test)]
mod tests {
    use std::slice;

    use tagore_device::cluster::shuffled;

    use super::*;
    use crate::vectors::gpu::{OnDevice, Preparation, ROWS, Role, Side};
    use crate::vectors::{Element, Metric, Synth, Vectors};

    /// Cells on the host.
    #[derive(PartialEq, Debug)]
    struct Found {
        members: Vec<u32>,
        starts: Vec<usize>,
        order: Vec<u32>,
        probes: usize,
    }

    /// Vectors on the device, prepared.
    fn side<T: OnDevice>(gpu: &Gpu, values: &[T], dim: usize) -> Side<T> {
        let n = values.len() / dim;
        let memory = Side::<T>::plan(MemoryPlan::new(), ROWS, n, dim, T::ROUNDED)
            .with::<f32>("mean", dim)
            .reserve(gpu)
            .unwrap();
        let mut side = Side::<T>::new(&memory, ROWS, dim, T::ROUNDED).unwrap();
        let mut mean = memory.buffer::<f32>("mean").unwrap();
        let stride = side.stride;
        side.values.upload_rows(0, n, stride, |rows| &values[rows.start * dim..][..dim]).unwrap();
        mean.upload(&vec![0.0; dim]).unwrap();
        let task =
            Preparation { count: n, dim, mean: &mean, scale: 1.0, metric: Metric::L2, role: Role::Points };
        T::prepare(gpu, &mut side, &task).unwrap();
        side
    }

    fn found<T: ClusterKernels>(lanes: u64, values: &[T], dim: usize, request: Clustering) -> Found {
        let gpu = Gpu::emulated(lanes);
        let n = values.len() / dim;
        let side = side(&gpu, values, dim);
        let mut cells =
            cells::<T>(&gpu, side.tiles().rows(n, dim), Clustering { ordered: true, ..request }, 7, None)
                .unwrap();
        let probes = cells.probes;
        let (mut members, mut order) = (vec![0; n * probes], vec![0; n]);
        cells.members.download(&mut members).unwrap();
        cells.order.take().unwrap().download(&mut order).unwrap();
        Found { members, starts: cells.starts, order, probes }
    }

    /// Checks the invariants of cells, for any centres.
    fn check(found: &Found, n: usize, count: usize) {
        let m = found.probes;
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

    fn run_as<T: ClusterKernels + Element>(values: &[T], dim: usize, request: Clustering) -> Found {
        let one = found(0, values, dim, request);
        assert!(one == found(5, values, dim, request), "the result depends on the order of lanes");
        let n = values.len() / dim;
        check(&one, n, request.cells.min(n));
        one
    }

    fn run<T: ClusterKernels + Element>(values: &[T], dim: usize, cells: usize, probes: usize) -> Found {
        run_as(values, dim, Clustering::new(cells, probes))
    }

    fn bytes(vectors: &Vectors) -> Vec<u8> {
        let row =
            |row: usize| vectors.host_row(row).iter().map(|x| (x * 20.0 + 128.0) as u8).collect::<Vec<_>>();
        (0..vectors.len()).flat_map(row).collect()
    }

    /// The `count` nearest of the centres `among`, by distance, then number. `values` holds all
    /// centres.
    fn nearest_of(vector: &[u8], values: &[u8], among: &[u32], count: usize) -> Vec<u32> {
        let distance = |centre: u32| -> i32 {
            let centre = &values[centre as usize * vector.len()..][..vector.len()];
            vector.iter().zip(centre).map(|(&x, &y)| (i32::from(x) - i32::from(y)).pow(2)).sum()
        };
        let mut keys: Vec<(i32, u32)> = among.iter().map(|&centre| (distance(centre), centre)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| key.1).take(count).collect()
    }

    #[test]
    fn lists_give_their_nearest_centres() {
        // The stride on the device equals the dimension. The distances of all centres do not fit at
        // once.
        let (n, dim) = (290, 32);
        let request =
            Clustering { most: 20, lists: ListLengths { guide: 16, centre: 24 }, ..Clustering::new(60, 6) };
        let values = bytes(&Synth::new(n, dim, 5).unwrap().base());
        let gpu = Gpu::emulated(1);
        let (side, sizes) = (side(&gpu, &values, dim), ClusteringSizes::new(n, request));
        assert_eq!((sizes.guides, sizes.guide_list, sizes.centre_list), (30, 16, 24));
        assert!(2 * sizes.keys() / sizes.cells < sizes.cells);
        let memory = plan::<u8>(MemoryPlan::new(), n, dim, request).reserve(&gpu).unwrap();
        let mut work = KMeans::<u8>::new(&gpu, side.tiles().rows(n, dim), sizes, 3, &memory).unwrap();
        let new = |names, count| Centres::<u8>::new(&memory, names, count).unwrap();
        let (mut guides, mut centres) = (new(GUIDE_CENTRES, sizes.guides), new(CENTRES, sizes.cells));
        work.k_means(&mut guides, sizes.guide_sample, None).unwrap();
        work.k_means(&mut centres, sizes.sample, Some(&guides)).unwrap();
        work.assign_all(&centres, Some(&guides)).unwrap();
        let mut found = vec![0; n * 6];
        work.nearest.download(&mut found).unwrap();
        let values_of = |centres: &Centres<u8>| {
            let mut values = vec![0; centres.count * dim];
            centres.vectors.download(&mut values).unwrap();
            values
        };
        let (guides, centres) = (values_of(&guides), values_of(&centres));
        let (all_guides, all): (Vec<u32>, Vec<u32>) = ((0..30).collect(), (0..60).collect());
        let list = |from: &[u8], number: u32, length| {
            nearest_of(&from[number as usize * dim..][..dim], &centres, &all, length)
        };
        let mut right = 0;
        for (vector, found) in values.chunks_exact(dim).zip(found.chunks_exact(6)) {
            let guide = nearest_of(vector, &guides, &all_guides, 1)[0];
            let own = nearest_of(vector, &centres, &list(&guides, guide, 16), 1)[0];
            assert_eq!(found, nearest_of(vector, &centres, &list(&centres, own, 24), 6));
            let best = nearest_of(vector, &centres, &all, 6);
            right += found.iter().filter(|centre| best.contains(centre)).count();
        }
        let share = right as f64 / (6 * n) as f64;
        assert!(share > 0.9, "{share} of the nearest centres found");
    }

    #[test]
    fn lists_of_centres_begin_with_the_nearest_of_all() {
        let (n, dim) = (290, 32);
        let lists = ListLengths { guide: 16, centre: 24 };
        let request = Clustering { lists, ..Clustering::new(60, 6) };
        let values = bytes(&Synth::new(n, dim, 5).unwrap().base());
        let gpu = Gpu::emulated(1);
        let (side, sizes) = (side(&gpu, &values, dim), ClusteringSizes::new(n, request));
        assert!(sizes.own_lists && sizes.guides == 0);
        let memory = plan::<u8>(MemoryPlan::new(), n, dim, request).reserve(&gpu).unwrap();
        let mut work = KMeans::<u8>::new(&gpu, side.tiles().rows(n, dim), sizes, 3, &memory).unwrap();
        let mut centres = Centres::<u8>::new(&memory, CENTRES, sizes.cells).unwrap();
        work.k_means(&mut centres, sizes.sample, None).unwrap();
        work.assign_all(&centres, None).unwrap();
        let mut found = vec![0; n * 6];
        work.nearest.download(&mut found).unwrap();
        let mut centres_of = vec![0; 60 * dim];
        centres.vectors.download(&mut centres_of).unwrap();
        let all: Vec<u32> = (0..60).collect();
        for (vector, found) in values.chunks_exact(dim).zip(found.chunks_exact(6)) {
            let own = nearest_of(vector, &centres_of, &all, 1)[0];
            let list = nearest_of(&centres_of[own as usize * dim..][..dim], &centres_of, &all, 24);
            assert_eq!(found, nearest_of(vector, &centres_of, &list, 6));
        }
    }

    #[test]
    fn more_list_entries_than_a_kernel_numbers_are_refused() {
        let (n, gpu) = (70_000, Gpu::emulated(0));
        // Nothing is read before the error: the vectors need not exist.
        let rows = side(&gpu, &[0u8; 16], 16).tiles().rows(n, 16);
        let request = Clustering { lists: ListLengths { guide: 16, centre: n }, ..Clustering::new(n, 2) };
        let error = cells::<u8>(&gpu, rows, request, 7, None).err().unwrap().to_string();
        let expected = "found 4900000000 entries in lists of centres, expected at most 4294967295";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn known_cells_give_near_centres() {
        let (n, dim, count) = (300, 16, 20);
        let values = bytes(&Synth::new(n, dim, 5).unwrap().base());
        let gpu = Gpu::emulated(1);
        let request = Clustering::new(count, 4);
        let ordered = Clustering { ordered: true, ..request };
        let mut first =
            cells::<u8>(&gpu, side(&gpu, &values, dim).tiles().rows(n, dim), ordered, 7, None).unwrap();
        let mut order = vec![0u32; n];
        first.order.take().unwrap().download(&mut order).unwrap();
        let values: Vec<u8> =
            order.iter().flat_map(|&row| &values[row as usize * dim..][..dim]).copied().collect();
        let mut starts = vec![0];
        for cell in 0..count {
            let own = first.starts[4 * cell + 1] - first.starts[4 * cell];
            starts.push(starts[cell] + own as u32);
        }
        let side = side(&gpu, &values, dim);
        let members = |request: Clustering, known| {
            let found = cells::<u8>(&gpu, side.tiles().rows(n, dim), request, 9, known).unwrap();
            let mut members = vec![0; n * 4];
            found.members.download(&mut members).unwrap();
            (members, found.starts)
        };
        let all_cells = 0..count;
        let listed = |length: usize| {
            let devices = Communicator::alone(&gpu);
            let known = Known {
                centres: &first.centres,
                starts: &starts,
                devices,
                parts: slice::from_ref(&all_cells),
            };
            members(
                Clustering { known: count, lists: ListLengths { guide: 16, centre: length }, ..request },
                Some(known),
            )
        };
        // Lists of all centres lose nothing, shorter lists little.
        let all = members(request, None);
        assert!(listed(count) == all);
        let (near, near_starts) = listed(12);
        let of = |members: &[u32], starts: &[usize]| -> Vec<(usize, u32)> {
            let cells = (0..count).flat_map(|cell| {
                members[starts[4 * cell]..starts[4 * (cell + 1)]].iter().map(move |&member| (cell, member))
            });
            cells.collect()
        };
        let (near, all) = (of(&near, &near_starts), of(&all.0, &all.1));
        let found = near.iter().filter(|pair| all.contains(pair)).count();
        assert!(found * 10 > all.len() * 9, "{found} of {}", all.len());
    }

    #[test]
    fn the_plan_equals_the_bytes_taken() {
        let values = bytes(&Synth::new(200, 16, 1).unwrap().base());
        let gpu = Gpu::emulated(0);
        let side = side(&gpu, &values, 16);
        for most in [5, 50] {
            let request =
                Clustering { most, lists: ListLengths { guide: 4, centre: 12 }, ..Clustering::new(9, 3) };
            let planned = plan::<u8>(MemoryPlan::new(), 200, 16, request).bytes();
            let before = gpu.measure().unwrap().end().unwrap().peak_bytes;
            let work = gpu.measure().unwrap();
            drop(cells::<u8>(&gpu, side.tiles().rows(200, 16), request, 7, None).unwrap());
            assert_eq!(work.end().unwrap().peak_bytes - before, planned);
        }
    }

    #[test]
    fn assignment_by_lists_gives_valid_cells() {
        let vectors = Synth::new(160, 20, 3).unwrap().base();
        let values: Vec<f32> =
            (0..vectors.len()).flat_map(|row| vectors.host_row(row).into_owned()).collect();
        let request =
            Clustering { most: 5, lists: ListLengths { guide: 4, centre: 12 }, ..Clustering::new(20, 8) };
        run_as(&values, 20, request);
        // Lists of all centres; equal vectors.
        run_as(
            &[3u8; 3 * 50],
            3,
            Clustering { cells: 7, lists: ListLengths { guide: 99, centre: 99 }, ..request },
        );
    }

    #[test]
    fn every_vector_is_in_one_cell_of_each_rank() {
        let vectors = Synth::new(350, 20, 3).unwrap().base();
        let values: Vec<f32> =
            (0..vectors.len()).flat_map(|row| vectors.host_row(row).into_owned()).collect();
        run(&values, 20, 9, 4);
        run(&bytes(&vectors), 20, 70, 2);
    }

    #[test]
    fn few_or_equal_vectors_have_cells() {
        assert_eq!(run(&[1.5f32, 2.0], 2, 4, 6).probes, 1);
        assert_eq!(run(&[3u8; 3 * 5], 3, 4, 6).probes, 4);
        assert_eq!(run(&[-3i8; 130], 1, 2, 8).probes, 2);
    }

    #[test]
    fn no_cell_spans_two_clumps() {
        // Eight clumps at the corners of a cube. After a few rounds each has a cell or several of
        // its own.
        let corner = |i: usize, axis: usize| if i >> axis & 1 == 1 { 100 } else { 0 };
        let values: Vec<u8> =
            (0..400).flat_map(|i| (0..3).map(move |axis| corner(i, axis) + (i / 8 % 5) as u8)).collect();
        let found = run(&values, 3, 32, 1);
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
