// JavaScript that has taken over a guest's process, and tries to get out. It prints what it has reached, as JSON.
// `runtimes-attacks.mjs` runs it behind each wall, in the place of dist/process.mjs, with `TARGETS` before it.
import process from "node:process";

const { port, pid, file, secret } = /** @type {{ port: number, pid: number, file: string, secret: string }} */ (
  /** @type {any} */ (globalThis).TARGETS
);
if (process.argv[2] === "stop") process.exit(0); // forked by itself, where nothing confines it

process.on("uncaughtException", () => {}); // of Deno's sockets, which report their refusal so
/** @type {string[]} */
const reached = [];
/** @type {Record<string, string>} */
const refused = {};

/**
 * Tries something. It counts as reached if it ends well, and its result is not empty.
 * @param {string} name @param {() => unknown} attack
 */
async function attempt(name, attack) {
  try {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("nothing came")), 1000));
    const got = await Promise.race([attack(), late]);
    if (got !== undefined && got !== false && got !== "") reached.push(`${name}: ${String(got).slice(0, 200)}`);
    else refused[name] = "nothing";
  } catch (error) {
    refused[name] = String(error).slice(0, 100);
  }
}

/** @param {string} name @returns {Promise<any>} */
const load = (name) => import(name);

const url = `http://127.0.0.1:${port}`;
const { Deno } = /** @type {any} */ (globalThis);
const fs = await load("node:fs");

for (const path of [file, "/etc/passwd", "/etc/hostname", `/proc/${pid}/environ`, `/proc/${process.ppid}/environ`])
  await attempt(`reads ${path}`, () => fs.readFileSync(path, "utf8").length > 0 && path);
await attempt("sees the environment", () => JSON.stringify(process.env).includes(secret));
// In a namespace, 1 is bubblewrap, whose arguments name paths of the host.
for (const number of [pid, 1])
  await attempt(`sees the arguments of process ${number}`, () => fs.readFileSync(`/proc/${number}/cmdline`, "utf8"));
await attempt("lists the folder of users", () => fs.readdirSync("/home").join());
for (const path of ["/tmp/sandglass-escape", "/sandglass-escape", "/dev/shm/sandglass-escape", `${file}.new`])
  await attempt(`writes ${path}`, () => (fs.writeFileSync(path, "x"), path.startsWith("/tmp") && Deno ? "" : path));
await attempt("changes its own script", () => (fs.appendFileSync(process.argv[1], " "), "done"));

for (let fd = 3; fd < 40; fd += 1)
  await attempt(`reads descriptor ${fd}`, () => {
    const bytes = new Uint8Array(100);
    const size = fs.readSync(fd, bytes, 0, 100, 0);
    return new TextDecoder().decode(bytes.subarray(0, size)).includes(secret);
  });

await attempt("fetches", async () => (await fetch(`${url}/fetch`)).status);
await attempt("opens a socket", async () => {
  const net = await load("node:net");
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, "127.0.0.1", () => resolve("connected"));
    socket.on("error", reject);
    socket.on("connect", () => socket.end("GET /socket HTTP/1.0\r\n\r\n"));
  });
});
await attempt("sends a datagram", async () => {
  const socket = (await load("node:dgram")).createSocket("udp4");
  return new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.send("x", port, "127.0.0.1", (/** @type {unknown} */ error) => (error ? reject(error) : resolve("sent")));
  });
});
await attempt("asks for a name", async () => (await load("node:dns/promises")).resolve4("example.com"));
await attempt("listens", async () => {
  const server = (await load("node:net")).createServer();
  return new Promise((resolve, reject) => server.on("error", reject).listen(0, () => resolve("listening")));
});
for (const address of [`${url}/import.js`, "https://esm.sh/preact", "npm:chalk", "jsr:@std/path", `file://${file}`])
  await attempt(`imports ${address}`, () => load(address));

await attempt("starts a program", async () => {
  const { error, stdout } = (await load("node:child_process")).spawnSync(process.execPath, ["--version"]);
  if (error) throw error;
  return `${stdout}`;
});
await attempt("starts a shell", async () => (await load("node:child_process")).execSync("id"));
await attempt("forks", async () => {
  const child = (await load("node:child_process")).fork(process.argv[1], ["stop"]);
  return new Promise((resolve, reject) => child.on("error", reject).on("spawn", () => resolve("spawned")));
});
await attempt("uses the process binding", () => {
  const { Process } = /** @type {any} */ (process).binding("process_wrap");
  const failed = new Process().spawn({ file: process.execPath, args: [process.execPath, "--version"], stdio: [] });
  if (failed) throw new Error(`error ${failed}`);
  return "spawned";
});
await attempt("kills the host", () => pid !== process.pid && process.kill(pid, 0));
// In a namespace, its parent is 1, which ends nothing else.
await attempt("kills its parent", () => process.ppid > 1 && process.kill(process.ppid, 0));
await attempt("loads native code", () => {
  process.dlopen({ exports: {} }, "/lib/x86_64-linux-gnu/libc.so.6");
  return "loaded";
});
await attempt("makes code of text", () => new Function("return 1")());
await attempt("a thread has more rights", async () => {
  const { Worker } = await load("node:worker_threads");
  const code = `const { parentPort } = require("node:worker_threads");
    try { parentPort.postMessage(require("node:fs").readFileSync(${JSON.stringify(file)}, "utf8")); }
    catch (error) { parentPort.postMessage(""); }`;
  const worker = new Worker(code, { eval: true, execArgv: [], env: {} });
  return new Promise((resolve, reject) => worker.on("message", resolve).on("error", reject));
});
if (Deno) {
  await attempt("Deno.readTextFile", () => Deno.readTextFile(file));
  await attempt("Deno.env", () => JSON.stringify(Deno.env.toObject()).includes(secret));
  await attempt("Deno.Command", () => new Deno.Command("/bin/id").outputSync());
  await attempt("Deno.connect", () => Deno.connect({ port, hostname: "127.0.0.1" }));
  await attempt("Deno.dlopen", () => Deno.dlopen("/lib/x86_64-linux-gnu/libc.so.6", {}));
  await attempt("Deno.permissions", async () => (await Deno.permissions.request({ name: "read" })).state === "granted");
  await attempt("Deno.kill", () => (Deno.kill(pid, "SIGCONT"), "sent"));
}

process.stdout.write(JSON.stringify({ reached, refused }), () => process.exit(0));
