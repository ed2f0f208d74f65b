//! The replies of a run that the browser keeps (the option `persist`). `pyodide-glue/kept-runs.js` has the store.
//!
//! A reply is found by the run, the purpose and the whole prompt. So it answers the very question that it was given to, and a run whose code
//! takes another way than before asks the model anew.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use js_sys::{Array, Promise};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::model::{Purpose, Question};
use crate::stop::Stop;
use sandglass_core::budget::Usage;
use sandglass_rlm::openai::Reply;
use sandglass_rlm::prompt::without_turn_line;
use sandglass_rlm::{Message, Role};

#[wasm_bindgen]
extern "C" {
    /// A run in the browser's store.
    pub(super) type RunStore;
    #[wasm_bindgen(method, js_name = takeReplies)]
    fn take_replies(this: &RunStore) -> Array;
    #[wasm_bindgen(method)]
    fn add(this: &RunStore, line: &str) -> Promise;
    #[wasm_bindgen(method)]
    fn close(this: &RunStore, outcome: &str) -> Promise;
}

/// A reply, written as JSON.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    text: String,
    usage: Option<Usage>,
    cut: bool,
}

/// The replies of a kept run.
pub(super) struct Kept {
    store: RunStore,
    /// The replies of earlier visits that were not given yet.
    known: RefCell<HashMap<String, Line>>,
    /// The number of times that each question was asked. Code may ask the same several times, also at once.
    asked: RefCell<HashMap<String, u32>>,
    given: Cell<u32>,
}

impl Kept {
    pub(super) fn new(store: RunStore) -> Self {
        let lines = store.take_replies();
        let lines = lines.iter().filter_map(|line| line.as_string());
        let lines = lines.filter_map(|line| serde_json::from_str::<Line>(&line).ok());
        let known = lines.map(|line| (line.key.clone(), line)).collect();
        Self {
            store,
            known: RefCell::new(known),
            asked: RefCell::default(),
            given: Cell::new(0),
        }
    }

    /// Returns true if the reply is known to a question that is asked for the first time.
    pub(super) fn has(&self, question: &Question<'_>) -> bool {
        self.known.borrow().contains_key(&format!("{} 1", key(question)))
    }

    /// The key of a question that is asked now.
    pub(super) fn ask(&self, question: &Question<'_>) -> String {
        let key = key(question);
        let mut asked = self.asked.borrow_mut();
        let times = asked.entry(key.clone()).or_default();
        *times += 1;
        format!("{key} {times}")
    }

    /// Takes the reply of an earlier visit.
    pub(super) fn take(&self, key: &str) -> Option<Reply> {
        let line = self.known.borrow_mut().remove(key)?;
        self.given.set(self.given.get() + 1);
        Some(Reply {
            text: line.text,
            usage: line.usage,
            cut: line.cut,
            price: None,
        })
    }

    /// Keeps a reply, before anybody acts on it.
    pub(super) async fn add(&self, key: String, reply: &Reply, stop: &Stop) {
        let line = Line {
            key,
            text: reply.text.clone(),
            usage: reply.usage,
            cut: reply.cut,
        };
        if let Ok(line) = serde_json::to_string(&line) {
            let _ = stop.wait(self.store.add(&line)).await; // a run that is ended does not wait for the store
        }
    }

    /// Gives the run up. Returns how many replies came from earlier visits, and why the newest are not kept, if so.
    pub(super) async fn close(&self, outcome: &str) -> (u32, Option<String>) {
        let problem = JsFuture::from(self.store.close(outcome)).await;
        (self.given.get(), problem.ok().and_then(|problem| problem.as_string()))
    }
}

/// The key of a question: its run, its purpose, and a hash of what is asked (SHA-256, because Python chooses prompts). What is left of the
/// budget does not count, because time passes.
fn key(question: &Question<'_>) -> String {
    let purpose = match question.purpose {
        Purpose::Turn(turn) => format!("turn {turn}"),
        Purpose::Draft(turn) => format!("draft {turn}"),
        Purpose::Query(_) => "query".to_owned(), // calls of a batch are numbered as they come
    };
    let model = question.model.as_deref().unwrap_or_default();
    let text = |message: &Message| match (question.purpose, message.role) {
        (Purpose::Query(_), _) | (_, Role::System | Role::Assistant) => message.content.clone(),
        _ => without_turn_line(&message.content).to_owned(),
    };
    let messages = question.messages.iter();
    let messages: Vec<_> = messages.map(|message| (message.role, text(message))).collect();
    let asked = serde_json::to_string(&(model, messages)).unwrap_or_default();
    let hash = Sha256::digest(asked.as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {purpose} {hash}", question.run)
}
