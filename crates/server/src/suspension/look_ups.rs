//! Requests that ask the store about a session. Each takes a thread for as long as the store is silent, so there are few at once.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use crate::bodies::off_the_workers;
use crate::errors::ApiError;

/// The most look-ups at once, of one owner and of all. Other work has the rest of the 512 threads.
const OF_OWNER: usize = 32;
const OF_ALL: usize = 128;
/// The time for which a request waits for its turn.
const WAIT: Duration = Duration::from_secs(5);

/// The places for look-ups of one owner.
#[derive(Debug)]
pub(super) struct LookUps {
    of_owner: Arc<Semaphore>,
    of_all: Arc<Semaphore>,
    wait: Duration,
}

impl Default for LookUps {
    fn default() -> Self {
        Self {
            of_owner: Arc::new(Semaphore::new(OF_OWNER)),
            of_all: Arc::new(Semaphore::new(OF_ALL)),
            wait: WAIT,
        }
    }
}

impl LookUps {
    /// The places of another owner. The owners share the places of all.
    pub(super) fn of_another_owner(&self) -> Self {
        Self {
            of_all: Arc::clone(&self.of_all),
            ..Self::default()
        }
    }

    /// Looks a session up, on a thread that may block.
    ///
    /// # Errors
    /// 503 when too many look-ups are under way for too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        id: &str,
        look_up: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let places = async {
            let of_owner = Arc::clone(&self.of_owner).acquire_owned().await;
            (of_owner, Arc::clone(&self.of_all).acquire_owned().await)
        };
        let places = tokio::time::timeout(self.wait, places).await.map_err(|_| busy(id))?;
        off_the_workers(move || {
            // The thread goes on when the client leaves, and so does its place.
            let _places = places;
            look_up()
        })
        .await
    }
}

fn busy(id: &str) -> ApiError {
    let message = format!(
        "session {id} cannot be looked up now: the store of states is slow or out of reach, and many requests wait for it already. \
         Nothing was done: try again"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(10)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_silent_store_takes_few_threads_also_when_clients_leave() {
        let places = |owner: &LookUps, count| LookUps {
            of_owner: Arc::new(Semaphore::new(count)),
            of_all: Arc::clone(&owner.of_all),
            wait: Duration::ZERO,
        };
        let mut ann = places(&LookUps::default(), 1);
        ann.of_all = Arc::new(Semaphore::new(2));
        let [bob, eve] = [1, 1].map(|count| places(&ann, count));
        let mut silent = Vec::new();
        for owner in [&ann, &bob] {
            let (answer, answered) = mpsc::channel::<()>();
            let (begin, begun) = tokio::sync::oneshot::channel();
            let look_up = owner.run("a", move || {
                let _ = begin.send(());
                let _ = answered.recv();
            });
            // The client leaves when the look-up has begun.
            tokio::select! {
                looked_up = look_up => panic!("{looked_up:?}"),
                began = begun => began.unwrap(),
            }
            silent.push(answer);
            let refused = owner.run("a", || ()).await.unwrap_err();
            assert_eq!(refused.code, "state_unavailable");
        }
        assert!(eve.run("a", || ()).await.is_err(), "the places of all are taken");
        drop(silent);
        let eve = LookUps { wait: WAIT, ..eve };
        eve.run("a", || ()).await.unwrap();
    }
}
