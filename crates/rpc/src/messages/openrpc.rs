//! Makes `openrpc.json` of the types of the wire.

use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value as Json, json};

use super::{
    Answered, Call, Cancelled, Displayed, Dropped, Empty, LlmQuery, NoParams, Output, Returned, RlmQuery, Started,
    VERSION,
};
use crate::methods;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openrpc.json");

/// A method as OpenRPC describes it. `params` is the schema of an object whose properties are the parameters.
fn method(name: &str, params: &Schema, result: &Schema, generator: &SchemaGenerator) -> Json {
    let params = resolved(params, generator);
    let required: Vec<&str> = params["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Json::as_str).collect())
        .unwrap_or_default();
    let properties = params["properties"].as_object().cloned().unwrap_or_default();
    let params: Vec<_> = properties
        .iter()
        .map(|(name, schema)| json!({ "name": name, "required": required.contains(&name.as_str()), "schema": schema }))
        .collect();
    let mut method = json!({
        "name": name,
        "paramStructure": "by-name",
        "params": params,
        "result": { "name": "result", "schema": result },
    });
    if name == "create" {
        method["description"] = json!("The parameters are the options of a sandbox, which docs/rpc.md lists.");
    }
    method
}

fn resolved(schema: &Schema, generator: &SchemaGenerator) -> Json {
    let json = json!(schema);
    match json["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        Some(name) => generator.definitions().get(name).cloned().unwrap_or_default(),
        None => json,
    }
}

fn of_server<P: JsonSchema, R: JsonSchema>(name: &str, generator: &mut SchemaGenerator) -> Json {
    let (params, result) = (generator.subschema_for::<P>(), generator.subschema_for::<R>());
    method(name, &params, &result, generator)
}

/// The document. Methods that the server calls on the client are in the extension `x-server-methods`.
fn document() -> Json {
    let settings = SchemaSettings::draft07().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let schemas = methods::schemas(&mut generator);
    let discover = (generator.subschema_for::<NoParams>(), generator.subschema_for::<Json>());
    let mut of_client: Vec<_> = schemas
        .iter()
        .map(|(name, params, result)| method(name, params, result, &generator))
        .collect();
    of_client.push(method("rpc.discover", &discover.0, &discover.1, &generator));
    let of_server = [
        of_server::<Call<'_>, Returned>("call", &mut generator),
        of_server::<LlmQuery<'_>, Answered>("llmQuery", &mut generator),
        of_server::<RlmQuery<'_>, Answered>("rlmQuery", &mut generator),
        of_server::<Started<'_>, Empty>("started", &mut generator),
        of_server::<Output<'_>, Empty>("output", &mut generator),
        of_server::<Displayed<'_>, Empty>("display", &mut generator),
        of_server::<Cancelled, Empty>("cancel", &mut generator),
        of_server::<Dropped, Empty>("drop", &mut generator),
    ];
    json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "Sandglass",
            "version": VERSION.to_string(),
            "description": "Python sandboxes for language models. docs/rpc.md describes the frames, values and errors.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "methods": of_client,
        "x-server-methods": of_server,
        "components": { "schemas": generator.definitions() },
    })
}

/// Compares the file with the generated document, and writes a stale file anew.
#[test]
fn the_document_has_this_wire() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::fs::read_to_string(FILE).ok().as_ref() != Some(&text) {
        std::fs::write(Path::new(FILE), &text).unwrap();
        panic!("stale, and written anew: commit {FILE}");
    }
}
