//! Text of word vectors, as word2vec, fastText and GloVe write it: a word and its vector per line,
//! or vectors alone. A first line of two numbers, words and dimension, may come before.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::path::{Path, PathBuf};

use tagore::{Error, Result};
use tagore_text::grouped;

use super::copy::{Copy, PIECE};
use super::number::Number;
use super::{Wanted, file_name, note, refused};

/// Lines that show whether each begins with a word: some words are numbers.
const SHOWN: usize = 100;

/// Bytes of a line, at most.
const LINE: u64 = 1 << 20;

/// The layout of the lines.
struct Layout {
    /// The number of rows, if the first line states it.
    rows: Option<usize>,
    dim: usize,
    has_words: bool,
}

/// Copies the vectors to an npy file. Notes that words were left out.
///
/// # Errors
/// If a line has another number of values than the first, a value is no number, there are other
/// rows than the first line states, or [`Copy`] fails.
pub(super) fn copy(path: &Path) -> Result<PathBuf> {
    let file = File::open(path).map_err(failed(path))?;
    let mut file = BufReader::with_capacity(PIECE, file);
    let layout = layout(path, &mut file)?;
    file.rewind().map_err(failed(path))?;
    let mut copy = Copy::start(path, Number::F32, layout.dim as u64, Wanted::Vectors)?;
    let (mut line, mut values, mut rows, mut number) = (Vec::new(), Vec::new(), 0, 0);
    while next_line(path, &mut file, &mut line)? {
        number += 1;
        if number == 1 && layout.rows.is_some() || line.is_empty() {
            continue;
        }
        rows += 1;
        layout.push_row(&line, &mut values).map_err(|found| {
            let word = if layout.has_words { "a word and " } else { "" };
            let expected = format_args!("{word}{} numbers in each line", layout.dim);
            refused(path, format_args!("{found} in line {number}"), expected)
        })?;
        if values.len() >= PIECE {
            copy.push(&values)?;
            values.clear();
        }
    }
    copy.push(&values)?;
    if let Some(expected) = layout.rows.filter(|&expected| expected != rows) {
        return Err(refused(
            path,
            format_args!("{rows} rows"),
            format_args!("{expected}, by its first line"),
        ));
    }
    let copy = copy.finish()?;
    if layout.has_words {
        let (file, rows) = (file_name(path), grouped(rows));
        note(format_args!("{file}: {rows} words left out; the id of a row is its line, from 0"));
    }
    Ok(copy)
}

/// The layout by the first lines.
fn layout(path: &Path, file: &mut impl BufRead) -> Result<Layout> {
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    while lines.len() <= SHOWN && next_line(path, file, &mut line)? {
        lines.push(line.clone());
    }
    let [first, rest @ ..] = lines.as_slice() else {
        return Err(refused(path, "an empty file", "a word and its vector in each line"));
    };
    let begins_with_word =
        |line: &Vec<u8>| fields(line).next_back().is_some_and(|field| parsed::<f32>(field).is_none());
    let counts: Vec<Option<usize>> = fields(first).rev().map(parsed).collect();
    if let (&[Some(rows), Some(dim)], Some(second)) = (counts.as_slice(), rest.first()) {
        let has_words = rest.iter().any(begins_with_word);
        if fields(second).count() == dim + usize::from(has_words) {
            return Ok(Layout { rows: Some(rows), dim, has_words });
        }
    }
    let has_words = lines.iter().any(begins_with_word);
    Ok(Layout { rows: None, dim: fields(first).count() - usize::from(has_words), has_words })
}

impl Layout {
    /// Appends the values of a line. The error is what the line has.
    fn push_row(&self, line: &[u8], values: &mut Vec<u8>) -> Result<(), String> {
        let begin = values.len();
        values.resize(begin + self.dim * size_of::<f32>(), 0);
        // From the end: a word may have spaces.
        let mut rest = fields(line);
        let mut found = 0;
        for to in values[begin..].rchunks_exact_mut(size_of::<f32>()) {
            let Some(field) = rest.next() else { break };
            let Some(value) = parsed::<f32>(field) else {
                if self.has_words && rest.next().is_none() {
                    break;
                }
                let field: String = String::from_utf8_lossy(field).chars().take(20).collect();
                return Err(format!("'{field}'"));
            };
            to.copy_from_slice(&value.to_le_bytes());
            found += 1;
        }
        match rest.next().is_some() == self.has_words {
            true if found == self.dim => Ok(()),
            false if found == self.dim => Err(format!("{} values", fields(line).count())),
            _ => Err(format!("{found} of {} values", self.dim)),
        }
    }
}

/// The fields of a line, from the last to the first.
fn fields(line: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    line.rsplit(|byte| matches!(byte, b' ' | b'\t')).filter(|field| !field.is_empty())
}

fn parsed<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Reads the next line without its end. False at the end of the file.
fn next_line(path: &Path, file: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool> {
    line.clear();
    let read = std::io::Read::take(file, LINE).read_until(b'\n', line).map_err(failed(path))?;
    if read as u64 == LINE {
        return Err(refused(path, format_args!("a line of {LINE} bytes or more"), "a vector in each line"));
    }
    while line.last().is_some_and(u8::is_ascii_whitespace) {
        line.pop();
    }
    Ok(read > 0)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |source| Error::Io { path: path.to_owned(), source }
}
