//! A test server, and requests of its clients.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use reqwest::{Method, RequestBuilder, StatusCode};
use sandglass_server::{Secrets, ServeArgs, Server};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// The time after which a test gives up, long enough for a busy machine.
pub const LONG: Duration = Duration::from_secs(90);

/// Keys of the tests, and the names of their owners.
pub const ANN: &str = "annas-key-0123456789abcdef";
pub const BOB: &str = "bobs-key-0123456789abcdef";

#[derive(Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    serve: ServeArgs,
}

/// The server's arguments: a free port, and plain processes as guests.
pub fn args(more: &[&str]) -> ServeArgs {
    let own = ["serve", "--listen", "127.0.0.1:0", "--backend", "subprocess"];
    Cli::parse_from(own.iter().chain(more)).serve
}

/// A server in this process.
pub struct TestServer {
    pub url: String,
    pub key: Option<&'static str>,
    client: reqwest::Client,
    end: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Starts a server without keys.
    pub async fn start(more: &[&str]) -> Self {
        Self::with(args(more), Secrets::default()).await
    }

    /// Starts a server with Ann's and Bob's keys. Requests use Ann's.
    pub async fn with_keys(more: &[&str]) -> Self {
        let secrets = Secrets {
            keys: Some(format!("ann {ANN}\nbob {BOB}")),
            ..Secrets::default()
        };
        let mut server = Self::with(args(more), secrets).await;
        server.key = Some(ANN);
        server
    }

    pub async fn with(args: ServeArgs, secrets: Secrets) -> Self {
        let server = Server::bind(args, secrets).await.unwrap();
        let address = server.address().unwrap();
        let (end, ended) = oneshot::channel();
        let running = tokio::spawn(server.run(async {
            let _ = ended.await;
        }));
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            url: format!("http://{address}"),
            key: None,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            end: Some(end),
            running: Some(running),
        }
    }

    /// Ends the server, and waits for its end.
    pub async fn stop(mut self) {
        self.tell_to_end();
        self.ended().await;
    }

    pub fn tell_to_end(&mut self) {
        let _ = self.end.take().unwrap().send(());
    }

    pub async fn ended(&mut self) {
        let running = self.running.take().unwrap();
        tokio::time::timeout(LONG, running)
            .await
            .expect("the server does not end")
            .unwrap();
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url)).timeout(LONG);
        match self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    pub fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, path).json(body)
    }

    /// A new session's id.
    pub async fn session(&self, options: Value) -> String {
        let (status, body) = answer(self.post("/v1/sessions", &options)).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// The response of an execution.
    pub async fn execute(&self, id: &str, code: &str) -> Value {
        let (status, body) = answer(self.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": code }))).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// The pid of a session's guest.
    pub async fn pid(&self, id: &str) -> i64 {
        let run = self.execute(id, "import os; os.getpid()").await;
        run["result"].as_str().unwrap().parse().unwrap()
    }
}

/// The status and the JSON of a response.
pub async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    (status, body)
}

/// The status and the error code of a request that must be refused.
pub async fn refusal(request: RequestBuilder) -> (u16, String) {
    let (status, body) = answer(request).await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{status}: {body}");
    (status.as_u16(), body["error"]["code"].as_str().unwrap().to_owned())
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut happened: impl FnMut() -> F) {
    let began = Instant::now();
    while !happened().await {
        assert!(began.elapsed() < LONG, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a process is gone.
pub async fn gone(pid: i64) {
    let path = format!("/proc/{pid}");
    eventually("the guest is gone", || async { !Path::new(&path).exists() }).await;
}

/// A client's end of a channel.
pub type Channel = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl TestServer {
    /// Waits until a session that the server ends is gone, which its guest is a moment earlier. Returns the error's code.
    pub async fn forgets(&self, id: &str) -> String {
        let path = format!("/v1/sessions/{id}");
        eventually("the session is gone", || async {
            answer(self.get(&path)).await.0 == StatusCode::NOT_FOUND
        })
        .await;
        refusal(self.get(&path)).await.1
    }

    /// The listening address.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Opens a session's channel.
    pub async fn channel(&self, id: &str) -> Result<Channel, tungstenite::Error> {
        self.web_socket(&format!("/v1/sessions/{id}/channel"), sandglass_host::SUBPROTOCOL)
            .await
    }

    /// Opens a WebSocket.
    pub async fn web_socket(&self, path: &str, subprotocol: &str) -> Result<Channel, tungstenite::Error> {
        let url = format!("ws://{}{path}", self.address());
        let mut request = url.into_client_request()?;
        let mut set = |name: &'static str, value: &str| request.headers_mut().insert(name, value.parse().unwrap());
        set("sec-websocket-protocol", subprotocol);
        if let Some(key) = self.key {
            set("authorization", &format!("Bearer {key}"));
        }
        Ok(connect_async(request).await?.0)
    }
}
