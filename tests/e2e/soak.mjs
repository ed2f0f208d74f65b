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
  await page.evaluate(
    ({ seconds, seed }) => {
      const soaking = import(/** @type {any} */ ("/tests/e2e/soak.js")).then(({ soak }) => soak(seconds, seed));
      /** @type {any} */ (window).soaked = soaking.catch((/** @type {Error} */ error) => ({
        error: `${error}\n${error.stack}`,
      }));
      soaking.finally(() => /** @type {any} */ (window.over = true)).catch(() => {});
    },
    { seconds, seed },
  );
  // Not awaited in one call: one may not take as long as that.
  const limit = Date.now() + (seconds + 120) * 1000;
  while (!(await page.evaluate(() => /** @type {any} */ (window).over)) && Date.now() < limit) {
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  const { error, problems = [], counts, recoveries } = await page.evaluate(() => /** @type {any} */ (window).soaked);
  const median = recoveries?.toSorted((/** @type {number} */ a, /** @type {number} */ b) => a - b)[
    recoveries.length >> 1
  ];
  console.log(`seed ${seed}, ${seconds} s in ${name}: ${JSON.stringify(counts)}`);
  if (median)
    console.log(`from a guest's end to the next result: ${Math.round(median)} ms (median of ${recoveries.length})`);
  score.add(`soak with seed ${seed}`, [...(error ? [error] : []), ...problems]);
  score.add("nothing is thrown into the page", uncaught);
} finally {
  await close();
}
score.end();
