// The script of a guest's process, on Node, Deno or Bun. It takes the part that a frame has in a page: it starts the worker,
// and passes messages on between the worker's ports and the pipes to the host.
// Decisions: docs/internals/guest-in-a-process.md.

import process from "node:process";
import { Worker as ThreadWorker } from "node:worker_threads";
import { LANES, createReader, createWriter } from "./pipe.js";
import { tendWorker } from "./start-worker.js";

/** @import { Value } from "./pipe.js" */
/** @import { Supply } from "./start-worker.js" */

/** Runs before the guest's script, and makes the worker look like a browser's. What it removes, guest code could misuse. */
const PRELUDE = `"use strict";
{
  const { parentPort } = require("node:worker_threads");
  process.on("unhandledRejection", () => {});
  parentPort.on("message", (data) => globalThis.onmessage?.({ data }));
  const post = parentPort.postMessage.bind(parentPort);
  const added = {
    self: globalThis,
    postMessage: (message) => post(message),
    onmessage: null,
    addEventListener() {},
    location: new URL("https://guest.invalid/guest.js"),
    WorkerGlobalScope: class { static [Symbol.hasInstance]() { return true; } },
  };
  for (const [name, value] of Object.entries(added))
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  // Node.js 20 lacks it.
  Promise.withResolvers ??= function () {
    const parts = {};
    parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
    return parts;
  };
  for (const name of ["process", "require", "module", "exports", "Deno", "Bun"])
    Reflect.deleteProperty(globalThis, name); // Bun keeps its own
  // Deno tells the global object of a rejection that nobody handles, and ends the worker unless that is prevented.
  const { dispatchEvent } = EventTarget.prototype;
  const dispatch = (event) =>
    event.type === "unhandledrejection" ? event.preventDefault() : dispatchEvent.call(globalThis, event);
  Object.defineProperty(globalThis, "dispatchEvent", { value: dispatch });
  // Its ports look this one up when they are used.
  Object.defineProperty(globalThis, "queueMicrotask", { value: globalThis.queueMicrotask });
  // It loads parts of them when they are first used, which has to be before lockdown.js runs.
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => port1.close();
  port2.postMessage(null);
  // lockdown.js removes these from what the global object inherits, and Deno's ports need them.
  for (const name of ["addEventListener", "removeEventListener", "dispatchEvent"])
    Object.defineProperty(MessagePort.prototype, name, { value: EventTarget.prototype[name] });
}
`;

/** A worker on a thread, with the methods of a browser's worker. @param {string} script */
function createWorker(script) {
  const worker = new ThreadWorker(PRELUDE + script, { eval: true, env: {}, argv: [], execArgv: [], stdin: false });
  return {
    /** @param {string} type @param {(event: any) => void} listener */
    addEventListener(type, listener) {
      worker.on(type, (/** @type {unknown} */ value) =>
        listener(type === "error" ? { message: `${value}`, preventDefault() {} } : { data: value }),
      );
    },
    /** @param {unknown} message @param {any} [moved] */
    postMessage: (message, moved) => worker.postMessage(message, moved),
  };
}

const { port1: port, port2: workersPort } = new MessageChannel();
const { port1: control, port2: workersControl } = new MessageChannel();
// These writes wait for the host, so that output cannot pile up here.
const write = createWriter((pieces) => pieces.forEach((piece) => process.stdout.write(piece)), end);
port.onmessage = ({ data }) => write(LANES.port, data);
control.onmessage = ({ data }) => write(LANES.control, data);

const read = createReader((lane, value) => {
  if (lane === LANES.port) port.postMessage(value);
  else if (lane === LANES.control) control.postMessage(takeControl(/** @type {any} */ (value)));
  else tendWorker(createWorker(/** @type {string} */ (value)), workersPort, workersControl);
});
Object.assign(globalThis, { self: globalThis, crossOriginIsolated: true });
process.stdin.on("data", read);
process.stdin.on("end", end);
write(LANES.control, null); // the script runs; see guest_frame.rs

/** False on engines that lay out Python's table of functions in another way than the one that made the package's snapshot. */
const takesPacked = parseInt(process.versions.node, 10) >= 22;

/** A message of `control`, made of what `process.js` has sent. @param {any[]} value @returns {Supply} */
function takeControl([kind, ...values]) {
  if (kind === "message") return /** @type {[string, Uint8Array?]} */ (values);
  if (kind === "wasm") return { wasm: values[0] };
  if (kind === "library") return { library: values[0] };
  const [files, snapshot, packed, proven] = values;
  return {
    files: JSON.parse(files),
    snapshot: snapshot ?? undefined,
    packed: takesPacked ? (packed ?? undefined) : undefined,
    proven: proven === "proven",
  };
}

function end() {
  process.exit(1);
}
