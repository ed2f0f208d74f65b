//! The server as clients and operators see it: a real one, on its own port, with real guests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod access;
mod attacks;
mod copies;
mod durable;
mod forged;
mod forking;
mod forwarding;
mod kept;
mod kept_sessions;
mod model;
#[path = "../../../states/tests/common/nats.rs"]
mod nats;
mod outliving;
mod replaying;
mod resuming;
mod rpc;
mod sessions;
mod states;
mod storage;
mod stream;
mod support;
mod suspending;
mod waking;
