//! Tests of the exact lines of a trajectory. A recorded trajectory must stay readable.

use sandglass_rlm::event::{RlmEvent, RlmEventKind, TRAJECTORY_VERSION, hash};
use sandglass_rlm::replay::read_trajectory;

/// One line for each kind of event, in the form of version 1.
const LINES: &str = r#"{"run":"0","depth":0,"time":0.0,"type":"runStarted","version":1,"task":"t","contexts":[{"name":"context","type":"str","length":3,"unit":"characters","peek":"abc"}],"maxIterations":20,"maxDepth":1,"answerSchema":{"type":"integer"}}
{"run":"0","depth":0,"time":1.5,"type":"turnStarted","turn":1,"of":20,"messages":2,"promptTokens":900,"left":{"calls":499.0}}
{"run":"0","depth":0,"time":2.0,"type":"historyCompacted","before":9000,"after":5000,"turns":3}
{"run":"0","depth":0,"time":2.0,"type":"modelReplied","turn":1,"text":"x","usage":{"calls":0.0,"inputTokens":1.0,"outputTokens":2.0,"cost":0.5},"estimated":false,"cut":false,"duration":3.0}
{"run":"0","depth":0,"time":2.0,"type":"retry","call":1,"attempt":1,"wait":500.0,"reason":"r"}
{"run":"0","depth":0,"time":2.0,"type":"codeStarted","turn":1,"block":1,"blocks":2,"code":"c"}
{"run":"0.0","depth":1,"time":2.0,"type":"executionEnded","turn":1,"block":1,"execution":{"anything":[1]},"declared":true}
{"run":"0","depth":0,"time":2.0,"type":"callStarted","call":1,"name":"rlm_query","prompt":"p","promptChars":1,"promptHash":"af63fd4c8601f21a","model":"m","child":"0.0"}
{"run":"0","depth":0,"time":2.0,"type":"callEnded","call":1,"answer":"a","usage":{"calls":0.0,"inputTokens":1.0,"outputTokens":2.0,"cost":0.5},"duration":3.0}
{"run":"0","depth":0,"time":2.0,"type":"callEnded","call":2,"error":"e","duration":3.0}
{"run":"0","depth":0,"time":2.0,"type":"budget","spent":{"calls":1.0,"inputTokens":1.0,"outputTokens":2.0,"cost":0.5},"left":{}}
{"run":"0","depth":0,"time":2.0,"type":"answerRejected","problems":"p"}
{"run":"0","depth":0,"time":9.0,"type":"runEnded","outcome":"answered","answer":5,"iterations":1,"usage":{"calls":1.0,"inputTokens":1.0,"outputTokens":2.0,"cost":0.5},"duration":9.0}"#;

#[test]
fn every_kind_of_line_is_read_and_written_as_it_was() {
    let events = read_trajectory(LINES).unwrap();
    let written: Vec<String> = events
        .iter()
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    let lines: Vec<&str> = LINES.lines().collect();
    for (written, line) in written.iter().zip(&lines) {
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(written), value(line));
    }
    assert_eq!(written.len(), lines.len());
    assert_eq!(TRAJECTORY_VERSION, 1);
}

#[test]
fn fields_that_later_releases_add_are_ignored() {
    let later = LINES.replace("\"depth\":0,", "\"depth\":0,\"later\":{\"a\":1},");
    assert_eq!(read_trajectory(&later).unwrap(), read_trajectory(LINES).unwrap());
}

#[test]
fn long_prompts_are_cut_and_still_known() {
    let prompt = "é".repeat(100_000);
    let RlmEventKind::CallStarted {
        prompt: shown,
        prompt_chars,
        prompt_hash,
        ..
    } = RlmEventKind::call_started(1, "llm_query", &prompt, None, None)
    else {
        panic!("another event");
    };
    assert!(shown.chars().count() < 2_100 && shown.contains("omitted"));
    assert_eq!((prompt_chars, prompt_hash), (100_000, hash(&prompt)));
    assert_eq!(hash("p"), "af63ed4c8602096f");
}

#[test]
fn live_events_are_no_lines() {
    let event = |kind| RlmEvent {
        run: "0".to_owned(),
        depth: 0,
        time: 1.0,
        kind,
    };
    let live = event(RlmEventKind::Text { text: "x".to_owned() });
    let lines = format!("{LINES}\n{}", serde_json::to_string(&live).unwrap());
    assert_eq!(read_trajectory(&lines).unwrap().len(), LINES.lines().count());
}
