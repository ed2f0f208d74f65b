// Runs tests/cases/ in a page, by case-runner.js.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { root } from "./harness.mjs";

/** Cases that run at the same time. */
const LANES = 2;

/**
 * @param {import("puppeteer-core").Page} page
 * @param {import("./harness.mjs").Score} score
 * @param {{ only: string, backend: string, places: string[], server?: { url: string, apiKey: string } }} options
 */
export async function runCases(page, score, options) {
  const files = readdirSync(join(root, "tests/cases")).filter((file) => file.endsWith(".toml"));
  await page.exposeFunction("report", (/** @type {any} */ { name, problems, skipped, ms }) => {
    if (skipped) score.skip(name, skipped);
    else score.add(name, problems, ms);
    if (process.env.VERBOSE) console.log(`  ${name} ${ms} ms`);
  });
  const finished = new Promise((resolve) => {
    page.exposeFunction("finished", resolve);
  });
  // Not awaited: all cases take longer than one call may.
  await page.evaluate(
    (files, options) => {
      const { report, finished } = /** @type {any} */ (window);
      import(/** @type {any} */ ("/tests/e2e/case-runner.js"))
        .then(({ run }) => run(files, options, report))
        .then(
          () => finished(""),
          (error) => finished(String(error.stack ?? error)),
        );
    },
    files,
    { ...options, lanes: LANES },
  );
  const failure = await finished;
  if (failure) score.fail("the cases could not be run", [failure]);
}
