//! Connection files: a kernel's addresses, and the key that signs its messages.

use std::path::Path;

use jupyter_protocol::{ConnectionInfo, connection_info::Transport};
use serde::de::DeserializeOwned;

use crate::zmtp::Endpoint;

/// The largest file of Jupyter's that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The signature scheme, by the name in connection files.
const SCHEME: &str = "hmac-sha256";

/// The contents of a JSON file, which may be untrusted. Errors name it as `kind`.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, kind: &str) -> Result<T, String> {
    let wrong = |why: String| format!("the {kind} {} cannot be used: {why}", path.display());
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !size.is_file() || size.len() > MAX_FILE_BYTES {
        return Err(wrong("it is too large, or no file".to_owned()));
    }
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}

/// The contents of a connection file.
pub(crate) fn read(path: &Path) -> Result<ConnectionInfo, String> {
    let info: ConnectionInfo = read_json(path, "connection file")?;
    if info.signature_scheme != SCHEME {
        return Err(format!(
            "the connection file {} cannot be used: its signature_scheme is {}, and only {SCHEME} is known here",
            path.display(),
            info.signature_scheme
        ));
    }
    Ok(info)
}

/// A connection over sockets in a folder that no other user can enter.
pub(crate) fn private(folder: &Path, key: String) -> ConnectionInfo {
    ConnectionInfo {
        ip: folder.join("kernel").display().to_string(),
        transport: Transport::IPC,
        shell_port: 1,
        control_port: 2,
        iopub_port: 3,
        stdin_port: 4,
        hb_port: 5,
        key,
        signature_scheme: SCHEME.to_owned(),
        kernel_name: None,
    }
}

/// The address at which a kernel listens.
pub(crate) fn endpoint(info: &ConnectionInfo, port: u16) -> Endpoint {
    match info.transport {
        Transport::TCP => Endpoint::Tcp(info.ip.clone(), port),
        Transport::IPC => Endpoint::Ipc(format!("{}-{port}", info.ip).into()),
    }
}

/// The address at which this machine reaches a kernel. A wildcard address becomes loopback.
pub(crate) fn reached(info: &ConnectionInfo, port: u16) -> Endpoint {
    match endpoint(info, port) {
        Endpoint::Tcp(ip, port) if matches!(ip.as_str(), "" | "*" | "0.0.0.0") => {
            Endpoint::Tcp("127.0.0.1".to_owned(), port)
        }
        endpoint => endpoint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_file_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel.json");
        let ours = private(folder.path(), "key".to_owned());
        let text = serde_json::to_value(&ours).unwrap();
        std::fs::write(&path, text.to_string()).unwrap();
        assert_eq!(read(&path).unwrap(), ours);
        for (name, value, why) in [
            ("shell_port", None, "shell_port"),
            ("transport", Some("udp"), "udp"),
            ("signature_scheme", Some("hmac-md5"), "signature_scheme is hmac-md5"),
        ] {
            let mut wrong = text.clone();
            match value {
                Some(value) => wrong[name] = value.into(),
                None => drop(wrong.as_object_mut().unwrap().remove(name)),
            }
            std::fs::write(&path, wrong.to_string()).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_kernel_that_listens_everywhere_is_reached_here() {
        let mut info = private(Path::new("/nowhere"), String::new());
        assert_eq!(reached(&info, 1), Endpoint::Ipc("/nowhere/kernel-1".into()));
        info.transport = Transport::TCP;
        for (ip, reached_at) in [("*", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")] {
            info.ip = ip.to_owned();
            assert_eq!(reached(&info, 7), Endpoint::Tcp(reached_at.to_owned(), 7));
        }
    }
}
