//! One run of the tree: carries out what its controller wants.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::speculate::{Source, Tally};
use sandglass_core::stats::Stats;
use sandglass_core::value::{ill_formed, lone_surrogate};
use sandglass_rlm::answer::text;
use sandglass_rlm::controller::{Controller, Effect, Finish, Input, Task};
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};
use sandglass_rlm::openai::Reply;
use sandglass_rlm::writing::Writing;
use sandglass_rlm::{Message, Role, query};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::draft::draft;
use super::repl::Repl;
use super::stop::Stop;
use super::{Endpoint, RlmOptions};
use crate::completions::OnText;
use crate::driver::now;
use crate::launcher::Launcher;
use crate::sandbox::{Answer, Query};
use crate::value::Value;
use futures_util::future::BoxFuture;

/// What all runs of a tree share.
pub(super) struct Tree {
    pub(super) options: RlmOptions,
    pub(super) launcher: Arc<dyn Launcher>,
    began_at: f64,
    /// Where runs of one depth, from 1, get their places: each depth waits for the next one only.
    places: Vec<Semaphore>,
    why_stopped: Mutex<Option<(RunOutcome, String)>>,
    /// What the sandboxes that are gone have done.
    stats: Mutex<Stats>,
}

impl Tree {
    pub(super) fn new(options: RlmOptions, launcher: Arc<dyn Launcher>) -> Arc<Self> {
        let count = options.max_concurrent_runs as usize;
        Arc::new(Self {
            places: (0..options.max_depth).map(|_| Semaphore::new(count)).collect(),
            options,
            launcher,
            began_at: now(),
            why_stopped: Mutex::new(None),
            stats: Mutex::default(),
        })
    }

    /// Says why everything is about to be ended; the first reason counts.
    pub(super) fn stopping(&self, outcome: RunOutcome, reason: String) {
        let mut why = self.why_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        why.get_or_insert((outcome, reason));
    }

    /// A sandbox that is about to go has done this.
    pub(super) fn count(&self, stats: &Stats) {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).add(stats);
    }

    pub(super) fn ran_ahead(&self) -> BTreeMap<Source, Tally> {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.ahead.code.clone()
    }

    fn why_stopped(&self) -> Option<(RunOutcome, String)> {
        let why = self.why_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone()
    }
}

/// One run, and what its children share with it.
pub(super) struct Run {
    pub(super) tree: Arc<Tree>,
    /// Its path in the tree.
    id: String,
    depth: u32,
    stop: Stop,
    pub(super) budget: Budget,
    calls: AtomicU32,
    children: AtomicU32,
    /// Calls of Python's that are under way.
    open_calls: watch::Sender<u32>,
}

/// Why waiting brought nothing.
pub(super) enum NoAnswer {
    Stopped,
    Failed(String),
}

/// What a model is asked for.
#[derive(Clone, Copy)]
enum Ask<'a> {
    /// A reply: who hears it as it comes, and what is to be done when it begins again.
    Turn(OnText<'a>, &'a (dyn Fn() + Send + Sync)),
    /// The answer to this call of Python's, by the model that it named.
    Query(u32, Option<&'a str>),
}

impl Run {
    pub(super) fn new(tree: Arc<Tree>, id: String, depth: u32, stop: Stop, budget: Budget) -> Arc<Self> {
        Arc::new(Self {
            tree,
            id,
            depth,
            stop,
            budget,
            calls: AtomicU32::new(0),
            children: AtomicU32::new(0),
            open_calls: watch::Sender::new(0),
        })
    }

    /// Does a task with contexts. A boxed future, because a run contains runs.
    pub(super) fn work(self: Arc<Self>, task: String, contexts: Vec<Value>) -> BoxFuture<'static, Finish> {
        Box::pin(async move {
            let options = &self.tree.options;
            let task = Task {
                task,
                schema: options.schema.clone().filter(|_| self.depth == 0),
                max_iterations: options.max_iterations,
                max_prompt_tokens: options.max_prompt_tokens as usize,
                output_chars: options.limits.max_output_chars as usize,
                depth: self.depth,
                max_depth: options.max_depth,
                functions: Vec::new(),
                packages: options.packages.clone(),
                models: query::offered(&options.sub_model.model, &options.sub_model.models),
                instructions: options.instructions.clone(),
            };
            let mut controller = Controller::new(task, self.budget.clone(), now());
            let places = self
                .depth
                .checked_sub(1)
                .and_then(|at| self.tree.places.get(at as usize));
            let place = match places {
                Some(places) => match self.stop.wait(places.acquire()).await {
                    Some(place) => Ok(place.ok()),
                    None => Err(NoAnswer::Stopped),
                },
                None => Ok(None),
            };
            let opened = match &place {
                Ok(_) => self.open(contexts).await,
                Err(_) => Err(NoAnswer::Stopped),
            };
            let (mut repl, mut input) = match opened {
                Ok((repl, facts)) => (Some(repl), Input::Ready(facts)),
                Err(why) => (None, self.stopped(why)),
            };
            loop {
                if matches!(input, Input::Stop(..))
                    && let Some(repl) = repl.take()
                {
                    repl.close(&self).await;
                }
                // Calls that nobody waits for any more are over before anything else happens.
                self.quiet().await;
                let mut next = None;
                for effect in controller.handle(now(), input) {
                    match effect {
                        Effect::Emit(kind) => self.emit(kind),
                        Effect::Finish(finish) => {
                            if let Some(repl) = repl.take() {
                                repl.close(&self).await;
                            }
                            return finish;
                        }
                        effect => next = Some(effect),
                    }
                }
                input = match (next, &repl) {
                    (Some(Effect::Ask(messages)), Some(repl)) => self.ask(repl, &messages, controller.turn()).await,
                    (Some(Effect::Execute(code)), Some(repl)) => {
                        match self.stop.wait(repl.execute(&self, code, true)).await {
                            Some(Ok((execution, declared))) => Input::Executed(Box::new(execution), declared),
                            Some(Err(error)) => self.stopped(NoAnswer::Failed(error)),
                            None => self.stopped(NoAnswer::Stopped),
                        }
                    }
                    _ => Input::Stop(RunOutcome::Failed, "the run came to a standstill".to_owned()),
                };
            }
        })
    }

    async fn open(
        self: &Arc<Self>,
        contexts: Vec<Value>,
    ) -> Result<(Repl, Vec<sandglass_rlm::prompt::ContextFacts>), NoAnswer> {
        let repl = Repl::new(self).await.map_err(NoAnswer::Failed)?;
        match self.stop.wait(repl.begin(self, contexts)).await {
            Some(Ok(facts)) => Ok((repl, facts)),
            failed => {
                repl.close(self).await;
                Err(match failed {
                    Some(Err(error)) => NoAnswer::Failed(error),
                    _ => NoAnswer::Stopped,
                })
            }
        }
    }

    async fn ask(&self, repl: &Repl, messages: &[Message], turn: u32) -> Input {
        let options = &self.tree.options;
        let model = if self.depth == 0 {
            &options.model
        } else {
            &options.sub_model
        };
        let began_at = now();
        let writing = Mutex::new(Writing::default());
        let (begins, has_begun) = (Notify::new(), AtomicBool::new(false));
        let hear = |text: &str| {
            if !has_begun.swap(true, Ordering::Relaxed) {
                begins.notify_one();
            }
            if self.tree.launcher.forks() {
                let steps = writing.lock().unwrap_or_else(PoisonError::into_inner).hear(text);
                steps.into_iter().for_each(|step| repl.prepare(step));
            }
            self.emit(RlmEventKind::Text { text: text.to_owned() });
        };
        let begin_again = || {
            *writing.lock().unwrap_or_else(PoisonError::into_inner) = Writing::default();
            repl.nothing_is_written();
        };
        begin_again();
        let drafting = async {
            // Nor is a model asked for a draft of its own reply, or any where it could not run.
            let is_of_use = |draft: &&Endpoint| self.tree.launcher.forks() && !draft.is(model);
            let Some(endpoint) = options.draft.as_ref().filter(is_of_use) else {
                return;
            };
            let own_calls = options.max_iterations.saturating_sub(turn) + 1;
            let drafted = tokio::select! {
                biased;
                () = begins.notified() => None,
                drafted = self.stop.wait(draft(endpoint, messages, &self.budget, own_calls)) => drafted.flatten(),
            };
            if let Some(codes) = drafted.filter(|codes| !codes.is_empty() && !has_begun.load(Ordering::Relaxed)) {
                repl.expect(codes);
            }
        };
        let replied = async {
            let replied = self
                .answer(model, messages, Ask::Turn(&hear, &begin_again), &self.stop)
                .await;
            begins.notify_one();
            replied
        };
        match tokio::join!(biased; replied, drafting).0 {
            Ok(reply) => Input::Replied(Ok(reply), now() - began_at),
            Err(NoAnswer::Stopped) => self.stopped(NoAnswer::Stopped),
            Err(NoAnswer::Failed(error)) => Input::Replied(Err(error), now() - began_at),
        }
    }

    /// Asks a model: for a turn, or for a call of Python's.
    async fn answer(
        &self,
        model: &Endpoint,
        messages: &[Message],
        what: Ask<'_>,
        stop: &Stop,
    ) -> Result<Reply, NoAnswer> {
        let (call, named, on_text) = match what {
            Ask::Turn(on_text, _) => (None, None, Some(on_text)),
            Ask::Query(call, named) => (Some(call), named, None),
        };
        let on_retry = |attempt, wait, reason| {
            if let Ask::Turn(_, begin_again) = what {
                begin_again();
            }
            self.emit(RlmEventKind::Retry {
                call,
                attempt,
                wait,
                reason,
            });
        };
        match stop.wait(model.ask(messages, named, on_text, &on_retry)).await {
            Some(answered) => answered.map_err(NoAnswer::Failed),
            None => Err(NoAnswer::Stopped),
        }
    }

    /// Why the run does not go on.
    fn stopped(&self, why: NoAnswer) -> Input {
        match why {
            NoAnswer::Failed(error) if !self.stop.is_ended() => Input::Stop(RunOutcome::Failed, error),
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

    /// Answers a query of Python's by `work`, which ends in its own time: when nobody waits for the answer any more, it is told to stop,
    /// and what it did is in the trajectory before the run goes on.
    pub(super) async fn answer_query<W, F>(self: Arc<Self>, query: Query, work: W) -> Result<Answer, String>
    where
        W: FnOnce(Arc<Self>, Query, Stop) -> F,
        F: Future<Output = Result<Answer, String>> + Send + 'static,
    {
        let stop = self.stop.below();
        let _waited_for = stop.on_drop();
        let open = self.open_calls.clone();
        open.send_modify(|open| *open += 1);
        let (answer, answered) = oneshot::channel();
        let work = work(self, query, stop);
        tokio::spawn(async move {
            let _ = answer.send(work.await);
            open.send_modify(|open| *open -= 1);
        });
        answered.await.unwrap_or_else(|_| Err("the run is over".to_owned()))
    }

    /// Answers `llm_query`.
    pub(super) async fn llm_query(self: Arc<Self>, query: Query, stop: Stop) -> Result<Answer, String> {
        let Query { prompt, model, .. } = query;
        // A name of any length, from Python; no model has one longer than this.
        let model: Option<String> = model.map(|name| name.chars().take(200).collect());
        let (call, began_at) = (self.next_call(), now());
        self.emit(RlmEventKind::call_started(
            call,
            "llm_query",
            &prompt,
            model.clone(),
            None,
        ));
        let answered = match self.check(&prompt) {
            Ok(()) => self.query(call, prompt, model, &stop).await,
            Err(error) => Err(error),
        };
        self.called(call, began_at, answered)
    }

    /// Answers `rlm_query`: by a run one level deeper, or by the sub-model where there is no deeper level.
    pub(super) async fn rlm_query(self: Arc<Self>, query: Query, stop: Stop) -> Result<Answer, String> {
        let Query {
            prompt: task,
            context,
            budget,
            ..
        } = query;
        let (call, began_at) = (self.next_call(), now());
        let checked = self.check(&task);
        let recurses = self.depth < self.tree.options.max_depth;
        let child = (recurses && checked.is_ok()).then(|| {
            let number = self.children.fetch_add(1, Ordering::Relaxed);
            format!("{}.{number}", self.id)
        });
        self.emit(RlmEventKind::call_started(
            call,
            "rlm_query",
            &task,
            None,
            child.clone(),
        ));
        let answered = match (checked, child) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(id)) => {
                let budget = budget.child(BudgetLimits::default(), now());
                let child = Self::new(self.tree.clone(), id, self.depth + 1, stop, budget);
                let Finish {
                    answer, outcome, error, ..
                } = child.work(task, vec![context]).await;
                match answer {
                    Some(answer) => Ok((text(&answer), None)),
                    None => Err(query::child_failed(outcome, error)),
                }
            }
            (Ok(()), None) => match self.with_context(&task, &context) {
                Ok(prompt) => self.query(call, prompt, None, &stop).await,
                Err(error) => Err(error),
            },
        };
        self.called(call, began_at, answered)
    }

    /// Asks the sub-model.
    async fn query(
        &self,
        call: u32,
        prompt: String,
        model: Option<String>,
        stop: &Stop,
    ) -> Result<(String, Option<Usage>), String> {
        let messages = [Message::new(Role::User, prompt)];
        let sub_model = &self.tree.options.sub_model;
        match self
            .answer(sub_model, &messages, Ask::Query(call, model.as_deref()), stop)
            .await
        {
            Ok(reply) => {
                let usage = reply.used(&messages);
                Ok((reply.text, Some(Usage { calls: 0.0, ..usage })))
            }
            Err(NoAnswer::Stopped) => Err("nobody waits for the answer any more".to_owned()),
            Err(NoAnswer::Failed(error)) => Err(error),
        }
    }

    fn next_call(&self) -> u32 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A call is over.
    fn called(
        &self,
        call: u32,
        began_at: f64,
        answered: Result<(String, Option<Usage>), String>,
    ) -> Result<Answer, String> {
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
        let (text, usage) = answered?;
        Ok(Answer {
            text,
            usage: usage.unwrap_or_default(),
        })
    }

    /// Waits until no call is under way.
    async fn quiet(&self) {
        // Fails when there is no sender any more, and this is one.
        let _ = self.open_calls.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Whether a prompt of Python's fits.
    fn check(&self, prompt: &str) -> Result<(), String> {
        let most = self.tree.options.max_prompt_tokens;
        if query::fits(prompt, most) {
            return Ok(());
        }
        Err(query::too_long(prompt.chars().count(), most))
    }

    /// A task and its context as one prompt.
    fn with_context(&self, task: &str, context: &Value) -> Result<String, String> {
        let options = &self.tree.options;
        let most = options.max_prompt_tokens;
        let context = match context {
            Value::Str(text) if text.len() <= 4 * most as usize => Some(text.clone()),
            Value::Str(_) => None,
            Value::None => Some(String::new()),
            Value::IllFormedStr(utf16) => {
                return Err(ill_formed("the context", lone_surrogate(utf16).unwrap_or_default()));
            }
            other => Some(other.to_json().to_string()),
        };
        let prompt = context.and_then(|context| query::with_context(task, &context, most));
        prompt.ok_or_else(|| query::no_deeper(options.max_depth, most))
    }

    pub(super) fn emit(&self, kind: RlmEventKind) {
        let event = RlmEvent {
            run: self.id.clone(),
            depth: self.depth,
            time: ((now() - self.tree.began_at) * 10.0).round() / 10.0,
            kind,
        };
        (self.tree.options.on_event)(&event);
    }
}
