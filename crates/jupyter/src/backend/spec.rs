//! Kernelspecs, found as `jupyter_client` finds them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sandglass_core::Error;
use sandglass_host::Settings;
use sandglass_host::runtime::which;
use serde::Deserialize;

use super::KernelSettings;
use crate::connection::read_json;

/// The kernelspec where none is named.
const DEFAULT_NAME: &str = "python3";

/// A kernelspec, which describes how to start a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Spec {
    pub(super) argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The folder of the kernelspec.
    #[serde(skip)]
    folder: PathBuf,
    #[serde(skip)]
    name: String,
}

fn unusable(why: String) -> Error {
    Error::BackendUnavailable(why)
}

impl Spec {
    /// Finds the kernelspec of the settings, by its name or by its folder.
    pub(super) fn find(kernel: &KernelSettings, settings: &Settings) -> Result<Self, Error> {
        let name = kernel.name.as_deref().unwrap_or(DEFAULT_NAME);
        let folders = if name.contains('/') {
            vec![PathBuf::from(name.strip_suffix("/kernel.json").unwrap_or(name))]
        } else {
            data_folders(settings)
                .map(|data| data.join("kernels").join(name))
                .collect()
        };
        let found = folders.iter().find(|folder| folder.join("kernel.json").exists());
        let Some(folder) = found else {
            let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            return Err(unusable(format!(
                "there is no kernelspec \"{name}\" (looked for {}): install ipykernel into a Python and name that (--python), or \
                 name another kernelspec (--kernel)",
                looked.join(", ")
            )));
        };
        let mut spec: Self = read_json(&folder.join("kernel.json"), "kernelspec").map_err(unusable)?;
        // The kernel starts in another folder than the host's.
        spec.folder = std::path::absolute(folder).map_err(|error| unusable(error.to_string()))?;
        name.clone_into(&mut spec.name);
        spec.program()?;
        Ok(spec)
    }

    /// The prefix of the Python that installed the kernelspec, if the folder is below one.
    fn prefix(&self) -> Option<&Path> {
        self.folder
            .to_str()?
            .split_once("/share/jupyter/")
            .map(|(prefix, _)| Path::new(prefix))
    }

    /// The kernelspec's program. A plain `python` means the Python that installed the kernelspec.
    pub(super) fn program(&self) -> Result<PathBuf, Error> {
        let wrong = |why: String| unusable(format!("the kernelspec \"{}\" cannot be started: {why}", self.name));
        let named = self
            .argv
            .first()
            .ok_or_else(|| wrong("it names no program".to_owned()))?;
        if named.contains('/') {
            let path = PathBuf::from(self.filled(named, Path::new("")));
            let exists = path.exists();
            return exists
                .then_some(path)
                .ok_or_else(|| wrong(format!("there is no program {named}")));
        }
        let own = self.prefix().map(|prefix| prefix.join("bin").join(named));
        let own = own.filter(|path| named.starts_with("python") && path.exists());
        own.or_else(|| which(named))
            .ok_or_else(|| wrong(format!("there is no program {named} on PATH")))
    }

    /// The kernelspec's arguments after the program.
    pub(super) fn args(&self, connection_file: &Path) -> Vec<OsString> {
        let args = self.argv.iter().skip(1);
        args.map(|arg| self.filled(arg, connection_file).into()).collect()
    }

    fn filled(&self, text: &str, connection_file: &Path) -> String {
        let prefix = self.prefix().unwrap_or(Path::new(""));
        text.replace("{connection_file}", &connection_file.display().to_string())
            .replace("{resource_dir}", &self.folder.display().to_string())
            .replace("{prefix}", &prefix.display().to_string())
    }

    /// The kernelspec's environment, with each `${NAME}` replaced by the host's variable of that name.
    pub(super) fn env(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.env
            .iter()
            .map(|(name, value)| (name.into(), expanded(value).into()))
    }
}

/// Text with each `${NAME}` replaced by a variable of the host's environment. An unknown name stays unchanged.
fn expanded(text: &str) -> String {
    let mut parts = text.split("${");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}').map(|(name, rest)| (std::env::var(name), rest)) {
            Some((Ok(value), rest)) => whole.extend([&value, rest]),
            _ => whole.extend(["${", part]),
        }
    }
    whole
}

/// The path of a program: a plain name is searched on PATH, and `./python` is in the kernelspec's folder.
fn located(program: &Path) -> Option<PathBuf> {
    match program.components().count() {
        1 if !program.to_str()?.contains('/') => which(program.to_str()?),
        _ => std::path::absolute(program).ok(),
    }
}

/// The folders where kernelspecs are searched, the nearest first.
fn data_folders(settings: &Settings) -> impl Iterator<Item = PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let python = settings.python.as_deref().and_then(located);
    let python = python.and_then(|python| Some(python.parent()?.parent()?.join("share/jupyter")));
    let path = of("JUPYTER_PATH").unwrap_or_default();
    let path: Vec<_> = std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .collect();
    let home = of("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = of("JUPYTER_DATA_DIR").map(PathBuf::from);
    let user = data.or_else(|| Some(of("XDG_DATA_HOME").map(PathBuf::from).or(home)?.join("jupyter")));
    let system = ["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from);
    python.into_iter().chain(path).chain(user).chain(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &Path) -> KernelSettings {
        KernelSettings {
            name: Some(name.display().to_string()),
            ..KernelSettings::default()
        }
    }

    #[test]
    fn a_plain_python_is_the_one_next_to_it() {
        let prefix = tempfile::tempdir().unwrap();
        let folder = prefix.path().join("share/jupyter/kernels/mine");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir(prefix.path().join("bin")).unwrap();
        let python = prefix.path().join("bin/python");
        std::fs::write(&python, "").unwrap();
        let text = r#"{"argv": ["python", "-f", "{connection_file}", "{resource_dir}/x"], "env": {"A": "${PATH}:${NO_SUCH}"}}"#;
        std::fs::write(folder.join("kernel.json"), text).unwrap();
        let settings = Settings {
            python: Some(python.clone()),
            ..Settings::default()
        };
        let spec = Spec::find(&named(Path::new("mine")), &settings).unwrap();
        assert_eq!(spec.program().unwrap(), python);
        let expected = [OsString::from("-f"), "/c".into(), folder.join("x").into()];
        assert_eq!(spec.args(Path::new("/c")), expected);
        let value = format!("{}:${{NO_SUCH}}", std::env::var("PATH").unwrap());
        assert_eq!(spec.env().collect::<Vec<_>>(), [("A".into(), value.into())]);
        assert_eq!(Spec::find(&named(&folder), &settings).unwrap().argv, spec.argv);
    }

    #[test]
    fn what_is_wrong_with_a_spec_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = Spec::find(&named(&folder.path().join("none")), &Settings::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("there is no kernelspec") && error.contains("--kernel"),
            "{error}"
        );
        for (text, why) in [
            ("{", "cannot be used"),
            (r#"{"argv": []}"#, "names no program"),
            (r#"{"argv": ["/no/such/python"]}"#, "no program /no/such/python"),
            (r#"{"argv": ["no-such-program"]}"#, "no-such-program on PATH"),
        ] {
            std::fs::write(folder.path().join("kernel.json"), text).unwrap();
            let error = Spec::find(&named(folder.path()), &Settings::default()).unwrap_err();
            assert_eq!(error.code(), "backend_unavailable");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
