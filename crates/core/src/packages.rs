//! Packages: finds the wheels for the packages that a user asks for. Nothing here fetches a file; the caller does.
//!
//! A *requirement* names a package, with the versions that are acceptable. A *wheel* is a package's file. A *marker* is the condition of a
//! requirement, such as a version of Python. *Extras* are optional parts of a package with requirements of their own.
//!
//! | module | has |
//! |---|---|
//! | `requirement` | a user's text: `name[extra]>=2,<3`, `name @ https://….whl`, a wheel's address |
//! | `marker` | the condition after a requirement's semicolon (PEP 508) |
//! | `wheel` | the facts in a wheel's name and METADATA |
//! | `lock` | the format of `pyodide-lock.json` |
//! | `index` | the JSON API of a package index |
//! | `resolve` | the search for all wheels that requirements need |
//! | `imports` | the modules that code imports |
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

mod imports;
mod index;
mod lock;
mod marker;
mod requirement;
mod resolve;
mod wheel;

pub use imports::imported_modules;
pub use lock::Lock;
pub use requirement::Requirement;
pub use resolve::{Resolver, Step};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The most characters of a requirement, and the most wheels that one request may need.
const MAX_REQUIREMENT_CHARS: usize = 4_000;
const MAX_PACKAGES: usize = 2_000;

/// The Python for which wheels must be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The full version, such as `3.14.2`.
    pub python: String,
    /// The version of Pyodide's binary interface, as in the names of wheels, such as `2026_0`.
    pub abi: String,
}

impl Target {
    /// The version's first two numbers, such as `(3, 14)`.
    fn version(&self) -> (u32, u32) {
        let mut numbers = self.python.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// A wheel to install.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wheel {
    /// The package's name, in its author's spelling.
    pub name: String,
    /// The package's version.
    pub version: String,
    /// The file's name.
    pub file_name: String,
    /// The file's address, absolute or relative to the page.
    pub url: String,
    /// The SHA-256 that the file must have, in lower-case hexadecimal digits.
    pub sha256: Option<String>,
    /// True if the wheel holds libraries for other packages. It goes to the folder where these look for them.
    pub is_library: bool,
}

/// Normalizes a package's name (PEP 503): `Foo.Bar_baz` becomes `foo-bar-baz`.
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

/// Returns true if `text` is a valid name of a package.
fn is_name(name: &str) -> bool {
    let ends_well = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    ends_well(name.chars().next())
        && ends_well(name.chars().last())
        && name
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
}

/// The digits in lower case, if they are a SHA-256 in hexadecimal.
fn sha256(digits: &str) -> Option<String> {
    let digits = digits.to_ascii_lowercase();
    (digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

fn not_found(what: impl Into<String>) -> Error {
    Error::PackageNotFound(what.into())
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;
