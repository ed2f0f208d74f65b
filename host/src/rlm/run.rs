//! One run of the tree: carries out the steps of [`sandglass_rlm::tree`].
//!
//! Decisions: `docs/internals/controller.md`.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_core::budget::{Budget, BudgetLimits};
use sandglass_core::stats::{Ahead, Stats};
use sandglass_core::value::{ill_formed, lone_surrogate};
use sandglass_rlm::controller::Finish;
use sandglass_rlm::draft::Draft;
use sandglass_rlm::event::{RlmEvent, RlmEventKind};
use sandglass_rlm::openai::{Reply, Retry};
use sandglass_rlm::prompt::{ContextFacts, facts_of};
use sandglass_rlm::tree::{self, Came, Input, Next, Step, Work};
use sandglass_rlm::writing::Writing;
use sandglass_rlm::{Message, query};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::place::Place;
use super::repl::Repl;
use super::stop::Stop;
use super::{Endpoint, RlmOptions};
use crate::completions::OnText;
use crate::driver::now;
use crate::launcher::Launcher;
use crate::sandbox::{Answer, Query};
use crate::traces::InTrace;
use crate::value::Value;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Shared, select, try_join};

/// A launcher that may still be sought.
type Launching = Shared<BoxFuture<'static, Result<Arc<dyn Launcher>, String>>>;

/// The state that all runs of a tree share.
pub(super) struct Tree {
    pub(super) options: RlmOptions,
    /// The launcher of guests, or the reason for which there is none.
    pub(super) launcher: Launching,
    /// The rules of the runs, and the reasons why they end.
    pub(super) runs: Arc<tree::Tree>,
    /// Permits for the runs of each depth, from 1. A run waits only for runs of the next depth, so there is no deadlock.
    permits: Vec<Semaphore>,
    /// The counts of ended sandboxes.
    stats: Mutex<Stats>,
}

impl Tree {
    pub(super) fn new(
        options: RlmOptions,
        launcher: BoxFuture<'static, Result<Arc<dyn Launcher>, String>>,
    ) -> Arc<Self> {
        let count = options.max_concurrent_runs as usize;
        Arc::new(Self {
            permits: (0..options.max_depth).map(|_| Semaphore::new(count)).collect(),
            runs: tree::Tree::new(options.rules(), now()),
            options,
            launcher: launcher.shared(),
            stats: Mutex::default(),
        })
    }

    /// Adds the counts of a sandbox that is about to end.
    pub(super) fn count(&self, stats: &Stats) {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).add(stats);
    }

    /// The counts of code and calls that ran ahead, once all runs are over. Calls that were begun and not used are in vain then.
    pub(super) fn ran_ahead(&self) -> Ahead {
        let mut ahead = self.stats.lock().unwrap_or_else(PoisonError::into_inner).ahead.clone();
        ahead.calls.wasted = ahead.calls.begun.saturating_sub(ahead.calls.used);
        ahead
    }
}

/// One run of a tree, with its sandbox and models.
pub(super) struct Run {
    pub(super) tree: Arc<Tree>,
    /// The state that decides the run's steps.
    state: Mutex<tree::Run>,
    stop: Stop,
    /// The next step, and a notification for its waiter.
    step: Mutex<Option<Step>>,
    has_step: Notify,
}

/// Why waiting brought nothing.
pub(super) enum NoAnswer {
    Stopped,
    Failed(String),
}

/// The purpose of a question to a model.
#[derive(Clone, Copy)]
enum Ask<'a> {
    /// A reply: the listener to its text, and the callback for a new attempt.
    Turn(OnText<'a>, &'a (dyn Fn() + Send + Sync)),
    /// The answer to this call of Python, by the model that the call named.
    Query(u32, Option<&'a str>),
}

impl Run {
    /// The first run.
    pub(super) fn root(tree: &Arc<Tree>, budget: Budget, stop: Stop) -> Arc<Self> {
        let root = tree.runs.root(tree.options.task.clone(), budget, now());
        Self::new(tree.clone(), root, stop)
    }

    fn new(tree: Arc<Tree>, state: tree::Run, stop: Stop) -> Arc<Self> {
        Arc::new(Self {
            tree,
            state: Mutex::new(state),
            stop,
            step: Mutex::default(),
            has_step: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, tree::Run> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn budget(&self) -> Budget {
        self.state().budget().clone()
    }

    fn depth(&self) -> u32 {
        self.state().depth()
    }

    /// Works on the task with contexts. The future is boxed, because a run contains runs.
    pub(super) fn work(self: Arc<Self>, contexts: Vec<Value>) -> BoxFuture<'static, Finish> {
        Box::pin(async move {
            let permits = self.depth().checked_sub(1);
            let permits = permits.and_then(|at| self.tree.permits.get(at as usize));
            let permit = match permits {
                Some(permits) => self.stop.wait(permits.acquire()).await.map(Result::ok),
                None => Some(None),
            };
            let mut place = Place::default();
            let begun = match &permit {
                Some(_) => self.begin(&place, contexts).await,
                None => Err(NoAnswer::Stopped),
            };
            let mut input = begun.unwrap_or_else(|why| self.stopped(why));
            loop {
                if input.is_end()
                    && let Some(repl) = place.take()
                {
                    repl.close(&self).await;
                }
                input = match (self.next_step(input).await, place.get()) {
                    (Step::Finish(finish), _) => {
                        if let Some(repl) = place.take() {
                            repl.close(&self).await;
                        }
                        return finish;
                    }
                    (Step::Ask(turn, messages), Some(_)) => self.ask(&place, &messages, turn).await,
                    (Step::Execute(code), Some(repl)) => match self.stop.wait(repl.execute(&self, code, true)).await {
                        Some(Ok((execution, declared))) => Input::Executed(Box::new(execution), declared),
                        Some(Err(error)) => self.stopped(NoAnswer::Failed(error)),
                        None => self.stopped(NoAnswer::Stopped),
                    },
                    (_, None) => Input::Failed("its sandbox is gone".to_owned()),
                };
            }
        })
    }

    /// Gives the state an input, and waits for the next step.
    async fn next_step(&self, input: Input) -> Step {
        let next = self.state().handle(now(), input);
        self.follow(next);
        loop {
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).take();
            match step {
                Some(step) => return step,
                None => self.has_step.notified().await,
            }
        }
    }

    fn follow(&self, next: Next) {
        next.events.iter().for_each(|event| self.tell(event));
        if let Some(step) = next.step {
            *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
            self.has_step.notify_one();
        }
    }

    /// Opens the sandbox, and asks the model for its first reply meanwhile, if that needs no guest. Returns the input that comes of it.
    async fn begin(self: &Arc<Self>, place: &Place, contexts: Vec<Value>) -> Result<Input, NoAnswer> {
        let known = known_facts(&contexts);
        let opening = async {
            let (repl, facts) = self.open(contexts).await?;
            place.fill(repl);
            Ok(facts)
        };
        let Some(known) = known else {
            return opening.await.map(Input::Ready);
        };
        let used = Mutex::new(None);
        let asking = async {
            match self.next_step(Input::Ready(known)).await {
                Step::Ask(turn, messages) => {
                    let input = self.ask(place, &messages, turn).await;
                    if let Input::Replied(Ok(reply)) = &input {
                        *used.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply.used(&messages));
                    }
                    Ok(Ok(input))
                }
                over => Ok(Err(over)),
            }
        };
        let begun = try_join(opening, asking).await;
        // Without a sandbox nobody takes the reply, which is paid all the same.
        if begun.is_err()
            && let Some(mut usage) = used.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            usage.calls = 0.0; // it was counted when the model was asked
            self.budget().charge(&usage);
        }
        match begun?.1 {
            Ok(input) => Ok(input),
            // The budget has no room for the first reply.
            Err(over) => {
                *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(over);
                Ok(Input::Stopped)
            }
        }
    }

    async fn open(self: &Arc<Self>, contexts: Vec<Value>) -> Result<(Repl, Vec<ContextFacts>), NoAnswer> {
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

    async fn ask(&self, place: &Place, messages: &[Message], turn: u32) -> Input {
        let options = &self.tree.options;
        let model = match self.depth() {
            0 => &options.model,
            _ => &options.sub_model,
        };
        let writing = Mutex::new(Writing::default());
        let (begins, has_begun) = (Notify::new(), AtomicBool::new(false));
        let hear = |text: &str| {
            if !has_begun.swap(true, Ordering::Relaxed) {
                begins.notify_one();
            }
            if place.get().is_none_or(|repl| repl.forks) {
                let steps = writing.lock().unwrap_or_else(PoisonError::into_inner).hear(text);
                steps.into_iter().for_each(|step| place.prepare(step));
            }
            self.emit(RlmEventKind::Text { text: text.to_owned() });
        };
        let begin_again = || {
            *writing.lock().unwrap_or_else(PoisonError::into_inner) = Writing::default();
            place.nothing_is_written();
        };
        begin_again();
        let drafting = async {
            // A draft is useless if the same model would write it, or if its code could not run ahead.
            let Some(endpoint) = options.draft.as_ref().filter(|draft| !draft.is(model)) else {
                return;
            };
            let draft = async {
                let repl = place.opened().await;
                match repl.forks {
                    true => self
                        .stop
                        .wait(self.draft(endpoint, messages, turn))
                        .await
                        .zip(Some(repl)),
                    false => None,
                }
            };
            let drafted = tokio::select! {
                biased;
                () = begins.notified() => None,
                drafted = draft => drafted,
            };
            if let Some((codes, repl)) =
                drafted.filter(|(codes, _)| !codes.is_empty() && !has_begun.load(Ordering::Relaxed))
            {
                repl.expect(codes);
            }
        };
        let replied = async {
            let replied = self
                .ask_model(model, messages, Ask::Turn(&hear, &begin_again), &self.stop)
                .await;
            begins.notify_one();
            replied
        };
        match tokio::join!(biased; replied, drafting).0 {
            Ok(reply) => Input::Replied(Ok(reply)),
            Err(NoAnswer::Stopped) => self.stopped(NoAnswer::Stopped),
            Err(NoAnswer::Failed(error)) => Input::Replied(Err(error)),
        }
    }

    /// The code in a draft of this turn's reply; empty if the budget has no call left for a draft.
    async fn draft(&self, endpoint: &Endpoint, messages: &[Message], turn: u32) -> Vec<String> {
        let most = self.tree.options.max_iterations;
        let Some(draft) = Draft::admit(self.budget(), messages, endpoint.price, turn, most, now()) else {
            return Vec::new();
        };
        let draft = Mutex::new(draft);
        let written = || draft.lock().unwrap_or_else(PoisonError::into_inner);
        let (on_text, on_retry) = (|text: &str| written().hear(text), |_| written().begin_again());
        let answered = endpoint.ask(messages, None, Some(&on_text), &on_retry).await;
        // A failed draft does not fail the run.
        draft
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .end(answered.ok())
    }

    /// Asks a model: for a turn, or for a call of Python's.
    async fn ask_model(
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
        let on_retry = |retry: Retry| {
            if let Ask::Turn(_, begin_again) = what {
                begin_again();
            }
            self.emit(RlmEventKind::Retry {
                call,
                attempt: retry.attempt,
                wait: retry.wait_ms,
                reason: retry.reason,
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
            NoAnswer::Failed(error) if !self.stop.is_ended() => Input::Failed(error),
            _ => Input::Stopped,
        }
    }

    // ---- what Python asks ----

    /// Answers `llm_query` or `rlm_query`. The work has a task of its own. If the caller stops waiting, the work is told to
    /// stop, and its events are in the trajectory before the run goes on.
    pub(super) async fn answer(self: Arc<Self>, query: Query, is_recursive: bool) -> Result<Answer, String> {
        let Query {
            prompt,
            context,
            model,
            budget,
            claim,
            ..
        } = query;
        let prompt = query::checked(prompt, self.tree.options.max_prompt_tokens);
        let query = if is_recursive {
            let budget = budget.child(BudgetLimits::default(), now());
            let as_text = |most| context_text(&context, most);
            self.state().rlm_query(now(), prompt, budget, as_text)
        } else {
            self.state().llm_query(now(), prompt, model, claim.is_some())
        };
        self.tell(&query.started);
        let stop = self.stop.below();
        let _waited_for = stop.on_drop();
        let (answer, answered) = oneshot::channel();
        let working = async move {
            let work = pin!(self.work_for(query.call, query.work, context, stop.clone()));
            let mut came = match claim.clone() {
                Some(mut claim) => match select(work, pin!(claim.is_used())).await {
                    Either::Left((came, _)) => came,
                    Either::Right((is_used, work)) => {
                        if is_used {
                            self.state().claimed(query.call);
                        }
                        work.await
                    }
                },
                None => work.await,
            };
            if let Some(mut claim) = claim {
                self.state().came(now(), query.call, &came);
                // The claim is asked first: a call may be made and then stopped.
                let is_used = tokio::select! {
                    biased;
                    is_used = claim.is_used() => is_used,
                    None = stop.wait(std::future::pending::<()>()) => false,
                };
                if !is_used {
                    came = came.in_vain(self.tree.options.sub_model.price);
                }
            }
            let (told, next) = self.state().answered(now(), query.call, came);
            let _ = answer.send(told);
            self.follow(next);
        };
        tokio::spawn(working.with_current_context());
        let tree::Answer { text, usage } = answered.await.unwrap_or_else(|_| Err("the run is over".to_owned()))?;
        Ok(Answer { text, usage })
    }

    async fn work_for(&self, call: u32, work: Work, context: Value, stop: Stop) -> Came {
        match work {
            Work::Refuse(why) => Came::Failed(why),
            Work::Recurse(child) => {
                let child = Self::new(self.tree.clone(), *child, stop);
                Came::Finish(child.work(vec![context]).await)
            }
            Work::Ask(messages, model) => {
                let ask = Ask::Query(call, model.as_deref());
                match self
                    .ask_model(&self.tree.options.sub_model, &messages, ask, &stop)
                    .await
                {
                    Ok(reply) => Came::Reply(reply),
                    Err(NoAnswer::Stopped) => Came::Stopped,
                    Err(NoAnswer::Failed(error)) => Came::Failed(error),
                }
            }
        }
    }

    pub(super) fn emit(&self, kind: RlmEventKind) {
        let event = self.state().event(now(), kind);
        self.tell(&event);
    }

    fn tell(&self, event: &RlmEvent) {
        (self.tree.options.on_event)(event);
    }
}

/// The facts of contexts that are texts, or nothing. `None` if a guest has to describe some.
fn known_facts(contexts: &[Value]) -> Option<Vec<ContextFacts>> {
    let facts = contexts.iter().enumerate().map(|(index, context)| match context {
        Value::Str(text) => Some(facts_of(index, Some((text.chars().count() as u64, text)))),
        Value::None => Some(facts_of(index, None)),
        _ => None,
    });
    facts.collect()
}

/// A context as text, if it has at most `most` bytes.
fn context_text(context: &Value, most: usize) -> Result<Option<String>, String> {
    match context {
        Value::Str(text) => Ok((text.len() <= most).then(|| text.clone())),
        Value::None => Ok(Some(String::new())),
        Value::IllFormedStr(utf16) => Err(ill_formed("the context", lone_surrogate(utf16).unwrap_or_default())),
        other => Ok(Some(other.to_json().to_string())),
    }
}
