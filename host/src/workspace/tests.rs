//! Hostile contents of workspaces, and the host's handling of them.

use std::fs::{self, create_dir, hard_link, read_link, rename, symlink_metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, Uid, chown, mkdirat, mknodat, openat};
use tempfile::TempDir;

use super::*;
use crate::users::Users;

mod given;

fn workspaces() -> (TempDir, Workspaces) {
    let folder = TempDir::new().unwrap();
    let all = Workspaces::open(folder.path(), None, None).unwrap();
    (folder, all)
}

/// A workspace, and next to all workspaces a folder with a secret.
struct World {
    folder: TempDir,
    workspace: Workspace,
}

impl World {
    fn new() -> Self {
        Self::with_quota(None)
    }

    fn with_quota(quota: Option<Quota>) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let all = Workspaces::open(&folder.path().join("all"), None, quota).unwrap();
        let workspace = all.claim("ann", "one").unwrap();
        workspace.cells_folder().unwrap();
        Self { folder, workspace }
    }

    fn secret(&self) -> std::path::PathBuf {
        self.folder.path().join("secret")
    }

    /// A path in the workspace, to do as the guest would do.
    fn at(&self, path: &str) -> std::path::PathBuf {
        self.workspace.path().join(path)
    }

    fn refused(&self, path: &str) -> String {
        let error = self.workspace.read(path, 100).unwrap_err();
        assert!(matches!(error, WorkspaceError::Refused { .. }), "{path}: {error}");
        error.to_string()
    }

    fn paths(&self) -> Vec<String> {
        let listing = self.workspace.list("").unwrap();
        assert!(!listing.truncated);
        listing.entries.into_iter().map(|entry| entry.path).collect()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn files_go_in_and_out() {
    let world = World::new();
    let workspace = &world.workspace;
    workspace.write("a/b/c.txt", b"one").unwrap();
    workspace.write("/workspace/a/b/c.txt", b"two").unwrap();
    workspace.write("./é//x", b"").unwrap();
    assert_eq!(workspace.read("a/b/c.txt", 3).unwrap(), b"two");
    assert_eq!(fs::read(world.at("a/b/c.txt")).unwrap(), b"two");
    assert_eq!(world.paths(), ["a", "a/b", "a/b/c.txt", "é", "é/x"]);
    let entries = workspace.list("a/b").unwrap().entries;
    assert_eq!((entries[0].path.as_str(), entries[0].size), ("a/b/c.txt", 3));
    assert_eq!((entries[0].kind, entries[0].kind.name()), (EntryKind::File, "file"));
    assert!(entries[0].modified_ms > 1_500_000_000_000);
    workspace.remove("a").unwrap();
    assert_eq!(world.paths(), ["é", "é/x"]);
    for gone in ["a/b/c.txt", "nothing", "é/x/y"] {
        assert_eq!(
            workspace.read(gone, 100).unwrap_err().code(),
            "file_not_found",
            "{gone}"
        );
        assert_eq!(workspace.remove(gone).unwrap_err().code(), "file_not_found", "{gone}");
    }
    assert_eq!(workspace.list("nothing").unwrap_err().code(), "file_not_found");
    assert!(workspace.write("é", b"").is_err());
    assert!(workspace.read("é", 100).is_err());
    assert!(workspace.list("é/x").is_err());
    assert!(workspace.write("é/x/y", b"").is_err());
}

#[test]
fn names_that_are_not_utf8_lead_back() {
    let world = World::new();
    let workspace = &world.workspace;
    let mark = workspace.mark().unwrap();
    for name in [&b"\xff.bin"[..], b"\\udcff.bin", b"\xe9"] {
        fs::write(workspace.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    create_dir(workspace.path().join(OsStr::from_bytes(b"\xfe"))).unwrap();
    workspace.write("\\udcfe/\\udcfd/x", b"deep").unwrap();
    let files = ["\\udce9", "\\udcfe/\\udcfd/x", "\\udcff.bin", "\\x5cudcff.bin"];
    let (changes, _) = workspace.changes(&mark).unwrap();
    let changed: Vec<_> = changes.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(changed, files);
    let listed = world.paths();
    assert!(
        files.iter().all(|file| listed.iter().any(|path| path == file)),
        "{listed:?}"
    );
    assert_eq!(workspace.list("\\udcfe").unwrap().entries[0].path, "\\udcfe/\\udcfd");
    let read = |path: &str| workspace.read(path, 100).unwrap();
    assert_eq!((read(files[0]), read(files[1])), (b"\xe9".to_vec(), b"deep".to_vec()));
    assert_eq!(
        (read(files[2]), read(files[3])),
        (b"\xff.bin".to_vec(), b"\\udcff.bin".to_vec())
    );
    for path in listed.iter().rev() {
        workspace.remove(path).unwrap();
    }
    assert!(world.paths().is_empty());
}

#[test]
fn no_path_leads_out() {
    let world = World::new();
    let secret = world.secret();
    let long = format!("a/{}", "x".repeat(256));
    let deep = "d/".repeat(3_000);
    let paths = [
        "../one/x",
        "..",
        "a/../../secret",
        "/etc/passwd",
        "/workspacex/a",
        "/workspace/../../../secret",
        secret.to_str().unwrap(),
        "a\0b",
        &long,
        &deep,
        ".repl/1_input.pkl",
        "/workspace/.repl",
        "./.repl",
    ];
    for path in paths {
        world.refused(path);
        assert!(world.workspace.write(path, b"x").is_err(), "{path}");
        assert!(world.workspace.remove(path).is_err(), "{path}");
        assert!(world.workspace.list(path).is_err(), "{path}");
    }
    for path in ["", "/workspace", "."] {
        assert!(world.workspace.write(path, b"x").is_err(), "{path}");
        assert!(world.workspace.remove(path).is_err(), "{path}");
        assert!(world.workspace.list(path).is_ok(), "{path}");
    }
    assert_eq!(fs::read(secret).unwrap(), b"secret");
}

#[test]
fn links_are_neither_followed_nor_written_through() {
    let world = World::new();
    let workspace = &world.workspace;
    symlink(world.secret(), world.at("file")).unwrap();
    symlink("../../../secret", world.at("relative")).unwrap();
    symlink(world.folder.path(), world.at("folder")).unwrap();
    symlink("/proc/self/root", world.at("magic")).unwrap();
    symlink("/proc/self/fd/0", world.at("descriptor")).unwrap();
    symlink("loop", world.at("loop")).unwrap();
    fs::write(world.at("inside"), "x").unwrap();
    symlink("inside", world.at("to_inside")).unwrap();
    for path in [
        "file",
        "relative",
        "folder/secret",
        "magic/etc/passwd",
        "descriptor",
        "loop",
        "to_inside",
    ] {
        assert!(world.refused(path).contains("links are not followed"), "{path}");
        assert!(workspace.write(path, b"changed").is_err(), "{path}");
    }
    assert!(workspace.write("folder/new", b"x").is_err());
    assert!(workspace.list("folder").is_err());
    assert!(workspace.remove("folder/secret").is_err());
    // Links themselves are listed, measured and removed.
    assert_eq!(
        workspace
            .list("")
            .unwrap()
            .entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Link)
            .count(),
        7
    );
    assert!(workspace.usage().unwrap().files >= 8);
    for path in ["file", "relative", "folder", "magic", "descriptor", "loop", "to_inside"] {
        workspace.remove(path).unwrap();
    }
    assert_eq!(world.paths(), ["inside"]);
    assert_eq!(fs::read(world.secret()).unwrap(), b"secret");
    assert!(!world.folder.path().join("new").exists());
}

#[test]
fn only_files_are_opened() {
    let world = World::new();
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, world.at("pipe"), FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.at("socket")).unwrap();
    let mut names = vec!["pipe", "socket"];
    if is_root() {
        mknodat(
            CWD,
            world.at("zero"),
            FileType::CharacterDevice,
            mode,
            rustix::fs::makedev(1, 5),
        )
        .unwrap();
        names.push("zero");
    }
    for name in names {
        // Opening a pipe without a writer would block.
        assert!(world.refused(name).contains("is no file"), "{name}");
        assert!(world.workspace.write(name, b"x").is_err(), "{name}");
        world.workspace.remove(name).unwrap();
    }
    assert!(world.paths().is_empty());
}

#[test]
fn a_file_with_a_name_outside_is_not_read_and_never_written_to() {
    let world = World::new();
    hard_link(world.secret(), world.at("secret")).unwrap();
    assert!(world.refused("secret").contains("another name outside"));
    // A write makes a new file.
    world.workspace.write("secret", b"mine").unwrap();
    assert_eq!(fs::read(world.secret()).unwrap(), b"secret");
    assert_eq!(world.workspace.read("secret", 100).unwrap(), b"mine");
    // Another name within the workspace is allowed.
    create_dir(world.at("b")).unwrap();
    hard_link(world.at("secret"), world.at("b/same")).unwrap();
    assert_eq!(world.workspace.read("b/same", 100).unwrap(), b"mine");
    // The host's own folder does not count as within.
    hard_link(world.at("secret"), world.at(".repl/same")).unwrap();
    assert!(world.refused("secret").contains("another name outside"));
}

#[test]
fn huge_files_are_bounded_and_holes_take_no_room() {
    let world = World::new();
    let file = File::create(world.at("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(world.refused("sparse").contains("at most 100 are read"));
    fs::write(world.at("dense"), vec![b'x'; 300_000]).unwrap();
    let usage = world.workspace.usage().unwrap();
    assert!((300_000..2_000_000).contains(&usage.bytes), "{usage:?}");
    assert_eq!((usage.files, usage.complete), (2, true));
    hard_link(world.at("dense"), world.at("again")).unwrap();
    let again = world.workspace.usage().unwrap();
    assert_eq!((again.bytes, again.files), (usage.bytes, 3));
    let small = world.workspace.read("dense", 299_999).unwrap_err().to_string();
    assert!(small.contains("300000 bytes"), "{small}");
    assert_eq!(world.workspace.read("dense", 300_000).unwrap().len(), 300_000);
}

#[test]
fn what_has_no_name_any_more_but_is_held_counts() {
    let world = World::new();
    let mut file = File::create_new(world.at("held")).unwrap();
    file.write_all(&vec![b'x'; 500_000]).unwrap();
    file.sync_all().unwrap();
    let me = [std::process::id()];
    let named = world.workspace.usage_with(&me).unwrap().bytes;
    fs::remove_file(world.at("held")).unwrap();
    assert!(world.workspace.usage().unwrap().bytes < 100_000);
    assert_eq!(world.workspace.usage_with(&me).unwrap().bytes, named);
    assert!(world.workspace.usage_with(&[]).unwrap().bytes < 100_000);
    drop(file);
    assert!(world.workspace.usage_with(&me).unwrap().bytes < 100_000);
}

#[test]
fn a_quota_refuses_what_does_not_fit() {
    let quota = Quota {
        bytes: 100_000,
        files: 4,
    };
    let world = World::with_quota(Some(quota));
    let workspace = &world.workspace;
    workspace.write("a", &vec![b'x'; 60_000]).unwrap();
    assert_eq!(workspace.write("b", &vec![b'x'; 60_000]).unwrap_err().code(), "quota");
    workspace.write("b/c", b"x").unwrap();
    assert_eq!(workspace.write("d/e", b"x").unwrap_err().code(), "quota");
    assert_eq!(quota.exceeded(&workspace.usage().unwrap()), None);
    for name in ["f", "g"] {
        fs::write(world.at(name), "").unwrap();
    }
    assert_eq!(quota.exceeded(&workspace.usage().unwrap()).unwrap(), "5 files of 4");
}

#[test]
fn changes_are_found_whatever_times_a_file_is_given() {
    let world = World::new();
    for name in ["kept", "grown", "touched", "gone", "swapped"] {
        fs::write(world.at(name), "abc").unwrap();
    }
    fs::write(world.at(".repl/x"), "").unwrap();
    let old = File::open(world.at("touched"))
        .unwrap()
        .metadata()
        .unwrap()
        .modified()
        .unwrap();
    let mark = world.workspace.mark().unwrap();
    let (none, mark) = world.workspace.changes(&mark).unwrap();
    assert_eq!((none.files.len(), none.complete), (0, true));

    fs::write(world.at("grown"), "abcd").unwrap();
    // The size and the settable times are unchanged.
    fs::write(world.at("touched"), "abd").unwrap();
    File::options()
        .write(true)
        .open(world.at("touched"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    fs::remove_file(world.at("gone")).unwrap();
    fs::write(world.at("other"), "abc").unwrap();
    rename(world.at("other"), world.at("swapped")).unwrap();
    create_dir(world.at("folder")).unwrap();
    symlink("/etc/passwd", world.at("folder/new")).unwrap();
    fs::write(world.at(".repl/y"), "").unwrap();
    let (changes, _) = world.workspace.changes(&mark).unwrap();
    let told: Vec<_> = changes
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.change))
        .collect();
    let expected = [
        ("folder/new", Change::Created),
        ("gone", Change::Deleted),
        ("grown", Change::Modified),
        ("swapped", Change::Modified),
        ("touched", Change::Modified),
    ];
    assert_eq!(told, expected);
}

#[test]
fn the_list_of_changes_is_bounded() {
    let world = World::new();
    let mark = world.workspace.mark().unwrap();
    for number in 0..MAX_CHANGES + 5 {
        fs::write(world.at(&format!("{number}")), "").unwrap();
    }
    let (changes, _) = world.workspace.changes(&mark).unwrap();
    assert_eq!((changes.files.len(), changes.omitted), (MAX_CHANGES, 5));
}

#[test]
fn one_session_at_a_time_has_a_workspace() {
    let (_folder, all) = workspaces();
    let one = all.claim("ann", "one").unwrap();
    let error = all.claim("ann", "one").unwrap_err();
    assert_eq!(error.code(), "workspace_in_use");
    all.claim("ann", "two").unwrap();
    all.claim("bob", "one").unwrap();
    one.write("x", b"1").unwrap();
    drop(one);
    assert_eq!(all.claim("ann", "one").unwrap().read("x", 1).unwrap(), b"1");
}

#[test]
fn a_workspace_that_is_removed_while_somebody_waits_for_it_is_a_new_one() {
    let (_folder, all) = workspaces();
    let all = Arc::new(all);
    let over = Arc::new(AtomicBool::new(false));
    let other = {
        let (all, over) = (all.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if let Ok(workspace) = all.claim("ann", "one") {
                    workspace.write("x", b"1").unwrap();
                    workspace.destroy().unwrap();
                }
            }
        })
    };
    let mut claimed = 0;
    while claimed < 200 {
        if let Ok(workspace) = all.claim("ann", "one") {
            claimed += 1;
            // The previous holder has left nothing, and the workspace is at its path.
            assert!(workspace.list("").unwrap().entries.is_empty());
            assert!(workspace.path().is_dir());
            workspace.destroy().unwrap();
        }
    }
    over.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

#[test]
fn names_are_plain() {
    let (_folder, all) = workspaces();
    let long = "x".repeat(65);
    for name in [
        "", ".", "..", "a/b", ".a", "-a", "@a", "a b", "é", "a\0", "a\n", &long, "*",
    ] {
        assert_eq!(all.claim(name, "one").unwrap_err().code(), "invalid_option", "{name:?}");
        assert_eq!(all.claim("ann", name).unwrap_err().code(), "invalid_option", "{name:?}");
    }
    for name in ["a", "A_1", "ann@example.org", "x-2", &"x".repeat(64)] {
        all.claim(name, name).unwrap();
    }
}

#[test]
fn a_workspace_that_is_a_link_is_not_taken() {
    let (folder, all) = workspaces();
    create_dir(folder.path().join("ann")).unwrap();
    let other = TempDir::new().unwrap();
    symlink(other.path(), folder.path().join("ann/one")).unwrap();
    symlink(other.path(), folder.path().join("bob")).unwrap();
    assert_eq!(all.claim("ann", "one").unwrap_err().code(), "file_error");
    assert_eq!(all.claim("bob", "one").unwrap_err().code(), "file_error");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn what_is_made_belongs_to_the_guest_when_the_host_is_root() {
    if !is_root() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let all = Workspaces::open(folder.path(), Some(Users::default()), None).unwrap();
    let workspace = all.claim("ann", "one").unwrap();
    workspace.cells_folder().unwrap();
    workspace.write("a/b", b"x").unwrap();
    let owner_of = |path: &str| {
        symlink_metadata(workspace.path().join(path))
            .map(|it| (it.uid(), it.gid()))
            .unwrap()
    };
    let (id, _) = owner_of("");
    assert!(Users::default().contains(id));
    for path in ["", "a", "a/b"] {
        assert_eq!(owner_of(path), (id, id), "{path}");
    }
    assert_eq!(owner_of(".repl"), (0, 0));
    let mode = |path: &Path| symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(workspace.path()), 0o700);
    assert_eq!(mode(&workspace.path().join(".repl")), 0o700);
    assert_eq!(mode(workspace.path().parent().unwrap()), 0o711);
}

#[test]
fn a_workspace_stays_its_users_unless_somebody_else_is_that_user_by_then() {
    if !is_root() {
        return;
    }
    let users: Users = "3100000:8".parse().unwrap();
    let folder = TempDir::new().unwrap();
    let all = Workspaces::open(folder.path(), Some(users), None).unwrap();
    let place = folder.path().join("ann/one");
    let owner_of = |path: &str| {
        symlink_metadata(place.join(path))
            .map(|it| (it.uid(), it.gid()))
            .unwrap()
    };
    let other = TempDir::new().unwrap();
    fs::write(other.path().join("file"), b"x").unwrap();
    {
        let workspace = all.claim("ann", "one").unwrap();
        workspace.write("a/b", b"x").unwrap();
        workspace.cells_folder().unwrap();
        symlink(other.path().join("file"), place.join("a/link")).unwrap();
        std::os::unix::fs::lchown(place.join("a/link"), Some(owner_of("").0), None).unwrap();
    }
    let first = owner_of("").0;
    drop(all.claim("ann", "one").unwrap());
    assert_eq!(owner_of("").0, first);
    // Guests have taken these ids, so the workspace cannot get them again.
    let guests: Vec<_> = std::iter::from_fn(|| users.take().ok()).collect();
    assert_eq!(guests.len(), 7);
    assert_eq!(all.claim("ann", "one").unwrap_err().code(), "file_error"); // there is none left
    let guests: Vec<_> = guests.into_iter().flatten().filter(|user| user.id() == first).collect();
    let workspace = all.claim("ann", "one").unwrap();
    let second = owner_of("").0;
    assert!(second != first && users.contains(second));
    for path in ["", "a", "a/b", "a/link"] {
        assert_eq!(owner_of(path), (second, second), "{path}");
    }
    // The host's own files and a link's target keep their owner.
    assert_eq!(owner_of(".repl"), (0, 0));
    assert_eq!(symlink_metadata(other.path().join("file")).unwrap().uid(), 0);
    drop((workspace, guests));
}

#[test]
fn the_newest_workspaces_that_nobody_has_are_kept() {
    let (folder, all) = workspaces();
    let meant = |name: &str| name != "other";
    for name in ["first", "held", "second", "other", "third"] {
        all.claim("ann", name).unwrap().write("a/b", b"x").unwrap();
        // The file system's clock has coarser ticks than this test.
        let changed = |path: &Path| symlink_metadata(path).map(|it| (it.ctime(), it.ctime_nsec())).unwrap();
        let before = changed(&folder.path().join("ann").join(name));
        while changed(&{
            let probe = folder.path().join("probe");
            fs::write(&probe, "").unwrap();
            probe
        }) <= before
        {}
    }
    let _held = all.claim("ann", "held").unwrap();
    let names = || {
        let entries = fs::read_dir(folder.path().join("ann")).unwrap();
        let mut names: Vec<_> = entries
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    all.prune("ann", 3, meant).unwrap();
    assert_eq!(names().len(), 5);
    all.prune("ann", 1, meant).unwrap();
    assert_eq!(names(), ["held", "other", "third"]);
    all.prune("ann", 0, meant).unwrap();
    assert_eq!(names(), ["held", "other"]);
    all.prune("bob", 0, meant).unwrap();
    assert!(all.prune("..", 0, meant).is_err());
}

#[test]
fn a_guest_is_measured_with_all_that_it_has() {
    let world = World::new();
    fs::write(world.at(".repl/x"), vec![1; 500_000]).unwrap();
    assert!(world.workspace.usage().unwrap().bytes < 100_000);
    assert!(world.workspace.measure().unwrap().bytes >= 500_000);
}

/// Nested folders, deeper than any path can be.
fn dig(top: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder = openat(CWD, top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&folder, "d", Mode::RWXU).unwrap();
        mknodat(&folder, "f", FileType::RegularFile, Mode::RWXU, 0).unwrap();
        folder = openat(&folder, "d", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn a_hostile_tree_is_removed() {
    let world = World::new();
    dig(world.workspace.path(), 3_000);
    let inner = world.at("locked/inner");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("x"), "").unwrap();
    symlink(world.folder.path(), inner.join("out")).unwrap();
    mknodat(CWD, inner.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    hard_link(world.secret(), inner.join("secret")).unwrap();
    for folder in [&inner, &world.at("locked")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o0)).unwrap();
    }
    for number in 0..5_000 {
        fs::write(world.at(&format!("many{number}")), "").unwrap();
    }
    let usage = world.workspace.usage().unwrap();
    assert!(
        !usage.complete
            && Quota {
                bytes: u64::MAX,
                files: u64::MAX
            }
            .exceeded(&usage)
            .is_some()
    );
    assert!(world.workspace.list("d").unwrap().truncated);
    let path = world.workspace.path().to_owned();
    world.workspace.destroy().unwrap();
    assert!(!path.exists() && !path.parent().unwrap().exists());
    assert_eq!(fs::read(world.folder.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn folders_that_nobody_may_read_are_measured_and_stay_as_they_are() {
    let world = World::new();
    create_dir(world.at("locked")).unwrap();
    fs::write(world.at("locked/large"), vec![b'x'; 200_000]).unwrap();
    if is_root() {
        chown(world.at("locked"), Some(Uid::from_raw(1_000)), None).unwrap();
    }
    fs::set_permissions(world.at("locked"), fs::Permissions::from_mode(0o0)).unwrap();
    assert!(world.workspace.usage().unwrap().bytes >= 200_000);
    assert_eq!(world.workspace.list("locked").unwrap().entries.len(), 1);
    assert_eq!(
        fs::metadata(world.at("locked")).unwrap().permissions().mode() & 0o777,
        0
    );
}

/// A thread acts as a hostile guest: it swaps folders and files for links while the host works.
#[test]
fn games_with_links_lead_nowhere() {
    let world = World::new();
    let outside = world.folder.path().join("outside");
    create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "secret").unwrap();
    create_dir(world.at("real")).unwrap();
    fs::write(world.at("real/file"), "plain").unwrap();
    symlink(&outside, world.at("link")).unwrap();
    rename(world.at("real"), world.at("it")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let games = {
        let (over, it) = (over.clone(), world.at("it"));
        let (real, link) = (world.at("real"), world.at("link"));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let _ = rename(&it, &real);
                let _ = rename(&link, &it);
                let _ = rename(&it, &link);
                let _ = rename(&real, &it);
            }
        })
    };
    let (mut read, mut refused) = (0, 0);
    for round in 0.. {
        match world.workspace.read("it/file", 100) {
            Ok(bytes) => {
                assert!(bytes == b"plain" || bytes == b"written", "{bytes:?}");
                read += 1;
            }
            Err(_) => refused += 1,
        }
        let _ = world.workspace.write("it/file", b"written");
        let _ = world.workspace.list("it");
        let _ = world.workspace.usage().map(|usage| assert!(usage.files < 100));
        // Both outcomes were seen, or there were very many rounds.
        if (read > 20 && refused > 20 && round > 300) || round > 2_000 {
            break;
        }
    }
    over.store(true, Ordering::Relaxed);
    games.join().unwrap();
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    let link = [world.at("it"), world.at("link")]
        .into_iter()
        .find_map(|path| read_link(path).ok());
    assert_eq!(link.as_deref(), Some(outside.as_path()));
}
