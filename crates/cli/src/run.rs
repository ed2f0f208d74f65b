//! The commands `run` and `doctor`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use sandglass_core::session::ToResult;

use sandglass_host::args::{GuestArgs, text_of, told};
use sandglass_host::sandbox::{ExecuteOptions, traceback_with_error};
use sandglass_host::{BackendKind, Execution, Outcome, Sandbox, Settings, Stream, doctor};
use sandglass_jupyter::KernelChoice;

use crate::sandbox::SandboxArgs;
use crate::show::clean;

/// The exit status if the code failed.
const FAILED: u8 = 1;
/// The exit status if the time was up, as the program `timeout` has it.
const TIMED_OUT: u8 = 124;
/// The exit status after an interrupt, as shells have it.
const INTERRUPTED: u8 = 130;

/// `sandglass-host run`: runs code and ends.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// The file that holds the code; `-` is standard input.
    #[arg(required_unless_present = "code", conflicts_with = "code")]
    pub file: Option<PathBuf>,
    /// The code itself.
    #[arg(short = 'c', value_name = "CODE")]
    pub code: Option<String>,
    /// The sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
}

/// Runs the command `run`: prints output as it comes, then the result. Returns the exit status: 0, 1 when the code failed, 124
/// when the time was up, 130 when Ctrl-C ended the code.
///
/// # Errors
/// The code could not be run.
pub async fn run(args: RunArgs) -> Result<u8, String> {
    let code = match (args.code, args.file) {
        (Some(code), _) => code,
        (None, Some(file)) => text_of(&file)?,
        (None, None) => return Err("there is no code: name a file, or give -c".to_owned()),
    };
    let sandbox = args.sandbox.sandbox().await?;
    let ended = execute(&sandbox, code).await;
    sandbox.destroy().await;
    Ok(status(&ended?))
}

/// Runs code and shows all its output. Ctrl-C interrupts the code.
///
/// # Errors
/// The sandbox could not run it.
pub async fn execute(sandbox: &Sandbox, code: String) -> Result<Execution, String> {
    let options = ExecuteOptions {
        on_output: Some(Arc::new(|stream, text| {
            if matches!(stream, Stream::Stdout | Stream::Stderr) {
                show(stream, text);
            }
        })),
        on_display: Some(Arc::new(|display, to_result| match display.mime.as_str() {
            "text/plain" => show(Stream::Stdout, &format!("{}\n", display.data.trim_end())),
            // A table also has HTML, and its text is already the result.
            mime if to_result != ToResult::Before && !mime.starts_with("image/") => {}
            mime => show(Stream::Stderr, &format!("[{mime}, which a terminal does not show]\n")),
        })),
        ..ExecuteOptions::default()
    };
    let running = sandbox.execute_with(code, options);
    tokio::pin!(running);
    let run = loop {
        tokio::select! {
            run = &mut running => break run,
            Ok(()) = tokio::signal::ctrl_c() => sandbox.interrupt(),
        }
    }
    .map_err(told)?;
    if let Some(result) = &run.result {
        show(Stream::Stdout, &format!("{result}\n"));
    }
    if let Some(last) = &run.final_answer {
        show(Stream::Stdout, &format!("{}\n", last.value.to_text()));
    }
    if let Some(error) = &run.error {
        let traceback = run.traceback.as_deref().unwrap_or_default();
        show(Stream::Stderr, &format!("{}\n", traceback_with_error(traceback, error)));
    }
    Ok(run)
}

/// Writes text to the stream. A failure is ignored, because the reader may be gone.
fn show(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Stdout => write(io::stdout(), text),
        _ => write(io::stderr(), text),
    };
}

/// A terminal gets no control characters, because the text comes from untrusted code. A program gets the text unchanged.
fn write(mut out: impl Write + IsTerminal, text: &str) -> io::Result<()> {
    if out.is_terminal() {
        // Bars of progress begin their line again.
        let lines: Vec<String> = text.split('\r').map(|line| clean(line, usize::MAX)).collect();
        out.write_all(lines.join("\r").as_bytes())?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()
}

/// The exit status for an execution.
pub fn status(run: &Execution) -> u8 {
    match run.outcome {
        Outcome::Ok => 0,
        Outcome::Timeout => TIMED_OUT,
        Outcome::Interrupted => INTERRUPTED,
        Outcome::Error | Outcome::Crashed | Outcome::Limit => FAILED,
    }
}

/// `sandglass-host doctor`
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// The guests to test.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The Jupyter kernel, if the backend is jupyter.
    #[command(flatten)]
    pub kernel: KernelChoice,
    /// The folder that `serve` is to keep sessions' files in.
    #[arg(long, env = "WORKSPACE_DIR", value_name = "DIR")]
    pub workspace_dir: Option<PathBuf>,
}

/// Runs the command `doctor`: prints what each backend can do here, or the named one, and what else is missing. Returns 0 when a
/// backend works and the folder for workspaces, if one is named, can be used.
///
/// # Errors
/// Never. The signature is that of the other commands.
pub async fn doctor(args: DoctorArgs) -> Result<u8, String> {
    let settings = Settings {
        kernels: args.kernel.kernels(),
        ..args.guest.settings()
    };
    let findings = doctor::examine(args.guest.backend, &settings).await;
    for finding in &findings {
        show(Stream::Stdout, &format!("{finding}\n"));
    }
    let mut parts = match args.guest.backend {
        BackendKind::Auto | BackendKind::Bubblewrap => doctor::examine_parts(&settings).await,
        _ => Vec::new(),
    };
    let folder = args.workspace_dir.as_deref();
    let workspace = folder.map(|folder| doctor::examine_workspace(folder, &settings, &findings));
    let is_usable = workspace.as_ref().is_none_or(|workspace| workspace.state.is_ok());
    parts.extend(workspace);
    for part in &parts {
        show(Stream::Stdout, &format!("{part}\n"));
    }
    let works = findings.iter().any(|finding| finding.usable.is_ok());
    Ok(u8::from(!(works && is_usable)))
}
