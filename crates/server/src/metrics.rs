//! Counters, in Prometheus' text format.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_core::prometheus::{escaped, head, line};
use sandglass_core::stats::Stats;
use tokio::sync::watch;

/// Upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0,
];

/// All that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections that are open.
    pub connections: Gauge,
    /// WebSockets that are open.
    pub channels: Gauge,
    /// Sessions that were created.
    pub sessions_created: AtomicU64,
    /// Sessions that expired.
    pub sessions_expired: AtomicU64,
    guests_lost: AtomicU64,
    requests: Mutex<BTreeMap<(String, &'static str, u16), u64>>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    executions: Mutex<BTreeMap<String, Histogram>>,
    llm_calls: Mutex<BTreeMap<&'static str, u64>>,
    ahead: Mutex<Stats>,
}

/// What there is now. [`Gauge::up`] counts until its guard is dropped.
#[derive(Debug, Default, Clone)]
pub struct Gauge(Arc<watch::Sender<u64>>);

/// Counts one, as long as it lives.
#[derive(Debug)]
#[must_use = "counts only while it lives"]
pub struct Up(Gauge);

impl Gauge {
    /// One more.
    pub fn up(&self) -> Up {
        self.0.send_modify(|count| *count += 1);
        Up(self.clone())
    }

    /// How many.
    pub fn get(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until there are none.
    pub async fn none(&self) {
        // This one sends: the channel cannot be closed.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

impl Metrics {
    /// A request was answered, or given up by its client (status 499). `route` is a pattern of the router's, never the path itself.
    pub fn request(&self, route: &str, method: &'static str, status: u16) {
        let mut requests = lock(&self.requests);
        *requests.entry((route.to_owned(), method, status)).or_default() += 1;
    }

    /// A request was refused with this code.
    pub fn refusal(&self, code: &'static str) {
        *lock(&self.refusals).entry(code).or_default() += 1;
    }

    /// An execution ended.
    pub fn execution(&self, outcome: &str, took: Duration) {
        let mut executions = lock(&self.executions);
        let histogram = executions.entry(outcome.to_owned()).or_default();
        let seconds = took.as_secs_f64();
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        histogram.count += 1;
        histogram.seconds += seconds;
    }

    /// A guest was lost while its session lived.
    pub fn lost_guest(&self) {
        self.guests_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// A call of the model ended.
    pub fn llm_call(&self, result: &'static str) {
        *lock(&self.llm_calls).entry(result).or_default() += 1;
    }

    /// Executions and code that ran ahead, which a session has had since the last time.
    pub fn ran_ahead(&self, new: &Stats) {
        lock(&self.ahead).add(new);
    }

    /// The part of the text about code that ran ahead, of which so much is still under way.
    pub fn ahead_text(&self, under_way: u64) -> String {
        lock(&self.ahead).metrics_with(under_way)
    }

    /// The text that Prometheus reads; `gauges` are those that others know.
    pub fn text(&self, gauges: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        for (name, help, value) in gauges {
            head(&mut text, name, "gauge", help);
            line(&mut text, name, "", value);
        }
        let own = [
            (
                "sandglass_connections",
                "gauge",
                "Open TCP connections.",
                self.connections.get(),
            ),
            (
                "sandglass_channels",
                "gauge",
                "Open WebSocket channels.",
                self.channels.get(),
            ),
            (
                "sandglass_sessions_created_total",
                "counter",
                "Sessions created.",
                load(&self.sessions_created),
            ),
            (
                "sandglass_sessions_expired_total",
                "counter",
                "Sessions that expired.",
                load(&self.sessions_expired),
            ),
            (
                "sandglass_guests_lost_total",
                "counter",
                "Guests lost while their session lived.",
                load(&self.guests_lost),
            ),
        ];
        for (name, kind, help, value) in own {
            head(&mut text, name, kind, help);
            line(&mut text, name, "", &value);
        }
        head(
            &mut text,
            "sandglass_requests_total",
            "counter",
            "Requests answered; 499: given up by the client.",
        );
        for ((route, method, status), count) in &*lock(&self.requests) {
            let labels = format!("route=\"{}\",method=\"{method}\",status=\"{status}\"", escaped(route));
            line(&mut text, "sandglass_requests_total", &labels, count);
        }
        for (name, help, label, counts) in [
            (
                "sandglass_refusals_total",
                "Requests refused, by error code.",
                "code",
                &self.refusals,
            ),
            (
                "sandglass_llm_calls_total",
                "Calls of the model for guests.",
                "result",
                &self.llm_calls,
            ),
        ] {
            head(&mut text, name, "counter", help);
            for (value, count) in &*lock(counts) {
                line(&mut text, name, &format!("{label}=\"{value}\""), count);
            }
        }
        let name = "sandglass_execution_seconds";
        head(&mut text, name, "histogram", "Wall time of executions, by outcome.");
        for (outcome, histogram) in &*lock(&self.executions) {
            let outcome = format!("outcome=\"{}\"", escaped(outcome));
            for (bound, count) in BUCKETS.iter().zip(histogram.buckets) {
                line(
                    &mut text,
                    &format!("{name}_bucket"),
                    &format!("{outcome},le=\"{bound}\""),
                    &count,
                );
            }
            line(
                &mut text,
                &format!("{name}_bucket"),
                &format!("{outcome},le=\"+Inf\""),
                &histogram.count,
            );
            line(&mut text, &format!("{name}_sum"), &outcome, &histogram.seconds);
            line(&mut text, &format!("{name}_count"), &outcome, &histogram.count);
        }
        text
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
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
        let text = metrics.text(&[("sandglass_sessions", "Sessions.", 7)]);
        for line in [
            "sandglass_sessions 7",
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
