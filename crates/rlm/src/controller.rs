//! One run as a state machine: [`Input`]s in, [`Effect`]s out.
//!
//! A run takes turns. In each turn it asks the model, runs the reply's blocks of code one after another, and sends their outcomes in the
//! next message. Several events end a run: code declares a valid final answer, a reply declares `FINAL(…)` in its prose, the turns or the
//! budget are used up, or the driver stops the run.
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

/// The task of a run, with its settings.
#[derive(Debug, Clone)]
pub struct Task {
    /// The question.
    pub task: String,
    /// The schema of the answer. Without it, the answer is a text.
    pub schema: Option<Schema>,
    /// The most replies of the model.
    pub max_iterations: u32,
    /// The most tokens of the messages.
    pub max_prompt_tokens: usize,
    /// Characters of each output that the model sees.
    pub output_chars: usize,
    /// The run's depth; 0 is the first run.
    pub depth: u32,
    /// The greatest depth of runs.
    pub max_depth: u32,
    /// The user's functions that Python may call.
    pub functions: Vec<String>,
    /// Packages that Python can import, besides its standard library.
    pub packages: Vec<String>,
    /// Models that Python may name. Empty if Python has no choice.
    pub models: Vec<String>,
    /// Instructions of the user that are added to the rules.
    pub instructions: Option<String>,
}

/// An input of a run: an event to which it reacts.
#[derive(Debug, Clone)]
pub enum Input {
    /// The sandbox has its context. The facts are those that [`prompt::describe_code`] declared.
    Ready(Vec<ContextFacts>),
    /// The model replied or failed. The number is the call's duration in milliseconds.
    Replied(Result<Reply, String>, f64),
    /// A block has ended, with its declared final value, or the reason for which that is no valid value.
    Executed(Box<CodeExecution>, Option<Result<Value, String>>),
    /// The driver ends the run, for this reason.
    Stop(RunOutcome, String),
}

/// A step for the driver. Steps must be done in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Asks the model. [`Input::Replied`] must follow.
    Ask(Vec<Message>),
    /// Runs code. [`Input::Executed`] must follow.
    Execute(String),
    /// Tells listeners of an event.
    Emit(RlmEventKind),
    /// Ends the run.
    Finish(Finish),
}

/// The outcome of a run, with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The outcome.
    pub outcome: RunOutcome,
    /// The answer.
    pub answer: Option<Value>,
    /// The reason for which there is no answer, or the answer's problem.
    pub error: Option<String>,
    /// The number of turns for which the model was asked. The question for the answer only, after the last turn, counts too.
    pub iterations: u32,
}

#[derive(Debug)]
enum Step {
    /// The sandbox is starting.
    Starting,
    /// The model was asked, and has not replied yet.
    Asking,
    /// Blocks of the reply are running.
    Running(Running),
    Done,
}

#[derive(Debug)]
struct Running {
    /// Blocks that have not begun.
    waiting: VecDeque<Block>,
    reply: String,
    blocks: usize,
    /// The number of the running block, from 1.
    block: usize,
    /// The reports of the blocks so far, for the model.
    feedback: Vec<String>,
    /// The reply's prose.
    prose: Vec<String>,
    /// The reason for which blocks after those in `waiting` do not run.
    beyond: Option<String>,
    /// The name in a `FINAL(name)` in the prose whose variable is being read.
    looked_up: Option<String>,
    /// The answer in the prose of the last words. It counts if their code declares none.
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

    /// Runs the code for a declaration in the prose.
    fn declare(&mut self, code: String, looked_up: Option<String>) {
        self.looked_up = looked_up;
        self.prose.clear();
        self.blocks += 1;
        self.waiting.push_back(Block { code, closed: true });
    }
}

/// The answer that a reply declares outside of its code.
enum Declared {
    /// Code that declares a variable. The name is that of a `FINAL(name)`.
    Code(String, Option<String>),
    /// The answer itself.
    Text(String),
}

/// The controller of a run. The [module](self) describes it.
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
    /// A run that begins at `now` and spends `budget`.
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

    /// Returns true if the run is over.
    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// The number of the present turn.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Takes one input. `now` is in milliseconds, and never goes back.
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
        let opening = prompt::task(&self.task.task, &contexts, self.task.schema.as_ref());
        self.emit(RlmEventKind::RunStarted {
            version: TRAJECTORY_VERSION,
            task: self.task.task.clone(),
            contexts,
            max_iterations: self.task.max_iterations,
            max_depth: self.task.max_depth,
            answer_schema: self.task.schema.as_ref().map(|schema| schema.value().clone()),
        });
        let line = self.turn_line(now, 1);
        let history = MessageHistory::new(rules, opening, line, self.task.max_prompt_tokens);
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

    /// Asks the model for the next turn, if the budget allows it.
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

    /// Returns true if the turns are used up. Then the model was asked for its answer only.
    fn is_over_time(&self) -> bool {
        self.turn > self.task.max_iterations
    }

    /// Runs the code of a reply, or takes its prose.
    fn run(&mut self, now: f64, reply: Reply, parsed: Parsed) {
        let Parsed {
            mut blocks,
            others,
            mut prose,
            thinks_code,
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
        if beyond.is_some() {
            prose.clear();
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
                    let told = running
                        .beyond
                        .take()
                        .unwrap_or_else(|| prompt::no_code(others.len(), thinks_code));
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
                // If all blocks of a reply went well, its prose may declare a variable that they have set.
                Some(Declared::Code(code, name)) => {
                    running.declare(code, name);
                    self.next_block(now, running);
                }
                // A text was written before the blocks ran, so it may rest on output that the model made up.
                Some(Declared::Text(_)) => self.declared(now, running, Err(prompt::text_beside_code().to_owned())),
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
        let told = prompt::block_outcome(execution, running.block, running.blocks);
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

    /// Takes an answer that the code or the prose has declared.
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
        let line = if self.turn >= self.task.max_iterations {
            prompt::last_words(self.task.schema.as_ref())
        } else {
            self.turn_line(now, self.turn + 1)
        };
        if let Some(history) = &mut self.history {
            history.add(running.reply, running.blocks, running.feedback.join("\n\n"), line);
        }
        self.ask(now);
    }

    /// Takes the reply to the question for the answer only, after the last turn.
    ///
    /// Its code does not run. But it may declare a variable's value, which the sandbox still has. Such a declaration is in the prose, or is
    /// code in a fence.
    fn last_words(&mut self, now: f64, reply: String, parsed: &Parsed) {
        let said = match self.task.schema {
            Some(_) => reply.clone(),
            None => parsed.prose.concat().trim().to_owned(),
        };
        let (code, otherwise) = match in_prose(&parsed.prose) {
            Some(Declared::Text(text)) => return self.exhausted(now, self.last_value(&text)),
            // `FINAL(Paris)` means the text if no variable has that name.
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

    /// The answer that a text holds.
    fn last_value(&self, said: &str) -> Result<Value, String> {
        match &self.task.schema {
            Some(_) => json_in(said).ok_or_else(|| "the model's last reply is no JSON".to_owned()),
            None if said.is_empty() => Err("the model's last reply has no text".to_owned()),
            None => Ok(said.into()),
        }
    }

    /// Ends the run after its last turn. `value` is the answer in the last words.
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

/// The answer that a reply declares in its prose. `FINAL(name)` is read as `FINAL_VAR(name)`. Models also write it in plans, before the
/// variable exists.
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

/// The declaration in a block, as code without the rest of the block.
fn in_code(block: &str) -> Option<String> {
    match final_directive(block)? {
        Directive::Variable(name) => Some(variable_code(name)),
        Directive::Value(value) => Some(format!("FINAL({value})")),
    }
}

/// Code that declares a variable. The variable `answer` always exists, but is no answer before it has a value.
fn variable_code(name: &str) -> String {
    let code = format!("FINAL_VAR({})", python_text(name));
    match name {
        "answer" => format!(
            "{code} if not isinstance(answer.get(\"content\"), str) or answer[\"content\"] else 'answer[\"content\"] is empty'"
        ),
        _ => code,
    }
}

/// Returns true if a text may be a variable's name in Python.
fn is_name(text: &str) -> bool {
    let starts = |char: char| char.is_alphabetic() || char == '_';
    text.starts_with(starts)
        && text.chars().all(|char| char.is_alphanumeric() || char == '_')
        && !matches!(text, "True" | "False" | "None")
}

/// A text as a Python literal, in ASCII.
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
