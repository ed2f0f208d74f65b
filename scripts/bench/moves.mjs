// Sessions that move from a page to a server and back: the time of each way, with 100 MB of variables.
import { join } from "node:path";
import { launch } from "../browsers.mjs";
import { root } from "../project.mjs";
import { serve as serveFolder } from "../serve.mjs";

/** The variables of each kind: 100 MB. @type {Record<string, string>} */
const KINDS = {
  "100 MB of bytes": "import random\ndata = random.randbytes(100_000_000)",
  "100 MB in 1000 texts": "data = [str(n).zfill(4) * 25_000 for n in range(1000)]",
};

/**
 * Moves sessions in Chromium.
 * @param {(args: string[]) => Promise<{ url: string, end: () => Promise<void> }>} serve
 * @param {string[]} args  options of the server
 * @param {number} times
 * @returns {Promise<Record<string, number[]>>}
 */
export async function movedSessions(serve, args, times) {
  // node_modules may be a link that leads out of this folder, so it is served by name.
  const site = await serveFolder(root, { folders: { node_modules: join(root, "node_modules") } });
  const server = await serve([...args, "--allow-origin", site.url]).catch((error) => error);
  if (server instanceof Error) {
    await site.close();
    throw server;
  }
  // Else the browser would tell us of each frame, with its bytes as text, which takes longer than the move.
  const browser = await launch("chromium", { network: false });
  try {
    const page = await browser.newPage();
    await page.goto(`${site.url}/tests/e2e/page.html`);
    /** @type {Record<string, number[]>} */
    const samples = {};
    for (const [kind, code] of Object.entries(KINDS)) {
      for (let round = 0; round < times; round++) {
        const { there, back } = await page.evaluate(thereAndBack, server.url, code);
        (samples[`${kind}: to the server`] ??= []).push(there);
        (samples[`${kind}: and back`] ??= []).push(back);
      }
    }
    return samples;
  } finally {
    await browser.close();
    await server.end();
    await site.close();
  }
}

/**
 * Moves a session to a server and back. Runs in a page.
 * @param {string} url @param {string} code
 */
async function thereAndBack(url, code) {
  const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
  const sandbox = await createSandbox();
  try {
    await sandbox.initialize(null);
    const sum = "import hashlib\nhashlib.sha256(data if type(data) is bytes else ''.join(data).encode()).hexdigest()";
    await sandbox.execute(code);
    const { result } = await sandbox.execute(sum);
    const begun = performance.now();
    await sandbox.moveTo({ url });
    const arrived = performance.now();
    const there = await sandbox.execute(sum);
    const leaving = performance.now();
    await sandbox.moveTo("browser");
    const returned = performance.now();
    const back = await sandbox.execute(sum);
    if (!result || there.result !== result || back.result !== result) throw new Error("the variables have changed");
    return { there: arrived - begun, back: returned - leaving };
  } finally {
    await sandbox.destroy();
  }
}
