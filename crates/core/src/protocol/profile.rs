//! Profiles: the projects whose prompts and controllers a sandbox supports.

use serde::{Deserialize, Serialize};

/// The project whose prompts and controllers a sandbox supports. It sets the names in Python, their signatures, and the form of failures.
/// `python/sandglass/runtime/profiles.py` defines each profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Profile {
    /// Sandglass's own.
    #[default]
    Default,
    /// alexzhang13/rlm from 0.1.2 on.
    Rlm,
    /// alexzhang13/rlm up to 0.1.1a, and rlm-minimal.
    RlmLegacy,
    /// DwayneWilkes/rlm (`@rlm/core`).
    RlmCore,
    /// stanfordnlp/dspy's `RLM`.
    Dspy,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 5] = [Self::Default, Self::Rlm, Self::RlmLegacy, Self::RlmCore, Self::Dspy];

    /// The profile's public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Rlm => "rlm",
            Self::RlmLegacy => "rlm-legacy",
            Self::RlmCore => "rlm-core",
            Self::Dspy => "dspy",
        }
    }

    /// The profile with this public name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns true if a batch of queries beyond the budget is refused as a whole.
    pub fn has_whole_batches(self) -> bool {
        self == Self::Dspy
    }

    /// Returns true if `rlm_query` asks the sub-model when the host does not answer `rlm_query`.
    pub fn falls_back(self) -> bool {
        matches!(self, Self::Rlm | Self::RlmLegacy)
    }

    /// Returns true if Python has `SUBMIT`.
    pub fn has_submit(self) -> bool {
        matches!(self, Self::Default | Self::RlmCore | Self::Dspy)
    }
}
