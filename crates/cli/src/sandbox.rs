//! The options of the commands `run` and `repl` that describe a sandbox.

use std::path::PathBuf;

use clap::Args;
use sandglass_host::args::{GuestArgs, context, seconds, timeout_seconds, told};
use sandglass_host::{Limits, Sandbox, Settings};
use sandglass_jupyter::KernelChoice;

/// Options of a sandbox, for `run` and `repl`.
#[derive(Debug, Clone, Args)]
pub struct SandboxArgs {
    /// A folder that the code sees as /workspace and works in; by default an empty one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Seconds that a cell may run. Host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = timeout_seconds(), value_parser = seconds)]
    pub timeout: f64,
    /// A file for the variable `context`. A *.json file is parsed; any other file is text.
    #[arg(long, value_name = "FILE")]
    pub context: Option<PathBuf>,
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The Jupyter kernel, if the backend is jupyter.
    #[command(flatten)]
    pub kernel: KernelChoice,
}

impl SandboxArgs {
    /// A sandbox whose guest has started, with its context.
    ///
    /// # Errors
    /// The context cannot be read, or no guest starts.
    pub async fn sandbox(&self) -> Result<Sandbox, String> {
        let context = self.context.as_deref().map(context).transpose()?.unwrap_or_default();
        let mut limits = Limits::default();
        limits.set("timeout", self.timeout * 1_000.0).map_err(told)?;
        let sandbox = Sandbox::builder()
            .backend(self.guest.backend)
            .settings(Settings {
                workspace: self.workspace.clone(),
                kernels: self.kernel.kernels(),
                ..self.guest.settings()
            })
            .limits(limits)
            .build()
            .await
            .map_err(told)?;
        sandbox.initialize(context).await.map_err(told)?;
        Ok(sandbox)
    }
}
