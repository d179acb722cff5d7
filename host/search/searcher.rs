//! The public face of searches.

use std::sync::Arc;

use tagore_device::search::beam::search::SEARCH_THREADS;

use super::engine::Engine;
use super::{Neighbor, ResidentIndex, Search, SearchCodes, SearchResult};
use crate::held::Held;
use crate::index::Index;
use crate::quantize::{ScalarQuantizer, Use};
use crate::{Device, DeviceResults, Error, Progress, Result, Vectors};

/// Maximum number of nodes that a search on a GPU expands per step.
pub const MAX_WIDTH: usize = (SEARCH_THREADS / 32) as usize;

/// An index and its base, checked and prepared once for any number of searches.
///
/// A searcher shares both: they are neither copied nor borrowed (under cosine it holds the
/// normalised rows beside them). Clones are cheap and share everything, also memory on a GPU. All
/// searches take `&self` and may run on any threads at the same time, as in a service
/// (`examples/service`). On a CPU each search at a time has scratch memory, n / 8 bytes for n rows
/// and a little more, which the next search uses again. Searches on one GPU take turns, and so do
/// those that several GPUs share.
///
/// ```
/// use std::sync::Arc;
/// use tagore::{Builder, Progress, Search, Searcher, Strategy, Synth};
/// let synth = Synth::new(1000, 16, 1)?;
/// let (base, queries) = (Arc::new(synth.base()), synth.queries(10));
/// let index = Builder::new(Strategy::cagra()).build(&base)?;
/// let searcher = Searcher::new(index, base, &Progress::silent())?;
/// for beam in [20, 50] {
///     let result = searcher.search(&queries, Search::new(10).beam(beam), &Progress::silent())?;
///     let one = searcher.search_one(&queries.row_to_f32(0)?, Search::new(10).beam(beam))?;
///     assert_eq!(result.neighbors(0).collect::<Vec<_>>(), one);
/// }
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone)]
pub struct Searcher {
    engine: Engine<'static>,
}

impl Searcher {
    /// Checks that `index` was built over `base` and that both are sound, and normalises the base
    /// under cosine. Searches run on the CPU.
    ///
    /// # Errors
    /// If `index` was built over other data or holds an unknown id, a value is not finite or too
    /// large or too small for the metric, or the work is cancelled.
    pub fn new(
        index: impl Into<Arc<Index>>,
        base: impl Into<Arc<Vectors>>,
        progress: &Progress,
    ) -> Result<Self> {
        let (index, base) = (Held::Shared(index.into()), Held::Shared(base.into()));
        Ok(Self { engine: Engine::new(index, base, progress)? })
    }

    /// Searches on `device`. This copies index and base to a GPU, where they stay. `Auto` takes a
    /// GPU, if any, unless the index is small.
    ///
    /// # Errors
    /// If the device is missing, or lacks memory for index and base.
    pub fn device(self, device: Device) -> Result<Self> {
        self.devices(&[device])
    }

    /// Searches on all of `devices` at once: one, or several GPUs, each named once. This copies
    /// index and base to each. Each takes an even range of the queries of a
    /// [`search`](Self::search); results are those of one GPU, in the order of the queries.
    /// [`search_one`](Self::search_one) runs on the first. Several GPUs are served by threads of
    /// the searcher's own.
    ///
    /// # Errors
    /// If one of several devices is not a GPU or is named twice, or a device is missing or lacks
    /// memory for index and base.
    pub fn devices(self, devices: &[Device]) -> Result<Self> {
        Ok(Self { engine: self.engine.devices(devices)? })
    }

    /// Searches on the GPU where the build of this index has left it and its base: nothing is
    /// copied.
    ///
    /// # Errors
    /// If `there` is neither the index nor a clone. An index read from a file is another.
    pub fn resident(self, there: &ResidentIndex) -> Result<Self> {
        Ok(Self { engine: self.engine.resident(there)? })
    }

    /// Walks on codes in place of the vectors. Distances are those of the vectors, and nearly the
    /// same rows are found.
    ///
    /// - [`SearchCodes::Rows`]: one or two bytes per component: less memory to read, so bytes are
    ///   faster where vectors have hundreds of components of f32. The nearest nodes found are then
    ///   compared by the vectors themselves ([`rerank`](Self::rerank)). A GPU holds the codes, and
    ///   the vectors too if it has room; else these are read from host memory.
    /// - [`SearchCodes::Edges`]: a bit per component for each edge, beside the vectors. The first
    ///   search makes the codes, a GPU when it gets the index. They take, for each node, the
    ///   degree (up to a multiple of 16) times 8 bytes and an eighth of a byte per component:
    ///   768 bytes for degree 32 and 128 components. A search expands about as many nodes, and
    ///   reads only the vectors of these. At one beam it finds fewer neighbours; at one recall it
    ///   is faster on a GPU, and on a CPU where vectors are long (`docs/search.md`). Searches with
    ///   a filter walk on the vectors. A GPU expands a node at a time, whatever the
    ///   [width](Self::width).
    ///
    /// # Errors
    /// If codes of rows would not be smaller than the vectors, codes of edges are asked for an
    /// index with dense spots, or the device lacks memory.
    pub fn compressed(self, codes: impl Into<SearchCodes>) -> Result<Self> {
        Ok(Self { engine: self.engine.compressed(codes.into())? })
    }

    /// The recall of [codes](Self::compressed), measured on a sample of the rows; none without
    /// codes. It is the share of the ten nearest rows that are among the 32 nearest by codes, fewer
    /// than a search reranks by default. Queries that codes do not hold, far from most rows, are
    /// searched for on the vectors, and count as found.
    pub fn code_recall(&self) -> Option<f64> {
        self.engine.quantizer().map(ScalarQuantizer::recall)
    }

    /// A warning, in one line, if the [recall of the codes](Self::code_recall) is so low that
    /// searches on the vectors find more.
    pub fn code_warning(&self) -> Option<String> {
        self.engine.quantizer().and_then(|quantizer| quantizer.warning(Use::Search))
    }

    /// Sets how many nodes of its beam a search on [codes](Self::compressed) compares by the
    /// vectors themselves: at least k and at most the beam, whatever is set; 128 unless set, or 2 k
    /// if that is more.
    #[must_use]
    pub fn rerank(mut self, nodes: usize) -> Self {
        self.engine.rerank = Some(nodes);
        self
    }

    /// Sets the nodes that a search on a GPU expands per step: 1 to [`MAX_WIDTH`], 1 unless set. At
    /// width 1 the results are those of the CPU, bit for bit. A larger width takes fewer and larger
    /// steps: the latency of small batches falls, and the results are nearly the same or slightly
    /// better.
    ///
    /// # Errors
    /// If `width` is out of that range.
    pub fn width(mut self, width: usize) -> Result<Self> {
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(Error::argument("width", width, format_args!("1 to {MAX_WIDTH}")));
        }
        self.engine.width = width;
        Ok(self)
    }

    /// Sets the queries per batch on a GPU: at least 1, 65,536 unless set. At 1 each query is
    /// searched by itself.
    #[must_use]
    pub fn batch(mut self, queries: usize) -> Self {
        self.engine.batch = queries.max(1);
        self
    }

    /// The device of the searches, such as `cpu` or `cuda:0`, or several as `cuda:0,cuda:1`.
    pub fn runs_on(&self) -> &str {
        self.engine.runs_on()
    }

    /// The name of the first GPU of the searches, such as `NVIDIA H200`, if any.
    pub fn device_name(&self) -> Option<&str> {
        self.engine.device_name()
    }

    /// The index.
    pub fn index(&self) -> &Index {
        self.engine.index()
    }

    /// The base.
    pub fn base(&self) -> &Vectors {
        self.engine.base()
    }

    /// Finds the nearest rows of the base for each of `queries` by beam search, in parallel over
    /// queries on the calling rayon pool, or on a GPU.
    ///
    /// # Errors
    /// If the queries or the filter do not fit the base, k is not in 1..=n, the beam is below k or
    /// above the device's limit, the radius or a value is not a number, a value is out of range,
    /// the device lacks memory, or the work is cancelled.
    pub fn search(&self, queries: &Vectors, search: Search<'_>, progress: &Progress) -> Result<SearchResult> {
        self.engine.run(&self.engine.space().queries(queries, progress)?, search, progress)
    }

    /// As [`search`](Self::search), and leaves the results in the memory of a device: k ids and
    /// distances per query. Where the search runs on that device and has no radius, and no rows are
    /// [repeated](Index::repeated), they never come to the host, and slots stay empty if the graph
    /// leads to fewer than k rows. Returns once they are written.
    ///
    /// # Errors
    /// As [`search`](Self::search), or if the searches run on several devices, or the device of the
    /// results cannot be opened or its memory has too little room for them.
    pub fn search_into(
        &self,
        queries: &Vectors,
        search: Search<'_>,
        results: &DeviceResults,
        progress: &Progress,
    ) -> Result<()> {
        self.engine.run_into(queries, search, results, progress)
    }

    /// Finds the nearest rows of the base for one `query`, nearest first, on the calling thread or
    /// on the (first) GPU: the answer of [`search`](Self::search), without empty slots. On a CPU
    /// this allocates nothing but its answer once as many threads have searched as search at a
    /// time.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    pub fn search_one(&self, query: &[f32], search: Search<'_>) -> Result<Vec<Neighbor>> {
        self.engine.run_one(query, search)
    }

    pub(crate) fn engine(&self) -> &Engine<'static> {
        &self.engine
    }
}

impl std::fmt::Debug for Searcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (index, base) = (self.index(), self.base());
        let (kind, rows, dim, device) = (index.kind(), base.len(), base.dim(), self.runs_on());
        write!(f, "Searcher {{ {kind} of {rows} x {dim} on {device} }}")
    }
}
