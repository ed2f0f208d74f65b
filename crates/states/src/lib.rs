#![doc = include_str!("../README.md")]
//!
//! # Words
//!
//! A *tenant* is an owner of sessions. An *object* is a piece of a body. A *manifest* names the objects of a session's state. A *ref* is
//! the file of a session, which names the manifest. Only the ref is ever replaced, at once: a session has its old state or its new one.
//!
//! | module | holds |
//! |---|---|
//! | `names` | ids, and the names of what is stored |
//! | `keys` | the master key, and the keys of a tenant |
//! | `seal` | compression and encryption of one object |
//! | `pieces` | cutting bodies |
//! | `manifest` | states, and their manifests |
//! | `lease`, `clock` | the servers that share a store, and which of them live |
//! | `load` | the loads that these servers tell each other |
//! | `conversation` | tokens of conversations, which lead from one server to another |
//! | `states` | writing, reading, listing and collecting; the refs of sessions, and who may write them |
//! | `journal` | the parts of the journal of an execution after a state |
//! | `ended` | executions before a state that can run again: their journals, and the states before them |
//! | `store` | the places of objects: a folder, memory, object storage, or NATS |
//!
//! Decisions: `docs/internals/server.md`.

mod clock;
mod conversation;
mod ended;
mod error;
mod journal;
mod keys;
mod lease;
mod load;
mod locks;
mod manifest;
mod names;
mod pieces;
mod seal;
mod states;
mod store;

pub use clock::Clock;
pub use conversation::{Holder, Leads};
pub use ended::{MostEnded, Ran, Rerun};
pub use error::StateError;
pub use journal::{Part, part_bytes};
pub use keys::MasterKey;
pub use lease::{Beat, Living, Standing};
pub use load::{Load, OtherLoad, Used};
pub use manifest::{Head, Lost, Saved, SavedFile};
pub use names::{HomeId, JournalId, Name, ObjectId, Place, ServerId, SessionId, TenantId};
pub use states::{Collected, Found, States, Tenant, Written};
pub use store::{FolderStore, Listed, Listener, MemoryStore, NatsStore, ObjectStorage, SplitStore, Store, Version};
