//! The task of a sandbox. It hears users, guests and the timer, gives each to the session as an input, and carries out the effects in
//! order.
//!
//! `tell` gives an input. Its effects wait in a queue until `follow` carries them out. A guest is known by its generation, because it may
//! change slots while its frames are read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::display::{Kind, kind as display_kind};
use sandglass_core::execution::{CodeExecution, Display, Killer, Outcome};
use sandglass_core::protocol::{Event, GuestInfo, Request, Stream, VALUE_MIME};
use sandglass_core::session::{
    Call, Effect, Encoded, GuestEffect, GuestInput, HostEffect, Input, Record, Reply, Session, Slot, Strictness,
    Ticket, ToResult,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::host_calls::{Called, Claims};
use super::journal::Journal;
use super::paused::PausedGuests;
use super::receive::output_bytes;
use super::slots::{Happened, Slots};
use super::{Answered, AsksForEnded, Callbacks, Message, Watch, instant, lock, now};
use crate::callbacks::Functions;
use crate::frame::{Frame, FrameError};
use crate::guest::{Guest, Hits};
use crate::launcher::Launcher;
use crate::traces::InTrace;
use crate::value::{Payload, Value};

/// Bytes of output after which the guest gets credit for as many more. It begins with credit for several times as many.
const CREDIT_BYTES: usize = 512 << 10;
/// The most frames that are taken from one guest before anybody else is heard.
const FRAMES_AT_ONCE: usize = 64;
/// Python's texts for a disk without room: `ENOSPC`, `EDQUOT` and `EFBIG`.
const DISK_ERRORS: [&str; 3] = ["[Errno 28]", "[Errno 122]", "[Errno 27]"];

/// A session, and everything around it.
pub(super) struct SandboxTask {
    pub(super) session: Session<Payload>,
    pub(super) max_value_bytes: usize,
    pub(super) launcher: Arc<dyn Launcher>,
    functions: Functions,
    callbacks: Callbacks,
    messages: mpsc::WeakUnboundedSender<Message>,
    info: Arc<Mutex<GuestInfo>>,
    pub(super) slots: Slots,
    /// The counts of the guest's limits when the execution under way began.
    pub(super) begun: Hits,
    pub(super) effects: VecDeque<Effect<Payload>>,
    pub(super) waiters: HashMap<Ticket, Waiter>,
    calls: HashMap<u32, AbortHandle>,
    claims: Claims,
    pub(super) journal: Journal,
    /// Records of ended executions, and who waits for them until the journal is written.
    ended: Vec<(Option<Arc<Record<Payload>>>, AsksForEnded)>,
    /// Guests that were told to end, and are not gone yet.
    pub(super) ending: JoinSet<()>,
    pub(super) paused: PausedGuests,
}

/// A caller that waits for a command.
pub(super) struct Waiter {
    answer: oneshot::Sender<Answered>,
    pub(super) watch: Watch,
    displays: Vec<Display>,
}

impl Waiter {
    /// Keeps the value of the last expression. A malformed one is dropped, because its text is there too.
    fn keep_value(&self, encoding: &str, body: &Payload) {
        let (Some(place), Ok(encoding)) = (&self.watch.value, serde_json::from_value(encoding.into())) else {
            return;
        };
        let body = body.clone();
        if let Ok(Some(value)) = Value::decode(&Encoded { encoding, body }) {
            let _ = place.set(value);
        }
    }
}

impl SandboxTask {
    pub(super) fn new(
        session: Session<Payload>,
        max_value_bytes: f64,
        launcher: Arc<dyn Launcher>,
        functions: Functions,
        mut callbacks: Callbacks,
        messages: mpsc::WeakUnboundedSender<Message>,
        info: Arc<Mutex<GuestInfo>>,
    ) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within 2 GB by its range"
        )]
        let max_value_bytes = max_value_bytes as usize;
        let paused = PausedGuests::new(session.limits().checkpoints);
        let journal = Journal::new(callbacks.journal.take());
        Self {
            session,
            max_value_bytes,
            launcher,
            functions,
            callbacks,
            messages,
            info,
            slots: Slots::default(),
            begun: Hits::default(),
            effects: VecDeque::new(),
            waiters: HashMap::new(),
            calls: HashMap::new(),
            claims: Claims::default(),
            journal,
            ended: Vec::new(),
            ending: JoinSet::new(),
            paused,
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
                    None => self.tell(Input::Destroy),
                },
                () = &mut timer, if wake_at.is_some() => {
                    self.find_ended_copies(); // time may end the guest, and then the session relies on them
                    self.tell(Input::Tick);
                }
                () = self.journal.written() => if self.journal.is_left() {
                    self.tell(Input::Destroy);
                },
                (slot, happened) = self.slots.next() => self.happened(slot, happened),
                Some(made) = self.paused.making.join_next() => made.into_iter().for_each(|made| self.paused(made)),
                Some(_) = self.ending.join_next() => self.look_at_paused_memory(),
            }
            self.follow();
            self.tell_ended();
        }
        self.end_paused();
        self.journal.end().await;
        self.tell_ended();
        while self.ending.join_next().await.is_some() {}
        inbox.close(); // not before: whoever destroys the sandbox now waits as well
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

    /// Hands ended records out, once the journal is written.
    fn tell_ended(&mut self) {
        if !self.journal.is_written() {
            return;
        }
        for (record, answer) in self.ended.drain(..) {
            let ended = record.map(|record| self.journal.ended(record));
            let _ = answer.send(ended);
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
                self.tell(Input::Command(ticket, command));
            }
            Message::Functions(functions) => self.functions.extend(functions),
            Message::Input(input) => self.tell(input),
            Message::Line(execution, number, answer) => drop(answer.send(self.session.line(execution, number))),
            Message::Predictions(answer) => drop(answer.send(self.session.predictions())),
            Message::Stats(answer) => drop(answer.send(self.session.stats())),
            Message::Past(answer) => drop(answer.send(self.session.past())),
            Message::IsFirst(answer) => drop(answer.send(self.session.has_first_guest())),
            Message::Lost(lost) => self.session.add_lost(lost),
            Message::Recorded(journal) => {
                self.journal.resume(journal.id, &journal.times);
                self.tell(Input::Recorded(Box::new(journal.record), Strictness::Resume));
            }
            Message::Ended(answer) => {
                let ended = self.session.take_ended();
                self.ended.push((ended, answer));
            }
            Message::Destroy(gone) => {
                told.extend(gone);
                self.tell(Input::Destroy);
            }
            Message::HostReturned(call, result) => {
                self.calls.remove(&call);
                self.tell(Input::HostReturned(call, result));
            }
        }
    }

    /// Gives the session an input.
    pub(super) fn tell(&mut self, input: Input<Payload>) {
        let effects = self.session.handle(now(), input);
        self.effects.extend(effects);
    }

    /// Carries out the effects of all inputs so far.
    fn follow(&mut self) {
        while let Some(effect) = self.effects.pop_front() {
            if self.journal.holds(&effect) {
                if self.session.is_destroyed() {
                    continue;
                }
                return self.effects.push_front(effect);
            }
            match effect {
                Effect::Guest(Slot::Main, GuestEffect::Boot) => {
                    self.begun = Hits::default();
                    self.boot();
                }
                Effect::Guest(_, GuestEffect::Revive(checkpoint)) => {
                    self.begun = Hits::default();
                    self.revive(&checkpoint);
                }
                Effect::Guest(Slot::Shadow(shadow), GuestEffect::Boot) => self.fork(shadow),
                Effect::Guest(Slot::Main, GuestEffect::Kill) => self.kill(),
                Effect::Guest(slot, GuestEffect::Kill) => drop(self.slots.take(slot)),
                Effect::Guest(Slot::Main, GuestEffect::Post(Request::Save { checkpoint, .. }, _)) => {
                    self.pause(checkpoint)
                }
                Effect::Guest(slot, GuestEffect::Post(request, body)) => {
                    if slot == Slot::Main && matches!(request, Request::Execute { .. }) {
                        self.begun = self.hits();
                    }
                    self.post(slot, &request, body.into_iter().collect());
                }
                Effect::Guest(slot, GuestEffect::Install(request, bodies)) => self.post(slot, &request, bodies),
                // The guest has the state already: it is a copy of the checkpoint.
                Effect::Guest(slot, GuestEffect::Restore(request, _)) => self.post(slot, &request, Vec::new()),
                // Native guests are not parked, because a new fork is ready as soon.
                Effect::Park(shadow) => drop(self.slots.take(Slot::Shadow(shadow))),
                Effect::Promote(shadow) => self.promote(shadow),
                Effect::Host(HostEffect::Fetch(ticket, _)) => {
                    let error = Error::PackageNotFound(
                        "native guests have the packages of their Python: install them there, or give another"
                            .to_owned(),
                    );
                    self.tell(Input::Fetched(ticket, Err(error)));
                }
                Effect::Host(HostEffect::CallHost(call)) => self.call_host(call),
                Effect::Host(HostEffect::ClaimHost(call)) => self.claims.claim(call),
                Effect::Host(HostEffect::AbortHost(call)) => {
                    self.claims.end(call);
                    if let Some(task) = self.calls.remove(&call) {
                        task.abort();
                    }
                }
                Effect::Host(HostEffect::Note(change)) => self.journal.note(change),
                Effect::Host(HostEffect::Progress(_) | HostEffect::Keep(_)) => {}
                Effect::Host(HostEffect::Print(ticket, stream, text)) => self.print(ticket, stream, &text),
                Effect::Host(HostEffect::Display {
                    ticket,
                    mime,
                    body,
                    to_result,
                }) => self.display(ticket, mime, &body, to_result),
                Effect::Host(HostEffect::Resolve(ticket, reply)) => self.resolve(ticket, reply),
            }
        }
    }

    fn resolve(&mut self, ticket: Ticket, reply: Answered) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            let reply = match self.journal.explain(reply) {
                Ok(Reply::Execution(mut run, last)) => {
                    run.displays = waiter.displays;
                    run.killer = run.killer.or_else(|| self.killer(&run));
                    Ok(Reply::Execution(run, last))
                }
                reply => reply,
            };
            let is_left = waiter.watch.cancel.is_some_and(|cancel| cancel.is_cancelled());
            let unheard = match &reply {
                Ok(Reply::Execution(run, _)) => Some(run.state.clone()),
                _ => None,
            };
            let is_sent = waiter.answer.send(reply).is_ok();
            // Whoever has cancelled an execution may not look at its result.
            if let Some(report) = unheard.filter(|_| is_left || !is_sent) {
                self.session.add_unheard(report);
            }
        }
    }

    /// The limit that ended an execution, as far as the host can tell.
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

    // ---- the guests ----

    /// The counts of the limits of the sandbox's own guest.
    pub(super) fn hits(&self) -> Hits {
        let main = self.slots.running(Slot::Main);
        main.map_or_else(Hits::default, |running| running.process.hits())
    }

    /// Starts a guest, which gets these frames first.
    pub(super) fn launch(&mut self, begin: Vec<Frame>) {
        let launcher = Arc::clone(&self.launcher);
        let launch = Box::pin(async move { launcher.launch().await });
        self.slots.launch(Slot::Main, launch, begin);
    }

    fn post(&mut self, slot: Slot, request: &Request, bodies: Vec<Payload>) {
        let header = match serde_json::to_vec(request) {
            Ok(header) => Bytes::from(header),
            Err(error) => return self.lost(slot, &format!("a request could not be written: {error}")),
        };
        let bodies = bodies.into_iter().map(|body| body.0).collect();
        if let Err(error) = self.slots.send(slot, Frame { header, bodies }) {
            self.lost(slot, &error.to_string());
        }
    }

    fn happened(&mut self, slot: Slot, happened: Happened) {
        match (happened, slot) {
            (Happened::Launched(Ok(guest)), _) => self.launched(slot, guest),
            (Happened::Launched(Err(error)), Slot::Main) => {
                self.slots.take(slot);
                self.tell(Input::Guest(slot, GuestInput::Lost(error)));
            }
            (Happened::Launched(Err(error)), Slot::Shadow(_)) => self.lost(slot, &error.to_string()),
            (Happened::Frame(Ok(Some(frame))), _) => self.frames(slot, frame),
            (Happened::Written(Ok(())), _) => {}
            (_, Slot::Shadow(_)) => self.lost(slot, "it ended"),
            // A guest that is killed while it writes a frame leaves a part of it. Its exit says why.
            (Happened::Frame(Ok(None) | Err(FrameError::Io(_) | FrameError::Truncated)), _) => self.closed(),
            (Happened::Frame(Err(error)), _) => {
                self.tell(Input::Guest(slot, GuestInput::BadMessage(error.to_string())));
            }
            (Happened::Written(Err(_)), _) => {
                // The guest hears no more. Its earlier frames are still to be read, and the end of its channel after them.
                if let Some(running) = self.slots.running_mut(slot) {
                    running.writer.outbox.clear();
                }
            }
            (Happened::Exited(exit), _) => self.exited(slot, exit),
            (Happened::Gone, _) => self.own_ended(slot),
            (Happened::Overdue, _) => self.overdue(),
        }
    }

    fn launched(&mut self, slot: Slot, guest: Guest) {
        let max_bytes = self.max_bytes(slot);
        for frame in self.slots.launched(slot, guest, max_bytes) {
            if let Err(error) = self.slots.send(slot, frame) {
                return self.lost(slot, &error.to_string());
            }
        }
        self.within(slot);
        self.look_at_memory(slot);
    }

    /// Takes a frame, and the frames that have come with it.
    fn frames(&mut self, slot: Slot, frame: Frame) {
        let Some(generation) = self.slots.generation(slot) else {
            return;
        };
        self.frame(slot, generation, frame);
        for _ in 1..FRAMES_AT_ONCE {
            self.follow();
            let Some((slot, running)) = self.slots.find(generation) else {
                return;
            };
            match running.reader.buffered() {
                Ok(Some(frame)) => self.frame(slot, generation, frame),
                Ok(None) => return,
                Err(error) => return self.tell(Input::Guest(slot, GuestInput::BadMessage(error.to_string()))),
            }
        }
    }

    /// Takes a frame's events. Stops when the guest is in no slot any more, because each event may end the guest or move it.
    fn frame(&mut self, slot: Slot, generation: u64, frame: Frame) {
        let max_bytes = self.max_bytes(slot);
        let Some(running) = self.slots.running_mut(slot) else {
            return;
        };
        let events = match running.parts.read(frame, max_bytes) {
            Ok(events) => events,
            Err(what) => return self.tell(Input::Guest(slot, GuestInput::BadMessage(what))),
        };
        for (event, body) in events {
            let Some((slot, _)) = self.slots.find(generation) else {
                return;
            };
            let bytes = output_bytes(&event, body.as_ref());
            let is_ready = matches!(event, Event::Ready { .. });
            let is_over = matches!(event, Event::Executed { .. });
            self.tell(Input::Guest(slot, GuestInput::Event(event, body)));
            if is_ready && slot == Slot::Main {
                // Before any command that waited for the guest is answered.
                lock(&self.info).clone_from(self.session.info());
                if let Some(on_start) = &self.callbacks.on_start {
                    on_start(self.session.info());
                }
            }
            self.follow();
            let Some((slot, running)) = self.slots.find(generation) else {
                return;
            };
            running.owed += bytes;
            if is_ready {
                running.begin = None;
            }
            if is_over {
                self.look_at_memory(slot);
            }
        }
        // The guest's output is taken, so the guest may send more.
        if let Some((slot, running)) = self.slots.find(generation)
            && running.owed >= CREDIT_BYTES
        {
            let bytes = std::mem::take(&mut running.owed);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            self.post(slot, &Request::Credit { bytes: bytes as f64 }, Vec::new());
        }
    }

    // ---- the user's functions ----

    fn call_host(&mut self, call: Call<Payload>) {
        let aborts =
            |effect: &Effect<_>| matches!(effect, Effect::Host(HostEffect::AbortHost(its)) if *its == call.call);
        if self.effects.iter().any(aborts) {
            return; // it has waited for the journal, and nobody waits for it any more
        }
        if self.callbacks.asks_nobody {
            let why = "the journal has no answer to this call, and a replay makes calls only with the option ask";
            return self.tell(Input::HostReturned(call.call, Err(why.to_owned())));
        }
        let waiter = call.ticket.and_then(|ticket| self.waiters.get(&ticket));
        let request = waiter.and_then(|waiter| waiter.watch.request.clone());
        let trace = waiter.map(|waiter| waiter.watch.trace.clone()).unwrap_or_default();
        let claim = call.ahead.then(|| self.claims.begin(call.call));
        let function = self.functions.get(&call.name).cloned();
        let called = Called {
            id: self.journal.call_id(call.place),
            call,
            request,
            claim,
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let most = self.max_value_bytes as f64;
        let call = called.call.call;
        let answering = called.answer(self.messages.clone(), function, most);
        let task = tokio::spawn(answering.with_context(trace));
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
            if let Some(encoding) = mime.strip_prefix(VALUE_MIME) {
                return waiter.keep_value(encoding, body);
            }
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

impl Drop for SandboxTask {
    fn drop(&mut self) {
        for task in self.calls.values() {
            task.abort();
        }
    }
}
