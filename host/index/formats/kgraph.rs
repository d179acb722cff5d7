//! KGraph: each row after two lengths, with distances or without.

use std::path::Path;

use super::bytes::Bytes;
use super::export::Export;
use super::import::{Graph, Source};
use crate::Result;
use crate::atomic_file::AtomicFile;
use crate::vectors::map;

const MAGIC: &[u8; 8] = b"KNNGRAPH";
const VERSION: u32 = 2;

/// The flag of rows of ids alone.
const NO_DISTANCE: u32 = 1;

/// Bytes of a neighbour with its distance: the id, the distance, a mark and its padding.
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
        // The neighbours that a search looks at, and those that there are.
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
        let looked_at: u32 = file.number(format_args!("a length of row {node}"))?;
        let held: u32 = file.number(format_args!("a length of row {node}"))?;
        if looked_at > held {
            return Err(file.refuse(
                format_args!("{looked_at} of {held} neighbours of node {node}"),
                "no more than there are",
            ));
        }
        let row = file.take(held.into(), size, format_args!("the row of node {node}"))?;
        graph.push(row.chunks_exact(size).map(|neighbor| bytemuck::pod_read_unaligned(&neighbor[..ID])));
    }
    file.end()?;
    Ok(graph)
}
