// `runRlm` against a scripted endpoint, in a real browser. The tests themselves are in rlm.js, what the model says in rlm-server.mjs.
//   node tests/e2e/rlm.mjs --browser chromium|firefox [--shared] [--only part-of-a-name|another]
import { openBrowser, readArguments, Score } from "./harness.mjs";
import { startModelServer } from "./rlm-server.mjs";

const { browser: name, only, shared } = readArguments();
/** A test that takes longer hangs. */
const TEST_MS = 240_000;

const score = new Score();
const model = await startModelServer();
const host = await openBrowser(name, { shared });
try {
  let page = await openPage();
  const names = await page.evaluate(() => Object.keys(/** @type {any} */ (window).rlm.TESTS));
  for (const testName of names.filter((testName) => only.split("|").some((part) => testName.includes(part)))) {
    const begin = Date.now();
    const problems = await run(page, testName);
    score.add(testName, problems);
    if (process.env.VERBOSE) console.log(`  ${testName} ${Date.now() - begin} ms`);
    if (problems.length === 0) continue;
    // What it left behind is not the next one's fault.
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

/** @param {import("puppeteer-core").Page} page @param {string} testName @returns {Promise<string[]>} */
async function run(page, testName) {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const hangs = new Promise((resolve) => {
    timer = setTimeout(() => resolve([`it has not ended after ${TEST_MS} ms`]), TEST_MS);
  });
  // Begun and asked for: one call of the browser may take no longer than its own timeout.
  const ended = (async () => {
    await page.evaluate((testName) => void (/** @type {any} */ (window).rlm.start(testName)), testName);
    for (;;) {
      const problems = await page.evaluate(() => /** @type {any} */ (window).rlm.found());
      if (problems) return problems;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  })();
  try {
    return await Promise.race([ended, hangs]);
  } catch (error) {
    return [String(/** @type {Error} */ (error).message ?? error)];
  } finally {
    clearTimeout(timer);
  }
}

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
