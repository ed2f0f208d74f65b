//! The folders of copies, and the mounts that a copy sees instead of its origin's.
//!
//! A rule of Landlock is tied to a folder itself, and a confined process cannot add rules. So the folders of all copies are made, with their
//! rules, when the first guest of a family starts (`backend/bubblewrap.rs`). A *room* is two such folders: one becomes a copy's `/workspace`,
//! the other its `/tmp`.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, fchmod, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_remount, move_mount, open_tree};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Facts;
use crate::guest::process::ends_within;

/// The folder of the rooms, as guests see it. It cannot be written to there.
pub const ROOMS: &str = "/run/copies";
/// The folder of `/proc` that is a process's root.
pub(super) const ROOT: &str = "root";
/// The number of rooms, and so the most copies of a family that live at once.
pub const MOST_ROOMS: u16 = 128;
/// The folders of a room.
pub const FOLDERS: [&str; 2] = ["workspace", "tmp"];
/// The deepest folder that is emptied where it is. Each open folder takes two descriptors.
const DEEPEST: usize = 16;
/// The time for the processes of a copy to end.
const KILLED_WITHIN: Duration = Duration::from_secs(60);
/// The time to wait for a room that is being emptied.
const EMPTIED_WITHIN: Duration = Duration::from_secs(5);

/// The rooms of a family: of a guest that the host has started, and of all copies that come from it.
pub(crate) struct Rooms {
    /// The mount namespace of the first guest.
    namespace: OwnedFd,
    /// The first guest's `/proc`. A copy may not write to one of its own, as Landlock's rule is tied to this one.
    pub(super) proc: OwnedFd,
    /// The number of the first guest's namespaces of processes, with the host's.
    pub(super) level: usize,
    state: Mutex<State>,
    /// A room has become free, or is given up.
    changed: Condvar,
}

/// Which rooms can be used.
struct State {
    free: Vec<u16>,
    used: Vec<UsedRoom>,
    /// True while a thread empties the used ones.
    are_emptied: bool,
}

/// A room that has to be emptied.
struct UsedRoom {
    number: u16,
    folders: Arc<[OwnedFd; 2]>,
    /// A process without which nobody is in the room.
    last: Option<OwnedFd>,
}

/// A room. Its files go when this is dropped.
pub(crate) struct Room {
    number: u16,
    /// The two folders, as mounts that belong to no namespace yet.
    folders: Arc<[OwnedFd; 2]>,
    /// True once a copy has seen the room.
    is_used: bool,
    /// A process without which nobody is in the room.
    last: Option<OwnedFd>,
    rooms: Arc<Rooms>,
}

impl Rooms {
    /// The rooms of a family whose first guest is in the namespaces of process `standing`.
    pub(crate) fn around(standing: u32) -> io::Result<Self> {
        Ok(Self {
            namespace: File::open(format!("/proc/{standing}/ns/mnt"))?.into(),
            proc: open_folder(CWD, format!("/proc/{standing}/{ROOT}/proc"))?,
            level: Facts::of(standing)?.numbers()?.len(),
            state: Mutex::new(State {
                free: (0..MOST_ROOMS).rev().collect(),
                used: Vec::new(),
                are_emptied: false,
            }),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, number: u16) {
        self.state().free.push(number);
        self.changed.notify_all();
    }

    /// The number of a free room. Waits for those that are being emptied.
    fn next_free(&self) -> Option<u16> {
        let has_to_wait = |state: &mut State| state.free.is_empty() && state.are_emptied;
        let waited = self
            .changed
            .wait_timeout_while(self.state(), EMPTIED_WITHIN, has_to_wait);
        waited.unwrap_or_else(PoisonError::into_inner).0.free.pop()
    }

    /// Empties used rooms until there is none.
    fn empty_used(&self) {
        while let Some(UsedRoom { number, folders, last }) = self.next_used() {
            let is_left = last.is_none_or(|last| ends_within(&last, KILLED_WITHIN));
            let is_empty = is_left && folders.iter().all(|folder| reset(folder).is_ok());
            match is_empty {
                true => self.give_back(number),
                false => tracing::warn!(
                    number,
                    "the folders of a copy could not be emptied, and are not used again"
                ),
            }
        }
        self.changed.notify_all();
    }

    fn next_used(&self) -> Option<UsedRoom> {
        let mut state = self.state();
        let next = state.used.pop();
        state.are_emptied = next.is_some();
        next
    }

    /// Takes so many rooms. Moves the thread into the namespace of the first guest.
    pub(super) fn take(self: &Arc<Self>, count: usize) -> io::Result<Vec<Room>> {
        unshare(CloneFlags::CLONE_FS)?;
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        (0..count).map(|_| self.take_one()).collect()
    }

    fn take_one(self: &Arc<Self>) -> io::Result<Room> {
        let none = || {
            io::Error::other(format!(
                "a family has at most {MOST_ROOMS} copies at once, with those whose folders are not empty yet"
            ))
        };
        let number = self.next_free().ok_or_else(none)?;
        let open = |folder| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            open_tree(CWD, format!("{ROOMS}/{folder}/{number}"), flags)
        };
        let folders = open(FOLDERS[0]).and_then(|workspace| Ok([workspace, open(FOLDERS[1])?]));
        match folders {
            Ok(folders) => Ok(Room {
                number,
                folders: Arc::new(folders),
                is_used: false,
                last: None,
                rooms: Arc::clone(self),
            }),
            Err(error) => {
                self.give_back(number);
                let why = match error {
                    Errno::NOENT => "its guest has no folders for copies".to_owned(),
                    error => error.to_string(),
                };
                Err(io::Error::other(why))
            }
        }
    }
}

impl Room {
    /// The same room, which a copy gets to see. Its files go after this process, and it is not used again before.
    pub(super) fn until_end_of(mut self, process: OwnedFd) -> Self {
        self.is_used = true;
        self.last = Some(process);
        self
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.is_used {
            return self.rooms.give_back(self.number);
        }
        let mut state = self.rooms.state();
        state.used.push(UsedRoom {
            number: self.number,
            folders: Arc::clone(&self.folders),
            last: self.last.take(),
        });
        if state.are_emptied {
            return;
        }
        // Not by the caller, which may be a task.
        let rooms = Arc::clone(&self.rooms);
        let emptying = thread::Builder::new().name("sandglass-room".to_owned());
        state.are_emptied = emptying.spawn(move || rooms.empty_used()).is_ok(); // otherwise with the next one
    }
}

/// The owner and the size of the folders that a copy sees.
pub(super) struct Furnishing {
    pub(super) user: u32,
    pub(super) group: u32,
    /// The most bytes of shared memory.
    pub(super) bytes: u64,
}

impl Furnishing {
    /// Gives the process its own empty folders, its `/proc`, its terminals and its loopback. Moves the thread into the process's namespaces:
    /// `namespaces` are those of mounts and of the network.
    pub(super) fn furnish(&self, namespaces: [&OwnedFd; 2], room: &Room, proc: &OwnedFd) -> io::Result<()> {
        let [mounts, network] = namespaces;
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        let empty_path = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        for (folder, tree) in FOLDERS.into_iter().zip(&*room.folders) {
            let target = format!("/{folder}");
            move_mount(tree, "", CWD, &*target, empty_path)?;
            mount_remount(&*target, MountFlags::BIND | safe, "")?;
        }
        let hidden = safe | MountFlags::NOEXEC | MountFlags::RDONLY;
        mount_at(ROOMS, "tmpfs", hidden, "size=4k,mode=000")?;
        let (user, group) = (self.user, self.group);
        let shared = format!("size={},mode=1777,uid={user},gid={group}", self.bytes);
        mount_at("/dev/shm", "tmpfs", safe | MountFlags::NOEXEC, &shared)?;
        let terminals = "newinstance,ptmxmode=0666,mode=620,max=64";
        mount_at("/dev/pts", "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, terminals)?;
        move_mount(proc, "", CWD, "/proc", empty_path)?;
        loopback_up()
    }
}

fn mount_at(target: &str, kind: &str, flags: MountFlags, options: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    Ok(mount(kind, target, kind, flags, &*options)?)
}

fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Makes a folder of a room as it was at first. The filter lets no guest give it attributes.
fn reset(folder: &OwnedFd) -> rustix::io::Result<()> {
    let inside = open_folder(folder, ".")?; // one that can be read: the other is only a place
    let mut emptying = Emptying { top: &inside, moved: 0 };
    while emptying.pass(&inside, 0)? {}
    if entries(&inside)?.next().is_some() {
        return Err(Errno::NOTEMPTY);
    }
    fchmod(&inside, Mode::from_raw_mode(0o755)) // as bubblewrap makes folders
}

fn entries(folder: &OwnedFd) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<CString>>> {
    let names = Dir::read_from(folder)?.map(|entry| Ok(entry?.file_name().to_owned()));
    Ok(names.filter(|name| name.as_deref() != Ok(c".") && name.as_deref() != Ok(c"..")))
}

/// The removal of all that is in a folder. What cannot be removed stays, and the rest goes.
struct Emptying<'a> {
    top: &'a OwnedFd,
    /// The number of folders that were moved to the top, because they were too deep.
    moved: u64,
}

impl Emptying<'_> {
    /// Removes what is in a folder. Returns true if something was removed or moved, so that another pass may find more.
    fn pass(&mut self, folder: &OwnedFd, depth: usize) -> rustix::io::Result<bool> {
        let mut is_less = false;
        for name in entries(folder)? {
            let name = name?;
            let removed = match unlinkat(folder, &*name, AtFlags::empty()) {
                Err(Errno::ISDIR) if depth >= DEEPEST => self.move_to_top(folder, &name),
                Err(Errno::ISDIR) => self.remove_folder(folder, &name, depth),
                other => other,
            };
            is_less |= removed.is_ok();
        }
        Ok(is_less)
    }

    fn remove_folder(&mut self, folder: &OwnedFd, name: &CStr, depth: usize) -> rustix::io::Result<()> {
        let inside = open_folder(folder, name)?;
        while self.pass(&inside, depth + 1)? {}
        unlinkat(folder, name, AtFlags::REMOVEDIR)
    }

    fn move_to_top(&mut self, folder: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
        loop {
            let place = format!("moved-{}", self.moved);
            self.moved += 1;
            match renameat_with(folder, name, self.top, &*place, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
}

/// Sets the loopback of the thread's network namespace up: a request `RTM_NEWLINK` (rtnetlink(7)) about the first link.
fn loopback_up() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const REQUEST: u16 = 1;
    const BYTES: u32 = 32;
    const UP: u32 = 1;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut message = Vec::new();
    message.extend(BYTES.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence number, sender
    message.extend([0; 4]); // family, padding, kind of device
    message.extend(1_u32.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_empty_again_however_deep_it_was() {
        let home = tempfile::tempdir().unwrap();
        let top = open_folder(CWD, home.path()).unwrap();
        for name in ["moved-0", "moved-1", "deep"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        let mut at = open_folder(&top, "deep").unwrap();
        for _ in 0..2_000 {
            for name in ["deep", "beside"] {
                rustix::fs::mkdirat(&at, name, Mode::empty()).unwrap();
            }
            rustix::fs::symlinkat("/", &at, "link").unwrap();
            at = open_folder(&at, "deep").unwrap();
        }
        for number in 0..3_000 {
            fs::write(home.path().join(number.to_string()), "").unwrap();
        }
        reset(&top).unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        let mode = rustix::fs::fstat(&top).unwrap().st_mode;
        assert_eq!(mode & 0o777, 0o755);
    }
}
