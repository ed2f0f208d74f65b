//! Executions that outlive the process of their sandbox: it is killed while they wait in a call, and another one goes on with them.
//!
//! The tests use real guests in bubblewrap and as plain processes, and fail on a machine without bubblewrap; `scripts/setup` installs it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::future::pending;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use sandglass_host::kept::{Kept, KeptPlace, Pending, ResumeOptions};
use sandglass_host::{BackendKind, Error, ExecuteOptions, Execution, Outcome, Sandbox, StateStatus, Value};
use tempfile::TempDir;
use tokio::sync::watch;

mod apart;
mod faults;
mod late;
mod lost;
mod replays;
mod shared;

const BACKENDS: [BackendKind; 2] = [BackendKind::Bubblewrap, BackendKind::Subprocess];
/// The environment variables of a child: the folder, the backend and the code.
const CHILD: [&str; 3] = ["KEPT_TEST_FOLDER", "KEPT_TEST_BACKEND", "KEPT_TEST_CODE"];
/// The line that a child prints when `ask` waits for ever.
const WAITS: &str = "the child waits";

/// The calls of `ask` so far: their names and questions.
type Calls = Arc<watch::Sender<Vec<(Option<String>, String)>>>;

/// Opens the sandbox in a folder. `ask` answers a question with `answer`; without one, it waits for ever.
async fn open(place: &KeptPlace, backend: BackendKind, answer: fn(&str) -> Option<String>) -> (Arc<Kept>, Calls) {
    let calls: Calls = Arc::new(watch::Sender::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let builder = Sandbox::builder()
        .backend(backend)
        .allow_subprocess(true)
        .without_context()
        .host_function("ask", move |call| {
            let noted = Arc::clone(&noted);
            async move {
                let question = call.text(0)?.to_owned();
                noted.send_modify(|calls| calls.push((call.id.clone(), question.clone())));
                match answer(&question) {
                    Some(answer) => Ok(Value::Str(answer)),
                    None => {
                        println!("{WAITS}");
                        pending().await
                    }
                }
            }
        });
    (Kept::open(builder, place.clone()).await.unwrap(), calls)
}

/// Answers everything but what ends with a question mark.
fn some(question: &str) -> Option<String> {
    (!question.ends_with('?')).then(|| format!("answer to {question}"))
}

#[expect(clippy::unnecessary_wraps, reason = "as `some`")]
fn all(question: &str) -> Option<String> {
    Some(format!("answer to {question}"))
}

/// Waits for the first call.
async fn is_asked(calls: &Calls) {
    let _ = calls.subscribe().wait_for(|calls| !calls.is_empty()).await;
}

fn questions(calls: &Calls) -> Vec<String> {
    calls.borrow().iter().map(|(_, question)| question.clone()).collect()
}

fn ok(execution: &Execution) -> String {
    assert_eq!(execution.outcome, Outcome::Ok, "{:?}", execution.traceback);
    execution.result.clone().unwrap_or_default()
}

/// A process of its own that runs cells, of which the last one waits for ever in `ask`.
struct Another(Child);

impl Another {
    fn begin(folder: &Path, backend: BackendKind, code: &str) -> Self {
        let mut another = Self(
            Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"])
                .envs(CHILD.into_iter().zip([folder.to_str().unwrap(), backend.name(), code]))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let lines = BufReader::new(another.0.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        for line in lines {
            let line = line.unwrap();
            if line.contains(WAITS) {
                return another;
            }
            seen.push(line);
        }
        panic!("the child ended: {seen:?}");
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    fn kill(self) {
        drop(self);
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of [`Another`].
#[tokio::test]
#[ignore = "other tests start it as a process"]
async fn child() {
    let [Ok(folder), Ok(backend), Ok(code)] = CHILD.map(std::env::var) else {
        return; // no test has started it
    };
    let backend = BACKENDS.into_iter().find(|kind| kind.name() == backend).unwrap();
    let (kept, _) = open(&KeptPlace::in_folder(PathBuf::from(folder)).unwrap(), backend, some).await;
    for cell in code.split("\n# ---\n") {
        let execution = kept.execute(cell).await.unwrap();
        assert_eq!(execution.outcome, Outcome::Ok, "{:?}", execution.traceback);
    }
}

/// Code that sees the world in many ways before its last call.
const SEES: &str = "import os, random, time, uuid, datetime\n\
    told = [seen.pop(), time.time(), datetime.datetime.now(), os.urandom(4), random.random(), uuid.uuid4()]\n\
    told += [list({f'{number}' for number in range(20)}), open('notes.txt').read()]\n\
    print(told)\n\
    first = ask(repr(told))\n\
    told.append(time.monotonic_ns())\n\
    time.sleep(0.01)\n\
    second = ask(f'{told[1:]}?')\n\
    (first == f'answer to {told[:-1]}', second == f'answer to {told[1:]}?', len(seen), len(told))";

#[tokio::test]
async fn an_execution_goes_on_after_its_process_was_killed() {
    for backend in BACKENDS {
        let folder = TempDir::new().unwrap();
        let before = "seen = [1, 2, 3]\nopen('notes.txt', 'w').write('a note')\nimport random\nrandom.seed(7)";
        Another::begin(folder.path(), backend, &format!("{before}\n# ---\n{SEES}")).kill();

        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, calls) = open(&place, backend, all).await;
        let Pending {
            execution,
            code,
            calls: waiting,
        } = kept.pending().unwrap();
        assert_eq!((execution, code.as_str(), waiting.len()), (2, SEES, 1));
        let [waits] = <[_; 1]>::try_from(waiting).unwrap();
        assert_eq!((waits.name.as_str(), waits.kwargs.len()), ("ask", 0));
        assert!(waits.since_ms > 1_600_000_000_000);
        let Some(Value::Str(question)) = waits.args.first() else {
            panic!("{waits:?}")
        };
        assert!(question.ends_with("]?"));
        assert_eq!(kept.execute("1").await.unwrap_err().code(), "execution_pending");
        assert_eq!(kept.sandbox().await.unwrap_err().code(), "execution_pending");

        let printed = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&printed);
        let execute = ExecuteOptions {
            on_output: Some(Arc::new(move |_, text| heard.lock().unwrap().push_str(text))),
            ..ExecuteOptions::default()
        };
        let options = ResumeOptions {
            execute,
            ..ResumeOptions::default()
        };
        let resumed = kept.resume(options).await.unwrap();
        assert_eq!(ok(&resumed), "(True, True, 2, 9)");
        assert_eq!((resumed.id, resumed.state.status), (2, StateStatus::Kept));
        assert!(printed.lock().unwrap().contains("a note"), "from the beginning");
        let made = calls.borrow().clone();
        assert_eq!(
            made,
            [(Some(waits.id), question.clone())],
            "only the call without an answer"
        );
        assert_eq!(kept.pending(), None);
        assert_eq!(ok(&kept.execute("seen").await.unwrap()), "[1, 2]");
        kept.destroy().await;

        let (again, _) = open(&place, backend, all).await;
        assert_eq!(again.pending(), None);
        let next = again.execute("(len(told), open('notes.txt').read())").await.unwrap();
        assert_eq!((ok(&next).as_str(), next.id), ("(9, 'a note')", 4));
        assert_eq!(next.state.status, StateStatus::Kept);
    }
}

/// Has an execution wait in a call, and ends the sandbox meanwhile.
async fn ends_while_it_waits<F>(kept: Arc<Kept>, calls: &Calls, run: impl FnOnce(Arc<Kept>) -> F) -> Error
where
    F: Future<Output = Result<Execution, Error>>,
{
    let asked = async {
        is_asked(calls).await;
        kept.destroy().await;
    };
    let (ended, ()) = tokio::join!(run(Arc::clone(&kept)), asked);
    ended.unwrap_err()
}

#[tokio::test]
async fn an_execution_goes_on_after_several_ends_and_the_user_may_answer() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let code = "import time\nticks = [time.monotonic_ns()]\n\
        answers = [ask(f'{number}?') for number in range(3) if ticks.append(time.monotonic_ns()) is None]\n\
        (answers, len(ticks))";
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let run = |kept: Arc<Kept>| async move { kept.execute(code).await };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");

    let id = |kept: &Kept| kept.pending().unwrap().calls[0].id.clone();
    let answers = |kept: &Kept, answer: &str| vec![(id(kept), Value::Str(answer.to_owned()))];
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let wrong = vec![("nonsense".to_owned(), Value::None)];
    let options = ResumeOptions {
        answers: wrong,
        ..ResumeOptions::default()
    };
    assert_eq!(kept.resume(options).await.unwrap_err().code(), "invalid_option");
    let options = ResumeOptions {
        answers: answers(&kept, "zero"),
        ..ResumeOptions::default()
    };
    let first = id(&kept);
    let run = |kept: Arc<Kept>| async move { kept.resume(options).await };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
    assert_eq!(questions(&calls), ["1?"], "the first one was answered");

    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    assert_ne!(id(&kept), first);
    let resumed = kept.resume(ResumeOptions::default()).await.unwrap();
    assert_eq!(ok(&resumed), "(['zero', 'answer to 1?', 'answer to 2?'], 4)");
    assert_eq!(questions(&calls), ["1?", "2?"]);
}

/// Each call is made once, wherever the process is killed: but for the one that waits, of which nobody knows whether it was done.
#[tokio::test]
async fn an_answered_call_is_never_made_again() {
    const CALLS: usize = 4;
    for (killed_at, backend) in (0..CALLS).zip(BACKENDS.into_iter().cycle()) {
        let folder = TempDir::new().unwrap();
        let code = format!(
            "import random\nparts = []\nfor number in range({CALLS}):\n    mark = '?' if number == {killed_at} else ''\n    \
             parts.append(ask(f'{{number}} {{random.random()}}{{mark}}'))\nlen(set(parts))"
        );
        Another::begin(folder.path(), backend, &code).kill();
        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, calls) = open(&place, backend, all).await;
        let resumed = kept.resume(ResumeOptions::default()).await.unwrap();
        assert_eq!(ok(&resumed), CALLS.to_string());
        let asked: Vec<_> = questions(&calls)
            .iter()
            .map(|question| question[..1].to_owned())
            .collect();
        let expected: Vec<_> = (killed_at..CALLS).map(|number| number.to_string()).collect();
        assert_eq!(asked, expected);
    }
}

#[tokio::test]
async fn another_way_than_the_journals_is_an_error_that_names_the_first_difference() {
    let folder = TempDir::new().unwrap();
    // The times of files are no part of a state.
    let code = "import os\nkept = 2\nask(f\"{os.stat('file').st_mtime_ns} is written\")\nask('what now?')";
    let cells = format!("kept = 1\nopen('file', 'w').close()\n# ---\n{code}");
    Another::begin(folder.path(), BackendKind::Subprocess, &cells).kill();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    for _ in 0..2 {
        let error = kept.resume(ResumeOptions::default()).await.unwrap_err();
        assert_eq!(error.code(), "journal_differs");
        assert!(error.to_string().contains("call 1 is ask("), "{error}");
        assert!(error.to_string().contains("where the journal has ask("), "{error}");
        assert_eq!(kept.pending().unwrap().calls.len(), 1, "it is still pending");
    }
    assert_eq!(questions(&calls), [""; 0]);
    kept.discard().await.unwrap();
    assert_eq!(kept.pending(), None);
    assert_eq!(kept.discard().await.unwrap_err().code(), "invalid_option");
    assert_eq!(
        kept.resume(ResumeOptions::default()).await.unwrap_err().code(),
        "invalid_option"
    );
    let next = kept.execute("kept").await.unwrap();
    assert_eq!((ok(&next).as_str(), next.state.status), ("1", StateStatus::Kept));
}

/// Cells of which the last one cannot be resumed, and the reason.
const UNRESUMABLE: [(&str, &str); 4] = [
    (
        "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()\nask('x?')",
        "it started a thread",
    ),
    (
        "import subprocess\nsubprocess.run(['true'])\nask('x?')",
        "it started a process",
    ),
    (
        "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.sleep(0.5)\nask('x?')",
        "it waited in an event loop, whose order no journal holds",
    ),
    (
        "kept = 1\nmaker = (number for number in range(3))\n# ---\nask('x?')",
        "the state before it is not kept: maker cannot be written",
    ),
];

#[tokio::test]
async fn what_cannot_be_resumed_is_named_by_the_next_execution() {
    for ((cells, why), backend) in UNRESUMABLE.into_iter().zip(BACKENDS.into_iter().cycle()) {
        let folder = TempDir::new().unwrap();
        Another::begin(folder.path(), backend, cells).kill();
        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, _) = open(&place, backend, all).await;
        assert_eq!(kept.pending(), None);
        let next = kept.execute("1 + 1").await.unwrap();
        assert_eq!(ok(&next), "2");
        let lost = next.state.lost.clone().unwrap_or_default();
        let number = cells.split("\n# ---\n").count();
        let told = lost.iter().find(|lost| lost.name == format!("execution {number}"));
        let reason = format!("it was under way when the process ended, and cannot be resumed: {why}");
        assert!(told.is_some_and(|told| told.reason.starts_with(&reason)), "{lost:?}");
    }
}

#[tokio::test]
async fn an_execution_that_never_called_is_lost_and_the_next_one_says_so() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    let (started, has_started) = tokio::sync::oneshot::channel::<()>();
    let started = Mutex::new(Some(started));
    let options = ExecuteOptions {
        on_output: Some(Arc::new(move |_, _| drop(started.lock().unwrap().take()))),
        ..ExecuteOptions::default()
    };
    let running = kept.execute_with("x = 2\nprint(x, flush=True)\nwhile True: pass", options);
    let ends = async {
        let _ = has_started.await;
        kept.destroy().await;
    };
    let (ended, ()) = tokio::join!(running, ends);
    assert_eq!(ended.unwrap_err().code(), "destroyed");
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(kept.pending(), None);
    let next = kept.execute("x").await.unwrap();
    assert_eq!(ok(&next), "1");
    assert_eq!(
        (next.state.status, next.state.restored_to),
        (StateStatus::Restored, Some(1))
    );
}

#[tokio::test]
async fn the_kept_state_comes_back_when_the_guest_dies() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    let crashed = kept
        .execute("x = 2\nask('a')\nimport os\nos.kill(os.getpid(), 9)")
        .await
        .unwrap();
    assert_eq!(crashed.outcome, Outcome::Crashed);
    assert_eq!(
        (crashed.state.status, crashed.state.restored_to),
        (StateStatus::Restored, Some(1))
    );
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(
        (kept.pending(), ok(&kept.execute("x").await.unwrap())),
        (None, "1".to_owned())
    );
}

#[tokio::test]
async fn what_is_done_to_the_sandbox_itself_is_kept_before_the_next_execution() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let sandbox = kept.sandbox().await.unwrap();
    sandbox.set_variable("given", 40_i64).await.unwrap();
    sandbox.write_file("folder/file", "text").await.unwrap();
    let run = |kept: Arc<Kept>| async move {
        kept.execute("given += 2\nask(f\"{given} {open('folder/file').read()}?\")")
            .await
    };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(
        ok(&kept.resume(ResumeOptions::default()).await.unwrap()),
        "'answer to 42 text?'"
    );
    assert_eq!(questions(&calls), ["42 text?"]);
    assert_eq!(ok(&kept.execute("given").await.unwrap()), "42");
}

#[tokio::test]
async fn an_interrupted_execution_is_not_pending() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    tokio::select! {
        ended = kept.execute("x = 1\nask('x?')") => panic!("{ended:?}"),
        () = is_asked(&calls) => {}
    }
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1", "the variables stay");
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(
        (kept.pending(), ok(&kept.execute("x").await.unwrap())),
        (None, "1".to_owned())
    );
}

#[tokio::test]
async fn options_with_which_no_execution_can_be_recorded_are_refused() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let refused =
        async |builder: sandglass_host::SandboxBuilder| Kept::open(builder, place.clone()).await.unwrap_err().code();
    let builder = || {
        Sandbox::builder()
            .backend(BackendKind::Subprocess)
            .allow_subprocess(true)
            .without_context()
    };
    assert_eq!(refused(builder().workspace(folder.path())).await, "invalid_option");
    let kept = Kept::open(builder(), place.clone()).await.unwrap();
    ok(&kept.execute("1").await.unwrap());
    kept.destroy().await;
    assert_eq!(
        refused(builder().profile(sandglass_host::Profile::Rlm)).await,
        "invalid_option"
    );
    let again = KeptPlace::in_folder(folder.path()).unwrap_err();
    assert_eq!(again.code(), "persist_in_use", "the folder is open already");
}

#[tokio::test]
async fn a_dropped_resumption_has_interrupted_the_execution() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let run = |kept: Arc<Kept>| async move { kept.execute("x = 1\nask('x?')").await };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    tokio::select! {
        ended = kept.resume(ResumeOptions::default()) => panic!("{ended:?}"),
        () = is_asked(&calls) => {}
    }
    let again = kept.resume(ResumeOptions::default()).await.unwrap_err();
    assert_eq!(again.code(), "invalid_option", "{again}");
    let next = kept.execute("'x' in globals()").await.unwrap();
    assert_eq!(ok(&next), "False");
    let lost = next.state.lost.clone().unwrap_or_default();
    assert!(
        lost.iter().any(|lost| lost.reason.ends_with("it was stopped")),
        "{lost:?}"
    );
}
