// Records www/sample-run.jsonl, the sample run of the playground: the built-in policy over the sample text, in Chromium.
//   node scripts/build.mjs && node scripts/record-sample.mjs
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { serve } from "./serve.mjs";

const QUESTION = "Where was the missing crate of hourglasses found?";

const site = await serve(root);
const browser = await launch("chromium");
try {
  const page = await browser.newPage();
  await page.goto(`${site.url}/tests/e2e/page.html`);
  const { outcome, answer, lines } = await page.evaluate(async (task) => {
    const load = (/** @type {string} */ path) => import(path);
    const [{ createSandbox }, { runRlm }, { builtInPolicy }, { SAMPLE }, { Recorder, toBlob }] = await Promise.all([
      load("/pyodide-glue/index.js"),
      load("/pyodide-glue/rlm.js"),
      load("/www/rlm/policy.js"),
      load("/www/rlm/sources.js"),
      load("/www/rlm/trajectory.js"),
    ]);
    // The first sandbox of a page takes longer, and should not be on record.
    await (await createSandbox()).destroy();
    const recorder = new Recorder();
    const run = await runRlm({
      task,
      context: await SAMPLE.open(),
      model: builtInPolicy,
      budget: { maxTime: 600_000 },
      onEvent: (/** @type {any} */ event) => recorder.add(event),
    });
    return { ...run, events: undefined, lines: await toBlob(recorder.events).text() };
  }, QUESTION);
  if (outcome !== "answered" || !/under the sailcloth in hold 3/.test(answer)) throw new Error(`${outcome}: ${answer}`);
  await writeFile(join(root, "www/sample-run.jsonl"), lines);
  console.log(`recorded ${lines.split("\n").length - 1} events, ${(lines.length / 1024).toFixed(0)} KiB`);
} finally {
  await browser.close();
  await site.close();
}
