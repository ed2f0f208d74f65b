#![doc = include_str!("../README.md")]
//!
//! The kernel speaks version 5.4 of [Jupyter's protocol](https://jupyter-client.readthedocs.io/en/stable/messaging.html). It is started by the
//! commands `kernel install` and `kernel run`.
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | `install` | the kernelspec, by which notebooks find the kernel |
//! | `wire` | the kernel's sockets and their messages |
//! | `run` | the kernel's requests, and their order |
//! | `cell` | an execution as the outputs of a notebook's cell |
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
use sandglass_core::limits::Naming;
use sandglass_core::{Error, Limits};
use sandglass_rlm::{Message, Role};

pub use self::backend::{Inspected, Jupyter, KernelSettings};
use self::input::Input;
use sandglass_host::args::{GuestArgs, ModelArgs, Secrets, context, seconds};
use sandglass_host::sandbox::Sandbox;
use sandglass_host::{BackendKind, Kernels};

/// The default timeout of a cell, in seconds. It is long, because notebooks have a button to stop a cell.
const TIMEOUT_SECONDS: f64 = 3_600.0;
/// The default for most characters of each output stream of a cell.
const MAX_OUTPUT_CHARS: u32 = 10_000_000;
/// The time for a user to answer `input()`, in milliseconds.
const ANSWER_MS: f64 = 24.0 * 3_600_000.0;

/// The kernel of a guest on the backend jupyter.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Jupyter backend")]
pub struct KernelChoice {
    /// The kernelspec for backend jupyter, by name or by folder; by default python3.
    #[arg(long, env = "SANDGLASS_KERNEL", value_name = "NAME")]
    pub kernel: Option<String>,
    /// The connection file of a running kernel, for backend jupyter. It is used instead of a new kernel.
    #[arg(
        long,
        env = "SANDGLASS_CONNECTION_FILE",
        value_name = "FILE",
        conflicts_with = "kernel"
    )]
    pub connection_file: Option<PathBuf>,
}

impl KernelChoice {
    /// The choice as [`Settings`](sandglass_host::Settings) take it.
    pub fn kernels(&self) -> Option<Arc<dyn Kernels>> {
        Some(Arc::new(KernelSettings {
            name: self.kernel.clone(),
            connection_file: self.connection_file.clone(),
            ..KernelSettings::default()
        }))
    }
}

/// The subcommands of `sandglass-host kernel`.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Installs the kernel for notebooks: writes its kernel.json, with the options given here.
    #[command(
        after_help = "Examples:\n  sandglass-host kernel install\n  sandglass-host kernel install --prefix .venv --python .venv/bin/python --timeout 600"
    )]
    Install(Box<install::InstallArgs>),
    /// Removes a kernel that `install` made.
    #[command(after_help = "Example:\n  sandglass-host kernel uninstall --prefix .venv")]
    Uninstall(install::PlaceArgs),
    /// Runs the kernel. Jupyter calls this command.
    #[command(after_help = "Example:\n  sandglass-host kernel run --connection-file kernel.json")]
    Run(Box<RunArgs>),
}

/// Options of `sandglass-host kernel run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The file with ports and key, which Jupyter writes.
    #[arg(long, value_name = "FILE")]
    pub connection_file: PathBuf,
    /// The sandbox of the kernel's cells.
    #[command(flatten)]
    pub cells: CellsArgs,
}

/// Options of the sandbox where a kernel's cells run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cells")]
pub struct CellsArgs {
    /// A folder that the code sees as /workspace and works in; by default an empty one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Seconds that a cell may run. Host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_SECONDS, value_parser = seconds)]
    pub timeout: f64,
    /// A file for the variable `context`. A *.json file is parsed; any other file is text.
    #[arg(long, value_name = "FILE")]
    pub context: Option<PathBuf>,
    /// Characters of each output stream of a cell. The middle of longer output is left out.
    #[arg(long, value_name = "CHARACTERS", default_value_t = MAX_OUTPUT_CHARS, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    pub max_output: u32,
    /// Show HTML, SVG, Markdown, LaTeX and charts unchanged. Then the code can run scripts in the notebook's page.
    #[arg(long)]
    pub trust_output: bool,
    /// The guests.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The model that answers `llm_query`.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Runs the command `kernel`.
///
/// # Errors
/// A file cannot be read or written, an option does not fit, or notebooks cannot reach the kernel.
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
    /// Checks that the backend can run a kernel's cells.
    fn check(&self) -> Result<(), String> {
        if self.guest.backend == BackendKind::Jupyter {
            return Err(
                "--backend jupyter: this is a kernel itself, whose cells would run in another one; use that kernel, or a backend that isolates"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// A sandbox whose guest has started, with its context.
    ///
    /// # Errors
    /// The context cannot be read, or no guest starts.
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
        let mut limits = Limits {
            naming: Naming::Snake,
            ..Limits::default()
        };
        limits.set("timeout", self.timeout * 1_000.0)?;
        limits.set("maxOutputLength", f64::from(self.max_output))?;
        limits.set("hostCallTimeout", ANSWER_MS)?;
        Ok(limits)
    }
}
