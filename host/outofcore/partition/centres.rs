//! Cluster centres of a base on disk.

use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};

use super::PartitionInput;
use crate::Result;
use crate::cluster::ROUNDS;
use crate::cluster::assigner::{Assigner, AssignerRoom, RowRounding};
use crate::cluster::cpu::{CentreSample, Centres};
use crate::loops::map;
use crate::outofcore::plan::SAMPLE_PER_CLUSTER;
use crate::vectors::Access;

/// Maximum rounds of splitting clusters that the sample predicts too large.
pub(crate) const SPLITS: u32 = 4;

/// Sampled rows that are read at a time.
const READ_AT_ONCE: usize = 1 << 14;

/// Cluster centres of a base.
pub(crate) struct Found {
    pub centres: Centres,
    /// The rounding of vectors that are compared with the centres on a device.
    pub rounding: RowRounding,
    /// Compares vectors with centres, up to a chunk of vectors at a time.
    pub assigner: Assigner,
}

/// Finds cluster centres of all rows except the repeated ones, by k-means on a sample.
///
/// A cluster that the sample predicts larger than the plan allows is split.
pub(crate) fn find_centres(input: &PartitionInput<'_>, chunk_rows: usize) -> Result<Found> {
    let PartitionInput { base, repeated, embedding, plan, device, seed, progress } = *input;
    let n = base.len() - repeated.len();
    let clusters = if repeated.is_empty() { plan.clusters } else { plan.clusters_for(n) };
    let count = (clusters * SAMPLE_PER_CLUSTER).min(n);
    let draws = |iteration, index: u32| Draws::new(seed, Stage::Cells, iteration, index.into());
    base.advise(Access::AtRandom);
    let row_of = |i: u32| repeated.nth_unique(drawn(draws(0, i), i, count as u32, n as u32)) as usize;
    let rows = map(0..count as u32, row_of);
    for first in (0..count).step_by(READ_AT_ONCE) {
        let part = first..count.min(first + READ_AT_ONCE);
        progress.check()?;
        // All before the first is needed: a disk is faster with many requests.
        rows[part.clone()].iter().for_each(|&row| base.prefetch(row..row + 1));
        base.validate_rows(part, |place| rows[place], embedding.metric())?;
    }
    let sample = embedding.rows(base, count, |i| rows[i]);
    let unwatched = progress.unwatched();
    let stage = unwatched.stage("partition", 0);
    // A round of splits at most doubles the number of centres.
    let room = AssignerRoom { piece: chunk_rows, centres: clusters << SPLITS };
    let rounding = RowRounding::fit(&sample)?;
    let mut assigner = Assigner::new(device.gpu()?, &rounding, room)?;
    let copy = |row: usize, out: &mut [f32]| out.copy_from_slice(&sample.host_row(row));
    let mut nearest = |centres: &Centres| assigner.with(centres)?.two(count, copy, &stage);
    let mut centres =
        Centres::find(&sample, clusters, CentreSample { count, row_of: |index| index }, seed, &mut nearest)?;
    for split in 0..SPLITS {
        let pairs = nearest(&centres)?;
        let room = plan.cluster_size * count / n;
        let half = |cluster: u32| {
            let members: Vec<usize> = (0..count).filter(|&row| pairs[row].contains(&cluster)).collect();
            // The middle member in the order of the base is an arbitrary one.
            (members.len() > room).then(|| members[members.len() / 2])
        };
        let added: Vec<usize> = (0..centres.count() as u32).filter_map(half).collect();
        if added.is_empty() {
            break;
        }
        added.iter().for_each(|&row| centres.push(&sample.host_row(row)));
        for round in 0..2 {
            let pairs = nearest(&centres)?;
            let empty =
                |cluster| draws(2 + ROUNDS + 2 * split + round, cluster).below(0, count as u64) as u32;
            centres.set_means(&sample, &pairs, |row| row, empty);
        }
    }
    Ok(Found { centres, rounding, assigner })
}
