//! The JSON API of a package index, as PyPI's describes it: the files of a project's releases.

use std::collections::BTreeMap;
use std::str::FromStr;

use pep440_rs::{Version, VersionSpecifiers};
use serde::Deserialize;

use super::requirement::Requirement;
use super::wheel::WheelName;
use super::{Target, Wheel, normalized, not_found, sha256};
use crate::error::Error;

#[derive(Deserialize)]
struct Project {
    releases: BTreeMap<String, Vec<File>>,
}

#[derive(Deserialize)]
struct File {
    filename: String,
    url: String,
    #[serde(default)]
    digests: Digests,
    #[serde(default)]
    requires_python: Option<String>,
    #[serde(default)]
    yanked: bool,
}

#[derive(Default, Deserialize)]
struct Digests {
    #[serde(default)]
    sha256: String,
}

/// Chooses the newest wheel of a project that fits. A pre-release is chosen only if nothing else fits, or the requirement names one.
///
/// # Errors
/// [`Error::PackageNotFound`] if no wheel fits, or `text` is not such an answer.
pub(super) fn choose(text: &str, requirement: &Requirement, target: &Target) -> Result<Wheel, Error> {
    let name = &requirement.name;
    let project: Project = serde_json::from_str(text)
        .map_err(|error| not_found(format!("{name}: the index's answer cannot be read: {error}")))?;
    let python = Version::from_str(&target.python).ok();
    let has_python = |file: &File| {
        let wanted = file.requires_python.as_deref().unwrap_or_default();
        let wanted = VersionSpecifiers::from_str(wanted).unwrap_or_else(|_| VersionSpecifiers::empty());
        python.as_ref().is_none_or(|python| wanted.contains(python))
    };
    let mut best: Option<((bool, Version), Wheel)> = None;
    for (release, files) in project.releases {
        let Ok(version) = Version::from_str(&release) else {
            continue;
        };
        if !requirement.fits(&release) {
            continue;
        }
        let rank = (!version.any_prerelease(), version);
        if best.as_ref().is_some_and(|(other, _)| *other >= rank) {
            continue;
        }
        let fits = |file: &&File| !file.yanked && has_python(file);
        let wheels = files.iter().filter(fits).filter_map(|file| wheel(file, name, target));
        let is_it = |wheel: &Wheel| Version::from_str(&wheel.version).is_ok_and(|found| found == rank.1);
        let found = wheels.into_iter().find(is_it);
        if let Some(wheel) = found {
            best = Some((rank, wheel));
        }
    }
    let wanted = requirement.wanted();
    best.map(|(_, wheel)| wheel).ok_or_else(|| {
        not_found(format!(
            "{name}: the index has no wheel of {wanted} for Python {} in WebAssembly",
            target.python
        ))
    })
}

/// The wheel in a file, if the target's Python can use it and the index tells its hash.
fn wheel(file: &File, name: &str, target: &Target) -> Option<Wheel> {
    let found = WheelName::parse(&file.filename).ok()?;
    found.check(target).ok()?;
    let is_address = file.url.starts_with("https://") || file.url.starts_with("http://");
    (is_address && normalized(&found.name) == name).then_some(())?;
    Some(Wheel {
        name: found.name,
        version: found.version,
        file_name: found.file_name,
        url: file.url.clone(),
        sha256: Some(sha256(&file.digests.sha256)?),
        is_library: false,
    })
}
