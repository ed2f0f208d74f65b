//! What happens beside a kept sandbox, or was begun before, does not change what the next execution keeps.

use std::sync::Arc;

use sandglass_host::kept::{Kept, KeptPlace, ResumeOptions};
use sandglass_host::{BackendKind, Sandbox, StateStatus};
use tempfile::TempDir;

use super::{all, ends_while_it_waits, ok, open, questions, some};

#[tokio::test]
async fn code_of_the_sandbox_itself_is_not_pending() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    ok(&kept.execute("kept = 1").await.unwrap());
    let sandbox = kept.sandbox().await.unwrap();
    sandbox.set_variable("x", "what is x?").await.unwrap();
    let run = |_| async move { sandbox.execute("ask(x)").await };
    assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
    assert_eq!(questions(&calls), ["what is x?"]);

    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(kept.pending(), None);
    let next = kept.execute("(kept, 'x' in globals())").await.unwrap();
    assert_eq!(ok(&next), "(1, False)");
    assert_eq!(
        (next.state.status, next.state.restored_to),
        (StateStatus::Restored, Some(1))
    );
}

#[tokio::test]
async fn a_state_is_saved_without_an_execution_until_its_place_is_emptied() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let sandbox = kept.sandbox().await.unwrap();
    sandbox.set_variable("x", 5_i64).await.unwrap();
    kept.save().await.unwrap();
    assert_eq!(place.remove().await.unwrap_err().code(), "persist_in_use");
    kept.destroy().await;
    assert_eq!(kept.save().await.unwrap_err().code(), "destroyed");

    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    kept.save().await.unwrap(); // there is no guest, and nothing to save
    let run = kept.execute("x").await.unwrap();
    assert_eq!(
        (ok(&run), run.state.status, &run.unkept),
        ("5".to_owned(), StateStatus::Kept, &None)
    );
    let run = kept.execute("generator = (n for n in 'ab')").await.unwrap();
    assert!(run.unkept.as_ref().unwrap().contains("generator"), "{:?}", run.unkept);
    kept.destroy().await;
    place.remove().await.unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&kept.execute("'x' in globals()").await.unwrap()), "False");
}

#[tokio::test]
async fn a_place_has_one_sandbox_at_a_time() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    let builder = || {
        Sandbox::builder()
            .backend(BackendKind::Subprocess)
            .allow_subprocess(true)
    };
    let refused = Kept::open(builder(), place.clone()).await.unwrap_err();
    assert_eq!(refused.code(), "persist_in_use");
    assert!(refused.to_string().contains("is open already"), "{refused}");
    ok(&kept.execute("x = 1").await.unwrap());
    kept.destroy().await;
    assert_eq!(kept.execute("x").await.unwrap_err().code(), "destroyed");
    let (again, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(ok(&again.execute("x").await.unwrap()), "1");
}

/// The guest of a dropped `resume` ends before anything else happens, also if it is deaf. Its end does not remove a later journal.
#[tokio::test]
async fn a_dropped_resumption_does_not_touch_the_next_journal() {
    let folder = TempDir::new().unwrap();
    let place = KeptPlace::in_folder(folder.path()).unwrap();
    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let deaf = |kept: Arc<Kept>| async move {
        kept.execute("x = 1\nask('x?')\nask('then')\nsum(range(10 ** 15))")
            .await
    };
    assert_eq!(ends_while_it_waits(kept, &calls, deaf).await.code(), "destroyed");

    let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
    let both = async { calls.subscribe().wait_for(|calls| calls.len() == 2).await.map(drop) };
    tokio::select! {
        ended = kept.resume(ResumeOptions::default()) => panic!("{ended:?}"),
        asked = both => asked.unwrap(),
    }
    let _ = kept.discard().await; // the interruption may have ended the record already
    kept.destroy().await;

    let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
    let next = |kept: Arc<Kept>| async move { kept.execute("x = 2\nask('next?')").await };
    assert_eq!(ends_while_it_waits(kept, &calls, next).await.code(), "destroyed");
    let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
    assert_eq!(kept.pending().unwrap().code, "x = 2\nask('next?')");
}
