//! The sockets of a kernel. Each socket is a listener. Bounds limit the number of its peers, the messages that they send, and
//! the messages that wait for them.
//!
//! Sending never waits for a peer. Each peer has a queue of its own, and a peer with a too long queue is disconnected.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Endpoint, Incoming, Sender, Socket, SocketType, ZmtpError, encode, encode_pong, shake_hands};

/// Connections of a socket at a time.
const MAX_CONNECTIONS: usize = 32;
/// The time for a peer to introduce itself.
const INTRODUCED_WITHIN: Duration = Duration::from_secs(10);
/// The time for a peer to read a piece of its messages.
const READS_WITHIN: Duration = Duration::from_secs(60);
const PIECE_BYTES: usize = 64 << 10;
/// Most bytes that wait for a slow peer.
const MAX_BEHIND: usize = 64 << 20;
/// Most bytes that wait for a slow peer of an echo, which anybody can ask for.
const MAX_ECHOES_BEHIND: usize = 1 << 20;
/// Bytes of memory that a queued message takes beside its contents.
const ENTRY_BYTES: usize = 64;
/// Messages that wait for the receiver of a socket. Above this number, the socket's peers are not read.
const MAX_WAITING: usize = 1_000;
/// Most subscriptions of one connection, cancelled ones included. Each is welcomed, and checked for every message.
const MAX_SUBSCRIPTIONS: usize = 256;
/// Bytes of a subscription.
const MAX_TOPIC_BYTES: u64 = 1 << 10;
/// The pause after a dropped message, so that its sender cannot keep a processor busy.
const AFTER_DROPPED: Duration = Duration::from_millis(10);
/// The pause after a connection that could not be accepted, such as for lack of file descriptors.
const AFTER_REFUSED: Duration = Duration::from_millis(100);
/// The time at the end to send queued messages.
const LINGER: Duration = Duration::from_secs(2);

/// A listening address. Dropping it removes a Unix socket's file.
pub struct Listener(Listens);

enum Listens {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is taken, or none of this machine's.
    pub async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        Ok(Self(match endpoint {
            Endpoint::Tcp(host, port) => Listens::Tcp(TcpListener::bind((host.as_str(), *port)).await?),
            Endpoint::Ipc(path) => Listens::Unix(UnixListener::bind(path)?, path.clone()),
        }))
    }

    async fn accept(&self) -> io::Result<Socket> {
        match &self.0 {
            Listens::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Replies are small and urgent.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Listens::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listens::Unix(_, path) = &self.0 {
            // The file may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The sockets of a kernel. Dropping it closes them.
pub struct Server {
    listeners: JoinSet<()>,
    close: watch::Sender<bool>,
    introduced_within: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listeners: JoinSet::new(),
            close: watch::Sender::new(false),
            introduced_within: INTRODUCED_WITHIN,
        }
    }
}

impl Server {
    /// A server with another time for peers to introduce themselves.
    #[cfg(test)]
    pub(super) fn with_greeting_timeout(introduced_within: Duration) -> Self {
        Self {
            introduced_within,
            ..Self::default()
        }
    }

    /// Serves a ROUTER, whose peers send messages of at most `max_bytes`.
    ///
    /// `read` gets a message with the sender's identity as first part. It returns `None` to drop the message. It runs before
    /// the message is queued, so messages with a wrong signature never wait.
    pub fn router<T: Send + 'static>(
        &mut self,
        listener: Listener,
        max_bytes: u64,
        read: impl Fn(Vec<Bytes>) -> Option<T> + Send + Sync + 'static,
    ) -> (Router, mpsc::Receiver<T>) {
        let (queue, messages) = mpsc::channel(MAX_WAITING);
        let peers = self.serve(listener, max_bytes, Reading { read, queue });
        (Router(peers), messages)
    }

    /// Serves a PUB. `welcome` makes the message that a peer gets for each subscription.
    pub fn publisher(
        &mut self,
        listener: Listener,
        welcome: impl Fn(&Bytes) -> Vec<Bytes> + Send + Sync + 'static,
    ) -> Publisher {
        Publisher(self.serve(listener, MAX_TOPIC_BYTES, Publishing { welcome }))
    }

    /// Serves a REP that sends every message back as a sign of life.
    pub fn echo(&mut self, listener: Listener, max_bytes: u64) {
        self.serve(listener, max_bytes, Echoing);
    }

    /// Closes the sockets after all queued messages have left, or after a short time. Messages sent meanwhile may be lost.
    pub async fn close(mut self) {
        self.close.send_replace(true);
        while self.listeners.join_next().await.is_some() {}
    }

    fn serve<R: Role>(&mut self, listener: Listener, max_bytes: u64, role: R) -> Arc<Peers> {
        let peers = Arc::<Peers>::default();
        let socket = Arc::new(Served {
            role,
            max_bytes,
            peers: Arc::clone(&peers),
            close: self.close.subscribe(),
            introduced_within: self.introduced_within,
        });
        self.listeners.spawn(listen(listener, socket));
        peers
    }
}

/// Sends to one peer of a ROUTER.
pub struct Router(Arc<Peers>);

impl Router {
    /// Sends to the peer whose identity is the first part. Of several peers with that identity, the newest gets it. Returns
    /// false when there is none.
    pub fn send(&self, parts: &[Bytes]) -> bool {
        let Some((identity, parts)) = parts.split_first() else {
            return false;
        };
        let bytes = encode(parts);
        let peers = self.0.lock();
        let peer = peers.entries.iter().rfind(|peer| peer.identity == identity);
        peer.is_some_and(|peer| peer.outbox.push(bytes))
    }

    /// The number of peers that have introduced themselves.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.0.lock().entries.len()
    }
}

/// Sends to the subscribers of a PUB.
#[derive(Clone)]
pub struct Publisher(Arc<Peers>);

impl Publisher {
    /// Sends to every peer that has subscribed to a prefix of the first part.
    pub fn send(&self, parts: &[Bytes]) {
        let Some(subject) = parts.first() else { return };
        let bytes = encode(parts);
        for peer in &self.0.lock().entries {
            if peer.topics.iter().any(|topic| subject.starts_with(topic)) {
                peer.outbox.push(bytes.clone());
            }
        }
    }

    /// The number of peers that have introduced themselves.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.0.lock().entries.len()
    }
}

/// The peers of a socket that have introduced themselves, oldest first.
#[derive(Default)]
struct Peers(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    entries: Vec<Entry>,
    next: u32,
}

struct Entry {
    number: u32,
    identity: Bytes,
    topics: Vec<Bytes>,
    subscriptions: usize,
    outbox: Outbox,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection, until the peer is dropped.
    fn enter(self: &Arc<Self>, identity: Bytes, outbox: Outbox) -> Result<Peer, ZmtpError> {
        let mut peers = self.lock();
        let number = peers.next;
        peers.next = number.wrapping_add(1);
        let identity = match identity.first() {
            None => [&[0], &number.to_be_bytes()[..]].concat().into(),
            // Only the socket itself gives such identities.
            Some(0) => return Err(ZmtpError::Malformed("an identity that begins with 0")),
            Some(_) => identity,
        };
        peers.entries.push(Entry {
            number,
            identity: identity.clone(),
            topics: Vec::new(),
            subscriptions: 0,
            outbox: outbox.clone(),
        });
        Ok(Peer {
            peers: Arc::clone(self),
            number,
            identity,
            outbox,
        })
    }
}

/// One peer of a socket.
struct Peer {
    peers: Arc<Peers>,
    number: u32,
    identity: Bytes,
    outbox: Outbox,
}

impl Peer {
    fn subscribe(&self, topic: Bytes) -> Result<(), ZmtpError> {
        let mut peers = self.peers.lock();
        if let Some(entry) = peers.entries.iter_mut().find(|entry| entry.number == self.number) {
            entry.subscriptions += 1;
            if entry.subscriptions > MAX_SUBSCRIPTIONS {
                return Err(ZmtpError::Malformed("too many subscriptions"));
            }
            entry.topics.push(topic);
        }
        Ok(())
    }

    fn cancel(&self, topic: &Bytes) {
        let mut peers = self.peers.lock();
        if let Some(entry) = peers.entries.iter_mut().find(|entry| entry.number == self.number)
            && let Some(index) = entry.topics.iter().position(|own| own == topic)
        {
            entry.topics.swap_remove(index);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.peers.lock().entries.retain(|entry| entry.number != self.number);
    }
}

/// The queue of a peer.
#[derive(Clone)]
struct Outbox {
    queue: mpsc::UnboundedSender<Bytes>,
    behind: Arc<AtomicUsize>,
    max_behind: usize,
    overflowed: Arc<Notify>,
}

impl Outbox {
    fn new(max_behind: usize) -> (Self, mpsc::UnboundedReceiver<Bytes>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let outbox = Self {
            queue,
            behind: Arc::default(),
            max_behind,
            overflowed: Arc::default(),
        };
        (outbox, waiting)
    }

    /// Queues a message. Returns false when the connection has ended, or ends now because the queue is too long. An empty queue
    /// takes a message of any size, because the caller bounds it.
    fn push(&self, bytes: Bytes) -> bool {
        let size = bytes.len() + ENTRY_BYTES;
        let before = self.behind.fetch_add(size, Ordering::Relaxed);
        if before > 0 && before + size > self.max_behind {
            self.overflowed.notify_one();
            return false;
        }
        self.queue.send(bytes).is_ok()
    }

    /// Answers a PING, unless a queued message will show soon that this side is alive.
    fn pong(&self, context: &[u8]) {
        if self.behind.load(Ordering::Relaxed) == 0 {
            self.push(encode_pong(context));
        }
    }

    fn has_written(&self, bytes: &Bytes) {
        self.behind.fetch_sub(bytes.len() + ENTRY_BYTES, Ordering::Relaxed);
    }
}

/// The handling of peers' messages by one kind of socket.
trait Role: Send + Sync + 'static {
    const TYPE: SocketType;
    const MAX_BEHIND: usize = MAX_BEHIND;

    /// Handles a message of a peer. An error ends the peer's connection.
    fn take(&self, peer: &Peer, incoming: Incoming) -> impl Future<Output = Result<(), ZmtpError>> + Send;
}

struct Reading<T, F> {
    read: F,
    queue: mpsc::Sender<T>,
}

impl<T: Send + 'static, F: Fn(Vec<Bytes>) -> Option<T> + Send + Sync + 'static> Role for Reading<T, F> {
    const TYPE: SocketType = SocketType::Router;

    async fn take(&self, peer: &Peer, incoming: Incoming) -> Result<(), ZmtpError> {
        let Incoming::Message(mut parts) = incoming else {
            return Ok(());
        };
        parts.insert(0, peer.identity.clone());
        let Some(message) = (self.read)(parts) else {
            sleep(AFTER_DROPPED).await;
            return Ok(());
        };
        if self.queue.send(message).await.is_err() {
            // Nobody receives messages any more, but queued messages still have to leave.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

struct Publishing<F> {
    welcome: F,
}

impl<F: Fn(&Bytes) -> Vec<Bytes> + Send + Sync + 'static> Role for Publishing<F> {
    const TYPE: SocketType = SocketType::Pub;

    async fn take(&self, peer: &Peer, incoming: Incoming) -> Result<(), ZmtpError> {
        let topic = match incoming {
            Incoming::Subscribe(topic) => topic,
            Incoming::Cancel(topic) => {
                peer.cancel(&topic);
                return Ok(());
            }
            // In ZMTP 3.0 subscriptions are messages.
            Incoming::Message(parts) => match parts.as_slice() {
                [part] if part.first() == Some(&1) => part.slice(1..),
                [part] if part.first() == Some(&0) => {
                    peer.cancel(&part.slice(1..));
                    return Ok(());
                }
                _ => return Err(ZmtpError::Malformed("what is no subscription")),
            },
            Incoming::Ping(_) => return Ok(()),
        };
        let welcome = encode(&(self.welcome)(&topic));
        peer.subscribe(topic)?;
        peer.outbox.push(welcome);
        Ok(())
    }
}

struct Echoing;

impl Role for Echoing {
    const TYPE: SocketType = SocketType::Rep;
    const MAX_BEHIND: usize = MAX_ECHOES_BEHIND;

    async fn take(&self, peer: &Peer, incoming: Incoming) -> Result<(), ZmtpError> {
        if let Incoming::Message(parts) = incoming {
            peer.outbox.push(encode(&parts));
        }
        Ok(())
    }
}

struct Served<R> {
    role: R,
    max_bytes: u64,
    peers: Arc<Peers>,
    close: watch::Receiver<bool>,
    introduced_within: Duration,
}

impl<R> Served<R> {
    async fn closed(&self) {
        // The server may be gone already.
        let _ = self.close.clone().wait_for(|closes| *closes).await;
    }
}

async fn listen<R: Role>(listener: Listener, socket: Arc<Served<R>>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    // If there is no room, the connection is closed at once.
                    if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
                        let socket = Arc::clone(&socket);
                        connections.spawn(async move {
                            match converse(stream, &socket).await {
                                Ok(()) => {}
                                // Anybody may come by, and go again.
                                Err(why @ (ZmtpError::Io(_) | ZmtpError::Silent)) => tracing::debug!(%why, "a connection ended"),
                                Err(why) => tracing::warn!(%why, "a connection was cut"),
                            }
                            drop(permit);
                        });
                    }
                }
                Err(_) => sleep(AFTER_REFUSED).await,
            },
            Some(_) = connections.join_next() => {}
            () = socket.closed() => break,
        }
    }
    drop(listener);
    let _ = timeout(LINGER, async { while connections.join_next().await.is_some() {} }).await;
}

/// Serves one peer until one side closes.
async fn converse<R: Role>(stream: Socket, socket: &Served<R>) -> Result<(), ZmtpError> {
    let introduced = tokio::select! {
        introduced = timeout(socket.introduced_within, shake_hands(stream, R::TYPE, socket.max_bytes)) => introduced,
        () = socket.closed() => return Ok(()),
    };
    let (sender, mut receiver, identity) = introduced.map_err(|_| ZmtpError::Silent)??;
    let (outbox, waiting) = Outbox::new(R::MAX_BEHIND);
    let peer = socket.peers.enter(identity, outbox.clone())?;
    let reads = async {
        loop {
            match receiver.receive().await? {
                Incoming::Ping(context) => peer.outbox.pong(&context),
                incoming => socket.role.take(&peer, incoming).await?,
            }
        }
    };
    tokio::select! {
        ended = reads => ended,
        ended = write(waiting, sender, &outbox, socket.closed()) => ended,
        () = outbox.overflowed.notified() => Err(ZmtpError::TooSlow),
    }
}

/// Writes a peer's queue. When the socket closes, it writes the whole queue first.
async fn write(
    mut waiting: mpsc::UnboundedReceiver<Bytes>,
    mut sender: Sender,
    outbox: &Outbox,
    closed: impl Future<Output = ()>,
) -> Result<(), ZmtpError> {
    let mut closed = std::pin::pin!(closed);
    loop {
        let bytes = tokio::select! {
            biased;
            bytes = waiting.recv() => bytes,
            () = &mut closed, if !waiting.is_closed() => {
                waiting.close();
                continue;
            }
        };
        let Some(bytes) = bytes else { break };
        for piece in bytes.chunks(PIECE_BYTES) {
            let written = timeout(READS_WITHIN, sender.write(piece)).await;
            written.map_err(|_| ZmtpError::TooSlow)??;
        }
        outbox.has_written(&bytes);
    }
    // The peer may be gone, too.
    let _ = sender.0.shutdown().await;
    Ok(())
}
