//! The wire of OpenAI-compatible `/chat/completions` endpoints: bodies, streams, errors, and repeated attempts. The functions are pure; the
//! driver sends and waits.

use serde_json::{Map, Value, json};

use super::Message;
use super::limits::{FIRST_BACKOFF_MS, MAX_BACKOFF_MS, MAX_REPLY_BYTES, MAX_RETRY_AFTER_MS};
use sandglass_core::budget::Usage;

/// A model's reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The text of the reply.
    pub text: String,
    /// The use, if the endpoint reported it.
    pub usage: Option<Usage>,
    /// True if the endpoint's limit of tokens cut the text.
    pub cut: bool,
    /// The cost per token of the prompt and per token of the text, if the user gave them.
    pub price: Option<[f64; 2]>,
}

impl Reply {
    /// The use by this reply to the messages `asked`. Estimated if the endpoint did not report it.
    pub fn used(&self, asked: &[Message]) -> Usage {
        self.used_after(estimated_prompt(asked))
    }

    /// The use by this reply to a prompt of so many tokens. Estimated if the endpoint did not report it.
    pub(crate) fn used_after(&self, prompt_tokens: f64) -> Usage {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let mut usage = self.usage.unwrap_or_else(|| Usage {
            calls: 0.0,
            input_tokens: prompt_tokens,
            output_tokens: super::estimate_tokens(&self.text) as f64,
            cost: 0.0,
        });
        if let Some([input, output]) = self.price {
            usage.cost = usage.input_tokens * input + usage.output_tokens * output;
        }
        usage
    }
}

/// A reason for which an attempt brought no reply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The endpoint answered with an error.
    #[error("the endpoint answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The error's text from the body.
        message: String,
        /// True if the same request may succeed later.
        passing: bool,
        /// The wait that the endpoint asks for, in milliseconds.
        retry_after_ms: Option<f64>,
    },
    /// The endpoint could not be reached.
    #[error("the endpoint cannot be reached: {0}")]
    Unreachable(String),
    /// The reply is cut, or is not a reply.
    #[error("the endpoint's reply is broken: {0}")]
    Broken(String),
    /// The attempt took longer than this number of milliseconds.
    #[error("the endpoint did not answer within {0} ms")]
    TimedOut(f64),
    /// The endpoint answered, but no attempt would bring a reply.
    #[error("{0}")]
    Final(String),
}

/// The body of a request. `extra` has fields that the user adds, such as `temperature`. None of them can replace the model, the messages or
/// `stream`. A field with null is left out, because some endpoints do not know `stream_options`, for example.
pub fn request_body(model: &str, messages: &[Message], stream: bool, extra: &Map<String, Value>) -> String {
    let mut body = extra.clone();
    body.insert("model".to_owned(), model.into());
    body.insert("messages".to_owned(), json!(messages));
    body.insert("stream".to_owned(), stream.into());
    if stream {
        body.entry("stream_options").or_insert(json!({ "include_usage": true }));
    }
    body.retain(|_, value| !value.is_null());
    Value::Object(body).to_string()
}

/// The address for requests.
pub fn completions_url(base_url: &str) -> String {
    let base = base_url.trim_end_matches('/');
    if base.ends_with("/chat/completions") {
        base.to_owned()
    } else {
        format!("{base}/chat/completions")
    }
}

/// Reads a whole reply.
///
/// # Errors
/// A [`Failure`] if the body holds no text.
pub fn read_reply(body: &[u8]) -> Result<Reply, Failure> {
    let value: Value = serde_json::from_slice(body).map_err(|error| Failure::Broken(format!("no JSON: {error}")))?;
    let mut reading = Reading::default();
    reading.take(&value, "message")?;
    reading.end()
}

/// Reads a reply from server-sent events, however the bytes are split.
#[derive(Debug, Default)]
pub struct StreamReader {
    line: Vec<u8>,
    /// True if the last byte was a carriage return. A line feed after it does not end another line.
    after_return: bool,
    data: String,
    seen: usize,
    done: bool,
    reading: Reading,
}

impl StreamReader {
    /// Takes the next bytes, and returns the text that they add.
    ///
    /// # Errors
    /// A [`Failure`] if the bytes are not a reply.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, Failure> {
        let before = self.reading.text.len();
        self.seen = self.seen.saturating_add(bytes.len());
        if self.seen > MAX_REPLY_BYTES {
            return Err(too_long());
        }
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    self.end_line()?;
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
        }
        Ok(self.reading.text[before..].to_owned())
    }

    /// Returns true if the endpoint has declared the end of the stream.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Ends the stream, and returns the reply.
    ///
    /// # Errors
    /// A [`Failure`] if the stream was cut, or brought no text.
    pub fn end(mut self) -> Result<Reply, Failure> {
        self.end_line()?;
        self.end_event()?;
        if !self.done && !self.reading.finished {
            return Err(Failure::Broken("the stream was cut".to_owned()));
        }
        self.reading.end()
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_start_matches('\u{feff}');
        if line.is_empty() {
            return self.end_event();
        }
        if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
        Ok(())
    }

    fn end_event(&mut self) -> Result<(), Failure> {
        let data = std::mem::take(&mut self.data);
        if data.trim().is_empty() || self.done {
            return Ok(());
        }
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let value: Value = serde_json::from_str(&data)
            .map_err(|error| Failure::Broken(format!("an event that is no JSON: {error}")))?;
        self.reading.take(&value, "delta")
    }
}

/// The part of a reply that was read so far.
#[derive(Debug, Default)]
struct Reading {
    text: String,
    refusal: String,
    usage: Option<Usage>,
    finished: bool,
    cut: bool,
}

impl Reading {
    /// Takes a whole reply or a piece of one, with its text in `field`.
    fn take(&mut self, value: &Value, field: &str) -> Result<(), Failure> {
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(Failure::Broken(error_text(error)));
        }
        if let Some(usage) = value.get("usage").and_then(read_usage) {
            self.usage = Some(usage);
        }
        let Some(choice) = value.get("choices").and_then(|choices| choices.get(0)) else {
            return Ok(());
        };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finished = true;
            self.cut = reason == "length";
        }
        let part = choice.get(field).or_else(|| choice.get("message"));
        let text = part.and_then(|part| part.get("content"));
        match text {
            Some(Value::String(text)) => self.text.push_str(text),
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
                self.text.extend(texts);
            }
            _ => {}
        }
        if let Some(refusal) = part.and_then(|part| part.get("refusal")).and_then(Value::as_str) {
            self.refusal.push_str(refusal);
        }
        if self.text.len() > MAX_REPLY_BYTES {
            return Err(too_long());
        }
        Ok(())
    }

    fn end(self) -> Result<Reply, Failure> {
        if self.text.is_empty() && !self.refusal.is_empty() {
            return Err(Failure::Final(format!("the model refused: {}", self.refusal)));
        }
        if self.text.is_empty() && self.cut {
            let what = "the endpoint's limit of tokens was reached before the reply had any text; raise max_tokens";
            return Err(Failure::Final(what.to_owned()));
        }
        if self.text.is_empty() {
            return Err(Failure::Broken("it has no text".to_owned()));
        }
        Ok(Reply {
            text: self.text,
            usage: self.usage,
            cut: self.cut,
            price: None,
        })
    }
}

fn too_long() -> Failure {
    Failure::Final(format!("the endpoint's reply is longer than {MAX_REPLY_BYTES} bytes"))
}

fn read_usage(usage: &Value) -> Option<Usage> {
    let amount = |names: [&str; 2]| {
        names
            .iter()
            .find_map(|name| usage.get(*name).and_then(Value::as_f64))
            .filter(|amount| amount.is_finite() && *amount >= 0.0)
    };
    let (input, output) = (
        amount(["prompt_tokens", "input_tokens"]),
        amount(["completion_tokens", "output_tokens"]),
    );
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage {
        calls: 0.0,
        input_tokens: input.unwrap_or(0.0),
        output_tokens: output.unwrap_or(0.0),
        cost: amount(["cost", "total_cost"]).unwrap_or(0.0),
    })
}

/// The failure that a status other than 200 means. `now_ms` is the time since 1970 in milliseconds, for a `Retry-After` with a date.
pub fn refusal(status: u16, body: &[u8], retry_after: RetryAfter<'_>, now_ms: f64) -> Failure {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    // Some endpoints wrap the object into an array.
    let value = value.get(0).unwrap_or(&value);
    let error = value.get("error").unwrap_or(value);
    let message = match error_text(error) {
        text if text.is_empty() => {
            let text = String::from_utf8_lossy(&body[..body.len().min(2_000)]);
            text.trim().chars().take(300).collect()
        }
        text => text,
    };
    let code = |name| error.get(name).and_then(Value::as_str).unwrap_or_default();
    let out_of_credit = [code("code"), code("type")].contains(&"insufficient_quota");
    let passing = matches!(status, 408 | 409 | 425 | 429 | 500 | 502..=504 | 520..=524 | 529) && !out_of_credit;
    Failure::Status {
        status,
        message: if message.is_empty() {
            "nothing".to_owned()
        } else {
            message
        },
        passing,
        retry_after_ms: retry_after.ms(now_ms),
    }
}

fn error_text(error: &Value) -> String {
    let text = error.as_str().or_else(|| {
        let names = ["message", "error", "detail"];
        names.iter().find_map(|name| error.get(*name).and_then(Value::as_str))
    });
    text.unwrap_or_default().chars().take(1_000).collect()
}

/// The headers about the time of the next attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct RetryAfter<'a> {
    /// `Retry-After`: a number of seconds, or a date.
    pub seconds_or_date: Option<&'a str>,
    /// `Retry-After-Ms`.
    pub milliseconds: Option<&'a str>,
}

impl RetryAfter<'_> {
    fn ms(self, now_ms: f64) -> Option<f64> {
        let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<f64>().ok());
        let date = || {
            let date = httpdate::parse_http_date(self.seconds_or_date?.trim()).ok()?;
            let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(since.as_secs_f64() * 1_000.0 - now_ms)
        };
        number(self.milliseconds)
            .or_else(|| number(self.seconds_or_date).map(|seconds| seconds * 1_000.0))
            .or_else(date)
            .filter(|ms| ms.is_finite())
            .map(|ms| ms.max(0.0))
    }
}

/// The attempts to answer one question: decides if and when another attempt follows a failure.
#[derive(Debug)]
pub struct Attempts {
    max_retries: u32,
    failed: u32,
}

/// A failed attempt after which another follows.
#[derive(Debug, PartialEq)]
pub struct Retry {
    /// The number of the failed attempt, from 1.
    pub attempt: u32,
    /// Milliseconds until the next attempt.
    pub wait_ms: f64,
    /// The reason for the failure.
    pub reason: String,
}

impl Attempts {
    /// Allows `max_retries` attempts after the first.
    pub fn new(max_retries: u32) -> Self {
        Self { max_retries, failed: 0 }
    }

    /// Records a failed attempt. `chance` is a random number from 0 to 1. The `key` is removed from the reason.
    ///
    /// # Errors
    /// The reason for which there is no reply, if no other attempt follows.
    pub fn failed(&mut self, failure: &Failure, key: Option<&str>, chance: f64) -> Result<Retry, String> {
        self.failed += 1;
        let reason = super::query::without_key(failure.to_string(), key);
        match retry_in(failure, self.failed, self.max_retries, chance) {
            Some(wait_ms) => Ok(Retry {
                attempt: self.failed,
                wait_ms,
                reason,
            }),
            None if self.failed > 1 => Err(format!("{reason} ({} attempts)", self.failed)),
            None => Err(reason),
        }
    }
}

/// Milliseconds before attempt `attempt + 1`, or `None` if none follows. `chance` is a random number from 0 to 1. It keeps clients that
/// failed together from returning together.
pub fn retry_in(failure: &Failure, attempt: u32, max_retries: u32, chance: f64) -> Option<f64> {
    if attempt > max_retries {
        return None;
    }
    let asked = match failure {
        Failure::Status { passing: false, .. } | Failure::Final(_) => return None,
        Failure::Status { retry_after_ms, .. } => *retry_after_ms,
        Failure::Unreachable(_) | Failure::Broken(_) | Failure::TimedOut(_) => None,
    };
    let chance = chance.clamp(0.0, 1.0);
    match asked {
        Some(ms) if ms > MAX_RETRY_AFTER_MS => None,
        Some(ms) => Some(ms + FIRST_BACKOFF_MS / 2.0 * chance),
        None => {
            let doubled = FIRST_BACKOFF_MS * 2f64.powi(i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX));
            Some(doubled.min(MAX_BACKOFF_MS) * (0.5 + chance / 2.0))
        }
    }
}

/// The estimated number of tokens in messages.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn estimated_prompt(messages: &[Message]) -> f64 {
    let tokens = |message: &Message| super::estimate_tokens(&message.content) + 4;
    messages.iter().map(tokens).sum::<usize>() as f64
}
