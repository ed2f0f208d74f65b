//! An execution in an exchange: its output so far, and its result.

use super::display::{Shown, ToResult};
use super::{Body, HostEffect, Reply, Ticket};
use crate::budget::{Budget, BudgetLimits, Usage};
use crate::deadline::{Deadline, StopReason};
use crate::error::Error;
use crate::execution::{CodeExecution, Outcome, StateReport, StateStatus, Truncated};
use crate::limits::{Limits, Naming};
use crate::output::OutputBuffer;
use crate::protocol::{Ended, ExecutionReport, Stream, VALUE_MIME};

/// A user's request to run code.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Execute {
    /// The source of the code.
    pub code: String,
    /// Guest time in milliseconds. `None` means the session's `timeout`.
    pub timeout_ms: Option<f64>,
    /// The execution's own limits, within the session's budget.
    pub budget: BudgetLimits,
}

impl Execute {
    /// Code with no limits but the session's.
    pub fn of(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            ..Self::default()
        }
    }
}

/// An execution in an exchange.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) id: u32,
    pub(super) asked: Execute,
    /// The guest time that was asked for, or the session's.
    pub(super) timeout_ms: f64,
    /// The execution's part of the session's budget.
    pub(super) budget: Budget,
    pub(super) host_calls: u32,
    /// True if an earlier session has begun it.
    pub(super) resumes: bool,
    shown: Shown,
    stdout: OutputBuffer,
    stderr: OutputBuffer,
    result: OutputBuffer,
    error: OutputBuffer,
    traceback: OutputBuffer,
    /// The style of option names in errors.
    naming: Naming,
}

impl Execution {
    /// An execution that has not begun, or the reply if its code is too long. Its budget becomes a part of the session's budget when it
    /// begins.
    pub(super) fn new<B>(now: f64, id: u32, asked: Execute, limits: &Limits) -> Result<Self, Reply<B>> {
        let buffer = || OutputBuffer::new(limits.max_output_chars);
        let execution = Self {
            id,
            timeout_ms: asked.timeout_ms.unwrap_or(limits.timeout_ms),
            budget: Budget::new(asked.budget, now),
            asked,
            host_calls: 0,
            resumes: false,
            shown: Shown::default(),
            stdout: buffer(),
            naming: limits.naming,
            stderr: buffer(),
            result: buffer(),
            error: buffer(),
            traceback: buffer(),
        };
        let (chars, most) = (execution.asked.code.chars().count(), limits.max_code_chars);
        if chars <= most as usize {
            return Ok(execution);
        }
        let error = format!(
            "LimitError: the code has {chars} characters, {} is {most}; nothing was run. Pass data {}",
            limits.naming.of("maxCodeLength"),
            match limits.naming {
                Naming::Camel => "with setVariable",
                Naming::Snake => "as a variable",
            },
        );
        Err(execution.refused(Outcome::Limit, "LimitError", &error))
    }

    /// The style of option names in errors.
    pub(super) fn naming(&self) -> Naming {
        self.naming
    }

    /// A line of the code, as Python counts them from 1.
    pub(super) fn line(&self, number: u32) -> Option<&str> {
        let mut lines = self.asked.code.split("\r\n").flat_map(|part| part.split(['\n', '\r']));
        lines.nth((number as usize).checked_sub(1)?)
    }

    /// The reply for code that is not run.
    pub(super) fn refused<B>(self, outcome: Outcome, error_type: &str, error: &str) -> Reply<B> {
        let mut execution = self.report(outcome, 0.0, 0.0, StateReport::kept());
        execution.error_type = Some(error_type.to_owned());
        execution.error = Some(error.to_owned());
        Reply::Execution(Box::new(execution), None)
    }

    /// The result of an execution whose guest ended.
    pub(super) fn lost(self, deadline: &Deadline, now: f64, why: &Error, loss: StateReport) -> CodeExecution {
        let consequence = loss.consequence();
        let (outcome, error_type, message) = match (deadline.stop_reason(), why) {
            (Some(StopReason::Interrupt), Error::Timeout(why)) => (
                Outcome::Interrupted,
                "KeyboardInterrupt",
                format!("{why}, so the guest was terminated"),
            ),
            (Some(StopReason::Budget), Error::Timeout(why)) => (
                Outcome::Limit,
                "LimitError",
                format!("{why}, so the guest was terminated"),
            ),
            (Some(_), Error::Timeout(why)) => (
                Outcome::Timeout,
                "TimeoutError",
                format!("{why}, so the guest was terminated"),
            ),
            (_, Error::Protocol(what)) => (
                Outcome::Crashed,
                "ProtocolError",
                format!("the guest broke the protocol and was terminated ({what})"),
            ),
            (_, Error::GuestLost(why)) => (Outcome::Crashed, "GuestCrashed", why.clone()),
            (_, why) => (Outcome::Crashed, "GuestCrashed", why.to_string()),
        };
        let mut execution = self.report(outcome, deadline.wall_ms(now), deadline.guest_ms(now), loss);
        execution.error_type = Some(error_type.to_owned());
        execution.error = Some(format!("{error_type}: {message}; {consequence}"));
        execution
    }

    pub(super) fn ended(
        self,
        deadline: &Deadline,
        now: f64,
        report: ExecutionReport,
        state: StateReport,
    ) -> CodeExecution {
        let interrupted = report.ended != Ended::Ok && report.error_type.as_deref() == Some("KeyboardInterrupt");
        // The guest may give two reasons itself: its own clock ran out, or it delivered an interrupt of the host.
        let stopped = match report.stopped {
            Some(StopReason::Timeout) => deadline.stop_reason().or(report.stopped),
            Some(_) => deadline.stop_reason(),
            None if interrupted => deadline.stop_reason(),
            None => None,
        };
        let (outcome, stop_error) = match (stopped, report.ended) {
            (Some(StopReason::Interrupt), _) => (
                Outcome::Interrupted,
                Some(("KeyboardInterrupt", "interrupted; variables are kept".to_owned())),
            ),
            (Some(StopReason::Timeout), _) => {
                let ms = self.timeout_ms;
                (
                    Outcome::Timeout,
                    Some((
                        "TimeoutError",
                        format!("stopped after {ms} ms of guest time; variables are kept"),
                    )),
                )
            }
            (Some(StopReason::WallTimeout), _) => {
                let ms = deadline.wall_ms(now).round();
                let option = self.naming.of("wallTimeout");
                (
                    Outcome::Timeout,
                    Some((
                        "TimeoutError",
                        format!("stopped after {ms} ms in all ({option}); variables are kept"),
                    )),
                )
            }
            (Some(StopReason::Budget), _) => {
                let why = self.budget.overdue(now);
                let why = why.map_or_else(String::new, |why| why.text(self.naming));
                (
                    Outcome::Limit,
                    Some(("LimitError", format!("{why}; variables are kept"))),
                )
            }
            (None, Ended::Ok) => (Outcome::Ok, None),
            (None, Ended::Error) => (Outcome::Error, None),
            (None, Ended::Limit) => (Outcome::Limit, None),
        };
        let mut execution = self.report(outcome, deadline.wall_ms(now), deadline.guest_ms(now), state);
        execution.files = report.files;
        execution.truncated.files = report.omitted_files;
        execution.truncated.displays = report.omitted_displays;
        if let Some((error_type, message)) = stop_error {
            execution.error_type = Some(error_type.to_owned());
            execution.error = Some(format!("{error_type}: {message}"));
        } else if outcome == Outcome::Ok {
            (execution.error, execution.traceback) = (None, None);
        } else {
            let exception = || report.error_type.clone().unwrap_or_else(|| "Exception".to_owned());
            execution.error.get_or_insert_with(exception);
            execution.error_type = report.error_type;
        }
        if execution.state.status == StateStatus::Lost
            && let Some(error) = &mut execution.error
        {
            error.push_str(" (variables were lost before it began)");
        }
        execution
    }

    fn report(self, outcome: Outcome, duration: f64, guest_time: f64, state: StateReport) -> CodeExecution {
        let text = |buffer: &OutputBuffer| if buffer.is_empty() { None } else { Some(buffer.text()) };
        CodeExecution {
            id: self.id,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            error: text(&self.error),
            error_type: None,
            traceback: text(&self.traceback),
            duration,
            guest_time,
            outcome,
            state,
            result: text(&self.result),
            displays: Vec::new(), // added by the driver
            files: Vec::new(),
            truncated: Truncated {
                stdout: self.stdout.omitted(),
                stderr: self.stderr.omitted(),
                ..Truncated::default()
            },
            host_calls: self.host_calls,
            killer: None, // added by the driver
            usage: Some(self.budget.spent()).filter(|usage| *usage != Usage::default()),
            code: self.asked.code,
        }
    }

    pub(super) fn buffer(&mut self, stream: Stream) -> &mut OutputBuffer {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
            Stream::Result => &mut self.result,
            Stream::Error => &mut self.error,
            Stream::Traceback => &mut self.traceback,
        }
    }

    /// Shows a rich output to the execution's caller. An error is a violation.
    pub(super) fn display<B: Body>(
        &mut self,
        ticket: Option<Ticket>,
        mime: String,
        is_result: bool,
        body: Option<B>,
        max_result_bytes: f64,
    ) -> Result<Option<HostEffect<B>>, String> {
        let body = body.ok_or("a display without a body")?;
        let to_result = match (self.result.is_empty(), is_result) {
            (true, _) => ToResult::Before,
            (false, true) => ToResult::Same,
            (false, false) => ToResult::After,
        };
        if mime.starts_with(VALUE_MIME) {
            self.shown.add_value(body.size(), max_result_bytes)?;
        } else {
            self.shown.add(&mime, body.size())?;
        }
        Ok(ticket.map(|ticket| HostEffect::Display {
            ticket,
            mime,
            body,
            to_result,
        }))
    }

    /// Adds text to `stderr` before the code's own.
    pub(super) fn note(&mut self, text: &str) {
        self.stderr.push(0, text);
    }

    /// Counts a host call. Returns the number of calls so far.
    pub(super) fn count_host_call(&mut self) -> u32 {
        self.host_calls = self.host_calls.saturating_add(1);
        self.host_calls
    }
}
