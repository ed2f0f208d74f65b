//! Sandboxes that are written out, and go on later in another guest.

use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::budget::Usage;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::Past as CorePast;
use serde_json::Value as Json;

use super::{Captured, Sandbox};
use crate::driver::now;
use crate::value::Payload;

/// All that another sandbox needs to go on from this one's state, except its files.
#[derive(Debug, Clone)]
pub struct Suspended {
    /// The variables, for [`Sandbox::open_state`]. Only guests may open them.
    pub state: Vec<u8>,
    /// The variables that `state` lacks, with the reasons, by the guest's word.
    pub lost: Vec<LostVariable>,
    /// The host's part, for [`SandboxBuilder::past`](super::SandboxBuilder::past).
    pub past: Past,
}

/// The host's part of a sandbox that goes on later: the number of its executions, its contexts, its names, and losses that nobody was told
/// of.
#[derive(Debug, Clone)]
pub struct Past(pub(super) CorePast<Payload>);

impl Past {
    /// The number of executions that were requested.
    pub fn execution(&self) -> u32 {
        self.0.execution()
    }

    /// Has the next execution report variables that could not be written.
    pub fn add_lost(&mut self, lost: Vec<LostVariable>) {
        self.0.add_lost(lost);
    }

    /// Has the next execution report that the state is this one again, because executions after it are undone.
    pub fn is_returned_to(&mut self) {
        self.0.is_returned_to();
    }

    /// The parts to store: JSON, and the bodies that it names by their numbers.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when it cannot be written as JSON.
    pub fn into_parts(self) -> Result<(Json, Vec<Bytes>), Error> {
        let mut bodies = Vec::new();
        let named = self.0.map(|body: Payload| {
            bodies.push(body.0);
            bodies.len() - 1
        });
        let json = serde_json::to_value(named);
        json.map(|json| (json, bodies))
            .map_err(|error| Error::NotSerializable(format!("the session's past: {error}")))
    }

    /// Reads the parts from [`Past::into_parts`].
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for anything else.
    pub fn from_parts(json: Json, bodies: &[Bytes]) -> Result<Self, Error> {
        let malformed = |problem: String| Error::invalid("past", problem);
        let named: CorePast<usize> = serde_json::from_value(json).map_err(|error| malformed(error.to_string()))?;
        let mut is_complete = true;
        let past = named.map(|index| {
            let body = bodies.get(index);
            is_complete &= body.is_some();
            Payload(body.cloned().unwrap_or_default())
        });
        match is_complete {
            true => Ok(Self(past)),
            false => Err(malformed("it names a body that is not there".to_owned())),
        }
    }
}

impl Sandbox {
    /// The state of the sandbox for a later one: the variables, of at most `max_bytes` before they are packed, and the host's part. Nothing
    /// may be asked of the sandbox meanwhile. Checkpoints, threads and open handles of the guest are not part of it.
    ///
    /// # Errors
    /// As [`Sandbox::capture_state`].
    pub async fn suspend(&self, max_bytes: u64) -> Result<Suspended, Error> {
        let Captured { state, lost } = self.capture_state(max_bytes).await?;
        let past = Past(self.driver.past().await?);
        Ok(Suspended { state, lost, past })
    }

    /// The time in milliseconds since the sandbox's budget began, if the budget limits time.
    pub fn budget_time(&self) -> Option<f64> {
        let most = self.budget.limits().max_time?;
        let left = self.budget.left(now()).time?;
        Some(most - left)
    }
}

/// The part of a budget that is used up already.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// The use of models.
    pub usage: Usage,
    /// The time since the budget began, in milliseconds.
    pub time_ms: f64,
}
