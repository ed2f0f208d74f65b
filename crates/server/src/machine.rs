//! The machine's part of a server's load: memory, processors, and the packages of guests.
//!
//! Decisions: `docs/internals/server.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use sandglass_host::BackendKind;
use sandglass_host::args::GuestArgs;
use sandglass_host::runtime::Python;
use sha2::{Digest, Sha256};

/// The folder in which control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The memory of the server and its guests, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// The part in use that the kernel cannot take back.
    pub(super) used: u64,
    /// All that may be used; 0 if that is not known.
    pub(super) all: u64,
}

impl Memory {
    /// The memory of this process's control group and of those above it, or of the machine: whichever is used up first.
    pub(super) fn now() -> Self {
        let machine = fs::read_to_string("/proc/meminfo").ok();
        let machine = machine.and_then(|text| of_machine(&text));
        let groups = fs::read_to_string("/proc/self/cgroup").ok();
        let group = groups.and_then(|text| Some(text.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned()));
        let group = group.unwrap_or_else(|| "/".to_owned());
        let own = PathBuf::from(format!("{CGROUPS}{group}"));
        let of_groups = own
            .ancestors()
            .take_while(|folder| folder.starts_with(CGROUPS))
            .filter_map(of_group);
        let tightest = of_groups.chain(machine).min_by_key(|memory| memory.all - memory.used);
        tightest.unwrap_or_default()
    }
}

/// The memory in `/proc/meminfo`.
fn of_machine(text: &str) -> Option<Memory> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let all = value("MemTotal:")?;
    Some(Memory {
        used: all.saturating_sub(value("MemAvailable:")?),
        all,
    })
}

/// The memory of a control group with a limit. Pages of files do not count, because the kernel can take them back.
fn of_group(folder: &Path) -> Option<Memory> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let all = read("memory.max")?.trim().parse().ok()?; // or "max"
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let back = |name: &str| -> u64 {
        let line = stat.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
    };
    let back = ["inactive_file ", "active_file ", "slab_reclaimable "].map(back);
    let back = back.into_iter().fold(0, u64::saturating_add);
    let used = current.saturating_sub(back).min(all);
    Some(Memory { used, all })
}

/// The number of processors that this process may use.
pub(super) fn processors() -> u64 {
    thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// The digest of the guests' packages, with their versions. Empty if that cannot be found out.
pub(super) async fn packages(guest: &GuestArgs) -> String {
    let mut names = match guest.backend {
        BackendKind::Jupyter => return String::new(),
        BackendKind::Docker => vec![guest.image.clone().unwrap_or_default()],
        BackendKind::Auto | BackendKind::Bubblewrap | BackendKind::Subprocess => {
            let Ok(python) = Python::find(guest.python.as_deref()).await else {
                return String::new();
            };
            let (major, minor) = python.version;
            let version = format!("python{major}.{minor}");
            let mut names = vec![version.clone()];
            for prefix in [&python.prefix, &python.base] {
                for libraries in [format!("lib/{version}"), "lib/python3".to_owned()] {
                    for packages in ["site-packages", "dist-packages"] {
                        names.extend(installed(&prefix.join(&libraries).join(packages)));
                    }
                }
            }
            names
        }
    };
    names.sort();
    names.dedup();
    let digest = Sha256::digest(names.join("\n"));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The packages in a folder: the names of the folders with their facts, which have their versions.
fn installed(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".dist-info")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_machine_is_read() {
        let text = "MemTotal:        4096 kB\nMemFree:          100 kB\nMemAvailable:    1024 kB\n";
        let (used, all) = (3072 * 1024, 4096 * 1024);
        assert_eq!(of_machine(text), Some(Memory { used, all }));
        for odd in [
            "",
            "MemTotal: much\nMemAvailable: 1 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(of_machine(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_memory_of_a_group_is_read_if_it_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(of_group(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(of_group(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(of_group(folder.path()), Some(Memory { used: 700, all: 1000 }));
        write("memory.stat", "anon 1\ninactive_file 300\nactive_file 2\n");
        assert_eq!(of_group(folder.path()), Some(Memory { used: 398, all: 1000 }));
        write("memory.current", "2000\n");
        assert_eq!(of_group(folder.path()), Some(Memory { used: 1000, all: 1000 }));
    }

    #[tokio::test]
    async fn packages_have_one_digest() {
        let guest = GuestArgs {
            backend: BackendKind::Docker,
            python: None,
            image: Some("a".to_owned()),
            runtime: None,
            guest_users: sandglass_host::users::Users::default(),
        };
        let other = GuestArgs {
            image: Some("b".to_owned()),
            ..guest.clone()
        };
        let digest = packages(&guest).await;
        assert_eq!((digest.len(), &digest), (16, &packages(&guest).await));
        assert_ne!(digest, packages(&other).await);
    }
}
