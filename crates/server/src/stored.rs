//! A session's state, as the host gives it and as the store has it.

use sandglass_core::Error;
use sandglass_core::budget::Usage;
use sandglass_host::sandbox::{Spent, Suspended};
use sandglass_states::Saved;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::suspension::{Recipe, now_ms};

/// The settings of a stored session.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    recipe: Recipe,
    /// The use of the session's budget so far.
    spent: Usage,
    /// The time at which the budget began, in milliseconds since 1970, if it limits time.
    budget_began_ms: Option<f64>,
}

/// The state of a session that falls asleep now, for the store.
///
/// # Errors
/// [`Error::NotSerializable`] when the host's part cannot be written.
pub(super) fn pack(suspended: Suspended, recipe: &Recipe) -> Result<Saved, Error> {
    let settings = json!(Stored {
        recipe: recipe.clone(),
        spent: suspended.spent.usage,
        budget_began_ms: Some(as_float(now_ms()) - suspended.spent.time_ms),
    });
    suspended.into_saved(settings)
}

/// The state of a session that wakes now, and the options from which it is made.
///
/// # Errors
/// The problem with the state: another server wrote it, or it is damaged.
pub(super) fn unpack(saved: Saved) -> Result<(Recipe, Suspended), String> {
    let stored: Stored = Stored::deserialize(&saved.settings).map_err(|error| error.to_string())?;
    let began_ms = stored.budget_began_ms;
    let spent = Spent {
        usage: stored.spent,
        time_ms: began_ms.map_or(0.0, |began| (as_float(now_ms()) - began).max(0.0)),
    };
    let suspended = Suspended::from_saved(saved, spent).map_err(|error| error.to_string())?;
    Ok((stored.recipe, suspended))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn as_float(ms: u64) -> f64 {
    ms as f64
}
