//! Carries out what the session wants: the only part that has side effects.

mod ahead;
mod host_calls;
mod packages;
mod remote;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;

use gloo_timers::callback::Timeout;
use js_sys::{Array, Function, JsString, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::{AbortController, Blob};

pub(crate) use self::ahead::Written;
use self::ahead::{Ahead, Rested, Second};
pub(crate) use self::host_calls::{Asked, OnQuery};
use super::assets::{self, Assets};
use super::budget;
use super::convert::{decode, decode_text, display};
use super::glue::{Glue, describe, now, object, random, thrown};
use super::guest_frame::Guest;
use super::options::{ExecuteOptions, Isolation, Options};
use super::outbox::{JsBody, join};
use super::remote::{RemoteGuest, Server};
use super::sandbox::Sandbox;
use super::snapshot::{self, Maker};
use super::spares::Claim;
use sandglass_core::budget::{Budget, BudgetLimits};
use sandglass_core::error::Error;
use sandglass_core::execution::{CodeExecution, Killer, Outcome};
use sandglass_core::protocol::{Encoding, Event, GuestInfo, Request, Stream};
use sandglass_core::session::{Command, Effect, Encoded, Input, Reply, Session, Ticket};

/// UTF-16 units of an event's header. The longest that a guest of ours sends holds its variables' names.
const MAX_HEADER: u32 = 4 << 20;

/// Time that a guest that was started before may take to answer, in milliseconds: the page may have done something to it.
const SPARE_MS: u32 = 2_000;

/// Bytes of a piece of a body, at least.
const MIN_PIECE: u32 = 1 << 19;

/// One session and everything around it.
pub(super) struct Driver {
    this: Weak<Self>,
    glue: Glue,
    options: Rc<Options>,
    session: RefCell<Session<JsBody>>,
    guest: RefCell<Option<Guest>>,
    /// Where guests run instead of here, and the one that does.
    server: Option<Rc<Server>>,
    remote: RefCell<Option<RemoteGuest>>,
    /// Runs code ahead, and may take the other's place.
    second: RefCell<Option<Second>>,
    /// Has done so, or has been replaced by it, and may do so again.
    rested: RefCell<Option<Rested>>,
    /// What a guest was sent first that runs code ahead.
    init_ahead: RefCell<Option<Request>>,
    /// The number of the guest, so that nothing of an earlier one arrives.
    generation: Cell<u32>,
    last_generation: Cell<u32>,
    effects: RefCell<VecDeque<Effect<JsBody>>>,
    busy: Cell<bool>,
    last_ticket: Cell<Ticket>,
    waiters: RefCell<HashMap<Ticket, Waiter>>,
    calls: RefCell<HashMap<u32, AbortController>>,
    /// The guest's numbers of calls that it is blocked in.
    blocked: RefCell<HashSet<u32>>,
    timer: RefCell<Option<(f64, Timeout)>>,
    /// Itself, once nobody holds the sandbox any more but somebody still waits for an answer.
    abandoned: RefCell<Option<Rc<Self>>>,
    parts: RefCell<Parts>,
    /// Held while its guest makes the page's snapshot, or is the first to start from it.
    maker: RefCell<Option<Maker>>,
    /// Its share of the page's spare guests; none where guests run on a server.
    claim: Option<Claim>,
    /// While a guest that was a spare is not ready: goes off when that takes too long.
    spare: RefCell<Option<Timeout>>,
    /// What such a guest was sent first: should it fail, another one gets it.
    init: RefCell<Option<Request>>,
    /// What was prepared for code that had not come yet.
    ahead: RefCell<Ahead>,
    /// Aborted when the user is done with the sandbox. There is one only where something waits for that: Chromium keeps one that was
    /// made for nothing.
    ended: RefCell<Option<AbortController>>,
    /// How much code is being read that comes piece by piece.
    reading: Cell<u32>,
    /// Answers Python's queries, where the page does not.
    on_query: Option<OnQuery>,
}

/// The pieces of a body that is still to come.
#[derive(Default)]
struct Parts {
    text: Option<JsString>,
    bytes: Vec<Uint8Array>,
    size: f64,
}

/// Takes what became of a command, with what the execution has shown.
type Settle = Box<dyn FnOnce(&Driver, Result<Reply<JsBody>, Error>, &Array)>;

/// Hears what an execution prints.
pub(crate) type OnOutput = Rc<dyn Fn(Stream, &str)>;

/// An execution that has ended, and the value that it declared final.
pub(crate) type Ran = (Box<CodeExecution>, Option<JsValue>);

/// Who waits for a command.
struct Waiter {
    settle: Settle,
    on_output: Option<OnOutput>,
    on_stdout: Option<Function>,
    on_stderr: Option<Function>,
    on_display: Option<Function>,
    /// What the execution has shown so far.
    displays: Array,
    on_progress: Option<Function>,
}

impl Driver {
    pub(super) fn new(glue: Glue, options: Options) -> Rc<Self> {
        Self::with_queries(glue, options, None)
    }

    /// One whose queries are answered by `on_query`, where that is given, and not by functions of the page.
    pub(super) fn with_queries(glue: Glue, options: Options, on_query: Option<OnQuery>) -> Rc<Self> {
        let mut names: Vec<String> = options.host_functions.iter().map(|(name, _)| name.clone()).collect();
        let answers_all = on_query.is_some();
        names.extend((answers_all || options.on_llm_query.is_some()).then(|| "llm_query".to_owned()));
        names.extend((answers_all || options.on_rlm_query.is_some()).then(|| "rlm_query".to_owned()));
        let budget = match &options.budget {
            budget::Given::Limits(limits) => Budget::new(*limits, now()),
            budget::Given::Shared(budget) => budget.clone(),
        };
        let session = Session::new(options.limits.clone(), names)
            .with_budget(budget)
            .with_profile(options.profile, options.output_fields.clone());
        Self::with_session(glue, Rc::new(options), session, on_query)
    }

    fn with_session(glue: Glue, options: Rc<Options>, session: Session<JsBody>, on_query: Option<OnQuery>) -> Rc<Self> {
        let server = options
            .backend
            .as_ref()
            .map(|backend| Server::new(backend, &options.limits));
        let session = if server.is_none() {
            session.with_pings(random())
        } else {
            session
        };
        let claim = server.is_none().then(|| Claim::new(&glue, &options));
        let session = if options.predictions {
            session.with_guesses()
        } else {
            session
        };
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            glue,
            options,
            session: RefCell::new(session),
            guest: RefCell::default(),
            server,
            remote: RefCell::default(),
            second: RefCell::default(),
            rested: RefCell::default(),
            init_ahead: RefCell::default(),
            generation: Cell::default(),
            last_generation: Cell::default(),
            effects: RefCell::default(),
            busy: Cell::default(),
            last_ticket: Cell::default(),
            waiters: RefCell::default(),
            calls: RefCell::default(),
            blocked: RefCell::default(),
            timer: RefCell::default(),
            abandoned: RefCell::default(),
            parts: RefCell::default(),
            maker: RefCell::default(),
            claim,
            spare: RefCell::default(),
            init: RefCell::default(),
            ahead: RefCell::default(),
            ended: RefCell::default(),
            reading: Cell::default(),
            on_query,
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

    /// A promise of what becomes of a command.
    pub(super) fn submit(&self, command: Command<JsBody>, options: ExecuteOptions) -> Promise {
        let ticket = self.next_ticket();
        let ExecuteOptions {
            signal,
            on_stdout,
            on_stderr,
            on_display,
            on_progress,
            ..
        } = options;
        let (mut on_stdout, mut on_stderr) = (on_stdout, on_stderr);
        let (mut on_display, mut on_progress) = (on_display, on_progress);
        let promise = Promise::new(&mut |resolve, reject| {
            let settle: Settle = Box::new(move |driver, reply, displays| {
                let _ = match reply.and_then(|reply| driver.present(reply, displays)) {
                    Ok(value) => resolve.call1(&JsValue::UNDEFINED, &value),
                    Err(error) => reject.call1(&JsValue::UNDEFINED, &thrown(&driver.glue, &error)),
                };
            });
            let waiter = Waiter {
                settle,
                on_output: None,
                on_stdout: on_stdout.take(),
                on_stderr: on_stderr.take(),
                on_display: on_display.take(),
                displays: Array::new(),
                on_progress: on_progress.take(),
            };
            self.waiters.borrow_mut().insert(ticket, waiter);
        });
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

    fn next_ticket(&self) -> Ticket {
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        ticket
    }

    /// Has code run for Rust. `ended` is told what became of it.
    pub(super) fn run(
        &self,
        code: String,
        on_output: Option<OnOutput>,
        ended: impl FnOnce(Result<Ran, Error>) + 'static,
    ) {
        self.load_imported(&code);
        let ticket = self.next_ticket();
        let settle: Settle = Box::new(move |driver, reply, displays| {
            ended(match reply {
                Ok(Reply::Execution(execution, last)) => driver.ran(execution, last, displays),
                Ok(_) => Err(Error::NotSerializable("the execution could not be read".to_owned())),
                Err(error) => Err(error),
            });
        });
        let waiter = Waiter {
            settle,
            on_output,
            on_stdout: None,
            on_stderr: None,
            on_display: None,
            displays: Array::new(),
            on_progress: None,
        };
        self.waiters.borrow_mut().insert(ticket, waiter);
        let execute = Command::Execute {
            code,
            timeout_ms: None,
            budget: BudgetLimits::default(),
        };
        self.feed(Input::Command(ticket, execute));
    }

    /// The same for a command whose value is still on its way.
    pub(super) fn submit_later(
        &self,
        command: Command<JsBody>,
        value: impl Future<Output = Result<Encoded<JsBody>, Error>> + 'static,
    ) -> Promise {
        let promise = self.submit(command, ExecuteOptions::default());
        let (ticket, this) = (self.last_ticket.get(), self.this.clone());
        spawn_local(async move {
            let value = value.await;
            if let Some(driver) = this.upgrade() {
                driver.feed(Input::Arrived(ticket, value));
            }
        });
        promise
    }

    /// Takes the command back when `signal` says so; listens no longer than it runs.
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

    /// The sandbox was dropped: it ends when the last answer is given.
    pub(super) fn abandon(self: &Rc<Self>) {
        if !self.is_awaited() {
            self.feed(Input::Destroy);
        } else {
            self.abandoned.replace(Some(self.clone()));
        }
    }

    /// Gives the session an input and does what follows from it.
    pub(super) fn feed(&self, input: Input<JsBody>) {
        let effects = self.session.borrow_mut().handle(now(), input);
        self.follow(effects);
    }

    fn follow(&self, effects: Vec<Effect<JsBody>>) {
        self.effects.borrow_mut().extend(effects);
        // A callback of the user's may come back in here; its effects wait for their turn.
        if !self.busy.replace(true) {
            while let Some(effect) = self.next_effect() {
                let promotes = matches!(effect, Effect::Promote);
                self.carry_out(effect);
                if promotes {
                    // What the guest has said already is not told before `execute` has returned.
                    let this = self.this.clone();
                    return spawn_local(async move {
                        if let Some(driver) = this.upgrade() {
                            driver.busy.set(false);
                            driver.follow(Vec::new());
                        }
                    });
                }
            }
            self.busy.set(false);
            self.set_timer();
            match (&self.claim, self.session.borrow().is_destroyed()) {
                (Some(claim), true) => {
                    drop(self.rested.take());
                    claim.release();
                }
                (Some(claim), false) => claim.fill_when_idle(self.session.borrow().is_idle()),
                (None, true) => self.hang_up(),
                (None, false) => {}
            }
            let is_destroyed = self.session.borrow().is_destroyed();
            if is_destroyed && let Some(ended) = self.ended.take() {
                ended.abort();
            }
            if !self.is_awaited()
                && let Some(driver) = self.abandoned.take()
            {
                driver.feed(Input::Destroy);
            }
        }
    }

    /// Whether somebody waits for an answer.
    fn is_awaited(&self) -> bool {
        !self.waiters.borrow().is_empty() || self.reading.get() > 0
    }

    fn next_effect(&self) -> Option<Effect<JsBody>> {
        self.effects.borrow_mut().pop_front()
    }

    /// Keeps one timer that goes off no later than the session wants to be woken.
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
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to what a timer can count"
        )]
        let ms = (at - now()).ceil().clamp(0.0, f64::from(i32::MAX)) as u32;
        let timeout = Timeout::new(ms, move || {
            if let Some(driver) = this.upgrade() {
                driver.timer.replace(None);
                driver.feed(Input::Tick);
            }
        });
        self.timer.replace(Some((at, timeout)));
    }

    fn carry_out(&self, effect: Effect<JsBody>) {
        match effect {
            Effect::Boot => self.boot(),
            Effect::Kill => self.kill(),
            Effect::Rest => {} // of the second guest only
            Effect::Ahead(effect) => self.carry_out_ahead(*effect),
            Effect::Promote => self.promote(),
            Effect::Post(request, body) => self.post(request, body),
            Effect::Restore(request, blobs) | Effect::Install(request, blobs) => {
                if let Some(guest) = &*self.guest.borrow() {
                    guest.post_blobs(&request, blobs);
                }
            }
            Effect::Fetch(ticket, wanted) => self.fetch(ticket, wanted),
            Effect::CallHost {
                call,
                name,
                args,
                budget,
            } => self.call_host(call, &name, &args, &budget),
            Effect::Progress(progress) => self.calls_progress(&progress),
            Effect::AbortHost(call) => {
                if let Some(controller) = self.calls.borrow_mut().remove(&call) {
                    controller.abort();
                }
            }
            Effect::Print(ticket, stream, text) => self.print(ticket, stream, &text),
            Effect::Display { ticket, mime, body, .. } => self.display(ticket, &mime, &body),
            Effect::Resolve(ticket, reply) => {
                let waiter = self.waiters.borrow_mut().remove(&ticket);
                if let Some(Waiter { settle, displays, .. }) = waiter {
                    settle(self, reply, &displays);
                }
            }
        }
    }

    // ---- the guest ----

    fn boot(&self) {
        if let Some(server) = &self.server {
            return self.boot_remotely(server);
        }
        let spare = self.claim.as_ref().and_then(Claim::take);
        let Some(guest) = spare else {
            return self.boot_anew();
        };
        self.next_generation();
        self.guest.replace(Some(guest));
        let this = self.of_generation(self.generation.get());
        let watch = Timeout::new(SPARE_MS, move || {
            this(&|driver| driver.guest_failed(Input::BadMessage("a spare that does not answer".to_owned())));
        });
        self.spare.replace(Some(watch));
        self.adopt();
    }

    fn next_generation(&self) -> u32 {
        let next = self.last_generation.get() + 1;
        self.last_generation.set(next);
        self.generation.set(next);
        next
    }

    /// Starts a guest from its files.
    fn boot_anew(&self) {
        let generation = self.next_generation();
        match Guest::open(&self.glue, self.options.isolation) {
            Ok(guest) => drop(self.guest.replace(Some(guest))),
            Err(error) => return self.feed(Input::GuestLost(Error::BootFailed(describe(&error)))),
        }
        self.progress("assets");
        let this = self.of_generation(generation);
        let isolation = self.options.isolation;
        let base = self.options.assets_url(&self.glue);
        let glue = self.glue.clone();
        spawn_local(async move {
            let started = start(&base, &glue, isolation, &this).await;
            this(&|driver| match &started {
                Ok(()) => driver.adopt(),
                Err(error) => driver.feed(Input::GuestLost(error.clone())),
            });
        });
    }

    /// Lets messages to and from the guest through.
    fn adopt(&self) {
        let generation = self.generation.get();
        let (messages, failures) = (self.of_generation(generation), self.of_generation(generation));
        if let Some(guest) = &*self.guest.borrow() {
            guest.adopt(
                move |data| messages(&|driver| driver.receive(&data)),
                move |why| failures(&|driver| driver.guest_failed(Input::GuestLost(Error::GuestLost(why.clone())))),
            );
        }
    }

    /// The guest says that it is gone, or could not start. A spare that failed is no reason to fail: another guest is started.
    fn guest_failed(&self, input: Input<JsBody>) {
        match self.spare.take().and_then(|_| self.init.take()) {
            Some(init) => {
                self.boot_anew();
                self.post(init, None);
            }
            None => self.feed(input),
        }
    }

    /// Does something with the guest that is being started.
    fn with_guest(&self, act: impl FnOnce(&mut Guest) -> Result<(), JsValue>) {
        let done = self.guest.borrow_mut().as_mut().map(act);
        if let Some(Err(error)) = done {
            self.feed(Input::GuestLost(Error::BootFailed(describe(&error))));
        }
    }

    /// Runs something on the driver, as long as it is there and its guest is still this one.
    fn of_generation(&self, generation: u32) -> impl Fn(&dyn Fn(&Self)) + 'static {
        let this = self.this.clone();
        move |act| {
            if let Some(driver) = this.upgrade()
                && (driver.generation.get() == generation || driver.is_second(generation))
            {
                act(&driver);
            }
        }
    }

    fn kill(&self) {
        if self.guest.borrow().as_ref().is_some_and(|guest| !guest.is_adopted()) {
            assets::forget(); // a fetch that hangs must not hold up the next sandbox
        }
        self.next_generation();
        self.guest.replace(None);
        drop(self.remote.take());
        self.parts.take();
        self.blocked.take();
        self.maker.take();
        self.init.take();
        self.spare.take();
    }

    fn post(&self, request: Request, body: Option<JsBody>) {
        if let Some(guest) = &*self.remote.borrow() {
            return guest.post(request, body);
        }
        let guest = self.guest.borrow();
        let Some(guest) = guest.as_ref() else { return };
        if let Request::Init { .. } = request
            && self.spare.borrow().is_some()
        {
            self.init.replace(Some(request.clone()));
        }
        let blocked = match &request {
            Request::HostReply { call, .. } => self.blocked.borrow_mut().remove(call),
            Request::Interrupt { .. } => {
                self.blocked.take();
                // It may be blocked or not; it takes the first that it hears and ignores the second.
                if self.session.borrow().info().bridge == "atomics" {
                    guest.post_blocked(&request, None);
                }
                false
            }
            _ => false,
        };
        if blocked {
            guest.post_blocked(&request, body)
        } else {
            guest.post(request, body)
        }
    }

    /// A message from the guest; it is not to be trusted.
    fn receive(&self, data: &JsValue) {
        let events = match self.read_into(&self.parts, data) {
            Ok(events) => events,
            Err(what) => return self.feed(Input::BadMessage(what)),
        };
        if let [(event @ Event::Snapshot { .. }, _)] = &events[..] {
            return self.take_snapshot(data, event);
        }
        if self.take_all(events) {
            self.init.take();
            self.spare.take();
            snapshot::prove(&self.options.assets_url(&self.glue));
            self.maker.take();
            self.progress("ready");
        }
    }

    /// Takes a message's events, as long as their guest is there; whether it has become ready.
    fn take_all(&self, events: Vec<(Event, Option<JsBody>)>) -> bool {
        let generation = self.generation.get();
        let mut has_become_ready = false;
        for (event, body) in events {
            if let Event::HostCall {
                call, blocking: true, ..
            } = &event
            {
                self.blocked.borrow_mut().insert(*call);
            }
            has_become_ready |= matches!(event, Event::Ready { .. });
            if let Event::BootFailed { .. } = event {
                self.guest_failed(Input::Guest(event, None));
                return false;
            }
            self.feed(Input::Guest(event, body));
            if self.generation.get() != generation {
                return false;
            }
        }
        has_become_ready
    }

    /// Memory that later guests start from. Only a guest that has run no code yet may offer it.
    fn take_snapshot(&self, message: &JsValue, event: &Event) {
        let blob = message.unchecked_ref::<Array>().get(1).dyn_into::<Blob>();
        match (blob, event) {
            (Ok(blob), Event::Snapshot { reason }) if self.session.borrow().is_booting() => {
                if let (Some(reason), Some(callback)) = (reason, &self.options.on_progress) {
                    let reason: String = reason.chars().take(300).collect();
                    notify(
                        callback,
                        &object(&[("stage", &"cold".into()), ("reason", &reason.into())]),
                    );
                }
                snapshot::keep(&self.options.assets_url(&self.glue), &self.glue, blob);
                self.maker.take();
            }
            _ => self.feed(Input::BadMessage("an unasked snapshot".to_owned())),
        }
    }

    /// The events of a message, each with its body.
    fn read_into(&self, parts: &RefCell<Parts>, data: &JsValue) -> Result<Vec<(Event, Option<JsBody>)>, String> {
        let message: &Array = data.dyn_ref().ok_or("a message that is no array")?;
        let header: JsString = message.get(0).dyn_into().map_err(|_| "a header that is no text")?;
        if header.length() > MAX_HEADER {
            return Err("an oversized header".to_owned());
        }
        let events = parse(&String::from(header))?;
        match &events[..] {
            [Event::Snapshot { .. }] => return Ok(events.into_iter().map(|event| (event, None)).collect()),
            [saved @ Event::Saved { .. }] => {
                let blob = message.get(1).dyn_into().map_err(|_| "a checkpoint that is no Blob")?;
                return Ok(vec![(saved.clone(), Some(JsBody::Blob(blob)))]);
            }
            _ => {}
        }
        self.with_bodies(parts, events, &message.slice(1, message.length()))
    }

    /// The events, each with its body.
    fn with_bodies(
        &self,
        parts: &RefCell<Parts>,
        events: Vec<Event>,
        bodies: &Array,
    ) -> Result<Vec<(Event, Option<JsBody>)>, String> {
        let body_of = |at| bodies.get(at).dyn_into::<Uint8Array>();
        let is_a_save = |event: &Event| matches!(event, Event::Saved { .. } | Event::Snapshot { .. });
        if events.iter().any(is_a_save) {
            return Err("a checkpoint that is no Blob, or not alone".to_owned());
        }
        if bodies.length() as usize != events.iter().filter(|event| event.has_body()).count() {
            return Err("a message with bodies that are not its events'".to_owned());
        }
        // A piece is alone in its message and of full size, so that their number is bounded with their sum.
        if let Some(part) = events.iter().position(|event| matches!(event, Event::Part { .. })) {
            let body = body_of(0).map_err(|_| "a body that is not bytes")?;
            if events.len() > 1 || body.length() < MIN_PIECE {
                return Err("a piece of a body that is none".to_owned());
            }
            return self.keep_part(parts, &events[part], body);
        }
        let mut next = 0;
        let mut size = parts.borrow().size;
        events
            .into_iter()
            .map(|event| {
                if !event.has_body() {
                    return Ok((event, None));
                }
                let body = body_of(next).map_err(|_| "a body that is not bytes")?;
                next += 1;
                size += f64::from(body.length());
                if size > self.options.limits.max_value_bytes {
                    return Err("a message larger than maxValueSize".to_owned());
                }
                Ok((event, Some(whole(parts, body))))
            })
            .collect()
    }

    /// Keeps a piece of a body that is still to come. A long text is decoded a piece at a time, and never holds the page up.
    fn keep_part(
        &self,
        parts: &RefCell<Parts>,
        event: &Event,
        body: Uint8Array,
    ) -> Result<Vec<(Event, Option<JsBody>)>, String> {
        let Parts { text, bytes, size } = &mut *parts.borrow_mut();
        *size += f64::from(body.length());
        if *size > self.options.limits.max_value_bytes {
            return Err("a body larger than maxValueSize".to_owned());
        }
        match event {
            Event::Part {
                encoding: Encoding::Text,
            } => {
                let so_far = text.take().unwrap_or_else(|| "".into());
                *text = Some(so_far.concat(&decode_text(&body)));
            }
            _ => bytes.push(body),
        }
        Ok(Vec::new())
    }

    // ---- the user's functions ----

    /// What a reply resolves to.
    fn present(&self, reply: Reply<JsBody>, displays: &Array) -> Result<JsValue, Error> {
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
            Reply::Fork(fork) => {
                let session = Session::forked(*fork).with_budget(self.budget());
                let driver =
                    Self::with_session(self.glue.clone(), self.options.clone(), session, self.on_query.clone());
                // Resolved when another guest has the state.
                let ready = driver.submit(Command::Checkpoint, ExecuteOptions::default());
                let sandbox = Sandbox::new(driver);
                Ok(future_to_promise(async move {
                    JsFuture::from(ready).await?;
                    Ok(sandbox.into())
                })
                .into())
            }
        }
    }

    /// What an execution comes to in Rust.
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

    /// Completes what an execution says; the value that it declared final.
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
                waiter.and_then(|waiter| waiter.on_stderr.clone()),
                &self.options.on_stderr,
            ),
            _ => (
                waiter.and_then(|waiter| waiter.on_stdout.clone()),
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
            waiter.on_display.clone()
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

/// A body with the pieces that came before it.
fn whole(parts: &RefCell<Parts>, body: Uint8Array) -> JsBody {
    let Parts { text, mut bytes, .. } = parts.take();
    if let Some(text) = text {
        return JsBody::Text(text.concat(&decode_text(&body)));
    }
    bytes.push(body);
    JsBody::Bytes(join(&bytes))
}

/// The events of a message.
fn parse(header: &str) -> Result<Vec<Event>, String> {
    let events: Vec<Event> = serde_json::from_str(header).map_err(|error| error.to_string())?;
    if events.is_empty() {
        return Err("a message without an event".to_owned());
    }
    Ok(events)
}

/// Starts a guest in the place that it has. Within a frame, Python starts while its files are still being checked: it hears and
/// says nothing until they are.
async fn start(
    base: &str,
    glue: &Glue,
    isolation: Isolation,
    on_driver: &impl Fn(&dyn Fn(&Driver)),
) -> Result<(), Error> {
    let assets = Assets::load(base, glue);
    let launched = async {
        let script = assets.script().await?;
        on_driver(&|driver| driver.with_guest(|guest| guest.launch(glue, &script)));
        if isolation == Isolation::Worker {
            assets.verified().await?;
        }
        assets.pyodide().await
    };
    let (pyodide, (snapshot, maker)) = both(launched, snapshot::find(base, glue)).await;
    let pyodide = pyodide?;
    let maker = Cell::new(maker);
    on_driver(&|driver| {
        driver.maker.replace(maker.take());
        driver.progress("python");
        driver.with_guest(|guest| guest.furnish(&pyodide, snapshot.as_ref()));
    });
    assets.verified().await
}

/// What both come to, at the same time.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(context)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (first, second) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

/// What an execution resolves to.
fn show(execution: &CodeExecution, last: Option<JsValue>, displays: &Array) -> Result<JsValue, Error> {
    // One text and one parse cross faster than a property at a time.
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

/// Calls a function that only wants to know; what it throws is its own affair.
pub(super) fn notify(callback: &Function, value: &JsValue) {
    if let Err(error) = callback.call1(&JsValue::UNDEFINED, value) {
        web_sys::console::error_1(&error);
    }
}
