//! A guest that runs on a server.

use std::rc::Rc;

use js_sys::ArrayBuffer;

use super::{Driver, parse};
use crate::glue::now;
use crate::outbox::JsBody;
use crate::remote::{Owner, Server, open_frame};
use sandglass_core::error::Error;
use sandglass_core::execution::Killer;
use sandglass_core::protocol::{Encoding, Event, ReplyStatus, Request};
use sandglass_core::session::{Body, Effect, Input, Reply};

impl Driver {
    /// What keeps guests from whoever runs them.
    pub(crate) fn isolation(&self) -> &'static str {
        let there = self.server.as_ref().and_then(|server| server.isolation());
        there.unwrap_or_else(|| self.options.isolation.name())
    }

    pub(super) fn boot_remotely(&self, server: &Rc<Server>) {
        let generation = self.next_generation();
        self.progress("backend");
        let (booted, frames) = (self.of_generation(generation), self.of_generation(generation));
        let (failures, unreadable) = (self.of_generation(generation), self.of_generation(generation));
        let guest = server.boot(Owner {
            on_booted: Box::new(move || booted(&|driver| driver.progress("python"))),
            on_frame: Box::new(move |frame| frames(&|driver| driver.receive_frame(frame))),
            on_failure: Box::new(move |error, killer| {
                failures(&|driver| driver.lost(error.clone(), killer));
            }),
            on_unreadable: Rc::new(move |request, begun, why| {
                unreadable(&|driver| driver.could_not_read(request, begun, why));
            }),
        });
        self.remote.replace(Some(guest));
    }

    /// The guest is gone; whatever runs is told by what.
    fn lost(&self, error: Error, killer: Option<Killer>) {
        let mut effects = self.session.borrow_mut().handle(now(), Input::GuestLost(error));
        for effect in &mut effects {
            if let Effect::Resolve(_, Ok(Reply::Execution(run, _))) = effect {
                run.killer = killer;
            }
        }
        self.follow(effects);
    }

    /// Nobody needs the server any more.
    pub(super) fn hang_up(&self) {
        if let Some(server) = &self.server {
            server.close();
        }
    }

    /// A frame from the guest; it is not to be trusted.
    fn receive_frame(&self, frame: &ArrayBuffer) {
        let events =
            open_frame(frame).and_then(|(header, bodies)| self.with_bodies(&self.parts, parse(&header)?, &bodies));
        let events = match events {
            Ok(events) => events,
            Err(what) => return self.feed(Input::BadMessage(what)),
        };
        let output: f64 = events
            .iter()
            .map(|(event, body)| output_bytes(event, body.as_ref()))
            .sum();
        if self.take_all(events) {
            self.progress("ready");
        }
        if let (true, Some(guest)) = (output > 0.0, &*self.remote.borrow()) {
            guest.took(output);
        }
    }

    /// A file that was to be sent cannot be read. What waits for it is told; a guest that has a part of it is of no more use.
    fn could_not_read(&self, request: &Request, begun: bool, why: &str) {
        let refused = |turn, message| Input::Guest(Event::Refused { turn, message }, None);
        match request {
            _ if begun => {
                let what = format!("a file could not be read to its end while it was sent: {why}");
                self.feed(Input::GuestLost(Error::GuestLost(what)));
            }
            Request::SetVariable { turn, .. } => {
                self.feed(refused(*turn, format!("the file could not be read: {why}")));
            }
            Request::WriteFile { turn, path, .. } => {
                self.feed(refused(*turn, format!("{path}: the data could not be read: {why}")));
            }
            Request::HostReply { call, .. } => {
                let reply = Request::HostReply {
                    call: *call,
                    status: ReplyStatus::Error,
                    encoding: Encoding::None,
                    message: Some(format!("what it returned could not be read: {why}")),
                };
                self.post(reply, None);
            }
            _ => {}
        }
    }
}

/// What an event counts of the guest's credit.
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
