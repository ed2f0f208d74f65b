//! JSON-RPC on the server's WebSocket.

use futures_util::{SinkExt, StreamExt};
use sandglass_rpc::messages::SUBPROTOCOL;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::support::{ANN, BOB, Channel, LONG, TestServer, answer, eventually};

/// A client of the wire.
pub(crate) struct Client {
    socket: Channel,
    last: u64,
}

impl Client {
    pub(crate) async fn of(server: &TestServer) -> Self {
        let socket = server.web_socket("/v1/rpc", SUBPROTOCOL).await.unwrap();
        let mut client = Self { socket, last: 0 };
        let welcome = client.ask("hello", json!({ "version": 1 })).await.unwrap();
        assert_eq!(welcome["isLocal"], false);
        client
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    /// The next message; `None` when the server has closed.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(LONG, self.socket.next()).await;
            match next.expect("the server is silent")? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The answer to a request. Host calls meanwhile are answered.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.last += 1;
        let id = self.last;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;
        loop {
            let message = self.next().await.expect("the server has closed");
            let result = match message["method"].as_str() {
                Some("call") => json!({ "value": message["params"]["kwargs"] }),
                Some("llmQuery") => json!({ "text": format!("about {}", message["params"]["prompt"]) }),
                Some(_) => continue,
                None if message["id"] != id => continue,
                None => {
                    return match message.get("error") {
                        Some(error) => Err(error.clone()),
                        None => Ok(message["result"].clone()),
                    };
                }
            };
            self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
                .await;
        }
    }
}

/// The pieces of a blob.
fn blob(id: u32, pieces: &[Vec<u8>]) -> Vec<Message> {
    let piece = |(at, data): (usize, &Vec<u8>)| {
        let is_last = u8::from(at + 1 == pieces.len());
        Message::binary([&id.to_le_bytes()[..], &[is_last], data].concat())
    };
    pieces.iter().enumerate().map(piece).collect()
}

async fn sessions(server: &TestServer) -> usize {
    let (_, body) = answer(server.get("/v1/sessions")).await;
    body["sessions"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_client_is_called_back_and_its_sandboxes_end_with_it() {
    let mut server = TestServer::with_keys(&["--max-timeout-seconds", "60"]).await;
    let mut client = Client::of(&server).await;
    let options = json!({ "hostFunctions": ["f"], "onLLMQuery": true, "context": "a text" });
    let made = client.ask("create", options).await.unwrap();
    let sandbox = made["sandbox"].as_str().unwrap().to_owned();
    let execute = |code: &str| json!({ "sandbox": sandbox, "code": code });
    let run = client.ask("execute", execute("f(a=[1]), llm_query(context)")).await;
    assert_eq!(run.unwrap()["value"], json!([{ "a": [1] }, "about \"a text\""]));
    // It is a session of the key, with the server's limits.
    assert_eq!(sessions(&server).await, 1);
    let long = json!({ "sandbox": sandbox, "code": "1", "timeout": 61_000 });
    assert_eq!(
        client.ask("execute", long).await.unwrap_err()["data"]["code"],
        "invalid_option"
    );
    let local = client.ask("create", json!({ "workspace": "/" })).await.unwrap_err();
    assert_eq!(local["data"]["code"], "invalid_option");
    server.key = Some(BOB);
    assert_eq!(sessions(&server).await, 0);
    let mut other = Client::of(&server).await;
    let stolen = other.ask("execute", execute("1")).await.unwrap_err();
    assert_eq!(stolen["data"]["code"], "no_sandbox");
    server.key = Some(ANN);
    drop(client);
    eventually("the session ends with its connection", async || {
        sessions(&server).await == 0
    })
    .await;
    drop(other);
    server.stop().await;
}

#[tokio::test]
async fn the_size_of_bodies_bounds_values_and_not_their_pieces() {
    let server = TestServer::start(&["--max-body-mib", "1"]).await;
    let mut client = Client::of(&server).await;
    let made = client.ask("create", json!({ "context": null })).await.unwrap();
    let sandbox = made["sandbox"].as_str().unwrap().to_owned();
    let piece = vec![7; 1 << 20];
    let write =
        |id: u32| json!({ "sandbox": sandbox, "path": "f", "value": { "$blob": { "id": id, "type": "bytes" } } });
    for message in [blob(1, &[piece.clone(), piece.clone()]), blob(2, &[piece])].concat() {
        client.socket.send(message).await.unwrap();
    }
    let error = client.ask("writeFile", write(1)).await.unwrap_err();
    assert_eq!(error["data"]["code"], "too_much", "{error}");
    client.ask("writeFile", write(2)).await.unwrap();
    let code = "len(open('f', 'rb').read())";
    let run = client
        .ask("execute", json!({ "sandbox": sandbox, "code": code }))
        .await
        .unwrap();
    assert_eq!(run["value"], 1 << 20);
    server.stop().await;
}

#[tokio::test]
async fn only_clients_with_a_key_and_the_subprotocol_come_in() {
    let mut server = TestServer::with_keys(&[]).await;
    let status = |refused: Result<Channel, tungstenite::Error>| match refused {
        Err(tungstenite::Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(server.web_socket("/v1/rpc", "sandglass.v1").await), 400);
    server.key = Some("a-key-that-nobody-has-0123456789");
    assert_eq!(status(server.web_socket("/v1/rpc", SUBPROTOCOL).await), 401);
    server.stop().await;
}

#[tokio::test]
async fn a_client_hears_of_the_servers_end() {
    let mut server = TestServer::start(&[]).await;
    let mut client = Client::of(&server).await;
    client.ask("create", json!({ "context": 1 })).await.unwrap();
    server.tell_to_end();
    assert_eq!(client.next().await, None);
    server.ended().await;
}

#[tokio::test]
async fn what_is_no_message_ends_the_connection_with_a_reason() {
    let server = TestServer::start(&[]).await;
    let mut client = Client::of(&server).await;
    client.socket.send(Message::binary(vec![1, 2])).await.unwrap();
    let reason = loop {
        match tokio::time::timeout(LONG, client.socket.next()).await.unwrap() {
            Some(Ok(Message::Close(frame))) => break frame.unwrap().reason.to_string(),
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.contains("shorter than its head"), "{reason}");
    server.stop().await;
}
