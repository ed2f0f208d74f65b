// Suspended sessions of a server: the time to wake them, and the memory of the server for each.
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Seconds without use after which a session is suspended. */
const AFTER = 2;
/** Sessions that are made before the next ones wait for their suspension. */
const AT_ONCE = 50;
/** The longest wait, in milliseconds. */
const PATIENCE = 120_000;

/**
 * Makes sessions, waits until all are suspended, and wakes each once with a cell.
 * @param {(args: string[]) => Promise<{ url: string, pid: number | undefined, end: () => Promise<void> }>} serve
 * @param {string[]} args  options of the server
 * @param {number} count
 * @returns {Promise<{ samples: Record<string, number[]>, bytesEach: number }>}
 */
export async function suspendedSessions(serve, args, count) {
  const folder = await mkdtemp(join(tmpdir(), "sandglass-states-"));
  const room = ["--max-sessions", "1000", "--max-sessions-per-key", "1000", "--max-suspended-per-key", String(count)];
  const server = await serve([...args, "--state-dir", folder, "--suspend-after", String(AFTER), ...room]);
  try {
    /** @type {string[]} */
    const ids = [];
    let before = 0;
    while (ids.length < count) {
      for (let made = 0; made < AT_ONCE && ids.length < count; made++) {
        const { id } = await post(server.url, "/v1/sessions", { context: "a text" });
        const code = "x = list(range(1000))\ndef twice(n): return 2 * n\nnames = {str(n): n for n in x}";
        await post(server.url, `/v1/sessions/${id}/execute`, { code });
        ids.push(id);
      }
      await suspended(server.url, ids.length);
      if (before === 0) before = memory(server.pid);
    }
    const bytesEach = (memory(server.pid) - before) / Math.max(1, count - AT_ONCE);
    /** @type {number[]} */
    const wakes = [];
    for (const id of ids) {
      const begun = performance.now();
      const { result } = await post(server.url, `/v1/sessions/${id}/execute`, { code: "twice(len(x)) + names['7']" });
      wakes.push(performance.now() - begun);
      if (result !== "2007") throw new Error(`a woken session answers ${result}`);
    }
    return { samples: { "wake and a cell": wakes }, bytesEach };
  } finally {
    await server.end();
    await rm(folder, { recursive: true, force: true });
  }
}

/** @param {string} url @param {number} count */
async function suspended(url, count) {
  for (const begun = Date.now(); ;) {
    const text = await (await fetch(`${url}/metrics`)).text();
    if (Number(/^sandglass_sessions_suspended (\d+)$/m.exec(text)?.[1]) === count) return;
    if (Date.now() - begun > PATIENCE) throw new Error(`${count} sessions are not suspended`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** @param {string} url @param {string} path @param {object} body */
async function post(url, path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** Bytes of a process in memory, without those of its children. @param {number | undefined} pid */
function memory(pid) {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return 1024 * Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0);
}
