//! Answers `llm_query` of sessions over HTTP by an OpenAI-compatible endpoint that the operator has chosen.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use sandglass::rlm::limits::{ATTEMPT_TIMEOUT_MS, MAX_REPLY_BYTES, MAX_RETRIES};
use sandglass::rlm::openai::{self, Failure, Reply, RetryAfter};
use sandglass::rlm::{Message, Role, query};
use serde_json::Map;
use tokio::sync::Semaphore;

use super::metrics::Metrics;

/// Calls of the endpoint at the same time, of all sessions.
const MOST_AT_ONCE: usize = 64;
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// What Python is told when there is no endpoint.
pub const NO_MODEL: &str = "this server has no model that answers: its operator can name one with --llm-url and --llm-model, \
                            or the session can be used over a WebSocket, whose client answers";
/// What Python is told of `rlm_query`.
pub const NO_RECURSION: &str =
    "sessions over HTTP have no recursion: use llm_query, or run the controller (`sandglass-host rlm`)";

/// The endpoint, its models, and how it is reached.
pub struct Llm {
    url: String,
    models: Vec<String>,
    key: Option<String>,
    client: reqwest::Client,
    at_once: Semaphore,
}

impl fmt::Debug for Llm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Llm({}, {:?})", self.url, self.models)
    }
}

impl Llm {
    /// The endpoint at `base_url`; the first of the `models` answers when Python names none.
    ///
    /// # Errors
    /// There is no model, the address is none, or no client can be made.
    pub fn new(base_url: &str, models: Vec<String>, key: Option<&str>) -> Result<Self, String> {
        if models.is_empty() {
            return Err("--llm-url needs --llm-model: the name of the model that answers".to_owned());
        }
        let url = openai::completions_url(base_url);
        match reqwest::Url::parse(&url) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.username().is_empty() => {}
            _ => return Err("--llm-url is no http or https address (a key belongs into SANDGLASS_LLM_KEY)".to_owned()),
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim()))
                .map_err(|_| "SANDGLASS_LLM_KEY has characters that no header may have".to_owned())?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // Another part of the program may have chosen one already; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .default_headers(headers)
            // The key must not follow to where it was not meant for.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| format!("requests to the model's endpoint cannot be made: {error}"))?;
        Ok(Self {
            url,
            models,
            key: key.map(|key| key.trim().to_owned()),
            client,
            at_once: Semaphore::new(MOST_AT_ONCE),
        })
    }

    /// Asks a model.
    ///
    /// # Errors
    /// What Python is told: it may not ask this model, or the endpoint brought no reply.
    pub async fn ask(&self, prompt: &str, model: Option<&str>, metrics: &Metrics) -> Result<Reply, String> {
        let (own, others) = self.models.split_first().ok_or_else(|| NO_MODEL.to_owned())?;
        let model = query::model_named(model, own, others)?;
        let body = openai::request_body(model, &[Message::new(Role::User, prompt)], false, &Map::new());
        let mut attempt = 1;
        loop {
            let result = {
                let _turn = self.at_once.acquire().await;
                self.attempt(body.clone()).await
            };
            let failure = match result {
                Ok(mut reply) => {
                    metrics.llm_call("ok");
                    reply.text = query::without_key(reply.text, self.key.as_deref());
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            metrics.llm_call("error");
            let Some(wait_ms) = openai::retry_in(&failure, attempt, MAX_RETRIES, chance()) else {
                let failure = query::without_key(failure.to_string(), self.key.as_deref());
                tracing::warn!(failure, attempt, "the model's endpoint brought no reply");
                return Err(failure);
            };
            tokio::time::sleep(Duration::from_secs_f64(wait_ms / 1_000.0)).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, body: String) -> Result<Reply, Failure> {
        let timeout = Duration::from_secs_f64(ATTEMPT_TIMEOUT_MS / 1_000.0);
        match tokio::time::timeout(timeout, self.send(body)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::TimedOut(ATTEMPT_TIMEOUT_MS)),
        }
    }

    async fn send(&self, body: String) -> Result<Reply, Failure> {
        // Python is told what failed, not where: the address is the operator's.
        let unreachable = |error: reqwest::Error| Failure::Unreachable(innermost(&error.without_url()));
        let response = self
            .client
            .post(&self.url)
            .body(body)
            .send()
            .await
            .map_err(unreachable)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut bytes = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Failure::Broken(innermost(&error.without_url())))?;
            if bytes.len() + piece.len() > MAX_REPLY_BYTES {
                return Err(Failure::Final(format!(
                    "the endpoint's reply is longer than {MAX_REPLY_BYTES} bytes"
                )));
            }
            bytes.extend_from_slice(&piece);
        }
        if status == 200 {
            return openai::read_reply(&bytes);
        }
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after = RetryAfter {
            seconds_or_date: header(RETRY_AFTER.as_str()),
            milliseconds: header("retry-after-ms"),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Err(openai::refusal(
            status,
            &bytes,
            retry_after,
            now.as_secs_f64() * 1_000.0,
        ))
    }
}

/// The cause that says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_an_address_and_a_model() {
        let models = vec!["m".to_owned()];
        assert!(
            Llm::new("https://api.example/v1", Vec::new(), None)
                .unwrap_err()
                .contains("--llm-model")
        );
        assert!(
            Llm::new("api.example", models.clone(), None)
                .unwrap_err()
                .contains("no http")
        );
        assert!(
            Llm::new("https://key@api.example", models.clone(), None)
                .unwrap_err()
                .contains("no http")
        );
        assert!(
            Llm::new("https://api.example", models.clone(), Some("a\nb"))
                .unwrap_err()
                .contains("characters")
        );
        let llm = Llm::new("https://api.example/v1/", models, Some("secret-key")).unwrap();
        assert_eq!(
            format!("{llm:?}"),
            "Llm(https://api.example/v1/chat/completions, [\"m\"])"
        );
    }
}
