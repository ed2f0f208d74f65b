//! OpenAI-compatible endpoints: their options, and how they are asked.

use std::cell::Cell;
use std::rc::Rc;

use js_sys::{Array, Function, Math, Object, Promise, Reflect};
use serde_json::{Map, Value};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::Response;

use super::arguments::{entries, json, number, text, whole};
use super::body::{Chunks, read_all};
use super::budget::shown;
use super::glue::{describe, fetch, get, global, is_plain, object, readable};
use super::stop::{Stop, after};
use sandglass_core::error::Error;
use sandglass_rlm::limits::{ATTEMPT_TIMEOUT_MS, MAX_REPLY_BYTES, MAX_RETRIES};
use sandglass_rlm::openai::{
    Attempts, Failure, Reply, Retry, RetryAfter, StreamReader, completions_url, read_reply, refusal, request_body,
};
use sandglass_rlm::{Message, Role, query};

/// Bytes that are read of an error response's body.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Milliseconds in which something that listens has to answer.
const PROBE_MS: f64 = 3_000.0;

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
    /// The way to start the endpoint, and to have it allow requests of this page.
    setup: Option<String>,
}

/// Hears the progress of an answer.
pub(super) trait Listener {
    /// More text has come.
    fn text(&self, text: &str);
    /// An attempt failed. Drop the text so far.
    fn retry(&self, retry: Retry);
}

/// Hears nothing.
struct Unheard;

impl Listener for Unheard {
    fn text(&self, _: &str) {}

    fn retry(&self, _: Retry) {}
}

/// The reason why there is no reply.
pub(super) enum NoReply {
    /// The call was stopped.
    Stopped,
    /// The endpoint failed.
    Failed(String),
}

impl Endpoint {
    /// Reads an endpoint. `what` names the option.
    pub(super) fn parse(what: &str, value: &JsValue) -> Result<Self, Error> {
        if !is_plain(value) {
            let kinds = "must be a function or { baseUrl, model, … }; sandglass/models makes such of engines, and promises \
                         have to be awaited";
            return Err(Error::invalid(what, kinds));
        }
        let mut endpoint = Self {
            base_url: String::new(),
            api_key: None,
            model: String::new(),
            models: Vec::new(),
            headers: Vec::new(),
            body: serde_json::Map::new(),
            stream: true,
            max_retries: MAX_RETRIES,
            timeout_ms: ATTEMPT_TIMEOUT_MS,
            price: None,
            setup: None,
        };
        for (key, value) in entries(value, what)? {
            let name = format!("{what}.{key}");
            match key.as_str() {
                _ if value.is_undefined() => {}
                "baseUrl" => endpoint.base_url = text(&name, &value)?,
                "apiKey" => endpoint.api_key = Some(text(&name, &value)?).filter(|key| !key.is_empty()),
                "model" => endpoint.model = text(&name, &value)?,
                "models" => {
                    let models = value
                        .dyn_into::<Array>()
                        .map_err(|_| Error::invalid(&name, "must be an array"))?;
                    endpoint.models = models
                        .iter()
                        .map(|model| text(&name, &model))
                        .collect::<Result<_, _>>()?;
                }
                "headers" => {
                    for (header, value) in entries(&value, &name)? {
                        endpoint.headers.push((header, text(&name, &value)?));
                    }
                }
                "body" => match json(&name, &value)? {
                    Value::Object(fields) => endpoint.body = fields,
                    _ => return Err(Error::invalid(name, "must be an object of request fields")),
                },
                "stream" => {
                    endpoint.stream = value
                        .as_bool()
                        .ok_or_else(|| Error::invalid(name, "must be true or false"))?
                }
                "maxRetries" => endpoint.max_retries = whole(&name, &value, 0.0, 100.0)?,
                "timeout" => endpoint.timeout_ms = number(&name, &value, 1.0, 2_147_483_647.0)?,
                "setup" => endpoint.setup = Some(text(&name, &value)?),
                "price" => endpoint.price = Some(parse_price(&name, &value)?),
                _ => {
                    return Err(Error::invalid(
                        name,
                        "there is no such option of a model; request fields go into body",
                    ));
                }
            }
        }
        // An address that begins with a slash belongs to the page's own origin.
        if !endpoint.base_url.starts_with('/') && web_sys::Url::new(&endpoint.base_url).is_err() {
            return Err(Error::invalid(
                format!("{what}.baseUrl"),
                "must be an address, such as https://api.example.com/v1",
            ));
        }
        if endpoint.model.is_empty() {
            return Err(Error::invalid(format!("{what}.model"), "must be the name of a model"));
        }
        Ok(endpoint)
    }

    /// The endpoint as a function that answers prompts, as `onLLMQuery` takes one.
    pub(super) fn into_function(self) -> Function {
        let endpoint = Rc::new(self);
        Closure::<dyn Fn(JsValue, JsValue) -> Promise>::new(move |prompt: JsValue, info: JsValue| {
            let endpoint = endpoint.clone();
            future_to_promise(async move { endpoint.answer(&prompt, &info).await })
        })
        .into_js_value()
        .unchecked_into()
    }

    async fn answer(&self, prompt: &JsValue, info: &JsValue) -> Result<JsValue, JsValue> {
        let stop = Stop::on(&[&get(info, "signal").dyn_into()?])?;
        let messages = [Message {
            role: Role::User,
            content: prompt.dyn_ref().map(readable).unwrap_or_default(),
        }];
        let model = get(info, "model").as_string();
        match self.ask(&messages, model.as_deref(), &stop, &Unheard).await {
            Ok(reply) => {
                let usage = shown(&reply.used(&messages));
                Ok(object(&[("text", &reply.text.into()), ("usage", &usage)]).into())
            }
            Err(NoReply::Failed(why)) => Err(js_sys::Error::new(&why).into()),
            Err(NoReply::Stopped) => Err(js_sys::Error::new("the question was withdrawn").into()),
        }
    }

    /// Asks the endpoint, and tries again when another attempt may help. `named` is the model that Python named.
    pub(super) async fn ask(
        &self,
        messages: &[Message],
        named: Option<&str>,
        stop: &Stop,
        listener: &dyn Listener,
    ) -> Result<Reply, NoReply> {
        let model = query::model_named(named, &self.model, &self.models).map_err(NoReply::Failed)?;
        let body = request_body(model, messages, self.stream, &self.body);
        let mut attempts = Attempts::new(self.max_retries);
        loop {
            let failure = match self.attempt(&body, stop, listener).await {
                Ok(reply) => {
                    return Ok(Reply {
                        price: self.price,
                        ..reply
                    });
                }
                Err(_) if stop.is_stopped() => return Err(NoReply::Stopped),
                Err(failure) => failure,
            };
            match attempts.failed(&failure, self.api_key.as_deref(), Math::random()) {
                Ok(retry) => {
                    let wait_ms = retry.wait_ms;
                    listener.retry(retry);
                    stop.pause(wait_ms).await.map_err(|_| NoReply::Stopped)?;
                }
                Err(reason) => {
                    let explanation = match failure {
                        Failure::Unreachable(_) => self.explain(stop).await,
                        _ => String::new(),
                    };
                    return Err(NoReply::Failed(reason + &explanation));
                }
            }
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
        let response = self
            .send(body, stop)
            .await
            .map_err(|error| Failure::Unreachable(format!("{}: {}", self.base_url, describe(&error))))?;
        let header = |name: &str| response.headers().get(name).ok().flatten();
        if !response.ok() {
            // An incomplete body is not the reason for the failure.
            let body = read_all(&response, MAX_REFUSAL_BYTES).await;
            let body = body.ok().flatten().unwrap_or_default();
            let (after, ms) = (header("retry-after"), header("retry-after-ms"));
            let retry_after = RetryAfter {
                seconds_or_date: after.as_deref(),
                milliseconds: ms.as_deref(),
            };
            return Err(refusal(response.status(), &body, retry_after, js_sys::Date::now()));
        }
        if header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut reader = StreamReader::default();
            let mut chunks = Chunks::of(&response).map_err(|error| cut(&error))?;
            while let Some(chunk) = chunks.next().await.map_err(|error| cut(&error))? {
                let text = reader.push(&chunk.to_vec())?;
                if !text.is_empty() {
                    listener.text(&text);
                }
                if reader.is_done() {
                    break;
                }
            }
            return reader.end();
        }
        let body = read_all(&response, MAX_REPLY_BYTES)
            .await
            .map_err(|error| cut(&error))?;
        let body =
            body.ok_or_else(|| Failure::Final(format!("the endpoint's reply is longer than {MAX_REPLY_BYTES} bytes")))?;
        let reply = read_reply(&body)?;
        listener.text(&reply.text);
        Ok(reply)
    }

    /// The likely reason why no request comes through, and the way to mend it. Browsers tell pages no reason.
    async fn explain(&self, stop: &Stop) -> String {
        let page = global();
        let origin = get(&get(&page, "location"), "origin").as_string().unwrap_or_default();
        if origin.is_empty() {
            return ": nothing answers there".to_owned(); // no page, so no policy and no CORS
        }
        let of = web_sys::Url::new(&self.base_url).map_or(origin.clone(), |url| url.origin());
        let setup = self
            .setup
            .as_deref()
            .map(|setup| format!(". {setup}"))
            .unwrap_or_default();
        if of == origin {
            return setup;
        }
        let denied = format!("it does not allow requests from {origin} (CORS)");
        let silent = "nothing answers there, or the browser keeps requests back: `connect-src` of the page's \
                      Content-Security-Policy has to name the address, and an https page reaches only https and this machine";
        let why = match self.answers(stop).await {
            true => format!("something answers there, but {denied}"),
            // The browser keeps all answers from such a page that do not agree to it.
            false if get(&page, "crossOriginIsolated").is_truthy() => format!("{silent}; or {denied}"),
            false => silent.to_owned(),
        };
        format!(": {why}{setup}")
    }

    /// Returns true when something listens at the address. Such a request needs no permission of the endpoint, and its answer cannot be
    /// read.
    async fn answers(&self, stop: &Stop) -> bool {
        let Ok(own) = Stop::on(&[stop.signal()]) else {
            return false;
        };
        let _timer = {
            let own = own.clone();
            after(PROBE_MS, move || own.end())
        };
        let init = object(&[
            ("mode", &"no-cors".into()),
            ("credentials", &"omit".into()),
            ("referrerPolicy", &"no-referrer".into()),
            ("cache", &"no-store".into()),
            ("signal", own.signal()),
        ]);
        let answered = match fetch(&self.base_url, &init) {
            Ok(response) => own.wait(response).await.is_ok(),
            Err(_) => false,
        };
        own.end();
        answered
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

fn cut(error: &JsValue) -> Failure {
    Failure::Broken(format!("the connection was cut: {}", describe(error)))
}

/// Converts cost per million tokens into cost per token.
fn parse_price(name: &str, value: &JsValue) -> Result<[f64; 2], Error> {
    let mut price = [0.0; 2];
    for (kind, value) in entries(value, name)? {
        let of = match kind.as_str() {
            "input" => &mut price[0],
            "output" => &mut price[1],
            _ => return Err(Error::invalid(name, "is { input, output }, per million tokens")),
        };
        *of = number(&format!("{name}.{kind}"), &value, 0.0, 1e12)? / 1e6;
    }
    Ok(price)
}
