//! The stage of a kept sandbox: the place of its present state.

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;

use super::failed;
use crate::driver::journal::{Found, Written};
use crate::sandbox::{Sandbox, Spent, Suspended};

#[derive(Debug)]
pub(super) enum Stage {
    /// The state is in the store, which was not read yet. `is_left`: a sandbox went on from it, and nobody was told that this is lost.
    Unread { is_left: bool },
    /// The state is in the store only.
    Stored(Box<Suspended>),
    /// An execution is pending after the state in the store.
    Pending(Box<Suspended>, Box<Written>),
    /// The state is in the first guest of the sandbox. Later guests do not have it.
    Open(Sandbox),
}

impl Stage {
    /// The stage of a stored state. `is_left`: a sandbox went on from the state, and its effects are lost unless they are in the journal.
    pub(super) fn of((saved, is_left, journal): Found) -> Result<Self, Error> {
        let journal = journal.map(|parts| parts.and_then(|(id, parts)| Written::read(id, parts)));
        let next = saved.execution.saturating_add(1);
        let suspended = Suspended::from_saved(saved, Spent::default()).map_err(failed)?;
        let mut suspended = Box::new(suspended);
        let unresumable = match journal {
            Some(Ok(journal)) if journal.record.execution() == next => match journal.record.broken() {
                None => return Ok(Self::Pending(suspended, Box::new(journal))),
                Some(why) => Some(why.to_owned()),
            },
            // A sandbox that went on from the state has begun an execution. Else the journal is an earlier one's.
            Some(Err(damage)) if is_left => Some(damage),
            _ => None,
        };
        if is_left || unresumable.is_some() {
            suspended.past.is_returned_to();
        }
        suspended.lost.extend(unresumable.map(|why| LostVariable {
            name: format!("execution {next}"),
            reason: format!("it was under way when the process ended, and cannot be resumed: {why}"),
        }));
        Ok(Self::Stored(suspended))
    }
}
