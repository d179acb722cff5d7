//! Errors of files that are not read, with the command that makes vectors of them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{file_name, refused};
use crate::error::Error;

/// Bytes of text that show its columns.
const BEGIN: u64 = 1 << 16;

/// The command that runs an expression of Python in which the file is `f`.
pub(super) fn python(path: &Path, import: &str, expression: &str) -> String {
    let file = shell_word(&file_name(path));
    format!("python3 -c \"import sys,{import};f=sys.argv[1];{expression}\" {file}")
}

/// The error of a file that is known to be of another program.
pub(crate) fn other_program(path: &Path) -> Option<Error> {
    let extension = path.extension()?.to_string_lossy().to_ascii_lowercase();
    let file = || shell_word(&file_name(path));
    let command = match extension.as_str() {
        "pt" | "pth" => python(path, "numpy as n,torch as t", "n.save(f+'.npy',t.load(f).float().numpy())"),
        "pkl" | "pickle" => {
            let rows = "n.save(f+'.npy',n.asarray(pickle.load(open(f,'rb')),'f4'))";
            python(path, "pickle,numpy as n", rows)
        }
        "xz" => format!("xz -dk {}", file()),
        "bz2" => format!("bzip2 -dk {}", file()),
        _ => return None,
    };
    let found = format_args!("the extension .{extension}");
    Some(refused(path, found, format_args!("a file as {command} makes")).into())
}

/// The error for text in place of vectors, ids or an index.
pub(crate) fn text_file(path: &Path) -> Error {
    let mut lines = Vec::new();
    // Of a file that cannot be read, nothing is known.
    let _ = File::open(path).map(|file| {
        let mut begin = BufReader::new(file.take(BEGIN));
        while lines.len() < 2 {
            let mut line = Vec::new();
            if !begin.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                break;
            }
            lines.push(String::from_utf8_lossy(&line).trim().to_owned());
        }
    });
    let [first, second] = [0, 1].map(|i| lines.get(i).or(lines.first()).map_or("", String::as_str));
    let command = if first.starts_with('[') {
        python(path, "json,numpy as n", "n.save(f+'.npy',n.array(json.load(open(f)),'f4'))")
    } else if let Some(key) = list_key(first) {
        let rows = format!("n.save(f+'.npy',n.array([json.loads(l)['{key}']for l in open(f)],'f4'))");
        python(path, "json,numpy as n", &rows)
    } else {
        python(
            path,
            "numpy as n",
            &format!("n.save(f+'.npy',n.loadtxt(f,'f4'{},ndmin=2))", columns(first, second)),
        )
    };
    let expected = format_args!("vectors, ids or an index in a binary format, as {command} makes");
    Error::file(path, "text", expected)
}

/// The key of the first list in an object of JSON.
fn list_key(line: &str) -> Option<&str> {
    let before = line.strip_prefix('{')?.split_once('[')?.0;
    let key = before.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?.rsplit('"').next()?;
    key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)).then_some(key)
}

/// Arguments of `loadtxt` for rows of numbers after a line of names, or after a name each.
fn columns(first: &str, second: &str) -> String {
    let separator = [',', ';', '\t'].into_iter().find(|&separator| first.contains(separator));
    let fields = |line: &str| -> Vec<bool> {
        let fields = line.split(|c: char| separator.map_or(c.is_whitespace(), |s| s == c)).map(str::trim);
        fields.filter(|field| !field.is_empty()).map(|field| field.parse::<f32>().is_ok()).collect()
    };
    let mut arguments =
        separator.filter(|s| *s != '\t').map_or(String::new(), |s| format!(",delimiter='{s}'"));
    let second = fields(second);
    // Names in each line but its first field are names of columns.
    if fields(first).iter().skip(1).any(|is_number| !is_number) {
        arguments += ",skiprows=1";
    }
    if let [false, rest @ ..] = second.as_slice()
        && !rest.is_empty()
    {
        arguments += &format!(",usecols=range(1,{})", second.len());
    }
    arguments
}

/// Text as one word of a shell's command line.
pub(super) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_text_are_told_by_two_lines() {
        for (first, second, expected) in [
            ("1.5,2", "3,4", ",delimiter=','"),
            ("1.5 2", "3 4", ""),
            ("1.5\t2", "3\t4", ""),
            ("a,b", "3,4", ",delimiter=',',skiprows=1"),
            ("id;a;b", "x;3;4", ",delimiter=';',skiprows=1,usecols=range(1,3)"),
            ("x 1 2", "y 3 4", ",usecols=range(1,3)"),
        ] {
            assert_eq!(columns(first, second), expected, "{first}");
        }
        assert_eq!(list_key(r#"{"id": 3, "vec": [1, 2]}"#), Some("vec"));
        assert_eq!(list_key(r#"{"id": 3}"#), None);
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
