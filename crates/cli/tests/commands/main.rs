//! Commands of the program with real guests: images, notebooks and RLM runs.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod images;
mod notebook;
mod rlm;
#[path = "../../../../host/tests/guests/support.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;
