//! The Python runtime, embedded: the same files that native backends mount.

/// Every file of the package `sandglass`, by its name.
pub const FILES: &[(&str, &str)] = &[];
