//! The protocol as a part of `serve`, at `/mcp`: a session's sandbox is a session of the server.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sandglass_server::mcp::{Mcp, OfKey};
use tokio_util::sync::CancellationToken;

use crate::http::{self, Service};
use crate::session::{Home, Shared};

/// The sessions on a server, for `Server::with_mcp`.
#[derive(Default)]
pub struct OnServer {
    ending: CancellationToken,
    /// Those of each owner of keys. Nobody finds the sessions of another owner.
    services: Mutex<HashMap<Arc<str>, Service>>,
}

impl OnServer {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Service>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OnServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OnServer").finish_non_exhaustive()
    }
}

impl Mcp for OnServer {
    fn answer(&self, of_key: OfKey, request: Request) -> BoxFuture<'_, Response> {
        let owner = Arc::clone(of_key.owner());
        let make = || {
            let (shared, most_bytes) = (Shared::of_server(of_key.idle()), of_key.most_bytes());
            http::service(&shared, Home::Server(of_key), most_bytes, &self.ending)
        };
        let service = self.lock().entry(owner).or_insert_with(make).clone();
        async move { service.handle(request).await.map(Body::new) }.boxed()
    }

    fn end(&self) {
        self.ending.cancel();
        self.lock().clear(); // they hold the server, which holds this
    }
}
