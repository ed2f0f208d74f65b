//! Temporary folders of this process. Those of hosts that were killed are removed by the next host.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;
use tempfile::TempDir;

/// What the names of all these folders begin with.
const PREFIX: &str = "sandglass-host-";
/// A folder is locked right after it was made. A younger one is left alone.
const LOCKED_BY: Duration = Duration::from_secs(60);

/// A folder that is removed when this is dropped. It is locked meanwhile, so that no other process takes it for one that was left.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Makes a folder in the system's folder for temporary files, which no other user can enter. `purpose` is a part of its name.
    /// The first call also removes what killed hosts of this user have left.
    ///
    /// # Errors
    /// The folder cannot be made or locked.
    pub fn new(purpose: &str) -> io::Result<Self> {
        static CLEAN: Once = Once::new();
        let place = std::env::temp_dir();
        CLEAN.call_once(|| remove_left(&place));
        Self::new_in(&place, purpose)
    }

    fn new_in(place: &Path, purpose: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{purpose}-"))
            .tempdir_in(place)?;
        let lock = File::open(folder.path())?;
        lock.try_lock()?;
        Ok(Self { folder, _lock: lock })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders whose processes are gone. Others may write to the place, so only this user's own folders are looked at.
fn remove_left(place: &Path) {
    let user = geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(data) = entry.metadata() else { continue }; // follows no link
        let is_old = data
            .modified()
            .is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age > LOCKED_BY));
        if !data.is_dir() || data.uid() != user || !is_old {
            continue;
        }
        let path = entry.path();
        // The lock is kept until the folder is gone, so that two hosts do not remove it at once.
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok()
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::debug!(%error, path = %path.display(), "a folder that a killed host has left is not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn is_old(path: &Path) {
        let made = SystemTime::now() - 2 * LOCKED_BY;
        File::open(path).unwrap().set_modified(made).unwrap();
    }

    #[test]
    fn what_a_killed_host_has_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let used = TemporaryFolder::new_in(place.path(), "used").unwrap();
        let ended = TemporaryFolder::new_in(place.path(), "ended")
            .unwrap()
            .path()
            .to_owned();
        for name in ["sandglass-host-left-1/deep", "sandglass-host-young-1", "other"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("sandglass-host-left-1/deep/file"), "x").unwrap();
        symlink(at("other"), at("sandglass-host-link-1")).unwrap();
        for path in [used.path(), &at("sandglass-host-left-1"), &at("other")] {
            is_old(path);
        }
        remove_left(place.path());
        assert!(!ended.exists() && !at("sandglass-host-left-1").exists());
        for kept in [
            used.path(),
            &at("sandglass-host-young-1"),
            &at("other"),
            &at("sandglass-host-link-1"),
        ] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }
}
