// Shared parts of the tests in real browsers: the command line, a page of the package, and the count of tests.
import { join } from "node:path";
import { parseArgs } from "node:util";
import { find, launch } from "../../scripts/browsers.mjs";
import { root } from "../../scripts/project.mjs";
import { CROSS_ORIGIN_ISOLATED, listen, serve } from "../../scripts/serve.mjs";

export { find, listen, root, serve };

/** An address where nothing listens. A port that was free a moment ago could be taken by then; the system gives this one to nobody. */
export const NOBODY = "http://127.0.0.1:2";

/** Time from which a test counts as slow. The slowest are named at the end. */
const SLOW_MS = 1000;

/**
 * The arguments of every suite: `--browser chromium|firefox`, `--only <part of a name>`, and `--shared` for cross-origin
 * isolated pages, where Python waits by shared memory. `--all` is for suites that leave something out.
 */
export function readArguments() {
  const { values } = parseArgs({
    options: {
      browser: { type: "string", default: "chromium" },
      only: { type: "string", default: "" },
      shared: { type: "boolean", default: false },
      all: { type: "boolean", default: false },
    },
  });
  const { only, shared, all } = values;
  return { browser: /** @type {"chromium" | "firefox"} */ (values.browser), only, shared, all };
}

/** Has a page reload again where Firefox reports that a reload was aborted, as it does now and then on a busy machine. @param {import("puppeteer-core").Page} page */
export function withReloads(page) {
  const reload = page.reload.bind(page);
  page.reload = (options) =>
    reload(options).catch((error) => {
      if (!String(error).includes("NS_BINDING_ABORTED")) throw error;
      return reload(options);
    });
}

/**
 * Opens a browser and a server of the repository. `page()` opens an empty page that can import `/pyodide-glue/index.js`.
 * `uncaught` holds the uncaught errors of these pages.
 * @param {"chromium" | "firefox"} name
 * @param {Parameters<typeof launch>[1] & { shared?: boolean }} [options]  `shared`: makes pages cross-origin isolated
 */
export async function openBrowser(name, { shared, ...options } = {}) {
  // node_modules may be a link that leads out of this folder, so it is served by name.
  const folders = { node_modules: join(root, "node_modules") };
  const site = await serve(root, { headers: shared ? CROSS_ORIGIN_ISOLATED : {}, folders });
  const browser = await launch(name, options);
  /** @type {string[]} */
  const uncaught = [];
  return {
    browser,
    site,
    uncaught,
    /** @param {string} [url] */
    async page(url = `${site.url}/tests/e2e/page.html`) {
      const page = await browser.newPage();
      page.on("console", (message) => {
        if (process.env.VERBOSE) console.log(`  [console] ${message.text().slice(0, 500)}`);
      });
      page.setDefaultTimeout(180_000);
      await page.goto(url);
      withReloads(page);
      // Listened for in the page itself: the browser's own reports would include frames and workers, which are the guest's.
      await page.exposeFunction("reportUncaught", (/** @type {string} */ text) => uncaught.push(text));
      await page.evaluate(() => {
        const report = /** @type {any} */ (globalThis).reportUncaught;
        addEventListener("error", (event) => report(String(event.error?.stack ?? event.message)));
        addEventListener("unhandledrejection", (event) => report(String(event.reason?.stack ?? event.reason)));
      });
      return page;
    },
    async close() {
      await browser.close().catch(() => {});
      await site.close();
    },
  };
}

/** Counts tests, prints the failed ones, and ends the process with the sum. */
export class Score {
  passed = 0;
  failed = 0;
  skipped = 0;
  #last = performance.now();
  /** Milliseconds and names of slow tests. @type {[number, string][]} */
  #slow = [];
  #wanted;

  /** @param {string} [only]  parts of names, with `|` between them: `test` runs only tests with such a name */
  constructor(only = "") {
    this.#wanted = only.split("|");
  }

  /** Returns true for a test that the command line asks for. @param {string} name */
  wants(name) {
    return this.#wanted.some((part) => name.includes(part));
  }

  /**
   * Runs a test, if the command line asks for it.
   * @param {string} name
   * @param {() => string[] | Promise<string[]>} body  returns the problems found
   * @param {number} [limitMs]  time after which the test counts as hung
   * @returns {Promise<boolean>} false if the test has failed
   */
  async test(name, body, limitMs = 300_000) {
    if (!this.wants(name)) return true;
    const begin = Date.now();
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    const hangs = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`it has not ended after ${limitMs} ms`)), limitMs);
    });
    const failed = this.failed;
    try {
      const problems = await /** @type {Promise<string[]>} */ (Promise.race([body(), hangs]));
      this.add(name, problems, Date.now() - begin);
    } catch (error) {
      this.fail(name, [String(/** @type {Error} */ (error).stack ?? error)]);
    }
    clearTimeout(timer);
    if (process.env.VERBOSE) console.log(`  ${name} ${Date.now() - begin} ms`);
    return this.failed === failed;
  }

  /**
   * @param {string} name @param {string[]} problems none when it passed
   * @param {number} [ms]  the test's duration; by default the time since the test before
   */
  add(name, problems, ms = performance.now() - this.#last) {
    this.#last = performance.now();
    this.#slow.push([ms, name]);
    if (problems.length === 0) this.passed += 1;
    else this.fail(name, problems);
  }

  /** @param {string} name @param {string[]} problems */
  fail(name, problems) {
    this.failed += 1;
    const shown = problems.slice(0, 8).map((problem) => `    ${problem.replaceAll("\n", "\n    ").slice(0, 1500)}`);
    console.log(`✗ ${name}\n${shown.join("\n")}`);
  }

  /** @param {string} name @param {string} why */
  skip(name, why) {
    this.skipped += 1;
    console.log(`- ${name}: skipped, ${why}`);
  }

  /** @returns {never} */
  end() {
    const slow = this.#slow.filter(([ms]) => ms > SLOW_MS).sort(([a], [b]) => b - a);
    for (const [ms, name] of slow.slice(0, 3)) console.log(`slow: ${(ms / 1000).toFixed(1)} s ${name}`);
    console.log(`${this.passed} passed, ${this.failed} failed, ${this.skipped} skipped`);
    process.exit(this.failed > 0 ? 1 : 0);
  }
}
