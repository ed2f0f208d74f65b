//! The settings of a pool, and the reasons for which it gives no guest.

use std::str::FromStr;
use std::time::Duration;

use sandglass_core::Error;
use serde::{Deserialize, Serialize};

use crate::launcher::Resources;

/// The reaction to a request that finds the pool empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenEmpty {
    /// Wait for the next spare. While none can be made, start a guest for this request.
    #[default]
    Wait,
    /// Start a guest for this request, which imports its modules itself.
    Cold,
    /// An error, at once.
    Refuse,
}

impl FromStr for WhenEmpty {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "wait" => Ok(Self::Wait),
            "cold" => Ok(Self::Cold),
            "refuse" => Ok(Self::Refuse),
            _ => Err(Error::invalid(
                "pool",
                format!("must be wait, cold or refuse, not \"{name}\""),
            )),
        }
    }
}

/// The number of spares, and the age of their zygote.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// Fewest spares.
    pub min_spares: usize,
    /// Most spares.
    pub max_spares: usize,
    /// The reaction to an empty pool.
    pub when_empty: WhenEmpty,
    /// The longest wait for a spare.
    pub max_wait: Duration,
    /// The time without demand after which the number of spares falls by one.
    pub calm: Duration,
    /// The age at which a zygote is replaced, because all its guests share its memory layout.
    pub max_zygote_age: Duration,
    /// The number of forks after which a zygote is replaced, for the same reason.
    pub max_zygote_forks: u64,
    /// A guest's share of the machine.
    pub resources: Resources,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            min_spares: 2,
            max_spares: 20,
            when_empty: WhenEmpty::Wait,
            max_wait: Duration::from_secs(30),
            calm: Duration::from_secs(10),
            max_zygote_age: Duration::from_secs(3600),
            max_zygote_forks: 10_000,
            resources: Resources::default(),
        }
    }
}

/// The reason why there is no guest.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unavailable {
    /// The pool is empty, for now.
    #[error("{0}; nothing was run. Try again shortly")]
    Empty(String),
    /// The guest that was started for this request failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Unavailable> for Error {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Empty(_) => Self::BackendUnavailable(why.to_string()),
            Unavailable::Failed(error) => error,
        }
    }
}
