//! The description of a sandbox.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use sandglass_core::budget::Budget;
use sandglass_core::protocol::QUERIES;
use sandglass_core::{BudgetLimits, Error, Limits, Profile, Session};

use super::Sandbox;
use crate::backend;
use crate::callbacks::{self, Answer, Functions, HostCall, Query};
use crate::driver::{Callbacks, Driver, now};
use crate::launcher::{BackendKind, Kernels, Launcher, Resources, Settings};
use crate::users::Users;
use crate::value::Value;
use crate::workspace::Workspace;

/// Describes a sandbox; [`SandboxBuilder::build`] makes it.
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
    functions: Functions,
    callbacks: Callbacks,
    predictions: bool,
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
    /// Sets the backend that runs the guest; by default the best that there is.
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

    /// The Python that runs the guest: a path such as a virtual environment's `bin/python`. Not for Docker.
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

    /// Sets whether code that is hinted, or still being written, may run before it is asked for: see [`Sandbox::hint`]. Off by default, and only
    /// in bubblewrap and plain processes, on Linux 5.11 and newer on `x86_64`; elsewhere nothing runs ahead. With a [launcher](SandboxBuilder::launcher), that one's [settings](Settings::ahead) say so.
    #[must_use]
    pub fn ahead(mut self, ahead: bool) -> Self {
        self.settings.ahead = ahead;
        self
    }

    /// Sets whether code is guessed, by the variables and columns that there are, by the code before and by what is talked about
    /// ([`Sandbox::update_conversation`]), where code can run [ahead](SandboxBuilder::ahead). Off by default.
    #[must_use]
    pub fn predictions(mut self, predictions: bool) -> Self {
        self.predictions = predictions;
        self
    }

    /// Sets the guest's share of the machine.
    #[must_use]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.settings.resources = resources;
        self
    }

    /// The user ids that guests get, one each, where the host is root: by default 2100000000 to 2100065535.
    #[must_use]
    pub fn guest_users(mut self, users: Users) -> Self {
        self.settings.guest_users = users;
        self
    }

    /// The folder that the guest has as `/workspace`, and works in.
    #[must_use]
    pub fn workspace(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.workspace = Some(folder.into());
        self
    }

    /// The same with a workspace of a server's: what in it is the host's is hidden from the guest.
    #[must_use]
    pub fn in_workspace(mut self, workspace: &Workspace) -> Self {
        self.settings.workspace = Some(workspace.path().to_owned());
        self.settings.hides_cells = true;
        self
    }

    /// All that a backend plans from.
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

    /// The profile whose names and texts Python gets.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The names of the values that `SUBMIT` takes.
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

    /// Sets the budget of all its executions together.
    #[must_use]
    pub fn budget(mut self, limits: BudgetLimits) -> Self {
        self.budget_limits = limits;
        self
    }

    /// The same, as a part of a budget that others share; its times are on the clock of [`now`].
    #[must_use]
    pub fn shared_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// A function that Python can call by `name`.
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

    /// Is shown what is printed, as it comes.
    #[must_use]
    pub fn on_stdout(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.callbacks.on_stdout = Some(Arc::new(callback));
        self
    }

    /// Is shown what is written to `sys.stderr`, as it comes.
    #[must_use]
    pub fn on_stderr(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.callbacks.on_stderr = Some(Arc::new(callback));
        self
    }

    /// Makes the sandbox. The guest starts when it is first needed, or by [`Sandbox::start`].
    ///
    /// # Errors
    /// [`Error::InvalidOption`], or [`Error::BackendUnavailable`].
    pub async fn build(self) -> Result<Sandbox, Error> {
        for name in self.functions.keys().chain(&self.output_fields) {
            if !is_python_name(name) {
                let problem = format!("\"{name}\" is no name that Python code can use");
                return Err(Error::invalid("host_function", problem));
            }
        }
        let launcher = match self.launcher {
            Some(launcher) => launcher,
            None => backend::launcher(self.backend, &self.settings).await?,
        };
        let mut limits = self.limits;
        // Native guests cannot save their state yet.
        limits.checkpoints = false;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        {
            limits.max_memory_bytes = self.settings.resources.memory_bytes as f64;
        }
        let mut names: Vec<String> = self.functions.keys().cloned().collect();
        names.sort_unstable();
        let budget = match self.budget {
            Some(budget) => budget,
            None => Budget::new(self.budget_limits, now()),
        };
        let session = Session::new(limits.clone(), names)
            .with_budget(budget)
            .with_profile(self.profile, self.output_fields);
        let session = if self.contextless {
            session.without_context()
        } else {
            session
        };
        let backend = launcher.kind();
        let session = match (launcher.forks(), self.predictions) {
            (true, true) => session.with_forks().with_guesses(),
            (true, false) => session.with_forks(),
            (false, _) => session,
        };
        let session = session.with_shadows_on(self.settings.resources.processors_here(), f64::INFINITY);
        let driver = Driver::start(
            session,
            limits.max_value_bytes,
            launcher,
            self.functions,
            self.callbacks,
        );
        Ok(Sandbox {
            driver: Arc::new(driver),
            backend,
            limits,
        })
    }
}

/// Returns true when Python code can name something so.
fn is_python_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && chars.all(|char| char.is_alphanumeric() || char == '_')
        && !name.starts_with("__")
}
