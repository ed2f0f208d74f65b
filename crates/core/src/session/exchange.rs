//! One exchange with a guest: a job, the guest's messages, and the event that ends it.
//!
//! An [`Exchange`] judges the guest's events by itself. It returns the effects of each event, and the event that ends the exchange. An event
//! that does not fit is a violation.

use super::calls::Calls;
use super::checkpoints::Checkpoints;
use super::contexts::{Contexts, Target};
use super::execution::Execution;
use super::files::FileCommand;
use super::interpreter::Config;
use super::oversized::{does_not_fit, not_asked, number_of};
use super::packages::Load;
use super::records::{Record, Strictness};
use super::variables::VariableCommand;
use super::{Body, Effect, GuestEffect, HostEffect, Reply, Settings, Ticket};
use crate::budget::Exhausted;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::execution::Outcome;
use crate::limits::{
    EVENT_BYTES, LOOK_TIMEOUT_MS, OUTPUT_BURST_BYTES, OUTPUT_BURST_PER_CHAR, OUTPUT_BYTES_PER_SECOND,
    OUTPUT_PER_SECOND_PER_CHAR, VALUE_TIMEOUT_MS,
};
use crate::output::omission_notice;
use crate::protocol::{Event, Request, Stream};

/// A task for a guest, done in one exchange.
#[derive(Debug)]
pub(super) enum Job<B> {
    Execute(Box<Execution>),
    Variable(VariableCommand<B>),
    Configure(Settings),
    File(FileCommand<B>),
    /// Packages to install in the guest.
    Load(Load<B>),
    /// Restores the checkpoint with this number. Only the session itself asks for this.
    Restore(u32),
}

/// A job that a guest has begun.
#[derive(Debug)]
pub(super) struct Exchange<B> {
    pub(super) number: u32,
    /// The ticket of the command; `None` for the session's own jobs.
    pub(super) ticket: Option<Ticket>,
    pub(super) job: Job<B>,
    pub(super) deadline: Deadline,
    pub(super) calls: Calls<B>,
    /// The difference of a resumed execution from its record.
    pub(super) differs: Option<String>,
    flow: Flow,
}

/// The bytes of output in an exchange. Our guest batches its output; a guest that floods the host is ended.
#[derive(Debug)]
struct Flow {
    bytes: f64,
    burst: f64,
    per_second: f64,
}

impl Flow {
    fn new(max_output_chars: u32) -> Self {
        let kept = f64::from(max_output_chars);
        Self {
            bytes: 0.0,
            burst: OUTPUT_BURST_BYTES + OUTPUT_BURST_PER_CHAR * kept,
            per_second: OUTPUT_BYTES_PER_SECOND + OUTPUT_PER_SECOND_PER_CHAR * kept,
        }
    }

    fn floods(&mut self, bytes: usize, elapsed_ms: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "one event's size")]
        let bytes = bytes as f64;
        self.bytes += bytes + EVENT_BYTES;
        self.bytes > self.burst + self.per_second * elapsed_ms / 1_000.0
    }
}

impl<B> Job<B> {
    /// Returns true if an earlier copy of the state stays exact after the job.
    pub(super) fn keeps_state(&self) -> bool {
        matches!(self, Self::Variable(VariableCommand::List))
    }

    pub(super) fn initializes(&self) -> bool {
        matches!(self, Self::Variable(VariableCommand::Set(Target::Context, _)))
    }

    /// The answer to a command that the budget does not allow.
    pub(super) fn unaffordable(self, why: &Exhausted) -> Result<Reply<B>, Error> {
        match self {
            Self::Execute(execution) => {
                let why = why.text(execution.naming());
                let error = format!("LimitError: {why}; nothing was run");
                Ok(execution.refused(Outcome::Limit, "LimitError", &error))
            }
            other => other.never_ran(),
        }
    }

    /// The answer to a command that is cancelled before its turn.
    pub(super) fn never_ran(self) -> Result<Reply<B>, Error> {
        match self {
            Self::Execute(execution) => {
                let error = "KeyboardInterrupt: interrupted before it began; nothing was run";
                Ok(execution.refused(Outcome::Interrupted, "KeyboardInterrupt", error))
            }
            _ => Err(nothing_changed()),
        }
    }

    /// The guest time for the job, in milliseconds.
    fn timeout_ms(&self, config: &Config) -> f64 {
        match self {
            Self::Execute(execution) => execution.timeout_ms,
            // Opening and capturing the state run the user's code.
            Self::Variable(VariableCommand::Open(..) | VariableCommand::Capture { .. }) => config.state_timeout_ms,
            Self::File(FileCommand::Look { .. }) => LOOK_TIMEOUT_MS,
            _ => VALUE_TIMEOUT_MS,
        }
    }
}

/// The answer to a command without code that is cancelled before its turn.
pub(super) fn nothing_changed() -> Error {
    Error::Timeout("interrupted before it began; nothing was changed".to_owned())
}

impl<B: Body> Job<B> {
    /// The request to send to the guest.
    pub(super) fn request(
        &self,
        exchange: u32,
        config: &Config,
        contexts: &Contexts<B>,
        checkpoints: &Checkpoints<B>,
        record: Option<&Record<B>>,
    ) -> GuestEffect<B> {
        let timeout_ms = self.timeout_ms(config);
        let (request, body) = match self {
            Self::Restore(checkpoint) => {
                let request = Request::Restore {
                    exchange,
                    checkpoint: *checkpoint,
                    timeout_ms,
                    steps: checkpoints.wanted_steps().to_repeat(),
                };
                return GuestEffect::Restore(request, checkpoints.bodies(*checkpoint));
            }
            Self::Load(load) => return load.install(exchange, timeout_ms),
            Self::Execute(execution) => {
                let code = execution.asked.code.clone();
                (
                    Request::Execute {
                        exchange,
                        execution: execution.id,
                        code,
                        timeout_ms,
                        ahead: false,
                        more: false,
                        noted: record.is_some(),
                        explores: record.is_some_and(|record| record.strictness() == Strictness::Explore),
                    },
                    record.and_then(Record::notes),
                )
            }
            Self::Variable(command) => command.request(exchange, timeout_ms, contexts),
            Self::File(command) => command.request(exchange, timeout_ms),
            Self::Configure(settings) => {
                let host_functions = settings.host_functions.as_ref().unwrap_or(&config.host_functions);
                let output_fields = settings.output_fields.as_ref().unwrap_or(&config.output_fields);
                let request = Request::Configure {
                    exchange,
                    host_functions: host_functions.clone(),
                    output_fields: output_fields.clone(),
                    timeout_ms,
                };
                (request, None)
            }
        };
        GuestEffect::Post(request, body)
    }
}

impl<B> Exchange<B> {
    /// Returns true if the user may stop the job. An assignment cannot be stopped: the guest may have only a part of it.
    pub(super) fn can_be_stopped(&self) -> bool {
        let is_short = matches!(
            self.job,
            Job::Variable(VariableCommand::Set(..)) | Job::Configure(_) | Job::File(_) | Job::Load(_)
        );
        self.ticket.is_some() && !is_short
    }
}

impl<B: Body> Exchange<B> {
    /// An exchange that begins now.
    pub(super) fn new(now: f64, number: u32, ticket: Option<Ticket>, job: Job<B>, config: &Config) -> Self {
        let timeout_ms = job.timeout_ms(config);
        let (wall_timeout_ms, budget_ends_at) = match &job {
            Job::Execute(execution) => (config.limits.wall_timeout_ms, execution.budget.expires_at()),
            _ => (None, None),
        };
        let deadline = Deadline::start(now, timeout_ms, wall_timeout_ms, config.limits.grace_period_ms);
        Self {
            number,
            ticket,
            job,
            deadline: deadline.within(budget_ends_at),
            calls: Calls::default(),
            differs: None,
            flow: Flow::new(config.limits.max_output_chars),
        }
    }

    /// Takes an event of the guest, and gives it back if it ends the exchange. An error is a violation.
    pub(super) fn heard(
        &mut self,
        now: f64,
        event: Event,
        body: Option<B>,
        config: &Config,
        last_call: &mut u32,
        effects: &mut Vec<Effect<B>>,
    ) -> Result<Option<(Event, Option<B>)>, String> {
        if number_of(&event) != Some(self.number) {
            return Err(does_not_fit(&event));
        }
        let bytes = match &event {
            Event::Output { text, .. } => text.len(),
            _ => 0,
        };
        // Host calls have their own limit.
        let is_allowed_call = matches!((&event, &self.job), (Event::HostCall { .. }, Job::Execute(execution))
            if execution.host_calls < config.limits.max_host_calls);
        if !is_allowed_call && self.flow.floods(bytes, self.deadline.wall_ms(now)) {
            return Err("it flooded the host with messages".to_owned());
        }
        match (event, &mut self.job) {
            (
                Event::Output {
                    stream, skipped, text, ..
                },
                Job::Execute(execution),
            ) => {
                execution.buffer(stream).push(skipped, &text);
                if let (Some(ticket), Stream::Stdout | Stream::Stderr) = (self.ticket, stream) {
                    let text = if skipped > 0 {
                        omission_notice(skipped) + &text
                    } else {
                        text
                    };
                    effects.push(Effect::Host(HostEffect::Print(ticket, stream, text)));
                }
            }
            (Event::Noted { .. }, Job::Execute(_)) => {
                let record = self.calls.record.as_mut().ok_or("notes that nobody asked for")?;
                record.hear(body.ok_or("notes without a body")?)?;
            }
            (Event::Unnoted { why, .. }, Job::Execute(_)) => self.end_record(&why, effects),
            (Event::Differs { what, .. }, Job::Execute(execution)) => match &mut self.calls.record {
                Some(record) if record.strictness() == Strictness::Explore => {
                    record.difference.get_or_insert(what);
                }
                Some(_) if execution.resumes => self.differs = Some(what),
                _ => return Err("a difference from a journal that it was not given".to_owned()),
            },
            (Event::Waiting { .. }, Job::Execute(_)) => {} // `Extend` or `Promote` is on its way already
            (Event::Display { mime, is_result, .. }, Job::Execute(execution)) => {
                let most_bytes = config.max_result_bytes;
                let shown = execution.display(self.ticket, mime, is_result, body, most_bytes)?;
                effects.extend(shown.map(Effect::Host));
            }
            (event @ Event::HostCall { .. }, Job::Execute(_)) => {
                self.host_call(now, event, body, config, last_call, effects)?;
            }
            (event, job) => {
                job.check_answer(&event, body.is_some())?;
                return Ok(Some((event, body)));
            }
        }
        Ok(None)
    }

    /// Returns true if the guest was asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.deadline.stop_reason().is_some()
    }
}

impl<B: Body> Job<B> {
    /// Checks that an event is an answer to the job. An error is a violation.
    fn check_answer(&self, event: &Event, has_body: bool) -> Result<(), String> {
        match (event, self) {
            (_, Self::Variable(command)) => command.check_answer(event, has_body),
            (_, Self::File(command)) => command.check_answer(event, has_body),
            (Event::Executed { .. }, Self::Execute(_))
            | (Event::Done { .. }, Self::Configure(_) | Self::Load(_))
            | (Event::Restored { .. }, Self::Restore(_))
            | (Event::Refused { .. }, Self::Configure(_) | Self::Load(_) | Self::Restore(_)) => Ok(()),
            _ => Err(not_asked(event)),
        }
    }
}
