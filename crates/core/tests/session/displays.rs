//! Rich outputs are shown as they come, and bounded whatever the guest says.

use sandglass_core::execution::{Change, FileChange, Outcome};
use sandglass_core::limits::{
    Limits, MAX_CHANGED_FILES, MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES, MAX_PATH_TEXT,
};
use sandglass_core::protocol::{Event, ExecutionReport, Request};

use crate::world::{World, limits, ok};

fn roomy() -> World {
    World::ready_with(Limits {
        max_value_bytes: 1e9,
        ..limits()
    })
}

fn display(exchange: u32, mime: &str) -> Event {
    Event::Display {
        exchange,
        mime: mime.to_owned(),
        is_result: false,
    }
}

fn show(world: &mut World, mime: &str, size: usize) {
    world.event_with(display(world.exchange(), mime), &vec![b'x'; size]);
}

/// The guest is ended for `forge`, and told by `what`.
fn is_a_violation(what: &str, forge: impl FnOnce(&mut World)) {
    let mut world = roomy();
    let broken = world.execute("forge()");
    forge(&mut world);
    assert_eq!(world.execution(broken).outcome, Outcome::Crashed, "{what}");
    let failure = world.failure(broken);
    assert!(failure.contains(what), "{what}: {failure}");
    world.fresh_guest();
}

#[test]
fn displays_reach_the_driver_in_order() {
    let mut world = roomy();
    let ticket = world.execute("plot()");
    show(&mut world, "image/png", 3);
    show(&mut world, "text/html", 0);
    let shown: Vec<&str> = world.shown.iter().map(|(mime, _)| mime.as_str()).collect();
    assert_eq!(shown, ["image/png", "text/html"]);
    world.ends(ExecutionReport {
        omitted_displays: 7,
        ..ok()
    });
    assert_eq!(world.execution(ticket).truncated.displays, 7);
}

#[test]
fn an_execution_may_show_as_much_as_the_guest_was_told_and_no_more() {
    let mut world = roomy();
    let ticket = world.execute("plot()");
    for _ in 0..MAX_DISPLAYS {
        show(&mut world, "image/png", 1);
    }
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    world.execute("plot()");
    show(&mut world, "image/png", 1);
    world.ends(ok()); // counted anew
    is_a_violation("too many displays", |world| {
        for _ in 0..=MAX_DISPLAYS {
            show(world, "image/png", 1);
        }
    });
    is_a_violation("displays that are too large", |world| {
        show(world, "image/png", MAX_DISPLAY_BYTES as usize + 1);
    });
    is_a_violation("displays that are too large", |world| {
        for _ in 0..=(MAX_DISPLAYS_BYTES / MAX_DISPLAY_BYTES) as usize {
            show(world, "image/png", MAX_DISPLAY_BYTES as usize);
        }
    });
}

#[test]
fn a_display_that_is_none() {
    for mime in [
        "",
        "text/javascript",
        "text/html\"><script>",
        "nonsense",
        "application/x-sh",
    ] {
        is_a_violation("no mime type of one", |world| show(world, mime, 1));
    }
    is_a_violation("without a body", |world| {
        world.event(display(world.exchange(), "text/html"));
    });
    is_a_violation("an oversized event", |world| show(world, &"text/x".repeat(1_000), 1));
    is_a_violation("not under way", |world| {
        world.event_with(display(world.exchange() + 1, "text/html"), b"x");
    });
}

#[test]
fn a_display_outside_of_an_execution_ends_the_guest() {
    let mut world = roomy();
    let ticket = world.get("x");
    show(&mut world, "text/html", 1);
    assert_eq!(world.code_of(ticket), "protocol");
    assert!(world.shown.is_empty());
}

#[test]
fn a_display_is_never_larger_than_a_value_may_be() {
    let world = World::ready_with(Limits {
        max_value_bytes: 500.0,
        ..limits()
    });
    let inbox = &world.guest.as_ref().expect("it runs").inbox;
    let Some((Request::Init { config, .. }, _)) = inbox.first() else {
        panic!("no init: {inbox:?}")
    };
    assert!(config.max_display_bytes <= 500.0);
}

#[test]
fn changed_files_are_told_and_bounded() {
    let changed = |path: String, size: f64| FileChange {
        path,
        change: Change::Created,
        size,
    };
    let mut world = roomy();
    let ticket = world.execute("write()");
    let files = vec![changed("a".to_owned(), 5.0)];
    world.ends(ExecutionReport {
        files: files.clone(),
        omitted_files: 2,
        ..ok()
    });
    assert_eq!(world.execution(ticket).files, files);
    assert_eq!(world.execution(ticket).truncated.files, 2);
    for files in [
        vec![changed("a".to_owned(), 1.0); MAX_CHANGED_FILES + 1],
        vec![changed("a".repeat(MAX_PATH_TEXT + 1), 1.0)],
        vec![changed("a".to_owned(), -1.0)],
        vec![changed("a".to_owned(), f64::NAN)],
    ] {
        is_a_violation("an oversized event", |world| {
            world.ends(ExecutionReport { files, ..ok() });
        });
    }
}
