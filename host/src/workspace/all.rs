//! All workspaces of a server.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, statat};
use rustix::io::Errno;

use super::beneath::{self, kind};
use super::files::make_folder;
use super::{MAX_NAME, Quota, Workspace, WorkspaceError};
use crate::users::Users;

/// Times that a workspace is looked up again because it was removed meanwhile.
const ATTEMPTS: u32 = 8;

/// All workspaces of a server: `WORKSPACE_DIR`.
#[derive(Debug)]
pub struct Workspaces {
    path: PathBuf,
    folder: OwnedFd,
    users: Option<Users>,
    quota: Option<Quota>,
}

impl Workspaces {
    /// Those in a folder, which is made when there is none. With `users`, each workspace that somebody has belongs to another one of them;
    /// others than root leave it out.
    ///
    /// # Errors
    /// [`WorkspaceError::System`], when it cannot be made.
    pub fn open(path: &Path, users: Option<Users>, quota: Option<Quota>) -> Result<Self, WorkspaceError> {
        let fail = |error: io::Error| WorkspaceError::system(path.display().to_string(), error);
        std::fs::create_dir_all(path).map_err(fail)?;
        let path = path.canonicalize().map_err(fail)?;
        let folder = File::open(&path).map_err(fail)?.into();
        Ok(Self {
            path,
            folder,
            users,
            quota,
        })
    }

    /// Takes a workspace, and makes it when there is none. Nobody else gets it until it is dropped.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] when somebody has it, [`WorkspaceError::Name`] for a name that is none.
    pub fn claim(&self, user: &str, session: &str) -> Result<Workspace, WorkspaceError> {
        check_name("the user", user)?;
        check_name("the session", session)?;
        let label = format!("{user}/{session}");
        let fail = |error: Errno| WorkspaceError::at(&label, error);
        for _ in 0..ATTEMPTS {
            // Others than the owner may pass through it, but not see what is there.
            let parent = make_folder(&self.folder, user, Mode::from_raw_mode(0o711), None).map_err(fail)?;
            let folder = match make_folder(&parent, session, Mode::RWXU, None) {
                Err(Errno::NOENT) => continue, // the user's folder was removed just now
                folder => folder.map_err(fail)?,
            };
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => return Err(WorkspaceError::InUse(label)),
                locked => locked.map_err(fail)?,
            }
            // Whoever had it until now may have removed it.
            let there = statat(&parent, session, AtFlags::SYMLINK_NOFOLLOW);
            let same =
                |stat: &Stat| fstat(&folder).is_ok_and(|mine| (mine.st_dev, mine.st_ino) == (stat.st_dev, stat.st_ino));
            if !there.is_ok_and(|stat| same(&stat)) {
                continue;
            }
            let owner = self.users.map(|users| users.of_workspace(&folder)).transpose();
            return Ok(Workspace {
                path: self.path.join(user).join(session),
                user: user.to_owned(),
                session: session.to_owned(),
                parent,
                folder,
                owner: owner.map_err(|error| WorkspaceError::system(&label, error))?.flatten(),
                quota: self.quota,
            });
        }
        Err(WorkspaceError::InUse(label))
    }

    /// Their folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a user's workspaces that nobody has, all but the `kept` ones that were changed last. `is_meant` says of a name whether it is
    /// of those that this is about.
    ///
    /// # Errors
    /// [`WorkspaceError`], when one cannot be read or removed; then there may be more than `kept`.
    pub fn prune(&self, user: &str, kept: usize, is_meant: impl Fn(&str) -> bool) -> Result<(), WorkspaceError> {
        check_name("the user", user)?;
        let fail = |error: Errno| WorkspaceError::at(user, error);
        let folder = match beneath::open(&self.folder, user, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(()),
            folder => folder.map_err(fail)?,
        };
        let mut sessions = Vec::new();
        for entry in Dir::read_from(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if check_name("the session", name).is_err() || !is_meant(name) {
                continue;
            }
            if let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                && kind(&stat) == FileType::Directory
            {
                sessions.push(((stat.st_ctime, stat.st_ctime_nsec), name.to_owned()));
            }
        }
        sessions.sort();
        let mut seen = 0;
        for (_, session) in sessions.iter().rev() {
            match self.claim(user, session) {
                Err(WorkspaceError::InUse(_)) => continue,
                Err(error) => return Err(error),
                Ok(workspace) if seen == kept => workspace.destroy()?,
                Ok(_) => seen += 1,
            }
        }
        Ok(())
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), WorkspaceError> {
    let fits = |(index, byte): (usize, u8)| match byte {
        b'.' | b'-' | b'@' => index > 0,
        byte => byte.is_ascii_alphanumeric() || byte == b'_',
    };
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().enumerate().all(fits) {
        return Ok(());
    }
    let name = name.chars().take(MAX_NAME).collect();
    Err(WorkspaceError::Name { what, name })
}
