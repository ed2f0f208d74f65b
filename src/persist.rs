//! Sessions that the browser keeps (the option `persist`). `pyodide-glue/kept-sessions.js` has the store.
//!
//! A session is written whenever it differs from what was last written, one write after the other. A body is written once.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use js_sys::{Array, JsString, Object, Promise, Uint8Array};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, CryptoKey};

use super::arguments::entries;
use super::budget::shown;
use super::glue::{Glue, get, sandbox_error};
use super::outbox::JsBody;
use sandglass_core::error::Error;
use sandglass_core::session::{HistoryEntry, Kept};

/// The most characters of a session's name.
const MOST_NAME_CHARS: usize = 200;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The session that a sandbox continues, and is kept as: its name, and a key with which its contents are encrypted. */
export interface PersistOptions {
  name: string;
  key?: EncryptionKey;
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
    #[wasm_bindgen(method, js_name = forgetBodies)]
    fn forget_bodies(this: &Store);
    #[wasm_bindgen(method)]
    fn write(this: &Store, description: &str, execution: u32, bytes: f64, added: &Array, all: &Array) -> Promise;
    #[wasm_bindgen(method)]
    fn close(this: &Store);
}

/// The option `persist`.
#[derive(Debug, Clone)]
pub(super) struct Persist {
    name: String,
    key: Option<CryptoKey>,
}

impl Persist {
    pub(super) fn parse(option: &str, value: &JsValue) -> Result<Self, Error> {
        let wrong = || Error::invalid(option, "must be a session's name, or { name, key } with a CryptoKey");
        let (mut name, mut key) = (value.as_string(), None);
        if name.is_none() {
            for (inner, value) in entries(value, option)? {
                match inner.as_str() {
                    _ if value.is_undefined() => {}
                    "name" => name = value.as_string(),
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
        Ok(Self { name, key })
    }

    /// Opens the session. Returns what was kept of it, and why this release cannot take its state, if so.
    pub(super) async fn open(
        &self,
        glue: &Glue,
    ) -> Result<(Rc<Keeper>, Option<Kept<JsBody>>, Option<&'static str>), JsValue> {
        let key = self.key.as_ref().map_or(JsValue::UNDEFINED, JsValue::from);
        let store = JsFuture::from(glue.open_session(&self.name, &key)?).await?;
        let store: Store = store.unchecked_into();
        let mut written = Written::default();
        let kept = match store.description() {
            None => None,
            Some(description) => {
                let read = written.read(&description, &store).inspect_err(|_| store.close());
                Some(read.map_err(|error| self.unreadable(glue, &error))?)
            }
        };
        store.forget_bodies();
        let foreign = (!store.is_of_build()).then_some("another release of sandglass has saved it");
        let keeper = Keeper {
            store,
            written: RefCell::new(written),
            pending: RefCell::default(),
            is_writing: Cell::new(false),
            is_ending: Cell::new(false),
            failure: RefCell::default(),
            waiting: RefCell::default(),
        };
        Ok((Rc::new(keeper), kept, foreign))
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
}

/// The numbers of bodies that are in the store.
#[derive(Default, Clone)]
struct Written {
    last: u32,
    /// By the numbers of their checkpoints.
    checkpoints: HashMap<u32, u32>,
    /// Contexts and packages.
    others: Vec<(JsValue, u32)>,
    times: BTreeMap<u32, f64>,
}

impl Written {
    fn read(&mut self, description: &str, store: &Store) -> Result<Kept<JsBody>, String> {
        let Description { kept, times }: Description<Kept<u32>> =
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
            body_of(&value).unwrap_or_else(|| {
                missing = Some(id);
                JsBody::Bytes(Uint8Array::new_with_length(0))
            })
        });
        match missing {
            Some(id) => Err(format!("body {id} is missing")),
            None => Ok(kept),
        }
    }

    /// Returns the description of a session, the bodies that are new, and the numbers of all.
    fn describe(&mut self, kept: Kept<JsBody>, history: &[HistoryEntry]) -> Result<(String, Array, Array), String> {
        let (added, all) = (Array::new(), Array::new());
        let (mut checkpoints, mut others) = (HashMap::new(), Vec::new());
        let kept = kept.map(|checkpoint, body| {
            let value = value_of(&body);
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
        let description = serde_json::to_string(&Description { kept, times });
        Ok((description.map_err(|error| error.to_string())?, added, all))
    }
}

/// A body as the store holds it.
fn value_of(body: &JsBody) -> JsValue {
    match body {
        JsBody::Text(text) => text.into(),
        JsBody::Bytes(bytes) => bytes.into(),
        JsBody::Blob(blob) => blob.into(),
        JsBody::Checkpoint(_) => JsValue::UNDEFINED, // sessions on servers are not kept
    }
}

fn body_of(value: &JsValue) -> Option<JsBody> {
    if let Some(text) = value.dyn_ref::<JsString>() {
        return Some(JsBody::Text(text.clone()));
    }
    if let Some(blob) = value.dyn_ref::<Blob>() {
        return Some(JsBody::Blob(blob.clone()));
    }
    Some(JsBody::Bytes(value.dyn_ref::<Uint8Array>()?.clone()))
}

/// Hears of each write: the execution whose state is kept now, or the reason why it is not.
pub(super) type OnKept = Box<dyn Fn(u32, Option<&str>)>;

/// Writes a session to the browser's store.
pub(super) struct Keeper {
    store: Store,
    written: RefCell<Written>,
    /// The next to write.
    pending: RefCell<Option<Kept<JsBody>>>,
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
        self.pending.replace(Some(kept));
        if self.is_writing.replace(true) {
            return;
        }
        let keeper = Rc::clone(self);
        spawn_local(async move {
            while let Some(kept) = keeper.pending.take() {
                let execution = kept.execution();
                let result = keeper.write(kept).await;
                let why = result.as_ref().err().map(|error| get(error, "message"));
                on_kept(execution, why.map(|why| why.as_string().unwrap_or_default()).as_deref());
                keeper.failure.replace(result.err());
            }
            keeper.is_writing.set(false);
            keeper.rest();
        });
    }

    async fn write(&self, kept: Kept<JsBody>) -> Result<(), JsValue> {
        let (execution, history) = (kept.execution(), kept.history());
        let bytes = history.iter().map(|entry| entry.bytes).sum();
        let mut written = self.written.borrow().clone();
        let described = written.describe(kept, &history);
        let (description, added, all) = described.map_err(|error| JsValue::from(js_sys::Error::new(&error)))?;
        JsFuture::from(self.store.write(&description, execution, bytes, &added, &all)).await?;
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
