//! The kernelspec: the file by which notebooks find the kernel.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use jupyter_protocol::JupyterKernelspec;

use super::CellsArgs;
use sandglass_host::args::Secrets;

const FILE: &str = "kernel.json";
/// The arguments that mark a kernelspec as one of this program.
const COMMAND: [&str; 2] = ["kernel", "run"];

/// Options of `sandglass-host kernel install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// The folder of the kernelspec.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The name that notebooks show.
    #[arg(long, value_name = "TEXT", default_value = "Python (Sandglass)")]
    pub display_name: String,
    /// The sandbox of the kernel's cells.
    #[command(flatten)]
    pub cells: CellsArgs,
}

/// Options for the place of a kernelspec.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    /// The kernel's name, by which programs find it.
    #[arg(long, default_value = "sandglass", value_parser = kernel_name)]
    pub name: String,
    /// Use this user's Jupyter folder, which is the default.
    #[arg(long, conflicts_with = "prefix")]
    pub user: bool,
    /// Use an environment, such as a virtual environment: DIR/share/jupyter.
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
}

/// Checks that Jupyter allows a name.
fn kernel_name(text: &str) -> Result<String, String> {
    let fits = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "._-".contains(char);
    if text.is_empty() || text.starts_with('.') || !text.chars().all(fits) {
        return Err("must be of small letters, digits, dots, hyphens and underscores".to_owned());
    }
    Ok(text.to_owned())
}

impl PlaceArgs {
    /// The kernel's folder.
    fn folder(&self) -> Result<PathBuf, String> {
        let data = match &self.prefix {
            Some(prefix) => prefix.join("share").join("jupyter"),
            None => user_data(|name| std::env::var_os(name).filter(|value| !value.is_empty()))?,
        };
        Ok(data.join("kernels").join(&self.name))
    }
}

/// Jupyter's data folder of this user.
fn user_data(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    if let Some(folder) = variable("JUPYTER_DATA_DIR") {
        return Ok(folder.into());
    }
    if let Some(folder) = variable("XDG_DATA_HOME") {
        return Ok(PathBuf::from(folder).join("jupyter"));
    }
    let home = variable("HOME").ok_or("HOME is not set: say where by --prefix")?;
    Ok(PathBuf::from(home).join(".local/share/jupyter"))
}

/// Installs the kernelspec, and prints its folder.
pub(super) fn install(args: &InstallArgs) -> Result<u8, String> {
    // Reports a wrong model now, because later the error would only stand in a log.
    args.cells.model.endpoint(Secrets::from_environment()?.llm_key)?;
    let program = std::env::current_exe().map_err(|error| format!("this program's own path is not known: {error}"))?;
    let mut argv = vec![text(program.as_os_str())?];
    argv.extend(COMMAND.map(str::to_owned));
    argv.extend(["--connection-file", "{connection_file}"].map(str::to_owned));
    argv.extend(args.cells.argv()?);
    let spec = JupyterKernelspec {
        argv,
        display_name: args.display_name.clone(),
        language: "python".to_owned(),
        metadata: Some([("debugger".to_owned(), false.into())].into()),
        interrupt_mode: Some("message".to_owned()),
        // Not left out: Jupyter takes no null.
        env: Some(std::collections::HashMap::new()),
    };
    let folder = args.place.folder()?;
    let json = serde_json::to_vec_pretty(&spec).map_err(|error| error.to_string())?;
    write(&folder, &json).map_err(|error| format!("{} cannot be written: {error}", folder.display()))?;
    println!("{}", folder.display());
    Ok(0)
}

/// Removes the kernelspec, and prints its folder.
pub(super) fn uninstall(args: &PlaceArgs) -> Result<u8, String> {
    let folder = args.folder()?;
    let file = folder.join(FILE);
    let unread = |error| format!("there is no kernel in {}: {error}", folder.display());
    let text = std::fs::read_to_string(&file).map_err(unread)?;
    let spec: Option<JupyterKernelspec> = serde_json::from_str(&text).ok();
    let is_ours = spec.is_some_and(|spec| spec.argv.get(1..3).is_some_and(|command| command == COMMAND));
    if !is_ours {
        return Err(format!("{} is no kernel of this program's", folder.display()));
    }
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{} cannot be removed: {error}", folder.display()))?;
    println!("{}", folder.display());
    Ok(0)
}

/// Writes the file in one step, because a notebook may read it at any time.
fn write(folder: &Path, json: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(json)?;
    file.write_all(b"\n")?;
    // A temporary file is readable for its owner only, and an environment can have several users.
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.persist(folder.join(FILE))?;
    Ok(())
}

impl CellsArgs {
    /// The options as arguments, with absolute paths, so that they hold in any folder.
    fn argv(&self) -> Result<Vec<String>, String> {
        let mut argv = vec![format!("--backend={}", self.guest.backend)];
        let mut add = |option: &str, value: &str| argv.push(format!("--{option}={value}"));
        if let Some(python) = &self.guest.python {
            // A mere name is looked for on PATH.
            let path = if python.components().count() > 1 {
                absolute(python)?
            } else {
                text(python.as_os_str())?
            };
            add("python", &path);
        }
        for (option, value) in [("image", &self.guest.image), ("runtime", &self.guest.runtime)] {
            if let Some(value) = value {
                add(option, value);
            }
        }
        for (option, path) in [("workspace", &self.workspace), ("context", &self.context)] {
            if let Some(path) = path {
                add(option, &absolute(path)?);
            }
        }
        add("timeout", &self.timeout.to_string());
        add("max-output", &self.max_output.to_string());
        if let Some(url) = &self.model.llm_url {
            add("llm-url", url);
        }
        if !self.model.llm_model.is_empty() {
            add("llm-model", &self.model.llm_model.join(","));
        }
        if self.trust_output {
            argv.push("--trust-output".to_owned());
        }
        Ok(argv)
    }
}

fn absolute(path: &Path) -> Result<String, String> {
    let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text(path.as_os_str())
}

fn text(part: &OsStr) -> Result<String, String> {
    let text = part.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is no UTF-8, which kernel.json has to be", part.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_a_folder_as_jupyter_says() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.to_vec();
            user_data(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/ann");
        assert_eq!(of(&[home]).unwrap(), Path::new("/home/ann/.local/share/jupyter"));
        assert_eq!(of(&[home, ("XDG_DATA_HOME", "/x")]).unwrap(), Path::new("/x/jupyter"));
        assert_eq!(
            of(&[home, ("XDG_DATA_HOME", "/x"), ("JUPYTER_DATA_DIR", "/j")]).unwrap(),
            Path::new("/j")
        );
        assert!(of(&[]).unwrap_err().contains("--prefix"));
    }

    #[test]
    fn a_name_stays_in_its_folder() {
        for bad in ["", ".", "..", "a/b", "../a", "A", "a b"] {
            assert!(kernel_name(bad).is_err(), "{bad}");
        }
        assert_eq!(kernel_name("sandglass-3.13_a").unwrap(), "sandglass-3.13_a");
    }
}
