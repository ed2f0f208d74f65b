//! Guests that die.

use sandglass_host::{BackendKind, Killer, Outcome, StateStatus};

use crate::support::{on_both, processes_with, ran, sandbox, starts_processes, token, until};

on_both!(
    a_guest_that_exits_is_replaced,
    a_guest_that_is_killed_is_replaced,
    a_guest_that_crashes_is_replaced,
    a_guest_whose_channel_is_closed_is_replaced,
    a_guest_that_writes_to_all_its_files_is_replaced,
    what_a_dead_guest_started_is_ended,
);

/// Runs code that ends the guest. Checks that another guest takes its place.
async fn dies(backend: BackendKind, code: &str) -> sandglass_host::Execution {
    let sandbox = sandbox(backend).await;
    ran(&sandbox, "x = 1").await;
    let run = sandbox
        .execute(format!("print('before', flush=True)\n{code}"))
        .await
        .unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Crashed, StateStatus::Lost),
        "{run:?}"
    );
    let lost = run.state.lost.clone().unwrap_or_default();
    assert!(lost.iter().any(|lost| lost.name == "x"), "{lost:?}");
    let next = ran(&sandbox, "context, 'x' in globals()").await;
    assert_eq!(next.result.as_deref(), Some("('the context', False)"));
    sandbox.destroy().await;
    run
}

async fn a_guest_that_exits_is_replaced(backend: BackendKind) {
    let run = dies(backend, "import os\nos._exit(3)").await;
    // Printed text is not lost, because the guest writes it when it exits.
    assert_eq!(run.stdout, "before\n");
    assert_eq!((run.error_type.as_deref(), run.killer), (Some("GuestCrashed"), None));
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.contains("exited with status 3")),
        "{run:?}"
    );
}

async fn a_guest_that_is_killed_is_replaced(backend: BackendKind) {
    // The first process of a namespace ignores its own SIGKILL. If the guest were that process, it would wait until its time
    // is up, and this test would fail.
    let code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()";
    let run = dies(backend, code).await;
    assert_eq!(run.killer, Some(Killer::Signal));
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.contains("ended by signal 9")),
        "{run:?}"
    );
}

async fn a_guest_that_crashes_is_replaced(backend: BackendKind) {
    let run = dies(backend, "import ctypes\nctypes.string_at(0)").await;
    assert_eq!(run.killer, Some(Killer::Signal));
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.contains("ended by signal 11")),
        "{run:?}"
    );
}

/// Code that finds all open files, wherever the guest keeps them.
const FILES: &str = "import os, socket, time
files = [int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) > 2]
";

async fn a_guest_whose_channel_is_closed_is_replaced(backend: BackendKind) {
    let code = "for fd in files:
    try: socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR)
    except OSError: pass
time.sleep(3600)";
    dies(backend, &format!("{FILES}{code}")).await;
}

async fn a_guest_that_writes_to_all_its_files_is_replaced(backend: BackendKind) {
    let code = "for fd in files:
    try: os.write(fd, b'\\xff' * 64)
    except OSError: pass
time.sleep(3600)";
    let run = dies(backend, &format!("{FILES}{code}")).await;
    assert_eq!(run.error_type.as_deref(), Some("ProtocolError"), "{run:?}");
}

async fn what_a_dead_guest_started_is_ended(backend: BackendKind) {
    let token = token();
    dies(backend, &(starts_processes(&token) + "os._exit(0)")).await;
    until("what it started is gone", || processes_with(&token) == 0).await;
}
