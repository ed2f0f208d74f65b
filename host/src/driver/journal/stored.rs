//! Journals as a store has them: the parts of the one under way, and those of ended executions, each in one piece.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use bytes::Bytes;
use sandglass_core::session::{Beginning, Entry, Record};
use sandglass_states::{JournalId, Part};
use serde::{Deserialize, Serialize};

use crate::driver::EndedRecord;
use crate::value::Payload;

/// The text of a part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Text {
    Begin(Beginning),
    Entry(Entry<()>),
    /// The execution cannot be resumed, because of this.
    Broken(String),
    /// The execution has ended, and was answered before the state after it was written. The body has the whole record in as many bytes as this,
    /// and then the JSON of the execution, unless that is too long.
    Ended(usize),
    /// After an end: the sandbox went on, and what it did since is not kept.
    Left,
}

/// The journal of a session in a store.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Of an execution that was under way.
    UnderWay(Written),
    /// Of an execution that has ended, and whose state was not written.
    Ended(EndedRun),
}

/// An execution whose state can be had by running it again.
#[derive(Debug, Clone)]
pub(crate) struct EndedRun {
    pub(crate) record: Record<Payload>,
    /// The id of the journal that its calls are named after.
    pub(crate) journal: Option<JournalId>,
    /// The JSON of the execution, unless it was too long.
    pub(crate) last: Option<Bytes>,
    /// The place after its end. If the part there says so, the sandbox went on, and what it did since is lost.
    pub(crate) after: AfterEnd,
}

/// The place of a part after the end of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AfterEnd {
    pub(crate) journal: JournalId,
    pub(crate) number: u32,
    /// True if the part is there.
    pub(crate) is_left: bool,
}

impl AfterEnd {
    /// The place after the end that an execution's journal will have. `None` if the journal cannot have one.
    pub(crate) fn of(ended: &EndedRecord) -> Option<Self> {
        Some(Self {
            journal: ended.journal.or_else(|| JournalId::random().ok())?,
            number: ended.parts?.checked_add(1)?,
            is_left: false,
        })
    }
}

impl Stored {
    /// Reads the parts of a journal.
    ///
    /// # Errors
    /// The damage of the journal.
    pub(crate) fn read(id: JournalId, parts: Vec<Part>) -> Result<Self, String> {
        let text = |part: &Part| serde_json::from_str::<Text>(&part.text).ok();
        let is_left = matches!(parts.last().and_then(text), Some(Text::Left));
        let end = parts.iter().rev().nth(usize::from(is_left));
        let Some((Some(Text::Ended(record_bytes)), Some(mut body))) = end.map(|part| (text(part), part.body.clone()))
        else {
            return Written::read(id, parts).map(Self::UnderWay);
        };
        if record_bytes > body.len() {
            return Err("its journal is damaged: it was cut".to_owned());
        }
        let (journal, record) = unpacked(body.split_to(record_bytes))?;
        Ok(Self::Ended(EndedRun {
            record,
            journal,
            last: Some(body).filter(|last| !last.is_empty()),
            after: AfterEnd {
                journal: id,
                number: u32::try_from(parts.len() - usize::from(is_left)).unwrap_or(u32::MAX),
                is_left,
            },
        }))
    }
}

/// A journal as the store has it.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) id: JournalId,
    pub(crate) record: Record<Payload>,
    /// The times at which the parts were written, in milliseconds since 1970.
    pub(crate) times: Vec<u64>,
}

impl Written {
    /// Reads the parts of a journal.
    ///
    /// # Errors
    /// The damage of the journal.
    pub(crate) fn read(id: JournalId, parts: Vec<Part>) -> Result<Self, String> {
        let mut beginning = None;
        let (mut entries, mut times, mut broken) = (Vec::new(), Vec::new(), None);
        for Part { text, body, written_ms } in parts {
            match serde_json::from_str(&text).map_err(|error| format!("a part of its journal is malformed: {error}"))? {
                Text::Begin(begins) => beginning = Some(begins),
                Text::Broken(why) => broken = Some(why),
                Text::Ended(_) | Text::Left => return Err("its journal goes on after its end".to_owned()),
                Text::Entry(entry) => {
                    let mut is_missing = false;
                    entries.push(entry.map(|()| {
                        is_missing |= body.is_none();
                        Payload(body.clone().unwrap_or_default())
                    }));
                    if is_missing {
                        return Err("a part of its journal has no body".to_owned());
                    }
                }
            }
            times.push(written_ms);
        }
        let beginning = beginning.ok_or("its journal has no beginning")?;
        let record = Record::written(beginning, entries, broken)?;
        Ok(Self { id, record, times })
    }
}

/// The text before the bodies of a journal that is one piece.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    /// `None` if no call was written.
    journal: Option<JournalId>,
    beginning: Beginning,
    /// The entries, each with the length of its body.
    entries: Vec<Entry<usize>>,
}

/// The journal of an ended execution as one piece: the length of its text in 8 bytes, its text, and its bodies.
///
/// # Errors
/// The reason for which the execution cannot be replayed.
pub(crate) fn packed(journal: Option<JournalId>, record: &Record<Payload>) -> Result<Vec<u8>, String> {
    if let Some(why) = record.why_not_replayed() {
        return Err(why.to_owned());
    }
    let (beginning, entries) = record.parts();
    let mut bodies = Vec::with_capacity(record.size());
    let entries = entries.iter().cloned().map(|entry| {
        entry.map(|Payload(body)| {
            bodies.extend_from_slice(&body);
            body.len()
        })
    });
    let contents = Contents {
        journal,
        beginning: beginning.clone(),
        entries: entries.collect(),
    };
    let text = serde_json::to_vec(&contents).map_err(|error| format!("its journal cannot be described ({error})"))?;
    let length = (text.len() as u64).to_le_bytes();
    Ok([&length[..], &text, &bodies].concat())
}

/// Reads what [`packed`] made.
///
/// # Errors
/// The damage.
pub(crate) fn unpacked(mut bytes: Bytes) -> Result<(Option<JournalId>, Record<Payload>), String> {
    let cut = || "its journal is damaged: it was cut".to_owned();
    let mut take = |length: usize| (length <= bytes.len()).then(|| bytes.split_to(length));
    let length = take(8).and_then(|length| <[u8; 8]>::try_from(&length[..]).ok());
    let length = length.and_then(|length| usize::try_from(u64::from_le_bytes(length)).ok());
    let text = length.and_then(&mut take).ok_or_else(cut)?;
    let contents: Contents =
        serde_json::from_slice(&text).map_err(|error| format!("its journal is malformed: {error}"))?;
    let mut is_cut = false;
    let entries = contents.entries.into_iter().map(|entry| {
        entry.map(|length| {
            let body = take(length);
            is_cut |= body.is_none();
            Payload(body.unwrap_or_default())
        })
    });
    let entries = entries.collect();
    match is_cut {
        true => Err(cut()),
        false => Ok((contents.journal, Record::written(contents.beginning, entries, None)?)),
    }
}
