//! States as callers see them, and their manifests and refs.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StateError;
use crate::names::{ObjectId, ServerId, SessionId};

/// The version of manifests and refs.
pub(crate) const FORMAT: u32 = 1;

/// The bytes that an entry of a manifest counts beside its text: the names of its objects, and the JSON around.
const ENTRY_BYTES: u64 = 128;

/// All that is stored of a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Saved {
    /// The last execution whose effects the state has.
    pub execution: u32,
    /// The settings of the session, such as its backend and limits. This crate does not read them.
    pub settings: Value,
    /// The host's part of the session, such as its contexts. This crate does not read it. Bodies stand in `bodies`.
    pub past: Value,
    /// The bodies that `past` names by their numbers.
    pub bodies: Vec<Bytes>,
    /// The variables. Only guests may open them.
    pub state: Bytes,
    /// The variables that `state` lacks.
    pub lost: Vec<Lost>,
    /// The files of the working folder.
    pub files: Vec<SavedFile>,
    /// The empty folders in the working folder.
    pub folders: Vec<String>,
}

impl Saved {
    /// The bytes of all bodies and texts together. Each counts 128 more, for its place in the manifest.
    pub fn bytes(&self) -> u64 {
        let bodies = self.bodies.iter().map(Bytes::len).chain([self.state.len()]);
        let files = self.files.iter().map(|file| file.path.len() + file.body.len());
        let lost = self.lost.iter().map(|lost| lost.name.len() + lost.reason.len());
        let folders = self.folders.iter().map(String::len);
        let texts = [&self.settings, &self.past].map(json_bytes);
        let entries = bodies.chain(files).chain(lost).chain(folders).chain(texts);
        entries.map(|bytes| bytes as u64 + ENTRY_BYTES).sum()
    }
}

/// The length of a value as JSON.
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and every key of a value is a text.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// A variable that could not be stored, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The variable's name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// A stored file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// The file's path, as the guest gave it. Only the guest's side may use it as a path.
    pub path: String,
    /// The file's contents.
    pub body: Bytes,
}

/// The facts about a stored session that are known without its manifest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The last execution whose effects the state has.
    pub execution: u32,
    /// The time at which the state was written, in milliseconds since 1970.
    pub written_ms: u64,
    /// The time at which the session last went on from the state, in milliseconds since 1970; 0 if it never did.
    #[serde(default)]
    pub used_ms: u64,
    /// The bytes of the state ([`Saved::bytes`]).
    pub bytes: u64,
    /// The bytes of executions that can run again, see [`Written::ended_bytes`](crate::Written::ended_bytes).
    #[serde(default)]
    pub ended_bytes: u64,
    /// True while the session goes on elsewhere. If its host is killed, the state is older than what clients saw.
    pub awake: bool,
    /// Further facts, for listings. This crate does not read them.
    pub about: Value,
}

impl Head {
    /// The time at which the state was last written or used, in milliseconds since 1970.
    pub fn last_used_ms(&self) -> u64 {
        self.used_ms.max(self.written_ms)
    }
}

/// The ref of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) format: u32,
    pub(crate) head: Head,
    pub(crate) manifest: Body,
    /// The server among whose objects the manifest and its bodies are. `None` in a store of one server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<ServerId>,
    /// The server that wrote the ref. `None` if an earlier version did.
    #[serde(default)]
    pub(crate) owner: Option<Owner>,
    /// True if the session may have a journal, in a store that servers share. Others are never asked for one.
    #[serde(default)]
    pub(crate) journaled: bool,
    /// True if the session was removed. Its name is never used again.
    #[serde(default)]
    pub(crate) gone: bool,
}

impl Ref {
    /// A ref in place of one that is to be removed.
    pub(crate) fn gone(server: ServerId) -> Self {
        let owner = Owner {
            server,
            epoch: u64::MAX,
            holds: false,
        };
        Self {
            format: FORMAT,
            head: Head::default(),
            manifest: Body::default(),
            writer: None,
            owner: Some(owner),
            journaled: false,
            gone: true,
        }
    }
}

/// The server that wrote a ref last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) server: ServerId,
    /// The number of servers that have had the session. Each of them makes it larger by one, so a late write can be told from its own.
    pub(crate) epoch: u64,
    /// True while the session goes on there. Others may have it when that server's lease is over.
    pub(crate) holds: bool,
}

/// The manifest of a state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) session: SessionId,
    pub(crate) execution: u32,
    pub(crate) settings: Value,
    pub(crate) past: Value,
    pub(crate) bodies: Vec<Body>,
    pub(crate) state: Body,
    pub(crate) lost: Vec<Lost>,
    pub(crate) files: Vec<(String, Body)>,
    pub(crate) folders: Vec<String>,
    /// Executions before the state that can run again, or the reason for which they cannot; the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ended: Vec<Ended>,
}

/// An execution that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) execution: u32,
    pub(crate) kept: Result<KeptRun, String>,
}

/// All that an execution needs to run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptRun {
    /// The manifest of the state before it.
    pub(crate) manifest: Body,
    /// The bytes of that state.
    pub(crate) bytes: u64,
    /// The bytes of its pieces that the state before the execution before it lacks, or a little more.
    pub(crate) added: u64,
    pub(crate) journal: Body,
    /// The server among whose objects the state is. `None` in a store of one server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<ServerId>,
    /// The same of the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) journal_writer: Option<ServerId>,
}

/// The bytes that these executions take. The oldest state counts as a whole, and each later one what it adds.
pub(crate) fn bytes_of_ended(ended: &[Ended]) -> u64 {
    let mut bytes = 0_u64;
    for run in ended.iter().filter_map(|ended| ended.kept.as_ref().ok()) {
        let state = if bytes == 0 { run.bytes } else { run.added };
        let own = state
            .saturating_add(run.journal.bytes)
            .saturating_add(run.manifest.bytes);
        bytes = bytes.saturating_add(own);
    }
    bytes
}

impl Manifest {
    /// All bodies of the state.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Body> {
        let files = self.files.iter().map(|(_, body)| body);
        self.bodies.iter().chain([&self.state]).chain(files)
    }
}

/// A body: its length, and the objects of its pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) bytes: u64,
    pub(crate) pieces: Vec<ObjectId>,
}

/// The part of a manifest or ref that all formats have.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Reads a manifest or ref, which `what` names.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(what: &str, json: &[u8]) -> Result<T, StateError> {
    let malformed = |error| StateError::Damaged(format!("{what} is malformed: {error}"));
    match serde_json::from_slice::<Versioned>(json).map_err(malformed)?.format {
        FORMAT => serde_json::from_slice(json).map_err(malformed),
        newer if newer > FORMAT => Err(StateError::Newer(newer)),
        other => Err(StateError::Damaged(format!(
            "{what} is of format {other}, which never was"
        ))),
    }
}

/// Writes a manifest or ref.
pub(crate) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, StateError> {
    serde_json::to_vec(value)
        .map_err(|error| StateError::io("a state cannot be described", std::io::Error::other(error)))
}
