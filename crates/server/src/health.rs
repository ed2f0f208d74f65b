//! Routes for operators: health, a detailed trial, and metrics.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::App;
use super::access::LOCAL;
use super::bodies;
use super::draining;
use super::errors::ApiError;
use super::load;
use super::storage::{Fate, new_id};
use sandglass_host::Sandbox;
use sandglass_host::pool::{PoolStats, WhenEmpty};

/// The age up to which the result of a trial is reused.
const FRESH: Duration = Duration::from_secs(30);

/// Trials of the backend. Only one runs at a time, because a guest takes resources.
#[derive(Debug, Default)]
pub struct Checks(Mutex<Option<(Instant, Json)>>);

/// `GET /health`: 200 while the server takes requests.
pub async fn health(State(app): State<App>) -> Result<Response, ApiError> {
    let (status, word) = if app.ending.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "ending")
    } else {
        (StatusCode::OK, "ok")
    };
    bodies::json(
        status,
        0,
        json!({ "status": word, "version": env!("CARGO_PKG_VERSION") }),
    )
    .await
}

/// `GET /readyz`: 200 while the server takes sessions and is to get requests.
pub async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    let (status, word) = match (app.ending.is_cancelled(), app.draining.is_cancelled()) {
        (false, false) => (StatusCode::OK, "ok"),
        (false, true) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
    };
    let told = json!({ "status": word, "version": env!("CARGO_PKG_VERSION") });
    bodies::json(status, 0, told).await
}

/// `GET /health/detailed`: 503 when a trial guest fails, or when no guest can be had. If the pool makes no guests and the
/// server starts them one by one, the answer says so with 200.
pub async fn detailed(State(app): State<App>) -> Result<Response, ApiError> {
    let args = &app.args;
    let trial = trial(&app).await;
    let pool = app.warm.stats();
    let fails = pool.as_ref().is_some_and(|pool| pool.problem.is_some());
    let is_empty = pool.as_ref().is_some_and(|pool| pool.spares == 0);
    let has_guests = trial["status"] != "failed" && !(fails && is_empty && args.warm.when_empty == WhenEmpty::Refuse);
    let status = if has_guests {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let word = if has_guests && !fails { "ok" } else { "degraded" };
    let detail = json!({
        "status": word,
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": sandglass_core::PROTOCOL_VERSION,
        "uptimeSeconds": app.started.elapsed().as_secs(),
        "backend": { "configured": args.guest.backend, "trial": trial },
        "pool": pool,
        "sessions": { "now": app.quotas.sessions(), "most": args.max_sessions, "suspended": app.sessions.asleep().len() },
        "executions": app.quotas.executions(),
        "channels": app.metrics.channels.get(),
        "connections": { "now": app.metrics.connections.get(), "most": args.max_connections },
        "model": app.llm.is_some(),
    });
    bodies::json(status, 0, detail).await
}

/// Starts a guest and runs a cell in it.
async fn trial(app: &App) -> Json {
    let mut last = app.health.0.lock().await;
    if let Some((at, result)) = &*last
        && at.elapsed() < FRESH
    {
        return result.clone();
    }
    let began = Instant::now();
    let most = Duration::from_secs_f64(app.args.health_timeout_seconds);
    let result = match timeout(most, run(app)).await {
        Ok(Ok(mut found)) => {
            found["status"] = json!("ok");
            found["durationMs"] = json!(began.elapsed().as_secs_f64() * 1_000.0);
            found
        }
        Ok(Err(problem)) => json!({ "status": "failed", "problem": problem }),
        Err(_) => json!({ "status": "failed", "problem": format!("no answer within {} s", most.as_secs_f64()) }),
    };
    *last = Some((Instant::now(), result.clone()));
    result
}

/// Runs a cell in a guest like those of sessions. The guest's folder is removed afterwards.
async fn run(app: &App) -> Result<Json, String> {
    let mut settings = app.args.guest_settings();
    let mut folder = None;
    if let Some(storage) = &app.storage {
        let id = new_id(app.home()).map_err(|error| error.message)?;
        let made = storage.folder(LOCAL, &id, settings.resources.disk_bytes, Fate::Removed);
        let made = folder.insert(made.await.map_err(|error| error.message)?);
        settings.workspace = Some(made.workspace().path().to_owned());
    }
    let sandbox = Sandbox::builder()
        .backend(app.args.guest.backend)
        .settings(settings)
        .build();
    let sandbox = sandbox.await.map_err(|error| error.to_string())?;
    let done = async {
        sandbox.initialize(sandglass_host::Value::None).await?;
        sandbox.execute("6 * 7").await
    };
    let done = done.await.map_err(|error| error.to_string());
    let capabilities = sandbox.capabilities();
    sandbox.destroy().await;
    if let Some(folder) = folder {
        folder.settle().await;
    }
    let done = done?;
    match (done.result.as_deref(), &done.error) {
        (Some("42"), _) => Ok(json!({ "backend": capabilities.backend, "python": capabilities.python })),
        (_, Some(error)) => Err(format!("6 * 7 could not be computed: {error}")),
        (other, None) => Err(format!("6 * 7 came out as {other:?}")),
    }
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let mut registry = Registry::with_prefix("sandglass");
    for (name, help, value) in [
        ("sessions", "Sessions that there are", app.quotas.sessions()),
        ("executions", "Executions that run or wait", app.quotas.executions()),
        (
            "sessions_suspended",
            "Suspended sessions",
            app.sessions.asleep().len() as u64,
        ),
        ("kept_sandboxes", "Kept sandboxes, open or not", app.kept.count() as u64),
        (
            "draining",
            "1 while the server is told to end and answers on",
            u64::from(app.draining.is_cancelled()),
        ),
        (
            "other_servers",
            "Other servers of the same store that take requests, as last seen",
            draining::others(&app).len() as u64,
        ),
        (
            "other_loads",
            "Other servers whose load is known",
            load::known(&app) as u64,
        ),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    if let Some(suspension) = app.suspension.as_ref().filter(|suspension| suspension.is_shared()) {
        let refused = ConstCounter::new(suspension.states().refused_loads());
        let help = "Loads of other servers that were damaged, made up or put back";
        registry.register("loads_refused", help, refused);
        let help = "Part of the memory of this server and its guests that is in use, from 0 to 1";
        registry.register("memory_used_ratio", help, ConstGauge::new(app.loads.memory_used()));
    }
    app.metrics.register(&mut registry);
    if let (Some(stats), Some(acquisitions)) = (app.warm.stats(), app.warm.acquisitions()) {
        let zygotes = ConstCounter::new(stats.zygotes);
        registry.register("zygotes", "Zygotes that were started", zygotes);
        register_pool(registry.sub_registry_with_prefix("pool"), stats, acquisitions);
    }
    let mut text = app.metrics.ahead_text(app.sessions.under_way());
    prometheus_text::encode(&mut text, &registry).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, prometheus_text::CONTENT_TYPE)], text).into_response())
}

/// The pool's part of the metrics.
fn register_pool(registry: &mut Registry, stats: PoolStats, acquisitions: &Histogram) {
    for (name, help, value) in [
        ("spares", "Guests that wait", stats.spares),
        ("level", "Guests that are to wait", stats.level),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    for (name, help, ms) in [
        (
            "warmup_seconds",
            "Seconds that the last zygote took to be ready",
            stats.warmup_ms,
        ),
        (
            "make_seconds",
            "Seconds that the last guest took to make",
            stats.make_ms,
        ),
    ] {
        registry.register(name, help, ConstGauge::new(ms / 1_000.0));
    }
    for (name, help, value) in [
        ("made", "Guests that were made", stats.made),
        ("empty", "Times that no guest waited", stats.empty),
        ("refused", "Sessions and runs refused because of that", stats.refused),
        ("cold", "Guests that were started cold because of that", stats.cold),
        ("died", "Guests that died while they waited", stats.died),
        ("failed", "Guests that could not be made", stats.failed),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    let help = "Seconds that it took to get a guest";
    registry.register("acquire_seconds", help, acquisitions.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_comes_out_in_the_text_format() {
        let stats = PoolStats {
            cold: 2,
            acquired: 4,
            warmup_ms: 250.0,
            ..PoolStats::default()
        };
        let (mut registry, mut text) = (Registry::with_prefix("sandglass_pool"), String::new());
        let acquisitions = Histogram::new([0.000_1, 0.25, 5.0]);
        for seconds in [0.000_05, 0.25, 0.2, 10.0] {
            acquisitions.observe(seconds);
        }
        register_pool(&mut registry, stats, &acquisitions);
        prometheus_text::encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE sandglass_pool_cold_total counter",
            "sandglass_pool_cold_total 2",
            "sandglass_pool_warmup_seconds 0.25",
            "sandglass_pool_acquire_seconds_bucket{le=\"0.0001\"} 1",
            "sandglass_pool_acquire_seconds_bucket{le=\"0.25\"} 3",
            "sandglass_pool_acquire_seconds_bucket{le=\"5\"} 3",
            "sandglass_pool_acquire_seconds_bucket{le=\"+Inf\"} 4",
            "sandglass_pool_acquire_seconds_sum 10.45005",
            "sandglass_pool_acquire_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n\n{text}");
        }
    }
}
