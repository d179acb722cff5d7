//! Brings an index up to date with its base: rows come, go and change.
//!
//! Rows that stay keep their neighbours. A row that lost some gets the neighbours of the lost ones
//! as candidates. The candidates of a new row are the rows that a search for it finds, and the
//! nearest of the other new rows, so that new rows far from all others find each other. The kind's
//! own filter chooses among them, and the neighbours of a new row take edges back. Then layers and
//! reach follow as in a build (docs/updates.md).

use std::time::Instant;

use super::join::join_parts;
use super::kept::{Earlier, KeptRows, Part};
use super::memory::{Built, Given, Unfinished};
use super::spots::Odd;
use super::{BuildStats, Builder};
use crate::index::INSERTED;
use crate::memory::peak_host_bytes;
use crate::prune::change::RowChanges;
use crate::prune::reach::NodeSearches;
use crate::prune::{PruneStats, Pruned, cpu};
use crate::vectors::space::Space;
use crate::{Device, Error, Fingerprint, IdSet, Index, Metric, Progress, Result, Strategy, Vectors};

/// New rows that are searched for at a time.
const SEARCHED: usize = 1 << 14;

/// After a merge, searches must find one node in this many.
const SAMPLED: u32 = 16;

/// The beam of a search for a new row, over the length of its list in a build: so many nodes are
/// found that their nearest are nearly those of the list.
const WIDER: usize = 2;

/// An update of an index: its base has new rows at the end, rows that go, or rows with other
/// vectors.
///
/// The rows keep their numbers. A row that goes is [left out](Index::left_out): searches do not
/// return it, and a later update may give its place to another vector
/// ([`replace`](Self::replace)). The result is a new index; the old one and its searchers stay as
/// they are.
///
/// ```
/// use tagore::{Builder, IdSet, IndexUpdate, Strategy, Synth, Vectors};
/// let all = Synth::new(1200, 16, 1)?.base();
/// let first: Vec<_> = (0..1000).map(|row| all.row_to_f32(row)).collect::<Result<_, _>>()?;
/// let index = Builder::new(Strategy::nsg()).build(&Vectors::from_rows(&first)?)?;
/// let gone = IdSet::from_ids(1000, [3, 17])?;
/// let (index, stats) = IndexUpdate::new(&index)?.remove(gone).run(&all)?;
/// assert_eq!((index.len(), stats.inserted, stats.removed), (1200, 200, 2));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexUpdate<'a> {
    index: &'a Index,
    builder: Builder,
    removed: IdSet,
    replaced: IdSet,
}

/// What an update did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateStats {
    /// Rows that were inserted: those past the rows of the index, and the replaced ones.
    pub inserted: u64,
    /// Rows that were removed, without the replaced ones.
    pub removed: u64,
    /// Nodes that lost neighbours and got others; none if the index was built anew: on a GPU, if
    /// more than half of the rows have come since the last build, or if rows lie in dense spots or
    /// in groups far apart.
    pub mended: Option<u64>,
    /// Statistics of the build.
    pub build: BuildStats,
}

impl Builder {
    /// The builder that makes an index like this one: its kind, metric, seed and parameters.
    ///
    /// # Errors
    /// If the index is of a user's own kind, or of another system.
    pub fn like(index: &Index) -> Result<Self> {
        let description = index.description();
        let strategy: Strategy = description.kind.parse()?;
        let builder = Self::new(strategy).metric(description.metric).seed(description.seed);
        let is_set = |(name, value): &(&String, &String)| match name.as_str() {
            // Lists of all other nodes tell nothing about those of more nodes.
            "knn" => value.parse().is_ok_and(|knn: usize| knn + 1 < index.len()),
            name => name != INSERTED,
        };
        builder.set_all(description.parameters.iter().filter(is_set))
    }

    /// Checks that `base` has rows of the shape of those of `index`, `name` in an error, and that
    /// the index has the metric of this builder.
    pub(super) fn check_fit(&self, index: &Index, name: &str, base: &Vectors) -> Result<()> {
        let Fingerprint { dim, element, .. } = index.fingerprint();
        if (base.dim(), base.element_type()) != (dim as usize, element) {
            let found = format!("rows of {} {}", base.dim(), base.element_type());
            let expected = format!("{dim} {element} as in the data set of {name}");
            return Err(Error::mismatch(base.describe(), found, expected));
        }
        if self.descent.metric != index.metric() {
            let expected = format!("{} as {name} has", index.metric());
            return Err(Error::argument("metric", self.descent.metric, expected));
        }
        Ok(())
    }

    /// Whether a GPU makes an index of `rows` rows of this dimension: anew, which takes less time
    /// than to change one on a CPU.
    pub(super) fn is_on_gpu(&self, rows: usize, dim: usize) -> Result<bool> {
        Ok(self.descent.gpu(rows, dim)?.is_some_and(|gpu| gpu.takes_ptx()))
    }

    /// The index of `base` with the rows `kept`; none if rows lie in dense spots, which need parts
    /// of their own.
    pub(super) fn changed(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        mut kept: KeptRows,
        k: usize,
    ) -> Result<Option<Built>> {
        let began = Instant::now();
        let progress = &self.descent.progress;
        base.on_host()?;
        space.vectors().on_host()?;
        let Some(lists) = self.fresh_lists(space, &kept.fresh, k)? else { return Ok(None) };
        let joining: usize = kept.joining.iter().map(Vec::len).sum();
        let stage = progress.stage("update", (kept.torn.len() + joining + 2 * kept.fresh.len()) as u64);
        let changes = RowChanges { space, strategy: &self.strategy, progress, more: usize::MAX };
        changes.mend(&mut kept.rows, &kept.torn)?;
        stage.advance(kept.torn.len() as u64)?;
        join_parts(&changes, &mut kept, &stage)?;
        let KeptRows { mut rows, torn, fresh, start, .. } = kept;

        let searches = NodeSearches::new(space, start.start()).width(WIDER * k);
        let mut found: Vec<(u32, Vec<u32>)> = Vec::with_capacity(fresh.len());
        for (nodes, lists) in fresh.chunks(SEARCHED).zip(lists.chunks(SEARCHED)) {
            let near = searches.nearest(&rows, nodes).into_iter().zip(lists);
            let candidates = near.map(|(near, list)| [&near[..], list].concat());
            found.extend(nodes.iter().copied().zip(candidates));
            stage.advance(nodes.len() as u64)?;
        }
        changes.choose(&mut rows, &found)?;
        drop(found);
        changes.offer(&mut rows, &fresh, |_| true)?;
        stage.advance(fresh.len() as u64)?;

        let entries = cpu::entries(space, self.strategy.entry, self.descent.seed, progress)?;
        let prune = PruneStats {
            device: "cpu".to_owned(),
            seconds: began.elapsed().as_secs_f64(),
            peak_host_bytes: peak_host_bytes(),
            ..PruneStats::default()
        };
        let mended = Some(torn.len() as u64);
        let stats = BuildStats { knn: k, mended, ..BuildStats::default() };
        let is_new = |node: &u32| fresh.binary_search(node).is_ok();
        let lone = match space.metric() {
            // A search for a new row must find it, but for one of small products among larger ones.
            Metric::InnerProduct => Vec::new(),
            _ if joining == 0 => fresh,
            // A cluster that searches lost is found by some of its nodes.
            _ => (0..rows.len() as u32).filter(|node| node % SAMPLED == 0 || is_new(node)).collect(),
        };
        let pruned = Pruned { rows, entries, stats: prune };
        let graph = Unfinished { pruned, lone, remote: Vec::new(), on_device: None };
        self.finished(base, space, graph, stats).map(Some)
    }

    /// The nearest of the `fresh` nodes to each of them; none if rows lie in dense spots.
    fn fresh_lists(&self, space: &Space<'_>, fresh: &[u32], k: usize) -> Result<Option<Vec<Vec<u32>>>> {
        let are_in_spots =
            || Ok(self.spots_of_products(space)?.is_some() || self.spots_of_directions(space)?.is_some());
        if !fresh.is_empty() && are_in_spots()? {
            return Ok(None);
        }
        if fresh.len() < 2 {
            return Ok(Some(vec![Vec::new(); fresh.len()]));
        }
        let (part, k) = (space.part(fresh)?, k.min(fresh.len() - 1));
        let graph = self.descent.of_part(fresh.len()).build_in(&part, k)?;
        if Odd::on_host(&part, &graph)?.spots.is_some() {
            return Ok(None);
        }
        let list = |place: usize| graph.neighbors(place).iter().map(|&near| fresh[near as usize]).collect();
        Ok(Some((0..fresh.len()).map(list).collect()))
    }
}

impl<'a> IndexUpdate<'a> {
    /// An update of `index` with its own [builder](Builder::like).
    ///
    /// # Errors
    /// As [`Builder::like`].
    pub fn new(index: &'a Index) -> Result<Self> {
        Ok(Self::with(index, Builder::like(index)?))
    }

    /// An update of `index`, which `builder` has built.
    pub fn with(index: &'a Index, builder: Builder) -> Self {
        Self { index, builder, removed: IdSet::new(0), replaced: IdSet::new(0) }
    }

    /// Removes the rows of `ids`. Rows that are not in the index stay out.
    #[must_use]
    pub fn remove(mut self, ids: IdSet) -> Self {
        self.removed = ids;
        self
    }

    /// The rows of `ids` have other vectors than the index knows, or come back after they were
    /// removed.
    #[must_use]
    pub fn replace(mut self, ids: IdSet) -> Self {
        self.replaced = ids;
        self
    }

    /// Sets the device. A GPU builds the index anew.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.builder = self.builder.device(device);
        self
    }

    /// Sets the handle that watches and cancels the update.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.builder = self.builder.progress(progress);
        self
    }

    /// Makes the index of `base`: the rows of the index first, then the rows to insert.
    ///
    /// # Errors
    /// If `base` has fewer rows than the index, rows of another shape, other vectors where none
    /// were [replaced](Self::replace), a row that is removed and replaced, or no row that stays; if
    /// the file of the index is damaged; or as [`Builder::build`].
    pub fn run(self, base: &Vectors) -> Result<(Index, UpdateStats)> {
        let Self { index, builder, removed, replaced } = self;
        let (known, rows) = (index.len(), base.len());
        if rows < known {
            let expected = format!("at least the {known} of {}", index.describe());
            return Err(Error::mismatch(base.describe(), format_args!("{rows} rows"), expected));
        }
        builder.check_fit(index, &index.describe(), base)?;
        // Rows of a damaged file would get new checksums.
        index.verify(&builder.descent.progress.unwatched())?;
        for (name, set) in [("remove", &removed), ("replace", &replaced)] {
            if let Some(row) = set.iter().last().filter(|&row| row as usize >= known) {
                return Err(Error::argument(name, row, format_args!("a row below the {known} of the index")));
            }
        }
        if let Some(row) = removed.iter().find(|&row| replaced.contains(row)) {
            return Err(Error::argument("remove", row, "a row that is not replaced too"));
        }
        // The values of replaced rows differ, so those of the others cannot be told by their hash.
        if replaced.is_empty() {
            index.check_base(&base.part(0..known)?)?;
        }
        let (mut live, mut fresh) = (IdSet::all(rows), IdSet::new(rows));
        index.left_out().into_iter().flat_map(IdSet::iter).try_for_each(|row| live.remove(row).map(drop))?;
        let mut gone = 0;
        removed.iter().try_for_each(|row| live.remove(row).map(|was_in| gone += u64::from(was_in)))?;
        for row in (known as u32..rows as u32).chain(replaced.iter()) {
            live.insert(row)?;
            fresh.insert(row)?;
        }
        if live.is_empty() {
            return Err(Error::argument("remove", "every row", "at least one row that stays"));
        }
        let inserted = fresh.len() as u64;

        let all_inserted = index.inserted() + inserted;
        // Rows that were there get few edges to later ones that are near to them but have nearer
        // ones themselves.
        let is_on_gpu = builder.is_on_gpu(live.len(), base.dim())?;
        let is_anew = is_on_gpu || all_inserted > live.len() as u64 / 2 || index.spots().is_some();
        let builder = builder.up_to(live.len()).among(live);
        let (builder, given) = if is_anew {
            (builder, Given::Nothing)
        } else {
            // Codes would only choose edges that distances of the vectors choose better.
            let parts = vec![Part { index, first: 0 }];
            (builder.compressed(None), Given::Index(Earlier { parts, fresh: &fresh }))
        };
        let Built { index: updated, stats } = builder.build_any(base, given)?;
        let updated = updated.described_like(index, stats.mended.map_or(0, |_| all_inserted));
        Ok((updated, UpdateStats { inserted, removed: gone, mended: stats.mended, build: stats }))
    }
}
