//! Tests of the endpoints' wire: bodies, streams in any pieces, errors, and repeated attempts.

use proptest::prelude::*;
use sandglass_rlm::openai::{
    Failure, Reply, RetryAfter, StreamReader, completions_url, read_reply, refusal, request_body, retry_in,
};
use sandglass_rlm::{Message, Role};
use serde_json::{Value, json};

/// Reads a stream that comes in these pieces. Returns the reply, and all texts that it brought.
fn stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(Reply, String), Failure> {
    let (mut reader, mut heard) = (StreamReader::default(), String::new());
    for piece in pieces {
        heard.push_str(&reader.push(piece)?);
    }
    Ok((reader.end()?, heard))
}

fn chunk(content: &str) -> String {
    format!(
        "data: {}\n\n",
        json!({ "choices": [{ "index": 0, "delta": { "content": content } }] })
    )
}

const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"cost\":0.5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn requests_say_what_is_asked_for() {
    let messages = [Message::new(Role::System, "rules"), Message::new(Role::User, "é\n")];
    let extra = json!({ "temperature": 0, "model": "other" });
    let body = request_body("m", &messages, true, extra.as_object().unwrap());
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        json!({
            "model": "m", "stream": true, "stream_options": { "include_usage": true }, "temperature": 0,
            "messages": [{ "role": "system", "content": "rules" }, { "role": "user", "content": "é\n" }]
        })
    );
    let without = json!({ "stream_options": null, "top_p": null });
    let body = request_body("m", &[], true, without.as_object().unwrap());
    assert_eq!(body, r#"{"messages":[],"model":"m","stream":true}"#);
    for base in ["http://a/v1", "http://a/v1//", "http://a/v1/chat/completions"] {
        assert_eq!(completions_url(base), "http://a/v1/chat/completions");
    }
}

#[test]
fn a_stream_is_read_as_servers_write_it() {
    let (hello, world) = (chunk("Hello "), chunk("wörld"));
    for text in [
        format!("{hello}{world}{STOP}{USAGE}{DONE}"),
        format!("\u{feff}: comment\n\nevent: x\nid: 1\n{hello}{world}{STOP}{USAGE}{DONE}more"),
        format!("{hello}{world}{STOP}{USAGE}").replace('\n', "\r\n"),
        format!("{hello}{world}{STOP}{USAGE}{DONE}").replace('\n', "\r"),
        format!("{hello}{world}{STOP}{USAGE}").trim_end().to_owned(),
        format!("{hello}{world}{USAGE}{DONE}").replace("data: ", "data:"),
    ] {
        let (reply, heard) = stream([text.as_bytes()]).unwrap();
        assert_eq!(
            (reply.text.as_str(), heard.as_str()),
            ("Hello wörld", "Hello wörld"),
            "{text:?}"
        );
        let usage = reply.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cost), (7.0, 3.0, 0.5));
    }
}

#[test]
fn a_stream_that_is_no_reply_says_why() {
    let text = chunk("Hello");
    let cut = STOP.replace("\"stop\"", "\"length\"");
    for (stream_text, problem) in [
        (text.clone(), "the stream was cut"),
        (String::new(), "the stream was cut"),
        (format!("{text}data: {{oh no\n\n{DONE}"), "an event that is no JSON"),
        (
            format!("{text}data: {{\"error\":{{\"message\":\"overloaded\"}}}}\n\n"),
            "overloaded",
        ),
        (format!("data: {{\"choices\":[]}}\n\n{DONE}"), "it has no text"),
        (format!("{cut}{DONE}"), "limit of tokens was reached before"),
        ("<html>\n</html>\n".to_owned(), "the stream was cut"),
    ] {
        let failure = stream([stream_text.as_bytes()]).unwrap_err().to_string();
        assert!(failure.contains(problem), "{stream_text:?}: {failure}");
    }
    let (reply, _) = stream([format!("{text}{cut}{DONE}").as_bytes()]).unwrap();
    assert!(reply.cut);
}

#[test]
fn a_stream_without_end_is_given_up() {
    let line = vec![b'x'; 1 << 20];
    let mut reader = StreamReader::default();
    let failure = (0..100).find_map(|_| reader.push(&line).err()).unwrap();
    assert!(matches!(failure, Failure::Final(_)), "{failure}");
}

#[test]
fn a_reply_in_one_piece_is_read() {
    let reply = |message: Value| read_reply(json!({ "choices": [{ "message": message }] }).to_string().as_bytes());
    assert_eq!(reply(json!({ "content": "a" })).unwrap().text, "a");
    let parts = json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] });
    assert_eq!(reply(parts).unwrap().text, "ab");
    assert!(matches!(
        reply(json!({ "content": null, "refusal": "no" })),
        Err(Failure::Final(_))
    ));
    for body in [
        "",
        "[]",
        "{}",
        "{\"choices\":[]}",
        "{\"choices\":{}}",
        "null",
        "{\"choices\":[{\"message\":5}]}",
    ] {
        assert!(matches!(read_reply(body.as_bytes()), Err(Failure::Broken(_))), "{body}");
    }
}

#[test]
fn refusals_say_what_the_endpoint_says() {
    let refuse = |status, body: &str| refusal(status, body.as_bytes(), RetryAfter::default(), 0.0).to_string();
    for (body, message) in [
        (r#"{"error":{"message":"slow down","type":"x"}}"#, "slow down"),
        (r#"{"error":"slow down"}"#, "slow down"),
        (r#"[{"error":{"message":"slow down"}}]"#, "slow down"),
        (r#"{"detail":"slow down"}"#, "slow down"),
        (" <b>slow down</b> ", "<b>slow down</b>"),
        ("", "nothing"),
    ] {
        assert_eq!(refuse(418, body), format!("the endpoint answered 418: {message}"));
    }
}

#[test]
fn what_may_pass_is_tried_again_and_nothing_else() {
    let retry = |status, body: &str| {
        retry_in(&refusal(status, body.as_bytes(), RetryAfter::default(), 0.0), 1, 5, 0.0).is_some()
    };
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 529] {
        assert!(retry(status, ""), "{status}");
    }
    for status in [400, 401, 403, 404, 413, 422, 501] {
        assert!(!retry(status, ""), "{status}");
    }
    assert!(!retry(429, r#"{"error":{"code":"insufficient_quota"}}"#));
    let failures = [
        Failure::Unreachable(String::new()),
        Failure::Broken(String::new()),
        Failure::TimedOut(1.0),
    ];
    for failure in failures {
        assert!(retry_in(&failure, 5, 5, 0.5).is_some());
        assert!(retry_in(&failure, 6, 5, 0.5).is_none());
    }
    assert!(retry_in(&Failure::Final(String::new()), 1, 5, 0.0).is_none());
}

#[test]
fn pauses_grow_and_retry_after_is_heeded() {
    let broken = Failure::Broken(String::new());
    let pauses: Vec<f64> = (1..9)
        .map(|attempt| retry_in(&broken, attempt, 100, 1.0).unwrap())
        .collect();
    assert_eq!(
        pauses,
        [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0, 16_000.0, 30_000.0, 30_000.0]
    );
    assert_eq!(retry_in(&broken, 1, 100, 0.0), Some(250.0));

    let wait = |seconds_or_date, milliseconds| {
        let retry_after = RetryAfter {
            seconds_or_date,
            milliseconds,
        };
        // This time is 1994-11-06T08:49:30Z.
        retry_in(&refusal(429, b"", retry_after, 784_111_770_000.0), 1, 5, 0.0)
    };
    assert_eq!(wait(Some("2"), None), Some(2_000.0));
    assert_eq!(wait(Some("0.5"), None), Some(500.0));
    assert_eq!(wait(Some("9"), Some("70")), Some(70.0));
    assert_eq!(wait(Some("Sun, 06 Nov 1994 08:49:37 GMT"), None), Some(7_000.0));
    assert_eq!(wait(Some("Sun, 06 Nov 1994 08:00:00 GMT"), None), Some(0.0));
    assert_eq!(wait(Some("3600"), None), None, "longer than anybody waits");
    for rubbish in ["soon", "", "NaN", "inf"] {
        assert_eq!(wait(Some(rubbish), None), Some(250.0), "{rubbish}");
    }
    assert_eq!(wait(Some("-5"), None), Some(0.0));
}

#[test]
fn usage_is_estimated_where_nobody_tells() {
    let asked = [Message::new(Role::User, "x".repeat(400))];
    let mut reply = Reply {
        text: "é".repeat(10),
        ..Reply::default()
    };
    let usage = reply.used(&asked);
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.cost),
        (104.0, 10.0, 0.0)
    );
    reply.price = Some([0.5, 2.0]);
    assert_eq!(reply.used(&asked).cost, 72.0, "estimates cost as well");
}

proptest! {
    /// Checks that a stream means the same for all pieces and line ends.
    #[test]
    fn splits_change_nothing(
        texts in prop::collection::vec("[a-zé✓\n\"\\\\ ]{0,8}", 1..6),
        cuts in prop::collection::vec(0usize..2_000, 0..40),
        ending in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
    ) {
        let whole: String = texts.concat();
        prop_assume!(!whole.is_empty());
        let mut text: String = texts.iter().map(|text| chunk(text)).collect();
        text.push_str(STOP);
        text.push_str(USAGE);
        text.push_str(DONE);
        let text = text.replace('\n', ending);
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        let (reply, heard) = stream(pieces).unwrap();
        prop_assert_eq!(&reply.text, &whole);
        prop_assert_eq!(&heard, &whole);
        prop_assert!(reply.usage.is_some());
    }

    /// Checks that a stream which is cut anywhere fails, unless it was complete.
    #[test]
    fn a_cut_is_noticed(at in 0usize..1_000) {
        let text = format!("{}{}{STOP}{DONE}", chunk("one "), chunk("two"));
        let at = at % text.len();
        match stream([&text.as_bytes()[..at]]) {
            Ok((reply, _)) => prop_assert_eq!(reply.text, "one two"),
            Err(Failure::Broken(_)) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..300), status in 300u16..600) {
        drop(stream([bytes.as_slice()]));
        drop(stream([b"data: ".as_slice(), &bytes, b"\n\n"]));
        drop(read_reply(&bytes));
        let text = String::from_utf8_lossy(&bytes);
        let retry_after = RetryAfter { seconds_or_date: Some(&text), milliseconds: Some(&text) };
        let wait = retry_in(&refusal(status, &bytes, retry_after, 0.0), 1, 5, 0.5);
        prop_assert!(wait.is_none_or(|ms| (0.0..200_000.0).contains(&ms)));
    }
}
