// What the tests in real browsers share: the command line, a page of the package, and counting.
import { join } from "node:path";
import { parseArgs } from "node:util";
import { find, launch } from "../../scripts/browsers.mjs";
import { root } from "../../scripts/project.mjs";
import { CROSS_ORIGIN_ISOLATED, listen, serve } from "../../scripts/serve.mjs";

export { find, listen, root, serve };

/** A test that takes longer is named at the end, if it is among the slowest. */
const SLOW_MS = 1000;

/**
 * The arguments every suite takes: `--browser chromium|firefox`, `--only <part of a name>`, and `--shared` for pages that
 * are cross-origin isolated, where Python waits by shared memory. `--all` is for those that leave something out.
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

/**
 * A browser with a server of the repository; `page()` opens an empty page from which `/pyodide-glue/index.js` can be
 * imported. Everything that a page reports as an uncaught error is kept in `uncaught`.
 * @param {"chromium" | "firefox"} name
 * @param {Parameters<typeof launch>[1] & { shared?: boolean }} [options]  `shared`: the pages are cross-origin isolated
 */
export async function openBrowser(name, { shared, ...options } = {}) {
  // It may be a link to that of another work tree.
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
      await page.goto(url);
      // In the page itself: what a browser reports beyond that, it also reports of frames and workers, which are the guest's.
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

/** Counts tests and prints the failed ones; ends the process with the sum. */
export class Score {
  passed = 0;
  failed = 0;
  skipped = 0;
  #last = performance.now();
  /** Milliseconds and names. @type {[number, string][]} */
  #slow = [];
  #wanted;

  /** @param {string} [only]  parts of the names of the tests that `test` runs, with `|` between them */
  constructor(only = "") {
    this.#wanted = only.split("|");
  }

  /** True for a test that was asked for. @param {string} name */
  wants(name) {
    return this.#wanted.some((part) => name.includes(part));
  }

  /**
   * Runs a test, if it was asked for.
   * @param {string} name
   * @param {() => string[] | Promise<string[]>} body  returns the problems that it has found
   * @param {number} [limitMs]  a test that takes longer hangs
   * @returns {Promise<boolean>} false when it has failed
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
   * @param {number} [ms]  how long it took; without it, since the one before
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
