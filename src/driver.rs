//! The driver of a sandbox in a page. It hands inputs to the session and carries out the session's effects, in order.
//!
//! A *ticket* is the number of a command. A *waiter* is a caller that waits for a command's outcome. A *slot* holds a guest: the
//! sandbox's own, or a shadow's.
//!
//! - `boot`, `slots`, `parked`: guests in pages, from their start to their end.
//! - `remote`: guests on a server.
//! - `messages`: events, decoded from guests' messages.
//! - `host_calls`: calls of the user's functions.
//! - `keeping`: the session in the browser's store.
//! - `resuming`: executions of an earlier page, and replays.
//! - `packages`: files of packages.
//! - `moving`: drivers that go on from the state of another.
//! - `ahead`: preparations for code that may come.

mod ahead;
mod boot;
mod functions;
mod host_calls;
mod keeping;
mod messages;
mod moving;
mod packages;
mod parked;
mod remote;
mod resuming;
mod slots;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use gloo_timers::callback::Timeout;
use js_sys::{Array, Function, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::AbortController;

use self::ahead::Ahead;
pub(crate) use self::ahead::Written;
use self::host_calls::Fates;
pub(crate) use self::host_calls::{Asked, OnQuery};
use self::parked::Parked;
use self::slots::Slots;
use super::budget;
use super::convert::{decode, display};
use super::glue::{Glue, now, object, random, thrown};
use super::options::{Options, Watch};
use super::outbox::JsBody;
use super::persist::Keeper;
use super::remote::Server;
use super::spares::Claim;
use super::stop::after;
use sandglass_core::budget::Budget;
use sandglass_core::error::Error;
use sandglass_core::execution::{CodeExecution, Killer, Outcome};
use sandglass_core::protocol::{GuestInfo, Request, Stream};
use sandglass_core::session::{
    Command, Effect, Encoded, Execute, Fork, GuestEffect, HostEffect, Input, Reply, Session, Slot, Ticket,
};

/// One session, and the guests, timers and callbacks around it.
pub(super) struct Driver {
    this: Weak<Self>,
    glue: Glue,
    options: Rc<Options>,
    session: RefCell<Session<JsBody>>,
    /// The guests: the sandbox's own, and its shadows.
    slots: Slots,
    /// Parked guests.
    parked: RefCell<Vec<Parked>>,
    last_parked: Cell<u32>,
    /// The first message to a new shadow.
    shadow_init: RefCell<Option<Request>>,
    /// The server that runs the guests. `None` when the page runs them.
    server: Option<Rc<Server>>,
    /// Effects that are still to be carried out.
    effects: RefCell<VecDeque<Effect<JsBody>>>,
    /// True while effects are being carried out.
    busy: Cell<bool>,
    last_ticket: Cell<Ticket>,
    waiters: RefCell<HashMap<Ticket, Waiter>>,
    /// The host calls that run, by their numbers. Aborting one's controller tells the user's function that nobody waits for it.
    calls: RefCell<HashMap<u32, AbortController>>,
    /// The calls among them that were begun before their code was asked for.
    fates: Fates,
    /// The one timer, and the time at which it goes off.
    timer: RefCell<Option<(f64, Timeout)>>,
    /// Keeps the driver alive after the sandbox was dropped, as long as a caller waits for an answer.
    abandoned: RefCell<Option<Rc<Self>>>,
    /// The sandbox's claim to the page's spares. `None` when a server runs the guests.
    claim: Option<Claim>,
    /// Preparations for code that may come.
    ahead: RefCell<Ahead>,
    /// Aborted when the sandbox ends. Made only when needed, because Chromium would keep an unused `AbortController` alive.
    ended: RefCell<Option<AbortController>>,
    /// The number of streams of code that are being read.
    reading: Cell<u32>,
    /// Answers Python's queries instead of the page's functions.
    on_query: Option<OnQuery>,
    /// Keeps the session in the browser.
    keeper: Option<Rc<Keeper>>,
    /// Effects that wait until the journal is written, in order.
    held: RefCell<VecDeque<Effect<JsBody>>>,
    /// True if the driver replays an execution, and calls that its record does not answer fail.
    asks_nobody: Cell<bool>,
}

/// Takes a command's outcome, and the displays that the execution has shown.
type Settle = Box<dyn FnOnce(&Driver, Result<Reply<JsBody>, Error>, &Array)>;

/// Gets each text that an execution prints, and its stream.
pub(crate) type OnOutput = Rc<dyn Fn(Stream, &str)>;

/// A finished execution, and the final answer that its code declared.
pub(crate) type Ran = (Box<CodeExecution>, Option<JsValue>);

/// A caller that waits for a command's outcome.
struct Waiter {
    settle: Settle,
    on_output: Option<OnOutput>,
    watch: Watch,
    /// The displays that the execution has shown so far.
    displays: Array,
}

impl Driver {
    /// Makes a driver. `on_query`, if given, answers Python's queries instead of the page's functions.
    pub(super) fn with_queries(glue: Glue, options: Options, on_query: Option<OnQuery>) -> Rc<Self> {
        let session = Self::session(&options, on_query.as_ref());
        Self::with_session(glue, Rc::new(options), session, on_query, None)
    }

    fn session(options: &Options, on_query: Option<&OnQuery>) -> Session<JsBody> {
        let mut names: Vec<String> = options.host_functions.iter().map(|one| one.name.clone()).collect();
        let answers_all = on_query.is_some();
        names.extend((answers_all || options.on_llm_query.is_some()).then(|| "llm_query".to_owned()));
        names.extend((answers_all || options.on_rlm_query.is_some()).then(|| "rlm_query".to_owned()));
        let budget = match &options.budget {
            budget::Given::Limits(limits) => Budget::new(*limits, now()),
            budget::Given::Shared(budget) => budget.clone(),
        };
        Session::new(options.limits.clone(), names)
            .with_budget(budget)
            .with_profile(options.profile, options.output_fields.clone())
    }

    fn with_session(
        glue: Glue,
        options: Rc<Options>,
        session: Session<JsBody>,
        on_query: Option<OnQuery>,
        keeper: Option<Rc<Keeper>>,
    ) -> Rc<Self> {
        let server = options
            .backend
            .as_ref()
            .map(|backend| Server::new(backend, &options.limits, options.paused));
        let session = if server.is_none() {
            session.with_pings(random()).with_repeats()
        } else if options.paused > 0 {
            session.with_paused_guests(options.paused as usize)
        } else {
            session
        };
        let session = session.with_shadows_on(ahead::processors(), ahead::copied_bytes());
        let claim = server.is_none().then(|| Claim::new(&glue, &options));
        let session = if options.predictions {
            session.with_guesses()
        } else {
            session
        };
        let session = if options.ahead_calls {
            session.with_calls_ahead()
        } else {
            session
        };
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            glue,
            options,
            session: RefCell::new(session),
            slots: Slots::default(),
            parked: RefCell::default(),
            last_parked: Cell::default(),
            shadow_init: RefCell::default(),
            server,
            effects: RefCell::default(),
            busy: Cell::default(),
            last_ticket: Cell::default(),
            waiters: RefCell::default(),
            calls: RefCell::default(),
            fates: Fates::default(),
            timer: RefCell::default(),
            abandoned: RefCell::default(),
            claim,
            ahead: RefCell::default(),
            ended: RefCell::default(),
            reading: Cell::default(),
            on_query,
            keeper,
            held: RefCell::default(),
            asks_nobody: Cell::default(),
        })
    }

    pub(super) fn glue(&self) -> &Glue {
        &self.glue
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn budget(&self) -> Budget {
        self.session.borrow().budget().clone()
    }

    pub(super) fn guest_info(&self) -> GuestInfo {
        self.session.borrow().info().clone()
    }

    /// Gives the session a command that nobody watches. Returns a promise of the outcome.
    pub(super) fn submit(&self, command: Command<JsBody>) -> Promise {
        self.submit_for(command, Watch::default(), Self::present)
    }

    /// Gives the session a command, after another one that loads the packages which its code imports. Returns a promise of the value that
    /// `present` makes of the outcome.
    pub(super) fn submit_for(
        &self,
        command: Command<JsBody>,
        watch: Watch,
        present: impl FnOnce(&Self, Reply<JsBody>, &Array) -> Result<JsValue, Error> + 'static,
    ) -> Promise {
        if let Command::Execute(execute) = &command {
            self.load_imported(&execute.code);
        }
        let mut functions = None;
        let promise = Promise::new(&mut |resolve, reject| functions = Some((resolve, reject)));
        let settle: Settle = Box::new(move |driver, reply, displays| {
            let Some((resolve, reject)) = functions else { return };
            let _ = match reply.and_then(|reply| present(driver, reply, displays)) {
                Ok(value) => resolve.call1(&JsValue::UNDEFINED, &value),
                Err(error) => reject.call1(&JsValue::UNDEFINED, &thrown(&driver.glue, &error)),
            };
        });
        let signal = watch.signal.clone();
        let ticket = self.wait(settle, None, watch);
        match signal {
            Some(signal) if signal.aborted() => self.feed(Input::Aborted(ticket, command)),
            Some(signal) => {
                self.feed(Input::Command(ticket, command));
                self.cancel_on(&signal, ticket, &promise);
            }
            None => self.feed(Input::Command(ticket, command)),
        }
        promise
    }

    /// Runs code for a caller in Rust. Calls `ended` with the outcome.
    pub(super) fn run(
        &self,
        code: String,
        on_output: Option<OnOutput>,
        ended: impl FnOnce(Result<Ran, Error>) + 'static,
    ) {
        self.load_imported(&code);
        let settle: Settle = Box::new(move |driver, reply, displays| {
            ended(match reply {
                Ok(Reply::Execution(execution, last)) => driver.ran(execution, last, displays),
                Ok(_) => Err(Error::NotSerializable("the execution could not be read".to_owned())),
                Err(error) => Err(error),
            });
        });
        let ticket = self.wait(settle, on_output, Watch::default());
        self.feed(Input::Command(ticket, Command::Execute(Execute::of(code))));
    }

    /// Adds a caller that waits for a command. Returns the command's number.
    fn wait(&self, settle: Settle, on_output: Option<OnOutput>, watch: Watch) -> Ticket {
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        let waiter = Waiter {
            settle,
            on_output,
            watch,
            displays: Array::new(),
        };
        self.waiters.borrow_mut().insert(ticket, waiter);
        ticket
    }

    /// Gives the session a command whose value is still being written. Returns a promise of the outcome.
    pub(super) fn submit_later(
        &self,
        command: Command<JsBody>,
        value: impl Future<Output = Result<Encoded<JsBody>, Error>> + 'static,
    ) -> Promise {
        let promise = self.submit(command);
        let (ticket, this) = (self.last_ticket.get(), self.this.clone());
        spawn_local(async move {
            let value = value.await;
            if let Some(driver) = this.upgrade() {
                driver.feed(Input::Arrived(ticket, value));
            }
        });
        promise
    }

    /// Cancels the command when `signal` is aborted. Stops listening when the command ends.
    fn cancel_on(&self, signal: &web_sys::AbortSignal, ticket: Ticket, promise: &Promise) {
        let this = self.this.clone();
        let abort = Closure::<dyn FnMut()>::new(move || {
            if let Some(driver) = this.upgrade() {
                driver.feed(Input::Cancel(ticket));
            }
        });
        if signal
            .add_event_listener_with_callback("abort", abort.as_ref().unchecked_ref())
            .is_err()
        {
            return;
        }
        let (signal, promise) = (signal.clone(), promise.clone());
        spawn_local(async move {
            let _ = JsFuture::from(promise).await;
            let _ = signal.remove_event_listener_with_callback("abort", abort.as_ref().unchecked_ref());
        });
    }

    /// Ends the session of a dropped sandbox, once nobody waits for an answer.
    pub(super) fn abandon(self: &Rc<Self>) {
        if !self.is_awaited() {
            self.feed(Input::Destroy);
        } else {
            self.abandoned.replace(Some(self.clone()));
        }
    }

    /// Gives the session an input, and carries out the effects.
    pub(super) fn feed(&self, input: Input<JsBody>) {
        let effects = self.session.borrow_mut().handle(now(), input);
        self.follow(effects);
    }

    /// Carries out effects, after all earlier ones.
    fn follow(&self, effects: Vec<Effect<JsBody>>) {
        self.effects.borrow_mut().extend(effects);
        // A callback of the user may lead here again. The loop that is already running carries out those effects.
        if self.busy.replace(true) {
            return;
        }
        loop {
            let next = self.effects.borrow_mut().pop_front();
            let Some(effect) = next else { break };
            match effect {
                effect if self.awaits_journal(&effect) => self.held.borrow_mut().push_back(effect),
                Effect::Host(HostEffect::Note(note)) => self.note(note),
                Effect::Guest(slot, GuestEffect::Boot) => self.boot(slot),
                Effect::Guest(_, GuestEffect::Revive(checkpoint)) => self.revive_remotely(&checkpoint),
                Effect::Guest(slot, GuestEffect::Kill) => {
                    if slot == Slot::Main {
                        self.drop_held(None);
                    }
                    self.kill(slot);
                }
                Effect::Guest(_, GuestEffect::Post(Request::Save { checkpoint, .. }, _)) if self.server.is_some() => {
                    self.pause_remotely(checkpoint);
                }
                // The guest on a server is a copy of the checkpoint, so it has the state already.
                Effect::Guest(slot, GuestEffect::Restore(request, _)) if self.server.is_some() => {
                    self.post(slot, request, None);
                }
                Effect::Guest(slot, GuestEffect::Post(request, body)) => self.post(slot, request, body),
                Effect::Guest(slot, GuestEffect::Restore(request, bodies) | GuestEffect::Install(request, bodies)) => {
                    if let Some(held) = self.slots.at(slot) {
                        held.outbox.post_all(&request, bodies);
                    }
                }
                Effect::Park(shadow) => self.park(shadow),
                Effect::Promote(shadow) => {
                    self.promote(shadow);
                    // The shadow's output is already there. The user's callbacks get it only after `execute` has returned.
                    let this = self.this.clone();
                    return spawn_local(async move {
                        if let Some(driver) = this.upgrade() {
                            driver.busy.set(false);
                            driver.follow(Vec::new());
                        }
                    });
                }
                Effect::Host(HostEffect::Fetch(ticket, wanted)) => self.fetch(ticket, wanted),
                Effect::Host(HostEffect::CallHost(call)) => self.call_host(call),
                Effect::Host(HostEffect::Progress(progress)) => self.calls_progress(&progress),
                Effect::Host(HostEffect::ClaimHost(call)) => self.fates.claim(call),
                Effect::Host(HostEffect::Keep(kept)) => self.keep_session(*kept),
                Effect::Host(HostEffect::AbortHost(call)) => {
                    self.drop_held(Some(call));
                    self.fates.end(call);
                    if let Some(controller) = self.calls.borrow_mut().remove(&call) {
                        controller.abort();
                    }
                }
                Effect::Host(HostEffect::Print(ticket, stream, text)) => self.print(ticket, stream, &text),
                Effect::Host(HostEffect::Display { ticket, mime, body, .. }) => self.display(ticket, &mime, &body),
                Effect::Host(HostEffect::Resolve(ticket, reply)) => {
                    let waiter = self.waiters.borrow_mut().remove(&ticket);
                    if let Some(Waiter { settle, displays, .. }) = waiter {
                        settle(self, reply, &displays);
                    }
                }
            }
        }
        self.busy.set(false);
        self.set_timer();
        self.look_after_guests();
        if !self.is_awaited()
            && let Some(driver) = self.abandoned.take()
        {
            driver.feed(Input::Destroy);
        }
    }

    /// Keeps spares while the sandbox is idle. Gives up what is there for guests, and the kept session, once it is destroyed.
    fn look_after_guests(&self) {
        let is_destroyed = self.session.borrow().is_destroyed();
        match (&self.claim, is_destroyed) {
            (Some(claim), true) => {
                drop(self.parked.take());
                claim.release();
            }
            (Some(claim), false) => claim.fill_when_idle(self.session.borrow().is_idle()),
            (None, true) => self.hang_up(),
            (None, false) => {}
        }
        if let Some(keeper) = self.keeper.as_ref().filter(|_| is_destroyed) {
            keeper.end();
        }
        if is_destroyed && let Some(ended) = self.ended.take() {
            ended.abort();
        }
    }

    /// Returns true while a caller waits for an answer.
    fn is_awaited(&self) -> bool {
        !self.waiters.borrow().is_empty() || self.reading.get() > 0
    }

    /// Sets the timer to go off at the session's next deadline. A timer that goes off earlier stays.
    fn set_timer(&self) {
        let Some(at) = self.session.borrow().wake_at() else {
            self.timer.take();
            return;
        };
        if self
            .timer
            .borrow()
            .as_ref()
            .is_some_and(|(set, _)| *set <= at && *set > now())
        {
            return;
        }
        let this = self.this.clone();
        let timeout = after(at - now(), move || {
            if let Some(driver) = this.upgrade() {
                driver.timer.replace(None);
                driver.feed(Input::Tick);
            }
        });
        self.timer.replace(Some((at, timeout)));
    }

    // ---- the user's functions ----

    /// Makes the value that a command's promise resolves to. `displays` are those that the execution has shown.
    pub(super) fn present(&self, reply: Reply<JsBody>, displays: &Array) -> Result<JsValue, Error> {
        match reply {
            Reply::Done => Ok(JsValue::UNDEFINED),
            Reply::State(execution) => Ok(execution.into()),
            Reply::Name(name) => Ok(name.into()),
            Reply::Value(value) => decode(&value),
            Reply::Packages(wheels) => Ok(super::packages::show(&wheels)),
            Reply::Execution(mut execution, last) => {
                let last = self.complete(&mut execution, last);
                show(&execution, last, displays)
            }
            Reply::Fork(_) => Err(Error::NotSerializable("a copy of the sandbox is no value".to_owned())),
        }
    }

    /// Makes a driver for a fork of the session.
    pub(super) fn forked(&self, fork: Fork<JsBody>) -> Rc<Self> {
        let session = Session::forked(fork).with_budget(self.budget());
        Self::with_session(
            self.glue.clone(),
            self.options.clone(),
            session,
            self.on_query.clone(),
            None,
        )
    }

    /// Makes the outcome of an execution for a caller in Rust.
    fn ran(
        &self,
        mut execution: Box<CodeExecution>,
        last: Option<Encoded<JsBody>>,
        displays: &Array,
    ) -> Result<Ran, Error> {
        let last = self.complete(&mut execution, last);
        if displays.length() > 0 {
            execution.displays = js_sys::JSON::stringify(displays)
                .ok()
                .and_then(|json| serde_json::from_str(&String::from(json)).ok())
                .ok_or_else(|| Error::NotSerializable("the displays could not be read".to_owned()))?;
        }
        Ok((execution, last))
    }

    /// Completes the report of an execution. Returns the final answer, if the code declared one.
    fn complete(&self, execution: &mut CodeExecution, last: Option<Encoded<JsBody>>) -> Option<JsValue> {
        if self.server.is_some() && execution.outcome == Outcome::Timeout {
            execution.killer = execution.killer.or(Some(Killer::Timeout));
        }
        last.map(|last| decode(&last)).transpose().unwrap_or_else(|error| {
            execution.outcome = Outcome::Error;
            execution.error_type = Some("NotSerializable".to_owned());
            execution.error = Some(format!("NotSerializable: the final value: {error}"));
            None
        })
    }

    fn print(&self, ticket: Ticket, stream: Stream, text: &str) {
        let waiters = self.waiters.borrow();
        let waiter = waiters.get(&ticket);
        let on_output = waiter.and_then(|waiter| waiter.on_output.clone());
        let (own, all) = match stream {
            Stream::Stderr => (
                waiter.and_then(|waiter| waiter.watch.on_stderr.clone()),
                &self.options.on_stderr,
            ),
            _ => (
                waiter.and_then(|waiter| waiter.watch.on_stdout.clone()),
                &self.options.on_stdout,
            ),
        };
        drop(waiters);
        if let Some(on_output) = on_output {
            on_output(stream, text);
        }
        for callback in own.iter().chain(all) {
            notify(callback, &text.into());
        }
    }

    fn display(&self, ticket: Ticket, mime: &str, body: &JsBody) {
        let shown = display(mime, body);
        let waiters = self.waiters.borrow();
        let own = waiters.get(&ticket).and_then(|waiter| {
            waiter.displays.push(&shown);
            waiter.watch.on_display.clone()
        });
        drop(waiters);
        for callback in own.iter().chain(&self.options.on_display) {
            notify(callback, &shown);
        }
    }

    fn progress(&self, stage: &str) {
        if let Some(callback) = &self.options.on_progress {
            notify(callback, &object(&[("stage", &stage.into())]));
        }
    }
}

/// Makes the object that an execution's promise resolves to.
fn show(execution: &CodeExecution, last: Option<JsValue>, displays: &Array) -> Result<JsValue, Error> {
    // One JSON text and one parse cost less than setting each property across the boundary.
    let object = serde_json::to_string(execution)
        .ok()
        .and_then(|json| js_sys::JSON::parse(&json).ok())
        .ok_or_else(|| Error::NotSerializable("the execution could not be shown".to_owned()))?;
    if displays.length() > 0 {
        let _ = Reflect::set(&object, &"displays".into(), displays);
    }
    if let Some(value) = last {
        let _ = Reflect::set(&object, &"final".into(), &self::object(&[("value", &value)]));
    }
    Ok(object)
}

/// Calls a listener. An error that the listener throws goes to the console only, so that it cannot disturb the sandbox.
pub(super) fn notify(callback: &Function, value: &JsValue) {
    if let Err(error) = callback.call1(&JsValue::UNDEFINED, value) {
        web_sys::console::error_1(&error);
    }
}
