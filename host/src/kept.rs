//! Sandboxes whose executions outlive the process.
//!
//! A [`Kept`] sandbox writes its state into a store before and after each execution, by value. While an execution runs, it also writes a
//! *journal*: what the world has answered to the code, such as host calls, times and random bytes. If the process ends meanwhile, in any way,
//! a later one finds the execution *pending*. [`Kept::resume`] runs its code again from the state before, with the same answers, and goes on
//! where the journal ends. A call whose answer is in the journal is not made again.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandglass_host::kept::{Kept, KeptPlace, ResumeOptions};
//! use sandglass_host::{Sandbox, Value};
//!
//! let builder = Sandbox::builder()
//!     .without_context()
//!     .host_function("pay", |call| async move { Ok(Value::Str(format!("paid, as {:?}", call.id))) });
//! let kept = Kept::open(builder, KeptPlace::in_folder("invoice")?).await?;
//! match kept.pending() {
//!     Some(pending) => println!("{} waits for {:?}", pending.code, pending.calls),
//!     None => println!("{:?}", kept.execute("pay(42)").await?.result),
//! }
//! if kept.pending().is_some() {
//!     println!("{:?}", kept.resume(ResumeOptions::default()).await?.result);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_core::execution::{LostVariable, StateReport, StateStatus};
use sandglass_core::{Error, Profile};
use sandglass_states::{FolderStore, JournalId, MasterKey, Part, Saved, SessionId, StateError, States, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::callbacks::arguments;
use crate::driver::journal::{JournalPlace, Written, call_id};
use crate::launcher::BackendKind;
use crate::sandbox::{ExecuteOptions, Execution, Sandbox, SandboxBuilder, Spent, Suspended};
use crate::value::Value;

/// The most bytes of a kept sandbox's variables, contexts and files.
pub const MOST_BYTES: u64 = 256 << 20;
/// The most bytes of a journal. The core bounds its calls and answers to 64 MiB, and its notes to 3 MiB.
const MOST_JOURNAL_BYTES: u64 = 128 << 20;
/// The name of the key's file in a folder.
const KEY_FILE: &str = "key";

/// The number of states after which objects of earlier ones are removed, if nobody else does that.
const COLLECTED_AFTER: u32 = 32;
/// The age from which objects are removed that nobody needs.
const COLLECTED_AGE: Duration = Duration::from_secs(60);

/// The place of a kept sandbox: a session of a tenant of a store. One sandbox at a time may be open there.
#[derive(Debug, Clone)]
pub struct KeptPlace {
    journal: JournalPlace,
    /// True if the sandbox removes what it needs no more, because nobody else does.
    collects: bool,
}

impl KeptPlace {
    /// A session in a store. The caller [collects](Tenant::collect) what its tenant needs no more.
    pub fn new(tenant: Arc<Tenant>, session: SessionId) -> Self {
        let journal = JournalPlace { tenant, session };
        Self {
            journal,
            collects: false,
        }
    }

    /// A folder of its own, which is made if it is missing. What is in it is encrypted with the key in its file `key`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when the folder cannot be used, or another process has it open.
    pub fn in_folder(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let open = || {
            let store = FolderStore::open(path)?;
            let key = MasterKey::from_file_or_new(&store.path().join(KEY_FILE))?;
            States::new(Arc::new(store), key)?.tenant("")
        };
        let tenant = Arc::new(open().map_err(unavailable)?);
        let session = "0".repeat(32).parse().map_err(unavailable)?;
        let place = Self::new(tenant, session);
        Ok(Self {
            collects: true,
            ..place
        })
    }

    /// Runs work that blocks on the store.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenant, SessionId) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let JournalPlace { tenant, session } = self.journal.clone();
        let worked = tokio::task::spawn_blocking(move || work(&tenant, session)).await;
        worked.map_err(unavailable)?.map_err(unavailable)
    }
}

/// An execution that was under way when the process of the sandbox ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The execution's number.
    pub execution: u32,
    /// Its code.
    pub code: String,
    /// The calls that it waits for.
    pub calls: Vec<PendingCall>,
}

/// A host call without an answer. The function may have run: the process ended before its answer was written.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingCall {
    /// The call's name: [`HostCall::id`](crate::HostCall::id) of the function's next call.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The call's positional arguments.
    pub args: Vec<Value>,
    /// The call's keyword arguments, in order.
    pub kwargs: Vec<(String, Value)>,
    /// The time at which Python made the call, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The options of [`Kept::resume`].
#[derive(Debug, Default)]
pub struct ResumeOptions {
    /// Answers to calls that wait, by their [names](PendingCall::id). These calls are not made again.
    pub answers: Vec<(String, Value)>,
    /// The receivers of the execution's events, from its beginning. A timeout or budget is refused: those of the execution count.
    pub execute: ExecuteOptions,
}

/// A sandbox whose executions outlive the process. The [module](self) describes it.
#[derive(Debug)]
pub struct Kept {
    builder: SandboxBuilder,
    place: KeptPlace,
    settings: StoredSettings,
    /// Held by whoever uses the sandbox.
    turn: tokio::sync::Mutex<()>,
    inside: Mutex<Inside>,
    /// The number of states that were written.
    writes: AtomicU32,
}

/// The settings that a stored sandbox must have again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSettings {
    hash_seed: u32,
    profile: Profile,
}

#[derive(Debug)]
struct Inside {
    stage: Stage,
    /// The reason for which the store does not have exactly the present state. `None` if it does.
    unkept: Option<String>,
    /// The sandbox in which the pending execution goes on.
    resuming: Option<Sandbox>,
    /// True once the user has the sandbox itself, and may change its state at any time.
    is_shared: bool,
}

#[derive(Debug)]
enum Stage {
    /// The state is in the store only.
    Stored(Box<Suspended>),
    /// An execution is pending after the state in the store.
    Pending(Box<Suspended>, Box<Written>),
    Open(Sandbox),
}

impl Kept {
    /// Opens the sandbox that is kept in a place, or begins one there. `builder` describes it, with the same functions, limits and profile as
    /// before. The guest starts when it is first needed.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options with which executions cannot be recorded: another backend than bubblewrap and plain processes, a
    /// launcher, a folder of the host, or another profile. [`Error::BackendUnavailable`] when the store cannot be read, or is damaged.
    pub async fn open(builder: SandboxBuilder, place: KeptPlace) -> Result<Self, Error> {
        let refused = |why: &str| Err(Error::invalid("journal", why));
        if builder.has_launcher() {
            return refused("guests of a launcher cannot be recorded: they have started already");
        }
        if builder.given_workspace().is_some() {
            return refused("a folder of the host cannot be given back as it was before an execution");
        }
        let found = place.work(read).await?;
        let profile = builder.its_profile();
        let (settings, stage) = match found {
            Some((saved, is_left, journal)) => {
                let settings = StoredSettings::deserialize(&saved.settings).map_err(unavailable)?;
                if settings.profile != profile {
                    let problem = format!("the kept sandbox has the profile \"{}\"", settings.profile.name());
                    return Err(Error::invalid("profile", problem));
                }
                (settings, Some(Stage::of(saved, is_left, journal)?))
            }
            None => {
                let mut seed = [0; 4];
                getrandom::fill(&mut seed).map_err(unavailable)?;
                let hash_seed = u32::from_ne_bytes(seed);
                (StoredSettings { hash_seed, profile }, None)
            }
        };
        let builder = builder.journal(place.journal.clone(), settings.hash_seed);
        let stage = match stage {
            Some(stage) => stage,
            None => Stage::Open(built(&builder).await?),
        };
        Ok(Self {
            builder,
            place,
            settings,
            turn: tokio::sync::Mutex::default(),
            writes: AtomicU32::new(0),
            inside: Mutex::new(Inside {
                unkept: matches!(stage, Stage::Open(_)).then(|| "it was not written yet".to_owned()),
                stage,
                resuming: None,
                is_shared: false,
            }),
        })
    }

    /// The execution that an earlier process has not finished.
    pub fn pending(&self) -> Option<Pending> {
        let inside = self.inside();
        let Stage::Pending(_, journal) = &inside.stage else {
            return None;
        };
        let Written { id, record, times } = &**journal;
        let call = |waits: sandglass_core::session::Waits<_>| {
            let decoded = Value::decode(&waits.args).unwrap_or_default();
            let (args, kwargs, _) = arguments(decoded).unwrap_or_default();
            PendingCall {
                id: call_id(*id, waits.call),
                name: waits.name,
                args,
                kwargs,
                since_ms: times.get(waits.index + 1).copied().unwrap_or_default(),
            }
        };
        Some(Pending {
            execution: record.execution(),
            code: record.code().to_owned(),
            calls: record.waiting().into_iter().map(call).collect(),
        })
    }

    /// The sandbox, for all but executions. Once it was asked for, the state is written again before each execution. Code that is executed
    /// there has no journal that could be resumed.
    ///
    /// # Errors
    /// [`Error::ExecutionPending`], or those of the guest's start.
    pub async fn sandbox(&self) -> Result<Sandbox, Error> {
        let _turn = self.turn.lock().await;
        let sandbox = self.opened().await?;
        self.inside().is_shared = true;
        Ok(sandbox)
    }

    /// Runs code, see [`Kept::execute_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn execute(&self, code: impl Into<String>) -> Result<Execution, Error> {
        self.execute_with(code, ExecuteOptions::default()).await
    }

    /// Runs code. When this returns, its effects are kept; if they could not be, the log says why. Dropping the future interrupts the code,
    /// and then it is not pending.
    ///
    /// # Errors
    /// [`Error::ExecutionPending`], and those of [`Sandbox::execute_with`].
    pub async fn execute_with(&self, code: impl Into<String>, options: ExecuteOptions) -> Result<Execution, Error> {
        let _turn = self.turn.lock().await;
        let sandbox = self.opened().await?;
        let is_kept = {
            let inside = self.inside();
            !inside.is_shared && inside.unkept.is_none()
        };
        if !is_kept {
            self.write(&sandbox).await;
        }
        let marked = self.place.work(Tenant::mark_awake).await;
        let unkept = marked
            .err()
            .map(|error| format!("the store could not be written ({error})"))
            .or_else(|| self.inside().unkept.clone());
        if let Some(why) = unkept {
            sandbox.unkept(format!("the state before it is not kept: {why}"));
        }
        self.inside().unkept = Some("an execution after it was interrupted".to_owned());
        let execution = sandbox.execute_with(code, options).await?;
        self.ended(&sandbox, execution).await
    }

    /// Goes on with the pending execution. Output and displays come from the beginning.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when none is pending, or an answer is given to no call that waits; [`Error::JournalDiffers`] when the code
    /// goes another way than its journal says. After any error, the execution is still pending.
    pub async fn resume(&self, options: ResumeOptions) -> Result<Execution, Error> {
        let _turn = self.turn.lock().await;
        let left = self.inside().resuming.take();
        if let Some(sandbox) = left {
            // An earlier call was dropped. It has interrupted the execution, and noted that.
            sandbox.destroy().await;
            self.read_again().await?;
        }
        let (suspended, journal) = match &self.inside().stage {
            Stage::Pending(suspended, journal) => (suspended.clone(), journal.clone()),
            _ => return Err(nothing_pending("resume")),
        };
        let ResumeOptions { answers, execute } = options;
        let answers = answers.into_iter().map(|(id, value)| {
            let waits = journal.record.waiting();
            let waits = waits.iter().find(|waits| call_id(journal.id, waits.call) == id);
            let problem = || Error::invalid("answers", format!("\"{id}\" is no call that waits; nothing was done"));
            Ok((waits.ok_or_else(problem)?.call, value))
        });
        let answers = answers.collect::<Result<_, Error>>()?;
        let sandbox = built(&suspended.begin(self.builder.clone())).await?;
        self.inside().resuming = Some(sandbox.clone());
        let resumed = async {
            let lost = sandbox.take_up(&suspended, MOST_BYTES).await?;
            if let Some(LostVariable { name, reason }) = lost.first() {
                let why = format!("the state before the pending execution cannot be made again: {name} ({reason})");
                return Err(Error::NoCheckpoint(why));
            }
            self.place.work(Tenant::mark_awake).await?;
            sandbox.resume(*journal, answers, execute).await
        };
        let resumed = resumed.await;
        self.inside().resuming = None;
        match resumed {
            Ok(execution) => {
                {
                    let mut inside = self.inside();
                    inside.stage = Stage::Open(sandbox.clone());
                    inside.unkept = Some("it was not written yet".to_owned());
                }
                self.ended(&sandbox, execution).await
            }
            Err(error) => {
                sandbox.destroy().await;
                self.read_again().await?;
                Err(error)
            }
        }
    }

    /// Gives the pending execution up. The state stays as it was before it.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when none is pending; [`Error::BackendUnavailable`] when the store cannot be written.
    pub async fn discard(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let suspended = match &self.inside().stage {
            Stage::Pending(suspended, _) => suspended.clone(),
            _ => return Err(nothing_pending("discard")),
        };
        self.place.work(Tenant::remove_journal).await?;
        self.inside().stage = Stage::Stored(suspended);
        Ok(())
    }

    /// Ends the guest, also while code runs: then its execution is pending in the next sandbox of this place. A process that ends in good
    /// order calls this first. If it drops the future of an execution instead, that interrupts the code.
    pub async fn destroy(&self) {
        let sandbox = {
            let inside = self.inside();
            match (&inside.stage, &inside.resuming) {
                (Stage::Open(sandbox), _) | (_, Some(sandbox)) => sandbox.clone(),
                _ => return,
            }
        };
        sandbox.destroy().await;
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, whose guest has the stored state.
    async fn opened(&self) -> Result<Sandbox, Error> {
        let suspended = match &self.inside().stage {
            Stage::Open(sandbox) => return Ok(sandbox.clone()),
            Stage::Stored(suspended) => suspended.clone(),
            Stage::Pending(_, journal) => {
                let execution = journal.record.execution();
                return Err(Error::ExecutionPending(format!(
                    "execution {execution} was under way when the last process ended; nothing was done. Call resume() to go on with it, or \
                     discard() to give it up"
                )));
            }
        };
        let sandbox = built(&suspended.begin(self.builder.clone())).await?;
        let lost = match sandbox.take_up(&suspended, MOST_BYTES).await {
            Ok(lost) => lost,
            Err(error) => {
                sandbox.destroy().await;
                return Err(error);
            }
        };
        let mut inside = self.inside();
        inside.stage = Stage::Open(sandbox.clone());
        inside.unkept = inexact(&lost);
        Ok(sandbox)
    }

    /// Writes the state of the sandbox, and removes the journal of the execution before it.
    async fn write(&self, sandbox: &Sandbox) {
        let written = async {
            let suspended = sandbox.suspend(MOST_BYTES).await?;
            let lost = inexact(&suspended.lost);
            let saved = suspended.into_saved(json!(self.settings))?;
            let writes = self.writes.fetch_add(1, Ordering::Relaxed);
            let collects = self.place.collects && writes.is_multiple_of(COLLECTED_AFTER);
            let write = move |tenant: &Tenant, session| {
                tenant.write(session, &saved)?;
                tenant.remove_journal(session)?;
                match collects {
                    true => tenant.collect(COLLECTED_AGE).map(drop),
                    false => Ok(()),
                }
            };
            self.place.work(write).await.map(|()| lost)
        };
        let unkept = written.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the state of a kept sandbox could not be written");
            Some(error.to_string())
        });
        self.inside().unkept = unkept;
    }

    /// Keeps what an execution has left.
    async fn ended(&self, sandbox: &Sandbox, mut execution: Execution) -> Result<Execution, Error> {
        if execution.state.status != StateStatus::Lost {
            self.write(sandbox).await;
            return Ok(execution);
        }
        // The guest is gone with its state. That of the store takes its place.
        sandbox.destroy().await;
        let stored = |tenant: &Tenant, session| {
            tenant.remove_journal(session)?;
            tenant.read(session, MOST_BYTES)
        };
        if let Some(saved) = self.place.work(stored).await? {
            let lost = execution.run.state.lost.take().unwrap_or_default();
            let reason = lost.first().map(|lost| lost.reason.clone()).unwrap_or_default();
            execution.run.state = StateReport::restored(saved.execution, [], &reason);
            self.inside().stage = Stage::of(saved, false, None)?;
        }
        Ok(execution)
    }

    /// Takes the stage from the store again, whose journal may have grown.
    async fn read_again(&self) -> Result<(), Error> {
        let found = self.place.work(read).await?;
        if let Some((saved, _, journal)) = found {
            self.inside().stage = Stage::of(saved, false, journal)?;
        }
        Ok(())
    }
}

impl Stage {
    /// The stage of a stored state. `is_left`: a sandbox went on from the state, and its effects are lost unless they are in the journal.
    fn of(saved: Saved, is_left: bool, journal: Option<Parts>) -> Result<Self, Error> {
        let journal = journal.map(|(id, parts)| Written::read(id, parts)).transpose();
        let journal = journal.map_err(unavailable)?;
        let next = saved.execution.saturating_add(1);
        let suspended = Suspended::from_saved(saved, Spent::default()).map_err(unavailable)?;
        let mut suspended = Box::new(suspended);
        match journal.filter(|journal| journal.record.execution() == next) {
            Some(journal) => match journal.record.broken() {
                None => return Ok(Self::Pending(suspended, Box::new(journal))),
                Some(why) => suspended.lost.push(LostVariable {
                    name: format!("execution {next}"),
                    reason: format!("it was under way when the process ended, and cannot be resumed: {why}"),
                }),
            },
            None if is_left => suspended.past.is_returned_to(),
            None => {}
        }
        Ok(Self::Stored(suspended))
    }
}

/// A journal as it is stored.
type Parts = (JournalId, Vec<Part>);

/// Reads the state of a session, whether a sandbox went on from it, and its journal.
fn read(tenant: &Tenant, session: SessionId) -> Result<Option<(Saved, bool, Option<Parts>)>, StateError> {
    let saved = tenant.read(session, MOST_BYTES)?;
    let is_left = tenant.head(session)?.is_some_and(|head| head.awake);
    let journal = tenant.journal(session, MOST_JOURNAL_BYTES)?;
    Ok(saved.map(|saved| (saved, is_left, journal)))
}

/// A sandbox whose guests can be recorded.
async fn built(builder: &SandboxBuilder) -> Result<Sandbox, Error> {
    let sandbox = builder.clone().build().await?;
    match sandbox.capabilities().backend {
        BackendKind::Bubblewrap | BackendKind::Subprocess => Ok(sandbox),
        other => Err(Error::invalid(
            "journal",
            format!(
                "guests of {} cannot be recorded: use bubblewrap or subprocess",
                other.name()
            ),
        )),
    }
}

/// The reason for which a state without these variables is not exactly the present one.
fn inexact(lost: &[LostVariable]) -> Option<String> {
    let LostVariable { name, reason } = lost.first()?;
    Some(format!("{name} cannot be written ({reason})"))
}

fn nothing_pending(method: &str) -> Error {
    Error::invalid(method, "no execution is pending; nothing was done")
}

fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::BackendUnavailable(format!("the kept sandbox cannot be read or written: {error}"))
}
