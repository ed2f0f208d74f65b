//! Generates Python's types of the wire from the schema of the Rust types.

use std::fmt::Write;
use std::path::Path;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value};

use super::{Event, PROTOCOL_VERSION, Request};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/runtime");
const MADE: &str = "Made of crates/core/src/protocol.rs by `cargo test -p sandglass-core --lib python`";

/// Compares the files with the generated text, and writes stale files anew.
#[test]
fn python_has_this_wire() {
    let version = format!("VERSION = {PROTOCOL_VERSION}\n");
    let module = format!("\"\"\"The wire's version; `wire.pyi` has its types.\"\"\"\n\n# {MADE}.\n{version}");
    let stale: Vec<_> = [("wire.py", module), ("wire.pyi", types())]
        .into_iter()
        .map(|(name, text)| (Path::new(FOLDER).join(name), text))
        .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
        .collect();
    for (path, text) in &stale {
        std::fs::write(path, text).unwrap();
    }
    let names: Vec<_> = stale.iter().map(|(path, _)| path).collect();
    assert!(names.is_empty(), "stale, and written anew: commit {names:?}");
}

/// The types for type checkers: one class for each message, and the types of its fields.
fn types() -> String {
    let mut text = format!("# The wire between host and guest. {MADE}.\n\n");
    text += "from typing import Literal, NotRequired, TypeAlias, TypedDict\n\n";
    writeln!(text, "VERSION: Literal[{PROTOCOL_VERSION}]\n").unwrap();
    // A request requires the fields that the host always sends; an event, those that the host requires.
    let mut sent = SchemaSettings::default().for_serialize().into_generator();
    let mut taken = SchemaSettings::default().for_deserialize().into_generator();
    let messages = [
        ("Request", sent.root_schema_for::<Request>()),
        ("Event", taken.root_schema_for::<Event>()),
    ];
    let mut fields = definitions(&mut taken);
    fields.append(&mut definitions(&mut sent));
    for (name, schema) in &fields {
        if let Value::Object(schema) = schema
            && schema.contains_key("properties")
        {
            text += &typed_dict(name, schema);
        } else {
            writeln!(text, "{name}: TypeAlias = {}\n", python_type(schema)).unwrap();
        }
    }
    for (group, schema) in messages {
        let mut names = Vec::new();
        for message in schema.as_value()["oneOf"].as_array().unwrap() {
            let message = message.as_object().unwrap();
            let tag = message["properties"]["type"]["const"].as_str().unwrap();
            names.push(format!("{}{}{group}", tag[..1].to_uppercase(), &tag[1..]));
            text += &typed_dict(names.last().unwrap(), message);
        }
        writeln!(text, "{group}: TypeAlias = (\n    {}\n)\n", names.join("\n    | ")).unwrap();
    }
    format!("{}\n", text.trim_end())
}

fn definitions(generator: &mut SchemaGenerator) -> Map<String, Value> {
    generator.take_definitions(true)
}

fn typed_dict(name: &str, schema: &Map<String, Value>) -> String {
    let mut text = format!("class {name}(TypedDict):\n");
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for (field, schema) in schema["properties"].as_object().unwrap() {
        let kind = python_type(schema);
        if required.iter().any(|name| name == field) {
            writeln!(text, "    {field}: {kind}").unwrap();
        } else {
            writeln!(text, "    {field}: NotRequired[{kind}]").unwrap();
        }
    }
    text + "\n"
}

fn python_type(schema: &Value) -> String {
    let literal = |values: &[Value]| {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        format!("Literal[{}]", values.join(", "))
    };
    let one_of = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        name.rsplit('/').next().unwrap().to_owned()
    } else if let Some(value) = schema.get("const") {
        literal(std::slice::from_ref(value))
    } else if let Some(values) = one_of("enum") {
        literal(values)
    } else if let Some(values) = one_of("oneOf") {
        let values = values.iter().flat_map(|value| match value.get("enum") {
            Some(values) => values.as_array().unwrap().clone(),
            None => vec![value["const"].clone()],
        });
        literal(&values.collect::<Vec<_>>())
    } else if let Some(types) = one_of("anyOf") {
        union(types.iter().map(python_type))
    } else if let Some(types) = one_of("type") {
        union(types.iter().map(|kind| plain_type(kind, schema)))
    } else {
        plain_type(&schema["type"], schema)
    }
}

fn union(types: impl Iterator<Item = String>) -> String {
    types.collect::<Vec<_>>().join(" | ")
}

fn plain_type(name: &Value, schema: &Value) -> String {
    match name.as_str() {
        Some("array") => format!("list[{}]", python_type(&schema["items"])),
        Some("string") => "str".into(),
        Some("integer") => "int".into(),
        Some("number") => "float".into(),
        Some("boolean") => "bool".into(),
        Some("null") => "None".into(),
        _ => panic!("a type that Python is not told of yet: {schema}"),
    }
}
