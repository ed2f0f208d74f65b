//! A session's state, as the host gives it and as the store has it.

use sandglass_core::Error;
use sandglass_core::budget::Usage;
use sandglass_core::execution::LostVariable;
use sandglass_host::sandbox::{Files, Past, Spent, Suspended};
use sandglass_states::{Lost, Saved, SavedFile};
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
    let execution = suspended.past.execution();
    let settings = json!(Stored {
        recipe: recipe.clone(),
        spent: suspended.spent.usage,
        budget_began_ms: Some(as_float(now_ms()) - suspended.spent.time_ms),
    });
    let (past, bodies) = suspended.past.into_parts()?;
    let lost = suspended.lost.into_iter();
    let files = suspended.files.files.into_iter();
    Ok(Saved {
        execution,
        settings,
        past,
        bodies,
        state: suspended.state,
        lost: lost
            .map(|LostVariable { name, reason }| Lost { name, reason })
            .collect(),
        files: files.map(|(path, body)| SavedFile { path, body }).collect(),
        folders: suspended.files.folders,
    })
}

/// The state of a session that wakes now, and the options from which it is made.
///
/// # Errors
/// The problem with the state: another server wrote it, or it is damaged.
pub(super) fn unpack(saved: Saved) -> Result<(Recipe, Suspended), String> {
    let stored: Stored = serde_json::from_value(saved.settings).map_err(|error| error.to_string())?;
    let past = Past::from_parts(saved.past, &saved.bodies).map_err(|error| error.to_string())?;
    let began_ms = stored.budget_began_ms;
    let spent = Spent {
        usage: stored.spent,
        time_ms: began_ms.map_or(0.0, |began| (as_float(now_ms()) - began).max(0.0)),
    };
    let lost = saved.lost.into_iter();
    let files = saved.files.into_iter();
    let suspended = Suspended {
        state: saved.state,
        files: Files {
            files: files.map(|file| (file.path, file.body)).collect(),
            folders: saved.folders,
            lost: Vec::new(),
        },
        lost: lost
            .map(|Lost { name, reason }| LostVariable { name, reason })
            .collect(),
        past,
        spent,
    };
    Ok((stored.recipe, suspended))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn as_float(ms: u64) -> f64 {
    ms as f64
}
