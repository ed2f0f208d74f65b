//! A client's session, with its sandbox.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use sandglass_core::limits::FEEDBACK_CHARS;
use sandglass_host::args::told;
use sandglass_host::backend;
use sandglass_host::rlm::Endpoint;
use sandglass_host::{BudgetLimits, Error, Launcher, Limits, Sandbox, Value};
use sandglass_server::metrics::{Gauge, Up};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::folders::Folders;
use crate::questions::{self, Questions};
use crate::settings::McpArgs;

/// The most resources that a session subscribes to.
const MAX_SUBSCRIPTIONS: usize = 1_000;
/// The most bytes of a file that a client reads or writes. A message holds all of them.
pub const MAX_FILE_BYTES: u32 = 32 << 20;
/// The most questions of `ask` at the same time, of all sessions together.
const MAX_ASKED: usize = 8;
/// The code of a refused session, among those that the protocol leaves to servers.
const TOO_MANY_SESSIONS: ErrorCode = ErrorCode(-32_000);

/// The state that all sessions share.
pub struct Shared {
    pub args: McpArgs,
    pub folders: Folders,
    launcher: Arc<dyn Launcher>,
    /// The controller's backend and the model for `llm_query`, if there is a model.
    pub controller: Option<Controller>,
    /// The sessions that exist, until nothing is left of their sandboxes.
    pub live: Gauge,
}

/// The controller that answers `ask`.
pub struct Controller {
    pub launcher: Arc<dyn Launcher>,
    pub sub_model: Endpoint,
    /// The most that the `llm_query` of one execution may use.
    pub budget: BudgetLimits,
    pub at_once: Semaphore,
}

impl Shared {
    /// Checks the options, and finds a backend.
    ///
    /// # Errors
    /// An option is wrong, or no backend works here.
    pub async fn new(args: McpArgs) -> Result<Arc<Self>, String> {
        let folders = Folders::open(&args.allow_folder)?;
        let kind = args.guest.backend;
        let launcher = backend::launcher(kind, &args.sessions()).await.map_err(told)?;
        let controller = match args.controller.model {
            Some(_) => {
                let options = args.controller.options("", Value::None).map_err(told)?;
                Some(Controller {
                    launcher: backend::launcher(kind, &args.runs()).await.map_err(told)?,
                    sub_model: options.sub_model,
                    budget: options.budget,
                    at_once: Semaphore::new(MAX_ASKED),
                })
            }
            None => None,
        };
        Ok(Arc::new(Self {
            args,
            folders,
            launcher,
            controller,
            live: Gauge::default(),
        }))
    }
}

/// A client's session. Its sandbox starts when a tool first needs it, and ends with the session.
pub struct Session {
    pub shared: Arc<Shared>,
    sandbox: tokio::sync::Mutex<Option<Sandbox>>,
    /// The right to run code. Calls run one after the other.
    pub turn: tokio::sync::Mutex<()>,
    pub questions: Questions,
    subscriptions: Mutex<BTreeSet<String>>,
    /// The places for sessions of one key, over HTTP.
    places: Option<Arc<Semaphore>>,
    place: Mutex<Option<OwnedSemaphorePermit>>,
    alive: Option<Up>,
}

impl Session {
    /// A session, which needs one of the `places`, if they are counted.
    pub fn new(shared: Arc<Shared>, places: Option<Arc<Semaphore>>) -> Self {
        Self {
            alive: Some(shared.live.up()),
            shared,
            sandbox: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            questions: Questions::default(),
            subscriptions: Mutex::default(),
            places,
            place: Mutex::default(),
        }
    }

    /// True for the client of standard input and output, which started this program.
    pub fn is_local(&self) -> bool {
        self.places.is_none()
    }

    /// Takes a place for the session.
    ///
    /// # Errors
    /// There is none left.
    pub fn begin(&self) -> Result<(), ErrorData> {
        let Some(places) = &self.places else { return Ok(()) };
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| {
            let most = self.shared.args.max_sessions;
            let message = format!("{most} sessions of this key are open: end one, or try again later");
            ErrorData::new(TOO_MANY_SESSIONS, message, None)
        })?;
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }

    /// The sandbox. It starts if there is none.
    ///
    /// # Errors
    /// No guest starts.
    pub async fn sandbox(&self) -> Result<Sandbox, Error> {
        let mut sandbox = self.sandbox.lock().await;
        if let Some(sandbox) = &*sandbox {
            return Ok(sandbox.clone());
        }
        let mut limits = Limits::default();
        limits.set("timeout", self.shared.args.timeout * 1_000.0)?;
        limits.set("maxOutputLength", f64::from(FEEDBACK_CHARS))?;
        limits.set("maxFileBytes", f64::from(MAX_FILE_BYTES))?;
        let endpoint = self.shared.controller.as_ref().map(|all| all.sub_model.clone());
        let questions = self.questions.clone();
        let new = Sandbox::builder()
            .launcher(Arc::clone(&self.shared.launcher))
            .limits(limits)
            .on_llm_query(move |query| questions::answer(query, endpoint.clone(), questions.clone()))
            .on_rlm_query(questions::no_recursion)
            .build()
            .await?;
        if let Err(error) = new.initialize(Value::None).await {
            new.destroy().await;
            return Err(error);
        }
        *sandbox = Some(new.clone());
        Ok(new)
    }

    /// The sandbox, if it has started.
    pub async fn started(&self) -> Option<Sandbox> {
        self.sandbox.lock().await.clone()
    }

    /// Ends the sandbox. The next call starts a new one.
    pub async fn reset(&self) {
        let sandbox = self.sandbox.lock().await.take();
        if let Some(sandbox) = sandbox {
            sandbox.destroy().await;
        }
    }

    /// Notes that the client wants to hear of changes of a resource.
    ///
    /// # Errors
    /// There are too many.
    pub fn subscribe(&self, uri: String) -> Result<(), ErrorData> {
        let mut all = self.subscriptions();
        if all.len() >= MAX_SUBSCRIPTIONS && !all.contains(&uri) {
            let message =
                format!("a session can subscribe to {MAX_SUBSCRIPTIONS} resources: unsubscribe from one first");
            return Err(ErrorData::invalid_request(message, None));
        }
        all.insert(uri);
        Ok(())
    }

    /// Forgets a subscription.
    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions().remove(uri);
    }

    /// Returns true when the client wants to hear of changes of the resource.
    pub fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions().contains(uri)
    }

    fn subscriptions(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.get_mut().take() {
            let (alive, place) = (self.alive.take(), self.place.get_mut().ok().and_then(Option::take));
            tokio::spawn(async move {
                sandbox.destroy().await;
                drop((alive, place));
            });
        }
    }
}
