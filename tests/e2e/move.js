// What the tests of moves do in a page. `move.mjs` starts the servers, and calls these.
import { createSandbox } from "../../pyodide-glue/index.js";

/** @typedef {import("../../pkg/sandglass.js").Sandbox} Sandbox */
/** @typedef {{ url: string, apiKey?: string }} Server */

const SETTINGS = {
  onLLMQuery: async (/** @type {string} */ prompt) => `answer to ${prompt}`,
  hostFunctions: { double: (/** @type {number} */ number) => 2 * number },
};

/** All kinds of things that a session has after a while. */
const BEGIN = `
import dataclasses, json as j, random, io
from collections import Counter
def counter(start):
    def count():
        nonlocal start
        start += 1
        return start
    return count
count = counter(40)
count()
class Point:
    made = 0
    def __init__(self, x):
        self.x = x
        Point.made += 1
    def scaled(self):
        return self.x * factor
@dataclasses.dataclass
class Row:
    name: str
    value: float = 1.5
factor, points = 3, [Point(1), Point(2)]
same = points
rows = {"a": Row("a"), ("b", 2): Row("b", float("inf"))}
_private, __mangled = "still here", {1, 2, 3}
generator = random.Random(5)
generator.random()
square = lambda number: number * number
def factorial(number):
    return 1 if number < 2 else number * factorial(number - 1)
ask, big, data = llm_query, 1 << 200, bytes(range(256)) * 10
words = Counter("sandglass")
lines = (line for line in "ab")
next(lines)
handle = io.FileIO("open.txt", "w")
`;
const CHECK = `
assert count() == COUNT, "a closure"
assert [point.scaled() for point in points] == [3, 6] and Point.made == 2, "a class"
assert same is points and type(points[0]) is Point, "identity"
assert rows == {"a": Row("a"), ("b", 2): Row("b", float("inf"))}, "a dataclass"
assert _private == "still here" and __mangled == {1, 2, 3}, "private names"
assert j.dumps([1]) == "[1]" and square(9) == 81 and factorial(5) == 120, "modules, lambdas, recursion"
assert big == 1 << 200 and data == bytes(range(256)) * 10 and words["s"] == 3, "data"
assert ask("x") == "answer to x" and llm_query("y") == "answer to y" and double(21) == 42, "functions of the page"
assert context == ["the", {"context": 1}], "the context"
import os
assert open("folder/inner.bin", "rb").read() == bytes(range(256)), "files"
assert os.path.isdir("folder/empty") and open("text.txt").read() == "written by Python", "folders"
`;

/** Fails with Python's own words. @param {Sandbox} sandbox @param {string} code */
export async function run(sandbox, code) {
  const run = await sandbox.execute(code);
  if (run.outcome !== "ok") throw new Error(`${run.outcome}: ${run.traceback ?? run.error}`);
  return run;
}

/** @param {object} [options] */
async function begin(options) {
  const sandbox = await createSandbox({ ...SETTINGS, ...options });
  await sandbox.initialize(["the", { context: 1 }]);
  return sandbox;
}

/** The names that are lost. @param {{ name: string }[] | undefined} lost */
const names = (lost) => (lost ?? []).map(({ name }) => name).sort();

/** The error of a call, as text. @param {Promise<unknown>} call */
const told = (call) =>
  call.then(
    () => "no error",
    (/** @type {any} */ error) => `${error.name} ${error.code}: ${error.message}`,
  );

/** From the tab to a server and back. @param {Server} server */
export async function thereAndBack(server) {
  const sandbox = await begin({ checkpoints: "auto" });
  await run(sandbox, BEGIN);
  await sandbox.writeFile(
    "folder/inner.bin",
    Uint8Array.from({ length: 256 }, (_, at) => at),
  );
  await run(sandbox, "import os; os.mkdir('folder/empty'); _ = open('text.txt', 'w').write('written by Python')");
  const here = { isolation: sandbox.capabilities.isolation, python: sandbox.capabilities.python };
  const there = await sandbox.moveTo(server);
  const at = await run(sandbox, `${CHECK.replace("COUNT", "42")}\nimport sys\nprint(sys.platform)`);
  const next = await run(sandbox, "drawn = generator.random()\nimport random; drawn == random.Random(5).random()");
  const isolated = { isolation: sandbox.capabilities.isolation, python: sandbox.capabilities.python };
  // Beside data, the session gets values of packages that the page lacks.
  await run(
    sandbox,
    "import numpy as np, pandas as pd\narray = np.arange(6).reshape(2, 3)\nframe = pd.DataFrame({'a': [1, 2]})\nplain = frame['a'].tolist()",
  );
  // The present state may have been saved meanwhile. Earlier ones stay behind.
  const earlier = () => sandbox.history().filter(({ current }) => !current).length;
  const history = [earlier()];
  const back = await sandbox.moveTo("browser");
  history.push(earlier());
  const again = await run(sandbox, `${CHECK.replace("COUNT", "43")}\nprint(sys.platform, plain, 'array' in globals())`);
  const quiet = await run(sandbox, "count = 0");
  const undone = await sandbox.undo();
  const after = await run(sandbox, "count()");
  const end = { isolation: sandbox.capabilities.isolation, python: sandbox.capabilities.python };
  await sandbox.destroy();
  return {
    there: names(there.lost),
    at: { stdout: at.stdout, id: at.id, state: at.state.status, lost: names(at.state.lost) },
    next: { lost: names(next.state.lost), result: next.result },
    back: names(back.lost),
    reasons: back.lost.map(({ reason }) => reason),
    again: { stdout: again.stdout, id: again.id, state: again.state.status, lost: names(again.state.lost) },
    quiet: names(quiet.state.lost),
    undone,
    after: after.result,
    history,
    places: [here, isolated, end],
  };
}

/** Arrays and frames between servers with two versions of Python. @param {Server} one @param {Server} other */
export async function betweenServers(one, other) {
  const sandbox = await begin({ backend: one });
  await run(
    sandbox,
    "import numpy as np, pandas as pd\narray = np.arange(6.0).reshape(2, 3)\nview = array[0]\nframe = pd.DataFrame({'a': [1, None], 'b': ['x', 'y']})",
  );
  const { lost } = await sandbox.moveTo(other);
  const checked = await run(
    sandbox,
    "view[0] = 7\nassert array[0, 0] == 7 and array.shape == (2, 3)\nassert frame['b'].tolist() == ['x', 'y'] and frame['a'].isna().tolist() == [False, True]\ncontext",
  );
  await sandbox.destroy();
  return { lost: names(lost), result: checked.result };
}

/** Calls before a move, and during it. @param {Server} server */
export async function inOrder(server) {
  const sandbox = await begin();
  /** @type {string[]} */
  const order = [];
  const note = (/** @type {string} */ name, /** @type {Promise<any>} */ call) =>
    call.then((value) => {
      order.push(name);
      return value;
    });
  const calls = [
    note("before", sandbox.execute("import time, sys\ntime.sleep(0.3)\nx = [1]\nsys.platform")),
    note("move", sandbox.moveTo(server)),
    note("during", sandbox.execute("x.append(2)\nsys.platform")),
    note("set", sandbox.setVariable("y", 5)),
    note("back", sandbox.moveTo("browser")),
    note("after", sandbox.execute("x.append(y)\nsys.platform")),
    note("get", sandbox.getVariable("x")),
  ];
  const [before, , during, , , after, x] = await Promise.all(calls);
  const cancelled = new AbortController();
  const moving = sandbox.moveTo(server);
  const never = told(sandbox.execute("x.append('never')", { signal: cancelled.signal }));
  cancelled.abort();
  await moving;
  const last = await sandbox.getVariable("x");
  await sandbox.destroy();
  return {
    order,
    platforms: [before, during, after].map((/** @type {any} */ run) => `${run.id} ${run.result}`),
    x,
    never: await never,
    last,
  };
}

/**
 * A move that fails, after which the sandbox goes on exactly as it was.
 * @param {unknown} target @param {object} [options] @param {string} [code]  options of the sandbox, and more code
 */
export async function failing(target, options, code = "") {
  const sandbox = await begin({ ...options, timeout: 20_000 });
  await run(sandbox, `numbers = (n for n in range(5))\nnext(numbers)\n${code}`);
  const error = await told(sandbox.moveTo(/** @type {any} */ (target)));
  const after = await run(sandbox, "next(numbers), context[0], double(4), llm_query('z')");
  const place = sandbox.capabilities.isolation;
  await sandbox.destroy();
  return { error, result: after.result, lost: names(after.state.lost), place };
}

/** Begins a move, and leaves the sandbox. @param {Server} server @param {object} [options] */
export async function leave(server, options) {
  const sandbox = await begin(options);
  await run(sandbox, "numbers = (n for n in range(5))\nnext(numbers)");
  const moving = told(sandbox.moveTo(server));
  Object.assign(globalThis, { left: { sandbox, moving } });
}

/** What became of it. */
export async function found() {
  const { sandbox, moving } = /** @type {any} */ (globalThis).left;
  const error = await moving;
  const after = await run(sandbox, "next(numbers), double(4)");
  await sandbox.destroy();
  return { error, result: after.result };
}

/** Ends a sandbox while it moves. @param {Server} server */
export async function destroyed(server) {
  /** @type {string[]} */
  const errors = [];
  for (const ms of [0, 20, 80, 200, 400]) {
    const sandbox = await begin();
    await run(sandbox, "x = bytes(10_000_000)");
    const moving = told(sandbox.moveTo(server));
    const waiting = told(sandbox.execute("1"));
    await new Promise((resolve) => setTimeout(resolve, ms));
    await sandbox.destroy();
    errors.push(await moving, await waiting, await told(sandbox.execute("1")));
  }
  return errors;
}

/** Arguments that are refused. @param {Server} server */
export async function refused(server) {
  const sandbox = await begin();
  await run(sandbox, "x = 1");
  const wrong = /** @type {any} */ (sandbox);
  const errors = [
    await told(wrong.moveTo("elsewhere")),
    await told(wrong.moveTo()),
    await told(wrong.moveTo({ url: server.url, key: "x" })),
    await told(wrong.moveTo("browser", { speed: 1 })),
    await told(sandbox.moveTo(server, { packages: ["attrs"] })),
  ];
  let end = () => {};
  const source = new ReadableStream({ start: (stream) => void (end = () => stream.close()) });
  const reading = sandbox.executeStream(source);
  errors.push(await told(sandbox.moveTo(server)));
  end();
  await reading;
  const stays = await sandbox.moveTo("browser");
  const value = await sandbox.getVariable("x");
  await sandbox.destroy();
  const kept = await begin({ persist: "a session that stays" });
  errors.push(await told(kept.moveTo(server)));
  await kept.destroy();
  return { errors, stays, value };
}

/**
 * The packages of a page's guest come back with it, without a request.
 * @param {Server} server @param {string} lockFileUrl
 */
export async function withPackages(server, lockFileUrl) {
  const sandbox = await begin({ lockFileUrl, packages: ["attrs"], autoImport: true });
  const code = "import attrs, typing_extensions\n@attrs.define\nclass Box:\n    side: int\nbox, kept = Box(3), 1";
  await run(sandbox, code);
  await sandbox.moveTo(server);
  await run(sandbox, "import typing_extensions as typed\nkept += 1");
  return {
    /** Goes back into the page. */
    async back() {
      const { lost } = await sandbox.moveTo("browser");
      const after = await run(sandbox, "import attrs\nkept, attrs.__name__, typed.__name__");
      await sandbox.destroy();
      return { lost: names(lost), result: after.result };
    },
  };
}

/** Packages for a sandbox that began at a server. @param {Server} server */
export async function toLoadedPackages(server) {
  const sandbox = await begin({ backend: server });
  await run(sandbox, "x = 1");
  const error = await told(sandbox.moveTo("browser", { packages: ["no-such-package-at-all"] }));
  const { lost } = await sandbox.moveTo("browser");
  const after = await run(sandbox, "x, double(2)");
  const history = await sandbox.checkpoint();
  await sandbox.destroy();
  return { error, lost, result: after.result, history };
}

/** Copies of a sandbox at a server. @param {Server} server @param {object} options */
export async function copies(server, options) {
  const sandbox = await begin({ backend: server, ...options });
  await run(sandbox, BEGIN);
  await sandbox.writeFile(
    "folder/inner.bin",
    Uint8Array.from({ length: 256 }, (_, at) => at),
  );
  await run(sandbox, "import os; os.mkdir('folder/empty'); _ = open('text.txt', 'w').write('written by Python')");
  const [one, other] = await Promise.all([sandbox.fork(), sandbox.fork()]);
  const first = await run(one, `${CHECK.replace("COUNT", "42")}\nmine = 1\nopen('text.txt', 'w').write('of the copy')`);
  const second = await run(other, `${CHECK.replace("COUNT", "42")}\n'mine' in globals()`);
  const [pid, ...others] = await Promise.all(
    [sandbox, one, other].map(async (each) => (await run(each, "os.getpid(), os.getcwd()")).result),
  );
  const original = await run(sandbox, `${CHECK.replace("COUNT", "42")}\nnext(lines), 'mine' in globals()`);
  const quiet = await run(other, "1");
  const copyOfCopy = await one.fork();
  const third = await run(copyOfCopy, "mine, count()");
  const isBudgetShared = one.budget.spent.calls === sandbox.budget.spent.calls;
  await one.destroy();
  const outlives = await run(other, "count()");
  for (const each of [other, copyOfCopy, sandbox]) await each.destroy();
  return {
    ids: [first.id, second.id, third.id],
    lost: [first, second, original, quiet].map(({ state }) => names(state.lost)),
    states: [first.state.status, second.state.status],
    results: [second.result, original.result, third.result, outlives.result],
    isApart: others.every((place) => place !== pid),
    isBudgetShared,
  };
}

/** A copy for which there is no room. @param {Server} server */
export async function noRoom(server) {
  const sandbox = await begin({ backend: server });
  await run(sandbox, "numbers = (n for n in range(5))\nnext(numbers)");
  const error = await told(sandbox.fork());
  const after = await run(sandbox, "next(numbers)");
  await sandbox.destroy();
  return { error, result: after.result };
}
