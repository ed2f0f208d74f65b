//! What strangers may send. A channel's address is open to everybody who reaches it, and a message's signature shows only when
//! all of it has come; the library that reads it sets memory aside for whatever length a frame announces. So here every
//! connection is followed frame by frame, and cut when a message is larger than any that a notebook sends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jupyter_protocol::{ConnectionInfo, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections of a channel at a time.
const MOST_CONNECTIONS: usize = 32;
/// How long a peer has to say which protocol it speaks.
const GREETING_WITHIN: Duration = Duration::from_secs(10);
/// How long a peer may not read what it is sent.
const READS_WITHIN: Duration = Duration::from_secs(60);
/// Bytes that wait for a peer which reads slower than the kernel writes.
const MOST_BEHIND: usize = 64 << 20;
/// How long the end waits for what is on its way.
const LINGER: Duration = Duration::from_secs(1);
const BUFFER_BYTES: usize = 64 << 10;
/// Frames of a message: identities, six of Jupyter's own, and its buffers.
const MOST_FRAMES: u32 = 128;
/// Bytes of a command: socket type and identity, mostly.
const MAX_COMMAND_BYTES: u64 = 1 << 10;
/// The greeting of ZMTP 3.
const GREETING_BYTES: u64 = 64;

/// What peers of a channel may do.
#[derive(Clone, Copy)]
pub(super) struct Peers {
    /// Bytes of a message of theirs.
    pub most_bytes: u64,
    /// Messages over one connection.
    pub most_messages: u64,
    /// Whether others get what they get: then one that does not read is not waited for.
    pub are_many: bool,
}

/// The addresses of a kernel, open.
pub(super) struct Gate {
    channels: JoinSet<()>,
    close: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            channels: JoinSet::new(),
            close: watch::Sender::new(false),
        }
    }

    /// Opens the address of a channel, whose socket listens at `inner`.
    ///
    /// # Errors
    /// The address is taken, or none of this machine's.
    pub(super) async fn open(
        &mut self,
        info: &ConnectionInfo,
        port: u16,
        inner: PathBuf,
        peers: Peers,
    ) -> io::Result<()> {
        let listener = match info.transport {
            Transport::TCP => Listener::Tcp(TcpListener::bind((info.ip.as_str(), port)).await?),
            Transport::IPC => {
                let path = PathBuf::from(format!("{}-{port}", info.ip));
                Listener::Unix(UnixListener::bind(&path)?, path)
            }
        };
        self.channels
            .spawn(listen(listener, Arc::new(inner), peers, self.close.subscribe()));
        Ok(())
    }

    /// Closes them, when what was sent has left.
    pub(super) async fn close(mut self) {
        self.close.send_replace(true);
        while self.channels.join_next().await.is_some() {}
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Replies are small, and somebody waits for them.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn listen(listener: Listener, inner: Arc<PathBuf>, peers: Peers, mut close: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    // Without room, it is closed at once.
                    if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
                        let inner = Arc::clone(&inner);
                        connections.spawn(async move {
                            let ended = relay(stream, &inner, peers).await;
                            drop(place);
                            if let Err(why) = ended {
                                tracing::warn!(%why, "a connection was cut");
                            }
                        });
                    }
                }
                // Such as no more descriptors: connections that end make room.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
            () = closed(&mut close) => break,
        }
    }
    drop(listener);
    let _ = timeout(LINGER, async { while connections.join_next().await.is_some() {} }).await;
}

async fn closed(close: &mut watch::Receiver<bool>) {
    // Who would say so may be gone.
    let _ = close.wait_for(|closes| *closes).await;
}

/// Passes bytes on, both ways, until one end closes. What is wrong with those of the peer is the error.
async fn relay(outer: Box<dyn Stream>, inner: &Path, peers: Peers) -> io::Result<()> {
    let inner = UnixStream::connect(inner).await?;
    let (from_inner, to_inner) = inner.into_split();
    let (from_outer, to_outer) = tokio::io::split(outer);
    let outward = async {
        if peers.are_many {
            outward_at_once(from_inner, to_outer, MOST_BEHIND).await
        } else {
            outward(from_inner, to_outer).await
        }
    };
    tokio::select! {
        ended = inward(from_outer, to_inner, peers) => ended,
        ended = outward => ended,
    }
}

async fn inward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, peers: Peers) -> io::Result<()> {
    let mut frames = Frames::new(peers.most_bytes, peers.most_messages);
    let mut buffer = vec![0; BUFFER_BYTES];
    let greeting = tokio::time::Instant::now() + GREETING_WITHIN;
    loop {
        let read = from.read(&mut buffer);
        let count = if frames.greeted() {
            gone(read.await)
        } else {
            gone(tokio::time::timeout_at(greeting, read).await.unwrap_or(Ok(0)))
        };
        if count == 0 {
            return Ok(());
        }
        let bytes = &buffer[..count];
        frames.follow(bytes).map_err(io::Error::other)?;
        if to.write_all(bytes).await.is_err() {
            return Ok(());
        }
    }
}

async fn outward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = gone(from.read(&mut buffer).await);
        if count == 0 {
            // The peer may be gone, too.
            let _ = to.shutdown().await;
            return Ok(());
        }
        if !written(&mut to, &buffer[..count]).await? {
            return Ok(());
        }
    }
}

/// Reads at once what comes, and keeps it for a peer that is slow.
async fn outward_at_once(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    most_behind: usize,
) -> io::Result<()> {
    let (keep, mut kept) = mpsc::unbounded_channel::<Vec<u8>>();
    let behind = AtomicUsize::new(0);
    let reading = async {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = gone(from.read(&mut buffer).await);
            if count == 0 {
                drop(keep);
                // The other half ends this one, when it has written all.
                return std::future::pending().await;
            }
            if behind.fetch_add(count, Ordering::Relaxed) + count > most_behind {
                return Err(io::Error::other("the peer reads too slowly"));
            }
            // The receiver lives as long as this.
            let _ = keep.send(buffer[..count].to_vec());
        }
    };
    let writing = async {
        while let Some(bytes) = kept.recv().await {
            if !written(&mut to, &bytes).await? {
                return Ok(());
            }
            behind.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        // The peer may be gone, too.
        let _ = to.shutdown().await;
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// Whether the peer is there still; one that does not read is an error.
async fn written(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<bool> {
    let written = timeout(READS_WITHIN, to.write_all(bytes)).await;
    Ok(written
        .map_err(|_| io::Error::other("the peer has stopped reading"))?
        .is_ok())
}

/// Who breaks a connection is as gone as who closes it.
fn gone(read: io::Result<usize>) -> usize {
    read.unwrap_or(0)
}

/// Where in a peer's bytes the next one stands, by [ZMTP 3](https://rfc.zeromq.org/spec/23/).
struct Frames {
    at: At,
    most_bytes: u64,
    /// Of the message that is under way.
    bytes: u64,
    count: u32,
    messages_left: u64,
}

#[derive(Clone, Copy)]
enum At {
    /// So many bytes before the first frame.
    Greeting(u64),
    Flags,
    /// So many bytes of a length are missing, and what the others say.
    Length {
        missing: u32,
        length: u64,
        flags: u8,
    },
    /// So many bytes of a frame are missing.
    Body {
        missing: u64,
        flags: u8,
    },
}

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

impl Frames {
    fn new(most_bytes: u64, most_messages: u64) -> Self {
        Self {
            at: At::Greeting(GREETING_BYTES),
            most_bytes,
            bytes: 0,
            count: 0,
            messages_left: most_messages,
        }
    }

    fn greeted(&self) -> bool {
        !matches!(self.at, At::Greeting(_))
    }

    /// Goes on by these bytes; what is wrong with them is the error.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let Some((first, rest)) = bytes.split_first() {
            match self.at {
                At::Greeting(missing) => {
                    let taken = taken(missing, bytes);
                    bytes = &bytes[taken..];
                    let missing = missing - taken as u64;
                    self.at = if missing == 0 { At::Flags } else { At::Greeting(missing) };
                }
                At::Flags => {
                    bytes = rest;
                    let missing = if first & LONG == 0 { 1 } else { 8 };
                    self.at = At::Length {
                        missing,
                        length: 0,
                        flags: *first,
                    };
                }
                At::Length { missing, length, flags } => {
                    bytes = rest;
                    let length = length << 8 | u64::from(*first);
                    self.at = At::Length {
                        missing: missing - 1,
                        length,
                        flags,
                    };
                    if missing == 1 {
                        self.begin(length, flags)?;
                    }
                }
                At::Body { missing, flags } => {
                    let taken = taken(missing, bytes);
                    bytes = &bytes[taken..];
                    self.at = At::Body {
                        missing: missing - taken as u64,
                        flags,
                    };
                    self.end_if_complete();
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, length: u64, flags: u8) -> Result<(), &'static str> {
        if flags & COMMAND != 0 {
            if length > MAX_COMMAND_BYTES {
                return Err("it sent a command that is too large");
            }
            self.at = At::Body { missing: length, flags };
            self.end_if_complete();
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(length);
        self.count += 1;
        if self.count == 1 {
            let left = self.messages_left.checked_sub(1);
            self.messages_left = left.ok_or("it sent too many messages")?;
        }
        if self.bytes > self.most_bytes {
            return Err("it sent a message that is too large");
        }
        if self.count > MOST_FRAMES {
            return Err("it sent a message of too many frames");
        }
        self.at = At::Body { missing: length, flags };
        self.end_if_complete();
        Ok(())
    }

    fn end_if_complete(&mut self) {
        if let At::Body { missing: 0, flags } = self.at {
            self.at = At::Flags;
            // Commands may come between the frames of a message, and end none.
            if flags & (MORE | COMMAND) == 0 {
                (self.bytes, self.count) = (0, 0);
            }
        }
    }
}

fn taken(missing: u64, bytes: &[u8]) -> usize {
    usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeted() -> Frames {
        let mut frames = Frames::new(1_000, 10);
        frames.follow(&[0xff; 63]).unwrap();
        assert!(!frames.greeted());
        frames.follow(&[0]).unwrap();
        assert!(frames.greeted());
        frames
    }

    fn frame(flags: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![flags];
        if flags & LONG == 0 {
            bytes.push(u8::try_from(length).unwrap());
        } else {
            bytes.extend((length as u64).to_be_bytes());
        }
        bytes.extend(vec![0xff; length]);
        bytes
    }

    #[test]
    fn messages_of_any_number_pass_in_pieces_of_any_size() {
        let mut bytes = Vec::new();
        for _ in 0..10 {
            bytes.extend(frame(MORE, 0));
            bytes.extend(frame(MORE | LONG, 700));
            bytes.extend(frame(0, 255));
            bytes.extend(frame(4, 20));
        }
        for size in [1, 2, 7, 64, 100_000] {
            let mut frames = greeted();
            for piece in bytes.chunks(size) {
                frames.follow(piece).unwrap();
            }
            assert!(matches!(frames.at, At::Flags), "pieces of {size}");
        }
    }

    #[test]
    fn a_frame_or_message_that_is_too_large_is_refused_before_it_comes() {
        let mut header = vec![LONG];
        header.extend(u64::MAX.to_be_bytes());
        assert!(greeted().follow(&header).is_err());
        let mut frames = greeted();
        frames.follow(&frame(MORE | LONG, 900)).unwrap();
        assert!(frames.follow(&[0, 101]).is_err());
        let mut frames = greeted();
        frames.follow(&frame(MORE | LONG, 900)).unwrap();
        frames.follow(&[0, 100]).unwrap();
    }

    #[test]
    fn a_command_is_no_end_of_a_message() {
        for command in [frame(COMMAND, 6), frame(COMMAND | MORE, 6)] {
            let mut frames = greeted();
            frames.follow(&frame(MORE | LONG, 900)).unwrap();
            frames.follow(&command).unwrap();
            assert!(frames.follow(&[0, 101]).is_err());
            let mut frames = greeted();
            for _ in 0..MOST_FRAMES {
                frames.follow(&frame(MORE, 0)).unwrap();
                frames.follow(&command).unwrap();
            }
            assert!(frames.follow(&frame(MORE, 0)).is_err());
        }
        assert!(greeted().follow(&frame(COMMAND | LONG, 1_024)).is_ok());
        assert!(greeted().follow(&frame(COMMAND | LONG, 1_025)).is_err());
    }

    #[test]
    fn messages_without_end_are_refused() {
        let mut frames = greeted();
        let mut message = frame(MORE, 1);
        message.extend(frame(0, 1));
        for _ in 0..10 {
            frames.follow(&message).unwrap();
            frames.follow(&frame(COMMAND, 6)).unwrap();
        }
        assert!(frames.follow(&message).is_err());
    }

    #[tokio::test]
    async fn who_reads_slowly_holds_nobody_up_and_is_cut() {
        let sent = vec![7_u8; 1_000_000];
        // It is behind by all but what is on its way: all of it is kept, and comes.
        let (mut kernel, from) = tokio::io::duplex(1_000);
        let (to, mut peer) = tokio::io::duplex(1_000);
        let relay = tokio::spawn(outward_at_once(from, to, sent.len()));
        timeout(LINGER * 20, kernel.write_all(&sent)).await.unwrap().unwrap();
        drop(kernel);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        relay.await.unwrap().unwrap();
        // More than may be kept.
        let (mut kernel, from) = tokio::io::duplex(1_000);
        let (to, _peer) = tokio::io::duplex(1_000);
        let relay = tokio::spawn(outward_at_once(from, to, sent.len() / 2));
        assert!(
            timeout(LINGER * 20, kernel.write_all(&sent)).await.unwrap().is_err(),
            "it is not cut"
        );
        assert!(relay.await.unwrap().is_err());
    }

    #[test]
    fn frames_without_end_are_refused() {
        let mut frames = greeted();
        let empty = frame(MORE, 0);
        for _ in 0..MOST_FRAMES {
            frames.follow(&empty).unwrap();
        }
        assert!(frames.follow(&empty).is_err());
    }
}
