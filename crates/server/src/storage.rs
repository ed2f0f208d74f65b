//! The folders of sessions on disk: created, locked and measured while their session lives, then removed or kept.
//!
//! The kernel bounds a guest's memory, processes and temporary files, but not a folder on disk. So each folder is measured
//! repeatedly, and code that makes it too large is stopped. A guest can exceed its quota until the next measurement, about
//! [`LOOK`] later.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use sandglass_core::Error;
use sandglass_core::execution::Killer;
use sandglass_states::{HomeId, SessionId};
use tokio::sync::{Notify, watch};

use super::bodies::off_the_workers;
use super::errors::ApiError;
use super::settings::ServeArgs;
use super::warm::Warm;
use sandglass_host::workspace::{Quota, Usage, Workspace, WorkspaceError, Workspaces};
use sandglass_host::{BackendKind, Execution, Outcome, Sandbox, StateStatus};

/// Most files and folders in a session's folder.
const MOST_FILES: u64 = 100_000;
/// The shortest pause between two measurements of a used session's folder.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest pause for an unused session, whose leftover threads may still write.
const IDLE_LOOK: Duration = Duration::from_secs(10);
/// The pause after a measurement, as a multiple of its duration.
const REST: u32 = 20;

/// The fate of a folder when its session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The folder is removed.
    Removed,
    /// The folder is kept, up to the number in the settings.
    Kept,
}

/// A new id of a session, which begins with the home of the server if it has one. The rest, 64 or 128 bits, is random.
///
/// # Errors
/// The system has no random numbers.
pub fn new_id(home: Option<HomeId>) -> Result<String, ApiError> {
    let id = SessionId::random(home).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(id.to_string())
}

/// Returns true when a folder's name is a session id. Other folders are never removed.
fn is_id(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The folders of all sessions.
#[derive(Debug)]
pub struct Storage {
    workspaces: Workspaces,
    kept: usize,
    pruning: Mutex<()>,
}

impl Storage {
    /// The folders that the settings ask for; `None` without a folder for workspaces.
    ///
    /// # Errors
    /// The folder cannot be created or read.
    pub fn open(args: &ServeArgs) -> Result<Option<Arc<Self>>, String> {
        let Some(path) = &args.workspace_dir else {
            return Ok(None);
        };
        let workspaces = Workspaces::open(path, Some(args.guest.guest_users), None)
            .map_err(|error| format!("the folder of the workspaces cannot be used: {error}"))?;
        Ok(Some(Arc::new(Self {
            workspaces,
            kept: args.kept_workspaces,
            pruning: Mutex::new(()),
        })))
    }

    /// Checks that guests of bubblewrap can reach the folder. Docker gives guests the folder itself, and others run as the server.
    ///
    /// # Errors
    /// The reason and the remedy.
    pub async fn check(&self, args: &ServeArgs, warm: &Warm) -> Result<(), String> {
        let Err(why) = args.guest.guest_users.reach(self.workspaces.path()) else {
            return Ok(());
        };
        let is_bubblewrap = match args.guest.backend {
            BackendKind::Auto => warm
                .cold()
                .await
                .is_ok_and(|cold| cold.kind() == BackendKind::Bubblewrap),
            backend => backend == BackendKind::Bubblewrap,
        };
        match is_bubblewrap {
            true => Err(format!(
                "the folder of --workspace-dir (WORKSPACE_DIR) cannot be used: {why}"
            )),
            false => Ok(()),
        }
    }

    /// The workspaces of all sessions.
    pub fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    /// A session's folder, which may hold so many bytes. The fate holds until another one is [decided](Folder::decide).
    ///
    /// # Errors
    /// It cannot be made.
    pub async fn folder(
        self: &Arc<Self>,
        owner: &str,
        id: &str,
        bytes: u64,
        fate: Fate,
    ) -> Result<Arc<Folder>, ApiError> {
        let (storage, owner, id) = (Arc::clone(self), owner.to_owned(), id.to_owned());
        off_the_workers(move || {
            let workspace = storage.workspaces.claim(&owner, &id).map_err(|error| {
                tracing::error!(session = id, owner, %error, "a workspace cannot be made");
                ApiError::internal("the session's workspace could not be made; the server's log says why")
            })?;
            let quota = Quota {
                bytes,
                files: MOST_FILES,
            };
            Ok(Arc::new(Folder {
                storage,
                workspace: Arc::new(workspace.with_quota(quota)),
                over: watch::Sender::new(None),
                used: Notify::new(),
                is_forgotten: AtomicBool::new(fate == Fate::Removed),
                is_settled: AtomicBool::new(false),
            }))
        })
        .await?
    }

    /// Ends with a session's folder. Takes as long as the disk does.
    fn settle(&self, workspace: &Workspace, is_forgotten: bool) {
        let _alone = self.pruning.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match self.kept.checked_sub(1) {
            Some(others) if !is_forgotten => self.workspaces.prune(workspace.user(), others, is_id),
            _ => workspace.destroy(),
        };
        if let Err(error) = done {
            tracing::error!(session = workspace.session(), owner = workspace.user(), %error, "folders of sessions are left behind");
        }
    }
}

/// The folder of one session. If it is dropped before it was [settled](Folder::settle), it is settled then.
#[derive(Debug)]
pub struct Folder {
    storage: Arc<Storage>,
    workspace: Arc<Workspace>,
    /// The excess found by the last measurement, as a text.
    over: watch::Sender<Option<String>>,
    /// Notified when the session is used.
    used: Notify,
    is_forgotten: AtomicBool,
    is_settled: AtomicBool,
}

impl Folder {
    /// The workspace in this folder.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Decides the folder's fate at the end.
    pub fn decide(&self, fate: Fate) {
        self.is_forgotten.store(fate == Fate::Removed, Ordering::Release);
    }

    /// Removes or keeps the folder, as decided. The guest must be gone.
    pub async fn settle(&self) {
        if let Some(work) = self.last_work() {
            let _ = off_the_workers(work).await;
            self.used.notify_one();
        }
    }

    fn last_work(&self) -> Option<impl FnOnce() + Send + 'static> {
        let is_first = !self.is_settled.swap(true, Ordering::AcqRel);
        is_first.then(|| {
            let (storage, workspace) = (Arc::clone(&self.storage), Arc::clone(&self.workspace));
            let is_forgotten = self.is_forgotten.load(Ordering::Acquire);
            move || storage.settle(&workspace, is_forgotten)
        })
    }

    /// Sees whether there is room for so many more bytes.
    ///
    /// # Errors
    /// 507, when there is not.
    pub async fn room_for(&self, bytes: u64) -> Result<(), ApiError> {
        let Some(why) = self.look(bytes).await?.1 else {
            return Ok(());
        };
        let message = format!(
            "the session's folder holds, or would hold, too much: {why}. Nothing was done: remove files first (DELETE …/files/…)"
        );
        Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "quota", message))
    }

    /// Checks that code may run in the folder, and lets the watcher measure more often.
    ///
    /// # Errors
    /// 507 when the folder exceeds its quota.
    pub async fn room(&self) -> Result<(), ApiError> {
        self.used.notify_one();
        let was_over = self.over.borrow().is_some();
        // The folder may have been emptied since the last measurement.
        if was_over { self.room_for(0).await } else { Ok(()) }
    }

    /// Returns true if there is anything in the folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn has_files(&self) -> Result<bool, ApiError> {
        let workspace = Arc::clone(&self.workspace);
        let listed = off_the_workers(move || workspace.list("")).await?;
        listed.map(|listing| !listing.entries.is_empty()).map_err(|error| {
            tracing::error!(session = self.workspace.session(), %error, "a workspace cannot be listed");
            ApiError::internal("the session's folder could not be listed; the server's log says why")
        })
    }

    /// Measures the folder. Returns its bytes, and the excess if `more` bytes were added.
    async fn look(&self, more: u64) -> Result<(u64, Option<String>), ApiError> {
        let workspace = Arc::clone(&self.workspace);
        let excess = |workspace: &Workspace, usage: &Usage| workspace.quota().and_then(|quota| quota.exceeded(usage));
        let measured = off_the_workers(move || {
            let usage = workspace.measure()?;
            let with_more = Usage {
                bytes: usage.bytes.saturating_add(more),
                ..usage
            };
            Ok((usage.bytes, excess(&workspace, &usage), excess(&workspace, &with_more)))
        });
        let (bytes, now, with_more) = measured.await?.map_err(|error: WorkspaceError| {
            tracing::error!(session = self.workspace.session(), %error, "a workspace cannot be measured");
            ApiError::internal("the session's folder could not be measured; the server's log says why")
        })?;
        self.over.send_replace(now);
        Ok((bytes, with_more))
    }

    /// Measures the folder repeatedly until it is settled. Returns early with the excess if the folder grows while nobody uses
    /// the session, because a leftover of the guest writes then.
    pub async fn watch(&self, is_idle: impl Fn() -> bool) -> Option<String> {
        // The bytes at the last measurement, if the session was not used since.
        let mut before = None;
        while !self.is_settled.load(Ordering::Acquire) {
            let began = Instant::now();
            let looked = self.look(0).await;
            let is_idle = is_idle();
            if let (Some(before), Ok((bytes, Some(why)))) = (before, &looked)
                && is_idle
                && *bytes > before
            {
                return Some(why.clone());
            }
            let rest = (began.elapsed() * REST).max(if is_idle { IDLE_LOOK } else { LOOK });
            let is_used = tokio::time::timeout(rest, self.used.notified()).await.is_ok();
            before = looked.ok().map(|(bytes, _)| bytes).filter(|_| is_idle && !is_used);
        }
        None
    }

    /// A receiver of each measurement that finds an excess.
    pub fn excess(&self) -> Excess {
        Excess(Some(self.over.subscribe()))
    }

    /// Waits for running code; when the folder holds too much meanwhile, the code is stopped.
    pub async fn bound(
        &self,
        sandbox: &Sandbox,
        running: impl Future<Output = Result<Execution, Error>>,
    ) -> Result<Execution, Error> {
        let mut excess = self.excess();
        let mut running = pin!(running);
        let mut reason = None;
        // Each measurement that finds an excess stops the running code: the earlier one may have stopped other code.
        let mut execution = loop {
            tokio::select! {
                biased;
                ended = &mut running => break ended?,
                why = excess.next() => {
                    reason = Some(why);
                    sandbox.interrupt();
                }
            }
        };
        if let (Some(why), Outcome::Interrupted) = (reason, execution.outcome) {
            let state = match execution.state.status {
                StateStatus::Kept => "variables are kept",
                _ => "the guest did not stop in time and was ended, variables are lost",
            };
            let run = &mut execution.run;
            run.outcome = Outcome::Limit;
            run.killer = Some(Killer::Disk);
            run.error_type = Some("LimitError".to_owned());
            run.error = Some(format!(
                "LimitError: the session's folder holds too much ({why}), so the code was stopped; {state}. \
                 Remove files before more code is run"
            ));
        }
        Ok(execution)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let Some(work) = self.last_work() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(work)),
            Err(_) => work(),
        }
    }
}

/// Receives measurements that find an excess.
#[derive(Debug)]
pub struct Excess(Option<watch::Receiver<Option<String>>>);

impl Excess {
    /// Never tells anything.
    pub fn none() -> Self {
        Self(None)
    }

    /// The excess of the next such measurement. Can be dropped and called again.
    pub async fn next(&mut self) -> String {
        let Some(over) = &mut self.0 else {
            return pending().await;
        };
        loop {
            if over.changed().await.is_err() {
                return pending().await;
            }
            if let Some(why) = &*over.borrow_and_update() {
                return why.clone();
            }
        }
    }
}
