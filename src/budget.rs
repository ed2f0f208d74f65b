//! Budgets as JavaScript has them.

use js_sys::{Function, Reflect};
use wasm_bindgen::convert::TryFromJsValue;
use wasm_bindgen::prelude::*;

use super::arguments::entries;
use super::glue::now;
use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::error::Error;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** An answer with its usage, for the budget. Leave out amounts that are not known. */
export interface Answer {
  text: string;
  usage?: { inputTokens?: number; outputTokens?: number; cost?: number };
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `BudgetLeft`.
    #[wasm_bindgen(typescript_type = "BudgetLeft")]
    pub type BudgetLeftValue;
    /// TypeScript's `Usage`.
    #[wasm_bindgen(typescript_type = "Usage")]
    pub type UsageValue;
}

/// The budget of a tree of sandboxes. Sandboxes that are created with the same budget share it. Spending in a child counts in its parents,
/// too.
#[wasm_bindgen(js_name = Budget)]
pub struct JsBudget(Budget);

impl JsBudget {
    pub(super) fn new(budget: Budget) -> Self {
        Self(budget)
    }
}

#[wasm_bindgen(js_class = Budget)]
impl JsBudget {
    /// The amounts spent so far.
    #[wasm_bindgen(getter)]
    pub fn spent(&self) -> UsageValue {
        shown(&self.0.spent()).unchecked_into()
    }

    /// The amounts left; an amount without a limit is absent.
    #[wasm_bindgen(getter)]
    pub fn left(&self) -> BudgetLeftValue {
        shown(&self.0.left(now())).unchecked_into()
    }

    /// The budget's levels of recursion below its root.
    #[wasm_bindgen(getter)]
    pub fn depth(&self) -> f64 {
        self.0.depth()
    }

    /// Counts spending elsewhere, such as a controller's own calls.
    pub fn charge(&self, #[wasm_bindgen(unchecked_param_type = "Partial<Usage>")] usage: &JsValue) {
        let calls = super::glue::get(usage, "calls").as_f64().unwrap_or_default();
        self.0.charge(&Usage {
            calls,
            ..self::usage(usage)
        });
    }

    /// Another handle of the same budget. Each handle can be freed by itself.
    pub fn share(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(super) fn shown(value: &impl serde::Serialize) -> JsValue {
    serde_json::to_string(value)
        .ok()
        .and_then(|json| js_sys::JSON::parse(&json).ok())
        .unwrap_or_default()
}

/// The option `budget`: limits, or a shared budget.
#[derive(Debug, Clone)]
pub(super) enum Given {
    /// A new budget.
    Limits(BudgetLimits),
    /// A shared budget.
    Shared(Budget),
}

impl Given {
    pub(super) fn parse(value: &JsValue) -> Result<Self, Error> {
        let share = Reflect::get(value, &"share".into())
            .ok()
            .and_then(|share| share.dyn_into::<Function>().ok());
        if let Some(share) = share {
            let shared = share
                .call0(value)
                .ok()
                .and_then(|shared| JsBudget::try_from_js_value(shared).ok());
            return shared
                .map(|budget| Self::Shared(budget.0))
                .ok_or_else(|| Error::invalid("budget", "must be limits, or a budget of this package"));
        }
        limits(value).map(Self::Limits)
    }
}

/// Limits as an object.
pub(super) fn limits(value: &JsValue) -> Result<BudgetLimits, Error> {
    let mut limits = BudgetLimits::default();
    for (name, value) in entries(value, "budget")? {
        if value.is_undefined() {
            continue;
        }
        let number = value
            .as_f64()
            .ok_or_else(|| Error::invalid(format!("budget.{name}"), "must be a number"))?;
        limits.set(&name, number)?;
    }
    Ok(limits)
}

/// The usage that a callback reports for its answer.
pub(super) fn usage(value: &JsValue) -> Usage {
    let amount = |name| super::glue::get(value, name).as_f64().unwrap_or_default();
    Usage {
        calls: 0.0,
        input_tokens: amount("inputTokens"),
        output_tokens: amount("outputTokens"),
        cost: amount("cost"),
    }
}
