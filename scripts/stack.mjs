// Changes Pyodide's wasm so that CPython notices when the engine's stack is nearly used up.
//
// A wasm function has two frames: one on the engine's stack, whose size no code can ask for, and one on the "shadow stack" in
// memory, for variables whose address C takes. CPython raises RecursionError when the shadow stack is nearly used up. Many of
// its functions have a small frame there or none, so that a deep recursion used up the engine's stack first, which ends the
// guest. Here each function that can be part of a recursion gets a frame on the shadow stack, about as large as its frame on
// the engine's. `PyObject_Hash`, which recurses without a check of the stack, gets a check.
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
  skipNumbers,
  unsigned,
} from "./wasm.mjs";

/** Bytes of a frame, and of each local variable in it: about those of V8's baseline compiler, whose frames are the largest. */
const FRAME = 64;
const LOCAL = 8;
/** Alignment of C's frames. */
const ALIGNMENT = 16;

/** Functions that recurse without a check of the stack, and the number that each returns on failure. */
const UNCHECKED = { PyObject_Hash: -1 };
/** CPython's function that raises RecursionError when the stack is nearly used up. Its argument is the end of the message. */
const CHECK = "Py_EnterRecursiveCall";
const WHERE = " in comparison\0";

/**
 * Functions whose calls by pointer only lead to the C library's allocator and back. They are called so often that their
 * frames would cost as much as all others together.
 */
const NOT_RECURSIVE = ["PyObject_", "PyMem_", "PyMem_Raw"].flatMap((prefix) =>
  ["Malloc", "Calloc", "Realloc", "Free"].map((name) => prefix + name),
);

const OPCODE = {
  block: 0x02,
  if: 0x04,
  end: 0x0b,
  return: 0x0f,
  call: 0x10,
  callIndirect: 0x11,
  callRef: 0x14,
  globalGet: 0x23,
  globalSet: 0x24,
  i32Const: 0x41,
  i32Add: 0x6a,
  i32Sub: 0x6b,
};
const TAIL_CALLS = [0x12, 0x13, 0x15];
const NO_RESULT = 0x40;
/** Bytes by which memories grow. */
const MEMORY_PAGE = 65536;

/**
 * Returns the module with these frames added.
 * @param {Uint8Array} bytes
 * @returns {Uint8Array}
 */
export function addFrames(bytes) {
  const sections = readSections(bytes);
  const exports = readExports(sections.get(SECTION.exports));
  const exported = (/** @type {string} */ name) => findExport(exports, name);
  const pointer = exported("__stack_pointer");
  const imported = readImports(sections.get(SECTION.imports)).filter(({ kind }) => kind === KIND.function).length;
  const results = readVector(sections.get(SECTION.types), readResults);
  const signatures = readVector(sections.get(SECTION.functions), (reader) => results[reader.unsigned()]);
  const bodies = readVector(sections.get(SECTION.code), (reader) => readBody(reader.take(reader.unsigned())));
  const pointed = readVector(sections.get(SECTION.elements), readElements).flatMap(({ functions }) => functions);
  const never = new Set(NOT_RECURSIVE.map((name) => exported(name) - imported));
  const recursive = findRecursive(bodies, imported, pointed, never);
  const check = [
    ...[OPCODE.i32Const, ...signed(findText(sections.get(SECTION.data), WHERE) + WHERE.length - 1)],
    ...[OPCODE.call, ...unsigned(exported(CHECK))],
  ];
  const failures = new Map(Object.entries(UNCHECKED).map(([name, result]) => [exported(name) - imported, result]));

  const code = bodies.map((body, index) => {
    if (!recursive.has(index)) return body.bytes;
    const failure = failures.get(index);
    return addFrame(body, signatures[index], pointer, failure === undefined ? [] : [check, failure]);
  });
  const section = [unsigned(code.length), ...code.flatMap((body) => [unsigned(body.length), body])];
  return replaceSection(bytes, SECTION.code, section);
}

/** The memory of a module in which nothing has run, up to the end of its data. @param {Uint8Array} bytes */
export function initialMemory(bytes) {
  const segments = readVector(readSections(bytes).get(SECTION.data), readSegment);
  const size = Math.max(...segments.map(({ address, contents }) => address + contents.length));
  const memory = new Uint8Array(Math.ceil(size / MEMORY_PAGE) * MEMORY_PAGE);
  for (const { address, contents } of segments) memory.set(contents, address);
  return memory;
}

/**
 * @typedef {object} Body  the body of a function
 * @property {Uint8Array} bytes
 * @property {number} start  offset of the instructions; the declarations of local variables come before
 * @property {number} locals
 * @property {number[]} returns  offsets of `return` instructions
 * @property {number[]} calls  indices of the functions that the body calls directly
 * @property {boolean} callsByPointer
 */

/** @param {Uint8Array} bytes @returns {Body} */
function readBody(bytes) {
  const reader = new Reader(bytes);
  let locals = 0;
  for (let groups = reader.unsigned(); groups > 0; groups--) {
    locals += reader.unsigned();
    reader.skip(1);
  }
  /** @type {Body} */
  const body = { bytes, start: reader.at, locals, returns: [], calls: [], callsByPointer: false };
  while (reader.at < bytes.length) {
    const { at } = reader;
    const opcode = reader.byte();
    if (opcode === OPCODE.call) {
      body.calls.push(reader.unsigned());
      continue;
    }
    if (opcode === OPCODE.return) body.returns.push(at);
    if (opcode === OPCODE.callIndirect || opcode === OPCODE.callRef) body.callsByPointer = true;
    if (TAIL_CALLS.includes(opcode)) throw new Error("a tail call would leave its frame behind");
    skipImmediates(reader, opcode);
  }
  return body;
}

/**
 * Indices of the bodies that can be part of a recursion. There are three kinds: bodies that call by pointer, bodies that call
 * themselves by way of others, and bodies that are called by pointer and lead to one of these or out of the module. The second
 * kind are the strongly connected components of the calls, by Tarjan's algorithm (1972).
 * @param {Body[]} bodies
 * @param {number} imported  number of imported functions, which have the first indices
 * @param {number[]} pointed  indices of functions that pointers lead to
 * @param {Set<number>} never  bodies that are known to be in no recursion
 */
function findRecursive(bodies, imported, pointed, never) {
  const callsByPointer = (/** @type {number} */ index) => bodies[index].callsByPointer && !never.has(index);
  const recursive = new Set([...bodies.keys()].filter(callsByPointer));
  const calls = bodies.map((body) => body.calls.map((callee) => callee - imported).filter((callee) => callee >= 0));
  const order = new Int32Array(bodies.length);
  const low = new Int32Array(bodies.length);
  const onStack = new Uint8Array(bodies.length);
  /** @type {number[]} */
  const stack = [];
  let count = 0;
  for (const root of bodies.keys()) {
    if (order[root]) continue;
    const visits = [{ node: root, next: 0 }];
    while (visits.length > 0) {
      const visit = visits[visits.length - 1];
      const { node } = visit;
      if (visit.next === 0) {
        order[node] = low[node] = ++count;
        stack.push(node);
        onStack[node] = 1;
      }
      const callee = calls[node][visit.next++];
      if (callee !== undefined) {
        if (!order[callee]) visits.push({ node: callee, next: 0 });
        else if (onStack[callee]) low[node] = Math.min(low[node], order[callee]);
        continue;
      }
      visits.pop();
      const caller = visits.at(-1)?.node;
      if (caller !== undefined) low[caller] = Math.min(low[caller], low[node]);
      if (low[node] !== order[node]) continue;
      const component = stack.splice(stack.lastIndexOf(node));
      for (const member of component) {
        onStack[member] = 0;
        if (component.length > 1 || calls[member].includes(member)) recursive.add(member);
      }
    }
  }
  const leadsOut = bodies.flatMap((body, index) => (body.calls.some((callee) => callee < imported) ? index : []));
  const leading = findCallers(calls, [...recursive, ...leadsOut], never);
  for (const index of pointed) if (leading.has(index - imported)) recursive.add(index - imported);
  return recursive;
}

/**
 * Bodies that lead to one of `called` by way of any bodies but `never`, and `called` themselves.
 * @param {number[][]} calls
 * @param {number[]} called
 * @param {Set<number>} never
 */
function findCallers(calls, called, never) {
  /** @type {number[][]} */
  const callers = calls.map(() => []);
  for (const [caller, callees] of calls.entries()) for (const callee of callees) callers[callee].push(caller);
  const found = new Set(called.filter((index) => !never.has(index)));
  for (const index of found) for (const caller of callers[index]) if (!never.has(caller)) found.add(caller);
  return found;
}

/**
 * Adds a frame to a body. The body becomes a block, so that branches to its end reach the instructions that remove the frame.
 * @param {Body} body
 * @param {number[]} results  types of the function's results
 * @param {number} pointer  index of the shadow stack's pointer among the globals
 * @param {[check: number[], failure: number] | []} unchecked  instructions that check the stack, and the result if they fail
 */
function addFrame({ bytes, start, locals, returns }, results, pointer, [check, failure]) {
  if (results.length > 1) throw new Error("a function with several results needs a block type of its own");
  const missing = FRAME + locals * LOCAL - readFrame(bytes, start, pointer);
  if (missing <= 0 && !check) return bytes;
  const size = Math.ceil(Math.max(missing, 0) / ALIGNMENT) * ALIGNMENT;
  const move = (/** @type {number} */ by) => [
    ...[OPCODE.globalGet, ...unsigned(pointer), OPCODE.i32Const, ...signed(by)],
    ...[OPCODE.i32Add, OPCODE.globalSet, ...unsigned(pointer)],
  ];
  const leave = move(size);
  const parts = [bytes.subarray(0, start), move(-size)];
  if (check && failure !== undefined) {
    const fail = [OPCODE.i32Const, ...signed(failure), ...leave, OPCODE.return];
    parts.push(check, [OPCODE.if, NO_RESULT], fail, [OPCODE.end]);
  }
  parts.push([OPCODE.block, results[0] ?? NO_RESULT]);
  let from = start;
  for (const at of returns) {
    parts.push(bytes.subarray(from, at), leave);
    from = at;
  }
  parts.push(bytes.subarray(from), leave, [OPCODE.end]);
  return join(parts);
}

/**
 * The bytes that a function takes of the shadow stack, which its first instructions tell.
 * @param {Uint8Array} bytes
 * @param {number} start
 * @param {number} pointer
 */
function readFrame(bytes, start, pointer) {
  const reader = new Reader(bytes.subarray(start));
  const takes =
    reader.byte() === OPCODE.globalGet && reader.unsigned() === pointer && reader.byte() === OPCODE.i32Const;
  const size = takes ? reader.unsigned() : 0; // the number is signed, but positive, so it reads like an unsigned one
  return reader.byte() === OPCODE.i32Sub ? size : 0;
}

/** The types of a function's results. @param {Reader} reader  at the function's type @returns {number[]} */
function readResults(reader) {
  reader.skip(1);
  reader.skip(reader.unsigned());
  return [...reader.take(reader.unsigned())];
}

/** The index of an export, by its name. @param {ReturnType<typeof readExports>} exports @param {string} wanted */
function findExport(exports, wanted) {
  const found = exports.find(({ name }) => name === wanted);
  if (!found) throw new Error(`the module exports no ${wanted}`);
  return found.index;
}

/** @param {Reader} reader */
function readSegment(reader) {
  if (reader.byte() !== 0) throw new Error("a data segment has no address in the only memory");
  reader.skip(1);
  const address = reader.unsigned(); // addresses are signed here, but positive
  reader.skip(1);
  return { address, contents: reader.take(reader.unsigned()) };
}

/** The address of a text among the module's constants. @param {Uint8Array | undefined} section @param {string} text */
function findText(section, text) {
  const wanted = new TextEncoder().encode(text);
  const found = readVector(section, readSegment)
    .map(({ address, contents }) => {
      const offset = Buffer.from(contents.buffer, contents.byteOffset, contents.length).indexOf(wanted);
      return offset < 0 ? -1 : address + offset;
    })
    .find((address) => address >= 0);
  if (found === undefined) throw new Error(`the module has no text ${JSON.stringify(text)}`);
  return found;
}

/** Skips the immediates of an opcode. @param {Reader} reader @param {number} opcode */
function skipImmediates(reader, opcode) {
  if (opcode === 0xfc) return skipNumbers(reader, BULK[reader.unsigned()] ?? unknown("0xfc"));
  if (opcode === 0xfd) return skipVector(reader, reader.unsigned());
  if (opcode === 0xfe) return skipNumbers(reader, reader.unsigned() === 3 ? 1 : 2);
  if (opcode >= 0x02 && opcode <= 0x04) return skipNumbers(reader, 1); // a block's type
  if (opcode === 0x06) return skipNumbers(reader, 1);
  if (opcode === 0x0e || opcode === 0x1c) {
    for (let labels = reader.unsigned(); labels > 0; labels--) reader.unsigned();
    return opcode === 0x0e ? skipNumbers(reader, 1) : undefined;
  }
  if (opcode === 0x1f) {
    reader.unsigned();
    for (let catches = reader.unsigned(); catches > 0; catches--) skipNumbers(reader, reader.byte() < 2 ? 2 : 1);
    return;
  }
  if (opcode >= 0x28 && opcode <= 0x3e) return skipNumbers(reader, 2); // alignment and offset
  if (opcode === 0x43) return reader.skip(4);
  if (opcode === 0x44) return reader.skip(8);
  const count = NUMBERS[opcode] ?? (opcode <= 0xc4 || opcode === 0xd1 ? 0 : unknown(opcode.toString(16)));
  skipNumbers(reader, count);
}

/** The number of LEB128 immediates of each opcode; 0 for opcodes not listed. @type {Record<number, number>} */
const NUMBERS = {
  ...{ 0x07: 1, 0x08: 1, 0x09: 1, 0x0c: 1, 0x0d: 1, 0x11: 2, 0x14: 1, 0x18: 1 },
  ...{
    0x20: 1,
    0x21: 1,
    0x22: 1,
    0x23: 1,
    0x24: 1,
    0x25: 1,
    0x26: 1,
    0x3f: 1,
    0x40: 1,
    0x41: 1,
    0x42: 1,
    0xd0: 1,
    0xd2: 1,
  },
};
/** The number of immediates of the opcodes with the prefix 0xfc: conversions, memory, tables. */
const BULK = [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1];

/** @param {Reader} reader @param {number} opcode  the number after the prefix 0xfd */
function skipVector(reader, opcode) {
  if (opcode <= 11 || opcode === 92 || opcode === 93) skipNumbers(reader, 2);
  else if (opcode === 12 || opcode === 13) reader.skip(16);
  else if (opcode >= 21 && opcode <= 34) reader.skip(1);
  else if (opcode >= 84 && opcode <= 91) {
    skipNumbers(reader, 2);
    reader.skip(1);
  }
}

/** @param {string} opcode @returns {never} */
function unknown(opcode) {
  throw new Error(`the module has an instruction that is not known here: ${opcode}`);
}
