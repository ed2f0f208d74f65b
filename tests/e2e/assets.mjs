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

const LIBRARY = "python_stdlib.zip";

/** Opens a page with a sandbox of the server's files. @param {import("puppeteer-core").Page} page @param {string} url */
async function startIn(page, url) {
  const fresh = await page.browser().newPage(); // a page fetches a file once
  await fresh.goto(page.url());
  await fresh.evaluate(async (assetsUrl) => {
    const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
    // A stop is heard when the guest has had a processor for long enough.
    const sandbox = await createSandbox({ assetsUrl, spares: 0, gracePeriod: 30_000 });
    await sandbox.initialize(null);
    Object.assign(globalThis, { sandbox });
  }, url);
  return fresh;
}

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
    { file: "guest.txt", fault: "missing" },
    { file: "guest.txt", fault: "damaged" },
  ];
  for (const one of cases) {
    const name = `assets: ${one.file} that is ${one.fault} is refused by name`;
    if (!name.includes(only)) continue;
    now = one;
    const { ours, code, message } = await create();
    const named = one.fault === "another page" ? "a web page" : one.file;
    const wanted = [one.file, named, "; no guest was started"];
    const right = ours && code === "asset_failed" && wanted.every((part) => message.includes(part));
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
  await score.test(
    "assets: a library that is damaged is named by the import that needs it, and fetched again",
    async () => {
      now = { file: LIBRARY, fault: "damaged" };
      const fresh = await startIn(page, url);
      const { sum, error, kept } = await fresh.evaluate(async () => {
        const { sandbox } = /** @type {any} */ (globalThis);
        const { result: sum } = await sandbox.execute("kept = 1 + 1; kept");
        const { error } = await sandbox.execute("import colorsys");
        const { result: kept } = await sandbox.execute("kept");
        return { sum, error, kept };
      });
      now = {};
      const result = await fresh.evaluate(async () => {
        for (;;) {
          const { result, error } = await /** @type {any} */ (globalThis).sandbox.execute(
            "import colorsys; colorsys.ONE_THIRD > 0",
          );
          if (!error) return result;
          await new Promise((resolve) => setTimeout(resolve, 50)); // until the page tries again
        }
      });
      await fresh.close();
      const isNamed = error?.startsWith("ImportError: ") && error.includes(LIBRARY) && error.includes("SHA-256");
      const named = isNamed && !error.includes("no guest"); // which there is
      const seen = [sum === "2", named, kept === "2", result === "True"];
      return seen.every(Boolean) ? [] : [`got ${JSON.stringify({ sum, error, kept, result })}`];
    },
  );
  await score.test("assets: code that needs the library waits for it, and can be stopped", async () => {
    const held = gate();
    now = { waiting: { [LIBRARY]: () => held.opened } };
    const fresh = await startIn(page, url);
    const stopped = await fresh.evaluate(async () => {
      const { sandbox } = /** @type {any} */ (globalThis);
      const running = sandbox.execute("print('begun', flush=True); import colorsys", {
        onStdout: () => sandbox.interrupt(),
      });
      const late = await sandbox.execute("import colorsys", { timeout: 100 });
      // A module whose name only begins like JavaScript's is of the snapshot, and waits for nothing.
      const json = await sandbox.execute("import json\njson.dumps(1)");
      // Code that may call JavaScript waits before it begins, where Python cannot block. If its time is over then, it stops at once.
      const unrun = await sandbox.execute("import js\nfor ran in range(10 ** 6): pass", { timeout: 100 });
      const { result: ran } = await sandbox.execute("globals().get('ran', 0)");
      const isStopped = globalThis.crossOriginIsolated || (unrun.outcome === "timeout" && Number(ran) < 10 ** 5);
      return [(await running).outcome, late.outcome, late.state.status, json.result, isStopped || { ...unrun, ran }];
    });
    const javascript = fresh.evaluate(async () => {
      const code = "import js\ndef one(*_):\n  import colorsys\n  return 1\njs.Array.from_(js.Array.of(0), one)[0]";
      const { result, error } = await /** @type {any} */ (globalThis).sandbox.execute(code);
      return result ?? error;
    });
    held.open();
    const result = await javascript;
    await fresh.close();
    const wanted = JSON.stringify([["interrupted", "timeout", "kept", "'1'", true], "1"]);
    const got = JSON.stringify([stopped, result]);
    return got === wanted ? [] : [`got ${got}`];
  });
  for (const waits of ["snapshot.bin", "pyodide.asm.wasm", "guest.txt"]) {
    const atOnce = `assets: a file that fails is told while ${waits} is still under way`;
    if (!atOnce.includes(only)) continue;
    const file = waits === "pyodide.asm.wasm" ? "guest.txt" : "pyodide.asm.wasm";
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
