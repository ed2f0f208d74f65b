// npm run bench:states: what keeping a session's state costs, beside rivals, over 40 cells of a data session. Needs Linux and bubblewrap.
//   node scripts/bench-states.mjs [--rounds 7] [--only copies,kishu] [--rows plain,resident] [--write]
//   --write puts the table into BENCHMARKS.md. SANDGLASS_HOST names another program than that of target/release.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { quantile } from "./bench/quantile.mjs";
import { between } from "./bench/rlm/page.mjs";
import { mustRun, root, run } from "./project.mjs";

/** The mark of the part of BENCHMARKS.md: its command. */
const MARK = "<!-- npm run bench:states -- --write -->";
const PACKAGES = join(root, "scripts/bench/states/packages.txt");
const SCRIPT = join(root, "scripts/bench/states/states.py");
const PYTHON = join(root, ".setup/states/bin/python");
const HOST = process.env.SANDGLASS_HOST ?? join(root, "target/release/sandglass-host");
/** The program that stores portable states as a server does. */
const STORE = join(root, "target/release/examples/stored");
const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `bench-states-${name}.log`);

const pinned = readFileSync(PACKAGES, "utf8")
  .split("\n")
  .filter((line) => /^\w/.test(line));
const versionOf = (/** @type {string} */ name) => pinned.find((line) => line.startsWith(`${name}==`))?.split("==")[1];
/** The ways to keep a state, with their titles. @type {Record<string, string>} */
const WAYS = {
  copies: "Sandglass, `checkpoints`: cells back to back",
  "copies-apart": "– the same, cells 100 ms apart",
  kept: "Sandglass, `persist`: cells back to back",
  "kept-apart": "– the same, cells 3 s apart",
  portable: "Sandglass, a portable state after each cell",
  cloudpickle: `all variables by cloudpickle ${versionOf("cloudpickle")} and lz4 ${versionOf("lz4")}`,
  kishu: `Kishu ${versionOf("kishu")}`,
};
/** The rows: what is there before the first cell, and how often each way is measured. @type {Record<string, { title: string, rounds: number }>} */
const ROWS = {
  plain: { title: "the session alone", rounds: 3 },
  resident: { title: "with 1 GB more, which does not change", rounds: 1 },
};

const { values } = parseArgs({
  options: {
    rounds: { type: "string" },
    only: { type: "string", default: Object.keys(WAYS).join(",") },
    rows: { type: "string", default: Object.keys(ROWS).join(",") },
    write: { type: "boolean", default: false },
  },
});
const ways = chosen("only", values.only, WAYS);
const rounds = values.rounds === undefined ? undefined : Number(values.rounds);
if (rounds !== undefined && !(Number.isInteger(rounds) && rounds > 0))
  throw new Error("--rounds takes a number from 1 on");
const rows = chosen("rows", values.rows, ROWS);

/** @typedef {{ run: number[], total: number[], bytes: number, states: number }} Measured */
/** Why a way cannot be measured. @type {Map<string, string>} */
const problems = new Map();
/** @type {string[]} */
const lines = [];

await prepare();
const load = loadavg()[0] ?? NaN;
for (const row of rows) {
  const { title, rounds: usual } = /** @type {{ title: string, rounds: number }} */ (ROWS[row]);
  lines.push(`| **${title}** | | | | |`);
  console.log(title);
  const measured = await inTurns(row, rounds ?? usual);
  for (const way of ways) {
    const line = lineOf(way, measured.get(way) ?? []);
    lines.push(line);
    console.log(`  ${line}`);
  }
}
if (values.write) write();

/**
 * Returns the names of a list that are known.
 * @param {string} option @param {string} list @param {object} known
 */
function chosen(option, list, known) {
  const names = list.split(",").filter(Boolean);
  const unknown = names.filter((name) => !Object.hasOwn(known, name));
  if (unknown.length > 0) throw new Error(`--${option} can be ${Object.keys(known)}, not ${unknown}`);
  return names;
}

/** Builds the program, and installs the packages. Without Kishu, the others are measured. */
async function prepare() {
  const options = { log: logOf("build"), timeoutSeconds: 3600 };
  if (!process.env.SANDGLASS_HOST) await mustRun(["cargo", "build", "--release", "-p", "sandglass-cli"], options);
  await mustRun(["cargo", "build", "--release", "-p", "sandglass-states", "--example", "stored"], options);
  // The system's own Python, which guests can read. Others may be in folders that guests cannot read. It may have no pip.
  const venv = ["/usr/bin/python3", "-m", "venv", "--without-pip", join(root, ".setup/states")];
  if (!existsSync(PYTHON)) await mustRun(venv, { log: logOf("venv") });
  const pip = ["python3", "-m", "pip", "--python", PYTHON, "install", "--quiet", "--disable-pip-version-check"];
  const all = await run([...pip, ...pinned], { log: logOf("pip") });
  if (all.ok) return;
  const why = all.output.trimEnd().split("\n").at(-1) ?? "";
  problems.set("kishu", `it cannot be installed: ${why}`);
  const others = pinned.filter((line) => !line.startsWith("kishu=="));
  await mustRun([...pip, ...others], { log: logOf("pip"), hint: "is PyPI in reach?" });
}

/**
 * Measures all ways, which take turns. A way that fails is left out from then on.
 * @param {string} row @param {number} rounds
 */
async function inTurns(row, rounds) {
  /** @type {Map<string, Measured[]>} */
  const measured = new Map();
  for (let round = 0; round < rounds; round++) {
    for (const way of round % 2 ? ways.toReversed() : ways) {
      if (problems.has(way)) continue;
      const result = await measure(way, row);
      if (typeof result === "string") problems.set(way, result);
      else measured.set(way, [...(measured.get(way) ?? []), result]);
    }
  }
  return measured;
}

/** @param {string} way @param {string} row @returns {Promise<Measured | string>} */
async function measure(way, row) {
  const env = { SANDGLASS_HOST: HOST, SANDGLASS_STORE: STORE, PYTHONPATH: join(root, "pyodide-glue/python") };
  const command = [PYTHON, SCRIPT, way, ...(row === "resident" ? ["resident"] : [])];
  const { ok, output } = await run(command, { log: logOf(`${way}-${row}`), timeoutSeconds: 3600, env });
  const said = output.split("\n");
  if (!ok) return (said.findLast((line) => /^[\w.]+: /.test(line)) ?? "it ended without a word").slice(0, 200);
  return JSON.parse(said.findLast((line) => line.startsWith('{"run"')) ?? "");
}

/**
 * The line of a way: of each cell the median of all rounds.
 * @param {string} way @param {Measured[]} rounds
 */
function lineOf(way, rounds) {
  const title = WAYS[way];
  if (rounds.length === 0) return `| ${title} | does not take part: ${problems.get(way)} | | | |`;
  const medians = (/** @type {"run" | "total"} */ key) =>
    (rounds[0]?.[key] ?? []).map((_, cell) =>
      quantile(
        rounds.map((round) => round[key][cell] ?? NaN),
        0.5,
      ),
    );
  const [without, total] = [medians("run"), medians("total")];
  const added = total.map((ms, cell) => ms - (without[cell] ?? NaN));
  const share = sum(added) / sum(without);
  const bytes = quantile(
    rounds.map((round) => round.bytes),
    0.5,
  );
  const states = quantile(
    rounds.map((round) => round.states),
    0.5,
  );
  const [p50, p95] = [0.5, 0.95].map((q) => milliseconds(quantile(added, q)));
  return `| ${title} | ${p50} | ${p95} | ${percent(share)} | ${(bytes / 1e6).toFixed(0)} MB, ${states} states |`;
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0)} %`;
}

/** @param {number} ms */
function milliseconds(ms) {
  return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}

/** Puts the table into BENCHMARKS.md. */
function write() {
  const path = join(root, "BENCHMARKS.md");
  const day = new Date().toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
  const machine = `${cpus().length} × ${cpus()[0]?.model}`;
  const head = "| | added to a cell, p50 | p95 | of the run time | kept after 40 cells |";
  const about = `A run on ${day}: ${machine}, a load of ${load.toFixed(1)}${rounds ? `, in ${rounds} rounds` : ""}.`;
  const part = [about, "", head, "|---|---|---|---|---|", ...lines].join("\n");
  writeFileSync(path, between(readFileSync(path, "utf8"), part, MARK));
}
