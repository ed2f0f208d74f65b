//! A tree of runs: the first run, and the runs that its code starts by `rlm_query`.
//!
//! A [`Run`] is a [`Controller`] with its place in the tree. It numbers the *queries* of its code (`llm_query`, `rlm_query`), decides how
//! each is answered, and continues when all have answers. The driver gives it [`Input`]s and queries, and carries out the [`Step`]s: it
//! asks models, runs code and waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::answer::text;
use super::controller::{self, Controller, Effect, Finish, Task};
use super::event::{RlmEvent, RlmEventKind, RunOutcome};
use super::openai::Reply;
use super::prompt::ContextFacts;
use super::query::{self, Refused};
use super::schema::Schema;
use super::{Message, Role};
use sandglass_core::budget::{Budget, Usage};
use sandglass_core::execution::CodeExecution;

/// The most characters of a model's name from Python. No model has a longer name.
const MAX_NAME_CHARS: usize = 200;

/// The settings for all runs of a tree.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The schema of the first run's answer. Children answer with texts.
    pub schema: Option<Schema>,
    /// The most replies of the model in a run.
    pub max_iterations: u32,
    /// The most tokens of one prompt, estimated.
    pub max_prompt_tokens: u32,
    /// Levels of runs below the first.
    pub max_depth: u32,
    /// The most characters of each output that the model sees.
    pub output_chars: usize,
    /// The user's functions that Python may call.
    pub functions: Vec<String>,
    /// Packages that Python can import, besides its standard library.
    pub packages: Vec<String>,
    /// Models that Python may name. Empty if Python has no choice.
    pub models: Vec<String>,
    /// Instructions of the user that are added to the system prompt.
    pub instructions: Option<String>,
    /// The sub-model's price of a million input and output tokens, if it is known.
    pub sub_price: Option<[f64; 2]>,
}

/// A tree: the data that all its runs share.
#[derive(Debug)]
pub struct Tree {
    rules: Rules,
    began_at: f64,
    why_stopped: Mutex<Option<(RunOutcome, String)>>,
}

/// An input of a run: an event to which it reacts.
#[derive(Debug, Clone)]
pub enum Input {
    /// The sandbox has its contexts, with these facts.
    Ready(Vec<ContextFacts>),
    /// The model replied, or failed.
    Replied(Result<Reply, String>),
    /// A block has ended, with its declared final value, or the reason for which that is no valid value.
    Executed(Box<CodeExecution>, Option<Result<Value, String>>),
    /// The sandbox failed.
    Failed(String),
    /// The run is ended. The reason was given to [`Tree::stop`], or nobody waits for the answer.
    Stopped,
}

impl Input {
    /// Returns true if the run no longer needs its sandbox. The sandbox must be ended first, because the run waits for its code's queries.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Stopped)
    }
}

/// A step for the driver of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Asks the model for the reply of this turn. [`Input::Replied`] must follow.
    Ask(u32, Vec<Message>),
    /// Runs code. [`Input::Executed`] must follow.
    Execute(String),
    /// Ends the run.
    Finish(Finish),
}

/// The effects of an input: events, and then a step. Without a step, the run waits for its queries.
#[derive(Debug, Default)]
pub struct Next {
    /// Events to report, in this order.
    pub events: Vec<RlmEvent>,
    /// The step to do after the events are reported.
    pub step: Option<Step>,
}

/// A query of Python code.
#[derive(Debug)]
pub struct Query {
    /// The query's number in the run, from 1. Its outcome must go to [`Run::answered`].
    pub call: u32,
    /// The event to report before the query is answered.
    pub started: RlmEvent,
    /// The work that answers the query.
    pub work: Work,
}

/// The work that answers a query.
#[derive(Debug)]
pub enum Work {
    /// Asks the sub-model. The name is the model's that Python gave.
    Ask(Vec<Message>, Option<String>),
    /// Starts a child run.
    Recurse(Box<Run>),
    /// Refuses the query, for this reason.
    Refuse(String),
}

/// The outcome of the work for a query.
#[derive(Debug)]
pub enum Came {
    /// The model replied.
    Reply(Reply),
    /// The child run is over.
    Finish(Finish),
    /// There is no answer, for this reason.
    Failed(String),
    /// Nobody waits for the answer any more.
    Stopped,
    /// The code that came did not make the call, which was begun ahead. The reply is the part of it that came, if any.
    Wasted(Reply),
}

impl Came {
    /// The outcome of a call that no code has made: the part of the reply that is to be paid, by the sub-model's price.
    #[must_use]
    pub fn in_vain(&self, price: Option<[f64; 2]>) -> Self {
        Self::Wasted(match self {
            Self::Reply(reply) => reply.clone(),
            Self::Failed(_) => Reply {
                usage: Some(Usage::default()), // a failed call costs nothing
                ..Reply::default()
            },
            _ => Reply {
                price,
                ..Reply::default()
            },
        })
    }
}

/// The answer for Python.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text of the answer.
    pub text: String,
    /// The model's use. Calls of a child run are counted in the child.
    pub usage: Usage,
}

/// A query without an answer yet.
#[derive(Debug)]
struct Open {
    began_at: f64,
    /// The time of the answer, if it came before anybody asked for it.
    came_at: Option<f64>,
    /// The outcome of the call, if it is there and no code has made the call.
    came: Option<Came>,
    asked: Vec<Message>,
    /// True if the call was begun ahead, and no code has made it yet.
    ahead: bool,
}

/// A run, with its place in the tree.
#[derive(Debug)]
pub struct Run {
    tree: Arc<Tree>,
    id: String,
    depth: u32,
    budget: Budget,
    controller: Controller,
    asked_at: f64,
    calls: u32,
    children: u32,
    open: HashMap<u32, Open>,
    /// An input that came while queries were open. It is handled after them.
    held: Option<controller::Input>,
}

impl Tree {
    /// A tree whose first run begins at `now`.
    pub fn new(rules: Rules, now: f64) -> Arc<Self> {
        Arc::new(Self {
            rules,
            began_at: now,
            why_stopped: Mutex::default(),
        })
    }

    /// The settings for the tree's runs.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Records the reason for which all runs are about to be ended. The first reason stands.
    pub fn stop(&self, outcome: RunOutcome, why: impl Into<String>) {
        let mut stopped = self.why_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.get_or_insert_with(|| (outcome, why.into()));
    }

    fn why_stopped(&self) -> Option<(RunOutcome, String)> {
        let stopped = self.why_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.clone()
    }

    /// Makes the first run.
    pub fn root(self: &Arc<Self>, task: String, budget: Budget, now: f64) -> Run {
        self.run("0".to_owned(), 0, task, budget, now)
    }

    fn run(self: &Arc<Self>, id: String, depth: u32, task: String, budget: Budget, now: f64) -> Run {
        let Rules {
            schema,
            max_iterations,
            max_prompt_tokens,
            max_depth,
            output_chars,
            functions,
            packages,
            models,
            instructions,
            sub_price: _,
        } = self.rules.clone();
        let task = Task {
            task,
            schema: schema.filter(|_| depth == 0),
            max_iterations,
            max_prompt_tokens: max_prompt_tokens as usize,
            output_chars,
            depth,
            max_depth,
            functions,
            packages,
            models,
            instructions,
        };
        Run {
            tree: self.clone(),
            id,
            depth,
            controller: Controller::new(task, budget.clone(), now),
            budget,
            asked_at: now,
            calls: 0,
            children: 0,
            open: HashMap::new(),
            held: None,
        }
    }
}

impl Run {
    /// The run's path in the tree: `"0"` is the first run, `"0.1"` the second of its children.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The run's depth in the tree; 0 is the first run.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The run's budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Makes an event of this run.
    pub fn event(&self, now: f64, kind: RlmEventKind) -> RlmEvent {
        RlmEvent {
            run: self.id.clone(),
            depth: self.depth,
            time: ((now - self.tree.began_at) * 10.0).round() / 10.0,
            kind,
        }
    }

    /// Takes an input. It waits while queries are open, because their events must come first.
    pub fn handle(&mut self, now: f64, input: Input) -> Next {
        self.held = Some(match input {
            Input::Ready(facts) => controller::Input::Ready(facts),
            Input::Replied(reply) => controller::Input::Replied(reply, now - self.asked_at),
            Input::Executed(execution, declared) => controller::Input::Executed(execution, declared),
            Input::Failed(why) => controller::Input::Stop(RunOutcome::Failed, why),
            Input::Stopped => {
                let (outcome, why) = self.tree.why_stopped().unwrap_or_else(|| {
                    let why = "nobody waits for its answer any more";
                    (RunOutcome::Aborted, why.to_owned())
                });
                controller::Input::Stop(outcome, why)
            }
        });
        self.go_on(now)
    }

    fn go_on(&mut self, now: f64) -> Next {
        let mut next = Next::default();
        // A query that was begun ahead waits for the code of this reply, or of the next one.
        if self.open.values().any(|open| !open.ahead) {
            return next;
        }
        let Some(input) = self.held.take() else { return next };
        let mut effects = self.controller.handle(now, input);
        if effects.is_empty() && !self.controller.is_done() {
            let stop = controller::Input::Stop(RunOutcome::Failed, "the run came to a standstill".to_owned());
            effects = self.controller.handle(now, stop);
        }
        if self.controller.is_done() {
            let open = self.open.iter_mut();
            let open: Vec<_> = open.map(|(call, open)| (*call, open.came.take())).collect();
            for (call, came) in open {
                let came = came.unwrap_or_else(|| Came::Stopped.in_vain(self.tree.rules.sub_price));
                next.events.extend(self.end(now, call, came).1);
            }
        }
        for effect in effects {
            match effect {
                Effect::Emit(mut kind) => {
                    if let RlmEventKind::RunEnded { usage, .. } = &mut kind {
                        *usage = self.budget.spent(); // with calls in vain, which ended just now
                    }
                    next.events.push(self.event(now, kind));
                }
                Effect::Ask(messages) => {
                    self.asked_at = now;
                    next.step = Some(Step::Ask(self.controller.turn(), messages));
                }
                Effect::Execute(code) => next.step = Some(Step::Execute(code)),
                Effect::Finish(finish) => next.step = Some(Step::Finish(finish)),
            }
        }
        next
    }

    /// Takes a call of `llm_query`, with the model's name if the code gives one. `ahead` is true if the call is begun before its code is
    /// asked for.
    pub fn llm_query(
        &mut self,
        now: f64,
        prompt: Result<String, Refused>,
        model: Option<String>,
        ahead: bool,
    ) -> Query {
        let model: Option<String> = model.map(|name| name.chars().take(MAX_NAME_CHARS).collect());
        let call = self.begin(now, ahead);
        let mut started = RlmEventKind::call_started(call, "llm_query", shown(&prompt), model.clone(), None);
        if let RlmEventKind::CallStarted { ahead: told, .. } = &mut started {
            *told = ahead;
        }
        let work = match prompt {
            Ok(prompt) => self.ask(call, prompt, model),
            Err(refused) => Work::Refuse(refused.why),
        };
        Query {
            call,
            started: self.event(now, started),
            work,
        }
    }

    /// Takes a call of `rlm_query`. A run one level deeper answers it. If there is no deeper level, the sub-model does.
    ///
    /// For the sub-model, `context` returns the context as text. It returns `None` if the text is longer than the given number of bytes,
    /// and an error if the context is no text.
    pub fn rlm_query(
        &mut self,
        now: f64,
        task: Result<String, Refused>,
        budget: Budget,
        context: impl FnOnce(usize) -> Result<Option<String>, String>,
    ) -> Query {
        let call = self.begin(now, false);
        let (most, max_depth) = (self.tree.rules.max_prompt_tokens, self.tree.rules.max_depth);
        let recurses = self.depth < max_depth && task.is_ok();
        let child = recurses.then(|| format!("{}.{}", self.id, self.children));
        let started = RlmEventKind::call_started(call, "rlm_query", shown(&task), None, child.clone());
        let work = match (task, child) {
            (Ok(task), Some(id)) => {
                self.children += 1;
                Work::Recurse(Box::new(self.tree.run(id, self.depth + 1, task, budget, now)))
            }
            (Ok(task), None) => match context(4 * most as usize) {
                Ok(context) => match context.and_then(|context| query::with_context(&task, &context, most)) {
                    Some(prompt) => self.ask(call, prompt, None),
                    None => Work::Refuse(query::no_deeper(max_depth, most)),
                },
                Err(why) => Work::Refuse(why),
            },
            (Err(refused), _) => Work::Refuse(refused.why),
        };
        Query {
            call,
            started: self.event(now, started),
            work,
        }
    }

    fn begin(&mut self, began_at: f64, ahead: bool) -> u32 {
        self.calls += 1;
        let open = Open {
            began_at,
            came_at: None,
            came: None,
            asked: Vec::new(),
            ahead,
        };
        self.open.insert(self.calls, open);
        self.calls
    }

    /// Notes that the code which came has made a query that was begun ahead.
    pub fn claimed(&mut self, call: u32) {
        if let Some(open) = self.open.get_mut(&call) {
            open.ahead = false;
        }
    }

    /// Notes what came of a query, if no code has made it yet.
    pub fn came(&mut self, now: f64, call: u32, came: &Came) {
        if let Some(open) = self.open.get_mut(&call) {
            open.came_at = Some(now);
            open.came = Some(came.in_vain(self.tree.rules.sub_price));
        }
    }

    fn ask(&mut self, call: u32, prompt: String, model: Option<String>) -> Work {
        let messages = vec![Message::new(Role::User, prompt)];
        if let Some(open) = self.open.get_mut(&call) {
            open.asked.clone_from(&messages);
        }
        Work::Ask(messages, model)
    }

    /// Takes the outcome of a query's work. Returns the answer for Python, and the run's next effects.
    pub fn answered(&mut self, now: f64, call: u32, came: Came) -> (Result<Answer, String>, Next) {
        let (answer, ended) = self.end(now, call, came);
        let Some(ended) = ended else {
            return (answer, Next::default());
        };
        let mut next = self.go_on(now);
        next.events.insert(0, ended);
        (answer, next)
    }

    /// Ends a query. Returns the answer for Python, and the event, if the query was open.
    fn end(&mut self, now: f64, call: u32, came: Came) -> (Result<Answer, String>, Option<RlmEvent>) {
        let Some(open) = self.open.remove(&call) else {
            return (Err("the run is over".to_owned()), None);
        };
        let asked = open.asked;
        let mut wasted = None;
        let answered = match came {
            Came::Reply(reply) => {
                let usage = reply.used(&asked);
                Ok((reply.text, Some(Usage { calls: 0.0, ..usage })))
            }
            Came::Finish(Finish {
                answer: Some(answer), ..
            }) => Ok((text(&answer), None)),
            Came::Finish(Finish { outcome, error, .. }) => Err(query::child_failed(outcome, error)),
            Came::Failed(why) => Err(why),
            Came::Stopped => Err("nobody waits for the answer any more".to_owned()),
            Came::Wasted(reply) => {
                // A call that Python makes is charged by its sandbox, with the answer.
                let usage = Usage {
                    calls: 0.0,
                    ..reply.used(&asked)
                };
                self.budget.charge(&usage);
                wasted = Some(usage);
                Err("the code that came did not make this call".to_owned())
            }
        };
        let ended = RlmEventKind::CallEnded {
            call,
            answer: answered.as_ref().ok().map(|(text, _)| text.clone()),
            error: answered.as_ref().err().cloned(),
            usage: wasted.or_else(|| answered.as_ref().ok().and_then(|(_, usage)| *usage)),
            duration: open.came_at.unwrap_or(now) - open.began_at,
            wasted: wasted.is_some(),
        };
        let ended = self.event(now, ended);
        let answer = answered.map(|(text, usage)| Answer {
            text,
            usage: usage.unwrap_or_default(),
        });
        (answer, Some(ended))
    }
}

fn shown(prompt: &Result<String, Refused>) -> &str {
    match prompt {
        Ok(prompt) => prompt,
        Err(refused) => &refused.start,
    }
}
