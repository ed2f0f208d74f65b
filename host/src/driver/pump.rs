//! The task of a sandbox.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::FutureExt;
use sandglass_core::Error;
use sandglass_core::budget::Budget;
use sandglass_core::display::{Kind, kind as display_kind};
use sandglass_core::execution::{CodeExecution, Display, Killer, Outcome};
use sandglass_core::protocol::{Event, GuestInfo, Request, Stream};
use sandglass_core::session::{Effect, Encoded, HostFailure, Input, Reply, Session, Ticket, ToResult};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::receive::{Parts, output_bytes};
use super::{Answered, Callbacks, Message, Watch, instant, lock, now};
use crate::callbacks::{Functions, HostCall};
use crate::frame::{Frame, FrameError, FrameReader};
use crate::guest::fork::{Forker, Succession};
use crate::guest::{Exit, Guest, GuestProcess, GuestWriter, Hits};
use crate::launcher::Launcher;
use crate::value::{Payload, Value};
use futures_util::future::BoxFuture;

/// Bytes of output after which the guest is given credit for more; it has that for several times as many.
pub(super) const CREDIT_BYTES: usize = 512 << 10;
/// Frames of a guest that are taken before anybody else is heard.
const FRAMES_AT_ONCE: usize = 64;
/// How Python says that there is no room on a disk: `ENOSPC`, `EDQUOT` and `EFBIG`.
const DISK_ERRORS: [&str; 3] = ["[Errno 28]", "[Errno 122]", "[Errno 27]"];
/// Time that a guest has to be gone when it was killed.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Everything around a session.
pub(super) struct Pump {
    pub(super) session: Session<Payload>,
    pub(super) max_value_bytes: usize,
    launcher: Arc<dyn Launcher>,
    functions: Functions,
    callbacks: Callbacks,
    messages: mpsc::WeakUnboundedSender<Message>,
    info: Arc<Mutex<GuestInfo>>,
    pub(super) guest: Slot,
    /// The copy of it that runs code ahead.
    pub(super) ahead: Slot,
    /// How often a copy has become the guest.
    pub(super) promotions: u64,
    /// What the guest's limits had counted when the execution under way began.
    pub(super) begun: Hits,
    pub(super) effects: VecDeque<Effect<Payload>>,
    waiters: HashMap<Ticket, Waiter>,
    calls: HashMap<u32, AbortHandle>,
    /// Guests that were told to end, and are not gone yet.
    ending: JoinSet<()>,
}

/// Who waits for a command.
struct Waiter {
    answer: oneshot::Sender<Answered>,
    watch: Watch,
    displays: Vec<Display>,
}

/// Where a guest is.
pub(super) enum Slot {
    None,
    /// It is being started; what is posted waits.
    Launching(BoxFuture<'static, Result<Guest, Error>>, Vec<Frame>),
    Running(Box<Running>),
}

pub(super) struct Running {
    reader: FrameReader<OwnedReadHalf>,
    writer: GuestWriter,
    pub(super) process: GuestProcess,
    /// Makes copies of it.
    pub(super) forker: Option<Forker>,
    /// Of a copy: has it become the guest.
    pub(super) succession: Option<Succession>,
    pub(super) parts: Parts,
    /// Bytes of output that it has no credit for yet.
    pub(super) owed: usize,
    /// When it stopped speaking.
    closed: Option<Instant>,
    /// Whether it was killed for not ending after that.
    given_up: bool,
    /// How it ended.
    exit: Option<Exit>,
    /// What it was sent, as long as it is not ready and has waited in a pool: what died there unseen is replaced unseen.
    begin: Option<Vec<Frame>>,
}

/// What happened to a guest.
pub(super) enum Happened {
    Launched(Result<Guest, Error>),
    Frame(Result<Option<Frame>, FrameError>),
    Written(std::io::Result<()>),
    Exited(Exit),
    /// It has had its time to end.
    Overdue,
}

impl Running {
    pub(super) fn of(mut guest: Guest, max_value_bytes: usize) -> Self {
        let begin = guest.has_waited().then(Vec::new);
        let (forker, succession) = guest.take_forks();
        let (reader, writer, process) = guest.split(max_value_bytes);
        Self {
            reader,
            writer,
            process,
            forker,
            succession,
            parts: Parts::default(),
            owed: 0,
            closed: None,
            given_up: false,
            exit: None,
            begin,
        }
    }
}

impl Slot {
    /// Sends a frame, as soon as there is a guest that could hear it.
    pub(super) fn send(&mut self, frame: Frame) -> Result<(), FrameError> {
        match self {
            Self::None => Ok(()),
            Self::Launching(_, waiting) => {
                waiting.push(frame);
                Ok(())
            }
            Self::Running(running) => {
                if let Some(begin) = &mut running.begin {
                    begin.push(frame.clone());
                }
                running.writer.push(&frame)
            }
        }
    }

    /// What happens to the guest next. A call that is dropped loses nothing.
    async fn next(&mut self) -> Happened {
        match self {
            Self::None => std::future::pending().await,
            Self::Launching(launch, _) => Happened::Launched(launch.await),
            Self::Running(running) => {
                let Running {
                    reader,
                    writer,
                    process,
                    closed,
                    given_up,
                    exit,
                    ..
                } = &mut **running;
                let GuestWriter { stream, outbox, .. } = writer;
                let time = if *given_up { GONE_WITHIN } else { process.patience() };
                let overdue = closed.map(|at| at + time);
                tokio::select! {
                    biased;
                    frame = reader.next(), if closed.is_none() || exit.is_some() => Happened::Frame(frame),
                    written = outbox.write_more(stream), if closed.is_none() => Happened::Written(written),
                    exit = process.wait(), if exit.is_none() => Happened::Exited(exit),
                    () = tokio::time::sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => Happened::Overdue,
                }
            }
        }
    }
}

impl Pump {
    pub(super) fn new(
        session: Session<Payload>,
        max_value_bytes: f64,
        launcher: Arc<dyn Launcher>,
        functions: Functions,
        callbacks: Callbacks,
        messages: mpsc::WeakUnboundedSender<Message>,
        info: Arc<Mutex<GuestInfo>>,
    ) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within 2 GB by its range"
        )]
        let max_value_bytes = max_value_bytes as usize;
        Self {
            session,
            max_value_bytes,
            launcher,
            functions,
            callbacks,
            messages,
            info,
            guest: Slot::None,
            ahead: Slot::None,
            promotions: 0,
            begun: Hits::default(),
            effects: VecDeque::new(),
            waiters: HashMap::new(),
            calls: HashMap::new(),
            ending: JoinSet::new(),
        }
    }

    /// Runs until the session is destroyed.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let timer = tokio::time::sleep_until(Instant::now());
        tokio::pin!(timer);
        let mut told = Vec::new();
        while !self.session.is_destroyed() {
            let wake_at = self.session.wake_at();
            if let Some(at) = wake_at {
                let at = Instant::from_std(instant(at));
                if timer.deadline() != at {
                    timer.as_mut().reset(at);
                }
            }
            tokio::select! {
                biased;
                message = inbox.recv() => match message {
                    Some(message) => self.heard(message, &mut told),
                    None => self.feed(Input::Destroy),
                },
                () = &mut timer, if wake_at.is_some() => self.feed(Input::Tick),
                happened = self.guest.next() => self.happened(happened),
                happened = self.ahead.next() => self.ahead_happened(happened),
                Some(_) = self.ending.join_next() => {}
            }
        }
        inbox.close();
        while self.ending.join_next().await.is_some() {}
        while let Ok(message) = inbox.try_recv() {
            match message {
                Message::Destroy(Some(gone)) => told.push(gone),
                Message::Command(_, _, _, answer) => drop(answer.send(Err(Error::Destroyed))),
                _ => {}
            }
        }
        for gone in told {
            let _ = gone.send(());
        }
    }

    fn heard(&mut self, message: Message, told: &mut Vec<oneshot::Sender<()>>) {
        match message {
            Message::Command(ticket, command, watch, answer) => {
                let waiter = Waiter {
                    answer,
                    watch,
                    displays: Vec::new(),
                };
                self.waiters.insert(ticket, waiter);
                self.feed(Input::Command(ticket, command));
            }
            Message::Cancel(ticket) => self.feed(Input::Cancel(ticket)),
            Message::Interrupt => self.feed(Input::Interrupt),
            Message::Hint(predictions) => self.feed(Input::Hint(predictions)),
            Message::Written(code, timeout_ms) => self.feed(Input::Written(code, timeout_ms)),
            Message::Conversation(text) => self.feed(Input::Conversation(text)),
            Message::Predictions(answer) => drop(answer.send(self.session.predictions())),
            Message::Stats(answer) => drop(answer.send(self.session.stats())),
            Message::Destroy(gone) => {
                told.extend(gone);
                self.feed(Input::Destroy);
            }
            Message::HostReturned(call, result, usage) => {
                self.calls.remove(&call);
                if let Some(usage) = usage {
                    self.feed(Input::Used(call, usage));
                }
                self.feed(Input::HostReturned(call, result));
            }
        }
    }

    /// Gives the session an input and does what follows from it.
    pub(super) fn feed(&mut self, input: Input<Payload>) {
        let effects = self.session.handle(now(), input);
        self.effects.extend(effects);
        while let Some(effect) = self.effects.pop_front() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect<Payload>) {
        match effect {
            Effect::Boot => {
                self.begun = Hits::default();
                self.launch(Vec::new());
            }
            Effect::Kill => self.kill(),
            Effect::Post(request, body) => {
                if matches!(request, Request::Execute { .. }) {
                    self.begun = self.hits();
                }
                self.post(&request, body.into_iter().collect());
            }
            Effect::Restore(request, bodies) | Effect::Install(request, bodies) => self.post(&request, bodies),
            Effect::Fetch(ticket, _) => {
                let error = Error::PackageNotFound(
                    "native guests have the packages of their Python: install them there, or give another".to_owned(),
                );
                let effects = self.session.handle(now(), Input::Fetched(ticket, Err(error)));
                self.effects.extend(effects);
            }
            Effect::CallHost {
                call,
                name,
                args,
                budget,
            } => self.call_host(call, name, args, budget),
            Effect::AbortHost(call) => {
                if let Some(task) = self.calls.remove(&call) {
                    task.abort();
                }
            }
            Effect::Ahead(effect) => self.carry_out_ahead(*effect),
            Effect::Promote => self.promote(),
            Effect::Progress(_) | Effect::Rest => {}
            Effect::Print(ticket, stream, text) => self.print(ticket, stream, &text),
            Effect::Display {
                ticket,
                mime,
                body,
                to_result,
            } => self.display(ticket, mime, &body, to_result),
            Effect::Resolve(ticket, reply) => self.resolve(ticket, reply),
        }
    }

    fn resolve(&mut self, ticket: Ticket, reply: Answered) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            let reply = match reply {
                Ok(Reply::Execution(mut run, last)) => {
                    run.displays = waiter.displays;
                    run.killer = run.killer.or_else(|| self.killer(&run));
                    Ok(Reply::Execution(run, last))
                }
                reply => reply,
            };
            let _ = waiter.answer.send(reply);
        }
    }

    /// Which limit ended an execution, as far as it can be told from outside.
    fn killer(&self, run: &CodeExecution) -> Option<Killer> {
        let outcome = run.outcome;
        if outcome == Outcome::Timeout {
            return Some(Killer::Timeout);
        }
        if !matches!(outcome, Outcome::Error | Outcome::Crashed) {
            return None;
        }
        let hits = self.hits();
        let error = run.error.as_deref().unwrap_or_default();
        if hits.oom > self.begun.oom {
            Some(Killer::Oom)
        } else if hits.pids > self.begun.pids {
            Some(Killer::Pids)
        } else if DISK_ERRORS.iter().any(|text| error.contains(text)) {
            Some(Killer::Disk)
        } else {
            None
        }
    }

    // ---- the guest ----

    pub(super) fn hits(&self) -> Hits {
        match &self.guest {
            Slot::Running(running) => running.process.hits(),
            _ => Hits::default(),
        }
    }

    /// Starts a guest that is to be sent these frames first.
    fn launch(&mut self, begin: Vec<Frame>) {
        let launcher = Arc::clone(&self.launcher);
        let launch = Box::pin(async move { launcher.launch().await });
        self.guest = Slot::Launching(launch, begin);
    }

    fn kill(&mut self) {
        if let Slot::Running(running) = std::mem::replace(&mut self.guest, Slot::None) {
            let Running { mut process, .. } = *running;
            process.kill();
            self.ending.spawn(async move {
                process.wait().await;
            });
        }
    }

    fn post(&mut self, request: &Request, bodies: Vec<Payload>) {
        let header = match serde_json::to_vec(request) {
            Ok(header) => Bytes::from(header),
            Err(error) => return self.lost(&format!("a request could not be written: {error}")),
        };
        let bodies = bodies.into_iter().map(|body| body.0).collect();
        self.send(Frame { header, bodies });
    }

    fn send(&mut self, frame: Frame) {
        if let Err(error) = self.guest.send(frame) {
            self.lost(&error.to_string());
        }
    }

    fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Launched(Ok(guest)) => self.launched(guest),
            Happened::Launched(Err(error)) => {
                self.guest = Slot::None;
                self.feed(Input::GuestLost(error));
            }
            Happened::Frame(Ok(Some(frame))) => self.frames(frame),
            Happened::Frame(Ok(None) | Err(FrameError::Io(_))) => self.closed(),
            Happened::Frame(Err(error)) => self.feed(Input::BadMessage(error.to_string())),
            Happened::Written(Ok(())) => {}
            Happened::Written(Err(_)) => {
                // It hears no more, but what it has said before is still to be read: how it ended shows there.
                if let Slot::Running(running) = &mut self.guest {
                    running.writer.outbox.clear();
                }
            }
            Happened::Exited(exit) => {
                if let Slot::Running(running) = &mut self.guest {
                    let is_closed = running.closed.is_some();
                    running.exit = Some(exit);
                    running.closed.get_or_insert_with(Instant::now);
                    if is_closed {
                        self.ended();
                    }
                }
            }
            Happened::Overdue => self.overdue(),
        }
    }

    fn launched(&mut self, guest: Guest) {
        let running = Slot::Running(Box::new(Running::of(guest, self.max_value_bytes)));
        if let Slot::Launching(_, waiting) = std::mem::replace(&mut self.guest, running) {
            for frame in waiting {
                self.send(frame);
            }
        }
    }

    /// Takes a frame, and those that have come with it.
    fn frames(&mut self, frame: Frame) {
        let mut next = Some(frame);
        for _ in 0..FRAMES_AT_ONCE {
            let Some(frame) = next.take() else { return };
            self.frame(frame);
            let Slot::Running(running) = &mut self.guest else {
                return;
            };
            match running.reader.buffered() {
                Ok(frame) => next = frame,
                Err(error) => return self.feed(Input::BadMessage(error.to_string())),
            }
        }
        if let Some(frame) = next {
            self.frame(frame);
        }
    }

    fn frame(&mut self, frame: Frame) {
        let max_bytes = self.max_value_bytes;
        let Slot::Running(running) = &mut self.guest else {
            return;
        };
        let events = match running.parts.read(frame, max_bytes) {
            Ok(events) => events,
            Err(what) => return self.feed(Input::BadMessage(what)),
        };
        for (event, body) in events {
            let bytes = output_bytes(&event, body.as_ref());
            let is_ready = matches!(event, Event::Ready { .. });
            self.feed(Input::Guest(event, body));
            let Slot::Running(running) = &mut self.guest else {
                return;
            };
            running.owed += bytes;
            if is_ready {
                running.begin = None;
                lock(&self.info).clone_from(self.session.info());
            }
        }
        if let Slot::Running(running) = &mut self.guest
            && running.owed >= CREDIT_BYTES
        {
            let bytes = std::mem::take(&mut running.owed);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            self.post(&Request::Credit { bytes: bytes as f64 }, Vec::new());
        }
    }

    /// The guest says no more: either it has ended, or it will have to.
    fn closed(&mut self) {
        if let Slot::Running(running) = &mut self.guest {
            running.closed.get_or_insert_with(Instant::now);
            if running.exit.is_some() {
                self.ended();
            }
        }
    }

    fn overdue(&mut self) {
        if let Slot::Running(running) = &mut self.guest {
            match running.exit {
                None if !running.given_up => {
                    running.process.kill();
                    running.given_up = true;
                }
                _ => self.ended(),
            }
        }
    }

    fn ended(&mut self) {
        if let Slot::Running(running) = &mut self.guest {
            let mut exit = running.exit.take().unwrap_or_default();
            // An earlier execution's child may have been killed for want of memory: that is no reason now. A group that is
            // gone has counted nothing.
            if exit.killer == Some(Killer::Oom) && (1..=self.begun.oom).contains(&running.process.hits().oom) {
                exit.killer = None;
            }
            match exit.killer.or(exit.signal.map(|_| Killer::Signal)) {
                // The signal was ours.
                Some(Killer::Signal) | None if running.given_up => self.lost("it closed its channel"),
                killer => self.lost_to(&exit.to_string(), killer),
            }
        }
    }

    fn lost(&mut self, why: &str) {
        self.lost_to(why, None);
    }

    /// The guest is gone: whatever runs is told by what.
    fn lost_to(&mut self, why: &str, killer: Option<Killer>) {
        if let Slot::Running(running) = &mut self.guest
            && self.session.is_booting()
            && let Some(begin) = running.begin.take()
        {
            self.kill();
            self.launch(begin);
            return;
        }
        let why = format!("the guest ended: {why}");
        let effects = self.session.handle(now(), Input::GuestLost(Error::GuestLost(why)));
        for mut effect in effects {
            if let Effect::Resolve(_, Ok(Reply::Execution(run, _))) = &mut effect {
                run.killer = killer;
            }
            self.effects.push_back(effect);
        }
        while let Some(effect) = self.effects.pop_front() {
            self.carry_out(effect);
        }
    }

    // ---- the user's functions ----

    fn call_host(&mut self, call: u32, name: String, args: Encoded<Payload>, budget: Budget) {
        let function = self.functions.get(&name).cloned();
        let messages = self.messages.clone();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let most = self.max_value_bytes as f64;
        let task = tokio::spawn(async move {
            let what = format!("the result of {name}");
            let answer = async {
                let function = function.ok_or_else(|| "there is no such function".to_owned())?;
                let args = match Value::decode(&args).map_err(|error| error.to_string())? {
                    Some(Value::List(args) | Value::Tuple(args)) => args,
                    only => only.into_iter().collect(),
                };
                let (value, usage) = function(HostCall { name, args, budget }).await?;
                let value = value.encode(&what, most).map_err(|error| error.to_string())?;
                Ok((value, usage))
            };
            let answer = AssertUnwindSafe(answer).catch_unwind().await;
            let answer = answer.unwrap_or_else(|_| Err("the host function panicked".to_owned()));
            let (result, usage) = match answer {
                Ok((value, usage)) => (Ok(value), usage),
                Err(why) => (Err(HostFailure(why)), None),
            };
            if let Some(messages) = messages.upgrade() {
                let _ = messages.send(Message::HostReturned(call, result, usage));
            }
        });
        self.calls.insert(call, task.abort_handle());
    }

    fn print(&self, ticket: Ticket, stream: Stream, text: &str) {
        if let Some(Waiter { watch, .. }) = self.waiters.get(&ticket)
            && let Some(on_output) = &watch.on_output
        {
            on_output(stream, text);
        }
        let all = match stream {
            Stream::Stderr => &self.callbacks.on_stderr,
            _ => &self.callbacks.on_stdout,
        };
        if let Some(callback) = all {
            callback(text);
        }
    }

    fn display(&mut self, ticket: Ticket, mime: String, body: &Payload, to_result: ToResult) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            let data = match display_kind(&mime) {
                Some(Kind::Binary) => BASE64.encode(&body.0),
                _ => String::from_utf8_lossy(&body.0).into_owned(),
            };
            let display = Display { mime, data };
            if let Some(on_display) = &waiter.watch.on_display {
                on_display(&display, to_result);
            }
            waiter.displays.push(display);
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        for task in self.calls.values() {
            task.abort();
        }
    }
}
