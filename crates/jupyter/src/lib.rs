//! All of Jupyter: a kernel whose cells run in a sandbox (the commands `kernel install` and `kernel run`), and the backend whose guests
//! run in kernels.
//!
//! The kernel speaks version 5.4 of [Jupyter's protocol](https://jupyter-client.readthedocs.io/en/stable/messaging.html).
//!
//! | module | holds |
//! |---|---|
//! | `install` | the file by which notebooks find it |
//! | `wire` | a kernel's sockets, and what goes over them |
//! | `run` | requests, one after the other, and those that may overtake |
//! | `cell` | an execution, as the outputs of a notebook's cell |
//! | `input` | `input()`, asked of the front end |
//! | `completion` | completion and inspection |
//! | `cell_history` | the cells of this session |
//! | `backend` | guests in kernels |
//! | `connection` | connection files |
//! | `messages` | signed messages |
//! | `zmtp` | ZeroMQ's protocol |
//!
//! Decisions: `docs/internals/jupyter.md`.

mod backend;
mod cell;
mod cell_history;
mod completion;
mod connection;
mod input;
mod install;
mod messages;
mod run;
mod wire;
mod zmtp;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use sandglass_core::{Error, Limits};
use sandglass_rlm::{Message, Role};

pub use self::backend::{Inspected, Jupyter, KernelSettings};
use self::input::Input;
use sandglass_host::args::{GuestArgs, ModelArgs, Secrets, context, seconds};
use sandglass_host::sandbox::Sandbox;
use sandglass_host::{BackendKind, Kernels};

/// The time that a cell may run where nobody says, in seconds: notebooks have a button to stop one.
const TIMEOUT_SECONDS: f64 = 3_600.0;
/// Characters of each output stream of a cell where nobody says.
const MAX_OUTPUT_CHARS: u32 = 10_000_000;
/// The time that somebody may think about what to answer to `input()`, in milliseconds.
const ANSWER_MS: f64 = 24.0 * 3_600_000.0;

/// Which kernel a guest of the backend jupyter lodges in.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Jupyter backend")]
pub struct KernelChoice {
    /// With jupyter, the kernelspec that is started, by its name or its folder; by default python3.
    #[arg(long, env = "SANDGLASS_KERNEL", value_name = "NAME")]
    pub kernel: Option<String>,
    /// With jupyter, the connection file of a kernel that runs and is used in the place of one that is started.
    #[arg(
        long,
        env = "SANDGLASS_CONNECTION_FILE",
        value_name = "FILE",
        conflicts_with = "kernel"
    )]
    pub connection_file: Option<PathBuf>,
}

impl KernelChoice {
    /// The same for [`Settings`](sandglass_host::Settings).
    pub fn kernels(&self) -> Option<Arc<dyn Kernels>> {
        Some(Arc::new(KernelSettings {
            name: self.kernel.clone(),
            connection_file: self.connection_file.clone(),
            ..KernelSettings::default()
        }))
    }
}

/// `sandglass-host kernel …`
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Lets notebooks choose the kernel: writes its kernel.json, with the options that are given here.
    #[command(
        after_help = "Examples:\n  sandglass-host kernel install\n  sandglass-host kernel install --prefix .venv --python .venv/bin/python --timeout 600"
    )]
    Install(Box<install::InstallArgs>),
    /// Takes a kernel away that `install` has made.
    #[command(after_help = "Example:\n  sandglass-host kernel uninstall --prefix .venv")]
    Uninstall(install::PlaceArgs),
    /// Runs it. Jupyter does that.
    #[command(after_help = "Example:\n  sandglass-host kernel run --connection-file kernel.json")]
    Run(Box<RunArgs>),
}

/// Options that run a kernel.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The file with ports and key that Jupyter has written.
    #[arg(long, value_name = "FILE")]
    pub connection_file: PathBuf,
    /// The sandbox that its cells run in.
    #[command(flatten)]
    pub cells: CellsArgs,
}

/// Options of the sandbox that the cells of a kernel run in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cells")]
pub struct CellsArgs {
    /// The folder that the code has as /workspace, and works in; without it, an empty one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// How long a cell may run, in seconds; host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_SECONDS, value_parser = seconds)]
    pub timeout: f64,
    /// The file that the variable `context` holds: what JSON says if it is named *.json, else text.
    #[arg(long, value_name = "FILE")]
    pub context: Option<PathBuf>,
    /// Characters of each output stream of a cell; of more, the middle is left out.
    #[arg(long, value_name = "CHARACTERS", default_value_t = MAX_OUTPUT_CHARS, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    pub max_output: u32,
    /// Gives HTML, SVG, Markdown, LaTeX and charts to the notebook as code has made them: then code can run scripts in the notebook's page.
    #[arg(long)]
    pub trust_output: bool,
    /// The guests.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The model that answers `llm_query`.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// The command `kernel`.
///
/// # Errors
/// What cannot be read or written, or why no notebook can reach the kernel.
pub async fn kernel(command: KernelCommand) -> Result<u8, String> {
    match command {
        KernelCommand::Install(args) => args.cells.check().and_then(|()| install::install(&args)),
        KernelCommand::Uninstall(args) => install::uninstall(&args),
        KernelCommand::Run(args) => {
            args.cells.check()?;
            run::run(*args).await
        }
    }
}

impl CellsArgs {
    /// Checks that a kernel's cells can run there.
    fn check(&self) -> Result<(), String> {
        if self.guest.backend == BackendKind::Jupyter {
            return Err(
                "--backend jupyter: this is a kernel itself, whose cells would run in another one; use that kernel, or a backend that isolates"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// A sandbox with its context, whose guest has started.
    ///
    /// # Errors
    /// What cannot be read, or why there is no guest.
    async fn sandbox(&self, input: &Arc<Input>) -> Result<Sandbox, String> {
        let context = self.context.as_deref().map(context).transpose()?.unwrap_or_default();
        let input = Arc::clone(input);
        let mut builder = Sandbox::builder()
            .backend(self.guest.backend)
            .settings(sandglass_host::Settings {
                workspace: self.workspace.clone(),
                ..self.guest.settings()
            })
            .limits(self.limits().map_err(|error| error.to_string())?)
            .host_function("input", move |call| {
                let input = Arc::clone(&input);
                async move { input.ask(&call).await }
            });
        if let Some(model) = self.model.endpoint(Secrets::from_environment()?.llm_key)? {
            let model = Arc::new(model);
            builder = builder.on_llm_query(move |query| {
                let model = Arc::clone(&model);
                async move {
                    let asked = [Message::new(Role::User, &query.prompt)];
                    model.ask(&asked, query.model.as_deref(), None, &|_| {}).await
                }
            });
        }
        let sandbox = builder.build().await.map_err(|error| error.to_string())?;
        match sandbox.initialize(context).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error.to_string())
            }
        }
    }

    fn limits(&self) -> Result<Limits, Error> {
        let mut limits = Limits::default();
        limits.set("timeout", self.timeout * 1_000.0)?;
        limits.set("maxOutputLength", f64::from(self.max_output))?;
        limits.set("hostCallTimeout", ANSWER_MS)?;
        Ok(limits)
    }
}
