// Soaks the sandbox in a browser: see soak.js.
//   node tests/e2e/soak.mjs [--browser chromium|firefox] [--seconds 60] [--seed 1] [--shared]
import { parseArgs } from "node:util";
import { openBrowser, Score } from "./harness.mjs";

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    seconds: { type: "string", default: "60" },
    seed: { type: "string", default: "1" },
    shared: { type: "boolean", default: false },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
const [seconds, seed] = [Number(values.seconds), Number(values.seed)];
const score = new Score();
const { page: openPage, uncaught, close } = await openBrowser(name, { shared: values.shared });
try {
  const page = await openPage();
  page.setDefaultTimeout(0);
  const run = async () => {
    const { problems, counts, recoveries } = await page.evaluate(
      async ({ seconds, seed }) => (await import(/** @type {any} */ ("/tests/e2e/soak.js"))).soak(seconds, seed),
      { seconds, seed },
    );
    const sorted = recoveries.toSorted((/** @type {number} */ a, /** @type {number} */ b) => a - b);
    const median = sorted[sorted.length >> 1];
    console.log(`seed ${seed}, ${seconds} s in ${name}: ${JSON.stringify(counts)}`);
    if (median)
      console.log(`from a guest's end to the next result: ${Math.round(median)} ms (median of ${recoveries.length})`);
    return problems;
  };
  await score.test(`soak with seed ${seed}`, run, (seconds + 120) * 1000);
  score.add("nothing is thrown into the page", uncaught);
} finally {
  await close();
}
score.end();
