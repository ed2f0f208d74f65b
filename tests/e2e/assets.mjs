// Sandboxes whose assets are missing, damaged or out of reach. A part of cases.mjs.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { listen, root } from "./harness.mjs";

/** Faults of a server that delivers a file. @type {Record<string, (body: Buffer) => { status?: number, body: Buffer, type?: string } | "hang up">} */
const FAULTS = {
  missing: () => ({ status: 404, body: Buffer.from("not found") }),
  truncated: (body) => ({ body: body.subarray(0, body.length / 2) }),
  damaged: (body) => {
    const copy = Buffer.from(body);
    copy[copy.length >> 1] ^= 1;
    return { body: copy };
  },
  "another page": () => ({ body: Buffer.from("<!doctype html><title>Welcome</title>"), type: "text/html" }),
  "cut off": () => "hang up",
};

/**
 * @param {import("puppeteer-core").Page} page
 * @param {import("./harness.mjs").Score} score
 * @param {string} only
 */
export async function testAssets(page, score, only) {
  /**
   * The present fault, and the files that wait: each calls a function, and goes on when its promise resolves.
   * @type {{ file?: string, fault?: string, waiting?: Record<string, () => Promise<void>> }}
   */
  let now = {};
  const server = createServer(async (request, response) => {
    const name = (request.url ?? "/").slice(1);
    const body = await readFile(join(root, "dist", name)).catch(() => undefined);
    const made = body && (name === now.file ? FAULTS[now.fault ?? ""](body) : { body });
    await now.waiting?.[name]?.();
    if (made === "hang up") return void response.destroy();
    response.writeHead(made?.status ?? (made ? 200 : 404), {
      "Access-Control-Allow-Origin": "*",
      "Content-Type": made?.type ?? (name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream"),
    });
    response.end(made?.body);
  });
  const { url, close } = await listen(server);
  const create = (from = page) =>
    from.evaluate(async (assetsUrl) => {
      const { createSandbox, SandboxError } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      try {
        const sandbox = await createSandbox({ assetsUrl });
        await sandbox.initialize("c");
        const { result } = await sandbox.execute("context");
        await sandbox.destroy();
        return { result };
      } catch (error) {
        const { code, message } = /** @type {any} */ (error);
        return { ours: error instanceof SandboxError, code, message };
      }
    }, url);

  const cases = [
    ...Object.keys(FAULTS).map((fault) => ({ file: "pyodide.asm.wasm", fault })),
    { file: "python_stdlib.zip", fault: "damaged" },
    { file: "guest.txt", fault: "missing" },
    { file: "guest.txt", fault: "damaged" },
  ];
  for (const one of cases) {
    const name = `assets: ${one.file} that is ${one.fault} is refused by name`;
    if (!name.includes(only)) continue;
    now = one;
    const { ours, code, message } = await create();
    const named = one.fault === "another page" ? "a web page" : one.file;
    const right = ours && code === "asset_failed" && message.includes(one.file) && message.includes(named);
    score.add(name, right ? [] : [`got ${code}: ${message}`]);
  }
  const missing = "assets: a supervisor that is missing is refused by name";
  if (missing.includes(only)) {
    now = { file: "supervisor.wasm", fault: "missing" };
    const fresh = await page.browser().newPage(); // a page loads the supervisor once
    await fresh.goto(page.url());
    const { ours, code, message } = await create(fresh);
    await fresh.close();
    const right = ours && code === "asset_failed" && message.includes("supervisor.wasm");
    score.add(missing, right ? [] : [`got ${code}: ${message}`]);
  }
  for (const waits of ["snapshot.bin", "python_stdlib.zip", "guest.txt"]) {
    const atOnce = `assets: a file that fails is told while ${waits} is still under way`;
    if (!atOnce.includes(only)) continue;
    const file = waits === "python_stdlib.zip" ? "pyodide.asm.wasm" : "python_stdlib.zip";
    const [asked, told] = [gate(), gate()];
    const hold = () => (asked.open(), told.opened);
    now = { file, fault: "missing", waiting: { [waits]: hold, [file]: () => asked.opened } };
    const context = await page.browser().createBrowserContext(); // without a snapshot in its cache
    const fresh = await context.newPage();
    await fresh.goto(page.url());
    const { code, message } = await create(fresh);
    told.open();
    await context.close();
    const right = code === "asset_failed" && message.includes(file);
    score.add(atOnce, right ? [] : [`got ${code}: ${message}`]);
  }
  now = {};
  const name = "assets: once they are good, the next sandbox starts";
  if (name.includes(only)) {
    const made = await create();
    score.add(name, made.result === "'c'" ? [] : [`got ${JSON.stringify(made)}`]);
  }
  await close();
}

function gate() {
  /** @type {() => void} */
  let open = () => {};
  /** @type {Promise<void>} */
  const opened = new Promise((resolve) => (open = resolve));
  return { open, opened };
}
