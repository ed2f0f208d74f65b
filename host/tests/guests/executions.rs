//! Executions that succeed, and errors of Python code.

use std::sync::{Arc, Mutex};

use sandglass_host::{BackendKind, ExecuteOptions, Killer, Outcome, Resources, Sandbox, StateStatus, Stream, Value};

use crate::support::{builder, on_both, ran, sandbox, variable, with_context};

on_both!(
    code_runs_and_keeps_its_state,
    an_exception_is_told_with_what_was_printed,
    values_cross_both_ways,
    large_contexts_cross,
    much_output_is_cut_and_counted,
    output_comes_as_it_is_printed,
    a_final_answer_is_given,
    rich_outputs_are_shown,
    files_are_written_and_read,
    a_workspace_is_the_hosts_folder,
    nothing_runs_before_a_context,
    executions_wait_for_each_other,
);

async fn code_runs_and_keeps_its_state(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let run = ran(&sandbox, "x = len(context)\nprint('hello')\nx + 1").await;
    assert_eq!(
        (run.id, run.stdout.as_str(), run.result.as_deref()),
        (1, "hello\n", Some("12"))
    );
    assert_eq!(
        (run.outcome, run.state.status, run.killer),
        (Outcome::Ok, StateStatus::Kept, None)
    );
    assert_eq!(ran(&sandbox, "x * 2").await.result.as_deref(), Some("22"));
    assert_eq!(sandbox.get_variable("nothing").await, Ok(None));
    let names: Vec<_> = sandbox.list_variables().await.unwrap();
    let names: Vec<_> = names
        .iter()
        .map(|variable| (variable.name.as_str(), variable.type_name.as_str()))
        .collect();
    assert_eq!(names, [("context", "str"), ("x", "int")]);
    let capabilities = sandbox.capabilities();
    assert_eq!(capabilities.backend, backend);
    assert!(
        capabilities
            .python
            .as_deref()
            .is_some_and(|python| python.starts_with("3.")),
        "{capabilities:?}"
    );
    sandbox.destroy().await;
    assert_eq!(sandbox.execute("1").await.unwrap_err().code(), "destroyed");
}

async fn an_exception_is_told_with_what_was_printed(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let run = sandbox.execute("print('before')\nkept = 1\n1 / 0").await.unwrap();
    assert_eq!((run.outcome, run.stdout.as_str()), (Outcome::Error, "before\n"));
    assert_eq!(run.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    assert_eq!(run.error_type.as_deref(), Some("ZeroDivisionError"));
    assert!(run.traceback.as_deref().is_some_and(|text| text.contains("<cell 1>")));
    assert_eq!((run.state.status, run.killer), (StateStatus::Kept, None));
    assert_eq!(variable(&sandbox, "kept").await, Value::Int(1));
    let run = sandbox.execute("x = (").await.unwrap();
    assert_eq!(run.error_type.as_deref(), Some("SyntaxError"));
}

async fn values_cross_both_ways(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let value = Value::Dict(vec![
        ("text".into(), "ü🦀\0".into()),
        (
            "ints".into(),
            Value::List(vec![
                Value::Int(-1),
                Value::Int(i64::MAX),
                Value::BigInt("9".repeat(40)),
            ]),
        ),
        ("float".into(), Value::Float(f64::NEG_INFINITY)),
        ("bytes".into(), Value::Bytes(vec![0, 255])),
        (Value::Int(1), Value::Tuple(vec![Value::None, Value::Bool(true)])),
        ("set".into(), Value::Set(vec![Value::Int(3)])),
        ("at".into(), Value::DateTime(1_714_979_289_250.0)),
    ]);
    sandbox.set_variable("v", value.clone()).await.unwrap();
    let run = ran(
        &sandbox,
        "import datetime\nv['ints'][2] == int('9' * 40), type(v[1]), v['at'].tzinfo is not None",
    )
    .await;
    assert_eq!(run.result.as_deref(), Some("(True, <class 'tuple'>, True)"));
    assert_eq!(variable(&sandbox, "v").await, value);
    ran(&sandbox, "class A:\n    def __repr__(self): return 'an A'\na = [A()]").await;
    let other = Value::Other {
        type_name: "A".to_owned(),
        repr: "an A".to_owned(),
    };
    assert_eq!(variable(&sandbox, "a").await, Value::List(vec![other]));
    let error = sandbox.set_variable("not a name", Value::None).await.unwrap_err();
    assert_eq!(error.code(), "invalid_option");
    assert_eq!(
        sandbox
            .add_context(sandglass_core::session::Series::Context, "more")
            .await
            .as_deref(),
        Ok("context_1")
    );
    assert_eq!(
        ran(&sandbox, "context_0[:3], context_1").await.result.as_deref(),
        Some("('the', 'more')")
    );
}

async fn large_contexts_cross(backend: BackendKind) {
    let sandbox = builder(backend).build().await.unwrap();
    let text = "0123456789abcdé\n".repeat(50 << 16);
    sandbox.initialize(text.clone()).await.unwrap();
    let run = ran(&sandbox, "len(context), len(context.encode()), context[-4:]").await;
    let told = format!("({}, {}, 'cdé\\n')", 50 << 20, text.len());
    assert_eq!(run.result.as_deref(), Some(told.as_str()));
    assert_eq!(variable(&sandbox, "context").await, Value::Str(text));
}

async fn much_output_is_cut_and_counted(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let run = ran(&sandbox, "for i in range(100_000): print('%099d' % i)").await;
    assert!(run.truncated.stdout > 9_000_000, "{:?}", run.truncated);
    assert!(run.stdout.starts_with(&format!("{:099}\n", 0)));
    assert!(run.stdout.ends_with(&format!("{:099}\n", 99_999)));
    assert!(run.stdout.contains("characters omitted]"));
    assert!(run.stdout.chars().count() < 51_000);
    let run = ran(
        &sandbox,
        "import sys\nprint('x' * 10_000_000)\nprint('e' * 60_000, file=sys.stderr)",
    )
    .await;
    assert_eq!(
        (run.truncated.stdout, run.truncated.stderr),
        (10_000_001 - 50_000, 60_001 - 50_000)
    );
}

async fn output_comes_as_it_is_printed(backend: BackendKind) {
    let seen = Arc::new(Mutex::new(String::new()));
    let all = Arc::clone(&seen);
    let builder = builder(backend).on_stdout(move |text| all.lock().unwrap().push_str(text));
    let sandbox = with_context(builder).await;
    let own = Arc::new(Mutex::new((String::new(), String::new())));
    let told = Arc::clone(&own);
    let options = ExecuteOptions {
        on_output: Some(Arc::new(move |stream, text: &str| match stream {
            Stream::Stderr => told.lock().unwrap().1.push_str(text),
            _ => told.lock().unwrap().0.push_str(text),
        })),
        ..ExecuteOptions::default()
    };
    let code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')";
    let run = sandbox.execute_with(code, options).await.unwrap();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("one\nthree\n", "two\n"));
    assert_eq!(*seen.lock().unwrap(), "one\nthree\n");
    assert_eq!(*own.lock().unwrap(), ("one\nthree\n".to_owned(), "two\n".to_owned()));
}

async fn a_final_answer_is_given(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let run = ran(&sandbox, "FINAL({'answer': [1, 2]})").await;
    let json = serde_json::to_value(&run).unwrap();
    assert_eq!(json["final"]["value"], serde_json::json!({ "answer": [1, 2] }));
    assert_eq!((&json["outcome"], &json["id"]), (&"ok".into(), &1.into()));
    assert_eq!(ran(&sandbox, "1").await.final_answer, None);
}

async fn rich_outputs_are_shown(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    let run = ran(
        &sandbox,
        "class A:\n    def _repr_html_(self): return '<b>A</b>'\ndisplay(A())",
    )
    .await;
    let shown: Vec<_> = run
        .displays
        .iter()
        .map(|display| (display.mime.as_str(), display.data.as_str()))
        .collect();
    assert!(shown.contains(&("text/html", "<b>A</b>")), "{shown:?}");
}

async fn files_are_written_and_read(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    sandbox.write_file("in/data.bin", vec![0, 1, 255]).await.unwrap();
    assert_eq!(
        ran(&sandbox, "open('in/data.bin', 'rb').read()")
            .await
            .result
            .as_deref(),
        Some("b'\\x00\\x01\\xff'")
    );
    ran(&sandbox, "open('out.txt', 'w').write('made by a cell') and None").await;
    assert_eq!(sandbox.read_file("out.txt").await.unwrap(), b"made by a cell");
    let files = sandbox.list_files("").await.unwrap();
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert!(
        paths.contains(&"out.txt") && paths.contains(&"in/data.bin"),
        "{paths:?}"
    );
    sandbox.remove_file("out.txt").await.unwrap();
    assert_eq!(sandbox.read_file("out.txt").await.unwrap_err().code(), "file_not_found");
}

async fn a_workspace_is_the_hosts_folder(backend: BackendKind) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("given.txt"), "from the host").unwrap();
    let sandbox = with_context(builder(backend).workspace(folder.path())).await;
    let run = ran(
        &sandbox,
        "open('test.txt', 'w').write(open('given.txt').read().upper())\nimport os\nos.getcwd()",
    )
    .await;
    if backend == BackendKind::Bubblewrap {
        assert_eq!(run.result.as_deref(), Some("'/workspace'"));
    }
    assert_eq!(
        std::fs::read_to_string(folder.path().join("test.txt")).unwrap(),
        "FROM THE HOST"
    );
}

async fn nothing_runs_before_a_context(backend: BackendKind) {
    let sandbox = builder(backend).build().await.unwrap();
    assert_eq!(sandbox.execute("1").await.unwrap_err().code(), "not_initialized");
    sandbox.start().await.unwrap();
    sandbox.initialize(Value::None).await.unwrap();
    assert_eq!(ran(&sandbox, "context is None").await.result.as_deref(), Some("True"));
}

async fn executions_wait_for_each_other(backend: BackendKind) {
    let sandbox = sandbox(backend).await;
    ran(&sandbox, "seen = []").await;
    let runs = (0..20).map(|at| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move { sandbox.execute(format!("seen.append({at})\nlen(seen)")).await.unwrap() })
    });
    let mut counts = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        counts.push(run.await.unwrap().result.clone().unwrap().parse::<i32>().unwrap());
    }
    counts.sort_unstable();
    assert_eq!(counts, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_asked_for_wrongly_is_refused() {
    let name = "not a name";
    let builder = builder(BackendKind::Subprocess).host_function(name, async |_| Ok(Value::None));
    assert_eq!(builder.build().await.unwrap_err().code(), "invalid_option");
    for python in ["/nowhere/python3", "/bin/false"] {
        let error = builder_with(python).build().await.unwrap_err();
        assert_eq!(error.code(), "backend_unavailable");
        assert!(error.to_string().contains(python), "{error}");
    }
}

fn builder_with(python: &str) -> sandglass_host::SandboxBuilder {
    builder(BackendKind::Subprocess).python(python)
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_machine_name_themselves() {
    sandglass_host::cgroup::check().expect("control groups: the tests need them");
    let resources = Resources {
        memory_bytes: 200 << 20,
        pids: 20,
        tmp_bytes: 1 << 20,
        ..Resources::default()
    };
    let sandbox = with_context(builder(BackendKind::Bubblewrap).resources(resources)).await;
    let killer = async |sandbox: &Sandbox, code: &str| {
        let run = sandbox.execute(code).await.unwrap();
        (run.outcome, run.state.status, run.killer)
    };
    let threads = "import threading, time\nstop = threading.Event()\nthreads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(100)]\ntry:\n    for thread in threads: thread.start()\nfinally: stop.set()";
    assert_eq!(
        killer(&sandbox, threads).await,
        (Outcome::Error, StateStatus::Kept, Some(Killer::Pids))
    );
    let disk = "open('/tmp/large', 'wb').write(bytes(2 << 20))";
    assert_eq!(
        killer(&sandbox, disk).await,
        (Outcome::Error, StateStatus::Kept, Some(Killer::Disk))
    );
    assert_eq!(
        killer(&sandbox, "1 / 0").await,
        (Outcome::Error, StateStatus::Kept, None)
    );
    let memory = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (10 << 20))";
    assert_eq!(
        killer(&sandbox, memory).await,
        (Outcome::Crashed, StateStatus::Lost, Some(Killer::Oom))
    );
    assert_eq!(killer(&sandbox, "1").await, (Outcome::Ok, StateStatus::Kept, None));
}
