//! The sockets of a kernel, and what goes over them.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use jupyter_protocol::{
    ConnectionInfo, IoPubWelcome, JupyterMessage, JupyterMessageContent, Transport, UnknownMessage,
};
use jupyter_zmq_client::{
    KernelHeartbeatConnection, KernelIoPubXPubConnection, RawMessage, RouterRecvConnection, RouterSendConnection,
    SubscriptionEvent, create_kernel_control_connection, create_kernel_heartbeat_connection,
    create_kernel_iopub_xpub_connection, create_kernel_shell_connection, create_kernel_stdin_connection,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use zeromq::{SocketRecv as _, SocketSend as _};

use super::gate::{Gate, Peers};

const PROTOCOL_VERSION: &str = "5.4";
/// How the folder of a kernel's sockets is named, and they in it.
const FOLDER: &str = "sandglass-kernel-";
const SOCKET: &str = "socket";
const LAST_SOCKET: u16 = 5;
/// How old a folder is that no kernel is just making.
const OLD: Duration = Duration::from_secs(60);
/// Bytes of a connection file.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Bytes of a message with code, of one with an answer or an order, and of one that asks for no more than to be subscribed, or
/// for a sign of life.
const MAX_REQUEST_BYTES: u64 = 8 << 20;
const MAX_ANSWER_BYTES: u64 = 1 << 20;
const MAX_SIGN_BYTES: u64 = 64 << 10;
/// Subscriptions over one connection, ended ones included: each is kept, and looked at for every output.
const MOST_SUBSCRIPTIONS: u64 = 256;
/// Requests that wait for their turn; of more, the sender is not read.
const MOST_WAITING: usize = 1_000;
/// Outputs that wait to be sent; of more, who makes them waits.
const MOST_OUTGOING: usize = 1_000;
/// How long a reply may take to be taken by its socket.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// How long a peer may take to take the echo of its sign of life.
const ECHOED_WITHIN: Duration = Duration::from_secs(1);
/// How long the end waits for the last outputs to be taken.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// The pause after an error of a socket, so that one that stays costs nothing.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// What keeps the sockets open.
pub(super) struct Wire {
    iopub: Publisher,
    tasks: JoinSet<()>,
    gate: Gate,
    _folder: TempDir,
}

/// What goes over them.
pub(super) struct Channels {
    pub shell: Channel,
    pub control: Channel,
    pub stdin: Channel,
    pub iopub: Publisher,
}

/// One with replies. What comes in waits in the receiver.
pub(super) struct Channel {
    pub requests: mpsc::Receiver<JupyterMessage>,
    pub replies: Sender,
}

impl Wire {
    /// Opens the addresses in the file that Jupyter has written.
    ///
    /// # Errors
    /// What is wrong with the file, or with the addresses.
    pub(super) async fn open(file: &Path) -> Result<(Self, Channels), String> {
        let info = read(file).map_err(|why| format!("{}: {why}", file.display()))?;
        // Behind the gate, where only this user gets to.
        remove_stale(&std::env::temp_dir());
        let folder = tempfile::Builder::new().prefix(FOLDER).tempdir();
        let folder = folder.map_err(|error| format!("no folder for the kernel's sockets can be made: {error}"))?;
        let inner = ConnectionInfo {
            ip: folder.path().join(SOCKET).to_string_lossy().into_owned(),
            transport: Transport::IPC,
            shell_port: 1,
            iopub_port: 2,
            stdin_port: 3,
            control_port: 4,
            hb_port: LAST_SOCKET,
            ..info.clone()
        };
        let session = format!("{:016x}", getrandom::u64().map_err(|error| error.to_string())?);
        let failed = |error: jupyter_zmq_client::RuntimeError| format!("the kernel's sockets cannot be made: {error}");
        let shell = create_kernel_shell_connection(&inner, &session).await.map_err(failed)?;
        let control = create_kernel_control_connection(&inner, &session)
            .await
            .map_err(failed)?;
        let stdin = create_kernel_stdin_connection(&inner, &session).await.map_err(failed)?;
        let iopub = create_kernel_iopub_xpub_connection(&inner, &session)
            .await
            .map_err(failed)?;
        let heartbeat = create_kernel_heartbeat_connection(&inner).await.map_err(failed)?;

        let mut tasks = JoinSet::new();
        let mut gate = Gate::new();
        let peers = |most_bytes| Peers {
            most_bytes,
            most_messages: u64::MAX,
            are_many: false,
        };
        let subscribers = Peers {
            most_bytes: MAX_SIGN_BYTES,
            most_messages: MOST_SUBSCRIPTIONS,
            are_many: true,
        };
        for (port, inner_port, peers) in [
            (info.shell_port, inner.shell_port, peers(MAX_REQUEST_BYTES)),
            (info.control_port, inner.control_port, peers(MAX_ANSWER_BYTES)),
            (info.stdin_port, inner.stdin_port, peers(MAX_ANSWER_BYTES)),
            (info.iopub_port, inner.iopub_port, subscribers),
            (info.hb_port, inner.hb_port, peers(MAX_SIGN_BYTES)),
        ] {
            let socket = format!("{}-{inner_port}", inner.ip).into();
            gate.open(&info, port, socket, peers)
                .await
                .map_err(|error| format!("{}:{port} cannot be listened to: {error}", info.ip))?;
        }
        let (publisher, outgoing) = mpsc::channel(MOST_OUTGOING);
        tasks.spawn(publish(iopub, outgoing));
        tasks.spawn(beat(heartbeat));
        let iopub = Publisher(publisher);
        let channels = Channels {
            shell: channel(&mut tasks, shell.split()),
            control: channel(&mut tasks, control.split()),
            stdin: channel(&mut tasks, stdin.split()),
            iopub: iopub.clone(),
        };
        let wire = Self {
            iopub,
            tasks,
            gate,
            _folder: folder,
        };
        Ok((wire, channels))
    }

    /// Closes them when what was sent has left; the channels have to be gone before.
    pub(super) async fn close(mut self) {
        self.iopub.flush().await;
        self.tasks.shutdown().await;
        self.gate.close().await;
    }
}

/// Removes what killed kernels of this user have left: folders with a socket that nobody listens to.
fn remove_stale(place: &Path) {
    use std::os::unix::fs::MetadataExt;

    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let is_kernels = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDER));
        // That of the entry itself, and not of what a link leads to.
        let Some(metadata) = is_kernels.then(|| entry.metadata().ok()).flatten() else {
            continue;
        };
        let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        let is_old = metadata
            .modified()
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD));
        if is_ours && is_old && is_deserted(&entry.path()) {
            // Another kernel may do the same.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_deserted(folder: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(folder.join(format!("{SOCKET}-{LAST_SOCKET}")));
    connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// What Jupyter has written.
fn read(file: &Path) -> Result<ConnectionInfo, String> {
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    let info: ConnectionInfo =
        serde_json::from_str(&text).map_err(|error| format!("is no connection file: {error}"))?;
    if info.signature_scheme != "hmac-sha256" {
        return Err(format!(
            "messages are to be signed by {}, and this kernel knows hmac-sha256 only",
            info.signature_scheme
        ));
    }
    if info.key.is_empty() {
        return Err("there is no key in it: anybody on this machine could run code here".to_owned());
    }
    Ok(info)
}

/// Reads a socket. What is not signed with the key, or no message, is dropped.
fn channel(tasks: &mut JoinSet<()>, (replies, mut socket): (RouterSendConnection, RouterRecvConnection)) -> Channel {
    let (sender, requests) = mpsc::channel(MOST_WAITING);
    tasks.spawn(async move {
        loop {
            match read_message(&mut socket).await {
                Ok(message) => {
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a message was dropped");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    });
    Channel {
        requests,
        replies: Sender(replies.into()),
    }
}

/// Reads a message whose signature is right. What Jupyter's clients leave out is as its documents say.
async fn read_message(socket: &mut RouterRecvConnection) -> Result<JupyterMessage, String> {
    let parts = socket.socket.recv().await.map_err(|error| error.to_string())?;
    let raw = RawMessage::from_multipart(parts, &socket.mac).map_err(|error| error.to_string())?;
    let [header, parent, metadata, content, buffers @ ..] = raw.jparts.as_slice() else {
        return Err("parts are missing".to_owned());
    };
    let json = |part: &[u8]| serde_json::from_slice::<Value>(part).map_err(|error| error.to_string());
    let (header, mut content) = (json(header)?, json(content)?);
    let kind = header["msg_type"].as_str().unwrap_or_default();
    if let Some(fields) = content.as_object_mut() {
        for (name, value) in defaults(kind).as_object().into_iter().flatten() {
            let field = fields.entry(name).or_insert(Value::Null);
            if field.is_null() {
                field.clone_from(value);
            }
        }
    }
    let (parent, metadata) = (json(parent)?, json(metadata)?);
    let parsed = |header: Value, content: Value| {
        let message = json!({ "header": header, "parent_header": parent, "metadata": metadata, "content": content });
        JupyterMessage::from_value(message).map_err(|error| error.to_string())
    };
    let message = match parsed(header.clone(), content.clone()) {
        Ok(message) => message,
        // Who has signed it hears what is wrong with its content: see `problem`.
        Err(_) => {
            let kind = kind.to_owned();
            let mut other = header;
            other["msg_type"] = json!("");
            let mut message = parsed(other, Value::Null)?;
            message.header.msg_type.clone_from(&kind);
            message.content = untyped(&kind, content).into();
            message
        }
    };
    Ok(message
        .with_zmq_identities(raw.zmq_identities)
        .with_buffers(buffers.to_vec()))
}

/// What is wrong with the content of a request.
pub(super) fn problem(request: &UnknownMessage) -> Option<String> {
    let read = JupyterMessageContent::from_type_and_content(&request.msg_type, request.content.clone());
    read.err().map(|error| error.to_string())
}

/// What is meant where a field is not there.
fn defaults(kind: &str) -> Value {
    match kind {
        "execute_request" => {
            json!({ "silent": false, "store_history": true, "allow_stdin": false, "stop_on_error": true })
        }
        "history_request" => {
            json!({ "output": false, "raw": true, "start": 0, "stop": 0, "n": 0, "pattern": "*", "unique": false })
        }
        "shutdown_request" => json!({ "restart": false }),
        _ => Value::Null,
    }
}

async fn beat(mut heartbeat: KernelHeartbeatConnection) {
    loop {
        match heartbeat.socket.recv().await {
            // What comes goes back. Others wait for theirs.
            Ok(sign) => {
                if let Ok(result) = tokio::time::timeout(ECHOED_WITHIN, heartbeat.socket.send(sign)).await {
                    sent(result);
                }
            }
            Err(_) => tokio::time::sleep(AFTER_ERROR).await,
        }
    }
}

/// Says who has subscribed, and sends what is to be published.
async fn publish(mut iopub: KernelIoPubXPubConnection, mut outgoing: mpsc::Receiver<Outgoing>) {
    loop {
        tokio::select! {
            event = iopub.recv_subscription() => match event {
                Ok(SubscriptionEvent::Subscribe(topic)) => {
                    let welcome = stamped(IoPubWelcome::new(topic.clone()), None, vec![topic.into_bytes()]);
                    sent(iopub.send(welcome).await);
                }
                Ok(SubscriptionEvent::Unsubscribe(_)) => {}
                Err(_) => tokio::time::sleep(AFTER_ERROR).await,
            },
            message = outgoing.recv() => match message {
                Some(Outgoing::Message(message)) => {
                    sent(iopub.send(*message).await);
                },
                Some(Outgoing::Flush(done)) => drop(done.send(())),
                None => return,
            },
        }
    }
}

/// Whether it was: who is gone reads nothing any more.
fn sent(result: Result<(), impl Display>) -> bool {
    if let Err(error) = &result {
        tracing::debug!(%error, "a message was not sent");
    }
    result.is_ok()
}

enum Outgoing {
    Message(Box<JupyterMessage>),
    Flush(oneshot::Sender<()>),
}

/// What everybody sees.
#[derive(Clone)]
pub(super) struct Publisher(mpsc::Sender<Outgoing>);

impl Publisher {
    /// Publishes an output of a request.
    pub(super) fn send(&self, kind: &str, content: Value, parent: &JupyterMessage) {
        let message = stamped(untyped(kind, content), Some(parent), vec![kind.as_bytes().to_vec()]);
        if let Err(TrySendError::Full(message)) = self.0.try_send(Outgoing::Message(Box::new(message))) {
            // Who makes them waits: a guest's output is not read meanwhile. No peer holds this up (see the gate), and only at
            // the end nobody takes it.
            let _ = tokio::task::block_in_place(|| self.0.blocking_send(message));
        }
    }

    /// Publishes what no request has led to.
    pub(super) fn announce(&self, kind: &str, content: Value) {
        let message = stamped(untyped(kind, content), None, vec![kind.as_bytes().to_vec()]);
        // There is room for the first.
        let _ = self.0.try_send(Outgoing::Message(Box::new(message)));
    }

    /// Waits until everything has been sent.
    async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let flushed = async {
            if self.0.send(Outgoing::Flush(done)).await.is_ok() {
                let _ = is_done.await;
            }
        };
        let _ = tokio::time::timeout(LAST_WITHIN, flushed).await;
    }
}

/// Sends to one peer of a channel.
pub(super) struct Sender(tokio::sync::Mutex<RouterSendConnection>);

impl Sender {
    /// Sends to who has sent `parent`.
    pub(super) async fn send(&self, kind: &str, content: Value, parent: &JupyterMessage) {
        self.send_made(made(kind, content, parent)).await;
    }

    /// Sends what [`made`] has made; whether there was somebody to send it to.
    pub(super) async fn send_made(&self, message: JupyterMessage) -> bool {
        let sending = async { sent(self.0.lock().await.send(message).await) };
        tokio::time::timeout(TAKEN_WITHIN, sending).await.unwrap_or(false)
    }
}

/// A message to who has sent `parent`.
pub(super) fn made(kind: &str, content: Value, parent: &JupyterMessage) -> JupyterMessage {
    let identities = parent.zmq_identities.iter().map(|part| part.to_vec()).collect();
    stamped(untyped(kind, content), Some(parent), identities)
}

fn untyped(kind: &str, content: Value) -> UnknownMessage {
    UnknownMessage {
        msg_type: kind.to_owned(),
        content,
    }
}

fn stamped(
    content: impl Into<JupyterMessageContent>,
    parent: Option<&JupyterMessage>,
    identities: Vec<Vec<u8>>,
) -> JupyterMessage {
    let mut message = JupyterMessage::new(content, parent);
    message.zmq_identities = identities.into_iter().map(Into::into).collect();
    message.header.version = PROTOCOL_VERSION.to_owned();
    message.header.username = "sandglass".to_owned();
    message
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::unix::net::UnixListener;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_what_killed_kernels_have_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = |name: &str, age: Duration| {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let listener = UnixListener::bind(folder.join("socket-5")).unwrap();
            let times = FileTimes::new().set_modified(SystemTime::now() - age);
            File::open(&folder).unwrap().set_times(times).unwrap();
            (folder, listener)
        };
        let (left, listener) = folder("sandglass-kernel-left", OLD * 2);
        drop(listener);
        let (new, listener) = folder("sandglass-kernel-new", Duration::ZERO);
        drop(listener);
        let (other, listener) = folder("sandglass-other", OLD * 2);
        drop(listener);
        let (used, _listener) = folder("sandglass-kernel-used", OLD * 2);
        remove_stale(place.path());
        assert!(!left.exists() && new.exists() && other.exists() && used.exists());
    }
}
