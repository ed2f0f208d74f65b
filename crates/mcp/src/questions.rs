//! The way of `llm_query` from Python to the call of a tool under way, which can ask the client's model.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_host::rlm::Endpoint;
use sandglass_host::{Answer, Query};
use sandglass_rlm::{Message, Role};
use tokio::sync::{mpsc, oneshot};

/// Questions that wait for the call of a tool to take them.
const WAITING: usize = 32;
/// The message to Python when nobody answers.
const NO_MODEL: &str = "nobody answers llm_query: start `sandglass-host mcp` with --model (and --url, and a key in the variable \
                        OPENAI_API_KEY), or `sandglass-host serve` with --llm-url, or use a client that offers sampling";
/// The message to Python about `rlm_query`.
const NO_RECURSION: &str = "code has no rlm_query here: use llm_query, or let the agent call the tool `ask`";

/// A question of `llm_query`.
#[derive(Debug)]
pub struct Question {
    /// The prompt.
    pub prompt: String,
    /// The model that Python named.
    pub model: Option<String>,
    answer: oneshot::Sender<Result<String, String>>,
}

impl Question {
    /// Answers the question. An error becomes a Python exception.
    pub fn answer(self, answer: Result<String, String>) {
        // The code may have been interrupted meanwhile.
        let _ = self.answer.send(answer);
    }
}

/// The receiver of questions, if a call of a tool is under way whose client can answer.
#[derive(Debug, Clone, Default)]
pub struct Questions(Arc<Mutex<Option<mpsc::Sender<Question>>>>);

impl Questions {
    /// Takes the questions until the returned guard is dropped.
    pub fn take(&self) -> (mpsc::Receiver<Question>, Taking) {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.set(Some(sender));
        (receiver, Taking(self.clone()))
    }

    fn set(&self, sender: Option<mpsc::Sender<Question>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sender;
    }

    async fn ask(&self, prompt: String, model: Option<String>) -> Result<String, String> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sender = sender.ok_or(NO_MODEL)?;
        let (answer, answered) = oneshot::channel();
        let gone = || "the client left without an answer".to_owned();
        let question = Question { prompt, model, answer };
        sender.send(question).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// A guard: nobody takes questions after it.
#[derive(Debug)]
#[must_use = "nobody takes questions after it"]
pub struct Taking(Questions);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Answers `llm_query`: by the operator's endpoint, or else by the client's model.
pub async fn answer(query: Query, endpoint: Option<Endpoint>, questions: Questions) -> Result<Answer, String> {
    match endpoint {
        Some(endpoint) => {
            let asked = [Message::new(Role::User, query.prompt)];
            let reply = endpoint.ask(&asked, query.model.as_deref(), None, &|_| {}).await?;
            Ok(reply.into())
        }
        None => questions.ask(query.prompt, query.model).await.map(Answer::from),
    }
}

/// Answers `rlm_query`.
pub async fn no_recursion(_: Query) -> Result<Answer, String> {
    Err(NO_RECURSION.to_owned())
}
