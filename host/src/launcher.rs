//! Launchers: every backend starts guests through one. All guests of a launcher come from the same settings.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandglass_core::Error;
use serde::{Deserialize, Serialize};

use crate::cgroup::Bounds;
use crate::guest::Guest;
use crate::guest::isolated::CopyLimits;
use crate::guest::isolated::rooms::MOST_ROOMS;
use crate::users::Users;

/// Which backend runs the guests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The best backend of this machine: bubblewrap, else Docker. A plain process only if that is allowed.
    #[default]
    Auto,
    /// Namespaces, no capabilities, a narrow file system.
    Bubblewrap,
    /// A container.
    Docker,
    /// A plain process: no isolation at all.
    Subprocess,
    /// A Jupyter kernel: no isolation at all.
    Jupyter,
}

impl BackendKind {
    /// All there are.
    pub const ALL: [Self; 5] = [
        Self::Auto,
        Self::Bubblewrap,
        Self::Docker,
        Self::Subprocess,
        Self::Jupyter,
    ];

    /// Returns true when guests can do whatever the host can. Such a backend is used only by name.
    pub fn isolates_nothing(self) -> bool {
        matches!(self, Self::Subprocess | Self::Jupyter)
    }

    /// The backend's public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bubblewrap => "bubblewrap",
            Self::Docker => "docker",
            Self::Subprocess => "subprocess",
            Self::Jupyter => "jupyter",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            Error::invalid(
                "backend",
                format!("must be auto, bubblewrap, docker, subprocess or jupyter, not \"{name}\""),
            )
        })
    }
}

/// A guest's share of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resources {
    /// Bytes of memory, for all processes of a guest together.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Processors; fractions are allowed.
    pub cpus: f64,
    /// Open files of a process.
    pub open_files: u32,
    /// Bytes of `/tmp`, and of `/dev/shm`.
    pub tmp_bytes: u64,
    /// Bytes of the workspace.
    pub disk_bytes: u64,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            pids: 256,
            cpus: 1.0,
            open_files: 1024,
            tmp_bytes: 256 << 20,
            disk_bytes: 1 << 30,
        }
    }
}

impl Resources {
    /// The resources that a control group bounds.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            memory_bytes: self.memory_bytes,
            pids: self.pids,
            cpus: self.cpus,
        }
    }

    /// The number of processors as text, for libraries that cannot see it in a guest (`LOKY_MAX_CPU_COUNT`).
    pub(crate) fn processors(&self) -> String {
        format!("{:.0}", self.cpus.ceil().max(1.0))
    }

    /// The number of processors, at most as many as this machine has.
    pub(crate) fn processors_here(&self) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a large number is as many as there are"
        )]
        let most = self.cpus.ceil().max(1.0) as usize;
        std::thread::available_parallelism().map_or(1, |here| most.min(here.get()))
    }

    /// The size of all folders of copies together, in bytes. The memory of each copy's control group is what bounds its files.
    pub(crate) fn all_rooms_bytes(&self) -> u64 {
        self.disk_bytes.saturating_mul(MOST_ROOMS.into()).min(1 << 50)
    }

    /// The largest file in bytes: the size of the largest place for files.
    pub fn file_bytes(&self) -> u64 {
        self.disk_bytes.max(self.tmp_bytes)
    }
}

/// Variables by which NumPy's libraries start no threads. A process that has several cannot be forked.
pub const ONE_THREAD: [(&str, &str); 2] = [("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1")];

/// The C library's setting by which it registers no restartable sequences. An [isolated copy](crate::guest::isolated) would not have them.
pub const NO_SEQUENCES: &str = "glibc.pthread.rseq=0";

/// The C library's settings for guests that keep copies of themselves. A block of 4 MiB or more is a mapping of its own, which goes
/// back to the system when it is freed. In the heap, a later cell would write to it, and each page would be copied, as a copy still has it.
pub const COPIED_MEMORY: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_threshold=4194304:glibc.malloc.trim_threshold=33554432",
);

/// The settings from which a backend makes its plans.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The Python of guests, except in Docker. By default `/usr/bin/python3`, else the first on `PATH`.
    pub python: Option<PathBuf>,
    /// Docker's image.
    pub image: Option<String>,
    /// Docker's runtime, such as `runsc`.
    pub runtime: Option<String>,
    /// The starter of guests in Jupyter kernels (`jupyter` only).
    pub kernels: Option<Arc<dyn Kernels>>,
    /// A guest's share of the machine.
    pub resources: Resources,
    /// The folder that the guest sees as `/workspace`. By default an empty folder of the guest's own.
    pub workspace: Option<PathBuf>,
    /// Modules that a guest imports before it is ready.
    pub preload: Vec<String>,
    /// True when the workspace's folder [`CELLS_FOLDER`](crate::workspace::CELLS_FOLDER) belongs to the host. Guests see an
    /// empty folder in its place, and cannot write there.
    pub hides_cells: bool,
    /// True when guests can fork copies that run code ahead. Only in bubblewrap and plain processes. Such guests have
    /// [`ONE_THREAD`] in their environment.
    pub ahead: bool,
    /// The number of paused copies of a guest that are kept as checkpoints; 0 for none. Only in bubblewrap and plain processes. Such guests
    /// have [`ONE_THREAD`] and [`COPIED_MEMORY`] in their environment.
    pub checkpoints: u32,
    /// The seed of hashes of a guest that records executions. Guests of an earlier and a later process then have sets in the same order. Only
    /// in bubblewrap and plain processes.
    pub journal_seed: Option<u32>,
    /// True when `auto` may come down to a plain process.
    pub allow_subprocess: bool,
    /// User ids for guests, one each, if the host is root. Only in bubblewrap and Docker.
    pub guest_users: Users,
}

impl Settings {
    /// True when guests fork copies of themselves.
    pub(crate) fn forks(&self) -> bool {
        self.ahead || self.checkpoints > 0
    }

    /// The starter of guests in kernels.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there is none.
    pub(crate) fn kernels(&self) -> Result<&dyn Kernels, Error> {
        self.kernels.as_deref().ok_or_else(|| {
            Error::BackendUnavailable(
                "which Jupyter kernel runs guests has not been said: give the sandbox KernelSettings of the crate sandglass-jupyter"
                    .to_owned(),
            )
        })
    }
}

/// A starter of guests in Jupyter kernels, about which this crate knows nothing: `KernelSettings` of the crate `sandglass-jupyter`.
pub trait Kernels: fmt::Debug + Send + Sync {
    /// The launcher of guests in Jupyter kernels. Logs a warning each time, because nothing isolates them.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when there are no such kernels.
    fn launcher(&self, settings: &Settings) -> Result<Arc<dyn Launcher>, Error>;

    /// Checks that guests are possible, without a warning and without starting a kernel.
    ///
    /// # Errors
    /// As [`Kernels::launcher`]. Also when a running kernel does not answer.
    fn look<'a>(&'a self, settings: &'a Settings) -> BoxFuture<'a, Result<(), Error>>;
}

/// Starts guests of one kind. It holds the parts that they share: files, images, a plan.
pub trait Launcher: Send + Sync + 'static {
    /// The backend of its guests.
    fn kind(&self) -> BackendKind;

    /// Returns true when guests can fork copies that run code ahead.
    fn forks(&self) -> bool {
        false
    }

    /// The number of paused copies of a guest that are kept as checkpoints.
    fn checkpoints(&self) -> u32 {
        0
    }

    /// The limits of an exact copy of a guest. `None` if guests of this kind have none.
    fn copy_limits(&self) -> Option<CopyLimits> {
        None
    }

    /// Starts a guest, which has not received any message. Dropping the guest ends it.
    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_belong_together() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse::<BackendKind>(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        let error = "podman".parse::<BackendKind>().unwrap_err();
        assert_eq!(error.code(), "invalid_option");
        assert!(error.to_string().contains("podman"));
    }
}
