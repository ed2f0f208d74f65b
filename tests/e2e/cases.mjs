// Runs tests/cases/ in a browser, through the public API.
//   node tests/e2e/cases.mjs --browser chromium|firefox [--shared] [--all] [--only part-of-a-name]
// Leaves out the cases that add nothing in this browser (see where.js), unless --all or --only is given.
import { testAssets } from "./assets.mjs";
import { openBrowser, readArguments, Score } from "./harness.mjs";
import { runCases } from "./run-cases.mjs";

const { browser: name, only, shared, all } = readArguments();
const places = all || only ? [] : [name, ...(shared ? ["shared"] : [])];
const score = new Score();
const { page: openPage, uncaught, close } = await openBrowser(name, { shared });
try {
  const page = await openPage();
  await runCases(page, score, { only, places, backend: "browser" });
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
