//! Finds and fetches packages, in the page. Only packages that the user named are fetched, and those that the lock file has for a module
//! that the code imports. A guest cannot have anything else fetched.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use js_sys::{Array, Object};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, Response};

use super::body;
use super::glue::{Glue, describe, fetch, get, object};
use super::outbox::JsBody;
use super::wheels::{self, Watcher};
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_PACKAGE_LIST_BYTES;
use sandglass_core::packages::{Lock, Requirement, Resolver, Step, Target, Wheel};
use sandglass_core::session::{Package, Wanted};

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
export interface SandboxOptions {
  /**
   * Packages to load before the first execution, as for `loadPackages`. The sandbox starts when all of them are loaded, and fails to start
   * when one cannot be.
   */
  packages?: string[];
  /** Loads packages of the lock file when code imports them. Default false. */
  autoImport?: boolean;
  /** A lock file in the format of `pyodide-lock.json`. Default: that of the Pyodide release in this package. */
  lockFileUrl?: string;
  /**
   * The folder of the lock file's wheels. Default: beside the lock file; for the lock file of this package, the public CDN of the Pyodide
   * release. With `null` no packages are fetched.
   */
  packageBaseUrl?: string | null;
  /**
   * A package index with PyPI's JSON API, for requirements such as `pypi:snowballstemmer`. The page asks for `<packageIndexUrl>/<name>/json`.
   * Default: none, and such requirements are refused.
   */
  packageIndexUrl?: string;
}

/** The options of `loadPackages`. */
export interface LoadOptions {
  /** Stops waiting. Files that were fetched by then are kept for the next call. */
  signal?: AbortSignal;
  /** Reports the progress of this call's files. */
  onProgress?: (progress: PackageProgress) => void;
}

/** The progress of a package's file, in bytes. `total` is null as long as the size is unknown. */
export type PackageProgress = { stage: "packages"; package: string; loaded: number; total: number | null };

/** A loaded package. */
export interface LoadedPackage {
  name: string;
  version: string;
}
"#;

/// The sandbox's options for packages.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    /// The requirements of the option `packages`.
    pub(super) wanted: Vec<String>,
    pub(super) auto_import: bool,
    lock_file_url: Option<String>,
    package_base_url: Option<String>,
    index_url: Option<String>,
    /// True when no packages may be fetched.
    is_offline: bool,
}

impl Settings {
    pub(super) const NAMES: [&'static str; 5] = [
        "packages",
        "autoImport",
        "lockFileUrl",
        "packageBaseUrl",
        "packageIndexUrl",
    ];

    pub(super) fn set(&mut self, name: &str, value: &JsValue) -> Result<(), Error> {
        let text = || {
            let text = value.as_string().filter(|text| !text.is_empty());
            text.ok_or_else(|| Error::invalid(name, "must be a string"))
        };
        match name {
            "packages" => self.wanted = requirements(name, value)?,
            "autoImport" => {
                let on = value.as_bool();
                self.auto_import = on.ok_or_else(|| Error::invalid(name, "must be true or false"))?;
            }
            "lockFileUrl" => self.lock_file_url = Some(text()?),
            "packageIndexUrl" => self.index_url = Some(text()?),
            _ => {
                self.is_offline = value.is_null();
                self.package_base_url = if self.is_offline { None } else { Some(text()?) };
            }
        }
        Ok(())
    }
}

/// Reads a list of requirements.
pub(super) fn requirements(name: &str, value: &JsValue) -> Result<Vec<String>, Error> {
    let wrong = || Error::invalid(name, "must be an array of strings, such as [\"pydantic>=2\"]");
    let list: &Array = value.dyn_ref().ok_or_else(wrong)?;
    let texts: Option<Vec<String>> = list.iter().map(|text| text.as_string()).collect();
    let texts = texts.ok_or_else(wrong)?;
    for text in &texts {
        Requirement::parse(text)?;
    }
    Ok(texts)
}

/// Loaded packages as the user gets them.
pub(super) fn show(wheels: &[Wheel]) -> JsValue {
    let row = |wheel: &Wheel| object(&[("name", &(&*wheel.name).into()), ("version", &(&*wheel.version).into())]);
    wheels.iter().map(row).collect::<Array>().into()
}

/// Hears the progress of a package: its name, the bytes received, and the size in bytes if known.
type Progress = Rc<dyn Fn(&str, f64, Option<f64>)>;

/// Finds the wheels that `wanted` needs and that are not `there` yet, and fetches them. `progress` hears how far each one is.
pub(super) async fn find(
    settings: &Settings,
    base: &str,
    glue: &Glue,
    wanted: Wanted,
    there: &[(String, String)],
    progress: Progress,
) -> Result<Vec<Package<JsBody>>, Error> {
    if settings.is_offline {
        return match wanted {
            Wanted::Modules(_) => Ok(Vec::new()),
            Wanted::Requirements(texts) if texts.is_empty() => Ok(Vec::new()),
            Wanted::Requirements(texts) => Err(Error::PackageNotFound(format!(
                "{}: packageBaseUrl is null, so no packages are fetched; nothing was installed",
                texts.join(", ")
            ))),
        };
    }
    let platform = glue.platform();
    let text = |name| get(&platform, name).as_string().unwrap_or_default();
    let target = Target {
        python: text("python"),
        abi: text("abi"),
    };
    let watcher = |wheel: &Wheel| -> Watcher {
        let (progress, name) = (progress.clone(), wheel.name.clone());
        Rc::new(move |loaded, total| progress(&name, loaded, total))
    };
    let lock = lock(settings, base, glue).await?;
    let requirements = match wanted {
        Wanted::Requirements(texts) => texts,
        Wanted::Modules(modules) => lock.packages_with(&modules),
    };
    let requirements: Result<Vec<Requirement>, Error> =
        requirements.iter().map(|text| Requirement::parse(text)).collect();
    let mut resolver = Resolver::new(&lock, &target, there, requirements?);
    let wheels = loop {
        match resolver.step()? {
            Step::Done(wheels) => break wheels,
            Step::Look(name) => resolver.take_project(&project(settings, &name).await?)?,
            Step::Read(wheel) => {
                let blob = wheels::want(&wheel, watcher(&wheel)).blob().await?;
                resolver.take_metadata(&metadata(glue, &wheel, &blob).await?)?;
            }
        }
    };
    // All at once: `wheels` limits how many downloads run at a time.
    let begin = |wheel: Wheel| {
        let file = wheels::want(&wheel, watcher(&wheel));
        (wheel, file)
    };
    let mut packages = Vec::new();
    for (wheel, file) in wheels.into_iter().map(begin).collect::<Vec<_>>() {
        let body = JsBody::Blob(file.blob().await?);
        packages.push(Package { wheel, body });
    }
    Ok(packages)
}

/// The index's answer about a package.
async fn project(settings: &Settings, name: &str) -> Result<String, Error> {
    let Some(index) = &settings.index_url else {
        let why = format!("\"pypi:{name}\" needs the option packageIndexUrl, the address of a package index");
        return Err(Error::invalid("packages", why));
    };
    let url = format!("{}/{name}/json", index.trim_end_matches('/'));
    let failed = |why: &str| {
        Error::AssetFailed(format!(
            "{url}: the package index could not be asked: {why}; nothing was installed"
        ))
    };
    let response = async { JsFuture::from(fetch(&url, &Object::new())?).await };
    let response: Response = response
        .await
        .map_err(|error| failed(&describe(&error)))?
        .unchecked_into();
    if response.status() == 404 {
        return Err(Error::PackageNotFound(format!(
            "{name}: the index has no such package; nothing was installed"
        )));
    }
    if !response.ok() {
        return Err(failed(&format!("the server answered {}", response.status())));
    }
    text(&response).await.map_err(|why| failed(&why))
}

/// The text of an answer about packages.
async fn text(response: &Response) -> Result<String, String> {
    let bytes = body::read_all(response, MAX_PACKAGE_LIST_BYTES).await;
    let bytes = bytes.map_err(|error| describe(&error))?;
    let bytes = bytes.ok_or_else(|| format!("the answer is longer than {MAX_PACKAGE_LIST_BYTES} bytes"))?;
    String::from_utf8(bytes).map_err(|_| "the answer is no UTF-8".to_owned())
}

async fn metadata(glue: &Glue, wheel: &Wheel, blob: &Blob) -> Result<String, Error> {
    let read = async { JsFuture::from(glue.read_metadata(blob)?).await };
    let text = read
        .await
        .map_err(|error| describe(&error))
        .map(|text| text.as_string());
    text.map(Option::unwrap_or_default)
        .map_err(|why| Error::Integrity(format!("{}: {why}; nothing was installed", wheel.file_name)))
}

/// The lock files that were read, by address, with the folder of their wheels.
type Locks = HashMap<(String, Option<String>), Rc<Lock>>;

thread_local! {
    static LOCKS: RefCell<Locks> = RefCell::default();
}

/// The public CDN of Pyodide's releases. The version and `/full/` follow.
const CDN: &str = "https://cdn.jsdelivr.net/pyodide/v";

/// Reads a lock file, and keeps it.
async fn lock(settings: &Settings, base: &str, glue: &Glue) -> Result<Rc<Lock>, Error> {
    const OWN: &str = "lock";
    let url = match &settings.lock_file_url {
        Some(url) => url.clone(),
        None => glue
            .asset_url(OWN, base)
            .map_err(|error| Error::AssetFailed(describe(&error)))?,
    };
    let key = (url.clone(), settings.package_base_url.clone());
    if let Some(lock) = LOCKS.with_borrow(|locks| locks.get(&key).cloned()) {
        return Ok(lock);
    }
    // The hash of the lock file in `dist/` is known.
    let init = match settings.lock_file_url {
        Some(_) => Object::new(),
        None => object(&[("integrity", &get(&glue.integrity(), OWN))]),
    };
    let failed = |why: &str| {
        Error::AssetFailed(format!(
            "{url}: the lock file of packages could not be fetched: {why}; nothing was installed"
        ))
    };
    let response = async { JsFuture::from(fetch(&url, &init)?).await };
    let response: Response = response
        .await
        .map_err(|error| failed(&describe(&error)))?
        .unchecked_into();
    if !response.ok() {
        return Err(failed(&format!("the server answered {}", response.status())));
    }
    let text = text(&response).await.map_err(|why| failed(&why))?;
    let release = format!(
        "{CDN}{}/full/",
        get(&glue.platform(), "pyodide").as_string().unwrap_or_default()
    );
    let wheels = settings.package_base_url.as_deref();
    let wheels = wheels.or(settings.lock_file_url.is_none().then_some(&release));
    let lock = Rc::new(Lock::parse(&url, wheels, &text)?);
    LOCKS.with_borrow_mut(|locks| locks.insert(key, lock.clone()));
    Ok(lock)
}
