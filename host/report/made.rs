//! Date and machine of a report.

use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::host_memory_bytes;

/// The date and time of now, such as `2026-11-27 09:57 UTC`.
pub(super) fn date() -> String {
    date_at(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The date and time `seconds` after the beginning of 1970.
fn date_at(seconds: u64) -> String {
    // Years of March to February in eras of 400 years: a leap day ends its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (year, minute) = (400 * era + year + next, seconds / 60 % 1440);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

/// The machine: processor, cores, memory and system.
pub(super) fn machine() -> String {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    let cores = available_parallelism().map_or(1, usize::from);
    let memory = host_memory_bytes()
        .map_or_else(String::new, |bytes| format!(", {:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    let plural = if cores == 1 { "" } else { "s" };
    format!("{name}, {cores} core{plural}{memory}, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_164_800, "2024-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date_at(seconds), date);
        }
        assert!(date().starts_with("2"), "{}", date());
        assert!(machine().contains(" core"), "{}", machine());
    }
}
