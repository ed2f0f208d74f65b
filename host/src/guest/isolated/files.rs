//! The files of a session, which each copy gets for itself. The copy makes them, under its own limits and with its own rights.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::libc;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};

use super::calls::Calls;
use super::fds::Descriptors;
use super::rooms::{FOLDERS, ROOT};
use super::steps::Registers;
use crate::guest::traced::Traced;

/// The most files and folders that go along.
const MOST_FILES: usize = 2_000;
/// The most bytes of one of the two folders.
const MOST_BYTES: u64 = 256 << 20;
const DEEPEST: usize = 32;

/// A file, a folder or a link, by its path below one of the two folders.
struct Item {
    path: Vec<u8>,
    mode: u32,
    /// Seconds and nanoseconds of the last access and of the last change.
    times: [i64; 4],
    content: Content,
}

enum Content {
    Bytes(u64),
    Folder,
    Link(Vec<u8>),
}

/// The files of a session's two folders.
pub(super) struct Files([Folder; 2]);

struct Folder {
    mode: u32,
    items: Vec<Item>,
}

impl Files {
    /// Those of a process, while nobody writes.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn of(process: u32) -> io::Result<Self> {
        let list = |folder: &str| {
            let (mut items, mut bytes) = (Vec::new(), 0);
            let folder = open_folder(CWD, format!("/proc/{process}/{ROOT}/{folder}"))?;
            list(&folder, b"", 0, &mut items, &mut bytes)?;
            let mode = fstat(&folder)?.st_mode & 0o7777;
            io::Result::Ok(Folder { mode, items })
        };
        Ok(Self([list(FOLDERS[0])?, list(FOLDERS[1])?]))
    }

    /// Has a copy make its own. `from` are descriptors of its origin's folders.
    pub(super) fn copy(
        &self,
        from: [u64; 2],
        calls: &mut Calls<'_>,
        fds: &Descriptors,
        copy: &Traced,
        at: &Registers,
    ) -> io::Result<()> {
        let mut fds = fds.clone();
        for ((Folder { mode, items }, folder), from) in self.0.iter().zip(FOLDERS).zip(from) {
            let to = fds.take();
            open(calls, folder, to);
            for item in items {
                calls.make_room(copy, at)?;
                item.make(from, to, calls, &mut fds);
            }
            // Files in a folder change its time.
            for folder in items
                .iter()
                .rev()
                .filter(|item| matches!(item.content, Content::Folder))
            {
                calls.make_room(copy, at)?;
                folder.finish(to, calls);
            }
            calls.add("chmod", libc::SYS_fchmod, [to, u64::from(*mode)]);
            close(calls, to);
            fds.give_back(to);
        }
        calls.run(copy, at)?;
        Ok(())
    }
}

/// Adds calls that open one of the two folders.
pub(super) fn open(calls: &mut Calls<'_>, folder: &str, fd: u64) {
    let path = calls.text(format!("/{folder}").as_bytes());
    calls.opens(
        "open",
        libc::SYS_open,
        [path, flags(libc::O_DIRECTORY | libc::O_CLOEXEC)],
        fd,
    );
}

pub(super) fn close(calls: &mut Calls<'_>, fd: u64) {
    calls.add("close", libc::SYS_close, [fd]);
}

/// Flags as the kernel takes them.
pub(super) fn flags(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}

impl Item {
    fn make(&self, from: u64, to: u64, calls: &mut Calls<'_>, fds: &mut Descriptors) {
        let path = calls.text(&self.path);
        match &self.content {
            Content::Folder => calls.add("mkdir", libc::SYS_mkdirat, [to, path, 0o700]),
            Content::Link(target) => {
                let target = calls.text(target);
                calls.add("symlink", libc::SYS_symlinkat, [target, to, path]);
                let times = self.times(calls);
                let nofollow = flags(libc::AT_SYMLINK_NOFOLLOW);
                calls.add("utimensat", libc::SYS_utimensat, [to, path, times, nofollow]);
            }
            Content::Bytes(bytes) => {
                let (source, target) = (fds.take(), fds.take());
                let (read, make) = (
                    flags(libc::O_RDONLY | libc::O_CLOEXEC),
                    flags(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC),
                );
                calls.opens("open", libc::SYS_openat, [from, path, read], source);
                calls.opens("open", libc::SYS_openat, [to, path, make, 0o600], target);
                if *bytes > 0 {
                    calls.opens("copy", libc::SYS_sendfile, [target, source, 0, *bytes], *bytes);
                }
                calls.add("chmod", libc::SYS_fchmod, [target, u64::from(self.mode)]);
                let times = self.times(calls);
                calls.add("utimensat", libc::SYS_utimensat, [target, 0, times, 0]);
                close(calls, target);
                close(calls, source);
                fds.give_back(target);
                fds.give_back(source);
            }
        }
    }

    fn finish(&self, to: u64, calls: &mut Calls<'_>) {
        let (path, times) = (calls.text(&self.path), self.times(calls));
        calls.add("utimensat", libc::SYS_utimensat, [to, path, times, 0]);
        calls.add("chmod", libc::SYS_fchmodat, [to, path, u64::from(self.mode)]);
    }

    fn times(&self, calls: &mut Calls<'_>) -> u64 {
        let times: Vec<u8> = self.times.iter().flat_map(|part| part.to_ne_bytes()).collect();
        calls.data(&times)
    }
}

fn list(folder: &OwnedFd, above: &[u8], depth: usize, items: &mut Vec<Item>, bytes: &mut u64) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other("its folders are too deep"));
    }
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if items.len() >= MOST_FILES {
            return Err(io::Error::other(format!("it has more than {MOST_FILES} files")));
        }
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let path = [above, name.to_bytes()].concat();
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_nlink > 1 => {
                return Err(io::Error::other(format!("{} has another name", path.escape_ascii())));
            }
            FileType::RegularFile => Content::Bytes(size_of(&stat, bytes)?),
            FileType::Directory => Content::Folder,
            FileType::Symlink => Content::Link(target_of(folder, name)?),
            _ => return Err(io::Error::other(format!("{} is no ordinary file", path.escape_ascii()))),
        };
        let is_folder = matches!(content, Content::Folder);
        let inner = [&path[..], b"/"].concat();
        items.push(Item {
            path,
            mode: stat.st_mode & 0o7777,
            times: [
                stat.st_atime,
                stat.st_atime_nsec.cast_signed(),
                stat.st_mtime,
                stat.st_mtime_nsec.cast_signed(),
            ],
            content,
        });
        if is_folder {
            list(&open_folder(folder, name)?, &inner, depth + 1, items, bytes)?;
        }
    }
    Ok(())
}

fn size_of(stat: &Stat, all: &mut u64) -> io::Result<u64> {
    let size = u64::try_from(stat.st_size).map_err(io::Error::other)?;
    *all = all.saturating_add(size);
    match *all > MOST_BYTES {
        true => Err(io::Error::other(format!(
            "its files have more than {} MiB",
            MOST_BYTES >> 20
        ))),
        false => Ok(size),
    }
}

fn target_of(folder: &OwnedFd, name: &CStr) -> io::Result<Vec<u8>> {
    Ok(readlinkat(folder, name, Vec::new())?.into_bytes())
}

fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}
