//! Journals: what the world answered to an execution after the stored state, in parts. Each part is durable before the next one begins.
//!
//! A part is sealed under its number, its session and its owner. It names its journal, so parts of an earlier journal of the session count
//! for nothing.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{StateError, no_random_numbers};
use crate::manifest::{Body, FORMAT, read, write};
use crate::names::{JournalId, Name, Place, SessionId};
use crate::seal::MOST_SEALED;
use crate::states::{Tenant, Written, now_ms, within};

/// The most parts of a journal.
const MOST_PARTS: u32 = 1 << 20;

/// The bytes that a part counts beside its text and body: a block of a disk, which a file of any size takes.
const PART_BYTES: u64 = 4096;

/// A part of a journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The part's text. This crate does not read it.
    pub text: String,
    /// Bytes that belong to it.
    pub body: Option<Bytes>,
    /// The time at which the part was written, in milliseconds since 1970.
    pub written_ms: u64,
}

/// A stored part.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sealed {
    format: u32,
    journal: JournalId,
    text: String,
    pub(crate) body: Option<Body>,
    written_ms: u64,
}

impl JournalId {
    /// An id that no other journal has.
    ///
    /// # Errors
    /// [`StateError::Key`] when the system gives no random numbers.
    pub fn random() -> Result<Self, StateError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| no_random_numbers())?;
        Ok(Self(id))
    }
}

/// The bytes that a part counts: its text and its body, and 4096 for its file.
pub fn part_bytes(text: &str, body: u64) -> u64 {
    body.saturating_add(text.len() as u64 + PART_BYTES)
}

/// All these functions block as long as the store does.
impl Tenant {
    /// Writes the part with this number. Part 0 begins a journal, and takes the place of an earlier one. The part is durable when this
    /// returns. The session must have a state, in a store that no other server uses: nothing says whose a part is.
    ///
    /// # Errors
    /// [`StateError`], also for more parts than a journal may have; then the journal has no such part.
    pub fn write_part(
        &self,
        session: SessionId,
        journal: JournalId,
        number: u32,
        text: &str,
        body: Option<&[u8]>,
    ) -> Result<(), StateError> {
        if number >= MOST_PARTS {
            let problem = std::io::Error::from(std::io::ErrorKind::FileTooLarge);
            let what = format!("the journal of session {session} may have {MOST_PARTS} parts");
            return Err(StateError::io(what, problem));
        }
        if !self.is_alone() {
            let problem = std::io::Error::from(std::io::ErrorKind::Unsupported);
            return Err(StateError::io("a store that servers share has no journals", problem));
        }
        if number == 0 {
            self.remove_journal(session)?;
        }
        let _writing = self.writers();
        let mut written = Written::default();
        let part = Sealed {
            format: FORMAT,
            journal,
            text: text.to_owned(),
            body: body.map(|body| self.write_body(None, body, &mut written)).transpose()?,
            written_ms: now_ms(),
        };
        let name = Name::Part(self.id(), session, number);
        self.write_sealed(&name, &write(&part)?)
    }

    /// The journal of a session with its parts, whose bodies take at most `most` bytes together; `None` if there is none.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Damaged`] also when a part is missing before another one.
    pub fn journal(&self, session: SessionId, most: u64) -> Result<Option<(JournalId, Vec<Part>)>, StateError> {
        let Some(first) = self.part(session, 0)? else {
            return Ok(None);
        };
        let (journal, mut bytes) = (first.journal, 0_u64);
        let mut take = |part: Sealed| -> Result<Part, StateError> {
            let body = part.body.as_ref();
            bytes = bytes.saturating_add(body.map_or(0, |body| body.bytes));
            within(bytes, most)?;
            Ok(Part {
                body: body.map(|body| self.read_body(None, body)).transpose()?,
                text: part.text,
                written_ms: part.written_ms,
            })
        };
        let mut parts = vec![take(first)?];
        for number in self.part_numbers(session)?.into_iter().filter(|number| *number > 0) {
            let part = self.part(session, number)?.filter(|part| part.journal == journal);
            let Some(part) = part else { continue };
            if number as usize != parts.len() {
                let what = format!("part {} of the journal of session {session} is missing", parts.len());
                return Err(StateError::Damaged(what));
            }
            parts.push(take(part)?);
        }
        Ok(Some((journal, parts)))
    }

    /// The bytes of a session's journal: the texts and bodies of its parts; 0 without one.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn journal_bytes(&self, session: SessionId) -> Result<u64, StateError> {
        let mut bytes = 0_u64;
        for number in self.part_numbers(session)? {
            if let Some(Sealed { text, body, .. }) = self.part(session, number)? {
                bytes = bytes.saturating_add(part_bytes(&text, body.map_or(0, |body| body.bytes)));
            }
        }
        Ok(bytes)
    }

    /// Removes the journal of a session. Its objects stay until the next [collection](Tenant::collect).
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn remove_journal(&self, session: SessionId) -> Result<(), StateError> {
        for number in self.part_numbers(session)? {
            let name = Name::Part(self.id(), session, number);
            match number {
                0 => self.store().remove(&name)?, // the numbers are in order, and without this part the others count for nothing
                _ => self.store().forget(&name)?,
            }
        }
        Ok(())
    }

    /// Removes this journal of a session. A later one in its place stays. Returns true if it was there.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_one_journal(&self, session: SessionId, journal: JournalId) -> Result<bool, StateError> {
        match self.part(session, 0)? {
            Some(first) if first.journal == journal => self.remove_journal(session).map(|()| true),
            _ => Ok(false),
        }
    }

    /// The numbers of a session's parts, in order.
    pub(crate) fn part_numbers(&self, session: SessionId) -> Result<Vec<u32>, StateError> {
        let listed = self.store().list(Place::Journal(self.id(), session))?;
        let number = |name| match name {
            Name::Part(_, _, number) if number < MOST_PARTS => Some(number),
            _ => None,
        };
        let mut numbers: Vec<_> = listed.into_iter().filter_map(|listed| number(listed.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(crate) fn part(&self, session: SessionId, number: u32) -> Result<Option<Sealed>, StateError> {
        let name = Name::Part(self.id(), session, number);
        let Some(sealed) = self.store().read(&name, MOST_SEALED)? else {
            return Ok(None);
        };
        read(&name.to_string(), &self.open_sealed(&name, sealed)?).map(Some)
    }
}
