// Leaves functions out of Emscripten's script that no guest can use: graphics, sound, windows and their events, for which a guest
// has no page. With what only they need, they are almost a third of the script, which the engine reads at each start.
// Decisions: docs/internals/guest-in-a-browser.md.
import { parse } from "acorn";
import { full } from "acorn-walk";

/** @import { AnyNode, ModuleDeclaration, Property, SpreadElement, Statement, VariableDeclarator } from "acorn" */
/** @typedef {Statement | ModuleDeclaration | VariableDeclarator} Part */

/** Names by which C calls what needs a page. */
const NEEDS_A_PAGE = new RegExp(
  `^(${[
    "(_|emscripten_)?gl[A-Z]\\w+|egl[A-Z]\\w+|emscripten_(is_)?webgl_\\w+",
    "emscripten_(create|destroy|call)_worker|emscripten_get_worker_queue_size|(emscripten_)?SDL_\\w+|(IMG|Mix|TTF)_\\w+|(roto)?zoomSurface",
    "(box|(filledE|e)llipse|line|pixel|rectangle)(Color|RGBA)",
    "emscripten_set_\\w+_callback_on_thread|_emscripten_get_last_\\w+_event|emscripten_html5_\\w+",
    "emscripten_(set|get|request|exit|(enter|exit)_soft|lock|unlock)_(canvas|element|fullscreen|orientation|pointerlock|window)\\w*",
    "emscripten_(websocket|async_wget|vibrate|sample_gamepad|hide_mouse|get_(gamepad|num_gamepads|battery|screen|preloaded))\\w*",
  ].join("|")})$`,
);
/** Functions that native code of packages may name in JavaScript of its own. */
const OF_PACKAGES =
  `ccall cwrap dynCall getValue setValue addFunction removeFunction writeArrayToMemory intArrayToString
  AsciiToString UTF16ToString UTF32ToString stringToUTF16 stringToUTF32 lengthBytesUTF16 lengthBytesUTF32`.split(/\s+/);
/** Objects for a page's canvas. What is left asks first if they are there. */
const OF_A_PAGE = ["Browser", "SDL"];
const WHY = "a sandbox has no graphics, no sound and no network";

/**
 * Returns Emscripten's script without what needs a page. One function for each signature stands for all of them, so that native
 * code that names them can still be loaded.
 * @param {string} text
 * @param {Set<string>} asked  names that other scripts may ask for
 */
export function leaveOutUnused(text, asked) {
  /** Parts that nothing but their names leads to. @type {Map<string, Part>} */
  const declared = new Map();
  /** Assignments to properties of functions, such as `sig`. @type {Map<string, Part[]>} */
  const notes = new Map();
  /** Assignments to properties of `Module`. @type {Map<string, Part>} */
  const shared = new Map();
  /** @type {Part[]} */
  const kept = [];
  /** @type {VariableDeclarator | undefined} */
  let imports;
  const body = bodyOfModule(parse(text, { ecmaVersion: "latest", sourceType: "module" }));
  const parts = body.flatMap((one) =>
    one.type === "VariableDeclaration" && one.kind === "var" ? one.declarations : [one],
  );
  for (const part of parts) {
    const { object, property } = readAssignment(part);
    if (part.type === "FunctionDeclaration") declared.set(part.id.name, part);
    else if (part.type === "VariableDeclarator" && part.id.type === "Identifier" && isInert(part.init)) {
      if (part.id.name === "wasmImports") imports = part;
      else declared.set(part.id.name, part);
    } else if (object === "Module") shared.set(property, part);
    else if (object) notes.set(object, [...(notes.get(object) ?? []), part]);
    else kept.push(part);
  }
  if (imports?.init?.type !== "ObjectExpression") throw new Error("Emscripten's script has no wasmImports");

  /** Names of C's by signature. @type {Record<string, string[]>} */
  const left = {};
  const ways = imports.init.properties.filter((way) => {
    if (way.type !== "Property" || way.key.type !== "Identifier" || way.value.type !== "Identifier") return true;
    if (!NEEDS_A_PAGE.test(way.key.name)) return true;
    (left[signature(way.value.name, declared, notes)] ??= []).push(way.key.name);
    return false;
  });
  if (Object.keys(left).length === 0) throw new Error("Emscripten's script has no graphics: is it another release?");

  for (const name of OF_A_PAGE) declared.delete(name);
  /** @type {Set<Part | Property | SpreadElement>} */
  const needed = new Set([...kept, ...ways]);
  const need = (/** @type {Part | undefined} */ part) => part && needed.add(part);
  for (const name of asked) need(shared.get(name));
  for (const name of OF_PACKAGES) need(declared.get(name));
  // Parts that are added meanwhile have their turn.
  for (const part of needed)
    full(part, (node) => {
      if (node.type === "Identifier") {
        need(declared.get(node.name));
        notes.get(node.name)?.forEach(need);
      } else if (part.type !== "Property") for (const name of namesOfProperties(node)) need(shared.get(name));
    });

  const slice = (/** @type {AnyNode} */ { start, end }) => text.slice(start, end);
  const rest = parts.map((part) => {
    if (part === imports)
      return `var wasmImports={${ways.map(slice)}};
        for (const [sig, names] of Object.entries(${JSON.stringify(left)})) {
          const refuse = () => { throw new Error("${WHY}"); };
          if (sig) refuse.sig = sig;
          for (const name of names) wasmImports[name] = refuse;
        }`;
    if (!needed.has(part)) return "";
    return part.type === "VariableDeclarator" ? `var ${slice(part)};` : slice(part);
  });
  const [first, last] = [body[0], body[body.length - 1]];
  return text.slice(0, first.start) + rest.join("\n") + text.slice(last.end);
}

/** The statements of the function that makes the module. @param {import("acorn").Program} program @returns {Statement[]} */
function bodyOfModule(program) {
  /** @type {Statement[] | undefined} */
  let body;
  full(program, (node) => {
    if (node.type !== "FunctionExpression" && node.type !== "FunctionDeclaration") return;
    const [parameter] = node.params;
    if (
      parameter?.type === "AssignmentPattern" &&
      parameter.left.type === "Identifier" &&
      parameter.left.name === "moduleArg"
    )
      body = node.body.body;
  });
  if (!body) throw new Error("Emscripten's script has no function of moduleArg: is it another release?");
  return body;
}

/** The object and the property of `object.property = …`. @param {Part} part @returns {{ object?: string, property: string }} */
function readAssignment(part) {
  if (part.type !== "ExpressionStatement" || part.expression.type !== "AssignmentExpression") return { property: "" };
  const { left, right } = part.expression;
  if (left.type !== "MemberExpression" || left.object.type !== "Identifier") return { property: "" };
  const { object, property } = left;
  const name =
    property.type === "Identifier" ? property.name : property.type === "Literal" ? String(property.value) : "";
  const isShared = object.name === "Module" && right.type === "Identifier" && right.name === name;
  const isNote = right.type === "Literal" || isInert(right);
  return isShared || (object.name !== "Module" && isNote) ? { object: object.name, property: name } : { property: "" };
}

/**
 * The signature of a function, or of the one that it is another name of; empty where there is none.
 * @param {string} name @param {Map<string, Part>} declared @param {Map<string, Part[]>} notes
 * @returns {string}
 */
function signature(name, declared, notes) {
  for (const note of notes.get(name) ?? [])
    if (note.type === "ExpressionStatement" && note.expression.type === "AssignmentExpression")
      if (readAssignment(note).property === "sig" && note.expression.right.type === "Literal")
        return String(note.expression.right.value);
  const part = declared.get(name);
  const isAlias = part?.type === "VariableDeclarator" && part.init?.type === "Identifier";
  return isAlias ? signature(part.init.name, declared, notes) : "";
}

/** Returns true when leaving the value out changes nothing else. @param {AnyNode | null | undefined} value */
function isInert(value) {
  const kinds = [
    "ArrowFunctionExpression",
    "FunctionExpression",
    "Identifier",
    "MemberExpression",
    "Literal",
    "ObjectExpression",
    "ArrayExpression",
  ];
  return !value || kinds.includes(value.type);
}

/** The names of properties that an expression mentions. @param {AnyNode} node @returns {string[]} */
function namesOfProperties(node) {
  if (node.type === "Literal") return typeof node.value === "string" ? [node.value] : [];
  const name = node.type === "MemberExpression" ? node.property : node.type === "Property" ? node.key : undefined;
  return name?.type === "Identifier" ? [name.name] : [];
}
