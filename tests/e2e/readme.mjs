// Runs the README's example as a stranger would, and compares what it logs with the comments behind `→`.
//   node tests/e2e/readme.mjs --browser chromium|firefox
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { launch } from "../../scripts/browsers.mjs";
import { root } from "../../scripts/project.mjs";
import { serve } from "../../scripts/serve.mjs";

const { values } = parseArgs({ options: { browser: { type: "string", default: "chromium" } } });
const readme = await readFile(join(root, "README.md"), "utf8");
const example = /```js\n(.*?)```/s.exec(readme)?.[1] ?? "";
const expected = [...example.matchAll(/\/\/ → (.*)/g)].map(([, text]) => text);
assert.ok(expected.length >= 3, "the README's example says what it logs");

const server = await serve(root);
const browser = await launch(/** @type {"chromium" | "firefox"} */ (values.browser));
try {
  const page = await browser.newPage();
  await page.goto(`${server.url}/tests/e2e/page.html`);
  const logged = await page.evaluate(async (source) => {
    const map = document.createElement("script");
    map.type = "importmap";
    map.textContent = JSON.stringify({ imports: { sandglass: "/pyodide-glue/index.js" } });
    document.head.append(map);
    /** @type {string[]} */
    const lines = [];
    console.log = (...values) => lines.push(values.join(" ").trimEnd());
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    await import(url);
    return lines;
  }, example);
  assert.deepEqual(logged, expected);
  console.log("1 passed, 0 failed, 0 skipped");
} catch (error) {
  console.error(error);
  console.log("0 passed, 1 failed, 0 skipped");
  process.exitCode = 1;
} finally {
  await browser.close();
  await server.close();
}
