//! Answers `llm_query` of sessions over HTTP by an OpenAI-compatible endpoint that the operator has chosen.

use std::fmt;
use std::time::Duration;

use sandglass_rlm::limits::{ATTEMPT_TIMEOUT_MS, MAX_RETRIES};
use sandglass_rlm::openai::{Reply, request_body, retry_in};
use sandglass_rlm::{Message, Role, query};
use serde_json::Map;
use tokio::sync::Semaphore;

use super::metrics::Metrics;
use sandglass_host::completions::{Completions, chance};

/// Calls of the endpoint at the same time, of all sessions.
const MOST_AT_ONCE: usize = 64;
/// The message to Python when there is no endpoint.
pub const NO_MODEL: &str = "this server has no model that answers: its operator can name one with --llm-url and --llm-model, \
                            or the session can be used over a WebSocket, whose client answers";
/// The message to Python about `rlm_query`.
pub const NO_RECURSION: &str =
    "sessions over HTTP have no recursion: use llm_query, or run the controller (`sandglass-host rlm`)";

/// The endpoint, its models, and how it is reached.
pub struct Llm {
    completions: Completions,
    models: Vec<String>,
    at_once: Semaphore,
}

impl fmt::Debug for Llm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Llm({}, {:?})", self.completions.url(), self.models)
    }
}

impl Llm {
    /// The endpoint at `base_url`; the first of the `models` answers when Python names none.
    ///
    /// # Errors
    /// There is no model, the address is none, or no request can have the key.
    pub fn new(base_url: &str, models: Vec<String>, key: Option<&str>) -> Result<Self, String> {
        if models.is_empty() {
            return Err("--llm-url needs --llm-model: the name of the model that answers".to_owned());
        }
        let completions = Completions::new(base_url, key)
            .map_err(|problem| format!("--llm-url (its key is SANDGLASS_LLM_KEY): {problem}"))?;
        Ok(Self {
            completions,
            models,
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
        let body = request_body(model, &[Message::new(Role::User, prompt)], false, &Map::new());
        let mut attempt = 1;
        loop {
            let result = {
                let _turn = self.at_once.acquire().await;
                self.completions
                    .attempt(body.clone(), ATTEMPT_TIMEOUT_MS, &|_| {})
                    .await
            };
            let failure = match result {
                Ok(reply) => {
                    metrics.llm_call("ok");
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            metrics.llm_call("error");
            let Some(wait_ms) = retry_in(&failure, attempt, MAX_RETRIES, chance()) else {
                let failure = self.completions.without_key(failure.to_string());
                tracing::warn!(failure, attempt, "the model's endpoint brought no reply");
                return Err(failure);
            };
            tokio::time::sleep(Duration::from_secs_f64(wait_ms / 1_000.0)).await;
            attempt += 1;
        }
    }
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
        let problem = Llm::new("api.example", models.clone(), None).unwrap_err();
        assert!(
            problem.starts_with("--llm-url") && problem.contains("http or https"),
            "{problem}"
        );
        let llm = Llm::new("https://api.example/v1/", models, Some("secret-key")).unwrap();
        assert_eq!(
            format!("{llm:?}"),
            "Llm(https://api.example/v1/chat/completions, [\"m\"])"
        );
    }
}
