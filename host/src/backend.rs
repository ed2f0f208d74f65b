//! Backends, which start guests. A backend first makes a [`Plan`](crate::guest::Plan), which is data that tests can compare.
//! Starting the plan is a separate step.

pub mod bubblewrap;
pub mod docker;
pub mod subprocess;

use std::sync::Arc;

use sandglass_core::Error;

use crate::launcher::{BackendKind, Launcher, Settings};

/// The launcher for guests of `kind` on this machine.
///
/// # Errors
/// [`Error::BackendUnavailable`] with the reason, and with what to do.
pub async fn launcher(kind: BackendKind, settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
    match kind {
        BackendKind::Bubblewrap => bubblewrap::launcher(settings).await,
        BackendKind::Docker => docker::launcher(settings).await,
        BackendKind::Subprocess => subprocess::launcher(settings).await,
        BackendKind::Jupyter => settings.kernels()?.launcher(settings),
        BackendKind::Auto => {
            let mut reasons = Vec::new();
            match bubblewrap::launcher(settings).await {
                Ok(launcher) => return Ok(launcher),
                Err(error) => reasons.push(error.to_string()),
            }
            match docker::launcher(settings).await {
                Ok(launcher) => return Ok(launcher),
                Err(error) => reasons.push(error.to_string()),
            }
            if settings.allow_subprocess {
                return subprocess::launcher(settings).await;
            }
            Err(Error::BackendUnavailable(format!(
                "no backend can isolate guests here. {}. Install bubblewrap or Docker; or, only where the code can be trusted, \
                 name the backend \"subprocess\", which isolates nothing",
                reasons.join(". ")
            )))
        }
    }
}
