//! One run of the tree: carries out what its controller wants.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use js_sys::{Function, JSON, JsString, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::AbortSignal;

use super::draft::Draft;
use super::model::{Listener, Model, NoAnswer, Purpose, Question};
use super::repl::Repl;
use super::stop::{Stop, Waited};
use super::tree::Tree;
use super::writing::{Work, Writing};
use crate::glue::{exact, now, object, readable};
use sandglass_core::budget::{Budget, Usage};
use sandglass_rlm::answer::text;
use sandglass_rlm::controller::{Controller, Effect, Finish, Input, Task};
use sandglass_rlm::event::{RlmEventKind, RunOutcome};
use sandglass_rlm::limits::MAX_EVENT_CHARS;
use sandglass_rlm::openai::Reply;
use sandglass_rlm::{Message, Role, query};

/// One run, and what its children share with it.
pub(super) struct Run {
    pub(super) tree: Rc<Tree>,
    /// Its path in the tree.
    pub(super) id: String,
    pub(super) depth: u32,
    pub(super) stop: Stop,
    pub(super) budget: Budget,
    calls: Cell<u32>,
    children: Cell<u32>,
    /// Calls of Python's that are under way, and who waits for the last of them.
    open_calls: Cell<u32>,
    when_quiet: RefCell<Option<Function>>,
    /// The model's newest reply, while it comes.
    writing: RefCell<Writing>,
    /// The draft of it.
    draft: RefCell<Option<Rc<Draft>>>,
}

impl Run {
    pub(super) fn new(tree: Rc<Tree>, id: String, depth: u32, stop: Stop, budget: Budget) -> Rc<Self> {
        Rc::new(Self {
            tree,
            id,
            depth,
            stop,
            budget,
            calls: Cell::default(),
            children: Cell::default(),
            open_calls: Cell::default(),
            when_quiet: RefCell::default(),
            writing: RefCell::default(),
            draft: RefCell::default(),
        })
    }

    /// Does a task with contexts.
    pub(super) async fn work(self: Rc<Self>, task: String, contexts: Vec<JsValue>) -> Finish {
        let options = &self.tree.options;
        let is_root = self.depth == 0;
        let sandbox = options.sandbox().ok();
        let task = Task {
            task,
            schema: options.schema.clone().filter(|_| is_root),
            max_iterations: options.max_iterations,
            max_prompt_tokens: options.max_prompt_tokens as usize,
            output_chars: sandbox
                .as_ref()
                .map_or(0, |sandbox| sandbox.limits.max_output_chars as usize),
            depth: self.depth,
            max_depth: options.max_depth,
            functions: sandbox
                .iter()
                .flat_map(|sandbox| sandbox.host_functions.iter().map(|(name, _)| name.clone()))
                .collect(),
            packages: options.packages.clone(),
            models: match &options.sub_model {
                Model::Endpoint(endpoint) => query::offered(&endpoint.model, &endpoint.models),
                Model::Function(_) => Vec::new(),
            },
            instructions: options.instructions.clone(),
        };
        let mut controller = Controller::new(task, self.budget.clone(), now());
        let place = match self.tree.places(self.depth) {
            Some(places) => places.take(&self.stop).await.map(Some),
            None => Ok(None),
        };
        let opened = match place {
            Ok(place) => Repl::open(&self, &contexts)
                .await
                .map(|(repl, facts)| (repl, facts, place)),
            Err(waited) => Err(waited),
        };
        drop(contexts);
        let (mut repl, mut input) = match opened {
            Ok((repl, facts, place)) => {
                self.writing.replace(repl.writing());
                (Some((repl, place)), Input::Ready(facts))
            }
            Err(waited) => (None, self.stopped(&waited)),
        };
        loop {
            let mut next = None;
            for effect in controller.handle(now(), input) {
                match effect {
                    Effect::Emit(kind) => self.emit(kind),
                    Effect::Finish(finish) => return finish,
                    effect => next = Some(effect),
                }
            }
            input = match (next, &repl) {
                (Some(Effect::Ask(messages)), _) => self.ask(&messages, controller.turn()).await,
                (Some(Effect::Execute(code)), Some((repl, _))) => match repl.execute(&code, true).await {
                    Ok((execution, declared)) => Input::Executed(Box::new(execution), declared),
                    Err(waited) => self.stopped(&waited),
                },
                _ => Input::Stop(RunOutcome::Failed, "the run came to a standstill".to_owned()),
            };
            if matches!(input, Input::Stop(..)) {
                repl = None;
            }
            // Calls that nobody waits for any more are over before anything else happens.
            self.quiet().await;
        }
    }

    async fn ask(self: &Rc<Self>, messages: &[Message], turn: u32) -> Input {
        let model = if self.depth == 0 {
            &self.tree.options.model
        } else {
            &self.tree.options.sub_model
        };
        let began_at = now();
        self.writes(Writing::begin);
        self.draft.replace(self.draft(model, messages, turn));
        let answered = self
            .answer(model, messages, Purpose::Turn(turn), None, &self.stop)
            .await;
        self.end_draft();
        match answered {
            Ok(reply) => Input::Replied(Ok(reply), now() - began_at),
            Err(NoAnswer::Stopped) => self.stopped(&Waited::Stopped),
            Err(NoAnswer::Failed(error) | NoAnswer::NotRecorded(error)) => Input::Replied(Err(error), now() - began_at),
        }
    }

    async fn answer(
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
            run: &self.id,
            depth: self.depth,
            purpose,
            model: named,
        };
        match model.ask(&question, stop, &listener).await {
            // Nothing that code makes of it would be what was recorded.
            Err(NoAnswer::NotRecorded(error)) => {
                self.tree.fail(error);
                Err(NoAnswer::Stopped)
            }
            answered => answered,
        }
    }

    /// Why the run does not go on.
    fn stopped(&self, waited: &Waited) -> Input {
        match waited {
            Waited::Rejected(_) if !self.stop.is_stopped() => Input::Stop(RunOutcome::Failed, waited.text()),
            _ => {
                let (outcome, why) = self.tree.why_stopped().unwrap_or_else(|| {
                    let why = "nobody waits for its answer any more";
                    (RunOutcome::Aborted, why.to_owned())
                });
                Input::Stop(outcome, why)
            }
        }
    }

    // ---- what Python asks ----

    /// Answers `llm_query`: `{ text, usage }`.
    pub(super) async fn llm_query(
        self: &Rc<Self>,
        prompt: &JsValue,
        model: &JsValue,
        signal: &JsValue,
    ) -> Result<JsValue, String> {
        // A name of any length, from Python; no model has one longer than this.
        let model = model.dyn_ref::<JsString>().map(|name| String::from(name.slice(0, 200)));
        let (call, began_at) = (self.next_call(), now());
        let prompt = self.prompt(prompt);
        let shown = prompt
            .as_ref()
            .map_or_else(|refused| refused.start.as_str(), String::as_str);
        self.emit(RlmEventKind::call_started(
            call,
            "llm_query",
            shown,
            model.clone(),
            None,
        ));
        let answered = match prompt {
            Ok(prompt) => self.query(call, prompt, model, signal).await,
            Err(refused) => Err(refused.why),
        };
        self.called(call, began_at, answered)
    }

    /// Answers `rlm_query`: by a run one level deeper, or by the sub-model where there is no deeper level.
    pub(super) async fn rlm_query(
        self: &Rc<Self>,
        task: &JsValue,
        context: &JsValue,
        budget: Budget,
        signal: &JsValue,
    ) -> Result<JsValue, String> {
        let (call, began_at) = (self.next_call(), now());
        let task = self.prompt(task);
        let shown = task
            .as_ref()
            .map_or_else(|refused| refused.start.as_str(), String::as_str);
        let recurses = self.depth < self.tree.options.max_depth;
        let child = (recurses && task.is_ok()).then(|| {
            let number = self.children.get();
            self.children.set(number + 1);
            format!("{}.{number}", self.id)
        });
        self.emit(RlmEventKind::call_started(
            call,
            "rlm_query",
            shown,
            None,
            child.clone(),
        ));
        let answered = match (task, child) {
            (Ok(task), Some(child)) => self.recurse(child, task, context, budget, signal).await,
            (Ok(task), None) => match self.with_context(&task, context) {
                Ok(prompt) => self.query(call, prompt, None, signal).await,
                Err(error) => Err(error),
            },
            (Err(refused), _) => Err(refused.why),
        };
        self.called(call, began_at, answered)
    }

    async fn recurse(
        self: &Rc<Self>,
        id: String,
        task: String,
        context: &JsValue,
        budget: Budget,
        signal: &JsValue,
    ) -> Result<(String, Option<Usage>), String> {
        let stop = self.stop_with(signal)?;
        let child = Self::new(self.tree.clone(), id, self.depth + 1, stop, budget);
        // A future that holds itself needs a place of its own.
        let work: Pin<Box<dyn Future<Output = Finish>>> = Box::pin(child.work(task, vec![context.clone()]));
        let Finish {
            answer, outcome, error, ..
        } = work.await;
        match answer {
            Some(answer) => Ok((text(&answer), None)),
            None => Err(query::child_failed(outcome, error)),
        }
    }

    /// Asks the sub-model.
    async fn query(
        self: &Rc<Self>,
        call: u32,
        prompt: String,
        model: Option<String>,
        signal: &JsValue,
    ) -> Result<(String, Option<Usage>), String> {
        let stop = self.stop_with(signal)?;
        let messages = [Message::new(Role::User, prompt)];
        let sub_model = &self.tree.options.sub_model;
        let answered = self
            .answer(sub_model, &messages, Purpose::Query(call), model, &stop)
            .await;
        match answered {
            Ok(reply) => {
                let usage = reply.used(&messages);
                Ok((reply.text, Some(Usage { calls: 0.0, ..usage })))
            }
            Err(NoAnswer::Stopped) => Err("nobody waits for the answer any more".to_owned()),
            Err(NoAnswer::Failed(error) | NoAnswer::NotRecorded(error)) => Err(error),
        }
    }

    fn next_call(&self) -> u32 {
        let call = self.calls.get() + 1;
        self.calls.set(call);
        self.open_calls.set(self.open_calls.get() + 1);
        call
    }

    /// A call is over.
    fn called(
        &self,
        call: u32,
        began_at: f64,
        answered: Result<(String, Option<Usage>), String>,
    ) -> Result<JsValue, String> {
        let (answer, error, usage) = match &answered {
            Ok((answer, usage)) => (Some(answer.clone()), None, *usage),
            Err(error) => (None, Some(error.clone()), None),
        };
        self.emit(RlmEventKind::CallEnded {
            call,
            answer,
            error,
            usage,
            duration: now() - began_at,
        });
        self.open_calls.set(self.open_calls.get() - 1);
        if self.open_calls.get() == 0
            && let Some(resolve) = self.when_quiet.take()
        {
            let _ = resolve.call0(&JsValue::UNDEFINED);
        }
        let (text, usage) = answered?;
        let Usage {
            input_tokens,
            output_tokens,
            cost,
            ..
        } = usage.unwrap_or_default();
        let usage = object(&[
            ("inputTokens", &input_tokens.into()),
            ("outputTokens", &output_tokens.into()),
            ("cost", &cost.into()),
        ]);
        Ok(object(&[("text", &text.into()), ("usage", &usage)]).into())
    }

    /// Waits until no call is under way.
    async fn quiet(&self) {
        if self.open_calls.get() > 0 {
            let quiet = Promise::new(&mut |resolve, _| drop(self.when_quiet.replace(Some(resolve))));
            let _ = JsFuture::from(quiet).await;
        }
    }

    /// Ends with the run, and when nobody waits for the call.
    fn stop_with(&self, signal: &JsValue) -> Result<Stop, String> {
        let call = signal.dyn_ref::<AbortSignal>();
        let signals: Vec<&AbortSignal> = call.into_iter().chain([self.stop.signal()]).collect();
        Stop::on(&signals).map_err(|error| crate::glue::describe(&error))
    }

    /// A prompt of Python's, when it fits; one that does not is not even copied.
    fn prompt(&self, prompt: &JsValue) -> Result<String, Refused> {
        let most = self.tree.options.max_prompt_tokens;
        let text: &JsString = prompt.unchecked_ref();
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

    /// A task and its context as one prompt.
    fn with_context(&self, task: &str, context: &JsValue) -> Result<String, String> {
        let context = match context.dyn_ref::<JsString>() {
            Some(text) => Ok(text.clone()),
            None if context.is_null() => Ok("".into()),
            None => JSON::stringify(context),
        };
        let most = self.tree.options.max_prompt_tokens;
        let context = context
            .ok()
            .filter(|context| context.length() <= 4 * most)
            .map(|context| exact("the context", &context))
            .transpose()?;
        let prompt = context.and_then(|context| query::with_context(task, &context, most));
        prompt.ok_or_else(|| query::no_deeper(self.tree.options.max_depth, most))
    }

    /// The model's reply goes on, or not.
    pub(super) fn writes(&self, how: impl FnOnce(&mut Writing) -> Option<Work>) {
        let work = how(&mut self.writing.borrow_mut());
        if let Some(work) = work {
            work.begin();
        }
    }

    /// A draft says what may come next.
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
        self.tree.emit(&self.id, self.depth, kind);
    }
}

/// A prompt that is too long, or no text.
struct Refused {
    start: String,
    why: String,
}

/// Tells a run's listeners how far an answer is.
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

    fn retry(&self, attempt: u32, wait: f64, reason: String) {
        let call = match self.purpose {
            Purpose::Turn(_) => {
                self.run.writes(Writing::begin);
                None
            }
            Purpose::Draft(_) => return, // they have a listener of their own
            Purpose::Query(call) => Some(call),
        };
        self.run.emit(RlmEventKind::Retry {
            call,
            attempt,
            wait,
            reason,
        });
    }
}
