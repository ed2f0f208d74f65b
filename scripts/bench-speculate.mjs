// npm run bench:speculate: measures in real time how much work ahead helps recorded sessions of a controller. Linux.
//   node scripts/bench-speculate.mjs [--browser chromium|firefox | --dataframes] [--sessions part-of-a-name-or-style]
//       [--ways hints,stream] [--tuning]
// --dataframes replays the sessions over DataFrames instead: in guests on this machine, with pandas, and without the
// way `list`.
// Sessions that something was tuned on are left out, unless --tuning asks for these alone. Each session is replayed in
// these ways:
//   none      without work ahead: the baseline of the others
//   list      with a few fixed looks at the context hinted at before each reply, which need no knowledge of the session
//   templates with the sandbox's own predictions (predictions: "auto"), which know the model's words only
//   hints     with the first block of a reply hinted at as soon as it is closed
//   stream    with the first block of a reply given to executeStream while it is written, as runRlm does
//   five      with five codes of the session hinted at before the model begins, of which one comes. Their order is by chance,
//             the same in each run
//   oracle    with the next code hinted at before the model begins: the upper bound
// The pace of the models is an assumption (PACE), because recordings have no times that others could repeat. A reply
// comes token by token. Its end is a token too, as with any endpoint that streams.
import { readFileSync, readdirSync } from "node:fs";
import { cpus } from "node:os";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { cpuSeconds, megabytes } from "./processes.mjs";
import { candidates } from "./bench/candidates.mjs";
import { quantile } from "./bench/quantile.mjs";
import * as dataframes from "./bench/dataframes.mjs";
import { dataFile, prepare } from "./bench/session-data.mjs";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { CROSS_ORIGIN_ISOLATED, serve } from "./serve.mjs";

/** @import { Operation, Pace, Turn, Way } from "./bench/speculate.js" */
/** @typedef {{ started: number, used: number, timeWasted: number }} Ahead */
/** @typedef {Operation & { guesses?: number, guessed?: boolean }} Guessed */
/** @typedef {{ operations: Guessed[], ahead: Ahead, wall: number, cpu: number, memory: number }} Replayed */
/** @typedef {{ name: string, purpose: string, style?: string, turns: (Turn & { outcome?: string })[], data: import("./bench/session-data.mjs").Data }} Session */
/**
 * Replays sessions in processes of its own.
 * @typedef {object} Replayer
 * @property {string} title
 * @property {() => number | undefined} id
 * @property {(session: any, way: Way) => Promise<{ operations: Guessed[], ahead: Ahead }>} replay
 * @property {() => Promise<unknown>} close
 */

/**
 * The assumed pace: milliseconds until a reply begins, characters a second (60 tokens of 4), milliseconds of a
 * sub-model.
 * @type {Pace}
 */
const PACE = { think: 800, charsPerSecond: 240, answer: 700 };
/** Shorter waits, in milliseconds, are not noticed. */
const NOTICED = 20;

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    sessions: { type: "string", default: "" },
    ways: { type: "string" },
    tuning: { type: "boolean", default: false },
    dataframes: { type: "boolean", default: false },
  },
});
const ALL = values.dataframes ? "templates,hints,stream,five,oracle" : "list,templates,hints,stream,five,oracle";
const ways = /** @type {Way[]} */ (["none", ...(values.ways ?? ALL).split(",")]);
const sessions = (values.dataframes ? dataframes.sessions() : inBrowsers())
  .filter(({ name, style }) => name.includes(values.sessions) || style === values.sessions)
  .filter(({ purpose }) => purpose === (values.tuning ? "tuning" : "reporting"));
for (const { turns } of sessions) {
  const codes = turns.map(codeOf);
  for (const [at, turn] of turns.entries()) turn.candidates = candidates(codes, at);
}
/** @type {Record<Way, Replayed[]>} */
const all = { none: [], list: [], templates: [], hints: [], stream: [], five: [], oracle: [] };
const replayer = await (values.dataframes ? native() : browsers());
try {
  console.log(`Work ahead in ${sessions.length} sessions: ${replayer.title}, ${cpus().length} × ${cpus()[0]?.model}`);
  console.log(`A model that begins after ${PACE.think} ms and writes ${PACE.charsPerSecond} characters a second.\n`);
  // Work that a browser or a disk does only once counts for no way.
  if (sessions[0]) await measure({ ...sessions[0], turns: sessions[0].turns.slice(0, 2) }, "stream");
  for (const [at, session] of sessions.entries()) {
    for (const way of at % 2 ? ways.toReversed() : ways) all[way].push(await measure(session, way));
  }
} finally {
  await replayer.close();
}
report();

/** @param {any} session @param {Way} way @returns {Promise<Replayed>} */
async function measure(session, way) {
  const id = replayer.id();
  const [began, before] = [performance.now(), cpuSeconds(id)];
  let [memory, cpu] = [0, before];
  // Ending a killed guest takes time, which must not count for the next way.
  const look = () => {
    memory = Math.max(memory, megabytes(id));
    cpu = Math.max(cpu, cpuSeconds(id));
  };
  const watch = setInterval(look, 500);
  const done = await replayer.replay(session, way);
  clearInterval(watch);
  look();
  return { ...done, wall: (performance.now() - began) / 1000, cpu: cpu - before, memory };
}

/** The code that a turn runs first. @param {any} turn @returns {string} */
function codeOf(turn) {
  return turn.code ?? turn.executions[0]?.code ?? "";
}

/** @returns {Session[]} */
function inBrowsers() {
  const folder = join(root, "tests/sessions");
  const files = readdirSync(folder).filter((file) => file.endsWith(".json"));
  return files.map((file) => ({ name: file.slice(0, -5), ...JSON.parse(readFileSync(join(folder, file), "utf8")) }));
}

/** @returns {Promise<Replayer>} */
async function browsers() {
  await prepare();
  const server = await serve(root, {
    headers: CROSS_ORIGIN_ISOLATED,
    folders: { node_modules: join(root, "node_modules") },
  });
  const browser = await launch(/** @type {"chromium" | "firefox"} */ (values.browser));
  return {
    title: await browser.version(),
    id: () => browser.process()?.pid,
    async replay(session, way) {
      const page = await browser.newPage();
      page.setDefaultTimeout(0);
      page.on("pageerror", (error) => console.error(error));
      await page.goto(`${server.url}/scripts/bench/speculate.html`);
      await page.waitForFunction("window.replay");
      const done = await page.evaluate(
        // @ts-expect-error: scripts/bench/speculate.js defines it
        (session, context, way, pace) => window.replay(session, context, way, pace),
        session,
        `/${relative(root, dataFile(session.data))}`,
        way,
        PACE,
      );
      await page.close();
      return done;
    },
    close: async () => (await browser.close(), await server.close()),
  };
}

/** @returns {Promise<Replayer>} */
async function native() {
  const program = await dataframes.start();
  return {
    title: "native guests with pandas",
    id: () => program.id,
    replay: ({ turns }, way) => program.replay({ turns, way, pace: PACE }),
    close: async () => program.close(),
  };
}

function report() {
  const base = all.none;
  for (const [at, { turns, name }] of sessions.entries()) {
    const recorded = turns.flatMap((turn) => turn.outcome ?? []);
    const otherwise = recorded.filter((outcome, index) => outcome !== base[at]?.operations[index]?.outcome);
    if (otherwise.length === 0) continue;
    process.exitCode = 1;
    console.log(`${name}: ${otherwise.length} executions ended otherwise than when they were recorded`);
  }
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
      ...guesses(way),
      "runs ahead that were used": share(sum(replayed.map(({ ahead }) => ahead.used)), started),
      "ran for nothing": `${(sum(replayed.map(({ ahead }) => ahead.timeWasted)) / 1000).toFixed(1)} s`,
      "more computing, of the time that passed": `${((cpu / wall) * 100).toFixed(1)} %`,
      "memory at most, more than without": `${Math.max(...replayed.map(({ memory }) => memory)).toFixed(0)} MB, ${median(replayed.map((run, at) => run.memory - (base[at]?.memory ?? 0))).toFixed(0)} MB (median)`,
    };
    console.log(way);
    for (const [what, figure] of Object.entries(lines)) console.log(`  ${what.padEnd(52)} ${figure}`);
    if (differs > 0) console.log(`  ${differs} executions ended otherwise than without`);
    console.log();
  }
}

/** The share of codes that were among the guesses, for cells of notebooks and of agents. @param {Way} way */
function guesses(way) {
  const lines = /** @type {Record<string, string>} */ ({});
  if (way !== "templates") return lines;
  for (const style of new Set(sessions.flatMap(({ style }) => style ?? []))) {
    const made = all[way].flatMap(({ operations }, at) => (sessions[at]?.style === style ? operations : []));
    const right = made.filter(({ guessed }) => guessed);
    const worth = right.filter(({ duration }) => duration >= NOTICED);
    lines[`code that was among the guesses (${style})`] =
      `${right.length} of ${made.length}, ${worth.length} of them taking ${NOTICED} ms or more`;
  }
  return lines;
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
