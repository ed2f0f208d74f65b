//! Requests to a kernel and its replies, as signed messages on its channels `shell` and `control`.
//!
//! No other channel of the kernel is read. The guest's output comes through its own channel, so nobody can flood `iopub`. A
//! reply cannot be forged without the key.
//!
//! Decisions: `docs/internals/jupyter.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jupyter_protocol::ConnectionInfo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::connection::reached;
use crate::messages::Signer;
use crate::zmtp::{self, Endpoint, Incoming, Receiver, Sender, ZmtpError};

/// The largest message, in bytes. Expected answers have a few hundred bytes.
const MAX_MESSAGE_BYTES: u64 = 8 << 20;
const PROTOCOL: &str = "5.3";
/// The time after which an unanswered request is sent again.
const AGAIN: Duration = Duration::from_millis(300);
/// Characters of a kernel's error that are quoted in errors.
const MAX_TOLD_CHARS: usize = 2_000;

/// An error of a kernel.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum KernelError {
    /// Nobody is there.
    #[error(
        "nothing can be reached there ({0}): the kernel is not running any more, or the connection file is an old one"
    )]
    Unreachable(String),
    /// The connection is of no use.
    #[error("{0}")]
    Broken(String),
    /// The kernel's sockets are open, and it sends no answer.
    #[error(
        "it did not answer a {0} within {1:?}: it hangs, or it takes this for a forgery because the key of the connection file is not its own"
    )]
    Silent(&'static str, Duration),
    /// The kernel runs code of another front end.
    #[error(
        "it is busy with other code, and did not get to ours within {0:?}: wait until that has ended, or interrupt or restart the kernel \
         where it was started"
    )]
    Busy(Duration),
    /// The kernel answered with an error.
    #[error("it answered {0}")]
    Refused(String),
}

/// The two channels to a kernel, and the end of its connection.
pub(super) struct Client {
    pub(super) shell: Channel,
    pub(super) control: Channel,
    ended: watch::Receiver<Option<String>>,
}

impl Client {
    /// Connects to a kernel.
    pub(super) async fn connect(connection: &ConnectionInfo) -> Result<Self, KernelError> {
        let (ends, ended) = watch::channel(None);
        let ends = Arc::new(ends);
        let session = random()?;
        let channel = async |endpoint: Endpoint| {
            let link = zmtp::connect(&endpoint, MAX_MESSAGE_BYTES)
                .await
                .map_err(|error| match error {
                    ZmtpError::Io(error) => KernelError::Unreachable(error.to_string()),
                    error => KernelError::Broken(error.to_string()),
                })?;
            Ok::<_, KernelError>(Channel::new(link, &connection.key, &session, Arc::clone(&ends)))
        };
        let (control, shell) = tokio::try_join!(
            channel(reached(connection, connection.control_port)),
            channel(reached(connection, connection.shell_port))
        )?;
        Ok(Self { shell, control, ended })
    }

    /// Waits until the kernel cannot be reached any more. Returns the reason. Can be dropped and called again.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let why = match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone(),
            Err(_) => None,
        };
        why.unwrap_or_default()
    }
}

/// A random word that nobody can guess.
pub(super) fn random() -> Result<String, KernelError> {
    let number = || {
        getrandom::u64().map_err(|error| KernelError::Broken(format!("the system gives no random numbers: {error}")))
    };
    Ok(format!("{:016x}{:016x}", number()?, number()?))
}

type Waiting = Arc<Mutex<HashMap<String, oneshot::Sender<Value>>>>;

/// One channel to a kernel. Dropping it closes the channel.
pub(super) struct Channel {
    sender: Arc<tokio::sync::Mutex<(Sender, u64)>>,
    waiting: Waiting,
    signer: Signer,
    session: String,
    reader: JoinHandle<()>,
}

impl Channel {
    fn new(
        (sender, receiver): (Sender, Receiver),
        key: &str,
        session: &str,
        ended: Arc<watch::Sender<Option<String>>>,
    ) -> Self {
        let signer = Signer::new(key);
        let waiting = Waiting::default();
        let sender = Arc::new(tokio::sync::Mutex::new((sender, 0)));
        let reader = listen(
            receiver,
            Arc::clone(&sender),
            signer.clone(),
            Arc::clone(&waiting),
            ended,
        );
        Self {
            sender,
            waiting,
            signer,
            session: session.to_owned(),
            reader: tokio::spawn(reader),
        }
    }

    /// Sends a request. Its reply's content comes later; nothing comes when the channel ends before.
    pub(super) async fn send(
        &self,
        kind: &str,
        content: &Value,
        subshell: Option<&str>,
    ) -> Result<oneshot::Receiver<Value>, KernelError> {
        let mut sender = self.sender.lock().await;
        let (sender, number) = &mut *sender;
        *number += 1;
        let id = format!("{}-{kind}-{number}", self.session);
        let mut header = json!({
            "msg_id": id, "session": self.session, "username": "sandglass", "msg_type": kind, "version": PROTOCOL,
        });
        if let Some(subshell) = subshell {
            header["subshell_id"] = subshell.into();
        }
        let parts = [
            header.to_string(),
            "{}".to_owned(),
            "{}".to_owned(),
            content.to_string(),
        ]
        .map(Bytes::from);
        let message = self.signer.seal(Vec::new(), parts);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id.clone(), answer);
        if let Err(error) = sender.send(&message).await {
            lock(&self.waiting).remove(&id);
            return Err(KernelError::Broken(format!("its connection has ended: {error}")));
        }
        // Waiting requests that were dropped are forgotten with the next request.
        lock(&self.waiting).retain(|_, answer| !answer.is_closed());
        Ok(answered)
    }

    /// Like `ask`, and repeats the request: a kernel that has just started may miss the first message.
    pub(super) async fn ask_again(&self, kind: &'static str, within: Duration) -> Result<Value, KernelError> {
        let answer = async {
            let mut answers = FuturesUnordered::new();
            loop {
                answers.push(self.send(kind, &json!({}), None).await?);
                tokio::select! {
                    Some(answer) = answers.next() => return answer.map_err(|_| gone()),
                    () = tokio::time::sleep(AGAIN) => {}
                }
            }
        };
        let answer = tokio::time::timeout(within, answer).await;
        answer.unwrap_or(Err(KernelError::Silent(kind, within)))
    }

    /// Sends a request, and waits for the reply for at most `within`.
    pub(super) async fn ask(
        &self,
        kind: &'static str,
        content: &Value,
        within: Duration,
    ) -> Result<Value, KernelError> {
        let answer = async { self.send(kind, content, None).await?.map_err(|_| gone()).await };
        let answer = tokio::time::timeout(within, answer).await;
        answer.unwrap_or(Err(KernelError::Silent(kind, within)))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// There will be no reply.
pub(super) fn gone() -> KernelError {
    KernelError::Broken("it has ended, or was restarted".to_owned())
}

/// The content of a request to run code. Front ends do not see it, and its failure drops no other request.
pub(super) fn execute(code: &str) -> Value {
    json!({
        "code": code, "silent": true, "store_history": false, "user_expressions": {}, "allow_stdin": false,
        "stop_on_error": false,
    })
}

/// The end of an execution.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ran {
    Well,
    /// The code was not run: other code had failed before it, or somebody had interrupted the kernel.
    Not,
}

/// The contents of an `execute_reply`.
pub(super) fn ran(reply: &Value) -> Result<Ran, KernelError> {
    let text = |name: &str| reply[name].as_str().unwrap_or_default();
    match text("status") {
        "ok" => Ok(Ran::Well),
        "aborted" => Ok(Ran::Not),
        "error" if text("ename") == "KeyboardInterrupt" => Ok(Ran::Not),
        "error" => {
            let said: String = format!("{}: {}", text("ename"), text("evalue"));
            Err(KernelError::Refused(said.chars().take(MAX_TOLD_CHARS).collect()))
        }
        _ => Err(KernelError::Refused("nothing that is a reply".to_owned())),
    }
}

/// Hands out replies until the channel ends.
async fn listen(
    mut receiver: Receiver,
    sender: Arc<tokio::sync::Mutex<(Sender, u64)>>,
    signer: Signer,
    waiting: Waiting,
    ended: Arc<watch::Sender<Option<String>>>,
) {
    let why = loop {
        let parts = match receiver.receive().await {
            Ok(Incoming::Message(parts)) => parts,
            Ok(Incoming::Ping(context)) => match sender.lock().await.0.pong(&context).await {
                Ok(()) => continue,
                Err(error) => break format!("the kernel has died or was restarted ({error})"),
            },
            // A subscription to a socket that publishes nothing.
            Ok(Incoming::Subscribe(_) | Incoming::Cancel(_)) => continue,
            Err(ZmtpError::Io(error)) => break format!("the kernel has died or was restarted ({error})"),
            Err(error) => break format!("the kernel broke the protocol: {error}"),
        };
        match reply(parts, &signer) {
            Ok((id, content)) => {
                if let Some(answer) = lock(&waiting).remove(&id) {
                    let _ = answer.send(content);
                }
            }
            Err(problem) => break format!("the kernel broke the protocol: {problem}"),
        }
    };
    ended.send_if_modified(|ended| {
        let is_first = ended.is_none();
        ended.get_or_insert(why);
        is_first
    });
    lock(&waiting).clear();
}

#[derive(Deserialize)]
struct Parent {
    #[serde(default)]
    msg_id: String,
}

/// The id of the request that a message replies to, and the reply's content.
fn reply(parts: Vec<Bytes>, signer: &Signer) -> Result<(String, Value), &'static str> {
    let [_, parent, _, content] = signer.open(parts)?.json;
    let parent: Parent = serde_json::from_slice(&parent).map_err(|_| "a message with an odd parent")?;
    let content = serde_json::from_slice(&content).map_err(|_| "a message that is no JSON")?;
    Ok((parent.msg_id, content))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_says_what_it_replies_to() {
        let signer = Signer::new("ours");
        let message = |parent: &str, content: &str| {
            let header = r#"{"msg_type": "execute_reply"}"#;
            let json = [header, parent, "{}", content].map(|part| Bytes::from(part.to_owned()));
            signer.seal(vec!["route".into()], json)
        };
        let ours = message(r#"{"msg_id": "7"}"#, r#"{"status": "ok"}"#);
        let (id, content) = reply(ours.clone(), &signer).unwrap();
        assert_eq!((id.as_str(), ran(&content).unwrap()), ("7", Ran::Well));
        assert!(reply(ours, &Signer::new("theirs")).is_err());
        assert!(reply(message("7", "{}"), &signer).is_err());
        assert!(reply(message("{}", "{"), &signer).is_err());
    }

    #[test]
    fn how_it_ran_is_read() {
        assert_eq!(ran(&json!({"status": "aborted"})).unwrap(), Ran::Not);
        assert_eq!(
            ran(&json!({"status": "error", "ename": "KeyboardInterrupt"})).unwrap(),
            Ran::Not
        );
        let error = ran(&json!({"status": "error", "ename": "KeyError", "evalue": "x".repeat(10_000)})).unwrap_err();
        assert!(error.to_string().starts_with("it answered KeyError: xxx"));
        assert!(error.to_string().len() < 3_000);
        assert!(ran(&json!([1])).is_err());
    }
}
