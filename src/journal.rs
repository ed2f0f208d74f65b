//! Journals of kept sessions, as the browser's store has them: the record of the execution that runs, and records of ended executions.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::RefCell;
use std::collections::HashMap;

use js_sys::{Array, Uint8Array};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

use super::glue::random;
use super::outbox::JsBody;
use sandglass_core::session::{Beginning, Entry, Record, RecordChange};

/// The number of the part that says why an execution cannot be resumed.
const BROKEN: i32 = -1;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** An execution that was under way when the page of the kept session ended. */
export interface PendingExecution {
  /** The execution's number. */
  execution: number;
  code: string;
  /** The calls that it waits for. */
  calls: PendingCall[];
}

/** A host call without an answer. The function may have run: the page ended before its answer was written. */
export interface PendingCall {
  /** The call's name, which never changes: `HostCall.id` of the function's next call. */
  id: string;
  /** The function's name. */
  name: string;
  args: unknown[];
  kwargs: Record<string, unknown>;
  /** The time at which Python made the call, in milliseconds since 1970. */
  since: number;
}

/** The options of `resume`. */
export interface ResumeOptions {
  /** Answers to calls that wait, by their `id`. These calls are not made again. */
  answers?: Record<string, unknown>;
  /** Interrupts the execution. */
  signal?: AbortSignal;
  /** Hears what the execution prints, from its beginning. */
  onStdout?: (text: string) => void;
  /** Hears what the execution writes to `sys.stderr`, from its beginning. */
  onStderr?: (text: string) => void;
  /** Hears what the execution shows, from its beginning. */
  onDisplay?: (display: Display) => void;
}

/** The options of `replay`. */
export interface ReplayOptions {
  /** Other answers for calls of the execution. A key is a call's place among the calls, from 1, or its `id`. */
  answers?: Record<string, unknown>;
  /** True: calls that the journal has no answer to are made. By default they raise HostCallError in Python. */
  ask?: boolean;
}

/** A run of an execution by its journal. */
export interface Replay {
  execution: CodeExecution;
  /** The first difference from the journal, after an answer was changed; null if there is none. */
  difference: string | null;
}
"#;

/// The beginning of a journal, written as JSON.
#[derive(Serialize, Deserialize)]
struct Head {
    id: String,
    beginning: Beginning,
}

/// The record of an ended execution, written as JSON. Bodies are named by their places.
#[derive(Serialize, Deserialize)]
struct Ended {
    beginning: Beginning,
    entries: Vec<Entry<u32>>,
}

/// A journal, as far as the page knows it.
#[derive(Default)]
pub(super) struct Journal {
    /// The journal's name, which no other journal has.
    id: RefCell<String>,
    /// The times of parts that were read, by the places of their entries, in milliseconds since 1970.
    times: RefCell<HashMap<usize, f64>>,
}

impl Journal {
    /// Reads a journal: the time, text and body of each part. `broken`: the reason for which the execution cannot be resumed.
    pub(super) fn read(&self, parts: &Array, broken: Option<String>) -> Result<Option<Record<JsBody>>, String> {
        let mut parts = parts.iter().map(|part| part.unchecked_into::<Array>());
        let Some(head) = parts.next() else { return Ok(None) };
        let text = |part: &Array| part.get(1).as_string().unwrap_or_default();
        let Head { id, beginning } = serde_json::from_str(&text(&head)).map_err(|error| error.to_string())?;
        self.id.replace(id);
        let mut entries = Vec::new();
        for (index, part) in parts.enumerate() {
            let entry: Entry<()> = serde_json::from_str(&text(&part)).map_err(|error| error.to_string())?;
            let body = JsBody::of_value(&part.get(2));
            let mut is_missing = false;
            let entry = entry.map(|()| {
                is_missing |= body.is_none();
                body.clone().unwrap_or_else(|| JsBody::Text("".into()))
            });
            if is_missing {
                return Err(format!("part {index} of its journal has no body"));
            }
            self.times
                .borrow_mut()
                .insert(index, part.get(0).as_f64().unwrap_or_default());
            entries.push(entry);
        }
        Record::written(beginning, entries, broken).map(Some)
    }

    /// A part for the store: its number, its text and its body.
    pub(super) fn part(&self, note: RecordChange<JsBody>) -> Result<Array, String> {
        let json = |text: serde_json::Result<String>| text.map_err(|error| error.to_string());
        let (number, text, body) = match note {
            RecordChange::Begin(beginning) => {
                let id = format!("{:016x}", random());
                self.id.replace(id.clone());
                self.times.borrow_mut().clear();
                (0, Some(json(serde_json::to_string(&Head { id, beginning }))?), None)
            }
            RecordChange::Add(index, entry) => {
                let mut body = None;
                let entry = entry.map(|its| body = Some(its.to_value()));
                let number = i32::try_from(index + 1).map_err(|error| error.to_string())?;
                (number, Some(json(serde_json::to_string(&entry))?), body)
            }
            RecordChange::Break(why) => (BROKEN, Some(why), None),
            RecordChange::End => (0, None, None),
        };
        let text = text.map_or(JsValue::UNDEFINED, JsValue::from);
        Ok(Array::of3(&number.into(), &text, &body.unwrap_or(JsValue::UNDEFINED)))
    }

    /// The name of the call with this place among the calls of the execution.
    pub(super) fn call_id(&self, place: u32) -> String {
        format!("{}.{place}", self.id.borrow())
    }

    /// The time at which the entry in this place was written.
    pub(super) fn time(&self, index: usize) -> f64 {
        self.times.borrow().get(&index).copied().unwrap_or_default()
    }
}

/// The place of a call, by its name.
pub(super) fn place(id: &str) -> Option<u32> {
    id.rsplit('.').next()?.parse().ok().filter(|place| *place > 0)
}

/// The record of an ended execution for the store: its text, followed by its bodies.
pub(super) fn of_ended(record: &Record<JsBody>) -> Result<Array, String> {
    let (beginning, entries) = record.parts();
    let bodies = Array::new();
    let mut place = |body: JsBody| bodies.push(&body.to_value()) - 1;
    let entries = entries.iter().cloned().map(|entry| entry.map(&mut place)).collect();
    let beginning = beginning.clone();
    let text = serde_json::to_string(&Ended { beginning, entries }).map_err(|error| error.to_string())?;
    bodies.unshift(&text.into());
    Ok(bodies)
}

/// Reads the record of an ended execution.
pub(super) fn ended(parts: &Array) -> Result<Record<JsBody>, String> {
    let text = parts.get(0).as_string().unwrap_or_default();
    let Ended { beginning, entries } = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut is_missing = false;
    let mut body = |place: u32| {
        let body = JsBody::of_value(&parts.get(place.saturating_add(1)));
        is_missing |= body.is_none();
        body.unwrap_or_else(|| JsBody::Bytes(Uint8Array::new_with_length(0)))
    };
    let entries = entries.into_iter().map(|entry| entry.map(&mut body)).collect();
    match is_missing {
        true => Err("it lacks a body".to_owned()),
        false => Record::written(beginning, entries, None),
    }
}
