// A visit of the playground in a real browser: its page, its complaints, tasks that block it, and steps taken in order.
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { openBrowser, readArguments, root, Score, withReloads } from "./harness.mjs";

/** @typedef {(check: (what: string, holds: unknown) => void) => Promise<void>} Step */

/**
 * Opens the browser that the command line chooses.
 * @param {string} suite  the suite's name, which begins the names of its screenshots
 */
export async function visit(suite) {
  const { browser: name, only } = readArguments();
  const results = join(root, "test-results");
  // Files that the page reads have a folder of the browser's own, since the suites of all browsers run at once.
  const files = join(results, name);
  await mkdir(files, { recursive: true });
  const score = new Score();
  const { browser, site, close } = await openBrowser(name);
  const page = await browser.newPage();
  page.setDefaultTimeout(180_000);
  withReloads(page);

  /** Messages in the visitor's console. @type {string[]} */
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warn") complaints.push(message.text());
  });
  // Runs in the page before its own scripts.
  await page.evaluateOnNewDocument(() => {
    if (self !== top) return; // a frame of a guest may be gone before its document is there
    const seen = /** @type {any} */ (window);
    seen.states = [];
    seen.longTasks = [];
    seen.violations = [];
    document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
      seen.violations.push(`${violatedDirective} ${blockedURI}`),
    );
    addEventListener("DOMContentLoaded", () => {
      const html = document.documentElement;
      new MutationObserver(() => seen.states.push(html.dataset.state)).observe(html, {
        attributeFilter: ["data-state"],
      });
    });
    if (!PerformanceObserver.supportedEntryTypes.includes("longtask")) return;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) seen.longTasks.push({ step: seen.step, duration });
    }).observe({ type: "longtask", buffered: true });
  });

  /** @param {string} selector */
  const text = (selector) => page.$eval(selector, (it) => it.textContent ?? "");

  /** Waits until an element's text contains `part`. @param {string} selector @param {string} part */
  const includes = async (selector, part) => {
    const has = (/** @type {string} */ selector, /** @type {string} */ part) =>
      document.querySelector(selector)?.textContent?.includes(part);
    try {
      return await page.waitForFunction(has, {}, selector, part);
    } catch (cause) {
      throw new Error(`${selector} is “${await text(selector)}”, without “${part}”`, { cause });
    }
  };

  /** Takes a screenshot of the visible part, or of the whole page at a width. @param {string} what @param {number} [width] */
  const screenshot = async (what, width) => {
    if (width) {
      await page.setViewport({ width, height: 1000, deviceScaleFactor: width < 500 ? 2 : 1 });
      await page.evaluate(() => scrollTo(0, 0));
      // The side panel is as tall as the window, so the window must be as tall as the page.
      const height = await page.evaluate(() => Math.ceil(document.body.getBoundingClientRect().height));
      await page.setViewport({ width, height, deviceScaleFactor: width < 500 ? 2 : 1 });
    }
    // After two frames, the visible part is painted.
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    await page.screenshot({ path: join(results, `${suite}-${name}-${what}.png`) });
  };

  /** Takes a screenshot of a step that has failed. The page may be stuck, so it waits for no frame, and not for long. */
  const failed = async () => {
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, 10_000)));
    const taken = page
      .bringToFront()
      .then(() => page.screenshot({ path: join(results, `${suite}-${name}-failed.png`) }));
    await Promise.race([taken.catch(() => {}), late]);
    clearTimeout(timer);
  };

  /**
   * What axe-core finds wrong with the page as it is, for people who do not see it or use no mouse. Only Chromium has themes to choose.
   * @param {string[]} [themes]
   * @returns {Promise<string[]>}
   */
  const barriers = async (themes = ["dark", "light"]) => {
    await page.evaluate(await readFile(join(root, "node_modules/axe-core/axe.min.js"), "utf8"));
    const found = [];
    for (const scheme of name === "chromium" ? themes : ["light"]) {
      if (name === "chromium") {
        await page.emulateMediaFeatures([
          { name: "prefers-color-scheme", value: scheme },
          { name: "prefers-reduced-motion", value: "reduce" },
        ]);
      }
      const here = await page.evaluate(async () => {
        // Frames of guests are theirs, and no script can look into them.
        const options = { resultTypes: ["violations"], iframes: false };
        const { violations } = await /** @type {any} */ (window).axe.run(document, options);
        return violations.map((/** @type {any} */ { id, nodes }) => {
          const places = nodes.slice(0, 5).map((/** @type {any} */ node) => node.target.join(" "));
          return `${id}: ${places.join(", ")}`;
        });
      });
      found.push(...here.map((/** @type {string} */ text) => `${scheme}: ${text}`));
    }
    return found;
  };

  /**
   * Takes steps in order. Each finds the page as the step before left it, so the first failed step is the last.
   * @param {Record<string, Step>} steps
   * @param {{ always: RegExp }} options  names of steps that `--only` does not leave out
   */
  const go = async (steps, { always }) => {
    /** @type {Error | undefined} */
    let broken;
    for (const [step, act] of Object.entries(steps)) {
      if (broken) {
        score.fail(step, ["not reached"]);
        continue;
      }
      if (only && !always.test(step) && !step.includes(only)) continue;
      const begin = Date.now();
      /** @type {string[]} */
      const problems = [];
      try {
        await page.evaluate((step) => void Object.assign(window, { step }), step);
        await act((what, holds) => void (holds || problems.push(what)));
      } catch (error) {
        broken = /** @type {Error} */ (error);
        problems.push(String(broken.stack), ...complaints);
        await failed();
      }
      score.add(step, problems);
      if (problems.length === 0) console.log(`✓ ${step} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
    }
    await reportLongTasks().catch(() => {});
  };

  const reportLongTasks = async () => {
    /** @type {{ step: string, duration: number }[]} */
    const tasks = await page.evaluate(() => /** @type {any} */ (window).longTasks);
    if (tasks.length === 0)
      console.log(name === "chromium" ? "no task held up the page for 50 ms" : "long tasks: not measured");
    for (const { step, duration } of tasks)
      console.log(`long task: ${Math.round(duration)} ms in "${step ?? "loading"}"`);
  };

  /** Closes the browser and prints the outcome. */
  const end = async () => {
    await close();
    score.end();
  };
  return { barriers, browser, complaints, end, files, go, includes, name, page, results, screenshot, site, text };
}
