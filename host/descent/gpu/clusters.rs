//! Cells: groups of near vectors that overlap, so that most neighbours of a node are in a cell with it.

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use crate::gpu::Gpu;
use crate::search::gpu::{Points, nearest};
use crate::vectors::space::Space;
use crate::vectors::{ElementType, MAX_DIM};
use crate::{Metric, Progress, Result, Vectors};

/// Vectors of the sample per centre.
const SAMPLE_PER_CELL: usize = 48;

/// Rounds of Lloyd's algorithm; more move the centres, but hardly the neighbours found.
const ROUNDS: u32 = 5;

/// Which nodes are in which cell: every node in several, its nearest first.
pub(super) struct Cells {
    /// One for each rank: the nodes whose cell of that rank is the first, the second, and so on.
    pub layers: Vec<Layer>,
    /// The members of all cells, cell by cell; within a cell those of the first layer first.
    pub members: Vec<u32>,
    /// Where the members of each cell begin, and the end of the last.
    pub starts: Vec<usize>,
}

/// The nodes of all cells that are members by one rank.
pub(super) struct Layer {
    /// Cell by cell; within a cell ascending.
    pub nodes: Vec<u32>,
    /// Where the nodes of each cell begin, and the end of the last.
    pub starts: Vec<usize>,
}

impl Cells {
    /// Puts every vector of `space` into the cells of its `memberships` nearest of `count` centres, which
    /// k-means (Lloyd) finds on a sample, all on the GPU.
    pub(super) fn new(
        gpu: &Gpu,
        space: &Space<'_>,
        count: usize,
        memberships: usize,
        seed: u64,
        progress: &Progress,
    ) -> Result<Self> {
        let centres = centres(gpu, space, count, seed, progress)?;
        let centres = Space::new(&centres, Metric::L2)?;
        let keys = nearest(gpu, &centres, &Points::of_rows(space), memberships, None, progress)?;
        let layers: Vec<Layer> =
            (0..memberships).into_par_iter().map(|rank| layer(&keys, memberships, rank, count)).collect();
        let mut members = Vec::with_capacity(keys.len());
        let mut starts = vec![0];
        for cell in 0..count {
            for layer in &layers {
                members.extend_from_slice(&layer.nodes[layer.starts[cell]..layer.starts[cell + 1]]);
            }
            starts.push(members.len());
        }
        Ok(Self { layers, members, starts })
    }
}

/// The nodes by their cell of one rank: a counting sort.
fn layer(keys: &[Key], memberships: usize, rank: usize, count: usize) -> Layer {
    let cell = |key: &Key| key::id(*key) as usize;
    let of_rank = || keys.iter().skip(rank).step_by(memberships);
    let mut starts = vec![0usize; count + 1];
    of_rank().for_each(|key| starts[cell(key) + 1] += 1);
    for index in 0..count {
        starts[index + 1] += starts[index];
    }
    let mut next = starts.clone();
    let mut nodes = vec![0; keys.len() / memberships];
    for (node, key) in of_rank().enumerate() {
        let place = &mut next[cell(key)];
        nodes[*place] = node as u32;
        *place += 1;
    }
    Layer { nodes, starts }
}

/// The centres, in the element type of `space`.
fn centres(gpu: &Gpu, space: &Space<'_>, count: usize, seed: u64, progress: &Progress) -> Result<Vectors> {
    let (n, dim) = (space.len(), space.dim());
    debug_assert!(dim <= MAX_DIM && count > 0 && count <= n);
    // Spread over the rows, one drawn from each stretch.
    let wanted = (count * SAMPLE_PER_CELL).min(n);
    let sampled: Vec<f32> = (0..wanted)
        .into_par_iter()
        .flat_map_iter(|index| {
            let (first, end) = (index * n / wanted, (index + 1) * n / wanted);
            let draw = Draws::new(seed, Stage::Cells, 0, index as u64).below(0, (end - first) as u64);
            space.row_f32(first + draw as usize)
        })
        .collect();
    let sample = Vectors::from_f32(sampled, dim)?;
    // Centres begin as every so-manieth of the sample.
    let mut centres: Vec<f32> =
        (0..count).flat_map(|cell| sample.row(cell * wanted / count).into_owned()).collect();
    for round in 0..ROUNDS {
        let present = Vectors::from_f32(centres, dim)?;
        let present = Space::new(&present, Metric::L2)?;
        let queries = present.queries(&sample)?;
        let keys = nearest(gpu, &present, &Points::of_queries(&queries), 1, None, progress)?;
        let mut order: Vec<(u32, u32)> =
            keys.iter().zip(0..).map(|(&key, index)| (key::id(key), index)).collect();
        order.par_sort_unstable();
        let mean = |cell: usize| -> Vec<f32> {
            let from = order.partition_point(|&(of, _)| (of as usize) < cell);
            let members = order[from..].iter().take_while(|&&(of, _)| of as usize == cell);
            let (mut sum, mut count) = (vec![0f64; dim], 0u32);
            for &(_, index) in members {
                sum.iter_mut().zip(sample.row(index as usize).iter()).for_each(|(s, &x)| *s += f64::from(x));
                count += 1;
            }
            if count == 0 {
                // An empty cell begins anew somewhere else.
                let draw = Draws::new(seed, Stage::Cells, round + 1, cell as u64).below(0, wanted as u64);
                return sample.row(draw as usize).into_owned();
            }
            sum.iter().map(|s| (s / f64::from(count)) as f32).collect()
        };
        centres = (0..count).into_par_iter().flat_map_iter(mean).collect();
    }
    if matches!(space.element_type(), ElementType::U8 | ElementType::I8) {
        centres.iter_mut().for_each(|x| *x = x.round());
    }
    Ok(Vectors::from_f32(centres, dim)?.cast(space.element_type())?.into_owned())
}
