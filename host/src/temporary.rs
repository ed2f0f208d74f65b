//! Temporary folders of this process. Those of hosts that were killed are removed by the next host.

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{LazyLock, Once};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

/// A folder that is younger may not be locked yet, so it is left alone.
const LOCKED_AFTER: Duration = Duration::from_secs(60);

/// The begin of the names of all these folders. It names the boot of this machine, because machines that share a disk may not see each
/// other's locks.
static PREFIX: LazyLock<String> = LazyLock::new(|| {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("sandglass-{}-", boot.get(..8).unwrap_or("host"))
});

/// A folder that is removed when this is dropped. It is locked meanwhile, so that no other process takes it for one that was left.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Makes a folder in the system's folder for temporary files, which no other user can enter. `purpose` is a part of its name.
    /// The first call also has a thread remove what killed hosts of this user have left.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(purpose: &str) -> io::Result<Self> {
        static CLEAN: Once = Once::new();
        let place = std::env::temp_dir();
        CLEAN.call_once(|| {
            let place = place.clone();
            let cleaner = thread::Builder::new().name("cleaner".to_owned());
            if let Err(error) = cleaner.spawn(move || remove_left(&place)) {
                tracing::debug!(%error, "what killed hosts have left is not removed");
            }
        });
        Self::new_in(&place, purpose)
    }

    fn new_in(place: &Path, purpose: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{}{purpose}-", *PREFIX))
            .tempdir_in(place)?;
        let lock = File::open(folder.path())?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Then nobody can lock it, and so nobody removes it.
            tracing::debug!(%error, "a temporary folder cannot be locked");
        }
        Ok(Self { folder, _lock: lock })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders whose processes are gone.
fn remove_left(place: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        // The lock is kept until the folder is gone, so that two hosts do not remove it at once.
        if is_left(&entry)
            && let Some(_lock) = locked(&path)
            && !has_mounts(&path, &mounts)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::debug!(%error, path = %path.display(), "a folder that a killed host has left is not removed");
        }
    }
}

/// Returns true for an old folder of this user with such a name. Others may write to the place, too.
fn is_left(entry: &DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(&*PREFIX)
        // The metadata of a link is its own.
        && entry.metadata().is_ok_and(|data| {
            let age = data.modified().ok().and_then(|made| SystemTime::now().duration_since(made).ok());
            data.is_dir() && data.uid() == geteuid().as_raw() && age.is_some_and(|age| age > LOCKED_AFTER)
        })
}

/// The locked folder; `None` if another process has the lock.
fn locked(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(folder)
}

/// Returns true if something is mounted in the folder: its files are not this folder's. `mounts` is a `/proc/self/mountinfo`.
fn has_mounts(folder: &Path, mounts: &str) -> bool {
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|mounted| Path::new(mounted).starts_with(folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;

    fn make_old(path: &Path) {
        let made = SystemTime::now() - 2 * LOCKED_AFTER;
        File::open(path).unwrap().set_modified(made).unwrap();
    }

    fn folder(place: &Path, name: &str) -> PathBuf {
        let path = place.join(format!("{}{name}", *PREFIX));
        fs::create_dir_all(path.join("deep")).unwrap();
        fs::write(path.join("deep/file"), "x").unwrap();
        make_old(&path);
        path
    }

    #[test]
    fn what_a_killed_host_has_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let used = TemporaryFolder::new_in(place.path(), "used").unwrap();
        make_old(used.path());
        let left = folder(place.path(), "left-1");
        let young = folder(place.path(), "young-1");
        fs::write(young.join("new"), "x").unwrap();
        let other = place.path().join("other");
        fs::create_dir(&other).unwrap();
        make_old(&other);
        let link = place.path().join(format!("{}link-1", *PREFIX));
        symlink(&other, &link).unwrap();
        remove_left(place.path());
        assert!(!left.exists());
        for kept in [used.path(), &young, &other, &link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn a_folder_is_left_when_the_process_that_locked_it_is_killed() {
        let place = tempfile::tempdir().unwrap();
        let path = folder(place.path(), "guest-1");
        let mut process = Command::new("flock")
            .arg("--no-fork")
            .arg(&path)
            .args(["sh", "-c", "echo locked; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
        remove_left(place.path());
        assert!(path.exists());
        process.kill().unwrap();
        process.wait().unwrap();
        remove_left(place.path());
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_with_a_mount_in_it_is_not_removed() {
        let mounts = "36 35 98:0 / /tmp/sandglass-1-guest-1/data rw - fuse.sshfs a: rw\n";
        assert!(has_mounts(Path::new("/tmp/sandglass-1-guest-1"), mounts));
        assert!(!has_mounts(Path::new("/tmp/sandglass-1-guest"), mounts));
        assert!(!has_mounts(Path::new("/tmp/sandglass-1-guest-2"), mounts));
    }
}
