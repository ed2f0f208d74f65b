//! One connection: the requests of both sides, in order and bounded.
//!
//! Requests of the client are begun in the order in which they come, and run side by side. Requests of the server wait for the client's
//! answers. What is sent waits in the [`Outbox`].

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, join_all, poll_fn};
use futures_util::stream::FuturesUnordered;
use sandglass_host::Sandbox;
use sandglass_host::kept::{Kept, KeptFacts, Replay, ReplayOptions, ResumeOptions};
use sandglass_host::sandbox::{ExecuteOptions, Execution, SandboxBuilder};
use sandglass_host::traces::{InTrace, Trace};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::blobs::{Named, PIECE_BYTES, aside, pieces};
use crate::client::{Client, JSONRPC};
use crate::messages::{
    Approving, Cancel, DropBlob, Hello, Id, Incoming, MAX_REQUESTS, Response, RpcError, VERSION, Welcome,
};
use crate::methods::{Context, read};
use crate::notebook::Cells;
use crate::options::{Bounds, Options};
use crate::trace;

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

    /// The newest 1000 sandboxes that are kept by `persist`: those with a name of the client, or in the folders of `folder`.
    ///
    /// # Errors
    /// They cannot be listed, or this home keeps none.
    fn list_persisted(&self, folder: Option<String>) -> BoxFuture<'_, Result<Vec<KeptFacts>, RpcError>>;

    /// Removes what is kept under a name by `persist`. Succeeds if nothing is.
    ///
    /// # Errors
    /// A sandbox has it, it cannot be removed, or this home has no names.
    fn delete_persisted(&self, name: String) -> BoxFuture<'_, Result<(), RpcError>>;
}

/// A home's permit. Dropping it gives it back.
pub type Held = Box<dyn Send>;

/// The keeper of a sandbox in its home. Dropping it ends the sandbox.
pub trait Keeper: Send + Sync {
    /// Resolves when code may run in the sandbox's folder. Later commands wait meanwhile.
    ///
    /// # Errors
    /// The folder holds too much.
    fn room(&self) -> BoxFuture<'_, Result<(), RpcError>>;

    /// Runs code in the sandbox, within the home's own limits. Its first poll submits the code. Dropping the future interrupts the code.
    fn execute(&self, code: String, options: ExecuteOptions) -> BoxFuture<'_, Result<Execution, RpcError>>;

    /// Goes on with the pending execution of a kept sandbox, as [`Keeper::execute`].
    fn resume(&self, options: ResumeOptions) -> BoxFuture<'_, Result<Execution, RpcError>>;

    /// Runs an ended execution of a kept sandbox again, within the home's own limits.
    fn replay(&self, execution: u32, options: ReplayOptions) -> BoxFuture<'_, Result<Replay, RpcError>>;

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

/// The sandbox of a [`Made`].
#[derive(Debug, Clone)]
pub enum Inner {
    /// One that is the same until it is destroyed.
    Sandbox(Sandbox),
    /// One whose executions outlive this program. After a loss, another sandbox has its state.
    Kept(Arc<Kept>),
}

impl Inner {
    /// The sandbox whose executions outlive this program, if it is such a one.
    ///
    /// # Errors
    /// It is not.
    pub fn kept(&self) -> Result<&Arc<Kept>, RpcError> {
        match self {
            Self::Kept(kept) => Ok(kept),
            Self::Sandbox(_) => {
                let problem = "no execution is pending or has a journal: the sandbox was created without \"persist\"; nothing was done";
                Err(RpcError::InvalidParams(problem.to_owned()))
            }
        }
    }
}

impl From<Sandbox> for Inner {
    fn from(sandbox: Sandbox) -> Self {
        Self::Sandbox(sandbox)
    }
}

/// A sandbox that its home has made.
pub struct Made {
    /// The sandbox's id. No two sandboxes of a home have the same.
    pub id: String,
    /// The sandbox.
    pub sandbox: Inner,
    /// Its keeper.
    pub keeper: Box<dyn Keeper>,
    /// Its cells, if it is a notebook.
    pub cells: Option<Cells>,
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
    messages: VecDeque<Queued>,
    bytes: usize,
    last_blob: u32,
}

#[derive(Debug)]
struct Queued {
    message: Message,
    of: Of,
}

/// The owner of a message that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Nobody,
    /// A piece of a blob.
    Blob {
        id: u32,
        is_first: bool,
    },
    /// A request of the server.
    Request(u64),
}

impl Outbox {
    /// The next message to send, and some that wait behind it. The rest can still be taken back. Can be dropped and called again.
    pub async fn next(&self) -> Vec<Message> {
        loop {
            let changed = self.changed.notified();
            let messages = lock(&self.waiting).take();
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
    pub(crate) fn push_blob(&self, data: &Bytes) -> u32 {
        let mut waiting = lock(&self.waiting);
        waiting.last_blob = waiting.last_blob.wrapping_add(1);
        let id = waiting.last_blob;
        for (at, piece) in pieces(id, data).enumerate() {
            let is_first = at == 0;
            waiting.push(Message::Binary(piece), Of::Blob { id, is_first });
        }
        drop(waiting);
        self.changed.notify_one();
        id
    }

    pub(crate) fn push(&self, message: Message, of: Of) {
        lock(&self.waiting).push(message, of);
        self.changed.notify_one();
    }

    /// Takes a request back, and the blobs that it names, as far as they have not been sent. Returns true if the request was not sent,
    /// and then also the blobs of which something was.
    pub(crate) fn take_back(&self, request: Option<u64>, blobs: &[u32]) -> (bool, Vec<u32>) {
        let mut waiting = lock(&self.waiting);
        let waits = |of: Of| waiting.messages.iter().any(|queued| queued.of == of);
        let is_unsent = request.is_none_or(|id| waits(Of::Request(id)));
        if !is_unsent {
            return (false, Vec::new()); // so its blobs were sent, too
        }
        let is_begun = |id: &u32| {
            !waits(Of::Blob {
                id: *id,
                is_first: true,
            })
        };
        let begun = blobs.iter().copied().filter(is_begun).collect();
        waiting.remove(|of| match of {
            Of::Nobody => false,
            Of::Blob { id, .. } => blobs.contains(&id),
            Of::Request(id) => request == Some(id),
        });
        drop(waiting);
        self.taken.notify_waiters();
        (true, begun)
    }
}

impl Waiting {
    fn push(&mut self, message: Message, of: Of) {
        self.bytes += message.size();
        self.messages.push_back(Queued { message, of });
    }

    /// Takes the first messages, which are of about the size of a piece together.
    fn take(&mut self) -> Vec<Message> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < PIECE_BYTES
            && let Some(Queued { message, .. }) = self.messages.pop_front()
        {
            bytes += message.size();
            taken.push(message);
        }
        taken
    }

    fn remove(&mut self, is_meant: impl Fn(Of) -> bool) {
        let bytes = &mut self.bytes;
        self.messages.retain(|Queued { message, of }| {
            let stays = !is_meant(*of);
            if !stays {
                *bytes -= message.size();
            }
            stays
        });
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
        let context = Context {
            client: Arc::new(Client::new(home.bounds().max_blob_bytes, home.bounds().max_approval)),
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
        let sandboxes: Vec<_> = lock(&self.context.sandboxes)
            .drain()
            .map(|(_, sandbox)| sandbox)
            .collect();
        // A dropped request interrupts its code, and then no later program can go on with it.
        let kept = sandboxes.iter().filter(|sandbox| sandbox.kept().is_ok());
        join_all(kept.map(|sandbox| sandbox.keeper().destroy())).await;
        self.running.clear();
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
            traceparent,
            tracestate,
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
                    Ok(held) => {
                        let trace = trace::of_request(traceparent.as_deref(), tracestate.as_deref());
                        let requested = self.requested(id, method, params, (blobs, held), trace);
                        requested.await;
                    }
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
        if method == "approval"
            && let Some(Ok(Approving { id, pending })) = params.map(|params| serde_json::from_str(params.get()))
        {
            self.context.client.approving(id, pending);
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
    async fn requested(
        &mut self,
        id: Id,
        method: String,
        params: Option<Box<RawValue>>,
        (blobs, held): (Named, Held),
        trace: Trace,
    ) {
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
        let answer = answer.with_context(trace);
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
