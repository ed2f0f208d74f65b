//! Installs packages for guests: an image for Docker, or a virtual environment for bubblewrap with the same packages.
//!
//! The program contains all files for both. Their sources are in `host/image/`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use bollard::{Docker, body_full};
use futures_util::StreamExt;
use sandglass_core::Error;
use tokio::process::Command;

use crate::engine::{self, is_missing, said, unavailable};

/// The default image of guests.
pub const IMAGE: &str = "sandglass-repl";
/// The image of `host/image/debian-base.sh`: Debian with Python, made without a registry.
pub const BASE: &str = "sandglass-base";
/// The base image from a registry, used if the local base image is missing.
pub const REGISTRY_BASE: &str = "python:3.13-slim";

const DOCKERFILE: &str = include_str!("../image/Dockerfile");
const REQUIREMENTS: &str = include_str!("../image/requirements.txt");
const REQUIREMENTS_SLIM: &str = include_str!("../image/requirements-slim.txt");
const CHECK: &str = include_str!("../image/check.py");
const DEBIAN_BASE: &str = include_str!("../image/debian-base.sh");

/// Variables of pip that a build takes from its environment.
const PIP: [&str; 3] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"];
/// Variables of a proxy, which every build knows as arguments.
const PROXY: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Files of trusted certificates on common systems. The first existing one is used.
const CERTIFICATES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Which packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Packages {
    /// All of `requirements.txt`.
    #[default]
    All,
    /// The few of `requirements-slim.txt`.
    Slim,
    /// The packages of the user's requirements file, as pip reads it.
    Listed(String),
}

impl Packages {
    /// The packages as a requirements file.
    pub fn requirements(&self) -> &str {
        match self {
            Self::All => REQUIREMENTS,
            Self::Slim => REQUIREMENTS_SLIM,
            Self::Listed(list) => list,
        }
    }

    /// The default name of an image with these packages.
    pub fn tag(&self) -> String {
        match self {
            Self::All => IMAGE.to_owned(),
            Self::Slim => format!("{IMAGE}:slim"),
            Self::Listed(_) => format!("{IMAGE}:own"),
        }
    }
}

/// The options of an image.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// The base image. By default [`BASE`] if the engine has it, else [`REGISTRY_BASE`].
    pub base: Option<String>,
    /// The packages to install.
    pub packages: Packages,
    /// The name of the image; by default one derived from the packages.
    pub tag: Option<String>,
}

/// Builds the image, and returns its name. `say` receives the engine's output, line by line.
///
/// # Errors
/// [`Error::BackendUnavailable`] when there is no engine, the base is missing, or a step of the build fails.
pub async fn build(build: &Build, mut say: impl FnMut(&str)) -> Result<String, Error> {
    let docker = engine::connect().await?;
    let base = match &build.base {
        Some(base) => base.clone(),
        None if has_image(&docker, BASE).await? => BASE.to_owned(),
        None => REGISTRY_BASE.to_owned(),
    };
    if !has_image(&docker, &base).await? {
        say(&format!("pulling {base}"));
        pull(&docker, &base).await?;
    }
    let tag = build.tag.clone().unwrap_or_else(|| build.packages.tag());
    say(&format!("building {tag} from {base}"));
    let mut arguments = HashMap::from([("BASE".to_owned(), base)]);
    for name in PIP.into_iter().chain(PROXY) {
        if let Ok(value) = std::env::var(name) {
            arguments.insert(name.to_owned(), value);
        }
    }
    // The build uses this machine's network, because an engine's containers may have none. pip installs wheels only, so no
    // downloaded code runs.
    let options = BuildImageOptionsBuilder::default()
        .t(&tag)
        .buildargs(&arguments)
        .networkmode("host")
        .rm(true)
        .forcerm(true)
        .build();
    let context = context(&build.packages, &certificates()).map_err(|error| failed(&error))?;
    let mut steps = docker.build_image(options, None, Some(body_full(context.into())));
    let mut last = String::new();
    while let Some(step) = steps.next().await {
        // The last output of the failed command says more than its exit status.
        let text = step
            .map_err(|error| failed(&format!("{}\n{last}", said(&error)).trim()))?
            .stream;
        for line in text
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| !line.trim().is_empty())
        {
            say(line);
            line.clone_into(&mut last);
        }
    }
    Ok(tag)
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    unavailable(format!("the image was not built: {why}"))
}

/// Returns true when the engine has an image of this name.
///
/// # Errors
/// [`Error::BackendUnavailable`] when the engine does not answer.
pub async fn has_image(docker: &Docker, name: &str) -> Result<bool, Error> {
    match docker.inspect_image(name).await {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(unavailable(format!(
            "asking the engine for {name} failed: {}",
            said(&error)
        ))),
    }
}

async fn pull(docker: &Docker, name: &str) -> Result<(), Error> {
    let options = CreateImageOptionsBuilder::default().from_image(name).build();
    let mut steps = docker.create_image(Some(options), None, None);
    while let Some(step) = steps.next().await {
        step.map_err(|error| {
            unavailable(format!(
                "the base {name} could not be pulled: {}. Where no registry is in reach, `sandglass-host image base` makes \
                 a base from Debian's packages",
                said(&error)
            ))
        })?;
    }
    Ok(())
}

/// The files of the build, as a tar archive.
fn context(packages: &Packages, certificates: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [
        ("Dockerfile", DOCKERFILE.as_bytes()),
        ("requirements.txt", packages.requirements().as_bytes()),
        ("check.py", CHECK.as_bytes()),
        ("ca-certificates.crt", certificates),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content)?;
    }
    archive.into_inner()
}

/// The certificates that this machine trusts. A network may have its own, which base images do not know.
fn certificates() -> Vec<u8> {
    let named = ["PIP_CERT", "SSL_CERT_FILE"]
        .map(std::env::var_os)
        .into_iter()
        .flatten();
    named
        .map(PathBuf::from)
        .chain(CERTIFICATES.map(PathBuf::from))
        .find_map(|path| std::fs::read(path).ok())
        .unwrap_or_default()
}

/// Builds [`BASE`] from Debian's packages with mmdebstrap, which writes to this process's output.
///
/// # Errors
/// [`Error::BackendUnavailable`] when mmdebstrap fails. Its output says why.
pub async fn base(suite: Option<&str>, mirror: Option<&str>, tag: &str) -> Result<(), Error> {
    let mut command = Command::new("bash");
    // The script is an argument, because mmdebstrap would read it from standard input.
    command.args(["-c", DEBIAN_BASE, "debian-base"]);
    for (option, value) in [("--suite", suite), ("--mirror", mirror)] {
        if let Some(value) = value {
            command.args([option, value]);
        }
    }
    let status = command.arg(tag).stdin(Stdio::null()).status().await;
    if status.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(unavailable("the base image was not made"))
    }
}

/// Makes a virtual environment of the packages in `folder`, for guests in bubblewrap. Returns its Python. An environment that
/// is up to date stays unchanged.
///
/// # Errors
/// [`Error::BackendUnavailable`] when `folder` holds other files, or a step fails.
pub async fn venv(
    folder: &Path,
    python: &Path,
    packages: &Packages,
    mut say: impl FnMut(&str),
) -> Result<PathBuf, Error> {
    let failed = |why: String| unavailable(format!("the virtual environment was not made: {why}"));
    let (list, program) = (folder.join("requirements.txt"), folder.join("bin/python3"));
    if std::fs::read_to_string(&list).is_ok_and(|text| text == packages.requirements()) && program.exists() {
        say("everything is there");
        return Ok(program);
    }
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !folder.join("pyvenv.cfg").exists() {
        let folder = folder.display();
        return Err(failed(format!("{folder} is neither empty nor a virtual environment")));
    }
    let check = folder.join("check.py");
    let _ = std::fs::remove_file(&list);
    say(&format!("making {}", folder.display()));
    run(python, &["-m", "venv"], &[folder]).await.map_err(failed)?;
    std::fs::write(&check, CHECK).map_err(|error| failed(error.to_string()))?;
    let wanted = folder.join("wanted.txt");
    std::fs::write(&wanted, packages.requirements()).map_err(|error| failed(error.to_string()))?;
    say("installing packages");
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
        "--requirement",
    ];
    run(&program, &pip, &[&wanted]).await.map_err(failed)?;
    // The list gets its name last, which marks the environment as complete. The next build reads it.
    std::fs::rename(&wanted, &list).map_err(|error| failed(error.to_string()))?;
    match run(&program, &[], &[&check]).await {
        Ok(text) => say(text.trim()),
        Err(why) => {
            let _ = std::fs::remove_file(&list);
            return Err(failed(why));
        }
    }
    Ok(program)
}

/// Runs a program, and returns its output.
async fn run(program: &Path, args: &[&str], paths: &[&Path]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .args(paths)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    // venv writes its errors to standard output.
    Err(format!("{}\n{}", text(&output.stdout), text(&output.stderr))
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    /// Names and versions of the packages, and the number of packages that were asked for, which come first.
    fn pins(requirements: &str) -> (BTreeMap<&str, &str>, usize) {
        let (asked, needed) = requirements.split_once("# what those need\n").expect("two parts");
        let parse = |part| -> Vec<(&str, &str)> {
            str::lines(part)
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(|line| line.split_once("==").expect("pinned to the digit"))
                .collect()
        };
        let (asked, needed) = (parse(asked), parse(needed));
        let count = asked.len();
        let all: BTreeMap<_, _> = asked.iter().chain(&needed).copied().collect();
        assert_eq!(all.len(), count + needed.len(), "a package stands there twice");
        (all, count)
    }

    #[test]
    fn the_lists_are_pinned_and_agree() {
        let (all, asked) = pins(Packages::All.requirements());
        assert_eq!(asked, 31);
        let promised = "pandas polars numpy scipy pyarrow scikit-learn statsmodels xgboost-cpu lightgbm matplotlib seaborn \
                        plotly openpyxl xlsxwriter python-docx python-pptx pyyaml lxml pillow sqlalchemy aiosqlite requests \
                        httpx beautifulsoup4 nltk sympy networkx tqdm tabulate rich pydantic";
        for name in promised.split_whitespace() {
            assert!(all.contains_key(name), "{name} is missing");
        }
        let (slim, _) = pins(Packages::Slim.requirements());
        for (name, version) in slim {
            assert_eq!(all.get(name), Some(&version), "{name}");
        }
    }

    #[test]
    fn the_engine_gets_all_that_the_dockerfile_copies() {
        let bytes = context(&Packages::Slim, b"certificates").unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut files = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), text);
        }
        assert_eq!(files["ca-certificates.crt"], "certificates");
        assert_eq!(files["requirements.txt"], REQUIREMENTS_SLIM);
        let copied = files["Dockerfile"]
            .lines()
            .filter(|line| line.starts_with("COPY ") && !line.contains("--from"));
        for line in copied {
            let mut names: Vec<_> = line.split_whitespace().skip(1).collect();
            names.pop();
            for name in names {
                assert!(files.contains_key(name), "{name} is not in the archive");
            }
        }
    }

    #[tokio::test]
    async fn a_folder_with_something_else_in_it_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("thesis.txt"), "years of work").unwrap();
        let python = Path::new("/usr/bin/python3");
        let error = venv(folder.path(), python, &Packages::Slim, |_| ()).await.unwrap_err();
        assert!(
            error.to_string().contains("neither empty nor a virtual environment"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
