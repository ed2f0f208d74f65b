// Sandboxes from their creation to their end: `destroy` at every stage, spares, sandboxes without any reference, damaged
// snapshots, and the leftovers of many sandboxes. The tests themselves are in lifecycle.js.
//   node tests/e2e/lifecycle.mjs --browser chromium|firefox [--only part-of-a-name] [--cycles 200] [--seed 1]
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { family } from "../../scripts/processes.mjs";
import { root } from "../../scripts/project.mjs";
import { assemble } from "../../scripts/wat.mjs";
import { listen, openBrowser, Score } from "./harness.mjs";

/** @typedef {import("puppeteer-core").Page} Page */

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    only: { type: "string", default: "" },
    cycles: { type: "string", default: "200" },
    seed: { type: "string", default: "1" },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
const isChromium = name === "chromium";
const seed = Number(values.seed);
const cycles = Number(values.cycles);

/** Time after which a test counts as hung. */
const TEST_MS = 240_000;
/** The name of a worker's thread in the pages' processes. */
const WORKER_THREADS = { chromium: "DedicatedWorker", firefox: "DOM Worker" };

/**
 * Bounds of the growth from the first cycle to the last. The supervisor's references come back exactly, and the size of a heap
 * varies a little. A guest takes 90 MB in Chromium and 140 MB in Firefox, so not one can have stayed. A process may grow once for
 * other reasons: see `ROUNDS`.
 * @type {Record<string, number>}
 */
const BOUNDS = {
  ...{ references: 5, supervisorBytes: 65_536, heapKB: 300, nodes: 10, documents: 1, listeners: 5 },
  ...{ browserMB: 40, pagesMB: 80 },
};

/**
 * Figures of what browsers give back at any time, such as the memory of a frame that was removed. A leak grows in every round, so
 * only growth in every round counts. The other figures are the supervisor's own, and come back at once.
 */
const LATE = new Set(["heapKB", "nodes", "documents", "listeners", "browserMB", "pagesMB"]);
const ROUNDS = 3;

const score = new Score(values.only);
const test = (/** @type {string} */ name, /** @type {() => Promise<string[]>} */ body) =>
  score.test(name, body, TEST_MS);
// In Firefox, only a client with access to the browser itself can have garbage collected.
const host = await openBrowser(name, isChromium ? {} : { args: ["--remote-allow-system-access"] });
const collectGarbage = await makeCollector();
/** A server that answers after the milliseconds in the path. */
const late = await listen(
  createServer((request, response) => {
    response.setHeader("Access-Control-Allow-Origin", "*");
    setTimeout(() => response.end(), Number(request.url?.slice(1)));
  }),
);
try {
  await tests();
  await manyOfThem();
  await damagedSnapshots();
  await test("a module that is damaged is fetched again", damagedModule);
  await test("the files of two releases are kept", twoReleases);
  await test("a snapshot of more memory than a guest begins with is used", largerSnapshot);
  score.add("nothing is thrown into the page", host.uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await host.close();
  await late.close();
}
score.end();

// ---- the tests ----

async function tests() {
  let page = await openPage();
  const names = await page.evaluate(() => Object.keys(/** @type {any} */ (window).life.TESTS));
  for (const testName of names) {
    const passed = await test(testName, () =>
      page.evaluate((name) => /** @type {any} */ (window).life.runTest(name), testName),
    );
    if (passed) continue;
    // A new page keeps this test's leftovers away from the next test.
    await page.close().catch(() => {});
    page = await openPage();
  }
  await page.close();
}

/** Creates and destroys many sandboxes. After a while, further ones must take no more memory. */
async function manyOfThem() {
  const title = `${cycles} sandboxes leave nothing behind`;
  if (!score.wants(title)) return;
  const page = await openPage();
  /** @returns {Promise<string[]>} */
  const churn = (/** @type {number} */ seed, /** @type {number} */ count) =>
    page.evaluate((seed, count) => /** @type {any} */ (window).life.churn(seed, count), seed, count);
  const begin = Date.now();
  // Processes grow over the first sandboxes, so these do not count. References must be exact from the first on.
  const warmUp = Math.round(cycles * 0.6);
  const problems = await churn(seed, warmUp);
  const measured = [await measure(page)];
  /** The growth in each round. @type {Record<string, number>[]} */
  const growth = [];
  const grew = (/** @type {string} */ key) => growth.every((more) => (more[key] ?? 0) > BOUNDS[key]);
  do {
    problems.push(...(await churn(seed + measured.length, cycles - warmUp)));
    measured.push(await measure(page));
    const [before, after] = measured.slice(-2);
    growth.push(Object.fromEntries(Object.keys(BOUNDS).map((key) => [key, after[key] - before[key]])));
  } while (growth.length < ROUNDS && problems.length === 0 && [...LATE].some(grew));
  const seconds = Math.round((Date.now() - begin) / 1000);
  console.log(JSON.stringify({ browser: name, seed, seconds, measured }));
  score.add(title, problems);

  for (const key of Object.keys(BOUNDS)) {
    const counted = LATE.has(key) ? growth : growth.slice(0, 1);
    const leaks = counted.every((more) => more[key] > BOUNDS[key]);
    const figures = measured.map((figures) => figures[key]).join(", ");
    score.add(
      `${cycles - warmUp} more sandboxes: ${key}`,
      leaks ? [`it grew in each round by more than ${BOUNDS[key]}: ${figures}`] : [],
    );
  }
  await test("no timer is left when all sandboxes are destroyed", async () => {
    const timers = await page.evaluate(() => /** @type {any} */ (window).life.timers());
    return timers.length === 0 ? [] : [`${timers.length} are left: ${[...new Set(timers)].join(", ")}`];
  });
  await page.close();
  await test("a page that is closed takes its guests along", async () => {
    const page = await openPage();
    await page.evaluate(async () => {
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      for (const isolation of ["frame", "worker"]) {
        const sandbox = await createSandbox({ isolation, spares: 0 });
        await sandbox.initialize(null);
        sandbox.execute("while True: pass");
      }
    });
    const there = countWorkers();
    await page.close();
    const gone = await until(() => countWorkers() === 0);
    return [...(there === 2 ? [] : [`${there} workers before`]), ...(gone ? [] : [`${countWorkers()} workers after`])];
  });
}

/** Tests pages that find a damaged snapshot of an earlier page. */
async function damagedSnapshots() {
  const first = await openPage();
  const kinds = /** @type {string[]} */ (
    await first.evaluate(() => Object.keys(/** @type {any} */ (window).life.DAMAGE))
  );
  if (![...kinds, "that is as it was"].some((kind) => score.wants(titleOf(kind)))) return void (await first.close());
  await bootIn(first);
  await test(titleOf("that is as it was"), async () => {
    const { problems, cold } = await bootIn(await openPage());
    return [...problems, ...(cold ? [`cold: ${cold}`] : [])];
  });
  for (const kind of kinds) {
    for (const count of kind.includes("middle") ? [1, 2] : [1]) {
      await test(titleOf(kind) + (count > 1 ? ", by two sandboxes at once" : ""), async () => {
        const { problems, cold } = await bootIn(await openPage(), kind, count);
        if (!cold || cold === "no reason") problems.push(`nobody was told why: ${cold}`);
        const later = await bootIn(await openPage());
        problems.push(...later.problems.map((problem) => `a later page: ${problem}`));
        if (later.cold) problems.push(`a later page: cold: ${later.cold}`);
        return problems;
      });
    }
  }
}

/** Tests a page that finds a damaged module of an earlier page. */
async function damagedModule() {
  const first = await openPage();
  await first.evaluate(() => /** @type {any} */ (window).life.boot());
  const digest = await first.evaluate(() => /** @type {any} */ (window).life.damageModule());
  await first.close();
  const page = await openPage();
  const { problems } = await page.evaluate(() => /** @type {any} */ (window).life.boot(undefined, 2));
  await page.evaluate((digest) => /** @type {any} */ (window).life.keepsModule(digest), digest);
  await page.close();
  const later = await bootIn(await openPage());
  return [...problems, ...later.problems.map((/** @type {string} */ problem) => `a later page: ${problem}`)];
}

/** Tests a page on an origin where other releases of the package are in use. */
async function twoReleases() {
  const first = await openPage();
  await first.evaluate(async () => {
    const { life } = /** @type {any} */ (window);
    await life.forgetKept();
    await life.keepOthers(["older", "old"]);
  });
  await first.close();
  const page = await openPage();
  const [problems, kept] = await page.evaluate(async () => {
    const { life } = /** @type {any} */ (window);
    const { problems } = await life.boot();
    return [problems, JSON.stringify(await life.keptReleases())];
  });
  const isRight = kept === JSON.stringify([0, 1].map(() => ["old", "this"]));
  await page.evaluate(() => /** @type {any} */ (window).life.forgetKept());
  await page.close();
  return [...problems, ...(isRight ? [] : [`kept: ${kept}`])];
}

/** Tests a page that finds a snapshot for which its memory must grow first. */
async function largerSnapshot() {
  const first = await openPage();
  await bootIn(first);
  const page = await openPage();
  const hasher = [...(await assemble(join(root, "pyodide-glue/pages.wat")))];
  const wanted = await page.evaluate((hasher) => /** @type {any} */ (window).life.enlarge(hasher), hasher);
  const { problems, cold } = await bootIn(page, undefined, 2);
  const later = await openPage();
  const digest = await later.evaluate(() => /** @type {any} */ (window).life.keptDigest());
  await later.close();
  if (cold) problems.push(`cold: ${cold}`);
  if (digest !== wanted) problems.push("it was replaced");
  return problems;
}

/** @param {string} kind */
function titleOf(kind) {
  return `a snapshot ${kind} is ${kind === "that is as it was" ? "used" : "replaced"}`;
}

/**
 * Damages the kept snapshot, starts a page's first sandboxes, and closes the page.
 * @param {Page} page @param {string} [kind] @returns {Promise<{ problems: string[], cold?: string }>}
 */
async function bootIn(page, kind, count = 1) {
  const booted = await page.evaluate(
    async (kind, count) => {
      const { life } = /** @type {any} */ (window);
      return life.boot(kind && (await life.damage(kind)), count);
    },
    kind,
    count,
  );
  await page.close();
  return booted;
}

// ---- tools ----

/** Opens a page with lifecycle.js in `life`. */
async function openPage() {
  const page = await host.page();
  page.setDefaultTimeout(0);
  await page.exposeFunction("countWorkers", countWorkers);
  await page.exposeFunction("collectGarbage", () => collectGarbage(page));
  await page.evaluate(async (url) => {
    const window = /** @type {any} */ (globalThis);
    window.late = url;
    window.life = await import(/** @type {any} */ ("/tests/e2e/lifecycle.js"));
  }, late.url);
  return page;
}

/** @template T @param {() => T | Promise<T>} condition @returns {Promise<T | undefined>} */
async function until(condition, ms = 90_000) {
  for (const end = Date.now() + ms; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const value = await condition();
    if (value) return value;
  }
  return undefined;
}

/** The browser's processes. The first is the browser itself. */
function processes() {
  return family(host.browser.process()?.pid).map(({ id }) => id);
}

/** Counts workers in all pages by their threads, because neither browser lists the workers of frames reliably. */
function countWorkers() {
  let count = 0;
  for (const pid of processes().slice(1)) {
    for (const thread of list(`/proc/${pid}/task`))
      if (read(`/proc/${pid}/task/${thread}/comm`).trim() === WORKER_THREADS[name]) count += 1;
  }
  return count;
}

/** Figures of the page's and the browser's holdings after garbage collection. @param {Page} page */
async function measure(page) {
  /** @type {Record<string, number>} */
  let least = {};
  for (let round = 0; round < 4; round += 1) {
    await collectGarbage(page);
    await new Promise((resolve) => setTimeout(resolve, 400));
    const figures = await page.evaluate(() => /** @type {any} */ (window).life.figures());
    if (isChromium) {
      const { JSHeapUsedSize = 0, Nodes = 0, Documents = 0, JSEventListeners = 0 } = await page.metrics();
      Object.assign(figures, { heapKB: Math.round(JSHeapUsedSize / 1e3), nodes: Nodes });
      Object.assign(figures, { documents: Documents, listeners: JSEventListeners });
    }
    const [browser, ...others] = processes().map(
      (pid) => (Number(read(`/proc/${pid}/statm`).split(" ")[1]) * 4096) / 1e6,
    );
    figures.browserMB = Math.round(browser);
    figures.pagesMB = Math.round(others.reduce((sum, mb) => sum + mb, 0));
    for (const [key, value] of Object.entries(figures)) least[key] = Math.min(least[key] ?? Infinity, value);
  }
  return least;
}

/** @returns {Promise<(page: Page) => Promise<void>>} */
async function makeCollector() {
  if (isChromium) {
    /** @type {WeakMap<Page, Promise<import("puppeteer-core").CDPSession>>} */
    const sessions = new WeakMap();
    return async (page) => {
      if (!sessions.has(page)) sessions.set(page, page.createCDPSession());
      await (await sessions.get(page))?.send("HeapProfiler.collectGarbage");
    };
  }
  const { connection } = /** @type {any} */ (host.browser);
  const { result } = await connection.send("browsingContext.getTree", { "moz:scope": "chrome" });
  const target = { context: result.contexts[0].context };
  // "mmu" (minimize memory usage) gives free memory back to the system.
  const expression = ["gc", "cc", "gc", "mmu"].map(
    (what) => `Services.obs.notifyObservers(null, "child-${what}-request");`,
  );
  expression.push(`new Promise((resolve) => Cc["@mozilla.org/memory-reporter-manager;1"]
    .getService(Ci.nsIMemoryReporterManager).minimizeMemoryUsage(() => resolve(null)))`);
  return async () => {
    await connection.send("script.evaluate", { expression: expression.join("\n"), target, awaitPromise: true });
  };
}

/** @param {string} file */
function read(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return ""; // the process has ended
  }
}

/** @param {string} folder */
function list(folder) {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
