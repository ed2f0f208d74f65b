//! What strangers may send. A channel's address is open to everybody who reaches it, and a message's signature shows only when
//! all of it has come; the library that reads it sets memory aside for whatever length a frame announces. So here every
//! connection is followed frame by frame, and cut when a message is larger than any that a notebook sends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jupyter_protocol::{ConnectionInfo, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections of a channel at a time.
const MOST_CONNECTIONS: usize = 64;
/// How long a peer has to say which protocol it speaks.
const GREETING_WITHIN: Duration = Duration::from_secs(10);
/// How long a peer may not read what it is sent.
const READS_WITHIN: Duration = Duration::from_secs(60);
/// How long the end waits for what is on its way.
const LINGER: Duration = Duration::from_secs(1);
const BUFFER_BYTES: usize = 64 << 10;
/// Frames of a message: identities, six of Jupyter's own, and its buffers.
const MOST_FRAMES: u32 = 128;
/// Bytes of a command: socket type and identity, mostly.
const MAX_COMMAND_BYTES: u64 = 1 << 10;
/// The greeting of ZMTP 3.
const GREETING_BYTES: u64 = 64;

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
        most_bytes: u64,
    ) -> io::Result<()> {
        let listener = match info.transport {
            Transport::TCP => Listener::Tcp(TcpListener::bind((info.ip.as_str(), port)).await?),
            Transport::IPC => {
                let path = PathBuf::from(format!("{}-{port}", info.ip));
                Listener::Unix(UnixListener::bind(&path)?, path)
            }
        };
        self.channels
            .spawn(listen(listener, Arc::new(inner), most_bytes, self.close.subscribe()));
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

async fn listen(listener: Listener, inner: Arc<PathBuf>, most_bytes: u64, mut close: watch::Receiver<bool>) {
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
                            let ended = relay(stream, &inner, most_bytes).await;
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
async fn relay(outer: Box<dyn Stream>, inner: &Path, most_bytes: u64) -> io::Result<()> {
    let inner = UnixStream::connect(inner).await?;
    let (from_inner, to_inner) = inner.into_split();
    let (from_outer, to_outer) = tokio::io::split(outer);
    tokio::select! {
        ended = inward(from_outer, to_inner, most_bytes) => ended,
        ended = outward(from_inner, to_outer) => ended,
    }
}

async fn inward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, most_bytes: u64) -> io::Result<()> {
    let mut frames = Frames::new(most_bytes);
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
        match timeout(READS_WITHIN, to.write_all(&buffer[..count])).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(io::Error::other("the peer has stopped reading")),
        }
    }
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
    fn new(most_bytes: u64) -> Self {
        Self {
            at: At::Greeting(GREETING_BYTES),
            most_bytes,
            bytes: 0,
            count: 0,
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
        let mut frames = Frames::new(1_000);
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
    fn frames_without_end_are_refused() {
        let mut frames = greeted();
        let empty = frame(MORE, 0);
        for _ in 0..MOST_FRAMES {
            frames.follow(&empty).unwrap();
        }
        assert!(frames.follow(&empty).is_err());
    }
}
