//! The descriptors of a paused copy: what a copy of it may share, what it opens anew, and what it must not have. They are the kernel's word.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use nix::libc;

use super::calls::Calls;
use super::files::{close, flags};

/// Devices that can be shared.
const DEVICES: [&[u8]; 5] = [
    b"/dev/null",
    b"/dev/zero",
    b"/dev/full",
    b"/dev/random",
    b"/dev/urandom",
];
/// Flags that make or change a file when it is opened.
const MAKES: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// The numbers that are in use.
#[derive(Clone)]
pub(super) struct Descriptors(BTreeSet<u64>);

impl Descriptors {
    /// Takes the number that the kernel gives next: the lowest one that is free.
    pub(super) fn take(&mut self) -> u64 {
        let free = (0..).find(|fd| !self.0.contains(fd)).unwrap_or_default();
        self.0.insert(free);
        free
    }

    pub(super) fn give_back(&mut self, fd: u64) {
        self.0.remove(&fd);
    }
}

/// A file that a copy opens anew, so that it shares no position with its origin.
struct OpenFile {
    fd: u64,
    path: Vec<u8>,
    flags: i32,
    position: u64,
    is_folder: bool,
}

impl OpenFile {
    /// Returns true if what is written by the one may move the position of the other.
    fn may_be(&self, other: &Self) -> bool {
        let is_written = self.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let facts = |file: &Self| (file.path.clone(), file.flags & !libc::O_CLOEXEC, file.position);
        is_written && facts(self) == facts(other)
    }
}

/// All descriptors of a process.
pub(super) struct Table {
    pub(super) taken: Descriptors,
    /// Those of pipes that lead to other processes.
    pipes: Vec<u64>,
    files: Vec<OpenFile>,
    /// The inodes of sockets, with their numbers.
    sockets: Vec<(u64, u64)>,
}

fn refused(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(what.to_string())
}

impl Table {
    /// Reads those of a stopped process.
    ///
    /// # Errors
    /// One of them is of a kind that two processes would share.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let mut table = Self {
            taken: Descriptors(BTreeSet::new()),
            pipes: Vec::new(),
            files: Vec::new(),
            sockets: Vec::new(),
        };
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let fd: u64 = number.ok_or_else(|| refused("a descriptor without a number"))?;
            table.taken.0.insert(fd);
            let link = fs::read_link(entry.path())?;
            let link = link.as_os_str().as_bytes();
            let inner = |kind: &[u8]| {
                let rest = link.strip_prefix(kind)?.strip_suffix(b"]")?;
                std::str::from_utf8(rest).ok()?.parse::<u64>().ok()
            };
            if let Some(inode) = inner(b"socket:[") {
                table.sockets.push((fd, inode));
            } else if inner(b"pipe:[").is_some() {
                table.pipes.push(fd);
            } else if DEVICES.contains(&link) {
                table.files.push(open_file(pid, fd, link, true)?);
            } else if link.starts_with(b"/") && !link.starts_with(b"/dev/") && !link.ends_with(b" (deleted)") {
                let file = open_file(pid, fd, link, false)?;
                // They may have one position, as after dup(2). In a copy, each would have its own.
                if let Some(same) = table.files.iter().find(|other| other.may_be(&file)) {
                    let (path, other) = (link.escape_ascii(), same.fd);
                    return Err(refused(format_args!(
                        "{path} is open twice for writing at one position (descriptors {other} and {fd})"
                    )));
                }
                table.files.push(file);
            } else {
                return Err(refused(format_args!(
                    "{} is open (descriptor {fd})",
                    link.escape_ascii()
                )));
            }
        }
        Ok(table)
    }

    /// The process's number of a socket that the host has, too.
    pub(super) fn number_of(&self, socket: &OwnedFd) -> io::Result<u64> {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
        let link = link.to_string_lossy().into_owned();
        let found = self
            .sockets
            .iter()
            .find(|(_, inode)| link == format!("socket:[{inode}]"));
        found
            .map(|(fd, _)| *fd)
            .ok_or_else(|| refused("it lacks a socket that it was sent"))
    }

    /// Returns an error if there is another number of sockets.
    pub(super) fn has_so_many_sockets(&self, known: usize) -> io::Result<()> {
        match self.sockets.len() == known {
            true => Ok(()),
            false => Err(refused("a socket is open")),
        }
    }

    /// Returns true if there are so many sockets, and no pipes.
    pub(super) fn leads_nowhere_else(&self, sockets: usize) -> bool {
        self.pipes.is_empty() && self.sockets.len() == sockets
    }

    /// Adds calls by which a copy opens its own files, and gives up what leads to other processes. `free` is the lowest free number.
    pub(super) fn open_anew(&self, calls: &mut Calls<'_>, free: u64) {
        let sockets = self.sockets.iter().map(|(fd, _)| fd);
        for fd in self.pipes.iter().chain(sockets) {
            let path = calls.text(b"/dev/null");
            calls.opens("open", libc::SYS_open, [path, flags(libc::O_RDWR)], free);
            calls.add("dup3", libc::SYS_dup3, [free, *fd, flags(libc::O_CLOEXEC)]);
            close(calls, free);
        }
        for file in &self.files {
            let path = calls.text(&file.path);
            calls.opens("open", libc::SYS_open, [path, flags(file.flags)], free);
            if !file.is_folder {
                calls.add("lseek", libc::SYS_lseek, [free, file.position, flags(libc::SEEK_SET)]);
            }
            calls.add(
                "dup3",
                libc::SYS_dup3,
                [free, file.fd, flags(file.flags & libc::O_CLOEXEC)],
            );
            close(calls, free);
        }
    }
}

fn open_file(pid: u32, fd: u64, link: &[u8], is_device: bool) -> io::Result<OpenFile> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).ok_or_else(|| refused("a descriptor without facts"))
    };
    let position = field("pos:")?.parse().map_err(refused)?;
    let flags = i32::from_str_radix(field("flags:")?, 8).map_err(refused)?;
    let kind = fs::metadata(format!("/proc/{pid}/fd/{fd}"))?.file_type();
    if !kind.is_file() && !kind.is_dir() && !is_device {
        return Err(refused(format_args!(
            "{} is open (descriptor {fd})",
            link.escape_ascii()
        )));
    }
    let is_own =
        link.starts_with(b"/workspace/") || link.starts_with(b"/tmp/") || link == b"/workspace" || link == b"/tmp";
    if !is_own && !is_device && flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(refused(format_args!(
            "{} is open for writing (descriptor {fd})",
            link.escape_ascii()
        )));
    }
    if kind.is_dir() && position != 0 {
        let path = link.escape_ascii();
        return Err(refused(format_args!("{path} is being listed (descriptor {fd})")));
    }
    Ok(OpenFile {
        fd,
        path: link.to_owned(),
        flags: flags & !MAKES,
        position,
        is_folder: kind.is_dir(),
    })
}
