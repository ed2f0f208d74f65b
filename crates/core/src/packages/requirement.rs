//! Requirements: a package's name with acceptable versions (PEP 508), or a wheel's address.

use std::str::FromStr;

use pep440_rs::{Version, VersionSpecifiers};

use super::marker::{Environment, Marker};
use super::wheel::WheelName;
use super::{MAX_REQUIREMENT_CHARS, is_name, normalized, sha256};
use crate::error::Error;

/// A request for a package.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    /// The package's name, normalized.
    pub(super) name: String,
    /// The requested extras, normalized.
    pub(super) extras: Vec<String>,
    pub(super) source: Source,
    pub(super) marker: Option<Marker>,
}

/// The source of a package.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// The lock file, with the acceptable versions.
    Lock(VersionSpecifiers),
    /// The package index, with the acceptable versions.
    Index(VersionSpecifiers),
    /// A wheel's address, and its SHA-256 if known.
    Wheel { url: String, sha256: Option<String> },
}

/// The prefix of names that are those of the package index.
const INDEX: &str = "pypi:";

impl Requirement {
    /// Reads a requirement: `name`, `name>=2,<3`, `name[extra]`, `name; python_version < "3.12"`, `name @ https://….whl`, or a wheel's
    /// address alone. `#sha256=…` may follow an address. After `pypi:`, a name is one of the package index.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] with the problem, if the text is not a requirement.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let shown: String = text.chars().take(100).collect();
        read(text).map_err(|what| {
            let forms = "write \"name\", \"name>=2,<3\", \"name[extra]\", \"pypi:name\", \"name @ https://….whl\" or a wheel's address";
            Error::invalid("packages", format!("\"{shown}\" is no requirement: {what}; {forms}"))
        })
    }

    /// A requirement for any version of a package in the lock file.
    pub(super) fn any(name: &str) -> Self {
        Self {
            name: normalized(name),
            extras: Vec::new(),
            source: Source::Lock(VersionSpecifiers::empty()),
            marker: None,
        }
    }

    /// The same requirement, of the package index. Wheels keep their addresses.
    pub(super) fn of_index(mut self) -> Self {
        if let Source::Lock(wanted) = self.source {
            self.source = Source::Index(wanted);
        }
        self
    }

    /// Returns true if the requirement's condition holds in this environment.
    pub(super) fn applies(&self, environment: &Environment<'_>) -> bool {
        self.marker.as_ref().is_none_or(|marker| marker.holds(environment))
    }

    /// Returns true if the version is acceptable.
    pub(super) fn fits(&self, version: &str) -> bool {
        match &self.source {
            Source::Wheel { url, .. } => WheelName::of_url(url).is_ok_and(|wheel| wheel.version == version),
            Source::Lock(wanted) | Source::Index(wanted) if wanted.is_empty() => true,
            // The lock file has one version of each package, so a pre-release is acceptable too.
            Source::Lock(wanted) | Source::Index(wanted) => {
                Version::from_str(version).is_ok_and(|version| wanted.contains(&version))
            }
        }
    }

    /// The acceptable versions, as text for people.
    pub(super) fn wanted(&self) -> String {
        match &self.source {
            Source::Lock(wanted) | Source::Index(wanted) if wanted.is_empty() => "any version".to_owned(),
            Source::Lock(wanted) | Source::Index(wanted) => wanted.to_string(),
            Source::Wheel { url, .. } => url.clone(),
        }
    }
}

fn read(text: &str) -> Result<Requirement, String> {
    if let Some(rest) = text.strip_prefix(INDEX) {
        return match read(rest.trim_start())? {
            requirement @ Requirement {
                source: Source::Lock(_),
                ..
            } => Ok(requirement.of_index()),
            _ => Err(format!("a name follows after {INDEX}")),
        };
    }
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > MAX_REQUIREMENT_CHARS {
        return Err(format!("it has more than {MAX_REQUIREMENT_CHARS} characters"));
    }
    if is_address(text) {
        return wheel_at(None, Vec::new(), text);
    }
    let end = text
        .find(|char: char| !(char.is_ascii_alphanumeric() || "-_.".contains(char)))
        .unwrap_or(text.len());
    let (name, mut rest) = (&text[..end], text[end..].trim_start());
    if !is_name(name) {
        return Err(format!("\"{name}\" is no name of a package"));
    }
    let mut extras = Vec::new();
    if let Some(inner) = rest.strip_prefix('[') {
        let (list, after) = inner.split_once(']').ok_or("its [ is not closed")?;
        for extra in list.split(',').map(str::trim).filter(|extra| !extra.is_empty()) {
            if !is_name(extra) {
                return Err(format!("\"{extra}\" is no name of an extra"));
            }
            extras.push(normalized(extra));
        }
        rest = after.trim_start();
    }
    if let Some(address) = rest.strip_prefix('@') {
        // An address may contain a semicolon. Only one after a space begins a marker.
        let (address, marker) = match address.split_once(" ;") {
            Some((address, marker)) => (address, Some(marker)),
            None => (address, None),
        };
        let mut requirement = wheel_at(Some(name), extras, address.trim())?;
        requirement.marker = marker.map(Marker::parse).transpose()?;
        return Ok(requirement);
    }
    let (versions, marker) = match rest.split_once(';') {
        Some((versions, marker)) => (versions, Some(marker)),
        None => (rest, None),
    };
    let versions = versions.trim();
    let inner = versions.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let wanted = VersionSpecifiers::from_str(inner.unwrap_or(versions).trim());
    Ok(Requirement {
        name: normalized(name),
        extras,
        source: Source::Lock(wanted.map_err(|_| format!("\"{versions}\" is no range of versions"))?),
        marker: marker.map(Marker::parse).transpose()?,
    })
}

/// Returns true if a requirement is an address, not a name.
fn is_address(text: &str) -> bool {
    let path = text.split(['#', '?']).next().unwrap_or(text);
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| {
        scheme.len() > 1
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    !path.contains(['@', ';', '[', '<', '>', '=', '~']) && path.ends_with(".whl") || scheme.is_some_and(is_scheme)
}

fn wheel_at(name: Option<&str>, extras: Vec<String>, address: &str) -> Result<Requirement, String> {
    let (url, fragment) = address.split_once('#').unwrap_or((address, ""));
    if url.chars().any(char::is_whitespace) {
        return Err("an address holds no spaces".to_owned());
    }
    let found = WheelName::of_url(url)?;
    if name.is_some_and(|name| normalized(name) != normalized(&found.name)) {
        return Err(format!("the wheel there is one of {}", found.name));
    }
    let mut hash = None;
    for part in fragment.split('&') {
        if let Some(digits) = part.strip_prefix("sha256=") {
            hash = Some(sha256(digits).ok_or("sha256= wants 64 hexadecimal digits")?);
        }
    }
    Ok(Requirement {
        name: normalized(&found.name),
        extras,
        source: Source::Wheel {
            url: url.to_owned(),
            sha256: hash,
        },
        marker: None,
    })
}
