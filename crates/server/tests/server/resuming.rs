//! Conversations that outlive their WebSockets: who may resume them, and when they end.

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use sandglass_core::resumable::{Control, SUFFIX};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::forwarding::{self, bucket};
use crate::support::{ANN, BOB, Channel, LONG, TestServer, answer, eventually};

/// A client that counts messages itself.
pub struct Client {
    socket: Channel,
    token: String,
    taken: u64,
}

/// The end of a WebSocket: the reason that the layer gave, and whether a close message came.
#[derive(Debug, PartialEq)]
struct Ended(Option<String>);

async fn connect(server: &TestServer, path: &str, subprotocol: &str) -> Channel {
    server
        .web_socket(path, &format!("{subprotocol}{SUFFIX}"))
        .await
        .unwrap()
}

async fn rpc(server: &TestServer) -> Channel {
    connect(server, "/v1/rpc", sandglass_rpc::messages::SUBPROTOCOL).await
}

async fn greet(socket: &mut Channel, control: Control) -> Result<Control, Ended> {
    socket.send(Message::text(control.text())).await.unwrap();
    match next(socket).await? {
        Message::Text(text) => Ok(Control::read(&text).unwrap().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// The next message of the conversation, or of its layer.
async fn next(socket: &mut Channel) -> Result<Message, Ended> {
    loop {
        let message = tokio::time::timeout(LONG, socket.next())
            .await
            .expect("the server is silent");
        match message {
            Some(Ok(Message::Text(text))) => match Control::read(&text).unwrap() {
                Some(Control::Ended { reason }) => return Err(Ended(Some(reason))),
                _ => return Ok(Message::Text(text)),
            },
            Some(Ok(Message::Binary(data))) => return Ok(Message::Binary(data)),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Ended(None)),
        }
    }
}

impl Client {
    async fn begin(mut socket: Channel) -> Self {
        match greet(&mut socket, Control::Begin {}).await.unwrap() {
            Control::Begun {
                token,
                within,
                max_bytes,
            } => {
                assert!([43, 96].contains(&token.len()), "{token}");
                assert!(within > 0 && max_bytes > 0);
                Self {
                    socket,
                    token,
                    taken: 0,
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// A client with a sandbox, whose id is returned.
    pub async fn with_sandbox(server: &TestServer) -> (Self, String) {
        let mut client = Self::begin(rpc(server).await).await;
        client.ask(1, "hello", json!({ "version": 1 })).await;
        let made = client.ask(2, "create", json!({ "context": null })).await;
        (client, made["result"]["sandbox"].as_str().unwrap().to_owned())
    }

    async fn send(&mut self, id: u64, method: &str, params: &Value) {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.socket.send(Message::text(request.to_string())).await.unwrap();
    }

    async fn next(&mut self) -> Result<Value, Ended> {
        let message = next(&mut self.socket).await?;
        self.taken += 1;
        Ok(serde_json::from_slice(&message.into_data()).unwrap())
    }

    async fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.send(id, method, &params).await;
        self.next().await.unwrap()
    }

    fn resumes(&self, link: u64) -> Control {
        Control::Resume {
            token: self.token.clone(),
            link,
            taken: self.taken,
        }
    }

    /// Breaks the WebSocket, and waits until the server has noticed.
    async fn cut(&mut self) {
        let frame = CloseFrame {
            code: CloseCode::Restart,
            reason: "".into(),
        };
        self.socket.close(Some(frame)).await.unwrap();
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    /// Goes on with another WebSocket. Returns how many of its messages the server has taken, and the WebSocket before.
    async fn resume(&mut self, mut socket: Channel, link: u64) -> (u64, Channel) {
        match greet(&mut socket, self.resumes(link)).await.unwrap() {
            Control::Resumed { taken } => (taken, std::mem::replace(&mut self.socket, socket)),
            other => panic!("{other:?}"),
        }
    }
}

async fn sessions(server: &TestServer) -> usize {
    let (_, body) = answer(server.get("/v1/sessions")).await;
    body["sessions"].as_array().unwrap().len()
}

async fn no_sessions(server: &TestServer) {
    eventually("the session ends", async || sessions(server).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_comes_with_the_next_connection() {
    let server = TestServer::start(&[]).await;
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    let execute = |code: &str| json!({ "sandbox": sandbox, "code": code });
    client.send(3, "execute", &execute("x = 41\nx + 1")).await;
    // The answer may have come to the first socket. Nobody has taken it.
    let (taken, before) = client.resume(rpc(&server).await, 2).await;
    assert!(taken <= 3);
    drop(before);
    if taken < 3 {
        client.send(3, "execute", &execute("x = 41\nx + 1")).await;
    }
    assert_eq!(client.next().await.unwrap()["result"]["value"], 42);
    // Nothing of the client's comes twice.
    client.socket.close(None).await.unwrap();
    no_sessions(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_sandboxes_and_one_that_is_cut_off_does_not() {
    let server = TestServer::start(&[]).await;
    for code in [CloseCode::Normal, CloseCode::Away] {
        let (mut client, _) = Client::with_sandbox(&server).await;
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        client.socket.close(Some(frame)).await.unwrap();
        no_sessions(&server).await;
        let refused = greet(&mut rpc(&server).await, client.resumes(2)).await.unwrap_err();
        assert!(refused.0.unwrap().contains("no conversation"));
    }
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    // A program between the two says that it restarts.
    client.cut().await;
    client.resume(rpc(&server).await, 2).await;
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": "2" }))
        .await;
    assert_eq!(run["result"]["value"], 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_key_that_began_resumes_and_only_with_the_token() {
    let mut server = TestServer::with_keys(&[]).await;
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    let id = server.session(json!({ "channel": true })).await;
    let channel = format!("/v1/sessions/{id}/channel");
    let refused = async |server: &TestServer, control: Control| {
        let refused = greet(&mut rpc(server).await, control).await.unwrap_err();
        refused.0.unwrap()
    };
    let unknown = Control::Resume {
        token: "A".repeat(43),
        link: 2,
        taken: 3,
    };
    let words = refused(&server, unknown).await;
    server.key = Some(BOB);
    // The words are the same, so Bob cannot tell that the token is Ann's.
    assert_eq!(refused(&server, client.resumes(2)).await, words);
    server.key = Some(ANN);
    // The token is for this route alone.
    let mut other = connect(&server, &channel, sandglass_host::SUBPROTOCOL).await;
    assert_eq!(greet(&mut other, client.resumes(2)).await, Err(Ended(Some(words))));
    // None of this has disturbed the conversation.
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": "2" }))
        .await;
    assert_eq!(run["result"]["value"], 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_connection_wins() {
    let server = TestServer::start(&[]).await;
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    let (_, mut before) = client.resume(rpc(&server).await, 3).await;
    let ended = next(&mut before).await.unwrap_err();
    assert!(ended.0.unwrap().contains("another connection"));
    // An attempt that was begun before comes too late.
    let late = greet(&mut rpc(&server).await, client.resumes(2)).await.unwrap_err();
    assert!(late.0.unwrap().contains("a later connection"));
    let lied = Control::Resume {
        token: client.token.clone(),
        link: 9,
        taken: 1_000,
    };
    let lied = greet(&mut rpc(&server).await, lied).await.unwrap_err();
    assert!(lied.0.unwrap().contains("cannot be true"));
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": "2" }))
        .await;
    assert_eq!(run["result"]["value"], 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_end_when_nobody_reconnects_in_time() {
    let server = TestServer::start(&["--reconnect-within", "0.3"]).await;
    let (client, _) = Client::with_sandbox(&server).await;
    let resumes = client.resumes(2);
    drop(client);
    no_sessions(&server).await;
    eventually("the conversation ends", async || {
        greet(&mut rpc(&server).await, resumes.clone()).await.is_err()
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_layer_ends_the_conversation_with_a_reason() {
    let server = TestServer::start(&[]).await;
    for (said, reason) in [
        ("#", "malformed"),
        (r##"#{"type":"begin"}"##, "malformed"),
        (r##"#{"type":"taken","taken":100}"##, "cannot be true"),
    ] {
        let (mut client, _) = Client::with_sandbox(&server).await;
        client.socket.send(Message::text(said)).await.unwrap();
        let ended = client.next().await.unwrap_err().0.unwrap();
        assert!(ended.contains(reason), "{ended}");
        no_sessions(&server).await;
    }
    for said in ["", "{}", "#", r##"#{"type":"taken","taken":0}"##] {
        let mut socket = rpc(&server).await;
        socket.send(Message::text(said)).await.unwrap();
        let ended = next(&mut socket).await.unwrap_err().0.unwrap();
        assert!(ended.contains("malformed"), "{said}: {ended}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_of_a_key_are_bounded() {
    let server = TestServer::start(&["--max-connections", "8"]).await;
    // Six requests of a key at once, so six conversations. Here none of them has a connection any more.
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(Client::begin(rpc(&server).await).await.resumes(2));
    }
    let mut more = rpc(&server).await;
    let refused = greet(&mut more, Control::Begin {}).await.unwrap_err();
    assert!(refused.0.unwrap().contains("may have no more"));
    // Those that are there can still be resumed.
    for resumes in clients {
        assert!(greet(&mut rpc(&server).await, resumes).await.is_ok());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_time_to_reconnect_conversations_are_plain() {
    let server = TestServer::start(&["--reconnect-within", "0"]).await;
    let name = sandglass_rpc::messages::SUBPROTOCOL;
    assert!(server.web_socket("/v1/rpc", &format!("{name}{SUFFIX}")).await.is_err());
    let both = format!("{name}{SUFFIX}, {name}");
    let mut socket = server.web_socket("/v1/rpc", &both).await.unwrap();
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "hello", "params": { "version": 1 } });
    socket.send(Message::text(hello.to_string())).await.unwrap();
    assert!(next(&mut socket).await.unwrap().to_text().unwrap().contains("result"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_of_a_channel_stays_when_its_page_is_cut_off() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "channel": true })).await;
    let path = format!("/v1/sessions/{id}/channel");
    let channel = async || connect(&server, &path, sandglass_host::SUBPROTOCOL).await;
    let mut page = Client::begin(channel().await).await;
    page.socket
        .send(Message::text(json!({ "type": "boot" }).to_string()))
        .await
        .unwrap();
    let booted = page.next().await.unwrap();
    assert_eq!(booted, json!({ "type": "booted", "guest": 1 }));
    // A second channel is refused, and a second connection of this one is not.
    let refused = greet(&mut channel().await, Control::Begin {}).await;
    let Ok(Control::Begun { .. }) = refused else {
        panic!("{refused:?}")
    };
    page.resume(channel().await, 2).await;
    page.socket
        .send(Message::text(json!({ "type": "kill" }).to_string()))
        .await
        .unwrap();
    // The guest of before the cut is the one that ends.
    let lost = loop {
        let message = next(&mut page.socket).await.unwrap();
        if let Message::Text(text) = message {
            break serde_json::from_str::<Value>(&text).unwrap();
        }
    };
    assert_eq!([&lost["type"], &lost["guest"]], [&json!("lost"), &json!(1)]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_read_again_when_the_guest_has_taken_much() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "channel": true })).await;
    let path = format!("/v1/sessions/{id}/channel");
    let mut page = Client::begin(connect(&server, &path, sandglass_host::SUBPROTOCOL).await).await;
    let boot = json!({ "type": "boot" }).to_string();
    page.socket.send(Message::text(boot)).await.unwrap();
    assert_eq!(page.next().await.unwrap()["type"], "booted");
    // As much as the server holds for a guest, in one piece. The guest answers nothing to it.
    let header = json!({ "type": "part", "encoding": "bytes" }).to_string();
    let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let body = vec![0; 64 << 20];
    let frame = [
        &number(1)[..],
        &number(header.len())[..],
        header.as_bytes(),
        &number(body.len())[..],
        &body,
    ];
    page.socket.send(Message::binary(frame.concat())).await.unwrap();
    // More may be sent once this was taken.
    let taken = Control::Taken { taken: 2 }.text();
    let is_told = async { while page.socket.next().await.unwrap().unwrap() != Message::text(taken.as_str()) {} };
    tokio::time::timeout(LONG, is_told)
        .await
        .expect("the piece is not taken");
    let pause = json!({ "type": "pause", "guest": 1, "checkpoint": 1 }).to_string();
    page.socket.send(Message::text(pause)).await.unwrap();
    // Pings come all the while.
    let answer = tokio::time::timeout(LONG, page.next()).await;
    let answer = answer.expect("the channel is not read").unwrap();
    assert_eq!(answer["type"], "unpaused", "it keeps no checkpoints");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_value_comes_again_as_far_as_it_was_not_taken() {
    let server = TestServer::start(&[]).await;
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    let code = "_ = open('f', 'wb').write(b''.join(bytes([k]) * (1 << 20) for k in range(12)))";
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": code }))
        .await;
    assert_eq!(run["result"]["outcome"], "ok", "{run}");
    client
        .send(4, "readFile", &json!({ "sandbox": sandbox, "path": "f" }))
        .await;
    // As many pieces as the window lets out; none is taken.
    for number in 0..4_u8 {
        let piece = next(&mut client.socket).await.unwrap().into_data();
        assert_eq!((piece.len(), piece[5]), ((1 << 20) + 5, number));
    }
    let (taken, _) = client.resume(rpc(&server).await, 2).await;
    assert_eq!(taken, 4);
    for number in 0..12_u8 {
        let piece = next(&mut client.socket).await.unwrap().into_data();
        assert_eq!((piece.len(), piece[5]), ((1 << 20) + 5, number));
        client.taken += 1;
        let taken = Control::Taken { taken: client.taken };
        client.socket.send(Message::text(taken.text())).await.unwrap();
    }
    assert!(client.next().await.unwrap()["result"]["value"]["$blob"].is_object());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_hears_why_its_conversation_has_ended() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "channel": true })).await;
    let path = format!("/v1/sessions/{id}/channel");
    let mut page = Client::begin(connect(&server, &path, sandglass_host::SUBPROTOCOL).await).await;
    page.cut().await;
    let deleted = server.request(Method::DELETE, &format!("/v1/sessions/{id}"));
    answer(deleted).await;
    no_sessions(&server).await;
    let channel = async || connect(&server, &path, sandglass_host::SUBPROTOCOL).await;
    page.resume(channel().await, 2).await;
    assert_eq!(
        page.next().await,
        Err(Ended(Some("the session was destroyed".to_owned())))
    );
    // Later, only the session is known to be gone.
    for control in [page.resumes(3), Control::Begin {}] {
        let gone = greet(&mut channel().await, control).await.unwrap_err().0.unwrap();
        assert!(gone.contains("there is no session"), "{gone}");
    }
    assert!(server.channel(&id).await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_ends_with_its_user_even_if_the_client_takes_nothing() {
    let server = TestServer::start(&[]).await;
    let (mut client, sandbox) = Client::with_sandbox(&server).await;
    let code = "_ = open('f', 'wb').write(bytes(6 << 20))";
    client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": code }))
        .await;
    client
        .send(4, "readFile", &json!({ "sandbox": sandbox, "path": "f" }))
        .await;
    for _ in 0..4 {
        next(&mut client.socket).await.unwrap();
    }
    // The window is full. A message that breaks the wire ends the connection.
    client.socket.send(Message::binary(vec![1, 2])).await.unwrap();
    let ended = next(&mut client.socket).await.unwrap_err().0.unwrap();
    assert!(ended.contains("shorter than its head"), "{ended}");
    server.stop().await;
}

/// A server in its drain resumes the conversation of another server, and begins none.
pub async fn drains(server: &TestServer, (client, sandbox): &mut (Client, String)) {
    let refused = greet(&mut rpc(server).await, Control::Begin {}).await.unwrap_err();
    assert!(refused.0.unwrap().contains("takes no new conversation"));
    client.resume(rpc(server).await, 2).await;
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": "2" }))
        .await;
    assert_eq!(run["result"]["value"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_resumed_through_any_server() {
    let bucket = bucket();
    let (a, b) = (
        forwarding::server(&bucket, &[]).await,
        forwarding::server(&bucket, &[]).await,
    );
    let (mut client, sandbox) = Client::with_sandbox(&a).await;
    let execute = json!({ "sandbox": sandbox, "code": "x = globals().get('x', 0) + 1\nx" });
    for (link, server) in [(2, &b), (3, &a), (4, &b), (5, &b)] {
        let (_, mut before) = client.resume(rpc(server).await, link).await;
        let ended = next(&mut before).await.unwrap_err();
        assert!(ended.0.unwrap().contains("another connection"));
        let run = client.ask(link + 1, "execute", execute.clone()).await;
        assert_eq!(run["result"]["value"], link - 1);
    }
    assert_eq!((sessions(&a).await, sessions(&b).await), (1, 0));
    client.socket.close(None).await.unwrap();
    no_sessions(&a).await;
    let refused = greet(&mut rpc(&b).await, client.resumes(6)).await.unwrap_err();
    assert!(refused.0.unwrap().contains("no conversation"));
    for server in [a, b] {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_leads_only_its_owner_and_cannot_be_made_up() {
    let bucket = bucket();
    let (a, mut b) = (
        forwarding::server(&bucket, &[]).await,
        forwarding::server(&bucket, &[]).await,
    );
    let (mut client, sandbox) = Client::with_sandbox(&a).await;
    let refused = async |server: &TestServer, token: String| {
        let resumes = Control::Resume {
            token,
            link: 2,
            taken: 3,
        };
        greet(&mut rpc(server).await, resumes).await.unwrap_err().0.unwrap()
    };
    let words = refused(&b, "A".repeat(43)).await;
    // Each part, changed: the secret, the home of the server, the tag. And a token that is cut off, or none.
    for at in [0, 20, 44, 50, 60, 90] {
        let mut changed = client.token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(refused(&b, String::from_utf8(changed).unwrap()).await, words);
    }
    for text in [
        "",
        "é",
        &client.token[..95],
        &client.token[..43],
        &format!("{}A", client.token),
    ] {
        assert_eq!(refused(&b, text.to_owned()).await, words, "{text}");
    }
    b.key = Some(BOB);
    assert_eq!(refused(&b, client.token.clone()).await, words);
    b.key = Some(ANN);
    client.resume(rpc(&b).await, 2).await;
    let run = client
        .ask(3, "execute", json!({ "sandbox": sandbox, "code": "2" }))
        .await;
    assert_eq!(run["result"]["value"], 2);
    // The end of its server ends it, and the client is told.
    let resumes = client.resumes(3);
    drop(client);
    a.stop().await;
    let ended = greet(&mut rpc(&b).await, resumes).await.unwrap_err().0.unwrap();
    assert!(ended.contains("has ended or was killed"), "{ended}");
    b.stop().await;
}
