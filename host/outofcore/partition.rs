//! Putting every vector into the files of its two nearest clusters, in one pass.

use bytemuck::{cast_slice, pod_read_unaligned};
use half::f16;
use serde::{Deserialize, Serialize};
use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};

use super::embedding::Embedding;
use super::fault::{Attempt, Damage, Fault};
use super::log::{Bins, Log, Piece};
use super::{ClusterGraph, ClusterPlan};
use crate::cluster::ROUNDS;
use crate::cluster::cpu::Centres;
use crate::vectors::{Element, with_matrix};
use crate::{ElementType, Progress, Result, Vectors};

/// Vectors of the sample per cluster: enough to predict sizes within some 5%.
pub(super) const SAMPLE_PER_CLUSTER: usize = 256;

/// Times that clusters which the sample predicts too large are split.
const SPLITS: u32 = 4;

/// Rows that are looked at in one go.
pub(super) const ROWS: usize = 1 << 14;

/// Bytes before the row in the record of a member: its id, and the number of its other cluster.
pub(super) const RECORD_HEAD: usize = 8;

/// The clusters of a base on disk.
pub(super) struct Partition {
    files: Bins,
    /// The clusters, and the nodes that they share.
    pub graph: ClusterGraph,
    /// The mean of all embedded rows.
    pub mean: Vec<f64>,
    element: ElementType,
    dim: usize,
}

/// What is known of clusters that are on disk.
#[derive(Serialize, Deserialize)]
pub(super) struct Table {
    members: Vec<Vec<Piece>>,
    /// Bytes of the file of members.
    pub bytes: u64,
    /// Pairs of clusters, and the nodes that they share.
    shared: Vec<(u32, u32, u64)>,
    /// The bits of the mean's values.
    mean: Vec<u64>,
}

/// The members of a cluster.
pub(super) struct Cluster {
    pub number: u32,
    /// Their ids, in ascending order.
    pub ids: Vec<u32>,
    /// The other cluster that each is in.
    pub others: Vec<u32>,
    pub vectors: Vectors,
}

impl Cluster {
    /// Bytes that it was read from.
    pub(super) fn bytes(&self) -> u64 {
        let row = self.vectors.dim() * self.vectors.element_type().size();
        (self.ids.len() * (RECORD_HEAD + row)) as u64
    }
}

impl Partition {
    /// Finds the clusters and writes their files to `log`.
    pub(super) fn new(
        base: &Vectors,
        embedding: &Embedding,
        plan: &ClusterPlan,
        log: Log,
        (seed, progress): (u64, &Progress),
    ) -> Result<Self> {
        let n = base.len();
        let stage = progress.stage("partition", n as u64);
        let centres = centres(base, embedding, plan, seed, progress)?;
        let clusters = centres.count();
        let mut files = Bins::new(log, clusters, plan.cluster_buffer);
        let mut sizes = vec![0; clusters];
        let mut shared = vec![0u64; clusters * clusters];
        let mut mean = vec![0f64; embedding.dim(base.dim())];
        for first in (0..n).step_by(ROWS) {
            let rows = embedding.rows(base, ROWS.min(n - first), |index| first + index);
            let nearest = centres.nearest_two(&rows, rows.len(), |row| row, &stage)?;
            // In the order of the rows: who finds a cluster full does not depend on threads.
            for (index, mut pair) in nearest.into_iter().enumerate() {
                let row = rows.row(index);
                mean.iter_mut().zip(row.iter()).for_each(|(sum, &x)| *sum += f64::from(x));
                if pair.iter().any(|&cluster| sizes[cluster as usize] == plan.cluster_size) {
                    pair = nearest_with_room(&centres.distances(&row), &sizes, plan.cluster_size);
                }
                let id = (first + index) as u32;
                for [cluster, other] in [pair, [pair[1], pair[0]]] {
                    sizes[cluster as usize] += 1;
                    with_matrix!(base.rows(), m => {
                        let row = cast_slice(m.row(first + index));
                        files.append(cluster as usize, &[cast_slice(&[id, other]), row])
                    })?;
                }
                shared[pair[0].min(pair[1]) as usize * clusters + pair[0].max(pair[1]) as usize] += 1;
            }
        }
        files.finish()?;
        mean.iter_mut().for_each(|sum| *sum /= n as f64);
        let pairs = shared.iter().enumerate().filter(|&(_, &nodes)| nodes > 0);
        let pairs = pairs.map(|(at, &nodes)| ((at / clusters) as u32, (at % clusters) as u32, nodes));
        let graph = ClusterGraph::new(clusters, pairs);
        Ok(Self { files, graph, mean, element: base.element_type(), dim: base.dim() })
    }

    /// The clusters of `base` that `table` is of, whose members are in `log`.
    pub(super) fn open(base: &Vectors, table: Table, log: Log) -> Self {
        let clusters = table.members.len();
        Self {
            // Nothing is appended.
            files: Bins::open(log, table.members, 0),
            graph: ClusterGraph::new(clusters, table.shared),
            mean: table.mean.into_iter().map(f64::from_bits).collect(),
            element: base.element_type(),
            dim: base.dim(),
        }
    }

    /// What opens it again, once all is on the disk.
    pub(super) fn table(&mut self) -> Result<Table> {
        let members = self.files.pieces()?;
        self.files.log().to_sync()?()?;
        let Self { files, graph, mean, .. } = self;
        let pairs_of = |a: u32| graph.neighbours(a).iter().map(move |&(b, nodes)| (a, b, nodes));
        let shared = (0..graph.clusters() as u32).flat_map(pairs_of).filter(|&(a, b, _)| a < b).collect();
        Ok(Table { members, bytes: files.bytes(), shared, mean: mean.iter().map(|x| x.to_bits()).collect() })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Reads a cluster; [`Damage::Clusters`] if it is not what was written.
    pub(super) fn read(&self, number: u32) -> Attempt<Cluster> {
        match self.element {
            ElementType::F32 => self.read_as(number, Vectors::from_f32),
            ElementType::F16 => self.read_as::<f16>(number, Vectors::from_f16),
            ElementType::U8 => self.read_as(number, Vectors::from_u8),
            ElementType::I8 => self.read_as(number, Vectors::from_i8),
        }
    }

    fn read_as<T: Element>(
        &self,
        number: u32,
        vectors: impl FnOnce(Vec<T>, usize) -> Result<Vectors>,
    ) -> Attempt<Cluster> {
        let row = self.dim * size_of::<T>();
        let members = self.graph.neighbours(number).iter().map(|&(_, nodes)| nodes).sum::<u64>() as usize;
        let (mut ids, mut others) = (Vec::with_capacity(members), Vec::with_capacity(members));
        let mut values = vec![T::zeroed(); members * self.dim];
        let mut rows = values.chunks_exact_mut(self.dim);
        let sound = self.files.read(number as usize, |piece| {
            for (record, values) in piece.chunks_exact(RECORD_HEAD + row).zip(&mut rows) {
                ids.push(pod_read_unaligned(&record[..4]));
                others.push(pod_read_unaligned(&record[4..RECORD_HEAD]));
                bytemuck::cast_slice_mut(values).copy_from_slice(&record[RECORD_HEAD..]);
            }
        })?;
        if !sound {
            return Err(Fault::Damage(Damage::Clusters));
        }
        Ok(Cluster { number, ids, others, vectors: vectors(values, self.dim)? })
    }
}

/// Centres of clusters of which, as far as the sample shows, none is larger than the plan has room for.
fn centres(
    base: &Vectors,
    embedding: &Embedding,
    plan: &ClusterPlan,
    seed: u64,
    progress: &Progress,
) -> Result<Centres> {
    let n = base.len();
    let count = (plan.clusters * SAMPLE_PER_CLUSTER).min(n);
    let draws = |iteration, index: u32| Draws::new(seed, Stage::Cells, iteration, index.into());
    let sample =
        embedding.rows(base, count, |i| drawn(draws(0, i as u32), i as u32, count as u32, n as u32) as usize);
    let unwatched = progress.unwatched();
    let stage = unwatched.stage("partition", 0);
    let mut centres = Centres::find(&sample, plan.clusters, (count, |row| row), seed, &stage)?;
    for split in 0..SPLITS {
        let nearest = centres.nearest_two(&sample, count, |row| row, &stage)?;
        let room = plan.cluster_size * count / n;
        let half = |cluster: u32| {
            let members: Vec<usize> = (0..count).filter(|&row| nearest[row].contains(&cluster)).collect();
            // The middle one in the order of the base is any one of them.
            (members.len() > room).then(|| members[members.len() / 2])
        };
        let added: Vec<usize> = (0..centres.count() as u32).filter_map(half).collect();
        if added.is_empty() {
            break;
        }
        added.iter().for_each(|&row| centres.push(&sample.row(row)));
        for round in 0..2 {
            let nearest = centres.nearest_two(&sample, count, |row| row, &stage)?;
            let empty =
                |cluster| draws(2 + ROUNDS + 2 * split + round, cluster).below(0, count as u64) as u32;
            centres.set_means(&sample, &nearest, |row| row, empty);
        }
    }
    Ok(centres)
}

/// The two nearest clusters that are not full; the plan has room for all, so that there are two.
fn nearest_with_room(distances: &[f32], sizes: &[usize], most: usize) -> [u32; 2] {
    let mut open: Vec<usize> = (0..sizes.len()).filter(|&cluster| sizes[cluster] < most).collect();
    let order = |&a: &usize, &b: &usize| distances[a].total_cmp(&distances[b]).then(a.cmp(&b));
    open.select_nth_unstable_by(1, order);
    [open[0] as u32, open[1] as u32]
}
