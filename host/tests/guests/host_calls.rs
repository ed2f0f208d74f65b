//! Host functions: Python calls, the host answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sandglass_core::budget::Usage;
use sandglass_host::{Answer, BackendKind, BudgetLimits, HostCall, Limits, Outcome, Query, StateStatus, Value};
use tokio::sync::{Barrier, Notify};

use crate::support::{builder, limits, on_both, ran, until, variable, with_context};

on_both!(
    functions_are_called_with_values,
    queries_run_at_the_same_time,
    a_query_takes_model_and_context,
    failures_are_exceptions,
    a_call_that_is_interrupted_is_dropped,
    a_call_that_takes_too_long_is_dropped,
    calls_from_threads_are_answered,
    budgets_hold,
);

async fn functions_are_called_with_values(backend: BackendKind) {
    let builder = builder(backend)
        .host_function("add", async |call: HostCall| match &call.args[..] {
            [Value::Int(a), Value::Int(b)] => Ok(Value::Int(a + b)),
            args => Err(format!("not two ints but {args:?}")),
        })
        .host_function("echo", async |call: HostCall| Ok(Value::List(call.args)));
    let sandbox = with_context(builder).await;
    let run = ran(&sandbox, "total = 0\nfor i in range(100): total = add(total, i)\ntotal").await;
    assert_eq!((run.result.as_deref(), run.host_calls), (Some("4950"), 100));
    ran(&sandbox, "back = echo('text', b'\\x00', {'a': (1, None)}, 2 ** 70)").await;
    let dict = Value::Dict(vec![("a".into(), Value::Tuple(vec![Value::Int(1), Value::None]))]);
    let values = vec![
        "text".into(),
        Value::Bytes(vec![0]),
        dict,
        Value::BigInt((1_u128 << 70).to_string()),
    ];
    assert_eq!(variable(&sandbox, "back").await, Value::List(values));
    // A call in the middle of other code.
    let run = ran(
        &sandbox,
        "sorted([3, 1, 2], key=lambda item: add(0, -item)), [add(i, 1) for i in range(3)]",
    )
    .await;
    assert_eq!(run.result.as_deref(), Some("([3, 2, 1], [1, 2, 3])"));
}

async fn queries_run_at_the_same_time(backend: BackendKind) {
    let barrier = Arc::new(Barrier::new(8));
    let sandbox = with_context(builder(backend).on_llm_query(move |query: Query| {
        let barrier = Arc::clone(&barrier);
        async move {
            // No call is answered before all calls have come.
            barrier.wait().await;
            Ok(query.prompt.to_uppercase())
        }
    }))
    .await;
    let run = ran(&sandbox, "llm_query_batched([f'p{i}' for i in range(8)])").await;
    assert_eq!(
        run.result.as_deref(),
        Some("['P0', 'P1', 'P2', 'P3', 'P4', 'P5', 'P6', 'P7']")
    );
}

async fn a_query_takes_model_and_context(backend: BackendKind) {
    let builder = builder(backend)
        .on_llm_query(async |query: Query| Ok(format!("{} by {:?}", query.prompt, query.model)))
        .on_rlm_query(async |query: Query| Ok(format!("{} of {:?}", query.prompt, query.context.as_str())));
    let sandbox = with_context(builder).await;
    let run = ran(
        &sandbox,
        "llm_query('p', model='m'), rlm_query('t'), rlm_query('t', 'c')",
    )
    .await;
    let told = "('p by Some(\"m\")', 't of Some(\"the context\")', 't of Some(\"c\")')";
    assert_eq!(run.result.as_deref(), Some(told));
}

async fn failures_are_exceptions(backend: BackendKind) {
    let builder = builder(backend)
        .host_function("fails", async |_| Err("the disk is on fire".to_owned()))
        .host_function("panics", async |call: HostCall| {
            assert!(call.args.is_empty(), "a panic that is part of the test");
            Ok(Value::None)
        })
        .host_function("odd", async |_| {
            Ok(Value::Other {
                type_name: "Lock".to_owned(),
                repr: String::new(),
            })
        });
    let sandbox = with_context(builder).await;
    for (code, why) in [
        ("fails()", "the disk is on fire"),
        ("panics(1)", "the host function panicked"),
        ("odd()", "the result of odd holds a Lock"),
    ] {
        let run = sandbox.execute(code).await.unwrap();
        assert_eq!(run.error_type.as_deref(), Some("HostCallError"), "{code}");
        assert!(
            run.error.as_deref().is_some_and(|error| error.contains(why)),
            "{code}: {:?}",
            run.error
        );
    }
    assert_eq!(ran(&sandbox, "panics()").await.state.status, StateStatus::Kept);
}

/// Notes its own drop.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A host function `forever` that tells when it begins and when it is dropped.
fn forever(builder: sandglass_host::SandboxBuilder) -> (sandglass_host::SandboxBuilder, Arc<Notify>, Arc<AtomicBool>) {
    let (began, dropped) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (begins, drops) = (Arc::clone(&began), Arc::clone(&dropped));
    let builder = builder.host_function("forever", move |_| {
        let dropped = Dropped(Arc::clone(&drops));
        begins.notify_one();
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<Value, String>>().await
        }
    });
    (builder, began, dropped)
}

async fn a_call_that_is_interrupted_is_dropped(backend: BackendKind) {
    let (builder, began, dropped) = forever(builder(backend));
    let sandbox = with_context(builder).await;
    let (run, ()) = tokio::join!(sandbox.execute("x = 1\nforever()"), async {
        began.notified().await;
        sandbox.interrupt();
    });
    let run = run.unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Interrupted, StateStatus::Kept)
    );
    until("the call is dropped", || dropped.load(Ordering::SeqCst)).await;
    assert_eq!(ran(&sandbox, "x").await.result.as_deref(), Some("1"));
}

async fn a_call_that_takes_too_long_is_dropped(backend: BackendKind) {
    let (builder, _, dropped) = forever(builder(backend));
    let limits = Limits {
        host_call_timeout_ms: 100.0,
        ..limits()
    };
    let sandbox = with_context(builder.limits(limits)).await;
    let run = sandbox.execute("forever()").await.unwrap();
    assert_eq!(run.error_type.as_deref(), Some("HostCallError"), "{run:?}");
    assert!(
        run.error
            .as_deref()
            .is_some_and(|error| error.contains("hostCallTimeout"))
    );
    until("the call is dropped", || dropped.load(Ordering::SeqCst)).await;
}

async fn calls_from_threads_are_answered(backend: BackendKind) {
    let sandbox = with_context(builder(backend).on_llm_query(async |query: Query| Ok(query.prompt))).await;
    let code = "from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool: answers = list(pool.map(llm_query, [str(i) for i in range(20)]))
answers == [str(i) for i in range(20)]";
    assert_eq!(ran(&sandbox, code).await.result.as_deref(), Some("True"));
}

async fn budgets_hold(backend: BackendKind) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let builder = builder(backend)
        .budget(BudgetLimits {
            max_calls: Some(3.0),
            ..BudgetLimits::default()
        })
        .on_llm_query(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let usage = Usage {
                input_tokens: 5.0,
                output_tokens: 2.0,
                ..Usage::default()
            };
            async move {
                Ok(Answer {
                    text: "a".to_owned(),
                    usage,
                })
            }
        });
    let sandbox = with_context(builder).await;
    let run = ran(&sandbox, "llm_query_batched(['p'] * 5).count('a')").await;
    assert_eq!((run.result.as_deref(), calls.load(Ordering::SeqCst)), (Some("3"), 3));
    let usage = run.usage.unwrap();
    assert_eq!((usage.calls, usage.input_tokens, usage.output_tokens), (3.0, 15.0, 6.0));
}
