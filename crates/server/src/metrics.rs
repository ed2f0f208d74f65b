//! The server's counters, in Prometheus' text format.
//!
//! Decisions: `docs/internals/server.md`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sandglass_core::stats::Stats;
use tokio::sync::watch;

/// Upper bounds of the buckets for durations, in seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0,
];

/// All counters of the server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Open connections.
    pub connections: Gauge,
    /// Open WebSockets.
    pub channels: Gauge,
    /// Created sessions.
    pub sessions_created: Counter,
    /// Expired sessions.
    pub sessions_expired: Counter,
    guests_lost: Counter,
    requests: Family<Request, Counter>,
    refusals: Family<Label, Counter>,
    executions: Durations,
    llm_calls: Family<Label, Counter>,
    suspensions: Family<Label, Counter>,
    forwards: Family<Label, Counter>,
    placements: Family<Label, Counter>,
    wakes: Durations,
    ahead: Mutex<Stats>,
}

/// A label's name and value.
type Label = [(&'static str, String); 1];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: String,
    method: &'static str,
    status: u16,
}

#[derive(Debug)]
struct Durations(Family<Label, Histogram>);

impl Default for Durations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

/// A current number. [`Gauge::up`] adds one until its guard is dropped.
#[derive(Debug, Default, Clone)]
pub struct Gauge(Arc<watch::Sender<u64>>);

/// The guard of one unit in a gauge.
#[derive(Debug)]
#[must_use = "counts only while it lives"]
pub struct Up(Gauge);

impl Gauge {
    /// Adds one.
    pub fn up(&self) -> Up {
        self.0.send_modify(|count| *count += 1);
        Up(self.clone())
    }

    /// The current number.
    pub fn get(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until the number is 0.
    pub async fn none(&self) {
        // The wait cannot fail, because `self` is the sender of this channel.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl Metrics {
    /// Counts a request that was answered, or left by its client (status 499). `route` is the route's pattern, never the path.
    pub fn request(&self, route: &str, method: &'static str, status: u16) {
        let route = route.to_owned();
        self.requests.get_or_create(&Request { route, method, status }).inc();
    }

    /// Counts a refused request by its error code.
    pub fn refusal(&self, code: &str) {
        self.refusals.get_or_create(&[("code", code.to_owned())]).inc();
    }

    /// Counts an ended execution.
    pub fn execution(&self, outcome: &str, took: Duration) {
        let outcome = [("outcome", outcome.to_owned())];
        self.executions.0.get_or_create(&outcome).observe(took.as_secs_f64());
    }

    /// Counts an attempt to suspend a session: `ok`, or what made it vain (`state`, `store`).
    pub fn suspension(&self, result: &str) {
        self.suspensions.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Counts an attempt to forward a request: `answered`, or the way in which it failed (`refused`, `unreachable`, `silent`).
    pub fn forward(&self, result: &str) {
        self.forwards.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Counts new work that goes to another server, by the reason: `draining`, `full` or `busy`.
    pub fn place(&self, reason: &str) {
        self.placements.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// Counts an attempt to wake a session: `ok`, or the code of the error.
    pub fn wake(&self, result: &str, took: Duration) {
        let result = [("result", result.to_owned())];
        self.wakes.0.get_or_create(&result).observe(took.as_secs_f64());
    }

    /// Counts a guest that was lost while its session lived.
    pub fn lost_guest(&self) {
        self.guests_lost.inc();
    }

    /// Counts a call of the model.
    pub fn llm_call(&self, result: &str) {
        self.llm_calls.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Adds a session's new executions and code that ran ahead.
    pub fn ran_ahead(&self, new: &Stats) {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).add(new);
    }

    /// The metrics text about code that ran ahead. `under_way` is the number of shadows that still run.
    pub fn ahead_text(&self, under_way: u64) -> String {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.metrics_with(under_way)
    }

    /// Registers all metrics except those about code that ran ahead.
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, gauge) in [
            ("connections", "Open TCP connections", &self.connections),
            ("channels", "Open WebSocket channels", &self.channels),
        ] {
            registry.register(name, help, ConstGauge::new(gauge.get()));
        }
        for (name, help, counter) in [
            ("sessions_created", "Sessions created", &self.sessions_created),
            ("sessions_expired", "Sessions that expired", &self.sessions_expired),
            (
                "guests_lost",
                "Guests lost while their session lived",
                &self.guests_lost,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        let help = "Requests answered; 499: given up by the client";
        registry.register("requests", help, self.requests.clone());
        for (name, help, counts) in [
            ("refusals", "Requests refused, by error code", &self.refusals),
            ("llm_calls", "Calls of the model for guests", &self.llm_calls),
            ("suspensions", "Attempts to suspend a session", &self.suspensions),
            (
                "forwards",
                "Attempts to forward a request to another server",
                &self.forwards,
            ),
            (
                "placements",
                "New sessions and runs sent to another server, by reason",
                &self.placements,
            ),
        ] {
            registry.register(name, help, counts.clone());
        }
        let help = "Wall time to wake suspended sessions, by result";
        registry.register("wake_seconds", help, self.wakes.0.clone());
        let help = "Wall time of executions, by outcome";
        registry.register("execution_seconds", help, self.executions.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_text;

    use super::*;

    #[test]
    fn counts_come_out_in_the_text_format() {
        let metrics = Metrics::default();
        metrics.request("/v1/sessions/{id}", "DELETE", 204);
        metrics.request("/v1/sessions/{id}", "DELETE", 204);
        metrics.refusal("unauthorized");
        metrics.execution("ok", Duration::from_millis(3));
        metrics.execution("ok", Duration::from_secs(500));
        let open = metrics.connections.up();
        let (mut registry, mut text) = (Registry::with_prefix("sandglass"), String::new());
        metrics.register(&mut registry);
        prometheus_text::encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE sandglass_requests_total counter",
            "sandglass_requests_total{route=\"/v1/sessions/{id}\",method=\"DELETE\",status=\"204\"} 2",
            "sandglass_refusals_total{code=\"unauthorized\"} 1",
            "sandglass_execution_seconds_bucket{outcome=\"ok\",le=\"0.0025\"} 0",
            "sandglass_execution_seconds_bucket{outcome=\"ok\",le=\"0.005\"} 1",
            "sandglass_execution_seconds_bucket{outcome=\"ok\",le=\"120\"} 1",
            "sandglass_execution_seconds_bucket{outcome=\"ok\",le=\"+Inf\"} 2",
            "sandglass_execution_seconds_sum{outcome=\"ok\"} 500.003",
            "sandglass_execution_seconds_count{outcome=\"ok\"} 2",
            "sandglass_connections 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n\n{text}");
        }
        drop(open);
        assert_eq!(metrics.connections.get(), 0);
    }
}
