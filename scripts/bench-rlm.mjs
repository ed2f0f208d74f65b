// npm run bench:rlm: the same model and tasks for Sandglass and other controllers of Recursive Language Models. Linux.
//   node scripts/bench-rlm.mjs [--quick] [--full] [--write] [--seeds 20] [--sizes 13,16,20] [--kinds count,pairs] [--contestants sandglass-host,rlms]
//     [--faults busy,cut] [--no-limits] [--writes 400] [--out target/bench-rlm]
//   node scripts/bench-rlm.mjs --calls-ahead [--write]
//     calls of sub-models that begin while a slow model still writes, side by side with none
//   node scripts/bench-rlm.mjs --local-sub-model [--write]
//     sub-calls are answered by a real model of 135 million parameters on this machine, in a task that it can do
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node scripts/bench-rlm.mjs --model large --sub-model small
//     asks a real endpoint instead of the scripted model
import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { CONTESTANTS } from "./bench/rlm/contestants.mjs";
import { measure } from "./bench/rlm/measure.mjs";
import { FAULTS, startModel } from "./bench/rlm/model.mjs";
import { faultTable, kindTable, limitTable, mainTable, sizeTable } from "./bench/rlm/report.mjs";
import { prepare } from "./bench/rlm/prepare.mjs";
import { inPicture, pageOf, publish } from "./bench/rlm/publish.mjs";
import { Dice } from "./bench/rlm/seeded.mjs";
import { startSmallModel } from "./bench/rlm/small-model.mjs";
import { picture } from "./bench/rlm/spread.mjs";
import { KINDS, SMALL, makeTask } from "./bench/rlm/tasks.mjs";
import { root } from "./project.mjs";
import { findProcess } from "./processes.mjs";

/** @import { Running } from "./bench/rlm/contestants.mjs" */
/** @import { Row } from "./bench/rlm/measure.mjs" */
/** @import { Behaviour } from "./bench/rlm/model.mjs" */
/** @import { Facts, Limits } from "./bench/rlm/report.mjs" */

const { values } = parseArgs({
  allowNegative: true,
  options: {
    quick: { type: "boolean", default: false },
    /** Each seed meets every kind of task and every size. Otherwise it meets a third of the kinds (in a quick run all), each in one size. */
    full: { type: "boolean", default: false },
    /** Puts the tables into BENCHMARKS.md, and the picture into docs/. */
    write: { type: "boolean", default: false },
    seeds: { type: "string" },
    sizes: { type: "string" },
    kinds: { type: "string" },
    contestants: { type: "string" },
    /** All of them by default, in a quick run two. */
    faults: { type: "string" },
    limits: { type: "boolean", default: true },
    out: { type: "string" },
    /** Tokens that the model writes per second. Large models write 30 to 100. */
    writes: { type: "string", default: "400" },
    model: { type: "string", default: "root" },
    "sub-model": { type: "string", default: "sub" },
    "calls-ahead": { type: "boolean", default: false },
    "local-sub-model": { type: "boolean", default: false },
  },
});
const list = (/** @type {string} */ text) => text.split(",").filter(Boolean);
const { quick } = values;
const { full } = values;
const real = process.env.OPENAI_BASE_URL;
const isSmall = values["local-sub-model"];
const isAhead = values["calls-ahead"];
const isLong = !quick && !full && !values.seeds && !values.sizes && !values.kinds && !values.contestants;
if (values.write && (real || !isLong))
  throw new Error("--write is for the long form with the scripted model: leave out all other options");
const seeds = Number(values.seeds ?? (quick ? 1 : isSmall ? 2 : isAhead ? 0 : 20));
const sizes = list(values.sizes ?? (isSmall ? "13" : quick ? "13,16" : "13,16,20")).map((power) => 2 ** Number(power));
const kinds = list(values.kinds ?? (isSmall ? SMALL : KINDS.join(",")));
const withLimits = values.limits && !isSmall && !isAhead;
const faults =
  real || isSmall || isAhead
    ? []
    : /** @type {(keyof typeof FAULTS)[]} */ (
        list(values.faults ?? (quick ? "busy,cut" : Object.keys(FAULTS).join(",")))
      );
const names = { model: values.model, subModel: values["sub-model"] };
/** A fast model, so that much of the time is the contestants'. @type {Behaviour} */
const STANDARD = { firstToken: 150, readsPerSecond: 100_000, writesPerSecond: Number(values.writes), errorRate: 0.02 };
const FAULT_RATE = 0.25;
/** The number of seeds with faults and limits. */
const faultSeeds = full ? seeds : Math.min(quick ? 1 : 4, seeds);
/** A large model's speed, which talks on behind its code, and whose code now and then ends in the middle: for calls ahead. @type {Behaviour} */
const SLOW_WRITER = { ...STANDARD, writesPerSecond: 50, talks: true, brokenRate: 0.1 };
/** The numbers of its seeds: those that all of ours meet, and those that one meets alone, to count what is in vain. */
const slowSeeds = isAhead ? { all: 5, ahead: 15 } : { all: 0, ahead: 0 };
/** Code that asks about so many texts at once as every contestant does by default, and the seeds of these runs. @type {Behaviour} */
const EQUAL = { ...STANDARD, atOnce: 8 };
const equalSeeds = quick || isSmall || isAhead ? 0 : Math.min(4, seeds);
/** Limits that a count of 2^15 tokens does not fit into. @type {Limits} */
const LIMITS = { calls: 10, seconds: 2, allTokens: 20_000 };
/** Seconds after which a run is ended. */
const TIMEOUT = quick ? 60 : 300;

const began = performance.now();
const usual = Object.entries(CONTESTANTS).filter(
  ([name, { plain }]) => ((!isSmall && !quick) || plain !== false) && (!isAhead || name.startsWith("sandglass")),
);
const { here, notes } = await prepare(
  values.contestants ? list(values.contestants) : usual.map(([name]) => name),
  quick,
);
/** Those that have started. @type {string[]} */
const contestants = [];
const form = isSmall ? "small" : isAhead ? "ahead" : quick ? "quick" : isLong ? "long" : "some";
const day = new Date().toISOString().slice(0, 16).replace(":", "");
const out = values.out ?? join(root, "target/bench-rlm", `${day}-${form}`);
mkdirSync(out, { recursive: true });
const lines = join(out, "runs.jsonl");
writeFileSync(lines, "");
const data = mkdtempSync(join(tmpdir(), "bench-rlm-"));
const small = isSmall ? await startSmallModel() : undefined;
const model = await startModel({
  ...(real && { endpoint: { url: real, key: process.env.OPENAI_API_KEY ?? "" } }),
  ...(small && { subModel: small.ask }),
});
if (!model.hasHttp2) {
  const note = "Pages spoke HTTP/1.1 with the model, because `openssl` was not here.";
  notes.push(note);
  console.log(note);
}
/** @type {Row[]} */
const rows = [];
/** @typedef {{ running: Running, start: number, scratch: string, seen: Map<number, string>, containers: number }} Started */
/** @type {Map<string, Started>} */
const started = new Map();

process.on("exit", () => {
  const folders = [data, ...[...started.values()].map(({ scratch }) => scratch)];
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});
for (const signal of /** @type {const} */ (["SIGINT", "SIGTERM"])) {
  process.once(signal, async () => {
    await Promise.allSettled([...started.values()].map(({ running }) => running.end()));
    await small?.close();
    process.exit(130);
  });
}

console.log(
  `The same model and tasks, side by side: ${cpus().length} × ${cpus()[0]?.model}, load ${loadavg()[0]?.toFixed(1)}`,
);
try {
  for (const name of here) if (await begin(name)) contestants.push(name);
  for (let seed = 1; seed <= seeds; seed++) {
    for (const [kind, size] of meets(seed)) await compare("standard", kind, seed, size, STANDARD);
  }
  for (let number = 1; number <= slowSeeds.all + slowSeeds.ahead; number++) {
    const scenario = number <= slowSeeds.all ? "slow writer" : "slow writer, ahead";
    for (const kind of ["needles", "count"]) await compare(scenario, kind, 300 + number, 2 ** 15, SLOW_WRITER);
  }
  for (let seed = 401; seed <= 400 + equalSeeds; seed++) {
    await compare("equal", "count", seed, 2 ** 15, EQUAL);
    await compare("equal", "needles", seed, 2 ** 16, EQUAL);
  }
  // The runs with faults and limits have seeds of their own.
  for (let seed = 101; seed <= 100 + faultSeeds; seed++) {
    for (const kind of faults)
      await compare(`fault ${kind}`, "count", seed, 2 ** 15, { ...STANDARD, fault: { kind, rate: FAULT_RATE } });
  }
  for (let seed = 201; seed <= (withLimits ? 200 : 0) + faultSeeds; seed++) {
    await compare("limit of calls", "count", seed, 2 ** 15, STANDARD, { calls: LIMITS.calls });
    await compare("limit of tokens", "count", seed, 2 ** 15, STANDARD, { allTokens: LIMITS.allTokens });
    await compare(
      "limit of time",
      "count",
      seed,
      2 ** 15,
      { ...STANDARD, firstToken: 1000 },
      { seconds: LIMITS.seconds },
    );
  }
} catch (error) {
  console.error(error); // what was measured until then is told
  process.exitCode = 1;
} finally {
  for (const own of started.values()) await end(own);
  await model.close();
  await small?.close();
}
/** @type {Facts[]} */
const facts = [...started].map(([name, own]) => ({
  ...{ name, start: own.start, version: own.running.version, isolation: CONTESTANTS[name]?.isolation ?? "" },
  ...{ title: CONTESTANTS[name]?.title ?? name, plain: CONTESTANTS[name]?.plain !== false },
  faults: CONTESTANTS[name]?.faults !== false,
  left: leftBehind(own),
}));

const plain = facts.filter((fact) => fact.plain);
const tried = plain.filter((fact) => fact.faults);
const tables = [
  mainTable(rows, facts),
  kindTable(rows, facts),
  ...(sizes.length > 1 ? [sizeTable(rows, facts)] : []),
  ...(faults.length ? [faultTable(rows, tried)] : []),
  ...(withLimits ? [limitTable(rows, tried, LIMITS, (name) => CONTESTANTS[name] ?? {})] : []),
];
const versions = facts.map(({ name, version, isolation }) => `${name}: ${version}; code is isolated by: ${isolation}`);
writeFileSync(join(out, "tables.md"), `${[...tables, versions.join("\n\n")].join("\n\n")}\n`);
writeFileSync(join(out, "spread.svg"), picture(rows, inPicture(facts)));
const spent = Math.round((performance.now() - began) / 60_000);
const about = {
  ...{ date: new Date(), machine: `${cpus().length} × ${cpus()[0]?.model.trim()}`, load: loadavg()[1] ?? 0, spent },
  ...{ revision: revision(), notes },
};
const measured = { facts, about, limits: LIMITS, form };
writeFileSync(join(out, "facts.json"), JSON.stringify(measured));
writeFileSync(join(out, "page.md"), pageOf({ ...measured, rows }));
if (values.write && !process.exitCode) publish({ ...measured, rows });
console.log(
  `\n${tables.join("\n\n")}\n\n${versions.join("\n")}\n\nTables, picture and raw lines, after ${spent} minutes: ${out}`,
);

/** The commit that was measured. */
function revision() {
  const git = (/** @type {string[]} */ ...args) => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim();
  try {
    return `${git("rev-parse", "--short", "HEAD")}${git("status", "--porcelain") ? " and changes" : ""}`;
  } catch {
    return "an unknown commit";
  }
}

/** The kinds and sizes of tasks that a seed meets. Without `--full`, a kind meets one size at a time, and in the long form all of them equally often. @param {number} seed @returns {[string, number][]} */
function meets(seed) {
  if (quick) return kinds.map((kind, index) => [kind, sizes[index % sizes.length] ?? 0]);
  if (full) return kinds.flatMap((kind) => sizes.map((size) => /** @type {[string, number]} */ ([kind, size])));
  const some = kinds.filter((_, index) => kinds.length === 1 || (index + seed) % 3 === 0);
  return some.map((kind, index) => [kind, sizes[(Math.floor((seed - 1) / 3) + index) % sizes.length] ?? 0]);
}

/** Starts a contestant. One that does not start takes no further part. @param {string} name */
async function begin(name) {
  const scratch = started.get(name)?.scratch ?? mkdtempSync(join(tmpdir(), `bench-rlm-${name}-`));
  chmodSync(scratch, 0o755); // guests of the host run as users of their own
  const before = performance.now();
  const contestant = CONTESTANTS[name];
  if (!contestant) throw new Error(`unknown contestant ${name}: ${Object.keys(CONTESTANTS).join(", ")}`);
  const running = await contestant.start(scratch).catch((error) => {
    const note = `\`${name}\` did not start${started.has(name) ? " again" : ""}: ${error.message}`;
    console.error(note);
    notes.push(note);
  });
  if (!running) return false;
  const { start = (performance.now() - before) / 1000, seen = new Map(), containers = 0 } = started.get(name) ?? {};
  started.set(name, { running, start, scratch, seen, containers });
  return true;
}

/**
 * Gives all contestants the same task, one after the other, in an order by chance.
 * @param {string} scenario @param {string} kind @param {number} seed @param {number} tokens @param {Behaviour} behaviour
 * @param {Partial<Limits>} [limits]
 */
async function compare(scenario, kind, seed, tokens, behaviour, limits = {}) {
  const task = makeTask(kind, seed, tokens);
  const file = join(data, "context.txt");
  writeFileSync(file, task.context);
  const shuffled = new Dice("order", scenario, kind, seed).some(contestants, contestants.length);
  for (const name of shuffled) {
    const contestant = CONTESTANTS[name];
    const own = started.get(name);
    if (!contestant || !own) continue;
    if (!takesPart(name, contestant, scenario)) continue;
    const kinds = /** @type {(keyof Limits)[]} */ (Object.keys(limits));
    if (kinds.some((kind) => !contestant[kind])) continue;
    const { running, seen } = own;
    const how = {
      name,
      contestant,
      running,
      task,
      file,
      behaviour,
      scenario,
      model,
      limits,
      names,
      timeout: TIMEOUT,
      seen,
    };
    const { row, calls, hasFailed } = await measure(how);
    rows.push(row);
    appendFileSync(lines, `${JSON.stringify({ ...row, calls })}\n`);
    const said = row.error ? `  ${row.error.slice(0, 120)}` : "";
    console.log(
      `${scenario.padEnd(15)} ${kind.padEnd(8)} ${String(tokens).padStart(7)} seed ${String(seed).padEnd(3)} ${name.padEnd(18)} ` +
        `score ${row.score.toFixed(2)}  ${row.wall.toFixed(2).padStart(6)} s, the model's ${row.model.toFixed(2).padStart(6)} s${said}`,
    );
    if (hasFailed) {
      await end(own);
      if (!(await begin(name))) contestants.splice(contestants.indexOf(name), 1);
    }
  }
}

/** @param {string} name @param {import("./bench/rlm/contestants.mjs").Contestant} contestant @param {string} scenario */
function takesPart(name, { plain, faults }, scenario) {
  if (scenario === "standard") return true;
  if (scenario.startsWith("slow writer"))
    return scenario === "slow writer" ? name.startsWith("sandglass") : name === "sandglass-host-ahead";
  return plain !== false && (faults !== false || scenario === "equal");
}

/** Ends a contestant. @param {Started} own */
async function end(own) {
  own.containers += Number((await own.running.end().catch(() => 0)) ?? 0);
}

/** Processes, containers and files that a contestant left. @param {Started} own */
function leftBehind({ scratch, seen, containers }) {
  const alive = [...seen].filter(([id, start]) => findProcess(id)?.started === start).length;
  const files = readdirSync(scratch, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const bytes = files.reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0);
  const parts = [
    ...(alive ? [`${alive} processes`] : []),
    ...(containers ? [`${containers} containers`] : []),
    ...(files.length ? [`${files.length} files, ${(bytes / 1e6).toFixed(1)} MB`] : []),
  ];
  return parts.join("; ") || "nothing";
}
