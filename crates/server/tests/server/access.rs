//! Access to the server: keys, sessions of other keys, host names, and origins of pages.

use reqwest::{Method, StatusCode};
use sandglass_server::{Secrets, Server};
use serde_json::json;

use crate::support::{ANN, BOB, TestServer, answer, args, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn only_keys_of_the_server_open_it() {
    let mut server = TestServer::with_keys(&[]).await;
    let wrong = [
        "not-a-key-of-this-server",
        "",
        "annas-key-0123456789abcde",
        "annas-key-0123456789abcdeff",
    ];
    for key in wrong.map(Some).into_iter().chain([None]) {
        server.key = key;
        for request in [
            server.post("/v1/sessions", &json!({})),
            server.get("/v1/sessions"),
            server.get("/metrics"),
            server.get("/health/detailed"),
            server.get("/v1/nothing"),
        ] {
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{key:?}");
            assert!(
                response.headers()["www-authenticate"]
                    .to_str()
                    .unwrap()
                    .starts_with("Bearer")
            );
            let text = response.text().await.unwrap();
            assert!(text.contains("\"unauthorized\"") && !text.contains(ANN), "{text}");
        }
        assert_eq!(answer(server.get("/health")).await.0, StatusCode::OK);
        assert_eq!(answer(server.get("/openapi.json")).await.0, StatusCode::OK);
    }
    server.key = Some(ANN);
    assert_eq!(answer(server.get("/v1/sessions")).await.0, StatusCode::OK);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_its_key() {
    let mut server = TestServer::with_keys(&[]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "secret = 42").await;
    let channel = server.session(json!({ "channel": true })).await;

    server.key = Some(BOB);
    let own = format!("/v1/sessions/{id}");
    let not_found = (404, "session_not_found".to_owned());
    let put = |path: String| server.request(Method::PUT, &path).json(&json!({ "value": 1 }));
    for request in [
        server.get(&own),
        server.request(Method::DELETE, &own),
        server.post(&format!("{own}/execute"), &json!({ "code": "secret" })),
        server.post(&format!("{own}/interrupt"), &json!({})),
        server.get(&format!("{own}/variables")),
        server.get(&format!("{own}/variables/secret")),
        put(format!("{own}/variables/secret")),
        server.get(&format!("{own}/files")),
        server.get(&format!("{own}/files/x")),
        put(format!("{own}/files/x")),
        server.request(Method::DELETE, &format!("{own}/files/x")),
        server.get(&format!("/v1/sessions/{channel}/channel")),
    ] {
        assert_eq!(refusal(request).await, not_found);
    }
    assert_eq!(answer(server.get("/v1/sessions")).await.1["sessions"], json!([]));

    server.key = Some(ANN);
    assert_eq!(server.execute(&id, "secret").await["result"], "42");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_gets_into_a_guest() {
    let server = TestServer::with_keys(&[]).await;
    let id = server.session(json!({})).await;
    let code =
        "import os\nwith open('/proc/self/environ') as file: environ = file.read()\nprint(dict(os.environ), environ)";
    let run = server.execute(&id, code).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    let printed = run["stdout"].as_str().unwrap();
    for secret in [ANN, BOB, "SANDGLASS_KEYS", "SANDGLASS_LLM_KEY"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyless_server_is_called_by_a_local_name() {
    let server = TestServer::start(&[]).await;
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:80"] {
        assert_eq!(
            answer(server.get("/health").header("host", host)).await.0,
            StatusCode::OK,
            "{host}"
        );
    }
    for host in ["evil.example", "localhost.evil.example", "192.168.0.1:8788"] {
        for request in [server.get("/health"), server.post("/v1/sessions", &json!({}))] {
            assert_eq!(
                refusal(request.header("host", host)).await,
                (403, "host_forbidden".to_owned()),
                "{host}"
            );
        }
    }
    server.stop().await;

    // A server with keys accepts any name, because a proxy may have another one.
    let server = TestServer::with_keys(&[]).await;
    let named = server.get("/v1/sessions").header("host", "sandboxes.example");
    assert_eq!(answer(named).await.0, StatusCode::OK);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_have_to_be_allowed() {
    let server = TestServer::start(&["--allow-origin", "https://app.example,http://localhost:5173"]).await;
    for origin in [
        "https://evil.example",
        "null",
        "http://localhost:5174",
        "https://app.example.evil",
    ] {
        for request in [server.get("/health"), server.post("/v1/sessions", &json!({}))] {
            let refused = refusal(request.header("origin", origin)).await;
            assert_eq!(refused, (403, "origin_forbidden".to_owned()), "{origin}");
        }
    }
    let own = server.url.clone();
    assert_eq!(
        answer(server.get("/v1/sessions").header("origin", own)).await.0,
        StatusCode::OK
    );

    let preflight = server
        .request(Method::OPTIONS, "/v1/sessions")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let response = preflight.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("access-control-allow-origin"), "https://app.example");
    for name in ["Authorization", "Traceparent", "Tracestate"] {
        assert!(header("access-control-allow-headers").contains(name));
    }
    assert!(header("access-control-allow-methods").contains("DELETE"));

    let response = server
        .get("/v1/nothing")
        .header("origin", "http://localhost:5173")
        .send()
        .await
        .unwrap();
    assert_eq!(
        response.headers()["access-control-allow-origin"],
        "http://localhost:5173",
        "errors are readable, too"
    );
    let response = server.get("/v1/sessions").send().await.unwrap();
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_would_be_open_does_not_start() {
    let start = |more: &[&str]| Server::bind(args(more), Secrets::default());
    let error = start(&["--listen", "0.0.0.0:0"]).await.unwrap_err();
    assert!(error.contains("no keys"), "{error}");
    let error = start(&["--listen", "[::]:0"]).await.unwrap_err();
    assert!(error.contains("no keys"), "{error}");
    let error = start(&["--allow-origin", "*"]).await.unwrap_err();
    assert!(error.contains("needs keys"), "{error}");
    let error = start(&["--llm-url", "http://127.0.0.1:1"]).await.unwrap_err();
    assert!(error.contains("--llm-model"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_processes_have_to_be_allowed() {
    let server = TestServer::start(&["--backend", "auto"]).await;
    let (status, body) = answer(server.post("/v1/sessions", &json!({ "backend": "subprocess" }))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--allow-subprocess"),
        "{body}"
    );
    server.stop().await;
}
