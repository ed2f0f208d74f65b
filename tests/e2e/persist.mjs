// Sessions that the browser keeps (`persist`), in real pages that are reloaded, closed and killed.
//   node tests/e2e/persist.mjs --browser chromium|firefox [--rounds 100]   tabs that are closed at random moments
import { parseArgs } from "node:util";
import { openBrowser, Score } from "./harness.mjs";
import { keptLogs } from "./kept-logs.mjs";
import { keptRuns } from "./kept-runs.mjs";

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    only: { type: "string", default: "" },
    rounds: { type: "string", default: "4" },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
const score = new Score(values.only);
const { page: openPage, uncaught, close } = await openBrowser(name);

/** @typedef {import("../../pkg/sandglass.js").Sandbox} Sandbox */
/** @typedef {Awaited<ReturnType<typeof openPage>>} Page */

/**
 * Runs code in the page, which has `createSandbox` and the rest of the package as `sandglass`, and a sandbox in `window.box`.
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

/** Opens the session in the page. Returns the error's code, if it rejects. @param {Page} page @param {unknown} persist @param {object} [options] */
const open = (page, persist, options = {}) =>
  run(
    page,
    async ({ createSandbox }, [persist, options]) => {
      try {
        const { onceFree } = await import(/** @type {any} */ ("/tests/e2e/tools.js"));
        const { isInUse, ...rest } = options;
        if (rest.onLLMQuery) rest.onLLMQuery = async () => "an answer";
        const seen = /** @type {any[]} */ ([]);
        Object.assign(window, { seen });
        const make = () => createSandbox({ persist, onProgress: (/** @type {any} */ it) => seen.push(it), ...rest });
        const sandbox = await (isInUse ? make() : onceFree(make));
        Object.assign(window, { box: sandbox });
        return undefined;
      } catch (error) {
        return `${/** @type {any} */ (error).code}: ${/** @type {any} */ (error).message}`;
      }
    },
    [persist, options],
  );

/** Runs cells one after the other. Returns the last result, or the error. @param {Page} page @param {string[]} cells */
const cells = (page, ...cells) =>
  run(
    page,
    async (_, cells) => {
      const { box } = /** @type {{ box: Sandbox }} */ (/** @type {unknown} */ (window));
      let last;
      for (const cell of cells) last = await box.execute(cell);
      return { result: last?.result, error: last?.error, state: last?.state, id: last?.id, stdout: last?.stdout };
    },
    cells,
  );

/** Calls a method of the sandbox. Returns its result, or the error's code. @param {Page} page @param {string} method @param {unknown[]} given */
const call = (page, method, ...given) =>
  run(
    page,
    async (_, [method, given]) => {
      const { box } = /** @type {any} */ (window);
      try {
        return await box[method](...given);
      } catch (error) {
        return /** @type {any} */ (error).code;
      }
    },
    [method, given],
  );

/** @param {string[]} problems @param {string} what @param {unknown} found @param {unknown} wanted */
function expect(problems, what, found, wanted) {
  const [is, should] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (is !== should) problems.push(`${what}: ${is}, not ${should}`);
}

const GENERATOR = [
  "import random; random.seed(7)\ndef count():\n    at = 0\n    while True:\n        at += 1\n        yield at",
  "it = count(); next(it); next(it)\nbefore = [random.random() for _ in range(3)]\nopen('note.txt', 'w').write('kept')",
];

try {
  await score.test("a reload loses nothing", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    expect(problems, "opening", await open(page, "reload"), undefined);
    await call(page, "initialize", { docs: ["a", "b"] });
    await cells(page, ...GENERATOR);
    expect(problems, "the checkpoint", await call(page, "checkpoint"), 2);
    const expected = (await cells(page, "[random.random(), next(it)]")).result;
    await call(page, "undo");
    await call(page, "checkpoint");
    await page.reload();
    expect(problems, "opening again", await open(page, "reload"), undefined);
    const history = /** @type {any[]} */ (await call(page, "history"));
    const present = history.find(({ current }) => current);
    expect(problems, "the present state", present?.execution, 2);
    expect(problems, "its time", typeof present?.keptAt, "number");
    const after = await cells(page, "[random.random(), next(it)]");
    expect(problems, "random numbers and a generator", after.result, expected);
    expect(problems, "the state", after.state, { status: "kept" });
    const more = await cells(page, "(context['docs'], open('note.txt').read(), len(before))");
    expect(problems, "context and a file", more.result, "(['a', 'b'], 'kept', 3)");
    await page.close();
    return problems;
  });

  await score.test("undo and restore go back over a reload", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "history");
    await call(page, "initialize", null);
    for (const at of [1, 2, 3]) {
      await cells(page, `x = ${at}`);
      await call(page, "checkpoint");
    }
    await page.reload();
    await open(page, "history");
    expect(problems, "undo", await call(page, "undo"), 2);
    expect(problems, "x then", (await cells(page, "x")).result, "2");
    expect(problems, "restore", await call(page, "restore", 1), 1);
    expect(problems, "x before", (await cells(page, "x")).result, "1");
    await call(page, "checkpoint");
    await page.reload();
    await open(page, "history");
    expect(problems, "x after another reload", (await cells(page, "x")).result, "1");
    await page.close();
    return problems;
  });

  await score.test("the page's functions and limits are those of the new page", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "functions");
    await call(page, "initialize", null);
    await cells(page, "x = 5");
    await call(page, "checkpoint");
    await page.reload();
    await open(page, "functions", { onLLMQuery: true, maxOutputLength: 20 });
    expect(problems, "a call", (await cells(page, "llm_query('?') + str(x)")).result, "'an answer5'");
    expect(problems, "the output", (await cells(page, "print('0123456789' * 3)")).stdout?.includes("omitted"), true);
    // A guest that takes over has them as well.
    await cells(page, "import ctypes; ctypes.string_at(0, 1 << 30)");
    expect(problems, "a call after a crash", (await cells(page, "llm_query('?')")).result, "'an answer'");
    await page.close();
    return problems;
  });

  await score.test("one sandbox has a session at a time", async () => {
    const problems = /** @type {string[]} */ ([]);
    const [first, second] = [await openPage(), await openPage()];
    await open(first, "one");
    const refused = String(await open(second, "one", { isInUse: true }));
    if (!refused.startsWith("persist_in_use")) problems.push(`the second tab: ${refused}`);
    expect(
      problems,
      "deleting it",
      await run(second, ({ deletePersisted }) =>
        deletePersisted("one").catch((/** @type {any} */ error) => error.code),
      ),
      "persist_in_use",
    );
    await call(first, "destroy");
    expect(problems, "after destroy", await open(second, "one"), undefined);
    await first.close();
    await second.close();
    return problems;
  });

  await score.test("a tab that is closed at once loses no state that was kept", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "closed");
    await call(page, "initialize", null);
    await cells(page, "x = [1]", "x.append(2)");
    await call(page, "checkpoint");
    await run(page, () => void (/** @type {any} */ (window).box.execute("while True: pass")));
    await page.close();
    const next = await openPage();
    expect(problems, "opening", await open(next, "closed"), undefined);
    expect(problems, "x", (await cells(next, "x")).result, "[1, 2]");
    await next.close();
    return problems;
  });

  await score.test(
    "tabs that are closed at random moments lose nothing that was kept",
    async () => {
      const problems = /** @type {string[]} */ ([]);
      let acknowledged = 0;
      for (let round = 0; round < Number(values.rounds) && problems.length === 0; round++) {
        const page = await openPage();
        await page.exposeFunction(
          "acknowledge",
          (/** @type {number} */ count) => (acknowledged = Math.max(acknowledged, count)),
        );
        expect(problems, `opening in round ${round}`, await open(page, "random"), undefined);
        if (round === 0) await call(page, "initialize", null);
        if (round === 0) {
          await cells(page, "done, effects = [], iter(range(10 ** 9))");
          await call(page, "checkpoint");
        } else {
          const { result, state } = await cells(page, "(len(done), done == list(range(len(done))))");
          const [, count, isWhole] = /^\((\d+), (\w+)\)$/.exec(String(result)) ?? [];
          if (isWhole !== "True" || Number(count) < acknowledged)
            problems.push(`round ${round}: ${result} of ${acknowledged}`);
          expect(problems, "the state", state, { status: "kept" });
        }
        await run(page, () => {
          const { box, acknowledge } = /** @type {any} */ (window);
          void (async () => {
            for (;;) {
              const { result } = await box.execute("done.append(next(effects)); len(done)");
              if (Math.random() < 0.3) await box.checkpoint().then(() => acknowledge(Number(result)));
            }
          })();
        });
        // The moment is random on purpose: any is right.
        await new Promise((resolve) => setTimeout(resolve, 50 + Math.random() * 400));
        await page.close();
      }
      return problems;
    },
    3_600_000,
  );

  await score.test("sessions are listed and removed", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "listed");
    await call(page, "initialize", "the context");
    await cells(page, "x = 1");
    await call(page, "checkpoint");
    await call(page, "destroy");
    const listed = await run(page, ({ listPersisted }) => listPersisted());
    const entry = listed.find((/** @type {any} */ it) => it.name === "listed");
    expect(problems, "its execution", entry?.execution, 1);
    if (!(entry?.bytes > 1000 && entry.savedAt > 1.6e12)) problems.push(JSON.stringify(entry));
    await run(page, ({ deletePersisted }) => deletePersisted("listed"));
    const left = await run(page, async ({ listPersisted }) => {
      const bodies = await new Promise((resolve) => {
        const request = indexedDB.open("sandglass");
        request.onsuccess = () => {
          const keys = request.result.transaction("bodies").objectStore("bodies").getAllKeys();
          keys.onsuccess = () => {
            request.result.close();
            resolve(keys.result.filter((key) => /** @type {any} */ (key)[0] === "listed").length);
          };
        };
      });
      return [(await listPersisted()).some((/** @type {any} */ it) => it.name === "listed"), bodies];
    });
    expect(problems, "what is left of it", left, [false, 0]);
    await open(page, "listed");
    expect(problems, "a new session of that name", await call(page, "execute", "x"), "not_initialized");
    await page.close();
    return problems;
  });

  await score.test("with a key, nothing can be read without it", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const openWith = (/** @type {number} */ seed, /** @type {string} */ cell) =>
      run(
        page,
        async ({ createSandbox }, [seed, cell]) => {
          const raw = new Uint8Array(32).fill(seed);
          const key = await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]);
          try {
            const sandbox = await createSandbox({ persist: { name: "sealed", key } });
            await sandbox.initialize("tell nobody \ud800").catch(() => {});
            const { result } = await sandbox.execute(cell);
            await sandbox.checkpoint();
            await sandbox.destroy();
            return result;
          } catch (error) {
            return `${/** @type {any} */ (error).code}: ${/** @type {any} */ (error).message}`;
          }
        },
        [seed, cell],
      );
    expect(problems, "first", await openWith(1, "secret = 'the ' + 'words of a secret'; len(secret)"), "21");
    expect(problems, "again", await openWith(1, "secret[4:9]"), "'words'");
    const other = String(await openWith(2, "secret"));
    if (!/^persist_failed: .*another one/.test(other)) problems.push(`another key: ${other}`);
    const without = String(await open(page, "sealed"));
    if (!/^persist_failed: .*encrypted/.test(without)) problems.push(`no key: ${without}`);
    const found = await run(page, async () => {
      const request = indexedDB.open("sandglass");
      await new Promise((resolve) => (request.onsuccess = resolve));
      const { result: database } = request;
      const bodies = database
        .transaction("bodies")
        .objectStore("bodies")
        .getAll(IDBKeyRange.bound(["sealed", 0], ["sealed", Infinity]));
      await new Promise((resolve) => (bodies.onsuccess = resolve));
      const get = database.transaction("sessions").objectStore("sessions").get("sealed");
      await new Promise((resolve) => (get.onsuccess = resolve));
      database.close();
      const values = [...bodies.result, get.result.description];
      const texts = values.map(({ iv, data }) => iv.length === 12 && new TextDecoder("latin1").decode(data));
      const tells = (/** @type {string} */ secret) => {
        const wide = [...secret].join("\0");
        return texts.some((text) => text === false || text.includes(secret) || text.includes(wide));
      };
      return [values.length > 1, tells("words of a secret") || tells("tell nobody") || tells("secret[4:9]")];
    });
    expect(problems, "bodies, and whether one tells the secret", found, [true, false]);
    await page.close();
    return problems;
  });

  await score.test("a state of another release is told as lost, and its context comes back", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "release");
    await call(page, "initialize", "the context");
    await cells(page, "x = 1");
    await call(page, "checkpoint");
    await call(page, "destroy");
    await run(page, async () => {
      const request = indexedDB.open("sandglass");
      await new Promise((resolve) => (request.onsuccess = resolve));
      const transaction = request.result.transaction("sessions", "readwrite");
      const store = transaction.objectStore("sessions");
      const get = store.get("release");
      get.onsuccess = () => store.put({ ...get.result, build: "another" }, "release");
      await new Promise((resolve) => (transaction.oncomplete = resolve));
      request.result.close();
    });
    expect(problems, "opening", await open(page, "release"), undefined);
    const { result, state, id } = await cells(page, "context");
    expect(problems, "the context", result, "'the context'");
    expect(problems, "the number goes on", id, 2);
    expect(problems, "the status", state?.status, "lost");
    expect(
      problems,
      "the lost names",
      state?.lost?.map(({ name }) => name),
      ["x"],
    );
    await page.close();
    return problems;
  });

  await score.test("a damaged body is refused, and stays", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "damaged");
    await call(page, "initialize", null);
    await cells(page, "x = 1");
    await call(page, "checkpoint");
    await call(page, "destroy");
    const damage = (/** @type {string} */ kind) =>
      run(
        page,
        async (_, kind) => {
          const request = indexedDB.open("sandglass");
          await new Promise((resolve) => (request.onsuccess = resolve));
          const range = IDBKeyRange.bound(["damaged", 0], ["damaged", Infinity]);
          const read = request.result.transaction("bodies").objectStore("bodies");
          const [keys, values] = [read.getAllKeys(range), read.getAll(range)];
          await new Promise((resolve) => (values.onsuccess = resolve));
          const damaged = await Promise.all(
            values.result.map(async (value) => {
              if (!value.blob) return value;
              const bytes = new Uint8Array(await value.blob.arrayBuffer());
              if (kind === "cut") return { ...value, blob: new Blob([bytes.subarray(0, bytes.length / 2)]) };
              bytes.set([1 ^ Number(bytes.at(-9000))], bytes.length - 9000);
              return { ...value, blob: new Blob([bytes]) };
            }),
          );
          const transaction = request.result.transaction("bodies", "readwrite");
          const store = transaction.objectStore("bodies");
          if (kind === "missing") store.delete(range);
          else keys.result.forEach((key, index) => store.put(damaged[index], key));
          await new Promise((resolve) => (transaction.oncomplete = resolve));
          request.result.close();
        },
        kind,
      );
    for (const kind of ["flipped", "cut"]) {
      await damage(kind);
      const refused = String(await open(page, "damaged"));
      if (!/^persist_failed: .*damaged.*stays as it is/.test(refused)) problems.push(`a body, ${kind}: ${refused}`);
    }
    await damage("missing");
    const missing = String(await open(page, "damaged"));
    if (!/^persist_failed: .*cannot be read .*missing/.test(missing)) problems.push(`a body that is gone: ${missing}`);
    await page.close();
    return problems;
  });

  await score.test("only what has changed is written", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "changes");
    const sizes = await run(page, async () => {
      const { box } = /** @type {any} */ (window);
      const put = IDBObjectStore.prototype.put;
      let bytes = 0;
      IDBObjectStore.prototype.put = function (value, key) {
        if (value?.blob) bytes += value.blob.size;
        else if (value instanceof Uint8Array || typeof value === "string") bytes += value.length;
        return put.call(this, value, key);
      };
      const rounds = [];
      const step = async (/** @type {() => Promise<unknown>} */ work) => {
        bytes = 0;
        await work();
        await box.checkpoint();
        rounds.push(bytes);
      };
      await step(() => box.initialize("x".repeat(5_000_000)));
      await step(() => box.execute("data = bytes(range(256)) * 40_000"));
      await step(() => box.execute("small = 1"));
      IDBObjectStore.prototype.put = put;
      return rounds;
    });
    const [context = 0, data = 0, small = 0] = sizes;
    if (!(context > 5e6 && data > 10e6 && small < 3e6)) problems.push(`bytes written: ${sizes.join(", ")}`);
    await page.close();
    return problems;
  });

  await score.test("options that cannot be are refused", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    for (const [persist, options] of /** @type {[unknown, object][]} */ ([
      ["", {}],
      [{ name: "x", key: "secret" }, {}],
      [{ name: "x", salt: 1 }, {}],
      [7, {}],
      ["x".repeat(201), {}],
      ["x", { checkpoints: "off" }],
      ["x", { backend: { url: "http://127.0.0.1:1" } }],
    ])) {
      const refused = String(await open(page, persist, options));
      if (!refused.startsWith("invalid_option: persist")) problems.push(`${JSON.stringify(persist)}: ${refused}`);
    }
    await open(page, "profile");
    await call(page, "initialize", null);
    await call(page, "checkpoint");
    await call(page, "destroy");
    const other = String(await open(page, "profile", { profile: "dspy" }));
    if (!other.startsWith("invalid_option: profile")) problems.push(`another profile: ${other}`);
    await page.close();
    return problems;
  });

  await score.test("a failed start gives the session up, and a failed write is told and tried again", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const failed = String(await open(page, "failing", { bootTimeout: 1 }));
    if (!failed.startsWith("boot_failed")) problems.push(`a start without time: ${failed}`);
    expect(problems, "the next start", await open(page, "failing"), undefined);
    await call(page, "initialize", null);
    await call(page, "checkpoint");
    const told = await run(page, async () => {
      const { box, seen } = /** @type {any} */ (window);
      const put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (value, key) {
        if (value?.blob) throw new DOMException("there is no room", "QuotaExceededError");
        return put.call(this, value, key);
      };
      await box.execute("x = 1");
      const refused = await box.checkpoint().catch((/** @type {any} */ error) => error.code);
      const unkept = seen.filter((/** @type {any} */ it) => it.stage === "unkept").at(-1);
      const [newest] = box.history();
      IDBObjectStore.prototype.put = put;
      const again = await box.checkpoint();
      const later = box.history()[0].keptAt;
      return [refused, unkept?.execution, /no room/.test(unkept?.reason), newest.keptAt, again, typeof later];
    });
    expect(problems, "what was told", told, ["persist_failed", 1, true, null, 1, "number"]);
    await page.reload();
    await open(page, "failing");
    expect(problems, "x after a reload", (await cells(page, "x")).result, "1");
    await page.close();
    return problems;
  });
  await keptRuns(score, openPage, expect);
  if (name === "chromium") await keptLogs(score, expect);
  await score.test("no page has complained", () => uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
}
score.end();
