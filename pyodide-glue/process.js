// Processes of guests, for a host on Node, Deno or Bun: starts one and passes messages between its pipes and the ports that
// the supervisor holds.
// Decisions: docs/internals/guest-in-a-process.md.

import { spawn, spawnSync } from "node:child_process";
import { closeSync, openSync, readFileSync, readdirSync } from "node:fs";
import process from "node:process";
import { LANES, createReader, createWriter } from "./pipe.js";

/** @import { Supply } from "./start-worker.js" */

/** @typedef {{ program: string, args: string[], env: Record<string, string | undefined>, filter?: Uint8Array }} Command */

/** The time after which a process that does not start is killed all the same, in milliseconds. */
const START_MS = 10_000;
/** The most characters of a failure that the process wrote to its standard error. */
const MAX_WORDS = 2000;

/** The most bytes of a guest's message beside its Blobs: more than the arguments of a host call should have. */
const MAX_BYTES = 2 ** 28;

const IS_DENO = "Deno" in globalThis;
/** The flag of a descriptor that started programs do not get, as /proc shows it. */
const CLOSED_ON_EXEC = 0o2000000;

/**
 * Starts a program with three pipes, and the filter of system calls on descriptor 3.
 * @param {Command} command
 * @returns {any} Node's `ChildProcess`
 */
export function startProgram({ program, args, env, filter }) {
  /** @type {("pipe" | "ignore" | number)[]} */
  const stdio = ["pipe", "pipe", "pipe"];
  // Whoever started this program may have left files or sockets open, which the guest would inherit.
  const inherited = inheritable();
  // Deno gives no open file to a program. There, a pipe that is closed at once takes the place.
  const nothing = IS_DENO || inherited.length === 0 ? "pipe" : openSync("/dev/null", "r");
  for (const fd of inherited) stdio[fd] = nothing;
  if (filter) stdio[3] = "pipe";
  try {
    const child = spawn(program, args, { env, stdio: Array.from(stdio, (way) => way ?? "ignore") });
    // Whoever has the handle hears more; without a listener, Node ends the host's program.
    child.on("error", () => {});
    const pipes = /** @type {any[]} */ (child.stdio ?? []);
    for (const [fd, pipe] of pipes.entries()) {
      pipe?.on("error", () => {});
      if (fd > (filter ? 3 : 2)) pipe?.destroy();
    }
    if (!child.stdin) throw new Error(`${program} could not be started: this program has too many files open`);
    if (filter) pipes[3]?.end(filter);
    return child;
  } finally {
    if (typeof nothing === "number") closeSync(nothing);
  }
}

/** The descriptors beyond the standard ones that started programs get. */
function inheritable() {
  if (process.platform !== "linux") return [];
  if (IS_DENO) {
    // It may not look into /proc without all rights, so a started program tells what it got.
    const { stdout } = spawnSync("/bin/ls", ["/proc/self/fd"], { env: {}, encoding: "utf8" });
    return `${stdout ?? ""}`
      .split("\n")
      .map(Number)
      .filter((fd) => fd > 2);
  }
  /** @type {number[]} */
  const all = readdirSync("/proc/self/fdinfo").map(Number);
  return all.filter((fd) => {
    try {
      const [, flags = "0"] = /^flags:\s*(\d+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8")) ?? [];
      return fd > 2 && !(parseInt(flags, 8) & CLOSED_ON_EXEC);
    } catch {
      return false; // closed meanwhile
    }
  });
}

/**
 * Starts the process of a guest. A failure is reported to `control`, as a worker's is.
 * @param {Command} command
 * @param {ArrayBuffer} script  the worker's script, dist/guest.txt
 * @param {MessagePort} port  the private way between worker and host
 * @param {MessagePort} control
 * @returns {{ terminate(): void }}
 */
export function startProcess(command, script, port, control) {
  const child = startProgram(command);
  const { stdin, stdout, stderr } = child; // "close" reports their errors
  let words = "";
  let isRunning = false;
  const fail = (/** @type {unknown} */ why) => {
    child.kill("SIGKILL");
    control.postMessage(`its process has ended: ${why}`);
  };
  const write = createWriter((pieces) => pieces.forEach((piece) => stdin.write(piece)), fail);
  const read = createReader((lane, value) => {
    if (lane === LANES.port) return port.postMessage(value);
    if (lane !== LANES.control || (value !== null && typeof value !== "string")) throw new RangeError("no such lane");
    control.postMessage(value && value.slice(0, MAX_WORDS));
  }, MAX_BYTES);
  stdout.on("data", (/** @type {Uint8Array} */ chunk) => {
    isRunning = true; // by the script's first message
    try {
      read(chunk);
    } catch (error) {
      stdout.removeAllListeners("data").resume();
      fail(error);
    }
  });
  stderr.setEncoding("utf8").on("data", (/** @type {string} */ text) => (words = (words + text).slice(-MAX_WORDS)));
  child.on("error", fail);
  child.on("close", (/** @type {number | null} */ code, /** @type {string | null} */ signal) =>
    fail(words.trim() || (signal ?? `exit code ${code}`)),
  );

  write(LANES.script, new TextDecoder().decode(script));
  port.onmessage = ({ data }) => write(LANES.port, data);
  control.onmessage = ({ data }) => write(LANES.control, giveControl(data));
  return {
    terminate() {
      const kill = () => child.kill("SIGKILL");
      if (isRunning) return void kill();
      // Killed while it starts, bubblewrap leaves a process behind, which waits for it.
      const timer = setTimeout(kill, START_MS);
      stdout.once("data", kill);
      child.once("close", () => clearTimeout(timer));
    },
  };
}

/** A message of `control` as a value of a pipe. `process-script.js` reads it. @param {Exclude<Supply, { kept: Blob }>} message */
function giveControl(message) {
  if (Array.isArray(message)) return ["message", message[0], ...(message[1] ? [message[1]] : [])];
  if ("wasm" in message) return ["wasm", message.wasm];
  if ("library" in message) return ["library", message.library];
  const { files, snapshot, packed, proven } = message;
  return ["parts", JSON.stringify(files), snapshot ?? null, packed ?? null, proven ? "proven" : ""];
}
