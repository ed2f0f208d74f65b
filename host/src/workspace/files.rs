//! Makes folders and files, through descriptors of the folders above.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::beneath;
use super::owner::give;
use crate::users::User;

/// Opens a folder, and makes it if it is missing.
pub(super) fn make_folder(
    parent: impl AsFd,
    name: impl AsRef<OsStr>,
    mode: Mode,
    owner: Option<&User>,
) -> rustix::io::Result<OwnedFd> {
    let name = name.as_ref();
    let made = match mkdirat(&parent, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error),
    };
    let folder = beneath::open(&parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    if made {
        // The mode ignores the host's umask, because guests must be able to enter.
        fchmod(&folder, mode)?;
        if let Some(owner) = owner {
            give(&folder, owner)?;
        }
    }
    Ok(folder)
}

/// Writes a file with these bytes into a folder, completely or not at all. An existing file is replaced instead of written to,
/// because it may have other names.
pub(crate) fn put(
    folder: &OwnedFd,
    name: impl AsRef<OsStr>,
    bytes: &[u8],
    mode: Mode,
    owner: Option<&User>,
) -> rustix::io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    let part = format!(".sandglass-{:016x}", u64::from_le_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, part.as_str(), flags, mode)?;
    let written = (|| {
        if let Some(owner) = owner {
            give(&file, owner)?;
        }
        let mut file = File::from(file);
        let written = file.write_all(bytes);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        renameat(folder, part.as_str(), folder, name.as_ref())
    })();
    if written.is_err() {
        let _ = unlinkat(folder, part.as_str(), AtFlags::empty());
    }
    written
}
