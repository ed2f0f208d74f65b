//! The servers that answered for sessions, so that the next request for one asks the store nothing.
//!
//! An entry is a guess, because a session may have moved since. The request says so, and the other server answers it only if the session is
//! awake there. Otherwise it does nothing, and this server looks the session up in the store.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::way::Elsewhere;

/// The most sessions that are remembered. One takes a few hundred bytes.
const MOST: usize = 16_384;

/// The servers that answered last, by the session's owner and id.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<(Arc<str>, String), Elsewhere>>);

impl Remembered {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Arc<str>, String), Elsewhere>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server that answered last for a session of this owner.
    pub(super) fn of(&self, owner: &Arc<str>, id: &str) -> Option<Elsewhere> {
        self.lock().get(&(Arc::clone(owner), id.to_owned())).cloned()
    }

    /// Notes that a server answered for a session.
    pub(super) fn note(&self, owner: &Arc<str>, id: &str, elsewhere: &Elsewhere) {
        let mut all = self.lock();
        if all.len() >= MOST {
            all.clear(); // each costs one look-up again
        }
        all.insert((Arc::clone(owner), id.to_owned()), elsewhere.clone());
    }

    /// Forgets a session that has moved or ended.
    pub(super) fn forget(&self, owner: &Arc<str>, id: &str) {
        self.lock().remove(&(Arc::clone(owner), id.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use sandglass_states::ServerId;

    use super::*;

    #[test]
    fn sessions_are_remembered_by_their_owner_and_within_a_bound() {
        let remembered = Remembered::default();
        let [ann, bob]: [Arc<str>; 2] = ["ann".into(), "bob".into()];
        let server: ServerId = "00112233445566778899aabbccddeeff".parse().unwrap();
        let address = "http://127.0.0.1:1".to_owned();
        let elsewhere = Elsewhere { server, address };
        remembered.note(&ann, "a", &elsewhere);
        assert_eq!(remembered.of(&ann, "a").unwrap().server, server);
        assert!(remembered.of(&bob, "a").is_none());
        remembered.forget(&ann, "a");
        assert!(remembered.of(&ann, "a").is_none());
        for number in 0..=MOST {
            remembered.note(&ann, &number.to_string(), &elsewhere);
        }
        assert!(remembered.lock().len() <= MOST);
        assert!(remembered.of(&ann, &MOST.to_string()).is_some());
    }
}
