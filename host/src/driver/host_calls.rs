//! The parts of a host call that its sandbox's task knows.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use sandglass_core::session::{Call, Input};
use tokio::sync::{mpsc, oneshot, watch};

use super::Message;
use crate::callbacks::{Approval, Claim, HostCall, HostFunction, Line, arguments};
use crate::traces::{InTrace, Span, SpanKind};
use crate::value::{Payload, Value};

/// Calls that were begun before their code was asked for, until their fate is known.
#[derive(Default)]
pub(super) struct Claims(HashMap<u32, watch::Sender<bool>>);

impl Claims {
    /// Notes that a call begins.
    pub(super) fn begin(&mut self, call: u32) -> Claim {
        let (claims, claimed) = watch::channel(false);
        self.0.insert(call, claims);
        Claim(claimed)
    }

    /// Reports that the code which came has made the call.
    pub(super) fn claim(&mut self, call: u32) {
        if let Some(claims) = self.0.remove(&call) {
            claims.send_replace(true);
        }
    }

    /// Reports that nobody will make the call.
    pub(super) fn end(&mut self, call: u32) {
        self.0.remove(&call);
    }
}

/// A host call of Python, and what the task knows of it.
pub(super) struct Called {
    pub(super) call: Call<Payload>,
    /// The name that the execution's caller gave it.
    pub(super) request: Option<String>,
    pub(super) claim: Option<Claim>,
    /// The call's name in the journal.
    pub(super) id: Option<String>,
}

impl Called {
    /// Has the user's function answer, and sends its result of at most so many bytes to the sandbox's task.
    pub(super) async fn answer(
        self,
        messages: mpsc::WeakUnboundedSender<Message>,
        function: Option<HostFunction>,
        most: f64,
    ) {
        let Self {
            call,
            request,
            claim,
            id,
        } = self;
        let Call {
            call,
            name,
            args,
            budget,
            ..
        } = call;
        let what = format!("the result of {name}");
        let answer = async {
            let function = function.ok_or_else(|| "there is no such function".to_owned())?;
            let args = Value::decode(&args).map_err(|error| error.to_string())?;
            let (args, kwargs, line) = arguments(args)?;
            let line = match line {
                Some((execution, number)) => Some(line_of(&messages, execution, number).await),
                None => None,
            };
            let made = HostCall {
                name,
                args,
                kwargs,
                line,
                request,
                budget,
                id,
                approval: approval_of(&messages, call),
                claim,
            };
            let span = Span::named(|| format!("call {}", made.name), SpanKind::Internal);
            // A function may make its future at once, or begin its work then.
            let answering = {
                let _current = span.context().attach();
                function(made)
            };
            let answered = answering.with_context(span.context()).await;
            let (value, usage) = answered.inspect_err(|_| span.failed("exception"))?;
            if let (Some(usage), Some(messages)) = (usage, messages.upgrade()) {
                let _ = messages.send(Message::Input(Input::Used(call, usage))); // also when the answer cannot be sent
            }
            value.encode(&what, most).map_err(|error| error.to_string())
        };
        let result = AssertUnwindSafe(answer).catch_unwind().await;
        let result = result.unwrap_or_else(|_| Err("the host function panicked".to_owned()));
        if let Some(messages) = messages.upgrade() {
            let _ = messages.send(Message::HostReturned(call, result));
        }
    }
}

/// The line that made a call.
async fn line_of(task: &mpsc::WeakUnboundedSender<Message>, execution: u32, number: u32) -> Line {
    let (answer, text) = oneshot::channel();
    if let Some(task) = task.upgrade() {
        let _ = task.send(Message::Line(execution, number, answer));
    }
    Line {
        execution,
        number,
        text: text.await.ok().flatten(),
    }
}

/// The way to say that a call waits for a person's approval.
fn approval_of(task: &mpsc::WeakUnboundedSender<Message>, call: u32) -> Approval {
    let task = task.clone();
    Approval(Arc::new(move |waits| {
        let input = if waits { Input::NeedsApproval } else { Input::Approved };
        if let Some(task) = task.upgrade() {
            let _ = task.send(Message::Input(input(call)));
        }
    }))
}
