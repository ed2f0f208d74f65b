//! Resumable conversations: the list of all, and the task of each.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt, stream};
use sandglass_core::resumable::{Broken, Control, Resumable};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tokio_util::sync::PollSender;

use super::{Outgoing, Permits, Socket};
use crate::App;
use crate::errors::ApiError;
use crate::quotas::{Account, Held};

/// The bytes of the secret that resumes a conversation.
const TOKEN_BYTES: usize = 32;
/// The silence of a conversation, which its line bounds.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The most characters of the reason for an end.
const MAX_REASON_CHARS: usize = 200;
const TAKEN_UP: &str = "another connection has taken up the conversation";

/// All resumable conversations, by the digests of their tokens.
#[derive(Debug, Default)]
pub struct Lines {
    all: Mutex<HashMap<[u8; 32], Known>>,
}

/// A conversation, as those that resume it find it.
#[derive(Debug)]
struct Known {
    owner: Arc<str>,
    place: String,
    arrivals: mpsc::Sender<Arrival>,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new conversation. With `leads`, its token leads other servers here.
    pub(super) fn begin(&self, app: &App, account: &Arc<Account>, place: &str, leads: bool) -> Result<Begun, ApiError> {
        let held = account.conversation()?;
        let mut secret = [0; TOKEN_BYTES];
        getrandom::fill(&mut secret).map_err(|_| ApiError::internal("the system gives no random numbers"))?;
        let token = match &app.suspension {
            Some(suspension) if leads => {
                let tenant = suspension.tenant(&account.owner)?;
                URL_SAFE_NO_PAD.encode(tenant.conversation(&secret))
            }
            _ => URL_SAFE_NO_PAD.encode(secret),
        };
        let digest = digest(&token);
        let (arrive, arrivals) = mpsc::channel(1);
        let known = Known {
            owner: Arc::clone(&account.owner),
            place: place.to_owned(),
            arrivals: arrive,
        };
        self.lock().insert(digest, known);
        let registered = Registered {
            app: app.clone(),
            digest,
            _held: held,
        };
        Ok(Begun {
            token,
            arrivals,
            registered,
        })
    }

    /// Hands a link to its conversation. Gives it back if there is none of this owner and place.
    pub(super) async fn resume(&self, owner: &str, place: &str, token: &str, arrival: Arrival) -> Result<(), Arrival> {
        // The search is for a digest, whose bytes no client can choose. So its time tells nothing of other tokens.
        let arrivals = self
            .lock()
            .get(&digest(token))
            .filter(|known| &*known.owner == owner && known.place == place)
            .map(|known| known.arrivals.clone());
        match arrivals {
            Some(arrivals) => arrivals.send(arrival).await.map_err(|ended| ended.0),
            None => Err(arrival),
        }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A conversation's place among all. Dropping it gives the place up.
struct Registered {
    app: App,
    digest: [u8; 32],
    _held: Held,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.app.lines.lock().remove(&self.digest);
    }
}

/// A conversation that has not met its first WebSocket.
pub(super) struct Begun {
    token: String,
    arrivals: mpsc::Receiver<Arrival>,
    registered: Registered,
}

impl Begun {
    /// Starts the conversation's task. Returns the user's end.
    pub(super) fn run(self, mut link: Link, most_bytes: usize) -> Socket {
        let args = &self.registered.app.args;
        let within = args.reconnect_within();
        let silence = Duration::from_secs_f64(args.channel_silence_seconds);
        let (to_line, from_user) = mpsc::channel(1);
        let (to_user, from_line) = mpsc::channel(1);
        link.tell(&Control::Begun {
            token: self.token,
            within: u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
            max_bytes: most_bytes as u64,
        });
        let is_linked = Arc::new(AtomicBool::new(true));
        let mut resumable = Resumable::new();
        // The first link cannot be refused: it has a number, and nothing was taken.
        let _ = resumable.link(link.number, 0);
        let line = Line {
            resumable,
            link: Some(link),
            is_linked: Arc::clone(&is_linked),
            lost_at: Instant::now(),
            arrivals: self.arrivals,
            from_user,
            to_user,
            is_heard: true,
            within,
            silence,
            _registered: self.registered,
        };
        tokio::spawn(line.run());
        let incoming = stream::unfold(from_line, async |mut from_line| {
            let message = from_line.recv().await?;
            Some((Ok(message), from_line))
        });
        let sink = PollSender::new(to_line).sink_map_err(axum::Error::new);
        Socket {
            incoming: incoming.boxed(),
            outgoing: Outgoing::new(sink),
            silence: FOREVER,
            is_linked,
            permits: None,
        }
    }
}

/// A WebSocket that resumes a conversation.
pub(super) struct Arrival {
    pub(super) link: Link,
    /// The number of messages that the client has taken.
    pub(super) taken: u64,
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Arrival(link {})", self.link.number)
    }
}

/// A WebSocket that carries a conversation.
pub(super) struct Link {
    number: u64,
    incoming: SplitStream<WebSocket>,
    outgoing: Outgoing,
    heard_at: Instant,
    permits: Permits,
}

impl Link {
    pub(super) fn new(number: u64, incoming: SplitStream<WebSocket>, outgoing: Outgoing, permits: Permits) -> Self {
        Self {
            number,
            incoming,
            outgoing,
            heard_at: Instant::now(),
            permits,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The parts of a link that another server's conversation goes on with.
    pub(super) fn into_parts(self) -> (SplitStream<WebSocket>, Outgoing, Permits) {
        (self.incoming, self.outgoing, self.permits)
    }

    fn tell(&mut self, control: &Control) {
        self.outgoing.push(Message::Text(control.text().into()));
    }

    /// Tells the client that it cannot go on here.
    pub(super) async fn refuse(mut self, reason: String) {
        self.end(close_code::POLICY, reason).await;
    }

    /// Closes the WebSocket, while the conversation may go on over another one.
    pub(super) async fn put_off(mut self, code: u16, reason: &str) {
        self.outgoing.close(code, reason.to_owned()).await;
    }

    async fn end(&mut self, code: u16, reason: String) {
        let reason: String = match reason.as_str() {
            "" => "the conversation has ended".to_owned(),
            reason => reason.chars().take(MAX_REASON_CHARS).collect(),
        };
        self.tell(&Control::Ended { reason: reason.clone() });
        self.outgoing.close(code, reason).await;
    }
}

/// A resumable conversation.
struct Line {
    resumable: Resumable<Message>,
    link: Option<Link>,
    is_linked: Arc<AtomicBool>,
    lost_at: Instant,
    arrivals: mpsc::Receiver<Arrival>,
    from_user: mpsc::Receiver<Message>,
    to_user: mpsc::Sender<Message>,
    /// False once the user takes no more messages. It may still say why.
    is_heard: bool,
    within: Duration,
    silence: Duration,
    _registered: Registered,
}

/// The end of a conversation: the code and reason of the close message.
struct End(u16, String);

impl Line {
    async fn run(mut self) {
        let End(code, reason) = self.carry().await;
        tracing::debug!(code, reason, "a resumable conversation ends");
        let Some(mut link) = self.last_link().await else { return };
        // The last messages leave, if the client takes them.
        while let Some(message) = self.resumable.next(link.number) {
            link.outgoing.push(message);
        }
        link.end(code, reason).await;
    }

    /// The link over which the client hears of the end. If there is none, the client has the usual time to come back.
    async fn last_link(&mut self) -> Option<Link> {
        let deadline = self.lost_at + self.within;
        while self.link.is_none() {
            let arrival = timeout_at(deadline, self.arrivals.recv()).await.ok().flatten()?;
            self.arrived(arrival);
        }
        self.link.take()
    }

    async fn carry(&mut self) -> End {
        let mut pings = interval((self.silence / 3).max(Duration::from_millis(1)));
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.fill();
            let has_room = self.resumable.has_room();
            let has_arrived = self.resumable.has_arrived() && self.is_heard;
            let deadline = match &self.link {
                Some(link) => link.heard_at + self.silence,
                None => self.lost_at + self.within,
            };
            let link = self.link.as_mut();
            let (incoming, outgoing) = link.map(|link| (&mut link.incoming, &mut link.outgoing)).unzip();
            let went_on = tokio::select! {
                Some(arrival) = self.arrivals.recv() => {
                    self.arrived(arrival);
                    Ok(())
                }
                // A user that hears nothing more says little more, and its end must not wait for a client that takes nothing.
                message = self.from_user.recv(), if has_room || !self.is_heard => self.said(message),
                () = self.to_user.closed(), if self.is_heard => {
                    self.is_heard = false;
                    Ok(())
                }
                permit = self.to_user.clone().reserve_owned(), if has_arrived => {
                    self.is_heard = permit.is_ok();
                    if let (Ok(permit), Some(message)) = (permit, self.resumable.take()) {
                        drop(permit.send(message));
                    }
                    Ok(())
                }
                message = next(incoming) => self.heard(message),
                sent = send(outgoing) => {
                    if sent.is_err() {
                        self.lose();
                    }
                    Ok(())
                }
                _ = pings.tick() => {
                    if let Some(link) = &mut self.link {
                        link.outgoing.ping();
                    }
                    Ok(())
                }
                () = sleep_until(deadline) => match self.link {
                    Some(_) => {
                        self.lose();
                        Ok(())
                    }
                    None => Err(End(close_code::POLICY, "nobody has reconnected in time".to_owned())),
                },
            };
            if let Err(end) = went_on {
                return end;
            }
        }
    }

    /// Gives the link its next message, when it has sent those before.
    fn fill(&mut self) {
        let Some(link) = &mut self.link else { return };
        if !link.outgoing.is_empty() {
            return;
        }
        if let Some(taken) = self.resumable.to_tell(link.number) {
            link.tell(&Control::Taken { taken });
        }
        if let Some(message) = self.resumable.next(link.number) {
            link.outgoing.push(message);
        }
    }

    /// Goes over to another link. The one before is closed.
    fn arrived(&mut self, Arrival { mut link, taken }: Arrival) {
        if let Err(error) = self.resumable.link(link.number, taken) {
            tokio::spawn(link.refuse(error.to_string()));
            return;
        }
        tracing::debug!(link = link.number, "a conversation is resumed");
        link.tell(&Control::Resumed {
            taken: self.resumable.taken(),
        });
        self.is_linked.store(true, Ordering::Release);
        if let Some(before) = self.link.replace(link) {
            tokio::spawn(before.refuse(TAKEN_UP.to_owned()));
        }
    }

    /// Takes a message of the user.
    fn said(&mut self, message: Option<Message>) -> Result<(), End> {
        match message {
            None | Some(Message::Close(None)) => Err(End(close_code::NORMAL, String::new())),
            Some(Message::Close(Some(CloseFrame { code, reason }))) => Err(End(code, reason.to_string())),
            Some(Message::Ping(_) | Message::Pong(_)) => Ok(()), // the line has its own
            Some(message) => {
                let bytes = size(&message);
                self.resumable.push(message, bytes);
                Ok(())
            }
        }
    }

    /// Takes a message of the client.
    fn heard(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), End> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.heard_at = Instant::now();
        let number = link.number;
        let taken = match message {
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            Some(Ok(Message::Close(frame))) if has_left(frame.as_ref()) => {
                return Err(End(close_code::NORMAL, String::new()));
            }
            None | Some(Err(_) | Ok(Message::Close(_))) => {
                self.lose();
                Ok(())
            }
            Some(Ok(message)) => {
                let bytes = size(&message);
                match control(&message) {
                    Ok(None) => self.resumable.arrived(number, message, bytes),
                    Ok(Some(Control::Taken { taken })) => self.resumable.told(number, taken),
                    Ok(Some(_)) => Err(Broken::Malformed),
                    Err(error) => Err(error),
                }
            }
        };
        taken.map_err(|error| End(close_code::POLICY, error.to_string()))
    }

    fn lose(&mut self) {
        tracing::debug!("a conversation has lost its connection");
        self.link = None;
        self.is_linked.store(false, Ordering::Release);
        self.resumable.cut();
        self.lost_at = Instant::now();
    }
}

/// Returns true if the client ends the conversation. Programs between the two close connections with other codes.
fn has_left(frame: Option<&CloseFrame>) -> bool {
    frame.is_none_or(|frame| [close_code::NORMAL, close_code::AWAY, close_code::STATUS].contains(&frame.code))
}

fn control(message: &Message) -> Result<Option<Control>, Broken> {
    match message {
        Message::Text(text) => Control::read(text),
        _ => Ok(None),
    }
}

fn size(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(data) => data.len(),
        _ => 0,
    }
}

async fn next(incoming: Option<&mut SplitStream<WebSocket>>) -> Option<Result<Message, axum::Error>> {
    match incoming {
        Some(incoming) => incoming.next().await,
        None => pending().await,
    }
}

async fn send(outgoing: Option<&mut Outgoing>) -> Result<(), axum::Error> {
    match outgoing {
        Some(outgoing) if !outgoing.is_empty() => outgoing.send().await,
        _ => pending().await,
    }
}
