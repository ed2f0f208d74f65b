//! Spans of OpenTelemetry: where the time of a request goes, over all programs that had a part in it.
//!
//! Nothing is made before [`enable`]. A program that enables spans also sets a tracer provider, such as that of the crate
//! `opentelemetry_sdk`. Spans never hold code, output, prompts or replies.
//!
//! Decisions: `docs/internals/server.md`.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer};
use opentelemetry::{Context, KeyValue, Value, global};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

pub use opentelemetry::Context as Trace;
pub use opentelemetry::context::FutureExt as InTrace;
pub use opentelemetry::trace::SpanKind;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The longest `tracestate` that is passed on, in characters. The standard asks for 512 at least.
const MOST_STATE: usize = 512;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Turns spans on, for the rest of the process. The tracer provider has been set before.
pub fn enable() {
    IS_ON.store(true, Ordering::Release);
}

/// Returns true after [`enable`].
pub fn is_enabled() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// A span, which ends when it is dropped. It is empty while spans are off.
#[derive(Debug)]
#[must_use = "the span ends when it is dropped"]
pub struct Span(Option<Context>);

impl Span {
    /// No span.
    pub fn none() -> Self {
        Self(None)
    }

    /// Begins a span below the current one.
    pub fn begin(name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Self {
        match is_enabled() {
            true => Self::below(&Context::current(), name, kind),
            false => Self(None),
        }
    }

    /// Begins a span whose name takes a moment to make.
    pub fn named(name: impl FnOnce() -> String, kind: SpanKind) -> Self {
        match is_enabled() {
            true => Self::begin(name(), kind),
            false => Self(None),
        }
    }

    /// Begins a span below one of another program, or a trace of its own.
    pub fn of_caller(caller: Option<SpanContext>, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Self {
        match is_enabled() {
            true => Self::below(&of_caller(caller), name, kind),
            false => Self(None),
        }
    }

    fn below(parent: &Context, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Self {
        let tracer = global::tracer("sandglass");
        let span = tracer.span_builder(name).with_kind(kind);
        let span = tracer.build_with_context(span, parent);
        Self(Some(parent.with_span(span)))
    }

    /// Adds a fact.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed, with a short word for the kind of failure.
    pub fn failed(&self, kind: impl Into<Cow<'static, str>>) {
        if let Some(context) = &self.0 {
            let kind = kind.into();
            context.span().set_attribute(KeyValue::new("error.type", kind.clone()));
            context.span().set_status(Status::error(kind));
        }
    }

    /// The context in which further spans are below this one. Without spans, it is the current one.
    pub fn context(&self) -> Context {
        self.0.clone().unwrap_or_else(Context::current)
    }

    /// The ids of the trace and of the span, in lower-case hexadecimal digits.
    pub fn ids(&self) -> Option<(String, String)> {
        let context = self.0.as_ref()?.span().span_context().clone();
        context
            .is_valid()
            .then(|| (context.trace_id().to_string(), context.span_id().to_string()))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.span().end();
        }
    }
}

/// The context in which spans are below one of another program.
pub fn of_caller(caller: Option<SpanContext>) -> Context {
    caller.map_or_else(Context::new, |caller| Context::new().with_remote_span_context(caller))
}

/// Names the span of `context` in the headers of a request. Without a span, the headers stay as they are.
pub fn inject(context: &Context, headers: &mut HeaderMap) {
    let span = context.span();
    let span = span.span_context();
    if !is_enabled() || !span.is_valid() {
        return;
    }
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), flags);
    if let Ok(parent) = HeaderValue::try_from(parent) {
        headers.insert(TRACEPARENT, parent);
    }
    headers.remove(TRACESTATE);
    let state = span.trace_state().header();
    if let (false, Ok(state)) = (state.is_empty(), HeaderValue::try_from(state)) {
        headers.insert(TRACESTATE, state);
    }
}

/// The caller's span that a `traceparent` of [W3C Trace Context](https://www.w3.org/TR/trace-context/) names. `None` for one that the
/// standard does not allow. A `tracestate` that is wrong or long is left out.
pub fn caller(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let version = parts.next().filter(|part| is_hex(part, 2) && *part != "ff")?;
    let trace = parts.next().filter(|part| is_hex(part, 32))?;
    let span = parts.next().filter(|part| is_hex(part, 16))?;
    let flags = parts.next().filter(|part| is_hex(part, 2))?;
    if version == "00" && parts.next().is_some() {
        return None; // only later versions may have more parts
    }
    let state = tracestate.filter(|state| state.len() <= MOST_STATE);
    let state: Option<TraceState> = state.and_then(|state| state.parse().ok());
    let span = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
        true,
        state.unwrap_or_default(),
    );
    span.is_valid().then_some(span) // ids of zeros are none
}

fn is_hex(part: &str, digits: usize) -> bool {
    part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_caller_is_read_of_each_version() {
        for (traceparent, is_sampled) in [
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff", true),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later", true),
        ] {
            let caller = caller(traceparent, None).unwrap();
            assert_eq!(caller.trace_id().to_string(), TRACE, "{traceparent}");
            assert_eq!(caller.span_id().to_string(), "00f067aa0ba902b7", "{traceparent}");
            assert_eq!(caller.is_sampled(), is_sampled, "{traceparent}");
        }
    }

    #[test]
    fn what_the_standard_forbids_is_no_caller() {
        for traceparent in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-\u{e9}",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        ] {
            assert!(caller(traceparent, None).is_none(), "{traceparent}");
        }
    }

    #[test]
    fn a_state_is_kept_if_it_is_right_and_short() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let long = format!("a={}", "x".repeat(MOST_STATE));
        for (given, kept) in [("a=1,b=2", "a=1,b=2"), ("no pair", ""), (long.as_str(), "")] {
            let caller = caller(parent, Some(given)).unwrap();
            assert_eq!(caller.trace_state().header(), kept, "{given}");
        }
    }
}
