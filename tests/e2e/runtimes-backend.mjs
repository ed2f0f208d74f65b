// The package outside of browsers with a server's guests, beside a page's objects that are a library's, and in a bundle.
//   node tests/e2e/runtimes-backend.mjs [--only part-of-a-name]
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import * as esbuild from "esbuild";
import { root, Score } from "./harness.mjs";
import { KEY, startHost } from "./host.mjs";
import { findRuntime, runScript } from "./runtimes.mjs";

/** @typedef {NonNullable<ReturnType<typeof findRuntime>>} Runtime */

const RUNTIMES = ["node", "deno", "bun"];
const ENTRY = join(root, "pyodide-glue/node.js");
/** Tells the error of a sandbox that cannot be created. */
const TOLD = `({ name, code, message }) => name + " " + code + ": " + message`;

const { values } = parseArgs({ options: { only: { type: "string", default: "" } } });
const score = new Score(values.only);
const folder = await mkdtemp(join(tmpdir(), "sandglass-runtimes-"));
try {
  const host = await startHost({ backend: "subprocess", origin: "http://127.0.0.1" });
  try {
    for (const name of RUNTIMES) {
      const test = `a server's guest on ${name}`;
      const runtime = findRuntime(name);
      if (runtime) await score.test(test, () => onServer(runtime, host.url));
      else score.skip(test, `the npm package of ${name} is not for this machine`);
    }
  } finally {
    await host.stop();
  }
  await score.test("a bundle without the script of processes is told", () => bundled());
  await score.test("a library's document makes no page of Node.js", besideDocument);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await rm(folder, { recursive: true, force: true });
}
score.end();

/**
 * Runs a module, and compares what it prints. The process has to end by itself.
 * @param {Runtime} runtime @param {string} code  with `ENTRY`, the package's entry @param {RegExp[]} wanted  the lines
 * @returns {Promise<string[]>}
 */
async function prints({ program, args }, code, wanted) {
  const script = join(folder, "script.mjs");
  await writeFile(script, code.replaceAll("ENTRY", JSON.stringify(ENTRY)));
  /** @type {string[]} */
  const lines = [];
  const { code: status, said } = await runScript({ program, args }, [script], (line) => lines.push(line));
  return [
    ...wanted.flatMap((line, index) => (line.test(lines[index] ?? "") ? [] : [`${line}: ${lines[index]}`])),
    ...(lines.length > wanted.length ? [`more lines: ${lines}`] : []),
    ...(status === 0 ? [] : [`it ended with ${status}: ${said}`]),
  ];
}

/** @param {Runtime} runtime @param {string} url */
function onServer(runtime, url) {
  // Node.js has WebSockets since version 22, and behind a flag since 20.10.
  const isOld = runtime.program === process.execPath && !("WebSocket" in globalThis);
  const args = isOld ? ["--experimental-websocket", "--no-warnings", ...runtime.args] : runtime.args;
  const backend = (/** @type {string} */ apiKey) => JSON.stringify({ url, apiKey });
  return prints(
    { ...runtime, args },
    `import { createSandbox } from ENTRY;
    const sandbox = await createSandbox({ backend: ${backend(KEY)}, onLLMQuery: async (prompt) => "an answer to " + prompt });
    await sandbox.initialize("the context");
    await sandbox.writeFile("a.txt", "a file");
    const run = await sandbox.execute("print(context, '|', llm_query('x'), '|', open('a.txt').read())");
    console.log(run.error ?? run.stdout.trim());
    console.log(sandbox.capabilities.isolation, sandbox.capabilities.pyodide, await sandbox.readFile("a.txt", { encoding: "utf-8" }));
    const slow = await sandbox.execute("while True: pass", { timeout: 100 });
    console.log(slow.outcome);
    await sandbox.destroy();
    const moving = await createSandbox({ isolation: "none", onLLMQuery: async (prompt) => "an answer to " + prompt });
    await moving.initialize("the context");
    await moving.execute("import sys\\ndef f(n): return n and f(n - 1)\\nwhere = [sys.platform]");
    for (const target of [${backend(KEY)}, "browser"]) {
      const { lost } = await moving.moveTo(target);
      await moving.execute("where += [sys.platform, f(3), " + lost.length + "]");
    }
    console.log(JSON.stringify(await moving.getVariable("where")), (await moving.execute("llm_query(context)")).result);
    await moving.destroy();
    console.log(await createSandbox({ backend: ${backend("x".repeat(20))} }).catch(${TOLD}));`,
    [
      /^the context \| an answer to x \| a file$/,
      /^subprocess null a file$/,
      /^timeout$/,
      /^\["emscripten","linux",0,0,"emscripten",0,0\] 'an answer to the context'$/,
      /^SandboxError backend_unavailable: .*backend\.apiKey/,
    ],
  );
}

/**
 * Runs a bundle that finds all files but the script of processes, which a bundler knows nothing of.
 * @param {string} before  code that runs first @param {RegExp[]} more  the lines after those about the script
 */
async function bundled(before = "", more = []) {
  const out = join(folder, "bundle/out");
  await mkdir(out, { recursive: true });
  await esbuild.build({
    ...{ entryPoints: [ENTRY], outfile: join(out, "index.mjs"), bundle: true },
    ...{ format: "esm", platform: "node", logLevel: "silent" },
  });
  const assetsUrl = JSON.stringify(pathToFileURL(join(root, "dist/")).href);
  const told = /^SandboxError asset_failed: .*process\.mjs is not there.*leave the package sandglass out of the bundle/;
  return prints(
    { program: process.execPath, args: [] },
    `import { createSandbox } from ${JSON.stringify(join(out, "index.mjs"))};
    ${before}
    for (const isolation of [undefined, "none", ${more.length > 0 ? '"frame"' : ""}])
      console.log(await createSandbox({ assetsUrl: ${assetsUrl}, isolation }).catch(${TOLD}));`,
    [told, told, ...more],
  );
}

/** Checks that guests are processes beside a `document`, as jsdom gives one to Node.js. A page asks for no script of processes. */
function besideDocument() {
  const document = "globalThis.window = globalThis.self = { document: {} }; globalThis.document = window.document;";
  return bundled(document, [/^SandboxError invalid_option: isolation/]);
}
