//! Options that describe a sandbox.

use std::path::PathBuf;

use clap::Args;
use sandglass_host::args::{GuestArgs, context, seconds, timeout_seconds, told};
use sandglass_host::{Limits, Sandbox, Settings};
use sandglass_jupyter::KernelChoice;

/// A sandbox of `run` or `repl`.
#[derive(Debug, Clone, Args)]
pub struct SandboxArgs {
    /// The backend that it runs in.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// In which kernel.
    #[command(flatten)]
    pub kernel: KernelChoice,
    /// The folder that the code has as /workspace, and works in; without it, an empty one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The time that code may run, in seconds; host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = timeout_seconds(), value_parser = seconds)]
    pub timeout: f64,
    /// The file that the variable `context` holds: what JSON says if it is named *.json, else text.
    #[arg(long, value_name = "FILE")]
    pub context: Option<PathBuf>,
}

impl SandboxArgs {
    /// A sandbox with its context, whose guest has started.
    ///
    /// # Errors
    /// The file that cannot be read, or why there is no guest.
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
