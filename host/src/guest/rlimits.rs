//! Limits of each process of a guest, which also hold without control groups. The shell that starts a guest sets them for
//! itself. Another process would need rights that a host in a container may lack.

use std::fmt::Write;

use rustix::process::{Resource, getrlimit};

/// The unit of a file's size there.
const BLOCK_BYTES: u64 = 512;

/// The limits of each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rlimits {
    /// Open files.
    pub open_files: u64,
    /// The largest file that a process can write, in bytes.
    pub file_bytes: u64,
    /// Bytes of private memory per process, if no control group counts all memory together. This is not the address space,
    /// because libraries such as OpenBLAS reserve more of that than they use.
    pub memory_bytes: Option<u64>,
}

impl Rlimits {
    /// The shell commands that set the limits. They fail when a limit cannot be set.
    pub(super) fn commands(&self) -> String {
        let mut commands = "ulimit -c 0".to_owned();
        let mut limit = |option: char, resource: Resource, most: u64, unit: u64| {
            // No process may have a higher limit than its parent.
            let most = getrlimit(resource).maximum.map_or(most, |own| own.min(most));
            let _ = write!(commands, " && ulimit -{option} {}", most.div_ceil(unit));
        };
        limit('n', Resource::Nofile, self.open_files, 1);
        limit('f', Resource::Fsize, self.file_bytes, BLOCK_BYTES);
        if let Some(bytes) = self.memory_bytes {
            limit('d', Resource::Data, bytes, 1 << 10);
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn limits(each: &Rlimits, shell: &str) -> String {
        let script = format!("{} && cat /proc/self/limits", each.commands());
        let output = Command::new(shell).args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The soft and the hard limit, which are the same.
    fn is_limited(text: &str, name: &str, most: &str) -> bool {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).eq([most, most])
    }

    #[test]
    fn a_shell_takes_the_limits_upon_itself() {
        let each = Rlimits {
            open_files: 100,
            file_bytes: 1 << 20,
            memory_bytes: Some(64 << 20),
        };
        let text = limits(&each, "/bin/sh");
        assert!(is_limited(&text, "Max open files", "100"), "{text}");
        assert!(is_limited(&text, "Max file size", "1048576"), "{text}");
        assert!(is_limited(&text, "Max data size", "67108864"), "{text}");
        assert!(is_limited(&text, "Max core file size", "0"), "{text}");
    }

    #[test]
    fn more_than_the_host_has_is_not_asked_for() {
        let each = Rlimits {
            open_files: u64::MAX,
            file_bytes: 1 << 30,
            memory_bytes: None,
        };
        let text = limits(&each, "/bin/sh");
        assert!(is_limited(&text, "Max file size", "1073741824"), "{text}");
        assert!(!each.commands().contains("-d"));
    }
}
