//! Hostile clients on real sockets. The server's deadlines are either short, or so long that no test can pass by waiting.

use std::path::Path;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use sandglass_host::SUBPROTOCOL;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::storage::with_folder;
use crate::support::{ANN, BOB, LONG, TestServer, answer, eventually, refusal};

/// A client's end of a connection.
pub struct Raw(TcpStream);

impl Raw {
    async fn open(server: &TestServer) -> Self {
        Self(TcpStream::connect(server.address()).await.unwrap())
    }

    /// A client with a small receive buffer that reads nothing.
    async fn deaf(server: &TestServer) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        Self(socket.connect(server.address().parse().unwrap()).await.unwrap())
    }

    pub async fn with(server: &TestServer, text: &str) -> Self {
        let mut raw = Self::open(server).await;
        raw.send(text).await;
        raw
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// All bytes until the server closes the connection.
    pub async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // The connection may end by a close or by a reset.
        let _ = timeout(LONG, self.0.read_to_end(&mut bytes))
            .await
            .expect("the server keeps the connection");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends the same piece repeatedly until the server stops taking it. Returns the server's last bytes.
    async fn drip(self, piece: &str) -> String {
        let (reader, mut writer) = self.0.into_split();
        let mut rest = tokio::spawn(async move {
            let (mut reader, mut bytes) = (reader, Vec::new());
            let _ = reader.read_to_end(&mut bytes).await;
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let dripping = async {
            while writer.write_all(piece.as_bytes()).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            rest = timeout(LONG, &mut rest) => rest.expect("the server keeps the connection").unwrap(),
            () = dripping => unreachable!(),
        }
    }
}

/// The head of a request of Ann's.
pub fn head(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ANN}\r\n{more}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_keep_nobody_out() {
    let server = TestServer::start(&["--max-connections", "6", "--head-timeout-seconds", "100000"]).await;
    let mut held = Vec::new();
    for index in 0..60 {
        // Some say nothing, some half a head, some a whole request and then nothing.
        let said = [
            "",
            "GET /health HTTP/1.1\r\nhost: loc",
            "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ][index % 3];
        held.push(Raw::with(&server, said).await);
    }
    let id = server.session(json!({})).await;
    assert_eq!(server.execute(&id, "6 * 7").await["result"], "42");
    // The closed connections depend on the order in which the server saw the requests, because an answer makes a connection
    // newer.
    let mut closing: FuturesUnordered<_> = held.iter_mut().map(Raw::rest).collect();
    for _ in 0..54 {
        closing.next().await;
    }
    drop(closing);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_a_request_does_not_give_way() {
    let server = TestServer::start(&["--max-connections", "2", "--head-timeout-seconds", "100000"]).await;
    let id = server.session(json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let (begun, end) = (folder.path().join("begun"), folder.path().join("end"));
    let code = format!(
        "import os, time\nopen({begun:?}, 'w').close()\nwhile not os.path.exists({end:?}): time.sleep(0.01)\n'ended'"
    );
    let running = server.execute(&id, &code);
    let flooding = async {
        eventually("it has begun", || async { begun.exists() }).await;
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(Raw::open(&server).await);
        }
        // All but the last have been taken and have given way.
        for raw in &mut held[..19] {
            raw.rest().await;
        }
        std::fs::write(&end, "").unwrap();
        held
    };
    let (run, _held) = tokio::join!(running, flooding);
    assert_eq!(run["result"], "'ended'", "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_ends_by_its_deadline() {
    let server = TestServer::start(&["--head-timeout-seconds", "0.3"]).await;
    let begun = "GET /health HTTP/1.1\r\nhost: localhost\r\n";
    Raw::with(&server, begun).await.drip("x-more: 1\r\n").await;
    Raw::with(&server, begun).await.rest().await;
    Raw::open(&server).await.rest().await;
    eventually("a whole head is answered", async || {
        let mut raw = Raw::with(&server, &format!("{begun}\r\n")).await;
        raw.rest().await.starts_with("HTTP/1.1 200 ")
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_ends_by_its_deadline() {
    let server = TestServer::with_keys(&["--body-timeout-seconds", "0.6"]).await;
    let id = server.session(json!({})).await;
    for (method, path) in [
        ("POST", "/v1/sessions".to_owned()),
        ("POST", "/execute".to_owned()),
        ("POST", format!("/v1/sessions/{id}/execute")),
        ("PUT", format!("/v1/sessions/{id}/variables/x")),
        ("PUT", format!("/v1/sessions/{id}/files/x")),
    ] {
        let head = head(method, &path, "content-length: 1000000\r\n");
        let said = Raw::with(&server, &head).await.drip(" ").await;
        assert!(
            said.starts_with("HTTP/1.1 408 ") && said.contains("body_timeout"),
            "{path}: {said}"
        );
        let said = Raw::with(&server, &head).await.rest().await;
        assert!(said.starts_with("HTTP/1.1 408 "), "{path}: {said}");
    }
    assert_eq!(server.execute(&id, "1").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_one_key_keep_nobody_else_out() {
    let mut server = TestServer::with_keys(&["--max-connections", "8", "--body-timeout-seconds", "100000"]).await;
    let id = server.session(json!({})).await;
    let head = head("PUT", &format!("/v1/sessions/{id}/files/x"), "content-length: 1000\r\n");
    let mut held = join_all((0..7).map(|_| Raw::with(&server, &head))).await;
    let (said, ..) = select_all(held.iter_mut().map(|raw| Box::pin(raw.rest()))).await;
    assert!(
        said.starts_with("HTTP/1.1 429 ") && said.contains("too_many_requests_at_once"),
        "{said}"
    );
    server.key = Some(BOB);
    let others = server.session(json!({})).await;
    assert_eq!(server.execute(&others, "6 * 7").await["result"], "42");
    drop(held);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_one_key_keep_nobody_else_out() {
    let mut server = TestServer::with_keys(&["--max-connections", "8", "--max-timeout-seconds", "100000"]).await;
    let id = server.session(json!({ "timeout": 100_000_000 })).await;
    // The server reads no pipe, whether it is silent or never ends.
    let made = "import os, threading\nos.mkfifo('silent'); os.mkfifo('endless')\n\
                def write():\n\
                \x20   with open('endless', 'wb') as pipe:\n\
                \x20       while True: pipe.write(bytes(1000))\n\
                threading.Thread(target=write, daemon=True).start()\nos.getcwd()";
    let made = server.execute(&id, made).await;
    let folder = Path::new(made["result"].as_str().unwrap().trim_matches('\'')).to_owned();
    for name in ["silent", "endless"] {
        let path = format!("/v1/sessions/{id}/files/{name}");
        assert_eq!(
            refusal(server.get(&path)).await,
            (422, "file_error".to_owned()),
            "{name}"
        );
    }
    // A request for a busy session waits.
    let body = json!({ "code": "os.mkdir('begun')\nwhile True: pass" }).to_string();
    let more = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let execute = head("POST", &format!("/v1/sessions/{id}/execute"), &more) + &body;
    let mut held = vec![Raw::with(&server, &execute).await];
    eventually("the session is busy", async || folder.join("begun").exists()).await;
    for path in [
        "variables/made",
        "files/x",
        "files",
        "variables",
        "files/y",
        "variables/x",
    ] {
        held.push(Raw::with(&server, &head("GET", &format!("/v1/sessions/{id}/{path}"), "")).await);
    }
    let (said, ..) = select_all(held.iter_mut().map(|raw| Box::pin(raw.rest()))).await;
    assert!(
        said.starts_with("HTTP/1.1 429 ") && said.contains("too_many_requests_at_once"),
        "{said}"
    );
    server.key = Some(BOB);
    let others = server.session(json!({})).await;
    assert_eq!(server.execute(&others, "6 * 7").await["result"], "42");
    // A client that leaves frees its place.
    drop(held);
    server.key = Some(ANN);
    let path = format!("/v1/sessions/{id}");
    eventually("Ann has a place again", || async {
        answer(server.get(&path)).await.0 == StatusCode::OK
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused() {
    let server = TestServer::with_keys(&["--max-body-mib", "1"]).await;
    let declared = head("POST", "/v1/sessions", "content-length: 1000000000000\r\n");
    let said = Raw::with(&server, &declared).await.rest().await;
    assert!(
        said.starts_with("HTTP/1.1 413 ") && said.contains("body_too_large"),
        "{said}"
    );
    let chunked = head("POST", "/v1/sessions", "transfer-encoding: chunked\r\n");
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let said = Raw::with(&server, &chunked).await.drip(&chunk).await;
    assert!(
        said.starts_with("HTTP/1.1 413 ") && said.contains("body_too_large"),
        "{said}"
    );

    let deep = format!("{{\"context\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = server.request(Method::POST, "/v1/sessions").body(deep);
    assert_eq!(
        refusal(nested.header("content-type", "application/json")).await,
        (400, "invalid_request".to_owned())
    );

    let long = format!("x-long: {}\r\n", "x".repeat(1_000_000));
    let said = Raw::with(&server, &head("GET", "/health", &long)).await.rest().await;
    assert!(said.starts_with("HTTP/1.1 431 "), "{said}");
    let many: String = (0..100).map(|number| format!("x-{number}: 1\r\n")).collect();
    let said = Raw::with(&server, &head("GET", "/health", &many)).await.rest().await;
    assert!(said.starts_with("HTTP/1.1 431 "), "{said}");
    let said = Raw::with(&server, "\0\u{1}garbage\r\n\r\n").await.rest().await;
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    assert_eq!(answer(server.get("/health")).await.0, StatusCode::OK);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_so_many_sessions_however_fast_it_asks() {
    let mut server = TestServer::with_keys(&["--max-sessions-per-key", "2", "--max-sessions", "3"]).await;
    let answers = join_all((0..10).map(|_| answer(server.post("/v1/sessions", &json!({}))))).await;
    let made: Vec<_> = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::CREATED)
        .collect();
    assert_eq!(made.len(), 2);
    for (status, body) in answers.iter().filter(|(status, _)| *status != StatusCode::CREATED) {
        assert_eq!(
            (status.as_u16(), &body["error"]["code"]),
            (429, &json!("too_many_sessions"))
        );
    }
    let first = made[0].1["id"].as_str().unwrap();
    server.key = Some(BOB);
    server.session(json!({})).await;
    assert_eq!(
        refusal(server.post("/v1/sessions", &json!({}))).await,
        (503, "server_full".to_owned())
    );
    server.key = Some(ANN);
    let delete = server.request(Method::DELETE, &format!("/v1/sessions/{first}"));
    assert_eq!(answer(delete).await.0, StatusCode::NO_CONTENT);
    server.session(json!({})).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_so_many_requests() {
    let mut server = TestServer::with_keys(&["--requests-per-second", "0.01"]).await;
    // An address that a client claims is not looked at.
    let from = |at: i32| {
        server
            .get("/v1/sessions")
            .header("x-forwarded-for", format!("192.0.2.{at}"))
    };
    let statuses = join_all((0..5).map(|at| answer(from(at)))).await;
    let refused = statuses
        .iter()
        .filter(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.count(), 4);
    server.key = Some(BOB);
    assert_eq!(answer(server.get("/v1/sessions")).await.0, StatusCode::OK);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_sends_nonsense_is_closed() {
    let server = TestServer::with_keys(&["--max-body-mib", "1"]).await;
    let number = 1_u32.to_le_bytes();
    let huge = u32::MAX.to_le_bytes();
    for nonsense in [
        Message::text("hello"),
        Message::text(r#"{"type":"none"}"#),
        Message::text(r#"{"type":"pause","guest":1}"#),
        Message::text(r#"{"type":"revive","checkpoint":-1}"#),
        Message::text("[".repeat(100_000)),
        Message::binary(vec![1]),
        Message::binary(number.to_vec()),
        Message::binary([&number[..], &huge[..], &huge[..]].concat()),
        Message::binary([&number[..], &2_u32.to_le_bytes()[..], b"{}"].concat()),
    ] {
        let id = server.session(json!({ "channel": true })).await;
        let mut socket = server.channel(&id).await.unwrap();
        // The test needs a guest, because messages for no guest are dropped.
        socket.send(Message::text(r#"{"type":"boot"}"#)).await.unwrap();
        while !matches!(socket.next().await.unwrap().unwrap(), Message::Text(_)) {}
        socket.send(nonsense.clone()).await.unwrap();
        let closed = timeout(LONG, async {
            loop {
                match socket.next().await {
                    Some(Ok(Message::Close(frame))) => return frame,
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return None,
                }
            }
        });
        let frame = closed.await.expect("the channel stays open").expect("a close frame");
        assert_eq!(frame.code, CloseCode::Policy, "{nonsense:.50}: {frame:?}");
        let gone = refusal(server.get(&format!("/v1/sessions/{id}"))).await;
        assert_eq!(gone, (404, "session_not_found".to_owned()));
    }
    server.stop().await;
}

/// The header fields of a request for a channel.
fn upgrade() -> String {
    format!(
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-protocol: {SUBPROTOCOL}\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_message_ends_a_channel() {
    let server = TestServer::with_keys(&["--max-body-mib", "1"]).await;
    let pieces = [
        // A frame that claims 2^62 bytes, a frame of a reserved kind, and a frame without a mask.
        &[0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4][..],
        &[0x83, 0x80, 1, 2, 3, 4],
        &[0x81, 0x01, b'x'],
    ];
    for piece in pieces {
        let id = server.session(json!({ "channel": true })).await;
        let path = format!("/v1/sessions/{id}/channel");
        let mut raw = Raw::with(&server, &head("GET", &path, &upgrade())).await;
        raw.0.write_all(piece).await.unwrap();
        let said = raw.rest().await;
        assert!(said.starts_with("HTTP/1.1 101 "), "{said}");
        let session = || server.get(&format!("/v1/sessions/{id}"));
        eventually("the session is gone", || async {
            answer(session()).await.0 == StatusCode::NOT_FOUND
        })
        .await;
    }
    // A message that is one byte too long.
    let id = server.session(json!({ "channel": true })).await;
    let mut socket = server.channel(&id).await.unwrap();
    let _ = socket.send(Message::binary(vec![0; 3 << 20])).await;
    while timeout(LONG, socket.next())
        .await
        .expect("the channel stays open")
        .is_some_and(|message| message.is_ok())
    {}
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_never_reads_is_closed() {
    let server =
        TestServer::with_keys(&["--write-timeout-seconds", "0.3", "--channel-silence-seconds", "100000"]).await;
    let id = server.session(json!({ "channel": true })).await;
    let mut raw = Raw::deaf(&server).await;
    raw.send(&head("GET", &format!("/v1/sessions/{id}/channel"), &upgrade()))
        .await;
    // Each ping wants an answer as long as itself.
    let ping = [&[0x89, 0xfd, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let pings = ping.repeat(1_000);
    while let Ok(Ok(())) = timeout(LONG, raw.0.write_all(&pings)).await {}
    let session = || server.get(&format!("/v1/sessions/{id}"));
    eventually("the session is gone", || async {
        answer(session()).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_never_read_gives_its_code_up() {
    let server = TestServer::with_keys(&["--write-timeout-seconds", "0.3"]).await;
    let options = json!({ "timeout": 3_000_000, "gracePeriod": 30_000 });
    let id = server.session(options).await;
    let body = json!({ "code": "kept = 1\nwhile True: print('x' * 1000)" }).to_string();
    let more = format!(
        "accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    let mut raw = Raw::deaf(&server).await;
    raw.send(&(head("POST", &format!("/v1/sessions/{id}/execute"), &more) + &body))
        .await;
    let mut first = [0; 100];
    raw.0.read_exact(&mut first).await.unwrap();
    eventually("the execution is given up", || async {
        answer(server.get("/health/detailed")).await.1["executions"] == 0
    })
    .await;
    assert_eq!(server.execute(&id, "kept").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_in_the_middle_of_a_stream_gives_its_code_up() {
    let server = TestServer::with_keys(&[]).await;
    let options = json!({ "timeout": 3_000_000, "gracePeriod": 30_000 });
    let id = server.session(options).await;
    let body = json!({ "code": "kept = 2\nprint('here')\nwhile True: pass" }).to_string();
    let more = format!(
        "accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    let mut raw = Raw::with(
        &server,
        &(head("POST", &format!("/v1/sessions/{id}/execute"), &more) + &body),
    )
    .await;
    let mut said = String::new();
    while !said.contains("here") {
        let mut piece = [0; 1_000];
        let bytes = timeout(LONG, raw.0.read(&mut piece)).await.unwrap().unwrap();
        said.push_str(std::str::from_utf8(&piece[..bytes]).unwrap());
    }
    // A crashed client resets the connection instead of closing it.
    rustix::net::sockopt::set_socket_linger(&raw.0, Some(Duration::ZERO)).unwrap();
    drop(raw);
    eventually("the execution is given up", || async {
        answer(server.get("/health/detailed")).await.1["executions"] == 0
    })
    .await;
    assert_eq!(server.execute(&id, "kept").await["result"], "2");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_out_of_a_sessions_files() {
    // Plain processes share a folder for temporary files with everybody.
    let (folder, server) = with_folder(&["--backend", "bubblewrap", "--max-spares", "0"]).await;
    let workspaces = folder.path().join("workspaces/local");
    let (id, other) = (server.session(json!({})).await, server.session(json!({})).await);
    server.execute(&other, "open('secret', 'w').write('secret')").await;
    let secret = format!("{other}/secret");
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    let mut outside = vec![
        "../secret".to_owned(),
        format!("../{secret}"),
        format!("..%2f{}", secret.replace('/', "%2F")),
        format!("%2e%2e/{secret}"),
        format!("%2e%2e%2f{secret}"),
        format!("a/../../{secret}"),
        format!("a%2F..%2F..%2F{secret}"),
        format!("%2Fworkspace%2F..%2F{secret}"),
        format!("..%5c{secret}"),
        format!("..%00/{secret}"),
        "..%252f..%252fsecret".to_owned(),
        "....//secret".to_owned(),
        "%2Fetc%2Fpasswd".to_owned(),
        "/etc/passwd".to_owned(),
        "//etc/passwd".to_owned(),
    ];
    outside.push(workspaces.join(&secret).to_string_lossy().replace('/', "%2F"));
    let before = tree(folder.path());
    for path in outside {
        let mut is_own = false;
        for method in ["GET", "PUT", "DELETE"] {
            let more = "connection: close\r\ncontent-length: 0\r\n";
            let said = Raw::with(&server, &head(method, &format!("/v1/sessions/{id}/files/{path}"), more))
                .await
                .rest()
                .await;
            let status = said.split(' ').nth(1).unwrap();
            // A name that only looks like a way out is an ordinary name in the session's own files.
            is_own |= method == "PUT" && status == "204";
            if !is_own {
                assert!(status.starts_with('4'), "{method} {path}: {said}");
            }
            assert!(
                !said.contains("\r\n\r\nsecret") && !said.contains("root:"),
                "{method} {path}: {said}"
            );
        }
        let run = format!("/execute/{id}/files/{path}");
        let said = Raw::with(&server, &head("GET", &run, "connection: close\r\n"))
            .await
            .rest()
            .await;
        assert!(said.starts_with("HTTP/1.1 4"), "{run}: {said}");
    }
    let own = workspaces.join(&id);
    let elsewhere = |paths: Vec<std::path::PathBuf>| -> Vec<_> {
        paths.into_iter().filter(|path| !path.starts_with(&own)).collect()
    };
    assert_eq!(elsewhere(tree(folder.path())), elsewhere(before));
    assert_eq!(std::fs::read(workspaces.join(&secret)).unwrap(), b"secret");
    server.stop().await;
}

/// No link leads out of a session's files, whatever its name: neither a link from a foreign archive nor one made by hand.
#[tokio::test(flavor = "multi_thread")]
async fn no_link_leads_out_of_a_sessions_files() {
    let (folder, server) = with_folder(&["--backend", "bubblewrap", "--max-spares", "0"]).await;
    let workspaces = folder.path().join("workspaces/local");
    let (id, other) = (server.session(json!({})).await, server.session(json!({})).await);
    server.execute(&other, "open('secret', 'w').write('secret')").await;
    let theirs = workspaces.join(&other);
    let code = format!(
        r#"
import io, os, tarfile, zipfile
theirs = {theirs:?}
outside = {{
    "absolute": theirs + "/secret", "folder": theirs, "up": "../{other}/secret", "above": "..", "root": "/", "etc": "/etc",
    "shadow": "/etc/shadow", "process": "/proc/self/root", "first": "/proc/1/root", "cwd": "/proc/self/cwd/../..",
    "descriptor": "/proc/self/fd/0", "chain": "absolute", "loop": "loop",
}}
for name, target in outside.items():
    os.symlink(target, name)
with tarfile.open("x.tar", "w") as archive:
    link = tarfile.TarInfo("tarred"); link.type = tarfile.SYMTYPE; link.linkname = theirs
    archive.addfile(link)
    archive.addfile(tarfile.TarInfo("../slipped"))
    archive.addfile(tarfile.TarInfo("/tmp/slipped"))
try: tarfile.open("x.tar").extractall()
except Exception: pass
with zipfile.ZipFile("x.zip", "w") as archive:
    archive.writestr("../../{other}/slipped", "x"); archive.writestr("/opt/slipped", "x")
    entry = zipfile.ZipInfo("zipped"); entry.external_attr = 0o120777 << 16
    archive.writestr(entry, theirs)
zipfile.ZipFile("x.zip").extractall()
hard = []
for target in (theirs + "/secret", "/etc/passwd", "/usr/bin/python3", "/proc/self/environ"):
    try: os.link(target, f"hard{{len(hard)}}"); hard.append(target)
    except OSError: pass
hard
"#
    );
    let run = server.execute(&id, &code).await;
    assert_eq!((&run["outcome"], &run["result"]), (&json!("ok"), &json!("[]")), "{run}");
    for path in [
        "absolute",
        "folder",
        "folder/secret",
        "up",
        "above",
        "above/secret",
        "root",
        "root/etc/passwd",
        "etc/passwd",
        "shadow",
        "process/etc/passwd",
        "first/etc/passwd",
        "cwd/etc/passwd",
        "descriptor",
        "chain",
        "loop",
        "tarred",
        "tarred/secret",
    ] {
        let path = format!("/v1/sessions/{id}/files/{path}");
        let read = server.get(&path).send().await.unwrap();
        assert!(read.status().is_client_error(), "{path}: {}", read.status());
        // A write replaces the link itself, and a removal removes it. The link's target stays.
        server.request(Method::PUT, &path).body("pwned").send().await.unwrap();
        server.request(Method::DELETE, &path).send().await.unwrap();
    }
    assert_eq!(std::fs::read(theirs.join("secret")).unwrap(), b"secret");
    let left: Vec<_> = tree(&workspaces)
        .into_iter()
        .filter(|path| path.ends_with("slipped"))
        .collect();
    assert!(
        left.iter().all(|path| path.starts_with(workspaces.join(&id))),
        "{left:?}"
    );
    assert_eq!(
        server.execute(&other, "import os; os.listdir()").await["result"],
        "['secret']"
    );
    server.stop().await;
}

/// Everything in a folder.
fn tree(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}
