//! Opens a session on a server, and the session's channel.

use js_sys::{Array, Object, Reflect};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{AbortSignal, Response};

use super::Backend;
use crate::glue::{base64, bytes, describe, fetch, get, global, object};
use crate::socket::{NotOpened, Socket};
use sandglass_core::SUBPROTOCOL;
use sandglass_core::error::Error;
use sandglass_core::resumable::SUFFIX;

/// The backends that can run guests on a server.
const BACKENDS: [&str; 4] = ["bubblewrap", "docker", "subprocess", "jupyter"];
/// The longest part of a server's message that an error repeats, in characters.
const MAX_WORDS: usize = 500;

/// The channel of a session.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) isolation: &'static str,
}

/// The server's answer to `POST /v1/sessions`.
#[derive(Deserialize)]
struct Session {
    id: String,
    backend: String,
}

/// The server's error response.
#[derive(Deserialize)]
struct Problem {
    error: Words,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Text(String),
    Object { message: String },
}

/// Asks for a session, and opens its channel. A session that nobody wants by then is given back.
pub(super) async fn open(
    backend: &Backend,
    wanted: &str,
    signal: Option<&AbortSignal>,
    is_wanted: impl Fn() -> bool,
) -> Result<Opened, Error> {
    let Session { id, backend: name } = create(backend, wanted, signal).await?;
    let isolation = BACKENDS.into_iter().find(|known| *known == name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let (Some(isolation), true, 1..=200) = (isolation, id.bytes().all(is_plain), id.len()) else {
        return Err(stranger(backend, "its answer is not one that this release knows"));
    };
    if !is_wanted() {
        give_back(backend, &id);
        return Err(Error::Destroyed);
    }
    let socket = channel(backend, &id).await?;
    Ok(Opened { socket, isolation })
}

async fn create(backend: &Backend, wanted: &str, signal: Option<&AbortSignal>) -> Result<Session, Error> {
    if get(&global(), "WebSocket").is_undefined() {
        let why = "a backend is reached by a WebSocket, which this JavaScript runtime lacks: use Node.js 22 or newer; nothing was started";
        return Err(Error::BackendUnavailable(why.to_owned()));
    }
    let init = object(&[
        ("method", &"POST".into()),
        ("headers", &headers(backend)),
        ("body", &wanted.into()),
        ("signal", &signal.map_or(JsValue::UNDEFINED, JsValue::from)),
        ("credentials", &"omit".into()),
        ("cache", &"no-store".into()),
        ("redirect", &"error".into()),
    ]);
    let url = &backend.url;
    let response = async { JsFuture::from(fetch(&format!("{url}v1/sessions"), &init)?).await };
    let response: Response = response
        .await
        .map_err(|error| unreachable(url, &describe(&error)))?
        .unchecked_into();
    let text = async { JsFuture::from(response.text()?).await };
    let text = text.await.map_err(|error| unreachable(url, &describe(&error)))?;
    let text = text.as_string().unwrap_or_default();
    if !response.ok() {
        return Err(refusal(backend, response.status(), &text));
    }
    serde_json::from_str(&text).map_err(|_| stranger(backend, "its answer is not one that this release knows"))
}

async fn channel(backend: &Backend, id: &str) -> Result<Socket, Error> {
    let url = &backend.url;
    // The scheme http becomes ws, and https becomes wss.
    let address = format!("ws{}v1/sessions/{id}/channel", url.trim_start_matches("http"));
    let protocols = Array::of2(&SUBPROTOCOL.into(), &format!("{SUBPROTOCOL}{SUFFIX}").into());
    if let Some(key) = &backend.api_key {
        let key = String::from(base64(&bytes(key.as_bytes())));
        let key = key.trim_end_matches('=').replace('+', "-").replace('/', "_");
        protocols.push(&format!("sandglass.key.{key}").into());
    }
    let error = match Socket::open(address, protocols).await {
        Ok(socket) => return Ok(socket),
        Err(error) => error,
    };
    give_back(backend, id);
    let made = format!("the sandglass-host server at {url} made a session and did not open its channel");
    Err(match error {
        NotOpened::Failed(why) => unreachable(url, &why),
        NotOpened::Closed(why) => {
            let why = backend.without_key(why);
            Error::BackendUnavailable(format!(
                "{made}{why}: does what is between here and there (a proxy, the page's Content-Security-Policy) let \
                 WebSockets through?"
            ))
        }
        NotOpened::Refused(why) => {
            let why: String = backend.without_key(why).chars().take(MAX_WORDS).collect();
            Error::BackendUnavailable(format!("{made}: {why}"))
        }
    })
}

/// Ends a session whose channel could not be opened, or that nobody wants. The server may not hear this.
fn give_back(backend: &Backend, id: &str) {
    let init = object(&[
        ("method", &"DELETE".into()),
        ("headers", &headers(backend)),
        ("credentials", &"omit".into()),
    ]);
    if let Ok(promise) = fetch(&format!("{}v1/sessions/{id}", backend.url), &init) {
        spawn_local(async move { drop(JsFuture::from(promise).await) });
    }
}

/// The headers of every request.
fn headers(backend: &Backend) -> Object {
    let headers = object(&[("content-type", &"application/json".into())]);
    if let Some(key) = &backend.api_key {
        // Setting a property of a new object cannot fail.
        let _ = Reflect::set(&headers, &"authorization".into(), &format!("Bearer {key}").into());
    }
    headers
}

fn unreachable(url: &str, why: &str) -> Error {
    Error::BackendUnavailable(format!(
        "no sandglass-host server answers this page at {url} ({why}): is it running (`sandglass-host serve`), was it told \
         `--allow-origin` with the page's origin, and does the page's Content-Security-Policy allow it in connect-src?"
    ))
}

fn stranger(backend: &Backend, why: &str) -> Error {
    let url = &backend.url;
    Error::BackendUnavailable(format!(
        "what answers at {url} is no sandglass-host server of this release: {why}"
    ))
}

/// The error for a server's refusal.
fn refusal(backend: &Backend, status: u16, text: &str) -> Error {
    let url = &backend.url;
    let words = match serde_json::from_str(text) {
        Ok(Problem {
            error: Words::Text(message) | Words::Object { message },
        }) => message,
        Err(_) => String::new(),
    };
    let words: String = backend.without_key(words).chars().take(MAX_WORDS).collect();
    let words = if words.is_empty() { words } else { format!(": {words}") };
    let what = match (status, &backend.api_key) {
        (401 | 403, None) => "asks for a key: pass backend.apiKey",
        (401 | 403, Some(_)) => "does not accept backend.apiKey",
        (404 | 405, _) => return stranger(backend, &format!("it answers {status}")),
        (429, _) => "has no room for another session: try again later, or destroy others",
        (400 | 413 | 422, _) => "does not take a session with these limits",
        _ => "could not make a session",
    };
    Error::BackendUnavailable(format!("the sandglass-host server at {url} {what} ({status}{words})"))
}
