//! The end of a guest's processes while its paused copies stay.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use super::process::{GONE_WITHIN, kill_each, kill_others};
use crate::cgroup::Cgroup;

/// The pause between two looks at a group whose processes end.
const SWEEP_PAUSE: Duration = Duration::from_micros(300);

/// Ends the processes of a guest but some that it spares. All functions block.
pub trait Sweep: Send + Sync {
    /// Kills all others, and waits for their end. Returns false if some are left.
    fn sweep(&self, spared: &HashSet<u32>) -> bool;

    /// Kills all others. Returns those that are still ending, which may be none. They run no code and start nothing. `None` if some do
    /// not end.
    fn strike(&self, spared: &HashSet<u32>) -> Option<HashSet<u32>> {
        self.sweep(spared).then(HashSet::new)
    }

    /// Waits for the end of `ending`. Returns false if they do not end, or if there is a process beside them and `spared`.
    fn clear(&self, spared: &HashSet<u32>, ending: &HashSet<u32>) -> bool {
        ending.is_empty() || self.sweep(spared)
    }
}

/// Processes without a control group.
pub(crate) struct Family {
    pub(crate) mark: Option<OsString>,
    pub(crate) root: Option<u32>,
}

impl Sweep for Family {
    fn sweep(&self, spared: &HashSet<u32>) -> bool {
        kill_others(self.mark.as_ref(), self.root, spared)
    }
}

impl Sweep for Cgroup {
    fn sweep(&self, spared: &HashSet<u32>) -> bool {
        self.closed(|_| kill_members(self, spared)).unwrap_or(false)
    }

    fn strike(&self, spared: &HashSet<u32>) -> Option<HashSet<u32>> {
        self.closed(|is_closed| {
            let mut ending = HashSet::new();
            // Whoever has begun to start a process may finish that. Nobody begins.
            let mut find = || -> Vec<u32> {
                let others = self.others(spared).into_iter();
                others.filter(|pid| ending.insert(*pid)).collect()
            };
            let mut new = if is_closed { find() } else { Vec::new() };
            while !new.is_empty() {
                kill_each(&new);
                new = find();
            }
            // While memory is short, the next guest would be killed for want of it.
            match is_closed && self.has_room() {
                true => Some(ending),
                false => kill_members(self, spared).then(HashSet::new),
            }
        })?
    }

    fn clear(&self, spared: &HashSet<u32>, ending: &HashSet<u32>) -> bool {
        let end = Instant::now() + GONE_WITHIN;
        loop {
            let others = self.others(spared);
            if others.is_empty() {
                return true;
            }
            if Instant::now() > end || others.iter().any(|pid| !ending.contains(pid)) {
                return false;
            }
            thread::sleep(SWEEP_PAUSE);
        }
    }
}

/// Kills all processes in a group but these, and waits for their end. Returns false if others are left.
fn kill_members(group: &Cgroup, spared: &HashSet<u32>) -> bool {
    let end = Instant::now() + GONE_WITHIN;
    loop {
        let others = group.others(spared);
        if others.is_empty() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        kill_each(&others);
        thread::sleep(SWEEP_PAUSE);
    }
}
