//! The filter of system calls for guests.
//!
//! It is a second wall behind the namespaces. It refuses calls that lead to more rights: mounts, namespaces, other processes'
//! memory, keyrings. It also refuses kernel code that often had security holes and that no Python library needs: io_uring, bpf,
//! userfaultfd, rare socket families. All other calls are allowed up to the newest one known here. Newer calls do not exist for
//! the guest (`ENOSYS`), and libraries fall back.

use seccompiler::{BpfProgram, SeccompAction, TargetArch, sock_filter};
use serde_json::{Value, json};

/// The operation is refused, as if the guest had not the right.
const EPERM: u32 = 1;
/// The error of an unknown call, as on an older kernel. Libraries then fall back.
const ENOSYS: u32 = 38;
/// `mseal`, the newest call of Linux 6.12, which seccompiler's tables are of.
const NEWEST: u32 = 462;

/// Refused with `EPERM` whatever their arguments are.
const REFUSED: &[&str] = &[
    // Mounts and namespaces.
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "unshare",
    "setns",
    // Files past the mounts.
    "name_to_handle_at",
    "open_by_handle_at",
    "fanotify_init",
    "quotactl",
    "quotactl_fd",
    "acct",
    // Attributes of files. No copy would get them, and those of a copy's folder could not be removed if there are too many to be listed.
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    // Other processes.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "pidfd_getfd",
    "move_pages",
    "migrate_pages",
    // The kernel's queues of messages would be missing in copies, and nothing tells which there are.
    "mq_open",
    // Keyrings are not in a namespace.
    "add_key",
    "request_key",
    "keyctl",
    // The kernel's engines.
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "memfd_secret",
    // The machine.
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "swapoff",
    "reboot",
    "syslog",
    "vhangup",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "sethostname",
    "setdomainname",
];

/// Further refused calls that only `x86_64` has.
const REFUSED_X86_64: &[&str] = &["iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs"];
/// Further calls like those in [`ABSENT`] that only `x86_64` has.
const ABSENT_X86_64: &[&str] = &["inotify_init"];

/// Calls that libraries try, and can do without.
const ABSENT: &[&str] = &[
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    // The whole machine, root included, shares one bound on these (`aio-nr`).
    "io_setup",
    "io_destroy",
    "io_submit",
    "io_cancel",
    "io_getevents",
    "io_pgetevents",
    // These would show a guest which programs the host runs, because both share `/usr`. Programs that watch files poll instead.
    "inotify_init1",
    "inotify_add_watch",
    "inotify_rm_watch",
    // The call tells which parts of a file are in memory, and so which parts of a program.
    "cachestat",
    // The flags are in memory, where a filter cannot look. glibc falls back to `clone`.
    "clone3",
    "statmount",
    "listmount",
    // A keeper of copies has to be able to drop all memory of a guest.
    "mseal",
    "lsm_get_self_attr",
    "lsm_set_self_attr",
    "lsm_list_modules",
];

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`. (`NEWTIME` only exists for `clone3`.)
const NAMESPACES: [u64; 7] = [
    0x0002_0000,
    0x0200_0000,
    0x0400_0000,
    0x0800_0000,
    0x1000_0000,
    0x2000_0000,
    0x4000_0000,
];

/// `TIOCSTI`, `TIOCLINUX`, `TIOCCONS` and `TIOCSETD`, which type into a terminal or take it over.
const TERMINAL: [u64; 4] = [0x5412, 0x541c, 0x541d, 0x5423];

/// `F_NOTIFY`, an older way to watch a folder.
const FOLDER_NOTICES: u64 = 1026;

/// `AF_UNIX`, `AF_INET` and `AF_INET6`. The internet families reach only the guest itself, because its network has only a
/// loopback.
const FAMILIES: [u64; 3] = [1, 2, 10];
/// `SOCK_STREAM`, `SOCK_DGRAM`, `SOCK_SEQPACKET`, without their flags.
const TYPES: [u64; 3] = [1, 2, 5];
/// The family's own, TCP and UDP.
const PROTOCOLS: [u64; 3] = [0, 6, 17];
const TYPE_MASK: u64 = 0xf;

/// `SOL_SOCKET` and its option `SO_LINGER`. With it, the end of a socket blocks whoever holds it last. A guest can send a socket to the host, which
/// holds it last then, even if it takes only bytes.
const LINGER: [u64; 2] = [1, 13];

/// The commands of `fcntl` for a lease (`F_SETLEASE`), and for one that folders can have, too (`F_SETDELEG`). Whoever opens the file waits until the
/// guest gives the lease up, for 45 seconds at most. The host opens files of guests.
const LEASES: [u64; 2] = [1024, 1040];

/// The argument with which `personality` only returns the current value.
const PERSONALITY_QUERY: u64 = 0xffff_ffff;

/// The filter for this machine, as `bwrap --seccomp` reads it.
///
/// # Errors
/// The processor is neither `x86_64` nor `aarch64`.
pub fn program() -> Result<Vec<u8>, String> {
    Ok(encode(&compile(std::env::consts::ARCH)?))
}

fn encode(program: &[sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for step in program {
        bytes.extend_from_slice(&step.code.to_ne_bytes());
        bytes.extend_from_slice(&[step.jt, step.jf]);
        bytes.extend_from_slice(&step.k.to_ne_bytes());
    }
    bytes
}

/// Joins two programs into one, because one seccompiler program has only one kind of refusal. A call that the first allows goes
/// on to the second.
fn compile(arch: &str) -> Result<BpfProgram, String> {
    let target = match arch {
        "x86_64" => TargetArch::x86_64,
        "aarch64" => TargetArch::aarch64,
        other => return Err(format!("no system call filter is known for {other}")),
    };
    let mut program = closed_upwards();
    let first = part(target, EPERM, refused(arch))?;
    let length = first.len();
    for (at, step) in first.into_iter().enumerate() {
        program.push(if is_allow(&step) { jump(length - at - 1)? } else { step });
    }
    program.extend(part(target, ENOSYS, absent(arch))?);
    Ok(program)
}

fn part(target: TargetArch, errno: u32, rules: Vec<Value>) -> Result<BpfProgram, String> {
    let filter = json!({ "part": { "mismatch_action": "allow", "match_action": { "errno": errno }, "filter": rules } });
    let mut programs = seccompiler::compile_from_json(filter.to_string().as_bytes(), target)
        .map_err(|error| format!("the system call filter does not compile: {error}"))?;
    programs
        .remove("part")
        .ok_or_else(|| "the system call filter is empty".to_owned())
}

/// Makes calls above [`NEWEST`] unknown, including the 32-bit calls of `x86_64` (x32). A call of another architecture (`int
/// 0x80`) ends the process, by the check at the begin of each part.
fn closed_upwards() -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS, offset 0
    const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    vec![
        sock_filter {
            code: LOAD_NUMBER,
            jt: 0,
            jf: 0,
            k: 0,
        },
        sock_filter {
            code: JUMP_GREATER,
            jt: 0,
            jf: 1,
            k: NEWEST,
        },
        sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: SeccompAction::Errno(ENOSYS).into(),
        },
    ]
}

/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;

fn is_allow(step: &sock_filter) -> bool {
    step.code == RETURN && step.k == u32::from(SeccompAction::Allow)
}

fn jump(steps: usize) -> Result<sock_filter, String> {
    let k = u32::try_from(steps).map_err(|_| "the system call filter is too long".to_owned())?;
    Ok(sock_filter {
        code: 0x05,
        jt: 0,
        jf: 0,
        k,
    }) // BPF_JMP | BPF_JA
}

fn refused(arch: &str) -> Vec<Value> {
    let more = if arch == "x86_64" { REFUSED_X86_64 } else { &[] };
    let mut rules: Vec<Value> = REFUSED
        .iter()
        .chain(more)
        .map(|name| json!({ "syscall": name }))
        .collect();
    for flag in NAMESPACES {
        rules.push(json!({ "syscall": "clone", "args": [argument(0, json!({ "masked_eq": flag }), flag)] }));
    }
    for command in TERMINAL {
        rules.push(json!({ "syscall": "ioctl", "args": [argument(1, json!("eq"), command)] }));
    }
    rules.push(json!({ "syscall": "fcntl", "args": [argument(1, json!("eq"), FOLDER_NOTICES)] }));
    rules.push(json!({ "syscall": "socket", "args": none_of(0, json!("ne"), &FAMILIES) }));
    // For masked values seccompiler only has "equal", so all other types are listed.
    for kind in (0..=TYPE_MASK).filter(|kind| !TYPES.contains(kind)) {
        rules.push(json!({ "syscall": "socket", "args": [argument(1, json!({ "masked_eq": TYPE_MASK }), kind)] }));
    }
    rules.push(json!({ "syscall": "socket", "args": none_of(2, json!("ne"), &PROTOCOLS) }));
    rules.push(json!({ "syscall": "socketpair", "args": none_of(0, json!("ne"), &FAMILIES[..1]) }));
    let [level, option] = LINGER;
    let linger = [argument(1, json!("eq"), level), argument(2, json!("eq"), option)];
    rules.push(json!({ "syscall": "setsockopt", "args": linger }));
    for command in LEASES {
        rules.push(json!({ "syscall": "fcntl", "args": [argument(1, json!("eq"), command)] }));
    }
    rules.push(json!({ "syscall": "personality", "args": none_of(0, json!("ne"), &[0, PERSONALITY_QUERY]) }));
    rules
}

fn absent(arch: &str) -> Vec<Value> {
    let more = if arch == "x86_64" { ABSENT_X86_64 } else { &[] };
    ABSENT
        .iter()
        .chain(more)
        .map(|name| json!({ "syscall": name }))
        .collect()
}

/// The kernel reads all of these arguments as 32 bits, whatever the upper half of the register holds.
fn argument(index: u8, op: Value, value: u64) -> Value {
    json!({ "index": index, "type": "dword", "op": op, "val": value })
}

fn none_of(index: u8, op: Value, values: &[u64]) -> Vec<Value> {
    values.iter().map(|value| argument(index, op.clone(), *value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const KILL_PROCESS: u32 = 0x8000_0000;
    const X86_64: u32 = 0xc000_003e;
    const AARCH64: u32 = 0xc000_00b7;
    const I386: u32 = 0x4000_0003;

    fn errno(number: u32) -> u32 {
        0x0005_0000 | number
    }

    /// The kernel's verdict: interprets the steps that the program may have.
    fn run(program: &[sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let load = |offset: u32| match offset {
            0 => number,
            4 => arch,
            16..=63 if offset.is_multiple_of(8) => arguments[(offset as usize - 16) / 8] as u32,
            16..=63 if offset % 8 == 4 => (arguments[(offset as usize - 16) / 8] >> 32) as u32,
            _ => panic!("a load from {offset}"),
        };
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let mut branch = |taken: bool| at += usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                0x20 => accumulator = load(step.k),
                0x54 => accumulator &= step.k,
                0x05 => at += step.k as usize,
                0x15 => branch(accumulator == step.k),
                0x25 => branch(accumulator > step.k),
                0x35 => branch(accumulator >= step.k),
                0x06 => return step.k,
                other => panic!("an instruction {other:#x}"),
            }
        }
    }

    fn x86_64(number: u32, arguments: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        run(&compile("x86_64").unwrap(), X86_64, number, all)
    }

    #[test]
    fn both_architectures_refuse_what_is_listed_and_allow_the_rest() {
        // read, openat, execve, futex, mmap, clone, wait4, landlock_create_ruleset
        for (arch, audit, allowed) in [
            ("x86_64", X86_64, [0, 257, 59, 202, 9, 56, 61, 444]),
            ("aarch64", AARCH64, [63, 56, 221, 98, 222, 220, 260, 444]),
        ] {
            let program = compile(arch).unwrap();
            for number in allowed {
                assert_eq!(run(&program, audit, number, [0; 6]), ALLOW, "{arch} {number}");
            }
            let refused_mount = if arch == "x86_64" { 165 } else { 40 };
            assert_eq!(run(&program, audit, refused_mount, [0; 6]), errno(EPERM), "{arch}");
            for number in [435, 425, 426, 427, NEWEST + 1, 10_000, u32::MAX] {
                assert_eq!(run(&program, audit, number, [0; 6]), errno(ENOSYS), "{arch} {number}");
            }
            assert_eq!(run(&program, I386, 1, [0; 6]), KILL_PROCESS, "{arch}");
        }
        assert!(compile("mips").is_err());
    }

    #[test]
    fn every_listed_call_is_refused() {
        // Both lists are reached: no jump lands short of the second part.
        let program = compile("x86_64").unwrap();
        let answers: Vec<u32> = (0..=NEWEST)
            .map(|number| run(&program, X86_64, number, [u64::MAX; 6]))
            .collect();
        let count = |answer| answers.iter().filter(|given| **given == answer).count();
        // clone (all flags), socket, socketpair; ioctl and personality are asked for nothing bad.
        assert_eq!(count(errno(EPERM)), REFUSED.len() + REFUSED_X86_64.len() + 3);
        assert_eq!(count(errno(ENOSYS)), ABSENT.len() + ABSENT_X86_64.len());
        assert_eq!(count(ALLOW) + count(errno(EPERM)) + count(errno(ENOSYS)), answers.len());
    }

    #[test]
    fn x32_numbers_do_not_exist() {
        const X32: u32 = 0x4000_0000;
        assert_eq!(x86_64(X32, &[]), errno(ENOSYS));
        assert_eq!(x86_64(X32 | 165, &[]), errno(ENOSYS));
    }

    #[test]
    fn clone_makes_threads_and_processes_but_no_namespaces() {
        const CLONE: u32 = 56;
        assert_eq!(x86_64(CLONE, &[17]), ALLOW); // fork
        assert_eq!(x86_64(CLONE, &[0x003d_0f00]), ALLOW); // a thread of glibc
        for flag in NAMESPACES {
            assert_eq!(x86_64(CLONE, &[flag | 17]), errno(EPERM), "{flag:#x}");
        }
    }

    #[test]
    fn terminals_cannot_be_typed_into_whatever_the_upper_half_says() {
        const IOCTL: u32 = 16;
        assert_eq!(x86_64(IOCTL, &[0, 0x5401]), ALLOW);
        assert_eq!(x86_64(IOCTL, &[0, 0x5412]), errno(EPERM));
        assert_eq!(x86_64(IOCTL, &[0, 0xffff_ffff_0000_5412]), errno(EPERM));
        assert_eq!(x86_64(IOCTL, &[0, 0x541c]), errno(EPERM));
    }

    #[test]
    fn nobody_hears_of_what_happens_in_folders() {
        const FCNTL: u32 = 72;
        for (command, answer) in [
            (1, ALLOW),           // F_GETFD
            (6, ALLOW),           // F_SETLK
            (1024, errno(EPERM)), // F_SETLEASE
            (1040, errno(EPERM)), // F_SETDELEG
            (1026, errno(EPERM)), // F_NOTIFY
            (1 << 32 | 1026, errno(EPERM)),
            (1031, ALLOW), // F_SETPIPE_SZ
        ] {
            assert_eq!(x86_64(FCNTL, &[0, command]), answer, "{command}");
        }
    }

    #[test]
    fn sockets_are_local_or_plain() {
        const SOCKET: u32 = 41;
        const SOCKETPAIR: u32 = 53;
        const FLAGS: u64 = 0o2_004_000; // SOCK_CLOEXEC | SOCK_NONBLOCK
        for (family, kind, protocol, answer) in [
            (1, 1, 0, ALLOW),
            (1, 5 | FLAGS, 0, ALLOW),
            (2, 1 | FLAGS, 6, ALLOW),
            (10, 2, 17, ALLOW),
            (2, 3, 6, errno(EPERM)),         // raw
            (2, 3 | FLAGS, 0, errno(EPERM)), // raw
            (2, 2, 1, errno(EPERM)),         // ping
            (2, 1, 262, errno(EPERM)),       // MPTCP
            (16, 3, 0, errno(EPERM)),        // netlink
            (17, 3, 0, errno(EPERM)),        // packet
            (38, 5, 0, errno(EPERM)),        // alg
            (40, 1, 0, errno(EPERM)),        // vsock
            (1 << 32 | 40, 1, 0, errno(EPERM)),
        ] {
            assert_eq!(
                x86_64(SOCKET, &[family, kind, protocol]),
                answer,
                "{family} {kind} {protocol}"
            );
        }
        assert_eq!(x86_64(SOCKETPAIR, &[1, 1, 0]), ALLOW);
        const SETSOCKOPT: u32 = 54;
        assert_eq!(x86_64(SETSOCKOPT, &[3, 1, 2]), ALLOW); // SO_REUSEADDR
        assert_eq!(x86_64(SETSOCKOPT, &[3, 6, 13]), ALLOW); // TCP_CONGESTION
        assert_eq!(x86_64(SETSOCKOPT, &[3, 1, 13]), errno(EPERM));
        assert_eq!(x86_64(SETSOCKOPT, &[3, 1 << 32 | 1, 1 << 32 | 13]), errno(EPERM));
        assert_eq!(x86_64(SOCKETPAIR, &[30, 1, 0]), errno(EPERM));
    }

    #[test]
    fn personality_stays_what_it_is() {
        const PERSONALITY: u32 = 135;
        assert_eq!(x86_64(PERSONALITY, &[0]), ALLOW);
        assert_eq!(x86_64(PERSONALITY, &[PERSONALITY_QUERY]), ALLOW);
        assert_eq!(x86_64(PERSONALITY, &[0x0040_0000]), errno(EPERM)); // ADDR_NO_RANDOMIZE
    }

    #[test]
    fn the_bytes_are_whole_instructions_within_the_kernels_bound() {
        let bytes = program().unwrap();
        assert_eq!(bytes.len() % 8, 0);
        assert!(bytes.len() / 8 <= 4096, "{}", bytes.len() / 8);
    }
}
