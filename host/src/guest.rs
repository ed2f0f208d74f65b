//! A running guest: its channel, its end, and what caused that.

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

use self::fork::{Forker, Succession};
use crate::cgroup::Bounds;
use crate::frame::{FRAME_SLACK_BYTES, Frame, FrameError, FrameReader, Outbox};
use futures_util::future::BoxFuture;

pub(crate) mod fork;
pub(crate) mod memory;
pub(crate) mod process;
mod rlimits;

/// The way to start a guest, as data.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; `--fd N --epoch E` are added to them where it has a channel.
    pub args: Vec<OsString>,
    /// Its environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// The folder it starts in; the root without one.
    pub cwd: Option<PathBuf>,
    /// The user and group that it is started as, when that is not who the host is.
    pub user: Option<(u32, u32)>,
    /// The bounds of all its processes together, where there are control groups.
    pub bounds: Bounds,
    /// Open files of each of its processes.
    pub open_files: u32,
    /// Bytes of each file that they write.
    pub file_bytes: u64,
    /// True when it is told on [`CONTROL_FD`] to make copies of itself.
    pub forks: bool,
    /// The ids of the user namespace that the program makes, as the kernel reads them: it tells on [`INFO_FD`] of the process that is in
    /// it, and waits on [`MAPPED_FD`] until it has them. Without these the program sees to it itself.
    pub id_map: Option<String>,
    /// Bytes of a compiled filter of system calls, for the program to read from the file descriptor [`FILTER_FD`].
    pub filter: Option<Vec<u8>>,
}

impl Plan {
    /// Starts a process as planned, without a channel: it will connect by itself.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the program cannot be started.
    pub async fn start(self) -> Result<Box<dyn Process>, Error> {
        process::run(self, epoch()?, None, None).await
    }
}

/// The place where a guest finds its channel.
pub const CHANNEL_FD: i32 = 3;
/// The place where a guest is asked for copies of itself.
pub const CONTROL_FD: i32 = 6;
/// The place where bubblewrap finds the filter of system calls.
pub const FILTER_FD: i32 = 4;
/// The place where the program waits for the word to begin, before it is the program.
const GATE_FD: i32 = 5;

/// The descriptor on which bubblewrap tells which process is in its user namespace.
pub const INFO_FD: i32 = 7;
/// The descriptor on which bubblewrap waits until that namespace has ids.
pub const MAPPED_FD: i32 = 8;

/// The way a guest ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status, where it had one.
    pub code: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// The limit that did.
    pub killer: Option<Killer>,
    /// The end of what it wrote on its own standard error before it spoke.
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
    /// Processes that were killed because memory was used up.
    pub oom: u64,
    /// Processes and threads that were refused.
    pub pids: u64,
}

/// Whatever runs a guest, so far as it can be ended and waited for. Dropping it ends it as well.
pub trait Process: Send + Sync + 'static {
    /// Ends it with all its processes, now. It does not wait for that.
    fn kill(&mut self);

    /// The way it ended, when it has, and all its processes with it. Can be dropped and called again.
    fn wait(&mut self) -> BoxFuture<'_, Exit>;

    /// The number of the process that was started for it, where that is one of this machine's that still runs.
    fn id(&self) -> Option<u32> {
        None
    }

    /// The counts of its limits.
    fn hits(&self) -> Hits {
        Hits::default()
    }

    /// For how long its end may take to show after its channel has closed.
    fn exit_timeout(&self) -> Duration {
        Duration::from_secs(5)
    }
}

/// A guest that was started. Dropping it ends it.
pub struct Guest {
    channel: UnixStream,
    epoch: u32,
    process: Box<dyn Process>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
    has_waited: bool,
    on_sent: Option<OnSent>,
    forker: Option<Forker>,
    succession: Option<Succession>,
}

/// Is shown each frame that is sent to a guest.
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
    /// A guest that something else started.
    pub fn new(channel: UnixStream, epoch: u32, process: Box<dyn Process>) -> Self {
        Self {
            channel,
            epoch,
            process,
            kept: Vec::new(),
            has_waited: false,
            on_sent: None,
            forker: None,
            succession: None,
        }
    }

    /// One that can make copies of itself.
    #[must_use]
    pub(crate) fn with_forker(mut self, forker: Forker) -> Self {
        self.forker = Some(forker);
        self
    }

    /// One that is such a copy.
    #[must_use]
    pub(crate) fn with_succession(mut self, succession: Succession) -> Self {
        self.succession = Some(succession);
        self
    }

    /// Takes the part that makes copies of it, and the one that makes it the guest.
    pub(crate) fn take_forks(&mut self) -> (Option<Forker>, Option<Succession>) {
        (self.forker.take(), self.succession.take())
    }

    /// Has it shown each frame that the guest is sent.
    #[must_use]
    pub fn on_sent(mut self, on_sent: OnSent) -> Self {
        self.on_sent = Some(on_sent);
        self
    }

    /// One that was made before it was wanted, and may have died since.
    #[must_use]
    pub fn waited(mut self) -> Self {
        self.has_waited = true;
        self
    }

    /// Returns true when it was made before it was wanted.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Starts a process as planned.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when the program cannot be started. That it does not speak shows later.
    pub async fn spawn(plan: Plan) -> Result<Self, Error> {
        process::spawn(plan).await
    }

    /// Keeps something for as long as the guest lives, such as a folder that is removed when it is dropped.
    #[must_use]
    pub fn keep(mut self, what: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(what));
        self
    }

    /// The same for as long as there are copies of it, too.
    #[must_use]
    pub(crate) fn keep_with_copies(mut self, what: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        if let Some(what) = what {
            self.forker = self.forker.map(|forker| forker.keep(Arc::clone(&what)));
            self.kept.push(Box::new(what));
        }
        self
    }

    /// The guest's exit, if the guest has ended, as far as that shows without waiting.
    pub fn exit(&mut self) -> Option<Exit> {
        self.process.wait().now_or_never()
    }

    /// Ends it, and waits until nothing is left of it.
    pub async fn end(mut self) {
        self.process.kill();
        self.process.wait().await;
    }

    /// Its ends: frames from it, whose bodies have at most `max_value_bytes` together; frames to it; and its life.
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

/// The way to a guest.
pub struct GuestWriter {
    /// The stream.
    pub stream: OwnedWriteHalf,
    /// The frames that are still to be written on it.
    pub outbox: Outbox,
    on_sent: Option<OnSent>,
}

impl fmt::Debug for GuestWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GuestWriter").finish_non_exhaustive()
    }
}

impl GuestWriter {
    /// Adds a frame, and writes what the stream takes without waiting. That the guest is gone shows where it is read from.
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

/// A guest's life. Dropping it ends it.
pub struct GuestProcess {
    process: Box<dyn Process>,
    /// Dropped after the process, so that nothing is pulled away under it.
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for GuestProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GuestProcess").finish_non_exhaustive()
    }
}

impl GuestProcess {
    /// Starts a process as planned that gets `channel`, whatever that leads to.
    pub(crate) async fn run(plan: Plan, channel: OwnedFd) -> Result<Self, Error> {
        Ok(Self {
            process: process::run(plan, epoch()?, Some(channel), None).await?,
            _kept: Vec::new(),
        })
    }

    /// Keeps something for as long as it lives.
    #[must_use]
    pub(crate) fn keep(mut self, what: impl Any + Send + Sync) -> Self {
        self._kept.push(Box::new(what));
        self
    }

    /// Ends it with all its processes, now. It does not wait for that.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The way it ended, when it has. Can be dropped and called again.
    pub async fn wait(&mut self) -> Exit {
        self.process.wait().await
    }

    /// The number of the process that was started for it, where that is one of this machine's that still runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The counts of its limits.
    pub fn hits(&self) -> Hits {
        self.process.hits()
    }

    /// For how long its end may take to show after its channel has closed.
    pub fn exit_timeout(&self) -> Duration {
        self.process.exit_timeout()
    }
}

/// A random number for a guest to know its frames by.
///
/// # Errors
/// [`Error::BootFailed`] when the system has no random numbers.
pub fn epoch() -> Result<u32, Error> {
    getrandom::u32().map_err(|error| Error::BootFailed(format!("there are no random numbers: {error}")))
}
