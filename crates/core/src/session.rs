//! One guest's life as a state machine: [`Input`]s in, [`Effect`]s out. It knows no clock, no worker and no socket.
//!
//! Every command is resolved exactly once, whatever the guest does. A guest that breaks the protocol, dies or does not
//! stop is ended; a fresh one is booted, given the last `context`, and the next command goes on there.

mod ahead;
mod call;
mod checkpoint;
mod contexts;
mod display;
mod files;
mod guesses;
mod history;
mod idle;
mod packages;
mod turn;

use std::collections::VecDeque;

use crate::budget::{Budget, BudgetLimits, Usage};
use crate::deadline::{StopReason, Verdict, earliest};
use crate::error::Error;
use crate::execution::{CodeExecution, StateReport};
use crate::limits::{
    Limits, MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES, MAX_FILES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES,
    MAX_NAMES, MAX_OUTPUT_EVENT_BYTES, MAX_QUEUED_COMMANDS, MAX_SAMPLED_TEXTS, MAX_SOURCE_CACHE_CHARS, MAX_SURVEYED,
    MAX_SURVEYED_COLUMNS, MAX_SURVEYED_NAME_BYTES, MAX_VALUE_DEPTH,
};
use crate::packages::{Wheel, normalized};
use crate::protocol::{
    Encoding, Event, GuestConfig, GuestInfo, PROTOCOL_VERSION, Profile, Request, Stream, SurveyedVariable,
};
use crate::speculate::Prediction;
use crate::stats::Stats;
use ahead::Aheads;
use checkpoint::Checkpoints;
use contexts::Contexts;
use files::oversized_report;
use idle::Pings;
use turn::{Task, Turn};

pub use call::HostFailure;
pub use checkpoint::Fork;
pub use contexts::{Series, Target};
pub use display::ToResult;
pub use files::{CellFile, FileCommand, Look};
pub use packages::{Package, Wanted};

/// The bytes of a message, as the driver holds them.
pub trait Body: Clone {
    /// Its size in bytes.
    fn size(&self) -> usize;
}

impl Body for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }
}

/// What the driver calls a command by; it never uses one twice.
pub type Ticket = u32;

/// A value in a body.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded<B> {
    /// How it is written.
    pub encoding: Encoding,
    /// Its bytes.
    pub body: B,
}

/// What a user asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command<B> {
    /// Start the guest; resolved when it is ready.
    Start,
    /// Make this the variable `context`, in this guest and in every later one.
    Initialize(Encoded<B>),
    /// Run code.
    Execute {
        /// The source.
        code: String,
        /// Guest time in milliseconds, where it is not the session's `timeout`.
        timeout_ms: Option<f64>,
        /// What it may spend of the session's budget.
        budget: BudgetLimits,
    },
    /// Read a variable.
    GetVariable(String),
    /// Assign a variable.
    SetVariable(String, Encoded<B>),
    /// Add to a series of variables that every later guest is given, too.
    Add(Series, Encoded<B>),
    /// Any of these three, with a value that [`Input::Arrived`] will bring; later commands wait.
    Later(Target),
    /// List the variables.
    ListVariables,
    /// Add variables that [`Command::CaptureState`] wrote, of at most so many bytes unpacked.
    OpenState(B, f64),
    /// Write the variables for another session, in at most so many bytes unpacked.
    CaptureState(f64),
    /// Do something with a file.
    File(FileCommand<B>),
    /// Have packages, in this guest and in every later one.
    Load(Wanted),
    /// Save the state.
    Checkpoint,
    /// Go back to the newest checkpoint, or to that of an execution.
    Restore(Option<u32>),
    /// Go back to before the last execution.
    Undo,
    /// Save the state for another session, too.
    Fork,
}

/// What happens to a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Input<B> {
    /// The user asks for something.
    Command(Ticket, Command<B>),
    /// The user asks for something, and has taken it back already: it never runs.
    Aborted(Ticket, Command<B>),
    /// The user takes a command back: a running one is interrupted, a waiting one never runs.
    Cancel(Ticket),
    /// The value that a [`Command::Later`] waits for, or why there will be none.
    Arrived(Ticket, Result<Encoded<B>, Error>),
    /// The user stops what is running.
    Interrupt,
    /// The user is done with the sandbox.
    Destroy,
    /// The guest sent a message.
    Guest(Event, Option<B>),
    /// The guest sent something that is no message.
    BadMessage(String),
    /// The guest is gone, or never came up.
    GuestLost(Error),
    /// A host call has used something up.
    Used(u32, Usage),
    /// What [`Effect::Fetch`] asked for.
    Fetched(Ticket, Result<Vec<Package<B>>, Error>),
    /// A host call came back.
    HostReturned(u32, Result<Encoded<B>, HostFailure>),
    /// Code that is likely to come next, instead of what was told before.
    Hint(Vec<Prediction>),
    /// What there is so far of code that is being written, and the `timeout` that it will come with: whole lines, after which another
    /// statement begins. Empty when nobody writes any more.
    Written(String, Option<f64>),
    /// The newest of what is talked about; guesses are made of it, where there are any.
    Conversation(String),
    /// The same that happens to a session, to the copy of it that runs code ahead.
    Ahead(Box<Self>),
    /// Time has passed: [`Session::wake_at`] is reached.
    Tick,
}

/// What the driver is to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<B> {
    /// Start a fresh guest. Messages posted from now on are for it.
    Boot,
    /// End the guest, now. Nothing that it sent may arrive any more.
    Kill,
    /// The second guest, which is at rest, is not needed any more: end it, or keep it to be booted again. Nothing that it sent may arrive
    /// any more.
    Rest,
    /// Send the guest a message.
    Post(Request, Option<B>),
    /// Call the user's function and feed its return as [`Input::HostReturned`] with this number.
    CallHost {
        /// The call's number; never used twice.
        call: u32,
        /// The function.
        name: String,
        /// The list of arguments, or the only one when that is a str.
        args: Encoded<B>,
        /// What the execution may spend: a recursion is given a child of it.
        budget: Budget,
    },
    /// Send the guest a `Restore` and what its checkpoints hold.
    Restore(Request, Vec<B>),
    /// Send the guest an `Install` and its wheels.
    Install(Request, Vec<B>),
    /// Find packages, fetch them and feed them as [`Input::Fetched`] with this ticket.
    Fetch(Ticket, Wanted),
    /// Nobody waits for this host call any more: abort it.
    AbortHost(u32),
    /// Some of the calls that Python made at once are done.
    Progress(Progress),
    /// Show printed text to whoever asked for it.
    Print(Ticket, Stream, String),
    /// Show a rich output to whoever asked for it, and keep it for the execution.
    Display {
        /// Whose execution it is.
        ticket: Ticket,
        /// What it is.
        mime: String,
        /// Its bytes.
        body: B,
        /// How it stands to the last expression's value.
        to_result: ToResult,
    },
    /// The same for a second guest, which runs code ahead: it is booted, sent something, killed or left at rest. It must be one that can
    /// be had at once.
    Ahead(Box<Self>),
    /// Have the second guest take the place of the first, which is at rest: it is ended, or kept like one of [`Effect::Rest`]. Messages
    /// posted from now on are for the second.
    Promote,
    /// The one answer to a command.
    Resolve(Ticket, Result<Reply<B>, Error>),
}

/// How far the calls are that Python made at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The function that they call.
    pub name: String,
    /// How many are answered, well or badly.
    pub done: u32,
    /// How many of those failed.
    pub failed: u32,
    /// How many there are.
    pub total: u32,
}

/// The answer to a command that went well.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply<B> {
    /// Done.
    Done,
    /// A value.
    Value(Encoded<B>),
    /// An execution, and its final answer where it declared one.
    Execution(Box<CodeExecution>, Option<Encoded<B>>),
    /// The variable that it has become.
    Name(String),
    /// The state is saved or restored, as it is after this execution.
    State(u32),
    /// The packages that were not there before.
    Packages(Vec<Wheel>),
    /// What [`Session::forked`] takes.
    Fork(Box<Fork<B>>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Guest {
    /// There is none; the next command boots one.
    Down,
    /// Booting, until this time at most.
    Booting(f64),
    /// Ready, or in a turn.
    Up,
    /// The user is done with the sandbox.
    Destroyed,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Session<B> {
    limits: Limits,
    host_functions: Vec<String>,
    profile: Profile,
    output_fields: Vec<String>,
    budget: Budget,
    guest: Guest,
    info: GuestInfo,
    /// Whether a guest has finished a turn since the last loss.
    proven: bool,
    turn: Option<Turn<B>>,
    queue: VecDeque<(Ticket, Task<B>)>,
    starting: Vec<Ticket>,
    /// What this guest and every later one is given.
    contexts: Contexts<B>,
    /// Whether code may run before there is a `context`.
    contextless: bool,
    /// Those of them that the guest does not have, or not in their newest form.
    lacking: Vec<String>,
    /// The user's variables as last reported.
    names: Vec<String>,
    /// A loss of state that no execution has told of yet.
    untold_loss: Option<StateReport>,
    checkpoints: Checkpoints<B>,
    /// What is done before anybody asks for it.
    ahead: Aheads<B>,
    forks: bool,
    /// For guests that are workers.
    pings: Option<Pings>,
    /// What was loaded, in this order.
    packages: Vec<Package<B>>,
    last_turn: u32,
    last_execution: u32,
    last_call: u32,
    stats: Stats,
    wake_at: Option<f64>,
    effects: Vec<Effect<B>>,
}

impl<B: Body> Session<B> {
    /// A session without a guest. `host_functions` are the names that Python may call.
    pub fn new(limits: Limits, host_functions: Vec<String>) -> Self {
        let ahead = Aheads::within(limits.max_ahead_share);
        Self {
            limits,
            host_functions,
            profile: Profile::Default,
            output_fields: Vec::new(),
            budget: Budget::new(BudgetLimits::default(), 0.0),
            guest: Guest::Down,
            info: GuestInfo::default(),
            proven: false,
            turn: None,
            queue: VecDeque::new(),
            starting: Vec::new(),
            contexts: Contexts::default(),
            contextless: false,
            lacking: Vec::new(),
            names: Vec::new(),
            untold_loss: None,
            checkpoints: Checkpoints::default(),
            ahead,
            forks: false,
            pings: None,
            packages: Vec::new(),
            last_turn: 0,
            last_execution: 0,
            last_call: 0,
            stats: Stats::default(),
            wake_at: None,
            effects: Vec::new(),
        }
    }

    /// The same for the prompts of `profile`; `output_fields` are the names of the values that `SUBMIT` takes.
    #[must_use]
    pub fn with_profile(self, profile: Profile, output_fields: Vec<String>) -> Self {
        Self {
            profile,
            output_fields,
            ..self
        }
    }

    /// The same for runs that have no `context`: they need not wait for one.
    #[must_use]
    pub fn without_context(self) -> Self {
        Self {
            contextless: true,
            ..self
        }
    }

    /// One whose driver forks the guest for `Effect::Ahead(Effect::Boot)`, so that a copy needs no checkpoint to be what the guest is.
    #[must_use]
    pub fn with_forks(self) -> Self {
        Self { forks: true, ..self }
    }

    /// What its executions may spend, all together.
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// What its executions may spend.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The packages that every guest has: names, normalized, and versions.
    pub fn packages(&self) -> Vec<(String, String)> {
        let known = |package: &Package<B>| (normalized(&package.wheel.name), package.wheel.version.clone());
        self.packages.iter().map(known).collect()
    }

    /// How many executions it was asked for.
    pub fn last_execution(&self) -> u32 {
        self.last_execution
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.clone();
        stats.ahead.code = self.ahead.tallies();
        stats
    }

    /// What the guest said of itself when it was last ready.
    pub fn info(&self) -> &GuestInfo {
        &self.info
    }

    /// Whether there is a guest that is not ready yet, and so has run none of the user's code.
    pub fn is_booting(&self) -> bool {
        matches!(self.guest, Guest::Booting(_))
    }

    /// Whether the user is done with the sandbox.
    pub fn is_destroyed(&self) -> bool {
        self.guest == Guest::Destroyed
    }

    /// Whether its guests have packages that were installed.
    pub fn has_packages(&self) -> bool {
        !self.packages.is_empty()
    }

    /// Whether a guest that has run something has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.guest == Guest::Up && self.turn.is_none() && self.queue.is_empty() && self.last_execution > 0
    }

    /// When the driver has to feed [`Input::Tick`], if nothing else happens.
    pub fn wake_at(&self) -> Option<f64> {
        self.wake_at
    }

    /// Takes one input at time `now` (milliseconds, never going back).
    pub fn handle(&mut self, now: f64, input: Input<B>) -> Vec<Effect<B>> {
        self.ahead.look_at_clock(now);
        match input {
            Input::Command(ticket, command) => self.submit(now, ticket, command, false),
            Input::Aborted(ticket, command) => self.submit(now, ticket, command, true),
            Input::Destroy => self.destroy(),
            _ if self.guest == Guest::Destroyed => {}
            Input::Cancel(ticket) => self.cancel(now, ticket),
            Input::Arrived(ticket, value) => self.arrived(ticket, value),
            Input::Interrupt => self.interrupt(now),
            Input::Guest(event, body) => self.guest_event(now, event, body),
            Input::BadMessage(what) => self.violation(now, &what),
            Input::GuestLost(error) => self.guest_gone(now, error),
            Input::Fetched(ticket, result) => self.fetched(ticket, result),
            Input::Used(call, usage) => self.host_used(call, &usage),
            Input::HostReturned(call, result) => self.host_returned(now, call, result),
            Input::Hint(predictions) => self.ahead.predict(predictions),
            Input::Written(code, timeout_ms) if self.forks || self.saves() => self.ahead.written(code, timeout_ms),
            Input::Written(..) => {} // there will be no copy
            Input::Conversation(text) => self.converse(now, &text),
            Input::Ahead(input) => self.ahead_input(now, *input),
            Input::Tick => {}
        }
        self.check_time(now);
        self.pump(now);
        std::mem::take(&mut self.effects)
    }

    fn submit(&mut self, now: f64, ticket: Ticket, command: Command<B>, aborted: bool) {
        let refusal = match &command {
            _ if self.guest == Guest::Destroyed => Some(Error::Destroyed),
            _ if self.queue.len() + self.starting.len() >= MAX_QUEUED_COMMANDS => Some(Error::invalid(
                "execute",
                format!("{MAX_QUEUED_COMMANDS} calls are waiting already; nothing was done"),
            )),
            Command::Start | Command::Initialize(_) | Command::Later(Target::Context) | Command::Load(_) => None,
            _ if !self.has_or_awaits_context() => Some(Error::NotInitialized),
            _ => None,
        };
        if let Some(error) = refusal {
            return self.resolve(ticket, Err(error));
        }
        if matches!(command, Command::Start) {
            if self.guest == Guest::Up {
                return self.resolve(ticket, Ok(Reply::Done));
            }
            self.starting.push(ticket);
        } else {
            let task = match self.task(now, command) {
                Ok(task) => task,
                Err(reply) => return self.resolve(ticket, Ok(reply)),
            };
            if aborted {
                return self.resolve(ticket, task.never_ran());
            }
            if let Task::Load(load) = &task {
                self.effects.push(Effect::Fetch(ticket, load.wanted.clone()));
            }
            self.queue.push_back((ticket, task));
        }
        if self.guest == Guest::Down {
            self.boot(now);
        }
    }

    fn has_or_awaits_context(&self) -> bool {
        let turn = self.turn.iter().map(|turn| &turn.task);
        self.may_run()
            || turn
                .chain(self.queue.iter().map(|(_, task)| task))
                .any(Task::initializes)
    }

    fn may_run(&self) -> bool {
        self.contextless || self.contexts.is_initialized()
    }

    fn cancel(&mut self, now: f64, ticket: Ticket) {
        if self.turn.as_ref().is_some_and(|turn| turn.ticket == Some(ticket)) {
            self.stop_turn(now, StopReason::Interrupt);
        } else if let Some(at) = self.queue.iter().position(|(waiting, _)| *waiting == ticket)
            && let Some((_, task)) = self.queue.remove(at)
        {
            self.resolve(ticket, task.never_ran());
        }
    }

    fn destroy(&mut self) {
        if self.guest == Guest::Destroyed {
            return;
        }
        self.end_guest(Guest::Destroyed);
        let turn = self.turn.take().and_then(|turn| turn.ticket);
        let queued = std::mem::take(&mut self.queue).into_iter().map(|(ticket, _)| ticket);
        let starting = std::mem::take(&mut self.starting).into_iter();
        let reverting = self.take_reverting();
        for ticket in turn.into_iter().chain(queued).chain(starting).chain(reverting) {
            self.resolve(ticket, Err(Error::Destroyed));
        }
        self.contexts.clear();
    }

    // ---- the guest's life ----

    fn boot(&mut self, now: f64) {
        self.guest = Guest::Booting(now + self.limits.boot_timeout_ms);
        self.effects.push(Effect::Boot);
        self.stats.guests += 1;
        let config = GuestConfig {
            max_output_chars: self.limits.max_output_chars,
            max_value_bytes: self.limits.max_value_bytes,
            max_memory_bytes: self.limits.max_memory_bytes,
            max_value_depth: MAX_VALUE_DEPTH,
            max_source_cache: MAX_SOURCE_CACHE_CHARS,
            max_displays: MAX_DISPLAYS,
            max_display_bytes: MAX_DISPLAY_BYTES.min(self.limits.max_value_bytes),
            max_displays_bytes: MAX_DISPLAYS_BYTES,
            max_file_bytes: self.limits.max_file_bytes,
            max_files: MAX_FILES,
            host_functions: self.host_functions.clone(),
            max_host_calls: self.limits.max_host_calls,
            profile: self.profile,
            output_fields: self.output_fields.clone(),
        };
        self.post(
            Request::Init {
                version: PROTOCOL_VERSION,
                config,
                restores: self.checkpoints.is_saved(),
            },
            None,
        );
    }

    fn ready(&mut self, now: f64, version: u32, info: GuestInfo) {
        if version != PROTOCOL_VERSION {
            let what =
                format!("it speaks protocol {version}, this host {PROTOCOL_VERSION}; install both from one release");
            return self.boot_failed(Error::BootFailed(what));
        }
        self.guest = Guest::Up;
        self.info = info;
        for ticket in std::mem::take(&mut self.starting) {
            self.resolve(ticket, Ok(Reply::Done));
        }
        if !self.install_again(now) {
            self.settle(now);
        }
    }

    /// Gives a fresh guest that has its packages the state of the session.
    fn settle(&mut self, now: f64) {
        if !self.restore(now) {
            self.lacking = self.contexts.names().collect();
            self.restore_contexts(now);
        }
    }

    /// Without a guest that starts, everything that waits for one is refused; the next command tries again.
    fn boot_failed(&mut self, error: Error) {
        self.end_guest(Guest::Down);
        self.turn = None;
        let waiting = std::mem::take(&mut self.queue);
        let starting = std::mem::take(&mut self.starting).into_iter();
        let reverting = self.take_reverting();
        for ticket in waiting
            .into_iter()
            .map(|(ticket, _)| ticket)
            .chain(starting)
            .chain(reverting)
        {
            self.resolve(ticket, Err(error.clone()));
        }
    }

    fn guest_gone(&mut self, now: f64, error: Error) {
        let restoring = self.turn.as_ref().is_some_and(|turn| turn.ticket.is_none());
        match self.guest {
            Guest::Down | Guest::Destroyed => {}
            Guest::Booting(_) => self.boot_failed(match error {
                Error::GuestLost(why) => Error::BootFailed(why),
                error => error,
            }),
            Guest::Up if restoring => self.not_restored(now, &error),
            Guest::Up => self.lose_guest(now, &error),
        }
    }

    pub(super) fn not_restored(&mut self, now: f64, why: &Error) {
        if let Some(Turn {
            task: Task::Restore { .. },
            ..
        }) = self.turn
        {
            return self.not_restored_exactly(now, why);
        }
        let why = if let Error::GuestLost(why) = why {
            why.clone()
        } else {
            why.to_string()
        };
        let what = match self.turn.as_ref().map(|turn| &turn.task) {
            Some(Task::Install(_)) => "its packages were not installed again",
            _ => "context was not restored",
        };
        self.boot_failed(Error::BootFailed(format!("{what}: {why}")));
    }

    /// Ends the guest and resolves the turn that it was in, then boots a fresh one.
    fn lose_guest(&mut self, now: f64, error: &Error) {
        let reason = match error {
            Error::Timeout(_) => "the guest did not stop and was terminated",
            Error::Protocol(_) => "the guest broke the protocol and was terminated",
            _ => "the guest crashed",
        };
        let mut loss = self.loss(reason, !matches!(error, Error::Timeout(_)));
        loss.add_earlier(self.untold_loss.take());
        self.end_guest(Guest::Down);
        match self.turn.take() {
            Some(Turn {
                task: Task::Execute(execution),
                deadline,
                ticket: Some(ticket),
                ..
            }) => {
                let execution = execution.lost(&deadline, now, error, loss);
                self.resolve(ticket, Ok(Reply::Execution(Box::new(execution), None)));
            }
            turn => {
                let consequence = loss.consequence();
                self.untold_loss = Some(loss);
                if let Some(ticket) = turn.and_then(|turn| turn.ticket) {
                    let error = match error {
                        Error::Protocol(why) => Error::Protocol(format!("{why}; {consequence}")),
                        Error::GuestLost(why) => Error::GuestLost(format!("{why}; {consequence}")),
                        _ => Error::GuestLost(format!("{error}; {consequence}")),
                    };
                    self.resolve(ticket, Err(error));
                }
            }
        }
        // A guest that dies before it has done anything would do so again: then the next command boots one. So it does where a server
        // has gone away, or has had enough of a sandbox that nobody uses.
        let is_proven = std::mem::take(&mut self.proven) && !matches!(error, Error::BackendUnavailable(_));
        if is_proven || !self.queue.is_empty() {
            self.boot(now);
        }
    }

    fn end_guest(&mut self, next: Guest) {
        self.abort_calls();
        self.drop_ahead();
        if matches!(self.guest, Guest::Booting(_) | Guest::Up) {
            self.effects.push(Effect::Kill);
        }
        self.guest = next;
        self.forget_ping();
        self.names.clear();
        self.checkpoints.guest_ended();
    }

    fn violation(&mut self, now: f64, what: &str) {
        let what: String = what.chars().take(300).collect();
        match self.guest {
            Guest::Booting(_) => self.boot_failed(Error::BootFailed(format!("it broke the protocol: {what}"))),
            _ => self.guest_gone(now, Error::Protocol(what)),
        }
    }

    // ---- time ----

    fn check_time(&mut self, now: f64) {
        if let Guest::Booting(ends_at) = self.guest
            && now >= ends_at
        {
            let ms = self.limits.boot_timeout_ms;
            self.boot_failed(Error::BootFailed(format!(
                "it was not ready after {ms} ms (bootTimeout)"
            )));
        }
        self.check_save(now);
        self.check_ahead(now);
        self.check_ping(now);
        self.expire_calls(now);
        match self.turn.as_mut().map(|turn| turn.deadline.check(now)) {
            Some(Verdict::Interrupt(reason)) => self.ask_to_stop(now, reason),
            Some(Verdict::Kill(reason)) => {
                let why = match reason {
                    StopReason::Interrupt => "it was interrupted",
                    StopReason::Timeout => "its guest time was over",
                    StopReason::WallTimeout => "its total time was over",
                    StopReason::Budget => "the time of its budget was over",
                };
                let ms = self.limits.grace_period_ms;
                self.guest_gone(
                    now,
                    Error::Timeout(format!("it did not stop within {ms} ms after {why}")),
                );
            }
            _ => {}
        }
    }

    fn plan_wake(&mut self) {
        let boot = if let Guest::Booting(ends_at) = self.guest {
            Some(ends_at)
        } else {
            None
        };
        let turn = self
            .turn
            .as_ref()
            .and_then(|turn| earliest(turn.deadline.wake_at(), turn.calls.next_expiry()));
        let saves = earliest(earliest(self.saves_at(), self.save_ends_at()), self.ping_ends_at());
        let is_idle = self.guest == Guest::Up && self.turn.is_none() && self.queue.is_empty();
        self.wake_at = earliest(earliest(boot, turn), earliest(saves, self.ahead.wake_at(is_idle)));
    }

    /// Stops the execution that runs. One that would run, were it not for the session's own affairs, never does.
    fn interrupt(&mut self, now: f64) {
        let next = (!self.runs_for_somebody()).then(|| self.take_next_execution());
        match next.flatten() {
            Some((ticket, task)) => self.resolve(ticket, task.never_ran()),
            None => self.stop_turn(now, StopReason::Interrupt),
        }
    }

    fn stop_turn(&mut self, now: f64, reason: StopReason) {
        if self
            .turn
            .as_mut()
            .is_some_and(|turn| turn.can_be_stopped() && turn.deadline.stop(now, reason))
        {
            self.ask_to_stop(now, reason);
        }
    }

    fn ask_to_stop(&mut self, now: f64, reason: StopReason) {
        self.abort_calls();
        if let Some(turn) = &mut self.turn {
            turn.deadline.resume(now);
            let turn = turn.number;
            self.post(Request::Interrupt { turn, reason }, None);
        }
    }

    // ---- turns ----

    fn pump(&mut self, now: f64) {
        while self.guest == Guest::Up
            && self.turn.is_none()
            && !self.waits_for_ahead(now)
            && !self.waits_for_save()
            && !self.waits_for_value()
            && !self.waits_for_packages()
            && let Some((ticket, task)) = self.queue.pop_front()
        {
            if let Task::State(ask) = task {
                self.do_state(now, ticket, ask);
                continue;
            }
            if let Task::Load(load) = task {
                self.load(now, ticket, load);
                continue;
            }
            if let (Task::Execute(_), Some(why)) = (&task, self.budget.overdue(now)) {
                self.resolve(ticket, task.unaffordable(&why));
            } else if let Some(ahead) = self.take_ahead_of(now, &task) {
                self.promote(now, ticket, task, ahead);
            } else if self.may_run() || task.initializes() {
                self.begin(now, Some(ticket), task);
            } else {
                // The `initialize` that it waited for failed.
                self.resolve(ticket, Err(Error::NotInitialized));
            }
        }
        self.survey();
        self.save(now);
        self.speculate(now);
        self.note_wait(now);
        self.plan_wake();
    }

    fn guest_event(&mut self, now: f64, event: Event, body: Option<B>) {
        let is_value = !matches!(event, Event::Saved { .. });
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        if body
            .as_ref()
            .is_some_and(|body| is_value && body.size() as f64 > self.limits.max_value_bytes)
        {
            return self.violation(now, "a body larger than maxValueSize");
        }
        if let Some(what) = oversized(&event) {
            return self.violation(now, what);
        }
        match (self.guest, event) {
            (Guest::Down | Guest::Destroyed, _) => {}
            (Guest::Booting(_), Event::Ready { version, guest }) => self.ready(now, version, guest),
            (Guest::Booting(_), Event::BootFailed { message } | Event::Fatal { message }) => {
                self.boot_failed(Error::BootFailed(message));
            }
            (
                Guest::Up,
                Event::Saved {
                    checkpoint,
                    full,
                    lost,
                    spent,
                },
            ) => self.saved(now, checkpoint, full, body, lost, spent),
            (Guest::Up, Event::NotSaved { checkpoint, reason }) => self.not_saved(now, checkpoint, reason),
            (Guest::Up, Event::Checked { check, plain }) => self.checked(now, check, plain),
            (Guest::Up, Event::Surveyed { survey, variables }) => self.surveyed(now, survey, variables),
            (Guest::Up, Event::Pong { ping }) => self.ponged(now, ping),
            (Guest::Up, Event::Waiting { .. }) if self.forks && self.turn.is_some() => {} // the rest is on its way
            (Guest::Up, Event::Fatal { message }) => self.guest_gone(now, Error::GuestLost(message)),
            (Guest::Up, _) if self.awaits_pong() => self.violation(now, "an event of a turn before it was idle"),
            (Guest::Up, event) => self.turn_event(now, event, body),
            (Guest::Booting(_), event) => self.violation(now, &format!("{} before it was ready", kind(&event))),
        }
    }

    fn post(&mut self, request: Request, body: Option<B>) {
        self.checkpoints.sent(&request);
        self.effects.push(Effect::Post(request, body));
    }

    fn resolve(&mut self, ticket: Ticket, reply: Result<Reply<B>, Error>) {
        if let Ok(Reply::Execution(execution, _)) = &reply {
            self.stats.count(execution);
        }
        self.effects.push(Effect::Resolve(ticket, reply));
    }
}

/// An event's name, for messages.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Ready { .. } => "`ready`",
        Event::BootFailed { .. } => "`bootFailed`",
        Event::Output { .. } => "`output`",
        Event::Display { .. } => "`display`",
        Event::HostCall { .. } => "`hostCall`",
        Event::Executed { .. } => "`executed`",
        Event::Value { .. } => "`value`",
        Event::Done { .. } => "`done`",
        Event::Restored { .. } => "`restored`",
        Event::Refused { .. } => "`refused`",
        Event::Fatal { .. } => "`fatal`",
        Event::Part { .. } => "`part`",
        Event::Saved { .. } => "`saved`",
        Event::NotSaved { .. } => "`notSaved`",
        Event::Snapshot { .. } => "`snapshot`",
        Event::External { .. } => "`external`",
        Event::Promoted { .. } => "`promoted`",
        Event::Waiting { .. } => "`waiting`",
        Event::Checked { .. } => "`checked`",
        Event::Surveyed { .. } => "`surveyed`",
        Event::Pong { .. } => "`pong`",
    }
}

/// What in an event is larger than a guest of ours would ever make it.
fn oversized(event: &Event) -> Option<&'static str> {
    let too_long = match event {
        Event::Output { text, .. } => text.len() > MAX_OUTPUT_EVENT_BYTES,
        Event::HostCall { name, .. } | Event::Display { mime: name, .. } => name.len() > MAX_NAME_BYTES,
        Event::BootFailed { message }
        | Event::Fatal { message }
        | Event::Refused { message, .. }
        | Event::NotSaved {
            reason: Some(message), ..
        } => message.len() > MAX_MESSAGE_BYTES,
        Event::Ready { guest, .. } => {
            let texts = [
                &guest.bridge,
                &guest.python,
                guest.pyodide.as_ref().unwrap_or(&guest.python),
            ];
            texts.iter().any(|text| text.len() > MAX_NAME_BYTES)
        }
        Event::Executed { execution, .. } => {
            let names = execution.names.as_deref().unwrap_or_default();
            execution
                .error_type
                .as_ref()
                .is_some_and(|name| name.len() > MAX_NAME_BYTES)
                || names.len() > MAX_NAMES
                || names.iter().any(|name| name.len() > MAX_NAME_BYTES)
                || oversized_report(&execution.files)
        }
        Event::Value { .. }
        | Event::Done { .. }
        | Event::Part { .. }
        | Event::Snapshot { .. }
        | Event::External { .. }
        | Event::Promoted { .. }
        | Event::Waiting { .. }
        | Event::Checked { .. }
        | Event::Pong { .. }
        | Event::NotSaved { .. } => false,
        Event::Surveyed { variables, .. } => {
            variables.len() > MAX_SURVEYED || variables.iter().any(is_oversized_variable)
        }
        Event::Saved { lost, .. } | Event::Restored { lost, .. } => {
            lost.len() > MAX_NAMES
                || lost
                    .iter()
                    .any(|lost| lost.name.len() > MAX_NAME_BYTES || lost.reason.len() > MAX_NAME_BYTES)
        }
    };
    too_long.then_some("an oversized event")
}

fn is_oversized_variable(variable: &SurveyedVariable) -> bool {
    let columns = variable.columns.iter().map(|column| &column.name);
    let samples = || variable.columns.iter().filter_map(|column| column.sample.as_ref());
    let texts = samples().flat_map(|sample| &sample.texts);
    variable.columns.len() > MAX_SURVEYED_COLUMNS
        || samples().any(|sample| sample.texts.len() > MAX_SAMPLED_TEXTS)
        || [&variable.name, &variable.type_name]
            .into_iter()
            .chain(columns)
            .chain(texts)
            .any(|name| name.len() > MAX_SURVEYED_NAME_BYTES)
}
