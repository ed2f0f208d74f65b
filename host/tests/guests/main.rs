//! Real guests, on the backends that need nothing but programs: what every sandbox promises, and what is hidden from bubblewrap's.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod ahead;
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
