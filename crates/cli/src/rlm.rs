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
use sandglass_rlm::answer::text;
use sandglass_rlm::event::{RlmEvent, RunOutcome};
use sandglass_rlm::limits::{
    LEAST_PROMPT_TOKENS, MAX_CALLS, MAX_CONTEXTS, MAX_DEPTH, MAX_ITERATIONS, MAX_PROMPT_TOKENS,
};
use sandglass_rlm::schema::Schema;

use crate::show::{Show, clean, name};
use sandglass_host::Settings;
use sandglass_host::args::{GuestArgs, seconds, timeout_seconds};
use sandglass_host::backend;
use sandglass_host::rlm::{Endpoint, Rlm, RlmOptions, Stop, run};
use sandglass_host::value::Value;
use sandglass_jupyter::KernelChoice;

/// The file name that stands for standard input.
const STDIN: &str = "-";
/// The exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Lets a model answer a question about files by writing Python, which runs in sandboxes.
///
/// The answer goes to standard output, the progress to standard error. Keys come from the environment.
#[derive(Debug, Clone, Args)]
pub struct RlmArgs {
    /// The data: files, or `-` for standard input. UTF-8 text becomes a str in Python, other data bytes. The first file is the
    /// variable `context`, the next ones are `context_1`, `context_2`, …
    #[arg(value_name = "FILE", num_args = 0..=MAX_CONTEXTS)]
    pub files: Vec<PathBuf>,
    /// The question to answer.
    #[arg(long)]
    pub task: String,
    /// The model that writes the code.
    #[arg(long, help_heading = "Models")]
    pub model: String,
    /// The model's endpoint, which speaks OpenAI's `/chat/completions`.
    #[arg(
        long,
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1",
        help_heading = "Models"
    )]
    pub url: String,
    /// The environment variable that holds the endpoint's key. The key itself is no option, because other users can see a
    /// program's options.
    #[arg(long, value_name = "NAME", default_value = "OPENAI_API_KEY", help_heading = "Models")]
    pub key_env: String,
    /// The model that answers `llm_query` and writes the code of child runs; by default the model of `--model`.
    #[arg(long, value_name = "MODEL", help_heading = "Models")]
    pub sub_model: Option<String>,
    /// The endpoint of the sub-model; by default that of `--url`.
    #[arg(long, value_name = "URL", help_heading = "Models")]
    pub sub_url: Option<String>,
    /// The environment variable that holds the key of `--sub-url`. Each key goes to its own endpoint only.
    #[arg(long, value_name = "NAME", requires = "sub_url", help_heading = "Models")]
    pub sub_key_env: Option<String>,
    /// Levels of child runs. Below the last level, `rlm_query` asks the sub-model instead.
    #[arg(long, value_name = "LEVELS", default_value_t = MAX_DEPTH, value_parser = clap::value_parser!(u32).range(0..=16), help_heading = "Runs")]
    pub max_depth: u32,
    /// Replies of the model in each run.
    #[arg(long, value_name = "REPLIES", default_value_t = MAX_ITERATIONS, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Runs")]
    pub max_iterations: u32,
    /// Estimated tokens of one prompt. Older messages are shortened to fit.
    #[arg(long, value_name = "TOKENS", default_value_t = MAX_PROMPT_TOKENS, value_parser = clap::value_parser!(u32).range(i64::from(LEAST_PROMPT_TOKENS)..=100_000_000), help_heading = "Runs")]
    pub max_prompt_tokens: u32,
    /// Calls of models, in all runs together.
    #[arg(long, value_name = "CALLS", default_value_t = MAX_CALLS, help_heading = "Budget")]
    pub budget_calls: f64,
    /// Tokens of prompts and replies, in all runs together; no limit by default.
    #[arg(long, value_name = "TOKENS", help_heading = "Budget")]
    pub budget_tokens: Option<f64>,
    /// Cost of all runs together; no limit by default. Needs `--price`.
    #[arg(long, value_name = "COST", help_heading = "Budget")]
    pub budget_cost: Option<f64>,
    /// Seconds of all runs together; no limit by default.
    #[arg(long, value_name = "SECONDS", help_heading = "Budget")]
    pub budget_time: Option<f64>,
    /// The price of a million tokens, of prompts and of replies, such as `2.5,10`.
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = parse_price, help_heading = "Budget")]
    pub price: Option<[f64; 2]>,
    /// The prices of the sub-model. If `--sub-model` is not given, `--price` counts.
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = parse_price, help_heading = "Budget")]
    pub sub_price: Option<[f64; 2]>,
    /// A file with a JSON Schema, which the answer must satisfy.
    #[arg(long, value_name = "FILE", help_heading = "Runs")]
    pub schema: Option<PathBuf>,
    /// Let the sub-model draft each reply while the model thinks. The code of the draft runs ahead, and its tokens count in the
    /// budget.
    #[arg(long, help_heading = "Models")]
    pub draft: bool,
    /// Ask for whole replies, if the endpoint cannot stream. Streaming lets bubblewrap and subprocess run the code ahead while
    /// the reply still comes. Such a result is used only if the finished reply has the same code.
    #[arg(long, help_heading = "Models")]
    pub no_stream: bool,
    /// Text that is added to the system prompt.
    #[arg(long, value_name = "TEXT", help_heading = "Runs")]
    pub instructions: Option<String>,
    /// Packages that the guest's Python has, with commas between them. The model is told about them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", help_heading = "Runs")]
    pub packages: Vec<String>,
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

fn parse_price(text: &str) -> Result<[f64; 2], String> {
    let prices: Option<Vec<f64>> = text.split(',').map(|price| price.trim().parse().ok()).collect();
    match prices.as_deref() {
        Some(&[input, output]) if [input, output].iter().all(|price| (0.0..=1e12).contains(price)) => {
            Ok([input / 1e6, output / 1e6])
        }
        _ => Err("must be two numbers of 0 or more, such as 2.5,10".to_owned()),
    }
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
    let settings = Settings {
        kernels: args.kernel.kernels(),
        ahead: !args.no_stream || args.draft,
        ..args.guest.settings()
    };
    let launcher = match backend::launcher(args.guest.backend, &settings).await {
        Ok(launcher) => launcher,
        Err(error) => {
            let _ = writeln!(stderr, "sandglass-host rlm: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stop = Stop::default();
    let interrupts = tokio::spawn(on_interrupt(stop.clone()));
    let Rlm { finish, usage, ahead } = run(options, launcher, &stop).await;
    interrupts.abort();
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
    let mut model = Endpoint::new(&args.url, key(&args.key_env), &args.model)?;
    model.price = args.price;
    let sub_name = args.sub_model.as_ref().unwrap_or(&args.model);
    let mut sub_model = match &args.sub_url {
        // A key is sent to its own endpoint only.
        Some(url) => Endpoint::new(url, args.sub_key_env.as_deref().and_then(key), sub_name)?,
        None => Endpoint::new(&args.url, key(&args.key_env), sub_name)?,
    };
    sub_model.price = args.sub_price.or(args.price.filter(|_| args.sub_model.is_none()));
    (model.stream, sub_model.stream) = (!args.no_stream, !args.no_stream);
    let mut options = RlmOptions::new(args.task.clone(), context, model)?;
    options.more_contexts = contexts.collect();
    if args.draft && args.sub_model.is_none() && args.sub_url.is_none() {
        let problem = "needs --sub-model or --sub-url: a draft by the same model takes as long as the reply";
        return Err(Error::invalid("draft", problem));
    }
    options.draft = args.draft.then(|| sub_model.clone());
    options.sub_model = sub_model;
    options.max_depth = args.max_depth;
    options.max_iterations = args.max_iterations;
    options.max_prompt_tokens = args.max_prompt_tokens;
    options.instructions.clone_from(&args.instructions);
    options.packages.clone_from(&args.packages);
    options.budget.set("maxCalls", args.budget_calls)?;
    for (name, amount) in [
        ("maxTokens", args.budget_tokens),
        ("maxCost", args.budget_cost),
        ("maxTime", args.budget_time.map(|seconds| seconds * 1_000.0)),
    ] {
        if let Some(amount) = amount {
            options.budget.set(name, amount)?;
        }
    }
    if args.budget_cost.is_some() && args.price.is_none() {
        return Err(Error::invalid(
            "budget-cost",
            "needs --price: otherwise nobody knows the cost",
        ));
    }
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

fn key(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|key| !key.is_empty())
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
