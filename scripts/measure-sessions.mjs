// Measures what sessions of a server take in memory at rest: the proportional set size of all processes that belong to it.
//   node scripts/measure-sessions.mjs [--sessions 100] [--backend bubblewrap] [--python PROGRAM]
// Needs root, to read other users' /proc, and `cargo build -p sandglass-cli`.
import { readdirSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { KEY, startHost } from "../tests/e2e/host.mjs";

const { values } = parseArgs({
  options: {
    sessions: { type: "string", default: "100" },
    backend: { type: "string", default: "bubblewrap" },
    python: { type: "string" },
  },
});
const count = Number(values.sessions);
const host = await startHost({
  backend: values.backend,
  origin: "http://127.0.0.1",
  settings: [
    ...["--max-sessions", String(count), "--max-sessions-per-key", String(count)],
    ...(values.python ? ["--python", values.python] : []),
  ],
});

/** @param {string} path @param {unknown} body */
async function post(path, body) {
  const headers = { authorization: `Bearer ${KEY}`, "content-type": "application/json" };
  const answer = await fetch(host.url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** Bytes of the server and all that descends from it. */
function memory() {
  const children = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    const parent = /\) . (\d+)/.exec(read(`/proc/${pid}/stat`))?.[1];
    children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const descendants = (/** @type {string} */ pid) => [pid, ...(children.get(pid) ?? []).flatMap(descendants)];
  const pss = (/** @type {string} */ pid) =>
    Number(/^Pss: +(\d+) kB/m.exec(read(`/proc/${pid}/smaps_rollup`))?.[1] ?? 0);
  return 1024 * descendants(String(host.pid)).reduce((sum, pid) => sum + pss(pid), 0);
}

/** A file of /proc; empty when its process has gone. @param {string} path */
function read(path) {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

try {
  // The first sessions wait until guests have been made, and what they take is the pool's.
  const first = await post("/v1/sessions", {});
  await post(`/v1/sessions/${first.id}/execute`, { code: "x = 1" });
  const before = memory();
  for (let made = 1; made < count; made += 1) {
    const { id } = await post("/v1/sessions", {});
    await post(`/v1/sessions/${id}/execute`, { code: "x = [n * n for n in range(1000)]\nprint(sum(x))" });
  }
  const each = (memory() - before) / (count - 1);
  const megabytes = (/** @type {number} */ bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
  console.log(`the server with its zygote, guests that wait and one session: ${megabytes(before)}`);
  console.log(`each session at rest: ${megabytes(each)}, so ${Math.floor(1e9 / each)} sessions per GB`);
} finally {
  await host.stop();
}
