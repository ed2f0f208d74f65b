//! The journal of a sandbox's executions, in a store of states. Calls and answers wait until the store has the record so far.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

pub(crate) mod bounds;
mod stored;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::protocol::Request;
use sandglass_core::session::{Effect, GuestEffect, HostEffect, Record, RecordChange, Slot};
use sandglass_states::{JournalId, MostEnded, Part, Ran, Rerun, Saved, SessionId, StateError, Tenant, part_bytes};
use serde_json::Value as Json;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::bounds::{KeptBounds, MOST_BYTES};
use self::stored::Text;
pub(crate) use self::stored::{AfterEnd, EndedRun, Stored, Written, packed, unpacked};
use super::{Answered, EndedRecord};
use crate::value::Payload;

/// The executions that can be replayed.
const MOST_ENDED: MostEnded = MostEnded {
    executions: 32,
    journal_bytes: 128 << 20,
    state_bytes: 1 << 30,
};

/// The most bytes of a journal. The core bounds its calls and answers to 64 MiB, and its notes to 3 MiB.
const MOST_JOURNAL_BYTES: u64 = 128 << 20;

/// The place of a session's journal and state in a store. What is written here keeps to the bounds.
#[derive(Debug, Clone)]
pub(crate) struct JournalPlace {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) session: SessionId,
    /// Keeps others away from the place, as long as anybody may write to it.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) lease: Lease,
    pub(crate) bounds: Option<Arc<KeptBounds>>,
    /// Facts that a state has in its head.
    pub(crate) about: Arc<Mutex<Json>>,
}

impl JournalPlace {
    /// Writes the state of the session, and the execution before it.
    pub(crate) fn write(&self, saved: &Saved, ran: Option<&Ran>) -> Result<(), StateError> {
        let about = self.about.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let write = |room: &mut dyn FnMut(u64) -> bool| {
            self.tenant
                .write_after(self.session, saved, (about, ran), &MOST_ENDED, room)
        };
        let Some(bounds) = self.bounds.as_deref() else {
            return write(&mut |_| true).map(drop);
        };
        let bytes = saved.bytes();
        let keeps_ended = bounds.begin_state(bytes)?;
        bounds.collect(&self.tenant);
        let written = write(&mut |ended| keeps_ended && bounds.begin_ended(ended));
        // A write that fails may leave objects as well.
        bounds.wrote(written.as_ref().map_or(bytes, |written| written.new_bytes));
        bounds.end_state(bytes, written?.ended_bytes)
    }

    /// The state before an execution that has ended, and its journal; or the reason for which it cannot run again.
    pub(crate) fn rerun(&self, execution: u32) -> Result<Result<Rerun, String>, StateError> {
        self.tenant.rerun(self.session, execution, MOST_BYTES)
    }

    /// The state, whether a sandbox went on from it, and the journal; `None` if there is no state. A damaged journal leaves the state as it is.
    /// In a store that servers share, the session is this server's from now on.
    pub(crate) fn take(&self) -> Result<Option<Found>, StateError> {
        let (tenant, session) = (&self.tenant, self.session);
        let Some((head, saved)) = tenant.take_up(session, MOST_BYTES)? else {
            return Ok(None);
        };
        let journal = match tenant.journal(session, MOST_JOURNAL_BYTES) {
            Err(StateError::Damaged(what)) => Some(Err(format!("its journal is damaged: {what}"))),
            Err(error) if error.is_damage() => Some(Err(format!("its journal cannot be read: {error}"))),
            journal => journal?.map(Ok),
        };
        if !tenant.is_alone() {
            tenant.hold(session)?;
        }
        Ok(Some((saved, head.awake, journal)))
    }

    /// Notes that the session goes on from its state.
    pub(crate) fn mark_awake(&self) -> Result<(), StateError> {
        self.tenant.mark_awake(self.session).map(drop)
    }

    /// Makes an ended execution durable before the state after it is written. `last` is the JSON of the execution. Returns false, and writes
    /// nothing, if it cannot run again by its journal.
    pub(crate) fn write_ended(
        &self,
        ended: &EndedRecord,
        last: Option<&Bytes>,
        after: AfterEnd,
    ) -> Result<bool, StateError> {
        let Ok(mut body) = packed(ended.journal, &ended.record) else {
            return Ok(false);
        };
        let text = Text::Ended(body.len());
        let text = serde_json::to_string(&text).map_err(undescribed)?;
        body.extend_from_slice(last.map_or(&[], |last| last));
        self.write_part(after.journal, after.number.saturating_sub(1), &text, Some(&body))?;
        Ok(true)
    }

    /// Notes that the sandbox goes on from an ended execution, and that this is not kept.
    pub(crate) fn write_left(&self, after: AfterEnd) -> Result<(), StateError> {
        let text = serde_json::to_string(&Text::Left).map_err(undescribed)?;
        self.write_part(after.journal, after.number, &text, None)
    }

    /// Removes the journal, if there is one.
    pub(crate) fn remove_journal(&self) -> Result<(), StateError> {
        self.tenant.remove_journal(self.session)?;
        self.bound(KeptBounds::end_journal)
    }

    /// Removes the state and the journal, unless the session was used after this time, in milliseconds since 1970.
    pub(crate) fn remove(&self, used_ms: u64) -> Result<(), StateError> {
        self.tenant.remove_unused(self.session, used_ms)?;
        self.bound(|bounds| bounds.end_journal().and_then(|()| bounds.end_state(0, 0)))
    }

    fn write_part(&self, id: JournalId, number: u32, text: &str, body: Option<&[u8]>) -> Result<(), StateError> {
        let bytes = part_bytes(text, body.map_or(0, |body| body.len() as u64));
        if number == 0 {
            self.bound(KeptBounds::end_journal)?; // this part takes the place of an earlier journal
        }
        self.bound(|bounds| {
            bounds.add_part(bytes)?;
            bounds.collect(&self.tenant);
            bounds.wrote(bytes);
            Ok(())
        })?;
        self.tenant.write_part(self.session, id, number, text, body)
    }

    fn remove_one_journal(&self, id: JournalId) -> Result<(), StateError> {
        match self.tenant.remove_one_journal(self.session, id)? {
            true => self.bound(KeptBounds::end_journal),
            false => Ok(()),
        }
    }

    fn bound(&self, bound: impl FnOnce(&KeptBounds) -> Result<(), StateError>) -> Result<(), StateError> {
        self.bounds.as_deref().map_or(Ok(()), bound)
    }
}

/// The first and the longest pause before a server tries again to give a place back.
const RELEASE_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A stored state, whether a sandbox went on from it, and its journal or the damage for which that cannot be read.
pub(crate) type Found = (Saved, bool, Option<Result<(JournalId, Vec<Part>), String>>);

/// The right to use a place. All who may write there have a part of it.
pub(crate) type Lease = Arc<Leased>;

/// A mark of a place: true if the store did not take it back. It is given back later.
pub(crate) type IsOwed = bool;

/// A place that a sandbox has. In a store that servers share, any server may have the session when this is dropped.
#[derive(Debug)]
pub(crate) struct Leased {
    tenant: Arc<Tenant>,
    session: SessionId,
    open: Option<OwnedMutexGuard<IsOwed>>,
    /// Cancelled when the next sandbox may have the place.
    is_free: CancellationToken,
}

impl Leased {
    pub(crate) fn new(tenant: Arc<Tenant>, session: SessionId, open: OwnedMutexGuard<IsOwed>) -> Self {
        Self {
            tenant,
            session,
            open: Some(open),
            is_free: CancellationToken::new(),
        }
    }

    /// A token that is cancelled when the next sandbox may have the place.
    pub(crate) fn is_free(&self) -> CancellationToken {
        self.is_free.clone()
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let is_free = self.is_free.clone().drop_guard(); // dropped last
        let Some(mut open) = self.open.take() else { return };
        if self.tenant.is_alone() {
            return;
        }
        if self.tenant.held_under(self.session) != Some(self.tenant.server()) {
            let _ = self.tenant.release(self.session); // which forgets it, and asks the store nothing
            return;
        }
        // Without a runtime the process ends, and the lease of its server with it.
        let Ok(runtime) = Handle::try_current() else { return };
        let (tenant, session) = (Arc::clone(&self.tenant), self.session);
        runtime.clone().spawn_blocking(move || {
            if !try_release(&tenant, session) && !*open {
                *open = true;
                let place = Arc::clone(OwnedMutexGuard::mutex(&open));
                runtime.spawn(release_later(tenant, session, place));
            }
            drop(open); // only now may the next sandbox have it, because that one must not be released
            drop(is_free);
        });
    }
}

/// Gives a place back. Returns false if the store fails.
fn try_release(tenant: &Tenant, session: SessionId) -> bool {
    match tenant.release(session) {
        // Whoever has taken it over has it.
        Ok(()) | Err(StateError::Taken) => true,
        Err(error) => {
            tracing::warn!(kept = %session, %error, "this server still has a kept sandbox that nobody uses, and tries again to give it back");
            false
        }
    }
}

/// Gives a place back as soon as the store takes it. It waits while a sandbox uses the place.
async fn release_later(tenant: Arc<Tenant>, session: SessionId, place: Arc<AsyncMutex<IsOwed>>) {
    let mut pause = RELEASE_PAUSES.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(RELEASE_PAUSES.1);
        let Ok(mut open) = Arc::clone(&place).try_lock_owned() else {
            continue;
        };
        let tenant = Arc::clone(&tenant);
        let released = tokio::task::spawn_blocking(move || {
            *open = !try_release(&tenant, session);
            !*open
        });
        if released.await.unwrap_or(true) {
            return;
        }
    }
}

/// The error for a sandbox that another server has, or may have by now.
pub(crate) fn taken(what: &str) -> Error {
    Error::PersistInUse(format!(
        "another server that shares the store has the kept sandbox, or may have taken it over: {what}. Ask that server, or open the sandbox \
         again once that server has given it back or has been silent for the time of its lease"
    ))
}

fn undescribed(error: serde_json::Error) -> StateError {
    StateError::io("a journal cannot be described", std::io::Error::other(error))
}

/// The name of a call, which never changes.
pub(crate) fn call_id(journal: JournalId, place: u32) -> String {
    format!("{journal}.{place}")
}

/// The part of a sandbox's task that writes the journal.
#[derive(Debug, Default)]
pub(super) struct Journal {
    place: Option<JournalPlace>,
    id: Option<JournalId>,
    /// The number of the next part.
    next: u32,
    waiting: VecDeque<RecordChange<Payload>>,
    writing: JoinSet<Result<(), StateError>>,
    /// True if a part could not be written, or the journal not removed: then it is removed, and the execution cannot be resumed.
    has_failed: bool,
    /// The reason for which the sandbox ends, although nobody has destroyed it: the execution may only go on by its journal.
    left: Option<Error>,
}

impl Journal {
    pub(super) fn new(place: Option<JournalPlace>) -> Self {
        Self {
            place,
            ..Self::default()
        }
    }

    /// Goes on with a journal whose parts were written at these times.
    pub(super) fn resume(&mut self, id: JournalId, times: &[u64]) {
        let parts = u32::try_from(times.len()).unwrap_or(u32::MAX);
        (self.id, self.next, self.has_failed) = (Some(id), parts, false);
    }

    /// An ended execution, and what the store has of it.
    pub(super) fn ended(&self, record: Arc<Record<Payload>>) -> EndedRecord {
        let journal = self.id.filter(|_| record.is_told());
        EndedRecord {
            journal,
            parts: (!self.has_failed).then_some(journal.map_or(0, |_| self.next)),
            record,
        }
    }

    /// The name of a call of the recorded execution. `place` is 0 if the call is not recorded.
    pub(super) fn call_id(&self, place: u32) -> Option<String> {
        self.id.filter(|_| place > 0).map(|id| call_id(id, place))
    }

    /// Returns true if an effect must wait until the journal is written: a call has an effect on the world, and an answer one on Python.
    pub(super) fn holds(&self, effect: &Effect<Payload>) -> bool {
        (self.is_left() || !self.is_written())
            && matches!(
                effect,
                Effect::Host(HostEffect::CallHost(_))
                    | Effect::Guest(Slot::Main, GuestEffect::Post(Request::HostReply { .. }, _))
            )
    }

    /// Leaves the execution to a later sandbox, which goes on by the journal. This one must be destroyed.
    pub(super) fn leave(&mut self, why: Error) {
        self.left.get_or_insert(why);
    }

    /// Returns true if the sandbox must be destroyed.
    pub(super) fn is_left(&self) -> bool {
        self.left.is_some()
    }

    /// The answer to a command. One that was under way when the execution was left gets the reason.
    pub(super) fn explain(&self, answer: Answered) -> Answered {
        match (answer, &self.left) {
            (Err(Error::Destroyed), Some(why)) => Err(why.clone()),
            (answer, _) => answer,
        }
    }

    pub(super) fn is_written(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    /// Takes a change of the record.
    pub(super) fn note(&mut self, change: RecordChange<Payload>) {
        if self.place.is_some() {
            self.waiting.push_back(change);
            self.write();
        }
    }

    /// Waits until a write has ended. Dropping the future loses nothing.
    pub(super) async fn written(&mut self) {
        let Some(written) = self.writing.join_next().await else {
            return std::future::pending().await;
        };
        let problem = match written {
            Ok(Ok(())) => None,
            // Another server may go on with the execution by now. With this part it does or without it, and this guest must not.
            Ok(Err(StateError::Taken)) => {
                self.waiting.clear();
                self.place = None;
                self.leave(taken(
                    "the guest was ended. No call was made that the journal does not have; the execution is pending for whoever opens it next",
                ));
                return;
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            tracing::warn!(
                problem,
                "the journal of an execution could not be written, so it cannot be resumed"
            );
            if std::mem::replace(&mut self.has_failed, true) {
                self.waiting.clear();
                self.place = None;
                self.leave(Error::PersistFailed(format!(
                    "the journal can neither be written nor removed ({problem}), so the guest was ended. No call was made that the journal does \
                     not have; the execution is pending"
                )));
            } else {
                // With a part missing, calls would be made twice.
                self.waiting.retain(|change| matches!(change, RecordChange::Begin(_)));
                self.waiting.push_front(RecordChange::End);
            }
        }
        self.write();
    }

    /// Writes what waits, and forgets the store.
    pub(super) async fn end(&mut self) {
        while !self.is_written() {
            self.written().await;
        }
        self.place = None;
    }

    /// Begins the next write, if none is under way.
    fn write(&mut self) {
        while self.writing.is_empty()
            && let Some(change) = self.waiting.pop_front()
        {
            let Some(place) = self.place.clone() else {
                return;
            };
            let begins = matches!(change, RecordChange::Begin(_));
            if self.has_failed && !begins && change != RecordChange::End {
                continue;
            }
            if begins {
                (self.id, self.next, self.has_failed) = (JournalId::random().ok(), 0, false);
            }
            let (id, number) = (self.id, self.next);
            self.next += 1;
            self.writing.spawn_blocking(move || {
                let mut body = None;
                let text = match change {
                    RecordChange::Begin(beginning) => Text::Begin(beginning),
                    RecordChange::Add(_, entry) => Text::Entry(entry.map(|Payload(bytes)| body = Some(bytes))),
                    RecordChange::Break(why) => Text::Broken(why),
                    RecordChange::End => return id.map_or(Ok(()), |id| place.remove_one_journal(id)),
                };
                let text = serde_json::to_string(&text).map_err(undescribed)?;
                let id = id.ok_or_else(|| StateError::Key("the system gives no random numbers".to_owned()))?;
                place.write_part(id, number, &text, body.as_deref())
            });
        }
    }
}
