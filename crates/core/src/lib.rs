#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`protocol`] | the messages between host and guest |
//! | [`resumable`] | conversations that outlive their connections |
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
//! | [`predictions`] | predictions of the code that comes next |
//! | [`stats`] | counts of a session's work |
//! | `prometheus` | counts of running ahead, in Prometheus' text format |

pub mod budget;
pub mod deadline;
pub mod display;
pub mod error;
pub mod execution;
pub mod guest;
pub mod limits;
pub mod output;
pub mod packages;
pub mod predictions;
mod prometheus;
#[expect(
    missing_docs,
    reason = "the fields of messages are named after what the variants' docs explain"
)]
pub mod protocol;
pub mod resumable;
pub mod session;
pub mod stats;
pub mod value;

pub use budget::{Budget, BudgetLimits};
pub use error::Error;
pub use execution::{CodeExecution, Killer};
pub use limits::Limits;
pub use protocol::{PROTOCOL_VERSION, Profile, SUBPROTOCOL};
pub use session::{Effect, Input, Session};
