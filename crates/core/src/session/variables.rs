//! Requests about a guest's variables, and checks of the answers.

use super::contexts::{Contexts, Target};
use super::oversized::not_asked;
use super::{Body, Encoded};
use crate::protocol::{Encoding, Event, Request};

/// A user's request about variables.
#[derive(Debug, Clone, PartialEq)]
pub enum VariableCommand<B> {
    /// Reads a variable.
    Get(String),
    /// Assigns a value. Every later guest gets it too, unless it is that of a variable named by the user.
    Set(Target, Encoded<B>),
    /// Lists the variables.
    List,
    /// Adds variables that [`VariableCommand::Capture`] wrote. The number is the most bytes that they take unpacked.
    Open(B, f64),
    /// Writes the variables for another session.
    Capture {
        /// The most bytes that they take unpacked.
        max_bytes: f64,
        /// Asks for a portable state instead of a pickle.
        portable: bool,
        /// Asks for a portable state that goes straight to another guest.
        direct: bool,
    },
}

impl<B: Body> VariableCommand<B> {
    /// The request to send to the guest.
    pub(super) fn request(&self, exchange: u32, timeout_ms: f64, contexts: &Contexts<B>) -> (Request, Option<B>) {
        let request = match self {
            Self::Get(name) => Request::GetVariable {
                exchange,
                name: name.clone(),
                timeout_ms,
            },
            Self::Set(target, value) => {
                let request = Request::SetVariable {
                    exchange,
                    name: contexts.name(target),
                    encoding: value.encoding,
                    timeout_ms,
                };
                return (request, Some(value.body.clone()));
            }
            Self::List => Request::ListVariables { exchange, timeout_ms },
            Self::Open(state, max_bytes) => {
                let request = Request::OpenState {
                    exchange,
                    max_bytes: *max_bytes,
                    timeout_ms,
                };
                return (request, Some(state.clone()));
            }
            Self::Capture {
                max_bytes,
                portable,
                direct,
            } => Request::CaptureState {
                exchange,
                max_bytes: *max_bytes,
                portable: *portable,
                direct: *direct,
                timeout_ms,
            },
        };
        (request, None)
    }

    /// Checks that an event is an answer to the request. An error is a violation.
    pub(super) fn check_answer(&self, event: &Event, has_body: bool) -> Result<(), String> {
        match (event, self) {
            (Event::Refused { .. }, _) | (Event::Done { .. }, Self::Set(..) | Self::Open(..)) => Ok(()),
            (Event::Value { encoding, .. }, Self::Get(_) | Self::List | Self::Capture { .. } | Self::Open(..)) => {
                let is_state = matches!(self, Self::Capture { .. } | Self::Open(..));
                match has_body {
                    false => Err("a value without a body".to_owned()),
                    true if is_state && *encoding != Encoding::Bytes => Err("a state that is no bytes".to_owned()),
                    true => Ok(()),
                }
            }
            _ => Err(not_asked(event)),
        }
    }
}
