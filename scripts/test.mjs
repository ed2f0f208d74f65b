// `npm test`: runs every suite, one line of counts each, and ends with the sum. A suite that cannot run has failed.
//   npm test -- --only cases     only the suites whose name contains "cases" (several: --only rust,python)
//   npm test -- --list           their names
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { find } from "./browsers.mjs";
import { root, run } from "./project.mjs";

/**
 * @typedef {{ passed: number, failed: number, skipped: number }} Counts
 * @typedef {object} Suite
 * @property {string} name
 * @property {string[]} command
 * @property {(output: string) => Counts | undefined} [count]  reads the counts; without it, a suite is one test
 * @property {string} [cwd]
 */

const NONE = { passed: 0, failed: 0, skipped: 0 };
const BROWSERS = ["chromium", "firefox"];
const PYTHON = "pyodide-glue/python";
/** Generations of ipykernel, as scripts/setup makes them. */
const JUPYTERS = ["6", "7"];
const e2e = (/** @type {string} */ name, /** @type {string[]} */ ...args) => ["node", `tests/e2e/${name}.mjs`, ...args];
const inBrowsers = (/** @type {string} */ name, /** @type {string[]} */ ...args) =>
  BROWSERS.map((browser) => ({
    name: [name, "in", browser, ...args].join(" ").replace("--", ""),
    command: e2e(name, "--browser", browser, ...args),
    count: sumLine,
  }));
/** The cases on guests of a server; "host build" makes that. */
const onServer = (/** @type {string} */ backend) => [
  {
    name: `cases on ${backend}`,
    command: ["node", "tests/cases-on-server.mjs", "--backend", backend],
    count: sumLine,
  },
];

/** In the order of how quickly they fail. The build stands before whatever needs pkg/ and dist/. @type {Suite[]} */
const SUITES = [
  { name: "structure", command: ["node", "scripts/check-structure.mjs"], count: sumLine },
  { name: "rustfmt", command: ["cargo", "fmt", "--all", "--check"] },
  { name: "prettier", command: ["prettier", "--check", "**/*.{js,mjs,ts,css,html}"] },
  { name: "ruff", command: [python("ruff"), "check", PYTHON, "tests/python", "tests/jupyter", "tests/kernel"] },
  {
    name: "ruff format",
    command: [python("ruff"), "format", "--check", PYTHON, "tests/python", "tests/jupyter", "tests/kernel"],
  },
  { name: "page hash", command: ["node", "tests/pages.mjs"], count: sumLine },
  { name: "trajectories", command: ["node", "tests/trajectories.mjs"], count: sumLine },
  { name: "recorded sessions", command: ["node", "tests/sessions.mjs"], count: sumLine },
  { name: "mypy", command: [python("mypy")], cwd: PYTHON },
  ...pythons().map(({ version, program }) => ({
    name: `python ${version}`,
    command: [program, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/python"],
    count: pytestLine,
  })),
  ...JUPYTERS.map((major) => ({
    name: `jupyter ${major}`,
    command: [
      join(root, `.setup/jupyter/${major}/bin/python`),
      "-m",
      "pytest",
      "-q",
      "-p",
      "no:cacheprovider",
      "tests/jupyter",
    ],
    count: pytestLine,
  })),
  { name: "jupyter in pyodide", command: ["node", "tests/jupyter/pyodide.mjs"], count: sumLine },
  { name: "clippy", command: ["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"] },
  {
    name: "clippy wasm",
    command: [
      "cargo",
      "clippy",
      "--target",
      "wasm32-unknown-unknown",
      "--package",
      "sandglass",
      "--lib",
      "--",
      "-D",
      "warnings",
    ],
  },
  { name: "rust", command: ["cargo", "test", "--workspace", "--no-fail-fast"], count: cargoLines },
  { name: "build", command: ["node", "scripts/build.mjs"] },
  { name: "tsc", command: ["tsc"] },
  {
    name: "rust in chromium",
    command: [
      ...["wasm-pack", "test", "--headless", "--chrome", "--chromedriver", find("chromedriver") ?? "chromedriver"],
      ...["--", "--test", "web"],
    ],
    count: cargoLines,
  },
  ...inBrowsers("cases"),
  ...inBrowsers("cases", "--shared"),
  { name: "host build", command: ["cargo", "build", "--package", "sandglass-host"] },
  ...onServer("subprocess"),
  ...onServer("bubblewrap"),
  ...onServer("docker"),
  ...onServer("jupyter"),
  {
    name: "kernel in bubblewrap",
    command: [".setup/jupyter/7/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernel"],
    count: pytestLine,
  },
  { name: "displays in chromium", command: e2e("displays", "--browser", "chromium"), count: sumLine },
  { name: "soak of a server", command: ["node", "tests/e2e/soak-host.mjs", "--seconds", "45"], count: sumLine },
  ...inBrowsers("isolation"),
  ...inBrowsers("lifecycle"),
  ...inBrowsers("rlm"),
  ...inBrowsers("packages"),
  ...inBrowsers("packages", "--shared"),
  ...inBrowsers("speculate"),
  ...inBrowsers("soak"),
  { name: "readme", command: e2e("readme", "--browser", "chromium"), count: sumLine },
  ...inBrowsers("playground"),
  ...inBrowsers("playground-ask"),
];

const { values: options } = parseArgs({ options: { only: { type: "string" }, list: { type: "boolean" } } });
const only = options.only?.split(",") ?? [""];
const chosen = SUITES.filter(({ name }) => only.some((part) => name.includes(part)));
if (options.list || chosen.length === 0) {
  console.log(SUITES.map(({ name }) => name).join("\n"));
  process.exit(options.list ? 0 : 1);
}

const colour = process.stdout.isTTY && !process.env.CI && !process.env.NO_COLOR;
const paint = (/** @type {number} */ code, /** @type {string} */ text) =>
  colour ? `\x1b[${code}m${text}\x1b[0m` : text;
const total = { passed: 0, failed: 0, skipped: 0 };
for (const suite of chosen) {
  const counts = await runSuite(suite);
  for (const key of /** @type {(keyof Counts)[]} */ (Object.keys(total))) total[key] += counts[key];
}
console.log(`\n${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
process.exitCode = total.failed > 0 ? 1 : 0;

/** @param {Suite} suite @returns {Promise<Counts>} */
async function runSuite({ name, command, count, cwd = "." }) {
  const log = join(root, ".setup/logs", `${name.replaceAll(" ", "-")}.log`);
  if (colour) process.stdout.write(`… ${name}`);
  const begin = Date.now();
  const { ok, output } = await run(command, {
    log,
    cwd: join(root, cwd),
    env: { NO_COLOR: "1", CARGO_TERM_COLOR: "never", CHROMEDRIVER: find("chromedriver") ?? "" },
  });
  const seconds = ((Date.now() - begin) / 1000).toFixed(1);

  const counts = (count ? count(output) : { passed: ok ? 1 : 0, failed: 0, skipped: 0 }) ?? { ...NONE };
  // Whatever the counts say: a suite that ends badly, or that ran nothing, has failed.
  const ranNothing = counts.passed + counts.failed + counts.skipped === 0;
  if ((!ok || ranNothing) && counts.failed === 0) counts.failed = 1;

  const mark = counts.failed > 0 ? paint(31, "✗") : paint(32, "✓");
  const numbers = `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  console.log(`${colour ? "\r" : ""}${mark} ${name.padEnd(22)} ${numbers.padEnd(38)} ${seconds.padStart(6)} s`);
  if (counts.failed > 0) {
    const lines = output.trimEnd().split("\n").slice(-40);
    console.log(paint(2, `    $ ${command.join(" ").replaceAll(`${root}/`, "")}`));
    if (ok && ranNothing) console.log("    it ended well without having run a test");
    console.log(lines.map((line) => `    ${line}`).join("\n"));
    console.log(paint(2, `    the whole log: ${relative(root, log)}\n`));
  }
  return counts;
}

/** The last `N passed, N failed, N skipped`. @param {string} output */
function sumLine(output) {
  const line = [...output.matchAll(/^(\d+) passed, (\d+) failed, (\d+) skipped$/gm)].at(-1);
  return line && { passed: Number(line[1]), failed: Number(line[2]), skipped: Number(line[3]) };
}

/** `test result: ok. 3 passed; 0 failed; 1 ignored; …`, once per test binary. @param {string} output */
function cargoLines(output) {
  const sum = { ...NONE };
  for (const line of output.matchAll(/^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored/gm)) {
    sum.passed += Number(line[1]);
    sum.failed += Number(line[2]);
    sum.skipped += Number(line[3]);
  }
  return sum;
}

/** `1 failed, 30 passed, 2 skipped, 3 subtests passed in 1.23s`. @param {string} output */
function pytestLine(output) {
  const line = [...output.matchAll(/^=*\s*((?:\d+ [a-z ]+(?:, )?)+) in [\d.]+s/gm)].at(-1)?.[1] ?? "";
  const number = (/** @type {string} */ word) => Number(line.match(new RegExp(`(\\d+) ${word}`))?.[1] ?? 0);
  return {
    passed: number("passed") + number("xfailed"),
    failed: number("failed") + number("error") + number("xpassed"),
    skipped: number("skipped"),
  };
}

/** A Python tool of .venv. @param {string} tool */
function python(tool) {
  return join(root, ".venv/bin", tool);
}

/** The Pythons that scripts/setup prepared. */
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
