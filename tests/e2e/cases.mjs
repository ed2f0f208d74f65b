// Runs tests/cases/ in a browser, through the public API.
//   node tests/e2e/cases.mjs --browser chromium|firefox [--shared] [--all] [--only part-of-a-name]
// Leaves out the cases that add nothing in this browser (see where.js), but for --all or --only.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { testAssets } from "./assets.mjs";
import { openBrowser, readArguments, root, Score } from "./harness.mjs";

const LANES = 2;

const { browser: name, only, shared, all } = readArguments();
const places = all || only ? [] : [name, ...(shared ? ["shared"] : [])];
const files = readdirSync(join(root, "tests/cases")).filter((file) => file.endsWith(".toml"));
const score = new Score();
const { page: openPage, uncaught, close } = await openBrowser(name, { shared });
try {
  const page = await openPage();
  const finished = new Promise((resolve) => {
    page.exposeFunction("finished", resolve);
  });
  await page.exposeFunction("report", (/** @type {any} */ { name, problems, skipped, ms }) => {
    if (skipped) score.skip(name, skipped);
    else score.add(name, problems, ms);
    if (process.env.VERBOSE) console.log(`  ${name} ${ms} ms`);
  });
  // Not awaited: one call may not take as long as all cases do.
  await page.evaluate(
    ({ files, ...options }) => {
      const { report, finished } = /** @type {any} */ (window);
      import(/** @type {any} */ ("/tests/e2e/case-runner.js"))
        .then(({ run }) => run(files, { ...options, backend: "browser" }, report))
        .then(
          () => finished(""),
          (error) => finished(String(error.stack ?? error)),
        );
    },
    { files, only, places, lanes: LANES },
  );
  const failure = await finished;
  if (failure) score.fail("the cases could not be run", [failure]);
  await testAssets(page, score, only);
  const frames = await page.evaluate(() => document.querySelectorAll("iframe").length);
  score.add("destroyed sandboxes leave no frame behind", frames === 0 ? [] : [`${frames} frames are left`]);
  score.add("nothing is thrown into the page", uncaught);
} catch (error) {
  score.fail("the cases could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
}
score.end();
