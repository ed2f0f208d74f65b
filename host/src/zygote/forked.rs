//! The process of a guest that a zygote forked.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandglass_core::Killer;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::{STATUS_TIMEOUT, Zygote, kill, lock};
use crate::cgroup::Cgroup;
use crate::guest::process::{GONE_WITHIN, kill_others, process_of};
use crate::guest::{Exit, Hits, Process, Sweeper};

/// A guest that a zygote forked.
pub(super) struct ForkedProcess {
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) number: u64,
    pub(super) ended: watch::Receiver<Option<i32>>,
    pub(super) group: Option<Arc<Cgroup>>,
    /// The guest's parent, which collects its exit.
    pub(super) zygote: Arc<Zygote>,
    /// True if this is the process that stands over a guest, and tells of the guest's signal by its status.
    pub(super) stands_over: bool,
    pub(super) exit: Option<Exit>,
}

impl Process for ForkedProcess {
    fn kill(&mut self) {
        kill(self.pidfd.get_ref());
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            if let Some(exit) = &self.exit {
                return exit.clone();
            }
            // The descriptor is readable when the first process of the namespace is gone, and with it all others.
            let _ = self.pidfd.readable().await;
            let status = tokio::time::timeout(STATUS_TIMEOUT, self.ended.wait_for(Option::is_some)).await;
            let status = status.ok().and_then(Result::ok).and_then(|status| *status);
            let status = status.map(|status| match status {
                129..=192 if self.stands_over => 128 - status,
                status => status,
            });
            let oom = self.hits().oom > 0;
            let exit = Exit {
                code: status.filter(|status| *status >= 0),
                signal: status.filter(|status| *status < 0).map(|status| -status),
                killer: oom.then_some(Killer::Oom),
                stderr: match (status, self.zygote.end()) {
                    (None, Some(end)) => format!("the zygote that it was forked from ended: {end}"),
                    _ => String::new(),
                },
            };
            self.exit = Some(exit.clone());
            exit
        })
    }

    fn id(&self) -> Option<u32> {
        process_of(self.pidfd.get_ref())
    }

    fn held_bytes(&self) -> Option<u64> {
        self.group.as_ref()?.held_bytes()
    }

    fn sweeper(&self, spared: Vec<u32>) -> Option<Sweeper> {
        let spared = HashSet::from_iter(spared);
        let root = self.id();
        Some(match &self.group {
            Some(group) => {
                let group = Arc::clone(group);
                Box::new(move || group.kill_others(&spared, GONE_WITHIN))
            }
            None => Box::new(move || kill_others(None, root, &spared)),
        })
    }

    fn group(&self) -> Option<Arc<Cgroup>> {
        self.group.clone()
    }

    fn hits(&self) -> Hits {
        self.group.as_ref().map_or_else(Hits::default, |group| {
            let events = group.events();
            Hits {
                oom: events.oom_kills,
                pids: events.pids_refused,
            }
        })
    }
}

impl Drop for ForkedProcess {
    fn drop(&mut self) {
        kill(self.pidfd.get_ref());
        lock(&self.zygote.ends).remove(&self.number);
    }
}
