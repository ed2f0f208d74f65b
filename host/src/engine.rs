//! The connection to Docker's engine on this machine, with errors that say what to do.

use std::fmt::Display;
use std::io::ErrorKind;

use bollard::Docker;
use bollard::errors::Error as EngineError;
use sandglass_core::Error;

/// The engine's default address, used if `DOCKER_HOST` is not set.
const SOCKET: &str = "unix:///var/run/docker.sock";

/// Connects to the engine that `DOCKER_HOST` names, else to this machine's. Waits for its answer and agrees on an API version.
///
/// # Errors
/// [`Error::BackendUnavailable`] when no engine answers, when this user may not use it, or when it is on another machine.
/// Guests are reached through a socket in a folder on this machine.
pub async fn connect() -> Result<Docker, Error> {
    let host = std::env::var("DOCKER_HOST")
        .ok()
        .filter(|host| !host.is_empty())
        .unwrap_or_else(|| SOCKET.to_owned());
    if !host.starts_with("unix://") {
        return Err(unavailable(format!(
            "DOCKER_HOST is {host}, but guests can only run in an engine on this machine: unset it, or give it unix://…"
        )));
    }
    let docker = Docker::connect_with_host(&host).map_err(|error| refused(&host, &error))?;
    docker.negotiate_version().await.map_err(|error| refused(&host, &error))
}

/// Why the engine at `host` cannot be talked to.
fn refused(host: &str, error: &EngineError) -> Error {
    let path = host.trim_start_matches("unix://");
    // The client's own error does not say why a connection fails, the socket does.
    let why = std::os::unix::net::UnixStream::connect(path).err();
    match why.as_ref().map(std::io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => unavailable(format!(
            "this user may not talk to Docker's engine ({path}): run as root, or as a member of the group docker"
        )),
        Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => unavailable(format!(
            "no Docker engine runs here ({path}): install one (Debian: apt-get install docker.io) and start it"
        )),
        Some(_) | None => {
            let why = why.map_or_else(|| error.to_string(), |why| why.to_string());
            unavailable(format!("Docker's engine does not answer ({path}): {why}"))
        }
    }
}

/// The error of a backend that cannot be used.
pub(crate) fn unavailable(why: impl Display) -> Error {
    Error::BackendUnavailable(why.to_string())
}

/// The engine's message without the client library's words.
pub(crate) fn said(error: &EngineError) -> String {
    match error {
        EngineError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        EngineError::DockerStreamError { error } => error.trim().to_owned(),
        EngineError::RequestTimeoutError => "the engine did not answer in time".to_owned(),
        error => error.to_string(),
    }
}

/// Returns true when the engine answered that the thing does not exist.
pub(crate) fn is_missing(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_not_there_is_told_from_one_that_may_not_be_used() {
        let error = EngineError::RequestTimeoutError;
        let message = refused("unix:///nowhere/docker.sock", &error).to_string();
        assert!(
            message.contains("no Docker engine runs here (/nowhere/docker.sock)"),
            "{message}"
        );

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let message = refused(&format!("unix://{}", path.display()), &error).to_string();
        assert!(message.contains("does not answer"), "{message}");
    }
}
