//! The checks that every request passes first: origin, key and quota. Also adds the headers of every response.
//!
//! Decisions: `docs/internals/server.md`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::access::{self, LOCAL, Origin};
use super::connections::ConnectionPermit;
use super::errors::{ApiError, Ours, Refused};
use super::quotas::{Account, Held};
use super::trace_context;
use opentelemetry::trace::SpanContext;
use sandglass_host::traces::{self, InTrace, Span};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The status that is counted when the client leaves before the response.
const CLIENT_LEFT: u16 = 499;

/// Admits a request, or refuses it.
pub async fn pass(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let method = known_method(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none", MatchedPath::as_str)
        .to_owned();
    let mut watch = Watch::new(&app, route, method);
    let origin = app.origins.judge(request.headers(), request.uri());
    let admitted = admit(&app, &origin, &request, &watch.route);
    let mut held = None;
    let response = match admitted {
        Err(error) => {
            let mut response = error.into_response();
            // Refusals are not counted in the quota, so the connection gets only one.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            response
        }
        Ok((account, share)) => {
            // Only now: those who are refused are in no quota, and name no trace.
            watch.begin_span(trace_context::caller(request.headers()));
            let share = held.insert(Arc::new(share));
            request.extensions_mut().insert(Arc::clone(share));
            if let Some(account) = account {
                watch.owner = Some(Arc::clone(&account.owner));
                request.extensions_mut().insert(account);
            }
            if let Some(connection) = request.extensions().get::<Arc<ConnectionPermit>>() {
                tracing::trace!(id = watch.id, peer = %connection.peer, "request");
            }
            match is_preflight(&request) {
                true => StatusCode::NO_CONTENT.into_response(),
                false => next.run(request).with_context(watch.span.context()).await,
            }
        }
    };
    let mut response = uniform(response);
    // The quota is held until the response was sent.
    if let Some(held) = held {
        response.extensions_mut().insert(held);
    }
    add_headers(response.headers_mut(), &watch.id, &origin);
    if app.draining.is_cancelled() {
        // A client that keeps no connection sends its next request to another server.
        let close = HeaderValue::from_static("close");
        response.headers_mut().entry(header::CONNECTION).or_insert(close);
    }
    watch.answered(&response);
    response
}

/// Returns true when a route answers without a key.
fn is_open(route: &str) -> bool {
    matches!(route, "/health" | "/readyz" | "/openapi.json")
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Admits a request: returns the key's account (none without keys), and the request's part of the quota.
fn admit(app: &App, origin: &Origin, request: &Request, route: &str) -> Result<(Option<Arc<Account>>, Held), ApiError> {
    let forbidden = |code, message: &str| Err(ApiError::new(StatusCode::FORBIDDEN, code, message));
    if *origin == Origin::Forbidden {
        return forbidden(
            "origin_forbidden",
            "pages of this origin may not use the server; its operator can allow them with --allow-origin",
        );
    }
    if app.keys.is_empty() && !access::is_local_host(request.headers(), request.uri()) {
        return forbidden(
            "host_forbidden",
            "a server without keys answers only when it is called localhost, or by a loopback address",
        );
    }
    if is_preflight(request) || is_open(route) {
        return Ok((None, app.quotas.admit_open()?));
    }
    if app.ending.is_cancelled() {
        return Err(ApiError::shutting_down());
    }
    let owner = if app.keys.is_empty() {
        Some(LOCAL.into())
    } else {
        access::presented_key(request.headers()).and_then(|key| app.keys.owner_of(&key))
    };
    let account = owner.and_then(|owner| app.quotas.account(&owner)).ok_or_else(|| {
        let message = "give a key of this server: Authorization: Bearer …";
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    })?;
    let held = account.admit(Instant::now())?;
    Ok((Some(account), held))
}

/// Gives errors of the libraries, such as for an unknown route or method, the server's own form.
fn uniform(response: Response) -> Response {
    let status = response.status();
    let is_failure = status.is_client_error() || status.is_server_error();
    if !is_failure || response.extensions().get::<Ours>().is_some() {
        return response;
    }
    let (code, message) = match status {
        StatusCode::NOT_FOUND => (
            "not_found",
            "there is no such route; /openapi.json lists those that there are",
        ),
        StatusCode::METHOD_NOT_ALLOWED => (
            "method_not_allowed",
            "the route does not have this method; the header Allow lists those that it has",
        ),
        StatusCode::UPGRADE_REQUIRED => ("not_a_websocket", "this route is a WebSocket"),
        _ if status.is_client_error() => ("invalid_request", "the request could not be read"),
        _ => ("internal", "the request could not be answered; this is a bug"),
    };
    let mut uniform = ApiError::new(status, code, message).into_response();
    for name in [
        header::ALLOW,
        header::UPGRADE,
        header::CONNECTION,
        header::SEC_WEBSOCKET_VERSION,
    ] {
        if let Some(value) = response.headers().get(&name) {
            uniform.headers_mut().insert(name, value.clone());
        }
    }
    uniform
}

fn add_headers(headers: &mut HeaderMap, id: &str, origin: &Origin) {
    let fixed = HeaderValue::from_static;
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(fixed("no-store"));
    headers.append(header::VARY, fixed("Origin"));
    let Origin::Allowed(origin) = origin else { return };
    let Ok(origin) = HeaderValue::from_str(origin) else {
        return;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, PUT, DELETE"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        fixed(
            "Authorization, Content-Type, Accept, Traceparent, Tracestate, Mcp-Session-Id, Mcp-Protocol-Version, Last-Event-ID",
        ),
    );
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        fixed("Retry-After, X-Request-Id, Mcp-Session-Id"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, fixed("600"));
    // Browsers also ask for this header before a public page calls a local address.
    headers.insert(
        HeaderName::from_static("access-control-allow-private-network"),
        fixed("true"),
    );
}

/// The method for metrics. Clients can invent methods, and metrics need few.
fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// Logs and counts a request at its end, even if its client leaves.
struct Watch<'a> {
    app: &'a App,
    id: String,
    route: String,
    method: &'static str,
    owner: Option<Arc<str>>,
    /// The ids of the request's span, or of the client's trace alone.
    trace_id: Option<String>,
    span_id: Option<String>,
    span: Span,
    began: Instant,
    status: u16,
}

impl<'a> Watch<'a> {
    fn new(app: &'a App, route: String, method: &'static str) -> Self {
        Self {
            app,
            id: format!("{:08x}", getrandom::u32().unwrap_or_default()),
            route,
            method,
            owner: None,
            trace_id: None,
            span_id: None,
            span: Span::none(),
            began: Instant::now(),
            status: CLIENT_LEFT,
        }
    }

    /// Begins the request's span. Requests that nobody asks about have none.
    fn begin_span(&mut self, caller: Option<SpanContext>) {
        self.trace_id = caller.as_ref().map(|caller| caller.trace_id().to_string());
        if !traces::is_enabled() || is_open(&self.route) || self.route == "/metrics" {
            return;
        }
        self.span = trace_context::span(caller, self.method, &self.route);
        self.span.set("sandglass.request.id", self.id.clone());
        if let Some((trace_id, span_id)) = self.span.ids() {
            (self.trace_id, self.span_id) = (Some(trace_id), Some(span_id));
        }
    }

    fn answered(&mut self, response: &Response<Body>) {
        self.status = response.status().as_u16();
        if let Some(Refused(code)) = response.extensions().get() {
            self.app.metrics.refusal(code);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Self {
            app,
            id,
            route,
            method,
            owner,
            trace_id,
            span_id,
            span,
            began,
            status,
        } = self;
        app.metrics.request(route, method, *status);
        let ms = began.elapsed().as_secs_f64() * 1_000.0;
        span.set("http.response.status_code", i64::from(*status));
        if *status >= 500 || *status == CLIENT_LEFT {
            span.failed(status.to_string());
        }
        let (owner, trace_id, span_id) = (owner.as_deref().unwrap_or(""), trace_id.as_deref(), span_id.as_deref());
        // Paths and bodies belong to the user, so only the route is logged.
        match *status {
            500.. => tracing::warn!(id, trace_id, span_id, owner, method, route, status, ms, "request"),
            _ if is_open(route) => tracing::debug!(id, trace_id, span_id, owner, method, route, status, ms, "request"),
            _ => tracing::info!(id, trace_id, span_id, owner, method, route, status, ms, "request"),
        }
    }
}
