//! A guest whose frames are relayed between a client and its process.

use std::future::pending;
use std::time::Duration;

use sandglass_host::frame::{Frame, FrameError, FrameReader, Outbox};
use sandglass_host::guest::copies::Kin;
use sandglass_host::guest::{Exit, Guest, GuestProcess, GuestWriter, Hits};
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{Instant, sleep_until, timeout};

use super::quotas::Held;

/// Bytes that the guest has not taken. Above this number the socket is not read.
const MOST_UNTAKEN_BYTES: usize = 64 << 20;
/// The time for the last frames of a guest whose process has ended.
const LAST_FRAMES: Duration = Duration::from_secs(2);
/// The time for a guest to end.
const ENDING: Duration = Duration::from_secs(10);

/// A running guest.
pub struct Running {
    reader: FrameReader<OwnedReadHalf>,
    writer: GuestWriter,
    pub process: GuestProcess,
    /// Its place among its paused copies.
    pub kin: Kin,
    /// The counts of the guest's limits when the last exchange began.
    pub begun: Hits,
    exited: Option<(Exit, Instant)>,
    /// The time at which the guest's own process ended. Its copies may live on.
    gone: Option<Instant>,
    /// Upper bound of the bytes that the guest has not taken, and their quota.
    untaken: (usize, Vec<Held>),
}

/// News of a guest.
pub enum FromGuest {
    /// A frame.
    Frame(Frame),
    /// The guest took some of the bytes sent to it.
    Took,
    /// The guest is gone.
    Ended,
    /// The guest broke the protocol.
    Broken(String),
}

impl Running {
    /// A guest whose messages have so many bytes at most.
    pub fn new(mut guest: Guest, most_value_bytes: usize) -> Self {
        let kin = guest.take_kin();
        let (reader, writer, process) = guest.split(most_value_bytes);
        Self {
            reader,
            writer,
            begun: process.hits(),
            process,
            kin,
            exited: None,
            gone: None,
            untaken: (0, Vec::new()),
        }
    }

    /// Returns false while the guest has not taken much.
    pub fn takes_more(guest: Option<&Self>) -> bool {
        guest.is_none_or(|guest| guest.untaken.0 < MOST_UNTAKEN_BYTES)
    }

    /// Sends a frame. `held` is its part of the quota, until the guest has taken it.
    pub fn push(&mut self, frame: &Frame, size: usize, held: Held) -> Result<(), ()> {
        self.writer.push(frame).map_err(|_| ())?;
        self.untaken.0 += size;
        self.untaken.1.push(held);
        Ok(())
    }

    /// The next event of the guest. Can be dropped and called again.
    pub async fn next(&mut self, socket_is_free: bool) -> FromGuest {
        loop {
            let ended = self.exited.as_ref().map(|(_, at)| *at).or(self.gone);
            let last_frames = ended.map(|at| at + LAST_FRAMES);
            tokio::select! {
                frame = self.reader.next(), if socket_is_free => return match frame {
                    Ok(Some(frame)) => FromGuest::Frame(frame),
                    // A guest that dies in the middle of a frame does not break the protocol.
                    Ok(None) | Err(FrameError::Io(_) | FrameError::Truncated) => FromGuest::Ended,
                    Err(error) => FromGuest::Broken(error.to_string()),
                },
                written = self.writer.outbox.write_more(&self.writer.stream) => match written {
                    Ok(()) => {
                        // Before the news, because the relay then asks whether the guest takes more. Nothing else would have it ask again.
                        if self.writer.outbox.is_empty() {
                            self.untaken = (0, Vec::new());
                        }
                        return FromGuest::Took;
                    }
                    // The guest's earlier output must still be read.
                    Err(_) => {
                        self.writer.outbox = Outbox::new(0);
                        self.untaken = (0, Vec::new());
                        self.process.kill();
                    }
                },
                exit = self.process.wait(), if self.exited.is_none() => self.exited = Some((exit, Instant::now())),
                () = self.kin.gone(), if self.exited.is_none() => self.gone = Some(Instant::now()),
                () = until(last_frames), if socket_is_free => return FromGuest::Ended,
            }
        }
    }

    /// Ends the guest and waits for its end. A guest that `has_closed` its channel gets time to exit by itself, because the
    /// reason of its end would be lost by a kill.
    pub async fn end(mut self, has_closed: bool) -> Option<Exit> {
        if let Some((exit, _)) = self.exited {
            return Some(exit);
        }
        if has_closed && let Ok(exit) = timeout(self.process.exit_timeout(), self.process.wait()).await {
            return Some(exit);
        }
        self.process.kill();
        timeout(ENDING, self.process.wait()).await.ok()
    }
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => pending().await,
    }
}
