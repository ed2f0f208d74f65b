//! Refusals of NATS, and trying again.

use std::fmt::{Debug, Display};
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use tokio::time::{Instant, sleep};

/// The pause before the first repetition, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// The most characters of a reason in an error.
const MOST_REASON: usize = 200;
/// The status of an error that passes, such as while a cluster elects a leader.
const UNAVAILABLE: usize = 503;

/// The reason for which a request failed.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) why: String,
    /// True if the same request may succeed later.
    passes: bool,
    /// True if another message was there than the one that a write names.
    pub(super) is_conflict: bool,
}

impl Problem {
    pub(super) fn passing(why: impl Display) -> Self {
        Self {
            why: short(why),
            passes: true,
            is_conflict: false,
        }
    }

    pub(super) fn lasting(why: impl Display) -> Self {
        Self {
            why: short(why),
            passes: false,
            is_conflict: false,
        }
    }

    /// The answer of JetStream to a request.
    pub(super) fn answered(error: &jetstream::Error) -> Self {
        // Servers of a new cluster find each other after a moment. A message that is on its way comes to be there, or not.
        const PASSING: [ErrorCode; 3] = [
            ErrorCode::CLUSTER_NO_PEERS,
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
            ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT,
        ];
        match error.code() == UNAVAILABLE || PASSING.contains(&error.error_code()) {
            true => Self::passing(error),
            false => Self::lasting(error),
        }
    }

    /// An error of the library. Those that JetStream did not answer come of the connection, and pass.
    pub(super) fn of<K: Clone + Debug + Display + PartialEq>(error: &async_nats::error::Error<K>) -> Self {
        let source = std::error::Error::source(error);
        match source.and_then(|source| source.downcast_ref()) {
            Some(answer) => Self::answered(answer),
            None => Self::passing(error),
        }
    }

    /// The same, of a write.
    pub(super) fn of_publish(error: &PublishError) -> Self {
        Self {
            is_conflict: error.kind() == PublishErrorKind::WrongLastSequence,
            ..Self::of(error)
        }
    }
}

/// The texts are those of the servers and of the library, which have no secrets.
fn short(why: impl Display) -> String {
    why.to_string().chars().take(MOST_REASON).collect()
}

/// The time up to which a request is tried again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    at: Instant,
    pause: Duration,
}

impl Until {
    pub(super) fn after(most: Duration) -> Self {
        Self {
            at: Instant::now() + most,
            pause: PAUSES.0,
        }
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The problem, if it lasts or the time is over.
    pub(super) async fn wait(&mut self, problem: Problem) -> Result<(), Problem> {
        if !problem.passes || Instant::now() + self.pause >= self.at {
            return Err(problem);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(())
    }
}
