//! Sandboxes whose executions outlive the process.
//!
//! A [`Kept`] sandbox writes its state into a store after each execution, by value. A large state is written once the execution was answered,
//! and until then its journal makes the execution durable. While an execution runs, the sandbox writes a
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

mod ending;
mod late;
mod listing;
mod pending;
mod place;
mod replay;
mod stage;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use sandglass_core::{Error, Profile};
use sandglass_states::StateError;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;

use self::ending::inexact;
pub use self::listing::{KeptFacts, MOST_LISTED, in_folders, newest};
pub use self::pending::{Pending, PendingCall, ResumeOptions};
pub use self::place::KeptPlace;
use self::place::Works;
pub use self::replay::{Replay, ReplayOptions};
use self::stage::Stage;
pub use crate::driver::journal::bounds::{Garbage, KeptBounds, MOST_BYTES};
use crate::driver::journal::{AfterEnd, JournalPlace, Lease, taken};
use crate::launcher::BackendKind;
use crate::sandbox::{Capabilities, Changes, ExecuteOptions, Execution, Sandbox, SandboxBuilder};

/// The time for which the end of a sandbox waits until the next one may have its place.
const FREE_TIME: Duration = Duration::from_secs(2);

/// A sandbox whose executions outlive the process. The [module](self) describes it.
#[derive(Debug)]
pub struct Kept {
    builder: SandboxBuilder,
    place: KeptPlace,
    works: Works,
    settings: StoredSettings,
    capabilities: Capabilities,
    /// Held by whoever uses the sandbox.
    turn: Arc<tokio::sync::Mutex<()>>,
    inside: Mutex<Inside>,
    /// The number of states that were written.
    writes: AtomicU32,
    /// The bytes of the last state that was written or read.
    state_bytes: AtomicU64,
    /// True while a state is written after its execution was answered. Its writer has the turn.
    late: watch::Sender<bool>,
    /// Counts what may change the state beside executions.
    changes: Changes,
    /// The number of interrupts while no code could be interrupted.
    interrupts: AtomicU64,
    /// This sandbox, for what goes on while nobody waits.
    me: Weak<Self>,
    /// True if the place had no state when it was opened.
    is_new: bool,
    /// Cancelled when the user ends the sandbox.
    is_ended: CancellationToken,
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
    /// A sandbox that may write to the store, and that is not the one of the stage: the pending execution goes on in it, or it ends.
    other: Option<Sandbox>,
    /// The number of [`changes`](Kept::changes) that the state of the store has.
    changes: u64,
    /// The end of the journal, if the store has the last execution there, and not the state after it.
    after_end: Option<AfterEnd>,
    /// The right to use the place. `None` once the user has ended the sandbox.
    lease: Option<Lease>,
    /// The JSON of the last execution that has ended.
    last: Option<Bytes>,
}

impl Kept {
    /// Opens the sandbox that is kept in a place, or begins one there. `builder` describes it, with the same functions, limits and profile as
    /// before. The guest starts when it is first needed.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options with which executions cannot be recorded: another backend than bubblewrap and plain processes, a
    /// launcher, a folder of the host, or another profile. [`Error::PersistInUse`] when another sandbox has the place, also on another server.
    /// [`Error::PersistFailed`] when the store cannot be read, or its state is damaged. After damage of the journal alone, the next execution
    /// tells that the one under way is lost.
    pub async fn open(builder: SandboxBuilder, place: KeptPlace) -> Result<Arc<Self>, Error> {
        let refused = |why: &str| Err(Error::invalid("persist", why));
        if builder.has_launcher() {
            return refused("guests of a launcher cannot be recorded: they have started already");
        }
        if builder.given_workspace().is_some() {
            return refused("a folder of the host cannot be given back as it was before an execution");
        }
        let lease = place.lease()?;
        let works = Works::default();
        let _turn = place.turn().await;
        let found = works
            .run(|| Ok(place.journal(lease.clone())), JournalPlace::take)
            .await?;
        let profile = builder.its_profile();
        let is_new = found.is_none();
        let (settings, stage, last, state_bytes) = match found {
            Some(found) => {
                let (saved, ..) = &found;
                let (last, bytes) = (ending::last_of(saved), saved.bytes());
                let settings = StoredSettings::deserialize(&saved.settings).map_err(failed)?;
                if settings.profile != profile {
                    let problem = format!("the kept sandbox has the profile \"{}\"", settings.profile.name());
                    return Err(Error::invalid("profile", problem));
                }
                let stage = Stage::of(found)?;
                let last = match &stage {
                    Stage::Ended(_, run) => run.last.clone(),
                    _ => last,
                };
                (settings, Some(stage), last, bytes)
            }
            None => {
                let mut seed = [0; 4];
                getrandom::fill(&mut seed).map_err(failed)?;
                let hash_seed = u32::from_ne_bytes(seed);
                (StoredSettings { hash_seed, profile }, None, None, 0)
            }
        };
        let journal = place.journal(lease.clone());
        let sandbox = built(builder.clone().journal(Some(journal), settings.hash_seed)).await?;
        let capabilities = sandbox.capabilities();
        let stage = match stage {
            Some(stage) => {
                sandbox.destroy().await; // it has shown that there can be one, and another one takes the state
                stage
            }
            None => Stage::Open(sandbox),
        };
        Ok(Arc::new_cyclic(|me| Self {
            builder,
            capabilities,
            place,
            works,
            settings,
            turn: Arc::default(),
            writes: AtomicU32::new(0),
            state_bytes: AtomicU64::new(state_bytes),
            late: watch::Sender::new(false),
            changes: Changes::default(),
            interrupts: AtomicU64::new(0),
            me: me.clone(),
            is_new,
            is_ended: CancellationToken::new(),
            inside: Mutex::new(Inside {
                unkept: matches!(stage, Stage::Open(_)).then(|| "it was not written yet".to_owned()),
                stage,
                other: None,
                changes: 0,
                after_end: None,
                lease: Some(lease),
                last,
            }),
        }))
    }

    /// Returns true if nothing was kept in the place when it was opened.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The facts of the backend. The version of Python is known only once a guest has told it.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The sandbox that has the state now, or is getting it, for what waits for nothing, such as to interrupt the code. `None` while only the
    /// store has the state, and while that is written.
    pub fn current(&self) -> Option<Sandbox> {
        let inside = self.inside();
        let current = match &inside.stage {
            Stage::Ended(..) => None, // it runs again, and nobody may stop it
            Stage::Open(sandbox) => Some(sandbox).filter(|_| !self.is_late()),
            _ => inside.other.as_ref(),
        };
        current.map(|sandbox| sandbox.clone().counting(self.changes.clone()))
    }

    /// Interrupts the code that runs. While the state is written or made again, it interrupts the executions that wait for that.
    pub fn interrupt(&self) {
        match self.current() {
            Some(sandbox) => sandbox.interrupt(),
            None => drop(self.interrupts.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The execution that an earlier process has not finished.
    pub fn pending(&self) -> Option<Pending> {
        let inside = self.inside();
        let Stage::Pending(_, journal) = &inside.stage else {
            return None;
        };
        Some(Pending::of(journal))
    }

    /// Ends what a dropped future of [`Kept::resume`] has left, unless somebody uses the sandbox: from then on, [`Kept::pending`] tells what
    /// became of the execution.
    ///
    /// # Errors
    /// [`Error::PersistFailed`] when the store cannot be read, and [`Error::Destroyed`].
    pub async fn settle(&self) -> Result<(), Error> {
        match self.turn.try_lock() {
            Ok(_turn) => self.settled().await,
            Err(_) => Ok(()),
        }
    }

    /// The sandbox, for all but executions. After anything is done with it, the state is written again before the next execution. Code that is
    /// executed there has no journal, and cannot be resumed. If its guest is lost, the sandbox is destroyed: ask for the next one then.
    ///
    /// # Errors
    /// [`Error::ExecutionPending`], [`Error::PersistInUse`] if another server has taken it over, or those of the guest's start.
    pub async fn sandbox(&self) -> Result<Sandbox, Error> {
        let _turn = self.turn().await?;
        let sandbox = self.opened().await?;
        self.goes_on().await?;
        if let Err(error) = self.marked_awake().await? {
            tracing::warn!(%error, "a later process will not hear that changes of the sandbox were lost");
        }
        Ok(sandbox.counting(self.changes.clone()))
    }

    /// Runs code, see [`Kept::execute_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn execute(&self, code: impl Into<String>) -> Result<Execution, Error> {
        self.execute_with(code, ExecuteOptions::default()).await
    }

    /// Runs code. When this returns, its effects are kept; if they could not be, [`Execution::unkept`] says why. Dropping the future interrupts
    /// the code, and then it is not pending.
    ///
    /// # Errors
    /// [`Error::ExecutionPending`], and those of [`Sandbox::execute_with`]. Two leave the execution pending:
    /// [`Error::PersistFailed`] when the store fails in such a way that calls would be made twice later, and [`Error::GuestLost`] when
    /// somebody else has ended the guest while its code waited for calls. [`Error::PersistInUse`] when another server has taken the sandbox
    /// over, or may do so; the message tells if code ran.
    pub async fn execute_with(&self, code: impl Into<String>, mut options: ExecuteOptions) -> Result<Execution, Error> {
        let interrupts = self.interrupts.load(Ordering::Relaxed);
        let turn = self.turn().await?;
        let sandbox = self.written().await?;
        if self.interrupts.load(Ordering::Relaxed) != interrupts {
            let is_cancelled = CancellationToken::new();
            is_cancelled.cancel();
            options.cancel = Some(is_cancelled);
        }
        let is_after_end = self.goes_on().await?;
        let marked = self.marked_awake().await?;
        let unkept = marked
            .err()
            .map(|error| format!("the store could not be written ({error})"))
            .or_else(|| self.inside().unkept.clone());
        let kept = unkept.map_or(Ok(()), |why| Err(format!("the state before it is not kept: {why}")));
        if !is_after_end {
            sandbox.kept(kept); // otherwise the journal is another execution's
        }
        self.inside().unkept = Some("an execution after it was interrupted".to_owned());
        match sandbox.execute_with(code, options).await {
            Ok(execution) => self.ended(&sandbox, execution, turn).await,
            Err(error) => {
                if !sandbox.has_first_guest().await {
                    let _ = self.lost(&sandbox).await; // the next call tries again
                }
                Err(error)
            }
        }
    }

    /// Writes the present state, unless the store has it. Otherwise the next execution does that.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] and [`Error::PersistFailed`] when it cannot be written: the sandbox goes on.
    pub async fn save(&self) -> Result<(), Error> {
        let _turn = self.turn().await?;
        let sandbox = match &self.inside().stage {
            Stage::Open(sandbox) => sandbox.clone(),
            _ => return Ok(()),
        };
        if self.is_changed() && !self.write(&sandbox, None).await? {
            self.lost(&sandbox).await?;
        }
        Ok(())
    }

    /// Ends the guest, also while code runs: then its execution is pending in the next sandbox of this place. A process that ends in good
    /// order calls this first. If it drops the future of an execution instead, that interrupts the code.
    pub async fn destroy(&self) {
        self.is_ended.cancel(); // what waits for its turn never runs
        self.is_written_soon().await;
        let lease;
        let (open, other) = {
            let mut inside = self.inside();
            lease = inside.lease.take();
            let open = match &inside.stage {
                Stage::Open(sandbox) => Some(sandbox.clone()),
                _ => None,
            };
            (open, inside.other.clone())
        };
        for sandbox in open.into_iter().chain(other) {
            sandbox.destroy().await;
        }
        self.works.ended().await;
        let is_free = lease.as_ref().map(|lease| lease.is_free());
        drop(lease); // now the place may be opened again
        if let Some(is_free) = is_free {
            // Late answers of a driver may still hold it, and a store that servers share may be slow.
            let _ = tokio::time::timeout(FREE_TIME, is_free.cancelled()).await;
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work that blocks on the store, unless the user has ended the sandbox: then the store belongs to the next one.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&JournalPlace) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        self.works.run(|| self.journal(), work).await
    }

    /// The place of the journal, unless the user has ended the sandbox.
    fn journal(&self) -> Result<JournalPlace, Error> {
        let lease = self.inside().lease.clone().ok_or(Error::Destroyed)?;
        Ok(self.place.journal(lease))
    }

    /// Notes that the sandbox goes on from its state. The inner error is that of a store that cannot be written now.
    ///
    /// # Errors
    /// [`Error::PersistInUse`] when another server has the sandbox. Then this one must do nothing more with it.
    async fn marked_awake(&self) -> Result<Result<(), Error>, Error> {
        match self.work(JournalPlace::mark_awake).await {
            Err(taken @ Error::PersistInUse(_)) => Err(taken),
            marked => Ok(marked),
        }
    }

    fn builder(&self) -> Result<SandboxBuilder, Error> {
        Ok(self
            .builder
            .clone()
            .journal(Some(self.journal()?), self.settings.hash_seed))
    }

    /// Waits until nobody uses the sandbox, and an earlier one is gone that a dropped future has left. Then the stage is known.
    async fn turn(&self) -> Result<OwnedMutexGuard<()>, Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        self.settled().await?;
        Ok(turn)
    }

    /// Ends a sandbox that a dropped future has left, for whoever has the turn.
    async fn settled(&self) -> Result<(), Error> {
        let other = {
            let inside = self.inside();
            if inside.lease.is_none() || self.is_ended.is_cancelled() {
                return Err(Error::Destroyed);
            }
            inside.other.clone()
        };
        if let Some(other) = other {
            self.leave(&other).await;
        }
        self.read_again_if_unread().await
    }

    /// The sandbox, whose first guest has the stored state.
    async fn opened(&self) -> Result<Sandbox, Error> {
        let open = match &self.inside().stage {
            Stage::Open(sandbox) => Some(sandbox.clone()),
            _ => None,
        };
        if let Some(sandbox) = open {
            if sandbox.has_first_guest().await {
                return Ok(sandbox);
            }
            self.lost(&sandbox).await?;
        }
        if let Some(sandbox) = self.ran_again().await? {
            return Ok(sandbox);
        }
        let suspended = match &self.inside().stage {
            Stage::Stored(suspended) => suspended.clone(),
            Stage::Pending(_, journal) => {
                let execution = journal.record.execution();
                return Err(Error::ExecutionPending(format!(
                    "execution {execution} was under way when its process or its sandbox ended; nothing was done. Call resume() to go on with \
                     it, or discard() to give it up"
                )));
            }
            Stage::Open(_) | Stage::Ended(..) | Stage::Unread { .. } => return Err(failed("its state is not known")),
        };
        let sandbox = built(suspended.begin(self.builder()?)).await?;
        let _turn = self.place.turn().await;
        let lost = match sandbox.take_up(&suspended, MOST_BYTES).await {
            Ok(lost) => lost,
            Err(error) => {
                sandbox.destroy().await;
                return Err(error);
            }
        };
        let is_destroyed = {
            let mut inside = self.inside();
            inside.stage = Stage::Open(sandbox.clone());
            inside.unkept = inexact(&lost);
            inside.changes = self.changes.count();
            inside.lease.is_none()
        };
        if is_destroyed {
            sandbox.destroy().await;
            return Err(Error::Destroyed);
        }
        Ok(sandbox)
    }

    /// Ends a sandbox whose state is gone, or that was destroyed. The state of the store takes its place, and the next execution tells it.
    async fn lost(&self, sandbox: &Sandbox) -> Result<(), Error> {
        self.leave(sandbox).await;
        self.read_again_if_unread().await
    }

    /// Ends a sandbox whose state is gone, and knows no other state.
    async fn leave(&self, sandbox: &Sandbox) {
        {
            let mut inside = self.inside();
            let is_left = match inside.stage {
                Stage::Unread { is_left } => is_left,
                Stage::Ended(_, ref run) => run.after.is_left,
                _ => self.is_ahead(&inside),
            };
            inside.stage = Stage::Unread { is_left };
            inside.other = Some(sandbox.clone());
        }
        self.inside().after_end = None; // it is read again
        sandbox.destroy().await;
        self.inside().other = None;
    }

    async fn read_again_if_unread(&self) -> Result<(), Error> {
        let is_left = match self.inside().stage {
            Stage::Unread { is_left } => is_left,
            _ => return Ok(()),
        };
        self.read_again(is_left).await
    }

    /// Takes the stage from the store. `is_left`: the next execution tells that a sandbox has gone on from it, and that this is lost.
    async fn read_again(&self, is_left: bool) -> Result<(), Error> {
        let found = self.work(JournalPlace::take).await?;
        if let Some((saved, _, journal)) = found {
            let mut stage = Stage::of((saved, is_left, journal))?;
            if let Stage::Ended(_, run) = &mut stage {
                run.after.is_left |= is_left;
            }
            self.inside().stage = stage;
            return Ok(());
        }
        let sandbox = built(self.builder()?).await?;
        let mut inside = self.inside();
        inside.stage = Stage::Open(sandbox);
        inside.unkept = Some("it was not written yet".to_owned());
        match is_left {
            true => Err(Error::GuestLost(
                "the guest ended, and the store has no state; nothing was done. The next call begins with no variables"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// A sandbox whose guests can be recorded.
async fn built(builder: SandboxBuilder) -> Result<Sandbox, Error> {
    let sandbox = builder.build().await?;
    match sandbox.capabilities().backend {
        BackendKind::Bubblewrap | BackendKind::Subprocess => Ok(sandbox),
        other => Err(Error::invalid(
            "persist",
            format!(
                "guests of {} cannot be recorded: use bubblewrap or subprocess",
                other.name()
            ),
        )),
    }
}

/// The error for work that the store refused.
fn refused(error: StateError) -> Error {
    match error {
        StateError::Taken => taken("nothing was done here"),
        error => failed(error),
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::PersistFailed(format!("the kept sandbox cannot be read or written: {error}"))
}
