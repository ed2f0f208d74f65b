//! The interpreter's part in an exchange: its beginning, the guest's messages, and the results of its end.

use super::contexts::Target;
use super::exchange::{Exchange, Job};
use super::interpreter::{Interpreter, Note};
use super::shadow::Promotion;
use super::variables::VariableCommand;
use super::{Body, Effect, Encoded, GuestInput, Reply, Settings, Slot, Ticket};
use crate::deadline::StopReason;
use crate::error::Error;
use crate::execution::StateReport;
use crate::protocol::{Encoding, Event, Request};

impl<B: Body> Interpreter<B> {
    /// Begins a job. If the guest runs the job already, under the number `begun`, only the records are made.
    pub(super) fn begin(&mut self, now: f64, ticket: Option<Ticket>, mut job: Job<B>, begun: Option<u32>) {
        if !job.keeps_state() {
            self.notes.push_back(Note::Changes);
        }
        self.last_exchange += 1;
        if let Job::Execute(execution) = &mut job {
            execution.budget = self.budget.scope(execution.asked.budget, now);
        }
        self.checkpoints.begins(&job, ticket.is_none(), &self.contexts);
        let record = self.record_of(&job, begun.is_some());
        let number = begun.unwrap_or(self.last_exchange);
        if begun.is_none() {
            self.checkpoints.overtaken();
            let request = job.request(number, &self.config, &self.contexts, &self.checkpoints, record.as_ref());
            self.effects.push(Effect::Guest(Slot::Main, request));
        }
        let mut exchange = Exchange::new(now, number, ticket, job, &self.config);
        exchange.calls.record = record;
        self.exchange = Some(exchange);
    }

    /// Records that a copy of the guest takes over, which runs the job already. Its messages so far are handled with their own times.
    pub(super) fn take_over(&mut self, ticket: Ticket, job: Job<B>, promotion: Promotion<B>) {
        let Promotion {
            info,
            exchange,
            begun_at,
            said,
            begun,
        } = promotion;
        self.forget_ping();
        self.stats.guests += 1;
        self.info = info;
        self.checkpoints.growing = false; // the next checkpoint of another guest must be full
        self.begin(begun_at, Some(ticket), job, Some(exchange));
        self.take_begun_calls(begun);
        for (at, event, body) in said {
            let is_at_it = |exchange: &Exchange<B>| exchange.ticket == Some(ticket);
            if !self.exchange.as_ref().is_some_and(is_at_it) {
                break; // a message ended the exchange, and the rest was not said by the next guest
            }
            self.guest_input(at, GuestInput::Event(event, body));
        }
        self.waste_unclaimed_calls();
    }

    /// Handles the event that ends the exchange, which fits the job.
    pub(super) fn ended(&mut self, now: f64, event: Event, body: Option<B>) {
        let is_own = |exchange: &Exchange<B>| exchange.ticket.is_none();
        match event {
            Event::Refused { message, .. } if self.exchange.as_ref().is_some_and(is_own) => {
                return self.not_restored(now, &Error::GuestLost(message));
            }
            Event::Restored { lost, names, .. } => {
                self.restored(now, lost, names);
                return self.revived();
            }
            _ => {}
        }
        let unused = |exchange: &Exchange<B>| exchange.calls.record.as_ref()?.unused();
        if let Some(what) = self.exchange.as_ref().and_then(unused) {
            return self.journal_differs(now, &what);
        }
        let Some(exchange) = self.finish_exchange(now) else {
            return;
        };
        let is_stopping = exchange.is_stopping();
        let Exchange {
            ticket,
            job,
            deadline,
            calls,
            ..
        } = exchange;
        if let (Event::Executed { execution: report, .. }, Some(record)) = (&event, calls.record) {
            self.record_ended(record, is_stopping || report.stopped.is_some());
        }
        let encoded = |encoding| body.map(|body| Encoded { encoding, body });
        let reply = match (event, job) {
            (
                Event::Executed {
                    execution: mut report,
                    encoding,
                    ..
                },
                Job::Execute(execution),
            ) => {
                let state = self.untold_loss.take().unwrap_or_else(StateReport::kept);
                self.checkpoints.executed(&execution, report.mark);
                self.notes.push_back(Note::Ran {
                    code: execution.asked.code.clone(),
                    ms: deadline.guest_ms(now),
                });
                if let Some(names) = report.names.take() {
                    self.names = names;
                }
                let last = encoded(encoding).filter(|_| report.has_final);
                let ended = execution.ended(&deadline, now, report, state);
                if let Some(ticket) = ticket {
                    self.resolve(ticket, Ok(Reply::Execution(Box::new(ended), last)));
                }
                return self.ping(now);
            }
            (Event::Done { .. }, Job::Variable(VariableCommand::Set(target, value))) => {
                return self.assigned(now, ticket, &target, value);
            }
            (Event::Done { .. }, Job::Configure(settings)) => {
                if let Some(names) = settings.host_functions {
                    self.config.host_functions = names;
                }
                if let Some(names) = settings.output_fields {
                    self.config.output_fields = names;
                }
                if ticket.is_none() {
                    return self.restore_contexts(now);
                }
                self.checkpoints.settings += 1;
                Ok(Reply::Done)
            }
            (Event::Refused { message, .. }, Job::Configure(settings)) => {
                let what = if settings.host_functions.is_some() {
                    "hostFunctions"
                } else {
                    "outputFields"
                };
                Err(Error::invalid(what, message))
            }
            (Event::Done { .. }, Job::Load(load)) => return self.installed(now, ticket, load),
            (Event::Refused { message, .. }, Job::Load(load)) => match ticket {
                Some(ticket) => return self.not_loaded(ticket, &load, Error::Integrity(message)),
                None => return,
            },
            (Event::Done { .. }, Job::File(command)) => {
                let path = command.changes().unwrap_or_default();
                self.checkpoints.set(&format!("file {path}"));
                Ok(Reply::Done)
            }
            (
                Event::Value {
                    encoding: Encoding::Missing,
                    ..
                },
                Job::File(command),
            ) => Err(Error::FileNotFound(command.path().to_owned())),
            (Event::Refused { message, .. }, Job::File(_)) => Err(Error::File(message)),
            (Event::Refused { message, .. }, _) if is_stopping => Err(Error::Timeout(format!(
                "stopped before it was done; variables are kept: {message}"
            ))),
            (Event::Refused { message, .. }, Job::Variable(VariableCommand::Set(..))) => {
                Err(Error::invalid("setVariable", message))
            }
            (Event::Refused { message, .. }, Job::Variable(VariableCommand::Open(..))) => {
                Err(Error::invalid("state", message))
            }
            (Event::Refused { message, .. }, _) => Err(Error::NotSerializable(message)),
            (Event::Value { encoding, .. }, _) => encoded(encoding)
                .map(Reply::Value)
                .ok_or_else(|| Error::Protocol("a value without a body".to_owned())),
            _ => Ok(Reply::Done),
        };
        if let Some(ticket) = ticket {
            self.resolve(ticket, reply);
        }
    }

    /// Records that the guest has the variable that it was given.
    fn assigned(&mut self, now: f64, ticket: Option<Ticket>, target: &Target, value: Encoded<B>) {
        let name = self.contexts.name(target);
        self.lacking.retain(|lacking| *lacking != name);
        self.checkpoints.set(&name);
        if !self.names.contains(&name) {
            self.names.push(name.clone());
        }
        if target.is_kept() {
            self.contexts_given += u32::from(ticket.is_some());
            self.contexts.keep(&name, value);
        }
        match (ticket, target) {
            (None, _) => self.restore_contexts(now),
            (Some(ticket), Target::Next(_)) => self.resolve(ticket, Ok(Reply::Name(name))),
            (Some(ticket), _) => self.resolve(ticket, Ok(Reply::Done)),
        }
    }

    /// Gives the guest the present settings, because the state that it was given has earlier ones.
    pub(super) fn configure_again(&mut self, now: f64) {
        self.checkpoints.end_journal();
        let unchanged = Settings {
            host_functions: None,
            output_fields: None,
        };
        self.begin(now, None, Job::Configure(unchanged), None);
    }

    /// Takes the exchange, and aborts its host calls.
    pub(super) fn finish_exchange(&mut self, now: f64) -> Option<Exchange<B>> {
        self.abort_calls();
        let exchange = self.exchange.take()?;
        self.checkpoints.worked(now, exchange.deadline.guest_ms(now));
        if exchange.ticket.is_some() {
            self.checkpoints.proved();
            self.proven = true;
        }
        Some(exchange)
    }

    pub(super) fn stop(&mut self, now: f64, reason: StopReason) {
        if self
            .exchange
            .as_mut()
            .is_some_and(|exchange| exchange.can_be_stopped() && exchange.deadline.stop(now, reason))
        {
            self.ask_to_stop(now, reason);
        }
    }

    pub(super) fn ask_to_stop(&mut self, now: f64, reason: StopReason) {
        self.abort_calls();
        if let Some(exchange) = &mut self.exchange {
            exchange.end_record("it was stopped", &mut self.effects);
            exchange.deadline.resume(now);
            let exchange = exchange.number;
            self.post(Request::Interrupt { exchange, reason });
        }
    }

    pub(super) fn line(&self, execution: u32, number: u32) -> Option<&str> {
        match &self.exchange.as_ref()?.job {
            Job::Execute(running) if running.id == execution => running.line(number),
            _ => None,
        }
    }
}
