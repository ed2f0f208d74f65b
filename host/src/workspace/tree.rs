//! Trees of hostile files: walked, measured, compared and removed, with a bounded number of open files.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Stat, Uid, chownat, fstat, renameat, statat, unlinkat};
use rustix::io::{Errno, Result};

use super::beneath::{Access, Folder, kind, open_folder, place};

/// The deepest level of folders that is entered. Each level above takes an open file.
const MAX_DEPTH: usize = 64;
/// Most entries of a tree that are visited.
pub(super) const MAX_ENTRIES: usize = 1_000_000;
/// Bytes of names that are remembered of one folder at a time.
const MAX_BATCH: usize = 4_096;

/// The visitor's decision at an entry.
pub(super) enum Next {
    /// Go on, and enter the entry if it is a folder.
    On,
    /// Stop here.
    Stop,
}

/// The end of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walked {
    /// Every entry was visited.
    All,
    /// The visitor stopped the walk.
    Stopped,
    /// The tree has more entries or levels than are visited.
    Beyond,
}

/// An entry that a walk visits.
struct Found<'a> {
    /// The path below the top folder. It may be longer than the kernel allows.
    path: &'a [u8],
    /// The entry's folder, and its name there.
    place: (BorrowedFd<'a>, &'a CStr),
    stat: &'a Stat,
}

/// Calls `visit` with the path and status of each entry. An entry that vanishes meanwhile is skipped. `hidden` is left out at
/// the top.
pub(super) fn walk(
    folder: impl AsFd,
    hidden: Option<&CStr>,
    visit: &mut dyn FnMut(&[u8], &Stat) -> Next,
) -> Result<Walked> {
    walk_places(folder, hidden, &mut |found| visit(found.path, found.stat))
}

/// Walks as `walk` does, for visitors that act on entries.
fn walk_places(folder: impl AsFd, hidden: Option<&CStr>, visit: &mut dyn FnMut(&Found<'_>) -> Next) -> Result<Walked> {
    let mut seen = 0;
    let mut path = Vec::new();
    let device = rustix::fs::fstat(&folder)?.st_dev;
    // The caller owns the top folder, so the first level has none to close.
    let mut levels: Vec<(Dir, usize, Option<Folder>)> = vec![(Dir::read_from(&folder)?, 0, None)];
    let mut beyond = false;
    while let Some((level, length, _)) = levels.last_mut() {
        path.truncate(*length);
        let Some(entry) = level.read() else {
            levels.pop();
            continue;
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::NOENT) => {
                levels.pop();
                continue;
            }
            Err(error) => return Err(error),
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || (levels.len() == 1 && hidden == Some(name)) {
            continue;
        }
        let parent = levels[levels.len() - 1].0.fd()?;
        let Some(stat) = vanished(statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))? else {
            continue;
        };
        seen += 1;
        if seen > MAX_ENTRIES {
            return Ok(Walked::Beyond);
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let found = Found {
            path: &path,
            place: (parent, name),
            stat: &stat,
        };
        if let Next::Stop = visit(&found) {
            return Ok(Walked::Stopped);
        }
        // A mount is not part of this tree.
        if kind(&stat) != FileType::Directory || stat.st_dev != device {
            continue;
        }
        if levels.len() > MAX_DEPTH {
            beyond = true;
            continue;
        }
        if let Some(inner) = vanished(open_folder(parent, name, Access::Look))? {
            levels.push((Dir::read_from(&inner)?, path.len(), Some(inner)));
        }
    }
    Ok(if beyond { Walked::Beyond } else { Walked::All })
}

/// `None` for an entry that has vanished, or was replaced.
fn vanished<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        found => found.map(Some),
    }
}

/// The space that a tree takes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk: holes in files take none, and a file with several names counts once.
    pub bytes: u64,
    /// Files, folders, links and other entries with a name.
    pub files: u64,
    /// True when descriptors wait in guests' sockets. They may keep unnamed files on disk, which cannot be counted. So a guest
    /// with such descriptors exceeds every quota.
    pub in_flight: bool,
    /// True when everything was counted. A tree that is too deep or too large is not counted fully, and exceeds every quota.
    pub complete: bool,
}

/// Bytes of a block in a file's status.
const BLOCK_BYTES: u64 = 512;

/// The space that an entry takes on disk, in bytes.
pub(super) fn disk_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or_default() * BLOCK_BYTES
}

/// Measures a tree.
pub(super) fn usage(folder: &OwnedFd, hidden: Option<&CStr>) -> Result<Usage> {
    let mut usage = Usage::default();
    let mut shared = HashSet::new();
    let walked = walk(folder, hidden, &mut |_, stat| {
        usage.files += 1;
        if stat.st_nlink < 2 || kind(stat) == FileType::Directory || shared.insert(stat.st_ino) {
            usage.bytes = usage.bytes.saturating_add(disk_bytes(stat));
        }
        Next::On
    })?;
    usage.complete = walked == Walked::All;
    Ok(usage)
}

/// Gives a tree's entries of one user to another, who also becomes the group. Returns `Beyond` when entries may be left.
pub(super) fn give(folder: BorrowedFd<'_>, from: u32, to: u32) -> Result<Walked> {
    let mut failed = Ok(());
    let walked = walk_places(folder, None, &mut |found| {
        if found.stat.st_uid != from {
            return Next::On;
        }
        let (parent, name) = found.place;
        let given = vanished(place(parent, name.to_bytes())).and_then(|place| match place {
            // Another entry may have come in its place.
            Some(place) if fstat(&place)?.st_uid == from => {
                let (user, group) = (Some(Uid::from_raw(to)), Some(Gid::from_raw(to)));
                chownat(&place, c"", user, group, AtFlags::EMPTY_PATH)
            }
            _ => Ok(()),
        });
        match given {
            Ok(()) => Next::On,
            Err(error) => {
                failed = Err(error);
                Next::Stop
            }
        }
    })?;
    failed.map(|()| walked)
}

/// Returns true when all names of a file are in the tree. Another name could be anywhere on the disk.
pub(super) fn has_all_names(folder: &OwnedFd, hidden: Option<&CStr>, file: &Stat) -> Result<bool> {
    let most = u64::from(u32::try_from(file.st_nlink).unwrap_or(u32::MAX));
    let mut found = 0;
    walk(folder, hidden, &mut |_, stat| {
        found += u64::from((stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino));
        if found < most { Next::On } else { Next::Stop }
    })?;
    Ok(found >= most)
}

/// The facts that tell one version of a file from another. Its writer can set all times except the last one here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    inode: u64,
    pub(super) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    fn of(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| (seconds, i64::try_from(nanoseconds).unwrap_or_default());
        Self {
            inode: stat.st_ino,
            size: size(stat),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The length of a file.
pub(super) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// The files of a tree by path, at most `most` of them.
pub(super) fn versions(
    folder: &OwnedFd,
    hidden: Option<&CStr>,
    most: usize,
) -> Result<(BTreeMap<Vec<u8>, Version>, bool)> {
    let mut versions = BTreeMap::new();
    let walked = walk(folder, hidden, &mut |path, stat| {
        if kind(stat) == FileType::Directory {
            return Next::On;
        }
        if versions.len() == most {
            return Next::Stop;
        }
        versions.insert(path.to_vec(), Version::of(stat));
        Next::On
    })?;
    Ok((versions, walked == Walked::All))
}

/// Removes an entry with all its contents: unreadable folders too, and any depth of folders.
pub(super) fn remove(parent: impl AsFd, name: &CStr) -> Result<()> {
    match unlinkat(&parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return removed,
    }
    let top = open_folder(&parent, name, Access::Empty)?;
    empty(top.as_fd(), None)?;
    drop(top);
    unlinkat(&parent, name, AtFlags::REMOVEDIR)
}

/// Removes all contents of a folder, except the entry `kept`.
pub(super) fn empty(top: BorrowedFd<'_>, kept: Option<&CStr>) -> Result<()> {
    empty_level(top, top, 0, kept, &mut 0)
}

/// Moves too deep folders to the top, where they are emptied later. So paths stay short, and open files few.
fn empty_level(
    folder: BorrowedFd<'_>,
    top: BorrowedFd<'_>,
    depth: usize,
    kept: Option<&CStr>,
    moved: &mut u64,
) -> Result<()> {
    loop {
        let names = some_names(folder, kept)?;
        if names.is_empty() {
            return Ok(());
        }
        let mut any = false;
        for name in &names {
            match unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {
                    any = true;
                    continue;
                }
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
            let Some(inner) = vanished(open_folder(folder, name, Access::Empty))? else {
                continue;
            };
            if depth < MAX_DEPTH {
                empty_level(inner.as_fd(), top, depth + 1, None, moved)?;
                drop(inner);
                unlinkat(folder, name, AtFlags::REMOVEDIR)?;
            } else {
                *moved += 1;
                renameat(folder, name, top, format!(".sandglass-removed-{moved}"))?;
            }
            any = true;
        }
        // All entries vanish as they are read, so another process is still at work.
        if !any {
            return Err(Errno::BUSY);
        }
    }
}

/// Some names in a folder; empty when the folder is empty.
fn some_names(folder: BorrowedFd<'_>, kept: Option<&CStr>) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || kept == Some(name) {
            continue;
        }
        names.push(name.to_owned());
        if names.len() == MAX_BATCH {
            break;
        }
    }
    Ok(names)
}
