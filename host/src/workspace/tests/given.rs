//! Trees that are given to another user.

use rustix::fs::symlinkat;

use super::*;

/// Folders with long names in each other, and a file and a link in each: all that there is, from the top on.
fn dig_long(top: &Path, depth: usize) -> Vec<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder = openat(CWD, top, flags, Mode::empty()).unwrap();
    let mut made = Vec::new();
    let name = "n".repeat(250);
    for _ in 0..depth {
        mkdirat(&folder, &name, Mode::RWXU).unwrap();
        mknodat(&folder, "f", FileType::RegularFile, Mode::RWXU, 0).unwrap();
        symlinkat("/etc/passwd", &folder, "l").unwrap();
        for name in ["f", "l", &name] {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            made.push(openat(&folder, name, flags, Mode::empty()).unwrap());
        }
        folder = openat(&folder, &name, flags, Mode::empty()).unwrap();
    }
    made
}

#[test]
fn what_no_path_leads_to_is_given_away_like_all_else() {
    let world = World::new();
    // No path of more than 4096 bytes can be opened.
    let made = dig_long(world.workspace.path(), 60);
    let owners = || -> Vec<u32> { made.iter().map(|found| fstat(found).unwrap().st_uid).collect() };
    let (own, other) = (fstat(&world.workspace.folder).unwrap().st_uid, 1_234);
    if !is_root() {
        // Nobody else can give anything away.
        return give_all(world.workspace.folder.as_fd(), own, own).unwrap();
    }
    let passwd = fs::metadata("/etc/passwd").unwrap().uid();
    chown(world.at("n".repeat(250).as_str()), Some(Uid::from_raw(77)), None).unwrap();
    give_all(world.workspace.folder.as_fd(), own, other).unwrap();
    let mut expected = vec![other; made.len()];
    expected[2] = 77; // what is somebody else's stays so, and what is in it is looked at all the same
    assert_eq!(owners(), expected);
    assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), passwd);
}

#[test]
fn a_tree_that_is_too_deep_to_be_given_away_says_so() {
    let world = World::new();
    dig(world.workspace.path(), 100);
    let own = fstat(&world.workspace.folder).unwrap().st_uid;
    let error = give_all(world.workspace.folder.as_fd(), own, own).unwrap_err();
    assert!(error.to_string().contains("deeper"), "{error}");
}
