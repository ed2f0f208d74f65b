// A real language model by a real engine: SmolLM2-135M-Instruct by wllama, in a tab, asked by Python.
//   node tests/e2e/local-model.mjs [--browser chromium]
// The first time, it downloads the model (93 MB). Only what any model does is checked, not the sense of its answers.
import { join } from "node:path";
import { launch } from "../../scripts/browsers.mjs";
import { localModel } from "../../scripts/local-model.mjs";
import { readArguments, root, Score, serve } from "./harness.mjs";

const { browser: name, only } = readArguments();
const score = new Score(only);
const { folder, file } = localModel();
const folders = { node_modules: join(root, "node_modules"), "local-model": folder };
const site = await serve(root, { folders });
const browser = await launch(name);
try {
  const page = await browser.newPage();
  await page.goto(`${site.url}/tests/e2e/page.html`);
  const tests = await page.evaluate(async (url) => {
    const tests = await import(/** @type {any} */ ("/tests/e2e/local-model.js"));
    await tests.load(url);
    Object.assign(window, { tests: tests.TESTS });
    return Object.keys(tests.TESTS);
  }, `/local-model/${file}`);
  for (const test of tests)
    await score.test(test, () => page.evaluate((test) => /** @type {any} */ (window).tests[test](), test), 1_200_000);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await browser.close();
  await site.close();
}
score.end();
