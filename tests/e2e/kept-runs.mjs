// Runs of `runRlm` that the browser keeps, in pages that are reloaded in the middle. persist.mjs runs these tests.

/** @typedef {import("puppeteer-core").Page} Page */
/** @typedef {{ asked: string[], run?: any, error?: string }} Seen  the prompts that the model got in this page, and what became of the run */

const TASK = "join the answers";
const CONTEXT = "a context";

/**
 * Begins a run in the page, and waits until it is over or the model hangs. The model writes two turns: the second asks four questions at once.
 * Prompts in `hangs` are never answered.
 * @param {Page} page @param {{ persist: unknown, task?: string, context?: unknown, hangs?: string[], more?: object }} how @returns {Promise<Seen>}
 */
const begin = (page, { persist, task = TASK, context = CONTEXT, hangs = [], more = {} }) =>
  page.evaluate(
    async ({ persist, task, context, hangs, more }) => {
      const { runRlm } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
      const turns = [
        "first = llm_query('first')\nprint(first)",
        "rest = llm_query_batched([f'part {n}' for n in range(4)])\nFINAL(' | '.join([first, *rest]))",
      ];
      const asked = /** @type {string[]} */ ([]);
      const hanging = Promise.withResolvers();
      const open = new Set();
      const model = async (/** @type {any[]} */ messages, /** @type {any} */ { purpose, call }) => {
        const prompt = messages.at(-1).content;
        const what = purpose === "turn" ? `turn ${call}` : prompt;
        asked.push(what);
        if (hangs.includes(what)) {
          open.add(what);
          if (open.size === hangs.length) hanging.resolve(undefined);
          return new Promise(() => {});
        }
        if (purpose === "turn") return `\`\`\`repl\n${turns[call - 1]}\n\`\`\``;
        return { text: `<${prompt}>`, usage: { inputTokens: 10, outputTokens: 5 } };
      };
      try {
        const run = await Promise.race([runRlm({ task, context, model, persist, ...more }), hanging.promise]);
        return { asked, run: run && { ...run, events: undefined } };
      } catch (error) {
        const { code, message } = /** @type {any} */ (error);
        return { asked, error: `${code}: ${message}` };
      }
    },
    { persist, task, context, hangs, more },
  );

/** @param {Page} page @param {unknown} persist @returns {Promise<any>} */
const read = (page, persist) =>
  page.evaluate(async (persist) => {
    const { readPersistedRun } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
    return (await readPersistedRun(persist)) ?? null;
  }, persist);

const ANSWER = "<first> | <part 0> | <part 1> | <part 2> | <part 3>";

/**
 * @param {import("./harness.mjs").Score} score
 * @param {() => Promise<Page>} openPage
 * @param {(problems: string[], what: string, found: unknown, wanted: unknown) => void} expect
 */
export async function keptRuns(score, openPage, expect) {
  await score.test("a run goes on after a reload in the middle of a call, and asks nothing twice", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const first = await begin(page, { persist: "question", hangs: ["part 2"] });
    const all = ["first", "part 0", "part 1", "part 2", "part 3", "turn 1", "turn 2"];
    expect(problems, "asked before", first.asked.toSorted(), all);
    await page.waitForFunction(async () => {
      const { listPersisted } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      const [run] = (await listPersisted()).filter((/** @type {any} */ { name }) => name === "question");
      return run?.execution === 6; // the replies that are kept
    });
    await page.reload();
    expect(problems, "what is kept", await read(page, "question"), { task: TASK, contexts: [CONTEXT], replies: 6 });
    const second = await begin(page, { persist: "question" });
    expect(problems, "asked after", second.asked, ["part 2"]);
    expect(problems, "the answer", second.run?.answer, ANSWER);
    expect(problems, "replies of before", second.run?.kept, { replies: 6 });
    expect(problems, "the budget has all of it", second.run?.usage.calls, 7);
    await page.reload();
    const third = await begin(page, { persist: "question" });
    expect(problems, "a run that is over asks nothing", third.asked, []);
    expect(problems, "and answers again", third.run?.answer, ANSWER);
    expect(problems, "its outcome", (await read(page, "question"))?.outcome, "answered");
    await page.close();
    return problems;
  });

  await score.test("equal prompts get their own answers again, in whatever order they came", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const visit = () =>
      page.evaluate(async () => {
        const { runRlm } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
        let [asked, turns] = [0, 0];
        const model = async (/** @type {any[]} */ _, /** @type {any} */ { purpose, call }) => {
          if (purpose === "turn") {
            turns += 1;
            return `\`\`\`repl\n${call === 1 ? "votes = llm_query_batched(['same'] * 4)\nprint(votes)" : "FINAL(str(votes))"}\n\`\`\``;
          }
          const number = ++asked;
          await new Promise((resolve) => setTimeout(resolve, 40 * (5 - number))); // the last is answered first
          return `answer ${number}`;
        };
        const { answer, kept } = await runRlm({ task: "vote", context: "c", model, persist: "votes" });
        return [answer, asked, turns, kept.replies];
      });
    const votes = "['answer 1', 'answer 2', 'answer 3', 'answer 4']";
    expect(problems, "the first visit", await visit(), [votes, 4, 2, 0]);
    await page.reload();
    expect(problems, "the second visit", await visit(), [votes, 0, 0, 6]);
    await page.close();
    return problems;
  });

  await score.test("a run that ended at a limit goes on with a larger one", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const first = await begin(page, { persist: "limit", more: { budget: { maxCalls: 2, maxTime: 60_000 } } });
    expect(problems, "at the limit", [first.run?.outcome, first.asked], ["limit", ["turn 1", "first"]]);
    const second = await begin(page, { persist: "limit", more: { budget: { maxTime: 50_000 } } });
    expect(problems, "the answer", second.run?.answer, ANSWER);
    expect(
      problems,
      "asked again",
      second.asked.filter((prompt) => first.asked.includes(prompt)),
      [],
    );
    await page.close();
    return problems;
  });

  await score.test("another task or context begins anew, and files and data by name come back", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    await begin(page, { persist: "other", context: { numbers: [1, 2.5, null], text: "t" }, hangs: ["first"] });
    await page.reload(); // it gives the name up
    expect(problems, "data by name", (await read(page, "other"))?.contexts, [{ numbers: [1, 2.5, null], text: "t" }]);
    const other = await begin(page, { persist: "other", context: { numbers: [1, 2.5, null], text: "u" } });
    expect(problems, "all is asked", other.asked.length, 7);
    const task = await begin(page, {
      persist: "other",
      context: { numbers: [1, 2.5, null], text: "u" },
      task: "again",
    });
    expect(problems, "all is asked for another task", task.asked.length, 7);
    const refused = await page.evaluate(async () => {
      const { runRlm } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
      return runRlm({ task: "t", context: new Map(), model: async () => "", persist: "other" }).catch(
        (/** @type {any} */ error) => `${error.code}: ${error.message}`,
      );
    });
    expect(problems, "a Map is refused", /^invalid_option: persist: contexts must be/.test(String(refused)), true);
    const file = await page.evaluate(async () => {
      const { readPersistedRun, runRlm } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
      const context = { "a.txt": new File(["one"], "a.txt"), "b.txt": "two" };
      const model = async () => "```repl\nFINAL(context['a.txt'] + context['b.txt'])\n```";
      const { answer } = await runRlm({ task: "t", context, model, persist: "files" });
      const { contexts } = await readPersistedRun("files");
      return [answer, contexts[0]["a.txt"].name, await contexts[0]["a.txt"].text(), contexts[0]["b.txt"]];
    });
    expect(problems, "files", file, ["onetwo", "a.txt", "one", "two"]);
    await page.close();
    return problems;
  });

  await score.test("one run at a time has a name, a key encrypts it, and a sandbox's name is not taken", async () => {
    const problems = /** @type {string[]} */ ([]);
    const page = await openPage();
    const found = await page.evaluate(async () => {
      const { createSandbox, listPersisted, deletePersisted } = await import(
        /** @type {any} */ ("/pyodide-glue/index.js")
      );
      const { readPersistedRun, runRlm } = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
      const codeOf = (/** @type {Promise<unknown>} */ promise) =>
        promise.then(
          () => "nothing",
          (error) => `${error.code}${/ it is (.*):/.exec(error.message)?.[0] ?? ""}`,
        );
      const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
      const stop = new AbortController();
      const hanging = Promise.withResolvers();
      const asks = async () => {
        hanging.resolve(undefined);
        return new Promise(() => {});
      };
      const persist = { name: "secret", key };
      const running = runRlm({ task: "the secret task", model: asks, persist, signal: stop.signal });
      await hanging.promise;
      const second = await codeOf(runRlm({ task: "the secret task", model: asks, persist }));
      stop.abort();
      const { outcome } = await running;
      const withoutKey = await codeOf(readPersistedRun("secret"));
      const { task } = await readPersistedRun(persist);
      const listed = (await listPersisted()).find((/** @type {any} */ { name }) => name === "secret");
      const sandbox = await createSandbox({ persist: "a sandbox" });
      await sandbox.initialize("c");
      await sandbox.checkpoint();
      await sandbox.destroy();
      const ofSandbox = await codeOf(runRlm({ task: "t", model: asks, persist: "a sandbox" }));
      const ofRun = await codeOf(createSandbox({ persist }));
      await deletePersisted("secret");
      return [second, outcome, withoutKey, task, listed.encrypted, ofSandbox, ofRun, await readPersistedRun(persist)];
    });
    const wanted = ["persist_in_use", "aborted", "persist_failed", "the secret task", true];
    const taken = ["persist_failed it is a sandbox's:", "persist_failed it is a run of runRlm:"];
    expect(problems, "what happens", found, [...wanted, ...taken, null]);
    await page.close();
    return problems;
  });
}
