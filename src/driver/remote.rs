//! A sandbox whose guest runs on a server. Its messages are *frames* over a socket.
//!
//! A remote guest needs *credit* to send output: it stops until the page has taken earlier output, so that output cannot pile up.

use std::rc::Rc;

use js_sys::ArrayBuffer;

use super::Driver;
use super::messages::parse;
use super::slots::{GuestSlot, Held};
use crate::glue::now;
use crate::options::Isolation;
use crate::outbox::JsBody;
use crate::outbox::Way;
use crate::paused::RemoteCheckpoint;
use crate::remote::Server;
use crate::wire::{News, open_frame};
use sandglass_core::error::Error;
use sandglass_core::execution::Killer;
use sandglass_core::protocol::{Encoding, Event, ReplyStatus, Request};
use sandglass_core::session::{Body, Effect, GuestInput, HostEffect, Input, Reply, Slot};

impl Driver {
    /// The name of the isolation of the sandbox's guests. A server's, and that of processes, is known from the first guest on.
    pub(crate) fn isolation(&self) -> Option<String> {
        if let Some(server) = &self.server {
            return server.isolation().map(str::to_owned);
        }
        let name = match self.options.isolation {
            Isolation::Frame => "frame",
            Isolation::Worker => "worker",
            Isolation::Unconfined => "none",
            Isolation::Process => return self.glue.processes()?.confinement(),
        };
        Some(name.to_owned())
    }

    /// Starts the sandbox's own guest on a server, with the state of a checkpoint there.
    pub(super) fn revive_remotely(&self, checkpoint: &JsBody) {
        if let (Some(server), JsBody::Checkpoint(checkpoint)) = (&self.server, checkpoint) {
            self.boot_remotely(server, Some(checkpoint.as_ref()));
        }
    }

    /// Has the sandbox's own guest make a paused copy of itself.
    pub(super) fn pause_remotely(&self, checkpoint: u32) {
        let held = self.slots.at(Slot::Main);
        if let Some(held) = &held
            && let Some(Held::OnServer(guest)) = &*held.guest.borrow()
        {
            guest.pause(checkpoint);
        }
    }

    /// Starts the sandbox's own guest on a server, with the state of a checkpoint if there is one.
    pub(super) fn boot_remotely(&self, server: &Rc<Server>, from: Option<&RemoteCheckpoint>) {
        let held = self.slots.place(Slot::Main, None, None);
        let generation = held.generation;
        self.progress("backend");
        let this = self.this.clone();
        let on_news = Rc::new(move |news: News<'_>| {
            let Some(driver) = this.upgrade() else { return };
            let Some((_, held)) = driver.slots.find(generation) else {
                return;
            };
            match news {
                News::Booted(wire) => {
                    held.outbox.open(Way::Socket(wire));
                    driver.progress("python");
                }
                News::Frame(frame) => driver.receive_frame(&held, frame),
                News::Lost(error, killer) => driver.lost(error, killer),
                News::Unreadable { request, begun, why } => driver.could_not_read(request, begun, why),
                News::Paused(checkpoint) => {
                    let saved = Event::Saved {
                        checkpoint: checkpoint.number(),
                        full: true,
                        lost: Vec::new(),
                        spent: false,
                    };
                    driver.hear_of_save(saved, Some(JsBody::Checkpoint(checkpoint)));
                }
                News::NotPaused(checkpoint, why) => {
                    let reason = Some(why);
                    driver.hear_of_save(Event::NotSaved { checkpoint, reason }, None);
                }
                News::Gone(checkpoint, why) => driver.feed(Input::CheckpointGone(checkpoint, why)),
            }
        });
        let guest = server.boot(on_news, from);
        held.guest.replace(Some(Held::OnServer(guest)));
    }

    fn hear_of_save(&self, event: Event, body: Option<JsBody>) {
        self.feed(Input::Guest(Slot::Main, GuestInput::Event(event, body)));
    }

    /// Tells the session that the guest is lost. Adds the killer to the reports of executions that end by this.
    fn lost(&self, error: Error, killer: Option<Killer>) {
        let mut effects = self
            .session
            .borrow_mut()
            .handle(now(), Input::Guest(Slot::Main, GuestInput::Lost(error)));
        for effect in &mut effects {
            if let Effect::Host(HostEffect::Resolve(_, Ok(Reply::Execution(run, _)))) = effect {
                run.killer = killer;
            }
        }
        self.follow(effects);
    }

    /// Closes the connection to the server.
    pub(super) fn hang_up(&self) {
        if let Some(server) = &self.server {
            server.close();
        }
    }

    /// Decodes a frame from the guest, which is not trusted. Gives the guest credit for the output in the frame.
    fn receive_frame(&self, held: &GuestSlot, frame: &ArrayBuffer) {
        let most = self.options.limits.max_value_bytes;
        let events = open_frame(frame)
            .and_then(|(header, bodies)| held.parts.borrow_mut().with_bodies(parse(&header)?, &bodies, most));
        let events = match events {
            Ok(events) => events,
            Err(what) => return self.feed(Input::Guest(Slot::Main, GuestInput::BadMessage(what))),
        };
        let output: f64 = events
            .iter()
            .map(|(event, body)| output_bytes(event, body.as_ref()))
            .sum();
        if self.take_all(held.generation, events) {
            self.progress("ready");
        }
        if let (true, Some(Held::OnServer(guest))) = (output > 0.0, &*held.guest.borrow())
            && let Some(bytes) = guest.took(output)
        {
            held.outbox.post(Request::Credit { bytes }, None);
        }
    }

    /// Reports that a file could not be read while it was sent to the guest. If sending had begun, the guest is lost, because it waits for
    /// the rest. Otherwise only the request fails.
    fn could_not_read(&self, request: &Request, begun: bool, why: &str) {
        let hear = |input| self.feed(Input::Guest(Slot::Main, input));
        let refused = |exchange, message| hear(GuestInput::Event(Event::Refused { exchange, message }, None));
        match request {
            _ if begun => {
                let what = format!("a file could not be read to its end while it was sent: {why}");
                hear(GuestInput::Lost(Error::GuestLost(what)));
            }
            Request::SetVariable { exchange, .. } => {
                refused(*exchange, format!("the file could not be read: {why}"));
            }
            Request::WriteFile { exchange, path, .. } => {
                refused(*exchange, format!("{path}: the data could not be read: {why}"));
            }
            Request::HostReply { call, .. } => {
                let reply = Request::HostReply {
                    call: *call,
                    status: ReplyStatus::Error,
                    encoding: Encoding::None,
                    message: Some(format!("what it returned could not be read: {why}")),
                };
                self.post(Slot::Main, reply, None);
            }
            _ => {}
        }
    }
}

/// The bytes of an event that use up the guest's credit.
fn output_bytes(event: &Event, body: Option<&JsBody>) -> f64 {
    let bytes = match event {
        Event::Output { text, .. } => text.len(),
        Event::Display { .. } => body.map_or(0, Body::size),
        _ => 0,
    };
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    {
        bytes as f64
    }
}
