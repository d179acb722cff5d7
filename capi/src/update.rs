//! Updates and merges of indexes.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use tagore::{Index, IndexMerge, IndexUpdate};

use crate::id_set::tagore_id_set;
use crate::index::tagore_index;
use crate::pointers::{Input, handle, read_if, required, structs, text_if, values};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, make, tagore_status};
use crate::vectors::tagore_vectors;

/// Changes of the rows of an index. Zero is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_index_update_options {
    /// sizeof(tagore_index_update_options)
    pub size: usize,
    /// Null, or the rows to remove: no search returns them. They keep their numbers.
    pub remove: *const tagore_id_set,
    /// Null, or the rows with other vectors than before. Removed rows come back this way.
    pub replace: *const tagore_id_set,
    /// The device: "auto" (the default, null), "cpu", "cuda" or "cuda:1". A GPU builds anew.
    pub device: *const c_char,
}

structs!(tagore_index_update_options);

/// Makes the index of `vectors` from that of its earlier state: the rows of the index come first,
/// then the rows to insert. Kind, metric, seed and parameters are those of the index, which stays
/// as it is, and so do its searchers. `options` may be null: rows are inserted alone. Not for an
/// index of another system.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_update(
    index: Option<&tagore_index>,
    vectors: Option<&tagore_vectors>,
    options: Input<'_, tagore_index_update_options>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_index>>,
) -> tagore_status {
    make(out, || {
        let index = &required(index, "index")?.index;
        let base = &required(vectors, "vectors")?.0;
        let options = read_if(options)?;
        let mut update = IndexUpdate::new(index).map_err(|_| {
            let found = format_args!("an index of {} from another system", index.kind());
            Failure::argument("index", found, "one that tagore_builder_build or `tagore build` made")
        })?;
        if let Some(tagore_index_update_options { remove, replace, device, .. }) = options {
            // SAFETY: by the header, null or handles, which are not freed during the call.
            let (removed, replaced) = unsafe { (handle(remove), handle(replace)) };
            // SAFETY: by the header, null or a text that does not change during the call.
            let device = text_if(unsafe { Input::new(device) }, "device")?;
            if let Some(tagore_id_set(ids)) = removed {
                update = update.remove(ids.clone());
            }
            if let Some(tagore_id_set(ids)) = replaced {
                update = update.replace(ids.clone());
            }
            if let Some(device) = device {
                update = update.device(device.parse()?);
            }
        }
        let (updated, _) = update.progress(watched(progress)?).run(base)?;
        Ok(tagore_index::opened(updated))
    })
}

/// Makes the index of `vectors` from `count` indexes of its rows: those of the first come first,
/// then those of the next. The indexes have one kind and metric, and stay as they are; the
/// parameters are those of the first. `device` is "auto" (the default, null), "cpu", "cuda" or
/// "cuda:1"; a GPU builds anew. Not for indexes of another system.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_index_merge(
    indexes: *const Option<&tagore_index>,
    count: usize,
    vectors: Option<&tagore_vectors>,
    device: Input<'_, c_char>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_index>>,
) -> tagore_status {
    make(out, || {
        // SAFETY: by the header, `count` pointers, each null or a handle that is not freed during
        // the call.
        let indexes = unsafe { values(indexes, count, "indexes") }?;
        let parts = indexes.iter().map(|&index| Ok(&*required(index, "indexes")?.index));
        let parts = parts.collect::<Result<Vec<&Index>, Failure>>()?;
        let base = &required(vectors, "vectors")?.0;
        let Some(first) = parts.first() else {
            return Err(Failure::argument("count", 0, "at least one index"));
        };
        let merge = IndexMerge::new(&parts).map_err(|_| {
            let found = format_args!("an index of {} from another system", first.kind());
            Failure::argument("indexes", found, "some that tagore_builder_build or `tagore build` made")
        })?;
        let device = text_if(device, "device")?.map(str::parse).transpose()?;
        let merge = device.into_iter().fold(merge, IndexMerge::device);
        let (index, _) = merge.progress(watched(progress)?).run(base)?;
        Ok(tagore_index::opened(index))
    })
}
