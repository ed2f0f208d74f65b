//! Guests in containers of Docker's engine.
//!
//! The engine starts a container whose first process connects to a socket. The socket is in a folder that only this process and
//! the container can reach. The first process then confines itself further and becomes the guest's parent (`container.py`). The
//! engine's own streams carry nothing important.
//!
//! Decisions: `docs/internals/guests-on-hosts.md`.

mod container;
mod plan;
mod supervisor;

use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions};
use sandglass_core::Error;
use tokio::net::{UnixListener, UnixStream};

use crate::engine::{self, is_missing, said, unavailable};
use crate::guest::{Guest, epoch};
use crate::image;
use crate::launcher::{BackendKind, Launcher, Settings};
use crate::runtime::Runtime;
use crate::seccomp;
use crate::temporary::TemporaryFolder;
use crate::users::{NOBODY, User};
use futures_util::future::BoxFuture;

pub use plan::{ContainerParts, container};
pub use supervisor::Supervisor;

use container::Container;
use plan::{EMPTY, FILTER, GROUP, PASSWD, SOCKET, SUPERVISOR_LABEL};

/// The time for a guest to connect. Engines are slow on busy machines, and a guest that has ended is noticed earlier.
const CONNECTING: Duration = Duration::from_secs(120);

/// The launcher of Docker guests on this machine.
///
/// # Errors
/// [`Error::BackendUnavailable`] when the engine or the image is missing, with the way to get it.
pub async fn launcher(settings: &Settings) -> Result<Arc<dyn Launcher>, Error> {
    let docker = engine::connect().await?;
    let name = settings.image.as_deref().unwrap_or(image::IMAGE);
    let image = docker.inspect_image(name).await.map_err(|error| {
        if is_missing(&error) {
            let make = if name == image::IMAGE {
                "`sandglass-host image build` makes it".to_owned()
            } else {
                format!("get it with `docker pull {name}`, or make one with `sandglass-host image build --tag {name}`")
            };
            unavailable(format!("Docker has no image {name}: {make}"))
        } else {
            unavailable(format!(
                "Docker's engine does not say whether it has {name}: {}",
                said(&error)
            ))
        }
    })?;
    let info = docker
        .info()
        .await
        .map_err(|error| unavailable(format!("Docker's engine does not describe itself: {}", said(&error))))?;
    if let Some(runtime) = &settings.runtime
        && !info.runtimes.as_ref().is_some_and(|known| known.contains_key(runtime))
    {
        return Err(unavailable(format!(
            "Docker's engine has no runtime {runtime}: install it, and name it in /etc/docker/daemon.json"
        )));
    }
    // An engine in a user namespace has its own, limited range of ids.
    let has_users = !info.security_options.iter().flatten().any(|option| {
        ["name=userns", "name=rootless"]
            .iter()
            .any(|name| option.starts_with(name))
    });
    let owner = owner(settings)?;
    let supervisor = Supervisor::own().ok_or_else(|| unavailable("this process cannot read what /proc says of it"))?;
    supervisor::sweep(&docker, &supervisor).await;
    // The image's id, because the name may be given to another image later.
    let image = image.id.unwrap_or_else(|| name.to_owned());
    let runtime = Runtime::prepare_elsewhere(Path::new(&image))?;
    Ok(Arc::new(Containers(Arc::new(Shared {
        settings: settings.clone(),
        docker,
        image,
        processors: info.ncpu.map_or(1.0, |count| count as f64),
        supervisor,
        has_users,
        owner,
        filter: seccomp::program().map_err(unavailable)?,
        runtime,
        is_compiled: AtomicBool::new(false),
    }))))
}

struct Containers(Arc<Shared>);

struct Shared {
    settings: Settings,
    docker: Docker,
    image: String,
    processors: f64,
    supervisor: Supervisor,
    /// True when containers can have any user id.
    has_users: bool,
    /// The owner of the workspace, where guests have one.
    owner: Option<Arc<User>>,
    filter: Vec<u8>,
    runtime: Arc<Runtime>,
    is_compiled: AtomicBool,
}

impl Launcher for Containers {
    fn kind(&self) -> BackendKind {
        BackendKind::Docker
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        let shared = Arc::clone(&self.0);
        // The launch is a task of its own, because a cancelled request to the engine may still make a container. The task knows
        // that container, and removes it when nobody waits for the guest.
        let launching = tokio::spawn(async move { shared.launch().await });
        Box::pin(async move {
            launching
                .await
                .unwrap_or_else(|error| Err(Error::BootFailed(format!("starting a container was given up: {error}"))))
        })
    }
}

impl Shared {
    async fn launch(self: Arc<Self>) -> Result<Guest, Error> {
        let epoch = epoch()?;
        let failed = |error: std::io::Error| Error::BootFailed(format!("no channel could be made: {error}"));
        let user = self.user()?;
        let ids = user.as_ref().map_or_else(own_ids, |user| user.ids());
        let channel = Channel::open(&self.filter, ids).map_err(failed)?;
        let plan = container(
            &self.settings,
            &ContainerParts {
                image: &self.image,
                processors: self.processors,
                package: &self.runtime.path(),
                channel: &channel.folder.path().join(SHARED),
                is_filtered: true,
                epoch,
                supervisor: &self.supervisor.label(),
                user: ids,
            },
        );
        let mut container = self.create(plan).await?;
        self.start(container.id()).await?;
        let (stream, watcher) = tokio::select! {
            connected = channel.accept() => connected.map_err(failed)?,
            exit = container.ended() => return Err(Error::BootFailed(format!("the container ended before the guest spoke: {exit}"))),
            () = tokio::time::sleep(CONNECTING) => {
                return Err(Error::BootFailed("the guest did not connect to its host".to_owned()));
            }
        };
        container.runs(watcher).await;
        self.compile_later();
        // The folder goes with `channel`: nobody else will connect.
        Ok(Guest::new(stream, epoch, Box::new(container))
            .keep(Arc::clone(&self.runtime))
            .keep(user))
    }

    /// The user of a guest; `None` means the user of this process.
    fn user(&self) -> Result<Option<Arc<User>>, Error> {
        match &self.owner {
            Some(owner) => Ok(Some(Arc::clone(owner))),
            None if self.has_users => self.settings.guest_users.take(),
            None => Ok(User::nobody()),
        }
    }

    async fn create(&self, plan: ContainerCreateBody) -> Result<Container, Error> {
        let number = getrandom::u64()
            .map_err(|error| Error::BootFailed(format!("the system gives no random numbers: {error}")))?;
        let name = CreateContainerOptionsBuilder::default()
            .name(&format!("sandglass-{number:016x}"))
            .build();
        let made = self.docker.create_container(Some(name), plan).await;
        let made = made.map_err(|error| Error::BootFailed(format!("Docker made no container: {}", said(&error))))?;
        Ok(Container::new(self.docker.clone(), made.id))
    }

    async fn start(&self, id: &str) -> Result<(), Error> {
        self.docker
            .start_container(id, None::<StartContainerOptions>)
            .await
            .map_err(|error| Error::BootFailed(format!("Docker did not start the container: {}", said(&error))))
    }

    /// Lets the image's Python compile the package once, so that later guests start faster. The compiled files stand beside the
    /// sources, where guests can only read.
    fn compile_later(self: &Arc<Self>) {
        if self.is_compiled.swap(true, Ordering::Relaxed) || self.runtime.is_compiled() {
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = shared.compile().await {
                tracing::debug!(%error, "the package is not compiled: guests start slower");
            }
        });
    }

    async fn compile(&self) -> Result<(), Error> {
        let package = self.runtime.path();
        let owner = own_ids();
        let plan = ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some(vec!["python3".to_owned()]),
            cmd: Some(
                [
                    "-I",
                    "-S",
                    "-m",
                    "compileall",
                    "-q",
                    "--invalidation-mode",
                    "unchecked-hash",
                    "/package",
                ]
                .map(str::to_owned)
                .to_vec(),
            ),
            user: Some(format!("{}:{}", owner.0, owner.1)),
            labels: Some(HashMap::from([(SUPERVISOR_LABEL.to_owned(), self.supervisor.label())])),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                readonly_rootfs: Some(true),
                // This process may end before the container does.
                auto_remove: Some(true),
                cap_drop: Some(vec!["ALL".to_owned()]),
                security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
                mounts: Some(vec![Mount {
                    typ: Some(MountType::BIND),
                    source: Some(package.display().to_string()),
                    target: Some("/package".to_owned()),
                    read_only: Some(false),
                    ..Mount::default()
                }]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let mut container = self.create(plan).await?;
        self.start(container.id()).await?;
        let exit = container.ended().await;
        if exit.code == Some(0) {
            Ok(())
        } else {
            Err(Error::BootFailed(exit.to_string()))
        }
    }
}

/// The name of the folder inside the channel's folder that the container sees.
const SHARED: &str = "shared";

/// A socket for one guest, in a folder that no other user can enter.
struct Channel {
    listener: UnixListener,
    folder: TemporaryFolder,
}

impl Channel {
    fn open(filter: &[u8], (uid, gid): (u32, u32)) -> std::io::Result<Self> {
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        let folder = TemporaryFolder::new("channel")?;
        set(folder.path(), 0o700)?;
        let shared = folder.path().join(SHARED);
        std::fs::create_dir(&shared)?;
        set(&shared, 0o755)?;
        std::fs::create_dir(shared.join(EMPTY))?;
        set(&shared.join(EMPTY), 0o755)?;
        let listener = UnixListener::bind(shared.join(SOCKET))?;
        // The guest is another user than this process.
        set(&shared.join(SOCKET), 0o666)?;
        let passwd = format!("guest:x:{uid}:{gid}:guest:/workspace:/bin/sh\nroot:x:0:0:root:/:/bin/false\n");
        let group = format!("guest:x:{gid}:\nroot:x:0:\n");
        for (name, content) in [(FILTER, filter), (PASSWD, passwd.as_bytes()), (GROUP, group.as_bytes())] {
            std::fs::write(shared.join(name), content)?;
            set(&shared.join(name), 0o644)?;
        }
        Ok(Self { listener, folder })
    }

    /// Accepts the guest's connection and that of the container's first process, in this order (`container.py`).
    async fn accept(&self) -> std::io::Result<(UnixStream, UnixStream)> {
        Ok((self.listener.accept().await?.0, self.listener.accept().await?.0))
    }
}

/// The user that a guest must be to work in the workspace's folder: the folder's owner, but never root.
fn owner(settings: &Settings) -> Result<Option<Arc<User>>, Error> {
    let folder = settings.workspace.as_deref().and_then(|folder| folder.metadata().ok());
    match folder.map(|data| (data.uid(), data.gid())) {
        Some((user, group))
            if own_ids().0 == 0 && ![0, NOBODY].contains(&user) && !settings.guest_users.contains(user) =>
        {
            Ok(Some(User::shared(user, group)))
        }
        _ => super::bubblewrap::owner(settings),
    }
}

/// The user and group of this process.
fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_who_its_workspace_belongs_to_and_never_root() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            workspace: Some(folder.path().to_owned()),
            ..Settings::default()
        };
        let user = || owner(&settings).unwrap().map(|user| user.ids());
        if own_ids().0 != 0 {
            return assert_eq!(user(), None);
        }
        let (id, group) = user().unwrap();
        assert!(settings.guest_users.contains(id) && id == group);
        assert_eq!(folder.path().metadata().unwrap().uid(), id);
        std::os::unix::fs::chown(folder.path(), Some(1234), Some(55)).unwrap();
        assert_eq!(user(), Some((1234, 55)));
        assert_eq!(folder.path().metadata().unwrap().uid(), 1234);
    }

    #[tokio::test]
    async fn a_channel_is_private_and_gone_with_its_folder() {
        let channel = Channel::open(b"filter", (5, 6)).unwrap();
        let path = channel.folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        let socket = path.join(SHARED).join(SOCKET);
        assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o666);
        drop(channel);
        assert!(!path.exists());
    }
}
