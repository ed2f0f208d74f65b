//! Ended executions of kept sandboxes that run again on servers.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::kept_sessions::{route, with_model};
use crate::model::{Endpoint, said};
use crate::support::{BOB, TestServer, answer, refusal};
use crate::suspending::{slow, states};

async fn replayed(server: &TestServer, id: &str, body: Value) -> Value {
    let (status, told) = answer(server.post(&route(id, "replay"), &body)).await;
    assert_eq!(status, StatusCode::OK, "{told}");
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_runs_again_also_at_the_next_server_and_asks_nobody() {
    let (_folder, path) = states();
    let mut model = Endpoint::with([said("one")]).await;
    let server = with_model(&path, &model, &[]).await;
    let id = server.session(json!({ "context": "a text", "persist": true })).await;
    server.execute(&id, "x = [context]").await;
    let code = "import random\nx.append(llm_query('first'))\nprint(x)\n(x[1], random.random())";
    let run = server.execute(&id, code).await;
    server.execute(&id, "x = 'later'").await;
    server.stop().await;

    let mut server = with_model(&path, &model, &[]).await;
    let told = replayed(&server, &id, json!({ "execution": 2 })).await;
    let again = &told["execution"];
    assert_eq!(
        (&again["result"], &again["stdout"], &again["id"]),
        (&run["result"], &run["stdout"], &json!(2)),
        "{told}"
    );
    assert!(told.get("difference").is_none(), "{told}");
    let told = replayed(&server, &id, json!({ "execution": 2, "answers": { "1": "other" } })).await;
    assert!(
        told["execution"]["result"].as_str().unwrap().starts_with("('other', "),
        "{told}"
    );
    assert_eq!(model.requests(), 1, "the question of the execution itself");
    assert_eq!(server.execute(&id, "x").await["result"], "'later'");

    for (body, code) in [
        (json!({ "execution": 99 }), "no_checkpoint"),
        (json!({ "execution": 2, "answers": { "7": 1 } }), "invalid_option"),
        (json!({ "execution": 2, "answers": [1] }), "invalid_request"),
        (json!({}), "invalid_request"),
    ] {
        let (_, refused) = refusal(server.post(&route(&id, "replay"), &body)).await;
        assert_eq!(refused, code, "{body}");
    }
    server.key = Some(BOB);
    let refused = refusal(server.post(&route(&id, "replay"), &json!({ "execution": 2 }))).await;
    assert_eq!(refused.0, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_needs_a_place_for_its_guest() {
    let (_folder, path) = states();
    let server = slow(&path, &["--max-sessions-per-key", "1"]).await;
    let id = server.session(json!({ "persist": true })).await;
    server.execute(&id, "1").await;
    let refused = refusal(server.post(&route(&id, "replay"), &json!({ "execution": 1 }))).await;
    assert_eq!(refused, (429, "too_many_sessions".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_executions_count_in_the_quota_and_give_way_to_states() {
    let (_folder, path) = states();
    let bounds = ["--max-suspended-mib-per-key", "8"];
    let server = slow(&path, &bounds).await;
    let id = server.session(json!({ "persist": true })).await;
    for number in 1..=6 {
        let run = server.execute(&id, &format!("x = b'{number}' * (1 << 20)")).await;
        assert_eq!((&run["outcome"], run.get("unkept")), (&json!("ok"), None), "{run}");
    }
    let replay = async |server: &TestServer, execution: u32| {
        let request = server.post(&route(&id, "replay"), &json!({ "execution": execution }));
        let (status, told) = answer(request).await;
        match status {
            StatusCode::OK => None,
            _ => Some(told["error"]["message"].as_str().unwrap().to_owned()),
        }
    };
    assert_eq!(replay(&server, 6).await, None);
    let why = replay(&server, 2).await.unwrap();
    assert!(why.contains("there is no room for its journal"), "{why}");
    // The next server counts what it finds: the other half of the room is free, and no more.
    server.stop().await;
    let server = slow(&path, &bounds).await;
    assert_eq!(replay(&server, 6).await, None);
    let other = server.session(json!({ "persist": true })).await;
    let run = server.execute(&other, "x = bytes(7 << 20)").await;
    assert!(run["unkept"].as_str().unwrap().contains("8 MiB"), "{run}");
    // A state of the same session has their room.
    let run = server.execute(&id, "x = bytes(6 << 20)").await;
    assert_eq!((&run["outcome"], run.get("unkept")), (&json!("ok"), None), "{run}");
    assert!(replay(&server, 6).await.is_some());
    server.stop().await;
}
