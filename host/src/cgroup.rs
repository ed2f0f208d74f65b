//! Control groups: what a guest and all its processes may use of the machine together.
//!
//! Every supervisor has a group of its own, `sandglass.<random>`, beneath the group it runs in, and in that one a
//! group per guest. It holds a lock on its group for as long as it lives. A supervisor that starts removes the groups that
//! nobody holds a lock on: those of supervisors that were killed, with whatever is still in them.

mod path;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use path::{CgroupPath, Version};

/// How the groups of supervisors begin.
const PREFIX: &str = "sandglass.";
/// For how long a group that still holds somebody is tried to be removed. What is left then, a later supervisor removes.
const REMOVAL: Duration = Duration::from_secs(60);

/// What a group may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Bytes of memory, of all processes together; there is no swap beyond.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Processors, in parts of one.
    pub cpus: f64,
}

/// What has happened in a group since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Processes that were killed because the memory was used up.
    pub oom_kills: u64,
    /// Processes and threads that could not be made because there were too many.
    pub pids_refused: u64,
}

/// What a group uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory, with the cache of files it has read and written.
    pub memory_bytes: u64,
    /// The most there ever was, where the kernel keeps count.
    pub peak_memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: u64,
}

/// The group of one guest. When it is dropped, everything in it is killed and it is removed.
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
            // Somebody has removed the supervisor's group: it gets another one.
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

    /// Puts a process into the group. What it starts from then on is in it as well, so it must not have started anything.
    ///
    /// # Errors
    /// When there is no such process any more, or the kernel refuses.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        self.path
            .folders()
            .iter()
            .try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// What has happened since the group was made.
    pub fn events(&self) -> Events {
        self.path.events()
    }

    /// What it uses now.
    pub fn usage(&self) -> Usage {
        let read = |file: PathBuf| fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        let (now, peak) = self.path.memory_usage();
        Usage {
            memory_bytes: read(now).unwrap_or(0),
            peak_memory_bytes: read(peak),
            pids: read(self.path.pids.join("pids.current")).unwrap_or(0),
        }
    }

    /// Whether there is no process in it any more.
    pub fn is_empty(&self) -> bool {
        fs::read_to_string(self.path.pids.join("cgroup.procs")).map_or(true, |members| members.trim().is_empty())
    }

    /// Kills everything in it. It takes nothing new afterwards: a group is for one guest.
    pub fn kill_all(&self) {
        kill_all(&self.path.pids);
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
        // Killed processes take a moment to be gone, and nobody shall wait for it here.
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

/// How many groups are being removed.
static REMOVALS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// A removal that is counted.
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

/// Waits until the groups of guests that have been dropped are removed: for a process that is about to end. A later supervisor removes
/// what is still there when the time is over.
pub fn settle(within: Duration) {
    let removals = REMOVALS.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(REMOVALS.1.wait_timeout_while(removals, within, |left| *left > 0));
}

/// A group that somebody else made and removes, such as that of a container.
#[derive(Debug)]
pub struct Watched(CgroupPath);

impl Watched {
    /// The group of a process. None where that cannot be seen.
    pub fn of(pid: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        path::candidates(&mounts, &groups).into_iter().next().map(Self)
    }

    /// Bounds what whoever made it has not: sockets.
    pub fn bound_sockets(&self) {
        if let Some(setting) = self.0.sockets() {
            let _ = write(&setting.file, &setting.value); // only root can
        }
    }

    /// What has happened in it since it was made. None once it is gone.
    pub fn events(&self) -> Option<Events> {
        let events = self.0.events();
        // In this order: a group that is there now was there a moment ago.
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
    /// Held for as long as the group is in use: the sign for others that its supervisor lives.
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

/// The supervisor's group, made when it is needed first and removed with its last user.
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
        // Somebody who sweeps may take a group for abandoned between its making and its locking.
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

/// Version 2: groups beneath this one get the controllers.
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

/// The lock on a group's folder, unless somebody else has it.
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

/// Sweeps a group and its siblings: with version 1 a supervisor that was started by another login, or as another job, had
/// its groups there.
fn sweep_around(base: &Path) {
    sweep(base);
    for sibling in base.parent().map(folders_in).unwrap_or_default() {
        if sibling != base {
            sweep(&sibling);
        }
    }
}

/// Ends and removes what supervisors have left behind that do not live any more.
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

/// Kills the members of a group, those as well that are being made meanwhile.
fn kill_all(folder: &Path) {
    if write(&folder.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Older kernels. From here on nothing can be started, so that the rounds come to an end.
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

/// Whether all folders of it are gone. Tries all of them.
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
    // Never made: what the kernel does not offer shall not be found to work.
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests;
