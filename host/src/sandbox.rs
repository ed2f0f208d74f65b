//! The public handle of a sandbox.

mod builder;
mod captured;
mod changes;
mod copying;
mod files;
mod going_back;
mod resuming;
mod stored;
mod suspended;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::{Stream as Pieces, StreamExt};
use opentelemetry::Context;
use sandglass_core::budget::{Budget, BudgetLeft, Usage};
use sandglass_core::execution::CodeExecution;
use sandglass_core::predictions::{Lines, Prediction, Source};
use sandglass_core::protocol::{GuestInfo, QUERIES};
use sandglass_core::session::{
    CellFile, Command, Encoded, Execute, FileCommand, Input, Look, Reply, Series, Settings, Target, VariableCommand,
};
use sandglass_core::stats::Stats;
use sandglass_core::{BudgetLimits, Error, Limits};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use crate::callbacks::{
    Answer, Approval, AwaitsApproval, HostCall, HostFunctions, Line, OnDisplay, OnOutput, Query,
};
pub use crate::value::Variable;
pub use builder::SandboxBuilder;
pub use captured::Captured;
pub use copying::SandboxCopy;
pub use files::Files;
pub use suspended::{Past, Spent, Suspended, number_of_copies};

use builder::check_names;
pub(crate) use changes::Changes;

use crate::driver::{Driver, Watch, now};
use crate::launcher::BackendKind;
use crate::value::{Payload, Value};

/// A sandbox: Python in a guest, with its variables. Clones are the same sandbox. Dropping the last clone ends the guest with
/// all its processes.
#[derive(Clone)]
pub struct Sandbox {
    driver: Arc<Driver>,
    backend: BackendKind,
    checkpoints: u32,
    /// True if the host can make exact copies of such guests.
    copies_exactly: bool,
    limits: Limits,
    /// True if executions tell the values of their last expressions.
    values: bool,
    /// The names of the queries that the host answers.
    queries: Vec<String>,
    budget: Budget,
    /// Counts the calls of this handle, if anybody wants to know of them.
    changes: Option<Changes>,
}

/// The place of the value of a last expression.
type ValuePlace = Arc<OnceLock<Value>>;

/// The options of one execution.
#[derive(Clone, Default)]
pub struct ExecuteOptions {
    /// The timeout in milliseconds of guest time, instead of the sandbox's `timeout`.
    pub timeout_ms: Option<f64>,
    /// The execution's share of the sandbox's budget.
    pub budget: BudgetLimits,
    /// Receives printed text as it comes.
    pub on_output: Option<OnOutput>,
    /// Receives rich outputs as they come.
    pub on_display: Option<OnDisplay>,
    /// The caller's name for the execution. [`HostCall::request`] tells it.
    pub request: Option<String>,
    /// Interrupts the code when it is cancelled. Code that has not begun is not run. The result says so.
    pub cancel: Option<CancellationToken>,
}

impl fmt::Debug for ExecuteOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExecuteOptions")
            .field("timeout_ms", &self.timeout_ms)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// The result of an execution: a [`CodeExecution`], and the final answer if the code declared one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    /// The outcome.
    #[serde(flatten)]
    pub run: CodeExecution,
    /// The final answer.
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub final_answer: Option<Final>,
    /// The value of the last expression, unless that is `None`. Only with [`SandboxBuilder::values`], and only if it is not too
    /// large. Not part of the JSON.
    #[serde(skip)]
    pub value: Option<Value>,
    /// The reason for which a [kept](crate::kept) sandbox's store does not have exactly the state after the execution. `None` if it does, and
    /// for other sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
}

impl Deref for Execution {
    type Target = CodeExecution;

    fn deref(&self) -> &CodeExecution {
        &self.run
    }
}

/// A final answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Final {
    /// The declared value. [`Value::to_json`] gives its JSON.
    #[serde(serialize_with = "as_json")]
    pub value: Value,
}

fn as_json<S: serde::Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_json().serialize(serializer)
}

/// A file or folder of the guest's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file's path, relative to the working folder.
    pub path: String,
    /// The file's size in bytes.
    pub size: i64,
    /// The time of the last write, in milliseconds since 1970.
    pub modified: f64,
    /// `file` or `directory`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A sandbox's facts and abilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The backend of the guest.
    pub backend: BackendKind,
    /// True when running code can be interrupted with its state kept.
    pub soft_interrupt: bool,
    /// The version of the guest's Python. `None` before a guest has started.
    pub python: Option<String>,
    /// The number of states that are kept to go back to. With 0, [`Sandbox::undo`] and the like are refused.
    #[serde(default)]
    pub checkpoints: u32,
}

impl Capabilities {
    pub(crate) fn new(backend: BackendKind, info: GuestInfo, checkpoints: u32) -> Self {
        let has_started = !info.python.is_empty();
        Self {
            backend,
            soft_interrupt: info.soft_interrupt || !has_started, // all guests of hosts can be
            python: has_started.then_some(info.python),
            checkpoints,
        }
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sandbox")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// A builder with the default options.
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::default()
    }

    /// Starts the guest now; otherwise the first call does.
    ///
    /// # Errors
    /// [`Error::BootFailed`], or [`Error::Destroyed`].
    pub async fn start(&self) -> Result<(), Error> {
        self.ask(Command::Start).await.map(drop)
    }

    /// Sets the variable `context`, in this guest and in every later one.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn initialize(&self, context: impl Into<Value>) -> Result<(), Error> {
        self.assign(Target::Context, context.into(), "the context")
            .await
            .map(drop)
    }

    /// Runs code.
    ///
    /// # Errors
    /// Only when the sandbox itself cannot run code. How the code ended is in the [`Execution`].
    pub async fn execute(&self, code: impl Into<String>) -> Result<Execution, Error> {
        self.execute_with(code, ExecuteOptions::default()).await
    }

    /// Runs code with options. Dropping the future interrupts the code.
    ///
    /// # Errors
    /// As [`Sandbox::execute`].
    pub async fn execute_with(&self, code: impl Into<String>, options: ExecuteOptions) -> Result<Execution, Error> {
        if let Some(ms) = options.timeout_ms {
            Limits::default().set("timeout", ms)?;
        }
        let command = Command::Execute(Execute {
            code: code.into(),
            timeout_ms: options.timeout_ms,
            budget: options.budget,
        });
        let ((watch, value), _counted) = (self.watch(options), self.counted());
        match self.driver.submit(command, watch)?.answer().await? {
            Reply::Execution(run, last) => Ok(finished(*run, last.as_ref(), value)),
            _ => Err(no_execution()),
        }
    }

    /// The receivers of an execution's events, and the place of its value.
    fn watch(&self, options: ExecuteOptions) -> (Watch, Option<ValuePlace>) {
        let value = self.values.then(Arc::default);
        let watch = Watch {
            on_output: options.on_output,
            on_display: options.on_display,
            value: value.clone(),
            request: options.request,
            copies: None,
            cancel: options.cancel,
            trace: Context::current(),
        };
        (watch, value)
    }

    /// Predicts code that may come next, the likeliest first. Each call replaces the earlier predictions.
    ///
    /// With [`SandboxBuilder::ahead`], each predicted code runs in a copy of the guest, up to
    /// [`Limits::max_shadows`](sandglass_core::Limits::max_shadows). If the next execution has exactly this code and finds the
    /// same state, the copy takes the guest's place. Otherwise the copy leaves no trace: its changes to files and its calls to
    /// the outside wait until then. While code is being written ([`Sandbox::written`]), only a prediction that begins with that
    /// code counts; it runs to its end.
    pub fn hint<S: Into<String>>(&self, codes: impl IntoIterator<Item = S>) {
        self.expect(codes, Source::Explicit);
    }

    /// Predicts code as [`Sandbox::hint`] does, with another source.
    pub(crate) fn expect<S: Into<String>>(&self, codes: impl IntoIterator<Item = S>, source: Source) {
        let prediction = |(id, code): (u32, S)| {
            let probability = 1.0 / f64::from(id + 1);
            Prediction::told(id, code.into(), source, probability)
        };
        let predictions = (0..).zip(codes).map(prediction).collect();
        self.driver.tell(Input::Hint(predictions));
    }

    /// Lets the complete statements of unfinished code run ahead. The code will be executed with this `timeout`, in
    /// milliseconds. Empty code means that nobody writes any more.
    pub fn written(&self, code: &str, timeout_ms: Option<f64>) {
        self.driver.tell(Input::Written(code.to_owned(), timeout_ms));
    }

    /// Runs code that comes piece by piece, as a model writes it. With [`SandboxBuilder::ahead`], complete statements run early
    /// in a copy of the guest. The result is the same as that of the whole code.
    ///
    /// # Errors
    /// As [`Sandbox::execute`]. Also the stream's own error; then nothing was run.
    pub async fn execute_stream<S: AsRef<str>>(
        &self,
        pieces: impl Pieces<Item = Result<S, Error>>,
        options: ExecuteOptions,
    ) -> Result<Execution, Error> {
        let mut pieces = std::pin::pin!(pieces);
        let (mut code, mut lines, mut sent) = (String::new(), Lines::default(), 0);
        let writing = Writing(&self.driver);
        // With a time budget, a shadow may run longer than the execution may, so nothing runs ahead.
        let runs = options.budget.max_time.is_none();
        while let Some(piece) = pieces.next().await {
            code.push_str(piece?.as_ref());
            let complete = lines.complete(&code);
            if runs && complete.len() > sent {
                sent = complete.len();
                self.written(complete, options.timeout_ms);
            }
        }
        let execution = self.execute_with(code, options);
        let result = execution.await;
        drop(writing);
        result
    }

    /// Sets the newest text of the conversation. With [`SandboxBuilder::predictions`], guesses use its words.
    pub fn update_conversation(&self, text: impl Into<String>) {
        self.driver.tell(Input::Conversation(text.into()));
    }

    /// The guesses of the next code, the most worthwhile first. Empty without [`SandboxBuilder::predictions`], and while code
    /// runs. At most one guess runs ahead.
    ///
    /// # Errors
    /// [`Error::Destroyed`].
    pub async fn predictions(&self) -> Result<Vec<Prediction>, Error> {
        self.driver.predictions().await
    }

    /// The sandbox's counts. `ahead.code` tells how many predictions came true.
    ///
    /// # Errors
    /// [`Error::Destroyed`].
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.driver.stats().await
    }

    /// The amounts that are left in the budget of all executions.
    pub fn budget_left(&self) -> BudgetLeft {
        self.budget.left(now())
    }

    /// The budget of all executions.
    pub(crate) fn budget(&self) -> Budget {
        self.budget.clone()
    }

    /// The use of models by all executions so far.
    pub fn spent(&self) -> Usage {
        self.budget.spent()
    }

    /// A variable's value; `None` when there is no such variable.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn get_variable(&self, name: impl Into<String>) -> Result<Option<Value>, Error> {
        Value::decode(&self.value(Command::Variable(VariableCommand::Get(name.into()))).await?)
    }

    /// Assigns a variable.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn set_variable(&self, name: impl Into<String>, value: impl Into<Value>) -> Result<(), Error> {
        let name = name.into();
        let what = format!("the variable {name}");
        self.assign(Target::Variable(name), value.into(), &what).await.map(drop)
    }

    /// The user's variables.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn list_variables(&self) -> Result<Vec<Variable>, Error> {
        self.records(Command::Variable(VariableCommand::List)).await
    }

    /// Adds a context value, which every guest of the sandbox gets. Returns its name, the next of `series`.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn add_context(&self, series: Series, value: impl Into<Value>) -> Result<String, Error> {
        match self.assign(Target::Next(series), value.into(), "the context").await? {
            Reply::Name(name) => Ok(name),
            _ => Err(Error::Protocol("an answer that is no name".to_owned())),
        }
    }

    /// Writes a file with these bytes, and makes the folders above it. Paths are relative to the working folder.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn write_file(&self, path: impl Into<String>, data: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (path, data) = (path.into(), Payload(data.into().into()));
        self.ask(Command::File(FileCommand::Write { path, data }))
            .await
            .map(drop)
    }

    /// A file's contents.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn read_file(&self, path: impl Into<String>) -> Result<Vec<u8>, Error> {
        let path = path.into();
        let command = Command::File(FileCommand::Read { path, text: false });
        Ok(self.value(command).await?.body.0.into())
    }

    /// Everything in a folder and below; `""` is the working folder.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn list_files(&self, path: impl Into<String>) -> Result<Vec<FileEntry>, Error> {
        self.records(Command::File(FileCommand::List(path.into()))).await
    }

    /// Removes a file, or a folder with all its contents.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn remove_file(&self, path: impl Into<String>) -> Result<(), Error> {
        self.ask(Command::File(FileCommand::Remove(path.into())))
            .await
            .map(drop)
    }

    /// A file that describes a cell, made by the guest. Its bytes are untrusted.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub(crate) async fn cell_file(&self, file: CellFile, about: Vec<u8>) -> Result<Bytes, Error> {
        let about = Payload(about.into());
        let command = Command::File(FileCommand::Cell { file, about });
        Ok(self.value(command).await?.body.0)
    }

    /// Asks the guest about code that is being written. `about` is JSON. The answer's bytes are untrusted.
    ///
    /// # Errors
    /// As all calls: see [`Error`].
    pub async fn look(&self, look: Look, about: Vec<u8>) -> Result<Bytes, Error> {
        let about = Payload(about.into());
        let command = Command::File(FileCommand::Look { look, about });
        Ok(self.value(command).await?.body.0)
    }

    /// Replaces the host functions, or the names of the values that `SUBMIT` takes, from the next execution on. `None` leaves them as
    /// they are. The answers of `llm_query` and `rlm_query` stay.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a name that cannot be used. Then Python has the names that it had before, but functions of the same
    /// names are replaced.
    pub async fn configure(
        &self,
        functions: Option<HostFunctions>,
        output_fields: Option<Vec<String>>,
    ) -> Result<(), Error> {
        check_names("outputFields", output_fields.iter().flatten())?;
        let host_functions = match functions {
            Some(HostFunctions(functions)) => {
                check_names("hostFunctions", functions.keys())?;
                if let Some(name) = functions.keys().find(|name| QUERIES.contains(&name.as_str())) {
                    let problem = format!("\"{name}\" has an answer of its own, which stays");
                    return Err(Error::invalid("hostFunctions", problem));
                }
                let mut names: Vec<String> = functions.keys().chain(&self.queries).cloned().collect();
                names.sort_unstable();
                self.driver.add_functions(functions);
                Some(names)
            }
            None => None,
        };
        let settings = Settings {
            host_functions,
            output_fields,
        };
        self.ask(Command::Configure(settings)).await.map(drop)
    }

    /// Interrupts the running code. Its execution then ends.
    pub fn interrupt(&self) {
        self.driver.tell(Input::Interrupt);
    }

    /// Ends the sandbox. Running and later calls fail. Nothing of the guest is left when this returns.
    pub async fn destroy(&self) {
        self.driver.destroy().await;
    }

    /// The sandbox's facts and abilities.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.backend, self.driver.info(), self.checkpoints)
    }

    /// The sandbox's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn ask(&self, command: Command<Payload>) -> Result<Reply<Payload>, Error> {
        let _counted = self.counted();
        self.driver.submit(command, Watch::default())?.answer().await
    }

    /// Assigns a value. `what` names it in errors.
    async fn assign(&self, target: Target, value: Value, what: &str) -> Result<Reply<Payload>, Error> {
        let value = value.encode(what, self.limits.max_value_bytes)?;
        self.ask(Command::Variable(VariableCommand::Set(target, value))).await
    }

    async fn value(&self, command: Command<Payload>) -> Result<Encoded<Payload>, Error> {
        match self.ask(command).await? {
            Reply::Value(value) => Ok(value),
            _ => Err(Error::Protocol("an answer that is no value".to_owned())),
        }
    }

    /// The dicts of a list.
    async fn records<T: for<'a> Deserialize<'a>>(&self, command: Command<Payload>) -> Result<Vec<T>, Error> {
        let value = Value::decode(&self.value(command).await?)?.unwrap_or_default();
        serde_json::from_value(value.readable().to_json())
            .map_err(|error| Error::Protocol(format!("a malformed list of variables: {error}")))
    }
}

/// A guard of code that is being written. Dropping it discards shadows of that code, unless it was executed.
struct Writing<'a>(&'a Driver);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.tell(Input::Written(String::new(), None));
    }
}

/// An execution with its final answer, as far as that can be read.
fn finished(mut run: CodeExecution, last: Option<&Encoded<Payload>>, result: Option<ValuePlace>) -> Execution {
    let value = last.map(Value::decode).transpose().unwrap_or_else(|error| {
        run.outcome = sandglass_core::execution::Outcome::Error;
        run.error_type = Some("NotSerializable".to_owned());
        run.error = Some(format!("NotSerializable: the final value: {error}"));
        None
    });
    let final_answer = value.flatten().map(|value| Final { value });
    Execution {
        run,
        final_answer,
        value: result.and_then(|place| place.get().cloned()),
        unkept: None,
    }
}

fn no_execution() -> Error {
    Error::Protocol("an answer that is no execution".to_owned())
}

/// A traceback that ends with the error.
pub fn traceback_with_error(traceback: &str, error: &str) -> String {
    let (traceback, error) = (traceback.trim_end(), error.trim_end());
    if traceback.ends_with(error) {
        return traceback.to_owned();
    }
    // For interrupted code, the traceback has the position and the error has the reason.
    let place = traceback
        .strip_suffix("KeyboardInterrupt")
        .unwrap_or(traceback)
        .trim_end();
    format!("{place}\n{error}").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::traceback_with_error;

    #[test]
    fn an_error_is_told_once() {
        let place = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>";
        let told = "KeyboardInterrupt: interrupted; variables are kept";
        assert_eq!(
            traceback_with_error(&format!("{place}\nKeyboardInterrupt\n"), told),
            format!("{place}\n{told}")
        );
        let late = "TimeoutError: stopped after 1000 ms of guest time; variables are kept";
        assert_eq!(
            traceback_with_error(&format!("{place}\nKeyboardInterrupt\n"), late),
            format!("{place}\n{late}")
        );
        // The code's own reaction to the interrupt stays.
        assert_eq!(
            traceback_with_error(&format!("{place}\nValueError: no"), late),
            format!("{place}\nValueError: no\n{late}")
        );
        assert_eq!(
            traceback_with_error(&format!("{place}\nValueError: no\n"), "ValueError: no"),
            format!("{place}\nValueError: no")
        );
        assert_eq!(
            traceback_with_error("", "GuestCrashed: it ended"),
            "GuestCrashed: it ended"
        );
    }
}
