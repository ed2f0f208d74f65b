//! The user who owns a workspace.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Gid, Uid, fchown, fstat};

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
