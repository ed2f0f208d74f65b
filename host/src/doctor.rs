//! Reports which backends work on this machine.

use std::fmt;

use crate::backend::{launcher, subprocess};
use crate::launcher::{BackendKind, Settings};

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
