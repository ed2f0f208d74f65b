//! Removed files that processes still hold. Such files take space on disk until they are closed.
//!
//! A process is examined by its threads, because each may have open files of its own, and may outlive the main thread. Files
//! whose descriptors wait in a socket are listed nowhere, but the number of such descriptors is known.
//! descriptors are on their way in a socket are in no list; that there are some shows.

use std::collections::HashSet;
use std::fs::{self, read_dir};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, fstat, stat};

use super::beneath::kind;
use super::tree::disk_bytes;

/// Most open files that are examined.
const MOST: usize = 1_000_000;
/// The path from a process's folder in `/proc` to its view of the workspace.
const SEEN_AS: &str = "root/workspace";

/// The files that processes hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Bytes of files without a name.
    pub(super) bytes: u64,
    /// True when descriptors are in flight between the processes. They may belong to any file.
    pub(super) in_flight: bool,
}

/// The numbers among the names in a folder of `/proc`.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn threads(process: u32) -> impl Iterator<Item = u32> + use<> {
    numbers(&format!("/proc/{process}/task"))
}

/// The visible processes on this machine that have `folder` as their `/workspace`.
pub(super) fn guests(folder: &OwnedFd) -> Vec<u32> {
    let Ok(ours) = fstat(folder) else { return Vec::new() };
    // This lookup opens no file.
    let is_there = |thread: u32| {
        stat(format!("/proc/{thread}/{SEEN_AS}"))
            .is_ok_and(|theirs| (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    };
    let is_guest = |process: &u32| {
        // A main thread that has ended has no root.
        let has_root = Path::new(&format!("/proc/{process}/root")).exists();
        is_there(*process) || (!has_root && threads(*process).any(is_there))
    };
    numbers("/proc").filter(is_guest).collect()
}

/// Measures the unnamed files on the disk of `folder` that the processes have open or mapped. A process that is gone or cannot
/// be examined counts nothing.
pub(super) fn look(folder: &OwnedFd, processes: &[u32]) -> Held {
    let mut held = Held::default();
    let Ok(device) = fstat(folder).map(|stat| stat.st_dev) else {
        return held;
    };
    let lists = processes.iter().flat_map(|process| {
        // All threads of a process share its memory.
        let maps = threads(*process).map(|thread| format!("/proc/{thread}/map_files"));
        let maps = maps.filter(|list| read_dir(list).is_ok_and(|mut list| list.next().is_some()));
        threads(*process)
            .map(|thread| format!("/proc/{thread}/fd"))
            .chain(maps.take(1))
    });
    let entries = lists.flat_map(|list| {
        let names = read_dir(&list).into_iter().flatten().flatten();
        names.map(move |entry| (list.clone(), entry.file_name()))
    });
    let mut known = HashSet::new();
    for (list, name) in entries.take(MOST) {
        // This lookup opens no file.
        let path = Path::new(&list).join(&name);
        let Ok(stat) = stat(&path) else { continue };
        if stat.st_nlink == 0 && stat.st_dev == device && known.insert(stat.st_ino) {
            held.bytes = held.bytes.saturating_add(disk_bytes(&stat));
        }
        if kind(&stat) == FileType::Socket && !held.in_flight {
            let info = Path::new(&list).with_file_name("fdinfo").join(&name);
            held.in_flight = fs::read_to_string(info).is_ok_and(|info| in_flight(&info) > 0);
        }
    }
    held
}

/// The number of descriptors that wait in a socket, from its text in `/proc`.
fn in_flight(info: &str) -> u64 {
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
