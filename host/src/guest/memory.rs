//! The memory of processes together, which may share pages.

use std::fs;
use std::io::{self, ErrorKind};

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
fn own_bytes(process: u32) -> io::Result<u64> {
    field(&format!("/proc/{process}/status"), "RssAnon:")
}

/// Bytes in memory, with each shared page divided by its number of users. The kernel looks at every page for this. Only root
/// may ask it about a process with another user or with more rights.
fn proportional_bytes(process: u32) -> io::Result<u64> {
    field(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// A field of one of the kernel's files, converted from kilobytes to bytes.
fn field(path: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
    let kib: Option<u64> = value.and_then(|value| value.trim().parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
