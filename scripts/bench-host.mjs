// npm run bench:host: the costs of guests on a server, beside rivals, in one run. Needs Linux and bubblewrap; rivals need Docker.
//   node scripts/bench-host.mjs [--quick] [--rivals monty,ipykernel] [--only checkpoints,burst,http,suspend,move,docker]
//   All rivals by default, none with --rivals "". `--only` names parts of the rest.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { movedSessions } from "./bench/moves.mjs";
import { quantile } from "./bench/quantile.mjs";
import { suspendedSessions } from "./bench/suspended.mjs";
import { mustRun, root } from "./project.mjs";

const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `${name}.log`);
const RIVALS = ["monty", "ipykernel", "local-repl", "dspy", "docker-exec", "docker-run"];
/** Modules that a zygote has imported: the packages for data in the host's default list. */
const PRELOAD =
  "numpy,pandas,scipy.stats,sklearn.linear_model,sklearn.ensemble,statsmodels.api,matplotlib.pyplot,seaborn,cloudpickle,lz4.frame";

const { values } = parseArgs({
  options: {
    quick: { type: "boolean", default: false },
    rivals: { type: "string", default: RIVALS.join(",") },
    only: { type: "string" },
  },
});
const PARTS = ["checkpoints", "burst", "http", "suspend", "move", "docker"];
const parts = values.only?.split(",") ?? PARTS;
const notPart = parts.filter((part) => !PARTS.includes(part));
if (notPart.length > 0) throw new Error(`--only can be ${PARTS.join(", ")}, not ${notPart.join(", ")}`);
const names = values.rivals.split(",").filter(Boolean);
const unknown = names.filter((name) => !RIVALS.includes(name));
if (unknown.length > 0) throw new Error(`unknown rivals ${unknown.join(", ")}: ${RIVALS.join(", ")}`);
/** @param {number} times */
const often = (times) => (values.quick ? Math.max(1, Math.round(times / 20)) : times);

const release = join(root, "target/release");
const rivalsPython = join(root, ".setup/rivals/bin/python");
const dataPython = join(root, ".setup/data-science/bin/python3");
await mustRun(["cargo", "build", "--release", "-p", "sandglass-host", "-p", "sandglass-cli", "--bins", "--examples"], {
  log: logOf("bench-build"),
});
if (names.length > 0) {
  if (!existsSync(rivalsPython))
    await mustRun(["python3", "-m", "venv", join(root, ".setup/rivals")], { log: logOf("bench-rivals") });
  await mustRun([rivalsPython, "-m", "pip", "install", "-q", "-r", "scripts/bench/rivals.txt"], {
    log: logOf("bench-rivals"),
  });
}
if (!existsSync(dataPython) && parts.some((part) => ["burst", "http", "suspend"].includes(part))) {
  await mustRun([join(release, "sandglass-host"), "venv", "build", join(root, ".setup/data-science")], {
    log: logOf("bench-venv"),
  });
}

/** @typedef {{ name: string, ask: (order: object) => Promise<{ samples?: Record<string, number[]>, error?: string }>, end: () => Promise<void> }} Competitor */

const bench = join(release, "examples/bench");
const ours = start("sandglass", [bench, "bubblewrap"]);
const data = start("sandglass", [bench, "bubblewrap", dataPython, PRELOAD]);
/** Sandglass in the same kernel that the rival jupyter_client starts. */
const kernel = names.includes("ipykernel") ? start("sandglass", [bench, "jupyter", rivalsPython]) : undefined;
const rivals = names.map((name) => start(name, [rivalsPython, join(root, "scripts/bench/rivals.py"), name]));
/** Sandglass from a program in Python, which needs nothing but the program. */
const client = start("sandglass (Python)", ["python3", join(root, "scripts/bench/rivals.py"), "client"]);
const all = [ours, client, ...rivals];

console.log(`Sandglass on a server: ${cpus().length} × ${cpus()[0]?.model}`);
console.log("Milliseconds; competitors take turns; sandglass is in bubblewrap with all of its isolation.\n");
try {
  if (parts.includes("checkpoints")) {
    await alone("Checkpoints: cells with 100 MB of state, MB of memory, and ways back to the next result", ours, {
      what: "checkpoints",
      times: often(200),
    });
  }
  if (!values.only) await rest();
  if (parts.includes("burst")) {
    await alone("200 sessions at once, 20 spares", data, { what: "burst", times: values.quick ? 20 : 200 });
  }
  if (parts.includes("http")) {
    await overHttp("Over HTTP", ["--backend", "bubblewrap", "--python", dataPython], often(300), [100, 0]);
  }
  if (parts.includes("suspend")) {
    const count = often(1000);
    const { samples, bytesEach } = await suspendedSessions(
      serve,
      ["--backend", "bubblewrap", "--python", dataPython],
      count,
    );
    console.log(`${count} suspended sessions: the request that wakes one`);
    for (const [name, times] of Object.entries(samples)) row(name, times, NaN);
    console.log(`  memory of the server for each: ${(bytesEach / 1024).toFixed(1)} KiB\n`);
  }
  if (parts.includes("move")) {
    const samples = await movedSessions(serve, ["--backend", "bubblewrap"], often(20));
    console.log("A session moves between a page in Chromium and the server");
    for (const [name, times] of Object.entries(samples)) row(name, times, NaN);
    console.log();
  }
  if (parts.includes("docker")) {
    await overHttp("Over HTTP, in Docker", ["--backend", "docker", "--image", "sandglass-base"], often(60), [1000, 0]);
  }
} finally {
  for (const competitor of [...all, data, ...(kernel ? [kernel] : [])]) await competitor.end();
}

/** All but the checkpoints. */
async function rest() {
  await compare("A cell, x = 1 + 1", all, { what: "execute", times: often(500) }, 4);
  await compare("A host call", all, { what: "hostCall", times: often(500) }, 4);
  await compare("A context of 50 MiB, and its length", all, { what: "context", times: 1, megabytes: 50 }, 3);
  await compare("A new sandbox, nothing waiting, and its first result", all, { what: "session", times: 1 }, often(8));
  const jupyterClient = rivals.find(({ name }) => name === "ipykernel");
  if (kernel && jupyterClient) {
    const inKernel = [kernel, jupyterClient];
    await compare("In a Jupyter kernel: a cell, x = 1 + 1", inKernel, { what: "execute", times: often(500) }, 4);
    await compare(
      "In a Jupyter kernel: a new one, and its first result",
      inKernel,
      { what: "session", times: 1 },
      often(8),
    );
  }
  await alone("10 MB of output", ours, { what: "output", times: often(10) });
  await alone("A cell that computes: it has run ahead; it has not; nothing can; something else runs ahead", ours, {
    what: "ahead",
    times: often(100),
  });
  await alone("Beyond timeout and grace period, a cell that hears no signal", ours, {
    what: "overshoot",
    times: often(10),
  });

  console.log(`Preloaded: ${PRELOAD}\n`);
  await alone("A new spare, beside the same imports in a new guest", data, { what: "spare", times: often(20) });
  await alone("A spare that waits: claimed, and its first result", data, { what: "claim", times: often(300) });
  await alone("A stateless run from the pool", data, { what: "state", times: often(60) });
  await alone("100 sandboxes at once, nothing waiting", ours, { what: "sessions", times: values.quick ? 10 : 100 });
}

/**
 * Measures a server: requests that come some time apart, for which a guest waits, and back to back.
 * @param {string} title
 * @param {string[]} args
 * @param {number} times
 * @param {number[]} gaps
 */
async function overHttp(title, args, times, gaps) {
  const server = await serve(args).catch((/** @type {Error} */ error) => error);
  if (server instanceof Error) {
    console.log(`${title}\n  ${server.message.trim().split("\n").at(-1)}\n`);
    return;
  }
  for (const gap of gaps) {
    const apart = gap > 0 ? `${gap} ms apart` : "back to back, where each POST /execute uses up a guest";
    await alone(`${title}, ${apart}: a cell of a session; POST /execute`, data, {
      what: "http",
      url: server.url,
      times,
      gap,
    });
  }
  await server.end();
}

/**
 * Measures competitors in turns, and prints their figures beside one another.
 * @param {string} title
 * @param {Competitor[]} competitors
 * @param {object} order
 * @param {number} rounds
 */
async function compare(title, competitors, order, rounds) {
  /** @type {Map<string, number[]>} */
  const samples = new Map();
  /** @type {Map<string, string>} */
  const errors = new Map();
  for (let round = 0; round < rounds; round++) {
    for (const competitor of round % 2 ? competitors.toReversed() : competitors) {
      if (errors.has(competitor.name)) continue;
      const answer = await competitor.ask(order);
      if (answer.error) errors.set(competitor.name, answer.error);
      const taken = Object.values(answer.samples ?? {}).flat();
      samples.set(competitor.name, [...(samples.get(competitor.name) ?? []), ...taken]);
    }
  }
  console.log(title);
  const base = quantile(samples.get("sandglass") ?? [], 0.5);
  for (const { name } of competitors) {
    const error = errors.get(name);
    if (error) console.log(`  ${name.padEnd(19)} ${error}`);
    else row(name, samples.get(name) ?? [], base);
  }
  console.log();
}

/** @param {string} title @param {Competitor} competitor @param {object} order */
async function alone(title, competitor, order) {
  const { samples, error } = await competitor.ask(order);
  console.log(title);
  if (error) console.log(`  ${error}`);
  for (const [name, times] of Object.entries(samples ?? {})) row(name, times, NaN);
  console.log();
}

/** @param {string} name @param {number[]} times @param {number} base */
function row(name, times, base) {
  const shown = [0.5, 0.95, 0.99].map((q) => {
    const value = quantile(times, q);
    return `p${q * 100} ${value.toFixed(value < 10 ? 3 : 0).padStart(8)}`;
  });
  const ratio =
    Number.isNaN(base) || name === "sandglass" ? "" : `  ${(quantile(times, 0.5) / base).toPrecision(2)} × sandglass`;
  console.log(`  ${name.padEnd(19)} ${shown.join("   ")}   n ${String(times.length).padEnd(5)}${ratio}`);
}

/** @param {string} name @param {string[]} command @returns {Competitor} */
function start(name, command) {
  const child = spawn(/** @type {string} */ (command[0]), command.slice(1), {
    env: {
      ...process.env,
      PATH: `${join(root, ".setup/rivals/bin")}:${process.env.PATH}`,
      SANDGLASS_HOST: join(release, "sandglass-host"),
      // Only the client reads it: rivals run their own Python.
      ...(name.startsWith("sandglass") && { PYTHONPATH: join(root, "pyodide-glue/python") }),
    },
    stdio: ["pipe", "pipe", "pipe"],
  });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4000)));
  child.stdin.on("error", () => undefined); // the child has ended, which `ask` reports
  const ended = new Promise((resolve) => child.once("close", (code, signal) => resolve(code ?? signal)));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    name,
    async ask(order) {
      child.stdin.write(`${JSON.stringify(order)}\n`);
      const { value, done } = await lines.next();
      return done ? { error: `ended with ${await ended}: ${said.trim().split("\n").at(-1)}` } : JSON.parse(value);
    },
    async end() {
      child.stdin.end();
      await ended;
    },
  };
}

/** A running server with the default pool, once the pool is full. @param {string[]} args */
async function serve(args) {
  const command = ["serve", "--listen", "127.0.0.1:0", ...args];
  const child = spawn(join(release, "sandglass-host"), command, { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => child.once("close", resolve));
  const url = await new Promise((resolve, reject) => {
    let said = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => {
        said += text;
        const address = /https?:\/\/127\.0\.0\.1:[1-9]\d*/.exec(said);
        if (address) resolve(address[0]);
      });
    }
    ended.then(() => reject(new Error(`the server did not start: ${said}`)));
  });
  const end = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  for (const begun = Date.now(); ;) {
    const { pool } = await (await fetch(`${url}/health/detailed`)).json();
    if (pool && pool.spares >= pool.level) break;
    if (pool?.problem || Date.now() - begun > 120_000) {
      await end();
      throw new Error(pool?.problem ?? "no guests wait");
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  return { url, pid: child.pid, end };
}
