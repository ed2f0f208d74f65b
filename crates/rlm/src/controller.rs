//! One run as a state machine: [`Input`]s in, [`Effect`]s out.
//!
//! A run takes turns. In each, the model is asked, the blocks of its reply are run one after the other, and what came of them is
//! the next message. It ends when code declares a final answer that is what was asked for, when a reply says `FINAL(…)` in its
//! prose, when the turns or the budget are used up, or when the driver stops it.
//!
//! Decisions: `docs/internals/controller.md`.

use std::collections::VecDeque;

use serde_json::Value;

use super::Message;
use super::answer::{check, json_in};
use super::event::{RlmEventKind, RunOutcome, TRAJECTORY_VERSION};
use super::limits::MAX_BLOCKS;
use super::message_history::MessageHistory;
use super::openai::Reply;
use super::parse::{Block, Parsed, parse};
use super::prompt::{self, ContextFacts, Setting};
use super::schema::Schema;
use crate::directives::{Directive, final_directive};
use sandglass_core::budget::{Budget, Usage};
use sandglass_core::execution::{CodeExecution, Outcome};

/// A run's task.
#[derive(Debug, Clone)]
pub struct Task {
    /// The question.
    pub task: String,
    /// The answer's type; without it, a text.
    pub schema: Option<Schema>,
    /// Replies of the model that it may take.
    pub max_iterations: u32,
    /// Tokens that the messages may take.
    pub max_prompt_tokens: usize,
    /// Characters that are shown of each output.
    pub output_chars: usize,
    /// Its depth; 0 is the first run.
    pub depth: u32,
    /// The greatest depth of runs.
    pub max_depth: u32,
    /// The user's functions that Python may call.
    pub functions: Vec<String>,
    /// Packages that Python can import beside its standard library.
    pub packages: Vec<String>,
    /// Models that Python may name; none when it has no choice.
    pub models: Vec<String>,
    /// The user's addition to the rules.
    pub instructions: Option<String>,
}

/// An input of a run: something has happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// The sandbox has its context, and this is what [`prompt::describe_code`] said of it.
    Ready(Vec<ContextFacts>),
    /// The model replied, or will not; milliseconds that it took.
    Replied(Result<Reply, String>, f64),
    /// A block has ended. With the value that it declared final, or why that is none.
    Executed(Box<CodeExecution>, Option<Result<Value, String>>),
    /// The driver ends the run.
    Stop(RunOutcome, String),
}

/// A step for the driver, to be done in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the model; the answer is [`Input::Replied`].
    Ask(Vec<Message>),
    /// Run code; the answer is [`Input::Executed`].
    Execute(String),
    /// Tell whoever listens.
    Emit(RlmEventKind),
    /// The run is over.
    Finish(Finish),
}

/// A run's outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The outcome.
    pub outcome: RunOutcome,
    /// The answer.
    pub answer: Option<Value>,
    /// Why there is none, or what is wrong.
    pub error: Option<String>,
    /// Turns that the model was asked for, the one after the last turn included.
    pub iterations: u32,
}

#[derive(Debug)]
enum Step {
    /// The sandbox is being made.
    Starting,
    /// The model is asked.
    Asking,
    /// Blocks of its reply are being run.
    Running(Running),
    Done,
}

#[derive(Debug)]
struct Running {
    /// Blocks that are still to be run.
    waiting: VecDeque<Block>,
    reply: String,
    blocks: usize,
    /// The one that runs, from 1.
    block: usize,
    /// The report of the blocks so far.
    feedback: Vec<String>,
    /// The reply's prose.
    prose: Vec<String>,
    /// Why blocks beyond those in `waiting` are not run.
    beyond: Option<String>,
    /// The name in a `FINAL(name)` of the prose that is being looked up.
    looked_up: Option<String>,
    /// The answer declared in the prose of the last words, when their code declares none.
    otherwise: Option<String>,
}

impl Running {
    fn new(reply: String, blocks: Vec<Block>, prose: Vec<String>) -> Self {
        Self {
            blocks: blocks.len(),
            waiting: blocks.into(),
            reply,
            block: 0,
            feedback: Vec::new(),
            prose,
            beyond: None,
            looked_up: None,
            otherwise: None,
        }
    }

    /// Lets a declaration of the prose be run.
    fn declare(&mut self, code: String, looked_up: Option<String>) {
        self.looked_up = looked_up;
        self.prose.clear();
        self.blocks += 1;
        self.waiting.push_back(Block { code, closed: true });
    }
}

/// The answer that a reply declares outside of its code.
enum Declared {
    /// A variable, by this code; with the name of a `FINAL(name)`.
    Code(String, Option<String>),
    /// The answer itself.
    Text(String),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Controller {
    task: Task,
    budget: Budget,
    history: Option<MessageHistory>,
    step: Step,
    turn: u32,
    began_at: f64,
    asked: Vec<Message>,
    effects: Vec<Effect>,
}

impl Controller {
    /// A run that begins at `now` and spends of `budget`.
    pub fn new(task: Task, budget: Budget, now: f64) -> Self {
        Self {
            task,
            budget,
            history: None,
            step: Step::Starting,
            turn: 0,
            began_at: now,
            asked: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Returns true when it is over.
    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// The turn that it is in.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Takes one input at time `now` (milliseconds, never going back).
    pub fn handle(&mut self, now: f64, input: Input) -> Vec<Effect> {
        match (input, std::mem::replace(&mut self.step, Step::Done)) {
            (_, Step::Done) => {}
            (Input::Stop(outcome, error), _) => self.finish(now, outcome, None, Some(error)),
            (Input::Ready(facts), Step::Starting) => self.begin(now, facts),
            (Input::Replied(Ok(reply), ms), Step::Asking) => self.replied(now, reply, ms),
            (Input::Replied(Err(error), _), Step::Asking) => self.finish(now, RunOutcome::Failed, None, Some(error)),
            (Input::Executed(execution, value), Step::Running(running)) => {
                self.executed(now, running, &execution, value)
            }
            (_, step) => self.step = step,
        }
        std::mem::take(&mut self.effects)
    }

    fn begin(&mut self, now: f64, contexts: Vec<ContextFacts>) {
        let rules = prompt::rules(&Setting {
            contexts: contexts.len(),
            recurses: self.task.depth < self.task.max_depth,
            prompt_chars: 4 * self.task.max_prompt_tokens,
            output_chars: self.task.output_chars,
            functions: &self.task.functions,
            packages: &self.task.packages,
            models: &self.task.models,
            instructions: self.task.instructions.as_deref(),
        });
        let mut opening = prompt::task(&self.task.task, &contexts, self.task.schema.as_ref());
        self.emit(RlmEventKind::RunStarted {
            version: TRAJECTORY_VERSION,
            task: self.task.task.clone(),
            contexts,
            max_iterations: self.task.max_iterations,
            max_depth: self.task.max_depth,
            answer_schema: self.task.schema.as_ref().map(|schema| schema.value().clone()),
        });
        opening.push('\n');
        opening.push_str(&self.turn_line(now, 1));
        let history = MessageHistory::new(rules, opening, self.task.max_prompt_tokens);
        let (fixed, most) = (history.fixed_tokens(), self.task.max_prompt_tokens);
        if fixed > most / 2 {
            let error = format!(
                "the task takes about {fixed} tokens with the rules, more than half of maxPromptTokens ({most}): put what is long \
                 into the context"
            );
            return self.finish(now, RunOutcome::Failed, None, Some(error));
        }
        self.history = Some(history);
        self.ask(now);
    }

    fn turn_line(&self, now: f64, turn: u32) -> String {
        prompt::turn_line(turn, self.task.max_iterations, &self.budget.left(now))
    }

    /// Asks the model for the next turn, when there is something left for it.
    fn ask(&mut self, now: f64) {
        if let Err(exhausted) = self.budget.admit(now) {
            return self.finish(now, RunOutcome::Limit, None, Some(exhausted.to_string()));
        }
        self.turn += 1;
        let Some(history) = &mut self.history else { return };
        if let Some(compaction) = history.compact() {
            self.effects.push(Effect::Emit(RlmEventKind::HistoryCompacted {
                before: compaction.before,
                after: compaction.after,
                turns: compaction.turns,
            }));
        }
        let (messages, prompt_tokens) = (history.messages(), history.tokens());
        self.emit(RlmEventKind::TurnStarted {
            turn: self.turn,
            of: self.task.max_iterations,
            messages: messages.len(),
            prompt_tokens,
            left: self.budget.left(now),
        });
        self.asked.clone_from(&messages);
        self.step = Step::Asking;
        self.effects.push(Effect::Ask(messages));
    }

    fn replied(&mut self, now: f64, reply: Reply, ms: f64) {
        let estimated = reply.usage.is_none();
        let usage = Usage {
            calls: 0.0,
            ..reply.used(&self.asked)
        };
        self.asked.clear();
        self.budget.charge(&usage);
        self.emit(RlmEventKind::ModelReplied {
            turn: self.turn,
            text: reply.text.clone(),
            usage,
            estimated,
            cut: reply.cut,
            duration: ms,
        });
        self.emit(RlmEventKind::Budget {
            spent: self.budget.spent(),
            left: self.budget.left(now),
        });
        let parsed = parse(&reply.text);
        if self.is_over_time() {
            return self.last_words(now, reply.text, &parsed);
        }
        self.run(now, reply, parsed);
    }

    /// Returns true when the turns are used up, and the model was asked for its answer only.
    fn is_over_time(&self) -> bool {
        self.turn > self.task.max_iterations
    }

    /// Runs the code of a reply, or takes its prose.
    fn run(&mut self, now: f64, reply: Reply, parsed: Parsed) {
        let Parsed {
            mut blocks,
            others,
            prose,
        } = parsed;
        let all = blocks.len();
        let mut beyond = None;
        if reply.cut && blocks.last().is_some_and(|last| !last.closed) {
            blocks.pop();
            beyond = Some(prompt::cut_block().to_owned());
        } else if all > MAX_BLOCKS {
            blocks.truncate(MAX_BLOCKS);
            let why = format!("of one reply at most {MAX_BLOCKS} are");
            beyond = Some(prompt::skipped(MAX_BLOCKS + 1, all, &why));
        }
        let mut running = Running {
            beyond,
            ..Running::new(reply.text, blocks, prose)
        };
        if running.waiting.is_empty() {
            match in_prose(&running.prose) {
                Some(Declared::Code(code, name)) => running.declare(code, name),
                Some(Declared::Text(text)) => return self.declared(now, running, Ok(Value::String(text))),
                None => {
                    let told = running.beyond.take().unwrap_or_else(|| prompt::no_code(others.len()));
                    running.feedback.push(told);
                    return self.next_turn(now, running);
                }
            }
        }
        self.next_block(now, running);
    }

    fn next_block(&mut self, now: f64, mut running: Running) {
        let Some(Block { code, .. }) = running.waiting.pop_front() else {
            running.feedback.extend(running.beyond.take());
            return match in_prose(&running.prose) {
                // The prose of a reply whose blocks went well may declare what they have computed.
                Some(Declared::Code(code, name)) => {
                    running.declare(code, name);
                    self.next_block(now, running);
                }
                Some(Declared::Text(text)) => self.declared(now, running, Ok(Value::String(text))),
                None => self.next_turn(now, running),
            };
        };
        running.block += 1;
        self.emit(RlmEventKind::CodeStarted {
            turn: self.turn,
            block: running.block,
            blocks: running.blocks,
            code: code.clone(),
        });
        self.step = Step::Running(running);
        self.effects.push(Effect::Execute(code));
    }

    fn executed(
        &mut self,
        now: f64,
        mut running: Running,
        execution: &CodeExecution,
        value: Option<Result<Value, String>>,
    ) {
        self.emit(RlmEventKind::ExecutionEnded {
            turn: self.turn,
            block: running.block,
            execution: serde_json::to_value(execution).unwrap_or_default(),
            declared: value.is_some(),
        });
        if self.is_over_time() {
            let said = || match running.otherwise {
                Some(said) => self.last_value(&said),
                None => Err(prompt::declares_nothing(execution)),
            };
            let value = value.unwrap_or_else(said);
            return self.exhausted(now, value);
        }
        let told = prompt::feedback(execution, running.block, running.blocks);
        running.feedback.push(told);
        if let Some(value) = value {
            return self.declared(now, running, value);
        }
        let no_variable = running.looked_up.take().map(|name| prompt::no_variable(&name));
        running.feedback.extend(no_variable);
        if execution.outcome != Outcome::Ok {
            running.prose.clear();
            running.beyond = None;
            if !running.waiting.is_empty() {
                let why = "because the one before did not end well";
                running
                    .feedback
                    .push(prompt::skipped(running.block + 1, running.blocks, why));
                running.waiting.clear();
            }
        }
        self.next_block(now, running);
    }

    /// The code, or the prose, has declared an answer.
    fn declared(&mut self, now: f64, mut running: Running, value: Result<Value, String>) {
        match value.and_then(|value| check(value, self.task.schema.as_ref())) {
            Ok(answer) => self.finish(now, RunOutcome::Answered, Some(answer), None),
            Err(problems) => {
                self.emit(RlmEventKind::AnswerRejected {
                    problems: problems.clone(),
                });
                running.feedback.push(prompt::rejected(&problems));
                self.next_turn(now, running);
            }
        }
    }

    fn next_turn(&mut self, now: f64, running: Running) {
        let mut feedback = running.feedback.join("\n\n");
        feedback.push_str("\n\n");
        if self.turn >= self.task.max_iterations {
            feedback.push_str(&prompt::last_words(self.task.schema.as_ref()));
        } else {
            feedback.push_str(&self.turn_line(now, self.turn + 1));
        }
        if let Some(history) = &mut self.history {
            history.add(running.reply, running.blocks, feedback);
        }
        self.ask(now);
    }

    /// The turns are used up, and this is what the model says when it is asked once more.
    ///
    /// Its code is not run. But what it declares may be a variable's value, which the sandbox still has: in its prose, or in a
    /// fence, where a declaration is code.
    fn last_words(&mut self, now: f64, reply: String, parsed: &Parsed) {
        let said = match self.task.schema {
            Some(_) => reply.clone(),
            None => parsed.prose.concat().trim().to_owned(),
        };
        let (code, otherwise) = match in_prose(&parsed.prose) {
            Some(Declared::Text(text)) => return self.exhausted(now, self.last_value(&text)),
            // `FINAL(Paris)` is a text where there is no such variable.
            Some(Declared::Code(code, name)) => (code, name),
            None => {
                let mut fenced = parsed.others.iter().chain(parsed.blocks.iter().rev());
                match fenced.find_map(|block| in_code(&block.code)) {
                    Some(code) => (code, (!said.is_empty()).then_some(said)),
                    None => return self.exhausted(now, self.last_value(&said)),
                }
            }
        };
        let mut running = Running {
            otherwise,
            ..Running::new(reply, Vec::new(), Vec::new())
        };
        running.declare(code, None);
        self.next_block(now, running);
    }

    /// The answer that a text is.
    fn last_value(&self, said: &str) -> Result<Value, String> {
        match &self.task.schema {
            Some(_) => json_in(said).ok_or_else(|| "the model's last reply is no JSON".to_owned()),
            None if said.is_empty() => Err("the model's last reply has no text".to_owned()),
            None => Ok(said.into()),
        }
    }

    /// The run ends after its last turn, with the last words as its answer.
    fn exhausted(&mut self, now: f64, value: Result<Value, String>) {
        let most = self.task.max_iterations;
        let exhausted = format!("no answer was declared within {most} turns (maxIterations)");
        match value.and_then(|value| check(value, self.task.schema.as_ref())) {
            Ok(answer) => self.finish(now, RunOutcome::Exhausted, Some(answer), Some(exhausted)),
            Err(problem) => {
                let error = format!("{exhausted}, and {problem}");
                self.finish(now, RunOutcome::Exhausted, None, Some(error));
            }
        }
    }

    fn finish(&mut self, now: f64, outcome: RunOutcome, answer: Option<Value>, error: Option<String>) {
        self.step = Step::Done;
        self.history = None;
        let iterations = self.turn;
        self.emit(RlmEventKind::RunEnded {
            outcome,
            answer: answer.clone(),
            error: error.clone(),
            iterations,
            usage: self.budget.spent(),
            duration: now - self.began_at,
        });
        self.effects.push(Effect::Finish(Finish {
            outcome,
            answer,
            error,
            iterations,
        }));
    }

    fn emit(&mut self, kind: RlmEventKind) {
        self.effects.push(Effect::Emit(kind));
    }
}

/// The answer that a reply declares in a stretch of its prose. A `FINAL(name)` is taken for a `FINAL_VAR(name)`: models write it
/// in plans, too, before there is such a variable.
fn in_prose(prose: &[String]) -> Option<Declared> {
    let declared = || prose.iter().filter_map(|stretch| final_directive(stretch));
    let variable = declared().find(|declared| matches!(declared, Directive::Variable(_)));
    match variable.or_else(|| declared().next())? {
        Directive::Variable(name) => Some(Declared::Code(variable_code(name), None)),
        Directive::Value("") => None,
        Directive::Value(name) if is_name(name) => Some(Declared::Code(variable_code(name), Some(name.to_owned()))),
        Directive::Value(text) => Some(Declared::Text(text.to_owned())),
    }
}

/// The declaration of a block, as code without the rest of the block.
fn in_code(block: &str) -> Option<String> {
    match final_directive(block)? {
        Directive::Variable(name) => Some(variable_code(name)),
        Directive::Value(value) => Some(format!("FINAL({value})")),
    }
}

/// Code that declares a variable. The variable `answer` is always there, and no answer before something is in it.
fn variable_code(name: &str) -> String {
    let code = format!("FINAL_VAR({})", python_text(name));
    match name {
        "answer" => format!(
            "{code} if not isinstance(answer.get(\"content\"), str) or answer[\"content\"] else 'answer[\"content\"] is empty'"
        ),
        _ => code,
    }
}

/// Returns true when a text may be the name of a variable in Python.
fn is_name(text: &str) -> bool {
    let starts = |char: char| char.is_alphabetic() || char == '_';
    text.starts_with(starts)
        && text.chars().all(|char| char.is_alphanumeric() || char == '_')
        && !matches!(text, "True" | "False" | "None")
}

/// A text as Python writes it, in ASCII.
fn python_text(text: &str) -> String {
    let mut literal = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => literal.extend(['\\', char]),
            ' '..='~' => literal.push(char),
            _ => literal.push_str(&format!("\\U{:08x}", u32::from(char))),
        }
    }
    literal.push('"');
    literal
}
