//! Checks the options of `createSandbox`. An unknown or ill-typed option is an error that names the option. Options that are plain numbers
//! are [limits](sandglass_core::limits), and are declared there.

use js_sys::{Array, Function};
use wasm_bindgen::prelude::*;

use super::arguments::{entries, function, one_of, whole};
use super::budget;
use super::endpoint::Endpoint;
use super::glue::is_page;
use super::host_function::HostFunction;
use super::packages;
use super::persist::Persist;
use super::remote::Backend;
use sandglass_core::budget::BudgetLimits;
use sandglass_core::error::Error;
use sandglass_core::limits::{Limits, MAX_CHECKPOINTS};
use sandglass_core::protocol::{Profile, QUERIES};
use sandglass_core::session::Execute;

/// A guest's isolation from the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Isolation {
    /// A worker in a frame of an opaque origin, without network or storage.
    Frame,
    /// A worker of the page's own origin.
    Worker,
    /// On Node, Deno or Bun: a process that can reach nothing of the machine.
    Process,
    /// On Node, Deno or Bun: a process with the rights of the host.
    Unconfined,
}

impl Isolation {
    /// The isolation of guests that are asked for without a word about it.
    fn usual() -> Self {
        if is_page() { Self::Frame } else { Self::Process }
    }

    /// Reads the option `isolation`.
    fn parse(name: &str, value: &JsValue) -> Result<Self, Error> {
        match (value.as_string().as_deref(), is_page()) {
            (Some("frame"), true) => Ok(Self::Frame),
            (Some("worker"), true) => Ok(Self::Worker),
            (Some("process"), false) => Ok(Self::Process),
            (Some("none"), false) => Ok(Self::Unconfined),
            (_, true) => Err(Error::invalid(name, "must be \"frame\" or \"worker\"")),
            (_, false) => Err(Error::invalid(
                name,
                "must be \"process\" or \"none\" outside of browsers",
            )),
        }
    }

    /// Returns true when the guest can reach nothing but its own messages, so that it may start before its files are verified.
    pub(super) fn is_closed(self) -> bool {
        matches!(self, Self::Frame | Self::Process)
    }
}

/// The options of a sandbox.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) limits: Limits,
    pub(super) budget: budget::Given,
    pub(super) isolation: Isolation,
    /// The server that runs the guests; `None` when the page does.
    pub(super) backend: Option<Backend>,
    /// The number of states that guests on a server keep as paused copies.
    pub(super) paused: u32,
    /// The session that the browser keeps; `None` when it keeps none.
    pub(super) persist: Option<Persist>,
    pub(super) profile: Profile,
    /// True when the session guesses code and runs it ahead.
    pub(super) predictions: bool,
    /// True if queries begin while their code is still being written. No option of users.
    pub(super) ahead_calls: bool,
    pub(super) output_fields: Vec<String>,
    pub(super) assets_url: Option<String>,
    pub(super) packages: packages::Settings,
    pub(super) on_llm_query: Option<Function>,
    pub(super) on_rlm_query: Option<Function>,
    pub(super) host_functions: Vec<HostFunction>,
    /// Decides about calls of functions that need approval.
    pub(super) on_approve: Option<Function>,
    pub(super) on_stdout: Option<Function>,
    pub(super) on_stderr: Option<Function>,
    pub(super) on_display: Option<Function>,
    pub(super) on_progress: Option<Function>,
}

impl Options {
    pub(super) fn parse(value: &JsValue) -> Result<Self, Error> {
        let mut options = Self {
            limits: Limits::default(),
            budget: budget::Given::Limits(BudgetLimits::default()),
            isolation: Isolation::usual(),
            backend: None,
            paused: 0,
            persist: None,
            profile: Profile::Default,
            predictions: false,
            ahead_calls: false,
            output_fields: Vec::new(),
            assets_url: None,
            packages: packages::Settings::default(),
            on_llm_query: None,
            on_rlm_query: None,
            host_functions: Vec::new(),
            on_approve: None,
            on_stdout: None,
            on_stderr: None,
            on_display: None,
            on_progress: None,
        };
        let given = entries(value, "options")?;
        for (name, value) in &given {
            options.set(name, value)?;
        }
        if options.backend.is_some() {
            let given = given.iter().filter(|(_, value)| !value.is_undefined());
            options.leave_to_server(given.map(|(name, _)| name.as_str()))?;
        } else if options.paused > 0 {
            let why = "is a number for guests on a server only; without a backend, say \"auto\" or \"off\"";
            return Err(Error::invalid("checkpoints", why));
        }
        if options.persist.is_some() && !options.limits.checkpoints {
            return Err(Error::invalid("persist", "needs checkpoints, which are \"off\""));
        }
        if options.on_approve.is_none()
            && let Some(HostFunction { name, .. }) = options.host_functions.iter().find(|one| one.needs_approval)
        {
            let why = "needs approval, and nobody is asked: give onApprove";
            return Err(Error::invalid(format!("hostFunctions.{name}"), why));
        }
        if !options.output_fields.is_empty() && !options.profile.has_submit() {
            let why = format!("the profile \"{}\" has no SUBMIT", options.profile.name());
            return Err(Error::invalid("outputFields", why));
        }
        Ok(options)
    }

    /// The folder of the package's files. Empty: each is where the package itself is.
    pub(super) fn assets_base(&self) -> String {
        self.assets_url.clone().unwrap_or_default()
    }

    /// The same options for guests at another place: on a server, or in the page. Those about guests of the place before have their defaults.
    pub(super) fn at(&self, backend: Option<Backend>) -> Self {
        let mut options = self.clone();
        if options.backend.is_some() != backend.is_some() {
            options.paused = 0;
            options.predictions = false;
            options.limits.checkpoints = backend.is_none();
            options.packages = packages::Settings::default();
            options.isolation = Isolation::usual();
        }
        options.backend = backend;
        options
    }

    /// Refuses options that only guests of the page support.
    fn leave_to_server<'a>(&mut self, given: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        for name in given {
            let why = match name {
                "isolation" => "is the server's to choose when there is a backend; leave it out",
                "persist" => "is for guests of the page, and there is a backend; leave it out",
                "assetsUrl" | "spares" => "is for guests of the page, and there is a backend; leave it out",
                "checkpoints" if self.limits.checkpoints && self.paused == 0 => {
                    "is \"auto\" for guests of the page only; with a backend, say how many states are kept, or \"off\""
                }
                "predictions" if self.predictions => "need checkpoints, and there is a backend; leave them out",
                _ if packages::Settings::NAMES.contains(&name) => {
                    "is for guests of the page; with a backend, packages are those of the server's Python"
                }
                _ => continue,
            };
            return Err(Error::invalid(name, why));
        }
        self.limits.checkpoints = self.paused > 0;
        Ok(())
    }

    fn set(&mut self, name: &str, value: &JsValue) -> Result<(), Error> {
        match name {
            _ if value.is_undefined() => {}
            "isolation" => self.isolation = Isolation::parse(name, value)?,
            "backend" => self.backend = Some(Backend::parse(value)?),
            "persist" => self.persist = Some(Persist::parse(name, value)?),
            "profile" => self.profile = profile(name, value)?,
            "outputFields" => self.output_fields = python_names(name, value)?,
            "checkpoints" if value.as_f64().is_some() => {
                self.paused = whole(name, value, 1.0, f64::from(MAX_CHECKPOINTS))?;
            }
            "checkpoints" => self.limits.checkpoints = is_on(name, value)?,
            "predictions" => self.predictions = is_on(name, value)?,
            "budget" => self.budget = budget::Given::parse(value)?,
            "assetsUrl" => {
                let url = value.as_string().filter(|url| !url.is_empty());
                let url = url.ok_or_else(|| Error::invalid(name, "must be the address of a folder"))?;
                self.assets_url = Some(if url.ends_with('/') { url } else { url + "/" });
            }
            "onLLMQuery" => {
                self.on_llm_query = Some(match value.dyn_ref::<Function>() {
                    Some(function) => function.clone(),
                    None => Endpoint::parse(name, value)?.into_function(),
                });
            }
            "onRLMQuery" => self.on_rlm_query = Some(function(name, value)?),
            "onApprove" => self.on_approve = Some(function(name, value)?),
            "onStdout" => self.on_stdout = Some(function(name, value)?),
            "onStderr" => self.on_stderr = Some(function(name, value)?),
            "onDisplay" => self.on_display = Some(function(name, value)?),
            "onProgress" => self.on_progress = Some(function(name, value)?),
            "hostFunctions" => {
                for (inner, value) in entries(value, name)? {
                    if !is_python_name(&inner) {
                        return Err(Error::invalid(
                            name,
                            format!("\"{inner}\" is no name that Python code can call"),
                        ));
                    }
                    if QUERIES.contains(&inner.as_str()) {
                        return Err(Error::invalid(
                            name,
                            format!("\"{inner}\" is a helper: pass onLLMQuery or onRLMQuery"),
                        ));
                    }
                    self.host_functions.push(HostFunction::parse(inner, &value)?);
                }
            }
            _ if packages::Settings::NAMES.contains(&name) => self.packages.set(name, value)?,
            _ if Limits::NAMES.contains(&name) => {
                let number = value.as_f64().ok_or_else(|| Error::invalid(name, "must be a number"))?;
                self.limits.set(name, number)?;
            }
            _ => return Err(Error::invalid(name, "there is no such option")),
        }
        Ok(())
    }
}

/// The signal that cancels one command, and the listeners to its news.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) signal: Option<web_sys::AbortSignal>,
    pub(super) on_stdout: Option<Function>,
    pub(super) on_stderr: Option<Function>,
    pub(super) on_display: Option<Function>,
    /// The listener of `loadPackages`.
    pub(super) on_progress: Option<Function>,
}

impl Watch {
    /// Reads the options of one `execute`. Those of the execution itself go into `execute`.
    pub(super) fn of_execute(execute: &mut Execute, options: &JsValue) -> Result<Self, Error> {
        let mut watch = Self::default();
        for (name, value) in entries(options, "options")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "timeout" => {
                    let number = value
                        .as_f64()
                        .ok_or_else(|| Error::invalid(&name, "must be a number"))?;
                    let mut limits = Limits::default();
                    limits.set("timeout", number)?;
                    execute.timeout_ms = Some(limits.timeout_ms);
                }
                "budget" => execute.budget = budget::limits(&value)?,
                "signal" => {
                    let signal = value
                        .dyn_into()
                        .map_err(|_| Error::invalid(&name, "must be an AbortSignal"))?;
                    watch.signal = Some(signal);
                }
                "onStdout" => watch.on_stdout = Some(function(&name, &value)?),
                "onStderr" => watch.on_stderr = Some(function(&name, &value)?),
                "onDisplay" => watch.on_display = Some(function(&name, &value)?),
                _ => return Err(Error::invalid(name, "there is no such option of execute")),
            }
        }
        Ok(watch)
    }

    /// Reads the options of one `loadPackages`.
    pub(super) fn of_load(value: &JsValue) -> Result<Self, Error> {
        let mut watch = Self::default();
        for (name, value) in entries(value, "options")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "signal" => {
                    let signal = value.dyn_into();
                    watch.signal = Some(signal.map_err(|_| Error::invalid(&name, "must be an AbortSignal"))?);
                }
                "onProgress" => watch.on_progress = Some(function(&name, &value)?),
                _ => return Err(Error::invalid(name, "there is no such option of loadPackages")),
            }
        }
        Ok(watch)
    }
}

/// Reads `"auto"` as true and `"off"` as false.
fn is_on(name: &str, value: &JsValue) -> Result<bool, Error> {
    match value.as_string().as_deref() {
        Some("auto") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(Error::invalid(name, "must be \"auto\" or \"off\"")),
    }
}

/// Reads a profile's name.
fn profile(name: &str, value: &JsValue) -> Result<Profile, Error> {
    let profile = value.as_string().as_deref().and_then(Profile::named);
    profile.ok_or_else(|| Error::invalid(name, one_of(Profile::ALL.map(Profile::name))))
}

/// Reads a list of different names, and keeps their order.
fn python_names(name: &str, value: &JsValue) -> Result<Vec<String>, Error> {
    let refused = || Error::invalid(name, "must be a list of different names that Python code can use");
    let list: &Array = value.dyn_ref().ok_or_else(refused)?;
    let mut names = Vec::new();
    for item in list.iter() {
        let item = item
            .as_string()
            .filter(|item| is_python_name(item) && !names.contains(item));
        names.push(item.ok_or_else(refused)?);
    }
    Ok(names)
}

/// Returns true for a name that Python code can use.
fn is_python_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && chars.all(|char| char.is_alphanumeric() || char == '_')
        && !name.starts_with("__")
}
