//! Reads arguments of the public methods. Each function's error names the argument and what is wrong with it.

use js_sys::{Array, Function, JSON};
use serde_json::Value;
use wasm_bindgen::prelude::*;

use super::glue::{self, describe, exact, is_plain, well_formed};
use sandglass_core::error::Error;

/// The entries of an object; none when the object is left out.
pub(super) fn entries(value: &JsValue, what: &str) -> Result<Vec<(String, JsValue)>, Error> {
    if value.is_undefined() {
        return Ok(Vec::new());
    }
    if !is_plain(value) {
        return Err(Error::invalid(what, "must be an object"));
    }
    let entries =
        glue::entries(value).map_err(|error| Error::invalid(what, format!("cannot be read: {}", describe(&error))))?;
    Ok(entries
        .iter()
        .map(|entry| {
            let entry: Array = entry.unchecked_into();
            (entry.get(0).as_string().unwrap_or_default(), entry.get(1))
        })
        .collect())
}

/// Reads a function.
pub(super) fn function(name: &str, value: &JsValue) -> Result<Function, Error> {
    value
        .dyn_ref::<Function>()
        .cloned()
        .ok_or_else(|| Error::invalid(name, "must be a function"))
}

/// Reads a text that Python can take: it has no lone surrogates.
pub(super) fn text(name: &str, value: &JsValue) -> Result<String, Error> {
    let text = value
        .dyn_ref()
        .ok_or_else(|| Error::invalid(name, "must be a string"))?;
    exact("it", text).map_err(|problem| Error::invalid(name, problem))
}

/// Reads the source of an execution. Refuses lone surrogates here, because Python could not read them and the way would change them.
pub(super) fn source(code: &JsValue) -> Result<String, Error> {
    let text = code
        .dyn_ref()
        .ok_or_else(|| Error::invalid("code", "must be a string; nothing was run"))?;
    if well_formed(text) {
        Ok(text.into())
    } else {
        Err(Error::invalid(
            "code",
            "holds a lone surrogate, which is no text that Python can read; nothing was run",
        ))
    }
}

/// The part of an error that lists the names an option may have.
pub(super) fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("\"{name}\"")).collect();
    format!("must be one of {}", names.join(", "))
}

/// Reads a count. `what` is the error's text for anything else.
pub(super) fn whole_number(name: &str, value: &JsValue, what: &str) -> Result<u32, Error> {
    let number = value
        .as_f64()
        .filter(|number| number.fract() == 0.0 && (0.0..=4e9).contains(number));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and within u32 by its range"
    )]
    number
        .map(|number| number as u32)
        .ok_or_else(|| Error::invalid(name, what))
}

/// Reads a number of a range.
pub(super) fn number(name: &str, value: &JsValue, least: f64, most: f64) -> Result<f64, Error> {
    value
        .as_f64()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| Error::invalid(name, format!("must be a number from {least} to {most}")))
}

/// Reads a whole number of a range.
pub(super) fn whole(name: &str, value: &JsValue, least: f64, most: f64) -> Result<u32, Error> {
    let number = number(name, value, least, most)?;
    if number.fract() != 0.0 {
        return Err(Error::invalid(name, format!("must be a whole number, not {number}")));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and within u32 by its range"
    )]
    Ok(number as u32)
}

/// Reads a value that JSON can hold.
pub(super) fn json(name: &str, value: &JsValue) -> Result<Value, Error> {
    JSON::stringify(value)
        .ok()
        .and_then(|text| text.as_string())
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| Error::invalid(name, "must be what JSON can hold"))
}
