//! A paused copy that is stopped at the begin of its fork, with all that it stands next to.
//!
//! It may be a process of hostile code that only claims to be a paused copy. So nobody next to it runs, and it makes only the few steps between
//! an order and its fork. It goes on only when all that was made of it has ended; otherwise it ends.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, c_long};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::calls;
use super::fds::Table;
use super::files::{Files, flags};
use super::rooms::ROOT;
use super::steps::Registers;
use super::{Facts, Origin, refused};
use crate::guest::process::{GONE_WITHIN, ends_within, process_of};
use crate::guest::traced::Traced;
use crate::seqpacket::pair;

/// Calls that a paused copy makes between an order and its fork, and from there to the next order.
const ALLOWED: [c_long; 13] = [
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_dup3,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_pidfd_open,
    libc::SYS_prctl,
    libc::SYS_sendmsg,
    libc::SYS_write,
];
/// The sockets of a paused copy that has no order: its control socket, under two numbers.
const SOCKETS: usize = 2;
/// The sockets that come with an order.
pub(super) const GIVEN: usize = 1;
/// Most descriptors in a packet.
const FDS: usize = 16;
const PACKET_BYTES: usize = 4 << 10;
/// Most packets that wait for the host. A paused copy sends one answer for each order.
const MOST_PACKETS: usize = 64;

/// When memory is used up, the kernel ends a process with the one value before any with the other (`oom_score_adj`).
const ENDS_FIRST: &str = "1000";
const ENDS_LAST: &str = "0";

/// A paused copy at the begin of its fork. Dropping it ends it, and the other paused copies.
pub(super) struct Standing {
    traced: Traced,
    /// The other paused copies. They are traced, because a stopped process goes on by itself when its timer sends `SIGCONT`.
    others: Vec<Traced>,
    /// Its `oom_score_adj` as it was before.
    score: Option<String>,
    /// Its registers there.
    pub(super) at: Registers,
    pub(super) files: Files,
    /// The socket that came with its order: the host's end, and the other.
    given: (OwnedFd, OwnedFd),
    /// The memory that it has mapped for calls.
    pages: Option<u64>,
}

/// The facts and the memory by which copies are made.
pub(super) struct Tools {
    pub(super) table: Table,
    /// The process's folder.
    pub(super) cwd: Vec<u8>,
    pub(super) memory: File,
    pub(super) pages: u64,
    /// The number at which a copy finds its control socket. It leads to the host until then.
    pub(super) given: u64,
    pub(super) facts: Facts,
    pub(super) last_capability: u64,
}

impl Standing {
    /// Has the origin go to its fork, once nobody next to it runs.
    ///
    /// # Errors
    /// The origin is as before if it could be, and otherwise has ended.
    pub(super) fn at_fork(origin: &Origin, epoch: u32) -> io::Result<Self> {
        // A paused copy of hostile code may go on, and wait for a process that it has made. It cannot be seized then.
        let ids = origin.paused.iter().filter_map(process_of);
        let spared = origin.standing.union(&origin.stopped(ids)).copied().collect();
        if !origin.group.kill_others(&spared, GONE_WITHIN) {
            return Err(refused("other processes of the session do not end"));
        }
        let others = seize_all(&origin.paused)?;
        let traced = match Traced::seize(&origin.process) {
            Ok(traced) => traced,
            Err(why) => return Err(let_go_stopped(others).err().unwrap_or(why)),
        };
        let stopped = origin.stopped(others.iter().map(Traced::pid));
        if !origin.group.still_others(&origin.standing, &stopped, GONE_WITHIN) {
            let_go_stopped(others.into_iter().chain([traced]))?;
            return Err(refused("other processes of the session do not stop"));
        }
        match Self::alone_at_fork(origin, epoch, traced) {
            Ok(standing) => Ok(Self { others, ..standing }),
            Err(why) => Err(let_go_stopped(others).err().unwrap_or(why)),
        }
    }

    fn alone_at_fork(origin: &Origin, epoch: u32, traced: Traced) -> io::Result<Self> {
        traced.take_back_stop()?;
        traced.run_to(&[libc::SYS_recvmsg], &ALLOWED)?;
        let asked = || {
            Table::of(traced.pid())?.has_so_many_sockets(SOCKETS)?;
            let files = Files::of(traced.pid())?;
            let given = pair()?;
            let order = format!("{{\"epoch\":{epoch},\"stays\":true}}");
            send(&origin.control, order.as_bytes(), &[given.1.as_fd()])?;
            io::Result::Ok((files, given))
        };
        let (files, given) = match asked() {
            Ok(asked) => asked,
            Err(why) => {
                traced.let_go_stopped()?;
                return Err(why);
            }
        };
        if traced.run_to(&[libc::SYS_clone, libc::SYS_recvmsg], &ALLOWED)? != libc::SYS_clone {
            take_answer(origin)?;
            traced.let_go_stopped()?;
            return Err(refused("it refused to fork"));
        }
        Ok(Self {
            at: traced.registers()?,
            traced,
            others: Vec::new(),
            score: None,
            files,
            given,
            pages: None,
        })
    }

    /// Looks at what copies would share, and has memory mapped for their calls.
    ///
    /// # Errors
    /// They would share something.
    pub(super) fn tools(&mut self, origin: &Origin) -> io::Result<Tools> {
        let pid = self.traced.pid();
        let facts = Facts::of(pid)?;
        facts.can_be_copied(pid)?;
        runs_same_program(pid, &origin.standing)?;
        has_no_shared_files(pid)?;
        let table = Table::of(pid)?;
        table.has_so_many_sockets(SOCKETS + GIVEN)?;
        // With a keeper, the kernel ends all that share its memory.
        self.score = Some(fs::read_to_string(score_of(pid))?);
        let _ = fs::write(score_of(pid), ENDS_LAST); // a host without CAP_SYS_RESOURCE may lower it only so far
        let given = table.number_of(&self.given.1)?;
        let cwd = fs::read_link(format!("/proc/{pid}/cwd"))?;
        let last_capability = fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let place = [0, calls::BYTES, flags(access), flags(kind), u64::MAX, 0];
        let pages = self.traced.call_instead(&self.at, libc::SYS_mmap, place)?;
        self.pages = Some(pages);
        let memory = memory_of(pid)?;
        calls::prepare(&memory, pages)?;
        let access = flags(libc::PROT_READ | libc::PROT_EXEC);
        let protected = [pages, calls::CODE_BYTES, access, 0, 0, 0];
        self.traced.call_instead(&self.at, libc::SYS_mprotect, protected)?;
        Ok(Tools {
            table,
            cwd: cwd.into_os_string().into_vec(),
            memory,
            pages,
            given,
            facts,
            last_capability: last_capability.trim().parse().map_err(refused)?,
        })
    }

    /// Makes a process that shares its memory, past its filter, with these flags. It has made no step.
    pub(super) fn share(&self, flags: i32) -> io::Result<Traced> {
        self.traced.clone_instead(&self.at, c_long::from(flags))
    }

    /// Ends the other paused copies.
    pub(super) fn end_others(&mut self) {
        self.others.clear();
    }

    /// Sends descriptors to processes that it has made, on the socket that came with its order.
    pub(super) fn hand(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.given.0, b"!", fds)
    }

    /// Has it go back to where it waits for orders, and stops it there. All that was made of it has ended.
    pub(super) fn go_back(mut self, origin: &Origin) -> io::Result<()> {
        let others = let_go_stopped(self.others.drain(..));
        // A process that did not take what it was handed has left it to this one.
        while take_packet(&self.given.1).is_ok() {}
        if let Some(score) = &self.score {
            fs::write(score_of(self.traced.pid()), score)?;
        }
        if let Some(pages) = self.pages {
            let all = [pages, calls::BYTES, 0, 0, 0, 0];
            self.traced.call_instead(&self.at, libc::SYS_munmap, all)?;
        }
        self.traced.fail(&self.at, Errno::EAGAIN)?;
        self.traced.run_to(&[libc::SYS_recvmsg], &ALLOWED)?;
        take_answer(origin)?;
        self.traced.let_go_stopped()?;
        others
    }
}

/// Traces all these paused copies, but for those that have ended.
///
/// # Errors
/// One cannot be traced. All are as before.
fn seize_all(paused: &[OwnedFd]) -> io::Result<Vec<Traced>> {
    let mut seized = Vec::new();
    for process in paused {
        match Traced::seize(process) {
            Ok(traced) => seized.push(traced),
            Err(_) if ends_within(process, Duration::ZERO) => {}
            Err(why) => return Err(let_go_stopped(seized).err().unwrap_or(why)),
        }
    }
    Ok(seized)
}

/// Lets all these go, also after an error. Returns the first one.
fn let_go_stopped(all: impl IntoIterator<Item = Traced>) -> io::Result<()> {
    let each: Vec<_> = all.into_iter().map(Traced::let_go_stopped).collect();
    each.into_iter().collect()
}

/// Returns an error if a process has started another program than those that stand over it. Its file may be the user's, and copies would share it.
fn runs_same_program(pid: u32, standing: &HashSet<u32>) -> io::Result<()> {
    let program = |pid: u32| {
        let file = fs::metadata(format!("/proc/{pid}/exe"))?;
        io::Result::Ok((file.dev(), file.ino()))
    };
    let own = program(pid)?;
    match standing.iter().any(|pid| program(*pid).is_ok_and(|its| its == own)) {
        true => Ok(()),
        false => Err(refused("it runs another program than its Python")),
    }
}

/// Returns an error if a process has files in shared memory, or what System V's calls make. A copy would lack them.
fn has_no_shared_files(pid: u32) -> io::Result<()> {
    if fs::read_dir(format!("/proc/{pid}/{ROOT}/dev/shm"))?.next().is_some() {
        return Err(refused("there are files in /dev/shm"));
    }
    let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
    // A thread of its own, because it stays in the other namespace.
    let look = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::InterProcessCommunication))?;
        for kind in ["msg", "sem", "shm"] {
            if fs::read_to_string(format!("/proc/sysvipc/{kind}"))?.lines().count() > 1 {
                return Err(refused(format_args!("there are things in /proc/sysvipc/{kind}")));
            }
        }
        Ok(())
    };
    let looking = thread::Builder::new().name("sandglass-ipc".to_owned()).spawn(look)?;
    looking.join().unwrap_or_else(|_| Err(refused("a thread has ended")))
}

/// Has a guest end before its keeper when memory is used up. The guest cannot change that: Landlock lets it write to no file below its `/proc`.
pub(super) fn ends_first(guest: u32) -> io::Result<()> {
    fs::write(score_of(guest), ENDS_FIRST)
}

fn score_of(pid: u32) -> String {
    format!("/proc/{pid}/oom_score_adj")
}

/// Takes the answer that no copy could be made, and the packets before it.
fn take_answer(origin: &Origin) -> io::Result<()> {
    take_packet(&origin.control)?;
    for _ in 1..MOST_PACKETS {
        match take_packet(&origin.control) {
            Err(Errno::EAGAIN) => return Ok(()),
            other => other?,
        }
    }
    Err(refused("it sends more than an answer"))
}

fn take_packet(socket: &OwnedFd) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut answer = [0; PACKET_BYTES];
    let mut answer = [IoSliceMut::new(&mut answer)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let taken = recvmsg(socket, &mut answer, &mut ancillary, flags);
    let mut sent = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            sent.extend(fds);
        }
    }
    if !sent.is_empty() {
        // Closing what code of the guest has sent may block, as a socket that lingers does.
        let _ = thread::Builder::new().spawn(move || drop(sent));
    }
    taken.map_or_else(|error| Err(Errno::from_raw(error.raw_os_error())), |_| Ok(()))
}

pub(super) fn memory_of(pid: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

fn send(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_runs_another_program_is_found() {
        let mut other = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let (own, pid) = (std::process::id(), other.id());
        while fs::read_link(format!("/proc/{pid}/exe")).unwrap().file_name() != Some("sleep".as_ref()) {
            thread::yield_now(); // until it has left this program
        }
        let alone = runs_same_program(pid, &HashSet::from([own]));
        let among_its_kind = runs_same_program(pid, &HashSet::from([own, pid]));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(alone.is_err());
        assert!(among_its_kind.is_ok());
    }
}
