//! One competitor of `npm run bench:host`: measures Sandglass as a library, and as a server over HTTP.
//!
//! Reads one order per line from standard input, a JSON object such as `{"what": "execute", "times": 500}`. Answers each order
//! with the line `{"samples": {name: [milliseconds]}}`, or with `{"error": message}`.

#[path = "bench/checkpoints.rs"]
mod checkpoints;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandglass_host::backend::{self, bubblewrap};
use sandglass_host::pool::{Pool, PoolSettings, Source};
use sandglass_host::stateless::{self, Bounds, Request};
use sandglass_host::{
    BackendKind, ExecuteOptions, HostCall, Launcher, Limits, Resources, Sandbox, SandboxBuilder, Settings, Value,
};
use sandglass_jupyter::KernelSettings;
use serde::Deserialize;
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;
/// Samples by name: milliseconds, unless the name says another unit.
type Samples = BTreeMap<String, Vec<f64>>;

const PATIENCE: Duration = Duration::from_secs(120);
/// Spares of the pool.
const SPARES: usize = 20;

#[derive(Deserialize)]
struct Order {
    what: String,
    #[serde(default)]
    times: usize,
    #[serde(default)]
    megabytes: usize,
    /// An order for a server at this address.
    #[serde(default)]
    url: String,
    /// Milliseconds between requests.
    #[serde(default)]
    gap: u64,
}

struct Bench {
    backend: BackendKind,
    settings: Settings,
    preload: Vec<String>,
    warm: Option<Sandbox>,
    pool: Option<Arc<Pool>>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let mut bench = Bench {
        backend: args.next().unwrap_or_else(|| "auto".to_owned()).parse()?,
        settings: Settings {
            allow_subprocess: true,
            kernels: Some(Arc::new(KernelSettings::default())),
            python: args.next().filter(|path| !path.is_empty()).map(PathBuf::from),
            ..Settings::default()
        },
        preload: args
            .next()
            .map(|names| names.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        warm: None,
        pool: None,
    };
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = match bench.run(order).await {
            Ok(samples) => json!({ "samples": samples }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(std::io::stdout(), "{answer}")?;
    }
    if let Some(sandbox) = bench.warm {
        sandbox.destroy().await;
    }
    Ok(())
}

impl Bench {
    async fn run(&mut self, order: Order) -> Result<Samples, Failure> {
        let times = order.times.max(1);
        match order.what.as_str() {
            "session" => self.session(times).await,
            "execute" => self.execute(times).await,
            "hostCall" => self.host_call(times).await,
            "context" => self.context(times, order.megabytes).await,
            "output" => self.output(times).await,
            "overshoot" => self.overshoot(times).await,
            "ahead" => self.ahead(times).await,
            "checkpoints" => checkpoints::measure(&|| self.builder(), times).await,
            "sessions" => self.sessions(times).await,
            "claim" => self.claim(times).await,
            "spare" => self.spare(times).await,
            "burst" => self.burst(times).await,
            "state" => self.state(times).await,
            "http" => http(&order.url, times, Duration::from_millis(order.gap)).await,
            other => Err(format!("unknown order {other}").into()),
        }
    }

    fn builder(&self) -> SandboxBuilder {
        Sandbox::builder()
            .backend(self.backend)
            .settings(self.settings.clone())
            .limits(limits())
    }

    /// The sandbox of this process, which has already run a cell.
    async fn warm(&mut self) -> Result<&Sandbox, Failure> {
        if self.warm.is_none() {
            let sandbox = self
                .builder()
                .host_function("echo", async |call: HostCall| {
                    Ok(call.args.into_iter().next().unwrap_or_default())
                })
                .build()
                .await?;
            sandbox.initialize(Value::None).await?;
            self.warm = Some(sandbox);
        }
        let sandbox = self.warm.as_ref().ok_or("no sandbox")?;
        for _ in 0..20 {
            ok(sandbox, "x = 1 + 1").await?;
        }
        Ok(sandbox)
    }

    /// A pool of spares that a zygote forks, with the default modules preloaded.
    async fn pool(&mut self) -> Result<Arc<Pool>, Failure> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let zygotes = bubblewrap::zygote_launcher(&self.settings, self.preload.clone(), None, PATIENCE).await?;
        let cold = backend::launcher(self.backend, &self.settings).await?;
        let settings = PoolSettings {
            min_spares: SPARES,
            max_spares: SPARES,
            max_wait: PATIENCE,
            ..PoolSettings::default()
        };
        let pool = Arc::new(Pool::new(Source::Zygote(zygotes), cold, settings));
        self.pool = Some(Arc::clone(&pool));
        Ok(pool)
    }

    async fn session(&self, times: usize) -> Result<Samples, Failure> {
        let mut took = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            let sandbox = self.builder().build().await?;
            sandbox.initialize("").await?;
            ok(&sandbox, "1 + 1").await?;
            took.push(ms(began));
            sandbox.destroy().await;
        }
        Ok(one("session", took))
    }

    async fn execute(&mut self, times: usize) -> Result<Samples, Failure> {
        let sandbox = self.warm().await?;
        let mut took = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            ok(sandbox, "x = 1 + 1").await?;
            took.push(ms(began));
        }
        Ok(one("execute", took))
    }

    async fn host_call(&mut self, times: usize) -> Result<Samples, Failure> {
        let sandbox = self.warm().await?;
        ok(sandbox, "import time\ndef measured(count):\n    took = []\n    for _ in range(count):\n        began = time.perf_counter()\n        echo('x')\n        took.append((time.perf_counter() - began) * 1000)\n    return took").await?;
        ok(sandbox, &format!("took = measured({times})")).await?;
        let Some(Value::List(items)) = sandbox.get_variable("took").await? else {
            return Err("there are no times".into());
        };
        let took = items.iter().filter_map(|item| match item {
            Value::Float(ms) => Some(*ms),
            _ => None,
        });
        Ok(one("hostCall", took.collect()))
    }

    async fn context(&mut self, times: usize, megabytes: usize) -> Result<Samples, Failure> {
        let sandbox = self.warm().await?;
        let context = "0123456789abcde\n".repeat(megabytes << 16);
        let mut took = Vec::new();
        for _ in 0..times {
            let context = context.clone();
            let began = Instant::now();
            sandbox.initialize(context).await?;
            ok(sandbox, "len(context)").await?;
            took.push(ms(began));
        }
        Ok(one("context", took))
    }

    async fn output(&mut self, times: usize) -> Result<Samples, Failure> {
        let sandbox = self.warm().await?;
        let mut samples = Samples::new();
        for (name, code) in [
            ("100 000 lines", "for _ in range(100_000): print('x' * 99)"),
            ("at once", "print('x' * 10_000_000)"),
        ] {
            for _ in 0..times {
                let began = Instant::now();
                ok(sandbox, code).await?;
                samples.entry(name.to_owned()).or_default().push(ms(began));
            }
        }
        Ok(samples)
    }

    /// Measures the milliseconds that a cell which ignores signals runs beyond its timeout and grace period.
    async fn overshoot(&mut self, times: usize) -> Result<Samples, Failure> {
        let sandbox = self.warm().await?;
        let mut took = Vec::new();
        for _ in 0..times {
            let options = ExecuteOptions {
                timeout_ms: Some(200.0),
                ..ExecuteOptions::default()
            };
            let run = sandbox.execute_with("sum(range(10**12))", options).await?;
            took.push((run.duration - 200.0 - limits().grace_period_ms).max(0.0));
        }
        Ok(one("overshoot", took))
    }

    /// Measures four cells that compute: one that has run ahead in a copy, one without a hint, one in a sandbox that cannot run
    /// ahead, and one that is asked for while other code runs ahead.
    async fn ahead(&mut self, times: usize) -> Result<Samples, Failure> {
        let sandbox = self.builder().ahead(true).without_context().build().await?;
        let never = self.builder().without_context().build().await?;
        let (mut hits, mut runs, mut plain, mut beside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for sandbox in [&sandbox, &never] {
            sandbox.execute("x = 0").await?;
        }
        for round in 0..times {
            let code = format!("for x in range(700_000 + {round}): pass\nx");
            let known = finished(&sandbox).await?;
            sandbox.hint([code.clone()]);
            while finished(&sandbox).await? == known {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for (sandbox, took) in [(&sandbox, &mut hits), (&sandbox, &mut runs), (&never, &mut plain)] {
                let begun = Instant::now();
                let run = sandbox.execute(code.as_str()).await?;
                took.push(begun.elapsed().as_secs_f64() * 1_000.0);
                if run.result != Some((700_000 + round - 1).to_string()) {
                    return Err(format!("a wrong result: {:?}", run.run).into());
                }
            }
            sandbox.hint(["while True: pass"]);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let begun = Instant::now();
            sandbox.execute(code.as_str()).await?;
            beside.push(begun.elapsed().as_secs_f64() * 1_000.0);
        }
        let named = [("hit", hits), ("run", runs), ("never", plain), ("miss", beside)];
        Ok(named.into_iter().map(|(name, took)| (name.to_owned(), took)).collect())
    }

    /// Starts `times` sandboxes at once. Measures the time to each first result, and each guest's memory at rest.
    async fn sessions(&self, times: usize) -> Result<Samples, Failure> {
        let launcher = backend::launcher(self.backend, &self.settings).await?;
        at_once(&launcher, times).await
    }

    async fn claim(&mut self, times: usize) -> Result<Samples, Failure> {
        let pool = self.pool().await?;
        let launcher: Arc<dyn Launcher> = pool.clone();
        let mut took = Vec::new();
        for _ in 0..times {
            pool.warm(PATIENCE).await?;
            let (sandbox, ms) = first_result(&launcher).await?;
            took.push(ms);
            sandbox.destroy().await;
        }
        Ok(one("claim", took))
    }

    /// Measures a fork with preloaded modules, from the request to its first answer, and the same imports in a guest without a
    /// zygote.
    async fn spare(&self, times: usize) -> Result<Samples, Failure> {
        let resources = Resources::default();
        let zygotes = bubblewrap::zygote_launcher(&self.settings, self.preload.clone(), None, PATIENCE).await?;
        let zygote = zygotes.launch().await?;
        let settings = Settings {
            preload: self.preload.clone(),
            ..self.settings.clone()
        };
        let cold = backend::launcher(self.backend, &settings).await?;
        let mut samples = Samples::new();
        for _ in 0..times {
            let began = Instant::now();
            let guest = zygote.fork(&resources, None, false).await?;
            samples.entry("spare".to_owned()).or_default().push(ms(began));
            drop(guest);
            let began = Instant::now();
            let sandbox = Sandbox::builder()
                .launcher(Arc::clone(&cold))
                .without_context()
                .build()
                .await?;
            sandbox.start().await?;
            samples.entry("cold import".to_owned()).or_default().push(ms(began));
            sandbox.destroy().await;
        }
        Ok(samples)
    }

    async fn burst(&mut self, times: usize) -> Result<Samples, Failure> {
        let pool = self.pool().await?;
        pool.warm(PATIENCE).await?;
        let launcher: Arc<dyn Launcher> = pool.clone();
        at_once(&launcher, times).await
    }

    /// Measures a stateless run without state, and one that takes 1 MB of state in and gives it back.
    async fn state(&mut self, times: usize) -> Result<Samples, Failure> {
        let pool = self.pool().await?;
        let bounds = Bounds {
            limits: limits(),
            max_state_bytes: 50 << 20,
            max_file_bytes: 1 << 20,
            afterwards: Duration::from_secs(20),
        };
        let run = async |code: &str, state: Option<String>, capture_state: bool| -> Result<_, Failure> {
            pool.warm(PATIENCE).await?;
            let launcher: Arc<dyn Launcher> = pool.clone();
            let request = Request {
                code: code.to_owned(),
                state,
                capture_state,
                ..Request::default()
            };
            let began = Instant::now();
            let (response, _) = stateless::run(launcher, &bounds, request).await?;
            let took = ms(began);
            match (response.error, response.exit_code) {
                (None, 0) => Ok((response.state, took)),
                (error, code) => Err(format!("exit code {code}: {}", error.unwrap_or_default()).into()),
            }
        };
        // Half of the state is random bytes, which LZ4 cannot shrink.
        let make = "import os\ndata = os.urandom(500_000)\nlines = ['line %d of many' % i for i in range(30_000)]";
        let (state, _) = run(make, None, true).await?;
        let mut samples = Samples::new();
        for _ in 0..times {
            let (_, plain) = run("x = 1 + 1", None, false).await?;
            let (_, with) = run("x = len(data)", state.clone(), true).await?;
            samples.entry("without".to_owned()).or_default().push(plain);
            samples.entry("1 MB in and out".to_owned()).or_default().push(with);
        }
        Ok(samples)
    }
}

/// Measures a server: a cell of a session, and a stateless run.
async fn http(url: &str, times: usize, gap: Duration) -> Result<Samples, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let post = async |path: &str, body: serde_json::Value| -> Result<serde_json::Value, Failure> {
        let response = client.post(format!("{url}{path}")).json(&body).send().await?;
        Ok(response.error_for_status()?.json().await?)
    };
    let session = post("/v1/sessions", json!({ "context": "" })).await?;
    let id = session["id"].as_str().ok_or("the session has no id")?;
    let path = format!("/v1/sessions/{id}/execute");
    let mut samples = Samples::new();
    for _ in 0..times {
        for (name, path) in [("session", path.as_str()), ("stateless", "/execute")] {
            tokio::time::sleep(gap).await;
            let began = Instant::now();
            let run = post(path, json!({ "code": "x = 1 + 1" })).await?;
            samples.entry(name.to_owned()).or_default().push(ms(began));
            if run["error"] != serde_json::Value::Null {
                return Err(run["error"].to_string().into());
            }
        }
    }
    client.delete(format!("{url}/v1/sessions/{id}")).send().await?;
    Ok(samples)
}

/// Starts sandboxes at once. Measures the time to each first result, and each guest's memory at rest.
async fn at_once(launcher: &Arc<dyn Launcher>, times: usize) -> Result<Samples, Failure> {
    let started = join_all((0..times).map(|_| first_result(launcher))).await;
    let started = started.into_iter().collect::<Result<Vec<_>, _>>()?;
    let samples = with_memory(started.iter().map(|(_, took)| *took).collect());
    for (sandbox, _) in started {
        sandbox.destroy().await;
    }
    Ok(samples)
}

async fn first_result(launcher: &Arc<dyn Launcher>) -> Result<(Sandbox, f64), Failure> {
    let began = Instant::now();
    let sandbox = Sandbox::builder()
        .launcher(Arc::clone(launcher))
        .limits(limits())
        .without_context()
        .build()
        .await?;
    ok(&sandbox, "1 + 1").await?;
    Ok((sandbox, ms(began)))
}

async fn ok(sandbox: &Sandbox, code: &str) -> Result<(), Failure> {
    let run = sandbox.execute(code).await?;
    match &run.error {
        None => Ok(()),
        Some(error) => Err(format!("{code}: {error:?}").into()),
    }
}

fn limits() -> Limits {
    Limits {
        grace_period_ms: 500.0,
        boot_timeout_ms: 120_000.0,
        ..Limits::default()
    }
}

/// Samples of times, and of the guests' memory in megabytes: private memory, and private memory with a share of the common
/// pages.
fn with_memory(times: Vec<f64>) -> Samples {
    let mut samples = one("first result", times);
    for (private, proportional) in guests() {
        samples.entry("private MB".to_owned()).or_default().push(private);
        samples
            .entry("proportional MB".to_owned())
            .or_default()
            .push(proportional);
    }
    samples
}

/// Memory of each guest's Python below this process, in megabytes.
fn guests() -> Vec<(f64, f64)> {
    let mut parents = BTreeMap::new();
    let mut pythons = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        parents.insert(
            pid,
            rest.split(' ')
                .nth(1)
                .and_then(|parent| parent.parse::<u32>().ok())
                .unwrap_or(0),
        );
        let line = read("cmdline");
        if line.contains("sandglass")
            && line
                .split('\0')
                .next()
                .is_some_and(|program| program.contains("python"))
        {
            let rollup = read("smaps_rollup");
            let kilobytes = |name: &str| {
                let line = rollup
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .unwrap_or_default();
                line.split_whitespace()
                    .next()
                    .and_then(|number| number.parse::<f64>().ok())
                    .unwrap_or(0.0)
            };
            let private = kilobytes("Private_Clean:") + kilobytes("Private_Dirty:");
            pythons.push((pid, private / 1000.0, kilobytes("Pss:") / 1000.0));
        }
    }
    let ours = std::process::id();
    let below = |pid: u32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).any(|pid| pid == ours);
    pythons
        .into_iter()
        .filter(|(pid, ..)| below(*pid))
        .map(|(_, private, proportional)| (private, proportional))
        .collect()
}

fn one(name: &str, times: Vec<f64>) -> Samples {
    Samples::from([(name.to_owned(), times)])
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1_000.0
}

/// The number of hints whose code has run to its end.
async fn finished(sandbox: &Sandbox) -> Result<u32, Failure> {
    let stats = sandbox.stats().await?;
    Ok(stats.ahead.code.values().map(|tally| tally.finished).sum())
}
