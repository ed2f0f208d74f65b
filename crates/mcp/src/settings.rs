//! The options of `sandglass-host mcp`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sandglass_host::args::{ControllerArgs, GuestArgs, seconds, timeout_seconds};
use sandglass_host::{Kernels, Settings};

/// Options of `sandglass-host mcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct McpArgs {
    /// A folder whose files `load_context` may read. Can be given several times. The client of standard input and output can also load
    /// files below the roots that it offers. All others can load texts only.
    #[arg(long, value_name = "DIR")]
    pub allow_folder: Vec<PathBuf>,
    /// A folder that the code sees as /workspace and works in; by default an empty one. Only for a client on standard input.
    #[arg(long, value_name = "DIR", conflicts_with = "listen")]
    pub workspace: Option<PathBuf>,
    /// Seconds that code may run, unless a call gives its own timeout. Host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = timeout_seconds(), value_parser = seconds)]
    pub timeout: f64,

    /// Serve streamable HTTP at this address, such as 127.0.0.1:8790, and not standard input and output. Port 0 takes a free
    /// one. Any address except loopback needs keys.
    #[arg(long, value_name = "ADDRESS", help_heading = "HTTP")]
    pub listen: Option<SocketAddr>,
    /// A file with one key per line: `name key`, or only the key. The variable SANDGLASS_KEYS takes the same text.
    #[arg(long, value_name = "FILE", requires = "listen", help_heading = "HTTP")]
    pub keys_file: Option<PathBuf>,
    /// An origin whose pages may send requests, such as https://app.example. Can be given several times. `*` means every page,
    /// and needs keys.
    #[arg(long, value_name = "ORIGIN", requires = "listen", help_heading = "HTTP")]
    pub allow_origin: Vec<String>,
    /// Sessions of one key at the same time. Each has its own sandbox.
    #[arg(long, value_name = "SESSIONS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "listen", help_heading = "HTTP")]
    pub max_sessions: u32,
    /// Seconds after which an unused session ends.
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds, requires = "listen", help_heading = "HTTP")]
    pub session_idle_seconds: f64,

    /// The controller that answers `ask`, and its models. Without `--model`, that tool is missing.
    #[command(flatten)]
    pub controller: ControllerArgs,
    /// The guests that run the code.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The starter of guests in Jupyter kernels, handed in by the program.
    #[arg(skip)]
    pub kernels: Option<Arc<dyn Kernels>>,
}

impl McpArgs {
    /// The settings from which the backend of sessions plans.
    pub(crate) fn sessions(&self) -> Settings {
        Settings {
            workspace: self.workspace.clone(),
            kernels: self.kernels.clone(),
            ..self.guest.settings()
        }
    }

    /// The settings from which the backend of the controller's sandboxes plans. These have no access to the working folder.
    pub(crate) fn runs(&self) -> Settings {
        Settings {
            kernels: self.kernels.clone(),
            ahead: self.controller.runs_ahead(),
            ..self.guest.settings()
        }
    }
}
