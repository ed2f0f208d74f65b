//! Sessions that the browser keeps (the option `persist`). `pyodide-glue/kept-sessions.js` has the store.
//!
//! A session is written whenever it differs from what was last written, one write after the other. A body is written once.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use js_sys::{Array, Object, Promise, Uint8Array};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::CryptoKey;

use super::arguments::entries;
use super::budget::shown;
use super::glue::{Glue, get, sandbox_error};
use super::journal::{self, Journal};
use super::outbox::JsBody;
use sandglass_core::error::Error;
use sandglass_core::session::{HistoryEntry, Kept, Record, RecordChange};

/// The most characters of a session's name.
const MOST_NAME_CHARS: usize = 200;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The session that a sandbox continues, and is kept as: its name, and a key with which its contents are encrypted. */
export interface PersistOptions {
  name: string;
  key?: EncryptionKey;
  /**
   * True: the browser also keeps a journal of the execution that runs. If the page ends during a host call, a later sandbox goes on with the
   * execution (`pending`, `resume`). Ended executions can be replayed (`replay`). No code runs ahead then. Default false.
   */
  journal?: boolean;
}

/** A `CryptoKey` of AES-GCM that encrypts and decrypts. */
export interface EncryptionKey {
  readonly algorithm: { readonly name: string };
  readonly usages: readonly string[];
}

/** A state to which `restore` can go back. */
export interface HistoryEntry {
  /** The last execution whose effects the state has; 0 means before the first. */
  execution: number;
  /** The checkpoint's size in bytes: all of the state, or its changes since an earlier one. */
  bytes: number;
  /** The time at which the browser has kept it (`persist`), in milliseconds since 1970; null if it has not. */
  keptAt: number | null;
  /** True for the state that the sandbox has now, or has come from since. */
  current: boolean;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `HistoryEntry[]`.
    #[wasm_bindgen(typescript_type = "HistoryEntry[]")]
    pub type HistoryValue;

    /// A session in the browser's store.
    pub(super) type Store;
    #[wasm_bindgen(method, getter)]
    fn description(this: &Store) -> Option<String>;
    #[wasm_bindgen(method, getter, js_name = isOfBuild)]
    fn is_of_build(this: &Store) -> bool;
    #[wasm_bindgen(method)]
    fn body(this: &Store, id: u32) -> JsValue;
    #[wasm_bindgen(method)]
    fn ended(this: &Store, id: u32) -> Promise;
    #[wasm_bindgen(method, js_name = forgetBodies)]
    fn forget_bodies(this: &Store);
    #[wasm_bindgen(method)]
    fn write(
        this: &Store,
        description: &str,
        execution: u32,
        bytes: f64,
        added: &Array,
        all: &Array,
        keeps_journal: bool,
    ) -> Promise;
    #[wasm_bindgen(method, getter)]
    fn journal(this: &Store) -> Array;
    #[wasm_bindgen(method, getter)]
    fn broken(this: &Store) -> Option<String>;
    #[wasm_bindgen(method)]
    fn note(this: &Store, notes: &Array) -> Promise;
    #[wasm_bindgen(method)]
    fn close(this: &Store);
}

/// The option `persist`.
#[derive(Debug, Clone)]
pub(super) struct Persist {
    name: String,
    key: Option<CryptoKey>,
    /// True if the browser keeps a journal of the execution that runs.
    pub(super) has_journal: bool,
}

/// A session that was opened.
pub(super) struct Opened {
    pub(super) keeper: Rc<Keeper>,
    /// The session as it was kept. `None` for a new one.
    pub(super) kept: Option<Kept<JsBody>>,
    /// The reason for which this release cannot take its state.
    pub(super) foreign: Option<&'static str>,
    /// The record of the execution that was under way.
    pub(super) record: Option<Record<JsBody>>,
}

impl Persist {
    pub(super) fn parse(option: &str, value: &JsValue) -> Result<Self, Error> {
        let wrong = || Error::invalid(option, "must be a session's name, or { name, key } with a CryptoKey");
        let (mut name, mut key, mut has_journal) = (value.as_string(), None, false);
        if name.is_none() {
            for (inner, value) in entries(value, option)? {
                match inner.as_str() {
                    _ if value.is_undefined() => {}
                    "name" => name = value.as_string(),
                    "journal" => {
                        let wrong = || Error::invalid(format!("{option}.journal"), "must be true or false");
                        has_journal = value.as_bool().ok_or_else(wrong)?;
                    }
                    "key" => key = Some(value.dyn_into().map_err(|_| wrong())?),
                    _ => return Err(Error::invalid(format!("{option}.{inner}"), "there is no such option")),
                }
            }
        }
        let name = name.filter(|name| !name.is_empty()).ok_or_else(wrong)?;
        if name.chars().count() > MOST_NAME_CHARS {
            let why = format!("a name has at most {MOST_NAME_CHARS} characters");
            return Err(Error::invalid(option, why));
        }
        Ok(Self { name, key, has_journal })
    }

    /// Opens the session.
    pub(super) async fn open(&self, glue: &Glue) -> Result<Opened, JsValue> {
        let key = self.key.as_ref().map_or(JsValue::UNDEFINED, JsValue::from);
        let store = JsFuture::from(glue.open_session(&self.name, &key)?).await?;
        let store: Store = store.unchecked_into();
        let mut written = Written::default();
        let foreign = (!store.is_of_build()).then_some("another release of sandglass has saved it");
        let kept = match store.description() {
            None => None,
            Some(description) => {
                let read = written.read(&description, &store).inspect_err(|_| store.close());
                let (kept, ended) = read.map_err(|error| self.unreadable(glue, &error))?;
                Some(written.read_ended(kept, ended, foreign, &store).await)
            }
        };
        store.forget_bodies();
        let journal = Journal::default();
        let broken = foreign.map(str::to_owned).or_else(|| store.broken());
        let record = journal.read(&store.journal(), broken).map_err(|error| {
            store.close();
            self.unreadable(glue, &error)
        })?;
        let keeper = Keeper {
            store,
            journal,
            noted: Cell::default(),
            to_note: Cell::default(),
            has_no_journal: Cell::default(),
            on_noted: RefCell::default(),
            written: RefCell::new(written),
            pending: RefCell::default(),
            is_writing: Cell::new(false),
            is_ending: Cell::new(false),
            failure: RefCell::default(),
            waiting: RefCell::default(),
        };
        Ok(Opened {
            keeper: Rc::new(keeper),
            kept,
            foreign,
            record,
        })
    }

    /// A promise of the run of this name in the browser's store.
    pub(super) fn open_run(&self, glue: &Glue, task: &str, contexts: &Array) -> Result<Promise, JsValue> {
        let key = self.key.as_ref().map_or(JsValue::UNDEFINED, JsValue::from);
        glue.open_run(&self.name, &key, task, contexts)
    }

    fn unreadable(&self, glue: &Glue, error: &str) -> JsValue {
        let name = &self.name;
        let what = format!(
            "the kept session \"{name}\" cannot be read ({error}); it stays as it is, deletePersisted removes it"
        );
        sandbox_error(glue, "persist_failed", &format!("persist: {what}"))
    }
}

/// The description of a session, written as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Description<K> {
    kept: K,
    /// The times at which checkpoints were first kept, by their numbers, in milliseconds since 1970.
    times: BTreeMap<u32, f64>,
    /// The journals of ended executions, the oldest first. Sessions of earlier releases have none.
    #[serde(default)]
    ended: Vec<Ended>,
}

/// The journal of an ended execution: the number of its body, or the reason for which there is none.
#[derive(Serialize, Deserialize)]
struct Ended {
    execution: u32,
    body: Option<u32>,
    why: Option<String>,
}

/// The numbers of bodies that are in the store.
#[derive(Default, Clone)]
struct Written {
    last: u32,
    /// By the numbers of their checkpoints.
    checkpoints: HashMap<u32, u32>,
    /// Contexts and packages.
    others: Vec<(JsValue, u32)>,
    /// Journals of ended executions.
    ended: Vec<(Arc<Record<JsBody>>, u32)>,
    times: BTreeMap<u32, f64>,
}

impl Written {
    fn read(&mut self, description: &str, store: &Store) -> Result<(Kept<JsBody>, Vec<Ended>), String> {
        let Description { kept, times, ended }: Description<Kept<u32>> =
            serde_json::from_str(description).map_err(|error| error.to_string())?;
        self.times = times;
        let mut missing = None;
        let kept = kept.map(|checkpoint, id| {
            self.last = self.last.max(id);
            let value = store.body(id);
            match checkpoint {
                Some(checkpoint) => drop(self.checkpoints.insert(checkpoint, id)),
                None if self.others.iter().any(|(_, known)| *known == id) => {}
                None => self.others.push((value.clone(), id)),
            }
            JsBody::of_value(&value).unwrap_or_else(|| {
                missing = Some(id);
                JsBody::Bytes(Uint8Array::new_with_length(0))
            })
        });
        match missing {
            Some(id) => Err(format!("body {id} is missing")),
            None => Ok((kept, ended)),
        }
    }

    /// Adds the journals of ended executions to the session. A journal that cannot be read costs only itself.
    async fn read_ended(
        &mut self,
        kept: Kept<JsBody>,
        ended: Vec<Ended>,
        foreign: Option<&str>,
        store: &Store,
    ) -> Kept<JsBody> {
        let mut records = Vec::new();
        for Ended { execution, body, why } in &ended {
            self.last = self.last.max(body.unwrap_or_default());
            let why = why.as_deref().or(foreign);
            let read = match (why, body) {
                (None, Some(id)) => JsFuture::from(store.ended(*id)).await.ok(),
                _ => None,
            };
            let record = read.and_then(|parts| journal::ended(parts.unchecked_ref()).ok());
            let record = record.filter(|record| record.execution() == *execution);
            records
                .push(record.unwrap_or_else(|| Record::missing(*execution, why.unwrap_or("its journal is damaged"))));
        }
        let kept = kept.with_records(records);
        let known = kept.records().iter().zip(&ended);
        self.ended = known
            .filter_map(|(record, row)| Some((Arc::clone(record), row.body?)))
            .collect();
        kept
    }

    /// Returns the description of a session, the bodies that are new, and the numbers of all.
    fn describe(&mut self, kept: Kept<JsBody>, history: &[HistoryEntry]) -> Result<(String, Array, Array), String> {
        let (added, all) = (Array::new(), Array::new());
        let (mut checkpoints, mut others) = (HashMap::new(), Vec::new());
        let ended = self.describe_ended(&kept, &added, &all)?;
        let kept = kept.map(|checkpoint, body| {
            let value = body.to_value();
            let known = match checkpoint {
                Some(checkpoint) => self.checkpoints.get(&checkpoint).copied(),
                None => {
                    let same = |(other, _): &&(JsValue, u32)| Object::is(other, &value);
                    self.others.iter().chain(&others).find(same).map(|(_, id)| *id)
                }
            };
            let id = known.unwrap_or_else(|| {
                self.last += 1;
                added.push(&Array::of2(&self.last.into(), &value));
                self.last
            });
            match checkpoint {
                Some(checkpoint) => drop(checkpoints.insert(checkpoint, id)),
                None if others.iter().any(|(_, known)| *known == id) => {}
                None => others.push((value, id)),
            }
            all.push(&id.into());
            id
        });
        (self.checkpoints, self.others) = (checkpoints, others);
        let now = js_sys::Date::now();
        let times = history.iter().map(|entry| {
            let time = self.times.get(&entry.number).copied();
            (entry.number, time.unwrap_or(now))
        });
        let times: BTreeMap<u32, f64> = times.collect();
        self.times.clone_from(&times);
        let description = serde_json::to_string(&Description { kept, times, ended });
        Ok((description.map_err(|error| error.to_string())?, added, all))
    }

    /// The same for the journals of ended executions. Each is written once.
    fn describe_ended(&mut self, kept: &Kept<JsBody>, added: &Array, all: &Array) -> Result<Vec<Ended>, String> {
        let (mut rows, mut ended) = (Vec::new(), Vec::new());
        for record in kept.records() {
            let mut row = Ended {
                execution: record.execution(),
                body: None,
                why: record.broken().map(str::to_owned),
            };
            if row.why.is_none() {
                let known = self.ended.iter().find(|(other, _)| Arc::ptr_eq(other, record));
                let id = match known {
                    Some((_, id)) => *id,
                    None => {
                        self.last += 1;
                        added.push(&Array::of2(&self.last.into(), &journal::of_ended(record)?.into()));
                        self.last
                    }
                };
                all.push(&id.into());
                ended.push((Arc::clone(record), id));
                row.body = Some(id);
            }
            rows.push(row);
        }
        self.ended = ended;
        Ok(rows)
    }
}

/// Hears of each write of the journal, and of the reason for which it has failed.
pub(super) type OnNoted = Box<dyn Fn(Option<&str>)>;

/// Hears of each write: the execution whose state is kept now, or the reason why it is not.
pub(super) type OnKept = Box<dyn Fn(u32, Option<&str>)>;

/// A write to the store.
enum Work {
    /// Replaces what is kept.
    Keep(Box<Kept<JsBody>>, OnKept),
    /// Changes the journal.
    Note(Vec<RecordChange<JsBody>>),
}

/// Writes a session to the browser's store.
pub(super) struct Keeper {
    store: Store,
    written: RefCell<Written>,
    pub(super) journal: Journal,
    /// The numbers of changes of the journal that are written, and that are to be written.
    noted: Cell<u32>,
    to_note: Cell<u32>,
    /// True while the journal could not be written. The next execution begins another one.
    has_no_journal: Cell<bool>,
    /// Hears of each write of the journal, and of the reason for which it has failed.
    pub(super) on_noted: RefCell<Option<OnNoted>>,
    /// The next to write, in order.
    pending: RefCell<VecDeque<Work>>,
    is_writing: Cell<bool>,
    /// True once the sandbox has ended. The session is given up after the last write.
    is_ending: Cell<bool>,
    /// The reason for which the newest state is not kept.
    failure: RefCell<Option<JsValue>>,
    /// Functions to call when nothing is left to write.
    waiting: RefCell<Vec<js_sys::Function>>,
}

impl Keeper {
    /// Writes the session, after a write that is under way.
    pub(super) fn keep(self: &Rc<Self>, kept: Kept<JsBody>, on_kept: OnKept) {
        let mut pending = self.pending.borrow_mut();
        if let Some(Work::Keep(..)) = pending.back() {
            pending.pop_back();
        }
        pending.push_back(Work::Keep(Box::new(kept), on_kept));
        drop(pending);
        self.work();
    }

    /// Changes the journal, after all earlier writes.
    pub(super) fn note(self: &Rc<Self>, note: RecordChange<JsBody>) {
        match &note {
            RecordChange::Begin(_) => self.has_no_journal.set(false),
            _ if self.has_no_journal.get() => return,
            _ => {}
        }
        self.to_note.set(self.to_note.get().wrapping_add(1));
        let mut pending = self.pending.borrow_mut();
        match pending.back_mut() {
            Some(Work::Note(notes)) => notes.push(note),
            _ => pending.push_back(Work::Note(vec![note])),
        }
        drop(pending);
        self.work();
    }

    /// Returns true if all changes of the journal are written.
    pub(super) fn has_noted(&self) -> bool {
        self.noted == self.to_note
    }

    /// Does the work that waits, one write after the other.
    fn work(self: &Rc<Self>) {
        if self.is_writing.replace(true) {
            return;
        }
        let keeper = Rc::clone(self);
        spawn_local(async move {
            loop {
                let Some(work) = keeper.pending.borrow_mut().pop_front() else {
                    break;
                };
                match work {
                    Work::Keep(kept, on_kept) => {
                        let execution = kept.execution();
                        let result = keeper.write(*kept).await;
                        on_kept(execution, result.as_ref().err().map(message).as_deref());
                        keeper.failure.replace(result.err());
                    }
                    Work::Note(notes) => keeper.write_notes(notes).await,
                }
            }
            keeper.is_writing.set(false);
            keeper.rest();
        });
    }

    async fn write_notes(&self, notes: Vec<RecordChange<JsBody>>) {
        #[expect(clippy::cast_possible_truncation, reason = "the numbers wrap around as well")]
        let count = notes.len() as u32;
        let parts: Result<Array, String> = notes.into_iter().map(|note| self.journal.part(note)).collect();
        let written = match parts {
            Ok(parts) => JsFuture::from(self.store.note(&parts))
                .await
                .map_err(|error| message(&error)),
            Err(error) => Err(error),
        };
        if written.is_err() {
            // A journal that lacks a part would have calls made twice.
            self.has_no_journal.set(true);
            if let Ok(end) = self.journal.part(RecordChange::End) {
                let _ = JsFuture::from(self.store.note(&Array::of1(&end))).await;
            }
        }
        self.noted.set(self.noted.get().wrapping_add(count));
        if let Some(on_noted) = &*self.on_noted.borrow() {
            on_noted(written.err().as_deref());
        }
    }

    /// Writes the session. If the journals of ended executions do not fit, it is written without them.
    async fn write(&self, kept: Kept<JsBody>) -> Result<(), JsValue> {
        let has_ended = kept.records().iter().any(|record| record.broken().is_none());
        match self.write_all(kept.clone()).await {
            Err(_) if has_ended => {
                let why = "the browser could not write its journal";
                self.write_all(kept.without_records(why)).await
            }
            result => result,
        }
    }

    async fn write_all(&self, kept: Kept<JsBody>) -> Result<(), JsValue> {
        let (execution, history, has_record) = (kept.execution(), kept.history(), kept.has_record());
        let journals: usize = kept.records().iter().map(|record| record.size()).sum();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let bytes = history.iter().map(|entry| entry.bytes).sum::<f64>() + journals as f64;
        let mut written = self.written.borrow().clone();
        let described = written.describe(kept, &history);
        let (description, added, all) = described.map_err(|error| JsValue::from(js_sys::Error::new(&error)))?;
        JsFuture::from(
            self.store
                .write(&description, execution, bytes, &added, &all, has_record),
        )
        .await?;
        self.written.replace(written);
        Ok(())
    }

    /// Returns true if the newest state could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Tells those who wait that nothing is left to write.
    fn rest(&self) {
        for function in self.waiting.take() {
            let _ = function.call0(&JsValue::UNDEFINED);
        }
        if self.is_ending.get() {
            self.store.close();
        }
    }

    /// Resolves when everything is written. Rejects if the newest state could not be.
    pub(super) async fn settled(&self) -> Result<(), JsValue> {
        if self.is_writing.get() {
            let written = Promise::new(&mut |resolve, _| self.waiting.borrow_mut().push(resolve));
            JsFuture::from(written).await?;
        }
        match &*self.failure.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Gives the session up, after the last write.
    pub(super) fn end(&self) {
        if !self.is_ending.replace(true) && !self.is_writing.get() {
            self.store.close();
        }
    }

    /// The states to which the user can go back, the newest first, each execution once.
    pub(super) fn history(keeper: Option<&Self>, entries: &[HistoryEntry]) -> HistoryValue {
        let times = keeper
            .map(|keeper| keeper.written.borrow().times.clone())
            .unwrap_or_default();
        let mut rows: Vec<HistoryRow> = Vec::new();
        for entry in entries {
            match rows.iter_mut().find(|row| row.execution == entry.execution) {
                Some(row) => row.current |= entry.current,
                None => rows.push(HistoryRow {
                    execution: entry.execution,
                    bytes: entry.bytes,
                    kept_at: times.get(&entry.number).copied(),
                    current: entry.current,
                }),
            }
        }
        shown(&rows).unchecked_into()
    }
}

fn message(error: &JsValue) -> String {
    get(error, "message").as_string().unwrap_or_default()
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// TypeScript's `HistoryEntry`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HistoryRow {
    execution: u32,
    bytes: f64,
    kept_at: Option<f64>,
    current: bool,
}
