//! Real guests on backends that need no services: the behaviour of every sandbox, and bubblewrap's isolation.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod ahead;
mod checkpoints;
mod copies;
mod displays;
mod docker;
mod ends;
mod evil;
mod executions;
mod hidden;
mod host_calls;
mod hostile;
mod several;
mod support;
mod times;
