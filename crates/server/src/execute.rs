//! Executions: one answer at the end, or a stream of outputs followed by the same answer.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sandglass_core::predictions::Lines;
use sandglass_core::{Error, Limits};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::App;
use super::bodies::{self, Taken, sized, take_json};
use super::errors::ApiError;
use super::kept::KeptSandboxes;
use super::kept_sessions::not_kept;
use super::own_session::{OwnId, OwnSession};
use super::quotas::{Account, Held};
use super::sessions::{InUse, Kind, Known, Session};
use super::sharing;
use super::suspension::{kept_taken_over, taken_over};
use sandglass_host::kept::ResumeOptions;
use sandglass_host::sandbox::{ExecuteOptions, Execution};
use sandglass_host::traces::{self, InTrace, Span, SpanKind};
use sandglass_host::{Outcome, Stream, Value};

/// Bytes of events that wait for a client. Further events are left out.
const MOST_WAITING_BYTES: usize = 8 << 20;
/// The interval of signs of life in a stream without events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The body of a request to execute code.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    code: String,
    /// The timeout in milliseconds of guest time.
    timeout: Option<f64>,
}

/// `POST /v1/sessions/{id}/execute`.
pub async fn execute(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let in_use = session.enter()?;
    let place = account.execution()?;
    let Taken { value: run, held, .. } = take_json::<Run>(&account, app.args.body_limits(), &headers, body).await?;
    check_timeout(&app, run.timeout)?;
    if let Some(folder) = session.folder() {
        folder.room().await?;
    }
    let execution = Running {
        app,
        session,
        work: Work::Execute(run),
        client: CancellationToken::new(),
        _kept: (in_use, place, held),
    };
    answered(execution, &headers).await
}

/// The body of a request to go on with the pending execution.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// Answers to calls that wait, by their ids.
    #[serde(default)]
    answers: Map<String, Json>,
}

/// `POST /v1/sessions/{id}/resume`.
pub async fn go_on(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let in_use = session.enter()?;
    let place = account.execution()?;
    let Taken { value, size, held } = take_json::<Resume>(&account, app.args.body_limits(), &headers, body).await?;
    let answers = move || {
        let answers = value.answers.into_iter();
        let answers = answers.map(|(id, answer)| Ok((id, Value::from_json(answer)?)));
        answers.collect::<Result<Vec<_>, Error>>()
    };
    let answers = sized(size, answers).await??;
    let execution = Running {
        app,
        session,
        work: Work::Resume(answers),
        client: CancellationToken::new(),
        _kept: (in_use, place, held),
    };
    answered(execution, &headers).await
}

/// The response of an execution: events as they come, or one answer at the end.
async fn answered(execution: Running, headers: &HeaderMap) -> Result<Response, ApiError> {
    if wants_events(headers) {
        return Ok(execution.stream());
    }
    // If the client leaves, this future is dropped, which interrupts the code unless it goes on by itself.
    let execution = match execution.outlives() {
        true => execution.go_on_by_itself().await?,
        false => execution.run(ExecuteOptions::default()).await?,
    };
    bodies::json(StatusCode::OK, size_of(&execution), execution).await
}

/// Runs code in a session of this key, within the server's limits. The session's folder was measured before, if there is one.
pub async fn run(
    app: App,
    account: &Account,
    session: Arc<Session>,
    code: String,
    options: ExecuteOptions,
) -> Result<Execution, ApiError> {
    check_timeout(&app, options.timeout_ms)?;
    let timeout = options.timeout_ms;
    let execution = Running {
        work: Work::Execute(Run { code, timeout }),
        client: CancellationToken::new(),
        _kept: (session.used(), account.execution()?, Vec::new()),
        app,
        session,
    };
    execution.run(options).await
}

/// Goes on with the pending execution of a session with a kept sandbox.
pub async fn resume(
    app: App,
    account: &Account,
    session: Arc<Session>,
    options: ResumeOptions,
) -> Result<Execution, ApiError> {
    let execution = Running {
        work: Work::Resume(options.answers),
        client: CancellationToken::new(),
        _kept: (session.used(), account.execution()?, Vec::new()),
        app,
        session,
    };
    execution.run(options.execute).await
}

pub fn check_timeout(app: &App, timeout: Option<f64>) -> Result<(), ApiError> {
    let most_ms = app.args.max_timeout_seconds * 1_000.0;
    match timeout {
        Some(ms) if ms > most_ms => {
            let problem = format!("may be {most_ms} ms at most on this server");
            Err(ApiError::option("timeout", problem))
        }
        Some(ms) => Ok(Limits::default().set("timeout", ms)?),
        None => Ok(()),
    }
}

/// The body of a hint: code that the client expects to execute next.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hint {
    /// Predictions, the likeliest first.
    codes: Option<Vec<String>>,
    /// The complete part of code that is being written, and the `timeout` of its execution.
    written: Option<String>,
    timeout: Option<f64>,
    /// The newest text of the conversation.
    conversation: Option<String>,
}

/// `POST /v1/sessions/{id}/hint`.
pub async fn hint(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _in_use = session.enter()?;
    let _place = account.execution()?; // none runs ahead either where no more may run
    let Taken { value: hint, .. } = take_json::<Hint>(&account, app.args.body_limits(), &headers, body).await?;
    let Hint {
        codes,
        written,
        timeout,
        conversation,
    } = hint;
    check_timeout(&app, timeout)?;
    if codes.is_none() && written.is_none() && conversation.is_none() {
        let problem = "must be there, or \"written\", or \"conversation\"";
        return Err(ApiError::option("codes", problem));
    }
    let Some(sandbox) = session.current() else {
        return Ok(StatusCode::NO_CONTENT.into_response()); // it has no guest, and a kept sandbox runs nothing ahead
    };
    if let Some(text) = conversation {
        sandbox.update_conversation(text);
    }
    if let Some(code) = written {
        let complete = Lines::default().complete(&code);
        // The begin of a line predicts nothing yet.
        if code.is_empty() || !complete.is_empty() {
            sandbox.written(complete, timeout);
        }
    }
    if let Some(codes) = codes {
        sandbox.hint(codes);
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `POST /v1/sessions/{id}/interrupt`.
pub async fn interrupt(State(app): State<App>, OwnId(id, account): OwnId) -> Result<Response, ApiError> {
    sharing::look_up(&app, &account, &id).await?;
    // Nothing runs in a session that is suspended, or moves.
    match app.sessions.of(&account.owner, &id) {
        Ok((Known::Awake(session), None)) => {
            let _in_use = session.enter()?;
            session.interrupt();
        }
        Ok(_) => {}
        Err(error) => drop(KeptSandboxes::find(&app, &account, &id).await?.ok_or(error)?),
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|accepted| {
            accepted
                .split(';')
                .next()
                .is_some_and(|name| name.trim() == "text/event-stream")
        })
}

pub(super) fn size_of(execution: &Execution) -> usize {
    let run = &execution.run;
    let displays: usize = run.displays.iter().map(|display| display.data.len()).sum();
    // The final value may have any size.
    let last = if execution.final_answer.is_some() {
        usize::MAX / 2
    } else {
        0
    };
    run.code.len() + run.stdout.len() + run.stderr.len() + displays + last
}

/// Tells a span of an execution's end. Code and output are never in it.
fn describe(span: &Span, execution: &Execution) {
    if !traces::is_enabled() {
        return;
    }
    let word = |value: serde_json::Result<Json>| value.ok().and_then(|word| word.as_str().map(str::to_owned));
    let outcome = word(serde_json::to_value(execution.outcome)).unwrap_or_default();
    let state = word(serde_json::to_value(execution.state.status)).unwrap_or_default();
    span.set("sandglass.execution.id", i64::from(execution.id));
    span.set("sandglass.execution.guest_time_ms", execution.guest_time);
    span.set("sandglass.execution.host_calls", i64::from(execution.host_calls));
    span.set("sandglass.state.status", state);
    if execution.outcome != Outcome::Ok {
        span.failed(outcome.clone());
    }
    span.set("sandglass.execution.outcome", outcome);
}

/// The code to run.
enum Work {
    Execute(Run),
    /// The pending execution, with answers to its calls.
    Resume(Vec<(String, Value)>),
}

/// An execution with its permits.
struct Running {
    app: App,
    session: Arc<Session>,
    work: Work,
    /// Cancelled when the client has left. Then code that still waits for its turn never runs.
    client: CancellationToken,
    _kept: (InUse, Held, Vec<Held>),
}

impl Running {
    /// Returns true if the execution goes on when its client leaves: somebody can have its result later.
    fn outlives(&self) -> bool {
        matches!(self.session.kind, Kind::Kept { recipe: Some(_), .. })
    }

    /// Runs in a task of its own, which goes on when this future is dropped.
    async fn go_on_by_itself(self) -> Result<Execution, ApiError> {
        let _client = self.client.clone().drop_guard();
        let up = self.app.outliving.up();
        let running = async move {
            let execution = self.run(ExecuteOptions::default()).await;
            drop(up);
            execution
        };
        let running = tokio::spawn(running.with_current_context());
        let ended = running.await;
        ended.map_err(|error| ApiError::internal(format!("the execution has failed: {error}")))?
    }

    /// Runs, within a span.
    async fn run(self, options: ExecuteOptions) -> Result<Execution, ApiError> {
        let span = Span::begin("execute", SpanKind::Internal);
        span.set("sandglass.session.id", self.session.id.clone());
        let execution = self.carry_out(options).with_context(span.context()).await;
        match &execution {
            Ok(execution) => describe(&span, execution),
            Err(error) => span.failed(error.code),
        }
        execution
    }

    async fn carry_out(self, mut options: ExecuteOptions) -> Result<Execution, ApiError> {
        let began = Instant::now();
        let _turn = tokio::select! {
            biased;
            () = self.client.cancelled() => return Err(ApiError::invalid("the client left before its code began; nothing was done")),
            turn = self.session.turn() => turn?,
        };
        let _runs = self.session.runs();
        let execution = match (&self.session.kind, self.work) {
            (Kind::Kept { kept, .. }, Work::Execute(Run { code, timeout })) => {
                options.timeout_ms = timeout;
                kept.execute_with(code, options).await
            }
            (Kind::Kept { kept, .. }, Work::Resume(answers)) => {
                let execute = options;
                kept.resume(ResumeOptions { answers, execute }).await
            }
            (Kind::Sandbox(sandbox), Work::Execute(Run { code, timeout })) => {
                options.timeout_ms = timeout;
                let running = sandbox.execute_with(code, options);
                match self.session.folder() {
                    Some(folder) => folder.bound(sandbox, running).await,
                    None => running.await,
                }
            }
            (Kind::Sandbox(_) | Kind::Channel { .. }, _) => return Err(not_kept("resume")),
        };
        match &execution {
            Ok(execution) => {
                let outcome = serde_json::to_value(execution.outcome).unwrap_or_default();
                self.app
                    .metrics
                    .execution(outcome.as_str().unwrap_or("none"), began.elapsed());
                if execution.state.status == sandglass_host::StateStatus::Lost {
                    self.app.metrics.lost_guest();
                }
            }
            Err(error) => self.app.metrics.execution(error.code(), began.elapsed()),
        }
        let is_kept = match &self.session.kind {
            Kind::Sandbox(sandbox) => {
                if let Ok(stats) = sandbox.stats().await {
                    self.session.count(&stats, &self.app.metrics);
                }
                false
            }
            _ => true, // it runs nothing ahead
        };
        if sharing::is_taken(&self.app, &self.session).await {
            return Err(match execution {
                Err(taken @ Error::PersistInUse(_)) => taken.into(), // it tells if the code ran
                _ if is_kept => kept_taken_over(&self.session.id),
                _ => taken_over(&self.session.id),
            });
        }
        match execution {
            Err(Error::Destroyed) if self.app.sessions.are_closed() => Err(match is_kept {
                true => ApiError::left_pending(),
                false => ApiError::cut_short(),
            }),
            execution => Ok(execution?),
        }
    }

    /// Streams server-sent events: `stdout`, `stderr` and `display` as they come, then `result` or `error`.
    fn stream(self) -> Response {
        let (sender, receiver) = unbounded_channel();
        let events = Events {
            sender,
            waiting: Arc::default(),
            skipped: Arc::default(),
        };
        let waiting = Arc::clone(&events.waiting);
        let (outlives, client, up) = (self.outlives(), self.client.clone(), self.app.outliving.up());
        let telling = async move {
            self.tell(events).await;
            drop(up);
        };
        let task = tokio::spawn(telling.with_current_context());
        let source = Source {
            receiver,
            waiting,
            task: (!outlives).then_some(task),
            _client: client.drop_guard(),
        };
        let body = stream::unfold(source, |mut source| async move {
            let bytes = source.next().await?;
            Some((Ok::<_, Infallible>(bytes), source))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        // This header stops proxies from collecting the events.
        (headers, [("x-accel-buffering", "no")], Body::from_stream(body)).into_response()
    }

    async fn tell(self, events: Events) {
        let options = ExecuteOptions {
            on_output: Some({
                let events = events.clone();
                Arc::new(move |stream, text| events.output(stream, text))
            }),
            on_display: Some({
                let events = events.clone();
                Arc::new(move |display, _| events.display(display))
            }),
            ..ExecuteOptions::default()
        };
        match self.run(options).await {
            Ok(execution) => {
                let text = sized(size_of(&execution), move || event("result", &json!(execution))).await;
                events.send(text.unwrap_or_else(|error| event("error", &error.to_json())));
            }
            Err(error) => events.send(event("error", &error.to_json())),
        }
    }
}

/// One server-sent event. Its JSON has no line breaks.
fn event(name: &str, data: &Json) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// The sender of an execution's events.
#[derive(Clone)]
struct Events {
    sender: UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Characters of stdout and stderr that were left out since the last event.
    skipped: Arc<Mutex<[usize; 2]>>,
}

impl Events {
    fn output(&self, stream: Stream, text: &str) {
        let (name, index) = match stream {
            Stream::Stdout => ("stdout", 0),
            Stream::Stderr => ("stderr", 1),
            _ => return,
        };
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        let [stdout, stderr] = &mut *skipped;
        let skipped = if index == 0 { stdout } else { stderr };
        if self.is_full(text.len()) {
            *skipped += text.chars().count();
            return;
        }
        let mut data = json!({ "text": text });
        if let (1.., Some(data)) = (*skipped, data.as_object_mut()) {
            data.insert("skipped".to_owned(), json!(std::mem::take(skipped)));
        }
        self.send(event(name, &data));
    }

    fn display(&self, display: &sandglass_core::execution::Display) {
        if !self.is_full(display.data.len()) {
            self.send(event("display", &json!(display)));
        }
    }

    fn is_full(&self, more: usize) -> bool {
        self.waiting.load(Ordering::Relaxed).saturating_add(more) > MOST_WAITING_BYTES
    }

    fn send(&self, event: Bytes) {
        self.waiting.fetch_add(event.len(), Ordering::Relaxed);
        // The client may have left.
        let _ = self.sender.send(event);
    }
}

/// The stream that the client reads. Dropping it interrupts the execution, because the client has left, unless it goes on by itself.
struct Source {
    receiver: UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// `None` if the execution goes on by itself.
    task: Option<JoinHandle<()>>,
    _client: DropGuard,
}

impl Source {
    async fn next(&mut self) -> Option<Bytes> {
        match tokio::time::timeout(KEEP_ALIVE, self.receiver.recv()).await {
            Ok(event) => {
                let event = event?;
                self.waiting.fetch_sub(event.len(), Ordering::Relaxed);
                Some(event)
            }
            Err(_) => Some(Bytes::from_static(b": still running\n\n")),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
