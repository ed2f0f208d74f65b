//! Exact copies of a session: forks of one of its paused copies, each in namespaces, folders and a control group of its own.
//!
//! A guest has no capabilities, and its filter refuses namespaces. So the host isolates the copies from outside: it traces the paused copy
//! (`ptrace`), and has it make processes in new namespaces past its filter. Before such a process runs code of the guest, the host has it give
//! up all rights. The paused copy may be a hostile process. The host asks the kernel about it, after it has stopped all processes next to it. The paused
//! copy ends before any of its copies begins. Its attacks are tests (`host/tests/guests/copies/hostile.rs`).
//!
//! Each copy has two processes. The *keeper* is the first of its namespaces. It shares the memory of the paused copy until that one has ended,
//! and then drops it. From then on it only waits for its children to end. Its child has a copy of the memory, and is a paused copy as well: the
//! first guest comes from it when one is needed.
//!
//! | file | holds |
//! |---|---|
//! | this one | what a copy is made of, and the check of it |
//! | `standing.rs` | the paused copy, at the begin of its fork |
//! | `copying.rs` | the making of copies, step by step |
//! | `steps.rs` | steps of a traced process |
//! | `calls.rs` | calls that it makes in one go |
//! | `fds.rs` | what its descriptors stand for |
//! | `files.rs` | files of the session's folders |
//! | `rooms.rs` | folders and mounts of copies |
//! | `family.rs` | processes that live as long as a copy |
//!
//! Linux on `x86_64` only, by a host that is root. Decisions: `docs/internals/copies-on-hosts.md`.

#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod copying;
pub(crate) mod family;
#[cfg(target_arch = "x86_64")]
mod fds;
#[cfg(target_arch = "x86_64")]
mod files;
pub(crate) mod rooms;
#[cfg(target_arch = "x86_64")]
mod standing;
#[cfg(target_arch = "x86_64")]
mod steps;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::libc;
use rustix::process::{Signal, pidfd_send_signal};

use self::rooms::{Room, Rooms};
use crate::cgroup::{Bounds, Cgroup};
use crate::procfs;

/// The namespaces of a copy, with the names that `/proc` has for them.
const NAMESPACES: [(&str, i32); 6] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("net", libc::CLONE_NEWNET),
];
/// The most namespaces of processes within each other. Linux allows 32.
const DEEPEST: usize = 24;
/// The most memory of a keeper: its page of code, its tables, and libraries that the loader may have sealed.
const MOST_OF_A_KEEPER: u64 = 16 << 20;

/// The paused copy that is copied, and what is around it.
pub(crate) struct Origin {
    /// The process, which a signal has stopped.
    pub(crate) process: OwnedFd,
    pub(crate) pid: u32,
    /// The host's end of its control socket.
    pub(crate) control: OwnedFd,
    /// The control group of all processes of the session.
    pub(crate) group: Arc<Cgroup>,
    /// Those that stand over the origin. They run none of the user's code.
    pub(crate) standing: HashSet<u32>,
    /// The one from which guests without a state come. It has run none of the user's code, and stays with those that stand over it.
    pub(crate) beginning: Option<u32>,
    /// The other paused copies. Signals have stopped them.
    pub(crate) paused: Vec<OwnedFd>,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) limits: CopyLimits,
}

impl Origin {
    /// The processes that stay when copies have been made, with the origin.
    #[cfg(target_arch = "x86_64")]
    fn staying(&self) -> HashSet<u32> {
        self.standing.union(&self.stopped([])).copied().collect()
    }

    /// The processes that run none of their own code meanwhile: the origin, the beginning, and these.
    #[cfg(target_arch = "x86_64")]
    fn stopped(&self, others: impl IntoIterator<Item = u32>) -> HashSet<u32> {
        let own = [Some(self.pid), self.beginning];
        own.into_iter().flatten().chain(others).collect()
    }
}

/// The limits of each copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyLimits {
    /// The bounds of its control group.
    pub bounds: Bounds,
    /// The size of its shared memory, in bytes.
    pub tmp_bytes: u64,
}

/// A copy. Dropping it ends it.
pub(crate) struct Copy {
    /// The host's end of its control socket.
    pub(crate) control: OwnedFd,
    /// The paused copy's process.
    pub(crate) process: OwnedFd,
    pub(crate) keeper: Keeper,
    pub(crate) group: Arc<Cgroup>,
    pub(crate) room: Room,
}

/// The first process of a copy's namespaces. Dropping it ends the copy.
pub(crate) struct Keeper(pub(crate) OwnedFd);

impl Keeper {
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL); // it may be gone already
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
    }
}

fn refused(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(what.to_string())
}

/// Copies that are to be made.
pub(crate) struct Wanted<G> {
    pub(crate) epoch: u32,
    pub(crate) count: usize,
    /// Returns an error once nobody wants them any more.
    pub(crate) still: G,
}

/// Makes copies, and has `take` take them before they begin. Then their origin ends, and they begin. Blocks.
///
/// # Errors
/// The reason why there can be none. The origin is stopped as before then. If that is not possible, it has ended. Other paused copies may have
/// ended.
pub(crate) fn make<T: Send>(
    origin: &Origin,
    wanted: &Wanted<impl Fn() -> io::Result<()> + Sync>,
    take: impl FnOnce(Vec<Copy>) -> io::Result<T> + Send,
) -> io::Result<T> {
    #[cfg(target_arch = "x86_64")]
    return copying::make(origin, wanted, take);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (origin, wanted, take);
        Err(refused("machines of this kind have none"))
    }
}

/// The kernel's facts about a process.
struct Facts(HashMap<String, String>);

impl Facts {
    fn of(pid: u32) -> io::Result<Self> {
        let status = procfs::read(format!("/proc/{pid}/status"))?;
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        Ok(Self(
            lines
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect(),
        ))
    }

    fn get(&self, name: &str) -> io::Result<&str> {
        let found = self.0.get(name).map(String::as_str);
        found.ok_or_else(|| refused(format_args!("the kernel does not tell {name}")))
    }

    /// The number that is in force, where there are several.
    fn number(&self, name: &str) -> io::Result<u32> {
        let value = self.get(name)?.split_whitespace().nth(1);
        value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| refused(format_args!("{name} is no number")))
    }

    /// The process's numbers, in the host's namespace and in those below it.
    fn numbers(&self) -> io::Result<Vec<u32>> {
        let numbers = self.get("NSpid")?.split_whitespace().map(str::parse);
        numbers.collect::<Result<_, _>>().map_err(refused)
    }

    /// Bytes of memory that the kernel counts for the process when it chooses one to end.
    fn chosen_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0_u64;
        for name in ["VmRSS", "VmSwap", "VmPTE"] {
            let kibibytes = self.get(name)?.split_whitespace().next().map(str::parse::<u64>);
            let kibibytes = kibibytes.and_then(Result::ok);
            bytes = bytes.saturating_add(kibibytes.ok_or_else(|| refused(format_args!("{name} is no number")))? << 10);
        }
        Ok(bytes)
    }

    /// Returns an error if a copy would share something with the process.
    fn can_be_copied(&self, pid: u32) -> io::Result<()> {
        if self.get("Threads")? != "1" {
            return Err(refused("there are threads"));
        }
        if self.get("Seccomp")? != "2" {
            return Err(refused("it has no filter of system calls"));
        }
        if self.numbers()?.len() > DEEPEST {
            return Err(refused(format_args!("it is a copy of a copy, {DEEPEST} times over")));
        }
        let maps = procfs::maps(pid)?;
        match maps.lines().any(is_shared) {
            true => Err(refused("there is memory that may be others'")),
            false => Ok(()),
        }
    }

    /// Returns an error if a guest is less isolated than a session has to be.
    fn check(&self, guest: u32, origin: u32, group: &std::path::Path) -> io::Result<()> {
        let facts = Self::of(guest)?;
        facts.has_no_rights()?;
        for name in ["Uid", "Gid"] {
            if facts.get(name)? != self.get(name)? {
                return Err(refused(format_args!("a copy has another {name}")));
            }
        }
        for (name, _) in NAMESPACES.iter().chain([&("cgroup", 0)]) {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{name}"));
            if of(guest)? == of(origin)? {
                return Err(refused(format_args!("a copy shares the namespace {name}")));
            }
        }
        let members = fs::read_to_string(group.join("cgroup.procs"))?;
        match members.lines().any(|line| line == guest.to_string()) {
            true => Ok(()),
            false => Err(refused("a copy is not in its control group")),
        }
    }
}

impl Facts {
    fn has_no_rights(&self) -> io::Result<()> {
        self.has_none_of(&["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])?;
        self.has_all_of(&[("Seccomp", "2"), ("NoNewPrivs", "1"), ("Threads", "1")])?;
        // A signal to a group of processes, or to a session, must reach no other copy.
        for name in ["NSpgid", "NSsid"] {
            if self.get(name)?.split_whitespace().next_back() != Some("1") {
                return Err(refused(format_args!("a copy has another {name} than its own")));
            }
        }
        Ok(())
    }

    /// Returns an error if code of a guest could run in a keeper: as the handler of a signal.
    fn is_keeper(&self) -> io::Result<()> {
        const ALL_BUT_KILL_AND_STOP: &str = "fffffffffffbfeff";
        self.has_no_rights()?;
        self.has_none_of(&["SigCgt"])?;
        self.has_all_of(&[("SigBlk", ALL_BUT_KILL_AND_STOP)])
    }

    /// Returns an error if a keeper holds memory that counts.
    fn holds_little(&self) -> io::Result<()> {
        match self.chosen_bytes()? < MOST_OF_A_KEEPER {
            true => Ok(()),
            false => Err(refused("its keepers hold too much memory")),
        }
    }

    fn has_none_of(&self, masks: &[&str]) -> io::Result<()> {
        for name in masks {
            let is_none = self.get(name)?.bytes().all(|byte| byte == b'0');
            if !is_none {
                return Err(refused(format_args!("a copy has {name}")));
            }
        }
        Ok(())
    }

    fn has_all_of(&self, fields: &[(&str, &str)]) -> io::Result<()> {
        for (name, wanted) in fields {
            if self.get(name)? != *wanted {
                return Err(refused(format_args!("a copy has another {name} than {wanted}")));
            }
        }
        Ok(())
    }
}

/// Returns true if a line of `/proc/<pid>/maps` is about memory that processes can share, but for files of the system that nobody can write to.
fn is_shared(line: &str) -> bool {
    let mut fields = line.splitn(6, ' ');
    let rights = fields.nth(1).unwrap_or_default();
    let path = fields.nth(3).unwrap_or_default().trim_start();
    let is_systems = path.starts_with("/usr/lib/") && !rights.contains('w');
    !rights.ends_with('p') && !is_systems
}

#[cfg(test)]
mod tests {
    use super::is_shared;

    #[test]
    fn only_files_of_the_system_may_be_shared() {
        let line =
            |rights: &str, path: &str| format!("7f00-7f01 {rights} 00000000 fe:00 1234                       {path}");
        assert!(!is_shared(&line("rw-p", "/workspace/x")));
        assert!(!is_shared(&line(
            "r--s",
            "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache"
        )));
        assert!(is_shared(&line(
            "rw-s",
            "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache"
        )));
        assert!(is_shared(&line("r--s", "/workspace/a /usr/lib/b")));
        assert!(is_shared(&line("rw-s", "/dev/zero (deleted)")));
        assert!(is_shared("7f00-7f01 rw-s 00000000 00:01 7"));
    }
}
