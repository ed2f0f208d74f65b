//! Journals: what the world answered to an execution after the stored state, in parts. Each part is durable before the next one begins.
//!
//! A part is sealed under its number, its session and its owner. It names its journal, so parts of an earlier journal of the session count
//! for nothing.
//!
//! In a store that servers share, each server has parts of its own, and those of the server that the session's ref names count. A server
//! that takes a session over copies the parts first, and its ref makes the copies count. So a server that was thought dead writes parts that
//! nobody reads. It hears of that: the clock says that its lease is over, and then a part was not written, whatever the store answered.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{StateError, no_random_numbers};
use crate::manifest::{Body, FORMAT, read, write};
use crate::names::{JournalId, Name, Place, ServerId, SessionId};
use crate::seal::MOST_SEALED;
use crate::states::{Tenant, Written, now_ms, within};

/// The most parts of a journal.
const MOST_PARTS: u32 = 1 << 20;

/// The bytes that a part counts beside its text and body: a block of a disk, which a file of any size takes.
const PART_BYTES: u64 = 4096;

/// A larger body has objects of its own. Writing an object takes as long as writing the part.
const MOST_INLINE: usize = 64 << 10;

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
    pub(crate) body: Option<PartBody>,
    written_ms: u64,
}

/// The body of a part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum PartBody {
    Objects(Body),
    /// The bytes themselves, in Base64.
    Inline {
        inline: String,
    },
}

impl PartBody {
    fn bytes(&self) -> u64 {
        match self {
            Self::Objects(body) => body.bytes,
            Self::Inline { inline } => {
                let padding = inline.bytes().rev().take_while(|byte| *byte == b'=').count();
                (inline.len() / 4 * 3).saturating_sub(padding) as u64
            }
        }
    }

    /// The objects of the body; `None` if the body is inline.
    pub(crate) fn into_objects(self) -> Option<Body> {
        match self {
            Self::Objects(body) => Some(body),
            Self::Inline { .. } => None,
        }
    }
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
    /// returns. The session must have a state, and this server must [hold](Tenant::hold) it.
    ///
    /// # Errors
    /// [`StateError`], also for more parts than a journal may have; then the journal has no such part. [`StateError::Taken`]: another server
    /// may have taken the session over by now, with or without this part.
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
        let writer = self.part_writer(session)?;
        if number == 0 {
            self.remove_parts(session, writer)?;
        }
        let _writing = self.writers();
        let part = Sealed {
            format: FORMAT,
            journal,
            text: text.to_owned(),
            body: body.map(|body| self.write_part_body(writer, body)).transpose()?,
            written_ms: now_ms(),
        };
        self.write_sealed(&Name::Part(self.id(), session, writer, number), &write(&part)?)?;
        self.still_holds(writer)
    }

    /// The journal of a session with its parts, whose bodies take at most `most` bytes together; `None` if there is none.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Damaged`] also when a part is missing before another one.
    pub fn journal(&self, session: SessionId, most: u64) -> Result<Option<(JournalId, Vec<Part>)>, StateError> {
        let Some(writer) = self.journal_writer(session)? else {
            return Ok(None);
        };
        let Some(first) = self.part(session, writer, 0)? else {
            return Ok(None);
        };
        let (journal, mut bytes) = (first.journal, 0_u64);
        let mut take = |part: Sealed| -> Result<Part, StateError> {
            let body = part.body.as_ref();
            bytes = bytes.saturating_add(body.map_or(0, PartBody::bytes));
            within(bytes, most)?;
            Ok(Part {
                body: body.map(|body| self.read_part_body(writer, body)).transpose()?,
                text: part.text,
                written_ms: part.written_ms,
            })
        };
        let mut parts = vec![take(first)?];
        for number in self
            .part_numbers(session, writer)?
            .into_iter()
            .filter(|number| *number > 0)
        {
            let part = self
                .part(session, writer, number)?
                .filter(|part| part.journal == journal);
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
        let Some(writer) = self.journal_writer(session)? else {
            return Ok(0);
        };
        let mut bytes = 0_u64;
        for number in self.part_numbers(session, writer)? {
            if let Some(Sealed { text, body, .. }) = self.part(session, writer, number)? {
                bytes = bytes.saturating_add(part_bytes(&text, body.as_ref().map_or(0, PartBody::bytes)));
            }
        }
        Ok(bytes)
    }

    /// Removes the journal of a session. Its objects stay until the next [collection](Tenant::collect).
    ///
    /// # Errors
    /// [`StateError::Io`]. [`StateError::Taken`]: another server may have taken the session over by now, with or without the journal.
    pub fn remove_journal(&self, session: SessionId) -> Result<(), StateError> {
        let writer = self.part_writer(session)?;
        self.remove_parts(session, writer)?;
        self.still_holds(writer)
    }

    /// Removes this journal of a session. A later one in its place stays. Returns true if it was there.
    ///
    /// # Errors
    /// As [`Tenant::remove_journal`].
    pub fn remove_one_journal(&self, session: SessionId, journal: JournalId) -> Result<bool, StateError> {
        let writer = self.part_writer(session)?;
        match self.part(session, writer, 0)? {
            Some(first) if first.journal == journal => self.remove_journal(session).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Copies the journal of a session to the parts of this server, which is about to take the session over. Nobody reads the copy before
    /// this server's ref is written. A journal that is damaged is left out: whoever reads it is told before the session is taken over.
    pub(crate) fn carry_journal(&self, session: SessionId, from: ServerId, to: ServerId) -> Result<(), StateError> {
        let (from, to) = (Some(from), Some(to));
        self.remove_parts(session, to)?; // of an earlier time
        let copied = self.copy_parts(session, from, to);
        match copied {
            Err(error) if error.is_damage() => self.remove_parts(session, to),
            copied => copied,
        }
    }

    fn copy_parts(&self, session: SessionId, from: Option<ServerId>, to: Option<ServerId>) -> Result<(), StateError> {
        let Some(first) = self.part(session, from, 0)? else {
            return Ok(());
        };
        let mut next = 0;
        for number in self.part_numbers(session, from)? {
            let part = self.part(session, from, number)?;
            let Some(mut part) = part.filter(|part| part.journal == first.journal) else {
                continue;
            };
            if number != next {
                let what = format!("part {next} of the journal of session {session} is missing");
                return Err(StateError::Damaged(what));
            }
            if let Some(body) = &part.body {
                let body = self.read_part_body(from, body)?;
                part.body = Some(self.write_part_body(to, &body)?);
            }
            self.write_sealed(&Name::Part(self.id(), session, to, number), &write(&part)?)?;
            next += 1;
        }
        Ok(())
    }

    fn write_part_body(&self, writer: Option<ServerId>, body: &[u8]) -> Result<PartBody, StateError> {
        if body.len() <= MOST_INLINE {
            let inline = BASE64.encode(body);
            return Ok(PartBody::Inline { inline });
        }
        let body = self.write_body(writer, body, &mut Written::default())?;
        Ok(PartBody::Objects(body))
    }

    fn read_part_body(&self, writer: Option<ServerId>, body: &PartBody) -> Result<Bytes, StateError> {
        match body {
            PartBody::Objects(body) => self.read_body(writer, body),
            PartBody::Inline { inline } => BASE64
                .decode(inline)
                .map(Bytes::from)
                .map_err(|error| StateError::Damaged(format!("the body of a part is malformed: {error}"))),
        }
    }

    /// Removes the parts of a session that is gone, whoever wrote them.
    pub(crate) fn forget_parts(&self, session: SessionId) -> Result<(), StateError> {
        for (writer, number) in self.parts(session)? {
            self.store().forget(&Name::Part(self.id(), session, writer, number))?;
        }
        Ok(())
    }

    /// The server whose parts are a session's journal; `None` if it has no state. In a store of one server, parts are nobody's.
    fn journal_writer(&self, session: SessionId) -> Result<Option<Option<ServerId>>, StateError> {
        if self.is_alone() {
            return Ok(Some(None));
        }
        let stored = self.read_ref(session)?.filter(|stored| stored.journaled);
        Ok(stored.and_then(|stored| stored.owner).map(|owner| Some(owner.server)))
    }

    /// Removes the parts of a session that are this writer's.
    pub(crate) fn remove_parts(&self, session: SessionId, writer: Option<ServerId>) -> Result<(), StateError> {
        for number in self.part_numbers(session, writer)? {
            let name = Name::Part(self.id(), session, writer, number);
            match number {
                0 => self.store().remove(&name)?, // the numbers are in order, and without this part the others count for nothing
                _ => self.store().forget(&name)?,
            }
        }
        Ok(())
    }

    /// The writers of a session's parts, and their numbers, in order.
    pub(crate) fn parts(&self, session: SessionId) -> Result<Vec<(Option<ServerId>, u32)>, StateError> {
        let listed = self.store().list(Place::Journal(self.id(), session))?;
        let part = |name| match name {
            Name::Part(_, _, writer, number) if number < MOST_PARTS => Some((writer, number)),
            _ => None,
        };
        let mut parts: Vec<_> = listed.into_iter().filter_map(|listed| part(listed.name)).collect();
        parts.sort_unstable();
        Ok(parts)
    }

    /// The numbers of the parts of a session that are this writer's, in order.
    fn part_numbers(&self, session: SessionId, writer: Option<ServerId>) -> Result<Vec<u32>, StateError> {
        let parts = self.parts(session)?.into_iter();
        Ok(parts
            .filter(|(its, _)| *its == writer)
            .map(|(_, number)| number)
            .collect())
    }

    pub(crate) fn part(
        &self,
        session: SessionId,
        writer: Option<ServerId>,
        number: u32,
    ) -> Result<Option<Sealed>, StateError> {
        let name = Name::Part(self.id(), session, writer, number);
        let Some(sealed) = self.store().read(&name, MOST_SEALED)? else {
            return Ok(None);
        };
        read(&name.to_string(), &self.open_sealed(&name, sealed)?).map(Some)
    }
}
