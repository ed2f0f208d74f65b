//! Workspaces: the folders `WORKSPACE_DIR/<user>/<session>/` that guests see as `/workspace`.
//!
//! What is in one is the guest's, and may be anything: links, pipes, devices, files without end, folders without end in each other. The
//! host reaches it through paths beneath it only, follows nothing, and reads nothing but files.
//!
//! The folder [`CELLS_FOLDER`] of a notebook's workspace is the host's. A backend that mounts the workspace has to put something empty over
//! it (`--tmpfs /workspace/.repl`). Nothing of it is listed, read, written or removed here; only [`Workspace::measure`] looks into it.
//!
//! | module | holds |
//! |---|---|
//! | `beneath` | paths that lead down only, and what may be opened |
//! | `tree` | walking, measuring, comparing and removing |
//! | `names` | names that are not UTF-8 |
//! | `unlinked_files` | files without a name that somebody still has open |
//! | `all` | all workspaces of a server |
//! | `error` | errors, and quotas |
//! | `files` | making folders and files |
//! | `owner` | the user whom a workspace belongs to |

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

/// The folder of a workspace in which the files of cells are kept.
pub const CELLS_FOLDER: &str = ".repl";
const CELLS: &CStr = c".repl";
/// Things that one listing names.
const MAX_LISTED: usize = 10_000;
/// Files of which a mark knows the version.
const MAX_MARKED: usize = 200_000;
/// Changed files that are named.
const MAX_CHANGES: usize = sandglass_core::limits::MAX_CHANGED_FILES;
/// Characters of the names of users and sessions.
const MAX_NAME: usize = 64;
/// For how long a descriptor may be on its way from one process to another.
const ON_THEIR_WAY: Duration = Duration::from_millis(100);

/// One workspace, held by one session.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    user: String,
    session: String,
    parent: OwnedFd,
    folder: OwnedFd,
    /// The user who gets what is made in the folder.
    owner: Option<Arc<User>>,
    quota: Option<Quota>,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Closing would do, unless a process is just being started, which has a copy for a moment.
        let _ = flock(&self.folder, FlockOperation::Unlock);
    }
}

/// Something in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path beneath the workspace, for the other functions to find it by. A byte that is not UTF-8 is `\udcff`, as Python escapes
    /// it; a backslash that would be read so is `\x5c`.
    pub path: String,
    /// Its kind.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// The time at which it was last written to: milliseconds since 1970.
    pub modified_ms: i64,
}

/// The kind of something in a workspace.
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
    /// As listings call it.
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

/// The contents of a folder and below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<Entry>,
    /// True when there is more.
    pub truncated: bool,
}

/// Which files there were, and how each was.
#[derive(Debug)]
pub struct Mark {
    versions: BTreeMap<Vec<u8>, Version>,
    complete: bool,
}

/// Changes of files since a [`Mark`].
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// By path.
    pub files: Vec<FileChange>,
    /// The number of those that are left out.
    pub omitted: u32,
    /// True when there were too many files to know of all.
    pub complete: bool,
}

/// Everything here may take as long as the disk does: on tokio, use `spawn_blocking`.
impl Workspace {
    /// Its path on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its owner.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Which one of the user's.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Its bounds.
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

    /// Removes that folder with all that is in it. A running guest that has something mounted over it would lose that: only without one.
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
        // The folder as it is, or one whose mode has to be changed for this.
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

    /// Opens a file for reading, and says how long it is. It may grow, or become shorter, while it is read.
    ///
    /// # Errors
    /// [`WorkspaceError`], when it is no file, or one that has another name outside of the workspace.
    pub fn open_file(&self, path: &str) -> Result<(File, u64), WorkspaceError> {
        let clean = joined(&self.names(path, &names::meant(path))?);
        let opened = beneath::open_file(&self.folder, &clean).map_err(|error| match error {
            // The guest holds a lease on it, or something else than a file has come in its place.
            Errno::AGAIN | Errno::NXIO => WorkspaceError::refused(path, "is in use; try again"),
            error => WorkspaceError::at(path, error),
        })?;
        let Some((file, stat)) = opened else {
            return Err(WorkspaceError::refused(path, "is no file"));
        };
        // What one cannot read by its own rights, one could have linked into the workspace.
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
    /// [`WorkspaceError`], when it is no file, or longer.
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

    /// Makes `bytes` the contents of a file, all of them or none, and the folders that it needs.
    ///
    /// # Errors
    /// [`WorkspaceError`], when there is something else than a file in its place, or no room.
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

    /// Removes a file, a link, or a folder with all that is in it.
    ///
    /// # Errors
    /// [`WorkspaceError`], when there is none.
    pub fn remove(&self, path: &str) -> Result<(), WorkspaceError> {
        let meant = names::meant(path);
        let names = self.names(path, &meant)?;
        if names.is_empty() {
            return Err(WorkspaceError::refused(path, "is the workspace itself"));
        }
        let (parent, name) = self.parent_of(path, &names)?;
        tree::remove(parent, &name).map_err(|error| WorkspaceError::at(path, error))
    }

    /// The space that it takes on its disk.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be read.
    pub fn usage(&self) -> Result<Usage, WorkspaceError> {
        tree::usage(&self.folder, Some(CELLS)).map_err(|error| WorkspaceError::system("the workspace", error))
    }

    /// The same with the files that have been removed but that one of these processes still holds.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be read.
    pub fn usage_with(&self, processes: &[u32]) -> Result<Usage, WorkspaceError> {
        let mut usage = self.usage()?;
        usage.bytes = usage
            .bytes
            .saturating_add(unlinked_files::look(&self.folder, processes).bytes);
        Ok(usage)
    }

    /// The usage of a guest that sees all of the workspace, the folder of the cells included. It counts files that the guest has
    /// removed and still holds, and tells whether the guest may hold more of them.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be read.
    pub fn measure(&self) -> Result<Usage, WorkspaceError> {
        let usage = tree::usage(&self.folder, None);
        let mut usage = usage.map_err(|error| WorkspaceError::system("the workspace", error))?;
        let look = || unlinked_files::look(&self.folder, &unlinked_files::guests(&self.folder));
        let mut held = look();
        if held.in_flight {
            // Who passes one on properly takes it at once.
            std::thread::sleep(ON_THEIR_WAY);
            held = look();
        }
        usage.bytes = usage.bytes.saturating_add(held.bytes);
        usage.in_flight = held.in_flight;
        Ok(usage)
    }

    /// Remembers how its files are.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be read.
    pub fn mark(&self) -> Result<Mark, WorkspaceError> {
        let marked = tree::versions(&self.folder, Some(CELLS), MAX_MARKED);
        let (versions, complete) = marked.map_err(|error| WorkspaceError::system("the workspace", error))?;
        Ok(Mark { versions, complete })
    }

    /// The changes since a mark, and the mark for the next time.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be read.
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

    /// Removes the workspace with all that is in it. Only when its guest is gone; nothing else may be done with it then.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when something cannot be removed; the rest is gone then.
    pub fn destroy(&self) -> Result<(), WorkspaceError> {
        let fail = |error: Errno| WorkspaceError::system(self.path.display().to_string(), error);
        tree::empty(self.folder.as_fd(), None).map_err(fail)?;
        unlinkat(&self.parent, self.session.as_str(), AtFlags::REMOVEDIR).map_err(fail)?;
        // The user's folder stays as long as there are other sessions, or somebody makes one just now.
        if let Some(users) = self.path.parent().and_then(Path::parent) {
            let _ = std::fs::remove_dir(users.join(&self.user));
        }
        Ok(())
    }

    /// The names in a path, which may not lead into the folder of the cells.
    fn names<'a>(&self, path: &str, meant: &'a [u8]) -> Result<Vec<&'a OsStr>, WorkspaceError> {
        let names = beneath::names(meant).map_err(|problem| WorkspaceError::refused(path, problem))?;
        if names.first() == Some(&OsStr::new(CELLS_FOLDER)) {
            return Err(WorkspaceError::refused(path, "is the host's"));
        }
        Ok(names)
    }

    /// The folder that something is in, and its name there.
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

/// Names as one path.
fn joined(names: &[&OsStr]) -> OsString {
    names.join(OsStr::new("/"))
}
