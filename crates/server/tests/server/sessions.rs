//! Tests of a session's routes.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use sandglass_server::routes::{OPENAPI, ROUTES};
use serde_json::{Value, json};

use crate::support::{BOB, TestServer, answer, eventually, gone, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn code_runs_and_variables_stay() {
    let server = TestServer::start(&[]).await;
    let options = json!({ "context": { "pages": ["a", "b"], "raw": { "$bytes": "AAH/" } }, "timeout": 60_000 });
    let (status, created) = answer(server.post("/v1/sessions", &options)).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(created["backend"], "subprocess");
    assert!(
        created["capabilities"]["python"].as_str().unwrap().starts_with("3."),
        "{created}"
    );
    let id = created["id"].as_str().unwrap();

    let run = server
        .execute(id, "x = len(context['pages'])\nprint('hello', context['raw'])\nx * 21")
        .await;
    assert_eq!(run["outcome"], "ok", "{run}");
    assert_eq!(run["stdout"], "hello b'\\x00\\x01\\xff'\n");
    assert_eq!(run["result"], "42");
    assert_eq!(run["id"], 1);
    assert_eq!(run["state"]["status"], "kept");

    let run = server
        .execute(id, "import sys; print('to err', file=sys.stderr)\n1 / 0")
        .await;
    assert_eq!(run["outcome"], "error");
    assert_eq!(run["error"], "ZeroDivisionError: division by zero");
    assert_eq!(run["stderr"], "to err\n");

    let run = server.execute(id, "FINAL({'answer': x})").await;
    assert_eq!(run["final"]["value"], json!({ "answer": 2 }), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_has_its_own_timeout() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "gracePeriod": 30_000 })).await;
    server.execute(&id, "kept = 1").await;
    let body = json!({ "code": "while True: pass", "timeout": 200 });
    let (_, run) = answer(server.post(&format!("/v1/sessions/{id}/execute"), &body)).await;
    assert_eq!(run["outcome"], "timeout", "{run}");
    assert_eq!(run["state"]["status"], "kept", "{run}");
    assert_eq!(server.execute(&id, "kept").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_checkpoints_goes_back() {
    let server = TestServer::start(&[]).await;
    for wrong in [json!({ "checkpoints": 17 }), json!({ "checkpoints": "auto" })] {
        assert_eq!(
            refusal(server.post("/v1/sessions", &wrong)).await,
            (400, "invalid_option".to_owned())
        );
    }
    let (_, created) = answer(server.post("/v1/sessions", &json!({ "checkpoints": 3, "gracePeriod": 100 }))).await;
    assert_eq!(created["capabilities"]["checkpoints"], 3, "{created}");
    let id = created["id"].as_str().unwrap();
    let route = |what: &str| format!("/v1/sessions/{id}/{what}");
    for code in ["x = [1]", "x.append(2)"] {
        server.execute(id, code).await;
    }
    assert_eq!(
        answer(server.post(&route("undo"), &json!({}))).await,
        (StatusCode::OK, json!({ "execution": 1 }))
    );
    let run = server.execute(id, "import os; os._exit(1)").await;
    assert_eq!(
        (&run["outcome"], &run["state"]["restoredTo"]),
        (&json!("crashed"), &json!(1)),
        "{run}"
    );
    assert_eq!(server.execute(id, "x").await["result"], "[1]");
    assert_eq!(
        answer(server.post(&route("checkpoint"), &json!({}))).await.1,
        json!({ "execution": 4 })
    );
    let bare = server.request(Method::POST, &route("restore"));
    assert_eq!(answer(bare).await, (StatusCode::OK, json!({ "execution": 4 })));
    assert_eq!(
        answer(server.post(&route("restore"), &json!({ "execution": 1 })))
            .await
            .1,
        json!({ "execution": 1 })
    );
    let refused = refusal(server.post(&route("restore"), &json!({ "execution": 99 }))).await;
    assert_eq!(refused, (409, "no_checkpoint".to_owned()));
    let without = server.session(json!({})).await;
    let refused = refusal(server.post(&format!("/v1/sessions/{without}/undo"), &json!({}))).await;
    assert_eq!(refused, (400, "invalid_option".to_owned()));
    server.stop().await;
}

async fn metrics(server: &TestServer) -> String {
    server.get("/metrics").send().await.unwrap().text().await.unwrap()
}

/// The number of executions whose code had run ahead.
async fn hits(server: &TestServer) -> u32 {
    let metrics = metrics(server).await;
    let hits = metrics
        .lines()
        .find_map(|line| line.strip_prefix("rlm_proactive_cache_hits_total "));
    hits.and_then(|hits| hits.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn hinted_code_runs_ahead() {
    let server = TestServer::start(&[]).await;
    let (status, _) = answer(server.post("/v1/sessions", &json!({ "ahead": 1 }))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for wrong in [
        json!({ "predictions": "auto" }),
        json!({ "ahead": true, "predictions": true }),
    ] {
        let (status, body) = answer(server.post("/v1/sessions", &wrong)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(
            body["error"]["message"].as_str().unwrap().contains("predictions"),
            "{body}"
        );
    }
    // Each round has a longer pause, until what was told came early enough, and a session of its own: a session that has run code in vain
    // runs less. The results are right all the same.
    let codes = json!({ "codes": ["x.append(1); len(x)", "x"] });
    let parts = ["x.append(1)\nlen(", "x.append(1)\nlen(x)\n"]; // an incomplete statement waits
    let written = parts.map(|part| json!({ "written": part, "conversation": "x" }));
    let mut hint = String::new();
    for (told, code) in [(&[codes][..], "x.append(1); len(x)"), (&written[..], parts[1])] {
        let before = hits(&server).await;
        for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400] {
            let id = server.session(json!({ "ahead": true, "predictions": "auto" })).await;
            hint = format!("/v1/sessions/{id}/hint");
            server.execute(&id, "x = []").await;
            for body in told {
                let (status, _) = answer(server.post(&hint, body)).await;
                assert_eq!(status, StatusCode::NO_CONTENT);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            let run = server.execute(&id, code).await;
            assert_eq!(run["result"], "1", "{run}");
            if hits(&server).await > before {
                break;
            }
        }
        assert!(hits(&server).await > before, "{code}");
    }
    let metrics = metrics(&server).await;
    for source in ["explicit", "stream"] {
        let predicted = format!("rlm_proactive_predictions_total{{source=\"{source}\"}} ");
        let predicted = metrics.lines().find_map(|line| line.strip_prefix(&predicted));
        assert!(
            predicted.is_some_and(|count| count.parse::<u32>().unwrap() > 0),
            "{metrics}"
        );
    }
    for wrong in [json!({ "codes": "x" }), json!({}), json!({ "code": ["x"] })] {
        let (status, _) = answer(server.post(&hint, &wrong)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_listed_read_and_set() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let variable = |name: &str| format!("/v1/sessions/{id}/variables/{name}");
    let put = |name: &str| server.request(Method::PUT, &variable(name));

    for (name, value) in [
        ("number", json!(7)),
        ("big", json!({ "$bigint": "123456789012345678901234567890" })),
        ("data", json!({ "$bytes": "AAH/" })),
        (
            "nested",
            json!({ "a": [1, 2.5, null, true, "ü"], "s": { "$set": [1] } }),
        ),
        ("odd", json!({ "$float": "inf" })),
        ("lone", json!({ "$str": r#""\u000a\"\ud800é""# })),
        ("name", json!({ "$map": [[{ "$str": r#""\udcff""# }, 1]] })),
    ] {
        let (status, body) = answer(put(name).json(&json!({ "value": value }))).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{body}");
        let (status, body) = answer(server.get(&variable(name))).await;
        assert_eq!(
            (status, &body["value"], &body["name"]),
            (StatusCode::OK, &value, &json!(name))
        );
    }
    let (status, _) = answer(
        put("text")
            .header("content-type", "text/plain; charset=utf-8")
            .body("grüße"),
    )
    .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = answer(
        put("raw")
            .header("content-type", "application/octet-stream")
            .body(vec![0_u8, 255]),
    )
    .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let run = server
        .execute(
            &id,
            "assert (text, raw) == ('grüße', bytes([0, 255]))\nassert big == 123456789012345678901234567890\n\
             assert (lone, name) == ('\\n\"\\ud800é', {'\\udcff': 1})\n\
             globals()['\\udcff'] = 1\n\
             final_answer('\\ud802')",
        )
        .await;
    assert_eq!(run["outcome"], "ok", "{run}");
    assert_eq!(run["final"]["value"], json!({ "$str": r#""\ud802""# }), "{run}");
    // Text for people, which is not kept, has lone surrogates as Python escapes them.
    let failed = server
        .execute(&id, "print('\\udc80')\nraise ValueError('\\ud803')")
        .await;
    assert_eq!(failed["stdout"], "\\udc80\n", "{failed}");
    assert_eq!(failed["error"], "ValueError: \\ud803", "{failed}");
    // JSON of no text is refused, and says so.
    for (path, body) in [
        (variable("x"), r#"{"value": "\ud800"}"#),
        (variable("x"), r#"{"value": {"$str": "\ud800"}}"#),
        (variable("x"), r#"{"value": {"$str": "x"}}"#),
    ] {
        let lone = server
            .request(Method::PUT, &path)
            .header("content-type", "application/json");
        let (status, _) = refusal(lone.body(body)).await;
        assert!(matches!(status, 400 | 422), "{body}: {status}");
    }

    let (_, listed) = answer(server.get(&format!("/v1/sessions/{id}/variables"))).await;
    let names: Vec<_> = listed["variables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["name"])
        .collect();
    assert!(
        names.contains(&&json!("number")) && names.contains(&&json!("text")),
        "{listed}"
    );

    assert_eq!(
        refusal(server.get(&variable("nowhere"))).await,
        (404, "variable_not_found".to_owned())
    );
    let not_json = put("x").header("content-type", "application/json").body("{nonsense");
    assert_eq!(refusal(not_json).await, (400, "invalid_request".to_owned()));
    let not_utf8 = put("x").header("content-type", "text/plain").body(vec![0xff_u8]);
    assert_eq!(refusal(not_utf8).await, (400, "invalid_request".to_owned()));
    let other_type = put("x").header("content-type", "text/csv").body("a,b");
    assert_eq!(refusal(other_type).await, (415, "unsupported_media_type".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_out() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let file = |path: &str| format!("/v1/sessions/{id}/files/{path}");

    let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let write = server.request(Method::PUT, &file("in/a%20b.bin")).body(content.clone());
    assert_eq!(answer(write).await.0, StatusCode::NO_CONTENT);
    let run = server
        .execute(
            &id,
            "data = open('in/a b.bin', 'rb').read()\nopen('out.txt', 'w').write('done')\nlen(data)",
        )
        .await;
    assert_eq!(run["result"], "100000", "{run}");
    let out = server.get(&file("out.txt")).send().await.unwrap();
    assert_eq!(out.text().await.unwrap(), "done");

    let response = server.get(&file("in/a%20b.bin")).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert!(response.bytes().await.unwrap() == content);

    let (_, listed) = answer(server.get(&format!("/v1/sessions/{id}/files?path=in"))).await;
    assert_eq!(listed["files"][0]["size"], 100_000, "{listed}");

    // A name that is not UTF-8 is found by its escaped text.
    let run = server
        .execute(
            &id,
            "import os\nos.mkdir(b'\\xe9')\nfor name in (b'\\xff.bin', b'\\\\udcff.bin'): open(b'\\xe9/' + name, 'wb').write(name)",
        )
        .await;
    let (_, listed) = answer(server.get(&format!("/v1/sessions/{id}/files?path=%5Cudce9"))).await;
    for (at, name) in [&b"\xff.bin"[..], b"\\udcff.bin"].iter().enumerate() {
        let path = listed["files"][at]["path"].as_str().unwrap();
        assert_eq!(run["files"][at]["path"], path, "{run} {listed}");
        let path = file(&path.replace('\\', "%5C"));
        let read = server.get(&path).send().await.unwrap().bytes().await.unwrap();
        assert_eq!(read, *name, "{path}");
        assert_eq!(
            answer(server.request(Method::PUT, &path).body("new")).await.0,
            StatusCode::NO_CONTENT
        );
    }
    assert_eq!(
        server
            .execute(&id, "open(b'\\xe9/\\xff.bin').read(), sorted(os.listdir(b'\\xe9'))")
            .await["result"],
        r"('new', [b'\\udcff.bin', b'\xff.bin'])"
    );
    assert_eq!(
        answer(server.request(Method::DELETE, &file("%5Cudce9"))).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(refusal(server.get(&file("%5Cudce9/x"))).await.0, 404);
    let (_, listed) = answer(server.get(&format!("/v1/sessions/{id}/files"))).await;
    assert!(
        listed["files"]
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["path"] == "out.txt"),
        "{listed}"
    );

    assert_eq!(
        answer(server.request(Method::DELETE, &file("out.txt"))).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        refusal(server.get(&file("out.txt"))).await,
        (404, "file_not_found".to_owned())
    );
    for outside in ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd"] {
        let (status, code) = refusal(server.get(&file(outside))).await;
        assert!([404, 422].contains(&status), "{outside}: {status} {code}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_shown_and_destroyed_with_its_guest() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let pid = server.pid(&id).await;
    let (_, shown) = answer(server.get(&format!("/v1/sessions/{id}"))).await;
    assert_eq!((&shown["id"], &shown["backend"]), (&json!(id), &json!("subprocess")));
    let (_, listed) = answer(server.get("/v1/sessions")).await;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);

    let destroy = server.request(Method::DELETE, &format!("/v1/sessions/{id}"));
    assert_eq!(answer(destroy).await, (StatusCode::NO_CONTENT, Value::Null));
    gone(pid).await;
    assert_eq!(
        refusal(server.get(&format!("/v1/sessions/{id}"))).await,
        (404, "session_not_found".to_owned())
    );
    assert_eq!(answer(server.get("/v1/sessions")).await.1["sessions"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_code_is_interrupted() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "gracePeriod": 30_000 })).await;
    // The interrupt may come before the code runs, so it is repeated until it helps.
    let running = server.execute(&id, "open('runs', 'w').close()\nwhile True: pass");
    let interrupting = async {
        loop {
            let interrupt = server.request(Method::POST, &format!("/v1/sessions/{id}/interrupt"));
            assert_eq!(answer(interrupt).await.0, StatusCode::NO_CONTENT);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let run = tokio::select! {
        run = running => run,
        () = interrupting => unreachable!(),
    };
    assert_eq!(
        (&run["outcome"], &run["state"]["status"]),
        (&json!("interrupted"), &json!("kept")),
        "{run}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_mean_nothing_are_named() {
    let server = TestServer::start(&["--max-memory-mib", "512"]).await;
    for (options, name) in [
        (json!({ "tiemout": 1 }), "tiemout"),
        (json!({ "timeout": "soon" }), "timeout"),
        (json!({ "timeout": -1 }), "timeout"),
        (json!({ "timeout": 1e9 }), "timeout"),
        (json!({ "memoryLimit": 1_u64 << 30 }), "memoryLimit"),
        (json!({ "spares": 2 }), "spares"),
        (json!({ "maxShadows": 0 }), "maxShadows"),
        (json!({ "maxShadows": 9 }), "maxShadows"),
        (json!({ "profile": "none" }), "profile"),
        (json!({ "backend": "chroot" }), "backend"),
        (json!({ "channel": 1 }), "channel"),
        (json!({ "budget": { "maxCost": -1 } }), "budget.maxCost"),
        (json!({ "resources": { "pids": 100_000 } }), "resources.pids"),
        (json!({ "resources": { "gpus": 1 } }), "resources.gpus"),
        (json!({ "outputFields": "x" }), "outputFields"),
    ] {
        let (status, body) = answer(server.post("/v1/sessions", &options)).await;
        let error = &body["error"];
        assert_eq!(
            (status.as_u16(), &error["code"]),
            (400, &json!("invalid_option")),
            "{options}: {body}"
        );
        assert!(
            error["message"].as_str().unwrap().starts_with(&format!("{name}: ")),
            "{options}: {body}"
        );
    }
    assert_eq!(answer(server.get("/v1/sessions")).await.1["sessions"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_expire_and_busy_ones_do_not() {
    let server = TestServer::start(&["--session-idle-seconds", "5"]).await;
    let idle = server.session(json!({})).await;
    let pid = server.pid(&idle).await;
    let busy = server.session(json!({})).await;
    let run = server
        .execute(&busy, "import time\nfor _ in range(70): time.sleep(0.1)\n'awake'")
        .await;
    assert_eq!(run["result"], "'awake'", "{run}");
    gone(pid).await;
    assert_eq!(server.forgets(&idle).await, "session_not_found");
    eventually("the other expires as well", || async {
        answer(server.get("/v1/sessions")).await.1["sessions"] == json!([])
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_is_an_error_in_json() {
    let mut server = TestServer::with_keys(&[]).await;
    assert_eq!(refusal(server.get("/v1/nothing")).await, (404, "not_found".to_owned()));
    assert_eq!(refusal(server.get("/v1/sessions/%FF/files")).await.0, 400);
    let patch = server.request(Method::PATCH, "/v1/sessions");
    let response = patch.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(response.headers()["allow"].to_str().unwrap().contains("POST"));
    assert_eq!(
        response.json::<Value>().await.unwrap()["error"]["code"],
        "method_not_allowed"
    );
    server.key = Some(BOB);
    assert_eq!(
        refusal(server.get("/v1/sessions/x/channel")).await,
        (404, "session_not_found".to_owned())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_counters_are_told() {
    let server = TestServer::start(&[]).await;
    let (status, health) = answer(server.get("/health")).await;
    assert_eq!((status, &health["status"]), (StatusCode::OK, &json!("ok")));
    let id = server.session(json!({})).await;
    server.execute(&id, "1").await;
    let (status, detail) = answer(server.get("/health/detailed")).await;
    assert_eq!(status, StatusCode::OK, "{detail}");
    assert_eq!(detail["backend"]["trial"]["status"], "ok", "{detail}");
    assert_eq!(detail["sessions"]["now"], 1, "{detail}");
    let metrics = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        "sandglass_sessions 1",
        "sandglass_sessions_created_total 1",
        "sandglass_requests_total{route=\"/v1/sessions/{id}/execute\",method=\"POST\",status=\"200\"} 1",
        "sandglass_execution_seconds_count{outcome=\"ok\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_that_fails_says_why() {
    let server = TestServer::start(&["--python", "/nowhere/python3"]).await;
    let (status, detail) = answer(server.get("/health/detailed")).await;
    assert_eq!(
        (status, &detail["status"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("degraded")),
        "{detail}"
    );
    let trial = &detail["backend"]["trial"];
    assert_eq!(trial["status"], "failed", "{detail}");
    assert!(
        trial["problem"].as_str().unwrap().contains("/nowhere/python3"),
        "{detail}"
    );
    server.stop().await;

    // A program that answers as Python, and fails as a guest.
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python3");
    let script = "#!/bin/sh\ncase \"$*\" in *--epoch*) echo broken >&2; exit 3;; esac\nexec /usr/bin/python3 \"$@\"\n";
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let says_why = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        text.contains("status 3") && text.contains("broken")
    };
    let server = TestServer::start(&["--python", python.to_str().unwrap()]).await;
    let (status, detail) = answer(server.get("/health/detailed")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{detail}");
    assert!(says_why(&detail["backend"]["trial"]["problem"]), "{detail}");
    // Requests do not wait for guests that cannot be made.
    for (path, body) in [("/v1/sessions", json!({})), ("/execute", json!({ "code": "1" }))] {
        let (status, refused) = answer(server.post(path, &body)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {refused}");
        assert!(says_why(&refused["error"]["message"]), "{path}: {refused}");
    }
    eventually("the pool says why", || async {
        says_why(&answer(server.get("/health/detailed")).await.1["pool"]["problem"])
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stateless_runs_have_the_same_answers_with_and_without_a_pool() {
    for enabled in ["true", "false"] {
        let server = TestServer::start(&["--enabled", enabled, "--preload", "wave", "--spares", "1"]).await;
        let run = async |code: &str| {
            let (status, answer) = answer(server.post("/execute", &json!({ "code": code }))).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            answer
        };
        let expected = json!({
            "stdout": "Hello\n", "stderr": "", "exit_code": 0, "state": null, "files": [], "error": null, "state_error": null, "state_lost": []
        });
        assert_eq!(run("x = 1\nprint('Hello')").await, expected);
        let preloaded = if enabled == "true" {
            "True False\n"
        } else {
            "False False\n"
        };
        let seen = run("import sys\nprint('wave' in sys.modules, 'x' in globals())").await;
        assert_eq!(seen["stdout"], preloaded);
        let failed = run("print('before')\n1/0").await;
        assert_eq!(
            (&failed["stdout"], &failed["exit_code"]),
            (&json!("before\n"), &json!(1))
        );
        assert_eq!(failed["error"], "ZeroDivisionError: division by zero");
        let wrote = run("open('a.txt', 'w').write('contents')").await;
        assert_eq!(wrote["files"], json!(["a.txt"]));
        let id = wrote["id"].as_str().unwrap();
        let file = server.get(&format!("/execute/{id}/files/a.txt")).send().await.unwrap();
        assert_eq!(file.text().await.unwrap(), "contents");
        assert_eq!(refusal(server.get(&format!("/execute/{id}/files/b.txt"))).await.0, 404);
        assert_eq!(refusal(server.post("/execute", &json!({ "code": 1 }))).await.0, 400);
        assert_eq!(
            refusal(server.post("/execute", &json!({ "code": "1", "timeout": -1 })))
                .await
                .0,
            400
        );
        let metrics = server.get("/metrics").send().await.unwrap().text().await.unwrap();
        assert_eq!(
            metrics.contains("sandglass_pool_acquire_seconds_count"),
            enabled == "true"
        );
        let (_, detail) = answer(server.get("/health/detailed")).await;
        assert_eq!(detail["pool"].is_object(), enabled == "true", "{detail}");
        server.stop().await;
    }
}

#[test]
fn the_description_has_the_routes_that_there_are() {
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut described: Vec<(String, String)> = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        described.extend(methods.map(|method| (method.clone(), path.clone())));
    }
    let mut routes: Vec<_> = ROUTES
        .iter()
        .map(|(method, path)| ((*method).to_owned(), path.replace("{*path}", "{path}")))
        .collect();
    described.sort();
    routes.sort();
    assert_eq!(described, routes);
}

/// The OpenAPI description refers its readers to these docs.
#[test]
fn the_docs_have_the_messages_of_channels() {
    let channels = include_str!("../../../../docs/server/channel.md");
    let source = include_str!("../../src/channel.rs");
    let mut rows = source.lines().filter_map(|line| line.strip_prefix("//! | `{"));
    assert!(
        rows.clone().count() == 10 && rows.all(|row| channels.contains(row)),
        "{channels}"
    );
    assert!(channels.contains(&format!("`{}`", sandglass_host::SUBPROTOCOL)));
    assert!(OPENAPI.contains("docs/server/channel.md has its messages"));
}

#[test]
fn the_description_refers_to_what_it_has() {
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut rest = OPENAPI;
    let mut found = 0;
    while let Some((_, after)) = rest.split_once("\"$ref\": \"#") {
        let (pointer, after) = after.split_once('"').unwrap();
        assert!(description.pointer(pointer).is_some(), "{pointer}");
        rest = after;
        found += 1;
    }
    assert!(found > 20, "{found}");
}
