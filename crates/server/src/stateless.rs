//! The route `POST /execute`: stateless runs. Only the files of a run are kept, for a short time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::App;
use super::bodies::{self, Taken, take_json};
use super::errors::ApiError;
use super::quotas::Account;
use super::storage::new_id;
use sandglass_host::Limits;
use sandglass_host::stateless::{self, Bounds, Request, RunFile};
use sandglass_host::traces::{InTrace, Span, SpanKind};

/// The time for which a run's files are kept.
const KEPT: Duration = Duration::from_secs(300);
/// The most bytes of files that are kept of one run.
const RUN_BYTES: u64 = 16 << 20;
const ALL_BYTES: usize = 256 << 20;
/// The time to fetch the state and files after a run.
const AFTERWARDS: Duration = Duration::from_secs(20);
/// The bytes that each kept file counts beyond its contents.
const FILE_BYTES: usize = 512;

/// The files of runs, oldest first.
#[derive(Debug, Default)]
pub struct Files(Mutex<VecDeque<Run>>);

#[derive(Debug)]
struct Run {
    id: String,
    owner: Arc<str>,
    ended: Instant,
    files: Vec<RunFile>,
}

impl Run {
    fn bytes(&self) -> usize {
        self.files
            .iter()
            .map(|file| file.data.len() + file.path.len() + FILE_BYTES)
            .sum()
    }
}

impl Files {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, run: Run) {
        let mut runs = self.lock();
        runs.push_back(run);
        drop_old(&mut runs);
    }

    fn find(&self, owner: &str, id: &str, path: &str) -> Option<Vec<u8>> {
        let mut runs = self.lock();
        drop_old(&mut runs);
        let run = runs.iter().find(|run| run.id == id && *run.owner == *owner)?;
        run.files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.data.clone())
    }
}

/// Drops the oldest runs, and runs beyond the bounds.
fn drop_old(runs: &mut VecDeque<Run>) {
    let mut bytes: usize = runs.iter().map(Run::bytes).sum();
    while let Some(run) = runs.front()
        && (bytes > ALL_BYTES || run.ended.elapsed() > KEPT)
    {
        bytes -= run.bytes();
        runs.pop_front();
    }
}

/// The answer to a run.
#[derive(Serialize)]
struct Answer {
    /// The id of the run's files: `GET /execute/{id}/files/{path}`. `None` when the run left no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    response: stateless::Response,
}

/// `POST /execute`.
pub async fn execute(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let place = account.execution()?;
    let Taken {
        value: request, held, ..
    } = take_json::<Request>(&account, app.args.body_limits(), &headers, body).await?;
    let timeout = request.timeout.unwrap_or(app.args.warm.run_timeout_seconds);
    let most = app.args.max_timeout_seconds;
    if !(timeout > 0.0 && timeout <= most) {
        return Err(ApiError::option(
            "timeout",
            format!("must be a number of seconds up to {most}"),
        ));
    }
    let launcher = app.warm.guest().await?;
    let bounds = Bounds {
        limits: Limits {
            timeout_ms: timeout * 1_000.0,
            boot_timeout_ms: app.args.boot_timeout_seconds * 1_000.0,
            ..Limits::default()
        },
        max_state_bytes: app.args.warm.state_max_size_mb << 20,
        max_file_bytes: RUN_BYTES,
        afterwards: AFTERWARDS,
    };
    let began = Instant::now();
    let span = Span::begin("execute", SpanKind::Internal);
    let ran = tokio::select! {
        ran = stateless::run(launcher, &bounds, request).with_context(span.context()) => ran,
        () = app.sessions.closed() => return Err(ApiError::cut_short()),
    };
    drop((place, held));
    let outcome = match &ran {
        Ok((response, _)) => match response.exit_code {
            0 => "ok",
            stateless::TIMED_OUT => "timeout",
            stateless::KILLED => "crashed",
            _ => "error",
        },
        Err(error) => error.code(),
    };
    span.set("sandglass.execution.outcome", outcome);
    drop(span);
    app.metrics.execution(outcome, began.elapsed());
    let (response, files) = ran?;
    let id = if files.is_empty() {
        None
    } else {
        Some(new_id(app.home())?)
    };
    if let Some(id) = &id {
        app.runs.keep(Run {
            id: id.clone(),
            owner: Arc::clone(&account.owner),
            ended: Instant::now(),
            files,
        });
    }
    let size = response.stdout.len() + response.stderr.len() + response.state.as_ref().map_or(0, String::len);
    bodies::json(StatusCode::OK, size, Answer { id, response }).await
}

/// `GET /execute/{id}/files/{path}`.
pub async fn file(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    Path((id, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let bytes = app.runs.find(&account.owner, &id, &path).ok_or_else(|| {
        let seconds = KEPT.as_secs();
        let message = format!("no run {id} has left a file {path:?} within the last {seconds} s");
        ApiError::new(StatusCode::NOT_FOUND, "file_not_found", message)
    })?;
    // The file is untrusted, so no browser may show it as a page of this server.
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
    ];
    Ok((headers, bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, bytes: usize) -> Run {
        Run {
            id: id.to_owned(),
            owner: "ann".into(),
            ended: Instant::now(),
            files: vec![RunFile {
                path: "a".to_owned(),
                data: vec![0; bytes],
            }],
        }
    }

    #[test]
    fn what_is_kept_of_runs_is_bounded_and_its_owners() {
        let files = Files::default();
        files.keep(run("first", 10));
        assert_eq!(files.find("ann", "first", "a").map(|data| data.len()), Some(10));
        assert_eq!(files.find("bob", "first", "a"), None);
        assert_eq!(files.find("ann", "first", "b"), None);
        for at in 0..20 {
            files.keep(run(&at.to_string(), 16 << 20));
        }
        assert_eq!(files.find("ann", "first", "a"), None);
        assert!(files.find("ann", "19", "a").is_some());
        assert!(files.lock().iter().map(Run::bytes).sum::<usize>() <= ALL_BYTES);
    }
}
