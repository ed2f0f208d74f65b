// The snapshot of the package in a real browser: guests start from it, and making it again gives the same bytes.
//   node tests/e2e/snapshot.mjs --browser chromium|firefox
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { xorPages } from "../../pyodide-glue/packing.js";
import { makeSnapshot } from "../../scripts/snapshot.mjs";
import { initialMemory } from "../../scripts/stack.mjs";
import { openBrowser, readArguments, root, Score } from "./harness.mjs";

const { browser: name, only } = readArguments();
const score = new Score(only);
const { page: openPage, close } = await openBrowser(name, { env: { TZ: "Asia/Kolkata" } }); // the snapshot is made in UTC
const dist = (/** @type {string} */ file) => readFile(join(root, "dist", file));
const wasm = await dist("pyodide.asm.wasm");
const packed = gunzipSync(await dist("snapshot.bin"));
try {
  await score.test("the page keeps what the package brings", async () => {
    const whole = new Uint8Array(packed);
    xorPages(whole.buffer, initialMemory(wasm));
    const wanted = createHash("sha256").update(whole).digest("hex");
    const page = await openPage();
    const { kept, asked, result } = await page.evaluate(async () => {
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      const sandbox = await createSandbox();
      await sandbox.initialize(null);
      const { result } = await sandbox.execute("import time; (time.timezone, -time.localtime(0).tm_gmtoff)");
      const cache = await caches.open("sandglass-snapshots");
      let blob;
      while (!blob) {
        const [key] = await cache.keys();
        blob = key && (await (await cache.match(key))?.blob());
        await new Promise((resolve) => setTimeout(resolve, 20)); // it is being written
      }
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await blob.arrayBuffer()));
      return {
        kept: [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join(""),
        asked: performance.getEntriesByType("resource").filter(({ name }) => name.endsWith("/snapshot.bin")).length,
        result,
      };
    });
    await page.close();
    const problems = [];
    if (kept !== wanted) problems.push(`the page keeps ${kept}, not ${wanted}`);
    if (asked !== 1) problems.push(`the file was asked for ${asked} times`);
    if (result !== "(-19800, -19800)") problems.push(`the time zone is another one: ${result}`);
    return problems;
  });
  if (name === "chromium") {
    await score.test("making it again gives the same bytes", async () => {
      const again = gunzipSync(await makeSnapshot(wasm, 1));
      return Buffer.compare(again, packed) === 0 ? [] : ["the bytes differ"];
    });
  }
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
}
score.end();
