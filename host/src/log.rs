//! The program's log: to standard error, as far as `RUST_LOG` says.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// The way a server's log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// An object per line.
    Json,
}

/// Starts the log of a server: everything that operators may want to know.
pub fn of_server(format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter("info"))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    // A program that uses this as a library may have a log already.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// Starts the log of a command that somebody waits for: our own warnings, such as that nothing isolates a guest.
pub fn of_command() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(
            "sandglass_host=warn,sandglass_jupyter=warn,sandglass_server=warn",
        ))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .compact()
        .try_init();
}

fn filter(default: &str) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}
