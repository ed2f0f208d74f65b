//! The declarations of a driver about a session, before the first input.

use super::copies::Kept;
use super::pings::Pings;
use super::{Body, Session};
use crate::budget::Budget;
use crate::limits::MAX_DISPLAY_BYTES;
use crate::protocol::Profile;

impl<B: Body> Session<B> {
    /// Sets the profile. `output_fields` are the names of the values that `SUBMIT` takes.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile, output_fields: Vec<String>) -> Self {
        self.interpreter.config.profile = profile;
        self.interpreter.config.output_fields = output_fields;
        self
    }

    /// Lets guests send the value of a last expression, up to this number of bytes.
    #[must_use]
    pub fn with_values(mut self, max_bytes: f64) -> Self {
        self.interpreter.config.max_result_bytes = max_bytes.min(MAX_DISPLAY_BYTES);
        self
    }

    /// Lets code run before there is a `context`.
    #[must_use]
    pub fn without_context(mut self) -> Self {
        self.interpreter.contextless = true;
        self
    }

    /// Declares that the driver boots a shadow by forking the main guest. Then a copy needs no checkpoint.
    #[must_use]
    pub fn with_forks(mut self) -> Self {
        self.interpreter.forks = true;
        self.shadows.are_forks(&self.interpreter.config.limits);
        self
    }

    /// Declares that the driver makes checkpoints of paused copies of the guest, at most so many. A checkpoint's body stands for the copy,
    /// which ends when the last clone of the body is dropped. `Save` and `Restore` mean the same, and the driver carries out
    /// [`GuestEffect::Revive`]. To save is so quick that each execution waits for it. So a user can undo any execution.
    #[must_use]
    pub fn with_paused_guests(mut self, most: usize) -> Self {
        self.interpreter.checkpoints.most_paused = Some(most.max(1));
        self
    }

    /// Allows several shadows at once, on a machine with so many `processors` for them. `bytes` limits the state in all of them together;
    /// if they are forks, [`Input::MemoryIsShort`] limits it instead. By default one shadow runs at a time.
    #[must_use]
    pub fn with_shadows_on(mut self, processors: usize, bytes: f64) -> Self {
        self.shadows.on(processors, bytes);
        self
    }

    /// Declares that guests are workers. They must prove after each execution that they are idle. `secret` is a random number.
    #[must_use]
    pub fn with_pings(mut self, secret: u64) -> Self {
        self.interpreter.pings = Some(Pings::new(secret));
        self
    }

    /// Declares that guests mark executions that they can repeat ([`ExecutionReport::mark`](crate::protocol::ExecutionReport)). Then a user
    /// can go back by one execution after any execution.
    #[must_use]
    pub fn with_repeats(mut self) -> Self {
        self.interpreter.checkpoints.are_repeated = true;
        self
    }

    /// Declares that the driver keeps the session for a later one ([`HostEffect::Keep`]).
    ///
    /// `kept`: an earlier session to continue from. If its guests were of another kind, `foreign` says why their state cannot be had. Then
    /// only contexts and packages come back, and the next execution names what is lost.
    #[must_use]
    pub fn with_keeping(mut self, kept: Option<Kept<B>>, foreign: Option<&str>) -> Self {
        if let Some(kept) = kept {
            self.interpreter.resume(kept, foreign);
        }
        self.kept = Some(self.interpreter.kept_mark());
        self
    }

    /// Adds guesses at the next code, which run when nothing else does.
    #[must_use]
    pub fn with_guesses(mut self) -> Self {
        self.shadows.guess();
        self
    }

    /// Sets the budget for all executions together.
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.interpreter.budget = budget;
        self
    }
}
