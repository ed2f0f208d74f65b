//! The files that guests see beside a Python: our package, and an `/etc` of their own. Facts about a Python that runs guests.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::launcher::Settings;
use crate::temporary::TemporaryFolder;
use sandglass_core::Error;
use sandglass_core::guest::FILES;
use serde::Deserialize;
use tokio::process::Command;

/// The oldest supported Python of guests.
const OLDEST: (u32, u32) = (3, 11);

/// A Python's facts about itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Python {
    /// The program as it was found. A virtual environment's Python is a link, and must be started by its own name.
    #[serde(skip)]
    pub executable: PathBuf,
    /// The program's path after all links.
    pub real: PathBuf,
    /// The folder of the virtual environment or of the installation.
    pub prefix: PathBuf,
    /// The folder of the installation.
    pub base: PathBuf,
    /// `X.Y`, as numbers.
    pub version: (u32, u32),
}

const ASK: &str = "import json, os, sys; print(json.dumps({\
    'real': os.path.realpath(sys.executable), 'prefix': sys.prefix, 'base': sys.base_prefix, \
    'version': sys.version_info[:2]}))";

impl Python {
    /// The Python at this path, or an installed one. The system's comes first, because other users can read it.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there is no Python, or it is too old.
    pub async fn find(path: Option<&Path>) -> Result<Self, Error> {
        let path = match path {
            Some(path) => path.to_owned(),
            None if Path::new("/usr/bin/python3").exists() => PathBuf::from("/usr/bin/python3"),
            None => which("python3").ok_or_else(|| {
                Error::BackendUnavailable("there is no python3: install Python 3.11 or newer".to_owned())
            })?,
        };
        if let Some(python) = known_pythons().get(&path) {
            return Ok(python.clone());
        }
        let failed = |why: String| {
            let path = path.display();
            Error::BackendUnavailable(format!("the Python {path} cannot be used: {why}"))
        };
        let output = Command::new(&path)
            .args(["-I", "-c", ASK])
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let mut python: Self =
            serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("its answer is odd: {error}")))?;
        if python.version < OLDEST {
            let ((major, minor), (least_major, least_minor)) = (python.version, OLDEST);
            return Err(failed(format!(
                "it is {major}.{minor}, guests need {least_major}.{least_minor}"
            )));
        }
        python.executable = std::path::absolute(&path).map_err(|error| failed(error.to_string()))?;
        known_pythons().insert(path, python.clone());
        Ok(python)
    }
}

/// The Pythons that were examined before.
fn known_pythons() -> MutexGuard<'static, HashMap<PathBuf, Python>> {
    static KNOWN: LazyLock<Mutex<HashMap<PathBuf, Python>>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Python's environment variable with the seed of hashes.
pub const HASH_SEED: &str = "PYTHONHASHSEED";

/// The arguments that start a Python as a guest. `package` is the package's folder. Python's isolated mode keeps its
/// environment and its working folder from changing imports.
///
/// A guest that records executions has the environment's seed of hashes ([`HASH_SEED`]), which isolated mode would ignore. Its environment is
/// the backend's, so the rest of that mode is the same.
pub fn guest_args(package: &Path, settings: &Settings) -> Vec<OsString> {
    const START: &str = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sandglass.__main__ import main; main()";
    let isolated: &[&str] = match settings.journal_seed {
        Some(_) => &["-P", "-s"],
        None => &["-I"],
    };
    let mut args: Vec<OsString> = isolated.iter().chain(&["-c", START]).map(OsString::from).collect();
    args.push(package.as_os_str().to_owned());
    if settings.journal_seed.is_some() {
        args.push("--journals".into());
    }
    let preload = &settings.preload;
    if !preload.is_empty() {
        args.extend(["--preload".into(), preload.join(",").into()]);
    }
    args
}

/// The first program of this name on `PATH`.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
}

/// A program of a Python package that is installed in the environment of this program, as by `pip`. `path` begins with the package's name.
pub fn packaged(path: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let environment = this.parent()?.parent()?; // above the folder of programs
    let libraries = ["lib", "lib64"].map(|folder| environment.join(folder).read_dir());
    let of_versions = libraries.into_iter().flatten().flatten().flatten();
    let of_versions = of_versions
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|packages| entry.path().join(packages)));
    let of_target = environment.to_owned(); // of `pip install --target`
    std::iter::once(of_target)
        .chain(of_versions)
        .map(|packages| packages.join(path))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn unwritten(error: std::io::Error) -> Error {
    Error::BackendUnavailable(format!(
        "the Python package could not be written to a temporary folder: {error}"
    ))
}

/// The package `sandglass` in a folder of this process, with the few files that replace the host's `/etc`. All users can read
/// the folder, and only its owner can write. It is removed with the last backend that uses it.
#[derive(Debug)]
pub struct Runtime {
    folder: TemporaryFolder,
}

static SHARED: Mutex<Option<HashMap<PathBuf, Weak<Runtime>>>> = Mutex::new(None);

/// The files of a guest's `/etc`.
const ETC: [(&str, &str); 6] = [
    (
        "passwd",
        "guest:x:1000:1000:guest:/workspace:/bin/sh\nroot:x:0:0:root:/:/bin/false\n",
    ),
    ("group", "guest:x:1000:\nroot:x:0:\n"),
    ("hosts", "127.0.0.1 localhost sandglass\n::1 localhost\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("resolv.conf", ""),
    // The file is for fontconfig, which matplotlib asks for fonts.
    (
        "fonts.conf",
        "<?xml version=\"1.0\"?><fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fontconfig</cachedir></fontconfig>\n",
    ),
];

impl Runtime {
    /// The files for guests of `python`, compiled by it, so that guests start faster.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when the files cannot be written.
    pub async fn prepare(python: &Python) -> Result<Arc<Self>, Error> {
        let key = python.executable.clone();
        if let Some(runtime) = Self::shared(&key) {
            return Ok(runtime);
        }
        let runtime = Self::write().map_err(unwritten)?;
        let compiled = Command::new(&python.executable)
            .args([
                "-I",
                "-S",
                "-m",
                "compileall",
                "-q",
                "--invalidation-mode",
                "unchecked-hash",
            ])
            .arg(runtime.path())
            .stdin(Stdio::null())
            .output()
            .await;
        if !compiled.as_ref().is_ok_and(|output| output.status.success()) {
            tracing::debug!(?compiled, "the package is not compiled: guests start slower");
        }
        Ok(Self::share(key, runtime))
    }

    /// The files for guests of a Python on another machine, such as that of the image `key`. They are not compiled.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when the files cannot be written.
    pub fn prepare_elsewhere(key: &Path) -> Result<Arc<Self>, Error> {
        match Self::shared(key) {
            Some(runtime) => Ok(runtime),
            None => Ok(Self::share(key.to_owned(), Self::write().map_err(unwritten)?)),
        }
    }

    /// Returns true when the files were compiled.
    pub fn is_compiled(&self) -> bool {
        self.path().join("sandglass/__pycache__").exists()
    }

    fn share(key: PathBuf, runtime: Self) -> Arc<Self> {
        let runtime = Arc::new(runtime);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get_or_insert_default().insert(key, Arc::downgrade(&runtime));
        runtime
    }

    fn shared(key: &Path) -> Option<Arc<Self>> {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.as_ref()?.get(key).and_then(Weak::upgrade)
    }

    fn write() -> std::io::Result<Self> {
        let folder = TemporaryFolder::new("runtime")?;
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), readable.clone())?;
        for (name, files) in [("python/sandglass", FILES), ("etc", &ETC[..])] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path)?;
            for (name, text) in files {
                if let Some((part, _)) = name.rsplit_once('/') {
                    std::fs::create_dir_all(path.join(part))?;
                    std::fs::set_permissions(path.join(part), readable.clone())?;
                }
                std::fs::write(path.join(name), text)?;
                std::fs::set_permissions(path.join(name), std::fs::Permissions::from_mode(0o644))?;
            }
            if name == "etc" {
                // The loader's cache of libraries. Without it, libraries outside of the usual folders are not found.
                let _ = std::fs::copy("/etc/ld.so.cache", path.join("ld.so.cache"));
            }
            std::fs::set_permissions(path, readable.clone())?;
        }
        std::fs::set_permissions(folder.path().join("python"), readable)?;
        Ok(Self { folder })
    }

    /// The folder that contains the package, for `PYTHONPATH`.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    /// The folder that guests see as `/etc`.
    pub fn etc(&self) -> PathBuf {
        self.folder.path().join("etc")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_virtual_environment_is_known_by_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let system = Python::find(None).await.unwrap();
        let home = system.real.parent().unwrap().display().to_string();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(folder.path().join("pyvenv.cfg"), format!("home = {home}\n")).unwrap();
        let program = folder.path().join("bin/python3");
        std::os::unix::fs::symlink(&system.real, &program).unwrap();
        let python = Python::find(Some(&program)).await.unwrap();
        assert_eq!(python.prefix, folder.path().canonicalize().unwrap());
        assert_eq!((python.base, python.executable), (system.base, program));
    }
}
