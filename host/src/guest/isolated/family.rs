//! The processes that live as long as a copy: those that stand over it and over the paused copy that it came from.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use sandglass_core::Killer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Keeper;
use super::rooms::Room;
use crate::cgroup::Cgroup;
use crate::guest::paused::Boundary;
use crate::guest::process::{GONE_WITHIN, process_of};
use crate::guest::{Exit, GuestProcess, Hits, Process, Sweeper};
use crate::seqpacket::watched;

/// The processes that copies of a session stand below. All copies end with them, so they stay until the last copy has ended.
pub(crate) struct Trunk {
    /// The process that the host has started for the session before it was copied. It goes before the rest.
    root: OnceLock<GuestProcess>,
    boundary: Arc<Boundary>,
}

impl Trunk {
    /// Makes the trunk of copies that are being made of a paused copy in this boundary.
    pub(crate) fn new(boundary: Arc<Boundary>) -> Self {
        Self {
            root: OnceLock::new(),
            boundary,
        }
    }

    /// Keeps the process that the host has started.
    pub(crate) fn keep(&self, root: GuestProcess) {
        let _ = self.root.set(root); // there is one
    }

    /// Bytes of memory that it holds, with all that it stands below.
    pub(crate) fn held_bytes(&self) -> u64 {
        let own = self.root.get().and_then(GuestProcess::held_bytes).unwrap_or_default();
        own.saturating_add(self.boundary.held_above())
    }
}

/// The processes of a copy.
pub(crate) struct CopiedProcess {
    keeper: Keeper,
    /// The keeper's end.
    end: AsyncFd<OwnedFd>,
    group: Arc<Cgroup>,
    /// These go after the processes.
    _room: Room,
    _trunk: Arc<Trunk>,
}

impl CopiedProcess {
    /// The processes that `keeper` stands over.
    pub(crate) fn new(keeper: Keeper, group: Arc<Cgroup>, room: Room, trunk: &Arc<Trunk>) -> std::io::Result<Self> {
        let end = keeper.0.try_clone()?;
        Ok(Self {
            end: watched(end, Interest::READABLE)?,
            keeper,
            group,
            _room: room,
            _trunk: Arc::clone(trunk),
        })
    }
}

impl Process for CopiedProcess {
    fn kill(&mut self) {
        self.keeper.kill();
        // A keeper whose guest has made it slow ends the others late.
        self.group.kill_all();
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            // It is readable when the first process of the namespace is gone, and with it all others.
            let _ = self.end.readable().await;
            Exit {
                killer: (self.hits().oom > 0).then_some(Killer::Oom),
                ..Exit::default()
            }
        })
    }

    fn id(&self) -> Option<u32> {
        process_of(self.end.get_ref())
    }

    fn held_bytes(&self) -> Option<u64> {
        self.group.held_bytes()
    }

    fn sweeper(&self, spared: Vec<u32>) -> Option<Sweeper> {
        let (group, spared) = (Arc::clone(&self.group), HashSet::from_iter(spared));
        Some(Box::new(move || group.kill_others(&spared, GONE_WITHIN)))
    }

    fn group(&self) -> Option<Arc<Cgroup>> {
        Some(Arc::clone(&self.group))
    }

    fn hits(&self) -> Hits {
        let events = self.group.events();
        Hits {
            oom: events.oom_kills,
            pids: events.pids_refused,
        }
    }
}
