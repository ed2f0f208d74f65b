//! As much of ZeroMQ as a Jupyter front end needs: a DEALER's end of a ZMTP 3.0 connection without encryption.
//!
//! The crate `zeromq` takes memory for whatever length its peer claims. A kernel runs anybody's code, which can reach the kernel's
//! sockets; so here a message that is too large ends the connection before it is taken. And a connection that has ended stays so:
//! a kernel that was restarted is another one.

use std::io;
use std::path::PathBuf;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

/// Bytes that all parts of a message may have together. The answers that are waited for have a few hundred.
pub(super) const MAX_MESSAGE_BYTES: u64 = 8 << 20;
/// Parts that a message may have.
const MAX_PARTS: usize = 64;
const GREETING_BYTES: usize = 64;
/// Where the greeting names its way of encryption.
const MECHANISM: std::ops::Range<usize> = 12..32;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Where a socket of a kernel is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// An address and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Ipc(PathBuf),
}

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZmtpError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("what listens there does not speak ZeroMQ 4")]
    NotZmtp,
    #[error("it wants the encryption {0}, which is not supported here")]
    Encrypted(String),
    #[error("it sent a message of more than {MAX_MESSAGE_BYTES} bytes or {MAX_PARTS} parts")]
    TooLarge,
}

trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Both for S {}
type Socket = Box<dyn Both>;

/// The end that messages come from.
pub(super) struct Receiver(BufReader<ReadHalf<Socket>>);
/// The end that messages go to.
pub(super) struct Sender(WriteHalf<Socket>);

/// Connects, and has shaken hands. What bounds the time is the caller.
pub(super) async fn connect(endpoint: &Endpoint) -> Result<(Sender, Receiver), ZmtpError> {
    let socket: Socket = match endpoint {
        Endpoint::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).await?),
    };
    let (reads, mut writes) = tokio::io::split(socket);
    let mut reads = BufReader::new(reads);
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[MECHANISM.start..][..4].copy_from_slice(b"NULL");
    writes.write_all(&greeting).await?;
    let mut theirs = [0; GREETING_BYTES];
    reads.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(ZmtpError::NotZmtp);
    }
    let mechanism = theirs[MECHANISM].trim_ascii_end();
    let mechanism = String::from_utf8_lossy(mechanism).trim_end_matches('\0').to_owned();
    if mechanism != "NULL" {
        return Err(ZmtpError::Encrypted(mechanism));
    }
    let mut ready = BytesMut::from(&b"\x05READY"[..]);
    for (name, value) in [("Socket-Type", "DEALER"), ("Identity", "")] {
        #[expect(clippy::cast_possible_truncation, reason = "both are a few bytes long")]
        {
            ready.put_u8(name.len() as u8);
            ready.put_slice(name.as_bytes());
            ready.put_u32(value.len() as u32);
        }
        ready.put_slice(value.as_bytes());
    }
    let mut sender = Sender(writes);
    sender.frame(COMMAND, &ready).await?;
    sender.0.flush().await?;
    let mut receiver = Receiver(reads);
    let (flags, ready) = receiver.frame(MAX_MESSAGE_BYTES).await?;
    if flags & COMMAND == 0 || !ready.starts_with(b"\x05READY") {
        return Err(ZmtpError::NotZmtp);
    }
    Ok((sender, receiver))
}

impl Sender {
    /// Sends a message, whatever its size.
    pub(super) async fn send(&mut self, parts: &[Bytes]) -> io::Result<()> {
        let mut left = parts.len();
        for part in parts {
            left -= 1;
            self.frame(if left > 0 { MORE } else { 0 }, part).await?;
        }
        self.0.flush().await
    }

    async fn frame(&mut self, flags: u8, body: &[u8]) -> io::Result<()> {
        let mut bytes = BytesMut::with_capacity(9 + body.len());
        match u8::try_from(body.len()) {
            Ok(short) => {
                bytes.put_u8(flags);
                bytes.put_u8(short);
            }
            Err(_) => {
                bytes.put_u8(flags | LONG);
                bytes.put_u64(body.len() as u64);
            }
        }
        bytes.put_slice(body);
        self.0.write_all(&bytes).await
    }
}

impl Receiver {
    /// The next message; commands between messages are not for us.
    pub(super) async fn receive(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        let mut parts = Vec::new();
        let mut room = MAX_MESSAGE_BYTES;
        loop {
            let (flags, body) = self.frame(room).await?;
            if flags & COMMAND != 0 {
                continue;
            }
            room -= body.len() as u64;
            parts.push(body);
            if flags & MORE == 0 {
                return Ok(parts);
            }
            if parts.len() == MAX_PARTS {
                return Err(ZmtpError::TooLarge);
            }
        }
    }

    /// Its flags and its body, which has at most `room` bytes.
    async fn frame(&mut self, room: u64) -> Result<(u8, Bytes), ZmtpError> {
        let flags = self.0.read_u8().await?;
        let length = if flags & LONG == 0 {
            self.0.read_u8().await?.into()
        } else {
            self.0.read_u64().await?
        };
        if length > room {
            return Err(ZmtpError::TooLarge);
        }
        // Memory is taken as bytes arrive.
        let mut body = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut body).await?;
        if body.len() as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok((flags, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL";
    const READY: &[u8] = b"\x04\x06\x05READY";

    /// What a DEALER makes of a peer that says this.
    async fn hears(greeting: &[u8], rest: &[u8]) -> Result<Vec<Bytes>, ZmtpError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut said = greeting.to_vec();
        said.resize(GREETING_BYTES, 0);
        said.extend_from_slice(rest);
        let peer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&said).await.unwrap();
            // Until the other end has heard enough.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let answer = async {
            let (_sender, mut receiver) = connect(&Endpoint::Ipc(path)).await?;
            receiver.receive().await
        };
        let answer = answer.await;
        peer.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn messages_have_parts() {
        let parts = hears(GREETING, &[READY, b"\x04\x02\x01X", b"\x01\x02ab\x00\x01c"].concat()).await;
        assert_eq!(parts.unwrap(), [&b"ab"[..], b"c"]);
    }

    #[tokio::test]
    async fn a_length_is_not_believed() {
        for length in [MAX_MESSAGE_BYTES + 1, u64::MAX] {
            let rest = [READY, &[LONG], &length.to_be_bytes(), b"x"].concat();
            assert!(matches!(hears(GREETING, &rest).await, Err(ZmtpError::TooLarge)));
        }
        let parts = [b"\x01\x00".repeat(MAX_PARTS), b"\x00\x00".to_vec()].concat();
        assert!(matches!(
            hears(GREETING, &[READY, &parts].concat()).await,
            Err(ZmtpError::TooLarge)
        ));
    }

    #[tokio::test]
    async fn peers_of_another_kind_are_named() {
        assert!(matches!(hears(b"HTTP/1.1 400", b"").await, Err(ZmtpError::NotZmtp)));
        let curve = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0CURVE";
        let Err(error) = hears(curve, READY).await else {
            panic!("it was let in")
        };
        assert!(error.to_string().contains("CURVE"), "{error}");
    }
}
