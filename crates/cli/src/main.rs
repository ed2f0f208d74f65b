//! The program `sandglass-host`.
//!
//! | module | holds |
//! |---|---|
//! | `run` | the commands `run` and `doctor` |
//! | `repl` | the command `repl` |
//! | `sandbox` | options of both |
//! | `rlm`, `show` | the command `rlm`, and what it shows of a run |
//! | `cell` | the command `cell` |
//! | `image` | the commands `image` and `venv` |
//!
//! `serve` is the crate `sandglass-server`, `kernel` the crate `sandglass-jupyter`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sandglass_host::{cgroup, log, users};
use sandglass_jupyter::{KernelChoice, KernelCommand};
use sandglass_server::ServeArgs;

use self::cell::CellArgs;
use self::image::{ImageCommand, VenvCommand};
use self::rlm::RlmArgs;
use self::run::{DoctorArgs, RunArgs};
use self::sandbox::SandboxArgs;

mod cell;
mod image;
mod repl;
mod rlm;
mod run;
mod sandbox;
mod show;

#[derive(Parser)]
#[command(name = "sandglass-host", version, about = "Runs Python that nobody has to trust")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// `sandglass-host serve`: the server knows no Jupyter.
#[derive(Args)]
struct ServeCommand {
    #[command(flatten)]
    args: ServeArgs,
    #[command(flatten)]
    kernel: KernelChoice,
}

// One line per command, here and in `main`.
#[derive(Subcommand)]
enum Command {
    /// Sessions over HTTP and WebSocket.
    Serve(Box<ServeCommand>),
    /// Runs a file, or the code of -c, and exits with 0, 1 (it failed), 124 (out of time) or 130 (interrupted).
    Run(Box<RunArgs>),
    /// Runs what is typed, as Python's own REPL does.
    ///
    /// Each statement is a cell, and variables stay. A block ends with an empty line; several statements can be pasted. Ctrl-C
    /// interrupts what runs; Ctrl-D, exit() or quit() leaves.
    Repl(Box<SandboxArgs>),
    /// What each backend can do here, or that of --backend, and what is missing; exits with 0 when one works.
    Doctor(Box<DoctorArgs>),
    /// Lets a model answer a question about a file, by writing Python that runs in sandboxes.
    ///
    /// The answer goes to standard output, what happens meanwhile to standard error. Exits with 0 (an answer), 1 (none), 2 (wrong options)
    /// or 130 (Ctrl-C). docs/rlm.md tells how it works.
    Rlm(Box<RlmArgs>),
    /// Shows what is in a file that a notebook's cell has left, which is opened in a sandbox; exits with 0, or 1 when it cannot be shown.
    Cell(Box<CellArgs>),
    /// A Jupyter kernel whose cells run in a sandbox.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Builds the image that Docker's guests run in.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Makes a virtual environment of the same packages, for guests in bubblewrap.
    #[command(subcommand)]
    Venv(VenvCommand),
}

/// The time that the end waits for what guests leave behind to be removed.
const TIDYING: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let status = ended();
    cgroup::settle(TIDYING);
    users::settle(TIDYING);
    status
}

/// Runs the command; when it returns, everything that was asynchronous is dropped.
#[tokio::main]
async fn ended() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Serve(_)) {
        log::of_command();
    }
    let ended = match command {
        Command::Serve(command) => serve(*command).await,
        Command::Run(args) => run::run(*args).await,
        Command::Repl(args) => repl::repl(*args).await,
        Command::Doctor(args) => run::doctor(*args).await,
        Command::Rlm(args) => return rlm::main(*args).await,
        Command::Cell(args) => return cell::main(*args).await,
        Command::Kernel(command) => sandglass_jupyter::kernel(command).await,
        Command::Image(command) => image::image(command).await,
        Command::Venv(command) => image::venv(command).await,
    };
    match ended {
        Ok(status) => ExitCode::from(status),
        Err(why) => {
            eprintln!("sandglass-host: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The command `serve`, which is handed what starts guests in kernels.
async fn serve(ServeCommand { mut args, kernel }: ServeCommand) -> Result<u8, String> {
    if kernel.connection_file.is_some() {
        return Err(
            "--connection-file: the sessions of a server would share that kernel's variables; name a kernelspec"
                .to_owned(),
        );
    }
    args.kernels = kernel.kernels();
    sandglass_server::serve(args).await
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn no_command_has_an_option_twice() {
        Cli::command().debug_assert();
    }
}
