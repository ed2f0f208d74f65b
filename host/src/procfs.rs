//! Files of `/proc` about processes. A process chooses parts of their content, such as its name, which may be no UTF-8.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use nix::libc;

/// The most bytes of a file that tells of a process.
const MOST_BYTES: u64 = 1 << 20;
/// The most bytes of the list of a process's memory. The process chooses the names of files in it, which may have any length.
const MOST_BYTES_OF_MAPS: u64 = 16 << 20;

/// Reads a file of `/proc` as text. Bytes that are no UTF-8 are replaced.
///
/// # Errors
/// It cannot be read, or is larger than such a file is.
pub(crate) fn read(file: impl AsRef<Path>) -> io::Result<String> {
    read_at_most(MOST_BYTES, file.as_ref())
}

/// The list of a process's memory, a line for each part.
///
/// # Errors
/// As of [`read`].
pub(crate) fn maps(pid: u32) -> io::Result<String> {
    read_at_most(MOST_BYTES_OF_MAPS, format!("/proc/{pid}/maps").as_ref())
}

fn read_at_most(most: u64, file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(file)?.take(most + 1).read_to_end(&mut bytes)?;
    match read as u64 > most {
        true => Err(io::Error::other(format!("{} is too large", file.display()))),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Returns true if a process makes no more steps, even if nobody has taken its exit.
pub(crate) fn has_ended(pid: u32) -> bool {
    matches!(state_of(pid), Some(b'Z' | b'X'))
}

/// Returns true if a signal or a tracer has stopped a process, or if it has ended.
pub(crate) fn is_stopped(pid: u32) -> bool {
    matches!(state_of(pid), Some(b'Z' | b'X' | b'T' | b't'))
}

/// The state of a process that has one thread, as the kernel's letter; `X` if the process has ended. `None` if nobody can tell.
fn state_of(pid: u32) -> Option<u8> {
    let status = match read(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) => return is_gone(&error).then_some(b'X'),
    };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim()
    };
    let state = field("State:").bytes().next();
    state.filter(|_| matches!(field("Threads:"), "0" | "1"))
}

/// Returns true for the error about a file whose process or control group does not exist any more.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

/// The parent of a process. The search begins after the last `)`, because the program's name before it may contain anything.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let status = read(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process whose name is no UTF-8, and whose first thread has ended if it is told so.
    fn named(then: &str) -> Child {
        let code = format!(
            "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\nlibc.prctl(15, b'\\xff)', 0, 0, 0)\n{then}"
        );
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", &code])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        child
    }

    #[test]
    fn a_process_whose_name_is_no_text_is_seen() {
        let mut child = named("print(flush=True)\ntime.sleep(600)");
        assert!(!has_ended(child.id()));
        assert_eq!(parent_of(child.id()), Some(std::process::id()));
        child.kill().unwrap();
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }

    #[test]
    fn the_bytes_of_a_file_are_bounded() {
        let file = Path::new("/proc/self/maps");
        assert!(read_at_most(1 << 20, file).is_ok());
        assert!(read_at_most(100, file).is_err());
    }

    #[test]
    fn a_process_has_not_ended_while_a_thread_of_it_runs() {
        let thread = "def go_on():\n    while not open(f'/proc/{os.getpid()}/stat', 'rb').read().rsplit(b')')[-1].startswith(b' Z'): pass\n    \
                      print(flush=True)\n    time.sleep(600)\nthreading.Thread(target=go_on).start()\nlibc.pthread_exit(None)";
        let mut child = named(thread);
        assert!(!has_ended(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
