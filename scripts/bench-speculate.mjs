// npm run bench:speculate: what work ahead brings in recorded sessions of a controller, in real time. Linux.
//   node scripts/bench-speculate.mjs [--browser chromium|firefox] [--sessions part-of-a-name] [--ways hints,stream] [--tuning]
// Only the sessions that nothing was tuned on are replayed, unless --tuning asks for the others. Each is replayed
//   none      without any work ahead: what the others are measured by
//   list      with the same few looks at the context hinted at before each reply, as somebody would who knows nothing
//   templates with nothing told but what the model says before its code: predictions of the sandbox's own (predictions: "auto")
//   hints     with the first block of a reply hinted at once it is closed
//   stream    with the first block of a reply given to executeStream as it is written; runRlm does the same
//   five      with five codes of the session hinted at before the model has begun, of which one comes; their order is by chance, the same in each run
//   oracle    with the next code hinted at before the model has begun: the most that could be had
// The models' pace is an assumption (PACE): recordings have no times that others could repeat. A reply comes token by token, and that it ends is a
// token too, as with any endpoint that streams.
import { readFileSync, readdirSync } from "node:fs";
import { cpus } from "node:os";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { cpuSeconds, megabytes } from "./processes.mjs";
import { candidates } from "./bench/candidates.mjs";
import { quantile } from "./bench/quantile.mjs";
import { dataFile, prepare } from "./bench/session-data.mjs";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { CROSS_ORIGIN_ISOLATED, serve } from "./serve.mjs";

/** @import { Operation, Pace, Turn, Way } from "./bench/speculate.js" */
/** @typedef {{ operations: Operation[], ahead: { started: number, used: number }, wall: number, cpu: number, memory: number }} Replayed */

/** Milliseconds until a reply begins, characters a second (60 tokens of 4), milliseconds that a sub-model takes. @type {Pace} */
const PACE = { think: 800, charsPerSecond: 240, answer: 700 };
/** Below this nobody notices a hit, milliseconds. */
const NOTICED = 20;

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    sessions: { type: "string", default: "" },
    ways: { type: "string", default: "list,templates,hints,stream,five,oracle" },
    tuning: { type: "boolean", default: false },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);
const ways = /** @type {Way[]} */ (["none", ...values.ways.split(",")]);
const folder = join(root, "tests/sessions");
const sessions = readdirSync(folder)
  .filter((file) => file.endsWith(".json") && file.includes(values.sessions))
  .map((file) => ({ name: file.slice(0, -5), ...JSON.parse(readFileSync(join(folder, file), "utf8")) }))
  .filter(({ purpose }) => purpose === (values.tuning ? "tuning" : "reporting"));
for (const { turns } of sessions) {
  const codes = turns.map((/** @type {Turn} */ turn) => turn.executions[0]?.code ?? "");
  for (const [at, turn] of turns.entries()) turn.candidates = candidates(codes, at);
}
await prepare();

const server = await serve(root, {
  headers: CROSS_ORIGIN_ISOLATED,
  folders: { node_modules: join(root, "node_modules") },
});
/** @type {Record<Way, Replayed[]>} */
const all = { none: [], list: [], templates: [], hints: [], stream: [], five: [], oracle: [] };
const browser = await launch(name);
try {
  console.log(
    `Work ahead in ${sessions.length} sessions: ${await browser.version()}, ${cpus().length} × ${cpus()[0]?.model}`,
  );
  console.log(`A model that begins after ${PACE.think} ms and writes ${PACE.charsPerSecond} characters a second.\n`);
  // What a browser does only once is nobody's.
  if (sessions[0]) await replay({ ...sessions[0], turns: sessions[0].turns.slice(0, 2) }, "stream");
  for (const [at, session] of sessions.entries()) {
    for (const way of at % 2 ? ways.toReversed() : ways) all[way].push(await replay(session, way));
  }
} finally {
  await browser.close();
  await server.close();
}
report();

/** @param {{ turns: Turn[], data: import("./bench/session-data.mjs").Data }} session @param {Way} way @returns {Promise<Replayed>} */
async function replay(session, way) {
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  page.on("pageerror", (error) => console.error(error));
  await page.goto(`${server.url}/scripts/bench/speculate.html`);
  await page.waitForFunction("window.replay");
  const id = browser.process()?.pid;
  const [began, cpu] = [performance.now(), cpuSeconds(id)];
  let memory = 0;
  const watch = setInterval(() => (memory = Math.max(memory, megabytes(id))), 500);
  const done = await page.evaluate(
    // @ts-expect-error: scripts/bench/speculate.js defines it
    (session, context, way, pace) => window.replay(session, context, way, pace),
    session,
    `/${relative(root, dataFile(session.data))}`,
    way,
    PACE,
  );
  clearInterval(watch);
  const used = { wall: (performance.now() - began) / 1000, cpu: cpuSeconds(id) - cpu, memory };
  await page.close();
  return { ...done, ...used };
}

function report() {
  const base = all.none;
  const executed = sum(base.flatMap(({ operations }) => operations.map(({ duration }) => duration)));
  const operations = base.flatMap(({ operations }) => operations).length;
  console.log(`${operations} executions, ${(executed / 1000).toFixed(1)} s of Python without work ahead\n`);
  for (const way of ways) {
    const replayed = all[way];
    const pairs = replayed.flatMap((run, at) =>
      run.operations.map((operation, index) => ({ ...operation, before: base[at]?.operations[index] })),
    );
    const differs = pairs.filter(({ outcome, before }) => outcome !== before?.outcome).length;
    const served = pairs.filter(({ served }) => served);
    const noticed = served.filter(({ before }) => (before?.duration ?? 0) >= NOTICED);
    const started = sum(replayed.map(({ ahead }) => ahead.started));
    const wall = sum(replayed.map(({ wall }) => wall));
    const cpu = sum(replayed.map((run, at) => run.cpu - (base[at]?.cpu ?? 0)));
    const lines = {
      "executions served": share(served.length, pairs.length),
      "of Python's time, done before it was asked for": share(
        sum(pairs.map(({ saved }) => saved)),
        sum(pairs.map(({ duration }) => duration)),
      ),
      [`waited for a hit of ${NOTICED} ms or more, instead of`]: `${ms(median(noticed.map(({ latency }) => latency)))}, ${ms(median(noticed.map(({ before }) => before?.latency ?? NaN)))} (n ${noticed.length})`,
      "waited for all executions": `${(sum(pairs.map(({ latency }) => latency)) / 1000).toFixed(1)} s`,
      "waited for one that is no hit, p95, instead of": (() => {
        const misses = pairs.filter(({ served }) => !served);
        return `${ms(
          quantile(
            misses.map(({ latency }) => latency),
            0.95,
          ),
        )}, ${ms(
          quantile(
            misses.map(({ before }) => before?.latency ?? NaN),
            0.95,
          ),
        )}`;
      })(),
      "runs ahead that were used": share(sum(replayed.map(({ ahead }) => ahead.used)), started),
      "more computing, of the time that passed": `${((cpu / wall) * 100).toFixed(1)} %`,
      "memory of the browser at most, more than without": `${Math.max(...replayed.map(({ memory }) => memory)).toFixed(0)} MB, ${median(replayed.map((run, at) => run.memory - (base[at]?.memory ?? 0))).toFixed(0)} MB (median)`,
    };
    console.log(way);
    for (const [what, figure] of Object.entries(lines)) console.log(`  ${what.padEnd(52)} ${figure}`);
    if (differs > 0) console.log(`  ${differs} executions ended otherwise than without`);
    console.log();
  }
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

/** @param {number} part @param {number} whole */
function share(part, whole) {
  return whole > 0 ? `${((part / whole) * 100).toFixed(0)} %` : "none";
}

/** @param {number} milliseconds */
function ms(milliseconds) {
  return Number.isNaN(milliseconds) ? "–" : `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
}

/** @param {number[]} numbers */
function median(numbers) {
  return quantile(numbers, 0.5);
}
