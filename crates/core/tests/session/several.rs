//! Several shadows, one for each code of a hint.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sandglass_core::Error;
use sandglass_core::execution::Outcome;
use sandglass_core::limits::{Limits, MAX_FORKS};
use sandglass_core::predictions::{Prediction, Source, Tally};
use sandglass_core::protocol::{Encoding, Event, GuestInfo, PROTOCOL_VERSION, Request, Stream};
use sandglass_core::session::{
    Command, Effect, Execute, GuestEffect, GuestInput, HostEffect, Input, Reply, Session, Slot, Ticket,
};

use crate::world::{World, assign_context, guest_lost, limits, list, ok, output};

/// A session whose guest can be forked, on a machine with so many processors.
fn forking(processors: usize, change: impl FnOnce(&mut Limits)) -> World {
    let mut limits = limits();
    limits.max_ahead_share = 1.0;
    change(&mut limits);
    let most = limits.max_shadows.unwrap_or(MAX_FORKS) as usize;
    let session = Session::new(limits.clone(), Vec::new())
        .with_forks()
        .with_shadows_on(processors, f64::INFINITY);
    let mut world = World::with(limits, session);
    world.most = (most, processors);
    world.begun()
}

/// All codes that anybody might ask for.
const CODES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

impl World {
    /// The fork that is meant has begun.
    fn fork_begins(&mut self) {
        let guest = GuestInfo::default();
        self.shadow_says(
            Event::Ready {
                version: PROTOCOL_VERSION,
                guest,
            },
            None,
        );
    }

    /// The newest fork runs to its end.
    fn fork_runs(&mut self) {
        self.fork_begins();
        self.sleep(10.0);
        self.shadow_ends(ok());
    }
}

fn tally(world: &World) -> Tally {
    let stats = world.session.stats();
    stats.ahead.code.get(&Source::Explicit).cloned().unwrap_or_default()
}

#[test]
fn each_code_of_a_hint_is_prepared_and_any_is_served() {
    for comes in ["a", "b", "c"] {
        let mut world = forking(1, |_| {});
        world.hint(&["a", "b", "c"]);
        for (at, code) in ["a", "b", "c"].iter().enumerate() {
            assert_eq!(world.shadows.len(), at + 1, "one at a time");
            world.fork_begins();
            assert_eq!(world.runs_ahead().last(), Some(code), "the likeliest first");
            world.shadow_says(output(world.shadow_turn(), Stream::Stdout, code), None);
            world.shadow_ends(ok());
        }
        let ticket = world.execute(comes);
        assert_eq!(world.execution(ticket).stdout, comes);
        assert!(world.shadows.is_empty(), "the others were of the state before");
        let Tally {
            started,
            finished,
            used,
            wasted,
            ..
        } = tally(&world);
        assert_eq!((started, finished, used, wasted), (3, 3, 1, 2));
    }
}

#[test]
fn other_code_ends_them_all() {
    let mut world = forking(1, |_| {});
    world.hint(&["a", "b"]);
    world.fork_runs();
    world.fork_begins();
    world.execute("c");
    assert_eq!(world.asked_for(), "execute c");
    assert!(world.shadows.is_empty());
    world.ends(ok());
    assert_eq!(tally(&world).wasted, 2);
    world.wait(1_000.0);
    assert!(world.shadows.is_empty(), "what was told holds no more");
}

#[test]
fn as_many_run_at_a_time_as_there_are_processors() {
    let mut world = forking(3, |_| {});
    world.hint(&CODES[..5]);
    assert_eq!(world.shadows.len(), 3);
    world.fork_begins();
    assert_eq!(world.shadows.len(), 3);
    world.shadow_ends(ok());
    assert_eq!(world.shadows.len(), 4, "one is done, and its processor is free");
}

#[test]
fn no_more_than_the_limit_are_kept() {
    for (limit, kept) in [(None, 8), (Some(2), 2), (Some(1), 1)] {
        let mut world = forking(1, |limits| limits.max_shadows = limit);
        world.hint(&CODES);
        for _ in 0..kept {
            world.fork_runs();
        }
        assert_eq!(world.runs_ahead(), &CODES[..kept]);
        // One that ends by itself makes room.
        let exchange = world.shadow().map(|_| 1).unwrap_or_default();
        world.shadow_says(output(exchange, Stream::Stdout, "at rest"), None);
        world.fork_begins();
        assert_eq!(world.runs_ahead().last(), Some(&CODES[kept]));
    }
}

#[test]
fn a_new_hint_keeps_what_it_names_again_and_drops_the_least_likely() {
    let mut world = forking(1, |limits| limits.max_shadows = Some(3));
    world.hint(&["a", "b", "c"]);
    for _ in 0..3 {
        world.fork_runs();
    }
    world.hint(&["c", "a"]);
    assert_eq!(world.runs_ahead(), ["a", "c"], "b is not among them");
    world.hint(&["d", "e", "c", "a"]);
    world.fork_runs();
    assert_eq!(world.runs_ahead(), ["c", "d", "none yet"], "a is the least likely now");
    world.fork_runs();
    assert_eq!((world.runs_ahead(), tally(&world).started), (vec!["c", "d", "e"], 5));
    let ticket = world.execute("c");
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!(tally(&world).used, 1);
}

#[test]
fn where_memory_is_short_the_least_likely_goes_first() {
    let mut world = forking(1, |_| {});
    world.hint(&["a", "b", "c", "d"]);
    for _ in 0..2 {
        world.fork_runs();
    }
    world.fork_begins();
    world.feed(Input::MemoryIsShort);
    assert_eq!(world.runs_ahead(), ["a", "b"], "c is ended, and d not begun");
    world.feed(Input::MemoryIsShort);
    world.feed(Input::MemoryIsShort);
    assert_eq!(world.runs_ahead(), ["a"], "one is always allowed");
    world.hint(&["b", "a"]);
    assert_eq!(world.shadows.len(), 1, "b takes the place of a");
    world.fork_begins();
    assert_eq!(world.runs_ahead(), ["b"]);
    world.execute("b");
    world.ends(ok());
    world.hint(&["a", "b"]);
    world.fork_runs();
    assert_eq!(world.shadows.len(), 2, "that was another state");
}

#[test]
fn copies_of_a_large_state_are_fewer() {
    const MIB: f64 = 1024.0 * 1024.0;
    for (room, count) in [(100.0, 1), (140.0, 2), (f64::INFINITY, 2)] {
        let limits = Limits {
            checkpoints: true,
            ..limits()
        };
        let session = Session::new(limits.clone(), Vec::new()).with_shadows_on(4, room * MIB);
        let mut world = World::with(limits, session);
        world.most = (2, 4);
        world = world.begun();
        assert!(world.saves(true));
        world.hint(&["a", "b", "c"]);
        assert_eq!(world.shadows.len(), count, "{room}");
    }
}

#[test]
fn what_all_have_taken_counts_before_another_is_begun() {
    let mut world = forking(1, |limits| limits.max_ahead_share = 0.05);
    world.hint(&CODES);
    for _ in 0..4 {
        world.fork_begins();
        world.sleep(900.0);
        world.shadow_ends(ok());
    }
    assert_eq!(world.shadows.len(), 4, "a twentieth of a minute is used up");
    let ticket = world.execute("b");
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!((tally(&world).used, tally(&world).time_wasted), (1, 2_700.0));
}

#[test]
fn hints_of_which_one_comes_stay_worth_it() {
    let mut world = forking(1, |_| {});
    for round in 0..50 {
        world.hint(&CODES[..5]);
        for _ in 0..5 {
            world.fork_runs();
        }
        let ticket = world.execute(CODES[round % 5]);
        assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    }
    let Tally { started, used, .. } = tally(&world);
    assert_eq!((started, used), (250, 50));
}

#[test]
fn a_hint_of_which_nothing_can_run_fails_once() {
    let mut world = forking(1, |_| {});
    for _ in 0..8 {
        world.hint(&CODES[..5]);
        for _ in 0..5 {
            world.shadow_sends(GuestInput::Lost(Error::GuestLost("there are threads".to_owned())));
        }
        world.execute("x");
        world.ends(ok());
    }
    assert_eq!(tally(&world).started, 40);
}

#[test]
fn those_that_never_end_are_dropped_when_their_time_is_over() {
    let mut world = forking(8, |_| {});
    world.hint(&CODES[..8]);
    for at in world.shadows.keys().copied().collect::<Vec<_>>() {
        world.at = at;
        world.fork_begins();
    }
    assert_eq!(world.shadows.len(), 8);
    world.wait(1_001.0);
    assert!(world.shadows.is_empty());
    let ticket = world.execute("x");
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!(tally(&world).wasted, 8);
}

#[test]
fn a_lost_guest_takes_all_forks_with_it() {
    let mut world = forking(1, |_| {});
    world.hint(&["a", "b", "c"]);
    world.fork_runs();
    world.fork_runs();
    world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
    assert!(world.shadows.is_empty());
    assert_eq!(world.boots, 2);
}

#[test]
fn hints_that_begin_as_what_is_written_are_kept() {
    let mut world = forking(1, |_| {});
    world.hint(&["a\nb", "a\nc", "d"]);
    for _ in 0..3 {
        world.fork_runs();
    }
    world.writes("a");
    assert_eq!(world.runs_ahead(), ["a\nb", "a\nc"]);
    world.writes("a\nc");
    assert_eq!(world.runs_ahead(), ["a\nc"]);
    let ticket = world.execute("a\nc");
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!(tally(&world).used, 1);
}

// ---- nobody can tell that there are any ----

/// Something that happens to a session, whose guests are as in [`Model`].
#[derive(Debug, Clone)]
enum Step {
    Hints(Vec<usize>),
    Executes(usize),
    /// The shadow at this place does the next thing that a guest of ours does.
    Proceeds(usize),
    Looks(usize),
    IsLost(usize),
    MainIsLost,
    MemoryIsShort,
    Lists,
    Waits(f64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(0..4_usize, 0..5).prop_map(Step::Hints),
        5 => (0..4_usize).prop_map(Step::Executes),
        20 => (0..4_usize).prop_map(Step::Proceeds),
        1 => (0..4_usize).prop_map(Step::Looks),
        1 => (0..4_usize).prop_map(Step::IsLost),
        1 => Just(Step::MainIsLost),
        1 => Just(Step::MemoryIsShort),
        1 => Just(Step::Lists),
        3 => (0.0..400.0_f64).prop_map(Step::Waits),
    ]
}

/// A guest whose state is all the code that it has run, and that prints its state with the code.
#[derive(Debug, Clone, Default)]
struct Process {
    state: Vec<String>,
    is_ready: bool,
    /// Requests that the guest has not carried out yet.
    asked: Vec<Request>,
    has_printed: bool,
    is_to_take_over: bool,
}

/// Processes around a session. A checkpoint's body is the state.
struct Model {
    session: Session<Vec<u8>>,
    now: f64,
    slots: BTreeMap<Slot, Process>,
    forks: bool,
    last_ticket: Ticket,
    ran: Vec<(u32, Outcome, String)>,
}

impl Model {
    fn new(forks: bool, processors: usize, most: u32) -> Self {
        let limits = Limits {
            checkpoints: !forks,
            max_ahead_share: 1.0,
            max_shadows: Some(most),
            ..limits()
        };
        let mut session = Session::new(limits, Vec::new()).with_shadows_on(processors, f64::INFINITY);
        if forks {
            session = session.with_forks();
        }
        let mut model = Self {
            session,
            now: 0.0,
            slots: BTreeMap::new(),
            forks,
            last_ticket: 0,
            ran: Vec::new(),
        };
        model.command(assign_context("context"));
        model.settle();
        model
    }

    fn command(&mut self, command: Command<Vec<u8>>) {
        self.last_ticket += 1;
        self.feed(Input::Command(self.last_ticket, command));
    }

    fn feed(&mut self, input: Input<Vec<u8>>) {
        for effect in self.session.handle(self.now, input) {
            match effect {
                Effect::Guest(slot, effect) => self.carry_out(slot, effect),
                Effect::Park(id) => drop(self.slots.remove(&Slot::Shadow(id)).expect("there is one")),
                Effect::Promote(id) => {
                    let process = self.slots.remove(&Slot::Shadow(id)).expect("there is one");
                    self.slots.insert(Slot::Main, process);
                }
                Effect::Host(HostEffect::Resolve(_, Ok(Reply::Execution(run, _)))) => {
                    self.ran.push((run.id, run.outcome, run.stdout));
                }
                Effect::Host(_) => {}
            }
        }
    }

    fn carry_out(&mut self, slot: Slot, effect: GuestEffect<Vec<u8>>) {
        match effect {
            GuestEffect::Revive(_) => panic!("guests are not paused here"),
            GuestEffect::Boot => {
                let mut process = Process::default();
                if self.forks && slot != Slot::Main {
                    process.state.clone_from(&self.slots[&Slot::Main].state);
                }
                self.slots.insert(slot, process);
            }
            GuestEffect::Kill => drop(self.slots.remove(&slot).expect("there is one")),
            GuestEffect::Restore(request, bodies) => {
                let process = self.slots.get_mut(&slot).expect("there is one");
                let state = String::from_utf8(bodies.last().expect("there is one").clone()).expect("there is one");
                let runs = state.split(',').filter(|code| !code.is_empty());
                process.state = runs.map(str::to_owned).collect();
                process.asked.push(request);
            }
            GuestEffect::Post(Request::Promote { .. }, _) => {
                let process = self.slots.get_mut(&slot).expect("there is one");
                process.is_to_take_over = true;
            }
            GuestEffect::Post(request, _) => {
                let process = self.slots.get_mut(&slot).expect("there is one");
                process.asked.push(request);
            }
            GuestEffect::Install(..) => unreachable!("there are no packages"),
        }
    }

    fn says(&mut self, slot: Slot, event: Event, body: Option<Vec<u8>>) {
        self.feed(Input::Guest(slot, GuestInput::Event(event, body)));
    }

    /// The guest in a slot does the next thing that it was asked for; false when there is none.
    fn proceeds(&mut self, slot: Slot) -> bool {
        let Some(process) = self.slots.get_mut(&slot) else {
            return false;
        };
        let Some(request) = process.asked.first().cloned() else {
            return false;
        };
        if let Request::Execute { exchange, code, .. } = &request {
            if process.is_to_take_over && slot != Slot::Main {
                process.is_to_take_over = false;
                self.says(slot, Event::Promoted { exchange: *exchange }, None);
                return true;
            }
            if !std::mem::replace(&mut process.has_printed, true) {
                let printed = format!("{}>{code}", process.state.join(","));
                self.says(slot, output(*exchange, Stream::Stdout, &printed), None);
                return true;
            }
            process.has_printed = false;
            process.state.push(code.clone());
        }
        process.asked.remove(0);
        let state = process.state.join(",").into_bytes();
        let (event, body) = match request {
            Request::Init { .. } => {
                process.is_ready = true;
                let guest = GuestInfo::default();
                let version = PROTOCOL_VERSION;
                (Event::Ready { version, guest }, None)
            }
            Request::Execute { exchange, .. } => {
                let (execution, encoding) = (ok(), Encoding::None);
                let event = Event::Executed {
                    exchange,
                    execution,
                    encoding,
                };
                (event, None)
            }
            Request::Restore { exchange, .. } => (
                Event::Restored {
                    exchange,
                    lost: Vec::new(),
                    names: None,
                },
                None,
            ),
            Request::SetVariable { exchange, .. } => (Event::Done { exchange }, None),
            Request::ListVariables { exchange, .. } => {
                let encoding = Encoding::Marshal;
                (Event::Value { exchange, encoding }, Some(b"[]".to_vec()))
            }
            Request::Save { checkpoint, full } => {
                let event = Event::Saved {
                    checkpoint,
                    full,
                    lost: Vec::new(),
                    spent: false,
                };
                (event, Some(state))
            }
            request => panic!("asked for {request:?}"),
        };
        self.says(slot, event, body);
        true
    }

    /// Everything is done that somebody waits for, or that the session's guest was asked for.
    fn settle(&mut self) {
        loop {
            let asked = self.slots.iter().find(|(_, process)| process.is_to_take_over);
            let asked = asked.map_or(Slot::Main, |(slot, _)| *slot);
            if !self.proceeds(asked) && !self.proceeds(Slot::Main) {
                return;
            }
        }
    }

    /// All that the session's guest has run; none where there is no guest.
    fn state(&self) -> Option<&Vec<String>> {
        Some(&self.slots.get(&Slot::Main)?.state)
    }

    fn shadow(&self, at: usize) -> Option<Slot> {
        let mut shadows = self.slots.keys().filter(|slot| **slot != Slot::Main);
        shadows.nth(at).copied()
    }

    fn take(&mut self, step: &Step, hints: bool) {
        let hinted = |step: &Step| {
            !matches!(
                step,
                Step::Executes(_) | Step::MainIsLost | Step::Lists | Step::Waits(_)
            )
        };
        if hinted(step) && !hints {
            return;
        }
        match step {
            Step::Hints(codes) => {
                let predictions = (0..).zip(codes).map(|(id, code)| {
                    let probability = 1.0 / f64::from(id + 1);
                    Prediction::told(id, CODES[*code].to_owned(), Source::Explicit, probability)
                });
                self.feed(Input::Hint(predictions.collect()));
            }
            Step::Executes(code) => {
                self.command(Command::Execute(Execute::of(CODES[*code])));
                self.settle();
            }
            Step::Proceeds(at) => {
                if let Some(slot) = self.shadow(*at) {
                    self.proceeds(slot);
                }
            }
            Step::Looks(at) => {
                if let Some(slot) = self.shadow(*at) {
                    self.says(slot, Event::External { exchange: 1 }, None);
                }
            }
            Step::IsLost(at) => {
                if let Some(slot) = self.shadow(*at) {
                    let lost = GuestInput::Lost(Error::GuestLost("gone".to_owned()));
                    self.feed(Input::Guest(slot, lost));
                }
            }
            // Where the state is saved, how much of it depends on when it was.
            Step::MainIsLost if self.forks => {
                self.feed(guest_lost(Error::GuestLost("gone".to_owned())));
                self.settle();
            }
            Step::MainIsLost => {}
            Step::MemoryIsShort => self.feed(Input::MemoryIsShort),
            Step::Lists => {
                self.command(list());
                self.settle();
            }
            Step::Waits(ms) => {
                let until = self.now + ms;
                while let Some(at) = self.session.wake_at().filter(|at| *at <= until) {
                    self.now = self.now.max(at);
                    self.feed(Input::Tick);
                    self.proceeds(Slot::Main);
                }
                self.now = until;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_those_that_there_are_without_hints(
        steps in prop::collection::vec(step(), 0..100),
        forks: bool,
        processors in 1..4_usize,
        most in 1..6_u32,
    ) {
        let (mut hinted, mut plain) = (Model::new(forks, processors, most), Model::new(forks, 1, 1));
        for step in &steps {
            hinted.take(step, true);
            plain.take(step, false);
            prop_assert_eq!(&hinted.ran, &plain.ran);
            prop_assert_eq!(hinted.state(), plain.state());
            let shadows = hinted.slots.keys().filter(|slot| **slot != Slot::Main).count();
            prop_assert!(shadows <= most as usize);
            let under_way: u32 = hinted.session.stats().ahead.code.values().map(Tally::under_way).sum();
            prop_assert_eq!(shadows, under_way as usize);
        }
    }
}
