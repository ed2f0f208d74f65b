// Makes the snapshot of the package: the memory that guests start from, as the first guest of a page makes it.
// Decisions: docs/internals/guest-in-a-browser.md.
import { gzipSync } from "node:zlib";
import { xorPages } from "../pyodide-glue/packing.js";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { serve } from "./serve.mjs";
import { initialMemory } from "./stack.mjs";

/**
 * Makes the snapshot in Chromium, and packs it. The files of dist/ and pkg/ have to be there.
 * @param {Uint8Array} wasm  the module of its guests
 * @param {number} level  of gzip
 * @returns {Promise<Uint8Array>}
 */
export async function makeSnapshot(wasm, level) {
  const site = await serve(root);
  const browser = await launch("chromium", { args: ["--lang=en-US"], env: { TZ: "UTC" } });
  try {
    const page = await browser.newPage();
    await page.goto(`${site.url}/tests/e2e/page.html`);
    const text = await page.evaluate(async () => {
      // The first guest makes a snapshot instead of fetching one.
      Object.defineProperty(navigator, "connection", { value: { saveData: true } });
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      await createSandbox({ spares: 0 });
      const cache = await caches.open("sandglass-snapshots");
      for (;;) {
        const [key] = await cache.keys();
        const blob = key && (await (await cache.match(key))?.blob());
        if (!blob) {
          await new Promise((resolve) => setTimeout(resolve, 20)); // it is being written
          continue;
        }
        return await new Promise((resolve) => {
          const reader = new FileReader();
          reader.onload = () => resolve(String(reader.result).replace(/^.*,/, ""));
          reader.readAsDataURL(blob);
        });
      }
    });
    const snapshot = new Uint8Array(Buffer.from(/** @type {string} */ (text), "base64"));
    xorPages(snapshot.buffer, initialMemory(wasm));
    return gzipSync(snapshot, { level });
  } finally {
    await browser.close();
    await site.close();
  }
}
