// `runRlm` against a scripted endpoint, in a real browser. The tests are in rlm.js, the model's replies in rlm-server.mjs.
//   node tests/e2e/rlm.mjs --browser chromium|firefox [--shared] [--only part-of-a-name|another]
import { openBrowser, readArguments, Score } from "./harness.mjs";
import { startModelServer } from "./rlm-server.mjs";

const { browser: name, only, shared } = readArguments();
/** Time after which a test counts as hung. */
const TEST_MS = 240_000;

const score = new Score(only);
const model = await startModelServer();
const host = await openBrowser(name, { shared });
try {
  let page = await openPage();
  const names = await page.evaluate(() => Object.keys(/** @type {any} */ (window).rlm.TESTS));
  for (const test of names) {
    const run = () => page.evaluate((test) => /** @type {any} */ (window).rlm.runTest(test), test);
    if (await score.test(test, run, TEST_MS)) continue;
    // A new page keeps this test's leftovers away from the next test.
    await page.close().catch(() => {});
    page = await openPage();
  }
  score.add("nothing is thrown into the page", host.uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await host.close();
  await model.close();
}
score.end();

async function openPage() {
  const page = await host.page();
  page.setDefaultTimeout(0);
  await page.evaluate(async (url) => {
    const rlm = await import(/** @type {any} */ ("/tests/e2e/rlm.js"));
    rlm.connect(url);
    /** @type {any} */ (window).rlm = rlm;
  }, model.url);
  return page;
}
