//! One turn: a request that the guest has to answer.

use super::call::Calls;
use super::checkpoint::Ask;
use super::contexts::Target;
use super::display::Shown;
use super::files::FileCommand;
use super::packages::{Install, Load};
use super::{Body, Command, Effect, Encoded, Reply, Session, Ticket, kind};
use crate::budget::{Budget, Exhausted, Usage};
use crate::deadline::{Deadline, StopReason};
use crate::error::Error;
use crate::execution::{CodeExecution, Outcome, StateReport, StateStatus, Truncated};
use crate::limits::{
    EVENT_BYTES, LOOK_TIMEOUT_MS, OUTPUT_BURST_BYTES, OUTPUT_BURST_PER_CHAR, OUTPUT_BYTES_PER_SECOND,
    OUTPUT_PER_SECOND_PER_CHAR, VALUE_TIMEOUT_MS,
};
use crate::output::{OutputBuffer, omission_notice};
use crate::protocol::{Encoding, Ended, Event, ExecutionReport, Request, Stream};

/// What the guest is asked to do.
#[derive(Debug)]
pub(super) enum Task<B> {
    Execute(Box<Execution>),
    Get(String),
    /// Without a value as long as that is on its way.
    Set {
        target: Target,
        value: Option<Encoded<B>>,
    },
    List,
    OpenState(B, f64),
    CaptureState(f64),
    File(FileCommand<B>),
    /// No turn, but waited for like one.
    State(Ask),
    /// Becomes an `Install` when the packages are there.
    Load(Load<B>),
    Install(Install<B>),
    /// Only the session's own.
    Restore {
        checkpoint: u32,
    },
}

/// A task that the guest is at.
#[derive(Debug)]
pub(super) struct Turn<B> {
    pub(super) number: u32,
    /// Nobody's for the session's own.
    pub(super) ticket: Option<Ticket>,
    pub(super) task: Task<B>,
    pub(super) deadline: Deadline,
    pub(super) calls: Calls<B>,
    flow: Flow,
}

impl<B> Turn<B> {
    /// Whether the user may stop it. An assignment cannot be stopped half-way: the guest may not even have all of it.
    pub(super) fn can_be_stopped(&self) -> bool {
        self.ticket.is_some() && !matches!(self.task, Task::Set { .. } | Task::File(_) | Task::Install(_))
    }
}

/// An execution under way.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) id: u32,
    pub(super) code: String,
    pub(super) timeout_ms: f64,
    /// Its part of the session's budget.
    pub(super) budget: Budget,
    host_calls: u32,
    pub(super) shown: Shown,
    stdout: OutputBuffer,
    stderr: OutputBuffer,
    result: OutputBuffer,
    error: OutputBuffer,
    traceback: OutputBuffer,
}

/// How many bytes a guest has sent in a turn. Ours batches its output; one that floods is ended.
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

impl<B> Task<B> {
    pub(super) fn initializes(&self) -> bool {
        matches!(
            self,
            Self::Set {
                target: Target::Context,
                ..
            }
        )
    }

    /// The answer to a command that is not begun because of the budget.
    pub(super) fn unaffordable(self, why: &Exhausted) -> Result<Reply<B>, Error> {
        match self {
            Self::Execute(execution) => {
                let error = format!("LimitError: {why}; nothing was run");
                Ok(execution.refused(Outcome::Limit, "LimitError", &error))
            }
            other => other.never_ran(),
        }
    }

    /// The answer to a command that is taken back before its turn.
    pub(super) fn never_ran(self) -> Result<Reply<B>, Error> {
        match self {
            Self::Execute(execution) => {
                let error = "KeyboardInterrupt: interrupted before it began; nothing was run";
                Ok(execution.refused(Outcome::Interrupted, "KeyboardInterrupt", error))
            }
            _ => Err(Error::Timeout(
                "interrupted before it began; nothing was changed".to_owned(),
            )),
        }
    }
}

impl Execution {
    /// The reply for code that is not run at all.
    fn refused<B>(self, outcome: Outcome, error_type: &str, error: &str) -> Reply<B> {
        let mut execution = self.report(outcome, 0.0, 0.0, StateReport::kept());
        execution.error_type = Some(error_type.to_owned());
        execution.error = Some(error.to_owned());
        Reply::Execution(Box::new(execution), None)
    }

    /// The execution that took the guest's life, or was there when it ended.
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

    fn ended(self, deadline: &Deadline, now: f64, report: &ExecutionReport, state: StateReport) -> CodeExecution {
        let interrupted = report.ended != Ended::Ok && report.error_type.as_deref() == Some("KeyboardInterrupt");
        // A guest may say that its own clock ran out, or that it delivered what the host asked for, and nothing else.
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
                (
                    Outcome::Timeout,
                    Some((
                        "TimeoutError",
                        format!("stopped after {ms} ms in all (wallTimeout); variables are kept"),
                    )),
                )
            }
            (Some(StopReason::Budget), _) => {
                let why = self.budget.overdue(now).map_or_else(String::new, |why| why.to_string());
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
        execution.files.clone_from(&report.files);
        execution.truncated.files = report.omitted_files;
        execution.truncated.displays = report.omitted_displays;
        if let Some((error_type, message)) = stop_error {
            execution.error_type = Some(error_type.to_owned());
            execution.error = Some(format!("{error_type}: {message}"));
        } else if outcome == Outcome::Ok {
            (execution.error, execution.traceback) = (None, None);
        } else {
            execution.error_type.clone_from(&report.error_type);
            execution
                .error
                .get_or_insert_with(|| report.error_type.clone().unwrap_or_else(|| "Exception".to_owned()));
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
            displays: Vec::new(), // the driver has them
            files: Vec::new(),
            truncated: Truncated {
                stdout: self.stdout.omitted(),
                stderr: self.stderr.omitted(),
                ..Truncated::default()
            },
            host_calls: self.host_calls,
            killer: None, // the driver knows
            usage: Some(self.budget.spent()).filter(|usage| *usage != Usage::default()),
            code: self.code,
        }
    }

    fn buffer(&mut self, stream: Stream) -> &mut OutputBuffer {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
            Stream::Result => &mut self.result,
            Stream::Error => &mut self.error,
            Stream::Traceback => &mut self.traceback,
        }
    }

    /// Says something on `stderr` before the code does.
    pub(super) fn note(&mut self, text: &str) {
        self.stderr.push(0, text);
    }

    /// Whether the `repr` of the last expression has come.
    pub(super) fn has_result(&self) -> bool {
        !self.result.is_empty()
    }

    /// Counts a host call; the number so far.
    pub(super) fn count_host_call(&mut self) -> u32 {
        self.host_calls = self.host_calls.saturating_add(1);
        self.host_calls
    }
}

impl<B: Body> Session<B> {
    /// What a command asks of the guest, or the reply to one that is not put to it.
    pub(super) fn task(&mut self, now: f64, command: Command<B>) -> Result<Task<B>, Reply<B>> {
        Ok(match command {
            Command::Start => return Err(Reply::Done),
            Command::GetVariable(name) => Task::Get(name),
            Command::ListVariables => Task::List,
            Command::OpenState(state, max_bytes) => Task::OpenState(state, max_bytes),
            Command::CaptureState(max_bytes) => Task::CaptureState(max_bytes),
            Command::File(command) => Task::File(command),
            Command::Checkpoint => Task::State(Ask::Checkpoint),
            Command::Restore(execution) => Task::State(Ask::Restore(execution)),
            Command::Undo => Task::State(Ask::Undo),
            Command::Fork => Task::State(Ask::Fork),
            Command::Load(wanted) => Task::Load(Load::new(wanted)),
            Command::SetVariable(name, value) => Task::Set {
                target: Target::Variable(name),
                value: Some(value),
            },
            Command::Initialize(value) => Task::Set {
                target: Target::Context,
                value: Some(value),
            },
            Command::Add(series, value) => Task::Set {
                target: Target::Next(series),
                value: Some(value),
            },
            Command::Later(target) => Task::Set { target, value: None },
            Command::Execute {
                code,
                timeout_ms,
                budget,
            } => {
                self.last_execution += 1;
                let buffer = || OutputBuffer::new(self.limits.max_output_chars);
                let chars = code.chars().count();
                let execution = Box::new(Execution {
                    id: self.last_execution,
                    code,
                    timeout_ms: timeout_ms.unwrap_or(self.limits.timeout_ms),
                    budget: Budget::new(budget, now), // a part of the session's from its beginning on
                    host_calls: 0,
                    shown: Shown::default(),
                    stdout: buffer(),
                    stderr: buffer(),
                    result: buffer(),
                    error: buffer(),
                    traceback: buffer(),
                });
                let most = self.limits.max_code_chars;
                if chars > most as usize {
                    let error = format!(
                        "LimitError: the code has {chars} characters, maxCodeLength is {most}; nothing was run. Pass data with setVariable",
                    );
                    return Err(execution.refused(Outcome::Limit, "LimitError", &error));
                }
                Task::Execute(execution)
            }
        })
    }

    pub(super) fn begin(&mut self, now: f64, ticket: Option<Ticket>, task: Task<B>) {
        if !matches!(task, Task::List) {
            self.drop_ahead(); // it began with another state
        }
        self.begin_as(now, ticket, task, None);
    }

    /// The same; the guest may be at it already, under the number `begun`.
    pub(super) fn begin_as(&mut self, now: f64, ticket: Option<Ticket>, mut task: Task<B>, begun: Option<u32>) {
        if !matches!(task, Task::List) {
            self.forget_guesses();
        }
        self.last_turn += 1;
        let turn = begun.unwrap_or(self.last_turn);
        let timeout_ms = match &mut task {
            Task::Execute(execution) => {
                execution.budget = self.budget.scope(execution.budget.limits(), now);
                execution.timeout_ms
            }
            // Opening and capturing run the user's code.
            Task::OpenState(..) | Task::CaptureState(_) => self.limits.timeout_ms,
            Task::File(FileCommand::Look { .. }) => LOOK_TIMEOUT_MS,
            _ => VALUE_TIMEOUT_MS,
        };
        if let Task::Execute(_) | Task::Set { .. } | Task::OpenState(..) = task {
            self.checkpoints.touched(matches!(task, Task::Execute(_)));
        }
        self.checkpoints.looked_at |= matches!(
            task,
            Task::Get(_) | Task::CaptureState(_) | Task::File(FileCommand::Cell { .. } | FileCommand::Look { .. })
        );
        if let Task::File(command) = &task
            && command.changes().is_some()
        {
            self.checkpoints.touched(false);
        }
        let (request, body) = match &task {
            Task::Restore { checkpoint } => {
                let checkpoint = *checkpoint;
                let request = Request::Restore {
                    turn,
                    checkpoint,
                    timeout_ms,
                };
                (request, None)
            }
            Task::Execute(execution) => {
                let code = execution.code.clone();
                (
                    Request::Execute {
                        turn,
                        execution: execution.id,
                        code,
                        timeout_ms,
                        ahead: false,
                        more: false,
                    },
                    None,
                )
            }
            Task::Get(name) => (
                Request::GetVariable {
                    turn,
                    name: name.clone(),
                    timeout_ms,
                },
                None,
            ),
            Task::OpenState(state, max_bytes) => (
                Request::OpenState {
                    turn,
                    max_bytes: *max_bytes,
                    timeout_ms,
                },
                Some(state.clone()),
            ),
            Task::CaptureState(max_bytes) => (
                Request::CaptureState {
                    turn,
                    max_bytes: *max_bytes,
                    timeout_ms,
                },
                None,
            ),
            Task::File(command) => command.request(turn, timeout_ms),
            Task::Install(install) => (install.request(turn), None),
            // What is asked of the checkpoints, or still fetched, never gets here: `pump` answers it.
            Task::List | Task::State(_) | Task::Load(_) => (Request::ListVariables { turn, timeout_ms }, None),
            Task::Set { target, value } => {
                let request = Request::SetVariable {
                    turn,
                    name: self.contexts.name(target),
                    encoding: value.as_ref().map_or(Encoding::None, |value| value.encoding),
                    timeout_ms,
                };
                (request, value.as_ref().map(|value| value.body.clone()))
            }
        };
        let wall_timeout_ms = match &task {
            Task::Execute(_) => self.limits.wall_timeout_ms,
            _ => None,
        };
        let budget_ends_at = match &task {
            Task::Execute(execution) => execution.budget.expires_at(),
            _ => None,
        };
        let deadline =
            Deadline::start(now, timeout_ms, wall_timeout_ms, self.limits.grace_period_ms).within(budget_ends_at);
        let bodies = match &task {
            Task::Restore { checkpoint } => self.chain(*checkpoint),
            Task::Install(install) => install.bodies(),
            _ => Vec::new(),
        };
        self.turn = Some(Turn {
            number: turn,
            ticket,
            task,
            deadline,
            calls: Calls::default(),
            flow: Flow::new(self.limits.max_output_chars),
        });
        match request {
            _ if begun.is_some() => {}
            Request::Restore { .. } => self.effects.push(Effect::Restore(request, bodies)),
            Request::Install { .. } => {
                self.checkpoints.sent(&request);
                self.effects.push(Effect::Install(request, bodies));
            }
            _ => self.post(request, body),
        }
    }

    /// An event of a guest that is up. Whatever does not fit the turn is a violation.
    pub(super) fn turn_event(&mut self, now: f64, event: Event, body: Option<B>) {
        let (number, bytes) = match &event {
            Event::Output { turn, text, .. } => (*turn, text.len()),
            Event::HostCall { turn, .. }
            | Event::Display { turn, .. }
            | Event::Executed { turn, .. }
            | Event::Waiting { turn }
            | Event::Value { turn, .. }
            | Event::Done { turn }
            | Event::Restored { turn, .. }
            | Event::Refused { turn, .. } => (*turn, 0),
            _ => return self.violation(now, &format!("{} out of order", kind(&event))),
        };
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.number == number) else {
            return self.violation(
                now,
                &format!("{} for turn {number}, which is not under way", kind(&event)),
            );
        };
        // Calls have a limit of their own.
        let is_allowed_call = matches!((&event, &turn.task), (Event::HostCall { .. }, Task::Execute(execution))
            if execution.host_calls < self.limits.max_host_calls);
        if !is_allowed_call && turn.flow.floods(bytes, turn.deadline.wall_ms(now)) {
            return self.violation(now, "it flooded the host with messages");
        }
        match (event, &mut turn.task) {
            (
                Event::Output {
                    stream, skipped, text, ..
                },
                Task::Execute(execution),
            ) => {
                execution.buffer(stream).push(skipped, &text);
                if let (Some(ticket), Stream::Stdout | Stream::Stderr) = (turn.ticket, stream) {
                    let text = if skipped > 0 {
                        omission_notice(skipped) + &text
                    } else {
                        text
                    };
                    self.effects.push(Effect::Print(ticket, stream, text));
                }
            }
            (Event::Waiting { .. }, Task::Execute(_)) => {} // for what is on its way already
            (Event::Display { mime, is_result, .. }, Task::Execute(_)) => self.display(now, mime, is_result, body),
            (event @ (Event::Done { .. } | Event::Value { .. } | Event::Refused { .. }), Task::File(_)) => {
                self.file_event(now, event, body);
            }
            (
                Event::HostCall {
                    call,
                    batch,
                    name,
                    encoding,
                    ..
                },
                Task::Execute(_),
            ) => {
                self.host_call(now, call, batch, name, encoding, body);
            }
            (
                Event::Executed {
                    execution: report,
                    encoding,
                    ..
                },
                Task::Execute(_),
            ) => {
                self.executed(now, report, encoding, body);
            }
            (Event::Value { encoding, .. }, task @ (Task::Get(_) | Task::List | Task::CaptureState(_))) => match body {
                Some(_) if matches!(task, Task::CaptureState(_)) && encoding != Encoding::Bytes => {
                    self.violation(now, "a state that is no bytes");
                }
                None => self.violation(now, "a value without a body"),
                Some(body) => self.end_turn(now, Ok(Reply::Value(Encoded { encoding, body }))),
            },
            (Event::Done { .. }, Task::Set { .. }) => self.assigned(now),
            (Event::Done { .. }, Task::OpenState(..)) => self.end_turn(now, Ok(Reply::Done)),
            (Event::Done { .. }, Task::Install(_)) => self.installed(now),
            (Event::Restored { lost, .. }, Task::Restore { .. }) => self.restored(now, lost),
            (Event::Refused { message, .. }, _) if turn.ticket.is_none() => {
                self.not_restored(now, &Error::GuestLost(message));
            }
            (Event::Refused { message, .. }, Task::Install(_)) => self.not_installed(now, message),
            (
                Event::Refused { message, .. },
                task @ (Task::Get(_) | Task::List | Task::Set { .. } | Task::OpenState(..) | Task::CaptureState(_)),
            ) => {
                let error = if turn.deadline.stop_reason().is_some() {
                    Error::Timeout(format!("stopped before it was done; variables are kept: {message}"))
                } else if let Task::Set { .. } = task {
                    Error::invalid("setVariable", message)
                } else if let Task::OpenState(..) = task {
                    Error::invalid("state", message)
                } else {
                    Error::NotSerializable(message)
                };
                self.end_turn(now, Err(error));
            }
            (event, _) => self.violation(now, &format!("{} does not fit what was asked", kind(&event))),
        }
    }

    fn executed(&mut self, now: f64, report: ExecutionReport, encoding: Encoding, body: Option<B>) {
        let Some(Turn {
            ticket: Some(ticket),
            task: Task::Execute(execution),
            deadline,
            ..
        }) = self.finish_turn(now)
        else {
            return;
        };
        let state = self.untold_loss.take().unwrap_or_else(StateReport::kept);
        self.checkpoints.execution = execution.id;
        self.learn(&execution.code, deadline.guest_ms(now));
        let ended = execution.ended(&deadline, now, &report, state);
        let last = body.filter(|_| report.has_final);
        if let Some(names) = report.names {
            self.names = names;
        }
        let last = last.map(|body| Encoded { encoding, body });
        self.resolve(ticket, Ok(Reply::Execution(Box::new(ended), last)));
        self.ping(now);
    }

    /// The guest has the variable that it was given.
    fn assigned(&mut self, now: f64) {
        let Some(Turn {
            ticket,
            task: Task::Set {
                target,
                value: Some(value),
            },
            ..
        }) = self.finish_turn(now)
        else {
            return;
        };
        let name = self.contexts.name(&target);
        self.lacking.retain(|lacking| *lacking != name);
        self.checkpoints.set(&name);
        if !self.names.contains(&name) {
            self.names.push(name.clone());
        }
        if target.is_kept() {
            self.contexts.keep(&name, value);
        }
        match (ticket, target) {
            (None, _) => self.restore_contexts(now),
            (Some(ticket), Target::Next(_)) => self.resolve(ticket, Ok(Reply::Name(name))),
            (Some(ticket), _) => self.resolve(ticket, Ok(Reply::Done)),
        }
    }

    pub(super) fn end_turn(&mut self, now: f64, reply: Result<Reply<B>, Error>) {
        if let Some(Turn {
            ticket: Some(ticket), ..
        }) = self.finish_turn(now)
        {
            self.resolve(ticket, reply);
        }
    }

    /// Takes the turn, and its host calls back.
    pub(super) fn finish_turn(&mut self, now: f64) -> Option<Turn<B>> {
        self.abort_calls();
        if let Some(turn) = &self.turn {
            self.checkpoints.worked(now, turn.deadline.guest_ms(now));
            if turn.ticket.is_some() {
                self.checkpoints.proved();
            }
        }
        self.proven |= self.turn.as_ref().is_some_and(|turn| turn.ticket.is_some());
        self.turn.take()
    }
}
