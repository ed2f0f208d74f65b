//! The place of a run's sandbox: still empty while the sandbox opens and the model is asked already.
//!
//! Decisions: `docs/internals/controller.md`.

use std::mem::discriminant;
use std::sync::{Mutex, OnceLock, PoisonError};

use sandglass_rlm::writing::Step;
use tokio::sync::Notify;

use super::repl::Repl;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Place {
    repl: OnceLock<Repl>,
    opens: Notify,
    /// The newest preparation of each kind for the first reply. The sandbox gets them when it is open.
    waiting: Mutex<Vec<Step>>,
}

impl Place {
    /// Puts the sandbox here.
    pub(super) fn fill(&self, repl: Repl) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let repl = self.repl.get_or_init(|| repl);
        waiting.drain(..).for_each(|step| repl.prepare(step));
        self.opens.notify_waiters();
    }

    /// The sandbox, if it is open.
    pub(super) fn get(&self) -> Option<&Repl> {
        self.repl.get()
    }

    /// Waits until the sandbox is open.
    pub(super) async fn opened(&self) -> &Repl {
        loop {
            let opens = self.opens.notified();
            if let Some(repl) = self.get() {
                return repl;
            }
            opens.await;
        }
    }

    /// Takes the sandbox away.
    pub(super) fn take(&mut self) -> Option<Repl> {
        self.repl.take()
    }

    /// Prepares for the next block while a reply comes.
    pub(super) fn prepare(&self, step: Step) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match self.get() {
            Some(repl) => repl.prepare(step),
            None => {
                waiting.retain(|other| discriminant(other) != discriminant(&step));
                waiting.push(step);
            }
        }
    }

    /// Forgets a reply that was being written, because it is over or begins again.
    pub(super) fn nothing_is_written(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.clear();
        if let Some(repl) = self.get() {
            repl.nothing_is_written();
        }
    }
}
