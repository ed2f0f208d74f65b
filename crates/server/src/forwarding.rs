//! Requests for sessions that another server has: they are forwarded to that server, and its answers come back. A server that ends, or is full,
//! forwards requests for new sessions as well.
//!
//! The address is from the lease of that server, which only servers with the key of states can write. So no client and no guest chooses
//! where a request goes. The client's own key goes along, and both servers check it. A forwarded request is marked, and goes no further.
//! If the other server has done nothing with a small request, this one tries another way.
//!
//! Decisions: `docs/internals/server.md`.

mod remembered;
mod way;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use reqwest::{Client, redirect};
use sandglass_host::traces::{self, Span, SpanKind};
use sandglass_states::ServerId;

use super::App;
use super::bodies;
use super::connections::{ConnectionPermit, FORWARDED};
use super::errors::{ApiError, Ours, UNTOUCHED};
use super::quotas::Held;
use super::sharing;
use super::suspension::Suspension;
use remembered::Remembered;
use way::{Asked, Elsewhere, Way, What, way};

/// The value of the mark if the request comes back when nothing was done.
const MAY_COME_BACK: &str = "may-come-back";
/// The value of the mark if the request comes back unless its session is awake at the other server.
const IF_AWAKE: &str = "if-awake";
/// The most attempts to forward a request, and the pause before the second attempt at one server.
const MOST_TRIES: usize = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The largest body that is kept so that the request can be sent again, in bytes.
const MOST_COPIED: usize = 64 << 10;
/// The code of the error for a server that does not answer.
const UNREACHABLE: &str = "server_unreachable";
/// The headers that belong to one connection.
const OF_CONNECTIONS: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// The time for a connection to another server.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// The interval at which the system asks a machine that says nothing, and the time after which the machine counts as gone.
const ASKING: Duration = Duration::from_secs(10);
const GONE: Duration = Duration::from_secs(30);
/// The longest time for which a connection to another server is kept without a request. That server closes it later by itself.
const KEPT: Duration = Duration::from_secs(4);
/// The most connections to one server that are kept without a request.
const MOST_KEPT: usize = 32;

/// The ways to other servers.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// Keeps connections for later requests.
    kept: Client,
    /// Makes a connection for each request.
    fresh: Client,
    remembered: Remembered,
}

impl Forwarding {
    /// # Errors
    /// The client cannot be made.
    pub(super) fn new(head_timeout: Duration) -> Result<Self, String> {
        let client = |most_kept| {
            let client = Client::builder()
                .no_proxy()
                .redirect(redirect::Policy::none())
                .http1_only()
                .connect_timeout(CONNECT_TIME)
                .pool_max_idle_per_host(most_kept)
                .pool_idle_timeout(KEPT.min(head_timeout / 3))
                .tcp_nodelay(true)
                .tcp_keepalive(ASKING)
                .tcp_keepalive_interval(ASKING)
                .tcp_user_timeout(GONE)
                .build();
            client.map_err(|error| format!("requests cannot be forwarded: {error}"))
        };
        Ok(Self {
            kept: client(MOST_KEPT)?,
            fresh: client(0)?,
            remembered: Remembered::default(),
        })
    }

    /// The client that makes a connection for each request, as one that lasts needs it.
    pub(super) fn client(&self) -> &Client {
        &self.fresh
    }

    /// The client for a request to this server. A server that ends closes kept connections, and a request that is on its way then would fail
    /// without an answer. So requests to it get new ones.
    fn client_for(&self, app: &App, server: ServerId, is_upgrade: bool) -> &Client {
        let states = app.suspension.as_ref().map(Suspension::states);
        let load = states.and_then(|states| states.load(server));
        match is_upgrade || load.is_some_and(|load| load.load.is_draining) {
            true => &self.fresh,
            false => &self.kept,
        }
    }
}

/// The headers with which a WebSocket of JSON-RPC may be opened at the server that holds its conversation. `None` for a request that was
/// forwarded, and without other servers.
pub(super) fn of_conversation(app: &App, headers: &HeaderMap) -> Option<HeaderMap> {
    if app.forwarding.is_none() || headers.contains_key(FORWARDED) {
        return None;
    }
    let mut headers = onward(headers, "1");
    headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
    Some(headers)
}

/// The end of an attempt to forward a request.
enum Sent {
    Answered(Response),
    /// The other server did nothing. The error is for a client that no other way is left for.
    Untouched(ApiError),
}

/// Forwards a request if another server has its session, or is to take it. Otherwise this server answers.
pub(super) async fn forward(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let (Some(forwarding), Some(asked)) = (&app.forwarding, Asked::of(&mut request).await) else {
        return next.run(request).await;
    };
    let guess = forwarding.guess(&app, &asked);
    let is_guess = guess.is_some();
    let found = match guess {
        Some(elsewhere) => Ok(Way::There(elsewhere)),
        None => way(&app, &asked, &[]).await,
    };
    let first = match found {
        Ok(Way::Here) => return next.run(request).await,
        Ok(Way::Back) => return ApiError::shutting_down().into_response(),
        Ok(Way::There(elsewhere)) => elsewhere,
        Err(error) => return error.into_response(),
    };
    let mut request = match Onward::of(&app, &asked, request).await {
        Ok(request) => request,
        Err(error) => return error.into_response(),
    };
    let answer = send_on(&app, forwarding, &asked, &mut request, (first, is_guess)).await;
    match answer {
        Ok(Some(response)) => response,
        Ok(None) => next.run(request.into_request()).await,
        Err(error) => error.into_response(),
    }
}

/// Sends a request to other servers until one takes it. `None` if this server is to answer.
async fn send_on(
    app: &App,
    forwarding: &Forwarding,
    asked: &Asked,
    request: &mut Onward,
    (mut elsewhere, mut is_guess): (Elsewhere, bool),
) -> Result<Option<Response>, ApiError> {
    let mut tried = Vec::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = tried.len() + 1 == MOST_TRIES;
        let mark = match (is_guess, is_last || request.copy.is_none()) {
            (true, _) => IF_AWAKE,
            (false, true) => "1",
            (false, false) => MAY_COME_BACK,
        };
        let why = match send(app, forwarding, asked, &elsewhere, request, mark).await? {
            Sent::Answered(response) => return Ok(Some(response)),
            Sent::Untouched(why) => why,
        };
        if is_guess {
            // It was wrong. The store tells where the session is, which may be the same server.
            forwarding.remembered.forget(&asked.account.owner, asked.id());
            is_guess = false;
            elsewhere = match way(app, asked, &tried).await? {
                Way::Here => return Ok(None),
                Way::Back => return Err(why),
                Way::There(found) => found,
            };
            continue;
        }
        tried.push(elsewhere.server);
        if is_last || request.copy.is_none() {
            return Err(why);
        }
        elsewhere = match way(app, asked, &tried).await? {
            Way::Here => return Ok(None),
            Way::Back => return Err(why),
            Way::There(again) if tried.contains(&again.server) => {
                if why.code == UNREACHABLE {
                    return Err(why); // it was killed, most likely
                }
                tokio::time::sleep(pause).await; // it stores the session
                pause *= 2;
                again
            }
            Way::There(other) => other,
        };
    }
}

/// Returns true if the body of a request can be kept, so that the request can be sent again.
fn is_small(request: &Request) -> bool {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    request.body().is_end_stream() || length.is_some_and(|bytes| bytes <= MOST_COPIED)
}

/// A request on its way to other servers.
struct Onward {
    parts: Parts,
    body: Body,
    /// The body, if it is small. Then the request can be sent again, or answered here after all.
    copy: Option<Bytes>,
    /// The copy's part of the quota.
    _held: Vec<Held>,
}

impl Onward {
    async fn of(app: &App, asked: &Asked, request: Request) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let (body, copy, held) = if body.is_end_stream() {
            (Body::empty(), Some(Bytes::new()), Vec::new())
        } else if asked.can_repeat {
            let taken = bodies::take(&asked.account, app.args.body_limits(), &parts.headers, body).await?;
            (Body::empty(), Some(taken.value.into()), taken.held)
        } else {
            (body, None, Vec::new())
        };
        Ok(Self {
            parts,
            body,
            copy,
            _held: held,
        })
    }

    fn take_body(&mut self) -> Body {
        match &self.copy {
            Some(copy) => Body::from(copy.clone()),
            None => std::mem::take(&mut self.body),
        }
    }

    fn into_request(mut self) -> Request {
        let body = self.take_body();
        Request::from_parts(self.parts, body)
    }
}

async fn send(
    app: &App,
    forwarding: &Forwarding,
    asked: &Asked,
    elsewhere: &Elsewhere,
    request: &mut Onward,
    mark: &'static str,
) -> Result<Sent, ApiError> {
    let Elsewhere { server, address } = elsewhere;
    let uri = &request.parts.uri;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    if !is_plain(uri.path()) {
        let problem = "a path must not have \"\\\", or a part \".\" or \"..\"";
        return Err(ApiError::invalid(problem));
    }
    let hop = Span::begin("forward", SpanKind::Client);
    let mut headers = onward(&request.parts.headers, mark);
    traces::inject(&hop.context(), &mut headers);
    let is_upgrade = headers.contains_key(header::UPGRADE);
    let mut forwarded = forwarding
        .client_for(app, *server, is_upgrade)
        .request(request.parts.method.clone(), format!("{address}{path}"))
        .headers(headers);
    let body = request.take_body();
    if !body.is_end_stream() {
        forwarded = forwarded.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    // A stream that lasts would keep this server from ending.
    let lasts = matches!(asked.what, What::Conversation(_)) && request.parts.method == Method::GET;
    let mut over: Over = match lasts {
        true => Box::pin(first(over(app.clone(), *server), app.ending.clone().cancelled_owned())),
        false => Box::pin(over(app.clone(), *server)),
    };
    let answer = tokio::select! {
        biased;
        answer = forwarded.send() => answer.map_err(|error| error.is_connect()),
        () = &mut over => Err(false),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(is_untouched) => {
            app.metrics.forward(if is_untouched { "unreachable" } else { "silent" });
            hop.failed(if is_untouched { "unreachable" } else { "silent" });
            let why = out_of_reach(app, asked, is_untouched);
            return if is_untouched {
                Ok(Sent::Untouched(why))
            } else {
                Err(why)
            };
        }
    };
    hop.set("http.response.status_code", i64::from(answer.status().as_u16()));
    tracing::debug!(session = asked.id(), %address, status = answer.status().as_u16(), "forwarded");
    let (owner, is_guess) = (&asked.account.owner, mark == IF_AWAKE);
    // Servers of earlier releases do not know this mark, and answer so if the session has moved on.
    let has_moved = is_guess && answer.status() == StatusCode::LOOP_DETECTED;
    // A server of an earlier release does not know the protocol.
    let is_unknown = asked.what == What::NewConversation && answer.status() == StatusCode::NOT_FOUND;
    if has_moved || is_unknown || answer.headers().contains_key(UNTOUCHED) {
        app.metrics.forward("refused");
        return Ok(Sent::Untouched(is_ending()));
    }
    app.metrics.forward("answered");
    match asked.what {
        What::Session(_) if answer.status() == StatusCode::NOT_FOUND => forwarding.remembered.forget(owner, asked.id()),
        What::Session(_) if !is_guess => forwarding.remembered.note(owner, asked.id(), elsewhere),
        _ => {}
    }
    let (status, headers) = (answer.status(), backward(answer.headers(), answer.status()));
    let body = if status == StatusCode::SWITCHING_PROTOCOLS {
        tokio::spawn(relay(app.clone(), parts_of(&mut request.parts), answer, over));
        Body::empty()
    } else {
        Body::from_stream(until_over(answer.bytes_stream(), over))
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(Ours);
    Ok(Sent::Answered(response))
}

/// Returns true for a path that stays as it is in a URL. In others, the parts before `..` would go, so the request would be another one.
fn is_plain(path: &str) -> bool {
    let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    !path.contains('\\') && !path.split('/').any(is_dots)
}

/// The headers for the other server. This one has judged the origin of the page already.
fn onward(headers: &HeaderMap, mark: &'static str) -> HeaderMap {
    let mut onward = without_connection(headers);
    for name in [header::HOST, header::ORIGIN, header::EXPECT] {
        onward.remove(name);
    }
    if let Some(protocol) = headers.get(header::UPGRADE) {
        onward.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        onward.insert(header::UPGRADE, protocol.clone());
    }
    onward.insert(FORWARDED, HeaderValue::from_static(mark));
    onward
}

/// The headers for the client. Those for pages and the number of the request are this server's.
fn backward(headers: &HeaderMap, status: StatusCode) -> HeaderMap {
    let mut backward = without_connection(headers);
    let of_pages = backward
        .keys()
        .filter(|name| name.as_str().starts_with("access-control-"));
    let of_pages: Vec<_> = of_pages.cloned().chain([header::VARY]).collect();
    for name in of_pages {
        backward.remove(name);
    }
    if let (Some(protocol), StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED) =
        (headers.get(header::UPGRADE), status)
    {
        backward.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        backward.insert(header::UPGRADE, protocol.clone());
    }
    backward
}

/// All headers but those of the connection, which it may name itself.
fn without_connection(headers: &HeaderMap) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).into_iter();
    let named: Vec<HeaderName> = named
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut rest = headers.clone();
    for name in OF_CONNECTIONS.iter().chain(&named) {
        rest.remove(name);
    }
    rest
}

/// Waits until the lease of a server is over, as far as this one knows.
pub(super) async fn over(app: App, server: ServerId) {
    let seems_to_live = || {
        let states = app.suspension.as_ref().map(super::suspension::Suspension::states);
        states.is_some_and(|states| states.seems_to_live(server))
    };
    while seems_to_live() {
        tokio::time::sleep(sharing::pause(&app)).await;
    }
}

/// Waits for the first of two.
async fn first(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

type Over = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of an answer. It ends with an error when the lease of its server is over.
fn until_over<E>(
    body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    over: Over,
) -> impl Stream<Item = io::Result<Bytes>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    stream::unfold(Some((body.boxed(), over)), |state| async {
        let (mut body, mut over) = state?;
        tokio::select! {
            biased;
            piece = body.next() => match piece? {
                Ok(piece) => Some((Ok(piece), Some((body, over)))),
                Err(error) => Some((Err(io::Error::other(error)), None)),
            },
            () = &mut over => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

/// The parts of a request for a WebSocket that live as long as the WebSocket.
type OfSocket = (Option<OnUpgrade>, Option<Arc<ConnectionPermit>>, Option<Arc<Held>>);

fn parts_of(parts: &mut Parts) -> OfSocket {
    let extensions = &mut parts.extensions;
    (
        extensions.remove(),
        extensions.get().cloned(),
        extensions.get().cloned(),
    )
}

/// Carries the bytes of a WebSocket both ways. The ends look for each other's silence themselves.
async fn relay(app: App, (upgrade, _connection, _held): OfSocket, answer: reqwest::Response, over: Over) {
    let Some(upgrade) = upgrade else { return };
    let (Ok(client), Ok(mut server)) = tokio::join!(upgrade, answer.upgrade()) else {
        return;
    };
    let mut client = TokioIo::new(client);
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        () = over => {}
        () = app.ending.cancelled() => {}
    }
}

/// The error for a request whose server does not answer.
fn out_of_reach(app: &App, asked: &Asked, is_untouched: bool) -> ApiError {
    let subject = match &asked.what {
        What::Session(id) | What::Run(id) => format!("session {id} is on another server"),
        What::Conversation(_) => "the session is on another server".to_owned(),
        What::NewConversation | What::NewSession | What::NewRun | What::Connection => {
            "this server leaves new work to another one".to_owned()
        }
    };
    let what = match is_untouched {
        true => "which cannot be reached; nothing was done. Try again:",
        false => {
            "which fell silent during the request, so it may have been carried out. Look at the session before you try again:"
        }
    };
    let then = match &asked.what {
        What::Conversation(_) => "the session counts as ended (404)",
        _ => "another server can go on with its last stored state",
    };
    let message = format!(
        "{subject}, {what} after {} s of silence, {then}",
        app.args.suspend.state_lease_seconds
    );
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, UNREACHABLE, message);
    match is_untouched {
        true => error.retry_after(5),
        false => error, // proxies repeat by themselves what has this header
    }
}

/// The error for a request whose server ends, and has not stored the session yet.
fn is_ending() -> ApiError {
    let message =
        "the server that has the session, or was to make one, is shutting down or full; nothing was done. Try again";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_stay_with_it() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer key"),
            ("connection", "keep-alive, x-own"),
            ("keep-alive", "timeout=5"),
            ("x-own", "1"),
            ("host", "a"),
            ("origin", "https://page"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("tracestate", "a=1"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let onward = onward(&headers, "1");
        let mut names: Vec<_> = onward.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = ["authorization", "sandglass-forwarded", "traceparent", "tracestate"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_path_leads_to_the_same_place_at_the_other_server() {
        for path in ["/v1/sessions/a/files/b%20c/..d", "/v1/sessions/a/files/...", "/"] {
            assert!(is_plain(path), "{path}");
        }
        for path in [
            "/v1/sessions/a/files/../../b",
            "/a/.",
            "/a/%2E./b",
            "/a/%2e%2e",
            "/a\\..\\b",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
