//! Code that is guessed runs ahead as well, when nothing was told.

use sandglass_core::limits::{Limits, MAX_SURVEYED, MAX_SURVEYED_COLUMNS, MAX_SURVEYED_NAME_BYTES};
use sandglass_core::predictions::{Source, Tally};
use sandglass_core::protocol::{ColumnKind, Event, Request, Stream, SurveyedColumn, SurveyedVariable};
use sandglass_core::session::{Input, Session};

use crate::world::{World, assign, limits, list, ok, output};

/// A text so long that its words take seconds to be counted.
const LONG: u32 = 200_000_000;
const WORDS: &str = "len(context.split())";

/// A session that guesses; it has its context, has told that this is so long a text, and has saved it.
fn guessing(length: u32, change: impl FnOnce(&mut Limits)) -> World {
    let mut limits = Limits {
        checkpoints: true,
        ..limits()
    };
    change(&mut limits);
    let session = Session::new(limits.clone(), Vec::new()).with_guesses();
    let mut world = World::with(limits, session).begun();
    world.tells(vec![a_text("context", length)]);
    assert!(world.saves(true));
    world
}

fn a_text(name: &str, length: u32) -> SurveyedVariable {
    SurveyedVariable {
        name: name.to_owned(),
        type_name: "str".to_owned(),
        length: Some(length),
        memory: None,
        columns: Vec::new(),
    }
}

fn table(name: &str, rows: u32, columns: &[(&str, ColumnKind)]) -> SurveyedVariable {
    let columns = columns.iter().map(|(name, kind)| SurveyedColumn {
        name: (*name).to_owned(),
        kind: *kind,
        sample: None,
    });
    SurveyedVariable {
        type_name: "DataFrame".to_owned(),
        columns: columns.collect(),
        ..a_text(name, rows)
    }
}

fn tally(world: &World, source: Source) -> Tally {
    world
        .session
        .stats()
        .ahead
        .code
        .get(&source)
        .cloned()
        .unwrap_or_default()
}

/// The code that runs ahead.
fn ahead(world: &World) -> Option<&str> {
    let inbox = &world.shadow()?.inbox;
    inbox.iter().find_map(|(request, _)| match request {
        Request::Execute { code, ahead: true, .. } => Some(code.as_str()),
        _ => None,
    })
}

#[test]
fn a_guess_that_comes_true_is_served() {
    let mut world = guessing(LONG, |_| {});
    world.shadow_begins();
    let code = ahead(&world).expect("nothing runs ahead").to_owned();
    world.sleep(900.0);
    world.shadow_says(output(world.shadow_turn(), Stream::Result, "7"), None);
    world.shadow_ends(ok());
    let ticket = world.execute(&code);
    let execution = world.execution(ticket);
    assert_eq!((execution.result.as_deref(), execution.duration), (Some("7"), 900.0));
    let Tally { started, used, .. } = tally(&world, Source::Pattern);
    assert_eq!((started, used), (1, 1));
}

#[test]
fn nothing_is_asked_or_guessed_without_the_option() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    let inbox = &world.guest.as_ref().expect("a guest").inbox;
    assert!(
        !inbox
            .iter()
            .any(|(request, _)| matches!(request, Request::Survey { .. }))
    );
    assert!(world.saves(true));
    world.feed(Input::Conversation("describe it".to_owned()));
    world.wait(1_000.0);
    assert!(world.shadow().is_none() && world.session.predictions().is_empty());
    world.event(Event::Surveyed {
        survey: 1,
        variables: Vec::new(),
    });
    assert_eq!(world.boots, 2, "nobody has asked");
}

#[test]
fn what_saves_nothing_does_not_run() {
    let world = guessing(1_000, |_| {});
    assert!(world.shadow().is_none());
    let predictions = world.session.predictions();
    assert!(
        predictions.iter().any(|guess| guess.code == "len(context)"),
        "{predictions:?}"
    );
}

#[test]
fn each_state_is_asked_about_once_and_before_it_is_saved() {
    let mut world = guessing(1_000, |_| {});
    let asked = |world: &World| {
        let inbox = &world.guest.as_ref().expect("a guest").inbox;
        inbox
            .iter()
            .filter(|(request, _)| matches!(request, Request::Survey { .. }))
            .count()
    };
    assert_eq!(asked(&world), 1);
    world.wait(10_000.0);
    world.command(list());
    world.event_with(
        Event::Value {
            exchange: world.exchange(),
            encoding: sandglass_core::protocol::Encoding::Marshal,
        },
        b"[]",
    );
    assert_eq!(asked(&world), 1, "a list changes nothing");
    world.execute("x = 1");
    let next = world.execute("y = 1");
    world.ends(ok());
    assert_eq!(asked(&world), 1, "somebody waits for the guest");
    world.ends(ok());
    assert!(!world.is_pending(next));
    assert_eq!(asked(&world), 2);
    // What is told when the state is another one already is of no use.
    world.execute("z = 1");
    world.tells(vec![a_text("context", LONG)]);
    assert!(world.session.predictions().is_empty());
    world.ends(ok());
    assert_eq!(asked(&world), 3);
}

#[test]
fn a_hint_or_code_that_is_written_displaces_it() {
    let mut world = guessing(LONG, |_| {});
    world.shadow_begins();
    world.hint(&["something else"]);
    assert_eq!(tally(&world, Source::Pattern).wasted, 1);
    world.shadow_begins();
    assert_eq!(ahead(&world), Some("something else"));
    world.feed(Input::Conversation("count the words".to_owned()));
    assert_eq!(ahead(&world), Some("something else"), "talk is not told code");

    let mut world = guessing(LONG, |_| {});
    world.shadow_begins();
    world.writes("something else");
    world.shadow_begins();
    assert_eq!(ahead(&world), Some("something else"));
    world.writes("");
    assert!(world.shadow().is_none());
    world.wait(1_000.0);
    assert!(world.shadow().is_none(), "a guess is tried once in a state");
}

#[test]
fn a_hint_of_the_same_code_goes_on_with_it() {
    let mut world = guessing(LONG, |_| {});
    world.shadow_begins();
    let code = ahead(&world).expect("nothing runs ahead").to_owned();
    world.hint(&[&code]);
    assert_eq!(
        (ahead(&world), tally(&world, Source::Pattern).wasted),
        (Some(code.as_str()), 0)
    );
}

#[test]
fn what_is_talked_about_runs_instead() {
    let columns = [("amount", ColumnKind::Number), ("region", ColumnKind::Text)];
    let mut world = guessing(1_000, |_| {});
    world.execute("sales = pd.read_csv('sales.csv')");
    world.ends(ok());
    world.tells(vec![table("sales", 6_000_000, &columns)]);
    assert!(world.saves(true));
    world.shadow_begins();
    let before = ahead(&world).expect("nothing runs ahead").to_owned();
    world.feed(Input::Conversation("How many distinct values are there?".to_owned()));
    world.shadow_begins();
    assert_ne!(before, "sales.nunique()");
    assert_eq!(ahead(&world), Some("sales.nunique()"));
    let ticket = world.execute("sales.nunique()");
    world.shadow_says(
        Event::Promoted {
            exchange: world.shadow_turn(),
        },
        None,
    );
    world.ends(ok());
    assert!(!world.is_pending(ticket));
    assert_eq!(tally(&world, Source::Conversation).used, 1);
}

#[test]
fn a_guess_is_cut_off_when_its_share_of_the_time_is_over() {
    // A twentieth of a minute at first: 3 s.
    let mut world = guessing(LONG, |limits| limits.timeout_ms = 30_000.0);
    world.shadow_begins();
    world.wait(2_900.0);
    assert!(world.shadow().is_some());
    world.wait(400.0);
    assert!(world.shadow().is_none());
    let wasted = tally(&world, Source::Pattern).time_wasted;
    assert!((3_000.0..3_300.0).contains(&wasted), "{wasted}");
    // There is a little again soon, and not enough for such a guess.
    world.execute("x = 1");
    world.ends(ok());
    world.tells(vec![a_text("context", LONG)]);
    assert!(world.saves(true) && world.shadow().is_none());
}

#[test]
fn what_never_comes_true_is_not_run_any_more() {
    let mut world = guessing(LONG, |limits| limits.max_ahead_share = 1.0);
    let mut ran = Vec::new();
    for round in 0..120 {
        if world.shadow().is_some() {
            world.shadow_begins();
            world.shadow_ends(ok());
            ran.push(round);
        }
        world.execute(&format!("x = {round}"));
        world.ends(ok());
        world.tells(vec![a_text("context", LONG)]);
        assert!(world.saves(true));
    }
    assert!(ran.len() > 3, "{ran:?}");
    assert!(ran.last().is_some_and(|last| *last < 100), "{ran:?}");
}

#[test]
fn what_comes_true_is_run_again_and_again() {
    let mut world = guessing(20_000_000, |limits| limits.max_ahead_share = 1.0);
    assert!(
        world.shadow().is_none(),
        "it might take 0.2 s, and is not likely enough"
    );
    for round in 0..6 {
        let ticket = world.execute(WORDS);
        if world.guest.as_ref().is_some_and(|guest| guest.exchange.is_some()) {
            world.sleep(300.0);
            world.ends(ok());
        }
        assert!(!world.is_pending(ticket), "round {round}");
        world.tells(vec![a_text("context", 20_000_000)]);
        assert!(world.saves(true));
        world.execute("x = 1"); // the same code is not guessed twice in a row
        world.ends(ok());
        world.tells(vec![a_text("context", 20_000_000)]);
        assert!(world.saves(true));
        if world.shadow().is_some() {
            world.shadow_begins();
            assert_eq!(ahead(&world), Some(WORDS));
            world.sleep(300.0);
            world.shadow_ends(ok());
        }
    }
    assert!(
        tally(&world, Source::Pattern).used >= 2,
        "{:?}",
        tally(&world, Source::Pattern)
    );
}

#[test]
fn a_guest_that_tells_too_much_is_ended() {
    let much = [
        vec![a_text("x", 1); MAX_SURVEYED + 1],
        vec![a_text(&"x".repeat(MAX_SURVEYED_NAME_BYTES + 1), 1)],
        vec![table("x", 1, &[("y", ColumnKind::Number); MAX_SURVEYED_COLUMNS + 1])],
        vec![table(
            "x",
            1,
            &[(&"y".repeat(MAX_SURVEYED_NAME_BYTES + 1), ColumnKind::Text)],
        )],
    ];
    for variables in much {
        let mut world = guessing(1_000, |_| {});
        world.execute("x = 1");
        world.ends(ok());
        world.tells(variables);
        assert_eq!(world.boots, 2);
    }
    // Nor is it asked twice.
    let mut world = guessing(1_000, |_| {});
    world.event(Event::Surveyed {
        survey: 1,
        variables: Vec::new(),
    });
    assert_eq!(world.boots, 2);
}

#[test]
fn a_value_that_is_set_is_asked_about() {
    let mut world = guessing(1_000, |_| {});
    world.command(assign("more", "x"));
    world.done();
    world.tells(vec![a_text("more", LONG), a_text("context", 1_000)]);
    assert!(world.saves(true));
    world.shadow_begins();
    assert!(
        ahead(&world).is_some_and(|code| code.contains("more.split")),
        "{:?}",
        ahead(&world)
    );
}
