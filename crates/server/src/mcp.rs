//! The Model Context Protocol at `/mcp`. The program hands it in, because this crate does not know the protocol.
//!
//! A session of the protocol is in the memory of the server on which it began, and its sandbox is a session of that server. Its id leads the
//! other servers of a cluster there (`mcp_ids`).
//!
//! Decisions: `docs/internals/server.md`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use sandglass_rpc::Keeper;
use sandglass_rpc::options::Options;
use serde_json::{Map, Value as Json};
use tokio_util::sync::CancellationToken;

use super::App;
use super::bodies;
use super::connections::ConnectionPermit;
use super::create;
use super::errors::{ApiError, Ours};
use super::mcp_ids;
use super::quotas::{Account, Held};
use super::rpc::OfSession;
use sandglass_host::Sandbox;
use sandglass_host::sandbox::{ExecuteOptions, Execution, SandboxBuilder};

/// The protocol, handed in by the program.
pub trait Mcp: Debug + Send + Sync {
    /// Answers a request of a key. Sessions belong to their key.
    fn answer(&self, of_key: OfKey, request: Request) -> BoxFuture<'_, Response>;

    /// Ends all sessions, because the server ends.
    fn end(&self);
}

/// `/mcp`.
pub async fn mcp(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    request: Request,
) -> Result<Response, ApiError> {
    let Some(mcp) = app.mcp.get() else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let (mut parts, body) = request.into_parts();
    mcp_ids::arrive(&app, &account.owner, &mut parts.headers);
    // The protocol keeps these parts for as long as it works on the message.
    parts.extensions.remove::<Arc<ConnectionPermit>>();
    let taken = bodies::take(&account, app.args.body_limits(), &parts.headers, body).await?;
    parts.extensions.insert(Arc::new(taken.held));
    let lasts = parts.method == Method::GET;
    let request = Request::from_parts(parts, Body::from(taken.value));
    let owner = Arc::clone(&account.owner);
    let of_key = OfKey {
        app: app.clone(),
        account,
    };
    let mut response = mcp.answer(of_key, request).await;
    mcp_ids::leave(&app, &owner, response.headers_mut())?;
    response.extensions_mut().insert(Ours); // the protocol has its own form of errors
    Ok(match lasts {
        // Nothing else ends it. Calls under way may end.
        true => response.map(|body| {
            let ending = app.ending.clone().cancelled_owned();
            Body::from_stream(body.into_data_stream().take_until(ending))
        }),
        false => response,
    })
}

/// A key's part of the server, for sessions of the protocol.
#[derive(Debug, Clone)]
pub struct OfKey {
    app: App,
    account: Arc<Account>,
}

/// A part of a key's quota, until this is dropped.
#[expect(dead_code, reason = "held for its drop")]
#[derive(Debug)]
pub struct Place(Held);

impl OfKey {
    /// The key's name.
    pub fn owner(&self) -> &Arc<str> {
        &self.account.owner
    }

    /// The time after which an unused session ends.
    pub fn idle(&self) -> Duration {
        Duration::from_secs_f64(self.app.args.session_idle_seconds)
    }

    /// The most bytes of a message.
    pub fn most_bytes(&self) -> usize {
        self.app.args.body_limits().most_bytes
    }

    /// True if a model of the operator answers `llm_query`.
    pub fn has_model(&self) -> bool {
        self.app.llm.is_some()
    }

    /// Takes the place of a session of the protocol, which may be without a sandbox.
    ///
    /// # Errors
    /// The key has too many.
    pub fn place(&self) -> Result<Place, String> {
        self.account.mcp_session().map(Place).map_err(|error| error.message)
    }

    /// Makes a sandbox, which is a session of the key. `fields` are options as those of `POST /v1/sessions`; `own` adds functions.
    ///
    /// # Errors
    /// The quota does not allow it, or no guest starts.
    pub async fn sandbox(
        &self,
        fields: Map<String, Json>,
        own: impl FnOnce(SandboxBuilder) -> SandboxBuilder,
    ) -> Result<Lent, String> {
        self.make(fields, own).await.map_err(|error| error.message)
    }

    async fn make(
        &self,
        fields: Map<String, Json>,
        own: impl FnOnce(SandboxBuilder) -> SandboxBuilder,
    ) -> Result<Lent, ApiError> {
        let Self { app, account } = self;
        let place = account.session()?;
        let options = Options::read(fields, &create::bounds(app))?;
        let session = create::make(app, account, options, place, None, own).await?;
        let (sandbox, in_use) = session.sandbox().await?;
        let destroyed = session.destroyed();
        let keeper = OfSession::new(app, account, session, in_use);
        Ok(Lent {
            sandbox,
            destroyed,
            keeper,
        })
    }
}

/// A sandbox that the server lends. Its session ends when this is dropped.
pub struct Lent {
    sandbox: Sandbox,
    destroyed: CancellationToken,
    keeper: OfSession,
}

impl Debug for Lent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl Lent {
    /// The sandbox. [`Lent::execute`] runs code, so that it counts in the quota.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// True if the session was destroyed, for instance by another request of its key.
    pub fn is_gone(&self) -> bool {
        self.destroyed.is_cancelled()
    }

    /// Runs code.
    ///
    /// # Errors
    /// The quota or the folder has no room, or the sandbox cannot run code.
    pub async fn execute(&self, code: String, options: ExecuteOptions) -> Result<Execution, String> {
        let run = async {
            self.keeper.room().await?;
            self.keeper.execute(code, options).await
        };
        run.await.map_err(|error| error.to_string())
    }

    /// Looks if the session's folder has room for a file of so many bytes.
    ///
    /// # Errors
    /// It has none.
    pub async fn room_for(&self, bytes: usize) -> Result<(), String> {
        self.keeper.room_for(bytes).await.map_err(|error| error.to_string())
    }

    /// Ends the sandbox and its session.
    pub async fn destroy(&self) {
        self.keeper.destroy().await;
    }
}
