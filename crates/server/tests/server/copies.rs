//! Checkpoints over a channel: paused copies that the client orders, revives and drops.

use futures_util::{SinkExt, StreamExt};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Channel, LONG, TestServer, answer, eventually};

/// Sends a command, and returns the next text message.
async fn told(channel: &mut Channel, command: Value) -> Value {
    channel.send(Message::text(command.to_string())).await.unwrap();
    heard(channel).await
}

async fn heard(channel: &mut Channel) -> Value {
    loop {
        let message = timeout(LONG, channel.next()).await.expect("the server is silent");
        if let Message::Text(text) = message.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

fn pause(guest: u32, checkpoint: u32) -> Value {
    json!({ "type": "pause", "guest": guest, "checkpoint": checkpoint })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_keeps_as_many_checkpoints_as_it_asked_for() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "channel": true, "checkpoints": 2 })).await;
    let mut channel = server.channel(&id).await.unwrap();
    assert_eq!(told(&mut channel, json!({ "type": "boot" })).await["type"], "booted");
    // One more may be there while the client drops another.
    for checkpoint in 1..=3 {
        let paused = json!({ "type": "paused", "guest": 1, "checkpoint": checkpoint });
        assert_eq!(told(&mut channel, pause(1, checkpoint)).await, paused);
    }
    let refused = told(&mut channel, pause(1, 4)).await;
    assert_eq!(
        (&refused["type"], &refused["checkpoint"]),
        (&json!("unpaused"), &json!(4))
    );
    assert!(
        refused["message"].as_str().unwrap().contains("2 checkpoints at most"),
        "{refused}"
    );
    let drop = json!({ "type": "drop", "checkpoint": 1 });
    channel.send(Message::text(drop.to_string())).await.unwrap();
    assert_eq!(told(&mut channel, pause(1, 5)).await["type"], "paused");

    // A guest of a checkpoint, of one that was dropped, of one that never was, and of the beginning.
    for (guest, command, answer) in [
        (2, json!({ "type": "revive", "checkpoint": 3 }), "booted"),
        (3, json!({ "type": "revive", "checkpoint": 1 }), "lost"),
        (4, json!({ "type": "revive", "checkpoint": 99 }), "lost"),
        (5, json!({ "type": "revive", "checkpoint": 3 }), "booted"),
        (6, json!({ "type": "boot" }), "booted"),
        (7, json!({ "type": "revive", "checkpoint": 5 }), "booted"),
    ] {
        let said = told(&mut channel, command.clone()).await;
        assert_eq!(
            (&said["type"], &said["guest"]),
            (&json!(answer), &json!(guest)),
            "{command}: {said}"
        );
    }
    // Orders for a guest that was replaced are ignored.
    channel.send(Message::text(pause(6, 6).to_string())).await.unwrap();
    channel
        .send(Message::text(json!({ "type": "drop", "checkpoint": 2 }).to_string()))
        .await
        .unwrap();
    assert_eq!(told(&mut channel, pause(7, 7)).await["checkpoint"], 7);

    channel.close(None).await.unwrap();
    eventually("the session is gone", || async {
        answer(server.get(&format!("/v1/sessions/{id}"))).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_a_client_keeps_none() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "channel": true })).await;
    let mut channel = server.channel(&id).await.unwrap();
    assert_eq!(told(&mut channel, json!({ "type": "boot" })).await["type"], "booted");
    assert_eq!(told(&mut channel, pause(1, 1)).await["type"], "unpaused");
    assert_eq!(
        told(&mut channel, json!({ "type": "revive", "checkpoint": 1 })).await["type"],
        "lost"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_with_checkpoints_are_forked_by_the_pool() {
    let options = ["--backend", "bubblewrap", "--spares", "1", "--preload", "wave"];
    let server = TestServer::start(&options).await;
    for resets in [false, true] {
        let id = server.session(json!({ "checkpoints": 3 })).await;
        let run = async |code: &str| server.execute(&id, code).await;
        let back = async |route: &str, body: Value| {
            let (status, said) = answer(server.post(&format!("/v1/sessions/{id}/{route}"), &body)).await;
            assert_eq!(status, StatusCode::OK, "{said}");
            said["execution"].clone()
        };
        assert_eq!(run("import os, wave\nx = [1]").await["outcome"], "ok");
        assert_eq!(run("x.append(2)").await["outcome"], "ok");
        assert_eq!(back("undo", json!({})).await, 1);
        let crashed = run("os.kill(os.getpid(), 9)").await;
        assert_eq!(
            (&crashed["outcome"], &crashed["state"]["restoredTo"]),
            (&json!("crashed"), &json!(1)),
            "{crashed}"
        );
        // Nothing of another guest is there, and nothing of earlier ones is left.
        let code = "x, os.getuid(), len([name for name in os.listdir('/proc') if name.isdecimal()]) < 9, os.listdir('/workspace')";
        assert_eq!(run(code).await["result"], "([1], 1000, True, [])");
        if resets {
            assert_eq!(back("restore", json!({ "execution": 0 })).await, 0);
            assert_eq!(run("'x' in globals()").await["result"], "False");
        }
        // Large data is a mapping of its own, which goes back to the system. A copy would keep freed memory of the heap.
        assert_eq!(
            run("import ctypes\nbig = bytearray(7 << 20)\nat = ctypes.addressof(ctypes.c_char.from_buffer(big))").await
                ["outcome"],
            "ok"
        );
        let code = "del big\nmaps = [line.split()[0].split('-') for line in open('/proc/self/maps')]\n\
                    any(int(low, 16) <= at < int(high, 16) for low, high in maps)";
        assert_eq!(run(code).await["result"], "False");
        answer(server.request(reqwest::Method::DELETE, &format!("/v1/sessions/{id}"))).await;
    }
    let (_, health) = answer(server.get("/health/detailed")).await;
    let pool = &health["pool"];
    assert_eq!((&pool["cold"], &pool["zygotes"]), (&json!(0), &json!(1)), "{health}");
    server.stop().await;
}
