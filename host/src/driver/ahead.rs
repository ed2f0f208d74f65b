//! The copy of the guest that runs code ahead: what the session wants of it, and what it says.

use sandglass_core::Error;
use sandglass_core::protocol::Request;
use sandglass_core::session::{Effect, Input};

use super::now;
use super::pump::{CREDIT_BYTES, Happened, Pump, Running, Slot};
use super::receive::output_bytes;
use crate::frame::Frame;
use crate::value::Payload;

impl Pump {
    pub(super) fn carry_out_ahead(&mut self, effect: Effect<Payload>) {
        match effect {
            Effect::Boot => {
                let forker = match &self.guest {
                    Slot::Running(running) => running.forker.as_ref(),
                    _ => None,
                };
                match forker {
                    Some(forker) => self.ahead = Slot::Launching(forker.fork(), Vec::new()),
                    None => self.ahead_lost("the guest makes no copies of itself"),
                }
            }
            // It has no other use: a new one is a fork away.
            Effect::Kill | Effect::Rest => self.ahead = Slot::None,
            Effect::Post(request, body) => {
                let Ok(header) = serde_json::to_vec(&request) else {
                    return self.ahead_lost("a request could not be written");
                };
                let bodies = body.into_iter().map(|body| body.0).collect();
                let frame = Frame {
                    header: header.into(),
                    bodies,
                };
                if let Err(error) = self.ahead.send(frame) {
                    self.ahead_lost(&error.to_string());
                }
            }
            _ => {}
        }
    }

    /// The copy takes the place of the guest.
    pub(super) fn promote(&mut self) {
        let ahead = std::mem::replace(&mut self.ahead, Slot::None);
        let (Slot::Running(mut copy), Slot::Running(guest)) = (ahead, std::mem::replace(&mut self.guest, Slot::None))
        else {
            // It has just gone, and the session believes that it is the guest.
            let effects = self
                .session
                .handle(now(), Input::GuestLost(Error::GuestLost("the copy ended".to_owned())));
            return self.effects.extend(effects);
        };
        if let Some(succession) = copy.succession.take() {
            succession.succeed();
        }
        // What was started for the first guest ends with the last one.
        copy.process = guest.process;
        self.guest = Slot::Running(copy);
        self.promotions += 1;
        self.begun = self.hits();
    }

    pub(super) fn ahead_happened(&mut self, happened: Happened) {
        match happened {
            Happened::Launched(Ok(guest)) => {
                let running = Slot::Running(Box::new(Running::of(guest, self.max_value_bytes)));
                let unsent = match std::mem::replace(&mut self.ahead, running) {
                    Slot::Launching(_, unsent) => unsent,
                    _ => Vec::new(),
                };
                for frame in unsent {
                    if let Err(error) = self.ahead.send(frame) {
                        self.feed_ahead_lost(&error.to_string());
                    }
                }
            }
            Happened::Launched(Err(error)) => self.feed_ahead_lost(&error.to_string()),
            Happened::Frame(Ok(Some(frame))) => self.ahead_frame(frame),
            Happened::Written(Ok(())) => {}
            Happened::Frame(_) | Happened::Written(Err(_)) | Happened::Exited(_) | Happened::Overdue => {
                self.feed_ahead_lost("it ended");
            }
        }
    }

    fn ahead_frame(&mut self, frame: Frame) {
        let max_bytes = self.max_value_bytes;
        let Slot::Running(running) = &mut self.ahead else {
            return;
        };
        let events = match running.parts.read(frame, max_bytes) {
            Ok(events) => events,
            Err(what) => return self.feed_ahead_lost(&what),
        };
        let before = self.promotions;
        for (event, body) in events {
            let bytes = output_bytes(&event, body.as_ref());
            let input = Input::Guest(event, body);
            // What one says may make it the guest, and the next it then says as that.
            let is_guest = self.promotions != before;
            self.feed(if is_guest { input } else { Input::Ahead(Box::new(input)) });
            let slot = if self.promotions == before {
                &mut self.ahead
            } else {
                &mut self.guest
            };
            let Slot::Running(running) = slot else { return };
            running.owed += bytes;
            if running.owed >= CREDIT_BYTES {
                let bytes = std::mem::take(&mut running.owed);
                #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
                let credit = serde_json::to_vec(&Request::Credit { bytes: bytes as f64 }).unwrap_or_default();
                let _ = slot.send(Frame {
                    header: credit.into(),
                    bodies: Vec::new(),
                });
            }
        }
    }

    /// The session hears of it after what it is at.
    fn ahead_lost(&mut self, why: &str) {
        self.ahead = Slot::None;
        let effects = self.session.handle(now(), lost(why));
        self.effects.extend(effects);
    }

    fn feed_ahead_lost(&mut self, why: &str) {
        self.ahead = Slot::None;
        self.feed(lost(why));
    }
}

fn lost(why: &str) -> Input<Payload> {
    tracing::debug!(why, "code does not run ahead");
    Input::Ahead(Box::new(Input::GuestLost(Error::GuestLost(why.to_owned()))))
}
