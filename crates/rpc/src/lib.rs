#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`messages`] | the definition of the wire: every method with its parameters and result |
//! | [`blobs`] | large values as binary messages |
//! | [`options`] | the options of a sandbox, as JSON |
//! | [`connection`] | one connection: requests of both sides, in order and bounded |
//! | `client` | messages to the client, and the requests that it answers |
//! | `kept` | the methods of executions that outlive the program |
//! | `methods` | the methods of sandboxes |
//! | `notebook` | the methods of notebooks |
//! | `sandbox` | a connection's sandbox, and the functions of the client that Python calls |
//! | [`stdio`] | the wire on standard input and output |

pub mod blobs;
mod client;
pub mod connection;
mod copies;
mod kept;
pub mod messages;
mod methods;
mod notebook;
pub mod options;
mod sandbox;
pub mod stdio;
mod trace;

pub use connection::{Connection, Held, Home, Inner, Keeper, Made, Message, Outbox};
pub use kept::described;
pub use messages::{RpcError, VERSION};
pub use notebook::Cells;
