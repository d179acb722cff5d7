//! hnswlib's index: a header, the elements of the base layer (links, vector, label), then each
//! element's links in upper layers.

use std::path::Path;

use super::bytes::{Bytes, map};
use super::embedded::{Embedded, hash};
use super::export::Export;
use super::import::{Graph, Source, rows_of};
use super::layers::Layers;
use crate::Result;
use crate::atomic_file::AtomicFile;

/// Bytes of a link count: 16 bits count links, the others are flags.
const WORD: usize = 4;

/// Bytes of a label.
const LABEL: usize = 8;

/// Maximum number of links of a node: 16 bits count them.
pub(super) const MAX_LINKS: usize = u16::MAX as usize;

/// ef_construction for insertions into the loaded index.
const EF_CONSTRUCTION: u64 = 200;

/// Flag of a deleted element in a link count.
const DELETED: u32 = 1 << 16;

/// Bytes of a link count and `most` link slots.
const fn links_bytes(most: usize) -> usize {
    WORD + WORD * most
}

pub(super) fn write(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let most = index.max_degree();
    let vectors = Embedded::for_export(export)?;
    let layers = Layers::for_export(export)?;
    let upper = layers.degree;
    let data = links_bytes(most);
    let label = data + size_of::<f32>() * vectors.dim();
    let words =
        |words: &[usize]| words.iter().flat_map(|&word| (word as u64).to_le_bytes()).collect::<Vec<u8>>();
    let mut file = AtomicFile::create(path)?;
    file.write_all(&words(&[0, index.len(), index.len(), label + LABEL, label, data]))?;
    file.write_all(&(layers.highest() as i32).to_le_bytes())?;
    file.write_all(&layers.entry.to_le_bytes())?;
    // M, the links of an inserted node in each layer, has room in the base layer too.
    let inserted = upper.min((most / 2).max(2)).min(most);
    file.write_all(&words(&[upper, most, inserted]))?;
    file.write_all(&layers.level_factor().to_le_bytes())?;
    file.write_all(&EF_CONSTRUCTION.to_le_bytes())?;
    export.for_each_node(|node| {
        file.write_all(&links(export.row(node).iter().copied(), most))?;
        file.write_all(bytemuck::cast_slice(&vectors.row(node)))?;
        file.write_all(&(node as u64).to_le_bytes())
    })?;
    export.for_each_node(|node| {
        let above = layers.of_node(node);
        file.write_all(&((above.len() * links_bytes(upper)) as u32).to_le_bytes())?;
        above.into_iter().try_for_each(|layer| file.write_all(&links(layers.neighbors(layer, node), upper)))
    })?;
    file.commit()
}

/// A link count and its links, padded with zeros to `most` slots.
fn links(row: impl ExactSizeIterator<Item = u32>, most: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(links_bytes(most));
    bytes.extend((row.len() as u32).to_le_bytes());
    bytes.extend(row.flat_map(u32::to_le_bytes));
    bytes.resize(links_bytes(most), 0);
    bytes
}

/// Reads the base layer; checks and skips the others.
pub(super) fn read(source: &Source<'_>) -> Result<Graph> {
    let map = map(source.path)?;
    let mut file = Bytes::new(source.path, &map, source.progress);
    let vectors = Embedded::expected(source);
    file.expect("offset of the base layer", 0u64)?;
    let room: u64 = file.number("the most elements")?;
    let count: u64 = file.number("the number of elements")?;
    source.check_nodes(count)?;
    if room < count {
        return Err(file.refuse(format_args!("room for {room} elements"), format_args!("at least {count}")));
    }
    let [size, label, data] =
        [file.number::<u64>("a size")?, file.number("an offset")?, file.number("an offset")?];
    let highest: i32 = file.number("the highest layer")?;
    let entry: u32 = file.number("the entry point")?;
    let upper = degree(&mut file)?;
    let most = degree(&mut file)?;
    let links = links_bytes(most) as u64;
    let vector = (size_of::<f32>() * vectors.dim()) as u64;
    if (data, label, size) != (links, links + vector, links + vector + LABEL as u64) {
        let found = format!("elements of {size} bytes: vector at {data}, label at {label}");
        let (label, size) = (links + vector, links + vector + LABEL as u64);
        let expected = format!(
            "{size}: vector at {links}, label at {label}, for {most} links and {} f32 as in {}",
            vectors.dim(),
            source.base.describe()
        );
        return Err(file.refuse(found, expected));
    }
    file.take(3, 8, "M, the factor of levels and ef_construction")?;
    let each_element = |visit: &mut dyn FnMut(&[u8], i64)| {
        let mut file = file.clone();
        (0..count).try_for_each(|element| {
            let bytes = file.take(1, size as usize - LABEL, format_args!("element {element}"))?;
            visit(&bytes[links as usize..], file.number(format_args!("the label of element {element}"))?);
            Ok(())
        })
    };
    let mut labels = Vec::new();
    each_element(&mut |_, label| labels.push(label))?;
    // Elements are stored in order of insertion: many threads insert in any. Where labels are no
    // rows, vectors tell the row of an element.
    let of_labels = rows_of(&labels);
    let mut rows = of_labels.clone();
    if rows.is_none() {
        let mut hashes = Vec::new();
        each_element(&mut |vector, _| hashes.push(hash(vector)))?;
        rows = vectors.rows_with(&hashes);
    }
    let rows = rows.unwrap_or_else(|| (0..count as u32).collect());
    let mut graph = Graph::default();
    for element in 0..count {
        graph.push(take_links(&mut file, most, element)?);
        vectors.check(&mut file, rows[element as usize] as usize)?;
        file.take(1, LABEL, format_args!("the label of element {element}"))?;
    }
    if entry as u64 >= count {
        return Err(file.refuse(format_args!("entry point {entry}"), format_args!("an id below {count}")));
    }
    graph.entries = vec![entry];
    for element in 0..count {
        let bytes: u32 = file.number(format_args!("the size of the upper links of element {element}"))?;
        let layers = bytes / links_bytes(upper) as u32;
        if !bytes.is_multiple_of(links_bytes(upper) as u32) || i64::from(layers) > i64::from(highest) {
            let found = format!("{bytes} bytes of upper links of element {element}");
            let expected = format!("at most {highest} layers of {}", links_bytes(upper));
            return Err(file.refuse(found, expected));
        }
        for _ in 0..layers {
            take_links(&mut file, upper, element)?.for_each(drop);
        }
    }
    file.end()?;
    let mut graph = graph.renamed(source, &rows)?;
    if of_labels.is_none() {
        let mut ids = vec![0; labels.len()];
        rows.iter().zip(labels).for_each(|(&row, label)| ids[row as usize] = label);
        graph.own_ids = Some(ids);
    }
    Ok(graph)
}

fn degree(file: &mut Bytes<'_>) -> Result<usize> {
    let degree: u64 = file.number("a largest degree")?;
    usize::try_from(degree).ok().filter(|&degree| degree <= MAX_LINKS).ok_or_else(|| {
        file.refuse(format_args!("largest degree {degree}"), format_args!("at most {MAX_LINKS}"))
    })
}

/// Takes a link count and `most` slots.
fn take_links<'a>(
    file: &mut Bytes<'a>,
    most: usize,
    element: u64,
) -> Result<impl Iterator<Item = u32> + use<'a>> {
    let word: u32 = file.number(format_args!("the degree of element {element}"))?;
    let room = file.numbers::<u32>(most as u64, format_args!("the links of element {element}"))?;
    if word & DELETED != 0 {
        return Err(file.refuse(format_args!("element {element} deleted"), "no deleted elements"));
    }
    if word as usize > most {
        return Err(
            file.refuse(format_args!("degree {word} of element {element}"), format_args!("at most {most}"))
        );
    }
    Ok(room.take(word as usize))
}
