//! The parts of a host call that its sandbox's task knows.

use std::collections::HashMap;
use std::sync::Arc;

use sandglass_core::session::Input;
use tokio::sync::{mpsc, oneshot, watch};

use super::Message;
use crate::callbacks::{Approval, Claim, Line};

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

/// The line that made a call.
pub(super) async fn line_of(task: &mpsc::WeakUnboundedSender<Message>, execution: u32, number: u32) -> Line {
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
pub(super) fn approval_of(task: &mpsc::WeakUnboundedSender<Message>, call: u32) -> Approval {
    let task = task.clone();
    Approval(Arc::new(move |waits| {
        let input = if waits { Input::NeedsApproval } else { Input::Approved };
        if let Some(task) = task.upgrade() {
            let _ = task.send(Message::Input(input(call)));
        }
    }))
}
