// Samples of documents, run as a reader would run them.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { root } from "../../scripts/project.mjs";
import { listen } from "../../scripts/serve.mjs";
import { program } from "./host.mjs";

/** Seconds until a sample has failed. */
const SAMPLE_SECONDS = 120;
/** The server that samples for a shell talk to, unless they start one. */
const SERVER = "127.0.0.1:8788";

/**
 * The block of code that stands below a document's title. Its language may have a second word, as in "js worker".
 * @param {string} text
 * @returns {{ language: string, source: string } | undefined}
 */
export function firstSample(text) {
  const [, language = "", source = ""] = /^# [^\n]*\n\n```(\w+(?: \w+)?)\n(.*?)^```/ms.exec(text) ?? [];
  return language ? { language, source } : undefined;
}

/** The lines that a sample says it prints, each behind an arrow. @param {string} source @returns {string[]} */
export function promised(source) {
  return [...source.matchAll(/(?:\/\/|#) → (.*)/g)].map(([, text = ""]) => text);
}

/**
 * The differences between what a sample printed and what it promised. A "…" in a promise stands for any text, and all white space is
 * alike.
 * @param {string[]} printed
 * @param {string[]} expected
 */
export function differences(printed, expected) {
  const fits = (/** @type {string} */ line, /** @type {string} */ promise) => {
    const parts = promise.split("…").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    return new RegExp(`^${parts.join(".*")}$`, "s").test(line.replace(/\s+/g, " ").trim());
  };
  const wrong = expected.flatMap((promise, index) =>
    fits(printed[index] ?? "", promise) ? [] : [`it says "${promise}" and printed "${printed[index]}"`],
  );
  if (expected.length === 0) wrong.push("it does not say what it prints");
  if (printed.length > expected.length) wrong.push(`it prints more: ${printed.slice(expected.length).join("\n")}`);
  return wrong;
}

/** The entries of the package, by their names. */
const ENTRIES = {
  sandglass: "/pyodide-glue/index.js",
  "sandglass/rlm": "/pyodide-glue/rlm.js",
  "sandglass/models": "/pyodide-glue/models.js",
  "sandglass/ai": "/dist/ai.js",
  "sandglass/display": "/dist/display.js",
};

/** A module whose imports have addresses in place of the package's names, as a bundler would do it. @param {string} source @param {string} origin */
const withAddresses = (source, origin) =>
  source.replace(/(\bfrom\s+)"(sandglass[\w/]*)"/g, (_, from, name) => {
    return `${from}"${origin}${ENTRIES[/** @type {keyof typeof ENTRIES} */ (name)]}"`;
  });

/**
 * Runs a module in a page that knows the package by its names. Resolves to the lines that it logged.
 * @param {import("puppeteer-core").Page} page
 * @param {string} source
 * @returns {Promise<string[]>}
 */
export function runInPage(page, source) {
  const run = async (/** @type {string} */ source, /** @type {typeof ENTRIES} */ imports) => {
    if (!document.querySelector('script[type="importmap"]')) {
      const map = document.createElement("script");
      map.type = "importmap";
      map.textContent = JSON.stringify({ imports });
      document.head.append(map);
    }
    /** @type {string[]} */
    const lines = [];
    console.log = (...values) => lines.push(values.map(String).join(" "));
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    await import(url);
    return lines;
  };
  return page.evaluate(run, source, ENTRIES);
}

/**
 * Runs a module in a worker of the page. Resolves to the lines that it logged.
 * @param {import("puppeteer-core").Page} page
 * @param {string} source
 * @returns {Promise<string[]>}
 */
export function runInWorker(page, source) {
  const run = (/** @type {string} */ source) => {
    const report = `
      globalThis.lines = [];
      console.log = (...values) => lines.push(values.map(String).join(" "));
      addEventListener("unhandledrejection", ({ reason }) => postMessage({ failed: String(reason) }));`;
    const [begin, module] = [report, source].map((text) => new Blob([text], { type: "text/javascript" }));
    const parts = [begin, module].map((blob) => `await import("${URL.createObjectURL(/** @type {Blob} */ (blob))}");`);
    const main = new Blob([...parts, "postMessage({ lines });"], { type: "text/javascript" });
    const worker = new Worker(URL.createObjectURL(main), { type: "module" });
    return new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => (data.failed ? reject(new Error(data.failed)) : resolve(data.lines));
      worker.onerror = ({ message }) => reject(new Error(message ?? "the worker could not be started"));
    }).finally(() => worker.terminate());
  };
  return page.evaluate(run, withAddresses(source, new URL(page.url()).origin));
}

/**
 * Opens a page that has a script `/app.js`. Resolves to the lines that the script logged.
 * @param {import("puppeteer-core").Page} page
 * @param {string} html
 * @param {string} app
 * @returns {Promise<string[]>}
 */
export async function runWithPage(page, html, app) {
  const origin = new URL(page.url()).origin;
  /** @type {string[]} */
  const lines = [];
  const ended = new Promise((resolve) => {
    page.on("console", (message) => {
      if (message.type() === "error") resolve(lines.push(message.text()));
      else if (message.text() === "the end") resolve(undefined);
      else lines.push(message.text());
    });
    page.on("pageerror", (error) => resolve(lines.push(String(error))));
  });
  /** @type {Map<string, { contentType: string, body: string }>} */
  const made = new Map([
    [`${origin}/sample.html`, { contentType: "text/html; charset=utf-8", body: html }],
    [
      `${origin}/app.js`,
      { contentType: "text/javascript", body: `${withAddresses(app, origin)}\nconsole.log("the end");` },
    ],
  ]);
  await page.setRequestInterception(true);
  page.on("request", (request) => {
    const answer = made.get(request.url());
    return answer ? request.respond(answer) : request.continue();
  });
  await page.goto(`${origin}/sample.html`);
  await ended;
  return lines;
}

/**
 * Runs a script of a shell in an empty folder, with `sandglass-host` on its path. Resolves to the lines that it printed.
 * @param {string} source
 * @param {{ server: string }} options  the address that stands for the documents' server
 */
export async function runInShell(source, { server }) {
  const starts = source.includes("sandglass-host serve");
  let address = starts ? `127.0.0.1:${await freePort()}` : server.replace("http://", "");
  if (source.includes("nats-server")) {
    // Several servers have fixed ports, at an address that no other process has.
    const own = [127, 192 + ((process.pid >> 16) & 63), (process.pid >> 8) & 255, process.pid & 255].join(".");
    source = source.replaceAll("127.0.0.1", own);
    address = `${own}:8788`;
  }
  const script = `set -euo pipefail\n${source.replaceAll(SERVER, address)}`;
  // Servers that it starts are of its process group, and end with it.
  const printed = await runProgram("bash", ["-c", script], {
    SANDGLASS_LISTEN: address,
    ...(source.includes("--backend jupyter") && { SANDGLASS_PYTHON: join(root, ".setup/jupyter/7/bin/python") }),
  });
  return printed.filter((line) => !line.startsWith("listening on "));
}

/**
 * Runs a Python script with the package that the wheel holds.
 * @param {string} source
 * @param {{ python?: string, env?: Record<string, string> }} [options]
 */
export function runInPython(source, { python = ".venv/bin/python", env = {} } = {}) {
  return runProgram(join(root, python), ["-c", source], { PYTHONPATH: join(root, "pyodide-glue/python"), ...env });
}

/** Runs a sample in Node.js. It lies in this package, so that it can import the package by name. @param {string} source */
export async function runInNode(source) {
  const folder = join(root, ".setup/runtimes");
  await mkdir(folder, { recursive: true });
  const path = join(folder, "sample.mjs");
  await writeFile(path, source);
  return runProgram(process.execPath, [path], {});
}

/** @param {string} command @param {string[]} args @param {Record<string, string>} env @returns {Promise<string[]>} */
async function runProgram(command, args, env) {
  if (!existsSync(program)) throw new Error(`there is no ${program}: cargo build -p sandglass-cli`);
  const folder = await mkdtemp(join(tmpdir(), "sandglass-sample-"));
  // Each answer ends its line.
  await writeFile(join(folder, ".curlrc"), 'write-out = "\\n"\n');
  const path = [dirname(program), join(root, ".setup/nats"), process.env.PATH].join(delimiter);
  const child = spawn(command, args, {
    cwd: folder,
    detached: true,
    env: { ...process.env, PATH: path, HOME: folder, NO_COLOR: "1", PYTHONDONTWRITEBYTECODE: "1", ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const endGroup = () => {
    try {
      process.kill(-(/** @type {number} */ (child.pid)), "SIGTERM");
    } catch {
      // Nothing of it is left.
    }
  };
  const timer = setTimeout(endGroup, SAMPLE_SECONDS * 1000);
  let out = "";
  let said = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
  child.stderr.setEncoding("utf8").on("data", (text) => (said += text));
  try {
    const closed = new Promise((resolve) => child.once("close", resolve));
    const code = await new Promise((resolve, reject) => {
      child.once("error", reject);
      child.once("exit", (code, signal) => resolve(code ?? signal));
    });
    endGroup();
    await closed;
    if (code !== 0) throw new Error(`it ended with ${code}\n${out}\n${said.slice(-4000)}`);
    return out.split("\n").filter((line) => line !== "");
  } finally {
    clearTimeout(timer);
    endGroup();
    await rm(folder, { recursive: true, force: true });
  }
}

/** A port that was free a moment ago. */
async function freePort() {
  const { port, close } = await listen(createServer());
  await close();
  return port;
}
