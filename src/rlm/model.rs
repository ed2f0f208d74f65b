//! Asks a model: an endpoint, or a function of the user's.

use std::cell::Cell;
use std::rc::Rc;

use js_sys::{Function, JSON, Math, Object, Promise, Reflect, Uint8Array};
use serde_json::{Map, Value};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{ReadableStreamDefaultReader, Response};

use crate::budget::usage;
use crate::glue::{describe, fetch, get, object, readable};
use crate::stop::{Stop, Waited, after};
use sandglass_rlm::event::hash;
use sandglass_rlm::limits::MAX_REPLY_BYTES;
use sandglass_rlm::openai::{
    Attempts, Failure, Reply, Retry, RetryAfter, StreamReader, completions_url, read_reply, refusal, request_body,
};
use sandglass_rlm::{Message, query};

/// Bytes that are read of an error response's body.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// A model.
#[derive(Clone)]
pub(super) enum Model {
    /// An OpenAI-compatible endpoint.
    Endpoint(Rc<Endpoint>),
    /// A function.
    Function(Function),
}

/// An OpenAI-compatible endpoint. Its key is in requests and nowhere else.
pub(super) struct Endpoint {
    pub(super) base_url: String,
    pub(super) api_key: Option<String>,
    pub(super) model: String,
    /// Other models that Python may name.
    pub(super) models: Vec<String>,
    pub(super) headers: Vec<(String, String)>,
    /// Additional fields of every request.
    pub(super) body: Map<String, Value>,
    pub(super) stream: bool,
    pub(super) max_retries: u32,
    /// The time limit of one attempt, in milliseconds.
    pub(super) timeout_ms: f64,
    /// The cost of a prompt's token, and of an answer's.
    pub(super) price: Option<[f64; 2]>,
}

/// The purpose of a call: the kind of answer, and the run that asks.
pub(super) struct Question<'a> {
    pub(super) messages: &'a [Message],
    pub(super) run: &'a str,
    pub(super) depth: u32,
    pub(super) purpose: Purpose,
    /// The model that Python named.
    pub(super) model: Option<String>,
}

#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// A turn's reply.
    Turn(u32),
    /// A draft of a turn's reply.
    Draft(u32),
    /// The answer to a query of Python's.
    Query(u32),
}

/// Hears the progress of an answer.
pub(super) trait Listener {
    /// More text has come.
    fn text(&self, text: &str);
    /// An attempt failed. Drop the text so far.
    fn retry(&self, retry: Retry);
}

/// The reason why there is no answer.
pub(super) enum NoAnswer {
    /// The call was stopped.
    Stopped,
    /// The model failed.
    Failed(String),
    /// The model repeats a recording that does not hold this call.
    NotRecorded(String),
}

/// The name of the error that a recorded model throws for a call that was not recorded.
pub(super) const NOT_RECORDED: &str = "NotRecorded";

impl From<Waited> for NoAnswer {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited::Stopped => Self::Stopped,
            Waited::Rejected(error) if get(&error, "name") == NOT_RECORDED => {
                Self::NotRecorded(get(&error, "message").as_string().unwrap_or_default())
            }
            Waited::Rejected(error) => Self::Failed(describe(&error)),
        }
    }
}

impl Model {
    /// Returns true for the same model.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Endpoint(one), Self::Endpoint(other)) => one.model == other.model && one.base_url == other.base_url,
            (Self::Function(one), Self::Function(other)) => one == other,
            _ => false,
        }
    }

    /// Asks the model, and tries again when another attempt may help.
    pub(super) async fn ask(
        &self,
        question: &Question<'_>,
        stop: &Stop,
        listener: &Rc<dyn Listener>,
    ) -> Result<Reply, NoAnswer> {
        match self {
            Self::Endpoint(endpoint) => endpoint.ask(question, stop, listener).await,
            Self::Function(function) => ask_function(function, question, stop, listener).await,
        }
    }
}

async fn ask_function(
    function: &Function,
    question: &Question<'_>,
    stop: &Stop,
    listener: &Rc<dyn Listener>,
) -> Result<Reply, NoAnswer> {
    let messages = serde_json::to_string(question.messages)
        .ok()
        .and_then(|json| JSON::parse(&json).ok())
        .unwrap_or_default();
    let (purpose, call) = match question.purpose {
        Purpose::Turn(turn) => ("turn", turn),
        Purpose::Draft(turn) => ("draft", turn),
        Purpose::Query(call) => ("query", call),
    };
    let on_text = {
        let listener = Rc::downgrade(listener);
        // The user's function may keep this callback and call it too late. A late call has no effect.
        Closure::<dyn Fn(JsValue)>::new(move |text: JsValue| {
            if let (Some(listener), Some(text)) = (listener.upgrade(), text.as_string()) {
                listener.text(&text);
            }
        })
        .into_js_value()
    };
    let prompt = question
        .messages
        .last()
        .map(|message| message.content.as_str())
        .unwrap_or_default();
    let info = object(&[
        ("signal", stop.signal()),
        ("onText", &on_text),
        ("run", &question.run.into()),
        ("depth", &question.depth.into()),
        ("purpose", &purpose.into()),
        ("call", &call.into()),
        ("promptHash", &hash(prompt).into()),
    ]);
    if let Some(model) = &question.model {
        let _ = Reflect::set(&info, &"model".into(), &model.into());
    }
    let answer = function
        .call2(&JsValue::UNDEFINED, &messages, &info)
        .map_err(|error| NoAnswer::Failed(describe(&error)))?;
    let answer = stop.wait(Promise::resolve(&answer)).await?;
    let (text, used) = match answer.is_object() {
        true => (get(&answer, "text"), get(&answer, "usage")),
        false => (answer, JsValue::UNDEFINED),
    };
    // Lone surrogates are escaped. In a str of the reply's code, the escape stands for the same character.
    let text = text.dyn_ref().map(readable);
    match text {
        Some(text) if text.len() > MAX_REPLY_BYTES => Err(NoAnswer::Failed(format!(
            "the model's reply is longer than {MAX_REPLY_BYTES} bytes"
        ))),
        Some(text) => Ok(Reply {
            text,
            usage: used.is_object().then(|| usage(&used)),
            cut: false,
            price: None,
        }),
        None => {
            let what = "the model function returned neither a string nor { text, usage }";
            Err(NoAnswer::Failed(what.to_owned()))
        }
    }
}

impl Endpoint {
    async fn ask(&self, question: &Question<'_>, stop: &Stop, listener: &Rc<dyn Listener>) -> Result<Reply, NoAnswer> {
        let model =
            query::model_named(question.model.as_deref(), &self.model, &self.models).map_err(NoAnswer::Failed)?;
        let body = request_body(model, question.messages, self.stream, &self.body);
        let mut attempts = Attempts::new(self.max_retries);
        loop {
            let failure = match self.attempt(&body, stop, &**listener).await {
                Ok(reply) => {
                    return Ok(Reply {
                        price: self.price,
                        ..reply
                    });
                }
                Err(_) if stop.is_stopped() => return Err(NoAnswer::Stopped),
                Err(failure) => failure,
            };
            let retry = attempts.failed(&failure, self.api_key.as_deref(), Math::random());
            let retry = retry.map_err(NoAnswer::Failed)?;
            let wait_ms = retry.wait_ms;
            listener.retry(retry);
            stop.pause(wait_ms).await?;
        }
    }

    async fn attempt(&self, body: &str, stop: &Stop, listener: &dyn Listener) -> Result<Reply, Failure> {
        let unreachable = |error: JsValue| Failure::Unreachable(describe(&error));
        let own = Stop::on(&[stop.signal()]).map_err(unreachable)?;
        let timed_out = Rc::new(Cell::new(false));
        let _timer = {
            let (own, timed_out) = (own.clone(), timed_out.clone());
            after(self.timeout_ms, move || {
                timed_out.set(true);
                own.end();
            })
        };
        let reply = self.exchange(body, &own, listener).await;
        // Ends requests that are still under way, such as a body that nobody reads to its end.
        own.end();
        match reply {
            Err(_) if timed_out.get() => Err(Failure::TimedOut(self.timeout_ms)),
            reply => reply,
        }
    }

    async fn exchange(&self, body: &str, stop: &Stop, listener: &dyn Listener) -> Result<Reply, Failure> {
        let response = self.send(body, stop).await.map_err(|error| {
            let why = describe(&error);
            Failure::Unreachable(format!(
                "{why}; is {} up, and does it allow requests from this page (CORS)?",
                self.base_url
            ))
        })?;
        let header = |name: &str| response.headers().get(name).ok().flatten();
        if !response.ok() {
            // An incomplete body is not the reason for the failure.
            let body = read_all(&response, MAX_REFUSAL_BYTES).await.unwrap_or_default();
            let (after, ms) = (header("retry-after"), header("retry-after-ms"));
            let retry_after = RetryAfter {
                seconds_or_date: after.as_deref(),
                milliseconds: ms.as_deref(),
            };
            return Err(refusal(response.status(), &body, retry_after, js_sys::Date::now()));
        }
        if header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut reader = StreamReader::default();
            let mut chunks = Chunks::of(&response)?;
            while let Some(chunk) = chunks.next().await? {
                let text = reader.push(&chunk)?;
                if !text.is_empty() {
                    listener.text(&text);
                }
                if reader.is_done() {
                    break;
                }
            }
            return reader.end();
        }
        let body = read_all(&response, MAX_REPLY_BYTES).await?;
        let reply = read_reply(&body)?;
        listener.text(&reply.text);
        Ok(reply)
    }

    async fn send(&self, body: &str, stop: &Stop) -> Result<Response, JsValue> {
        let headers = Object::new();
        let set = |name: &str, value: &str| Reflect::set(&headers, &name.into(), &value.into()).map(drop);
        set("content-type", "application/json")?;
        if let Some(key) = &self.api_key {
            set("authorization", &format!("Bearer {key}"))?;
        }
        for (name, value) in &self.headers {
            set(&name.to_ascii_lowercase(), value)?;
        }
        let init = object(&[
            ("method", &"POST".into()),
            ("headers", &headers),
            ("body", &body.into()),
            ("credentials", &"omit".into()),
            ("referrerPolicy", &"no-referrer".into()),
            ("cache", &"no-store".into()),
            ("signal", stop.signal()),
        ]);
        let response = JsFuture::from(fetch(&completions_url(&self.base_url), &init)?).await?;
        response.dyn_into()
    }
}

/// The pieces of a response's body. Aborting the fetch ends the wait for a piece.
struct Chunks(Option<ReadableStreamDefaultReader>);

impl Chunks {
    fn of(response: &Response) -> Result<Self, Failure> {
        let reader = response.body().map(|body| body.get_reader().dyn_into());
        let reader = reader
            .transpose()
            .map_err(|_| Failure::Broken("it cannot be read".to_owned()))?;
        Ok(Self(reader))
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(reader) = &self.0 else { return Ok(None) };
        let read = JsFuture::from(reader.read()).await;
        let read = read.map_err(|error| Failure::Broken(format!("the connection was cut: {}", describe(&error))))?;
        if get(&read, "done").is_truthy() {
            return Ok(None);
        }
        let chunk = get(&read, "value").dyn_into::<Uint8Array>();
        chunk
            .map(|chunk| Some(chunk.to_vec()))
            .map_err(|_| Failure::Broken("it is no bytes".to_owned()))
    }
}

async fn read_all(response: &Response, most: usize) -> Result<Vec<u8>, Failure> {
    let (mut bytes, mut chunks) = (Vec::new(), Chunks::of(response)?);
    while let Some(chunk) = chunks.next().await? {
        bytes.extend(chunk);
        if bytes.len() > most {
            return Err(Failure::Final(format!(
                "the endpoint's reply is longer than {most} bytes"
            )));
        }
    }
    Ok(bytes)
}
