//! Index files of other systems.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use tagore::{Index, IndexFormat};

use crate::index::{metric_of, tagore_index, tagore_metric};
use crate::pointers::{Input, handle, path, read_if, required, structs, text_if};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, Result, call, make, tagore_status};
use crate::vectors::tagore_vectors;

/// Options of an export. Zero is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_export_options {
    /// sizeof(tagore_export_options)
    pub size: usize,
    /// The vectors of the index, for formats that hold them: "hnswlib", "faiss-nsg", "faiss-hnsw",
    /// "diskann", "diskann-disk".
    pub vectors: *const tagore_vectors,
    /// Chunks of the product quantizer of "diskann-disk"; 0 for its default.
    pub pq_chunks: usize,
    /// Not 0: builds the layers of HNSW ("hnswlib", "faiss-hnsw").
    pub layers: i32,
    /// 0
    pub reserved: i32,
}

structs!(tagore_export_options);

/// The format that a text names, or else the extension of the file.
fn format_of(format: Input<'_, c_char>, file: &std::path::Path) -> Result<IndexFormat> {
    Ok(text_if(format, "format")?.map_or_else(|| IndexFormat::from_path(file), str::parse)?)
}

/// Writes an index in a format: "tagore", "nsg", "nssg", "kgraph", "hnswlib", "faiss-nsg",
/// "faiss-hnsw", "diskann", "diskann-disk", "ibin", "npy" or "csr"; null takes the file's
/// extension. `options` may be null. Files appear when they are complete.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_export(
    index: Option<&tagore_index>,
    file: Input<'_, c_char>,
    format: Input<'_, c_char>,
    options: Input<'_, tagore_export_options>,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| {
        let index = &required(index, "index")?.index;
        let file = path(file, "file")?;
        let mut export = index.export(format_of(format, &file)?).progress(watched(progress)?);
        if let Some(tagore_export_options { vectors, pq_chunks, layers, .. }) = read_if(options)? {
            // SAFETY: by the header, null or a handle that is not freed during the call.
            if let Some(vectors) = unsafe { handle(vectors) } {
                export = export.base(&vectors.0);
            }
            if pq_chunks > 0 {
                export = export.pq_chunks(pq_chunks);
            }
            export = export.layers(layers != 0);
        }
        Ok(export.save(file)?)
    })
}

/// Reads an index of `vectors` in a format of another system, by the names of tagore_index_export.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_import(
    file: Input<'_, c_char>,
    format: Input<'_, c_char>,
    vectors: Option<&tagore_vectors>,
    metric: tagore_metric,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_index>>,
) -> tagore_status {
    make(out, || {
        let file = path(file, "file")?;
        let (format, metric) = (format_of(format, &file)?, metric_of(metric)?);
        let base = vectors.ok_or_else(|| Failure::null("vectors"))?;
        Ok(tagore_index::opened(Index::import(&file, format, &base.0, metric, &watched(progress)?)?))
    })
}
