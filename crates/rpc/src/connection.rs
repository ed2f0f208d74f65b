//! One connection: the requests of both sides, in order and bounded.
//!
//! Requests of the client are begun in the order in which they come, and run side by side. Requests of the server wait for the client's
//! answers. What is sent waits in the [`Outbox`].

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, join_all, poll_fn};
use futures_util::stream::FuturesUnordered;
use sandglass_host::sandbox::{ExecuteOptions, Execution, SandboxBuilder};
use sandglass_host::{Sandbox, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::blobs::{Arrived, Form, Named, aside, form, json_form, pieces, reference};
use crate::messages::{
    Cancel, Cancelled, DropBlob, Hello, Id, Incoming, MAX_REQUESTS, Outgoing, Response, ResponseError, RpcError,
    VERSION, Welcome, WireValue,
};
use crate::methods::Context;
use crate::options::{Bounds, Options};

/// The version in JSON of every message.
const JSONRPC: &str = "2.0";
/// Bytes that wait for the client. Above this number no further requests are taken.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// A message, without its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// JSON.
    Json(Bytes),
    /// A piece of a blob.
    Binary(Bytes),
}

impl Message {
    fn size(&self) -> usize {
        match self {
            Self::Json(data) | Self::Binary(data) => data.len(),
        }
    }
}

/// The home of a connection's sandboxes: the program's own processes, or a server's sessions.
pub trait Home: Send + Sync + 'static {
    /// The bounds of options.
    fn bounds(&self) -> &Bounds;

    /// Permits this many bytes of a client's message, until the returned value is dropped.
    ///
    /// # Errors
    /// The client has too many bytes under way.
    fn hold(&self, bytes: usize) -> Result<Held, RpcError>;

    /// Makes a sandbox. `client` adds the client's functions to it. Its context was taken out of the options.
    fn make(
        &self,
        options: Options,
        client: Box<dyn FnOnce(SandboxBuilder) -> SandboxBuilder + Send>,
    ) -> BoxFuture<'_, Result<Made, RpcError>>;
}

/// A home's permit. Dropping it gives it back.
pub type Held = Box<dyn Send>;

/// The keeper of a sandbox in its home. Dropping it ends the sandbox.
pub trait Keeper: Send + Sync {
    /// Runs code in the sandbox, within the home's own limits. Dropping the future interrupts the code.
    fn execute(&self, code: String, options: ExecuteOptions) -> BoxFuture<'_, Result<Execution, RpcError>>;

    /// Permits other work of the user's code, such as code that runs ahead or a state that is opened.
    ///
    /// # Errors
    /// The client may not run more at once, or not for so long.
    fn admit(&self, timeout_ms: Option<f64>) -> Result<Held, RpcError>;

    /// Resolves when the sandbox's folder has room for a file of this size.
    ///
    /// # Errors
    /// It has no room.
    fn room_for(&self, bytes: usize) -> BoxFuture<'_, Result<(), RpcError>>;

    /// Ends the sandbox, and resolves when nothing of it is left.
    fn destroy(&self) -> BoxFuture<'_, ()>;
}

/// A sandbox that its home has made.
pub struct Made {
    /// The sandbox's id. No two sandboxes of a home have the same.
    pub id: String,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its keeper.
    pub keeper: Box<dyn Keeper>,
}

/// The messages that wait to be sent.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    changed: Notify,
    taken: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    bytes: usize,
    last_blob: u32,
}

impl Outbox {
    /// The next message to send, and those that wait behind it. Can be dropped and called again.
    pub async fn next(&self) -> Vec<Message> {
        loop {
            let changed = self.changed.notified();
            let messages: Vec<_> = lock(&self.waiting).messages.drain(..).collect();
            if !messages.is_empty() {
                return messages;
            }
            changed.await;
        }
    }

    /// Notes that a message was sent.
    pub fn sent(&self, message: &Message) {
        lock(&self.waiting).bytes -= message.size();
        self.taken.notify_waiters();
    }

    /// Resolves when everything was sent.
    pub async fn drained(&self) {
        self.fewer_than(1).await;
    }

    /// The bytes that wait, those included that are being sent.
    pub fn bytes(&self) -> usize {
        lock(&self.waiting).bytes
    }

    /// Resolves when there is room for further messages.
    pub(crate) async fn room(&self) {
        self.fewer_than(MOST_WAITING_BYTES).await;
    }

    async fn fewer_than(&self, bytes: usize) {
        loop {
            let taken = self.taken.notified();
            if self.bytes() < bytes {
                return;
            }
            taken.await;
        }
    }

    /// Adds the pieces of a blob. Returns its number. Numbers are given in the order in which blobs are sent.
    fn push_blob(&self, data: &Bytes) -> u32 {
        let mut waiting = lock(&self.waiting);
        waiting.last_blob = waiting.last_blob.wrapping_add(1);
        let id = waiting.last_blob;
        for piece in pieces(id, data) {
            let message = Message::Binary(piece);
            waiting.bytes += message.size();
            waiting.messages.push_back(message);
        }
        drop(waiting);
        self.changed.notify_one();
        id
    }

    fn push(&self, messages: impl IntoIterator<Item = Message>) {
        let mut waiting = lock(&self.waiting);
        for message in messages {
            waiting.bytes += message.size();
            waiting.messages.push_back(message);
        }
        drop(waiting);
        self.changed.notify_one();
    }
}

/// The client's answer to a request, with the blobs that it names.
type Answer = Result<(Box<RawValue>, Named), ResponseError>;

/// The client, as its sandboxes see it.
pub struct Client {
    /// The messages for it.
    pub outbox: Arc<Outbox>,
    arrived: Mutex<Arrived>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    last_request: AtomicU64,
}

impl Client {
    /// Sends JSON.
    fn send(&self, message: &impl Serialize) {
        match serde_json::to_vec(message) {
            Ok(json) => self.outbox.push([Message::Json(json.into())]),
            Err(error) => tracing::error!(%error, "a message could not be written"),
        }
    }

    /// Sends a notification.
    pub fn notify(&self, method: &'static str, params: impl Serialize) {
        self.send(&Outgoing {
            jsonrpc: JSONRPC,
            id: None,
            method,
            params,
        });
    }

    /// The JSON of a value. A large value is sent before, as a blob.
    pub fn put(&self, value: Value) -> WireValue {
        self.put_form(form(value))
    }

    /// The JSON of this text, or a reference to it if it is large.
    pub fn put_json(&self, text: String) -> WireValue {
        self.put_form(json_form(text))
    }

    fn put_form(&self, form: Form) -> WireValue {
        match form {
            Form::Json(json) => json,
            Form::Blob(kind, data) => reference(self.outbox.push_blob(&data), kind),
        }
    }

    /// Asks the client. When the future is dropped, the client is told that nobody waits any more.
    ///
    /// # Errors
    /// The text for Python.
    pub async fn ask<R: DeserializeOwned>(
        self: &Arc<Self>,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<(R, Named), String> {
        let id = self.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        lock(&self.pending).insert(id, sender);
        let mut asked = Asked {
            client: Arc::clone(self),
            id: Some(id),
        };
        self.send(&Outgoing {
            jsonrpc: JSONRPC,
            id: Some(id),
            method,
            params,
        });
        let answer = receiver.await;
        asked.id = None;
        let result = answer.map_err(|_| "the client has gone".to_owned())?;
        let (result, blobs) = result.map_err(|error| error.message)?;
        let result = serde_json::from_str(result.get());
        let result = result.map_err(|error| format!("the client's answer is malformed: {error}"))?;
        Ok((result, blobs))
    }

    /// Takes the client's answer to a request.
    fn answered(&self, id: &Id, answer: Answer) {
        let Id::Number(id) = id else { return };
        let waiting = u64::try_from(*id).ok();
        if let Some(sender) = waiting.and_then(|id| lock(&self.pending).remove(&id)) {
            let _ = sender.send(answer); // nobody may wait any more
        }
    }
}

/// A request to the client. Dropping it before the answer tells the client.
struct Asked {
    client: Arc<Client>,
    id: Option<u64>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(id) = self.id
            && lock(&self.client.pending).remove(&id).is_some()
        {
            self.client.notify("cancel", Cancelled { id });
        }
    }
}

/// A request of the client that is under way. It resolves to the id, for the list of requests.
type Running = Pin<Box<dyn Future<Output = Option<Id>> + Send>>;

/// A connection with a client.
pub struct Connection {
    context: Arc<Context>,
    running: FuturesUnordered<Running>,
    under_way: HashMap<Id, AbortHandle>,
    is_greeted: bool,
    broken: CancellationToken,
}

impl Connection {
    /// A connection whose sandboxes live in this home.
    pub fn new(home: Arc<dyn Home>) -> Self {
        let client = Client {
            outbox: Arc::default(),
            arrived: Mutex::new(Arrived::within(home.bounds().max_blob_bytes)),
            pending: Mutex::default(),
            last_request: AtomicU64::new(0),
        };
        let context = Context {
            client: Arc::new(client),
            welcome: Welcome {
                version: VERSION,
                server: concat!("sandglass-host ", env!("CARGO_PKG_VERSION")).to_owned(),
                is_local: home.bounds().is_local,
            },
            home,
            sandboxes: Mutex::default(),
        };
        Self {
            context: Arc::new(context),
            running: FuturesUnordered::new(),
            under_way: HashMap::new(),
            is_greeted: false,
            broken: CancellationToken::new(),
        }
    }

    /// The messages to be sent.
    pub fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.context.client.outbox)
    }

    /// A token that is cancelled when the client has broken the wire, or should be cancelled when nothing can be sent any more.
    pub fn broken(&self) -> CancellationToken {
        self.broken.clone()
    }

    /// Serves the client until there are no more messages. Then all its sandboxes are destroyed.
    ///
    /// # Errors
    /// The client broke the wire.
    pub async fn serve<E: std::fmt::Display>(
        mut self,
        incoming: impl futures_util::Stream<Item = Result<Message, E>>,
    ) -> Result<(), String> {
        let mut incoming = std::pin::pin!(incoming);
        let broken = self.broken.clone();
        let outbox = self.outbox();
        let ended = loop {
            let next = async {
                outbox.room().await;
                incoming.next().await
            };
            tokio::select! {
                biased;
                () = broken.cancelled() => break Ok(()),
                Some(id) = self.running.next(), if !self.running.is_empty() => self.ended(id),
                message = next => match message {
                    Some(Ok(message)) => if let Err(error) = self.receive(message).await { break Err(error) },
                    Some(Err(error)) => break Err(error.to_string()),
                    None => break Ok(()),
                },
            }
        };
        self.running.clear();
        let sandboxes: Vec<_> = lock(&self.context.sandboxes)
            .drain()
            .map(|(_, sandbox)| sandbox)
            .collect();
        join_all(sandboxes.iter().map(|sandbox| sandbox.keeper().destroy())).await;
        ended
    }

    fn ended(&mut self, id: Option<Id>) {
        if let Some(id) = id {
            self.under_way.remove(&id);
        }
    }

    /// Takes a message. The error is a reason to end the connection.
    async fn receive(&mut self, message: Message) -> Result<(), String> {
        let held = self.context.home.hold(message.size());
        match message {
            Message::Binary(piece) => {
                let held = held.map_err(|error| error.to_string())?;
                lock(&self.context.client.arrived).take_piece(&piece, held)
            }
            Message::Json(json) => {
                self.receive_json(&json, held).await;
                Ok(())
            }
        }
    }

    async fn receive_json(&mut self, json: &[u8], held: Result<Held, RpcError>) {
        let message: Incoming = match aside(json.len(), || serde_json::from_slice(json)) {
            Ok(message) => message,
            Err(error) => {
                let error = match error.classify() {
                    serde_json::error::Category::Data => RpcError::InvalidRequest(format!(
                        "the message is not one of JSON-RPC 2.0 ({error}); batches are not supported"
                    )),
                    _ => RpcError::Parse(error.to_string()),
                };
                return self.refuse(None, &error);
            }
        };
        let Incoming {
            jsonrpc,
            id,
            method,
            params,
            result,
            error,
        } = message;
        if jsonrpc != JSONRPC {
            let problem = format!("\"jsonrpc\" must be \"{JSONRPC}\"");
            return self.refuse(id, &RpcError::InvalidRequest(problem));
        }
        let named = |parts: Option<&RawValue>| {
            parts.map_or_else(Named::default, |parts| {
                lock(&self.context.client.arrived).named_in(parts)
            })
        };
        match (method, id, error) {
            (None, Some(id), Some(error)) => self.context.client.answered(&id, Err(error)),
            (None, Some(id), None) => {
                let blobs = named(result.as_deref());
                self.context
                    .client
                    .answered(&id, Ok((result.unwrap_or_default(), blobs)));
            }
            (None, None, _) => {
                let problem = "a message needs a method, or the id of a request".to_owned();
                self.refuse(None, &RpcError::InvalidRequest(problem));
            }
            (Some(method), None, _) => self.notified(&method, params.as_deref()),
            (Some(method), Some(id), _) => {
                let blobs = named(params.as_deref());
                match held {
                    Ok(held) => self.requested(id, method, params, (blobs, held)).await,
                    Err(error) => self.refuse(Some(id), &error),
                }
            }
        }
    }

    fn refuse(&self, id: Option<Id>, error: &RpcError) {
        let response: Response<()> = Response {
            jsonrpc: JSONRPC,
            id,
            result: None,
            error: Some(error.to_object()),
        };
        self.context.client.send(&response);
    }

    /// Takes a notification. JSON-RPC has no answer to it, so an unknown one is ignored.
    fn notified(&self, method: &str, params: Option<&RawValue>) {
        if method == "drop"
            && let Some(Ok(DropBlob { blob })) = params.map(|params| serde_json::from_str(params.get()))
        {
            lock(&self.context.client.arrived).forget(blob);
        }
        if method == "cancel"
            && let Some(Ok(Cancel { id })) = params.map(|params| serde_json::from_str(params.get()))
        {
            let is_execution = lock(&self.context.sandboxes)
                .values()
                .any(|sandbox| sandbox.cancel(&id));
            if !is_execution && let Some(handle) = self.under_way.get(&id) {
                handle.abort();
            }
        }
    }

    /// Begins a request. Others may go on when it waits.
    async fn requested(&mut self, id: Id, method: String, params: Option<Box<RawValue>>, (blobs, held): (Named, Held)) {
        if !id.is_fit() || self.under_way.contains_key(&id) {
            // Without the id, which the client would take for the answer to its earlier request.
            let problem = "a request has a new id of at most 100 characters".to_owned();
            return self.refuse(None, &RpcError::InvalidRequest(problem));
        }
        if self.under_way.len() >= MAX_REQUESTS {
            let problem = format!("{MAX_REQUESTS} requests are under way already");
            return self.refuse(Some(id), &RpcError::TooMuch(problem));
        }
        if !self.is_greeted {
            return match self.greeted(&method, params.as_deref()) {
                Ok(welcome) => self.context.client.send(&Response {
                    jsonrpc: JSONRPC,
                    id: Some(id),
                    result: Some(welcome),
                    error: None,
                }),
                Err(error) => self.refuse(Some(id), &error),
            };
        }
        let (handle, registration) = AbortHandle::new_pair();
        let answer = Arc::clone(&self.context).answer(id.clone(), method, params, blobs);
        let client = Arc::clone(&self.context.client);
        let running = {
            let id = id.clone();
            async move {
                let _held = held;
                let answer = Abortable::new(answer, registration).await.unwrap_or_else(|_| {
                    Err(RpcError::Refused {
                        code: "cancelled".to_owned(),
                        message: "the request was cancelled; what it had begun may have taken effect".to_owned(),
                    })
                });
                let (result, error) = match answer {
                    Ok(result) => (Some(result), None),
                    Err(error) => (None, Some(error.to_object())),
                };
                client.send(&Response {
                    jsonrpc: JSONRPC,
                    id: Some(id.clone()),
                    result,
                    error,
                });
                Some(id)
            }
        };
        // The first poll submits the request to its sandbox, so that requests are begun in their order.
        let mut running: Running = Box::pin(running);
        let first = poll_fn(|context| Poll::Ready(running.as_mut().poll(context))).await;
        if first.is_pending() {
            self.under_way.insert(id, handle);
            self.running.push(running);
        }
    }

    fn greeted(&mut self, method: &str, params: Option<&RawValue>) -> Result<Welcome, RpcError> {
        if method != "hello" {
            return Err(RpcError::HelloFirst(format!("{method} came before hello")));
        }
        let Hello { version, client } = read(params)?;
        if version != VERSION {
            return Err(RpcError::HelloFirst(format!(
                "there is no version {version} of this wire"
            )));
        }
        tracing::debug!(client = client.as_deref().unwrap_or("unknown"), "a client");
        self.is_greeted = true;
        Ok(self.context.welcome.clone())
    }
}

/// Reads the parameters of a method.
pub(crate) fn read<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| RpcError::InvalidParams(format!("params: {error}")))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
