// Executions of an earlier page that are replayed (`replay`), and journals of ended executions in the browser's store. A part of journal.mjs.

/** @typedef {import("./harness.mjs").Score} Score */
/** @typedef {Awaited<ReturnType<Awaited<ReturnType<typeof import("./harness.mjs").openBrowser>>["page"]>>} Page */
/**
 * Functions of journal.mjs.
 * @typedef {object} Tools
 * @property {() => Promise<Page>} openPage
 * @property {(page: Page, code: (sandglass: any, argument: any) => any, argument?: unknown) => Promise<any>} run
 * @property {(page: Page, name: string, answers?: Record<string, unknown>, options?: object) => Promise<any>} open
 * @property {(page: Page, method: string, ...given: unknown[]) => Promise<any>} call
 * @property {(page: Page, code: string, question: string) => Promise<any>} begin
 * @property {(page: Page) => Promise<[string, unknown][]>} calls
 * @property {(problems: string[], what: string, found: unknown, wanted: unknown) => void} expect
 * @property {string} cell  looks at the world, asks "one" and "two", and looks again
 */

/** The fields of an execution that are the same in each run. */
const SAME = ["stdout", "stderr", "result", "outcome", "hostCalls", "error", "id", "code", "usage", "files"];

/** @param {Score} score @param {Tools} tools */
export async function replays(score, { openPage, run, open, call, begin, calls, expect, cell }) {
  /** Calls a function for each body of a session in the store: its key, its value, and the store. @param {Page} page @param {string} name @param {string} change */
  const inStore = (page, name, change) =>
    run(
      page,
      async (_, [name, change]) => {
        const request = indexedDB.open("sandglass");
        await new Promise((resolve) => (request.onsuccess = resolve));
        const transaction = request.result.transaction(["sessions", "bodies"], "readwrite");
        const [sessions, bodies] = [transaction.objectStore("sessions"), transaction.objectStore("bodies")];
        const range = IDBKeyRange.bound([name, -1], [name, Infinity]);
        const [keys, values, entry] = [bodies.getAllKeys(range), bodies.getAll(range), sessions.get(name)];
        let journals = 0;
        entry.onsuccess = () => {
          if (change === "release") sessions.put({ ...entry.result, build: "another" }, name);
          if (change === "strip") {
            const { ended, ...rest } = JSON.parse(entry.result.description);
            sessions.put({ ...entry.result, description: JSON.stringify(rest) }, name);
          }
          keys.result.forEach((key, index) => {
            const { journal } = values.result[index] ?? {};
            if (!journal) return;
            journals += 1;
            if (change === "strip") bodies.delete(key);
            if (change !== "damage") return;
            const bytes = new Uint8Array(journal.bytes ?? journal.data);
            bytes[bytes.length >> 1] ^= 1;
            bodies.put({ journal: journal.bytes ? { ...journal, bytes } : { ...journal, data: bytes.buffer } }, key);
          });
        };
        await new Promise((resolve) => (transaction.oncomplete = resolve));
        request.result.close();
        return journals;
      },
      [name, change],
    );

  for (const [kind, seed] of /** @type {const} */ ([
    ["plain", 0],
    ["sealed", 7],
  ])) {
    await score.test(
      `an execution of an earlier page is replayed bit by bit, and with another answer: ${kind}`,
      async () => {
        const problems = /** @type {string[]} */ ([]);
        const page = await openPage();
        const name = `earlier ${kind}`;
        const answers = { one: "1", two: "zwei ü" };
        expect(problems, "opening", await open(page, name, answers, { seed }), undefined);
        await call(page, "initialize", { greeting: "hello" });
        for (const code of ["import random\nx = [random.random()]", "x.append(random.random())", "x.append(1)"])
          await call(page, "execute", code);
        const first = await call(page, "execute", `${cell.trim()}, x, random.random()`);
        expect(problems, "the first run", [first.outcome, first.hostCalls], ["ok", 2]);
        const branch = await call(page, "execute", "out = ask('two') if ask('one') != '5' else ask('other')\nout");
        const plain = await call(page, "execute", "x = 'later', random.random()\nx");
        await call(page, "checkpoint");
        const made = (await calls(page)).length;

        /** @param {string} when */
        const check = async (when) => {
          for (const its of [first, branch, plain]) {
            const again = await call(page, "replay", its.id);
            for (const field of SAME)
              expect(problems, `${when}: ${field} of ${its.id}`, again.execution?.[field], its[field]);
            if (!again.execution) problems.push(`${when}: ${again}`);
          }
          const other = await call(page, "replay", branch.id, { answers: { 2: "otherwise" } });
          expect(problems, `${when}: another answer`, other.execution?.result, "'otherwise'");
          const way = await call(page, "replay", branch.id, { answers: { 1: "5" } });
          if (!/ask\("other"\).*ask\("two"\)/.test(way.difference))
            problems.push(`${when}: the difference: ${JSON.stringify(way)}`);
          expect(problems, `${when}: nobody was asked`, (await calls(page)).length, made);
        };
        await check("this page");
        await page.reload();
        // A page with other functions: the code of the earlier page had those of its time.
        expect(problems, "opening", await open(page, name, {}, { seed, hostFunctions: {} }), undefined);
        await check("the next page");
        const last = await call(page, "execute", "x");
        expect(problems, "the sandbox itself", [last.id, last.result], [plain.id + 1, plain.result]);
        await call(page, "checkpoint");
        await page.reload();
        expect(problems, "opening", await open(page, name, {}, { seed }), undefined);
        await check("the page after that");
        await page.close();
        return problems;
      },
    );
  }

  await score.test("an execution that a later page has resumed is replayed by a page after that", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "resumed", { one: "1" });
    await call(page, "initialize", { greeting: "hello" });
    await call(page, "execute", "x = 1");
    expect(problems, "waiting", await begin(page, cell, "two"), undefined);
    await page.reload();
    await open(page, "resumed", { two: "2" });
    const ended = await call(page, "resume");
    expect(problems, "the outcome", ended.outcome, "ok");
    await call(page, "checkpoint");
    await page.reload();
    await open(page, "resumed");
    expect(problems, "pending", await call(page, "pending"), null);
    const again = await call(page, "replay", ended.id);
    for (const field of SAME) expect(problems, field, again.execution?.[field], ended[field]);
    await page.close();
    return problems;
  });

  await score.test("what cannot be replayed by a later page says why", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "why", {}, { gracePeriod: 30_000 });
    await call(page, "initialize", null);
    await call(page, "execute", "x = 1");
    const stopped = await call(page, "execute", "while True: pass", { timeout: 50 });
    const scripted = await call(page, "execute", "import js\njs.Date.now() > 0");
    await call(page, "checkpoint");
    const check = async (/** @type {[number, RegExp][]} */ ...wanted) => {
      for (const [execution, why] of wanted) {
        const said = String(await call(page, "replay", execution));
        if (!said.startsWith(`no_checkpoint: execution ${execution} cannot be replayed: `) || !why.test(said))
          problems.push(`${execution}: ${said}`);
      }
    };
    const always = /** @type {[number, RegExp][]} */ ([
      [stopped.id, /it was stopped/],
      [scripted.id, /JavaScript/],
      [99, /there is no journal of it/],
    ]);
    await check(...always);
    await page.reload();
    await open(page, "why");
    await check(...always);
    await call(page, "destroy");
    await inStore(page, "why", "release");
    expect(problems, "opening", await open(page, "why"), undefined);
    await check([1, /another release of sandglass/], ...always);
    await page.close();
    return problems;
  });

  for (const [kind, seed] of /** @type {const} */ ([
    ["plain", 0],
    ["sealed", 7],
  ])) {
    await score.test(`a damaged journal of an ended execution costs only itself: ${kind}`, async () => {
      const problems = /** @type {string[]} */ ([]);
      const page = await openPage();
      const name = `ended ${kind}`;
      await open(page, name, { one: "1" }, { seed });
      await call(page, "initialize", null);
      await call(page, "execute", "x = ask('one')");
      await call(page, "checkpoint");
      await call(page, "destroy");
      expect(problems, "journals", await inStore(page, name, "damage"), 1);
      expect(problems, "opening", await open(page, name, {}, { seed }), undefined);
      const said = String(await call(page, "replay", 1));
      if (!/^no_checkpoint: execution 1 .*its journal is damaged/.test(said)) problems.push(said);
      const next = await call(page, "execute", "x");
      expect(problems, "the state", [next.result, next.state], ["'1'", { status: "kept" }]);
      await page.close();
      return problems;
    });
  }

  await score.test("a session that has no journals of ended executions opens as before", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "old", { one: "1" });
    await call(page, "initialize", null);
    await call(page, "execute", "x = ask('one')");
    await call(page, "checkpoint");
    await call(page, "destroy");
    expect(problems, "journals", await inStore(page, "old", "strip"), 1);
    expect(problems, "opening", await open(page, "old"), undefined);
    const said = String(await call(page, "replay", 1));
    if (!/^no_checkpoint: execution 1 .*there is no journal/.test(said)) problems.push(said);
    const next = await call(page, "execute", "x");
    expect(problems, "the state", [next.result, next.state], ["'1'", { status: "kept" }]);
    await call(page, "checkpoint");
    const again = await call(page, "replay", next.id);
    expect(problems, "a new execution", again.execution?.result, "'1'");
    await page.close();
    return problems;
  });

  await score.test("journals of ended executions are bounded, and go with their session", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "bounded", { one: "1" });
    await call(page, "initialize", null);
    for (let count = 0; count < 34; count++) await call(page, "execute", count % 8 ? "x = 1" : "x = ask('one')");
    await call(page, "checkpoint");
    expect(problems, "journals", await inStore(page, "bounded", ""), 32);
    const gone = String(await call(page, "replay", 1));
    if (!/^no_checkpoint: execution 1 .*there is no journal/.test(gone)) problems.push(gone);
    await call(page, "destroy");
    await run(page, ({ deletePersisted }) => deletePersisted("bounded"));
    const left = await run(page, async () => {
      const request = indexedDB.open("sandglass");
      await new Promise((resolve) => (request.onsuccess = resolve));
      const keys = request.result.transaction("bodies").objectStore("bodies").getAllKeys();
      await new Promise((resolve) => (keys.onsuccess = resolve));
      request.result.close();
      return keys.result.filter((key) => /** @type {any} */ (key)[0] === "bounded").length;
    });
    expect(problems, "what is left", left, 0);
    await page.close();
    return problems;
  });

  await score.test("a state is kept without its journals where the browser has no room for them", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await open(page, "room", { one: "1" });
    await call(page, "initialize", null);
    const kept = await run(page, async () => {
      const { box, seen } = /** @type {any} */ (window);
      const put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (value, key) {
        if (value?.journal) throw new DOMException("there is no room", "QuotaExceededError");
        return put.call(this, value, key);
      };
      await box.execute("x = ask('one')");
      const kept = await box.checkpoint();
      IDBObjectStore.prototype.put = put;
      return [kept, seen.filter((/** @type {any} */ it) => it.stage === "unkept").length];
    });
    expect(problems, "the execution that is kept, and failures", kept, [1, 0]);
    await page.reload();
    await open(page, "room");
    const said = String(await call(page, "replay", 1));
    if (!/^no_checkpoint: execution 1 .*the browser could not write its journal/.test(said)) problems.push(said);
    expect(problems, "x", (await call(page, "execute", "x")).result, "'1'");
    await page.close();
    return problems;
  });
}
