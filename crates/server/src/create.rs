//! The routes that create, list and destroy sessions.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sandglass_core::{BudgetLimits, Limits, Profile};
use sandglass_rlm::openai::Reply;
use serde_json::{Map, Value as Json, json};

use super::App;
use super::bodies::{self, sized, take_json};
use super::errors::ApiError;
use super::llm::{NO_MODEL, NO_RECURSION};
use super::quotas::Account;
use super::sessions::{Kind, OwnSession, Session, watch_folder};
use super::storage::{Fate, new_id};
use sandglass_host::backend;
use sandglass_host::launcher::Settings;
use sandglass_host::sandbox::{Answer, Query};
use sandglass_host::{BackendKind, Resources, Sandbox, Value};

/// The options in a request for a session.
struct Wanted {
    backend: BackendKind,
    is_channel: bool,
    ahead: bool,
    predictions: bool,
    context: Json,
    limits: Limits,
    resources: Resources,
    profile: Profile,
    output_fields: Vec<String>,
    budget: BudgetLimits,
}

/// `POST /v1/sessions`.
pub async fn create(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let place = account.session()?;
    let body = take_json::<Map<String, Json>>(&account, app.args.body_limits(), &headers, body).await?;
    let wanted = wanted(&app, body.value)?;
    let id = new_id()?;
    let folder = match &app.storage {
        Some(storage) => Some(storage.folder(&account.owner, &id, wanted.resources.disk_bytes).await?),
        None => None,
    };
    let settings = Settings {
        resources: wanted.resources,
        workspace: folder.as_ref().map(|folder| folder.workspace().path().to_owned()),
        ahead: wanted.ahead,
        ..app.args.guest_settings()
    };
    let workspace = folder.as_ref().map(|_| format!("{}/{id}", account.owner));
    let warm = match wanted.ahead {
        // A forked guest is the first process of its PID namespace. Its copies would die with it, so it cannot run code ahead.
        true => None,
        false => {
            let launcher = app.warm.launcher_for(wanted.backend, &settings, workspace.as_deref());
            launcher.await?
        }
    };
    let launcher = match warm {
        Some(launcher) => launcher,
        None => backend::launcher(wanted.backend, &settings).await?,
    };
    let (kind, capabilities) = if wanted.is_channel {
        let most_value_bytes = usize_of(wanted.limits.max_value_bytes);
        let kind = Kind::Channel {
            launcher,
            most_value_bytes,
        };
        (kind, json!({ "channel": true }))
    } else {
        let context = sized(body.size, move || Value::from_json(wanted.context)).await??;
        let mut builder = Sandbox::builder()
            .launcher(launcher)
            .settings(settings)
            .limits(wanted.limits)
            .profile(wanted.profile)
            .output_fields(wanted.output_fields)
            .budget(wanted.budget)
            .predictions(wanted.predictions)
            .on_llm_query({
                let app = app.clone();
                move |query| answer(app.clone(), query)
            });
        if !wanted.profile.falls_back() {
            builder = builder.on_rlm_query(|_| async { Err::<Answer, _>(NO_RECURSION.to_owned()) });
        }
        let sandbox = builder.build().await?;
        // If the client leaves now, the sandbox is dropped, and its guest with it.
        sandbox.initialize(context).await?;
        let capabilities = json!(sandbox.capabilities());
        (Kind::Sandbox(sandbox), capabilities)
    };
    drop(body.held);
    let session = Session::new(id, Arc::clone(&account.owner), kind, folder, place);
    app.sessions.add(Arc::clone(&session)).await?;
    if let Some(folder) = session.folder() {
        let watching = watch_folder(app.clone(), Arc::clone(folder), Arc::downgrade(&session));
        tokio::spawn(watching);
    }
    app.metrics.sessions_created.inc();
    tracing::info!(session = session.id, owner = %account.owner, backend = %session.backend(), "created");
    let told = json!({ "id": session.id, "backend": session.backend(), "capabilities": capabilities });
    bodies::json(StatusCode::CREATED, 0, told).await
}

async fn answer(app: App, query: Query) -> Result<Reply, String> {
    let llm = app.llm.as_ref().ok_or(NO_MODEL)?;
    llm.ask(&query.prompt, query.model.as_deref(), &app.metrics).await
}

fn wanted(app: &App, fields: Map<String, Json>) -> Result<Wanted, ApiError> {
    let args = &app.args;
    let mut wanted = Wanted {
        backend: args.guest.backend,
        is_channel: false,
        ahead: false,
        predictions: false,
        context: Json::Null,
        limits: Limits {
            boot_timeout_ms: args.boot_timeout_seconds * 1_000.0,
            ..Limits::default()
        },
        resources: args.resources(),
        profile: Profile::Default,
        output_fields: Vec::new(),
        budget: BudgetLimits::default(),
    };
    for (name, value) in fields {
        match name.as_str() {
            "context" => wanted.context = value,
            "backend" => wanted.backend = backend_named(app, &value)?,
            "channel" => wanted.is_channel = flag(&name, &value)?,
            "ahead" => wanted.ahead = flag(&name, &value)?,
            "predictions" => {
                wanted.predictions = match value.as_str() {
                    Some("auto") => true,
                    Some("off") => false,
                    _ => return Err(ApiError::option(&name, "must be auto or off")),
                }
            }
            "profile" => {
                let profile = value.as_str().and_then(Profile::named);
                let problem = || ApiError::option("profile", "must be default, rlm, rlm-legacy, rlm-core or dspy");
                wanted.profile = profile.ok_or_else(problem)?;
            }
            "outputFields" => {
                let fields = serde_json::from_value(value);
                wanted.output_fields = fields.map_err(|_| ApiError::option(&name, "must be a list of names"))?;
            }
            "budget" => wanted.budget = budget(value)?,
            "resources" => resources(&mut wanted.resources, value)?,
            _ => limit(app, &mut wanted, &name, &value)?,
        }
    }
    if wanted.predictions && !wanted.ahead {
        let problem = "nothing that is predicted could run: \"ahead\" must be true";
        return Err(ApiError::option("predictions", problem));
    }
    Ok(wanted)
}

fn backend_named(app: &App, value: &Json) -> Result<BackendKind, ApiError> {
    let problem = || ApiError::option("backend", "must be auto, bubblewrap, docker, subprocess or jupyter");
    let kind: BackendKind = value.as_str().ok_or_else(problem)?.parse()?;
    // The operator allowed the backend by naming it.
    let is_allowed = app.args.guest.backend == kind || (app.args.allow_subprocess && kind == BackendKind::Subprocess);
    if kind.isolates_nothing() && !is_allowed {
        let problem = match kind {
            BackendKind::Jupyter => "kernels isolate nothing, and this server was not started with --backend jupyter",
            _ => "plain processes isolate nothing, and this server was not started with --allow-subprocess",
        };
        return Err(ApiError::option("backend", problem));
    }
    Ok(kind)
}

fn limit(app: &App, wanted: &mut Wanted, name: &str, value: &Json) -> Result<(), ApiError> {
    if !Limits::NAMES.contains(&name) || ["spares", "maxAheadShare"].contains(&name) {
        return Err(ApiError::option(name, "there is no such option"));
    }
    let value = number(name, value)?;
    wanted.limits.set(name, value)?;
    let most = match name {
        "timeout" | "wallTimeout" | "hostCallTimeout" | "gracePeriod" => app.args.max_timeout_seconds * 1_000.0,
        "bootTimeout" => app.args.boot_timeout_seconds * 1_000.0,
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        "memoryLimit" => (app.args.max_memory_mib << 20) as f64,
        _ => f64::INFINITY,
    };
    if value > most {
        return Err(ApiError::option(
            name,
            format!("may be {most} at most on this server, not {value}"),
        ));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "limits are in range"
    )]
    match name {
        "memoryLimit" => wanted.resources.memory_bytes = value as u64,
        "maxFileBytes" => wanted.resources.disk_bytes = wanted.resources.disk_bytes.min(value as u64),
        _ => {}
    }
    Ok(())
}

fn flag(name: &str, value: &Json) -> Result<bool, ApiError> {
    value
        .as_bool()
        .ok_or_else(|| ApiError::option(name, "must be true or false"))
}

fn number(name: &str, value: &Json) -> Result<f64, ApiError> {
    value.as_f64().ok_or_else(|| ApiError::option(name, "must be a number"))
}

fn object(name: &str, value: Json) -> Result<Map<String, Json>, ApiError> {
    match value {
        Json::Object(fields) => Ok(fields),
        _ => Err(ApiError::option(name, "must be an object")),
    }
}

fn budget(value: Json) -> Result<BudgetLimits, ApiError> {
    let mut budget = BudgetLimits::default();
    for (name, value) in object("budget", value)? {
        budget.set(&name, number(&format!("budget.{name}"), &value)?)?;
    }
    Ok(budget)
}

/// Reads the session's resources, which cannot exceed the server's.
fn resources(resources: &mut Resources, value: Json) -> Result<(), ApiError> {
    for (name, value) in object("resources", value)? {
        let full_name = format!("resources.{name}");
        let value = number(&full_name, &value)?;
        let within = |least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                Err(ApiError::option(
                    &full_name,
                    format!("must be a number from {least} to {most}, not {value}"),
                ))
            }
        };
        let most = Resources::default();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "checked to be within small positive bounds"
        )]
        match name.as_str() {
            "pids" => resources.pids = within(8.0, f64::from(most.pids))? as u32,
            "cpus" => resources.cpus = within(0.01, most.cpus)?,
            "openFiles" => resources.open_files = within(32.0, f64::from(most.open_files))? as u32,
            "tmpBytes" => resources.tmp_bytes = within(1024.0 * 1024.0, most.tmp_bytes as f64)? as u64,
            "diskBytes" => resources.disk_bytes = within(0.0, most.disk_bytes as f64)? as u64,
            _ => return Err(ApiError::option(&full_name, "there is no such option")),
        }
    }
    Ok(())
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

fn told(session: &Session) -> Json {
    let mut told = json!({
        "id": session.id,
        "backend": session.backend(),
        "idleSeconds": session.idle_for().map_or(0.0, |idle| idle.as_secs_f64()),
    });
    let capabilities = match &session.kind {
        Kind::Sandbox(sandbox) => json!(sandbox.capabilities()),
        Kind::Channel { .. } => json!({ "channel": true }),
    };
    if let Some(told) = told.as_object_mut() {
        told.insert("capabilities".to_owned(), capabilities);
    }
    told
}

/// `GET /v1/sessions`.
pub async fn list(State(app): State<App>, Extension(account): Extension<Arc<Account>>) -> Result<Response, ApiError> {
    let sessions: Vec<_> = app
        .sessions
        .all_of(&account.owner)
        .iter()
        .map(|session| told(session))
        .collect();
    bodies::json(StatusCode::OK, 0, json!({ "sessions": sessions })).await
}

/// `GET /v1/sessions/{id}`.
pub async fn show(OwnSession(session): OwnSession) -> Result<Response, ApiError> {
    bodies::json(StatusCode::OK, 0, told(&session)).await
}

/// `DELETE /v1/sessions/{id}`.
pub async fn destroy(State(app): State<App>, OwnSession(session): OwnSession) -> Result<Response, ApiError> {
    // The removal goes on when the client leaves.
    let removing = tokio::spawn(async move { app.sessions.remove(&session.id, Fate::Removed).await });
    removing
        .await
        .map_err(|_| ApiError::internal("the session could not be destroyed; this is a bug"))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
