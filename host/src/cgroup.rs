//! Control groups, which bound the resources of a guest with all its processes.
//!
//! Each supervisor has a group `sandglass.<random>` below the group it runs in, and in that one a group per guest. The
//! supervisor holds a lock on its group as long as it lives. A starting supervisor removes groups without a lock, with all
//! processes in them, because their supervisors are dead.
//!
//! Decisions: `docs/internals/guests-on-hosts.md`.

mod path;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::procfs::{has_ended, is_gone, is_stopped};
use path::{CgroupPath, Version};

/// The prefix of the names of supervisors' groups.
const PREFIX: &str = "sandglass.";
/// The time for which the removal of a busy group is retried. A later supervisor removes what remains.
const REMOVAL: Duration = Duration::from_secs(60);

/// The bounds of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Bytes of memory, of all processes together; there is no swap beyond.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Processors; fractions are allowed.
    pub cpus: f64,
}

/// Counts of events in a group since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Processes killed because the memory was used up.
    pub oom_kills: u64,
    /// Forks refused because there were too many processes and threads.
    pub pids_refused: u64,
}

/// The current use of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory, including the cache of files that the group's processes read and wrote.
    pub memory_bytes: u64,
    /// The most there ever was, where the kernel keeps count.
    pub peak_memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: u64,
}

/// The group of one guest. Dropping it kills all its processes and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: CgroupPath,
    /// Gone before the group of the supervisor.
    home: Arc<Home>,
}

impl Cgroup {
    /// A new, empty group with these bounds. `name` is for people to see, and need not be unique.
    ///
    /// # Errors
    /// The reason why no group can be made here, such as missing rights.
    pub fn create(name: &str, bounds: &Bounds) -> Result<Self, String> {
        match Self::create_in(home()?, name, bounds) {
            // Somebody removed the supervisor's group, so a new one is made.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                *current() = Weak::new();
                Self::create_in(home()?, name, bounds)
            }
            other => other,
        }
        .map_err(|error| format!("a control group cannot be made: {error}"))
    }

    fn create_in(home: Arc<Home>, name: &str, bounds: &Bounds) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let readable: String = name
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .take(40)
            .collect();
        let path = home
            .path
            .child(&format!("{}.{readable}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        for folder in path.folders() {
            if let Err(error) = fs::create_dir(folder) {
                remove_folders(&path);
                return Err(error);
            }
        }
        let group = Self { path, home };
        for setting in group.path.settings(bounds) {
            match write(&setting.file, &setting.value) {
                Err(error) if setting.optional && error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(()) => {}
            }
        }
        Ok(group)
    }

    /// Adds a process to the group. Its later children are in the group too, so add the process before it starts any.
    ///
    /// # Errors
    /// The process has ended, or the kernel refuses.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        self.path
            .folders()
            .iter()
            .try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// The files of the group to which a thread writes `0` to enter alone, so that its later children are born in the group. That is
    /// quick, while [`Cgroup::add`] waits for all processors. With version 2 there are none.
    ///
    /// # Errors
    /// The files cannot be opened.
    pub fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |file: PathBuf| fs::OpenOptions::new().write(true).open(file).map(OwnedFd::from);
        self.path.tasks().into_iter().map(open).collect()
    }

    /// The counts of events since the group was made.
    pub fn events(&self) -> Events {
        self.path.events()
    }

    /// The current use.
    pub fn usage(&self) -> Usage {
        let read = |file: PathBuf| fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        let (now, peak) = self.path.memory_usage();
        Usage {
            memory_bytes: read(now).unwrap_or(0),
            peak_memory_bytes: read(peak),
            pids: read(self.path.pids.join("pids.current")).unwrap_or(0),
        }
    }

    /// Bytes of memory that the kernel cannot take back. Pages that processes share count once.
    pub fn held_bytes(&self) -> Option<u64> {
        self.path.held_bytes()
    }

    /// Returns true if no process is in the group. A group that cannot be read counts as full.
    pub fn is_empty(&self) -> bool {
        match fs::read_to_string(self.path.pids.join("cgroup.procs")) {
            Ok(members) => members.trim().is_empty(),
            Err(error) => is_gone(&error),
        }
    }

    /// Kills all processes in the group. Nothing can be started in it afterwards, because a group is for one guest.
    pub fn kill_all(&self) {
        kill_all(&self.path.pids);
    }

    /// Kills all processes in the group but these, and waits for their end. Meanwhile nothing can be started in the group. Returns false if
    /// others are left.
    pub(crate) fn kill_others(&self, spared: &HashSet<u32>, within: Duration) -> bool {
        self.while_closed(|_| self.end_others(spared, Instant::now() + within))
    }

    /// Does the same, and waits until all but those of `running` are stopped, by a signal or by a tracer, and have one thread.
    pub(crate) fn still_others(&self, running: &HashSet<u32>, stopped: &HashSet<u32>, within: Duration) -> bool {
        self.while_closed(|is_closed| {
            let end = Instant::now() + within;
            let spared = running | stopped;
            is_closed && self.end_others(&spared, end) && until(end, || stopped.iter().all(|pid| is_stopped(*pid)))
        })
    }

    /// Has the work done while nothing can be started in the group. The work is told if the kernel refuses that. Returns true if the work
    /// returned true and the group is as before.
    fn while_closed(&self, work: impl FnOnce(bool) -> bool) -> bool {
        let most = self.path.pids.join("pids.max");
        let before = fs::read_to_string(&most);
        let is_closed = before.is_ok() && write(&most, "0").is_ok();
        let is_done = work(is_closed);
        let is_open = match before {
            Ok(most_pids) if is_closed => write(&most, most_pids.trim()).is_ok(),
            _ => true,
        };
        is_done && is_open
    }

    fn end_others(&self, spared: &HashSet<u32>, end: Instant) -> bool {
        until(end, || {
            let Ok(members) = fs::read_to_string(self.path.pids.join("cgroup.procs")) else {
                return false;
            };
            let others = members.lines().filter_map(|line| line.parse::<u32>().ok());
            let others: Vec<u32> = others.filter(|pid| !spared.contains(pid) && !has_ended(*pid)).collect();
            for pid in others.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
                let _ = kill_process(pid, Signal::KILL);
            }
            others.is_empty()
        })
    }

    /// The group's folder, of the controller of processes where there are several.
    pub fn folder(&self) -> &Path {
        &self.path.pids
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.kill_all();
        if remove_folders(&self.path) {
            return;
        }
        // Killed processes take a moment to end, so another thread removes the group.
        let path = self.path.clone();
        let home = Arc::clone(&self.home);
        let under_way = UnderWay::new();
        let removal = move || {
            remove_when_empty(&path);
            drop(home);
            drop(under_way);
        };
        if let Err(error) = thread::Builder::new()
            .name("sandglass-cgroup".to_owned())
            .spawn(removal)
        {
            tracing::warn!("a control group is left behind until the next start: {error}");
        }
    }
}

/// Waits until something is so. Returns false if it is not so at the end.
fn until(end: Instant, mut is_so: impl FnMut() -> bool) -> bool {
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_micros(300));
    }
    true
}

/// The number of groups that are being removed.
static REMOVALS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// A guard that counts one removal.
struct UnderWay;

impl UnderWay {
    fn new() -> Self {
        *REMOVALS.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        *REMOVALS.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        REMOVALS.1.notify_all();
    }
}

/// Waits for the removal of dropped groups, before this process ends. A later supervisor removes groups that still exist after
/// `within`.
pub fn settle(within: Duration) {
    let removals = REMOVALS.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(REMOVALS.1.wait_timeout_while(removals, within, |left| *left > 0));
}

/// A group that another program made and removes, such as Docker's group of a container.
#[derive(Debug)]
pub struct Watched(CgroupPath);

impl Watched {
    /// The group of a process; `None` if it cannot be seen.
    pub fn of(pid: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        path::candidates(&mounts, &groups).into_iter().next().map(Self)
    }

    /// Sets the bound on sockets, which the maker of the group did not set.
    pub fn bound_sockets(&self) {
        if let Some(setting) = self.0.sockets() {
            let _ = write(&setting.file, &setting.value); // only root can
        }
    }

    /// The counts of events since the group was made; `None` after the group is gone.
    pub fn events(&self) -> Option<Events> {
        let events = self.0.events();
        // The folders are checked after the read: if they exist now, they existed during the read.
        self.0.folders().iter().all(|folder| folder.exists()).then_some(events)
    }
}

/// Says whether guests can be bounded by control groups here, and how.
///
/// # Errors
/// The reason why not.
pub fn check() -> Result<String, String> {
    let home = home()?;
    let version = match home.path.version {
        Version::V1 => "version 1",
        Version::V2 => "version 2",
    };
    let lacking = if home.path.cpu.is_none() {
        ", without a bound for the processors"
    } else {
        ""
    };
    Ok(format!(
        "control groups {version} at {}{lacking}",
        home.parent.display()
    ))
}

/// The supervisor's own group.
#[derive(Debug)]
struct Home {
    path: CgroupPath,
    parent: PathBuf,
    /// Locks that show other supervisors that this one lives.
    locks: Vec<File>,
}

impl Drop for Home {
    fn drop(&mut self) {
        remove_folders(&self.path);
        self.locks.clear();
    }
}

fn current() -> MutexGuard<'static, Weak<Home>> {
    static CURRENT: Mutex<Weak<Home>> = Mutex::new(Weak::new());
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The supervisor's group. Its first user makes it, and its last user removes it.
fn home() -> Result<Arc<Home>, String> {
    let mut current = current();
    if let Some(home) = current.upgrade() {
        return Ok(home);
    }
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"));
    let candidates = path::candidates(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
    let mut reasons = Vec::new();
    for base in &candidates {
        match Home::make(base) {
            Ok(home) => {
                let home = Arc::new(home);
                *current = Arc::downgrade(&home);
                return Ok(home);
            }
            Err(error) => reasons.push(format!("{}: {error}", base.memory.display())),
        }
    }
    Err(match reasons.as_slice() {
        [] => "no control groups for memory and processes are mounted".to_owned(),
        _ => format!("no control group can be made ({})", reasons.join("; ")),
    })
}

impl Home {
    fn make(base: &CgroupPath) -> io::Result<Self> {
        let mut base = base.clone();
        if base.version == Version::V2 {
            enable(&base.memory, "+memory")?;
            enable(&base.memory, "+pids")?;
            if enable(&base.memory, "+cpu").is_err() {
                base.cpu = None;
            }
        }
        for folder in base.folders() {
            sweep_around(folder);
        }
        // A sweeping supervisor may remove a group between its creation and its lock.
        const ATTEMPTS: u32 = 5;
        for _ in 0..ATTEMPTS {
            let mut random = [0; 8];
            getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
            let path = base.child(&format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
            let parent = base.pids.clone();
            let mut home = Self {
                path,
                parent,
                locks: Vec::new(),
            };
            let folders: Vec<PathBuf> = home.path.folders().into_iter().map(Path::to_owned).collect();
            for folder in &folders {
                fs::create_dir(folder)?;
                home.locks.extend(lock(folder)?);
            }
            if home.locks.len() < folders.len() || !folders.iter().all(|folder| folder.is_dir()) {
                continue;
            }
            if home.path.version == Version::V2 {
                let controllers = if base.cpu.is_some() {
                    "+memory +pids +cpu"
                } else {
                    "+memory +pids"
                };
                enable(&home.path.memory, controllers)?;
            }
            return Ok(home);
        }
        Err(io::Error::other("another supervisor keeps removing it"))
    }
}

/// Gives the controllers to the groups below. Only version 2 needs this.
fn enable(folder: &Path, controllers: &str) -> io::Result<()> {
    let file = folder.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file)?;
    let has = |controller: &str| enabled.split_whitespace().any(|name| name == controller);
    if controllers
        .split_whitespace()
        .all(|name| has(name.trim_start_matches('+')))
    {
        return Ok(());
    }
    write(&file, controllers)
}

/// The lock on a group's folder; `None` if another process holds it.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = match File::open(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sweeps a group and its siblings. With cgroup version 1, a supervisor of another login or job had its groups among the
/// siblings.
fn sweep_around(base: &Path) {
    sweep(base);
    for sibling in base.parent().map(folders_in).unwrap_or_default() {
        if sibling != base {
            sweep(&sibling);
        }
    }
}

/// Removes the groups of dead supervisors, with all processes in them.
fn sweep(base: &Path) {
    for folder in folders_in(base) {
        let ours = folder
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if !ours {
            continue;
        }
        let Ok(Some(_lock)) = lock(&folder) else {
            continue;
        };
        tracing::info!("removing {}, which a supervisor has left behind", folder.display());
        let groups = folders_in(&folder);
        for group in groups.iter().chain([&folder]) {
            kill_all(group);
            if !remove_within(group, Duration::from_secs(5)) {
                tracing::warn!("{} cannot be removed yet", group.display());
            }
        }
    }
}

fn folders_in(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Kills the members of a group, including those that are created meanwhile.
fn kill_all(folder: &Path) {
    if write(&folder.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Older kernels cannot kill a group at once. Without new processes, the rounds of kills come to an end.
    let _ = write(&folder.join("pids.max"), "0");
    let mut seen = HashSet::new();
    loop {
        let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        let mut new = false;
        for pid in members.lines().filter_map(|line| line.parse::<i32>().ok()) {
            if let Some(pid) = Pid::from_raw(pid) {
                new |= seen.insert(pid);
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if !new {
            return;
        }
    }
}

/// Tries to remove all folders of a group. Returns true if all are gone.
fn remove_folders(path: &CgroupPath) -> bool {
    let left = path.folders().into_iter().filter(|folder| !remove(folder)).count();
    left == 0
}

fn remove(folder: &Path) -> bool {
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn remove_when_empty(path: &CgroupPath) {
    for folder in path.folders() {
        if !remove_within(folder, REMOVAL) {
            tracing::warn!("{} is left behind: it still holds processes", folder.display());
        }
    }
}

fn remove_within(folder: &Path, within: Duration) -> bool {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !remove(folder) {
        if begin.elapsed() > within {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    true
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    // The file is never created here: a file that the kernel lacks must be missing.
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests;
