//! The options of a sandbox, as JSON. HTTP's `POST /v1/sessions` has the same options.

use std::path::PathBuf;
use std::time::Duration;

use sandglass_core::limits::{MAX_CHECKPOINTS, MAX_DISPLAY_BYTES, Naming};
use sandglass_core::{BudgetLimits, Error, Limits, Profile};
use sandglass_host::{BackendKind, Resources};
use serde_json::{Map, Value as Json};

/// The longest name of a kept sandbox on a server, in bytes.
const MAX_NAME_BYTES: usize = 200;
/// The largest value of a last expression that executions return by default, in bytes.
const DEFAULT_RESULT_BYTES: u32 = 1 << 20;

/// The bounds of options, and their defaults.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The backend of sandboxes that name none.
    pub backend: BackendKind,
    /// True if plain processes, which isolate nothing, may be named.
    pub allow_subprocess: bool,
    /// The longest timeouts, in milliseconds.
    pub max_timeout_ms: f64,
    /// The time for a guest's start, in milliseconds.
    pub boot_timeout_ms: f64,
    /// The most memory of a guest, in bytes.
    pub max_memory_bytes: f64,
    /// The resources of sandboxes that name none, and the most that they may name.
    pub resources: Resources,
    /// The most bytes of blobs that no message has named yet.
    pub max_blob_bytes: usize,
    /// The longest time for which `hostCallTimeout` rests while the client asks for approval. `None` bounds nothing.
    pub max_approval: Option<Duration>,
    /// The most bytes of the variables in a state, before they are packed.
    pub max_state_bytes: u64,
    /// True if the client may name files and programs of this machine.
    pub is_local: bool,
}

/// The options of a sandbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// The backend of its guest.
    pub backend: BackendKind,
    /// True if code may run ahead.
    pub ahead: bool,
    /// The number of states that are kept to go back to. The newest of them is the present one.
    pub checkpoints: u32,
    /// True if the session guesses code.
    pub predictions: bool,
    /// The value of `context`, if it is given at once.
    pub context: Option<Json>,
    /// The session's limits.
    pub limits: Limits,
    /// The guest's share of the machine.
    pub resources: Resources,
    /// The names and texts in Python.
    pub profile: Profile,
    /// The names of the values that `SUBMIT` takes.
    pub output_fields: Vec<String>,
    /// The budget of all executions together.
    pub budget: BudgetLimits,
    /// The most bytes of a last expression's value that executions return.
    pub max_result_bytes: u32,
    /// True if the client answers `llm_query`.
    pub on_llm_query: bool,
    /// True if the client answers `rlm_query`.
    pub on_rlm_query: bool,
    /// The names of the functions that the client answers.
    pub host_functions: Vec<String>,
    /// True if the HTML of rich outputs shall be cleaned, so that it loads nothing and runs nothing.
    pub clean_html: bool,
    /// The place that keeps the state and the execution under way beyond the end of the program: a folder for local clients, and a name on a
    /// server.
    pub persist: Option<String>,
    /// Options of local clients.
    pub local: Local,
}

/// Options that name files and programs of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Local {
    /// The guest's Python.
    pub python: Option<PathBuf>,
    /// Docker's image.
    pub image: Option<String>,
    /// Docker's runtime.
    pub runtime: Option<String>,
    /// The working folder.
    pub workspace: Option<PathBuf>,
    /// True for a notebook, whose cells leave files in the working folder.
    pub notebook: bool,
}

impl Options {
    /// Reads options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that is unknown, wrong, or beyond the bounds.
    pub fn read(fields: Map<String, Json>, bounds: &Bounds) -> Result<Self, Error> {
        let mut options = Self {
            backend: bounds.backend,
            ahead: false,
            checkpoints: 0,
            predictions: false,
            context: None,
            limits: Limits {
                boot_timeout_ms: bounds.boot_timeout_ms,
                ..Limits::default()
            },
            resources: bounds.resources,
            profile: Profile::Default,
            output_fields: Vec::new(),
            budget: BudgetLimits::default(),
            max_result_bytes: DEFAULT_RESULT_BYTES,
            on_llm_query: false,
            on_rlm_query: false,
            host_functions: Vec::new(),
            clean_html: false,
            persist: None,
            local: Local::default(),
        };
        let allow_subprocess = match fields.get("allowSubprocess") {
            Some(value) if bounds.is_local => flag("allowSubprocess", value)?,
            _ => bounds.allow_subprocess,
        };
        for (name, value) in fields {
            options.set(&name, value, bounds, allow_subprocess)?;
        }
        if options.predictions && !options.ahead {
            let problem = "nothing that is predicted could run: \"ahead\" must be true";
            return Err(Error::invalid("predictions", problem));
        }
        options.check_persist()?;
        Ok(options)
    }

    fn set(&mut self, name: &str, value: Json, bounds: &Bounds, allow_subprocess: bool) -> Result<(), Error> {
        match name {
            "context" => self.context = Some(value),
            "backend" => self.backend = backend_named(&value, bounds, allow_subprocess)?,
            "ahead" => self.ahead = flag(name, &value)?,
            "checkpoints" => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                let number = number.filter(|number| *number <= MAX_CHECKPOINTS);
                let problem = || Error::invalid(name, format!("must be a number from 0 to {MAX_CHECKPOINTS}"));
                self.checkpoints = number.ok_or_else(problem)?;
            }
            "predictions" => {
                self.predictions = match value.as_str() {
                    Some("auto") => true,
                    Some("off") => false,
                    _ => return Err(Error::invalid(name, "must be auto or off")),
                }
            }
            "profile" => {
                let profile = value.as_str().and_then(Profile::named);
                let problem = || Error::invalid(name, "must be default, rlm, rlm-legacy, rlm-core or dspy");
                self.profile = profile.ok_or_else(problem)?;
            }
            "outputFields" => self.output_fields = names(name, value)?,
            "hostFunctions" => self.host_functions = names(name, value)?,
            "onLLMQuery" => self.on_llm_query = flag(name, &value)?,
            "naming" => {
                self.limits.naming = match value.as_str() {
                    Some("camel") => Naming::Camel,
                    Some("snake") => Naming::Snake,
                    _ => return Err(Error::invalid(name, "must be camel or snake")),
                }
            }
            "cleanHtml" => self.clean_html = flag(name, &value)?,
            "onRLMQuery" => self.on_rlm_query = flag(name, &value)?,
            "maxResultSize" => {
                let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
                let size = size.filter(|size| f64::from(*size) <= MAX_DISPLAY_BYTES);
                let problem = || format!("must be a number of bytes, {MAX_DISPLAY_BYTES} at most");
                self.max_result_bytes = size.ok_or_else(|| Error::invalid(name, problem()))?;
            }
            "budget" => self.budget = budget(value)?,
            "resources" => set_resources(&mut self.resources, value)?,
            "allowSubprocess" if bounds.is_local => {}
            "python" if bounds.is_local => self.local.python = Some(text(name, value)?.into()),
            "image" if bounds.is_local => self.local.image = Some(text(name, value)?),
            "runtime" if bounds.is_local => self.local.runtime = Some(text(name, value)?),
            "notebook" if bounds.is_local => self.local.notebook = flag(name, &value)?,
            "persist" if bounds.is_local => self.persist = Some(text(name, value)?),
            "persist" => self.persist = Some(name_of_kept(name, text(name, value)?)?),
            "workspace" if bounds.is_local => self.local.workspace = Some(text(name, value)?.into()),
            _ => self.limit(name, &value, bounds)?,
        }
        Ok(())
    }

    /// The options of a sandbox that is kept in this place.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options that such a sandbox cannot have.
    pub fn persisting(mut self, place: String) -> Result<Self, Error> {
        self.persist = Some(place);
        self.check_persist()?;
        Ok(self)
    }

    /// Refuses what a sandbox with `persist` cannot have.
    fn check_persist(&self) -> Result<(), Error> {
        let others = [
            ("ahead", self.ahead),
            ("checkpoints", self.checkpoints > 0),
            ("context", self.context.is_some()),
            ("notebook", self.local.notebook),
            ("workspace", self.local.workspace.is_some()),
        ];
        match others.iter().find(|(_, is_given)| *is_given && self.persist.is_some()) {
            Some(("context", _)) => Err(Error::invalid(
                "context",
                "give it once by initialize: \"persist\" keeps it",
            )),
            Some((name, _)) => Err(Error::invalid(*name, "cannot be given together with \"persist\"")),
            None => Ok(()),
        }
    }

    fn limit(&mut self, name: &str, value: &Json, bounds: &Bounds) -> Result<(), Error> {
        if !Limits::NAMES.contains(&name) || ["spares", "maxAheadShare"].contains(&name) {
            return Err(Error::invalid(name, "there is no such option"));
        }
        let value = number(name, value)?;
        self.limits.set(name, value)?;
        let most = match name {
            "timeout" | "wallTimeout" | "hostCallTimeout" | "gracePeriod" => bounds.max_timeout_ms,
            "bootTimeout" => bounds.boot_timeout_ms,
            "memoryLimit" => bounds.max_memory_bytes,
            _ => f64::INFINITY,
        };
        if value > most {
            let problem = format!("may be {most} at most on this server, not {value}");
            return Err(Error::invalid(name, problem));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "limits are in range"
        )]
        match name {
            "memoryLimit" => self.resources.memory_bytes = value as u64,
            "maxFileBytes" => self.resources.disk_bytes = self.resources.disk_bytes.min(value as u64),
            _ => {}
        }
        Ok(())
    }
}

fn backend_named(value: &Json, bounds: &Bounds, allow_subprocess: bool) -> Result<BackendKind, Error> {
    let problem = || Error::invalid("backend", "must be auto, bubblewrap, docker, subprocess or jupyter");
    let kind: BackendKind = value.as_str().ok_or_else(problem)?.parse()?;
    // The operator allowed the backend by naming it, and a local client is the operator.
    let is_allowed = bounds.is_local || bounds.backend == kind || (allow_subprocess && kind == BackendKind::Subprocess);
    if kind.isolates_nothing() && !is_allowed {
        let problem = match kind {
            BackendKind::Jupyter => "kernels isolate nothing, and this server was not started with --backend jupyter",
            _ => "plain processes isolate nothing, and this server was not started with --allow-subprocess",
        };
        return Err(Error::invalid("backend", problem));
    }
    Ok(kind)
}

/// The name of a kept sandbox on a server. `what` names it in errors.
///
/// # Errors
/// [`Error::InvalidOption`] for an empty name, and for one that is too long.
pub(crate) fn name_of_kept(what: &str, name: String) -> Result<String, Error> {
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(name),
        bytes => {
            let problem = format!("a name has 1 to {MAX_NAME_BYTES} bytes of UTF-8, not {bytes}; nothing was done");
            Err(Error::invalid(what, problem))
        }
    }
}

/// Reads a flag.
///
/// # Errors
/// [`Error::InvalidOption`] for anything but true and false.
pub fn flag(name: &str, value: &Json) -> Result<bool, Error> {
    value
        .as_bool()
        .ok_or_else(|| Error::invalid(name, "must be true or false"))
}

fn number(name: &str, value: &Json) -> Result<f64, Error> {
    value.as_f64().ok_or_else(|| Error::invalid(name, "must be a number"))
}

fn text(name: &str, value: Json) -> Result<String, Error> {
    match value {
        Json::String(text) => Ok(text),
        _ => Err(Error::invalid(name, "must be a text")),
    }
}

fn names(name: &str, value: Json) -> Result<Vec<String>, Error> {
    serde_json::from_value(value).map_err(|_| Error::invalid(name, "must be a list of names"))
}

fn object(name: &str, value: Json) -> Result<Map<String, Json>, Error> {
    match value {
        Json::Object(fields) => Ok(fields),
        _ => Err(Error::invalid(name, "must be an object")),
    }
}

fn budget(value: Json) -> Result<BudgetLimits, Error> {
    let mut budget = BudgetLimits::default();
    for (name, value) in object("budget", value)? {
        budget.set(&name, number(&format!("budget.{name}"), &value)?)?;
    }
    Ok(budget)
}

/// Reads resources, which cannot exceed the bounds.
fn set_resources(resources: &mut Resources, value: Json) -> Result<(), Error> {
    for (name, value) in object("resources", value)? {
        let full_name = format!("resources.{name}");
        let value = number(&full_name, &value)?;
        let within = |least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                let problem = format!("must be a number from {least} to {most}, not {value}");
                Err(Error::invalid(&full_name, problem))
            }
        };
        let most = Resources::default();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "checked to be within small positive bounds"
        )]
        match name.as_str() {
            "pids" => resources.pids = within(8.0, f64::from(most.pids))? as u32,
            "cpus" => resources.cpus = within(0.01, most.cpus)?,
            "openFiles" => resources.open_files = within(32.0, f64::from(most.open_files))? as u32,
            "tmpBytes" => resources.tmp_bytes = within(1024.0 * 1024.0, most.tmp_bytes as f64)? as u64,
            "diskBytes" => resources.disk_bytes = within(0.0, most.disk_bytes as f64)? as u64,
            _ => return Err(Error::invalid(full_name, "there is no such option")),
        }
    }
    Ok(())
}
