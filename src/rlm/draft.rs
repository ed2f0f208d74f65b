//! Drafts: while a run's model thinks, another one is asked the same, and the code of its reply runs ahead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen_futures::spawn_local;

use super::model::{Listener, Model, NoAnswer, Purpose, Question};
use super::run::Run;
use crate::glue::now;
use crate::stop::Stop;
use sandglass_core::budget::Budget;
use sandglass_rlm::openai::Reply;
use sandglass_rlm::{Message, draft};

/// A draft that is being written.
pub(super) struct Draft {
    stop: Stop,
    budget: Budget,
    messages: Vec<Message>,
    price: Option<[f64; 2]>,
    heard: RefCell<String>,
    is_asked: Cell<bool>,
    is_over: Cell<bool>,
}

impl Draft {
    /// Ends it, when it is not over: the reply that it is for has begun, or will not come. It has used what it was sent and has said so far.
    pub(super) fn end(&self) {
        if !self.is_over.replace(true) && self.is_asked.get() {
            self.charge(&Reply {
                text: self.heard.take(),
                price: self.price,
                ..Reply::default()
            });
            self.stop.end();
        }
    }

    fn charge(&self, said: &Reply) {
        draft::charge(&self.budget, &self.messages, said);
    }
}

impl Listener for Draft {
    fn text(&self, text: &str) {
        self.heard.borrow_mut().push_str(text);
    }

    fn retry(&self, _attempt: u32, _wait_ms: f64, _reason: String) {
        self.heard.borrow_mut().clear();
    }
}

impl Run {
    /// Asks for a draft of this turn's reply, where there is somebody to ask and the budget has more calls than the run itself may need.
    /// Nor is a model asked for a draft of its own reply.
    pub(super) fn draft(self: &Rc<Self>, asked: &Model, messages: &[Message], turn: u32) -> Option<Rc<Draft>> {
        let model = self.tree.options.draft.clone().filter(|model| !model.is(asked))?;
        let draft = Rc::new(Draft {
            stop: Stop::on(&[self.stop.signal()]).ok()?,
            budget: self.budget(),
            messages: messages.to_vec(),
            price: match &model {
                Model::Endpoint(endpoint) => endpoint.price,
                Model::Function(_) => None,
            },
            heard: RefCell::default(),
            is_asked: Cell::default(),
            is_over: Cell::default(),
        });
        let (run, written) = (self.clone(), draft.clone());
        spawn_local(async move { run.wait_for(&written, &model, turn).await });
        Some(draft)
    }

    async fn wait_for(&self, draft: &Rc<Draft>, model: &Model, turn: u32) {
        let of = self.tree.options.max_iterations;
        if draft.is_over.get() || !draft::admit(&draft.budget, turn, of, now()) {
            return;
        }
        draft.is_asked.set(true);
        let question = Question {
            messages: &draft.messages,
            run: &self.id(),
            depth: self.depth(),
            purpose: Purpose::Draft(turn),
            model: None,
        };
        let listener: Rc<dyn Listener> = draft.clone();
        let answered = model.ask(&question, &draft.stop, &listener).await;
        if draft.is_over.replace(true) {
            return;
        }
        match answered {
            Ok(reply) => {
                draft.charge(&reply);
                self.expects(draft::codes(&reply));
            }
            // A draft that fails is not the run's failure.
            Err(NoAnswer::Stopped | NoAnswer::Failed(_) | NoAnswer::NotRecorded(_)) => {}
        }
    }
}
