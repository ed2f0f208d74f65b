//! Drivers, which carry out the session's effects. Each sandbox has one task, which alone owns its session and guest.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Driver`], the handle by which a sandbox talks to its task |
//! | `task.rs` | the task: it takes inputs, and carries out effects |
//! | `ends.rs` | the ends of guests |
//! | `receive.rs` | messages of a guest |
//! | `slots.rs` | guests, each in its slot |
//! | `shadow.rs` | copies of a guest that run ahead |
//! | `paused.rs` | copies of a guest that are its checkpoints |
//! | `journal.rs` | what the world answered to an execution, in a store |

mod ends;
mod host_calls;
pub(crate) mod journal;
mod paused;
mod receive;
mod shadow;
mod slots;
mod task;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use opentelemetry::Context;
use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::predictions::Prediction;
use sandglass_core::protocol::GuestInfo;
use sandglass_core::session::{Command, Encoded, Fork, Input, Past, Record, Reply, Session, Ticket};
use sandglass_core::stats::Stats;
use sandglass_states::JournalId;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::callbacks::{Functions, OnDisplay, OnOutput};
use crate::guest::copies::PausedCheckpoint;
use crate::launcher::Launcher;
use crate::value::{Payload, Value};
use journal::{JournalPlace, Written};
pub(crate) use paused::KEPT;

static CLOCK: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The clock of all sessions and budgets of this process, in milliseconds.
pub fn now() -> f64 {
    CLOCK.elapsed().as_secs_f64() * 1_000.0
}

/// The instant at `at`, which is milliseconds on the clock of [`now`].
fn instant(at: f64) -> Instant {
    let most = 86_400_000.0 * 365.0;
    *CLOCK + std::time::Duration::from_secs_f64(at.clamp(0.0, now() + most) / 1_000.0)
}

/// Receives text.
pub(crate) type OnText = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives the facts of a guest.
pub(crate) type OnStart = Arc<dyn Fn(&GuestInfo) + Send + Sync>;

/// The receivers of news of all executions of a sandbox.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    pub(crate) on_stdout: Option<OnText>,
    pub(crate) on_stderr: Option<OnText>,
    /// Hears of each guest that has started, before what waited for it is answered.
    pub(crate) on_start: Option<OnStart>,
    /// The place of the journal, if executions are recorded.
    pub(crate) journal: Option<JournalPlace>,
    /// True if calls that the journal does not answer are refused.
    pub(crate) asks_nobody: bool,
}

/// The receivers of one execution's events.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) on_output: Option<OnOutput>,
    pub(crate) on_display: Option<OnDisplay>,
    /// Takes the value of the last expression.
    pub(crate) value: Option<Arc<OnceLock<Value>>>,
    /// The caller's name for the command, which its host calls tell.
    pub(crate) request: Option<String>,
    /// Takes the copies of the sandbox that the command asks for.
    pub(crate) copies: Option<CopiesOrder>,
    /// Takes the command back when it is cancelled.
    pub(crate) cancel: Option<CancellationToken>,
    /// The trace of the command, which its host calls continue.
    pub(crate) trace: Context,
}

/// An order for copies of a sandbox, each in namespaces of its own.
pub(crate) struct CopiesOrder {
    pub(crate) count: usize,
    pub(crate) made: oneshot::Sender<Result<Vec<MadeCopy>, String>>,
}

/// A copy of a sandbox that no driver runs yet.
pub(crate) struct MadeCopy {
    pub(crate) fork: Fork<Payload>,
    pub(crate) begin: Begin,
}

/// The begin of a copied session: the checkpoint from which its first guest comes, and the facts about that guest.
pub(crate) struct Begin {
    pub(crate) checkpoint: PausedCheckpoint,
    pub(crate) info: GuestInfo,
}

/// The record of an execution that has ended, and what the store has of it.
#[derive(Debug, Clone)]
pub(crate) struct EndedRecord {
    pub(crate) record: Arc<Record<Payload>>,
    /// The id of its journal, if a call was written.
    pub(crate) journal: Option<JournalId>,
    /// The number of its parts in the store. `None` if one could not be written.
    pub(crate) parts: Option<u32>,
}

/// A caller that waits for an ended record.
type AsksForEnded = oneshot::Sender<Option<EndedRecord>>;

/// The answer to a command.
type Answered = Result<Reply<Payload>, Error>;

/// A message to the task.
enum Message {
    Command(Ticket, Command<Payload>, Watch, oneshot::Sender<Answered>),
    /// More host functions. Those of the same names are replaced.
    Functions(Functions),
    /// An input of the session that needs no answer.
    Input(Input<Payload>),
    Predictions(oneshot::Sender<Vec<Prediction>>),
    /// Asks for the text of a line: of an execution, by its number.
    Line(u32, u32, oneshot::Sender<Option<String>>),
    Stats(oneshot::Sender<Stats>),
    Past(oneshot::Sender<Past<Payload>>),
    /// Asks whether the guest is the session's first one.
    IsFirst(oneshot::Sender<bool>),
    /// Variables of the session's past that could not be opened.
    Lost(Vec<LostVariable>),
    /// The journal of an execution of an earlier process. The guest has the state before it.
    Recorded(Box<Written>),
    /// Takes the record of the last execution, once all of it that is to be written is.
    Ended(AsksForEnded),
    /// Ends the session. The sender is told when nothing is left.
    Destroy(Option<oneshot::Sender<()>>),
    HostReturned(u32, Result<Encoded<Payload>, String>),
}

/// The handle of a sandbox's task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Driver {
    messages: mpsc::UnboundedSender<Message>,
    last_ticket: AtomicU32,
    info: Arc<Mutex<GuestInfo>>,
}

impl Driver {
    /// Starts the task of a session. `begin` is for a session that is a copy.
    pub(crate) fn start(
        session: Session<Payload>,
        max_value_bytes: f64,
        launcher: Arc<dyn Launcher>,
        begin: Option<Begin>,
        functions: Functions,
        callbacks: Callbacks,
    ) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let (checkpoint, info) = begin.map(|begin| (begin.checkpoint, begin.info)).unzip();
        let info = Arc::new(Mutex::new(info.unwrap_or_default()));
        let task = task::SandboxTask::new(
            session,
            max_value_bytes,
            launcher,
            functions,
            callbacks,
            messages.downgrade(),
            Arc::clone(&info),
        );
        tokio::spawn(task.begin_with(checkpoint).run(inbox));
        Self {
            messages,
            last_ticket: AtomicU32::new(0),
            info,
        }
    }

    /// Gives a command to the task.
    pub(crate) fn submit(&self, command: Command<Payload>, watch: Watch) -> Result<Submitted<'_>, Error> {
        let ticket = self.last_ticket.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        let cancel = watch.cancel.clone();
        let message = Message::Command(ticket, command, watch, answer);
        self.messages.send(message).map_err(|_| Error::Destroyed)?;
        Ok(Submitted {
            driver: self,
            ticket: Some(ticket),
            answered,
            cancel,
        })
    }

    /// Adds host functions, which the session must be told of.
    pub(crate) fn add_functions(&self, functions: Functions) {
        let _ = self.messages.send(Message::Functions(functions));
    }

    /// Gives the session an input that needs no answer.
    pub(crate) fn tell(&self, input: Input<Payload>) {
        let _ = self.messages.send(Message::Input(input));
    }

    /// The session's guesses of the next code.
    pub(crate) async fn predictions(&self) -> Result<Vec<Prediction>, Error> {
        let (answer, answered) = oneshot::channel();
        let _ = self.messages.send(Message::Predictions(answer));
        answered.await.map_err(|_| Error::Destroyed)
    }

    /// The session's counts.
    pub(crate) async fn stats(&self) -> Result<Stats, Error> {
        let (answer, answered) = oneshot::channel();
        let _ = self.messages.send(Message::Stats(answer));
        answered.await.map_err(|_| Error::Destroyed)
    }

    /// Returns true if the guest is the session's first one.
    pub(crate) async fn has_first_guest(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        let _ = self.messages.send(Message::IsFirst(answer));
        answered.await.unwrap_or_default()
    }

    /// The session's past, for a later session.
    pub(crate) async fn past(&self) -> Result<Past<Payload>, Error> {
        let (answer, answered) = oneshot::channel();
        let _ = self.messages.send(Message::Past(answer));
        answered.await.map_err(|_| Error::Destroyed)
    }

    /// Has the next execution report variables of the session's past that could not be opened.
    pub(crate) fn add_lost(&self, lost: Vec<LostVariable>) {
        let _ = self.messages.send(Message::Lost(lost));
    }

    /// Makes an execution of an earlier process pending. The guest has the state before it.
    pub(crate) fn recorded(&self, journal: Written) {
        let _ = self.messages.send(Message::Recorded(Box::new(journal)));
    }

    /// Takes the record of the last execution, if it was recorded, once all of it that is to be written is.
    pub(crate) async fn ended(&self) -> Option<EndedRecord> {
        let (answer, answered) = oneshot::channel();
        let _ = self.messages.send(Message::Ended(answer));
        answered.await.ok().flatten()
    }

    /// Ends the session. Nothing of it is left when this returns.
    pub(crate) async fn destroy(&self) {
        let (gone, is_gone) = oneshot::channel();
        if self.messages.send(Message::Destroy(Some(gone))).is_ok() {
            let _ = is_gone.await;
        }
    }

    /// The guest's latest facts about itself.
    pub(crate) fn info(&self) -> GuestInfo {
        lock(&self.info).clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Destroy(None));
    }
}

/// A command that the task has. When it is dropped, the command is taken back.
pub(crate) struct Submitted<'a> {
    driver: &'a Driver,
    ticket: Option<Ticket>,
    answered: oneshot::Receiver<Answered>,
    /// Takes the command back when it is cancelled.
    cancel: Option<CancellationToken>,
}

impl Submitted<'_> {
    /// The outcome.
    pub(crate) async fn answer(mut self) -> Answered {
        let answer = match self.cancel.take() {
            Some(cancel) => tokio::select! {
                biased;
                answer = &mut self.answered => answer,
                () = cancel.cancelled() => {
                    self.take_back();
                    (&mut self.answered).await
                }
            },
            None => (&mut self.answered).await,
        };
        self.leave();
        answer.unwrap_or(Err(Error::Destroyed))
    }

    /// Has the command come to its end although nobody waits for its outcome.
    pub(crate) fn leave(mut self) {
        self.ticket = None;
    }

    fn take_back(&self) {
        if let Some(ticket) = self.ticket {
            self.driver.tell(Input::Cancel(ticket));
        }
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
