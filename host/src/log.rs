//! The program's log: to standard error, as far as `RUST_LOG` says.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// The form of a server's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// An object per line.
    Json,
}

/// Starts the log of a server, which tells operators what happens.
pub fn of_server(format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter("info"))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    // A program that uses this library may already have a log.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// Starts the log of a command that a user waits for. It has only Sandglass' warnings, such as missing isolation.
pub fn of_command() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(
            "sandglass_host=warn,sandglass_jupyter=warn,sandglass_mcp=warn,sandglass_server=warn",
        ))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .compact()
        .try_init();
}

fn filter(default: &str) -> EnvFilter {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // The client of NATS writes its password at `trace`. The library of the Model Context Protocol writes ids of sessions and messages.
    let quiet = ["async_nats::connection=info", "rmcp=off"];
    let quiet = quiet.into_iter().filter_map(|directive| directive.parse().ok());
    quiet.fold(filter, EnvFilter::add_directive)
}
