//! Streamable HTTP: one address, `/mcp`, with a session of the protocol and a sandbox for each client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use sandglass_host::args::Secrets;
use sandglass_server::access::{self, Keys, LOCAL, Origin, Origins};
use sandglass_server::connections::{self, Deadlines};
use sandglass_server::metrics::Gauge;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::session::{Home, Own, Session, Shared};
use crate::settings::McpArgs;

/// The most bytes of a message: a text for `load_context`, or a file.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// TCP connections at the same time.
const MAX_CONNECTIONS: u32 = 1_024;
/// The deadlines of connections, as `serve` has them by default.
const DEADLINES: Deadlines = Deadlines {
    head: Duration::from_secs(15),
    write: Duration::from_secs(60),
};
/// The time for requests to end when the program does.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The time for a client whose connection broke to fetch a result again. Results can be large.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);

/// The headers that pages of allowed origins may send.
const ALLOWED_HEADERS: &str =
    "Authorization, Content-Type, Accept, Mcp-Session-Id, Mcp-Protocol-Version, Last-Event-ID, traceparent, tracestate";

pub type Service = StreamableHttpService<Server, LocalSessionManager>;

/// The state of all requests.
struct Access {
    keys: Keys,
    origins: Origins,
    /// The sessions of each owner of keys. Nobody finds the sessions of another owner.
    services: HashMap<Arc<str>, Service>,
}

/// A server that listens.
pub struct Http {
    shared: Arc<Shared>,
    listener: TcpListener,
    access: Access,
    ending: CancellationToken,
}

impl Http {
    /// Checks the options and opens the port.
    ///
    /// # Errors
    /// An option is wrong, or the port cannot be opened.
    pub async fn bind(
        args: &McpArgs,
        (shared, own): (Arc<Shared>, Own),
        listen: SocketAddr,
        secrets: &Secrets,
    ) -> Result<Self, String> {
        let keys = access::keys(args.keys_file.as_deref(), secrets, listen)?;
        let origins = access::origins(&args.allow_origin, &keys)?;
        let owners = if keys.is_empty() {
            vec![LOCAL.into()]
        } else {
            keys.owners()
        };
        let ending = CancellationToken::new();
        let of_key = || {
            let places = Arc::new(Semaphore::new(args.max_sessions as usize));
            let home = own.clone().with_places(places, args.max_sessions);
            service(&shared, Home::Own(home), MAX_MESSAGE_BYTES, &ending)
        };
        let services = owners.into_iter().map(|owner| (owner, of_key())).collect();
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| format!("{listen} cannot be listened on: {error}"))?;
        Ok(Self {
            access: Access {
                keys,
                origins,
                services,
            },
            shared,
            listener,
            ending,
        })
    }

    /// The listening address.
    ///
    /// # Errors
    /// The system does not tell the address.
    pub fn address(&self) -> Result<SocketAddr, String> {
        let address = self.listener.local_addr();
        address.map_err(|error| format!("the port is not known: {error}"))
    }

    /// Serves until `ended` is ready.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let router = Router::new()
            .route("/mcp", any(answer))
            .with_state(Arc::new(self.access));
        let open = Gauge::default();
        let ending = self.ending.clone();
        let accepting = connections::accept(self.listener, router, MAX_CONNECTIONS, DEADLINES, open, ending);
        let accepting = tokio::spawn(accepting);
        ended.await;
        self.ending.cancel();
        let mut connections = accepting.await.unwrap_or_default();
        let requests_end = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, requests_end).await;
        connections.shutdown().await;
        drop(self.shared);
    }
}

/// The sessions of one owner.
pub fn service(shared: &Arc<Shared>, home: Home, most_bytes: usize, ending: &CancellationToken) -> Service {
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = shared.idle;
    sessions.session_config.completed_cache_ttl = RESUMED_WITHIN;
    let shared = Arc::clone(shared);
    let new = move || Ok(Server::new(Session::new(Arc::clone(&shared), home.clone())));
    // `Host` and `Origin` were checked before.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(most_bytes)
        .with_cancellation_token(ending.child_token());
    StreamableHttpService::new(new, Arc::new(sessions), config)
}

/// Answers a request, if its page and its key may send it.
async fn answer(State(access): State<Arc<Access>>, request: Request) -> Response {
    let origin = access.origins.judge(request.headers(), request.uri());
    let mut response = match access.admit(&origin, &request) {
        Err((status, why)) => (status, why).into_response(),
        Ok(None) => StatusCode::NO_CONTENT.into_response(),
        Ok(Some(service)) => service.handle(request).await.map(Body::new),
    };
    add_headers(&mut response, &origin);
    response
}

impl Access {
    /// The sessions that a request may use; `None` for a browser's question before a request.
    fn admit(&self, origin: &Origin, request: &Request) -> Result<Option<&Service>, (StatusCode, &'static str)> {
        if *origin == Origin::Forbidden {
            let why = "pages of this origin may not use the server; its operator can allow them with --allow-origin";
            return Err((StatusCode::FORBIDDEN, why));
        }
        if self.keys.is_empty() && !access::is_local_host(request.headers(), request.uri()) {
            let why = "a server without keys answers only when it is called localhost, or by a loopback address";
            return Err((StatusCode::FORBIDDEN, why));
        }
        if request.method() == Method::OPTIONS {
            return Ok(None);
        }
        let owner = if self.keys.is_empty() {
            Some(LOCAL.into())
        } else {
            access::presented_key(request.headers()).and_then(|key| self.keys.owner_of(&key))
        };
        let service = owner.and_then(|owner| self.services.get(&owner));
        let why = "give a key of this server: Authorization: Bearer …";
        service.map(Some).ok_or((StatusCode::UNAUTHORIZED, why))
    }
}

fn add_headers(response: &mut Response, origin: &Origin) {
    let fixed = HeaderValue::from_static;
    let unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    if unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, fixed("Bearer"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(fixed("no-store"));
    headers.append(header::VARY, fixed("Origin"));
    let Origin::Allowed(origin) = origin else { return };
    let Ok(origin) = HeaderValue::from_str(origin) else {
        return;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, DELETE"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, fixed(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, fixed("Mcp-Session-Id"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, fixed("600"));
    // Browsers also ask for this header before a public page calls a local address.
    headers.insert(
        HeaderName::from_static("access-control-allow-private-network"),
        fixed("true"),
    );
}
