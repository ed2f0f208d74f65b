//! Asks a model: an endpoint, or a function of the user's.

use std::rc::Rc;

use js_sys::{Function, JSON, Promise, Reflect};
use wasm_bindgen::prelude::*;

use crate::budget::usage;
use crate::endpoint::{Endpoint, Listener, NoReply};
use crate::glue::{describe, get, object, readable};
use crate::stop::{Stop, Waited};
use sandglass_rlm::Message;
use sandglass_rlm::event::hash;
use sandglass_rlm::limits::MAX_REPLY_BYTES;
use sandglass_rlm::openai::Reply;

/// A model.
#[derive(Clone)]
pub(super) enum Model {
    /// An OpenAI-compatible endpoint.
    Endpoint(Rc<Endpoint>),
    /// A function.
    Function(Function),
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

impl From<NoReply> for NoAnswer {
    fn from(none: NoReply) -> Self {
        match none {
            NoReply::Stopped => Self::Stopped,
            NoReply::Failed(why) => Self::Failed(why),
        }
    }
}

impl Model {
    /// The cost per token of prompts and replies, if it is known.
    pub(super) fn price(&self) -> Option<[f64; 2]> {
        match self {
            Self::Endpoint(endpoint) => endpoint.price,
            Self::Function(_) => None,
        }
    }

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
            Self::Endpoint(endpoint) => {
                let named = question.model.as_deref();
                Ok(endpoint.ask(question.messages, named, stop, &**listener).await?)
            }
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
