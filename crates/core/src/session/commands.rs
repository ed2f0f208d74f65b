//! The queue of commands, and the choice of the next one.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use super::checkpoints::StateCommand;
use super::contexts::Target;
use super::exchange::{Job, nothing_changed};
use super::execution::Execution;
use super::interpreter::{Guest, Interpreter};
use super::packages::Load;
use super::variables::VariableCommand;
use super::{Body, Command, Effect, HostEffect, Reply, Ticket};
use crate::deadline::StopReason;
use crate::error::Error;
use crate::limits::MAX_QUEUED_COMMANDS;

/// A command in the queue.
#[derive(Debug)]
pub(super) enum Queued<B> {
    /// A job for the guest.
    Job(Job<B>),
    /// An assignment whose value has not arrived yet.
    Awaiting(Target),
    /// A request about saved states. It is no exchange, but waits like one.
    State(StateCommand),
    /// A request for packages. It becomes a job when they are fetched.
    Load(Load<B>),
}

impl<B> Queued<B> {
    pub(super) fn initializes(&self) -> bool {
        match self {
            Self::Job(job) => job.initializes(),
            Self::Awaiting(target) => *target == Target::Context,
            Self::State(_) | Self::Load(_) => false,
        }
    }

    /// The answer to a command that is cancelled before its turn.
    fn never_ran(self) -> Result<Reply<B>, Error> {
        match self {
            Self::Job(job) => job.never_ran(),
            _ => Err(nothing_changed()),
        }
    }
}

/// The next step for the queue.
#[derive(Debug)]
pub(super) enum Next<B> {
    /// Nothing, for now.
    Nothing,
    /// A command was answered without a guest.
    Done,
    /// The job of a command is to begin.
    Begin(Ticket, Job<B>),
}

impl<B: Body> Interpreter<B> {
    /// Returns true if code may run.
    pub(super) fn may_run(&self) -> bool {
        self.contextless || self.contexts.is_initialized()
    }

    /// Adds a command to the queue, or answers it at once. `aborted` is true if the user has cancelled it already.
    pub(super) fn submit(&mut self, now: f64, ticket: Ticket, command: Command<B>, aborted: bool) {
        if let Some(error) = self.refusal(&command).or_else(|| self.refused_by_pending(&command)) {
            return self.resolve(ticket, Err(error));
        }
        let queued = match command {
            Command::Start if self.guest == Guest::Up => return self.resolve(ticket, Ok(Reply::Done)),
            Command::Start => {
                self.starting.push(ticket);
                None
            }
            Command::State(command) => Some(Queued::State(command)),
            Command::Load(wanted) => Some(Queued::Load(Load::new(wanted))),
            Command::Later(target) => Some(Queued::Awaiting(target)),
            Command::Variable(command) => Some(Queued::Job(Job::Variable(command))),
            Command::Configure(settings) => Some(Queued::Job(Job::Configure(settings))),
            Command::File(command) => Some(Queued::Job(Job::File(command))),
            Command::Resume(answers) => match self.resumed(now, answers) {
                Ok(execution) => Some(Queued::Job(Job::Execute(Box::new(execution)))),
                Err(error) => return self.resolve(ticket, Err(error)),
            },
            Command::Discard => return self.discard(ticket),
            Command::Execute(asked) => {
                self.last_execution += 1;
                match Execution::new(now, self.last_execution, asked, &self.config.limits) {
                    Ok(execution) => Some(Queued::Job(Job::Execute(Box::new(execution)))),
                    Err(reply) => return self.resolve(ticket, Ok(reply)),
                }
            }
        };
        if let Some(queued) = queued {
            if aborted {
                return self.resolve(ticket, queued.never_ran());
            }
            if let Queued::Load(load) = &queued {
                let fetch = HostEffect::Fetch(ticket, load.wanted.clone());
                self.effects.push(Effect::Host(fetch));
            }
            self.queue.push_back((ticket, queued));
        }
        if self.guest == Guest::Down {
            self.boot(now);
        }
    }

    /// The reason for which a command is not even queued, if there is one.
    fn refusal(&self, command: &Command<B>) -> Option<Error> {
        match command {
            _ if self.guest == Guest::Destroyed => Some(Error::Destroyed),
            _ if self.queue.len() + self.starting.len() >= MAX_QUEUED_COMMANDS => Some(Error::invalid(
                "execute",
                format!("{MAX_QUEUED_COMMANDS} calls are waiting already; nothing was done"),
            )),
            Command::Start
            | Command::Variable(VariableCommand::Set(Target::Context, _))
            | Command::Later(Target::Context)
            | Command::Load(_) => None,
            _ if !self.has_or_awaits_context() => Some(Error::NotInitialized),
            _ => None,
        }
    }

    fn has_or_awaits_context(&self) -> bool {
        let comes = self.exchange.iter().any(|exchange| exchange.job.initializes());
        self.may_run() || comes || self.queue.iter().any(|(_, queued)| queued.initializes())
    }

    pub(super) fn cancel(&mut self, now: f64, ticket: Ticket) {
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.ticket == Some(ticket))
        {
            self.stop(now, StopReason::Interrupt);
        } else if let Some(at) = self.queue.iter().position(|(waiting, _)| *waiting == ticket)
            && let Some((_, queued)) = self.queue.remove(at)
        {
            self.resolve(ticket, queued.never_ran());
        }
    }

    /// Stops the running execution. If only the session's own work runs, the next execution is cancelled instead.
    pub(super) fn interrupt(&mut self, now: f64) {
        let next = (!self.runs_for_somebody()).then(|| self.take_next_execution());
        match next.flatten() {
            Some((ticket, job)) => self.resolve(ticket, job.never_ran()),
            None => self.stop(now, StopReason::Interrupt),
        }
    }

    /// Returns true if a request to resume the pending execution is in the queue.
    pub(super) fn has_queued_resumption(&self) -> bool {
        let resumes = |queued: &Queued<B>| matches!(queued, Queued::Job(Job::Execute(execution)) if execution.resumes);
        self.queue.iter().any(|(_, queued)| resumes(queued))
    }

    /// The first command in the queue.
    pub(super) fn front(&self) -> Option<&Queued<B>> {
        self.queue.front().map(|(_, queued)| queued)
    }

    /// Takes the next command, if the guest is free and nothing has to be waited for.
    pub(super) fn next(&mut self, now: f64) -> Next<B> {
        if !self.is_free()
            || self.checkpoints.holds_up(self.demand(false))
            || self.waits_for_value()
            || self.waits_for_packages()
        {
            return Next::Nothing;
        }
        match self.queue.pop_front() {
            None => return Next::Nothing,
            Some((ticket, Queued::State(command))) => self.answer_about_state(now, ticket, command),
            Some((ticket, Queued::Load(load))) => self.load(now, ticket, load),
            Some((_, Queued::Awaiting(_))) => {} // `waits_for_value` lets none come here
            // The `initialize` before this command failed.
            Some((ticket, Queued::Job(job))) if !self.may_run() && !job.initializes() => {
                self.resolve(ticket, Err(Error::NotInitialized));
            }
            Some((ticket, Queued::Job(Job::Execute(execution)))) if execution.resumes && !self.is_before_pending() => {
                let why =
                    "the state before the pending execution could not be made again; the execution is still pending";
                self.resolve(ticket, Err(Error::NoCheckpoint(why.to_owned())));
            }
            Some((ticket, Queued::Job(job))) => match (&job, self.budget.overdue(now)) {
                (Job::Execute(_), Some(why)) => self.resolve(ticket, job.unaffordable(&why)),
                _ => return Next::Begin(ticket, job),
            },
        }
        Next::Done
    }

    /// Begins or answers commands for as long as it can.
    pub(super) fn run_next(&mut self, now: f64) {
        loop {
            match self.next(now) {
                Next::Nothing => return,
                Next::Done => {}
                Next::Begin(ticket, job) => self.begin(now, Some(ticket), job, None),
            }
        }
    }
}
