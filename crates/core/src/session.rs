//! A sandbox's session as a state machine: [`Input`]s in, [`Effect`]s out. It knows no clock, no worker and no socket.
//!
//! Every command is resolved exactly once, whatever the guest does. A guest that breaks the protocol, dies or does not
//! stop is ended; a fresh one is booted, given the last `context`, and the next command goes on there.
//!
//! A session is an *interpreter* and its *shadows*. The interpreter is a line of states, and whichever guest has the newest. A shadow is a
//! copy of it that runs code which may come. Guests live in [`Slot`]s: the interpreter's own in one, each shadow's in another. A *job* is
//! what a guest can be asked to do; an *exchange* is a job that a guest is at, with all that it says of it.
//!
//! Each part writes down what is to be done. [`Session`] only passes that on, and tells the shadows what becomes of the interpreter's state.
//!
//! | file | holds |
//! |---|---|
//! | `interpreter.rs` | the guest's life and its clock; what it says goes on from here |
//! | `commands.rs` | what users ask for: how that waits, and what comes next |
//! | `exchanges.rs` | how an interpreter begins an exchange, and what comes of its end |
//! | `exchange.rs`, `calls.rs`, `display.rs`, `files.rs` | one exchange: its job, its output, its host calls |
//! | `saves.rs`, `checkpoints.rs`, `checkpoint_chain.rs` | when the state is saved, what comes back, and what is kept for that |
//! | `contexts.rs`, `packages.rs` | what every guest is given |
//! | `pings.rs`, `oversized.rs` | what guests have to prove, and how much they may say at once |
//! | `shadows.rs`, `guesses.rs` | which code is worth running ahead, and how much of it at a time |
//! | `shadow.rs` | a shadow, and how its guest takes over |
//!
//! Decisions: `docs/internals/running-ahead.md`.

mod calls;
mod checkpoint_chain;
mod checkpoints;
mod commands;
mod contexts;
mod display;
mod exchange;
mod exchanges;
mod files;
mod guesses;
mod interpreter;
mod oversized;
mod packages;
mod pings;
mod saves;
mod shadow;
mod shadows;

use crate::budget::{Budget, BudgetLimits, Usage};
use crate::deadline::earliest;
use crate::error::Error;
use crate::execution::CodeExecution;
use crate::limits::Limits;
use crate::packages::{Wheel, normalized};
use crate::protocol::{Encoding, Event, GuestInfo, Profile, Request, Stream};
use crate::speculate::Prediction;
use crate::stats::Stats;
use commands::Next;
use interpreter::{Config, Guest, Interpreter, Note};
use pings::Pings;
use shadows::{ShadowEffect, Shadows};

pub use calls::HostFailure;
pub use checkpoints::Fork;
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

/// The driver's number for a command; it never uses one twice.
pub type Ticket = u32;

/// A value in a body.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded<B> {
    /// The way it is written.
    pub encoding: Encoding,
    /// Its bytes.
    pub body: B,
}

/// A request of the user's.
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
        /// Its share of the session's budget.
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

/// A shadow's number; never used twice.
pub type ShadowId = u32;

/// A place for a guest. A driver holds at most one guest in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The session's own guest.
    Main,
    /// A shadow's guest, which runs code that may come.
    Shadow(ShadowId),
}

/// Something that comes from a guest, whatever its slot. It is not to be trusted.
#[derive(Debug, Clone, PartialEq)]
pub enum GuestInput<B> {
    /// It sent a message.
    Event(Event, Option<B>),
    /// It sent something that is no message.
    BadMessage(String),
    /// It is gone, or never came up.
    Lost(Error),
}

/// Something that a driver does with a guest, whatever its slot.
#[derive(Debug, Clone, PartialEq)]
pub enum GuestEffect<B> {
    /// Start a fresh guest in the slot. Messages posted to the slot from now on are for it. A shadow's must be one that can be had at
    /// once.
    Boot,
    /// End the guest, now. Nothing that it sent may arrive any more.
    Kill,
    /// Send the guest a message.
    Post(Request, Option<B>),
    /// Send the guest a `Restore` and what its checkpoints hold.
    Restore(Request, Vec<B>),
    /// Send the guest an `Install` and its wheels.
    Install(Request, Vec<B>),
}

/// An input of a session: something has happened.
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
    /// Something comes from the guest in a slot.
    Guest(Slot, GuestInput<B>),
    /// A host call has used something up.
    Used(u32, Usage),
    /// The answer to [`Effect::Fetch`].
    Fetched(Ticket, Result<Vec<Package<B>>, Error>),
    /// A host call came back.
    HostReturned(u32, Result<Encoded<B>, HostFailure>),
    /// Code that is likely to come next, the likeliest first, instead of what was told before.
    Hint(Vec<Prediction>),
    /// Code that is being written, as far as it is there, and the `timeout` that it will have. It is whole lines, up to where another
    /// statement begins; it is empty when nobody writes any more.
    Written(String, Option<f64>),
    /// The newest of what is talked about; guesses are made of it, where there are any.
    Conversation(String),
    /// The guests of shadows take more memory than there is for them.
    MemoryIsShort,
    /// Time has passed: [`Session::wake_at`] is reached.
    Tick,
}

/// A step for the driver, to be done in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<B> {
    /// Do something with the guest in a slot.
    Guest(Slot, GuestEffect<B>),
    /// End a shadow's guest, which is at rest, or keep it to be booted again in another slot. Nothing that it sent may arrive any more.
    Park(ShadowId),
    /// Have a shadow's guest take the place of the main one, which is at rest: that is ended, or kept like one of [`Effect::Park`]. The
    /// shadow's slot is empty then, and messages posted to the main slot are for its guest.
    Promote(ShadowId),
    /// Do something for whoever uses the sandbox.
    Host(HostEffect<B>),
}

/// Something that a driver does for whoever uses the sandbox. No shadow can ask for it.
#[derive(Debug, Clone, PartialEq)]
pub enum HostEffect<B> {
    /// Call the user's function and feed its return as [`Input::HostReturned`] with this number.
    CallHost {
        /// The call's number; never used twice.
        call: u32,
        /// The function.
        name: String,
        /// The list of arguments, or the only one when that is a str.
        args: Encoded<B>,
        /// The execution's budget: a recursion is given a child of it.
        budget: Budget,
    },
    /// Nobody waits for this host call any more: abort it.
    AbortHost(u32),
    /// Some of the calls that Python made at once are done.
    Progress(Progress),
    /// Find packages, fetch them and feed them as [`Input::Fetched`] with this ticket.
    Fetch(Ticket, Wanted),
    /// Show printed text to whoever asked for it.
    Print(Ticket, Stream, String),
    /// Show a rich output to whoever asked for it, and keep it for the execution.
    Display {
        /// The command whose execution it is.
        ticket: Ticket,
        /// Its mime type.
        mime: String,
        /// Its bytes.
        body: B,
        /// Its relation to the last expression's value.
        to_result: ToResult,
    },
    /// The one answer to a command.
    Resolve(Ticket, Result<Reply<B>, Error>),
}

/// The progress of calls that Python made at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The function that they call.
    pub name: String,
    /// The number of those answered, well or badly.
    pub done: u32,
    /// The number of those that failed.
    pub failed: u32,
    /// The number of all.
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
    /// The argument of [`Session::forked`].
    Fork(Box<Fork<B>>),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Session<B> {
    interpreter: Interpreter<B>,
    shadows: Shadows<B>,
    effects: Vec<Effect<B>>,
}

impl<B: Body> Session<B> {
    /// A session without a guest. `host_functions` are the names that Python may call.
    pub fn new(limits: Limits, host_functions: Vec<String>) -> Self {
        Self::of(Interpreter::new(Config {
            limits,
            host_functions,
            profile: Profile::Default,
            output_fields: Vec::new(),
        }))
    }

    /// A session without a guest that goes on where another is.
    pub fn forked(fork: Fork<B>) -> Self {
        Self::of(Interpreter::forked(fork))
    }

    fn of(interpreter: Interpreter<B>) -> Self {
        let shadows = Shadows::within(&interpreter.config.limits);
        Self {
            interpreter,
            shadows,
            effects: Vec::new(),
        }
    }

    /// The same for the prompts of `profile`; `output_fields` are the names of the values that `SUBMIT` takes.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile, output_fields: Vec<String>) -> Self {
        self.interpreter.config.profile = profile;
        self.interpreter.config.output_fields = output_fields;
        self
    }

    /// The same for runs that have no `context`: they need not wait for one.
    #[must_use]
    pub fn without_context(mut self) -> Self {
        self.interpreter.contextless = true;
        self
    }

    /// For drivers that boot a shadow by forking the main guest: no checkpoint is needed for a copy.
    #[must_use]
    pub fn with_forks(mut self) -> Self {
        self.interpreter.forks = true;
        self.shadows.are_forks(&self.interpreter.config.limits);
        self
    }

    /// The same on a machine that has `processors` for shadows, and room for `bytes` of state in all of them together; where they
    /// are forks, [`Input::MemoryIsShort`] tells. By default one shadow runs at a time.
    #[must_use]
    pub fn with_shadows_on(mut self, processors: usize, bytes: f64) -> Self {
        self.shadows.on(processors, bytes);
        self
    }

    /// The same for guests that are workers: after each execution they prove that they are idle. `secret` is a random number.
    #[must_use]
    pub fn with_pings(mut self, secret: u64) -> Self {
        self.interpreter.pings = Some(Pings::new(secret));
        self
    }

    /// The same with guesses at what comes next, which run when nothing else does.
    #[must_use]
    pub fn with_guesses(mut self) -> Self {
        self.shadows.guess();
        self
    }

    /// The budget of all its executions together.
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.interpreter.budget = budget;
        self
    }

    /// The budget of its executions.
    pub fn budget(&self) -> &Budget {
        &self.interpreter.budget
    }

    /// The packages that every guest has: names, normalized, and versions.
    pub fn packages(&self) -> Vec<(String, String)> {
        let known = |package: &Package<B>| (normalized(&package.wheel.name), package.wheel.version.clone());
        self.interpreter.packages.iter().map(known).collect()
    }

    /// The limits that it has.
    pub fn limits(&self) -> &Limits {
        &self.interpreter.config.limits
    }

    /// The number of executions that it was asked for.
    pub fn last_execution(&self) -> u32 {
        self.interpreter.last_execution
    }

    /// The counts of all that it has done so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.interpreter.stats.clone();
        stats.ahead.code = self.shadows.tallies();
        stats
    }

    /// The guesses for the present state, the most worthwhile first.
    pub fn predictions(&self) -> Vec<Prediction> {
        self.shadows.predictions()
    }

    /// The guest's facts about itself, as it told them when it was last ready.
    pub fn info(&self) -> &GuestInfo {
        &self.interpreter.info
    }

    /// Returns true when there is a guest that is not ready yet, and so has run none of the user's code.
    pub fn is_booting(&self) -> bool {
        matches!(self.interpreter.guest, Guest::Booting(_))
    }

    /// Returns true when the user is done with the sandbox.
    pub fn is_destroyed(&self) -> bool {
        self.interpreter.guest == Guest::Destroyed
    }

    /// Returns true when its guests have packages that were installed.
    pub fn has_packages(&self) -> bool {
        !self.interpreter.packages.is_empty()
    }

    /// Returns true when a guest that has run something has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.interpreter.is_at_rest() && self.interpreter.last_execution > 0
    }

    /// The time at which the driver has to feed [`Input::Tick`], if nothing else happens.
    pub fn wake_at(&self) -> Option<f64> {
        let interpreter = self.interpreter.wake_at(self.shadows.want_a_copy());
        earliest(interpreter, self.shadows.wake_at(self.interpreter.is_at_rest()))
    }

    /// Takes one input at time `now` (milliseconds, never going back).
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
            Input::Used(call, usage) => interpreter.host_used(call, &usage),
            Input::HostReturned(call, result) => interpreter.host_returned(now, call, result),
            Input::Hint(predictions) => self.shadows.predict(predictions),
            Input::Written(code, timeout_ms) if interpreter.can_be_copied() => self.shadows.written(code, timeout_ms),
            Input::Written(..) => {} // there will be no copy
            Input::Conversation(text) => self.shadows.converse(now, &text),
            Input::MemoryIsShort => self.shadows.memory_is_short(),
            Input::Tick => {}
        }
        self.follow(now);
        self.interpreter.check_time(now);
        self.follow(now);
        self.shadows.check_time(now);
        self.follow(now);
        self.run_next(now);
        std::mem::take(&mut self.effects)
    }

    /// Does what comes next: first queued commands, then a save, then code ahead of time. After each step shadows hear of changes
    /// (`follow`), before the next step reads them.
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
        self.follow(now);
    }

    /// Takes what the shadows and the interpreter want done, and tells the shadows what they have to know, at the place where it happened.
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
                ShadowEffect::Ask(request) => self.interpreter.post(request),
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
