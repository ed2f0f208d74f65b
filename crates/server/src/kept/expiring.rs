//! The end of kept sandboxes that nobody uses any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_core::Error;

use super::KeptSandboxes;
use crate::App;

impl KeptSandboxes {
    /// Removes those that nobody has opened for so long.
    pub async fn forget_old(app: &App, most: Duration) {
        let all: Vec<_> = app.kept.lock().keys().cloned().collect();
        for key in all {
            let entry = app.kept.lock().get(&key).cloned();
            let Some(entry) = entry else { continue };
            let is_old = || entry.age() >= most;
            if is_old() && entry.place.is_open() {
                entry.is_used();
            }
            // Whoever has the turn opens or removes it, which may take long.
            if is_old()
                && let Ok(_turn) = entry.turn.try_lock()
                && is_old()
            {
                let (owner, id) = &key;
                let used_ms = entry.used_ms.load(Ordering::Acquire);
                match entry.place.remove_unused(used_ms).await {
                    Ok(()) => {
                        entry.is_unread.store(false, Ordering::Release);
                        tracing::info!(kept = %id, %owner, "a kept sandbox has expired");
                    }
                    // Another server uses it. From now on, that one counts it.
                    Err(Error::PersistInUse(_)) => app.kept.let_go(&key, 2),
                    Err(error) => tracing::error!(kept = %id, %owner, %error, "a kept sandbox is not removed"),
                }
            }
            app.kept.forget_empty(&key);
        }
    }
}
