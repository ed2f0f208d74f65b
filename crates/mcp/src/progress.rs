//! Progress of a tool's call, for clients that asked for it.

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::Notify;

/// Bytes of text that wait for a slow client. More text is left out of the progress, but not of the result.
const MAX_WAITING: usize = 64 << 10;

/// Text that goes to the client while a tool works. Texts that come quickly go together.
#[derive(Debug, Clone)]
pub struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    waiting: Arc<(Mutex<String>, Notify)>,
}

impl Progress {
    /// The progress of a request.
    pub fn of(context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        Self {
            to: token.map(|token| (context.peer.clone(), token)),
            waiting: Arc::default(),
        }
    }

    /// Adds text. It never waits.
    pub fn add(&self, text: &str) {
        if self.to.is_none() {
            return;
        }
        let (waiting, more) = &*self.waiting;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut room = MAX_WAITING.saturating_sub(waiting.len()).min(text.len());
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        waiting.push_str(&text[..room]);
        more.notify_one();
    }

    /// Sends text as it comes, and never ends.
    pub async fn send(&self) -> std::convert::Infallible {
        let Some((peer, token)) = &self.to else {
            return std::future::pending().await;
        };
        let (waiting, more) = &*self.waiting;
        let mut sent = 0.0;
        loop {
            more.notified().await;
            let text = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if text.is_empty() {
                continue;
            }
            // The protocol asks for a number that grows.
            sent += 1.0;
            let progress = ProgressNotificationParam::new(token.clone(), sent).with_message(text);
            // A client that is gone hears nothing. Its request is cancelled elsewhere.
            let _ = peer.notify_progress(progress).await;
        }
    }
}
