//! Anything in any order. [`World`] checks what a driver may rely on after every step; here is what comes at the end.

use proptest::prelude::*;
use sandglass_core::Error;
use sandglass_core::budget::BudgetLimits;
use sandglass_core::deadline::StopReason;
use sandglass_core::limits::{MAX_NAMES, MAX_OUTPUT_EVENT_BYTES};
use sandglass_core::protocol::{
    Encoding, Ended, Event, ExecutionReport, GuestInfo, PROTOCOL_VERSION, Request, Stream, SurveyedVariable,
};
use sandglass_core::session::{
    CellFile, Command, Execute, FileCommand, GuestInput, Input, Look, Series, Session, Settings, StateCommand, Target,
    VariableCommand, Wanted,
};

use crate::packages::package;
use crate::world::{
    Bytes, World, add, assign, assign_context, bad_message, get, guest_lost, guest_says, limits, list, ok, output, text,
};

/// Something that happens. Guests, calls and tickets are meant relative to what there is.
#[derive(Debug, Clone)]
enum Step {
    Command(Command<Bytes>),
    Cancel {
        back: u32,
    },
    /// The value of a command is there, or never will be.
    Arrives {
        back: u32,
        well: bool,
    },
    Interrupt,
    Destroy,
    /// The guest answers what it was asked.
    Answers {
        ended: Ended,
        stopped: Option<StopReason>,
        names: Option<Vec<String>>,
        mark: Option<u32>,
    },
    /// The guest says something about the exchange that is `ahead` of its own.
    Says {
        ahead: i32,
        what: Saying,
    },
    /// Something that is about no exchange.
    Sends(Event, Option<Bytes>),
    /// The guest ends the save that it was asked for.
    Saves(bool),
    /// It saves what it can, and may have much memory left over.
    SavesPart {
        spent: bool,
    },
    BadMessage,
    GuestLost,
    /// The host call under way at `position` comes back.
    Returns {
        position: usize,
        well: bool,
    },
    ReturnsUnknown(u32),
    /// The approval of a call is asked for, or given. The call may be unknown.
    Approves {
        call: u32,
        given: bool,
    },
    /// Packages that a command asked for are there, or cannot be had.
    Fetched {
        well: bool,
    },
    /// Nothing happens for so long that the guest is asked to save, and does so.
    Rests,
    /// Code is written so far.
    Writes(usize),
    /// Codes of these lengths are hinted at.
    Hints(Vec<usize>),
    /// A guest that runs code ahead does what it was asked for, or says something: one so many before the newest.
    Shadow(Shadow, u32),
    MemoryIsShort,
    /// The session's own says whether it may have run so.
    Checks(bool),
    /// It tells what there is, if it was asked: a text of this length.
    Tells(u32),
    /// The conversation.
    Talks(&'static str),
    Wait(f64),
    /// The clock jumps, and nobody is told.
    Sleep(f64),
    Wake,
}

#[derive(Debug, Clone, Copy)]
enum Shadow {
    /// The event that ours would send next.
    Helps,
    Waits,
    IsPromoted,
    Looks,
    Prints,
    Calls,
    /// A call that may begin ahead.
    Asks,
    /// The same as the call before.
    AsksAgain,
    Ends,
    IsLost,
}

#[derive(Debug, Clone)]
enum Saying {
    Output {
        skipped: u64,
        bytes: usize,
        stream: Stream,
    },
    Call {
        name: &'static str,
        repeat: bool,
        body: Option<usize>,
    },
    Executed(ExecutionReport, Option<Bytes>),
    Value(Encoding, Option<Bytes>),
    Done,
    Refused,
    Display(&'static str, Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => command().prop_map(Step::Command),
        3 => (0..4_u32).prop_map(|back| Step::Cancel { back }),
        3 => (0..4_u32, prop::bool::weighted(0.8)).prop_map(|(back, well)| Step::Arrives { back, well }),
        2 => Just(Step::Interrupt),
        1 => prop_oneof![9 => Just(Step::Wake), 1 => Just(Step::Destroy)],
        20 => (ended(), reason(), names(), prop::option::of(any::<u32>()))
            .prop_map(|(ended, stopped, names, mark)| Step::Answers { ended, stopped, names, mark }),
        20 => saying().prop_map(|what| Step::Says { ahead: 0, what }),
        1 => (-2..3, saying()).prop_map(|(ahead, what)| Step::Says { ahead, what }),
        2 => aside().prop_map(|(event, body)| Step::Sends(event, body)),
        12 => Just(Step::Sends(ready(PROTOCOL_VERSION), None)),
        6 => prop::bool::weighted(0.7).prop_map(Step::Saves),
        2 => any::<bool>().prop_map(|spent| Step::SavesPart { spent }),
        1 => Just(Step::BadMessage),
        1 => Just(Step::GuestLost),
        10 => (0..3_usize, any::<bool>()).prop_map(|(position, well)| Step::Returns { position, well }),
        2 => (0..9_u32).prop_map(Step::ReturnsUnknown),
        2 => (0..9_u32, any::<bool>()).prop_map(|(call, given)| Step::Approves { call, given }),
        8 => any::<bool>().prop_map(|well| Step::Fetched { well }),
        2 => (0..50_usize).prop_map(Step::Writes),
        2 => prop::collection::vec(0..50_usize, 0..4).prop_map(Step::Hints),
        24 => (shadow(), back()).prop_map(|(what, back)| Step::Shadow(what, back)),
        1 => Just(Step::MemoryIsShort),
        6 => prop::bool::weighted(0.8).prop_map(Step::Checks),
        6 => prop::sample::select(vec![10, 400_000_000]).prop_map(Step::Tells),
        6 => (0.0..2_000.0_f64).prop_map(Step::Wait),
        2 => (0.0..1e5_f64).prop_map(Step::Sleep),
        4 => Just(Step::Wake),
    ]
}

/// Steps about code that runs ahead, mostly.
fn step_ahead() -> impl Strategy<Value = Step> {
    let execute = (4..8_usize, prop::bool::weighted(0.1)).prop_map(|(length, is_short)| {
        Command::Execute(Execute {
            code: "x".repeat(length),
            timeout_ms: is_short.then_some(50.0),
            budget: BudgetLimits::default(),
        })
    });
    prop_oneof![
        4 => execute.prop_map(Step::Command),
        1 => Just(Step::Command(list())),
        1 => command().prop_map(Step::Command),
        1 => (0..3_u32).prop_map(|back| Step::Cancel { back }),
        1 => Just(Step::Interrupt),
        8 => Just(Step::Answers { ended: Ended::Ok, stopped: None, names: None, mark: Some(1) }),
        8 => Just(Step::Rests),
        4 => Just(Step::Sends(ready(PROTOCOL_VERSION), None)),
        6 => (0..7_usize).prop_map(Step::Writes),
        6 => prop::collection::vec(0..7_usize, 0..5).prop_map(Step::Hints),
        30 => (shadow(), back()).prop_map(|(what, back)| Step::Shadow(what, back)),
        1 => Just(Step::MemoryIsShort),
        8 => prop::bool::weighted(0.8).prop_map(Step::Checks),
        8 => prop::sample::select(vec![10, 400_000_000]).prop_map(Step::Tells),
        1 => prop::sample::select(vec!["", "find \"nothing\" in it"]).prop_map(Step::Talks),
        2 => Just(Step::Command(Command::Execute(Execute::of("len(x.split())")))),
        4 => (0..3_usize, any::<bool>()).prop_map(|(position, well)| Step::Returns { position, well }),
        4 => (0.0..300.0_f64).prop_map(Step::Wait),
        1 => (0.0..1e5_f64).prop_map(Step::Sleep),
        1 => Just(Step::Sends(Event::Checked { check: 1, plain: true }, None)),
    ]
}

/// The newest, as a rule.
fn back() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 1 => 1..4_u32]
}

fn shadow() -> impl Strategy<Value = Shadow> {
    prop_oneof![
        40 => Just(Shadow::Helps),
        4 => Just(Shadow::Waits),
        3 => Just(Shadow::IsPromoted),
        1 => Just(Shadow::Looks),
        4 => Just(Shadow::Prints),
        2 => Just(Shadow::Calls),
        4 => Just(Shadow::Asks),
        1 => Just(Shadow::AsksAgain),
        3 => Just(Shadow::Ends),
        1 => Just(Shadow::IsLost),
    ]
}

fn command() -> impl Strategy<Value = Command<Bytes>> {
    let execute = (
        prop_oneof![9 => 0..50_usize, 1 => Just(2_000)],
        prop::option::of(1.0..3_000.0_f64),
        prop::option::of((0..4_u8).prop_map(f64::from)),
    );
    prop_oneof![
        2 => Just(Command::Start),
        3 => Just(assign_context("context")),
        8 => execute.prop_map(|(length, timeout_ms, max_calls)| Command::Execute(Execute {
            code: "x".repeat(length),
            timeout_ms,
            budget: BudgetLimits { max_calls, max_time: timeout_ms.map(|ms| 2.0 * ms), ..BudgetLimits::default() },
        })),
        2 => Just(get("x")),
        2 => Just(assign("x", "value")),
        1 => Just(list()),
        1 => Just(Command::Configure(Settings { host_functions: Some(vec!["lookup".to_owned()]), output_fields: None })),
        1 => Just(Command::Variable(VariableCommand::Open(b"state".to_vec(), 1e6))),
        1 => Just(Command::Variable(VariableCommand::Capture { max_bytes: 1e6, portable: true, direct: false })),
        1 => Just(Command::State(StateCommand::Checkpoint)),
        1 => prop::option::of(0..5_u32).prop_map(|execution| Command::State(StateCommand::Restore(execution))),
        1 => Just(Command::State(StateCommand::Undo)),
        2 => Just(Command::Load(Wanted::Requirements(vec!["a".to_owned()]))),
        2 => Just(Command::Load(Wanted::Modules(vec!["a".to_owned()]))),
        1 => Just(Command::State(StateCommand::Fork)),
        2 => file_command().prop_map(Command::File),
        1 => series().prop_map(|series| add(series, "more")),
        1 => Just(Command::Later(Target::Context)),
        1 => series().prop_map(|series| Command::Later(Target::Next(series))),
    ]
}

fn series() -> impl Strategy<Value = Series> {
    prop::sample::select(vec![Series::Context, Series::SessionContext, Series::History])
}

fn file_command() -> impl Strategy<Value = FileCommand<Bytes>> {
    let path = || "a/b.txt".to_owned();
    prop::sample::select(vec![
        FileCommand::Write {
            path: path(),
            data: b"data".to_vec(),
        },
        FileCommand::Read {
            path: path(),
            text: true,
        },
        FileCommand::Read {
            path: path(),
            text: false,
        },
        FileCommand::List(path()),
        FileCommand::Remove(path()),
        FileCommand::Cell {
            file: CellFile::Input,
            about: b"{}".to_vec(),
        },
        FileCommand::Look {
            look: Look::Complete,
            about: b"{}".to_vec(),
        },
    ])
}

fn saying() -> impl Strategy<Value = Saying> {
    let stream = prop::sample::select(vec![
        Stream::Stdout,
        Stream::Stderr,
        Stream::Result,
        Stream::Error,
        Stream::Traceback,
    ]);
    let skipped = prop_oneof![4 => Just(0), 1 => any::<u64>()];
    let bytes = prop_oneof![20 => 0..200_usize, 1 => Just(MAX_OUTPUT_EVENT_BYTES + 1)];
    let name = prop::sample::select(vec!["ask", "llm_query", "rlm_query", "look", "unknown"]);
    let args = prop_oneof![20 => (0..300_usize).prop_map(Some), 1 => Just(Some(1_001)), 1 => Just(None)];
    let body = prop::option::of(prop::collection::vec(any::<u8>(), 0..20));
    let encoding = || {
        prop::sample::select(vec![
            Encoding::None,
            Encoding::Missing,
            Encoding::Text,
            Encoding::Tagged,
        ])
    };
    let output =
        (skipped, bytes, stream).prop_map(|(skipped, bytes, stream)| Saying::Output { skipped, bytes, stream });
    let mime = prop::sample::select(vec!["text/html", "image/png", "image/svg+xml", "text/javascript"]);
    let size = prop_oneof![20 => (0..900_usize).prop_map(Some), 1 => Just(None)];
    let call = (name, prop::bool::weighted(0.05), args);
    prop_oneof![
        12 => output,
        12 => call.prop_map(|(name, repeat, body)| Saying::Call { name, repeat, body }),
        1 => (report(), body.clone()).prop_map(|(report, body)| Saying::Executed(report, body)),
        1 => (encoding(), body).prop_map(|(encoding, body)| Saying::Value(encoding, body)),
        1 => Just(Saying::Done),
        1 => Just(Saying::Refused),
        4 => (mime, size).prop_map(|(mime, size)| Saying::Display(mime, size)),
    ]
}

/// Events that belong to no exchange, or are nothing that a guest of ours would send.
fn aside() -> impl Strategy<Value = (Event, Option<Bytes>)> {
    let message = || "x".repeat(100);
    let event = prop::sample::select(vec![
        Event::Saved {
            checkpoint: u32::MAX,
            full: true,
            lost: Vec::new(),
            spent: false,
        },
        Event::Restored {
            exchange: 1,
            lost: Vec::new(),
            names: None,
        },
        Event::NotSaved {
            checkpoint: 1,
            reason: Some("full".to_owned()),
        },
        ready(PROTOCOL_VERSION + 1),
        Event::BootFailed { message: message() },
        Event::Fatal { message: message() },
        Event::Fatal {
            message: "x".repeat(100_000),
        },
        Event::Part {
            encoding: Encoding::Bytes,
        },
    ]);
    (
        event,
        prop::option::of(prop::sample::select(vec![vec![], vec![0; 10], vec![0; 1_001]])),
    )
}

fn report() -> impl Strategy<Value = ExecutionReport> {
    (ended(), reason(), names(), any::<bool>()).prop_map(|(ended, stopped, names, has_final)| ExecutionReport {
        ended,
        error_type: (ended != Ended::Ok).then(|| "KeyboardInterrupt".to_owned()),
        stopped,
        has_final,
        names,
        ..ok()
    })
}

fn ended() -> impl Strategy<Value = Ended> {
    prop::sample::select(vec![Ended::Ok, Ended::Error, Ended::Limit])
}

fn reason() -> impl Strategy<Value = Option<StopReason>> {
    let reasons = vec![
        StopReason::Timeout,
        StopReason::WallTimeout,
        StopReason::Budget,
        StopReason::Interrupt,
    ];
    prop::option::weighted(0.2, prop::sample::select(reasons))
}

fn names() -> impl Strategy<Value = Option<Vec<String>>> {
    prop_oneof![
        10 => Just(None),
        10 => prop::sample::subsequence(vec!["context", "x", "y", "z"], 0..4)
            .prop_map(|names| Some(names.into_iter().map(str::to_owned).collect())),
        1 => Just(Some(vec!["x".to_owned(); MAX_NAMES + 1])),
    ]
}

fn ready(version: u32) -> Event {
    Event::Ready {
        version,
        guest: GuestInfo::default(),
    }
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Command(command) => drop(self.command(command)),
            Step::Cancel { back } => self.feed(Input::Cancel(self.tickets().saturating_sub(back))),
            Step::Arrives { back, well } => {
                let value = if well {
                    Ok(text("it"))
                } else {
                    Err(Error::NotSerializable("it is gone".to_owned()))
                };
                self.feed(Input::Arrived(self.tickets().saturating_sub(back), value));
            }
            Step::Interrupt => self.feed(Input::Interrupt),
            Step::Destroy => self.feed(Input::Destroy),
            Step::Answers {
                ended,
                stopped,
                names,
                mark,
            } => self.answers_its_turn(ended, stopped, names, mark),
            Step::Says { ahead, what } => self.says(ahead, what),
            // A guest that is ready says so once; what happens if it does not is in `violations`.
            Step::Sends(Event::Ready { .. }, _) if self.guest.as_ref().is_none_or(|guest| guest.ready) => {}
            Step::Sends(event, body) => self.feed(guest_says(event, body)),
            Step::Saves(well) => drop(self.saves(well)),
            Step::SavesPart { spent } => drop(self.saves_but(if spent { &[] } else { &["x"] }, spent)),
            Step::BadMessage => self.feed(bad_message("x".repeat(1_000))),
            Step::GuestLost => self.feed(guest_lost(Error::GuestLost("gone".to_owned()))),
            Step::Returns { position, well } => {
                let Some(&call) = self.under_way().get(position) else {
                    return;
                };
                let result = if well {
                    Ok(text("returned"))
                } else {
                    Err("failed".to_owned())
                };
                self.feed(Input::HostReturned(call, result));
            }
            Step::ReturnsUnknown(call) => {
                // A call that was begun ahead returns, or one that nobody knows.
                let begun = self.begun.keys().next().copied();
                self.returns(begun.unwrap_or(call), "stale");
            }
            Step::Approves { call, given: false } => self.feed(Input::NeedsApproval(call)),
            Step::Approves { call, given: true } => self.feed(Input::Approved(call)),
            Step::Fetched { well } => self.fetches(well),
            Step::Rests => {
                self.wait(60.0);
                self.saves(true);
            }
            Step::Writes(length) => self.writes(&"x".repeat(length)),
            Step::Hints(lengths) => {
                let codes: Vec<_> = lengths.into_iter().map(|length| "x".repeat(length)).collect();
                self.hint(&codes.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Step::MemoryIsShort => self.feed(Input::MemoryIsShort),
            Step::Shadow(what, back) => {
                self.at = self.last_shadow().saturating_sub(back);
                self.shadow_does(what);
                if matches!(what, Shadow::Helps) {
                    self.shadow_does(what); // it is ready, and has the state
                }
            }
            Step::Checks(plain) => {
                if self.guest.as_ref().is_some_and(|guest| !guest.checks.is_empty()) {
                    self.checks(plain);
                }
            }
            Step::Tells(length) => {
                if self.guest.as_ref().is_some_and(|guest| guest.survey.is_some()) {
                    self.tells(vec![SurveyedVariable {
                        name: "x".to_owned(),
                        type_name: "str".to_owned(),
                        length: Some(length),
                        memory: None,
                        columns: Vec::new(),
                    }]);
                }
            }
            Step::Talks(text) => self.feed(Input::Conversation(text.to_owned())),
            Step::Wait(ms) => self.wait(ms),
            Step::Sleep(ms) => self.sleep(ms),
            Step::Wake => drop(self.wake()),
        }
    }

    /// Code that runs ahead says what it may, or never would.
    fn shadow_does(&mut self, what: Shadow) {
        let Some(guest) = self.shadow() else { return };
        let asked = guest.inbox.iter().rev().map(|(request, _)| request);
        let asked = asked
            .clone()
            .find(|request| !matches!(request, Request::Promote { .. }));
        let (exchange, asked) = (guest.exchange.unwrap_or(1), asked.cloned());
        let is_written = guest
            .inbox
            .iter()
            .any(|(request, _)| matches!(request, Request::Execute { more: true, .. }));
        let event = match (what, asked) {
            (Shadow::Helps, Some(Request::Init { .. })) => ready(PROTOCOL_VERSION),
            (Shadow::Helps, Some(Request::Restore { .. })) => Event::Restored {
                exchange,
                lost: Vec::new(),
                names: None,
            },
            (Shadow::Helps, Some(Request::Install { .. } | Request::Configure { .. })) => Event::Done { exchange },
            (Shadow::Helps, _) if guest.promoting => Event::Promoted { exchange },
            (Shadow::Helps, _) if is_written && !guest.waiting => Event::Waiting { exchange },
            (Shadow::Waits, _) if is_written => Event::Waiting { exchange },
            (Shadow::IsPromoted, _) => Event::Promoted { exchange },
            (Shadow::Looks, _) => Event::External { exchange },
            (Shadow::Prints, _) => output(exchange, Stream::Stdout, "ahead"),
            (Shadow::Ends, _) => Event::Executed {
                exchange,
                execution: ok(),
                encoding: Encoding::None,
            },
            (Shadow::Calls | Shadow::Asks | Shadow::AsksAgain, _) => {
                let name = if matches!(what, Shadow::Calls) {
                    "ask"
                } else {
                    "llm_query"
                };
                let call = match what {
                    Shadow::AsksAgain => self.same_call(),
                    _ => self.fresh_call(),
                };
                let event = Event::HostCall {
                    exchange,
                    call,
                    batch: 1,
                    name: name.to_owned(),
                    encoding: Encoding::Marshal,
                    blocking: false,
                };
                return self.shadow_says(event, Some(b"args"));
            }
            (Shadow::IsLost, _) => {
                return self.shadow_sends(GuestInput::Lost(Error::GuestLost("gone".to_owned())));
            }
            (Shadow::Helps | Shadow::Waits, _) => return,
        };
        self.shadow_says(event, None);
    }

    /// The guest ends its exchange, as ours would.
    fn answers_its_turn(
        &mut self,
        ended: Ended,
        stopped: Option<StopReason>,
        names: Option<Vec<String>>,
        mark: Option<u32>,
    ) {
        let Some(guest) = &self.guest else { return };
        let asked = guest.inbox.iter().rev().map(|(request, _)| request);
        let asked = asked.clone().find(|request| {
            !matches!(
                request,
                Request::HostReply { .. }
                    | Request::Interrupt { .. }
                    | Request::Init { .. }
                    | Request::Check { .. }
                    | Request::Survey { .. }
                    | Request::Extend { .. }
                    | Request::Promote { .. }
            )
        });
        let (Some(exchange), Some(asked)) = (guest.exchange, asked) else {
            return;
        };
        let (event, body) = match asked {
            Request::Execute { .. } => {
                let error_type = (ended != Ended::Ok).then(|| "KeyboardInterrupt".to_owned());
                let execution = ExecutionReport {
                    ended,
                    error_type,
                    stopped,
                    names,
                    mark,
                    ..ok()
                };
                (
                    Event::Executed {
                        exchange,
                        execution,
                        encoding: Encoding::None,
                    },
                    None,
                )
            }
            _ if ended == Ended::Error => (
                Event::Refused {
                    exchange,
                    message: "no".to_owned(),
                },
                None,
            ),
            Request::SetVariable { .. }
            | Request::Configure { .. }
            | Request::WriteFile { .. }
            | Request::Install { .. } => (Event::Done { exchange }, None),
            Request::ReadFile { text: false, .. } | Request::ListFiles { .. } | Request::RemoveFile { .. } => (
                Event::Value {
                    exchange,
                    encoding: Encoding::Missing,
                },
                Some(Vec::new()),
            ),
            Request::Restore { .. } => (
                Event::Restored {
                    exchange,
                    lost: Vec::new(),
                    names: None,
                },
                None,
            ),
            _ => (
                Event::Value {
                    exchange,
                    encoding: Encoding::Text,
                },
                Some(b"value".to_vec()),
            ),
        };
        self.feed(guest_says(event, body));
    }

    fn says(&mut self, ahead: i32, what: Saying) {
        let current = self.guest.as_ref().and_then(|guest| guest.exchange);
        let Some(exchange) = current.map(|exchange| exchange.saturating_add_signed(ahead)) else {
            return;
        };
        let (event, body) = match what {
            Saying::Output { skipped, bytes, stream } => (
                Event::Output {
                    exchange,
                    stream,
                    skipped,
                    text: "x".repeat(bytes),
                },
                None,
            ),
            Saying::Call { name, repeat, body } => {
                let call = self.fresh_call() - u32::from(repeat);
                let (name, encoding) = (name.to_owned(), Encoding::Marshal);
                let body = body.map(|bytes| vec![0; bytes]);
                (
                    Event::HostCall {
                        exchange,
                        call,
                        batch: 1,
                        name,
                        encoding,
                        blocking: repeat,
                    },
                    body,
                )
            }
            Saying::Executed(execution, body) => (
                Event::Executed {
                    exchange,
                    execution,
                    encoding: Encoding::Text,
                },
                body,
            ),
            Saying::Value(encoding, body) => (Event::Value { exchange, encoding }, body),
            Saying::Display(mime, size) => (
                Event::Display {
                    exchange,
                    mime: mime.to_owned(),
                    is_result: size.is_some_and(|size| size % 2 == 0),
                },
                size.map(|size| vec![0; size]),
            ),
            Saying::Done => (Event::Done { exchange }, None),
            Saying::Refused => (
                Event::Refused {
                    exchange,
                    message: "no".to_owned(),
                },
                None,
            ),
        };
        self.feed(guest_says(event, body));
    }

    /// The packages of the first command that waits for some.
    fn fetches(&mut self, well: bool) {
        let Some(&ticket) = self.fetching.first() else { return };
        let result = if well {
            Ok(vec![package(&format!("p{}", ticket % 3))])
        } else {
            Err(Error::AssetFailed("offline".to_owned()))
        };
        self.feed(Input::Fetched(ticket, result));
    }

    /// Runs the clock until nothing is left to wait for. Every wait ends, so this does, too.
    fn settle(&mut self, guest_helps: bool) {
        for _ in 0..100 + 10 * self.tickets() {
            while !self.fetching.is_empty() {
                self.fetches(guest_helps);
            }
            if guest_helps {
                self.saves(true);
                self.take(Step::Sends(ready(PROTOCOL_VERSION), None));
                self.take(Step::Answers {
                    ended: Ended::Ok,
                    stopped: None,
                    names: None,
                    mark: None,
                });
            }
            let awaited = self.awaited.first().copied();
            if let Some(ticket) = awaited {
                self.feed(Input::Arrived(ticket, Ok(text("at last"))));
            } else if !self.wake() {
                return;
            }
        }
        panic!("it never comes to rest: {self:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_command_is_answered_exactly_once_whatever_happens(
        steps in prop::collection::vec(step(), 0..120),
        initialized in any::<bool>(),
        wall_timeout_ms in prop::option::of(500.0..5_000.0_f64),
        guest_helps in any::<bool>(),
        checkpoints in any::<bool>(),
        guesses in any::<bool>(),
        repeats in any::<bool>(),
        calls_ahead in any::<bool>(),
    ) {
        let limits = sandglass_core::Limits { wall_timeout_ms, checkpoints, max_shadows: Some(3), ..limits() };
        let mut session = Session::new(limits.clone(), ["ask", "look", "llm_query", "rlm_query"].map(str::to_owned).to_vec());
        if guesses {
            session = session.with_guesses();
        }
        if repeats {
            session = session.with_repeats();
        }
        if calls_ahead {
            session = session.with_calls_ahead();
        }
        let mut world = World::with(limits, session.with_shadows_on(2, f64::INFINITY));
        world.most = (3, 2);
        if initialized {
            world = world.begun();
        }
        for step in steps {
            world.take(step);
        }
        world.settle(guest_helps);
        prop_assert_eq!(world.answers.len(), world.tickets() as usize);
        prop_assert!(world.calls.is_empty());
        let held = format!("{:?}", world.session).len();
        prop_assert!(held < 20_000, "{} characters are held by a session at rest", held);
    }

    #[test]
    fn what_runs_ahead_is_in_nobodys_way(steps in prop::collection::vec(step_ahead(), 0..80), guest_helps in any::<bool>()) {
        let limits = sandglass_core::Limits { checkpoints: true, ..limits() };
        let session = Session::new(limits.clone(), ["ask", "llm_query"].map(str::to_owned).to_vec());
        let session = session.with_guesses().with_repeats().with_calls_ahead();
        let mut world = World::with(limits, session.with_shadows_on(2, f64::INFINITY)).begun();
        world.most.1 = 2;
        world.saves(true);
        for step in steps {
            world.take(step);
        }
        world.settle(guest_helps);
        prop_assert_eq!(world.answers.len(), world.tickets() as usize);
        prop_assert!(world.calls.is_empty() && world.shadows.is_empty());
        // Calls that were left to the next code end with the sandbox.
        world.feed(Input::Destroy);
        prop_assert!(world.begun.is_empty());
    }
}
