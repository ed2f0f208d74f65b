//! The functions of the option `hostFunctions`.

use js_sys::Function;
use wasm_bindgen::prelude::*;

use super::arguments::{entries, function};
use super::glue::is_plain;
use sandglass_core::error::Error;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/**
 * A host function with settings. Keyword arguments of Python are one object at the end. `this` is the call: do not use an arrow function to
 * get it.
 */
export interface HostFunction {
  call: (this: RunningHostCall, ...args: any[]) => unknown;
  /** True: `onApprove` is asked before each call. */
  approve?: boolean;
}

/** A call of a host function. Python code chooses all of it, so show it as text only. */
export interface HostCall {
  /**
   * The call's name in the journal (`persist: { journal: true }`). A call that is made again after the page has ended has the same one, so a
   * function can tell that it has run already.
   */
  id?: string;
  /** The function's name. */
  name: string;
  /** The positional arguments. */
  args: unknown[];
  /** The keyword arguments. */
  kwargs: Record<string, unknown>;
  /**
   * The line of code that calls, as Python tells it: the execution's number, the line's number from 1, and the first 1 000 characters of the
   * line if it is of the execution that runs.
   */
  line?: { execution: number; number: number; text?: string };
  /** Aborted when Python does not wait for the call any more. */
  signal: AbortSignal;
}

/** A call of a host function that has an object of its own in `hostFunctions`. */
export interface RunningHostCall extends HostCall {
  /**
   * Asks `onApprove`, for a function that needs approval of some calls only. Resolves to the approved arguments, and rejects if the call is
   * refused. `shown` replaces the name and arguments that `onApprove` gets.
   */
  approve(shown?: {
    name?: string;
    args?: unknown[];
    kwargs?: Record<string, unknown>;
  }): Promise<{ args: unknown[]; kwargs: Record<string, unknown> }>;
}

/** An approval: true, other arguments for the call, or a refusal: false or the reason. What an edit leaves out stays as it is. */
export type Approval = boolean | string | { args?: unknown[]; kwargs?: Record<string, unknown> };
"#;

/// A function of the option `hostFunctions`.
#[derive(Debug, Clone)]
pub(super) struct HostFunction {
    pub(super) name: String,
    pub(super) call: Function,
    /// True if the function was given in an object. Then `this` is the call.
    pub(super) has_this: bool,
    pub(super) needs_approval: bool,
}

impl HostFunction {
    /// Reads a function, or `{ call, approve }`.
    pub(super) fn parse(name: String, value: &JsValue) -> Result<Self, Error> {
        let option = format!("hostFunctions.{name}");
        if let Some(call) = value.dyn_ref::<Function>() {
            return Ok(Self {
                name,
                call: call.clone(),
                has_this: false,
                needs_approval: false,
            });
        }
        if !is_plain(value) {
            return Err(Error::invalid(option, "must be a function, or { call, approve }"));
        }
        let (mut call, mut needs_approval) = (None, false);
        for (key, value) in entries(value, &option)? {
            let inner = format!("{option}.{key}");
            match key.as_str() {
                "call" => call = Some(function(&inner, &value)?),
                "approve" if value.is_undefined() => {}
                "approve" => {
                    let given = value.as_bool();
                    needs_approval = given.ok_or_else(|| Error::invalid(inner, "must be true or false"))?;
                }
                _ => return Err(Error::invalid(inner, "there is no such setting of a host function")),
            }
        }
        Ok(Self {
            name,
            call: call.ok_or_else(|| Error::invalid(format!("{option}.call"), "must be a function"))?,
            has_this: true,
            needs_approval,
        })
    }
}
