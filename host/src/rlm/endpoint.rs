//! Asks OpenAI-compatible endpoints.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use sandglass::Error;
use sandglass::rlm::limits::{ATTEMPT_TIMEOUT_MS, MAX_REPLY_BYTES, MAX_RETRIES};
use sandglass::rlm::openai::{
    Failure, Reply, RetryAfter, completions_url, read_reply, refusal, request_body, retry_in,
};
use sandglass::rlm::{Message, query};
use serde_json::{Map, Value};

/// Bytes of the body of a response that refuses.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// An OpenAI-compatible endpoint. Its key is in requests, and nowhere else.
#[derive(Clone)]
pub struct Endpoint {
    client: Client,
    url: Url,
    key: Option<String>,
    /// The model that is asked.
    pub model: String,
    /// Other models that Python may name.
    pub models: Vec<String>,
    /// Fields that are added to every request.
    pub body: Map<String, Value>,
    /// Attempts after the first.
    pub max_retries: u32,
    /// Milliseconds of one attempt.
    pub timeout_ms: f64,
    /// Cost of a token of the prompt, and of the answer.
    pub price: Option<[f64; 2]>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Endpoint")
            .field("url", &self.url.as_str())
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// One with this address, such as `https://api.example.com/v1`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for what is no address.
    pub fn new(base_url: &str, key: Option<String>, model: &str) -> Result<Self, Error> {
        let problem = |error: &dyn std::fmt::Display| {
            let what = format!("must be an address, such as https://api.example.com/v1: {error}");
            Error::invalid("url", what)
        };
        let url = Url::parse(&completions_url(base_url)).map_err(|error| problem(&error))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(problem(&"it is neither http nor https"));
        }
        if model.is_empty() {
            return Err(Error::invalid("model", "must be the name of a model"));
        }
        // Fails when the process has one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Whoever is redirected to would be sent the prompts, too.
        let client = Client::builder().redirect(Policy::none()).build();
        let client = client.map_err(|error| Error::invalid("url", format!("requests cannot be made: {error}")))?;
        Ok(Self {
            client,
            url,
            key: key.filter(|key| !key.is_empty()),
            model: model.to_owned(),
            models: Vec::new(),
            body: Map::new(),
            max_retries: MAX_RETRIES,
            timeout_ms: ATTEMPT_TIMEOUT_MS,
            price: None,
        })
    }

    /// Asks, again where that may help. `on_retry` is told the attempt that failed, the milliseconds until the next, and why.
    pub(crate) async fn ask(
        &self,
        messages: &[Message],
        named: Option<&str>,
        on_retry: &(dyn Fn(u32, f64, String) + Send + Sync),
    ) -> Result<Reply, String> {
        let model = query::model_named(named, &self.model, &self.models)?;
        let body = request_body(model, messages, false, &self.body);
        let mut attempt = 1;
        loop {
            let patience = Duration::from_secs_f64(self.timeout_ms.max(1.0) / 1_000.0);
            let answered = tokio::time::timeout(patience, self.attempt(body.clone())).await;
            let failure = match answered.unwrap_or(Err(Failure::TimedOut(self.timeout_ms))) {
                Ok(mut reply) => {
                    if let (Some(usage), Some([input, output])) = (&mut reply.usage, self.price) {
                        usage.cost = usage.input_tokens * input + usage.output_tokens * output;
                    }
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            let reason = query::without_key(failure.to_string(), self.key.as_deref());
            let Some(wait_ms) = retry_in(&failure, attempt, self.max_retries, chance()) else {
                let times = if attempt > 1 {
                    format!(" ({attempt} attempts)")
                } else {
                    String::new()
                };
                return Err(format!("{reason}{times}"));
            };
            on_retry(attempt, wait_ms, reason);
            tokio::time::sleep(Duration::from_secs_f64(wait_ms / 1_000.0)).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, body: String) -> Result<Reply, Failure> {
        let mut request = self.client.post(self.url.clone());
        request = request.header("content-type", "application/json").body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await;
        let response = response.map_err(|error| Failure::Unreachable(causes(&error)))?;
        let status = response.status();
        if !status.is_success() {
            let header = |name: &str| {
                let value = response.headers().get(name)?;
                value.to_str().ok().map(str::to_owned)
            };
            let (after, ms) = (header("retry-after"), header("retry-after-ms"));
            // What is missing of its body is not the reason.
            let body = read_all(response, MAX_REFUSAL_BYTES).await.unwrap_or_default();
            let retry_after = RetryAfter {
                seconds_or_date: after.as_deref(),
                milliseconds: ms.as_deref(),
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            return Err(refusal(
                status.as_u16(),
                &body,
                retry_after,
                now.as_secs_f64() * 1_000.0,
            ));
        }
        read_reply(&read_all(response, MAX_REPLY_BYTES).await?)
    }
}

async fn read_all(mut response: Response, most: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let cut = |error: reqwest::Error| Failure::Broken(format!("the connection was cut: {}", causes(&error)));
    while let Some(chunk) = response.chunk().await.map_err(cut)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > most {
            return Err(Failure::Final(format!(
                "the endpoint's reply is longer than {most} bytes"
            )));
        }
    }
    Ok(bytes)
}

/// An error with what caused it, which says more.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
