//! The core of Sandglass, a Python REPL sandbox for Recursive Language Models.
//!
//! It is sans-IO: no clock, no socket, no browser. A [`Session`] turns [`Input`]s into [`Effect`]s, a driver carries them out.
//!
//! | module | holds |
//! |---|---|
//! | [`protocol`] | what host and guest say to each other |
//! | [`session`] | the state machine of one guest |
//! | [`deadline`] | when to interrupt, when to kill |
//! | [`budget`] | what may be spent on models |
//! | [`packages`] | which wheels a list of requirements comes down to |
//! | [`output`] | all truncation |
//! | [`display`] | which mime types a rich output may have |
//! | [`limits`] | every default |
//! | [`value`] | how Python values are written as bytes |
//! | [`execution`] | what an execution resolves to |
//! | [`error`] | what can go wrong |
//! | [`guest`] | the Python runtime, embedded |
//! | [`speculate`] | what is worth doing before anybody asks for it |
//! | [`stats`] | what a session has done, in numbers |
//! | `prometheus` | the counts of running ahead, in Prometheus' text format |

pub mod budget;
pub mod deadline;
pub mod display;
pub mod error;
pub mod execution;
pub mod guest;
pub mod limits;
pub mod output;
pub mod packages;
mod prometheus;
#[expect(
    missing_docs,
    reason = "the fields of messages are named after what the variants' docs explain"
)]
pub mod protocol;
pub mod session;
pub mod speculate;
pub mod stats;
pub mod value;

pub use budget::{Budget, BudgetLimits};
pub use error::Error;
pub use execution::{CodeExecution, Killer};
pub use limits::Limits;
pub use protocol::{PROTOCOL_VERSION, Profile, SUBPROTOCOL};
pub use session::{Effect, Input, Session};
