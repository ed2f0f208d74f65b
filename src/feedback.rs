//! `sandbox.feedback`: reads a finished execution and its options from JavaScript.

use js_sys::{Array, Object, Reflect};
use tsify::Tsify;
use wasm_bindgen::prelude::*;

use super::arguments::{entries, one_of, whole_number};
use super::glue::{get, is_plain};
use sandglass_core::error::Error;
use sandglass_core::execution::CodeExecution;
use sandglass_core::protocol::Profile;
use sandglass_rlm::feedback::{Format, feedback, rlm_turn};

/// The execution to describe, and the options of the text.
#[derive(Debug)]
pub(super) struct FeedbackOptions {
    format: Format,
    block: Option<u32>,
    variables: Vec<String>,
    max_chars: Option<u32>,
    /// The number of the next turn, and the number of turns at most.
    turn: Option<(u32, u32)>,
}

/// The classes whose instances the project alexzhang13/rlm lists.
const LISTED_TYPES: [&str; 7] = ["str", "int", "float", "bool", "list", "dict", "tuple"];

impl FeedbackOptions {
    pub(super) fn parse(value: &JsValue, profile: Profile) -> Result<Self, Error> {
        let mut format = Format::from(profile);
        let (mut block, mut max_chars, mut variables) = (None, None, JsValue::UNDEFINED);
        let (mut turn, mut turns) = (None, None);
        for (name, value) in entries(value, "options")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "format" => {
                    let named = value.as_string().as_deref().and_then(Format::named);
                    let names = Profile::ALL.map(Profile::name).into_iter().chain(["rlm-minimal"]);
                    format = named.ok_or_else(|| Error::invalid(&name, one_of(names)))?;
                }
                "block" => block = Some(whole_number(&name, &value, "must be a whole number")?),
                "maxLength" => max_chars = Some(whole_number(&name, &value, "must be a whole number")?),
                "turn" => turn = Some(whole_number(&name, &value, "must be a whole number")?),
                "turns" => turns = Some(whole_number(&name, &value, "must be a whole number")?),
                "variables" => variables = value,
                _ => return Err(Error::invalid(name, "there is no such option of feedback")),
            }
        }
        let turn = match (turn, turns) {
            (None, None) => None,
            (Some(_), Some(_)) if format != Format::Rlm => {
                return Err(Error::invalid("turn", "is told in the format \"rlm\" only"));
            }
            (Some(turn), Some(turns)) => Some((turn, turns)),
            _ => return Err(Error::invalid("turn", "and turns are needed together")),
        };
        let variables = if variables.is_undefined() {
            Vec::new()
        } else {
            names(&variables, format)?
        };
        Ok(Self {
            format,
            block,
            variables,
            max_chars,
            turn,
        })
    }

    pub(super) fn tell(&self, execution: &JsValue) -> Result<String, Error> {
        let refused = || Error::invalid("execution", "must be what execute resolved to");
        if !is_plain(execution) {
            return Err(refused());
        }
        // JSON cannot hold these fields, and the model does not see them.
        let told = Object::assign(&Object::new(), execution.unchecked_ref());
        let _ = Reflect::delete_property(&told, &"final".into());
        let _ = Reflect::set(&told, &"displays".into(), &Array::new());
        let execution = CodeExecution::from_js(told).map_err(|_| refused())?;
        let mut text = feedback(self.format, &execution, self.block, &self.variables, self.max_chars);
        if let Some((turn, turns)) = self.turn {
            text.push_str("\n\n");
            text.push_str(&rlm_turn(turn, turns));
        }
        Ok(text)
    }
}

/// Reads the variables to list. Names stay as they are; of `Variable`s, those that the format lists are kept.
fn names(value: &JsValue, format: Format) -> Result<Vec<String>, Error> {
    let refused = || Error::invalid("variables", "must be a list of names or of what listVariables tells");
    let list: &Array = value.dyn_ref().ok_or_else(refused)?;
    let mut names = Vec::new();
    for item in list.iter() {
        if let Some(name) = item.as_string() {
            names.push(name);
            continue;
        }
        let (name, kind) = (get(&item, "name").as_string(), get(&item, "type").as_string());
        let (Some(name), Some(kind)) = (name, kind) else {
            return Err(refused());
        };
        let listed = LISTED_TYPES.contains(&kind.as_str()) && !name.starts_with('_');
        if format == Format::Default || listed {
            names.push(name);
        }
    }
    Ok(names)
}
