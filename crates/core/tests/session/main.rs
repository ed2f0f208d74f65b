//! The session state machine, on a fake clock and with a scripted guest. Every step is checked by [`world::World`].
#![cfg(not(target_arch = "wasm32"))]
#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod budgets;
mod calls_ahead;
mod chaos;
mod checkpoints;
mod contexts;
mod displays;
mod executions;
mod files;
mod guesses;
mod host_calls;
mod kept;
mod lifecycle;
mod packages;
mod past;
mod paused;
mod records;
mod several;
mod shadows;
mod stopping;
mod undo;
mod violations;
mod world;
