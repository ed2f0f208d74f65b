//! JSON-RPC on a WebSocket. The sandboxes of a connection are sessions of its key, and end with the connection. A client can ask for one
//! that it can take up again when its WebSocket breaks. What a sandbox with `persist` holds outlives its session.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message as Frame, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use sandglass_host::kept::{Kept, KeptFacts, Replay, ReplayOptions, ResumeOptions};
use sandglass_host::sandbox::{ExecuteOptions, Execution, SandboxBuilder};
use sandglass_rpc::messages::{MAX_JSON_BYTES, MIN_MESSAGE_BYTES, SUBPROTOCOL};
use sandglass_rpc::options::{Bounds, Options};
use sandglass_rpc::{Connection, Held, Home, Inner, Keeper, Made, Message, Outbox, RpcError};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::App;
use super::access;
use super::connections::ConnectionPermit;
use super::create;
use super::errors::ApiError;
use super::execute;
use super::forwarding;
use super::kept::KeptSandboxes;
use super::quotas::{self, Account};
use super::replaying;
use super::sessions::{InUse, Kind, Session};
use super::sockets::{self, FAREWELL, Opened, Outgoing, Permits, Socket};
use super::storage::Fate;

/// The place of these conversations among those of the server.
const PLACE: &str = "rpc";

/// `GET /v1/rpc`.
pub async fn rpc(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    Extension(connection): Extension<Arc<ConnectionPermit>>,
    Extension(held): Extension<Arc<quotas::Held>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    let (upgrade, form) = sockets::negotiate(&app, upgrade, SUBPROTOCOL)?;
    let onward = forwarding::of_conversation(&app, &headers);
    let key = access::presented_key(&headers).and_then(|key| {
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", &key[..]].concat()).ok()?;
        value.set_sensitive(true);
        Some(value)
    });
    let permits = Permits {
        connection,
        request: held,
        open: app.metrics.channels.up(),
    };
    let most_bytes = app.args.body_limits().most_bytes;
    let most_bytes = most_bytes.clamp(MIN_MESSAGE_BYTES, MAX_JSON_BYTES);
    let upgrade = upgrade
        .max_message_size(most_bytes)
        .max_frame_size(most_bytes)
        .on_failed_upgrade(|error| tracing::debug!(%error, "no WebSocket came of it"));
    Ok(upgrade.on_upgrade(async move |socket| {
        let socket = Opened { socket, form, onward };
        if let Some(socket) = sockets::open(&app, &account, PLACE, most_bytes, socket, permits).await {
            serve(app, account, key, socket).await;
        }
    }))
}

async fn serve(app: App, account: Arc<Account>, key: Option<HeaderValue>, socket: Socket) {
    let Socket {
        incoming,
        mut outgoing,
        silence,
        is_linked,
        permits: _permits,
    } = socket;
    let ending = app.ending.clone();
    let connection = Connection::new(Arc::new(OfKey {
        bounds: create::bounds(&app),
        app,
        account,
        key,
        is_linked,
    }));
    let (outbox, broken) = (connection.outbox(), connection.broken());
    let closed = broken.clone();
    let mut writing = tokio::spawn(async move {
        tokio::select! {
            () = write_all(&outbox, &mut outgoing, silence) => {}
            () = closed.cancelled() => {}
        }
        closed.cancel(); // the client has gone
        outgoing
    });
    let shut_down = broken.clone();
    let watch = ending.clone();
    let watching = tokio::spawn(async move {
        watch.cancelled().await;
        shut_down.cancel();
    });
    let ended = connection.serve(messages(incoming, silence)).await;
    watching.abort();
    broken.cancel();
    let (code, reason) = match ended {
        Ok(()) if ending.is_cancelled() => (close_code::RESTART, "the server is shutting down".to_owned()),
        Ok(()) => (close_code::NORMAL, String::new()),
        Err(reason) => (close_code::POLICY, reason),
    };
    if let Ok(Ok(mut outgoing)) = timeout(FAREWELL, &mut writing).await {
        outgoing.close(code, reason).await;
    }
    writing.abort();
}

/// Sends all messages, and pings in between. Ends when the socket fails.
async fn write_all(outbox: &Outbox, outgoing: &mut Outgoing, silence: Duration) {
    let mut pings = interval((silence / 3).max(Duration::from_millis(1)));
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = VecDeque::new();
    loop {
        let message = tokio::select! {
            biased;
            _ = pings.tick() => None,
            messages = outbox.next(), if waiting.is_empty() => {
                waiting.extend(messages);
                continue;
            }
            () = ready(()), if !waiting.is_empty() => waiting.pop_front(),
        };
        match &message {
            None => outgoing.ping(),
            Some(Message::Json(json)) => match json.clone().try_into() {
                Ok(text) => outgoing.push(Frame::Text(text)),
                Err(_) => return, // messages are made by serde, so they are UTF-8
            },
            Some(Message::Binary(piece)) => outgoing.push(Frame::Binary(piece.clone())),
        }
        if outgoing.send().await.is_err() {
            return;
        }
        if let Some(message) = message {
            outbox.sent(&message);
        }
    }
}

/// The client's messages. Ends with an error if the client is silent for too long.
fn messages(
    incoming: BoxStream<'static, Result<Frame, axum::Error>>,
    silence: Duration,
) -> impl Stream<Item = Result<Message, String>> {
    stream::unfold(Some(incoming), move |incoming| async move {
        let mut incoming = incoming?;
        loop {
            let message = match timeout(silence, incoming.next()).await {
                Err(_) => return Some((Err("the client was silent for too long".to_owned()), None)),
                Ok(None | Some(Err(_) | Ok(Frame::Close(_)))) => return None,
                Ok(Some(Ok(Frame::Text(text)))) => Message::Json(text.into()),
                Ok(Some(Ok(Frame::Binary(piece)))) => Message::Binary(piece),
                Ok(Some(Ok(Frame::Ping(_) | Frame::Pong(_)))) => continue,
            };
            return Some((Ok(message), Some(incoming)));
        }
    })
}

/// The home of a key's sandboxes: the server's sessions.
struct OfKey {
    app: App,
    account: Arc<Account>,
    /// The client's authorization, for a server that holds a name which this client wants.
    key: Option<HeaderValue>,
    bounds: Bounds,
    /// False while the client is away, and may come back.
    is_linked: Arc<AtomicBool>,
}

impl OfKey {
    /// Makes a sandbox whose executions outlive this server.
    async fn kept(
        &self,
        name: &str,
        options: &Options,
        place: quotas::Held,
        client: Box<dyn FnOnce(SandboxBuilder) -> SandboxBuilder + Send>,
    ) -> Result<Made, RpcError> {
        KeptSandboxes::ask_for(&self.app, &self.account, name, self.key.as_ref())
            .await
            .map_err(told)?;
        let opened = KeptSandboxes::open(&self.app, &self.account, name)
            .await
            .map_err(told)?;
        let builder = client(create::kept_builder(&self.app, options).without_context());
        let kept = Kept::open(builder, opened.place()).await?;
        let made = create::make_kept(&self.app, &self.account, (Arc::clone(&kept), opened), place);
        let session = made.await.map_err(told)?;
        if let Kind::Kept { opened, .. } = &session.kind {
            opened.is_had_by(&session.id, Arc::clone(&self.is_linked));
        }
        Ok(self.made(&session, Inner::Kept(kept), session.used()))
    }

    /// A sandbox with its keeper.
    fn made(&self, session: &Arc<Session>, sandbox: Inner, in_use: InUse) -> Made {
        Made {
            id: session.id.clone(),
            sandbox,
            keeper: Box::new(OfSession::new(&self.app, &self.account, Arc::clone(session), in_use)),
            cells: None,
        }
    }
}

impl Home for OfKey {
    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    fn hold(&self, bytes: usize) -> Result<Held, RpcError> {
        Ok(Box::new(self.account.body(bytes).map_err(told)?))
    }

    fn make(
        &self,
        options: Options,
        client: Box<dyn FnOnce(SandboxBuilder) -> SandboxBuilder + Send>,
    ) -> BoxFuture<'_, Result<Made, RpcError>> {
        async move {
            let place = self.account.session().map_err(told)?;
            if let Some(name) = &options.persist {
                return self.kept(name, &options, place, client).await;
            }
            let session = create::make(&self.app, &self.account, options, place, None, client);
            let session = session.await.map_err(told)?;
            let (sandbox, in_use) = session.sandbox().await.map_err(told)?;
            Ok(self.made(&session, sandbox.into(), in_use))
        }
        .boxed()
    }

    fn list_persisted(&self, folder: Option<String>) -> BoxFuture<'_, Result<Vec<KeptFacts>, RpcError>> {
        async move {
            if folder.is_some() {
                let problem = "folder: a server keeps sandboxes under names; leave it out";
                return Err(RpcError::InvalidParams(problem.to_owned()));
            }
            KeptSandboxes::names(&self.app, &self.account).await.map_err(told)
        }
        .boxed()
    }

    fn delete_persisted(&self, name: String) -> BoxFuture<'_, Result<(), RpcError>> {
        async move {
            KeptSandboxes::ask_for(&self.app, &self.account, &name, self.key.as_ref())
                .await
                .map_err(told)?;
            let deleted = KeptSandboxes::delete(&self.app, &self.account, &name).await;
            deleted.map_err(told)
        }
        .boxed()
    }
}

/// The keeper of a session's sandbox. The session ends with it.
pub(super) struct OfSession {
    app: App,
    account: Arc<Account>,
    session: Arc<Session>,
    /// The session does not expire as long as its client is there.
    _in_use: InUse,
}

impl OfSession {
    pub(super) fn new(app: &App, account: &Arc<Account>, session: Arc<Session>, in_use: InUse) -> Self {
        Self {
            app: app.clone(),
            account: Arc::clone(account),
            session,
            _in_use: in_use,
        }
    }
}

impl Keeper for OfSession {
    fn room(&self) -> BoxFuture<'_, Result<(), RpcError>> {
        async move {
            match self.session.folder() {
                Some(folder) => folder.room().await.map_err(told),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn execute(&self, code: String, options: ExecuteOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        let session = Arc::clone(&self.session);
        let execution = execute::run(self.app.clone(), &self.account, session, code, options);
        async move { execution.await.map_err(told) }.boxed()
    }

    fn resume(&self, options: ResumeOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        let session = Arc::clone(&self.session);
        let execution = execute::resume(self.app.clone(), &self.account, session, options);
        async move { execution.await.map_err(told) }.boxed()
    }

    fn replay(&self, execution: u32, options: ReplayOptions) -> BoxFuture<'_, Result<Replay, RpcError>> {
        async move {
            let replayed = replaying::run(&self.account, &self.session, execution, options);
            replayed.await.map_err(told)
        }
        .boxed()
    }

    fn admit(&self, timeout_ms: Option<f64>) -> Result<Held, RpcError> {
        execute::check_timeout(&self.app, timeout_ms).map_err(told)?;
        Ok(Box::new(self.account.execution().map_err(told)?))
    }

    fn room_for(&self, bytes: usize) -> BoxFuture<'_, Result<(), RpcError>> {
        async move {
            match self.session.folder() {
                Some(folder) => folder.room_for(bytes as u64).await.map_err(told),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn destroy(&self) -> BoxFuture<'_, ()> {
        let (app, id) = (self.app.clone(), self.session.id.clone());
        // The removal goes on when the connection ends.
        let removing = tokio::spawn(async move { app.sessions.remove(&id, Fate::Removed).await });
        async move { drop(removing.await) }.boxed()
    }
}

impl Drop for OfSession {
    fn drop(&mut self) {
        let (app, id) = (self.app.clone(), self.session.id.clone());
        tokio::spawn(async move { app.sessions.remove(&id, Fate::Removed).await });
    }
}

fn told(error: ApiError) -> RpcError {
    RpcError::Refused {
        code: error.code.to_owned(),
        message: error.message,
    }
}
