//! For whoever operates the server: whether it lives, what it has, what it has counted.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandglass_core::prometheus::{head, line};
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::App;
use super::bodies;
use super::errors::ApiError;
use sandglass_host::Sandbox;
use sandglass_host::pool::{PoolStats, WhenEmpty};

/// How long the result of a trial is told again.
const FRESH: Duration = Duration::from_secs(30);

/// Trials of the backend. One at a time; a guest costs something.
#[derive(Debug, Default)]
pub struct Checks(Mutex<Option<(Instant, Json)>>);

/// `GET /health`: 200 as long as the server takes requests.
pub async fn health(State(app): State<App>) -> Result<Response, ApiError> {
    let (status, word) = if *app.ending.borrow() {
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

/// `GET /health/detailed`: 503 when a trial guest does not do its work, or nobody gets one. Where the pool makes none, and guests are
/// started cold instead, that is told with 200.
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
        "sessions": { "now": app.quotas.sessions(), "most": args.max_sessions },
        "executions": app.quotas.executions(),
        "channels": app.metrics.channels.get(),
        "connections": { "now": app.metrics.connections.get(), "most": args.max_connections },
        "model": app.llm.is_some(),
    });
    bodies::json(status, 0, detail).await
}

/// Starts a guest and runs something in it.
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

async fn run(app: &App) -> Result<Json, String> {
    let sandbox = Sandbox::builder()
        .backend(app.args.guest.backend)
        .settings(app.args.guest_settings())
        .build();
    let sandbox = sandbox.await.map_err(|error| error.to_string())?;
    let done = async {
        sandbox.initialize(sandglass_host::Value::None).await?;
        sandbox.execute("6 * 7").await
    };
    let done = done.await.map_err(|error| error.to_string());
    let capabilities = sandbox.capabilities();
    sandbox.destroy().await;
    let done = done?;
    match (done.result.as_deref(), &done.error) {
        (Some("42"), _) => Ok(json!({ "backend": capabilities.backend, "python": capabilities.python })),
        (_, Some(error)) => Err(format!("6 * 7 could not be computed: {error}")),
        (other, None) => Err(format!("6 * 7 came out as {other:?}")),
    }
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.text(&[
        ("sandglass_sessions", "Sessions that there are.", app.quotas.sessions()),
        (
            "sandglass_executions",
            "Executions that run or wait.",
            app.quotas.executions(),
        ),
    ]);
    let text = text + &app.metrics.ahead_text(app.sessions.under_way());
    let text = text + &app.warm.stats().map(|stats| pool_text(&stats)).unwrap_or_default();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// The pool's part of the metrics.
fn pool_text(stats: &PoolStats) -> String {
    let mut text = String::new();
    let gauges = [
        ("sandglass_pool_spares", "Guests that wait.", stats.spares as f64),
        ("sandglass_pool_level", "Guests that are to wait.", stats.level as f64),
        (
            "sandglass_pool_warmup_seconds",
            "What the last zygote took to be ready.",
            stats.warmup_ms / 1_000.0,
        ),
        (
            "sandglass_pool_make_seconds",
            "What the last guest took to make.",
            stats.make_ms / 1_000.0,
        ),
    ];
    for (name, help, value) in gauges {
        head(&mut text, name, "gauge", help);
        line(&mut text, name, "", &value);
    }
    let counters = [
        ("sandglass_pool_made_total", "Guests that were made.", stats.made),
        (
            "sandglass_pool_empty_total",
            "How often somebody found no guest.",
            stats.empty,
        ),
        (
            "sandglass_pool_refused_total",
            "How often somebody was refused because of that.",
            stats.refused,
        ),
        (
            "sandglass_pool_cold_total",
            "Guests that were started cold because of that.",
            stats.cold,
        ),
        (
            "sandglass_pool_died_total",
            "Guests that died while they waited.",
            stats.died,
        ),
        (
            "sandglass_pool_failed_total",
            "Guests that could not be made.",
            stats.failed,
        ),
        ("sandglass_zygotes_total", "Zygotes that were started.", stats.zygotes),
    ];
    for (name, help, value) in counters {
        head(&mut text, name, "counter", help);
        line(&mut text, name, "", &value);
    }
    let name = "sandglass_pool_acquire_seconds";
    head(&mut text, name, "histogram", "How long it took to get a guest.");
    for (bound, count) in &stats.acquire_seconds {
        line(&mut text, &format!("{name}_bucket"), &format!("le=\"{bound}\""), count);
    }
    line(&mut text, &format!("{name}_bucket"), "le=\"+Inf\"", &stats.acquired);
    line(&mut text, &format!("{name}_sum"), "", &stats.acquire_seconds_sum);
    line(&mut text, &format!("{name}_count"), "", &stats.acquired);
    text
}
