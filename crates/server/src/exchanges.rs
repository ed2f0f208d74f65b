//! The exchange that a message of a channel begins or ends.

use sandglass_core::protocol::{Event, Request};

/// The number of the exchange that a request starts.
pub fn exchange_of(request: &Request) -> Option<u32> {
    match request {
        Request::Execute { exchange, .. }
        | Request::GetVariable { exchange, .. }
        | Request::SetVariable { exchange, .. }
        | Request::Configure { exchange, .. }
        | Request::ListVariables { exchange, .. }
        | Request::WriteFile { exchange, .. }
        | Request::ReadFile { exchange, .. }
        | Request::ListFiles { exchange, .. }
        | Request::RemoveFile { exchange, .. }
        | Request::Look { exchange, .. }
        | Request::CellFile { exchange, .. }
        | Request::OpenState { exchange, .. }
        | Request::CaptureState { exchange, .. }
        | Request::Restore { exchange, .. }
        | Request::Install { exchange, .. } => Some(*exchange),
        // Without `_`, so that no later kind of request is forgotten.
        Request::Init { .. }
        | Request::Extend { .. }
        | Request::Promote { .. }
        | Request::Interrupt { .. }
        | Request::Check { .. }
        | Request::Survey { .. }
        | Request::Ping { .. }
        | Request::HostReply { .. }
        | Request::Save { .. }
        | Request::Part { .. }
        | Request::Credit { .. } => None,
    }
}

/// The number of the exchange that an event ends.
pub fn ended_exchange(event: &Event) -> Option<u32> {
    match event {
        Event::Executed { exchange, .. }
        | Event::Value { exchange, .. }
        | Event::Done { exchange }
        | Event::Restored { exchange, .. }
        | Event::Refused { exchange, .. } => Some(*exchange),
        _ => None,
    }
}
