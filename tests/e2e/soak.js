// The soak: random good and hostile cells in one sandbox after another, compared with a model of every variable. This file
// runs in a page; tests/e2e/soak.mjs reports the problems.

import { createSandbox } from "/pyodide-glue/index.js";
import { randomness, within } from "./tools.js";

/** The expected variables: from a name to the value's repr. @typedef {Map<string, string>} Model */

/** Code that makes the state of the cells, besides plain variables: objects that only an exact copy of the interpreter keeps. */
const PREPARE = `
import json, os, random as _random
def _numbers():
    n = 0
    while True:
        n += 1
        yield n
numbers = _numbers()
drawn = 0
shared = []
holder = {"a": shared, "b": shared}
def _make():
    total = 0
    def add(n):
        nonlocal total
        total += n
        return total
    return add
add = _make()
total = 0
written = 0
log = open("/tmp/log.txt", "w+")
unlinked = 0
nameless = open("/tmp/nameless", "w+")
os.unlink("/tmp/nameless")
from pyodide.ffi import to_js as _to_js
def _look(value):
    try:
        return repr(list(value))
    except Exception as error:
        return "gone" if "is gone" in str(error) else repr(error)
def check():
    """What must be true of all that together."""
    assert holder["a"] is holder["b"] is shared
    assert add(0) == total, (add(0), total)
    log.flush()
    assert open("/tmp/log.txt").read() == "x" * written, written
    nameless.seek(0)
    assert nameless.read() == "y" * unlinked, unlinked
    return {name: repr(value) for name, value in globals().items() if name[:2] == "v_"} | {
        "drawn": repr(drawn), "shared": repr(shared), "total": repr(total), "written": repr(written),
        "unlinked": repr(unlinked)} | {name: _look(value) for name, value in globals().items() if name[:3] == "js_"}
`;
const PREPARED = { drawn: "0", shared: "[]", total: "0", written: "0", unlinked: "0" };

/** Good cells: the code, and its effect on the model. */
const GOOD = [
  (/** @type {Dice} */ dice) => {
    const [name, value] = [`v_${dice.below(12)}`, dice.below(1e6)];
    return { code: `${name} = ${value}`, then: (/** @type {Model} */ model) => model.set(name, `${value}`) };
  },
  (/** @type {Dice} */ dice) => {
    const [name, length] = [`v_${dice.below(12)}`, dice.below(5)];
    const list = Array.from({ length }, () => dice.below(100));
    return {
      code: `${name} = ${JSON.stringify(list)}`,
      then: (/** @type {Model} */ model) => model.set(name, `[${list.join(", ")}]`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const name = `v_${dice.below(12)}`;
    return { code: `globals().pop("${name}", None)`, then: (/** @type {Model} */ model) => model.delete(name) };
  },
  (/** @type {Dice} */ dice) => {
    const times = 1 + dice.below(3);
    return {
      code: `for _ in range(${times}): drawn = next(numbers)`,
      then: (/** @type {Model} */ model) => model.set("drawn", `${Number(model.get("drawn")) + times}`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const n = dice.below(100);
    return {
      code: `shared.append(${n}); del shared[:-5]`,
      then: (/** @type {Model} */ model) => {
        const list = [...JSON.parse(/** @type {string} */ (model.get("shared"))), n].slice(-5);
        model.set("shared", `[${list.join(", ")}]`);
      },
    };
  },
  (/** @type {Dice} */ dice) => {
    const n = dice.below(100);
    return {
      code: `total = add(${n})`,
      then: (/** @type {Model} */ model) => model.set("total", `${Number(model.get("total")) + n}`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const n = 1 + dice.below(200);
    return {
      code: `written += log.write("x" * ${n})`,
      then: (/** @type {Model} */ model) => model.set("written", `${Number(model.get("written")) + n}`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const n = 1 + dice.below(200);
    return {
      code: `unlinked += nameless.write("y" * ${n})`,
      then: (/** @type {Model} */ model) => model.set("unlinked", `${Number(model.get("unlinked")) + n}`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const [name, n] = [`js_${dice.below(2)}`, dice.below(100)];
    return {
      code: `${name} = _to_js([${n}])`,
      then: (/** @type {Model} */ model) => model.set(name, `[${n}]`),
    };
  },
  (/** @type {Dice} */ dice) => {
    const name = `js_${dice.below(2)}`;
    return { code: `globals().pop("${name}", None)`, then: (/** @type {Model} */ model) => model.delete(name) };
  },
  () => ({ code: "ballast = bytearray(os.urandom(100_000)) * 30", then: () => {} }),
  () => ({ code: "assert llm_query_batched(['a', 'b']) == ['a!', 'b!']", then: () => {} }),
  () => ({
    code: "import asyncio\nawait asyncio.gather(*(asyncio.sleep(0.001 * n) for n in range(3)))",
    then: () => {},
  }),
];

/** Frees the memory that a hostile cell has taken. Its value is not shown, because `_` would hold it on. */
const FREE = 'globals().pop("parts", None); None';

/** Hostile cells, with their possible outcomes. Assignments before the bad end count. */
const HOSTILE = [
  { code: "while True: pass", outcomes: ["timeout"] },
  { code: "while True:\n    try:\n        while True: pass\n    except BaseException: pass", outcomes: ["timeout"] },
  { code: "sum(range(10 ** 11))", outcomes: ["timeout"] },
  { code: "import time\ntime.sleep(100)", outcomes: ["timeout"] },
  { code: "llm_query('never')", outcomes: ["interrupted"], interrupt: 60 },
  { code: "llm_query_batched(['never'] * 50)", outcomes: ["interrupted"], interrupt: 60 },
  { code: "while True: print('x' * 1000)", outcomes: ["interrupted"], interrupt: 60 },
  { code: "import time\nwhile True: time.sleep(0.001)", outcomes: ["interrupted"], abort: 60 },
  { code: "sum(range(10 ** 11))", outcomes: ["interrupted"], abort: 30 },
  { code: "import os\nos._exit(3)", outcomes: ["crashed"] },
  { code: "os.abort()", outcomes: ["crashed"] },
  { code: "import ctypes\nctypes.string_at(0xfffffff0, 1000)", outcomes: ["crashed", "error", "ok", "timeout"] },
  { code: "def f(): return f()\nf()", outcomes: ["error", "crashed", "timeout"] },
  { code: "raise SystemExit('bye')", outcomes: ["error"] },
  { code: "import sys\nsys.stdout = None\n1 / 0", outcomes: ["error"] },
  { code: "bytearray(10 ** 9)", outcomes: ["error"] },
  { code: "parts = []\nwhile True: parts.append(bytearray(10 ** 6))", outcomes: ["error", "timeout"], after: FREE },
  {
    code: "parts = []\ntry:\n    while True: parts.append(bytes(1000))\nexcept MemoryError: pass",
    outcomes: ["ok"],
    after: FREE,
  },
  { code: "del __builtins__", outcomes: ["ok"] },
  { code: "llm_query = 1\nFINAL_VAR = None", outcomes: ["ok"] },
  { code: "llm_query('fail')", outcomes: ["error"] },
];

/** What a hostile cell prints after its good part: on a busy machine, a stop may come before that part. */
const RAN = "the good part ran";

/** @typedef {ReturnType<typeof makeDice>} Dice */

/** @param {number} seed */
function makeDice(seed) {
  const random = randomness(seed);
  return { random, below: (/** @type {number} */ n) => Math.floor(random() * n) };
}

/**
 * Soaks for `seconds`. Returns all differences from the model as problems.
 * @param {number} seconds
 * @param {number} seed
 */
export async function soak(seconds, seed) {
  const dice = makeDice(seed);
  const ends = performance.now() + seconds * 1000;
  /** @type {string[]} */
  const problems = [];
  /** @type {Record<string, number>} */
  const counts = { cells: 0, kept: 0, restored: 0, lost: 0, sandboxes: 0, checks: 0, back: 0, forks: 0 };
  /** @type {number[]} */
  const recoveries = [];
  while (performance.now() < ends && problems.length < 5) {
    counts.sandboxes += 1;
    await soakOne(dice, Math.min(ends, performance.now() + 40_000), counts, recoveries, problems);
  }
  const frames = document.querySelectorAll("iframe").length;
  if (frames) problems.push(`${frames} frames are left`);
  return { problems, counts, recoveries };
}

/**
 * Soaks one sandbox from its creation to its end.
 * @param {Dice} dice
 * @param {number} ends
 * @param {Record<string, number>} counts
 * @param {number[]} recoveries  ms from the end of a guest to the next result
 * @param {string[]} problems
 */
async function soakOne(dice, ends, counts, recoveries, problems) {
  const sandbox = await createSandbox({
    gracePeriod: 100,
    memoryLimit: 200_000_000,
    onLLMQuery: (prompt, { signal }) => {
      if (prompt === "fail") throw new Error("failed");
      if (prompt !== "never") return `${prompt}!`;
      return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("aborted"))));
    },
  });
  await sandbox.initialize("context");
  /** @type {Model} */
  let model = new Map();
  /** The model after each execution. @type {Map<number, Model>} */
  const history = new Map([[0, new Map()]]);
  let prepared = false;
  /** The newest cells, for messages. @type {string[]} */
  let last = [];

  /** Runs a cell and applies its effects to the model. Resolves to the result. @param {string} code @param {any} options @param {string[]} outcomes @param {((model: Model) => void)[]} effects */
  const run = async (code, options, outcomes, effects) => {
    counts.cells += 1;
    const known = new Set(model.keys());
    const result = await within(sandbox.execute(code, options), `a cell: ${code}`);
    last = [
      ...last,
      `${result.id} ${result.outcome} ${JSON.stringify(result.state)} ${JSON.stringify(code.slice(0, 100))}`,
    ].slice(-12);
    if (!outcomes.includes(result.outcome)) {
      problems.push(
        `${result.outcome} instead of ${outcomes}: ${result.traceback ?? result.error}\nafter\n${last.join("\n")}`,
      );
    }
    counts[result.state.status] += 1;
    const ran = !code.includes(RAN) || result.stdout.includes(RAN);
    if (result.state.status !== "kept" && !tookGuest(result)) {
      // The result names variables that the restored state does not hold.
      lose(model, result.state.lost);
      lose(history.get(/** @type {number} */ (result.state.restoredTo)), result.state.lost);
    }
    if (result.state.status === "kept" || !tookGuest(result)) {
      for (const effect of ran ? effects : []) effect(model);
    } else {
      const to = result.state.restoredTo;
      const before = to === undefined ? new Map() : history.get(to);
      if (!before) problems.push(`restored to ${to}, of which nothing is known`);
      lose(before, result.state.lost);
      model = new Map(before);
      const lost = new Set(result.state.lost?.map(({ name }) => name));
      for (const name of known) {
        if (!model.has(name) && !lost.has(name)) problems.push(`${name} is gone, and nobody said so: ${code}`);
      }
      prepared = model.has("drawn");
    }
    history.set(result.id, new Map(model));
    if (result.state.status !== "kept") {
      const dead = performance.now();
      await makeRoom();
      recoveries.push(performance.now() - dead);
    }
    return result;
  };

  /** Frees memory, because a restored state may be one with its memory full. @returns {Promise<unknown>} */
  const makeRoom = () => run(FREE, {}, ["ok"], []);

  /** Compares all variables with the model. @param {Awaited<ReturnType<typeof createSandbox>>} checked */
  const check = async (checked) => {
    counts.checks += 1;
    const found = await within(checked.execute("import json\nFINAL(json.dumps(check()))"), "the check");
    if (found.outcome !== "ok")
      problems.push(`the check: ${found.traceback ?? found.error}, after\n${last.join("\n")}`);
    const values = found.final ? JSON.parse(/** @type {string} */ (found.final.value)) : {};
    const there = checked === sandbox ? model : new Map(model);
    lose(there, found.state.lost);
    if (checked === sandbox && found.state.restoredTo !== undefined)
      lose(history.get(found.state.restoredTo), found.state.lost);
    const wanted = Object.fromEntries(there);
    for (const name of new Set([...Object.keys(values), ...Object.keys(wanted)])) {
      if (values[name] !== wanted[name])
        problems.push(`${name} is ${values[name]} and must be ${wanted[name]}, after\n${last.join("\n")}`);
    }
    if (checked === sandbox) history.set(found.id, new Map(model));
  };

  /** Undoes the last execution, or restores any checkpoint. */
  const goBack = async () => {
    const execution = dice.random() < 0.5 ? undefined : dice.below(Math.max(...history.keys()) + 1);
    const going = execution === undefined ? sandbox.undo() : sandbox.restore(execution);
    try {
      const to = await within(going, "going back");
      last = [...last, `went back to ${to}`].slice(-12);
      counts.back += 1;
      model = new Map(history.get(to));
      prepared = model.has("drawn");
      await makeRoom();
    } catch (error) {
      if (/** @type {any} */ (error).code !== "no_checkpoint") problems.push(`going back: ${error}`);
    }
  };

  while (performance.now() < ends && problems.length < 5) {
    if (!prepared) {
      await run(
        PREPARE,
        {},
        ["ok"],
        [(model) => Object.entries(PREPARED).forEach(([name, value]) => model.set(name, value))],
      );
      prepared = true;
    }
    if (dice.random() < 0.25) {
      const { code, outcomes, interrupt, abort, after } = HOSTILE[dice.below(HOSTILE.length)];
      const good = GOOD[dice.below(4)](dice);
      const controller = new AbortController();
      const timers = [
        interrupt && setTimeout(() => sandbox.interrupt(), interrupt),
        abort && setTimeout(() => controller.abort(), abort),
      ];
      const timeout = interrupt || abort || !outcomes.includes("timeout") ? 10_000 : 150;
      const options = { timeout, signal: controller.signal };
      await run(`${good.code}\nprint("${RAN}")\n${code}`, options, outcomes, [good.then]);
      timers.forEach(clearTimeout);
      if (after) await run(after, {}, ["ok"], []);
    } else {
      const good = GOOD[dice.below(GOOD.length)](dice);
      const running = run(good.code, {}, ["ok"], [good.then]);
      if (dice.random() < 0.03) block(dice.below(1500));
      await running;
    }
    if (dice.random() < 0.1) await goBack();
    if (!prepared) continue;
    if (dice.random() < 0.4) await check(sandbox);
    if (dice.random() < 0.03) {
      counts.forks += 1;
      const other = await within(sandbox.fork(), "fork");
      last = [...last, "forked"].slice(-12);
      await check(other);
      await other.destroy();
    }
    // Now and then there is a pause, as while a model thinks, and the state is saved.
    if (dice.random() < 0.5) await new Promise((resolve) => setTimeout(resolve, dice.below(150)));
  }
  await within(sandbox.destroy(), "destroy");
}

/** Returns true if an execution ended its guest. @param {import("../../pkg/sandglass.js").CodeExecution} result */
const tookGuest = ({ outcome, error }) => outcome === "crashed" || !!error?.includes("the guest was terminated");

/** Removes the lost variables of a state from its model. @param {Model | undefined} model @param {{ name: string }[]} [lost] */
function lose(model, lost = []) {
  for (const { name } of lost) if (name.startsWith("js_") && model?.has(name)) model.set(name, "gone");
}

/** Blocks the page, as the work of some pages does. @param {number} ms */
function block(ms) {
  for (const ends = performance.now() + ms; performance.now() < ends;);
}
