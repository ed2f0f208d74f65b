// Code that runs before it is asked for: whatever a sandbox answers must be what another one answers that never ran anything ahead.
// Runs in a page; tests/e2e/speculate.mjs reports what it finds.

import { createSandbox } from "/pyodide-glue/index.js";
import { randomness } from "./random.js";

/** @import { CodeExecution, ExecuteOptions, Sandbox, SandboxOptions } from "../../pkg/sandglass.js" */

/** How long anything is waited for, in milliseconds. */
const LIMIT_MS = 30_000;
const { setTimeout: wait } = globalThis;
const pause = (/** @type {number} */ ms) => new Promise((resolve) => wait(resolve, ms));

const settings = { seed: 1, rounds: 1 };
/** @param {typeof settings} given */
export function configure(given) {
  Object.assign(settings, given);
}

// ---- tools ----

/** What a test has made. @type {Set<Sandbox>} */
const alive = new Set();

/** A sandbox whose random numbers are known. @param {SandboxOptions} [options] */
async function create(options) {
  const sandbox = await createSandbox(options);
  alive.add(sandbox);
  await sandbox.initialize("ctx");
  await sandbox.execute("import random; random.seed(7)");
  return sandbox;
}

/** @param {() => unknown} condition @param {string} what */
async function until(condition, what) {
  for (const end = performance.now() + LIMIT_MS; !condition(); await pause(5)) {
    if (performance.now() > end) throw new Error(`${what}: not within ${LIMIT_MS} ms`);
  }
}

/** @param {Sandbox} sandbox */
const tally = (sandbox) =>
  sandbox.stats().ahead.code.explicit ?? { started: 0, finished: 0, used: 0, wasted: 0, timeSaved: 0 };

/** Hints at code, and waits until it has run ahead or was given up. @param {Sandbox} sandbox @param {string} code */
async function ahead(sandbox, code) {
  const before = tally(sandbox);
  await sandbox.hint(code);
  await until(() => {
    const { finished, wasted } = tally(sandbox);
    return finished > before.finished || wasted > before.wasted;
  }, `${code} runs ahead`);
}

/** Hints at code, and waits until it runs ahead. @param {Sandbox} sandbox @param {string} code */
async function begins(sandbox, code) {
  const { started } = tally(sandbox);
  await sandbox.hint(code);
  await until(() => tally(sandbox).started > started, `${code} begins`);
}

/**
 * What can be seen of an execution: all but the times.
 * @param {Sandbox} sandbox @param {string} code @param {ExecuteOptions} [options]
 */
async function seen(sandbox, code, options) {
  /** @type {[string, string][]} */
  const heard = [];
  const hear = (/** @type {string} */ kind) => (/** @type {any} */ what) => {
    const text = typeof what === "string" ? what : JSON.stringify(what);
    const last = heard.at(-1);
    if (last?.[0] === kind && kind !== "display")
      last[1] += text; // in how many pieces it comes is chance
    else heard.push([kind, text]);
  };
  const run = await sandbox.execute(code, {
    ...options,
    onStdout: hear("stdout"),
    onStderr: hear("stderr"),
    onDisplay: hear("display"),
  });
  const { duration, guestTime, ...rest } = run;
  return { ...rest, heard };
}

/** @param {unknown} one @param {unknown} other @param {string} what */
function different(one, other, what) {
  const [a, b] = [one, other].map((value) => JSON.stringify(value));
  return a === b ? [] : [`${what}: ${a.slice(0, 600)}, not ${b.slice(0, 600)}`];
}

// ---- what no one may notice ----

/** The state that cells work on, and a look at all of it. */
const PREPARE = `
import collections, dataclasses, os, sys
numbers = []
alias = numbers
table = {"a": numbers}
def counter():
    n = 0
    while True:
        n += 1
        yield n
count = counter()
def make():
    total = 0
    def add(n):
        nonlocal total
        total += n
        return total
    return add
add = make()
class Thing:
    made = 0
    def __init__(self, name):
        type(self).made += 1
        self.name = name
    def __repr__(self):
        return f"Thing({self.name!r})"
    def _repr_html_(self):
        return f"<b>{self.name}</b>"
things = [Thing("first")]
log = open("log.txt", "w+")
value = 0
queue = collections.deque(maxlen=4)
@dataclasses.dataclass
class Point:
    x: int
    y: int = 0
points = {}
def look():
    log.flush()
    return repr((numbers, alias is numbers, table["a"] is alias, next(count), add(1), things, Thing.made, value, queue,
        points, random.random(), sorted(os.listdir(".")), open("log.txt").read(), log.tell(), sys.getrecursionlimit(),
        sorted(name for name in globals() if name[0] != "_"), random.getstate()[1][-1]))
`;

/** Cells, by what they do: each changes something else, or in another way. @type {Record<string, (n: number) => string>} */
const KINDS = {
  "an int": (n) => `value = ${n}`,
  "an expression": (n) => `value + ${n}`,
  "a long int": (n) => `value = 3 ** ${n + 50}; value`,
  "a float": (n) => `value = ${n} / 7; print(value)`,
  text: (n) => `value = "é🙂\\x00" * ${n % 5}; value`,
  "a list": (n) => `numbers.append(${n}); numbers`,
  "a list, sorted": () => `numbers.sort(reverse=True); print(alias)`,
  "an alias": (n) => `alias += [${n}]; alias is numbers`,
  "what others hold": () => `table["b"] = table; table["b"]["b"] is table`,
  "a new list": () => `numbers = list(numbers); alias is numbers`,
  "a generator": () => `[next(count) for _ in range(3)]`,
  "a closure": (n) => `add(${n})`,
  "a class": (n) => `Thing.extra = ${n}; [thing.extra for thing in things]`,
  "an object": (n) => `things.append(Thing(${n})); things[-1]`,
  "a dataclass": (n) => `points[${n}] = Point(${n}); points`,
  "a queue": (n) => `queue.append(${n}); queue`,
  "a set": (n) => `value = {"a", "b", ${n}}; print(value)`,
  "the order of a set": (n) => `list({f"name{i}" for i in range(${n % 9})})`,
  "random numbers": () => `value = [random.random() for _ in range(5)]; value`,
  "a shuffle": () => `random.shuffle(numbers); numbers`,
  "another generator of numbers": (n) => `value = random.Random(${n}); value.random()`,
  "a file": (n) => `log.write("line ${n}\\n")`,
  "a new file": (n) => `open("file${n % 3}.txt", "w").write("x" * ${n})`,
  "a removed file": (n) => `open("file0.txt", "a").close(); os.remove("file0.txt"); ${n}`,
  "a folder": (n) => `os.makedirs("folder${n % 2}/inner", exist_ok=True); os.getcwd()`,
  "an exception": (n) => `numbers.append(-1)\nprint("before")\n[][${n}]`,
  "an exception in a function": (n) => `def fail(n):\n    return 1 / n\nvalue = ${n}\nfail(0)`,
  "a chain of exceptions": () =>
    `try:\n    {}["key"]\nexcept KeyError as error:\n    raise ValueError("wrapped") from error`,
  "a syntax error": (n) => `value = ${n}\nif value`,
  "both streams": (n) => `import sys\nfor i in range(4):\n    print(i, file=[sys.stdout, sys.stderr][i % 2])\n${n}`,
  "much text": (n) => `print("y" * ${60_000 + n}); print("end")`,
  "bytes on the descriptor": (n) => `os.write(1, b"raw ${n}\\n"); print("after")`,
  "a display": (n) => `print("before"); display(Thing(${n})); print("after")`,
  "an object that shows itself": (n) => `Thing("<shown ${n}>")`,
  await: (n) =>
    `import asyncio\nasync def double(n):\n    await asyncio.sleep(0)\n    return 2 * n\nvalue = await asyncio.gather(double(${n}), double(1))\nvalue`,
  "a task": (n) => `import asyncio\ntask = asyncio.create_task(asyncio.sleep(0, ${n}))\nawait task`,
  "a sleep": () => `import time; time.sleep(0.02); "slept"`,
  "an import": (n) =>
    `import ${["bisect", "heapq", "string", "textwrap", "statistics", "fractions"][n % 6]} as module; module.__name__`,
  "a global of builtins": (n) => `import builtins; builtins.extra = ${n}; extra`,
  "a deleted name": () => `value = 1; del value; value = "again"`,
  "a final answer": (n) => `FINAL({"n": ${n}, "list": numbers})`,
  "a finalizer": (n) => `class Noisy:\n    def __del__(self):\n        print("gone", ${n})\nnoisy = Noisy()\ndel noisy`,
  recursion: (n) => `def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(${5 + (n % 5)})`,
  "recursion without end": () => `def forever():\n    return forever()\nforever()`,
  "the traceback of an earlier cell": () => `fail(0)`,
  exit: () => `raise SystemExit(3)`,
};

async function fuzz() {
  const random = randomness(settings.seed);
  const [served, forced] = await Promise.all([create(), create()]);
  const problems = [];
  for (const sandbox of [served, forced]) {
    const { error } = await sandbox.execute(PREPARE);
    if (error) problems.push(`the state: ${error}`);
  }
  /** @type {Map<string, number>} */
  const hits = new Map();
  const tried = new Set();
  for (let round = 0; round < settings.rounds; round++) {
    const kinds = Object.keys(KINDS).map((kind) => ({ kind, at: random() }));
    kinds.sort((a, b) => a.at - b.at);
    for (const { kind } of kinds.slice(0, Math.ceil(kinds.length * Math.min(1, settings.rounds - round)))) {
      tried.add(kind);
      const code = KINDS[kind](Math.floor(random() * 40));
      const before = tally(served).used;
      await ahead(served, code);
      const [one, other] = [await seen(served, code), await seen(forced, code)];
      if (tally(served).used > before) hits.set(kind, (hits.get(kind) ?? 0) + 1);
      problems.push(...different(one, other, `${kind}: ${code}`));
      const [here, there] = [await seen(served, "look()"), await seen(forced, "look()")];
      problems.push(...different(here, there, `the state after ${kind}`));
      if (problems.length > 3) return { problems };
    }
  }
  const never = [...tried].filter((kind) => !hits.has(kind));
  if (never.length > 0) problems.push(`never served: ${never.join(", ")}`);
  const { used, started } = tally(served);
  return { problems, said: `${used} of ${started} cells served, of ${hits.size} kinds, seed ${settings.seed}` };
}

// ---- what never runs ahead, or not to its end ----

/** Cells whose result is another one later, or elsewhere. */
const UNSURE = {
  "the time": "import time; time.time()",
  "the monotonic time": "import time; time.monotonic()",
  "a counter": "import time; time.perf_counter_ns()",
  "the time of the process": "import time; time.process_time()",
  "a date": "import datetime; datetime.datetime.now()",
  "the time in a finalizer": "import time\nclass T:\n    def __del__(self):\n        self.t = time.time()\nT()\nNone",
  "a swallowed look at the time": "import time\ntry:\n    t = time.time()\nexcept BaseException:\n    pass\n1",
  "the loop's time": "import asyncio; asyncio.get_running_loop().time() if False else await asyncio.sleep(0.001)",
  chance: "import os; len(os.urandom(4))",
  "a seed": "random.seed(); 1",
  "another generator of numbers": "random.Random(); 1",
  "a UUID": "import uuid; len(str(uuid.uuid4()))",
  "a secret": "import secrets; len(secrets.token_hex())",
  "when a file was written": "import os; open('now', 'w').close(); os.stat('now').st_mtime > 0",
  JavaScript: "import js; js.self is None",
  "JavaScript's clock": "from js import Date; 1",
  "an endless loop": "while True: pass",
  "the end of the guest": "import ctypes; ctypes.string_at(1 << 40)",
  "too much memory": "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    x = None\nx is None",
};

async function unsure() {
  const problems = [];
  const cases = Object.entries(UNSURE);
  // After some more of them, a sandbox would not try any.
  for (let first = 0; first < cases.length; first += 7) {
    const sandbox = await create({ timeout: 1_000, memoryLimit: 256 << 20 });
    for (const [index, [what, code]] of cases.slice(first, first + 7).entries()) {
      await ahead(sandbox, code);
      const { finished, wasted } = tally(sandbox);
      problems.push(...different([finished, wasted], [0, index + 1], `${what} runs ahead (finished, wasted)`));
    }
    problems.push(...different((await sandbox.execute("1 + 1")).id, 2, "the number of the next"));
    await sandbox.destroy();
  }
  return { problems };
}

/** Whatever code has done to JavaScript is in no copy. */
async function touched() {
  const problems = [];
  const sandbox = await create();
  await sandbox.execute("import js; js.self.counted = 41");
  await ahead(sandbox, "1 + 1");
  problems.push(...different(tally(sandbox).finished, 0, "code ran ahead after JavaScript was changed"));
  problems.push(...different((await sandbox.execute("js.self.counted + 1")).result, "42", "the guest is the same"));
  return { problems };
}

// ---- what a host function hears ----

async function hostCalls() {
  /** @type {string[]} */
  const asked = [];
  const problems = [];
  const sandbox = await create({
    onLLMQuery: async (prompt) => {
      asked.push(prompt);
      return prompt.toUpperCase();
    },
    budget: { maxCalls: 3 },
  });
  const code =
    "text = 'a' * 3\nprint('asks')\nanswer_ = llm_query(text)\nprint(answer_)\nimport time\nt = time.time()\nanswer_";
  await ahead(sandbox, code);
  await pause(100);
  problems.push(...different(asked, [], "it was asked ahead"));
  const { stdout, result, hostCalls, usage } = await sandbox.execute(code);
  problems.push(...different([stdout, result, hostCalls], ["asks\nAAA\n", "'AAA'", 1], "what it came to"));
  problems.push(...different([asked.length, usage?.calls, tally(sandbox).used], [1, 1, 1], "calls, budget, used"));
  // A batch, and one for code that does not come.
  const batch = "llm_query_batched(['x', 'y'])";
  await ahead(sandbox, batch);
  await sandbox.execute("1");
  problems.push(...different(asked.length, 1, "calls of code that did not come"));
  await ahead(sandbox, batch);
  problems.push(...different((await sandbox.execute(batch)).result, "['X', 'Y']", "a batch"));
  problems.push(...different(tally(sandbox).used, 2, "the batch is used"));
  return { problems };
}

// ---- when code comes while it runs ahead ----

async function joining() {
  const problems = [];
  const sandbox = await create();
  const code = "print('begun')\nn = 0\nfor i in range(6_000_000): n += i\nprint('over')\nn";
  await begins(sandbox, code);
  await pause(1_200); // a guest is given the state meanwhile, and is in the loop or beyond
  const { stdout, result, outcome, id } = await sandbox.execute(code);
  problems.push(
    ...different([stdout, result, outcome, id], ["begun\nover\n", "17999997000000", "ok", 2], "what it came to"),
  );
  problems.push(...different((await sandbox.execute("n")).result, "17999997000000", "the state"));
  // One that looks at the clock when it has been asked for may, and one that is interrupted is.
  const late = "import time\nfor i in range(20): time.sleep(0.1)\nt = time.time()\nt > 0";
  await begins(sandbox, late);
  await pause(1_000);
  const { used } = tally(sandbox);
  problems.push(...different((await sandbox.execute(late)).result, "True", "a clock that is looked at later"));
  const stuck = "x = 'set'\nwhile True: pass";
  await begins(sandbox, stuck);
  await pause(1_000);
  const running = sandbox.execute(stuck);
  await pause(300);
  sandbox.interrupt();
  problems.push(...different((await running).outcome, "interrupted", "an interrupt"));
  problems.push(...different((await sandbox.execute("x")).result, "'set'", "the state after an interrupt"));
  problems.push(...different(used >= 0 && tally(sandbox).used > 0, true, "some were joined"));
  return { problems, said: JSON.stringify(tally(sandbox)) };
}

// ---- what comes in between ----

async function between() {
  const problems = [];
  const sandbox = await create();
  const code = "value = [*value, 1] if 'value' in globals() else [0]\nvalue";
  const expect = async (/** @type {string} */ result, /** @type {string} */ what) => {
    const before = tally(sandbox).used;
    problems.push(...different((await sandbox.execute(code)).result, result, what));
    problems.push(...different(tally(sandbox).used, before, `${what}: used`));
  };
  await ahead(sandbox, code);
  problems.push(...different((await sandbox.execute(code)).result, "[0]", "at first"));
  problems.push(...different(tally(sandbox).used, 1, "at first: used"));
  await ahead(sandbox, code);
  await sandbox.setVariable("value", [7]);
  await sandbox.checkpoint();
  await expect("[7, 1]", "after setVariable");
  await ahead(sandbox, code);
  await sandbox.undo();
  await expect("[7, 1]", "after undo");
  await ahead(sandbox, code);
  await sandbox.writeFile("file.txt", "text");
  await expect("[7, 1, 1]", "after writeFile");
  const running = sandbox.execute("import time; time.sleep(0.3); value = [9]");
  await sandbox.hint(code);
  await running;
  await until(() => tally(sandbox).finished >= 5, "a hint while something runs");
  problems.push(...different((await sandbox.execute(code)).result, "[9, 1]", "hinted while something ran"));
  // Not asked for, it changes nothing; and what was promoted is saved, taken back and forked like anything.
  await ahead(sandbox, "value = 'never'");
  problems.push(...different(await sandbox.getVariable("value"), [9, 1], "what ran ahead only"));
  await ahead(sandbox, code);
  await sandbox.execute(code);
  await sandbox.undo();
  problems.push(...different(await sandbox.getVariable("value"), [9, 1], "after undo of what was promoted"));
  const fork = await sandbox.fork();
  alive.add(fork);
  problems.push(...different(await fork.getVariable("value"), [9, 1], "a fork"));
  return { problems };
}

/** Callbacks are called as ever: not before `execute` has returned. */
async function callbacks() {
  const sandbox = await create();
  await ahead(sandbox, "print('one')");
  /** @type {string[]} */
  const order = [];
  const promise = sandbox.execute("print('one')", { onStdout: (text) => order.push(text) });
  order.push("returned");
  await promise;
  return { problems: different(order, ["returned", "one\n"], "the order") };
}

async function destroyed() {
  const problems = [];
  const frames = () => document.querySelectorAll("iframe").length;
  await until(() => frames() === 0, "those of earlier tests are gone");
  for (const code of ["1 + 1", "while True: pass"]) {
    const sandbox = await create();
    await begins(sandbox, code);
    await pause(code === "1 + 1" ? 0 : 1_000);
    await sandbox.destroy();
    await until(() => frames() === 0, `no frame is left of ${code}`).catch((error) => problems.push(`${error}`));
  }
  return { problems };
}

/** @type {Record<string, () => Promise<{ problems: string[], said?: string }>>} */
export const TESTS = {
  "random cells: nobody can tell what ran ahead": fuzz,
  "what is not certain is run when it is asked for": unsure,
  "what JavaScript knows is in no copy": touched,
  "host functions are called when the code is asked for": hostCalls,
  "code that comes while it runs ahead goes on": joining,
  "whatever comes in between counts": between,
  "callbacks are called after execute has returned": callbacks,
  "destroying a sandbox ends what runs ahead": destroyed,
};

/** @type {{ problems: string[], said?: string } | undefined} */
let result;
export const found = () => result;

/** @param {string} name */
export async function start(name) {
  result = undefined;
  const ended = await TESTS[name]().catch((error) => ({ problems: [`${error}\n${error?.stack ?? ""}`] }));
  for (const sandbox of alive) await sandbox.destroy();
  alive.clear();
  result = ended;
}
