//! Servers of NATS with JetStream.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a server counts as broken, long enough for a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// Starts the server that the arguments name, and ends it with this shell's standard input. Then removes the folder.
const SCRIPT: &str = r#"folder=$0; "$@" & cat; kill -9 $!; wait $!; rm -rf "$folder""#;

/// A server, which is killed when this is dropped or when the process ends.
pub struct Nats {
    shell: Child,
    pub url: String,
}

impl Nats {
    /// Starts the server of this number. In arguments, `HOST` is its address, which no other process has.
    pub fn start(number: u16, more: &[&str]) -> Self {
        let [.., x, y, z] = std::process::id().to_be_bytes();
        let (host, port) = (format!("127.{}.{y}.{z}", 64 + (x & 63)), 4222 + number);
        let folder = std::env::temp_dir().join(format!("sandglass-nats-{}-{number}", std::process::id()));
        let program = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.setup/nats/nats-server"));
        assert!(program.exists(), "scripts/setup installs NATS");
        let shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .args([&folder, &program])
            .args([
                "--jetstream",
                "--addr",
                &host,
                "--port",
                &port.to_string(),
                "--store_dir",
            ])
            .arg(&folder)
            .args(more.iter().map(|arg| arg.replace("HOST", &host)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let (mut shell, began) = (shell.unwrap(), Instant::now());
        while TcpStream::connect((host.as_str(), port)).is_err() {
            assert!(
                shell.try_wait().unwrap().is_none() && began.elapsed() < LONG,
                "NATS does not start"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let url = format!("nats://{host}:{port}");
        Self { shell, url }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
