//! The making of isolated copies, step by step.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;

use nix::libc;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::calls::{self, Calls, UnderWay};
use super::fds;
use super::files::{self, close, flags};
use super::rooms::{FOLDERS, Furnishing, Room};
use super::standing::{GIVEN, Standing, Tools, ends_first, memory_of};
use super::{Copy, Facts, Keeper, NAMESPACES, Origin, Wanted, refused};
use crate::cgroup::Cgroup;
use crate::guest::process::GONE_WITHIN;
use crate::guest::traced::Traced;
use crate::seqpacket::pair;
use crate::users::INSIDE;

/// The size of a mask of signals for the kernel.
const MASK_BYTES: u64 = 8;

fn descriptor(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(|| refused("a process without a number"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// As [`super::make`].
pub(super) fn make<T: Send>(
    origin: &Origin,
    wanted: &Wanted<impl Fn() -> io::Result<()> + Sync>,
    take: impl FnOnce(Vec<Copy>) -> io::Result<T> + Send,
) -> io::Result<T> {
    let facts = Facts::of(origin.pid)?;
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
            let _ = rooms.send(origin.rooms.take(wanted.count));
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
        let tracing = tracer.spawn_scoped(scope, move || copy_into(origin, wanted, rooms, &jobs, take))?;
        tracing.join().unwrap_or_else(|_| Err(refused("its thread has ended")))
    })
}

fn given_up<T>(_: T) -> io::Error {
    refused("a thread has ended")
}

/// Makes a copy for each room. They begin together once their origin has ended: until then it reaches the memory that keepers run in.
fn copy_into<T>(
    origin: &Origin,
    wanted: &Wanted<impl Fn() -> io::Result<()>>,
    rooms: Vec<Room>,
    jobs: &mpsc::Sender<Job>,
    take: impl FnOnce(Vec<Copy>) -> io::Result<T>,
) -> io::Result<T> {
    let mut standing = Standing::at_fork(origin, wanted.epoch)?;
    let made = standing.tools(origin).and_then(|tools| {
        let making = Making {
            standing: &standing,
            tools: &tools,
            origin,
        };
        let (stopped, copies): (Vec<_>, Vec<_>) = making.make_all(rooms, jobs, &wanted.still)?.into_iter().unzip();
        let taken = take(copies)?;
        (wanted.still)()?;
        standing.end_others();
        if !origin.group.kill_others(&origin.staying(), GONE_WITHIN) {
            return Err(refused(
                "other processes of the session do not end; older checkpoints have ended",
            ));
        }
        (wanted.still)()?;
        Ok((tools, stopped, taken))
    });
    match made {
        Ok((tools, stopped, taken)) => {
            let at = standing.at;
            drop(standing);
            if !calls::has_code(&tools.memory, tools.pages) {
                return Err(refused("the memory of its keepers was changed, or they have ended"));
            }
            // While a keeper holds memory, the kernel may choose it to end when a copy uses up its own.
            if let Some(Stopped { keeper, .. }) = stopped.first() {
                calls::drop_memory(keeper, &at, tools.pages)?;
                Facts::of(keeper.pid())?.holds_little()?;
            }
            for Stopped { guest, keeper } in stopped {
                // A copy that has ended by now is told of by its channel. If its keeper has, that one waits for the guest's end, which a guest that
                // is traced does not reach.
                let _ = guest.let_go_with(&at, 0);
                let _ = keeper.let_go_at(&calls::reaper(&at, tools.pages));
            }
            Ok(taken)
        }
        Err(why) => match standing.go_back(origin) {
            Ok(()) => Err(why),
            Err(lost) => Err(refused(format_args!("{why}; and then: {lost}"))),
        },
    }
}

/// The processes of a copy that has not begun. The keeper ends after the guest.
struct Stopped {
    guest: Traced,
    keeper: Traced,
}

/// A copy whose keeper has made no step.
struct Prepared<'a> {
    calls: Calls<'a>,
    taken: fds::Descriptors,
    /// The keeper's number in the first guest's `/proc`.
    own: u32,
    // Fields are dropped in this order, so the processes end before their folders and their group go.
    keeper: Keeper,
    traced: Traced,
    room: Room,
    control: OwnedFd,
    its_control: OwnedFd,
    group: Arc<Cgroup>,
}

/// A copy whose keeper is in its own namespaces. Its mounts are being made.
struct Entered<'a> {
    calls: Calls<'a>,
    taken: fds::Descriptors,
    keeper: Keeper,
    traced: Traced,
    furnished: mpsc::Receiver<io::Result<Room>>,
    /// The keeper's descriptors of its origin's folders, and of the socket of the copy.
    old: [u64; 2],
    socket: u64,
    control: OwnedFd,
    its_control: OwnedFd,
    group: Arc<Cgroup>,
}

/// A copy whose guest has made no step.
struct Forked<'a> {
    /// Before its keeper, which ends after it.
    guest: Traced,
    rest: Entered<'a>,
}

/// The making of copies, while their origin stands at its fork.
struct Making<'a> {
    standing: &'a Standing,
    tools: &'a Tools,
    origin: &'a Origin,
}

impl<'a> Making<'a> {
    /// Makes a copy for each room. Their processes are stopped.
    ///
    /// Most time goes into the fork of the memory by a keeper. Meanwhile the copy before is finished and the next one prepared, neither of which
    /// needs the memory that keepers share.
    fn make_all(
        &self,
        rooms: Vec<Room>,
        jobs: &mpsc::Sender<Job>,
        still: impl Fn() -> io::Result<()>,
    ) -> io::Result<Vec<(Stopped, Copy)>> {
        let mut copies = Vec::new();
        let mut rooms = rooms.into_iter();
        let mut next = rooms.next().map(|room| self.prepare(room)).transpose()?;
        let mut last: Option<Forked<'_>> = None;
        while let Some(prepared) = next.take() {
            still()?;
            let mut entered = self.enter(prepared, jobs)?;
            let forking = self.fork(&mut entered)?;
            let mut meanwhile = || {
                copies.extend(last.take().map(|forked| self.finish(forked)).transpose()?);
                rooms.next().map(|room| self.prepare(room)).transpose()
            };
            let meanwhile = meanwhile();
            // Also after an error: the new process has to end before its keeper.
            let guest = entered.calls.end(&entered.traced, &forking)?;
            let guest = guest.ok_or_else(|| refused("no process was made"))?;
            last = Some(Forked { guest, rest: entered });
            next = meanwhile?;
        }
        copies.extend(last.map(|forked| self.finish(forked)).transpose()?);
        Ok(copies)
    }

    /// Makes a keeper. It shares the memory of the paused copy.
    fn prepare(&self, room: Room) -> io::Result<Prepared<'a>> {
        let Self {
            standing,
            tools,
            origin,
        } = self;
        let group = Arc::new(Cgroup::create("copy", &origin.limits.bounds).map_err(refused)?);
        let (control, its_control) = pair()?;
        let namespaces = NAMESPACES.iter().fold(0, |all, (_, flag)| all | flag);
        let keeper_flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD | namespaces;
        let traced = standing.share(keeper_flags)?;
        let keeper = Keeper(descriptor(traced.pid())?);
        let own = Facts::of(traced.pid())?.numbers()?.get(origin.rooms.level - 1).copied();
        Ok(Prepared {
            calls: Calls::new(&tools.memory, tools.pages, 1),
            taken: tools.table.taken.clone(),
            own: own.ok_or_else(|| refused("it is not below the first guest"))?,
            room: room.until_end_of(keeper.0.try_clone()?),
            keeper,
            traced,
            control,
            its_control,
            group,
        })
    }

    /// Has a keeper enter its control group, and orders its mounts.
    fn enter(&self, prepared: Prepared<'a>, jobs: &mpsc::Sender<Job>) -> io::Result<Entered<'a>> {
        let origin = self.origin;
        let Prepared {
            group,
            its_control,
            control,
            room,
            traced,
            keeper,
            own,
            mut taken,
            mut calls,
        } = prepared;
        block_signals(&mut calls);
        // A signal to a group of processes reaches all that came from the paused copy, in whatever namespace.
        calls.add("setsid", libc::SYS_setsid, []);

        let entrances = group.entrances()?;
        let handed: Vec<BorrowedFd<'_>> = entrances
            .iter()
            .map(AsFd::as_fd)
            .chain([origin.rooms.proc.as_fd(), its_control.as_fd()])
            .collect();
        let numbers: Vec<u64> = handed.iter().map(|_| taken.take()).collect();
        self.receive(&mut calls, &traced, &handed, &numbers)?;
        let (entering, others) = numbers.split_at(entrances.len());
        let &[proc, socket] = others else {
            return Err(refused("a descriptor without a number"));
        };
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
        let free = taken.clone().take();
        set_ids(&mut calls, proc, own, free);
        close(&mut calls, proc);
        taken.give_back(proc);
        let proc = make_proc(&mut calls, &mut taken);
        calls.run(&traced, &self.standing.at)?;

        let namespace = |name| File::open(format!("/proc/{}/ns/{name}", traced.pid())).map(OwnedFd::from);
        let number = libc::c_int::try_from(proc).map_err(refused)?;
        let (done, furnished) = mpsc::channel();
        let job = Job {
            room,
            proc: pidfd_getfd(keeper.0.as_fd(), number, PidfdGetfdFlags::empty())?,
            namespaces: [namespace("mnt")?, namespace("net")?],
            done,
        };
        jobs.send(job).map_err(given_up)?;
        close(&mut calls, proc);
        taken.give_back(proc);
        drop(entrances);
        Ok(Entered {
            calls,
            taken,
            keeper,
            traced,
            furnished,
            old,
            socket,
            control,
            its_control,
            group,
        })
    }

    /// Has a keeper begin to give up all rights, and to fork the guest.
    fn fork(&self, entered: &mut Entered<'a>) -> io::Result<UnderWay> {
        let at = &self.standing.at;
        let Entered { calls, traced, .. } = entered;
        self.give_up_rights(calls);
        let ids = at.rdi & flags(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID);
        let guest_flags = ids | flags(libc::SIGCHLD);
        calls.add("clone", libc::SYS_clone, [guest_flags, 0, 0, at.r10, 0]);
        // The copy keeps its handlers. Code of the user would run in the keeper's.
        give_up_handlers(calls);
        calls.add("close", libc::SYS_close_range, [0, u64::from(u32::MAX), 0]);
        calls.start(traced, at)
    }

    /// Gives a copy its own files, and looks at what it is.
    fn finish(&self, forked: Forked<'a>) -> io::Result<(Stopped, Copy)> {
        let Self {
            standing,
            tools,
            origin,
        } = self;
        let Forked { guest, rest } = &forked;
        Facts::of(rest.traced.pid())?.is_keeper()?;
        let process = descriptor(guest.pid())?;
        ends_first(guest.pid())?;
        let room = rest.furnished.recv().map_err(given_up)??;
        self.settle(guest, rest.old, rest.socket, &rest.taken)?;
        tools.facts.check(guest.pid(), origin.pid, rest.group.folder())?;
        self.check_sockets(guest.pid(), &rest.its_control)?;
        guest.filter_again()?;
        guest.call(&standing.at, libc::SYS_munmap, [tools.pages, calls::BYTES, 0, 0, 0, 0])?;
        let Forked { guest, rest } = forked;
        let stopped = Stopped {
            guest,
            keeper: rest.traced,
        };
        let copy = Copy {
            control: rest.control,
            process,
            keeper: rest.keeper,
            group: rest.group,
            room,
        };
        Ok((stopped, copy))
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
        self.standing.hand(handed)?;
        let control_bytes = (HEADER_BYTES + 4 * handed.len()).next_multiple_of(8);
        let buffer = calls.data(&[0; 16]);
        let vector = calls.data(&[buffer, 16].map(u64::to_ne_bytes).concat());
        let control = calls.data(&vec![0; control_bytes]);
        let message = [0, 0, vector, 1, control, control_bytes as u64, 0];
        let message = calls.data(&message.map(u64::to_ne_bytes).concat());
        let close_at_exec = flags(libc::MSG_CMSG_CLOEXEC);
        calls.add("recvmsg", libc::SYS_recvmsg, [self.tools.given, message, close_at_exec]);
        calls.run(traced, &self.standing.at)?;
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
        for capability in 0..=self.tools.last_capability {
            calls.add("prctl", libc::SYS_prctl, [flags(libc::PR_CAPBSET_DROP), capability]);
        }
        let header = calls.data(&VERSION_3.to_ne_bytes());
        let none = calls.data(&[0; 24]);
        calls.add("capset", libc::SYS_capset, [header, none]);
    }

    /// Gives a copy its files and its socket. `old` are its origin's folders.
    fn settle(&self, guest: &Traced, old: [u64; 2], socket: u64, taken: &fds::Descriptors) -> io::Result<()> {
        let Self { standing, tools, .. } = self;
        let memory = memory_of(guest.pid())?;
        let mut calls = Calls::new(&memory, tools.pages, 2);
        standing.files.copy(old, &mut calls, taken, guest, &standing.at)?;
        let cwd = calls.text(&tools.cwd);
        calls.add("chdir", libc::SYS_chdir, [cwd]);
        tools.table.open_anew(&mut calls, taken.clone().take());
        calls.add("dup3", libc::SYS_dup3, [socket, tools.given, flags(libc::O_CLOEXEC)]);
        for fd in [socket].into_iter().chain(old) {
            close(&mut calls, fd);
        }
        calls.run(guest, &standing.at)?;
        Ok(())
    }

    /// Returns an error if a copy has other sockets or pipes than its own socket.
    fn check_sockets(&self, guest: u32, own: &OwnedFd) -> io::Result<()> {
        let table = fds::Table::of(guest)?;
        let has_none_else = table.number_of(own)? == self.tools.given && table.leads_nowhere_else(GIVEN);
        match has_none_else {
            true => Ok(()),
            false => Err(refused("a copy has a socket or a pipe that is not its own")),
        }
    }
}

/// A copy that waits for its mounts.
struct Job {
    room: Room,
    proc: OwnedFd,
    namespaces: [OwnedFd; 2],
    done: mpsc::Sender<io::Result<Room>>,
}

/// Adds a call that blocks all signals.
fn block_signals(calls: &mut Calls<'_>) {
    let all = calls.data(&u64::MAX.to_ne_bytes());
    calls.add(
        "block signals",
        libc::SYS_rt_sigprocmask,
        [flags(libc::SIG_SETMASK), all, 0, MASK_BYTES],
    );
}

/// Adds calls that give up all handlers of signals.
fn give_up_handlers(calls: &mut Calls<'_>) {
    const SIGNALS: u64 = 64;
    const ACTION_BYTES: usize = 32;
    let default = calls.data(&[0; ACTION_BYTES]);
    let unhandled = [libc::SIGKILL, libc::SIGSTOP].map(flags);
    for signal in (1..=SIGNALS).filter(|signal| !unhandled.contains(signal)) {
        calls.add(
            "give up a handler",
            libc::SYS_rt_sigaction,
            [signal, default, 0, MASK_BYTES],
        );
    }
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
