//! Guests that are lost: the state of the store takes the place of theirs, and no empty state takes its place there.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use sandglass_host::kept::{Kept, KeptPlace, ResumeOptions};
use sandglass_host::{BackendKind, ExecuteOptions, Execution, Outcome, StateStatus};
use tempfile::TempDir;

use super::faults::{Faulty, NO_READS, NO_STATES};
use super::{all, is_asked, ok, open, questions, some};

/// Code that no interrupt stops, because C does not look for one.
const DEAF: &str = "\nprint('deaf', flush=True)\nsum(range(10 ** 15))";

async fn begin(folder: &TempDir) -> (KeptPlace, Arc<Kept>) {
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    (place, kept)
}

/// Runs code until it prints something.
async fn until_it_prints(kept: &Kept, code: &str) {
    let (printed, has_printed) = tokio::sync::oneshot::channel::<()>();
    let printed = Mutex::new(Some(printed));
    let options = ExecuteOptions {
        on_output: Some(Arc::new(move |_, _| drop(printed.lock().unwrap().take()))),
        ..ExecuteOptions::default()
    };
    tokio::select! {
        ended = kept.execute_with(code, options) => panic!("{ended:?}"),
        _ = has_printed => {}
    }
}

fn state_of(execution: &Execution) -> (StateStatus, Option<u32>) {
    (execution.state.status, execution.state.restored_to)
}

/// `x` is as the first execution left it, here and in a later process, and executions are kept.
async fn has_the_first_state(place: &KeptPlace, kept: Arc<Kept>) {
    let next = kept.execute("x").await.unwrap();
    assert_eq!(ok(&next), "1", "{:?}", next.state);
    assert_eq!(state_of(&next), (StateStatus::Restored, Some(1)));
    let next = kept.execute("y = x + 1\ny").await.unwrap();
    assert_eq!((ok(&next), next.state.status), ("2".to_owned(), StateStatus::Kept));
    kept.destroy().await;
    let (kept, _) = open(place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("x, y").await.unwrap()), "(1, 2)");
    kept.destroy().await;
}

#[tokio::test]
async fn an_execution_that_was_dropped_while_it_was_deaf() {
    let folder = TempDir::new().unwrap();
    let (place, kept) = begin(&folder).await;
    until_it_prints(&kept, &format!("x = 2{DEAF}")).await;
    has_the_first_state(&place, kept).await;
}

#[tokio::test]
async fn a_guest_that_dies_while_its_state_is_written() {
    let folder = TempDir::new().unwrap();
    let (place, kept) = begin(&folder).await;
    let code = "import os, sys\nx = 2\nopen('last', 'w').close()\n\
        sys.addaudithook(lambda event, args: os._exit(1) if event == 'open' and 'last' in str(args[0]) else None)";
    let ran = kept.execute(code).await.unwrap();
    assert_eq!(
        (ran.outcome, state_of(&ran)),
        (Outcome::Ok, (StateStatus::Restored, Some(1)))
    );
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let next = kept.execute("x").await.unwrap();
    assert_eq!((ok(&next), next.state.status), ("1".to_owned(), StateStatus::Kept));
}

#[tokio::test]
async fn a_guest_that_dies_in_a_call_of_the_sandbox_itself() {
    let folder = TempDir::new().unwrap();
    let (place, kept) = begin(&folder).await;
    let sandbox = kept.sandbox().await.unwrap();
    let crashed = sandbox.execute("x = 2\nimport os\nos._exit(1)").await.unwrap();
    assert_eq!(
        (crashed.outcome, crashed.state.status),
        (Outcome::Crashed, StateStatus::Lost)
    );
    has_the_first_state(&place, kept).await;
}

#[tokio::test]
async fn a_guest_that_dies_while_nothing_runs() {
    let folder = TempDir::new().unwrap();
    let (place, kept) = begin(&folder).await;
    let process = ok(&kept.execute("import os\nos.getpid()").await.unwrap());
    let sandbox = kept.sandbox().await.unwrap();
    assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
    while sandbox.stats().await.unwrap().guests == 1 {
        let _ = sandbox.list_variables().await; // boots another guest, once the end of the first one is known
    }
    let next = kept.execute("x").await.unwrap();
    assert_eq!(
        (ok(&next), state_of(&next)),
        ("1".to_owned(), (StateStatus::Restored, Some(2)))
    );
    assert_eq!(sandbox.list_variables().await.unwrap_err().code(), "destroyed");
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
}

/// A guest may say anything. A difference is one from a journal that was given.
#[tokio::test]
async fn a_guest_that_tells_of_a_journal_that_it_was_not_given() {
    let folder = TempDir::new().unwrap();
    let (place, kept) = begin(&folder).await;
    let code = "import gc\nx = 2\nchannel = next(it for it in gc.get_objects() if type(it).__name__ == 'Channel')\n\
        channel.post({'type': 'differs', 'exchange': channel.exchange, 'what': 'nothing'})\nwhile True: pass";
    let ended = kept.execute(code).await.unwrap();
    assert_eq!(
        (ended.outcome, state_of(&ended)),
        (Outcome::Crashed, (StateStatus::Restored, Some(1)))
    );
    assert_eq!(
        kept.resume(ResumeOptions::default()).await.unwrap_err().code(),
        "invalid_option"
    );
    let next = kept.execute("x").await.unwrap();
    assert_eq!((ok(&next), next.state.status), ("1".to_owned(), StateStatus::Kept));
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
}

const CRASHES: &str = "x = 2\nimport os\nos._exit(1)";

#[tokio::test]
async fn a_guest_whose_state_no_store_has() {
    let store = Arc::new(Faulty::default());
    let place = store.place();
    store.faults.store(NO_STATES, Ordering::SeqCst);
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let crashed = kept.execute(CRASHES).await.unwrap();
    assert_eq!(state_of(&crashed), (StateStatus::Lost, None));
    let next = kept.execute("x = 1\nx").await.unwrap();
    assert_eq!((ok(&next), next.state.status), ("1".to_owned(), StateStatus::Kept));

    until_it_prints(&kept, &format!("x = 2{DEAF}")).await;
    let error = kept.execute("x").await.unwrap_err();
    assert_eq!(error.code(), "guest_lost", "{error}");
    store.faults.store(0, Ordering::SeqCst);
    assert_eq!(ok(&kept.execute("'x' in globals()").await.unwrap()), "False");
    ok(&kept.execute("x = 3").await.unwrap());
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "3");
}

#[tokio::test]
async fn a_guest_whose_state_cannot_be_read_now() {
    let store = Arc::new(Faulty::default());
    let place = store.place();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    store.faults.store(NO_READS, Ordering::SeqCst);
    let error = kept.execute(CRASHES).await.unwrap_err();
    assert_eq!(error.code(), "persist_failed", "{error}");
    assert_eq!(kept.execute("x").await.unwrap_err().code(), "persist_failed");
    store.faults.store(0, Ordering::SeqCst);
    has_the_first_state(&place, kept).await;
}

/// Whoever stops the whole unit of a program signals the guests as well, perhaps before the program.
#[tokio::test]
async fn a_guest_that_somebody_else_ends_while_its_code_waits() {
    for signal in ["-TERM", "-KILL"] {
        let folder = TempDir::new().unwrap();
        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
        let process = ok(&kept.execute("import os\nx = 1\nos.getpid()").await.unwrap());
        let stops = async {
            is_asked(&calls).await;
            assert!(
                Command::new("kill")
                    .args([signal, &process])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        let (ended, ()) = tokio::join!(kept.execute("x = 2\nask('x?')"), stops);
        let error = ended.unwrap_err();
        assert_eq!(error.code(), "guest_lost", "{error}");
        assert!(error.to_string().ends_with("the execution is pending"), "{error}");
        assert_eq!(kept.pending().unwrap().calls.len(), 1);
        kept.destroy().await;
        let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
        let resumed = kept.resume(ResumeOptions::default()).await.unwrap();
        assert_eq!((ok(&resumed).as_str(), questions(&calls).len()), ("'answer to x?'", 1));
        assert_eq!(ok(&kept.execute("x").await.unwrap()), "2");
    }
}
