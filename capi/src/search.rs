//! Searches: by index, and exact.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use tagore::{Device, DeviceMemory, DeviceResults, ExactSearch, Search, SearchCodes, Searcher, Vectors};

use crate::id_set::tagore_id_set;
use crate::index::{metric_of, tagore_index, tagore_metric};
use crate::pointers::{Input, Struct, handle, read, read_if, required, slots, structs, text_if, values};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, Result, call, free, make, tagore_status};
use crate::vectors::{Release, device_of, lent, tagore_matrix, tagore_memory, tagore_vectors};

/// An index and its vectors, checked and prepared. Any number of threads search one at the same
/// time. It lives on without the handles it was made from.
pub struct tagore_searcher(Searcher);

/// Options of a searcher. Zero is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_searcher_options {
    /// sizeof(tagore_searcher_options)
    pub size: usize,
    /// The device: "cpu" (the default, null), "auto", "cuda" or "cuda:1"; or several that share the
    /// queries: "cuda:0,1".
    pub device: *const c_char,
    /// Nodes that a GPU expands per step, 1 to 8: at 1, the default, answers are those of the CPU.
    pub width: usize,
    /// Queries per batch on a GPU, 65,536 unless set.
    pub batch: usize,
    /// What searches walk on: "full" (the default, null), the vectors themselves; their codes,
    /// "f16" or "int8", and the nearest nodes are then compared by the vectors; or "edges", codes
    /// of a bit per component beside each edge.
    pub vectors: *const c_char,
    /// Nodes that a search on codes compares by the vectors; 0 for 128, or 2 k if that is more.
    pub rerank: usize,
}

/// Options of a search. Zero is the default of each but `k`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_search_options {
    /// sizeof(tagore_search_options)
    pub size: usize,
    /// Neighbours per query: 1 to the rows of the base.
    pub k: usize,
    /// The nodes that a search expands, on average over queries, at least k; 0 for 100, or 2 k if
    /// that is more, up to 512. A wider beam finds more and takes longer.
    pub beam: usize,
    /// Null, or a distance: only rows at it or nearer are found.
    pub radius: *const f32,
    /// Null, or the rows that may be found.
    pub among: *const tagore_id_set,
}

/// Options of an exact search. Zero is the default of each but `k`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_exact_options {
    /// sizeof(tagore_exact_options)
    pub size: usize,
    /// Neighbours per query: 1 to the rows that may be found.
    pub k: usize,
    /// The device: "auto" (the default, null), "cpu", "cuda" or "cuda:1"; or several that share the
    /// search: "cuda:0,1".
    pub device: *const c_char,
    /// Maximum bytes of memory of each device; 0 for all that is free.
    pub device_memory: u64,
    /// Null, or the rows that may be found.
    pub among: *const tagore_id_set,
    /// The metric, TAGORE_L2 by default.
    pub metric: tagore_metric,
    /// 0
    pub reserved: i32,
}

/// Room for the answers of a search: k slots per query, nearest first. A query that finds fewer
/// rows has the id UINT32_MAX and the distance infinity in its last slots. A call that fails leaves
/// arrays of the host as they are, and undefined values in those of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_results {
    /// sizeof(tagore_results)
    pub size: usize,
    /// Rows of the base.
    pub ids: *mut u32,
    /// Their distances to the query; may be null. They order rows: squared under L2, 1 - cos under
    /// cosine, the negative inner product.
    pub distances: *mut f32,
    /// Slots of each array: at least queries x k.
    pub slots: usize,
    /// The kind of memory of both arrays. A search on the device that holds them leaves its answers
    /// there; tagore_search on several devices takes TAGORE_HOST alone.
    pub memory: tagore_memory,
    /// Of TAGORE_CUDA: the number of the device.
    pub device: i32,
    /// Of TAGORE_CUDA: the cudaStream_t or CUstream whose earlier work may use the arrays, which
    /// the call waits for; null for the default stream. The answers are there when the call
    /// returns.
    pub stream: *mut c_void,
    /// Null, or where tagore_search and tagore_search_one write the number of queries that found
    /// fewer than k rows; they do not count answers that stay on a device.
    pub short_queries: *mut usize,
}

structs!(tagore_searcher_options, tagore_search_options, tagore_exact_options);

// SAFETY: it begins with its size, and holds numbers and pointers.
unsafe impl Struct for tagore_results {
    const NAME: &str = "tagore_results";
    const MIN_SIZE: usize = offset_of!(tagore_results, short_queries);
}

/// Where answers go.
pub(crate) enum Room<'a> {
    Host(HostRoom<'a>),
    Device(DeviceRoom),
}

/// The answers' arrays in memory of a device.
pub(crate) struct DeviceRoom {
    pub results: DeviceResults,
    /// The distances, if the caller wants none.
    _unwanted: Option<DeviceMemory>,
}

/// The answers' arrays in host memory, with room for all of them.
pub(crate) struct HostRoom<'a> {
    ids: &'a mut [MaybeUninit<u32>],
    distances: Option<&'a mut [MaybeUninit<f32>]>,
    short_queries: &'a mut [MaybeUninit<usize>],
}

impl<'a> Room<'a> {
    /// Room for `k` rows for each of `queries` queries.
    pub(crate) fn new(results: Input<'a, tagore_results>, queries: usize, k: usize) -> Result<Self> {
        let results = read(results)?;
        let found = results.slots;
        let Some(needed) = queries.checked_mul(k).filter(|&needed| needed <= found) else {
            return Err(Failure::argument("slots", found, format_args!("at least {queries} x {k}")));
        };
        match device_of(results.memory, results.device)? {
            // SAFETY: by the header, the arrays have the slots, which only this call uses, and the
            // stream is one of the device.
            Some(device) => unsafe { DeviceRoom::new(&results, device, needed) }.map(Self::Device),
            // SAFETY: by the header, the arrays have the slots, which only this call uses.
            None => unsafe { HostRoom::new(&results, needed) }.map(Self::Host),
        }
    }
}

impl DeviceRoom {
    /// # Safety
    /// - The arrays have `needed` slots in memory of the device, which nothing else uses while the
    ///   room exists. The stream is one of the device.
    unsafe fn new(results: &tagore_results, device: Device, needed: usize) -> Result<Self> {
        let &tagore_results { ids, distances, stream, .. } = results;
        if ids.is_null() {
            return Err(Failure::null("ids"));
        }
        let unwanted = if distances.is_null() { Some(DeviceMemory::new(device, needed)?) } else { None };
        let distances = unwanted.as_ref().map_or(distances.addr() as u64, DeviceMemory::address);
        // SAFETY: the caller's promise, or memory of its own.
        let results =
            unsafe { DeviceResults::new(ids.addr() as u64, distances, device).stream(stream.addr() as u64) };
        Ok(Self { results, _unwanted: unwanted })
    }
}

impl HostRoom<'_> {
    /// # Safety
    /// - Arrays that are not null have `needed` slots, and `short_queries` one, which nothing else
    ///   uses while the room exists.
    unsafe fn new(results: &tagore_results, needed: usize) -> Result<Self> {
        let &tagore_results { ids, distances, short_queries, .. } = results;
        let counts = usize::from(!short_queries.is_null());
        // SAFETY: the caller's promise.
        unsafe {
            let ids = slots(ids, needed, "ids")?;
            let distances =
                if distances.is_null() { None } else { Some(slots(distances, needed, "distances")?) };
            Ok(Self { ids, distances, short_queries: slots(short_queries, counts, "short_queries")? })
        }
    }

    /// Writes the number of queries that found too few rows, if it is wanted.
    fn count(&mut self, short_queries: usize) {
        self.short_queries.iter_mut().for_each(|slot| _ = slot.write(short_queries));
    }

    /// Fills the slots of a query.
    pub(crate) fn fill(&mut self, first: usize, k: usize, found: impl Iterator<Item = (u32, f32)>) {
        let mut found = found.chain(std::iter::repeat((u32::MAX, f32::INFINITY)));
        for slot in first..first + k {
            let (id, distance) = found.next().unwrap_or((u32::MAX, f32::INFINITY));
            self.ids[slot].write(id);
            if let Some(distances) = &mut self.distances {
                distances[slot].write(distance);
            }
        }
    }
}

/// The devices that the field of a struct names, if it is there.
///
/// # Safety
/// - The field is null, or a text that does not change during the call.
unsafe fn devices(names: *const c_char, default: Device) -> Result<Vec<Device>> {
    // SAFETY: the caller's promise.
    let names = unsafe { Input::new(names) };
    Ok(text_if(names, "device")?.map_or(Ok(vec![default]), Device::list)?)
}

/// The queries of a call, where they lie.
pub(crate) fn lent_queries(matrix: Input<'_, tagore_matrix>) -> Result<Vectors> {
    // SAFETY: by the header, the rows do not change during the call, which ends the queries.
    unsafe { lent(matrix, Release::new(None, ptr::null_mut())) }
}

impl tagore_search_options {
    /// The library's options.
    ///
    /// # Safety
    /// - The fields are those of the caller: null, or valid while this value exists.
    unsafe fn search(&self) -> Result<Search<'_>> {
        let mut search = Search::new(self.k);
        if self.beam > 0 {
            search = search.beam(self.beam);
        }
        let radii = usize::from(!self.radius.is_null());
        // SAFETY: the caller's promise.
        if let [radius] = unsafe { values(self.radius, radii, "radius") }? {
            search = search.radius(*radius);
        }
        // SAFETY: the caller's promise.
        if let Some(tagore_id_set(ids)) = unsafe { handle(self.among) } {
            search = search.among(ids);
        }
        Ok(search)
    }
}

/// Checks that an index was built over `vectors`, and prepares both for searches. `options` may be
/// null.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_searcher_create(
    index: Option<&tagore_index>,
    vectors: Option<&tagore_vectors>,
    options: Input<'_, tagore_searcher_options>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_searcher>>,
) -> tagore_status {
    make(out, || {
        let (index, base) = (required(index, "index")?, required(vectors, "vectors")?);
        let options = read_if(options)?;
        let progress = watched(progress)?;
        let mut searcher = Searcher::new(index.index.clone(), base.0.clone(), &progress)?;
        if let Some(tagore_searcher_options { device: name, width, batch, vectors: walked, rerank, .. }) =
            options
        {
            if width > 0 {
                searcher = searcher.width(width)?;
            }
            if batch > 0 {
                searcher = searcher.batch(batch);
            }
            if rerank > 0 {
                searcher = searcher.rerank(rerank);
            }
            // SAFETY: by the header, null or a text that does not change during the call.
            let walked = unsafe { Input::new(walked) };
            let codes = text_if(walked, "vectors")?.map(SearchCodes::named).transpose()?;
            if let Some(codes) = codes.flatten() {
                searcher = searcher.compressed(codes)?;
            }
            // SAFETY: by the header, null or a text that does not change during the call.
            searcher = searcher.devices(&unsafe { devices(name, Device::Cpu) }?)?;
        }
        Ok(tagore_searcher(searcher))
    })
}

/// Finds the nearest rows of each query by beam search, on all threads or on the devices of the
/// searcher.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_search(
    searcher: Option<&tagore_searcher>,
    queries: Input<'_, tagore_matrix>,
    options: Input<'_, tagore_search_options>,
    progress: Input<'_, tagore_progress>,
    results: Input<'_, tagore_results>,
) -> tagore_status {
    call(|| {
        let tagore_searcher(searcher) = required(searcher, "searcher")?;
        let (queries, options) = (lent_queries(queries)?, read(options)?);
        let progress = watched(progress)?;
        // SAFETY: by the header, radius and set are null, or valid during the call.
        let search = unsafe { options.search() }?;
        let mut room = match Room::new(results, queries.len(), options.k)? {
            Room::Host(room) => room,
            Room::Device(room) => {
                return Ok(searcher.search_into(&queries, search, &room.results, &progress)?);
            }
        };
        let found = searcher.search(&queries, search, &progress)?;
        for query in 0..queries.len() {
            let pairs = found.ids(query).iter().zip(found.distances(query));
            room.fill(query * options.k, options.k, pairs.map(|(&id, &distance)| (id, distance)));
        }
        room.count(found.short());
        Ok(())
    })
}

/// Finds the nearest rows of one query of `dim` components, on the calling thread or on the
/// searcher's first device: the answer of tagore_search, sooner.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_search_one(
    searcher: Option<&tagore_searcher>,
    query: *const f32,
    dim: usize,
    options: Input<'_, tagore_search_options>,
    results: Input<'_, tagore_results>,
) -> tagore_status {
    call(|| {
        let tagore_searcher(searcher) = required(searcher, "searcher")?;
        // SAFETY: by the header, `dim` components that do not change during the call.
        let (query, options) = (unsafe { values(query, dim, "query") }?, read(options)?);
        let Room::Host(mut room) = Room::new(results, 1, options.k)? else {
            return Err(Failure::argument("memory", "TAGORE_CUDA", "TAGORE_HOST: call tagore_search"));
        };
        // SAFETY: by the header, radius and set are null, or valid during the call.
        let found = searcher.search_one(query, unsafe { options.search() }?)?;
        room.fill(0, options.k, found.iter().map(|found| (found.id, found.distance)));
        room.count(usize::from(found.len() < options.k));
        Ok(())
    })
}

/// Finds the exact nearest rows of each query, by comparing it with every row.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_exact_search(
    vectors: Option<&tagore_vectors>,
    queries: Input<'_, tagore_matrix>,
    options: Input<'_, tagore_exact_options>,
    progress: Input<'_, tagore_progress>,
    results: Input<'_, tagore_results>,
) -> tagore_status {
    call(|| {
        let tagore_vectors(base) = required(vectors, "vectors")?;
        let (queries, options) = (lent_queries(queries)?, read(options)?);
        let tagore_exact_options { k, device_memory, .. } = options;
        let room = Room::new(results, queries.len(), k)?;
        let mut search = ExactSearch::new(k).metric(metric_of(options.metric)?).progress(watched(progress)?);
        // SAFETY: by the header, null or a text that does not change during the call.
        search = search.devices(&unsafe { devices(options.device, Device::Auto) }?);
        if device_memory > 0 {
            search = search.device_memory(device_memory);
        }
        // SAFETY: by the header, null or a set that is valid during the call.
        if let Some(tagore_id_set(ids)) = unsafe { handle(options.among) } {
            search = search.among(ids.clone());
        }
        let mut room = match room {
            Room::Host(room) => room,
            Room::Device(room) => return Ok(search.run_into(base, &queries, &room.results).map(drop)?),
        };
        let (truth, _) = search.run(base, &queries)?;
        for query in 0..queries.len() {
            let distances = truth.distances(query).unwrap_or_default();
            let pairs = truth.ids(query).iter().zip(distances);
            room.fill(query * k, k, pairs.map(|(&id, &distance)| (id, distance)));
        }
        Ok(())
    })
}

/// Frees a handle, as tagore_vectors_free does.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_searcher_free(searcher: Option<Box<tagore_searcher>>) {
    free(searcher);
}
