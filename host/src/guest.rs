//! A running guest: its channel, its process and its exit.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sandglass_core::{Error, Killer};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use self::copies::Kin;
use self::fork::{Forker, Succession};
use crate::cgroup::{Bounds, Cgroup};
use crate::frame::{FRAME_SLACK_BYTES, Frame, FrameError, FrameReader, Outbox};
use futures_util::future::BoxFuture;

pub mod copies;
pub(crate) mod fork;
mod held;
pub mod isolated;
pub(crate) mod memory;
pub(crate) mod paused;
pub(crate) mod process;
mod rlimits;
mod traced;

/// The command that starts a guest, as data.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The program.
    pub program: PathBuf,
    /// The program's arguments. A guest with a channel also gets `--fd N --epoch E`.
    pub args: Vec<OsString>,
    /// The program's environment. Nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// The folder in which the program starts; by default the root.
    pub cwd: Option<PathBuf>,
    /// The user and group of the program, if they differ from the host's.
    pub user: Option<(u32, u32)>,
    /// The bounds of all its processes together, if there are control groups.
    pub bounds: Bounds,
    /// Most open files of each process.
    pub open_files: u32,
    /// The largest file that each process can write, in bytes.
    pub file_bytes: u64,
    /// True when the guest can be told on [`CONTROL_FD`] to fork.
    pub forks: bool,
    /// The ids of the program's user namespace, as the kernel reads them. The program names a process of the namespace on
    /// [`INFO_FD`], and waits on [`MAPPED_FD`] until the host has set the ids. `None` lets the program set ids itself.
    pub id_map: Option<String>,
    /// Bytes of a compiled filter of system calls, for the program to read from the file descriptor [`FILTER_FD`].
    pub filter: Option<Vec<u8>>,
}

impl Plan {
    /// Starts the planned process without a channel. The guest connects by itself.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the program cannot be started.
    pub async fn start(self) -> Result<Box<dyn Process>, Error> {
        process::run(self, epoch()?, None, None).await
    }
}

/// The guest's descriptor of its channel.
pub const CHANNEL_FD: i32 = 3;
/// The guest's descriptor for requests to fork.
pub const CONTROL_FD: i32 = 6;
/// bubblewrap's descriptor of the filter of system calls.
pub const FILTER_FD: i32 = 4;
/// The descriptor on which the starting shell waits before it becomes the program.
const GATE_FD: i32 = 5;

/// The descriptor on which bubblewrap names a process in its user namespace.
pub const INFO_FD: i32 = 7;
/// The descriptor on which bubblewrap waits until the ids of its user namespace are set.
pub const MAPPED_FD: i32 = 8;

/// The exit of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, if the process exited.
    pub code: Option<i32>,
    /// The signal, if one ended the process.
    pub signal: Option<i32>,
    /// The limit that ended the guest, if one did.
    pub killer: Option<Killer>,
    /// The last standard error that the process wrote before the guest was connected.
    pub stderr: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.killer, self.signal, self.code) {
            (Some(Killer::Oom), ..) => formatter.write_str("it needed more memory than it may have and was killed")?,
            (_, Some(signal), _) => write!(formatter, "it was ended by signal {signal}")?,
            (_, None, Some(code)) => write!(formatter, "it exited with status {code}")?,
            (_, None, None) => formatter.write_str("it ended")?,
        }
        match self.stderr.trim() {
            "" => Ok(()),
            text => write!(formatter, ": {text}"),
        }
    }
}

/// The counts of the limits so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hits {
    /// Processes killed because the memory was used up.
    pub oom: u64,
    /// Processes and threads that were refused.
    pub pids: u64,
}

/// A guest's process with all its children. Dropping it ends them.
pub trait Process: Send + Sync + 'static {
    /// Kills the process and all its children, without waiting for their end.
    fn kill(&mut self);

    /// The exit, after all its processes have ended. Can be dropped and called again.
    fn wait(&mut self) -> BoxFuture<'_, Exit>;

    /// The id of a running process on this machine that was started for the guest.
    fn id(&self) -> Option<u32> {
        None
    }

    /// The counts of limits that were reached.
    fn hits(&self) -> Hits {
        Hits::default()
    }

    /// Bytes of memory that its processes hold together, if the system counts them together.
    fn held_bytes(&self) -> Option<u64> {
        None
    }

    /// A function that kills all its processes but these, and waits for their end. It blocks, and returns false if some are left. `None`
    /// if processes of this kind end only together.
    fn sweeper(&self, spared: Vec<u32>) -> Option<Sweeper> {
        let _ = spared;
        None
    }

    /// The control group that holds its processes and no others.
    fn group(&self) -> Option<Arc<Cgroup>> {
        None
    }

    /// The time for the exit to show after the channel has closed.
    fn exit_timeout(&self) -> Duration {
        Duration::from_secs(5)
    }
}

/// A function that ends processes; see [`Process::sweeper`].
pub type Sweeper = Box<dyn FnOnce() -> bool + Send>;

/// A started guest. Dropping it ends the guest.
pub struct Guest {
    channel: UnixStream,
    epoch: u32,
    process: Box<dyn Process>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
    has_waited: bool,
    on_sent: Option<OnSent>,
    kin: Kin,
    succession: Option<Succession>,
}

/// Receives each frame that is sent to a guest.
pub type OnSent = Box<dyn Fn(&Frame) + Send + Sync>;

impl fmt::Debug for Guest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Guest")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Guest {
    /// A guest that something else has started.
    pub fn new(channel: UnixStream, epoch: u32, process: Box<dyn Process>) -> Self {
        Self {
            channel,
            epoch,
            process,
            kept: Vec::new(),
            has_waited: false,
            on_sent: None,
            kin: Kin::default(),
            succession: None,
        }
    }

    /// A guest that a paused copy made. `root` is the process that the host started.
    pub(crate) fn revived(revived: paused::Revived, root: GuestProcess, boundary: Arc<paused::Boundary>) -> Self {
        let paused::Revived {
            channel,
            epoch,
            own,
            forker,
        } = revived;
        Self {
            kept: root._kept,
            kin: Kin {
                forker: Some(forker),
                own: Some(own),
                boundary: Some(boundary),
                copied: None,
            },
            ..Self::new(channel, epoch, root.process)
        }
    }

    /// Takes out the way to fork the guest, and its place among its paused copies.
    pub fn take_kin(&mut self) -> Kin {
        std::mem::take(&mut self.kin)
    }

    /// Adds the forker of a guest that can fork.
    #[must_use]
    pub(crate) fn with_forker(mut self, forker: Forker) -> Self {
        self.kin.forker = Some(forker);
        self
    }

    /// Adds the succession of a guest that is a copy: the right to become the session's guest.
    #[must_use]
    pub(crate) fn with_succession(mut self, succession: Succession) -> Self {
        self.succession = Some(succession);
        self
    }

    /// Takes the succession out of the guest.
    pub(crate) fn take_succession(&mut self) -> Option<Succession> {
        self.succession.take()
    }

    /// Sets the receiver of each frame that is sent to the guest.
    #[must_use]
    pub fn on_sent(mut self, on_sent: OnSent) -> Self {
        self.on_sent = Some(on_sent);
        self
    }

    /// Marks a guest that was made before it was needed, and may have died since.
    #[must_use]
    pub fn waited(mut self) -> Self {
        self.has_waited = true;
        self
    }

    /// Returns true when the guest was made before it was needed.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Starts the planned process.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the program cannot be started. A program that starts and does not answer is found later.
    pub async fn spawn(plan: Plan) -> Result<Self, Error> {
        process::spawn(plan).await
    }

    /// Keeps a value as long as the guest lives, such as a folder that is removed when dropped.
    #[must_use]
    pub fn keep(mut self, what: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(what));
        self
    }

    /// Keeps a value as long as the guest or one of its copies lives.
    #[must_use]
    pub(crate) fn keep_with_copies(mut self, what: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        if let Some(what) = what {
            self.kin.forker = self.kin.forker.map(|forker| forker.keep(Arc::clone(&what)));
            self.kept.push(Box::new(what));
        }
        self
    }

    /// The guest's exit, if it already shows.
    pub fn exit(&mut self) -> Option<Exit> {
        self.process.wait().now_or_never()
    }

    /// Ends the guest, and waits until all its processes are gone.
    pub async fn end(mut self) {
        self.process.kill();
        self.process.wait().await;
    }

    /// The guest's parts: a reader of frames whose bodies have at most `max_value_bytes` together, a writer of frames, and the
    /// process.
    pub fn split(self, max_value_bytes: usize) -> (FrameReader<OwnedReadHalf>, GuestWriter, GuestProcess) {
        let (reader, writer) = self.channel.into_split();
        let max_bytes = max_value_bytes.saturating_add(FRAME_SLACK_BYTES);
        (
            FrameReader::new(reader, self.epoch, max_bytes),
            GuestWriter {
                stream: writer,
                outbox: Outbox::new(self.epoch),
                on_sent: self.on_sent,
            },
            GuestProcess {
                process: self.process,
                _kept: self.kept,
            },
        )
    }
}

/// The writing half of a guest's channel.
pub struct GuestWriter {
    /// The stream.
    pub stream: OwnedWriteHalf,
    /// Frames that wait to be written.
    pub outbox: Outbox,
    on_sent: Option<OnSent>,
}

impl fmt::Debug for GuestWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GuestWriter").finish_non_exhaustive()
    }
}

impl GuestWriter {
    /// Adds a frame, and writes as much as the stream takes without waiting. If the guest is gone, its reader shows so.
    ///
    /// # Errors
    /// As [`Outbox::push`].
    pub fn push(&mut self, frame: &Frame) -> Result<(), FrameError> {
        self.outbox.push(frame)?;
        let _ = self.outbox.write(&self.stream);
        if let Some(on_sent) = &self.on_sent {
            on_sent(frame);
        }
        Ok(())
    }
}

/// A guest's process. Dropping it ends the guest.
pub struct GuestProcess {
    process: Box<dyn Process>,
    /// Values that are dropped after the process, because the process uses them.
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for GuestProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GuestProcess").finish_non_exhaustive()
    }
}

impl GuestProcess {
    /// Starts the planned process with `channel`, whatever its other end is.
    pub(crate) async fn run(plan: Plan, channel: OwnedFd) -> Result<Self, Error> {
        Ok(Self {
            process: process::run(plan, epoch()?, Some(channel), None).await?,
            _kept: Vec::new(),
        })
    }

    /// Keeps a value as long as the process lives.
    #[must_use]
    pub(crate) fn keep(mut self, what: impl Any + Send + Sync) -> Self {
        self._kept.push(Box::new(what));
        self
    }

    /// Kills the process and all its children, without waiting for their end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The exit, once the process has ended. Can be dropped and called again.
    pub async fn wait(&mut self) -> Exit {
        self.process.wait().await
    }

    /// The id of a running process on this machine that was started for the guest.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The counts of limits that were reached.
    pub fn hits(&self) -> Hits {
        self.process.hits()
    }

    /// Bytes of memory that its processes hold together: see [`Process::held_bytes`].
    pub(crate) fn held_bytes(&self) -> Option<u64> {
        self.process.held_bytes()
    }

    /// A function that kills all its processes but these: see [`Process::sweeper`].
    pub(crate) fn sweeper(&self, spared: Vec<u32>) -> Option<Sweeper> {
        self.process.sweeper(spared)
    }

    /// The control group that holds its processes and no others.
    pub(crate) fn group(&self) -> Option<Arc<Cgroup>> {
        self.process.group()
    }

    /// The time for the exit to show after the channel has closed.
    pub fn exit_timeout(&self) -> Duration {
        self.process.exit_timeout()
    }
}

/// A random number that marks a guest's frames.
///
/// # Errors
/// [`Error::BootFailed`] when the system has no random numbers.
pub fn epoch() -> Result<u32, Error> {
    getrandom::u32().map_err(|error| Error::BootFailed(format!("the system gives no random numbers: {error}")))
}
