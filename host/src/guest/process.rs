//! A guest that is a child process of the host.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandglass_core::{Error, Killer};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::fork::Forker;
use super::rlimits::Rlimits;
use super::{
    CHANNEL_FD, CONTROL_FD, Exit, FILTER_FD, GATE_FD, Guest, Hits, INFO_FD, MAPPED_FD, Plan, Process, Sweeper, epoch,
};
use crate::cgroup::Cgroup;
use crate::procfs::{has_ended, parent_of};
use futures_util::future::BoxFuture;

/// Bytes of a guest's stray output that are kept, for the error after its end.
const KEPT_BYTES: usize = 4 << 10;
/// The score by which a guest is killed sooner than others when the machine itself has no memory left.
pub(crate) const OOM_SCORE: i64 = 500;
/// `SIGKILL`.
const KILLED: i32 = 9;
/// The time for killed processes to end.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two looks at processes that are being killed.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);
/// The time for bubblewrap to make its namespaces.
const NAMESPACE_WITHIN: Duration = Duration::from_secs(20);
/// The variable that marks a guest's processes. Without control groups, they are found by this mark.
const MARK: &str = "SANDGLASS_GUEST";

/// Starts a process as planned.
pub(super) async fn spawn(plan: Plan) -> Result<Guest, Error> {
    let epoch = epoch()?;
    let failed =
        |error: io::Error| Error::BootFailed(format!("{} could not be started: {error}", plan.program.display()));
    let (ours, theirs) = StdStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let channel = UnixStream::from_std(ours).map_err(failed)?;
    let (forker, control) = if plan.forks {
        let (forker, control) = Forker::new().map_err(failed)?;
        (Some(forker), Some(control))
    } else {
        (None, None)
    };
    let process = run(plan, epoch, Some(theirs.into()), control).await?;
    let root = process.id();
    let guest = Guest::new(channel, epoch, process);
    Ok(match forker {
        Some(forker) => guest.with_forker(forker.below(root)),
        None => guest,
    })
}

/// Starts the planned process with its channel and its control socket. Without a control socket, the process is told of none.
pub(crate) async fn run(
    plan: Plan,
    epoch: u32,
    channel: Option<OwnedFd>,
    control: Option<OwnedFd>,
) -> Result<Box<dyn Process>, Error> {
    let program = plan.program.display().to_string();
    let failed = |error: io::Error| Error::BootFailed(format!("{program} could not be started: {error}"));
    let (writes, reads) = pipe::pipe().map_err(failed)?;
    let writes = writes.into_blocking_fd().map_err(failed)?;
    let started = start(plan, epoch, [channel, control], writes).await.map_err(failed)?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let listening = tokio::spawn(listen(reads, Arc::clone(&said)));
    Ok(Box::new(Native {
        started,
        said,
        listening,
        exit: None,
    }))
}

/// Keeps the end of a guest's stray output. Reads on, so that the guest never waits.
async fn listen(mut reads: pipe::Receiver, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 4 << 10];
    while let Ok(read @ 1..) = reads.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..read]);
        let surplus = said.len().saturating_sub(KEPT_BYTES);
        said.drain(..surplus);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread that starts all guests. A guest ends with its parent, and the kernel means the parent thread, so that thread must
/// never end. Starting a process also blocks longer than a task may.
static STARTER: LazyLock<Option<Mutex<mpsc::Sender<Job>>>> = LazyLock::new(|| {
    let (jobs, work) = mpsc::channel::<Job>();
    let thread = std::thread::Builder::new().name("sandglass-start".to_owned());
    let run = move || work.into_iter().for_each(|job| job());
    thread.spawn(run).ok().map(|_| Mutex::new(jobs))
});

async fn start(plan: Plan, epoch: u32, ends: [Option<OwnedFd>; 2], output: OwnedFd) -> io::Result<Started> {
    let runtime = Handle::current();
    let (done, started) = oneshot::channel();
    let job = Box::new(move || {
        let _entered = runtime.enter();
        let _ = done.send(start_here(plan, epoch, ends, output));
    });
    let starter = STARTER
        .as_ref()
        .ok_or_else(|| io::Error::other("no thread could be started"))?;
    let sent = starter.lock().unwrap_or_else(PoisonError::into_inner).send(job);
    sent.map_err(|_| io::Error::other("the thread that starts guests is gone"))?;
    started.await.map_err(|_| io::Error::other("it was given up"))?
}

/// A child process with its control group and its mark. Dropping it kills all its processes.
struct Started {
    child: Child,
    group: Option<Pid>,
    mark: OsString,
    cgroup: Option<Arc<Cgroup>>,
}

/// Waits for a word before the shell becomes the program. Until then the host can set the child's limits, and the child starts
/// nothing.
const GATE: &str = "read -r word <&5 && exec 5<&- && exec \"$@\"";

fn start_here(plan: Plan, epoch: u32, ends: [Option<OwnedFd>; 2], output: OwnedFd) -> io::Result<Started> {
    let Plan {
        program,
        args,
        env,
        cwd,
        user,
        bounds,
        open_files,
        file_bytes,
        id_map,
        filter,
        forks: _,
    } = plan;
    let [channel, control] = ends;
    let mark = OsString::from(format!("{}.{epoch}", std::process::id()));
    let (gate, mut word) = io::pipe()?;
    let cgroup = Cgroup::create("guest", &bounds).map_err(not_bounded).ok().map(Arc::new);
    let each = Rlimits {
        open_files: open_files.into(),
        file_bytes,
        memory_bytes: cgroup.is_none().then_some(bounds.memory_bytes),
    };
    let mut command = std::process::Command::new("/bin/sh");
    command
        .args(["-c", &format!("{} && {GATE}", each.commands()), "sandglass-gate"])
        .arg(program)
        .args(args)
        .env_clear()
        .envs(env)
        .env(MARK, &mark)
        .current_dir(cwd.unwrap_or_else(|| "/".into()))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    let mapping = |parent_fd, child_fd| FdMapping { parent_fd, child_fd };
    let mut mappings = vec![mapping(gate.into(), GATE_FD)];
    if let Some(channel) = channel {
        command.args(["--fd", &CHANNEL_FD.to_string(), "--epoch", &epoch.to_string()]);
        mappings.push(mapping(channel, CHANNEL_FD));
    }
    if let Some(control) = control {
        command.args(["--control", &CONTROL_FD.to_string()]);
        mappings.push(mapping(control, CONTROL_FD));
    }
    if let Some(filter) = filter {
        mappings.push(mapping(file_of(&filter)?, FILTER_FD));
    }
    let namespace = match id_map {
        Some(map) => {
            let ((info, told), (waits, go_on)) = (io::pipe()?, io::pipe()?);
            mappings.push(mapping(told.into(), INFO_FD));
            mappings.push(mapping(waits.into(), MAPPED_FD));
            Some((info, go_on, map))
        }
        None => None,
    };
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let child = Command::from(command).kill_on_drop(true).spawn()?;
    let pid = child.id();
    let started = Started {
        child,
        group: pid.and_then(|pid| Pid::from_raw(pid.cast_signed())),
        mark,
        cgroup,
    };
    if let (Some(cgroup), Some(pid)) = (&started.cgroup, pid) {
        cgroup.add(pid)?;
    }
    if let Some(pid) = pid {
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE.to_string());
    }
    word.write_all(b"begin\n")?;
    if let Some((info, go_on, map)) = namespace {
        give_ids(info, go_on, &map)?;
    }
    Ok(started)
}

/// A report of bubblewrap about its namespaces.
#[derive(Deserialize)]
struct Info {
    #[serde(rename = "child-pid")]
    child: u32,
}

/// Sets the ids of bubblewrap's user namespace, after bubblewrap has named its process. A failed bubblewrap names none, and its
/// output says why.
fn give_ids(mut info: io::PipeReader, mut go_on: io::PipeWriter, map: &str) -> io::Result<()> {
    let mut told = String::new();
    let deadline = Timespec::try_from(NAMESPACE_WITHIN).ok();
    let mut waited = [PollFd::new(&info, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut waited, deadline.as_ref()))? == 0 {
        return Err(io::Error::other(format!(
            "bubblewrap made no namespace within {NAMESPACE_WITHIN:?}"
        )));
    }
    info.read_to_string(&mut told)?;
    if told.is_empty() {
        return Ok(());
    }
    let Info { child } = serde_json::from_str(&told)?;
    for file in ["uid_map", "gid_map"] {
        let file = format!("/proc/{child}/{file}");
        fs::write(&file, map).map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
    }
    go_on.write_all(b"!")
}

/// Warns once: most machines without control groups never have any.
fn not_bounded(why: String) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "guests may use as many processes and as much processor time as they like, and memory by the process: {why}"
        )
    });
}

/// The number by which we know the process of a pidfd.
pub(crate) fn process_of(pidfd: &OwnedFd) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok()
}

/// Returns true for the pidfd of a process that has ended, and whose exit was taken.
pub(crate) fn is_of_none(pidfd: &OwnedFd) -> bool {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap_or_default();
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    pid.is_some_and(|pid| pid.trim() == "-1")
}

/// Waits for the end of a process. Returns false if it does not end.
pub(crate) fn ends_within(process: &OwnedFd, within: Duration) -> bool {
    let (mut polled, deadline) = ([PollFd::new(process, PollFlags::IN)], Timespec::try_from(within).ok());
    retry_on_intr(|| poll(&mut polled, deadline.as_ref())).is_ok_and(|ready| ready > 0)
}

/// An unnamed file with these bytes, open at its beginning.
pub(crate) fn file_of(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

impl Started {
    fn kill(&mut self) {
        // The process id cannot be used again before the child is waited for.
        if let (Some(_), Some(group)) = (self.child.id(), self.group) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.start_kill();
        match &self.cgroup {
            Some(cgroup) => cgroup.kill_all(),
            None => kill_marked(&self.mark),
        }
    }

    fn hits(&self) -> Hits {
        let events = self.cgroup.as_ref().map(|group| group.events()).unwrap_or_default();
        Hits {
            oom: events.oom_kills,
            pids: events.pids_refused,
        }
    }

    fn is_empty(&self) -> bool {
        self.cgroup.as_ref().is_none_or(|group| group.is_empty())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills all processes with the mark in their environment, even in other sessions. A process that clears its environment
/// escapes this; only control groups or namespaces hold it.
fn kill_marked(mark: &OsString) {
    // Repeated for processes that were started meanwhile, but only a few times, because a fork bomb never ends.
    for _ in 0..10 {
        let found: Vec<u32> = pids().filter(|pid| is_marked(*pid, mark)).collect();
        if found.is_empty() {
            return;
        }
        kill_each(&found);
    }
}

/// Kills all processes but these that are marked, or come from the process `root`. Inside of bubblewrap they have no mark, and all come
/// from `root`, because its namespace has an init process of its own. Returns true once none is left.
pub(crate) fn kill_others(mark: Option<&OsString>, root: Option<u32>, spared: &HashSet<u32>) -> bool {
    let end = Instant::now() + GONE_WITHIN;
    loop {
        let family = root.map(descendants).unwrap_or_default();
        let others = pids().filter(|pid| !spared.contains(pid));
        let others: Vec<u32> = others
            .filter(|pid| family.contains(pid) || mark.is_some_and(|mark| is_marked(*pid, mark)))
            .collect();
        if others.is_empty() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        kill_each(&others);
        std::thread::sleep(SWEEP_PAUSE);
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_marked(pid: u32, mark: &OsString) -> bool {
    let wanted = format!("{MARK}={}", mark.display());
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|entry| entry == wanted.as_bytes())
}

/// The living processes that come from a process.
fn descendants(root: u32) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = pids().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let comes_from_root = |pid: &u32| {
        let mut line = std::iter::successors(parents.get(pid), |parent| parents.get(parent));
        line.any(|parent| *parent == root)
    };
    let family = parents.keys().copied().filter(comes_from_root);
    family.filter(|pid| !has_ended(*pid)).collect()
}

fn kill_each(pids: &[u32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// A child process, and its output.
struct Native {
    started: Started,
    said: Arc<Mutex<Vec<u8>>>,
    /// Ends when no process can write the output any more.
    listening: JoinHandle<()>,
    exit: Option<Exit>,
}

impl Native {
    fn exit(&self, status: io::Result<ExitStatus>) -> Exit {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = String::from_utf8_lossy(&said).into_owned();
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        // Programs between tell of a signal by a status, as shells do.
        let told = code.filter(|code| (129..=192).contains(code)).map(|code| code - 128);
        let signal = status.ok().and_then(|status| status.signal()).or(told);
        let killer = match signal {
            Some(KILLED) if self.started.hits().oom > 0 => Some(Killer::Oom),
            signal => signal.map(|_| Killer::Signal),
        };
        Exit {
            code: code.filter(|_| signal.is_none()),
            signal,
            killer,
            stderr,
        }
    }

    /// Waits for a short time until all its processes are gone.
    async fn emptied(&mut self) {
        let gone = async {
            // The task must not be polled again after its end.
            if !self.listening.is_finished() {
                let _ = (&mut self.listening).await;
            }
            while !self.started.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(GONE_WITHIN, gone).await.is_err() {
            tracing::warn!("processes of a guest are still there after they were killed");
        }
    }
}

impl Process for Native {
    fn kill(&mut self) {
        self.started.kill();
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            if let Some(exit) = &self.exit {
                return exit.clone();
            }
            let status = self.started.child.wait().await;
            // The child's leftovers are killed too.
            self.started.kill();
            if !self.listening.is_finished() || !self.started.is_empty() {
                self.emptied().await;
            }
            let exit = self.exit(status);
            self.exit = Some(exit.clone());
            exit
        })
    }

    fn id(&self) -> Option<u32> {
        self.started.child.id()
    }

    fn hits(&self) -> Hits {
        self.started.hits()
    }

    fn held_bytes(&self) -> Option<u64> {
        self.started.cgroup.as_ref()?.held_bytes()
    }

    fn sweeper(&self, spared: Vec<u32>) -> Option<Sweeper> {
        let spared = HashSet::from_iter(spared);
        let (mark, root) = (self.started.mark.clone(), self.id());
        Some(match &self.started.cgroup {
            Some(cgroup) => {
                let cgroup = Arc::clone(cgroup);
                Box::new(move || cgroup.kill_others(&spared, GONE_WITHIN))
            }
            None => Box::new(move || kill_others(Some(&mark), root, &spared)),
        })
    }

    fn group(&self) -> Option<Arc<Cgroup>> {
        self.started.cgroup.clone()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_without_a_mark_are_found_by_where_they_come_from() {
        let code = "sleep 1000 & setsid sleep 1000 & (sleep 1000 & sleep 1000) & wait";
        let mut root = std::process::Command::new("/bin/sh")
            .args(["-c", code])
            .spawn()
            .unwrap();
        let pid = root.id();
        let begin = Instant::now();
        while descendants(pid).len() < 4 && begin.elapsed() < GONE_WITHIN {
            std::thread::sleep(SWEEP_PAUSE);
        }
        assert!(descendants(pid).len() >= 4);
        assert!(kill_others(None, Some(pid), &HashSet::from([pid])));
        assert!(descendants(pid).is_empty());
        assert!(root.wait().unwrap().success(), "it was spared");
    }
}
