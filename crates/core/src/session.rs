//! A sandbox's session as a state machine: [`Input`]s in, [`Effect`]s out. It has no clock, no worker and no socket.
//!
//! Every command gets exactly one answer, whatever the guest does. A guest that breaks the protocol, dies or does not stop is ended. A
//! fresh guest is booted and given the saved state, or else the last `context`. Then the next command runs there.
//!
//! A session has an *interpreter* and *shadows*. The interpreter is a sequence of states, with the guest that holds the newest one. A
//! shadow is a copy of the interpreter that runs code which may come. Each guest has a [`Slot`]: one for the interpreter's guest, and one
//! for each shadow's. A *job* is a task that a guest can be given. An *exchange* is a job that a guest has begun, with its messages.
//!
//! Each part collects its own effects. [`Session`] passes them on, and tells the shadows of changes of the interpreter's state.
//!
//! | file | holds |
//! |---|---|
//! | `interpreter.rs` | the guest's life and clock; sorts its messages |
//! | `commands.rs` | the queue of users' commands, and the choice of the next one |
//! | `begin_and_end.rs` | the interpreter's part in an exchange: its beginning, and the results of its end |
//! | `exchange.rs`, `execution.rs`, `calls.rs`, `display.rs`, `variables.rs`, `files.rs` | one exchange: its job, output and host calls |
//! | `saves.rs`, `checkpoints.rs`, `checkpoint_chain.rs` | the time of saves, the states that guests are given, and the kept checkpoints |
//! | `setup.rs` | what a driver declares of a session before its first input |
//! | `copies.rs` | sessions that continue from another session's state: forks, shadows, and kept sessions |
//! | `past.rs` | sessions that go on after the past of another, whose variables were written by value |
//! | `kept_guests.rs` | checkpoints that are paused copies of the guest |
//! | `records.rs`, `resuming.rs`, `sketch.rs` | what the world answered during an execution, and a later session that goes on with it |
//! | `going_back.rs`, `journal.rs` | the return to an earlier state, and the executions that make a state again which was not saved |
//! | `contexts.rs`, `packages.rs` | values and packages that every guest is given |
//! | `pings.rs`, `oversized.rs` | checks on guests: a proof of idleness, and bounds on events |
//! | `shadows.rs`, `guesses.rs` | the choice of code to run ahead, and its limits |
//! | `shadow.rs` | one shadow, and its promotion |
//! | `calls_ahead.rs` | host calls that are begun before their code is asked for |
//!
//! Decisions: `docs/internals/running-ahead.md`.

mod begin_and_end;
mod calls;
mod calls_ahead;
mod checkpoint_chain;
mod checkpoints;
mod commands;
mod contexts;
mod copies;
mod display;
mod exchange;
mod execution;
mod files;
mod going_back;
mod guesses;
mod interpreter;
mod journal;
mod kept_guests;
mod oversized;
mod packages;
mod past;
mod pings;
mod records;
mod resuming;
mod saves;
mod setup;
mod shadow;
mod shadows;
mod sketch;
mod variables;

use crate::budget::{Budget, Usage};
use crate::deadline::earliest;
use crate::error::Error;
use crate::execution::CodeExecution;
use crate::limits::{Limits, MAX_LINE_CHARS};
use crate::packages::{Wheel, normalized};
use crate::predictions::Prediction;
use crate::protocol::{Encoding, Event, GuestInfo, Profile, Request, Stream};
use crate::stats::Stats;
use commands::Next;
use copies::KeptMark;
use interpreter::{Config, Guest, Interpreter, Note};
use serde::{Deserialize, Serialize};
use shadows::{ShadowEffect, Shadows};

pub use calls::{Call, Progress};
pub use checkpoints::StateCommand;
pub use contexts::{Series, Target};
pub use copies::{Fork, HistoryEntry, Kept};
pub use display::ToResult;
pub use execution::Execute;
pub use files::{CellFile, FileCommand, Look};
pub use packages::{Package, Wanted};
pub use past::Past;
pub use records::{Beginning, Entry, Record, RecordChange, Strictness, Waits};
pub use variables::VariableCommand;

/// The bytes of a message, in the form in which the driver holds them.
pub trait Body: Clone {
    /// The size in bytes.
    fn size(&self) -> usize;
    /// Returns true if both hold the same bytes.
    fn is_same(&self, other: &Self) -> bool;
    /// A body with the bytes of all of these.
    fn joined(parts: &[&Self]) -> Self;
    /// The first bytes, at most so many.
    fn first(&self, most: usize) -> Vec<u8>;
}

impl Body for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn joined(parts: &[&Self]) -> Self {
        parts.iter().flat_map(|part| part.iter().copied()).collect()
    }

    fn first(&self, most: usize) -> Vec<u8> {
        self.iter().copied().take(most).collect()
    }
}

/// The driver's number for a command. A driver never uses a number twice.
pub type Ticket = u32;

/// A value in a body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Encoded<B> {
    /// The value's encoding.
    pub encoding: Encoding,
    /// The value's bytes.
    pub body: B,
}

/// A request of the user.
#[derive(Debug, Clone, PartialEq)]
pub enum Command<B> {
    /// Starts the guest. Answered when it is ready.
    Start,
    /// Runs code.
    Execute(Execute),
    /// Reads, assigns, lists, adds or captures variables.
    Variable(VariableCommand<B>),
    /// Assigns a value that [`Input::Arrived`] brings. Commands after this one wait.
    Later(Target),
    /// Changes settings from the next execution on.
    Configure(Settings),
    /// Reads, writes, lists or removes files, describes a cell, or looks at code that is being written.
    File(FileCommand<B>),
    /// Installs packages, in this guest and every later one.
    Load(Wanted),
    /// Saves the state, or goes back to an earlier one.
    State(StateCommand),
    /// Goes on with the pending execution. Calls whose answer is given here are not made again. Each has its place among the calls.
    Resume(Vec<(u32, Encoded<B>)>),
    /// Gives the pending execution up. The state stays as it was before it.
    Discard,
}

/// Settings to change. `None` leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The names of the functions that Python may call.
    pub host_functions: Option<Vec<String>>,
    /// The names of the values that `SUBMIT` takes.
    pub output_fields: Option<Vec<String>>,
}

/// A shadow's number. It is never used twice.
pub type ShadowId = u32;

/// A place for a guest. A driver holds at most one guest in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The session's own guest.
    Main,
    /// The guest of a shadow, which runs code that may come.
    Shadow(ShadowId),
}

/// An input from a guest, whatever its slot. Its contents are untrusted.
#[derive(Debug, Clone, PartialEq)]
pub enum GuestInput<B> {
    /// A message.
    Event(Event, Option<B>),
    /// Data that is not a message.
    BadMessage(String),
    /// The guest's end, or its failure to start.
    Lost(Error),
}

/// An action of the driver on a guest, whatever its slot.
#[derive(Debug, Clone, PartialEq)]
pub enum GuestEffect<B> {
    /// Starts a fresh guest in the slot. Later posts to the slot go to this guest. A shadow's guest must be one that is available at once.
    Boot,
    /// Starts a copy of a paused guest in the slot: of the checkpoint with this body. Later posts to the slot go to this copy. Only sessions
    /// [with paused guests](Session::with_paused_guests) ask for this.
    Revive(B),
    /// Ends the guest now. No message of it may arrive afterwards.
    Kill,
    /// Sends the guest a message.
    Post(Request, Option<B>),
    /// Sends the guest a `Restore`, with the contents of its checkpoints.
    Restore(Request, Vec<B>),
    /// Sends the guest an `Install`, with its wheels.
    Install(Request, Vec<B>),
}

/// An input of a session: an event to which it reacts.
#[derive(Debug, Clone, PartialEq)]
pub enum Input<B> {
    /// The user gives a command.
    Command(Ticket, Command<B>),
    /// The user gives a command that is already cancelled. It never runs.
    Aborted(Ticket, Command<B>),
    /// The user cancels a command. A running command is interrupted; a waiting one never runs.
    Cancel(Ticket),
    /// The value for a [`Command::Later`], or the reason for which there is none.
    Arrived(Ticket, Result<Encoded<B>, Error>),
    /// The user stops the running execution.
    Interrupt,
    /// The user ends the sandbox.
    Destroy,
    /// The guest in this slot sent something.
    Guest(Slot, GuestInput<B>),
    /// A host call used a part of the budget.
    Used(u32, Usage),
    /// A host call waits for approval before its function runs. Time is not counted for the call until [`Input::Approved`].
    NeedsApproval(u32),
    /// A host call's function may run now.
    Approved(u32),
    /// The answer to [`HostEffect::Fetch`].
    Fetched(Ticket, Result<Vec<Package<B>>, Error>),
    /// A host call returned. An error is the reason for which the user's function failed, as text for Python.
    HostReturned(u32, Result<Encoded<B>, String>),
    /// Code that may come next, the likeliest first. Replaces earlier hints.
    Hint(Vec<Prediction>),
    /// The present part of code that is being written, and its future `timeout`. It has whole lines, up to the beginning of another
    /// statement. It is empty when nobody writes any more.
    Written(String, Option<f64>),
    /// The newest part of the conversation. Guesses use it, if the session makes them.
    Conversation(String),
    /// The guests of shadows take more memory than the machine has for them.
    MemoryIsShort,
    /// The driver has put the state before this execution into the guest. The execution is pending now. An earlier session has not finished
    /// it, or it has ended and is to run again.
    Recorded(Box<Record<B>>, Strictness),
    /// The driver has the present state by value ([`VariableCommand::Capture`]), or has not, because of this. If the next job is an
    /// execution, it is recorded for the driver; without the state, it cannot be resumed. Only the first guest's state counts.
    StateKept(Result<(), String>),
    /// A paused guest is gone, and the checkpoint with this number with it. The text is the reason.
    CheckpointGone(u32, String),
    /// The time of [`Session::wake_at`] has come.
    Tick,
}

/// A step for the driver. Steps must be done in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<B> {
    /// Acts on the guest in a slot.
    Guest(Slot, GuestEffect<B>),
    /// Ends a shadow's idle guest, or keeps it to be booted again in another slot. No message of it may arrive afterwards.
    Park(ShadowId),
    /// Moves a shadow's guest to the main slot, whose guest is idle. That guest is ended, or kept as by [`Effect::Park`]. The shadow's slot
    /// becomes empty, and later posts to the main slot go to the moved guest.
    Promote(ShadowId),
    /// Acts on the host's side.
    Host(HostEffect<B>),
}

/// An action of the driver for the sandbox's user. Shadows cannot cause one, but for host calls that are begun ahead.
#[derive(Debug, Clone, PartialEq)]
pub enum HostEffect<B> {
    /// Calls the user's function. Its result must come back as [`Input::HostReturned`] with the same number.
    CallHost(Call<B>),
    /// Reports that the code which made a call ahead is asked for: Python now waits for the call, or will when it has returned.
    ClaimHost(u32),
    /// Aborts a host call for which nobody waits any more. A call that was begun ahead may have returned already.
    AbortHost(u32),
    /// Reports the progress of calls that Python made at once.
    Progress(Progress),
    /// Finds and fetches packages. They must come back as [`Input::Fetched`] with this ticket.
    Fetch(Ticket, Wanted),
    /// Shows printed text to the execution's caller.
    Print(Ticket, Stream, String),
    /// Shows a rich output to the execution's caller, and keeps it for the execution's result.
    Display {
        /// The execution's command.
        ticket: Ticket,
        /// The output's mime type.
        mime: String,
        /// The output's bytes.
        body: B,
        /// The output's relation to the last expression's value.
        to_result: ToResult,
    },
    /// Keeps the session, which differs from what was last kept.
    Keep(Box<Kept<B>>),
    /// Writes a part of an execution's record. Calls and replies that follow wait until it is written.
    Note(RecordChange<B>),
    /// Answers a command. Each command gets one answer.
    Resolve(Ticket, Result<Reply<B>, Error>),
}

/// The answer to a command that succeeded.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply<B> {
    /// The command is done.
    Done,
    /// The value that was asked for.
    Value(Encoded<B>),
    /// The execution's result, and its final answer if it declared one.
    Execution(Box<CodeExecution>, Option<Encoded<B>>),
    /// The name of the variable that got the value.
    Name(String),
    /// The state after this execution was saved or restored.
    State(u32),
    /// The packages that were newly installed.
    Packages(Vec<Wheel>),
    /// The argument of [`Session::forked`].
    Fork(Box<Fork<B>>),
}

/// A session. The [module](self) describes it.
#[derive(Debug)]
pub struct Session<B> {
    interpreter: Interpreter<B>,
    shadows: Shadows<B>,
    effects: Vec<Effect<B>>,
    /// The mark of the state that was last kept, if the session is kept.
    kept: Option<KeptMark>,
}

impl<B: Body> Session<B> {
    /// A session without a guest. `host_functions` are the names of the functions that Python may call.
    pub fn new(limits: Limits, host_functions: Vec<String>) -> Self {
        Self::of(Interpreter::new(Config {
            state_timeout_ms: limits.timeout_ms,
            limits,
            host_functions,
            profile: Profile::Default,
            output_fields: Vec::new(),
            max_result_bytes: 0.0,
        }))
    }

    /// A session without a guest that continues from another session's state.
    pub fn forked(fork: Fork<B>) -> Self {
        Self::of(Interpreter::forked(fork))
    }

    fn of(interpreter: Interpreter<B>) -> Self {
        let shadows = Shadows::within(&interpreter.config.limits);
        Self {
            interpreter,
            shadows,
            effects: Vec::new(),
            kept: None,
        }
    }

    /// All that a later session needs to continue from the newest checkpoint.
    pub fn kept(&self) -> Kept<B> {
        self.interpreter.kept()
    }

    /// The checkpoints to which the user can go back, the newest first.
    pub fn history(&self) -> Vec<HistoryEntry> {
        self.interpreter.history()
    }

    /// The budget for all executions together.
    pub fn budget(&self) -> &Budget {
        &self.interpreter.budget
    }

    /// The packages that every guest has: normalized names, and versions.
    pub fn packages(&self) -> Vec<(String, String)> {
        let known = |package: &Package<B>| (normalized(&package.wheel.name), package.wheel.version.clone());
        self.interpreter.packages.iter().map(known).collect()
    }

    /// The session's limits.
    pub fn limits(&self) -> &Limits {
        &self.interpreter.config.limits
    }

    /// The number of executions that were requested.
    pub fn last_execution(&self) -> u32 {
        self.interpreter.last_execution
    }

    /// The beginning of a line of the code that runs, from 1. `None` if the running execution has another number, or has no such line.
    pub fn line(&self, execution: u32, number: u32) -> Option<String> {
        let line = self.interpreter.line(execution, number)?;
        Some(line.chars().take(MAX_LINE_CHARS).collect())
    }

    /// The counts of the session's work so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.interpreter.stats.clone();
        stats.ahead.code = self.shadows.tallies();
        stats.ahead.calls.add(&self.shadows.calls.tally);
        stats
    }

    /// The guesses for the present state, the most worthwhile first.
    pub fn predictions(&self) -> Vec<Prediction> {
        self.shadows.predictions()
    }

    /// The facts that the guest told of itself when it was last ready.
    pub fn info(&self) -> &GuestInfo {
        &self.interpreter.info
    }

    /// Returns true if a guest is starting. It has run none of the user's code yet.
    pub fn is_booting(&self) -> bool {
        matches!(self.interpreter.guest, Guest::Booting(_))
    }

    /// Returns true if the user ended the sandbox.
    pub fn is_destroyed(&self) -> bool {
        self.interpreter.guest == Guest::Destroyed
    }

    /// Returns true if the guest is the first one. Another one does not have what the driver has put into the first.
    pub fn has_first_guest(&self) -> bool {
        self.interpreter.has_first_guest()
    }

    /// Returns true if packages were installed.
    pub fn has_packages(&self) -> bool {
        !self.interpreter.packages.is_empty()
    }

    /// Returns true if the guest has run something, and has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.interpreter.is_at_rest() && self.interpreter.last_execution > 0
    }

    /// The time at which the driver must feed [`Input::Tick`], if no other input comes before.
    pub fn wake_at(&self) -> Option<f64> {
        let interpreter = self.interpreter.wake_at(self.shadows.want_a_copy());
        earliest(interpreter, self.shadows.wake_at(self.interpreter.is_at_rest()))
    }

    /// Takes one input. `now` is in milliseconds, and never goes back.
    pub fn handle(&mut self, now: f64, input: Input<B>) -> Vec<Effect<B>> {
        self.shadows.look_at_clock(now);
        let interpreter = &mut self.interpreter;
        match input {
            Input::Command(ticket, command) => interpreter.submit(now, ticket, command, false),
            Input::Aborted(ticket, command) => interpreter.submit(now, ticket, command, true),
            Input::Destroy => interpreter.destroy(),
            _ if interpreter.guest == Guest::Destroyed => {}
            Input::Cancel(ticket) => interpreter.cancel(now, ticket),
            Input::Arrived(ticket, value) => interpreter.arrived(ticket, value),
            Input::Interrupt => interpreter.interrupt(now),
            Input::Guest(Slot::Main, input) => interpreter.guest_input(now, input),
            Input::Guest(Slot::Shadow(shadow), input) => self.shadows.guest_input(now, shadow, input),
            Input::Fetched(ticket, result) => interpreter.fetched(ticket, result),
            Input::Used(call, usage) => self.host_used(call, &usage),
            Input::NeedsApproval(call) => interpreter.call_waits(now, call, true),
            Input::Approved(call) => interpreter.call_waits(now, call, false),
            Input::HostReturned(call, result) => self.host_returned(now, call, result),
            Input::Hint(_) if interpreter.records => {} // no code runs ahead
            Input::Hint(predictions) => self.shadows.predict(predictions),
            Input::Written(code, timeout_ms) if interpreter.can_be_copied() => self.shadows.written(code, timeout_ms),
            Input::Written(..) => {} // no copy will exist
            Input::Conversation(text) => self.shadows.converse(now, &text),
            Input::MemoryIsShort => self.shadows.memory_is_short(),
            Input::Recorded(record, strictness) => interpreter.recorded(*record, strictness),
            Input::StateKept(kept) => interpreter.state_kept(kept),
            Input::CheckpointGone(checkpoint, why) => interpreter.checkpoint_gone(checkpoint, &why),
            Input::Tick => {}
        }
        self.follow(now);
        self.interpreter.check_time(now);
        self.follow(now);
        self.shadows.check_time(now);
        self.follow(now);
        self.run_next(now);
        let mark = self.interpreter.kept_mark();
        if self
            .kept
            .as_mut()
            .is_some_and(|kept| std::mem::replace(kept, mark) != mark)
        {
            let kept = Box::new(self.interpreter.kept());
            self.effects.push(Effect::Host(HostEffect::Keep(kept)));
        }
        std::mem::take(&mut self.effects)
    }

    /// Does the next work: first queued commands, then a save, then code ahead of time. After each step the shadows hear of changes
    /// (`follow`), before the next step reads the shadows.
    fn run_next(&mut self, now: f64) {
        while self.interpreter.is_free() {
            let joins = self.shadows.are_joined(now, &self.interpreter);
            self.follow(now);
            if joins {
                break;
            }
            match self.interpreter.next(now) {
                Next::Nothing => break,
                Next::Done => {}
                Next::Begin(ticket, job) => match self.shadows.promote(now, &job, &self.interpreter) {
                    Some(promotion) => {
                        self.follow(now);
                        self.interpreter.take_over(ticket, job, promotion);
                    }
                    None => self.interpreter.begin(now, Some(ticket), job, None),
                },
            }
            self.follow(now);
        }
        if self.interpreter.can_be_surveyed() {
            self.shadows.survey();
            self.follow(now);
        }
        self.interpreter.save(now, self.shadows.want_a_copy());
        self.follow(now);
        self.shadows.run_next(now, &self.interpreter);
        self.shadows.begin_calls(now, &self.interpreter);
        self.shadows.waste_left_calls(&self.interpreter);
        self.follow(now);
    }

    /// Collects the effects of the shadows and the interpreter. Tells the shadows of each change in between, in the order of events.
    fn follow(&mut self, now: f64) {
        self.follow_shadows();
        while let Some(note) = self.interpreter.notes.pop_front() {
            self.tell_shadows(now, note);
        }
        self.effects.append(&mut self.interpreter.effects);
    }

    fn follow_shadows(&mut self) {
        for effect in self.shadows.take_effects() {
            match effect {
                ShadowEffect::Guest(shadow, effect) => self.effects.push(Effect::Guest(Slot::Shadow(shadow), effect)),
                ShadowEffect::Park(shadow) => self.effects.push(Effect::Park(shadow)),
                ShadowEffect::Promote(shadow) => self.effects.push(Effect::Promote(shadow)),
                ShadowEffect::Host(effect) => self.effects.push(Effect::Host(effect)),
                ShadowEffect::Ask(request) => {
                    self.interpreter.checkpoints.asked();
                    self.interpreter.post(request);
                }
            }
        }
    }

    fn tell_shadows(&mut self, now: f64, note: Note) {
        let told = match note {
            Note::Changes => {
                self.shadows.state_changes();
                Ok(())
            }
            Note::Ended => {
                self.shadows.end();
                Ok(())
            }
            Note::Ran { code, ms } => {
                self.shadows.learn(&code, ms);
                Ok(())
            }
            Note::Checked { check, plain } => self.shadows.checked(check, plain),
            Note::Surveyed { survey, variables } => self.shadows.surveyed(now, survey, variables),
        };
        self.follow_shadows();
        if let Err(what) = told {
            self.interpreter.violation(now, what);
        }
    }
}
