//! A token bucket: a rate of requests, and a burst.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) per_second: f64,
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(super) fn new(per_second: f64, now: Instant) -> Self {
        Self {
            per_second,
            tokens: most_tokens(per_second),
            filled_at: now,
        }
    }

    /// Takes a token. The error is the time until the next token.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(most_tokens(self.per_second));
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let seconds = (1.0 - self.tokens) / self.per_second.max(1e-3);
        Err(Duration::from_secs_f64(seconds))
    }
}

/// The largest burst of requests.
fn most_tokens(per_second: f64) -> f64 {
    (per_second * 2.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_refills_at_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2.0, start);
        assert!((0..4).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_secs(1);
        assert!(bucket.take(later).is_ok() && bucket.take(later).is_ok() && bucket.take(later).is_err());
        assert_eq!(
            Bucket::new(0.01, start).take(start),
            Ok(()),
            "the first request is not too many"
        );
        // A clock that stands still or goes back adds no tokens.
        assert!(bucket.take(start).is_err());
        let much_later = start + Duration::from_secs(1_000);
        assert!((0..4).all(|_| bucket.take(much_later).is_ok()));
        assert!(bucket.take(much_later).is_err());
    }
}
