//! The record of an execution: what the world answered while its code ran. To users it is the *journal* of the execution.
//!
//! The code of a recorded execution learns of the world by two ways only. Host calls are answered here, by the session. The clock and chance
//! answer inside of the guest, which sends *notes* of these answers before each call. Everything else that the code does follows from
//! the state before it. So the same state and the same answers give the same run.
//!
//! The driver writes the record ([`RecordChange`]): a call before the user's function is called, and an answer before the guest gets it. A later
//! session resumes the execution: its guest gets the notes first, and its calls get the recorded answers. A call that is not the recorded
//! one is an error, which names both.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sketch::shown;
use super::{Body, Encoded};
use crate::budget::{BudgetLimits, Usage};
use crate::protocol::{ReplyStatus, Step};

/// The most bytes of a record.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of notes. A guest sends at most a third of this.
const MAX_NOTES: usize = 3 * 1024 * 1024;
/// The most entries of notes beyond the number of calls. A guest sends one before the calls that it makes at once, one at its end, and
/// perhaps one for calls that it does not make after all.
const MOST_NOTES_WITHOUT_CALLS: usize = 16;
/// The base of a record if the driver keeps the state before it, by value. No checkpoint has this number.
pub(super) const BY_VALUE: u32 = 0;

/// The execution of a record, and the state before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beginning {
    /// The execution's number.
    pub execution: u32,
    /// The execution's code.
    pub code: String,
    /// Guest time in milliseconds.
    pub timeout_ms: f64,
    /// The execution's own limits.
    #[serde(default)]
    pub budget: BudgetLimits,
    /// The checkpoint that the state comes from.
    pub base: u32,
    /// The executions after that checkpoint.
    pub steps: Vec<Step>,
}

/// A part of a record. In JSON, a body is what the driver puts in its place ([`Entry::map`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Entry<B> {
    /// The guest's notes of what clock and chance have answered.
    Notes {
        /// The notes, in the guest's own form.
        notes: B,
    },
    /// A host call.
    Call {
        /// The function's name.
        name: String,
        /// The arguments, as in [`Call`](super::Call).
        args: Encoded<B>,
    },
    /// The answer to a call.
    Answer {
        /// The call's place among the execution's calls, from 1.
        call: u32,
        /// The outcome of the call.
        status: ReplyStatus,
        /// The reason for which there is no value.
        message: Option<String>,
        /// The value, if the call succeeded.
        value: Option<Encoded<B>>,
        /// The use of the budget.
        usage: Usage,
    },
}

/// A step of the driver for a record. Steps must be done in order, and before the host calls and replies that follow them.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordChange<B> {
    /// Begins a record, which replaces an earlier one.
    Begin(Beginning),
    /// Adds an entry with this index, from 0.
    Add(usize, Entry<B>),
    /// The execution cannot be resumed, because of this.
    Break(String),
    /// Removes the record.
    End,
}

/// A call of a recorded execution that has no answer yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Waits<B> {
    /// The call's place among the execution's calls, from 1.
    pub call: u32,
    /// The place of its entry in the record, from 0.
    pub index: usize,
    /// The function's name.
    pub name: String,
    /// The arguments, as in [`Call`](super::Call).
    pub args: Encoded<B>,
}

/// A call that the guest makes, as the record sees it.
#[derive(Debug)]
pub(super) enum Made<B> {
    /// The call was not answered yet. Its place among the execution's calls follows.
    Fresh(u32),
    /// The call was answered in an earlier run.
    Known(Answer<B>),
}

/// The recorded answer to a call.
#[derive(Debug, Clone)]
pub(super) struct Answer<B> {
    pub(super) status: ReplyStatus,
    pub(super) result: Result<Encoded<B>, String>,
    pub(super) usage: Usage,
}

/// The rule for code that does something else than the record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The execution goes on where the record ends.
    Resume,
    /// The execution must end where the record ends.
    Replay,
    /// The execution goes another way after a changed answer. A call with recorded arguments still gets the recorded answer. Any other call is
    /// made.
    Explore,
}

/// The record of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<B> {
    pub(super) beginning: Beginning,
    entries: Vec<Entry<B>>,
    /// For each call, the places of its entry and of its answer's.
    calls: Vec<(usize, Option<usize>)>,
    bytes: usize,
    /// The number of entries of notes, and the bytes of all of them.
    notes: usize,
    notes_bytes: usize,
    /// The reason for which the execution cannot be resumed.
    broken: Option<String>,
    /// True if the driver has the beginning.
    is_told: bool,
    is_told_broken: bool,
    /// The number of entries that the driver has.
    told: usize,
    strictness: Strictness,
    /// The calls of this run so far.
    made: u32,
    /// Places of calls, by the guest's numbers.
    numbers: BTreeMap<u32, u32>,
    /// Use of the budget by calls that have no answer yet.
    used: BTreeMap<u32, Usage>,
    /// The calls whose recorded answers this run has used, if it explores.
    taken: Vec<u32>,
    /// The first difference of this run from the record, if it explores.
    pub(super) difference: Option<String>,
}

impl<B> Entry<B> {
    /// Replaces each body. An entry has one at most.
    pub fn map<C>(self, mut replace: impl FnMut(B) -> C) -> Entry<C> {
        let mut encoded = |Encoded { encoding, body }: Encoded<B>| Encoded {
            encoding,
            body: replace(body),
        };
        match self {
            Self::Notes { notes } => Entry::Notes { notes: replace(notes) },
            Self::Call { name, args } => Entry::Call {
                name,
                args: encoded(args),
            },
            Self::Answer {
                call,
                status,
                message,
                value,
                usage,
            } => Entry::Answer {
                call,
                status,
                message,
                value: value.map(encoded),
                usage,
            },
        }
    }
}

impl<B: Body> Record<B> {
    pub(super) fn new(beginning: Beginning) -> Self {
        Self {
            beginning,
            entries: Vec::new(),
            calls: Vec::new(),
            bytes: 0,
            notes: 0,
            notes_bytes: 0,
            broken: None,
            is_told: false,
            is_told_broken: false,
            told: 0,
            strictness: Strictness::Resume,
            made: 0,
            numbers: BTreeMap::new(),
            used: BTreeMap::new(),
            taken: Vec::new(),
            difference: None,
        }
    }

    /// The record that an earlier session's driver has written. `broken`: the reason for which it cannot be resumed. An error is a damage.
    pub fn written(beginning: Beginning, entries: Vec<Entry<B>>, broken: Option<String>) -> Result<Self, String> {
        let mut record = Self::new(beginning);
        for entry in entries {
            let fits = match &entry {
                Entry::Answer { call, .. } => record.call(*call).is_some_and(|(_, answer)| answer.is_none()),
                _ => true,
            };
            if !fits {
                return Err("the journal has an answer to no call".to_owned());
            }
            record.push(entry);
        }
        record.is_told = true;
        record.is_told_broken = broken.is_some();
        record.broken = broken;
        record.told = record.entries.len();
        Ok(record)
    }

    /// A record that is not there, because of this. It stands for one, so that the reason can be told.
    pub fn missing(execution: u32, why: &str) -> Self {
        let mut record = Self::new(Beginning {
            execution,
            code: String::new(),
            timeout_ms: 0.0,
            budget: BudgetLimits::default(),
            base: 0,
            steps: Vec::new(),
        });
        record.end(why);
        record
    }

    /// The execution of the record and the state before it, and all entries, as [`Record::written`] takes them.
    pub fn parts(&self) -> (&Beginning, &[Entry<B>]) {
        (&self.beginning, &self.entries)
    }

    /// The execution's number.
    pub fn execution(&self) -> u32 {
        self.beginning.execution
    }

    /// The execution's code.
    pub fn code(&self) -> &str {
        &self.beginning.code
    }

    /// Gives the execution at least so much guest time when it runs again, in milliseconds.
    pub fn allow_time(&mut self, timeout_ms: f64) {
        self.beginning.timeout_ms = self.beginning.timeout_ms.max(timeout_ms);
    }

    /// The reason for which the execution cannot be resumed, if there is one.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The reason for which the execution cannot be replayed, whatever became of the state before it.
    pub fn why_not_replayed(&self) -> Option<&str> {
        let is_whole = self.calls.iter().all(|(_, answer)| answer.is_some());
        self.broken()
            .or_else(|| (!is_whole).then_some("a call in it has no answer"))
    }

    /// The first difference of the run from the record, if the run explores.
    pub fn difference(&self) -> Option<&str> {
        self.difference.as_deref()
    }

    /// Returns true if the driver keeps the state before the execution, by value.
    pub(super) fn is_by_value(&self) -> bool {
        self.beginning.base == BY_VALUE
    }

    /// The calls without an answer.
    pub fn waiting(&self) -> Vec<Waits<B>> {
        let waits = |(at, (index, answer)): (usize, &(usize, Option<usize>))| match self.entries.get(*index) {
            Some(Entry::Call { name, args }) if answer.is_none() => Some(Waits {
                call: u32::try_from(at + 1).ok()?,
                index: *index,
                name: name.clone(),
                args: args.clone(),
            }),
            _ => None,
        };
        self.calls.iter().enumerate().filter_map(waits).collect()
    }

    /// The notes of all earlier runs, joined. `None` if there are none.
    pub(super) fn notes(&self) -> Option<B> {
        let notes = self.entries.iter().filter_map(|entry| match entry {
            Entry::Notes { notes } => Some(notes),
            _ => None,
        });
        let notes: Vec<&B> = notes.collect();
        (!notes.is_empty()).then(|| B::joined(&notes))
    }

    /// The same record before its code runs again.
    pub(super) fn rewound(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self.made = 0;
        self.numbers.clear();
        self.used.clear();
        self.taken.clear();
        self.difference = None;
        self
    }

    /// The size of all bodies, and of all code.
    pub fn size(&self) -> usize {
        let steps = self.beginning.steps.iter().map(|step| step.code.len());
        self.bytes
            .saturating_add(self.beginning.code.len() + steps.sum::<usize>())
    }

    pub(super) fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// Returns true if the driver was told of the record.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    fn call(&self, call: u32) -> Option<&(usize, Option<usize>)> {
        self.calls.get((call as usize).checked_sub(1)?)
    }

    fn push(&mut self, entry: Entry<B>) {
        let index = self.entries.len();
        let size = match &entry {
            Entry::Notes { notes } => {
                self.notes += 1;
                self.notes_bytes = self.notes_bytes.saturating_add(notes.size());
                notes.size()
            }
            Entry::Call { args, .. } => {
                self.calls.push((index, None));
                args.body.size()
            }
            Entry::Answer { call, value, .. } => {
                let at = (*call as usize).saturating_sub(1);
                if let Some((_, answer)) = self.calls.get_mut(at) {
                    *answer = Some(index);
                }
                value.as_ref().map_or(0, |value| value.body.size())
            }
        };
        self.bytes = self.bytes.saturating_add(size);
        self.entries.push(entry);
    }

    fn add(&mut self, entry: Entry<B>) {
        if self.broken.is_some() {
            return;
        }
        self.push(entry);
        if self.bytes > MAX_BYTES {
            self.end("its calls and their answers are too large to be kept");
        }
    }

    /// Records that the execution cannot be resumed.
    pub(super) fn end(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.chars().take(300).collect());
    }

    /// Takes notes of the guest. Their number is bounded by that of the calls, because drivers write each entry as a file. An error is a
    /// violation.
    pub(super) fn hear(&mut self, notes: B) -> Result<(), &'static str> {
        if notes.size() == 0 {
            return Err("notes without content");
        }
        if self.notes_bytes.saturating_add(notes.size()) > MAX_NOTES {
            return Err("more notes than a guest makes");
        }
        if self.strictness == Strictness::Resume && self.broken.is_none() {
            if self.notes >= self.calls.len().saturating_add(MOST_NOTES_WITHOUT_CALLS) {
                return Err("more notes than calls");
            }
            self.add(Entry::Notes { notes });
        }
        Ok(())
    }

    /// Takes a call of the guest. An error is a difference from the record.
    pub(super) fn made(&mut self, guest_call: u32, name: &str, args: &Encoded<B>) -> Result<Made<B>, String> {
        self.made += 1;
        let call = self.made;
        self.numbers.insert(guest_call, call);
        let recorded = self.call(call).and_then(|(index, _)| self.entries.get(*index));
        let differs = match recorded {
            Some(Entry::Call { name: noted, args: its }) => {
                (!is_same_call((noted.as_str(), its), (name, args))).then(|| Some(shown(noted, its)))
            }
            _ => (self.strictness != Strictness::Resume).then_some(None),
        };
        if self.strictness == Strictness::Explore {
            if let Some(noted) = differs {
                let noted = noted.unwrap_or_else(|| "no further call".to_owned());
                let what = format!("call {call} is {}, where the journal has {noted}", shown(name, args));
                self.difference.get_or_insert(what);
            }
            let found = (1..).zip(&self.calls).find(|(number, (index, answer))| {
                let entry = self.entries.get(*index);
                !self.taken.contains(number)
                    && answer.is_some()
                    && matches!(entry, Some(Entry::Call { name: noted, args: its }) if is_same_call((noted.as_str(), its), (name, args)))
            });
            let found = found.map(|(number, _)| number);
            self.taken.extend(found);
            let answer = found.and_then(|number| self.answer_to(number));
            return Ok(answer.map_or(Made::Fresh(call), Made::Known));
        }
        match differs {
            Some(noted) => {
                let noted = noted.unwrap_or_else(|| "no further call".to_owned());
                Err(format!(
                    "call {call} is {}, where the journal has {noted}",
                    shown(name, args)
                ))
            }
            None if recorded.is_some() => Ok(self.answer_to(call).map_or(Made::Fresh(call), Made::Known)),
            None => {
                self.add(Entry::Call {
                    name: name.to_owned(),
                    args: args.clone(),
                });
                Ok(Made::Fresh(call))
            }
        }
    }

    fn answer_to(&self, call: u32) -> Option<Answer<B>> {
        let (_, answer) = self.call(call)?;
        match self.entries.get((*answer)?)? {
            Entry::Answer {
                status,
                message,
                value,
                usage,
                ..
            } => Some(Answer {
                status: *status,
                result: value.clone().ok_or_else(|| message.clone().unwrap_or_default()),
                usage: *usage,
            }),
            _ => None,
        }
    }

    /// Returns the place of the guest's call among the execution's calls.
    pub(super) fn place(&self, guest_call: u32) -> Option<u32> {
        self.numbers.get(&guest_call).copied()
    }

    /// Records the use of the budget by a call that has no answer yet.
    pub(super) fn used(&mut self, guest_call: u32, usage: &Usage) {
        if let Some(call) = self.place(guest_call) {
            self.used.entry(call).or_default().add(usage);
        }
    }

    /// Records the answer to a call of the guest.
    pub(super) fn answered(&mut self, guest_call: u32, status: ReplyStatus, result: &Result<Encoded<B>, String>) {
        if let Some(call) = self.place(guest_call)
            && self.strictness == Strictness::Resume
        {
            self.answer(call, status, result);
        }
    }

    /// Records the answer to a call. Returns false if there is no such call, or it has an answer.
    pub(super) fn answer(&mut self, call: u32, status: ReplyStatus, result: &Result<Encoded<B>, String>) -> bool {
        if self.call(call).is_none_or(|(_, answer)| answer.is_some()) {
            return false;
        }
        let usage = self.used.remove(&call).unwrap_or_default();
        self.add(Entry::Answer {
            call,
            status,
            message: result.as_ref().err().cloned(),
            value: result.as_ref().ok().cloned(),
            usage,
        });
        true
    }

    /// Puts another answer in the place of a recorded one. Returns false if there is no such call.
    pub fn change(&mut self, call: u32, value: Encoded<B>) -> bool {
        let Some((_, Some(index))) = self.call(call).copied() else {
            return false;
        };
        if let Some(Entry::Answer {
            status,
            message,
            value: noted,
            ..
        }) = self.entries.get_mut(index)
        {
            (*status, *message, *noted) = (ReplyStatus::Ok, None, Some(value));
        }
        true
    }

    /// The part of the record that this run has not used, for a run that must use all of it.
    pub(super) fn unused(&self) -> Option<String> {
        let next = self.call(self.made + 1)?;
        match self.entries.get(next.0)? {
            Entry::Call { name, args } if self.strictness == Strictness::Replay => Some(format!(
                "the code ended before call {}, which is {}",
                self.made + 1,
                shown(name, args)
            )),
            _ => None,
        }
    }

    /// The steps that the driver has not been told of.
    pub(super) fn untold(&mut self) -> Vec<RecordChange<B>> {
        let mut notes = Vec::new();
        if self.strictness != Strictness::Resume {
            return notes;
        }
        if !std::mem::replace(&mut self.is_told, true) {
            notes.push(RecordChange::Begin(self.beginning.clone()));
        }
        if let Some(why) = &self.broken {
            if !std::mem::replace(&mut self.is_told_broken, true) {
                notes.push(RecordChange::Break(why.clone()));
            }
            return notes;
        }
        let news = self.entries.iter().enumerate().skip(self.told);
        notes.extend(news.map(|(index, entry)| RecordChange::Add(index, entry.clone())));
        self.told = self.entries.len();
        notes
    }
}

fn is_same_call<B: Body>((name, args): (&str, &Encoded<B>), (other, its): (&str, &Encoded<B>)) -> bool {
    name == other && args.encoding == its.encoding && args.body.is_same(&its.body)
}
