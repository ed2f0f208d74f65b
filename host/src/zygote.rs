//! The host's end of a zygote: a process inside a backend's boundary that has imported large libraries and forks guests.
//!
//! `python/sandglass/native/zygote.py` is the other end, and describes the messages. A forked guest is a [`Guest`] like any
//! other: it has its own channel, is killed by a pidfd, and has its own control group.
//!
//! Decisions: `docs/internals/guests-on-hosts.md`.

mod forked;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, pidfd_send_signal, setrlimit};
use sandglass_core::Error;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use self::forked::ForkedProcess;
use crate::cgroup::{Bounds, Cgroup};
use crate::guest::fork::Forker;
use crate::guest::process::process_of;
use crate::guest::{self, Guest};
use crate::launcher::Resources;
use crate::seqpacket::{self, receive, send, watched};
use crate::users::{User, Users};
use futures_util::future::BoxFuture;

/// The time for a fork.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for the exit status of an ended guest to arrive.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The host's messages.
#[derive(Debug, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Order<'a> {
    Preload {
        preload: &'a [String],
    },
    Fork {
        fork: u64,
        epoch: u32,
        tmp_bytes: u64,
        disk_bytes: u64,
        rooms_bytes: u64,
        open_files: u32,
        /// True if the guest gets a socket on which it is asked for copies.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        copies: bool,
        /// The number of descriptors behind those of the guest's sockets.
        groups: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        workspace: Option<&'a str>,
    },
}

/// The zygote's messages.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Report {
    Ready {
        ready: bool,
        missing: HashMap<String, String>,
    },
    Forked {
        forked: u64,
    },
    Failed {
        failed: u64,
        message: String,
    },
    Ended {
        ended: u64,
        status: i32,
    },
}

type Forked = Result<OwnedFd, String>;

/// A guest that was ordered.
struct Waiting {
    answer: oneshot::Sender<Forked>,
    /// The guest's control group. It must last until the answer: before that, a thread of the zygote may be in the group, and the
    /// group's end would be the zygote's.
    _group: Option<Arc<Cgroup>>,
    /// The guest's user. The zygote may fork the guest although nobody waits for it any more.
    _user: Option<Arc<User>>,
}

/// The users of a zygote's guests, if each guest has its own.
#[derive(Debug, Clone)]
pub struct GuestUsers {
    /// The user ids for guests.
    pub users: Users,
    /// The folder of the guests' workspaces.
    pub workspaces: Option<PathBuf>,
}

impl GuestUsers {
    /// The user of a guest: the owner of its workspace, if it has one.
    fn take(&self, workspace: Option<&str>) -> Result<Option<Arc<User>>, Error> {
        match (&self.workspaces, workspace) {
            (Some(folder), Some(name)) => self
                .users
                .of_folder(&folder.join(name))
                .map_err(|error| Error::BootFailed(format!("the workspace {name} cannot be used: {error}"))),
            _ => self.users.take(),
        }
    }
}

/// Starts zygotes of one kind.
pub trait ZygoteLauncher: Send + Sync + 'static {
    /// Starts a zygote, and waits until it is ready.
    fn launch(&self) -> BoxFuture<'_, Result<Arc<Zygote>, Error>>;

    /// Returns true when guests can have folders on disk.
    fn has_workspaces(&self) -> bool {
        true
    }
}

/// A zygote that is ready. It ends when this handle and all its guests are dropped.
pub struct Zygote {
    control: AsyncFd<OwnedFd>,
    /// The zygote's process. Dropping it ends the zygote.
    process: AsyncMutex<guest::GuestProcess>,
    users: Option<GuestUsers>,
    missing: HashMap<String, String>,
    born: Instant,
    last: AtomicU64,
    dead: AtomicBool,
    /// True when another zygote may do better.
    at_fault: AtomicBool,
    /// The zygote's exit as a text, if known.
    end: OnceLock<String>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    ends: Mutex<HashMap<u64, watch::Sender<Option<i32>>>>,
}

impl fmt::Debug for Zygote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Zygote")
            .field("forks", &self.forks())
            .field("dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

/// The host's end and the zygote's end of a control socket.
///
/// # Errors
/// [`Error::BootFailed`] when the system has no sockets left.
pub fn control() -> Result<(OwnedFd, OwnedFd), Error> {
    // This limit also bounds all descriptors in flight of this process's user. Guests with the same user have lower limits, so
    // they can never keep this process from sending descriptors.
    let files = getrlimit(Resource::Nofile);
    if files.current < files.maximum {
        let current = files.maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..files });
    }
    seqpacket::pair().map_err(|error| Error::BootFailed(format!("there is no socket for the zygote: {error}")))
}

impl Zygote {
    /// Tells a started zygote its imports, and waits until they are done. `control` is the host's end of its socket. The filter
    /// of system calls is for its guests, because the zygote could not work under it. Without `users`, guests have the zygote's
    /// user.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the zygote ends, or is not ready in time.
    pub async fn ready(
        control: OwnedFd,
        process: guest::GuestProcess,
        preload: &[String],
        filter: Option<&[u8]>,
        users: Option<GuestUsers>,
        timeout: Duration,
    ) -> Result<Arc<Self>, Error> {
        let failed = |what: String| Error::BootFailed(format!("the zygote {what}"));
        rustix::io::ioctl_fionbio(&control, true).map_err(|error| failed(format!("has no socket: {error}")))?;
        let control = watched(control, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| failed(format!("has no socket: {error}")))?;
        let mut process = process;
        let filter = filter
            .map(crate::guest::process::file_of)
            .transpose()
            .map_err(|error| failed(format!("cannot be given its filter: {error}")))?;
        let fds: Vec<BorrowedFd<'_>> = filter.iter().map(AsFd::as_fd).collect();
        send(&control, &Order::Preload { preload }, &fds)
            .await
            .map_err(|error| failed(format!("did not start: {error}")))?;
        let report = tokio::select! {
            report = receive(&control) => report,
            () = tokio::time::sleep(timeout) => return Err(failed(format!("was not ready after {} s", timeout.as_secs()))),
        };
        let missing = match report {
            Ok(Some((Report::Ready { ready: true, missing }, _))) => missing,
            Ok(Some(_)) => return Err(failed("said something else than that it is ready".to_owned())),
            Ok(None) => {
                let exit = tokio::time::timeout(STATUS_TIMEOUT, process.wait()).await;
                return Err(failed(
                    exit.map_or_else(|_| "ended".to_owned(), |exit| format!("ended: {exit}")),
                ));
            }
            Err(error) => return Err(failed(format!("could not be heard: {error}"))),
        };
        tell_missing(&missing);
        let zygote = Arc::new(Self {
            control,
            process: AsyncMutex::new(process),
            users,
            missing,
            born: Instant::now(),
            last: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            at_fault: AtomicBool::new(false),
            end: OnceLock::new(),
            waiting: Mutex::default(),
            ends: Mutex::default(),
        });
        tokio::spawn(listen(Arc::downgrade(&zygote), zygote.clone_control()?));
        Ok(zygote)
    }

    /// Modules that could not be imported, each with the reason.
    pub fn missing(&self) -> &HashMap<String, String> {
        &self.missing
    }

    /// The number of guests forked.
    pub fn forks(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// The time since the zygote became ready.
    pub fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Returns true when another zygote may do better. This one gave no answer, or could not fork a guest without special
    /// needs.
    pub fn is_at_fault(&self) -> bool {
        self.is_dead() || self.at_fault.load(Ordering::Acquire)
    }

    /// Returns true when the zygote is gone.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The zygote's exit as a text, if known.
    pub fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// Forks a guest. `workspace` names a folder among the workspaces that the zygote sees; without it, the guest's folder is
    /// empty. `copies` is true for a guest that can make copies of itself.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the guest cannot be forked or isolated. No process is left then.
    pub async fn fork(
        self: &Arc<Self>,
        resources: &Resources,
        workspace: Option<&str>,
        copies: bool,
    ) -> Result<Guest, Error> {
        let failed = |what: String| Error::BootFailed(format!("the zygote {what}"));
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let epoch = guest::epoch()?;
        let user = match &self.users {
            Some(users) => users.take(workspace)?,
            None => None,
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()
            .map_err(|error| failed(format!("has no socket for a guest: {error}")))?;
        let channel = ours
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(ours))
            .map_err(|error| failed(format!("has no socket for a guest: {error}")))?;
        let (forker, control) = match copies {
            true => {
                let made = Forker::new().map_err(|error| failed(format!("has no socket for a guest: {error}")))?;
                (Some(made.0), Some(made.1))
            }
            false => (None, None),
        };
        let (group, entrances) = group(resources).await;
        let (answer, forked) = oneshot::channel();
        let (end, ended) = watch::channel(None);
        let waiting = Waiting {
            answer,
            _group: group.clone(),
            _user: user.clone(),
        };
        lock(&self.waiting).insert(number, waiting);
        lock(&self.ends).insert(number, end);
        let mut waits = Waits {
            zygote: self,
            number,
            is_ordered: false,
        };
        let order = Order::Fork {
            fork: number,
            epoch,
            tmp_bytes: resources.tmp_bytes,
            disk_bytes: resources.disk_bytes,
            rooms_bytes: resources.all_rooms_bytes(),
            open_files: resources.open_files,
            copies,
            groups: entrances.len(),
            user: user.as_ref().map(|user| user.id()),
            workspace,
        };
        if self.is_dead() {
            return Err(failed(format!("is gone: {}", self.end().unwrap_or("it ends just now"))));
        }
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(theirs.as_fd())
            .chain(control.iter().map(AsFd::as_fd))
            .chain(entrances.iter().map(AsFd::as_fd))
            .collect();
        send(&self.control, &order, &fds)
            .await
            .map_err(|error| failed(format!("could not be asked for a guest: {error}")))?;
        waits.is_ordered = true;
        let is_born_in_group = !entrances.is_empty();
        drop((theirs, control, entrances));
        let pidfd = match tokio::time::timeout(FORK_TIMEOUT, forked).await {
            Ok(Ok(Ok(pidfd))) => pidfd,
            Ok(Ok(Err(message))) => {
                // With a workspace, the workspace may be the cause.
                if workspace.is_none() {
                    self.at_fault.store(true, Ordering::Release);
                }
                return Err(failed(format!("could not fork a guest: {message}")));
            }
            Ok(Err(_)) => {
                let end = self.end().unwrap_or_default();
                return Err(failed(format!("ended while it forked a guest: {end}")));
            }
            Err(_) => {
                self.at_fault.store(true, Ordering::Release);
                return Err(failed(format!(
                    "did not fork a guest within {} s",
                    FORK_TIMEOUT.as_secs()
                )));
            }
        };
        std::mem::forget(waits); // the guest's end is still to come
        let pidfd =
            watched(pidfd, Interest::READABLE).map_err(|error| failed(format!("cannot watch its guest: {error}")))?;
        // From here on, dropping the process kills it.
        let mut process = ForkedProcess {
            pidfd,
            number,
            ended,
            group: None,
            zygote: Arc::clone(self),
            stands_over: copies,
            exit: None,
        };
        process.group = match group {
            Some(group) if !is_born_in_group => add(group, process.pidfd.get_ref()).await,
            group => group,
        };
        let root = process_of(process.pidfd.get_ref());
        let guest = Guest::new(channel, epoch, Box::new(process)).keep(user);
        Ok(match forker {
            Some(forker) => {
                forker.begin().await;
                guest.with_forker(forker.below(root))
            }
            None => guest,
        })
    }

    /// Notes the zygote's exit, and tells everybody who waits for it.
    async fn ended(&self) {
        self.dead.store(true, Ordering::Release);
        let mut process = self.process.lock().await;
        let exit = tokio::time::timeout(STATUS_TIMEOUT, process.wait()).await;
        let end = exit.map_or_else(|_| "it has closed its socket".to_owned(), |exit| exit.to_string());
        let guests = lock(&self.ends).len();
        tracing::warn!(guests, end, "a zygote ended, and with it the guests that it had forked");
        let _ = self.end.set(end);
        lock(&self.waiting).clear();
        lock(&self.ends).clear();
    }

    fn clone_control(&self) -> Result<AsyncFd<OwnedFd>, Error> {
        let copy = rustix::io::fcntl_dupfd_cloexec(self.control.get_ref(), 0).map_err(std::io::Error::from);
        copy.and_then(|fd| watched(fd, Interest::READABLE))
            .map_err(|error| Error::BootFailed(format!("the zygote cannot be listened to: {error}")))
    }
}

/// Logs modules that failed to import. A module that is not installed is no failure, because the default list names many.
fn tell_missing(missing: &HashMap<String, String>) {
    let absent = not_installed(missing);
    if !absent.is_empty() {
        let absent = Vec::from_iter(absent).join(", ");
        tracing::info!("not installed, and so not imported ahead: {absent}");
    }
    for (name, why) in missing.iter().filter(|(_, why)| !is_absent(why)) {
        tracing::warn!(module = name, why, "the zygote could not import a module");
    }
}

fn is_absent(why: &str) -> bool {
    why.starts_with("ModuleNotFoundError: ")
}

/// The packages that are not installed, each once, or the modules that an installed package lacks.
fn not_installed(missing: &HashMap<String, String>) -> BTreeSet<&str> {
    let absent = missing.iter().filter(|(_, why)| is_absent(why));
    absent
        .map(|(name, why)| match name.split_once('.') {
            Some((package, _)) if why.ends_with(&format!("'{package}'")) => package,
            _ => name.as_str(),
        })
        .collect()
}

/// Removes a failed fork's entries. An ordered guest stays until the zygote has answered.
struct Waits<'a> {
    zygote: &'a Zygote,
    number: u64,
    is_ordered: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if !self.is_ordered {
            lock(&self.zygote.waiting).remove(&self.number);
        }
        lock(&self.zygote.ends).remove(&self.number);
    }
}

/// Reads the zygote's messages as long as a handle exists.
async fn listen(zygote: std::sync::Weak<Zygote>, control: AsyncFd<OwnedFd>) {
    loop {
        let heard = receive(&control).await;
        let Some(zygote) = zygote.upgrade() else { return };
        match heard {
            Ok(Some((Report::Forked { forked }, fds))) => {
                let waiting = lock(&zygote.waiting).remove(&forked);
                match (waiting, fds.into_iter().next()) {
                    (Some(waiting), Some(pidfd)) => {
                        // Nobody may wait for the guest any more, so the guest is ended here.
                        if let Err(Ok(pidfd)) = waiting.answer.send(Ok(pidfd)) {
                            kill(&pidfd);
                        }
                    }
                    (None, Some(pidfd)) => kill(&pidfd),
                    (Some(waiting), None) => {
                        let _ = waiting.answer.send(Err(
                            "this process has too many open files for another guest: raise its limit (ulimit -n)"
                                .to_owned(),
                        ));
                    }
                    (None, None) => {}
                }
            }
            Ok(Some((Report::Failed { failed, message }, _))) => {
                if let Some(waiting) = lock(&zygote.waiting).remove(&failed) {
                    let _ = waiting.answer.send(Err(message));
                }
            }
            Ok(Some((Report::Ended { ended, status }, _))) => {
                if let Some(end) = lock(&zygote.ends).remove(&ended) {
                    let _ = end.send(Some(status));
                }
            }
            Ok(Some((Report::Ready { .. }, _))) => {}
            Ok(None) | Err(_) => {
                zygote.ended().await;
                return;
            }
        }
    }
}

/// Kills the first process of a namespace, and with it all others.
fn kill(pidfd: &OwnedFd) {
    let _ = pidfd_send_signal(pidfd, Signal::KILL); // it may be gone already
}

/// A control group for a guest, if control groups are available, and its entrances.
async fn group(resources: &Resources) -> (Option<Arc<Cgroup>>, Vec<OwnedFd>) {
    let bounds = Bounds {
        memory_bytes: resources.memory_bytes,
        pids: resources.pids,
        cpus: resources.cpus,
    };
    let made = tokio::task::spawn_blocking(move || {
        let group = Cgroup::create("fork", &bounds).ok()?;
        let entrances = group.entrances().unwrap_or_default();
        Some((Arc::new(group), entrances))
    });
    made.await
        .ok()
        .flatten()
        .map_or_else(Default::default, |(group, entrances)| (Some(group), entrances))
}

/// Adds a guest to its control group, for which the kernel waits for all processors.
async fn add(group: Arc<Cgroup>, pidfd: &OwnedFd) -> Option<Arc<Cgroup>> {
    let process = process_of(pidfd)?;
    // Meanwhile the process may have ended, and another one may have its number.
    let same = pidfd.try_clone().ok()?;
    let added = tokio::task::spawn_blocking(move || {
        let is_added = process_of(&same) == Some(process) && group.add(process).is_ok();
        is_added.then_some(group)
    });
    added.await.ok().flatten()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_is_not_installed_is_named_once() {
        let missing = [
            ("scipy.stats", "ModuleNotFoundError: No module named 'scipy'"),
            ("scipy.optimize", "ModuleNotFoundError: No module named 'scipy'"),
            ("numpy", "ModuleNotFoundError: No module named 'numpy'"),
            ("json.none", "ModuleNotFoundError: No module named 'json.none'"),
            ("broken", "SyntaxError: invalid syntax"),
        ];
        let missing = missing.map(|(name, why)| (name.to_owned(), why.to_owned())).into();
        assert_eq!(Vec::from_iter(not_installed(&missing)), ["json.none", "numpy", "scipy"]);
    }
}
