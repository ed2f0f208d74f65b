//! Kernelspecs and connection files, as `jupyter_client` has them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sandglass_core::Error;
use serde::Deserialize;
use serde_json::json;

use crate::launcher::Settings;
use crate::runtime::which;
use crate::zmtp::Endpoint;

/// Bytes that such a file may have.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The kernelspec where none is named.
const DEFAULT_NAME: &str = "python3";

/// The way a kernel is started.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Spec {
    pub(super) argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The folder that it was found in.
    #[serde(skip)]
    folder: PathBuf,
    #[serde(skip)]
    name: String,
}

/// The place where a kernel is to be reached, and by which key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Connection {
    #[serde(default = "tcp")]
    transport: String,
    ip: String,
    shell_port: u16,
    control_port: u16,
    #[serde(default)]
    pub(super) key: String,
    #[serde(default = "hmac")]
    signature_scheme: String,
}

fn tcp() -> String {
    "tcp".to_owned()
}

fn hmac() -> String {
    "hmac-sha256".to_owned()
}

fn unusable(why: String) -> Error {
    Error::BackendUnavailable(why)
}

/// The contents of a file, which may be anybody's.
fn read<T: for<'a> Deserialize<'a>>(path: &Path, what: &str) -> Result<T, Error> {
    let wrong = |why: String| unusable(format!("the {what} {} cannot be used: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !size.is_file() || size.len() > MAX_FILE_BYTES {
        return Err(wrong("it is too large, or no file".to_owned()));
    }
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}

impl Spec {
    /// The kernelspec that the settings name: by its name, or by its folder.
    pub(super) fn find(settings: &Settings) -> Result<Self, Error> {
        let name = settings.kernel.name.as_deref().unwrap_or(DEFAULT_NAME);
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
        let mut spec: Self = read(&folder.join("kernel.json"), "kernelspec")?;
        // It is started in another folder than ours.
        spec.folder = std::path::absolute(folder).map_err(|error| unusable(error.to_string()))?;
        name.clone_into(&mut spec.name);
        spec.program()?;
        Ok(spec)
    }

    /// The prefix of the Python that it was installed with, if it was.
    fn prefix(&self) -> Option<&Path> {
        self.folder
            .to_str()?
            .split_once("/share/jupyter/")
            .map(|(prefix, _)| Path::new(prefix))
    }

    /// The program that it names: a plain `python` is the one that it was installed with.
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

    /// Its arguments after the program.
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

    /// The environment that it asks for, where `${NAME}` stands for a variable of ours.
    pub(super) fn env(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.env
            .iter()
            .map(|(name, value)| (name.into(), expanded(value).into()))
    }
}

/// Text with `${NAME}` replaced by what the environment has; what it has not stays.
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

/// The place where a program is: a mere name is looked for on PATH, and `./python` is in this folder.
fn located(program: &Path) -> Option<PathBuf> {
    match program.components().count() {
        1 if !program.to_str()?.contains('/') => which(program.to_str()?),
        _ => std::path::absolute(program).ok(),
    }
}

/// The place where kernelspecs are, the nearest first.
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

impl Connection {
    /// The contents of a connection file.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let connection: Self = read(path, "connection file")?;
        let wrong = |why: &str| unusable(format!("the connection file {} cannot be used: {why}", path.display()));
        if !matches!(connection.transport.as_str(), "tcp" | "ipc") {
            return Err(wrong("its transport is neither tcp nor ipc"));
        }
        if connection.signature_scheme != "hmac-sha256" {
            return Err(wrong("its signature_scheme is not hmac-sha256"));
        }
        Ok(connection)
    }

    /// Sockets in a folder that nobody else gets into.
    pub(super) fn private(folder: &Path, key: String) -> Self {
        Self {
            transport: "ipc".to_owned(),
            ip: folder.join("kernel").display().to_string(),
            shell_port: 1,
            control_port: 2,
            key,
            signature_scheme: hmac(),
        }
    }

    /// As the connection file of a kernel that is to be started.
    pub(super) fn to_json(&self) -> String {
        json!({
            "transport": self.transport, "ip": self.ip, "key": self.key, "signature_scheme": self.signature_scheme,
            "shell_port": self.shell_port, "control_port": self.control_port,
            "iopub_port": 3, "stdin_port": 4, "hb_port": 5,
        })
        .to_string()
    }

    pub(super) fn shell(&self) -> Endpoint {
        self.endpoint(self.shell_port)
    }

    pub(super) fn control(&self) -> Endpoint {
        self.endpoint(self.control_port)
    }

    fn endpoint(&self, port: u16) -> Endpoint {
        if self.transport == "ipc" {
            Endpoint::Ipc(format!("{}-{port}", self.ip).into())
        } else {
            // A kernel that listens everywhere is here.
            let ip = if matches!(self.ip.as_str(), "" | "*" | "0.0.0.0") {
                "127.0.0.1"
            } else {
                &self.ip
            };
            Endpoint::Tcp(ip.to_owned(), port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::KernelSettings;

    fn settings(name: &Path) -> Settings {
        Settings {
            kernel: KernelSettings {
                name: Some(name.display().to_string()),
                ..KernelSettings::default()
            },
            ..Settings::default()
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
        let spec = Spec::find(&Settings {
            python: Some(python.clone()),
            ..settings(Path::new("mine"))
        });
        let spec = spec.unwrap();
        assert_eq!(spec.program().unwrap(), python);
        let expected = [OsString::from("-f"), "/c".into(), folder.join("x").into()];
        assert_eq!(spec.args(Path::new("/c")), expected);
        let value = format!("{}:${{NO_SUCH}}", std::env::var("PATH").unwrap());
        assert_eq!(spec.env().collect::<Vec<_>>(), [("A".into(), value.into())]);
        assert_eq!(Spec::find(&settings(&folder)).unwrap().argv, spec.argv);
    }

    #[test]
    fn what_is_wrong_with_a_spec_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = Spec::find(&settings(&folder.path().join("none")))
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
            let error = Spec::find(&settings(folder.path())).unwrap_err();
            assert_eq!(error.code(), "backend_unavailable");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_connection_file_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel.json");
        let ours = Connection::private(folder.path(), "key".to_owned());
        std::fs::write(&path, ours.to_json()).unwrap();
        assert_eq!(Connection::read(&path).unwrap(), ours);
        for (text, why) in [
            (r#"{"ip": "127.0.0.1"}"#, "shell_port"),
            (
                r#"{"ip": "", "shell_port": 1, "control_port": 2, "transport": "udp"}"#,
                "transport",
            ),
            (
                r#"{"ip": "", "shell_port": 1, "control_port": 2, "signature_scheme": "hmac-md5"}"#,
                "signature_scheme",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Connection::read(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
