//! Sealed records: the state of work folders (`docs/outofcore.md`) and of builds in tasks
//! (`docs/tasks.md`) on disk.
//!
//! A record is JSON of two lines: a head with kind, version, length and checksum, then the content.
//! It is a file of its own, or the beginning of one:
//!
//! ```text
//! {"tagore":"0.1.0","format":4,"kind":"plan","bytes":1234,"crc":3735928559,"content":
//! {"base":"base.fbin", ..}}
//! ```

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::atomic_file::write_file;
use crate::{Error, Result};

/// Version of all records, and of the files that they describe.
const FORMAT: u32 = 4;

/// Version of the program. Another one may make other bytes of the same parameters.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// The first bytes of a record.
const MAGIC: &[u8] = b"{\"tagore\":\"";

/// The bytes after the content.
const END: &[u8] = b"}\n";

/// Maximum bytes of a head.
const MAX_HEAD: u64 = 256;

/// The head of a record, without the checksum.
#[derive(Deserialize)]
struct Head {
    tagore: String,
    format: u32,
    kind: String,
    bytes: u64,
}

/// A record that was read.
pub(crate) struct Sealed<T> {
    pub content: T,
    /// Bytes of the record.
    pub bytes: u64,
}

/// The reason why a record cannot be used.
#[derive(Debug)]
pub(crate) enum Flaw {
    /// It ends early.
    Torn,
    /// Its checksum is wrong, or its content is none of its kind.
    Damaged,
    /// No record of this kind.
    Foreign,
    /// A record of this other version.
    Version(String),
    /// The file cannot be read.
    Failed(io::Error),
}

impl Flaw {
    /// The error for a flaw of the file `path`, which should be `expected`.
    pub(crate) fn error(self, path: &Path, expected: &str, remedy: &str) -> Error {
        let expected = format!("{expected}; {remedy}");
        match self {
            Self::Torn | Self::Damaged => Error::file(path, "damage", expected),
            // Records before format 3 had no such head.
            Self::Foreign => Error::file(path, "damage, or another version", expected),
            Self::Version(found) => {
                let ours = version(PROGRAM, FORMAT);
                let expected = format!("{ours}: run the program that made it, or {remedy}");
                Error::file(path, found, expected)
            }
            Self::Failed(error) => Error::io(path)(error),
        }
    }
}

fn version(program: &str, format: u32) -> String {
    format!("tagore {program}, format {format}")
}

/// The head of a record. A record is sound if its head is that of its content.
fn head(kind: &str, content: &[u8]) -> String {
    let (bytes, crc) = (content.len(), crc32fast::hash(content));
    format!(
        "{{\"tagore\":\"{PROGRAM}\",\"format\":{FORMAT},\"kind\":\"{kind}\",\"bytes\":{bytes},\"crc\":{crc},\"content\":\n"
    )
}

/// The record of `content`.
pub(crate) fn seal(kind: &str, content: &impl Serialize) -> io::Result<Vec<u8>> {
    let content = serde_json::to_vec(content)?;
    Ok([head(kind, &content).as_bytes(), &content, END].concat())
}

/// Saves the record of `content` as the file `path`. A kill leaves either the old or the new file.
pub(crate) fn save(path: &Path, kind: &str, content: &impl Serialize) -> Result<()> {
    write_file(path, &seal(kind, content).map_err(Error::io(path))?)
}

/// Reads the record at the beginning of `from`. Content of more than `most` bytes is torn.
pub(crate) fn read<T: DeserializeOwned>(
    kind: &str,
    from: &mut impl BufRead,
    most: u64,
) -> Result<Sealed<T>, Flaw> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_HEAD).read_until(b'\n', &mut line).map_err(Flaw::Failed)?;
    if !line.starts_with(&MAGIC[..MAGIC.len().min(line.len())]) {
        return Err(Flaw::Foreign);
    }
    if !line.ends_with(b"\n") {
        return Err(Flaw::Torn);
    }
    let found: Head = serde_json::from_slice(&[&line, &b"0}"[..]].concat()).map_err(|_| Flaw::Damaged)?;
    if found.kind != kind {
        return Err(Flaw::Foreign);
    }
    if (found.tagore.as_str(), found.format) != (PROGRAM, FORMAT) {
        return Err(Flaw::Version(version(&found.tagore, found.format)));
    }
    let mut rest = Vec::new();
    let length = found.bytes.min(most).saturating_add(END.len() as u64);
    from.by_ref().take(length).read_to_end(&mut rest).map_err(Flaw::Failed)?;
    if ((rest.len() - END.len().min(rest.len())) as u64) < found.bytes {
        return Err(Flaw::Torn);
    }
    let content = rest.strip_suffix(END).filter(|content| head(kind, content).as_bytes() == line);
    let content = content.and_then(|content| serde_json::from_slice(content).ok()).ok_or(Flaw::Damaged)?;
    Ok(Sealed { content, bytes: (line.len() + rest.len()) as u64 })
}

/// Reads the record that is all of `file`.
pub(crate) fn read_all<T: DeserializeOwned>(kind: &str, mut file: &[u8]) -> Result<T, Flaw> {
    let Sealed { content, .. } = read(kind, &mut file, u64::MAX)?;
    if file.is_empty() { Ok(content) } else { Err(Flaw::Damaged) }
}

/// Parameters of a build by their names on the command line.
pub(crate) type Parameters = BTreeMap<String, String>;

/// Checks that the build of the record at `path`, with parameters `before`, is resumed by one with
/// the same parameters.
///
/// # Errors
/// If one differs; the error gives both values.
pub(crate) fn check_parameters(path: &Path, before: &Parameters, now: &Parameters) -> Result<()> {
    let Some(key) = before.keys().chain(now.keys()).find(|&key| before.get(key) != now.get(key)) else {
        return Ok(());
    };
    let describe = |parameters: &Parameters| match parameters.get(key) {
        Some(value) => format!("{key} {value}"),
        None => format!("no {key}"),
    };
    let remedy = "resume with the parameters of this folder, or choose another folder";
    Err(Error::file(path, describe(before), format_args!("{}; {remedy}", describe(now))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_what_is_wrong() {
        let sound = seal("table", &[1, 2]).unwrap();
        let read = |record: &[u8]| read_all::<Vec<u32>>("table", record);
        assert_eq!(read(&sound).unwrap(), [1, 2]);
        for place in 0..sound.len() {
            assert!(matches!(read(&sound[..place]), Err(Flaw::Torn)), "cut to {place} bytes");
            let mut changed = sound.clone();
            changed[place] ^= 1;
            assert!(read(&changed).is_err(), "byte {place}");
        }
        assert!(matches!(read(&[&sound[..], b" "].concat()), Err(Flaw::Damaged)));
        for foreign in ["{}", "null", "{\n  \"manifest\": {}\n}"] {
            assert!(matches!(read(foreign.as_bytes()), Err(Flaw::Foreign)), "{foreign}");
        }
        assert!(matches!(read(&seal("rows", &[1, 2]).unwrap()), Err(Flaw::Foreign)));
        // Another content after a right checksum.
        assert!(matches!(read(&seal("table", &"text").unwrap()), Err(Flaw::Damaged)));
        let text = String::from_utf8(sound).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["content"].is_array(), "{text}");
        let flaw = read(text.replace("\"format\":4", "\"format\":3").as_bytes()).unwrap_err();
        let error = flaw.error(Path::new("table"), "a table", "begin anew").to_string();
        let expected =
            format!("expected tagore {PROGRAM}, format 4: run the program that made it, or begin anew");
        assert_eq!(error, format!("table: found tagore {PROGRAM}, format 3, {expected}"));
    }

    #[test]
    fn a_record_may_be_followed_by_other_bytes() {
        let record = seal("object", &17).unwrap();
        let file = [&record[..], b"pieces"].concat();
        let mut from = &file[..];
        let Sealed { content, bytes } = read::<u32>("object", &mut from, 2).unwrap();
        assert_eq!((content, bytes, from), (17, record.len() as u64, &b"pieces"[..]));
        assert!(matches!(read::<u32>("object", &mut &file[..], 1), Err(Flaw::Torn)));
    }
}
