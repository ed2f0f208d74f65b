//! Drafts: while the model of a run thinks, another model is asked the same, and the code of its reply runs ahead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen_futures::spawn_local;

use super::model::{Model, Purpose, Question};
use super::run::Run;
use crate::endpoint::Listener;
use crate::glue::now;
use crate::stop::Stop;
use sandglass_rlm::openai::Retry;
use sandglass_rlm::{Message, draft};

/// A draft: wanted, or being written.
pub(super) struct Draft {
    stop: Stop,
    written: RefCell<Option<draft::Draft>>,
    is_over: Cell<bool>,
}

impl Draft {
    /// Ends the draft, unless it is finished: the reply that it stands for has begun, or will not come.
    pub(super) fn end(&self) {
        if !self.is_over.replace(true) {
            self.written.take();
            self.stop.end();
        }
    }
}

impl Listener for Draft {
    fn text(&self, text: &str) {
        if let Some(written) = &mut *self.written.borrow_mut() {
            written.hear(text);
        }
    }

    fn retry(&self, _: Retry) {
        if let Some(written) = &mut *self.written.borrow_mut() {
            written.begin_again();
        }
    }
}

impl Run {
    /// Asks for a draft of this turn's reply. There is none without a drafting model, or when this model writes the reply itself. There is
    /// none either when the run itself may need all calls that the budget has left.
    pub(super) fn draft(self: &Rc<Self>, asked: &Model, messages: &[Message], turn: u32) -> Option<Rc<Draft>> {
        let model = self.tree.options.draft.clone().filter(|model| !model.is(asked))?;
        let draft = Rc::new(Draft {
            stop: Stop::on(&[self.stop.signal()]).ok()?,
            written: RefCell::default(),
            is_over: Cell::default(),
        });
        let (run, asked, messages) = (self.clone(), draft.clone(), messages.to_vec());
        spawn_local(async move { run.wait_for(&asked, &model, &messages, turn).await });
        Some(draft)
    }

    async fn wait_for(&self, draft: &Rc<Draft>, model: &Model, messages: &[Message], turn: u32) {
        if draft.is_over.get() {
            return;
        }
        let price = model.price();
        let most = self.tree.options.max_iterations;
        let Some(written) = draft::Draft::admit(self.budget(), messages, price, turn, most, now()) else {
            return;
        };
        draft.written.replace(Some(written));
        let question = Question {
            messages,
            run: &self.id(),
            depth: self.depth(),
            purpose: Purpose::Draft(turn),
            model: None,
        };
        let listener: Rc<dyn Listener> = draft.clone();
        let answered = model.ask(&question, &draft.stop, &listener).await;
        draft.is_over.set(true);
        if let Some(written) = draft.written.take() {
            // A failed draft is no failure of the run.
            self.expects(written.end(answered.ok()));
        }
    }
}
