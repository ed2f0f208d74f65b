//! Hosts with fewer rights than root. Their guests are as isolated as any other, or are refused with advice.
//!
//! The tests run the built program with bubblewrap. Only root can take rights from a process, so without root they test the
//! rights of their own user.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandglass_host::Users;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The time after which a test gives up, long enough for a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// A user id that no account has.
const PLAIN: &str = "2147400001";

/// Code by which a guest examines itself and tries what guests must not do. Every guest must print the same.
const PROBE: &str = r#"
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
found, done = {}, []
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    found[name] = int(status[name], 16)
for name in ("NoNewPrivs", "Seccomp"):
    found[name] = int(status[name])
found["ids"] = [*os.getresuid(), *os.getresgid(), *os.getgroups()]
found["networks"] = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
found["environment"] = sorted(name for name in os.environ if name.startswith("SECRET"))
found["folder"] = os.path.exists(folder) or os.path.exists("/proc/1/root" + folder)
found["strangers"] = [line for pid in os.listdir("/proc") if pid.isdigit()
    for line in [open(f"/proc/{pid}/cmdline").read()] if "sandglass-host" in line.split("\0")[0]]
found["machine"] = os.uname().nodename

def attempt(name, act):
    try: act()
    except OSError: pass
    else: done.append(name)

def call(function, *arguments):
    def act():
        if getattr(libc, function)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), function)
    return act

attempt("users", call("unshare", 0x10000000))
attempt("mounts", call("unshare", 0x00020000))
attempt("mount", call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
attempt("unmount", call("umount2", b"/proc", 2))
attempt("trace", call("ptrace", 0, 0, 0, 0))
attempt("root", lambda: os.setuid(0))
attempt("another user", lambda: os.setuid(65534))
attempt("groups", lambda: os.setgroups([0]))
attempt("root's file", lambda: open("/etc/shadow"))
attempt("the kernel's settings", lambda: open("/proc/sys/kernel/core_pattern", "w"))
for place in ("/x", "/usr/x", "/etc/x", "/run/x", "/dev/x", "/run/sandglass/x"):
    attempt(place, lambda: open(place, "w"))
attempt("a name", lambda: socket.getaddrinfo("localhost.example", 80))
attempt("an address", lambda: socket.create_connection(("192.0.2.1", 80), 1))
found["done"] = done
print(json.dumps(found))
"#;

fn expected() -> Value {
    json!({
        "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0, "NoNewPrivs": 1, "Seccomp": 2,
        "ids": [1000, 1000, 1000, 1000, 1000, 1000], "networks": ["lo"], "environment": [], "folder": false, "strangers": [],
        "machine": "sandglass", "done": [],
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A host of some kind.
struct Host {
    /// The command that starts the program with fewer rights.
    prefix: Vec<&'static str>,
    /// A folder that the host can read and its guests must not.
    folder: TempDir,
    log: File,
}

impl Host {
    fn new(prefix: &[&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let log = tempfile::tempfile().unwrap();
        let prefix = prefix.to_vec();
        Self { prefix, folder, log }
    }

    /// A host that is an ordinary user.
    fn plain() -> Self {
        if !is_root() {
            return Self::new(&[]);
        }
        let user = [
            "setpriv",
            "--reuid",
            PLAIN,
            "--regid",
            PLAIN,
            "--clear-groups",
            "--inh-caps=-all",
        ];
        Self::new(&user)
    }

    fn command(&self, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_sandglass-host");
        let words: Vec<&str> = self.prefix.iter().copied().chain([program]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(args)
            .current_dir("/")
            .env("SECRET", "1")
            .env_remove("SANDGLASS_BACKEND")
            .env_remove("SANDGLASS_PYTHON")
            .env_remove("SANDGLASS_KEYS")
            .env_remove("RUST_LOG")
            .stderr(self.log.try_clone().unwrap());
        command
    }

    fn probe(&self) -> String {
        format!("folder = {:?}\n{PROBE}", self.folder.path())
    }

    /// The text that the host has printed so far.
    fn said(&self) -> String {
        std::fs::read_to_string(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.log))).unwrap()
    }

    /// Runs code in a new guest. Returns true if it succeeded, and what it printed.
    fn run(&self, code: &str) -> (bool, String) {
        let output = self
            .command(&["run", "--backend", "bubblewrap", "--timeout", "60", "-c", code])
            .output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    fn serve(&self) -> Served {
        let args = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--backend",
            "bubblewrap",
            "--spares",
            "1",
            "--preload",
            "wave",
        ];
        let mut child = self.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        let client = reqwest::Client::builder().no_proxy().timeout(LONG).build().unwrap();
        Served { child, url, client }
    }
}

/// A server, ended with the test.
struct Served {
    child: Child,
    url: String,
    client: reqwest::Client,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    async fn post(&self, path: &str, body: Value) -> Value {
        let response = self
            .client
            .post(format!("{}{path}", self.url))
            .json(&body)
            .send()
            .await
            .unwrap();
        let text = response.text().await.unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The text that code in a session printed.
    async fn printed(&self, session: &str, code: &str) -> String {
        let run = self
            .post(&format!("/v1/sessions/{session}/execute"), json!({ "code": code }))
            .await;
        assert_eq!(run["outcome"], "ok", "{run}");
        run["stdout"].as_str().unwrap().to_owned()
    }

    async fn session(&self) -> String {
        let made = self.post("/v1/sessions", json!({})).await;
        made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// The host's user ids of the guests that a zygote forked. Each guest has a word as its process name.
    fn users(&self, words: &[String]) -> Vec<u32> {
        let named = |word: &String| {
            let processes = std::fs::read_dir("/proc").unwrap().flatten();
            let named = processes.filter(|process| {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                name.trim_end() == word
            });
            let users: Vec<u32> = named.map(|process| user_of(&process.path())).collect();
            assert_eq!(users.len(), 1, "{word}");
            users[0]
        };
        words.iter().map(named).collect()
    }
}

/// The owner of a process, from the process's folder in `/proc`.
fn user_of(process: &Path) -> u32 {
    let status = std::fs::read_to_string(process.join("status")).unwrap();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    users.split_whitespace().next().unwrap().parse().unwrap()
}

fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Checks that the guests of such a host are isolated as any guest, started and forked. Returns the host's user ids of two
/// guests, and the host's output.
async fn guests_are_isolated(host: &Host) -> (Vec<u32>, String) {
    install_crypto();
    let (succeeded, out) = host.run(&host.probe());
    assert!(succeeded, "{}", host.said());
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), expected());
    let server = host.serve();
    let sessions = [server.session().await, server.session().await];
    let random = std::process::id();
    let words = [format!("one-{random}"), format!("two-{random}")];
    for (session, word) in sessions.iter().zip(&words) {
        let out = server.printed(session, &host.probe()).await;
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), expected());
        let forked = "import sys; print('wave' in sys.modules)";
        assert_eq!(server.printed(session, forked).await, "True\n", "it was forked");
        let name = format!("open('/proc/self/comm', 'w').write('{word}'); open('/tmp/mine', 'w').write('{word}')");
        server.printed(session, &name).await;
    }
    // Neither guest sees the other, whatever their user ids are.
    let others = "import os\nprint(sorted(name for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()), open('/tmp/mine').read())";
    for (session, word) in sessions.iter().zip(&words) {
        assert_eq!(server.printed(session, others).await, format!("[] {word}\n"));
    }
    (server.users(&words), host.said())
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_of_a_host_that_is_not_root_are_as_isolated_as_others() {
    let host = Host::plain();
    let (users, said) = guests_are_isolated(&host).await;
    let own = if is_root() {
        PLAIN.parse().unwrap()
    } else {
        user_of(Path::new("/proc/self"))
    };
    assert_eq!(users, [own, own]);
    assert!(
        said.contains("guests share the user id of this host, which is not root"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_of_root_without_the_right_to_map_ids_are_as_isolated_as_others() {
    if !is_root() {
        return;
    }
    let host = Host::new(&["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"]);
    let (users, said) = guests_are_isolated(&host).await;
    // All guests of the zygote share one user, who is neither root nor anybody else.
    assert_eq!(users[0], users[1]);
    assert!(Users::default().contains(users[0]), "{users:?}");
    assert!(said.contains("guests of a zygote share one user id"), "{said}");
}

#[test]
fn root_that_cannot_become_anybody_else_is_told_what_it_lacks() {
    if !is_root() {
        return;
    }
    for lost in [
        "--bounding-set=-setuid",
        "--bounding-set=-setgid",
        "--bounding-set=-all",
    ] {
        let host = Host::new(&["setpriv", lost, "--inh-caps=-all"]);
        let (succeeded, out) = host.run("print('it ran')");
        let said = host.said();
        assert!(!succeeded && out.is_empty(), "{lost}: {out}");
        assert!(said.contains("CAP_SETUID and CAP_SETGID"), "{lost}: {said}");
    }
}

#[test]
fn a_host_that_has_ended_has_no_ids_of_guests() {
    if !is_root() {
        return;
    }
    // This range differs from that of a test which runs in another checkout at the same time.
    let first = 1_600_000_000 + std::process::id() * 10;
    let host = Host::new(&[]);
    let run = || {
        let mut run = host.command(&["run", "--backend", "bubblewrap", "-c", "print('it ran')"]);
        run.env("SANDGLASS_GUEST_USERS", format!("{first}:3")).output().unwrap()
    };
    let locks = || (first + 1..first + 3).map(|id| format!("/run/sandglass/users/{id}"));
    assert!(run().status.success(), "{}", host.said());
    let left: Vec<_> = locks().filter(|lock| Path::new(lock).exists()).collect();
    assert_eq!(left, [] as [String; 0]);
    // The host could use these ids only.
    let held: Vec<File> = locks().map(|lock| File::create(lock).unwrap()).collect();
    for lock in &held {
        rustix::fs::flock(lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    }
    assert!(!run().status.success());
    locks().for_each(|lock| std::fs::remove_file(lock).unwrap());
    assert!(
        host.said()
            .contains(&format!("all user ids of guests are taken ({first}:3)")),
        "{}",
        host.said()
    );
}

#[test]
fn a_host_that_can_make_no_namespaces_is_told_what_forbids_it() {
    let around = [
        "bwrap",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--disable-userns",
        "--dev-bind",
        "/",
        "/",
        "--",
    ];
    let host = Host::new(&around);
    let (succeeded, out) = host.run("print('it ran')");
    let said = host.said();
    assert!(!succeeded && out.is_empty(), "{out}");
    assert!(said.contains("user.max_user_namespaces"), "{said}");
}
