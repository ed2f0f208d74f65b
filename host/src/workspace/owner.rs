//! The user who owns a workspace.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Gid, Uid, fchown, fstat};
use rustix::process::geteuid;

use super::tree::{self, Walked};
use crate::users::{NOBODY, User, Users};

impl Users {
    /// The id that owns the files in a folder, so that a guest can write to them. A folder of root is given to a new id without
    /// its contents. A folder of `nobody` is given with all contents that `nobody` owns. Other folders keep their owner.
    /// Otherwise as [`Users::take`].
    ///
    /// # Errors
    /// The folder cannot be given away, or no id is free.
    pub fn of_folder(self, folder: &Path) -> io::Result<Option<Arc<User>>> {
        let owner = fs::metadata(folder)?.uid();
        let user = match self.here() {
            Some(users) if users.contains(owner) => {
                // Another guest with this id works in the same folder.
                return Ok(Some(
                    users.claim_again(owner).unwrap_or_else(|| User::shared(owner, owner)),
                ));
            }
            Some(users) => Some(users.take_one().map_err(io::Error::other)?),
            None => User::nobody(),
        };
        if let Some(user) = &user
            && (owner == 0 || owner == NOBODY)
        {
            give_folder(&File::open(folder)?.into(), owner, user.id())?;
        }
        Ok(user)
    }

    /// Checks that guests' users can pass through a folder and all folders above it. A host that is not root needs no check, because
    /// its guests have its own user.
    ///
    /// # Errors
    /// The folders that stop guests, and the remedy; or a folder cannot be looked at.
    pub fn reach(self, folder: &Path) -> Result<(), String> {
        if !geteuid().is_root() {
            return Ok(());
        }
        let id = self.any();
        let failed = |error: io::Error| format!("{} cannot be looked at: {error}", folder.display());
        let folder = folder.canonicalize().map_err(failed)?;
        let mut closed = Vec::new();
        for place in folder.ancestors() {
            let data = fs::metadata(place).map_err(failed)?;
            let needed = match (data.uid() == id, data.gid() == id) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            if data.mode() & needed == 0 {
                closed.push(place.display().to_string());
            }
        }
        if closed.is_empty() {
            return Ok(());
        }
        closed.reverse();
        Err(format!(
            "guests run as users of their own, and other users may not pass through {}: run `chmod o+x {}`, or take a folder elsewhere",
            closed.join(" and "),
            closed.join(" ")
        ))
    }

    /// The id that owns the files of a workspace. If another holder has that id, the files are given to a new one.
    pub(crate) fn of_workspace(self, folder: &OwnedFd) -> io::Result<Option<Arc<User>>> {
        let owner = fstat(folder)?.st_uid;
        let user = match self.here() {
            Some(users) => match Some(owner)
                .filter(|owner| users.contains(*owner))
                .and_then(|owner| users.claim_again(owner))
            {
                Some(user) => Some(user),
                None => Some(users.take_one().map_err(io::Error::other)?),
            },
            None => User::nobody(),
        };
        if let Some(user) = user.as_ref().filter(|user| user.id() != owner) {
            give_folder(folder, owner, user.id())?;
        }
        Ok(user)
    }
}

/// Gives a folder, and its contents of the same owner, to another user. Root's files stay root's.
fn give_folder(folder: &OwnedFd, from: u32, to: u32) -> io::Result<()> {
    if from != 0 {
        give_all(folder.as_fd(), from, to)?;
    }
    // The folder itself comes last. Until then, the next claim sees that the work is unfinished, and goes on with it.
    std::os::unix::fs::fchown(folder, Some(to), Some(to))
}

/// Gives one file or folder to a user.
pub(super) fn give(file: &OwnedFd, owner: &User) -> rustix::io::Result<()> {
    fchown(file, Some(Uid::from_raw(owner.id())), Some(Gid::from_raw(owner.id())))
}

/// Gives a folder's contents of one user to another. Blocks as long as the disk does.
///
/// # Errors
/// Not everything could be given.
pub(super) fn give_all(folder: BorrowedFd<'_>, from: u32, to: u32) -> io::Result<()> {
    match tree::give(folder, from, to)? {
        Walked::Beyond => Err(io::Error::other(
            "its folders are deeper, or more, than can be given to another user: remove some of them, or take an empty folder",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_folder_that_stops_guests_is_named() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(outer.path(), 0o711);
        for folder in [inner.parent().unwrap(), &inner] {
            set(folder, 0o711);
        }
        let users = Users::default();
        assert_eq!(users.reach(&inner), Ok(()));
        for (closed, mode) in [(outer.path(), 0o700), (inner.parent().unwrap(), 0o770), (&inner, 0o766)] {
            set(closed, mode);
            let reached = users.reach(&inner);
            if geteuid().is_root() {
                let why = reached.unwrap_err();
                assert!(why.contains(&format!("`chmod o+x {}`", closed.display())), "{why}");
            } else {
                assert_eq!(reached, Ok(()));
            }
            set(closed, 0o711);
        }
        for folder in [outer.path(), &inner] {
            set(folder, 0o700);
        }
        let both = format!("`chmod o+x {} {}`", outer.path().display(), inner.display());
        assert!(!geteuid().is_root() || users.reach(&inner).unwrap_err().contains(&both));
        assert!(!geteuid().is_root() || users.reach(&inner.join("none")).is_err());
    }
}
