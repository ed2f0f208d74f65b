//! Answers `llm_query` of sessions over HTTP by an OpenAI-compatible endpoint that the operator has chosen.

use sandglass_rlm::openai::Reply;
use sandglass_rlm::{Message, Role, query};
use tokio::sync::Semaphore;

use super::metrics::Metrics;
use sandglass_host::rlm::Endpoint;

/// Calls of the endpoint at the same time, of all sessions.
const MOST_AT_ONCE: usize = 64;
/// The message to Python when there is no endpoint.
pub const NO_MODEL: &str = "this server has no model that answers: its operator can name one with --llm-url and --llm-model, \
                            or the session can be used over a WebSocket, whose client answers";
/// The message to Python about `rlm_query`.
pub const NO_RECURSION: &str =
    "sessions over HTTP have no recursion: use llm_query, or run the controller (`sandglass-host rlm`)";

/// The endpoint that answers.
#[derive(Debug)]
pub struct Llm {
    /// It, its models, and its key.
    pub endpoint: Endpoint,
    at_once: Semaphore,
}

impl Llm {
    /// One that is asked for all sessions.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            at_once: Semaphore::new(MOST_AT_ONCE),
        }
    }

    /// Asks a model. A question that is asked again later keeps its permit meanwhile: the endpoint has enough to do.
    ///
    /// # Errors
    /// What Python is told: it may not ask this model, or the endpoint brought no reply.
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
