//! Executions that have ended run again by their journals, and the sandbox stays as it is.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_host::kept::{Kept, KeptPlace, Replay, ReplayOptions, ResumeOptions};
use sandglass_host::{BackendKind, Error, Execution, Outcome, StateStatus, Value};
use tempfile::TempDir;

use super::faults::{Faulty, NO_STATES, ONE_OBJECT};
use super::{BACKENDS, SEES, all, ends_while_it_waits, ok, open, questions, some};

async fn replay(kept: &Kept, execution: u32) -> Result<Replay, Error> {
    kept.replay(execution, ReplayOptions::default()).await
}

/// Replays with one other answer.
async fn explore(kept: &Kept, call: &str, answer: &str, ask: bool) -> Result<Replay, Error> {
    let options = ReplayOptions {
        answers: vec![(call.to_owned(), Value::Str(answer.to_owned()))],
        ask,
        ..ReplayOptions::default()
    };
    kept.replay(2, options).await
}

/// The reason for which there is no replay of an execution.
async fn refused(kept: &Kept, execution: u32) -> String {
    let error = replay(kept, execution).await.unwrap_err();
    assert_eq!(error.code(), "no_checkpoint", "{error}");
    let begins = format!("execution {execution} cannot be replayed: ");
    error.to_string().strip_prefix(&begins).unwrap().to_owned()
}

/// An execution runs again with the same output and result.
async fn runs_the_same(kept: &Kept, first: &Execution) {
    let Replay { execution, difference } = replay(kept, first.id).await.unwrap();
    let seen = |run: &Execution| {
        let (stdout, result, files) = (run.stdout.clone(), run.result.clone(), run.files.clone());
        (run.id, run.code.clone(), run.outcome, stdout, result, files)
    };
    assert_eq!(seen(&execution), seen(first), "{:?}", execution.traceback);
    assert_eq!((difference, execution.state.status), (None, StateStatus::Kept));
}

#[tokio::test]
async fn an_ended_execution_runs_again_in_the_same_way_and_changes_nothing() {
    for backend in BACKENDS {
        let folder = TempDir::new().unwrap();
        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, calls) = open(&place, backend, all).await;
        let before = "seen = [1, 2, 3]\nopen('notes.txt', 'w').write('a note')\nimport random\nrandom.seed(7)";
        ok(&kept.execute(before).await.unwrap());
        let asks = kept.execute(SEES).await.unwrap();
        let alone = "import os, time\nprint(os.urandom(8), time.time())\nopen('new', 'w').close()\nrandom.random()";
        let alone = kept.execute(alone).await.unwrap();
        let fails = kept.execute("seen.append(ask('then'))\n1 / 0").await.unwrap();
        assert_eq!(fails.outcome, Outcome::Error);
        ok(&kept
            .execute("seen = 'later'\nopen('notes.txt', 'w').write('another')")
            .await
            .unwrap());
        assert_eq!(questions(&calls).len(), 3);
        for first in [&asks, &alone, &fails] {
            runs_the_same(&kept, first).await;
        }
        let now = "seen, open('notes.txt').read()";
        assert_eq!(ok(&kept.execute(now).await.unwrap()), "('later', 'another')");
        assert_eq!(questions(&calls).len(), 3, "no call is made");
        kept.destroy().await;
        assert_eq!(replay(&kept, 2).await.unwrap_err().code(), "destroyed");

        let (kept, calls) = open(&place, backend, all).await;
        for first in [&asks, &alone, &fails] {
            runs_the_same(&kept, first).await;
        }
        assert_eq!(ok(&kept.execute(now).await.unwrap()), "('later', 'another')");
        assert_eq!(questions(&calls), [""; 0]);
    }
}

#[tokio::test]
async fn another_answer_shows_where_the_code_goes_another_way() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    let code = "first = ask('a')\ntry:\n    second = ask(first)\nexcept Exception as error:\n    \
        second = type(error).__name__\nprint(second)\n(first, ask('b'))";
    ok(&kept.execute(code).await.unwrap());
    let id = calls.borrow()[0].0.clone().unwrap();
    let made = questions(&calls).len();

    for call in ["1", &id] {
        let Replay { execution, difference } = explore(&kept, call, "otherwise", false).await.unwrap();
        assert_eq!(
            ok(&execution),
            "('otherwise', 'answer to b')",
            "the same call has its answer"
        );
        assert_eq!(execution.stdout, "HostCallError\n");
        let difference = difference.unwrap();
        assert!(difference.starts_with("call 2 is ask("), "{difference}");
        assert!(difference.contains("where the journal has ask("), "{difference}");
    }
    assert_eq!(questions(&calls).len(), made, "no call is made");

    let Replay { execution, difference } = explore(&kept, "1", "otherwise", true).await.unwrap();
    assert_eq!(execution.stdout, "answer to otherwise\n");
    assert!(difference.is_some());
    let asked = calls.borrow()[made..].to_vec();
    assert_eq!(
        asked,
        [(None, "otherwise".to_owned())],
        "its name is no call's of the first run"
    );

    let last = explore(&kept, "3", "otherwise", false).await.unwrap();
    assert_eq!(
        (ok(&last.execution), last.difference),
        ("('answer to a', 'otherwise')".to_owned(), None)
    );
    let wrong = format!("{}.1", "0".repeat(32));
    for call in ["0", "4", "-1", "nonsense", &wrong] {
        let error = explore(&kept, call, "otherwise", false).await.unwrap_err();
        assert_eq!(error.code(), "invalid_option", "{call}: {error}");
    }
}

/// Code that goes another way may ask the world for something else, too.
#[tokio::test]
async fn another_answer_may_lead_to_other_clocks_and_chance() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("import os, time").await.unwrap());
    let code = "if ask('a') == 'otherwise': os.urandom(3), time.time()\nask('b')";
    ok(&kept.execute(code).await.unwrap());
    let made = questions(&calls).len();
    let Replay { execution, difference } = explore(&kept, "1", "otherwise", false).await.unwrap();
    assert_eq!(ok(&execution), "'answer to b'");
    let what = "the code draws random bytes where it calls the host in the journal";
    assert_eq!(difference.as_deref(), Some(what));
    assert_eq!(questions(&calls).len(), made);
}

#[tokio::test]
async fn a_replay_that_goes_another_way_without_another_answer_is_an_error() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("import os\nopen('file', 'w').close()").await.unwrap());
    // The times of files are no part of a state.
    ok(&kept.execute("ask(str(os.stat('file').st_mtime_ns))").await.unwrap());
    let error = replay(&kept, 2).await.unwrap_err();
    assert_eq!(error.code(), "journal_differs");
    let text = error.to_string();
    assert!(
        text.contains("call 1 is ask(") && text.ends_with("The sandbox stays as it is"),
        "{text}"
    );
    assert_eq!(kept.pending(), None);
    ok(&kept.execute("os").await.unwrap());
}

#[tokio::test]
async fn the_reason_is_told_for_which_an_execution_cannot_run_again() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let thread = "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()";
    for cell in [
        thread,
        "del thread\nmaker = (n for n in range(3))",
        "ask('x')",
        "del maker",
        "import secrets",
    ] {
        kept.execute(cell).await.unwrap();
    }
    assert_eq!(refused(&kept, 1).await, "it started a thread");
    assert!(
        refused(&kept, 3)
            .await
            .starts_with("the state before it is not kept: maker cannot be written")
    );
    assert_eq!(refused(&kept, 99).await, "there is no journal of it");
    assert!(replay(&kept, 5).await.is_ok());
}

#[tokio::test]
async fn the_last_32_executions_can_run_again() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    for number in 1..=33 {
        ok(&kept.execute(format!("x = {number}\nx")).await.unwrap());
    }
    assert_eq!(refused(&kept, 1).await, "there is no journal of it");
    for number in [2, 33] {
        assert_eq!(ok(&replay(&kept, number).await.unwrap().execution), number.to_string());
    }
}

/// Cuts all objects of a folder that have more than 100 kB.
fn cut_large_objects(folder: &Path) -> usize {
    let mut cut = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cut += cut_large_objects(&path);
        } else if path.metadata().unwrap().len() > 100_000 {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            cut += 1;
        }
    }
    cut
}

#[tokio::test]
async fn a_damaged_journal_costs_only_its_replay() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let first = kept.execute("x = 1\nask('a')").await.unwrap();
    ok(&kept
        .execute("import os\nlen(ask(os.urandom(400_000).hex()))")
        .await
        .unwrap());
    kept.destroy().await;
    assert!(cut_large_objects(folder.path()) > 0);

    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let why = refused(&kept, 2).await;
    assert!(why.starts_with("its journal cannot be read: "), "{why}");
    runs_the_same(&kept, &first).await;
    let next = kept.execute("x").await.unwrap();
    assert_eq!((ok(&next).as_str(), next.state.status), ("1", StateStatus::Kept));
    runs_the_same(&kept, &next).await;
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_costs_only_its_replay() {
    let store = Arc::new(Faulty::default());
    let place = store.place();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    store.faults.store(ONE_OBJECT, Ordering::SeqCst);
    let ran = kept.execute("x += 1\nx").await.unwrap();
    assert_eq!(
        (ok(&ran).as_str(), ran.state.status, &ran.state.lost),
        ("2", StateStatus::Kept, &None)
    );
    assert_eq!(store.faults.load(Ordering::SeqCst), 0);
    let why = refused(&kept, 2).await;
    assert!(why.starts_with("its journal could not be written"), "{why}");
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "2");
}

/// The journals are replaced together with the state. The result tells that this did not happen.
#[tokio::test]
async fn a_state_that_cannot_be_written_leaves_the_journals_as_they_were() {
    let store = Arc::new(Faulty::default());
    let place = store.place();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let first = kept.execute("x = 1\nask('a')").await.unwrap();
    // The second execution begins with a ref that can be written, and ends with one that cannot.
    store.refs.store(1, Ordering::SeqCst);
    store.faults.store(NO_STATES, Ordering::SeqCst);
    let second = kept.execute("x = 2\nask('b')").await.unwrap();
    assert_eq!(second.state.status, StateStatus::Kept);
    assert!(second.unkept.is_some() && second.state.lost.is_none(), "{second:?}");
    runs_the_same(&kept, &first).await;
    assert_eq!(refused(&kept, 2).await, "there is no journal of it");

    store.faults.store(0, Ordering::SeqCst);
    let third = kept.execute("x += 1\nask(str(x))").await.unwrap();
    assert_eq!((ok(&third).as_str(), &third.unkept), ("'answer to 3'", &None));
    for run in [&first, &third] {
        runs_the_same(&kept, run).await;
    }
}

#[tokio::test]
async fn an_execution_runs_again_while_another_one_is_pending() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let first = kept.execute("x = 1").await.unwrap();
    let run = |kept: Arc<Kept>| async move { kept.execute("x = 2\nask('x?')").await };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    runs_the_same(&kept, &first).await;
    assert_eq!(refused(&kept, 2).await, "there is no journal of it");
    let second = kept.resume(ResumeOptions::default()).await.unwrap();
    assert_eq!(ok(&second), "'answer to x?'");
    for run in [&first, &second] {
        runs_the_same(&kept, run).await;
    }
}
