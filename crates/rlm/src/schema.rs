//! Checks answers against a part of JSON Schema (draft 2020-12). A complete validator would be five times the size of the whole supervisor.
//!
//! Supported keywords are `true`, `false`, `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `minProperties`,
//! `maxProperties`, `items`, `prefixItems`, `minItems`, `maxItems`, `uniqueItems`, `minLength`, `maxLength`, `minimum`, `maximum`,
//! `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `allOf`, `anyOf`, `oneOf`, `not`, and `$ref` to `#`, `#/$defs/…` or
//! `#/definitions/…`. Annotations, `format` among them, are accepted and not checked. Any other keyword is refused, so that no condition is
//! ignored silently.
//!
//! Decisions: `docs/internals/controller.md`.

use std::cell::Cell;
use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::integer::big_int;
use super::middle_cut;
use sandglass_core::error::Error;

const ANNOTATIONS: [&str; 13] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
];
/// The most problems in one report.
const MAX_PROBLEMS: usize = 10;
/// The deepest nesting of schemas, with references. A schema that only refers to itself would never end.
const MAX_DEPTH: usize = 200;
/// The most pairs of a schema and a value in one check.
const MAX_STEPS: usize = 1_000_000;

/// A schema with supported keywords only.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema(Value);

impl Schema {
    /// Checks a schema, and keeps it.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the schema has an unsupported keyword.
    pub fn new(schema: Value) -> Result<Self, Error> {
        known(&schema, &schema, "answerSchema", 0)?;
        Ok(Self(schema))
    }

    /// The schema in the form in which it was given.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The problems of a value, a line each. A line begins with the place in the value. Empty if the value is valid.
    pub fn problems(&self, value: &Value) -> Vec<String> {
        let steps = Cell::new(0);
        let mut check = Check {
            root: &self.0,
            steps: &steps,
            problems: Vec::new(),
        };
        check.value(&self.0, value, "$", 0);
        if steps.get() >= MAX_STEPS {
            check.problems.insert(0, "$: there is too much to check".to_owned());
        }
        check.problems.truncate(MAX_PROBLEMS);
        check.problems
    }
}

/// Refuses unsupported keywords.
fn known(schema: &Value, root: &Value, path: &str, depth: usize) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::invalid(path, problem));
    if depth > MAX_DEPTH {
        return refuse("nests too deeply".to_owned());
    }
    let keywords = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return refuse("must be a JSON Schema: an object or a boolean".to_owned()),
    };
    for (keyword, value) in keywords {
        let inner = format!("{path}.{keyword}");
        let is_right = match keyword.as_str() {
            "type" => {
                let types: Vec<&Value> = value
                    .as_array()
                    .map_or_else(|| vec![value], |types| types.iter().collect());
                types.iter().all(|name| {
                    ["null", "boolean", "integer", "number", "string", "array", "object"]
                        .contains(&name.as_str().unwrap_or_default())
                })
            }
            "const" => true,
            "enum" => value.is_array(),
            "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
            "minProperties" | "maxProperties" | "minItems" | "maxItems" | "minLength" | "maxLength" => value.is_u64(),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0),
            "uniqueItems" => value.is_boolean(),
            "items" | "additionalProperties" | "not" => {
                known(value, root, &inner, depth + 1)?;
                true
            }
            "properties" | "$defs" | "definitions" => match value.as_object() {
                Some(schemas) => {
                    for (name, schema) in schemas {
                        known(schema, root, &format!("{inner}.{name}"), depth + 1)?;
                    }
                    true
                }
                None => false,
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => match value.as_array() {
                Some(schemas) => {
                    for (index, schema) in schemas.iter().enumerate() {
                        known(schema, root, &format!("{inner}[{index}]"), depth + 1)?;
                    }
                    true
                }
                None => false,
            },
            "$ref" => value
                .as_str()
                .is_some_and(|reference| resolve(root, reference).is_some()),
            annotation if ANNOTATIONS.contains(&annotation) => true,
            _ => {
                return refuse(format!(
                    "\"{keyword}\" is not checked here; leave it out, or check it yourself"
                ));
            }
        };
        if !is_right {
            return Err(Error::invalid(inner, format!("{value} is no value for it")));
        }
    }
    Ok(())
}

/// The schema to which a reference points.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    let is_definition = ["/$defs/", "/definitions/"]
        .iter()
        .any(|place| pointer.starts_with(place));
    (pointer.is_empty() || is_definition)
        .then(|| root.pointer(pointer))
        .flatten()
}

struct Check<'a> {
    root: &'a Value,
    steps: &'a Cell<usize>,
    problems: Vec<String>,
}

impl Check<'_> {
    fn say(&mut self, path: &str, problem: impl Into<String>) {
        if self.problems.len() <= MAX_PROBLEMS {
            let path: String = path.chars().take(200).collect();
            self.problems.push(format!("{path}: {}", problem.into()));
        }
    }

    /// Returns true if a value is valid. Collects no problems.
    fn is_right(&self, schema: &Value, value: &Value, depth: usize) -> bool {
        let mut check = Check {
            root: self.root,
            steps: self.steps,
            problems: Vec::new(),
        };
        check.value(schema, value, "$", depth);
        check.problems.is_empty()
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str, depth: usize) {
        self.steps.set(self.steps.get() + 1);
        if self.problems.len() > MAX_PROBLEMS || self.steps.get() > MAX_STEPS {
            return;
        }
        if depth > MAX_DEPTH {
            return self.say(path, "the schema refers to itself without end");
        }
        let keywords = match schema {
            Value::Bool(true) => return,
            Value::Object(keywords) => keywords,
            _ => return self.say(path, "nothing is allowed here"),
        };
        for (keyword, expected) in keywords {
            match keyword.as_str() {
                "type" => self.kind(expected, value, path),
                "const" if !same(expected, value) => self.say(path, format!("must be {expected}")),
                "enum"
                    if !expected
                        .as_array()
                        .is_some_and(|all| all.iter().any(|one| same(one, value))) =>
                {
                    self.say(path, format!("must be one of {expected}"));
                }
                "$ref" => {
                    let target = expected.as_str().and_then(|reference| resolve(self.root, reference));
                    if let Some(target) = target.cloned() {
                        self.value(&target, value, path, depth + 1);
                    }
                }
                "allOf" => items(expected).for_each(|schema| self.value(schema, value, path, depth + 1)),
                "anyOf" | "oneOf" => {
                    let right = items(expected)
                        .filter(|schema| self.is_right(schema, value, depth + 1))
                        .count();
                    if right == 0 {
                        self.say(path, format!("must be what one of these says: {expected}"));
                    } else if right > 1 && keyword == "oneOf" {
                        self.say(path, format!("must be what only one of these says: {expected}"));
                    }
                }
                "not" if self.is_right(expected, value, depth + 1) => {
                    self.say(path, format!("must not be: {expected}"))
                }
                _ => {}
            }
        }
        match value {
            Value::Number(_) => self.number(keywords, value, path),
            _ if big_int(value).is_some() => self.number(keywords, value, path),
            Value::String(text) => {
                let length = text.chars().count();
                self.size(keywords, ["minLength", "maxLength"], length, "characters", path);
            }
            Value::Array(values) => self.array(keywords, values, path, depth),
            Value::Object(fields) => self.object(keywords, fields, path, depth),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn kind(&mut self, expected: &Value, value: &Value, path: &str) {
        let is = |name: &str| match name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number() || big_int(value).is_some(),
            "integer" => big_int(value).is_some() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object() && big_int(value).is_none(),
            _ => false,
        };
        let right = match expected {
            Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
            name => name.as_str().is_some_and(is),
        };
        if !right {
            let found = match value {
                Value::Null => "null",
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                _ if big_int(value).is_some() => "a number",
                Value::String(_) => "a string",
                Value::Array(_) => "an array",
                Value::Object(_) => "an object",
            };
            self.say(path, format!("must be of type {expected}, not {found}"));
        }
    }

    fn size(&mut self, keywords: &Map<String, Value>, names: [&str; 2], size: usize, unit: &str, path: &str) {
        let bound = |name| keywords.get(name).and_then(Value::as_u64);
        if bound(names[0]).is_some_and(|least| (size as u64) < least) {
            self.say(
                path,
                format!("has {size} {unit}, {} is {}", names[0], keywords[names[0]]),
            );
        }
        if bound(names[1]).is_some_and(|most| size as u64 > most) {
            self.say(
                path,
                format!("has {size} {unit}, {} is {}", names[1], keywords[names[1]]),
            );
        }
    }

    fn number(&mut self, keywords: &Map<String, Value>, number: &Value, path: &str) {
        for (keyword, bound) in keywords {
            let right = match keyword.as_str() {
                "minimum" => compare(number, bound).is_ge(),
                "maximum" => compare(number, bound).is_le(),
                "exclusiveMinimum" => compare(number, bound).is_gt(),
                "exclusiveMaximum" => compare(number, bound).is_lt(),
                "multipleOf" => is_multiple(number, bound),
                _ => true,
            };
            if !right {
                let number = big_int(number).map_or_else(|| number.to_string(), |digits| middle_cut(digits, 40));
                self.say(path, format!("is {number}, {keyword} is {bound}"));
            }
        }
    }

    fn array(&mut self, keywords: &Map<String, Value>, values: &[Value], path: &str, depth: usize) {
        self.size(keywords, ["minItems", "maxItems"], values.len(), "items", path);
        let first: Vec<&Value> = keywords
            .get("prefixItems")
            .map(|schemas| items(schemas).collect())
            .unwrap_or_default();
        for (index, value) in values.iter().enumerate() {
            if let Some(schema) = first.get(index).copied().or(keywords.get("items")) {
                self.value(schema, value, &format!("{path}[{index}]"), depth + 1);
            }
        }
        let unique = keywords.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false);
        if unique {
            let mut seen = std::collections::HashSet::new();
            if !values.iter().all(|value| seen.insert(value.to_string())) {
                self.say(path, "holds an item twice");
            }
        }
    }

    fn object(&mut self, keywords: &Map<String, Value>, fields: &Map<String, Value>, path: &str, depth: usize) {
        self.size(
            keywords,
            ["minProperties", "maxProperties"],
            fields.len(),
            "fields",
            path,
        );
        for name in keywords
            .get("required")
            .into_iter()
            .flat_map(items)
            .filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                self.say(path, format!("lacks the field \"{name}\""));
            }
        }
        let properties = keywords.get("properties").and_then(Value::as_object);
        for (name, value) in fields {
            let path = format!("{path}.{name}");
            match (
                properties.and_then(|known| known.get(name)),
                keywords.get("additionalProperties"),
            ) {
                (Some(schema), _) => self.value(schema, value, &path, depth + 1),
                (None, Some(Value::Bool(false))) => self.say(&path, "is a field that is not asked for"),
                (None, Some(schema)) => self.value(schema, value, &path, depth + 1),
                (None, None) => {}
            }
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A number as a double, rounded if necessary.
fn as_f64(number: &Value) -> f64 {
    match big_int(number) {
        // Ints in hexadecimal digits are greater than all doubles.
        Some(int) if int.contains('x') => f64::INFINITY.copysign(if int.starts_with('-') { -1.0 } else { 1.0 }),
        Some(int) => int.parse().unwrap_or(f64::NAN),
        None => number.as_f64().unwrap_or(f64::NAN),
    }
}

/// An int, if it fits into 128 bits.
fn as_int(number: &Value) -> Option<i128> {
    match big_int(number) {
        Some(int) => int.parse().ok(),
        None => number.as_i64().map(Into::into).or(number.as_u64().map(Into::into)),
    }
}

/// Compares two numbers; ints are compared exactly.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (as_int(a), as_int(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => as_f64(a).partial_cmp(&as_f64(b)).unwrap_or(Ordering::Equal),
    }
}

fn is_multiple(number: &Value, step: &Value) -> bool {
    if let (Some(int), Some(step)) = (big_int(number), step.as_u64()) {
        let magnitude = int.trim_start_matches('-');
        let (digits, base) = magnitude.strip_prefix("0x").map_or((magnitude, 10), |hex| (hex, 16));
        let digits = digits.chars().filter_map(|digit| digit.to_digit(base));
        let rest = digits.fold(0, |rest: u128, digit| {
            (rest * u128::from(base) + u128::from(digit)) % u128::from(step)
        });
        return rest == 0;
    }
    let times = as_f64(number) / as_f64(step);
    (times - times.round()).abs() <= 1e-9 * times.abs().max(1.0)
}

/// Compares two values by the rules of JSON Schema, where 1 and 1.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        _ if big_int(a).is_some() != big_int(b).is_some() => {
            let are_numbers = (big_int(a).is_some() || a.is_number()) && (big_int(b).is_some() || b.is_number());
            are_numbers && compare(a, b).is_eq()
        }
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    fn problems(schema: Value, value: Value) -> String {
        Schema::new(schema).unwrap().problems(&value).join("; ")
    }

    #[test]
    fn each_keyword_is_checked() {
        for (schema, right, wrong, problem) in [
            (json!({ "type": "integer" }), json!(2.0), json!(2.5), "must be of type"),
            (
                json!({ "type": ["string", "null"] }),
                json!(null),
                json!(1),
                "not a number",
            ),
            (
                json!({ "const": { "a": 1 } }),
                json!({ "a": 1.0 }),
                json!({ "a": 2 }),
                "must be {",
            ),
            (json!({ "enum": ["a", 1] }), json!(1), json!("b"), "must be one of"),
            (
                json!({ "required": ["a"] }),
                json!({ "a": null }),
                json!({}),
                "lacks the field \"a\"",
            ),
            (
                json!({ "properties": { "a": { "minimum": 3 } } }),
                json!({ "a": 3 }),
                json!({ "a": 2 }),
                "$.a: is 2, minimum",
            ),
            (
                json!({ "additionalProperties": false }),
                json!({}),
                json!({ "b": 1 }),
                "$.b: is a field",
            ),
            (
                json!({ "additionalProperties": { "type": "null" } }),
                json!({ "b": null }),
                json!({ "b": 1 }),
                "$.b: must",
            ),
            (
                json!({ "minProperties": 1 }),
                json!({ "a": 1 }),
                json!({}),
                "has 0 fields",
            ),
            (
                json!({ "items": { "type": "string" } }),
                json!(["a"]),
                json!(["a", 1]),
                "$[1]: must",
            ),
            (
                json!({ "prefixItems": [true, false] }),
                json!([1]),
                json!([1, 2]),
                "$[1]: nothing",
            ),
            (
                json!({ "minItems": 1, "maxItems": 2 }),
                json!([1]),
                json!([1, 2, 3]),
                "has 3 items",
            ),
            (json!({ "uniqueItems": true }), json!([1, 2]), json!([1, 1]), "twice"),
            (json!({ "minLength": 2 }), json!("éé"), json!("é"), "has 1 characters"),
            (
                json!({ "exclusiveMinimum": 1 }),
                json!(1.1),
                json!(1),
                "exclusiveMinimum",
            ),
            (json!({ "multipleOf": 0.1 }), json!(0.3), json!(0.35), "multipleOf"),
            (
                json!({ "allOf": [{ "minimum": 1 }, { "maximum": 2 }] }),
                json!(2),
                json!(3),
                "maximum",
            ),
            (
                json!({ "anyOf": [{ "type": "null" }, { "minimum": 5 }] }),
                json!(null),
                json!(3),
                "one of these",
            ),
            (
                json!({ "oneOf": [{ "minimum": 1 }, { "minimum": 5 }] }),
                json!(3),
                json!(6),
                "only one",
            ),
            (
                json!({ "not": { "type": "null" } }),
                json!(1),
                json!(null),
                "must not be",
            ),
            (
                json!({ "$ref": "#/$defs/tree", "$defs": { "tree": { "type": "array", "items": { "$ref": "#/$defs/tree" } } } }),
                json!([[], [[]]]),
                json!([[1]]),
                "$[0][0]: must be of type",
            ),
        ] {
            assert_eq!(problems(schema.clone(), right), "", "{schema}");
            let found = problems(schema.clone(), wrong);
            assert!(found.contains(problem), "{schema}: {found}");
        }
    }

    #[test]
    fn large_ints_are_numbers() {
        let int = |digits: &str| json!({ "$bigint": digits });
        let odd = int("265252859812191058636308480000001");
        for (schema, right, wrong) in [
            (json!({ "type": "integer" }), odd.clone(), json!({ "$bigint": "5" })),
            (json!({ "type": ["number"] }), odd.clone(), json!({})),
            (json!({ "type": "object" }), json!({ "$bigint": 5 }), odd.clone()),
            (json!({ "required": ["a"] }), odd.clone(), json!({})),
            (
                json!({ "maximum": (1_u64 << 53) + 1 }),
                int("9007199254740993"),
                int("9007199254740994"),
            ),
            (json!({ "exclusiveMinimum": 0 }), odd.clone(), int("-9007199254740993")),
            (
                json!({ "maximum": 1e40 }),
                odd.clone(),
                json!({ "$bigint": format!("0x{}", "f".repeat(4_001)) }),
            ),
            (
                json!({ "multipleOf": 3 }),
                int("265252859812191058636308480000000"),
                odd.clone(),
            ),
            (
                json!({ "const": (1_u64 << 53) + 1 }),
                int("9007199254740993"),
                int("9007199254740995"),
            ),
            (
                json!({ "enum": ["a", 1e30] }),
                int("1000000000000000000000000000000"),
                odd,
            ),
        ] {
            assert_eq!(problems(schema.clone(), right), "", "{schema}");
            assert_ne!(problems(schema.clone(), wrong), "", "{schema}");
        }
    }

    #[test]
    fn what_is_not_checked_is_refused() {
        for (schema, name) in [
            (json!({ "pattern": "a" }), "answerSchema: \"pattern\""),
            (
                json!({ "properties": { "a": { "if": {} } } }),
                "answerSchema.properties.a: \"if\"",
            ),
            (json!({ "type": "text" }), "answerSchema.type"),
            (json!({ "$ref": "https://example.com/schema" }), "answerSchema.$ref"),
            (json!({ "$ref": "#/$defs/missing" }), "answerSchema.$ref"),
            (json!([]), "answerSchema: must be"),
            (json!({ "minLength": -1 }), "answerSchema.minLength"),
        ] {
            let error = Schema::new(schema).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn a_schema_that_is_only_itself_ends() {
        let endless = json!({ "$ref": "#" });
        assert!(problems(endless, json!(1)).contains("without end"));
        let wide = json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] });
        assert!(!problems(wide, json!(1)).is_empty());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-5i64..5).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("(type|enum|items|anyOf|a|not|minimum|\\$ref)", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_schema_and_no_value_is_too_much(schema in any_json(), value in any_json()) {
            if let Ok(schema) = Schema::new(schema) {
                prop_assert!(schema.problems(&value).len() <= MAX_PROBLEMS);
            }
        }

        #[test]
        fn a_value_is_what_its_constant_says(value in any_json()) {
            let schema = Schema::new(json!({ "const": value.clone() })).unwrap();
            prop_assert!(schema.problems(&value).is_empty());
        }
    }
}
