//! The time that guests have to hand their states over.

use std::time::Duration;

use super::App;

/// The time in which a guest has to hand its state over. Hostile code could take longer.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// The same when the server ends. Sessions that take longer are tried again after the others.
const WRITE_TIME_AT_END: Duration = Duration::from_secs(2);
/// The reason to give up after that time.
pub(super) const TOO_SLOW: &str = "the guest took too long to hand its state over";

/// The time that a guest has to hand its state over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The usual time, but little once the server was told to end: others wait for their turn.
    First,
    /// The usual time, because nobody waits any more.
    Last,
}

impl Attempt {
    /// Waits until the time is over.
    pub(super) async fn over(self, app: &App) {
        let ends_soon = async {
            tokio::select! {
                () = app.draining.cancelled() => {}
                () = app.ending.cancelled() => {}
            }
            tokio::time::sleep(WRITE_TIME_AT_END).await;
        };
        tokio::select! {
            () = tokio::time::sleep(WRITE_TIME) => {}
            () = ends_soon, if self == Self::First => {}
        }
    }
}
