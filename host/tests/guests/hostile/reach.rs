//! Things that a guest must not reach: the kernel's interfaces, other processes, the network, the host's files.

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sandglass_host::Users;

use super::*;

/// Defines `refused(call)`, the name of the error with which a call fails.
const PRELUDE: &str = r#"
import ctypes, errno, fcntl, os, resource, socket, sys

libc = ctypes.CDLL(None, use_errno=True)
numbers = {
    "x86_64": dict(
        io_setup=206, inotify_init1=294, mount=165, umount2=166, pivot_root=155, chroot=161, unshare=272, setns=308, clone=56, ptrace=101,
        process_vm_readv=310, process_vm_writev=311, add_key=248, request_key=249, keyctl=250, bpf=321,
        perf_event_open=298, userfaultfd=323, init_module=175, finit_module=313, kexec_load=246, reboot=169, swapon=167,
        name_to_handle_at=303, open_by_handle_at=304, personality=135, sethostname=170, quotactl=179, syslog=103,
    ),
    "aarch64": dict(
        io_setup=0, inotify_init1=26, mount=40, umount2=39, pivot_root=41, chroot=51, unshare=97, setns=268, clone=220, ptrace=117,
        process_vm_readv=270, process_vm_writev=271, add_key=217, request_key=218, keyctl=219, bpf=280,
        perf_event_open=241, userfaultfd=282, init_module=105, finit_module=273, kexec_load=104, reboot=142, swapon=224,
        name_to_handle_at=264, open_by_handle_at=265, personality=92, sethostname=161, quotactl=60, syslog=116,
    ),
}[os.uname().machine] | dict(
    io_uring_setup=425, open_tree=428, move_mount=429, fsopen=430, clone3=435, pidfd_getfd=438, mount_setattr=442,
    memfd_secret=447, cachestat=451, unheard_of=2000,
)


def syscall(name, *arguments):
    ctypes.set_errno(0)
    passed = [ctypes.c_char_p(each) if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    value = libc.syscall(ctypes.c_long(numbers[name]), *passed)
    if value == -1:
        raise OSError(ctypes.get_errno(), name)
    return value


def refused(call, *arguments):
    try:
        value = call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return f"done: {value!r}"[:200]


def size(path):
    with open(path, "rb") as file:
        return len(file.read(1))


def links(folder):
    """What the file descriptors of a process lead to, the one for reading the folder left out."""
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            pass
        except PermissionError:  # Landlock hides those of the first process
            assert folder == "/proc/1/fd" and os.getpid() != 1
    return found
"#;

/// Calls that must fail with one of these errors.
const REFUSED: &[(&str, &[&str])] = &[
    // Mounts and namespaces.
    (r#"syscall, "mount", b"none", b"/tmp", b"tmpfs", 0, 0"#, &["EPERM"]),
    (r#"syscall, "umount2", b"/tmp", 2"#, &["EPERM"]),
    (r#"syscall, "pivot_root", b"/tmp", b"/tmp""#, &["EPERM"]),
    (r#"syscall, "chroot", b"/tmp""#, &["EPERM"]),
    (r#"syscall, "open_tree", -100, b"/", 1"#, &["EPERM"]),
    (r#"syscall, "fsopen", b"tmpfs", 0"#, &["EPERM"]),
    (r#"syscall, "move_mount", -1, b"", -100, b"/tmp", 4"#, &["EPERM"]),
    (r#"syscall, "mount_setattr", -100, b"/", 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "unshare", 0x10000000"#, &["EPERM"]),
    (r#"syscall, "unshare", 0x00020000"#, &["EPERM"]),
    (r#"syscall, "clone", 0x10000000 | 17, 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "clone3", 0, 0"#, &["ENOSYS"]),
    (
        r#"lambda: syscall("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)"#,
        &["EPERM", "EACCES"], // EACCES is Landlock's
    ),
    // Other processes.
    (r#"syscall, "ptrace", 16, 1, 0, 0"#, &["EPERM"]),
    (r#"syscall, "process_vm_readv", 1, 0, 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "process_vm_writev", 1, 0, 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "pidfd_getfd", os.pidfd_open(1), 0, 0"#, &["EPERM"]),
    // Keyrings, and the kernel's engines.
    (r#"syscall, "keyctl", 0, -3, 0"#, &["EPERM"]),
    (r#"syscall, "add_key", b"user", b"name", b"x", 1, -3"#, &["EPERM"]),
    (r#"syscall, "request_key", b"user", b"name", 0, -3"#, &["EPERM"]),
    (r#"syscall, "io_uring_setup", 1, 0"#, &["ENOSYS", "EPERM"]),
    (r#"syscall, "bpf", 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "perf_event_open", 0, 0, -1, -1, 0"#, &["EPERM"]),
    (r#"syscall, "userfaultfd", 0"#, &["EPERM"]),
    (r#"syscall, "memfd_secret", 0"#, &["EPERM", "ENOSYS"]),
    (r#"syscall, "unheard_of""#, &["ENOSYS"]),
    // Resources that the machine has few of, and sources of facts about the host's work.
    (r#"lambda: syscall("io_setup", 1, bytes(8))"#, &["ENOSYS"]),
    (r#"syscall, "inotify_init1", 0"#, &["ENOSYS"]),
    (
        r#"lambda: syscall("cachestat", os.open("/usr/bin/python3", os.O_RDONLY), bytes(16), bytes(40), 0)"#,
        &["ENOSYS"],
    ),
    (
        r#"fcntl.fcntl, os.open("/usr/bin", os.O_RDONLY), 1026, 1"#, // F_NOTIFY
        &["EPERM"],
    ),
    // The machine.
    (r#"syscall, "init_module", 0, 0, b"""#, &["EPERM"]),
    (r#"syscall, "finit_module", -1, b"", 0"#, &["EPERM"]),
    (r#"syscall, "kexec_load", 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "reboot", 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "swapon", b"/tmp", 0"#, &["EPERM"]),
    (r#"syscall, "quotactl", 0, 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "syslog", 3, 0, 0"#, &["EPERM"]),
    (r#"syscall, "sethostname", b"x", 1"#, &["EPERM"]),
    (r#"syscall, "personality", 0x0040000"#, &["EPERM"]),
    (r#"syscall, "name_to_handle_at", -100, b"/tmp", 0, 0, 0"#, &["EPERM"]),
    (r#"syscall, "open_by_handle_at", -1, 0, 0"#, &["EPERM"]),
    (
        r#"os.open, "/proc/sys/kernel/core_pattern", os.O_WRONLY"#,
        &["EACCES", "EROFS"],
    ),
    (
        r#"os.open, "/proc/sysrq-trigger", os.O_WRONLY"#,
        &["ENOENT", "EACCES", "EROFS"],
    ),
    (r#"size, "/proc/kcore""#, &["ENOENT", "EACCES", "EPERM"]),
    (r#"size, "/proc/kmsg""#, &["ENOENT", "EACCES", "EPERM"]),
    (r#"os.open, "/dev/kmsg", os.O_RDONLY"#, &["ENOENT"]),
    (r#"os.open, "/dev/mem", os.O_RDONLY"#, &["ENOENT"]),
    (r#"os.open, "/dev/fuse", os.O_RDWR"#, &["ENOENT"]),
    (r#"os.mknod, "/tmp/disk", 0o60600, os.makedev(8, 0)"#, &["EPERM"]),
    (r#"os.open, "/dev/kvm", os.O_RDWR"#, &["ENOENT"]),
    (r#"os.open, "/dev/net/tun", os.O_RDWR"#, &["ENOENT"]),
    (r#"os.open, "/dev/loop-control", os.O_RDWR"#, &["ENOENT"]),
    (r#"os.open, "/dev/vda", os.O_RDONLY"#, &["ENOENT"]),
    (r#"os.open, "/dev/sda", os.O_RDONLY"#, &["ENOENT"]),
    (r#"os.open, "/dev/vsock", os.O_RDWR"#, &["ENOENT"]),
    (r#"os.open, "/dev/userfaultfd", os.O_RDWR"#, &["ENOENT"]),
    // Programs that the kernel would run as root.
    (
        r#"os.open, "/proc/sys/kernel/modprobe", os.O_WRONLY"#,
        &["EACCES", "EROFS", "ENOENT"],
    ),
    (
        r#"os.open, "/proc/sys/fs/binfmt_misc/register", os.O_WRONLY"#,
        &["EACCES", "EROFS", "ENOENT"],
    ),
    (
        r#"os.open, "/sys/fs/cgroup/release_agent", os.O_WRONLY"#,
        &["EACCES", "EROFS", "ENOENT"],
    ),
    (
        r#"os.open, "/sys/fs/cgroup/cgroup.procs", os.O_WRONLY"#,
        &["EACCES", "EROFS", "ENOENT"],
    ),
    (
        r#"os.open, "/sys/kernel/uevent_helper", os.O_WRONLY"#,
        &["EACCES", "EROFS", "ENOENT"],
    ),
    (
        r#"lambda: os.write(os.open("/proc/self/uid_map", os.O_WRONLY), b"0 0 1")"#,
        &["EPERM", "EACCES"],
    ),
    (
        r#"lambda: os.write(os.open("/proc/self/setgroups", os.O_WRONLY), b"allow")"#,
        &["EPERM", "EACCES"],
    ),
    (
        r#"os.setxattr, sys.executable, "security.capability", bytes(20)"#,
        &["EPERM", "EROFS", "EACCES", "EINVAL"],
    ),
    (r#"os.setxattr, "/workspace", "user.name", b"value""#, &["EPERM"]),
    // More rights.
    (r#"os.setuid, 0"#, &["EINVAL", "EPERM"]),
    (r#"os.setgroups, [0]"#, &["EPERM"]),
    (r#"os.nice, -1"#, &["EPERM"]),
    (
        r#"os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)"#,
        &["EPERM"],
    ),
    (
        r#"os.write, os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000""#,
        &["EACCES", "EPERM"],
    ),
    // Terminals.
    (r#"os.open, "/dev/tty", os.O_RDWR"#, &["ENXIO", "ENOENT"]),
    (r#"fcntl.ioctl, os.openpty()[1], 0x5412, b"x""#, &["EPERM"]),
    // The network.
    (
        r#"socket.create_connection, ("169.254.169.254", 80), 30"#,
        &["ENETUNREACH"],
    ),
    (r#"socket.create_connection, ("1.1.1.1", 53), 30"#, &["ENETUNREACH"]),
    (
        r#"socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP"#,
        &["EPERM"],
    ),
    (r#"socket.socket, 17, socket.SOCK_RAW"#, &["EPERM", "EAFNOSUPPORT"]),
    (r#"socket.socket, 40, socket.SOCK_STREAM"#, &["EPERM", "EAFNOSUPPORT"]),
    (
        r#"socket.socket, 16, socket.SOCK_RAW, 12"#, // netlink's door to nf_tables
        &["EPERM", "EAFNOSUPPORT"],
    ),
    (r#"socket.socket, 2, socket.SOCK_SEQPACKET, 132"#, &["EPERM"]), // SCTP
    (
        r#"socket.socket, 30, socket.SOCK_SEQPACKET"#,
        &["EPERM", "EAFNOSUPPORT"],
    ), // TIPC
    (
        r#"socket.socket, 21, socket.SOCK_SEQPACKET"#,
        &["EPERM", "EAFNOSUPPORT"],
    ), // RDS
    (r#"socket.socket, 29, socket.SOCK_RAW, 1"#, &["EPERM", "EAFNOSUPPORT"]), // CAN
    (
        r#"socket.socket().setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, bytes(8)"#,
        &["EPERM"],
    ),
    (
        r#"socket.socketpair, 30, socket.SOCK_STREAM"#,
        &["EPERM", "EAFNOSUPPORT"],
    ),
    (
        r#"socket.socket, 38, socket.SOCK_SEQPACKET"#,
        &["EPERM", "EAFNOSUPPORT"],
    ),
    // The host's files.
    (r#"os.open, "/etc/shadow", os.O_RDONLY"#, &["ENOENT"]),
    (r#"os.listdir, "/root""#, &["ENOENT"]),
    (r#"os.listdir, "/home""#, &["ENOENT"]),
    (r#"os.listdir, "/sys/kernel""#, &["ENOENT"]),
    (r#"os.listdir, "/var/run/docker.sock""#, &["ENOENT"]),
    (r#"os.listdir, "/run/containerd""#, &["ENOENT", "EACCES"]),
    (r#"os.listdir, "/var/run/secrets""#, &["ENOENT", "EACCES"]),
    (r#"os.open, "/run/systemd/private", os.O_RDONLY"#, &["ENOENT", "EACCES"]),
    (
        r#"os.open, os.path.join("/proc/self/root", "etc/shadow"), os.O_RDONLY"#,
        &["ENOENT"],
    ),
    (
        r#"os.open, os.path.join("/proc/1/root", "etc/shadow"), os.O_RDONLY"#,
        &["ENOENT", "EACCES"],
    ),
    (
        r#"os.open, "/proc/1/cwd/../etc/shadow", os.O_RDONLY"#,
        &["ENOENT", "EACCES"],
    ),
    (r#"os.open, "../" * 20 + "root/.ssh/id_rsa", os.O_RDONLY"#, &["ENOENT"]),
    (
        r#"os.open, "/proc/1/task/1/fd/3/../../../etc/shadow", os.O_RDONLY"#,
        &["ENOENT", "ENOTDIR", "EACCES"],
    ),
    (r#"os.open, "/new", os.O_CREAT | os.O_WRONLY"#, &["EROFS"]),
    (r#"os.open, "/dev/new", os.O_CREAT | os.O_WRONLY"#, &["EROFS"]),
    (r#"os.open, "/etc/passwd", os.O_WRONLY"#, &["EROFS", "EACCES"]),
    (
        r#"os.open, sys.executable, os.O_WRONLY"#,
        &["EROFS", "EACCES", "ETXTBSY"],
    ),
    (r#"os.open, "/usr/new", os.O_CREAT | os.O_WRONLY"#, &["EROFS"]),
    (r#"os.rename, "/etc", "/etc2""#, &["EROFS", "EBUSY"]),
];

/// Other results in a container. It has the image's folders, which hold no secrets, and the engine hides some files behind an
/// empty one.
const IN_A_CONTAINER: &[(&str, &[&str])] = &[
    (r#"size, "/proc/kcore""#, &["done: 0", "ENOENT"]),
    (r#"os.open, "/etc/shadow", os.O_RDONLY"#, &["EACCES"]),
    (
        r#"os.open, os.path.join("/proc/self/root", "etc/shadow"), os.O_RDONLY"#,
        &["EACCES"],
    ),
    (r#"os.listdir, "/root""#, &["EACCES"]),
    (r#"os.open, "../" * 20 + "root/.ssh/id_rsa", os.O_RDONLY"#, &["EACCES"]),
    (r#"os.listdir, "/home""#, &["done: []"]),
    (r#"os.open, "/new", os.O_CREAT | os.O_WRONLY"#, &["EROFS", "EACCES"]),
    (r#"os.open, "/dev/new", os.O_CREAT | os.O_WRONLY"#, &["EACCES"]),
    (r#"os.open, "/usr/new", os.O_CREAT | os.O_WRONLY"#, &["EROFS", "EACCES"]),
];

on!(
    bubblewrap,
    crate::hostile::Kind::Bubblewrap,
    doors_are_shut,
    other_ways_into_the_kernel_are_shut,
    nothing_is_inherited,
    rights_are_none,
    the_file_system_is_its_own,
    signals_stay_inside
);
on!(
    forked,
    crate::hostile::Kind::Forked,
    doors_are_shut,
    other_ways_into_the_kernel_are_shut,
    nothing_is_inherited,
    rights_are_none
);
on!(
    docker,
    crate::hostile::Kind::Docker,
    doors_are_shut,
    other_ways_into_the_kernel_are_shut,
    nothing_is_inherited,
    rights_are_none,
    the_file_system_is_its_own,
    signals_stay_inside
);

async fn attacked(kind: Kind) -> Sandbox {
    let sandbox = sandbox(kind).await;
    text(&sandbox, PRELUDE).await;
    sandbox
}

async fn doors_are_shut(kind: Kind) {
    let sandbox = attacked(kind).await;
    let mut open = Vec::new();
    for (attempt, errors) in REFUSED {
        let known = IN_A_CONTAINER.iter().find(|(known, _)| known == attempt);
        let errors = match known {
            Some((_, errors)) if kind == Kind::Docker => errors,
            _ => errors,
        };
        let came_to = text(&sandbox, &format!("refused({attempt})")).await;
        if !errors.iter().any(|error| came_to == format!("'{error}'")) {
            open.push(format!("{attempt}: {came_to}, not {errors:?}"));
        }
    }
    assert!(open.is_empty(), "{open:#?}");
    assert_works(&sandbox).await;
}

/// The same calls by other architectures' numbers, which a filter by numbers alone lets through.
async fn other_ways_into_the_kernel_are_shut(kind: Kind) {
    if std::env::consts::ARCH != "x86_64" {
        return;
    }
    let sandbox = attacked(kind).await;
    // x32: `mount`, `unshare` and `ptrace`, by their 64-bit numbers and by the numbers from 512 on that only x32 has.
    for number in [165, 272, 101, 521, 539] {
        let call = format!("numbers['x32'] = 0x40000000 | {number}; refused(syscall, 'x32', 0, 0, 0, 0)");
        assert_eq!(text(&sandbox, &call).await, "'ENOSYS'", "{number}");
    }
    // i386, by `int 0x80`, where `mount` is 21 and `getpid` is 20. The kernel ends the child that tries this.
    let child = r#"
import mmap, signal
def int80(number):
    code = b"\xb8" + number.to_bytes(4, "little") + b"\x31\xdb\x31\xc9\x31\xd2\x31\xf6\x31\xff\xcd\x80\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    child = os.fork()
    if child == 0:
        run()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "it ran"
"#;
    text(&sandbox, child).await;
    for number in [20, 21, 26, 310] {
        let came_to = text(&sandbox, &format!("int80({number})")).await;
        // Kernels without these calls answer the instruction by a fault.
        assert!(
            ["'SIGSYS'", "'SIGSEGV'"].contains(&came_to.as_str()),
            "{number}: {came_to}"
        );
    }
    assert_works(&sandbox).await;
}

async fn nothing_is_inherited(kind: Kind) {
    let sandbox = attacked(kind).await;
    assert_alone(&sandbox).await;
    // The first process of a container cannot be examined at all.
    if kind == Kind::Docker {
        for (call, path) in [("os.listdir", "fd"), ("open", "environ"), ("open", "mem")] {
            let came_to = text(&sandbox, &format!("refused({call}, '/proc/1/{path}')")).await;
            assert_eq!(came_to, "'EACCES'", "{path}");
        }
    }
    let processes = if kind == Kind::Docker {
        &["self"][..]
    } else {
        &["self", "1"]
    };
    for process in processes {
        let code = format!(
            "[link for link in links('/proc/{process}/fd') if link.startswith('/') and link != '/dev/null' and not link.startswith('/proc/')]"
        );
        assert_eq!(text(&sandbox, &code).await, "[]", "file descriptors of {process}");
        // No variable that cargo gives to tests is there, and so none of the host's.
        let code = format!(
            "def environ(path):\n    try:\n        return open(path, 'rb').read().split(b'\\0')\n    \
             except PermissionError:\n        assert path == '/proc/1/environ' and os.getpid() != 1\n        return []\n\
             [entry for entry in environ('/proc/{process}/environ') if b'CARGO' in entry]"
        );
        assert_eq!(text(&sandbox, &code).await, "[]", "environment of {process}");
    }
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert_eq!(
        text(
            &sandbox,
            "[line.split(':')[0].strip() for line in open('/proc/net/dev')][2:]"
        )
        .await,
        "['lo']"
    );
    // A container's guest connects to its channel by a name, which no longer exists.
    let own = match kind {
        Kind::Docker => "len(line.split()) == 7 or line.rstrip().endswith('/host.sock')",
        _ => "False",
    };
    let others = format!("[line for line in [*open('/proc/net/unix')][1:] if not ({own})]");
    assert_eq!(text(&sandbox, &others).await, "[]");
    assert_eq!(text(&sandbox, "socket.gethostname()").await, "'sandglass'");
}

async fn rights_are_none(kind: Kind) {
    let sandbox = attacked(kind).await;
    let status = "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)";
    text(&sandbox, status).await;
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(
            text(&sandbox, &format!("int(status['{name}'], 16)")).await,
            "0",
            "{name}"
        );
    }
    assert_eq!(
        text(&sandbox, "status['NoNewPrivs'], status['Seccomp']").await,
        "('1', '2')"
    );
    let users = text(&sandbox, "*os.getresuid(), *os.getresgid()").await;
    let users: HashSet<u32> = users
        .trim_matches(['(', ')'])
        .split(", ")
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(users.len(), 1, "{users:?}");
    // In a container the user id is the same outside. It is never root's, and differs from other guests'.
    assert!(
        users
            .iter()
            .all(|user| match (kind, rustix::process::geteuid().as_raw()) {
                (Kind::Docker, 0) => Users::default().contains(*user),
                (Kind::Docker, own) => *user == own,
                _ => *user == 1000,
            }),
        "{users:?}"
    );
    assert_eq!(text(&sandbox, "os.getsid(0) in (1, os.getpid())").await, "True");
    assert_eq!(
        text(&sandbox, "resource.getrlimit(resource.RLIMIT_CORE)").await,
        "(0, 0)"
    );
    assert_eq!(
        text(&sandbox, "resource.getrlimit(resource.RLIMIT_NOFILE)").await,
        "(256, 256)"
    );
    // The first process has no more capabilities, although the guest could write to it.
    let first = "dict(line.split(':\\t', 1) for line in open('/proc/1/status').read().splitlines() if ':\\t' in line)";
    assert_eq!(
        text(
            &sandbox,
            &format!("[{first}[name] for name in ('CapPrm', 'NoNewPrivs', 'Seccomp')]")
        )
        .await,
        "['0000000000000000', '1', '2']"
    );
}

async fn the_file_system_is_its_own(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "secret").unwrap();
    let sandbox = described(kind).await.workspace(folder.path()).build().await.unwrap();
    sandbox.initialize(Value::None).await.unwrap();
    text(&sandbox, PRELUDE).await;
    // The writable mounts. (Opening /dev/ptmx is the only use of the terminals' mount.)
    let mounts =
        "sorted({line.split()[1] for line in open('/proc/self/mounts') if 'rw' in line.split()[3].split(',')})";
    let code = format!(
        "[path for path in {mounts} if path not in ('/proc', '/dev/pts') and os.access(path, os.W_OK) and os.path.isdir(path)]"
    );
    assert_eq!(text(&sandbox, &code).await, "['/dev/shm', '/tmp', '/workspace']");
    // Some writable kernel settings belong to the guest's namespaces, and reach no further.
    let own = "('/proc/sys/fs/mqueue/', '/proc/sys/kernel/msg', '/proc/sys/kernel/shm', '/proc/sys/kernel/sem', '/proc/sys/kernel/auto_msgmni', '/proc/sys/kernel/ns_last_pid', '/proc/sys/kernel/pid_max')";
    let writable = &format!(
        "[path for folder, folders, files in os.walk('/proc/sys') for path in (f'{{folder}}/{{name}}' for name in files) if os.access(path, os.W_OK) and not path.startswith({own})]"
    );
    assert_eq!(text(&sandbox, writable).await, "[]");
    let most = || {
        ["pid_max", "shmmax", "msgmax"].map(|name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap())
    };
    let before = most();
    text(&sandbox, "for name in ('pid_max', 'shmmax', 'msgmax'): refused(lambda: open(f'/proc/sys/kernel/{name}', 'w').write('500'))").await;
    assert_eq!(most(), before);
    // A link out of the guest leads nowhere from inside, and the host does not follow it.
    let secret = secret.path().display().to_string();
    assert_eq!(
        text(
            &sandbox,
            &format!("os.symlink({secret:?}, 'out'); refused(open, 'out')")
        )
        .await,
        "'ENOENT'"
    );
    assert!(sandbox.read_file("out").await.is_err());
    assert!(sandbox.read_file("/proc/1/cwd/../../etc/shadow").await.is_err());
    let own = text(
        &sandbox,
        "os.symlink('/proc/self/environ', 'environ'); len(open('environ').read())",
    );
    assert!(own.await.parse::<usize>().is_ok());
    // The guest's files belong to a user without more rights than the guest.
    text(&sandbox, "open('mine', 'w').close()").await;
    let owner = std::fs::metadata(folder.path().join("mine")).unwrap().uid();
    assert_ne!(owner, 0, "the guest is root outside of its namespace");
    // A set-user-id program does not change its user, and a device file is useless. For files of a container's image and of the
    // host, this follows from `no_new_privs` and missing capabilities.
    let places = if kind == Kind::Docker {
        "'/tmp', '/dev/shm'"
    } else {
        "'/usr', '/tmp', '/workspace'"
    };
    let both = "os.ST_NOSUID | os.ST_NODEV";
    let lacking = format!("[path for path in ({places}) if os.statvfs(path).f_flag & ({both}) != ({both})]");
    assert_eq!(text(&sandbox, &lacking).await, "[]");
    sandbox.destroy().await;
}

async fn signals_stay_inside(kind: Kind) {
    let sandbox = sandbox(kind).await;
    text(&sandbox, "import os, signal").await;
    // With Landlock version 6, the kernel confines signals, and the guest cannot even send them.
    text(
        &sandbox,
        "kept = 1\nimport sys\nfrom sandglass.native.landlock import version\ndef send(to, signal):\n\
         \x20   try:\n        os.kill(to, signal)\n        return version() < 6\n\
         \x20   except PermissionError:\n        return version() >= 6\n\
         assert send(1, signal.SIGKILL) and send(os.getppid(), signal.SIGTERM)",
    )
    .await;
    assert_eq!(text(&sandbox, "kept").await, "1");
    let run = sandbox.execute("os.kill(-1, signal.SIGKILL)").await.unwrap();
    assert!(matches!(run.outcome, Outcome::Ok | Outcome::Error), "{run:?}");
    assert_eq!(text(&sandbox, "kept").await, "1");
    // The signal goes to the guest's process group. The guest dies, and nothing of the host does.
    let run = sandbox.execute("os.killpg(0, signal.SIGKILL)").await.unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Crashed, StateStatus::Lost),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}
