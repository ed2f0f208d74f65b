//! The wire between host and guest. The types in this file define it, and the types of TypeScript and Python are generated from them.
//!
//! A message is a header and its bodies, which are bytes. The header is JSON: a [`Request`] with at most one body, or an array of
//! [`Event`]s, in order. The bodies follow in the order of the events that have one ([`Event::has_body`]). In the browser a message is the
//! array `[header, ...bodies]`, posted over a private `MessagePort`. Natively it is a length-prefixed frame.
//!
//! Ordering rules:
//!
//! 1. The host sends [`Request::Init`] first; the guest answers [`Event::Ready`] or [`Event::BootFailed`].
//! 2. Then there is one *exchange* at a time: a request with a number (`exchange`), and all events until the one that ends the exchange.
//!    Exactly one event with that number ends it: [`Event::Executed`], [`Event::Value`], [`Event::Done`], [`Event::Restored`] or
//!    [`Event::Refused`]. Numbers grow.
//! 3. During an `Execute` the guest sends [`Event::Output`], [`Event::Display`] and [`Event::HostCall`]s with fresh, growing numbers. The
//!    host answers each call with one [`Request::HostReply`]. A guest with pending calls is suspended.
//! 4. [`Request::Interrupt`] may come at any time, and may overtake other messages. It has no effect once its exchange is over.
//! 5. A body may be cut into parts: any number of `Part` messages come before its own message. The first body of that message is then all
//!    the parts' bodies and its own, joined. A message without a body may come between.
//! 6. Between exchanges the host may ask for a checkpoint ([`Request::Save`]). The guest works at it while no other request comes, and
//!    answers exactly once, at any time.
//! 7. [`Event::Fatal`] is a guest's last message.
//!
//! Any other message of a guest is a violation, and the host ends the guest.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use serde::{Deserialize, Serialize};

use crate::deadline::StopReason;
use crate::execution::{FileChange, LostVariable};

mod profile;
#[cfg(test)]
mod python;

pub use profile::Profile;

macro_rules! version {
    () => {
        11
    };
}

/// The version of the wire, which changes whenever a message does. Host and guest refuse another version.
pub const PROTOCOL_VERSION: u32 = version!();

/// The WebSocket subprotocol of a connection to a guest on a server.
pub const SUBPROTOCOL: &str = concat!("sandglass.v", version!());

/// The host functions for which the guest has helpers. All others are the user's own.
pub const QUERIES: [&str; 2] = ["llm_query", "rlm_query"];

/// The mime type of the last expression's value as a rich output, up to the name of the value's encoding.
pub const VALUE_MIME: &str = "application/vnd.sandglass.";

/// A message from host to guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Request {
    /// The first message. No other state reaches a guest before it. `restores`: a `Restore` comes next, and its checkpoint holds the
    /// configuration.
    Init {
        version: u32,
        config: GuestConfig,
        restores: bool,
    },
    /// Runs `code` as `<cell {execution}>`. The guest interrupts itself after `timeout_ms` of guest time. `ahead`: nobody has asked for the
    /// code yet. The guest sends `External` once the code depends on the outside world. `more`: the code is still being written. It has
    /// whole lines, after which another statement begins. After running them, the guest sends `Waiting`. The exchange continues with
    /// `Extend` and, at last, `Promote`. `noted`: the guest notes what the clock and chance answer (`Noted`). The body, if there is one, has
    /// the notes of an earlier run, and the guest gives the code these answers first. `explores`: code that asks for something else than the
    /// notes have goes on all the same, with the answers of the world. Native guests stop it otherwise.
    Execute {
        exchange: u32,
        execution: u32,
        code: String,
        timeout_ms: f64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        ahead: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        more: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        noted: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        explores: bool,
    },
    /// Adds code that is being written, after the guest sent `Waiting`. `last`: the code seems to be complete.
    Extend {
        exchange: u32,
        text: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        last: bool,
    },
    /// Asks if statements of this code may run before the code is complete. They may if it compiles without a warning and awaits nothing.
    /// No exchange; sent only between exchanges. Answered by `Checked`.
    Check { check: u32, code: String },
    /// Asks for the variables that the next code may be about. Runs no code of the user's. No exchange; sent only between exchanges.
    /// Answered by `Surveyed`.
    Survey { survey: u32 },
    /// Asks for a proof that no code runs. Sent to workers only, and only between exchanges. Answered by `Pong`, from the event loop.
    Ping { ping: u32 },
    /// Reads a variable. Answered by `Value`.
    GetVariable {
        exchange: u32,
        name: String,
        timeout_ms: f64,
    },
    /// Assigns the value in the body to a variable. Answered by `Done`.
    SetVariable {
        exchange: u32,
        name: String,
        encoding: Encoding,
        timeout_ms: f64,
    },
    /// Replaces the host functions, and the names of the values that `SUBMIT` takes. Answered by `Done`, or by `Refused`; then nothing
    /// changed.
    Configure {
        exchange: u32,
        host_functions: Vec<String>,
        output_fields: Vec<String>,
        timeout_ms: f64,
    },
    /// Lists the user's variables. Answered by `Value`, a list of dicts with `name`, `type` and `length`.
    ListVariables { exchange: u32, timeout_ms: f64 },
    /// Writes the body to a file, and creates missing folders. A path is relative to the working folder, or absolute in that folder or the
    /// folder of temporary files. Answered by `Done`.
    WriteFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Reads a file. Answered by `Value`: `Bytes`, or `Text` if `text` is true, or `Missing`.
    ReadFile {
        exchange: u32,
        path: String,
        text: bool,
        timeout_ms: f64,
    },
    /// Lists a folder and all folders below. Answered by `Value`: `Missing`, or a list of dicts with `path`, `size`, `modified`
    /// (milliseconds since 1970) and `type`.
    ListFiles {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Removes a file, or a folder with its contents. Answered by `Done`, or by `Value`: `Missing`.
    RemoveFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Adds the variables in the body, which a `CaptureState` of any guest wrote. The state says itself of which kind it is. Unpacked it
    /// may take `max_bytes`. Answered by `Done`, or by `Value`, `Bytes`, if some variables cannot be had here: then the body has their names
    /// and reasons. Or by `Refused`; then no variable was set.
    OpenState {
        exchange: u32,
        max_bytes: f64,
        timeout_ms: f64,
    },
    /// Writes the user's variables for another guest: an LZ4 frame of a cloudpickle, or a `portable` state (`docs/checkpoint-format.md`).
    /// A `direct` one goes straight to another guest and is not kept: it has quick checksums. Answered by `Value`, `Bytes`, or by
    /// `Refused`. Before the state, the body has the names and reasons of variables that the state lacks.
    CaptureState {
        exchange: u32,
        max_bytes: f64,
        portable: bool,
        direct: bool,
        timeout_ms: f64,
    },
    /// Writes a file, a pickle, about a cell that is about to run (`path` is `input`) or has run (`output`). The body is JSON with the
    /// host's facts about the cell; `python/sandglass/state/cell_files.py` has its keys. Answered by `Value`, `Bytes`.
    CellFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Tells that somebody has asked for the code that runs ahead. From now on it may look at the clock and other parts of the outside
    /// world. `rest` is the part of written code that the guest does not have yet. Answered by `Promoted`, but only once. No answer comes
    /// from a guest that has ended the exchange or sent `Waiting`, nor from a fork, which has taken over by then.
    Promote {
        exchange: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        rest: Option<String>,
    },
    /// Looks at code that is being written: `path` is `complete` or `inspect`. The body and the answer are JSON;
    /// `python/sandglass/runtime/completion.py` has the keys. Answered by `Value`, `Bytes`.
    Look {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Answers a host call. The body is the result, or `message` tells why there is no result.
    HostReply {
        call: u32,
        status: ReplyStatus,
        encoding: Encoding,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        message: Option<String>,
    },
    /// Saves the state when the guest has nothing else to do. A `full` checkpoint needs no earlier one. No exchange: answered by `Saved`,
    /// or by `NotSaved` if another request comes first.
    Save { checkpoint: u32, full: bool },
    /// Gives the guest the state of a checkpoint, and runs `steps` again on it. Answered by `Restored`. The guest fails if a step has another
    /// outcome than before.
    Restore {
        exchange: u32,
        checkpoint: u32,
        timeout_ms: f64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        steps: Vec<Step>,
    },
    /// Installs wheels. The bodies are their bytes; in the browser an array of `Blob`s. Unpacked they may take `max_bytes`. Answered by
    /// `Done`, or by `Refused`; then nothing was installed.
    Install {
        exchange: u32,
        wheels: Vec<WheelFile>,
        max_bytes: f64,
        timeout_ms: f64,
    },
    /// Stops the exchange. A pending wait is rejected; running code gets a `KeyboardInterrupt`.
    Interrupt { exchange: u32, reason: StopReason },
    /// A piece of a body. `Text` marks a variable's value, which a guest may decode while the rest is on its way.
    Part { encoding: Encoding },
    /// Tells how many bytes of `Output` and `Display` events the host has taken. A native guest sends no more than its credit allows.
    Credit { bytes: f64 },
}

/// An execution that is to run again, in a state from before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Step {
    pub execution: u32,
    pub code: String,
    /// The [`ExecutionReport::mark`] of the first time.
    pub mark: u32,
}

/// The settings that a guest must know before it runs anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GuestConfig {
    /// Characters of each output stream that are sent in full. See [`Event::Output`].
    pub max_output_chars: u32,
    /// The most bytes of an encoded value.
    pub max_value_bytes: f64,
    /// The most bytes of the guest's memory.
    pub max_memory_bytes: f64,
    /// The deepest nesting of a value.
    pub max_value_depth: u32,
    /// Characters of earlier cells' source that are kept for tracebacks.
    pub max_source_cache: u32,
    /// The most rich outputs of an execution.
    pub max_displays: u32,
    /// The most bytes of one rich output.
    pub max_display_bytes: f64,
    /// The most bytes of all rich outputs of an execution.
    pub max_displays_bytes: f64,
    /// The most bytes of all files together. Files that Python itself needs do not count.
    pub max_file_bytes: f64,
    /// The most files. Files that Python itself needs do not count.
    pub max_files: u32,
    /// The functions that the host answers: those of [`QUERIES`] that it has, and the user's own functions.
    pub host_functions: Vec<String>,
    /// The most host calls of one execution.
    pub max_host_calls: u32,
    /// The profile that sets the names and texts in Python.
    pub profile: Profile,
    /// The names of the values that `SUBMIT` takes. If empty, `SUBMIT` takes any values.
    pub output_fields: Vec<String>,
    /// The most bytes of the last expression's value. A smaller value is sent as a rich output, see [`VALUE_MIME`]. If 0, none is sent.
    pub max_result_bytes: f64,
}

/// The facts about a wheel that a guest needs to unpack it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WheelFile {
    /// The wheel's file name, for messages.
    pub file_name: String,
    /// True if the wheel goes to the folder of libraries that packages share.
    pub is_library: bool,
}

/// The outcome of a host call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ReplyStatus {
    /// The body is the result.
    Ok,
    /// The host function failed.
    Error,
    /// The call took longer than `hostCallTimeout`.
    Timeout,
    /// A limit forbids the call.
    Limit,
}

/// The way in which a body holds a value. [`crate::value`] describes the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Encoding {
    /// `None`, or no value if none is needed. The body is empty.
    None,
    /// The variable or file does not exist. The body is empty.
    Missing,
    /// A string as UTF-8, lone surrogates encoded like other code points.
    Text,
    /// Bytes as they are.
    Bytes,
    /// Bytes that become a str if they are UTF-8, without a byte order mark. Only sent to the guest.
    File,
    /// Python's `marshal` format, version 2, of plain values.
    Marshal,
    /// The format of `Marshal`, with extension tuples.
    Tagged,
}

/// A message from guest to host. Everything in it is untrusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Event {
    /// The guest runs and has read `Init`.
    Ready { version: u32, guest: GuestInfo },
    /// The guest could not start.
    BootFailed { message: String },
    /// Text on a stream, in order. The guest left out `skipped` characters before it. It may do so after it has sent `max_output_chars`
    /// characters, and only if this text holds the last `max_output_chars` characters so far.
    Output {
        exchange: u32,
        stream: Stream,
        #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
        skipped: u64,
        text: String,
    },
    /// A rich output. The body is UTF-8 if the mime type is [text](crate::display::Kind), else raw bytes. `is_result`: it shows the value
    /// of the last expression, whose `repr` was sent before.
    Display {
        exchange: u32,
        mime: String,
        #[serde(default)]
        is_result: bool,
    },
    /// Python called the host function `name` and waits. The body of a query ([`QUERIES`]) is the list of arguments, or a single str argument
    /// alone. The body of another call is a tuple: the list of positional arguments, the dict of keyword arguments or `None`, and the
    /// numbers of the cell and line that made the call, 0 if unknown. `blocking`: the guest reads only what the driver puts into its
    /// mailbox. `batch`: the number of calls that it makes at once, this one included. Their events come one after another.
    HostCall {
        exchange: u32,
        call: u32,
        batch: u32,
        name: String,
        encoding: Encoding,
        blocking: bool,
    },
    /// The answers of clock and chance since the last notes, in the body. Sent before calls and before the end.
    Noted { exchange: u32 },
    /// The code used something of the world that cannot be noted.
    Unnoted { exchange: u32, why: String },
    /// The code asked the world for something else than the notes have.
    Differs { exchange: u32, what: String },
    /// An execution ended. The body is the final answer, if there is one.
    Executed {
        exchange: u32,
        execution: ExecutionReport,
        encoding: Encoding,
    },
    /// The answer to a request. The body is the value.
    Value { exchange: u32, encoding: Encoding },
    /// The request was carried out.
    Done { exchange: u32 },
    /// The guest has the checkpoint's state, without the variables in `lost`. `names`: those of the user's variables, if steps changed them.
    Restored {
        exchange: u32,
        lost: Vec<LostVariable>,
        #[serde(default)]
        names: Option<Vec<String>>,
    },
    /// The request cannot be carried out. Nothing was changed.
    Refused { exchange: u32, message: String },
    /// Code that runs ahead asked for something of the outside world, such as the time. At a later time it may get another result.
    External { exchange: u32 },
    /// The answer to [`Request::Promote`].
    Promoted { exchange: u32 },
    /// Code that is being written has run as far as the guest has it.
    Waiting { exchange: u32 },
    /// The answer to [`Request::Check`].
    Checked { check: u32, plain: bool },
    /// The answer to [`Request::Survey`]: the newest variables, the newest first.
    Surveyed {
        survey: u32,
        variables: Vec<SurveyedVariable>,
    },
    /// The answer to [`Request::Ping`].
    Pong { ping: u32 },
    /// The interpreter cannot be used any more.
    Fatal { message: String },
    /// A piece of a body, in the encoding of the whole.
    Part { encoding: Encoding },
    /// The state was saved, without the variables in `lost`. In the browser the body is a `Blob`. `full` may be true even if the host did
    /// not ask for a full checkpoint. `spent`: the guest holds much memory that its state no longer needs.
    Saved {
        checkpoint: u32,
        full: bool,
        lost: Vec<LostVariable>,
        spent: bool,
    },
    /// The state was not saved. Another request came first, or `reason` tells why it cannot be saved.
    NotSaved {
        checkpoint: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        reason: Option<String>,
    },
    /// Memory from which later guests start, in a `Blob`. Sent in the browser only, before `Ready`. `reason` tells why the given memory
    /// could not be used.
    Snapshot {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        reason: Option<String>,
    },
}

impl Event {
    /// Returns true if the event has a body.
    pub fn has_body(&self) -> bool {
        match self {
            Self::Display { .. }
            | Self::HostCall { .. }
            | Self::Noted { .. }
            | Self::Value { .. }
            | Self::Part { .. }
            | Self::Saved { .. }
            | Self::Snapshot { .. } => true,
            Self::Executed { execution, .. } => execution.has_final,
            _ => false,
        }
    }
}

/// The facts about a variable from which code is predicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SurveyedVariable {
    /// The variable's name.
    pub name: String,
    /// The name of the variable's class.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The length of a text or of one of Python's own containers, or the number of a DataFrame's rows.
    pub length: Option<u32>,
    /// The bytes of a DataFrame's arrays.
    #[serde(default)]
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number | null"))]
    pub memory: Option<u64>,
    /// The first columns of a DataFrame, as far as their names are texts.
    pub columns: Vec<SurveyedColumn>,
}

/// A column of a DataFrame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SurveyedColumn {
    /// The column's name.
    pub name: String,
    /// The kind of the column's contents.
    pub kind: ColumnKind,
    /// A sample of the column's contents, if it can be taken without running the user's code.
    #[serde(default)]
    pub sample: Option<ColumnSample>,
}

/// A sample of a column: its first rows, and others that are spread as far apart as possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ColumnSample {
    /// The number of sampled rows.
    pub rows: u32,
    /// The number of sampled rows without a value.
    pub nulls: u32,
    /// The number of different values in the sampled rows.
    pub distinct: u32,
    /// The most frequent texts among these values.
    pub texts: Vec<String>,
}

/// The kind of a column's contents, as far as predictions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ColumnKind {
    Number,
    Text,
    Time,
    Bool,
    Other,
}

/// A guest's versions and abilities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GuestInfo {
    /// The guest's way to wait for the host: `atomics`, `jspi` or `none`.
    pub bridge: String,
    /// True if running code can be stopped without loss of state.
    pub soft_interrupt: bool,
    /// Python's version.
    pub python: String,
    /// Pyodide's version, in the browser.
    pub pyodide: Option<String>,
}

/// The streams of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Stream {
    /// The text printed.
    Stdout,
    /// The text written to `sys.stderr`.
    Stderr,
    /// The `repr` of the last expression.
    Result,
    /// The exception's last line.
    Error,
    /// The traceback.
    Traceback,
}

/// The guest's report of an ended execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExecutionReport {
    /// The way in which the code ended.
    pub ended: Ended,
    /// The exception's class name.
    pub error_type: Option<String>,
    /// The reason for which the guest interrupted the code, if it did.
    pub stopped: Option<StopReason>,
    /// True if a final answer was declared. The body holds it.
    #[serde(rename = "final")]
    pub has_final: bool,
    /// The names of the user's variables, if they changed since the last report.
    pub names: Option<Vec<String>>,
    /// The number of rich outputs that were not sent, because they were too many or too large.
    #[serde(default)]
    pub omitted_displays: u32,
    /// The files in the working folder that the code changed.
    #[serde(default)]
    pub files: Vec<FileChange>,
    /// The number of changed files that are not in `files`.
    #[serde(default)]
    pub omitted_files: u32,
    /// A number that stands for the outcome, if the code has the same outcome whenever it runs again in the same state. A guest that makes
    /// checkpoints tells it.
    #[serde(default)]
    pub mark: Option<u32>,
}

/// The way in which an execution's code ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Ended {
    /// The code ran to its end.
    Ok,
    /// An exception ended the code.
    Error,
    /// A limit ended the code.
    Limit,
}
