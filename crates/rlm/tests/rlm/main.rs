//! Tests of the controller through its public interface.
#![cfg(not(target_arch = "wasm32"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod controller;
mod events;
mod growing;
mod misread;
mod openai;
mod tree;
