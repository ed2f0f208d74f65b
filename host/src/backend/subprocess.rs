//! Guests as plain processes: no isolation at all. For trusted code, and for tests.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use sandglass_core::Error;

use crate::guest::{Guest, Plan};
use crate::launcher::{BackendKind, COPIED_MEMORY, Launcher, ONE_THREAD, Settings};
use crate::runtime::{HASH_SEED, Python, Runtime, guest_args};
use crate::temporary::TemporaryFolder;
use futures_util::future::BoxFuture;

/// The launcher of guests as plain processes. It warns, every time.
///
/// # Errors
/// [`Error::BackendUnavailable`] when there is no usable Python.
pub async fn launcher(settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
    tracing::warn!(
        "guests run as plain processes: their code can do whatever this process can, and nothing isolates it"
    );
    look(settings).await
}

/// Like [`launcher`], without the warning: for callers that only ask if guests are possible.
///
/// # Errors
/// As [`launcher`].
pub async fn look(settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
    let python = Python::find(settings.python.as_deref()).await?;
    let runtime = Runtime::prepare(&python).await?;
    Ok(Arc::new(Subprocess {
        settings: settings.clone(),
        python,
        runtime,
    }))
}

struct Subprocess {
    settings: Settings,
    python: Python,
    runtime: Arc<Runtime>,
}

impl Launcher for Subprocess {
    fn kind(&self) -> BackendKind {
        BackendKind::Subprocess
    }

    fn forks(&self) -> bool {
        self.settings.ahead
    }

    fn checkpoints(&self) -> u32 {
        self.settings.checkpoints
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        Box::pin(async move {
            // A folder that is not the host's own, although nothing keeps the guest in it.
            let home = TemporaryFolder::new("guest")
                .map_err(|error| Error::BootFailed(format!("a folder for the guest could not be made: {error}")))?;
            let plan = plan(
                &self.settings,
                &self.python.executable,
                &self.runtime.path(),
                home.path(),
            );
            let guest = Guest::spawn(plan).await?;
            Ok(guest.keep(home).keep(self.runtime.clone()))
        })
    }
}

/// The plan of a guest without isolation. `home` is a folder for this guest only.
pub fn plan(settings: &Settings, python: &Path, package: &Path, home: &Path) -> Plan {
    let cwd = settings.workspace.clone().unwrap_or_else(|| home.to_owned());
    let text = OsString::from;
    let path = |path: &Path| path.as_os_str().to_owned();
    let mut env = vec![
        (text("PATH"), text("/usr/local/bin:/usr/bin:/bin")),
        (text("LANG"), text("C.UTF-8")),
        (text("HOME"), path(home)),
        (text("TMPDIR"), path(home)),
        (text("PYTHONDONTWRITEBYTECODE"), text("1")),
        (text("MPLBACKEND"), text("agg")),
    ];
    if settings.forks() {
        env.extend(ONE_THREAD.map(|(name, value)| (text(name), text(value))));
    }
    if settings.checkpoints > 0 {
        let (name, value) = COPIED_MEMORY;
        env.push((text(name), text(value)));
    }
    if let Some(seed) = settings.journal_seed {
        env.push((text(HASH_SEED), text(&seed.to_string())));
    }
    Plan {
        program: python.to_owned(),
        args: guest_args(package, settings),
        env,
        cwd: Some(cwd),
        user: None,
        bounds: settings.resources.bounds(),
        open_files: settings.resources.open_files,
        file_bytes: settings.resources.file_bytes(),
        filter: None,
        id_map: None,
        forks: settings.forks(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_the_plans_and_nothing_of_the_hosts() {
        let plan = plan(
            &Settings::default(),
            Path::new("/usr/bin/python3"),
            Path::new("/package"),
            Path::new("/home"),
        );
        let names: Vec<_> = plan.env.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "PATH",
                "LANG",
                "HOME",
                "TMPDIR",
                "PYTHONDONTWRITEBYTECODE",
                "MPLBACKEND"
            ]
        );
        assert_eq!(plan.cwd.as_deref(), Some(Path::new("/home")));
        let elsewhere = Settings {
            workspace: Some("/data".into()),
            ..Settings::default()
        };
        let plan = super::plan(
            &elsewhere,
            Path::new("/python"),
            Path::new("/package"),
            Path::new("/home"),
        );
        assert_eq!(plan.cwd.as_deref(), Some(Path::new("/data")));
    }
}
