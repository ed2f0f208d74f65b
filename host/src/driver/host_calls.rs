//! The parts of a host call that its sandbox's task knows.

use std::sync::Arc;

use sandglass_core::session::Input;
use tokio::sync::{mpsc, oneshot};

use super::Message;
use crate::callbacks::{Approval, Line};

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
