//! Reads a wheel's name, and its METADATA.

use super::marker::Environment;
use super::{Requirement, Target, is_name, normalized};
use crate::error::Error;

/// The parts of a wheel's file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WheelName {
    pub(super) file_name: String,
    pub(super) name: String,
    pub(super) version: String,
    pythons: String,
    abis: String,
    platforms: String,
}

impl WheelName {
    /// Reads the file name in an address.
    pub(super) fn of_url(url: &str) -> Result<Self, String> {
        let path = url.split(['?', '#']).next().unwrap_or(url);
        Self::parse(&unescaped(path.rsplit('/').next().unwrap_or(path)))
    }

    pub(super) fn parse(file_name: &str) -> Result<Self, String> {
        let form = "a wheel is named name-version-python-abi-platform.whl";
        let stem = file_name
            .strip_suffix(".whl")
            .ok_or(format!("\"{file_name}\" is no wheel: {form}"))?;
        let parts: Vec<&str> = stem.split('-').collect();
        let ([name, version, pythons, abis, platforms] | [name, version, _, pythons, abis, platforms]) = parts[..]
        else {
            return Err(format!("\"{file_name}\" is no wheel: {form}"));
        };
        if !is_name(name) {
            return Err(format!("\"{name}\" is no name of a package"));
        }
        Ok(Self {
            file_name: file_name.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
            pythons: pythons.to_owned(),
            abis: abis.to_owned(),
            platforms: platforms.to_owned(),
        })
    }

    /// Checks that the target's Python can use the wheel. The error says why it cannot.
    pub(super) fn check(&self, target: &Target) -> Result<(), String> {
        let (major, minor) = target.version();
        let (own, any) = (format!("cp{major}{minor}"), format!("py{major}"));
        let stable = |tag: &str| {
            let minor_of = |digits: &str| digits.strip_prefix(&major.to_string())?.parse::<u32>().ok();
            tag.strip_prefix("cp")
                .or(tag.strip_prefix("py"))
                .and_then(minor_of)
                .is_some_and(|tag| tag <= minor)
        };
        let abi_is_stable = self.abis.split('.').any(|abi| abi == "abi3" || abi == "none");
        let python = self
            .pythons
            .split('.')
            .any(|tag| tag == own || tag == any || abi_is_stable && stable(tag));
        let abi = self
            .abis
            .split('.')
            .any(|abi| abi == "none" || abi == "abi3" || abi == own);
        let names = ["pyemscripten", "pyodide"].map(|name| format!("{name}_{}_wasm32", target.abi));
        let platform = self
            .platforms
            .split('.')
            .any(|tag| tag == "any" || names.iter().any(|name| name == tag));
        if python && abi && platform {
            return Ok(());
        }
        Err(format!(
            "the wheel {} is for {}-{}-{}; this is {own}-{own}-{}",
            self.file_name, self.pythons, self.abis, self.platforms, names[0]
        ))
    }
}

/// The requirements in a wheel's METADATA that hold in this environment. Fails if one cannot be read.
pub(super) fn requires(metadata: &str, environment: &Environment<'_>) -> Result<Vec<Requirement>, Error> {
    let headers = metadata.lines().take_while(|line| !line.trim().is_empty());
    let lines = headers.filter_map(|line| line.strip_prefix("Requires-Dist:"));
    let mut found = Vec::new();
    for line in lines {
        let requirement = Requirement::parse(line)?;
        if requirement.applies(environment) {
            found.push(requirement);
        }
    }
    Ok(found)
}

/// The package's name and version in METADATA.
pub(super) fn named(metadata: &str) -> Option<(String, String)> {
    let header = |name: &str| {
        let mut headers = metadata.lines().take_while(|line| !line.trim().is_empty());
        headers
            .find_map(|line| line.strip_prefix(name))
            .map(|value| value.trim().to_owned())
    };
    Some((header("Name:")?, header("Version:")?))
}

/// Returns true if METADATA belongs to the package `name`.
pub(super) fn is_of(metadata: &str, name: &str) -> bool {
    named(metadata).is_some_and(|(found, _)| normalized(&found) == normalized(name))
}

/// Decodes percent signs.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
