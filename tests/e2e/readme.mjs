// Runs the README's example as a stranger would, and compares what it logs with the comments behind `→`.
//   node tests/e2e/readme.mjs --browser chromium|firefox
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { openBrowser, readArguments, root, Score } from "./harness.mjs";
import { differences, promised, runInPage } from "./samples.mjs";

const readme = await readFile(join(root, "README.md"), "utf8");
const example = /```js\n(.*?)```/s.exec(readme)?.[1] ?? "";
const score = new Score();
const { page: openPage, close } = await openBrowser(readArguments().browser);
try {
  score.add(
    "the example logs what it says",
    differences(await runInPage(await openPage(), example), promised(example)),
  );
} catch (error) {
  score.fail("the example runs", [String(/** @type {Error} */ (error).stack)]);
} finally {
  await close();
  score.end();
}
