//! WebSockets as their users see them: plain ones, and resumable ones, whose conversation outlives them.
//!
//! A resumable conversation has a task of its own, a *line*. It carries messages between the user and the WebSocket of the moment, waits for
//! the next WebSocket when one breaks, and ends the conversation when none comes in time.
//!
//! Decisions: `docs/internals/server.md`.

mod carried;
mod line;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use futures_util::stream::{BoxStream, SplitStream};
use futures_util::{Sink, StreamExt};
use sandglass_core::resumable::{Broken, Control, SUFFIX};
use tokio::time::timeout;

use super::App;
use super::connections::ConnectionPermit;
use super::errors::ApiError;
use super::metrics::Up;
use super::quotas::{Account, Held};
pub use line::Lines;
use line::{Arrival, Link};

/// The time for a close message to be sent.
pub const FAREWELL: Duration = Duration::from_secs(2);
/// The most bytes of a close message's reason.
const MAX_REASON_BYTES: usize = 120;
const NO_CONVERSATION: &str =
    "no conversation of this key waits with this token: its time to reconnect is over, or it has ended";

const DRAINS: &str = "this server is shutting down, and takes no new conversation; nothing was done: try again";

/// A WebSocket that a client has opened.
pub struct Opened {
    /// The WebSocket.
    pub socket: WebSocket,
    /// The form of its conversation.
    pub form: Form,
    /// The headers with which another server may be asked for its conversation; `None` if none may.
    pub onward: Option<HeaderMap>,
}

/// The form of a WebSocket's conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It ends with the WebSocket.
    Plain,
    /// It can go on over another one.
    Resumable,
}

/// A WebSocket for its user. Dropping it ends the conversation.
pub struct Socket {
    /// The client's messages. Ends when the client has left.
    pub incoming: BoxStream<'static, Result<Message, axum::Error>>,
    /// Messages to the client. A close message is the last.
    pub outgoing: Outgoing,
    /// The time for which nothing may come in.
    pub silence: Duration,
    /// False while the conversation has no WebSocket, and waits for the next one.
    pub is_linked: Arc<AtomicBool>,
    /// The permits of a plain WebSocket.
    pub permits: Option<Permits>,
}

/// The part of the server that a WebSocket takes, until this is dropped.
#[expect(dead_code, reason = "held for their drop")]
pub struct Permits {
    /// The permit of the TCP connection.
    pub connection: Arc<ConnectionPermit>,
    /// The permit of the request, which counts among those of its key.
    pub request: Arc<Held>,
    /// Its count among the open WebSockets.
    pub open: Up,
}

/// A response that goes over to a WebSocket with this subprotocol, or to its resumable form if the client asks for that. Tells the form.
///
/// # Errors
/// The client offers neither.
pub fn negotiate(
    app: &App,
    upgrade: WebSocketUpgrade,
    subprotocol: &str,
) -> Result<(WebSocketUpgrade, Form), ApiError> {
    let resumable = format!("{subprotocol}{SUFFIX}");
    let is_offered = |name: &str| upgrade.requested_protocols().any(|protocol| protocol == name);
    let (chosen, form) = if app.args.reconnect_within() > Duration::ZERO && is_offered(&resumable) {
        (resumable, Form::Resumable)
    } else if is_offered(subprotocol) {
        (subprotocol.to_owned(), Form::Plain)
    } else {
        let message = format!("the client must offer the subprotocol {subprotocol}");
        return Err(ApiError::invalid(message));
    };
    Ok((upgrade.protocols([chosen]), form))
}

/// A new WebSocket for messages of at most `most_bytes`. It begins a conversation at this place, unless it resumes one. `None` if it
/// does, or was refused.
pub async fn open(
    app: &App,
    account: &Arc<Account>,
    place: &str,
    most_bytes: usize,
    Opened { socket, form, onward }: Opened,
    permits: Permits,
) -> Option<Socket> {
    if form == Form::Plain {
        let silence = Duration::from_secs_f64(app.args.channel_silence_seconds);
        return Some(Socket::plain(socket, silence, permits));
    }
    let leads = onward.is_some();
    let link = match first(app, account, place, socket, permits).await? {
        First::Begins(link) => link,
        First::Unknown(arrival, token) => {
            match onward {
                Some(onward) => carried::carry(app, &account.owner, &token, arrival, onward).await,
                None => arrival.link.refuse(NO_CONVERSATION.to_owned()).await,
            }
            return None;
        }
    };
    if leads && app.draining.is_cancelled() {
        // Carried by a server that ends, it would end soon.
        link.refuse(DRAINS.to_owned()).await;
        return None;
    }
    match app.lines.begin(app, account, place, leads) {
        Ok(begun) => Some(begun.run(link, most_bytes)),
        Err(error) => {
            link.refuse(error.message).await;
            None
        }
    }
}

/// Closes a resumable WebSocket of a place that is gone. Its client hears the reason, or that of its conversation, which may have ended
/// while there was no WebSocket.
pub async fn close(app: &App, account: &Account, place: &str, socket: WebSocket, permits: Permits, reason: String) {
    match first(app, account, place, socket, permits).await {
        Some(First::Begins(link) | First::Unknown(Arrival { link, .. }, _)) => link.refuse(reason).await,
        None => {}
    }
}

/// A resumable WebSocket after its first message.
enum First {
    /// It begins a conversation.
    Begins(Link),
    /// It resumes a conversation that is not here, with this token.
    Unknown(Arrival, String),
}

/// Takes the first message of a resumable WebSocket. `None` if it resumes a conversation, or its client has left.
async fn first(app: &App, account: &Account, place: &str, socket: WebSocket, permits: Permits) -> Option<First> {
    let (sink, mut incoming) = socket.split();
    let outgoing = Outgoing::new(sink);
    let head = Duration::from_secs_f64(app.args.head_timeout_seconds);
    let greeting = timeout(head, greeting(&mut incoming)).await;
    let link = |number| Link::new(number, incoming, outgoing, permits);
    match greeting {
        Ok(Ok(Control::Begin {})) => return Some(First::Begins(link(1))),
        Ok(Ok(Control::Resume {
            token,
            link: number,
            taken,
        })) => {
            let arrival = Arrival {
                link: link(number),
                taken,
            };
            let resumed = app.lines.resume(&account.owner, place, &token, arrival).await;
            return resumed.err().map(|arrival| First::Unknown(arrival, token));
        }
        Ok(Ok(_)) => link(0).refuse(Broken::Malformed.to_string()).await,
        Ok(Err(())) | Err(_) => {} // the client has left, or is silent
    }
    None
}

/// The first message of a client.
async fn greeting(incoming: &mut SplitStream<WebSocket>) -> Result<Control, ()> {
    loop {
        match incoming.next().await {
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Text(text))) => {
                // Any other text is answered as a malformed one.
                let control = Control::read(&text).ok().flatten();
                return Ok(control.unwrap_or(Control::Taken { taken: 0 }));
            }
            _ => return Err(()),
        }
    }
}

impl Socket {
    fn plain(socket: WebSocket, silence: Duration, permits: Permits) -> Self {
        let (sink, incoming) = socket.split();
        Self {
            incoming: incoming.boxed(),
            outgoing: Outgoing::new(sink),
            silence,
            is_linked: Arc::new(AtomicBool::new(true)),
            permits: Some(permits),
        }
    }
}

/// Messages that wait for the client.
pub struct Outgoing {
    sink: Pin<Box<dyn Sink<Message, Error = axum::Error> + Send>>,
    messages: VecDeque<Message>,
    is_flushed: bool,
}

impl Outgoing {
    fn new(sink: impl Sink<Message, Error = axum::Error> + Send + 'static) -> Self {
        Self {
            sink: Box::pin(sink),
            messages: VecDeque::new(),
            is_flushed: true,
        }
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// Pings the client, unless earlier messages still wait.
    pub fn ping(&mut self) {
        if self.is_empty() {
            self.push(Message::Ping(Bytes::new()));
        }
    }

    /// Returns true when everything was sent.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.is_flushed
    }

    /// The number of messages that wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Sends all waiting messages. Can be dropped and called again.
    pub async fn send(&mut self) -> Result<(), axum::Error> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Closes the WebSocket after all waiting messages, if the client takes them in time.
    pub async fn close(&mut self, code: u16, mut reason: String) {
        while reason.len() > MAX_REASON_BYTES {
            reason.pop();
        }
        let reason = reason.into();
        self.push(Message::Close(Some(CloseFrame { code, reason })));
        let _ = timeout(FAREWELL, self.send()).await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        while !self.messages.is_empty() {
            ready!(self.sink.as_mut().poll_ready(context))?;
            if let Some(message) = self.messages.pop_front() {
                self.is_flushed = false;
                self.sink.as_mut().start_send(message)?;
            }
        }
        ready!(self.sink.as_mut().poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}
