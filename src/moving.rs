//! The public methods that carry a sandbox's state to other guests: `moveTo` and `fork`.
//!
//! A server's guest and a page's have no memory in common. Between them the state goes by value, as a portable state, with the files of
//! the working folder beside it. The same holds for copies of a guest on a server.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};

use super::arguments::entries;
use super::convert::decode;
use super::current::{Current, Hold};
use super::driver::Driver;
use super::glue::{bytes, get, now, object, thrown};
use super::options::{Options, Watch};
use super::outbox::JsBody;
use super::packages::requirements;
use super::remote::Backend;
use super::sandbox::{Sandbox, SandboxPromise};
use super::states::{capture, lost, open, parts, shown};
use sandglass_core::error::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::{Body, Command, Encoded, FileCommand, Input, Package, Reply, StateCommand, Wanted};

/// The most files and folders of the working folder that go along.
const MOST_FILES: usize = 2_000;
/// The name of a file that makes a folder, and is removed again.
const PLACEHOLDER: &str = ".sandglass-folder";
/// The bytes of a portable state before its head: the magic, the format, the length of the head, and the head's SHA-256.
const BEFORE_LENGTH: u32 = 23;
const BEFORE_HEAD: u32 = 59;
/// The longest head that is read, in bytes, and the most modules in it.
const MAX_STATE_HEAD: u32 = 16 << 20;
const MOST_MODULES: usize = 1_000;
/// The state of the sandbox after a move that failed.
const STAYS: &str = "the sandbox has not moved and goes on where it was, with its variables";
/// The same if its guest was lost while it handed its state over.
const NOT_MOVED: &str = "the sandbox has not moved";
/// The time for all files of one direction, in milliseconds. Each single one has its own as well.
const FILES_MS: f64 = 120_000.0;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The options of `moveTo`. */
export interface MoveOptions {
  /** Packages that the page's guest loads before it takes the state, as for `loadPackages`. For `"browser"` only. */
  packages?: string[];
}

/** The result of `moveTo`. */
export interface Moved {
  /**
   * The variables, and parts of variables, that could not come along, each with the reason. A file is named `file <path>`. The
   * next execution's `state.lost` names them, too.
   */
  lost: LostVariable[];
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `Promise<Moved>`.
    #[wasm_bindgen(typescript_type = "Promise<Moved>")]
    pub type MovedPromise;
}

#[wasm_bindgen]
impl Sandbox {
    /// Moves the sandbox to a server, or back into the page with `"browser"`. This sandbox goes on there with its variables, functions,
    /// classes, contexts, files, functions of the page and budget. Calls before the move are carried out first, and later calls wait for its
    /// end. Rejects if the other place cannot have the state. Then the sandbox stays where it was.
    #[wasm_bindgen(js_name = moveTo)]
    pub fn move_to(
        &self,
        #[wasm_bindgen(unchecked_param_type = "Backend | \"browser\"")] target: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "MoveOptions")] options: &JsValue,
    ) -> MovedPromise {
        let current = self.current.clone();
        let promise = Destination::parse(target, options).map(|to| {
            self.current.call(move |driver| {
                to.suits(driver)?;
                let (hold, glue) = (current.hold(), driver.glue().clone());
                Ok(future_to_promise(async move {
                    match to.carry(&hold, &current).await {
                        Ok(lost) => Ok(object(&[("lost", &shown(&lost))]).into()),
                        Err(error) => Err(thrown(&glue, &error)),
                    }
                }))
            })
        });
        self.promise(promise).unchecked_into()
    }

    /// Makes another sandbox with the same options, which begins with a copy of this one's state. With a `backend` the copy is made by value:
    /// its next execution names in `state.lost` what it lacks.
    pub fn fork(&self) -> SandboxPromise {
        let current = self.current.clone();
        let forked = self.current.call(move |driver| match driver.options().backend {
            Some(_) if driver.is_reading() => {
                let why = "cannot copy while executeStream reads code: wait for its end; nothing was done";
                Err(Error::invalid("fork", why))
            }
            Some(_) => Ok(copied(&current)),
            None => Ok(driver.submit_for(
                Command::State(StateCommand::Fork),
                Watch::default(),
                move |driver, reply, _| show_fork(&current, driver, reply),
            )),
        });
        forked.unchecked_into()
    }
}

/// Makes a sandbox of an exact copy of a page's guest.
fn show_fork(original: &Current, driver: &Driver, reply: Reply<JsBody>) -> Result<JsValue, Error> {
    let Reply::Fork(fork) = reply else {
        return driver.present(reply, &Array::new());
    };
    let copy = driver.forked(*fork);
    // Resolves when the new sandbox's guest has the state.
    let ready = copy.submit(Command::State(StateCommand::Checkpoint));
    let sandbox = Sandbox {
        current: Current::asked_for(original.asked.clone(), copy),
    };
    let forked = async move {
        JsFuture::from(ready).await?;
        Ok(sandbox.into())
    };
    Ok(future_to_promise(forked).into())
}

/// Makes a sandbox of a copy by value.
fn copied(original: &Rc<Current>) -> js_sys::Promise {
    let (hold, original) = (original.hold(), original.clone());
    future_to_promise(async move {
        let driver = hold.driver();
        let made = async {
            let carried = Carried::of(&driver).await?;
            let copy = driver.continued(driver.shared_options(), Vec::new());
            drop(hold); // the original may change from now on
            let sandbox = Sandbox {
                current: Current::asked_for(original.asked.clone(), copy.clone()),
            };
            sandbox.current.packages.replace(original.packages.borrow().clone());
            match carried.unpack(&copy, &[]).await {
                Ok(_) => Ok(sandbox),
                Err(error) => {
                    copy.feed(Input::Destroy);
                    Err(error)
                }
            }
        };
        let refused = |error: Error| error.with_consequence("there is no copy");
        match made.await {
            Ok(sandbox) => Ok(sandbox.into()),
            Err(error) => Err(thrown(driver.glue(), &refused(error))),
        }
    })
}

/// The place that a sandbox is to move to.
struct Destination {
    /// The server; `None` for the page.
    backend: Option<Backend>,
    /// The packages to load there.
    packages: Vec<String>,
}

impl Destination {
    fn parse(target: &JsValue, options: &JsValue) -> Result<Self, Error> {
        let backend = match target.as_string().as_deref() {
            Some("browser") => None,
            Some(_) => {
                let what = "must be \"browser\", or the address of a server and its key: { url, apiKey }";
                return Err(Error::invalid("target", what));
            }
            None => Some(Backend::parse(target)?),
        };
        let mut packages = Vec::new();
        for (name, value) in entries(options, "options")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "packages" if backend.is_some() => {
                    let why = "are those of the server's Python: leave them out";
                    return Err(Error::invalid(name, why));
                }
                "packages" => packages = requirements(&name, &value)?,
                _ => return Err(Error::invalid(name, "there is no such option of moveTo")),
            }
        }
        Ok(Self { backend, packages })
    }

    /// Refuses sandboxes that cannot move.
    fn suits(&self, driver: &Driver) -> Result<(), Error> {
        let problem = if driver.is_destroyed() {
            return Err(Error::Destroyed);
        } else if driver.options().persist.is_some() {
            "cannot move a session that the browser keeps (persist); carry its variables by captureState and openState"
        } else if driver.is_reading() {
            "cannot move while executeStream reads code: wait for its end"
        } else {
            return Ok(());
        };
        Err(Error::invalid("moveTo", format!("{problem}; nothing was done")))
    }

    /// Carries the state to a new guest, which takes the place of the one before. Returns what did not come along.
    async fn carry(&self, hold: &Hold, current: &Current) -> Result<Vec<LostVariable>, Error> {
        let driver = hold.driver();
        if self.backend.is_none() && driver.options().backend.is_none() {
            return Ok(Vec::new());
        }
        let carried = Carried::of(&driver).await.map_err(|error| {
            let stays = !matches!(error, Error::GuestLost(_) | Error::Protocol(_) | Error::Timeout(_));
            error.with_consequence(if stays { STAYS } else { NOT_MOVED })
        })?;
        if driver.options().backend.is_none() {
            current.packages.replace(driver.loaded());
        }
        let packages: Vec<Package<JsBody>> = match self.backend {
            None => current.packages.borrow().clone(),
            Some(_) => Vec::new(),
        };
        let other = driver.continued(self.options(&current.asked), packages);
        hold.expect(&other);
        let arrived = match carried.unpack(&other, &self.packages).await {
            Ok(lost) => hold.arrive(other.clone()).map(|()| lost),
            Err(_) if driver.is_destroyed() => Err(Error::Destroyed),
            Err(error) => Err(error),
        };
        arrived.map_err(|error| {
            other.feed(Input::Destroy);
            error.with_consequence(STAYS)
        })
    }

    /// The options of the sandbox there.
    fn options(&self, asked: &Rc<Options>) -> Rc<Options> {
        match (&self.backend, &asked.backend) {
            (None, None) => asked.clone(),
            _ => Rc::new(asked.at(self.backend.clone())),
        }
    }
}

/// A sandbox's state by value.
struct Carried {
    state: Uint8Array,
    files: Vec<(String, JsBody)>,
    /// Empty folders.
    folders: Vec<String>,
    /// The variables and files that are not in it, each with the reason.
    lost: Vec<LostVariable>,
}

impl Carried {
    /// Reads the state of a sandbox. Nothing else may be asked of it meanwhile.
    async fn of(driver: &Driver) -> Result<Self, Error> {
        let (lost, state) = parts(&driver.answer_to(capture(driver, true)).await?)?;
        let mut carried = Self {
            state,
            files: Vec::new(),
            folders: Vec::new(),
            lost,
        };
        carried.read_files(driver).await?;
        Ok(carried)
    }

    async fn read_files(&mut self, driver: &Driver) -> Result<(), Error> {
        let listed = driver
            .answer_to(Command::File(FileCommand::List(".".to_owned())))
            .await?;
        let listed: Array = decode(&value(listed)?)?.dyn_into().map_err(|_| malformed())?;
        let number = listed.length() as usize;
        if number > MOST_FILES {
            let why =
                format!("its working folder has {number} files and folders, of which at most {MOST_FILES} go along");
            return Err(Error::NotSerializable(why));
        }
        let entries: Vec<(String, bool)> = listed
            .iter()
            .map(|entry| {
                let path = get(&entry, "path").as_string().ok_or_else(malformed)?;
                let kind = get(&entry, "type").as_string().ok_or_else(malformed)?;
                Ok((path, kind == "directory"))
            })
            .collect::<Result<_, Error>>()?;
        let full: HashSet<&str> = entries
            .iter()
            .filter_map(|(path, _)| path.rsplit_once('/').map(|(folder, _)| folder))
            .collect();
        let mut left = driver.options().limits.max_file_bytes;
        let began = now();
        for (path, is_folder) in &entries {
            in_time(began)?;
            if *is_folder {
                self.folders
                    .extend((!full.contains(path.as_str())).then(|| path.clone()));
                continue;
            }
            let read = FileCommand::Read {
                path: path.clone(),
                text: false,
            };
            match driver.answer_to(Command::File(read)).await {
                Ok(reply) => {
                    let Encoded { body, .. } = value(reply)?;
                    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
                    let size = body.size() as f64;
                    left -= size;
                    if left < 0.0 {
                        return Err(Error::NotSerializable(
                            "its files take more than maxFileBytes".to_owned(),
                        ));
                    }
                    self.files.push((path.clone(), body));
                }
                Err(Error::FileNotFound(_)) => {} // a link to nothing
                Err(Error::File(reason)) => self.lost.push(LostVariable {
                    name: format!("file {path}"),
                    reason,
                }),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives the state to the guest of a driver that has done nothing yet. Returns what it lacks, which the next execution tells, too.
    async fn unpack(self, driver: &Driver, packages: &[String]) -> Result<Vec<LostVariable>, Error> {
        driver.answer_to(Command::Start).await?;
        if !packages.is_empty() {
            let wanted = Wanted::Requirements(packages.to_vec());
            driver.answer_to(Command::Load(wanted)).await?;
        }
        let modules = self.modules();
        if driver.options().packages.auto_import && !modules.is_empty() {
            // `lost` names the variables of a package that cannot be loaded.
            let _ = driver.answer_to(Command::Load(Wanted::Modules(modules))).await;
        }
        let began = now();
        let mut all = self.lost;
        for (path, data) in self.files {
            in_time(began)?;
            let name = format!("file {path}");
            let write = FileCommand::Write { path, data };
            match driver.answer_to(Command::File(write)).await {
                Err(Error::File(reason)) => all.push(LostVariable { name, reason }),
                other => drop(other?),
            }
        }
        for folder in self.folders {
            in_time(began)?;
            let path = format!("{folder}/{PLACEHOLDER}");
            let write = FileCommand::Write {
                path: path.clone(),
                data: JsBody::Bytes(bytes(&[])),
            };
            match driver.answer_to(Command::File(write)).await {
                Err(Error::File(reason)) => {
                    let name = format!("file {folder}");
                    all.push(LostVariable { name, reason });
                    continue;
                }
                other => drop(other?),
            }
            driver.answer_to(Command::File(FileCommand::Remove(path))).await?;
        }
        let opened = driver.answer_to(open(driver, JsBody::Owned(self.state))).await?;
        for lost in lost(&opened)? {
            if !all.iter().any(|known| known.name == lost.name) {
                all.push(lost);
            }
        }
        driver.tell_lost(all.clone());
        Ok(all)
    }

    /// The modules whose values the state has, by the guest's word. The head of the state names them.
    fn modules(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Head {
            packages: BTreeMap<String, serde_json::Value>,
        }
        let length: Option<[u8; 4]> = self
            .state
            .subarray(BEFORE_LENGTH, BEFORE_LENGTH + 4)
            .to_vec()
            .try_into()
            .ok();
        let length = length.map_or(0, u32::from_le_bytes);
        if length > MAX_STATE_HEAD {
            return Vec::new();
        }
        let head = self.state.subarray(BEFORE_HEAD, BEFORE_HEAD + length).to_vec();
        let head: Option<Head> = serde_json::from_slice(&head).ok();
        let modules = head.into_iter().flat_map(|head| head.packages.into_keys());
        modules.filter(|name| name.len() <= 200).take(MOST_MODULES).collect()
    }
}

/// Ends a transfer of files that has taken too long.
fn in_time(began: f64) -> Result<(), Error> {
    if now() - began <= FILES_MS {
        return Ok(());
    }
    let why = format!("its files take more than {} s to carry", FILES_MS / 1000.0);
    Err(Error::NotSerializable(why))
}

fn value(reply: Reply<JsBody>) -> Result<Encoded<JsBody>, Error> {
    match reply {
        Reply::Value(value) => Ok(value),
        _ => Err(malformed()),
    }
}

fn malformed() -> Error {
    Error::Protocol("a list of files that cannot be read".to_owned())
}
