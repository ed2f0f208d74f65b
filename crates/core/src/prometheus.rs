//! Counts of code that ran ahead, as text for Prometheus (<https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4).

use std::fmt::{Display, Write as _};

use crate::stats::Stats;

/// Writes a metric's type and description.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Writes one value of a metric. `labels` are in the format's syntax, without braces.
fn line(text: &mut String, name: &str, labels: &str, value: &dyn Display) {
    let _ = if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    };
}

impl Stats {
    /// Counts of code that ran ahead, and of the outcomes. An execution whose code had not run ahead is a miss.
    pub fn metrics(&self) -> String {
        self.metrics_with(self.under_way())
    }

    /// The number of pieces of code that run ahead now, or did and are kept.
    pub fn under_way(&self) -> u64 {
        let tallies = self.ahead.code.values();
        tallies.map(|tally| u64::from(tally.under_way())).sum()
    }

    /// The same counts with another number of pieces under way. For sums over sessions, some of which are gone.
    pub fn metrics_with(&self, under_way: u64) -> String {
        let tallies = self.ahead.code.values();
        let hits: u64 = tallies.clone().map(|tally| u64::from(tally.used)).sum();
        let seconds: f64 = tallies.map(|tally| tally.time_saved / 1000.0).sum();
        let executions = self.executions.total().max(hits);
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let rate = hits as f64 / executions.max(1) as f64;
        let mut text = String::new();

        let name = "rlm_proactive_predictions_total";
        head(
            &mut text,
            name,
            "counter",
            "Code that was begun before it was asked for.",
        );
        for (source, tally) in &self.ahead.code {
            let source = serde_json::to_string(source).unwrap_or_default();
            line(&mut text, name, &format!("source={source}"), &tally.started);
        }
        let misses = executions - hits;
        let values: [(&str, &str, &str, &dyn Display); 4] = [
            (
                "cache_hits_total",
                "counter",
                "Executions whose code had run ahead.",
                &hits,
            ),
            (
                "cache_misses_total",
                "counter",
                "Executions whose code had not.",
                &misses,
            ),
            (
                "cache_size",
                "gauge",
                "Code that runs ahead, or did and is kept.",
                &under_way,
            ),
            ("hit_rate", "gauge", "Hits among all executions, from 0 to 1.", &rate),
        ];
        for (name, kind, help, value) in values {
            let name = format!("rlm_proactive_{name}");
            head(&mut text, &name, kind, help);
            line(&mut text, &name, "", value);
        }
        let name = "rlm_proactive_execution_seconds";
        head(
            &mut text,
            name,
            "summary",
            "For how long hits had run when they were asked for.",
        );
        line(&mut text, &format!("{name}_sum"), "", &seconds);
        line(&mut text, &format!("{name}_count"), "", &hits);
        let name = "rlm_proactive_wasted_seconds_total";
        head(
            &mut text,
            name,
            "counter",
            "Time of code that ran ahead and was not asked for.",
        );
        let wasted: f64 = self.ahead.code.values().map(|tally| tally.time_wasted / 1000.0).sum();
        line(&mut text, name, "", &wasted);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictions::{Source, Tally};

    #[test]
    fn what_ran_ahead_comes_out_in_the_text_format() {
        let mut stats = Stats::default();
        assert!(stats.metrics().contains("\nrlm_proactive_hit_rate 0\n"), "nothing yet");
        stats.executions.ok = 3;
        stats.executions.error = 1;
        let tally = |started, used, wasted, time_saved| Tally {
            started,
            used,
            wasted,
            time_saved,
            time_wasted: f64::from(wasted) * 500.0,
            ..Tally::default()
        };
        stats.ahead.code.insert(Source::Explicit, tally(4, 2, 1, 1500.0));
        stats.ahead.code.insert(Source::Stream, tally(1, 1, 0, 250.0));
        let text = stats.metrics();
        for expected in [
            "# TYPE rlm_proactive_predictions_total counter",
            "rlm_proactive_predictions_total{source=\"explicit\"} 4",
            "rlm_proactive_predictions_total{source=\"stream\"} 1",
            "rlm_proactive_cache_hits_total 3",
            "rlm_proactive_cache_misses_total 1",
            "rlm_proactive_cache_size 1",
            "rlm_proactive_hit_rate 0.75",
            "rlm_proactive_execution_seconds_sum 1.75",
            "rlm_proactive_execution_seconds_count 3",
            "rlm_proactive_wasted_seconds_total 0.5",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected}\n\n{text}");
        }
    }
}
