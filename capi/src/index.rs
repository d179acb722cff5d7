//! Indexes: files, rows and reports.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use serde_json::json;
use tagore::{
    BuildCost, Device, IdSet, Index, KnnSample, Measure, Metric, Report, RowSink, StoreError, check_room,
};

use crate::knn_graph::check_row;
use crate::pointers::{Context, Input, Output, make_text, path, read, required, structs, text_if, write};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, Result, call, free, make, tagore_status};
use crate::vectors::{returned, tagore_vectors};

/// A metric: one of TAGORE_L2, TAGORE_INNER_PRODUCT, TAGORE_COSINE.
pub type tagore_metric = i32;

/// Squared Euclidean distance.
pub const TAGORE_L2: tagore_metric = 0;
/// Inner product; distances are its negative.
pub const TAGORE_INNER_PRODUCT: tagore_metric = 1;
/// Cosine; distances are 1 - cos.
pub const TAGORE_COSINE: tagore_metric = 2;

/// An index, read only: any number of threads use it at the same time. It holds no vectors.
pub struct tagore_index {
    pub(crate) index: Arc<Index>,
    /// The measurements of a build, for the report.
    pub(crate) built: Option<Built>,
}

/// The measurements of a build.
pub(crate) struct Built {
    pub cost: BuildCost,
    pub sample: KnnSample,
}

/// Sizes of an index.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_index_info {
    /// sizeof(tagore_index_info), set before the call.
    pub size: usize,
    /// The number of nodes, n.
    pub nodes: usize,
    /// The largest degree allowed.
    pub max_degree: usize,
    /// The mean degree.
    pub mean_degree: f64,
    /// The number of entry points.
    pub entries: usize,
    /// The number of layers above the graph.
    pub layers: usize,
    /// The number of rows that repeat an earlier row, and are found with it.
    pub repeated: usize,
    /// The number of rows that were left out of the build, or removed.
    pub left_out: usize,
    /// The metric.
    pub metric: tagore_metric,
    /// 0
    pub reserved: i32,
}

/// Takes the entry points, once, before all rows. Returns 0, or the program's code of a failure.
pub type tagore_take_entries =
    Option<unsafe extern "C" fn(context: *mut c_void, entries: *const u32, count: usize) -> i32>;

/// Takes the neighbours of a node, for nodes 0 to n - 1 in this order. Returns 0, or the program's
/// code of a failure.
pub type tagore_take_row =
    Option<unsafe extern "C" fn(context: *mut c_void, node: u32, neighbors: *const u32, count: usize) -> i32>;

/// A store that takes the rows of a graph, on the calling thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_row_sink {
    /// sizeof(tagore_row_sink)
    pub size: usize,
    /// Takes the entry points; null to leave them out.
    pub entries: tagore_take_entries,
    /// Takes a row.
    pub row: tagore_take_row,
    /// Handed to both.
    pub context: *mut c_void,
}

structs!(tagore_index_info, tagore_row_sink);

impl tagore_index {
    pub(crate) fn opened(index: Index) -> Self {
        Self { index: Arc::new(index), built: None }
    }
}

pub(crate) fn metric_of(given: tagore_metric) -> Result<Metric> {
    match given {
        TAGORE_L2 => Ok(Metric::L2),
        TAGORE_INNER_PRODUCT => Ok(Metric::InnerProduct),
        TAGORE_COSINE => Ok(Metric::Cosine),
        _ => Err(Failure::argument("metric", given, "TAGORE_L2, TAGORE_INNER_PRODUCT or TAGORE_COSINE")),
    }
}

pub(crate) fn name_of_metric(metric: Metric) -> tagore_metric {
    match metric {
        Metric::L2 => TAGORE_L2,
        Metric::InnerProduct => TAGORE_INNER_PRODUCT,
        Metric::Cosine => TAGORE_COSINE,
    }
}

/// Maps an index file, which tagore_index_save or `tagore build` wrote. The file must not change or
/// shrink while a handle uses it.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_open(
    file: Input<'_, c_char>,
    out: Option<&mut MaybeUninit<*mut tagore_index>>,
) -> tagore_status {
    make(out, || {
        let file = path(file, "file")?;
        // SAFETY: by the header, the file does not change while a handle uses it.
        Ok(tagore_index::opened(unsafe { Index::map(file) }?))
    })
}

/// Writes an index to a file, which appears when it is complete.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_save(index: Option<&tagore_index>, file: Input<'_, c_char>) -> tagore_status {
    call(|| {
        check_room(0)?;
        Ok(required(index, "index")?.index.save(path(file, "file")?)?)
    })
}

/// Sizes of an index.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_get_info(
    index: Option<&tagore_index>,
    info: Output<'_, tagore_index_info>,
) -> tagore_status {
    call(|| {
        let index = &required(index, "index")?.index;
        write(info, |size| tagore_index_info {
            size,
            nodes: index.len(),
            max_degree: index.max_degree(),
            mean_degree: index.mean_degree(),
            entries: index.entries().len(),
            layers: index.layers().len(),
            repeated: index.repeated().len(),
            left_out: index.left_out().map_or(0, IdSet::len),
            metric: name_of_metric(index.metric()),
            reserved: 0,
        })
    })
}

/// Kind, metric, seed and parameters of an index, and the fingerprint of its vectors, as JSON.
/// tagore_text_free frees the text.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_describe(
    index: Option<&tagore_index>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> tagore_status {
    make_text(out, || {
        let index = &required(index, "index")?.index;
        let mut text = json!(index.description());
        text["fingerprint"] = json!(index.fingerprint());
        Ok(text.to_string())
    })
}

/// The neighbours of a node where they lie, in memory or in the mapped file: valid as long as the
/// handle.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_neighbors(
    index: Option<&tagore_index>,
    node: usize,
    ids: Option<&mut MaybeUninit<*const u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> tagore_status {
    call(|| {
        let index = &required(index, "index")?.index;
        check_row("node", node, index.len())?;
        lend(index.neighbors(node), ids, count)
    })
}

/// The entry points, where searches begin: valid as long as the handle.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_entries(
    index: Option<&tagore_index>,
    ids: Option<&mut MaybeUninit<*const u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> tagore_status {
    call(|| lend(required(index, "index")?.index.entries(), ids, count))
}

/// Hands out ids where they lie.
fn lend(
    slice: &[u32],
    ids: Option<&mut MaybeUninit<*const u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Result<()> {
    ids.ok_or_else(|| Failure::null("ids"))?.write(slice.as_ptr());
    count.ok_or_else(|| Failure::null("count"))?.write(slice.len());
    Ok(())
}

/// The callbacks of a caller's store.
struct Sink {
    entries: tagore_take_entries,
    row: unsafe extern "C" fn(*mut c_void, u32, *const u32, usize) -> i32,
    context: Context,
}

impl RowSink for Sink {
    fn entries(&mut self, entries: &[u32]) -> std::result::Result<(), StoreError> {
        let Some(take) = self.entries else { return Ok(()) };
        // SAFETY: the header says what the callback may do, and the ids live through the call.
        returned(unsafe { take(self.context.0, entries.as_ptr(), entries.len()) })
    }

    fn row(&mut self, node: u32, neighbors: &[u32]) -> std::result::Result<(), StoreError> {
        // SAFETY: the header says what the callback may do, and the neighbours live through the
        // call.
        returned(unsafe { (self.row)(self.context.0, node, neighbors.as_ptr(), neighbors.len()) })
    }
}

/// Checks the index, and hands its entry points and rows to a store. Rows of equal vectors are
/// linked to one another, as in an export to "csr"; layers are left out.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_write_rows(
    index: Option<&tagore_index>,
    sink: Input<'_, tagore_row_sink>,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| {
        let index = &required(index, "index")?.index;
        let tagore_row_sink { entries, row, context, .. } = read(sink)?;
        let row = row.ok_or_else(|| Failure::null("row"))?;
        Ok(index.write_rows(&mut Sink { entries, row, context: Context(context) }, &watched(progress)?)?)
    })
}

/// Reads and checks the whole index.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_verify(
    index: Option<&tagore_index>,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| Ok(required(index, "index")?.index.verify(&watched(progress)?)?))
}

/// The report of an index as JSON, with the keys of docs/report.md: degrees, reach, and the time of
/// its build if it was built by this program. With `vectors`, which may be null, it has the recall
/// of searches, measured on `device` ("auto", "cpu", "cuda:0"; null for "auto").
/// tagore_text_free frees the text.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_report(
    index: Option<&tagore_index>,
    vectors: Option<&tagore_vectors>,
    device: Input<'_, c_char>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> tagore_status {
    make_text(out, || {
        let tagore_index { index, built } = required(index, "index")?;
        let device = text_if(device, "device")?.map_or(Ok(Device::Auto), str::parse)?;
        let seed = index.description().seed;
        let measure = Measure { seed, progress: watched(progress)?, ..Measure::default() }.on(device);
        let none = KnnSample::default();
        let sample = built.as_ref().map_or(&none, |built| &built.sample);
        let mut report = Report::measure(index, vectors.map(|vectors| &*vectors.0), sample, &measure)?;
        report.build = built.as_ref().map(|built| built.cost.clone());
        Ok(json!(report).to_string())
    })
}

/// Frees a handle, as tagore_vectors_free does. Pointers to its neighbours end with it, unless a
/// searcher made from it lives on.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_free(index: Option<Box<tagore_index>>) {
    free(index);
}
