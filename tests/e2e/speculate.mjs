// Work ahead, code that runs before it is asked for, in a real browser. The tests themselves are in speculate.js.
//   node tests/e2e/speculate.mjs --browser chromium|firefox [--shared] [--only part-of-a-name] [--seed 1] [--rounds 1]
import { parseArgs } from "node:util";
import { openBrowser, Score } from "./harness.mjs";

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    only: { type: "string", default: "" },
    shared: { type: "boolean", default: false },
    seed: { type: "string", default: "1" },
    rounds: { type: "string" },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
// Guests start more slowly in Firefox, so it runs half of the cells. The seed chooses them.
const settings = { seed: Number(values.seed), rounds: Number(values.rounds ?? (name === "firefox" ? 0.5 : 1)) };
/** Time for each round after which a test counts as hung. */
const TEST_MS = 300_000;

const score = new Score(values.only);
const { page: openPage, uncaught, close } = await openBrowser(name, { shared: values.shared });
try {
  const page = await openPage();
  page.setDefaultTimeout(0);
  const names = await page.evaluate(async (settings) => {
    const tests = await import(/** @type {any} */ ("/tests/e2e/speculate.js"));
    tests.configure(settings);
    /** @type {any} */ (window).tests = tests;
    return Object.keys(tests.TESTS);
  }, settings);
  for (const test of names) {
    const run = async () => {
      const { problems, said } = await page.evaluate((test) => /** @type {any} */ (window).tests.runTest(test), test);
      if (said) console.log(`${test}: ${said}`);
      return problems;
    };
    await score.test(test, run, TEST_MS * Math.max(1, settings.rounds));
  }
  score.add("nothing is thrown into the page", uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
}
score.end();
