//! What happens beside a kept sandbox, or was begun before, does not change what the next execution keeps.

use sandglass_host::kept::KeptPlace;
use sandglass_host::{BackendKind, StateStatus};
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
