//! All workspaces of a server.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, statat};
use rustix::io::Errno;

use super::beneath::{self, kind};
use super::files::make_folder;
use super::{MAX_NAME, Quota, Workspace, WorkspaceError};
use crate::users::Users;

/// Most tries to claim a workspace that was removed meanwhile.
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
    /// The workspaces in a folder, which is made if it is missing. With `users`, each claimed workspace belongs to another of
    /// these ids; hosts without root pass `None`.
    ///
    /// # Errors
    /// [`WorkspaceError::System`] when the folder cannot be made.
    pub fn open(path: &Path, users: Option<Users>, quota: Option<Quota>) -> Result<Self, WorkspaceError> {
        let fail = |error: io::Error| WorkspaceError::system(path.display().to_string(), error);
        if !path.is_dir() {
            std::fs::create_dir_all(path).map_err(fail)?;
            // The umask may take the guests' right to pass.
            let mode = std::fs::metadata(path).map_err(fail)?.permissions().mode();
            std::fs::set_permissions(path, Permissions::from_mode(mode | 0o111)).map_err(fail)?;
        }
        let path = path.canonicalize().map_err(fail)?;
        let folder = File::open(&path).map_err(fail)?.into();
        Ok(Self {
            path,
            folder,
            users,
            quota,
        })
    }

    /// Claims a workspace, and makes it if it is missing. Other claims fail until the returned value is dropped.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] when the workspace is claimed; [`WorkspaceError::Name`] for an invalid name.
    pub fn claim(&self, user: &str, session: &str) -> Result<Workspace, WorkspaceError> {
        check_name("the user", user)?;
        check_name("the session", session)?;
        let label = format!("{user}/{session}");
        let fail = |error: Errno| WorkspaceError::at(&label, error);
        for _ in 0..ATTEMPTS {
            // Other users can pass through the folder, but not list it.
            let parent = make_folder(&self.folder, user, Mode::from_raw_mode(0o711), None).map_err(fail)?;
            let folder = match make_folder(&parent, session, Mode::RWXU, None) {
                Err(Errno::NOENT) => continue, // the user's folder was removed just now
                folder => folder.map_err(fail)?,
            };
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => return Err(WorkspaceError::InUse(label)),
                locked => locked.map_err(fail)?,
            }
            // The previous holder may have removed the workspace.
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

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a user's unclaimed workspaces, except the `kept` ones that changed last. Only names for which `is_meant` returns
    /// true count.
    ///
    /// # Errors
    /// [`WorkspaceError`] when a workspace cannot be read or removed; then more than `kept` may remain.
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

impl Workspace {
    /// Claims a folder of the host's own user as a workspace, and makes it if it is missing. Other claims fail until the returned value
    /// is dropped. The name of its user is empty.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] when the folder is claimed; [`WorkspaceError::System`] when it cannot be used.
    pub fn open(path: &Path) -> Result<Self, WorkspaceError> {
        let label = path.display().to_string();
        let fail = |error: io::Error| WorkspaceError::system(&label, error);
        std::fs::create_dir_all(path).map_err(fail)?;
        let path = path.canonicalize().map_err(fail)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Err(WorkspaceError::refused(&label, "must be a folder with a name in UTF-8"));
        };
        let folder: OwnedFd = File::open(&path).map_err(fail)?.into();
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => return Err(WorkspaceError::InUse(label)),
            locked => locked.map_err(|error| WorkspaceError::at(&label, error))?,
        }
        Ok(Self {
            user: String::new(),
            session: name.to_owned(),
            parent: File::open(parent).map_err(fail)?.into(),
            path,
            folder,
            owner: None,
            quota: None,
        })
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
