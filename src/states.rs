//! The public methods for states: the variables of a sandbox as bytes, for other sandboxes.

// Decisions: docs/internals/saving-and-restoring.md.

use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;

use super::convert::as_bytes;
use super::driver::Driver;
use super::glue::object;
use super::options::Watch;
use super::outbox::JsBody;
use super::sandbox::Sandbox;
use sandglass_core::error::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::limits::MAX_NAMES;
use sandglass_core::session::{Body, Command, Encoded, Reply, VariableCommand};

/// The most bytes of the names and reasons that come before a state.
const MAX_HEAD_BYTES: u32 = 2 << 20;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The result of `captureState`. */
export interface CapturedState {
  /** The portable state, for `openState` of any sandbox. Never open it elsewhere. */
  state: Uint8Array;
  /** The variables that it lacks, each with the reason, by the guest's word. At most 1 000. */
  lost: LostVariable[];
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `Promise<CapturedState>`.
    #[wasm_bindgen(typescript_type = "Promise<CapturedState>")]
    pub type CapturedPromise;
    /// TypeScript's `Promise<LostVariable[]>`.
    #[wasm_bindgen(typescript_type = "Promise<LostVariable[]>")]
    pub type LostPromise;
}

#[wasm_bindgen]
impl Sandbox {
    /// Writes the user's variables as a portable state: bytes that sandboxes of every backend and every version of Python open. Rejects with
    /// `not_serializable` when the state takes more than `maxValueSize`.
    #[wasm_bindgen(js_name = captureState)]
    pub fn capture_state(&self) -> CapturedPromise {
        let captured =
            |driver: &Rc<Driver>| Ok(driver.submit_for(capture(driver, false), Watch::default(), show_captured));
        self.current.call(captured).unchecked_into()
    }

    /// Adds the variables of a state from `captureState`, of this or another sandbox. Resolves to those that cannot be had here, each with
    /// the reason. Rejects with `invalid_option` when the state is malformed or damaged; then no variable is set.
    #[wasm_bindgen(js_name = openState)]
    pub fn open_state(
        &self,
        #[wasm_bindgen(unchecked_param_type = "Uint8Array | ArrayBuffer")] state: &JsValue,
    ) -> LostPromise {
        let most = self.driver().options().limits.max_value_bytes;
        let promise = state_of(state, most).map(|body| {
            self.current
                .call(|driver| Ok(driver.submit_for(open(driver, body), Watch::default(), show_lost)))
        });
        self.promise(promise).unchecked_into()
    }
}

/// The command that writes the variables of a sandbox. A `direct` state goes straight to another guest.
pub(super) fn capture(driver: &Driver, direct: bool) -> Command<JsBody> {
    let most = driver.options().limits.max_value_bytes;
    let max_bytes = (most - 2.0 * f64::from(MAX_HEAD_BYTES)).max(most / 2.0);
    Command::Variable(VariableCommand::Capture {
        max_bytes,
        portable: true,
        direct,
    })
}

/// The command that adds the variables of a state.
pub(super) fn open(driver: &Driver, state: JsBody) -> Command<JsBody> {
    Command::Variable(VariableCommand::Open(state, driver.options().limits.max_value_bytes))
}

fn state_of(state: &JsValue, most: f64) -> Result<JsBody, Error> {
    let bytes = as_bytes(state)
        .ok_or_else(|| Error::invalid("state", "must be a Uint8Array or an ArrayBuffer; nothing was set"))?;
    let body = JsBody::Bytes(bytes.slice(0, bytes.length()));
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let size = body.size() as f64;
    if size > most {
        let why = format!("the state takes {size} bytes, maxValueSize is {most}; nothing was set");
        return Err(Error::NotSerializable(why));
    }
    Ok(body)
}

fn show_captured(_: &Driver, reply: Reply<JsBody>, _: &Array) -> Result<JsValue, Error> {
    let (lost, state) = parts(&reply)?;
    let state = state.slice(0, state.length()); // a buffer with nothing else in it
    Ok(object(&[("state", &state), ("lost", &shown(&lost))]).into())
}

fn show_lost(_: &Driver, reply: Reply<JsBody>, _: &Array) -> Result<JsValue, Error> {
    Ok(shown(&lost(&reply)?).into())
}

/// TypeScript's `LostVariable[]`.
pub(super) fn shown(lost: &[LostVariable]) -> Array {
    let shown = lost.iter().map(|LostVariable { name, reason }| {
        JsValue::from(object(&[
            ("name", &name.as_str().into()),
            ("reason", &reason.as_str().into()),
        ]))
    });
    shown.collect()
}

/// Reads the answer to [`open`]: the variables that cannot be had.
pub(super) fn lost(reply: &Reply<JsBody>) -> Result<Vec<LostVariable>, Error> {
    match reply {
        Reply::Done => Ok(Vec::new()),
        reply => Ok(parts(reply)?.0),
    }
}

/// Reads the answer to [`capture`]: the variables that are not in the state, and the state, whose buffer is that of the answer.
pub(super) fn parts(reply: &Reply<JsBody>) -> Result<(Vec<LostVariable>, Uint8Array), Error> {
    split(reply).ok_or_else(|| Error::Protocol("a state whose missing variables cannot be read".to_owned()))
}

/// The parts of a guest's answer: the length of the names, the names as JSON, and the state. See `python/sandglass/state/stateless.py`.
fn split(reply: &Reply<JsBody>) -> Option<(Vec<LostVariable>, Uint8Array)> {
    let Reply::Value(Encoded {
        body: JsBody::Bytes(body),
        ..
    }) = reply
    else {
        return None;
    };
    let size = u32::from_le_bytes(body.subarray(0, 4).to_vec().try_into().ok()?);
    let start = size.checked_add(4)?;
    if size > MAX_HEAD_BYTES || start > body.length() {
        return None;
    }
    let named: Vec<(String, String)> = serde_json::from_slice(&body.subarray(4, start).to_vec()).ok()?;
    if named.len() > MAX_NAMES {
        return None;
    }
    let lost = named.into_iter().map(|(name, reason)| LostVariable { name, reason });
    Some((lost.collect(), body.subarray(start, body.length())))
}
