//! Stateless runs: each has a guest of its own, and can start from the state of an earlier run.
//!
//! The request and the response are those of known stateless REPL servers, so their clients work here.
//! `python/sandglass/native/delimiter.py` gives the same answers over standard input and output.
//!
//! Decisions: `docs/internals/server.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandglass_core::execution::{Change, CodeExecution, LostVariable, Outcome};
use sandglass_core::{Error, Limits};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::guest::Guest;
use crate::launcher::{BackendKind, Launcher};
use crate::sandbox::{Captured, ExecuteOptions, Sandbox};
use futures_util::future::BoxFuture;

/// The exit code of a run whose time was up, as of timeout(1).
pub const TIMED_OUT: i32 = 124;
/// The exit code of a killed run, as shells have it.
pub const KILLED: i32 = 137;

/// The reason why there is no state when there are no variables.
const NO_VARIABLES: &str = "the guest was ended, or nothing was run: error says why";
/// The least milliseconds for code after its state was opened.
const LEAST_MS: f64 = 1.0;

/// A request to run code.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The source.
    pub code: String,
    /// The state of an earlier run: base64 of an LZ4 frame of a cloudpickle. It is opened in the guest only.
    #[serde(default)]
    pub state: Option<String>,
    /// True when the response is to hold the state.
    #[serde(default)]
    pub capture_state: bool,
    /// Seconds of guest time, including the opening of the state. By default the server's `timeout`.
    #[serde(default)]
    pub timeout: Option<f64>,
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The text printed.
    pub stdout: String,
    /// The text written to `sys.stderr`, and the traceback.
    pub stderr: String,
    /// 0 on success, 1 after an exception, 124 after a timeout, 137 when the guest was killed.
    pub exit_code: i32,
    /// The variables, if they were asked for and could be pickled.
    pub state: Option<String>,
    /// The files that the code created or changed, relative to the working folder.
    pub files: Vec<String>,
    /// The exception's last line, or why there is no state.
    pub error: Option<String>,
    /// The reason why there is no state although the request asked for it.
    pub state_error: Option<String>,
    /// The variables that the state lacks, with the reasons.
    pub state_lost: Vec<LostVariable>,
}

/// A file from a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFile {
    /// The file's path, relative to the working folder.
    pub path: String,
    /// The file's contents.
    pub data: Vec<u8>,
}

/// The bounds of a run.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The limits of the run's session.
    pub limits: Limits,
    /// Bytes of a state, unpacked.
    pub max_state_bytes: u64,
    /// Bytes of all files that are fetched from the guest after the run.
    pub max_file_bytes: u64,
    /// The time to fetch the state and all files after the run.
    pub afterwards: Duration,
}

/// Runs code in a new guest, which is destroyed afterwards.
///
/// # Errors
/// No guest can be had. Every other failure is in the response.
pub async fn run(
    launcher: Arc<dyn Launcher>,
    bounds: &Bounds,
    request: Request,
) -> Result<(Response, Vec<RunFile>), Error> {
    let guest = Arc::new(OneGuest {
        launcher,
        started: AtomicBool::new(false),
    });
    let sandbox = Sandbox::builder()
        .launcher(Arc::clone(&guest) as Arc<dyn Launcher>)
        .limits(bounds.limits.clone())
        .without_context()
        .build()
        .await?;
    sandbox.start().await?;
    guest.started.store(true, Ordering::Relaxed);
    let is_captured = request.capture_state;
    let mut answer = answer(&sandbox, bounds, request).await;
    if let (true, Ok((response, _))) = (is_captured, &mut answer)
        && response.state.is_none()
    {
        response.state_error.get_or_insert_with(|| NO_VARIABLES.to_owned());
    }
    // The response does not wait until the guest is gone.
    tokio::spawn(async move { sandbox.destroy().await });
    answer
}

/// A launcher that succeeds once. A second guest would lack the run's state, but would be asked for the state as if it had it.
struct OneGuest {
    launcher: Arc<dyn Launcher>,
    started: AtomicBool,
}

impl Launcher for OneGuest {
    fn kind(&self) -> BackendKind {
        self.launcher.kind()
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        if self.started.load(Ordering::Relaxed) {
            return Box::pin(async { Err(Error::BootFailed("a run has one guest only".to_owned())) });
        }
        self.launcher.launch()
    }
}

/// Refuses a state of which a variable cannot be had: code may rely on it.
fn all_of(opened: Result<Vec<LostVariable>, Error>) -> Result<(), Error> {
    match opened?.first() {
        Some(LostVariable { name, reason }) => {
            let why = format!("its variable {name} cannot be had here: {reason}; nothing was run");
            Err(Error::invalid("state", why))
        }
        None => Ok(()),
    }
}

async fn answer(sandbox: &Sandbox, bounds: &Bounds, request: Request) -> Result<(Response, Vec<RunFile>), Error> {
    let timeout_ms = request
        .timeout
        .map_or(bounds.limits.timeout_ms, |seconds| seconds * 1_000.0);
    let begin = Instant::now();
    if let Some(state) = request.state {
        // The state is decoded from base64 here, and opened only in the guest.
        let opened = match STANDARD.decode(state) {
            Ok(state) => all_of(sandbox.open_state(state, bounds.max_state_bytes).await),
            Err(_) => Err(Error::invalid("state", "is no base64; nothing was run")),
        };
        if let Err(error) = opened {
            let exit_code = match &error {
                Error::Timeout(_) => TIMED_OUT,
                error if is_gone(error) => KILLED,
                _ => 1,
            };
            return Ok((not_run("StateError", &error, exit_code), Vec::new()));
        }
    }
    let left_ms = timeout_ms - begin.elapsed().as_secs_f64() * 1_000.0;
    let options = ExecuteOptions {
        timeout_ms: Some(left_ms.max(LEAST_MS)),
        ..ExecuteOptions::default()
    };
    let execution = match sandbox.execute_with(request.code, options).await {
        Ok(execution) => execution,
        Err(error @ (Error::InvalidOption { .. } | Error::NotSerializable(_))) => {
            return Ok((not_run("RequestError", &error, 1), Vec::new()));
        }
        Err(error) if is_gone(&error) => return Ok((not_run("RunError", &error, KILLED), Vec::new())),
        Err(error) => return Err(error),
    };
    let mut response = respond(&execution.run);
    if execution.state.status != sandglass_core::execution::StateStatus::Kept {
        return Ok((response, Vec::new()));
    }
    // Writing the state and reading files may run the user's code too.
    let deadline = Instant::now() + bounds.afterwards;
    if request.capture_state {
        let captured = timeout_at(deadline, sandbox.capture_state(bounds.max_state_bytes)).await;
        match captured.unwrap_or_else(|_| Err(Error::Timeout("it could not be written in time".to_owned()))) {
            Ok(Captured { state, lost }) => {
                response.state = Some(STANDARD.encode(state));
                response.state_lost = lost;
            }
            Err(error) => {
                let why = match error {
                    error if is_gone(&error) => "the guest was lost after the code had run".to_owned(),
                    Error::NotSerializable(why) => why,
                    other => other.to_string(),
                };
                response
                    .error
                    .get_or_insert_with(|| format!("State serialization failed: {why}"));
                response.state_error = Some(why);
            }
        }
    }
    let mut left = bounds.max_file_bytes;
    let mut files = Vec::new();
    for path in &response.files {
        let size = execution
            .files
            .iter()
            .find(|file| file.path == *path)
            .map(|file| file.size);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let fits = size.is_some_and(|size| size <= left as f64);
        if fits
            && let Ok(Ok(data)) = timeout_at(deadline, sandbox.read_file(path.clone())).await
            && let Some(rest) = left.checked_sub(data.len() as u64)
        {
            left = rest;
            files.push(RunFile {
                path: path.clone(),
                data,
            });
        }
    }
    Ok((response, files))
}

/// Returns true when the run's guest has ended.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::GuestLost(_) | Error::Protocol(_) | Error::BootFailed(_))
}

/// The response for code that was not run.
fn not_run(kind: &str, error: &Error, exit_code: i32) -> Response {
    let error = match error {
        error if is_gone(error) => format!("{kind}: the guest was lost before the code began"),
        error => format!("{kind}: {error}"),
    };
    Response {
        stderr: format!("{error}\n"),
        exit_code,
        error: Some(error),
        ..Response::default()
    }
}

/// The response for an execution.
fn respond(execution: &CodeExecution) -> Response {
    let gone = execution.state.status != sandglass_core::execution::StateStatus::Kept;
    let exit_code = match execution.outcome {
        Outcome::Ok => 0,
        Outcome::Timeout => TIMED_OUT,
        _ if gone => KILLED,
        _ => 1,
    };
    let mut error = execution.error.clone();
    // There is no state to speak of, and no other cell.
    if let (Outcome::Timeout, Some(error)) = (execution.outcome, &mut error) {
        error.truncate(error.find(';').unwrap_or(error.len()));
    }
    let mut stderr = execution.stderr.clone();
    let traceback = execution
        .traceback
        .as_deref()
        .filter(|_| execution.outcome == Outcome::Error)
        .map(|text| text.replace("File \"<cell 1>\"", "File \"<string>\""));
    match (&mut error, traceback) {
        (Some(error), Some(traceback)) if is_syntax_error(execution.error_type.as_deref()) => {
            if let Some(at) = error.rfind(" (<cell 1>, line ") {
                error.truncate(at);
            }
            stderr.push_str(error);
            if let Some(line) = line_of(&traceback) {
                stderr.push_str(&format!(" (line {line})"));
            }
        }
        (_, Some(traceback)) => stderr.push_str(traceback.trim_end_matches('\n')),
        (Some(error), None) => {
            stderr.push_str(error);
            stderr.push('\n');
        }
        (None, None) => {}
    }
    let changed = execution.files.iter().filter(|file| file.change != Change::Deleted);
    Response {
        stdout: execution.stdout.clone(),
        stderr,
        exit_code,
        state: None,
        files: changed.map(|file| file.path.clone()).collect(),
        error,
        state_error: None,
        state_lost: Vec::new(),
    }
}

fn is_syntax_error(error_type: Option<&str>) -> bool {
    matches!(error_type, Some("SyntaxError" | "IndentationError" | "TabError"))
}

/// The line number in the code that a traceback's last entry names.
fn line_of(traceback: &str) -> Option<u32> {
    let at = traceback.rfind("File \"<string>\", line ")?;
    let rest = &traceback[at + "File \"<string>\", line ".len()..];
    let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}
