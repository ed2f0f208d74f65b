//! A connection with a write timeout. A peer that takes nothing for too long loses the connection. Before the socket closes,
//! the peer gets a moment to read the last response.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Most bytes that are read and dropped before the socket closes.
const MOST_LINGERING_BYTES: usize = 64 << 20;
/// The time to read them.
const LINGERING: Duration = Duration::from_secs(5);

/// Adds deadlines to a stream.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    stream: S,
    write_timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Ending {
    deadline: Pin<Box<Sleep>>,
    left: usize,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream. The peer may take nothing for at most `write_timeout`.
    pub fn new(stream: S, write_timeout: Duration) -> Self {
        Self {
            stream,
            write_timeout,
            stalled: None,
            ending: None,
        }
    }

    /// Turns a too long wait into an error.
    fn watch<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let timeout = self.write_timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer takes nothing of what it is sent",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(polled, context)
    }

    /// Shuts down the write side, then reads the peer's last bytes. If a socket closes with unread bytes, the peer's system
    /// drops the response that the peer has not read.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, ending, .. } = &mut *self;
        if ending.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
        }
        let ending = ending.get_or_insert_with(|| Ending {
            deadline: Box::pin(sleep_until(Instant::now() + LINGERING)),
            left: MOST_LINGERING_BYTES,
        });
        let mut bytes = [0; 16 << 10];
        while ending.left > 0 && ending.deadline.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    ending.left = ending.left.saturating_sub(buffer.filled().len());
                }
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_takes_nothing_loses_the_connection() {
        let (near, _far) = duplex(16);
        let mut near = WriteTimeout::new(near, Duration::from_millis(20));
        let error = near.write_all(&[0; 1_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_reads_slowly_keeps_it() {
        let (near, mut far) = duplex(16);
        let mut near = WriteTimeout::new(near, Duration::from_secs(600));
        let reading = tokio::spawn(async move {
            let mut taken = Vec::new();
            far.read_to_end(&mut taken).await.map(|_| taken.len())
        });
        near.write_all(&[0; 1_000]).await.unwrap();
        near.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), 1_000);
    }

    #[tokio::test]
    async fn what_is_under_way_at_the_end_is_read() {
        let (near, mut far) = duplex(1 << 10);
        let mut near = WriteTimeout::new(near, Duration::from_secs(600));
        let sending = tokio::spawn(async move {
            far.write_all(&[1; 100_000]).await?;
            let mut told = String::new();
            far.read_to_string(&mut told).await.map(|_| told)
        });
        near.write_all(b"too much").await.unwrap();
        near.shutdown().await.unwrap();
        drop(near);
        assert_eq!(sending.await.unwrap().unwrap(), "too much");
    }
}
