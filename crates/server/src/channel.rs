//! The WebSocket relay between a remote supervisor (the page's own `Session`) and a guest on this server.
//!
//! | message | from | is |
//! |---|---|---|
//! | `{"type":"boot"}` | client | start a fresh guest; the one before is ended |
//! | `{"type":"kill"}` | client | end the guest; with `"guest":n`, only if it is that one |
//! | `{"type":"revive","checkpoint":c}` | client | as `boot`, with the state of a checkpoint |
//! | `{"type":"pause","guest":n,"checkpoint":c}` | client | save the guest's state as checkpoint `c`, a number of the client's |
//! | `{"type":"drop","checkpoint":c}` | client | give up a checkpoint |
//! | `{"type":"booted","guest":n}` | server | guest `n`, from 1 on, takes messages |
//! | `{"type":"lost","guest":n,"message":…,"killer":…}` | server | guest `n` ended, or could not start |
//! | `{"type":"paused","guest":n,"checkpoint":c}` | server | the state is saved |
//! | `{"type":"unpaused","guest":n,"checkpoint":c,"message":…}` | server | the state cannot be saved, and why |
//! | `{"type":"gone","checkpoint":c,"message":…}` | server | a checkpoint is lost, and why |
//! | binary | both | `u32 LE` guest number, then a frame without its length and epoch |
//!
//! Binary messages for another guest are dropped. While the socket is full, the relay stops reading from the guest. While the
//! guest takes nothing, the relay stops reading from the socket. A long body travels in pieces (`part` events), because a page
//! that receives one large message can do nothing else meanwhile.
//!
//! In the resumable form of the subprotocol, all of this goes on when the client comes back with another WebSocket.
//!
//! Decisions: `docs/internals/server.md`.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocketUpgrade, close_code};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use sandglass_core::SUBPROTOCOL;
use sandglass_core::protocol::{Event, Request};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::App;
use super::bodies::sized;
use super::checkpoints::{self, Checkpoints};
use super::connections::ConnectionPermit;
use super::errors::ApiError;
use super::exchanges::{ended_exchange, exchange_of};
use super::own_session::OwnSession;
use super::pieces::messages;
use super::quotas::{Account, Held};
use super::relayed::{FromGuest, Running};
use super::sessions::{Attached, Kind, Session};
use super::sockets::{self, Form, Opened, Outgoing, Permits, Socket};
use super::storage::{Excess, Fate};
use futures_util::future::BoxFuture;
use sandglass_host::Killer;
use sandglass_host::frame::Frame;
use sandglass_host::guest::{Exit, Guest};
use sandglass_host::launcher::Launcher;

/// The bytes of a message beyond its largest body.
const SLACK_BYTES: usize = 1 << 20;
/// Messages that the client has not taken. Above this number the client's requests are not read, because each could cause more.
const MOST_WAITING: usize = 256;

/// `GET /v1/sessions/{id}/channel`.
pub async fn channel(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    Extension(connection): Extension<Arc<ConnectionPermit>>,
    Extension(held): Extension<Arc<Held>>,
    id: Result<Path<String>, PathRejection>,
    session: Result<OwnSession, ApiError>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let most_bytes = app.args.body_limits().most_bytes + SLACK_BYTES;
    let permits = Permits {
        connection,
        request: held,
        open: app.metrics.channels.up(),
    };
    let OwnSession(session, _in_use) = match session {
        Ok(session) => session,
        Err(error) => {
            let (Ok(Path(id)), Ok(upgrade)) = (id, upgrade) else {
                return Err(error);
            };
            let Ok((upgrade, Form::Resumable)) = sockets::negotiate(&app, upgrade, SUBPROTOCOL) else {
                return Err(error);
            };
            // A page cannot read the status of a WebSocket's response, and would try again and again.
            return Ok(upgrade.max_message_size(most_bytes).on_upgrade(async move |socket| {
                sockets::close(&app, &account, &id, socket, permits, error.message).await;
            }));
        }
    };
    let Kind::Channel {
        launcher,
        most_value_bytes,
        memory_bytes,
    } = &session.kind
    else {
        let message = "this session was not created with \"channel\": true";
        return Err(ApiError::new(StatusCode::CONFLICT, "no_channel", message));
    };
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    let (upgrade, form) = sockets::negotiate(&app, upgrade, SUBPROTOCOL)?;
    let attached = session.attach();
    if attached.is_none() && form == Form::Plain {
        return Err(ApiError::new(StatusCode::CONFLICT, "channel_taken", TAKEN));
    }
    let guests = Guests {
        launcher: Arc::clone(launcher),
        most_value_bytes: *most_value_bytes,
        memory_bytes: *memory_bytes,
    };
    let failed = Arc::clone(&session);
    let upgrade = upgrade
        .max_message_size(most_bytes)
        .max_frame_size(most_bytes)
        .on_failed_upgrade(move |error| tracing::debug!(session = failed.id, %error, "no WebSocket came of it"));
    Ok(upgrade.on_upgrade(async move |socket| {
        let socket = Opened {
            socket,
            form,
            onward: None, // the request was forwarded to the server of the session already
        };
        let opened = sockets::open(&app, &account, &session.id, most_bytes, socket, permits).await;
        // A channel that is resumed is attached already.
        match (opened, attached) {
            (Some(socket), Some(attached)) => Relay::new(app, account, session, socket, guests).run(attached).await,
            (Some(mut socket), None) => socket.outgoing.close(close_code::POLICY, TAKEN.to_owned()).await,
            (None, _) => {}
        }
    }))
}

/// The source of the session's guests.
struct Guests {
    launcher: Arc<dyn Launcher>,
    most_value_bytes: usize,
    memory_bytes: f64,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Command {
    Boot,
    Kill { guest: Option<u32> },
    Revive { checkpoint: u32 },
    Pause { guest: u32, checkpoint: u32 },
    Drop { checkpoint: u32 },
}

const TAKEN: &str = "a session has one channel at a time, and this session's is open";

/// The WebSocket close code and reason that the client gets.
struct Farewell(u16, &'static str);

const CLIENT_LEFT: Farewell = Farewell(close_code::NORMAL, "");
const DESTROYED: Farewell = Farewell(close_code::AWAY, "the session was destroyed");
const SHUTTING_DOWN: Farewell = Farewell(close_code::RESTART, "the server is shutting down");
const IDLE: Farewell = Farewell(close_code::AWAY, "the session has expired: it was idle for too long");
const SILENT: Farewell = Farewell(close_code::POLICY, "the client was silent for too long");
const NO_COMMAND: Farewell = Farewell(close_code::POLICY, "a text message must be a command");
const NO_FRAME: Farewell = Farewell(close_code::POLICY, "a binary message must be the frame of a request");
const QUOTA: Farewell = Farewell(close_code::AGAIN, "too many bytes of this key are under way");

struct Relay {
    app: App,
    account: Arc<Account>,
    session: Arc<Session>,
    guests: Guests,
    incoming: BoxStream<'static, Result<Message, axum::Error>>,
    outgoing: Outgoing,
    silence: Duration,
    _permits: Option<Permits>,
    number: u32,
    booting: Option<BoxFuture<'static, Result<Guest, sandglass_core::Error>>>,
    guest: Option<Running>,
    checkpoints: Checkpoints,
    /// The number of the running exchange.
    exchange: Option<u32>,
    heard_at: Instant,
    used_at: Instant,
}

/// The next event of the relay's loop.
enum Happened {
    Message(Option<Result<Message, axum::Error>>),
    Sent(Result<(), axum::Error>),
    Booted(Result<Guest, sandglass_core::Error>),
    Guest(FromGuest),
    Checkpoints(checkpoints::Happened),
    /// The session's folder exceeds its quota.
    Excess(String),
    Tick,
    End(Farewell),
}

impl Relay {
    fn new(app: App, account: Arc<Account>, session: Arc<Session>, socket: Socket, guests: Guests) -> Self {
        let checkpoints = Checkpoints::new(guests.launcher.checkpoints(), guests.memory_bytes);
        Self {
            app,
            account,
            session,
            guests,
            checkpoints,
            incoming: socket.incoming,
            outgoing: socket.outgoing,
            silence: socket.silence,
            _permits: socket.permits,
            number: 0,
            booting: None,
            guest: None,
            exchange: None,
            heard_at: Instant::now(),
            used_at: Instant::now(),
        }
    }

    async fn run(mut self, attached: Attached) {
        let Farewell(code, reason) = self.relay().await;
        tracing::debug!(session = self.session.id, code, reason, "a channel ends");
        // The guest ends first, because nobody can use it any more.
        self.end_guest(false).await;
        self.checkpoints.end_all().await;
        self.app.sessions.remove(&self.session.id, Fate::Kept).await;
        // A request that destroyed the session may have left this step to the relay.
        self.session.settle().await;
        drop(self.incoming); // a resumable conversation ends even if the client takes nothing
        self.outgoing.close(code, reason.to_owned()).await;
        drop(attached);
    }

    async fn relay(&mut self) -> Farewell {
        let silence = self.silence;
        let idle = Duration::from_secs_f64(self.app.args.session_idle_seconds);
        let ending = self.app.ending.clone();
        let destroyed = self.session.destroyed();
        let folder = self.session.folder();
        let mut excess = folder.map_or_else(Excess::none, |folder| folder.excess());
        let mut pings = interval((silence / 3).max(Duration::from_millis(1)));
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_busy = self.exchange.is_some() || self.booting.is_some();
            let socket_is_free = self.outgoing.is_empty();
            let takes_more = Running::takes_more(self.guest.as_ref()) && self.outgoing.len() < MOST_WAITING;
            let happened = tokio::select! {
                () = destroyed.cancelled() => Happened::End(DESTROYED),
                () = ending.cancelled(), if !is_busy => Happened::End(SHUTTING_DOWN),
                () = sleep_until(self.heard_at + silence) => Happened::End(SILENT),
                () = sleep_until(self.used_at + idle), if !is_busy => Happened::End(IDLE),
                message = self.incoming.next(), if takes_more => Happened::Message(message),
                sent = self.outgoing.send(), if !socket_is_free => Happened::Sent(sent),
                booted = boot(self.booting.as_mut()) => Happened::Booted(booted),
                from = next(self.guest.as_mut(), socket_is_free) => Happened::Guest(from),
                happened = self.checkpoints.next() => Happened::Checkpoints(happened),
                why = excess.next(), if self.guest.is_some() => Happened::Excess(why),
                _ = pings.tick() => Happened::Tick,
            };
            let went_on = match happened {
                Happened::Message(Some(Ok(message))) => {
                    self.heard_at = Instant::now();
                    self.take(message).await
                }
                Happened::Message(_) | Happened::Sent(Err(_)) => Err(CLIENT_LEFT),
                Happened::Sent(Ok(())) => Ok(()),
                Happened::Booted(booted) => {
                    self.booted(booted);
                    Ok(())
                }
                Happened::Guest(from) => {
                    self.guest_said(from).await;
                    Ok(())
                }
                Happened::Checkpoints(happened) => {
                    self.checkpoint_happened(happened);
                    Ok(())
                }
                Happened::Excess(why) => {
                    self.overflowed(&why).await;
                    Ok(())
                }
                Happened::Tick => {
                    self.outgoing.ping();
                    Ok(())
                }
                Happened::End(farewell) => Err(farewell),
            };
            if let Err(farewell) = went_on {
                return farewell;
            }
        }
    }

    async fn take(&mut self, message: Message) -> Result<(), Farewell> {
        match message {
            Message::Text(text) => {
                self.used_at = Instant::now();
                match serde_json::from_str(&text).map_err(|_| NO_COMMAND)? {
                    Command::Boot => self.boot(None).await,
                    Command::Revive { checkpoint } => self.boot(Some(checkpoint)).await,
                    Command::Pause { guest, checkpoint } if guest == self.number => self.pause(checkpoint),
                    Command::Pause { .. } => {}
                    Command::Drop { checkpoint } => self.checkpoints.forget(checkpoint),
                    Command::Kill { guest } if guest.is_some_and(|guest| guest != self.number) => {}
                    Command::Kill { .. } => self.kill().await,
                }
                Ok(())
            }
            Message::Binary(bytes) => {
                self.used_at = Instant::now();
                self.forward(bytes).await
            }
            Message::Close(_) => Err(CLIENT_LEFT),
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        }
    }

    async fn boot(&mut self, checkpoint: Option<u32>) {
        self.end_guest(false).await;
        self.number += 1;
        self.booting = Some(match checkpoint {
            Some(checkpoint) => self.checkpoints.revive(checkpoint),
            None => self.checkpoints.launch(Arc::clone(&self.guests.launcher)),
        });
    }

    fn pause(&mut self, checkpoint: u32) {
        let Some(Running { process, kin, .. }) = &self.guest else {
            return;
        };
        if let Err(why) = self.checkpoints.pause(checkpoint, process, kin) {
            self.checkpoint_happened(checkpoints::Happened::Made(checkpoint, Err(why)));
        }
    }

    fn checkpoint_happened(&mut self, happened: checkpoints::Happened) {
        if let checkpoints::Happened::Made(checkpoint, made) = happened {
            let mut told = json!({ "type": "paused", "guest": self.number, "checkpoint": checkpoint });
            if let Err(why) = made {
                (told["type"], told["message"]) = ("unpaused".into(), why.into());
            }
            self.tell(&told);
        }
        if let Some(Running { process, kin, .. }) = &self.guest
            && let Some(given_up) = self.checkpoints.look_at_memory(process, kin)
        {
            self.tell_gone(&[given_up], "memory is short");
        }
    }

    fn tell_gone(&mut self, checkpoints: &[u32], why: &str) {
        for checkpoint in checkpoints {
            self.tell(&json!({ "type": "gone", "checkpoint": checkpoint, "message": why }));
        }
    }

    /// Tells of checkpoints that have ended, before the client relies on them.
    fn tell_ended(&mut self) {
        let gone = self.checkpoints.gone();
        self.tell_gone(&gone, "the process that held it has ended");
    }

    fn booted(&mut self, booted: Result<Guest, sandglass_core::Error>) {
        self.booting = None;
        match booted {
            Ok(guest) => {
                let guest = Running::new(guest, self.guests.most_value_bytes);
                let gone = self.checkpoints.started(&guest.kin);
                self.tell_gone(&gone, "a guest within new limits has started");
                self.guest = Some(guest);
                self.tell(&json!({ "type": "booted", "guest": self.number }));
            }
            Err(error) => self.tell_lost(&error.to_string(), None),
        }
    }

    async fn kill(&mut self) {
        let is_there = self.guest.is_some() || self.booting.is_some();
        self.end_guest(false).await;
        if is_there {
            self.tell_ended();
            self.tell_lost("it was killed, as the client asked", None);
        }
    }

    /// Ends the guest with all its processes but the paused copies. Waits for the end, if there are none.
    async fn end_guest(&mut self, has_closed: bool) -> Option<Exit> {
        self.booting = None;
        self.exchange = None;
        self.checkpoints.guest_ends();
        let guest = self.guest.take()?;
        if !self.checkpoints.has_copies_of(&guest.kin) {
            return guest.end(has_closed).await;
        }
        let is_oom = guest.process.hits().oom > guest.begun.oom;
        self.checkpoints.end_guest(guest.process, guest.kin);
        Some(Exit {
            killer: is_oom.then_some(Killer::Oom),
            ..Exit::default()
        })
    }

    async fn forward(&mut self, mut bytes: Bytes) -> Result<(), Farewell> {
        if bytes.len() < 4 {
            return Err(NO_FRAME);
        }
        let number = bytes.split_to(4);
        if number != self.number.to_le_bytes()[..] {
            return Ok(());
        }
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let held = self.account.body(bytes.len()).map_err(|_| QUOTA)?;
        let size = bytes.len();
        let frame = Frame::parse(bytes).map_err(|_| NO_FRAME)?;
        let header = frame.header.clone();
        let request = sized(header.len(), move || serde_json::from_slice::<Request>(&header)).await;
        let request = request.ok().and_then(Result::ok).ok_or(NO_FRAME)?;
        if let Some(exchange) = exchange_of(&request) {
            self.exchange = Some(exchange);
            guest.begun = guest.process.hits();
        }
        guest.push(&frame, size, held).map_err(|()| NO_FRAME)
    }

    async fn guest_said(&mut self, from: FromGuest) {
        match from {
            FromGuest::Took => self.heard_at = Instant::now(),
            FromGuest::Frame(frame) => {
                let header = frame.header.clone();
                let events = sized(header.len(), move || serde_json::from_slice::<Vec<Event>>(&header)).await;
                let Ok(Ok(events)) = events else {
                    return self.lost("it sent what is no event").await;
                };
                if events.iter().filter(|event| event.has_body()).count() != frame.bodies.len() {
                    return self.lost("it sent events and bodies that do not belong together").await;
                }
                if events
                    .iter()
                    .filter_map(ended_exchange)
                    .any(|exchange| self.exchange == Some(exchange))
                {
                    self.exchange = None;
                    self.used_at = Instant::now();
                }
                for message in messages(self.number, &events, &frame) {
                    self.outgoing.push(Message::Binary(message));
                }
            }
            FromGuest::Ended => self.lost("").await,
            FromGuest::Broken(problem) => self.lost(&format!("it broke the protocol: {problem}")).await,
        }
    }

    async fn lost(&mut self, problem: &str) {
        self.app.metrics.lost_guest();
        let exit = self.end_guest(problem.is_empty()).await;
        let message = match &exit {
            Some(exit) if problem.is_empty() => exit.to_string(),
            None if problem.is_empty() => "it ended".to_owned(),
            _ => problem.to_owned(),
        };
        self.tell_ended();
        self.tell_lost(&message, exit.filter(|_| problem.is_empty()));
    }

    /// Ends the guest when the folder is too large. The page decides about executions, but the server about its disk.
    async fn overflowed(&mut self, why: &str) {
        self.app.metrics.lost_guest();
        self.end_guest(false).await;
        let gone = self.checkpoints.end_all().await;
        self.tell_gone(&gone, "the session's folder holds too much");
        let exit = Exit {
            killer: Some(Killer::Disk),
            ..Exit::default()
        };
        self.tell_lost(
            &format!("its folder holds too much ({why}): begin another session"),
            Some(exit),
        );
    }

    fn tell_lost(&mut self, message: &str, exit: Option<Exit>) {
        let mut lost = json!({ "type": "lost", "guest": self.number, "message": message });
        if let (Some(killer), Some(lost)) = (exit.and_then(|exit| exit.killer), lost.as_object_mut()) {
            lost.insert("killer".to_owned(), json!(killer));
        }
        self.tell(&lost);
    }

    fn tell(&mut self, what: &serde_json::Value) {
        self.outgoing.push(Message::Text(what.to_string().into()));
    }
}

async fn boot(
    booting: Option<&mut BoxFuture<'static, Result<Guest, sandglass_core::Error>>>,
) -> Result<Guest, sandglass_core::Error> {
    match booting {
        Some(booting) => booting.await,
        None => pending().await,
    }
}

async fn next(guest: Option<&mut Running>, socket_is_free: bool) -> FromGuest {
    match guest {
        Some(guest) => guest.next(socket_is_free).await,
        None => pending().await,
    }
}
