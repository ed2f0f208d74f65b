// Work ahead: code that runs before it is asked for. A sandbox that works ahead must answer like one that never does.
// This file runs in a page; tests/e2e/speculate.mjs reports the problems.

import { createSandbox } from "/pyodide-glue/index.js";
import { runRlm } from "/pyodide-glue/rlm.js";
import { pause, randomness, until } from "./tools.js";

/** @import { CodeExecution, ExecuteOptions, Sandbox, SandboxOptions } from "../../pkg/sandglass.js" */

const settings = { seed: 1, rounds: 1 };
/** @param {typeof settings} given */
export function configure(given) {
  Object.assign(settings, given);
}

// ---- tools ----

/** Sandboxes that a test has made. @type {Set<Sandbox>} */
const alive = new Set();

/**
 * Creates a sandbox with seeded random numbers. It may spend as much time in vain as a test wants.
 * @param {SandboxOptions} [options] @param {unknown} [context]
 */
async function create(options, context = "ctx") {
  const sandbox = await createSandbox({ maxAheadShare: 1, ...options });
  alive.add(sandbox);
  await sandbox.initialize(context);
  await sandbox.execute("import random; random.seed(7)");
  return sandbox;
}

/** @param {Sandbox} sandbox @param {import("../../pkg/sandglass.js").Source} [source] */
const tally = (sandbox, source = "explicit") =>
  sandbox.stats().ahead.code[source] ?? { started: 0, finished: 0, used: 0, wasted: 0, timeSaved: 0, timeWasted: 0 };

/**
 * Returns a check whether code that comes now has run ahead or was given up. Code that ran ahead before may be given up meanwhile.
 * @param {Sandbox} sandbox @param {import("../../pkg/sandglass.js").Source} [source]
 */
function ending(sandbox, source) {
  const before = tally(sandbox, source);
  const earlier = before.started - before.used - before.wasted;
  return () => {
    const { finished, wasted } = tally(sandbox, source);
    return finished > before.finished || wasted > before.wasted + earlier;
  };
}

/** Hints at code, and waits until the code has run ahead or was given up. @param {Sandbox} sandbox @param {string} code */
async function ahead(sandbox, code) {
  const ended = ending(sandbox);
  await sandbox.hint(code);
  await until(ended, `${code} runs ahead`);
}

/** Hints at code, and waits until the code begins to run ahead. @param {Sandbox} sandbox @param {string} code */
async function begins(sandbox, code) {
  const { started } = tally(sandbox);
  await sandbox.hint(code);
  await until(() => tally(sandbox).started > started, `${code} begins`);
}

/**
 * Code that comes in pieces. Those of `late` come after those of `early` have run or were given up.
 * @param {Sandbox} sandbox @param {string[]} early @param {string[]} late
 */
async function* written(sandbox, early, late) {
  const ended = ending(sandbox, "stream");
  yield* early;
  await until(ended, `${early.join("").slice(0, 80)} runs`);
  yield* late;
}

/**
 * The visible facts of an execution, without times.
 * @param {Sandbox} sandbox @param {string | AsyncIterable<string>} code @param {ExecuteOptions} [options]
 */
async function seen(sandbox, code, options) {
  /** @type {[string, string][]} */
  const heard = [];
  const hear = (/** @type {string} */ kind) => (/** @type {any} */ what) => {
    const text = typeof what === "string" ? what : JSON.stringify(what);
    const last = heard.at(-1);
    if (last?.[0] === kind && kind !== "display")
      last[1] += text; // joined, because the number of pieces is chance
    else heard.push([kind, text]);
  };
  const hearing = { ...options, onStdout: hear("stdout"), onStderr: hear("stderr"), onDisplay: hear("display") };
  const run = await (typeof code === "string" ? sandbox.execute(code, hearing) : sandbox.executeStream(code, hearing));
  const { duration, guestTime, ...rest } = run;
  return { ...rest, heard };
}

/**
 * Does something again, up to five times in all, while nothing that ran ahead was used: a busy machine can be too late for that. What has
 * found a problem is not repeated.
 * @param {string[]} problems @param {string} what @param {() => Promise<boolean>} act  resolves to true if code was used
 */
async function usedAtLast(problems, what, act) {
  const before = problems.length;
  for (let tries = 1; !(await act()) && problems.length === before; tries++)
    if (tries === 5) problems.push(`${what}: not used in ${tries} attempts`);
}

/** @param {unknown} one @param {unknown} other @param {string} what */
function different(one, other, what) {
  // Addresses of objects are chance.
  const [a, b] = [one, other].map((value) => JSON.stringify(value).replace(/ at 0x[0-9a-f]+/g, " at 0x"));
  return a === b ? [] : [`${what}: ${a.slice(0, 600)}, not ${b.slice(0, 600)}`];
}

// ---- random cells ----

/** Code that makes the state of the cells, and the function `look`, which shows all of it. */
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

/** Cells by their purpose. Each changes another thing, or in another way. @type {Record<string, (n: number) => string>} */
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
  "the newest file": () =>
    `[max(os.listdir("."), key=time) for time in (os.path.getctime, os.path.getmtime)], len(os.listdir("."))`,
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
  const [served, forced] = await Promise.all([create({ predictions: "auto" }), create()]);
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

// ---- code that never runs ahead, or not to its end ----

/** Code that finds the glue's objects in Python. */
const GLUE = "import gc; next(o for o in gc.get_objects() if type(o).__name__ == 'BrowserBridge')._js";

/** Cells whose result would differ later or elsewhere, so that they must not run ahead to their end. */
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
  "when a file was changed":
    "import os; open('now', 'w').close(); os.utime('now', (1, 1)); os.stat('now').st_ctime > 0",
  "when an open file was written":
    "import os\nwith open('now', 'w') as f:\n    f.write('x')\n    f.flush()\n    t = os.fstat(f.fileno()).st_mtime\nt > 0",
  "a device of chance": "len(open('/dev/urandom', 'rb').read(4))",
  "a device of chance by its number": "import os; os.chdir('/dev'); len(os.read(os.open('random', os.O_RDONLY), 4))",
  "the address of a name": "import socket; len(socket.gethostbyname('example.com')) > 0",
  "the addresses of a name": "import socket; len(socket.getaddrinfo('example.org', 80)) > 0",
  "a map of an object": "from pyodide.ffi import to_js; len(to_js({'a': 1}).as_object_map())",
  "the glue's constructor": `${GLUE}.constructor is None`,
  "a function of the glue's": `${GLUE}.call.name`,
  JavaScript: "import js; js.self is None",
  "JavaScript's clock": "from js import Date; 1",
  "an endless loop": "while True: pass",
  "the end of the guest": "import ctypes; ctypes.string_at(1 << 40)",
  "too much memory": "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    x = None\nx is None",
};

async function unsure() {
  const problems = [];
  const random = randomness(settings.seed);
  const cases = Object.entries(UNSURE).filter(() => random() < settings.rounds);
  // Seven cells per sandbox: after some more runs in vain, a sandbox stops working ahead.
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

/** Checks that code that has changed JavaScript keeps its guest: no copy has the changes. */
async function touched() {
  const problems = [];
  const sandbox = await create();
  await sandbox.execute("import js; js.self.counted = 41");
  await ahead(sandbox, "1 + 1");
  problems.push(...different(tally(sandbox).finished, 0, "code ran ahead after JavaScript was changed"));
  problems.push(...different((await sandbox.execute("js.self.counted + 1")).result, "42", "the guest is the same"));
  return { problems };
}

// ---- guests that replace each other ----

/** Code with an effect on its guest beyond memory and its own files. JavaScript is last, as nothing runs ahead after it. */
const TRACES = {
  "a callback that calls itself again":
    "from pyodide.webloop import WebLoop\nloop = WebLoop()\ndef again(): loop.call_soon(again)\nagain()",
  "a changed file of the interpreter's": "open(sandglass.__file__, 'a').write('# changed\\n')",
  "a removed file of the interpreter's": "os.remove(sandglass.__path__[0] + '/native/kernel_guest.py')",
  JavaScript: "import js; js.self.counted = 1",
};

async function turns() {
  const problems = [];
  const frames = () => [...document.querySelectorAll("iframe")];
  await until(() => frames().length === 0, "those of earlier tests are gone");
  const sandbox = await create();
  let length = 0;
  const hits = async (/** @type {number} */ count, /** @type {string} */ what) => {
    for (let n = 0; n < count; n++) {
      const [code, { used }] = [`n.append(len(n)); open(f"file{len(n) % 3}", "a").write("x"); len(n)`, tally(sandbox)];
      await ahead(sandbox, code);
      const { result, error } = await sandbox.execute(code);
      problems.push(...different([result, error], [`${++length}`, undefined], what));
      if (tally(sandbox).used === used) return false;
    }
    return true;
  };
  await sandbox.execute("import os, sandglass; n = []; kept = open('open.txt', 'w+')");
  await hits(1, "a first hit");
  const guests = new Set(frames());
  const { size } = guests;
  for (let n = 0; n < 6; n++) {
    problems.push(...different(await hits(1, "a hit"), true, "all were used"));
    for (const frame of frames()) guests.add(frame);
  }
  // A guest that has not said yet that it can be used again is passed over, and a third one takes its place.
  problems.push(...different(guests.size <= size + 1, true, "guests take turns"));
  const files = "kept.tell(), sorted((name, os.path.getsize(name)) for name in os.listdir('.'))";
  const { result } = await sandbox.execute(files);
  const expected = "(0, [('file0', 2), ('file1', 3), ('file2', 2), ('open.txt', 0)])";
  problems.push(...different(result, expected, "the files"));
  for (const [what, code] of Object.entries(TRACES)) {
    const { error } = await sandbox.execute(code);
    if (error) problems.push(`${what}: ${error}`);
    await pause(20);
    const before = frames();
    const served = what !== "JavaScript";
    const goes = () => hits(4, `a hit after ${what}`);
    if (served) await usedAtLast(problems, `hits after ${what}`, goes);
    else problems.push(...different(await goes(), false, `hits after ${what}`));
    const { result, state } = await sandbox.execute("len(n)");
    problems.push(...different([result, state.status], [`${length}`, "kept"], `the state after ${what}`));
    if (served) await until(() => !before.every((frame) => frame.isConnected), `a guest ends after ${what}`);
  }
  return { problems };
}

/** A guest whose code has waited is reused. Such a wait leaves a string of Pyodide's behind, which the sandbox's own guest lacks. */
async function waits() {
  const sandbox = await create({ maxShadows: 1 });
  const codes = ["import time; time.sleep(0.05); n = 1", "n = 2", "n = 3", "n = 4", "n"];
  for (const [index, code] of codes.entries()) {
    await sandbox.hint([code]);
    await until(() => {
      const { finished, wasted } = tally(sandbox);
      return finished > index || wasted > index;
    }, `${code} runs ahead`);
  }
  const { started, finished, wasted } = tally(sandbox);
  const problems = different([started, finished, wasted], [5, 5, 4], "all ran ahead");
  const { error } = await sandbox.execute("n");
  problems.push(...different(error, "NameError: name 'n' is not defined", "none of them was asked for"));
  return { problems };
}

/** Each code of a hint runs ahead, and any of them is served. */
async function several() {
  const problems = [];
  const frames = () => document.querySelectorAll("iframe").length;
  await until(() => frames() === 0, "those of earlier tests are gone");
  const [sandbox, plain] = [await create({ maxShadows: 3 }), await create()];
  for (const each of [sandbox, plain]) await each.execute(PREPARE);
  const codes = [1, 2, 3, 4].map((n) => `numbers.append((${n}, random.random())); print(${n}); look()`);
  /** Waits until the counts are these. @param {string} what @param {Partial<ReturnType<typeof tally>>} counts */
  const reach = (what, counts) =>
    until(() => Object.entries(counts).every(([name, count]) => tally(sandbox)[name] === count), what).catch(
      (error) => {
        throw new Error(`${error.message}: ${JSON.stringify(tally(sandbox))}`);
      },
    );
  const finished = async (/** @type {number} */ count) => {
    const before = tally(sandbox);
    await sandbox.hint(codes);
    await reach(`${count} run ahead`, { finished: before.finished + count });
  };
  for (const [round, comes] of [2, 0].entries()) {
    await finished(3);
    const { started, finished: over, used, wasted } = tally(sandbox);
    problems.push(
      ...different([started, over, used, wasted], [3 * round + 3, 3 * round + 3, round, 2 * round], "counts"),
    );
    problems.push(...different(await seen(sandbox, codes[comes]), await seen(plain, codes[comes]), codes[comes]));
    problems.push(...different(tally(sandbox).used, round + 1, `${codes[comes]} is served`));
  }
  // There is no room for the fourth; what is named again is kept.
  await finished(3);
  const { started } = tally(sandbox);
  problems.push(...different(started, 9, "no shadow ended by itself"));
  await sandbox.hint([codes[3], codes[2]]);
  await reach("the fourth is begun", { started: started + 1 });
  // Its guest is a fresh one, which may be slow to start. What was asked for is exact in any case.
  const slow = await reach("the fourth runs ahead", { finished: started + 1 }).catch(String);
  for (const code of [codes[2], codes[3]]) {
    problems.push(...different(await seen(sandbox, code), await seen(plain, code), code));
  }
  problems.push(...different(tally(sandbox).used, 3, "the third is served, and the fourth was of the state before"));
  // Those that never end, and one that takes all memory, are in nobody's way.
  await sandbox.hint(["while True: pass", "x = []\nwhile True: x.append(bytearray(1 << 24))", "while True: 1"]);
  await pause(500);
  const look = "len(numbers), value, look()";
  problems.push(...different(await seen(sandbox, look), await seen(plain, look), "other code"));
  await until(() => tally(sandbox).started === tally(sandbox).used + tally(sandbox).wasted, "the counts add up");
  await sandbox.destroy();
  await plain.destroy();
  await until(() => frames() === 0, "no guest is left");
  return {
    problems,
    said: `${tally(sandbox).used} of ${tally(sandbox).started} served${slow === true ? "" : `, but ${slow}`}`,
  };
}

/** Code that counts a secret in all memory of its guest. The secret is given to it in another form. */
const search = (/** @type {string} */ secret) => `
import ctypes, pyodide_js
def search(masked, key=0x5A, piece=1 << 20):
    head, tail = bytes(byte ^ key for byte in masked[:4]), masked[4:]
    size, found = pyodide_js._module.HEAPU8.length, 0
    for begin in range(0, size, piece):
        data = ctypes.string_at(begin, min(piece + len(masked), size - begin))
        at = data.find(head)
        while 0 <= at < piece:
            # Compared in the other form, so that the search itself leaves no copy.
            found += bytes(byte ^ key for byte in data[at + 4 : at + len(masked)]) == tail
            at = data.find(head, at + 1)
        del data
    return found
search(bytes([${[...secret].map((letter) => letter.charCodeAt(0) ^ 0x5a).join(", ")}]))`;

/** Checks that the memory of a parked guest stays in its sandbox, and ends with it. */
async function remembered() {
  const problems = [];
  const frames = () => [...document.querySelectorAll("iframe")];
  await until(() => frames().length === 0, "those of earlier tests are gone");
  const secret = `kept-${crypto.randomUUID()}`;
  const leave = `import builtins, os
secret = "${secret}"
builtins.secret = [secret * 100, secret.encode() * 100]
os.environ["SECRET"] = secret
open("/tmp/secret", "w").write(secret)
len(secret)`;
  const first = await create();
  // A guest that ran ahead in vain is parked with its memory.
  await ahead(first, leave);
  await first.execute("1 + 1");
  await until(() => tally(first).wasted > 0, "it was in vain");
  await pause(100);
  const its = frames();
  problems.push(...different(its.length, 2, "a guest, and one that rests"));
  const second = await create();
  const look = `import builtins, os
[hasattr(builtins, "secret"), "secret" in globals(), os.environ.get("SECRET"), os.path.exists("/tmp/secret")]`;
  for (let n = 0; n < 3; n++) {
    const code = `n = ${n}\n${look}`;
    await ahead(second, code);
    const { result, error } = await second.execute(code);
    problems.push(
      ...different([result, error], ["[False, False, None, False]", undefined], "what another sandbox sees"),
    );
  }
  problems.push(...different(tally(second).used > 0, true, "another sandbox was served"));
  problems.push(
    ...different(
      its.every((frame) => frame.isConnected),
      true,
      "it still rests",
    ),
  );
  await first.destroy();
  await until(() => !its.some((frame) => frame.isConnected), "the guests of a sandbox end with it");
  problems.push(...different((await second.execute("n")).result, "2", "another sandbox goes on"));
  problems.push(
    ...different((await second.execute(search(secret))).result, "0", "the secret in another guest's memory"),
  );
  // The search does find a secret that is there.
  const third = await create();
  await third.execute(leave);
  const { result } = await third.execute(search(secret));
  problems.push(...different(Number(result) >= 200, true, `where the secret is, it is found ${result} times`));
  return { problems };
}

// ---- host functions ----

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
  // A function that needs approval: nobody is asked ahead.
  /** @type {string[]} */
  const approvals = [];
  const careful = await create({
    hostFunctions: { pay: { call: (/** @type {number} */ amount) => approvals.push(`paid ${amount}`), approve: true } },
    onApprove: ({ name }) => approvals.push(name) > 0,
  });
  const payment = "amount = sum(range(5))\npay(amount)";
  await ahead(careful, payment);
  await pause(100);
  problems.push(...different(approvals, [], "an approval was asked ahead"));
  const paid = await careful.execute(payment);
  problems.push(...different([paid.result, approvals], ["2", ["pay", "paid 10"]], "an approved call"));
  problems.push(...different(tally(careful).used, 1, "the code that ran up to the call is used"));
  await careful.destroy();
  // A batch whose code does not come, and one whose code does.
  const batch = "llm_query_batched(['x', 'y'])";
  await ahead(sandbox, batch);
  await sandbox.execute("1");
  problems.push(...different(asked.length, 1, "calls of code that did not come"));
  await ahead(sandbox, batch);
  problems.push(...different((await sandbox.execute(batch)).result, "['X', 'Y']", "a batch"));
  problems.push(...different(tally(sandbox).used, 2, "the batch is used"));
  return { problems };
}

// ---- code that is asked for while it runs ahead ----

async function joining() {
  const problems = [];
  const sandbox = await create({
    onLLMQuery: async (prompt) => prompt.toUpperCase(),
    hostCallTimeout: 5_000,
    gracePeriod: 30_000,
  });
  const code = "print('begun')\nn = 0\nfor i in range(6_000_000): n += i\nprint('over')\nn";
  await begins(sandbox, code);
  await pause(1_200); // meanwhile a guest gets the state, and reaches the loop or its end
  const { stdout, result, outcome, id } = await sandbox.execute(code);
  problems.push(
    ...different([stdout, result, outcome, id], ["begun\nover\n", "17999997000000", "ok", 2], "what it came to"),
  );
  problems.push(...different((await sandbox.execute("n")).result, "17999997000000", "the state"));
  // A shadow may look at the clock once its code has been asked for. An interrupt stops a shadow that was joined.
  const late = "import time\nfor i in range(20): time.sleep(0.1)\nt = time.time()\nt > 0";
  await begins(sandbox, late);
  await pause(1_000);
  const { used } = tally(sandbox);
  problems.push(...different((await sandbox.execute(late)).result, "True", "a clock that is looked at later"));
  // A batch of calls that begins while the code comes. The moment is chance, so it is tried around the time of the code.
  const batch = "s = sum(range(3_000_000))\nllm_query_batched(['x', 'y'])";
  const begun = performance.now();
  await ahead(sandbox, batch);
  const took = performance.now() - begun;
  for (const before of [20, 50, 80]) {
    const end = performance.now() + took - before;
    await begins(sandbox, `${batch} # ${before}`);
    await pause(end - performance.now());
    const { result } = await sandbox.execute(`${batch} # ${before}`, { timeout: 10_000 });
    problems.push(...different(result, "['X', 'Y']", "a batch"));
  }
  const stuck = "x = 'set'\nprint('begun')\nwhile True: pass";
  await begins(sandbox, stuck);
  await pause(1_000);
  const running = sandbox.execute(stuck, { onStdout: () => sandbox.interrupt() });
  problems.push(...different((await running).outcome, "interrupted", "an interrupt"));
  problems.push(...different((await sandbox.execute("x")).result, "'set'", "the state after an interrupt"));
  problems.push(...different(used >= 0 && tally(sandbox).used > 0, true, "some were joined"));
  return { problems, said: JSON.stringify(tally(sandbox)) };
}

// ---- code that runs while it is written ----

/** Last lines of a cell before which none of the cell, or not this line, may have run. */
const LAST = ["if value", "await asyncio.sleep(0)", "value is 5", "from __future__ import annotations", "return 1"];

async function writing() {
  const random = randomness(settings.seed + 1);
  const below = (/** @type {number} */ n) => Math.floor(random() * n);
  const [served, forced] = await Promise.all([create(), create()]);
  const problems = [];
  for (const sandbox of [served, forced]) await sandbox.execute(`import asyncio${PREPARE}`);
  // Parts that end a cell mostly come last. Cells with await run as one piece, so they are left out.
  const kinds = Object.keys(KINDS).filter((kind) => !/await|task|syntax/.test(kind));
  const ends = kinds.filter((kind) => /exception|exit|end|traceback/.test(kind));
  const cells = Math.round(36 * settings.rounds);
  for (let cell = 0; cell < cells; cell++) {
    const chosen = Array.from({ length: 2 + below(4) }, () => kinds[below(kinds.length)]);
    const parts = chosen.filter((kind, at) => at === chosen.length - 1 || !ends.includes(kind) || random() < 0.1);
    const lines = parts.map((kind) => KINDS[kind](below(40)));
    if (random() < 0.1) lines.push(LAST[below(LAST.length)]);
    const code = lines.join("\n");
    /** @type {string[]} */
    const pieces = [];
    for (let at = 0; at < code.length;) pieces.push(code.slice(at, (at += 1 + below(random() < 0.5 ? 8 : 80))));
    // The pause mostly comes when the first part and a line after it are there, so that code can run.
    const least = random() < 0.8 ? `${lines[0]}\n${lines[1]}\n`.indexOf("\n", lines[0].length + 1) + 1 : 0;
    let rests = 0;
    for (let length = 0; length < least && rests < pieces.length; length += pieces[rests++].length);
    rests += below(pieces.length - rests);
    const pauses = pieces.map(() => (random() < 0.1 ? below(150) : 0));
    // Often a hint tells the whole code early, and is mostly right.
    const told = random() < 0.6 ? below(pieces.length) : -1;
    const all = random() < 0.9 ? code : `${code}\n1`;
    const source = async function* () {
      const before = tally(served, "stream");
      for (const [at, piece] of pieces.entries()) {
        // Waits for the shadow, which needs the state first. There may be no code for it yet. Once there is, it runs to its end.
        for (let n = 0; at === rests && n < 9_000; n++) {
          const { started, finished, wasted } = tally(served, "stream");
          if (finished > before.finished || wasted > before.wasted || (n > 30 && started === before.started)) break;
          await pause(10);
        }
        if (pauses[at]) await pause(pauses[at]);
        if (at === told) void served.hint(all);
        yield piece;
        if (at === told) await pause(below(200));
      }
    };
    const [one, other] = [await seen(served, source()), await seen(forced, code)];
    problems.push(...different(one, other, `in ${pieces.length} pieces: ${code}`));
    const [here, there] = [await seen(served, "look()"), await seen(forced, "look()")];
    problems.push(...different(here, there, `the state after ${code}`));
    if (problems.length > 3) return { problems };
  }
  const { started, used, wasted } = tally(served, "stream");
  problems.push(...different(used > cells / 6, true, `${used} of ${cells} ran as they came`));
  return { problems, said: `${used} of ${cells} cells, ${wasted} of ${started} in vain, seed ${settings.seed}` };
}

async function early() {
  /** @type {string[]} */
  const problems = [];
  let sandbox = await create();
  await usedAtLast(problems, "code that comes", async () => {
    // Output of the parts that have run comes when all code is there, and the waiting does not count as duration.
    /** @type {string[]} */
    const heard = [];
    const source = async function* () {
      yield* written(sandbox, ["print('begun')\nn = sum(range(2_000_000))\n", "m = 1\n"], []);
      await pause(1_000);
      problems.push(...different(heard, [], "it is not to be seen"));
      yield "n + ";
      yield "m";
    };
    const begun = performance.now();
    const run = await sandbox.executeStream(source(), { onStdout: (text) => heard.push(text) });
    const took = performance.now() - begun;
    problems.push(
      ...different([run.result, run.id, heard.join(""), run.outcome], ["1999999000001", 2, "begun\n", "ok"], "it"),
    );
    problems.push(...different(run.code, "print('begun')\nn = sum(range(2_000_000))\nm = 1\nn + m", "its code"));
    problems.push(
      ...different(
        [run.duration, run.guestTime].map((ms) => ms < took - 900),
        [true, true],
        "its time",
      ),
    );
    problems.push(...different((await sandbox.execute("n + m")).result, "1999999000001", "the state"));
    const { used, timeSaved } = tally(sandbox, "stream");
    if (used > 0) problems.push(...different([used, timeSaved > 1], [1, true], "it was used, and saved time"));
    else sandbox = await create(); // the next attempt has the same numbers
    return used > 0;
  });
  // The last statement may run ahead as well, before the source ends.
  for (const [lines, result] of [
    ["value = 5\nvalue * 2\n", "10"],
    ["value = 6\nvalue * 2 # twice\n\n", "12"],
    ["value = 7\nprint(value)\n", undefined],
  ]) {
    await usedAtLast(problems, `${lines}`, async () => {
      const before = tally(sandbox, "stream");
      const run = await sandbox.executeStream(written(sandbox, [`${lines}`], []));
      const after = tally(sandbox, "stream");
      problems.push(...different([run.result, run.code], [result, lines], "the last statement"));
      return after.finished === before.finished + 1 && after.used === before.used + 1;
    });
  }
  // A function's source is there once all code is. A run that looks for it earlier is not used.
  const f = ["def f():\n    return 1\n\n", "x = 1\n", "x"];
  await sandbox.executeStream(written(sandbox, f.slice(0, 2), f.slice(2)));
  const look = "import inspect; inspect.getsource(f)";
  problems.push(...different((await sandbox.execute(look)).result, "'def f():\\n    return 1\\n'", "a source"));
  const all = "import linecache, sys\nlines = linecache.getlines(sys._getframe().f_code.co_filename)\nlen(lines)\n";
  const before = tally(sandbox, "stream");
  const { result } = await sandbox.executeStream(written(sandbox, [all], ["# a fourth\nlen(lines)"]));
  problems.push(...different([result, tally(sandbox, "stream").used], ["5", before.used], "all of its source"));
  return { problems };
}

/** Checks last pieces of many kinds: the outcome must be that of the whole code at once. */
async function changes() {
  /** @type {string[]} */
  const problems = [];
  const begin = "value = [*value, 1]\nprint(value)\n";
  /** Cases: the last piece, 1 if the run so far is used, and code before all. @type {Record<string, [string, 0 | 1, string?]>} */
  const cases = {
    "a syntax error": ["x = 1\nif x", 0],
    "an exception": ["x = 1\n1 / 0", 1],
    "a mistake of the whole": ["x = 1\nglobal value", 0],
    "an expression": ["x = 1\nvalue", 1],
    "a late future": ["x = 1\nfrom __future__ import annotations", 0],
    "the clock, at last": ["x = 1\ntime.time() > 0", 1],
    "a late await": ["await asyncio.sleep(0)\nvalue", 0],
    "too long, both": ["time.sleep(6)\nvalue", 1],
    "a long time before": ["time.sleep(3.5)\nvalue", 1, "time.sleep(3.5)\n"],
    "a warning": ["x = 1\nx is 5", 0],
    "a long text": ["y = '''\nx = 1\n'''\ny", 1],
    "a future at the beginning": [
      "def f(a: missing): ...\nf.__annotations__",
      1,
      "from __future__ import annotations\n",
    ],
    "a lone return": ["x = 1\nreturn", 0],
    "an exception before": ["x = 1\nvalue", 1, "def f():\n    1 / 0\nf()\n"],
    SUBMIT: ["x = 1\nvalue", 1, "SUBMIT(5)\n"],
    "a look at the clock before": ["x = 1\nvalue", 0, "t = time.time()\n"],
    "a task that is left": ["x = 1\n", 1, "loop = asyncio.new_event_loop()\nt = loop.create_task(asyncio.sleep(9))\n"],
    "an exception that is told": ["value", 0, "try:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"],
    "no end before": ["value", 0, "while True: pass\n"],
  };
  const prepare = async () => {
    const sandboxes = await Promise.all([create({ timeout: 5_000 }), create({ timeout: 5_000 })]);
    for (const sandbox of sandboxes) await sandbox.execute("import asyncio, time, traceback; value = []");
    return sandboxes;
  };
  let [served, forced] = await prepare();
  let ended = 0;
  for (const [what, [last, use, first = ""]] of Object.entries(cases)) {
    for (const told of [false, true]) {
      await usedAtLast(problems, what, async () => {
        const { used, wasted } = tally(served, "stream");
        if (wasted > 3) [served, forced] = await prepare(); // after some more runs in vain, a sandbox stops working ahead
        const before = wasted > 3 ? 0 : used;
        const [begun, all] = [`${first}${begin}`, `${first}${begin}x = 0\n${last}`];
        // A hint at the whole code lets it run to its end before its last piece comes.
        const source = async function* () {
          yield* written(served, [begun, "x = 0\n"], []);
          if (told) await served.hint(all);
          if (told) await pause(300);
          yield last;
        };
        const [one, other] = [await seen(served, source()), await seen(forced, all)];
        problems.push(...different(one, other, `${what}${told ? ", told" : ""}`));
        const uses = tally(served, "stream").used - before;
        if (told) ended += uses;
        else if (uses > use) problems.push(`${what}: used`);
        const [here, there] = [await served.getVariable("value"), await forced.getVariable("value")];
        problems.push(...different(here, there, `the state after ${what}`));
        return told || uses >= use;
      });
    }
  }
  problems.push(...different(ended >= 6, true, `${ended} had ended before they came`));
  return { problems, said: `${ended} of ${Object.keys(cases).length} had ended before they came` };
}

/** Checks acts of the page while code comes in pieces. */
async function meanwhile() {
  /** @type {string[]} */
  const asked = [];
  /** @type {string[]} */
  const problems = [];
  const sandbox = await create({
    onLLMQuery: async (prompt) => {
      asked.push(prompt);
      return prompt.toUpperCase();
    },
    gracePeriod: 30_000,
  });
  await sandbox.execute("value = 0");
  const expect = (/** @type {unknown} */ is, /** @type {unknown} */ should, /** @type {string} */ what) =>
    problems.push(...different(is, should, what));
  // A host call before the source's end waits for that end.
  const source = async function* () {
    yield* written(sandbox, ["a = llm_query('a')\n", "b = llm_query('b')\n"], []);
    await pause(100);
    expect(asked, [], "what was asked before all was there");
    yield "a + b";
  };
  await usedAtLast(problems, "host calls", async () => {
    asked.length = 0;
    const { used } = tally(sandbox, "stream");
    const { result, hostCalls } = await sandbox.executeStream(source());
    expect([result, hostCalls, asked], ["'AB'", 2, ["a", "b"]], "host calls");
    return tally(sandbox, "stream").used === used + 1;
  });
  // The rest comes while a statement runs.
  const long = ["for i in range(4_000_000): value += 1\n", "print('over')\n", "value"];
  const joins = async function* () {
    const { started } = tally(sandbox, "stream");
    yield* long.slice(0, 2);
    await until(() => tally(sandbox, "stream").started > started, "it begins");
    await pause(600);
    yield long[2];
  };
  const joined = await sandbox.executeStream(joins());
  expect([joined.result, joined.stdout], ["4000000", "over\n"], "a long statement");
  // After an abort, or an error of the source, nothing has run.
  const begin = ["value = 'never'\n", "x = 1\n"];
  const controller = new AbortController();
  const aborted = async function* () {
    yield* written(sandbox, begin, []);
    controller.abort();
    await pause(50);
    yield "x";
  };
  expect((await sandbox.executeStream(aborted(), { signal: controller.signal })).outcome, "interrupted", "abort");
  const failing = async function* () {
    yield* written(sandbox, begin, []);
    throw new Error("lost");
  };
  expect(await sandbox.executeStream(failing()).catch(({ code }) => code), "source_failed", "a source that fails");
  expect((await sandbox.execute("value")).result, "4000000", "the state after both");
  // Changes to the state while the code comes.
  const changed = async function* () {
    yield* written(sandbox, ["value += 1\n", "x = 1\n"], []);
    await sandbox.setVariable("value", 10);
    yield "value";
  };
  expect((await sandbox.executeStream(changed())).result, "11", "after setVariable");
  const executed = async function* () {
    yield* written(sandbox, ["value += 1\n", "x = 1\n"], []);
    await sandbox.execute("value = 20");
    yield "y = 1\n";
    await pause(300);
    yield "value";
  };
  expect((await sandbox.executeStream(executed())).result, "21", "after another execution");
  // An interrupt stops the rest of the code.
  await usedAtLast(problems, "an interrupt", async () => {
    const { used } = tally(sandbox, "stream");
    const endless = written(sandbox, ["value = 'set'\n", "x = 1\n"], ["print('stuck')\nwhile True: pass"]);
    const stuck = await sandbox.executeStream(endless, { onStdout: () => sandbox.interrupt() });
    expect(stuck.outcome, "interrupted", "an interrupt");
    return tally(sandbox, "stream").used === used + 1;
  });
  expect((await sandbox.execute("value")).result, "'set'", "the state after an interrupt");
  // Pieces that come very fast.
  const many = Array.from({ length: 3_000 }, (_, n) => `v${n} = ${n}\n`);
  const fast = await sandbox.executeStream(
    written(sandbox, many.slice(0, 1_500), [...many.slice(1_500), "v2999 + v0"]),
  );
  expect([fast.result, fast.outcome], ["2999", "ok"], "many lines");
  // The sandbox ends while the code comes.
  const left = await create();
  const orphan = async function* () {
    yield* written(left, begin, []);
    await left.destroy();
    yield "x";
  };
  expect(await left.executeStream(orphan()).catch(({ code }) => code), "destroyed", "a sandbox that has ended");
  return { problems, said: JSON.stringify(tally(sandbox, "stream")) };
}

// ---- other requests in between ----

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
  const { finished } = tally(sandbox);
  const running = sandbox.execute("import time; time.sleep(0.3); value = [9]");
  await sandbox.hint(code);
  await running;
  await until(() => tally(sandbox).finished > finished, "a hint while something runs");
  problems.push(...different((await sandbox.execute(code)).result, "[9, 1]", "hinted while something ran"));
  // Code that is not asked for changes nothing. A promoted shadow can be saved, undone and forked like any guest.
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

/** Checks that the files of a shadow have the times of the original's. */
async function times() {
  const sandbox = await create();
  await sandbox.execute(`
import os, time
def times():
    paths = [".", "..", "/", "/tmp", "data", "data/inner", "data/first.txt", "data/second.txt", "link"]
    told = [*map(os.lstat, paths), os.fstat(hidden.fileno())]
    return [(stat.st_atime_ns, stat.st_mtime_ns, stat.st_ctime_ns) for stat in told]
os.makedirs("data/inner")
hidden = open("hidden.txt", "w+")
for step in [
    lambda: hidden.write("x") and hidden.flush(),
    lambda: os.remove("hidden.txt"),
    lambda: open("/tmp/other.txt", "w").close(),
    lambda: open("data/first.txt", "w").close(),
    lambda: os.symlink("data/first.txt", "link"),
    lambda: open("data/second.txt", "w").close(),
    lambda: os.utime("data/first.txt", (1, 2)),
    lambda: os.remove("data/second.txt"),
    lambda: open("data/second.txt", "w").close(),
]:
    time.sleep(0.02)
    step()
`);
  const { result, error } = await sandbox.execute("times()");
  await ahead(sandbox, "times()");
  const problems = different((await sandbox.execute("times()")).result, result, "the times");
  return { problems: [...problems, ...different([tally(sandbox).used, error], [1, null], "used, and no error")] };
}

/** Checks that callbacks are called only after `execute` has returned. */
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

async function counted() {
  const sandbox = await create();
  await ahead(sandbox, "1 + 1");
  await sandbox.execute("1 + 1");
  const text = sandbox.metrics().replace(/(seconds_sum) [\d.]+/, "$1 S");
  const values = text.split("\n").filter((line) => line && !line.startsWith("#"));
  const expected = [
    'rlm_proactive_predictions_total{source="explicit"} 1',
    "rlm_proactive_cache_hits_total 1",
    "rlm_proactive_cache_misses_total 1",
    "rlm_proactive_cache_size 0",
    "rlm_proactive_hit_rate 0.5",
    "rlm_proactive_execution_seconds_sum S",
    "rlm_proactive_execution_seconds_count 1",
    "rlm_proactive_wasted_seconds_total 0",
  ];
  return { problems: different(values, expected, "the counts") };
}

/** Checks `maxAheadShare`. With 0, only code that is sure to come runs ahead. */
async function share() {
  const problems = [];
  const sandbox = await create({ maxAheadShare: 0 });
  await sandbox.checkpoint();
  await sandbox.hint("1 + 1");
  await pause(500);
  problems.push(...different(sandbox.stats().ahead.code, {}, "what ran ahead"));
  problems.push(...different((await sandbox.execute("1 + 1")).result, "2", "the result"));
  const run = await sandbox.executeStream(written(sandbox, ["x = 1\n", "x + 1\n"], ["x"]));
  problems.push(...different([run.result, tally(sandbox, "stream").used], ["1", 1], "what is written runs ahead"));
  const half = await create({ maxAheadShare: 0.5 });
  await ahead(half, "sum(range(3_000_000))");
  await half.execute("'another'");
  const { wasted, timeWasted } = tally(half);
  problems.push(...different([wasted, timeWasted > 10], [1, true], `in vain, in ${timeWasted} ms`));
  return { problems };
}

/** A text that takes a while to read. */
const LONG = `${"x".repeat(99)} `.repeat(500_000);

/** Checks guesses that the session makes from the variables. */
async function guesses() {
  const problems = [];
  const [guesser, plain] = [await create({ predictions: "auto" }, LONG), await create({}, LONG)];
  const counted = "len(context.split())";
  await until(() => tally(guesser, "pattern").finished === 1, `${counted} runs ahead`);
  const [{ code, source, dependencies }] = guesser.predictions();
  problems.push(...different([code, source, dependencies], [counted, "pattern", ["context"]], "the best guess"));
  problems.push(...different(await seen(guesser, counted), await seen(plain, counted), "the guess that came true"));
  const { used, timeSaved } = tally(guesser, "pattern");
  problems.push(...different([used, timeSaved > 20], [1, true], `served, and saved ${timeSaved} ms`));
  problems.push(...different([plain.stats().ahead.code, plain.predictions()], [{}, []], "without the option"));
  // Other code comes: the guess must have changed nothing.
  const lines = "lines = context.splitlines(); len(lines), random.random()";
  problems.push(...different(await seen(guesser, lines), await seen(plain, lines), "other code"));
  // The survey of the variables calls no code of the user.
  const counts = `import json
def count(*args, **kwargs):
    global counted
    counted += 1
    return dumps(*args, **kwargs)
counted, dumps, json.dumps = 0, json.dumps, count`;
  for (const sandbox of [guesser, plain]) await sandbox.execute(counts);
  await until(() => guesser.predictions().length > 0, "what there is is known");
  problems.push(...different((await guesser.execute("counted")).result, "0", "calls of a function of the user's"));
  // Code from a hint runs instead of a guess.
  await guesser.execute("text = context + context");
  await until(() => guesser.predictions().some(({ code }) => code === "len(text)"), "what there is is known");
  await ahead(guesser, "len(text)");
  problems.push(...different((await guesser.execute("len(text)")).result, `${2 * LONG.length}`, "what was hinted at"));
  problems.push(...different(tally(guesser).used, 1, "hints that were used"));
  return { problems, said: `${Math.round(timeSaved)} ms of a guess were done before it came` };
}

/** Checks guesses from the conversation. */
async function conversation() {
  const problems = [];
  const [guesser, plain] = [await create({ predictions: "auto" }, LONG), await create({}, LONG)];
  for (const sandbox of [guesser, plain]) await sandbox.execute("import re");
  await until(() => guesser.predictions().length > 0, "what there is is known");
  await guesser.updateConversation([
    { role: "user", content: "How many words are there?" },
    { role: "assistant", content: 'First I look for "xxx x" in it.' },
  ]);
  await until(() => tally(guesser, "conversation").finished === 1, "it runs ahead");
  const code = 're.findall("xxx x", context)';
  problems.push(...different(await seen(guesser, code), await seen(plain, code), "what was talked about"));
  problems.push(...different(tally(guesser, "conversation").used, 1, "guesses that were used"));
  await plain.updateConversation('And now for "something else".');
  await guesser.updateConversation("");
  await pause(300);
  problems.push(...different(plain.stats().ahead.code, {}, "what runs ahead without the option"));
  return { problems };
}

/** Checks that the code of a draft runs while the model thinks. */
async function drafts() {
  const problems = [];
  const code = 'import time\ntime.sleep(1.5)\nprint("slept")';
  const reply = `I wait.\n\n\`\`\`repl\n${code}\n\`\`\`\n`;
  /** @type {[string, number][]} */
  const asked = [];
  let aborted = false;
  let abortedFirst = false;
  /** Runs with a model that thinks for `thinks` milliseconds. @param {number} thinks */
  const runWith = (thinks) =>
    runRlm({
      task: "Wait a while.",
      context: "ctx",
      model: async (_messages, { call, onText }) => {
        if (call === 1) {
          await pause(thinks);
          return reply;
        }
        await pause(50);
        onText("FINAL(");
        abortedFirst = aborted;
        return "FINAL(It is done.)";
      },
      draft: async (_messages, { purpose, call, signal }) => {
        asked.push([purpose, call]);
        if (call === 1) return { text: reply, usage: { inputTokens: 10_000, outputTokens: 10 } };
        return new Promise((_, reject) => {
          signal.addEventListener("abort", () => {
            aborted = true;
            reject(new Error("it is not wanted any more"));
          });
        });
      },
    });
  /** @type {Awaited<ReturnType<typeof runWith>>} */
  let run;
  let execution;
  let waited = Infinity;
  // A guest may take two seconds to start, and much longer on a busy machine.
  for (const thinks of [6_000, 24_000, 96_000]) {
    asked.length = 0;
    aborted = abortedFirst = false;
    run = await runWith(thinks);
    const of = (/** @type {string} */ type) => /** @type {any} */ (run.events.find((event) => event.type === type));
    const { time } = of("executionEnded");
    ({ execution } = of("executionEnded"));
    waited = time - of("codeStarted").time;
    if (waited < 1_000) break;
  }
  problems.push(...different([run.outcome, execution.stdout], ["answered", "slept\n"], "the run"));
  problems.push(...different([execution.duration >= 1_500, waited < 1_000], [true, true], `waited ${waited} ms`));
  problems.push(...different(asked.join(" "), "draft,1 draft,2", "drafts"));
  problems.push(...different(abortedFirst, true, "the draft is ended when the reply begins"));
  const { calls, inputTokens } = run.usage;
  problems.push(...different([calls, inputTokens > 10_000], [4, true], `the usage, with ${inputTokens} tokens`));

  // Drafts take no calls that the replies may need.
  const { usage, outcome } = await runRlm({
    task: "Answer.",
    model: async () => (await pause(50), "FINAL(It is done.)"),
    draft: async () => "none",
    budget: { maxCalls: 20 },
  });
  problems.push(...different([usage.calls, outcome], [1, "answered"], "without calls to spare"));
  return { problems, said: `waited ${Math.round(waited)} ms for ${Math.round(execution.duration)} ms of code` };
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
  "guests take turns, unless code has left something in them": turns,
  "a guest whose code has waited is reused": waits,
  "each code of a hint runs ahead, and any is served": several,
  "what a guest that rests remembers stays in its sandbox": remembered,
  "host functions are called when the code is asked for": hostCalls,
  "code that comes while it runs ahead goes on": joining,
  "written: random cells in random pieces are what they are": writing,
  "written: statements run as they come": early,
  "written: what comes last may change all": changes,
  "written: whatever the page does meanwhile": meanwhile,
  "whatever comes in between counts": between,
  "files are as old in a copy": times,
  "callbacks are called after execute has returned": callbacks,
  "what ran ahead is counted for Prometheus": counted,
  "no more than a share of the time is spent in vain": share,
  "what is guessed by what there is, and comes, is served": guesses,
  "what is talked about is guessed": conversation,
  "a draft of a model runs while the reply is thought about": drafts,
  "destroying a sandbox ends what runs ahead": destroyed,
};

/** @param {string} name */
export async function runTest(name) {
  const ended = await TESTS[name]().catch((error) => ({ problems: [`${error}\n${error?.stack ?? ""}`] }));
  for (const sandbox of alive) await sandbox.destroy();
  alive.clear();
  return ended;
}
