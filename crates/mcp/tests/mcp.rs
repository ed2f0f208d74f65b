//! The server with the SDK's own client, over streams in this process, and real guests.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use clap::Parser;
use rmcp::model::{CallToolRequestParams, CallToolResult, ErrorCode, ReadResourceRequestParams, ResourceContents};
use rmcp::service::{RoleClient, RunningService};
use rmcp::{ServiceError, ServiceExt};
use sandglass_mcp::McpArgs;
use serde_json::{Value, json};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: McpArgs,
}

struct Session {
    client: RunningService<RoleClient, ()>,
    server: tokio::task::JoinHandle<Result<(), String>>,
}

impl Session {
    async fn new(args: &[&str]) -> Self {
        let all = ["mcp", "--backend", "bubblewrap"].iter().chain(args);
        let args = Program::try_parse_from(all).unwrap().args;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (input, output) = tokio::io::split(theirs);
        let server = tokio::spawn(sandglass_mcp::serve(args, input, output));
        let client = ().serve(ours).await.unwrap();
        Self { client, server }
    }

    async fn try_call(&self, tool: &'static str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object")
        };
        let called = self
            .client
            .call_tool(CallToolRequestParams::new(tool).with_arguments(arguments))
            .await?;
        Ok(called)
    }

    /// The text and the value of a call, and whether it failed.
    async fn call(&self, tool: &'static str, arguments: Value) -> (String, Value, bool) {
        let result = self.try_call(tool, arguments).await.unwrap();
        let text = result
            .content
            .iter()
            .filter_map(|block| block.as_text())
            .map(|text| text.text.as_str());
        let text = text.collect::<Vec<_>>().join("\n");
        (
            text,
            result.structured_content.unwrap_or_default(),
            result.is_error == Some(true),
        )
    }

    async fn end(self) {
        self.client.cancel().await.unwrap();
        self.server.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_describe_themselves_and_ask_needs_a_model() {
    let session = Session::new(&[]).await;
    let info = session.client.peer_info().unwrap();
    assert!(info.instructions.as_ref().unwrap().contains("load_context"));
    let tools = session.client.list_all_tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(
        names,
        [
            "execute_python",
            "get_variable",
            "list_variables",
            "load_context",
            "read_context",
            "reset",
            "search_context",
            "write_file"
        ]
    );
    for tool in &tools {
        let description = tool.description.as_ref().unwrap();
        assert!(description.len() > 50, "{}: {description}", tool.name);
        assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        assert!(
            tool.annotations.as_ref().unwrap().read_only_hint.is_some(),
            "{}",
            tool.name
        );
    }
    let refused = session.try_call("ask", json!({ "question": "?" })).await.unwrap_err();
    assert!(matches!(refused, ServiceError::McpError(_)), "{refused}");
    session.end().await;

    let session = Session::new(&["--model", "m", "--url", "http://127.0.0.1:1/v1"]).await;
    assert!(
        session
            .client
            .list_all_tools()
            .await
            .unwrap()
            .iter()
            .any(|tool| tool.name == "ask")
    );
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_stays_and_results_say_what_became_of_it() {
    let session = Session::new(&[]).await;
    let (text, report, failed) = session
        .call("execute_python", json!({ "code": "x = 20\nprint('hi')\nx + 1" }))
        .await;
    assert_eq!((&*text, failed), ("hi\n21", false));
    assert_eq!((&report["outcome"], &report["state"]), (&json!("ok"), &json!("kept")));
    let (text, report, failed) = session
        .call("execute_python", json!({ "code": "print(1)\nx / 0" }))
        .await;
    assert!(
        failed && text.starts_with("1\nTraceback") && text.contains("The variables are kept"),
        "{text}"
    );
    assert_eq!(
        (&report["outcome"], &report["stdout"]),
        (&json!("error"), &json!("1\n"))
    );
    let code = "import time\nwhile True: time.sleep(0.01)";
    let (text, report, failed) = session
        .call("execute_python", json!({ "code": code, "timeout_seconds": 0.2 }))
        .await;
    assert!(failed && text.contains("TimeoutError"), "{text}");
    assert_eq!(
        (&report["outcome"], &report["state"]),
        (&json!("timeout"), &json!("kept"))
    );
    session.call("load_context", json!({ "text": "still here" })).await;
    let (text, report, failed) = session
        .call("execute_python", json!({ "code": "import os\nos._exit(3)" }))
        .await;
    assert!(
        failed && text.contains("The variables are lost") && text.contains('x'),
        "{text}"
    );
    assert_eq!(
        (&report["outcome"], &report["state"]),
        (&json!("crashed"), &json!("lost"))
    );
    let (text, _, _) = session
        .call("execute_python", json!({ "code": "'x' in globals(), context" }))
        .await;
    assert_eq!(text, "(False, 'still here')");
    session.call("reset", json!({})).await;
    let (text, _, _) = session
        .call("execute_python", json!({ "code": "context is None" }))
        .await;
    assert_eq!(text, "True");
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_checked_before_anything_runs() {
    let session = Session::new(&[]).await;
    for (tool, arguments, told) in [
        ("execute_python", json!({}), "code"),
        ("execute_python", json!({ "code": "1", "timeout": 3 }), "timeout"),
        (
            "execute_python",
            json!({ "code": "1", "timeout_seconds": 1e9 }),
            "timeout_seconds",
        ),
        (
            "execute_python",
            json!({ "code": "1", "timeout_seconds": -1 }),
            "timeout_seconds",
        ),
        ("execute_python", json!({ "code": 1 }), "string"),
        ("load_context", json!({}), "either text or path"),
        (
            "load_context",
            json!({ "text": "a", "path": "b" }),
            "either text or path",
        ),
        ("load_context", json!({ "text": "a", "variable": "a b" }), "no name"),
        (
            "load_context",
            json!({ "text": "a", "variable": "x);import os;(y" }),
            "no name",
        ),
        ("load_context", json!({ "path": "/etc/passwd" }), "--allow-folder"),
        (
            "search_context",
            json!({ "pattern": "a", "variable": "open('/etc/passwd').read()" }),
            "no name",
        ),
        ("search_context", json!({ "pattern": "(", "variable": "context" }), ""),
        (
            "search_context",
            json!({ "pattern": "a", "variable": "nothing" }),
            "NameError",
        ),
        ("read_context", json!({ "variable": "nothing" }), "NameError"),
        ("read_context", json!({ "length": -1 }), "invalid value"),
        ("get_variable", json!({ "name": "nothing" }), "no variable nothing"),
        ("write_file", json!({ "path": "../a", "text": "" }), ""),
        ("write_file", json!({ "path": "/etc/passwd", "text": "" }), ""),
        ("write_file", json!({ "path": "a" }), "either text or base64"),
        ("write_file", json!({ "path": "a", "base64": "?" }), "base64"),
    ] {
        let (text, _, failed) = session.call(tool, arguments.clone()).await;
        assert!(failed && text.contains(told), "{tool} {arguments}: {text}");
    }
    let (text, _, failed) = session.call("execute_python", json!({ "code": "1 + 1" })).await;
    assert_eq!((&*text, failed), ("2", false));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_and_matches_are_exact_in_every_kind_of_text() {
    let session = Session::new(&[]).await;
    let text = "a \u{1F600} needle \"quoted\" \\ é\n".repeat(100);
    let (_, loaded, _) = session.call("load_context", json!({ "text": text })).await;
    assert_eq!(loaded["length"], text.chars().count());
    let (_, found, _) = session
        .call(
            "search_context",
            json!({ "pattern": "\u{1F600} needle \"QUOTED\" \\\\ É", "window": 0, "max_results": 3 }),
        )
        .await;
    assert_eq!(found["count"], 3);
    assert_eq!(found["matches"][1]["match"], "\u{1F600} needle \"quoted\" \\ é");
    let (start, end) = (
        found["matches"][1]["start"].as_i64().unwrap(),
        found["matches"][1]["end"].as_i64().unwrap(),
    );
    let (_, part, _) = session
        .call("read_context", json!({ "start": start, "length": end - start }))
        .await;
    assert_eq!(part["text"], found["matches"][1]["match"]);
    assert_eq!(
        (&part["end"], &part["total"]),
        (&json!(end), &json!(text.chars().count()))
    );
    let (_, part, _) = session.call("read_context", json!({ "start": -3 })).await;
    assert_eq!((&part["text"], &part["end"]), (&json!(" é\n"), &part["total"]));
    let (_, part, _) = session.call("read_context", json!({ "start": 1_000_000_000 })).await;
    assert_eq!(part["text"], "");
    session
        .call(
            "execute_python",
            json!({ "code": "pages = {'one': 'a needle', 2: 'b'}; raw = b'\\xff needle'" }),
        )
        .await;
    let (_, found, _) = session
        .call("search_context", json!({ "pattern": "needle", "variable": "pages" }))
        .await;
    assert_eq!(
        (&found["count"], &found["matches"][0]["index"]),
        (&json!(1), &json!("one"))
    );
    let (_, found, _) = session
        .call("search_context", json!({ "pattern": "needle", "variable": "raw" }))
        .await;
    assert_eq!(found["matches"][0]["start"], 2);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_bounded_whatever_the_code_prints() {
    let session = Session::new(&[]).await;
    let code = "import sys\nbig = 'x' * 3_000_000\nprint(big)\nprint(big, file=sys.stderr)\nbig";
    let result = session
        .try_call("execute_python", json!({ "code": code }))
        .await
        .unwrap();
    let size = serde_json::to_string(&result).unwrap().len();
    assert!(size < 200_000, "{size}");
    let (_, got, _) = session.call("get_variable", json!({ "name": "big" })).await;
    assert_eq!(got["complete"], false);
    assert!(got["text"].as_str().unwrap().len() < 30_000);
    let code = "for n in range(150): display({'image/png': b'\\x89PNG' * 500}, raw=True)\n\
                display({'text/html': '<script>alert(1)</script>'}, raw=True)\n\
                for n in range(3000): globals()[f'name_{n}'] = n";
    let result = session
        .try_call("execute_python", json!({ "code": code }))
        .await
        .unwrap();
    let json = serde_json::to_string(&result).unwrap();
    let pictures = result.content.iter().filter(|block| block.as_image().is_some()).count();
    assert_eq!(pictures, 10);
    assert!(
        json.contains("outputs are not shown") && !json.contains("<script>"),
        "{}",
        &json[..2_000]
    );
    session
        .call(
            "execute_python",
            json!({ "code": "pages = {'k' * 1_000_000 + str(n): 'x' * 1_000_000 for n in range(30)}" }),
        )
        .await;
    let search = json!({ "pattern": "(?s).*", "variable": "pages", "max_results": 100 });
    let found = session.try_call("search_context", search).await.unwrap();
    let size = serde_json::to_string(&found).unwrap().len();
    assert!(found.is_error != Some(true) && size < 500_000, "{size}");
    let (_, list, _) = session.call("list_variables", json!({})).await;
    assert_eq!(list["variables"].as_array().unwrap().len(), 500);
    assert!(list["more"].as_u64().unwrap() >= 2_500);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_out_as_resources() {
    let session = Session::new(&[]).await;
    let uris = async || -> Vec<String> {
        let all = session.client.list_all_resources().await.unwrap();
        all.into_iter().map(|resource| resource.uri.clone()).collect()
    };
    assert!(uris().await.is_empty());
    let read = async |uri: &str| session.client.read_resource(ReadResourceRequestParams::new(uri)).await;
    assert!(read("workspace:///a.txt").await.is_err());
    session
        .call("write_file", json!({ "path": "in/a b.txt", "text": "é" }))
        .await;
    session
        .call("write_file", json!({ "path": "b.bin", "base64": "/wA=" }))
        .await;
    let code = "open('out.csv', 'w').write(open('in/a b.txt', encoding='utf-8').read() + str(open('b.bin', 'rb').read()))\n\
                import os\nos.symlink('/etc/passwd', 'link')\nos.mkfifo('pipe')";
    let (text, report, failed) = session.call("execute_python", json!({ "code": code })).await;
    assert!(!failed, "{text}");
    assert!(
        report["files"].as_array().unwrap().contains(&json!("out.csv")),
        "{report}"
    );
    let all = uris().await;
    for uri in [
        "workspace:///in/a%20b.txt",
        "workspace:///b.bin",
        "workspace:///out.csv",
    ] {
        assert!(all.contains(&uri.to_owned()), "{all:?}");
    }
    let out = read("workspace:///out.csv").await.unwrap();
    let [ResourceContents::TextResourceContents { text, mime_type, .. }] = &out.contents[..] else {
        panic!("{out:?}")
    };
    assert_eq!((&**text, mime_type.as_deref()), ("éb'\\xff\\x00'", Some("text/csv")));
    let out = read("workspace:///b.bin").await.unwrap();
    assert!(matches!(&out.contents[..], [ResourceContents::BlobResourceContents { blob, .. }] if blob == "/wA="));
    for uri in [
        "workspace:///../../etc/passwd",
        "workspace:////etc/passwd",
        "workspace:///%2e%2e/%2e%2e/etc/passwd",
        "workspace:///link",
        "workspace:///pipe",
        "workspace:///in",
        "workspace:///",
        "file:///etc/passwd",
        "",
    ] {
        let refused = read(uri).await.unwrap_err();
        let ServiceError::McpError(error) = &refused else {
            panic!("{uri}: {refused}")
        };
        assert!(!error.message.contains("root:"), "{uri}: {error}");
    }
    let ServiceError::McpError(error) = read("workspace:///nothing").await.unwrap_err() else {
        panic!("an error of the protocol")
    };
    assert_eq!(error.code, ErrorCode::RESOURCE_NOT_FOUND);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_of_the_operator_is_the_working_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data.txt"), "from the operator").unwrap();
    let session = Session::new(&["--workspace", folder.path().to_str().unwrap()]).await;
    let all = session.client.list_all_resources().await.unwrap();
    assert_eq!(
        all.iter().map(|resource| &*resource.uri).collect::<Vec<_>>(),
        ["workspace:///data.txt"]
    );
    let (text, _, _) = session
        .call("execute_python", json!({ "code": "print(open('data.txt').read())" }))
        .await;
    assert_eq!(text, "from the operator");
    session.end().await;
}
