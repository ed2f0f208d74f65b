//! The state that all runs of a tree share.

use std::rc::Rc;
use std::sync::Arc;

use js_sys::{Array, JSON};
use wasm_bindgen::prelude::*;

use super::kept::Kept;
use super::options::Options;
use super::run::Run;
use crate::driver::notify;
use crate::glue::{Glue, now, thrown};
use crate::stop::{Semaphore, Stop};
use sandglass_core::budget::Budget;
use sandglass_core::error::Error;
use sandglass_rlm::event::{RlmEvent, RunOutcome};
use sandglass_rlm::tree::{self, Input};

/// The state of a first run and all its children.
pub(super) struct Tree {
    pub(super) glue: Glue,
    pub(super) options: Options,
    /// Holds the rules of the runs, and the reason why they were ended.
    runs: Arc<tree::Tree>,
    stop: Stop,
    /// Permits for the runs of one depth, from 1. A run waits only for runs of the next depth, so that no two wait for each other.
    permits: Vec<Rc<Semaphore>>,
    /// The trajectory.
    events: Array,
    /// The replies that the browser keeps.
    pub(super) kept: Option<Kept>,
}

impl Tree {
    pub(super) fn new(glue: Glue, options: Options, stop: Stop, kept: Option<Kept>) -> Rc<Self> {
        let count = options.max_concurrent_runs;
        Rc::new(Self {
            glue,
            runs: tree::Tree::new(options.rules(), now()),
            permits: (0..options.max_depth).map(|_| Semaphore::new(count)).collect(),
            options,
            stop,
            events: Array::new(),
            kept,
        })
    }

    /// The permits of a depth; `None` for the first run, which needs none.
    pub(super) fn permits(&self, depth: u32) -> Option<&Rc<Semaphore>> {
        self.permits.get(usize::try_from(depth.checked_sub(1)?).ok()?)
    }

    /// Makes the first run.
    pub(super) fn root(self: &Rc<Self>, budget: Budget) -> Rc<Run> {
        let root = self.runs.root(self.options.task.clone(), budget, now());
        Run::new(self.clone(), root, self.stop.clone())
    }

    /// Ends all runs. Only the first reason is kept.
    pub(super) fn end(&self, outcome: RunOutcome, why: impl Into<String>) {
        if !self.stop.is_stopped() {
            self.runs.stop(outcome, why);
            self.stop.end();
        }
    }

    /// Returns the reason why a run was ended, by itself or with all runs.
    pub(super) fn stopped(&self) -> Input {
        if self.stop.is_stopped() {
            // The default reason.
            self.runs.stop(RunOutcome::Aborted, "its signal was aborted");
        }
        Input::Stopped
    }

    pub(super) fn thrown(&self, error: &Error) -> JsValue {
        thrown(&self.glue, error)
    }

    /// All events except the live ones, in order.
    pub(super) fn events(&self) -> Array {
        self.events.clone()
    }

    /// Reports an event to the listener, and keeps it.
    pub(super) fn emit(&self, event: &RlmEvent) {
        let json = serde_json::to_string(event).unwrap_or_default();
        let Ok(told) = JSON::parse(&json) else { return };
        if !event.kind.is_live() {
            self.events.push(&told);
        }
        if let Some(callback) = &self.options.on_event {
            notify(callback, &told);
        }
    }
}
