//! The memory of processes together, which may share pages.

use std::io::{self, ErrorKind};

use crate::procfs;

/// Returns true when these processes take more than so many bytes together, as far as the system tells.
pub(crate) fn take_more(processes: &[u32], bytes: f64) -> bool {
    // This sum counts shared pages once per process, so it is an upper bound. Most often the bound is enough.
    let at_most: u64 = processes.iter().filter_map(|id| own_bytes(*id).ok()).sum();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    if at_most as f64 <= bytes {
        return false;
    }
    let mut shares = 0;
    for process in processes {
        match proportional_bytes(*process) {
            Ok(bytes) => shares += bytes,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return true,
            Err(_) => {} // it is gone
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let shares = shares as f64;
    shares > bytes
}

/// Bytes in memory that belong to no file. The process may share them with the process it was forked from, and with its own
/// forks.
pub(crate) fn own_bytes(process: u32) -> io::Result<u64> {
    field(&format!("/proc/{process}/status"), "RssAnon:")
}

/// Bytes in memory, with each shared page divided by its number of users. The kernel looks at every page for this. Only root
/// may ask it about a process with another user or with more rights.
fn proportional_bytes(process: u32) -> io::Result<u64> {
    field(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// Bytes in memory that no other process has: all that was written since the last fork. The kernel looks at every page for this.
///
/// # Errors
/// The process is gone, or is a paused copy, into which nobody but root may look.
pub(crate) fn unshared_bytes(process: u32) -> io::Result<u64> {
    field(&format!("/proc/{process}/smaps_rollup"), "Private_Dirty:")
}

/// An upper bound of the bytes that a guest and its paused copies take together. `copies` are the processes of the copies, the oldest
/// first. `written` is the sum of the guest's unshared bytes just before each later copy was made.
///
/// Every page of theirs was in the oldest copy, or was written before one of the others, or was written since.
pub(crate) fn at_most(guest: u32, copies: &[u32], written: u64) -> u64 {
    let own = |process: &u32| own_bytes(*process).unwrap_or(0); // it is gone
    let all = own(&guest) + copies.iter().map(own).sum::<u64>();
    let Some(oldest) = copies.first() else { return all };
    let since = unshared_bytes(guest).unwrap_or_else(|_| own(&guest));
    all.min(own(oldest).saturating_add(written).saturating_add(since))
}

/// A field of one of the kernel's files, converted from kilobytes to bytes.
fn field(path: &str, name: &str) -> io::Result<u64> {
    let text = procfs::read(path)?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
    let kib: Option<u64> = value.and_then(|value| value.trim().parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Forks twice, as a guest does for its copies. In between it writes to a part of its memory.
    const FORKS: &str = "
import os, sys, time
kept = bytearray(b'x' * (64 << 20))
def fork():
    sys.stdin.readline()
    pid = os.fork()
    if pid == 0: time.sleep(1000)
    print(pid, flush=True)
fork()
kept[:16 << 20] = b'y' * (16 << 20)
fork()
sys.stdin.readline()
";

    fn next(process: &mut Child, said: &mut impl BufRead) -> u32 {
        process.stdin.as_mut().unwrap().write_all(b"fork\n").unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    #[test]
    fn a_process_takes_memory_and_a_limit_says_when_that_is_too_much() {
        let own = std::process::id();
        let kept = vec![1_u8; 32 << 20];
        assert!(own_bytes(own).unwrap() >= kept.len() as u64);
        assert!(proportional_bytes(own).unwrap() >= kept.len() as u64);
        assert!(take_more(&[own], f64::from(32 << 20)));
        assert!(!take_more(&[own], f64::INFINITY));
        assert!(!take_more(&[], 0.0));
    }

    #[test]
    fn shared_pages_count_once() {
        let mib = |bytes: u64| bytes >> 20;
        let mut guest = Command::new("python3")
            .args(["-c", FORKS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(guest.stdout.take().unwrap());
        let first = next(&mut guest, &mut said);
        let id = guest.id();
        while unshared_bytes(id).unwrap() < 16 << 20 {
            std::thread::yield_now(); // until it has written
        }
        let written = unshared_bytes(id).unwrap();
        let second = next(&mut guest, &mut said);
        let one_alone = own_bytes(first).unwrap();
        let all = at_most(id, &[first, second], written);
        let most = 16 + 8;
        assert!(
            (mib(one_alone)..mib(one_alone) + most + 16).contains(&mib(all)),
            "{} MiB, and one has {}",
            mib(all),
            mib(one_alone)
        );
        assert!(
            at_most(id, &[first, second], u64::MAX) >= 3 * (64 << 20),
            "each alone is a bound, too"
        );
        assert_eq!(mib(at_most(id, &[], 0)), mib(own_bytes(id).unwrap()));
        for pid in [first, second] {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
}
