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

const BACKENDS: [BackendKind; 2] = [BackendKind::Bubblewrap, BackendKind::Subprocess];
/// The environment variables of a child: the folder, the backend and the code.
const CHILD: [&str; 3] = ["KEPT_TEST_FOLDER", "KEPT_TEST_BACKEND", "KEPT_TEST_CODE"];
/// The line that a child prints when `ask` waits for ever.
const WAITS: &str = "the child waits";

/// The calls of `ask` so far: their names and questions.
type Calls = Arc<Mutex<Vec<(Option<String>, String)>>>;

/// Opens the sandbox in a folder. `ask` answers a question with `answer`; without one, it waits for ever.
async fn open(place: &KeptPlace, backend: BackendKind, answer: fn(&str) -> Option<String>) -> (Kept, Calls) {
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    let builder = Sandbox::builder()
        .backend(backend)
        .allow_subprocess(true)
        .without_context()
        .host_function("ask", move |call| {
            let noted = Arc::clone(&noted);
            async move {
                let question = call.text(0)?.to_owned();
                noted.lock().unwrap().push((call.id.clone(), question.clone()));
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

fn questions(calls: &Calls) -> Vec<String> {
    calls
        .lock()
        .unwrap()
        .iter()
        .map(|(_, question)| question.clone())
        .collect()
}

fn ok(execution: &Execution) -> String {
    assert_eq!(execution.outcome, Outcome::Ok, "{:?}", execution.traceback);
    execution.result.clone().unwrap_or_default()
}

/// A process of its own that runs cells, of which the last one waits for ever in `ask`.
struct Another(Child);

impl Another {
    fn begin(folder: &Path, backend: BackendKind, code: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"])
            .envs(CHILD.into_iter().zip([folder.to_str().unwrap(), backend.name(), code]))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        for line in lines {
            let line = line.unwrap();
            if line.contains(WAITS) {
                return Self(child);
            }
            seen.push(line);
        }
        panic!("the child ended: {seen:?}");
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The process of [`Another`].
#[tokio::test]
#[ignore = "other tests start it as a process"]
async fn child() {
    let [folder, backend, code] = CHILD.map(|name| std::env::var(name).unwrap());
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
        let made = calls.lock().unwrap().clone();
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
async fn ends_while_it_waits<F>(kept: Kept, calls: &Calls, run: impl FnOnce(Arc<Kept>) -> F) -> Error
where
    F: Future<Output = Result<Execution, Error>>,
{
    let kept = Arc::new(kept);
    let asked = async {
        while calls.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
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
