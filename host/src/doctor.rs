//! Reports which backends work on this machine, and what else is missing. Each backend words its own reason, in `backend/`.

use std::fmt;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::backend::{launcher, subprocess};
use crate::cgroup;
use crate::launcher::{BackendKind, Settings};
use crate::runtime::Python;
use crate::workspace::Workspaces;

/// The report of a backend.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Which backend.
    pub backend: BackendKind,
    /// Ok if the backend can run guests; otherwise the reason, and what to do.
    pub usable: Result<(), String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.usable {
            Ok(()) if self.backend.isolates_nothing() => {
                write!(formatter, "{:<11} works, and isolates nothing", self.backend)
            }
            Ok(()) => write!(formatter, "{:<11} works", self.backend),
            Err(why) => write!(formatter, "{:<11} does not work: {why}", self.backend),
        }
    }
}

/// The report of another part of the machine.
#[derive(Debug, Clone)]
pub struct Part {
    /// The part's name.
    pub name: &'static str,
    /// The part's state; otherwise the lack, and the remedy.
    pub state: Result<String, String>,
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Ok(told) | Err(told)) = &self.state;
        write!(formatter, "{:<11} {told}", self.name)
    }
}

/// Looks at the parts that bubblewrap's guests use.
pub async fn examine_parts(settings: &Settings) -> Vec<Part> {
    vec![
        Part {
            name: "cgroups",
            state: cgroup::check()
                .map(|found| format!("bound memory, processes and processor time: {found}"))
                .map_err(|why| {
                    format!(
                        "missing, so nothing bounds what all processes of a guest take together: {why}. Run as root, or in a systemd \
                         service with Delegate=yes"
                    )
                }),
        },
        Part {
            name: "lz4",
            state: lz4(settings).await,
        },
    ]
}

/// Looks for the package that makes states of stateless runs smaller.
async fn lz4(settings: &Settings) -> Result<String, String> {
    let python = Python::find(settings.python.as_deref()).await;
    let python = python.map_err(|error| error.to_string())?.executable;
    let found = Command::new(&python)
        .args(["-I", "-c", "import lz4.frame"])
        .stdin(Stdio::null())
        .output()
        .await
        .is_ok_and(|output| output.status.success());
    let place = python.display();
    if found {
        return Ok(format!("is installed in {place}"));
    }
    Err(format!(
        "is not installed in {place}: states of stateless runs work, and are not compressed. Debian has it as python3-lz4; \
         `sandglass-host venv build` installs it in an environment for --python"
    ))
}

/// Looks at a server's folder for workspaces, without making it. `findings` are those of [`examine`]: guests in bubblewrap have to
/// reach the folder by themselves.
pub fn examine_workspace(folder: &Path, settings: &Settings, findings: &[Finding]) -> Part {
    let is_bubblewrap = |finding: &Finding| finding.backend == BackendKind::Bubblewrap && finding.usable.is_ok();
    let there = std::path::absolute(folder).map_err(|error| error.to_string());
    let state = there.and_then(|folder| {
        let there = folder.ancestors().find(|place| place.exists()).unwrap_or(&folder);
        if findings.iter().any(is_bubblewrap) {
            settings.guest_users.reach(there)?;
        }
        let place = folder.display();
        if there != folder {
            return Ok(format!("{place} is not there yet: `sandglass-host serve` makes it"));
        }
        Workspaces::open(there, None, None).map_err(|error| error.to_string())?;
        Ok(format!("{place} can be used"))
    });
    let name = "workspace";
    Part { name, state }
}

/// Tests one backend, or all backends for `auto`.
pub async fn examine(backend: BackendKind, settings: &Settings) -> Vec<Finding> {
    let backends = match backend {
        BackendKind::Auto => &BackendKind::ALL[1..],
        _ => &[backend],
    };
    let mut findings = Vec::new();
    for &backend in backends {
        let usable = match backend {
            BackendKind::Subprocess => subprocess::look(settings).await.map(drop),
            BackendKind::Jupyter => match settings.kernels() {
                Ok(kernels) => kernels.look(settings).await,
                Err(error) => Err(error),
            },
            _ => launcher(backend, settings).await.map(drop),
        };
        let usable = usable.map_err(|error| error.to_string());
        findings.push(Finding { backend, usable });
    }
    findings
}
