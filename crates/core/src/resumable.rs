//! A conversation that outlives its connections. Each message arrives once and in order, wherever connections break.
//!
//! A *link* is one connection that carries the conversation, such as a WebSocket. Messages have no numbers on the wire: a link keeps their
//! order, so both sides count. A side keeps each message until the other has *taken* it, which means handed it to its program. What a broken
//! link carried and nobody took is dropped by the receiver. On the next link each side tells how many messages it has taken, and the other
//! sends again what follows.
//!
//! The counts also bound memory: a side sends nothing while [`WINDOW_BYTES`] of its messages are not taken. So the other can always read
//! its link, and finds the counts behind the messages.
//!
//! `python/sandglass/client/resumable.py` is the same for clients in Python. `docs/rpc.md` explains the wire.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The suffix of a WebSocket subprotocol's name that makes its conversation resumable.
pub const SUFFIX: &str = ".resumable";
/// The first character of a text message that belongs to this layer. JSON follows.
pub const MARK: char = '#';
/// The bytes of messages on their way, from which on no further message is sent.
pub const WINDOW_BYTES: usize = 4 << 20;
/// The bytes that each message counts in addition to its own.
pub const MESSAGE_BYTES: usize = 64;
/// The part of the window after which the other side is told that its messages were taken.
const TOLD_BYTES: usize = WINDOW_BYTES / 8;
/// The longest message of this layer, in bytes.
pub const MAX_CONTROL_BYTES: usize = 1_000;

/// A message of this layer: [`MARK`] and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Control {
    /// The client's first message on a link: begins a conversation.
    Begin {},
    /// The server's answer.
    Begun {
        /// The secret that resumes the conversation.
        token: String,
        /// The time for which the server keeps the conversation without a link, in milliseconds.
        within: u64,
        /// The bytes of the largest message that the server takes.
        #[serde(rename = "maxBytes")]
        max_bytes: u64,
    },
    /// The client's first message on a later link.
    Resume {
        /// The secret.
        token: String,
        /// The number of the link: 2 for the second one, and so on.
        link: u64,
        /// The number of the server's messages that the client has taken.
        taken: u64,
    },
    /// The server's answer.
    Resumed {
        /// The number of the client's messages that the server has taken.
        taken: u64,
    },
    /// From both sides, now and then.
    Taken {
        /// The number of the other side's messages that were taken.
        taken: u64,
    },
    /// From the server: the conversation has ended, and cannot be resumed.
    Ended {
        /// The reason.
        reason: String,
    },
}

impl Control {
    /// Reads a message of this layer. `None` if the text is one of the conversation.
    ///
    /// # Errors
    /// The text is marked, and malformed.
    pub fn read(text: &str) -> Result<Option<Self>, Broken> {
        match text.strip_prefix(MARK) {
            None => Ok(None),
            Some(_) if text.len() > MAX_CONTROL_BYTES => Err(Broken::Malformed),
            Some(json) => serde_json::from_str(json).map(Some).map_err(|_| Broken::Malformed),
        }
    }

    /// The text of the message.
    pub fn text(&self) -> String {
        // Writing strings and numbers cannot fail.
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{MARK}{json}")
    }
}

/// A fault of the other side. All but [`Broken::Late`] end the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A message of this layer cannot be read, or came at the wrong time.
    #[error("a message that begins with {MARK:?} is malformed, or came at the wrong time")]
    Malformed,
    /// A later link carries the conversation already.
    #[error("a later connection has taken up the conversation already")]
    Late,
    /// The other side took messages that it was not sent, or fewer than before.
    #[error("the number of messages that were taken cannot be true")]
    WrongCount,
    /// The other side sent messages beyond the window.
    #[error("more than {WINDOW_BYTES} bytes were sent before earlier messages were taken")]
    Flood,
}

/// One side of a conversation. `M` is a message, cheap to clone.
#[derive(Debug)]
pub struct Resumable<M> {
    /// The number of the newest link, from 1 on, and true while it carries.
    link: (u64, bool),
    /// The number of links that this side has opened. Only clients open links.
    opened: u64,
    /// Messages that the other side has not taken, as far as known, the oldest first. The first `sent` are on their way.
    kept: Queue<M>,
    sent: usize,
    sent_bytes: usize,
    /// The number of messages that the other side has taken, and the largest number that it can have taken.
    taken_there: u64,
    most_taken_there: u64,
    /// Messages that have arrived over the present link, and were not taken.
    arrived: Queue<M>,
    /// The number of messages that were taken here, and the bytes of those of which the other side was not told.
    taken: u64,
    untold_bytes: usize,
}

impl<M: Clone> Default for Resumable<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Clone> Resumable<M> {
    /// A conversation that has no link yet.
    pub fn new() -> Self {
        Self {
            link: (0, false),
            opened: 0,
            kept: Queue::default(),
            sent: 0,
            sent_bytes: 0,
            taken_there: 0,
            most_taken_there: 0,
            arrived: Queue::default(),
            taken: 0,
            untold_bytes: 0,
        }
    }

    /// The number of a link that this client is about to open. Links before it are cut.
    pub fn open(&mut self) -> u64 {
        self.cut();
        self.opened += 1;
        self.opened
    }

    /// Goes over to a link, whose other side has taken this many messages. The link before is cut.
    ///
    /// # Errors
    /// [`Broken::Late`] or [`Broken::WrongCount`]; nothing has changed.
    pub fn link(&mut self, link: u64, taken_there: u64) -> Result<(), Broken> {
        if link <= self.link.0 || link < self.opened {
            return Err(Broken::Late);
        }
        if !(self.taken_there..=self.most_taken_there).contains(&taken_there) {
            return Err(Broken::WrongCount);
        }
        self.cut();
        self.forget(taken_there);
        self.untold_bytes = 0; // the greeting tells
        self.link = (link, true);
        Ok(())
    }

    /// Notes that the present link is broken.
    pub fn cut(&mut self) {
        self.link.1 = false;
        self.arrived = Queue::default();
        (self.sent, self.sent_bytes) = (0, 0);
    }

    /// The number of messages that were taken here: a greeting tells it.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns true while few enough messages are kept. The caller should wait otherwise.
    pub fn has_room(&self) -> bool {
        self.kept.bytes < WINDOW_BYTES
    }

    /// Keeps a message of this many bytes, to be sent when its turn comes.
    pub fn push(&mut self, message: M, bytes: usize) {
        self.kept.push(message, bytes);
    }

    /// The next message to be sent on this link.
    pub fn next(&mut self, link: u64) -> Option<M> {
        if !self.carries(link) || self.sent_bytes >= WINDOW_BYTES {
            return None;
        }
        let (message, bytes) = self.kept.messages.get(self.sent)?;
        self.sent += 1;
        self.sent_bytes += bytes;
        self.most_taken_there = self.most_taken_there.max(self.taken_there + self.sent as u64);
        Some(message.clone())
    }

    /// Takes the other side's word that it has taken this many messages.
    ///
    /// # Errors
    /// [`Broken::WrongCount`].
    pub fn told(&mut self, link: u64, taken_there: u64) -> Result<(), Broken> {
        if !self.carries(link) {
            return Ok(());
        }
        if !(self.taken_there..=self.taken_there + self.sent as u64).contains(&taken_there) {
            return Err(Broken::WrongCount);
        }
        self.forget(taken_there);
        Ok(())
    }

    /// Takes a message of this many bytes from a link. One of an earlier link than the present has no effect: it comes again.
    ///
    /// # Errors
    /// [`Broken::Flood`].
    pub fn arrived(&mut self, link: u64, message: M, bytes: usize) -> Result<(), Broken> {
        if !self.carries(link) {
            return Ok(());
        }
        if self.arrived.bytes >= WINDOW_BYTES {
            return Err(Broken::Flood);
        }
        self.arrived.push(message, bytes);
        Ok(())
    }

    /// Returns true if a message can be taken.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.messages.is_empty()
    }

    /// Takes the next message that has arrived. It will not come again.
    pub fn take(&mut self) -> Option<M> {
        let (message, bytes) = self.arrived.pop()?;
        self.taken += 1;
        self.untold_bytes += bytes;
        Some(message)
    }

    /// The number of taken messages, if it is time to tell the other side on this link.
    pub fn to_tell(&mut self, link: u64) -> Option<u64> {
        let is_time = self.carries(link) && self.untold_bytes >= TOLD_BYTES;
        is_time.then(|| {
            self.untold_bytes = 0;
            self.taken
        })
    }

    fn carries(&self, link: u64) -> bool {
        self.link == (link, true)
    }

    fn forget(&mut self, taken_there: u64) {
        while self.taken_there < taken_there
            && let Some((_, bytes)) = self.kept.pop()
        {
            self.taken_there += 1;
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= bytes;
            }
        }
    }
}

/// Messages, each with the bytes that it counts.
#[derive(Debug)]
struct Queue<M> {
    messages: VecDeque<(M, usize)>,
    bytes: usize,
}

impl<M> Default for Queue<M> {
    fn default() -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<M> Queue<M> {
    fn push(&mut self, message: M, bytes: usize) {
        let bytes = bytes + MESSAGE_BYTES;
        self.messages.push_back((message, bytes));
        self.bytes += bytes;
    }

    fn pop(&mut self) -> Option<(M, usize)> {
        let (message, bytes) = self.messages.pop_front()?;
        self.bytes -= bytes;
        Some((message, bytes))
    }
}
