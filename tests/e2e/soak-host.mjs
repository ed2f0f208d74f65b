// Stateless runs on a server with a pool of forked guests, while zygotes, guests, spares and the server are killed at random.
//   node tests/e2e/soak-host.mjs [--seconds 60] [--seed N]
// Answers must be right, killed runs must say so, and nothing may be left: processes, mounts, control groups, descriptors.
import { chmodSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { root, Score } from "./harness.mjs";
import { family, findProcess } from "../../scripts/processes.mjs";
import { run } from "../../scripts/project.mjs";
import { KEY, program, startHost } from "./host.mjs";
import { randomness } from "./tools.js";

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    seed: { type: "string", default: `${Date.now() % 1_000_000}` },
  },
});
const LANES = 4;
/** Longest time until a killed process is gone, or the pool is full again. */
const PATIENCE_MS = 60_000;
/** Least time before a server is killed. */
const LIFE_MS = 15_000;

const random = randomness(Number(values.seed));
/** A random whole number below `limit`. @param {number} limit */
const integer = (limit) => Math.floor(random() * limit);
/** @template T @param {T[]} choices @returns {T} */
const pick = (choices) => /** @type {T} */ (choices[integer(choices.length)]);
const score = new Score();
const counts = { runs: 0, right: 0, killed: 0, refused: 0, cutOff: 0, kills: 0, servers: 0 };
/** @type {string[]} */
const wrong = [];
/** Random numbers that guests have drawn. They must differ, though siblings are forks of the same memory. @type {Set<string>} */
const drawn = new Set();
/** A Python with numpy, pandas and polars, and with the packages that states need. */
const python = join(root, ".setup/slim/bin/python3");
if (!existsSync(python)) {
  const venv = ["venv", "build", "--slim", "--python", "/usr/bin/python3", join(root, ".setup/slim")];
  const { ok, output } = await run([program, ...venv], { log: join(root, ".setup/logs/venv-build.log") });
  if (!ok) throw new Error(`the virtual environment of guests cannot be made:\n${output}`);
}

/**
 * @typedef {{ request: Record<string, any> & { code: string }, exitCode: number, check: (body: any) => string | false, keeps?: number }} Cell
 * @type {((kept: { state: string | null, sum: number }) => Cell)[]}
 */
const CELLS = [
  () => {
    const [a, b] = [integer(1e6), integer(1e6)];
    return prints(`print(${a} * ${b})`, `${a * b}\n`);
  },
  ({ state, sum }) => {
    const more = integer(1000);
    const code = `total = globals().get("total", 0) + ${more}\nprint(total)`;
    return { ...prints(code, `${sum + more}\n`), request: { code, state, capture_state: true }, keeps: more };
  },
  () => {
    const size = integer(10_000);
    const cell = prints(`open("out.bin", "wb").write(b"x" * ${size})`, "");
    return { ...cell, check: (body) => cell.check(body) || (body.files.join() !== "out.bin" && "files") };
  },
  () => ({
    request: { code: "1 / 0" },
    exitCode: 1,
    check: (body) => body.error !== "ZeroDivisionError: division by zero" && "error",
  }),
  () => ({
    request: { code: "print(1)", state: trap },
    exitCode: 137,
    check: (body) => (body.error && !body.stdout ? false : "a state that ends its guest"),
  }),
  () => ({
    request: { code: "print(1)", state: "no base64" },
    exitCode: 1,
    check: (body) => !String(body.error).startsWith("StateError") && "a state that is none",
  }),
  () => ({ request: { code: "import os; os._exit(3)" }, exitCode: 137, check: () => false }),
  () => ({
    request: { code: "while True:\n    try:\n        while True: pass\n    except BaseException: pass", timeout: 0.3 },
    exitCode: 124,
    check: (body) => !String(body.error).startsWith("TimeoutError") && "error",
  }),
  () => {
    // Looks for leftovers and open files of a sibling, and then leaves and holds the same.
    const code = [
      "import fcntl, glob, os, subprocess",
      "found = [name for name in ('/tmp/mark', '/dev/shm/mark', '/workspace/mark') if os.path.exists(name)]",
      "for name in ('/tmp/mark', '/dev/shm/mark', '/workspace/mark'): open(name, 'w').write('x')",
      "lock = open('/tmp/lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
      "found += [p for p in glob.glob('/proc/[0-9]*/cmdline') if b'mark-of-a-sibling' in open(p, 'rb').read()]",
      "subprocess.Popen(['/bin/sh', '-c', 'sleep 100; : mark-of-a-sibling'], start_new_session=True)",
      "print(found)",
    ].join("\n");
    return prints(code, "[]\n");
  },
  () => ({
    request: { code: "import os, random, uuid\nprint(random.random(), uuid.uuid4().hex, os.urandom(8).hex())" },
    exitCode: 0,
    check(body) {
      for (const number of body.stdout.trim().split(" ")) {
        if (drawn.has(number)) return `${number} was drawn before`;
        drawn.add(number);
      }
      return false;
    },
  }),
];

const end = Date.now() + Number(values.seconds) * 1000;
/** The temporary files of the servers. Mounts and control groups elsewhere come and go with other programs. */
const folder = mkdtempSync(join(tmpdir(), "soak-host-"));
chmodSync(folder, 0o755); // guests are other users
process.env.TMPDIR = folder;
/** The names of the servers' control groups. @type {Set<string>} */
const groups = new Set();
let host = await start();
let since = Date.now();
let descriptors = 0;
/** A state that ends the guest which opens it. @type {string | null} */
let trap = null;
try {
  await full();
  const source = "import os\nclass Trap:\n    def __reduce__(self): return os._exit, (9,)\ntrap = Trap()";
  trap = (await post({ code: source, capture_state: true }))?.body.state;
  if (!trap) throw new Error("a state with a trap cannot be made");
  descriptors = open(host.pid);
  while (Date.now() < end && wrong.length < 10) {
    const lanes = Array.from({ length: LANES }, () => lane(Date.now() + 3000));
    const killer = kills(Date.now() + 3000);
    await Promise.all([...lanes, killer]);
    if (Date.now() > since + LIFE_MS && random() < 0.5) await killServer();
  }
  await full();
  await settled(
    "descriptors of the server",
    () => open(host.pid) <= descriptors + 4,
    () => `${open(host.pid)} now, ${descriptors} at first`,
  );
  const last = family(host.pid);
  const code = await host.stop();
  score.add("the server ends well", code === 0 ? [] : [`it ended with ${code}`, host.said().slice(-2000)]);
  await settled(
    "processes",
    () => last.every((process) => !alive(process)),
    () => last.filter(alive).map(describe).join(", "),
  );
  await settled(
    "mounts",
    () => mountsLeft().length === 0,
    () => mountsLeft().join(", "),
  );
  await settled(
    "control groups",
    () => groupsLeft().length === 0,
    () => groupsLeft().join(", "),
  );
} catch (error) {
  wrong.push(String(/** @type {Error} */ (error).stack ?? error), host.said().slice(-2000));
} finally {
  await host.stop("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
console.log(`seed ${values.seed}, ${values.seconds} s: ${JSON.stringify(counts)}`);
score.add("every answer is right, or says what became of the run", wrong);
score.add("all kinds of things were seen", counts.right > 0 && counts.kills > 0 ? [] : [JSON.stringify(counts)]);
score.end();

async function start() {
  const settings = ["--python", python, "--spares", "4", "--max-spares", "8"];
  const started = await startHost({ backend: "bubblewrap", origin: "http://127.0.0.1:1", settings });
  counts.servers++;
  return started;
}

/** Sends requests, one after another. @param {number} until */
async function lane(until) {
  let kept = { state: /** @type {string | null} */ (null), sum: 0 };
  while (Date.now() < until) {
    const cell = pick(CELLS)(kept);
    counts.runs++;
    const answer = await post(cell.request);
    if (answer === undefined) counts.cutOff++;
    else if (answer.status === 429 || answer.status === 503) counts.refused++;
    else if (answer.status !== 200)
      wrong.push(`${cell.request.code}: HTTP ${answer.status} ${JSON.stringify(answer.body)}`);
    else if (answer.body.exit_code === 137 && cell.exitCode !== 137) {
      counts.killed++;
      if (!answer.body.error) wrong.push(`${cell.request.code}: 137 without a reason`);
    } else {
      const problem =
        answer.body.exit_code === cell.exitCode ? cell.check(answer.body) : `exit code ${answer.body.exit_code}`;
      if (problem) wrong.push(`${cell.request.code}: ${problem}: ${JSON.stringify(answer.body).slice(0, 500)}`);
      else counts.right++;
      // The guest was lost after the code had run. The answer says so, and the state is the earlier one.
      const lost = cell.keeps && !answer.body.state && String(answer.body.error).startsWith("State");
      if (cell.keeps && !problem && !lost) kept = { state: answer.body.state, sum: kept.sum + cell.keeps };
    }
  }
}

/** @param {string} code @param {string} stdout @returns {Cell} */
function prints(code, stdout) {
  return { request: { code }, exitCode: 0, check: (body) => body.stdout !== stdout && "output" };
}

/** Sends a request. Resolves to the answer, or to undefined if the server was gone. @param {object} request */
async function post(request) {
  try {
    const response = await fetch(`${host.url}/execute`, {
      method: "POST",
      headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
      body: JSON.stringify(request),
    });
    return { status: response.status, body: await response.json() };
  } catch {
    return undefined;
  }
}

/** Kills random processes of the server now and then: bubblewrap, zygotes, guests that work or wait. @param {number} until */
async function kills(until) {
  while (Date.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, integer(1500)));
    const others = family(host.pid).filter((process) => process.id !== host.pid);
    if (others.length === 0) continue;
    kill(pick(others).id);
    counts.kills++;
  }
}

/** Kills the server while requests are under way. Nothing may outlive it, and the next server must work. */
async function killServer() {
  const old = family(host.pid);
  const lanes = Array.from({ length: LANES }, () => lane(Date.now() + 300));
  await new Promise((resolve) => setTimeout(resolve, integer(300)));
  await host.stop("SIGKILL");
  await Promise.all(lanes);
  await settled(
    "processes of a killed server",
    () => old.every((process) => !alive(process)),
    () => old.filter(alive).map(describe).join(", "),
  );
  host = await start();
  since = Date.now();
  await full();
  descriptors = open(host.pid);
}

/** Waits until the pool is full, and notes the control groups of its guests. */
async function full() {
  const headers = { authorization: `Bearer ${KEY}` };
  const begun = Date.now();
  for (;;) {
    const { pool } = await (await fetch(`${host.url}/health/detailed`, { headers })).json();
    if (pool && pool.spares >= pool.level) return family(host.pid).forEach(noteGroups);
    if (Date.now() > begun + PATIENCE_MS) throw new Error(`the pool is not full: ${JSON.stringify(pool)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Waits until a condition holds again. @param {string} what @param {() => boolean} isSo @param {() => string} says */
async function settled(what, isSo, says) {
  const begun = Date.now();
  while (!isSo()) {
    if (Date.now() > begun + PATIENCE_MS) {
      wrong.push(`${what} are left: ${says()}`);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** @import { Process } from "../../scripts/processes.mjs" */

/** @param {Process} process */
function alive({ id, started }) {
  return findProcess(id)?.started === started;
}

/** @param {Process} process */
function describe({ name }) {
  return name;
}

/** @param {number} id */
function kill(id) {
  try {
    process.kill(id, "SIGKILL");
  } catch {
    // The process has ended.
  }
}

/** @param {number} id */
function open(id) {
  return readdirSync(`/proc/${id}/fd`).length;
}

/** The mounts in the servers' temporary folder. */
function mountsLeft() {
  const all = readFileSync("/proc/self/mounts", "utf8").split("\n");
  return all.filter((line) => line.includes(` ${folder}`));
}

/** @param {Process} process */
function noteGroups({ id }) {
  try {
    const path = readFileSync(`/proc/${id}/cgroup`, "utf8");
    for (const [name] of path.matchAll(/sandglass\.[0-9a-f]+/g)) groups.add(name);
  } catch {
    // The process has ended.
  }
}

/** The names of a folder's folders. Others make and remove control groups meanwhile. @param {string} folder */
function subfolders(folder) {
  try {
    const entries = readdirSync(folder, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
  } catch {
    return [];
  }
}

/** The servers' control groups that are there, at most three folders deep. */
function groupsLeft() {
  /** @type {string[]} */
  const found = [];
  const look = (/** @type {string} */ folder, /** @type {number} */ depth) => {
    for (const entry of subfolders(folder)) {
      if (groups.has(entry)) found.push(entry);
      else if (depth > 0) look(join(folder, entry), depth - 1);
    }
  };
  look("/sys/fs/cgroup", 3);
  return found;
}
