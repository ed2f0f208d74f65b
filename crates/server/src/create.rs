//! The making of new and woken sessions.

use std::sync::Arc;
use std::time::Duration;

use sandglass_rlm::openai::Reply;
use sandglass_rpc::options::{Bounds, Options};
use serde_json::{Value as Json, json};

use super::App;
use super::errors::ApiError;
use super::kept::Opened;
use super::llm::{NO_MODEL, NO_RECURSION};
use super::quotas::{Account, Held};
use super::sessions::{Kind, Session, watch_folder};
use super::storage::{Fate, Folder, new_id};
use super::suspension::{Asleep, Recipe};
use sandglass_host::backend;
use sandglass_host::kept::Kept;
use sandglass_host::launcher::{Launcher, Settings};
use sandglass_host::sandbox::{Answer, Query, SandboxBuilder};
use sandglass_host::{Sandbox, Value};

/// The bounds of options on this server.
pub fn bounds(app: &App) -> Bounds {
    let args = &app.args;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Bounds {
        backend: args.guest.backend,
        allow_subprocess: args.allow_subprocess,
        max_timeout_ms: args.max_timeout_seconds * 1_000.0,
        boot_timeout_ms: args.boot_timeout_seconds * 1_000.0,
        max_memory_bytes: (args.max_memory_mib << 20) as f64,
        resources: args.resources(),
        max_blob_bytes: args.body_limits().most_bytes,
        max_approval: Some(Duration::from_secs_f64(args.session_idle_seconds)),
        max_state_bytes: args.warm.state_max_size_mb << 20,
        is_local: false,
    }
}

/// Makes a session with a sandbox, and adds it to the server's. `own` adds the client's functions. A session that can be suspended has its
/// context and its recipe.
pub async fn make(
    app: &App,
    account: &Account,
    options: Options,
    place: Held,
    context: Option<(Value, Recipe)>,
    own: impl FnOnce(SandboxBuilder) -> SandboxBuilder,
) -> Result<Arc<Session>, ApiError> {
    let prepared = prepare(app, &account.owner, new_id(app.home())?, &options, Fate::Removed).await?;
    let mut builder = prepared.builder(app, &options);
    if context.is_none() {
        builder = builder.without_context();
    }
    let sandbox = own(builder).build().await?;
    // If the client leaves now, the sandbox is dropped, and its guest with it.
    let mut recipe = None;
    if let Some((context, own)) = context {
        sandbox.initialize(context).await?;
        recipe = Some(own);
    }
    let session = prepared.session(&account.owner, Kind::Sandbox(sandbox), place, (recipe, None));
    add(app, session).await
}

/// Makes a session whose guests a client supervises over a channel.
pub async fn make_channel(
    app: &App,
    account: &Account,
    options: Options,
    place: Held,
) -> Result<Arc<Session>, ApiError> {
    let prepared = prepare(app, &account.owner, new_id(app.home())?, &options, Fate::Removed).await?;
    if options.checkpoints > 0 && prepared.launcher.checkpoints() == 0 {
        let backend = prepared.launcher.kind();
        return Err(ApiError::option(
            "checkpoints",
            format!("is not possible with a channel to guests of the backend {backend}: leave it out"),
        ));
    }
    let kind = Kind::Channel {
        launcher: Arc::clone(&prepared.launcher),
        most_value_bytes: usize_of(options.limits.max_value_bytes),
        memory_bytes: options.limits.max_memory_bytes,
    };
    let session = prepared.session(&account.owner, kind, place, (None, None));
    add(app, session).await
}

/// The parts of a session that are made before its sandbox.
pub(super) struct Prepared {
    id: String,
    folder: Option<Arc<Folder>>,
    launcher: Arc<dyn Launcher>,
    settings: Settings,
}

/// Makes the folder and the launcher of a session. The fate is that of the folder, also when this fails.
///
/// # Errors
/// The folder cannot be made, or there is no such backend here.
pub(super) async fn prepare(
    app: &App,
    owner: &str,
    id: String,
    options: &Options,
    fate: Fate,
) -> Result<Prepared, ApiError> {
    let folder = match &app.storage {
        Some(storage) => {
            let folder = storage.folder(owner, &id, options.resources.disk_bytes, fate);
            Some(folder.await?)
        }
        None => None,
    };
    let settings = Settings {
        resources: options.resources,
        workspace: folder.as_ref().map(|folder| folder.workspace().path().to_owned()),
        ahead: options.ahead,
        checkpoints: options.checkpoints,
        ..app.args.guest_settings()
    };
    let workspace = folder.as_ref().map(|_| format!("{owner}/{id}"));
    let warm = match options.ahead {
        // A forked guest is the first process of its PID namespace. Its copies would die with it, so it cannot run code ahead.
        true => None,
        false => {
            let launcher = app.warm.launcher_for(options.backend, &settings, workspace.as_deref());
            launcher.await?
        }
    };
    let launcher = match warm {
        Some(launcher) => launcher,
        None => backend::launcher(options.backend, &settings).await?,
    };
    Ok(Prepared {
        id,
        folder,
        launcher,
        settings,
    })
}

impl Prepared {
    /// A builder of the session's sandbox.
    pub(super) fn builder(&self, app: &App, options: &Options) -> SandboxBuilder {
        builder(app, options)
            .launcher(Arc::clone(&self.launcher))
            .settings(self.settings.clone())
    }

    /// The session's folder on disk, if there is one.
    pub(super) fn folder(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// The session.
    pub(super) fn session(
        self,
        owner: &Arc<str>,
        kind: Kind,
        place: Held,
        stored: (Option<Recipe>, Option<Arc<Asleep>>),
    ) -> Arc<Session> {
        Session::new(self.id, Arc::clone(owner), kind, self.folder, place, stored)
    }
}

/// A builder of a sandbox with these options, which lacks its launcher or backend.
fn builder(app: &App, options: &Options) -> SandboxBuilder {
    let builder = Sandbox::builder()
        .limits(options.limits.clone())
        .profile(options.profile)
        .output_fields(options.output_fields.clone())
        .budget(options.budget)
        .predictions(options.predictions)
        .on_llm_query({
            let app = app.clone();
            move |query| answer(app.clone(), query)
        });
    if options.profile.falls_back() {
        return builder;
    }
    builder.on_rlm_query(|_| async { Err::<Answer, _>(NO_RECURSION.to_owned()) })
}

/// A builder of a kept sandbox. Its guests start cold and have a working folder of their own, whose files are part of the state.
pub(super) fn kept_builder(app: &App, options: &Options) -> SandboxBuilder {
    let settings = Settings {
        resources: options.resources,
        workspace: None,
        ..app.args.guest_settings()
    };
    builder(app, options).backend(options.backend).settings(settings)
}

/// Makes a session of a kept sandbox that a client of JSON-RPC has, and adds it to the server's.
///
/// # Errors
/// 503 when the server is shutting down. The sandbox is destroyed then.
pub(super) async fn make_kept(
    app: &App,
    account: &Account,
    (kept, opened): (Arc<Kept>, Opened),
    place: Held,
) -> Result<Arc<Session>, ApiError> {
    let owner = Arc::clone(&account.owner);
    let recipe = None;
    let kind = Kind::Kept { kept, opened, recipe };
    let session = Session::new(new_id(app.home())?, owner, kind, None, place, (None, None));
    add(app, session).await
}

/// Adds a new session to the server's.
pub(super) async fn add(app: &App, session: Arc<Session>) -> Result<Arc<Session>, ApiError> {
    app.sessions.add(Arc::clone(&session)).await?;
    watch(app, &session);
    app.metrics.sessions_created.inc();
    tracing::info!(session = session.id, owner = %session.owner, backend = %session.backend(), "created");
    Ok(session)
}

/// Watches the folder of a session, if there is one.
pub(super) fn watch(app: &App, session: &Arc<Session>) {
    if let Some(folder) = session.folder() {
        let watching = watch_folder(app.clone(), Arc::clone(folder), Arc::downgrade(session));
        tokio::spawn(watching);
    }
}

async fn answer(app: App, query: Query) -> Result<Reply, String> {
    let llm = app.llm.as_ref().ok_or(NO_MODEL)?;
    llm.ask(&query.prompt, query.model.as_deref(), &app.metrics).await
}

fn usize_of(bytes: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "limits are positive, and below 2^32"
    )]
    {
        bytes as usize
    }
}

/// The facts about a session's backend.
pub(super) fn capabilities(session: &Session) -> Json {
    match &session.kind {
        Kind::Sandbox(sandbox) => json!(sandbox.capabilities()),
        Kind::Kept { kept, .. } => json!(kept.capabilities()),
        Kind::Channel { .. } => json!({ "channel": true }),
    }
}
