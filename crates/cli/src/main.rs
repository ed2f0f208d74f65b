//! The program `sandglass-host`: parses its arguments and runs one command.
//!
//! | module | holds |
//! |---|---|
//! | `run` | the commands `run` and `doctor` |
//! | `repl` | the command `repl` |
//! | `sandbox` | options of `run` and `repl` |
//! | `rlm`, `show` | the command `rlm`, and its output while runs go on |
//! | `cell` | the command `cell` |
//! | `image` | the commands `image` and `venv` |
//!
//! ```sh
//! sandglass-host run -c 'print(6 * 7)' # prints 42
//! ```
//!
//! The command `serve` is in the crate `sandglass-server`, `mcp` in `sandglass-mcp`, and `kernel` in `sandglass-jupyter`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sandglass_host::args::GuestArgs;
use sandglass_host::{Settings, cgroup, log, users};
use sandglass_jupyter::{KernelChoice, KernelCommand, KernelSettings};
use sandglass_mcp::{McpArgs, OnServer};
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
#[command(
    name = "sandglass-host",
    version,
    about = "Runs untrusted Python in isolated guests",
    after_help = "Examples:\n  sandglass-host doctor\n  sandglass-host run -c 'sum(range(10))'\n  sandglass-host serve"
)]
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

/// `sandglass-host mcp`: the server knows no Jupyter.
#[derive(Args)]
struct McpCommand {
    #[command(flatten)]
    args: McpArgs,
    #[command(flatten)]
    kernel: KernelChoice,
}

/// `sandglass-host rpc`.
#[derive(Args)]
struct RpcArgs {
    #[command(flatten)]
    guest: GuestArgs,
}

// One line per command, here and in `main`.
#[derive(Subcommand)]
enum Command {
    /// Serves sessions over HTTP and WebSocket.
    ///
    /// Without keys, the server listens on loopback only. Each option can also be set by the variable in brackets.
    #[command(
        after_help = "Examples:\n  sandglass-host serve\n  sandglass-host serve --listen 0.0.0.0:8788 --keys-file keys.txt --workspace-dir /srv/sandglass"
    )]
    Serve(Box<ServeCommand>),
    /// Runs a Python file, or the code of -c.
    ///
    /// Exits with 0, 1 (the code failed), 124 (out of time) or 130 (interrupted).
    #[command(
        after_help = "Examples:\n  sandglass-host run -c 'sum(range(10))'\n  sandglass-host run --workspace ./data --timeout 60 script.py"
    )]
    Run(Box<RunArgs>),
    /// Runs cells that you type, as Python's own REPL does.
    ///
    /// Each statement is a cell, and variables stay. An empty line ends a block. You can paste several statements at once.
    /// Ctrl-C interrupts the running cell. Ctrl-D, exit() or quit() leaves.
    #[command(after_help = "Examples:\n  sandglass-host repl\n  sandglass-host repl --context data.json")]
    Repl(Box<SandboxArgs>),
    /// Tests which backends work on this machine, and says what is missing.
    ///
    /// Also looks at control groups, at the package lz4 and at the folder of --workspace-dir. With --backend, tests only that one.
    /// Exits with 0 if a backend works and the folder can be used.
    #[command(after_help = "Examples:\n  sandglass-host doctor\n  sandglass-host doctor --backend docker")]
    Doctor(Box<DoctorArgs>),
    /// Lets a model answer a question about files by writing Python, which runs in sandboxes.
    ///
    /// The answer goes to standard output, the progress to standard error. Exits with 0 (an answer), 1 (no answer), 2 (wrong
    /// options) or 130 (Ctrl-C). More in docs/rlm.md.
    #[command(
        after_help = "Examples:\n  sandglass-host rlm --model gpt-5 --task 'Which year had most sales?' sales.csv\n  sandglass-host rlm --url http://127.0.0.1:8000/v1 --model qwen3 --budget-time 300 --task 'List the errors.' log.txt"
    )]
    Rlm(Box<RlmArgs>),
    /// Serves agents by the Model Context Protocol: tools to run Python, and to work with large data.
    ///
    /// The client starts this program and speaks over its standard input and output; with --listen, clients speak over HTTP.
    /// More in docs/mcp.md.
    #[command(
        after_help = "Examples:\n  sandglass-host mcp --allow-folder ~/data\n  sandglass-host mcp --listen 127.0.0.1:8790 --model gpt-5"
    )]
    Mcp(Box<McpCommand>),
    /// Serves one program by JSON-RPC on standard input and output.
    ///
    /// Client libraries start this command. docs/rpc.md describes the messages. It ends, with all its sandboxes, when its input
    /// ends.
    #[command(after_help = "Example:\n  sandglass-host rpc --backend bubblewrap")]
    Rpc(Box<RpcArgs>),
    /// Shows the value in a file that a notebook's cell wrote.
    ///
    /// The file is opened in a sandbox, because opening it can run any code. Exits with 0, or with 1 if the file cannot be
    /// shown.
    #[command(after_help = "Example:\n  sandglass-host cell .repl/cell_1_output.pkl")]
    Cell(Box<CellArgs>),
    /// Installs and runs a Jupyter kernel whose cells run in a sandbox.
    #[command(subcommand, after_help = "Example:\n  sandglass-host kernel install")]
    Kernel(KernelCommand),
    /// Builds the image of Docker guests.
    #[command(subcommand, after_help = "Example:\n  sandglass-host image build")]
    Image(ImageCommand),
    /// Builds a virtual environment for bubblewrap guests, with the same packages as the image.
    #[command(subcommand, after_help = "Example:\n  sandglass-host venv build /opt/sandglass-venv")]
    Venv(VenvCommand),
}

/// The longest wait at exit for control groups and user ids of ended guests to be freed.
const TIDYING: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let status = ended();
    cgroup::settle(TIDYING);
    users::settle(TIDYING);
    status
}

/// Runs the command. Everything asynchronous has been dropped when this returns.
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
        Command::Mcp(command) => mcp(*command).await,
        Command::Rpc(args) => rpc(&args.guest).await,
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

/// Runs the command `rpc`, and hands it the starter of Jupyter kernels.
async fn rpc(guest: &GuestArgs) -> Result<u8, String> {
    let settings = Settings {
        kernels: Some(Arc::new(KernelSettings::default())),
        ..guest.settings()
    };
    sandglass_rpc::stdio::serve(guest, settings).await.map(|()| 0)
}

/// Runs the command `serve`, and hands the server the starter of Jupyter kernels and the Model Context Protocol.
async fn serve(ServeCommand { mut args, kernel }: ServeCommand) -> Result<u8, String> {
    if kernel.connection_file.is_some() {
        return Err(
            "--connection-file: the sessions of a server would share that kernel's variables; name a kernelspec"
                .to_owned(),
        );
    }
    args.kernels = kernel.kernels();
    sandglass_server::serve(args, Arc::new(OnServer::default())).await
}

/// Runs the command `mcp`, and hands the server the starter of Jupyter kernels.
async fn mcp(McpCommand { mut args, kernel }: McpCommand) -> Result<u8, String> {
    if kernel.connection_file.is_some() && args.listen.is_some() {
        return Err(
            "--connection-file: the sessions of a server would share that kernel's variables; name a kernelspec"
                .to_owned(),
        );
    }
    args.kernels = kernel.kernels();
    sandglass_mcp::mcp(args).await
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
