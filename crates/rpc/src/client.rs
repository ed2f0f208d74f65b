//! The client of a connection: messages to it, and the requests that it answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::Value;
use sandglass_host::sandbox::{Approval, AwaitsApproval};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::blobs::{Arrived, Form, Named, form, json_form, reference};
use crate::connection::{Message, Of, Outbox, lock};
use crate::messages::{Cancelled, Dropped, Id, Outgoing, ResponseError, WireValue};

/// The version in JSON of every message.
pub(crate) const JSONRPC: &str = "2.0";

/// The client's answer to a request, with the blobs that it names.
type Answer = Result<(Box<RawValue>, Named), ResponseError>;

/// The client, as its sandboxes see it.
pub struct Client {
    /// The messages for it.
    pub outbox: Arc<Outbox>,
    pub(crate) arrived: Mutex<Arrived>,
    pending: Mutex<HashMap<u64, Pending>>,
    last_request: AtomicU64,
    /// The longest wait of a call for approval, if there is one.
    max_approval: Option<Duration>,
}

/// A request to the client that waits for the answer.
struct Pending {
    answer: oneshot::Sender<Answer>,
    /// The way to say that a call waits for a person's approval.
    approval: Option<Approval>,
    awaits_approval: Option<AwaitsApproval>,
    /// Hears that the call waits for approval for the first time.
    asks: Option<oneshot::Sender<()>>,
}

impl Client {
    /// A client whose blobs may take this many bytes until a message names them.
    pub fn new(max_blob_bytes: usize, max_approval: Option<Duration>) -> Self {
        Self {
            outbox: Arc::default(),
            arrived: Mutex::new(Arrived::within(max_blob_bytes)),
            pending: Mutex::default(),
            last_request: AtomicU64::new(0),
            max_approval,
        }
    }

    /// Sends JSON.
    pub(crate) fn send(&self, message: &impl Serialize) {
        self.send_of(Of::Nobody, message);
    }

    fn send_of(&self, of: Of, message: &impl Serialize) {
        match serde_json::to_vec(message) {
            Ok(json) => self.outbox.push(Message::Json(json.into()), of),
            Err(error) => tracing::error!(%error, "a message could not be written"),
        }
    }

    /// Sends a notification.
    pub fn notify(&self, method: &'static str, params: impl Serialize) {
        self.send(&Outgoing {
            jsonrpc: JSONRPC,
            id: None,
            method,
            params,
        });
    }

    /// The JSON of a value. A large value is sent before, as a blob.
    pub fn put(&self, value: Value) -> WireValue {
        match form(value) {
            Form::Json(json) => json,
            Form::Blob(kind, data) => reference(self.outbox.push_blob(&data), kind),
        }
    }

    /// A new request to the client.
    pub fn question(self: &Arc<Self>) -> Question {
        Question {
            client: Arc::clone(self),
            blobs: Vec::new(),
            id: None,
            is_answered: false,
        }
    }

    /// Takes the client's answer to a request.
    pub(crate) fn answered(&self, id: &Id, answer: Answer) {
        let Id::Number(id) = id else { return };
        let waiting = u64::try_from(*id).ok();
        if let Some(pending) = waiting.and_then(|id| lock(&self.pending).remove(&id)) {
            let _ = pending.answer.send(answer); // nobody may wait any more
        }
    }

    /// Hears that a call of a host function begins or ends to wait for a person's approval.
    pub(crate) fn approving(&self, id: u64, is_pending: bool) {
        if let Some(pending) = lock(&self.pending).get_mut(&id) {
            if let Some(asks) = pending.asks.take_if(|_| is_pending) {
                let _ = asks.send(()); // nobody may wait any more
            }
            match (is_pending, &pending.awaits_approval) {
                (true, None) => pending.awaits_approval = pending.approval.as_ref().map(Approval::wait),
                (true, Some(_)) => {}
                (false, _) => pending.awaits_approval = None,
            }
        }
    }

    /// Lets the time of a call go on for good, once it has waited for approval for as long as it may.
    async fn bound_approval(&self, id: u64, asked: oneshot::Receiver<()>) -> Infallible {
        if let (Ok(()), Some(most)) = (asked.await, self.max_approval) {
            sleep(most).await;
            if let Some(pending) = lock(&self.pending).get_mut(&id) {
                (pending.approval, pending.awaits_approval) = (None, None);
            }
        }
        pending().await
    }
}

/// A request to the client, with its large values. If it is dropped before the answer, the parts that wait are not sent, and otherwise
/// the client is told that nobody waits any more.
pub struct Question {
    client: Arc<Client>,
    blobs: Vec<u32>,
    id: Option<u64>,
    is_answered: bool,
}

impl Question {
    /// The JSON of a value. A large value is sent before, as a blob.
    pub fn put(&mut self, value: Value) -> WireValue {
        self.put_form(form(value))
    }

    /// The JSON of this text, or a reference to it if it is large.
    pub fn put_json(&mut self, text: String) -> WireValue {
        self.put_form(json_form(text))
    }

    fn put_form(&mut self, form: Form) -> WireValue {
        match form {
            Form::Json(json) => json,
            Form::Blob(kind, data) => {
                let id = self.client.outbox.push_blob(&data);
                self.blobs.push(id);
                reference(id, kind)
            }
        }
    }

    /// Asks the client. With `approval`, the client can say that a person is asked first.
    ///
    /// # Errors
    /// The text for Python.
    pub async fn ask<R: DeserializeOwned>(
        mut self,
        method: &'static str,
        params: impl Serialize,
        approval: Option<Approval>,
    ) -> Result<(R, Named), String> {
        let client = Arc::clone(&self.client);
        let id = client.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        self.id = Some(id);
        let (answer, answered) = oneshot::channel();
        let (asks, asked) = oneshot::channel();
        let pending = Pending {
            answer,
            approval,
            awaits_approval: None,
            asks: Some(asks),
        };
        lock(&client.pending).insert(id, pending);
        let message = Outgoing {
            jsonrpc: JSONRPC,
            id: Some(id),
            method,
            params,
        };
        client.send_of(Of::Request(id), &message);
        let answer = tokio::select! {
            answer = answered => answer,
            never = client.bound_approval(id, asked) => match never {},
        };
        self.is_answered = true;
        let result = answer.map_err(|_| "the client has gone".to_owned())?;
        let (result, blobs) = result.map_err(|error| error.message)?;
        let result = serde_json::from_str(result.get());
        let result = result.map_err(|error| format!("the client's answer is malformed: {error}"))?;
        Ok((result, blobs))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if self.is_answered
            || self
                .id
                .is_some_and(|id| lock(&self.client.pending).remove(&id).is_none())
        {
            return;
        }
        let (is_unsent, begun) = self.client.outbox.take_back(self.id, &self.blobs);
        for blob in begun {
            self.client.notify("drop", Dropped { blob });
        }
        if let (false, Some(id)) = (is_unsent, self.id) {
            self.client.notify("cancel", Cancelled { id });
        }
    }
}
