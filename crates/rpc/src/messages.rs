//! The definition of the wire: the methods of both sides, with their parameters and results. `openrpc.json` is made of these types.
//!
//! Names are camelCase in JSON. Times are in milliseconds, sizes in bytes.

use std::collections::BTreeMap;

use sandglass_core::budget::{BudgetLeft, Usage};
use sandglass_core::execution::{CodeExecution, LostVariable};
use sandglass_core::stats::Stats;
use sandglass_core::{BudgetLimits, Error};
use sandglass_host::kept::KeptFacts;
use sandglass_host::sandbox::FileEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;

mod notebook;
#[cfg(test)]
mod openrpc;

pub use notebook::{AllCells, CellFileName, CellInfo, OfCell, OfCellFile, RanCell, RunCell};

/// The version of the wire. A client names it in `hello`.
pub const VERSION: u32 = 1;

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "sandglass.rpc.v1";

/// The most bytes of a JSON message.
pub const MAX_JSON_BYTES: usize = 64 << 20;
/// The bytes of a message that every server takes: a piece of 1 MiB and its head.
pub const MIN_MESSAGE_BYTES: usize = (1 << 20) + 5;
/// The most bytes of a piece of a blob.
pub const MAX_PIECE_BYTES: usize = 16 << 20;
/// The bytes of JSON from which a value is sent as a blob.
pub const BLOB_BYTES: usize = 64 << 10;
/// The most requests of a client that are under way.
pub const MAX_REQUESTS: usize = 1_000;
/// The most characters of a request's id.
const MAX_ID_CHARS: usize = 100;

/// A value in JSON. `docs/rpc.md` has the special forms. A large one is `{"$blob": {"id", "type"}}`.
pub type WireValue = Box<RawValue>;

/// The id of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

impl Id {
    /// Returns true unless the id is too long.
    pub fn is_fit(&self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Text(text) => text.len() <= MAX_ID_CHARS,
        }
    }
}

/// A JSON message of the client, before its parameters are read.
#[derive(Debug, Deserialize)]
pub struct Incoming {
    /// Always "2.0".
    pub jsonrpc: String,
    /// The id of a request or a response.
    #[serde(default)]
    pub id: Option<Id>,
    /// The method of a request or notification.
    #[serde(default)]
    pub method: Option<String>,
    /// The parameters of a request or notification.
    #[serde(default)]
    pub params: Option<Box<RawValue>>,
    /// The span in which the client made a request, as the headers of W3C Trace Context name it.
    #[serde(default)]
    pub traceparent: Option<Box<RawValue>>,
    /// The state of the client's trace.
    #[serde(default)]
    pub tracestate: Option<Box<RawValue>>,
    /// The result of a response.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// The error of a response.
    #[serde(default)]
    pub error: Option<ResponseError>,
}

/// The error of a client's response.
#[derive(Debug, Clone, Deserialize)]
pub struct ResponseError {
    /// The message, which Python sees.
    pub message: String,
}

/// A request or notification of the server.
#[derive(Debug, Serialize)]
pub struct Outgoing<P> {
    /// Always "2.0".
    pub jsonrpc: &'static str,
    /// The id of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The method.
    pub method: &'static str,
    /// The parameters.
    pub params: P,
}

/// A response of the server.
#[derive(Debug, Serialize)]
pub struct Response<R> {
    /// Always "2.0".
    pub jsonrpc: &'static str,
    /// The id of the request. `None` if the request had none that could be read.
    pub id: Option<Id>,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// The error, in place of a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorObject>,
}

/// An error of the server, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorObject {
    /// The number of JSON-RPC.
    pub code: i32,
    /// The message: the event, the fate of the state, and what to do.
    pub message: String,
    /// The stable name.
    pub data: ErrorData,
}

/// The data of an error.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorData {
    /// The stable name on which programs branch.
    pub code: String,
}

/// An error of the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// A message is not JSON.
    #[error("the message is not JSON: {0}; nothing was done")]
    Parse(String),
    /// A message is not one of JSON-RPC 2.0.
    #[error("{0}; nothing was done")]
    InvalidRequest(String),
    /// There is no such method.
    #[error("there is no method {0}; rpc.discover lists them")]
    MethodNotFound(String),
    /// A parameter is missing, unknown or wrong.
    #[error("{0}; nothing was done")]
    InvalidParams(String),
    /// The sandbox refused or could not finish.
    #[error(transparent)]
    Sandbox(#[from] Error),
    /// The connection's home refused, with its own code.
    #[error("{message}")]
    Refused {
        /// The stable name.
        code: String,
        /// The message.
        message: String,
    },
    /// There is no such sandbox on this connection.
    #[error("there is no sandbox \"{0}\" on this connection; it may have been destroyed")]
    NoSandbox(String),
    /// The first request must be `hello`.
    #[error("{0}; the first request is hello with \"version\": {VERSION}")]
    HelloFirst(String),
    /// Too much is under way.
    #[error("{0}; nothing was done")]
    TooMuch(String),
}

impl RpcError {
    /// A fault of this program.
    pub(crate) fn internal(message: String) -> Self {
        Self::Refused {
            code: "internal".to_owned(),
            message,
        }
    }

    /// The error as JSON.
    pub fn to_object(&self) -> ErrorObject {
        let (code, name) = match self {
            Self::Parse(_) => (-32700, "parse_error"),
            Self::InvalidRequest(_) => (-32600, "invalid_request"),
            Self::MethodNotFound(_) => (-32601, "method_not_found"),
            Self::InvalidParams(_) | Self::Sandbox(Error::InvalidOption { .. }) => (-32602, "invalid_option"),
            Self::Sandbox(error) => (-32000, error.code()),
            Self::Refused { code, .. } if code == "invalid_option" => (-32602, code.as_str()),
            Self::Refused { code, .. } => (-32000, code.as_str()),
            Self::NoSandbox(_) => (-32001, "no_sandbox"),
            Self::HelloFirst(_) => (-32002, "hello_first"),
            Self::TooMuch(_) => (-32003, "too_much"),
        };
        ErrorObject {
            code,
            message: self.to_string(),
            data: ErrorData { code: name.to_owned() },
        }
    }
}

// ---- requests of the client ----

/// Parameters of `hello`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hello {
    /// The version of the wire: 1.
    pub version: u32,
    /// The client's name and version, for the log.
    #[serde(default)]
    pub client: Option<String>,
}

/// The result of `hello`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Welcome {
    /// The version of the wire.
    pub version: u32,
    /// The program's name and version.
    pub server: String,
    /// True on standard input and output.
    pub is_local: bool,
}

/// Parameters of methods that need a sandbox only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfSandbox {
    /// The id that `create` returned.
    pub sandbox: String,
}

/// An empty result.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Empty {}

/// Parameters of a method without any.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NoParams {}

/// The result of `create`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Created {
    /// The id of the sandbox on this connection.
    pub sandbox: String,
    /// The backend of its guest.
    pub backend: String,
    /// The sandbox's facts and abilities. `python` is null before a guest has started.
    pub capabilities: Json,
}

/// Parameters of `initialize`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Initialize {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The value of the variable `context`.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub context: WireValue,
}

/// A series of variables.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum SeriesName {
    /// `context_0`, `context_1`, …
    Context,
    /// `history_0`, `history_1`, …
    History,
}

/// Parameters of `addContext`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AddContext {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The series to which the value is added.
    pub series: SeriesName,
    /// The value.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// The name of a variable.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Named {
    /// The name.
    pub name: String,
}

/// Parameters of `execute`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Execute {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The source of the code.
    pub code: String,
    /// The timeout of guest time, instead of the sandbox's.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// The execution's share of the sandbox's budget: `maxCalls`, `maxTokens`, `maxCost`, `maxTime`, `maxDepth`.
    #[serde(default)]
    pub budget: BTreeMap<String, f64>,
    /// True if `output` and `display` notifications shall tell what is printed and shown, as it comes.
    #[serde(default)]
    pub stream: bool,
}

impl Execute {
    /// The execution's share of the budget.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an unknown limit.
    pub fn budget(&self) -> Result<BudgetLimits, Error> {
        budget_of(&self.budget)
    }
}

/// The limits of a budget with these names.
///
/// # Errors
/// [`Error::InvalidOption`] for an unknown limit.
pub fn budget_of(named: &BTreeMap<String, f64>) -> Result<BudgetLimits, Error> {
    let mut limits = BudgetLimits::default();
    for (name, value) in named {
        limits.set(name, *value)?;
    }
    Ok(limits)
}

/// The result of `execute`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Executed {
    /// The fields of an execution, as over HTTP.
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, Json>"))]
    pub run: CodeExecution,
    /// The final answer, if the code declared one.
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub final_answer: Option<FinalAnswer>,
    /// The value of the last expression, unless that is `None` or too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: Option<WireValue>,
    /// With `persist`, the reason for which exactly this state is not kept, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
}

/// A final answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FinalAnswer {
    /// The declared value.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// The result of `last`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Last {
    /// The fields of the last execution that has ended, as over HTTP. Null if there is none, or if it has more than 1 MiB of JSON.
    pub execution: Option<Json>,
}

/// Parameters of `resume`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Resume {
    /// The id that `create` returned.
    pub sandbox: String,
    /// Answers to calls that wait: an object with a value for the id of each. These calls are not made again.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub answers: Option<WireValue>,
    /// True if `output` and `display` notifications shall tell what is printed and shown, from the beginning of the execution.
    #[serde(default)]
    pub stream: bool,
}

/// Parameters of `deletePersisted`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeletePersisted {
    /// The name that `create` had as `persist`.
    pub name: String,
}

/// Parameters of `listPersisted`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListPersisted {
    /// On standard input and output, the folder whose folders are listed. A server lists the names of the key instead.
    #[serde(default)]
    pub folder: Option<String>,
}

/// The result of `listPersisted`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AllPersisted {
    /// The newest 1000 kept sandboxes, the newest first: `name`, `execution`, `bytes`, and `savedAt` in milliseconds since 1970.
    #[cfg_attr(test, schemars(with = "Vec<BTreeMap<String, Json>>"))]
    pub persisted: Vec<KeptFacts>,
}

/// Parameters of `replay`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Replay {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The number of an execution that has ended.
    pub execution: u32,
    /// Answers in place of those in the journal: an object with a value for each call, by its id or by its place among the calls, from 1.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub answers: Option<WireValue>,
    /// True if a call without an answer in the journal is made. Otherwise it fails.
    #[serde(default)]
    pub ask: bool,
}

/// The result of `replay`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Replayed {
    /// The execution.
    pub execution: Executed,
    /// The place where the code first went another way than its journal says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
}

/// Parameters of `hint`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hint {
    /// The id that `create` returned.
    pub sandbox: String,
    /// Code that may come next, the likeliest first.
    pub codes: Vec<String>,
}

/// Parameters of `written`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Written {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The part of unfinished code so far. Empty if nobody writes any more.
    pub code: String,
    /// The timeout of its execution.
    #[serde(default)]
    pub timeout: Option<f64>,
}

/// Parameters of `converse`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Converse {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The newest text of the conversation.
    pub text: String,
}

/// Parameters of `getVariable`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GetVariable {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The variable's name.
    pub name: String,
}

/// The result of `getVariable`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Variable {
    /// False if there is no such variable.
    pub found: bool,
    /// The variable's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: Option<WireValue>,
}

/// Parameters of `setVariable`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SetVariable {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The variable's name.
    pub name: String,
    /// The value.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// The result of `listVariables`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Variables {
    /// The user's variables: `name`, `type` and `length`.
    #[cfg_attr(test, schemars(with = "Vec<Json>"))]
    pub variables: Vec<sandglass_host::sandbox::Variable>,
}

/// Parameters of `readFile` and `removeFile`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfFile {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The file's path, relative to the working folder.
    pub path: String,
}

/// Parameters of `listFiles`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListFiles {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The folder, relative to the working folder. Empty for that itself.
    #[serde(default)]
    pub path: String,
}

/// Parameters of `writeFile`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WriteFile {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The file's path, relative to the working folder.
    pub path: String,
    /// The contents: bytes, or a str that is written as UTF-8.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// A value alone.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Valued {
    /// The value.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// The result of `captureState`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapturedState {
    /// The state: bytes.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
    /// The variables that it lacks: `name` and `reason` of each, by the guest's word.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub lost: Vec<LostVariable>,
}

/// Parameters of `fork`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fork {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The number of copies: 1 to 100, and 1 by default. All are made, or none.
    #[serde(default)]
    pub count: Option<usize>,
    /// True for copies of the process's memory instead of copies by value. The original keeps no older checkpoints then.
    #[serde(default)]
    pub exact: bool,
}

/// The result of `fork`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Forked {
    /// The copies.
    pub sandboxes: Vec<Created>,
    /// The variables and files that they lack: `name` and `reason` of each.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub lost: Vec<LostVariable>,
}

/// Parameters of `captureState`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaptureState {
    /// The id that `create` returned.
    pub sandbox: String,
    /// Asks for a portable state, for any backend and any version of Python. By default the state is for the same version of Python.
    #[serde(default)]
    pub portable: bool,
}

/// The result of `openState`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpenedState {
    /// The variables of the state that cannot be had here: `name` and `reason` of each, by the guest's word.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub lost: Vec<LostVariable>,
}

/// The result of `listFiles`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Files {
    /// All files and folders: `path`, `size`, `modified` and `type`.
    #[cfg_attr(test, schemars(with = "Vec<Json>"))]
    pub files: Vec<FileEntry>,
}

/// Parameters of `configure`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Configure {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The names of the functions that Python calls and the client answers. They replace the earlier ones.
    #[serde(default)]
    pub host_functions: Option<Vec<String>>,
    /// The names of the values that `SUBMIT` takes. If empty, `SUBMIT` takes any values.
    #[serde(default)]
    pub output_fields: Option<Vec<String>>,
}

/// Parameters of `openState`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpenState {
    /// The id that `create` returned.
    pub sandbox: String,
    /// Bytes of `captureState`, of this or another sandbox.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: WireValue,
}

/// Parameters of `restore`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RestoreState {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The execution to whose newest checkpoint the sandbox goes back; 0 is before the first. By default the newest checkpoint of all.
    #[serde(default)]
    pub execution: Option<u32>,
}

/// The state that a sandbox has, or that was saved.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StateOf {
    /// The last execution whose effects the state has; 0 is before the first.
    pub execution: u32,
}

/// Parameters of the notification `cancel`, of both sides.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The id of a request of the sender.
    pub id: Id,
}

/// Parameters of the client's notification `approval`: a person is asked before a host function runs, or has answered.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approving {
    /// The id of the server's `call`.
    pub id: u64,
    /// True while the person decides. `hostCallTimeout` rests meanwhile, and begins anew afterwards.
    pub pending: bool,
}

/// Parameters of the client's notification `drop`: no message will name a blob.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropBlob {
    /// The blob's number.
    pub blob: u32,
}

/// The result of `stats`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Counts {
    /// The sandbox's counts.
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, Json>"))]
    pub stats: Stats,
    /// The budget of all executions.
    pub budget: BudgetCounts,
}

/// A budget.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BudgetCounts {
    /// The amounts that are left: `calls`, `tokens`, `cost`, `time` and `depth`. A missing one has no limit.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub left: BudgetLeft,
    /// The use of models so far: `calls`, `inputTokens`, `outputTokens` and `cost`.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub spent: Usage,
}

// ---- requests of the server ----

/// Parameters of `call`: Python called a host function.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Call<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The id of the client's `execute` whose code calls.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub request: Option<Id>,
    /// The function's name.
    pub name: &'a str,
    /// The call's id, if the sandbox has `persist`. A call that is made again by `resume` has the same one. Calls of `replay` have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The positional arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<Vec<Json>>"))]
    pub args: Option<WireValue>,
    /// The keyword arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<BTreeMap<String, Json>>"))]
    pub kwargs: Option<WireValue>,
    /// Large arguments: a blob of JSON with `args` and `kwargs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub arguments: Option<WireValue>,
    /// The place in the code. Its numbers are the guest's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<CodeLine>,
}

/// A line of code.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CodeLine {
    /// The number of the execution that brought the code.
    pub execution: u32,
    /// The line's number, from 1.
    pub number: u32,
    /// The line, of at most 1,000 characters. Missing if the code of `execute` has no such line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The client's result of `call`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Returned {
    /// The function's value. `null` if there is none.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Json"))]
    pub value: Option<WireValue>,
    /// The use of models, for the budget.
    #[serde(default)]
    pub usage: Option<UsageOfCall>,
}

/// The use of models by a call.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageOfCall {
    /// Further calls of models, beside this one.
    pub calls: f64,
    /// Tokens of the prompts.
    pub input_tokens: f64,
    /// Tokens of the answers.
    pub output_tokens: f64,
    /// The cost.
    pub cost: f64,
}

impl From<UsageOfCall> for Usage {
    fn from(usage: UsageOfCall) -> Self {
        let UsageOfCall {
            calls,
            input_tokens,
            output_tokens,
            cost,
        } = usage;
        Self {
            calls,
            input_tokens,
            output_tokens,
            cost,
        }
    }
}

/// Parameters of `llmQuery`: Python asks the sub-model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LlmQuery<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The id of the client's `execute` whose code asks.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub request: Option<Id>,
    /// The prompt.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub prompt: WireValue,
    /// The model that Python named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Parameters of `rlmQuery`: Python starts a recursive run.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RlmQuery<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The id of the client's `execute` whose code asks.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub request: Option<Id>,
    /// The task.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub task: WireValue,
    /// The context of the run.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub context: WireValue,
    /// The model that Python named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The client's result of `llmQuery` and `rlmQuery`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answered {
    /// The answer: a str.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub text: WireValue,
    /// The use of models, for the budget.
    #[serde(default)]
    pub usage: Option<UsageOfCall>,
}

// ---- notifications of the server ----

/// Parameters of `started`: a guest of the sandbox has started.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Started<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The sandbox's facts and abilities, as they are from now on.
    pub capabilities: Json,
}

/// Parameters of `output`: an execution printed text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Output<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The id of the client's `execute`.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub request: &'a Id,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The text.
    pub text: &'a str,
    /// Characters that were left out before the text, because the client did not keep up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<usize>,
}

/// Parameters of `display`: an execution showed a rich output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Displayed<'a> {
    /// The id of the sandbox.
    pub sandbox: &'a str,
    /// The id of the client's `execute`.
    #[cfg_attr(test, schemars(with = "Json"))]
    pub request: &'a Id,
    /// The mime type, such as `text/html` or `image/png`.
    pub mime: &'a str,
    /// Text types as they are; all others in base64.
    pub data: &'a str,
    /// The relation to the last expression's value: `before`, `same` or `after`.
    pub to_result: &'static str,
}

/// Parameters of the server's notification `cancel`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cancelled {
    /// The id of a request of the server whose answer nobody awaits any more.
    pub id: u64,
}

/// Parameters of the server's notification `drop`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dropped {
    /// The number of a blob that no message will name. Not all of its pieces may come.
    pub blob: u32,
}
