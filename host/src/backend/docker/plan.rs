//! The request that makes a guest's container, as data.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};

use crate::guest::process::OOM_SCORE;
use crate::launcher::{Resources, Settings};
use crate::runtime::guest_args;
use crate::workspace::CELLS_FOLDER;

/// The label of all containers of Sandglass. Its value names the supervisor of the container.
pub const SUPERVISOR_LABEL: &str = "sandglass.supervisor";
/// The folder where the guest finds the package, as in bubblewrap.
const PACKAGE: &str = "/run/sandglass";
/// The folder where the guest finds the socket to the host, and the filter of system calls.
const CHANNEL: &str = "/run/sandglass-host";
/// The socket's name in that folder.
pub const SOCKET: &str = "host.sock";
/// The filter's name there.
pub const FILTER: &str = "filter";
/// The file name of the guest's users.
pub const PASSWD: &str = "passwd";
/// The file name of the guest's groups.
pub const GROUP: &str = "group";
/// A folder without anything, for where the guest shall see nothing.
pub const EMPTY: &str = "empty";
/// Bytes of a guest's stray output that the engine keeps.
const KEPT_LOG: &str = "64k";

/// The paths that engines hide from containers by default, and all of `/sys`, which describes the machine and which guests do
/// not need.
const HIDDEN: [&str; 12] = [
    "/dev/mqueue",
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/interrupts",
    "/sys",
];

/// The inputs of a container's plan, beside the settings.
#[derive(Debug, Clone, Copy)]
pub struct ContainerParts<'a> {
    /// The image.
    pub image: &'a str,
    /// The number of the engine's processors.
    pub processors: f64,
    /// The folder that holds the package.
    pub package: &'a Path,
    /// The folder with the socket, the filter, and the files that replace some of `/etc`.
    pub channel: &'a Path,
    /// True when there is a filter.
    pub is_filtered: bool,
    /// The epoch that marks the guest's frames.
    pub epoch: u32,
    /// The supervisor responsible for the container.
    pub supervisor: &'a str,
    /// The user and group of the container's processes.
    pub user: (u32, u32),
}

/// The container of a guest.
pub fn container(settings: &Settings, parts: &ContainerParts<'_>) -> ContainerCreateBody {
    let mut command: Vec<String> = guest_args(Path::new(PACKAGE), settings)
        .into_iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let channel = format!("{CHANNEL}/{SOCKET}");
    let epoch = parts.epoch.to_string();
    command.extend(["--connect", &channel, "--epoch", &epoch, "--reap", "all", "--confine"].map(str::to_owned));
    if parts.is_filtered {
        command.extend(["--filter".to_owned(), format!("{CHANNEL}/{FILTER}")]);
    }
    ContainerCreateBody {
        image: Some(parts.image.to_owned()),
        entrypoint: Some(vec!["python3".to_owned()]),
        cmd: Some(command),
        // Other variables of the image, such as PATH, stay.
        env: Some(vec![
            "LANG=C.UTF-8".to_owned(),
            "HOME=/workspace".to_owned(),
            "TMPDIR=/tmp".to_owned(),
            "PYTHONDONTWRITEBYTECODE=1".to_owned(),
            "MPLBACKEND=agg".to_owned(),
            "MPLCONFIGDIR=/tmp/matplotlib".to_owned(),
            format!("LOKY_MAX_CPU_COUNT={}", settings.resources.processors()),
        ]),
        working_dir: Some("/workspace".to_owned()),
        user: Some(format!("{}:{}", parts.user.0, parts.user.1)),
        hostname: Some("sandglass".to_owned()),
        labels: Some(HashMap::from([(
            SUPERVISOR_LABEL.to_owned(),
            parts.supervisor.to_owned(),
        )])),
        network_disabled: Some(true),
        host_config: Some(host_config(settings, parts)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(settings: &Settings, parts: &ContainerParts<'_>) -> HostConfig {
    let Resources {
        memory_bytes,
        pids,
        cpus,
        open_files,
        tmp_bytes,
        disk_bytes,
    } = settings.resources;
    let (uid, gid) = parts.user;
    let mut mounts = vec![
        bind(parts.package, PACKAGE, true),
        bind(&parts.channel.join(PASSWD), "/etc/passwd", true),
        bind(&parts.channel.join(GROUP), "/etc/group", true),
        bind(parts.channel, CHANNEL, true),
    ];
    let mut tmpfs = HashMap::from([(
        "/tmp".to_owned(),
        format!("exec,nosuid,nodev,mode=1777,size={tmp_bytes}"),
    )]);
    match &settings.workspace {
        Some(folder) => {
            mounts.push(bind(folder, "/workspace", false));
            if settings.hides_cells {
                let hidden = format!("/workspace/{CELLS_FOLDER}");
                mounts.push(bind(&parts.channel.join(EMPTY), &hidden, true));
            }
        }
        None => {
            let options = format!("exec,nosuid,nodev,mode=755,uid={uid},gid={gid},size={disk_bytes}");
            tmpfs.insert("/workspace".to_owned(), options);
        }
    }
    let limit = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(value),
        hard: Some(value),
    };
    HostConfig {
        network_mode: Some("none".to_owned()),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        masked_paths: Some(HIDDEN.map(str::to_owned).to_vec()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory: Some(signed(memory_bytes)),
        // The bound of memory and swap together, equal to that of memory, so there is no swap.
        memory_swap: Some(signed(memory_bytes)),
        pids_limit: Some(i64::from(pids)),
        nano_cpus: Some(nano_cpus(cpus, parts.processors)),
        ulimits: Some(vec![
            limit("nofile", i64::from(open_files)),
            limit("fsize", signed(settings.resources.file_bytes())),
            limit("core", 0),
        ]),
        oom_score_adj: Some(OOM_SCORE),
        shm_size: Some(signed(tmp_bytes)),
        tmpfs: Some(tmpfs),
        mounts: Some(mounts),
        runtime: settings.runtime.clone(),
        // The host removes the container itself, after it has read the reason of its end.
        auto_remove: Some(false),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), KEPT_LOG.to_owned()),
                ("max-file".to_owned(), "1".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            // Later mounts on one side do not show on the other.
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Billionths of a processor. The engine refuses more than there are.
#[expect(clippy::cast_possible_truncation, reason = "a few billions at most")]
fn nano_cpus(cpus: f64, processors: f64) -> i64 {
    (cpus.min(processors).max(0.01) * 1e9) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of() -> ContainerParts<'static> {
        ContainerParts {
            image: "image",
            processors: 4.0,
            package: Path::new("/host/python"),
            channel: Path::new("/host/channel"),
            is_filtered: true,
            epoch: 7,
            supervisor: "somebody",
            user: (1000, 1000),
        }
    }

    fn parts(settings: &Settings) -> (ContainerCreateBody, HostConfig) {
        let mut body = container(settings, &made_of());
        let host = body.host_config.take().unwrap();
        (body, host)
    }

    fn mounts(host: &HostConfig) -> Vec<(&str, &str, bool)> {
        let mounts = host.mounts.iter().flatten();
        mounts
            .map(|mount| {
                let text = |text: &'_ Option<String>| text.clone().unwrap_or_default().leak() as &str;
                (text(&mount.source), text(&mount.target), mount.read_only.unwrap())
            })
            .collect()
    }

    #[test]
    fn the_container_has_no_rights_and_nothing_of_the_machine() {
        let (body, host) = parts(&Settings::default());
        assert_eq!(body.user.as_deref(), Some("1000:1000"));
        assert_eq!(body.network_disabled, Some(true));
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.readonly_rootfs, Some(true));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.cap_add, None);
        assert_eq!(host.privileged, None);
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges:true".to_owned()]));
        assert_eq!(host.ipc_mode.as_deref(), Some("private"));
        assert_eq!((host.pid_mode, host.uts_mode, host.userns_mode), (None, None, None));
        assert_eq!((host.devices, host.binds, host.volumes_from), (None, None, None));
        let hidden = host.masked_paths.unwrap();
        assert!(hidden.contains(&"/sys".to_owned()) && hidden.contains(&"/proc/kcore".to_owned()));
    }

    #[test]
    fn limits_are_those_of_the_settings_and_there_is_no_swap() {
        let settings = Settings {
            resources: Resources {
                memory_bytes: 300 << 20,
                pids: 33,
                cpus: 1.5,
                open_files: 99,
                tmp_bytes: 5 << 20,
                disk_bytes: 6 << 20,
            },
            ..Settings::default()
        };
        let (_, host) = parts(&settings);
        assert_eq!(host.memory, Some(300 << 20));
        assert_eq!(host.memory_swap, Some(300 << 20));
        assert_eq!(host.pids_limit, Some(33));
        assert_eq!(host.nano_cpus, Some(1_500_000_000));
        assert_eq!(host.shm_size, Some(5 << 20));
        let limits: Vec<_> = host
            .ulimits
            .unwrap()
            .into_iter()
            .map(|it| (it.name.unwrap(), it.soft, it.hard))
            .collect();
        assert_eq!(
            limits,
            [
                ("nofile".to_owned(), Some(99), Some(99)),
                ("fsize".to_owned(), Some(6 << 20), Some(6 << 20)),
                ("core".to_owned(), Some(0), Some(0))
            ]
        );
        let tmpfs = host.tmpfs.unwrap();
        assert!(tmpfs["/tmp"].ends_with(&format!("size={}", 5 << 20)), "{tmpfs:?}");
        assert!(
            tmpfs["/workspace"].ends_with(&format!("uid=1000,gid=1000,size={}", 6 << 20)),
            "{tmpfs:?}"
        );
    }

    #[test]
    fn no_more_processors_are_asked_for_than_there_are() {
        assert_eq!(nano_cpus(8.0, 4.0), 4_000_000_000);
        assert_eq!(nano_cpus(0.25, 4.0), 250_000_000);
        assert_eq!(nano_cpus(f64::NAN, 2.0), 2_000_000_000);
    }

    #[test]
    fn only_the_workspace_can_be_written_and_it_takes_the_place_of_the_tmpfs() {
        let settings = Settings {
            workspace: Some("/data/a:b".into()),
            ..Settings::default()
        };
        let (body, host) = parts(&settings);
        assert_eq!(body.working_dir.as_deref(), Some("/workspace"));
        assert_eq!(
            mounts(&host),
            [
                ("/host/python", "/run/sandglass", true),
                ("/host/channel/passwd", "/etc/passwd", true),
                ("/host/channel/group", "/etc/group", true),
                ("/host/channel", "/run/sandglass-host", true),
                ("/data/a:b", "/workspace", false),
            ]
        );
        assert_eq!(host.tmpfs.unwrap().keys().collect::<Vec<_>>(), ["/tmp"]);
    }

    #[test]
    fn the_cells_of_a_workspace_are_covered_by_a_folder_that_takes_nothing() {
        let settings = Settings {
            workspace: Some("/data".into()),
            hides_cells: true,
            ..Settings::default()
        };
        let (_, host) = parts(&settings);
        assert_eq!(
            mounts(&host)[4..],
            [
                ("/data", "/workspace", false),
                ("/host/channel/empty", "/workspace/.repl", true)
            ]
        );
    }

    #[test]
    fn what_a_guest_writes_where_nobody_looks_does_not_fill_the_disk() {
        let (_, host) = parts(&Settings::default());
        let log = host.log_config.unwrap();
        assert_eq!(log.config.unwrap()["max-size"], KEPT_LOG);
    }

    #[test]
    fn the_command_names_the_socket_the_epoch_and_the_filter() {
        let (body, host) = parts(&Settings {
            runtime: Some("runsc".to_owned()),
            ..Settings::default()
        });
        assert_eq!(body.entrypoint, Some(vec!["python3".to_owned()]));
        let command = body.cmd.unwrap().join(" ");
        let options = "/run/sandglass --connect /run/sandglass-host/host.sock --epoch 7 --reap all --confine \
                       --filter /run/sandglass-host/filter";
        assert!(command.starts_with("-I -c ") && command.ends_with(options), "{command}");
        assert_eq!(body.labels.unwrap()[SUPERVISOR_LABEL], "somebody");
        assert_eq!(host.runtime.as_deref(), Some("runsc"));
        let unfiltered = container(
            &Settings::default(),
            &ContainerParts {
                is_filtered: false,
                ..made_of()
            },
        );
        assert!(!unfiltered.cmd.unwrap().contains(&"--filter".to_owned()));
    }
}
