//! Recorded executions: their records from beginning to end, and executions of an earlier session that this one goes on with.
//!
//! An execution is *pending* if an earlier session has ended in the middle of it. Until the user resumes it or gives it up, the state stays
//! exactly as it was before it.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;

use super::copies::Fork;
use super::exchange::{Exchange, Job};
use super::execution::{Execute, Execution};
use super::interpreter::{Guest, Interpreter};
use super::journal::{Origin, Steps};
use super::records::{BY_VALUE, Beginning, Record, RecordChange, Strictness};
use super::{Body, Command, Effect, Encoded, Error, HostEffect, Reply, Session, StateCommand, Ticket};
use crate::execution::StateReport;
use crate::protocol::ReplyStatus;

/// The most records of ended executions, and the most bytes of their bodies and code.
const MOST_ENDED: usize = 32;
const MOST_ENDED_BYTES: usize = 128 * 1024 * 1024;

impl<B: Body> Session<B> {
    /// Records executions, and has the driver write their records ([`HostEffect::Note`]). No code runs ahead then.
    #[must_use]
    pub fn with_records(mut self) -> Self {
        self.interpreter.records = true;
        self.interpreter.checkpoints.saves_first = true;
        self
    }

    /// Makes the recorded execution of an earlier session pending. If it cannot be resumed, the next execution tells why.
    #[must_use]
    pub fn with_pending(mut self, record: Record<B>, strictness: Strictness) -> Self {
        self.interpreter.make_pending(record, strictness);
        self
    }

    /// The execution that an earlier session has not finished.
    pub fn pending(&self) -> Option<&Record<B>> {
        self.interpreter.pending.as_ref()
    }

    /// A copy of the state before an ended execution, and the execution's record.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if there is no whole record of the execution, or the state before it is gone.
    pub fn replayed(&self, execution: u32) -> Result<(Fork<B>, Record<B>), Error> {
        self.interpreter.replayed(execution)
    }

    /// Returns true if code only waits for calls, and a later session can go on with it by its record and the state before it, which the
    /// driver has.
    pub fn only_waits(&self) -> bool {
        self.interpreter.only_waits()
    }

    /// The first difference of an execution from its record, if it went another way after a changed answer.
    pub fn difference(&self) -> Option<&str> {
        let ended = self.interpreter.ended_records.back();
        ended.and_then(|record| record.difference())
    }

    /// Takes the record of the last execution, if the driver has the state before it by value. Only the driver can have it replayed.
    pub fn take_ended(&mut self) -> Option<Arc<Record<B>>> {
        let ended = &mut self.interpreter.ended_records;
        match ended.back().is_some_and(|record| record.is_by_value()) {
            true => ended.pop_back(),
            false => None,
        }
    }
}

impl<B: Body> Exchange<B> {
    /// Records that the execution cannot be resumed.
    pub(super) fn end_record(&mut self, why: &str, effects: &mut Vec<Effect<B>>) {
        if let Some(record) = &mut self.calls.record {
            record.end(why);
            if record.is_told() {
                effects.extend(
                    record
                        .untold()
                        .into_iter()
                        .map(|note| Effect::Host(HostEffect::Note(note))),
                );
            }
        }
    }
}

impl<B: Body> Interpreter<B> {
    fn make_pending(&mut self, record: Record<B>, strictness: Strictness) {
        let beginning = &record.beginning;
        // The page may have ended when the execution had, and the state after it was not kept.
        self.ended_records
            .retain(|ended| ended.execution() != beginning.execution);
        self.last_execution = self.last_execution.max(beginning.execution);
        let is_of_base = self.checkpoints.base == Some(beginning.base);
        let why = match record.broken() {
            None if is_of_base => {
                self.records = true;
                self.checkpoints.frozen = true;
                self.pending = Some(record.rewound(strictness));
                return;
            }
            Some(why) => why.to_owned(),
            None => "its journal is of another state".to_owned(),
        };
        let name = format!("execution {}", beginning.execution);
        let reason = format!("it was under way when the page ended, and cannot be resumed: {why}");
        let base = self.checkpoints.base.and_then(|base| self.checkpoints.chain.find(base));
        let loss = match base {
            Some(base) => StateReport::restored(base.execution, [name], &reason),
            None => StateReport::lost([name], &reason),
        };
        self.tell_later(Some(loss));
        self.note(RecordChange::End);
    }

    /// Makes an execution pending whose state before it the driver has put into the guest, by value. The guest must be the first one: in a
    /// later one this state is gone.
    pub(super) fn recorded(&mut self, record: Record<B>, strictness: Strictness) {
        if record.is_by_value() && self.guest == Guest::Up && self.has_first_guest() {
            self.last_execution = self.last_execution.max(record.execution());
            self.pending = Some(record.rewound(strictness));
        }
    }

    /// Hears that the driver has the present state by value, or has not. That of a later guest is another one.
    pub(super) fn state_kept(&mut self, kept: Result<(), String>) {
        self.state_kept =
            Some(kept).filter(|_| self.guest == Guest::Up && self.has_first_guest() && self.exchange.is_none());
    }

    /// Returns true if recorded code only waits for calls, and the driver can go on with it by what it has.
    pub(super) fn only_waits(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| {
            let record = exchange.calls.record.as_ref();
            let has_all =
                record.is_some_and(|record| record.is_told() && record.is_by_value() && record.broken().is_none());
            has_all && !exchange.calls.is_empty() && !exchange.is_stopping()
        })
    }

    /// Forgets the pending execution if the state before it was in the guest that has ended. The driver still has both.
    pub(super) fn forget_pending(&mut self) {
        self.pending.take_if(|record| record.is_by_value());
    }

    fn note(&mut self, note: RecordChange<B>) {
        self.effects.push(Effect::Host(HostEffect::Note(note)));
    }

    /// The record of a job that begins, if it is recorded. `is_begun`: a guest runs it already.
    pub(super) fn record_of(&mut self, job: &Job<B>, is_begun: bool) -> Option<Record<B>> {
        let kept = self.state_kept.take(); // any job may change the state
        let Job::Execute(execution) = job else { return None };
        if execution.resumes {
            self.checkpoints.frozen = false;
            return self.pending.take();
        }
        if is_begun || !(self.records || kept.is_some()) {
            return None;
        }
        let origin = match &self.checkpoints.before {
            _ if kept.is_some() => Some((BY_VALUE, Vec::new())),
            Some(Origin::Saved(number, steps)) => Some((*number, steps.to_repeat())),
            _ => None,
        };
        let is_saved = origin.is_some();
        let (base, steps) = origin.unwrap_or_default();
        let mut record = Record::new(Beginning {
            execution: execution.id,
            code: execution.asked.code.clone(),
            timeout_ms: execution.timeout_ms,
            budget: execution.asked.budget,
            base,
            steps,
        });
        if !is_saved {
            record.end("the state before it was not saved");
        }
        if let Some(Err(why)) = kept {
            record.end(&why);
        }
        Some(record)
    }

    /// Keeps the record of an ended execution. The driver keeps it as well, until the state after the execution is kept.
    pub(super) fn record_ended(&mut self, mut record: Record<B>, stopped: bool) {
        if stopped {
            record.end("it was stopped");
        }
        if record.is_told() {
            self.told_record = Some(record.beginning.base);
            let mut notes = record.untold();
            if record.is_by_value() {
                notes.retain(|note| !matches!(note, RecordChange::Add(..))); // it takes the whole record
            }
            notes.into_iter().for_each(|note| self.note(note));
        }
        if record.is_by_value() {
            self.ended_records.clear(); // nothing here has the states before them: the driver takes each one
        }
        self.ended_records.push_back(Arc::new(record));
        let mut bytes: usize = self.ended_records.iter().map(|record| record.size()).sum();
        while self.ended_records.len() > MOST_ENDED || bytes > MOST_ENDED_BYTES {
            let gone = self.ended_records.pop_front();
            bytes -= gone.map_or(bytes, |gone| gone.size());
        }
    }

    /// The records of ended executions, for a later session. One that cannot be replayed is replaced by the reason.
    pub(super) fn kept_records(&self) -> Vec<Arc<Record<B>>> {
        let kept = |record: &Arc<Record<B>>| match self.why_not_replayed(record) {
            Some(why) => Arc::new(Record::missing(record.execution(), why)),
            None => Arc::clone(record),
        };
        self.ended_records.iter().map(kept).collect()
    }

    /// Takes the records of an earlier session. If guests cannot have its states, `foreign` says why.
    pub(super) fn take_records(&mut self, records: Vec<Arc<Record<B>>>, foreign: Option<&str>) {
        let taken = |record: Arc<Record<B>>| match foreign {
            Some(why) if record.broken().is_none() => Arc::new(Record::missing(record.execution(), why)),
            _ => record,
        };
        self.ended_records = records.into_iter().map(taken).collect();
    }

    /// The reason for which an ended execution cannot be replayed, if there is one.
    fn why_not_replayed<'a>(&self, record: &'a Record<B>) -> Option<&'a str> {
        record.why_not_replayed().or_else(|| {
            let is_gone = self.checkpoints.chain.find(record.beginning.base).is_none();
            is_gone.then_some("the state before it is gone")
        })
    }

    /// Returns true if the driver has a record of an execution after the state that is kept.
    pub(super) fn has_told_record(&self) -> bool {
        let runs = self
            .exchange
            .iter()
            .filter_map(|exchange| exchange.calls.record.as_ref());
        let is_at_base = self.told_record.is_some() && self.told_record == self.checkpoints.base;
        self.pending.is_some() || is_at_base || runs.into_iter().any(Record::is_told)
    }

    /// Has the driver remove the record of an execution whose effects are gone with the guest.
    pub(super) fn drop_told_record(&mut self) {
        let has_one = self.pending.is_none() && self.has_told_record();
        self.told_record = None;
        if has_one {
            self.note(RecordChange::End);
        }
    }

    /// The reason for which a command cannot be carried out while an execution is pending, if there is one.
    pub(super) fn refused_by_pending(&self, command: &Command<B>) -> Option<Error> {
        let record = self.pending.as_ref()?;
        match command {
            Command::Start
            | Command::Load(_)
            | Command::Resume(_)
            | Command::Discard
            | Command::State(StateCommand::Checkpoint | StateCommand::Rewind) => None,
            _ => {
                let execution = record.execution();
                Some(Error::ExecutionPending(format!(
                    "execution {execution} was under way when the last page ended; nothing was done. Call resume() to go on with it, or \
                     discard() to give it up"
                )))
            }
        }
    }

    /// The state before the pending execution.
    pub(super) fn before_pending(&self) -> Option<Origin<B>> {
        let beginning = &self.pending.as_ref()?.beginning;
        Some(Origin::Saved(beginning.base, Steps::from(beginning.steps.clone())))
    }

    /// Returns true if the present state is the one before the pending execution.
    pub(super) fn is_before_pending(&self) -> bool {
        let Some(Beginning { base, steps, .. }) = self.pending.as_ref().map(|record| &record.beginning) else {
            return false;
        };
        *base == BY_VALUE || self.checkpoints.base == Some(*base) && self.checkpoints.repeated.to_repeat() == *steps
    }

    /// The pending execution as a job. Calls whose answers are given are not made again.
    pub(super) fn resumed(&mut self, now: f64, answers: Vec<(u32, Encoded<B>)>) -> Result<Execution, Error> {
        let nothing = || Error::invalid("resume", "no execution is pending; nothing was done");
        let is_queued = self.has_queued_resumption();
        let record = self.pending.as_mut().filter(|_| !is_queued).ok_or_else(nothing)?;
        let waits = record.waiting();
        if let Some((call, _)) = answers
            .iter()
            .find(|(call, _)| waits.iter().all(|one| one.call != *call))
        {
            let why = format!("call {call} of the pending execution does not wait for an answer; nothing was done");
            return Err(Error::invalid("answers", why));
        }
        for (call, value) in answers {
            record.answer(call, ReplyStatus::Ok, &Ok(value));
        }
        let notes = record.untold();
        let beginning = record.beginning.clone();
        notes.into_iter().for_each(|note| self.note(note));
        let asked = Execute {
            code: beginning.code,
            timeout_ms: Some(beginning.timeout_ms),
            budget: beginning.budget,
        };
        let made = Execution::new::<B>(now, beginning.execution, asked, &self.config.limits);
        let mut execution = made.map_err(|_| Error::invalid("resume", "the code is longer than maxCodeLength"))?;
        execution.resumes = true;
        Ok(execution)
    }

    /// Gives the pending execution up.
    pub(super) fn discard(&mut self, ticket: Ticket) {
        let reply = if self.pending.is_none() || self.has_queued_resumption() {
            Err(Error::invalid("discard", "no execution is pending; nothing was done"))
        } else {
            self.pending = None;
            self.checkpoints.frozen = false;
            self.note(RecordChange::End);
            Ok(Reply::Done)
        };
        self.resolve(ticket, reply);
    }

    /// Ends a resumed execution whose code did something else than its record has. The execution is pending again.
    pub(super) fn journal_differs(&mut self, now: f64, what: &str) {
        self.abort_calls();
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        let mut has_state = true;
        let mut strictness = Strictness::Resume;
        if let Some(record) = exchange.calls.record.take() {
            has_state = !record.is_by_value();
            self.checkpoints.frozen = has_state;
            strictness = record.strictness();
            self.pending = Some(record.rewound(strictness));
        }
        self.end_guest(Guest::Down);
        if let Some(ticket) = exchange.ticket {
            let consequence = match strictness {
                Strictness::Resume => "The state is as it was before the execution, which is still pending",
                Strictness::Replay | Strictness::Explore => "The sandbox stays as it is",
            };
            let why = format!("the execution went another way than its journal says: {what}. {consequence}");
            self.resolve(ticket, Err(Error::JournalDiffers(why)));
        }
        if has_state {
            self.boot(now);
        }
    }

    fn replayed(&self, execution: u32) -> Result<(Fork<B>, Record<B>), Error> {
        let none = |why: &str| Error::NoCheckpoint(format!("execution {execution} cannot be replayed: {why}"));
        let mut ended = self.ended_records.iter().rev();
        let record = ended.find(|record| record.execution() == execution);
        let record = record.ok_or_else(|| none("there is no journal of it"))?;
        let link = self.checkpoints.chain.find(record.beginning.base);
        let link = match (self.why_not_replayed(record), link) {
            (None, Some(link)) => link,
            (why, _) => return Err(none(why.unwrap_or_default())),
        };
        // The copy keeps the settings that the state has, such as the functions of another page.
        let fork = self.fork_of(link).with_settings_of(link);
        Ok((fork, Record::clone(record)))
    }
}
