//! A host and a guest for a session to live between. What a driver may rely on is asserted after every single input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sandglass_core::budget::{Budget, BudgetLimits};
use sandglass_core::execution::{CodeExecution, LostVariable};
use sandglass_core::limits::{Limits, MAX_COPIES};
use sandglass_core::predictions::{Prediction, Source, Tally};
use sandglass_core::protocol::{
    Encoding, Ended, Event, ExecutionReport, GuestInfo, PROTOCOL_VERSION, ReplyStatus, Request, Stream,
    SurveyedVariable,
};
use sandglass_core::session::{
    Call, Command, Effect, Encoded, Execute, GuestEffect, GuestInput, HostEffect, Input, Kept, RecordChange, Reply,
    Series, Session, ShadowId, Slot, Target, Ticket, VariableCommand,
};
use sandglass_core::{Error, Profile};

pub(crate) type Bytes = Vec<u8>;
pub(crate) type Answer = Result<Reply<Bytes>, Error>;

/// The world's view of the guest that lives.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    /// The requests that the session sent it, in order.
    pub(crate) inbox: Vec<(Request, Option<Bytes>)>,
    /// The number of the request that it has to answer.
    pub(crate) exchange: Option<u32>,
    /// The checkpoint that it was asked for, and whether it has to be a full one.
    pub(crate) saving: Option<(u32, bool)>,
    /// The exchange that it was asked to stop.
    pub(crate) interrupted: Option<u32>,
    /// Its calls that are not answered.
    pub(crate) asked: BTreeSet<u32>,
    pub(crate) ready: bool,
    /// True when it was asked if it may take over.
    pub(crate) promoting: bool,
    /// True when it waits for more of its code.
    pub(crate) waiting: bool,
    /// The checks that it was asked for and has not answered.
    pub(crate) checks: VecDeque<u32>,
    /// The survey that it was asked for.
    pub(crate) survey: Option<u32>,
    ping: Option<u32>,
}

/// A session, the driver's side of it, and a clock.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) session: Session<Bytes>,
    pub(crate) now: f64,
    pub(crate) guest: Option<Guest>,
    /// Those that run code ahead.
    pub(crate) shadows: BTreeMap<ShadowId, Guest>,
    /// The one that is meant: the newest, if a test says nothing else.
    pub(crate) at: ShadowId,
    /// The number of the newest shadow.
    last_shadow: ShadowId,
    /// The most shadows at a time, and the most that are at work.
    pub(crate) most: (usize, usize),
    pub(crate) boots: usize,
    pub(crate) answers: BTreeMap<Ticket, Answer>,
    /// Host calls under way: what was called with what.
    pub(crate) calls: BTreeMap<u32, (String, Bytes)>,
    pub(crate) aborted: BTreeSet<u32>,
    /// Host calls that were begun before their code was asked for, and whether each has returned.
    pub(crate) begun: BTreeMap<u32, bool>,
    last_begun: u32,
    /// Commands whose value is still on its way.
    pub(crate) awaited: BTreeSet<Ticket>,
    pub(crate) printed: String,
    pub(crate) shown: Vec<(String, Bytes)>,
    /// The progress of the calls that Python made at once: done, failed, total.
    pub(crate) progress: Vec<(u32, u32, u32)>,
    pub(crate) destroyed: bool,
    /// Commands whose packages are being fetched.
    pub(crate) fetching: BTreeSet<Ticket>,
    /// The number of times that the session was to be kept.
    pub(crate) keeps: usize,
    /// The session that was last to be kept.
    pub(crate) last_kept: Option<Kept<Bytes>>,
    /// The changes of records that were to be written.
    pub(crate) noted: Vec<RecordChange<Bytes>>,
    limits: Limits,
    tickets: Ticket,
    last_turn: u32,
    last_call: u32,
    last_guest_call: u32,
}

/// Small limits, so that tests reach them.
pub(crate) fn limits() -> Limits {
    Limits {
        timeout_ms: 1_000.0,
        wall_timeout_ms: None,
        host_call_timeout_ms: 5_000.0,
        grace_period_ms: 100.0,
        boot_timeout_ms: 10_000.0,
        max_output_chars: 100,
        max_host_calls: 5,
        max_concurrent_host_calls: 2,
        max_code_chars: 1_000,
        max_value_bytes: 1_000.0,
        checkpoints: false,
        ..Limits::default()
    }
}

impl World {
    /// A session without a guest.
    pub(crate) fn new(limits: Limits) -> Self {
        let names = ["ask", "look", "llm_query", "rlm_query"];
        let session = Session::new(limits.clone(), names.map(str::to_owned).to_vec());
        Self::with(limits, session)
    }

    pub(crate) fn with(limits: Limits, session: Session<Bytes>) -> Self {
        Self {
            session,
            now: 1_000.0,
            guest: None,
            shadows: BTreeMap::new(),
            at: 0,
            last_shadow: 0,
            most: (limits.max_shadows.unwrap_or(MAX_COPIES) as usize, 1),
            boots: 0,
            answers: BTreeMap::new(),
            calls: BTreeMap::new(),
            aborted: BTreeSet::new(),
            begun: BTreeMap::new(),
            last_begun: 0,
            awaited: BTreeSet::new(),
            printed: String::new(),
            shown: Vec::new(),
            progress: Vec::new(),
            destroyed: false,
            fetching: BTreeSet::new(),
            keeps: 0,
            last_kept: None,
            noted: Vec::new(),
            limits,
            tickets: 0,
            last_turn: 0,
            last_call: 0,
            last_guest_call: 0,
        }
    }

    /// A session whose guest runs and has its context.
    pub(crate) fn ready() -> Self {
        Self::ready_with(limits())
    }

    pub(crate) fn ready_with(limits: Limits) -> Self {
        Self::new(limits).begun()
    }

    /// One whose calls of models are bounded, from now on.
    pub(crate) fn ready_within(budget: BudgetLimits) -> Self {
        Self::ready_with_profile(Profile::Default, budget)
    }

    pub(crate) fn ready_with_profile(profile: Profile, budget: BudgetLimits) -> Self {
        let mut world = Self::new(limits());
        let session = std::mem::replace(&mut world.session, Session::new(limits(), Vec::new()));
        let session = session.with_profile(profile, Vec::new());
        world.session = session.with_budget(Budget::new(budget, world.now));
        world.begun()
    }

    pub(crate) fn begun(mut self) -> Self {
        let world = &mut self;
        let ticket = world.command(assign_context("the context"));
        world.boot();
        world.done();
        assert_eq!(world.answer(ticket), &Ok(Reply::Done));
        self
    }

    // ---- the user ----

    pub(crate) fn command(&mut self, command: Command<Bytes>) -> Ticket {
        self.tickets += 1;
        self.feed(Input::Command(self.tickets, command));
        self.tickets
    }

    pub(crate) fn execute(&mut self, code: &str) -> Ticket {
        self.command(Command::Execute(Execute::of(code)))
    }

    pub(crate) fn get(&mut self, name: &str) -> Ticket {
        self.command(get(name))
    }

    /// The number of commands that were given.
    pub(crate) fn tickets(&self) -> Ticket {
        self.tickets
    }

    pub(crate) fn is_pending(&self, ticket: Ticket) -> bool {
        !self.answers.contains_key(&ticket)
    }

    pub(crate) fn answer(&self, ticket: Ticket) -> &Answer {
        self.answers.get(&ticket).expect("the command is not resolved")
    }

    pub(crate) fn error(&self, ticket: Ticket) -> &Error {
        self.answer(ticket).as_ref().expect_err("the command went well")
    }

    pub(crate) fn code_of(&self, ticket: Ticket) -> &'static str {
        self.error(ticket).code()
    }

    pub(crate) fn execution(&self, ticket: Ticket) -> &CodeExecution {
        match self.answer(ticket) {
            Ok(Reply::Execution(execution, _)) => execution,
            other => panic!("not an execution: {other:?}"),
        }
    }

    /// The message of an execution that did not end well.
    pub(crate) fn failure(&self, ticket: Ticket) -> &str {
        self.execution(ticket)
            .error
            .as_deref()
            .expect("the execution went well")
    }

    /// The names that an execution said were lost.
    pub(crate) fn lost(&self, ticket: Ticket) -> Vec<&str> {
        let lost = self.execution(ticket).state.lost.iter().flatten();
        lost.map(|variable| variable.name.as_str()).collect()
    }

    // ---- the guest ----

    /// The guest says that it is ready.
    pub(crate) fn boot(&mut self) {
        self.event(Event::Ready {
            version: PROTOCOL_VERSION,
            guest: GuestInfo::default(),
        });
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.feed(guest_says(event, None));
    }

    pub(crate) fn event_with(&mut self, event: Event, body: &[u8]) {
        self.feed(guest_says(event, Some(body.to_vec())));
    }

    /// The exchange that the guest is in.
    pub(crate) fn exchange(&self) -> u32 {
        self.guest
            .as_ref()
            .and_then(|guest| guest.exchange)
            .expect("the guest is idle")
    }

    /// The guest ends the save that it was asked for; whether there was one.
    pub(crate) fn saves(&mut self, well: bool) -> bool {
        if self
            .guest
            .as_ref()
            .is_some_and(|guest| guest.exchange.is_none() && guest.saving.is_none())
            && !self.destroyed
        {
            self.wait(50.0); // for the session to be idle
        }
        if well {
            return self.saves_but(&[], false);
        }
        let Some((checkpoint, _)) = self.guest.as_ref().and_then(|guest| guest.saving) else {
            return false;
        };
        self.event(Event::NotSaved {
            checkpoint,
            reason: None,
        });
        true
    }

    /// The guest saves what it was asked for, but for these variables; whether it was asked.
    pub(crate) fn saves_but(&mut self, lost: &[&str], spent: bool) -> bool {
        let Some((checkpoint, full)) = self.guest.as_ref().and_then(|guest| guest.saving) else {
            return false;
        };
        let event = Event::Saved {
            checkpoint,
            full,
            lost: unsaved(lost),
            spent,
        };
        self.event_with(event, format!("{checkpoint} {full}").as_bytes());
        true
    }

    /// The guest has the state that it was to restore.
    pub(crate) fn restored(&mut self, lost: &[&str]) {
        self.event(Event::Restored {
            exchange: self.exchange(),
            lost: unsaved(lost),
            names: None,
        });
    }

    pub(crate) fn done(&mut self) {
        self.event(Event::Done {
            exchange: self.exchange(),
        });
    }

    pub(crate) fn print(&mut self, text: &str) {
        self.event(output(self.exchange(), Stream::Stdout, text));
    }

    /// The execution ends as `report` says.
    pub(crate) fn ends(&mut self, report: ExecutionReport) {
        self.event(Event::Executed {
            exchange: self.exchange(),
            execution: report,
            encoding: Encoding::None,
        });
    }

    /// The execution ends well, and these are the user's variables now.
    pub(crate) fn ends_well(&mut self, names: &[&str]) {
        let names = Some(names.iter().map(|&name| name.to_owned()).collect());
        self.ends(ExecutionReport { names, ..ok() });
    }

    /// The guest calls a host function; the guest's number of the call.
    pub(crate) fn calls(&mut self, name: &str) -> u32 {
        self.calls_one_of(1, name)
    }

    /// The same, as one of so many calls that are made at once.
    pub(crate) fn calls_one_of(&mut self, batch: u32, name: &str) -> u32 {
        let (call, exchange) = (self.fresh_call(), self.exchange());
        let name = name.to_owned();
        self.event_with(
            Event::HostCall {
                exchange,
                call,
                batch,
                name,
                encoding: Encoding::Marshal,
                blocking: false,
            },
            b"args",
        );
        call
    }

    /// A number for a call that no call had before.
    pub(crate) fn fresh_call(&mut self) -> u32 {
        self.last_guest_call += 1;
        self.last_guest_call
    }

    /// The number of the newest call once more, which no guest of ours sends.
    pub(crate) fn same_call(&self) -> u32 {
        self.last_guest_call
    }

    /// The guest is gone, and a fresh one takes over.
    pub(crate) fn fresh_guest(&mut self) {
        self.boot();
        assert_eq!(self.asked_for(), "set context", "the context is restored first");
        self.done();
    }

    /// The last request that the guest got, in words.
    pub(crate) fn asked_for(&self) -> String {
        match self.guest.as_ref().and_then(|guest| guest.inbox.last()) {
            Some((Request::Execute { code, .. }, _)) => format!("execute {code}"),
            Some((Request::GetVariable { name, .. }, _)) => format!("get {name}"),
            Some((Request::SetVariable { name, .. }, _)) => format!("set {name}"),
            Some((Request::WriteFile { path, .. }, _)) => format!("write {path}"),
            Some((Request::Restore { checkpoint, .. }, _)) => format!("restore {checkpoint}"),
            Some((Request::Interrupt { reason, .. }, _)) => format!("interrupt {reason:?}"),
            Some((Request::Check { code, .. }, _)) => format!("check {code}"),
            Some((request, _)) => format!("{request:?}"),
            None => "nothing".to_owned(),
        }
    }

    /// The session's answer to a call of the guest's.
    pub(crate) fn reply(&self, to: u32) -> Option<(ReplyStatus, &str)> {
        self.guest
            .as_ref()?
            .inbox
            .iter()
            .find_map(|(request, body)| match request {
                Request::HostReply {
                    call, status, message, ..
                } if *call == to => {
                    let body = body.as_ref().map(|body| std::str::from_utf8(body).expect("text"));
                    Some((
                        *status,
                        body.or(message.as_deref()).expect("a reply has a body or a message"),
                    ))
                }
                _ => None,
            })
    }

    // ---- the guest that runs code ahead ----

    pub(crate) fn hint(&mut self, codes: &[&str]) {
        let predictions = (0..)
            .zip(codes)
            .map(|(id, code)| Prediction::told(id, (*code).to_owned(), Source::Explicit, 1.0 / f64::from(id + 1)));
        self.feed(Input::Hint(predictions.collect()));
    }

    /// There is so much now of code that is being written.
    pub(crate) fn writes(&mut self, code: &str) {
        self.feed(Input::Written(code.to_owned(), None));
    }

    /// The guest says what it was asked about code that was being written.
    pub(crate) fn checks(&mut self, plain: bool) {
        let check = self.guest.as_mut().and_then(|guest| guest.checks.pop_front());
        let check = check.expect("it was not asked");
        self.event(Event::Checked { check, plain });
    }

    /// The guest tells what there is.
    pub(crate) fn tells(&mut self, variables: Vec<SurveyedVariable>) {
        let survey = self.guest.as_mut().and_then(|guest| guest.survey.take());
        let survey = survey.expect("it was not asked");
        self.event(Event::Surveyed { survey, variables });
    }

    /// The last request to the guest that runs code ahead.
    pub(crate) fn shadow_told(&self) -> Option<&Request> {
        let guest = self.shadow().or(self.guest.as_ref())?;
        guest.inbox.last().map(|(request, _)| request)
    }

    /// It gets the state, and begins.
    pub(crate) fn shadow_begins(&mut self) {
        self.shadow_says(
            Event::Ready {
                version: PROTOCOL_VERSION,
                guest: GuestInfo::default(),
            },
            None,
        );
        let exchange = self.shadow_turn();
        self.shadow_says(
            Event::Restored {
                exchange,
                lost: Vec::new(),
                names: None,
            },
            None,
        );
    }

    pub(crate) fn shadow_turn(&self) -> u32 {
        let exchange = self.shadow().and_then(|guest| guest.exchange);
        exchange.expect("nothing runs ahead")
    }

    pub(crate) fn shadow_says(&mut self, event: Event, body: Option<&[u8]>) {
        if let Some(guest) = self.shadows.get_mut(&self.at) {
            match &event {
                Event::Ready { .. } => guest.ready = true,
                Event::Executed { .. } | Event::Restored { .. } | Event::Done { .. } => guest.exchange = None,
                Event::HostCall { call, .. } => drop(guest.asked.insert(*call)),
                Event::Promoted { .. } | Event::External { .. } => guest.promoting = false,
                Event::Waiting { .. } => (guest.promoting, guest.waiting) = (false, true),
                _ => {}
            }
        }
        self.shadow_sends(GuestInput::Event(event, body.map(<[u8]>::to_vec)));
    }

    /// The number of the newest shadow.
    pub(crate) fn last_shadow(&self) -> ShadowId {
        self.last_shadow
    }

    /// The guest that is meant, when it runs code ahead.
    pub(crate) fn shadow(&self) -> Option<&Guest> {
        self.shadows.get(&self.at)
    }

    /// The code that guests run ahead, the oldest first.
    pub(crate) fn runs_ahead(&self) -> Vec<&str> {
        let codes = self.shadows.values().map(|guest| {
            let mut inbox = guest.inbox.iter();
            inbox.find_map(|(request, _)| match request {
                Request::Execute { code, .. } => Some(code.as_str()),
                _ => None,
            })
        });
        codes.map(|code| code.unwrap_or("none yet")).collect()
    }

    /// The guest that is meant does this, even when it is gone.
    pub(crate) fn shadow_sends(&mut self, input: GuestInput<Bytes>) {
        self.feed(Input::Guest(Slot::Shadow(self.at), input));
    }

    pub(crate) fn shadow_ends(&mut self, report: ExecutionReport) {
        let event = Event::Executed {
            exchange: self.shadow_turn(),
            execution: report,
            encoding: Encoding::None,
        };
        self.shadow_says(event, None);
    }

    // ---- the host functions ----

    /// A host call comes back with a text.
    pub(crate) fn returns(&mut self, call: u32, value: &str) {
        self.feed(Input::HostReturned(call, Ok(text(value))));
    }

    pub(crate) fn fails(&mut self, call: u32, why: &str) {
        self.feed(Input::HostReturned(call, Err(why.to_owned())));
    }

    /// The numbers of the host calls under way.
    pub(crate) fn under_way(&self) -> Vec<u32> {
        self.calls.keys().copied().collect()
    }

    // ---- time ----

    /// Lets time pass, waking the session when it wants to be.
    pub(crate) fn wait(&mut self, ms: f64) {
        let until = self.now + ms;
        while let Some(at) = self.session.wake_at().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.feed(Input::Tick);
        }
        self.now = until;
    }

    /// The number by which the guest was last asked to prove that it is idle.
    pub(crate) fn ping(&self) -> Option<u32> {
        self.guest.as_ref()?.ping
    }

    /// The number of guests so far.
    pub(crate) fn guests(&self) -> usize {
        self.boots
    }

    /// Time passes, and nobody tells the session.
    pub(crate) fn sleep(&mut self, ms: f64) {
        self.now += ms;
    }

    /// Jumps to when the session wants to be woken; false if it does not.
    pub(crate) fn wake(&mut self) -> bool {
        let Some(at) = self.session.wake_at() else { return false };
        self.now = self.now.max(at);
        self.feed(Input::Tick);
        true
    }

    // ---- what a driver may rely on ----

    /// Hands the session an input and carries out its effects.
    pub(crate) fn feed(&mut self, input: Input<Bytes>) {
        let (destroys, ends_turn) = (matches!(input, Input::Destroy), self.ends_turn(&input));
        match (&input, &mut self.guest) {
            (Input::Fetched(ticket, _) | Input::Cancel(ticket), _) => drop(self.fetching.remove(ticket)),
            (Input::HostReturned(call, _), _) => {
                self.calls.remove(call);
                self.begun.entry(*call).and_modify(|returned| *returned = true);
            }
            (Input::Command(ticket, Command::Later(_)), _) => drop(self.awaited.insert(*ticket)),
            (Input::Arrived(ticket, _), _) => drop(self.awaited.remove(ticket)),
            (Input::Guest(Slot::Main, GuestInput::Event(event, _)), Some(guest)) => match event {
                Event::HostCall { call, .. } => drop(guest.asked.insert(*call)),
                Event::Ready { .. } => guest.ready = true,
                Event::Saved { .. } | Event::NotSaved { .. } => guest.saving = None,
                _ => {}
            },
            _ => {}
        }
        let effects = self.session.handle(self.now, input);
        if ends_turn && let Some(guest) = &mut self.guest {
            guest.exchange = None;
            guest.asked.clear();
        }
        for effect in effects {
            assert!(
                !self.destroyed || matches!(effect, Effect::Host(HostEffect::Resolve(_, Err(Error::Destroyed)))),
                "{effect:?}"
            );
            self.carry_out(effect);
        }
        self.destroyed |= destroys;
        assert!(self.calls.len() <= self.limits.max_concurrent_host_calls as usize);
        let idle = self.guest.as_ref().is_none_or(|guest| guest.exchange.is_none());
        assert!(!idle || self.calls.is_empty(), "host calls outlive their exchange");
        assert!(self.begun.is_empty() || !self.destroyed, "calls outlive the sandbox");
        assert!(self.begun.len() <= self.limits.max_concurrent_host_calls as usize);
        let ahead = self.session.stats().ahead.calls;
        #[expect(clippy::cast_possible_truncation, reason = "a few")]
        let open = self.begun.len() as u32;
        assert!(
            !idle || ahead.begun == ahead.used + ahead.wasted + open,
            "the counts of calls do not add up: {ahead:?}, {open} open"
        );
        let (most, at_once) = self.most;
        assert!(self.shadows.len() <= most, "too many run ahead");
        let at_work = |guest: &&Guest| guest.exchange.is_some() && !guest.waiting && guest.asked.is_empty();
        assert!(
            self.shadows.values().filter(at_work).count() <= at_once,
            "too many run ahead at the same time"
        );
        let under_way: u32 = self.session.stats().ahead.code.values().map(Tally::under_way).sum();
        assert_eq!(self.shadows.len(), under_way as usize, "the counts do not add up");
        assert!(
            self.session.wake_at().is_none_or(|at| at > self.now),
            "it wants to be woken in the past"
        );
        assert!(
            self.guest.is_some() || self.session.wake_at().is_none(),
            "it waits for a guest that is not there"
        );
        let saving = self.guest.as_ref().is_some_and(|guest| guest.saving.is_some());
        let waits = idle && !saving && self.guest.as_ref().is_none_or(|guest| guest.ready);
        self.awaited.retain(|ticket| !self.answers.contains_key(ticket));
        let first = self.awaited.first().copied().unwrap_or(Ticket::MAX);
        let joins = self.shadows.values().any(|guest| guest.promoting)
            || !self.shadows.is_empty() && self.guest.as_ref().is_some_and(|guest| !guest.checks.is_empty());
        assert!(
            !waits
                || joins
                || (1..=self.tickets).all(|ticket| ticket >= first || self.answers.contains_key(&ticket))
                || self.fetching.iter().any(|ticket| self.is_pending(*ticket)),
            "a command waits for nothing"
        );
    }

    fn ends_turn(&self, input: &Input<Bytes>) -> bool {
        let current = self.guest.as_ref().and_then(|guest| guest.exchange);
        match input {
            Input::Guest(
                Slot::Main,
                GuestInput::Event(
                    Event::Executed { exchange, .. }
                    | Event::Value { exchange, .. }
                    | Event::Done { exchange }
                    | Event::Restored { exchange, .. }
                    | Event::Refused { exchange, .. },
                    _,
                ),
            ) => current == Some(*exchange),
            _ => false,
        }
    }

    fn carry_out(&mut self, effect: Effect<Bytes>) {
        match effect {
            Effect::Guest(Slot::Main, effect) => self.carry_out_main(effect),
            Effect::Guest(Slot::Shadow(shadow), effect) => self.carry_out_shadow(shadow, effect),
            Effect::Park(shadow) => {
                let guest = self.shadows.remove(&shadow).expect("nobody can be parked");
                assert!(guest.exchange.is_none(), "a guest is parked in an exchange");
            }
            Effect::Promote(shadow) => {
                assert!(self.calls.is_empty(), "host calls outlive their guest");
                let guest = self.shadows.remove(&shadow);
                self.guest = Some(guest.expect("promoted nobody"));
            }
            Effect::Host(effect) => self.carry_out_for_host(effect),
        }
    }

    fn carry_out_for_host(&mut self, effect: HostEffect<Bytes>) {
        match effect {
            HostEffect::Fetch(ticket, _) => {
                assert!(self.is_pending(ticket), "fetches for a command that is over");
                self.fetching.insert(ticket);
            }
            HostEffect::CallHost(Call {
                call,
                ticket,
                name,
                ahead: true,
                ..
            }) => {
                assert_eq!((ticket, name.as_str()), (None, "llm_query"), "begun ahead");
                assert!(!self.shadows.is_empty(), "nothing runs ahead that could call");
                assert!(call > self.last_begun, "a call's number is used twice");
                self.last_begun = call;
                self.begun.insert(call, false);
            }
            HostEffect::ClaimHost(call) => {
                let returned = self.begun.remove(&call);
                if !returned.expect("claimed a call that nobody has begun") {
                    self.calls.insert(call, ("llm_query".to_owned(), Bytes::new()));
                }
            }
            HostEffect::CallHost(Call { call, name, args, .. }) => {
                assert!(call > self.last_call, "a call's number is used twice");
                self.last_call = call;
                self.calls.insert(call, (name, args.body));
            }
            HostEffect::AbortHost(call) => {
                assert!(
                    self.calls.remove(&call).is_some() || self.begun.remove(&call).is_some(),
                    "aborted a call that is not under way"
                );
                self.aborted.insert(call);
            }
            HostEffect::Display { ticket, mime, body, .. } => {
                assert!(self.is_pending(ticket), "shown for a command that is over");
                assert!(sandglass_core::display::kind(&mime).is_some(), "shown as {mime}");
                self.shown.push((mime, body));
            }
            HostEffect::Progress(progress) => {
                assert!(
                    progress.failed <= progress.done && progress.done <= progress.total,
                    "{progress:?}"
                );
                self.progress.push((progress.done, progress.failed, progress.total));
            }
            HostEffect::Print(ticket, _, text) => {
                assert!(self.is_pending(ticket), "printed for a command that is over");
                self.printed.push_str(&text);
            }
            HostEffect::Keep(kept) => {
                self.keeps += 1;
                self.last_kept = Some(*kept);
            }
            HostEffect::Note(note) => self.noted.push(note),
            HostEffect::Resolve(ticket, answer) => {
                assert!(ticket <= self.tickets, "answered a command that was never given");
                assert!(
                    self.answers.insert(ticket, answer).is_none(),
                    "answered a command twice"
                );
            }
        }
    }

    fn carry_out_main(&mut self, effect: GuestEffect<Bytes>) {
        match effect {
            GuestEffect::Boot | GuestEffect::Revive(_) => {
                assert!(self.guest.is_none(), "booted beside a guest that lives");
                self.guest = Some(Guest::default());
                self.boots += 1;
            }
            GuestEffect::Kill => {
                assert!(self.guest.take().is_some(), "killed a guest that was not there");
                assert!(self.calls.is_empty(), "host calls outlive their guest");
            }
            GuestEffect::Post(request, body) => self.deliver(request, body),
            GuestEffect::Restore(request, chain) => {
                let Request::Restore { checkpoint, .. } = request else {
                    panic!("restores by {request:?}")
                };
                let links: Vec<String> = chain
                    .into_iter()
                    .map(|body| String::from_utf8(body).expect("text"))
                    .collect();
                let (full, last) = (format!("{checkpoint} true"), format!("{checkpoint} false"));
                assert!(links[0].ends_with("true"), "a chain begins with {links:?}");
                assert!(links[1..].iter().all(|link| link.ends_with("false")), "{links:?}");
                assert!(links.last() == Some(&full) || links.last() == Some(&last), "{links:?}");
                self.deliver(request, None);
            }
            GuestEffect::Install(request, bodies) => {
                let Request::Install { wheels, .. } = &request else {
                    panic!("installs by {request:?}")
                };
                assert_eq!(wheels.len(), bodies.len());
                self.deliver(request, None);
            }
        }
    }

    fn carry_out_shadow(&mut self, shadow: ShadowId, effect: GuestEffect<Bytes>) {
        match effect {
            GuestEffect::Revive(_) => panic!("a shadow is no checkpoint"),
            GuestEffect::Boot => {
                assert!(shadow > self.last_shadow, "a shadow's number is used twice");
                (self.last_shadow, self.at) = (shadow, shadow);
                self.shadows.insert(shadow, Guest::default());
            }
            GuestEffect::Kill => {
                assert!(self.shadows.remove(&shadow).is_some(), "killed nobody");
            }
            GuestEffect::Post(request, _) | GuestEffect::Restore(request, _) | GuestEffect::Install(request, _) => {
                let guest = self.shadows.get_mut(&shadow).expect("posted to nobody");
                match &request {
                    Request::Init { .. } => assert!(guest.inbox.is_empty()),
                    Request::Execute { exchange, ahead, .. } => {
                        assert!(ahead, "it does not know that nobody has asked");
                        guest.exchange = Some(*exchange);
                    }
                    Request::Restore { exchange, .. }
                    | Request::Install { exchange, .. }
                    | Request::Configure { exchange, .. } => guest.exchange = Some(*exchange),
                    Request::Promote { exchange, .. } => {
                        assert!(guest.exchange.is_none_or(|at| at == *exchange), "it is not at that");
                        guest.promoting = !std::mem::take(&mut guest.waiting);
                    }
                    Request::Extend { exchange, .. } => {
                        assert_eq!(guest.exchange, Some(*exchange));
                        assert!(std::mem::take(&mut guest.waiting), "it does not wait for more");
                    }
                    Request::Interrupt { .. } => {} // of what takes too long to be given the state
                    request => panic!("what runs ahead got {request:?}"),
                }
                guest.inbox.push((request, None));
            }
        }
    }

    fn deliver(&mut self, request: Request, body: Option<Bytes>) {
        let guest = self.guest.as_mut().expect("posted to nobody");
        let begins = match &request {
            Request::Init { .. } => {
                assert!(guest.inbox.is_empty(), "`init` is not the first message");
                None
            }
            Request::Execute { exchange, .. }
            | Request::GetVariable { exchange, .. }
            | Request::SetVariable { exchange, .. }
            | Request::Configure { exchange, .. }
            | Request::ListVariables { exchange, .. }
            | Request::OpenState { exchange, .. }
            | Request::CaptureState { exchange, .. }
            | Request::WriteFile { exchange, .. }
            | Request::ReadFile { exchange, .. }
            | Request::ListFiles { exchange, .. }
            | Request::RemoveFile { exchange, .. }
            | Request::CellFile { exchange, .. }
            | Request::Look { exchange, .. }
            | Request::Install { exchange, .. }
            | Request::Restore { exchange, .. } => Some(*exchange),
            Request::HostReply { call, .. } => {
                assert!(guest.asked.remove(call), "answered a call that does not wait");
                None
            }
            Request::Interrupt { exchange, .. } => {
                assert_eq!(guest.exchange, Some(*exchange), "interrupted an exchange that is over");
                assert_ne!(guest.interrupted, Some(*exchange), "interrupted twice");
                guest.interrupted = Some(*exchange);
                guest.asked.clear();
                None
            }
            Request::Save { checkpoint, full } => {
                assert!(
                    guest.ready && guest.exchange.is_none(),
                    "asked a guest that is busy to save"
                );
                assert_eq!(guest.saving, None, "asked for two saves at a time");
                guest.saving = Some((*checkpoint, *full));
                return;
            }
            Request::Check { check, .. } => {
                assert!(guest.ready && guest.exchange.is_none(), "asked a guest that is busy");
                guest.checks.push_back(*check);
                None
            }
            Request::Ping { ping } => {
                assert!(guest.ready && guest.exchange.is_none(), "asked a guest that is busy");
                guest.ping = Some(*ping);
                return;
            }
            Request::Survey { survey } => {
                assert!(guest.ready && guest.exchange.is_none(), "asked a guest that is busy");
                assert_eq!(guest.saving, None, "asked a guest that saves");
                guest.survey = Some(*survey);
                None
            }
            Request::Promote { .. } | Request::Extend { .. } => panic!("the guest that has taken over already"),
            Request::Part { .. } | Request::Credit { .. } => panic!("the drivers' own"),
        };
        assert!(
            !guest.inbox.is_empty() || matches!(request, Request::Init { .. }),
            "`init` is not the first message"
        );
        if let Some(exchange) = begins {
            assert!(guest.ready, "an exchange before the guest is ready");
            assert_eq!(guest.exchange, None, "two exchanges at a time");
            assert!(exchange > self.last_turn, "an exchange's number is used twice");
            self.last_turn = exchange;
            guest.exchange = Some(exchange);
        }
        guest.inbox.push((request, body));
    }
}

// ---- values and messages ----

/// A message of the session's guest.
pub(crate) fn guest_says(event: Event, body: Option<Bytes>) -> Input<Bytes> {
    Input::Guest(Slot::Main, GuestInput::Event(event, body))
}

/// Something of the session's guest that is no message.
pub(crate) fn bad_message(what: String) -> Input<Bytes> {
    Input::Guest(Slot::Main, GuestInput::BadMessage(what))
}

/// The end of the session's guest.
pub(crate) fn guest_lost(why: Error) -> Input<Bytes> {
    Input::Guest(Slot::Main, GuestInput::Lost(why))
}

fn unsaved(names: &[&str]) -> Vec<LostVariable> {
    let lost = |name: &&str| LostVariable {
        name: (*name).to_owned(),
        reason: "it cannot be saved".to_owned(),
    };
    names.iter().map(lost).collect()
}

/// The command that assigns `context`.
pub(crate) fn assign_context(value: &str) -> Command<Bytes> {
    Command::Variable(VariableCommand::Set(Target::Context, text(value)))
}

/// The command that assigns a variable.
pub(crate) fn assign(name: &str, value: &str) -> Command<Bytes> {
    Command::Variable(VariableCommand::Set(Target::Variable(name.to_owned()), text(value)))
}

/// The command that adds to a series.
pub(crate) fn add(series: Series, value: &str) -> Command<Bytes> {
    Command::Variable(VariableCommand::Set(Target::Next(series), text(value)))
}

/// The command that reads a variable.
pub(crate) fn get(name: &str) -> Command<Bytes> {
    Command::Variable(VariableCommand::Get(name.to_owned()))
}

/// The command that lists the variables.
pub(crate) fn list() -> Command<Bytes> {
    Command::Variable(VariableCommand::List)
}

pub(crate) fn text(text: &str) -> Encoded<Bytes> {
    Encoded {
        encoding: Encoding::Text,
        body: text.as_bytes().to_vec(),
    }
}

/// An execution that ended well.
pub(crate) fn ok() -> ExecutionReport {
    ExecutionReport {
        ended: Ended::Ok,
        error_type: None,
        stopped: None,
        has_final: false,
        names: None,
        omitted_displays: 0,
        files: Vec::new(),
        omitted_files: 0,
        mark: None,
    }
}

/// An execution that an exception ended.
pub(crate) fn raised(error_type: &str) -> ExecutionReport {
    ExecutionReport {
        ended: Ended::Error,
        error_type: Some(error_type.to_owned()),
        ..ok()
    }
}

pub(crate) fn output(exchange: u32, stream: Stream, text: &str) -> Event {
    Event::Output {
        exchange,
        stream,
        skipped: 0,
        text: text.to_owned(),
    }
}
