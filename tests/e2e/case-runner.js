// Runs the cases of tests/cases/ through the public API, inside a page. tests/cases/README.md describes their format.

import { createSandbox } from "/pyodide-glue/index.js";
import { parse } from "/node_modules/smol-toml/dist/index.js";
import { leftOut } from "./where.js";

const CASE_SECONDS = 300;

/** Grace period: long, as guests with few processors hear of an interrupt late. A case with deaf code sets a shorter one. */
const GRACE_PERIOD_MS = 30_000;
/** Time within which texts of output count as one. */
const TOGETHER_MS = 100;
const CASE_KEYS = ["name", "options", "host", "context", "fresh", "backends", "not", "checkpoints", "step"];
/** States that guests of a server keep, in cases that need checkpoints. */
const KEPT_STATES = 8;
/** The backends that have checkpoints. */
const WITH_CHECKPOINTS = ["browser", "subprocess", "bubblewrap"];
const ACTIONS = [
  ...[
    "create",
    "initialize",
    "add",
    "execute",
    "get",
    "set",
    "list",
    "checkpoint",
    "restore",
    "undo",
    "fork",
    "interrupt",
    "feedback",
  ],
  ...["destroy", "together", "write", "read", "files", "remove"],
];
const STEP_KEYS = [
  ...ACTIONS,
  "series",
  "to",
  "as",
  "timeout",
  "abort",
  "interrupt_after_ms",
  "with",
  "expect",
  "value",
  "throws",
];
/** Code that removes what the case before left behind. It saves the time of a new interpreter. */
const RESET = `try: answer.clear(), answer.update(content='', ready=False)
except Exception: pass  # not every profile has one
globals().clear()`;
/** Profiles whose executions show no value of the last expression. */
const SILENT = ["rlm", "rlm-legacy"];

// ---- values ----

/** Tagged notations for values that TOML cannot write. @type {Record<string, (content: any) => unknown>} */
const TAGS = {
  $null: () => null,
  $undefined: () => undefined,
  $int: (digits) => BigInt(digits),
  $hex: (digits) => Uint8Array.from(digits.match(/../g) ?? [], (/** @type {string} */ byte) => parseInt(byte, 16)),
  $json: (text) => JSON.parse(text),
  $repeat: ([text, times]) => text.repeat(times),
  $join: (parts) => parts.map(decode).join(""),
  $set: (items) => new Set(items.map(decode)),
  $map: (/** @type {any[][]} */ entries) => new Map(entries.map(([key, value]) => [decode(key), decode(value)])),
  $nested: (levels) => {
    /** @type {unknown[]} */
    let value = [];
    for (let level = 1; level < levels; level += 1) value = [value];
    return value;
  },
  $blob: (parts) => new Blob([parts].flat().map((part) => /** @type {BlobPart} */ (decode(part)))),
  $url: (href) => new URL(href, location.href),
  $response: (part) => new Response(/** @type {BodyInit} */ (decode(part))),
  $stream: (part) => new Blob([/** @type {BlobPart} */ (decode(part))]).stream(),
  // A list of `count` texts with `length` characters each.
  $texts: ([count, length]) => Array.from({ length: count }, (_, index) => `${index} `.padEnd(length, "é")),
  $special: (name) => SPECIALS[name](),
};

/** Values without a notation, by name. @type {Record<string, () => unknown>} */
const SPECIALS = {
  cycle: () => {
    /** @type {unknown[]} */
    const list = [];
    list.push(list);
    return list;
  },
  function: () => () => 1,
  symbol: () => Symbol("s"),
  promise: () => Promise.resolve(1),
  instance: () => new (class Point {})(),
  invalid_date: () => new Date(NaN),
  date_after_python: () => ({ a: [{ when: new Date(Date.UTC(10000, 0)) }] }),
  date_before_python: () => new Map([["when", new Date(-62_135_596_800_001)]]),
  last_dates: () => [new Date(-62_135_596_800_000), new Date(Date.UTC(10000, 0) - 1)],
  typed_array: () => new Float64Array([1.5, 2]),
  blob: () => new Blob(["from a ", "blob"]),
  file: () => new File([new Uint8Array([0, 255, 1])], "name.bin"),
  large_blob: () => new Blob([new Uint8Array(20_000_000).fill(7)]),
  large_bytes: () => new Uint8Array(20_000_000).fill(7),
  array_buffer: () => new Uint8Array([1, 2]).buffer,
};

/** @param {any} value a TOML value @returns {unknown} */
function decode(value) {
  if (value instanceof Date) return new Date(+value);
  if (Array.isArray(value)) return value.map(decode);
  if (value === null || typeof value !== "object") return value;
  const keys = Object.keys(value);
  if (keys.length === 1 && keys[0] in TAGS) return TAGS[keys[0]](value[keys[0]]);
  return Object.fromEntries(keys.map((key) => [key, decode(value[key])]));
}

/** @param {unknown} value */
function show(value) {
  const text = typeof value === "string" ? JSON.stringify(value) : describe(value, 0);
  return text.length <= 400 ? text : `${text.slice(0, 250)} …(${text.length} characters)… ${text.slice(-100)}`;
}

/** @param {any} value @param {number} depth @returns {string} */
function describe(value, depth) {
  if (depth > 6) return "…";
  const inner = (/** @type {any} */ item) => describe(item, depth + 1);
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "bigint") return `${value}n`;
  if (Object.is(value, -0)) return "-0";
  if (value instanceof Date) return `Date(${+value})`;
  if (value instanceof Map) return `Map{${[...value].slice(0, 20).map((entry) => entry.map(inner).join(": "))}}`;
  if (value instanceof Set) return `Set{${[...value].slice(0, 20).map(inner)}}`;
  if (ArrayBuffer.isView(value)) return `${value.constructor.name}[${value}]`;
  if (Array.isArray(value)) return `[${value.slice(0, 20).map(inner)}]`;
  if (value === null || typeof value !== "object") return String(value);
  return `{${Object.entries(value)
    .slice(0, 20)
    .map(([key, item]) => `${key}: ${inner(item)}`)}}`;
}

/** Returns true when two values are the same, types included. @param {any} a @param {any} b @returns {boolean} */
function same(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return false;
  if (Object.prototype.toString.call(a) !== Object.prototype.toString.call(b)) return false;
  if (a instanceof Date) return +a === +b;
  if (ArrayBuffer.isView(a)) {
    const [one, other] = [/** @type {any} */ (a), b];
    return (
      one.length === other.length &&
      one.every((/** @type {any} */ item, /** @type {number} */ at) => Object.is(item, other[at]))
    );
  }
  if (a instanceof Map || a instanceof Set) return same([...a], [...b]);
  const keys = Reflect.ownKeys(a);
  return (
    keys.length === Reflect.ownKeys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]))
  );
}

// ---- expectations ----

/** Matchers by name. Each returns true if `actual` is as wanted. @type {Record<string, (actual: any, wanted: any) => boolean>} */
const MATCHERS = {
  contains: (actual, wanted) => typeof actual === "string" && [wanted].flat().every((part) => actual.includes(part)),
  lacks: (actual, wanted) => [wanted].flat().every((part) => !String(actual).includes(part)),
  starts: (actual, wanted) => typeof actual === "string" && actual.startsWith(wanted),
  ends: (actual, wanted) => typeof actual === "string" && actual.endsWith(wanted),
  matches: (actual, wanted) => typeof actual === "string" && new RegExp(wanted, "su").test(actual),
  absent: (actual) => actual === undefined,
  length: (actual, wanted) =>
    differences(wanted, typeof actual === "string" ? [...actual].length : actual?.length, "", 0).length === 0,
  min: (actual, wanted) => actual >= wanted,
  max: (actual, wanted) => actual <= wanted,
  any: (actual, wanted) => wanted.some((/** @type {any} */ one) => differences(one, actual, "", 0).length === 0),
  equals: (actual, wanted) => same(actual, decode(wanted)),
};

/**
 * The differences of `actual` from `expected`. Of a table, only the expected keys are compared.
 * @param {any} expected @param {any} actual @param {string} path @param {number} id  the number for `{id}` in texts
 * @returns {string[]}
 */
function differences(expected, actual, path, id) {
  if (expected === null || typeof expected !== "object" || expected instanceof Date) {
    const wanted = decode(typeof expected === "string" ? expected.replaceAll("{id}", String(id)) : expected);
    return same(wanted, actual) ? [] : [`${path}: expected ${show(wanted)}, got ${show(actual)}`];
  }
  if (Array.isArray(expected)) {
    if (!Array.isArray(actual) || actual.length !== expected.length)
      return [`${path}: expected ${expected.length} items, got ${show(actual)}`];
    return expected.flatMap((item, index) => differences(item, actual[index], `${path}[${index}]`, id));
  }
  const keys = Object.keys(expected);
  if (keys.length > 0 && keys.every((key) => key in MATCHERS)) {
    return keys.flatMap((key) => {
      const wanted = JSON.parse(JSON.stringify(expected[key]).replaceAll("{id}", String(id)));
      return MATCHERS[key](actual, key === "equals" ? expected[key] : wanted)
        ? []
        : [`${path}: expected ${key} ${show(wanted)}, got ${show(actual)}`];
    });
  }
  if (keys.length === 1 && keys[0] in TAGS) {
    const wanted = decode(expected);
    return same(wanted, actual) ? [] : [`${path}: expected ${show(wanted)}, got ${show(actual)}`];
  }
  if (actual === null || typeof actual !== "object") return [`${path}: expected a table, got ${show(actual)}`];
  return keys.flatMap((key) => differences(expected[key], actual[key], path ? `${path}.${key}` : key, id));
}

// ---- host functions ----

const sleep = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Behaviours of host functions, by name. Queries get `(prompt, …, { model, signal })`, other functions Python's arguments.
 * @type {Record<string, (world: World) => (...args: any[]) => any>}
 */
const BEHAVIOURS = {
  echo: () => (prompt) => `echo: ${prompt}`,
  upper: () => async (prompt) => prompt.toUpperCase(),
  model: () => (_prompt, info) => `model: ${info.model}`,
  about: () => (task, context) => `${task}: ${typeof context} ${JSON.stringify(context)}`,
  asked: () => (task, context, info) => JSON.stringify([task, context, info.model]),
  throw: () => (prompt) => {
    throw new Error(`no answer to ${prompt}`);
  },
  reject: () => (prompt) => Promise.reject(new Error(`no answer to ${prompt}`)),
  reject_with_text: () => () => Promise.reject("just text"),
  reject_with: () => (name) => Promise.reject(THROWN[name]()),
  never: () => () => new Promise(() => {}),
  until_aborted: (world) => (_prompt, info) =>
    new Promise((_, reject) =>
      info.signal.addEventListener("abort", () => {
        world.log.push("aborted");
        reject(new Error("aborted"));
      }),
    ),
  interrupt: (world) => () => {
    setTimeout(() => world.sandbox?.interrupt(), 50);
    return new Promise(() => {});
  },
  destroy: (world) => () => {
    setTimeout(() => world.sandbox?.destroy(), 50);
    return new Promise(() => {});
  },
  huge: () => () => "é".repeat(25_000_000),
  metered: () => (prompt) => ({ text: prompt, usage: { inputTokens: 10, outputTokens: 5, cost: 0.5 } }),
  overcharged: () => (prompt) => ({ text: prompt, usage: { inputTokens: -10, outputTokens: NaN, cost: "much" } }),
  budget:
    () =>
    (_task, _context, { budget }) =>
      JSON.stringify({ depth: budget.depth, left: budget.left }),
  number: () => () => 42,
  null: () => () => null,
  nothing: () => () => undefined,
  slow: () => async (prompt) => (await sleep(1000), `slow: ${prompt}`),
  // "200 a" is answered after 200 ms; "… bad" fails.
  timed: () => async (prompt) => {
    await sleep(parseInt(prompt, 10));
    if (prompt.includes("bad")) throw new Error("a bad one");
    return `done: ${prompt}`;
  },
  // Answers with the largest number of its calls that were under way at once.
  crowd: (world) => async () => {
    world.crowd += 1;
    world.most = Math.max(world.most, world.crowd);
    await sleep(100);
    world.crowd -= 1;
    return String(world.most);
  },
  add:
    () =>
    (...numbers) =>
      numbers.reduce((a, b) => a + b),
  args:
    () =>
    (...args) =>
      args,
  first: () => (value) => value,
  // Answers for one tool, as `sandglass/ai` does, with the arguments that came.
  tools: () => (which, name, json) => {
    const properties = { where: { type: "object" }, most: { type: "integer", default: 5 } };
    const inputSchema = { type: "object", properties, required: ["where"] };
    if (which === "list") return JSON.stringify([{ name: "find-all", description: "Finds things.", inputSchema }]);
    if (name !== "find-all") throw new Error(`there is no tool ${name}`);
    return json;
  },
  kind: () => (value) => Object.prototype.toString.call(value),
  noted: (world) => () => void world.log.push("ran"),
  // Answers of onApprove, which gets a call.
  yes: () => () => true,
  no: () => () => false,
  reason: () => async () => "too much",
  tell: () => (call) => JSON.stringify([call.name, call.args, call.kwargs, call.line]),
  at_most_10: () => (call) => ({ args: [Math.min(call.args[0], 10), ...call.args.slice(1)] }),
  by_name: () => (call) => ({ args: [], kwargs: { amount: call.args[0] } }),
  yes_at_last: () => async () => (await sleep(400), true),
  // The execution is interrupted meanwhile, and the approval comes too late.
  yes_too_late: (world) => (call) =>
    new Promise((resolve) => {
      call.signal.addEventListener("abort", () => {
        world.log.push("aborted");
        resolve(true);
      });
      setTimeout(() => world.sandbox?.interrupt(), 50);
    }),
  neither: () => () => ({ args: [1], kwarg: {} }),
  function: () => () => () => 1,
};

/** Values to throw that are no `Error` of the page, by name. @type {Record<string, () => unknown>} */
const THROWN = {
  object: () => ({ status: 429, retryAfter: 5 }),
  "object with a message": () => ({ code: "E_BUSY", message: "the table is locked" }),
  "named object": () => ({ name: "ApiError", message: "no such key" }),
  list: () => ["a", 1],
  cycle: SPECIALS.cycle,
  instance: SPECIALS.instance,
  response: () => new Response(null, { status: 503 }),
  function: SPECIALS.function,
  symbol: SPECIALS.symbol,
  bigint: () => 7n,
  number: () => 42,
  null: () => null,
  undefined: () => undefined,
  "empty object": () => ({}),
  "bare object": () => Object.create(null),
  "silent error": () => new TypeError(),
  DOMException: () => new DOMException("it was too late", "TimeoutError"),
  // Its constructor is another page's `Error`.
  "error of a frame": () => {
    if (!globalThis.document) return new RangeError("out of reach"); // outside of browsers
    const frame = document.createElement("iframe");
    document.body.append(frame);
    const error = new /** @type {any} */ (frame.contentWindow).RangeError("out of reach");
    frame.remove();
    return error;
  },
};

/** Options of every sandbox that choose the backend, if guests do not run in the page. */
let place = {};

/** @typedef {{ sandbox: any, host: any, log: string[], crowd: number, most: number, last?: any }} World */

const QUERIES = { llm_query: "onLLMQuery", rlm_query: "onRLMQuery" };

/**
 * Options whose callbacks follow the running case, so that cases with different callbacks can share a sandbox.
 * `host = {}` has no callbacks at all.
 * @param {any} test @param {World} world
 */
function makeOptions({ options = {}, host, checkpoints }, world) {
  const kept = checkpoints && "backend" in place ? { checkpoints: KEPT_STATES } : {};
  const made = { gracePeriod: GRACE_PERIOD_MS, ...kept, .../** @type {any} */ (decode(options)) };
  if (host && Object.keys(host).length === 0) return made;
  const perform = (/** @type {(host: any) => string | undefined} */ choose) => {
    return (/** @type {any[]} */ ...args) => {
      const name = choose(world.host);
      if (!name || !BEHAVIOURS[name]) throw new Error(`there is no behaviour "${name}"`);
      return BEHAVIOURS[name](world)(...args);
    };
  };
  for (const [query, option] of Object.entries(QUERIES)) made[option] = perform((host) => host[query]);
  if (host?.functions) {
    const names = Object.keys(host.functions);
    made.hostFunctions = Object.fromEntries(
      names.map((name) => {
        const call = perform((host) => host.functions[name]);
        return [name, name in (host.approve ?? {}) ? { call, approve: true } : call];
      }),
    );
  }
  if (host?.approve) made.onApprove = (/** @type {any} */ call) => perform((host) => host.approve[call.name])(call);
  return made;
}

/** A key of a case's options. Cases with the same key can share a sandbox. @param {any} test */
function keyOf({ name, options, host, fresh, context, checkpoints }) {
  const alone = fresh || context === false || checkpoints;
  const names = [host?.functions, host?.approve].map((functions) => Object.keys(functions ?? {}));
  const callbacks = host && (Object.keys(host).length === 0 ? "none" : names);
  return JSON.stringify([options ?? {}, callbacks ?? [], alone && name]);
}

// ---- steps ----

/** @param {any} step */
function describeStep(step) {
  const action = ACTIONS.find((key) => key in step) ?? "?";
  return `${action} ${show(typeof step[action] === "string" ? step[action] : (step[action] ?? ""))}`.slice(0, 160);
}

/**
 * Does the action of a step. Resolves to its result.
 * @param {any} step @param {World} world
 */
async function act(step, world) {
  const { sandbox } = world;
  if ("create" in step) {
    const options = /** @type {any} */ (decode(step.create));
    const isPlain = Object.getPrototypeOf(options) === Object.prototype;
    const made = await createSandbox(isPlain ? { ...options, ...place } : options);
    await made.destroy();
    return undefined;
  }
  if ("initialize" in step) return sandbox.initialize(decode(step.initialize));
  if ("add" in step)
    return sandbox.addContext(decode(step.add), "series" in step ? { series: step.series } : undefined);
  if ("get" in step) return sandbox.getVariable(decode(step.get));
  if ("set" in step) return sandbox.setVariable(decode(step.set), decode(step.to));
  if ("list" in step) return sandbox.listVariables();
  if ("write" in step) return sandbox.writeFile(decode(step.write), decode(step.to));
  if ("read" in step) return sandbox.readFile(decode(step.read), step.as && { encoding: step.as });
  if ("remove" in step) return sandbox.removeFile(decode(step.remove));
  if ("files" in step) return sandbox.listFiles(step.files === true ? undefined : decode(step.files));
  if ("checkpoint" in step) return sandbox.checkpoint();
  if ("restore" in step) return sandbox.restore(step.restore === true ? undefined : decode(step.restore));
  if ("undo" in step) return sandbox.undo();
  if ("fork" in step) return sandbox.fork();
  if ("interrupt" in step) return sandbox.interrupt();
  if ("feedback" in step) return sandbox.feedback(world.last, decode(step.feedback));
  if ("destroy" in step) return sandbox.destroy();
  if (!("execute" in step)) throw new Error("a step without an action");

  /** @type {any} */
  const options = { .../** @type {any} */ (decode(step.with ?? {})) };
  const streamed = {
    stdout: /** @type {string[]} */ ([]),
    stderr: /** @type {string[]} */ ([]),
    displays: /** @type {any[]} */ ([]),
  };
  let last = -Infinity;
  const keep = (/** @type {string[]} */ texts) => (/** @type {string} */ text) => {
    const endsLine = texts.at(-1)?.endsWith("\n") ?? true;
    if (endsLine && performance.now() - last > TOGETHER_MS) texts.push("");
    texts[texts.length - 1] += text;
    last = performance.now();
  };
  if (!step.with) {
    options.onStdout = keep(streamed.stdout);
    options.onStderr = keep(streamed.stderr);
    options.onDisplay = (/** @type {any} */ display) => streamed.displays.push(display);
  }
  if ("timeout" in step) options.timeout = step.timeout;
  const controller = new AbortController();
  if (step.abort !== undefined) options.signal = controller.signal;
  if (step.abort === "before") controller.abort();
  else if (typeof step.abort === "number") setTimeout(() => controller.abort(), step.abort);
  if (step.interrupt_after_ms !== undefined) setTimeout(() => sandbox.interrupt(), step.interrupt_after_ms);
  const run = await sandbox.execute(decode(step.execute), options);
  if (step.abort === "after") controller.abort();
  world.last = run;
  return { ...run, streamed, aborted: world.log.splice(0).length };
}

/** @param {any} step @param {World} world @returns {Promise<string[]>} */
async function runStep(step, world) {
  const unknown = Object.keys(step).filter((key) => !STEP_KEYS.includes(key));
  if (unknown.length > 0) return [`unknown keys: ${unknown}`];
  if (step.together) {
    const all = await Promise.all(step.together.map((/** @type {any} */ one) => runStep(one, world)));
    return all.flatMap((problems, index) => problems.map((problem) => `[${index}] ${problem}`));
  }
  if (step.fork && !step.throws) {
    const other = await world.sandbox.fork();
    const problems = [];
    for (const inner of step.fork) problems.push(...(await runStep(inner, { ...world, sandbox: other })));
    await other.destroy();
    return problems.map((problem) => `fork: ${problem}`);
  }
  let result;
  try {
    result = await act(step, world);
  } catch (error) {
    const { name, code, message } = /** @type {any} */ (error);
    if (!step.throws) return [`threw ${name} ${code ?? ""}: ${message}`];
    if (name !== "SandboxError" || code !== step.throws)
      return [`threw ${name} ${code}: ${message}, not ${step.throws}`];
    return step.expect ? differences(step.expect, { message }, "", 0) : [];
  }
  if (step.throws) return [`threw nothing, not ${step.throws}; got ${show(result)}`];
  if ("value" in step) {
    const wanted = decode(step.value);
    if (!same(wanted, result)) return [`expected the value ${show(wanted)}, got ${show(result)}`];
  }
  if (!("execute" in step)) return step.expect ? differences(step.expect, result, "", 0) : [];
  // Without another expectation, the execution must be "ok".
  const { outcome = "ok", state, ...expect } = step.expect ?? {};
  const problems = differences({ outcome, state: state ?? { status: "kept" }, ...expect }, result, "", result.id);
  if (outcome === "ok" && result.error !== undefined) problems.push(`error: ${show(result.error)}`);
  if (problems.length > 0 && result.error && !expect.error) problems.push(`(its error: ${show(result.error)})`);
  if (problems.length > 0 && result.traceback && outcome === "ok") problems.push(`(${show(result.traceback)})`);
  if (problems.length > 0 && result.result && !("result" in expect))
    problems.push(`(its result: ${show(result.result)})`);
  return problems;
}

/** @param {any} test @param {World} world @returns {Promise<string[]>} */
async function runSteps(test, world) {
  const { sandbox } = world;
  world.host = test.host ?? {};
  world.log.length = world.most = world.crowd = 0;
  if (test.context !== false) await sandbox.initialize(decode(test.context ?? { $null: true }));
  for (const [index, step] of test.step.entries()) {
    const problems = await runStep(step, world);
    if (problems.length > 0) return [`step ${index + 1}, ${describeStep(step)}`, ...problems];
  }
  if (!isOver(test)) {
    const after = await sandbox.execute("1 + 1", { timeout: 30_000 }); // the case's own may be short
    const { outcome, result, state, error } = after;
    const shown = SILENT.includes(test.options?.profile) ? undefined : "2";
    if (outcome !== "ok" || result !== shown || state.status !== "kept")
      return [`afterwards 1 + 1 gave ${show({ outcome, result, state, error })}`];
  }
  return [];
}

/** Returns true if no code can run in the sandbox after this case. @param {any} test */
const isOver = (test) => JSON.stringify(test.step).includes('"destroy');

// ---- cases ----

/** @param {string[]} files @param {string} only */
export async function load(files, only) {
  const tests = [];
  for (const file of files) {
    const text = await (await fetch(`/tests/cases/${file}`)).text();
    for (const test of /** @type {any[]} */ (parse(text).case)) {
      const unknown = Object.keys(test).filter((key) => !CASE_KEYS.includes(key) && !STEP_KEYS.includes(key));
      if (unknown.length > 0) throw new Error(`${file}: ${test.name}: unknown keys: ${unknown}`);
      if (!test.step) test.step = [Object.fromEntries(Object.entries(test).filter(([key]) => STEP_KEYS.includes(key)))];
      tests.push({ ...test, name: `${file.replace(".toml", "")}/${test.name}` });
    }
  }
  const names = tests.map((test) => test.name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice) throw new Error(`there are two cases ${twice}`);
  return tests.filter((test) => test.name.includes(only));
}

/** The reason for which a case does not run here, if there is one. @param {any} test @param {string} backend @param {string[]} places */
function whyNot(test, backend, places) {
  if (test.backends && !test.backends.includes(backend)) return `it is for ${test.backends}`;
  if (test.checkpoints && !WITH_CHECKPOINTS.includes(backend)) return "it needs checkpoints";
  if (test.not?.includes(backend)) return `it is not for ${test.not}`;
  return leftOut(test, places);
}

/**
 * Runs the cases of these files, and calls `report` for each.
 * @param {string[]} files
 * @param {{ only: string, lanes: number, backend: string, places: string[], server?: { url: string, apiKey: string }, isolation?: string }} options
 *   `places`: places of where.js, which leave out cases; `server`: the server that runs the guests; `isolation`: the option
 * @param {(line: { name: string, problems: string[], skipped?: string, ms: number }) => void} report
 */
export async function run(files, { only, lanes, backend, places, server, isolation }, report) {
  place = server ? { backend: server } : isolation ? { isolation } : {};
  const tests = await load(files, only);
  const reasons = new Map(tests.map((test) => [test, whyNot(test, backend, places)]));
  for (const [test, skipped] of reasons) if (skipped) report({ name: test.name, problems: [], skipped, ms: 0 });
  const waiting = tests.filter((test) => !reasons.get(test)).map((test) => ({ test, key: keyOf(test) }));
  const next = (/** @type {string | undefined} */ key) => {
    const own = waiting.findIndex((one) => one.key === key);
    return waiting.splice(Math.max(own, 0), 1)[0];
  };

  const lane = async () => {
    /** @type {{ key: string, world: World } | undefined} */
    let held;
    for (let job = next(undefined); job; job = next(held?.key)) {
      const { test, key } = job;
      const begin = performance.now();
      let problems;
      try {
        // RESET fails if it frees a very deeply nested value: that may overflow the browser's stack.
        if (held && (held.key !== key || (await held.world.sandbox.execute(RESET)).outcome !== "ok")) {
          await held.world.sandbox.destroy();
          held = undefined;
        }
        if (!held) {
          const world = /** @type {World} */ ({ sandbox: null, host: {}, log: [], crowd: 0, most: 0 });
          world.sandbox = await createSandbox({ ...makeOptions(test, world), ...place });
          held = { key, world };
        }
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        let timer;
        const late = new Promise((resolve) => {
          timer = setTimeout(() => resolve([`it did not end within ${CASE_SECONDS} s`]), CASE_SECONDS * 1000);
        });
        problems = await Promise.race([runSteps(test, held.world), late]).finally(() => clearTimeout(timer));
      } catch (error) {
        problems = [`unexpected ${/** @type {Error} */ (error).stack ?? error}`];
      }
      if (held && (problems.length > 0 || isOver(test))) {
        await held.world.sandbox.destroy();
        held = undefined;
      }
      report({ name: test.name, problems, ms: Math.round(performance.now() - begin) });
    }
    await held?.world.sandbox.destroy();
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}
