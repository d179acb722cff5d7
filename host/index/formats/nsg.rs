//! NSG's and NSSG's graphs: width, entry points, then each row after its length.

use std::path::Path;

use super::bytes::{Bytes, map};
use super::export::Export;
use super::import::{Graph, Source};
use crate::Result;
use crate::atomic_file::AtomicFile;

/// Writes the graph. NSSG's entry points are `counted`: their number precedes them.
pub(super) fn write(export: &Export<'_>, path: &Path, entries: &[u32], counted: bool) -> Result<()> {
    let index = export.index;
    let mut file = AtomicFile::create(path)?;
    file.write_all(&(index.max_degree() as u32).to_le_bytes())?;
    if counted {
        file.write_all(&(entries.len() as u32).to_le_bytes())?;
    }
    file.write_all(bytemuck::cast_slice(entries))?;
    export.for_each_node(|node| {
        let row = export.row(node);
        file.write_all(&(row.len() as u32).to_le_bytes())?;
        file.write_all(bytemuck::cast_slice(&row))
    })?;
    file.commit()
}

/// Reads a graph. The file has no node count: rows continue to its end.
pub(super) fn read(source: &Source<'_>, counted: bool) -> Result<Graph> {
    let map = map(source.path)?;
    let mut file = Bytes::new(source.path, &map, source.progress);
    let width: u32 = file.number("the width")?;
    let count = if counted { file.number::<u32>("the number of entry points")? } else { 1 };
    let entries = file.numbers(count.into(), format_args!("entry points"))?.collect();
    let mut graph = Graph::entered_at(entries);
    for node in 0u64.. {
        if file.is_empty() {
            break;
        }
        let degree: u32 = file.number(format_args!("the degree of node {node}"))?;
        if degree > width {
            return Err(
                file.refuse(format_args!("degree {degree} of node {node}"), format_args!("at most {width}"))
            );
        }
        graph.push(file.numbers(degree.into(), format_args!("the row of node {node}"))?);
    }
    Ok(graph)
}
