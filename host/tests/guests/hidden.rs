//! Things that a guest in bubblewrap cannot see or do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use sandglass_host::notebook::Notebook;
use sandglass_host::workspace::{CELLS_FOLDER, Workspaces};
use sandglass_host::{BackendKind, Sandbox, SandboxBuilder, Users, image};

use crate::support::{builder, docker_engine, ran, sandbox};

async fn shown(sandbox: &Sandbox, code: &str) -> String {
    ran(sandbox, code).await.result.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_environment_and_files_are_not_there() {
    assert!(
        std::env::var_os("CARGO_MANIFEST_DIR").is_some(),
        "there is something to hide"
    );
    let sandbox = sandbox(BackendKind::Bubblewrap).await;
    // With Landlock, the kernel hides the files of processes that are not the guest's own.
    let code = "import os, glob
environments = []
for path in glob.glob('/proc/[0-9]*/environ'):
    try:
        environments.append(open(path, 'rb').read())
    except PermissionError:
        assert path != f'/proc/{os.getpid()}/environ'
sorted(os.environ), any(b'CARGO' in text for text in environments)";
    let names = "'FONTCONFIG_FILE', 'HOME', 'LANG', 'LOKY_MAX_CPU_COUNT', 'MPLBACKEND', 'MPLCONFIGDIR', 'PATH', 'PWD', \
                 'PYTHONDONTWRITEBYTECODE', 'TMPDIR'";
    assert_eq!(shown(&sandbox, code).await, format!("([{names}], False)"));
    let folders = shown(&sandbox, "' '.join(sorted(os.listdir('/')))").await;
    let allowed = [
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "tmp",
        "usr",
        "workspace",
    ];
    for folder in folders.trim_matches('\'').split(' ') {
        assert!(allowed.contains(&folder), "/{folder} in {folders}");
    }
    let code = "sorted(os.listdir('/etc')), sorted(os.listdir('/tmp')), os.listdir('/run'), os.uname().nodename";
    let files = "['fonts.conf', 'group', 'hosts', 'ld.so.cache', 'nsswitch.conf', 'passwd', 'resolv.conf']";
    assert_eq!(
        shown(&sandbox, code).await,
        format!("({files}, [], ['sandglass'], 'sandglass')")
    );
    let own = env!("CARGO_MANIFEST_DIR");
    assert_eq!(shown(&sandbox, &format!("os.path.exists({own:?})")).await, "False");
    let processes = shown(&sandbox, "len(glob.glob('/proc/[0-9]*'))").await;
    assert!(processes.parse::<u32>().unwrap() < 6, "{processes} processes");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_no_rights() {
    let sandbox = sandbox(BackendKind::Bubblewrap).await;
    let code = "import os
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
[status[name].strip() for name in ('CapEff', 'CapPrm', 'CapBnd', 'NoNewPrivs', 'Seccomp')], os.getuid(), os.getgid()";
    let none = "'0000000000000000'";
    assert_eq!(
        shown(&sandbox, code).await,
        format!("([{none}, {none}, {none}, '1', '2'], 1000, 1000)")
    );
    let refused = "
def refused(what):
    try: what()
    except OSError as error: return True
    return False
import socket, ctypes
libc = ctypes.CDLL(None, use_errno=True)
[
    refused(lambda: open('/usr/x', 'w')),
    refused(lambda: open('/x', 'w')),
    refused(lambda: open('/etc/passwd', 'a')),
    refused(lambda: open('/dev/x', 'w')),
    refused(lambda: open('/run/sandglass/sandglass/native/guest.py', 'a')),
    refused(lambda: open('/proc/sys/kernel/core_pattern', 'w')),
    refused(lambda: open('/proc/sysrq-trigger', 'w')),
    refused(lambda: socket.create_connection(('1.1.1.1', 53), timeout=1)),
    refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW)),
    refused(lambda: os.chroot('/')),
    libc.unshare(0x10000000) != 0,
    libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) != 0,
]";
    assert_eq!(shown(&sandbox, refused).await, format!("[{}]", ["True"; 12].join(", ")));
    let code = "[open(path, 'w').write('x') for path in ('/tmp/a', '/dev/shm/b', 'c', '/dev/null')]";
    assert_eq!(shown(&sandbox, code).await, "[1, 1, 1, 1]");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_do_not_see_each_other() {
    let (one, other) = (
        sandbox(BackendKind::Bubblewrap).await,
        sandbox(BackendKind::Bubblewrap).await,
    );
    ran(&one, "open('/tmp/mine', 'w').write('x')\nopen('mine', 'w').write('x')").await;
    assert_eq!(
        shown(&other, "import os\nos.listdir('/tmp'), os.listdir('.')").await,
        "([], [])"
    );
}

/// The files that describe a notebook's cells belong to the host.
async fn the_files_of_cells_are_not_there(builder: SandboxBuilder) {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let workspaces = Workspaces::open(root.path(), Some(Users::default()), None).unwrap();
    let workspace = workspaces.claim("user", "session").unwrap();
    let path = workspace.path().to_owned();
    let cells = path.join(CELLS_FOLDER);
    let mut notebook = Notebook::new(workspace, builder).unwrap();
    notebook.run("x = 1").await.unwrap();
    let before = fs::read(cells.join("cell_1_output.pkl")).unwrap();
    let code = "
import os
def refused(call, *arguments):
    try: call(*arguments)
    except OSError: return True
    return False
open('own', 'w').write('x')
os.listdir('.repl'), [
    refused(open, '.repl/cell_1_output.pkl', 'w'),
    refused(os.rename, '.repl', 'elsewhere'),
    refused(os.rmdir, '.repl'),
    refused(os.rename, 'own', '.repl'),
]";
    let cell = notebook.run(code).await.unwrap();
    let execution = cell.execution.as_ref().unwrap();
    assert_eq!(
        execution.result.as_deref(),
        Some("([], [True, True, True, True])"),
        "{execution:?}"
    );
    assert_eq!(fs::read(path.join("own")).unwrap(), b"x");
    assert_eq!(fs::read(cells.join("cell_1_output.pkl")).unwrap(), before);
    assert!(cells.join("cell_2_output.pkl").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_cells_are_not_there_in_bubblewrap() {
    the_files_of_cells_are_not_there(builder(BackendKind::Bubblewrap)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_cells_are_not_there_in_docker() {
    docker_engine().await;
    the_files_of_cells_are_not_there(builder(BackendKind::Docker).image(image::BASE)).await;
}

/// As with a clone in the temporary folder, where guests have files of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_environment_in_the_temporary_folder_is_there_and_nothing_beside_it() {
    let folder = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in("/tmp")
        .unwrap();
    fs::write(folder.path().join("beside"), "it").unwrap();
    let venv = folder.path().join("venv");
    let made = tokio::process::Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .status();
    assert!(made.await.unwrap().success(), "python3-venv is needed");
    let packages = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(packages.join("site-packages/marker.py"), "").unwrap();
    let python = builder(BackendKind::Bubblewrap).python(venv.join("bin/python"));
    let sandbox = crate::support::with_context(python.clone()).await;
    let seen = format!("'/run/python{}'", venv.display());
    assert_eq!(shown(&sandbox, "import marker, sys\nsys.prefix").await, seen);
    assert_eq!(shown(&sandbox, "import os\nos.listdir('/tmp')").await, "[]");
    let beside = format!("os.listdir('/run/python{}')", folder.path().display());
    assert_eq!(shown(&sandbox, &beside).await, "['venv']");
    assert_eq!(
        shown(&sandbox, "os.access(sys.prefix, os.W_OK)").await,
        "False",
        "it can only be read"
    );
    sandbox.destroy().await;

    // A virtual environment of that Python leads to a path that guests lack.
    let second = folder.path().join("second");
    let real = fs::canonicalize(venv.join("bin/python")).unwrap();
    let copy = folder.path().join("bin");
    fs::create_dir(&copy).unwrap();
    fs::copy(&real, copy.join("python3")).unwrap();
    fs::create_dir_all(second.join("bin")).unwrap();
    std::os::unix::fs::symlink(copy.join("python3"), second.join("bin/python")).unwrap();
    fs::write(second.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    let refused = builder(BackendKind::Bubblewrap)
        .python(second.join("bin/python"))
        .build();
    let message = refused
        .await
        .map_or_else(|error| error.to_string(), |_| "it started".to_owned());
    assert!(message.contains("The virtual environment leads to"), "{message}");
}
