//! The table of routes. The router is built from this table, and a test compares it with `openapi.json`.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};

use super::{
    App, channel, execute, files, forking, forwarding, going_back, health, listing, mcp, middleware, new_session,
    pending, releasing, replaying, rpc, stateless, variables,
};

/// The description of the routes.
pub const OPENAPI: &str = include_str!("openapi.json");

macro_rules! routes {
    ($($method:ident $path:literal $handler:path;)*) => {
        /// Every route, as its method and path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),*];

        fn handlers() -> Router<App> {
            Router::new()$(.route($path, $method($handler)))*
        }
    };
}

routes! {
    post "/v1/sessions" new_session::create;
    get "/v1/sessions" listing::list;
    get "/v1/sessions/{id}" listing::show;
    delete "/v1/sessions/{id}" listing::destroy;
    post "/v1/sessions/{id}/execute" execute::execute;
    get "/v1/sessions/{id}/pending" pending::pending;
    post "/v1/sessions/{id}/resume" execute::go_on;
    post "/v1/sessions/{id}/discard" pending::discard;
    post "/v1/sessions/{id}/replay" replaying::replay;
    get "/v1/sessions/{id}/last" pending::last;
    post "/v1/sessions/{id}/hint" execute::hint;
    post "/v1/sessions/{id}/interrupt" execute::interrupt;
    get "/v1/sessions/{id}/variables" variables::list;
    get "/v1/sessions/{id}/variables/{name}" variables::get;
    put "/v1/sessions/{id}/variables/{name}" variables::set;
    get "/v1/sessions/{id}/files" files::list;
    get "/v1/sessions/{id}/files/{*path}" files::read;
    put "/v1/sessions/{id}/files/{*path}" files::write;
    delete "/v1/sessions/{id}/files/{*path}" files::remove;
    get "/v1/sessions/{id}/channel" channel::channel;
    get "/v1/rpc" rpc::rpc;
    post "/mcp" mcp::mcp;
    get "/mcp" mcp::mcp;
    delete "/mcp" mcp::mcp;
    post "/v1/kept/{id}/release" releasing::release;
    post "/v1/sessions/{id}/checkpoint" going_back::checkpoint;
    post "/v1/sessions/{id}/undo" going_back::undo;
    post "/v1/sessions/{id}/restore" going_back::restore;
    post "/v1/sessions/{id}/fork" forking::fork;
    post "/execute" stateless::execute;
    get "/execute/{id}/files/{*path}" stateless::file;
    get "/health" health::health;
    get "/readyz" health::ready;
    get "/health/detailed" health::detailed;
    get "/metrics" health::metrics;
    get "/openapi.json" openapi;
}

/// The router of all routes, behind the middleware.
pub fn router(app: App) -> Router {
    handlers()
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(from_fn_with_state(app.clone(), forwarding::forward))
        .layer(from_fn_with_state(app.clone(), middleware::pass))
        .with_state(app)
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
