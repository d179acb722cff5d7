//! The description at the end of a Parquet file: columns, and their parts in the file.

use super::super::bytes::Bytes;
use super::super::number::Number;
use super::thrift::Thrift;

/// Structures within structures of a schema, at most.
const DEPTH: usize = 64;

/// A column of single values.
pub(super) struct Column {
    /// The name of the column, and of each structure in it.
    pub path: Vec<String>,
    /// Type of its numbers.
    pub number: Option<Number>,
    /// Bytes of a number in the file.
    pub stored: usize,
    /// The definition of a value that is no null, and the repetition of one that continues a list.
    pub defined: u8,
    pub repeated: u8,
}

/// A part of a column in the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Chunk {
    pub codec: i64,
    pub values: i64,
    pub bytes: i64,
    pub data: i64,
    pub dictionary: i64,
}

/// An element of the schema, before its children.
#[derive(Default)]
struct Element {
    kind: i64,
    length: i64,
    repetition: i64,
    name: String,
    children: i64,
    converted: i64,
    is_half: bool,
}

/// Columns, and the parts of all columns for each group of rows. None of a damaged description.
pub(super) fn parse(bytes: &[u8]) -> Option<(Vec<Column>, Vec<Vec<Chunk>>)> {
    let (mut elements, mut groups) = (Vec::new(), Vec::new());
    Thrift(Bytes(bytes)).fields(|rest, field, kind| {
        match field {
            2 => elements = rest.list(element)?,
            4 => groups = rest.list(group)?,
            _ => rest.pass(kind)?,
        }
        Some(())
    })?;
    let mut elements = elements.into_iter();
    let root = elements.next()?;
    let mut columns = Vec::new();
    for _ in 0..root.children {
        walk(&mut elements, Walk { path: Vec::new(), defined: 0, repeated: 0 }, &mut columns)?;
    }
    Some((columns, groups))
}

fn element(rest: &mut Thrift<'_>) -> Option<Element> {
    let mut element = Element { converted: -1, ..Element::default() };
    rest.fields(|rest, field, kind| {
        match field {
            1 => element.kind = rest.int()?,
            2 => element.length = rest.int()?,
            3 => element.repetition = rest.int()?,
            4 => element.name = rest.text()?,
            5 => element.children = rest.int()?,
            6 => element.converted = rest.int()?,
            10 => rest.fields(|rest, field, kind| {
                element.is_half |= field == 15;
                rest.pass(kind)
            })?,
            _ => rest.pass(kind)?,
        }
        Some(())
    })?;
    Some(element)
}

fn group(rest: &mut Thrift<'_>) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    rest.fields(|rest, field, kind| {
        match field {
            1 => chunks = rest.list(chunk)?,
            _ => rest.pass(kind)?,
        }
        Some(())
    })?;
    Some(chunks)
}

fn chunk(rest: &mut Thrift<'_>) -> Option<Chunk> {
    let mut chunk = Chunk::default();
    rest.fields(|rest, field, kind| match field {
        3 => rest.fields(|rest, field, kind| {
            let number = match field {
                4 => &mut chunk.codec,
                5 => &mut chunk.values,
                7 => &mut chunk.bytes,
                9 => &mut chunk.data,
                11 => &mut chunk.dictionary,
                _ => return rest.pass(kind),
            };
            *number = rest.int()?;
            Some(())
        }),
        _ => rest.pass(kind),
    })?;
    Some(chunk)
}

/// The structures around an element.
#[derive(Clone)]
struct Walk {
    path: Vec<String>,
    defined: u8,
    repeated: u8,
}

/// Adds the columns of the next element.
fn walk(
    elements: &mut impl Iterator<Item = Element>,
    mut around: Walk,
    columns: &mut Vec<Column>,
) -> Option<()> {
    let element = elements.next()?;
    if around.path.len() == DEPTH {
        return None;
    }
    around.path.push(element.name.clone());
    // Optional and repeated.
    around.defined += u8::from(element.repetition > 0);
    around.repeated += u8::from(element.repetition == 2);
    if element.children > 0 {
        return (0..element.children).try_for_each(|_| walk(elements, around.clone(), columns));
    }
    let (number, stored) = number(&element);
    let Walk { path, defined, repeated } = around;
    columns.push(Column { path, number, stored, defined, repeated });
    Some(())
}

/// The type of the numbers of a column, and their bytes in the file.
fn number(element: &Element) -> (Option<Number>, usize) {
    // The types of other integers than those of the file: u8, u32, u64, i8.
    let number = match (element.kind, element.converted) {
        (1, 11) => Number::integer(1, false),
        (1, 15) => Number::integer(1, true),
        (1, 13) => Number::integer(4, false),
        (1, _) => Number::integer(4, true),
        (2, converted) => Number::integer(8, converted != 14),
        (4, _) => Number::F32,
        (5, _) => Number::F64,
        (7, _) if element.is_half && element.length == 2 => Number::float(2),
        _ => return (None, 0),
    };
    (Some(number), if element.kind == 1 { 4 } else { number.size() })
}
