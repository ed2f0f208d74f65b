//! `input()`: the front end that has sent a cell is asked, if it says that it can be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jupyter_protocol::{InputReply, JupyterMessage};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::wire::{Sender, made};
use sandglass_host::sandbox::HostCall;
use sandglass_host::value::Value;

/// Characters of a prompt.
const MAX_PROMPT_CHARS: usize = 10_000;
const NOBODY: &str = "input() has nobody to ask: this front end takes no input, or not for this cell";

/// Whom to ask, and the question that is open.
pub(super) struct Input {
    sender: Sender,
    /// The cell that runs, if it may ask.
    cell: Mutex<Option<Arc<JupyterMessage>>>,
    open: Mutex<Option<Question>>,
    /// Front ends show one question at a time.
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

    /// A cell begins, or ended. Who may not be asked is `None`.
    pub(super) fn set_cell(&self, cell: Option<Arc<JupyterMessage>>) {
        *lock(&self.cell) = cell;
        lock(&self.open).take();
    }

    /// Answers a call of the guest's.
    pub(super) async fn ask(&self, call: &HostCall) -> Result<Value, String> {
        let prompt: String = call.text(0)?.chars().take(MAX_PROMPT_CHARS).collect();
        let _turn = self.turn.lock().await;
        let cell = lock(&self.cell).clone().ok_or(NOBODY)?;
        let content = json!({ "prompt": prompt, "password": false });
        let (answer, answered) = oneshot::channel();
        let question = made("input_request", content, &cell);
        let id = question.header.msg_id.clone();
        // First, for the answer may come at once.
        *lock(&self.open) = Some(Question { id, cell, answer });
        if !self.sender.send_made(&question) {
            lock(&self.open).take();
        }
        answered.await.map(Value::Str).map_err(|_| NOBODY.to_owned())
    }

    /// Takes an answer. One that nobody has asked for, such as to a question of a cell that was stopped, is dropped.
    pub(super) fn answer(&self, message: &JupyterMessage, reply: &InputReply) {
        let mut open = lock(&self.open);
        let fits = |question: &Question| {
            let is_of = |id: &str| id == question.id || id == question.cell.header.msg_id;
            message.zmq_identities == question.cell.zmq_identities
                // Some front ends say which question they answer.
                && message.parent_header.as_ref().is_none_or(|parent| is_of(&parent.msg_id))
        };
        if let Some(question) = open.take_if(|question| fits(question)) {
            // The cell may have been stopped meanwhile.
            let _ = question.answer.send(reply.value.clone());
        }
    }
}
