//! Paths below a folder to which a hostile process writes. Functions here follow no link, cross into no other file system, and
//! never leave the folder, whatever changes meanwhile. The kernel ensures this (`openat2`), and all work uses file descriptors.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, chmod, fchmod, fstat, openat, openat2};
use rustix::io::{Errno, Result};

/// The longest path, in bytes.
const MAX_PATH_BYTES: usize = 4_096;
/// The longest name of file systems, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Most tries to open a path while folders are being renamed.
const ATTEMPTS: u32 = 16;

/// Splits an untrusted path into names that only lead down.
pub(super) fn names(path: &[u8]) -> std::result::Result<Vec<&OsStr>, &'static str> {
    if path.len() > MAX_PATH_BYTES {
        return Err("the path is too long");
    }
    if path.contains(&0) {
        return Err("a path cannot contain null characters");
    }
    let path = match path.strip_prefix(b"/workspace") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
        _ if path.starts_with(b"/") => return Err("the path leads out of the workspace"),
        _ => path,
    };
    let names = path.split(|byte| *byte == b'/').map(OsStr::from_bytes);
    let names: Vec<&OsStr> = names.filter(|name| !name.is_empty() && *name != ".").collect();
    if names.contains(&OsStr::new("..")) {
        return Err("the path leads out of the workspace, or may do so: write it without \"..\"");
    }
    if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
        return Err("a name in the path is too long");
    }
    Ok(names)
}

/// Opens `path` without following links. The empty path is the folder itself.
pub(super) fn open(folder: impl AsFd, path: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let path = path.as_ref();
    let path = if path.is_empty() { OsStr::new(".") } else { path };
    let flags = flags | OFlags::CLOEXEC;
    let mut attempt = 0;
    loop {
        match openat2(&folder, path, flags, Mode::empty(), resolve) {
            // The kernel cannot exclude a rename during the lookup.
            Err(Errno::AGAIN) if attempt < ATTEMPTS => attempt += 1,
            opened => return opened,
        }
    }
}

/// A descriptor of the place at a path in bytes. The last name may be a link, which is not followed.
pub(super) fn place(folder: impl AsFd, path: &[u8]) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(folder, path, flags, Mode::empty(), resolve)
}

/// An open folder. When dropped, it gets its mode back if the mode was changed.
#[derive(Debug)]
pub(super) struct Folder {
    file: OwnedFd,
    mode: Option<Mode>,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            let _ = fchmod(&self.file, mode);
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens a folder of any mode. A guest may have removed its own right to read the folder, and with it the host's.
pub(super) fn open_folder(parent: impl AsFd, name: &CStr, access: Access) -> Result<Folder> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let needed = Mode::RUSR | Mode::XUSR;
    let (file, mode) = match openat(&parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let place = openat(&parent, name, flags | OFlags::PATH, Mode::empty())?;
            let mode = Mode::from_raw_mode(fstat(&place)?.st_mode);
            // `fchmod` does not work on an `O_PATH` descriptor. Its entry in /proc leads to exactly this folder.
            let itself = format!("/proc/self/fd/{}", place.as_raw_fd());
            chmod(&itself, mode | Mode::RWXU)?;
            match openat(&parent, name, flags, Mode::empty()) {
                Ok(file) => (file, Some(mode)),
                Err(error) => {
                    let _ = chmod(&itself, mode);
                    return Err(error);
                }
            }
        }
        Ok(file) => {
            let mode = Mode::from_raw_mode(fstat(&file)?.st_mode);
            // A folder that can be read, but not entered.
            let lacking = !mode.contains(needed) && fchmod(&file, mode | Mode::RWXU).is_ok();
            (file, lacking.then_some(mode))
        }
        Err(error) => return Err(error),
    };
    if access == Access::Empty {
        // A missing right may show only later. A host that may not change the mode may not remove the contents either.
        let _ = fchmod(&file, Mode::RWXU);
        return Ok(Folder { file, mode: None });
    }
    Ok(Folder { file, mode })
}

/// The purpose of opening a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read the contents, and leave them unchanged.
    Look,
    /// Remove the contents.
    Empty,
}

/// The kind of an entry.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Opens a file to read it. Returns `None` for anything else, because opening a device may act, and opening a pipe may block.
pub(super) fn open_file(folder: impl AsFd, path: &OsStr) -> Result<Option<(OwnedFd, Stat)>> {
    let place = fstat(open(&folder, path, OFlags::PATH)?)?;
    if kind(&place) != FileType::RegularFile {
        return Ok(None);
    }
    let file = open(&folder, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let stat = fstat(&file)?;
    Ok((kind(&stat) == FileType::RegularFile).then_some((file, stat)))
}
