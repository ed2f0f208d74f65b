//! A kernel's sockets, and their messages.

use std::path::Path;

use bytes::Bytes;
use jupyter_protocol::{IoPubWelcome, JupyterMessage, JupyterMessageContent, UnknownMessage};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::connection::{self, endpoint};
use crate::messages::Signer;
use crate::zmtp::{self, Listener, Router, Server};

const PROTOCOL_VERSION: &str = "5.4";
/// The largest message, in bytes: of a request with code, of an answer or an order, and of a sign of life.
const MAX_REQUEST_BYTES: u64 = 8 << 20;
const MAX_ANSWER_BYTES: u64 = 1 << 20;
const MAX_SIGN_BYTES: u64 = 64 << 10;

/// The kernel's open sockets.
pub(super) struct Wire(Server);

/// The channels of a kernel.
pub(super) struct Channels {
    pub shell: Channel,
    pub control: Channel,
    pub stdin: Channel,
    pub iopub: Publisher,
}

/// A channel with replies. Requests wait in the receiver.
pub(super) struct Channel {
    pub requests: mpsc::Receiver<JupyterMessage>,
    pub replies: Sender,
}

impl Wire {
    /// Opens the sockets at the addresses in Jupyter's connection file.
    ///
    /// # Errors
    /// The file or an address in it is wrong.
    pub(super) async fn open(file: &Path) -> Result<(Self, Channels), String> {
        let info = connection::read(file)?;
        if info.key.is_empty() {
            return Err(format!(
                "there is no key in {}: anybody on this machine could run code here",
                file.display()
            ));
        }
        let signer = Signer::new(&info.key);
        let listener = async |port: u16| {
            let bound = Listener::bind(&endpoint(&info, port)).await;
            bound.map_err(|error| format!("{}:{port} cannot be listened to: {error}", info.ip))
        };
        let mut server = Server::default();
        let mut channel = |listener, max_bytes| {
            let theirs = signer.clone();
            let read = move |parts| {
                let message = read_message(&theirs, parts);
                message
                    .inspect_err(|error| tracing::debug!(%error, "a message was dropped"))
                    .ok()
            };
            let (router, requests) = server.router(listener, max_bytes, read);
            let replies = Sender {
                router,
                signer: signer.clone(),
            };
            Channel { requests, replies }
        };
        let shell = channel(listener(info.shell_port).await?, MAX_REQUEST_BYTES);
        let control = channel(listener(info.control_port).await?, MAX_ANSWER_BYTES);
        let stdin = channel(listener(info.stdin_port).await?, MAX_ANSWER_BYTES);
        let theirs = signer.clone();
        let welcome = move |topic: &Bytes| {
            let subscription = String::from_utf8_lossy(topic).into_owned();
            let welcome = stamped(IoPubWelcome::new(subscription), None, vec![topic.clone()]);
            sealed(&theirs, &welcome).unwrap_or_default()
        };
        let iopub = Publisher {
            socket: server.publisher(listener(info.iopub_port).await?, welcome),
            signer,
        };
        server.echo(listener(info.hb_port).await?, MAX_SIGN_BYTES);
        let channels = Channels {
            shell,
            control,
            stdin,
            iopub,
        };
        Ok((Self(server), channels))
    }

    /// Closes the sockets after all sent messages have left.
    pub(super) async fn close(self) {
        self.0.close().await;
    }
}

/// Reads a message with a correct signature. Missing fields get the defaults of Jupyter's documents.
fn read_message(signer: &Signer, parts: Vec<Bytes>) -> Result<JupyterMessage, String> {
    let opened = signer.open(parts)?;
    let [header, parent, metadata, content] = &opened.json;
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
        // The sender has the key, so the sender is told about an error in the content. See `problem`.
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
        .with_zmq_identities(opened.identities)
        .with_buffers(opened.buffers))
}

/// An error in the content of a request.
pub(super) fn problem(request: &UnknownMessage) -> Option<String> {
    let read = JupyterMessageContent::from_type_and_content(&request.msg_type, request.content.clone());
    read.err().map(|error| error.to_string())
}

/// The default of a missing field.
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

/// Sends to all subscribers.
#[derive(Clone)]
pub(super) struct Publisher {
    socket: zmtp::Publisher,
    signer: Signer,
}

impl Publisher {
    /// Publishes an output of a request.
    pub(super) fn send(&self, kind: &str, content: Value, parent: &JupyterMessage) {
        self.publish(kind, content, Some(parent));
    }

    /// Publishes a message that answers no request.
    pub(super) fn announce(&self, kind: &str, content: Value) {
        self.publish(kind, content, None);
    }

    fn publish(&self, kind: &str, content: Value, parent: Option<&JupyterMessage>) {
        let topic = Bytes::copy_from_slice(kind.as_bytes());
        if let Some(parts) = sealed(&self.signer, &stamped(untyped(kind, content), parent, vec![topic])) {
            self.socket.send(&parts);
        }
    }
}

/// Sends to one peer of a channel.
pub(super) struct Sender {
    router: Router,
    signer: Signer,
}

impl Sender {
    /// Sends to the sender of `parent`.
    pub(super) fn send(&self, kind: &str, content: Value, parent: &JupyterMessage) {
        if !self.send_made(&made(kind, content, parent)) {
            tracing::debug!(kind, "nobody is there any more to reply to");
        }
    }

    /// Sends a message that [`made`] built. Returns false when its receiver is gone.
    pub(super) fn send_made(&self, message: &JupyterMessage) -> bool {
        sealed(&self.signer, message).is_some_and(|parts| self.router.send(&parts))
    }
}

/// The parts of a message. A published message has its topic as first identity.
fn sealed(signer: &Signer, message: &JupyterMessage) -> Option<Vec<Bytes>> {
    fn json(part: &impl Serialize) -> serde_json::Result<Bytes> {
        serde_json::to_vec(part).map(Bytes::from)
    }
    let parent = message.parent_header.as_ref();
    let parts = || {
        Ok([
            json(&message.header)?,
            parent.map_or_else(|| Ok(Bytes::from_static(b"{}")), json)?,
            json(&message.metadata)?,
            json(&message.content)?,
        ])
    };
    let parts = parts().inspect_err(|error: &serde_json::Error| tracing::warn!(%error, "a message cannot be written"));
    Some(signer.seal(message.zmq_identities.clone(), parts.ok()?))
}

/// A message to the sender of `parent`.
pub(super) fn made(kind: &str, content: Value, parent: &JupyterMessage) -> JupyterMessage {
    stamped(untyped(kind, content), Some(parent), parent.zmq_identities.clone())
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
    identities: Vec<Bytes>,
) -> JupyterMessage {
    let mut message = JupyterMessage::new(content, parent);
    message.zmq_identities = identities;
    message.header.version = PROTOCOL_VERSION.to_owned();
    message.header.username = "sandglass".to_owned();
    message
}
