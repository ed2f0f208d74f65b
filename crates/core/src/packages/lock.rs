//! The format of `pyodide-lock.json`: the wheels that exist, and their requirements.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{normalized, sha256};
use crate::error::Error;

/// A lock file.
#[derive(Debug, Clone)]
pub struct Lock {
    url: String,
    /// The address of the folder with the files, with a slash at its end.
    base: String,
    packages: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct File {
    packages: BTreeMap<String, Entry>,
}

/// One package of the lock file.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) file_name: String,
    #[serde(default)]
    pub(super) sha256: String,
    #[serde(default)]
    pub(super) imports: Vec<String>,
    #[serde(default)]
    pub(super) depends: Vec<String>,
    #[serde(default)]
    install_dir: String,
    #[serde(default)]
    package_type: String,
}

impl Entry {
    pub(super) fn is_library(&self) -> bool {
        self.install_dir == "dynlib" || self.package_type == "shared_library"
    }
}

impl Lock {
    /// Reads the lock file that was fetched from `url`. `base` is the address of its files, if they lie elsewhere.
    ///
    /// # Errors
    /// [`Error::AssetFailed`] if `text` is not a lock file.
    pub fn parse(url: &str, base: Option<&str>, text: &str) -> Result<Self, Error> {
        let wrong =
            |what: String| Error::AssetFailed(format!("{url}: it is no lock file like pyodide-lock.json: {what}"));
        let file: File = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let mut packages = BTreeMap::new();
        for (key, entry) in file.packages {
            if sha256(&entry.sha256).is_none() {
                return Err(wrong(format!("{key} has no SHA-256")));
            }
            packages.insert(normalized(&key), entry);
        }
        let path = url.split(['?', '#']).next().unwrap_or(url);
        let beside = path.rfind('/').map_or("", |at| &path[..=at]);
        let base = base.unwrap_or(beside);
        let slash = if base.is_empty() || base.ends_with('/') {
            ""
        } else {
            "/"
        };
        Ok(Self {
            url: url.to_owned(),
            base: format!("{base}{slash}"),
            packages,
        })
    }

    /// The lock file's address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn find(&self, name: &str) -> Option<&Entry> {
        self.packages.get(name)
    }

    /// The address of a package's file.
    pub(super) fn locate(&self, entry: &Entry) -> String {
        if entry.file_name.contains("://") {
            entry.file_name.clone()
        } else {
            format!("{}{}", self.base, entry.file_name)
        }
    }

    /// The packages that hold these modules. Skips modules that no package holds.
    pub fn packages_with(&self, modules: &[String]) -> Vec<String> {
        let has = |entry: &Entry| {
            let top = |import: &String| import.split('.').next().unwrap_or(import).to_owned();
            entry.imports.iter().any(|import| modules.contains(&top(import)))
        };
        let found = self.packages.iter().filter(|(_, entry)| has(entry));
        found.map(|(name, _)| name.clone()).collect()
    }
}
