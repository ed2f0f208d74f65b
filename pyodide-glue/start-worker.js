// Starts a guest's worker: in the guest's frame, or in the page itself (`isolation: "worker"`).

import { createMailbox, createMailboxWriter } from "./mailbox.js";
import { trustedUrl } from "./trusted-types.js";

/**
 * The parts that Python starts from.
 * @typedef {object} Parts
 * @property {{ wasm: Blob, stdlib: Blob }} pyodide
 * @property {[string, string][]} files  the Python runtime: names and sources
 * @property {Blob} [snapshot]  memory to start from
 * @property {Blob} [packed]  the package's snapshot, where there is no other
 * @property {boolean} proven  whether a guest has started from this snapshot before
 */

/**
 * Starts a guest's worker.
 * @param {Blob} script  the worker's script, dist/guest.txt
 * @param {MessagePort} port  the private way between worker and host
 * @param {MessagePort} control  brings the worker's parts, then messages for a blocked worker; reports a failure of the
 * worker
 */
export function startWorker(script, port, control) {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const worker = new Worker(trustedUrl(url));
  worker.addEventListener("message", () => URL.revokeObjectURL(url), { once: true }); // the script runs
  tendWorker(worker, port, control);
  return worker;
}

/**
 * Gives a worker its port, then what `control` brings.
 * @param {Pick<Worker, "postMessage" | "addEventListener">} worker
 * @param {MessagePort} port
 * @param {MessagePort} control
 */
export function tendWorker(worker, port, control) {
  const fail = (/** @type {unknown} */ why) => control.postMessage(String(why ?? "the worker could not be started"));
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    fail(event.message);
  });
  const mailbox = createMailbox();
  const write = mailbox && createMailboxWriter(mailbox, worker);
  control.onmessage = ({ data }) =>
    data instanceof Array ? write?.(/** @type {any} */ (data)) : furnish(worker, data).catch(fail);
  worker.postMessage({ port, mailbox }, [port]);
}

/**
 * Compiles the wasm module here, while the worker is still busy with its script.
 * @param {Pick<Worker, "postMessage">} worker
 * @param {Parts} parts
 */
async function furnish(worker, parts) {
  worker.postMessage(parts);
  const response = new Response(parts.pyodide.wasm, { headers: { "content-type": "application/wasm" } });
  worker.postMessage(await WebAssembly.compileStreaming(response));
}
