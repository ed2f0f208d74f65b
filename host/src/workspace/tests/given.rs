//! Trees of files that are given to another user.

use rustix::fs::{Uid, symlinkat};

use super::super::owner::give_all;
use super::*;

/// Nested folders with long names, with a file and a link in each. Returns all, from the top down.
fn dig_long(top: &Path, depth: usize, target: &Path) -> Vec<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder = openat(CWD, top, flags, Mode::empty()).unwrap();
    let mut made = Vec::new();
    let name = "n".repeat(250);
    for _ in 0..depth {
        mkdirat(&folder, &name, Mode::RWXU).unwrap();
        mknodat(&folder, "f", FileType::RegularFile, Mode::RWXU, 0).unwrap();
        symlinkat(target, &folder, "l").unwrap();
        for name in ["f", "l", name.as_str()] {
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
    // A path of more than 4096 bytes cannot be opened.
    let made = dig_long(world.workspace.path(), 60, &world.secret());
    let owners = || -> Vec<u32> { made.iter().map(|found| fstat(found).unwrap().st_uid).collect() };
    let (own, other) = (fstat(&world.workspace.folder).unwrap().st_uid, 1_234);
    if !is_root() {
        return; // nobody else can give anything away
    }
    chown(world.at("n".repeat(250).as_str()), Some(Uid::from_raw(77)), None).unwrap();
    give_all(world.workspace.folder.as_fd(), own, other).unwrap();
    let mut expected = vec![other; made.len()];
    expected[2] = 77; // what is somebody else's stays so, and what is in it is looked at all the same
    assert_eq!(owners(), expected);
    assert_eq!(fs::metadata(world.secret()).unwrap().uid(), own);
}

#[test]
fn a_tree_that_is_too_deep_to_be_given_away_says_so() {
    let world = World::new();
    dig(world.workspace.path(), 100);
    let error = give_all(world.workspace.folder.as_fd(), 77, 78).unwrap_err();
    assert!(error.to_string().contains("deeper"), "{error}");
}
