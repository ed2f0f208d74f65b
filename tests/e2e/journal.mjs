// Executions that outlive the page (`persist: { journal: true }`): resumed after reloads and closed tabs, and replayed.
//   node tests/e2e/journal.mjs --browser chromium|firefox [--shared] [--rounds 100]   tabs that are closed at random moments
import { parseArgs } from "node:util";
import { openBrowser, Score } from "./harness.mjs";
import { replays } from "./replays.mjs";

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    only: { type: "string", default: "" },
    shared: { type: "boolean", default: false },
    rounds: { type: "string", default: "6" },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
const score = new Score(values.only);
const { page: openPage, uncaught, close } = await openBrowser(name, { shared: values.shared });

/** @typedef {Awaited<ReturnType<typeof openPage>>} Page */

/**
 * Runs code in the page. `window.box` is its sandbox.
 * @template T
 * @param {Page} page @param {(sandglass: any, argument: any) => T | Promise<T>} code @param {unknown} [argument]
 * @returns {Promise<Awaited<T>>}
 */
async function run(page, code, argument) {
  const text = `(async () => {
    const sandglass = await import("/pyodide-glue/index.js");
    return (${code})(sandglass, ${JSON.stringify(argument) ?? "undefined"});
  })()`;
  return /** @type {any} */ (await page.evaluate(text));
}

/**
 * Opens the session `name`. Its function `ask(question)` notes each call in the origin's storage (`calls()`), and answers it as `answers` says. A
 * question without an answer waits for ever. Returns the error, if the sandbox cannot be made.
 * @param {Page} page @param {string} name @param {Record<string, unknown>} [answers] @param {object} [options]
 */
const open = (page, name, answers = {}, options = {}) =>
  run(
    page,
    async ({ createSandbox }, [name, answers, options]) => {
      const { seed, ...rest } = options;
      const note = (/** @type {unknown} */ call) => {
        const calls = JSON.parse(localStorage.getItem(`calls of ${name}`) ?? "[]");
        localStorage.setItem(`calls of ${name}`, JSON.stringify([...calls, call]));
      };
      const answer = (/** @type {string} */ question) =>
        new Promise((resolve, reject) => {
          if (!(question in answers)) return;
          const its = answers[question];
          if (its?.error) reject(new Error(its.error));
          else setTimeout(() => resolve(its), 5);
        });
      try {
        const seen = /** @type {any[]} */ ([]);
        Object.assign(window, { seen, name });
        const raw = new Uint8Array(32).fill(seed ?? 0);
        const key = !seed
          ? undefined
          : await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]);
        const { onceFree } = await import(/** @type {any} */ ("/tests/e2e/tools.js"));
        const settings = {
          persist: { name, journal: true, key },
          onProgress: (/** @type {any} */ it) => seen.push(it),
          hostFunctions: {
            ask: {
              call(/** @type {string} */ question) {
                note([/** @type {any} */ (this).id, question]);
                return answer(`${question}`);
              },
            },
          },
          onLLMQuery: (/** @type {string} */ prompt) => {
            note([undefined, prompt]);
            return answer(prompt);
          },
          ...rest,
        };
        const box = await onceFree(() => createSandbox(settings));
        Object.assign(window, { box });
        return undefined;
      } catch (error) {
        return `${/** @type {any} */ (error).code}: ${/** @type {any} */ (error).message}`;
      }
    },
    [name, answers, options],
  );

/** Calls a method of the sandbox. Returns its result, or the error. @param {Page} page @param {string} method @param {unknown[]} given */
const call = (page, method, ...given) =>
  run(
    page,
    async (_, [method, given]) => {
      try {
        return await /** @type {any} */ (window).box[method](...given);
      } catch (error) {
        return `${/** @type {any} */ (error).code}: ${/** @type {any} */ (error).message}`;
      }
    },
    [method, given],
  );

/** Begins a cell that will wait, and resolves when `ask` was asked the question. @param {Page} page @param {string} code @param {string} question */
const begin = (page, code, question) =>
  run(
    page,
    async (_, [code, question]) => {
      const { box, name } = /** @type {any} */ (window);
      let ended;
      box.execute(code).then(
        (/** @type {any} */ it) => (ended = it),
        () => {}, // the sandbox may be destroyed meanwhile
      );
      for (let tries = 0; tries < 12_000; tries++) {
        const calls = JSON.parse(localStorage.getItem(`calls of ${name}`) ?? "[]");
        if (calls.some((/** @type {any} */ call) => call[1] === question)) return undefined;
        if (ended) return `it ended: ${JSON.stringify(ended)}`;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return `"${question}" was never asked`;
    },
    [code, question],
  );

/** The calls of `ask` so far: the names of the calls, and the questions. @param {Page} page @returns {Promise<[string, unknown][]>} */
const calls = (page) =>
  run(page, () => JSON.parse(localStorage.getItem(`calls of ${/** @type {any} */ (window).name}`) ?? "[]"));

/** Begins a session with a context and these cells, one after the other. @param {Page} page @param {string} name @param {Record<string, unknown>} answers @param {string[]} cells */
async function start(page, name, answers, ...cells) {
  const failed = await open(page, name, answers);
  if (failed) throw new Error(failed);
  await call(page, "initialize", { greeting: "hello" });
  await run(
    page,
    async (_, cells) => {
      for (const cell of cells) await /** @type {any} */ (window).box.execute(cell);
    },
    cells,
  );
}

/** @param {string[]} problems @param {string} what @param {unknown} found @param {unknown} wanted */
function expect(problems, what, found, wanted) {
  const [is, should] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (is !== should) problems.push(`${what}: ${is}, not ${should}`);
}

/** Changes the parts of a session's journal in the store. `change` gets the store, and the keys and values. @param {Page} page @param {string} name @param {string} how */
const damage = (page, name, how) =>
  run(
    page,
    async (_, [name, how]) => {
      const request = indexedDB.open("sandglass");
      await new Promise((resolve) => (request.onsuccess = resolve));
      const transaction = request.result.transaction("journals", "readwrite");
      const store = transaction.objectStore("journals");
      const range = IDBKeyRange.bound([name, -1], [name, Infinity]);
      const [keys, values] = [store.getAllKeys(range), store.getAll(range)];
      values.onsuccess = () => {
        const at = Math.floor(keys.result.length / 2);
        const [key, part] = [keys.result[at], values.result[at]];
        if (how === "cut") store.delete(key);
        else if (typeof part.text === "string") store.put({ ...part, text: part.text.replace(/[a-z]/, "z") }, key);
        else store.put({ ...part, text: values.result[at - 1].text }, key);
      };
      await new Promise((resolve) => (transaction.oncomplete = resolve));
      request.result.close();
      return keys.result.length;
    },
    [name, how],
  );

/** Waits until so many parts of a session's journal are in the store with this text. @param {Page} page @param {string} name @param {string} text @param {number} [parts] */
const written = (page, name, text, parts = 1) =>
  run(
    page,
    async (_, [name, text, parts]) => {
      const request = indexedDB.open("sandglass");
      await new Promise((resolve) => (request.onsuccess = resolve));
      const range = IDBKeyRange.bound([name, -1], [name, Infinity]);
      for (let tries = 0; tries < 12_000; tries++) {
        const all = request.result.transaction("journals").objectStore("journals").getAll(range);
        await new Promise((resolve) => (all.onsuccess = resolve));
        if (all.result.filter((/** @type {any} */ part) => part.text.includes(text)).length >= parts) break;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      request.result.close();
    },
    [name, text, parts],
  );

/** Looks at the world, asks twice, and looks again. */
const CELL = `
import os, random, time
first = (time.time(), time.perf_counter(), random.random(), os.urandom(4).hex())
one = ask('one')
print('one:', one)
with open('note.txt', 'w') as file:
    file.write(one)
second = (time.time(), random.random(), os.urandom(4).hex(), os.stat('note.txt').st_mtime)
two = ask('two')
print('two:', two)
(first, second, one, two, context['greeting'])
`;

try {
  await score.test(
    "a reload in the middle of a call: the execution goes on, and no answered call is made again",
    async () => {
      const problems = /** @type {string[]} */ ([]);
      const page = await openPage();
      await start(page, "reload", { one: "1" }, "x = [1]");
      expect(problems, "nothing pending", await call(page, "pending"), null);
      expect(problems, "waiting", await begin(page, CELL, "two"), undefined);
      // What the world said is told by Python itself, through the arguments of a call.
      await page.reload();
      expect(problems, "opening", await open(page, "reload", { two: "2" }), undefined);
      const pending = await call(page, "pending");
      const [, [id]] = await calls(page);
      expect(problems, "the code", pending?.code, CELL);
      const [waits] = pending?.calls ?? [];
      expect(
        problems,
        "the calls",
        { ...waits, since: typeof waits?.since },
        {
          id,
          name: "ask",
          args: ["two"],
          kwargs: {},
          since: "number",
        },
      );
      for (const [method, given] of /** @type {[string, unknown[]][]} */ ([
        ["execute", ["1"]],
        ["setVariable", ["y", 1]],
        ["undo", []],
        ["fork", []],
      ])) {
        const refused = String(await call(page, method, ...given));
        if (!/^execution_pending: execution 2 .*resume\(\).*discard\(\)/.test(refused))
          problems.push(`${method}: ${refused}`);
      }
      const ended = await call(page, "resume");
      expect(
        problems,
        "the outcome",
        [ended.outcome, ended.id, ended.hostCalls, ended.stdout],
        ["ok", 2, 2, "one: 1\ntwo: 2\n"],
      );
      expect(problems, "the calls", await calls(page), [
        [id.replace(/2$/, "1"), "one"],
        [id, "two"],
        [id, "two"],
      ]);
      expect(problems, "nothing pending any more", await call(page, "pending"), null);
      const { result } = await call(page, "execute", "(x, one, two, open('note.txt').read())");
      expect(problems, "the state", result, "([1], '1', '2', '1')");
      await call(page, "checkpoint");
      await page.reload();
      await open(page, "reload");
      expect(problems, "nothing pending after another reload", await call(page, "pending"), null);
      expect(
        problems,
        "the state then",
        (await call(page, "execute", "(two, first[0] < second[0])")).result,
        "('2', True)",
      );
      await page.close();
      return problems;
    },
  );

  await score.test("clock and chance answer as before", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "world", {}, "import time, random, os, datetime");
    // The arguments of the call tell what the world said. Another value would be another call.
    const code = `
open('f', 'w').write('x')
said = (time.time(), time.monotonic_ns(), str(datetime.datetime.now()), random.SystemRandom().random(),
    os.urandom(8).hex(), os.stat('f').st_mtime_ns, random.Random().random())
ask(repr(said))`;
    await run(page, (_, code) => void (/** @type {any} */ (window).box.execute(code).catch(() => {})), code);
    let asked = await calls(page);
    for (let tries = 0; asked.length === 0 && tries < 12_000; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      asked = await calls(page);
    }
    await page.reload();
    await open(page, "world");
    const [waits] = (await call(page, "pending"))?.calls ?? [];
    const ended = await call(page, "resume", { answers: { [waits?.id]: "fine" } });
    expect(problems, "the outcome", [ended.outcome, ended.result], ["ok", "'fine'"]);
    expect(problems, "calls", (await calls(page)).length, 1);
    const { result } = await call(page, "execute", "repr(said)");
    expect(problems, "what the world said", result?.slice(1, -1).replaceAll("\\'", "'"), asked[0]?.[1]);
    await page.close();
    return problems;
  });

  await score.test("executions before it that were not saved are repeated first", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "steps", {});
    // A busy machine may save between them. Then nothing has to be repeated, and the outcome is the same.
    await run(page, async () => {
      const { box } = /** @type {any} */ (window);
      for (const cell of [
        "import itertools; it = iter(range(9)); n = [next(it)]",
        "n.append(next(it))",
        "n.append(next(it))",
      ])
        await box.execute(cell);
      void box.execute("n.append(ask('go'))");
      for (;;) {
        if (localStorage.getItem("calls of steps")) return;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    });
    for (let visit = 0; visit < 2; visit++) {
      await page.reload();
      expect(problems, "opening", await open(page, "steps", visit ? { go: "on" } : {}), undefined);
      if (visit === 0) await run(page, () => void (/** @type {any} */ (window).box.resume().catch(() => {})));
      if (visit === 0) await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    const ended = await call(page, "resume");
    expect(problems, "the outcome", [ended.outcome, ended.id], ["ok", 4]);
    const { result } = await call(page, "execute", "(n, next(it))");
    expect(problems, "the state", result, "([0, 1, 2, 'on'], 3)");
    await page.close();
    return problems;
  });

  await score.test("an answer that failed fails again, and a sleep is not slept again", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "failed", { bad: { error: "no such thing" } }, "import time");
    const code = `
try:
    ask('bad')
except Exception as error:
    why = str(error)
time.sleep(15)
ask('late')
why`;
    expect(problems, "waiting", await begin(page, code, "late"), undefined);
    await page.reload();
    await open(page, "failed", { late: 1 });
    const begun = Date.now();
    const ended = await call(page, "resume");
    if (Date.now() - begun > 12_000) problems.push(`it took ${Date.now() - begun} ms`);
    expect(problems, "the outcome", [ended.outcome, /no such thing/.test(ended.result)], ["ok", true]);
    expect(
      problems,
      "the calls",
      (await calls(page)).map(([, question]) => question),
      ["bad", "late", "late"],
    );
    await page.close();
    return problems;
  });

  await score.test("of calls at once, only those without an answer are made again", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "batch", { a: "A", c: "C" });
    expect(problems, "waiting", await begin(page, "llm_query_batched(['a', 'b', 'c', 'd'])", "d"), undefined);
    await written(page, "batch", '"type":"answer"', 2);
    await page.reload();
    await open(page, "batch", { b: "B", d: "D" });
    const waits = (await call(page, "pending"))?.calls ?? [];
    expect(
      problems,
      "pending",
      waits.map((/** @type {any} */ one) => one.args),
      [
        ["b", null],
        ["d", null],
      ],
    );
    const ended = await call(page, "resume", { answers: { [waits[1]?.id]: "given" } });
    expect(problems, "the result", ended.result, "['A', 'B', 'C', 'given']");
    expect(
      problems,
      "the calls",
      (await calls(page)).map(([, question]) => question),
      ["a", "b", "c", "d", "b"],
    );
    await page.close();
    return problems;
  });

  await score.test("an approval that the page's end has cut short is asked for again", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const visit = (/** @type {boolean} */ approves) =>
      run(
        page,
        async ({ createSandbox }, approves) => {
          /** @type {(value: unknown) => void} */
          let tell = () => {};
          const asked = new Promise((resolve) => (tell = resolve));
          const sandbox = await createSandbox({
            persist: { name: "approval", journal: true },
            hostFunctions: { pay: { call: (/** @type {number} */ sum) => `paid ${sum}`, approve: true } },
            onApprove: (/** @type {any} */ { id, args }) => {
              tell([id, args]);
              return approves || new Promise(() => {});
            },
          });
          const isPending = (await sandbox.pending()) !== null;
          if (!isPending) await sandbox.initialize(null);
          const ended = isPending ? sandbox.resume() : sandbox.execute("pay(7)");
          return [await asked, approves && (await ended).result];
        },
        approves,
      );
    const [asked] = await visit(false);
    await page.reload();
    expect(problems, "the next day", await visit(true), [asked, "'paid 7'"]);
    expect(problems, "its arguments", asked[1], [7]);
    await page.close();
    return problems;
  });

  await score.test("a pending execution can be given up", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "discarded", {}, "x = 1");
    await begin(page, "x = 2; ask('?')", "?");
    await call(page, "destroy");
    await page.reload();
    await open(page, "discarded");
    const wrong = String(await call(page, "resume", { answers: { 7: 1 } }));
    if (!/^invalid_option: answers: call 7/.test(wrong)) problems.push(`an answer to nothing: ${wrong}`);
    expect(problems, "discard", await call(page, "discard"), undefined);
    expect(problems, "pending", await call(page, "pending"), null);
    const nothing = String(await call(page, "resume"));
    if (!/^invalid_option: resume: no execution is pending/.test(nothing)) problems.push(`resume: ${nothing}`);
    expect(problems, "x", (await call(page, "execute", "x")).result, "1");
    await page.reload();
    await open(page, "discarded");
    expect(problems, "pending later", await call(page, "pending"), null);
    await page.close();
    return problems;
  });

  await score.test("code that goes another way is told, and the state is as before", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "differs", {}, { memoryLimit: 100_000_000 });
    await call(page, "initialize", null);
    await call(page, "execute", "x = 1");
    const code = `
import time
x = 2
try:
    room = len(bytearray(200_000_000)) > 0
except MemoryError:
    room = False
ask('more' if room else 'less')`;
    expect(problems, "waiting", await begin(page, code, "less"), undefined);
    await page.reload();
    expect(problems, "opening", await open(page, "differs", { more: 1 }), undefined);
    for (let tries = 0; tries < 2; tries++) {
      const told = String(await call(page, "resume"));
      if (!/^journal_differs: .*ask\("more"\).*ask\("less"\)/.test(told)) problems.push(`resume: ${told}`);
      expect(problems, "still pending", (await call(page, "pending"))?.execution, 2);
    }
    expect(problems, "the calls", (await calls(page)).length, 1);
    await call(page, "discard");
    const after = await call(page, "execute", "x");
    if (after.result !== "1" || after.state.status !== "kept") problems.push(`after: ${JSON.stringify(after)}`);
    await page.close();
    return problems;
  });

  await score.test("what cannot be noted is named", async () => {
    const problems = /** @type {string[]} */ ([]);
    for (const [kind, code, why] of /** @type {const} */ ([
      ["javascript", "import js\njs.Date.now()\nask('now')", /JavaScript/],
      ["clock", "import time\nfor _ in range(200_000): time.time()\nask('now')", /too often/],
      ["chance", "import os\nos.urandom(2_000_000)\nask('now')", /too often/],
    ])) {
      const page = await openPage();
      await start(page, kind, {}, "x = 1");
      await call(page, "checkpoint");
      expect(problems, "waiting", await begin(page, code, "now"), undefined);
      await page.reload();
      expect(problems, "opening", await open(page, kind), undefined);
      expect(problems, `${kind}, pending`, await call(page, "pending"), null);
      const { result, state } = await call(page, "execute", "x");
      const [lost] = state?.lost ?? [];
      if (result !== "1" || lost?.name !== "execution 2" || !why.test(lost.reason) || state.restoredTo !== 1)
        problems.push(`${kind}: ${result} ${JSON.stringify(state)}`);
      const next = await call(page, "execute", "x");
      expect(problems, "told once", next.state, { status: "kept" });
      await page.close();
    }
    return problems;
  });

  await score.test("an execution that was stopped is not resumed", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "stopped", {}, { gracePeriod: 30_000 });
    await call(page, "initialize", null);
    await call(page, "execute", "x = 1");
    await call(page, "checkpoint");
    const code = `
import time
def again():
    try:
        ask('now')
    except BaseException:
        try:
            time.sleep(0.05)
        except BaseException:
            pass
while True:
    try:
        again()
    except BaseException:
        pass`;
    await begin(page, code, "now");
    await run(page, () => /** @type {any} */ (window).box.interrupt());
    await written(page, "stopped", "it was stopped");
    await page.reload();
    await open(page, "stopped");
    expect(problems, "pending", await call(page, "pending"), null);
    const { state, result } = await call(page, "execute", "x");
    if (result !== "1" || !/stopped/.test(state.lost?.[0]?.reason)) problems.push(`${result} ${JSON.stringify(state)}`);
    await page.close();
    return problems;
  });

  for (const [kind, seed] of /** @type {const} */ ([
    ["plain", 0],
    ["sealed", 7],
  ])) {
    await score.test(`a damaged journal is refused: ${kind}`, async () => {
      const problems = /** @type {string[]} */ ([]);
      const page = await openPage();
      for (const how of ["cut", "forged"]) {
        const name = `${kind} ${how}`;
        await open(page, name, { one: "a secret answer" }, { seed });
        await call(page, "initialize", { greeting: "hello" });
        expect(problems, "waiting", await begin(page, CELL, "two"), undefined);
        await page.reload();
        expect(problems, "opening", await open(page, name, {}, { seed }), undefined);
        expect(problems, "pending", (await call(page, "pending"))?.calls?.length, 1);
        await call(page, "destroy");
        if (seed) {
          const tells = await run(
            page,
            async (_, name) => {
              const request = indexedDB.open("sandglass");
              await new Promise((resolve) => (request.onsuccess = resolve));
              const range = IDBKeyRange.bound([name, -1], [name, Infinity]);
              const all = request.result.transaction("journals").objectStore("journals").getAll(range);
              await new Promise((resolve) => (all.onsuccess = resolve));
              request.result.close();
              const text = (/** @type {any} */ it) =>
                JSON.stringify(it, (_, value) =>
                  value instanceof ArrayBuffer ? String.fromCharCode(...new Uint8Array(value)) : value,
                );
              return all.result.map(text).some((/** @type {string} */ text) => text.includes("secret answer"));
            },
            name,
          );
          expect(problems, "a secret in the journal", tells, false);
        }
        const parts = Number(await damage(page, name, how));
        if (parts < 5) problems.push(`${parts} parts`);
        const refused = String(await open(page, name, {}, { seed }));
        if (!/^persist_failed: .*(damaged|missing)/.test(refused)) problems.push(`${name}: ${refused}`);
      }
      await page.close();
      return problems;
    });
  }

  await score.test("a journal that cannot be written is told, and the execution goes on", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "full", { one: "1" }, "x = 1");
    const ended = await run(page, async () => {
      const { box, seen } = /** @type {any} */ (window);
      const put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (value, key) {
        if (this.name === "journals") throw new DOMException("there is no room", "QuotaExceededError");
        return put.call(this, value, key);
      };
      const { result } = await box.execute("ask('one')");
      IDBObjectStore.prototype.put = put;
      return [
        result,
        seen.some((/** @type {any} */ it) => it.stage === "unkept" && /journal.*no room/.test(it.reason)),
      ];
    });
    expect(problems, "the result, and the news", ended, ["'1'", true]);
    await page.reload();
    await open(page, "full");
    expect(problems, "pending", await call(page, "pending"), null);
    await page.close();
    return problems;
  });

  await score.test("an execution is replayed bit by bit, and with another answer", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await start(page, "replay", { one: "1", two: "2", "other 5": "five" }, "x = 0", "import random");
    const first = await call(page, "execute", `${CELL.trim()}, random.random()`);
    const branch = await call(
      page,
      "execute",
      "x += 1\nif ask('one') == '1':\n    out = ask('two')\nelse:\n    out = ask('other 5')\nout",
    );
    await call(page, "execute", "x = 'later'");
    const made = (await calls(page)).length;
    const again = await call(page, "replay", first.id);
    const same = ["stdout", "stderr", "result", "outcome", "hostCalls", "error", "id", "code", "usage", "files"];
    for (const field of same) expect(problems, field, again.execution?.[field], first[field]);
    expect(problems, "no difference", again.difference, null);
    expect(problems, "nobody was asked", (await calls(page)).length, made);
    const other = await call(page, "replay", branch.id, { answers: { 1: "5" } });
    if (!/ask\("other 5"\).*ask\("two"\)/.test(other.difference))
      problems.push(`the difference: ${JSON.stringify(other)}`);
    if (!/no answer to this call/.test(other.execution?.error)) problems.push(`its error: ${other.execution?.error}`);
    const asked = await call(page, "replay", branch.id, { answers: { 1: "5" }, ask: true });
    expect(problems, "with ask", asked.execution?.result, "'five'");
    const like = await call(page, "replay", branch.id, { answers: { 2: "two, otherwise" } });
    expect(problems, "another answer", [like.execution?.result, like.difference], ["'two, otherwise'", null]);
    expect(problems, "the sandbox itself", (await call(page, "execute", "x")).result, "'later'");
    const unknown = String(await call(page, "replay", 99));
    if (!/^no_checkpoint: execution 99/.test(unknown)) problems.push(`execution 99: ${unknown}`);
    await page.close();
    return problems;
  });

  await replays(score, { openPage, run, open, call, begin, calls, expect, cell: CELL });

  await score.test(
    "tabs that are closed at random moments make no answered call again",
    async () => {
      const problems = /** @type {string[]} */ ([]);
      const code = `
import os, random, time
log = []
for i in range(400):
    log.append((ask(i), time.time(), random.random(), os.urandom(2)))
    assert log[-1][0] == 'answer', log
len(log)`;
      const answers = Object.fromEntries(Array.from({ length: 400 }, (_, at) => [at, "answer"]));
      let visits = 0;
      let highest = -1;
      // On a busy machine, a few pages may all be closed before their cell begins. Then there are more.
      const isOver = (/** @type {number} */ round) => round >= Number(values.rounds) + (visits === 0 ? 60 : 0);
      for (let round = 0; !isOver(round) && problems.length === 0; round++) {
        const page = await openPage();
        expect(problems, `opening in round ${round}`, await open(page, "random", answers), undefined);
        const before = (await calls(page)).length;
        const pending = await call(page, "pending");
        if (round === 0) {
          await call(page, "initialize", null);
          await call(page, "checkpoint"); // the session is there in later rounds, however soon this page is closed
        }
        if (pending) {
          visits += 1;
          await run(page, () => void (/** @type {any} */ (window).box.resume().catch(() => {})));
        } else {
          // The cell has ended, or it has not begun. Either way another one begins.
          highest = -1;
          await run(page, (_, code) => void (/** @type {any} */ (window).box.execute(code).catch(() => {})), code);
        }
        // The moment is random on purpose: any is right.
        await new Promise((resolve) => setTimeout(resolve, 50 + Math.random() * 1200));
        const asked = (await calls(page)).slice(before).map(([, question]) => Number(question));
        await page.close();
        const [first] = asked;
        if (asked.some((question, at) => question !== first + at)) problems.push(`round ${round}: ${asked.join()}`);
        if (pending && first !== undefined && first < highest)
          problems.push(`round ${round}: ${first} again after ${highest}`);
        highest = Math.max(highest, asked.at(-1) ?? -1);
      }
      if (visits === 0) problems.push("no execution was ever pending");
      const page = await openPage();
      await open(page, "random", answers);
      if (await call(page, "pending")) {
        const ended = await call(page, "resume");
        expect(problems, "the end", [ended.outcome, ended.result, ended.error], ["ok", "400", null]);
      }
      await page.close();
      return problems;
    },
    3_600_000,
  );

  await score.test("no page has complained", () => uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
}
score.end();
