//! Live indexes: rows come, go and change while searches run.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use tagore::{Device, IdSet, LiveIndex, Search, Snapshot, start_threads};

use crate::builder::tagore_builder;
use crate::index::{name_of_metric, tagore_metric};
use crate::pointers::{Input, Output, path, read, required, slots, structs, text, text_if, values, write};
use crate::progress::{tagore_progress, watched};
use crate::search::lent_queries;
use crate::status::{Failure, Result, call, free, make, tagore_status};
use crate::vectors::{element_of, name_of, tagore_element, tagore_matrix, tagore_vectors};

/// A live index: a folder whose rows come, go and change while searches run.
///
/// Rows have ids of the program, any but UINT64_MAX. A change that has returned is on disk: after a
/// crash, tagore_live_open finds the index as its last change left it. Most rows are in a graph;
/// searches compare recent ones one by one, and skip those that were removed. From time to time a
/// change brings the graph up to date, and takes longer.
///
/// Any number of threads search and change an index at the same time. Changes take turns, so a
/// callback that watches one must not make another. Searches do not wait: each sees the index as
/// it was when it began. One handle at a time has the folder open, in all processes.
pub struct tagore_live(LiveIndex);

/// Sizes of a live index.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_live_info {
    /// sizeof(tagore_live_info), set before the call.
    pub size: usize,
    /// The number of rows.
    pub rows: usize,
    /// Those that searches compare one by one; the others are in the graph.
    pub recent: usize,
    /// Components per row.
    pub dim: usize,
    /// The type of the components.
    pub element: tagore_element,
    /// The metric.
    pub metric: tagore_metric,
}

/// Options of a search of a live index. Zero is the default of each but `k`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_live_search_options {
    /// sizeof(tagore_live_search_options)
    pub size: usize,
    /// Neighbours per query, at least 1. May exceed the rows.
    pub k: usize,
    /// As of tagore_search_options.
    pub beam: usize,
    /// Null, or a distance: only rows at it or nearer are found.
    pub radius: *const f32,
    /// Null, or the ids of the rows that may be found, in any order. Ids without a row are no
    /// error. The call takes a pass over all ids of the index.
    pub among: *const u64,
    /// The number of these ids; 0 with an address finds nothing.
    pub among_count: usize,
}

/// Room in host memory for the answers of a search: k slots per query, nearest first. A query that
/// finds fewer rows has the id UINT64_MAX and the distance infinity in its last slots. A call that
/// fails leaves the arrays as they are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_live_results {
    /// sizeof(tagore_live_results)
    pub size: usize,
    /// Ids of rows.
    pub ids: *mut u64,
    /// Their distances to the query, as of tagore_results; may be null.
    pub distances: *mut f32,
    /// Slots of each array: at least queries x k.
    pub slots: usize,
    /// Null, or where the call writes the number of queries that found fewer than k rows.
    pub short_queries: *mut usize,
}

structs!(tagore_live_info, tagore_live_search_options, tagore_live_results);

impl tagore_live_search_options {
    /// The rows that may be found, unless all may.
    ///
    /// # Safety
    /// - The ids are null, or as many as the count, which do not change during the call.
    unsafe fn rows(&self, snapshot: &Snapshot) -> Result<Option<IdSet>> {
        if self.among.is_null() && self.among_count == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let ids = unsafe { values(self.among, self.among_count, "among") }?;
        Ok(Some(snapshot.rows_of(ids)))
    }

    /// The library's options, among `rows`.
    ///
    /// # Safety
    /// - The radius is null, or valid during the call.
    unsafe fn search<'a>(&self, rows: Option<&'a IdSet>) -> Result<Search<'a>> {
        let mut search = Search::new(self.k);
        if self.beam > 0 {
            search = search.beam(self.beam);
        }
        let radii = usize::from(!self.radius.is_null());
        // SAFETY: the caller's promise.
        if let [radius] = unsafe { values(self.radius, radii, "radius") }? {
            search = search.radius(*radius);
        }
        Ok(rows.into_iter().fold(search, Search::among))
    }
}

/// The arrays for answers.
struct Room<'a> {
    ids: &'a mut [MaybeUninit<u64>],
    distances: &'a mut [MaybeUninit<f32>],
    short_queries: &'a mut [MaybeUninit<usize>],
}

impl<'a> Room<'a> {
    /// Room for `k` rows for each of `queries` queries.
    fn new(results: Input<'a, tagore_live_results>, queries: usize, k: usize) -> Result<Self> {
        let tagore_live_results { ids, distances, slots: found, short_queries, .. } = read(results)?;
        let Some(needed) = queries.checked_mul(k).filter(|&needed| needed <= found) else {
            return Err(Failure::argument("slots", found, format_args!("at least {queries} x {k}")));
        };
        let wanted = if distances.is_null() { 0 } else { needed };
        let counts = usize::from(!short_queries.is_null());
        // SAFETY: by the header, arrays that are not null have the slots, and `short_queries` one,
        // which only this call uses.
        unsafe {
            Ok(Self {
                ids: slots(ids, needed, "ids")?,
                distances: slots(distances, wanted, "distances")?,
                short_queries: slots(short_queries, counts, "short_queries")?,
            })
        }
    }

    fn fill(self, ids: &[u64], distances: &[f32], short_queries: usize) {
        self.ids.iter_mut().zip(ids).for_each(|(slot, &id)| _ = slot.write(id));
        self.distances.iter_mut().zip(distances).for_each(|(slot, &distance)| _ = slot.write(distance));
        self.short_queries.iter_mut().for_each(|slot| _ = slot.write(short_queries));
    }
}

/// Makes an empty live index in a new or empty folder, for rows of `dim` components of a type.
/// Kind, metric, parameters and device are those of the builder now; the rows of
/// tagore_builder_set_rows do not count. The device makes the graphs.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_create(
    folder: Input<'_, c_char>,
    builder: Option<&tagore_builder>,
    dim: usize,
    element: tagore_element,
    out: Option<&mut MaybeUninit<*mut tagore_live>>,
) -> tagore_status {
    make(out, || {
        let (folder, builder) = (path(folder, "folder")?, required(builder, "builder")?);
        let builder = builder.lock().clone();
        Ok(tagore_live(LiveIndex::create(folder, builder, dim, element_of(element)?)?))
    })
}

/// Opens the live index in a folder, as its last change left it. `device` makes the graphs: "auto"
/// (the default, null), "cpu", "cuda" or "cuda:1".
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_open(
    folder: Input<'_, c_char>,
    device: Input<'_, c_char>,
    out: Option<&mut MaybeUninit<*mut tagore_live>>,
) -> tagore_status {
    make(out, || {
        let folder = path(folder, "folder")?;
        let device = text_if(device, "device")?.map_or(Ok(Device::Auto), str::parse)?;
        start_threads(None)?;
        let index = LiveIndex::open(folder)?;
        index.set_device(device);
        Ok(tagore_live(index))
    })
}

/// Sets whether a change waits until it is on disk: it does, unless `is_synced` is 0. A crash of
/// the system may then lose the last changes; a crash of the program does not.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_set_synced(live: Option<&tagore_live>, is_synced: i32) -> tagore_status {
    call(|| {
        required(live, "live")?.0.set_synced(is_synced != 0);
        Ok(())
    })
}

/// Sets the device of searches: "cpu", as unless set, "auto", "cuda" or "cuda:1". A GPU gets a copy
/// of each new graph and its rows.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_set_search_device(
    live: Option<&tagore_live>,
    device: Input<'_, c_char>,
) -> tagore_status {
    call(|| {
        let device = text(device, "device")?.parse()?;
        Ok(required(live, "live")?.0.set_search_device(device)?)
    })
}

/// Sets whether changes bring the graph up to date now and then: they do, unless `is_automatic` is
/// 0. Then call tagore_live_consolidate from time to time, in a thread of its own: no change waits
/// for it.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_set_automatic(live: Option<&tagore_live>, is_automatic: i32) -> tagore_status {
    call(|| {
        required(live, "live")?.0.set_automatic(is_automatic != 0);
        Ok(())
    })
}

/// Inserts the rows of `vectors`, which are copied, with `count` ids, one for each. A row of the
/// same id that is there goes: the new one replaces it. If the call fails, nothing is inserted. A
/// callback watches and cancels the work on the graph: before the change, which then fails, or
/// after it, which then stands.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_insert(
    live: Option<&tagore_live>,
    vectors: Option<&tagore_vectors>,
    ids: *const u64,
    count: usize,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| {
        let (live, rows) = (required(live, "live")?, required(vectors, "vectors")?);
        // SAFETY: by the header, `count` ids that do not change during the call.
        let ids = unsafe { values(ids, count, "ids") }?;
        Ok(live.0.insert(ids, &rows.0, &watched(progress)?)?)
    })
}

/// Removes the rows of `count` ids, and writes their number to `removed`, which may be null. Ids
/// without a row are no error. If the call fails, nothing is removed. Callbacks: as of
/// tagore_live_insert.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_remove(
    live: Option<&tagore_live>,
    ids: *const u64,
    count: usize,
    progress: Input<'_, tagore_progress>,
    removed: Option<&mut MaybeUninit<usize>>,
) -> tagore_status {
    call(|| {
        let live = required(live, "live")?;
        // SAFETY: by the header, `count` ids that do not change during the call.
        let ids = unsafe { values(ids, count, "ids") }?;
        let number = live.0.remove(ids, &watched(progress)?)?;
        removed.map(|removed| removed.write(number));
        Ok(())
    })
}

/// Brings the graph up to date with the rows of now, as changes do from time to time; a service may
/// call it when it has time, while other threads insert, remove and search. Writes whether there
/// was anything to do, 1 or 0, to `has_changed`, which may be null. If the call fails, the index is
/// as before.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_consolidate(
    live: Option<&tagore_live>,
    progress: Input<'_, tagore_progress>,
    has_changed: Option<&mut MaybeUninit<i32>>,
) -> tagore_status {
    call(|| {
        let changed = required(live, "live")?.0.consolidate(&watched(progress)?)?;
        has_changed.map(|place| place.write(i32::from(changed)));
        Ok(())
    })
}

/// Sizes of a live index, now.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_get_info(
    live: Option<&tagore_live>,
    info: Output<'_, tagore_live_info>,
) -> tagore_status {
    call(|| {
        let now = required(live, "live")?.0.snapshot();
        write(info, |size| tagore_live_info {
            size,
            rows: now.len(),
            recent: now.recent(),
            dim: now.dim(),
            element: name_of(now.element_type()),
            metric: name_of_metric(now.metric()),
        })
    })
}

/// Finds the nearest rows of each query, on all threads: by beam search in the graph, and by
/// comparing the query with each recent row.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_search(
    live: Option<&tagore_live>,
    queries: Input<'_, tagore_matrix>,
    options: Input<'_, tagore_live_search_options>,
    progress: Input<'_, tagore_progress>,
    results: Input<'_, tagore_live_results>,
) -> tagore_status {
    call(|| {
        let snapshot = required(live, "live")?.0.snapshot();
        let (queries, options) = (lent_queries(queries)?, read(options)?);
        let progress = watched(progress)?;
        let room = Room::new(results, queries.len(), options.k)?;
        // SAFETY: by the header, the ids are null, or as many as their count, and do not change
        // during the call.
        let rows = unsafe { options.rows(&snapshot) }?;
        // SAFETY: by the header, the radius is null, or valid during the call.
        let search = unsafe { options.search(rows.as_ref()) }?;
        let found = snapshot.search(&queries, search, &progress)?;
        let short = found.short();
        let (ids, distances) = found.into_parts();
        room.fill(&ids, &distances, short);
        Ok(())
    })
}

/// Closes a live index and frees its handle, as tagore_vectors_free does.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_live_free(live: Option<Box<tagore_live>>) {
    free(live);
}
