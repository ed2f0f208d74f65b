// Starts a guest's worker: in the guest's frame, or in the page itself (`isolation: "worker"`).
// Decisions: docs/internals/guest-in-a-browser.md.

import { createMailbox, createMailboxWriter } from "./mailbox.js";
import { trustedUrl } from "./trusted-types.js";

/**
 * The parts that Python starts from, beside the module.
 * @typedef {object} Parts
 * @property {[string, string][]} files  the Python runtime: names and sources
 * @property {Blob} [snapshot]  memory to start from
 * @property {Blob} [packed]  the package's snapshot, where there is no other
 * @property {boolean} proven  whether a guest has started from this snapshot before
 */
/**
 * What `control` brings, in any order: the module, the snapshot if it comes before the other parts, the parts, the archive of the
 * standard library (or the reason why it is missing), and messages for a blocked worker.
 * @typedef {{ wasm: Blob } | { kept: Blob } | Parts | { library: Blob | string } | [header: string, body?: Uint8Array]} Supply
 */

/**
 * Starts a guest's worker.
 * @param {ArrayBuffer | Blob} script  the worker's script, dist/guest.txt
 * @param {MessagePort} port  the private way between worker and host
 * @param {MessagePort} control  brings the worker's supplies (`Supply`); asks for the library by `null`, and reports a
 * failure of the worker
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
  /** The archive of the standard library, or the reason why it is missing. @type {Blob | string | undefined} */
  let library;
  /** The worker's questions for the library: whether it is blocked. @type {Set<boolean>} */
  const questions = new Set();
  const answer = async () => {
    if (library === undefined) return;
    const asked = [...questions];
    questions.clear();
    for (const isBlocked of asked) {
      const given = library instanceof Blob ? new Uint8Array(await library.arrayBuffer()) : library;
      if (!isBlocked || !write) worker.postMessage(["library", given]);
      else if (typeof given === "string") write([JSON.stringify({ type: "library", missing: given })]);
      else write([`{"type":"library"}`, given]);
    }
  };
  worker.addEventListener("message", ({ data }) => {
    if (!(data instanceof Array) || data[0] !== "library") return;
    if (library === undefined) control.postMessage(null); // the page may fetch it later
    questions.add(data[1] === true);
    answer().catch(fail);
  });
  control.onmessage = (/** @type {{ data: Supply }} */ { data }) => {
    if (data instanceof Array) write?.(data);
    else if ("wasm" in data) compile(worker, data.wasm).catch(fail);
    else if ("library" in data) {
      library = data.library;
      answer().catch(fail);
    } else worker.postMessage(data);
  };
  worker.postMessage({ port, mailbox }, [port]);
}

/**
 * Compiles the module here, while the worker is still busy with its script.
 * @param {Pick<Worker, "postMessage">} worker
 * @param {Blob} wasm
 */
async function compile(worker, wasm) {
  // Streaming: Chromium keeps a frame for good that is removed while `WebAssembly.compile` is at work in it.
  const response = new Response(wasm, { headers: { "content-type": "application/wasm" } });
  worker.postMessage(await WebAssembly.compileStreaming(response));
}
