//! Tests with the machine's own control groups. If none can be made (no root, or a container without them), the tests print
//! this and end.

use std::process::{Child, Command, Stdio};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn bounds() -> Bounds {
    Bounds {
        memory_bytes: 64 << 20,
        pids: 16,
        cpus: 1.0,
    }
}

fn group() -> Option<Cgroup> {
    match Cgroup::create("test of groups", &bounds()) {
        Ok(group) => Some(group),
        Err(reason) => {
            eprintln!("not tested: {reason}");
            None
        }
    }
}

/// A shell that waits for a word, and then runs `script`.
fn shell(script: &str) -> Child {
    let script = format!("read -r go || exit 9\n{script}");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

fn go(child: &mut Child) {
    io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "{what} did not come true");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_group_is_gone_with_everything_in_it_when_it_is_dropped() {
    let Some(group) = group() else { return };
    assert_eq!(group.events(), Events::default());
    // The grandchild has left its session, and nobody added it to the group.
    let mut child = shell("setsid sleep 1000 & sleep 1000");
    group.add(child.id()).unwrap();
    go(&mut child);
    wait_for("three processes", || group.usage().pids == 3);
    assert!(group.usage().memory_bytes > 0);
    let path = group.path.clone();
    drop(group);
    assert!(!child.wait().unwrap().success());
    wait_for("removal", || path.folders().iter().all(|folder| !folder.exists()));
}

#[test]
fn too_many_processes_are_refused_and_counted() {
    let Some(group) = group() else { return };
    // dash stops at the first failing fork.
    let mut child = shell("for n in $(seq 100); do sleep 1000 & done; wait");
    group.add(child.id()).unwrap();
    go(&mut child);
    wait_for("a refusal", || group.events().pids_refused > 0);
    assert!(group.usage().pids <= u64::from(bounds().pids));
    assert_eq!(group.events().oom_kills, 0);
    group.kill_all();
    child.wait().unwrap();
    wait_for("an empty group", || group.usage().pids == 0);
}

#[test]
fn what_takes_too_much_memory_is_killed_and_counted() {
    let Some(group) = group() else { return };
    let mut child = shell("exec tail /dev/zero"); // It keeps the whole last line.
    group.add(child.id()).unwrap();
    go(&mut child);
    assert!(!child.wait().unwrap().success());
    wait_for("the count", || group.events().oom_kills > 0);
    assert!(
        group
            .usage()
            .peak_memory_bytes
            .is_none_or(|peak| peak <= bounds().memory_bytes)
    );
}

#[test]
fn what_a_dead_supervisor_left_is_removed_and_what_a_living_one_has_is_not() {
    let Some(group) = group() else { return };
    let base = CgroupPath {
        cpu: None,
        ..path_of(&group.home.parent, group.home.path.version)
    };
    let abandoned = base.pids.join(format!("{PREFIX}abandoned-{}", std::process::id()));
    fs::create_dir(&abandoned).unwrap();
    let inner = abandoned.join("1.guest");
    fs::create_dir(&inner).unwrap();
    let mut child = shell("sleep 1000");
    write(&inner.join("cgroup.procs"), &child.id().to_string()).unwrap();
    let alive = abandoned.with_file_name(format!("{PREFIX}alive-{}", std::process::id()));
    fs::create_dir(&alive).unwrap();
    let held = lock(&alive).unwrap();
    assert!(held.is_some());
    sweep(&base.pids);
    assert!(!abandoned.exists());
    assert!(!child.wait().unwrap().success());
    assert!(alive.exists());
    assert!(group.folder().exists());
    drop(held);
    sweep(&base.pids);
    assert!(!alive.exists());
}

fn path_of(folder: &Path, version: Version) -> CgroupPath {
    CgroupPath {
        version,
        memory: folder.to_owned(),
        pids: folder.to_owned(),
        cpu: None,
    }
}

#[test]
fn what_was_left_in_a_sibling_is_removed_as_well() {
    // Plain folders serve as groups here, because such groups have no members.
    let all = tempfile::tempdir().unwrap();
    let (own, other) = (all.path().join("own"), all.path().join("other"));
    fs::create_dir(&own).unwrap();
    let left = other.join(format!("{PREFIX}left"));
    fs::create_dir_all(left.join("1.guest")).unwrap();
    let foreign = other.join("foreign");
    fs::create_dir(&foreign).unwrap();
    sweep_around(&own);
    assert!(!left.exists());
    assert!(own.exists() && foreign.exists());
}

#[test]
fn whoever_waits_for_removals_sees_the_group_gone() {
    let Some(group) = group() else { return };
    let mut child = shell("sleep 1000");
    group.add(child.id()).unwrap();
    let folder = group.folder().to_owned();
    // The child has not been waited for, so the group is not empty when dropped.
    drop(group);
    assert!(!child.wait().unwrap().success());
    settle(Duration::from_secs(20));
    assert!(!folder.exists());
}

#[test]
fn supervisors_groups_are_made_once_and_again_when_they_were_removed() {
    let Some(first) = group() else { return };
    let Some(second) = group() else { return };
    assert!(Arc::ptr_eq(&first.home, &second.home));
    assert_ne!(first.folder(), second.folder());
    assert!(check().is_ok());
}

#[test]
fn a_value_is_never_written_to_a_file_that_the_kernel_does_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.max");
    assert!(write(&file, "1").unwrap_err().to_string().contains("memory.max"));
    assert!(!file.exists());
}
