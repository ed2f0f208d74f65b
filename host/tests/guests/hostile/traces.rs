//! Traces of guests: none remain, neither after an execution nor after all of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::*;

on!(
    bubblewrap,
    crate::hostile::Kind::Bubblewrap,
    daemons_end_with_their_cell,
    sandboxes_end_with_their_handle
);
on!(
    forked,
    crate::hostile::Kind::Forked,
    daemons_end_with_their_cell,
    sandboxes_end_with_their_handle
);
on!(
    docker,
    crate::hostile::Kind::Docker,
    daemons_end_with_their_cell,
    sandboxes_end_with_their_handle
);

/// The number of processes on this machine with `mark` in their command line.
fn with_argument(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| {
            String::from_utf8_lossy(line)
                .split('\0')
                .any(|argument| argument == mark)
        })
        .count()
}

/// A number of seconds that no other process sleeps.
fn mark() -> String {
    let mut random = [0; 4];
    getrandom::fill(&mut random).unwrap();
    format!("100000.{:010}", u32::from_ne_bytes(random))
}

/// Code that starts a process outside of its parent, session and group.
fn daemon(mark: &str) -> String {
    format!(
        "
import os, subprocess
ready, begun = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(['sleep', '{mark}'], start_new_session=True, stdout=subprocess.DEVNULL)
        os.write(begun, b'x')
    os._exit(0)
os.read(ready, 1)
"
    )
}

async fn daemons_end_with_their_cell(kind: Kind) {
    let mark = mark();
    let look = {
        let mark = mark.clone();
        move |_| {
            let mark = mark.clone();
            async move {
                // A new program has no arguments yet when its parent goes on. The kernel sets them after it has closed the file
                // whose end tells the parent of the start.
                eventually("it is seen while its cell runs", || with_argument(&mark) == 1).await;
                Ok(Value::None)
            }
        }
    };
    let limits = Limits {
        timeout_ms: PATIENCE.as_secs_f64() * 1_000.0,
        ..Limits::default()
    };
    let builder = described(kind).await.limits(limits).host_function("look", look);
    let sandbox = builder.build().await.unwrap();
    sandbox.initialize(Value::None).await.unwrap();
    let run = sandbox.execute(format!("{}\nlook()", daemon(&mark))).await.unwrap();
    assert_eq!((run.outcome, run.stderr.as_str()), (Outcome::Ok, ""), "{run:?}");
    assert_eq!(with_argument(&mark), 0);
    assert_works(&sandbox).await;
    // A process that the guest cannot adopt, because the code has switched off `PR_SET_CHILD_SUBREAPER`.
    let code = format!(
        "import ctypes\nctypes.CDLL(None).prctl(36, 0, 0, 0, 0)\n{}\nlook()",
        daemon(&mark)
    );
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!((run.outcome, run.stderr.as_str()), (Outcome::Ok, ""), "{run:?}");
    assert_eq!(with_argument(&mark), 0);
    assert_works(&sandbox).await;
}

async fn sandboxes_end_with_their_handle(kind: Kind) {
    let mark = mark();
    let sandbox = sandbox(kind).await;
    // A sandbox destroyed in the middle of an execution.
    let running = {
        let (sandbox, code) = (sandbox.clone(), format!("{}\nwhile True: pass", daemon(&mark)));
        tokio::spawn(async move { sandbox.execute(code).await })
    };
    eventually("the daemon", || with_argument(&mark) == 1).await;
    sandbox.destroy().await;
    assert_eq!(with_argument(&mark), 0, "nothing is left when destroy returns");
    assert!(running.await.unwrap().is_err());
    // A sandbox dropped in the middle of an execution.
    let sandbox = super::sandbox(kind).await;
    let mut running = Box::pin(sandbox.execute(format!("{}\nwhile True: pass", daemon(&mark))));
    let begin = Instant::now();
    while with_argument(&mark) == 0 {
        assert!(begin.elapsed() < PATIENCE);
        let _ = tokio::time::timeout(Duration::from_millis(10), &mut running).await;
    }
    drop(running);
    drop(sandbox);
    eventually("the end of everything", || with_argument(&mark) == 0).await;
}

/// The resources that this process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holds {
    descriptors: BTreeMap<String, usize>,
    children: usize,
    mounts: usize,
    temporary: usize,
}

fn holds() -> Holds {
    let mut descriptors = BTreeMap::new();
    for link in links() {
        let kind = link.split(':').next().unwrap_or_default().to_owned();
        *descriptors.entry(kind).or_default() += 1;
    }
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    Holds {
        descriptors,
        children: children.map(|text| text.split_whitespace().count()).sum(),
        mounts: mounts(),
        temporary: fs::read_dir(std::env::temp_dir()).unwrap().count(),
    }
}

/// The mounts in this process's temporary folder. Mounts elsewhere come and go with other programs.
fn mounts() -> usize {
    let folder = std::env::temp_dir().display().to_string();
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().filter(|line| line.contains(&folder)).count()
}

/// The targets of this process's descriptors, except the folder that is read for this list.
fn links() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .map(|link| link.display().to_string())
        .filter(|link| !link.ends_with("/fd"))
        .collect()
}

/// The folders of this supervisor's control groups, which it holds open.
fn groups() -> Vec<String> {
    links()
        .into_iter()
        .filter(|link| link.contains("/sandglass."))
        .collect()
}

fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Runs in a process of its own, because other tests of this one have guests too.
#[test]
fn the_host_is_afterwards_as_it_was_before() {
    let temporary = tempfile::tempdir().unwrap();
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hostile::traces::alone_with_its_guests",
            "--ignored",
            "--nocapture",
        ])
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
#[ignore = "it is run by the one above"]
async fn alone_with_its_guests() {
    let kind = Kind::Bubblewrap;
    // Makes the parts that are made once.
    let first = sandbox(kind).await;
    assert_works(&first).await;
    first.destroy().await;
    drop(first);
    // The user id is given back a little after the guest's end.
    let has_id = || links().iter().any(|link| link.contains("/sandglass/users/"));
    eventually("the end of the first", || {
        holds().children == 0 && groups().is_empty() && !has_id()
    })
    .await;
    let (before, memory) = (holds(), resident_bytes());
    let mut folders = Vec::new();
    for round in 0..2 {
        for (timeout_ms, code) in [
            (30_000.0, "import os\nwhile True: os.fork()".to_owned()),
            (60_000.0, "x = b'x' * (1 << 30)".to_owned()),
            (60_000.0, "open('/tmp/full', 'wb').write(bytes(1 << 30))".to_owned()),
            (1_000.0, "while True: print('x' * 100_000)".to_owned()),
            (
                300.0,
                "while True:\n    try:\n        while True: pass\n    except BaseException: pass".to_owned(),
            ),
            (30_000.0, "import os\nos.closerange(0, 1000)".to_owned()),
            (30_000.0, daemon(&mark())),
            (30_000.0, "import os\nos.abort()".to_owned()),
        ] {
            let sandbox = sandbox(kind).await;
            let run = run_for(&sandbox, timeout_ms, &code).await;
            assert!(!run.code.is_empty());
            assert_works(&sandbox).await;
            folders.extend(groups());
            // Both ways to end.
            if round == 0 {
                sandbox.destroy().await;
            }
        }
    }
    let end = Instant::now() + PATIENCE;
    while holds() != before {
        assert!(Instant::now() < end, "{:?}, and before {before:?}", holds());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    folders.sort();
    folders.dedup();
    eventually("the removal of all groups", || {
        folders.iter().all(|folder| !Path::new(folder).exists())
    })
    .await;
    let grown = resident_bytes().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
}
