//! The clock of leases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A clock that never goes back. It tells the time since a moment of its own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that tells the time that `now` returns.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

/// The clock of the machine. On Linux it goes on while the machine sleeps, as those of other servers do.
impl Default for Clock {
    #[cfg(target_os = "linux")]
    fn default() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        Self::new(|| {
            let now = clock_gettime(ClockId::Boottime);
            let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
            seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or_default())
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn default() -> Self {
        let began = std::time::Instant::now();
        Self::new(move || began.elapsed())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Clock")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// `CLOCK_MONOTONIC` stands still while the machine sleeps, so it is never ahead of the clock that goes on.
    #[test]
    fn the_clock_counts_from_the_start_of_the_machine() {
        let awake = clock_gettime(ClockId::Monotonic);
        let now = Clock::default().now();
        assert!(
            now >= Duration::from_secs(awake.tv_sec.unsigned_abs()),
            "{now:?} {awake:?}"
        );
    }
}
