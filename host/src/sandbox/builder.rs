//! The description of a sandbox.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_core::budget::Budget;
use sandglass_core::limits::MAX_CHECKPOINTS;
use sandglass_core::protocol::{GuestInfo, QUERIES};
use sandglass_core::{BudgetLimits, Error, Limits, Profile, Session};

use super::{Capabilities, Past, Sandbox, SandboxCopy, Spent};
use crate::backend;
use crate::callbacks::{self, Answer, Functions, HostCall, HostFunctions, Query};
use crate::driver::journal::JournalPlace;
use crate::driver::{Callbacks, Driver, MadeCopy, OnStart, now};
use crate::launcher::{BackendKind, Kernels, Launcher, Resources, Settings};
use crate::users::Users;
use crate::value::Value;
use crate::workspace::Workspace;

/// Receives the facts of a sandbox.
type OnFacts = Arc<dyn Fn(&Capabilities) + Send + Sync>;

/// The options of a sandbox. [`SandboxBuilder::build`] makes the sandbox.
#[derive(Clone, Default)]
pub struct SandboxBuilder {
    backend: BackendKind,
    settings: Settings,
    launcher: Option<Arc<dyn Launcher>>,
    limits: Limits,
    profile: Profile,
    output_fields: Vec<String>,
    contextless: bool,
    budget: Option<Budget>,
    budget_limits: BudgetLimits,
    spent: Spent,
    past: Option<Past>,
    copy: Option<Arc<Mutex<Option<MadeCopy>>>>,
    functions: Functions,
    callbacks: Callbacks,
    on_start: Option<OnFacts>,
    predictions: bool,
    calls_ahead: bool,
    max_result_bytes: f64,
}

impl fmt::Debug for SandboxBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SandboxBuilder")
            .field("backend", &self.backend)
            .field("settings", &self.settings)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl SandboxBuilder {
    /// Sets the backend of the guest; by default the best that works here.
    #[must_use]
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.backend = kind;
        self
    }

    /// Sets whether [`BackendKind::Auto`] may come down to a plain process, which isolates nothing.
    #[must_use]
    pub fn allow_subprocess(mut self, allowed: bool) -> Self {
        self.settings.allow_subprocess = allowed;
        self
    }

    /// Sets the Python of the guest, such as a virtual environment's `bin/python`. Not for Docker.
    #[must_use]
    pub fn python(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.python = Some(path.into());
        self
    }

    /// Docker's image.
    #[must_use]
    pub fn image(mut self, name: impl Into<String>) -> Self {
        self.settings.image = Some(name.into());
        self
    }

    /// Docker's runtime, such as `runsc`.
    #[must_use]
    pub fn runtime(mut self, name: impl Into<String>) -> Self {
        self.settings.runtime = Some(name.into());
        self
    }

    /// Sets which kernel runs the guest, with [`BackendKind::Jupyter`]: `KernelSettings` of the crate `sandglass-jupyter`.
    #[must_use]
    pub fn kernel(mut self, kernel: impl Kernels + 'static) -> Self {
        self.settings.kernels = Some(Arc::new(kernel));
        self
    }

    /// Lets predicted or unfinished code run ahead; see [`Sandbox::hint`]. Off by default. Needs bubblewrap or plain processes
    /// on Linux 5.11 or newer on `x86_64`; otherwise nothing runs ahead. A [launcher](SandboxBuilder::launcher) has this in its
    /// own [settings](Settings::ahead).
    #[must_use]
    pub fn ahead(mut self, ahead: bool) -> Self {
        self.settings.ahead = ahead;
        self
    }

    /// Keeps so many states of the guest as checkpoints; see [`Sandbox::undo`] and [`Sandbox::fork`]. 0, the default, keeps none. Needs bubblewrap or plain
    /// processes on Linux. Without them, [`Capabilities::checkpoints`](super::Capabilities::checkpoints) is 0. A
    /// [launcher](SandboxBuilder::launcher) has this in its own [settings](Settings::checkpoints).
    #[must_use]
    pub fn checkpoints(mut self, number: u32) -> Self {
        self.settings.checkpoints = number;
        self
    }

    /// Lets the session guess code from variables, columns, earlier code and the conversation
    /// ([`Sandbox::update_conversation`]). Needs [`ahead`](SandboxBuilder::ahead). Off by default.
    #[must_use]
    pub fn predictions(mut self, predictions: bool) -> Self {
        self.predictions = predictions;
        self
    }

    /// Lets calls of `llm_query` begin while their code is still being written.
    pub(crate) fn calls_ahead(mut self, calls_ahead: bool) -> Self {
        self.calls_ahead = calls_ahead;
        self
    }

    /// Sets the guest's share of the machine.
    #[must_use]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.settings.resources = resources;
        self
    }

    /// Sets the user ids for guests, one each, if the host is root; by default 2100000000 to 2100065535.
    #[must_use]
    pub fn guest_users(mut self, users: Users) -> Self {
        self.settings.guest_users = users;
        self
    }

    /// Sets the folder that the guest sees as `/workspace` and works in.
    #[must_use]
    pub fn workspace(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.workspace = Some(folder.into());
        self
    }

    /// Sets a server's workspace as the folder. The host's files in it are hidden from the guest.
    #[must_use]
    pub fn in_workspace(mut self, workspace: &Workspace) -> Self {
        self.settings.workspace = Some(workspace.path().to_owned());
        self.settings.hides_cells = true;
        self
    }

    /// Sets all settings from which a backend plans.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Starts guests by this, whatever else is said of backends.
    #[must_use]
    pub fn launcher(mut self, launcher: Arc<dyn Launcher>) -> Self {
        self.launcher = Some(launcher);
        self
    }

    /// Sets the session's limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the profile, which gives Python its names and help texts.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Tells the values of last expressions of at most this many bytes, see [`Execution::value`](super::Execution::value).
    #[must_use]
    pub fn values(mut self, max_bytes: u32) -> Self {
        self.max_result_bytes = f64::from(max_bytes);
        self
    }

    /// Adds host functions.
    #[must_use]
    pub fn host_functions(mut self, functions: HostFunctions) -> Self {
        self.functions.extend(functions.0);
        self
    }

    /// Sets the names of the values that `SUBMIT` takes.
    #[must_use]
    pub fn output_fields(mut self, fields: Vec<String>) -> Self {
        self.output_fields = fields;
        self
    }

    /// Lets code run before there is a `context`.
    #[must_use]
    pub fn without_context(mut self) -> Self {
        self.contextless = true;
        self
    }

    /// Sets the budget of all executions together.
    #[must_use]
    pub fn budget(mut self, limits: BudgetLimits) -> Self {
        self.budget_limits = limits;
        self
    }

    /// Sets the part of the budget that is used up already. A [shared budget](SandboxBuilder::shared_budget) has its own.
    #[must_use]
    pub(super) fn spent(mut self, spent: Spent) -> Self {
        self.spent = spent;
        self
    }

    /// Records executions in this journal. Without one, nothing is written. Guests get this seed of hashes, so that later guests have the
    /// same.
    pub(crate) fn journal(mut self, place: Option<JournalPlace>, hash_seed: u32) -> Self {
        self.callbacks.journal = place;
        self.settings.journal_seed = Some(hash_seed);
        (self.settings.ahead, self.settings.checkpoints) = (false, 0);
        self
    }

    /// Refuses calls that a journal does not answer.
    pub(crate) fn asks_nobody(mut self) -> Self {
        self.callbacks.asks_nobody = true;
        self
    }

    /// The folder of the host that was given as the guest's, if there is one.
    pub(crate) fn given_workspace(&self) -> Option<&Path> {
        self.settings.workspace.as_deref()
    }

    /// Returns true if guests come from a launcher that was given.
    pub(crate) fn has_launcher(&self) -> bool {
        self.launcher.is_some()
    }

    /// The profile.
    pub(crate) fn its_profile(&self) -> Profile {
        self.profile
    }

    /// Goes on after the past of another sandbox.
    #[must_use]
    pub(super) fn past(mut self, past: Past) -> Self {
        self.past = Some(past);
        self
    }

    /// Makes the sandbox of a copy, with the options of its original.
    #[must_use]
    pub fn copy(mut self, copy: SandboxCopy) -> Self {
        let SandboxCopy { made, spent } = copy;
        self.copy = Some(Arc::new(Mutex::new(Some(made))));
        self.spent(spent)
    }

    /// Sets a budget that the sandbox shares with others. Its times are on the clock of [`now`].
    #[must_use]
    pub fn shared_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Adds a host function, which Python calls by `name`.
    #[must_use]
    pub fn host_function<F, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(HostCall) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.functions.insert(name.into(), callbacks::own(function));
        self
    }

    /// Answers `llm_query`.
    #[must_use]
    pub fn on_llm_query<F, R, A>(mut self, function: F) -> Self
    where
        F: Fn(Query) -> R + Send + Sync + 'static,
        R: Future<Output = Result<A, String>> + Send + 'static,
        A: Into<Answer>,
    {
        self.functions
            .insert(QUERIES[0].to_owned(), callbacks::query(false, function));
        self
    }

    /// Answers `rlm_query`.
    #[must_use]
    pub fn on_rlm_query<F, R, A>(mut self, function: F) -> Self
    where
        F: Fn(Query) -> R + Send + Sync + 'static,
        R: Future<Output = Result<A, String>> + Send + 'static,
        A: Into<Answer>,
    {
        self.functions
            .insert(QUERIES[1].to_owned(), callbacks::query(true, function));
        self
    }

    /// Sets the receiver of printed text.
    #[must_use]
    pub fn on_stdout(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.callbacks.on_stdout = Some(Arc::new(callback));
        self
    }

    /// Sets the receiver of text on `sys.stderr`.
    #[must_use]
    pub fn on_stderr(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.callbacks.on_stderr = Some(Arc::new(callback));
        self
    }

    /// Sets the receiver of the sandbox's facts. It is called when a guest has started, before what waited for the guest is answered.
    #[must_use]
    pub fn on_start(mut self, callback: impl Fn(&Capabilities) + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(callback));
        self
    }

    /// Makes the sandbox. Its guest starts when first needed, or by [`Sandbox::start`].
    ///
    /// # Errors
    /// [`Error::InvalidOption`], or [`Error::BackendUnavailable`].
    pub async fn build(mut self) -> Result<Sandbox, Error> {
        // The programs that mount the folder look for it from another one.
        if let Some(folder) = &mut self.settings.workspace
            && let Ok(absolute) = std::path::absolute(&*folder)
        {
            *folder = absolute;
        }
        check_names("hostFunctions", self.functions.keys())?;
        check_names("outputFields", self.output_fields.iter())?;
        let launcher = match self.launcher {
            Some(launcher) => launcher,
            None => backend::launcher(self.backend, &self.settings).await?,
        };
        let mut limits = self.limits;
        let checkpoints = launcher.checkpoints().min(MAX_CHECKPOINTS);
        let copies_exactly = launcher.copy_limits().is_some();
        limits.checkpoints = checkpoints > 0;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        {
            limits.max_memory_bytes = self.settings.resources.memory_bytes as f64;
        }
        let mut names: Vec<String> = self.functions.keys().cloned().collect();
        names.sort_unstable();
        let queries = names.iter().filter(|name| QUERIES.contains(&name.as_str()));
        let queries = queries.cloned().collect();
        let budget = match self.budget {
            Some(budget) => budget,
            None => {
                let budget = Budget::new(self.budget_limits, now() - self.spent.time_ms);
                budget.charge(&self.spent.usage);
                budget
            }
        };
        let made = self
            .copy
            .and_then(|copy| copy.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (session, begin) = match made {
            Some(MadeCopy { fork, begin }) => (Session::forked(fork), Some(begin)),
            None => (Session::new(limits.clone(), names), None),
        };
        let session = session
            .with_budget(budget.clone())
            .with_profile(self.profile, self.output_fields)
            .with_values(self.max_result_bytes);
        let session = if self.contextless {
            session.without_context()
        } else {
            session
        };
        let session = match self.past {
            Some(Past(past)) => session.with_past(past),
            None => session,
        };
        let backend = launcher.kind();
        let on_start = self.on_start.map(|callback| {
            Arc::new(move |info: &GuestInfo| callback(&Capabilities::new(backend, info.clone(), checkpoints)))
                as OnStart
        });
        let session = match (launcher.forks(), self.predictions) {
            (true, true) => session.with_forks().with_guesses(),
            (true, false) => session.with_forks(),
            (false, _) => session,
        };
        let session = if self.calls_ahead {
            session.with_calls_ahead()
        } else {
            session
        };
        let session = match checkpoints {
            0 => session,
            most => session.with_paused_guests(most as usize),
        };
        let session = session.with_shadows_on(self.settings.resources.processors_here(), f64::INFINITY);
        let driver = Driver::start(
            session,
            limits.max_value_bytes,
            launcher,
            begin,
            self.functions,
            Callbacks {
                on_start,
                ..self.callbacks
            },
        );
        Ok(Sandbox {
            driver: Arc::new(driver),
            backend,
            checkpoints,
            copies_exactly,
            limits,
            values: self.max_result_bytes > 0.0,
            queries,
            budget,
            changes: None,
        })
    }
}

/// Refuses names that Python code cannot use.
pub(super) fn check_names<'a>(option: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    for name in names {
        if !is_python_name(name) {
            let problem = format!("\"{name}\" is no name that Python code can use");
            return Err(Error::invalid(option, problem));
        }
    }
    Ok(())
}

/// Returns true when Python code can name something so.
fn is_python_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && chars.all(|char| char.is_alphanumeric() || char == '_')
        && !name.starts_with("__")
}
