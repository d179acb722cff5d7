//! Builders: parameters, plans, builds.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use tagore::{BuildCost, Builder, DataShape, Vectors};

use crate::id_set::tagore_id_set;
use crate::index::{Built, tagore_index};
use crate::knn_graph::tagore_knn_graph;
use crate::pointers::{Input, make_text, required, text};
use crate::progress::{tagore_progress, watched};
use crate::search::{Room, tagore_results};
use crate::status::{Result, call, free, make, tagore_status};
use crate::vectors::{element_of, tagore_element, tagore_vectors};

/// Nodes whose k-NN lists are kept for a report, as the command does.
const SAMPLE: usize = 1000;

/// The settings of builds. Any number of threads may use one at the same time.
pub struct tagore_builder(Mutex<Builder>);

impl tagore_builder {
    /// The builder as it is now. A panic cannot leave it half changed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Builder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the builder as it is now, for work under a callback.
    pub(crate) fn with(&self, progress: Input<'_, tagore_progress>) -> Result<Builder> {
        let progress = watched(progress)?;
        Ok(self.lock().clone().progress(progress))
    }
}

/// A builder of a kind of index: "cagra", "nsg", "nssg", "vamana", "dpg", "tau-mng" or
/// "alpha-cng", with the defaults of the kind.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_create(
    kind: Input<'_, c_char>,
    out: Option<&mut MaybeUninit<*mut tagore_builder>>,
) -> tagore_status {
    make(out, || Ok(tagore_builder(Mutex::new(Builder::new(text(kind, "kind")?.parse()?)))))
}

/// Sets a parameter by the name and with the values that `tagore build --help` shows: "metric",
/// "knn", "iterations", "start", "expand", "nodes-per-cell", "probes", "clusterings", "seed",
/// "device", "degree", "candidates", "collect", "filter", "alpha", "angle", "threshold" or
/// "strict-detours"; "layers", "true" unless set; and "vectors": "full", "f16" or "int8".
///
/// A later call replaces what an earlier one set. "filter" also sets its default threshold, so it
/// goes before "alpha", "angle" and "threshold".
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_set(
    builder: Option<&tagore_builder>,
    name: Input<'_, c_char>,
    value: Input<'_, c_char>,
) -> tagore_status {
    call(|| {
        let builder = required(builder, "builder")?;
        let (name, value) = (text(name, "name")?, text(value, "value")?);
        let mut settings = builder.lock();
        *settings = settings.clone().set(name, value)?;
        Ok(())
    })
}

/// Builds over the `rows` of a set only, which is copied; over all rows if it is null. The index is
/// that of these rows alone, with the ids of the whole base. Rows left out have no neighbours, no
/// edge leads to them, and no search returns them. Not for a build from a k-NN graph, nor out of
/// core.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_set_rows(
    builder: Option<&tagore_builder>,
    rows: Option<&tagore_id_set>,
) -> tagore_status {
    call(|| {
        let builder = required(builder, "builder")?;
        let rows = rows.map(|tagore_id_set(ids)| ids.clone());
        let mut settings = builder.lock();
        *settings = settings.clone().among(rows);
        Ok(())
    })
}

/// Fits indexes to queries that do not look like the base, such as texts among images, by a
/// `sample` of them: at least 100, about one for each ten rows for the whole gain. Edges and entry
/// points are added where searches for a part of the sample that is held out find more by them.
/// None if it is null. The memory of the sample stays in use until the builder is freed or gets
/// another one.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_set_queries(
    builder: Option<&tagore_builder>,
    sample: Option<&tagore_vectors>,
) -> tagore_status {
    call(|| {
        let builder = required(builder, "builder")?;
        let sample = sample.map(|sample| Vectors::clone(&sample.0));
        let mut settings = builder.lock();
        *settings = settings.clone().queries(sample);
        Ok(())
    })
}

/// Plans a build in memory of `rows` x `dim` components on the builder's device: bytes of memory
/// and disk, and seconds, as JSON in UTF-8. `tagore_text_free` frees the text.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_plan(
    builder: Option<&tagore_builder>,
    rows: usize,
    dim: usize,
    element: tagore_element,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> tagore_status {
    make_text(out, || {
        let builder = required(builder, "builder")?.lock().clone();
        let data = DataShape::new(rows, dim, element_of(element)?)?;
        Ok(json!(builder.plan(&data, builder.target(rows)?)?).to_string())
    })
}

/// Builds the index of `vectors`, from `graph` if that is not null. The same vectors, parameters
/// and seed give the same bytes on any number of threads, and those of `tagore build`.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_build(
    builder: Option<&tagore_builder>,
    vectors: Option<&tagore_vectors>,
    graph: Option<&tagore_knn_graph>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_index>>,
) -> tagore_status {
    make(out, || {
        let builder = required(builder, "builder")?.with(progress)?.sample(SAMPLE);
        let base = &required(vectors, "vectors")?.0;
        // The device is opened, and kernels are compiled, while the values are checked.
        let _preparation = graph.is_none().then(|| builder.prepare(base));
        let (index, stats) = builder.build_with_stats(base, graph.map(|graph| &graph.0))?;
        let cost = BuildCost::in_memory(&builder, &stats);
        Ok(tagore_index { index: Arc::new(index), built: Some(Built { cost, sample: stats.sample }) })
    })
}

/// Builds the k-NN graph of `vectors` alone, which tagore_builder_build prunes.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_knn_graph(
    builder: Option<&tagore_builder>,
    vectors: Option<&tagore_vectors>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_knn_graph>>,
) -> tagore_status {
    make(out, || {
        let builder = required(builder, "builder")?.with(progress)?;
        Ok(tagore_knn_graph(builder.knn_graph(&required(vectors, "vectors")?.0)?))
    })
}

/// Builds the k-NN graph of `vectors` into arrays of the program: for each row as many slots as the
/// builder's "knn" says, or its default for these vectors, nearest first. A graph that is built on
/// the device of the arrays stays there.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_knn_graph_into(
    builder: Option<&tagore_builder>,
    vectors: Option<&tagore_vectors>,
    progress: Input<'_, tagore_progress>,
    results: Input<'_, tagore_results>,
) -> tagore_status {
    call(|| {
        let builder = required(builder, "builder")?.with(progress)?;
        let base = &required(vectors, "vectors")?.0;
        let mut room = match Room::new(results, base.len(), builder.k_for(base)?)? {
            Room::Host(room) => room,
            Room::Device(room) => return Ok(builder.knn_graph_into(base, &room.results).map(drop)?),
        };
        let graph = builder.knn_graph(base)?;
        for node in 0..graph.len() {
            let pairs = graph.neighbors(node).iter().zip(graph.distances(node));
            room.fill(node * graph.k(), graph.k(), pairs.map(|(&id, &distance)| (id, distance)));
        }
        Ok(())
    })
}

/// Frees a handle, as tagore_vectors_free does.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_builder_free(builder: Option<Box<tagore_builder>>) {
    free(builder);
}
