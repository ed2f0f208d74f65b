//! A store in a folder. Each name is a file, which is only ever replaced as a whole: written under another name, flushed, and renamed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::{Listed, Store, Version};
use crate::error::{StateError, no_random_numbers};
use crate::names::{Name, Place};
use crate::seal::MOST_SEALED;

/// The beginning of names of files that are being written. No id begins so.
const PART: &str = ".part-";
/// The age from which such a file was left behind by a process that was killed.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);
/// The file that is locked while the store is open.
const LOCK: &str = "lock";

/// A store in a folder of local files, open in one process at a time. Only the folder's owner may look into it.
#[derive(Debug)]
pub struct FolderStore {
    path: PathBuf,
    /// `None` if the store is only read.
    lock: Option<File>,
    /// Held while a name is compared and changed. No other process has the folder open.
    swapping: Mutex<()>,
}

impl FolderStore {
    /// Opens a store, and makes the folder if it is missing.
    ///
    /// # Errors
    /// [`StateError::Io`] when the folder cannot be used; [`StateError::InUse`] when another process has it open; [`StateError::Key`] when others may
    /// enter it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let shown = path.display();
        let fail = |error: io::Error| StateError::io(format!("the folder of states {shown} cannot be used"), error);
        if !path.is_dir() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(fail)?;
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(fail)?;
        }
        let path = path.canonicalize().map_err(fail)?;
        if fs::metadata(&path).map_err(fail)?.permissions().mode() & 0o022 != 0 {
            return Err(StateError::Key(format!(
                "other users may write to the folder of states {shown}: run `chmod go-w {shown}`"
            )));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = open(path.join(LOCK), flags, Mode::RUSR | Mode::WUSR).map_err(|error| fail(error.into()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                return Err(StateError::InUse(format!(
                    "another process has the folder of states {shown} open: give each its own"
                )));
            }
            Err(error) => return Err(fail(error.into())),
        }
        Ok(Self {
            path,
            lock: Some(lock.into()),
            swapping: Mutex::default(),
        })
    }

    /// A store that is only read. Another process may have it open and write to it meanwhile.
    ///
    /// # Errors
    /// [`StateError::Io`] when there is no such folder.
    pub fn look(path: &Path) -> Result<Self, StateError> {
        let fail = |error| StateError::io(format!("the folder of states {} cannot be read", path.display()), error);
        Ok(Self {
            path: path.canonicalize().map_err(fail)?,
            lock: None,
            swapping: Mutex::default(),
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets another process open the store. This one must not use it any more.
    pub fn release(&self) {
        if let Some(lock) = &self.lock {
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }

    /// Refuses to write to a store that is only read.
    fn may_write(&self, name: &Name) -> Result<(), StateError> {
        let refused = || StateError::io(format!("{name} is only read"), ErrorKind::ReadOnlyFilesystem);
        self.lock.as_ref().map(drop).ok_or_else(refused)
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.swapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// Makes a folder of the store with those above it, each durable in the one above.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if folder == self.path || folder.is_dir() {
            return Ok(());
        }
        let above = folder.parent().unwrap_or(&self.path);
        self.make_folder(above)?;
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made.and_then(|()| File::open(above)?.sync_all()),
        }
    }
}

impl Store for FolderStore {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        let bytes = self.read(name, most)?;
        Ok(bytes.map(|bytes| {
            let version = Version::of(&bytes);
            (bytes, version)
        }))
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        let _alone = self.alone();
        let there = self.read_version(name, MOST_SEALED)?.map(|(_, version)| version);
        if there.as_ref() != seen {
            return Ok(None);
        }
        self.write(name, bytes)?;
        Ok(Some(Version::of(bytes)))
    }

    fn read(&self, name: &Name, most: u64) -> Result<Option<Vec<u8>>, StateError> {
        let fail = |error: io::Error| StateError::io(format!("{name} cannot be read"), error);
        // A pipe in the place of a file must not stop the server.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(self.file(name), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file.map_err(|error| fail(error.into()))?),
        };
        let data = file.metadata().map_err(fail)?;
        if !data.is_file() {
            return Err(StateError::Damaged(format!("{name} is no file")));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(data.len().min(most)).unwrap_or_default());
        file.take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(fail)?;
        match bytes.len() as u64 <= most {
            true => Ok(Some(bytes)),
            false => Err(StateError::Damaged(format!("{name} is too large"))),
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.may_write(name)?;
        let fail = |error: io::Error| StateError::io(format!("{name} cannot be written"), error);
        let file = self.file(name);
        let folder = file.parent().unwrap_or(&self.path);
        self.make_folder(folder).map_err(fail)?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| no_random_numbers())?;
        let part = folder.join(format!("{PART}{:016x}", u64::from_le_bytes(random)));
        let written = (|| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut to = File::from(open(&part, flags, Mode::RUSR | Mode::WUSR)?);
            to.write_all(bytes)?;
            to.sync_all()?;
            fs::rename(&part, &file)?;
            File::open(folder)?.sync_all()
        })();
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written.map_err(fail)
    }

    fn touch(&self, name: &Name, _bytes: &[u8]) -> Result<bool, StateError> {
        self.may_write(name)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let touched = match open(self.file(name), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => Err(error.into()),
            Ok(file) => File::from(file).set_modified(SystemTime::now()),
        };
        touched
            .map(|()| true)
            .map_err(|error| StateError::io(format!("{name} cannot be touched"), error))
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.may_write(name)?;
        // A ref that comes back after a power failure would be a session that its client has deleted.
        let _alone = self.alone();
        let file = self.file(name);
        let folder = file.parent().unwrap_or(&self.path);
        let removed = unlink(&file).and_then(|was_there| match was_there {
            true => File::open(folder)?.sync_all(),
            false => Ok(()),
        });
        removed.map_err(|error| StateError::io(format!("{name} cannot be removed"), error))
    }

    fn forget(&self, name: &Name) -> Result<(), StateError> {
        self.may_write(name)?;
        let removed = unlink(&self.file(name));
        removed
            .map(drop)
            .map_err(|error| StateError::io(format!("{name} cannot be removed"), error))
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        let mut listed = Vec::new();
        list(&self.path.join(place.to_string()), place, None, &mut listed)
            .map_err(|error| StateError::io(format!("{place} cannot be listed"), error))?;
        Ok(listed)
    }
}

/// Lists the names of a place that are in a folder. `above` is the folder's own name, if it is one in the place.
fn list(folder: &Path, place: Place, above: Option<&str>, listed: &mut Vec<Listed>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let data = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue, // removed just now
            data => data?,
        };
        let age = data.modified()?.elapsed().unwrap_or_default();
        let name = entry.file_name();
        let Some(last) = name.to_str() else { continue };
        let rest = above.map_or_else(|| last.to_owned(), |above| format!("{above}/{last}"));
        if let Some(name) = place.name(&rest) {
            listed.push(Listed { name, age });
        } else if last.starts_with(PART) && age > LEFT_BEHIND {
            let _ = fs::remove_file(entry.path());
        } else if above.is_none() && data.is_dir() {
            list(&entry.path(), place, Some(last), listed)?;
        }
    }
    Ok(())
}

/// Removes a file. Returns false if there is none.
fn unlink(file: &Path) -> io::Result<bool> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}
