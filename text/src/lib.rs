//! Text of messages: one line of any text, paths, and numbers with separated thousands.

use std::fmt::{Display, Write};
use std::path::Path;

/// Maximum number of bytes of a path in an error.
const PATH: usize = 400;

/// Makes `text` one line of at most `most` bytes (at least 16). Control characters are escaped, so
/// text can neither move the cursor nor start a line. The middle of longer text is left out.
///
/// ```
/// assert_eq!(tagore_text::one_line("a\nb\x1b[2J", 100), "a\\nb\\u{1b}[2J");
/// assert_eq!(tagore_text::one_line(&"x".repeat(99), 20), "xxxxxxxx...xxxxxxxxx");
/// ```
pub fn one_line(text: &str, most: usize) -> String {
    const GAP: &str = "...";
    // Only the part of a long text that can be shown is escaped.
    let (begin, end) = if text.len() <= most {
        (text, "")
    } else {
        (&text[..text.floor_char_boundary(most)], &text[text.ceil_char_boundary(text.len() - most)..])
    };
    let (begin, end) = (escaped(begin), escaped(end));
    if end.is_empty() && begin.len() <= most {
        return begin;
    }
    let end = if end.is_empty() { &begin } else { &end };
    let room = most.saturating_sub(GAP.len());
    let head = &begin[..begin.floor_char_boundary(room / 2)];
    let tail = &end[end.ceil_char_boundary(end.len() - (room - head.len()).min(end.len()))..];
    format!("{head}{GAP}{tail}")
}

/// Formats `path` on one line, as errors show it. Bytes outside UTF-8 become `\xNN`; for the rest
/// see [`one_line`].
///
/// ```
/// use std::path::Path;
/// assert_eq!(tagore_text::path_text(Path::new("a\tb.fbin")), "a\\tb.fbin");
/// ```
pub fn path_text(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    one_line(&text, PATH)
}

/// Formats a number of at least 0 with separated thousands.
///
/// ```
/// assert_eq!(tagore_text::grouped(1_234_567), "1,234,567");
/// assert_eq!(tagore_text::grouped(1234.5), "1,234.5");
/// ```
pub fn grouped(number: impl Display) -> String {
    let number = number.to_string();
    let end = number.find(|character: char| !character.is_ascii_digit()).unwrap_or(number.len());
    let (digits, rest) = number.split_at(end);
    let mut text = String::with_capacity(number.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Whether `character` moves the cursor, ends a line, or changes the direction of the text after
/// it.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_short_and_holds_no_control_characters() {
        let texts = ["", "short", "\u{1b}]0;title\u{7}", "a\r\nb", "\u{202e}evil", "ééééééééééééééééééééé"];
        for text in texts.into_iter().map(str::to_owned).chain([1, 15, 16, 17, 5000].map(|n| "\n".repeat(n)))
        {
            for most in [16, 17, 40, 1000] {
                let line = one_line(&text, most);
                assert!(line.len() <= most, "{} bytes of {most}: {line}", line.len());
                assert!(!line.chars().any(is_unprintable), "{line}");
            }
        }
        assert_eq!(one_line("plain text, é", 1000), "plain text, é");
    }

    #[test]
    fn thousands_are_separated() {
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(count), text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn path_bytes_outside_utf8_are_escaped() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"a\xff\n\xc3\xa9.fbin"));
        assert_eq!(path_text(path), "a\\xff\\né.fbin");
        assert!(path_text(Path::new(&"x".repeat(5000))).len() <= PATH);
    }
}
