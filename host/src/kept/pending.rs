//! An execution that waits for a later process, as users see it.

use sandglass_core::Error;
use sandglass_core::session::Waits;

use crate::callbacks::arguments;
use crate::driver::journal::{Written, call_id};
use crate::sandbox::ExecuteOptions;
use crate::value::{Payload, Value};

/// An execution that was under way when the process of the sandbox ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The execution's number.
    pub execution: u32,
    /// Its code.
    pub code: String,
    /// The calls that it waits for.
    pub calls: Vec<PendingCall>,
}

/// A host call without an answer. The function may have run: the process ended before its answer was written.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingCall {
    /// The call's name: [`HostCall::id`](crate::HostCall::id) of the function's next call.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The call's positional arguments.
    pub args: Vec<Value>,
    /// The call's keyword arguments, in order.
    pub kwargs: Vec<(String, Value)>,
    /// The time at which Python made the call, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The options of [`Kept::resume`].
#[derive(Debug, Default)]
pub struct ResumeOptions {
    /// Answers to calls that wait, by their [names](PendingCall::id). These calls are not made again.
    pub answers: Vec<(String, Value)>,
    /// The receivers of the execution's events, from its beginning. A timeout or budget is refused: those of the execution count.
    pub execute: ExecuteOptions,
}

impl Pending {
    /// The execution of a journal.
    pub(super) fn of(Written { id, record, times }: &Written) -> Self {
        let call = |waits: Waits<Payload>| {
            let decoded = Value::decode(&waits.args).unwrap_or_default();
            let (args, kwargs, _) = arguments(decoded).unwrap_or_default();
            PendingCall {
                id: call_id(*id, waits.call),
                name: waits.name,
                args,
                kwargs,
                since_ms: times.get(waits.index + 1).copied().unwrap_or_default(),
            }
        };
        Self {
            execution: record.execution(),
            code: record.code().to_owned(),
            calls: record.waiting().into_iter().map(call).collect(),
        }
    }
}

/// Answers to calls that wait, by the places of these.
///
/// # Errors
/// [`Error::InvalidOption`] for a name of no call that waits.
pub(super) fn by_places(journal: &Written, answers: Vec<(String, Value)>) -> Result<Vec<(u32, Value)>, Error> {
    let waiting = journal.record.waiting();
    let by_place = |(id, value)| {
        let waits = waiting.iter().find(|waits| call_id(journal.id, waits.call) == id);
        let problem = || Error::invalid("answers", format!("\"{id}\" is no call that waits; nothing was done"));
        Ok((waits.ok_or_else(problem)?.call, value))
    };
    answers.into_iter().map(by_place).collect()
}
