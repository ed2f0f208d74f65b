//! A client's session, with its sandbox.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use sandglass_core::limits::FEEDBACK_CHARS;
use sandglass_host::args::{ControllerArgs, told};
use sandglass_host::backend;
use sandglass_host::rlm::Endpoint;
use sandglass_host::sandbox::SandboxBuilder;
use sandglass_host::{BudgetLimits, ExecuteOptions, Execution, Launcher, Limits, Sandbox, Value};
use sandglass_server::mcp::{Lent, OfKey, Place};
use sandglass_server::metrics::{Gauge, Up};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::folders::Folders;
use crate::questions::{self, Questions};
use crate::settings::McpArgs;

/// The names of limits that are the same in every home.
const OUTPUT: &str = "maxOutputLength";
const FILE: &str = "maxFileBytes";
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
    pub folders: Folders,
    /// Is there a working folder of this machine?
    pub has_workspace: bool,
    /// The time after which an unused session ends, over HTTP.
    pub idle: Option<Duration>,
    /// The controller's backend and the model for `llm_query`, if there is a model.
    pub controller: Option<Controller>,
    /// The sessions that exist, until nothing is left of their sandboxes.
    pub live: Gauge,
}

/// The controller that answers `ask`.
pub struct Controller {
    pub args: ControllerArgs,
    /// The timeout of each execution, in milliseconds.
    pub timeout_ms: f64,
    pub launcher: Arc<dyn Launcher>,
    pub sub_model: Endpoint,
    /// The most that the `llm_query` of one execution may use.
    pub budget: BudgetLimits,
    pub at_once: Semaphore,
}

impl Shared {
    /// Checks the options of the command `mcp`, and finds a backend for its sessions.
    ///
    /// # Errors
    /// An option is wrong, or no backend works here.
    pub async fn new(args: &McpArgs) -> Result<(Arc<Self>, Own), String> {
        let folders = Folders::open(&args.allow_folder)?;
        let kind = args.guest.backend;
        let timeout_ms = args.timeout * 1_000.0;
        let launcher = backend::launcher(kind, &args.sessions()).await.map_err(told)?;
        let controller = match args.controller.model {
            Some(_) => {
                let options = args.controller.options("", Value::None).map_err(told)?;
                Some(Controller {
                    args: args.controller.clone(),
                    timeout_ms,
                    launcher: backend::launcher(kind, &args.runs()).await.map_err(told)?,
                    sub_model: options.sub_model,
                    budget: options.budget,
                    at_once: Semaphore::new(MAX_ASKED),
                })
            }
            None => None,
        };
        let shared = Self {
            folders,
            has_workspace: args.workspace.is_some(),
            idle: args.listen.map(|_| Duration::from_secs_f64(args.session_idle_seconds)),
            controller,
            live: Gauge::default(),
        };
        let own = Own {
            launcher,
            timeout_ms,
            places: None,
        };
        Ok((Arc::new(shared), own))
    }

    /// The state of sessions on a server, whose sandboxes are those of the server.
    pub fn of_server(idle: Duration) -> Arc<Self> {
        Arc::new(Self {
            folders: Folders::default(),
            has_workspace: false,
            idle: Some(idle),
            controller: None,
            live: Gauge::default(),
        })
    }
}

/// The home of a session's sandbox.
#[derive(Clone)]
pub enum Home {
    /// This program, which serves this protocol only.
    Own(Own),
    /// A server that serves other protocols as well.
    Server(OfKey),
}

/// Sandboxes of this program.
#[derive(Clone)]
pub struct Own {
    launcher: Arc<dyn Launcher>,
    timeout_ms: f64,
    /// The places for sessions of one key, over HTTP, and their number.
    places: Option<(Arc<Semaphore>, u32)>,
}

impl Own {
    /// The same for sessions that take one of these places, of which there are `most`.
    pub fn with_places(mut self, places: Arc<Semaphore>, most: u32) -> Self {
        self.places = Some((places, most));
        self
    }
}

/// A sandbox that has started.
#[derive(Clone)]
pub enum Started {
    Own(Sandbox),
    Lent(Arc<Lent>),
}

impl Started {
    pub fn sandbox(&self) -> Sandbox {
        match self {
            Self::Own(sandbox) => sandbox.clone(),
            Self::Lent(lent) => lent.sandbox().clone(),
        }
    }

    /// Runs code.
    ///
    /// # Errors
    /// The sandbox cannot run code, or the key may run no more.
    pub async fn execute(&self, code: String, options: ExecuteOptions) -> Result<Execution, String> {
        match self {
            Self::Own(sandbox) => sandbox.execute_with(code, options).await.map_err(told),
            Self::Lent(lent) => lent.execute(code, options).await,
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self, Self::Lent(lent) if lent.is_gone())
    }

    async fn destroy(&self) {
        match self {
            Self::Own(sandbox) => sandbox.destroy().await,
            Self::Lent(lent) => lent.destroy().await,
        }
    }
}

/// The place of a session.
enum Held {
    #[expect(dead_code, reason = "held for its drop")]
    Own(OwnedSemaphorePermit),
    #[expect(dead_code, reason = "held for its drop")]
    Server(Place),
}

/// A client's session. Its sandbox starts when a tool first needs it, and ends with the session.
pub struct Session {
    pub shared: Arc<Shared>,
    home: Home,
    started: tokio::sync::Mutex<Option<Started>>,
    /// The right to run code. Calls run one after the other.
    pub turn: tokio::sync::Mutex<()>,
    pub questions: Questions,
    subscriptions: Mutex<BTreeSet<String>>,
    place: Mutex<Option<Held>>,
    alive: Option<Up>,
}

impl Session {
    /// A session whose sandbox has this home.
    pub fn new(shared: Arc<Shared>, home: Home) -> Self {
        Self {
            alive: Some(shared.live.up()),
            shared,
            home,
            started: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            questions: Questions::default(),
            subscriptions: Mutex::default(),
            place: Mutex::default(),
        }
    }

    /// True for the client of standard input and output, which started this program.
    pub fn is_local(&self) -> bool {
        matches!(&self.home, Home::Own(own) if own.places.is_none())
    }

    /// True for a session on a server of other protocols, which has no folders to load from.
    pub fn is_on_server(&self) -> bool {
        matches!(self.home, Home::Server(_))
    }

    /// Takes a place for the session.
    ///
    /// # Errors
    /// There is none left.
    pub fn begin(&self) -> Result<(), ErrorData> {
        let full = |message| ErrorData::new(TOO_MANY_SESSIONS, message, None);
        let place = match &self.home {
            Home::Own(Own { places: None, .. }) => return Ok(()),
            Home::Own(Own {
                places: Some((places, most)),
                ..
            }) => {
                let place = Arc::clone(places).try_acquire_owned();
                let refused = |_| {
                    full(format!(
                        "{most} sessions of this key are open: end one, or try again later"
                    ))
                };
                Held::Own(place.map_err(refused)?)
            }
            Home::Server(of_key) => Held::Server(of_key.place().map_err(full)?),
        };
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }

    /// True if the client has taken a place, which that of standard input and output does not need.
    fn has_begun(&self) -> bool {
        self.is_local() || self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The sandbox. It starts if there is none.
    ///
    /// # Errors
    /// No guest starts, or the key may have no more.
    pub async fn sandbox(&self) -> Result<Sandbox, String> {
        Ok(self.start().await?.sandbox())
    }

    /// Writes a file into the working folder.
    ///
    /// # Errors
    /// As [`Session::sandbox`], or there is no room for it.
    pub async fn write_file(&self, path: &str, bytes: Vec<u8>) -> Result<(), String> {
        let started = self.start().await?;
        if let Started::Lent(lent) = &started {
            lent.room_for(bytes.len()).await?;
        }
        started.sandbox().write_file(path, bytes).await.map_err(told)
    }

    /// The sandbox. It starts if there is none.
    ///
    /// # Errors
    /// As [`Session::sandbox`].
    pub async fn start(&self) -> Result<Started, String> {
        if !self.has_begun() {
            return Err("the session has not begun: a client sends `initialize` first".to_owned());
        }
        let mut started = self.started.lock().await;
        if started.as_ref().is_some_and(Started::is_gone) {
            *started = None;
            let why = "another request of this key ended the Python of this session, with all variables; nothing was run. \
                       The next call starts it anew";
            return Err(why.to_owned());
        }
        if let Some(started) = &*started {
            return Ok(started.clone());
        }
        let new = match &self.home {
            Home::Own(own) => {
                let mut limits = Limits::default();
                let bounds = [
                    ("timeout", own.timeout_ms),
                    (OUTPUT, FEEDBACK_CHARS.into()),
                    (FILE, MAX_FILE_BYTES.into()),
                ];
                for (name, value) in bounds {
                    limits.set(name, value).map_err(told)?;
                }
                let endpoint = self.shared.controller.as_ref().map(|all| all.sub_model.clone());
                let builder = Sandbox::builder().launcher(Arc::clone(&own.launcher)).limits(limits);
                let new = self.with_questions(builder, endpoint).build().await.map_err(told)?;
                Started::Own(new)
            }
            Home::Server(of_key) => {
                let fields = [(OUTPUT, FEEDBACK_CHARS), (FILE, MAX_FILE_BYTES)];
                let fields = fields.map(|(name, value)| (name.to_owned(), value.into()));
                let lent = of_key.sandbox(fields.into_iter().collect(), |builder| match of_key.has_model() {
                    true => builder.on_rlm_query(questions::no_recursion),
                    false => self.with_questions(builder, None),
                });
                Started::Lent(Arc::new(lent.await?))
            }
        };
        if let Err(error) = new.sandbox().initialize(Value::None).await {
            new.destroy().await;
            return Err(told(error));
        }
        *started = Some(new.clone());
        Ok(new)
    }

    /// Has the endpoint, or else the client's model, answer `llm_query`.
    fn with_questions(&self, builder: SandboxBuilder, endpoint: Option<Endpoint>) -> SandboxBuilder {
        let questions = self.questions.clone();
        builder
            .on_llm_query(move |query| questions::answer(query, endpoint.clone(), questions.clone()))
            .on_rlm_query(questions::no_recursion)
    }

    /// The sandbox, if it has started and is still there.
    pub async fn started(&self) -> Option<Sandbox> {
        let started = self.started.lock().await;
        started
            .as_ref()
            .filter(|started| !started.is_gone())
            .map(Started::sandbox)
    }

    /// Ends the sandbox. The next call starts a new one.
    pub async fn reset(&self) {
        let started = self.started.lock().await.take();
        if let Some(started) = started {
            started.destroy().await;
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
        if let Some(started) = self.started.get_mut().take() {
            let (alive, place) = (self.alive.take(), self.place.get_mut().ok().and_then(Option::take));
            tokio::spawn(async move {
                started.destroy().await;
                drop((alive, place));
            });
        }
    }
}
