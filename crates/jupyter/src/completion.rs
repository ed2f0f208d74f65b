//! Completion and inspection. The guest finds the answers, and this module bounds them.

use jupyter_protocol::{CompleteRequest, InspectRequest};
use sandglass_core::session::Look;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use sandglass_host::sandbox::Sandbox;

const MAX_ANSWER_BYTES: usize = 1 << 20;
const MOST_MATCHES: usize = 1_000;
const MAX_MATCH_CHARS: usize = 1_000;
const MAX_TEXT_CHARS: usize = 200_000;

#[derive(Deserialize)]
struct Completions {
    matches: Vec<String>,
    start: usize,
    end: usize,
}

#[derive(Deserialize)]
struct Inspection {
    text: Option<String>,
}

/// The content of a `complete_reply`.
pub(super) async fn complete(sandbox: Option<&Sandbox>, request: &CompleteRequest) -> Value {
    let about = json!({ "code": request.code, "cursor": request.cursor_pos });
    let found = look(sandbox, Look::Complete, &about).await;
    let length = request.code.chars().count();
    let cursor = request.cursor_pos.min(length);
    let nothing = Completions {
        matches: Vec::new(),
        start: cursor,
        end: cursor,
    };
    let fits = |found: &Completions| {
        found.start <= found.end
            && found.end <= length
            && found.matches.len() <= MOST_MATCHES
            && found.matches.iter().all(|text| text.chars().count() <= MAX_MATCH_CHARS)
    };
    let Completions { matches, start, end } = found.filter(fits).unwrap_or(nothing);
    json!({ "status": "ok", "matches": matches, "cursor_start": start, "cursor_end": end, "metadata": {} })
}

/// The content of an `inspect_reply`.
pub(super) async fn inspect(sandbox: Option<&Sandbox>, request: &InspectRequest) -> Value {
    let detail = request.detail_level.unwrap_or(0);
    let about = json!({ "code": request.code, "cursor": request.cursor_pos, "detail": detail });
    let found: Option<Inspection> = look(sandbox, Look::Inspect, &about).await;
    let text = found.and_then(|found| found.text);
    let text = text.map(|text| text.chars().take(MAX_TEXT_CHARS).collect::<String>());
    let data = text
        .as_ref()
        .map_or_else(|| json!({}), |text| json!({ "text/plain": text }));
    json!({ "status": "ok", "found": text.is_some(), "data": data, "metadata": {} })
}

/// The guest's answer; `None` if the answer is malformed.
async fn look<T: DeserializeOwned>(sandbox: Option<&Sandbox>, look: Look, about: &Value) -> Option<T> {
    let answer = sandbox?.look(look, about.to_string().into_bytes()).await;
    let answer = answer.inspect_err(|error| tracing::debug!(%error, "the guest did not look"));
    let answer = answer.ok().filter(|answer| answer.len() <= MAX_ANSWER_BYTES)?;
    serde_json::from_slice(&answer).ok()
}
