//! The commands `run` and `doctor`, and the options that commands share.

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rlm::clean;
use sandglass_core::session::ToResult;

use crate::sandbox::ExecuteOptions;
use crate::{
    BackendKind, Error, Execution, KernelSettings, Limits, Outcome, Sandbox, Settings, Stream, Users, Value, doctor,
};

/// The status of a program whose code failed.
const FAILED: u8 = 1;
/// The status of a program that ran out of time, as `timeout` has it.
const TIMED_OUT: u8 = 124;
/// The status of a program that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// Where guests run, the same for all commands.
#[derive(Debug, Clone, clap::Args)]
pub struct GuestArgs {
    /// Where the code runs: auto, bubblewrap, docker; or subprocess or jupyter, which isolate nothing, and which auto never takes.
    #[arg(long, env = "SANDGLASS_BACKEND", default_value = "auto", value_name = "NAME")]
    pub backend: BackendKind,
    /// The Python of bubblewrap and subprocess guests, by default /usr/bin/python3, else the first on PATH; with jupyter, one whose
    /// kernelspecs come first.
    #[arg(long, env = "SANDGLASS_PYTHON", value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
    /// The image of Docker guests.
    #[arg(long, env = "REPL_DOCKER_IMAGE", value_name = "NAME")]
    pub image: Option<String>,
    /// The runtime of Docker guests, such as runsc.
    #[arg(long, env = "SANDGLASS_DOCKER_RUNTIME", value_name = "NAME")]
    pub runtime: Option<String>,
    /// User ids that guests get, one each, where this program runs as root. Nothing else on the machine may use them.
    #[arg(long, env = "SANDGLASS_GUEST_USERS", default_value_t, value_name = "FIRST:COUNT")]
    pub guest_users: Users,
}

impl GuestArgs {
    /// What a backend plans from.
    pub fn settings(&self) -> Settings {
        Settings {
            python: self.python.clone(),
            image: self.image.clone(),
            runtime: self.runtime.clone(),
            guest_users: self.guest_users,
            ..Settings::default()
        }
    }
}

/// Which kernel a guest of the backend jupyter lodges in.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KernelChoice {
    /// With jupyter, the kernelspec that is started, by its name or its folder; by default python3.
    #[arg(long, env = "SANDGLASS_KERNEL", value_name = "NAME")]
    pub kernel: Option<String>,
    /// With jupyter, the connection file of a kernel that runs and is used in the place of one that is started.
    #[arg(
        long,
        env = "SANDGLASS_CONNECTION_FILE",
        value_name = "FILE",
        conflicts_with = "kernel"
    )]
    pub connection_file: Option<PathBuf>,
}

impl KernelChoice {
    /// The same as settings of a backend.
    pub fn settings(&self) -> KernelSettings {
        KernelSettings {
            name: self.kernel.clone(),
            connection_file: self.connection_file.clone(),
            ..KernelSettings::default()
        }
    }
}

/// What describes a sandbox.
#[derive(Debug, Clone, clap::Args)]
pub struct SandboxArgs {
    /// Where it runs.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// In which kernel.
    #[command(flatten)]
    pub kernel: KernelChoice,
    /// The folder that the code has as /workspace, and works in; without it, an empty one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// How long code may run, in seconds; host calls do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = timeout_seconds(), value_parser = seconds)]
    pub timeout: f64,
    /// The file that the variable `context` holds: what JSON says if it is named *.json, else text.
    #[arg(long, value_name = "FILE")]
    pub context: Option<PathBuf>,
}

/// How long code may run where nobody says.
pub(crate) fn timeout_seconds() -> f64 {
    Limits::default().timeout_ms / 1_000.0
}

/// A time that code may run.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| Limits::default().set("timeout", seconds * 1_000.0).is_ok();
    let seconds = text.parse().ok().filter(fits);
    seconds.ok_or_else(|| "must be a number of seconds, from 0.001 to 2147483".to_owned())
}

impl SandboxArgs {
    /// A sandbox with its context, whose guest has started.
    ///
    /// # Errors
    /// What cannot be read, or why there is no guest.
    pub async fn sandbox(&self) -> Result<Sandbox, String> {
        let context = self.context.as_deref().map(context).transpose()?.unwrap_or_default();
        let mut limits = Limits::default();
        limits.set("timeout", self.timeout * 1_000.0).map_err(told)?;
        let sandbox = Sandbox::builder()
            .backend(self.guest.backend)
            .settings(Settings {
                workspace: self.workspace.clone(),
                kernel: self.kernel.settings(),
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

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: Error) -> String {
    error.to_string()
}

/// The value in a file: what JSON says if it is named so, else text.
pub(crate) fn context(path: &Path) -> Result<Value, String> {
    let text = text_of(path)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        let json = serde_json::from_str(&text).map_err(|error| format!("{} is no JSON: {error}", path.display()))?;
        return Value::from_json(json).map_err(told);
    }
    Ok(Value::Str(text))
}

/// A file's text; `-` is standard input.
fn text_of(path: &Path) -> Result<String, String> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

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

/// The command `run`: what the code prints as it comes, its result, and the status to exit with: 0, 1 when it failed, 124 when
/// it ran out of time, 130 when Ctrl-C ended it.
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

/// Runs code and shows everything of it; Ctrl-C interrupts it.
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
            // A table's HTML: its text is the result.
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
        show(Stream::Stderr, &format!("{}\n", failure(traceback, error)));
    }
    Ok(run)
}

/// A traceback that ends with the error.
pub(crate) fn failure(traceback: &str, error: &str) -> String {
    let (traceback, error) = (traceback.trim_end(), error.trim_end());
    if traceback.ends_with(error) {
        return traceback.to_owned();
    }
    // Of code that was stopped, the traceback tells where it was, and the error why.
    let place = traceback
        .strip_suffix("KeyboardInterrupt")
        .unwrap_or(traceback)
        .trim_end();
    format!("{place}\n{error}").trim_start().to_owned()
}

/// Who reads it may be gone, which is no reason to fail.
fn show(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Stdout => write(io::stdout(), text),
        _ => write(io::stderr(), text),
    };
}

/// A program gets it as it is. A terminal gets nothing that controls it: anybody may have written this.
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

/// The status that tells how code ended.
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
    /// Where guests would run.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// In which kernel.
    #[command(flatten)]
    pub kernel: KernelChoice,
}

/// The command `doctor`: what each backend can do here, or the one that is named; 0 when one works.
///
/// # Errors
/// Never; commands are alike.
pub async fn doctor(args: DoctorArgs) -> Result<u8, String> {
    let settings = Settings {
        kernel: args.kernel.settings(),
        ..args.guest.settings()
    };
    let findings = doctor::examine(args.guest.backend, &settings).await;
    for finding in &findings {
        show(Stream::Stdout, &format!("{finding}\n"));
    }
    Ok(u8::from(findings.iter().all(|finding| finding.usable.is_err())))
}

#[cfg(test)]
mod tests {
    use super::failure;

    #[test]
    fn an_error_is_told_once() {
        let place = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>";
        let told = "KeyboardInterrupt: interrupted; variables are kept";
        assert_eq!(
            failure(&format!("{place}\nKeyboardInterrupt\n"), told),
            format!("{place}\n{told}")
        );
        let late = "TimeoutError: stopped after 1000 ms of guest time; variables are kept";
        assert_eq!(
            failure(&format!("{place}\nKeyboardInterrupt\n"), late),
            format!("{place}\n{late}")
        );
        // What the code made of being stopped stays.
        assert_eq!(
            failure(&format!("{place}\nValueError: no"), late),
            format!("{place}\nValueError: no\n{late}")
        );
        assert_eq!(
            failure(&format!("{place}\nValueError: no\n"), "ValueError: no"),
            format!("{place}\nValueError: no")
        );
        assert_eq!(failure("", "GuestCrashed: it ended"), "GuestCrashed: it ended");
    }
}
