//! The table of routes. The router is made from it, and `openapi.json` describes it (a test compares them).

use axum::Router;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};

use super::errors::ApiError;
use super::{App, channel, create, execute, files, health, middleware, stateless, variables};

/// The description of the routes.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The handler of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Creates a session.
    CreateSession,
    /// Tells of the sessions of a key.
    ListSessions,
    /// Tells of a session.
    GetSession,
    /// Destroys a session.
    DeleteSession,
    /// Runs code.
    Execute,
    /// Stops what runs.
    Interrupt,
    /// Code that may come next.
    Hint,
    /// Lists variables.
    ListVariables,
    /// Tells a variable's value.
    GetVariable,
    /// Sets a variable.
    SetVariable,
    /// Lists files.
    ListFiles,
    /// Reads a file.
    ReadFile,
    /// Writes a file.
    WriteFile,
    /// Removes a file or folder.
    RemoveFile,
    /// The WebSocket relay.
    Channel,
    /// Runs code in a guest of its own.
    Stateless,
    /// Reads a file that such a run left.
    RunFile,
    /// A route of later versions.
    NotYet,
    /// Liveness.
    Health,
    /// Sessions, backends and a trial.
    HealthDetailed,
    /// Counters.
    Metrics,
    /// The description of the routes.
    OpenApi,
}

/// Every route: what answers it, its method, its path.
pub const ROUTES: [(Endpoint, &str, &str); 24] = {
    use Endpoint as E;
    [
        (E::CreateSession, "post", "/v1/sessions"),
        (E::ListSessions, "get", "/v1/sessions"),
        (E::GetSession, "get", "/v1/sessions/{id}"),
        (E::DeleteSession, "delete", "/v1/sessions/{id}"),
        (E::Execute, "post", "/v1/sessions/{id}/execute"),
        (E::Hint, "post", "/v1/sessions/{id}/hint"),
        (E::Interrupt, "post", "/v1/sessions/{id}/interrupt"),
        (E::ListVariables, "get", "/v1/sessions/{id}/variables"),
        (E::GetVariable, "get", "/v1/sessions/{id}/variables/{name}"),
        (E::SetVariable, "put", "/v1/sessions/{id}/variables/{name}"),
        (E::ListFiles, "get", "/v1/sessions/{id}/files"),
        (E::ReadFile, "get", "/v1/sessions/{id}/files/{*path}"),
        (E::WriteFile, "put", "/v1/sessions/{id}/files/{*path}"),
        (E::RemoveFile, "delete", "/v1/sessions/{id}/files/{*path}"),
        (E::Channel, "get", "/v1/sessions/{id}/channel"),
        (E::NotYet, "post", "/v1/sessions/{id}/checkpoint"),
        (E::NotYet, "post", "/v1/sessions/{id}/restore"),
        (E::NotYet, "post", "/v1/sessions/{id}/fork"),
        (E::Stateless, "post", "/execute"),
        (E::RunFile, "get", "/execute/{id}/files/{*path}"),
        (E::Health, "get", "/health"),
        (E::HealthDetailed, "get", "/health/detailed"),
        (E::Metrics, "get", "/metrics"),
        (E::OpenApi, "get", "/openapi.json"),
    ]
};

/// Returns true when a route answers without a key.
pub fn is_open(route: &str) -> bool {
    matches!(route, "/health" | "/openapi.json")
}

/// The router of all routes, behind the middleware.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for (endpoint, _, path) in ROUTES {
        router = router.route(path, handler(endpoint));
    }
    router
        .fallback(|| async { axum::http::StatusCode::NOT_FOUND })
        .layer(from_fn_with_state(app.clone(), middleware::pass))
        .with_state(app)
}

fn handler(endpoint: Endpoint) -> MethodRouter<App> {
    match endpoint {
        Endpoint::CreateSession => post(create::create),
        Endpoint::ListSessions => get(create::list),
        Endpoint::GetSession => get(create::show),
        Endpoint::DeleteSession => delete(create::destroy),
        Endpoint::Execute => post(execute::execute),
        Endpoint::Hint => post(execute::hint),
        Endpoint::Interrupt => post(execute::interrupt),
        Endpoint::ListVariables => get(variables::list),
        Endpoint::GetVariable => get(variables::get),
        Endpoint::SetVariable => put(variables::set),
        Endpoint::ListFiles => get(files::list),
        Endpoint::ReadFile => get(files::read),
        Endpoint::WriteFile => put(files::write),
        Endpoint::RemoveFile => delete(files::remove),
        Endpoint::Channel => get(channel::channel),
        Endpoint::Stateless => post(stateless::execute),
        Endpoint::RunFile => get(stateless::file),
        Endpoint::NotYet => post(not_yet),
        Endpoint::Health => get(health::health),
        Endpoint::HealthDetailed => get(health::detailed),
        Endpoint::Metrics => get(health::metrics),
        Endpoint::OpenApi => get(openapi),
    }
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn not_yet() -> ApiError {
    ApiError::new(
        axum::http::StatusCode::NOT_IMPLEMENTED,
        "not_implemented",
        "this version cannot do that yet; nothing was done",
    )
}
