//! Files that have no name any more, but that processes still hold: they take their place on the disk until then.

use std::collections::HashSet;
use std::fs::read_dir;
use std::os::fd::OwnedFd;

use rustix::fs::{fstat, stat};

use super::tree::disk_bytes;

/// Open files that are looked at in all.
const MOST: usize = 1_000_000;
/// Where a process sees its workspace, from its folder in `/proc` on.
const SEEN_AS: &str = "root/workspace";

/// The processes of this machine that have `folder` as their `/workspace`, as far as that can be seen.
pub(super) fn guests(folder: &OwnedFd) -> Vec<u32> {
    let Ok(ours) = fstat(folder) else { return Vec::new() };
    let processes = read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Nothing is opened by this, whatever it is.
    let is_there = |process: &u32| {
        stat(format!("/proc/{process}/{SEEN_AS}"))
            .is_ok_and(|theirs| (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    };
    processes.filter(is_there).collect()
}

/// Bytes of the files on the disk of `folder` that have no name and that one of the processes has open or mapped. What cannot be known,
/// for want of rights or because the process is gone, does not count.
pub(super) fn bytes(folder: &OwnedFd, processes: &[u32]) -> u64 {
    let Ok(device) = fstat(folder).map(|stat| stat.st_dev) else {
        return 0;
    };
    let mut known = HashSet::new();
    let entries = processes.iter().flat_map(|process| {
        ["fd", "map_files"].into_iter().flat_map(move |list| {
            read_dir(format!("/proc/{process}/{list}"))
                .into_iter()
                .flatten()
                .flatten()
        })
    });
    let mut total = 0_u64;
    for entry in entries.take(MOST) {
        // Nothing is opened by this, whatever it is.
        let Ok(stat) = stat(entry.path()) else { continue };
        if stat.st_nlink == 0 && stat.st_dev == device && known.insert(stat.st_ino) {
            total = total.saturating_add(disk_bytes(&stat));
        }
    }
    total
}
