//! Spares: guests that are started before anybody needs them. A spare has run nobody's code, so all sandboxes of a page share the spares.
//! With a spare, a lost guest is replaced at once, and a new sandbox starts at once.
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

/// The idle time before a spare is started, in milliseconds. A start takes a whole processor, which running code needs more.
const IDLE_MS: u32 = 100;

/// The options that two guests must share to replace each other: isolation, and the address of the assets.
type Kind = (Isolation, String);

#[derive(Default)]
struct Pool {
    ready: Vec<Guest>,
    /// The number of spares that each sandbox wants, by the sandbox's claim.
    wanted: HashMap<u32, u32>,
    filling: bool,
    /// The timer that starts spares when all sandboxes of the page have been idle for a while.
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

/// A sandbox's claim to the spares. Releasing the last claim ends the spares.
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
        let kind = (options.isolation, options.assets_base());
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

    /// Notes how many shadows and parked guests the sandbox has. Each takes the place of a spare.
    pub(super) fn hold(&self, count: usize) {
        if !self.released.get() {
            let wanted = self.spares.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            self.in_pool(|pool| pool.wanted.insert(self.number, wanted));
        }
    }

    /// Takes a spare, which has started or is starting.
    pub(super) fn take(&self) -> Option<Guest> {
        loop {
            let guest = self.in_pool(|pool| pool.ready.pop())?;
            if !guest.is_gone() {
                return Some(guest);
            }
        }
    }

    /// Starts a guest now.
    pub(super) fn start(&self) -> impl Future<Output = Option<Guest>> + use<> {
        let ((isolation, base), glue) = (self.kind.clone(), self.glue.clone());
        async move { start(isolation, &base, &glue).await }
    }

    /// Starts missing spares after an idle time.
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

    /// Releases the claim. Later calls do nothing.
    pub(super) fn release(&self) {
        if self.released.replace(true) {
            return;
        }
        let spares = self.in_pool(|pool| {
            pool.wanted.remove(&self.number);
            let keep = pool.wanted.values().max().copied().unwrap_or(0) as usize;
            pool.ready.split_off(keep.min(pool.ready.len()))
        });
        drop(spares); // outside of the pool: ending a guest may call this module again
        self.fill_when_idle(true); // the sandbox may have taken a spare that others want
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
        // A guest that nobody wants any more is dropped outside of the pool: ending it may call this module again.
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

/// Starts a guest. None without a proven snapshot, because a start without one costs far more.
async fn start(isolation: Isolation, base: &str, glue: &Glue) -> Option<Guest> {
    let (Some(snapshot), None) = snapshot::find(base, glue, None).await else {
        return None;
    };
    let assets = Assets::load(base, glue);
    assets.verified().await.ok()?;
    let (script, wasm) = (assets.script().await.ok()?, assets.wasm().await.ok()?);
    let mut guest = Guest::open(glue, isolation, base).ok()?;
    guest.launch(glue, &script).ok()?;
    guest.compile(&wasm).ok()?;
    guest.furnish(Some(&snapshot), None).ok()?;
    guest.bring_library(base.to_owned(), glue.clone());
    Some(guest)
}
