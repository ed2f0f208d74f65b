//! The trace of a request, as its client names it in the header `traceparent` of W3C Trace Context.
//!
//! Decisions: `docs/internals/server.md`.

use axum::http::{HeaderMap, HeaderName};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The id of the client's trace: 32 lower-case hexadecimal digits. `None` without the header, with two of them, or with one
/// that the standard does not allow.
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(TRACEPARENT).into_iter();
    let (Some(only), None) = (given.next(), given.next()) else {
        return None;
    };
    parse(only.to_str().ok()?)
}

fn parse(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-');
    let version = parts.next().filter(|part| is_hex(part, 2) && *part != "ff")?;
    let trace = parts.next().filter(|part| is_id(part, 32))?;
    parts.next().filter(|part| is_id(part, 16))?;
    parts.next().filter(|part| is_hex(part, 2))?;
    // Only later versions may have more parts.
    (version != "00" || parts.next().is_none()).then_some(trace)
}

fn is_hex(part: &str, digits: usize) -> bool {
    part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_id(part: &str, digits: usize) -> bool {
    is_hex(part, digits) && part.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_trace_is_read_of_each_version() {
        for traceparent in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later",
        ] {
            assert_eq!(parse(traceparent), Some(TRACE), "{traceparent}");
        }
    }

    #[test]
    fn what_the_standard_forbids_is_no_trace() {
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
        ] {
            assert_eq!(parse(traceparent), None, "{traceparent}");
        }
    }

    #[test]
    fn two_traces_are_none() {
        let one = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        assert_eq!(trace_id(&headers), None);
        headers.append(TRACEPARENT, one.clone());
        assert_eq!(trace_id(&headers), Some(TRACE));
        headers.append(TRACEPARENT, one);
        assert_eq!(trace_id(&headers), None);
    }
}
