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
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
