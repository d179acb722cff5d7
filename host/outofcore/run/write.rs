//! Writing the index: finished rows in the order of their ids, then layers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use tagore_device::key::NO_ID;

use super::attach::{MergedGraph, with_copies};
use super::attempt::Run;
use super::build::OutOfCore;
use super::merge::Merged;
use super::stats::OutOfCoreStats;
use super::turns::Turns;
use crate::atomic_file::AtomicFile;
use crate::build::LowerGraph;
use crate::index::{IndexFile, Layered, Reach, WrittenRows};
use crate::loops::{map, map_with, numbered, rows};
use crate::memory::{filled, zeros};
use crate::outofcore::plan::{ClusterPlan, row_bytes};
use crate::outofcore::store::{Attempt, Damage, Fault};
use crate::parallel::spawn;
use crate::progress::StageProgress;
use crate::prune::queries::Fitted;
use crate::vectors::Access;
use crate::vectors::embedding::Embedding;
use crate::vectors::space::Space;
use crate::{Builder, Device, Fingerprint, QueryStats, Repeated, Result, Vectors};

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
        let record_bytes = row_bytes(self.settings.builder.strategy.max_degree());
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
        if sound { Ok(()) } else { Err(Fault::Lost(Damage::Rows)) }
    }

    /// Writes the index range by range, then its layers, and attaches nodes. Sets the statistics of
    /// layers and reach.
    pub(super) fn write(
        &self,
        merged: &Merged,
        repeated: &Repeated,
        embedding: &Embedding,
        entries: Vec<u32>,
        stats: &mut OutOfCoreStats,
    ) -> Attempt<()> {
        let Self { settings: OutOfCore { builder, stale, .. }, base, plan, .. } = *self;
        let ending = Ending { builder, base, plan, repeated, embedding };
        let mut file = ending.create(AtomicFile::create(self.output)?, merged.entries.len())?;
        // The last unit is the layers.
        let stage = self.progress.write.stage("write", merged.rows.count() as u64 + 1);
        self.write_rows(&mut file, merged, repeated, &stage)?;
        // The disk writes the rows meanwhile.
        let graph = file.rows()?;
        let Fit { graph, entries, added, queries } =
            ending.fit_queries(&mut file, graph, entries, self.devices[0])?;
        stats.queries = queries;
        let began = Instant::now();
        let mut layers = ending.layers(&graph, entries, self.devices[0])?;
        layers.enter_at(&added);
        stats.layers = began.elapsed().as_secs_f64();
        stats.unreachable = ending.attach(&mut file, graph, &layers, &merged.lone)?;
        stats.reach = began.elapsed().as_secs_f64() - stats.layers;
        stage.advance(1)?;
        ending.commit(file, &layers, stale)?;
        Ok(())
    }

    /// Writes all rows. Threads read and sort the next ranges while one range is written.
    fn write_rows(
        &self,
        file: &mut IndexFile,
        merged: &Merged,
        repeated: &Repeated,
        stage: &StageProgress<'_>,
    ) -> Attempt<()> {
        let builder = &self.settings.builder;
        let degree = builder.strategy.max_degree();
        let bins = merged.rows.count();
        let (next, turns) = (&AtomicUsize::new(0), &Turns::new());
        thread::scope(|scope| {
            let (send, ranges) = sync_channel::<Attempt<Vec<u32>>>(0);
            for _ in 0..SORTERS {
                let send = send.clone();
                spawn(scope, move || {
                    let stop = turns.stop();
                    loop {
                        let bin = next.fetch_add(1, Ordering::Relaxed);
                        if bin >= bins {
                            stop.cancel();
                            return;
                        }
                        let range = self.sorted_rows(merged, repeated, bin);
                        // A closed channel means that the file cannot be written.
                        if !matches!(turns.take(bin, || send.send(range)), Ok(Some(()))) {
                            return;
                        }
                    }
                })?;
            }
            drop(send);
            for range in ranges {
                let range = range?;
                append_rows(file, &range, degree)?;
                stage.advance(1)?;
            }
            Ok(())
        })
    }

    /// Reads range `bin` of the finished rows, and sorts it by id.
    ///
    /// Fails with [`Damage::Rows`] unless each node of the range has exactly one row of valid ids:
    /// checksums do not prove that.
    fn sorted_rows(&self, merged: &Merged, repeated: &Repeated, bin: usize) -> Attempt<Vec<u32>> {
        let Merged { rows, nodes_per_bin, .. } = merged;
        let (n, degree) = (self.base.len(), self.settings.builder.strategy.max_degree());
        let first = bin * nodes_per_bin;
        let mut range = RowRange::new(first..n.min(first + nodes_per_bin), n, degree)?;
        let sound = rows.read(bin, |piece| range.add(piece))?;
        range.finish(repeated).filter(|_| sound).ok_or(Fault::Lost(Damage::Rows))
    }
}

/// Appends `ids` in padded rows of `degree` to the index.
pub(crate) fn append_rows(file: &mut IndexFile, ids: &[u32], degree: usize) -> Result<()> {
    let degree_of = |row: &[u32]| row.iter().take_while(|&&id| id != NO_ID).count() as u32;
    let degrees = map(rows(ids, degree), degree_of);
    file.append(&degrees, ids)
}

/// Whether `ids` are the padded rows of the nodes from `first` on: distinct ids of other nodes of
/// an index of `nodes` rows, none of them `repeated`, then `u32::MAX`.
pub(crate) fn are_rows(ids: &[u32], degree: usize, first: usize, nodes: usize, repeated: &Repeated) -> bool {
    let is_row = |sorted: &mut Vec<u32>, (node, row): (usize, &[u32])| {
        let count = row.iter().position(|&id| id == NO_ID).unwrap_or(row.len());
        let (ids, padding) = row.split_at(count);
        let is_node =
            |&id: &u32| (id as usize) < nodes && id as usize != first + node && !repeated.contains(id);
        sorted.clear();
        sorted.extend_from_slice(ids);
        sorted.sort_unstable();
        padding.iter().all(|&id| id == NO_ID)
            && ids.iter().all(is_node)
            && sorted.windows(2).all(|pair| pair[0] < pair[1])
    };
    map_with(numbered(rows(ids, degree)), Vec::new, is_row).into_iter().all(|is_sound| is_sound)
}

/// The rows of a range of ids, assembled from finished rows in any order.
pub(crate) struct RowRange {
    ids: Range<usize>,
    /// Nodes of the index.
    nodes: usize,
    degree: usize,
    rows: Vec<u32>,
    missing: Vec<bool>,
    sound: bool,
}

impl RowRange {
    /// The empty range `ids` of an index of `nodes` nodes.
    pub(crate) fn new(ids: Range<usize>, nodes: usize, degree: usize) -> Result<Self> {
        let mut rows: Vec<u32> = zeros(ids.len() * degree)?;
        rows.fill(NO_ID);
        let missing = filled(true, ids.len())?;
        Ok(Self { ids, nodes, degree, rows, missing, sound: true })
    }

    /// Adds finished rows: records of an id and `degree` ids.
    pub(crate) fn add(&mut self, records: &[u8]) {
        let Self { ids, degree, rows, missing, sound, .. } = self;
        for record in records.chunks_exact(row_bytes(*degree)) {
            let node: u32 = bytemuck::pod_read_unaligned(&record[..4]);
            let place = (node as usize).wrapping_sub(ids.start);
            if !missing.get_mut(place).is_some_and(std::mem::take) {
                *sound = false;
                continue;
            }
            let row = &mut rows[place * *degree..][..*degree];
            bytemuck::cast_slice_mut(row).copy_from_slice(&record[4..]);
        }
    }

    /// The padded rows in the order of their ids; `None` unless each node had exactly one row of
    /// valid ids, without `repeated` rows.
    pub(crate) fn finish(self, repeated: &Repeated) -> Option<Vec<u32>> {
        let Self { ids, nodes, degree, rows, missing, sound } = self;
        let is_sound = sound && !missing.contains(&true);
        (is_sound && are_rows(&rows, degree, ids.start, nodes, repeated)).then_some(rows)
    }
}

/// A written graph, fitted to queries if there is a sample of them.
struct Fit {
    graph: WrittenRows,
    entries: Vec<u32>,
    /// Entry points that were added.
    added: Vec<u32>,
    queries: Option<QueryStats>,
}

/// The end of a build, when all lists are merged.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a> {
    pub builder: &'a Builder,
    pub base: &'a Vectors,
    pub plan: &'a ClusterPlan,
    pub repeated: &'a Repeated,
    pub embedding: &'a Embedding,
}

impl Ending<'_> {
    /// Starts the file of an index built in `clusters` clusters.
    pub(crate) fn create(self, file: AtomicFile, clusters: usize) -> Result<IndexFile> {
        let Self { builder, base, plan, .. } = self;
        let mut description = builder.description(builder.descent.k_for(base)?);
        for (name, value) in [("clusters", clusters), ("cluster-size", plan.cluster_size)] {
            description.parameters.insert(name.to_owned(), value.to_string());
        }
        let degree = builder.strategy.max_degree();
        IndexFile::begin(file, &description, Fingerprint::compute(base)?, degree, ENTRIES)
    }

    /// Whether searches may read rows of the base at random: they have the memory of layers.
    fn may_search(self) -> bool {
        self.builder.is_layered() && self.plan.layer_nodes >= 2
    }

    /// Fits the written rows `graph`, which searches enter at `entries`, to the builder's sample of
    /// queries, if there is one.
    fn fit_queries(
        self,
        file: &mut IndexFile,
        graph: WrittenRows,
        entries: Vec<u32>,
        device: Device,
    ) -> Result<Fit> {
        let Self { builder, base, repeated, .. } = self;
        graph.advise(Access::AtRandom);
        let fitted = builder.fit_queries_of_file(base, repeated, &graph, &entries, device)?;
        graph.advise(Access::Somehow);
        let Some(Fitted { rows, entries, added_entries: added, stats }) = fitted else {
            return Ok(Fit { graph, entries, added: Vec::new(), queries: None });
        };
        let queries = Some(stats);
        if rows.is_empty() {
            return Ok(Fit { graph, entries, added, queries });
        }
        let rows = rows.iter().map(|(node, row)| (*node, &row[..]));
        file.replace_rows(graph, with_copies(rows, repeated))?;
        Ok(Fit { graph: file.rows()?, entries, added, queries })
    }

    /// Builds the layers that the written rows `graph` need above their `entries`.
    pub(crate) fn layers(self, graph: &WrittenRows, entries: Vec<u32>, device: Device) -> Result<Layered> {
        let Self { builder, base, plan, repeated, .. } = self;
        if !self.may_search() {
            return Ok(Layered::at(entries));
        }
        graph.advise(Access::AtRandom);
        base.advise(Access::AtRandom);
        let space = &Space::unprepared(base, builder.descent.metric);
        let below =
            LowerGraph { base, space, graph, repeated, remote: &[], most: plan.layer_nodes, on_device: None };
        let layered = builder.clone().device(device).layers_over(&below, entries);
        base.advise(Access::Somehow);
        graph.advise(Access::Somehow);
        layered
    }

    /// Attaches the nodes of the `written` rows that no path from the start reaches, and the `lone`
    /// nodes that searches do not find; without layers, searches have no memory and none is
    /// attached. Returns the number of rows that stay unreached.
    pub(crate) fn attach(
        self,
        file: &mut IndexFile,
        written: WrittenRows,
        layered: &Layered,
        lone: &[u32],
    ) -> Result<u64> {
        let Self { builder, base, repeated, embedding, .. } = self;
        let (progress, first) = (&builder.descent.progress, layered.first_nodes());
        if !self.may_search() {
            let reach = Reach { graph: &written, nodes: base.len(), first };
            return reach.unreachable(repeated, std::iter::empty(), progress);
        }
        base.advise(Access::AtRandom);
        let degree = builder.strategy.max_degree();
        let merged = MergedGraph { base, written: &written, degree, repeated, embedding, progress };
        let (changes, unreachable) = merged.attach(layered.start(), first, lone)?;
        base.advise(Access::Somehow);
        if !changes.is_empty() {
            file.replace_rows(written, changes.rows(repeated))?;
        }
        Ok(unreachable)
    }

    /// Puts the complete index in place, and deletes `stale` files just before. Returns the length
    /// of the file, and the CRC-32 of its first page.
    pub(crate) fn commit(self, file: IndexFile, layered: &Layered, stale: &[PathBuf]) -> Result<(u64, u32)> {
        file.commit(layered.start(), self.repeated.words(), stale)
    }
}
