//! The making of isolated copies, step by step.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;

use nix::errno::Errno;
use nix::libc::{self, c_long};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::calls::{self, Calls};
use super::fds::{self, Table};
use super::files::{self, Files, close, flags};
use super::rooms::{FOLDERS, Furnishing, Room};
use super::tracing::{Registers, Traced};
use super::{Copy, Facts, Keeper, NAMESPACES, Origin, refused};
use crate::cgroup::Cgroup;
use crate::seqpacket::pair;
use crate::users::INSIDE;

/// Calls that a paused copy makes between an order and its fork, and from there to the next order.
const ALLOWED: [c_long; 14] = [
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
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_write,
];
/// The sockets of a paused copy that has an order: its control socket under two numbers, and the two that came with the order.
const SOCKETS: usize = 4;
/// Most descriptors in a packet.
const FDS: usize = 16;
const PACKET_BYTES: usize = 4 << 10;

fn descriptor(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(|| refused("a process without a number"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// As [`super::make`].
pub(super) fn make(origin: &Origin, epoch: u32, count: usize) -> io::Result<Vec<Copy>> {
    let facts = Facts::of(origin.pid)?;
    facts.can_be_copied(origin.pid)?;
    let furnishing = Furnishing {
        user: facts.number("Uid")?,
        group: facts.number("Gid")?,
        bytes: origin.limits.tmp_bytes,
    };
    // Threads of their own, because a tracer is a thread, and because the other one moves to other namespaces for good.
    thread::scope(|scope| {
        let (jobs, work) = mpsc::channel::<Job>();
        let (rooms, taken) = mpsc::channel();
        let furnisher = thread::Builder::new().name("sandglass-mount".to_owned());
        furnisher.spawn_scoped(scope, move || {
            let _ = rooms.send(origin.rooms.take(count));
            for Job {
                room,
                proc,
                namespaces,
                done,
            } in work
            {
                let [mounts, network] = &namespaces;
                let furnished = furnishing.furnish([mounts, network], &room, &proc);
                let _ = done.send(furnished.map(|()| room));
            }
        })?;
        let rooms = taken.recv().map_err(given_up)??;
        let tracer = thread::Builder::new().name("sandglass-copy".to_owned());
        let tracing = move || {
            let copying = Copying::begin(origin, epoch, facts)?;
            let each = rooms.into_iter().map(|room| copying.make_one(origin, room, &jobs));
            let copies = each.collect::<io::Result<Vec<_>>>();
            // Guests begin together, so that none takes time from the making of the others.
            let copies = copies.and_then(|copies| {
                let each = copies
                    .into_iter()
                    .map(|(guest, copy)| guest.let_go_with(&copying.at, 0).map(|()| copy));
                each.collect()
            });
            copying.end(origin)?;
            copies
        };
        let tracing = tracer.spawn_scoped(scope, tracing)?;
        tracing.join().unwrap_or_else(|_| Err(refused("its thread has ended")))
    })
}

fn given_up<T>(_: T) -> io::Error {
    refused("a thread has ended")
}

/// A paused copy that stands at the begin of its fork.
struct Copying {
    traced: Traced,
    /// Its registers there.
    at: Registers,
    table: Table,
    files: Files,
    /// The process's folder.
    cwd: Vec<u8>,
    memory: File,
    pages: u64,
    /// The host's end of a socket by which keepers get descriptors, and its number in the process.
    handing: (OwnedFd, u64),
    /// The numbers at which the guest finds its channel and its control socket.
    given: [u64; 2],
    epoch: u32,
    last_capability: u64,
    facts: Facts,
}

impl Copying {
    fn begin(origin: &Origin, epoch: u32, facts: Facts) -> io::Result<Self> {
        let traced = Traced::seize(origin.pid)?;
        traced.take_back_stop()?;
        traced.run_to(libc::SYS_recvmsg, &ALLOWED)?;
        let looked = || {
            Table::of(origin.pid)?.has_no_other_sockets(SOCKETS - 2)?;
            Files::of(origin.pid)
        };
        let files = match looked() {
            Ok(files) => files,
            Err(why) => {
                traced.let_go_stopped()?;
                return Err(why);
            }
        };
        let (ours, first) = pair()?;
        let (_other, second) = pair()?;
        let order = format!("{{\"epoch\":{epoch}}}");
        send(&origin.control, order.as_bytes(), &[first.as_fd(), second.as_fd()])?;
        traced.run_to(libc::SYS_clone, &ALLOWED)?;
        let at = traced.registers()?;
        let table = Table::of(origin.pid)?;
        table.has_no_other_sockets(SOCKETS)?;
        let given = [table.number_of(&first)?, table.number_of(&second)?];
        let cwd = fs::read_link(format!("/proc/{}/cwd", origin.pid))?;
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let place = [0, calls::BYTES, flags(access), flags(kind), u64::MAX, 0];
        let pages = traced.call_instead(&at, libc::SYS_mmap, place)?;
        let memory = memory_of(origin.pid)?;
        calls::prepare(&memory, pages)?;
        let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
        Ok(Self {
            files,
            cwd: cwd.into_os_string().into_vec(),
            handing: (ours, given[0]),
            last_capability: last.trim().parse().map_err(refused)?,
            traced,
            at,
            table,
            memory,
            pages,
            given,
            epoch,
            facts,
        })
    }

    /// Has the paused copy go back to where it waits for orders, and stops it there.
    fn end(self, origin: &Origin) -> io::Result<()> {
        self.traced.fail(&self.at, Errno::EAGAIN)?;
        self.traced.run_to(libc::SYS_recvmsg, &ALLOWED)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut answer = [0; PACKET_BYTES];
        let mut answer = [IoSliceMut::new(&mut answer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&origin.control, &mut answer, &mut ancillary, flags)?; // that no copy could be made
        self.traced.let_go_stopped()
    }

    /// Makes a copy, whose guest is still stopped.
    fn make_one(&self, origin: &Origin, room: Room, jobs: &mpsc::Sender<Job>) -> io::Result<(Traced, Copy)> {
        let group = Arc::new(Cgroup::create("copy", &origin.limits.bounds).map_err(refused)?);
        let (channel, its_channel) = UnixStream::pair()?;
        let (control, its_control) = pair()?;
        let namespaces = NAMESPACES.iter().fold(0, |all, (_, flag)| all | flag);
        let keeper_flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD | namespaces;
        let traced = self.traced.clone_instead(&self.at, c_long::from(keeper_flags))?;
        let keeper = Keeper(descriptor(traced.pid())?);
        let mut calls = Calls::new(&self.memory, self.pages, 1);
        let mut taken = self.table.taken.clone();

        let entrances = group.entrances()?;
        let handed: Vec<BorrowedFd<'_>> = entrances
            .iter()
            .map(AsFd::as_fd)
            .chain([origin.rooms.proc.as_fd(), its_channel.as_fd(), its_control.as_fd()])
            .collect();
        let numbers: Vec<u64> = handed.iter().map(|_| taken.take()).collect();
        self.receive(&mut calls, &traced, &handed, &numbers)?;
        let (entering, others) = numbers.split_at(entrances.len());
        let (proc, sockets) = others.split_at(1);
        for entrance in entering {
            let zero = calls.data(b"0");
            calls.add("enter its control group", libc::SYS_write, [*entrance, zero, 1]);
            close(&mut calls, *entrance);
            taken.give_back(*entrance);
        }
        if entering.is_empty() {
            group.add(traced.pid())?;
        }
        calls.add("unshare", libc::SYS_unshare, [flags(libc::CLONE_NEWCGROUP)]);
        let old = [taken.take(), taken.take()];
        for (folder, fd) in FOLDERS.into_iter().zip(old) {
            files::open(&mut calls, folder, fd);
        }
        let own = Facts::of(traced.pid())?.numbers()?.get(origin.rooms.level - 1).copied();
        let own = own.ok_or_else(|| refused("it is not below the first guest"))?;
        let free = taken.clone().take();
        for proc in proc {
            set_ids(&mut calls, *proc, own, free);
            close(&mut calls, *proc);
            taken.give_back(*proc);
        }
        let proc = make_proc(&mut calls, &mut taken);
        calls.run(&traced, &self.at)?;

        let pidfd = keeper.0.as_fd();
        let job = {
            let namespace = |name| File::open(format!("/proc/{}/ns/{name}", traced.pid())).map(OwnedFd::from);
            let number = libc::c_int::try_from(proc).map_err(refused)?;
            let (done, furnished) = mpsc::channel();
            let proc = pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?;
            let namespaces = [namespace("mnt")?, namespace("net")?];
            let job = Job {
                room,
                proc,
                namespaces,
                done,
            };
            jobs.send(job).map_err(given_up)?;
            furnished
        };
        let room = job.recv().map_err(given_up)??;

        close(&mut calls, proc);
        taken.give_back(proc);
        self.give_up_rights(&mut calls);
        let ids = self.at.rdi & flags(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID);
        let guest_flags = ids | flags(libc::SIGCHLD);
        calls.add("clone", libc::SYS_clone, [guest_flags, 0, 0, self.at.r10, 0]);
        let guest = calls
            .run(&traced, &self.at)?
            .ok_or_else(|| refused("no guest was made"))?;
        calls.add("close", libc::SYS_close_range, [0, u64::from(u32::MAX), 0]);
        calls.run(&traced, &self.at)?;
        let guest_fd = descriptor(guest.pid())?;
        self.settle(&guest, old, sockets, &taken)?;
        self.facts.check(guest.pid(), origin.pid, group.folder())?;
        traced.let_go_at(&calls::reaper(&self.at, self.pages))?;
        guest.call(&self.at, libc::SYS_munmap, [self.pages, calls::BYTES, 0, 0, 0, 0])?;
        let copy = Copy {
            channel,
            control,
            epoch: self.epoch,
            guest: guest_fd,
            keeper,
            group,
            room,
        };
        Ok((guest, copy))
    }

    /// Has a keeper receive descriptors, which get these numbers.
    fn receive(
        &self,
        calls: &mut Calls<'_>,
        traced: &Traced,
        handed: &[BorrowedFd<'_>],
        numbers: &[u64],
    ) -> io::Result<()> {
        const HEADER_BYTES: usize = 16;
        let (ours, theirs) = &self.handing;
        send(ours, b"!", handed)?;
        let control_bytes = (HEADER_BYTES + 4 * handed.len()).next_multiple_of(8);
        let buffer = calls.data(&[0; 16]);
        let vector = calls.data(&[buffer, 16].map(u64::to_ne_bytes).concat());
        let control = calls.data(&vec![0; control_bytes]);
        let message = [0, 0, vector, 1, control, control_bytes as u64, 0];
        let message = calls.data(&message.map(u64::to_ne_bytes).concat());
        let close_at_exec = flags(libc::MSG_CMSG_CLOEXEC);
        calls.add("recvmsg", libc::SYS_recvmsg, [*theirs, message, close_at_exec]);
        calls.run(traced, &self.at)?;
        for (index, wanted) in (0_u64..).zip(numbers) {
            let number: [u8; 4] = calls.read(control + HEADER_BYTES as u64 + 4 * index)?;
            if i64::from(i32::from_ne_bytes(number)) != wanted.cast_signed() {
                return Err(refused("a descriptor has another number than the lowest"));
            }
        }
        Ok(())
    }

    /// Adds calls that give up all capabilities, also those that a program could get.
    fn give_up_rights(&self, calls: &mut Calls<'_>) {
        const VERSION_3: u64 = 0x2008_0522;
        for capability in 0..=self.last_capability {
            calls.add("prctl", libc::SYS_prctl, [flags(libc::PR_CAPBSET_DROP), capability]);
        }
        let header = calls.data(&VERSION_3.to_ne_bytes());
        let none = calls.data(&[0; 24]);
        calls.add("capset", libc::SYS_capset, [header, none]);
    }

    /// Gives a guest its files and its sockets. `old` are its origin's folders.
    fn settle(&self, guest: &Traced, old: [u64; 2], sockets: &[u64], taken: &fds::Descriptors) -> io::Result<()> {
        let memory = memory_of(guest.pid())?;
        let mut calls = Calls::new(&memory, self.pages, 2);
        if !self.files.are_none() {
            self.files.copy(old, &mut calls, taken, guest, &self.at)?;
        }
        let cwd = calls.text(&self.cwd);
        calls.add("chdir", libc::SYS_chdir, [cwd]);
        self.table.open_anew(&mut calls, taken.clone().take());
        for (socket, number) in sockets.iter().zip(self.given) {
            calls.add("dup3", libc::SYS_dup3, [*socket, number, flags(libc::O_CLOEXEC)]);
        }
        for fd in sockets.iter().chain(&old) {
            close(&mut calls, *fd);
        }
        calls.run(guest, &self.at)?;
        Ok(())
    }
}

/// A copy that waits for its mounts.
struct Job {
    room: Room,
    proc: OwnedFd,
    namespaces: [OwnedFd; 2],
    done: mpsc::Sender<io::Result<Room>>,
}

/// Adds calls that set the ids of a new user namespace. Meanwhile the process's files in `/proc` are its own, and not root's. `own` is its number
/// in the folder `proc`.
fn set_ids(calls: &mut Calls<'_>, proc: u64, own: u32, free: u64) {
    let ids = format!("{INSIDE} {INSIDE} 1");
    calls.add("prctl", libc::SYS_prctl, [flags(libc::PR_SET_DUMPABLE), 1]);
    for (file, content) in [("setgroups", "deny"), ("uid_map", &*ids), ("gid_map", &*ids)] {
        let path = calls.text(format!("{own}/{file}").as_bytes());
        let content_at = calls.data(content.as_bytes());
        calls.opens(
            "open the map of its ids",
            libc::SYS_openat,
            [proc, path, flags(libc::O_WRONLY)],
            free,
        );
        calls.add("set its ids", libc::SYS_write, [free, content_at, content.len() as u64]);
        close(calls, free);
    }
    calls.add("prctl", libc::SYS_prctl, [flags(libc::PR_SET_DUMPABLE), 0]);
}

/// Adds calls that make a `/proc` of the new namespace, as only a process in it can. Landlock does not let it mount that. Returns its descriptor.
fn make_proc(calls: &mut Calls<'_>, taken: &mut fds::Descriptors) -> u64 {
    const CREATE: u64 = 6;
    const CLOSE_AT_EXEC: u64 = 1;
    let (context, proc) = (taken.take(), taken.take());
    let kind = calls.text(b"proc");
    calls.opens("fsopen", libc::SYS_fsopen, [kind, CLOSE_AT_EXEC], context);
    calls.add("fsconfig", libc::SYS_fsconfig, [context, CREATE, 0, 0, 0]);
    let safe = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    calls.opens("fsmount", libc::SYS_fsmount, [context, CLOSE_AT_EXEC, safe], proc);
    close(calls, context);
    taken.give_back(context);
    proc
}

fn memory_of(pid: u32) -> io::Result<File> {
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
