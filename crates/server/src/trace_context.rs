//! The trace of a request, as its client names it in the headers of W3C Trace Context, and the request's span.
//!
//! Decisions: `docs/internals/server.md`.

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::trace::SpanContext;
use sandglass_host::traces::{self, Span, SpanKind};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The client's span. `None` without the header `traceparent`, with two of them, or with one that the standard does not allow.
pub fn caller(headers: &HeaderMap) -> Option<SpanContext> {
    let mut given = headers.get_all(TRACEPARENT).into_iter();
    let (Some(only), None) = (given.next(), given.next()) else {
        return None;
    };
    let state = headers.get(TRACESTATE).and_then(|state| state.to_str().ok());
    traces::caller(only.to_str().ok()?, state)
}

/// Begins the span of a request. Paths belong to the user, so it has the route.
pub fn span(caller: Option<SpanContext>, method: &'static str, route: &str) -> Span {
    let name = match route {
        "none" => method.to_owned(),
        route => format!("{method} {route}"),
    };
    let span = Span::of_caller(caller, name, SpanKind::Server);
    let method = if method == "other" { "_OTHER" } else { method };
    span.set("http.request.method", method);
    if route != "none" {
        span.set("http.route", route.to_owned());
    }
    span
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn two_callers_are_none() {
        let one = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        assert!(caller(&headers).is_none());
        headers.append(TRACEPARENT, one.clone());
        let trace = caller(&headers).map(|caller| caller.trace_id().to_string());
        assert_eq!(trace.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        headers.append(TRACEPARENT, one);
        assert!(caller(&headers).is_none());
    }
}
