//! What all runs of a tree share.

use std::rc::Rc;

use js_sys::{Array, JSON};
use wasm_bindgen::prelude::*;

use super::options::Options;
use super::stop::{Places, Stop};
use crate::driver::notify;
use crate::glue::{Glue, now, thrown};
use sandglass_core::error::Error;
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};

/// The whole of a run and its children.
pub(super) struct Tree {
    pub(super) glue: Glue,
    pub(super) options: Options,
    stop: Stop,
    began_at: f64,
    /// Where runs of one depth, from 1, get their places: each depth waits for the next one only.
    places: Vec<Rc<Places>>,
    /// The trajectory.
    events: Array,
}

impl Tree {
    pub(super) fn new(glue: Glue, options: Options, stop: Stop) -> Rc<Self> {
        let count = options.max_concurrent_runs;
        Rc::new(Self {
            glue,
            places: (0..options.max_depth).map(|_| Places::new(count)).collect(),
            options,
            stop,
            began_at: now(),
            events: Array::new(),
        })
    }

    /// Where a run of this depth waits for its turn; the first does not.
    pub(super) fn places(&self, depth: u32) -> Option<&Rc<Places>> {
        self.places.get(usize::try_from(depth.checked_sub(1)?).ok()?)
    }

    /// Why everything was ended.
    pub(super) fn why_stopped(&self) -> Option<(RunOutcome, String)> {
        if !self.stop.is_stopped() {
            return None;
        }
        let aborted = || (RunOutcome::Aborted, "its signal was aborted".to_owned());
        Some(self.stop.reason().unwrap_or_else(aborted))
    }

    /// Ends all runs, because one of them cannot go on.
    pub(super) fn fail(&self, why: String) {
        self.stop.end(RunOutcome::Failed, why);
    }

    pub(super) fn thrown(&self, error: &Error) -> JsValue {
        thrown(&self.glue, error)
    }

    /// Everything but live events, in order.
    pub(super) fn events(&self) -> Array {
        self.events.clone()
    }

    /// Tells whoever listens, and keeps it.
    pub(super) fn emit(&self, run: &str, depth: u32, kind: RlmEventKind) {
        let is_live = kind.is_live();
        let event = RlmEvent {
            run: run.to_owned(),
            depth,
            time: ((now() - self.began_at) * 10.0).round() / 10.0,
            kind,
        };
        let json = serde_json::to_string(&event).unwrap_or_default();
        let Ok(event) = JSON::parse(&json) else { return };
        if !is_live {
            self.events.push(&event);
        }
        if let Some(callback) = &self.options.on_event {
            notify(callback, &event);
        }
    }
}
