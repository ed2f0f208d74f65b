//! Workspaces: the folders `WORKSPACE_DIR/<user>/<session>/` that guests see as `/workspace`.
//!
//! The guest owns the contents, which may be anything: links, pipes, devices, endless files, endlessly nested folders. The host
//! opens only paths below a workspace, follows no link, and reads only files.
//!
//! The folder [`CELLS_FOLDER`] of a notebook's workspace belongs to the host. A backend that mounts the workspace must mount an
//! empty folder over it (`--tmpfs /workspace/.repl`). This module does not list, read, write or remove its contents; only
//! [`Workspace::measure`] counts them.
//!
//! | module | holds |
//! |---|---|
//! | `beneath` | paths that only lead down, and safe ways to open them |
//! | `tree` | walking, measuring, comparing and removing |
//! | `names` | names that are not UTF-8 |
//! | `unlinked_files` | files without a name that a process still has open |
//! | `all` | all workspaces of a server |
//! | `error` | errors, and quotas |
//! | `files` | making folders and files |
//! | `owner` | the user who owns a workspace |

mod all;
mod beneath;
mod error;
mod files;
mod names;
mod owner;
mod tree;
mod unlinked_files;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, statat, unlinkat};
use rustix::io::Errno;
use sandglass_core::execution::{Change, FileChange};

pub use self::all::Workspaces;
use self::beneath::kind;
pub use self::error::{Quota, WorkspaceError};
use self::files::make_folder;
pub(crate) use self::files::put;
pub use self::tree::Usage;
use self::tree::{Next, Version, Walked};
use crate::users::User;

/// The folder of a workspace that holds the files of cells.
pub const CELLS_FOLDER: &str = ".repl";
const CELLS: &CStr = c".repl";
/// Most entries of a listing.
const MAX_LISTED: usize = 10_000;
/// Most files whose versions a mark remembers.
const MAX_MARKED: usize = 200_000;
/// Most changed files that are named.
const MAX_CHANGES: usize = sandglass_core::limits::MAX_CHANGED_FILES;
/// Most characters of a user's or session's name.
const MAX_NAME: usize = 64;
/// The longest time for which a descriptor may be in flight between processes.
const ON_THEIR_WAY: Duration = Duration::from_millis(100);

/// One workspace, held by one session.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    user: String,
    session: String,
    parent: OwnedFd,
    folder: OwnedFd,
    /// The user who owns new files in the folder.
    owner: Option<Arc<User>>,
    quota: Option<Quota>,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Closing alone unlocks only after a process that is being started has closed its copy.
        let _ = flock(&self.folder, FlockOperation::Unlock);
    }
}

/// An entry of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path below the workspace, valid for the other functions. A byte that is not UTF-8 is `\udcff`, as Python escapes it.
    /// A backslash that could be read as such an escape is `\x5c`.
    pub path: String,
    /// The entry's kind.
    pub kind: EntryKind,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last write, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link, which is not followed.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl EntryKind {
    /// The kind's name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Other => "other",
        }
    }

    fn of(stat: &Stat) -> Self {
        match kind(stat) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}

/// The contents of a folder and all folders below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The entries, sorted by path.
    pub entries: Vec<Entry>,
    /// True when entries are missing.
    pub truncated: bool,
}

/// The files of a workspace and their versions, at one time.
#[derive(Debug)]
pub struct Mark {
    versions: BTreeMap<Vec<u8>, Version>,
    complete: bool,
}

/// Changes of files since a [`Mark`].
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// The changed files, sorted by path.
    pub files: Vec<FileChange>,
    /// The number of changed files that are left out.
    pub omitted: u32,
    /// True when all changes are known. False when there were too many files.
    pub complete: bool,
}

/// All these functions block as long as the disk does. On tokio, use `spawn_blocking`.
impl Workspace {
    /// The folder's path on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the workspace's owner.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The session's name.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The quota.
    pub fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// The same workspace with another quota.
    #[must_use]
    pub fn with_quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// The folder of the cells' files, made when there is none.
    pub(crate) fn cells_folder(&self) -> rustix::io::Result<OwnedFd> {
        make_folder(&self.folder, CELLS_FOLDER, Mode::RWXU, None)
    }

    /// The contents of a file of cells; `None` if there is no such file. A larger file is an error.
    pub(crate) fn read_cells_file(&self, name: &str, max_bytes: u64) -> rustix::io::Result<Option<Vec<u8>>> {
        let path = OsString::from(format!("{CELLS_FOLDER}/{name}"));
        let (file, stat) = match beneath::open_file(&self.folder, &path) {
            Ok(Some(opened)) => opened,
            Ok(None) | Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        let read = File::from(file)
            .take(max_bytes.saturating_add(1))
            .read_to_end(&mut bytes);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if tree::size(&stat) > max_bytes || bytes.len() as u64 > max_bytes {
            return Err(Errno::FBIG);
        }
        Ok(Some(bytes))
    }

    /// Removes the folder of the cells with its contents. The guest must be gone, because it would lose the folder mounted
    /// there.
    pub(crate) fn remove_cells_folder(&self) -> rustix::io::Result<()> {
        match tree::remove(&self.folder, CELLS) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Everything in a folder and below.
    ///
    /// # Errors
    /// [`WorkspaceError`], when there is no such folder.
    pub fn list(&self, path: &str) -> Result<Listing, WorkspaceError> {
        let meant = names::meant(path);
        let names = self.names(path, &meant)?;
        let clean = joined(&names);
        let fail = |error| WorkspaceError::at(path, error);
        let stat = fstat(beneath::open(&self.folder, &clean, OFlags::PATH).map_err(fail)?).map_err(fail)?;
        if kind(&stat) != FileType::Directory {
            return Err(WorkspaceError::refused(path, "is no folder"));
        }
        // The workspace itself, or a folder below it, whose mode may have to change for the listing.
        let (top, inner);
        let folder = if names.is_empty() {
            top = beneath::open(&self.folder, "", OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
            top.as_fd()
        } else {
            let (parent, name) = self.parent_of(path, &names)?;
            inner = beneath::open_folder(parent, &name, beneath::Access::Look).map_err(fail)?;
            inner.as_fd()
        };
        let mut entries = Vec::new();
        let prefix = if names.is_empty() {
            String::new()
        } else {
            format!("{}/", names::shown(clean.as_bytes()))
        };
        let hidden = names.is_empty().then_some(CELLS);
        let walked = tree::walk(folder, hidden, &mut |below, stat| {
            if entries.len() == MAX_LISTED {
                return Next::Stop;
            }
            entries.push(Entry {
                path: format!("{prefix}{}", names::shown(below)),
                kind: EntryKind::of(stat),
                size: tree::size(stat),
                modified_ms: stat.st_mtime.saturating_mul(1_000)
                    + i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or_default(),
            });
            Next::On
        });
        let truncated = walked.map_err(fail)? != Walked::All;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Listing { entries, truncated })
    }

    /// Opens a file for reading. Returns its length in bytes, which may change during the read.
    ///
    /// # Errors
    /// [`WorkspaceError`] when the path is no file, or a file with another name outside of the workspace.
    pub fn open_file(&self, path: &str) -> Result<(File, u64), WorkspaceError> {
        let clean = joined(&self.names(path, &names::meant(path))?);
        let opened = beneath::open_file(&self.folder, &clean).map_err(|error| match error {
            // The guest holds a lease on the file, or has replaced it by something else.
            Errno::AGAIN | Errno::NXIO => WorkspaceError::refused(path, "is in use; try again"),
            error => WorkspaceError::at(path, error),
        })?;
        let Some((file, stat)) = opened else {
            return Err(WorkspaceError::refused(path, "is no file"));
        };
        // A guest could have linked a file into the workspace that it cannot read itself.
        let all_here = stat.st_nlink < 2
            || tree::has_all_names(&self.folder, Some(CELLS), &stat)
                .map_err(|error| WorkspaceError::at(path, error))?;
        if !all_here {
            return Err(WorkspaceError::refused(
                path,
                "has another name outside of the workspace",
            ));
        }
        Ok((file.into(), tree::size(&stat)))
    }

    /// The contents of a file of at most `max_bytes`.
    ///
    /// # Errors
    /// [`WorkspaceError`] when the path is no file, or the file is larger.
    pub fn read(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, WorkspaceError> {
        let (file, size) = self.open_file(path)?;
        let too_long =
            |size| WorkspaceError::refused(path, format!("has {size} bytes, of which at most {max_bytes} are read"));
        if size > max_bytes {
            return Err(too_long(size));
        }
        let mut bytes = Vec::new();
        let read = file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| WorkspaceError::system(path, error))?;
        let size = bytes.len() as u64;
        if size > max_bytes {
            Err(too_long(size))
        } else {
            Ok(bytes)
        }
    }

    /// Writes a file with these bytes, completely or not at all. Makes the folders above it.
    ///
    /// # Errors
    /// [`WorkspaceError`] when something other than a file has this path, or the quota is used up.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WorkspaceError> {
        let meant = names::meant(path);
        let names = self.names(path, &meant)?;
        let fail = |error| WorkspaceError::at(path, error);
        let Some((name, folders)) = names.split_last() else {
            return Err(WorkspaceError::refused(path, "is the workspace itself"));
        };
        if let Some(quota) = self.quota {
            let usage = self.usage()?;
            let after = Usage {
                bytes: usage.bytes.saturating_add(bytes.len() as u64),
                files: usage.files + names.len() as u64,
                ..usage
            };
            if let Some(why) = quota.exceeded(&after) {
                return Err(WorkspaceError::Quota(why));
            }
        }
        let mut folder = beneath::open(&self.folder, "", OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
        for name in folders {
            folder =
                make_folder(&folder, name, Mode::from_raw_mode(0o755), self.owner.as_deref()).map_err(|error| {
                    match error {
                        Errno::NOTDIR => WorkspaceError::refused(path, format!("{name:?} is no folder")),
                        error => fail(error),
                    }
                })?;
        }
        match statat(&folder, *name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == FileType::Symlink => return Err(fail(Errno::LOOP)),
            Ok(stat) if kind(&stat) == FileType::Directory => return Err(WorkspaceError::refused(path, "is a folder")),
            Ok(stat) if kind(&stat) != FileType::RegularFile => {
                return Err(WorkspaceError::refused(path, "is no file"));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(fail(error)),
        }
        put(&folder, name, bytes, Mode::from_raw_mode(0o644), self.owner.as_deref()).map_err(fail)
    }

    /// Removes a file, a link, or a folder with all its contents.
    ///
    /// # Errors
    /// [`WorkspaceError`] when nothing has this path.
    pub fn remove(&self, path: &str) -> Result<(), WorkspaceError> {
        let meant = names::meant(path);
        let names = self.names(path, &meant)?;
        if names.is_empty() {
            return Err(WorkspaceError::refused(path, "is the workspace itself"));
        }
        let (parent, name) = self.parent_of(path, &names)?;
        tree::remove(parent, &name).map_err(|error| WorkspaceError::at(path, error))
    }

    /// The space that the workspace takes on disk.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the workspace cannot be read.
    pub fn usage(&self) -> Result<Usage, WorkspaceError> {
        tree::usage(&self.folder, Some(CELLS)).map_err(|error| WorkspaceError::system("the workspace", error))
    }

    /// The space, with removed files that one of these processes still holds.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the workspace cannot be read.
    pub fn usage_with(&self, processes: &[u32]) -> Result<Usage, WorkspaceError> {
        let mut usage = self.usage()?;
        usage.bytes = usage
            .bytes
            .saturating_add(unlinked_files::look(&self.folder, processes).bytes);
        Ok(usage)
    }

    /// The space that the guest uses, including the folder of the cells and removed files that the guest still holds. Also
    /// tells if the guest may hold further such files.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the workspace cannot be read.
    pub fn measure(&self) -> Result<Usage, WorkspaceError> {
        let usage = tree::usage(&self.folder, None);
        let mut usage = usage.map_err(|error| WorkspaceError::system("the workspace", error))?;
        let look = || unlinked_files::look(&self.folder, &unlinked_files::guests(&self.folder));
        let mut held = look();
        if held.in_flight {
            // An honest receiver takes a descriptor at once.
            std::thread::sleep(ON_THEIR_WAY);
            held = look();
        }
        usage.bytes = usage.bytes.saturating_add(held.bytes);
        usage.in_flight = held.in_flight;
        Ok(usage)
    }

    /// A mark of the workspace's files as they are now.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the workspace cannot be read.
    pub fn mark(&self) -> Result<Mark, WorkspaceError> {
        let marked = tree::versions(&self.folder, Some(CELLS), MAX_MARKED);
        let (versions, complete) = marked.map_err(|error| WorkspaceError::system("the workspace", error))?;
        Ok(Mark { versions, complete })
    }

    /// The changes since a mark, and a new mark.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the workspace cannot be read.
    pub fn changes(&self, since: &Mark) -> Result<(Changes, Mark), WorkspaceError> {
        let now = self.mark()?;
        let mut changes = Changes {
            files: Vec::new(),
            omitted: 0,
            complete: since.complete && now.complete,
        };
        let mut add = |path: &[u8], change, size: u64| {
            if changes.files.len() == MAX_CHANGES {
                changes.omitted = changes.omitted.saturating_add(1);
                return;
            }
            #[expect(clippy::cast_precision_loss, reason = "files have less than 2^53 bytes")]
            changes.files.push(FileChange {
                path: names::shown(path),
                change,
                size: size as f64,
            });
        };
        for (path, version) in &now.versions {
            match since.versions.get(path) {
                None => add(path, Change::Created, version.size),
                Some(before) if before != version => add(path, Change::Modified, version.size),
                Some(_) => {}
            }
        }
        for path in since.versions.keys().filter(|path| !now.versions.contains_key(*path)) {
            add(path, Change::Deleted, 0);
        }
        changes.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((changes, now))
    }

    /// Removes the workspace with all its contents. The guest must be gone, and the workspace must not be used afterwards.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when something cannot be removed; everything else is gone then.
    pub fn destroy(&self) -> Result<(), WorkspaceError> {
        let fail = |error: Errno| WorkspaceError::system(self.path.display().to_string(), error);
        tree::empty(self.folder.as_fd(), None).map_err(fail)?;
        unlinkat(&self.parent, self.session.as_str(), AtFlags::REMOVEDIR).map_err(fail)?;
        // The user's folder stays while it has other sessions, or while somebody creates one.
        if let Some(users) = self.path.parent().and_then(Path::parent) {
            let _ = std::fs::remove_dir(users.join(&self.user));
        }
        Ok(())
    }

    /// The names in a path. The path may not lead into the folder of the cells.
    fn names<'a>(&self, path: &str, meant: &'a [u8]) -> Result<Vec<&'a OsStr>, WorkspaceError> {
        let names = beneath::names(meant).map_err(|problem| WorkspaceError::refused(path, problem))?;
        if names.first() == Some(&OsStr::new(CELLS_FOLDER)) {
            return Err(WorkspaceError::refused(path, "is the host's"));
        }
        Ok(names)
    }

    /// The folder above a path, and the path's last name.
    fn parent_of(&self, path: &str, names: &[&OsStr]) -> Result<(OwnedFd, CString), WorkspaceError> {
        let (name, folders) = names
            .split_last()
            .ok_or_else(|| WorkspaceError::refused(path, "has no name"))?;
        let parent = beneath::open(&self.folder, joined(folders), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|error| WorkspaceError::at(path, error))?;
        let name = CString::new(name.as_bytes()).map_err(|_| WorkspaceError::NotFound(path.to_owned()))?;
        Ok((parent, name))
    }
}

/// Joins names to one path.
fn joined(names: &[&OsStr]) -> OsString {
    names.join(OsStr::new("/"))
}
