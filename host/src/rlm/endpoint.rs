//! The models of a run, and requests to them.

use std::time::Duration;

use sandglass_core::Error;
use sandglass_rlm::limits::{ATTEMPT_TIMEOUT_MS, MAX_RETRIES};
use sandglass_rlm::openai::{Attempts, Reply, Retry, request_body};
use sandglass_rlm::{Message, query};
use serde_json::{Map, Value};

use crate::completions::{Completions, OnText, chance};
use crate::sandbox::Answer;
use crate::traces::{InTrace, Span, SpanKind};

/// An OpenAI-compatible endpoint. Its key is in requests, and nowhere else.
#[derive(Clone)]
pub struct Endpoint {
    completions: Completions,
    /// The model that is asked.
    pub model: String,
    /// Further models that Python can name.
    pub models: Vec<String>,
    /// Fields that are added to every request.
    pub body: Map<String, Value>,
    /// True when replies are streamed, so that their code can run ahead.
    pub stream: bool,
    /// Attempts after the first.
    pub max_retries: u32,
    /// The most milliseconds of one attempt.
    pub timeout_ms: f64,
    /// Cost of a token of the prompt, and of the answer.
    pub price: Option<[f64; 2]>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Endpoint")
            .field("url", &self.completions.url())
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self {
            text: reply.text,
            usage: reply.usage.unwrap_or_default(),
        }
    }
}

impl Endpoint {
    /// An endpoint with this address, such as `https://api.example.com/v1`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an invalid address, or a key that cannot be sent in a request.
    pub fn new(base_url: &str, key: Option<String>, model: &str) -> Result<Self, Error> {
        if model.is_empty() {
            return Err(Error::invalid("model", "must be the name of a model"));
        }
        let completions = Completions::new(base_url, key.as_deref());
        Ok(Self {
            completions: completions.map_err(|problem| Error::invalid("url", problem))?,
            model: model.to_owned(),
            models: Vec::new(),
            body: Map::new(),
            stream: true,
            max_retries: MAX_RETRIES,
            timeout_ms: ATTEMPT_TIMEOUT_MS,
            price: None,
        })
    }

    /// Returns true for the same model at the same address.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.model == other.model && self.completions.url() == other.completions.url()
    }

    /// Asks a model, with retries. `on_text` receives a streamed reply as it comes. `on_retry` is called for each failed
    /// attempt, whose text does not count.
    pub async fn ask(
        &self,
        messages: &[Message],
        named: Option<&str>,
        on_text: Option<OnText<'_>>,
        on_retry: &(dyn Fn(Retry) + Send + Sync),
    ) -> Result<Reply, String> {
        let model = query::model_named(named, &self.model, &self.models)?;
        let span = self.span(model);
        let answered = self.answer(model, messages, on_text, on_retry);
        let answered = answered.with_context(span.context()).await;
        match &answered {
            Ok(Reply { usage: Some(usage), .. }) => {
                span.set("gen_ai.usage.input_tokens", tokens(usage.input_tokens));
                span.set("gen_ai.usage.output_tokens", tokens(usage.output_tokens));
            }
            Ok(_) => {}
            Err(_) => span.failed("no_reply"),
        }
        answered
    }

    /// The span of a request, by the conventions for generative models.
    fn span(&self, model: &str) -> Span {
        let span = Span::named(|| format!("chat {model}"), SpanKind::Client);
        span.set("gen_ai.operation.name", "chat");
        span.set("gen_ai.provider.name", "openai"); // the form of the requests
        span.set("gen_ai.request.model", model.to_owned());
        if let Some((address, port)) = self.completions.server() {
            span.set("server.address", address.to_owned());
            span.set("server.port", i64::from(port));
        }
        span
    }

    async fn answer(
        &self,
        model: &str,
        messages: &[Message],
        on_text: Option<OnText<'_>>,
        on_retry: &(dyn Fn(Retry) + Send + Sync),
    ) -> Result<Reply, String> {
        let body = request_body(model, messages, self.stream && on_text.is_some(), &self.body);
        let on_text = on_text.unwrap_or(&|_| {});
        let mut attempts = Attempts::new(self.max_retries);
        loop {
            let failure = match self.completions.attempt(body.clone(), self.timeout_ms, on_text).await {
                Ok(reply) => {
                    return Ok(Reply {
                        price: self.price,
                        ..reply
                    });
                }
                Err(failure) => failure,
            };
            let retry = attempts.failed(&failure, self.completions.key(), chance())?;
            let pause = Duration::from_secs_f64(retry.wait_ms / 1_000.0);
            on_retry(retry);
            tokio::time::sleep(pause).await;
        }
    }
}

/// A number of tokens, as spans have it.
fn tokens(number: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    {
        number as i64
    }
}
