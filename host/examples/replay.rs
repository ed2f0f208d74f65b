//! Replays recorded sessions in native guests, in real time, for `npm run bench:speculate -- --dataframes`, which prints the
//! results.
//!
//!     replay PYTHON
//!
//! The guests are in bubblewrap.
//!
//! Reads one [`Order`] per line from standard input, as JSON. Answers each with a line of [`Replayed`], or with `{"error":
//! message}`.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_core::predictions::Tally;
use sandglass_host::backend;
use sandglass_host::{BackendKind, Launcher, Limits, Outcome, Sandbox, Settings};
use sandglass_rlm::writing::{Step, Writing};
use serde::{Deserialize, Serialize};
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Characters of a token. A reply grows by one token at a time; its end counts as one more token.
const TOKEN: usize = 4;
/// One session to replay, and the help for its sandbox.
#[derive(Deserialize)]
struct Order {
    turns: Vec<Turn>,
    way: Way,
    pace: Pace,
}

/// One reply, and the code in it.
#[derive(Deserialize)]
struct Turn {
    reply: String,
    code: String,
    /// Codes of which one comes: this one.
    candidates: Vec<String>,
}

/// The help for a sandbox; see `scripts/bench-speculate.mjs`.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    None,
    Templates,
    Hints,
    Stream,
    Five,
    Oracle,
}

/// The speed of a model.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pace {
    /// Milliseconds until a reply begins.
    think: u64,
    chars_per_second: u32,
}

/// All executions of a session, and the counts of code that ran ahead.
#[derive(Serialize)]
struct Replayed {
    operations: Vec<Operation>,
    ahead: Tally,
}

/// One execution.
#[derive(Serialize)]
struct Operation {
    /// Milliseconds from the end of the code to its result.
    latency: f64,
    /// Milliseconds that the code ran, ahead or when asked for.
    duration: f64,
    outcome: Outcome,
    /// True if the code had run ahead.
    served: bool,
    /// Milliseconds that the code had run before it was asked for.
    saved: f64,
    /// The number of guesses, and true if the code was among them.
    guesses: usize,
    guessed: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let python = args.next().ok_or("no Python")?;
    let settings = Settings {
        python: Some(python.into()),
        ahead: true,
        ..Settings::default()
    };
    let launcher = backend::launcher(BackendKind::Bubblewrap, &settings).await?;
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = match replay(&launcher, order).await {
            Ok(replayed) => serde_json::to_value(replayed)?,
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

async fn replay(launcher: &Arc<dyn Launcher>, Order { turns, way, pace }: Order) -> Result<Replayed, Failure> {
    let limits = Limits {
        timeout_ms: 300_000.0,
        ..Limits::default()
    };
    let sandbox = Sandbox::builder()
        .launcher(Arc::clone(launcher))
        .predictions(way == Way::Templates)
        .limits(limits)
        .without_context()
        .build()
        .await?;
    let operations = run_all(&sandbox, &turns, way, &pace).await;
    let ahead = tally(&sandbox).await;
    sandbox.destroy().await;
    Ok(Replayed {
        operations: operations?,
        ahead: ahead?,
    })
}

async fn run_all(sandbox: &Sandbox, turns: &[Turn], way: Way, pace: &Pace) -> Result<Vec<Operation>, Failure> {
    let mut operations = Vec::new();
    for turn in turns {
        match way {
            Way::Five => sandbox.hint(turn.candidates.iter().map(String::as_str)),
            Way::Oracle => sandbox.hint([turn.code.as_str()]),
            Way::None | Way::Templates | Way::Hints | Way::Stream => {}
        }
        tokio::time::sleep(Duration::from_millis(pace.think)).await;
        write(sandbox, &turn.reply, way, pace).await;
        let guesses = match way {
            Way::Templates => sandbox.predictions().await?,
            _ => Vec::new(),
        };
        let before = tally(sandbox).await?;
        let arrived = Instant::now();
        let run = sandbox.execute(turn.code.as_str()).await?;
        let latency = arrived.elapsed().as_secs_f64() * 1_000.0;
        sandbox.written("", None);
        let new = tally(sandbox).await?.since(&before);
        let served = new.used > 0;
        operations.push(Operation {
            latency,
            duration: run.duration,
            outcome: run.outcome,
            served,
            saved: if served { new.time_saved.min(run.duration) } else { 0.0 },
            guesses: guesses.len(),
            guessed: guesses.iter().any(|guess| guess.code == turn.code),
        });
    }
    Ok(operations)
}

/// Writes a reply token by token as a model would. Tells the sandbox as much of the reply as the way of help allows.
async fn write(sandbox: &Sandbox, reply: &str, way: Way, pace: &Pace) {
    let starts: Vec<_> = reply.char_indices().map(|(at, _)| at).step_by(TOKEN).collect();
    let token = Duration::from_secs(TOKEN as u64) / pace.chars_per_second.max(1);
    let began = Instant::now();
    let mut writing = Writing::default();
    for (number, &start) in (1..).zip(&starts) {
        tokio::time::sleep_until((began + token * number).into()).await;
        let end = starts.get(number as usize).copied().unwrap_or(reply.len());
        for step in writing.hear(&reply[start..end]) {
            match (step, way) {
                (Step::Written(code), Way::Stream) => sandbox.written(&code, None),
                (Step::Hint(code), Way::Hints | Way::Stream) => sandbox.hint([code]),
                (Step::Words(text), Way::Templates) => sandbox.update_conversation(text),
                _ => {}
            }
        }
    }
    tokio::time::sleep(token).await;
}

/// The counts of code that ran ahead, of all sources.
async fn tally(sandbox: &Sandbox) -> Result<Tally, Failure> {
    let mut sum = Tally::default();
    for tally in sandbox.stats().await?.ahead.code.values() {
        sum.add(tally);
    }
    Ok(sum)
}
