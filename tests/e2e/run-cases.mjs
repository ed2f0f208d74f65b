// Runs tests/cases/ in a page, by case-runner.js.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { root } from "./harness.mjs";

/** Cases that run at the same time. */
const LANES = 2;

/**
 * @param {import("puppeteer-core").Page} page
 * @param {import("./harness.mjs").Score} score
 * @param {{ only: string, backend: string, server?: { url: string, apiKey: string } }} options
 */
export async function runCases(page, score, options) {
  const files = readdirSync(join(root, "tests/cases")).filter((file) => file.endsWith(".toml"));
  await page.exposeFunction("report", (/** @type {any} */ { name, problems, skipped, ms }) => {
    if (skipped) score.skip(name, skipped);
    else score.add(name, problems);
    if (process.env.VERBOSE) console.log(`  ${name} ${ms} ms`);
  });
  await page.evaluate(
    async (files, options) => {
      const { run } = await import(/** @type {any} */ ("/tests/e2e/case-runner.js"));
      await run(files, options, /** @type {any} */ (window).report);
    },
    files,
    { ...options, lanes: LANES },
  );
}
