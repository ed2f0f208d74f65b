//! Packages: what a user asks for, and which wheels that is. Pure: whoever resolves fetches nothing here.
//!
//! | module | knows |
//! |---|---|
//! | `requirement` | what a user writes: `name[extra]>=2,<3`, `name @ https://….whl`, a wheel's address |
//! | `marker` | the condition behind a requirement's semicolon (PEP 508) |
//! | `wheel` | what a wheel's name and its METADATA say |
//! | `lock` | the format of `pyodide-lock.json` |
//! | `resolve` | which wheels a list of requirements comes down to |
//! | `imports` | which modules a piece of code imports |
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

mod imports;
mod lock;
mod marker;
mod requirement;
mod resolve;
mod wheel;

pub use imports::imported_modules;
pub use lock::Lock;
pub use requirement::Requirement;
pub use resolve::{Resolver, Step};

use crate::error::Error;

/// Characters of a requirement, and requirements that can be asked for at once.
const MAX_REQUIREMENT_CHARS: usize = 4_000;
const MAX_PACKAGES: usize = 2_000;

/// The Python that wheels have to be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its version, all of it: `3.14.2`.
    pub python: String,
    /// The version of Pyodide's binary interface, as in the names of wheels: `2026_0`.
    pub abi: String,
}

impl Target {
    /// `(3, 14)`.
    fn version(&self) -> (u32, u32) {
        let mut numbers = self.python.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// A wheel that is to be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// The package's name, as its author writes it.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file's name.
    pub file_name: String,
    /// Its address, whole or relative to the page.
    pub url: String,
    /// The SHA-256 that it has to have, in lower-case hexadecimal digits.
    pub sha256: Option<String>,
    /// True when it holds libraries for other packages, and goes where these look for them.
    pub is_library: bool,
}

/// A name in its one form (PEP 503): `Foo.Bar_baz` is `foo-bar-baz`.
pub fn normalized(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for part in name.split(['-', '_', '.']).filter(|part| !part.is_empty()) {
        if !normal.is_empty() {
            normal.push('-');
        }
        normal.push_str(&part.to_ascii_lowercase());
    }
    normal
}

/// Returns true when a text is a package's name.
fn is_name(name: &str) -> bool {
    let ends_well = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    ends_well(name.chars().next())
        && ends_well(name.chars().last())
        && name
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
}

/// 64 hexadecimal digits, in lower case.
fn sha256(digits: &str) -> Option<String> {
    let digits = digits.to_ascii_lowercase();
    (digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

fn not_found(what: impl Into<String>) -> Error {
    Error::PackageNotFound(what.into())
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;
