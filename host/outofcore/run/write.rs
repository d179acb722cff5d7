//! Writing the index: finished rows in the order of their ids, then layers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use rayon::prelude::*;

use super::attempt::Run;
use super::build::OutOfCore;
use super::merge::Merged;
use super::turns::Turns;
use crate::build::Below;
use crate::index::{IndexFile, Start};
use crate::memory::zeros;
use crate::outofcore::store::{Attempt, Damage, Fault};
use crate::parallel::spawn;
use crate::progress::StageProgress;
use crate::vectors::Access;
use crate::vectors::space::Space;
use crate::{Fingerprint, Layer, Repeated, Result};

/// Threads that sort finished rows, one range each.
const SORTERS: usize = 4;

/// Room for entry points in the file of the index, entry points of its highest layer included.
const ENTRIES: usize = 1024;

impl Run<'_> {
    /// Adds repeated rows to the finished rows: the neighbours of the first row of their group.
    pub(super) fn copy_rows(&self, merged: &mut Merged, repeated: &Repeated) -> Attempt<()> {
        if repeated.is_empty() {
            return Ok(());
        }
        let Merged { rows, nodes_per_bin, .. } = merged;
        let (nodes_per_bin, progress) = (*nodes_per_bin, &self.settings.builder.descent.progress);
        let record_bytes = 4 + 4 * self.settings.builder.strategy.max_degree();
        let mut copy = vec![0; record_bytes];
        let sound = rows.grow(record_bytes, |piece, append| {
            progress.check()?;
            for record in piece.chunks_exact(record_bytes) {
                copy.copy_from_slice(record);
                for row in repeated.copies_of(bytemuck::pod_read_unaligned(&record[..4])) {
                    copy[..4].copy_from_slice(bytemuck::bytes_of(&row));
                    append(row as usize / nodes_per_bin, &copy)?;
                }
            }
            Ok(())
        })?;
        if sound { Ok(()) } else { Err(Fault::Damage(Damage::Rows)) }
    }

    /// Writes the index range by range, then its layers. Returns the seconds of the layers.
    pub(super) fn write(&self, merged: &Merged, repeated: &Repeated, entries: &mut Vec<u32>) -> Attempt<f64> {
        let Self { settings: OutOfCore { builder, .. }, base, .. } = *self;
        let degree = builder.strategy.max_degree();
        let mut description = builder.description(builder.descent.k_for(base)?);
        let clusters = merged.entries.len();
        for (name, value) in [("clusters", clusters), ("cluster-size", self.plan.cluster_size)] {
            description.parameters.insert(name.to_owned(), value.to_string());
        }
        let mut file = IndexFile::create(self.output, &description, Fingerprint::of(base)?, degree, ENTRIES)?;
        // The last unit is the layers.
        let stage = self.progress.write.stage("write", merged.rows.count() as u64 + 1);
        self.write_rows(&mut file, merged, &stage)?;
        let began = Instant::now();
        let layers = self.layers(&mut file, repeated, entries)?;
        let seconds = began.elapsed().as_secs_f64();
        stage.advance(1)?;
        file.commit(Start { entries, layers: &layers }, repeated.words(), &self.settings.stale)?;
        Ok(seconds)
    }

    /// Writes all rows. Threads read and sort the next ranges while one range is written.
    fn write_rows(&self, file: &mut IndexFile, merged: &Merged, stage: &StageProgress<'_>) -> Attempt<()> {
        let builder = &self.settings.builder;
        let degree = builder.strategy.max_degree();
        let bins = merged.rows.count();
        let (next, turns) = (&AtomicUsize::new(0), &Turns::new());
        thread::scope(|scope| {
            let (send, ranges) = sync_channel::<Attempt<Vec<u32>>>(0);
            for _ in 0..SORTERS {
                let send = send.clone();
                spawn(scope, move || {
                    loop {
                        let bin = next.fetch_add(1, Ordering::Relaxed);
                        if bin >= bins {
                            return;
                        }
                        let range = self.sorted_rows(merged, bin);
                        // A closed channel means that the file cannot be written.
                        if turns.take(bin, || send.send(range)).is_err() {
                            return;
                        }
                    }
                })?;
            }
            drop(send);
            for range in ranges {
                let range = range?;
                let degree_of = |row: &[u32]| row.iter().take_while(|&&id| id != u32::MAX).count() as u32;
                let degrees: Vec<u32> = range.par_chunks_exact(degree).map(degree_of).collect();
                file.append(&degrees, &range)?;
                stage.advance(1)?;
            }
            Ok(())
        })
    }

    /// Reads range `bin` of the finished rows, and sorts it by id.
    ///
    /// Fails with [`Damage::Rows`] unless each node of the range has exactly one row of valid ids:
    /// checksums do not prove that.
    fn sorted_rows(&self, merged: &Merged, bin: usize) -> Attempt<Vec<u32>> {
        let Merged { rows, nodes_per_bin, .. } = merged;
        let (n, degree) = (self.base.len(), self.settings.builder.strategy.max_degree());
        let first = bin * nodes_per_bin;
        let nodes = n.saturating_sub(first).min(*nodes_per_bin);
        let mut sorted: Vec<u32> = zeros(nodes * degree);
        sorted.fill(u32::MAX);
        let mut missing = vec![true; nodes];
        let mut complete = true;
        let sound = rows.read(bin, |piece| {
            for record in piece.chunks_exact(4 + 4 * degree) {
                let node: u32 = bytemuck::pod_read_unaligned(&record[..4]);
                let place = (node as usize).wrapping_sub(first);
                if !missing.get_mut(place).is_some_and(std::mem::take) {
                    complete = false;
                    continue;
                }
                let row = &mut sorted[place * degree..][..degree];
                bytemuck::cast_slice_mut(row).copy_from_slice(&record[4..]);
                complete &= row.iter().all(|&id| (id as usize) < n || id == u32::MAX);
            }
        })?;
        let complete = sound && complete && !missing.contains(&true);
        if complete { Ok(sorted) } else { Err(Fault::Damage(Damage::Rows)) }
    }

    /// Builds the layers that the index needs. All of its rows must be in `file`.
    fn layers(
        &self,
        file: &mut IndexFile,
        repeated: &Repeated,
        entries: &mut Vec<u32>,
    ) -> Result<Vec<Layer>> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, devices, .. } = *self;
        if !builder.layered || plan.layer_nodes < 2 {
            return Ok(Vec::new());
        }
        let graph = &file.rows()?;
        graph.advise(Access::AtRandom);
        base.advise(Access::AtRandom);
        let space = &Space::unprepared(base, builder.descent.metric);
        let below = Below { base, space, graph, repeated, most: plan.layer_nodes, on_device: None };
        let layers = builder.clone().device(devices[0]).layers_over(&below, entries);
        base.advise(Access::Somehow);
        layers
    }
}
