//! Guests in Docker containers.
//!
//! The tests need an engine, and an image with Python; `scripts/setup` installs both. Hostile code is in `hostile`.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions};
use sandglass_host::backend::docker::Supervisor;
use sandglass_host::{
    BackendKind, ExecuteOptions, HostCall, Killer, Limits, Outcome, Resources, Sandbox, SandboxBuilder, StateStatus,
    Value, image,
};

use crate::support::docker_engine;

/// Python that finds the id of its container.
const ID: &str = r"
import re
container = re.search('containers/([0-9a-f]{64})/', open('/proc/self/mountinfo').read())[1]
";

fn sandbox() -> SandboxBuilder {
    let limits = Limits {
        timeout_ms: 120_000.0,
        ..Limits::default()
    };
    Sandbox::builder()
        .backend(BackendKind::Docker)
        .image(image::BASE)
        .limits(limits)
        .without_context()
}

/// Runs code that must succeed. Returns what it printed.
async fn printed(sandbox: &Sandbox, code: &str) -> String {
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.error, None, "{run:?}");
    run.stdout.clone()
}

/// The id of a sandbox's container.
async fn container_of(sandbox: &Sandbox) -> String {
    printed(sandbox, ID).await;
    match sandbox.get_variable("container").await.unwrap() {
        Some(Value::Str(id)) => id,
        other => panic!("{other:?}"),
    }
}

async fn exists(docker: &Docker, id: &str) -> bool {
    docker
        .inspect_container(id, None::<InspectContainerOptions>)
        .await
        .is_ok()
}

async fn wait_until_gone(docker: &Docker, id: &str) {
    let gone = async {
        while exists(docker, id).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .expect("the container is still there");
}

#[tokio::test]
async fn code_runs_keeps_its_state_and_calls_the_host() {
    let docker = docker_engine().await;
    let sandbox = sandbox()
        .host_function("double", async |call: HostCall| match call.args.first() {
            Some(Value::Int(number)) => Ok(Value::Int(number * 2)),
            other => Err(format!("not a number: {other:?}")),
        })
        .build()
        .await
        .unwrap();
    sandbox.initialize("a context").await.unwrap();
    assert_eq!(printed(&sandbox, "x = double(21); print(context)").await, "a context\n");
    assert_eq!(sandbox.get_variable("x").await.unwrap(), Some(Value::Int(42)));
    assert_eq!(sandbox.capabilities().backend, BackendKind::Docker);
    assert_eq!(
        printed(&sandbox, "import subprocess; subprocess.run(['echo', 'from a child'])").await,
        "from a child\n"
    );

    let id = container_of(&sandbox).await;
    assert!(exists(&docker, &id).await);
    sandbox.destroy().await;
    assert!(!exists(&docker, &id).await, "the container is still there");
}

#[tokio::test]
async fn a_sandbox_that_is_dropped_leaves_no_container() {
    let docker = docker_engine().await;
    let sandbox = sandbox().build().await.unwrap();
    let id = container_of(&sandbox).await;
    drop(sandbox);
    wait_until_gone(&docker, &id).await;
}

#[tokio::test]
async fn the_guest_has_no_rights_no_network_and_no_way_to_its_first_process() {
    docker_engine().await;
    let sandbox = sandbox().build().await.unwrap();
    let code = r"
import ctypes, errno, os, pwd, socket
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(':\t', 1) for line in open('/proc/self/status').read().splitlines())
assert int(status['CapEff'], 16) == int(status['CapBnd'], 16) == 0, status
assert status['NoNewPrivs'] == '1' and status['Seccomp'] == '2', status
assert os.getuid() != 0 and pwd.getpwuid(os.getuid()).pw_name == 'guest'

def refused(act, *numbers):
    try:
        act()
    except OSError as error:
        assert not numbers or error.errno in numbers, error
    else:
        raise AssertionError('it was allowed')

def call(number, *arguments):
    def act():
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return act

# No network: neither an address, nor a name, nor any interface but its own.
refused(lambda: socket.create_connection(('169.254.169.254', 80), 5))
refused(lambda: socket.getaddrinfo('example.org', 80))
assert {line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]} == {'lo'}

# The root can only be read, and what tells of the machine is hidden.
refused(lambda: open('/etc/new', 'w'), errno.EROFS, errno.EACCES)
refused(lambda: open('/usr/new', 'w'), errno.EROFS, errno.EACCES)
refused(lambda: open('/run/sandglass/new', 'w'), errno.EROFS, errno.EACCES)
refused(lambda: open('/proc/sys/kernel/core_pattern', 'w'))
assert os.listdir('/sys') == []

# The first process neither ends nor lets itself be looked into.
for number in (1, 2, 9, 15, 19):
    try:
        os.kill(1, number)
    except PermissionError:
        pass
refused(lambda: open('/proc/1/mem', 'r+b'), errno.EACCES, errno.EPERM)
refused(lambda: open('/proc/1/environ'), errno.EACCES, errno.EPERM)
refused(lambda: os.listdir('/proc/1/fd'), errno.EACCES, errno.EPERM)

# System calls of the filter.
if os.uname().machine == 'x86_64':
    refused(call(425, 8, 0), errno.ENOSYS)       # io_uring_setup
    refused(call(101, 16, 1, 0, 0), errno.EPERM)  # ptrace
    refused(call(250, 0, 0), errno.EPERM)         # keyctl
    refused(call(272, 0x10000000), errno.EPERM)   # unshare a user namespace
refused(lambda: socket.socket(40, 1), errno.EPERM)  # vsock
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), errno.EPERM)
print('held')
";
    assert_eq!(printed(&sandbox, code).await, "held\n");
    // The guest is still the same.
    assert_eq!(printed(&sandbox, "print(status['CapEff'])").await, "0000000000000000\n");
}

#[tokio::test]
async fn files_are_made_in_the_workspace_by_who_it_belongs_to() {
    docker_engine().await;
    let folder = tempfile::tempdir().unwrap();
    let sandbox = sandbox().workspace(folder.path()).build().await.unwrap();
    std::fs::write(folder.path().join("given.txt"), "given").unwrap();
    printed(
        &sandbox,
        "import os; assert os.getcwd() == '/workspace'; open('made.txt', 'w').write(open('given.txt').read() + ' back')",
    )
    .await;
    let made = folder.path().join("made.txt");
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "given back");
    assert_ne!(made.metadata().unwrap().uid(), 0);
    assert_eq!(made.metadata().unwrap().uid(), folder.path().metadata().unwrap().uid());
    // The guest has its own files there, not the host's.
    let names = printed(&sandbox, "print(open('/etc/passwd').read())").await;
    assert!(names.contains("guest:x:"), "{names}");
}

#[tokio::test]
async fn what_has_no_workspace_is_bounded_too() {
    docker_engine().await;
    let resources = Resources {
        tmp_bytes: 1 << 20,
        disk_bytes: 1 << 20,
        ..Resources::default()
    };
    let sandbox = sandbox().resources(resources).build().await.unwrap();
    for folder in ["/workspace", "/tmp", "/dev/shm"] {
        let run = sandbox
            .execute(format!("open('{folder}/file', 'wb').write(bytes(2 << 20))"))
            .await
            .unwrap();
        let error = run.error.clone().unwrap_or_default();
        // Exceeds the folder's size or a file's limit, whichever comes first.
        assert!(
            error.contains("[Errno 28]") || error.contains("[Errno 27]"),
            "{folder}: {error}"
        );
        assert_eq!(run.killer, Some(Killer::Disk), "{folder}");
    }
}

#[tokio::test]
async fn code_that_swallows_its_timeout_is_killed_and_the_next_one_runs() {
    let docker = docker_engine().await;
    let limits = Limits {
        grace_period_ms: 200.0,
        ..Limits::default()
    };
    let sandbox = sandbox().limits(limits).build().await.unwrap();
    let first = container_of(&sandbox).await;
    printed(&sandbox, "kept = 1").await;
    let options = ExecuteOptions {
        timeout_ms: Some(3_000.0),
        ..ExecuteOptions::default()
    };
    let code = "x = 1\nprint('begun')\ndef spin():\n    while True: pass\nwhile True:\n    try: spin()\n    except BaseException: pass";
    let run = sandbox.execute_with(code, options).await.unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Timeout, Some(Killer::Timeout)),
        "{run:?}"
    );
    assert_eq!(run.stdout, "begun\n");
    assert_eq!(run.state.status, StateStatus::Lost);
    assert_eq!(printed(&sandbox, "print('x' in globals())").await, "False\n");
    wait_until_gone(&docker, &first).await;
    assert_ne!(container_of(&sandbox).await, first);
}

#[tokio::test]
async fn the_limit_of_memory_is_named_as_the_killer() {
    docker_engine().await;
    let resources = Resources {
        memory_bytes: 128 << 20,
        ..Resources::default()
    };
    let sandbox = sandbox().resources(resources).build().await.unwrap();
    let run = sandbox
        .execute("print('begun', flush=True)\nx = b'x' * (1 << 30)")
        .await
        .unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Oom)),
        "{run:?}"
    );
    assert_eq!(run.stdout, "begun\n");
    let error = run.error.clone().unwrap_or_default();
    assert!(error.contains("more memory than it may have"), "{error}");
    assert_eq!(printed(&sandbox, "print('again')").await, "again\n");
}

#[tokio::test]
async fn a_guest_that_ends_itself_says_how() {
    docker_engine().await;
    let sandbox = sandbox().build().await.unwrap();
    let run = sandbox.execute("import os; os._exit(3)").await.unwrap();
    assert_eq!((run.outcome, run.killer), (Outcome::Crashed, None), "{run:?}");
    let error = run.error.clone().unwrap_or_default();
    assert!(error.contains("status 3"), "{error}");
    let run = sandbox
        .execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        .await
        .unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Signal)),
        "{run:?}"
    );
}

#[tokio::test]
async fn containers_of_dead_supervisors_are_removed_and_those_of_living_ones_are_not() {
    let docker = docker_engine().await;
    let sandbox_of_ours = sandbox().build().await.unwrap();
    let ours = container_of(&sandbox_of_ours).await;

    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    let own = Supervisor::own().unwrap().label();
    let mut parts: Vec<&str> = own.split(' ').collect();
    parts[2] = &pid;
    let plan = ContainerCreateBody {
        image: Some(image::BASE.to_owned()),
        cmd: Some(vec!["sleep".to_owned(), "600".to_owned()]),
        network_disabled: Some(true),
        labels: Some(HashMap::from([("sandglass.supervisor".to_owned(), parts.join(" "))])),
        ..ContainerCreateBody::default()
    };
    let left = docker
        .create_container(None::<CreateContainerOptions>, plan)
        .await
        .unwrap()
        .id;
    docker
        .start_container(&left, None::<bollard::query_parameters::StartContainerOptions>)
        .await
        .unwrap();

    let _another = sandbox().build().await.unwrap();
    wait_until_gone(&docker, &left).await;
    assert!(exists(&docker, &ours).await);
    assert_eq!(container_of(&sandbox_of_ours).await, ours);
}

#[tokio::test]
async fn what_is_missing_is_said_with_what_to_do() {
    docker_engine().await;
    let error = sandbox().image("sandglass-nowhere").build().await.unwrap_err();
    assert_eq!(error.code(), "backend_unavailable");
    assert!(
        error
            .to_string()
            .contains("sandglass-host image build --tag sandglass-nowhere"),
        "{error}"
    );
    let error = sandbox().runtime("nothing").build().await.unwrap_err();
    assert!(error.to_string().contains("no runtime nothing"), "{error}");
}
