//! Answers `llm_query` of sessions over HTTP, by the operator's OpenAI-compatible endpoint.

use sandglass_rlm::openai::Reply;
use sandglass_rlm::{Message, Role, query};
use tokio::sync::Semaphore;

use super::metrics::Metrics;
use sandglass_host::rlm::Endpoint;

/// Most calls of the endpoint at the same time, from all sessions.
const MOST_AT_ONCE: usize = 64;
/// The message to Python when there is no endpoint.
pub const NO_MODEL: &str = "this server has no model that answers: its operator can name one with --llm-url and --llm-model, \
                            or the session can be used over a WebSocket, whose client answers";
/// The message to Python about `rlm_query`.
pub const NO_RECURSION: &str =
    "sessions over HTTP have no recursion: use llm_query, or run the controller (`sandglass-host rlm`)";

/// The model for `llm_query`, and the bound on its calls.
#[derive(Debug)]
pub struct Llm {
    /// The endpoint with its models and its key.
    pub endpoint: Endpoint,
    at_once: Semaphore,
}

impl Llm {
    /// One endpoint for all sessions.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            at_once: Semaphore::new(MOST_AT_ONCE),
        }
    }

    /// Asks a model. A retried call keeps its permit while it waits, because the endpoint is already busy.
    ///
    /// # Errors
    /// The text that Python gets: the model is not allowed, or the endpoint sent no reply.
    pub async fn ask(&self, prompt: &str, model: Option<&str>, metrics: &Metrics) -> Result<Reply, String> {
        query::model_named(model, &self.endpoint.model, &self.endpoint.models)?;
        let _permit = self.at_once.acquire().await;
        let asked = [Message::new(Role::User, prompt)];
        let on_retry = |_| metrics.llm_call("error");
        let answered = self.endpoint.ask(&asked, model, None, &on_retry).await;
        metrics.llm_call(if answered.is_ok() { "ok" } else { "error" });
        answered.inspect_err(|failure| tracing::warn!(failure, "the model's endpoint brought no reply"))
    }
}
