//! The wire from a client's side, with sandboxes in plain processes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use proptest::prelude::*;
use sandglass_core::Limits;
use sandglass_host::kept::{KeptFacts, Replay, ReplayOptions, ResumeOptions};
use sandglass_host::notebook::Notebook;
use sandglass_host::sandbox::{ExecuteOptions, Execution, SandboxBuilder};
use sandglass_host::workspace::Workspace;
use sandglass_host::{BackendKind, Resources, Sandbox};
use sandglass_rpc::options::{Bounds, Options};
use sandglass_rpc::stdio::{headers, read_message};
use sandglass_rpc::{Cells, Connection, Held, Home, Keeper, Made, Message, Outbox, RpcError};
use serde_json::{Value as Json, json};
use tokio::io::BufReader;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The time after which a test gives up, long enough for a busy machine.
const LONG: Duration = Duration::from_secs(90);

struct Plain {
    bounds: Bounds,
    last: AtomicU64,
    /// The permits to run code, where code has to wait for its folder.
    room: Option<Arc<Semaphore>>,
}

struct Kept(Sandbox, Option<Arc<Semaphore>>);

fn keep(sandbox: Sandbox) -> Box<dyn Keeper> {
    Box::new(Kept(sandbox, None))
}

impl Keeper for Kept {
    fn room(&self) -> BoxFuture<'_, Result<(), RpcError>> {
        async {
            if let Some(room) = &self.1 {
                room.acquire().await.unwrap().forget();
            }
            Ok(())
        }
        .boxed()
    }

    fn execute(&self, code: String, options: ExecuteOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        async move { Ok(self.0.execute_with(code, options).await?) }.boxed()
    }

    fn resume(&self, _: ResumeOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        async { Err(RpcError::MethodNotFound("this home keeps no sandbox".to_owned())) }.boxed()
    }

    fn replay(&self, _: u32, _: ReplayOptions) -> BoxFuture<'_, Result<Replay, RpcError>> {
        async { Err(RpcError::MethodNotFound("this home keeps no sandbox".to_owned())) }.boxed()
    }

    fn admit(&self, _: Option<f64>) -> Result<Held, RpcError> {
        Ok(Box::new(()))
    }

    fn room_for(&self, _: usize) -> BoxFuture<'_, Result<(), RpcError>> {
        async { Ok(()) }.boxed()
    }

    fn destroy(&self) -> BoxFuture<'_, ()> {
        self.0.destroy().boxed()
    }
}

impl Home for Plain {
    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    fn hold(&self, _: usize) -> Result<Held, RpcError> {
        Ok(Box::new(()))
    }

    fn make(
        &self,
        options: Options,
        client: Box<dyn FnOnce(SandboxBuilder) -> SandboxBuilder + Send>,
    ) -> BoxFuture<'_, Result<Made, RpcError>> {
        async move {
            let builder = Sandbox::builder()
                .backend(options.backend)
                .limits(options.limits)
                .output_fields(options.output_fields)
                .profile(options.profile)
                .without_context();
            let builder = client(builder);
            let (sandbox, cells) = match options.local.workspace {
                Some(folder) if options.local.notebook => {
                    let mut notebook = Notebook::new(Workspace::open(&folder).unwrap(), builder)?;
                    (notebook.sandbox().await?, Some(Cells::new(notebook, keep)))
                }
                _ => (builder.build().await?, None),
            };
            Ok(Made {
                id: format!("s{}", self.last.fetch_add(1, Ordering::Relaxed)),
                keeper: Box::new(Kept(sandbox.clone(), self.room.clone())),
                sandbox: sandbox.into(),
                cells,
            })
        }
        .boxed()
    }

    fn list_persisted(&self, _: Option<String>) -> BoxFuture<'_, Result<Vec<KeptFacts>, RpcError>> {
        async { Err(RpcError::MethodNotFound("this home keeps no sandbox".to_owned())) }.boxed()
    }

    fn delete_persisted(&self, _: String) -> BoxFuture<'_, Result<(), RpcError>> {
        async { Err(RpcError::MethodNotFound("this home keeps no sandbox".to_owned())) }.boxed()
    }
}

fn home() -> Plain {
    Plain {
        bounds: Bounds {
            backend: BackendKind::Subprocess,
            allow_subprocess: true,
            max_timeout_ms: f64::INFINITY,
            boot_timeout_ms: Limits::default().boot_timeout_ms,
            max_memory_bytes: f64::INFINITY,
            resources: Resources::default(),
            max_blob_bytes: 8 << 20,
            max_approval: None,
            max_state_bytes: 1 << 20,
            is_local: false,
        },
        last: AtomicU64::new(0),
        room: None,
    }
}

/// A client of a connection.
struct Client {
    to: mpsc::UnboundedSender<Result<Message, String>>,
    outbox: Arc<Outbox>,
    read: Vec<Message>,
    serving: JoinHandle<Result<(), String>>,
    last: i64,
    last_blob: u32,
}

impl Client {
    fn silent() -> Self {
        Self::of(home())
    }

    fn of(home: Plain) -> Self {
        let connection = Connection::new(Arc::new(home));
        let outbox = connection.outbox();
        let (to, from) = mpsc::unbounded_channel();
        let incoming = stream::unfold(from, async |mut from| Some((from.recv().await?, from)));
        let serving = tokio::spawn(async move { connection.serve(pin!(incoming)).await });
        Self {
            to,
            outbox,
            read: Vec::new(),
            serving,
            last: 0,
            last_blob: 0,
        }
    }

    async fn greeted() -> Self {
        Self::greeted_by(home()).await
    }

    async fn greeted_by(home: Plain) -> Self {
        let mut client = Self::of(home);
        let welcome = client.ask("hello", json!({ "version": 1 })).await.unwrap();
        assert_eq!(welcome["version"], 1);
        client
    }

    fn send_text(&self, text: impl Into<Bytes>) {
        self.to.send(Ok(Message::Json(text.into()))).unwrap();
    }

    fn send(&self, message: &Json) {
        self.send_text(message.to_string());
    }

    fn blob(&mut self, pieces: &[&[u8]]) -> u32 {
        self.last_blob += 1;
        for (at, piece) in pieces.iter().enumerate() {
            let mut message = self.last_blob.to_le_bytes().to_vec();
            message.push(u8::from(at + 1 == pieces.len()));
            message.extend_from_slice(piece);
            self.to.send(Ok(Message::Binary(message.into()))).unwrap();
        }
        self.last_blob
    }

    fn request(&mut self, method: &str, params: Json) -> i64 {
        self.last += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params }));
        self.last
    }

    /// The next message of the server.
    async fn next(&mut self) -> Message {
        if self.read.is_empty() {
            self.read = timeout(LONG, self.outbox.next()).await.unwrap();
            self.read.iter().for_each(|message| self.outbox.sent(message));
            self.read.reverse();
        }
        self.read.pop().unwrap()
    }

    async fn next_json(&mut self) -> Json {
        loop {
            let message = self.next_of_all().await;
            if message["method"] != "started" {
                return message;
            }
        }
    }

    /// The next message of the server, also if it tells that a guest has started.
    async fn next_of_all(&mut self) -> Json {
        match self.next().await {
            Message::Json(json) => serde_json::from_slice(&json).unwrap(),
            Message::Binary(_) => panic!("a blob comes, not JSON"),
        }
    }

    /// The answer to a request. Host calls meanwhile are answered with their arguments.
    async fn answer(&mut self, id: i64) -> Result<Json, Json> {
        loop {
            let message = self.next_json().await;
            if message["method"] == "call" {
                let params = &message["params"];
                let value = json!([params["args"], params["kwargs"], params["line"]["number"]]);
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "value": value } }));
            } else if message["id"] == id {
                return match message.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(message["result"].clone()),
                };
            }
        }
    }

    async fn ask(&mut self, method: &str, params: Json) -> Result<Json, Json> {
        let id = self.request(method, params);
        self.answer(id).await
    }

    async fn create(&mut self, options: Json) -> String {
        let made = self.ask("create", options).await.unwrap();
        made["sandbox"].as_str().unwrap().to_owned()
    }

    async fn execute(&mut self, sandbox: &str, code: &str) -> Json {
        self.ask("execute", json!({ "sandbox": sandbox, "code": code }))
            .await
            .unwrap()
    }

    /// Ends the connection. Returns its outcome.
    async fn leave(self) -> Result<(), String> {
        drop(self.to);
        timeout(LONG, self.serving).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn values_calls_and_settings_cross() {
    let mut client = Client::greeted().await;
    let sandbox = client
        .create(json!({ "hostFunctions": ["f"], "context": [1, 2] }))
        .await;
    let run = client
        .execute(&sandbox, "x = f(1, {'a': 2})\ny = f(a=2)\nx, y, context")
        .await;
    assert_eq!(
        run["value"],
        json!([[[1, { "a": 2 }], {}, 1], [[], { "a": 2 }, 2], [1, 2]])
    );
    assert_eq!((&run["hostCalls"], &run["outcome"]), (&json!(2), &json!("ok")));
    // The functions change, and so do the fields of the answer.
    let change = json!({ "sandbox": sandbox, "hostFunctions": ["g"], "outputFields": ["n"] });
    client.ask("configure", change).await.unwrap();
    let run = client.execute(&sandbox, "g(3)\nSUBMIT(n=g(4))").await;
    assert_eq!(run["final"]["value"]["n"][0], json!([4]));
    let run = client.execute(&sandbox, "f").await;
    assert_eq!(run["errorType"], "NameError");
    let change = json!({ "sandbox": sandbox, "hostFunctions": ["print me"] });
    assert_eq!(
        client.ask("configure", change).await.unwrap_err()["data"]["code"],
        "invalid_option"
    );
    let run = client.execute(&sandbox, "g(1)[0]").await;
    assert_eq!(run["value"], json!([1]), "a refused change changes nothing");
    client
        .ask(
            "setVariable",
            json!({ "sandbox": sandbox, "name": "s", "value": { "$set": [[1, 2]] } }),
        )
        .await
        .unwrap();
    let got = client
        .ask("getVariable", json!({ "sandbox": sandbox, "name": "s" }))
        .await
        .unwrap();
    assert_eq!(got, json!({ "found": true, "value": { "$set": [[1, 2]] } }));
    let got = client
        .ask("getVariable", json!({ "sandbox": sandbox, "name": "t" }))
        .await
        .unwrap();
    assert_eq!(got, json!({ "found": false }));
    client.ask("destroy", json!({ "sandbox": sandbox })).await.unwrap();
    let gone = client.ask("start", json!({ "sandbox": sandbox })).await.unwrap_err();
    assert_eq!(gone["data"]["code"], "no_sandbox");
    client.leave().await.unwrap();
}

#[tokio::test]
async fn large_values_travel_as_blobs() {
    let mut client = Client::greeted().await;
    let sandbox = client.create(json!({ "hostFunctions": ["f"] })).await;
    let id = client.blob(&[b"caf\xc3", b"\xa9", b""]);
    let context = json!({ "$blob": { "id": id, "type": "str" } });
    let initialize = json!({ "sandbox": sandbox, "context": context });
    client.ask("initialize", initialize.clone()).await.unwrap();
    assert_eq!(client.execute(&sandbox, "context").await["value"], "café");
    let again = client.ask("initialize", initialize).await.unwrap_err();
    assert!(again["message"].as_str().unwrap().contains("named before"), "{again}");
    let id = client.blob(&[b"\xff\xfe"]);
    let value = json!({ "$blob": { "id": id, "type": "file" } });
    client
        .ask(
            "setVariable",
            json!({ "sandbox": sandbox, "name": "x", "value": value }),
        )
        .await
        .unwrap();
    assert_eq!(client.execute(&sandbox, "x == b'\\xff\\xfe'").await["value"], true);
    // A large value comes back as a blob, before the message that names it.
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": "'y' * 100_000" }));
    let Message::Binary(piece) = client.next().await else {
        panic!("no blob")
    };
    assert_eq!((piece.len(), piece[4], piece[5]), (100_005, 1, b'y'));
    let run = client.answer(asked).await.unwrap();
    assert_eq!(run["value"]["$blob"]["type"], "str");
    // So do large arguments.
    client.request(
        "execute",
        json!({ "sandbox": sandbox, "code": "f('z' * 100_000, k=1)" }),
    );
    let Message::Binary(piece) = client.next().await else {
        panic!("no blob")
    };
    let arguments: Json = serde_json::from_slice(&piece[5..]).unwrap();
    assert_eq!(arguments["kwargs"], json!({ "k": 1 }));
    let call = client.next_json().await;
    assert_eq!(call["params"]["arguments"]["$blob"]["type"], "json");
    client.leave().await.unwrap();
}

#[tokio::test]
async fn requests_begin_in_their_order_and_can_be_cancelled() {
    let mut client = Client::greeted().await;
    let sandbox = client.create(json!({})).await;
    client.execute(&sandbox, "n = 0").await;
    let execute = |code: &str| json!({ "sandbox": sandbox, "code": code });
    let asked: Vec<_> = (0..20)
        .map(|n| client.request("execute", execute(&format!("assert n == {n}\nn += 1"))))
        .collect();
    for id in asked {
        assert_eq!(client.answer(id).await.unwrap()["outcome"], "ok");
    }
    let endless = client.request(
        "execute",
        json!({ "sandbox": sandbox, "code": "print('begun', flush=True)\nwhile True: pass", "stream": true }),
    );
    let waits = client.request("execute", execute("n = -1"));
    assert_eq!(client.next_json().await["params"]["text"], "begun\n");
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": waits } }));
    let run = client.answer(waits).await.unwrap();
    let error = run["error"].as_str().unwrap();
    assert!(
        run["outcome"] == "interrupted" && error.contains("nothing was run"),
        "{run}"
    );
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": endless } }));
    let run = client.answer(endless).await.unwrap();
    assert_eq!(
        (&run["outcome"], &run["state"]["status"]),
        (&json!("interrupted"), &json!("kept"))
    );
    assert_eq!(client.execute(&sandbox, "n").await["value"], 20);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_cancelled() {
    let mut client = Client::greeted().await;
    let sandbox = client.create(json!({ "hostFunctions": ["slow"] })).await;
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": "slow()" }));
    let call = client.next_json().await;
    assert_eq!(
        (&call["method"], &call["params"]["request"]),
        (&json!("call"), &json!(asked))
    );
    client
        .ask("interrupt", json!({ "sandbox": sandbox }))
        .await
        .unwrap_or_default();
    let mut methods = Vec::new();
    while methods.len() < 2 {
        let message = client.next_json().await;
        if message["method"] == "cancel" {
            assert_eq!(message["params"]["id"], call["id"]);
            methods.push("cancel");
        } else if message["id"] == asked {
            assert_eq!(message["result"]["outcome"], "interrupted");
            methods.push("execute");
        }
    }
    // A late answer does no harm.
    client.send(&json!({ "jsonrpc": "2.0", "id": call["id"], "result": { "value": 1 } }));
    assert_eq!(client.execute(&sandbox, "1").await["value"], 1);
    client.leave().await.unwrap();
}

/// Waits until as many bytes wait to be sent as is right.
async fn waiting(outbox: &Outbox, is_right: impl Fn(usize) -> bool) {
    let looking = async {
        while !is_right(outbox.bytes()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, looking).await.unwrap();
}

#[tokio::test]
async fn what_waits_of_a_call_that_nobody_awaits_is_not_sent() {
    let mut client = Client::greeted().await;
    let sandbox = client.create(json!({ "hostFunctions": ["f"] })).await;
    let call = json!({ "sandbox": sandbox, "code": "f('x' * 5_000_000)" });
    for is_begun in [false, true] {
        let asked = client.request("execute", call.clone());
        waiting(&client.outbox, |bytes| bytes > 5_000_000).await;
        let mut blob = None;
        if is_begun {
            let Message::Binary(piece) = client.next().await else {
                panic!("no blob")
            };
            blob = Some(u32::from_le_bytes(piece[..4].try_into().unwrap()));
        }
        client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": asked } }));
        waiting(&client.outbox, |bytes| (1..5_000).contains(&bytes)).await;
        if is_begun {
            let dropped = client.next_json().await;
            assert_eq!(dropped["method"], "drop");
            assert_eq!(dropped["params"]["blob"], json!(blob));
        }
        let run = client.next_json().await;
        assert_eq!(
            (&run["id"], &run["result"]["outcome"]),
            (&json!(asked), &json!("interrupted"))
        );
        assert_eq!(client.outbox.bytes(), 0);
    }
    assert_eq!(client.execute(&sandbox, "1").await["value"], 1);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn a_guest_that_has_started_is_told_before_what_waited_for_it() {
    let mut client = Client::greeted().await;
    let made = client.ask("create", json!({})).await.unwrap();
    let before = json!({ "backend": "subprocess", "softInterrupt": true, "python": null, "checkpoints": 0 });
    assert_eq!(made["capabilities"], before);
    let asked = client.request("start", json!({ "sandbox": made["sandbox"] }));
    let told = client.next_of_all().await;
    assert_eq!(
        (&told["method"], &told["params"]["sandbox"]),
        (&json!("started"), &made["sandbox"])
    );
    let python = told["params"]["capabilities"]["python"].as_str().unwrap().to_owned();
    assert!(python.starts_with("3."), "{python}");
    assert_eq!(client.next_of_all().await["id"], asked);
    client.leave().await.unwrap();
}

/// Two calls have the same time. The one for which a person is asked outlives the other.
#[tokio::test]
async fn the_time_of_an_approval_is_none_of_the_call() {
    let mut client = Client::greeted().await;
    let options = json!({ "hostFunctions": ["f"], "hostCallTimeout": 2_000 });
    let (first, second) = (client.create(options.clone()).await, client.create(options).await);
    let approval = |call: &Json, pending: bool| json!({ "jsonrpc": "2.0", "method": "approval", "params": { "id": call["id"], "pending": pending } });
    let asked = client.request("execute", json!({ "sandbox": first, "code": "x = 1\nf(x)" }));
    let call = client.next_json().await;
    let line = json!({ "execution": 1, "number": 2, "text": "f(x)" });
    assert_eq!(call["params"]["line"], line);
    client.send(&approval(&call, true));
    let other = client.request("execute", json!({ "sandbox": second, "code": "f()" }));
    assert_eq!(client.next_json().await["method"], "call");
    assert_eq!(client.next_json().await["method"], "cancel");
    let late = client.answer(other).await.unwrap();
    assert!(late["error"].as_str().unwrap().contains("hostCallTimeout"), "{late}");
    client.send(&approval(&call, true)); // once more does no harm
    client.send(&json!({ "jsonrpc": "2.0", "id": call["id"], "result": { "value": 7 } }));
    assert_eq!(client.answer(asked).await.unwrap()["value"], 7);
    // After the approval, the time counts.
    let asked = client.request("execute", json!({ "sandbox": first, "code": "f(2)" }));
    let call = client.next_json().await;
    client.send(&approval(&call, true));
    client.send(&approval(&call, false));
    client.send(&approval(&json!({ "id": 999 }), true));
    let late = client.answer(asked).await.unwrap();
    assert!(late["error"].as_str().unwrap().contains("hostCallTimeout"), "{late}");
    client.leave().await.unwrap();
}

/// A client that never answers cannot keep a guest for ever.
#[tokio::test]
async fn a_server_bounds_the_time_of_an_approval() {
    let mut home = home();
    home.bounds.max_approval = Some(Duration::from_millis(50));
    let mut client = Client::greeted_by(home).await;
    let sandbox = client
        .create(json!({ "hostFunctions": ["f"], "hostCallTimeout": 100 }))
        .await;
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": "f()" }));
    let call = client.next_json().await;
    let pending = json!({ "jsonrpc": "2.0", "method": "approval", "params": { "id": call["id"], "pending": true } });
    client.send(&pending);
    assert_eq!(client.next_json().await["method"], "cancel");
    client.send(&pending); // too late, and without effect
    let late = client.answer(asked).await.unwrap();
    assert!(late["error"].as_str().unwrap().contains("hostCallTimeout"), "{late}");
    client.leave().await.unwrap();
}

/// A server measures a sandbox's folder before code runs there.
#[tokio::test]
async fn code_that_waits_for_its_folder_is_not_overtaken() {
    let room = Arc::new(Semaphore::new(1));
    let home = Plain {
        room: Some(Arc::clone(&room)),
        ..home()
    };
    let mut client = Client::greeted_by(home).await;
    let (sandbox, other) = (client.create(json!({})).await, client.create(json!({})).await);
    client.execute(&sandbox, "x = 1").await;
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": "x" }));
    let set = client.request("setVariable", json!({ "sandbox": sandbox, "name": "x", "value": 2 }));
    let cancelled = client.request("execute", json!({ "sandbox": sandbox, "code": "x = 3" }));
    let get = client.request("getVariable", json!({ "sandbox": sandbox, "name": "x" }));
    // Other sandboxes do not wait.
    let y = json!({ "sandbox": other, "name": "y", "value": 2 });
    client.ask("setVariable", y).await.unwrap();
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": cancelled } }));
    room.add_permits(2);
    let mut answers = HashMap::new();
    while answers.len() < 4 {
        let message = client.next_json().await;
        answers.insert(message["id"].as_i64().unwrap(), message["result"].clone());
    }
    assert_eq!(answers[&asked]["value"], 1);
    assert_eq!(answers[&set], json!({}));
    assert_eq!(answers[&cancelled]["outcome"], "interrupted");
    assert_eq!(answers[&get]["value"], 2);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn notebooks_have_cells_with_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut home = home();
    home.bounds.is_local = true;
    let mut client = Client::greeted_by(home).await;
    let options = json!({ "notebook": true, "workspace": folder.path(), "hostFunctions": ["f"] });
    let sandbox = client.create(options).await;
    let of = |fields: Json| {
        let mut all = json!({ "sandbox": sandbox });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let ran = client
        .ask("notebook.run", of(json!({ "code": "x = f(1)[0]\nx" })))
        .await
        .unwrap();
    assert_eq!(
        (&ran["cell"]["id"], &ran["cell"]["runs"], &ran["cell"]["missing"]),
        (&json!("cell_1"), &json!(1), &json!([]))
    );
    assert_eq!(ran["execution"]["value"], json!([1]));
    let named = json!({ "cell": "more", "code": "x.append(2)\nprint('hi')\n1 / 0", "stream": true });
    let asked = client.request("notebook.run", of(named));
    let output = client.next_json().await;
    assert_eq!(
        (&output["method"], &output["params"]["request"]),
        (&json!("output"), &json!(asked))
    );
    let ran = client.answer(asked).await.unwrap();
    assert_eq!(
        (&ran["cell"]["outcome"], &ran["execution"]["outcome"]),
        (&json!("error"), &json!("error"))
    );
    let again = client.ask("notebook.run", of(json!({ "cell": "more" }))).await.unwrap();
    assert_eq!(
        (&again["cell"]["runs"], &again["cell"]["code"]),
        (&json!(2), &ran["cell"]["code"])
    );
    assert_eq!(client.execute(&sandbox, "x").await["value"], json!([1, 2, 2]));
    let cells = client.ask("notebook.cells", of(json!({}))).await.unwrap();
    let ids: Vec<_> = cells["cells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["id"].clone())
        .collect();
    assert_eq!(ids, ["cell_1", "more"]);
    for file in ["input", "output"] {
        let read = client
            .ask("notebook.file", of(json!({ "cell": "more", "file": file })))
            .await
            .unwrap();
        let there = std::fs::read(folder.path().join(format!(".repl/more_{file}.pkl"))).unwrap();
        assert_eq!(
            read["value"]["$bytes"].as_str().map(str::len),
            Some(there.len().div_ceil(3) * 4)
        );
    }
    // A run can be cancelled, and later commands wait for it.
    let endless = client.request(
        "notebook.run",
        of(json!({ "code": "print(1, flush=True)\nwhile True: pass", "stream": true })),
    );
    assert_eq!(client.next_json().await["method"], "output");
    let get = client.request("getVariable", of(json!({ "name": "x" })));
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": endless } }));
    assert_eq!(client.answer(endless).await.unwrap()["cell"]["outcome"], "interrupted");
    assert_eq!(client.answer(get).await.unwrap()["found"], true);
    for (method, params, code) in [
        ("notebook.run", json!({ "cell": "../x", "code": "1" }), "invalid_option"),
        ("notebook.run", json!({ "cell": "none" }), "invalid_option"),
        ("notebook.run", json!({}), "invalid_option"),
        (
            "notebook.file",
            json!({ "cell": "none", "file": "input" }),
            "file_not_found",
        ),
        (
            "notebook.file",
            json!({ "cell": "../../x", "file": "input" }),
            "invalid_option",
        ),
        ("notebook.delete", json!({ "cell": "none" }), "invalid_option"),
    ] {
        let error = client.ask(method, of(params)).await.unwrap_err();
        assert_eq!(error["data"]["code"], code, "{method}: {error}");
    }
    client
        .ask("notebook.delete", of(json!({ "cell": "cell_1" })))
        .await
        .unwrap();
    let gone = client
        .ask("notebook.file", of(json!({ "cell": "cell_1", "file": "input" })))
        .await
        .unwrap_err();
    assert_eq!(gone["data"]["code"], "file_not_found");
    // Everything but the other files is gone, and the sandbox has its id and functions. Requests keep their order.
    std::fs::write(folder.path().join("kept.txt"), "kept").unwrap();
    let clear = client.request("notebook.clear", of(json!({})));
    let run = client.request(
        "notebook.run",
        of(json!({ "code": "'x' in globals(), open('kept.txt').read(), f(2)[0]" })),
    );
    client.answer(clear).await.unwrap();
    let ran = client.answer(run).await.unwrap();
    assert_eq!(ran["cell"]["id"], "cell_1");
    assert_eq!(ran["execution"]["value"], json!([false, "kept", [2]]));
    assert_eq!(std::fs::read_dir(folder.path().join(".repl")).unwrap().count(), 2);
    client.ask("destroy", of(json!({}))).await.unwrap();
    assert!(Workspace::open(folder.path()).is_ok(), "others may use the folder");
    let plain = client.create(json!({})).await;
    let error = client
        .ask("notebook.clear", json!({ "sandbox": plain }))
        .await
        .unwrap_err();
    assert_eq!(error["data"]["code"], "invalid_option");
    client.leave().await.unwrap();
}

#[tokio::test]
async fn a_notebook_whose_clearing_is_cancelled_has_one_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let mut home = home();
    home.bounds.is_local = true;
    let mut client = Client::greeted_by(home).await;
    let options = json!({ "notebook": true, "workspace": folder.path() });
    let sandbox = client.create(options).await;
    let run = |code: &str| json!({ "sandbox": sandbox, "code": code });
    client.ask("notebook.run", run("x = 1")).await.unwrap();
    let clear = client.request("notebook.clear", json!({ "sandbox": sandbox }));
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": clear } }));
    assert_eq!(client.answer(clear).await.unwrap_err()["data"]["code"], "cancelled");
    let ran = client.ask("notebook.run", run("y = 'x' in globals()")).await.unwrap();
    assert_eq!(ran["cell"]["id"], "cell_1");
    assert_eq!(client.execute(&sandbox, "y").await["value"], false);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn wrong_messages_are_refused_and_the_connection_goes_on() {
    let mut client = Client::silent();
    let early = client.ask("create", json!({})).await.unwrap_err();
    assert_eq!(early["data"]["code"], "hello_first");
    let other = client.ask("hello", json!({ "version": 2 })).await.unwrap_err();
    assert_eq!(other["data"]["code"], "hello_first");
    client.ask("hello", json!({ "version": 1 })).await.unwrap();
    for (text, code) in [
        ("{", "parse_error"),
        ("[]", "invalid_request"),
        (
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}]",
            "invalid_request",
        ),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"stats\"}", "invalid_request"),
        ("{\"jsonrpc\":\"2.0\"}", "invalid_request"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"stats\"}",
            "invalid_request",
        ),
    ] {
        client.send_text(text);
        let answer = client.next_json().await;
        assert_eq!(answer["error"]["data"]["code"], code, "{text}: {answer}");
    }
    for (method, params, code) in [
        ("nothing", json!({}), "method_not_found"),
        ("create", json!({ "bad": 1 }), "invalid_option"),
        ("create", json!({ "python": "/bin/sh" }), "invalid_option"),
        ("create", json!({ "onLLMQuery": "yes" }), "invalid_option"),
        ("execute", json!({ "code": "1" }), "invalid_option"),
        ("execute", json!({ "sandbox": "s9", "code": "1" }), "no_sandbox"),
    ] {
        let error = client.ask(method, params).await.unwrap_err();
        assert_eq!(error["data"]["code"], code, "{method}: {error}");
    }
    assert!(client.ask("rpc.discover", json!({})).await.unwrap()["methods"].is_array());
    client.leave().await.unwrap();
}

/// Faults of a review: what a message names ends with it, and no request touches another.
#[tokio::test]
async fn refused_and_late_messages_leave_no_blobs() {
    let mut client = Client::greeted().await;
    let options = json!({ "hostFunctions": ["f"], "hostCallTimeout": 5 });
    let sandbox = client.create(options).await;
    for _ in 0..1_010 {
        let id = client.blob(&[b"x"]);
        let value = json!({ "$blob": { "id": id, "type": "str" } });
        client.request(
            "setVariable",
            json!({ "sandbox": "nobody", "name": "x", "value": value }),
        );
    }
    let code = "for _ in range(3):\n    try: f()\n    except HostCallError: pass";
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": code }));
    let mut late = Vec::new();
    let run = loop {
        let message = client.next_json().await;
        if message["method"] == "call" {
            late.push(message["id"].clone());
        } else if message["id"] == asked {
            break message;
        }
    };
    assert_eq!(run["result"]["outcome"], "ok", "{run}");
    for _ in 0..400 {
        for call in &late {
            let id = client.blob(&[b"late"]);
            let value = json!({ "$blob": { "id": id, "type": "bytes" } });
            client.send(&json!({ "jsonrpc": "2.0", "id": call, "result": { "value": value } }));
        }
    }
    assert_eq!(client.execute(&sandbox, "1").await["value"], 1);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn requests_do_not_touch_each_other() {
    let mut client = Client::greeted().await;
    let sandbox = client
        .create(json!({ "hostFunctions": ["f"], "outputFields": ["a"] }))
        .await;
    // A cancelled execution that has not begun leaves what runs alone.
    client
        .execute(
            &sandbox,
            "class Slow:\n    def __repr__(self):\n        sum(range(5_000_000))\n        return 'slow'\nslow = Slow()",
        )
        .await;
    let slow = client.request("getVariable", json!({ "sandbox": sandbox, "name": "slow" }));
    let waits = client.request("execute", json!({ "sandbox": sandbox, "code": "z = 5" }));
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": waits } }));
    let mut answers = std::collections::HashMap::new();
    while answers.len() < 2 {
        let message = client.next_json().await;
        answers.insert(message["id"].as_i64().unwrap(), message);
    }
    assert_eq!(answers[&waits]["result"]["outcome"], "interrupted", "{answers:?}");
    assert_eq!(
        answers[&slow]["result"]["value"]["$other"]["repr"], "slow",
        "{answers:?}"
    );
    // Two changes of settings at once add up.
    let first = client.request("configure", json!({ "sandbox": sandbox, "hostFunctions": ["g"] }));
    let second = client.request("configure", json!({ "sandbox": sandbox, "outputFields": ["b"] }));
    client.answer(first).await.unwrap();
    client.answer(second).await.unwrap();
    assert_eq!(
        client.execute(&sandbox, "SUBMIT(b=g(1)[0])").await["final"]["value"],
        json!({ "b": [1] })
    );
    let query = json!({ "sandbox": sandbox, "hostFunctions": ["llm_query"] });
    assert_eq!(
        client.ask("configure", query).await.unwrap_err()["data"]["code"],
        "invalid_option"
    );
    // A str that speaks of blobs is a str.
    let value = json!({ "sandbox": sandbox, "name": "s", "value": "what is $blob?" });
    client.ask("setVariable", value).await.unwrap();
    assert_eq!(client.execute(&sandbox, "s").await["value"], "what is $blob?");
    client.leave().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_create_leaves_no_sandbox_and_usage_is_counted() {
    let mut client = Client::greeted().await;
    let asked = client.request("create", json!({ "context": "c" }));
    client.send(&json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": asked } }));
    if client.answer(asked).await.is_err() {
        let gone = client
            .ask("listVariables", json!({ "sandbox": "s0" }))
            .await
            .unwrap_err();
        assert_eq!(gone["data"]["code"], "no_sandbox");
    }
    let sandbox = client.create(json!({ "hostFunctions": ["f"] })).await;
    let asked = client.request("execute", json!({ "sandbox": sandbox, "code": "f()" }));
    let call = client.next_json().await;
    let result = json!({ "value": 1, "usage": { "cost": 5.0 } });
    client.send(&json!({ "jsonrpc": "2.0", "id": call["id"], "result": result }));
    assert_eq!(client.answer(asked).await.unwrap()["usage"]["cost"], 5.0);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn blobs_are_bounded() {
    let mut client = Client::greeted().await;
    let sandbox = client.create(json!({})).await;
    let piece = vec![0; 1 << 20];
    let write =
        |blob: u32| json!({ "sandbox": sandbox, "path": "f", "value": { "$blob": { "id": blob, "type": "bytes" } } });
    // The larger part of the bytes is dropped, and later pieces are not kept.
    let too_large = client.blob(&[&*piece; 12]);
    let fits = client.blob(&[&*piece; 8]);
    let one_more = client.blob(&[&piece]);
    for blob in [too_large, one_more] {
        let error = client.ask("writeFile", write(blob)).await.unwrap_err();
        assert_eq!(error["data"]["code"], "too_much", "{error}");
    }
    client.ask("writeFile", write(fits)).await.unwrap();
    assert_eq!(
        client.execute(&sandbox, "len(open('f', 'rb').read())").await["value"],
        8 << 20
    );
    for _ in 0..20 {
        let blob = client.blob(&[&piece]);
        client.send(&json!({ "jsonrpc": "2.0", "method": "drop", "params": { "blob": blob } }));
    }
    client.leave().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes are messages or a named error, and what is written is read again.
    #[test]
    fn frames_are_read_as_they_were_written(
        bodies in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..200)), 0..8),
        junk in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let messages: Vec<_> = bodies.into_iter().map(|(is_binary, body)| match is_binary {
            true => Message::Binary(body.into()),
            false => Message::Json(body.into()),
        }).collect();
        let mut bytes = Vec::new();
        for message in &messages {
            let (Message::Json(body) | Message::Binary(body)) = message;
            bytes.extend_from_slice(headers(message).as_bytes());
            bytes.extend_from_slice(body);
        }
        bytes.extend_from_slice(&junk);
        runtime.block_on(async {
            let mut reader = BufReader::new(&bytes[..]);
            for message in &messages {
                assert_eq!(read_message(&mut reader).await.unwrap().as_ref(), Some(message));
            }
            while let Ok(Some(_)) = read_message(&mut reader).await {}
        });
    }

    /// No message of a client makes the connection panic or hang.
    #[test]
    fn any_messages_are_answered_or_end_the_connection(
        sent in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Message::Binary(bytes.into())),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Message::Json(bytes.into())),
            ("(hello|create|execute|stats|cancel|drop|rpc.discover|x)", prop_oneof![
                Just(json!({})), Just(json!({ "version": 1 })), Just(json!({ "sandbox": "s0", "code": "1" })),
                Just(json!({ "id": 1 })), Just(json!({ "blob": 1 })), Just(json!([1])), Just(json!("x")),
            ], prop::option::of(0..5_i64)).prop_map(|(method, params, id)| {
                let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
                if let Some(id) = id { message["id"] = json!(id); }
                Message::Json(message.to_string().into())
            }),
        ], 0..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let incoming = stream::iter(sent.into_iter().map(Ok::<_, String>)).chain(stream::empty());
            timeout(LONG, Connection::new(Arc::new(home())).serve(incoming)).await
        });
        prop_assert!(ended.is_ok(), "it hangs");
    }
}
