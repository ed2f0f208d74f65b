//! The part of ZeroMQ that Jupyter needs: [ZMTP 3.1](https://rfc.zeromq.org/spec/37/) and
//! [3.0](https://rfc.zeromq.org/spec/23/) with the mechanism NULL, which has no encryption.
//!
//! A [`Server`] owns the sockets of a kernel; a front end [`connect`]s to one. No side trusts the other. Anybody who reaches an
//! address can send before a signature identifies them, and a kernel runs untrusted code. So a frame's length is checked before
//! memory is allocated, and a peer that breaks the protocol loses its connection. The crate `zeromq` 0.7 has no such bound.
//!
//! A connection that has ended is not opened again, because a restarted kernel is a different kernel.
//!
//! Decisions: `docs/internals/jupyter.md`.

mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

pub use self::server::{Listener, Publisher, Router, Server};

/// Most parts of a message: identities, the six parts of Jupyter, and buffers.
const MAX_PARTS: usize = 128;
/// The largest command, in bytes: a socket type and an identity, or a topic.
const MAX_COMMAND_BYTES: u64 = 1 << 10;
const GREETING_BYTES: usize = 64;
/// The bytes of a greeting that hold the mechanism's name.
const MECHANISM: std::ops::Range<usize> = 12..32;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// The bytes of a PING before its context, which hold the sender's waiting time.
const PING_TTL_BYTES: usize = 2;
const MAX_PING_CONTEXT_BYTES: usize = 16;

/// The address of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Ipc(PathBuf),
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// The connection failed, or the peer closed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer speaks another protocol.
    #[error("the program at that address does not speak ZeroMQ 4")]
    NotZmtp,
    /// The peer requires encryption.
    #[error("it wants the encryption {0}, which is not supported here")]
    Encrypted(String),
    /// The peer's socket has a type that cannot talk to this one.
    #[error("it is no socket that a {0} talks to")]
    WrongSocket(&'static str),
    /// The peer announced a frame or message above its limit.
    #[error("it sent a message of more than {0} bytes or {MAX_PARTS} parts")]
    TooLarge(u64),
    /// The peer broke the protocol.
    #[error("it sent {0}")]
    Malformed(&'static str),
    /// The peer did not introduce itself in time.
    #[error("it did not say in time which protocol it speaks")]
    Silent,
    /// The peer does not read its messages.
    #[error("it reads too slowly")]
    TooSlow,
}

/// A received message, or a command for the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The parts of a message, at least one.
    Message(Vec<Bytes>),
    /// The peer subscribes to messages whose first part begins with these bytes.
    Subscribe(Bytes),
    /// The peer cancels that subscription.
    Cancel(Bytes),
    /// The peer expects [`Sender::pong`] with these bytes.
    Ping(Bytes),
}

/// The supported socket types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketType {
    Dealer,
    Router,
    Pub,
    Rep,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
            Self::Pub => "PUB",
            Self::Rep => "REP",
        }
    }

    fn talks_to(self, peer: &[u8]) -> bool {
        let peers: &[&[u8]] = match self {
            Self::Dealer => &[b"ROUTER", b"REP", b"DEALER"],
            Self::Router => &[b"DEALER", b"REQ", b"ROUTER"],
            Self::Pub => &[b"SUB", b"XSUB"],
            Self::Rep => &[b"REQ", b"DEALER"],
        };
        peers.contains(&peer)
    }
}

trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Both for S {}
type Socket = Box<dyn Both>;

/// The receiving half of a connection.
pub struct Receiver {
    reads: BufReader<ReadHalf<Socket>>,
    max_bytes: u64,
    /// The parts received of an unfinished message, and their total bytes.
    parts: Vec<Bytes>,
    bytes: u64,
}

/// The sending half of a connection.
pub struct Sender(WriteHalf<Socket>);

/// Connects a DEALER to a socket. The caller sets a timeout. A message of the peer has at most `max_bytes`.
///
/// # Errors
/// Nobody listens at the address, or the peer is no socket for a DEALER.
pub async fn connect(endpoint: &Endpoint, max_bytes: u64) -> Result<(Sender, Receiver), ZmtpError> {
    let socket: Socket = match endpoint {
        Endpoint::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).await?),
    };
    let (sender, receiver, _) = shake_hands(socket, SocketType::Dealer, max_bytes).await?;
    Ok((sender, receiver))
}

/// Exchanges greetings. The last returned value is the peer's own identity, which is mostly empty.
async fn shake_hands(socket: Socket, own: SocketType, max_bytes: u64) -> Result<(Sender, Receiver, Bytes), ZmtpError> {
    let (reads, writes) = tokio::io::split(socket);
    let (mut sender, mut receiver) = (Sender(writes), Receiver::new(reads, max_bytes));
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[MECHANISM.start..][..4].copy_from_slice(b"NULL");
    sender.write(&greeting).await?;
    let mut theirs = [0; GREETING_BYTES];
    receiver.reads.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(ZmtpError::NotZmtp);
    }
    let mechanism = String::from_utf8_lossy(&theirs[MECHANISM]);
    let mechanism = mechanism.trim_end_matches('\0');
    if mechanism != "NULL" {
        return Err(ZmtpError::Encrypted(mechanism.to_owned()));
    }
    sender.write(&ready(own)).await?;
    let (flags, body) = receiver.frame().await?;
    let properties = match command(&body) {
        Some((b"READY", properties)) if flags & COMMAND != 0 => properties,
        _ => return Err(ZmtpError::NotZmtp),
    };
    let (socket_type, identity) = introduction(&properties).ok_or(ZmtpError::NotZmtp)?;
    if !own.talks_to(socket_type) {
        return Err(ZmtpError::WrongSocket(own.name()));
    }
    Ok((sender, receiver, Bytes::copy_from_slice(identity)))
}

/// The READY frame, by which a socket introduces itself.
fn ready(own: SocketType) -> Bytes {
    let mut body = BytesMut::from(&b"\x05READY"[..]);
    for (name, value) in [("Socket-Type", own.name()), ("Identity", "")] {
        #[expect(clippy::cast_possible_truncation, reason = "both are a few bytes long")]
        {
            body.put_u8(name.len() as u8);
            body.put_slice(name.as_bytes());
            body.put_u32(value.len() as u32);
        }
        body.put_slice(value.as_bytes());
    }
    let mut frame = BytesMut::new();
    put_frame(&mut frame, COMMAND, &body);
    frame.freeze()
}

/// The socket type and the identity in the properties of a READY.
fn introduction(mut properties: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut socket_type, mut identity) = (&b""[..], &b""[..]);
    while let Some((length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket_type = value;
        } else if name.eq_ignore_ascii_case(b"Identity") {
            identity = value;
        }
        properties = rest;
    }
    (identity.len() <= usize::from(u8::MAX)).then_some((socket_type, identity))
}

/// A command's name and its body.
fn command(body: &Bytes) -> Option<(&[u8], Bytes)> {
    let (length, rest) = body.split_first()?;
    let name = rest.get(..usize::from(*length))?;
    Some((name, body.slice(1 + name.len()..)))
}

fn put_frame(into: &mut BytesMut, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(short) => {
            into.put_u8(flags);
            into.put_u8(short);
        }
        Err(_) => {
            into.put_u8(flags | LONG);
            into.put_u64(body.len() as u64);
        }
    }
    into.put_slice(body);
}

/// The bytes that send a message.
fn encode(parts: &[Bytes]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(parts.iter().map(|part| 9 + part.len()).sum());
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        put_frame(&mut bytes, if is_last { 0 } else { MORE }, part);
    }
    bytes.freeze()
}

/// The bytes that answer a PING.
fn encode_pong(context: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    put_frame(&mut frame, COMMAND, &[b"\x04PONG", context].concat());
    frame.freeze()
}

impl Sender {
    /// Sends a message of any size.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn send(&mut self, parts: &[Bytes]) -> io::Result<()> {
        self.write(&encode(parts)).await
    }

    /// Answers [`Incoming::Ping`].
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn pong(&mut self, context: &[u8]) -> io::Result<()> {
        self.write(&encode_pong(context)).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }
}

impl Receiver {
    fn new(reads: ReadHalf<Socket>, max_bytes: u64) -> Self {
        Self {
            reads: BufReader::new(reads),
            max_bytes,
            parts: Vec::new(),
            bytes: 0,
        }
    }

    /// The next message, or a command for the caller. If the call is dropped, it may have read part of a message, and the
    /// connection is unusable.
    ///
    /// # Errors
    /// The connection has ended, or the peer broke the protocol.
    pub async fn receive(&mut self) -> Result<Incoming, ZmtpError> {
        loop {
            let (flags, body) = self.frame().await?;
            // Commands may come between the parts of a message, and do not end it.
            if flags & COMMAND != 0 {
                match command(&body).ok_or(ZmtpError::Malformed("a command without a name"))? {
                    (b"SUBSCRIBE", topic) => return Ok(Incoming::Subscribe(topic)),
                    (b"CANCEL", topic) => return Ok(Incoming::Cancel(topic)),
                    (b"PING", rest) => {
                        let context = rest.len().checked_sub(PING_TTL_BYTES);
                        if context.is_none_or(|length| length > MAX_PING_CONTEXT_BYTES) {
                            return Err(ZmtpError::Malformed("an odd PING"));
                        }
                        return Ok(Incoming::Ping(rest.slice(PING_TTL_BYTES..)));
                    }
                    _ => continue,
                }
            }
            self.bytes += body.len() as u64;
            self.parts.push(body);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Incoming::Message(std::mem::take(&mut self.parts)));
            }
        }
    }

    /// The flags and the body of the next frame.
    async fn frame(&mut self) -> Result<(u8, Bytes), ZmtpError> {
        let flags = self.reads.read_u8().await?;
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ZmtpError::Malformed("a frame with unknown flags"));
        }
        let length = if flags & LONG == 0 {
            self.reads.read_u8().await?.into()
        } else {
            self.reads.read_u64().await?
        };
        if flags & COMMAND != 0 {
            if length > MAX_COMMAND_BYTES {
                return Err(ZmtpError::Malformed("a command that is too large"));
            }
        } else if length > self.max_bytes - self.bytes || self.parts.len() == MAX_PARTS {
            return Err(ZmtpError::TooLarge(self.max_bytes));
        }
        // Memory is allocated as bytes arrive.
        let mut body = Vec::new();
        (&mut self.reads).take(length).read_to_end(&mut body).await?;
        if body.len() as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok((flags, body.into()))
    }
}
