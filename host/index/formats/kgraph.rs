//! KGraph's graph: each row after two lengths, with or without distances.

use std::path::Path;

use super::bytes::{Bytes, map};
use super::export::Export;
use super::import::{Graph, Source};
use crate::Result;
use crate::atomic_file::AtomicFile;

const MAGIC: &[u8; 8] = b"KNNGRAPH";
const VERSION: u32 = 2;

/// Flag of rows without distances.
const NO_DISTANCE: u32 = 1;

/// Bytes of a neighbour with distance: id, distance, flag, padding.
const WITH_DISTANCE: usize = 12;

/// Bytes of an id.
const ID: usize = 4;

pub(super) fn write(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let mut file = AtomicFile::create(path)?;
    file.write_all(MAGIC)?;
    file.write_all(bytemuck::cast_slice(&[VERSION, NO_DISTANCE, index.len() as u32]))?;
    export.for_each_node(|node| {
        let row = export.row(node);
        // KGraph's M, the neighbours that a search expands, and the length of the row.
        file.write_all(bytemuck::cast_slice(&[row.len() as u32; 2]))?;
        file.write_all(bytemuck::cast_slice(&row))
    })?;
    file.commit()
}

pub(super) fn read(source: &Source<'_>) -> Result<Graph> {
    let map = map(source.path)?;
    let mut file = Bytes::new(source.path, &map, source.progress);
    if file.take(MAGIC.len() as u64, 1, "the name of the format")? != MAGIC {
        return Err(file.refuse("another kind of file", "a KGraph index"));
    }
    file.expect("version", VERSION)?;
    let flags: u32 = file.number("the flags")?;
    if flags > NO_DISTANCE {
        return Err(file.refuse(format_args!("flags {flags}"), "0 or 1"));
    }
    let size = if flags == NO_DISTANCE { ID } else { WITH_DISTANCE };
    let count: u32 = file.number("the number of nodes")?;
    source.check_nodes(count)?;
    let mut graph = Graph::default();
    for node in 0..count {
        let expanded: u32 = file.number(format_args!("a length of row {node}"))?;
        let held: u32 = file.number(format_args!("a length of row {node}"))?;
        if expanded > held {
            return Err(file.refuse(
                format_args!("{expanded} of {held} neighbours of node {node}"),
                format_args!("at most {held}"),
            ));
        }
        let row = file.take(held.into(), size, format_args!("the row of node {node}"))?;
        graph.push(row.chunks_exact(size).map(|neighbor| bytemuck::pod_read_unaligned(&neighbor[..ID])));
    }
    file.end()?;
    Ok(graph)
}
