//! Free memory of the machine, of the process's control groups, and of a device.

use std::fs;
use std::path::{Path, PathBuf};

use super::Limits;
use crate::memory::value;
use crate::{Device, Result, Vectors, platform};

/// Share of free host memory left to other processes: one in `HOST_RESERVE`.
const HOST_RESERVE: u64 = 8;

/// Share of free device memory left: one in `DEVICE_RESERVE`. Plans count buffers, and the
/// allocator rounds up.
const DEVICE_RESERVE: u64 = 16;

/// Folder of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";

impl Limits {
    /// Free memory less a reserve, for an index of `nodes` nodes built on `device`. The reserve is
    /// an eighth of the host memory and a sixteenth of the device memory.
    ///
    /// There is no host limit unless the system reports free memory, as Linux and Windows do. There
    /// is no device limit on the CPU.
    ///
    /// # Errors
    /// If the device is a missing GPU, or fails.
    pub fn available(device: Device, nodes: usize) -> Result<Self> {
        let free = device.gpu_for_graph(nodes)?.map(|gpu| gpu.free_memory()).transpose()?;
        let host_memory = host_memory().map(|bytes| bytes - bytes / HOST_RESERVE);
        let gpu_memory = free.map(|bytes| bytes - bytes / DEVICE_RESERVE);
        Ok(Self { host_memory, gpu_memory, cluster_size: None })
    }
}

/// Whether the rows of `base` stay in memory beside a build of `bytes` bytes: pages of a mapped
/// file do if they fit free memory, less the reserve.
pub(super) fn stays_in_memory(base: &Vectors, bytes: u64) -> bool {
    let rows = (base.len() * base.element_type().row_bytes(base.dim())) as u64;
    let fits = |free: u64| bytes.saturating_add(rows) <= free - free / HOST_RESERVE;
    !base.is_mapped() && base.lent().is_none() || host_memory().is_some_and(fits)
}

/// Starts to read the file of a base in the background, if it fits free memory: the pages then stay
/// there for the build. To be called before the devices are opened; a build [out of
/// core](super::super::OutOfCore) that keeps its base in memory calls it otherwise. Values and
/// results do not change. Returns whether the base fits.
pub fn read_ahead(base: &Vectors) -> bool {
    let fits = stays_in_memory(base, 0);
    if fits {
        base.read_ahead();
    }
    fits
}

/// Free bytes of host memory for this process; `None` if unknown.
fn host_memory() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let groups = read(Path::new("/proc/self/cgroup")).map_or(Vec::new(), |groups| folders(&groups));
    let of_group = |(names, folder): (Names, PathBuf)| {
        let file = |name| read(&folder.join(name));
        of_group(&file(names.limit)?, &file(names.usage)?, &file("memory.stat")?, names.files)
    };
    groups.into_iter().filter_map(of_group).chain(platform::free_memory()).min()
}

/// File and field names of a version of control groups.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Fields of cached file pages, of the group and its subgroups.
    files: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_active_file", "total_inactive_file"],
};

const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", files: ["active_file", "inactive_file"] };

/// Folders of a process's control group and of all groups around it, from its `/proc/self/cgroup`.
/// In a container whose own group looks like the root, only the last folder exists.
fn folders(groups: &str) -> Vec<(Names, PathBuf)> {
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (names, root) = match controllers {
            "" => (V2, PathBuf::from(GROUPS)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (V1, Path::new(GROUPS).join("memory"))
            }
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/'));
        Some(group.ancestors().map(|group| (names, root.join(group))).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

/// Free bytes of a group, from the contents of its files; `None` without a limit. Usage includes
/// cached file pages, which the system drops when it needs memory.
fn of_group(limit: &str, usage: &str, stat: &str, files: [&str; 2]) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    let files: u64 = files.iter().filter_map(|name| value(stat, name)).sum();
    Some(limit.saturating_sub(usage.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn free_memory_of_the_machine_is_read() {
        use crate::memory::kibibytes;
        let meminfo = "MemTotal:       24683520 kB\nMemFree:         1234 kB\nMemAvailable:   24078336 kB\n";
        assert_eq!(kibibytes(meminfo, "MemAvailable:"), Some(24_078_336 << 10));
        for unknown in ["", "MemFree: 12 kB\n", "MemAvailable:\n", "MemAvailable: much\n"] {
            assert_eq!(kibibytes(unknown, "MemAvailable:"), None, "{unknown}");
        }
    }

    #[test]
    fn cached_pages_of_a_group_count_as_free() {
        let stat = "anon 70\nfile 50\nactive_file 10\ninactive_file 30\ntotal_active_file 11\ntotal_inactive_file 33\n";
        assert_eq!(of_group("200\n", "120\n", stat, V2.files), Some(120));
        assert_eq!(of_group("200\n", "120\n", stat, V1.files), Some(124));
        // Usage may exceed the limit for a while, and file pages may exceed the usage.
        assert_eq!(of_group("100", "190", "", V2.files), Some(0));
        assert_eq!(of_group("100", "20", stat, V2.files), Some(100));
        assert_eq!(of_group("max\n", "120\n", stat, V2.files), None);
    }

    #[test]
    fn groups_around_a_group_count() {
        let folders_of = |groups: &str| -> Vec<(Names, String)> {
            let text = |path: PathBuf| path.to_str().unwrap().trim_end_matches('/').to_owned();
            folders(groups).into_iter().map(|(names, path)| (names, text(path))).collect()
        };
        let of =
            |names, paths: &[&str]| paths.iter().map(|&path| (names, path.to_owned())).collect::<Vec<_>>();
        assert_eq!(
            folders_of("0::/user.slice/build\n"),
            of(V2, &["/sys/fs/cgroup/user.slice/build", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"])
        );
        let mixed = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/a\n1:name=systemd:/memory\n0::/\n";
        let mut expected = of(V1, &["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]);
        expected.extend(of(V2, &["/sys/fs/cgroup"]));
        assert_eq!(folders_of(mixed), expected);
        assert!(folders_of("nonsense\n").is_empty());
    }

    #[test]
    fn the_cpu_has_no_limit_of_device_memory() {
        let limits = Limits::available(Device::Cpu, 1_000_000).unwrap();
        assert_eq!((limits.gpu_memory, limits.cluster_size), (None, None));
        #[cfg(target_os = "linux")]
        assert!(limits.host_memory.is_some_and(|bytes| bytes > 1 << 20));
        let emulated = Limits::available(Device::Emulated, 10).unwrap();
        assert!(emulated.gpu_memory.is_some());
    }
}
