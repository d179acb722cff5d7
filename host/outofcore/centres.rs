//! Centres of the clusters of a base that is not in memory.

use rayon::prelude::*;
use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};

use super::ClusterPlan;
use crate::cluster::ROUNDS;
use crate::cluster::assigner::Assigner;
use crate::cluster::cpu::Centres;
use crate::vectors::Access;
use crate::vectors::embedding::Embedding;
use crate::{Device, Progress, Repeated, Result, Vectors};

/// Vectors of the sample per cluster: enough to predict sizes within some 5%.
pub(super) const SAMPLE_PER_CLUSTER: usize = 256;

/// Times that clusters which the sample predicts too large are split.
const SPLITS: u32 = 4;

/// Finds centres of clusters of the rows that repeat no other. As far as a sample shows, no cluster
/// is larger than the plan has room for. Also returns what compares vectors with the centres on
/// `device`, `piece` at a time.
pub(super) fn centres(
    (base, repeated): (&Vectors, &Repeated),
    embedding: &Embedding,
    (plan, device, piece): (&ClusterPlan, Device, usize),
    (seed, progress): (u64, &Progress),
) -> Result<(Centres, Assigner)> {
    let n = base.len() - repeated.len();
    let count = (plan.clusters * SAMPLE_PER_CLUSTER).min(n);
    let draws = |iteration, index: u32| Draws::new(seed, Stage::Cells, iteration, index.into());
    base.advise(Access::AtRandom);
    let row_of = |i: u32| repeated.other(drawn(draws(0, i), i, count as u32, n as u32)) as usize;
    let rows: Vec<usize> = (0..count as u32).into_par_iter().map(row_of).collect();
    base.validate_rows(rows.par_iter().copied(), embedding.metric())?;
    let sample = embedding.rows(base, count, |i| rows[i]);
    let unwatched = progress.unwatched();
    let stage = unwatched.stage("partition", 0);
    // A split makes two of a cluster at most.
    let room = (piece, plan.clusters << SPLITS);
    let mut assigner = Assigner::new(device.gpu()?, &sample, room)?;
    let mut nearest = |centres: &Centres| assigner.with(centres)?.two(&sample, &stage);
    let mut centres = Centres::find(&sample, plan.clusters, (count, |row| row), seed, &mut nearest)?;
    for split in 0..SPLITS {
        let pairs = nearest(&centres)?;
        let room = plan.cluster_size * count / n;
        let half = |cluster: u32| {
            let members: Vec<usize> = (0..count).filter(|&row| pairs[row].contains(&cluster)).collect();
            // The middle one in the order of the base is any one of them.
            (members.len() > room).then(|| members[members.len() / 2])
        };
        let added: Vec<usize> = (0..centres.count() as u32).filter_map(half).collect();
        if added.is_empty() {
            break;
        }
        added.iter().for_each(|&row| centres.push(&sample.row(row)));
        for round in 0..2 {
            let pairs = nearest(&centres)?;
            let empty =
                |cluster| draws(2 + ROUNDS + 2 * split + round, cluster).below(0, count as u64) as u32;
            centres.set_means(&sample, &pairs, |row| row, empty);
        }
    }
    Ok((centres, assigner))
}
