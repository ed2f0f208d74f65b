//! One run of the tree: carries out the steps that [`sandglass_rlm::tree`] decides on.
//!
//! Decisions: `docs/internals/controller.md`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;

use futures_util::future::{Either, select, try_join};
use js_sys::{Function, JSON, JsString, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::AbortSignal;

use super::draft::Draft;
use super::model::{Model, NoAnswer, Purpose, Question};
use super::repl::{Repl, known_facts};
use super::tree::Tree;
use super::writing::{Work as Ahead, Writing};
use crate::driver::Asked;
use crate::endpoint::Listener;
use crate::glue::{exact, now, readable};
use crate::stop::{Stop, Waited};
use sandglass_core::budget::Budget;
use sandglass_rlm::Message;
use sandglass_rlm::controller::Finish;
use sandglass_rlm::event::{RlmEventKind, RunOutcome};
use sandglass_rlm::limits::MAX_EVENT_CHARS;
use sandglass_rlm::openai::{Reply, Retry};
use sandglass_rlm::query::{self, Refused};
use sandglass_rlm::tree::{self, Answer, Came, Input, Next, Query, Step, Work};

/// One run of a tree, with its sandbox and models.
pub(super) struct Run {
    pub(super) tree: Rc<Tree>,
    /// Decides on the run's steps.
    state: RefCell<tree::Run>,
    pub(super) stop: Stop,
    /// The next step, and the waker of the task that waits for it.
    step: RefCell<Option<Step>>,
    when_step: RefCell<Option<Function>>,
    /// The newest reply of the model, while it comes.
    writing: RefCell<Writing>,
    /// The draft of that reply.
    draft: RefCell<Option<Rc<Draft>>>,
}

impl Run {
    pub(super) fn new(tree: Rc<Tree>, state: tree::Run, stop: Stop) -> Rc<Self> {
        Rc::new(Self {
            tree,
            state: RefCell::new(state),
            stop,
            step: RefCell::default(),
            when_step: RefCell::default(),
            writing: RefCell::default(),
            draft: RefCell::default(),
        })
    }

    pub(super) fn id(&self) -> String {
        self.state.borrow().id().to_owned()
    }

    pub(super) fn depth(&self) -> u32 {
        self.state.borrow().depth()
    }

    pub(super) fn budget(&self) -> Budget {
        self.state.borrow().budget().clone()
    }

    /// Carries out the run from its contexts to its end.
    pub(super) async fn work(self: Rc<Self>, contexts: Vec<JsValue>) -> Finish {
        let permit = match self.tree.permits(self.depth()) {
            Some(permits) => permits.acquire(&self.stop).await.map(Some),
            None => Ok(None),
        };
        let begun = match permit {
            Ok(permit) => self.begin(&contexts).await.map(|(repl, input)| ((repl, permit), input)),
            Err(waited) => Err(waited),
        };
        drop(contexts);
        let (mut repl, mut input) = match begun {
            Ok((repl, input)) => (Some(repl), input),
            Err(waited) => (None, self.stopped(&waited)),
        };
        loop {
            if input.is_end() {
                repl = None;
            }
            input = match (self.next_step(input).await, &repl) {
                (Step::Finish(finish), _) => return finish,
                (Step::Ask(turn, messages), _) => self.ask(&messages, turn).await,
                (Step::Execute(code), Some((repl, _))) => match repl.execute(&code, true).await {
                    Ok((execution, declared)) => Input::Executed(Box::new(execution), declared),
                    Err(waited) => self.stopped(&waited),
                },
                (Step::Execute(_), None) => Input::Failed("its sandbox is gone".to_owned()),
            };
        }
    }

    /// Opens the sandbox, and asks the model for its first reply meanwhile, if that needs no guest. Returns the sandbox, and the input that
    /// comes of it.
    async fn begin(self: &Rc<Self>, contexts: &[JsValue]) -> Result<(Repl, Input), Waited> {
        let opening = async {
            let (repl, facts) = Repl::open(self, contexts).await?;
            repl.opened();
            Ok((repl, facts))
        };
        // A draft runs in the sandbox, and would be over before there is one.
        let known = known_facts(contexts).filter(|_| self.tree.options.draft.is_none());
        let Some(known) = known else {
            let (repl, facts) = opening.await?;
            return Ok((repl, Input::Ready(facts)));
        };
        let used = RefCell::new(None);
        let asking = async {
            match self.next_step(Input::Ready(known)).await {
                Step::Ask(turn, messages) => {
                    let input = self.ask(&messages, turn).await;
                    if let Input::Replied(Ok(reply)) = &input {
                        used.replace(Some(reply.used(&messages)));
                    }
                    Ok::<_, Waited>(input)
                }
                over => {
                    self.step.replace(Some(over)); // the budget has no room for the first reply
                    Ok(Input::Stopped)
                }
            }
        };
        let begun = try_join(opening, asking).await;
        // Without a sandbox nobody takes the reply, which is paid all the same.
        if begun.is_err()
            && let Some(mut usage) = used.take()
        {
            usage.calls = 0.0; // it was counted when the model was asked
            self.budget().charge(&usage);
        }
        let ((repl, _), input) = begun?;
        Ok((repl, input))
    }

    /// Waits for the step that follows an input.
    async fn next_step(&self, input: Input) -> Step {
        let next = self.state.borrow_mut().handle(now(), input);
        self.follow(next);
        loop {
            if let Some(step) = self.step.take() {
                return step;
            }
            let comes = Promise::new(&mut |resolve, _| drop(self.when_step.replace(Some(resolve))));
            let _ = JsFuture::from(comes).await;
        }
    }

    fn follow(&self, next: Next) {
        next.events.into_iter().for_each(|event| self.tree.emit(&event));
        if let Some(step) = next.step {
            self.step.replace(Some(step));
            if let Some(resolve) = self.when_step.take() {
                let _ = resolve.call0(&JsValue::UNDEFINED);
            }
        }
    }

    async fn ask(self: &Rc<Self>, messages: &[Message], turn: u32) -> Input {
        let model = match self.depth() {
            0 => &self.tree.options.model,
            _ => &self.tree.options.sub_model,
        };
        self.writes(Writing::begin);
        // A reply that is known needs no draft.
        let purpose = Purpose::Turn(turn);
        let is_known = self.tree.kept.as_ref().is_some_and(|kept| {
            kept.has(&Question {
                messages,
                run: &self.id(),
                depth: self.depth(),
                purpose,
                model: None,
            })
        });
        let draft = if is_known {
            None
        } else {
            self.draft(model, messages, turn)
        };
        self.draft.replace(draft);
        let answered = self.ask_model(model, messages, purpose, None, &self.stop).await;
        self.end_draft();
        match answered {
            Ok(reply) => Input::Replied(Ok(reply)),
            Err(NoAnswer::Stopped) => self.stopped(&Waited::Stopped),
            Err(NoAnswer::Failed(error) | NoAnswer::NotRecorded(error)) => Input::Replied(Err(error)),
        }
    }

    async fn ask_model(
        self: &Rc<Self>,
        model: &Model,
        messages: &[Message],
        purpose: Purpose,
        named: Option<String>,
        stop: &Stop,
    ) -> Result<Reply, NoAnswer> {
        let listener: Rc<dyn Listener> = Rc::new(Told {
            run: self.clone(),
            purpose,
        });
        let question = Question {
            messages,
            run: &self.id(),
            depth: self.depth(),
            purpose,
            model: named,
        };
        let kept = self.tree.kept.as_ref().map(|kept| (kept, kept.ask(&question)));
        if let Some(reply) = kept.as_ref().and_then(|(kept, key)| kept.take(key)) {
            // Shown, but nothing runs ahead of a reply that is here.
            if let Purpose::Turn(_) = purpose {
                self.emit(RlmEventKind::Text {
                    text: reply.text.clone(),
                });
            }
            return Ok(Reply {
                price: model.price(),
                ..reply
            });
        }
        let answered = model.ask(&question, stop, &listener).await;
        if let (Some((kept, key)), Ok(reply)) = (kept, &answered) {
            kept.add(key, reply, stop).await;
        }
        match answered {
            // Ends all runs: whatever code made of a failed call would differ from the recording.
            Err(NoAnswer::NotRecorded(error)) => {
                self.tree.end(RunOutcome::Failed, error);
                Err(NoAnswer::Stopped)
            }
            answered => answered,
        }
    }

    /// Decides how a failure of the sandbox ends the run.
    fn stopped(&self, waited: &Waited) -> Input {
        match waited {
            Waited::Rejected(_) if !self.stop.is_stopped() => Input::Failed(waited.text()),
            _ => self.tree.stopped(),
        }
    }

    // ---- queries of Python ----

    /// Answers `llm_query` or `rlm_query`.
    pub(super) async fn answer(self: Rc<Self>, asked: Asked) -> Result<Answer, String> {
        let Asked {
            prompt,
            context,
            model,
            budget,
            signal,
            fate,
        } = asked;
        let prompt = self.prompt(&prompt);
        let query = match budget {
            Some(budget) => {
                let as_text = |most| context_text(&context, most);
                let mut state = self.state.borrow_mut();
                state.rlm_query(now(), prompt, budget, as_text)
            }
            None => {
                // Python may give a name of any length. No model's name is longer than this.
                let model = model.dyn_ref::<JsString>().map(|name| String::from(name.slice(0, 200)));
                self.state.borrow_mut().llm_query(now(), prompt, model, fate.is_some())
            }
        };
        let Query { call, started, work } = query;
        self.tree.emit(&started);
        let stop = self.stop_with(&signal);
        let work = async {
            match (work, &stop) {
                (Work::Refuse(why), _) => Came::Failed(why),
                (_, Err(why)) => Came::Failed(why.clone()),
                (Work::Ask(messages, model), Ok(stop)) => {
                    let sub_model = &self.tree.options.sub_model;
                    let purpose = Purpose::Query(call);
                    match self.ask_model(sub_model, &messages, purpose, model, stop).await {
                        Ok(reply) => Came::Reply(reply),
                        Err(NoAnswer::Stopped) => Came::Stopped,
                        Err(NoAnswer::Failed(error) | NoAnswer::NotRecorded(error)) => Came::Failed(error),
                    }
                }
                (Work::Recurse(child), Ok(stop)) => {
                    let child = Self::new(self.tree.clone(), *child, stop.clone());
                    // A future that contains itself has to be boxed.
                    let work: Pin<Box<dyn Future<Output = Finish>>> = Box::pin(child.work(vec![context]));
                    Came::Finish(work.await)
                }
            }
        };
        let work = pin!(work);
        let mut came = match &fate {
            Some(fate) => match select(work, fate.is_claimed()).await {
                Either::Left((came, _)) => came,
                Either::Right((is_made, work)) => {
                    if is_made {
                        self.state.borrow_mut().claimed(call);
                    }
                    work.await
                }
            },
            None => work.await,
        };
        if let (Some(fate), Ok(stop)) = (fate, &stop) {
            self.state.borrow_mut().came(now(), call, &came);
            if !fate.is_made(stop).await {
                came = came.in_vain(self.tree.options.sub_model.price());
            }
        }
        let (answer, next) = self.state.borrow_mut().answered(now(), call, came);
        self.follow(next);
        answer
    }

    /// Ended with the run, and when nobody waits for the call any more.
    fn stop_with(&self, signal: &AbortSignal) -> Result<Stop, String> {
        Stop::on(&[signal, self.stop.signal()]).map_err(|error| crate::glue::describe(&error))
    }

    /// Reads a prompt of Python's. A prompt that is too long is refused without being copied.
    fn prompt(&self, text: &JsString) -> Result<String, Refused> {
        let most = self.tree.options.max_prompt_tokens;
        let refuse = |why| {
            let start = text.slice(0, u32::try_from(MAX_EVENT_CHARS).unwrap_or(u32::MAX));
            let start = readable(&start);
            Err(Refused { start, why })
        };
        let too_long = || query::too_long(text.length() as usize, most);
        if text.length() > 4 * most {
            return refuse(too_long());
        }
        match exact("the prompt", text) {
            Ok(prompt) if query::fits(&prompt, most) => Ok(prompt),
            Ok(_) => refuse(too_long()),
            Err(why) => refuse(why),
        }
    }

    /// Uses the progress of the model's reply.
    pub(super) fn writes(&self, how: impl FnOnce(&mut Writing) -> Option<Ahead>) {
        let work = how(&mut self.writing.borrow_mut());
        if let Some(work) = work {
            work.begin();
        }
    }

    /// Uses the progress of a draft.
    pub(super) fn expects(&self, codes: Vec<String>) {
        let work = self.writing.borrow().expects(codes);
        if let Some(work) = work {
            work.begin();
        }
    }

    fn end_draft(&self) {
        if let Some(draft) = self.draft.take() {
            draft.end();
        }
    }

    pub(super) fn emit(&self, kind: RlmEventKind) {
        let event = self.state.borrow().event(now(), kind);
        self.tree.emit(&event);
    }
}

/// A context as text, if it has at most `most` UTF-16 units.
fn context_text(context: &JsValue, most: usize) -> Result<Option<String>, String> {
    let text = match context.dyn_ref::<JsString>() {
        Some(text) => Ok(text.clone()),
        None if context.is_null() => Ok("".into()),
        None => JSON::stringify(context),
    };
    let text = text.ok().filter(|text| text.length() as usize <= most);
    text.map(|text| exact("the context", &text)).transpose()
}

/// Reports the progress of an answer to the run's listeners.
struct Told {
    run: Rc<Run>,
    purpose: Purpose,
}

impl Listener for Told {
    fn text(&self, text: &str) {
        if let Purpose::Turn(_) = self.purpose {
            self.run.end_draft();
            self.run.writes(|writing| writing.hear(text));
            self.run.emit(RlmEventKind::Text { text: text.to_owned() });
        }
    }

    fn retry(&self, retry: Retry) {
        let call = match self.purpose {
            Purpose::Turn(_) => {
                self.run.writes(Writing::begin);
                None
            }
            Purpose::Draft(_) => return, // drafts have a listener of their own
            Purpose::Query(call) => Some(call),
        };
        self.run.emit(RlmEventKind::Retry {
            call,
            attempt: retry.attempt,
            wait: retry.wait_ms,
            reason: retry.reason,
        });
    }
}
