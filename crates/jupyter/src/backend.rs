//! Guests in Jupyter kernels, without any isolation: for trusted code that must run where a notebook's code runs.
//!
//! A kernel is either started here or already running. It imports the guest's runtime and connects back to a private socket of
//! the host. From then on it is a guest like others. Work that needs the kernel's main thread is asked for as any front end
//! asks: by an `execute_request`, which is called a turn in this module. Between turns, other front ends can use the kernel.

mod client;
mod package;
mod spec;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered, StreamExt};
use rustix::process::geteuid;
use sandglass_core::Error;
use sandglass_host::frame::Frame;
use sandglass_host::guest::{Exit, Guest, Hits, Plan, Process, epoch};
use sandglass_host::launcher::{BackendKind, Kernels, Launcher, Settings};
use sandglass_host::temporary::TemporaryFolder;
use sandglass_host::value::Variable;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::client::{Client, KernelError, Ran, execute, gone, ran, random};
use self::package::{Package, call};
use self::spec::Spec;
use crate::connection;
use crate::messages::bytes_of;

/// The time for a kernel to answer `kernel_info_request`, which kernels answer even while code runs.
const INFO_WITHIN: Duration = Duration::from_secs(10);
/// The pause before a starting kernel is asked again.
const AGAIN: Duration = Duration::from_millis(20);
/// The time after which an unanswered subshell is asked again.
const SUBSHELL_AGAIN: Duration = Duration::from_secs(3);
/// The time for the process of an ended kernel to exit, so that the error can say how it ended.
const END_WITHIN: Duration = Duration::from_secs(2);
/// The time for a kernel to tidy up when its guest leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// The time after which a kernel that has not begun a request is sent another message, which may wake it.
const NUDGE: Duration = Duration::from_secs(1);
/// The most requests in a row that a kernel answers without running them, because it was interrupted.
const MOST_TRIES: usize = 100;
/// The largest list of variables from a kernel, in bytes.
const MAX_LIST_BYTES: usize = 4 << 20;

/// The kernel that runs guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSettings {
    /// The kernelspec, by name or by folder. Each guest gets a kernel of its own. By default `python3`.
    pub name: Option<String>,
    /// The connection file of a running kernel, used instead of a kernelspec. The kernel has one guest at a time, and goes on
    /// after it.
    pub connection_file: Option<PathBuf>,
    /// The time for a kernel to start, or for a running kernel to become free.
    pub boot_timeout: Duration,
}

impl Default for KernelSettings {
    fn default() -> Self {
        Self {
            name: None,
            connection_file: None,
            boot_timeout: Duration::from_secs(60),
        }
    }
}

impl Kernels for KernelSettings {
    fn launcher(&self, settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
        Ok(Jupyter::launcher(self, settings)?)
    }

    fn look<'a>(&'a self, settings: &'a Settings) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match Jupyter::new(self, settings)?.source {
                From::Spec(_) => Ok(()),
                From::Running(path) => match connected(&path, Duration::ZERO).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Error::BackendUnavailable(told(&path, &error))),
                },
            }
        })
    }
}

/// Starts guests in kernels of a kernelspec, or in a running kernel.
pub struct Jupyter {
    kernel: KernelSettings,
    settings: Settings,
    source: From,
    /// The permit of a running kernel, which has one guest at a time.
    free: Arc<Semaphore>,
    /// The kernel of the newest guest.
    newest: Mutex<Weak<Kernel>>,
}

/// The source of kernels.
enum From {
    Spec(Spec),
    Running(PathBuf),
}

impl fmt::Debug for Jupyter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Jupyter")
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}

/// A variable in the answer of [`Jupyter::inspect`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// The variable's name, type and length.
    #[serde(flatten)]
    pub variable: Variable,
    /// The variable's `repr`, shortened, if it runs no code of the user's. Otherwise the type.
    pub text: String,
}

/// A kernel that has become a guest, with the connection for its turns.
struct Kernel {
    client: Client,
    token: String,
    has_subshells: bool,
    subshell: OnceCell<String>,
}

impl Launcher for Jupyter {
    fn kind(&self) -> BackendKind {
        BackendKind::Jupyter
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        Box::pin(async move {
            match &self.source {
                From::Spec(spec) => self.start(spec).await,
                From::Running(path) => self.join(path).await,
            }
        })
    }
}

impl Jupyter {
    /// The launcher of guests in kernels. It logs a warning each time, because nothing isolates them.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there is no such kernelspec or connection file.
    pub fn launcher(kernel: &KernelSettings, settings: &Settings) -> Result<Arc<Self>, Error> {
        tracing::warn!(
            "guests run in Jupyter kernels: their code can do whatever this user can, and nothing isolates it"
        );
        Self::new(kernel, settings).map(Arc::new)
    }

    fn new(kernel: &KernelSettings, settings: &Settings) -> Result<Self, Error> {
        let source = match &kernel.connection_file {
            Some(path) => {
                connection::read(path).map_err(Error::BackendUnavailable)?;
                From::Running(path.clone())
            }
            None => From::Spec(Spec::find(kernel, settings)?),
        };
        Ok(Self {
            kernel: kernel.clone(),
            settings: settings.clone(),
            source,
            free: Arc::new(Semaphore::new(1)),
            newest: Mutex::default(),
        })
    }

    /// The variables of the newest guest. While code runs, this needs a kernel with subshells (ipykernel 7).
    ///
    /// # Errors
    /// [`Error::GuestLost`] if there is no guest, or its answer is malformed. [`Error::Timeout`] if no answer comes in time.
    pub async fn inspect(&self, within: Duration) -> Result<Vec<Inspected>, Error> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let kernel = newest.ok_or_else(|| Error::GuestLost("there is no kernel to look into".to_owned()))?;
        match timeout(within, kernel.inspect()).await {
            Ok(found) => {
                found.map_err(|error| Error::GuestLost(format!("the kernel could not be looked into: {error}")))
            }
            Err(_) if kernel.has_subshells => {
                Err(Error::Timeout(format!("the kernel did not answer within {within:?}")))
            }
            Err(_) => Err(Error::Timeout(format!(
                "the kernel did not answer within {within:?}: it has no subshells (ipykernel 7 has), so it answers only when no code runs"
            ))),
        }
    }

    /// Starts a kernel, and makes it a guest.
    async fn start(&self, spec: &Spec) -> Result<Guest, Error> {
        let until = Instant::now() + self.kernel.boot_timeout;
        let failed = |why: String| Error::BootFailed(format!("a kernel could not be started: {why}"));
        let folder = private_folder().map_err(|error| failed(error.to_string()))?;
        // A folder apart from the kernel's home, because the kernel's own files there are none of the code's files.
        let work = private_folder().map_err(|error| failed(error.to_string()))?;
        let cwd = self.settings.workspace.as_deref().unwrap_or(work.path());
        let home = folder.path().join("home");
        let connection = connection::private(folder.path(), random().map_err(|error| failed(error.to_string()))?);
        let text = serde_json::to_vec(&connection).map_err(|error| failed(error.to_string()))?;
        let file = folder.path().join("kernel.json");
        let written = std::fs::create_dir(&home).and_then(|()| std::fs::write(&file, text));
        written.map_err(|error| failed(error.to_string()))?;
        let mut process = plan(&self.settings, spec, &file, &home, cwd)?.start().await?;
        let connected = async {
            loop {
                match Client::connect(&connection).await {
                    Err(KernelError::Unreachable(_)) => sleep(AGAIN).await,
                    Err(error) => return Err(failed(error.to_string())),
                    Ok(client) => return Ok(client),
                }
            }
        };
        let client = tokio::select! {
            connected = timeout_at(until, connected) => connected.unwrap_or_else(|_| {
                Err(failed(format!("it did not listen within {:?}", self.kernel.boot_timeout)))
            })?,
            exit = process.wait() => return Err(failed(exit.to_string())),
        };
        let life = Life {
            started: Some(process),
            permit: None,
        };
        let guest = self.attach(client, life, until).await;
        Ok(guest
            .map_err(|error| failed(error.to_string()))?
            .keep(folder)
            .keep(work))
    }

    /// Makes a running kernel a guest.
    async fn join(&self, path: &Path) -> Result<Guest, Error> {
        let until = Instant::now() + self.kernel.boot_timeout;
        let permit = timeout(INFO_WITHIN, Arc::clone(&self.free).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            let why = "another sandbox uses it, and a kernel that runs has one at a time";
            return Err(Error::BootFailed(format!("the kernel of {}: {why}", path.display())));
        };
        let within = INFO_WITHIN.min(self.kernel.boot_timeout);
        let failed = |error: &KernelError| Error::BootFailed(told(path, error));
        let client = connected(path, within).await.map_err(|error| failed(&error))?;
        let life = Life {
            started: None,
            permit: Some(permit),
        };
        self.attach(client, life, until).await.map_err(|error| failed(&error))
    }

    /// Lets a kernel become a guest.
    async fn attach(&self, client: Client, mut life: Life, until: Instant) -> Result<Guest, KernelError> {
        let within = self.kernel.boot_timeout;
        let broken = |error: &dyn fmt::Display| KernelError::Broken(error.to_string());
        let has_subshells = speaks_python(&client, life.started.is_some()).await?;
        let folder = private_folder().map_err(|error| broken(&error))?;
        let package = Package::prepared().map_err(|error| broken(&error))?;
        let socket = folder.path().join("host");
        let listener = UnixListener::bind(&socket).map_err(|error| broken(&error))?;
        let (token, epoch) = (random()?, epoch().map_err(|error| broken(&error))?);
        let request = execute(&package.attach(&socket, &token, epoch));
        let attached = async {
            for _ in 0..MOST_TRIES {
                let reply = client.shell.send("execute_request", &request, None).await?;
                if ran(&reply.await.map_err(|_| gone())?)? == Ran::Well {
                    return Ok(());
                }
            }
            Err(KernelError::Busy(within))
        };
        // A kernel may miss the first message, and hear it only after another one.
        let shell = &client.shell;
        let again = async {
            loop {
                sleep(NUDGE).await;
                drop(shell.send("kernel_info_request", &json!({}), None).await);
            }
        };
        let both = async {
            tokio::select! {
                both = async { tokio::try_join!(attached, async { Ok(taken(&listener, &token).await) }) } => both,
                () = again => Err(KernelError::Busy(within)),
            }
        };
        let ended = async {
            match &mut life.started {
                Some(process) => process.wait().await.to_string(),
                None => client.ended().await,
            }
        };
        let channel = tokio::select! {
            both = timeout_at(until, both) => both.unwrap_or(Err(KernelError::Busy(within)))?.1,
            why = ended => return Err(KernelError::Broken(why)),
        };
        let kernel = Arc::new(Kernel {
            client,
            token,
            has_subshells,
            subshell: OnceCell::new(),
        });
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&kernel);
        let (wants, wanted) = mpsc::unbounded_channel();
        let turning = tokio::spawn(turns(Arc::clone(&kernel), wanted));
        let process = KernelProcess {
            kernel,
            life,
            failure: None,
            turning: turning.abort_handle(),
            turns: Some(turning),
            is_killed: false,
            exit: None,
        };
        let guest = Guest::new(channel, epoch, Box::new(process)).on_sent(Box::new(move |frame| {
            if needs_turn(frame) {
                let _ = wants.send(());
            }
        }));
        Ok(guest.keep(folder).keep(package))
    }
}

/// The plan that starts a kernel as a plain process with an environment of its own.
fn plan(settings: &Settings, spec: &Spec, connection_file: &Path, home: &Path, cwd: &Path) -> Result<Plan, Error> {
    let text = |text: &str| OsString::from(text);
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut env = vec![
        (text("PATH"), path),
        (text("LANG"), text("C.UTF-8")),
        (text("HOME"), home.into()),
        (text("TMPDIR"), home.into()),
        // This variable makes a kernel end when its parent ends.
        (text("JPY_PARENT_PID"), std::process::id().to_string().into()),
    ];
    env.extend(spec.env());
    Ok(Plan {
        program: spec.program()?,
        args: spec.args(connection_file),
        env,
        cwd: Some(cwd.to_owned()),
        user: None,
        bounds: settings.resources.bounds(),
        open_files: settings.resources.open_files,
        file_bytes: settings.resources.file_bytes(),
        filter: None,
        id_map: None,
        forks: false,
    })
}

/// A folder that no other user can enter. Its path is UTF-8, because kernels are told the path in JSON.
fn private_folder() -> std::io::Result<TemporaryFolder> {
    let folder = TemporaryFolder::new("kernel")?;
    if folder.path().to_str().is_none() {
        let path = folder.path().display();
        return Err(std::io::Error::other(format!(
            "the folder {path} is no UTF-8: set TMPDIR"
        )));
    }
    Ok(folder)
}

fn told(path: &Path, error: &KernelError) -> String {
    format!("the kernel of {}: {error}", path.display())
}

/// A connection to a kernel that runs, or that is being restarted.
async fn connected(path: &Path, within: Duration) -> Result<Client, KernelError> {
    let until = Instant::now() + within;
    loop {
        let connection = connection::read(path).map_err(KernelError::Broken)?;
        let answer = timeout(INFO_WITHIN, Client::connect(&connection)).await;
        match answer.unwrap_or(Err(KernelError::Silent("greeting", INFO_WITHIN))) {
            Err(KernelError::Unreachable(_)) if Instant::now() < until => sleep(AGAIN).await,
            Err(error) => return Err(error),
            Ok(client) => {
                speaks_python(&client, false).await?;
                return Ok(client);
            }
        }
    }
}

/// Finds out if a kernel has subshells. Fails if the kernel is not a Python kernel. A new kernel answers when it is ready.
async fn speaks_python(client: &Client, is_new: bool) -> Result<bool, KernelError> {
    let within = if is_new { INFO_WITHIN * 3 } else { INFO_WITHIN };
    let info = client.control.ask_again("kernel_info_request", within).await?;
    let language = info["language_info"]["name"].as_str().unwrap_or_default();
    if !language.eq_ignore_ascii_case("python") {
        let language: String = language.chars().take(100).collect();
        return Err(KernelError::Broken(format!(
            "its language is \"{language}\", and guests are Python's"
        )));
    }
    let features = info["supported_features"].as_array();
    Ok(features.is_some_and(|features| features.iter().any(|feature| feature == "kernel subshells")))
}

/// Accepts the kernel's connection. The peer must know the token, and be a process of this user.
async fn taken(listener: &UnixListener, token: &str) -> UnixStream {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        let mut said = vec![0; token.len()];
        let is_known = stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
            && matches!(timeout(INFO_WITHIN, stream.read_exact(&mut said)).await, Ok(Ok(_)))
            && said == token.as_bytes();
        if is_known {
            return stream;
        }
    }
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
}

/// Returns true when a request needs the kernel's main thread. A thread of the guest reads all other requests.
fn needs_turn(frame: &Frame) -> bool {
    let header = serde_json::from_slice::<Header<'_>>(&frame.header);
    header.is_ok_and(|header| !matches!(header.kind, "hostReply" | "interrupt" | "credit" | "part"))
}

/// Lets the kernel run a turn for each request. Returns the reason why no further turn is possible.
async fn turns(kernel: Arc<Kernel>, mut wanted: mpsc::UnboundedReceiver<()>) -> String {
    let request = execute(&call("turn", &kernel.token));
    let mut tries = 0;
    let mut under_way = FuturesOrdered::new();
    let why = loop {
        let is_wanted = tokio::select! {
            biased;
            Some(reply) = under_way.next(), if !under_way.is_empty() => match reply {
                Err(_) => break gone(),
                Ok(reply) => match ran(&reply) {
                    Ok(Ran::Well) => {
                        tries = 0;
                        false
                    }
                    Ok(Ran::Not) if tries < MOST_TRIES => {
                        tries += 1;
                        true
                    }
                    Ok(Ran::Not) => break KernelError::Refused("again and again that it was interrupted".to_owned()),
                    Err(error) => break error,
                },
            },
            next = wanted.recv() => match next {
                Some(()) => true,
                // The guest has been given up.
                None => std::future::pending().await,
            },
            why = kernel.client.ended() => break KernelError::Broken(why),
        };
        if is_wanted {
            match kernel.client.shell.send("execute_request", &request, None).await {
                Ok(reply) => under_way.push_back(reply),
                Err(error) => break error,
            }
        }
    };
    // The end of the connection explains more than the failed request.
    match why {
        KernelError::Broken(why) => timeout(END_WITHIN, kernel.client.ended()).await.unwrap_or(why),
        why => why.to_string(),
    }
}

impl Kernel {
    async fn inspect(&self) -> Result<Vec<Inspected>, KernelError> {
        let subshell = match self.has_subshells {
            true => Some(self.subshell.get_or_try_init(|| self.open_subshell()).await?),
            false => None,
        };
        let mut request = execute("");
        request["user_expressions"] = json!({ "found": call("inspect", &self.token) });
        let ask = async || {
            let shell = &self.client.shell;
            shell
                .send("execute_request", &request, subshell.map(String::as_str))
                .await
        };
        // A subshell of ipykernel may miss a request that comes right after its creation. The next request wakes the subshell.
        // A kernel that is only slow answers the first request, so that one is still waited for.
        let mut replies = FuturesUnordered::from_iter([ask().await?]);
        let reply = loop {
            match timeout(SUBSHELL_AGAIN, replies.next()).await {
                Ok(reply) => break reply.and_then(Result::ok).ok_or_else(gone)?,
                Err(_) if subshell.is_some() => replies.push(ask().await?),
                Err(_) => {}
            }
        };
        ran(&reply)?;
        let odd = || KernelError::Refused("with something that is no list of variables".to_owned());
        let text = reply["user_expressions"]["found"]["data"]["text/plain"]
            .as_str()
            .ok_or_else(odd)?;
        let digits = text.trim_matches('\'').as_bytes();
        let list = (digits.len() <= 2 * MAX_LIST_BYTES).then(|| bytes_of(digits)).flatten();
        serde_json::from_slice(&list.ok_or_else(odd)?).map_err(|_| odd())
    }

    async fn open_subshell(&self) -> Result<String, KernelError> {
        let reply = self
            .client
            .control
            .ask("create_subshell_request", &json!({}), INFO_WITHIN)
            .await?;
        let id = reply["subshell_id"].as_str().filter(|id| id.len() < 1_000);
        id.map(str::to_owned)
            .ok_or_else(|| KernelError::Refused("no number of a subshell".to_owned()))
    }

    /// Leaves a running kernel, which goes on. The guest itself stops its own code when its channel closes. An interrupt
    /// request could stop another user's code.
    async fn leave(&self) {
        if let Some(subshell) = self.subshell.get() {
            let request = json!({ "subshell_id": subshell });
            let _ = self
                .client
                .control
                .ask("delete_subshell_request", &request, LEAVE_WITHIN)
                .await;
        }
    }
}

/// The resources of a guest's kernel.
struct Life {
    /// The kernel's process, if it was started here.
    started: Option<Box<dyn Process>>,
    /// The permit that keeps other guests out, if the kernel was already running.
    permit: Option<OwnedSemaphorePermit>,
}

/// A guest's kernel as a process: it can be ended and waited for.
struct KernelProcess {
    kernel: Arc<Kernel>,
    life: Life,
    turns: Option<tokio::task::JoinHandle<String>>,
    turning: AbortHandle,
    /// The reason why no further turn is possible.
    failure: Option<String>,
    is_killed: bool,
    exit: Option<Exit>,
}

impl KernelProcess {
    /// Waits until no further turn is possible. Can be dropped and called again.
    async fn failed(turns: &mut Option<tokio::task::JoinHandle<String>>, failure: &mut Option<String>) {
        if let Some(task) = turns {
            let why = pin!(task).await.unwrap_or_default();
            *failure = Some(why);
            *turns = None;
        }
    }
}

impl Process for KernelProcess {
    fn kill(&mut self) {
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        self.turning.abort();
        match &mut self.life.started {
            Some(process) => process.kill(),
            None => {
                let (kernel, permit) = (Arc::clone(&self.kernel), self.life.permit.take());
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move {
                        kernel.leave().await;
                        drop(permit);
                    });
                }
            }
        }
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            if let Some(exit) = &self.exit {
                return exit.clone();
            }
            let Self {
                life, turns, failure, ..
            } = self;
            let told = |failure: &Option<String>| Exit {
                stderr: failure.clone().unwrap_or_default(),
                ..Exit::default()
            };
            let exit = match &mut life.started {
                None => {
                    Self::failed(turns, failure).await;
                    told(failure)
                }
                Some(process) => {
                    let by_itself = tokio::select! {
                        exit = process.wait() => Some(exit),
                        () = Self::failed(turns, failure) => None,
                    };
                    match by_itself {
                        Some(exit) => exit,
                        None => match timeout(END_WITHIN, process.wait()).await {
                            Ok(exit) => exit,
                            // The process lives, and is no guest any more.
                            Err(_) => {
                                process.kill();
                                process.wait().await;
                                told(failure)
                            }
                        },
                    }
                }
            };
            self.exit = Some(exit.clone());
            exit
        })
    }

    fn hits(&self) -> Hits {
        self.life
            .started
            .as_ref()
            .map(|process| process.hits())
            .unwrap_or_default()
    }
}

impl Drop for KernelProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
