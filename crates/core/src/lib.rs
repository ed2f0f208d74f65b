//! The core of Sandglass, a Python REPL sandbox for Recursive Language Models.
//!
//! This crate is sans-IO: it has no clock, no socket and no browser. A [`Session`] turns [`Input`]s into [`Effect`]s, and a driver carries
//! the effects out.
//!
//! | module | holds |
//! |---|---|
//! | [`protocol`] | the messages between host and guest |
//! | [`session`] | the state machine of one sandbox |
//! | [`deadline`] | the time at which an execution is interrupted, and at which its guest is ended |
//! | [`budget`] | limits of calls of models, tokens, cost, time and depth |
//! | [`packages`] | the wheels that a list of requirements needs |
//! | [`output`] | all truncation |
//! | [`display`] | the mime types that a rich output may have |
//! | [`limits`] | every default, and the range of every option |
//! | [`value`] | Python values as bytes |
//! | [`execution`] | the result of an execution |
//! | [`error`] | the errors of a sandbox |
//! | [`guest`] | the Python runtime, embedded |
//! | [`speculate`] | predictions of the code that comes next |
//! | [`stats`] | counts of a session's work |
//! | `prometheus` | counts of running ahead, in Prometheus' text format |
//!
//! A driver passes on the user's commands, and does what the session asks for:
//!
//! ```
//! use sandglass_core::session::{Command, GuestEffect, Slot};
//! use sandglass_core::{Effect, Input, Limits, Session};
//!
//! let mut session = Session::<Vec<u8>>::new(Limits::default(), Vec::new());
//! let (now, ticket) = (0.0, 1);
//! let effects = session.handle(now, Input::Command(ticket, Command::Start));
//! assert!(matches!(effects[0], Effect::Guest(Slot::Main, GuestEffect::Boot)));
//! ```

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
