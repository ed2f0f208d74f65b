//! Code that does not end by itself, and sandboxes that end before their code.

use std::sync::Arc;

use sandglass_host::{BackendKind, Error, ExecuteOptions, Killer, Limits, Outcome, StateStatus, Value};
use tokio::sync::Notify;

use crate::support::{
    builder, limits, on_both, processes_with, ran, sandbox, starts_processes, token, until, with_context,
};

on_both!(
    a_timeout_keeps_the_state,
    a_timeout_that_is_not_heard_ends_the_guest,
    an_interrupt_keeps_the_state,
    an_execution_that_nobody_waits_for_is_interrupted,
    a_sandbox_can_be_destroyed_while_it_starts,
    a_sandbox_can_be_destroyed_while_code_runs,
    a_sandbox_can_be_destroyed_while_it_takes_a_context,
    a_sandbox_can_be_destroyed_while_the_host_is_asked,
    a_sandbox_that_is_dropped_leaves_nothing,
    a_sandbox_that_is_dropped_while_code_runs_leaves_nothing,
);

fn timeout(ms: f64) -> ExecuteOptions {
    ExecuteOptions {
        timeout_ms: Some(ms),
        ..ExecuteOptions::default()
    }
}

async fn a_timeout_keeps_the_state(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let code = "print('before', flush=True)\nx = 1\nwhile True: pass";
    let run = sandbox.execute_with(code, timeout(3_000.0)).await.unwrap();
    assert_eq!((run.outcome, run.killer), (Outcome::Timeout, Some(Killer::Timeout)));
    assert_eq!((run.state.status, run.stdout.as_str()), (StateStatus::Kept, "before\n"));
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.starts_with("TimeoutError: stopped after 3000 ms"))
    );
    assert!(run.guest_time >= 2_999.0, "{}", run.guest_time);
    assert_eq!(ran(&sandbox, "x").await.result.as_deref(), Some("1"));
    let run = sandbox
        .execute_with("import time\ntime.sleep(3600)", timeout(100.0))
        .await
        .unwrap();
    assert_eq!((run.outcome, run.state.status), (Outcome::Timeout, StateStatus::Kept));
}

async fn a_timeout_that_is_not_heard_ends_the_guest(backend: BackendKind) {
    let limits = Limits {
        grace_period_ms: 200.0,
        ..limits()
    };
    let sandbox = with_context(builder(backend).limits(limits)).await;
    ran(&sandbox, "x = 1").await;
    let token = token();
    // A single call that checks for no signals.
    let code = starts_processes(&token) + "print('before', flush=True)\ntime.sleep(0.3)\nsum(range(10 ** 13))";
    let run = sandbox.execute_with(code, timeout(2_000.0)).await.unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Timeout, Some(Killer::Timeout)),
        "{run:?}"
    );
    assert_eq!((run.state.status, run.stdout.as_str()), (StateStatus::Lost, "before\n"));
    let lost = run.state.lost.clone().unwrap_or_default();
    assert!(lost.iter().any(|lost| lost.name == "x"), "{lost:?}");
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.contains("did not stop within 200 ms")),
        "{run:?}"
    );
    let run = ran(&sandbox, "context, 'x' in globals()").await;
    assert_eq!(run.result.as_deref(), Some("('the context', False)"));
    until("what it started is gone", || processes_with(&token) == 0).await;
}

async fn an_interrupt_keeps_the_state(backend: BackendKind) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let builder = builder(backend).host_function("begun", move |_| {
        begins.notify_one();
        async { Ok(Value::None) }
    });
    let sandbox = with_context(builder).await;
    for code in [
        "x = 1\nbegun()\nwhile True: pass",
        "import time\nx = 1\nbegun()\ntime.sleep(3600)",
    ] {
        let (run, ()) = tokio::join!(sandbox.execute(code), async {
            begun.notified().await;
            sandbox.interrupt();
        });
        let run = run.unwrap();
        assert_eq!(
            (run.outcome, run.state.status),
            (Outcome::Interrupted, StateStatus::Kept),
            "{code}"
        );
        assert_eq!(run.killer, None);
        assert_eq!(ran(&sandbox, "x").await.result.as_deref(), Some("1"));
    }
}

async fn an_execution_that_nobody_waits_for_is_interrupted(backend: BackendKind) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let builder = builder(backend).host_function("begun", move |_| {
        begins.notify_one();
        async { Ok(Value::None) }
    });
    let sandbox = with_context(builder).await;
    tokio::select! {
        run = sandbox.execute("x = 1\nbegun()\nwhile True: pass") => panic!("it ended: {run:?}"),
        () = begun.notified() => {}
    }
    assert_eq!(ran(&sandbox, "x").await.result.as_deref(), Some("1"));
}

async fn a_sandbox_can_be_destroyed_while_it_starts(backend: BackendKind) {
    let sandbox = builder(backend).build().await.unwrap();
    let (started, ()) = tokio::join!(sandbox.start(), async {
        tokio::task::yield_now().await;
        sandbox.destroy().await;
    });
    assert!(matches!(started, Err(Error::Destroyed)), "{started:?}");
    assert_eq!(sandbox.initialize(Value::None).await, Err(Error::Destroyed));
    sandbox.destroy().await;
}

async fn a_sandbox_can_be_destroyed_while_code_runs(backend: BackendKind) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let builder = builder(backend).host_function("begun", move |_| {
        begins.notify_one();
        async { Ok(Value::None) }
    });
    let sandbox = with_context(builder).await;
    let token = token();
    let code = starts_processes(&token) + "begun()\nwhile True: pass";
    let (run, waiting, ()) = tokio::join!(sandbox.execute(code), sandbox.execute("1"), async {
        begun.notified().await;
        assert!(processes_with(&token) > 0);
        sandbox.destroy().await;
        assert_eq!(processes_with(&token), 0, "they are gone when it says so");
    });
    assert_eq!(
        (run.unwrap_err(), waiting.unwrap_err()),
        (Error::Destroyed, Error::Destroyed)
    );
}

async fn a_sandbox_can_be_destroyed_while_it_takes_a_context(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let (given, ()) = tokio::join!(sandbox.initialize("x".repeat(100 << 20)), async {
        tokio::task::yield_now().await;
        sandbox.destroy().await;
    });
    assert_eq!(given, Err(Error::Destroyed));
}

async fn a_sandbox_can_be_destroyed_while_the_host_is_asked(backend: BackendKind) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let builder = builder(backend).host_function("forever", move |_| {
        begins.notify_one();
        std::future::pending()
    });
    let sandbox = with_context(builder).await;
    let (run, ()) = tokio::join!(sandbox.execute("forever()"), async {
        begun.notified().await;
        sandbox.destroy().await;
    });
    assert_eq!(run.unwrap_err(), Error::Destroyed);
}

async fn a_sandbox_that_is_dropped_leaves_nothing(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let token = token();
    ran(
        &sandbox,
        &(starts_processes(&token) + "own = subprocess.Popen(sleeper)"),
    )
    .await;
    drop(sandbox);
    until("what it started is gone", || processes_with(&token) == 0).await;
}

async fn a_sandbox_that_is_dropped_while_code_runs_leaves_nothing(backend: BackendKind) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let builder = builder(backend).host_function("begun", move |_| {
        begins.notify_one();
        async { Ok(Value::None) }
    });
    let sandbox = with_context(builder).await;
    let token = token();
    let code = starts_processes(&token) + "begun()\nsum(range(10 ** 13))";
    let run = tokio::spawn(async move { sandbox.execute(code).await });
    begun.notified().await;
    assert!(processes_with(&token) > 0);
    run.abort();
    until("what it started is gone", || processes_with(&token) == 0).await;
}
