//! Conversations that another server of the cluster holds: this one carries the WebSocket that resumes one there.
//!
//! The token leads to the server (`sandglass_states::Holder`), and the lease of that server to its address. The client's key goes along, and
//! both servers check it. The request is marked, and goes no further. Messages go both ways one by one, so a side that takes
//! nothing stops the other.
//!
//! A client that is closed without `ended` tries again. So it is told of an end only if the conversation has ended.
//!
//! Decisions: `docs/internals/server.md`.

use std::future::pending;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::Upgraded;
use sandglass_core::resumable::{Control, SUFFIX};
use sandglass_rpc::messages::MAX_JSON_BYTES;
use sandglass_states::{Holder, ServerId};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame as FrameThere, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message as There, Utf8Bytes};

use super::line::{Arrival, Link};
use super::{NO_CONVERSATION, Outgoing};
use crate::App;
use crate::forwarding;

/// The time for the other server to take the WebSocket.
const TAKING: Duration = Duration::from_secs(10);
/// The largest message of another server. Clients in Python take as much.
const MOST_BYTES: usize = 4 * MAX_JSON_BYTES;
const ENDED: &str = "the server that held the conversation has ended or was killed, and its sandboxes with it";
const UNKNOWN: &str = "the store does not tell which server holds the conversation: try again";
const NO_WAY: &str = "the server that holds the conversation does not take it now: try again";
const BROKEN: &str = "the connection to the server that holds the conversation broke: try again";
const OVER: &str = "the server that holds the conversation fell silent: try again, to hear if it has ended";
const SHUTTING_DOWN: &str = "this server is shutting down, and the conversation goes on: try again";

type Socket = WebSocketStream<Upgraded>;

/// Carries a WebSocket that resumes a conversation which is not held here. `onward` are the headers of its request.
pub(super) async fn carry(app: &App, owner: &str, token: &str, arrival: Arrival, onward: HeaderMap) {
    let holder = match (&app.suspension, URL_SAFE_NO_PAD.decode(token)) {
        (Some(suspension), Ok(token)) => suspension.holder(owner, token).await,
        _ => Some(Holder::Nobody),
    };
    let living = match holder {
        None => return arrival.link.put_off(close_code::AGAIN, UNKNOWN).await,
        Some(Holder::Nobody) => return arrival.link.refuse(NO_CONVERSATION.to_owned()).await,
        Some(Holder::Ended) => return arrival.link.refuse(ENDED.to_owned()).await,
        Some(Holder::Other(living)) => living,
    };
    let Some(address) = living.address else {
        return arrival.link.put_off(close_code::AGAIN, NO_WAY).await;
    };
    let greeting = Control::Resume {
        token: token.to_owned(),
        link: arrival.link.number(),
        taken: arrival.taken,
    };
    let reached = tokio::select! {
        reached = timeout(TAKING, reach(app, &address, onward, &greeting)) => reached.ok().flatten(),
        () = forwarding::over(app.clone(), living.server) => None,
        () = app.ending.cancelled() => None,
    };
    let Some(there) = reached else {
        app.metrics.forward("unreachable");
        return arrival.link.put_off(close_code::AGAIN, NO_WAY).await;
    };
    app.metrics.forward("answered");
    tracing::debug!(%address, link = arrival.link.number(), "a conversation is carried to its server");
    relay(app, living.server, arrival.link, there).await;
}

/// A WebSocket of the other server, which has the greeting. `None` if it does not take one.
async fn reach(app: &App, address: &str, onward: HeaderMap, greeting: &Control) -> Option<Socket> {
    let client = app.forwarding.as_ref()?.client();
    let answer = client.get(format!("{address}/v1/rpc")).headers(onward).send().await;
    let answer = answer
        .inspect_err(|error| tracing::debug!(%error, address, "a conversation cannot be carried"))
        .ok()?;
    let chosen = answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
    let is_resumable = chosen.is_some_and(|chosen| chosen.to_str().is_ok_and(|chosen| chosen.ends_with(SUFFIX)));
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !is_resumable {
        let status = answer.status().as_u16();
        tracing::warn!(
            address,
            status,
            "a server of the cluster does not take a conversation up again"
        );
        return None;
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(MOST_BYTES))
        .max_frame_size(Some(MOST_BYTES));
    let upgraded = answer.upgrade().await.ok()?;
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
    socket.send(There::text(greeting.text())).await.ok()?;
    Some(socket)
}

/// The end of a relay.
enum End {
    /// The client has left, or is silent: the conversation waits for it.
    Left,
    /// The client is to be told.
    Told(Option<CloseFrame>),
}

async fn relay(app: &App, server: ServerId, link: Link, there: Socket) {
    let silence = Duration::from_secs_f64(app.args.channel_silence_seconds);
    let (incoming, mut outgoing, _permits) = link.into_parts();
    let (to_there, from_there) = there.split();
    let end = tokio::select! {
        end = from_client(incoming, to_there, silence) => end,
        end = from_server(from_there, &mut outgoing) => end,
        () = forwarding::over(app.clone(), server) => End::told(close_code::RESTART, OVER),
        () = app.ending.cancelled() => End::told(close_code::RESTART, SHUTTING_DOWN),
    };
    match end {
        End::Left => {}
        End::Told(Some(CloseFrame { code, reason })) => outgoing.close(code, reason.to_string()).await,
        End::Told(None) => outgoing.close(close_code::NORMAL, String::new()).await,
    }
}

impl End {
    fn told(code: u16, reason: &'static str) -> Self {
        Self::Told(Some(CloseFrame {
            code,
            reason: reason.into(),
        }))
    }
}

/// Carries the client's messages. The pings of the other server reach the client, so one that is there is never silent.
async fn from_client(
    mut incoming: SplitStream<WebSocket>,
    mut to_there: SplitSink<Socket, There>,
    silence: Duration,
) -> End {
    loop {
        let message = match timeout(silence, incoming.next()).await {
            Err(_) | Ok(None | Some(Err(_))) => return End::Left,
            Ok(Some(Ok(message))) => message,
        };
        let is_last = matches!(message, Message::Close(_));
        let sent = match onward(message) {
            Some(message) => to_there.send(message).await,
            None => Ok(()),
        };
        match sent {
            // The other server may have said why before.
            Err(_) => return pending().await,
            Ok(()) if is_last => return End::Left,
            Ok(()) => {}
        }
    }
}

/// Carries the other server's messages.
async fn from_server(mut from_there: SplitStream<Socket>, outgoing: &mut Outgoing) -> End {
    loop {
        let message = match from_there.next().await {
            None | Some(Err(_)) => return End::told(close_code::RESTART, BROKEN),
            Some(Ok(There::Close(frame))) => {
                return End::Told(frame.map(|frame| CloseFrame {
                    code: frame.code.into(),
                    reason: frame.reason.as_str().into(),
                }));
            }
            Some(Ok(message)) => message,
        };
        if let Some(message) = backward(message) {
            outgoing.push(message);
            if outgoing.send().await.is_err() {
                return End::Left;
            }
        }
    }
}

/// A message for the other server. This one has answered pings already.
fn onward(message: Message) -> Option<There> {
    match message {
        Message::Text(text) => Utf8Bytes::try_from(Bytes::from(text)).ok().map(There::Text),
        Message::Binary(data) => Some(There::Binary(data)),
        Message::Ping(_) | Message::Pong(_) => None,
        Message::Close(frame) => Some(There::Close(frame.map(|frame| FrameThere {
            code: frame.code.into(),
            reason: frame.reason.as_str().into(),
        }))),
    }
}

/// A message for the client.
fn backward(message: There) -> Option<Message> {
    match message {
        There::Text(text) => axum::extract::ws::Utf8Bytes::try_from(Bytes::from(text))
            .ok()
            .map(Message::Text),
        There::Binary(data) => Some(Message::Binary(data)),
        There::Ping(data) => Some(Message::Ping(data)),
        There::Pong(_) | There::Frame(_) | There::Close(_) => None,
    }
}
