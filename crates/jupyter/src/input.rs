//! Python's `input()`: asks the front end that sent the cell, if that front end allows questions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jupyter_protocol::{InputReply, JupyterMessage};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::wire::{Sender, made};
use sandglass_host::sandbox::HostCall;
use sandglass_host::value::Value;

/// Most characters of a prompt.
const MAX_PROMPT_CHARS: usize = 10_000;
const NOBODY: &str = "input() has nobody to ask: this front end takes no input, or not for this cell";

/// The front end to ask, and the open question.
pub(super) struct Input {
    sender: Sender,
    /// The running cell, if its front end allows questions.
    cell: Mutex<Option<Arc<JupyterMessage>>>,
    open: Mutex<Option<Question>>,
    /// A lock for one question at a time, because front ends show only one.
    turn: AsyncMutex<()>,
}

struct Question {
    id: String,
    cell: Arc<JupyterMessage>,
    answer: oneshot::Sender<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Input {
    pub(super) fn new(sender: Sender) -> Self {
        Self {
            sender,
            cell: Mutex::default(),
            open: Mutex::default(),
            turn: AsyncMutex::default(),
        }
    }

    /// Sets the running cell. `None` means that nobody can be asked.
    pub(super) fn set_cell(&self, cell: Option<Arc<JupyterMessage>>) {
        *lock(&self.cell) = cell;
        lock(&self.open).take();
    }

    /// Answers the guest's call of `input()`.
    pub(super) async fn ask(&self, call: &HostCall) -> Result<Value, String> {
        let prompt: String = call.text(0)?.chars().take(MAX_PROMPT_CHARS).collect();
        let _turn = self.turn.lock().await;
        let cell = lock(&self.cell).clone().ok_or(NOBODY)?;
        let content = json!({ "prompt": prompt, "password": false });
        let (answer, answered) = oneshot::channel();
        let question = made("input_request", content, &cell);
        let id = question.header.msg_id.clone();
        // The question is registered first, because its answer may come at once.
        *lock(&self.open) = Some(Question { id, cell, answer });
        if !self.sender.send_made(&question) {
            lock(&self.open).take();
        }
        answered.await.map(Value::Str).map_err(|_| NOBODY.to_owned())
    }

    /// Takes an answer. An answer without an open question is dropped, such as after the cell was stopped.
    pub(super) fn answer(&self, message: &JupyterMessage, reply: &InputReply) {
        let mut open = lock(&self.open);
        let fits = |question: &Question| {
            let is_of = |id: &str| id == question.id || id == question.cell.header.msg_id;
            message.zmq_identities == question.cell.zmq_identities
                // Some front ends name the question that they answer.
                && message.parent_header.as_ref().is_none_or(|parent| is_of(&parent.msg_id))
        };
        if let Some(question) = open.take_if(|question| fits(question)) {
            // The cell may have been stopped meanwhile.
            let _ = question.answer.send(reply.value.clone());
        }
    }
}
