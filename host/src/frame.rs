//! Frames: the messages between host and guest on a byte stream, in both directions.
//!
//! | bytes | meaning |
//! |---|---|
//! | `u32` | the length of the rest |
//! | `u32` | the epoch: a random number that the guest was started with |
//! | `u32` | the length of the header |
//! | | the header: JSON, one `Request` or an array of `Event`s |
//! | `u32`, bytes | a body; any number of them |
//!
//! Numbers are little-endian. Lengths are checked before memory is allocated, and memory grows as bytes arrive.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::OwnedWriteHalf;

/// The largest header, in bytes.
pub const MAX_HEADER_BYTES: usize = 16 << 20;
/// Most bodies of a frame.
pub const MAX_BODIES: usize = 1 << 16;
/// Bytes of a frame beyond its bodies' limit.
pub const FRAME_SLACK_BYTES: usize = 1 << 20;
/// The largest frame to a guest, in bytes.
pub const MAX_FRAME_TO_GUEST_BYTES: usize = (1 << 30) + FRAME_SLACK_BYTES;

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// A body up to this size in bytes is copied next to its neighbours. A larger one is written from its own memory.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// Most pieces in one write.
const MAX_SLICES: usize = 16;

/// The fault of a received or sent frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed.
    #[error("the channel failed: {0}")]
    Io(#[from] io::Error),
    /// The stream ended within a frame.
    #[error("a frame that is cut short")]
    Truncated,
    /// The frame's length exceeds the limit.
    #[error("a frame of {0} bytes, more than the {1} that there may be")]
    TooLong(usize, usize),
    /// The frame has another guest's epoch.
    #[error("a frame of another epoch")]
    Epoch,
    /// The header's length exceeds the frame.
    #[error("an oversized header")]
    Header,
    /// The frame has too many bodies.
    #[error("a frame with too many bodies")]
    Bodies,
    /// The frame's lengths do not add up.
    #[error("a frame whose lengths do not add up")]
    Lengths,
}

/// One message between host and guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// JSON, unchecked.
    pub header: Bytes,
    /// The bodies, in order.
    pub bodies: Vec<Bytes>,
}

impl Frame {
    /// Reads a frame from the bytes after length and epoch.
    ///
    /// # Errors
    /// A [`FrameError`] when the lengths do not add up.
    pub fn parse(mut bytes: Bytes) -> Result<Self, FrameError> {
        let length = take_length(&mut bytes)?;
        if length > MAX_HEADER_BYTES {
            return Err(FrameError::Header);
        }
        let header = take(&mut bytes, length)?;
        let mut bodies = Vec::new();
        while !bytes.is_empty() {
            if bodies.len() == MAX_BODIES {
                return Err(FrameError::Bodies);
            }
            let length = take_length(&mut bytes)?;
            bodies.push(take(&mut bytes, length)?);
        }
        Ok(Self { header, bodies })
    }

    /// Bytes of the frame after length and epoch.
    fn len(&self) -> usize {
        4 + self.header.len() + self.bodies.iter().map(|body| 4 + body.len()).sum::<usize>()
    }

    /// The bytes that [`Frame::parse`] reads, in one piece.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.len());
        put(&mut bytes, &self.header);
        for body in &self.bodies {
            put(&mut bytes, body);
        }
        bytes.freeze()
    }
}

fn take_length(bytes: &mut Bytes) -> Result<usize, FrameError> {
    let length = bytes.try_get_u32_le().map_err(|_| FrameError::Lengths)?;
    usize::try_from(length).map_err(|_| FrameError::Lengths)
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, FrameError> {
    if length > bytes.len() {
        return Err(FrameError::Lengths);
    }
    Ok(bytes.split_to(length))
}

fn put(bytes: &mut BytesMut, part: &[u8]) {
    bytes.put_u32_le(u32::try_from(part.len()).unwrap_or(u32::MAX));
    bytes.put_slice(part);
}

/// Reads frames.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    epoch: u32,
    max_bytes: usize,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames with this epoch, of at most `max_bytes` each.
    pub fn new(stream: R, epoch: u32, max_bytes: usize) -> Self {
        Self {
            stream,
            epoch,
            max_bytes,
            buffer: BytesMut::new(),
        }
    }

    /// Sets the largest frame in bytes, from the next frame on.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// The next frame; `None` at the end of the stream. Can be dropped and called again.
    ///
    /// # Errors
    /// A [`FrameError`], after which the stream is unusable.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(READ_BYTES);
            let read = match self.stream.read_buf(&mut self.buffer).await {
                // The peer closed before it had read everything, which is an ordinary end.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                read => read?,
            };
            if read == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(FrameError::Truncated)
                };
            }
        }
    }

    /// The next frame, if it has arrived completely.
    ///
    /// # Errors
    /// As [`FrameReader::next`].
    pub fn buffered(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| FrameError::Lengths)?;
        if length > self.max_bytes {
            return Err(FrameError::TooLong(length, self.max_bytes));
        }
        if length < 8 {
            return Err(FrameError::Lengths);
        }
        if let Some(epoch) = rest.first_chunk::<4>()
            && u32::from_le_bytes(*epoch) != self.epoch
        {
            return Err(FrameError::Epoch);
        }
        if let Some(header) = rest.get(4..8).and_then(|bytes| bytes.first_chunk::<4>())
            && usize::try_from(u32::from_le_bytes(*header)).map_or(true, |length| length > MAX_HEADER_BYTES)
        {
            return Err(FrameError::Header);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(4 + length).freeze();
        frame.advance(8);
        Frame::parse(frame).map(Some)
    }
}

/// Frames to be written. Large bodies are not copied, and nobody waits for a slow reader.
#[derive(Debug)]
pub struct Outbox {
    epoch: u32,
    pieces: VecDeque<Bytes>,
}

impl Outbox {
    /// Frames of this epoch.
    pub fn new(epoch: u32) -> Self {
        Self {
            epoch,
            pieces: VecDeque::new(),
        }
    }

    /// Returns true when everything is written.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Drops unwritten bytes, which nobody will read.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] when the frame is larger than a guest takes. Nothing is added then.
    pub fn push(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let length = 4 + frame.len();
        let too_long = || FrameError::TooLong(length, MAX_FRAME_TO_GUEST_BYTES);
        if length > MAX_FRAME_TO_GUEST_BYTES {
            return Err(too_long());
        }
        let mut piece = BytesMut::with_capacity(frame.header.len() + 64);
        piece.put_u32_le(u32::try_from(length).map_err(|_| too_long())?);
        piece.put_u32_le(self.epoch);
        put(&mut piece, &frame.header);
        for body in &frame.bodies {
            if body.len() <= SMALL_BODY_BYTES {
                put(&mut piece, body);
            } else {
                piece.put_u32_le(u32::try_from(body.len()).map_err(|_| too_long())?);
                self.pieces.push_back(piece.split().freeze());
                self.pieces.push_back(body.clone());
            }
        }
        if !piece.is_empty() {
            self.pieces.push_back(piece.freeze());
        }
        Ok(())
    }

    /// Writes as much as the stream takes without waiting.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn write(&mut self, stream: &OwnedWriteHalf) -> io::Result<()> {
        while !self.pieces.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .pieces
                .iter()
                .take(MAX_SLICES)
                .map(|piece| IoSlice::new(piece))
                .collect();
            match stream.try_write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.written(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes more as soon as the stream takes it. Waits forever while there is nothing to write. Can be dropped and called
    /// again.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn write_more(&mut self, stream: &OwnedWriteHalf) -> io::Result<()> {
        if self.pieces.is_empty() {
            std::future::pending::<()>().await;
        }
        stream.writable().await?;
        self.write(stream)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// When the stream is broken.
    pub async fn write_all(&mut self, stream: &OwnedWriteHalf) -> io::Result<()> {
        while !self.is_empty() {
            self.write_more(stream).await?;
        }
        Ok(())
    }

    fn written(&mut self, mut bytes: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            if bytes < piece.len() {
                piece.advance(bytes);
                return;
            }
            bytes -= piece.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
