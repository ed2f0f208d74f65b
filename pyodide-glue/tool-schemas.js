// Schemas of tools: read from the shapes in which agents' libraries keep them, and used to check arguments that a guest sent.
// Decisions: docs/internals/values-and-calls.md.

import { dereference, validate } from "@cfworker/json-schema";

/** Parts of schemas that one check may apply. A schema that refers to itself could need any number of them. */
const MOST_STEPS = 50_000;
/**
 * Keywords whose check may take very long for texts and lists that a guest chooses. They are left to the tool itself. So are
 * those whose meaning depends on them.
 */
const LEFT_TO_TOOLS = ["pattern", "format", "uniqueItems", "unevaluatedProperties"];

/**
 * @typedef {{ success: true, value: unknown } | { success: false, error: unknown }} Checked
 *
 * @typedef {object} ToolSchema
 * @property {Record<string, any>} json  the JSON Schema
 * @property {(value: unknown) => Checked | PromiseLike<Checked>} check
 */

/**
 * Reads the schema of a tool: a `Schema` of the AI SDK, a standard schema such as Zod's, or a function that returns one of
 * these.
 * @param {any} schema
 * @returns {Promise<ToolSchema>}
 */
export async function readSchema(schema) {
  const given = typeof schema === "function" && !("~standard" in schema) ? schema() : schema;
  if (given === undefined) return jsonSchema({ type: "object", properties: {}, additionalProperties: false });
  const standard = given["~standard"];
  if (standard) {
    if (!standard.jsonSchema)
      throw new Error("its schema has no JSON Schema: pass it through `asSchema` of the AI SDK");
    const check = async (/** @type {unknown} */ value) => {
      const checked = await standard.validate(value);
      if (!checked.issues) return { success: /** @type {const} */ (true), value: checked.value };
      const issues = checked.issues.map(describe);
      return { success: /** @type {const} */ (false), error: new Error(issues.join("; ")) };
    };
    return { json: standard.jsonSchema.input({ target: "draft-07" }), check };
  }
  const json = await given.jsonSchema;
  if (!json) throw new Error("it has no inputSchema");
  return given.validate ? { json, check: given.validate } : jsonSchema(json);
}

/** @param {{ message: string, path?: readonly (PropertyKey | { key: PropertyKey })[] }} issue  of a standard schema */
function describe({ message, path = [] }) {
  const keys = path.map((part) => String(typeof part === "object" ? part.key : part));
  return keys.length > 0 ? `${keys.join(".")}: ${message}` : message;
}

/** @param {Record<string, any>} json @returns {ToolSchema} */
export function jsonSchema(json) {
  /** @type {ReturnType<typeof prepare> | undefined} */
  let prepared;
  // Most tools are never called.
  return { json, check: (value) => (prepared ??= prepare(json))(value) };
}

/** Makes the check of a schema. @param {Record<string, any>} json @returns {(value: unknown) => Checked} */
function prepare(json) {
  let steps = 0;
  const schema = JSON.parse(JSON.stringify(json));
  const parts = dereference(schema);
  for (const part of Object.values(parts)) {
    if (typeof part !== "object") continue;
    for (const keyword of LEFT_TO_TOOLS) delete part[keyword];
    if (part.patternProperties) {
      delete part.patternProperties;
      delete part.additionalProperties;
    }
    // The validator reads this keyword, which no draft of today has, once for each part that it applies.
    Object.defineProperty(part, "$recursiveRef", {
      get() {
        steps += 1;
        if (steps > MOST_STEPS)
          throw new Error("the arguments have too many values to be checked: pass fewer at a time");
      },
    });
  }
  return (value) => {
    steps = 0;
    const { valid, errors } = validate(value, schema, "2020-12", parts);
    if (valid) return { success: true, value };
    // The last error is that of the innermost part.
    const { instanceLocation = "#", error = "they do not fit the schema" } = errors.at(-1) ?? {};
    const place = instanceLocation.replace(/^#\/?/, "").replaceAll("/", ".");
    return { success: false, error: new Error(place ? `${place}: ${error}` : error) };
  };
}
