//! The wire between host and guest: the only definition there is. TypeScript's and Python's are made of it.
//!
//! A message is a header and bodies, which are bytes. The header is JSON: a [`Request`] with at most one body, or an array of
//! [`Event`]s with the bodies of those that have one ([`Event::has_body`]), in order. In the browser it is the array
//! `[header, ...bodies]` posted over a private `MessagePort`; natively it is a length-prefixed frame.
//!
//! Ordering rules:
//!
//! 1. The host sends [`Request::Init`] first; the guest answers [`Event::Ready`] or [`Event::BootFailed`].
//! 2. Then one *exchange* at a time: a request with its number, `exchange`, answered by exactly one event that carries the number
//!    ([`Event::Executed`], [`Event::Value`], [`Event::Done`], [`Event::Restored`] or [`Event::Refused`]) and ends the exchange. Numbers grow.
//! 3. During an `Execute` the guest sends [`Event::Output`], [`Event::Display`] and [`Event::HostCall`]s with fresh, growing numbers; the
//!    host answers each call by one [`Request::HostReply`]. A guest is suspended while it has calls pending.
//! 4. [`Request::Interrupt`] may come at any time and may overtake; one for an exchange that is over has no effect.
//! 5. A body may be cut: any number of `Part` messages precede the message it belongs to, and the message's first body is the
//!    concatenation of their bodies and its own. A message without a body may come between.
//! 6. Between exchanges the host may ask for a checkpoint ([`Request::Save`]); the guest works at it while nothing else comes in,
//!    and says how that ended at any time, once.
//! 7. [`Event::Fatal`] is a guest's last word.
//!
//! Anything else a guest sends is a violation and ends it.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use serde::{Deserialize, Serialize};

use crate::deadline::StopReason;
use crate::execution::{FileChange, LostVariable};

#[cfg(test)]
mod python;

macro_rules! version {
    () => {
        9
    };
}

/// Changes whenever a message does. Host and guest refuse to talk to another version.
pub const PROTOCOL_VERSION: u32 = version!();

/// The subprotocol of a WebSocket that leads to a guest on a server.
pub const SUBPROTOCOL: &str = concat!("sandglass.v", version!());

/// The host functions that the guest has helpers for; others are the user's own.
pub const QUERIES: [&str; 2] = ["llm_query", "rlm_query"];

/// Host to guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Request {
    /// The first message. No other state reaches a guest before it.
    /// `restores`: a `Restore` comes next, which brings the configuration as well.
    Init {
        version: u32,
        config: GuestConfig,
        restores: bool,
    },
    /// Run `code` as `<cell {execution}>`; the guest interrupts itself after `timeout_ms` of guest time. `ahead`: nobody has asked for it
    /// yet, so that it is told (`External`) when the code looks at what only the world can tell. `more`: this is the begin of code that is
    /// still being written, whole lines after which another statement begins; when it has run, the guest says `Waiting`, and the exchange
    /// goes on with `Extend`, at last with `Promote`.
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
    },
    /// More of the code that is being written, to a guest that said `Waiting`; `last`: it is all there, as far as is known.
    Extend {
        exchange: u32,
        text: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        last: bool,
    },
    /// Ask whether statements of this code may run before all of it is there: it compiles without a warning, and awaits nothing. No
    /// exchange, and only between exchanges; answered by `Checked`.
    Check { check: u32, code: String },
    /// Ask what the next code may be about. No exchange, and only between exchanges; answered by `Surveyed`. It runs no code of the user's.
    Survey { survey: u32 },
    /// Prove that no code runs. To workers only, and only between exchanges; answered by `Pong`, from the event loop.
    Ping { ping: u32 },
    /// Answered by `Value`.
    GetVariable {
        exchange: u32,
        name: String,
        timeout_ms: f64,
    },
    /// The body is the value. Answered by `Done`.
    SetVariable {
        exchange: u32,
        name: String,
        encoding: Encoding,
        timeout_ms: f64,
    },
    /// Answered by `Value`, a list of dicts `name`, `type`, `length`.
    ListVariables { exchange: u32, timeout_ms: f64 },
    /// Make the body the contents of a file, and the folders that it needs. A path is relative to the working folder, or
    /// lies in it or in the folder of temporary files. Answered by `Done`.
    WriteFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Answered by `Value`: `Bytes`, or `Text` when `text` is wanted, or `Missing`.
    ReadFile {
        exchange: u32,
        path: String,
        text: bool,
        timeout_ms: f64,
    },
    /// Everything in a folder and below. Answered by `Value`, a list of dicts `path`, `size`, `modified` (milliseconds since
    /// 1970), `type`; or `Missing`.
    ListFiles {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Remove a file, or a folder with all that is in it. Answered by `Done`, or by `Value`: `Missing`.
    RemoveFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Add the variables that the body holds, which `CaptureState` made, here or elsewhere: base64 of LZ4 of a cloudpickle,
    /// `max_bytes` long at most when unpacked. Answered by `Done`, or by `Refused`, and then no variable was set.
    OpenState {
        exchange: u32,
        max_bytes: f64,
        timeout_ms: f64,
    },
    /// Write the user's variables so that another guest can have them. Answered by `Value`: `Bytes`; or by `Refused`.
    CaptureState {
        exchange: u32,
        max_bytes: f64,
        timeout_ms: f64,
    },
    /// Describe a cell that is about to run (`path` is `input`) or has run (`output`) as a file of its own, a pickle. The body is JSON,
    /// what the host knows of the cell; `python/sandglass/state/cell_files.py` has the keys. Answered by `Value`, `Bytes`.
    CellFile {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Code that ran ahead has been asked for: from now on it may look at the clock and so on. Answered by `Promoted` when it has not
    /// done so before; a guest that is not at that any more, or says `Waiting`, answers nothing, nor does one that is a fork: it has taken
    /// over by then. `rest` is what there is not yet of code
    /// that was being written.
    Promote {
        exchange: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        rest: Option<String>,
    },
    /// Look at code that is being written: `path` is `complete` or `inspect`. The body is JSON, and so is the answer;
    /// `python/sandglass/runtime/completion.py` has the keys. Answered by `Value`, `Bytes`.
    Look {
        exchange: u32,
        path: String,
        timeout_ms: f64,
    },
    /// Answers a host call: the body is the result, or `message` says why there is none.
    HostReply {
        call: u32,
        status: ReplyStatus,
        encoding: Encoding,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        message: Option<String>,
    },
    /// Save the state when there is nothing else to do; a `full` checkpoint needs no earlier one. No exchange: answered by
    /// `Saved`, or by `NotSaved` when another request comes first.
    Save { checkpoint: u32, full: bool },
    /// Become the guest that made a checkpoint. Answered by `Restored`.
    Restore {
        exchange: u32,
        checkpoint: u32,
        timeout_ms: f64,
    },
    /// Have these wheels, whose bytes are the bodies: in the browser an array of `Blob`s. They may take `max_bytes` unpacked.
    /// Answered by `Done`, or by `Refused`, and then nothing is installed.
    Install {
        exchange: u32,
        wheels: Vec<WheelFile>,
        max_bytes: f64,
        timeout_ms: f64,
    },
    /// Stop the exchange: a pending wait is rejected, running code gets a `KeyboardInterrupt`.
    Interrupt { exchange: u32, reason: StopReason },
    /// A piece of a body. `Text` says that it is a variable's, which a guest may decode while the rest is on its way.
    Part { encoding: Encoding },
    /// Bytes of `Output` and `Display` events that the host has taken: a native guest holds back more than it has credit for.
    Credit { bytes: f64 },
}

/// The settings that a guest has to know before it runs anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GuestConfig {
    /// Characters of each output stream that are sent in full; see [`Event::Output`].
    pub max_output_chars: u32,
    /// Bytes that an encoded value may take.
    pub max_value_bytes: f64,
    /// Bytes of memory that the guest may have.
    pub max_memory_bytes: f64,
    /// Nesting depth of a value.
    pub max_value_depth: u32,
    /// Characters of past cells' source that tracebacks can show.
    pub max_source_cache: u32,
    /// Rich outputs that an execution may show.
    pub max_displays: u32,
    /// Bytes of one, and of all of an execution.
    pub max_display_bytes: f64,
    pub max_displays_bytes: f64,
    /// Bytes that all files may have, and how many there may be; those that Python itself needs do not count.
    pub max_file_bytes: f64,
    pub max_files: u32,
    /// The functions that the host answers: [`QUERIES`] as far as it has them, and the user's own functions.
    pub host_functions: Vec<String>,
    /// Host calls of one execution.
    pub max_host_calls: u32,
    /// The profile whose names and texts Python gets.
    pub profile: Profile,
    /// The names of the values that `SUBMIT` takes; none: it takes any.
    pub output_fields: Vec<String>,
}

/// The project whose prompts and controllers a sandbox is for: the names in Python, their signatures, and what failures look like.
/// `python/sandglass/runtime/profiles.py` holds what each is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Profile {
    /// Sandglass's own.
    #[default]
    Default,
    /// alexzhang13/rlm from 0.1.2 on.
    Rlm,
    /// alexzhang13/rlm up to 0.1.1a, and rlm-minimal.
    RlmLegacy,
    /// DwayneWilkes/rlm (`@rlm/core`).
    RlmCore,
    /// stanfordnlp/dspy's `RLM`.
    Dspy,
}

impl Profile {
    /// All there are.
    pub const ALL: [Self; 5] = [Self::Default, Self::Rlm, Self::RlmLegacy, Self::RlmCore, Self::Dspy];

    /// Its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Rlm => "rlm",
            Self::RlmLegacy => "rlm-legacy",
            Self::RlmCore => "rlm-core",
            Self::Dspy => "dspy",
        }
    }

    /// The profile of a public name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns true when a batch of queries that would exceed the budget is refused as a whole.
    pub fn has_whole_batches(self) -> bool {
        self == Self::Dspy
    }

    /// Returns true when `rlm_query` asks the sub-model where nobody answers it.
    pub fn falls_back(self) -> bool {
        matches!(self, Self::Rlm | Self::RlmLegacy)
    }

    /// Returns true when Python has `SUBMIT`.
    pub fn has_submit(self) -> bool {
        matches!(self, Self::Default | Self::RlmCore | Self::Dspy)
    }
}

/// A wheel, as far as it matters to who unpacks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WheelFile {
    /// For messages.
    pub file_name: String,
    /// True when it goes where the libraries are that packages share.
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
    /// It took longer than `hostCallTimeout`.
    Timeout,
    /// A limit forbids the call.
    Limit,
}

/// The way a value is written in a body. [`crate::value`] describes the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Encoding {
    /// `None`, or no value where none is asked for; the body is empty.
    None,
    /// There is no such variable; the body is empty.
    Missing,
    /// A string as UTF-8, lone surrogates encoded like other code points.
    Text,
    /// Bytes as they are.
    Bytes,
    /// Bytes that are a str where they are UTF-8 (a byte order mark is left out); only to the guest.
    File,
    /// Python's `marshal` format, version 2, of plain values.
    Marshal,
    /// The same with extension tuples.
    Tagged,
}

/// Guest to host. Everything in it is untrusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Event {
    /// The guest runs and has read `Init`.
    Ready { version: u32, guest: GuestInfo },
    /// The guest could not start.
    BootFailed { message: String },
    /// Text on a stream, in order. `skipped` characters before it were left out: allowed once `max_output_chars`
    /// characters were sent, and only if this text holds the last `max_output_chars` up to here.
    Output {
        exchange: u32,
        stream: Stream,
        #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
        skipped: u64,
        text: String,
    },
    /// Something to see. The body is UTF-8 where the mime type is one of [text](crate::display::Kind), else raw bytes.
    /// `is_result`: it is the last expression's value, whose `repr` was sent before.
    Display {
        exchange: u32,
        mime: String,
        #[serde(default)]
        is_result: bool,
    },
    /// Python called the host function `name` and waits; the body is the list of arguments, or the only one when that is a
    /// str. A guest that waits `blocking`
    /// hears nothing but what the driver puts into its mailbox. `batch` is how many calls it made at once, this one among them:
    /// they come one after the other.
    HostCall {
        exchange: u32,
        call: u32,
        batch: u32,
        name: String,
        encoding: Encoding,
        blocking: bool,
    },
    /// An execution ended; the body is the final answer where there is one.
    Executed {
        exchange: u32,
        execution: ExecutionReport,
        encoding: Encoding,
    },
    /// The body is the value asked for.
    Value { exchange: u32, encoding: Encoding },
    /// The request is carried out.
    Done { exchange: u32 },
    /// The guest has the state of the checkpoint, but for the variables `lost`.
    Restored { exchange: u32, lost: Vec<LostVariable> },
    /// The request cannot be carried out; nothing was changed.
    Refused { exchange: u32, message: String },
    /// Code that runs ahead wants to know what only the world can tell, such as the time: it may come to something else when it is run
    /// later.
    External { exchange: u32 },
    /// See [`Request::Promote`].
    Promoted { exchange: u32 },
    /// Code that is being written has run as far as it is there.
    Waiting { exchange: u32 },
    /// See [`Request::Check`].
    Checked { check: u32, plain: bool },
    /// See [`Request::Survey`]: the newest variables, the newest first.
    Surveyed {
        survey: u32,
        variables: Vec<SurveyedVariable>,
    },
    /// See [`Request::Ping`].
    Pong { ping: u32 },
    /// The interpreter is beyond use.
    Fatal { message: String },
    /// A piece of a body, of the same encoding.
    Part { encoding: Encoding },
    /// The state is saved, but for the variables `lost`; in the browser the body is a `Blob`. It may be `full` although that was
    /// not asked for. `spent` says that the guest holds
    /// much memory that its state no longer needs.
    Saved {
        checkpoint: u32,
        full: bool,
        lost: Vec<LostVariable>,
        spent: bool,
    },
    /// It is not: there was something else to do, or it cannot be saved for a `reason`.
    NotSaved {
        checkpoint: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        reason: Option<String>,
    },
    /// In the browser, before `Ready`: the body is a `Blob`, memory that later guests start from. `reason` says why the one
    /// that was given would not do.
    Snapshot {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        reason: Option<String>,
    },
}

impl Event {
    /// Returns true when a body belongs to it.
    pub fn has_body(&self) -> bool {
        match self {
            Self::Display { .. }
            | Self::HostCall { .. }
            | Self::Value { .. }
            | Self::Part { .. }
            | Self::Saved { .. }
            | Self::Snapshot { .. } => true,
            Self::Executed { execution, .. } => execution.has_final,
            _ => false,
        }
    }
}

/// A variable, as far as code can be predicted from that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SurveyedVariable {
    pub name: String,
    /// The name of its class.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Of a text or container of Python's own; the rows of a DataFrame.
    pub length: Option<u32>,
    /// Of a DataFrame: bytes of its arrays.
    #[serde(default)]
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number | null"))]
    pub memory: Option<u64>,
    /// Of a DataFrame: the first of them, as far as their names are texts.
    pub columns: Vec<SurveyedColumn>,
}

/// A column of a DataFrame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SurveyedColumn {
    pub name: String,
    pub kind: ColumnKind,
    /// The contents of some rows of it, where that can be told without running code of the user's.
    #[serde(default)]
    pub sample: Option<ColumnSample>,
}

/// The contents of the first rows of a column, and of others that are as far apart as they can be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ColumnSample {
    /// The number of rows that were looked at.
    pub rows: u32,
    /// In how many of them there is no value.
    pub nulls: u32,
    /// The number of different values in the others.
    pub distinct: u32,
    /// The most frequent of these, as far as they are texts.
    pub texts: Vec<String>,
}

/// A column's kind of contents, as far as that matters to what is asked of it.
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

/// A guest's facts and abilities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GuestInfo {
    /// The way Python waits for the host: `atomics`, `jspi` or `none`.
    pub bridge: String,
    /// True when running code can be stopped with its state kept.
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

/// The way an execution ended, as the guest tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExecutionReport {
    /// The way it ended: by an exception or not, and of what kind.
    pub ended: Ended,
    /// The exception's class name.
    pub error_type: Option<String>,
    /// Why the guest interrupted it, if it did.
    pub stopped: Option<StopReason>,
    /// True when a final answer was declared; it is the body.
    #[serde(rename = "final")]
    pub has_final: bool,
    /// The user's variables, when they are not the same as the last time.
    pub names: Option<Vec<String>>,
    /// Rich outputs that were too many or too large to be sent.
    #[serde(default)]
    pub omitted_displays: u32,
    /// The files of the working folder that it changed.
    #[serde(default)]
    pub files: Vec<FileChange>,
    /// The number of those that it changed beyond these.
    #[serde(default)]
    pub omitted_files: u32,
}

/// The way the code of an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Ended {
    /// It ran to its end.
    Ok,
    /// An exception ended it.
    Error,
    /// A limit ended it.
    Limit,
}
