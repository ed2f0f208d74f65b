//! An interpreter, from the host's side: a sequence of states, and the guest that holds the newest one.
//!
//! Guests come and go. A guest that dies is replaced by a fresh one, which gets the saved state. Commands wait in a queue, and become
//! exchanges one at a time. An interpreter knows nothing of shadows; it only leaves notes for them.
//!
//! Its methods stand in the files of their subjects: `commands.rs` (the queue), `begin_and_end.rs`, `calls.rs`, `saves.rs`, `contexts.rs`,
//! `packages.rs` and `pings.rs`. This file has the guest's life, the clock, and the sorting of the guest's messages.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md` and `docs/internals/saving-and-restoring.md`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::checkpoints::{Checkpoints, StateCommand};
use super::commands::Queued;
use super::contexts::Contexts;
use super::exchange::{Exchange, Job};
use super::oversized::{does_not_fit, kind, oversized};
use super::packages::Package;
use super::pings::Pings;
use super::records::Record;
use super::saves::Demand;
use super::{Body, Effect, GuestEffect, GuestInput, HostEffect, Reply, Slot, Ticket};
use crate::budget::{Budget, BudgetLimits};
use crate::deadline::{StopReason, Verdict, earliest};
use crate::error::Error;
use crate::execution::StateReport;
use crate::limits::{
    Limits, MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES, MAX_FILES, MAX_SOURCE_CACHE_CHARS, MAX_VALUE_DEPTH,
};
use crate::protocol::{Event, GuestConfig, GuestInfo, PROTOCOL_VERSION, Profile, Request, SurveyedVariable};
use crate::stats::Stats;

/// A fact that the interpreter's shadows must know.
#[derive(Debug)]
pub(super) enum Note {
    /// The state may change from now on.
    Changes,
    /// The guest is gone, and its state with it.
    Ended,
    /// Code has run for this number of milliseconds.
    Ran { code: String, ms: f64 },
    /// The guest has answered a `Check`.
    Checked { check: u32, plain: bool },
    /// The guest has answered a `Survey`.
    Surveyed {
        survey: u32,
        variables: Vec<SurveyedVariable>,
    },
}

/// The settings that do not change.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) limits: Limits,
    /// The names of the functions that Python may call.
    pub(super) host_functions: Vec<String>,
    pub(super) profile: Profile,
    /// The names of the values that `SUBMIT` takes.
    pub(super) output_fields: Vec<String>,
    /// The most bytes of a last expression's value that is sent. If 0, none is sent.
    pub(super) max_result_bytes: f64,
    /// The guest time for opening or writing all variables.
    pub(super) state_timeout_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Guest {
    /// No guest. The next command boots one.
    Down,
    /// The guest is booting, until this time at the latest.
    Booting(f64),
    /// The guest is ready, or in an exchange.
    Up,
    /// The user ended the sandbox.
    Destroyed,
}

/// An interpreter. The [module](self) describes it.
#[derive(Debug)]
pub(super) struct Interpreter<B> {
    pub(super) config: Config,
    pub(super) budget: Budget,
    pub(super) guest: Guest,
    pub(super) info: GuestInfo,
    /// True if a guest has finished an exchange since the last loss.
    pub(super) proven: bool,
    pub(super) exchange: Option<Exchange<B>>,
    pub(super) queue: VecDeque<(Ticket, Queued<B>)>,
    pub(super) starting: Vec<Ticket>,
    /// Contexts that this guest and every later one is given.
    pub(super) contexts: Contexts<B>,
    /// The number of times that they have changed.
    pub(super) contexts_given: u32,
    /// True if code may run before there is a `context`.
    pub(super) contextless: bool,
    /// True if the first guest gets the contexts with the variables that the driver opens.
    pub(super) contexts_come: bool,
    /// Names of the contexts that the guest lacks, or has in an older form.
    pub(super) lacking: Vec<String>,
    /// The user's variables, as last reported.
    pub(super) names: Vec<String>,
    /// A loss of state that no execution has reported yet.
    pub(super) untold_loss: Option<StateReport>,
    pub(super) checkpoints: Checkpoints<B>,
    /// True if guests can be forked. Then a copy needs no checkpoint.
    pub(super) forks: bool,
    /// Pings, if guests are workers.
    pub(super) pings: Option<Pings>,
    /// The loaded packages, in the order of loading.
    pub(super) packages: Vec<Package<B>>,
    /// True if executions are recorded.
    pub(super) records: bool,
    /// Whether the driver has the present state by value, if it keeps the next execution.
    pub(super) state_kept: Option<Result<(), String>>,
    /// The execution of an earlier session that was not finished.
    pub(super) pending: Option<Record<B>>,
    /// The base of the record of an ended execution that the driver has.
    pub(super) told_record: Option<u32>,
    /// Records of ended executions, the oldest first.
    pub(super) ended_records: VecDeque<Arc<Record<B>>>,
    /// The number of the newest exchange.
    pub(super) last_exchange: u32,
    pub(super) last_execution: u32,
    pub(super) last_call: u32,
    pub(super) stats: Stats,
    /// The next effects, in order. They are for the slot [`Slot::Main`]; a shadow translates them to its own slot.
    pub(super) effects: Vec<Effect<B>>,
    /// Notes for shadows. They must be read before the effects are carried out.
    pub(super) notes: VecDeque<Note>,
}

impl<B: Body> Interpreter<B> {
    pub(super) fn new(config: Config) -> Self {
        Self {
            checkpoints: Checkpoints::within(&config.limits),
            config,
            budget: Budget::new(BudgetLimits::default(), 0.0),
            guest: Guest::Down,
            info: GuestInfo::default(),
            proven: false,
            exchange: None,
            queue: VecDeque::new(),
            starting: Vec::new(),
            contexts: Contexts::default(),
            contexts_given: 0,
            contextless: false,
            contexts_come: false,
            lacking: Vec::new(),
            names: Vec::new(),
            untold_loss: None,
            forks: false,
            pings: None,
            packages: Vec::new(),
            records: false,
            state_kept: None,
            pending: None,
            told_record: None,
            ended_records: VecDeque::new(),
            last_exchange: 0,
            last_execution: 0,
            last_call: 0,
            stats: Stats::default(),
            effects: Vec::new(),
            notes: VecDeque::new(),
        }
    }

    /// Returns true if the guest has nothing to do, and nobody waits for it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_free() && self.queue.is_empty()
    }

    /// Returns true if the guest could begin a job.
    pub(super) fn is_free(&self) -> bool {
        self.guest == Guest::Up && self.exchange.is_none()
    }

    /// Sends the guest a message.
    pub(super) fn post(&mut self, request: Request) {
        self.checkpoints.overtaken();
        self.do_with_guest(GuestEffect::Post(request, None));
    }

    fn do_with_guest(&mut self, effect: GuestEffect<B>) {
        self.effects.push(Effect::Guest(Slot::Main, effect));
    }

    pub(super) fn resolve(&mut self, ticket: Ticket, reply: Result<Reply<B>, Error>) {
        if let Ok(Reply::Execution(execution, _)) = &reply {
            self.stats.count(execution);
        }
        self.effects.push(Effect::Host(HostEffect::Resolve(ticket, reply)));
    }

    // ---- the guest's life ----

    pub(super) fn destroy(&mut self) {
        if self.guest == Guest::Destroyed {
            return;
        }
        self.end_guest(Guest::Destroyed);
        if let Some(ticket) = self.exchange.take().and_then(|exchange| exchange.ticket) {
            self.resolve(ticket, Err(Error::Destroyed));
        }
        self.refuse_all(&Error::Destroyed);
        self.contexts.clear();
    }

    /// Refuses all commands that wait for a guest.
    fn refuse_all(&mut self, error: &Error) {
        let queued = std::mem::take(&mut self.queue).into_iter().map(|(ticket, _)| ticket);
        let starting = std::mem::take(&mut self.starting);
        for ticket in queued.chain(starting).chain(self.take_reverting()) {
            self.resolve(ticket, Err(error.clone()));
        }
    }

    pub(super) fn boot(&mut self, now: f64) {
        self.guest = Guest::Booting(now + self.config.limits.boot_timeout_ms);
        let paused = self.checkpoints.paused();
        self.checkpoints.reviving = self.checkpoints.wanted().filter(|_| paused.is_some());
        self.do_with_guest(paused.map_or(GuestEffect::Boot, GuestEffect::Revive));
        self.stats.guests += 1;
        let Config {
            limits,
            host_functions,
            profile,
            output_fields,
            max_result_bytes,
            ..
        } = &self.config;
        let config = GuestConfig {
            max_output_chars: limits.max_output_chars,
            max_value_bytes: limits.max_value_bytes,
            max_memory_bytes: limits.max_memory_bytes,
            max_value_depth: MAX_VALUE_DEPTH,
            max_source_cache: MAX_SOURCE_CACHE_CHARS,
            max_displays: MAX_DISPLAYS,
            max_display_bytes: MAX_DISPLAY_BYTES.min(limits.max_value_bytes),
            max_displays_bytes: MAX_DISPLAYS_BYTES,
            max_file_bytes: limits.max_file_bytes,
            max_files: MAX_FILES,
            host_functions: host_functions.clone(),
            max_host_calls: limits.max_host_calls,
            profile: *profile,
            output_fields: output_fields.clone(),
            max_result_bytes: *max_result_bytes,
        };
        self.post(Request::Init {
            version: PROTOCOL_VERSION,
            config,
            restores: self.checkpoints.is_saved(),
        });
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

    /// Gives a fresh guest, which has its packages, the session's state.
    pub(super) fn settle(&mut self, now: f64) {
        if !self.restore(now) {
            self.begun_anew();
            if !std::mem::take(&mut self.contexts_come) {
                self.lacking = self.contexts.names().collect();
            }
            self.restore_contexts(now);
        }
    }

    /// Refuses all commands that wait, because the guest did not start. The next command tries again.
    pub(super) fn boot_failed(&mut self, error: Error) {
        self.end_guest(Guest::Down);
        self.exchange = None;
        self.refuse_all(&error);
    }

    pub(super) fn guest_gone(&mut self, now: f64, error: Error) {
        let restoring = self.exchange.as_ref().is_some_and(|exchange| exchange.ticket.is_none());
        match self.guest {
            Guest::Down | Guest::Destroyed => {}
            Guest::Booting(_) if self.checkpoints.paused().is_some() => self.not_revived(now, &error),
            Guest::Booting(_) => self.boot_failed(match error {
                Error::GuestLost(why) => Error::BootFailed(why),
                error => error,
            }),
            Guest::Up if restoring => self.not_restored(now, &error),
            Guest::Up => self.lose_guest(now, &error),
        }
    }

    pub(super) fn not_restored(&mut self, now: f64, why: &Error) {
        let job = self.exchange.as_ref().map(|exchange| &exchange.job);
        if let Some(Job::Restore { .. }) = job {
            return self.not_restored_exactly(now, why);
        }
        let what = match job {
            Some(Job::Load(_)) => "its packages were not installed again",
            Some(Job::Configure(_)) => "it did not take its settings",
            _ => "context was not restored",
        };
        let why = if let Error::GuestLost(why) = why {
            why.clone()
        } else {
            why.to_string()
        };
        self.boot_failed(Error::BootFailed(format!("{what}: {why}")));
    }

    /// Ends the guest, answers its exchange, and boots a fresh guest.
    fn lose_guest(&mut self, now: f64, error: &Error) {
        let reason = match error {
            Error::Timeout(_) => "the guest did not stop and was terminated",
            Error::Protocol(_) => "the guest broke the protocol and was terminated",
            _ => "the guest crashed",
        };
        let mut loss = self.loss(reason, !matches!(error, Error::Timeout(_)));
        loss.add_earlier(self.untold_loss.take());
        self.end_guest(Guest::Down);
        match self.exchange.take() {
            Some(Exchange {
                job: Job::Execute(execution),
                deadline,
                ticket: Some(ticket),
                ..
            }) => {
                let execution = execution.lost(&deadline, now, error, loss);
                self.resolve(ticket, Ok(Reply::Execution(Box::new(execution), None)));
            }
            exchange => {
                let consequence = loss.consequence();
                self.untold_loss = Some(loss);
                if let Some(ticket) = exchange.and_then(|exchange| exchange.ticket) {
                    let error = match error {
                        Error::Protocol(why) => Error::Protocol(format!("{why}; {consequence}")),
                        Error::GuestLost(why) => Error::GuestLost(format!("{why}; {consequence}")),
                        _ => Error::GuestLost(format!("{error}; {consequence}")),
                    };
                    self.resolve(ticket, Err(error));
                }
            }
        }
        // A guest that dies before it has done anything would probably die again, so none is booted until the next command. The same holds
        // if a server is gone, or has dropped a sandbox that nobody used.
        let is_proven = std::mem::take(&mut self.proven) && !matches!(error, Error::BackendUnavailable(_));
        if is_proven || !self.queue.is_empty() {
            self.boot(now);
        }
    }

    pub(super) fn has_first_guest(&self) -> bool {
        let begun = match self.guest {
            Guest::Up | Guest::Booting(_) => 1,
            Guest::Down => 0,
            Guest::Destroyed => return false,
        };
        self.stats.guests == begun
    }

    pub(super) fn end_guest(&mut self, next: Guest) {
        self.abort_calls();
        if next != Guest::Destroyed {
            self.drop_told_record();
            self.forget_pending();
            self.state_kept = None;
        }
        self.notes.push_back(Note::Ended);
        if matches!(self.guest, Guest::Booting(_) | Guest::Up) {
            self.do_with_guest(GuestEffect::Kill);
        }
        self.guest = next;
        self.forget_ping();
        self.names.clear();
        self.checkpoints.guest_ended();
    }

    /// Ends the guest because of a violation.
    pub(super) fn violation(&mut self, now: f64, what: &str) {
        let what: String = what.chars().take(300).collect();
        match self.guest {
            Guest::Booting(_) => self.boot_failed(Error::BootFailed(format!("it broke the protocol: {what}"))),
            _ => self.guest_gone(now, Error::Protocol(what)),
        }
    }

    // ---- time ----

    pub(super) fn check_time(&mut self, now: f64) {
        if let Guest::Booting(ends_at) = self.guest
            && now >= ends_at
        {
            let ms = self.config.limits.boot_timeout_ms;
            let option = self.config.limits.naming.of("bootTimeout");
            self.boot_failed(Error::BootFailed(format!("it was not ready after {ms} ms ({option})")));
        }
        if self.checkpoints.is_late(now) {
            self.guest_gone(now, Error::GuestLost("it did not finish saving its state".to_owned()));
        }
        self.check_ping(now);
        self.expire_calls(now);
        match self.exchange.as_mut().map(|exchange| exchange.deadline.check(now)) {
            Some(Verdict::Interrupt(reason)) => self.ask_to_stop(now, reason),
            Some(Verdict::Kill(reason)) => {
                let why = match reason {
                    StopReason::Interrupt => "it was interrupted",
                    StopReason::Timeout => "its guest time was over",
                    StopReason::WallTimeout => "its total time was over",
                    StopReason::Budget => "the time of its budget was over",
                };
                let ms = self.config.limits.grace_period_ms;
                self.guest_gone(
                    now,
                    Error::Timeout(format!("it did not stop within {ms} ms after {why}")),
                );
            }
            _ => {}
        }
    }

    /// The next time at which to look at the clock. `copies`: somebody waits for a copy of the state.
    pub(super) fn wake_at(&self, copies: bool) -> Option<f64> {
        let boot = if let Guest::Booting(ends_at) = self.guest {
            Some(ends_at)
        } else {
            None
        };
        let exchange = self
            .exchange
            .as_ref()
            .and_then(|exchange| earliest(exchange.deadline.wake_at(), exchange.calls.next_expiry()));
        let saves = earliest(
            self.checkpoints.saves_at(self.demand(copies)),
            self.checkpoints.save_ends_at(),
        );
        earliest(earliest(boot, exchange), earliest(saves, self.ping_ends_at()))
    }

    /// The needs of those who wait.
    pub(super) fn demand(&self, copies: bool) -> Demand {
        Demand {
            is_free: self.is_free(),
            is_awaited: !self.queue.is_empty(),
            asks: matches!(self.front(), Some(Queued::State(command)) if self.checkpoints.needs_save(*command)),
            executes: matches!(self.front(), Some(Queued::Job(Job::Execute(_)))),
            undoes: matches!(self.front(), Some(Queued::State(StateCommand::Undo))),
            copies,
        }
    }

    /// Saves the state if the guest is idle, or too much is at stake. `copies`: somebody waits for a copy of the state.
    pub(super) fn save(&mut self, now: f64, copies: bool) {
        let demand = self.demand(copies);
        if let Some(request) = self.checkpoints.begin_save(now, demand, &self.names, &self.contexts) {
            self.do_with_guest(GuestEffect::Post(request, None));
        }
        self.checkpoints.note_wait(now, demand);
    }

    // ---- what the guest says ----

    /// Handles an input from the guest.
    pub(super) fn guest_input(&mut self, now: f64, input: GuestInput<B>) {
        let (event, body) = match input {
            GuestInput::Event(event, body) => (event, body),
            GuestInput::BadMessage(what) => return self.violation(now, &what),
            GuestInput::Lost(error) => return self.guest_gone(now, error),
        };
        let is_value = !matches!(event, Event::Saved { .. } | Event::Noted { .. });
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        if body
            .as_ref()
            .is_some_and(|body| is_value && body.size() as f64 > self.config.limits.max_value_bytes)
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
            (Guest::Up, event @ Event::Saved { .. }) => self.saved(now, event, body),
            (Guest::Up, Event::NotSaved { checkpoint, reason }) => {
                if let Err(what) = self.checkpoints.not_saved(now, checkpoint, reason) {
                    self.violation(now, what);
                }
            }
            (Guest::Up, Event::Checked { check, plain }) => self.notes.push_back(Note::Checked { check, plain }),
            (Guest::Up, Event::Surveyed { survey, variables }) => {
                self.notes.push_back(Note::Surveyed { survey, variables });
            }
            (Guest::Up, Event::Pong { ping }) => self.ponged(now, ping),
            (Guest::Up, Event::Waiting { .. }) if self.forks && self.exchange.is_some() => {} // `Extend` or `Promote` is on its way
            (Guest::Up, Event::Fatal { message }) => self.guest_gone(now, Error::GuestLost(message)),
            (Guest::Up, _) if self.awaits_pong() => self.violation(now, "an event of an exchange before it was idle"),
            (Guest::Up, event) => {
                let heard = match &mut self.exchange {
                    Some(exchange) => {
                        exchange.heard(now, event, body, &self.config, &mut self.last_call, &mut self.effects)
                    }
                    None => Err(does_not_fit(&event)),
                };
                match heard {
                    Err(what) => self.violation(now, &what),
                    Ok(None) => {
                        let differs = self.exchange.as_mut().and_then(|exchange| exchange.differs.take());
                        if let Some(what) = differs {
                            self.journal_differs(now, &what);
                        }
                    }
                    Ok(Some((event, body))) => self.ended(now, event, body),
                }
            }
            (Guest::Booting(_), event) => self.violation(now, &format!("{} before it was ready", kind(&event))),
        }
    }
}
