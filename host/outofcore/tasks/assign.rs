//! `assign`, `place` and `write`: rows to their two clusters.

use serde::{Deserialize, Serialize};

use super::context::{Context, Input, Outcome};
use super::id::{TaskId, TaskStage};
use super::plan::Plan;
use super::store::ObjectStore;
use crate::Error;
use crate::cluster::assigner::{Assigner, AssignerRoom};
use crate::outofcore::partition::{
    AssignedRange, Assigning, BlockSums, Filling, add_blocks, chunk_rows, distances, write_records,
};
use crate::outofcore::plan::{ClusterGraph, RECORD_HEAD};
use crate::outofcore::store::rows_crc;
use crate::vectors::Access;
use crate::vectors::range::check_smallest;

// Pieces of `assign`: nearest centres, sums of blocks of rows, and rows by their pair of centres.
const NEAREST: u32 = 0;
const SUMS: u32 = 1;
const PAIRS: u32 = 2;

/// The description of `assign`.
#[derive(Serialize, Deserialize)]
pub(super) struct Assigned {
    /// CRC-32 of the rows of the base.
    crc: u32,
    /// Bits of the largest magnitude of a value.
    largest: u32,
}

/// The description of `place`.
#[derive(Serialize, Deserialize)]
pub(super) struct Placed {
    /// Rows in the clusters.
    nodes: u64,
    /// Kinds of devices that assigned the rows.
    pub devices: Vec<String>,
}

// Pieces of `place` after those of the ranges: shared nodes of pairs of clusters, the mean of all
// rows, and the order of clusters.
const SHARED: u32 = u32::MAX - 2;
const MEAN: u32 = u32::MAX - 1;
const ORDER: u32 = u32::MAX;

/// The clusters, after all rows are placed.
pub(super) struct Clusters {
    pub graph: ClusterGraph,
    /// The mean of all embedded rows.
    pub mean: Vec<f64>,
    /// The turn of each cluster.
    pub turns: Vec<usize>,
}

impl Context<'_> {
    /// Finds the two nearest centres of the rows of a range.
    pub(super) fn assign(&self, range: u32) -> Outcome<()> {
        let Self { base, shared, embedding, plan, builder, device, .. } = *self;
        let rows = plan.rows(range);
        let (centres, dim) = (&shared.centres, embedding.dim(base.dim()));
        let piece = chunk_rows(&plan.limits, dim);
        let room = AssignerRoom { piece, centres: centres.count() };
        let mut assigner = Assigner::new(device.gpu()?, &shared.rounding, room)?;
        let stage = &builder.descent.progress.stage("assign", rows.len() as u64);
        let (nearest, sums) = (assigner.with(centres)?, BlockSums::new(dim));
        let repeated = &shared.repeated;
        let assigning = Assigning { base, repeated, embedding, nearest, stage, sums, largest: 0.0 };
        base.advise(Access::InOrder);
        let AssignedRange { nearest, pairs, sums, largest } = assigning.range(rows.clone(), piece)?;
        let assigned = Assigned { crc: rows_crc(base, rows), largest: largest.to_bits() };
        let pieces = [
            (NEAREST, bytemuck::cast_slice(&nearest)),
            (SUMS, bytemuck::cast_slice(&sums)),
            (PAIRS, bytemuck::cast_slice(&pairs)),
        ];
        self.put(TaskId::new(TaskStage::Assign, range as usize), assigned, &pieces)
    }

    fn assigned(&self, range: u32) -> Outcome<Input<Assigned>> {
        self.store.input(TaskId::new(TaskStage::Assign, range as usize))
    }

    /// Reads the nearest centres of the rows of a range.
    fn nearest(&self, input: &Input<Assigned>, nodes: usize) -> Outcome<Vec<[u32; 2]>> {
        let nearest: Vec<[u32; 2]> = input.numbers(NEAREST)?;
        let is_pair = |&[a, b]: &[u32; 2]| a != b && (a.max(b) as usize) < self.plan.clusters;
        let sound = nearest.len() == nodes && nearest.iter().all(is_pair);
        if sound { Ok(nearest) } else { Err(input.lost()) }
    }

    /// Assigns the rows of full clusters in the order of the rows, and orders the clusters.
    ///
    /// Only the rows that find a cluster full are read from the base. A range in which no cluster
    /// becomes full is placed by its counts alone.
    pub(super) fn place(&self) -> Outcome<()> {
        let Self { base, shared, embedding, plan, builder, .. } = *self;
        let (centres, dim) = (&shared.centres, embedding.dim(base.dim()));
        let mut filling = Filling::new(plan.clusters, plan.limits.cluster_size);
        let (mut mean, mut largest, mut nodes) = (vec![0f64; dim], 0f32, 0);
        let mut devices = Vec::new();
        let mut moved: Vec<Vec<[u32; 3]>> = vec![Vec::new(); plan.ranges()];
        let stage = builder.descent.progress.stage("place", plan.ranges() as u64);
        for range in 0..plan.ranges() as u32 {
            let input = self.assigned(range)?;
            largest = largest.max(f32::from_bits(input.more.largest));
            let sums: Vec<f64> = input.numbers(SUMS)?;
            if !sums.len().is_multiple_of(dim) || sums.iter().any(|x| !x.is_finite()) {
                return Err(input.lost());
            }
            add_blocks(&mut mean, &sums);
            if !devices.contains(&input.object.device) {
                devices.push(input.object.device.clone());
            }
            let ids = shared.repeated.others(plan.rows(range));
            let pairs = counts(plan, &input, ids.len())?;
            let rows = pairs.iter().map(|pair| u64::from(pair[2])).sum::<u64>();
            if rows != ids.len() as u64 {
                return Err(input.lost());
            }
            nodes += rows;
            if !filling.put_all(&pairs) {
                let nearest = self.nearest(&input, ids.len())?;
                let mut placed = nearest.clone();
                let distances = |index: usize| distances(centres, embedding, base, ids[index]);
                filling.put(&mut placed, distances, &builder.descent.progress)?;
                let rows = ids.iter().zip(nearest).zip(placed);
                let of_range = rows.filter(|((_, nearest), placed)| nearest != placed);
                moved[range as usize].extend(of_range.map(|((&id, _), [a, b])| [id, a, b]));
            }
            stage.advance(1)?;
        }
        check_smallest(base, largest, builder.descent.metric)?;
        mean.iter_mut().for_each(|sum| *sum /= nodes as f64);
        let mut pairs: Vec<[u64; 3]> =
            filling.shared.into_iter().map(|((a, b), nodes)| [a.into(), b.into(), nodes]).collect();
        pairs.sort_unstable();
        let graph = graph(plan.clusters, &pairs);
        let dispatches = graph.dispatch(plan.limits.cache)?;
        let order: Vec<u32> = dispatches.iter().map(|dispatch| dispatch.load).collect();
        let mut pieces: Vec<(u32, &[u8])> =
            (0..).zip(&moved).map(|(range, moved)| (range, bytemuck::cast_slice(moved))).collect();
        pieces.push((SHARED, bytemuck::cast_slice(&pairs)));
        pieces.push((MEAN, bytemuck::cast_slice(&mean)));
        pieces.push((ORDER, bytemuck::cast_slice(&order)));
        self.put(TaskId::PLACE, Placed { nodes, devices }, &pieces)
    }

    /// Writes the rows of a range to their clusters: a piece of records for each cluster.
    pub(super) fn write(&self, range: u32) -> Outcome<()> {
        let Self { base, shared, plan, .. } = *self;
        let (rows, input) = (plan.rows(range), self.assigned(range)?);
        let ids = shared.repeated.others(rows.clone());
        let mut pairs = self.nearest(&input, ids.len())?;
        let placed: Input<Placed> = self.store.input(TaskId::PLACE)?;
        for [id, a, b] in placed.numbers::<[u32; 3]>(range)? {
            let place = ids.binary_search(&id).map_err(|_| placed.lost())?;
            if a == b || a.max(b) as usize >= plan.clusters {
                return Err(placed.lost());
            }
            pairs[place] = [a, b];
        }
        let mut sizes = vec![0; plan.clusters];
        pairs.iter().flatten().for_each(|&cluster| sizes[cluster as usize] += 1);
        let record = RECORD_HEAD + base.element_type().row_bytes(base.dim());
        let mut records: Vec<Vec<u8>> =
            sizes.into_iter().map(|size: usize| Vec::with_capacity(size * record)).collect();
        base.advise(Access::InOrder);
        for (&id, &pair) in ids.iter().zip(&pairs) {
            write_records(base, id, pair, |cluster, record| {
                record.iter().for_each(|part| records[cluster].extend_from_slice(part));
                Ok(())
            })?;
        }
        if rows_crc(base, rows.clone()) != input.more.crc {
            let found = format!("other values in rows {} to {}", rows.start, rows.end - 1);
            let expected = "the data set of the plan; plan a changed data set in another folder";
            return Err(Error::mismatch(base.describe(), found, expected).into());
        }
        let pieces: Vec<(u32, &[u8])> = (0..)
            .zip(&records)
            .filter(|(_, records)| !records.is_empty())
            .map(|(cluster, records)| (cluster, &records[..]))
            .collect();
        self.put(TaskId::new(TaskStage::Write, range as usize), (), &pieces)
    }
}

/// Reads the counts of the rows of a range by their pair of nearest centres: at most `most` rows.
fn counts(plan: &Plan, input: &Input<Assigned>, most: usize) -> Outcome<Vec<[u32; 3]>> {
    let pairs: Vec<[u32; 3]> = input.numbers(PAIRS)?;
    let rows = pairs.iter().map(|pair| u64::from(pair[2])).sum::<u64>();
    let sound = rows <= most as u64 && pairs.iter().all(|&[a, b, _]| a < b && (b as usize) < plan.clusters);
    if sound { Ok(pairs) } else { Err(input.lost()) }
}

/// The first range in which a cluster becomes full; `None` if all clusters have room.
pub(super) fn first_full(plan: &Plan, store: &ObjectStore) -> Outcome<Option<u32>> {
    let mut filling = Filling::new(plan.clusters, plan.limits.cluster_size);
    for range in 0..plan.ranges() as u32 {
        let input: Input<Assigned> = store.input(TaskId::new(TaskStage::Assign, range as usize))?;
        let pairs = counts(plan, &input, plan.rows(range).len())?;
        if !filling.put_all(&pairs) {
            return Ok(Some(range));
        }
    }
    Ok(None)
}

/// Reads the clusters of `place`.
pub(super) fn read_clusters(plan: &Plan, store: &ObjectStore) -> Outcome<Clusters> {
    let input: Input<Placed> = store.input(TaskId::PLACE)?;
    let count = plan.clusters;
    let (pairs, order): (Vec<[u64; 3]>, Vec<u32>) = (input.numbers(SHARED)?, input.numbers(ORDER)?);
    let mean: Vec<f64> = input.numbers(MEAN)?;
    let mut turns = vec![usize::MAX; count];
    for (turn, &cluster) in order.iter().enumerate() {
        *turns.get_mut(cluster as usize).ok_or_else(|| input.lost())? = turn;
    }
    let is_pair = |&[a, b, nodes]: &[u64; 3]| a < b && b < count as u64 && nodes > 0;
    let nodes = pairs.iter().map(|pair| u128::from(pair[2])).sum::<u128>();
    let sound = order.len() == count
        && !turns.contains(&usize::MAX)
        && pairs.iter().all(is_pair)
        && pairs.is_sorted_by(|a, b| a[..2] < b[..2])
        && nodes == u128::from(input.more.nodes)
        && nodes <= u128::from(plan.fingerprint.rows)
        && mean.len() == plan.embedded_dim()
        && mean.iter().all(|x| x.is_finite());
    if !sound {
        return Err(input.lost());
    }
    Ok(Clusters { graph: graph(count, &pairs), mean, turns })
}

impl Clusters {
    /// The clusters before `number` in the order that share nodes with it, ascending.
    pub(super) fn before(&self, number: u32) -> Vec<u32> {
        let is_before = |other: &u32| self.turns[*other as usize] < self.turns[number as usize];
        self.graph.neighbors(number).iter().map(|&(other, _)| other).filter(is_before).collect()
    }
}

/// The graph of clusters that share these numbers of nodes.
fn graph(clusters: usize, pairs: &[[u64; 3]]) -> ClusterGraph {
    ClusterGraph::new(clusters, pairs.iter().map(|&[a, b, nodes]| (a as u32, b as u32, nodes)))
}
