//! The server as its clients and its operator have it: a real one, on a port of its own, with real guests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod access;
mod attacks;
mod forged;
mod model;
mod sessions;
mod states;
mod storage;
mod stream;
mod support;
