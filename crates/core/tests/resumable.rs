//! Conversations over links that break anywhere.

#![cfg(not(target_arch = "wasm32"))]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_core::resumable::{Broken, Control, MAX_CONTROL_BYTES, MESSAGE_BYTES, Resumable, WINDOW_BYTES};

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// A message on a link.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Said(u32, usize),
    Taken(u64),
    /// The greeting of either side, with what it has taken.
    Greeting(u64),
}

/// A link: the messages on their way to each side, and whether that way still takes some.
#[derive(Default)]
struct Wire {
    to: [VecDeque<Sent>; 2],
    is_broken: [bool; 2],
}

/// One side, and a program that says numbers and hears the other's.
#[derive(Default)]
struct Side {
    resumable: Resumable<Sent>,
    /// The link that it sends on.
    link: u64,
    said: u32,
    heard: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Say(usize, usize),
    Send(usize),
    /// A side gets the next message of a link: of the newest, or of one that many before it.
    Get(usize, usize),
    Take(usize),
    /// A side notices the end of its link. The other may go on for a while.
    Cut(usize),
    /// The client opens a link.
    Open,
    /// A link loses the messages to a side from a position on, and those that follow.
    Lose(usize, usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = || 0..2_usize;
    let bytes = prop_oneof![4 => 0..200_usize, 2 => 0..WINDOW_BYTES / 4, 1 => 0..WINDOW_BYTES * 2];
    let before = || prop_oneof![6 => Just(0_usize), 1 => 1..4_usize];
    let step = prop_oneof![
        6 => (side(), bytes).prop_map(|(side, bytes)| Step::Say(side, bytes)),
        8 => side().prop_map(Step::Send),
        9 => (side(), before()).prop_map(|(side, before)| Step::Get(side, before)),
        8 => side().prop_map(Step::Take),
        1 => side().prop_map(Step::Cut),
        2 => Just(Step::Open),
        1 => (side(), before(), 0..5_usize).prop_map(|(side, before, at)| Step::Lose(side, before, at)),
    ];
    vec(step, 0..400)
}

#[derive(Default)]
struct World {
    sides: [Side; 2],
    /// The links, of which the first has the number 1.
    wires: Vec<Wire>,
}

impl World {
    fn put(&mut self, link: u64, to: usize, sent: Sent) {
        let wire = &mut self.wires[usize::try_from(link).unwrap() - 1];
        if !wire.is_broken[to] {
            wire.to[to].push_back(sent);
        }
    }

    fn open(&mut self) {
        let client = &mut self.sides[CLIENT].resumable;
        let (link, taken) = (client.open(), client.taken());
        self.wires.push(Wire::default());
        assert_eq!(link, self.wires.len() as u64);
        self.put(link, SERVER, Sent::Greeting(taken));
    }

    fn send(&mut self, from: usize) {
        let side = &mut self.sides[from];
        let link = side.link;
        let taken = side.resumable.to_tell(link).map(Sent::Taken);
        let said = side.resumable.next(link);
        for sent in [taken, said].into_iter().flatten() {
            self.put(link, 1 - from, sent);
        }
    }

    /// Brings a message of a link to a side. Returns false if there is none.
    fn get(&mut self, to: usize, link: u64) -> bool {
        let Some(wire) = usize::try_from(link)
            .ok()
            .and_then(|link| self.wires.get_mut(link.wrapping_sub(1)))
        else {
            return false;
        };
        let Some(sent) = wire.to[to].pop_front() else {
            return false;
        };
        let side = &mut self.sides[to];
        match sent {
            Sent::Said(_, bytes) => side.resumable.arrived(link, sent, bytes).unwrap(),
            Sent::Taken(taken) => side.resumable.told(link, taken).unwrap(),
            Sent::Greeting(taken) => match side.resumable.link(link, taken) {
                Ok(()) => {
                    side.link = link;
                    let answer = Sent::Greeting(side.resumable.taken());
                    if to == SERVER {
                        self.put(link, CLIENT, answer);
                    }
                }
                Err(error) => assert_eq!(error, Broken::Late),
            },
        }
        true
    }

    fn take(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        let Some(Sent::Said(number, _)) = side.resumable.take() else {
            return false;
        };
        side.heard.push(number);
        true
    }

    fn step(&mut self, step: Step) {
        let newest = self.wires.len() as u64;
        match step {
            Step::Say(side, bytes) => {
                let side = &mut self.sides[side];
                if side.resumable.has_room() {
                    side.resumable.push(Sent::Said(side.said, bytes), bytes);
                    side.said += 1;
                }
            }
            Step::Send(side) => self.send(side),
            Step::Get(side, before) => _ = self.get(side, newest.saturating_sub(before as u64)),
            Step::Take(side) => _ = self.take(side),
            Step::Cut(side) => self.sides[side].resumable.cut(),
            Step::Open => self.open(),
            Step::Lose(side, before, at) => {
                let wire = self.wires.iter_mut().rev().nth(before);
                if let Some(wire) = wire {
                    wire.to[side].truncate(at);
                    wire.is_broken[side] = true;
                }
            }
        }
    }

    /// Opens a link that holds, and lets everything arrive.
    fn settle(&mut self) {
        self.open();
        let link = self.wires.len() as u64;
        loop {
            let mut goes_on = false;
            for side in [CLIENT, SERVER] {
                self.send(side);
                goes_on |= self.get(side, link);
                goes_on |= self.take(side);
            }
            if !goes_on {
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn everything_arrives_once_and_in_order(steps in steps()) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
            for side in [CLIENT, SERVER] {
                // Nothing is made up, doubled or left out on the way, however far it is.
                let side = &world.sides[side];
                prop_assert!(side.heard.iter().copied().eq(0..side.heard.len() as u32));
            }
        }
        world.settle();
        for side in [CLIENT, SERVER] {
            prop_assert!(world.sides[side].heard.iter().copied().eq(0..world.sides[1 - side].said));
        }
    }
}

/// A conversation whose first link holds.
fn linked() -> Resumable<u32> {
    let mut resumable = Resumable::new();
    resumable.link(1, 0).unwrap();
    resumable
}

#[test]
fn a_sender_stops_at_the_window_and_goes_on_when_messages_are_taken() {
    let mut side = linked();
    side.push(1, WINDOW_BYTES - 2 * MESSAGE_BYTES);
    assert!(side.has_room());
    side.push(2, 10 * WINDOW_BYTES);
    assert!(!side.has_room());
    side.push(3, 0);
    assert_eq!([side.next(1), side.next(1), side.next(1)], [Some(1), Some(2), None]);
    side.told(1, 1).unwrap();
    assert_eq!(side.next(1), None);
    side.told(1, 2).unwrap();
    assert_eq!(side.next(1), Some(3));
    assert!(side.has_room());
}

#[test]
fn a_flood_is_refused() {
    let mut side = linked();
    let size = WINDOW_BYTES / 2 - MESSAGE_BYTES;
    side.arrived(1, 1, size).unwrap();
    side.arrived(1, 2, size).unwrap();
    assert_eq!(side.arrived(1, 3, 0), Err(Broken::Flood));
    // Empty messages count, too.
    let mut side = linked();
    let most = (0..).find(|number| side.arrived(1, *number, 0).is_err()).unwrap();
    assert_eq!(most as usize, WINDOW_BYTES / MESSAGE_BYTES);
    // What nobody took does not stay when the link breaks.
    side.cut();
    assert!(!side.has_arrived());
}

#[test]
fn counts_that_cannot_be_true_are_refused() {
    let mut side = linked();
    side.push(1, 1);
    side.push(2, 1);
    assert_eq!(side.next(1), Some(1));
    assert_eq!(side.told(1, 2), Err(Broken::WrongCount));
    side.told(1, 1).unwrap();
    assert_eq!(side.told(1, 0), Err(Broken::WrongCount));
    assert_eq!(side.link(2, 0), Err(Broken::WrongCount));
    assert_eq!(side.link(2, 2), Err(Broken::WrongCount));
    assert_eq!(side.link(1, 1), Err(Broken::Late));
    side.link(2, 1).unwrap();
    assert_eq!(side.next(1), None);
    assert_eq!(side.next(2), Some(2));
}

#[test]
fn messages_of_the_layer_are_marked_and_short() {
    for control in [
        Control::Begin {},
        Control::Resume {
            token: "a".to_owned(),
            link: 2,
            taken: 3,
        },
        Control::Ended {
            reason: "\"".to_owned(),
        },
    ] {
        assert_eq!(Control::read(&control.text()), Ok(Some(control)));
    }
    assert_eq!(Control::Taken { taken: 7 }.text(), r##"#{"type":"taken","taken":7}"##);
    assert_eq!(Control::read(r#"{"type":"begin"}"#), Ok(None));
    let long = format!(r##"#{{"type":"ended","reason":"{}"}}"##, "a".repeat(MAX_CONTROL_BYTES));
    for malformed in [
        "#",
        "#{}",
        r##"#{"type":"taken","taken":-1}"##,
        r##"#{"type":"begin","a":1}"##,
        &long,
    ] {
        assert_eq!(Control::read(malformed), Err(Broken::Malformed), "{malformed}");
    }
}
