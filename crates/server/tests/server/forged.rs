//! Forged requests: two requests in one, a false host, a false key, a guessed session.

use std::collections::HashSet;

use reqwest::StatusCode;
use serde_json::json;

use crate::attacks::{Raw, head};
use crate::support::{ANN, BOB, TestServer, answer, refusal};

/// Request heads whose body may end elsewhere for a proxy. A `DELETE` stands at one of the two ends.
const AMBIGUOUS: &[&str] = &[
    "content-length: 3\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
    "content-length: 3\r\ncontent-length: 300\r\n",
    "content-length: 3, 300\r\n",
    "content-length: +3\r\n",
    "content-length: 0x3\r\n",
    "content-length: -3\r\n",
    "content-length: 18446744073709551619\r\n",
    "content-length : 3\r\n",
    "transfer-encoding: chunked, identity\r\n",
    "transfer-encoding: xchunked\r\n",
    "transfer-encoding: \x0bchunked\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "transfer-encoding : chunked\r\n",
    " content-length: 3\r\n",
    "x: 1\r\n content-length: 3\r\n",
    "x: 1\rcontent-length: 3\r\n",
    "x: 1\0\r\ncontent-length: 3\r\n",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_request_hides_within_another() {
    let server = TestServer::with_keys(&[]).await;
    let id = server.session(json!({})).await;
    let path = format!("/v1/sessions/{id}");
    let hidden = head("DELETE", &path, "connection: close\r\n");
    for more in AMBIGUOUS {
        // Read as chunks, the body is empty. Read by its length, it has three bytes.
        let seen = head("POST", &format!("{path}/interrupt"), more) + "0\r\n\r\n" + &hidden;
        let said = Raw::with(&server, &seen).await.rest().await;
        assert_eq!(answer(server.get(&path)).await.0, StatusCode::OK, "{more:?}: {said}");
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{more:?}: {said}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_form_of_a_name_makes_another_host_this_one() {
    let server = TestServer::start(&[]).await;
    let port = server.address().rsplit_once(':').unwrap().1;
    for (target, hosts) in [
        ("/v1/sessions", "host: evil.example\r\n"),
        ("/v1/sessions", ""),
        ("/v1/sessions", "host:\r\n"),
        ("/v1/sessions", "host: evil.example\r\nhost: localhost\r\n"),
        ("/v1/sessions", "host: localhost\r\nhost: evil.example\r\n"),
        ("/v1/sessions", "host: localhost@evil.example\r\n"),
        ("/v1/sessions", "host: evil.example:localhost\r\n"),
        ("/v1/sessions", "host: [::1]evil.example\r\n"),
        ("/v1/sessions", "host: [::1].evil.example:80\r\n"),
        ("/v1/sessions", "host: [::1\r\n"),
        ("/v1/sessions", "host: localhost, evil.example\r\n"),
        ("/v1/sessions", "host: localhost.evil.example\r\n"),
        ("/v1/sessions", "host: 127.0.0.1.evil.example\r\n"),
        ("/v1/sessions", "host: 2130706433.evil.example\r\n"),
        ("/v1/sessions", "host: 0.0.0.0\r\n"),
        ("/v1/sessions", "host: [::]\r\n"),
        ("/v1/sessions", "host: [::ffff:10.0.0.1]\r\n"),
        ("http://evil.example/v1/sessions", "host: localhost\r\n"),
        ("http://localhost@evil.example/v1/sessions", "host: localhost\r\n"),
        ("http://[::1]@evil.example/v1/sessions", "host: localhost\r\n"),
        ("http://localhost:80@evil.example/v1/sessions", "host: localhost\r\n"),
        ("/v1/sessions", "host: evil.example\r\nx-forwarded-host: localhost\r\n"),
        ("/v1/sessions", "host: evil.example\r\nforwarded: host=localhost\r\n"),
        ("/v1/sessions", "host: evil.example\r\nx-forwarded-for: 127.0.0.1\r\n"),
        ("/v1/sessions", "host: localhost\r\norigin: http://evil.example\r\n"),
        ("/v1/sessions", "host: localhost\r\norigin: null\r\n"),
        (
            "/v1/sessions",
            "host: localhost\r\norigin: http://localhost.evil.example\r\n",
        ),
        (
            "/v1/sessions",
            "host: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n",
        ),
    ] {
        let hosts = hosts.replace(":80", &format!(":{port}"));
        for (method, body) in [("GET", ""), ("POST", "{}")] {
            let length = body.len();
            let request = format!(
                "{method} {target} HTTP/1.1\r\n{hosts}connection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            let said = Raw::with(&server, &request).await.rest().await;
            assert!(
                said.starts_with("HTTP/1.1 403 ") || said.starts_with("HTTP/1.1 400 "),
                "{method} {target} {hosts:?}: {said}"
            );
        }
    }
    assert_eq!(answer(server.get("/v1/sessions")).await.1["sessions"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_counts_in_its_place_only() {
    let server = TestServer::with_keys(&[]).await;
    let upper = ANN.to_uppercase();
    let cut = &ANN[..ANN.len() - 1];
    for (path, more) in [
        (format!("/v1/sessions?key={ANN}"), String::new()),
        (format!("/v1/sessions?access_token={ANN}"), String::new()),
        ("/v1/sessions".to_owned(), format!("x-api-key: {ANN}\r\n")),
        ("/v1/sessions".to_owned(), format!("cookie: key={ANN}\r\n")),
        (
            "/v1/sessions".to_owned(),
            format!("proxy-authorization: Bearer {ANN}\r\n"),
        ),
        ("/v1/sessions".to_owned(), format!("authorization: {ANN}\r\n")),
        ("/v1/sessions".to_owned(), format!("authorization: Basic {ANN}\r\n")),
        ("/v1/sessions".to_owned(), format!("authorization: Bearer {upper}\r\n")),
        ("/v1/sessions".to_owned(), format!("authorization: Bearer {cut}\r\n")),
        ("/v1/sessions".to_owned(), format!("authorization: Bearer {ANN}0\r\n")),
        (
            "/v1/sessions".to_owned(),
            format!("authorization: Bearer {ANN}, Bearer {BOB}\r\n"),
        ),
        (
            "/v1/sessions".to_owned(),
            format!("authorization: Bearer ann {ANN}\r\n"),
        ),
        (
            "/v1/sessions".to_owned(),
            "authorization: Bearer ann\r\nx-user: ann\r\n".to_owned(),
        ),
        (
            "/v1/sessions".to_owned(),
            format!("authorization: Bearer x\r\nauthorization: Bearer {ANN}\r\n"),
        ),
        // A route decides if a request is open, not the look of its path.
        ("/health/../v1/sessions".to_owned(), String::new()),
        ("/health/%2e%2e/v1/sessions".to_owned(), String::new()),
        ("/health%2f..%2fv1/sessions".to_owned(), String::new()),
        ("//v1/sessions".to_owned(), String::new()),
        ("/v1/sessions/".to_owned(), String::new()),
        ("/V1/sessions".to_owned(), String::new()),
        ("/metrics?/health".to_owned(), String::new()),
        (
            "/v1/sessions".to_owned(),
            "x-original-url: /health\r\nx-rewrite-url: /health\r\n".to_owned(),
        ),
        (
            "/v1/sessions".to_owned(),
            "x-http-method-override: OPTIONS\r\naccess-control-request-method: GET\r\n".to_owned(),
        ),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
        let said = Raw::with(&server, &request).await.rest().await;
        assert!(said.starts_with("HTTP/1.1 401 "), "{path} {more:?}: {said}");
        assert!(!said.contains(ANN), "{said}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_session_cannot_be_guessed_or_bent() {
    let server = TestServer::with_keys(&[]).await;
    let mut ids = HashSet::new();
    for _ in 0..8 {
        ids.insert(server.session(json!({ "channel": true })).await);
    }
    assert_eq!(ids.len(), 8);
    // No two ids begin or end alike, so they contain no number, time or process id.
    for part in [0..8, 24..32] {
        let parts: HashSet<_> = ids.iter().map(|id| &id[part.clone()]).collect();
        assert_eq!(parts.len(), 8, "{ids:?}");
    }
    assert!(
        ids.iter()
            .all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    );
    let id = server.session(json!({})).await;
    for bent in [
        id[..31].to_owned(),
        format!("{id}0"),
        format!("{id}%00"),
        format!("{id}%0a"),
        format!("%20{id}"),
        format!("{id}%2f"),
        format!("{id};{id}"),
        format!("{id}%2f..%2f{id}"),
        "*".to_owned(),
        "%25".to_owned(),
        "null".to_owned(),
        "0".repeat(32),
    ] {
        let (status, code) = refusal(server.get(&format!("/v1/sessions/{bent}"))).await;
        assert_eq!((status, code.as_str()), (404, "session_not_found"), "{bent}");
    }
    server.stop().await;
}
