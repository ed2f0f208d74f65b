//! Recorded executions: what is written of them, and a later session that goes on with one.

use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{Encoding, Event, ExecutionReport, ReplyStatus, Request};
use sandglass_core::session::{
    Beginning, Command, Entry, Input, Kept, Record, RecordChange, Reply, Session, StateCommand, Strictness,
};

use crate::world::{Bytes, World, assign, guest_lost, limits, ok, text};

fn saved() -> Limits {
    Limits {
        checkpoints: true,
        ..limits()
    }
}

fn session() -> Session<Bytes> {
    Session::new(saved(), vec!["ask".to_owned(), "look".to_owned()]).with_repeats()
}

/// A session that records, with its context. The first execution is about to begin.
fn ready() -> World {
    let mut world = World::with(saved(), session().with_keeping(None, None).with_records()).begun();
    while world.saves(true) {}
    world
}

/// The parts of the record that the driver has: the beginning, the entries, and the reason for which it cannot be resumed.
fn written(world: &World) -> Option<(Beginning, Vec<Entry<Bytes>>, Option<String>)> {
    let mut found = None;
    for note in &world.noted {
        match (note, &mut found) {
            (RecordChange::Begin(beginning), _) => found = Some((beginning.clone(), Vec::new(), None)),
            (RecordChange::End, _) => found = None,
            (RecordChange::Add(index, entry), Some((_, entries, _))) => {
                assert_eq!(*index, entries.len(), "in order");
                entries.push(through_json(entry.clone()));
            }
            (RecordChange::Break(why), Some((_, _, broken))) => *broken = Some(why.clone()),
            (note, None) => panic!("{note:?} before the beginning"),
        }
    }
    found
}

/// An entry as a driver writes and reads it.
fn through_json(entry: Entry<Bytes>) -> Entry<Bytes> {
    let mut body = None;
    let json = serde_json::to_string(&entry.map(|its| body = Some(its))).expect("it is plain data");
    let read: Entry<()> = serde_json::from_str(&json).expect("it can be read again");
    read.map(|()| body.clone().expect("it had a body"))
}

/// A later session, whose guest has the state before the execution that was under way.
fn later(first: &World) -> World {
    let kept: Kept<Bytes> = first.last_kept.clone().expect("it was kept").map(|_, body| body);
    let (beginning, entries, broken) = written(first).expect("there is a record");
    let record = Record::written(beginning, entries, broken).expect("it is whole");
    let session = session().with_keeping(Some(kept), None);
    let mut world = World::with(saved(), session.with_pending(record, Strictness::Resume));
    let begun = world.command(Command::State(StateCommand::Checkpoint));
    world.boot();
    world.restored(&[]);
    world.done(); // the settings
    assert!(matches!(world.answer(begun), Ok(Reply::State(_))));
    world
}

/// The guest sends notes of the world's answers.
fn notes(world: &mut World, notes: &[u8]) {
    let exchange = world.exchange();
    world.event_with(Event::Noted { exchange }, notes);
}

/// The notes that the guest got with the code.
fn recalled(world: &World) -> Option<&[u8]> {
    match world.guest.as_ref()?.inbox.last()? {
        (Request::Execute { noted: true, .. }, body) => body.as_deref(),
        other => panic!("{other:?}"),
    }
}

/// The second execution has got one answer and waits for another.
fn waiting() -> World {
    let mut world = ready();
    world.execute("x = 1");
    world.ends_well(&["context", "x"]);
    while world.saves(true) {}
    world.execute("ask(ask())");
    notes(&mut world, b"12");
    world.calls("ask");
    world.returns(world.under_way()[0], "first");
    notes(&mut world, b"3");
    world.calls("look");
    world
}

#[test]
fn the_first_execution_waits_for_a_save_of_the_state_before_it() {
    let mut world = World::with(saved(), session().with_keeping(None, None).with_records()).begun();
    world.execute("ask()");
    assert!(world.guest.as_ref().is_some_and(|guest| guest.saving.is_some()));
    assert!(world.saves(true));
    assert_eq!(world.asked_for(), "execute ask()");
}

#[test]
fn an_execution_waits_for_a_save_that_is_under_way() {
    let mut world = ready();
    world.execute("x = 1");
    world.ends_well(&["context", "x"]);
    world.wait(1_000.0);
    assert!(world.guest.as_ref().is_some_and(|guest| guest.saving.is_some()));
    world.execute("ask()");
    assert!(
        world.saves(true),
        "or the kept state would be another one than that of the record"
    );
    assert_eq!(world.asked_for(), "execute ask()");
    world.calls("ask");
    let (beginning, ..) = written(&world).expect("there is a record");
    let history = world.last_kept.as_ref().expect("it is kept").history();
    let current = history.iter().find(|entry| entry.current).expect("there is a state");
    assert_eq!((beginning.base, beginning.steps), (current.number, Vec::new()));
}

#[test]
fn a_call_is_written_with_all_notes_before_it_is_made() {
    let world = waiting();
    let (beginning, entries, broken) = written(&world).expect("there is a record");
    assert_eq!((beginning.execution, beginning.code.as_str()), (2, "ask(ask())"));
    assert_eq!(broken, None);
    let kinds: Vec<&str> = entries
        .iter()
        .map(|entry| match entry {
            Entry::Notes { .. } => "notes",
            Entry::Call { name, .. } => name.as_str(),
            Entry::Answer { .. } => "answer",
        })
        .collect();
    assert_eq!(kinds, ["notes", "ask", "answer", "notes", "look"]);
}

#[test]
fn an_execution_without_calls_writes_nothing() {
    let mut world = ready();
    world.execute("x = 1");
    notes(&mut world, b"12");
    world.ends_well(&["context", "x"]);
    assert_eq!(world.noted, []);
}

#[test]
fn a_later_session_goes_on_with_the_execution() {
    let first = waiting();
    let mut world = later(&first);
    let pending = world.session.pending().expect("an execution is pending");
    assert_eq!((pending.execution(), pending.code()), (2, "ask(ask())"));
    let waits = pending.waiting();
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].call, waits[0].name.as_str()), (2, "look"));

    let refused = world.execute("x");
    assert_eq!(world.code_of(refused), "execution_pending");
    let resumed = world.command(Command::Resume(Vec::new()));
    assert_eq!(recalled(&world), Some(&b"123"[..]));
    let call = world.calls("ask");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "first")));
    assert!(world.under_way().is_empty(), "the function is not called again");
    world.calls("look");
    world.returns(world.under_way()[0], "second");
    world.ends_well(&["context", "x"]);
    let execution = world.execution(resumed);
    assert_eq!(
        (execution.id, execution.outcome, execution.host_calls),
        (2, Outcome::Ok, 2)
    );
    assert!(world.session.pending().is_none());
    assert!(world.last_kept.is_none(), "the record is still of use");
    while world.saves(true) {}
    assert!(!world.last_kept.as_ref().expect("it is kept").has_record());
    let next = world.execute("x");
    world.ends_well(&["context", "x"]);
    assert_eq!(world.execution(next).id, 3);
}

#[test]
fn the_record_goes_on_where_it_ended() {
    let mut world = later(&waiting());
    world.command(Command::Resume(Vec::new()));
    world.calls("ask");
    world.calls("look");
    assert_eq!(world.noted, [], "nothing is new");
    world.returns(world.under_way()[0], "second");
    notes(&mut world, b"4");
    world.calls("ask");
    let indexes: Vec<usize> = world
        .noted
        .iter()
        .filter_map(|note| match note {
            RecordChange::Add(index, _) => Some(*index),
            _ => None,
        })
        .collect();
    assert_eq!(indexes, [5, 6, 7]);
}

#[test]
fn an_answer_of_the_user_takes_the_place_of_the_call() {
    let mut world = later(&waiting());
    let wrong = world.command(Command::Resume(vec![(1, text("again"))]));
    assert_eq!(world.code_of(wrong), "invalid_option");
    world.command(Command::Resume(vec![(2, text("given"))]));
    world.calls("ask");
    let call = world.calls("look");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "given")));
    assert!(world.under_way().is_empty());
}

#[test]
fn another_call_is_a_difference_that_names_both() {
    let mut world = later(&waiting());
    let resumed = world.command(Command::Resume(Vec::new()));
    world.calls("look");
    assert_eq!(world.code_of(resumed), "journal_differs");
    let said = world.error(resumed).to_string();
    assert!(said.contains("call 1 is look(") && said.contains("has ask("), "{said}");
    assert!(world.session.pending().is_some());
    world.boot();
    assert!(world.asked_for().starts_with("restore"), "{}", world.asked_for());
    world.restored(&[]);
    world.done();
    let again = world.command(Command::Resume(Vec::new()));
    world.calls("ask");
    world.calls("look");
    world.returns(world.under_way()[0], "second");
    world.ends(ok());
    assert_eq!(world.execution(again).outcome, Outcome::Ok);
}

#[test]
fn another_way_between_calls_is_a_difference_as_well() {
    let mut world = later(&waiting());
    let resumed = world.command(Command::Resume(Vec::new()));
    let exchange = world.exchange();
    let what = "the code sleeps where it reads a clock in the journal".to_owned();
    world.event(Event::Differs { exchange, what });
    assert_eq!(world.code_of(resumed), "journal_differs");
    assert!(world.error(resumed).to_string().contains("sleeps where"));
}

#[test]
fn a_pending_execution_can_be_given_up() {
    let mut world = later(&waiting());
    let discarded = world.command(Command::Discard);
    assert_eq!(world.answer(discarded), &Ok(Reply::Done));
    assert_eq!(world.noted, [RecordChange::End]);
    let next = world.execute("x");
    world.ends_well(&["context", "x"]);
    let execution = world.execution(next);
    assert_eq!((execution.id, execution.state.status), (3, StateStatus::Kept));
    let nothing = world.command(Command::Discard);
    assert_eq!(world.code_of(nothing), "invalid_option");
}

#[test]
fn what_cannot_be_noted_is_told_by_the_next_execution() {
    let mut first = ready();
    first.execute("js; ask()");
    let exchange = first.exchange();
    let why = "it used JavaScript".to_owned();
    first.event(Event::Unnoted { exchange, why });
    first.calls("ask");
    let (_, entries, broken) = written(&first).expect("there is a record");
    assert_eq!((entries.len(), broken.as_deref()), (0, Some("it used JavaScript")));

    let mut world = later(&first);
    assert!(world.session.pending().is_none());
    assert_eq!(world.noted, [RecordChange::End]);
    let next = world.execute("x");
    world.ends_well(&["context"]);
    let state = &world.execution(next).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(0)));
    let lost = state.lost.as_ref().expect("the execution is lost");
    assert_eq!(lost[0].name, "execution 1");
    assert!(lost[0].reason.contains("it used JavaScript"));
}

#[test]
fn an_execution_that_is_stopped_cannot_be_resumed() {
    let mut world = waiting();
    world.feed(Input::Interrupt);
    let (.., broken) = written(&world).expect("there is a record");
    assert_eq!(broken.as_deref(), Some("it was stopped"));
}

#[test]
fn the_record_of_an_execution_whose_guest_crashed_is_removed() {
    let mut world = waiting();
    world.feed(guest_lost(sandglass_core::Error::GuestLost("it crashed".to_owned())));
    assert_eq!(written(&world), None);
}

#[test]
fn the_record_of_an_execution_that_is_undone_is_removed() {
    let mut world = waiting();
    world.returns(world.under_way()[0], "second");
    world.ends_well(&["context", "x"]);
    assert!(written(&world).is_some());
    world.command(Command::State(StateCommand::Undo));
    while world.guest.as_ref().is_some_and(|guest| guest.saving.is_some()) {
        world.saves(false);
    }
    assert_eq!(written(&world), None);
}

#[test]
fn notes_are_bounded() {
    let mut world = ready();
    let ticket = world.execute("while True: time.time()");
    let many = vec![0; 2 << 20];
    notes(&mut world, &many);
    assert!(world.is_pending(ticket));
    notes(&mut world, &many);
    assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
}

#[test]
fn nobody_notes_what_was_not_asked_for() {
    let mut world = World::ready();
    let ticket = world.execute("x");
    notes(&mut world, b"1");
    assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
}

#[test]
fn damaged_records_are_refused() {
    let beginning = Beginning {
        execution: 1,
        code: "ask()".to_owned(),
        timeout_ms: 1.0,
        budget: sandglass_core::budget::BudgetLimits::default(),
        base: 1,
        steps: Vec::new(),
    };
    let answer = Entry::Answer {
        call: 1,
        status: ReplyStatus::Ok,
        message: None,
        value: Some(text("x")),
        usage: sandglass_core::budget::Usage::default(),
    };
    let call = Entry::Call {
        name: "ask".to_owned(),
        args: sandglass_core::session::Encoded {
            encoding: Encoding::Marshal,
            body: b"args".to_vec(),
        },
    };
    let read = |entries: &[Entry<Bytes>]| Record::written(beginning.clone(), entries.to_vec(), None).is_ok();
    assert!(read(&[call.clone(), answer.clone()]));
    assert!(!read(std::slice::from_ref(&answer)));
    assert!(!read(&[call, answer.clone(), answer]));
}

/// A session whose second execution has ended. The state after it is kept.
fn ended() -> World {
    let mut world = waiting();
    world.returns(world.under_way()[0], "second");
    notes(&mut world, b"5");
    world.ends_well(&["context", "x"]);
    while world.saves(true) {}
    world
}

/// Replays the second execution of a session, with this answer to its first call.
fn replaying_in(first: &Session<Bytes>, answer: Option<&str>) -> (World, u32) {
    let (fork, mut record) = first.replayed(2).expect("it can be replayed");
    assert!(first.replayed(7).is_err());
    let strictness = match answer {
        Some(answer) => {
            assert!(record.change(1, text(answer)) && !record.change(3, text(answer)));
            Strictness::Explore
        }
        None => Strictness::Replay,
    };
    let session = Session::forked(fork).with_pending(record, strictness);
    let mut world = World::with(saved(), session);
    let ticket = world.command(Command::Resume(Vec::new()));
    world.boot();
    world.restored(&[]);
    assert_eq!(recalled(&world), Some(&b"1235"[..]));
    (world, ticket)
}

fn replaying(answer: Option<&str>) -> (World, u32) {
    replaying_in(&ended().session, answer)
}

#[test]
fn a_replay_calls_nobody_and_must_go_the_same_way() {
    let (mut world, ticket) = replaying(None);
    world.calls("ask");
    let call = world.calls("look");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "second")));
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!((world.session.difference(), world.noted.as_slice()), (None, &[][..]));

    let (mut world, ticket) = replaying(None);
    world.calls("ask");
    world.ends(ok());
    assert_eq!(world.code_of(ticket), "journal_differs");

    let (mut world, ticket) = replaying(None);
    for name in ["ask", "look", "look"] {
        world.calls(name);
    }
    assert_eq!(world.code_of(ticket), "journal_differs");
}

#[test]
fn a_replay_with_another_answer_tells_the_first_difference() {
    let (mut world, ticket) = replaying(Some("otherwise"));
    let call = world.calls("ask");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "otherwise")));
    world.calls("ask");
    let [made] = world.under_way()[..] else {
        panic!("a call without a recorded answer is made")
    };
    world.returns(made, "new");
    let call = world.calls("look");
    assert_eq!(
        world.reply(call),
        Some((ReplyStatus::Ok, "second")),
        "the same call has the same answer"
    );
    world.ends(ExecutionReport { ..ok() });
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    let difference = world.session.difference().expect("it went another way");
    assert!(
        difference.contains("call 2 is ask(") && difference.contains("has look("),
        "{difference}"
    );
}

/// A session whose driver keeps the states before executions by value.
fn by_value() -> World {
    let session = Session::new(limits(), vec!["ask".to_owned(), "look".to_owned()]);
    let mut world = World::with(limits(), session).begun();
    world.feed(Input::StateKept(Ok(())));
    world
}

/// The record of an execution that has got one answer and waits for another, as the driver has it.
fn record_by_value() -> Record<Bytes> {
    let mut world = by_value();
    world.execute("ask(ask())");
    notes(&mut world, b"12");
    world.calls("ask");
    world.returns(world.under_way()[0], "first");
    world.calls("look");
    let (beginning, entries, broken) = written(&world).expect("there is a record");
    assert_eq!((beginning.base, beginning.steps.len()), (0, 0), "of no checkpoint");
    Record::written(beginning, entries, broken).expect("it is whole")
}

#[test]
fn an_execution_goes_on_from_a_state_that_the_driver_has_put_into_the_guest() {
    let mut world = by_value();
    world.feed(Input::Recorded(Box::new(record_by_value()), Strictness::Resume));
    let refused = world.execute("x");
    assert_eq!(world.code_of(refused), "execution_pending");
    let resumed = world.command(Command::Resume(Vec::new()));
    assert_eq!(recalled(&world), Some(&b"12"[..]));
    let call = world.calls("ask");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "first")));
    world.calls("look");
    world.returns(world.under_way()[0], "second");
    world.ends_well(&["context"]);
    assert_eq!(world.execution(resumed).outcome, Outcome::Ok);
    assert!(
        matches!(world.noted[..], [RecordChange::Add(4, Entry::Answer { call: 2, .. })]),
        "{:?}",
        world.noted
    );
    assert!(
        world.session.replayed(1).is_err(),
        "nothing here has the state before it"
    );
    let ended = world.session.take_ended().expect("the driver has the state");
    assert_eq!((ended.execution(), ended.why_not_replayed()), (1, None));
    assert!(world.session.take_ended().is_none());
}

#[test]
fn an_execution_whose_state_the_driver_has_put_into_the_guest_runs_again() {
    let mut world = by_value();
    let recorded = |strictness| Input::Recorded(Box::new(record_by_value()), strictness);
    world.feed(recorded(Strictness::Replay));
    let ticket = world.command(Command::Resume(Vec::new()));
    assert_eq!(recalled(&world), Some(&b"12"[..]));
    world.calls("ask");
    world.calls("ask");
    assert_eq!(world.code_of(ticket), "journal_differs");
    let why = world.error(ticket).to_string();
    assert!(why.ends_with(". The sandbox stays as it is"), "{why}");

    let mut world = by_value();
    world.feed(recorded(Strictness::Explore));
    let ticket = world.command(Command::Resume(Vec::new()));
    let told = world.guest.as_ref().and_then(|guest| guest.inbox.last());
    assert!(
        matches!(told, Some((Request::Execute { explores: true, .. }, _))),
        "the guest may go another way: {told:?}"
    );
    world.calls("ask");
    world.ends_well(&["context"]);
    assert_eq!((world.execution(ticket).outcome, world.noted.len()), (Outcome::Ok, 0));
    let ended = world.session.take_ended().expect("it has ended");
    assert_eq!((ended.execution(), ended.difference()), (1, None));
}

#[test]
fn a_difference_from_a_record_by_value_ends_the_guest_and_leaves_the_record_to_the_driver() {
    let mut world = by_value();
    world.feed(Input::Recorded(Box::new(record_by_value()), Strictness::Resume));
    let resumed = world.command(Command::Resume(Vec::new()));
    world.calls("look");
    assert_eq!(world.code_of(resumed), "journal_differs");
    assert!(world.session.pending().is_none() && world.guest.is_none());
    assert_eq!(world.noted, []);
}

#[test]
fn a_state_that_is_gone_with_its_guest_cannot_be_resumed_from() {
    let mut world = by_value();
    world.feed(Input::Recorded(Box::new(record_by_value()), Strictness::Resume));
    assert!(world.session.pending().is_some());
    world.feed(guest_lost(sandglass_core::Error::GuestLost("it crashed".to_owned())));
    assert!(world.session.pending().is_none());
    assert_eq!(world.noted, [], "the driver still has the record");
    let resumed = world.command(Command::Resume(Vec::new()));
    assert_eq!(world.code_of(resumed), "invalid_option");
    if world.guest.is_some() {
        world.boot();
    }
    world.feed(Input::Recorded(Box::new(record_by_value()), Strictness::Resume));
    assert!(world.session.pending().is_none(), "another guest has another state");
}

#[test]
fn an_execution_after_a_state_that_the_driver_does_not_have_says_so() {
    let mut world = by_value();
    world.feed(Input::StateKept(Err("it is too large".to_owned())));
    world.execute("ask()");
    world.calls("ask");
    let (_, entries, broken) = written(&world).expect("there is a record");
    assert_eq!((entries.len(), broken.as_deref()), (0, Some("it is too large")));
    world.returns(world.under_way()[0], "first");
    world.ends_well(&["context"]);
    world.noted.clear();
    world.feed(Input::StateKept(Ok(())));
    world.execute("ask()");
    world.calls("ask");
    let (_, entries, broken) = written(&world).expect("there is a record");
    assert_eq!((entries.len(), broken), (1, None), "only the next one");
}

#[test]
fn the_record_by_value_of_an_execution_whose_guest_crashed_is_removed() {
    let mut world = by_value();
    world.execute("ask()");
    world.calls("ask");
    assert!(written(&world).is_some());
    world.feed(guest_lost(sandglass_core::Error::GuestLost("it crashed".to_owned())));
    assert!(written(&world).is_none());
}

#[test]
fn a_difference_from_a_journal_that_the_guest_was_not_given_is_a_violation() {
    for mut world in [by_value(), ready()] {
        let ticket = world.execute("x");
        let exchange = world.exchange();
        world.event(Event::Differs {
            exchange,
            what: "nothing".to_owned(),
        });
        assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
        assert!(world.session.pending().is_none());
    }
}

#[test]
fn a_session_knows_whether_its_guest_is_the_first() {
    let mut world = by_value();
    assert!(world.session.has_first_guest());
    world.feed(guest_lost(sandglass_core::Error::GuestLost("it crashed".to_owned())));
    assert!(!world.session.has_first_guest());
    world.execute("x");
    if world.guest.is_some() {
        world.boot();
    }
    assert!(!world.session.has_first_guest());
    world.feed(Input::Destroy);
    assert!(!world.session.has_first_guest());
}

/// Only the execution after a state that the driver has can be resumed from there.
#[test]
fn what_the_driver_does_not_keep_has_no_record() {
    let mut world = by_value();
    for _ in 0..2 {
        world.execute("ask()");
        world.calls("ask");
        world.returns(world.under_way()[0], "first");
        world.ends_well(&["context"]);
    }
    let begun = |change: &&RecordChange<Bytes>| matches!(change, RecordChange::Begin(_));
    assert_eq!(world.noted.iter().filter(begun).count(), 1, "only the first one");

    world.noted.clear();
    world.feed(Input::StateKept(Ok(())));
    world.command(assign("x", "1"));
    world.done();
    world.execute("ask()");
    world.calls("ask");
    assert_eq!(world.noted, [], "another job has changed the state");

    world.returns(world.under_way()[0], "first");
    world.ends_well(&["context"]);
    world.feed(Input::StateKept(Ok(())));
    world.feed(guest_lost(sandglass_core::Error::GuestLost("it crashed".to_owned())));
    world.execute("ask()");
    if world.guest.is_some() {
        world.boot();
    }
    world.feed(Input::StateKept(Ok(())));
    world.calls("ask");
    assert_eq!(world.noted, [], "another guest has another state");
}

/// A driver writes each entry. Calls are bounded, and so are notes by their number.
#[test]
fn notes_without_content_and_many_without_calls_are_a_violation() {
    for mut world in [by_value(), ready()] {
        let ticket = world.execute("ask()");
        notes(&mut world, b"");
        assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
    }
    for mut world in [by_value(), ready()] {
        let ticket = world.execute("ask(ask())");
        for _ in 0..16 {
            notes(&mut world, b"1");
        }
        world.calls("ask");
        world.returns(world.under_way()[0], "first");
        notes(&mut world, b"2");
        assert!(world.guest.is_some(), "one for each call, and a few");
        notes(&mut world, b"3");
        assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
    }
}

/// A host that has ended the record does not tell the guest, which goes on with its notes.
#[test]
fn notes_after_the_end_of_a_record_are_passed_over() {
    let mut world = by_value();
    let ticket = world.execute("ask()");
    notes(&mut world, b"1");
    let exchange = world.exchange();
    world.event(Event::Unnoted {
        exchange,
        why: "it started a thread".to_owned(),
    });
    notes(&mut world, b"2");
    notes(&mut world, b"3");
    world.ends_well(&["context"]);
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
}

/// Whoever ends the guest then has not stopped the code: it did nothing.
#[test]
fn a_session_knows_whether_recorded_code_only_waits() {
    let mut world = by_value();
    assert!(!world.session.only_waits());
    world.execute("ask(), look()");
    assert!(!world.session.only_waits(), "it computes");
    world.calls("ask");
    assert!(world.session.only_waits());
    world.returns(world.under_way()[0], "first");
    assert!(!world.session.only_waits(), "it has its answer");
    world.calls("look");
    assert!(world.session.only_waits());
    let exchange = world.exchange();
    world.event(Event::Unnoted {
        exchange,
        why: "it started a thread".to_owned(),
    });
    assert!(!world.session.only_waits(), "nothing can go on with it");
    world.returns(world.under_way()[0], "second");
    world.ends_well(&["context"]);

    world.execute("ask()");
    world.calls("ask");
    assert!(!world.session.only_waits(), "it is not recorded");
}

/// The session that was last kept, as a later one reads it, with the records of ended executions.
fn kept(world: &World) -> Kept<Bytes> {
    let kept = world.last_kept.clone().expect("it was kept");
    let read = |record: &Record<Bytes>| match record.broken() {
        Some(why) => Record::missing(record.execution(), why),
        None => {
            let (beginning, entries) = record.parts();
            let json = serde_json::to_string(beginning).expect("it is plain data");
            let beginning = serde_json::from_str(&json).expect("it can be read again");
            let entries = entries.iter().cloned().map(through_json).collect();
            Record::written(beginning, entries, None).expect("it is whole")
        }
    };
    let records = kept.records().iter().map(|record| read(record)).collect();
    kept.map(|_, body| body).with_records(records)
}

/// The reason for which a later session cannot replay an execution.
fn refused(first: &World, foreign: Option<&str>, execution: u32) -> String {
    let later = session().with_keeping(Some(kept(first)), foreign);
    match later.replayed(execution) {
        Ok(_) => "it can be replayed".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_later_session_replays_an_execution_of_an_earlier_one() {
    let first = ended();
    let later = session().with_keeping(Some(kept(&first)), None);
    // The copy is not given the settings of the later session: the code goes the same way with those of its time.
    let (mut world, ticket) = replaying_in(&later, None);
    world.calls("ask");
    let call = world.calls("look");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "second")));
    world.ends(ok());
    let execution = world.execution(ticket);
    assert_eq!((execution.id, execution.outcome), (2, Outcome::Ok));

    let (mut world, _) = replaying_in(&later, Some("otherwise"));
    let call = world.calls("ask");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "otherwise")));

    let later = World::with(saved(), later);
    assert_eq!(
        later.session.kept().records().len(),
        2,
        "a third session gets them, too"
    );
}

#[test]
fn a_later_session_tells_why_an_execution_cannot_be_replayed() {
    let mut first = ended();
    assert_eq!(refused(&first, None, 2), "it can be replayed");
    let why = refused(&first, Some("another release had saved it"), 2);
    assert!(why.contains("execution 2 cannot be replayed: another release"), "{why}");
    let why = refused(&first, None, 7);
    assert!(why.contains("there is no journal of it"), "{why}");

    first.execute("while True: ask()");
    first.feed(Input::Interrupt);
    first.ends_well(&["context", "x"]);
    while first.saves(true) {}
    let why = refused(&first, None, 3);
    assert!(why.contains("it was stopped"), "{why}");
}

#[test]
fn records_go_with_the_states_before_their_executions() {
    let mut first = ended();
    let base = first.last_kept.as_ref().expect("it is kept").records()[1]
        .parts()
        .0
        .base;
    first.feed(Input::CheckpointGone(base, "nobody needs it".to_owned()));
    let kept = first.last_kept.as_ref().expect("it is kept again");
    assert_eq!(kept.records()[1].parts().1, [], "no entry is kept");
    let why = refused(&first, None, 2);
    assert!(why.contains("the state before it is gone"), "{why}");
}

#[test]
fn the_newest_records_are_kept() {
    let mut world = ready();
    for _ in 0..40 {
        world.execute("x");
        world.ends_well(&["context", "x"]);
        while world.saves(true) {}
    }
    let kept = world.last_kept.expect("it is kept");
    let executions: Vec<u32> = kept.records().iter().map(|record| record.execution()).collect();
    assert_eq!(executions, Vec::from_iter(9..=40));
}

#[test]
fn a_session_can_be_kept_without_records() {
    let kept = ended()
        .last_kept
        .expect("it is kept")
        .without_records("there is no room");
    let later = session().with_keeping(Some(kept), None);
    let why = later.replayed(2).expect_err("it has no record").to_string();
    assert!(
        why.contains("execution 2 cannot be replayed: there is no room"),
        "{why}"
    );
}

#[test]
fn an_execution_that_is_pending_again_has_one_record() {
    let mut first = waiting();
    first.returns(first.under_way()[0], "second");
    notes(&mut first, b"5");
    first.ends_well(&["context", "x"]);
    // The page ends before the state is saved, but not before something else was kept.
    first.command(crate::world::assign_context("newer"));
    first.done();
    let executions = |kept: &Kept<Bytes>| Vec::from_iter(kept.records().iter().map(|record| record.execution()));
    assert_eq!(executions(&kept(&first)), [1, 2]);

    let (beginning, entries, broken) = written(&first).expect("the driver has its record");
    let record = Record::written(beginning, entries, broken).expect("it is whole");
    let session = session().with_keeping(Some(kept(&first)), None);
    let session = session.with_pending(record, Strictness::Resume);
    assert!(session.replayed(2).is_err(), "it has not ended");
    assert_eq!(executions(&session.kept()), [1]);
}
