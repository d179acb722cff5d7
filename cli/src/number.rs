//! Numbers on the command line: `1000000`, `1_000_000`, `1e6` or `1M`, and bytes such as `4GiB`.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// A whole number.
pub(crate) fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = to_u64(text)?;
    T::try_from(number).map_err(|_| format!("found {text}, expected a smaller number"))
}

/// A whole number within `range`.
pub(crate) fn within<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let (least, most) = (range.start(), range.end());
        let number = to_u64(text)?;
        let fits = T::try_from(number).ok().filter(|_| range.contains(&number));
        fits.ok_or_else(|| format!("found {text}, expected {least} to {most}"))
    }
}

/// A whole number from 1.
pub(crate) fn positive(text: &str) -> Result<u32, String> {
    let number = whole(text)?;
    if number == 0 { Err(format!("found {text}, expected at least 1")) } else { Ok(number) }
}

/// A number that need not be whole.
pub(crate) fn real<T: FromStr>(text: &str) -> Result<T, String> {
    plain(text).parse().map_err(|_| format!("found {text}, expected a number"))
}

/// A number of bytes: `4096`, `96MiB`, `4G` (as GiB) or `4GB` (as 1e9).
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 13] = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("K", 1024.0),
        ("M", 1_048_576.0),
        ("G", 1_073_741_824.0),
        ("T", 1_099_511_627_776.0),
        ("B", 1.0),
    ];
    let lower = text.to_ascii_lowercase();
    let unit = |&(unit, factor): &(&str, f64)| {
        Some((lower.strip_suffix(&unit.to_ascii_lowercase())?.trim_end().to_owned(), factor))
    };
    let expected = || format!("found {text}, expected bytes, such as 4096, 96MiB or 4G");
    let parsed = match UNITS.iter().find_map(unit) {
        // The number before a unit has none.
        Some((number, factor)) if number.ends_with(|last: char| last.is_ascii_digit()) => {
            real(&number).ok().map(|number: f64| (number * factor).trunc())
        }
        Some(_) => None,
        None => return to_u64(text).map_err(|_| expected()),
    };
    let parsed = parsed.filter(|bytes| (0.0..U64_END).contains(bytes)).map(|bytes| bytes as u64);
    parsed.ok_or_else(expected)
}

/// The first number that 64 bits do not hold.
const U64_END: f64 = 18_446_744_073_709_551_616.0;

fn to_u64(text: &str) -> Result<u64, String> {
    let plain = plain(text);
    // Only plain digits are exact above 2^53.
    if let Ok(number) = plain.parse() {
        return Ok(number);
    }
    match plain.parse::<f64>() {
        Ok(number) if number >= U64_END => Err(format!("found {text}, expected a smaller number")),
        Ok(number) if number >= 0.0 && number.fract() == 0.0 => Ok(number as u64),
        _ => Err(format!("found {text}, expected a whole number from 0")),
    }
}

/// The number as Rust has it: without `_` between digits, and with an exponent in place of a unit.
fn plain(text: &str) -> String {
    let (digits, exponent) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], "e3"),
        Some((at, 'M')) => (&text[..at], "e6"),
        Some((at, 'G' | 'B')) => (&text[..at], "e9"),
        _ => (text, ""),
    };
    let is_digit = |side: Option<char>| side.is_some_and(|side| side.is_ascii_digit());
    let kept = |&(at, c): &(usize, char)| {
        c != '_' || !(is_digit(digits[..at].chars().last()) && is_digit(digits[at + 1..].chars().next()))
    };
    digits.char_indices().filter(kept).map(|(_, c)| c).chain(exponent.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_units_and_exponents() {
        let number = |text: &str| whole::<usize>(text).ok();
        for million in ["1000000", "1_000_000", "1e6", "1E6", "1M", "1000k", "1000K", "10e5", "1.0e6", "+1M"]
        {
            assert_eq!(number(million), Some(1_000_000), "{million}");
        }
        for (text, expected) in [("1.1M", 1_100_000), ("0.5G", 500_000_000), ("1.5k", 1500), ("0", 0)] {
            assert_eq!(number(text), Some(expected), "{text}");
        }
        assert_eq!(whole("18446744073709551615"), Ok(u64::MAX));
        for wrong in
            ["", "-1", "1.5", "1e-1", "_1", "1_", "1__0", "k", "1KM", "1m", "inf", "NaN", "1e400", "0x10"]
        {
            assert_eq!(number(wrong), None, "{wrong}");
        }
        assert_eq!(whole::<u16>("1e6"), Err("found 1e6, expected a smaller number".to_owned()));
        assert_eq!(within::<u16>(1..=1024)("1k"), Ok(1000));
        assert_eq!(within::<u16>(1..=1024)("1M"), Err("found 1M, expected 1 to 1024".to_owned()));
        assert_eq!((real::<f32>("1.5k"), real::<f64>("-2")), (Ok(1500.0), Ok(-2.0)));
    }

    #[test]
    fn bytes_have_binary_and_decimal_units() {
        for (text, expected) in [
            ("4096", 4096),
            ("1e6", 1_000_000),
            ("3KiB", 3 << 10),
            ("96MiB", 96 << 20),
            ("4 GiB", 4 << 30),
            ("4G", 4 << 30),
            ("4g", 4 << 30),
            ("4GB", 4_000_000_000),
            ("1.5GiB", 3 << 29),
            ("1_000K", 1_024_000),
            ("2TiB", 2 << 40),
            ("4096B", 4096),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "MiB", "-1", "-1K", "1.5", "4XB", "4KKiB", "99999999999GiB", "infG", "nanG", "4 G G"]
        {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
