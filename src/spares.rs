//! Guests that are started before anybody needs them. Until one is taken it has run nobody's code, so all sandboxes of a page
//! share them: one that dies is replaced at once, and a new sandbox starts at once.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use gloo_timers::callback::Timeout;
use wasm_bindgen_futures::spawn_local;

use super::assets::Assets;
use super::glue::Glue;
use super::guest_frame::Guest;
use super::options::{Isolation, Options};
use super::snapshot;

/// The time without work in a sandbox before a spare is started, in milliseconds: starting one takes a processor.
const IDLE_MS: u32 = 100;

/// The options that guests have in common which can replace each other.
type Kind = (Isolation, String);

#[derive(Default)]
struct Pool {
    ready: Vec<Guest>,
    /// The number that each sandbox wants.
    wanted: HashMap<u32, u32>,
    filling: bool,
    /// Goes off when the page's sandboxes have been idle for a while.
    idle: Option<Timeout>,
}

impl Pool {
    fn missing(&self) -> bool {
        let most = self.wanted.values().max().copied().unwrap_or(0);
        self.ready.len() < most as usize
    }
}

thread_local! {
    static POOLS: RefCell<HashMap<Kind, Pool>> = RefCell::default();
    static LAST_CLAIM: Cell<u32> = const { Cell::new(0) };
}

/// A sandbox's share in the spares. The last one to be released ends them.
pub(super) struct Claim {
    number: u32,
    spares: u32,
    kind: Kind,
    glue: Glue,
    released: Cell<bool>,
}

impl Claim {
    pub(super) fn new(glue: &Glue, options: &Options) -> Self {
        let number = LAST_CLAIM.get() + 1;
        LAST_CLAIM.set(number);
        let kind = (options.isolation, options.assets_url(glue));
        let claim = Self {
            number,
            spares: options.limits.spares,
            kind,
            glue: glue.clone(),
            released: Cell::new(false),
        };
        claim.in_pool(|pool| pool.wanted.insert(number, options.limits.spares));
        claim
    }

    fn in_pool<T>(&self, act: impl FnOnce(&mut Pool) -> T) -> T {
        POOLS.with_borrow_mut(|pools| act(pools.entry(self.kind.clone()).or_default()))
    }

    /// Takes note of how many guests of its own the sandbox has in the place of some of them.
    pub(super) fn hold(&self, count: usize) {
        if !self.released.get() {
            let wanted = self.spares.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            self.in_pool(|pool| pool.wanted.insert(self.number, wanted));
        }
    }

    /// A guest that is starting, or has started.
    pub(super) fn take(&self) -> Option<Guest> {
        loop {
            let guest = self.in_pool(|pool| pool.ready.pop())?;
            if !guest.is_gone() {
                return Some(guest);
            }
        }
    }

    /// A guest that is started now.
    pub(super) fn start(&self) -> impl Future<Output = Option<Guest>> + use<> {
        let ((isolation, base), glue) = (self.kind.clone(), self.glue.clone());
        async move { start(isolation, &base, &glue).await }
    }

    /// Starts what is missing once nothing has been done for a while.
    pub(super) fn fill_when_idle(&self, idle: bool) {
        let missing = self.in_pool(|pool| {
            if !idle {
                pool.idle.take();
            }
            idle && pool.idle.is_none() && pool.missing() && !pool.filling
        });
        if missing {
            let (kind, glue) = (self.kind.clone(), self.glue.clone());
            let timeout = Timeout::new(IDLE_MS, move || spawn_local(fill(kind, glue)));
            self.in_pool(|pool| pool.idle = Some(timeout));
        }
    }

    /// Gives the share back, once.
    pub(super) fn release(&self) {
        if self.released.replace(true) {
            return;
        }
        let spares = self.in_pool(|pool| {
            pool.wanted.remove(&self.number);
            let keep = pool.wanted.values().max().copied().unwrap_or(0) as usize;
            pool.ready.split_off(keep.min(pool.ready.len()))
        });
        drop(spares); // outside: ending a guest may come back in here
        self.fill_when_idle(true); // it may have taken one from the others
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

async fn fill(kind: Kind, glue: Glue) {
    let (isolation, base) = &kind;
    let in_pool =
        |act: &dyn Fn(&mut Pool) -> bool| POOLS.with_borrow_mut(|pools| pools.get_mut(&kind).is_some_and(act));
    let begun = in_pool(&|pool| {
        drop(pool.idle.take());
        pool.missing() && !std::mem::replace(&mut pool.filling, true)
    });
    if !begun {
        return;
    }
    while in_pool(&|pool| pool.missing()) {
        let Some(guest) = start(*isolation, base, &glue).await else {
            break;
        };
        // Nobody may want it any more. Then it is dropped outside, because that may come back in here.
        let guest = Cell::new(Some(guest));
        in_pool(&|pool| {
            if pool.missing() {
                pool.ready.extend(guest.take());
            }
            true
        });
    }
    in_pool(&|pool| std::mem::take(&mut pool.filling));
}

/// A guest that starts. None without a snapshot that is known to be good: it would cost a whole start.
async fn start(isolation: Isolation, base: &str, glue: &Glue) -> Option<Guest> {
    let (Some(snapshot), None) = snapshot::find(base, glue).await else {
        return None;
    };
    let assets = Assets::load(base, glue);
    assets.verified().await.ok()?;
    let (script, pyodide) = (assets.script().await.ok()?, assets.pyodide().await.ok()?);
    let mut guest = Guest::open(glue, isolation).ok()?;
    guest.launch(glue, &script).ok()?;
    guest.furnish(&pyodide, Some(&snapshot)).ok()?;
    Some(guest)
}
