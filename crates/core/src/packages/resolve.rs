//! Finds the wheels that a list of requirements needs.

use std::collections::VecDeque;

use super::index;
use super::lock::Lock;
use super::marker::Environment;
use super::requirement::{Requirement, Source};
use super::wheel::{self, WheelName};
use super::{MAX_PACKAGES, Target, Wheel, normalized, not_found};
use crate::error::Error;

/// Finds the wheels step by step. A package's requirements may be in a file, which the caller fetches between two steps.
#[derive(Debug)]
pub struct Resolver<'a> {
    lock: &'a Lock,
    target: &'a Target,
    /// Packages that are installed already: normalized names, and versions. They are not fetched again.
    there: &'a [(String, String)],
    todo: VecDeque<Need>,
    chosen: Vec<Wheel>,
    /// The package whose METADATA is read next: its index in `chosen`, its extras, and true if the lock file has its other requirements.
    reading: Option<(usize, Vec<String>, bool)>,
    /// The need that the package index is asked about next.
    looking: Option<Need>,
    /// The packages of `chosen` that come from the package index. What they require may come from there, too.
    of_index: Vec<usize>,
    /// Packages and extras whose METADATA was read already.
    seen: Vec<(String, Vec<String>)>,
}

#[derive(Debug)]
struct Need {
    requirement: Requirement,
    /// The package that has this requirement; empty if the user asked for it.
    by: String,
    /// True if the package index may be asked for what the lock file lacks.
    may_look: bool,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The caller must give the METADATA of this wheel to [`Resolver::take_metadata`].
    Read(Wheel),
    /// The caller must give the answer of the package index about the package of this name to [`Resolver::take_project`].
    Look(String),
    /// The search is over; these are the wheels.
    Done(Vec<Wheel>),
}

impl<'a> Resolver<'a> {
    /// Begins a search for `wanted`. `there` lists packages that are installed already: normalized names, and versions.
    pub fn new(lock: &'a Lock, target: &'a Target, there: &'a [(String, String)], wanted: Vec<Requirement>) -> Self {
        let nobody = |requirement| Need {
            requirement,
            by: String::new(),
            may_look: false,
        };
        Self {
            lock,
            target,
            there,
            todo: wanted.into_iter().map(nobody).collect(),
            chosen: Vec::new(),
            reading: None,
            looking: None,
            of_index: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Continues until the caller must fetch something, or all wheels are found.
    ///
    /// # Errors
    /// [`Error::PackageNotFound`] if a package does not exist, or not in an acceptable version.
    pub fn step(&mut self) -> Result<Step, Error> {
        while self.reading.is_none() {
            let Some(need) = self.todo.pop_front() else {
                return Ok(Step::Done(std::mem::take(&mut self.chosen)));
            };
            let environment = Environment {
                target: self.target,
                extras: &[],
            };
            // A wheel's requirements were filtered when its METADATA was read, with its extras.
            if need.by.is_empty() && !need.requirement.applies(&environment) {
                continue;
            }
            self.find(need)?;
            if let Some(need) = &self.looking {
                return Ok(Step::Look(need.requirement.name.clone()));
            }
        }
        let wheel = self.reading.as_ref().and_then(|(index, ..)| self.chosen.get(*index));
        Ok(wheel.map_or(Step::Done(Vec::new()), |wheel| Step::Read(wheel.clone())))
    }

    /// Takes the answer of the package index to the last [`Step::Look`].
    ///
    /// # Errors
    /// [`Error::PackageNotFound`] if no wheel of it fits.
    pub fn take_project(&mut self, answer: &str) -> Result<(), Error> {
        let Some(Need { requirement, .. }) = self.looking.take() else {
            return Ok(());
        };
        let index = self.chosen.len();
        self.chosen.push(index::choose(answer, &requirement, self.target)?);
        self.of_index.push(index);
        self.reading = Some((index, requirement.extras, false));
        Ok(())
    }

    /// Takes the METADATA of the wheel in the last [`Step::Read`].
    ///
    /// # Errors
    /// [`Error::Integrity`] if it belongs to another package; [`Error::PackageNotFound`] if one of its requirements cannot be read.
    pub fn take_metadata(&mut self, metadata: &str) -> Result<(), Error> {
        let Some((index, extras, knows_rest)) = self.reading.take() else {
            return Ok(());
        };
        let Some(wheel) = self.chosen.get(index) else {
            return Ok(());
        };
        let file = &wheel.file_name;
        if !wheel::is_of(metadata, &wheel.name) {
            let what = format!(
                "{file}: its METADATA is not that of {}; nothing was installed",
                wheel.name
            );
            return Err(Error::Integrity(what));
        }
        let broken = |error: Error| not_found(format!("{file}: what it requires cannot be read: {error}"));
        let required = |extras: &[String]| {
            let target = self.target;
            wheel::requires(metadata, &Environment { target, extras }).map_err(broken)
        };
        let usual = if knows_rest { required(&[])? } else { Vec::new() };
        let by = wheel.name.clone();
        let may_look = self.of_index.contains(&index);
        for requirement in required(&extras)? {
            if !usual.contains(&requirement) {
                self.todo.push_back(Need {
                    requirement,
                    by: by.clone(),
                    may_look,
                });
            }
        }
        Ok(())
    }

    fn find(&mut self, need: Need) -> Result<(), Error> {
        let Need {
            requirement,
            by,
            may_look,
        } = need;
        let (name, wanted) = (&requirement.name, requirement.wanted());
        let for_whom = if by.is_empty() {
            String::new()
        } else {
            format!(", which {by} requires")
        };
        if let Some((_, version)) = self.there.iter().find(|(there, _)| there == name) {
            if !requirement.fits(version) {
                return Err(not_found(format!(
                    "{name}: version {version} is loaded already, {wanted} is wanted{for_whom}; a package that is loaded cannot be exchanged: create another sandbox"
                )));
            }
            if requirement.extras.is_empty() {
                return Ok(());
            }
        }
        if let Some(index) = self.chosen.iter().position(|wheel| normalized(&wheel.name) == *name) {
            let version = &self.chosen[index].version;
            if !requirement.fits(version) {
                return Err(not_found(format!(
                    "{name}: version {version} is what something else comes down to, {wanted} is wanted{for_whom}; ask for versions that go together"
                )));
            }
            self.read_extras(index, &requirement, true);
            return Ok(());
        }
        if self.chosen.len() >= MAX_PACKAGES {
            return Err(not_found(format!(
                "{name}: more than {MAX_PACKAGES} packages are wanted"
            )));
        }
        let index = self.chosen.len();
        let is_locked = |entry: &super::lock::Entry| requirement.fits(&entry.version);
        match &requirement.source {
            Source::Index(_) => self.look(requirement, by),
            Source::Lock(_) if may_look && !self.lock.find(name).is_some_and(is_locked) => {
                self.look(requirement.of_index(), by);
            }
            Source::Wheel { url, sha256 } => {
                let found = WheelName::of_url(url).map_err(not_found)?;
                found.check(self.target).map_err(not_found)?;
                self.chosen.push(Wheel {
                    name: found.name,
                    version: found.version,
                    file_name: found.file_name,
                    url: url.clone(),
                    sha256: sha256.clone(),
                    is_library: false,
                });
                self.reading = Some((index, requirement.extras.clone(), false));
            }
            Source::Lock(_) => {
                let lock = self.lock;
                let Some(entry) = lock.find(name) else {
                    return Err(not_found(format!(
                        "{name}{for_whom}: there is no such package in {}; add it there, or ask for \"{name} @ https://….whl\"",
                        lock.url()
                    )));
                };
                if !requirement.fits(&entry.version) {
                    return Err(not_found(format!(
                        "{name}: {wanted} is wanted{for_whom}, {} has version {}; ask for that, or for \"{name} @ https://….whl\"",
                        lock.url(),
                        entry.version
                    )));
                }
                if let Ok(file) = WheelName::parse(&entry.file_name) {
                    file.check(self.target).map_err(not_found)?;
                }
                let file_name = entry.file_name.rsplit('/').next().unwrap_or_default().to_owned();
                self.chosen.push(Wheel {
                    name: entry.name.clone(),
                    version: entry.version.clone(),
                    file_name,
                    url: lock.locate(entry),
                    sha256: Some(entry.sha256.to_ascii_lowercase()),
                    is_library: entry.is_library(),
                });
                for depends in &entry.depends {
                    self.todo.push_back(Need {
                        requirement: Requirement::any(depends),
                        by: entry.name.clone(),
                        may_look: false,
                    });
                }
                self.read_extras(index, &requirement, true);
            }
        }
        Ok(())
    }

    fn look(&mut self, requirement: Requirement, by: String) {
        self.looking = Some(Need {
            requirement,
            by,
            may_look: true,
        });
    }

    /// Asks for the METADATA of a package with extras, because the lock file does not list the requirements of extras.
    fn read_extras(&mut self, index: usize, requirement: &Requirement, knows_rest: bool) {
        let asked = (requirement.name.clone(), requirement.extras.clone());
        if !requirement.extras.is_empty() && !self.seen.contains(&asked) {
            self.seen.push(asked);
            self.reading = Some((index, requirement.extras.clone(), knows_rest));
        }
    }
}
