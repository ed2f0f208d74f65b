//! `sandglass-host rlm`: a task over a file, from the command line.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use sandglass_core::Error;
use sandglass_core::predictions::Tally;
use sandglass_core::stats::CallsAhead;
use sandglass_rlm::answer::text;
use sandglass_rlm::event::{RlmEvent, RunOutcome};
use sandglass_rlm::limits::MAX_CONTEXTS;
use sandglass_rlm::schema::Schema;

use crate::show::{Show, clean, name};
use sandglass_host::Settings;
use sandglass_host::args::{ControllerArgs, GuestArgs, seconds, timeout_seconds};
use sandglass_host::backend;
use sandglass_host::rlm::{Rlm, RlmOptions, Stop, run_while};
use sandglass_host::traces::{InTrace, Span, SpanKind};
use sandglass_host::value::Value;
use sandglass_jupyter::KernelChoice;
use sandglass_server::traces::Export;

/// The file name that stands for standard input.
const STDIN: &str = "-";
/// The exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Lets a model answer a question about files by writing Python, which runs in sandboxes.
///
/// The answer goes to standard output, the progress to standard error. Keys come from the environment.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("model", |model| model.required(true)))]
pub struct RlmArgs {
    /// The data: files, or `-` for standard input. UTF-8 text becomes a str in Python, other data bytes. The first file is the
    /// variable `context`, the next ones are `context_1`, `context_2`, …
    #[arg(value_name = "FILE", num_args = 0..=MAX_CONTEXTS)]
    pub files: Vec<PathBuf>,
    /// The question to answer.
    #[arg(long)]
    pub task: String,
    /// Models, runs and budget.
    #[command(flatten)]
    pub controller: ControllerArgs,
    /// A file with a JSON Schema, which the answer must satisfy.
    #[arg(long, value_name = "FILE", help_heading = "Runs")]
    pub schema: Option<PathBuf>,
    /// Seconds that one code block may run, without the time spent waiting for models.
    #[arg(long, value_name = "SECONDS", default_value_t = timeout_seconds(), value_parser = seconds, help_heading = "Runs")]
    pub timeout: f64,
    /// Write every step to this file, one JSON object per line.
    #[arg(long, value_name = "OUT.jsonl", help_heading = "Output")]
    pub trajectory: Option<PathBuf>,
    /// The guests that run the code.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The Jupyter kernel, if the backend is jupyter.
    #[command(flatten)]
    pub kernel: KernelChoice,
    /// Print nothing but the answer.
    #[arg(long, help_heading = "Output")]
    pub quiet: bool,
}

/// Runs the command. The exit code is 0 for an answer, 1 without one, 2 for wrong options, 130 after Ctrl-C.
pub async fn main(args: RlmArgs) -> ExitCode {
    let mut stderr = io::stderr();
    let options = match options(&args) {
        Ok(options) => options,
        Err(error) => {
            let _ = writeln!(stderr, "sandglass-host rlm: {error}");
            return ExitCode::from(2);
        }
    };
    let export = match Export::start() {
        Ok(export) => export,
        Err(error) => {
            let _ = writeln!(stderr, "sandglass-host rlm: {error}");
            return ExitCode::from(2);
        }
    };
    let settings = Settings {
        kernels: args.kernel.kernels(),
        ahead: args.controller.runs_ahead(),
        ..args.guest.settings()
    };
    let kind = args.guest.backend;
    let launcher = async move { backend::launcher(kind, &settings).await };
    let stop = Stop::default();
    let interrupts = tokio::spawn(on_interrupt(stop.clone()));
    let Rlm {
        finish,
        usage,
        ahead,
        ahead_calls,
    } = {
        let span = Span::begin("rlm", SpanKind::Internal);
        run_while(options, launcher, &stop).with_context(span.context()).await
    };
    interrupts.abort();
    export.end().await;
    if !args.quiet {
        let cost = if usage.cost > 0.0 {
            format!(", cost {:.4}", usage.cost)
        } else {
            String::new()
        };
        let _ = writeln!(
            stderr,
            "{}: {} calls, {} + {} tokens{cost}",
            name(finish.outcome),
            usage.calls,
            usage.input_tokens,
            usage.output_tokens
        );
        let sum = |count: fn(&Tally) -> f64| ahead.values().map(count).sum::<f64>();
        let used = sum(|tally| f64::from(tally.used));
        if used > 0.0 {
            let (started, saved) = (sum(|tally| f64::from(tally.started)), sum(|tally| tally.time_saved));
            let saved = saved / 1_000.0;
            let _ = writeln!(
                stderr,
                "ran ahead: {used} of {started} pieces of code were used, {saved:.1} s sooner"
            );
        }
        if ahead_calls.begun > 0 {
            let CallsAhead { begun, used, .. } = ahead_calls;
            let _ = writeln!(stderr, "called ahead: {used} of {begun} calls were used");
        }
    }
    if let Some(error) = &finish.error {
        let _ = writeln!(stderr, "sandglass-host rlm: {}", clean(error, 4_000));
    }
    if let Some(answer) = &finish.answer {
        let mut stdout = io::stdout();
        let answer = text(answer);
        // A terminal gets no control characters. A program gets the answer unchanged.
        let answer = if stdout.is_terminal() {
            clean(&answer, usize::MAX)
        } else {
            answer
        };
        if writeln!(stdout, "{answer}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    match finish.outcome {
        RunOutcome::Answered => ExitCode::SUCCESS,
        RunOutcome::Aborted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::FAILURE,
    }
}

/// Ends the runs at the first Ctrl-C, and the process at the second.
async fn on_interrupt(stop: Stop) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    let _ = writeln!(io::stderr(), "\nstopping; Ctrl-C again ends at once");
    stop.end();
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(i32::from(INTERRUPTED));
    }
}

/// The options that the arguments ask for.
fn options(args: &RlmArgs) -> Result<RlmOptions, Error> {
    if args.task.trim().is_empty() {
        return Err(Error::invalid("task", "must be a question or an instruction"));
    }
    if args.files.iter().filter(|file| *file == Path::new(STDIN)).count() > 1 {
        return Err(Error::invalid("file", "only one can be standard input"));
    }
    let contexts: Result<Vec<Value>, Error> = args.files.iter().map(|file| read_context(file)).collect();
    let mut contexts = contexts?.into_iter();
    let context = contexts.next().unwrap_or(Value::None);
    let mut options = args.controller.options(args.task.clone(), context)?;
    options.more_contexts = contexts.collect();
    options.limits.set("timeout", args.timeout * 1_000.0)?;
    if let Some(path) = &args.schema {
        let text = std::fs::read(path).map_err(|error| unreadable("schema", path, &error))?;
        let schema = serde_json::from_slice(&text)
            .map_err(|error| Error::invalid("schema", format!("{} is no JSON: {error}", path.display())))?;
        options.schema = Some(Schema::new(schema)?);
    }
    let trajectory = match &args.trajectory {
        Some(path) => Some(open_trajectory(path)?),
        None => None,
    };
    options.on_event = listener(args.quiet, trajectory);
    Ok(options)
}

fn unreadable(option: &str, path: &Path, error: &io::Error) -> Error {
    Error::invalid(option, format!("{} cannot be read: {error}", path.display()))
}

fn read_context(path: &Path) -> Result<Value, Error> {
    let mut bytes = Vec::new();
    let read = if path == Path::new(STDIN) {
        io::stdin().read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|error| unreadable("file", path, &error))?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => Value::Str(text),
        Err(error) => Value::Bytes(error.into_bytes()),
    })
}

/// Opens the trajectory file. Only its owner can read it, because it holds the task and parts of the data.
fn open_trajectory(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.map_err(|error| Error::invalid("trajectory", format!("{} cannot be written: {error}", path.display())))
}

/// Makes the listener that prints events as they come, and writes them to the trajectory file.
fn listener(quiet: bool, trajectory: Option<File>) -> Arc<dyn Fn(&RlmEvent) + Send + Sync> {
    let stderr = io::stderr();
    let coloured = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let show = (!quiet).then(|| Show::new(stderr, coloured));
    let to = Mutex::new((show, trajectory));
    Arc::new(move |event| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(show) = &mut to.0 {
            show.event(event);
        }
        if event.kind.is_live() {
            return;
        }
        if let Some(file) = &mut to.1 {
            let line = serde_json::to_string(event).unwrap_or_default() + "\n";
            // A full disk costs the trajectory, not the run.
            if let Err(error) = file.write_all(line.as_bytes()) {
                let _ = writeln!(io::stderr(), "sandglass-host rlm: the trajectory ends here: {error}");
                to.1 = None;
            }
        }
    })
}
