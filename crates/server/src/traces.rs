//! The export of spans to a collector of OpenTelemetry, as the standard variables say.
//!
//! Decisions: `docs/internals/server.md`.

use std::env;
use std::time::Duration;

use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use sandglass_host::traces;
use tokio::sync::oneshot;

/// The variables that turn the export on.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The variables that choose the form of the export, of which there is one here.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const PROTOCOL: &str = "http/protobuf";
/// The time for the last spans to leave at the end.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The export of spans. It goes on until [`Export::end`].
#[derive(Debug)]
#[must_use = "the last spans leave at its end"]
pub struct Export(Option<SdkTracerProvider>);

impl Export {
    /// Begins the export if a variable names a collector. Otherwise there are no spans.
    ///
    /// # Errors
    /// A variable is wrong.
    pub fn start() -> Result<Self, String> {
        if !is_wanted() {
            return Ok(Self(None));
        }
        for name in PROTOCOLS {
            if let Some(other) = variable(name).filter(|given| given != PROTOCOL) {
                return Err(format!(
                    "{name}: {other} is not supported; spans are sent as {PROTOCOL}"
                ));
            }
        }
        sandglass_host::completions::use_tls();
        let exporter = SpanExporter::builder().with_http().build();
        let exporter =
            exporter.map_err(|error| format!("spans cannot be sent (OTEL_EXPORTER_OTLP_ENDPOINT): {error}"))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource())
            .build();
        global::set_tracer_provider(provider.clone());
        traces::enable();
        Ok(Self(Some(provider)))
    }

    /// Sends the last spans, and ends the export. A collector that does not answer delays the end by 2 s at most.
    pub async fn end(self) {
        let Some(provider) = self.0 else { return };
        let (tell, ended) = oneshot::channel();
        // The runtime would wait for a thread of its own, even for one that hangs.
        std::thread::spawn(move || {
            let _ = tell.send(provider.shutdown_with_timeout(LAST_SPANS));
        });
        match tokio::time::timeout(LAST_SPANS, ended).await {
            Ok(Ok(Ok(()))) => {}
            _ => tracing::warn!("the last spans could not be sent: the collector did not take them in time"),
        }
    }
}

fn is_wanted() -> bool {
    let is = |name, value: &str| variable(name).is_some_and(|given| given.eq_ignore_ascii_case(value));
    ENDPOINTS.iter().any(|name| variable(name).is_some())
        && !is("OTEL_SDK_DISABLED", "true")
        && !is("OTEL_TRACES_EXPORTER", "none")
}

/// The value of a variable. An empty one counts as none, as the standard says.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The facts about this process. The variables `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` go before.
fn resource() -> Resource {
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = attributes
        .split(',')
        .any(|pair| pair.trim().starts_with("service.name="));
    match is_named || variable("OTEL_SERVICE_NAME").is_some() {
        true => resource.build(),
        false => resource.with_service_name("sandglass").build(),
    }
}
