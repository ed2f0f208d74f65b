//! The running kernel. Requests on `shell` are handled one after the other, and requests on `control` at any time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jupyter_protocol::{ExecuteRequest, JupyterMessage, JupyterMessageContent as Content, UnknownMessage};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;

use super::cell::{Cell, Ended, Failure, evaluate};
use super::cell_history::History;
use super::input::Input;
use super::wire::{Channels, Publisher, Sender, Wire, problem};
use super::{CellsArgs, RunArgs, completion};
use sandglass_host::complete::{State, state};
use sandglass_host::sandbox::Sandbox;

/// The variable that tells a kernel the process id of its parent.
const PARENT: &str = "JPY_PARENT_PID";
/// The interval between two checks for the parent process.
const LOOK_AT_PARENT: Duration = Duration::from_secs(1);
/// The time for the sandbox to end.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const ENDS: &str = "the kernel is being shut down";
/// Most user expressions that are evaluated with a cell.
const MOST_EXPRESSIONS: usize = 100;

/// Runs a kernel until it is shut down, or until its parent process is gone.
pub(super) async fn run(args: RunArgs) -> Result<u8, String> {
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let (wire, channels) = Wire::open(&args.connection_file).await?;
    let Channels {
        shell,
        control,
        stdin,
        iopub,
    } = channels;
    let kernel = Kernel {
        cells: args.cells,
        input: Arc::new(Input::new(stdin.replies)),
        iopub,
        sandbox: Mutex::default(),
        starting: tokio::sync::Mutex::default(),
        ends: AtomicBool::new(false),
    };
    kernel
        .iopub
        .announce("status", json!({ "execution_state": "starting" }));
    tokio::select! {
        () = serve_shell(&kernel, shell.requests, &shell.replies) => {}
        () = serve_control(&kernel, control.requests, &control.replies) => {}
        () = take_answers(&kernel, stdin.requests) => {}
        () = interrupts(&kernel) => {}
        () = orphaned() => {}
        _ = terminated.recv() => {}
    }
    kernel.end().await;
    wire.close().await;
    Ok(0)
}

struct Kernel {
    cells: CellsArgs,
    input: Arc<Input>,
    iopub: Publisher,
    sandbox: Mutex<Option<Sandbox>>,
    /// A lock, held while a sandbox is made.
    starting: tokio::sync::Mutex<()>,
    /// True when no further sandbox may be made.
    ends: AtomicBool,
}

/// The state of the `shell` channel.
#[derive(Default)]
struct Session {
    count: u32,
    history: History,
    /// Notes on the variables' fate that no cell has shown yet.
    untold: Vec<String>,
}

/// The consequence of a request.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    /// Do not run cells that already wait.
    Abort,
    End,
}

impl Kernel {
    fn sandbox(&self) -> Option<Sandbox> {
        let sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        sandbox.clone()
    }

    /// The sandbox, made now if there is none: an earlier attempt failed for a reason that may be gone.
    async fn start(&self) -> Result<Sandbox, String> {
        let _starting = self.starting.lock().await;
        if let Some(sandbox) = self.sandbox() {
            return Ok(sandbox);
        }
        if self.ends.load(Ordering::SeqCst) {
            return Err(ENDS.to_owned());
        }
        let made = self.cells.sandbox(&self.input).await?;
        if self.ends.load(Ordering::SeqCst) {
            made.destroy().await;
            return Err(ENDS.to_owned());
        }
        *self.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        Ok(made)
    }

    fn interrupt(&self) {
        if let Some(sandbox) = self.sandbox() {
            sandbox.interrupt();
        }
    }

    /// Ends the sandbox, and also one that is being made.
    async fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        // Waits for a sandbox that is being made. Its maker ends it.
        let _starting = tokio::time::timeout(GONE_WITHIN, self.starting.lock()).await;
        let sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sandbox) = sandbox
            && tokio::time::timeout(GONE_WITHIN, sandbox.destroy()).await.is_err()
        {
            tracing::warn!("the sandbox did not end in time");
        }
    }

    fn is_busy(&self, is: bool, request: &JupyterMessage) {
        let state = if is { "busy" } else { "idle" };
        self.iopub.send("status", json!({ "execution_state": state }), request);
    }

    fn info(&self) -> Value {
        let told = self.sandbox().map(|sandbox| sandbox.capabilities());
        let (version, place) = told.map_or_else(
            || ("3".to_owned(), "no guest yet".to_owned()),
            |told| (told.python.unwrap_or_else(|| "3".to_owned()), told.backend.to_string()),
        );
        let own = env!("CARGO_PKG_VERSION");
        json!({
            "status": "ok",
            "protocol_version": "5.4",
            "implementation": "sandglass",
            "implementation_version": own,
            "banner": format!("Sandglass {own}: Python {version} in a sandbox ({place})"),
            "language_info": {
                "name": "python",
                "version": version,
                "mimetype": "text/x-python",
                "file_extension": ".py",
                "pygments_lexer": "python3",
                "codemirror_mode": { "name": "python", "version": 3 },
                "nbconvert_exporter": "python",
            },
            "debugger": false,
            "supported_features": [],
            "help_links": [{ "text": "Python", "url": "https://docs.python.org/3/" }],
        })
    }

    async fn execute(
        &self,
        session: &mut Session,
        request: &Arc<JupyterMessage>,
        asked: &ExecuteRequest,
    ) -> (Value, Next) {
        let is_kept = asked.store_history && !asked.silent;
        let is_blank = asked.code.trim().is_empty();
        if is_kept && !is_blank {
            session.count += 1;
        }
        let count = session.count;
        if !asked.silent {
            let content = json!({ "code": asked.code, "execution_count": count });
            self.iopub.send("execute_input", content, request);
        }
        let cell = Cell {
            iopub: self.iopub.clone(),
            request: Arc::clone(request),
            count,
            silent: asked.silent,
            trusted: self.cells.trust_output,
        };
        let mut expressions = Map::new();
        let ended = if is_blank && asked.user_expressions.as_ref().is_none_or(|all| all.is_empty()) {
            Ended::default()
        } else {
            match self.start().await {
                Ok(sandbox) => {
                    self.input.set_cell(asked.allow_stdin.then(|| Arc::clone(request)));
                    let mut ended = if is_blank {
                        Ended::default()
                    } else {
                        cell.run(&sandbox, &asked.code).await
                    };
                    self.input.set_cell(None);
                    session.untold.append(&mut ended.notes);
                    if ended.failure.is_none() {
                        for (name, text) in asked.user_expressions.iter().flatten().take(MOST_EXPRESSIONS) {
                            let (value, mut notes) = evaluate(&sandbox, text).await;
                            expressions.insert(name.clone(), value);
                            session.untold.append(&mut notes);
                        }
                    }
                    cell.tell(&mut session.untold);
                    ended
                }
                Err(why) => {
                    let ended = Ended {
                        failure: Some(Failure::of_sandbox(&why)),
                        ..Ended::default()
                    };
                    cell.show_failure(&ended);
                    ended
                }
            }
        };
        if is_kept && !is_blank {
            session.history.add(count, &asked.code, ended.result.as_deref());
        }
        let mut reply = json!({
            "status": "ok",
            "execution_count": count,
            "payload": [],
            "user_expressions": expressions,
        });
        let Some(failure) = ended.failure else {
            return (reply, Next::GoOn);
        };
        if let Value::Object(reply) = &mut reply {
            reply.insert("status".to_owned(), json!("error"));
            reply.extend(failure.content());
        }
        (reply, if asked.stop_on_error { Next::Abort } else { Next::GoOn })
    }
}

async fn serve_shell(kernel: &Kernel, mut requests: Receiver<JupyterMessage>, replies: &Sender) {
    let mut session = Session::default();
    if let Err(why) = kernel.start().await {
        tracing::warn!(%why, "there is no guest yet");
    }
    let mut waiting = VecDeque::new();
    loop {
        let request = match waiting.pop_front() {
            Some(request) => request,
            None => match requests.recv().await {
                Some(request) => request,
                None => return,
            },
        };
        // Requests that arrive after the reply are not among those that wait.
        let mut collect = || {
            while let Ok(request) = requests.try_recv() {
                waiting.push_back(request);
            }
        };
        match answer(kernel, &mut session, request, replies, &mut collect).await {
            Next::GoOn => {}
            Next::End => return,
            Next::Abort => {
                for request in std::mem::take(&mut waiting) {
                    if matches!(request.content, Content::ExecuteRequest(_)) {
                        kernel.is_busy(true, &request);
                        let content = json!({ "status": "aborted", "execution_count": session.count });
                        replies.send("execute_reply", content, &request);
                        kernel.is_busy(false, &request);
                    } else {
                        waiting.push_back(request);
                    }
                }
            }
        }
    }
}

async fn serve_control(kernel: &Kernel, mut requests: Receiver<JupyterMessage>, replies: &Sender) {
    while let Some(request) = requests.recv().await {
        kernel.is_busy(true, &request);
        let next = match &request.content {
            Content::InterruptRequest(_) => {
                kernel.interrupt();
                replies.send("interrupt_reply", json!({ "status": "ok" }), &request);
                Next::GoOn
            }
            Content::DebugRequest(_) => {
                let failure = Failure::of_sandbox("this kernel has no debugger").content();
                let mut content = json!({ "status": "error", "success": false });
                if let Value::Object(content) = &mut content {
                    content.extend(failure);
                }
                replies.send("debug_reply", content, &request);
                Next::GoOn
            }
            _ => anywhere(kernel, &request, replies).await,
        };
        kernel.is_busy(false, &request);
        if next == Next::End {
            return;
        }
    }
}

/// Answers a request of the `shell` channel. After a failed cell it first collects the requests that already wait.
async fn answer(
    kernel: &Kernel,
    session: &mut Session,
    request: JupyterMessage,
    replies: &Sender,
    collect: &mut impl FnMut(),
) -> Next {
    let request = Arc::new(request);
    kernel.is_busy(true, &request);
    let mut next = Next::GoOn;
    let reply = match &request.content {
        Content::ExecuteRequest(asked) => {
            let reply;
            (reply, next) = kernel.execute(session, &request, asked).await;
            Some(("execute_reply", reply))
        }
        Content::CompleteRequest(asked) => {
            let found = completion::complete(kernel.sandbox().as_ref(), asked).await;
            Some(("complete_reply", found))
        }
        Content::InspectRequest(asked) => {
            let found = completion::inspect(kernel.sandbox().as_ref(), asked).await;
            Some(("inspect_reply", found))
        }
        Content::IsCompleteRequest(asked) => Some(("is_complete_reply", completeness(&asked.code))),
        Content::HistoryRequest(asked) => {
            let found = session.history.find(asked);
            Some(("history_reply", json!({ "status": "ok", "history": found })))
        }
        Content::CommInfoRequest(_) => Some(("comm_info_reply", json!({ "status": "ok", "comms": {} }))),
        Content::CommOpen(opened) => {
            // Comms are not supported. Closing the comm tells the front end so.
            let content = json!({ "comm_id": opened.comm_id, "data": {} });
            kernel.iopub.send("comm_close", content, &request);
            None
        }
        _ => {
            next = anywhere(kernel, &request, replies).await;
            None
        }
    };
    if next == Next::Abort {
        collect();
    }
    if let Some((kind, content)) = reply {
        replies.send(kind, content, &request);
    }
    kernel.is_busy(false, &request);
    next
}

/// Answers a request that may come on either channel. An unknown request gets no answer.
async fn anywhere(kernel: &Kernel, request: &JupyterMessage, replies: &Sender) -> Next {
    match &request.content {
        Content::KernelInfoRequest(_) => {
            replies.send("kernel_info_reply", kernel.info(), request);
            Next::GoOn
        }
        Content::ShutdownRequest(asked) => {
            kernel.end().await;
            let content = json!({ "status": "ok", "restart": asked.restart });
            replies.send("shutdown_reply", content.clone(), request);
            // For front ends that did not send this request.
            kernel.iopub.send("shutdown_reply", content, request);
            Next::End
        }
        Content::UnknownMessage(unknown) => {
            if let Some((kind, why)) = malformed(unknown) {
                let mut content = Failure::of_request(&why).content();
                content.insert("status".to_owned(), json!("error"));
                replies.send(&kind, content.into(), request);
            }
            Next::GoOn
        }
        _ => {
            tracing::debug!(
                kind = request.message_type(),
                "a message that this kernel does not know"
            );
            Next::GoOn
        }
    }
}

/// The type of the reply to a malformed request, and the error.
fn malformed(request: &UnknownMessage) -> Option<(String, String)> {
    let kind = request.msg_type.strip_suffix("_request")?;
    Some((format!("{kind}_reply"), problem(request)?))
}

fn completeness(code: &str) -> Value {
    match state(code) {
        State::Complete => json!({ "status": "complete", "indent": "" }),
        State::Invalid => json!({ "status": "invalid", "indent": "" }),
        State::Incomplete => {
            let last = code.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            let own: String = last.chars().take_while(|char| char.is_whitespace()).collect();
            let more = if last.trim_end().ends_with(':') { "    " } else { "" };
            json!({ "status": "incomplete", "indent": format!("{own}{more}") })
        }
    }
}

async fn take_answers(kernel: &Kernel, mut replies: Receiver<JupyterMessage>) {
    while let Some(message) = replies.recv().await {
        if let Content::InputReply(reply) = &message.content {
            kernel.input.answer(&message, reply);
        }
    }
}

/// Interrupts the running cell on SIGINT, because Ctrl-C in a notebook's terminal reaches its kernels too.
async fn interrupts(kernel: &Kernel) {
    while tokio::signal::ctrl_c().await.is_ok() {
        kernel.interrupt();
    }
}

/// Waits until the parent process is gone, if its id is known.
async fn orphaned() {
    let parent = || rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    let first = parent();
    let told = std::env::var(PARENT).ok();
    // The variable may name a process other than the parent. Then the parent's end means nothing.
    if told.is_none() || told != first {
        return std::future::pending().await;
    }
    while parent() == first {
        tokio::time::sleep(LOOK_AT_PARENT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_complete_or_goes_on_with_an_indent() {
        let is = |code: &str| {
            let told = completeness(code);
            (
                told["status"].as_str().unwrap().to_owned(),
                told["indent"].as_str().unwrap().to_owned(),
            )
        };
        assert_eq!(is("x = 1"), ("complete".to_owned(), String::new()));
        assert_eq!(is("for x in y:"), ("incomplete".to_owned(), "    ".to_owned()));
        assert_eq!(
            is("if a:\n    if b:\n        c"),
            ("incomplete".to_owned(), " ".repeat(8))
        );
        assert_eq!(is("print('"), ("invalid".to_owned(), String::new()));
    }
}
