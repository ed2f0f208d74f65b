//! The folders of a control group, and the texts that are written there and read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Bounds, Events};

/// Microseconds in which a share of the processors is measured out.
const CPU_PERIOD_US: u64 = 100_000;
/// Bytes that may wait in TCP sockets, which do not count as memory. The machine also has one bound for all of them.
const SOCKET_BYTES: u64 = 64 << 20;
/// The kernel takes no less.
const MIN_CPU_QUOTA_US: u64 = 1_000;

/// Which of the kernel's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A tree per controller.
    V1,
    /// Version 2, with one tree for all controllers.
    V2,
}

/// The folders of one group. With version 2 they are the same folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPath {
    /// Which interface.
    pub version: Version,
    /// The folder of the memory controller.
    pub memory: PathBuf,
    /// The folder of the controller for processes and threads.
    pub pids: PathBuf,
    /// The folder of the CPU controller, if there is one.
    pub cpu: Option<PathBuf>,
}

/// A value for a file of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The file.
    pub file: PathBuf,
    /// The text to write.
    pub value: String,
    /// True if some kernels lack the file.
    pub optional: bool,
}

impl CgroupPath {
    /// The group with this name below the group.
    pub fn child(&self, name: &str) -> Self {
        Self {
            version: self.version,
            memory: self.memory.join(name),
            pids: self.pids.join(name),
            cpu: self.cpu.as_ref().map(|path| path.join(name)),
        }
    }

    /// Every folder once.
    pub fn folders(&self) -> Vec<&Path> {
        let mut folders = vec![self.memory.as_path()];
        for path in [Some(&self.pids), self.cpu.as_ref()].into_iter().flatten() {
            if !folders.contains(&path.as_path()) {
                folders.push(path);
            }
        }
        folders
    }

    /// The files that take a single thread, whose later children are then in the group too. Only version 1 can move a thread alone.
    pub fn tasks(&self) -> Vec<PathBuf> {
        match self.version {
            Version::V1 => self.folders().into_iter().map(|folder| folder.join("tasks")).collect(),
            Version::V2 => Vec::new(),
        }
    }

    /// The writes that set these bounds, in the order that the kernel needs.
    pub fn settings(&self, bounds: &Bounds) -> Vec<Setting> {
        let setting = |folder: &Path, file: &str, value: String, optional: bool| Setting {
            file: folder.join(file),
            value,
            optional,
        };
        let memory = bounds.memory_bytes.to_string();
        let quota = cpu_quota_us(bounds.cpus);
        let mut settings = Vec::new();
        match self.version {
            Version::V1 => {
                settings.push(setting(&self.memory, "memory.limit_in_bytes", memory.clone(), false));
                // The bound of memory and swap together, equal to that of memory, so there is no swap. The file is missing if
                // swap is not counted.
                settings.push(setting(&self.memory, "memory.memsw.limit_in_bytes", memory, true));
                settings.extend(self.sockets());
            }
            Version::V2 => {
                settings.push(setting(&self.memory, "memory.max", memory, false));
                settings.push(setting(&self.memory, "memory.swap.max", "0".to_owned(), true));
            }
        }
        settings.push(setting(&self.pids, "pids.max", bounds.pids.to_string(), false));
        match (&self.cpu, self.version) {
            (Some(cpu), Version::V1) => {
                settings.push(setting(cpu, "cpu.cfs_period_us", CPU_PERIOD_US.to_string(), false));
                settings.push(setting(cpu, "cpu.cfs_quota_us", quota.to_string(), false));
            }
            (Some(cpu), Version::V2) => {
                settings.push(setting(cpu, "cpu.max", format!("{quota} {CPU_PERIOD_US}"), false));
            }
            (None, _) => {}
        }
        settings
    }

    /// The bound on data in TCP sockets, if the kernel counts such data separately. Without a bound, the kernel counts nothing.
    pub fn sockets(&self) -> Option<Setting> {
        let file = self.memory.join("memory.kmem.tcp.limit_in_bytes");
        (self.version == Version::V1).then(|| Setting {
            file,
            value: SOCKET_BYTES.to_string(),
            optional: true,
        })
    }

    /// The file with the count of kills for lack of memory.
    pub fn memory_events(&self) -> PathBuf {
        self.memory.join(match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        })
    }

    /// The counts of events since the group was made.
    pub fn events(&self) -> Events {
        let read = |file: PathBuf, key| {
            let text = std::fs::read_to_string(file).ok();
            text.and_then(|text| count(&text, key)).unwrap_or(0)
        };
        Events {
            oom_kills: read(self.memory_events(), "oom_kill"),
            pids_refused: read(self.pids.join("pids.events"), "max"),
        }
    }

    /// Bytes of memory that belong to no file on a disk, so the kernel cannot take them back.
    pub fn held_bytes(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.memory.join("memory.stat")).ok()?;
        let anonymous = match self.version {
            Version::V1 => "rss",
            Version::V2 => "anon",
        };
        Some(count(&text, anonymous)? + count(&text, "shmem").unwrap_or(0))
    }

    /// The files of the memory in use now, and of the most there ever was.
    pub fn memory_usage(&self) -> (PathBuf, PathBuf) {
        let (now, peak) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
            Version::V2 => ("memory.current", "memory.peak"),
        };
        (self.memory.join(now), self.memory.join(peak))
    }
}

fn cpu_quota_us(cpus: f64) -> u64 {
    let quota = cpus * CPU_PERIOD_US as f64;
    if quota.is_finite() {
        (quota as u64).max(MIN_CPU_QUOTA_US)
    } else {
        CPU_PERIOD_US
    }
}

/// The number after `key` on its line, as in `memory.events` and `pids.events`.
pub fn count(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, number)| number.trim().parse().ok())
}

/// The groups below which this process may make others, the nearest first. The inputs are `/proc/self/mountinfo` and
/// `/proc/self/cgroup`. Version 1 is used if it controls memory and processes, else version 2. In version 2, a group with
/// processes cannot have bounded groups below it, so its ancestors are candidates too.
pub fn candidates(mountinfo: &str, own: &str) -> Vec<CgroupPath> {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
    let v1 = |controller: &str| {
        let mount = mounts
            .iter()
            .find(|mount| mount.controllers.iter().any(|name| name == controller))?;
        let (_, path) = own
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
            .find(|(names, _)| names.split(',').any(|name| name == controller))?;
        Some(mount.within(path))
    };
    if let (Some(memory), Some(pids)) = (v1("memory"), v1("pids")) {
        let version = Version::V1;
        return vec![CgroupPath {
            version,
            memory,
            pids,
            cpu: v1("cpu"),
        }];
    }
    let Some(mount) = mounts.iter().find(|mount| mount.unified) else {
        return Vec::new();
    };
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    mount
        .within(own)
        .ancestors()
        .take_while(|path| path.starts_with(&mount.point))
        .map(|path| CgroupPath {
            version: Version::V2,
            memory: path.to_owned(),
            pids: path.to_owned(),
            cpu: Some(path.to_owned()),
        })
        .collect()
}

struct Mount {
    root: String,
    point: PathBuf,
    controllers: Vec<String>,
    unified: bool,
}

impl Mount {
    /// Parses a line such as `36 31 0:33 / /sys/fs/cgroup/devices rw,relatime shared:1 - cgroup cgroup rw,devices`.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1).unwrap_or_default();
        let unified = kind == "cgroup2";
        if !unified && kind != "cgroup" {
            return None;
        }
        Some(Self {
            root: root.to_owned(),
            point: unescape(point),
            controllers: if unified {
                Vec::new()
            } else {
                options.split(',').map(str::to_owned).collect()
            },
            unified,
        })
    }

    /// A group's folder. In a container the mount may begin at the container's own group.
    fn within(&self, group: &str) -> PathBuf {
        let below = match self.root.as_str() {
            "/" => group,
            root => group.strip_prefix(root).unwrap_or_default(),
        };
        let below = below.trim_matches('/');
        if below.is_empty() || below.split('/').any(|part| part == "..") {
            self.point.clone()
        } else {
            self.point.join(below)
        }
    }
}

/// Blanks and the like are written as `\040` there.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, code.and_then(|digits| u8::from_str_radix(digits, 8).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    const V2: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    fn bounds() -> Bounds {
        Bounds {
            memory_bytes: 1 << 30,
            pids: 64,
            cpus: 1.5,
        }
    }

    fn written(path: &CgroupPath, bounds: &Bounds) -> Vec<(String, String)> {
        let settings = path.settings(bounds).into_iter();
        settings
            .map(|setting| (setting.file.display().to_string(), setting.value))
            .collect()
    }

    #[test]
    fn version_1_is_a_folder_per_controller_at_the_own_group() {
        let own = "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/jobs\n0::/other\n";
        let places = candidates(V1, own);
        assert_eq!(places.len(), 1);
        let path = &places[0];
        assert_eq!(path.version, Version::V1);
        assert_eq!(path.memory, Path::new("/sys/fs/cgroup/memory/jobs/7"));
        assert_eq!(path.pids, Path::new("/sys/fs/cgroup/pids"));
        assert_eq!(path.cpu.as_deref(), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct/jobs")));
        assert_eq!(path.folders().len(), 3);
    }

    #[test]
    fn version_2_is_the_own_group_and_those_above_it() {
        let places = candidates(V2, "0::/system.slice/host.service\n");
        let paths: Vec<_> = places.iter().map(|path| path.memory.to_str().unwrap()).collect();
        let nearest_first = [
            "/sys/fs/cgroup/system.slice/host.service",
            "/sys/fs/cgroup/system.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(paths, nearest_first);
        assert!(
            places
                .iter()
                .all(|path| path.version == Version::V2 && path.folders().len() == 1)
        );
    }

    #[test]
    fn without_the_controllers_of_version_1_the_unified_tree_counts() {
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let places = candidates(unified, "3:cpu:/\n0::/");
        assert_eq!(places.len(), 1);
        assert_eq!(places[0].memory, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(candidates("22 27 0:21 / /proc rw - proc proc rw", "0::/"), []);
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_tree() {
        let mounts = "35 31 0:32 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            candidates(mounts, "0::/docker/ab")[0].memory,
            Path::new("/sys/fs/cgroup")
        );
        assert_eq!(
            candidates(mounts, "0::/docker/ab/job")[0].memory,
            Path::new("/sys/fs/cgroup/job")
        );
        // The group lies outside the visible part of the tree.
        assert_eq!(
            candidates(mounts, "0::/../other")[0].memory,
            Path::new("/sys/fs/cgroup")
        );
    }

    #[test]
    fn blanks_in_a_mount_point_are_read() {
        let mounts = "35 31 0:32 / /my\\040groups rw - cgroup2 cgroup2 rw";
        assert_eq!(candidates(mounts, "0::/")[0].memory, Path::new("/my groups"));
    }

    #[test]
    fn version_1_bounds_memory_before_memory_and_swap() {
        let path = candidates(V1, "8:pids:/\n4:memory:/\n1:cpu,cpuacct:/\n")
            .remove(0)
            .child("s");
        let expected = [
            ("/sys/fs/cgroup/memory/s/memory.limit_in_bytes", "1073741824"),
            ("/sys/fs/cgroup/memory/s/memory.memsw.limit_in_bytes", "1073741824"),
            ("/sys/fs/cgroup/memory/s/memory.kmem.tcp.limit_in_bytes", "67108864"),
            ("/sys/fs/cgroup/pids/s/pids.max", "64"),
            ("/sys/fs/cgroup/cpu,cpuacct/s/cpu.cfs_period_us", "100000"),
            ("/sys/fs/cgroup/cpu,cpuacct/s/cpu.cfs_quota_us", "150000"),
        ];
        assert_eq!(
            written(&path, &bounds()),
            expected.map(|(file, value)| (file.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn version_2_forbids_swap() {
        let path = candidates(V2, "0::/").remove(0).child("s");
        let expected = [
            ("/sys/fs/cgroup/s/memory.max", "1073741824"),
            ("/sys/fs/cgroup/s/memory.swap.max", "0"),
            ("/sys/fs/cgroup/s/pids.max", "64"),
            ("/sys/fs/cgroup/s/cpu.max", "150000 100000"),
        ];
        assert_eq!(
            written(&path, &bounds()),
            expected.map(|(file, value)| (file.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_share_of_the_processors_is_never_too_small_for_the_kernel() {
        assert_eq!(cpu_quota_us(0.0), 1_000);
        assert_eq!(cpu_quota_us(-3.0), 1_000);
        assert_eq!(cpu_quota_us(0.5), 50_000);
        assert_eq!(cpu_quota_us(f64::NAN), 100_000);
    }

    #[test]
    fn counts_are_found_by_their_whole_name() {
        let text = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(count(text, "oom_kill"), Some(2));
        assert_eq!(count(text, "oom"), Some(3));
        assert_eq!(count(text, "kill"), None);
        assert_eq!(count("oom_kill many\n", "oom_kill"), None);
        assert_eq!(count("max 7\n", "max"), Some(7));
    }
}
