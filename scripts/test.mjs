// `npm test`: runs every suite, side by side as far as there are processors. Each suite prints one line of counts when it ends.
// The sum and the slowest follow at the end. A suite that cannot run has failed.
//   npm test -- --only cases     only suites whose name contains "cases" (several: --only rust,python)
//   npm test -- --list           the suites' names
//   npm test -- --long           ten minutes of soaking, more random cells, and every case everywhere
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { find } from "./browsers.mjs";
import { cargoLines, oneTest, pytestLine, slowTests, sumLine, withoutWarnings } from "./counts.mjs";
import { environment, root, run } from "./project.mjs";
import { sideBySide, spread } from "./side-by-side.mjs";

/**
 * @typedef {import("./side-by-side.mjs").Job & {
 *   command: string[],
 *   count?: (output: string, ok: boolean) => import("./counts.mjs").Counts | undefined,
 *   cwd?: string,
 *   env?: Record<string, string>,
 * }} Suite  `count` reads the counts; without it, a suite is one test
 */

const { values: options } = parseArgs({
  options: { only: { type: "string" }, list: { type: "boolean" }, long: { type: "boolean" } },
});
const long = options.long ?? false;
/** Arguments for a long run, or for a short one. @param {string[]} inLong @param {string[]} inShort */
const either = (inLong, inShort = []) => (long ? inLong : inShort);

const BROWSERS = ["chromium", "firefox"];
const PYTHON = "pyodide-glue/python";
const PYTHON_FOLDERS = [
  PYTHON,
  "tests/python",
  "tests/client",
  "tests/adapters",
  "tests/jupyter",
  "tests/kernel",
  "tests/mcp",
  "tests/s3",
  "tests/deploy",
  "examples/python",
  "scripts/bench/rlm",
  "scripts/bench/states",
  "scripts/bench/cluster",
  "deploy/namespaces",
];
/** Generations of ipykernel, made by scripts/setup. */
const JUPYTERS = ["6", "7"];
/**
 * Environment in which clippy compiles the tests, so that nothing is compiled twice. `withoutWarnings` counts its warnings.
 * A machine that builds once does not write what would make the next build shorter.
 */
const CLIPPY = {
  RUSTC_WORKSPACE_WRAPPER: "clippy-driver",
  ...(process.env.CI ? { CARGO_INCREMENTAL: "0" } : {}),
};
/** Rust test binaries that start guests. They wait more than they compute. */
const RUST_WITH_GUESTS = ["commands", "guests", "jupyter", "mcp", "pool", "program", "rights", "server"];

/** Processors that a suite keeps busy if it computes most of its time: 0.6 to 0.9 of one were measured in browsers and in Python. */
const COMPUTES = 0.7;
/** The most that a suite keeps busy which mostly waits. Two that compute leave room for one. */
const WAITS = 0.6;

/** A suite in tests/e2e/, which needs pkg/ and dist/. @param {string} name @param {string[]} args */
const e2e = (name, ...args) => ({
  command: ["node", `tests/e2e/${name}.mjs`, ...args],
  count: sumLine,
  needs: ["build"],
});
/** @param {number} processors @param {string} name @param {string[]} args */
const inBrowsers = (processors, name, ...args) =>
  BROWSERS.map((browser) => ({
    name: [name, "in", browser, ...args.filter((arg) => arg === "--shared")].join(" ").replace("--", ""),
    processors,
    ...e2e(name, "--browser", browser, ...args),
  }));
/** The suite of the cases on guests of a server. @param {string} backend */
const onServer = (backend) => ({
  name: `cases on ${backend}`,
  command: ["node", "tests/cases-on-server.mjs", "--backend", backend, ...either(["--all"])],
  count: sumLine,
  needs: ["build", "rust build"],
  processors: backend === "jupyter" ? COMPUTES : 0.5,
});
/** The suite of connections that break a thousand times. */
const thousandCuts = () => ({
  name: "a thousand cuts",
  ...pytest(python("python"), "tests/client/test_reconnect.py", "-k", "nothing_is_lost"),
  needs: ["rust build"],
  env: { SANDGLASS_CUTS: "1000" },
});
/** The suites of a server that is killed a thousand times: while it suspends sessions, and in the middle of calls of kept sandboxes. */
const thousandKills = () => ({
  name: "a thousand kills",
  ...pytest(
    python("python"),
    "tests/client",
    "-k",
    "is_lost_when_the_server_is_killed or is_lost_when_servers_of_a_cluster",
  ),
  needs: ["rust build"],
  env: { SANDGLASS_KILLS: "1000" },
});
/** The suite of sandboxes whose states come and go for ten minutes. */
const tenMinutesOfStates = () => ({
  name: "soak of states",
  ...pytest(python("python"), "tests/client/test_soak.py"),
  needs: ["rust build"],
  env: { SANDGLASS_SOAK_SECONDS: "600" },
});
/** The suite of the cases outside of browsers. @param {string} runtime */
const onRuntime = (runtime) => ({
  name: `cases on ${runtime}`,
  command: ["node", "tests/cases-on-runtime.mjs", "--runtime", runtime, ...either(["--all"])],
  count: sumLine,
  needs: ["build"],
});
/** @param {string} program @param {string[]} args */
const pytest = (program, ...args) => ({
  command: [program, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "--durations-min=1", ...args],
  count: pytestLine,
});
/** @param {string[]} args */
const cargoTest = (...args) => ({
  command: ["cargo", "test", "--workspace", "--no-fail-fast", ...args],
  count: cargoLines,
  env: CLIPPY,
  needs: ["rust build"],
});

/**
 * The suites: first those that fail quickly, then those that others need, then the long ones, so that none is left at the end.
 * `spread` puts those that wait among those that compute.
 * @type {Suite[]}
 */
const SUITES = [
  { name: "structure", command: ["node", "scripts/check-structure.mjs"], count: sumLine },
  { name: "texts", command: ["node", "scripts/check-texts.mjs"], count: sumLine },
  { name: "checks of texts", command: ["node", "tests/texts.mjs"], count: sumLine },
  { name: "rustfmt", command: ["cargo", "fmt", "--all", "--check"] },
  { name: "prettier", command: ["prettier", "--check", "**/*.{js,mjs,ts,css,html}"] },
  { name: "ruff", command: [python("ruff"), "check", ...PYTHON_FOLDERS] },
  { name: "ruff format", command: [python("ruff"), "format", "--check", ...PYTHON_FOLDERS] },
  { name: "page hash", command: ["node", "tests/pages.mjs"], count: sumLine },
  { name: "side by side", command: ["node", "tests/side-by-side.mjs"], count: sumLine },
  { name: "trajectories", command: ["node", "tests/trajectories.mjs"], count: sumLine },
  { name: "bench of controllers", command: ["node", "tests/bench-rlm.mjs"], count: sumLine },
  { name: "recorded sessions", command: ["node", "tests/sessions.mjs"], count: sumLine },
  { name: "mypy", command: [python("mypy")], cwd: PYTHON },
  {
    name: "rust build",
    command: ["cargo", "test", "--workspace", "--no-run"],
    count: withoutWarnings(oneTest),
    env: CLIPPY,
    processors: 2,
  },
  { name: "build", command: ["node", "scripts/build.mjs"] },
  {
    // Clippy compiles what the browser gets, too.
    name: "rust in chromium",
    command: ["cargo", "test", "--target", "wasm32-unknown-unknown", "--package", "sandglass-browser", "--test", "web"],
    count: withoutWarnings(cargoLines),
    env: { ...CLIPPY, CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER: "wasm-bindgen-test-runner" },
  },
  { name: "tsc", command: ["tsc"], needs: ["build"] },
  { name: "package", command: ["node", "tests/package.mjs"], count: sumLine, needs: ["build"] },
  ...inBrowsers(COMPUTES, "lifecycle", ...either(["--cycles", "200"], ["--cycles", "30"])),
  ...pythons().map(({ version, program }) => ({ name: `python ${version}`, ...pytest(program, "tests/python") })),
  {
    name: "python client",
    ...pytest(python("python"), "tests/client"),
    needs: ["rust build"],
  },
  {
    name: "python adapters",
    ...pytest(join(root, ".setup/adapters/bin/python"), "-o", "asyncio_mode=auto", "tests/adapters"),
    needs: ["rust build"],
  },
  {
    name: "deploy",
    ...pytest(join(root, ".setup/deploy/bin/python"), "tests/deploy"),
    needs: ["rust build"],
    processors: 0.5,
  },
  ...inBrowsers(COMPUTES, "cases", ...either(["--all"])),
  ...inBrowsers(0.6, "cases", "--shared", ...either(["--all"])),
  ...["subprocess", "bubblewrap", "docker", "jupyter"].map(onServer),
  ...["node", "deno", "bun"].map(onRuntime),
  { name: "portable states", ...e2e("portable") },
  { name: "attacks outside of browsers", ...e2e("runtimes-attacks") },
  { name: "agents", ...e2e("ai") },
  {
    name: "servers and bundles outside of browsers",
    ...e2e("runtimes-backend"),
    needs: ["build", "rust build"],
    processors: 0.5,
  },
  {
    name: "soak of a server",
    ...e2e("soak-host", ...either(["--seconds", "600"], ["--seconds", "25"])),
    needs: ["build", "rust build"],
  },
  ...inBrowsers(COMPUTES, "move").map((suite) => ({ ...suite, needs: ["build", "rust build"] })),
  ...inBrowsers(COMPUTES, "rlm"),
  ...inBrowsers(0.5, "models"),
  ...(long ? [{ name: "a local model", ...e2e("local-model") }] : []),
  ...(long ? [thousandCuts(), thousandKills(), tenMinutesOfStates()] : []),
  ...inBrowsers(COMPUTES, "speculate", ...either(["--rounds", "20"])),
  ...inBrowsers(COMPUTES, "packages"),
  // Firefox is the browser in which Python can wait with shared memory only. Chromium waits so in the cases, too.
  ...inBrowsers(COMPUTES, "packages", "--shared", ...either(["--all"])).filter(
    ({ name }) => long || name.includes("firefox"),
  ),
  ...inBrowsers(COMPUTES, "isolation"),
  { name: "rust", ...cargoTest(...otherRustTests()) },
  { name: "rust documentation", ...cargoTest("--doc") },
  ...RUST_WITH_GUESTS.map((name) => ({ name: `rust ${name}`, ...cargoTest("--test", name), processors: 0.6 })),
  ...inBrowsers(0.5, "soak", ...either(["--seconds", "600"], ["--seconds", "20"])),
  ...JUPYTERS.map((major) => ({
    name: `jupyter ${major}`,
    ...pytest(join(root, `.setup/jupyter/${major}/bin/python`), "tests/jupyter"),
    processors: 0.5,
  })),
  { name: "jupyter in pyodide", command: ["node", "tests/jupyter/pyodide.mjs"], count: sumLine },
  {
    name: "kernel in bubblewrap",
    ...pytest(join(root, ".setup/jupyter/7/bin/python"), "tests/kernel"),
    needs: ["rust build"],
    processors: 0.4,
  },
  {
    name: "mcp in python",
    ...pytest(join(root, ".setup/mcp/bin/python"), "tests/mcp"),
    needs: ["rust build"],
    processors: 0.5,
  },
  {
    name: "mcp in typescript",
    command: ["node", "tests/mcp/typescript.mjs"],
    count: sumLine,
    needs: ["rust build"],
    processors: 0.5,
  },
  { name: "displays in chromium", ...e2e("displays", "--browser", "chromium"), needs: ["build", "rust build"] },
  ...inBrowsers(COMPUTES, "playground"),
  ...inBrowsers(COMPUTES, "playground-ask"),
  { name: "readme", ...e2e("readme", "--browser", "chromium"), needs: ["build", "rust build"] },
  { name: "samples of documents", ...e2e("docs", "--browser", "chromium"), needs: ["build", "rust build"] },
  { name: "site of documents", ...e2e("site", "--browser", "chromium") },
  { name: "react", ...e2e("react", "--browser", "chromium") },
  ...inBrowsers(COMPUTES, "persist", ...either(["--rounds", "200"])),
  // Python waits for its calls in both ways: with shared memory, and without.
  ...inBrowsers(COMPUTES, "journal", "--shared", ...either(["--rounds", "200"])),
  ...inBrowsers(COMPUTES, "journal", ...either(["--rounds", "200"])).filter(({ name }) => name.includes("chromium")),
  { name: "kills of a tab", ...e2e("kills", ...either(["--kills", "300"], ["--kills", "10"])) },
  ...inBrowsers(0.5, "snapshot"),
  { name: "examples", ...e2e("examples", ...either([], ["--only", "vite build|script"])) },
];

/** The first suite that needs another. Those before it fail quickly, or are what others need. */
const first = SUITES.findIndex(({ needs }) => needs);
const computing = SUITES.slice(first).map((suite) => ({ processors: COMPUTES, ...suite }));
const ordered = [...SUITES.slice(0, first), ...spread(computing, WAITS)];

const only = options.only?.split(",") ?? [""];
const chosen = ordered.filter(({ name }) => only.some((part) => name.includes(part)));
if (options.list || chosen.length === 0) {
  console.log(ordered.map(({ name }) => name).join("\n"));
  process.exit(options.list ? 0 : 1);
}

const colour = process.stdout.isTTY && !process.env.CI && !process.env.NO_COLOR;
const paint = (/** @type {number} */ code, /** @type {string} */ text) =>
  colour ? `\x1b[${code}m${text}\x1b[0m` : text;
const total = { passed: 0, failed: 0, skipped: 0 };
/** Seconds of suites, and of tests. @type {{ suites: [number, string][], tests: [number, string][] }} */
const took = { suites: [], tests: [] };
/** Names of the suites that have failed. @type {Set<string>} */
const failed = new Set();
/** Names of the running suites, in the order of their beginning. @type {Set<string>} */
const running = new Set();
const begin = performance.now();
process.setMaxListeners(100); // each running suite has a listener for Ctrl-C
await sideBySide(chosen, availableParallelism(), runSuite);

const slowest = (/** @type {[number, string][]} */ all) =>
  all
    .sort(([a], [b]) => b - a)
    .slice(0, 8)
    .map(([seconds, name]) => `  ${seconds.toFixed(1).padStart(6)} s  ${name}`)
    .join("\n");
if (chosen.length > 1) console.log(`\nslowest suites\n${slowest(took.suites)}`);
if (took.tests.length > 0) console.log(`slowest tests of suites that print them\n${slowest(took.tests)}`);
const minutes = ((performance.now() - begin) / 60_000).toFixed(1);
console.log(`\n${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped in ${minutes} minutes`);
process.exitCode = total.failed > 0 ? 1 : 0;

/** @param {Suite} suite */
async function runSuite({ name, command, count = oneTest, cwd = ".", env, needs = [] }) {
  const missing = needs.find((needed) => failed.has(needed));
  const log = join(root, ".setup/logs", `${name.replaceAll(" ", "-")}.log`);
  running.add(name);
  showRunning();
  const begin = performance.now();
  const { ok, output } = missing
    ? { ok: false, output: `not run: it needs "${missing}", which has failed` }
    : await run(command, {
        log,
        timeoutSeconds: long ? 3600 : 2400,
        cwd: join(root, cwd),
        env: { NO_COLOR: "1", CARGO_TERM_COLOR: "never", CHROMEDRIVER: find("chromedriver") ?? "", ...env },
      });
  const seconds = (performance.now() - begin) / 1000;

  const counts = count(output, ok) ?? { passed: 0, failed: 0, skipped: 0 };
  // A suite that exits with an error, or that ran no test, has failed, whatever its counts are.
  const ranNothing = counts.passed + counts.failed + counts.skipped === 0;
  if ((!ok || ranNothing) && counts.failed === 0) counts.failed = 1;
  for (const key of /** @type {(keyof typeof total)[]} */ (Object.keys(total))) total[key] += counts[key];
  took.suites.push([seconds, name]);
  took.tests.push(.../** @type {[number, string][]} */ (slowTests(output).map(([s, test]) => [s, `${name}: ${test}`])));
  if (counts.failed > 0) failed.add(name);

  const mark = counts.failed > 0 ? paint(31, "✗") : paint(32, "✓");
  const numbers = `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  const clear = colour ? "\r\x1b[K" : "";
  console.log(`${clear}${mark} ${name.padEnd(26)} ${numbers.padEnd(38)} ${seconds.toFixed(1).padStart(6)} s`);
  running.delete(name);
  if (missing) console.log(`    ${output}`);
  else if (counts.failed > 0) {
    const tells = (/** @type {string} */ line) => !/^- .*: skipped/.test(line);
    const lines = output.trimEnd().split("\n").filter(tells).slice(-60);
    console.log(paint(2, `    $ ${command.join(" ").replaceAll(`${root}/`, "")}`));
    if (ok && ranNothing) console.log("    the suite ended without an error, but ran no test");
    console.log(lines.map((line) => `    ${line}`).join("\n"));
    console.log(paint(2, `    the whole log: ${relative(root, log)}\n`));
  }
  showRunning();
}

function showRunning() {
  const line = [...running].map((name) => `… ${name}`).join("  ");
  if (colour) process.stdout.write(`\r\x1b[K${line.slice(0, process.stdout.columns - 1)}`);
}

/** Arguments that choose the Rust tests without guests. */
function otherRustTests() {
  const command = ["metadata", "--no-deps", "--format-version", "1"];
  const { packages } = JSON.parse(execFileSync("cargo", command, { cwd: root, env: environment, encoding: "utf8" }));
  const tests = packages.flatMap((/** @type {any} */ { targets }) =>
    targets.filter((/** @type {any} */ { kind }) => kind.includes("test")).map((/** @type {any} */ { name }) => name),
  );
  const others = tests.filter((/** @type {string} */ name) => !RUST_WITH_GUESTS.includes(name));
  return ["--lib", "--bins", ...others.flatMap((/** @type {string} */ name) => ["--test", name])];
}

/** The path of a Python tool in .venv. @param {string} tool */
function python(tool) {
  return join(root, ".venv/bin", tool);
}

/** The versions of Python that scripts/setup prepared, and their programs. */
function pythons() {
  const others = join(root, ".setup/python");
  return [
    { version: "default", program: python("python") },
    ...(existsSync(others) ? readdirSync(others).sort() : []).map((version) => ({
      version,
      program: join(others, version, "bin/python"),
    })),
  ];
}
