// What holds outside of browsers: JavaScript that has taken over a guest's process, bytes that are no messages, and machines
// without a wall.
//   node tests/e2e/runtimes-attacks.mjs [--only part-of-a-name]
import assert from "node:assert/strict";
import { closeSync, openSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { confine } from "../../pyodide-glue/confinement.js";
import { createReader, createWriter } from "../../pyodide-glue/pipe.js";
import { startProcess } from "../../pyodide-glue/process.js";
import { listen } from "../../scripts/serve.mjs";
import { root, Score } from "./harness.mjs";
import { findRuntime, runScript } from "./runtimes.mjs";
import { createServer } from "node:http";

const { values } = parseArgs({ options: { only: { type: "string", default: "" } } });
const score = new Score(values.only);
const SECRET = "the-secret-of-the-host";
const folder = await mkdtemp(join(tmpdir(), "sandglass-escape-"));
process.env.SANDGLASS_SECRET = SECRET;
/** @type {string[]} */
const hits = [];
const canary = await listen(
  createServer((request, response) => {
    hits.push(`${request.method} ${request.url}`);
    response.end("reached");
  }),
);
const PATH = process.env.PATH ?? "";
const node = { program: process.execPath, args: [] };
const deno = findRuntime("deno");

try {
  await score.test("a process in bubblewrap reaches nothing", () => escape(node, "bubblewrap", PATH));
  // Without a PATH, bubblewrap is not found, and Deno is that of the npm package.
  if (deno) await score.test("a process with Deno's permissions reaches nothing", () => escape(node, "deno", ""));
  else
    score.skip("a process with Deno's permissions reaches nothing", "the npm package of Deno is not for this machine");
  if (deno) await score.test("Deno in bubblewrap reaches nothing", () => escape(deno, "bubblewrap", PATH));
  await score.test("the targets can be reached without a wall", unconfined);
  for (const [name, bytes] of Object.entries(FORGERIES()))
    await score.test(`a process that writes ${name} is ended`, () => forge(bytes));
  for (const program of [join(folder, "no-such-program"), join(folder, "escape.mjs")])
    await score.test(`a program that cannot be started is told: ${program.slice(folder.length)}`, () =>
      notStarted(program),
    );
  await score.test("a process that is ended while it starts leaves nothing behind", endEarly);
  await score.test("messages cross whole, wherever their bytes are cut", cross);
  await score.test(
    "a message beyond the reader's bound is refused, and one that cannot be written is told once",
    bounds,
  );
  await score.test("without a wall, creation is refused and says what to install", refusal);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await canary.close();
  await rm(folder, { recursive: true, force: true });
}
score.end();

/** Writes the attacking script, with its targets. */
async function attacker() {
  const file = join(folder, "secret.txt");
  await writeFile(file, SECRET);
  const targets = { port: canary.port, pid: process.pid, file, secret: SECRET };
  const script = join(folder, "escape.mjs");
  const code = await readFile(join(root, "tests/e2e/escape.js"), "utf8");
  // A module's imports come first wherever they stand.
  await writeFile(script, `globalThis.TARGETS = ${JSON.stringify(targets)};\n${code}`);
  return script;
}

/**
 * Lets the attacker run behind a wall.
 * @param {{ program: string, args: string[] }} runtime  the host
 * @param {string} wall  the wall that is expected
 * @param {string} path  the PATH
 * @returns {Promise<string[]>}
 */
async function escape(runtime, wall, path) {
  const script = join(folder, "host.mjs");
  const glue = (/** @type {string} */ name) => JSON.stringify(join(root, "pyodide-glue", name));
  await writeFile(
    script,
    `import process from "node:process";
    import { confine } from ${glue("confinement.js")};
    import { startProgram } from ${glue("process.js")};
    const { name, command } = await confine(${JSON.stringify(await attacker())});
    const child = startProgram(command);
    let [said, failed, files] = ["", "", ""];
    const list = startProgram({ program: "/bin/ls", args: ["-l", "/proc/self/fd"], env: {} });
    list.stdout.on("data", (text) => (files += text));
    await new Promise((resolve) => list.on("close", resolve));
    child.stdout.on("data", (text) => (said += text));
    child.stderr.on("data", (text) => (failed += text));
    child.on("close", () => console.log(JSON.stringify({ name, files, said, failed })));`,
  );
  let line = "";
  const left = openSync(join(folder, "secret.txt"), "r");
  const options = { env: { PATH: path }, more: ["ignore", "ignore", left] };
  const { said: failure } = await runScript(runtime, [script], (text) => (line += text), options);
  closeSync(left);
  if (!line) return [failure];
  const { name, files, said, failed } = JSON.parse(line);
  if (!said.startsWith("{")) return [`the attacker ended early: ${said}${failed}`];
  const { reached, refused } = JSON.parse(said);
  if (process.env.VERBOSE) console.log(refused);
  return [
    ...(name === wall ? [] : [`the wall is ${name}`]),
    ...(!files.includes("2 -> ") || files.includes("secret.txt") ? [`it has open files of the host:\n${files}`] : []),
    ...reached,
    ...hits.splice(0).map((hit) => `the canary saw ${hit}`),
  ];
}

/** Makes sure that the attacks are real: without a wall they reach their targets. */
async function unconfined() {
  let said = "";
  const left = openSync(join(folder, "secret.txt"), "r");
  const options = { more: ["ignore", "ignore", left] };
  const runtime = { program: process.execPath, args: [] };
  await runScript(runtime, [await attacker()], (line) => (said += line), options);
  closeSync(left);
  const { reached } = JSON.parse(said);
  const wanted = [
    ...["reads /", "sees the environment", "writes", "reads descriptor", "fetches", "opens a socket"],
    ...["starts a program", "forks", "kills its parent"],
  ];
  const missing = wanted.filter((name) => !reached.some((/** @type {string} */ line) => line.startsWith(name)));
  for (const path of ["/tmp", "/", "/dev/shm"]) await rm(join(path, "sandglass-escape"), { force: true });
  return [...missing.map((name) => `not reached: ${name}`), ...(hits.splice(0).length > 0 ? [] : ["no hit"])];
}

/** Bytes on the pipe to the host that are no messages of a guest. @returns {Record<string, number[]>} */
function FORGERIES() {
  return {
    "an empty message": [0, 0, 0, 0],
    "a size beyond all": [255, 255, 255, 255],
    "a message for a lane that is the host's": [6, 0, 0, 0, 2, 0, 0, 0, 0, 0],
    "a list longer than its message": [6, 0, 0, 0, 0, 4, 255, 255, 255, 255],
    "a text longer than its message": [6, 0, 0, 0, 0, 1, 255, 255, 0, 0],
    "a value of no kind": [6, 0, 0, 0, 0, 9, 0, 0, 0, 0],
    "more than its value": [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7],
    "parts to the host's control": [11, 0, 0, 0, 1, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    "lists without end": [...[31, 0, 0, 0, 0], ...Array.from({ length: 6 }, () => [4, 1, 0, 0, 0]).flat()],
  };
}

/** @param {number[]} bytes @returns {Promise<string[]>} */
async function forge(bytes) {
  const code = `process.stdout.write(Buffer.from(${JSON.stringify(bytes)})); setInterval(() => {}, 1000)`;
  const { why, taken } = await endOf({ program: process.execPath, args: ["-e", code], env: {} });
  const isTold = String(why).startsWith("its process has ended: RangeError");
  return [...(isTold ? [] : [`${why}`]), ...(taken.length > 0 ? [`${taken.length} messages came through`] : [])];
}

/**
 * Starts a process, and waits for the report of its end.
 * @param {import("../../pyodide-glue/process.js").Command} command
 * @param {(process: { terminate(): void }) => void} [use]
 */
async function endOf(command, use = () => {}) {
  const [port, control] = [new MessageChannel(), new MessageChannel()];
  /** @type {unknown[]} */
  const taken = [];
  port.port1.onmessage = ({ data }) => taken.push(data);
  /** @type {Promise<string>} */
  const ended = new Promise((resolve) => (control.port1.onmessage = ({ data }) => data !== null && resolve(data)));
  use(startProcess(command, new ArrayBuffer(0), /** @type {any} */ (port.port2), /** @type {any} */ (control.port2)));
  const why = await ended;
  for (const { port1, port2 } of [port, control]) for (const end of [port1, port2]) end.close();
  return { why, taken };
}

/** Starts what is no program, with a filter that nobody reads. @param {string} program */
async function notStarted(program) {
  const { why } = await endOf({ program, args: [], env: {}, filter: new Uint8Array(100_000) });
  return /^its process has ended: Error: spawn .*(ENOENT|EACCES)$/.test(why) ? [] : [why];
}

/** Ends processes at once. Their pipes are closed, and so the end reported, only when no process holds them any more. */
async function endEarly() {
  const { command } = await confine(join(root, "dist/process.mjs"));
  const all = Array.from({ length: 8 }, () => endOf(command, (started) => started.terminate()));
  return (await Promise.all(all)).map(({ why }) => why).filter((why) => !why.startsWith("its process has ended: "));
}

async function cross() {
  const value = ["text é", new Uint8Array([1, 2, 3]), new Uint8Array(0), "", null, ["a", [new Blob(["file"])]], []];
  /** @type {Uint8Array[]} */
  const written = [];
  const write = createWriter((pieces) => written.push(...pieces), assert.fail);
  write(0, value);
  write(1, "next"); // waits for the Blob
  write(2, null);
  while (written.length < 17) await new Promise((resolve) => setImmediate(resolve));
  const bytes = Buffer.concat(written);
  for (const size of [1, 3, 7, bytes.length]) {
    /** @type {[number, any][]} */
    const taken = [];
    const read = createReader((...message) => taken.push(message));
    for (let start = 0; start < bytes.length; start += size) {
      const chunk = Buffer.from(bytes.subarray(start, start + size));
      read(chunk);
    }
    const file = taken[0][1][5][1].pop();
    assert.equal(await file.text(), "file");
    const [text, three, none, empty, nothing] = value;
    assert.deepEqual(taken, [
      [0, [text, three, none, empty, nothing, ["a", []], []]],
      [1, "next"],
      [2, null],
    ]);
  }
  // A stream may use a chunk's memory again.
  const chunk = Buffer.from([8, 0, 0, 0, 0, 2, 2, 0, 0, 0, 5, 6]);
  /** @type {any} */
  let kept;
  createReader((_, value) => (kept = value))(chunk);
  chunk.fill(0);
  assert.deepEqual(kept, new Uint8Array([5, 6]));
  return [];
}

async function bounds() {
  const read = () => createReader(() => {}, 100);
  const head = (/** @type {number} */ kind) => [6, 2, 0, 0, 0, kind, 0, 2, 0, 0];
  assert.throws(() => read()(Uint8Array.from([...head(1)])), RangeError); // a text of 512 bytes
  read()(Uint8Array.from([...head(3), ...Array(512).fill(0)])); // a Blob is beside the bound
  const list = new Uint8Array(4 + 6 + 300_000 * 5);
  const view = new DataView(list.buffer);
  view.setUint32(0, list.length - 4, true);
  list[5] = 4;
  view.setUint32(6, 300_000, true);
  assert.throws(() => createReader(() => {})(list), RangeError);

  /** @type {unknown[]} */
  const failures = [];
  const write = createWriter(
    () => {},
    (error) => failures.push(error),
  );
  write(0, /** @type {any} */ (7));
  write(0, /** @type {any} */ (8));
  assert.equal(failures.length, 1);
  return [];
}

/** Runs a copy of the package where nothing can confine a process. */
async function refusal() {
  const copy = join(folder, "package");
  await mkdir(copy);
  for (const part of ["package.json", "pyodide-glue", "pkg", "dist"])
    await cp(join(root, part), join(copy, part), { recursive: true });
  const script = join(copy, "try.mjs");
  await writeFile(
    script,
    `import { createSandbox } from "sandglass";
    const line = await createSandbox().then(() => "created", ({ code, message }) => code + ": " + message);
    console.log(line);
    const sandbox = await createSandbox({ isolation: "none" });
    await sandbox.initialize(null);
    const run = await sandbox.execute("print(6 * 7)");
    console.log(sandbox.capabilities.isolation, run.stdout);
    await sandbox.destroy();`,
  );
  const lines = /** @type {string[]} */ ([]);
  const runtime = { program: process.execPath, args: [] };
  const { code, said } = await runScript(runtime, [script], (line) => lines.push(line), {
    env: { PATH: "" },
    cwd: copy,
  });
  const text = lines.join("\n");
  const isRefused = /^backend_unavailable: .*npm install deno.*bubblewrap.*isolation: "none"/s.test(text);
  return [
    ...(isRefused ? [] : [`it said ${text}`]),
    ...(text.endsWith("none 42\n") ? [] : [`unconfined, it said ${text}`]),
    ...(code === 0 ? [] : [`it ended with ${code}: ${said}`]),
  ];
}
