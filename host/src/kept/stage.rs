//! The stage of a kept sandbox: the place of its present state.

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;

use super::failed;
use crate::driver::journal::{EndedRun, Found, Stored, Written};
use crate::sandbox::{Sandbox, Spent, Suspended};

#[derive(Debug)]
pub(super) enum Stage {
    /// The state is in the store, which was not read yet. `is_left`: a sandbox went on from it, and nobody was told that this is lost.
    Unread { is_left: bool },
    /// The state is in the store only.
    Stored(Box<Suspended>),
    /// An execution is pending after the state in the store.
    Pending(Box<Suspended>, Box<Written>),
    /// An execution after the state in the store has ended and was answered. Running it again makes the present state.
    Ended(Box<Suspended>, Box<EndedRun>),
    /// The state is in the first guest of the sandbox. Later guests do not have it.
    Open(Sandbox),
}

impl Stage {
    /// The stage of a stored state. `is_left`: a sandbox went on from the state, and its effects are lost unless they are in the journal.
    pub(super) fn of((saved, is_left, journal): Found) -> Result<Self, Error> {
        let journal = journal.map(|parts| parts.and_then(|(id, parts)| Stored::read(id, parts)));
        let next = saved.execution.saturating_add(1);
        let suspended = Suspended::from_saved(saved, Spent::default()).map_err(failed)?;
        let mut suspended = Box::new(suspended);
        let unresumable = match journal {
            Some(Ok(Stored::Ended(run))) if run.record.execution() == next => {
                return Ok(Self::Ended(suspended, Box::new(run)));
            }
            Some(Ok(Stored::UnderWay(journal))) if journal.record.execution() == next => {
                match journal.record.broken() {
                    None => return Ok(Self::Pending(suspended, Box::new(journal))),
                    Some(why) => Some(why.to_owned()),
                }
            }
            // A sandbox that went on from the state has begun an execution. Else the journal is an earlier one's.
            Some(Err(damage)) if is_left => Some(damage),
            _ => None,
        };
        if is_left || unresumable.is_some() {
            suspended.past.is_returned_to();
        }
        let why = |why| format!("it was under way when the process ended, and cannot be resumed: {why}");
        suspended.lost.extend(unresumable.map(|reason| lost(next, why(reason))));
        Ok(Self::Stored(suspended))
    }

    /// The state before an ended execution that cannot be run again, because of this. The next execution tells it.
    pub(super) fn without(mut before: Box<Suspended>, execution: u32, why: &str) -> Self {
        before.past.is_returned_to();
        let reason = format!("it had ended, but its state was not written, and it cannot be run again: {why}");
        before.lost.push(lost(execution, reason));
        Self::Stored(before)
    }
}

/// An execution whose effects are lost.
fn lost(execution: u32, reason: String) -> LostVariable {
    LostVariable {
        name: format!("execution {execution}"),
        reason,
    }
}
