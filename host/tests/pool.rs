//! Guests that are forked before they are needed: their isolation, and the replacement of those that die.
//!
//! The tests use real guests in bubblewrap, and fail on a machine without it; `scripts/setup` installs bubblewrap.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sandglass_host::backend::{self, bubblewrap};
use sandglass_host::pool::{Pool, PoolSettings, Source, Unavailable, WhenEmpty};
use sandglass_host::stateless::{self, Bounds, Request};
use sandglass_host::workspace::Workspaces;
use sandglass_host::zygote::{Zygote, ZygoteLauncher};
use sandglass_host::{BackendKind, Error, Launcher, Limits, Outcome, Resources, Sandbox, Settings, StateStatus, Users};
use tokio::process::Command;
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs one test at a time, because tests look at all guests of this process and kill some.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = TURN.lock().await;
    until("the processes of the test before are gone", || processes().is_empty()).await;
    turn
}

async fn zygotes(preload: &[&str], workspaces: Option<&Path>) -> Arc<dyn ZygoteLauncher> {
    let preload = preload.iter().map(|name| (*name).to_owned()).collect();
    bubblewrap::zygote_launcher(&Settings::default(), preload, workspaces, PATIENCE)
        .await
        .unwrap()
}

async fn cold() -> Arc<dyn Launcher> {
    backend::launcher(BackendKind::Bubblewrap, &Settings::default())
        .await
        .unwrap()
}

async fn pool(settings: PoolSettings) -> Arc<Pool> {
    let pool = Pool::new(
        Source::Zygote(zygotes(&["json", "wave"], None).await),
        cold().await,
        settings,
    );
    pool.warm(PATIENCE).await.unwrap();
    Arc::new(pool)
}

fn few() -> PoolSettings {
    PoolSettings {
        min_spares: 2,
        max_spares: 4,
        max_wait: PATIENCE,
        ..PoolSettings::default()
    }
}

async fn sandbox(pool: &Arc<Pool>) -> Sandbox {
    let launcher: Arc<dyn Launcher> = pool.clone();
    Sandbox::builder()
        .launcher(launcher)
        .without_context()
        .build()
        .await
        .unwrap()
}

async fn result(sandbox: &Sandbox, code: &str) -> String {
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.outcome, Outcome::Ok, "{code}: {:?}", run.traceback);
    run.result.clone().unwrap_or_default()
}

/// Waits until a condition holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forked_guest_has_what_was_imported_and_no_privileges() {
    let _alone = alone().await;
    let pool = pool(few()).await;
    let guest = sandbox(&pool).await;
    assert_eq!(result(&guest, "import sys; 'wave' in sys.modules").await, "True");
    let status = result(&guest, "open('/proc/self/status').read()").await;
    for line in [
        "CapEff:\\t0000000000000000",
        "CapBnd:\\t0000000000000000",
        "NoNewPrivs:\\t1",
        "Seccomp:\\t2",
    ] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let fds = result(&guest, "import os; [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')]").await;
    assert!(!fds.contains("host"), "{fds}");
    // The zygote's rights and its view of the machine are not its guests'.
    for attack in [
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).unshare(0x20000000) == 0",
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).umount2(b'/run/workspaces', 2) == 0",
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
        "open('/file', 'w')",
        "open('/dev/file', 'w')",
        "open('/run/file', 'w')",
        "import os; os.listdir('/run/workspaces')",
    ] {
        let run = guest.execute(attack).await.unwrap();
        assert_eq!(run.outcome, Outcome::Error, "{attack}");
    }
}

/// A forked guest has another user than its zygote, and can still import further modules of the same Python.
#[tokio::test(flavor = "multi_thread")]
async fn a_forked_guest_imports_from_a_virtual_environment_what_its_zygote_did_not() {
    let _alone = alone().await;
    let folder = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in("/tmp")
        .unwrap();
    let venv = folder.path().join("venv");
    let made = Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .status();
    assert!(made.await.unwrap().success(), "python3-venv is needed");
    let packages = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(packages.join("site-packages/later.py"), "found = 'later'").unwrap();
    let settings = Settings {
        python: Some(venv.join("bin/python")),
        ..Settings::default()
    };
    let zygotes = bubblewrap::zygote_launcher(&settings, Vec::new(), None, PATIENCE)
        .await
        .unwrap();
    let pool = Arc::new(Pool::new(Source::Zygote(zygotes), cold().await, few()));
    pool.warm(PATIENCE).await.unwrap();
    let sandbox = sandbox(&pool).await;
    assert_eq!(result(&sandbox, "import later\nlater.found").await, "'later'");
    sandbox.destroy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_share_nothing() {
    let _alone = alone().await;
    let pool = pool(few()).await;
    let (one, two) = (sandbox(&pool).await, sandbox(&pool).await);
    result(
        &one,
        "import os, random, socket, uuid, threading\n\
         for name in ('/tmp/x', '/dev/shm/x', '/workspace/x'): open(name, 'w').write('one')\n\
         import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         segment = libc.shmget(4711, 4096, 0o1666)\n\
         server = socket.socket(socket.AF_UNIX); server.bind('\\0sibling'); server.listen()\n\
         port = socket.socket(); port.bind(('127.0.0.1', 4711)); port.listen()\n\
         from multiprocessing import shared_memory, resource_tracker\n\
         memory = shared_memory.SharedMemory('sibling', create=True, size=10)\n\
         lock = open('/tmp/lock', 'w')\nimport fcntl; fcntl.flock(lock, fcntl.LOCK_EX)\n\
         import subprocess; child = subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)",
    )
    .await;
    let seen = result(
        &two,
        "import os, socket, ctypes\nfound = []\n\
         found += [name for name in ('/tmp/x', '/dev/shm/x', '/workspace/x', '/tmp/lock', '/dev/shm/sibling') if os.path.exists(name)]\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         if libc.shmget(4711, 4096, 0o666) >= 0: found.append('System V memory')\n\
         for address, family in (('\\0sibling', socket.AF_UNIX), (('127.0.0.1', 4711), socket.AF_INET)):\n\
         \x20   try: socket.socket(family).connect(address); found.append(address)\n\
         \x20   except OSError: pass\n\
         for pid in (pid for pid in os.listdir('/proc') if pid.isdigit()):\n\
         \x20   if 'sleep' in open(f'/proc/{pid}/cmdline').read(): found.append('a process')\n\
         from multiprocessing import shared_memory\n\
         try: shared_memory.SharedMemory('sibling'); found.append('shared memory')\n\
         except OSError: pass\n\
         found",
    )
    .await;
    assert_eq!(seen, "[]");
    let random = "import os, random, uuid; (random.random(), uuid.uuid4().hex, os.urandom(8).hex(), random.SystemRandom().random())";
    let (first, second) = (result(&one, random).await, result(&two, random).await);
    let parts = |text: &str| {
        text.trim_matches(['(', ')'])
            .split(", ")
            .map(str::to_owned)
            .collect::<HashSet<_>>()
    };
    assert_eq!(
        parts(&first).intersection(&parts(&second)).count(),
        0,
        "{first} {second}"
    );
}

/// Code that sends descriptors, which nobody receives, until the kernel refuses. Its result is the error and the number of
/// descriptors.
const HOARD: &str = "
import errno, os, socket
null = os.open('/dev/null', os.O_RDONLY)
def hoard(most):
    kept, sent = [], 0
    while sent < most:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.append((ours, theirs))
        ours.setblocking(False)
        try:
            while sent < most:
                socket.send_fds(ours, [b'x'], [null] * 250)
                sent += 250
        except BlockingIOError: pass
        except OSError as error: return kept, sent, errno.errorcode[error.errno]
    return kept, sent, None
";

/// The kernel bounds descriptors in flight by user. A guest with the most possible keeps nobody else from sending descriptors:
/// neither its siblings nor the zygote, whose end would end all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_hoards_descriptors_is_alone_with_that() {
    let _alone = alone().await;
    let pool = pool(few()).await;
    let (one, two) = (sandbox(&pool).await, sandbox(&pool).await);
    result(&two, &format!("{HOARD}\nkept = 'two'")).await;
    let code = format!("{HOARD}\nall, sent, why = hoard(100_000)\nwhy, sent < 2_000");
    assert_eq!(result(&one, &code).await, "('ETOOMANYREFS', True)");
    if rustix::process::geteuid().is_root() {
        assert_eq!(result(&two, "hoard(750)[1:]").await, "(750, None)");
    }
    // Each of these is another fork.
    for _ in 0..4 {
        assert_eq!(result(&sandbox(&pool).await, "1 + 1").await, "2");
    }
    pool.warm(PATIENCE).await.unwrap();
    assert_eq!(result(&two, "kept").await, "'two'");
    assert_eq!(result(&one, "why").await, "'ETOOMANYREFS'");
    let stats = pool.stats();
    assert_eq!((stats.zygotes, stats.failed, stats.died), (1, 0, 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_guest_is_a_user_of_its_own_and_the_same_inside() {
    let _alone = alone().await;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let pool = pool(few()).await;
    let (one, two) = (sandbox(&pool).await, sandbox(&pool).await);
    for guest in [&one, &two] {
        let inside = "import getpass, os, pty\nopen('/tmp/mine', 'w').close()\nopen('mine', 'w').close()\n\
             [os.getresuid(), os.getresgid(), os.getgroups(), getpass.getuser(), os.stat('/tmp/mine').st_uid, os.stat('.').st_uid]";
        assert_eq!(
            result(guest, inside).await,
            "[(1000, 1000, 1000), (1000, 1000, 1000), [], 'guest', 1000, 1000]"
        );
        // A guest has its own terminals, and few.
        let terminals = "import errno, os\nopen_ones = []\ntry:\n    while True: open_ones.append(os.openpty())\n\
             except OSError as error: why = errno.errorcode[error.errno]\n\
             [os.close(fd) for pair in open_ones for fd in pair]\nlen(open_ones), why";
        assert_eq!(result(guest, terminals).await, "(64, 'ENOSPC')");
        let limits = "import resource\n[resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_SIGPENDING)]";
        assert_eq!(result(guest, limits).await, "[(1024, 1024), (4096, 4096)]");
        let more = "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n\
             open('/proc/sys/user/max_user_namespaces').read().strip()";
        assert_eq!(result(guest, more).await, "'0'");
    }
    let mut own = HashSet::new();
    // Guests, spares and the zygote. A guest in the making still has the zygote's user.
    until("all are users of their own", || {
        let users = users_of_guests();
        own = users.iter().copied().collect();
        own.len() >= 3 && own.len() == users.len()
    })
    .await;
    assert!(own.iter().all(|user| Users::default().contains(*user)), "{own:?}");
    let is_locked = |user: &u32| Path::new("/run/sandglass/users").join(user.to_string()).exists();
    assert!(own.iter().all(is_locked), "{own:?}");
    drop((one, two, pool));
    until("the ids are given back", || !own.iter().any(is_locked)).await;
}

/// The users of the processes that [`processes`] finds.
fn users_of_guests() -> Vec<u32> {
    let owner = |found: Found| {
        let process = std::fs::metadata(format!("/proc/{}", found.pid)).ok()?; // or it has just ended
        Some(std::os::unix::fs::MetadataExt::uid(&process))
    };
    processes().into_iter().filter_map(owner).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_waits_starts_cold_or_refuses() {
    let _alone = alone().await;
    for when_empty in [WhenEmpty::Wait, WhenEmpty::Cold, WhenEmpty::Refuse] {
        let settings = PoolSettings {
            min_spares: 1,
            max_spares: 1,
            when_empty,
            max_wait: PATIENCE,
            ..PoolSettings::default()
        };
        let pool = pool(settings).await;
        let many: Vec<_> = futures_util::future::join_all((0..6).map(|_| pool.acquire())).await;
        let (got, refused): (Vec<_>, Vec<_>) = many.into_iter().partition(Result::is_ok);
        let stats = pool.stats();
        match when_empty {
            WhenEmpty::Wait => assert_eq!((got.len(), stats.cold, stats.refused), (6, 0, 0)),
            WhenEmpty::Cold => assert_eq!((got.len(), stats.cold > 0, stats.refused), (6, true, 0)),
            WhenEmpty::Refuse => {
                assert!(!got.is_empty() && !refused.is_empty() && stats.cold == 0);
                assert!(refused.iter().all(|error| matches!(error, Err(Unavailable::Empty(_)))));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_dies_is_replaced() {
    let _alone = alone().await;
    let pool = pool(few()).await;
    // A spare that another process kills.
    let victim = processes().into_iter().find(|process| process.is_guest).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(victim.pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    until("the dead guest is noticed", || pool.stats().died == 1).await;
    pool.warm(PATIENCE).await.unwrap();
    let guest = sandbox(&pool).await;
    assert_eq!(result(&guest, "1 + 1").await, "2");
    // The zygote, with all its guests.
    let zygotes = pool.stats().zygotes;
    let before = processes();
    for process in before.iter().filter(|process| !process.is_guest) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(process.pid).unwrap(),
            rustix::process::Signal::KILL,
        );
    }
    let old: Vec<i32> = before.iter().map(|process| process.pid).collect();
    // If a parent is killed first, its children belong to another process until they are gone.
    until("all of them are gone", || !old.iter().any(|pid| runs(*pid))).await;
    // The loss may be noticed before or after the code is sent. No state is claimed to be left.
    let next = guest.execute("3 + 3").await.unwrap();
    assert_eq!(next.state.status, StateStatus::Lost, "{next:?}");
    assert!(matches!(next.outcome, Outcome::Ok | Outcome::Crashed), "{next:?}");
    assert_eq!(result(&guest, "4 + 4").await, "8");
    until("another zygote", || pool.stats().zygotes > zygotes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zygote_that_ended_says_how() {
    let _alone = alone().await;
    let zygote = zygotes(&[], None).await.launch().await.unwrap();
    assert_eq!(zygote.end(), None);
    let process = processes().into_iter().find(|process| !process.is_guest).unwrap();
    let pid = rustix::process::Pid::from_raw(process.pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("its end is known", || zygote.end().is_some()).await;
    let error = zygote
        .fork(&Resources::default(), None, false)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        zygote.is_dead() && error.contains("it was ended by signal 9"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zygote_is_replaced_when_it_has_forked_enough() {
    let _alone = alone().await;
    let settings = PoolSettings {
        max_zygote_forks: 3,
        ..few()
    };
    let pool = pool(settings).await;
    let mut guests = Vec::new();
    for _ in 0..6 {
        let guest = sandbox(&pool).await;
        assert_eq!(result(&guest, "1 + 1").await, "2");
        guests.push(guest);
    }
    assert!(pool.stats().zygotes >= 2, "{:?}", pool.stats());
    for guest in &guests {
        assert_eq!(result(guest, "2 + 2").await, "4"); // those of the first zygote live on
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_a_zygote_starts_gets_that_one() {
    let _alone = alone().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let workspaces = Workspaces::open(folder.path(), Some(Users::default()), None).unwrap();
    let _claimed = ["one", "two", "three"].map(|session| workspaces.claim("ann", session).unwrap());
    let launcher = zygotes(&["wave"], Some(folder.path())).await;
    let pool = Pool::new(Source::Zygote(launcher), cold().await, few());
    // At the same time as the task that fills the pool.
    let names = ["ann/one", "ann/two", "ann/three"];
    let guests = futures_util::future::join_all(names.map(|name| pool.acquire_with_workspace(name))).await;
    assert!(guests.iter().all(Result::is_ok), "{guests:?}");
    pool.warm(PATIENCE).await.unwrap();
    assert_eq!(pool.stats().zygotes, 1);
}

/// A launcher that starts no zygote, and fails only when it is told to go on.
#[derive(Default)]
struct Broken {
    attempts: AtomicU64,
    go_on: Notify,
}

impl ZygoteLauncher for Broken {
    fn launch(&self) -> BoxFuture<'_, Result<Arc<Zygote>, Error>> {
        Box::pin(async {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
            self.go_on.notified().await;
            Err(Error::BootFailed(format!("attempt {attempt}")))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_zygote_that_does_not_start_is_told_why() {
    let _alone = alone().await;
    let broken = Arc::new(Broken::default());
    let launcher: Arc<dyn ZygoteLauncher> = broken.clone();
    let pool = Pool::new(Source::Zygote(launcher), cold().await, few());
    let attempts = || broken.attempts.load(Ordering::Relaxed);
    until("the pool starts one", || attempts() == 1).await;
    let mut waiting = [
        pool.acquire_with_workspace("ann/one"),
        pool.acquire_with_workspace("ann/two"),
    ]
    .map(Box::pin);
    for waiting in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    broken.go_on.notify_one();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap_err(), Error::BootFailed("attempt 1".to_owned()));
    }
    // Later requests fail at once, because the pool itself tries again.
    let later = pool.acquire_with_workspace("ann/one").now_or_never().unwrap();
    assert_eq!(later.unwrap_err(), Error::BootFailed("attempt 1".to_owned()));
    until("another attempt", || attempts() == 2).await;
    broken.go_on.notify_one();
    // A guest without a workspace needs no zygote. It is started cold, and the pool tells the reason.
    let mut guest = Box::pin(pool.acquire());
    let stats = || {
        broken.go_on.notify_one();
        pool.stats()
    };
    let guest = loop {
        tokio::select! {
            guest = &mut guest => break guest,
            () = tokio::time::sleep(Duration::from_millis(20)) => drop(stats()),
        }
    };
    guest.unwrap().end().await;
    let stats = stats();
    assert_eq!((stats.cold, stats.made), (1, 0));
    assert!(stats.failed > 0 && stats.problem.unwrap().contains("attempt "));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_later_is_worth_another_attempt_where_the_pool_makes_none_by_itself() {
    let _alone = alone().await;
    let broken = Arc::new(Broken::default());
    let launcher: Arc<dyn ZygoteLauncher> = broken.clone();
    let none = PoolSettings { min_spares: 0, ..few() };
    let pool = Pool::new(Source::Zygote(launcher), cold().await, none);
    for attempt in 1..=2 {
        let mut waiting = Box::pin(pool.acquire_with_workspace("ann/one"));
        assert!((&mut waiting).now_or_never().is_none());
        broken.go_on.notify_one();
        assert_eq!(
            waiting.await.unwrap_err(),
            Error::BootFailed(format!("attempt {attempt}"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_pool() {
    let _alone = alone().await;
    {
        let pool = pool(few()).await;
        let guest = sandbox(&pool).await;
        result(
            &guest,
            "import subprocess; subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True) and None",
        )
        .await;
        guest.destroy().await;
        pool.warm(PATIENCE).await.unwrap();
    }
    until("no process is left", || processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateless_run_has_the_documented_shapes() {
    let _alone = alone().await;
    let launcher: Arc<dyn Launcher> = pool(few()).await;
    let bounds = Bounds {
        limits: Limits {
            timeout_ms: 60_000.0,
            grace_period_ms: 300.0,
            ..Limits::default()
        },
        max_state_bytes: 1 << 20,
        max_file_bytes: 1 << 20,
        afterwards: PATIENCE,
    };
    let run = async |code: &str, timeout: Option<f64>| {
        let request = Request {
            code: code.to_owned(),
            timeout,
            ..Request::default()
        };
        stateless::run(Arc::clone(&launcher), &bounds, request).await.unwrap()
    };
    let (ok, _) = run("print('Hello')\nx = 1\nx", None).await;
    assert_eq!(
        (ok.stdout.as_str(), ok.stderr.as_str(), ok.exit_code, ok.error),
        ("Hello\n", "", 0, None)
    );
    let (fresh, _) = run("print('x' in globals())", None).await;
    assert_eq!(fresh.stdout, "False\n");
    let (syntax, _) = run("x = (", None).await;
    assert_eq!(syntax.stderr, "SyntaxError: '(' was never closed (line 1)");
    assert_eq!(syntax.error.as_deref(), Some("SyntaxError: '(' was never closed"));
    let (failed, _) = run("print('before')\n1/0", None).await;
    assert_eq!((failed.stdout.as_str(), failed.exit_code), ("before\n", 1));
    assert!(
        failed
            .stderr
            .starts_with("Traceback (most recent call last):\n  File \"<string>\", line 2, in <module>\n")
    );
    assert!(
        failed.stderr.ends_with("\nZeroDivisionError: division by zero"),
        "{}",
        failed.stderr
    );
    assert_eq!(failed.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    for code in [
        "print('before', flush=True)\nwhile True: pass",
        "print('before', flush=True)\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ] {
        let (late, _) = run(code, Some(3.0)).await;
        assert_eq!((late.stdout.as_str(), late.exit_code), ("before\n", 124));
        assert!(late.error.unwrap().starts_with("TimeoutError: "));
    }
    let (gone, _) = run("print('before', flush=True)\nimport os; os._exit(3)", None).await;
    assert_eq!((gone.stdout.as_str(), gone.exit_code), ("before\n", 137));
    let (wrote, files) = run(
        "import os; os.mkdir('out'); open('out/a.txt', 'w').write('a' * 10)",
        None,
    )
    .await;
    assert_eq!(wrote.files, ["out/a.txt"]);
    assert_eq!(
        (files[0].path.as_str(), files[0].data.as_slice()),
        ("out/a.txt", &b"aaaaaaaaaa"[..])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateless_run_has_one_deadline() {
    let _alone = alone().await;
    let launcher: Arc<dyn Launcher> = pool(few()).await;
    let bounds = Bounds {
        limits: Limits::default(),
        max_state_bytes: 1 << 20,
        max_file_bytes: 1 << 20,
        afterwards: Duration::from_millis(500),
    };
    // Code that makes the guest slow to read a file. A further file would be read within its own deadline.
    let code = "from sandglass.runtime.files import Files\nread = Files.read\n\
                def slow(self, path, *rest):\n\
                \x20   while path == 'a': pass\n\
                \x20   return read(self, path, *rest)\n\
                Files.read = slow\n\
                for name in 'ab': open(name, 'w').write(name)";
    let request = Request {
        code: code.to_owned(),
        ..Request::default()
    };
    let (response, files) = stateless::run(launcher, &bounds, request).await.unwrap();
    assert_eq!((response.exit_code, &response.error), (0, &None), "{response:?}");
    assert_eq!(response.files, ["a", "b"]);
    assert!(files.is_empty(), "{files:?}");
}

/// Returns true when the process exists and is not waiting to be collected.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

struct Found {
    pid: i32,
    is_guest: bool,
}

/// The Pythons that this process started as zygotes, and the processes that they forked.
fn processes() -> Vec<Found> {
    let mut parents = HashMap::new();
    let mut pythons = HashSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let mut fields = rest.split(' ');
        if fields.next() == Some("Z") {
            continue;
        }
        let parent = fields.next().and_then(|parent| parent.parse::<i32>().ok());
        parents.insert(pid, parent.unwrap_or(0));
        let line = read("cmdline");
        let program = line.split('\0').next().unwrap_or_default();
        if line.contains("--zygote") && program.contains("python") {
            pythons.insert(pid);
        }
    }
    let ours = std::process::id().cast_signed();
    let is_ours = |pid: i32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).any(|pid| pid == ours);
    pythons
        .iter()
        .filter(|pid| is_ours(**pid))
        .map(|pid| Found {
            pid: *pid,
            is_guest: parents.get(pid).is_some_and(|parent| pythons.contains(parent)),
        })
        .collect()
}
