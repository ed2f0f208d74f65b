// What holds outside of browsers: JavaScript that has taken over a guest's process, bytes that are no messages, and machines
// without a wall.
//   node tests/e2e/runtimes-attacks.mjs [--only part-of-a-name]
import { closeSync, openSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
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
    let [said, failed] = ["", ""];
    child.stdout.on("data", (text) => (said += text));
    child.stderr.on("data", (text) => (failed += text));
    child.on("close", () => console.log(JSON.stringify({ name, said, failed })));`,
  );
  let line = "";
  const left = openSync(join(folder, "secret.txt"), "r");
  const options = { env: { PATH: path }, more: ["ignore", "ignore", left] };
  const { said: failure } = await runScript(runtime, [script], (text) => (line += text), options);
  closeSync(left);
  if (!line) return [failure];
  const { name, said, failed } = JSON.parse(line);
  if (!said.startsWith("{")) return [`the attacker ended early: ${said}${failed}`];
  const { reached, refused } = JSON.parse(said);
  if (process.env.VERBOSE) console.log(refused);
  return [
    ...(name === wall ? [] : [`the wall is ${name}`]),
    ...reached,
    ...hits.splice(0).map((hit) => `the canary saw ${hit}`),
    ...(Object.keys(refused).length < 20 ? ["few attacks were tried"] : []),
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
    ...["starts a program", "forks"],
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
  const [port, control] = [new MessageChannel(), new MessageChannel()];
  /** @type {unknown[]} */
  const taken = [];
  port.port1.onmessage = ({ data }) => taken.push(data);
  const ended = new Promise((resolve) => (control.port1.onmessage = ({ data }) => resolve(data)));
  const command = { program: process.execPath, args: ["-e", code], env: {} };
  startProcess(command, new Blob([""]), /** @type {any} */ (port.port2), /** @type {any} */ (control.port2));
  const why = await ended;
  for (const { port1, port2 } of [port, control]) for (const end of [port1, port2]) end.close();
  const isTold = /^its process has ended: (RangeError|Error|TypeError)/.test(String(why));
  return [...(isTold ? [] : [`${why}`]), ...(taken.length > 0 ? [`${taken.length} messages came through`] : [])];
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
