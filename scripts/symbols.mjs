// Takes exports out of Pyodide's wasm that only native code of packages asks for.
//
// The module exports 8500 functions and variables, so that shared objects can be linked with it. At each start the engine made
// an object of each, and Emscripten's script a place in the table of functions and an entry in three lists. Here each function
// gets the same place in the table from the module itself. A section of the module lists the names with their places and
// addresses. Emscripten's script reads it when it first links a shared object: see scripts/emscripten.mjs.
//
// Decisions: docs/internals/guest-in-a-browser.md.
import {
  KIND,
  Reader,
  SECTION,
  join,
  readElements,
  readExports,
  readImports,
  readSections,
  readVector,
  replaceSection,
  signed,
  text,
  unsigned,
} from "./wasm.mjs";

/** The section of the names. */
export const SYMBOLS = "sandglass.symbols";

const I32 = 0x7f;
const I32_CONST = 0x41;
const END = 0x0b;

/**
 * @typedef {object} Symbols
 * @property {Record<string, number>} functions  places in the table
 * @property {Record<string, number>} variables  addresses in memory
 */

/**
 * Returns the module with fewer exports.
 * @param {Uint8Array} bytes
 * @param {Set<string>} named  names that scripts may ask for
 */
export function trimExports(bytes, named) {
  const sections = readSections(bytes);
  const imports = readImports(sections.get(SECTION.imports));
  const ownGlobals = imports.filter(({ kind }) => kind === KIND.global).length;
  const constants = readVector(sections.get(SECTION.globals), readGlobal);
  const exports = readExports(sections.get(SECTION.exports));
  /** Places of functions in the table. @type {Map<number, number>} */
  const places = new Map();
  const segments = readVector(sections.get(SECTION.elements), readElements);
  for (const { offset, functions } of segments)
    for (const [at, index] of functions.entries()) places.set(index, offset + at);
  const { before, size, after } = readTable(sections.get(SECTION.tables));

  /** @type {Symbols} */
  const symbols = { functions: {}, variables: {} };
  const added = [];
  const kept = [];
  for (const one of exports) {
    const { name, kind, index } = one;
    const address = kind === KIND.global ? constants[index - ownGlobals] : undefined;
    if (kind === KIND.function && !isInternal(name)) {
      if (!places.has(index)) {
        places.set(index, size + added.length);
        added.push(index);
      }
      symbols.functions[name] = /** @type {number} */ (places.get(index));
    } else if (address !== undefined && !isInternal(name)) symbols.variables[name] = address;
    else {
      kept.push(one);
      continue;
    }
    if (named.has(name) || named.has(`_${name}`)) kept.push(one);
  }
  const asked = imports.filter(({ from, name }) => from.startsWith("GOT.") && exports.some((one) => one.name === name));
  if (asked.length > 0) throw new Error(`the module imports ${asked[0].name} from itself`); // it would have to be linked at each start

  const segment = [[0, I32_CONST, ...signed(size), END], unsigned(added.length), ...added.map(unsigned)];
  const elements = /** @type {Uint8Array} */ (sections.get(SECTION.elements));
  const changes = /** @type {const} */ ([
    [SECTION.tables, [before, unsigned(size + added.length), after]],
    [
      SECTION.elements,
      [unsigned(segments.length + 1), elements.subarray(unsigned(segments.length).length), ...segment],
    ],
    [
      SECTION.exports,
      [unsigned(kept.length), ...kept.flatMap(({ name, kind, index }) => [text(name), [kind], unsigned(index)])],
    ],
  ]);
  let changed = bytes;
  for (const [section, parts] of changes) changed = replaceSection(changed, section, [...parts]);
  const contents = join([text(SYMBOLS), new TextEncoder().encode(JSON.stringify(symbols))]);
  return join([changed, [SECTION.custom], unsigned(contents.length), contents]);
}

/** Names that Emscripten does not link either. */
const INTERNAL = new Set(
  `memory __memory_base __table_base __stack_pointer __indirect_function_table __cpp_exception __c_longjmp
  __wasm_apply_data_relocs __dso_handle __tls_size __tls_align __set_stack_limits _emscripten_tls_init __wasm_init_tls
  __wasm_call_ctors __start_em_asm __stop_em_asm __start_em_js __stop_em_js`.split(/\s+/),
);
/** @param {string} name */
const isInternal = (name) => INTERNAL.has(name) || name.startsWith("__em_js__");

/** The value of a constant of 32 bits; undefined for another global. @param {Reader} reader */
function readGlobal(reader) {
  const [type, isVariable, opcode] = [reader.byte(), reader.byte(), reader.byte()];
  if (opcode !== I32_CONST) throw new Error("a global begins in a way that is not known here");
  const value = reader.unsigned();
  reader.skip(1);
  return type === I32 && !isVariable ? value : undefined;
}

/**
 * The size of the first table, and what is before and after that size in the section of tables.
 * @param {Uint8Array | undefined} section
 */
function readTable(section) {
  if (!section) throw new Error("the module has no table");
  const reader = new Reader(section);
  reader.unsigned(); // the number of tables
  reader.skip(1); // the type
  if (reader.byte() !== 0) throw new Error("the table of functions has a limit");
  const before = section.subarray(0, reader.at);
  const size = reader.unsigned();
  return { before, size, after: section.subarray(reader.at) };
}
