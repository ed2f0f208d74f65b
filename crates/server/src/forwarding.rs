//! Requests for sessions that another server has: they are forwarded to that server, and its answers come back.
//!
//! The address is from the lease of that server, which only servers with the key of states can write. So no client and no guest chooses
//! where a request goes. The client's own key goes along, and both servers check it. A forwarded request is marked, and goes no further.
//!
//! Decisions: `docs/internals/server.md`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use reqwest::{Client, redirect};
use sandglass_states::ServerId;

use super::App;
use super::connections::ConnectionPermit;
use super::errors::{ApiError, Ours};
use super::quotas::{Account, Held};
use super::sessions::Known;
use super::sharing;

/// Marks a request that a server has forwarded.
const FORWARDED: HeaderName = HeaderName::from_static("sandglass-forwarded");
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
/// The time for which a connection is kept for another request. It is below the least `--head-timeout-seconds` that makes sense.
const KEPT_CONNECTION: Duration = Duration::from_secs(5);
/// The interval at which the system asks a machine that says nothing, and the time after which the machine counts as gone.
const ASKING: Duration = Duration::from_secs(10);
const GONE: Duration = Duration::from_secs(30);

/// The connections to other servers.
#[derive(Debug)]
pub(super) struct Forwarding(Client);

impl Forwarding {
    /// # Errors
    /// The client cannot be made.
    pub(super) fn new() -> Result<Self, String> {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .http1_only()
            .connect_timeout(CONNECT_TIME)
            .pool_idle_timeout(KEPT_CONNECTION)
            .tcp_keepalive(ASKING)
            .tcp_keepalive_interval(ASKING)
            .tcp_user_timeout(GONE)
            .build();
        client
            .map(Self)
            .map_err(|error| format!("requests cannot be forwarded: {error}"))
    }
}

/// Another server, which has the session of a request.
struct Elsewhere {
    server: ServerId,
    address: String,
    /// The id in the path.
    id: String,
}

/// Forwards a request if another server has its session. Otherwise this server answers.
pub(super) async fn forward(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let (Some(forwarding), Some(asked)) = (&app.forwarding, Asked::of(&mut request).await) else {
        return next.run(request).await;
    };
    match elsewhere(&app, asked).await {
        Ok(None) => next.run(request).await,
        Ok(Some(elsewhere)) => {
            let answer = send(&app, &forwarding.0, elsewhere, request).await;
            answer.unwrap_or_else(IntoResponse::into_response)
        }
        Err(error) => error.into_response(),
    }
}

/// The parts of a request that tell where it goes.
struct Asked {
    id: String,
    account: Arc<Account>,
    is_forwarded: bool,
}

impl Asked {
    /// `None` for a request that is for no session.
    async fn of(request: &mut Request) -> Option<Self> {
        if !has_id(request.extensions().get::<MatchedPath>()?.as_str()) {
            return None;
        }
        // As the handlers read it: an id may have escapes.
        let named = request.extract_parts::<RawPathParams>().await.ok()?;
        let (_, id) = named.iter().find(|(name, _)| *name == "id")?;
        Some(Self {
            id: id.to_owned(),
            account: Arc::clone(request.extensions().get::<Arc<Account>>()?),
            is_forwarded: request.headers().contains_key(FORWARDED),
        })
    }
}

/// The server to which a request is to go; `None` if it is this one.
async fn elsewhere(app: &App, asked: Asked) -> Result<Option<Elsewhere>, ApiError> {
    let Asked { id, account, .. } = asked;
    let Some(suspension) = &app.suspension else {
        return Ok(None);
    };
    // A session that is awake here, or moves, is this server's until it finds out otherwise.
    let asleep = match app.sessions.of(&account.owner, &id) {
        Ok((Known::Awake(_), _) | (_, Some(_))) => return Ok(None),
        Ok((Known::Asleep(asleep), None)) => Some(asleep),
        Err(_) => None,
    };
    let Some(living) = suspension.elsewhere(&account.owner, &id).await? else {
        return Ok(None);
    };
    if let Some(asleep) = asleep {
        sharing::let_go(app, &asleep);
    }
    if asked.is_forwarded {
        return Err(twice(&id));
    }
    // Without an address, the handler tells that the session is elsewhere.
    Ok(living.address.map(|address| Elsewhere {
        server: living.server,
        address,
        id,
    }))
}

/// Returns true for a route of a session, or of the files of a stateless run.
fn has_id(route: &str) -> bool {
    let parts: Vec<_> = route.split('/').collect();
    matches!(
        parts.as_slice(),
        ["", "v1", "sessions", "{id}", ..] | ["", "execute", "{id}", ..]
    )
}

async fn send(app: &App, client: &Client, elsewhere: Elsewhere, request: Request) -> Result<Response, ApiError> {
    let Elsewhere { server, address, id } = elsewhere;
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if !is_plain(parts.uri.path()) {
        let problem = "a path must not have \"\\\", or a part \".\" or \"..\"";
        return Err(ApiError::invalid(problem));
    }
    let mut forwarded = client
        .request(parts.method.clone(), format!("{address}{path}"))
        .headers(onward(&parts.headers));
    if !body.is_end_stream() {
        forwarded = forwarded.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    let mut over = Box::pin(over(app.clone(), server));
    let answer = tokio::select! {
        biased;
        answer = forwarded.send() => answer.map_err(|error| out_of_reach(app, &id, error.is_connect()))?,
        () = &mut over => return Err(out_of_reach(app, &id, false)),
    };
    tracing::debug!(session = id, %address, status = answer.status().as_u16(), "forwarded");
    let (status, headers) = (answer.status(), backward(answer.headers(), answer.status()));
    let body = if status == StatusCode::SWITCHING_PROTOCOLS {
        tokio::spawn(relay(app.clone(), parts_of(&mut parts), answer, over));
        Body::empty()
    } else {
        Body::from_stream(until_over(answer.bytes_stream(), over))
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(Ours);
    Ok(response)
}

/// Returns true for a path that stays as it is in a URL. In others, the parts before `..` would go, so the request would be another one.
fn is_plain(path: &str) -> bool {
    let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    !path.contains('\\') && !path.split('/').any(is_dots)
}

/// The headers for the other server. This one has judged the origin of the page already.
fn onward(headers: &HeaderMap) -> HeaderMap {
    let mut onward = without_connection(headers);
    for name in [header::HOST, header::ORIGIN, header::EXPECT] {
        onward.remove(name);
    }
    if let Some(protocol) = headers.get(header::UPGRADE) {
        onward.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        onward.insert(header::UPGRADE, protocol.clone());
    }
    onward.insert(FORWARDED, HeaderValue::from_static("1"));
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
async fn over(app: App, server: ServerId) {
    let seems_to_live = || {
        let states = app.suspension.as_ref().map(super::suspension::Suspension::states);
        states.is_some_and(|states| states.seems_to_live(server))
    };
    while seems_to_live() {
        tokio::time::sleep(sharing::pause(&app)).await;
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

/// The error for a session whose server does not answer.
fn out_of_reach(app: &App, id: &str, is_untouched: bool) -> ApiError {
    let what = match is_untouched {
        true => "which cannot be reached; nothing was done. Try again:",
        false => {
            "which fell silent during the request, so it may have been carried out. Look at the session before you try again:"
        }
    };
    let message = format!(
        "session {id} is on another server, {what} after {} s of silence, another server can go on with its last stored state",
        app.args.suspend.state_lease_seconds
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_unreachable", message).retry_after(5)
}

/// The error for a request that would be forwarded a second time.
fn twice(id: &str) -> ApiError {
    let message = format!(
        "session {id} is on a third server; nothing was done. It may have moved just now: try again. If this comes again, the value of \
         --advertise of a server leads to another one"
    );
    ApiError::new(StatusCode::LOOP_DETECTED, "forwarded_twice", message).retry_after(1)
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
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let onward = onward(&headers);
        let mut names: Vec<_> = onward.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "sandglass-forwarded"]);
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

    #[test]
    fn routes_of_sessions_and_runs_are_known() {
        for route in [
            "/v1/sessions/{id}/execute",
            "/v1/sessions/{id}",
            "/execute/{id}/files/{*path}",
        ] {
            assert!(has_id(route), "{route}");
        }
        for route in ["/v1/sessions", "/execute", "/health", "/v1/rpc"] {
            assert!(!has_id(route), "{route}");
        }
    }
}
