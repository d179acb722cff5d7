//! Memory of this process and of this machine.

/// The most memory that this process has had so far, in bytes, pages of mapped files included; none where the system
/// does not say.
pub fn peak_host_bytes() -> Option<u64> {
    bytes_in("/proc/self/status", "VmHWM:")
}

/// The memory of this machine, in bytes; none where the system does not say.
pub fn host_memory_bytes() -> Option<u64> {
    bytes_in("/proc/meminfo", "MemTotal:")
}

/// What the line of `file` that begins with `name` says, in kB.
fn bytes_in(file: &str, name: &str) -> Option<u64> {
    kibibytes(&std::fs::read_to_string(file).ok()?, name)
}

/// The bytes that `text` says in kB behind `name`, at the beginning of a line.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.checked_mul(1024)
}

/// The number behind `name`, at the beginning of a line.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| words.next().filter(|&word| word == name).and(words.next()))?.parse().ok()
}
