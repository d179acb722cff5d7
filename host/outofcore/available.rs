//! What memory is free, of the machine and of the control group that the process is in.

use std::fs;
use std::path::{Path, PathBuf};

use super::Limits;
use crate::memory::{kibibytes, value};
use crate::{Device, Result};

/// Of free host memory one part in so many is left to others.
const HOST_RESERVE: u64 = 8;

/// Of free device memory one part in so many is left: plans are of buffers, and an allocator rounds up.
const DEVICE_RESERVE: u64 = 16;

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

impl Limits {
    /// What is free, less a reserve, for an index of `nodes` nodes that is built on `device`: of host memory an eighth, of
    /// device memory a sixteenth. Where the system does not say (it does on Linux), or the CPU builds, there is
    /// no limit.
    ///
    /// # Errors
    /// If the device is a GPU that is not there, or fails.
    pub fn available(device: Device, nodes: usize) -> Result<Self> {
        let free = device.gpu_for_graph(nodes)?.map(|gpu| gpu.free_memory()).transpose()?;
        let host_memory = host_memory().map(|bytes| bytes - bytes / HOST_RESERVE);
        let gpu_memory = free.map(|bytes| bytes - bytes / DEVICE_RESERVE);
        Ok(Self { host_memory, gpu_memory, cluster_size: None })
    }
}

/// Bytes of host memory that this process may still take, if anything says so.
fn host_memory() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|meminfo| of_machine(&meminfo));
    let groups = read(Path::new("/proc/self/cgroup")).map_or(Vec::new(), |groups| folders(&groups));
    let of_group = |(names, folder): (Names, PathBuf)| {
        let file = |name| read(&folder.join(name));
        of_group(&file(names.limit)?, &file(names.usage)?, &file("memory.stat")?, names.files)
    };
    groups.into_iter().filter_map(of_group).chain(machine).min()
}

/// Bytes that are free, or would be if pages of files were dropped, by `/proc/meminfo`.
fn of_machine(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemAvailable:")
}

/// The names of what a version of control groups says about memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Pages of files, of the group and those in it.
    files: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_active_file", "total_inactive_file"],
};

const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", files: ["active_file", "inactive_file"] };

/// The folders of the groups whose limits hold for a process, by its `/proc/self/cgroup`: of its own group, and of all
/// those that it is in. In a container that sees its own group as the root, the last of them is there alone.
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

/// Bytes that a group may still take, by the contents of its files; none if it has no limit. Pages of files, which
/// count as used, give way.
fn of_group(limit: &str, usage: &str, stat: &str, files: [&str; 2]) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    let files: u64 = files.iter().filter_map(|name| value(stat, name)).sum();
    Some(limit.saturating_sub(usage.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_what_is_available() {
        let meminfo = "MemTotal:       24683520 kB\nMemFree:         1234 kB\nMemAvailable:   24078336 kB\n";
        assert_eq!(of_machine(meminfo), Some(24_078_336 << 10));
        for unknown in ["", "MemFree: 12 kB\n", "MemAvailable:\n", "MemAvailable: much\n"] {
            assert_eq!(of_machine(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn groups_have_what_others_and_pages_of_files_leave() {
        let stat = "anon 70\nfile 50\nactive_file 10\ninactive_file 30\ntotal_active_file 11\ntotal_inactive_file 33\n";
        assert_eq!(of_group("200\n", "120\n", stat, V2.files), Some(120));
        assert_eq!(of_group("200\n", "120\n", stat, V1.files), Some(124));
        // More than the limit, as is possible for a while; a file that was in use by another group.
        assert_eq!(of_group("100", "190", "", V2.files), Some(0));
        assert_eq!(of_group("100", "20", stat, V2.files), Some(100));
        assert_eq!(of_group("max\n", "120\n", stat, V2.files), None);
    }

    #[test]
    fn the_groups_around_a_group_count() {
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
    fn a_cpu_has_no_limit_of_device_memory() {
        let limits = Limits::available(Device::Cpu, 1_000_000).unwrap();
        assert_eq!((limits.gpu_memory, limits.cluster_size), (None, None));
        #[cfg(target_os = "linux")]
        assert!(limits.host_memory.is_some_and(|bytes| bytes > 1 << 20));
        let emulated = Limits::available(Device::Emulated, 10).unwrap();
        assert!(emulated.gpu_memory.is_some());
    }
}
