//! Cells: groups of near vectors that overlap, so that most neighbours of a vector are in a cell
//! with it.
//!
//! On a device all of it works on vectors that are there already: k-means (Lloyd) on a sample, the
//! nearest centres of every vector, and the orders of the vectors by them. The host asks for what
//! is next and waits once, in the end. The same seed gives the same bytes: sums and places depend
//! on the data alone. Without a device there are the clusters of every vector alone.

pub(crate) mod assigner;
pub(crate) mod cpu;
mod gpu;
mod guides;

use tagore_device::cluster::MAX_PROBES;

pub(crate) use self::gpu::ClusterKernels;
use self::gpu::{CentreNames, Centres, KMeans};
use self::guides::CentreLists;
use crate::Result;
use crate::gpu::sort::SortRoom;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::TileRows;

/// Vectors of the sample per centre.
const SAMPLE_PER_CELL: usize = 48;

/// Rounds of Lloyd's algorithm; more move the centres, but hardly the neighbours found.
pub(crate) const ROUNDS: u32 = 5;

/// Guides, in roots of the number of centres: finding a vector's guide then costs about as much as
/// its list.
const GUIDES: f64 = 4.0;

const CENTRES: CentreNames = CentreNames { vectors: "centres", norms: "centre norms" };
const SPARE_CENTRES: CentreNames = CentreNames { vectors: "spare centres", norms: "spare centre norms" };
const GUIDE_CENTRES: CentreNames = CentreNames { vectors: "guides", norms: "guide norms" };

/// The names of the buffers of centres in [`Cells`].
pub(crate) const KEPT_CENTRES: [&str; 2] = [SPARE_CENTRES.vectors, SPARE_CENTRES.norms];

/// A clustering request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clustering {
    /// Centres, each with its cell; at most the number of vectors.
    pub cells: usize,
    /// Nearest cells that each vector probes; it is assigned to the first of them.
    pub probes: usize,
    /// The most centres that all vectors are compared with. Of more, a vector is compared with
    /// lists.
    pub most: usize,
    pub lists: ListLengths,
    /// Whether the order of the vectors is wanted.
    pub ordered: bool,
    /// Cells of an earlier clustering, if known.
    pub known: usize,
    /// Vectors of the sample per centre.
    pub sample_per_cell: usize,
    /// Rounds of Lloyd's algorithm.
    pub rounds: u32,
}

/// Lengths of lists of near centres.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListLengths {
    /// Of a guide.
    pub guide: usize,
    /// Of a centre.
    pub centre: usize,
}

impl Clustering {
    /// With the sizes of lists that are best where there are many centres, and no order.
    pub(crate) fn new(cells: usize, probes: usize) -> Self {
        Self {
            cells,
            probes,
            most: 4096,
            lists: ListLengths { guide: 512, centre: 1024 },
            ordered: false,
            known: 0,
            sample_per_cell: SAMPLE_PER_CELL,
            rounds: ROUNDS,
        }
    }
}

/// The vectors of each cell: those assigned to it, then those that probe it.
pub(crate) struct Cells<T: ClusterKernels> {
    /// Vectors, cell by cell and rank by rank: rank 0 holds the vectors whose nearest centre is the
    /// cell's, rank 1 those whose second nearest it is, and so on. Within a rank, every beginning
    /// of the order is a fair sample.
    pub members: Buffer<u32>,
    /// Offsets in `members`: rank `r` of cell `c` begins at `starts[c * probes + r]`. One more
    /// entry ends the last rank.
    pub starts: Vec<usize>,
    /// If requested: all vectors by nearest centre, then the second, the third and the number.
    /// Vectors that follow one another are near each other.
    pub order: Option<Buffer<u32>>,
    /// Cells that each vector probes.
    pub probes: usize,
    /// Of each cell.
    pub centres: Centres<T>,
}

/// Other cells of the same vectors, which are in the order of these cells: they tell which centres
/// are near a vector.
pub(crate) struct Known<'a, T: ClusterKernels> {
    pub centres: &'a Centres<T>,
    /// Offsets of the vectors assigned to each cell, and the end of the last.
    pub starts: &'a [u32],
}

/// Sizes of a clustering, after clamping to the data.
#[derive(Clone, Copy)]
struct ClusteringSizes {
    n: usize,
    cells: usize,
    probes: usize,
    sample: usize,
    /// Other cells that are known.
    known: usize,
    /// Guides, or 0 if vectors are compared with all centres.
    guides: usize,
    guide_sample: usize,
    rounds: u32,
    /// Centres in the list of a guide, and in that of a centre.
    guide_list: usize,
    centre_list: usize,
}

impl ClusteringSizes {
    fn new(n: usize, asked: Clustering) -> Self {
        let cells = asked.cells.clamp(1, n.max(1));
        // No vector probes a cell twice.
        let probes = asked.probes.clamp(1, cells.min(MAX_PROBES as usize));
        let sample = |centres: usize| (centres * asked.sample_per_cell).min(n);
        let guides = if cells > asked.most { (GUIDES * (cells as f64).sqrt()) as usize } else { 0 };
        let guides = guides.min(cells);
        // A list has as many as a vector needs.
        let list = |length: usize| length.clamp(probes, cells);
        Self {
            n,
            cells,
            probes,
            sample: sample(cells),
            known: asked.known,
            guides,
            guide_sample: sample(guides),
            rounds: asked.rounds,
            guide_list: list(asked.lists.guide),
            centre_list: list(asked.lists.centre),
        }
    }

    /// Whether vectors, of the sample or all, are compared with lists of centres.
    fn has_lists(&self) -> bool {
        self.guides > 0 || self.known > 0
    }

    /// Keys: one per vector and probe.
    fn keys(&self) -> usize {
        self.n * self.probes
    }
}

/// Adds the device memory that [`cells`] takes to a plan; of it the members and the order stay.
pub(crate) fn plan<T: ClusterKernels>(
    plan: MemoryPlan,
    n: usize,
    dim: usize,
    asked: Clustering,
) -> MemoryPlan {
    let sizes = ClusteringSizes::new(n, asked);
    let keys = sizes.keys();
    let mut plan = plan
        .with::<u32>("members", keys)
        .with::<u32>("order", n)
        .with::<u32>("sample", sizes.sample)
        // Of vectors, and of centres in their own order.
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
/// sample of one vector per stretch. There are at most as many centres as vectors, and as many
/// probes as centres.
pub(crate) fn cells<T: ClusterKernels>(
    gpu: &Gpu,
    rows: TileRows,
    asked: Clustering,
    seed: u64,
    known: Option<Known<'_, T>>,
) -> Result<Cells<T>> {
    let TileRows { count: n, dim, .. } = rows;
    let sizes = ClusteringSizes::new(n, asked);
    let ClusteringSizes { cells, probes, .. } = sizes;
    if sizes.keys() > u32::MAX as usize {
        return Err(gpu.error(format_args!("{n} vectors in {probes} cells each are too many")));
    }
    let memory = plan::<T>(MemoryPlan::new(), n, dim, asked).reserve(gpu)?;
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
        if asked.ordered {
            work.order()?;
        }
        work.members(&mut members)?;
        // Waits, so that what was worked with can go.
        work.starts.download(&mut starts)?;
    }
    let starts = starts.into_iter().map(|start| start as usize).collect();
    Ok(Cells { members, starts, order: asked.ordered.then_some(work.order), probes, centres })
}

#[cfg(test)]
mod tests {
    use tagore_device::cluster::shuffled;

    use super::*;
    use crate::vectors::gpu::{OnDevice, Preparation, ROWS, Side};
    use crate::vectors::{Element, Synth, Vectors};

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
        let memory = Side::<T>::plan(MemoryPlan::new(), ROWS, n, dim)
            .with::<f32>("mean", dim)
            .with::<u32>("largest", 1)
            .reserve(gpu)
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
        T::prepare(gpu, &mut side, &task).unwrap();
        side
    }

    fn found<T: ClusterKernels>(lanes: u64, values: &[T], dim: usize, asked: Clustering) -> Found {
        let gpu = Gpu::emulated(lanes);
        let n = values.len() / dim;
        let side = side(&gpu, values, dim);
        let mut cells =
            cells::<T>(&gpu, side.tiles().rows(n, dim), Clustering { ordered: true, ..asked }, 7, None)
                .unwrap();
        let probes = cells.probes;
        let (mut members, mut order) = (vec![0; n * probes], vec![0; n]);
        cells.members.download(&mut members).unwrap();
        cells.order.take().unwrap().download(&mut order).unwrap();
        Found { members, starts: cells.starts, order, probes }
    }

    /// Checks what must hold of cells, whatever the centres.
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

    fn run_as<T: ClusterKernels + Element>(values: &[T], dim: usize, asked: Clustering) -> Found {
        let one = found(0, values, dim, asked);
        assert!(one == found(5, values, dim, asked), "the order of lanes shows");
        let n = values.len() / dim;
        check(&one, n, asked.cells.min(n));
        one
    }

    fn run<T: ClusterKernels + Element>(values: &[T], dim: usize, (cells, probes): (usize, usize)) -> Found {
        run_as(values, dim, Clustering::new(cells, probes))
    }

    fn bytes(vectors: &Vectors) -> Vec<u8> {
        let row = |row: usize| vectors.row(row).iter().map(|x| (x * 20.0 + 128.0) as u8).collect::<Vec<_>>();
        (0..vectors.len()).flat_map(row).collect()
    }

    /// The `count` nearest of some centres, which `values` holds, by distance, then number.
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
    fn lists_give_the_nearest_that_they_hold() {
        // Centres are as long on the device; and there is not room for the distances of all at
        // once.
        let (n, dim) = (290, 32);
        let asked =
            Clustering { most: 20, lists: ListLengths { guide: 16, centre: 24 }, ..Clustering::new(60, 6) };
        let values = bytes(&Synth::new(n, dim, 5).unwrap().base());
        let gpu = Gpu::emulated(1);
        let (side, sizes) = (side(&gpu, &values, dim), ClusteringSizes::new(n, asked));
        assert_eq!((sizes.guides, sizes.guide_list, sizes.centre_list), (30, 16, 24));
        assert!(2 * sizes.keys() / sizes.cells < sizes.cells);
        let memory = plan::<u8>(MemoryPlan::new(), n, dim, asked).reserve(&gpu).unwrap();
        let mut work = KMeans::<u8>::new(&gpu, side.tiles().rows(n, dim), sizes, 3, &memory).unwrap();
        let new = |names, count| Centres::<u8>::new(&memory, names, count).unwrap();
        let (mut guides, mut centres) = (new(GUIDE_CENTRES, sizes.guides), new(CENTRES, sizes.cells));
        work.k_means(&mut guides, sizes.guide_sample, None).unwrap();
        work.k_means(&mut centres, sizes.sample, Some(&guides)).unwrap();
        work.assign_all(&centres, Some(&guides)).unwrap();
        let mut found = vec![0; n * 6];
        work.nearest.download(&mut found).unwrap();
        let there = |centres: &Centres<u8>| {
            let mut values = vec![0; centres.count * dim];
            centres.vectors.download(&mut values).unwrap();
            values
        };
        let (guides, centres) = (there(&guides), there(&centres));
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
    fn known_cells_list_the_centres_that_are_near() {
        let (n, dim, count) = (300, 16, 20);
        let values = bytes(&Synth::new(n, dim, 5).unwrap().base());
        let gpu = Gpu::emulated(1);
        let asked = Clustering::new(count, 4);
        let ordered = Clustering { ordered: true, ..asked };
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
        let members = |asked: Clustering, known| {
            let found = cells::<u8>(&gpu, side.tiles().rows(n, dim), asked, 9, known).unwrap();
            let mut members = vec![0; n * 4];
            found.members.download(&mut members).unwrap();
            (members, found.starts)
        };
        let listed = |length: usize| {
            let known = Known { centres: &first.centres, starts: &starts };
            members(
                Clustering { known: count, lists: ListLengths { guide: 16, centre: length }, ..asked },
                Some(known),
            )
        };
        // Lists of all centres lose nothing; shorter ones little.
        let all = members(asked, None);
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
    fn a_plan_is_what_cells_take() {
        let values = bytes(&Synth::new(200, 16, 1).unwrap().base());
        let gpu = Gpu::emulated(0);
        let side = side(&gpu, &values, 16);
        for most in [5, 50] {
            let asked =
                Clustering { most, lists: ListLengths { guide: 4, centre: 12 }, ..Clustering::new(9, 3) };
            let planned = plan::<u8>(MemoryPlan::new(), 200, 16, asked).bytes();
            let before = gpu.measure().unwrap().end().unwrap().peak_bytes;
            let work = gpu.measure().unwrap();
            drop(cells::<u8>(&gpu, side.tiles().rows(200, 16), asked, 7, None).unwrap());
            assert_eq!(work.end().unwrap().peak_bytes - before, planned);
        }
    }

    #[test]
    fn vectors_with_lists_are_in_their_cells() {
        let vectors = Synth::new(300, 20, 3).unwrap().base();
        let values: Vec<f32> = (0..vectors.len()).flat_map(|row| vectors.row(row).into_owned()).collect();
        let asked =
            Clustering { most: 5, lists: ListLengths { guide: 4, centre: 12 }, ..Clustering::new(20, 8) };
        run_as(&values, 20, asked);
        // Lists of all; equal vectors.
        run_as(
            &[3u8; 3 * 50],
            3,
            Clustering { cells: 7, lists: ListLengths { guide: 99, centre: 99 }, ..asked },
        );
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
        assert_eq!(run(&[1.5f32, 2.0], 2, (4, 6)).probes, 1);
        assert_eq!(run(&[3u8; 3 * 5], 3, (4, 6)).probes, 4);
        assert_eq!(run(&[-3i8; 130], 1, (2, 8)).probes, 2);
    }

    #[test]
    fn clusters_that_are_far_apart_are_found() {
        // Eight clumps at the corners of a cube, each a cell of its own after a few rounds, or of
        // two.
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
