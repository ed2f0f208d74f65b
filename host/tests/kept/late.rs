//! Large states: an execution is answered before the state after it is written. If the process ends before, a later one has the same state.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_host::kept::{Kept, KeptPlace, ReplayOptions};
use sandglass_host::{BackendKind, Outcome, StateStatus, Value};
use tempfile::TempDir;

use super::faults::{Faulty, NO_STATES};
use super::{Calls, all, ok, open, questions};

/// Makes a state that is written late from then on.
const LARGE: &str = "import random, time\ndata = bytes(range(256)) * 20_000";

/// A sandbox with a large state, in a store that then takes one note that it goes on, and no state.
async fn large() -> (Arc<Faulty>, KeptPlace, Arc<Kept>, Calls) {
    let store = Arc::new(Faulty::default());
    let place = store.place();
    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    let first = kept.execute(LARGE).await.unwrap();
    assert_eq!((ok(&first).as_str(), &first.unkept), ("", &None));
    store.refs.store(1, Ordering::SeqCst);
    store.faults.store(NO_STATES, Ordering::SeqCst);
    (store, place, kept, calls)
}

/// The sandbox in a later process, when the store works again.
async fn later(store: &Faulty, place: &KeptPlace, kept: &Kept) -> (Arc<Kept>, Calls) {
    kept.destroy().await;
    store.faults.store(0, Ordering::SeqCst);
    open(place, BackendKind::Subprocess, all).await
}

#[tokio::test]
async fn an_execution_is_durable_before_its_state_is_written() {
    for code in [
        "x = [ask('one'), random.random(), time.time()]\nx",
        "x = [random.random(), time.time()]\nx",
        "x = [len(data)]\nopen('notes.txt', 'w').write('a note')\nprint('out')\nx",
    ] {
        let (store, place, kept, calls) = large().await;
        let ran = kept.execute(code).await.unwrap();
        let x = ok(&ran);
        assert_eq!(ran.unkept, None, "{code}: the journal has it");
        let last = kept.last();
        let asked = questions(&calls);

        let (kept, calls) = later(&store, &place, &kept).await;
        assert_eq!((kept.pending(), kept.last()), (None, last), "{code}");
        let next = kept.execute("x").await.unwrap();
        assert_eq!(
            (next.id, ok(&next), next.state.status),
            (3, x.clone(), StateStatus::Kept),
            "{code}"
        );
        assert!(questions(&calls).is_empty(), "{asked:?} was answered");
        let replay = kept.replay(2, ReplayOptions::default()).await.unwrap();
        assert_eq!(
            (replay.execution.stdout.clone(), replay.difference),
            (ran.stdout.clone(), None)
        );
        kept.destroy().await;

        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        assert_eq!(
            ok(&kept.execute("(x, len(data))").await.unwrap()),
            format!("({x}, 5120000)"),
            "{code}"
        );
    }
}

/// The reader is another one than that of the first execution after the end.
#[tokio::test]
async fn an_execution_that_was_answered_early_can_be_replayed_first() {
    let (store, place, kept, _) = large().await;
    let ran = kept.execute("x = [ask('one'), time.time()]\nx").await.unwrap();
    let (kept, calls) = later(&store, &place, &kept).await;
    let replay = kept.replay(2, ReplayOptions::default()).await.unwrap();
    assert_eq!(replay.execution.result, ran.result);
    assert!(questions(&calls).is_empty());
}

/// The state is written while nobody waits, and whoever comes meanwhile waits for it.
#[tokio::test]
async fn a_state_is_written_after_the_answer() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute(LARGE).await.unwrap());
    for number in 2..6 {
        let ran = kept.execute(format!("x = ask('{number}')\nx")).await.unwrap();
        assert_eq!((ok(&ran), &ran.unkept), (format!("'answer to {number}'"), &None));
        let replay = kept.replay(number, ReplayOptions::default()).await.unwrap();
        assert_eq!(replay.execution.result, ran.result);
    }
    ok(&kept.execute("y = 1").await.unwrap());
    let sandbox = kept.sandbox().await.unwrap();
    sandbox.set_variable("y", Value::Int(2)).await.unwrap();
    ok(&kept.execute("z = y").await.unwrap());
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let next = kept.execute("(x, y, z, len(data))").await.unwrap();
    assert_eq!(
        (ok(&next).as_str(), next.state.status),
        ("('answer to 5', 2, 2, 5120000)", StateStatus::Kept)
    );
}

#[tokio::test]
async fn a_variable_that_no_state_can_hold_is_told_once_the_state_was_written() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute(LARGE).await.unwrap());
    let ran = kept
        .execute("lines = (n for n in range(5))\nnext(lines)")
        .await
        .unwrap();
    assert_eq!((ok(&ran).as_str(), &ran.unkept), ("0", &None), "the journal has it");
    let next = kept.execute("next(lines)").await.unwrap();
    let why = next.unkept.clone().unwrap();
    assert!(ok(&next) == "1" && why.contains("lines"), "{why}");
    kept.destroy().await;
}

/// A file of the machine is part of no state and no journal.
#[tokio::test]
async fn an_execution_that_cannot_be_run_again_is_told_as_lost() {
    let elsewhere = TempDir::new().unwrap();
    let file = elsewhere.path().join("answer");
    fs::write(&file, "one").unwrap();
    let (store, place, kept, _) = large().await;
    let ran = kept
        .execute(format!("x = open('{}').read()\nprint(x)", file.display()))
        .await
        .unwrap();
    assert_eq!((ran.stdout.as_str(), &ran.unkept), ("one\n", &None));
    fs::write(&file, "two").unwrap();

    let (kept, _) = later(&store, &place, &kept).await;
    let next = kept.execute("len(data), 'x' in globals()").await.unwrap();
    assert_eq!(ok(&next), "(5120000, False)");
    assert_eq!(
        (next.state.status, next.state.restored_to),
        (StateStatus::Restored, Some(1))
    );
    let lost = next.state.lost.clone().unwrap_or_default();
    let told = lost.iter().find(|lost| lost.name == "execution 2").unwrap();
    assert!(told.reason.ends_with("stdout is not the same"), "{}", told.reason);
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("len(data)").await.unwrap()), "5120000");
}

/// Addresses are other ones in each process.
#[tokio::test]
async fn an_execution_may_show_addresses_of_objects() {
    let (store, place, kept, _) = large().await;
    let ran = kept
        .execute("def double(n): return 2 * n\nprint(double)\ndouble")
        .await
        .unwrap();
    assert!(ran.stdout.contains(" at 0x") && ok(&ran).contains(" at 0x"), "{ran:?}");
    let (kept, _) = later(&store, &place, &kept).await;
    let next = kept.execute("double(21)").await.unwrap();
    assert_eq!((ok(&next).as_str(), next.state.status), ("42", StateStatus::Kept));
}

/// The guest dies when its state is written, in each process.
#[tokio::test]
async fn an_execution_whose_state_cannot_be_written_is_given_up() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute(LARGE).await.unwrap());
    let code = "import os, sys\nx = 2\nopen('last', 'w').close()\n\
        sys.addaudithook(lambda event, args: os._exit(1) if event == 'open' and 'last' in str(args[0]) else None)";
    let ran = kept.execute(code).await.unwrap();
    assert_eq!(
        (ran.state.status, &ran.unkept),
        (StateStatus::Kept, &None),
        "it is answered first"
    );
    let next = kept.execute("len(data), 'x' in globals()").await.unwrap();
    assert_eq!(ok(&next), "(5120000, False)");
    assert_eq!(
        (next.state.status, next.state.restored_to),
        (StateStatus::Restored, Some(1))
    );
    assert_eq!(ok(&kept.execute("1").await.unwrap()), "1");
    kept.destroy().await;
}

/// A sandbox goes on from an execution that only the journal has. That execution is not lost, and what came after it is told as lost.
#[tokio::test]
async fn a_sandbox_may_go_on_from_an_execution_that_only_the_journal_has() {
    for crashes in [false, true] {
        let (store, place, kept, calls) = large().await;
        ok(&kept.execute("x = ask('one')").await.unwrap());
        let next = kept.execute("y = ask('two')\ny").await.unwrap();
        assert!(
            ok(&next) == "'answer to two'" && next.unkept.is_some(),
            "the store takes no state"
        );
        let kept = match crashes {
            true => kept,
            false => later(&store, &place, &kept).await.0,
        };
        if crashes {
            let crash = kept.execute("import os\nos._exit(1)").await.unwrap();
            assert_eq!(
                (crash.state.status, crash.state.restored_to),
                (StateStatus::Restored, Some(2))
            );
            store.faults.store(0, Ordering::SeqCst);
        }
        let asked = questions(&calls).len();
        let next = kept.execute("x, 'y' in globals()").await.unwrap();
        assert_eq!(ok(&next), "('answer to one', False)");
        assert_eq!(
            (next.state.status, next.state.restored_to),
            (StateStatus::Restored, Some(2))
        );
        assert_eq!(questions(&calls).len(), asked, "nobody is asked again");
        kept.destroy().await;
    }
}

/// An interrupt is meant for the code that waits, and not for the execution that runs again before it.
#[tokio::test]
async fn nobody_stops_an_execution_that_runs_again() {
    let (store, place, kept, _) = large().await;
    ok(&kept.execute("x = sum(range(3_000_000))").await.unwrap());
    let (kept, _) = later(&store, &place, &kept).await;
    let interrupts = async {
        loop {
            if let Some(sandbox) = kept.current() {
                sandbox.interrupt();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        sandbox = kept.sandbox() => drop(sandbox.unwrap()),
        () = interrupts => {}
    }
    let next = kept.execute("x").await.unwrap();
    assert_eq!(
        (ok(&next).as_str(), next.state.status),
        ("4499998500000", StateStatus::Kept)
    );
}

#[tokio::test]
async fn an_execution_that_cannot_be_run_again_now_may_be_given_up() {
    let (store, place, kept, _) = large().await;
    ok(&kept.execute("x = 1").await.unwrap());
    let (kept, _) = later(&store, &place, &kept).await;
    kept.discard().await.unwrap();
    let next = kept.execute("len(data), 'x' in globals()").await.unwrap();
    assert_eq!(
        (ok(&next).as_str(), next.state.restored_to),
        ("(5120000, False)", Some(1))
    );
    assert_eq!(kept.discard().await.unwrap_err().code(), "invalid_option");
}

/// The store takes no state in the second process either, whose own execution is lost then. The first one is not.
#[tokio::test]
async fn a_later_process_that_cannot_write_the_state_leaves_it_in_the_journal() {
    let (store, place, kept, _) = large().await;
    ok(&kept.execute("x = ask('one')").await.unwrap());
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let next = kept.execute("y = ask('two')\nx").await.unwrap();
    assert!(ok(&next) == "'answer to one'" && next.unkept.is_some(), "{next:?}");
    let (kept, calls) = later(&store, &place, &kept).await;
    let next = kept.execute("x, 'y' in globals()").await.unwrap();
    assert_eq!(ok(&next), "('answer to one', False)");
    assert!(questions(&calls).is_empty());
}

/// Whoever makes the state again, the next execution tells what is lost.
#[tokio::test]
async fn a_loss_is_told_also_after_another_end() {
    let (store, place, kept, _) = large().await;
    ok(&kept.execute("x = 1").await.unwrap());
    kept.execute("y = 2").await.unwrap();
    let (kept, _) = later(&store, &place, &kept).await;
    kept.replay(2, ReplayOptions::default()).await.unwrap();
    kept.destroy().await;
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let next = kept.execute("x, 'y' in globals()").await.unwrap();
    assert_eq!(ok(&next), "(1, False)");
    assert_eq!(
        (next.state.status, next.state.restored_to),
        (StateStatus::Restored, Some(2))
    );
}

#[tokio::test]
async fn code_that_waits_for_the_state_can_be_interrupted() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    ok(&kept.execute(LARGE).await.unwrap());
    ok(&kept.execute("x = 1").await.unwrap());
    assert!(kept.current().is_none(), "its state is being written");
    let (waited, ()) = tokio::join!(kept.execute("while True: pass"), async { kept.interrupt() });
    assert_eq!(waited.unwrap().outcome, Outcome::Interrupted);
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
    kept.destroy().await;
}
