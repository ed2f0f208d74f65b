//! Guests in real Jupyter kernels of two ipykernel generations, which `scripts/setup` installs, and kernels that fail.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandglass_host::{
    BackendKind, Error, ExecuteOptions, Execution, HostCall, Kernels, Killer, Limits, Outcome, Sandbox, SandboxBuilder,
    Settings, StateStatus, Value,
};
use sandglass_jupyter::{Jupyter, KernelSettings};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// The time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every test with both generations of kernels.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_6 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::soon(super::$name("6")).await;
            })*
        }
        mod on_7 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::soon(super::$name("7")).await;
            })*
        }
    };
}

on_both!(
    cells_do_what_they_do_elsewhere,
    what_is_shown_by_ipython_is_shown,
    code_is_interrupted_and_keeps_its_state,
    a_deadline_that_is_swallowed_ends_a_kernel_of_ours,
    a_flood_of_output_is_bounded,
    a_kernel_that_dies_is_replaced,
    a_kernel_that_floods_or_forges_is_ended,
    a_kernel_that_runs_is_shared,
    an_interrupt_of_others_ends_our_code,
    a_kernel_that_was_restarted_is_another,
    a_kernel_that_does_not_stop_is_not_ours_to_end,
    variables_can_be_inspected,
);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE * 2, future)
        .await
        .expect("it goes on and on")
}

/// The Python with this generation of kernels.
fn python(generation: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.setup/jupyter")
        .join(generation)
        .join("bin/python");
    assert!(path.exists(), "there is no {}: scripts/setup makes it", path.display());
    path
}

fn limits() -> Limits {
    Limits {
        timeout_ms: 60_000.0,
        grace_period_ms: 30_000.0,
        ..Limits::default()
    }
}

fn settings(generation: &str) -> Settings {
    Settings {
        python: Some(python(generation)),
        ..Settings::default()
    }
}

fn builder(generation: &str) -> SandboxBuilder {
    let builder = Sandbox::builder().backend(BackendKind::Jupyter).limits(limits());
    builder.settings(settings(generation)).kernel(KernelSettings::default())
}

async fn begun(builder: SandboxBuilder) -> Sandbox {
    let sandbox = builder.build().await.expect("a sandbox");
    sandbox.initialize("the context").await.expect("a guest");
    sandbox
}

/// Runs code that must succeed.
async fn ran(sandbox: &Sandbox, code: &str) -> Execution {
    let run = sandbox.execute(code).await.expect("an execution");
    assert_eq!(run.error, None, "{code}\n{:?}", run.traceback);
    run
}

/// Runs code. Once the code has printed something, runs `then` beside it.
async fn ran_while(sandbox: &Sandbox, code: &str, then: impl Future<Output = ()>) -> Execution {
    let (printed, mut prints) = mpsc::unbounded_channel();
    let options = ExecuteOptions {
        on_output: Some(Arc::new(move |_, _: &str| {
            let _ = printed.send(());
        })),
        ..ExecuteOptions::default()
    };
    let running = sandbox.execute_with(format!("print('begun', flush=True)\n{code}"), options);
    let meanwhile = async {
        prints.recv().await;
        then.await;
    };
    let (run, ()) = tokio::join!(running, meanwhile);
    let run = run.unwrap();
    assert_eq!(run.stdout, "begun\n", "{code}");
    run
}

fn result(run: &Execution) -> &str {
    run.result.as_deref().unwrap_or_default()
}

// ---- kernels that are started ----

async fn cells_do_what_they_do_elsewhere(generation: &str) {
    let sandbox = begun(builder(generation).host_function("double", async |call: HostCall| {
        let Some(Value::Str(text)) = call.args.into_iter().next() else {
            return Err("no text".to_owned());
        };
        Ok(Value::Str(text.repeat(2)))
    }))
    .await;
    let run = ran(
        &sandbox,
        "import os\nx = [1, 2]\nprint('one')\nos.system('echo two')\nprint('three')\ndouble('ab'), context",
    )
    .await;
    assert_eq!(run.stdout, "one\ntwo\nthree\n");
    assert_eq!(result(&run), "('abab', 'the context')");
    assert_eq!(
        sandbox.get_variable("x").await.unwrap(),
        Some(Value::List(vec![Value::Int(1), Value::Int(2)]))
    );
    sandbox.set_variable("y", Value::Int(5)).await.unwrap();
    assert_eq!(result(&ran(&sandbox, "%%capture taken\nprint('magic')").await), "");
    assert_eq!(result(&ran(&sandbox, "str(taken), y").await), "('magic\\n', 5)");
    let names: Vec<String> = sandbox
        .list_variables()
        .await
        .unwrap()
        .into_iter()
        .map(|found| found.name)
        .collect();
    assert_eq!(names, ["context", "os", "x", "y", "taken"]);
    let run = ran(
        &sandbox,
        "import asyncio\nawait asyncio.sleep(0.01)\nFINAL(asyncio.run(asyncio.sleep(0, 7)))",
    )
    .await;
    assert_eq!(run.final_answer.as_ref().unwrap().value, Value::Int(7));
    let run = sandbox.execute("1/0").await.unwrap();
    assert_eq!((run.outcome, run.state.status), (Outcome::Error, StateStatus::Kept));
    assert_eq!(run.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    sandbox.destroy().await;
}

async fn what_is_shown_by_ipython_is_shown(generation: &str) {
    let sandbox = begun(builder(generation)).await;
    let run = ran(
        &sandbox,
        "from IPython.display import display as shows, HTML\nshows(HTML('<b>1</b>'))\nHTML('<b>2</b>')",
    )
    .await;
    let shown: Vec<_> = run
        .displays
        .iter()
        .map(|shown| (shown.mime.as_str(), shown.data.as_str()))
        .collect();
    assert_eq!(shown, [("text/html", "<b>1</b>"), ("text/html", "<b>2</b>")]);
    sandbox.destroy().await;
}

async fn code_is_interrupted_and_keeps_its_state(generation: &str) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let sandbox = begun(builder(generation).host_function("wait", move |_| {
        let _ = called.send(());
        std::future::pending()
    }))
    .await;
    ran(&sandbox, "x = 1").await;
    for code in [
        "while True: pass",
        "import time; time.sleep(99)",
        "wait()",
        "import re; re.match('(a+)+b', 'a' * 40)",
    ] {
        let run = ran_while(&sandbox, code, async {
            if code == "wait()" {
                calls.recv().await;
            }
            sandbox.interrupt();
        })
        .await;
        assert_eq!(
            (run.outcome, run.state.status),
            (Outcome::Interrupted, StateStatus::Kept),
            "{code}: {run:?}"
        );
    }
    assert_eq!(result(&ran(&sandbox, "x").await), "1");
    sandbox.destroy().await;
}

/// Code that swallows interrupts. An interrupt can come between two `try` blocks, so an outer block swallows that one.
const SWALLOWS: &str = "import time
def swallow(levels):
    while time.monotonic() < until:
        try:
            if levels: swallow(levels - 1)
            else:
                while True: pass
        except BaseException: pass
swallow(5)";

async fn a_deadline_that_is_swallowed_ends_a_kernel_of_ours(generation: &str) {
    let brief = Limits {
        timeout_ms: 5_000.0, // a kernel that boots meanwhile takes its time
        grace_period_ms: 500.0,
        ..Limits::default()
    };
    let sandbox = begun(builder(generation).limits(brief)).await;
    ran(&sandbox, "until = 1e18").await;
    let began = Instant::now();
    let run = sandbox.execute(SWALLOWS).await.unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Timeout, StateStatus::Lost),
        "{run:?}"
    );
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(
        result(&ran(&sandbox, "context, 'until' in globals()").await),
        "('the context', False)"
    );
    sandbox.destroy().await;
}

async fn a_flood_of_output_is_bounded(generation: &str) {
    let sandbox = begun(builder(generation).limits(Limits {
        timeout_ms: 5_000.0,
        ..limits()
    }))
    .await;
    let run = sandbox
        .execute("import os\nwhile True:\n    print('x' * 10_000)\n    os.write(2, b'y' * 10_000)")
        .await
        .unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Timeout, StateStatus::Kept),
        "{:?}",
        run.error
    );
    assert!(
        run.stdout.len() < 200_000 && run.stdout.contains("xxx"),
        "{}",
        run.stdout.len()
    );
    assert_eq!(result(&ran(&sandbox, "1 + 1").await), "2");
    sandbox.destroy().await;
}

async fn a_kernel_that_dies_is_replaced(generation: &str) {
    for (code, told, killer) in [
        ("os._exit(3)", "exited with status 3", None),
        ("os.kill(os.getpid(), 9)", "ended by signal 9", Some(Killer::Signal)),
    ] {
        let sandbox = begun(builder(generation)).await;
        let run = sandbox
            .execute(format!("import os\nprint('before', flush=True)\n{code}"))
            .await
            .unwrap();
        assert_eq!(
            (run.outcome, run.state.status),
            (Outcome::Crashed, StateStatus::Lost),
            "{run:?}"
        );
        assert_eq!((run.stdout.as_str(), run.killer), ("before\n", killer));
        assert!(run.error.as_deref().unwrap().contains(told), "{run:?}");
        assert_eq!(
            result(&ran(&sandbox, "context, 'os' in globals()").await),
            "('the context', False)"
        );
        sandbox.destroy().await;
    }
}

async fn a_kernel_that_floods_or_forges_is_ended(generation: &str) {
    for (content, key) in [("'x' * (20 << 20)", "session.key"), ("'small'", "b'another'")] {
        let sandbox = begun(builder(generation)).await;
        let code = format!(
            "session = get_ipython().kernel.session
send = session.send
def sends(stream, kind, content=None, *args, **options):
    if kind == 'execute_reply':
        content = dict(content, status='ok', more={content})
        session.key = {key}
    return send(stream, kind, content, *args, **options)
session.send = sends"
        );
        ran(&sandbox, &code).await;
        // The kernel's own reply comes after the guest's answer, and the kernel is ended then.
        let began = Instant::now();
        let told = loop {
            match sandbox.execute("'sends' in globals()").await {
                Ok(run) if run.outcome == Outcome::Ok && result(&run) == "False" => break run,
                Ok(_) | Err(Error::GuestLost(_)) => assert!(began.elapsed() < PATIENCE, "it lives"),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(result(&told), "False");
        sandbox.destroy().await;
    }
}

async fn variables_can_be_inspected(generation: &str) {
    let kernels = Jupyter::launcher(&KernelSettings::default(), &settings(generation)).unwrap();
    let (called, mut calls) = mpsc::unbounded_channel();
    let (go, going) = tokio::sync::watch::channel(false);
    let sandbox = begun(
        builder(generation)
            .launcher(kernels.clone())
            .host_function("wait", move |_| {
                let _ = called.send(());
                let mut going = going.clone();
                async move {
                    let _ = going.wait_for(|is_so| *is_so).await;
                    Ok(Value::None)
                }
            }),
    )
    .await;
    ran(
        &sandbox,
        "x = 'long' * 10\nclass Loud:\n    def __repr__(self): return wait()\nloud = Loud()",
    )
    .await;
    let look = async |patience| {
        let found = kernels.inspect(patience).await?;
        let row = |name: &str| {
            found
                .iter()
                .find(|row| row.variable.name == name)
                .map(|row| row.text.clone())
        };
        assert_eq!(row("x"), Some(format!("'{}'", "long".repeat(10))));
        assert_eq!(row("loud").as_deref(), Some("<Loud>"));
        Ok::<_, Error>(row("y"))
    };
    assert_eq!(look(PATIENCE).await.unwrap(), None);
    let running = sandbox.execute("y = 1\nwait()\ny = 2");
    let looking = async {
        calls.recv().await;
        let mut while_busy = look(Duration::from_secs(if generation == "6" { 2 } else { 30 })).await;
        if matches!(while_busy, Err(Error::Timeout(_))) && generation != "6" {
            while_busy = look(PATIENCE).await; // ipykernel has lost a message to a new subshell once, on a busy machine
        }
        match generation {
            "6" => assert!(while_busy.unwrap_err().to_string().contains("no subshells")),
            _ => assert_eq!(while_busy.unwrap().as_deref(), Some("1")),
        }
        go.send(true).unwrap();
    };
    let (run, ()) = tokio::join!(running, looking);
    assert_eq!(run.unwrap().error, None);
    assert_eq!(look(PATIENCE).await.unwrap().as_deref(), Some("2"));
    sandbox.destroy().await;
    assert_eq!(look(PATIENCE).await.unwrap_err().code(), "guest_lost");
}

/// A kernelspec that starts this program.
fn spec_of(argv: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = serde_json::json!({ "argv": argv, "display_name": "it", "language": "python" }).to_string();
    std::fs::write(folder.path().join("kernel.json"), text).unwrap();
    folder
}

/// Why a kernelspec leads to no guest.
async fn fails(argv: &[&str], boot_timeout: Duration) -> Error {
    let folder = spec_of(argv);
    let kernel = KernelSettings {
        name: Some(folder.path().display().to_string()),
        boot_timeout,
        ..KernelSettings::default()
    };
    let builder = Sandbox::builder().backend(BackendKind::Jupyter).kernel(kernel);
    let began = Instant::now();
    let error = match builder.build().await {
        Ok(sandbox) => sandbox.initialize(Value::None).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(began.elapsed() < PATIENCE, "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn kernels_that_do_not_start_are_named() {
    soon(async {
        let error = fails(&["/no/such/python", "-f", "{connection_file}"], PATIENCE).await;
        assert_eq!(error.code(), "backend_unavailable");
        assert!(error.to_string().contains("/no/such/python"), "{error}");
        let error = fails(&["/bin/sh", "-c", "echo out of luck >&2; exit 3"], PATIENCE)
            .await
            .to_string();
        assert!(
            error.contains("exited with status 3") && error.contains("out of luck"),
            "{error}"
        );
        let error = fails(&["/bin/sh", "-c", "sleep 99"], Duration::from_secs(2))
            .await
            .to_string();
        assert!(error.contains("did not listen within 2s"), "{error}");
    })
    .await;
}

// ---- kernels that run ----

/// A running kernel, started by somebody else.
struct Running {
    child: Child,
    folder: TempDir,
    python: PathBuf,
}

impl Running {
    async fn start(generation: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let python = python(generation);
        let mut kernel = Self {
            child: Self::child(&python, folder.path()),
            folder,
            python,
        };
        kernel.is_up().await;
        kernel
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("connection.json")
    }

    fn child(python: &Path, folder: &Path) -> Child {
        let mut command = Command::new(python);
        command
            .args(["-m", "ipykernel_launcher", "-f"])
            .arg(folder.join("connection.json"));
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }

    async fn is_up(&mut self) {
        let began = Instant::now();
        while self.kernel().look(&Settings::default()).await.is_err() {
            assert!(began.elapsed() < PATIENCE, "no kernel");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Restarts the kernel as its manager does: with the same ports and the same key.
    async fn restart(&mut self) {
        self.end();
        self.child = Self::child(&self.python, self.folder.path());
        self.is_up().await;
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn kernel(&self) -> KernelSettings {
        KernelSettings {
            connection_file: Some(self.file()),
            boot_timeout: PATIENCE / 2,
            ..KernelSettings::default()
        }
    }

    fn builder(&self) -> SandboxBuilder {
        let builder = Sandbox::builder().backend(BackendKind::Jupyter).limits(limits());
        builder.kernel(self.kernel())
    }

    /// A command that runs code as another front end, and prints what the code prints.
    fn elsewhere(&self, code: &str) -> Command {
        let program = "import sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=60)
def show(message):
    content = message['content']
    if message['msg_type'] == 'stream': print(content['text'], end='', flush=True)
reply = client.execute_interactive(sys.argv[2], output_hook=show, timeout=60)
print(reply['content']['status'])";
        let mut command = Command::new(&self.python);
        command.args(["-c", program]).arg(self.file()).arg(code);
        command
    }

    async fn ran_elsewhere(&self, code: &str) -> String {
        let mut command = self.elsewhere(code);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn a_kernel_that_runs_is_shared(generation: &str) {
    let kernel = Running::start(generation).await;
    assert_eq!(
        kernel
            .ran_elsewhere(
                "import sys
theirs = 1
count = get_ipython().execution_count
def left():
    'What is ours in the kernel: a name, and threads with code of ours on their stacks.'
    found = ['FINAL'] if 'FINAL' in globals() else []
    for frame in sys._current_frames().values():
        while frame is not None and 'sandglass' not in frame.f_code.co_filename: frame = frame.f_back
        if frame is not None: found.append(f'{frame.f_code.co_filename}:{frame.f_lineno}')
    return found
print('hello')"
            )
            .await,
        "hello\nok\n"
    );
    let sandbox = begun(kernel.builder()).await;
    let run = ran(
        &sandbox,
        "import time\nours = theirs + 1\ntime.sleep(0.01)\nprint('ours')\nours",
    )
    .await;
    assert_eq!((run.stdout.as_str(), result(&run)), ("ours\n", "2"));
    // Nothing of ours is in their way meanwhile.
    let code =
        "import sys\ntime.sleep(0.01)\nprint(ours, type(sys.stdout).__module__, get_ipython().execution_count - count)";
    assert_eq!(kernel.ran_elsewhere(code).await, "2 ipykernel.iostream 1\nok\n");
    // A failing cell of theirs drops none of our requests, and a long cell of theirs makes ours wait.
    let mut child = kernel
        .elsewhere("print('slow', flush=True)\ntime.sleep(1)\n1/0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4];
    let mut out = child.stdout.take().unwrap();
    let first =
        tokio::task::spawn_blocking(move || std::io::Read::read_exact(&mut out, &mut first).map(|()| (first, out)));
    let (said, _out) = first.await.unwrap().unwrap();
    assert_eq!(&said, b"slow");
    assert_eq!(result(&ran(&sandbox, "ours + 1").await), "3");
    assert!(child.wait().unwrap().success());
    // A second sandbox would share all variables.
    let other = kernel.builder().build().await.unwrap();
    other.initialize(Value::None).await.unwrap();
    assert_eq!(result(&ran(&other, "ours").await), "2");
    other.destroy().await;
    let threads = kernel.ran_elsewhere("print(len(left()) > 1)").await;
    assert_eq!(threads, "True\nok\n", "code of ours is recognized");
    sandbox.destroy().await;
    // Our leftovers end when the guest sees that its host has left.
    let code = "until = time.monotonic() + 30
while left() and time.monotonic() < until: time.sleep(0.01)
print(ours, left())";
    assert_eq!(kernel.ran_elsewhere(code).await, "2 []\nok\n");
}

async fn an_interrupt_of_others_ends_our_code(generation: &str) {
    let kernel = Running::start(generation).await;
    let (called, mut calls) = mpsc::unbounded_channel();
    let sandbox = begun(kernel.builder().host_function("wait", move |_| {
        let _ = called.send(());
        std::future::pending()
    }))
    .await;
    ran(&sandbox, "import asyncio, time\nx = 1").await;
    for code in [
        "wait()",
        "time.sleep(99)",
        "await asyncio.sleep(99)",
        "while True: pass",
    ] {
        let run = ran_while(&sandbox, code, async {
            if code == "wait()" {
                calls.recv().await;
            }
            // A notebook's button sends the same signal.
            kill_process(Pid::from_child(&kernel.child), Signal::INT).unwrap();
        })
        .await;
        assert_eq!(
            (run.outcome, run.state.status),
            (Outcome::Error, StateStatus::Kept),
            "{code}: {run:?}"
        );
        assert!(
            run.error.as_deref().unwrap().starts_with("KeyboardInterrupt"),
            "{run:?}"
        );
    }
    assert_eq!(result(&ran(&sandbox, "x").await), "1");
    sandbox.destroy().await;
}

async fn a_kernel_that_was_restarted_is_another(generation: &str) {
    let mut kernel = Running::start(generation).await;
    let sandbox = begun(kernel.builder()).await;
    ran(&sandbox, "x = 1").await;
    kernel.restart().await;
    let run = sandbox.execute("context, 'x' in globals()").await.unwrap();
    assert_eq!((run.outcome, result(&run)), (Outcome::Ok, "('the context', False)"));
    assert_eq!(run.state.status, StateStatus::Lost, "{run:?}");
    // While code runs, too.
    let run = ran_while(&sandbox, "import time\ntime.sleep(99)", kernel.restart()).await;
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Crashed, StateStatus::Lost),
        "{run:?}"
    );
    assert!(
        run.error.as_deref().unwrap().contains("has died or was restarted"),
        "{run:?}"
    );
    assert_eq!(result(&ran(&sandbox, "context").await), "'the context'");
    // A kernel that does not come back is named in the error, within the timeout.
    kernel.end();
    let began = Instant::now();
    let error = loop {
        match sandbox.execute("1").await {
            Ok(run) => assert_eq!(run.outcome, Outcome::Crashed),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), "boot_failed");
    assert!(error.to_string().contains("not running any more"), "{error}");
    assert!(began.elapsed() < PATIENCE / 2);
    sandbox.destroy().await;
}

async fn a_kernel_that_does_not_stop_is_not_ours_to_end(generation: &str) {
    let mut kernel = Running::start(generation).await;
    let brief = Limits {
        timeout_ms: 5_000.0, // a kernel that boots meanwhile takes its time
        grace_period_ms: 500.0,
        ..Limits::default()
    };
    let settings = KernelSettings {
        boot_timeout: PATIENCE / 6,
        ..kernel.kernel()
    };
    let sandbox = begun(kernel.builder().kernel(settings).limits(brief)).await;
    let end = kernel.folder.path().join("end");
    let code = SWALLOWS.replace("time.monotonic() < until", &format!("not os.path.exists({end:?})"));
    ran(&sandbox, "import os").await;
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Timeout, StateStatus::Lost),
        "{run:?}"
    );
    let error = sandbox.execute("1").await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("interrupt or restart the kernel where it was started"),
        "{error}"
    );
    assert!(kernel.child.try_wait().unwrap().is_none(), "it was ended");
    std::fs::write(end, "").unwrap();
    let began = Instant::now();
    let run = loop {
        match sandbox.execute("1 + 1").await {
            Ok(run) if run.outcome == Outcome::Ok => break run,
            other => assert!(began.elapsed() < PATIENCE, "{other:?}"),
        }
    };
    assert_eq!(result(&run), "2");
    sandbox.destroy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_files_that_lead_nowhere_are_named() {
    soon(async {
        let kernel = Running::start("7").await;
        let mut wrong: serde_json::Value = serde_json::from_slice(&std::fs::read(kernel.file()).unwrap()).unwrap();
        wrong["key"] = "not the key".into();
        let path = kernel.folder.path().join("wrong.json");
        std::fs::write(&path, wrong.to_string()).unwrap();
        let wrong = KernelSettings {
            connection_file: Some(path),
            ..kernel.kernel()
        };
        let began = Instant::now();
        let error = wrong.look(&Settings::default()).await.unwrap_err().to_string();
        assert!(error.contains("did not answer") && error.contains("key"), "{error}");
        assert!(began.elapsed() < PATIENCE / 2);
        // The kernel serves others as before.
        assert_eq!(kernel.ran_elsewhere("print(1)").await, "1\nok\n");
    })
    .await;
}
