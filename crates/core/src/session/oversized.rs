//! The first check of a guest's event: its name, its exchange and its size.

use super::files::oversized_report;
use crate::execution::LostVariable;
use crate::limits::{
    MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_NAMES, MAX_OUTPUT_EVENT_BYTES, MAX_SAMPLED_TEXTS, MAX_SURVEYED,
    MAX_SURVEYED_COLUMNS, MAX_SURVEYED_NAME_BYTES,
};
use crate::protocol::{Event, SurveyedVariable};

/// An event's name, for messages.
pub(super) fn kind(event: &Event) -> &'static str {
    match event {
        Event::Ready { .. } => "`ready`",
        Event::BootFailed { .. } => "`bootFailed`",
        Event::Output { .. } => "`output`",
        Event::Display { .. } => "`display`",
        Event::HostCall { .. } => "`hostCall`",
        Event::Noted { .. } => "`noted`",
        Event::Unnoted { .. } => "`unnoted`",
        Event::Differs { .. } => "`differs`",
        Event::Executed { .. } => "`executed`",
        Event::Value { .. } => "`value`",
        Event::Done { .. } => "`done`",
        Event::Restored { .. } => "`restored`",
        Event::Refused { .. } => "`refused`",
        Event::Fatal { .. } => "`fatal`",
        Event::Part { .. } => "`part`",
        Event::Saved { .. } => "`saved`",
        Event::NotSaved { .. } => "`notSaved`",
        Event::Snapshot { .. } => "`snapshot`",
        Event::External { .. } => "`external`",
        Event::Promoted { .. } => "`promoted`",
        Event::Waiting { .. } => "`waiting`",
        Event::Checked { .. } => "`checked`",
        Event::Surveyed { .. } => "`surveyed`",
        Event::Pong { .. } => "`pong`",
    }
}

/// The number of the event's exchange, if it belongs to one.
pub(super) fn number_of(event: &Event) -> Option<u32> {
    match event {
        Event::Output { exchange, .. }
        | Event::HostCall { exchange, .. }
        | Event::Display { exchange, .. }
        | Event::Noted { exchange }
        | Event::Unnoted { exchange, .. }
        | Event::Differs { exchange, .. }
        | Event::Executed { exchange, .. }
        | Event::Waiting { exchange }
        | Event::Value { exchange, .. }
        | Event::Done { exchange }
        | Event::Restored { exchange, .. }
        | Event::Refused { exchange, .. } => Some(*exchange),
        _ => None,
    }
}

/// The text of a violation by an event that does not belong to the exchange under way.
pub(super) fn does_not_fit(event: &Event) -> String {
    match number_of(event) {
        Some(number) => format!("{} for exchange {number}, which is not under way", kind(event)),
        None => format!("{} out of order", kind(event)),
    }
}

/// The violation of an event that is no answer to its request.
pub(super) fn not_asked(event: &Event) -> String {
    format!("{} does not fit what was asked", kind(event))
}

/// Names the part of an event that is larger than our guest ever makes it.
pub(super) fn oversized(event: &Event) -> Option<&'static str> {
    let too_long = match event {
        Event::Output { text, .. } => text.len() > MAX_OUTPUT_EVENT_BYTES,
        Event::HostCall { name, .. } | Event::Display { mime: name, .. } => name.len() > MAX_NAME_BYTES,
        Event::BootFailed { message }
        | Event::Fatal { message }
        | Event::Refused { message, .. }
        | Event::Unnoted { why: message, .. }
        | Event::Differs { what: message, .. }
        | Event::NotSaved {
            reason: Some(message), ..
        } => message.len() > MAX_MESSAGE_BYTES,
        Event::Ready { guest, .. } => {
            let texts = [
                &guest.bridge,
                &guest.python,
                guest.pyodide.as_ref().unwrap_or(&guest.python),
            ];
            texts.iter().any(|text| text.len() > MAX_NAME_BYTES)
        }
        Event::Executed { execution, .. } => {
            execution
                .error_type
                .as_ref()
                .is_some_and(|name| name.len() > MAX_NAME_BYTES)
                || are_oversized(execution.names.as_deref())
                || oversized_report(&execution.files)
        }
        Event::Value { .. }
        | Event::Noted { .. }
        | Event::Done { .. }
        | Event::Part { .. }
        | Event::Snapshot { .. }
        | Event::External { .. }
        | Event::Promoted { .. }
        | Event::Waiting { .. }
        | Event::Checked { .. }
        | Event::Pong { .. }
        | Event::NotSaved { .. } => false,
        Event::Surveyed { variables, .. } => {
            variables.len() > MAX_SURVEYED || variables.iter().any(is_oversized_variable)
        }
        Event::Saved { lost, .. } => are_oversized_losses(lost),
        Event::Restored { lost, names, .. } => are_oversized_losses(lost) || are_oversized(names.as_deref()),
    };
    too_long.then_some("an oversized event")
}

fn are_oversized(names: Option<&[String]>) -> bool {
    let names = names.unwrap_or_default();
    names.len() > MAX_NAMES || names.iter().any(|name| name.len() > MAX_NAME_BYTES)
}

fn are_oversized_losses(lost: &[LostVariable]) -> bool {
    lost.len() > MAX_NAMES
        || lost
            .iter()
            .any(|lost| lost.name.len() > MAX_NAME_BYTES || lost.reason.len() > MAX_NAME_BYTES)
}

fn is_oversized_variable(variable: &SurveyedVariable) -> bool {
    let columns = variable.columns.iter().map(|column| &column.name);
    let samples = || variable.columns.iter().filter_map(|column| column.sample.as_ref());
    let texts = samples().flat_map(|sample| &sample.texts);
    variable.columns.len() > MAX_SURVEYED_COLUMNS
        || samples().any(|sample| sample.texts.len() > MAX_SAMPLED_TEXTS)
        || [&variable.name, &variable.type_name]
            .into_iter()
            .chain(columns)
            .chain(texts)
            .any(|name| name.len() > MAX_SURVEYED_NAME_BYTES)
}
