//! The replies of a run that the browser keeps (the option `persist`). `pyodide-glue/kept-runs.js` has the store.
//!
//! A reply is found by the run, the purpose and the whole prompt. So it answers the very question that it was given to, and a run whose code
//! takes another way than before asks the model anew.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use js_sys::{Array, Promise};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::model::{Purpose, Question};
use sandglass_core::budget::Usage;
use sandglass_rlm::event::hash;
use sandglass_rlm::openai::Reply;
use sandglass_rlm::prompt::without_turn_line;

#[wasm_bindgen]
extern "C" {
    /// A run in the browser's store.
    pub(super) type RunStore;
    #[wasm_bindgen(method, getter)]
    fn replies(this: &RunStore) -> Array;
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
    /// The replies of earlier visits that were not given yet, in the order in which they came.
    known: RefCell<HashMap<String, VecDeque<Line>>>,
    given: Cell<u32>,
}

impl Kept {
    pub(super) fn new(store: RunStore) -> Self {
        let mut known: HashMap<String, VecDeque<Line>> = HashMap::new();
        let lines = store.replies();
        let lines = lines.iter().filter_map(|line| line.as_string());
        for line in lines.filter_map(|line| serde_json::from_str::<Line>(&line).ok()) {
            known.entry(line.key.clone()).or_default().push_back(line);
        }
        Self {
            store,
            known: RefCell::new(known),
            given: Cell::new(0),
        }
    }

    /// Returns true if the reply is known.
    pub(super) fn has(&self, question: &Question<'_>) -> bool {
        self.known.borrow().contains_key(&key(question))
    }

    /// Takes the reply of an earlier visit.
    pub(super) fn take(&self, question: &Question<'_>) -> Option<Reply> {
        let key = key(question);
        let mut known = self.known.borrow_mut();
        let line = known.get_mut(&key)?.pop_front()?;
        if known.get(&key).is_some_and(VecDeque::is_empty) {
            known.remove(&key);
        }
        self.given.set(self.given.get() + 1);
        Some(Reply {
            text: line.text,
            usage: line.usage,
            cut: line.cut,
            price: None,
        })
    }

    /// Keeps a reply, before anybody acts on it.
    pub(super) async fn add(&self, question: &Question<'_>, reply: &Reply) {
        let line = Line {
            key: key(question),
            text: reply.text.clone(),
            usage: reply.usage,
            cut: reply.cut,
        };
        if let Ok(line) = serde_json::to_string(&line) {
            let _ = JsFuture::from(self.store.add(&line)).await;
        }
    }

    /// Gives the run up. Returns how many replies came from earlier visits, and why the newest are not kept, if so.
    pub(super) async fn close(&self, outcome: &str) -> (u32, Option<String>) {
        let problem = JsFuture::from(self.store.close(outcome)).await;
        (self.given.get(), problem.ok().and_then(|problem| problem.as_string()))
    }
}

/// The key of a question: its run, its purpose, and its length and hash. What is left of the budget does not count, because time passes.
fn key(question: &Question<'_>) -> String {
    let purpose = match question.purpose {
        Purpose::Turn(turn) => format!("turn {turn}"),
        Purpose::Draft(turn) => format!("draft {turn}"),
        Purpose::Query(_) => "query".to_owned(), // calls of a batch are numbered as they come
    };
    let model = question.model.as_deref().unwrap_or_default();
    let messages = question.messages.iter();
    let messages: Vec<_> = messages
        .map(|message| (message.role, without_turn_line(&message.content)))
        .collect();
    let asked = serde_json::to_string(&(model, messages)).unwrap_or_default();
    format!("{} {purpose} {} {}", question.run, asked.len(), hash(&asked))
}
