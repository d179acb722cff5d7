//! Searches of an index on a device.

use std::sync::{Arc, Once};

use tagore_device::key::{self, Key, NO_ID};

use super::answer::Answer;
use super::breadth::Breadth;
use super::codes::{Codes, SearchCodes};
use super::cpu::{LeftOut, OnCodes, Walk};
use super::exact::gpu::MAX_K;
use super::exact::{nearest_among, nearest_among_on, nearest_among_there};
use super::gpu::{Among, BatchLimits, KeysTo, OnGpus};
use super::options::{GPU_BYTE_ROWS_PER_NODE, GPU_ROWS_PER_NODE, ROWS_PER_NODE, Search};
use super::passing::Passing;
use super::pool::{Pool, Scratch};
use super::resident::ResidentIndex;
use super::result::{Neighbor, SearchResult};
use crate::gpu::{Gpus, SharedTimes};
use crate::held::Held;
use crate::index::Index;
use crate::memory::{collected, filled};
use crate::quantize::ScalarQuantizer;
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::vectors::{Access, DeviceResults};
use crate::{Device, Error, Progress, Result, Vectors};

/// The kind whose edges lead both ways: an edge to a node is the node's own, and goes with it.
const UNDIRECTED: &str = "dpg";

/// Queries per batch on a GPU unless set.
const BATCH: usize = 1 << 16;

/// An index and its base, checked and prepared.
pub(super) struct Prepared<'a> {
    pub index: Held<'a, Index>,
    pub base: Held<'a, Vectors>,
    pub space: Space<'a>,
    pub pool: Pool,
    advised: Once,
}

/// Searches of an index on one or more devices. Clones share index, base and memory of the devices.
#[derive(Clone)]
pub(crate) struct Engine<'a> {
    prepared: Arc<Prepared<'a>>,
    /// None on the CPU.
    on_gpus: Option<Arc<OnGpus>>,
    /// The codes that searches walk on, if any.
    codes: Option<Codes>,
    /// Nodes of a beam that a search on codes reranks.
    pub(super) rerank: Option<usize>,
    /// Whether the CPU may take searches that exceed the limits of the GPU.
    is_auto: bool,
    /// Nodes that a GPU expands per step.
    pub(super) width: usize,
    /// Queries per batch on a GPU.
    pub(super) batch: usize,
    /// In tests of walks, what [`rows_per_node`](Self::rows_per_node) returns.
    pub(super) rows_per_node: Option<f64>,
}

/// How a search runs.
struct Way<'a> {
    /// Whether it is exact search over the passing rows, not beam search.
    is_exact: bool,
    /// The nodes of a beam search with a filter.
    among: Option<Passing<'a>>,
}

/// Results of a batch.
#[derive(Default)]
pub(super) struct Found {
    /// k keys per query.
    pub keys: Vec<Key>,
    /// Queries whose walks found fewer rows than there are, ascending.
    pub short: Vec<u32>,
    /// Queries that a GPU leaves to the CPU, ascending: their searches go on in dense spots, or
    /// codes do not hold them.
    pub left: Vec<u32>,
    /// Distances computed.
    pub computed: u64,
    pub times: SharedTimes,
}

/// Writes `rows` to the slots of an answer; empty slots after them.
pub(super) fn fill(slots: &mut [Key], rows: &[Key]) {
    let (found, empty) = slots.split_at_mut(rows.len());
    found.copy_from_slice(rows);
    empty.fill(key::NONE);
}

impl<'a> Engine<'a> {
    /// Checks and prepares an index and its base ([`Searcher::new`](super::Searcher::new)).
    pub(crate) fn new(index: Held<'a, Index>, base: Held<'a, Vectors>, progress: &Progress) -> Result<Self> {
        index.check_base(&base)?;
        index.check_ids(progress)?;
        let space = Space::prepare(base.clone(), index.metric(), progress)?;
        let pool = Pool::new(index.len());
        let prepared = Arc::new(Prepared { index, base, space, pool, advised: Once::new() });
        Ok(Self {
            prepared,
            on_gpus: None,
            codes: None,
            rerank: None,
            is_auto: false,
            width: 1,
            batch: BATCH,
            rows_per_node: None,
        })
    }

    /// [`Searcher::devices`](super::Searcher::devices).
    pub(crate) fn devices(mut self, devices: &[Device]) -> Result<Self> {
        let Prepared { index, space, .. } = &*self.prepared;
        let gpus = Device::gpus(devices, |device| device.for_dim(space.dim())?.gpu_for_graph(index.len()))?;
        let on_gpus = |gpus| OnGpus::new(gpus, space, index, self.codes.as_ref()).map(Arc::new);
        self.on_gpus = gpus.map(on_gpus).transpose()?;
        self.is_auto = matches!(devices, [] | [Device::Auto]);
        Ok(self)
    }

    /// [`Searcher::resident`](super::Searcher::resident).
    pub(crate) fn resident(mut self, there: &ResidentIndex) -> Result<Self> {
        self.on_gpus = Some(Arc::clone(there.on_gpus_for(&self.prepared.index)?));
        (self.is_auto, self.codes) = (false, None);
        Ok(self)
    }

    /// [`Searcher::compressed`](super::Searcher::compressed).
    pub(crate) fn compressed(mut self, codes: SearchCodes) -> Result<Self> {
        let Prepared { index, space, .. } = &*self.prepared;
        self.codes = Some(Codes::new(space, index, codes)?);
        if let Some(on_gpus) = self.on_gpus.take() {
            let gpus = Gpus::new(on_gpus.gpus().all().to_vec())?;
            // Frees the vectors first.
            drop(on_gpus);
            self.on_gpus = Some(Arc::new(OnGpus::new(gpus, space, index, self.codes.as_ref())?));
        }
        Ok(self)
    }

    /// What makes the codes that searches walk on, if any.
    pub(super) fn quantizer(&self) -> Option<&ScalarQuantizer> {
        self.codes.as_ref().and_then(Codes::rows).map(|coded| coded.quantizer())
    }

    /// The GPUs of the searches, if any.
    pub(crate) fn gpus(&self) -> Option<&Gpus> {
        self.on_gpus.as_ref().map(|on_gpus| on_gpus.gpus())
    }

    pub(crate) fn runs_on(&self) -> &str {
        self.gpus().map_or("cpu", Gpus::name)
    }

    /// The one GPU that holds the base itself, not codes of it, if `device` may be that GPU.
    pub(crate) fn base_on(&self, device: Device) -> Option<&Arc<OnGpus>> {
        let there = self.on_gpus.as_ref().filter(|there| there.gpus().all().len() == 1)?;
        (self.codes.is_none() && device.may_be(there.gpus().name())).then_some(there)
    }

    pub(super) fn device_name(&self) -> Option<&str> {
        self.gpus().and_then(|gpus| gpus.first().device_name())
    }

    pub(crate) fn index(&self) -> &Index {
        &self.prepared.index
    }

    /// The base as given; the space may hold its rows normalised.
    pub(crate) fn base(&self) -> &Vectors {
        &self.prepared.base
    }

    pub(crate) fn space(&self) -> &Space<'a> {
        &self.prepared.space
    }

    /// The way of a search.
    fn way<'b>(&'b self, search: &Search<'b>) -> Way<'b> {
        let Some(filter) = search.filter else { return Way { is_exact: false, among: None } };
        let n = self.base().len();
        let share = filter.share(n);
        let is_few = search.passes_few(share, n, self.rows_per_node(search.k));
        let among = if is_few { None } else { Passing::new(filter, share, self.index()) };
        Way { is_exact: among.is_none(), among }
    }

    /// Distances of an exact search for `k` rows that take as long as one node of a beam.
    fn rows_per_node(&self, k: usize) -> f64 {
        let there = self.on_gpus.as_ref().map(|on_gpus| on_gpus.first());
        let usual = match there.filter(|there| there.holds_vectors() && k <= MAX_K) {
            Some(there) if there.holds_bytes() => GPU_BYTE_ROWS_PER_NODE,
            Some(_) => GPU_ROWS_PER_NODE,
            None => ROWS_PER_NODE,
        };
        self.rows_per_node.unwrap_or(usual)
    }

    /// The GPUs for a search; none for the CPU.
    fn gpus_for<'b>(
        &self,
        search: &Search<'_>,
        way: &'b Way<'_>,
    ) -> Result<Option<(&OnGpus, BatchLimits<'b>)>> {
        let Some(on_gpus) = &self.on_gpus else { return Ok(None) };
        let (Prepared { index, space, .. }, mut among) = (&*self.prepared, None);
        if let Some(passing) = &way.among {
            among = Some(Among { words: passing.words(index.len())?, entries: passing.entries() });
        }
        let breadth = match way.is_exact {
            true => Breadth::fixed(search.k),
            false => self.breadth(search, way.among.as_ref()),
        };
        // The host picks the answer from the whole beam.
        let takes_beam = Answer::new(search, index).takes_beam();
        let k = if takes_beam { breadth.kept } else { search.k };
        let walked = if self.is_on_rows() { search.reranked(breadth.kept, self.rerank) } else { k };
        let limits = BatchLimits { among, k, walked, breadth, width: self.width, batch: self.batch };
        let is_for_cpu = !way.is_exact && self.is_auto && !on_gpus.first().supports(space, limits);
        Ok((!is_for_cpu).then_some((on_gpus, limits)))
    }

    /// The breadth of a search.
    fn breadth(&self, search: &Search<'_>, among: Option<&Passing<'_>>) -> Breadth {
        let growth = Breadth::growth(self.index(), self.is_on_rows());
        let beam = search.beam_width();
        let beam = among.map_or(beam, |passing| passing.beam(beam, self.index().max_degree()));
        let beam = beam.min(self.base().len());
        // A beam of all nodes is asked for to expand them.
        if beam >= self.base().len() {
            return Breadth::fixed(beam);
        }
        Breadth::adaptive(search.k, beam, self.index().metric(), growth)
    }

    /// Whether searches walk on codes of rows.
    fn is_on_rows(&self) -> bool {
        self.codes.as_ref().is_some_and(|codes| codes.rows().is_some())
    }

    /// The walk of a search on the CPU. Without codes nothing is allocated.
    fn walk<'b>(
        &'b self,
        search: &Search<'_>,
        among: Option<&'b Passing<'b>>,
        progress: Option<&Progress>,
    ) -> Result<Walk<'b>> {
        let plain = Walk::plain(self.breadth(search, among), among);
        let Prepared { index, space, .. } = &*self.prepared;
        let Some(codes) = &self.codes else { return Ok(plain) };
        let silent = Progress::silent();
        let progress = progress.unwrap_or(&silent);
        let coded = match codes {
            Codes::Edges(_) if among.is_some() => return Ok(plain),
            Codes::Edges(codes) => {
                let rows = codes.rows(space, index, progress)?;
                return Ok(Walk { on_edges: Some((codes, rows)), ..plain });
            }
            Codes::Rows(coded) => coded,
        };
        let codes = coded.get_or_make(space, progress)?;
        let reranked = search.reranked(plain.breadth.kept, self.rerank);
        Ok(Walk { on_codes: Some(OnCodes { coded, codes, reranked }), ..plain })
    }

    /// Searches for each of `queries`.
    pub(crate) fn run(
        &self,
        queries: &Queries<'_>,
        search: Search<'_>,
        progress: &Progress,
    ) -> Result<SearchResult> {
        let found = self.find(queries, search, progress)?;
        SearchResult::new(search.k, &found.keys, found.computed, found.times)
    }

    /// Searches on the CPU for `k` rows near queries that are `rows` of the base, with each of
    /// `beams`, as if the row of each query were not there. One more result than `k` may be the row
    /// itself, if equal rows are its node too. Returns the results of each beam, without a count of
    /// distances.
    pub(crate) fn run_without_rows(
        &self,
        queries: &Queries<'_>,
        rows: &[u32],
        k: usize,
        beams: &[usize],
        progress: &Progress,
    ) -> Result<Vec<SearchResult>> {
        let Prepared { index, base, space, .. } = &*self.prepared;
        space.vectors().on_host()?;
        queries.vectors().on_host()?;
        let repeated = index.repeated();
        let is_alone = |row: u32| !repeated.contains(row) && repeated.copies_of(row).len() == 0;
        let nodes: Vec<u32> = rows.iter().map(|&row| if is_alone(row) { row } else { NO_ID }).collect();
        let left_out = LeftOut { nodes: &nodes, is_bridged: index.kind() != UNDIRECTED };
        let one_more = (k + 1).min(base.len());
        let answer = Answer::new(&Search::new(one_more), index);
        let walk = |&beam: &usize| Walk::plain(self.breadth(&Search::new(k).beam(beam), None), None);
        let walks: Vec<Walk> = beams.iter().map(walk).collect();
        let keys = self.prepared.walk_all(queries, &answer, &walks, Some(left_out), progress)?.keys;
        let found = |place: usize| {
            let keys = keys.chunks_exact(one_more).skip(place).step_by(beams.len());
            SearchResult::new(
                one_more,
                &keys.flatten().copied().collect::<Vec<_>>(),
                0,
                SharedTimes::default(),
            )
        };
        (0..beams.len()).map(found).collect()
    }

    /// Searches for each of `queries`, and leaves the results on a device: on that of the search
    /// they do not pass the host, unless it has to pick them from those found.
    pub(super) fn run_into(
        &self,
        queries: &Vectors,
        search: Search<'_>,
        results: &DeviceResults,
        progress: &Progress,
    ) -> Result<()> {
        let Prepared { index, base, space, .. } = &*self.prepared;
        search.check(base)?;
        if let Some(gpus) = self.gpus().filter(|gpus| gpus.all().len() > 1) {
            let found = format_args!("{} for results on a device", gpus.name());
            return Err(Error::argument("device", found, "one device"));
        }
        results.check(queries.len().saturating_mul(search.k))?;
        let way = self.way(&search);
        let is_plain = Answer::new(&search, index).is_plain();
        if let (false, Some((on_gpus, limits)), true) =
            (way.is_exact, self.gpus_for(&search, &way)?, is_plain)
            && results.is_on(on_gpus.gpus().first())
        {
            let on_gpu = on_gpus.first();
            let begin = |queries: &Queries<'_>| {
                let stage = progress.stage("search", queries.len() as u64);
                on_gpu.search(space, queries, limits, KeysTo::Device(results), &stage)
            };
            let early = if on_gpu.takes_early() { space.early_queries(queries) } else { None };
            if let Some(early) = early {
                let begun = begin(&early);
                let checked = on_gpu.second_stream().and_then(|gpu| space.check_early(queries, gpu));
                // The results are written until here, whatever was found.
                on_gpu.synchronize()?;
                checked.and(begun)?;
                // Other values than bytes have been searched for as if they were.
                if !on_gpu.expects_bytes() || queries.are_bytes() {
                    return Ok(());
                }
            }
            let begun = begin(&space.queries(queries, progress)?);
            on_gpu.synchronize()?;
            if begun?.not_held.is_empty() {
                return Ok(());
            }
        }
        let queries = space.queries(queries, progress)?;
        results.write_keys(&self.find(&queries, search, progress)?.keys)
    }

    /// Finds the keys of each of `queries`.
    fn find(&self, queries: &Queries<'_>, search: Search<'_>, progress: &Progress) -> Result<Found> {
        let Prepared { index, base, space, .. } = &*self.prepared;
        search.check(base)?;
        let (way, k) = (self.way(&search), search.k);
        let answer = Answer::new(&search, index);
        let on_gpus = self.gpus_for(&search, &way)?;
        let among = way.among.as_ref();
        let mut found = match (way.is_exact, on_gpus) {
            (false, None) => {
                space.vectors().on_host()?;
                queries.vectors().on_host()?;
                let walk = self.walk(&search, among, Some(progress))?;
                self.prepared.walk_all(queries, &answer, &[walk], None, progress)?
            }
            (false, Some((on_gpus, limits))) => {
                let mut found = on_gpus.search(space, queries, &answer, limits, progress)?;
                if !found.left.is_empty() {
                    space.vectors().on_host()?;
                    queries.vectors().on_host()?;
                    let walk = match index.spots() {
                        Some(_) => self.walk(&search, among, Some(progress))?,
                        None => Walk::plain(limits.breadth, among),
                    };
                    self.prepared.walk_left(queries, &answer, walk, &mut found, progress)?;
                }
                found
            }
            (true, _) => Found {
                keys: filled(key::NONE, queries.len() * k)?,
                short: collected(0..queries.len() as u32)?,
                ..Found::default()
            },
        };
        if !found.short.is_empty() {
            // Too few queries remain of a walk to upload the passing rows for.
            let there = self.on_gpus.as_deref().filter(|_| way.is_exact);
            self.search_passing(queries, &answer, there, &mut found, progress)?;
        }
        Ok(found)
    }

    /// Answers the queries that are `short` by exact search over the rows that pass.
    fn search_passing(
        &self,
        queries: &Queries<'_>,
        answer: &Answer<'_>,
        there: Option<&OnGpus>,
        found: &mut Found,
        progress: &Progress,
    ) -> Result<()> {
        let Prepared { index, base, space, .. } = &*self.prepared;
        let (mut ids, k) = (Vec::new(), answer.k());
        answer.each_passing(base.len(), |id| ids.extend((!index.is_left_out(id)).then_some(id)));
        let keys = match there {
            Some(there) if (1..=MAX_K).contains(&k.min(ids.len())) => {
                let measurements = SharedTimes::begin(there.gpus().all())?;
                let keys = if there.first().holds_vectors() {
                    nearest_among_there(there, space, &ids, queries, k, progress)?
                } else {
                    let rows = Space::owned(base.select(&ids)?, space.metric(), progress)?;
                    nearest_among_on(there.gpus(), &rows, &ids, queries, k, progress)?
                };
                found.times = SharedTimes::end(measurements)?;
                keys
            }
            _ => {
                space.vectors().on_host()?;
                queries.vectors().on_host()?;
                nearest_among(space, queries, &found.short, &ids, k, progress)?
            }
        };
        found.computed += found.short.len() as u64 * ids.len() as u64;
        for (&query, row) in found.short.iter().zip(keys.chunks_exact(k)) {
            let within = row.partition_point(|&key| answer.is_within(key));
            fill(&mut found.keys[query as usize * k..][..k], &row[..within]);
        }
        Ok(())
    }

    /// Searches for one query.
    pub(crate) fn run_one(&self, row: &[f32], search: Search<'_>) -> Result<Vec<Neighbor>> {
        let Prepared { index, base, space, pool, advised } = &*self.prepared;
        search.check(base)?;
        let way = self.way(&search);
        let answer = Answer::new(&search, index);
        if let Some((on_gpus, limits)) = self.gpus_for(&search, &way)? {
            let silent = Progress::silent();
            let queries = Vectors::from_f32(row.to_vec(), row.len())?;
            let queries = space.queries(&queries, &silent)?;
            if way.is_exact || !answer.is_plain() {
                return Ok(self.run(&queries, search, &silent)?.neighbors(0).collect());
            }
            let (mut keys, stage) = (vec![key::NONE; search.k], silent.stage("search", 1));
            let work = on_gpus.first().search(space, &queries, limits, KeysTo::One(&mut keys), &stage)?;
            if !answer.is_complete(&keys) || !work.not_held.is_empty() {
                return Ok(self.run(&queries, search, &silent)?.neighbors(0).collect());
            }
            return Ok(keys.into_iter().take_while(|&key| key != key::NONE).map(Neighbor::new).collect());
        }
        space.vectors().on_host()?;
        advised.call_once(|| {
            index.advise(Access::AtRandom);
            space.advise(Access::AtRandom);
        });
        pool.check_room(1)?;
        let mut scratch = pool.take();
        let mut buffer = std::mem::take(&mut scratch.query);
        let query = space.query_of(row, &mut buffer)?;
        let mut is_complete = false;
        if !way.is_exact {
            let walk = self.walk(&search, way.among.as_ref(), None)?;
            is_complete = self.prepared.walk(query, &answer, walk, &mut scratch);
        }
        if !is_complete {
            let Scratch { search, rows, .. } = &mut *scratch;
            search.scan(space, query, answer.k(), |with| {
                answer.each_passing(base.len(), |id| {
                    if !index.is_left_out(id) {
                        with(id)
                    }
                });
            });
            rows.clear();
            rows.extend(search.found().take_while(|&key| answer.is_within(key)));
        }
        let found = scratch.rows.iter().map(|&key| Neighbor::new(key)).collect();
        scratch.query = buffer;
        Ok(found)
    }
}
